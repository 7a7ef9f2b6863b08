//! Bytes in this process' memory.

use std::sync::Arc;

use crate::error::TierError;
use crate::executor::Thread;
use crate::memory::{LINE, PromptQueue, Region, Slices};
use crate::tier::{ReadQueue, Tier};

/// Bytes in memory, handed out without copies after one round of prefetching.
#[derive(Clone)]
pub struct DramTier {
    name: Arc<str>,
    bytes: Arc<[u8]>,
}

impl DramTier {
    /// A tier of these bytes: a `Vec<u8>` (copied once) or an `Arc<[u8]>` (shared).
    pub fn new(bytes: impl Into<Arc<[u8]>>) -> DramTier {
        DramTier::named("DRAM", bytes)
    }

    /// The same with a name for messages.
    pub fn named(name: &str, bytes: impl Into<Arc<[u8]>>) -> DramTier {
        DramTier {
            name: name.into(),
            bytes: bytes.into(),
        }
    }
}

impl std::fmt::Debug for DramTier {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "DramTier({}, {} bytes)", self.name, self.bytes.len())
    }
}

// SAFETY: the Arc's slice has a fixed address until the last Arc is gone, and nobody has mutable access to it:
// `Arc::get_mut` fails while this handle exists.
unsafe impl Region for Arc<[u8]> {
    fn bytes(&self) -> &[u8] {
        self
    }
}

impl Tier for DramTier {
    fn name(&self) -> &str {
        &self.name
    }

    fn len(&self) -> u64 {
        self.bytes.len() as u64
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
