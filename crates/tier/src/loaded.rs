//! A volume whose tiers are copies in memory, made when they are opened, for who only searches:
//! reads hand out the memory itself.

use std::sync::Arc;

use crate::buffer::HugeBytes;
use crate::dram::DramTier;
use crate::error::TierError;
use crate::forward::leave_to;
use crate::tier::Tier;
use crate::volume::{LockGuard, Note, Volume, VolumeFile, VolumeReader};

/// A volume of which each file that is opened as a tier is read into memory, on huge pages where
/// the kernel has them, and stays there as it was then. What is written to the file later does not
/// show: for files that change there is [`MemoryVolume::copied`](crate::MemoryVolume::copied),
/// whose reads copy.
#[derive(Clone, Debug)]
pub struct LoadedVolume {
    volume: Arc<dyn Volume>,
}

/// Bytes that are read at a time.
const PIECE: usize = 4 << 20;

impl LoadedVolume {
    /// Files of a volume.
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
