//! A volume that accesses some of its files through other volumes.
//!
//! ```text
//!   name ── route ──> None ─────> the volume itself
//!                 └─> Some(n) ──> ways[n] ──> the same volume, with copies of its own,
//!                                             in memory or on a faster device
//! ```
//!
//! All routes of a [`RoutedVolume`] lead to the same files, unlike the parts of a
//! `testing::SplitVolume`. A write by any route changes the volume itself. Only the volume itself
//! is listed, synced and locked.

use std::fmt;
use std::sync::Arc;

use crate::error::TierError;
use crate::forward::leave_to;
use crate::tier::Tier;
use crate::volume::{LockGuard, Note, Volume, VolumeFile, VolumeReader};

/// Maps a file's name to the number of an alternative volume; `None` is the volume itself.
pub type Route = dyn Fn(&str) -> Option<usize> + Send + Sync;

/// A volume, and alternative routes to some of its files.
pub struct RoutedVolume {
    home: Arc<dyn Volume>,
    ways: Vec<Arc<dyn Volume>>,
    route: Box<Route>,
}

impl RoutedVolume {
    /// Wraps `home` with alternative routes to the same files. A renamed file must keep its route.
    pub fn new(
        home: Arc<dyn Volume>,
        ways: Vec<Arc<dyn Volume>>,
        route: Box<Route>,
    ) -> RoutedVolume {
        RoutedVolume { home, ways, route }
    }

    fn way(&self, name: &str) -> &dyn Volume {
        let way = (self.route)(name).and_then(|number| self.ways.get(number));
        &**way.unwrap_or(&self.home)
    }
}

impl fmt::Debug for RoutedVolume {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RoutedVolume({:?}, {:?})", self.home, self.ways)
    }
}

impl Volume for RoutedVolume {
    leave_to!(home: name list sync keep_room lock);

    fn place(&self, name: &str) -> String {
        self.way(name).place(name)
    }

    fn create(&self, name: &str) -> Result<Box<dyn VolumeFile>, TierError> {
        self.way(name).create(name)
    }

    fn open(&self, name: &str) -> Result<Box<dyn VolumeFile>, TierError> {
        self.way(name).open(name)
    }

    fn open_pages(&self, name: &str) -> Result<Box<dyn VolumeFile>, TierError> {
        self.way(name).open_pages(name)
    }

    fn read(&self, name: &str) -> Result<Vec<u8>, TierError> {
        self.way(name).read(name)
    }

    fn read_at(&self, name: &str, offset: u64, out: &mut [u8]) -> Result<(), TierError> {
        self.way(name).read_at(name, offset, out)
    }

    fn open_reader(&self, name: &str) -> Result<Box<dyn VolumeReader>, TierError> {
        self.way(name).open_reader(name)
    }

    fn len(&self, name: &str) -> Result<u64, TierError> {
        self.way(name).len(name)
    }

    fn exists(&self, name: &str) -> Result<bool, TierError> {
        self.way(name).exists(name)
    }

    fn open_tier(&self, name: &str) -> Result<Arc<dyn Tier>, TierError> {
        self.way(name).open_tier(name)
    }

    fn rename(&self, from: &str, to: &str) -> Result<(), TierError> {
        self.way(from).rename(from, to)
    }

    fn remove(&self, name: &str) -> Result<(), TierError> {
        self.way(name).remove(name)
    }
}
