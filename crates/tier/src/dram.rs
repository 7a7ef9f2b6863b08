//! A tier of bytes in this process's memory.

use std::sync::Arc;

use crate::buffer::HugeBytes;
use crate::error::TierError;
use crate::executor::Thread;
use crate::memory::{LINE, PromptQueue, Region, Slices};
use crate::tier::{ReadQueue, Tier};

/// Bytes in memory. Reads are slices without copies, after one round of prefetching.
#[derive(Clone)]
pub struct DramTier {
    name: Arc<str>,
    bytes: Held,
}

#[derive(Clone)]
enum Held {
    Shared(Arc<[u8]>),
    Pages(Arc<HugeBytes>),
}

impl DramTier {
    /// Makes a tier from a `Vec<u8>` (copied once) or an `Arc<[u8]>` (shared).
    pub fn new(bytes: impl Into<Arc<[u8]>>) -> DramTier {
        DramTier::named("DRAM", bytes)
    }

    /// Like [`new`](DramTier::new), with a name for messages.
    pub fn named(name: &str, bytes: impl Into<Arc<[u8]>>) -> DramTier {
        DramTier {
            name: name.into(),
            bytes: Held::Shared(bytes.into()),
        }
    }

    /// Makes a tier from a region of memory, without a copy.
    pub fn of_pages(name: &str, bytes: HugeBytes) -> DramTier {
        DramTier {
            name: name.into(),
            bytes: Held::Pages(Arc::new(bytes)),
        }
    }
}

impl std::fmt::Debug for DramTier {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "DramTier({}, {} bytes)",
            self.name,
            self.bytes.bytes().len()
        )
    }
}

// SAFETY: the contents of an Arc have a fixed address until the last Arc is dropped, and so has the
// mapping of `HugeBytes`. No code has mutable access to either: `Arc::get_mut` fails while this
// handle exists, and the owner that could write through `HugeBytes::raw` has given the bytes up to
// this tier.
unsafe impl Region for Held {
    fn bytes(&self) -> &[u8] {
        match self {
            Held::Shared(bytes) => bytes,
            Held::Pages(bytes) => bytes,
        }
    }
}

impl Tier for DramTier {
    fn name(&self) -> &str {
        &self.name
    }

    fn len(&self) -> u64 {
        self.bytes.bytes().len() as u64
    }

    fn granularity(&self) -> u32 {
        LINE as u32
    }

    fn alignment(&self) -> u32 {
        1
    }

    fn queue(&self, _thread: &Thread) -> Result<Box<dyn ReadQueue>, TierError> {
        Ok(Box::new(PromptQueue::new(Slices::new(
            &self.name,
            self.bytes.clone(),
        ))))
    }
}
