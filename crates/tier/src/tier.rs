//! The seam: a place for bytes, and a query's queue of reads from it.
//!
//! ```text
//!   query ── submit(tag, offset, len) ──> queue ──> ring, thread pool, DRAM ...
//!         <── completion(tag, bytes) ────       in whatever order they come in
//! ```
//!
//! A search owns one [`ReadQueue`] for each place it reads from. It submits as many reads as it
//! likes, may compute meanwhile, and takes completions as they come. It never blocks: where nothing
//! has come in yet, it awaits [`next`] and its thread serves other queries.

use std::fmt::Debug;
use std::future::poll_fn;
use std::task::{Context, Poll};

use crate::buffer::Block;
use crate::error::TierError;
use crate::executor::Thread;

/// A read to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// The caller's own name for the read; comes back in the [`Completion`]. Need not be unique.
    pub tag: u64,
    /// First byte; a multiple of the tier's [`alignment`](Tier::alignment).
    pub offset: u64,
    /// Bytes to read; a multiple of the tier's [`alignment`](Tier::alignment), not zero.
    pub len: u32,
}

/// A read that is done.
#[derive(Debug)]
pub struct Completion {
    /// The tag of its [`Request`].
    pub tag: u64,
    /// The bytes, all `len` of them; or why there are none.
    pub result: Result<Block, TierError>,
}

/// A place for bytes.
///
/// A new implementation proves itself with `testing::conformance` (feature `testing`).
pub trait Tier: Send + Sync + Debug {
    /// What to call it in messages: a file's path, or a region's name.
    fn name(&self) -> &str;

    /// Bytes in it.
    fn len(&self) -> u64;

    /// True if it has no bytes.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes that the device moves at least for any read: 64 for memory, 4096 for an SSD.
    fn granularity(&self) -> u32;

    /// What offsets and lengths of reads must be multiples of. Memory has a granularity, but
    /// demands no alignment.
    fn alignment(&self) -> u32 {
        self.granularity()
    }

    /// Has the reads that begin from now on go to the file which has the name now, and has the same
    /// bytes: a copy may have taken the name ([`own`](fn@crate::own)). Queues that are open go on
    /// with it as well. Nothing is to be done for a tier that does not read the file.
    ///
    /// # Errors
    /// The file cannot be opened: reads go on as before.
    fn reopen(&self) -> Result<(), TierError> {
        Ok(())
    }

    /// Opens one query's queue of reads from it. Queues belong to the thread that they were opened
    /// on.
    fn queue(&self, thread: &Thread) -> Result<Box<dyn ReadQueue>, TierError>;
}

/// One query's reads from a tier: many reads in flight, completions in any order.
///
/// A read is *in flight* from [`submit`](ReadQueue::submit) until its completion has been taken.
pub trait ReadQueue {
    /// Queues a read. Never blocks, and allocates nothing in the steady state.
    ///
    /// A read that is out of range or misaligned is refused here; what the device says comes with
    /// the completion.
    fn submit(&mut self, request: Request) -> Result<(), TierError>;

    /// A hint: start what is queued now, because the caller is about to compute. A thread with
    /// enough reads at the device may ignore it and start them together with others. Reads start
    /// without it once the task awaits.
    fn flush(&mut self);

    /// Reads submitted whose completion has not been taken.
    fn in_flight(&self) -> usize;

    /// Takes a completion that has already come in; never waits.
    fn try_next(&mut self) -> Option<Completion>;

    /// A hint: the task goes on only when so many completions have come in (one, unless it says so
    /// before it waits). A thread that serves no other task then sleeps once for all of them; for a
    /// single one, which will not be long, it stays awake a while.
    fn need(&mut self, completions: usize) {
        let _ = completions;
    }

    /// Takes a completion, or arranges for the task to be woken when one has come in.
    ///
    /// # Panics
    /// If nothing is in flight: the task would sleep for ever.
    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Completion>;

    /// Forgets all reads in flight, so that the queue can serve another query. Their buffers stay
    /// alive until the device is done with them.
    fn reset(&mut self);
}

/// Waits for the next completion of a queue.
///
/// # Panics
/// If nothing is in flight.
pub async fn next(queue: &mut dyn ReadQueue) -> Completion {
    poll_fn(|cx| queue.poll_next(cx)).await
}

/// Waits for the next completion of any of several queues; `None` if nothing is in flight in any.
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

/// The check that every tier makes before it takes a read.
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
