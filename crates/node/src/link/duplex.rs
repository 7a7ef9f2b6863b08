//! A connection split into its two directions, so that one thread reads while others write.

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

/// The bytes that are encrypted at a time.
const RECORDS: usize = 32 << 10;

/// Both directions share keys and counters.
struct Tls {
    connection: Mutex<Connection>,
    /// Locked before `connection`, so that records are sent in order.
    outgoing: Mutex<Outgoing>,
}

struct Outgoing {
    socket: TcpStream,
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

    /// If the time limit ends a call, the next call first sends the remaining encrypted bytes.
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

#[derive(Clone, Copy, Debug)]
pub(crate) struct Sent {
    /// The number of bytes that the caller must not pass again.
    pub(crate) taken: usize,
    /// Whether all bytes were sent before the time limit.
    pub(crate) whole: bool,
}

/// Writes until a time limit, even if the peer accepts only small pieces.
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

pub(crate) struct Receiver {
    from: From,
}

enum From {
    Tcp(TcpStream),
    Tls {
        tls: Arc<Tls>,
        socket: TcpStream,
        records: Vec<u8>,
        at: usize,
    },
    Ring(RingReader),
    Ucx(UcxReader),
    Local(PipeReader),
}

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

#[derive(Debug)]
pub(crate) enum Closer {
    Tcp(TcpStream),
    Unix(UnixStream),
    Local(pipe::Closer),
}

impl Closer {
    pub(crate) fn close(&self) {
        // Fails if the peer has closed the connection first.
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

pub(crate) struct Duplex {
    pub(crate) receiver: Receiver,
    pub(crate) sender: Sender,
    pub(crate) closer: Closer,
}

impl Duplex {
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

    pub(crate) fn local(pipe: Pipe, limit: Option<Duration>) -> Duplex {
        let closer = Closer::Local(pipe.closer());
        let Pipe { reader, mut writer } = pipe;
        writer.set_timeout(limit);
        Self::new(From::Local(reader), To::Local(writer), closer, limit)
    }

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
    /// Sets the time that the peer has to receive one send.
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
