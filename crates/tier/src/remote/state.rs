//! The state of a thread's connection to a server, which [`link`](super::link) shares among queues.

use std::collections::VecDeque;
use std::future::Future;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, connect, socket_with};

use super::client::{MOST_TEXT, OF_USE, nonsense};
use super::link::Letters;
use super::ring::RingStream;
use super::transport::{Transport, garbled};
use super::ucx::Lane;
use super::wire::{
    Binding, Frame, GREETING, Greeting, HEADER, Kind, Protocol, Reply, Sum, UNBOUND, Welcome,
};
use super::{Fault, Server, Tls, Way};
use crate::buffer::Block;
use crate::error::TierError;
use crate::reactor::Reactor;
use crate::sockets::SocketReady;

const TAKEN: usize = 256 << 10;

pub(super) struct To {
    pub(super) letters: Rc<Letters>,
    pub(super) epoch: u64,
    pub(super) tag: u64,
}

pub(super) struct Asked {
    pub(super) to: To,
    pub(super) block: Block,
}

pub(super) enum Stage {
    Connecting,
    Greeting,
    Welcome(Greeting, Reply, Binding),
    Open,
    Over(Fault),
}

struct Coming {
    frame: Frame,
    sum: Sum,
    got: usize,
    text: Vec<u8>,
}

pub(super) struct State {
    /// Declared before the transport, whose descriptor it borrows.
    pub(super) armed: Option<(SocketReady<'static>, i16)>,
    /// Declared before the lane, whose descriptor it borrows.
    pub(super) stirs: Option<SocketReady<'static>>,
    /// The UCX lane for reads, unless they use the connection itself.
    pub(super) lane: Option<Lane>,
    transport: Option<Transport>,
    addresses: VecDeque<SocketAddr>,
    begun: Instant,
    pub(super) stage: Stage,
    pub(super) out: Vec<u8>,
    sent: usize,
    /// Requests that wait until the server has accepted the client.
    pub(super) later: Vec<u8>,
    input: Vec<u8>,
    scratch: Box<[u8]>,
    coming: Option<Coming>,
    pub(super) slots: Vec<Option<Asked>>,
    pub(super) free: Vec<u32>,
    number: u32,
    numbers: Vec<u32>,
    /// The start of the server's silence: the last whole answer, or the last [`OF_USE`] bytes.
    pub(super) quiet_since: Instant,
    pub(super) of_use: usize,
    pub(super) looked: Instant,
    pub(super) read_at: Instant,
}

impl Asked {
    pub(super) fn fail(self, server: &Server, fault: Fault) {
        let To {
            letters,
            epoch,
            tag,
        } = self.to;
        let error = server.failed(&letters.name, fault);
        letters.deliver(epoch, tag, Err(error));
    }
}

pub(super) type Done = Vec<(To, Result<Block, TierError>)>;

impl State {
    pub(super) fn begin(server: &Server) -> State {
        let mut state = State {
            armed: None,
            stirs: None,
            lane: None,
            transport: None,
            addresses: server.addresses().into(),
            begun: Instant::now(),
            stage: Stage::Connecting,
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
        };
        if let Err(fault) = state.connect(server) {
            state.stage = Stage::Over(fault);
        }
        state
    }

    fn connect(&mut self, server: &Server) -> Result<(), Fault> {
        let unreachable = |why: String| Fault::Unreachable(why);
        // `armed` borrows the descriptor of the previous transport, and so is dropped first.
        self.armed = None;
        self.transport = None;
        self.begun = Instant::now();
        if let Way::Ring(path) = &server.inner.way {
            let stream = RingStream::connect(path);
            let stream = stream.map_err(|error| unreachable(error.to_string()))?;
            self.transport = Some(Transport::Ring(Box::new(stream)));
            return Ok(());
        }
        loop {
            let Some(&address) = self.addresses.front() else {
                return Err(unreachable(
                    "the name of the server has no address".to_owned(),
                ));
            };
            match begin(address, server.inner.tls.as_ref()) {
                Ok(transport) => self.transport = Some(transport),
                Err(error) if self.addresses.len() == 1 => {
                    return Err(unreachable(error.to_string()));
                }
                Err(_) => {
                    self.addresses.pop_front();
                    continue;
                }
            }
            // Requests wait in the lane, whichever address the connection will use.
            if let (Way::Ucx(all), None) = (&server.inner.way, &self.lane) {
                let loopback = all.iter().all(|address| address.ip().is_loopback());
                self.lane = Some(Lane::new(loopback).map_err(unreachable)?);
            }
            return Ok(());
        }
    }

    pub(super) fn keep(&mut self, asked: Asked) -> u64 {
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

    pub(super) fn is_idle(&self) -> bool {
        self.slots.len() == self.free.len() && self.lane.as_ref().is_none_or(Lane::is_idle)
    }

    pub(super) fn end(&mut self, fault: &Fault) -> Vec<Asked> {
        self.stage = Stage::Over(fault.clone());
        self.armed = None;
        self.stirs = None;
        self.transport = None;
        self.coming = None;
        let mut all: Vec<Asked> = self.slots.iter_mut().filter_map(Option::take).collect();
        all.extend(self.lane.take().map(Lane::end).into_iter().flatten());
        self.free = (0..self.slots.len() as u32).collect();
        all
    }

    pub(super) fn hear(&mut self, bell: &Waker) -> Result<(), Fault> {
        let mut cx = Context::from_waker(bell);
        let broken = |error: TierError| Fault::Closed(error.to_string());
        if let Some(stirs) = &mut self.stirs
            && let Poll::Ready(report) = Pin::new(stirs).poll(&mut cx)
        {
            self.stirs = None;
            report.map_err(broken)?;
        }
        let Some((armed, _)) = &mut self.armed else {
            return Ok(());
        };
        match Pin::new(armed).poll(&mut cx) {
            Poll::Pending => Ok(()),
            Poll::Ready(report) => {
                self.armed = None;
                report.map_err(broken)
            }
        }
    }

    pub(super) fn arm(&mut self, reactor: &Rc<Reactor>, bell: &Waker) -> Result<(), Fault> {
        let Some(transport) = &self.transport else {
            return Ok(());
        };
        let more = matches!(self.stage, Stage::Connecting) || self.sent < self.out.len();
        let events = transport.events(more);
        if !matches!(self.armed, Some((_, armed)) if armed == events) {
            let fd = transport.as_fd().as_raw_fd();
            // SAFETY: the descriptor belongs to `transport`. Only `connect` and `end` replace
            // `transport`, and both drop `armed` before. `transport` is also declared after
            // `armed`, so it is dropped later. So the descriptor stays open while `armed` uses it.
            let fd = unsafe { BorrowedFd::borrow_raw(fd) };
            self.armed = Some((SocketReady::new(reactor, fd, events), events));
        }
        let mut there = false;
        if let Some(lane) = self.lane.as_ref().filter(|lane| !lane.is_idle()) {
            there = !lane.arm()?;
            if self.stirs.is_none() {
                let fd = lane.fd().as_raw_fd();
                // SAFETY: the descriptor belongs to `lane`. Only `end` takes `lane`, and takes
                // `stirs` before. `lane` is also declared after `stirs`.
                let fd = unsafe { BorrowedFd::borrow_raw(fd) };
                self.stirs = Some(SocketReady::new(reactor, fd, libc::POLLIN));
            }
        }
        let waits = self.stirs.is_some();
        self.hear(bell)?;
        if there || self.armed.is_none() || waits != self.stirs.is_some() {
            bell.wake_by_ref();
        }
        Ok(())
    }

    pub(super) fn pump(
        &mut self,
        server: &Server,
        reads: bool,
        done: &mut Done,
    ) -> Result<(), Fault> {
        if self.transport.is_none() {
            return Ok(());
        }
        if let Stage::Connecting = self.stage {
            let connected = self
                .transport
                .as_ref()
                .map_or(Ok(false), Transport::is_connected);
            match connected {
                Ok(true) => {
                    if let Some(&address) = self.addresses.front() {
                        server.reached(address);
                    }
                    self.stage = Stage::Greeting;
                }
                Ok(false) | Err(_) if self.addresses.len() > 1 => {
                    if connected.is_ok() && self.begun.elapsed() < server.patience_each() {
                        return Ok(());
                    }
                    self.addresses.pop_front();
                    return self.connect(server);
                }
                Ok(false) => return Ok(()),
                Err(error) => return Err(Fault::Unreachable(error.to_string())),
            }
        }
        self.write()?;
        self.fetch(done)?;
        if !reads {
            return Ok(());
        }
        // The loop ends, because each incoming frame answers a request or is an error.
        loop {
            let filled = self.read()?;
            self.understand(server, done)?;
            self.write()?;
            self.fetch(done)?;
            if filled < TAKEN {
                return Ok(());
            }
        }
    }

    fn fetch(&mut self, done: &mut Done) -> Result<(), Fault> {
        let Some(lane) = &mut self.lane else {
            return Ok(());
        };
        let come = lane.progress()?;
        if !come.is_empty() {
            self.advance();
        }
        done.extend(come.into_iter().map(|Asked { to, block }| (to, Ok(block))));
        Ok(())
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
            // The next read reports the end again, after these bytes have been processed.
            Some(error) if filled == 0 => Err(broken(&error)),
            _ => Ok(filled),
        }
    }

    fn advance(&mut self) {
        self.of_use = 0;
        self.quiet_since = Instant::now();
    }

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

    /// Returns the bytes of the next item of the input; `None` if it is incomplete.
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
                let greeting = greeting.ok_or_else(|| nonsense("its greeting is not valid"))?;
                let channel = self
                    .transport
                    .as_ref()
                    .map_or(Ok(UNBOUND), Transport::channel);
                let channel = channel.map_err(|error| broken(&error))?;
                let reply = server.reply(Protocol::Files, &greeting, &channel)?;
                self.out.extend(reply.encode());
                self.stage = Stage::Welcome(greeting, reply, channel);
                self.advance();
                Ok(Some(GREETING))
            }
            Stage::Welcome(greeting, reply, channel) => {
                let Some(bytes) = input.first_chunk::<GREETING>() else {
                    return Ok(None);
                };
                let welcome = Welcome::decode(bytes);
                let welcome = welcome.ok_or_else(|| nonsense("its welcome is not valid"))?;
                server.check(greeting, reply, &welcome, channel)?;
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
                let (frame, sum) = Frame::decode(header)
                    .ok_or_else(|| nonsense("the header of an answer is not valid"))?;
                let Some((_, asked)) = self.find(frame.tag) else {
                    return Err(nonsense("an answer without a request"));
                };
                let wanted = asked.block.len();
                let kind = match &self.lane {
                    Some(lane) if lane.is_asked(frame.tag) => Kind::Reach,
                    _ => Kind::Read,
                };
                let right = match frame.kind {
                    None => frame.len <= MOST_TEXT,
                    Some(found) => found == kind && frame.len as usize == wanted,
                };
                if !right {
                    return Err(nonsense(
                        "an answer of another length or kind than requested",
                    ));
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
            return Err(nonsense("an answer without a request"));
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
            return Err(nonsense("the checksum of an answer is wrong"));
        }
        self.advance();
        let Some(Asked { to, block }) = self.release(tag) else {
            return Ok(Some(bytes.len()));
        };
        let refused = || Fault::Refused {
            why: coming.frame.why(),
            text: String::from_utf8_lossy(&coming.text).into_owned(),
        };
        let failed = |to: &To| server.failed(&to.letters.name, refused());
        match (&mut self.lane, coming.frame.kind) {
            (Some(lane), Some(Kind::Reach)) => lane.reached(tag, coming.frame.offset, &block)?,
            (Some(lane), None) => {
                let waiting = lane.refused(tag).into_iter().map(|Asked { to, .. }| to);
                done.extend(
                    waiting
                        .map(|to| (failed(&to), to))
                        .map(|(error, to)| (to, Err(error))),
                );
            }
            (_, Some(_)) => done.push((to, Ok(block))),
            (None, None) => {
                let error = failed(&to);
                done.push((to, Err(error)));
            }
        }
        Ok(Some(bytes.len()))
    }
}

fn broken(error: &io::Error) -> Fault {
    match error.kind() {
        ErrorKind::InvalidData => garbled(error),
        _ => Fault::Closed(error.to_string()),
    }
}

fn begin(address: SocketAddr, tls: Option<&Tls>) -> io::Result<Transport> {
    let family = match address.is_ipv4() {
        true => AddressFamily::INET,
        false => AddressFamily::INET6,
    };
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = socket_with(family, SocketType::STREAM, flags, None)?;
    match connect(&socket, &address) {
        Ok(()) | Err(Errno::INPROGRESS) => {}
        Err(error) => return Err(error.into()),
    }
    let socket = TcpStream::from(socket);
    socket.set_nodelay(true)?;
    Transport::new(socket, tls)
}
