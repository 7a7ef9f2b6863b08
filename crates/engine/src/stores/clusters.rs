//! The stores of a cluster index that is open: its heads in memory, and where its extents and vectors stand.
//!
//! ```text
//!                 a probe reads                               and then
//!   replicated    the extent: vectors                         nothing
//!   addressed     the extent: numbers                         each vector by itself
//!   grouped       the extent: its group, and numbers          the vectors of these that stand in no group that is probed
//! ```
//!
//! The byte tables are in [`stratann_layout::clusters`].

use std::ops::Range;
use std::sync::Arc;

use stratann_codec::ListModel;
use stratann_layout::{
    ClusterShape, ClustersFile, ExtentKind, ExtentPlace, ExtentView, FileEntry, FileKind, Manifest,
    Members,
};
use stratann_tier::{Tier, Volume};

use super::composition::{CodesAt, Made, Records};
use super::{Composition, VectorsAt};
use crate::navigation::Navigation;
use crate::{Error, stored};

/// What the layouts of clusters have in common.
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

/// Of [`Layout::Replicated`](crate::Layout::Replicated).
pub(crate) const REPLICATED: Composition = composition(
    "Clusters: each vector in every cluster that it is a member of, on blocks of an SSD (SPANN)",
    FileKind::Replicated,
    FileKind::Replicated,
);

/// Of [`Layout::Addressed`](crate::Layout::Addressed).
pub(crate) const ADDRESSED: Composition = composition(
    "Clusters: each vector once, in the input's order, and the numbers of each cluster's members",
    FileKind::Addressed,
    FileKind::Postings,
);

/// Of [`Layout::Grouped`](crate::Layout::Grouped).
pub(crate) const GROUPED: Composition = composition(
    "Clusters: each vector once, in the group of one of its clusters, which is read at once",
    FileKind::Grouped,
    FileKind::Grouped,
);

/// Bytes of vectors that are read at once though they are of no extent, at most; a single one may be longer.
pub(crate) const MOST_BYTES: usize = 64 << 10;

/// A file that is read to the byte.
pub(crate) struct ByteFile {
    pub(crate) tier: Arc<dyn Tier>,
    /// Its name in the volume.
    pub(crate) name: String,
    /// The file as errors name it.
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

    /// The offset and length of a read that has some bytes, as the tier wants them; and where in it these begin.
    pub(crate) fn reach(&self, offset: u64, bytes: usize) -> (u64, usize, usize) {
        let alignment = u64::from(self.tier.alignment().max(1));
        let start = offset - offset % alignment;
        let end = (offset + bytes as u64).next_multiple_of(alignment);
        (start, (end - start) as usize, (offset - start) as usize)
    }
}

/// How the vectors of a cluster index stand.
pub(crate) enum Vectors {
    /// In the extents: as often as they are members, each entry with its number.
    Replicated,
    /// In the extents, once: the numbers of those in each begin so, and behind the last would go on so.
    Grouped(Vec<u32>),
    /// In a file of their own.
    Addressed(ByteFile),
}

/// A cluster index that is open.
pub(crate) struct ClusterStores {
    /// What its stores can do.
    pub(crate) composition: &'static Composition,
    pub(crate) extents: ByteFile,
    kind: ExtentKind,
    shape: ClusterShape,
    members: Members,
    /// Where each extent begins, and how long it is.
    places: Vec<(u64, u32)>,
    pub(crate) vectors: Vectors,
    model: ListModel,
    /// The heads and what leads to them; a head's place is its cluster.
    pub(crate) heads: Navigation,
    /// The mean distance of a vector to the nearest head.
    pub(crate) radius: f32,
}

impl ClusterStores {
    /// Opens the clusters that the manifest names. Reads heads and tables; no vectors else.
    ///
    /// # Errors
    /// A file that is missing, damaged, of a later format or of another index.
    pub(crate) fn open(volume: &dyn Volume, manifest: &Manifest) -> Result<Self, Error> {
        let composition = stored::layout(volume, manifest)?.composition();
        let facts = stored::cluster_facts(volume, manifest)?;
        let Made::Clusters { extents } = composition.made else {
            return Err(Error::Damaged {
                file: volume.name(),
                what: format!("the {} layout is none of clusters", composition.name()),
            });
        };
        let (entry, shape) = stored::cluster_file(volume, manifest, extents)?;
        let kind = extent_kind(extents);
        let table = stored::clusters(volume, manifest, (extents, kind))?;
        let file = stored::file_of(volume, manifest, FileKind::Clusters, None)?;
        let vectors = match kind {
            ExtentKind::Replicated => Vectors::Replicated,
            ExtentKind::Grouped => Vectors::Grouped(firsts(&table.records)),
            ExtentKind::Postings => {
                let (entry, _) = stored::members(volume, manifest)?;
                Vectors::Addressed(ByteFile::open(volume, entry)?)
            }
        };
        Ok(Self {
            composition,
            extents: ByteFile::open(volume, entry)?,
            kind,
            shape,
            members: Members::new(shape),
            places: places(&table, kind),
            vectors,
            model: model(&table, kind, &file)?,
            heads: Navigation::new(stored::heads(volume, manifest)?),
            radius: facts.radius,
        })
    }

    /// Clusters.
    pub(crate) fn clusters(&self) -> u32 {
        self.places.len() as u32
    }

    /// Vectors.
    pub(crate) fn nodes(&self) -> u64 {
        self.shape.vectors.into()
    }

    /// Bytes of an outside id as it stands beside its vector.
    pub(crate) fn id_bytes(&self) -> usize {
        self.shape.id_bytes
    }

    /// Bytes of heads and tables in memory.
    pub(crate) fn metadata_bytes(&self) -> u64 {
        let firsts = match &self.vectors {
            Vectors::Grouped(firsts) => size_of_val(&firsts[..]),
            Vectors::Replicated | Vectors::Addressed(_) => 0,
        };
        let places = size_of_val(&self.places[..]);
        self.heads.memory_bytes() + (places + firsts) as u64
    }

    /// Bytes of the largest read.
    pub(crate) fn largest_read(&self) -> usize {
        let largest = self.places.iter().max_by_key(|place| place.1);
        let extent = largest.map_or(0, |&(offset, bytes)| {
            self.extents.reach(offset, bytes as usize).1
        });
        // Vectors that are read by themselves come some at a time.
        match &self.vectors {
            Vectors::Replicated => extent,
            Vectors::Grouped(_) | Vectors::Addressed(_) => extent.max(MOST_BYTES),
        }
    }

    /// Where the extent of a cluster begins, and how long it is.
    pub(crate) fn place(&self, cluster: u32) -> (u64, usize) {
        let (offset, bytes) = self.places[cluster as usize];
        (offset, bytes as usize)
    }

    /// Reads the extent of a cluster in place; `check` verifies what checksum it has of its own.
    ///
    /// # Errors
    /// It is damaged.
    pub(crate) fn view<'b>(
        &'b self,
        cluster: u32,
        bytes: &'b [u8],
        check: bool,
    ) -> Result<ExtentView<'b>, Error> {
        let place = ExtentPlace {
            file: &self.extents.file,
            offset: self.places[cluster as usize].0,
            cluster,
        };
        let view = ExtentView::new(self.kind, &self.shape, bytes, place, check)?;
        if let Vectors::Grouped(firsts) = &self.vectors
            && view.records() != firsts[cluster as usize + 1] - firsts[cluster as usize]
        {
            return Err(Error::Damaged {
                file: self.extents.file.clone(),
                what: format!(
                    "cluster {cluster} has {} vectors, not as many as its table says",
                    view.records()
                ),
            });
        }
        Ok(view)
    }

    /// Calls `each` with every vector that stands in an extent: number, outside id and vector.
    ///
    /// # Errors
    /// One that is damaged.
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
                    if node >= self.shape.vectors {
                        return Err(self.no_vector(&self.extents.file, node));
                    }
                    each(node, id, vector);
                }
            }
            Vectors::Grouped(firsts) => {
                let first = firsts[cluster as usize];
                for slot in slots {
                    let node = first + slot;
                    let (id, vector) = self.member(node, view.stored(slot), check)?;
                    each(node, id, vector);
                }
            }
            Vectors::Addressed(_) => {}
        }
        Ok(())
    }

    /// The numbers of an extent's other members, ascending.
    ///
    /// # Errors
    /// They do not decode.
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
        let own = self.first_of(cluster);
        let taken = self
            .model
            .decode(own, bytes, out)
            .map_err(|error| Error::Damaged {
                file: self.extents.file.clone(),
                what: format!("the numbers of the members of cluster {cluster}: {error}"),
            })?;
        if taken != bytes.len() {
            return Err(Error::Damaged {
                file: self.extents.file.clone(),
                what: format!(
                    "the numbers of the members of cluster {cluster} take {taken} bytes of {}",
                    bytes.len()
                ),
            });
        }
        match out.last() {
            Some(&last) if last >= self.shape.vectors => {
                Err(self.no_vector(&self.extents.file, last))
            }
            _ => Ok(()),
        }
    }

    /// The number that those of a cluster's members are coded beside.
    fn first_of(&self, cluster: u32) -> u32 {
        match &self.vectors {
            Vectors::Grouped(firsts) => firsts[cluster as usize],
            Vectors::Replicated | Vectors::Addressed(_) => 0,
        }
    }

    /// The cluster in whose extent a vector stands, where it stands in one.
    pub(crate) fn group_of(&self, node: u32) -> Option<u32> {
        match &self.vectors {
            Vectors::Grouped(firsts) => {
                Some(firsts.partition_point(|&first| first <= node) as u32 - 1)
            }
            Vectors::Replicated | Vectors::Addressed(_) => None,
        }
    }

    /// Bytes of a vector that is read by itself.
    pub(crate) fn member_bytes(&self) -> usize {
        self.members.bytes()
    }

    /// Where a vector stands that is read by itself, as a file and an offset; `None` where it never is. The next one stands behind it, or
    /// in another group.
    pub(crate) fn member_place(&self, node: u32) -> Option<(&ByteFile, u64)> {
        match &self.vectors {
            Vectors::Replicated => None,
            Vectors::Addressed(file) => Some((file, self.members.offset(node))),
            Vectors::Grouped(firsts) => {
                let group = self.group_of(node)? as usize;
                let (offset, bytes) = self.places[group];
                // They are the last of the extent.
                let behind = u64::from(firsts[group + 1] - node) * self.members.bytes() as u64;
                Some((&self.extents, offset + u64::from(bytes) - behind))
            }
        }
    }

    /// The outside id and the vector of a member, from its bytes; `check` verifies its checksum.
    ///
    /// # Errors
    /// It is damaged.
    pub(crate) fn member<'b>(
        &self,
        node: u32,
        bytes: &'b [u8],
        check: bool,
    ) -> Result<(u64, &'b [u8]), Error> {
        let (file, offset) = match self.member_place(node) {
            Some((file, offset)) => (&*file.file, offset),
            None => (&*self.extents.file, 0),
        };
        Ok(self.members.read(node, bytes, offset, check, file)?)
    }

    #[cold]
    fn no_vector(&self, file: &str, node: u32) -> Error {
        Error::Damaged {
            file: file.to_owned(),
            what: format!("it has vector {node}, of {} in all", self.shape.vectors),
        }
    }
}

/// What extents of a file of this kind are; of others that a composition names there are none.
pub(crate) fn extent_kind(kind: FileKind) -> ExtentKind {
    ExtentKind::of(kind).unwrap_or(ExtentKind::Postings)
}

/// The first number in each group, and behind the last the next.
fn firsts(records: &[u32]) -> Vec<u32> {
    let mut firsts = Vec::with_capacity(records.len() + 1);
    let mut first = 0u32;
    firsts.push(first);
    for &records in records {
        // All of them together are the vectors, of which there are fewer than 2^32.
        first = first.saturating_add(records);
        firsts.push(first);
    }
    firsts
}

/// Where each extent begins, and how long it is.
fn places(table: &ClustersFile, kind: ExtentKind) -> Vec<(u64, u32)> {
    let offsets = table.offsets(kind);
    offsets
        .into_iter()
        .zip(table.bytes.iter().copied())
        .collect()
}

/// The model by which numbers of members are coded; where there are no such numbers, one that knows nothing.
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
