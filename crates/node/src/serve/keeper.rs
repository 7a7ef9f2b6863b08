//! A thread that keeps a connection: it reads, and connects again when the connection ends.

use std::fmt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use stratann_tier::TierError;
use stratann_tier::remote::wire::Protocol;

use super::Place;
use crate::link::duplex::Duplex;
use crate::link::{Batching, Broken, Counts, Inbox, Outbox};
use crate::options::NodeError;
use crate::wire::MOST_BODY;

/// The first and the longest pause before a new attempt.
const FIRST: Duration = Duration::from_millis(20);
const MOST: Duration = Duration::from_secs(1);
/// The time that a peer has to receive one send, and to complete a frame.
const PATIENCE: Duration = Duration::from_secs(10);

pub(super) enum Lost {
    Unreached(Vec<TierError>),
    Broken {
        place: String,
        protocol: Protocol,
        broken: Broken,
    },
}

impl Lost {
    /// The text after the name of the server.
    pub(super) fn why(&self) -> String {
        match self {
            Lost::Unreached(errors) => match &errors[..] {
                [TierError::Server { fault, .. }] => fault.to_string(),
                _ => self.to_string(),
            },
            Lost::Broken {
                broken: Broken::Waits(why),
                ..
            } => format!("is not used any more ({why})"),
            Lost::Broken { broken, .. } => {
                format!(
                    "is not connected any more ({broken}); it was stopped, or the network is down"
                )
            }
        }
    }

    /// A key that ignores the times in an error's text.
    pub(super) fn kind(&self) -> String {
        match self {
            Lost::Broken { place, broken, .. } => {
                format!("{place} {:?}", std::mem::discriminant(broken))
            }
            unreached => unreached.to_string(),
        }
    }
}

impl fmt::Display for Lost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Lost::Unreached(errors) if errors.is_empty() => f.write_str("no server is named"),
            Lost::Unreached(errors) => {
                let texts: Vec<String> = errors.iter().map(TierError::to_string).collect();
                f.write_str(&texts.join("; "))
            }
            Lost::Broken {
                place, protocol, ..
            } => write!(f, "{place}: {} {}", protocol.role(), self.why()),
        }
    }
}

pub(super) trait Correspondent: Send + 'static {
    /// Called when there is a connection, for messages into `outbox`.
    fn up(&mut self, outbox: Arc<Outbox>);

    fn read(&mut self, inbox: &mut Inbox) -> Result<(), Broken>;

    /// Called when there is no connection yet, or no longer.
    fn down(&mut self, lost: &Lost);
}

pub(super) struct Destination {
    /// The servers, tried in turn.
    pub(super) places: Vec<Place>,
    pub(super) protocol: Protocol,
    /// `None` if senders must not wait for a slow peer ([`Outbox::handing_over`]).
    pub(super) batching: Option<Batching>,
    pub(super) counts: Arc<Counts>,
}

#[derive(Default)]
struct State {
    over: bool,
    /// Whether the keeper is connecting, which may take a server's time limit.
    connects: bool,
    outbox: Option<Arc<Outbox>>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    ends: Condvar,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn connects(&self, connects: bool) -> bool {
        let mut state = self.state();
        state.connects = connects;
        !state.over
    }

    fn pause(&self, pause: Duration) -> bool {
        let state = self.state();
        let waited = self
            .ends
            .wait_timeout_while(state, pause, |state| !state.over);
        !waited.unwrap_or_else(PoisonError::into_inner).0.over
    }
}

/// Keeps a connection open until this value is dropped. If the connection ends, it connects again.
pub(super) struct Keeper {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Destination {
    /// Connects to the first reachable server from number `from` on, and returns its number.
    pub(super) fn connect(&self, from: usize) -> Result<(usize, Duplex), Vec<TierError>> {
        let count = self.places.len();
        let mut failed = Vec::new();
        for at in (0..count).map(|at| (from + at) % count) {
            let place = &self.places[at];
            match place.connect(self.protocol, PATIENCE) {
                Ok(duplex) => return Ok((at, duplex)),
                Err(fault) => failed.push(TierError::Server {
                    place: place.to_string(),
                    protocol: Some(self.protocol),
                    fault,
                }),
            }
        }
        Err(failed)
    }

    /// `first` is an existing connection.
    pub(super) fn keep(
        self: Arc<Self>,
        first: Option<(usize, Duplex)>,
        mut correspondent: impl Correspondent,
    ) -> Result<Keeper, NodeError> {
        let shared = Arc::new(Shared::default());
        let theirs = shared.clone();
        let named =
            thread::Builder::new().name(format!("stratann-keeper-{}", self.protocol as u16));
        let work = move || self.run(first, &theirs, &mut correspondent);
        let thread = stratann_tier::start(named, work).map_err(NodeError::Thread)?;
        Ok(Keeper {
            shared,
            thread: Some(thread),
        })
    }

    fn run(
        &self,
        mut first: Option<(usize, Duplex)>,
        shared: &Shared,
        correspondent: &mut impl Correspondent,
    ) {
        let (mut pause, mut next) = (FIRST, 0);
        loop {
            let connected = match first.take() {
                Some(connected) => Ok(connected),
                None => {
                    if !shared.connects(true) {
                        return;
                    }
                    let connected = self.connect(next);
                    if !shared.connects(false) {
                        return;
                    }
                    connected
                }
            };
            let lost = match connected {
                Ok((at, duplex)) => {
                    next = at + 1;
                    let (broken, of_use) = self.attend(duplex, shared, correspondent);
                    if of_use {
                        pause = FIRST;
                    }
                    Lost::Broken {
                        place: self.places[at].to_string(),
                        protocol: self.protocol,
                        broken,
                    }
                }
                Err(errors) => Lost::Unreached(errors),
            };
            if shared.state().over {
                return;
            }
            correspondent.down(&lost);
            if !shared.pause(pause) {
                return;
            }
            pause = (pause * 2).min(MOST);
        }
    }

    /// Returns the reason of the end, and whether the server sent more than the report that it
    /// waits for another server.
    fn attend(
        &self,
        duplex: Duplex,
        shared: &Shared,
        correspondent: &mut impl Correspondent,
    ) -> (Broken, bool) {
        let Duplex {
            receiver,
            sender,
            closer,
        } = duplex;
        let counts = self.counts.clone();
        let outbox = match self.batching {
            Some(batching) => Arc::new(Outbox::new(sender, closer, batching, counts)),
            None => match Outbox::handing_over(sender, closer, counts, PATIENCE) {
                Ok(outbox) => outbox,
                Err(error) => return (Broken::Io(error), false),
            },
        };
        let mut inbox = Inbox::new(receiver, self.counts.clone(), PATIENCE, MOST_BODY);
        let mut state = shared.state();
        if state.over {
            return (Broken::Over, false);
        }
        state.outbox = Some(outbox.clone());
        drop(state);
        correspondent.up(outbox.clone());
        let mut of_use = false;
        let broken = loop {
            match inbox.read().and_then(|()| correspondent.read(&mut inbox)) {
                Ok(()) => of_use = true,
                Err(broken) => {
                    // If all servers wait for other servers, the keeper pauses.
                    of_use &= !matches!(broken, Broken::Waits(_));
                    break broken;
                }
            }
        };
        outbox.close();
        shared.state().outbox = None;
        (broken, of_use)
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        let mut state = self.shared.state();
        state.over = true;
        if let Some(outbox) = state.outbox.take() {
            outbox.close();
        }
        let connects = state.connects;
        drop(state);
        self.shared.ends.notify_all();
        // A thread that is connecting ends by itself, without a call to its correspondent.
        if let Some(thread) = self.thread.take().filter(|_| !connects) {
            let _ = thread.join();
        }
    }
}
