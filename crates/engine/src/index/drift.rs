//! Estimates how many of the vectors that were inserted since the last build or merge have drifted.

use parking_lot::Mutex;
use stratann_layout::{DriftFacts, Manifest};

use super::Index;

#[derive(Debug, Default)]
pub(crate) struct Drift {
    /// Locked while a sample is examined. Searches never wait for this lock, because the thread
    /// that has the lock waits for searches.
    pub(crate) looking: Mutex<()>,
    looked: Mutex<Looked>,
}

/// The result of a sample. `came` vectors were inserted before it. The share of drifted vectors is
/// in thousandths.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Looked {
    pub(crate) came: u64,
    thousandths: u32,
}

impl Drift {
    pub(crate) fn of(manifest: &Manifest) -> Self {
        let facts = manifest.placement.and_then(|placement| placement.drift);
        let looked = facts.map(|DriftFacts { came, thousandths }| Looked { came, thousandths });
        Self {
            looked: Mutex::new(looked.unwrap_or_default()),
            ..Self::default()
        }
    }

    /// `None` if no vector has drifted.
    pub(crate) fn facts(&self) -> Option<DriftFacts> {
        let Looked { came, thousandths } = self.last();
        (thousandths > 0).then_some(DriftFacts { came, thousandths })
    }

    pub(crate) fn last(&self) -> Looked {
        *self.looked.lock()
    }

    pub(crate) fn note(&self, came: u64, drifted: f64) {
        let thousandths = (1_000.0 * drifted).round().clamp(0.0, 1_000.0) as u32;
        *self.looked.lock() = Looked { came, thousandths };
    }
}

impl Looked {
    pub(crate) fn share(self) -> f64 {
        f64::from(self.thousandths) / 1_000.0
    }

    /// The share of drifted vectors among all `live` vectors. Vectors that were inserted after the
    /// sample are assumed to drift as often.
    pub(crate) fn of_all(self, index: &Index, live: u64) -> f64 {
        (self.share() * came(index) as f64 / live.max(1) as f64).min(1.0)
    }
}

pub(crate) fn came(index: &Index) -> u64 {
    (index.nodes() as u64).saturating_sub(index.manifest().vectors)
}
