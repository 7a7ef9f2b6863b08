//! A volume whose tiers are copies of files in memory, for programs that only search.

use std::sync::Arc;

use crate::buffer::HugeBytes;
use crate::dram::DramTier;
use crate::error::TierError;
use crate::forward::leave_to;
use crate::tier::Tier;
use crate::volume::{LockGuard, Note, Volume, VolumeFile, VolumeReader};

/// A volume that reads each file into memory when it is opened as a tier. Later writes are not
/// visible, unlike in [`MemoryVolume::copied`](crate::MemoryVolume::copied).
#[derive(Clone, Debug)]
pub struct LoadedVolume {
    volume: Arc<dyn Volume>,
}

const PIECE: usize = 4 << 20;

impl LoadedVolume {
    /// Wraps a volume.
    pub fn new(volume: Arc<dyn Volume>) -> LoadedVolume {
        LoadedVolume { volume }
    }
}

impl Volume for LoadedVolume {
    leave_to!(volume: name place create open open_pages read read_at open_reader len exists rename remove list sync keep_room lock);

    fn open_tier(&self, name: &str) -> Result<Arc<dyn Tier>, TierError> {
        let reader = self.volume.open_reader(name)?;
        let mut bytes = HugeBytes::zeroed(reader.size()? as usize)?;
        let mut offset = 0;
        for piece in bytes.chunks_mut(PIECE) {
            reader.read_at(offset, piece)?;
            offset += piece.len() as u64;
        }
        let name = format!("{} (in memory)", self.volume.place(name));
        Ok(Arc::new(DramTier::of_pages(&name, bytes)))
    }
}
