//! New vectors go into the clusters on storage, where they belong, and clusters stay in balance: SPFresh's in-place update (SOSP 2023), as a
//! checkpoint.
//!
//! ```text
//!   local.rs   which clusters a vector joins, which are split or merged, what is reassigned then
//!   here       the clusters that changed, written behind those that are there; heads, tables, MANIFEST
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
//! into a new file. In place means that the index is not built anew; nothing is ever written over: a crash at any point leaves the checkpoint before it, other processes go on to search
//! what they have open, and verify has files with lengths and checksums to hold on to.
//!
//! Clusters that change often leave garbage in the segments before. A segment goes, and the extents in it that count are written once more, when
//! at most half of its bytes count, or no more than this checkpoint writes. So there are few of them, by the logarithm of what came since
//! the build. The files of the build stay until the whole index is built anew, whatever counts of them.
//!
//! A vector that was deleted stays in clusters that nobody writes, and its id among those that do not count, as after direct inserts; a merge
//! of the whole index, which is due when a tenth is deleted, builds it anew.

mod local;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;

use stratann_layout::manifest::{FORMAT_VERSION, PLACEMENT};
use stratann_layout::{
    AmendedExtent, AmendedFile, ClusterShape, ExtentBuilder, ExtentKind, ExtentSegment, FileEntry,
    FileKind, LayoutError, MemberSegment, Members, PlacementFacts, PlacementFile, RunsOn,
};
use stratann_tier::Volume;

use self::local::{Changes, New, go_on};
use super::live::CompactReport;
use super::merge::{Inputs, bytes_in};
use super::ranges::IdRanges;
use crate::Error;
use crate::build::{self, Aligned, write_stream};
use crate::cluster::AmendedHeads;
use crate::durable::{Checkpoint, Committed, begin_state};
use crate::graph::Space;
use crate::index::Index;
use crate::progress::{Progress, Stage};
use crate::stores::ClusterStores;
use crate::stores::composition::Made;

/// New vectors between two such checkpoints: this share of those on storage, as OdinANN §4.1 has it of merges, and no fewer than [`LEAST`]. With
/// members of several clusters each, fewer touch most clusters all the same.
const SHARE: u64 = 16;
const LEAST: u64 = 1024;

/// New vectors that are worth a checkpoint of an index that has so many.
pub(super) fn due_after(nodes: u64) -> u64 {
    (nodes / SHARE).max(LEAST)
}

/// Writes the next checkpoint of a cluster index and commits it, once `ready` has had a look at it. What became of the commit is told: from
/// there on nothing fails.
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
    inputs.fresh.for_each_in(inputs.epoch, |id, vector| {
        rows.push((id, Box::<[u8]>::from(vector)));
    });
    let first = stores.nodes() as u32;
    let nodes = u64::from(first) + rows.len() as u64;
    if nodes >= u64::from(u32::MAX) {
        let expected = "fewer than 4294967295 with all that were deleted: compact the index";
        return Err(Error::call("vectors", nodes, expected));
    }
    let mut space = Space::new(index.metric(), index.element(), index.dim());
    if space.needs_longest() {
        space.measure(&stores.heads.file().vectors);
        rows.iter().for_each(|(_, vector)| space.measure(vector));
    }
    let heads = AmendedHeads::of(&stores.heads, space);
    let mut changes = Changes::new(index, stores, heads, inputs.removed)?;
    let stage = Stage::begin(progress, "finding clusters", rows.len() as u64);
    let new = changes.insert(rows, first, progress)?;
    changes.settle(progress)?;
    drop(stage);

    let checkpoint = Checkpoint::begin(&**volume, true)?;
    let writing = Writing {
        volume: &**volume,
        index,
        stores,
        shape: ClusterShape {
            element: index.element(),
            dim: index.dim(),
            // Ids are no numbers of vectors here.
            id_bytes: ClusterShape::id_bytes(inputs.next_id, false),
            clusters: changes.heads.count(),
            vectors: nodes as u32,
        },
        checkpoint: &checkpoint,
        progress,
    };
    let (mut amended, mut files) = writing.extents(&mut changes)?;
    amended.members = stores
        .amended()
        .map_or_else(Vec::new, |now| now.members.clone());
    if stores.kind() != ExtentKind::Replicated {
        files.extend(writing.members(&new, first, &mut amended)?);
    }
    let local::Counts {
        split,
        merged,
        reassigned,
    } = changes.counts;
    if changes.heads.have_changed() {
        let heads = changes.heads.into_file().encode();
        files.push(write_stream(
            &checkpoint,
            FileKind::Navigation,
            None,
            &heads,
        )?);
    }
    files.push(write_stream(
        &checkpoint,
        FileKind::Amended,
        None,
        &amended.encode(),
    )?);
    let placement = placement(index, inputs, first, &new);
    files.push(write_stream(
        &checkpoint,
        FileKind::Placement,
        None,
        &placement.encode(),
    )?);

    let mut manifest = index.manifest().clone();
    let replaced = |entry: &FileEntry| {
        let of_segment = match entry.kind() {
            Some((FileKind::Addressed, Some(number))) => !amended
                .members
                .iter()
                .any(|segment| segment.number == number),
            Some((_, Some(number))) => !amended
                .extents
                .iter()
                .any(|segment| segment.number == number),
            _ => false,
        };
        of_segment || files.iter().any(|file| file.role == entry.role)
    };
    manifest.files.retain(|entry| !replaced(entry));
    manifest.files.append(&mut files);
    manifest.format_version = FORMAT_VERSION;
    manifest.reader_features |= PLACEMENT;
    manifest.checkpoint = checkpoint.number();
    manifest.log_from = inputs.log_from;
    let live = nodes.saturating_sub(inputs.dead);
    manifest.placement = Some(PlacementFacts {
        nodes,
        pages: 0,
        live,
        next_id: inputs.next_id,
    });
    begin_state(&mut manifest)?;
    ready(&manifest)?;
    let mut checkpoint = checkpoint;
    let committed = checkpoint.commit(&manifest)?;
    drop(checkpoint);
    let bytes_after = bytes_in(&**volume).unwrap_or(bytes_before);
    let report = CompactReport {
        vectors: live,
        merged: new.len() as u64,
        clusters_split: split,
        clusters_merged: merged,
        reassigned,
        clusters_written: amended
            .extents
            .last()
            .map_or(0, |last| last.extents.len() as u64),
        bytes_before,
        bytes_after,
        seconds: start.elapsed().as_secs_f64(),
        ..CompactReport::default()
    };
    Ok((report, committed))
}

/// Ids that came and went since the build.
fn placement(index: &Index, inputs: &Inputs<'_>, first: u32, new: &[New]) -> PlacementFile {
    let mut ids = IdRanges::of(&inputs.inserted);
    new.iter().for_each(|new| ids.insert(new.id));
    let removed = inputs.removed.iter();
    // No node above is there yet.
    let mut deleted: Vec<(u64, u32)> = removed
        .map(|(&id, &bound)| (id, bound.min(first)))
        .collect();
    deleted.sort_unstable();
    let built = index.manifest().vectors as u32;
    let nodes = first + new.len() as u32;
    PlacementFile {
        nodes,
        built,
        pages: 0,
        page_of: Vec::new(),
        added: Vec::new(),
        runs: RunsOn::default(),
        codes: Vec::new(),
        // Of no meaning where there are no lists of neighbours.
        lists: vec![0; (nodes - built) as usize],
        ids: ids.all(),
        deleted,
    }
}

/// What writes the files of a checkpoint.
struct Writing<'a> {
    volume: &'a dyn Volume,
    index: &'a Index,
    stores: &'a ClusterStores,
    /// That of new files.
    shape: ClusterShape,
    checkpoint: &'a Checkpoint<'a>,
    progress: &'a dyn Progress,
}

impl Writing<'_> {
    /// Writes a segment with the clusters that changed, and with what still counts of the segments that go.
    fn extents(&self, changes: &mut Changes<'_>) -> Result<(AmendedFile, Vec<FileEntry>), Error> {
        let mut segments = match self.stores.amended() {
            Some(amended) => amended.extents.clone(),
            None => Vec::new(),
        };
        let number = segments.last().map_or(1, |last| last.number + 1);
        let mut wanted = changes.changed();
        self.absorb(&mut segments, &mut wanted);
        wanted.retain(|&cluster| cluster < self.shape.clusters);
        let mut amended = AmendedFile {
            clusters: self.shape.clusters,
            extents: segments,
            members: Vec::new(),
        };
        if wanted.is_empty() {
            return Ok((amended, Vec::new()));
        }
        let _stage = Stage::begin(self.progress, "writing clusters", wanted.len() as u64);
        let Made::Clusters { extents } = self.index.composition().made else {
            return Ok((amended, Vec::new()));
        };
        let kind = self.stores.kind();
        let mut out = Aligned::create(self.checkpoint, extents, Some(number))?;
        let mut builder = ExtentBuilder::new(kind, self.shape);
        let mut segment = ExtentSegment {
            number,
            extents: Vec::with_capacity(wanted.len()),
        };
        let (mut code, mut numbers) = (Vec::new(), Vec::new());
        for cluster in wanted {
            go_on(self.progress)?;
            let members = changes.members(cluster)?;
            code.clear();
            if kind == ExtentKind::Replicated {
                builder.start(&[]);
                for entry in &members {
                    builder.push(entry.node, entry.id, &entry.vector, entry.own);
                }
            } else {
                numbers.clear();
                numbers.extend(members.iter().map(|entry| entry.node));
                numbers.sort_unstable();
                if !numbers.is_empty() {
                    let beside = self.stores.beside(cluster);
                    let encoded = self.stores.model().encode(beside, &numbers, &mut code);
                    encoded.map_err(|error| Error::Codec {
                        place: format!("the numbers of the members of cluster {cluster}"),
                        source: error,
                    })?;
                }
                builder.start(&code);
            }
            let records = builder.records();
            let extent = builder.finish(cluster);
            let bytes = u32::try_from(extent.len()).map_err(|_| LayoutError::Shape {
                what: "bytes of a cluster",
                found: extent.len() as u64,
                expected: "fewer than 4 GiB: take smaller clusters",
            })?;
            segment.extents.push(AmendedExtent {
                cluster,
                bytes,
                records,
            });
            out.push(extent, kind.alignment())?;
            self.progress.advance(1);
        }
        let file = out.finish(|length| self.shape.header(extents, length))?;
        amended.extents.push(segment);
        Ok((amended, vec![file]))
    }

    /// Takes segments out of which little counts, or which are small beside what is to be written, and has written what counts of them.
    fn absorb(&self, segments: &mut Vec<ExtentSegment>, wanted: &mut BTreeSet<u32>) {
        let bytes_of = |cluster: u32| match cluster < self.stores.clusters() {
            true => self.stores.place(cluster).bytes as u64,
            false => 0,
        };
        let mut bytes: u64 = wanted.iter().map(|&cluster| bytes_of(cluster)).sum();
        // Files of extents stand in the order of segments, behind those of the build.
        let before = self.stores.files_built();
        for n in (0..segments.len()).rev() {
            let counts = |extent: &AmendedExtent, wanted: &BTreeSet<u32>| {
                extent.cluster < self.stores.clusters()
                    && self.stores.place(extent.cluster).file == before + n
                    && !wanted.contains(&extent.cluster)
            };
            let all: u64 = segments[n]
                .extents
                .iter()
                .map(|extent| u64::from(extent.bytes))
                .sum();
            let live: BTreeSet<u32> = (segments[n].extents.iter())
                .filter(|extent| counts(extent, wanted))
                .map(|extent| extent.cluster)
                .collect();
            let live_bytes: u64 = live.iter().map(|&cluster| bytes_of(cluster)).sum();
            if live_bytes <= bytes || 2 * live_bytes <= all {
                bytes += live_bytes;
                wanted.extend(live);
                segments.remove(n);
            }
        }
    }

    /// Writes a file of new vectors, with those of the files before that are small beside it.
    fn members(
        &self,
        new: &[New],
        first: u32,
        amended: &mut AmendedFile,
    ) -> Result<Option<FileEntry>, Error> {
        let number = amended.members.last().map_or(1, |last| last.number + 1);
        let (mut begin, end) = (first, first + new.len() as u32);
        while let Some(last) = amended.members.last()
            && begin - last.first <= end - begin
        {
            begin = last.first;
            amended.members.pop();
        }
        if begin == end {
            return Ok(None);
        }
        let members = Members::starting_at(self.shape, begin);
        let kind = FileKind::Addressed;
        let mut out = Aligned::create(self.checkpoint, kind, Some(number))?;
        let (mut bytes, mut stored) = (Vec::new(), Vec::new());
        for node in begin..first {
            go_on(self.progress)?;
            let Some(at) = self.stores.member_place(node) else {
                continue;
            };
            bytes.resize(at.bytes, 0);
            let name = &self.stores.files[at.file].name;
            self.volume.read_at(name, at.offset, &mut bytes)?;
            let (id, vector) = self.stores.member(node, &bytes, true)?;
            stored.clear();
            members.push(node, id, vector, &mut stored);
            out.push(&stored, 1)?;
        }
        for new in new {
            go_on(self.progress)?;
            stored.clear();
            members.push(new.node, new.id, &new.vector, &mut stored);
            out.push(&stored, 1)?;
        }
        let file = out.finish(|length| self.shape.header(kind, length))?;
        amended.members.push(MemberSegment {
            number,
            first: begin,
        });
        Ok(Some(file))
    }
}
