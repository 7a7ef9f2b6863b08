//! What stands in the place of [`ucx`](super::ucx) where this was built without: nothing of it can be made.

use std::ops::{Deref, DerefMut};
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use super::Fault;
use super::state::Asked;
use crate::error::TierError;

/// That there is none.
///
/// # Errors
/// Always.
pub fn available() -> Result<(), String> {
    Err("this program was built without UCX: build it with `--features ucx`".to_owned())
}

/// What clients read through UCX, of which there is none.
#[derive(Debug)]
pub enum Target {}

/// Memory that clients can read, of which there is none.
#[derive(Debug)]
pub enum Region {}

impl Target {
    /// Says that there is none.
    ///
    /// # Errors
    /// Always.
    pub fn start(_loopback: bool) -> Result<Target, TierError> {
        available().map_err(|reason| TierError::Unsupported {
            what: "reads through UCX".to_owned(),
            reason,
        })?;
        unreachable!("it is never there")
    }

    /// Never called.
    ///
    /// # Errors
    /// None.
    pub fn allocate(&self, _len: usize) -> Result<Region, TierError> {
        match *self {}
    }

    /// Never called.
    ///
    /// # Errors
    /// None.
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

/// The client's side, of which there is none.
pub(super) enum Lane {}

impl Lane {
    pub(super) fn new(_loopback: bool) -> Result<Lane, String> {
        available().map(|()| unreachable!("it is never there"))
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
