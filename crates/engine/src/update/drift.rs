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
//!
//! ```text
//!   is a merge due?  ─┐                                           ┌─> searches look further (search/further.rs)
//!   an insert        ─┤
//!   a checkpoint     ─┴─ the process that takes inserts looks ─> Drift ─> MANIFEST ─> Drift of each process that opens the checkpoint
//! ```
//!
//! **Which processes know it.** A checkpoint names the share that the last look told, so each process knows it that opens the index. A look at the first search
//! instead would cost each process the reads of a sample, also a command with one query. A small budget has no room for a sample. Vectors that came since the
//! checkpoint are in the log. A reader has them in memory, compares them as they are, and misses none.
//!
//! A checkpoint names no share where no code is off, so that earlier versions go on with such an index. Where an earlier version took the inserts, or a small
//! budget kept the process from looking, searches learn of the drift from [`Index::health`] alone.

use parking_lot::Mutex;
use serde::Serialize;
use stratann_layout::DriftFacts;
use stratann_layout::manifest::{GIVEN_CODEBOOK, Manifest};
use stratann_tier::is_worker;
use stratann_vector::{Reduction, normalize, to_f32};

use super::due::{Due, MergeWhen};
use super::growth::{LooksAt, looks_at};
use super::live::LiveIndex;
use super::overlay::Seen;
use crate::Error;
use crate::codebook::crowds;
use crate::index::Index;
use crate::progress::{Progress, Silent};
use crate::room::Queued;
use crate::search::{Admission, Exactness, Nodes};
use crate::stats::Stats;

/// Nodes of a sample, at most, of which half came since; as few as fit into so many bytes, but no fewer than the least.
const SAMPLE: usize = 512;
const SAMPLE_BYTES: usize = 1 << 20;
const LEAST_SAMPLE: usize = 128;
/// What a look takes of each node of a sample beside its vector, which is there twice: its code, errors, distances.
const BESIDE_VECTOR: u64 = 256;
/// Less memory is for inserts alone, where an index is open for changes: whoever opens it to read looks then.
const LEAST_BUDGET: u64 = 16 << 20;
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
    /// Why nothing was looked at, though enough came. `None` where something was, or few came.
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

/// Nodes of a sample of an index, and room for them and for reading them; `None` where its memory budget has no room for the fewest that say something.
fn room(index: &Index) -> Option<(usize, Queued)> {
    let each = 8 * index.dim() as u64 + BESIDE_VECTOR;
    let most = (SAMPLE_BYTES / (4 * index.dim())).clamp(LEAST_SAMPLE, SAMPLE);
    let wanted = [most, LEAST_SAMPLE];
    wanted.into_iter().find_map(|nodes| {
        let queued = index.room_beside_reading(nodes as u64 * each)?;
        Some((nodes, queued))
    })
}

/// Of the nodes that came, the share that drifted; `None` if too few of them are there, or of the others.
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
    /// that the build was given stays whatever comes, and nothing is looked at. A sample takes up to 2 MiB, or 1 KiB for each dimension if that is more, of the
    /// part of a memory budget that is for queries in flight. A budget without room for that has a sample of 128, or none. Searches of this index go by it from then on.
    ///
    /// # Errors
    /// A read that failed or a page that is damaged.
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
                "every search compares all of its few vectors, whatever their codes say",
            ));
        }
        if !has_own_codebook(self) {
            return Ok(IndexHealth::not_looked_at(
                "the codebook that the build was given stays, whatever comes",
            ));
        }
        let Some(room) = room(self) else {
            return Ok(IndexHealth::not_looked_at(
                "the memory budget has no room for a sample",
            ));
        };
        let Some(drifted) = look(self, room, admission, progress)? else {
            return Ok(IndexHealth::not_looked_at(
                "too few vectors are there of the last build or merge, or of those that came since",
            ));
        };
        self.drift().note(came, drifted);
        let share = came as f64 / (self.live() as f64).max(1.0);
        Ok(IndexHealth {
            // Of those that came some may be deleted.
            drifted: Some((share * drifted).min(1.0)),
            not_looked_at: None,
        })
    }

    /// The first of the nodes that came since the last build or merge, if so many of these are known to have drifted that a merge is due. `live` vectors are found.
    pub(crate) fn drifted_from(&self, live: u64) -> Option<u32> {
        let drifted = self.drift().last().of_all(self, live);
        let first = self.manifest().vectors.try_into().ok();
        first.filter(|_| drifted >= MergeWhen::default().drifted)
    }

    /// What [`stats`](Index::stats) says, with the [`health`](Index::health) that a look at a sample tells: of vectors that drifted `trouble` tells as well. Beside it
    /// how the look went.
    pub fn stats_and_health(&self, progress: &dyn Progress) -> (Stats, Result<IndexHealth, Error>) {
        let (mut stats, looked) = (self.stats(), self.health(progress));
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

/// What was seen at the last look at the vectors that came since the last build or merge.
#[derive(Debug, Default)]
pub(crate) struct Drift {
    /// Held during a look. Searches never wait for it: a look may wait for their room and their threads.
    looking: Mutex<()>,
    looked: Mutex<Looked>,
}

/// How many had come, 0 if nobody has looked, and how many of a thousand of them had drifted.
#[derive(Clone, Copy, Debug, Default)]
struct Looked {
    came: u64,
    thousandths: u32,
}

impl Drift {
    /// What a checkpoint says of it.
    pub(crate) fn of(manifest: &Manifest) -> Self {
        let facts = manifest.placement.and_then(|placement| placement.drift);
        let looked = facts.map(|DriftFacts { came, thousandths }| Looked { came, thousandths });
        Self {
            looked: Mutex::new(looked.unwrap_or_default()),
            ..Self::default()
        }
    }

    /// What a checkpoint is to say of it: nothing where no code is off.
    pub(super) fn facts(&self) -> Option<DriftFacts> {
        let Looked { came, thousandths } = self.last();
        (thousandths > 0).then_some(DriftFacts { came, thousandths })
    }

    fn last(&self) -> Looked {
        *self.looked.lock()
    }

    /// Takes what a look has told when so many had come.
    fn note(&self, came: u64, drifted: f64) {
        let thousandths = (1_000.0 * drifted).round().clamp(0.0, 1_000.0) as u32;
        *self.looked.lock() = Looked { came, thousandths };
    }
}

impl LiveIndex {
    /// The share of all vectors that came since the last build or merge and are not of the kind that codes are made for, where at least `least` came, or some 256. Looks at a
    /// sample whenever a quarter more have come than at the last look, but not under a memory budget below 16 MiB.
    pub(super) fn drift(&self, least: u64) -> Option<f64> {
        self.at_a_moment(|index, seen| {
            let came = came(index);
            if index.has_clusters()
                || !has_own_codebook(index)
                || came < least.min(WORTH_A_LOOK)
            {
                return None;
            }
            // Inserts have the rest of the budget then.
            let budget = index.memory().budget.unwrap_or(u64::MAX);
            let room = room(index).filter(|_| budget >= LEAST_BUDGET)?;
            let drift = index.drift();
            let _one = drift.looking.lock();
            let looked = drift.last();
            if looked.came == 0 || came as f64 > (1.0 + AGAIN) * looked.came as f64 {
                let found = look(index, room, seen.admission(), &Silent).unwrap_or_else(|error| {
                    // Whoever searches meets it as well. What was known before is as true as it was.
                    tracing::warn!(index = %self.path().display(), "a look at its codes failed: {error}");
                    Some(looked.share())
                });
                drift.note(came, found.unwrap_or(0.0));
            }
            let live = seen.overlay.live(index.nodes()) as u64;
            Some(drift.last().of_all(index, live))
        })
    }

    /// Looks if enough vectors came since the last look. A thread that searches does not look: the sample may have to be read by that thread.
    pub(super) fn look_if_many_came(&self) {
        if !is_worker() {
            self.drift(WORTH_A_LOOK);
        }
    }

    /// What was seen at the last look, if there was one since the last merge.
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

impl Looked {
    /// The share of those that had come.
    fn share(self) -> f64 {
        f64::from(self.thousandths) / 1_000.0
    }

    /// The share of all vectors, of which `live` are found, if those that came since the look are as those before.
    fn of_all(self, index: &Index, live: u64) -> f64 {
        (self.share() * came(index) as f64 / live.max(1) as f64).min(1.0)
    }
}

/// Whether a merge would train its codes anew.
fn has_own_codebook(index: &Index) -> bool {
    index.manifest().writer_features & GIVEN_CODEBOOK == 0
}

/// Nodes that came since the last build or merge.
fn came(index: &Index) -> u64 {
    (index.nodes() as u64).saturating_sub(index.manifest().vectors)
}
