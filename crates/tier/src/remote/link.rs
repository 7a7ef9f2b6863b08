//! A thread's connection to a server: many reads in flight, of many queues, and nobody blocks.
//!
//! ```text
//!   queue ── submit ──> slot, request in `out` ──┐
//!   queue ── poll ── pump: writes `out`, reads frames, fills blocks, delivers to whose they are
//!                └── nothing for it: registers, and has the socket watched
//!   socket stirs ──> all who registered are woken: the first of them pumps for all
//! ```
//!
//! Nothing runs by itself: whoever waits pumps. The socket is watched as long as somebody waits, so a queue that is dropped or reset
//! wakes the others, of which one has it watched again.
//!
//! What comes in is believed as far as it was asked for: a frame has to be the answer to a read in flight, of its length, and have the
//! right checksum. Otherwise the connection is over, and all its reads fail.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, VecDeque};
use std::future::Future;
use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, connect, socket_with};

use super::client::{MOST_TEXT, OF_USE, nonsense};
use super::ring::RingStream;
use super::transport::Transport;
use super::wire::{Frame, GREETING, Greeting, HEADER, Kind, Reply, Sum, Welcome};
use super::{Address, Fault, Server};
use crate::buffer::Block;
use crate::error::TierError;
use crate::reactor::Reactor;
use crate::sockets::SocketReady;
use crate::tier::{Completion, Request};

/// A thread's connections, by what servers are called.
pub(crate) type Links = HashMap<String, Rc<Link>>;

/// Bytes that are taken from the socket before they are looked at.
const TAKEN: usize = 256 << 10;

/// After so long it is read though the socket does not stir: a ring does not, when the other end is gone.
const SILENT: Duration = Duration::from_millis(50);

/// Where a queue's completions wait to be taken.
#[derive(Debug)]
pub(super) struct Letters {
    /// What the file is called on the server.
    pub(super) name: Rc<str>,
    /// Raised by a reset: what was asked for before is not wanted any more.
    epoch: Cell<u64>,
    pub(super) in_flight: Cell<usize>,
    ready: RefCell<VecDeque<Completion>>,
    /// Who waits for them.
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

    fn deliver(&self, epoch: u64, tag: u64, result: Result<Block, TierError>) {
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

/// Everybody who waits for a connection.
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

/// Where an answer goes.
struct To {
    letters: Rc<Letters>,
    epoch: u64,
    tag: u64,
}

/// A read in flight.
struct Asked {
    to: To,
    block: Block,
}

/// How far a connection has come.
enum Stage {
    Connecting,
    /// The server is to greet.
    Greeting,
    /// The client has replied.
    Welcome(Greeting, Reply),
    Open,
    Over(Fault),
}

/// A frame that is coming in.
struct Coming {
    frame: Frame,
    sum: Sum,
    got: usize,
    /// Of a refusal.
    text: Vec<u8>,
}

/// A connection of one thread to one server.
pub(crate) struct Link {
    server: Server,
    bell: Arc<Bell>,
    state: RefCell<State>,
}

struct State {
    /// The wait for the socket, and for which events. Before the transport, which it borrows from.
    armed: Option<(SocketReady<'static>, i16)>,
    transport: Option<Transport>,
    stage: Stage,
    /// What is to be sent, and how much of it has been. Requests wait in `later` until the server has welcomed.
    out: Vec<u8>,
    sent: usize,
    later: Vec<u8>,
    input: Vec<u8>,
    /// What a read of the socket brings.
    scratch: Box<[u8]>,
    coming: Option<Coming>,
    slots: Vec<Option<Asked>>,
    free: Vec<u32>,
    /// Counts requests: the upper half of their tags.
    number: u32,
    numbers: Vec<u32>,
    /// Since when nothing of use has come, and the bytes that came since.
    quiet_since: Instant,
    of_use: usize,
    /// When somebody last pumped, and when it was last read.
    looked: Instant,
    read_at: Instant,
}

impl std::fmt::Debug for Link {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Link({:?})", self.server)
    }
}

impl Link {
    /// The thread's connection to a server: the one that it has, unless that is over, or one that begins now.
    pub(super) fn of(reactor: &Reactor, server: &Server) -> Rc<Link> {
        let tls = if server.inner.tls.is_some() {
            "tls:"
        } else {
            ""
        };
        let key = format!("{tls}{}", server.name());
        let known = reactor.links.borrow().get(&key).cloned();
        if let Some(link) = known {
            // One that the server has ended meanwhile is found out about here.
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
        let state = self.state.borrow();
        state.slots.len() == state.free.len()
    }

    pub(super) fn is_over(&self) -> bool {
        matches!(self.state.borrow().stage, Stage::Over(_))
    }

    /// Asks for bytes of a file; they come to `letters`.
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
        if state.slots.len() == state.free.len() {
            state.quiet_since = Instant::now();
            state.of_use = 0;
        }
        let tag = state.keep(asked);
        let frame = Frame {
            file,
            offset: request.offset,
            count: request.len,
            ..Frame::new(Kind::Read, tag)
        };
        let open = matches!(state.stage, Stage::Open);
        let State { out, later, .. } = &mut *state;
        frame.append(&[], if open { out } else { later });
    }

    /// Writes and reads what can be without waiting, and delivers what has come in. No more than that: the caller looks whether it has what it
    /// waits for.
    pub(super) fn pump(&self) {
        self.pump_if(true);
    }

    /// The same for one who waits: nothing is read while the socket is watched and does not stir, as it is by then if another has pumped just now.
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
        let waits = state.slots.len() > state.free.len() && !matches!(state.stage, Stage::Over(_));
        // Time in which nobody looked is no time in which the server could have been heard.
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
        // Wakers are foreign code.
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

    /// Has a task woken when something stirs; it has pumped just now. Gives when to look whether the server has stalled.
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
        // Looked at more often than that, so that a pause in which nobody looked is told from silence.
        (state.quiet_since + patience).min(Instant::now() + patience / 4)
    }

    /// A queue that waited does so no more: of the others one has the socket watched.
    pub(super) fn leave(&self, letters: &Letters) {
        let had = letters.waker.take();
        if had.is_some() {
            let armed = self.state.borrow_mut().armed.take();
            drop(armed);
            self.bell.wake_by_ref();
        }
    }
}

impl Asked {
    fn fail(self, server: &Server, fault: Fault) {
        let To {
            letters,
            epoch,
            tag,
        } = self.to;
        let error = server.failed(&letters.name, fault);
        letters.deliver(epoch, tag, Err(error));
    }
}

type Done = Vec<(To, Result<Block, TierError>)>;

impl State {
    fn begin(server: &Server) -> State {
        let (transport, stage) = match begin(server) {
            Ok(transport) => (Some(transport), Stage::Connecting),
            Err(error) => (None, Stage::Over(Fault::Unreachable(error.to_string()))),
        };
        State {
            armed: None,
            transport,
            stage,
            out: Vec::new(),
            sent: 0,
            later: Vec::new(),
            input: Vec::new(),
            scratch: vec![0; 64 << 10].into(),
            coming: None,
            slots: Vec::new(),
            free: Vec::new(),
            number: 0,
            numbers: Vec::new(),
            quiet_since: Instant::now(),
            of_use: 0,
            looked: Instant::now(),
            read_at: Instant::now(),
        }
    }

    /// Keeps what was asked for, and gives the tag of the request.
    fn keep(&mut self, asked: Asked) -> u64 {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            self.numbers.push(0);
            (self.slots.len() - 1) as u32
        });
        self.number = self.number.wrapping_add(1);
        self.numbers[slot as usize] = self.number;
        self.slots[slot as usize] = Some(asked);
        u64::from(self.number) << 32 | u64::from(slot)
    }

    /// What was asked for under a tag, if it is in flight.
    fn find(&mut self, tag: u64) -> Option<(u32, &mut Asked)> {
        let (slot, number) = (tag as u32, (tag >> 32) as u32);
        let known = self.numbers.get(slot as usize) == Some(&number);
        let asked = self.slots.get_mut(slot as usize)?.as_mut()?;
        known.then_some((slot, asked))
    }

    fn release(&mut self, tag: u64) -> Option<Asked> {
        let (slot, _) = self.find(tag)?;
        self.free.push(slot);
        self.slots[slot as usize].take()
    }

    /// The connection is over; gives what was in flight.
    fn end(&mut self, fault: &Fault) -> Vec<Asked> {
        self.stage = Stage::Over(fault.clone());
        self.armed = None;
        self.transport = None;
        self.coming = None;
        let all: Vec<Asked> = self.slots.iter_mut().filter_map(Option::take).collect();
        self.free = (0..self.slots.len() as u32).collect();
        all
    }

    /// Takes the report of the wait for the socket, if there is one.
    fn hear(&mut self, bell: &Waker) -> Result<(), Fault> {
        let Some((armed, _)) = &mut self.armed else {
            return Ok(());
        };
        match Pin::new(armed).poll(&mut Context::from_waker(bell)) {
            Poll::Pending => Ok(()),
            Poll::Ready(report) => {
                self.armed = None;
                report.map_err(|error| Fault::Closed(error.to_string()))
            }
        }
    }

    /// Has the socket watched, if it is not, for what is waited for now.
    fn arm(&mut self, reactor: &Rc<Reactor>, bell: &Waker) -> Result<(), Fault> {
        let Some(transport) = &self.transport else {
            return Ok(());
        };
        let more = matches!(self.stage, Stage::Connecting) || self.sent < self.out.len();
        let events = transport.events(more);
        if !matches!(self.armed, Some((_, armed)) if armed == events) {
            let fd = transport.as_fd().as_raw_fd();
            // SAFETY: the descriptor is that of `transport`, which is replaced in `end` alone, behind `armed`, and is declared after it, so
            // that it is dropped later: it stays open for as long as this is used.
            let fd = unsafe { BorrowedFd::borrow_raw(fd) };
            self.armed = Some((SocketReady::new(reactor, fd, events), events));
        }
        self.hear(bell)?;
        if self.armed.is_none() {
            // It stirs already.
            bell.wake_by_ref();
        }
        Ok(())
    }

    /// Writes and reads what can be without waiting.
    fn pump(&mut self, server: &Server, reads: bool, done: &mut Done) -> Result<(), Fault> {
        if self.transport.is_none() {
            return Ok(());
        }
        if let Stage::Connecting = self.stage {
            let connected = self
                .transport
                .as_ref()
                .map_or(Ok(false), Transport::is_connected);
            match connected {
                Ok(true) => self.stage = Stage::Greeting,
                Ok(false) => return Ok(()),
                Err(error) => return Err(Fault::Unreachable(error.to_string())),
            }
        }
        self.write()?;
        if !reads {
            return Ok(());
        }
        // It ends: what comes in is the answer to something that was asked for, or nonsense.
        loop {
            let filled = self.read()?;
            self.understand(server, done)?;
            self.write()?;
            if filled < TAKEN {
                return Ok(());
            }
        }
    }

    fn write(&mut self) -> Result<(), Fault> {
        let Some(transport) = &mut self.transport else {
            return Ok(());
        };
        let mut failed = None;
        while self.sent < self.out.len() {
            match transport.write(&self.out[self.sent..]) {
                Ok(0) => failed = Some(ErrorKind::WriteZero.into()),
                Ok(sent) => {
                    self.sent += sent;
                    continue;
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => failed = Some(error),
            }
            break;
        }
        if self.sent == self.out.len() {
            self.out.clear();
            self.sent = 0;
            match transport.flush() {
                Err(error) if error.kind() != ErrorKind::WouldBlock => failed = Some(error),
                _ => {}
            }
        }
        match failed {
            Some(error) => Err(broken(&error)),
            None => Ok(()),
        }
    }

    /// Takes what the socket has, up to [`TAKEN`] bytes; gives how many.
    fn read(&mut self) -> Result<usize, Fault> {
        let Some(transport) = &mut self.transport else {
            return Ok(0);
        };
        let mut filled = 0;
        let mut end = None;
        while filled < TAKEN {
            match transport.read(&mut self.scratch) {
                Ok(0) => end = Some(ErrorKind::UnexpectedEof.into()),
                Ok(got) => {
                    self.input.extend_from_slice(&self.scratch[..got]);
                    filled += got;
                    continue;
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => end = Some(error),
            }
            break;
        }
        self.of_use += filled;
        if self.of_use >= OF_USE {
            self.of_use = 0;
            self.quiet_since = Instant::now();
        }
        match end {
            // What came before it is looked at first; the end comes again.
            Some(error) if filled == 0 => Err(broken(&error)),
            _ => Ok(filled),
        }
    }

    /// Something that was waited for is here.
    fn advance(&mut self) {
        self.of_use = 0;
        self.quiet_since = Instant::now();
    }

    /// Makes of what has come in what it is.
    fn understand(&mut self, server: &Server, done: &mut Done) -> Result<(), Fault> {
        let mut input = std::mem::take(&mut self.input);
        let mut at = 0;
        let understood = loop {
            match self.next(server, &input[at..], done) {
                Ok(None) => break Ok(()),
                Ok(Some(used)) => at += used,
                Err(fault) => break Err(fault),
            }
        };
        input.drain(..at);
        self.input = input;
        understood
    }

    /// Takes the next thing from what has come in; gives how many bytes it was, `None` if there is too little of it.
    fn next(
        &mut self,
        server: &Server,
        input: &[u8],
        done: &mut Done,
    ) -> Result<Option<usize>, Fault> {
        match &self.stage {
            Stage::Greeting => {
                let Some(bytes) = input.first_chunk::<GREETING>() else {
                    return Ok(None);
                };
                let greeting = Greeting::decode(bytes);
                let greeting =
                    greeting.ok_or_else(|| nonsense("no greeting of a memory server"))?;
                let reply = server.reply(&greeting)?;
                self.out.extend(reply.encode());
                self.stage = Stage::Welcome(greeting, reply);
                self.advance();
                Ok(Some(GREETING))
            }
            Stage::Welcome(greeting, reply) => {
                let Some(bytes) = input.first_chunk::<GREETING>() else {
                    return Ok(None);
                };
                let welcome = Welcome::decode(bytes);
                let welcome = welcome.ok_or_else(|| nonsense("no welcome of a memory server"))?;
                server.check(greeting, reply, &welcome)?;
                self.stage = Stage::Open;
                let later = std::mem::take(&mut self.later);
                self.out.extend(later);
                self.advance();
                Ok(Some(GREETING))
            }
            Stage::Open if self.coming.is_none() => {
                let Some(header) = input.first_chunk::<HEADER>() else {
                    return Ok(None);
                };
                let (frame, sum) = Frame::decode(header).ok_or_else(|| nonsense("no answer"))?;
                let Some((_, asked)) = self.find(frame.tag) else {
                    return Err(nonsense("an answer that nobody asked for"));
                };
                let right = match frame.kind {
                    None => frame.len <= MOST_TEXT,
                    Some(Kind::Read) => frame.len as usize == asked.block.len(),
                    Some(_) => false,
                };
                if !right {
                    return Err(nonsense("an answer of another length or kind"));
                }
                self.coming = Some(Coming {
                    frame,
                    sum,
                    got: 0,
                    text: Vec::new(),
                });
                Ok(Some(HEADER))
            }
            Stage::Open => self.body(server, input, done),
            Stage::Connecting | Stage::Over(_) => Ok(None),
        }
    }

    /// Takes bytes of the frame that is coming in.
    fn body(
        &mut self,
        server: &Server,
        input: &[u8],
        done: &mut Done,
    ) -> Result<Option<usize>, Fault> {
        let Some(mut coming) = self.coming.take() else {
            return Ok(None);
        };
        let len = coming.frame.len as usize;
        let bytes = &input[..input.len().min(len - coming.got)];
        coming.sum = coming.sum.and(bytes);
        let tag = coming.frame.tag;
        let Some((_, asked)) = self.find(tag) else {
            return Err(nonsense("an answer that nobody asked for"));
        };
        match coming.frame.kind {
            None => coming.text.extend(bytes),
            Some(_) => asked.block.fill(coming.got, bytes),
        }
        coming.got += bytes.len();
        if coming.got < len {
            self.coming = Some(coming);
            return Ok((!bytes.is_empty()).then_some(bytes.len()));
        }
        if !coming.sum.is_right() {
            return Err(nonsense("a checksum that is not that of the answer"));
        }
        self.advance();
        let Some(Asked { to, block }) = self.release(tag) else {
            return Ok(Some(bytes.len()));
        };
        let result = match coming.frame.kind {
            Some(_) => Ok(block),
            None => Err(server.failed(
                &to.letters.name,
                Fault::Refused {
                    why: coming.frame.why(),
                    text: String::from_utf8_lossy(&coming.text).into_owned(),
                },
            )),
        };
        done.push((to, result));
        Ok(Some(bytes.len()))
    }
}

/// What the end of a connection means.
fn broken(error: &io::Error) -> Fault {
    match error.kind() {
        // TLS says so of what is no TLS.
        ErrorKind::InvalidData => Fault::Nonsense(error.to_string()),
        _ => Fault::Closed(error.to_string()),
    }
}

/// Begins to connect.
fn begin(server: &Server) -> io::Result<Transport> {
    let inner = &*server.inner;
    let address = match &inner.address {
        Address::Tcp(address) => address,
        Address::Ring(path) => {
            return Ok(Transport::Ring(Box::new(RingStream::connect(path)?)));
        }
    };
    let family = match address.is_ipv4() {
        true => AddressFamily::INET,
        false => AddressFamily::INET6,
    };
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = socket_with(family, SocketType::STREAM, flags, None)?;
    match connect(&socket, address) {
        Ok(()) | Err(Errno::INPROGRESS) => {}
        Err(error) => return Err(error.into()),
    }
    let socket = TcpStream::from(socket);
    socket.set_nodelay(true)?;
    Transport::new(socket, inner.tls.as_ref())
}
