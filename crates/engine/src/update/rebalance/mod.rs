//! Moves new vectors into their clusters on storage, and keeps the clusters balanced. This is the
//! in-place update of SPFresh (SOSP 2023), in the form of a checkpoint: the *rebalance*.
//!
//! ```text
//!   entries.rs reads the members of clusters from storage
//!   local.rs   chooses the clusters of new vectors; splits and merges clusters; reassigns vectors
//!   write.rs   writes changed clusters, heads and tables to new files
//!   mod.rs     the order of these steps, the memory that they need, and the commit
//!
//!   replicated-…             posting lists of the build
//!   replicated-000005-0001   posting lists of clusters that changed since the build: one segment
//!                            for each rebalance
//!   addressed-000005-0001    new vectors, if each vector is stored once
//!   amended-…                the place of the current posting list of each changed cluster
//!   navigation-…             all heads, if a head was added, moved or removed
//!   placement-…              ids that were inserted and deleted since the build
//! ```
//!
//! SPFresh rewrites the last block of a posting list with each append, and swaps its entry in a
//! table in memory. In StratANN, the vectors of many inserts wait in the log and in the fresh
//! graph, where searches find them. Then a rebalance writes each changed cluster once, as a whole,
//! into a new file. *In place* means only that the index is not rebuilt. No file is ever
//! overwritten. So after a crash at any time, the previous checkpoint is complete. Other processes
//! can continue to search the files that they have open, and `verify` can check lengths and
//! checksums.
//!
//! A rewritten cluster leaves garbage in an earlier segment. A rebalance drops a segment if at most
//! half of the segment's bytes are live, or if its live bytes are at most as many as the rebalance
//! writes. The rebalance rewrites the live posting lists of a dropped segment. So the number of
//! segments is logarithmic in the number of vectors inserted since the build. The files of the
//! build stay until a merge rebuilds the index. The merge is due when two fifths of the bytes in
//! files of clusters and vectors are dead ([`Due::Garbage`](crate::Due::Garbage)).
//!
//! A deleted vector stays in clusters that are not rewritten, and its id stays a dead id, as after
//! direct inserts. A merge removes such vectors. This merge is due when a tenth of the vectors is
//! deleted.

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

/// The approximate number of bytes of memory that a rebalance takes in addition to the open index
/// and the waiting vectors.
#[derive(Clone, Copy, Debug)]
pub(super) struct Needs {
    /// Bytes that do not depend on the number of waiting vectors.
    fixed: u64,
    /// Additional bytes for each waiting vector.
    each: u64,
}

/// A factor on the memory of members, for splits. The number of splits depends on the vectors, so
/// it is unknown beforehand.
const SPLIT: u64 = 2;
/// Bytes for each head if the graph over the heads is rebuilt. The lists of this graph are in
/// memory twice, with spare slots during the build.
const GRAPH: u64 = 512;
/// Bytes of an allocation beyond its size, with its reference counts.
const ALLOCATION: u64 = 32;
/// Bytes of buffers, and of rows that are kept for neighbouring clusters.
const BESIDE: u64 = 12 << 20;

impl Needs {
    /// The memory for a rebalance of an index with `dead` dead records.
    pub(super) fn of(
        index: &Index,
        stores: &ClusterStores,
        facts: &ClusterFacts,
        dead: u64,
    ) -> Self {
        let space = Space::new(index.metric(), index.element(), index.dim());
        let row = (index.dim() * index.element().size()) as u64;
        let entry = size_of::<Entry>() as u64;
        // If vectors are stored once, entries of clusters have no vectors in memory.
        let held = match stores.kind() {
            ExtentKind::Replicated => entry + row + ALLOCATION,
            ExtentKind::Grouped | ExtentKind::Postings => entry,
        };
        let copies = facts.members.div_ceil(index.manifest().vectors.max(1));
        let replicas = u64::from(facts.replicas);
        // The graph over the heads may be rebuilt while the old graph is in memory. Each graph has
        // its own points.
        let head = row + 2 * space.point_bytes() as u64 + GRAPH + 2 * ALLOCATION;
        let heads = u64::from(stores.clusters()) * head;
        // The tables of clusters are in memory three times: in the present index, in the written
        // file, and in the next index.
        let tables = 3 * stores.metadata_bytes();
        Self {
            fixed: BESIDE
                + heads
                + tables
                + 4 * stores.nodes()
                + 64 * dead
                + 4 * stores.largest_read() as u64,
            // Each new row is in memory twice: as it waits, and with its clusters. The last term is
            // for splits and new heads.
            each: 2 * (row + ALLOCATION + entry)
                + 2 * replicas * entry
                + SPLIT * (copies + 1) * held,
        }
    }

    /// The memory for a rebalance with `waiting` waiting vectors.
    pub(super) fn bytes(self, waiting: u64) -> u64 {
        self.fixed.saturating_add(self.each.saturating_mul(waiting))
    }

    /// The maximum number of vectors that may wait, if the waiting vectors and the rebalance must
    /// fit into `room` bytes. Each waiting vector takes `waits` bytes.
    pub(super) fn most(self, room: u64, waits: u64) -> u64 {
        room.saturating_sub(self.fixed) / (self.each + waits)
    }
}

/// Writes the next checkpoint of a cluster index, and commits it after `ready` has accepted it. No
/// step after the commit can fail.
///
/// # Errors
/// The index would have too many vectors, a file cannot be read or is damaged, the disk is full,
/// `ready` fails, or the call is interrupted. After an error, the index is unchanged.
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
        let reason =
            "an index has numbers for fewer than 4294967295 vectors, including deleted vectors";
        return Err(Error::call(
            "number of vectors",
            nodes,
            reason,
            "Compact the index",
        ));
    }
    let mut shape = ClusterShape {
        element: index.element(),
        dim: index.dim(),
        // After a rebalance, the id of a vector may differ from its number.
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
        // The checkpoint is committed, so an error while the files are measured is ignored.
        bytes_after: bytes_in(&**volume).unwrap_or(bytes_before),
        seconds: start.elapsed().as_secs_f64(),
        ..CompactReport::default()
    };
    Ok((report, committed))
}

/// The heads of an index, with the space in which they are compared with the new rows.
fn heads_of(index: &Index, stores: &ClusterStores, rows: &[(u64, Box<[u8]>)]) -> AmendedHeads {
    let mut space = Space::new(index.metric(), index.element(), index.dim());
    if space.needs_longest() {
        space.measure(&stores.heads.file().vectors);
        rows.iter().for_each(|(_, vector)| space.measure(vector));
    }
    AmendedHeads::of(&stores.heads, space)
}
