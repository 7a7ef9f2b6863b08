//! A thread's connection to a server, with many reads in flight from many queues. No call blocks.
//!
//! ```text
//!   queue ── submit ──> slot, request in `out` ──┐
//!   queue ── poll ── pump: writes `out`, reads frames, fills blocks, delivers them to their queues
//!                └── no block for this queue: registers, and watches the socket
//!   socket ready ──> all registered queues are woken, and the first one pumps for all
//! ```
//!
//! No thread runs in the background: each waiting queue *pumps*, which means that it writes and
//! reads for all queues. If a queue is dropped or reset, it wakes the other queues, and one of them
//! watches the socket again. A frame must answer a read in flight, with this read's length and a
//! correct checksum. Otherwise the connection ends, and all its reads fail.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, VecDeque};
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Wake, Waker};
use std::time::{Duration, Instant};

use super::state::{Asked, Stage, State, To};
use super::wire::{Frame, Kind, REACH};
use super::{Fault, Server, ServerKey};
use crate::buffer::Block;
use crate::error::TierError;
use crate::reactor::Reactor;
use crate::tier::{Completion, Request};

/// The key covers all settings of a server: addresses, secret, and trusted certificates.
pub(crate) type Links = HashMap<ServerKey, Rc<Link>>;

/// The connection is read at this interval, because a ring does not signal that the other end is
/// gone.
const SILENT: Duration = Duration::from_millis(50);

#[derive(Debug)]
pub(super) struct Letters {
    pub(super) name: Rc<str>,
    /// A reset increments the epoch. Answers to requests of earlier epochs are discarded.
    pub(super) epoch: Cell<u64>,
    pub(super) in_flight: Cell<usize>,
    ready: RefCell<VecDeque<Completion>>,
    waker: RefCell<Option<Waker>>,
}

impl Letters {
    pub(super) fn new(name: Rc<str>) -> Letters {
        Letters {
            name,
            epoch: Cell::new(0),
            in_flight: Cell::new(0),
            ready: RefCell::default(),
            waker: RefCell::default(),
        }
    }

    pub(super) fn take(&self) -> Option<Completion> {
        let completion = self.ready.borrow_mut().pop_front()?;
        self.in_flight.set(self.in_flight.get() - 1);
        Some(completion)
    }

    pub(super) fn forget(&self) {
        self.epoch.set(self.epoch.get() + 1);
        self.in_flight.set(0);
        self.ready.borrow_mut().clear();
    }

    pub(super) fn deliver(&self, epoch: u64, tag: u64, result: Result<Block, TierError>) {
        if epoch != self.epoch.get() {
            return;
        }
        self.ready
            .borrow_mut()
            .push_back(Completion { tag, result });
        let waker = self.waker.borrow().clone();
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

#[derive(Default)]
struct Bell {
    waiting: Mutex<Vec<Waker>>,
}

impl Bell {
    fn add(&self, waker: &Waker) {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        if !waiting.iter().any(|known| known.will_wake(waker)) {
            waiting.push(waker.clone());
        }
    }
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let waiting =
            std::mem::take(&mut *self.waiting.lock().unwrap_or_else(PoisonError::into_inner));
        waiting.into_iter().for_each(Waker::wake);
    }
}

pub(crate) struct Link {
    server: Server,
    bell: Arc<Bell>,
    state: RefCell<State>,
}
impl std::fmt::Debug for Link {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Link({:?})", self.server)
    }
}

impl Link {
    pub(super) fn of(reactor: &Reactor, server: &Server) -> Rc<Link> {
        let key = server.inner.key;
        let known = reactor.links.borrow().get(&key).cloned();
        if let Some(link) = known {
            // `pump` notices whether the server has ended the connection meanwhile.
            if link.is_idle() {
                link.pump();
            }
            if !link.is_over() {
                return link;
            }
        }
        let link = Rc::new(Link {
            server: server.clone(),
            bell: Arc::default(),
            state: RefCell::new(State::begin(server)),
        });
        reactor.links.borrow_mut().insert(key, link.clone());
        link
    }

    fn is_idle(&self) -> bool {
        self.state.borrow().is_idle()
    }

    pub(super) fn is_over(&self) -> bool {
        matches!(self.state.borrow().stage, Stage::Over(_))
    }

    pub(super) fn submit(&self, letters: &Rc<Letters>, file: u64, request: Request, block: Block) {
        letters.in_flight.set(letters.in_flight.get() + 1);
        let mut state = self.state.borrow_mut();
        let to = To {
            letters: letters.clone(),
            epoch: letters.epoch.get(),
            tag: request.tag,
        };
        let asked = Asked { to, block };
        if let Stage::Over(fault) = &state.stage {
            let fault = fault.clone();
            drop(state);
            asked.fail(&self.server, fault);
            return;
        }
        if state.is_idle() {
            state.quiet_since = Instant::now();
            state.of_use = 0;
        }
        let (asked, kind) = match &mut state.lane {
            None => (asked, Kind::Read),
            Some(lane) => {
                if !lane.submit(file, request.offset, asked) {
                    return;
                }
                // No queue reads this completion: the read itself waits in the lane.
                let to = To {
                    letters: Rc::new(Letters::new(letters.name.clone())),
                    epoch: 0,
                    tag: 0,
                };
                let block = Block::copy_of(&[0; REACH]);
                (Asked { to, block }, Kind::Reach)
            }
        };
        let tag = state.keep(asked);
        if let Some(lane) = &mut state.lane {
            lane.asks(tag, file);
        }
        let mut frame = Frame {
            file,
            ..Frame::new(kind, tag)
        };
        if kind == Kind::Read {
            (frame.offset, frame.count) = (request.offset, request.len);
        }
        let open = matches!(state.stage, Stage::Open);
        let State { out, later, .. } = &mut *state;
        frame.append(&[], if open { out } else { later });
    }

    /// Writes and reads without waiting, and delivers completions, perhaps also to the caller.
    pub(super) fn pump(&self) {
        self.pump_if(true);
    }

    /// Like `pump`, but reads nothing if the watched socket has no event, or another queue has just
    /// pumped.
    pub(super) fn pump_waiting(&self) {
        self.pump_if(false);
    }

    fn pump_if(&self, asks: bool) {
        let mut done = Vec::new();
        let mut state = self.state.borrow_mut();
        let now = Instant::now();
        let heard = state.hear(&Waker::from(self.bell.clone()));
        let reads = asks || state.armed.is_none() || now.duration_since(state.read_at) > SILENT;
        if reads {
            state.read_at = now;
        }
        let pumped = heard.and_then(|()| state.pump(&self.server, reads, &mut done));
        let patience = self.server.inner.patience;
        let waits = !state.is_idle() && !matches!(state.stage, Stage::Over(_));
        // Time in which this process did not check does not count as silence of the server.
        if now.saturating_duration_since(state.looked) > patience / 2 {
            state.quiet_since = now;
        }
        state.looked = now;
        let stalled = waits && now.saturating_duration_since(state.quiet_since) >= patience;
        let over = match pumped {
            Err(fault) => Some(fault),
            Ok(()) if stalled => Some(Fault::Stalled(patience)),
            Ok(()) => None,
        };
        let failed = over.map(|fault| (state.end(&fault), fault));
        drop(state);
        // Wakers are foreign code, so nothing may be borrowed while they are called.
        for (asked, result) in done {
            let To {
                letters,
                epoch,
                tag,
            } = asked;
            letters.deliver(epoch, tag, result);
        }
        if let Some((all, fault)) = failed {
            for asked in all {
                asked.fail(&self.server, fault.clone());
            }
            self.bell.wake_by_ref();
        }
    }

    /// Registers the task, which must have pumped before. Returns the time of the next check for a
    /// stalled server.
    pub(super) fn wait(
        &self,
        reactor: &Rc<Reactor>,
        letters: &Letters,
        cx: &mut Context<'_>,
    ) -> Instant {
        letters.waker.replace(Some(cx.waker().clone()));
        self.bell.add(cx.waker());
        let mut state = self.state.borrow_mut();
        if let Err(fault) = state.arm(reactor, &Waker::from(self.bell.clone())) {
            let all = state.end(&fault);
            drop(state);
            for asked in all {
                asked.fail(&self.server, fault.clone());
            }
            self.bell.wake_by_ref();
            return Instant::now();
        }
        let patience = self.server.inner.patience;
        // Several checks within the patience distinguish a pause of this process from silence.
        (state.quiet_since + patience).min(Instant::now() + patience / 4)
    }

    pub(super) fn leave(&self, letters: &Letters) {
        let had = letters.waker.take();
        if had.is_some() {
            let mut state = self.state.borrow_mut();
            let watched = (state.armed.take(), state.stirs.take());
            drop(state);
            drop(watched);
            self.bell.wake_by_ref();
        }
    }
}
