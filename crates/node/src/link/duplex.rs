//! A connection's two directions, taken apart: one thread reads while others write.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustls::Connection;
use stratann_tier::remote::Transport;
use stratann_tier::remote::ring::{RingReader, RingWriter};
use stratann_tier::remote::ucx::{UcxReader, UcxStream, UcxWriter};

use super::pipe::{self, Pipe, PipeReader, PipeWriter};
use crate::stream::Stream;

/// Bytes that are encrypted at a time.
const RECORDS: usize = 32 << 10;

/// A connection as far as it goes by TLS. Keys and counters belong to both directions.
struct Tls {
    connection: Mutex<Connection>,
    /// For who writes. Taken before `connection`: records go in the order in which they were made.
    outgoing: Mutex<Outgoing>,
}

struct Outgoing {
    socket: TcpStream,
    /// What is encrypted and has not gone.
    records: Vec<u8>,
}

impl Tls {
    fn connection(&self) -> MutexGuard<'_, Connection> {
        self.connection
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn outgoing(&self) -> MutexGuard<'_, Outgoing> {
        self.outgoing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Encrypts and sends. What is encrypted and does not go in time goes first the next time.
    fn send(&self, bytes: &[u8], until: Option<Instant>) -> io::Result<Sent> {
        let mut outgoing = self.outgoing();
        let Outgoing { socket, records } = &mut *outgoing;
        let mut taken = 0;
        loop {
            let mut connection = self.connection();
            let end = bytes.len().min(taken + RECORDS);
            taken += connection.writer().write(&bytes[taken..end])?;
            while connection.wants_write() {
                connection.write_tls(records)?;
            }
            drop(connection);
            let gone = send(socket, records, until)?;
            records.drain(..gone);
            if !records.is_empty() || taken == bytes.len() {
                let whole = records.is_empty();
                return Ok(Sent { taken, whole });
            }
        }
    }
}

/// How far a send came.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sent {
    /// Bytes that are not to be sent again: the others are.
    pub(crate) taken: usize,
    /// Whether all have gone; else the time was over.
    pub(crate) whole: bool,
}

/// Writes until a time is over, however small the pieces are that the peer takes; gives how many bytes went.
fn send(to: &mut impl Write, bytes: &[u8], until: Option<Instant>) -> io::Result<usize> {
    let mut sent = 0;
    while sent < bytes.len() {
        match to.write(&bytes[sent..]) {
            Ok(0) => return Err(ErrorKind::WriteZero.into()),
            Ok(taken) => sent += taken,
            Err(error) => match error.kind() {
                ErrorKind::Interrupted => {}
                ErrorKind::WouldBlock | ErrorKind::TimedOut => break,
                _ => return Err(error),
            },
        }
        if until.is_some_and(|until| Instant::now() >= until) {
            break;
        }
    }
    Ok(sent)
}

/// The direction that reads.
pub(crate) struct Receiver {
    from: From,
}

enum From {
    Tcp(TcpStream),
    Tls {
        tls: Arc<Tls>,
        socket: TcpStream,
        /// What came and is not decrypted yet.
        records: Vec<u8>,
        at: usize,
    },
    Ring(RingReader),
    Ucx(UcxReader),
    Local(PipeReader),
}

/// The direction that writes.
pub(crate) struct Sender {
    to: To,
    limit: Option<Duration>,
}

enum To {
    Tcp(TcpStream),
    Tls(Arc<Tls>),
    Ring(RingWriter),
    Ucx(UcxWriter),
    Local(PipeWriter),
}

/// Ends a connection from anywhere.
#[derive(Debug)]
pub(crate) enum Closer {
    Tcp(TcpStream),
    Unix(UnixStream),
    Local(pipe::Closer),
}

impl Closer {
    pub(crate) fn close(&self) {
        // It fails where the other side has gone, which is as good.
        let _ = match self {
            Closer::Tcp(socket) => socket.shutdown(Shutdown::Both),
            Closer::Unix(socket) => socket.shutdown(Shutdown::Both),
            Closer::Local(closer) => {
                closer.close();
                Ok(())
            }
        };
    }
}

/// A connection that was greeted, taken apart.
pub(crate) struct Duplex {
    pub(crate) receiver: Receiver,
    pub(crate) sender: Sender,
    pub(crate) closer: Closer,
}

impl Duplex {
    /// `limit`: how long the peer may take for what it is sent at once.
    fn new(from: From, to: To, closer: Closer, limit: Option<Duration>) -> Duplex {
        Duplex {
            receiver: Receiver { from },
            sender: Sender { to, limit },
            closer,
        }
    }

    fn tcp(socket: TcpStream, limit: Option<Duration>) -> io::Result<Duplex> {
        socket.set_read_timeout(None)?;
        socket.set_write_timeout(limit)?;
        let (to, closer) = (socket.try_clone()?, socket.try_clone()?);
        Ok(Self::new(
            From::Tcp(socket),
            To::Tcp(to),
            Closer::Tcp(closer),
            limit,
        ))
    }

    fn tls(
        connection: Connection,
        socket: TcpStream,
        limit: Option<Duration>,
    ) -> io::Result<Duplex> {
        socket.set_read_timeout(None)?;
        socket.set_write_timeout(limit)?;
        let tls = Arc::new(Tls {
            connection: Mutex::new(connection),
            outgoing: Mutex::new(Outgoing {
                socket: socket.try_clone()?,
                records: Vec::new(),
            }),
        });
        let closer = Closer::Tcp(socket.try_clone()?);
        let from = From::Tls {
            tls: tls.clone(),
            socket,
            records: Vec::new(),
            at: 0,
        };
        Ok(Self::new(from, To::Tls(tls), closer, limit))
    }

    fn ring(
        stream: stratann_tier::remote::ring::RingStream,
        limit: Option<Duration>,
    ) -> io::Result<Duplex> {
        let (mut reader, mut writer) = stream.split()?;
        reader.set_timeout(None);
        writer.set_timeout(limit);
        let closer = Closer::Unix(reader.socket().try_clone()?);
        Ok(Self::new(
            From::Ring(reader),
            To::Ring(writer),
            closer,
            limit,
        ))
    }

    fn ucx(stream: UcxStream, limit: Option<Duration>) -> io::Result<Duplex> {
        let (mut reader, mut writer) = stream.split();
        reader.set_timeout(None);
        writer.set_timeout(limit);
        let closer = Closer::Tcp(reader.socket().try_clone()?);
        Ok(Self::new(From::Ucx(reader), To::Ucx(writer), closer, limit))
    }

    /// Within this process.
    pub(crate) fn local(pipe: Pipe, limit: Option<Duration>) -> Duplex {
        let closer = Closer::Local(pipe.closer());
        let Pipe { reader, mut writer } = pipe;
        writer.set_timeout(limit);
        Self::new(From::Local(reader), To::Local(writer), closer, limit)
    }

    /// Of who connected.
    pub(crate) fn of_transport(
        transport: Transport,
        limit: Option<Duration>,
    ) -> io::Result<Duplex> {
        match transport {
            Transport::Plain(socket) => Self::tcp(socket, limit),
            Transport::Tls(stream) => {
                let (connection, socket) = stream.into_parts();
                Self::tls(connection.into(), socket.into_socket(), limit)
            }
            Transport::Ring(stream) => Self::ring(*stream, limit),
            Transport::Ucx(stream) => Self::ucx(*stream, limit),
        }
    }

    /// Of who was connected to.
    pub(crate) fn of_stream(stream: Stream, limit: Option<Duration>) -> io::Result<Duplex> {
        match stream {
            Stream::Plain(socket) => Self::tcp(socket, limit),
            Stream::Tls(stream) => {
                let (connection, socket) = stream.into_parts();
                Self::tls(connection.into(), socket.into_socket(), limit)
            }
            Stream::Ring(stream) => Self::ring(*stream, limit),
            Stream::Ucx(stream) => Self::ucx(*stream, limit),
            Stream::Local(pipe) => Ok(Self::local(pipe, limit)),
        }
    }
}

impl Receiver {
    /// How long a read waits; `None` is for ever.
    pub(crate) fn set_timeout(&mut self, limit: Option<Duration>) -> io::Result<()> {
        match &mut self.from {
            From::Tcp(socket) | From::Tls { socket, .. } => socket.set_read_timeout(limit),
            From::Ring(reader) => {
                reader.set_timeout(limit);
                Ok(())
            }
            From::Ucx(reader) => {
                reader.set_timeout(limit);
                Ok(())
            }
            From::Local(reader) => {
                reader.set_timeout(limit);
                Ok(())
            }
        }
    }
}

impl Read for Receiver {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        match &mut self.from {
            From::Tcp(socket) => socket.read(out),
            From::Ring(reader) => reader.read(out),
            From::Ucx(reader) => reader.read(out),
            From::Local(reader) => reader.read(out),
            From::Tls {
                tls,
                socket,
                records,
                at,
            } => loop {
                let mut connection = tls.connection();
                match connection.reader().read(out) {
                    Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                    read => return read,
                }
                if *at < records.len() {
                    let mut rest = &records[*at..];
                    connection.read_tls(&mut rest)?;
                    *at = records.len() - rest.len();
                    connection.process_new_packets().map_err(io::Error::other)?;
                    let answers = connection.wants_write();
                    drop(connection);
                    if answers {
                        tls.send(&[], None)?;
                    }
                    continue;
                }
                drop(connection);
                records.resize(RECORDS, 0);
                let got = socket.read(records);
                *at = 0;
                records.truncate(got.as_ref().map_or(0, |&got| got));
                if got? == 0 {
                    return Err(ErrorKind::UnexpectedEof.into());
                }
            },
        }
    }
}

impl Sender {
    /// How long the peer may take for what it is sent at once, from now on.
    pub(crate) fn set_limit(&mut self, limit: Duration) -> io::Result<()> {
        self.limit = Some(limit);
        match &mut self.to {
            To::Tcp(socket) => socket.set_write_timeout(self.limit),
            To::Tls(tls) => tls.outgoing().socket.set_write_timeout(self.limit),
            To::Ring(writer) => {
                writer.set_timeout(self.limit);
                Ok(())
            }
            To::Ucx(writer) => {
                writer.set_timeout(self.limit);
                Ok(())
            }
            To::Local(writer) => {
                writer.set_timeout(self.limit);
                Ok(())
            }
        }
    }

    /// Sends what goes within the limit.
    pub(crate) fn send(&mut self, bytes: &[u8]) -> io::Result<Sent> {
        let until = self.limit.map(|limit| Instant::now() + limit);
        let taken = match &mut self.to {
            To::Tcp(socket) => send(socket, bytes, until)?,
            To::Tls(tls) => return tls.send(bytes, until),
            To::Ring(writer) => send(writer, bytes, until)?,
            To::Ucx(writer) => send(writer, bytes, until)?,
            To::Local(writer) => send(writer, bytes, until)?,
        };
        let whole = taken == bytes.len();
        Ok(Sent { taken, whole })
    }
}
