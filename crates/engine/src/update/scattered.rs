//! How many times the reads of a build a probe takes, in an index of groups that took vectors in place; looked at once a checkpoint.

use parking_lot::Mutex;

use super::live::LiveIndex;

/// What was seen at the last look.
#[derive(Debug, Default)]
pub(super) struct Scattered(Mutex<Option<Looked>>);

/// Of which checkpoint, and how many times the reads.
#[derive(Clone, Copy, Debug)]
struct Looked {
    checkpoint: u64,
    times: Option<f64>,
}

impl LiveIndex {
    /// How many times the reads of a build a probe of a cluster takes, by a sample that is read at the first call of each checkpoint. `None` where nothing came since the
    /// last build or merge, or nobody knows.
    pub(super) fn scatter(&self) -> Option<f64> {
        self.at_a_moment(|index, _| {
            let clusters = index.clusters()?;
            let checkpoint = index.manifest().checkpoint;
            let mut looked = self.scattered().0.lock();
            if let Some(known) = looked.filter(|known| known.checkpoint == checkpoint) {
                return known.times;
            }
            let times = clusters.scatter(&**index.volume()).unwrap_or_else(|error| {
                // Whoever searches meets it as well.
                tracing::warn!(index = %self.path().display(), "a look at its clusters failed: {error}");
                None
            });
            *looked = Some(Looked { checkpoint, times });
            times
        })
    }
}
