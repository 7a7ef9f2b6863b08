//! The queue of tiers that answer at once. A load that misses the caches takes as long as a few
//! hundred instructions. So a submitted read prefetches its cache lines, the first poll lets other
//! queries run, and the second poll returns the bytes in place.

use std::any::Any;
use std::collections::VecDeque;
use std::ptr::NonNull;
use std::rc::Rc;
use std::task::{Context, Poll};

use crate::buffer::Block;
use crate::error::TierError;
use crate::tier::{Completion, ReadQueue, Request, check};

pub(crate) const LINE: usize = 64;
/// The bytes of a read that are prefetched: the processor's own prefetcher loads later lines.
const AHEAD: usize = 4096;

pub(crate) trait Source {
    fn name(&self) -> &str;
    /// The length. If the read ends beyond it, it is looked up again, because the file may have
    /// grown.
    fn size_for(&self, request: Request) -> u64;
    fn alignment(&self) -> u32;
    fn prepare(&self, request: Request);
    fn fetch(&self, request: Request) -> Result<Block, TierError>;
}

pub(crate) struct PromptQueue<S> {
    source: S,
    waiting: VecDeque<Request>,
    ripe: usize,
}

impl<S: Source> PromptQueue<S> {
    pub(crate) fn new(source: S) -> PromptQueue<S> {
        PromptQueue {
            source,
            waiting: VecDeque::new(),
            ripe: 0,
        }
    }

    fn deliver(&mut self) -> Option<Completion> {
        if self.ripe == 0 {
            return None;
        }
        self.ripe -= 1;
        let request = self.waiting.pop_front()?;
        Some(Completion {
            tag: request.tag,
            result: self.source.fetch(request),
        })
    }
}

impl<S: Source> ReadQueue for PromptQueue<S> {
    fn submit(&mut self, request: Request) -> Result<(), TierError> {
        let source = &self.source;
        check(
            source.name(),
            source.size_for(request),
            source.alignment(),
            request,
        )?;
        source.prepare(request);
        self.waiting.push_back(request);
        Ok(())
    }

    fn flush(&mut self) {}

    fn in_flight(&self) -> usize {
        self.waiting.len()
    }

    fn try_next(&mut self) -> Option<Completion> {
        let completion = self.deliver();
        if completion.is_none() {
            self.ripe = self.waiting.len();
        }
        completion
    }

    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Completion> {
        if let Some(completion) = self.deliver() {
            return Poll::Ready(completion);
        }
        assert!(
            !self.waiting.is_empty(),
            "poll_next on a queue with no read in flight would wait for ever"
        );
        self.ripe = self.waiting.len();
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    fn reset(&mut self) {
        self.waiting.clear();
        self.ripe = 0;
    }
}

/// Memory that neither moves nor changes during its lifetime.
///
/// # Safety
/// `bytes` must return the same slice each time, valid and unchanged until self is dropped, even if
/// self is moved.
pub(crate) unsafe trait Region: 'static {
    fn bytes(&self) -> &[u8];
}

/// Returns slices of a region without copying. `R` is a handle to the region, for example an `Arc`.
pub(crate) struct Slices<R> {
    name: Rc<str>,
    /// An `Rc` for each queue, so that reference counts of blocks are not in shared memory.
    region: Rc<R>,
    start: NonNull<u8>,
    len: usize,
}

impl<R: Region> Slices<R> {
    pub(crate) fn new(name: &str, region: R) -> Slices<R> {
        let region = Rc::new(region);
        let bytes = region.bytes();
        let (start, len) = (NonNull::from(bytes).cast(), bytes.len());
        Slices {
            name: name.into(),
            region,
            start,
            len,
        }
    }
}

impl<R: Region> Source for Slices<R> {
    fn name(&self) -> &str {
        &self.name
    }

    fn size_for(&self, _: Request) -> u64 {
        self.len as u64
    }

    fn alignment(&self) -> u32 {
        1
    }

    fn prepare(&self, request: Request) {
        let first = self.start.as_ptr().wrapping_add(request.offset as usize);
        prefetch_all(first, request.len as usize);
    }

    fn fetch(&self, request: Request) -> Result<Block, TierError> {
        let keeper: Rc<dyn Any> = self.region.clone();
        // The range is checked again, because memory safety depends on this check.
        check(&self.name, self.len as u64, 1, request)?;
        // SAFETY: offset + len <= self.len, so the slice lies in the region; by its contract, the
        // region is valid and unchanged while the keeper lives.
        Ok(unsafe {
            let pointer = self.start.add(request.offset as usize);
            Block::shared(pointer, request.len as usize, keeper)
        })
    }
}

pub(crate) fn prefetch_all(first: *const u8, len: usize) {
    for line in (0..len.min(AHEAD)).step_by(LINE) {
        prefetch(first.wrapping_add(line));
    }
}

#[cfg(target_arch = "x86_64")]
fn prefetch(line: *const u8) {
    use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
    // SAFETY: SSE is part of x86_64; a prefetch is a hint that never faults, whatever the address.
    unsafe { _mm_prefetch::<_MM_HINT_T0>(line.cast()) };
}

#[cfg(target_arch = "aarch64")]
fn prefetch(line: *const u8) {
    // SAFETY: PRFM is a hint that never faults, whatever the address, and changes no register.
    unsafe {
        std::arch::asm!("prfm pldl1keep, [{line}]", line = in(reg) line, options(nostack, readonly, preserves_flags));
    }
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn prefetch(_line: *const u8) {}
