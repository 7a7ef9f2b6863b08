//! The loop of a worker thread. In each turn, the thread reads its input, lets its [`Worker`]
//! process the input, begins waiting searches, and sends the output.

use std::collections::HashMap;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::contact::Contact;
use super::desk::{Desk, Mail, News};
use crate::link::{Counts, Outbox};
use crate::role::{LowHalf, Out, Shelf, Waiting, Worker};
use crate::wire::Frame;

pub(super) struct Shared<L: LowHalf> {
    pub(super) began: Instant,
    pub(super) shelf: Arc<Shelf<L>>,
    pub(super) waiting: Mutex<Waiting>,
    pub(super) desks: Vec<Desk>,
    /// The worker that is asked first for the next search.
    pub(super) next_asked: AtomicUsize,
    pub(super) clients: Mutex<HashMap<u64, Arc<Outbox>>>,
    pub(super) answered: AtomicU64,
    pub(super) refused: AtomicU64,
    pub(super) memory: Arc<Counts>,
    pub(super) storage: Arc<Counts>,
    pub(super) outside: Arc<Counts>,
    /// Connections to memory come first.
    pub(super) contacts: Vec<Arc<Contact>>,
    /// The last logged text about different states of the servers.
    pub(super) told_difference: Mutex<Option<String>>,
    /// The silence after which a connection is closed.
    pub(super) silence: Duration,
}

#[derive(Default)]
struct Lines {
    memory: Option<Arc<Outbox>>,
    storage: Option<Arc<Outbox>>,
    news: VecDeque<News>,
    /// The connection on which the worker's next turn is already counted.
    expected: Option<Arc<Outbox>>,
    memory_frames: Vec<u8>,
    storage_frames: Vec<u8>,
}

impl Lines {
    /// Takes the input from the worker's [`Desk`]. Returns false if the worker has to end.
    fn take(&mut self, desk: &Desk) -> bool {
        let mut mail = desk.mail();
        if mail.over {
            return false;
        }
        self.news.extend(mail.news.drain(..));
        std::mem::swap(&mut self.memory_frames, &mut mail.memory);
        std::mem::swap(&mut self.storage_frames, &mut mail.storage);
        mail.look = false;
        if let Some(expected) = mail.expected.take() {
            self.expected = Some(expected);
        }
        true
    }

    /// If the worker panics, its replacement receives the remaining events.
    fn hear_news<L: LowHalf>(&mut self, worker: &mut Worker<L>, now: Duration, out: &mut Out) {
        while let Some(news) = self.news.pop_front() {
            match news {
                News::MemoryUp(outbox) => {
                    self.memory = Some(outbox);
                    worker.memory_up(now, out);
                }
                News::MemoryDown(why) => {
                    self.memory = None;
                    out.memory.clear();
                    worker.memory_down(&why);
                }
                News::Outdated => worker.outdated(now, out),
                News::StorageUp(outbox) => {
                    self.storage = Some(outbox);
                    worker.storage_up(now, out);
                }
                News::StorageDown(why) => {
                    self.storage = None;
                    out.storage.clear();
                    worker.storage_down(&why, out);
                }
                News::Gone(client) => worker.gone(now, client, out),
                News::GivenUp(token) => worker.given_up(token, out),
            }
        }
    }
}

impl<L: LowHalf> Shared<L> {
    pub(super) fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn told_difference(&self) -> MutexGuard<'_, Option<String>> {
        self.told_difference
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn clients(&self) -> MutexGuard<'_, HashMap<u64, Arc<Outbox>>> {
        self.clients.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes a worker that has room for a search. Returns false if there is none.
    pub(super) fn summon(&self) -> bool {
        let first = self.next_asked.fetch_add(1, Ordering::Relaxed);
        let desks = (0..self.desks.len()).map(|at| &self.desks[(first + at) % self.desks.len()]);
        // A worker that gets space looks for a search by itself.
        let found = desks
            .into_iter()
            .find(|desk| desk.room.swap(false, Ordering::SeqCst));
        if let Some(desk) = found {
            desk.change(|mail| mail.look = true);
        }
        found.is_some()
    }

    /// Wakes a worker to check deadlines, because all workers may sleep while they have no space
    /// for a search.
    pub(super) fn alarm(&self) {
        let at = self.next_asked.fetch_add(1, Ordering::Relaxed) % self.desks.len();
        self.desks[at].change(|mail| mail.look = true);
    }

    pub(super) fn tell(&self, news: &News) {
        let desks = self.desks.iter();
        desks.for_each(|desk| desk.change(|mail| mail.news.push(news.clone())));
    }

    pub(super) fn count(&self, answer: &[u8]) {
        let count = match Frame::is_refusal(answer) {
            true => &self.refused,
            false => &self.answered,
        };
        count.fetch_add(1, Ordering::Relaxed);
    }

    fn answer(&self, out: &Out) {
        for (client, id, frame) in out.answers() {
            self.count(frame);
            let outbox = self.clients().get(&client).cloned();
            self.waiting().over(client, id);
            if let Some(outbox) = outbox {
                outbox.post(frame);
            }
        }
    }

    /// If a half panics, only the queries of that worker fail.
    pub(super) fn work(&self, begin: impl Fn() -> Worker<L>, desk: &Desk) {
        let mut lines = Lines::default();
        loop {
            let mut worker = begin();
            let mut out = Out::default();
            let now = self.began.elapsed();
            if lines.memory.is_some() {
                worker.memory_up(now, &mut out);
            }
            if lines.storage.is_some() {
                worker.storage_up(now, &mut out);
            }
            let turns =
                AssertUnwindSafe(
                    || while self.take_turn(&mut worker, desk, &mut lines, &mut out) {},
                );
            if catch_unwind(turns).is_ok() {
                return;
            }
            tracing::error!(
                "a worker panicked (the message is on standard error). The queries of the worker are lost, and the worker is restarted"
            );
            // No client waits for output from before the panic.
            worker.abandon(&mut out);
            self.answer(&out);
            desk.in_flight.store(0, Ordering::Relaxed);
            // A partly processed input is not processed again.
            lines.memory_frames.clear();
            lines.storage_frames.clear();
        }
    }

    /// Returns false if the worker has to end. `out` may contain earlier output.
    fn take_turn(
        &self,
        worker: &mut Worker<L>,
        desk: &Desk,
        lines: &mut Lines,
        out: &mut Out,
    ) -> bool {
        if !lines.take(desk) {
            return false;
        }
        let now = self.began.elapsed();
        lines.hear_news(worker, now, out);
        let expected = lines.expected.take();
        let memory = lines.memory.as_ref().map(|outbox| {
            // A turn that was counted on an ended connection does not count here.
            let counted = expected.is_some_and(|expected| Arc::ptr_eq(&expected, outbox));
            outbox.turn(counted)
        });
        let storage = lines.storage.as_deref().map(|outbox| outbox.turn(false));
        each(&mut lines.memory_frames, lines.memory.as_deref(), |frame| {
            worker.memory(now, frame, out).is_ok()
        });
        each(
            &mut lines.storage_frames,
            lines.storage.as_deref(),
            |frame| worker.storage(now, frame, out).is_ok(),
        );
        if let Some(outbox) = &lines.memory {
            worker.memory_heard(outbox.heard());
        }
        if let Some(outbox) = &lines.storage {
            worker.storage_heard(outbox.heard());
        }
        worker.timer(now, out);
        self.take_requests(worker, desk, now, out);
        if let Some(turn) = memory {
            turn.end(&out.memory);
        }
        if let Some(turn) = storage {
            turn.end(&out.storage);
        }
        self.end_silent(lines, out);
        let late = self.waiting().next_expiry();
        if late.is_some_and(|late| late <= now) {
            let trouble = worker.trouble(now);
            self.waiting().expire(now, trouble.as_deref(), out);
        }
        desk.in_flight.store(worker.in_flight(), Ordering::Relaxed);
        self.answer(out);
        if out.renewed {
            self.desks
                .iter()
                .for_each(|desk| desk.change(|mail| mail.look = true));
            self.ask_contacts();
        }
        out.clear();
        self.rest(desk, worker.next_timer().into_iter().chain(late).min());
        true
    }

    fn take_requests(&self, worker: &mut Worker<L>, desk: &Desk, now: Duration, out: &mut Out) {
        let trouble = worker.trouble(now);
        // The flag is set first, so that either the worker sees a later request, or the thread that
        // adds the request sees the flag.
        desk.room.store(true, Ordering::SeqCst);
        while worker.has_room() {
            let Some(request) = self.waiting().pop(now, trouble.as_deref(), out) else {
                break;
            };
            worker.take(now, request, out);
        }
        while worker.has_room_for_change() {
            let Some(change) = self.waiting().pop_change() else {
                break;
            };
            worker.take(now, change, out);
        }
        let room = worker.has_room();
        desk.room.store(room, Ordering::SeqCst);
        if !room && !self.waiting().is_empty() {
            // The thread that added the request may have notified only this worker.
            self.summon();
        }
    }

    /// Closes the silent connections, whose keepers connect again.
    fn end_silent(&self, lines: &Lines, out: &Out) {
        let both = [
            (&lines.memory, out.memory_silent),
            (&lines.storage, out.storage_silent),
        ];
        for outbox in both
            .into_iter()
            .filter_map(|(outbox, silent)| outbox.as_ref().filter(|_| silent))
        {
            let contacts = self.contacts.iter();
            contacts.for_each(|contact| contact.give_up(outbox, self.silence));
            outbox.close();
        }
    }

    fn rest(&self, desk: &Desk, due: Option<Duration>) {
        let idle = |mail: &mut Mail| {
            mail.news.is_empty()
                && mail.memory.is_empty()
                && mail.storage.is_empty()
                && !mail.look
                && !mail.over
        };
        let mail = desk.mail();
        match due {
            None => drop(desk.stirs.wait_while(mail, idle)),
            Some(due) => {
                let left = due.saturating_sub(self.began.elapsed());
                drop(desk.stirs.wait_timeout_while(mail, left, idle));
            }
        }
    }
}

/// If the peer sends a wrong frame, the connection is closed.
fn each(frames: &mut Vec<u8>, from: Option<&Outbox>, mut take: impl FnMut(&Frame<'_>) -> bool) {
    let mut at = 0;
    while let Ok(Some(frame)) = Frame::decode(&frames[at..]) {
        at += frame.bytes();
        if !take(&frame) {
            tracing::warn!("a server sent an unexpected message; the connection is closed");
            from.into_iter().for_each(Outbox::close);
            break;
        }
    }
    frames.clear();
}
