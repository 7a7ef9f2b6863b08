//! Computes the positions of pages in a file, and of fields in a record, for records of one length.
//!
//! [Coupled](crate::coupled) and [inline](crate::inline) records, which [`records`](crate::records)
//! reads and writes, differ only in the bytes after the list. The two modules have the byte tables.

use crate::block::{BLOCK, PAYLOAD};
use crate::error::{CHOOSE, LayoutError};
use crate::header::{FieldsReader, FileHeader};
use stratann_vector::Element;

/// The largest dimension that the format supports.
pub const MAX_DIMENSION: usize = 65_536;
/// The largest degree (neighbours of a node) that the format supports.
pub const MAX_DEGREE: usize = 4096;

const RECORD_FIXED: usize = 12;

/// The positions of records of one length.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Geometry {
    pub(crate) element: Element,
    pub(crate) dim: usize,
    pub(crate) degree: usize,
    pub(crate) vector_bytes: usize,
    pub(crate) degree_at: usize,
    pub(crate) record_bytes: usize,
    pub(crate) blocks: usize,
    pub(crate) nodes_per_page: usize,
}

impl Geometry {
    /// `behind` is the number of bytes after the list in a record. Refuses 0 and numbers above
    /// [`MAX_DIMENSION`] or [`MAX_DEGREE`].
    pub(crate) fn new(
        element: Element,
        dim: usize,
        degree: usize,
        behind: usize,
    ) -> Result<Geometry, LayoutError> {
        if dim == 0 || dim > MAX_DIMENSION {
            return Err(LayoutError::Shape {
                what: "the dimension",
                found: dim as u64,
                expected: "1 to 65536",
                remedy: CHOOSE,
            });
        }
        if degree == 0 || degree > MAX_DEGREE {
            return Err(LayoutError::Shape {
                what: "the degree R",
                found: degree as u64,
                expected: "1 to 4096",
                remedy: CHOOSE,
            });
        }
        let vector_bytes = dim * element.size();
        let record_bytes = record_bytes(element, dim, degree, behind);
        let (blocks, nodes_per_page) = fit(record_bytes);
        Ok(Geometry {
            element,
            dim,
            degree,
            vector_bytes,
            degree_at: 8 + vector_bytes.next_multiple_of(4),
            record_bytes,
            blocks,
            nodes_per_page,
        })
    }

    /// The vectors' element type.
    pub fn element(&self) -> Element {
        self.element
    }

    /// Elements of a vector.
    pub fn dim(&self) -> usize {
        self.dim
    }

    /// The most neighbours of a node (R).
    #[inline]
    pub fn degree(&self) -> usize {
        self.degree
    }

    /// Bytes of a vector.
    #[inline]
    pub fn vector_bytes(&self) -> usize {
        self.vector_bytes
    }

    /// Bytes of a record.
    pub fn record_bytes(&self) -> usize {
        self.record_bytes
    }

    /// Nodes on a full page, 1 or more.
    pub fn nodes_per_page(&self) -> usize {
        self.nodes_per_page
    }

    /// 4 KiB blocks of a page: 1, or more if a record does not fit into one block.
    pub fn blocks_per_page(&self) -> usize {
        self.blocks
    }

    #[inline]
    pub(crate) fn list_at(&self) -> usize {
        self.degree_at + 4
    }

    #[inline]
    pub(crate) fn behind_at(&self) -> usize {
        self.list_at() + 4 * self.degree
    }

    #[inline]
    pub(crate) fn record_at(&self, slot: usize) -> usize {
        header_bytes(self.blocks) + slot * self.record_bytes
    }

    /// Bytes of a page, a multiple of [`BLOCK`].
    #[inline]
    pub fn page_bytes(&self) -> usize {
        self.blocks * BLOCK
    }

    /// The page that has `node`.
    #[inline]
    pub fn page_of(&self, node: u32) -> u64 {
        u64::from(node) / self.nodes_per_page as u64
    }

    /// The slot of `node` on its page.
    #[inline]
    pub fn slot_of(&self, node: u32) -> usize {
        node as usize % self.nodes_per_page
    }

    /// The first node of a page.
    #[inline]
    pub fn first_node(&self, page: u64) -> u64 {
        page.saturating_mul(self.nodes_per_page as u64)
    }

    /// The number of pages for `nodes` nodes.
    pub fn pages(&self, nodes: u64) -> u64 {
        nodes.div_ceil(self.nodes_per_page as u64)
    }

    /// The number of nodes on page `page` of a file with `nodes` nodes.
    #[inline]
    pub fn nodes_on_page(&self, page: u64, nodes: u64) -> usize {
        nodes
            .saturating_sub(self.first_node(page))
            .min(self.nodes_per_page as u64) as usize
    }

    /// The byte offset of a page in the file.
    #[inline]
    pub fn file_offset(&self, page: u64) -> u64 {
        page.saturating_mul(self.page_bytes() as u64)
            .saturating_add(BLOCK as u64)
    }

    /// The length of a file with `nodes` nodes, in bytes.
    pub fn file_length(&self, nodes: u64) -> u64 {
        self.file_offset(self.pages(nodes))
    }

    pub(crate) fn first_block(&self, page: u64) -> u64 {
        page.saturating_mul(self.blocks as u64).saturating_add(1)
    }

    /// Refuses too many nodes, or a header with another length. For errors, `nodes_at` is the
    /// position of the number of nodes.
    pub(crate) fn check_nodes(
        &self,
        nodes: u64,
        nodes_at: u64,
        header: &FileHeader,
        file: &str,
    ) -> Result<(), LayoutError> {
        if nodes > u64::from(u32::MAX) {
            return Err(LayoutError::Field {
                file: file.to_owned(),
                offset: nodes_at,
                what: "number of nodes",
                found: nodes.to_string(),
                expected: "at most 4294967295".to_owned(),
            });
        }
        let length = self.file_length(nodes);
        if header.length != length {
            return Err(LayoutError::Field {
                file: file.to_owned(),
                offset: 32,
                what: "file length",
                found: header.length.to_string(),
                expected: format!("{length} for {nodes} nodes"),
            });
        }
        Ok(())
    }
}

/// Saturates for large arguments.
pub(crate) fn record_bytes(element: Element, dim: usize, degree: usize, behind: usize) -> usize {
    dim.saturating_mul(element.size())
        .checked_next_multiple_of(4)
        .unwrap_or(usize::MAX)
        .saturating_add(degree.saturating_mul(4))
        .saturating_add(behind)
        .saturating_add(RECORD_FIXED)
}

/// The blocks of a page and its records: as many records as fit a block, or one on the fewest
/// blocks.
pub(crate) fn fit(record_bytes: usize) -> (usize, usize) {
    // Each block has a checksum of four bytes, and the page a count of four bytes.
    let blocks = record_bytes.saturating_add(4).div_ceil(PAYLOAD);
    match blocks {
        1 => (1, room(1) / record_bytes),
        _ => (blocks, 1),
    }
}

pub(crate) const fn header_bytes(blocks: usize) -> usize {
    4 * blocks + 4
}

pub(crate) const fn room(blocks: usize) -> usize {
    blocks * BLOCK - header_bytes(blocks)
}

pub(crate) fn read_element(
    fields: &mut FieldsReader<'_>,
    file: &str,
) -> Result<Element, LayoutError> {
    let offset = fields.offset();
    let code = fields.u32("element code")?;
    u8::try_from(code)
        .ok()
        .and_then(Element::from_code)
        .ok_or_else(|| LayoutError::Field {
            file: file.to_owned(),
            offset,
            what: "element code",
            found: code.to_string(),
            expected: "a known element type".to_owned(),
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::header::FileKind;

    #[test]
    fn a_page_has_the_fewest_blocks_and_the_most_records() {
        for record in 1..40_000 {
            let (blocks, records) = fit(record);
            assert!(records * record <= room(blocks), "{record}");
            if blocks == 1 {
                assert!((records + 1) * record > room(1), "{record}");
            } else {
                assert_eq!(records, 1, "{record}");
                assert!(record > room(blocks - 1), "{record}");
            }
        }
        assert_eq!(fit(usize::MAX).1, 1);
    }

    #[test]
    fn inside_numbers_reach_every_node() {
        let geometry = Geometry::new(Element::U8, 128, 64, 0).unwrap();
        let check = |nodes| {
            let header = FileHeader::new(FileKind::Graph, geometry.file_length(nodes), vec![]);
            geometry.check_nodes(nodes, 60, &header, "g")
        };
        check(0).unwrap();
        check(u64::from(u32::MAX)).unwrap();
        for nodes in [1 << 32, u64::MAX] {
            let text = check(nodes).unwrap_err().to_string();
            let expected =
                format!("g: number of nodes at offset 60 is {nodes}; expected at most 4294967295");
            assert!(text.starts_with(&expected), "{text}");
        }
    }

    #[test]
    fn any_numbers_have_a_record() {
        let all = usize::MAX;
        for (dim, degree, behind) in [
            (all, 0, 0),
            (all / 4, 0, 0),
            (0, all, 0),
            (0, 0, all),
            (all, all, all),
        ] {
            let bytes = record_bytes(Element::F32, dim, degree, behind);
            assert!(bytes > all - 16, "{dim} {degree} {behind}");
        }
        assert_eq!(record_bytes(Element::U8, 5, 3, 7), 12 + 8 + 12 + 7);
    }
}
