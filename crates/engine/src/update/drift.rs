//! Whether vectors that were inserted directly are of another kind than those that the codes are made for.
//!
//! ```text
//!   an even sample of the nodes of the last build or merge  ─┐  off      squared error of its code / squared distance to its third nearest in the sample
//!   one of the nodes that came since                        ─┴─ drifted  those that came, and are off 4 times more than 95 % of the others
//! ```
//!
//! Vectors that are far from all centroids, or much nearer to each other than centroids are, have codes that say little or nothing: an insert finds its neighbours
//! by them, and searches go by them, so that such vectors are found badly, and nothing fails. A merge trains a codebook on all that lives
//! ([`outgrown`](super::outgrown)). Vectors of a kind that was there at the last build or merge are no drift, however far off their codes are: a
//! merge has seen them.

use parking_lot::Mutex;
use serde::Serialize;
use stratann_layout::manifest::GIVEN_CODEBOOK;
use stratann_vector::{Reduction, normalize, to_f32};

use super::live::LiveIndex;
use super::overlay::Seen;
use crate::Error;
use crate::codebook::crowds;
use crate::index::Index;
use crate::progress::{Progress, Silent};
use crate::search::{Admission, Exactness, Nodes};

/// Nodes of a sample, at most, of which half came since; as few as fit into so many bytes, but no fewer than the least.
const SAMPLE: usize = 512;
const SAMPLE_BYTES: usize = 1 << 20;
const LEAST_SAMPLE: usize = 128;
/// A memory budget below this has no room for a sample: then nobody looks.
const LEAST_BUDGET: u64 = 32 << 20;
/// Nodes of each half that are there, at least: fewer say nothing.
const LEAST: usize = 32;
/// How many times more codes are off, and than those of which share of the others.
const TIMES: f64 = 4.0;
const BESIDE: f64 = 0.95;
/// The share of those that came from which on it is no chance.
const CHANCE: f64 = 0.1;
/// Vectors that came, from which on they are looked at.
const WORTH_A_LOOK: u64 = 256;
/// Vectors that came since the last look before another one, as a share of those that had come then.
const AGAIN: f64 = 0.25;

/// What a look at a sample tells of an index.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct IndexHealth {
    /// The share of all vectors that came since the last build or merge and have codes which say far less of them than codes say of the others: a merge trains
    /// new ones. `None` where nothing was looked at, or few came.
    pub drifted: Option<f64>,
}

/// Of the nodes that came, the share that drifted; `None` if too few of them are there, or of the others.
fn look(
    index: &Index,
    admission: Admission<'_>,
    progress: &dyn Progress,
) -> Result<Option<f64>, Error> {
    let (codebook, dim, metric) = (index.graph_codebook(), index.dim(), index.metric());
    let (built, all) = (index.manifest().vectors as usize, index.nodes());
    let half = (SAMPLE_BYTES / (4 * dim)).clamp(LEAST_SAMPLE, SAMPLE) / 2;
    let even = |first: usize, end: usize| {
        let count = half.min(end.saturating_sub(first));
        (0..count).map(move |i| (first + i * (end - first) / count) as u32)
    };
    let nodes: Vec<u32> = even(0, built).chain(even(built, all)).collect();
    let (mut before, mut came) = (Vec::new(), Vec::new());
    let mut floats = vec![0.0; dim];
    let mut each = |node: u32, _: u64, vector: &[u8]| {
        to_f32(index.element(), vector, &mut floats);
        if metric.reduction() == Reduction::Normalised {
            normalize(&mut floats);
        }
        match (node as usize) < built {
            true => before.extend_from_slice(&floats),
            false => came.extend_from_slice(&floats),
        }
    };
    let these = Nodes::These(&nodes);
    index.each_node(these, Exactness::Exact, admission, progress, &mut each)?;
    let count = before.len() / dim;
    if count < LEAST || came.len() / dim < LEAST {
        return Ok(None);
    }
    before.append(&mut came);
    let apart = crowds::apart(&before, dim, 1);
    let errors = codebook.squared_errors(&before, 1);
    // Equal vectors need not be told apart.
    let off = |(error, apart): (&f64, &f32)| match *apart > 0.0 {
        true => error / f64::from(*apart),
        false => 0.0,
    };
    let mut off: Vec<f64> = errors.iter().zip(&apart).map(off).collect();
    let came = off.split_off(count);
    off.sort_unstable_by(f64::total_cmp);
    let limit = TIMES * off[((count - 1) as f64 * BESIDE) as usize];
    let drifted = came.iter().filter(|&&off| off > limit).count() as f64 / came.len() as f64;
    Ok(Some(match drifted < CHANCE {
        true => 0.0,
        false => drifted,
    }))
}

impl Index {
    /// What a look at a sample of its vectors tells: up to 512 of them are read, where 256 or more were inserted directly since the last build or merge. A codebook
    /// that the build was given stays whatever comes, and nothing is looked at; nor is it under a memory budget below 32 MiB, which has no room for a sample.
    ///
    /// # Errors
    /// A read that failed or a page that is damaged.
    pub fn health(&self, progress: &dyn Progress) -> Result<IndexHealth, Error> {
        let deleted = self.overlay().map(|overlay| (overlay, overlay.now()));
        let admission = deleted.map_or_else(Admission::default, |(overlay, moment)| {
            Seen { overlay, moment }.admission()
        });
        let came = came(self);
        if !can_look(self) || came < WORTH_A_LOOK {
            return Ok(IndexHealth::default());
        }
        let drifted = look(self, admission, progress)?;
        let share = came as f64 / (self.live() as f64).max(1.0);
        Ok(IndexHealth {
            // Of those that came some may be deleted.
            drifted: drifted.map(|drifted| (share * drifted).min(1.0)),
        })
    }
}

/// What was seen at the last look at an index that takes inserts.
#[derive(Debug, Default)]
pub(super) struct Drift(Mutex<Looked>);

/// How many had come since the last build or merge, and the share of them that had drifted.
#[derive(Clone, Copy, Debug, Default)]
struct Looked {
    came: u64,
    drifted: f64,
}

impl Drift {
    /// Forgets everything: the index was merged.
    pub(super) fn clear(&self) {
        *self.0.lock() = Looked::default();
    }
}

impl LiveIndex {
    /// The share of all vectors that came since the last build or merge and are not of the kind that codes are made for, where at least `least` came, or some 256. Looks at a
    /// sample whenever a quarter more have come than at the last look.
    pub(super) fn drift(&self, least: u64) -> Option<f64> {
        self.at_a_moment(|index, seen| {
            let came = came(index);
            if !can_look(index) || came < least.min(WORTH_A_LOOK) {
                return None;
            }
            let mut looked = self.drifts().0.lock();
            // Fewer came where a merge was made since.
            let again = came < looked.came || came as f64 > (1.0 + AGAIN) * looked.came as f64;
            if looked.came == 0 || again {
                let found = look(index, seen.admission(), &Silent).unwrap_or_else(|error| {
                    // Whoever searches meets it as well.
                    tracing::warn!(index = %self.path().display(), "a look at its codes failed: {error}");
                    None
                });
                let drifted = found.unwrap_or(0.0);
                *looked = Looked { came, drifted };
            }
            Some(looked.of_all(index, seen))
        })
    }

    /// What was seen at the last look, if there was one since the last merge.
    pub(super) fn seen_health(&self) -> IndexHealth {
        self.at_a_moment(|index, seen| {
            let looked = *self.drifts().0.lock();
            let known = looked.came > 0 && came(index) >= looked.came;
            IndexHealth {
                drifted: known.then(|| looked.of_all(index, seen)),
            }
        })
    }
}

impl Looked {
    /// The share of all vectors, if those that came since the look are as those before.
    fn of_all(&self, index: &Index, seen: Seen<'_>) -> f64 {
        let live = seen.overlay.live(index.nodes()).max(1) as f64;
        (self.drifted * came(index) as f64 / live).min(1.0)
    }
}

/// Whether there are codes that a merge would train anew, and room for a sample in the budget.
fn can_look(index: &Index) -> bool {
    let own = index.manifest().writer_features & GIVEN_CODEBOOK == 0;
    let budget = index.memory().budget.unwrap_or(u64::MAX);
    !index.has_clusters() && own && budget >= LEAST_BUDGET
}

/// Nodes that came since the last build or merge.
fn came(index: &Index) -> u64 {
    (index.nodes() as u64).saturating_sub(index.manifest().vectors)
}
