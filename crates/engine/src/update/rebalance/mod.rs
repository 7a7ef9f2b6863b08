//! New vectors go into the clusters on storage, where they belong, and clusters stay in balance: SPFresh's in-place update (SOSP 2023), as a
//! checkpoint.
//!
//! ```text
//!   entries.rs what clusters hold on storage
//!   local.rs   which clusters a vector joins, which are split or merged, what is reassigned then
//!   write.rs   the clusters that changed, written behind those that are there; heads, tables
//!   here       one after the other; what it takes in memory; MANIFEST
//!
//!   replicated-…             extents of the build
//!   replicated-000005-0001   extents of clusters that changed since, a segment for each such checkpoint
//!   addressed-000005-0001    new vectors, where they stand by themselves
//!   amended-…                which extents count: of each cluster the last
//!   navigation-…             heads, if any came, moved or went
//!   placement-…              ids that came since the build, and ids that went
//! ```
//!
//! SPFresh writes a posting's last block anew with each append, and swaps its entry in a table in memory. Here the vectors of many inserts
//! wait in the log and in the fresh graph, where searches find them, and a checkpoint writes each cluster that they changed once, whole,
//! into a new file. In place means that the index is not built anew; nothing is ever written over: a crash at any point leaves the checkpoint
//! before it, other processes go on to search what they have open, and verify has files with lengths and checksums to hold on to.
//!
//! Clusters that change often leave garbage in the segments before. A segment goes, and the extents in it that count are written once more, when
//! at most half of its bytes count, or no more than this checkpoint writes. So there are few of them, by the logarithm of what came since
//! the build. The files of the build stay until the whole index is built anew, whatever counts of them: when two fifths of all files of clusters
//! and vectors are of clusters that were written anew since, a merge is due ([`Due::Garbage`](crate::Due::Garbage)).
//!
//! A vector that was deleted stays in clusters that nobody writes, and its id among those that do not count, as after direct inserts; a merge
//! of the whole index, which is due when a tenth is deleted, builds it anew.

mod entries;
mod local;
#[cfg(test)]
mod tests;
mod write;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use stratann_layout::{ClusterFacts, ClusterShape, ExtentKind};
use stratann_tier::Volume;

use self::entries::Entry;
use self::local::Changes;
use self::write::Writing;
use super::live::CompactReport;
use super::merge::{Inputs, bytes_in};
use crate::Error;
use crate::build;
use crate::cluster::AmendedHeads;
use crate::durable::{Checkpoint, Committed, begin_state};
use crate::graph::Space;
use crate::index::Index;
use crate::progress::{Progress, Stage};
use crate::stores::ClusterStores;

/// New vectors between two such checkpoints: this share of those on storage, as OdinANN §4.1 has it of merges, and no fewer than [`LEAST_NEW`]. Since
/// each joins several clusters, even fewer would change most of them.
const SHARE: u64 = 16;
const LEAST_NEW: u64 = 1024;

/// New vectors that are worth a checkpoint of an index that has so many.
pub(super) fn due_after(nodes: u64) -> u64 {
    (nodes / SHARE).max(LEAST_NEW)
}

/// Bytes of memory that a checkpoint takes beside the index that is open and the vectors that wait, about.
#[derive(Clone, Copy, Debug)]
pub(super) struct Needs {
    /// Whatever waits.
    fixed: u64,
    /// More for each vector that waits.
    each: u64,
}

/// How many clusters will be split follows from the vectors, and is not known beforehand: room for twice the members.
const SPLIT: u64 = 2;
/// Bytes that a head takes where the graph over them is built anew: its neighbours twice, with room for more while it is built.
const GRAPH: u64 = 512;
/// What an allocation takes beyond what was asked for, with the counts of who shares it.
const ALLOCATION: u64 = 32;
/// Buffers, and rows that are kept for the next cluster.
const BESIDE: u64 = 12 << 20;

impl Needs {
    /// Those of a checkpoint of an index, of which so many records do not count.
    pub(super) fn of(
        index: &Index,
        stores: &ClusterStores,
        facts: &ClusterFacts,
        dead: u64,
    ) -> Self {
        let space = Space::new(index.metric(), index.element(), index.dim());
        let row = (index.dim() * index.element().size()) as u64;
        let entry = size_of::<Entry>() as u64;
        // Vectors that stand by themselves are not held.
        let held = match stores.kind() {
            ExtentKind::Replicated => entry + row + ALLOCATION,
            ExtentKind::Grouped | ExtentKind::Postings => entry,
        };
        let copies = facts.members.div_ceil(index.manifest().vectors.max(1));
        let replicas = u64::from(facts.replicas);
        // Their graph may be built anew beside the old one, with points of its own.
        let head = row + 2 * space.point_bytes() as u64 + GRAPH + 2 * ALLOCATION;
        let heads = u64::from(stores.clusters()) * head;
        // The heads that change, as a file, and of the index that comes, with its tables.
        let tables = 3 * stores.metadata_bytes();
        Self {
            fixed: BESIDE
                + heads
                + tables
                + 4 * stores.nodes()
                + 64 * dead
                + 4 * stores.largest_read() as u64,
            // Rows as they were taken, and where they go; and their share of what is split, and of the heads that this brings.
            each: 2 * (row + ALLOCATION + entry)
                + 2 * replicas * entry
                + SPLIT * (copies + 1) * held,
        }
    }

    /// With so many vectors that wait.
    pub(super) fn bytes(self, waiting: u64) -> u64 {
        self.fixed.saturating_add(self.each.saturating_mul(waiting))
    }

    /// How many vectors may wait until a checkpoint has just the room that there is, if each of them takes so much before.
    pub(super) fn most(self, room: u64, waits: u64) -> u64 {
        room.saturating_sub(self.fixed) / (self.each + waits)
    }
}

/// Writes the next checkpoint of a cluster index and commits it, once `ready` has had a look at it. What became of the commit is told: from
/// there on nothing fails.
///
/// # Errors
/// More vectors than numbers, what is there cannot be read or is damaged, a full disk, what `ready` says, an interruption: the index is what it
/// was.
pub(super) fn rebalance(
    volume: &Arc<dyn Volume>,
    index: &Index,
    stores: &ClusterStores,
    inputs: &Inputs<'_>,
    ready: build::Ready<'_>,
    progress: &dyn Progress,
) -> Result<(CompactReport, Committed), Error> {
    let start = Instant::now();
    let bytes_before = bytes_in(&**volume)?;
    let mut rows = Vec::with_capacity(inputs.fresh.len());
    let mut attributes = HashMap::new();
    inputs.fresh.for_each_in(inputs.epoch, |id, vector, row| {
        rows.push((id, Box::<[u8]>::from(vector)));
        attributes.extend(row.map(|row| (id, row)));
    });
    let first = stores.nodes() as u32;
    let nodes = u64::from(first) + rows.len() as u64;
    if nodes >= u64::from(u32::MAX) {
        let expected = "fewer than 4294967295 with all that were deleted: compact the index";
        return Err(Error::call("vectors", nodes, expected));
    }
    let mut shape = ClusterShape {
        element: index.element(),
        dim: index.dim(),
        // Ids are no numbers of vectors here.
        id_bytes: ClusterShape::id_bytes(inputs.next_id, false),
        clusters: stores.clusters(),
        vectors: nodes as u32,
    };
    let heads = heads_of(index, stores, &rows);
    let mut changes = Changes::new(index, stores, heads, inputs.removed, &shape)?;
    let stage = Stage::begin(progress, "finding clusters", rows.len() as u64);
    let new = changes.insert(rows, first, progress)?;
    changes.settle(progress)?;
    let heads = &mut changes.heads;
    if heads.have_changed() && !heads.are_found(new.iter().map(|new| &*new.vector)) {
        heads.build_anew(index.path(), index.manifest().seed, progress)?;
    }
    drop(stage);
    shape.clusters = changes.heads.count();
    let counts = changes.counts;

    let mut checkpoint = Checkpoint::begin(&**volume, true)?;
    let writing = Writing {
        volume: &**volume,
        index,
        stores,
        shape,
        checkpoint: &checkpoint,
        progress,
    };
    let (amended, files) = writing.all(changes, &new, first, inputs)?;
    let columns = writing.columns(&new, &attributes, inputs)?;
    let mut manifest = writing.manifest(&amended, files, inputs);
    if let Some(columns) = columns {
        columns.name_in(&mut manifest);
    }
    begin_state(&mut manifest)?;
    ready(&manifest)?;
    let committed = checkpoint.commit(&manifest)?;
    drop(checkpoint);
    let written = amended.extents.last();
    let report = CompactReport {
        vectors: nodes.saturating_sub(inputs.dead),
        merged: new.len() as u64,
        clusters_split: counts.split,
        clusters_merged: counts.merged,
        reassigned: counts.reassigned,
        clusters_written: written.map_or(0, |last| last.extents.len() as u64),
        bytes_before,
        // It is committed: that nobody can count its bytes is no failure.
        bytes_after: bytes_in(&**volume).unwrap_or(bytes_before),
        seconds: start.elapsed().as_secs_f64(),
        ..CompactReport::default()
    };
    Ok((report, committed))
}

/// The heads of an index, and the space that they and new rows are measured in.
fn heads_of(index: &Index, stores: &ClusterStores, rows: &[(u64, Box<[u8]>)]) -> AmendedHeads {
    let mut space = Space::new(index.metric(), index.element(), index.dim());
    if space.needs_longest() {
        space.measure(&stores.heads.file().vectors);
        rows.iter().for_each(|(_, vector)| space.measure(vector));
    }
    AmendedHeads::of(&stores.heads, space)
}
