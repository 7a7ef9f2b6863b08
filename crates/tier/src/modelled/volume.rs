//! A volume whose tiers answer like a device. Reads without a queue are not delayed.

use std::sync::Arc;

use super::{Device, ModelledTier};
use crate::error::TierError;
use crate::forward::leave_to;
use crate::tier::Tier;
use crate::volume::{LockGuard, Note, Volume, VolumeFile, VolumeReader};

/// A volume on a modelled device.
#[derive(Clone, Debug)]
pub struct ModelledVolume {
    inner: Arc<dyn Volume>,
    device: Device,
}

impl ModelledVolume {
    /// Makes a volume's tiers answer like `device`, whose bandwidth they share.
    pub fn new(inner: Arc<dyn Volume>, device: Device) -> ModelledVolume {
        ModelledVolume { inner, device }
    }
}

impl Volume for ModelledVolume {
    leave_to!(inner: name place create open open_pages read read_at open_reader len exists rename remove list sync keep_room lock);

    fn open_tier(&self, name: &str) -> Result<Arc<dyn Tier>, TierError> {
        let tier = self.inner.open_tier(name)?;
        Ok(Arc::new(ModelledTier::new(tier, self.device.clone())))
    }
}
