//! Detects drift: vectors from direct inserts that are unlike the vectors on which the codes were
//! trained.
//!
//! ```text
//!   an even sample of the nodes of the last build or merge  ─┐
//!   an even sample of the nodes that were inserted since    ─┴─> error ratio of each code
//!
//!   error ratio   squared error of a code / squared distance from its vector to the third
//!                 nearest vector of the sample
//!   drifted       an inserted node has drifted if its error ratio is above 4 times a reference
//!                 value. 95 % of the older nodes have error ratios up to the reference value
//! ```
//!
//! If vectors are far from all centroids, or much nearer to each other than the centroids are,
//! codes hardly distinguish them. Then searches often miss these vectors, without an error. A merge
//! trains another codebook ([`outgrown`](super::outgrown)). If inserted vectors resemble the older
//! vectors, no vector has drifted: another codebook would be no better for them.
//!
//! ```text
//!   is a merge due?  ─┐                                      ┌─> searches examine more candidates
//!   an insert        ─┤                                      │   (search/further.rs)
//!   a checkpoint     ─┴─ the process that makes inserts ─> Drift ─> MANIFEST ─> Drift of each
//!                        examines a sample                   process that opens the index
//! ```
//!
//! **Which processes know the drift.** A checkpoint records the drifted share, since a sample
//! before the first search of each process would be too expensive. Vectors inserted later are in
//! the log, and a process that opens the index for reading compares them exactly.
//!
//! A checkpoint without drift records no share, so that earlier versions can open the index. The
//! share is also missing after inserts of an earlier version, or under a small budget. Then
//! searches know the drift only after a call of [`Index::health`].

use serde::Serialize;
use stratann_layout::manifest::GIVEN_CODEBOOK;
use stratann_tier::is_worker;
use stratann_vector::{Reduction, normalize, to_f32};

use super::due::Due;
use super::live::LiveIndex;
use super::stats::Stats;
use crate::codebook::crowds;
use crate::index::Index;
use crate::index::drift::came;
use crate::index::growth::{LooksAt, looks_at};
use crate::overlay::{Admission, Seen};
use crate::progress::{Progress, Silent};
use crate::room::Queued;
use crate::search::{Exactness, Nodes};
use crate::{Error, MergeWhen};

/// The maximum number of nodes of a sample, half of them inserted since the last build or merge.
/// The vectors of a sample take at most `SAMPLE_BYTES` bytes, unless the sample has only
/// `LEAST_SAMPLE` nodes.
const SAMPLE: usize = 512;
const SAMPLE_BYTES: usize = 1 << 20;
const LEAST_SAMPLE: usize = 128;
/// Bytes for the code, errors and distances of each node of a sample.
const BESIDE_VECTOR: u64 = 256;
/// Below this budget, an index open for changes uses all memory for inserts, and only
/// [`Index::health`] takes a sample.
const LEAST_BUDGET: u64 = 16 << 20;
/// If either half of a sample has fewer nodes than this number, the sample has no result.
const LEAST: usize = 32;
/// An inserted vector has drifted if the error ratio of its code is above `TIMES` times a reference
/// ratio. The share `BESIDE` of the older vectors has ratios up to the reference ratio.
const TIMES: f64 = 4.0;
const BESIDE: f64 = 0.95;
/// Below this share of drifted nodes, the sample counts as a sample without drift.
const CHANCE: f64 = 0.1;
/// The minimum number of inserted vectors for which a sample is worth its reads.
const WORTH_A_LOOK: u64 = 256;
/// The growth of the number of inserted vectors after which another sample is taken.
const AGAIN: f64 = 0.25;

/// The result of examining a sample of an index.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct IndexHealth {
    /// The share of vectors that were inserted since the last build or merge, and have far less
    /// accurate codes than other vectors. A merge trains new codes. `None` if no sample was
    /// examined.
    pub drifted: Option<f64>,
    /// The reason why no sample was examined although enough vectors were inserted.
    #[serde(skip)]
    pub not_looked_at: Option<&'static str>,
}

impl IndexHealth {
    fn not_looked_at(why: &'static str) -> Self {
        Self {
            drifted: None,
            not_looked_at: Some(why),
        }
    }
}

/// The number of nodes of a sample, with a reservation of its memory. `None` if the budget is too
/// small for `LEAST_SAMPLE` nodes.
fn room(index: &Index) -> Option<(usize, Queued)> {
    let each = 8 * index.dim() as u64 + BESIDE_VECTOR;
    let most = (SAMPLE_BYTES / (4 * index.dim())).clamp(LEAST_SAMPLE, SAMPLE);
    let wanted = [most, LEAST_SAMPLE];
    wanted.into_iter().find_map(|nodes| {
        let queued = index.room_beside_reading(nodes as u64 * each)?;
        Some((nodes, queued))
    })
}

/// The share of the inserted nodes of a sample that have drifted. `None` if too few inserted or
/// older nodes are live.
fn look(
    index: &Index,
    (sample, queued): (usize, Queued),
    admission: Admission<'_>,
    progress: &dyn Progress,
) -> Result<Option<f64>, Error> {
    let (codebook, dim, metric) = (index.graph_codebook(), index.dim(), index.metric());
    let (built, all) = (index.manifest().vectors as usize, index.nodes());
    let half = sample / 2;
    let room = queued.wait(progress)?;
    let even = |first: usize, end: usize| {
        let count = half.min(end.saturating_sub(first));
        (0..count).map(move |i| (first + i * (end - first) / count) as u32)
    };
    let nodes: Vec<u32> = even(0, built).chain(even(built, all)).collect();
    let mut before = Vec::with_capacity(2 * half * dim);
    let mut came = Vec::with_capacity(half * dim);
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
    index.each_node_in(
        &room,
        these,
        Exactness::Exact,
        admission,
        progress,
        &mut each,
    )?;
    let count = before.len() / dim;
    if count < LEAST || came.len() / dim < LEAST {
        return Ok(None);
    }
    before.append(&mut came);
    drop(came);
    let apart = crowds::apart(&before, dim, 1);
    let errors = codebook.squared_errors(&before, 1);
    // No code needs to distinguish equal vectors.
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
    /// Examines up to 512 vectors for drift, if 256 or more were inserted directly since the last
    /// build or merge. With a given codebook, no sample is examined, since a merge would not train
    /// another codebook.
    ///
    /// A sample takes memory from the budget for queries in flight: up to 2 MiB, or 1 KiB for each
    /// dimension if this is more. If memory is short, the sample has 128 vectors, or none is taken.
    /// Later searches use the result.
    ///
    /// # Errors
    /// A read fails, or a page is damaged.
    pub fn health(&self, progress: &dyn Progress) -> Result<IndexHealth, Error> {
        let deleted = self.overlay().map(|overlay| (overlay, overlay.now()));
        let admission = deleted.map_or_else(Admission::default, |(overlay, moment)| {
            Seen { overlay, moment }.admission()
        });
        let came = came(self);
        if self.has_clusters() || came < WORTH_A_LOOK {
            return Ok(IndexHealth::default());
        }
        if looks_at(self, self.live() as u64) == LooksAt::All {
            return Ok(IndexHealth::not_looked_at(
                "the index has few vectors, so every search compares all of them without codes",
            ));
        }
        if !has_own_codebook(self) {
            return Ok(IndexHealth::not_looked_at(
                "the codebook was given to the build, so a merge keeps it",
            ));
        }
        let Some(room) = room(self) else {
            return Ok(IndexHealth::not_looked_at(
                "the memory budget is too small for a sample",
            ));
        };
        let Some(drifted) = look(self, room, admission, progress)? else {
            return Ok(IndexHealth::not_looked_at(
                "too few vectors of the last build or merge are live, or too few live vectors were inserted since",
            ));
        };
        self.drift().note(came, drifted);
        let share = came as f64 / (self.live() as f64).max(1.0);
        Ok(IndexHealth {
            // Some of the inserted vectors may be deleted.
            drifted: Some((share * drifted).min(1.0)),
            not_looked_at: None,
        })
    }

    /// The first node inserted since the last build or merge, if enough inserted nodes have drifted
    /// for a merge.
    pub(crate) fn drifted_from(&self, live: u64) -> Option<u32> {
        let drifted = self.drift().last().of_all(self, live);
        let first = self.manifest().vectors.try_into().ok();
        first.filter(|_| drifted >= MergeWhen::default().drifted)
    }

    /// The [`stats`](Index::stats) with the result of [`health`](Index::health). The `trouble` of
    /// these stats also reports drift. The second value is the result of `health`.
    pub fn stats_and_health(&self, progress: &dyn Progress) -> (Stats, Result<IndexHealth, Error>) {
        let (mut stats, looked) = (self.stats(), self.health(progress));
        let drifted = looked.as_ref().ok().and_then(|health| health.drifted);
        // If this measurement fails by a read error, searches report the same error.
        let scattered = || self.clusters()?.scatter(&**self.volume()).ok()?;
        stats.due = self.due(|| drifted, scattered).map(|due| due.to_string());
        if let Ok(health) = &looked {
            stats.health = *health;
            let drifted = health.drifted;
            if let Some(share) = drifted.filter(|&share| share >= MergeWhen::default().drifted) {
                let due = Due::Drifted(share);
                stats.trouble = Some(format!("{due}, until a merge (compact the index)"));
            }
        }
        (stats, looked)
    }
}

impl LiveIndex {
    /// The share of drifted vectors. `None` if fewer than `least` or 256 vectors were inserted, or
    /// if the budget is below 16 MiB. Another sample is examined when the number of inserted
    /// vectors has grown by a quarter.
    pub(super) fn drift(&self, least: u64) -> Option<f64> {
        self.at_a_moment(|index, seen| {
            let came = came(index);
            if index.has_clusters()
                || !has_own_codebook(index)
                || came < least.min(WORTH_A_LOOK)
            {
                return None;
            }
            // Under a small budget, inserts need the memory of a sample.
            let budget = index.memory().budget.unwrap_or(u64::MAX);
            let room = room(index).filter(|_| budget >= LEAST_BUDGET)?;
            let drift = index.drift();
            let _one = drift.looking.lock();
            let looked = drift.last();
            if looked.came == 0 || came as f64 > (1.0 + AGAIN) * looked.came as f64 {
                let found = look(index, room, seen.admission(), &Silent).unwrap_or_else(|error| {
                    // Searches will report the same read error.
                    tracing::warn!(index = %self.path().display(), "drift could not be measured: {error}");
                    Some(looked.share())
                });
                drift.note(came, found.unwrap_or(0.0));
            }
            let live = seen.overlay.live(index.nodes()) as u64;
            Some(drift.last().of_all(index, live))
        })
    }

    /// On a search thread, the call does nothing, since the reads of a sample may need this thread.
    pub(super) fn look_if_many_came(&self) {
        if !is_worker() {
            self.drift(WORTH_A_LOOK);
        }
    }

    pub(super) fn seen_health(&self) -> IndexHealth {
        self.at_a_moment(|index, seen| {
            let looked = index.drift().last();
            let live = seen.overlay.live(index.nodes()) as u64;
            IndexHealth {
                drifted: (looked.came > 0).then(|| looked.of_all(index, live)),
                not_looked_at: None,
            }
        })
    }
}

fn has_own_codebook(index: &Index) -> bool {
    index.manifest().writer_features & GIVEN_CODEBOOK == 0
}
