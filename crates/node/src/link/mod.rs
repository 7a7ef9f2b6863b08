//! A connection of many queries, with *continuous batching* (DistVS §4.2).
//!
//! ```text
//!   worker ── turn ends: its frames ──┐                                        ┌──> worker's inbox
//!   worker ── turn ends: its frames ──┼─ queue ── one write ──> ... ── one read ┼──> worker's inbox
//!   worker ── still in its turn       ┘                                        └──> ...
//! ```
//!
//! The messages of a walk are tens of node numbers: a system call for each would cost more than what is in it. A worker has the
//! queries that can go on do so, its *turn*, and hands over their messages together at its end. They are written by whoever ends the last turn of
//! those in progress, or has gathered enough of them: the paper's communicator, but without a thread that must be woken for each write. A turn counts from when
//! the worker was told that something came for it, so that those who are answered together write together. What is
//! handed over while somebody writes goes with the next write, which the same thread makes. A message waits for as long as the turns of other workers last
//! that have begun by then, and no longer once half of the queries that there may be wait with it.
//!
//! A thread of storage that ranks for many queries *lays* its answers, and writes those of a turn of its executor together ([`after_turn`](stratann_tier::after_turn)).
//!
//! Who has more to do than to wait for one peer *hands over*: what a peer does not take within milliseconds is written by a thread that is begun for it and ends when
//! the peer has caught up.
//!
//! At the other end one read brings all that was written, it is answered together, and so batches go to and fro.

pub(crate) mod duplex;
pub(crate) mod pipe;

use std::io::{self, ErrorKind, Read};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread;
use std::time::Duration;

use crate::greeting::Deadline;
use crate::wire::{Frame, Incoming, WireError};
use duplex::{Closer, Receiver, Sender, Sent};

/// Bytes that a read has room for at least.
const ROOM: usize = 64 << 10;
/// How long a peer may take for what it is sent, where that is handed over then.
const PROMPT: Duration = Duration::from_millis(2);
/// Bytes of a piece, for each of which a peer that is behind may take as long as it is waited for.
const PIECE: usize = 64 << 10;
/// The most bytes that wait for a peer that is behind. One more answer ends the connection.
const MOST_BEHIND: usize = 8 << 20;

/// What went through connections.
#[derive(Debug, Default)]
pub struct Counts {
    sent: AtomicU64,
    writes: AtomicU64,
    bytes_sent: AtomicU64,
    received: AtomicU64,
    reads: AtomicU64,
    bytes_received: AtomicU64,
}

/// What went through connections, at some moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Messages that were sent.
    pub sent: u64,
    /// Writes that these went in. Over TLS and for more than a socket takes at once, a write is several system calls.
    pub writes: u64,
    /// Their bytes.
    pub bytes_sent: u64,
    /// Messages that came.
    pub received: u64,
    /// Reads that brought them.
    pub reads: u64,
    /// Their bytes.
    pub bytes_received: u64,
}

impl Counts {
    /// As it is now.
    pub fn traffic(&self) -> Traffic {
        let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
        Traffic {
            sent: of(&self.sent),
            writes: of(&self.writes),
            bytes_sent: of(&self.bytes_sent),
            received: of(&self.received),
            reads: of(&self.reads),
            bytes_received: of(&self.bytes_received),
        }
    }

    fn wrote(&self, messages: u64, bytes: usize) {
        self.sent.fetch_add(messages, Ordering::Relaxed);
        self.writes.fetch_add(1, Ordering::Relaxed);
        self.bytes_sent.fetch_add(bytes as u64, Ordering::Relaxed);
    }
}

/// How messages are put together.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Batching {
    /// Off, each message is written by itself: to compare with.
    pub(crate) on: bool,
    /// So many messages do not wait for turns in progress.
    pub(crate) enough: usize,
}

#[derive(Default)]
struct Queue {
    bytes: Vec<u8>,
    messages: usize,
    /// Turns in progress.
    turns: usize,
    /// Somebody writes.
    writing: bool,
    over: bool,
}

/// What is sent through a connection, by any number of threads.
pub(crate) struct Outbox {
    queue: Mutex<Queue>,
    sender: Mutex<(Sender, Vec<u8>)>,
    closer: Closer,
    batching: Batching,
    counts: Arc<Counts>,
    /// When something came last: microseconds since whatever moment who reads it goes by.
    heard: AtomicU64,
    /// This, and how long a peer that is behind is waited for, where it is handed over.
    behind: Option<(Weak<Outbox>, Duration)>,
}

/// Sends all, piece by piece, each within the limit. Gives whether it went.
fn all(sender: &mut Sender, bytes: &[u8]) -> bool {
    let mut at = 0;
    loop {
        let end = bytes.len().min(at + PIECE);
        // Also where nothing is left: what was encrypted may be.
        if !sender.send(&bytes[at..end]).is_ok_and(|sent| sent.whole) {
            return false;
        }
        at = end;
        if at == bytes.len() {
            return true;
        }
    }
}

/// The frames of what has been appended.
fn frames(mut bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    std::iter::from_fn(move || {
        let len = Frame::len_of(bytes)?;
        let (frame, rest) = bytes.split_at_checked(len)?;
        bytes = rest;
        Some(frame)
    })
}

impl Outbox {
    pub(crate) fn new(
        sender: Sender,
        closer: Closer,
        batching: Batching,
        counts: Arc<Counts>,
    ) -> Outbox {
        Outbox {
            queue: Mutex::default(),
            sender: Mutex::new((sender, Vec::new())),
            closer,
            batching,
            counts,
            heard: AtomicU64::new(0),
            behind: None,
        }
    }

    /// One that nobody who puts something into it waits for: a thread that is begun for it writes what the peer does not take within milliseconds, for as long as it takes
    /// 64 KiB in each `patience`.
    pub(crate) fn handing_over(
        mut sender: Sender,
        closer: Closer,
        counts: Arc<Counts>,
        patience: Duration,
    ) -> io::Result<Arc<Outbox>> {
        sender.set_limit(PROMPT)?;
        let batching = Batching {
            on: true,
            enough: 1,
        };
        Ok(Arc::new_cyclic(|own| {
            let mut outbox = Outbox::new(sender, closer, batching, counts);
            outbox.behind = Some((own.clone(), patience));
            outbox
        }))
    }

    /// Something came through the connection.
    pub(crate) fn hear(&self, at: Duration) {
        self.heard.store(at.as_micros() as u64, Ordering::Relaxed);
    }

    /// When something came last.
    pub(crate) fn heard(&self) -> Duration {
        Duration::from_micros(self.heard.load(Ordering::Relaxed))
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A worker is told that there is something for it: its turn counts from here on.
    pub(crate) fn expect(&self) {
        self.queue().turns += 1;
    }

    /// A turn begins, at the end of which there may be something to send. Whether it was [expected](Self::expect), of this connection.
    pub(crate) fn turn(&self, expected: bool) -> Turn<'_> {
        if !expected {
            self.expect();
        }
        Turn { outbox: self }
    }

    /// Puts frames behind those that wait.
    fn add(&self, bytes: &[u8]) -> MutexGuard<'_, Queue> {
        let mut queue = self.queue();
        let waits = queue.bytes.len();
        if self.behind.is_some() && waits > 0 && waits + bytes.len() > MOST_BEHIND {
            self.give_up(&mut queue);
        }
        if !queue.over {
            queue.bytes.extend_from_slice(bytes);
            queue.messages += frames(bytes).count();
        }
        queue
    }

    /// Sends frames, now or with those of turns in progress. A connection that breaks is closed, which who reads it finds out.
    pub(crate) fn post(&self, bytes: &[u8]) {
        self.flush(self.add(bytes));
    }

    /// Puts frames behind those that wait, and does not send them: [`send`](Self::send) is to come soon.
    pub(crate) fn lay(&self, bytes: &[u8]) {
        drop(self.add(bytes));
    }

    /// Sends what waits, as [`post`](Self::post).
    pub(crate) fn send(&self) {
        self.flush(self.queue());
    }

    /// Writes what waits, unless there is a reason to wait longer.
    fn flush<'a>(&'a self, mut queue: MutexGuard<'a, Queue>) {
        while !queue.writing
            && queue.messages > 0
            && (queue.turns == 0 || queue.messages >= self.batching.enough)
        {
            queue.writing = true;
            let mut sender = self.sender.lock().unwrap_or_else(PoisonError::into_inner);
            let (sender, taken) = &mut *sender;
            std::mem::swap(&mut queue.bytes, taken);
            let messages = std::mem::take(&mut queue.messages);
            drop(queue);
            let written = self.write(sender, taken, messages);
            let rest = match &written {
                Ok(sent) if !sent.whole => Some(taken.split_off(sent.taken)),
                _ => None,
            };
            taken.clear();
            taken.shrink_to(4 * ROOM);
            if let Some(rest) = rest
                && self.hand_over(rest)
            {
                // That thread goes on with what comes meanwhile.
                return;
            }
            queue = self.queue();
            queue.writing = false;
            if !written.is_ok_and(|sent| sent.whole) {
                self.give_up(&mut queue);
            }
        }
    }

    /// It cannot be written to any more.
    fn give_up(&self, queue: &mut Queue) {
        queue.over = true;
        queue.bytes = Vec::new();
        queue.messages = 0;
        self.close();
    }

    /// Has a thread write what the peer did not take, and all that comes until it has caught up. False: there is none.
    fn hand_over(&self, rest: Vec<u8>) -> bool {
        let Some((own, patience)) = &self.behind else {
            return false;
        };
        let (Some(own), patience) = (own.upgrade(), *patience) else {
            return false;
        };
        let named = thread::Builder::new().name("stratann-behind".to_owned());
        let begun = named.spawn(move || own.catch_up(rest, patience));
        begun.is_ok()
    }

    fn catch_up(&self, rest: Vec<u8>, patience: Duration) {
        let mut sender = self.sender.lock().unwrap_or_else(PoisonError::into_inner);
        let (sender, taken) = &mut *sender;
        *taken = rest;
        let mut goes = sender.set_limit(patience).is_ok();
        loop {
            goes = goes && all(sender, taken);
            taken.clear();
            taken.shrink_to(4 * ROOM);
            let mut queue = self.queue();
            if goes && queue.messages > 0 {
                std::mem::swap(&mut queue.bytes, taken);
                let messages = std::mem::take(&mut queue.messages);
                self.counts.wrote(messages as u64, taken.len());
                continue;
            }
            queue.writing = false;
            if !goes || sender.set_limit(PROMPT).is_err() {
                tracing::debug!("a connection is over: what it was sent was not taken in time");
                self.give_up(&mut queue);
            }
            return;
        }
    }

    /// Gives how far it went.
    fn write(&self, sender: &mut Sender, bytes: &[u8], messages: usize) -> io::Result<Sent> {
        let sent = match self.batching.on {
            true => {
                self.counts.wrote(messages as u64, bytes.len());
                match (&self.behind, bytes.len()) {
                    (Some(_), _) | (None, ..=PIECE) => sender.send(bytes),
                    // The limit is that of a piece, also over a slow link.
                    (None, taken) => Ok(Sent {
                        taken,
                        whole: all(sender, bytes),
                    }),
                }
            }
            false => frames(bytes)
                .try_for_each(|frame| {
                    self.counts.wrote(1, frame.len());
                    match sender.send(frame)?.whole {
                        true => Ok(()),
                        false => Err(ErrorKind::TimedOut.into()),
                    }
                })
                .map(|()| Sent {
                    taken: bytes.len(),
                    whole: true,
                }),
        };
        if let Err(error) = &sent {
            tracing::debug!("a connection broke: {error}");
        }
        sent
    }

    /// Ends the connection.
    pub(crate) fn close(&self) {
        self.closer.close();
    }
}

impl Drop for Outbox {
    fn drop(&mut self) {
        self.close();
    }
}

/// A turn in progress, for the end of which others' messages wait. It ends with this, also where it panics.
pub(crate) struct Turn<'a> {
    outbox: &'a Outbox,
}

impl Turn<'_> {
    /// It ends, and this came of it.
    pub(crate) fn end(self, frames: &[u8]) {
        let outbox = self.outbox;
        // Not before the frames are there: they go with those that waited for them.
        drop(outbox.add(frames));
        drop(self);
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let mut queue = self.outbox.queue();
        queue.turns = queue.turns.saturating_sub(1);
        self.outbox.flush(queue);
    }
}

/// What comes through a connection.
pub(crate) struct Inbox {
    receiver: Receiver,
    incoming: Incoming,
    counts: Arc<Counts>,
    /// How long the other side may take for the rest of a frame that it has begun; each 64 KiB begin the time anew.
    patience: Duration,
    /// Of a frame that has begun.
    begun: Option<Deadline>,
    /// Whether a frame was taken since the last read, and whether the receiver has a time limit.
    taken: bool,
    limited: bool,
}

/// Why nothing comes any more.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Broken {
    #[error("the connection is over")]
    Over,
    #[error("the connection broke: {0}")]
    Io(#[from] std::io::Error),
    #[error(transparent)]
    Wire(#[from] WireError),
    /// Who was connected to cannot answer now, and says so: another one is to be asked.
    #[error("{0}")]
    Waits(String),
}

impl Inbox {
    /// `most`: bytes of a frame's body.
    pub(crate) fn new(
        receiver: Receiver,
        counts: Arc<Counts>,
        patience: Duration,
        most: usize,
    ) -> Inbox {
        Inbox {
            receiver,
            incoming: Incoming::new(most),
            counts,
            patience,
            begun: None,
            taken: false,
            limited: true,
        }
    }

    /// Reads once, for as long as it takes where no frame has begun.
    pub(crate) fn read(&mut self) -> Result<(), Broken> {
        let limit = self.begun.as_ref().map(Deadline::left).transpose()?;
        if limit.is_some() || self.limited {
            self.receiver.set_timeout(limit)?;
            self.limited = limit.is_some();
        }
        let got = loop {
            match self.incoming.fill(ROOM, |room| self.receiver.read(room)) {
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                got => break got?,
            }
        };
        if got == 0 {
            return Err(Broken::Over);
        }
        if let Some(begun) = &mut self.begun {
            begun.advance(got);
        }
        self.taken = false;
        self.counts.reads.fetch_add(1, Ordering::Relaxed);
        self.counts
            .bytes_received
            .fetch_add(got as u64, Ordering::Relaxed);
        Ok(())
    }

    /// The next frame of those that were read. To be asked until there is none.
    pub(crate) fn frame(&mut self) -> Result<Option<Frame<'_>>, WireError> {
        // What is left of it is the beginning of one.
        let amid = self.incoming.is_amid();
        let frame = self.incoming.frame()?;
        match &frame {
            Some(_) => {
                self.taken = true;
                self.counts.received.fetch_add(1, Ordering::Relaxed);
            }
            None if !amid => self.begun = None,
            None if self.taken || self.begun.is_none() => {
                self.begun = Some(Deadline::new(self.patience))
            }
            None => {}
        }
        Ok(frame)
    }
}

#[cfg(test)]
mod tests {
    use super::duplex::Duplex;
    use super::*;
    use crate::wire::{Head, Message, Reason};
    use std::time::Instant;

    fn answers(count: usize) -> Vec<u8> {
        let (mut bytes, text) = (Vec::new(), "?".repeat(1000));
        let refused = Message::Refused {
            reason: Reason::Busy,
            text: &text,
        };
        (0..count).for_each(|_| refused.append(Head::default(), &mut bytes));
        bytes
    }

    fn handing_over(patience: Duration) -> (Arc<Outbox>, pipe::Pipe) {
        let (own, theirs) = pipe::pair();
        let Duplex { sender, closer, .. } = Duplex::local(own, None);
        let outbox = Outbox::handing_over(sender, closer, Arc::default(), patience).unwrap();
        (outbox, theirs)
    }

    #[test]
    fn nobody_waits_for_a_peer_that_is_slow_and_it_has_all_in_the_end() {
        let (outbox, mut peer) = handing_over(Duration::from_secs(20));
        let bytes = answers(3000);
        let began = Instant::now();
        outbox.post(&bytes);
        outbox.post(&bytes);
        assert!(began.elapsed() < Duration::from_secs(5));
        let mut found = vec![0; 2 * bytes.len()];
        peer.reader.read_exact(&mut found).unwrap();
        assert!(found == bytes.repeat(2));
        // It has caught up: what comes now goes at once.
        outbox.post(&bytes[..0]);
        outbox.post(&answers(1));
        peer.reader.read_exact(&mut found[..1000]).unwrap();
    }

    #[test]
    fn what_is_laid_goes_in_one_write() {
        let (outbox, mut peer) = handing_over(Duration::from_secs(20));
        let bytes = answers(1);
        outbox.lay(&bytes);
        outbox.lay(&bytes);
        let traffic = outbox.counts.traffic();
        assert_eq!((traffic.sent, traffic.writes), (0, 0));
        // One for each who laid something.
        outbox.send();
        outbox.send();
        let traffic = outbox.counts.traffic();
        assert_eq!((traffic.sent, traffic.writes), (2, 1));
        let mut found = vec![0; 2 * bytes.len()];
        peer.reader.read_exact(&mut found).unwrap();
        assert!(found == bytes.repeat(2));
    }

    #[test]
    fn a_peer_that_takes_nothing_is_given_up() {
        for (patience, posts) in [(20, 1), (60_000, 5)] {
            let (outbox, peer) = handing_over(Duration::from_millis(patience));
            // Too slow, or too much.
            (0..posts).for_each(|_| outbox.post(&answers(3000)));
            let began = Instant::now();
            while !outbox.queue().over {
                assert!(began.elapsed() < Duration::from_secs(20));
                thread::sleep(Duration::from_millis(1));
            }
            drop(peer);
        }
    }
}
