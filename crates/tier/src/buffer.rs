//! Buffers of reads, and the pool that reuses them.
//!
//! ```text
//!   BufferPool (one a thread)          Block (one a read)
//!   ┌ arena: 4 KiB buffers, carved ┐   ptr, len ──> pooled buffer   -> back to the pool on drop
//!   │ from chunks of 64, at most   │            ──> slice of DRAM   -> kept alive by an Rc
//!   │ 1024 of them                 │            ──> own allocation  -> freed on drop
//!   └ free lists by size           ┘
//! ```
//!
//! All pooled buffers are aligned to 4 KiB, as `O_DIRECT` demands, and always initialised.
//!
//! **If a process forks while a device writes into a shared page**, and one of the processes then
//! writes to the page, the device's bytes can be lost. So the memory for devices is mapped such
//! that a child reads zeros there (`MADV_WIPEONFORK`, Linux 4.14; optional). `MADV_DONTFORK` is no
//! alternative: a child that drops a buffer would unmap memory that it mapped there later.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::any::Any;
use std::cell::RefCell;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::rc::Rc;

use crate::BLOCK;
use crate::error::TierError;

const CHUNK: usize = 64;
/// The most buffers of the arena (4 MiB). Further buffers are freed when they are dropped.
const ARENA: usize = 1024;
/// The most 4 KiB blocks that the pool's free larger buffers have together (1 MiB).
const KEPT: usize = 256;
const LARGEST_KEPT: usize = 64;

#[derive(Clone, Debug, Default)]
pub(crate) struct BufferPool(Rc<Shelves>);

#[derive(Default)]
struct Shelves {
    inner: RefCell<Inner>,
}

#[derive(Default)]
struct Inner {
    chunks: Vec<NonNull<u8>>,
    free: Vec<NonNull<u8>>,
    larger: Vec<Vec<NonNull<u8>>>,
    kept: usize,
}

impl fmt::Debug for Shelves {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let inner = self.inner.borrow();
        write!(
            f,
            "{} chunks, {} free",
            inner.chunks.len(),
            inner.free.len()
        )
    }
}

fn layout(blocks: usize) -> Layout {
    Layout::from_size_align(blocks * BLOCK, BLOCK)
        .expect("a buffer is far smaller than the address space")
}

fn allocate(blocks: usize) -> NonNull<u8> {
    let layout = layout(blocks);
    // SAFETY: the layout's size is not zero, because callers ask for at least one block.
    let pointer = unsafe { alloc_zeroed(layout) };
    NonNull::new(pointer).unwrap_or_else(|| handle_alloc_error(layout))
}

/// # Safety
/// `pointer` must come from [`allocate`] with the same `blocks`, and must not be used afterwards.
unsafe fn free(pointer: NonNull<u8>, blocks: usize) {
    // SAFETY: `allocate` made the pointer with this very layout, and the caller no longer uses it.
    unsafe { dealloc(pointer.as_ptr(), layout(blocks)) }
}

/// Maps zeroed memory for devices. A forked process does not share this memory.
fn map(blocks: usize) -> Result<NonNull<u8>, TierError> {
    let bytes = blocks * BLOCK;
    // SAFETY: an anonymous private mapping at the kernel's address touches no existing memory.
    let start = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            bytes,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        )
    };
    let refused = || TierError::NoMemory {
        what: "the buffer of a read".into(),
        bytes: bytes as u64,
        instead: "use fewer threads, or fewer queries in flight",
    };
    if start == libc::MAP_FAILED {
        return Err(refused());
    }
    // SAFETY: the mapping was just made, has this length, and is not used yet. The advice has an
    // effect in a forked process only. Without the advice, the mapping works too.
    unsafe { libc::madvise(start, bytes, libc::MADV_WIPEONFORK) };
    NonNull::new(start.cast()).ok_or_else(refused)
}

/// # Safety
/// `pointer` must come from [`map`] with the same `blocks`, and must not be used afterwards.
unsafe fn unmap(pointer: NonNull<u8>, blocks: usize) {
    // SAFETY: the caller gives up a mapping of this length. A forked process has the mapping too.
    unsafe { libc::munmap(pointer.as_ptr().cast(), blocks * BLOCK) };
}

/// Whether the system would map `bytes` bytes now. The memory is unmapped again, and never touched.
pub(crate) fn would_map(bytes: usize) -> bool {
    if isize::try_from(bytes).is_err() {
        return false;
    }
    let blocks = bytes.div_ceil(BLOCK).max(1);
    match map(blocks) {
        Ok(start) => {
            // SAFETY: the mapping was just made with these blocks, and only this code has its
            // address.
            unsafe { unmap(start, blocks) };
            true
        }
        Err(_) => false,
    }
}

impl BufferPool {
    /// Takes a buffer of `len` bytes, aligned to 4 KiB. It may contain bytes of an earlier use.
    pub(crate) fn take(&self, len: usize) -> Result<Block, TierError> {
        let blocks = len.div_ceil(BLOCK).max(1);
        let mut inner = self.0.inner.borrow_mut();
        let (pointer, owner) = if blocks == 1 {
            if inner.free.is_empty() && inner.chunks.len() * CHUNK < ARENA {
                let chunk = map(CHUNK)?;
                inner.chunks.push(chunk);
                for i in (0..CHUNK).rev() {
                    // SAFETY: the chunk has CHUNK * BLOCK bytes, and i < CHUNK.
                    inner.free.push(unsafe { chunk.add(i * BLOCK) });
                }
            }
            match inner.free.pop() {
                Some(pointer) => (pointer, Owner::Arena(self.0.clone())),
                None => (map(1)?, Owner::Mapped(1)),
            }
        } else if blocks <= LARGEST_KEPT {
            match inner.larger.get_mut(blocks).and_then(Vec::pop) {
                Some(pointer) => {
                    inner.kept -= blocks;
                    (pointer, Owner::Kept(self.0.clone(), blocks as u32))
                }
                None => (map(blocks)?, Owner::Kept(self.0.clone(), blocks as u32)),
            }
        } else {
            (map(blocks)?, Owner::Mapped(blocks as u32))
        };
        Ok(Block {
            pointer,
            skip: 0,
            len,
            owner,
        })
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // Every block has a reference to the pool, so no block uses a buffer of a chunk any more.
        for &chunk in &self.chunks {
            // SAFETY: chunks come from `map(CHUNK)`, and the pool, their only owner, is being
            // dropped.
            unsafe { unmap(chunk, CHUNK) };
        }
        for (blocks, list) in self.larger.iter().enumerate() {
            for &pointer in list {
                // SAFETY: list number `blocks` holds only unused buffers from `map(blocks)`.
                unsafe { unmap(pointer, blocks) };
            }
        }
    }
}

enum Owner {
    Arena(Rc<Shelves>),
    Kept(Rc<Shelves>, u32),
    Mapped(u32),
    Own(u32),
    Shared { _keeper: Rc<dyn Any> },
}

/// The bytes of a read: a pooled buffer, or a slice of memory. A block stays on its thread. The
/// next read can use the buffer as soon as the block is dropped.
pub struct Block {
    pointer: NonNull<u8>,
    skip: usize,
    len: usize,
    owner: Owner,
}

impl Block {
    /// Creates a block with a copy of `bytes`, aligned to 4 KiB.
    pub fn copy_of(bytes: &[u8]) -> Block {
        let blocks = bytes.len().div_ceil(BLOCK).max(1);
        let pointer = allocate(blocks);
        // SAFETY: the new allocation has at least bytes.len() bytes and overlaps nothing.
        unsafe {
            pointer
                .as_ptr()
                .copy_from_nonoverlapping(bytes.as_ptr(), bytes.len())
        };
        Block {
            pointer,
            skip: 0,
            len: bytes.len(),
            owner: Owner::Own(blocks as u32),
        }
    }

    /// Creates a block of a slice of memory that `keeper` keeps alive.
    ///
    /// # Safety
    /// While `keeper` lives, the `len` bytes at `pointer` must be initialised, readable and
    /// unchanged.
    pub(crate) unsafe fn shared(pointer: NonNull<u8>, len: usize, keeper: Rc<dyn Any>) -> Block {
        Block {
            pointer,
            skip: 0,
            len,
            owner: Owner::Shared { _keeper: keeper },
        }
    }

    pub(crate) fn part(mut self, skip: u32, len: u32) -> Block {
        let skip = (skip as usize).min(self.len);
        self.len = (len as usize).min(self.len - skip);
        self.skip += skip;
        self
    }

    /// Writes bytes into this block, which must contain `at..at + bytes.len()`.
    pub(crate) fn fill(&mut self, at: usize, bytes: &[u8]) {
        assert!(at <= self.len && bytes.len() <= self.len - at);
        // SAFETY: `at` and the length were checked against the `len` bytes of the block, which is
        // borrowed exclusively. `target` refuses shared memory. `bytes` is a borrow of other
        // memory.
        unsafe {
            self.target()
                .add(self.skip + at)
                .copy_from_nonoverlapping(bytes.as_ptr(), bytes.len())
        };
    }

    /// The address to which a device writes. Before the write ends, no code may read the block.
    pub(crate) fn target(&mut self) -> *mut u8 {
        assert!(!matches!(self.owner, Owner::Shared { .. }));
        self.pointer.as_ptr()
    }
}

impl Deref for Block {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        // SAFETY: the owner keeps the initialised bytes at `pointer` alive as long as the block.
        // Arenas and own allocations are zeroed when made, and the caller of `shared` promised
        // initialised bytes. The block was made with at least `skip + len` bytes, since `part` only
        // shrinks the range. While a device writes to the buffer, the block is in the slab of
        // pending reads, where no code dereferences it.
        unsafe { std::slice::from_raw_parts(self.pointer.as_ptr().add(self.skip), self.len) }
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        match &self.owner {
            Owner::Arena(shelves) => shelves.inner.borrow_mut().free.push(self.pointer),
            Owner::Kept(shelves, blocks) => {
                let blocks = *blocks as usize;
                let mut inner = shelves.inner.borrow_mut();
                if inner.kept + blocks <= KEPT {
                    if inner.larger.len() <= blocks {
                        inner.larger.resize_with(blocks + 1, Vec::new);
                    }
                    inner.larger[blocks].push(self.pointer);
                    inner.kept += blocks;
                } else {
                    // SAFETY: the buffer came from `map(blocks)`, and this block was its only user.
                    unsafe { unmap(self.pointer, blocks) };
                }
            }
            Owner::Mapped(blocks) => {
                // SAFETY: the buffer came from `map(blocks)`, and this block was its only user.
                unsafe { unmap(self.pointer, *blocks as usize) };
            }
            Owner::Own(blocks) => {
                // SAFETY: the buffer came from `allocate(blocks)`, for this block alone.
                unsafe { free(self.pointer, *blocks as usize) };
            }
            Owner::Shared { .. } => {}
        }
    }
}

impl fmt::Debug for Block {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let owner = match self.owner {
            Owner::Arena(_) | Owner::Kept(..) => "pooled",
            Owner::Own(_) | Owner::Mapped(_) => "own",
            Owner::Shared { .. } => "shared",
        };
        write!(f, "Block({} bytes, {owner})", self.len)
    }
}

/// A large region of zeroed bytes, for random reads. The region uses huge pages, because with pages
/// of 4 KiB every access would miss the TLB. The system allocates a page at its first write.
pub struct HugeBytes {
    pointer: NonNull<u8>,
    len: usize,
    mapped: usize,
}

/// The size of a huge page. A smaller region gets no huge page.
const HUGE: usize = 2 << 20;

impl HugeBytes {
    /// Creates a region of `len` zero bytes.
    pub fn zeroed(len: usize) -> Result<HugeBytes, TierError> {
        HugeBytes::with_room(len, len)
    }

    /// Only the first `used` of the `len` zero bytes get huge pages. At the first write to a huge
    /// page, the system allocates all of its memory.
    pub(crate) fn with_room(used: usize, len: usize) -> Result<HugeBytes, TierError> {
        let refused = || TierError::NoMemory {
            what: "codes, pages or copies of an index".into(),
            bytes: len as u64,
            instead: "lower the memory budget",
        };
        if len == 0 {
            return Ok(HugeBytes {
                pointer: NonNull::dangling(),
                len: 0,
                mapped: 0,
            });
        }
        // Extra bytes let a region of huge pages begin at a multiple of their size. The code below
        // unmaps the surplus.
        let slack = if len >= HUGE { HUGE } else { 0 };
        let total = len
            .checked_next_multiple_of(BLOCK)
            .and_then(|n| n.checked_add(slack));
        let total = total.ok_or_else(refused)?;
        // SAFETY: an anonymous private mapping at the kernel's address touches no existing memory.
        let start = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                total,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        if start == libc::MAP_FAILED {
            return Err(refused());
        }
        let start = start as usize;
        let aligned = if slack > 0 {
            start.next_multiple_of(HUGE)
        } else {
            start
        };
        let mapped = total - slack;
        let (head, tail) = (aligned - start, start + total - (aligned + mapped));
        // SAFETY: head and tail are page-aligned parts of the mapping just made, and no code uses
        // them. The rest, [aligned, aligned + mapped), stays mapped. The advice is for a part of
        // this rest, and changes no contents.
        unsafe {
            if head > 0 {
                libc::munmap(start as *mut _, head);
            }
            if tail > 0 {
                libc::munmap((aligned + mapped) as *mut _, tail);
            }
            let huge = used.min(len) / HUGE * HUGE;
            if huge > 0 {
                libc::madvise(aligned as *mut _, huge, libc::MADV_HUGEPAGE);
            }
        }
        let pointer = NonNull::new(aligned as *mut u8).expect("mmap gives no null pointer");
        Ok(HugeBytes {
            pointer,
            len,
            mapped,
        })
    }

    /// Creates a region with a copy of `bytes`.
    pub fn copy_of(bytes: &[u8]) -> Result<HugeBytes, TierError> {
        let mut region = HugeBytes::zeroed(bytes.len())?;
        region.copy_from_slice(bytes);
        Ok(region)
    }

    /// The bytes of the region, without a borrow. Code may write through the pointer while `self`
    /// lives, if no other code accesses the bytes.
    pub(crate) fn raw(&self) -> NonNull<[u8]> {
        NonNull::slice_from_raw_parts(self.pointer, self.len)
    }
}

impl Deref for HugeBytes {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        // SAFETY: the mapping has at least `len` zero-initialised bytes and lives as long as self.
        unsafe { std::slice::from_raw_parts(self.pointer.as_ptr(), self.len) }
    }
}

impl DerefMut for HugeBytes {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`; the mapping is writable, and self is borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.pointer.as_ptr(), self.len) }
    }
}

impl Drop for HugeBytes {
    fn drop(&mut self) {
        if self.mapped > 0 {
            // SAFETY: exactly this mapping was made in `zeroed`, and no borrow of it outlives self.
            unsafe { libc::munmap(self.pointer.as_ptr().cast(), self.mapped) };
        }
    }
}

impl fmt::Debug for HugeBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HugeBytes({} bytes)", self.len)
    }
}

// SAFETY: HugeBytes owns its mapping like a Box<[u8]>, so the other thread becomes the only owner.
unsafe impl Send for HugeBytes {}
// SAFETY: a shared reference gives read access only. The one exception is `raw`, and each user of
// `raw` proves that its accesses are exclusive.
unsafe impl Sync for HugeBytes {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_aligned_reused_and_bounded() {
        let pool = BufferPool::default();
        let first = pool.take(4096).unwrap();
        let address = first.as_ptr() as usize;
        assert_eq!(address % BLOCK, 0);
        drop(first);
        assert_eq!(
            pool.take(4096).unwrap().as_ptr() as usize,
            address,
            "the pool did not reuse the buffer that was used last"
        );

        let many: Vec<Block> = (0..ARENA + 10).map(|_| pool.take(4096).unwrap()).collect();
        assert!(
            many.iter()
                .all(|b| (b.as_ptr() as usize).is_multiple_of(BLOCK))
        );
        assert_eq!(
            many.iter()
                .filter(|b| matches!(b.owner, Owner::Mapped(_)))
                .count(),
            10
        );
        drop(many);
        let inner = pool.0.inner.borrow();
        assert_eq!(inner.free.len(), ARENA);
        assert_eq!(inner.chunks.len() * CHUNK, ARENA);
    }

    #[test]
    fn larger_buffers_are_kept_up_to_a_bound() {
        let pool = BufferPool::default();
        let many: Vec<Block> = (0..100).map(|_| pool.take(16 * BLOCK).unwrap()).collect();
        drop(many);
        assert_eq!(pool.0.inner.borrow().kept, KEPT);
        let block = pool.take(16 * BLOCK - 1).unwrap();
        assert_eq!(block.len(), 16 * BLOCK - 1);
        assert_eq!(pool.0.inner.borrow().kept, KEPT - 16);
        drop(pool);
        assert_eq!(
            block.len(),
            16 * BLOCK - 1,
            "a block became invalid when its pool was dropped"
        );
        let _huge = BufferPool::default().take(1000 * BLOCK).unwrap();
    }

    #[test]
    fn huge_bytes_are_zero_and_writable() {
        for len in [0, 1, 4096, HUGE - 1, HUGE, 3 * HUGE + 5] {
            let mut region = HugeBytes::zeroed(len).unwrap();
            assert_eq!(region.len(), len);
            assert!(region.iter().all(|&b| b == 0));
            region.fill(7);
            assert!(region.iter().all(|&b| b == 7));
        }
        assert_eq!(&*HugeBytes::copy_of(b"abc").unwrap(), b"abc");
        assert!(HugeBytes::zeroed(usize::MAX).is_err());
        assert!(HugeBytes::zeroed(1 << 60).is_err());
    }
}
