//! A file mapped into memory: of `/dev/shm`, of a file system with DAX, of a tmpfs that is bound to
//! a NUMA node, or one that the page cache may keep.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use memmap2::{Advice, Mmap};

use crate::error::TierError;
use crate::executor::Thread;
use crate::memory::{LINE, PromptQueue, Region, Slices};
use crate::tier::{ReadQueue, Tier};

/// A file mapped for reading, handed out without copies after one round of prefetching.
///
/// Where the file is not in memory a read blocks its thread until the page has come, and what the
/// page cache holds is not counted against a memory budget: for files on an SSD use
/// [`FileTier`](crate::FileTier). Nobody may change or truncate the file while it is open;
/// truncation kills the process with `SIGBUS`, as with any mapping, and so does an error of the
/// medium.
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

    /// Maps a file that is open.
    pub(crate) fn of(file: &File, name: String) -> Result<MappedTier, TierError> {
        let failed = |action| {
            let name = name.clone();
            move |source| TierError::io(action, name, 0, 0, source)
        };
        let len = file.metadata().map_err(failed("open"))?.len();
        let map = if len == 0 {
            None // The kernel maps no empty files.
        } else {
            // SAFETY: the mapping is private to this value and only read. That no other process
            // changes the file is the documented condition of this tier; an index never changes its
            // files in place.
            let map = unsafe { Mmap::map(file) }.map_err(failed("map"))?;
            // A hint; read-ahead would bring neighbours that nobody asked for.
            let _ = map.advise(Advice::Random);
            Some(map)
        };
        Ok(MappedTier {
            name: name.into(),
            map: Arc::new(Map(map)),
        })
    }
}

// SAFETY: a mapping has a fixed address until it is dropped with the last Arc, is never written
// through, and MappedTier's documented condition is that nobody else writes to the file.
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
