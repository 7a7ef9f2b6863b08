//! The bytes of a connection, on the server's side.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use rustls::{ServerConnection, StreamOwned};
use stratann_tier::remote::Timed;
use stratann_tier::remote::ring::RingStream;
use stratann_tier::remote::ucx::UcxStream;
use stratann_tier::remote::wire::{Binding, CHANNEL, UNBOUND};

use crate::link::pipe::Pipe;

pub(crate) enum Stream {
    Plain(TcpStream),
    Tls(Box<StreamOwned<ServerConnection, Timed>>),
    Ring(Box<RingStream>),
    Ucx(Box<UcxStream>),
    Local(Pipe),
}

impl Stream {
    /// A value that TLS gives to no other connection.
    pub(crate) fn channel(&self) -> io::Result<Binding> {
        match self {
            Stream::Tls(stream) => (stream.conn)
                .export_keying_material(UNBOUND, CHANNEL, None)
                .map_err(io::Error::other),
            Stream::Plain(_) | Stream::Ring(_) | Stream::Ucx(_) | Stream::Local(_) => Ok(UNBOUND),
        }
    }

    pub(crate) fn set_read_timeout(&mut self, limit: Option<Duration>) -> io::Result<()> {
        match self {
            Stream::Plain(socket) => socket.set_read_timeout(limit),
            Stream::Tls(stream) => stream.sock.limit(limit),
            Stream::Ring(stream) => {
                stream.set_read_timeout(limit);
                Ok(())
            }
            Stream::Ucx(stream) => {
                stream.set_read_timeout(limit);
                Ok(())
            }
            Stream::Local(pipe) => {
                pipe.reader.set_timeout(limit);
                Ok(())
            }
        }
    }

    pub(crate) fn set_write_timeout(&mut self, limit: Option<Duration>) -> io::Result<()> {
        match self {
            Stream::Plain(socket) => socket.set_write_timeout(limit),
            Stream::Tls(stream) => stream.sock.limit(limit),
            Stream::Ring(stream) => {
                stream.set_write_timeout(limit);
                Ok(())
            }
            Stream::Ucx(stream) => {
                stream.set_write_timeout(limit);
                Ok(())
            }
            Stream::Local(pipe) => {
                pipe.writer.set_timeout(limit);
                Ok(())
            }
        }
    }
}

impl Read for Stream {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        match self {
            Stream::Plain(socket) => socket.read(out),
            Stream::Tls(stream) => stream.read(out),
            Stream::Ring(stream) => stream.read(out),
            Stream::Ucx(stream) => stream.read(out),
            Stream::Local(pipe) => pipe.reader.read(out),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Stream::Plain(socket) => socket.write(bytes),
            Stream::Tls(stream) => stream.write(bytes),
            Stream::Ring(stream) => stream.write(bytes),
            Stream::Ucx(stream) => stream.write(bytes),
            Stream::Local(pipe) => pipe.writer.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Stream::Plain(socket) => socket.flush(),
            Stream::Tls(stream) => stream.flush(),
            Stream::Ring(stream) => stream.flush(),
            Stream::Ucx(stream) => stream.flush(),
            Stream::Local(pipe) => pipe.writer.flush(),
        }
    }
}
