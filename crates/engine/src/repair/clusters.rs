//! The vectors of a cluster index that can be read.
//!
//! The table says where extents are. Where it is damaged, extents are looked for one behind the other: each says how long it is, and its
//! checksum that it is that of the next cluster, or of one of those behind it where some are damaged. In a replicated index a vector may
//! be had from any of its clusters; where vectors stand once, each has a checksum of its own, and the rest of its extent does not matter.

use stratann_layout::clusters::extent::FIXED;
use stratann_layout::{
    BLOCK, ClusterShape, ClustersFile, ExtentKind, ExtentPlace, ExtentView, FileEntry, FileKind,
    Members,
};

use super::Lost;
use super::files::{self, Header, Payload};
use super::pages::Files;
use super::rows::Fault;
use crate::stores::clusters::extent_kind;
use crate::{Error, stored};

/// Clusters behind one that is damaged that are tried at each place, and the most bytes of an extent that is looked for so.
const TRIED: u32 = 16;
const MOST_BYTES: usize = 64 << 20;
/// Vectors that are read at a time where they stand alone.
const PIECE: u32 = 1024;
/// What may be wrong with the width of ids, where no header says it.
const ID_BYTES: [usize; 3] = [0, 4, 8];

/// An extent: its cluster, where it begins and how long it is; of a group, the first number in it and how many there are.
struct Place {
    cluster: u32,
    offset: u64,
    bytes: usize,
    first: u32,
    records: u32,
}

/// What was wrong first.
#[derive(Default)]
struct Tally {
    first: Option<String>,
}

impl Tally {
    fn add(&mut self, what: impl ToString) {
        self.first.get_or_insert_with(|| what.to_string());
    }
}

impl Files<'_, '_, '_> {
    /// All vectors of a cluster index whose extents are in a file of this kind.
    pub(super) fn clusters(&mut self, extents: FileKind) -> Result<(), Error> {
        let kind = extent_kind(extents);
        let vectors = match kind {
            ExtentKind::Replicated | ExtentKind::Grouped => extents,
            ExtentKind::Postings => FileKind::Addressed,
        };
        let Ok(entry) = stored::entry(self.volume, self.manifest, vectors, None) else {
            return Ok(());
        };
        let (mut tally, mut taken) = (Tally::default(), 0);
        match files::header(self.volume, entry, vectors)? {
            Header::None(what) => tally.add(what),
            Header::Right(header) => {
                let file = stored::name_of(self.volume, &entry.name);
                match ClusterShape::from_header(&header, vectors, &file) {
                    Ok(shape) => taken = self.of_shape(entry, kind, shape, &mut tally)?,
                    Err(error) => tally.add(error),
                }
            }
            Header::Damaged(what) => {
                tally.add(what);
                taken = self.without_header(entry, kind)?;
            }
        }
        let vectors = self.manifest.vectors.saturating_sub(taken);
        if vectors > 0 || tally.first.is_some() {
            let file = stored::name_of(self.volume, &entry.name);
            let what = tally.first;
            let what = what.unwrap_or_else(|| "extents are missing".to_owned());
            let what = what.strip_prefix(&format!("{file}: ")).unwrap_or(&what);
            self.lost.push(Lost {
                what: files::first_part(what).to_owned(),
                file,
                vectors,
            });
        }
        Ok(())
    }

    /// The same where nothing says how wide ids are. Says how many were taken.
    fn without_header(&mut self, entry: &FileEntry, kind: ExtentKind) -> Result<u64, Error> {
        let Some(facts) = self.manifest.clusters() else {
            return Ok(0);
        };
        for id_bytes in ID_BYTES {
            let shape = ClusterShape {
                element: self.manifest.element,
                dim: self.manifest.dimension as usize,
                id_bytes,
                // `stored::manifest` refuses more.
                clusters: facts.clusters as u32,
                vectors: self.manifest.vectors as u32,
            };
            // Only one of them gives right checksums: with the others no vector is taken.
            let mut wrong = Tally::default();
            let taken = self.of_shape(entry, kind, shape, &mut wrong)?;
            if taken > 0 {
                return Ok(taken);
            }
        }
        Ok(0)
    }

    /// Hands over all vectors of a shape, and says how many were taken.
    fn of_shape(
        &mut self,
        entry: &FileEntry,
        kind: ExtentKind,
        shape: ClusterShape,
        tally: &mut Tally,
    ) -> Result<u64, Error> {
        if kind == ExtentKind::Postings {
            return self.members_alone(entry, Members::new(shape), shape.vectors, tally);
        }
        let mut taken = 0;
        let mut bytes = Vec::new();
        for place in self.places(entry, kind, shape)? {
            if self.progress.interrupted() {
                return Err(Error::Interrupted);
            }
            bytes.resize(place.bytes, 0);
            if !files::read(self.volume, &entry.name, place.offset, &mut bytes)? {
                tally.add(format!("cluster {} cannot be read", place.cluster));
                continue;
            }
            taken += match kind {
                ExtentKind::Replicated => self.entries(entry, shape, &place, &bytes, tally)?,
                ExtentKind::Grouped | ExtentKind::Postings => {
                    self.group(entry, Members::new(shape), &place, &bytes, tally)?
                }
            };
        }
        Ok(taken)
    }

    /// Hands over the vectors of a replicated extent, those that stand elsewhere as well among them.
    fn entries(
        &mut self,
        entry: &FileEntry,
        shape: ClusterShape,
        place: &Place,
        bytes: &[u8],
        tally: &mut Tally,
    ) -> Result<u64, Error> {
        let file = stored::name_of(self.volume, &entry.name);
        let at = ExtentPlace {
            file: &file,
            offset: place.offset,
            cluster: place.cluster,
        };
        let view = match ExtentView::new(ExtentKind::Replicated, &shape, bytes, at, true) {
            Ok(view) => view,
            Err(error) => {
                tally.add(error);
                return Ok(0);
            }
        };
        let mut taken = 0;
        for slot in 0..view.records() {
            let (_, id, vector) = view.entry(slot);
            match (self.take)(id, vector)? {
                None => taken += 1,
                // From another cluster.
                Some(Fault::Twice) => {}
                Some(fault) => tally.add(format!("the vector of id {id} is none: {fault:?}")),
            }
        }
        Ok(taken)
    }

    /// Hands over the vectors of a group, each of which has a checksum.
    fn group(
        &mut self,
        entry: &FileEntry,
        members: Members,
        place: &Place,
        bytes: &[u8],
        tally: &mut Tally,
    ) -> Result<u64, Error> {
        let length = place.records as usize * members.bytes();
        let Some(stored) = bytes
            .len()
            .checked_sub(length)
            .and_then(|at| bytes.get(at..))
        else {
            tally.add(format!(
                "cluster {} is too short for its vectors",
                place.cluster
            ));
            return Ok(0);
        };
        let offset = place.offset + (bytes.len() - length) as u64;
        self.members(entry, members, (place.first, offset), stored, tally)
    }

    /// Hands over vectors that stand behind one another, the first of them with its number and its place.
    fn members(
        &mut self,
        entry: &FileEntry,
        members: Members,
        (first, offset): (u32, u64),
        stored: &[u8],
        tally: &mut Tally,
    ) -> Result<u64, Error> {
        let file = stored::name_of(self.volume, &entry.name);
        let mut taken = 0;
        let mut at = offset;
        for (node, bytes) in (first..).zip(stored.chunks_exact(members.bytes())) {
            match members.read(node, bytes, at, true, &file) {
                Ok((id, vector)) => match (self.take)(id, vector)? {
                    None => taken += 1,
                    Some(fault) => {
                        tally.add(format!("the vector of id {id} is not taken: {fault:?}"));
                    }
                },
                Err(error) => tally.add(error),
            }
            at += bytes.len() as u64;
        }
        Ok(taken)
    }

    /// Hands over all vectors of a file of members alone.
    fn members_alone(
        &mut self,
        entry: &FileEntry,
        members: Members,
        vectors: u32,
        tally: &mut Tally,
    ) -> Result<u64, Error> {
        let mut taken = 0;
        let mut bytes = Vec::new();
        let there = self.volume.len(&entry.name)?;
        let whole = there.saturating_sub(BLOCK as u64) / members.bytes() as u64;
        let vectors = u32::try_from(whole).map_or(vectors, |whole| whole.min(vectors));
        for first in (0..vectors).step_by(PIECE as usize) {
            if self.progress.interrupted() {
                return Err(Error::Interrupted);
            }
            let count = PIECE.min(vectors - first);
            bytes.resize(count as usize * members.bytes(), 0);
            let offset = members.offset(first);
            if !files::read(self.volume, &entry.name, offset, &mut bytes)? {
                // One by one: some of them may be there.
                for node in first..first + count {
                    let one = &mut bytes[..members.bytes()];
                    let offset = members.offset(node);
                    match files::read(self.volume, &entry.name, offset, one)? {
                        true => {
                            let one = one.to_vec();
                            taken += self.members(entry, members, (node, offset), &one, tally)?;
                        }
                        false => tally.add(format!("vector {node} cannot be read")),
                    }
                }
                continue;
            }
            taken += self.members(entry, members, (first, offset), &bytes, tally)?;
        }
        Ok(taken)
    }

    /// Where extents are: as the table says, or else as they say themselves.
    fn places(
        &self,
        entry: &FileEntry,
        kind: ExtentKind,
        shape: ClusterShape,
    ) -> Result<Vec<Place>, Error> {
        let Ok(table_entry) = stored::entry(self.volume, self.manifest, FileKind::Clusters, None)
        else {
            return self.found_places(entry, kind, shape);
        };
        let (payload, wrong) = Payload::read(self.volume, table_entry, FileKind::Clusters)?;
        let length = payload.len();
        let whole = payload.get(0, length).filter(|_| wrong.is_none());
        let clusters = u64::from(shape.clusters);
        let table = whole.and_then(|bytes| {
            // The last block's rest is zeros, which are none of the payload.
            let model = bytes
                .get(4..8)
                .map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]))?;
            let length = usize::try_from(8 + 8 * clusters + u64::from(model)).ok()?;
            ClustersFile::decode(bytes.get(..length)?, clusters, &table_entry.name).ok()
        });
        let Some(table) = table else {
            return self.found_places(entry, kind, shape);
        };
        let mut first = 0u32;
        let lengths = table.bytes.iter().zip(&table.records);
        let places = table.offsets(kind).into_iter().zip(lengths).zip(0..);
        Ok(places
            .map(|((offset, (&bytes, &records)), cluster)| {
                let place = Place {
                    cluster,
                    offset,
                    bytes: bytes as usize,
                    first,
                    records,
                };
                first = first.saturating_add(records);
                place
            })
            .collect())
    }

    /// Extents that say by their checksums which clusters they are of. Behind damaged ones numbers of vectors that stand once are unknown,
    /// and found by their own checksums.
    fn found_places(
        &self,
        entry: &FileEntry,
        kind: ExtentKind,
        shape: ClusterShape,
    ) -> Result<Vec<Place>, Error> {
        let there = self.volume.len(&entry.name)?;
        let members = Members::new(shape);
        let stride = kind.stride(&shape) as u64;
        let (mut offset, mut cluster, mut first) = (BLOCK as u64, 0, 0u32);
        let (mut places, mut bytes) = (Vec::new(), Vec::new());
        let file = stored::name_of(self.volume, &entry.name);
        while cluster < shape.clusters && offset + FIXED as u64 <= there {
            if self.progress.interrupted() {
                return Err(Error::Interrupted);
            }
            let mut fixed = [0; FIXED];
            let mut found = None;
            if files::read(self.volume, &entry.name, offset, &mut fixed)? {
                let word = |at: usize| {
                    u64::from(u32::from_le_bytes([
                        fixed[at],
                        fixed[at + 1],
                        fixed[at + 2],
                        fixed[at + 3],
                    ]))
                };
                let length = FIXED as u64 + word(12) + word(4).saturating_mul(stride);
                if length <= MOST_BYTES as u64 && offset + length <= there {
                    bytes.resize(length as usize, 0);
                    if files::read(self.volume, &entry.name, offset, &mut bytes)? {
                        let tried = cluster..shape.clusters.min(cluster.saturating_add(TRIED));
                        found = tried.into_iter().find(|&cluster| {
                            let at = ExtentPlace {
                                file: &file,
                                offset,
                                cluster,
                            };
                            ExtentView::new(kind, &shape, &bytes, at, true).is_ok()
                        });
                    }
                }
            }
            let Some(of) = found else {
                offset += kind.alignment();
                continue;
            };
            let records = u32::from_le_bytes([fixed[4], fixed[5], fixed[6], fixed[7]]);
            if of != cluster && kind == ExtentKind::Grouped && records > 0 {
                // Vectors of those before it have numbers that nobody knows: that of its first is the one with the right checksum.
                let stored = &bytes[bytes.len() - records as usize * members.bytes()..];
                let one = &stored[..members.bytes()];
                let number = (first..shape.vectors)
                    .find(|&node| members.read(node, one, 0, true, &file).is_ok());
                first = number.unwrap_or(first);
            }
            places.push(Place {
                cluster: of,
                offset,
                bytes: bytes.len(),
                first,
                records,
            });
            first = first.saturating_add(records);
            cluster = of + 1;
            offset = (offset + bytes.len() as u64).next_multiple_of(kind.alignment());
        }
        Ok(places)
    }
}
