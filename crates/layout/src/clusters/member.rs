//! A member is a vector that is stored once, and may be read without a posting list.
//!
//! | offset | bytes | contents |
//! |---|---|---|
//! | 0 | v | the vector |
//! | v | 0, 4 or 8 | its external id |
//! | … | 4 | crc32c of its number as u64, then of the bytes before |
//!
//! In a grouped file, members are in the [posting lists](super::extent). In a file of members
//! alone, they are in the order of their numbers:
//!
//! ```text
//! file: | header block | member 0 | member 1 | ... | zeros to whole blocks
//! ```
//!
//! A file that was written after the build begins with the number of a later vector
//! ([`super::amended`]).

use super::ClusterShape;
use crate::block::{self, BLOCK, u32_at};
use crate::error::LayoutError;

/// Reads and writes members of one shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Members {
    shape: ClusterShape,
    first: u32,
}

impl Members {
    /// Creates the reader and writer of members for an index of this shape.
    pub fn new(shape: ClusterShape) -> Members {
        Members { shape, first: 0 }
    }

    /// Like [`new`](Self::new), for a file that begins with vector `first`.
    pub fn starting_at(shape: ClusterShape, first: u32) -> Members {
        Members { shape, first }
    }

    /// The shape of the index.
    pub fn shape(&self) -> ClusterShape {
        self.shape
    }

    /// Bytes of a member.
    pub fn bytes(&self) -> usize {
        self.shape.vector_bytes() + self.shape.id_bytes + 4
    }

    /// The byte offset of vector `node`, which must be in the file of members alone.
    pub fn offset(&self, node: u32) -> u64 {
        BLOCK as u64 + u64::from(node.saturating_sub(self.first)) * self.bytes() as u64
    }

    /// The length in bytes of a file of members alone that ends before vector `end`.
    pub fn file_length_to(&self, end: u32) -> u64 {
        self.offset(end).next_multiple_of(BLOCK as u64)
    }

    /// The length in bytes of a file of members alone.
    pub fn file_length(&self) -> u64 {
        self.file_length_to(self.shape.vectors)
    }

    /// Appends vector `node`.
    ///
    /// # Panics
    /// Panics if the vector has the wrong length.
    pub fn push(&self, node: u32, id: u64, vector: &[u8], out: &mut Vec<u8>) {
        assert_eq!(
            vector.len(),
            self.shape.vector_bytes(),
            "the vector has the wrong number of bytes"
        );
        let at = out.len();
        out.extend_from_slice(vector);
        self.shape.push_id(id, out);
        let sum = block::checksum(node.into(), &out[at..]);
        out.extend_from_slice(&sum.to_le_bytes());
    }

    /// Decodes the external id and the vector of a member. With `check`, verifies its checksum. The
    /// function `offset` gives the position in `file`, for an error.
    ///
    /// # Errors
    /// Fails if the checksum or the length is wrong.
    pub fn read<'b>(
        &self,
        node: u32,
        bytes: &'b [u8],
        offset: impl FnOnce() -> u64,
        check: bool,
        file: &str,
    ) -> Result<(u64, &'b [u8]), LayoutError> {
        if bytes.len() != self.bytes() {
            return Err(LayoutError::Truncated {
                file: file.to_owned(),
                offset: offset(),
                expected: self.bytes() as u64,
                found: bytes.len() as u64,
            });
        }
        let (covered, sum) = bytes.split_at(bytes.len() - 4);
        if check {
            let (stored, computed) = (u32_at(sum, 0), block::checksum(node.into(), covered));
            if stored != computed {
                return Err(LayoutError::Checksum {
                    file: file.to_owned(),
                    offset: offset(),
                    stored,
                    computed,
                });
            }
        }
        let (vector, id) = covered.split_at(self.shape.vector_bytes());
        Ok((self.shape.id_of(node, id), vector))
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::shape;
    use super::*;

    #[test]
    fn a_member_is_read_by_itself_and_every_flipped_bit_is_found() {
        for id_bytes in [0, 4, 8] {
            let members = Members::new(ClusterShape {
                id_bytes,
                ..shape()
            });
            let mut bytes = Vec::new();
            members.push(7, 7, &[1, 2, 3, 4, 5], &mut bytes);
            assert_eq!(bytes.len(), members.bytes());
            let read = members.read(7, &bytes, || 0, true, "m").unwrap();
            assert_eq!(read, (7, &[1, 2, 3, 4, 5][..]));
            assert!(
                members.read(8, &bytes, || 0, true, "m").is_err(),
                "the record of another member was read"
            );
            assert!(members.read(7, &bytes[1..], || 0, false, "m").is_err());
            for bit in 0..8 * bytes.len() {
                let mut damaged = bytes.clone();
                damaged[bit / 8] ^= 1 << (bit % 8);
                assert!(
                    members.read(7, &damaged, || 0, true, "m").is_err(),
                    "bit {bit}"
                );
            }
        }
    }

    #[test]
    fn a_file_of_members_ends_with_a_block() {
        let members = Members::new(shape());
        assert_eq!(members.bytes(), 13);
        assert_eq!(members.offset(2), 4096 + 26);
        assert_eq!(members.file_length(), 8192);
    }
}
