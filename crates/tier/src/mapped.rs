//! A tier of a file that is mapped into memory: in `/dev/shm` or a tmpfs, on a file system with
//! DAX, or in the page cache.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use memmap2::{Advice, Mmap};

use crate::error::TierError;
use crate::executor::Thread;
use crate::memory::{LINE, PromptQueue, Region, Slices};
use crate::tier::{ReadQueue, Tier};

/// A file mapped for reading, without copies. If a page is not in memory, a read blocks its thread.
///
/// No process may change or truncate the file while it is open: truncation, or an error of the
/// medium, kills the process with `SIGBUS`.
#[derive(Clone, Debug)]
pub struct MappedTier {
    name: Arc<str>,
    map: Arc<Map>,
}

#[derive(Debug)]
struct Map(Option<Mmap>);

impl Map {
    fn bytes(&self) -> &[u8] {
        self.0.as_deref().unwrap_or_default()
    }
}

impl MappedTier {
    /// Maps a file.
    pub fn open(path: impl AsRef<Path>) -> Result<MappedTier, TierError> {
        let path = path.as_ref();
        let name = path.display().to_string();
        let failed = |source| TierError::io("open", name.as_str(), 0, 0, source);
        let file = File::open(path).map_err(failed)?;
        Self::of(&file, name)
    }

    pub(crate) fn of(file: &File, name: String) -> Result<MappedTier, TierError> {
        let failed = |action| {
            let name = name.clone();
            move |source| TierError::io(action, name, 0, 0, source)
        };
        let len = file.metadata().map_err(failed("open"))?.len();
        let map = if len == 0 {
            None // The kernel maps no empty files.
        } else {
            // SAFETY: the mapping is private to this value and only read. The documented condition
            // of this tier is that no process changes the file while it is open.
            let map = unsafe { Mmap::map(file) }.map_err(failed("map"))?;
            // Read-ahead would load neighbouring pages that are not needed.
            let _ = map.advise(Advice::Random);
            Some(map)
        };
        Ok(MappedTier {
            name: name.into(),
            map: Arc::new(Map(map)),
        })
    }
}

// SAFETY: a mapping has a fixed address until it is dropped with the last Arc, and is never written
// through. MappedTier's documented condition is that no process changes the file while it is open.
unsafe impl Region for Arc<Map> {
    fn bytes(&self) -> &[u8] {
        Map::bytes(self)
    }
}

impl Tier for MappedTier {
    fn name(&self) -> &str {
        &self.name
    }

    fn len(&self) -> u64 {
        self.map.bytes().len() as u64
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
            self.map.clone(),
        ))))
    }
}
