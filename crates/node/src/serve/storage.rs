//! The storage role as a server.

use std::io;
use std::net::SocketAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use stratann_tier::after_turn;
use stratann_tier::remote::wire::Protocol;

use super::memory::ended;
use crate::link::duplex::Duplex;
use crate::link::{Broken, Counts, Inbox, Outbox, Traffic};
use crate::listen::{Door, Guest, Listening, Service};
use crate::options::{NodeError, Options};
use crate::role::{
    Changes, Going, HalfError, Job, NotChanged, NotRanked, Ranker, Slot, Slots, StorageState,
};
use crate::wire::{Frame, MOST_ASKED, Message, Ranked, Token, WireError};

/// The largest number of waiting changes. If as many wait, compute servers have to ask again.
const CHANGES: usize = 32;
/// The interval at which unneeded states are released.
const LOOK: Duration = Duration::from_millis(100);

/// A storage server that runs until it is dropped. One thread makes the changes, in order.
pub struct StorageServer {
    listening: Listening,
    counts: Arc<Counts>,
    /// Dropped after the listener, the source of changes.
    _maker: Maker,
}

/// On drop, the thread ends after the change in progress.
struct Maker {
    over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Maker {
    fn drop(&mut self) {
        self.over.store(true, Ordering::SeqCst);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

struct Change {
    connection: Arc<Connection>,
    id: u64,
    token: Token,
    until: Duration,
    upserts: Vec<u64>,
    rows: Vec<u8>,
    deletes: Vec<u64>,
}

struct Lines {
    going: Arc<Going>,
    began: Instant,
}

fn make<R: Ranker>(ranker: &R, changes: &Receiver<Change>, lines: &Lines, over: &AtomicBool) {
    let mut tidied = Instant::now();
    while !over.load(Ordering::SeqCst) {
        // A continuous stream of changes must not delay the release.
        if tidied.elapsed() >= LOOK {
            let all_by = lines.going.all_by(lines.began.elapsed());
            if catch_unwind(AssertUnwindSafe(|| ranker.tidy(all_by))).is_err() {
                tracing::error!(
                    "a panic ended the release of old checkpoints that no server uses (see standard error for its message). This server will try again. Inserts and deletes still work"
                );
            }
            tidied = Instant::now();
        }
        let change = match changes.recv_timeout(LOOK) {
            Ok(change) => change,
            Err(RecvTimeoutError::Timeout) => continue,
            Err(RecvTimeoutError::Disconnected) => return,
        };
        let Change {
            connection,
            id,
            token,
            until,
            upserts,
            rows,
            deletes,
        } = change;
        let (mut out, now) = (Vec::new(), connection.began.elapsed());
        if !connection.state().starts(now, (id, token, until), &mut out) {
            connection.outbox.post(&out);
            continue;
        }
        let made = catch_unwind(AssertUnwindSafe(|| {
            ranker.change((&upserts, &rows), &deletes)
        }));
        let made = made.unwrap_or_else(|_| {
            Err(NotChanged::Failed(
                "the change panicked (the message is on standard error of the server)".to_owned(),
            ))
        });
        match &made {
            Ok(_) => {}
            // The client receives this error.
            Err(NotChanged::Invalid(why)) => tracing::info!("a change was refused: {why}"),
            Err(NotChanged::Failed(why)) => {
                tracing::warn!("a change was not made, or only in part: {why}");
            }
        }
        let result = made.as_ref().copied();
        connection.state().changed((id, token), result, &mut out);
        connection.outbox.post(&out);
    }
}

struct Storage<R> {
    ranker: Arc<R>,
    changes: Arc<Changes>,
    lines: Arc<Lines>,
    maker: SyncSender<Change>,
    slots: Arc<Slots>,
    counts: Arc<Counts>,
}

struct Connection {
    state: Mutex<StorageState>,
    outbox: Arc<Outbox>,
    began: Instant,
    gone: AtomicBool,
}

/// If this value is dropped without a result, it reports that there is no ranking.
struct Ranking {
    connection: Arc<Connection>,
    id: u64,
    told: AtomicBool,
    /// The last field, so that the slot becomes free last.
    _slot: Slot,
}

impl Ranking {
    fn tell(&self, result: Result<&Ranked, NotRanked<'_>>) {
        if !self.told.swap(true, Ordering::SeqCst) {
            self.connection.ranked(self.id, result);
        }
    }
}

impl Drop for Ranking {
    fn drop(&mut self) {
        let why = &HalfError("the ranking was given up".to_owned());
        self.tell(Err(NotRanked { why, gone: false }));
    }
}

impl Connection {
    fn state(&self) -> MutexGuard<'_, StorageState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn ranked(&self, id: u64, result: Result<&Ranked, NotRanked<'_>>) {
        let mut out = Vec::new();
        let mut state = self.state();
        state.ranked(self.began.elapsed(), id, result, &mut out);
        drop(state);
        // Other rankings that end in this turn of the thread share the write.
        self.outbox.lay(&out);
        let outbox = self.outbox.clone();
        after_turn(move || outbox.send());
    }

    fn wants(&self, until: Duration) -> bool {
        !self.gone.load(Ordering::SeqCst) && self.began.elapsed() < until
    }
}

impl<R: Ranker> Service for Storage<R> {
    fn protocol(&self) -> Protocol {
        Protocol::Storage
    }

    fn serve(&self, client: Guest<'_>) -> io::Result<()> {
        self.attend(client).or_else(ended)
    }
}

impl<R: Ranker> Storage<R> {
    fn attend(&self, client: Guest<'_>) -> Result<(), Broken> {
        let Duplex {
            receiver,
            sender,
            closer,
        } = Duplex::of_stream(client.stream, Some(client.patience))?;
        // Ranking threads must not wait for a compute server.
        let outbox = Outbox::handing_over(sender, closer, self.counts.clone(), client.patience)?;
        let connection = Arc::new(Connection {
            state: Mutex::new(
                StorageState::new(self.slots.clone(), self.changes.clone())
                    .among(self.lines.going.clone()),
            ),
            outbox,
            began: Instant::now(),
            gone: AtomicBool::new(false),
        });
        let mut inbox = Inbox::new(receiver, self.counts.clone(), client.patience, MOST_ASKED);
        let (mut out, mut nodes) = (Vec::new(), Vec::new());
        let read = loop {
            if client.stop.load(Ordering::SeqCst) {
                break Ok(());
            }
            if let Err(broken) = inbox
                .read()
                .and_then(|()| self.take(&mut inbox, &connection, &mut out, &mut nodes))
            {
                break Err(broken);
            }
        };
        connection.gone.store(true, Ordering::SeqCst);
        connection.state().left(self.lines.began.elapsed());
        connection.outbox.close();
        read
    }

    fn take(
        &self,
        inbox: &mut Inbox,
        connection: &Arc<Connection>,
        out: &mut Vec<u8>,
        nodes: &mut Vec<u32>,
    ) -> Result<(), Broken> {
        while let Some(frame) = inbox.frame()? {
            let job = {
                let mut state = connection.state();
                let job = state.message(connection.began.elapsed(), &frame, &*self.ranker, out)?;
                match job {
                    None => continue,
                    Some(Job::Change { id, token, until }) => {
                        drop(state);
                        self.change(connection, (id, token, until), &frame, out)?;
                        continue;
                    }
                    Some(Job::Rank(job)) => {
                        nodes.clear();
                        nodes.extend_from_slice(job.nodes);
                        (job.id, job.state, job.k, job.until, job.slot)
                    }
                }
            };
            let ((id, state, k, until, slot), Message::Rank { row, .. }) =
                (job, Message::decode(&frame)?)
            else {
                continue;
            };
            let ranking = Arc::new(Ranking {
                connection: connection.clone(),
                id,
                told: AtomicBool::new(false),
                _slot: slot,
            });
            let (answers, waits) = (ranking.clone(), connection.clone());
            let ranker = self.ranker.clone();
            let gone = move || ranker.collection_of(state).is_none();
            let done = Box::new(move |result: Result<Ranked, HalfError>| {
                let result = result.as_ref().map_err(|why| {
                    let gone = gone();
                    NotRanked { why, gone }
                });
                answers.tell(result);
            });
            let wanted = Box::new(move || waits.wants(until));
            if let Err(error) = self.ranker.rank((state, row), nodes, k, wanted, done) {
                let gone = self.ranker.collection_of(state).is_none();
                ranking.tell(Err(NotRanked { why: &error, gone }));
            }
        }
        connection.outbox.post(out);
        out.clear();
        Ok(())
    }

    fn change(
        &self,
        connection: &Arc<Connection>,
        (id, token, until): (u64, Token, Duration),
        frame: &Frame<'_>,
        out: &mut Vec<u8>,
    ) -> Result<(), WireError> {
        let Message::Change {
            upserts,
            deletes,
            rows,
            ..
        } = Message::decode(frame)?
        else {
            return Ok(());
        };
        let sent = self.maker.try_send(Change {
            connection: connection.clone(),
            id,
            token,
            until,
            upserts: upserts.iter().collect(),
            rows: rows.to_vec(),
            deletes: deletes.iter().collect(),
        });
        if sent.is_err() {
            let text = "this storage server has as many waiting changes as it allows";
            connection.state().no_room((id, token), text, out);
        }
        Ok(())
    }
}

impl StorageServer {
    /// Starts the server, with at most `most` rankings at once, over all connections. A compute
    /// server has up to eight rankings for each search that walks
    /// ([`ComputeServerOptions`](super::ComputeServerOptions): workers times `in_flight`), and
    /// waits beyond the limit.
    ///
    /// # Errors
    /// The errors of [`Running::start`](crate::Running::start).
    pub fn start<R: Ranker>(
        ranker: Arc<R>,
        most: usize,
        options: Options,
    ) -> Result<StorageServer, NodeError> {
        let counts = Arc::<Counts>::default();
        let run = u64::from_le_bytes(stratann_tier::random().map_err(NodeError::Random)?);
        let (maker, changes) = sync_channel(CHANGES);
        let over = Arc::new(AtomicBool::new(false));
        let (makes, ends) = (ranker.clone(), over.clone());
        let lines = Arc::new(Lines {
            going: Arc::default(),
            began: Instant::now(),
        });
        let looks = lines.clone();
        let named = thread::Builder::new().name("stratann-changes".into());
        let work = move || make(&*makes, &changes, &looks, &ends);
        let thread = stratann_tier::start(named, work).map_err(NodeError::Thread)?;
        let service = Storage {
            ranker,
            changes: Arc::new(Changes::new(run)),
            lines,
            maker,
            slots: Slots::new(most),
            counts: counts.clone(),
        };
        let _maker = Maker {
            over,
            thread: Some(thread),
        };
        Ok(StorageServer {
            listening: Listening::start(Arc::new(service), options)?,
            counts,
            _maker,
        })
    }

    /// The address at which the server listens.
    pub fn address(&self) -> SocketAddr {
        self.listening.address()
    }

    /// The connection point for clients in this process.
    pub fn door(&self) -> Door {
        self.listening.door()
    }

    /// The messages on the server's connections.
    pub fn traffic(&self) -> Traffic {
        self.counts.traffic()
    }
}
