//! Posting lists of clusters, called *extents* in code. A probe of a cluster reads one of them.
//!
//! ```text
//! file: | header block | list 0 | zeros | list 1 | zeros | ...    zeros up to whole blocks
//! ```
//!
//! Each posting list begins at a multiple of [`ExtentKind::alignment`], in the order of the
//! clusters. The bytes of a posting list of cluster `c`, little-endian:
//!
//! | offset | bytes | contents |
//! |---|---|---|
//! | 0 | 4 | crc32c of `c` as u64, then of the covered bytes, from offset 4 on |
//! | 4 | 4 | `r`: the number of vectors in it |
//! | 8 | 4 | the number of its own vectors, which are the first ones |
//! | 12 | 4 | `a`: bytes of the encoded numbers of the other members |
//! | 16 | a | these numbers: an ascending list, by the model of the [table](super::table) |
//! | 16 + a | … | the vectors |
//!
//! A vector is a cluster's *own* if no other cluster is nearer to it. If each vector is stored
//! once, all `r` vectors are own ones. In a replicated file `a` is 0, the checksum covers the whole
//! posting list, and a vector is an *entry*:
//!
//! | offset | bytes | contents |
//! |---|---|---|
//! | 0 | v | the vector |
//! | v | 4 | its number |
//! | v + 4 | 0, 4 or 8 | its external id |
//!
//! In a grouped file a vector is a [member](super::member) with a checksum of its own, and the
//! checksum of the posting list covers the bytes before the vectors. In a file of postings `r` is
//! 0.

use super::ClusterShape;
use super::member::Members;
use crate::block::{self, BLOCK, u32_at};
use crate::error::LayoutError;
use crate::header::FileKind;

/// Bytes before the numbers of other members.
pub const FIXED: usize = 16;

/// The contents of the posting lists of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExtentKind {
    /// All members with their vectors.
    Replicated,
    /// The group's vectors, and the numbers of the other members.
    Grouped,
    /// The numbers of all members.
    Postings,
}

impl ExtentKind {
    /// The contents of the posting lists in a file of this kind; `None` if it has no posting lists.
    pub fn of(kind: FileKind) -> Option<ExtentKind> {
        match kind {
            FileKind::Replicated => Some(Self::Replicated),
            FileKind::Grouped => Some(Self::Grouped),
            FileKind::Postings => Some(Self::Postings),
            _ => None,
        }
    }

    /// The alignment of posting lists in bytes: a block for reads from an SSD, otherwise a cache
    /// line.
    pub fn alignment(self) -> u64 {
        match self {
            Self::Replicated => BLOCK as u64,
            Self::Grouped | Self::Postings => 64,
        }
    }

    /// Bytes of a vector in a posting list.
    pub fn stride(self, shape: &ClusterShape) -> usize {
        match self {
            Self::Replicated => shape.vector_bytes() + 4 + shape.id_bytes,
            Self::Grouped => Members::new(*shape).bytes(),
            Self::Postings => 0,
        }
    }
}

/// Builds a posting list, in one reused buffer.
#[derive(Debug)]
pub struct ExtentBuilder {
    kind: ExtentKind,
    shape: ClusterShape,
    members: Members,
    bytes: Vec<u8>,
    records: u32,
    own: u32,
}

impl ExtentBuilder {
    /// A builder with an empty posting list.
    pub fn new(kind: ExtentKind, shape: ClusterShape) -> ExtentBuilder {
        let mut builder = ExtentBuilder {
            kind,
            shape,
            members: Members::new(shape),
            bytes: Vec::new(),
            records: 0,
            own: 0,
        };
        builder.start(&[]);
        builder
    }

    /// Empties the posting list. `others` is the encoded list of the numbers of the other members.
    ///
    /// # Panics
    /// Panics if `others` is not empty in a replicated file.
    pub fn start(&mut self, others: &[u8]) {
        assert!(
            others.is_empty() || self.kind != ExtentKind::Replicated,
            "a replicated cluster stores the vectors of all its members"
        );
        self.bytes.clear();
        self.bytes.resize(FIXED, 0);
        self.bytes[12..FIXED].copy_from_slice(&(others.len() as u32).to_le_bytes());
        self.bytes.extend_from_slice(others);
        (self.records, self.own) = (0, 0);
    }

    /// Appends the vector of `node`. Vectors with `own`, to which no other cluster is nearer, must
    /// come first.
    ///
    /// # Panics
    /// Panics if the file has postings only, or the vector has the wrong length.
    pub fn push(&mut self, node: u32, id: u64, vector: &[u8], own: bool) {
        assert_eq!(
            vector.len(),
            self.shape.vector_bytes(),
            "the vector has the wrong number of bytes"
        );
        match self.kind {
            ExtentKind::Replicated => {
                self.bytes.extend_from_slice(vector);
                self.bytes.extend_from_slice(&node.to_le_bytes());
                self.shape.push_id(id, &mut self.bytes);
            }
            ExtentKind::Grouped => self.members.push(node, id, vector, &mut self.bytes),
            ExtentKind::Postings => panic!("posting lists of addressed clusters have no vectors"),
        }
        self.records += 1;
        self.own += u32::from(own);
    }

    /// Seals the posting list for a cluster and returns its bytes, without the zeros after it.
    pub fn finish(&mut self, cluster: u32) -> &[u8] {
        self.bytes[4..8].copy_from_slice(&self.records.to_le_bytes());
        self.bytes[8..12].copy_from_slice(&self.own.to_le_bytes());
        let covered = covered(self.kind, &self.bytes);
        let sum = block::checksum(cluster.into(), &self.bytes[4..covered]);
        self.bytes[..4].copy_from_slice(&sum.to_le_bytes());
        &self.bytes
    }

    /// The number of vectors stored so far.
    pub fn records(&self) -> u32 {
        self.records
    }
}

/// The number of bytes that the checksum covers. `bytes` has at least [`FIXED`] bytes.
fn covered(kind: ExtentKind, bytes: &[u8]) -> usize {
    match kind {
        ExtentKind::Replicated => bytes.len(),
        ExtentKind::Grouped | ExtentKind::Postings => FIXED + u32_at(bytes, 12) as usize,
    }
}

/// A posting list, read in place.
#[derive(Clone, Copy, Debug)]
pub struct ExtentView<'a> {
    kind: ExtentKind,
    shape: &'a ClusterShape,
    bytes: &'a [u8],
    at: usize,
    stride: usize,
    records: u32,
    own: u32,
}

/// The position of a posting list, for errors.
#[derive(Clone, Copy, Debug)]
pub struct ExtentPlace<'a> {
    /// The file with the posting list.
    pub file: &'a str,
    /// The offset of the first byte of the posting list in the file.
    pub offset: u64,
    /// The cluster of the posting list.
    pub cluster: u32,
}

impl<'a> ExtentView<'a> {
    /// Opens the posting list whose bytes are exactly `bytes`. With `check`, verifies its checksum.
    ///
    /// # Errors
    /// Fails if the checksum is wrong, or the length does not match the counts.
    pub fn new(
        kind: ExtentKind,
        shape: &'a ClusterShape,
        bytes: &'a [u8],
        place: ExtentPlace<'_>,
        check: bool,
    ) -> Result<ExtentView<'a>, LayoutError> {
        let wrong = |what, found: String, expected: String| LayoutError::Field {
            file: place.file.to_owned(),
            offset: place.offset,
            what,
            found,
            expected,
        };
        if bytes.len() < FIXED {
            let expected = format!("{FIXED} bytes or more");
            return Err(wrong(
                "length of a posting list",
                bytes.len().to_string(),
                expected,
            ));
        }
        let (records, own) = (u32_at(bytes, 4), u32_at(bytes, 8));
        let covered = covered(kind, bytes);
        let Some(checked) = bytes.get(4..covered) else {
            let found = format!("{} bytes of numbers", covered - FIXED);
            let expected = format!("at most {}", bytes.len() - FIXED);
            return Err(wrong("posting list", found, expected));
        };
        if check {
            let stored = u32_at(bytes, 0);
            let computed = block::checksum(place.cluster.into(), checked);
            if stored != computed {
                return Err(LayoutError::Checksum {
                    file: place.file.to_owned(),
                    offset: place.offset,
                    stored,
                    computed,
                });
            }
        }
        let stride = kind.stride(shape);
        let at = FIXED + u32_at(bytes, 12) as usize;
        let expected = at as u64 + u64::from(records) * stride as u64;
        let fits = expected == bytes.len() as u64
            && own <= records
            && (kind != ExtentKind::Replicated || at == FIXED)
            && (kind != ExtentKind::Grouped || own == records)
            && (kind != ExtentKind::Postings || records == 0);
        if !fits {
            let found = format!(
                "{records} vectors, {own} of them its own, and {} bytes of numbers in {} bytes",
                at - FIXED,
                bytes.len()
            );
            return Err(wrong(
                "posting list",
                found,
                format!("counts that add up to {expected} bytes"),
            ));
        }
        Ok(ExtentView {
            kind,
            shape,
            bytes,
            at,
            stride,
            records,
            own,
        })
    }

    /// The number of vectors stored in the posting list.
    pub fn records(&self) -> u32 {
        self.records
    }

    /// The number of the cluster's own vectors, which are the first ones.
    pub fn own(&self) -> u32 {
        self.own
    }

    /// The encoded list of the numbers of the other members; empty in a replicated file.
    pub fn others(&self) -> &'a [u8] {
        &self.bytes[FIXED..self.at]
    }

    /// An entry of a replicated posting list: number, external id and vector.
    ///
    /// # Panics
    /// Panics if the slot does not exist, or the posting list is not replicated.
    pub fn entry(&self, slot: u32) -> (u32, u64, &'a [u8]) {
        assert!(
            slot < self.records && self.kind == ExtentKind::Replicated,
            "no entry {slot} of {}",
            self.records
        );
        let entry = self.stored(slot);
        let (vector, rest) = entry.split_at(self.shape.vector_bytes());
        let node = u32_at(rest, 0);
        (node, self.shape.id_of(node, &rest[4..]), vector)
    }

    /// The stored bytes of a vector; in a grouped file, the bytes of a [member](Members).
    ///
    /// # Panics
    /// Panics if the slot does not exist.
    pub fn stored(&self, slot: u32) -> &'a [u8] {
        let at = self.at + slot as usize * self.stride;
        &self.bytes[at..at + self.stride]
    }

    /// The byte offset of the vectors in the posting list.
    pub fn vectors_at(&self) -> usize {
        self.at
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::tests::shape;
    use super::*;

    const PLACE: ExtentPlace<'static> = ExtentPlace {
        file: "e",
        offset: 4096,
        cluster: 2,
    };

    fn extent(kind: ExtentKind) -> Vec<u8> {
        let mut builder = ExtentBuilder::new(kind, shape());
        let others: &[u8] = match kind {
            ExtentKind::Replicated => &[],
            ExtentKind::Grouped | ExtentKind::Postings => &[9, 8, 7],
        };
        builder.start(others);
        if kind != ExtentKind::Postings {
            builder.push(4, 40, &[1, 2, 3, 4, 5], true);
            builder.push(5, 50, &[5, 4, 3, 2, 1], kind == ExtentKind::Grouped);
        }
        builder.finish(2).to_vec()
    }

    const KINDS: [ExtentKind; 3] = [
        ExtentKind::Replicated,
        ExtentKind::Grouped,
        ExtentKind::Postings,
    ];

    #[test]
    fn what_is_built_is_read() {
        let shape = shape();
        let bytes = extent(ExtentKind::Replicated);
        let view = ExtentView::new(ExtentKind::Replicated, &shape, &bytes, PLACE, true).unwrap();
        assert_eq!((view.records(), view.own(), view.others()), (2, 1, &[][..]));
        assert_eq!(view.entry(0), (4, 40, &[1, 2, 3, 4, 5][..]));
        assert_eq!(view.entry(1), (5, 50, &[5, 4, 3, 2, 1][..]));

        let bytes = extent(ExtentKind::Grouped);
        let view = ExtentView::new(ExtentKind::Grouped, &shape, &bytes, PLACE, true).unwrap();
        assert_eq!(
            (view.records(), view.own(), view.others()),
            (2, 2, &[9, 8, 7][..])
        );
        let members = Members::new(shape);
        let member = members.read(5, view.stored(1), || 0, true, "e").unwrap();
        assert_eq!(member, (50, &[5, 4, 3, 2, 1][..]));

        let bytes = extent(ExtentKind::Postings);
        let view = ExtentView::new(ExtentKind::Postings, &shape, &bytes, PLACE, true).unwrap();
        assert_eq!((view.records(), view.others()), (0, &[9, 8, 7][..]));
    }

    #[test]
    fn every_flipped_bit_of_what_is_covered_and_every_other_place_is_found() {
        let shape = shape();
        for kind in KINDS {
            let bytes = extent(kind);
            let covered = covered(kind, &bytes);
            for bit in 0..8 * covered {
                let mut damaged = bytes.clone();
                damaged[bit / 8] ^= 1 << (bit % 8);
                let read = ExtentView::new(kind, &shape, &damaged, PLACE, true);
                assert!(read.is_err(), "{kind:?}, bit {bit}");
            }
            let cluster = 3;
            let elsewhere = ExtentPlace { cluster, ..PLACE };
            let error = ExtentView::new(kind, &shape, &bytes, elsewhere, true).unwrap_err();
            assert!(
                error
                    .to_string()
                    .contains("checksum mismatch in the block at offset 4096"),
                "{error}"
            );
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_refused_or_read(bytes in prop::collection::vec(any::<u8>(), 0..80), counts in prop::collection::vec(0u8..5, 12)) {
            let shape = shape();
            for kind in KINDS {
                let mut bytes = bytes.clone();
                for form in 0..2 {
                    if form == 1 && bytes.len() >= FIXED {
                        bytes[4..FIXED].copy_from_slice(&[counts[0], 0, 0, 0, counts[1], 0, 0, 0, counts[2], 0, 0, 0]);
                    }
                    if let Ok(view) = ExtentView::new(kind, &shape, &bytes, PLACE, false) {
                        let _ = view.others();
                        for slot in 0..view.records() {
                            let _ = view.stored(slot);
                        }
                    }
                }
            }
        }
    }
}
