//! Measures the reads of a probe in a grouped index, as a multiple of the reads after the build, at
//! most once for each checkpoint.

use parking_lot::Mutex;

use super::live::LiveIndex;

#[derive(Debug, Default)]
pub(super) struct Scattered(Mutex<Option<Looked>>);

#[derive(Clone, Copy, Debug)]
struct Looked {
    checkpoint: u64,
    times: Option<f64>,
}

impl LiveIndex {
    pub(super) fn known_scatter(&self) -> Option<f64> {
        self.at_a_moment(|index, _| {
            let looked = *self.scattered().0.lock();
            let checkpoint = index.manifest().checkpoint;
            looked.filter(|known| known.checkpoint == checkpoint)?.times
        })
    }

    /// The first call after each checkpoint measures a sample of clusters. `None` if no vectors
    /// were inserted since the last build or merge, or if the reads are unknown.
    pub(super) fn scatter(&self) -> Option<f64> {
        self.at_a_moment(|index, _| {
            let clusters = index.clusters()?;
            let checkpoint = index.manifest().checkpoint;
            let mut looked = self.scattered().0.lock();
            if let Some(known) = looked.filter(|known| known.checkpoint == checkpoint) {
                return known.times;
            }
            let times = clusters.scatter(&**index.volume()).unwrap_or_else(|error| {
                // Searches will report the same read error.
                tracing::warn!(index = %self.path().display(), "the reads of each probe could not be measured: {error}");
                None
            });
            *looked = Some(Looked { checkpoint, times });
            times
        })
    }
}
