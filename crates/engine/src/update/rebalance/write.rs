//! Writes the files of a rebalance: changed clusters, new vectors, and the tables of current
//! posting lists.

use std::collections::{BTreeSet, HashMap};

use stratann_layout::manifest::{FORMAT_VERSION, PLACEMENT};
use stratann_layout::{
    AmendedExtent, AmendedFile, ClusterShape, ExtentBuilder, ExtentKind, ExtentSegment, FileEntry,
    FileKind, LayoutError, Manifest, MemberSegment, Members, PlacementFacts, PlacementFile, RunsOn,
};
use stratann_tier::Volume;

use super::local::{Changes, New, go_on};
use crate::Error;
use crate::durable::Checkpoint;
use crate::index::Index;
use crate::overlay::ranges::IdRanges;
use crate::plan::segment_memory;
use crate::progress::{Progress, Stage};
use crate::stores::ClusterStores;
use crate::stores::clusters::reader::ClusterReader;
use crate::stores::columns::{Found, RowBytes, Written};
use crate::stores::composition::Made;
use crate::stores::writing::files::{Aligned, write_stream};
use crate::update::merge::Inputs;

pub(super) struct Writing<'a> {
    pub(super) volume: &'a dyn Volume,
    pub(super) index: &'a Index,
    pub(super) stores: &'a ClusterStores,
    pub(super) shape: ClusterShape,
    pub(super) checkpoint: &'a Checkpoint<'a>,
    pub(super) progress: &'a dyn Progress,
}

impl Writing<'_> {
    /// Writes all files except the columns. Returns the table of current posting lists, and the new
    /// files.
    pub(super) fn all(
        &self,
        mut changes: Changes<'_>,
        new: &[New],
        first: u32,
        inputs: &Inputs<'_>,
    ) -> Result<(AmendedFile, Vec<FileEntry>), Error> {
        let (mut amended, mut files) = self.extents(&mut changes)?;
        amended.members = self
            .stores
            .amended()
            .map_or_else(Vec::new, |now| now.members.clone());
        if self.stores.kind() != ExtentKind::Replicated {
            files.extend(self.members(new, first, &mut amended)?);
        }
        if changes.heads.have_changed() {
            let heads = changes.heads.into_file().encode();
            files.push(write_stream(
                self.checkpoint,
                FileKind::Navigation,
                None,
                &heads,
            )?);
        }
        let table = amended.encode();
        files.push(write_stream(
            self.checkpoint,
            FileKind::Amended,
            None,
            &table,
        )?);
        let placement = placement(self.index, inputs, first, new).encode();
        files.push(write_stream(
            self.checkpoint,
            FileKind::Placement,
            None,
            &placement,
        )?);
        Ok((amended, files))
    }

    /// Writes the attributes of new vectors, and attributes that other vectors have received since
    /// the last checkpoint.
    pub(super) fn columns(
        &self,
        new: &[New],
        rows: &HashMap<u64, RowBytes>,
        inputs: &Inputs<'_>,
    ) -> Result<Option<Written>, Error> {
        let columns = self.index.columns();
        if columns.is_empty() && rows.is_empty() {
            return Ok(None);
        }
        let found = |new: &New| Found {
            node: new.node,
            id: new.id,
            row: rows.get(&new.id).cloned().unwrap_or_default(),
        };
        let is_dead = |id, node| {
            let bound = inputs.removed.get(&id);
            bound.is_some_and(|&bound| node < bound)
        };
        columns.write_new(
            self.volume,
            self.checkpoint,
            new.iter().map(found).collect(),
            &is_dead,
            segment_memory(inputs.memory),
        )
    }

    pub(super) fn manifest(
        &self,
        amended: &AmendedFile,
        mut files: Vec<FileEntry>,
        inputs: &Inputs<'_>,
    ) -> Manifest {
        let mut manifest = self.index.manifest().clone();
        let is_replaced = |entry: &FileEntry| {
            let of_segment = match entry.kind() {
                Some((FileKind::Addressed, Some(number))) => {
                    let mut members = amended.members.iter();
                    !members.any(|segment| segment.number == number)
                }
                // Segments of columns have their own numbers, and `Written::name_in` removes
                // replaced segments.
                Some((FileKind::Rows | FileKind::Columns, _)) => false,
                Some((_, Some(number))) => {
                    let mut extents = amended.extents.iter();
                    !extents.any(|segment| segment.number == number)
                }
                _ => false,
            };
            of_segment || files.iter().any(|file| file.role == entry.role)
        };
        manifest.files.retain(|entry| !is_replaced(entry));
        manifest.files.append(&mut files);
        manifest.format_version = FORMAT_VERSION;
        manifest.reader_features |= PLACEMENT;
        manifest.checkpoint = self.checkpoint.number();
        manifest.log_from = inputs.log_from;
        let nodes = u64::from(self.shape.vectors);
        manifest.placement = Some(PlacementFacts {
            nodes,
            pages: 0,
            live: nodes.saturating_sub(inputs.dead),
            next_id: inputs.next_id,
            drift: None,
        });
        manifest
    }

    /// Writes a segment with the posting lists of changed clusters, and the live posting lists of
    /// dropped segments.
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
                expected: "fewer than 4 GiB",
                remedy: "Build the index again with a smaller cluster size",
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

    /// Drops each segment with few live bytes: at most half of all bytes of the segment, or at most
    /// the bytes that the rebalance writes anyway. Clusters with live posting lists in dropped
    /// segments join `wanted`.
    fn absorb(&self, segments: &mut Vec<ExtentSegment>, wanted: &mut BTreeSet<u32>) {
        let bytes_of = |cluster: u32| match cluster < self.stores.clusters() {
            true => self.stores.place(cluster).bytes as u64,
            false => 0,
        };
        let mut bytes: u64 = wanted.iter().map(|&cluster| bytes_of(cluster)).sum();
        // Files of posting lists are numbered: first the files of the build, and then the segments.
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

    /// Writes a file of new vectors. From the last existing file on, each file with at most as many
    /// vectors as the new file is merged into the new file.
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
        let mut stored = Vec::new();
        if begin < first {
            let mut reader = ClusterReader::open(self.volume, self.stores)?;
            let numbers: Vec<u32> = (begin..first).collect();
            reader.each_member(&numbers, &mut |node, id, vector| {
                go_on(self.progress)?;
                stored.clear();
                members.push(node, id, vector, &mut stored);
                out.push(&stored, 1)
            })?;
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

fn placement(index: &Index, inputs: &Inputs<'_>, first: u32, new: &[New]) -> PlacementFile {
    let mut ids = IdRanges::of(&inputs.inserted);
    new.iter().for_each(|new| ids.insert(new.id));
    let removed = inputs.removed.iter();
    // A bound above the number of present nodes would also make the new nodes dead.
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
        lists: vec![0; (nodes - built) as usize],
        ids: ids.all(),
        deleted,
    }
}
