//! Replaces [`ucx`](super::ucx) in a build without UCX. No type here can be constructed.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::ops::{Deref, DerefMut};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

use super::Fault;
use super::state::Asked;
use super::wire::{Seal, Side};
use crate::error::TierError;

/// Reports that UCX is not available.
///
/// # Errors
/// The call always fails.
pub fn available() -> Result<(), String> {
    let why = "this program was built without UCX. Build the command with `--features ucx` (the Python package \
               never has it), or leave out `ucx:` to reach the server over TCP";
    Err(why.to_owned())
}

/// Memory that clients read through UCX.
#[derive(Debug)]
pub enum Target {}

/// A region of memory that clients can read.
#[derive(Debug)]
pub enum Region {}

impl Target {
    /// Reports that UCX is not available.
    ///
    /// # Errors
    /// The call always fails.
    pub fn start(_loopback: bool) -> Result<Target, TierError> {
        Err(unsupported("reading through UCX"))
    }

    /// Never called.
    ///
    /// # Errors
    /// The call never returns.
    pub fn allocate(&self, _len: usize) -> Result<Region, TierError> {
        match *self {}
    }

    /// Never called.
    ///
    /// # Errors
    /// The call never returns.
    pub fn reach(&self, _region: &Region) -> Result<Vec<u8>, TierError> {
        match *self {}
    }

    /// Never called.
    pub fn retire(&self, _what: impl IntoIterator<Item = Arc<dyn Send + Sync>>) {
        match *self {}
    }
}

impl Deref for Region {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match *self {}
    }
}

impl DerefMut for Region {
    fn deref_mut(&mut self) -> &mut [u8] {
        match *self {}
    }
}

fn unsupported(what: &str) -> TierError {
    TierError::Unsupported {
        what: what.to_owned(),
        reason: available().err().unwrap_or_default(),
    }
}

/// The private field of the types below. It has no value, so neither do these types.
#[derive(Debug)]
enum Nothing {}

/// The settings for streams.
#[derive(Clone, Debug)]
pub enum Streams {}

/// A stream.
#[derive(Debug)]
pub struct UcxStream(Nothing);

/// The direction that reads.
#[derive(Debug)]
pub struct UcxReader(Nothing);

/// The direction that writes.
#[derive(Debug)]
pub struct UcxWriter(Nothing);

impl Streams {
    /// Reports that UCX is not available.
    ///
    /// # Errors
    /// The call always fails.
    pub fn new(_loopback: bool) -> Result<Streams, TierError> {
        Err(unsupported("a connection through UCX"))
    }

    /// Reports that UCX is not available.
    ///
    /// # Errors
    /// The call always fails.
    pub fn serving(loopback: bool) -> Result<Streams, TierError> {
        Self::new(loopback)
    }

    /// Never called.
    ///
    /// # Errors
    /// The call never returns.
    pub fn over(&self, _: TcpStream, _: Side, _: &Seal, _: Duration) -> io::Result<UcxStream> {
        match *self {}
    }
}

impl UcxStream {
    /// Never called.
    pub fn split(self) -> (UcxReader, UcxWriter) {
        match self.0 {}
    }

    /// Never called.
    pub fn set_read_timeout(&mut self, _limit: Option<Duration>) {
        match self.0 {}
    }

    /// Never called.
    pub fn set_write_timeout(&mut self, _limit: Option<Duration>) {
        match self.0 {}
    }
}

impl UcxReader {
    /// Never called.
    pub fn set_timeout(&mut self, _limit: Option<Duration>) {
        match self.0 {}
    }

    /// Never called.
    pub fn socket(&self) -> &TcpStream {
        match self.0 {}
    }
}

impl UcxWriter {
    /// Never called.
    pub fn set_timeout(&mut self, _limit: Option<Duration>) {
        match self.0 {}
    }
}

impl AsFd for UcxStream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self.0 {}
    }
}

impl Read for UcxStream {
    fn read(&mut self, _out: &mut [u8]) -> io::Result<usize> {
        match self.0 {}
    }
}

impl Read for UcxReader {
    fn read(&mut self, _out: &mut [u8]) -> io::Result<usize> {
        match self.0 {}
    }
}

impl Write for UcxStream {
    fn write(&mut self, _bytes: &[u8]) -> io::Result<usize> {
        match self.0 {}
    }

    fn flush(&mut self) -> io::Result<()> {
        match self.0 {}
    }
}

impl Write for UcxWriter {
    fn write(&mut self, _bytes: &[u8]) -> io::Result<usize> {
        match self.0 {}
    }

    fn flush(&mut self) -> io::Result<()> {
        match self.0 {}
    }
}

pub(super) enum Lane {}

impl Lane {
    pub(super) fn new(_loopback: bool) -> Result<Lane, String> {
        available().map(|()| unreachable!("this build has no UCX"))
    }

    pub(super) fn is_idle(&self) -> bool {
        match *self {}
    }

    pub(super) fn submit(&mut self, _file: u64, _offset: u64, _asked: Asked) -> bool {
        match *self {}
    }

    pub(super) fn asks(&mut self, _tag: u64, _file: u64) {
        match *self {}
    }

    pub(super) fn is_asked(&self, _tag: u64) -> bool {
        match *self {}
    }

    pub(super) fn refused(&mut self, _tag: u64) -> Vec<Asked> {
        match *self {}
    }

    pub(super) fn reached(&mut self, _tag: u64, _len: u64, _answer: &[u8]) -> Result<(), Fault> {
        match *self {}
    }

    pub(super) fn progress(&mut self) -> Result<Vec<Asked>, Fault> {
        match *self {}
    }

    pub(super) fn arm(&self) -> Result<bool, Fault> {
        match *self {}
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        match *self {}
    }

    pub(super) fn end(self) -> Vec<Asked> {
        match self {}
    }
}
