//! Files of a cluster index: the vectors by clusters, and the tables with the position of each
//! cluster.
//!
//! A *cluster* has a head, which is one of the vectors, and *members*, the vectors near it. A
//! vector may be a member of several clusters. A probe of a cluster reads its posting list, called
//! *extent* in code:
//!
//! | layout | file of posting lists | contents of a posting list |
//! |---|---|---|
//! | replicated (SPANN) | `replicated-…` | all members with their vectors, on whole blocks |
//! | addressed | `postings-…` | the numbers of all members |
//! | grouped | `grouped-…` | the vectors of its *group*, and the numbers of its other members |
//!
//! A replicated index stores a vector once for each of its clusters. An addressed index stores each
//! vector once, in `addressed-…`. A grouped index stores each vector once, in the group of one of
//! its clusters. Vectors are numbered in the order in which they are stored, so a number alone
//! gives the position of a vector.
//!
//! A reader reads any range of bytes of these files, because a memory may have smaller units than
//! blocks. A posting list has a checksum, seeded with the number of its cluster. A vector that may
//! be read without its posting list has a checksum, seeded with the number of the vector. Only the
//! header is a block.
//!
//! All these files have the same fields in their header:
//!
//! | offset | bytes | contents |
//! |---|---|---|
//! | 0 | 4 | code of the element type |
//! | 4 | 4 | dimension |
//! | 8 | 4 | bytes of an external id: 0 if it is the vector's number, else 4 or 8 |
//! | 12 | 4 | clusters |
//! | 16 | 8 | vectors |

pub mod amended;
pub mod extent;
pub mod member;
pub mod table;

use stratann_vector::Element;

use crate::block::BLOCK;
use crate::error::LayoutError;
use crate::geometry::{MAX_DIMENSION, read_element};
use crate::header::{FieldsWriter, FileHeader, FileKind};

/// Format version of all these files. 1: the first.
pub const FORMAT_VERSION: u32 = 1;

/// The shape of a cluster index: the type of its vectors, and the numbers of vectors and clusters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClusterShape {
    /// The element type of the vectors.
    pub element: Element,
    /// The dimension of the vectors.
    pub dim: usize,
    /// Bytes of an external id: 0 if it is the vector's number, else 4 or 8.
    pub id_bytes: usize,
    /// The number of clusters, 1 or more.
    pub clusters: u32,
    /// The number of vectors when the file was written, at least the number of clusters.
    pub vectors: u32,
}

impl ClusterShape {
    /// The bytes of an external id below `next`. If `are_numbers`, the ids are the vectors'
    /// numbers, and take 0 bytes.
    pub fn id_bytes(next: u64, are_numbers: bool) -> usize {
        match (are_numbers, next) {
            (true, _) => 0,
            (false, 0..=0x1_0000_0000) => 4,
            (false, _) => 8,
        }
    }

    /// Bytes of a vector.
    pub fn vector_bytes(&self) -> usize {
        self.dim * self.element.size()
    }

    fn push_id(&self, id: u64, out: &mut Vec<u8>) {
        out.extend_from_slice(&id.to_le_bytes()[..self.id_bytes]);
    }

    fn id_of(&self, node: u32, bytes: &[u8]) -> u64 {
        if self.id_bytes == 0 {
            return node.into();
        }
        let mut id = [0; 8];
        id[..self.id_bytes].copy_from_slice(bytes);
        u64::from_le_bytes(id)
    }

    /// The header of a file of this kind, of `length` bytes.
    pub fn header(&self, kind: FileKind, length: u64) -> FileHeader {
        let fields = FieldsWriter::new()
            .u32(self.element.code().into())
            .u32(self.dim as u32)
            .u32(self.id_bytes as u32)
            .u32(self.clusters)
            .u64(self.vectors.into())
            .finish();
        FileHeader::new(kind, length, fields)
    }

    /// Decodes the shape from a header.
    ///
    /// # Errors
    /// Fails if the file is of another kind, or a field is out of range.
    pub fn from_header(
        header: &FileHeader,
        kind: FileKind,
        file: &str,
    ) -> Result<ClusterShape, LayoutError> {
        header.expect_kind(kind, file)?;
        let mut fields = header.fields(file);
        let wrong = |offset, what, found: u64, expected: &str| LayoutError::Field {
            file: file.to_owned(),
            offset,
            what,
            found: found.to_string(),
            expected: expected.to_owned(),
        };
        let element = read_element(&mut fields, file)?;
        let at = fields.offset();
        let dim = fields.u32("dimension")?;
        let id_bytes = fields.u32("bytes of an external id")?;
        let clusters = fields.u32("clusters")?;
        let vectors = fields.u64("vectors")?;
        fields.end()?;
        if dim == 0 || dim as usize > MAX_DIMENSION {
            return Err(wrong(at, "dimension", dim.into(), "1 to 65536"));
        }
        if !matches!(id_bytes, 0 | 4 | 8) {
            let what = "bytes of an external id";
            return Err(wrong(at + 4, what, id_bytes.into(), "0, 4 or 8"));
        }
        let most = u64::from(u32::MAX - 1);
        if vectors == 0 || vectors > most {
            return Err(wrong(at + 12, "vectors", vectors, "1 to 4294967294"));
        }
        if clusters == 0 || u64::from(clusters) > vectors {
            let expected = format!("1 to {vectors}, the number of vectors");
            return Err(wrong(at + 8, "clusters", clusters.into(), &expected));
        }
        if !header.length.is_multiple_of(BLOCK as u64) {
            return Err(wrong(
                32,
                "length of the file",
                header.length,
                "whole blocks",
            ));
        }
        Ok(ClusterShape {
            element,
            dim: dim as usize,
            id_bytes: id_bytes as usize,
            clusters,
            vectors: vectors as u32,
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    pub(super) fn shape() -> ClusterShape {
        ClusterShape {
            element: Element::U8,
            dim: 5,
            id_bytes: 4,
            clusters: 3,
            vectors: 20,
        }
    }

    #[test]
    fn a_header_says_the_shape_and_one_that_cannot_be_is_refused() {
        let kind = FileKind::Grouped;
        let right = shape().header(kind, 2 * BLOCK as u64);
        assert_eq!(
            ClusterShape::from_header(&right, kind, "g").unwrap(),
            shape()
        );
        let refused = |change: &dyn Fn(&mut ClusterShape), length| {
            let mut shape = shape();
            change(&mut shape);
            let header = shape.header(kind, length);
            ClusterShape::from_header(&header, kind, "g")
                .unwrap_err()
                .to_string()
        };
        let blocks = 2 * BLOCK as u64;
        for (text, expected) in [
            (
                refused(&|s| s.dim = 0, blocks),
                "dimension at offset 52 is 0",
            ),
            (
                refused(&|s| s.id_bytes = 3, blocks),
                "external id at offset 56 is 3",
            ),
            (
                refused(&|s| s.clusters = 21, blocks),
                "clusters at offset 60 is 21",
            ),
            (
                refused(&|s| s.vectors = 0, blocks),
                "vectors at offset 64 is 0",
            ),
            (refused(&|_| {}, blocks + 1), "whole blocks"),
        ] {
            assert!(text.contains(expected), "{text}");
        }
        let other = ClusterShape::from_header(&right, FileKind::Postings, "g").unwrap_err();
        assert!(
            other.to_string().contains("is grouped; postings expected"),
            "{other}"
        );
    }

    #[test]
    fn ids_take_what_the_largest_takes() {
        assert_eq!(ClusterShape::id_bytes(7, true), 0);
        assert_eq!(ClusterShape::id_bytes(1 << 32, false), 4);
        assert_eq!(ClusterShape::id_bytes((1 << 32) + 1, false), 8);
        for id_bytes in [0, 4, 8] {
            let shape = ClusterShape {
                id_bytes,
                ..shape()
            };
            let mut out = Vec::new();
            shape.push_id(17, &mut out);
            assert_eq!((out.len(), shape.id_of(17, &out)), (id_bytes, 17));
        }
    }

    proptest! {
        #[test]
        fn any_fields_are_refused_or_read(fields in prop::collection::vec(any::<u8>(), 0..40), length: u64) {
            let header = FileHeader::new(FileKind::Replicated, length, fields);
            let _ = ClusterShape::from_header(&header, FileKind::Replicated, "r");
        }
    }
}
