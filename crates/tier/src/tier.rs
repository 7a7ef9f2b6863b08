//! The interface of a tier: a place for bytes, and a query's queue of reads from it.
//!
//! ```text
//!   query ── submit(tag, offset, len) ──> queue ──> ring, thread pool, DRAM ...
//!         <── completion(tag, bytes) ────       in the order of their arrival
//! ```
//!
//! A search owns one [`ReadQueue`] for each place that it reads. The search submits reads, may
//! compute meanwhile, and takes completions in the order of their arrival. A search never blocks:
//! while it awaits [`next`], its thread runs other queries.

use std::fmt::Debug;
use std::future::poll_fn;
use std::task::{Context, Poll};

use crate::buffer::Block;
use crate::error::TierError;
use crate::executor::Thread;

/// A read to be performed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// The caller's tag, which the [`Completion`] returns. It need not be unique.
    pub tag: u64,
    /// The offset of the first byte; a multiple of the tier's [`alignment`](Tier::alignment).
    pub offset: u64,
    /// The number of bytes; a multiple of the tier's [`alignment`](Tier::alignment), not zero.
    pub len: u32,
}

/// A finished read.
#[derive(Debug)]
pub struct Completion {
    /// The tag of the [`Request`].
    pub tag: u64,
    /// The `len` bytes of the read, or the error.
    pub result: Result<Block, TierError>,
}

/// A place for bytes. `testing::conformance` (feature `testing`) tests an implementation.
pub trait Tier: Send + Sync + Debug {
    /// The name in messages: a file's path, or the name of a region of memory.
    fn name(&self) -> &str;

    /// The length in bytes.
    fn len(&self) -> u64;

    /// Whether the length is 0.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The fewest bytes that the device transfers for any read: 64 for memory, 4096 for an SSD.
    fn granularity(&self) -> u32;

    /// Offsets and lengths of reads must be multiples of this number of bytes. It is 1 in memory.
    fn alignment(&self) -> u32 {
        self.granularity()
    }

    /// Makes all later reads, also of open queues, use the file that now has this tier's name
    /// ([`own`](fn@crate::own)). That file has the same bytes.
    ///
    /// # Errors
    /// Fails if the file cannot be opened. Reads then continue from the old file.
    fn reopen(&self) -> Result<(), TierError> {
        Ok(())
    }

    /// Opens a queue of reads for one query, on the thread that opens it.
    fn queue(&self, thread: &Thread) -> Result<Box<dyn ReadQueue>, TierError>;
}

/// A query's reads from a tier. A read is *in flight* until its completion is taken.
pub trait ReadQueue {
    /// Queues a read, without blocking.
    ///
    /// # Errors
    /// Fails if the read is out of range or misaligned.
    fn submit(&mut self, request: Request) -> Result<(), TierError>;

    /// A hint that the queued reads should start now, because the caller is about to compute.
    fn flush(&mut self);

    /// The number of submitted reads whose completion has not been taken.
    fn in_flight(&self) -> usize;

    /// Takes a completion that has arrived already; never waits.
    fn try_next(&mut self) -> Option<Completion>;

    /// A hint that the task needs this number of completions before it continues.
    fn need(&mut self, completions: usize) {
        let _ = completions;
    }

    /// Takes a completion, or arranges that the task is woken when one arrives.
    ///
    /// # Panics
    /// Panics if no read is in flight, because the task would never be woken.
    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Completion>;

    /// Discards all reads in flight. Their buffers stay allocated until the device has finished.
    fn reset(&mut self);
}

/// Waits for the next completion of a queue.
///
/// # Panics
/// Panics if no read is in flight.
pub async fn next(queue: &mut dyn ReadQueue) -> Completion {
    poll_fn(|cx| queue.poll_next(cx)).await
}

/// Waits for the next completion of any queue; `None` if no read is in flight.
pub async fn next_of(queues: &mut [Box<dyn ReadQueue>]) -> Option<Completion> {
    poll_fn(|cx| {
        let mut waits = false;
        for queue in queues.iter_mut().filter(|queue| queue.in_flight() > 0) {
            if let Poll::Ready(completion) = queue.poll_next(cx) {
                return Poll::Ready(Some(completion));
            }
            waits = true;
        }
        match waits {
            true => Poll::Pending,
            false => Poll::Ready(None),
        }
    })
    .await
}

/// Refuses a read that is out of range or misaligned. Every tier calls this function before it
/// accepts a read.
pub(crate) fn check(
    place: &str,
    size: u64,
    alignment: u32,
    request: Request,
) -> Result<(), TierError> {
    let (offset, len) = (request.offset, u64::from(request.len));
    let alignment64 = u64::from(alignment);
    if len == 0 || !len.is_multiple_of(alignment64) || !offset.is_multiple_of(alignment64) {
        return Err(TierError::Misaligned {
            place: place.to_owned(),
            offset,
            len,
            alignment,
        });
    }
    if offset.checked_add(len).is_none_or(|end| end > size) {
        return Err(TierError::OutOfRange {
            place: place.to_owned(),
            offset,
            len,
            size,
        });
    }
    Ok(())
}
