//! How many of the vectors that were inserted since the last build or merge have drifted.

use parking_lot::Mutex;
use stratann_layout::{DriftFacts, Manifest};

use super::Index;

/// The result of the last sample of the vectors inserted since the last build or merge.
#[derive(Debug, Default)]
pub(crate) struct Drift {
    /// Locked while a sample is examined. Searches never wait for this lock, since the examination
    /// may wait for memory and threads of searches.
    pub(crate) looking: Mutex<()>,
    looked: Mutex<Looked>,
}

/// The result of a sample: the number of vectors inserted before the sample (`came`), and the share
/// of these vectors that had drifted, in thousandths. If no sample was taken, `came` is 0.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Looked {
    pub(crate) came: u64,
    thousandths: u32,
}

impl Drift {
    /// The drift that a checkpoint recorded.
    pub(crate) fn of(manifest: &Manifest) -> Self {
        let facts = manifest.placement.and_then(|placement| placement.drift);
        let looked = facts.map(|DriftFacts { came, thousandths }| Looked { came, thousandths });
        Self {
            looked: Mutex::new(looked.unwrap_or_default()),
            ..Self::default()
        }
    }

    /// The facts that a checkpoint records. `None` if no vector has drifted.
    pub(crate) fn facts(&self) -> Option<DriftFacts> {
        let Looked { came, thousandths } = self.last();
        (thousandths > 0).then_some(DriftFacts { came, thousandths })
    }

    pub(crate) fn last(&self) -> Looked {
        *self.looked.lock()
    }

    /// Stores the result of a sample that was taken after `came` inserts.
    pub(crate) fn note(&self, came: u64, drifted: f64) {
        let thousandths = (1_000.0 * drifted).round().clamp(0.0, 1_000.0) as u32;
        *self.looked.lock() = Looked { came, thousandths };
    }
}

impl Looked {
    /// The drifted share of the vectors that were inserted before the sample.
    pub(crate) fn share(self) -> f64 {
        f64::from(self.thousandths) / 1_000.0
    }

    /// The number of drifted vectors as a share of all `live` vectors. Vectors inserted since the
    /// sample are assumed to drift as often as the vectors inserted before it.
    pub(crate) fn of_all(self, index: &Index, live: u64) -> f64 {
        (self.share() * came(index) as f64 / live.max(1) as f64).min(1.0)
    }
}

/// The number of nodes inserted since the last build or merge.
pub(crate) fn came(index: &Index) -> u64 {
    (index.nodes() as u64).saturating_sub(index.manifest().vectors)
}
