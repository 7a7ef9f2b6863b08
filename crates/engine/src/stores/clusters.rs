//! The stores of an open cluster index: its heads in memory, and the positions of its posting lists
//! (*extents*) and vectors. [`stratann_layout::clusters`] has the byte tables.
//!
//! ```text
//!                 a probe reads an extent with            and then
//!   replicated    vectors                                 nothing
//!   addressed     node numbers of members                 the vector of each number
//!   grouped       a group, and node numbers of strays     strays that are in no probed group
//! ```
//!
//! If the members of a cluster changed after the build, a later file has a new posting list of the
//! cluster. The list in the last such file is valid. New vectors are in these lists (replicated),
//! or in a file of single vectors. In a grouped index, a new posting list has no group, so the
//! members are read one by one.

pub(crate) mod reader;
mod scatter;

use std::ops::Range;
use std::sync::Arc;

use stratann_codec::ListModel;
use stratann_layout::{
    AmendedFile, BLOCK, ClusterShape, ClustersFile, ExtentKind, ExtentPlace, ExtentView, FileEntry,
    FileKind, Manifest, Members,
};
use stratann_tier::{Tier, Volume};

use super::composition::{CodesAt, Made, Records};
use super::{Composition, VectorsAt};
use crate::navigation::Navigation;
use crate::stores::reading;
use crate::{Error, stored};

const fn composition(about: &'static str, vectors: FileKind, extents: FileKind) -> Composition {
    Composition {
        about,
        lists: vectors,
        records: Records::Clustered,
        vectors: VectorsAt::Records,
        codes: CodesAt::Nowhere,
        made: Made::Clusters { extents },
    }
}

pub(crate) const REPLICATED: Composition = composition(
    "Clusters: each vector is stored in every cluster that it is a member of, for SSDs (SPANN)",
    FileKind::Replicated,
    FileKind::Replicated,
);

pub(crate) const ADDRESSED: Composition = composition(
    "Clusters: each vector is stored once, in input order; a cluster has the numbers of its members",
    FileKind::Addressed,
    FileKind::Postings,
);

pub(crate) const GROUPED: Composition = composition(
    "Clusters: each vector is stored once, in the group of one of its clusters; one read returns a whole group",
    FileKind::Grouped,
    FileKind::Grouped,
);

/// The most bytes in one read of several single vectors.
const MOST_BYTES: usize = 64 << 10;
/// If the gap between two vectors has at most this many bytes, one read covers both. A request to
/// an SSD takes as much time as the transfer of so large a gap. Requests to RDMA, CXL and NVM take
/// less, but cost CPU time too.
const GAP: u64 = 1 << 10;

/// A file that is read in units of bytes, and not of pages.
pub(crate) struct ByteFile {
    pub(crate) tier: Arc<dyn Tier>,
    pub(crate) name: String,
    pub(crate) file: String,
}

impl ByteFile {
    fn open(volume: &dyn Volume, entry: &FileEntry) -> Result<Self, Error> {
        Ok(Self {
            tier: volume.open_tier(&entry.name)?,
            name: entry.name.clone(),
            file: stored::name_of(volume, &entry.name),
        })
    }

    /// The offset and length of the aligned read that covers some bytes, and the position of these
    /// bytes in the read.
    pub(crate) fn reach(&self, offset: u64, bytes: usize) -> (u64, usize, usize) {
        let alignment = u64::from(self.tier.alignment().max(1));
        let start = offset - offset % alignment;
        let end = (offset + bytes as u64).next_multiple_of(alignment);
        (start, (end - start) as usize, (offset - start) as usize)
    }
}

pub(crate) enum Vectors {
    Replicated,
    Grouped(Groups),
    Addressed,
}

/// The groups of a build. A group is a range of node numbers. The vectors of a group are at the end
/// of a posting list.
pub(crate) struct Groups {
    /// The first number of each group, followed by one past the last number of all groups.
    firsts: Vec<u32>,
    ends: Vec<u64>,
}

struct MemberFile {
    file: usize,
    members: Members,
    numbers: Range<u32>,
}

#[derive(Clone, Copy)]
pub(crate) struct ExtentAt {
    pub(crate) file: usize,
    pub(crate) offset: u64,
    pub(crate) bytes: usize,
}

struct Packed {
    offset: u64,
    file: u32,
    bytes: u32,
}

#[derive(Clone, Copy)]
pub(crate) struct MemberAt {
    pub(crate) file: usize,
    pub(crate) offset: u64,
    pub(crate) bytes: usize,
}

#[derive(Clone, Copy)]
pub(crate) struct Run {
    pub(crate) file: usize,
    pub(crate) offset: u64,
    pub(crate) bytes: usize,
    pub(crate) vectors: usize,
}

impl Run {
    /// The longest prefix of `places` that is worth one read. Node numbers ascend in `places`.
    pub(crate) fn of(places: &[MemberAt]) -> Option<Run> {
        let begin = places.first()?;
        let (mut vectors, mut end) = (1, begin.offset + begin.bytes as u64);
        while let Some(next) = places.get(vectors)
            && next.file == begin.file
            && (begin.offset..=end + GAP).contains(&next.offset)
            && next.offset + next.bytes as u64 <= begin.offset + MOST_BYTES as u64
        {
            (vectors, end) = (vectors + 1, next.offset + next.bytes as u64);
        }
        Some(Run {
            file: begin.file,
            offset: begin.offset,
            bytes: (end - begin.offset) as usize,
            vectors,
        })
    }
}

pub(crate) struct ClusterStores {
    pub(crate) composition: &'static Composition,
    /// The file of the build's posting lists, then its file of single vectors if it has one, then
    /// later files.
    pub(crate) files: Vec<ByteFile>,
    shapes: Vec<ClusterShape>,
    kind: ExtentKind,
    places: Vec<Packed>,
    pub(crate) vectors: Vectors,
    members: Vec<MemberFile>,
    model: ListModel,
    /// The heads, with the graph over them. The position of a head is its cluster.
    pub(crate) heads: Navigation,
    /// The mean distance of a vector to the nearest head, as the build measured it.
    pub(crate) radius: f32,
    /// The mean number of a cluster's members whose vectors are outside its posting list, as
    /// measured after the build.
    pub(crate) others: f64,
    built: u32,
    nodes: u32,
    clusters_built: u32,
    amended: Option<AmendedFile>,
    /// For a sample of clusters, the positions of the posting lists that the build wrote. Empty
    /// without groups.
    built_sample: Vec<(u32, ExtentAt)>,
}

impl ClusterStores {
    pub(crate) fn open(volume: &dyn Volume, manifest: &Manifest) -> Result<Self, Error> {
        let composition = stored::layout(volume, manifest)?.composition();
        let facts = reading::cluster_facts(volume, manifest)?;
        let Made::Clusters { extents } = composition.made else {
            return Err(Error::Damaged {
                file: volume.name(),
                what: format!("the {} layout has no clusters", composition.name()),
            });
        };
        let (entry, shape) = reading::cluster_file(volume, manifest, extents)?;
        let kind = extent_kind(extents);
        let table = reading::clusters(volume, manifest, (extents, kind))?;
        let file = stored::file_of(volume, manifest, FileKind::Clusters, None)?;
        let amended = reading::amended(volume, manifest)?;
        let heads = reading::heads(volume, manifest, amended.as_ref())?;
        let mut stores = Self {
            composition,
            files: vec![ByteFile::open(volume, entry)?],
            shapes: vec![shape],
            kind,
            places: places(&table, kind),
            vectors: match kind {
                ExtentKind::Replicated => Vectors::Replicated,
                ExtentKind::Grouped => Vectors::Grouped(Groups::of(&table, kind)),
                ExtentKind::Postings => Vectors::Addressed,
            },
            members: Vec::new(),
            model: model(&table, kind, &file)?,
            heads: Navigation::new(heads),
            radius: facts.radius,
            others: others(kind, facts.members, shape),
            built: shape.vectors,
            nodes: shape.vectors,
            clusters_built: shape.clusters,
            amended: None,
            built_sample: Vec::new(),
        };
        stores.built_sample = stores.sample();
        if kind == ExtentKind::Postings {
            let (entry, members) = reading::members(volume, manifest)?;
            stores.add_members(volume, entry, members, 0..shape.vectors)?;
        }
        if let Some(amended) = amended {
            stores.take_amended(volume, manifest, extents, amended)?;
        }
        Ok(stores)
    }

    fn take_amended(
        &mut self,
        volume: &dyn Volume,
        manifest: &Manifest,
        extents: FileKind,
        amended: AmendedFile,
    ) -> Result<(), Error> {
        // Only a replicated index may have fewer clusters than its build. In other layouts, no
        // table records the free node numbers of dissolved clusters.
        if self.kind != ExtentKind::Replicated && amended.clusters < self.clusters_built {
            return Err(Error::Damaged {
                file: stored::file_of(volume, manifest, FileKind::Amended, None)?,
                what: format!(
                    "it has {} clusters, fewer than the {} of the build",
                    amended.clusters, self.clusters_built
                ),
            });
        }
        // An earlier check refuses a manifest with more nodes than a `u32` can count.
        self.nodes = manifest.nodes() as u32;
        let mut later: Vec<Option<Packed>> = Vec::new();
        later.resize_with(amended.clusters as usize, || None);
        for segment in &amended.extents {
            let (entry, shape) =
                reading::extent_segment(volume, manifest, (extents, self.kind), segment)?;
            let file = self.files.len() as u32;
            self.files.push(ByteFile::open(volume, entry)?);
            self.shapes.push(shape);
            for (extent, offset) in segment.extents.iter().zip(segment.offsets(self.kind)) {
                if let Some(place) = later.get_mut(extent.cluster as usize) {
                    *place = Some(Packed {
                        offset,
                        file,
                        bytes: extent.bytes,
                    });
                }
            }
        }
        self.places.truncate(amended.clusters as usize);
        for (cluster, place) in later.into_iter().enumerate() {
            match (place, self.places.get_mut(cluster)) {
                (Some(place), Some(built)) => *built = place,
                (Some(place), None) => self.places.push(place),
                (None, Some(_)) => {}
                (None, None) => {
                    return Err(Error::Damaged {
                        file: stored::file_of(volume, manifest, FileKind::Amended, None)?,
                        what: format!(
                            "it does not describe cluster {cluster}, which is newer than the build"
                        ),
                    });
                }
            }
        }
        for n in 0..amended.members.len() {
            let (entry, members, numbers) = reading::member_segment(volume, manifest, &amended, n)?;
            self.add_members(volume, entry, members, numbers)?;
        }
        let last = self.members.last().map(|last| last.numbers.end);
        if self.kind != ExtentKind::Replicated && last.unwrap_or(self.built) != self.nodes {
            return Err(Error::Damaged {
                file: stored::file_of(volume, manifest, FileKind::Amended, None)?,
                what: format!(
                    "it names no file for vectors from number {} on, but the index has {} vectors",
                    last.unwrap_or(self.built),
                    self.nodes
                ),
            });
        }
        self.amended = Some(amended);
        Ok(())
    }

    fn add_members(
        &mut self,
        volume: &dyn Volume,
        entry: &FileEntry,
        members: Members,
        numbers: Range<u32>,
    ) -> Result<(), Error> {
        let file = self.files.len();
        self.files.push(ByteFile::open(volume, entry)?);
        self.shapes.push(members.shape());
        self.members.push(MemberFile {
            file,
            members,
            numbers,
        });
        Ok(())
    }

    pub(crate) fn clusters(&self) -> u32 {
        self.places.len() as u32
    }

    /// The number of node numbers in use, including the numbers of dead vectors.
    pub(crate) fn nodes(&self) -> u64 {
        self.nodes.into()
    }

    /// The number of vectors in posting lists that were written after the build. Each copy counts.
    pub(crate) fn records_since(&self) -> u64 {
        let segments = self.amended.iter().flat_map(|amended| &amended.extents);
        let extents = segments.flat_map(|segment| &segment.extents);
        extents.map(|extent| u64::from(extent.records)).sum()
    }

    pub(crate) fn amended(&self) -> Option<&AmendedFile> {
        self.amended.as_ref()
    }

    pub(crate) fn id_bytes(&self) -> usize {
        self.shapes[0].id_bytes
    }

    pub(crate) fn files_built(&self) -> usize {
        match self.vectors {
            Vectors::Replicated | Vectors::Grouped(_) => 1,
            Vectors::Addressed => 2,
        }
    }

    pub(crate) fn kind(&self) -> ExtentKind {
        self.kind
    }

    pub(crate) fn model(&self) -> &ListModel {
        &self.model
    }

    pub(crate) fn metadata_bytes(&self) -> u64 {
        let groups = match &self.vectors {
            Vectors::Grouped(groups) => {
                size_of_val(&groups.firsts[..]) + size_of_val(&groups.ends[..])
            }
            Vectors::Replicated | Vectors::Addressed => 0,
        };
        let places = size_of_val(&self.places[..]);
        let amended = self.amended.as_ref().map_or(0, |amended| {
            let extents = amended.extents.iter().map(|segment| &segment.extents[..]);
            extents.map(size_of_val).sum()
        });
        self.heads.memory_bytes() + (places + groups + amended) as u64
    }

    /// The share of garbage: old posting lists of clusters that were rewritten in later files.
    pub(crate) fn garbage(&self) -> f64 {
        let all: u64 = self.files.iter().map(|file| file.tier.len()).sum();
        let alignment = self.kind.alignment();
        let live = |cluster| (self.place(cluster).bytes as u64).next_multiple_of(alignment);
        let mut counts: u64 = (0..self.clusters()).map(live).sum();
        // In each file, one block counts as used, for the header and the space after the last
        // posting list.
        counts += (self.files.len() * BLOCK) as u64;
        counts += self
            .members
            .iter()
            .map(|members| self.files[members.file].tier.len())
            .sum::<u64>();
        if let Vectors::Grouped(_) = &self.vectors {
            // The vectors of a group stay in use after the posting list of its cluster was
            // rewritten.
            let bytes = Members::new(self.shapes[0]).bytes() as u64;
            let changed = (0..self.clusters_built)
                .filter(|&cluster| cluster >= self.clusters() || !self.is_as_built(cluster));
            counts += changed
                .map(|cluster| self.group(cluster).len() as u64 * bytes)
                .sum::<u64>();
        }
        all.saturating_sub(counts) as f64 / all.max(1) as f64
    }

    pub(crate) fn largest_read(&self) -> usize {
        let clusters = 0..self.clusters();
        let largest = clusters.map(|cluster| self.place(cluster));
        let largest = largest.max_by_key(|place| place.bytes);
        let extent = largest.map_or(0, |place| {
            self.files[place.file].reach(place.offset, place.bytes).1
        });
        match &self.vectors {
            Vectors::Replicated => extent,
            Vectors::Grouped(_) | Vectors::Addressed => extent.max(MOST_BYTES),
        }
    }

    pub(crate) fn place(&self, cluster: u32) -> ExtentAt {
        let place = &self.places[cluster as usize];
        ExtentAt {
            file: place.file as usize,
            offset: place.offset,
            bytes: place.bytes as usize,
        }
    }

    pub(crate) fn is_as_built(&self, cluster: u32) -> bool {
        self.places[cluster as usize].file == 0
    }

    /// A view of the posting list `bytes` of a cluster. `check` verifies its checksum.
    pub(crate) fn view<'b>(
        &'b self,
        cluster: u32,
        bytes: &'b [u8],
        check: bool,
    ) -> Result<ExtentView<'b>, Error> {
        self.view_at(cluster, self.place(cluster), bytes, check)
    }

    /// `at` may be an earlier posting list of the cluster.
    fn view_at<'b>(
        &'b self,
        cluster: u32,
        at: ExtentAt,
        bytes: &'b [u8],
        check: bool,
    ) -> Result<ExtentView<'b>, Error> {
        let file = &self.files[at.file].file;
        let place = ExtentPlace {
            file,
            offset: at.offset,
            cluster,
        };
        let view = ExtentView::new(self.kind, &self.shapes[at.file], bytes, place, check)?;
        let expected = match &self.vectors {
            Vectors::Grouped(groups) if at.file == 0 => groups.numbers(cluster).len() as u32,
            Vectors::Grouped(_) => 0,
            Vectors::Replicated | Vectors::Addressed => view.records(),
        };
        if view.records() != expected {
            return Err(Error::Damaged {
                file: file.clone(),
                what: format!(
                    "cluster {cluster} has {} vectors, but its table says another number",
                    view.records()
                ),
            });
        }
        Ok(view)
    }

    pub(crate) fn each_in(
        &self,
        cluster: u32,
        view: &ExtentView<'_>,
        slots: Range<u32>,
        check: bool,
        each: &mut dyn FnMut(u32, u64, &[u8]),
    ) -> Result<(), Error> {
        match &self.vectors {
            Vectors::Replicated => {
                for slot in slots {
                    let (node, id, vector) = view.entry(slot);
                    if node >= self.nodes {
                        return Err(self.no_vector(cluster, node));
                    }
                    each(node, id, vector);
                }
            }
            Vectors::Grouped(groups) => {
                for slot in slots {
                    let node = groups.numbers(cluster).start + slot;
                    let (id, vector) = self.member(node, view.stored(slot), check)?;
                    each(node, id, vector);
                }
            }
            Vectors::Addressed => {}
        }
        Ok(())
    }

    /// Decodes the ascending numbers of the members whose vectors are not in the posting list.
    pub(crate) fn others(
        &self,
        cluster: u32,
        view: &ExtentView<'_>,
        out: &mut Vec<u32>,
    ) -> Result<(), Error> {
        out.clear();
        let bytes = view.others();
        if bytes.is_empty() {
            return Ok(());
        }
        let wrong = |what: String| Error::Damaged {
            file: self.files[self.place(cluster).file].file.clone(),
            what: format!("the numbers of the members of cluster {cluster}{what}"),
        };
        let taken = self
            .model
            .decode(self.beside(cluster), bytes, out)
            .map_err(|error| wrong(format!(": {error}")))?;
        if taken != bytes.len() {
            return Err(wrong(format!(" take {taken} of {} bytes", bytes.len())));
        }
        match out.last() {
            Some(&last) if last >= self.nodes => Err(self.no_vector(cluster, last)),
            _ => Ok(()),
        }
    }

    /// The numbers of a cluster's members are coded as differences from this number.
    pub(crate) fn beside(&self, cluster: u32) -> u32 {
        match &self.vectors {
            Vectors::Grouped(groups) if cluster < self.clusters_built => {
                groups.numbers(cluster).start
            }
            Vectors::Grouped(_) | Vectors::Replicated | Vectors::Addressed => 0,
        }
    }

    /// The group that the build gave to a cluster; empty if it has no group.
    pub(crate) fn group(&self, cluster: u32) -> Range<u32> {
        match &self.vectors {
            Vectors::Grouped(groups) if cluster < self.clusters_built => groups.numbers(cluster),
            Vectors::Grouped(_) | Vectors::Replicated | Vectors::Addressed => 0..0,
        }
    }

    /// The position of a vector, if it can be read without its posting list. In the file, the
    /// vector of the next node follows, unless the next node is in another group or file.
    pub(crate) fn member_place(&self, node: u32) -> Option<MemberAt> {
        match &self.vectors {
            Vectors::Grouped(groups) if node < self.built => {
                Some(self.in_group(groups, node, groups.of_number(node, 0)))
            }
            Vectors::Grouped(_) | Vectors::Replicated | Vectors::Addressed => self.in_file(node),
        }
    }

    /// Puts the positions of the ascending `nodes` into `out`, up to the first vector that needs
    /// its posting list.
    pub(crate) fn member_places(&self, nodes: &[u32], out: &mut Vec<MemberAt>) {
        out.clear();
        let mut group = 0;
        for &node in nodes {
            let place = match &self.vectors {
                Vectors::Grouped(groups) if node < self.built => {
                    group = groups.of_number(node, group);
                    Some(self.in_group(groups, node, group))
                }
                Vectors::Grouped(_) | Vectors::Replicated | Vectors::Addressed => {
                    self.in_file(node)
                }
            };
            let Some(place) = place else { return };
            out.push(place);
        }
    }

    fn in_group(&self, groups: &Groups, node: u32, group: u32) -> MemberAt {
        let bytes = Members::new(self.shapes[0]).bytes();
        let behind = u64::from(groups.numbers(group).end - node) * bytes as u64;
        MemberAt {
            file: 0,
            offset: groups.ends[group as usize] - behind,
            bytes,
        }
    }

    fn in_file(&self, node: u32) -> Option<MemberAt> {
        let file = self.member_file(node)?;
        Some(MemberAt {
            file: file.file,
            offset: file.members.offset(node),
            bytes: file.members.bytes(),
        })
    }

    fn member_file(&self, node: u32) -> Option<&MemberFile> {
        let at = self
            .members
            .partition_point(|file| file.numbers.end <= node);
        self.members
            .get(at)
            .filter(|file| file.numbers.contains(&node))
    }

    /// All vectors that can be read without posting lists, in contiguous runs of at most `most`
    /// bytes: the numbers of a run, and the position of its first vector.
    pub(crate) fn member_runs(&self, most: usize) -> Vec<(Range<u32>, MemberAt)> {
        let mut ranges: Vec<Range<u32>> = Vec::new();
        if let Vectors::Grouped(_) = &self.vectors {
            ranges.extend((0..self.clusters_built).map(|cluster| self.group(cluster)));
        }
        ranges.extend(self.members.iter().map(|file| file.numbers.clone()));
        let mut runs = Vec::new();
        for range in ranges {
            let mut first = range.start;
            while first < range.end
                && let Some(at) = self.member_place(first)
            {
                let count = (most / at.bytes).max(1).min((range.end - first) as usize) as u32;
                runs.push((first..first + count, at));
                first += count;
            }
        }
        runs
    }

    pub(crate) fn member<'b>(
        &self,
        node: u32,
        bytes: &'b [u8],
        check: bool,
    ) -> Result<(u64, &'b [u8]), Error> {
        let (members, file) = match self.member_file(node) {
            Some(file) => (file.members, file.file),
            None => (Members::new(self.shapes[0]), 0),
        };
        let offset = || self.member_place(node).map_or(0, |at| at.offset);
        Ok(members.read(node, bytes, offset, check, &self.files[file].file)?)
    }

    #[cold]
    fn no_vector(&self, cluster: u32, node: u32) -> Error {
        Error::Damaged {
            file: self.files[self.place(cluster).file].file.clone(),
            what: format!(
                "cluster {cluster} has vector {node}, but there are only {} vectors",
                self.nodes
            ),
        }
    }
}

impl Groups {
    fn of(table: &ClustersFile, kind: ExtentKind) -> Self {
        let mut firsts = Vec::with_capacity(table.records.len() + 1);
        let mut first = 0u32;
        firsts.push(first);
        for &records in &table.records {
            first = first.saturating_add(records);
            firsts.push(first);
        }
        let offsets = table.offsets(kind);
        let lengths = table.bytes.iter().map(|&bytes| u64::from(bytes));
        Self {
            firsts,
            ends: offsets
                .iter()
                .zip(lengths)
                .map(|(at, len)| at + len)
                .collect(),
        }
    }

    fn numbers(&self, cluster: u32) -> Range<u32> {
        self.firsts[cluster as usize]..self.firsts[cluster as usize + 1]
    }

    /// The group of a vector of the build. The search begins with group `from`.
    fn of_number(&self, node: u32, from: u32) -> u32 {
        let behind = &self.firsts[from as usize + 1..];
        from + behind.partition_point(|&first| first <= node) as u32
    }
}

pub(crate) fn extent_kind(kind: FileKind) -> ExtentKind {
    ExtentKind::of(kind).unwrap_or(ExtentKind::Postings)
}

/// The mean number of a cluster's members whose vectors are outside its posting list. `members`
/// counts a vector once for each of its clusters.
fn others(kind: ExtentKind, members: u64, shape: ClusterShape) -> f64 {
    let with_their_cluster = match kind {
        ExtentKind::Replicated => members,
        ExtentKind::Grouped => u64::from(shape.vectors),
        ExtentKind::Postings => 0,
    };
    members.saturating_sub(with_their_cluster) as f64 / f64::from(shape.clusters.max(1))
}

fn places(table: &ClustersFile, kind: ExtentKind) -> Vec<Packed> {
    let offsets = table.offsets(kind).into_iter();
    offsets
        .zip(&table.bytes)
        .map(|(offset, &bytes)| Packed {
            offset,
            file: 0,
            bytes,
        })
        .collect()
}

pub(crate) fn model(
    table: &ClustersFile,
    kind: ExtentKind,
    file: &str,
) -> Result<ListModel, Error> {
    if kind == ExtentKind::Replicated && table.model.is_empty() {
        return Ok(ListModel::elias_fano(0, 0));
    }
    ListModel::from_bytes(&table.model).map_err(|error| Error::Damaged {
        file: file.to_owned(),
        what: format!("the model of the members' numbers: {error}"),
    })
}
