//! Reads the readable vectors of a cluster index.
//!
//! If the table of posting lists is damaged, posting lists are found one after another, because
//! each list has its length. The checksum of a list also covers its cluster number. This number is
//! one more than in the list before, or higher after damaged lists. In a replicated index, a vector
//! can be taken from any of its clusters.

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
use crate::stores::reading;
use crate::{Error, stored};

/// After a damaged posting list, this many cluster numbers are tried at each offset.
const TRIED: u32 = 16;
/// The number of cluster numbers that are tried in a segment without a table. A list that is found
/// in this way has at most `MOST_BYTES` bytes.
const MOST_TRIED: u32 = 1 << 12;
const MOST_BYTES: usize = 64 << 20;
/// The number of vectors in one read of vectors that are outside posting lists.
const PIECE: u32 = 1024;
/// The possible bytes of an id, which are all tried if the header is damaged.
const ID_BYTES: [usize; 3] = [0, 4, 8];

/// A posting list in its file. If vectors are grouped, its group has `records` vectors, and their
/// numbers begin with `first`.
struct Place {
    cluster: u32,
    offset: u64,
    bytes: usize,
    first: u32,
    records: u32,
}

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
    /// Passes on all readable vectors, and returns the number of vectors that should exist.
    ///
    /// If the table of dead vectors is damaged, the newest files are read first, because only the
    /// newest vector of an id may be live. The repair then restores deleted vectors.
    pub(super) fn clusters(&mut self, extents: FileKind) -> Result<u64, Error> {
        let (volume, manifest) = (self.volume, self.manifest);
        let kind = extent_kind(extents);
        let vectors = match kind {
            ExtentKind::Replicated | ExtentKind::Grouped => extents,
            ExtentKind::Postings => FileKind::Addressed,
        };
        self.placement = reading::placement(volume, manifest).ok().flatten();
        let later = match kind {
            ExtentKind::Replicated => extents,
            ExtentKind::Grouped | ExtentKind::Postings => FileKind::Addressed,
        };
        let mut newer: Vec<(u32, &FileEntry)> = (manifest.files.iter())
            .filter_map(|entry| match entry.kind() {
                Some((of, Some(number))) if of == later => Some((number, entry)),
                _ => None,
            })
            .collect();
        newer.sort_by_key(|&(number, _)| std::cmp::Reverse(number));
        let mut taken = 0;
        let mut tallies = Vec::new();
        for (number, entry) in newer {
            let mut tally = Tally::default();
            taken += self.later(entry, (later, number), &mut tally)?;
            tallies.push((entry, tally));
        }
        if let Ok(entry) = stored::entry(volume, manifest, vectors, None) {
            let mut tally = Tally::default();
            match files::header(volume, entry, vectors)? {
                Header::None(what) => tally.add(what),
                Header::Right(header) => {
                    let file = stored::name_of(volume, &entry.name);
                    match ClusterShape::from_header(&header, vectors, &file) {
                        Ok(shape) => taken += self.of_shape(entry, kind, shape, &mut tally)?,
                        Err(error) => tally.add(error),
                    }
                }
                Header::Damaged(what) => {
                    tally.add(what);
                    taken += self.without_header(entry, kind)?;
                }
            }
            tallies.push((entry, tally));
        }
        let all = manifest
            .placement
            .map_or(manifest.vectors, |facts| facts.live);
        // The loss is reported for the first damaged file, or else for the last file.
        let mut missing = all.saturating_sub(taken);
        let last = tallies.len();
        let damaged = tallies.iter().any(|(_, tally)| tally.first.is_some());
        for (n, (entry, tally)) in (1..).zip(tallies) {
            if tally.first.is_none() && (missing == 0 || damaged || n < last) {
                continue;
            }
            let file = stored::name_of(volume, &entry.name);
            let what = tally.first;
            let what = what.unwrap_or_else(|| "posting lists are missing".to_owned());
            let what = what.strip_prefix(&format!("{file}: ")).unwrap_or(&what);
            self.lost.push(Lost {
                what: files::first_part(what).to_owned(),
                file,
                vectors: std::mem::take(&mut missing),
            });
        }
        Ok(all)
    }

    /// If the dead vectors are unknown, the vector with the highest number of each id counts as
    /// live.
    fn newest_first(&self) -> bool {
        self.manifest.placement.is_some() && self.placement.is_none()
    }

    fn is_dead(&self, id: u64, node: u32) -> bool {
        let placement = self.placement.as_ref();
        placement.is_some_and(|placement| placement.is_dead(id, node))
    }

    fn later(
        &mut self,
        entry: &FileEntry,
        (kind, number): (FileKind, u32),
        tally: &mut Tally,
    ) -> Result<u64, Error> {
        let Some(facts) = self.manifest.clusters() else {
            return Ok(0);
        };
        let file = stored::name_of(self.volume, &entry.name);
        // `stored::manifest` refuses a manifest with more nodes.
        let nodes = self.manifest.nodes() as u32;
        let mut shapes: Vec<ClusterShape> = ID_BYTES
            .iter()
            .map(|&id_bytes| ClusterShape {
                element: self.manifest.element,
                dim: self.manifest.dimension as usize,
                id_bytes,
                clusters: facts.clusters as u32,
                vectors: nodes,
            })
            .collect();
        match files::header(self.volume, entry, kind)? {
            Header::None(what) => {
                tally.add(what);
                return Ok(0);
            }
            Header::Right(header) => match ClusterShape::from_header(&header, kind, &file) {
                Ok(shape) => shapes = vec![shape],
                Err(error) => tally.add(error),
            },
            Header::Damaged(what) => tally.add(what),
        }
        for shape in shapes {
            let mut wrong = Tally::default();
            let taken = match kind {
                FileKind::Addressed => self.later_members(entry, shape, number, &mut wrong)?,
                _ => self.later_extents(entry, shape, number, &mut wrong)?,
            };
            if taken > 0 || wrong.first.is_none() {
                if let Some(what) = wrong.first {
                    tally.add(what);
                }
                return Ok(taken);
            }
            tally.add(wrong.first.unwrap_or_default());
        }
        Ok(0)
    }

    /// Without the table, cluster numbers are tried until the checksum matches. The number of tries
    /// is limited, because with enough tries any bytes match by chance.
    fn later_extents(
        &mut self,
        entry: &FileEntry,
        shape: ClusterShape,
        number: u32,
        tally: &mut Tally,
    ) -> Result<u64, Error> {
        let known = reading::amended(self.volume, self.manifest).ok().flatten();
        let segment = known.and_then(|amended| {
            let mut segments = amended.extents.into_iter();
            segments.find(|segment| segment.number == number)
        });
        let kind = ExtentKind::Replicated;
        let places = match segment {
            Some(segment) => {
                let offsets = segment.offsets(kind).into_iter();
                let places = offsets.zip(&segment.extents);
                places
                    .map(|(offset, extent)| Place {
                        cluster: extent.cluster,
                        offset,
                        bytes: extent.bytes as usize,
                        first: 0,
                        records: extent.records,
                    })
                    .collect()
            }
            None => {
                tally.add("the table of its posting lists is damaged");
                // Cluster numbers in the segment ascend, and are less than twice this number.
                let clusters = self
                    .manifest
                    .clusters()
                    .map_or(0, |facts| facts.clusters as u32);
                let shape = ClusterShape {
                    clusters: clusters.saturating_mul(2),
                    ..shape
                };
                self.found_places(entry, kind, shape, MOST_TRIED)?
            }
        };
        let mut taken = 0;
        let mut bytes = Vec::new();
        for place in places {
            if self.progress.interrupted() {
                return Err(Error::Interrupted);
            }
            bytes.resize(place.bytes, 0);
            if !files::read(self.volume, &entry.name, place.offset, &mut bytes)? {
                tally.add(format!("cluster {} cannot be read", place.cluster));
                continue;
            }
            taken += self.entries(entry, shape, &place, &bytes, tally)?;
        }
        Ok(taken)
    }

    /// Reads a file of single vectors. The table has the number of the first vector. Without the
    /// table, numbers are tried until the checksum of a vector matches.
    fn later_members(
        &mut self,
        entry: &FileEntry,
        shape: ClusterShape,
        number: u32,
        tally: &mut Tally,
    ) -> Result<u64, Error> {
        let (volume, manifest) = (self.volume, self.manifest);
        let members = Members::new(shape);
        let there = volume.len(&entry.name)?.saturating_sub(BLOCK as u64);
        let count = u32::try_from(there / members.bytes() as u64).unwrap_or(u32::MAX);
        let known = reading::amended(volume, manifest).ok().flatten();
        let known = known.and_then(|amended| {
            let n = amended
                .members
                .iter()
                .position(|file| file.number == number)?;
            let next = amended.members.get(n + 1).map(|next| next.first);
            Some((
                amended.members[n].first,
                next.unwrap_or(manifest.nodes() as u32),
            ))
        });
        let (built, nodes) = (
            manifest.vectors as u32,
            shape.vectors.max(manifest.nodes() as u32),
        );
        let file = stored::name_of(volume, &entry.name);
        let mut one = vec![0; members.bytes()];
        let (first, end) = match known {
            Some((first, end)) => (Some(first), end),
            None => {
                let mut found = None;
                for place in 0..count.min(TRIED) {
                    let offset = BLOCK as u64 + u64::from(place) * members.bytes() as u64;
                    if !files::read(volume, &entry.name, offset, &mut one)? {
                        continue;
                    }
                    let is = |&node: &u32| members.read(node, &one, || offset, true, &file).is_ok();
                    // A damaged record may match by chance. So the record after it must match the
                    // next number.
                    let Some(node) = (built..nodes).find(is) else {
                        continue;
                    };
                    let behind = offset + members.bytes() as u64;
                    let mut next = vec![0; members.bytes()];
                    let confirmed = place + 1 == count
                        || files::read(volume, &entry.name, behind, &mut next)?
                            && (next.iter().all(|&byte| byte == 0)
                                || members
                                    .read(node + 1, &next, || behind, true, &file)
                                    .is_ok());
                    if confirmed {
                        found = node.checked_sub(place);
                        break;
                    }
                }
                // After the last record, zeros fill the block, and are not counted as records.
                let mut whole = count;
                while whole > 0 {
                    let offset = BLOCK as u64 + u64::from(whole - 1) * members.bytes() as u64;
                    let read = files::read(volume, &entry.name, offset, &mut one)?;
                    if !read || one.iter().any(|&byte| byte != 0) {
                        break;
                    }
                    whole -= 1;
                }
                (found, found.unwrap_or(0).saturating_add(whole).min(nodes))
            }
        };
        let Some(first) = first else {
            tally.add("none of its vectors can be read");
            return Ok(0);
        };
        self.members_alone(entry, Members::starting_at(shape, first), first..end, tally)
    }

    /// Reads a file with a damaged header. Only the header has the width of ids, so each width is
    /// tried. Returns the number of vectors that were taken.
    fn without_header(&mut self, entry: &FileEntry, kind: ExtentKind) -> Result<u64, Error> {
        let Some(facts) = self.manifest.clusters() else {
            return Ok(0);
        };
        for id_bytes in ID_BYTES {
            let shape = ClusterShape {
                element: self.manifest.element,
                dim: self.manifest.dimension as usize,
                id_bytes,
                // `stored::manifest` refuses a manifest with more clusters.
                clusters: facts.clusters as u32,
                vectors: self.manifest.vectors as u32,
            };
            // With a wrong width of ids, no checksum matches.
            let mut wrong = Tally::default();
            let taken = self.of_shape(entry, kind, shape, &mut wrong)?;
            if taken > 0 {
                return Ok(taken);
            }
        }
        Ok(0)
    }

    fn of_shape(
        &mut self,
        entry: &FileEntry,
        kind: ExtentKind,
        shape: ClusterShape,
        tally: &mut Tally,
    ) -> Result<u64, Error> {
        if kind == ExtentKind::Postings {
            return self.members_alone(entry, Members::new(shape), 0..shape.vectors, tally);
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

    /// Takes the vectors of a posting list, including vectors for which another cluster is nearest.
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
            let (node, id, vector) = view.entry(slot);
            if self.is_dead(id, node) {
                continue;
            }
            match (self.take)(id, vector)? {
                None => taken += 1,
                // The vector was already taken from another cluster.
                Some(Fault::Twice) => {}
                Some(fault) => tally.add(format!("the vector of id {id} is not valid: {fault:?}")),
            }
        }
        Ok(taken)
    }

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
        let mut all: Vec<(u32, &[u8])> = (first..)
            .zip(stored.chunks_exact(members.bytes()))
            .collect();
        if self.newest_first() {
            all.reverse();
        }
        for (node, bytes) in all {
            let at = offset + u64::from(node - first) * bytes.len() as u64;
            match members.read(node, bytes, || at, true, &file) {
                Ok((id, _)) if self.is_dead(id, node) => {}
                Ok((id, vector)) => match (self.take)(id, vector)? {
                    None => taken += 1,
                    // A newer vector with this id was already taken.
                    Some(Fault::Twice) if self.manifest.placement.is_some() => {}
                    Some(fault) => {
                        tally.add(format!("the vector of id {id} is not taken: {fault:?}"));
                    }
                },
                Err(error) => tally.add(error),
            }
        }
        Ok(taken)
    }

    fn members_alone(
        &mut self,
        entry: &FileEntry,
        members: Members,
        numbers: std::ops::Range<u32>,
        tally: &mut Tally,
    ) -> Result<u64, Error> {
        let mut taken = 0;
        let mut bytes = Vec::new();
        let there = self.volume.len(&entry.name)?;
        let whole = there.saturating_sub(BLOCK as u64) / members.bytes() as u64;
        let whole = u32::try_from(whole).unwrap_or(u32::MAX);
        let vectors = numbers.end.min(numbers.start.saturating_add(whole));
        // If it is unknown which vector of an id is live, the highest numbers are read first.
        let mut starts: Vec<u32> = (numbers.start..vectors).step_by(PIECE as usize).collect();
        if self.newest_first() {
            starts.reverse();
        }
        for first in starts {
            if self.progress.interrupted() {
                return Err(Error::Interrupted);
            }
            let count = PIECE.min(vectors - first);
            bytes.resize(count as usize * members.bytes(), 0);
            let offset = members.offset(first);
            if !files::read(self.volume, &entry.name, offset, &mut bytes)? {
                // Some of the vectors may be readable one by one.
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

    fn places(
        &self,
        entry: &FileEntry,
        kind: ExtentKind,
        shape: ClusterShape,
    ) -> Result<Vec<Place>, Error> {
        let Ok(table_entry) = stored::entry(self.volume, self.manifest, FileKind::Clusters, None)
        else {
            return self.found_places(entry, kind, shape, TRIED);
        };
        let (payload, wrong) = Payload::read(self.volume, table_entry, FileKind::Clusters)?;
        let length = payload.len();
        let whole = payload.get(0, length).filter(|_| wrong.is_none());
        let clusters = u64::from(shape.clusters);
        let table = whole.and_then(|bytes| {
            // The length of the payload, without the zeros that fill the last block.
            let model = bytes
                .get(4..8)
                .map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]))?;
            let length = usize::try_from(8 + 8 * clusters + u64::from(model)).ok()?;
            ClustersFile::decode(bytes.get(..length)?, clusters, &table_entry.name).ok()
        });
        let Some(table) = table else {
            return self.found_places(entry, kind, shape, TRIED);
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

    /// Finds posting lists by their checksums. After a damaged list, the number of a group's first
    /// vector is found by the checksum of this vector.
    fn found_places(
        &self,
        entry: &FileEntry,
        kind: ExtentKind,
        shape: ClusterShape,
        tried: u32,
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
                        let tried = cluster..shape.clusters.min(cluster.saturating_add(tried));
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
                // The number of vectors in the skipped clusters is unknown. The first number of
                // this group must match the checksum of its first vector.
                let stored = &bytes[bytes.len() - records as usize * members.bytes()..];
                let one = &stored[..members.bytes()];
                let number = (first..shape.vectors)
                    .find(|&node| members.read(node, one, || 0, true, &file).is_ok());
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
