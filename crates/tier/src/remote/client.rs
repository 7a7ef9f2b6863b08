//! A client that sends one request at a time, to put, open and check files. Searches do not use
//! this client.

use std::fmt;
use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::ring::RingStream;
use super::transport::{Transport, garbled};
use super::ucx::Streams;
use super::wire::{
    self, Frame, GREETING, Greeting, HEADER, Kind, LIST, Listed, MOST_WRITTEN, Protocol, Seal,
    Side, Welcome,
};
use super::{Fault, Server, Way};
use crate::error::TierError;
use crate::volume::VolumeReader;

/// A client of a server. Any thread may use it. It connects at its first request, and again after a
/// failure.
#[derive(Clone)]
pub struct Client {
    server: Server,
    connection: Arc<Mutex<Option<Connection>>>,
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Client({:?})", self.server)
    }
}

/// A file on a server. The server stores it as long as it has its name, or the client is connected.
#[derive(Clone, Debug)]
pub struct RemoteFile {
    pub(super) client: Client,
    pub(super) name: String,
    pub(super) id: u64,
    pub(super) len: u64,
}

pub(super) const OF_USE: usize = 64 << 10;
pub(super) const MOST_TEXT: u32 = 4 << 10;

/// To reserve or sync a file, a server may take this many times its [patience](Server::PATIENCE),
/// because a device syncs only after all its earlier writes.
const WORK: u32 = 12;
const SYNCED: u64 = 16 << 20;

struct Connection {
    transport: Transport,
    seal: Option<Seal>,
    patience: Duration,
    /// The time limit of requests for which the server neither reserves nor syncs a file.
    usual: Duration,
    next_tag: u64,
}

fn lost(error: &io::Error) -> Fault {
    Fault::Closed(error.to_string())
}

pub(super) fn connect(server: &Server, protocol: Protocol) -> Result<Transport, Fault> {
    let Connection {
        mut transport,
        seal,
        ..
    } = Connection::new(server, protocol)?;
    let unreachable = |error: io::Error| Fault::Unreachable(error.to_string());
    transport.lift_timeouts().map_err(unreachable)?;
    match (transport, server.streams(protocol), seal) {
        (Transport::Plain(socket), Some(loopback), Some(seal)) => {
            let streams = Streams::new(loopback);
            let streams = streams.map_err(|error| Fault::Unreachable(error.to_string()))?;
            let stream = streams.over(socket, Side::Client, &seal, server.inner.patience);
            Ok(Transport::Ucx(Box::new(stream.map_err(unreachable)?)))
        }
        // UCX is never used without a secret (`Server::reply`).
        (transport, ..) => Ok(transport),
    }
}

fn reach(server: &Server) -> io::Result<TcpStream> {
    let mut failed = ErrorKind::AddrNotAvailable.into();
    for address in server.addresses() {
        match TcpStream::connect_timeout(&address, server.patience_each()) {
            Ok(socket) => {
                server.reached(address);
                return Ok(socket);
            }
            Err(error) => failed = error,
        }
    }
    Err(failed)
}

impl Connection {
    fn new(server: &Server, protocol: Protocol) -> Result<Connection, Fault> {
        let inner = &*server.inner;
        let unreachable = |error: io::Error| Fault::Unreachable(error.to_string());
        let transport = match &inner.way {
            Way::Tcp(_) | Way::Ucx(_) => {
                let socket = reach(server).map_err(unreachable)?;
                socket.set_nodelay(true).map_err(unreachable)?;
                Transport::new(socket, inner.tls.as_ref()).map_err(unreachable)?
            }
            Way::Ring(path) => {
                let mut stream = RingStream::connect(path).map_err(unreachable)?;
                stream.set_waits(true);
                Transport::Ring(Box::new(stream))
            }
        };
        let mut connection = Connection {
            transport,
            seal: None,
            patience: inner.patience,
            usual: inner.patience,
            next_tag: 0,
        };
        let mut bytes = [0; GREETING];
        let greeted = connection.receive(&mut bytes);
        greeted.map_err(|fault| match fault {
            Fault::Stalled(waited) => Fault::NoGreeting(waited),
            fault => fault,
        })?;
        let greeting = Greeting::decode(&bytes).ok_or_else(no_greeting)?;
        let channel = connection.transport.channel().map_err(unreachable)?;
        let reply = server.reply(protocol, &greeting, &channel)?;
        connection.send(&reply.encode())?;
        connection.receive(&mut bytes)?;
        let welcome = Welcome::decode(&bytes).ok_or_else(no_greeting)?;
        server.check(&greeting, &reply, &welcome, &channel)?;
        let secret = inner.secret.as_ref();
        connection.seal = secret.map(|secret| secret.seal([&greeting.nonce, &reply.nonce]));
        Ok(connection)
    }

    /// A timeout means that the full patience has passed.
    fn failed(&self, error: &io::Error) -> Fault {
        match error.kind() {
            ErrorKind::WouldBlock | ErrorKind::TimedOut => Fault::Stalled(self.patience),
            ErrorKind::InvalidData => garbled(error),
            _ => lost(error),
        }
    }

    fn send(&mut self, mut bytes: &[u8]) -> Result<(), Fault> {
        let (mut since, mut of_use) = (Instant::now(), 0);
        while !bytes.is_empty() {
            let left = self.patience.saturating_sub(since.elapsed());
            if left.is_zero() {
                return Err(Fault::Stalled(self.patience));
            }
            let _ = self.transport.set_write_timeout(left);
            match self.transport.write(bytes) {
                Ok(0) => return Err(lost(&ErrorKind::WriteZero.into())),
                Ok(sent) => {
                    bytes = &bytes[sent..];
                    of_use += sent;
                    if of_use >= OF_USE {
                        (since, of_use) = (Instant::now(), 0);
                    }
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(self.failed(&error)),
            }
        }
        self.transport.flush().map_err(|error| self.failed(&error))
    }

    fn receive(&mut self, mut out: &mut [u8]) -> Result<(), Fault> {
        let (mut since, mut of_use) = (Instant::now(), 0);
        while !out.is_empty() {
            let left = self.patience.saturating_sub(since.elapsed());
            if left.is_zero() {
                return Err(Fault::Stalled(self.patience));
            }
            let _ = self.transport.set_read_timeout(left);
            match self.transport.read(out) {
                Ok(0) => return Err(lost(&ErrorKind::UnexpectedEof.into())),
                Ok(got) => {
                    out = &mut out[got..];
                    of_use += got;
                    if of_use >= OF_USE {
                        (since, of_use) = (Instant::now(), 0);
                    }
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(self.failed(&error)),
            }
        }
        Ok(())
    }

    /// `out` has the length of the answer's body. `work` is the number of bytes to reserve or sync.
    fn ask(
        &mut self,
        frame: Frame,
        body: &[u8],
        out: &mut [u8],
        work: Option<u64>,
    ) -> Result<Frame, Fault> {
        self.next_tag += 1;
        let tag = self.next_tag;
        let mut bytes = Vec::with_capacity(HEADER + body.len());
        Frame { tag, ..frame }.append(body, &mut bytes);
        self.send(&bytes)?;
        let mut header = [0; HEADER];
        self.patience = work.map_or(self.usual, |len| {
            self.usual * WORK + Duration::from_secs(len / SYNCED)
        });
        let received = self.receive(&mut header);
        self.patience = self.usual;
        received?;
        let (answer, sum) = Frame::decode(&header)
            .ok_or_else(|| nonsense("the header of an answer is not valid"))?;
        if answer.kind.is_none() {
            if answer.len > MOST_TEXT {
                return Err(nonsense("the text of a refusal is too long"));
            }
            let mut text = vec![0; answer.len as usize];
            self.receive(&mut text)?;
            check(sum.and(&text).is_right())?;
            return Err(Fault::Refused {
                why: answer.why(),
                text: String::from_utf8_lossy(&text).into_owned(),
            });
        }
        if answer.len as usize != out.len() {
            return Err(nonsense("an answer of another length than requested"));
        }
        self.receive(out)?;
        check(sum.and(out).is_right())?;
        if answer.kind != frame.kind || answer.tag != tag {
            return Err(nonsense("the answer to another request"));
        }
        Ok(answer)
    }
}

fn check(right: bool) -> Result<(), Fault> {
    match right {
        true => Ok(()),
        false => Err(nonsense("the checksum of an answer is wrong")),
    }
}

pub(super) fn nonsense(what: &str) -> Fault {
    Fault::Nonsense(what.to_owned())
}

fn no_greeting() -> Fault {
    nonsense("its greeting is not valid")
}

impl Client {
    /// Creates a client, without a connection yet.
    pub fn new(server: &Server) -> Client {
        Client {
            server: server.clone(),
            connection: Arc::default(),
        }
    }

    /// The server.
    pub fn server(&self) -> &Server {
        &self.server
    }

    fn ask(
        &self,
        about: &str,
        frame: Frame,
        body: &[u8],
        out: &mut [u8],
    ) -> Result<Frame, TierError> {
        self.ask_for(None, about, frame, body, out)
    }

    fn ask_for(
        &self,
        work: Option<u64>,
        about: &str,
        frame: Frame,
        body: &[u8],
        out: &mut [u8],
    ) -> Result<Frame, TierError> {
        let mut slot = self
            .connection
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let mut tried = || {
            let connection = match &mut *slot {
                Some(connection) => connection,
                None => slot.insert(Connection::new(&self.server, Protocol::Files)?),
            };
            connection.ask(frame, body, out, work)
        };
        let answer = tried();
        // After a refusal that has a reason, the connection can still be used.
        if matches!(&answer, Err(fault) if !matches!(fault, Fault::Refused { why: Some(_), .. })) {
            *slot = None;
        }
        answer.map_err(|fault| self.server.failed(about, fault))
    }

    fn hang_up(&self) {
        *self
            .connection
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// Opens a file; `None` if the server has no file of that name.
    ///
    /// # Errors
    /// [`TierError::Server`] if the server cannot be reached, or refuses.
    pub fn open(&self, name: &str) -> Result<Option<RemoteFile>, TierError> {
        let answer = self.ask(name, Frame::new(Kind::Open, 0), name.as_bytes(), &mut []);
        match answer {
            Ok(frame) => Ok(Some(self.file(name, &frame))),
            Err(TierError::Server {
                fault:
                    Fault::Refused {
                        why: Some(wire::Refusal::Missing),
                        ..
                    },
                ..
            }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn file(&self, name: &str, frame: &Frame) -> RemoteFile {
        RemoteFile {
            client: self.clone(),
            name: name.to_owned(),
            id: frame.file,
            len: frame.offset,
        }
    }

    /// Puts a file on the server, in place of an older file of this name. `read` gives the pieces
    /// of the file.
    ///
    /// # Errors
    /// [`TierError::Server`], or an error of `read`. The server then stores no part of the file.
    pub fn put(
        &self,
        name: &str,
        len: u64,
        mut read: impl FnMut(u64, &mut [u8]) -> Result<(), TierError>,
    ) -> Result<RemoteFile, TierError> {
        let frame = Frame {
            offset: len,
            ..Frame::new(Kind::Begin, 0)
        };
        let work = Some(len);
        let file = self
            .ask_for(work, name, frame, name.as_bytes(), &mut [])?
            .file;
        let mut hasher = blake3::Hasher::new();
        let mut buffer = vec![0; len.min(MOST_WRITTEN.into()) as usize];
        let mut offset = 0;
        while offset < len {
            let piece = &mut buffer[..(len - offset).min(MOST_WRITTEN.into()) as usize];
            // When the connection ends, the server removes the unfinished file.
            read(offset, piece).inspect_err(|_| self.hang_up())?;
            hasher.update(piece);
            let frame = Frame {
                file,
                offset,
                ..Frame::new(Kind::Write, 0)
            };
            (self.ask(name, frame, piece, &mut [])).inspect_err(|_| self.hang_up())?;
            offset += piece.len() as u64;
        }
        let frame = Frame {
            file,
            ..Frame::new(Kind::Commit, 0)
        };
        let hash = hasher.finalize();
        let answer = self.ask_for(work, name, frame, hash.as_bytes(), &mut [])?;
        if answer.offset != len {
            self.hang_up();
            let fault = nonsense("it stored another length of the file than was sent");
            return Err(self.server.failed(name, fault));
        }
        Ok(self.file(name, &answer))
    }

    /// The hash of a file, which the server computed when it received the bytes.
    ///
    /// # Errors
    /// [`TierError::Server`] if the server cannot be reached, or refuses.
    pub fn hash(&self, file: &RemoteFile) -> Result<blake3::Hash, TierError> {
        let frame = Frame {
            file: file.id,
            ..Frame::new(Kind::Hash, 0)
        };
        let mut hash = [0; blake3::OUT_LEN];
        self.ask(&file.name, frame, &[], &mut hash)?;
        Ok(hash.into())
    }

    /// Removes the names that begin with `prefix`, but not with `stays`, from their files. Clients
    /// can still read files that are open.
    ///
    /// # Errors
    /// [`TierError::Server`] if the server cannot be reached, or refuses.
    pub fn sweep(&self, prefix: &str, stays: &str) -> Result<(), TierError> {
        let body = [prefix.as_bytes(), &[0], stays.as_bytes()].concat();
        self.ask_for(Some(0), prefix, Frame::new(Kind::Sweep, 0), &body, &mut [])?;
        Ok(())
    }

    /// Lists the files whose names begin with `prefix`, sorted by name.
    ///
    /// # Errors
    /// [`TierError::Server`] if the server cannot be reached, or refuses.
    pub fn list(&self, prefix: &str) -> Result<Vec<Listed>, TierError> {
        let mut all: Vec<Listed> = Vec::new();
        loop {
            let after = all.last().map_or("", |last| &last.name);
            let body = [prefix.as_bytes(), &[0], after.as_bytes()].concat();
            let mut list = vec![0; LIST];
            self.ask(prefix, Frame::new(Kind::List, 0), &body, &mut list)?;
            // An answer in a wrong order is refused, so this loop ends.
            let next = Listed::decode(&list)
                .filter(|next| next.iter().all(|file| file.name.starts_with(prefix)))
                .filter(|next| next.first().is_none_or(|first| *first.name > *after))
                .filter(|next| next.is_sorted_by(|one, other| one.name < other.name));
            match next {
                None => {
                    self.hang_up();
                    return Err(self
                        .server
                        .failed(prefix, nonsense("its list of files is not valid")));
                }
                Some(next) if next.is_empty() => return Ok(all),
                Some(next) => all.extend(next),
            }
        }
    }

    /// Removes all names that begin with `prefix` from their files.
    ///
    /// # Errors
    /// [`TierError::Server`] if the server cannot be reached, or refuses.
    pub fn remove(&self, prefix: &str) -> Result<(), TierError> {
        // No name begins with `/`, so this call removes all names with the prefix.
        self.sweep(prefix, "/")
    }

    /// The number of free bytes of the server.
    ///
    /// # Errors
    /// [`TierError::Server`] if the server cannot be reached, or refuses.
    pub fn room(&self) -> Result<u64, TierError> {
        Ok(self
            .ask("", Frame::new(Kind::Room, 0), &[], &mut [])?
            .offset)
    }
}

impl RemoteFile {
    /// The name in messages: `host:port/name`.
    pub fn place(&self) -> String {
        format!("{}/{}", self.client.server.name(), self.name)
    }

    /// The length in bytes.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether the length is 0.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

impl VolumeReader for RemoteFile {
    fn size(&self) -> Result<u64, TierError> {
        Ok(self.len)
    }

    fn read_at(&self, mut offset: u64, out: &mut [u8]) -> Result<(), TierError> {
        for piece in out.chunks_mut(MOST_WRITTEN as usize) {
            let frame = Frame {
                file: self.id,
                offset,
                count: piece.len() as u32,
                ..Frame::new(Kind::Read, 0)
            };
            self.client.ask(&self.name, frame, &[], piece)?;
            offset += piece.len() as u64;
        }
        Ok(())
    }
}
