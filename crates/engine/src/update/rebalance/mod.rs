//! The *rebalance*: a checkpoint that moves new vectors into their clusters on storage, and keeps
//! the clusters balanced (SPFresh, SOSP 2023).
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
//! SPFresh rewrites the last block of a posting list with each append. In StratANN, vectors wait in
//! the log and in the fresh graph, and a rebalance writes each changed cluster once, into a new
//! file. No file is overwritten, so the previous checkpoint survives a crash, and other processes
//! can continue to search its files.
//!
//! A rewritten cluster leaves garbage in an earlier segment. A rebalance drops a segment with few
//! live bytes: at most half of all bytes of the segment, or at most the bytes that the rebalance
//! writes anyway. The live posting lists of a dropped segment are rewritten. So the number of
//! segments is logarithmic in the number of inserted vectors. Files of the build stay until a
//! merge, which is due when two fifths of the bytes are dead
//! ([`Due::Garbage`](crate::Due::Garbage)).
//!
//! A deleted vector stays in clusters that are not rewritten, until a merge. Such a merge is due
//! when a tenth of the vectors is deleted.

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

/// The approximate bytes that a rebalance takes beyond the open index and the waiting vectors.
#[derive(Clone, Copy, Debug)]
pub(super) struct Needs {
    fixed: u64,
    each: u64,
}

/// A factor on the memory of members, since the number of splits is unknown beforehand.
const SPLIT: u64 = 2;
/// Bytes for each head if the graph over the heads is rebuilt, with its lists in memory twice.
const GRAPH: u64 = 512;
/// The bytes of an allocation beyond the allocated value, including reference counts.
const ALLOCATION: u64 = 32;
/// Bytes of buffers, and of vectors that stay in memory for splits of neighbouring clusters.
const BESIDE: u64 = 12 << 20;

impl Needs {
    pub(super) fn of(
        index: &Index,
        stores: &ClusterStores,
        facts: &ClusterFacts,
        dead: u64,
    ) -> Self {
        let space = Space::new(index.metric(), index.element(), index.dim());
        let row = (index.dim() * index.element().size()) as u64;
        let entry = size_of::<Entry>() as u64;
        // If vectors are stored once, entries have no vectors in memory.
        let held = match stores.kind() {
            ExtentKind::Replicated => entry + row + ALLOCATION,
            ExtentKind::Grouped | ExtentKind::Postings => entry,
        };
        let copies = facts.members.div_ceil(index.manifest().vectors.max(1));
        let replicas = u64::from(facts.replicas);
        // The old graph over the heads stays in memory while another graph is built.
        let head = row + 2 * space.point_bytes() as u64 + GRAPH + 2 * ALLOCATION;
        let heads = u64::from(stores.clusters()) * head;
        // Tables are in memory three times: in the present index, in the file, and in the next
        // index.
        let tables = 3 * stores.metadata_bytes();
        Self {
            fixed: BESIDE
                + heads
                + tables
                + 4 * stores.nodes()
                + 64 * dead
                + 4 * stores.largest_read() as u64,
            // A new vector is in memory twice: as a waiting vector, and as a member of its
            // clusters. The last term is for splits and new heads.
            each: 2 * (row + ALLOCATION + entry)
                + 2 * replicas * entry
                + SPLIT * (copies + 1) * held,
        }
    }

    pub(super) fn bytes(self, waiting: u64) -> u64 {
        self.fixed.saturating_add(self.each.saturating_mul(waiting))
    }

    /// The maximum number of waiting vectors, of `waits` bytes each, that fit into `room` bytes
    /// together with the memory of their rebalance.
    pub(super) fn most(self, room: u64, waits: u64) -> u64 {
        room.saturating_sub(self.fixed) / (self.each + waits)
    }
}

/// Writes the next checkpoint of a cluster index, and commits it after `ready` succeeds. No step
/// after the commit can fail, and after an error, the index is unchanged.
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
        // After a rebalance, the id of a vector may differ from its node number.
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
        // The checkpoint is committed, so an error of this measurement is ignored.
        bytes_after: bytes_in(&**volume).unwrap_or(bytes_before),
        seconds: start.elapsed().as_secs_f64(),
        ..CompactReport::default()
    };
    Ok((report, committed))
}

fn heads_of(index: &Index, stores: &ClusterStores, rows: &[(u64, Box<[u8]>)]) -> AmendedHeads {
    let mut space = Space::new(index.metric(), index.element(), index.dim());
    if space.needs_longest() {
        space.measure(&stores.heads.file().vectors);
        rows.iter().for_each(|(_, vector)| space.measure(vector));
    }
    AmendedHeads::of(&stores.heads, space)
}
