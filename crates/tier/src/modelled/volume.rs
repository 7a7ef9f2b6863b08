//! A volume whose tiers answer as a device does. What is not read through a queue goes at the speed of the volume under it.

use std::path::Path;
use std::sync::Arc;

use super::{Device, ModelledTier};
use crate::error::TierError;
use crate::tier::Tier;
use crate::volume::{LockGuard, Note, Volume, VolumeFile, VolumeReader};

/// A volume on a modelled device.
#[derive(Clone, Debug)]
pub struct ModelledVolume {
    inner: Arc<dyn Volume>,
    device: Device,
}

impl ModelledVolume {
    /// Has a volume's tiers answer as a device does, which is shared with whatever else is on it.
    pub fn new(inner: Arc<dyn Volume>, device: Device) -> ModelledVolume {
        ModelledVolume { inner, device }
    }
}

impl Volume for ModelledVolume {
    fn name(&self) -> String {
        self.inner.name()
    }

    fn place(&self, name: &str) -> String {
        self.inner.place(name)
    }

    fn create(&self, name: &str) -> Result<Box<dyn VolumeFile>, TierError> {
        self.inner.create(name)
    }

    fn open(&self, name: &str) -> Result<Box<dyn VolumeFile>, TierError> {
        self.inner.open(name)
    }

    fn open_pages(&self, name: &str) -> Result<Box<dyn VolumeFile>, TierError> {
        self.inner.open_pages(name)
    }

    fn read(&self, name: &str) -> Result<Vec<u8>, TierError> {
        self.inner.read(name)
    }

    fn read_at(&self, name: &str, offset: u64, out: &mut [u8]) -> Result<(), TierError> {
        self.inner.read_at(name, offset, out)
    }

    fn open_reader(&self, name: &str) -> Result<Box<dyn VolumeReader>, TierError> {
        self.inner.open_reader(name)
    }

    fn len(&self, name: &str) -> Result<u64, TierError> {
        self.inner.len(name)
    }

    fn exists(&self, name: &str) -> Result<bool, TierError> {
        self.inner.exists(name)
    }

    fn open_tier(&self, name: &str) -> Result<Arc<dyn Tier>, TierError> {
        let tier = self.inner.open_tier(name)?;
        Ok(Arc::new(ModelledTier::new(tier, self.device.clone())))
    }

    fn rename(&self, from: &str, to: &str) -> Result<(), TierError> {
        self.inner.rename(from, to)
    }

    fn remove(&self, name: &str) -> Result<(), TierError> {
        self.inner.remove(name)
    }

    fn list(&self) -> Result<Vec<String>, TierError> {
        self.inner.list()
    }

    fn sync(&self) -> Result<(), TierError> {
        self.inner.sync()
    }

    fn lock(&self) -> Result<LockGuard, TierError> {
        self.inner.lock()
    }

    fn check_held(&self) -> Result<(), TierError> {
        self.inner.check_held()
    }

    fn check_path(&self, path: &Path) -> Result<(), TierError> {
        self.inner.check_path(path)
    }

    fn note(&self) -> Option<Arc<Note>> {
        self.inner.note()
    }
}
