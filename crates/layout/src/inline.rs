//! Inline pages: a node's record has the codes of its neighbours too, so that a search needs no
//! codes in memory. Such a record is the node chunk of AiSAQ (section 3.1).
//!
//! ```text
//! file = [header block][page 0][page 1]..       page p starts at byte 4096 + p * page_bytes
//! ```
//!
//! The header's fields: element code u32, dimension u32, degree R u32, bytes of a code c u32, nodes
//! u64.
//!
//! Pages have the structure of [`crate::coupled`], but their records have codes too:
//!
//! ```text
//! offset    size  contents (record); V = dimension * element size, rounded up to a multiple of 4
//!      0       8  external id u64
//!      8       V  the vector, then zeros up to V
//!    8+V       2  degree u16: neighbours in use
//!   10+V       2  zero
//!   12+V     4*R  neighbours u32 each: internal numbers of nodes; unused ones are zero
//!      .     c*R  their codes, c bytes each, in the same order; unused ones are zero
//! ```
//!
//! A record is not padded after its last code, because padding could reduce the number of records
//! on a page. So a record may begin at any byte.
//!
//! A node's code is stored in the record of each node that has it as a neighbour, so one more
//! neighbour may take one more block. [`proposals`] suggests degrees and codes with which pages
//! have less unused space ([`fill`]), or fewer blocks.

use std::ops::Deref;

use crate::block::BLOCK;
use crate::coupled::{MAX_DEGREE, MAX_DIMENSION, Neighbours};
use crate::error::{CHOOSE, LayoutError};
use crate::geometry::{self, Geometry};
use crate::header::{FieldsWriter, FileHeader, FileKind};
use crate::records::{RecordsBuilder, RecordsView};
use crate::slotted::MAX_BLOCKS;
use stratann_vector::Element;

/// Format version of [`FileKind::Inline`]. 1: the first.
pub const FORMAT_VERSION: u32 = 1;

/// The most bytes of a code: one for each dimension of the largest vector.
pub const MAX_CODE_BYTES: usize = MAX_DIMENSION;

/// The properties that determine all positions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InlineShape {
    geometry: Geometry,
    code_bytes: usize,
}

impl Deref for InlineShape {
    type Target = Geometry;

    #[inline]
    fn deref(&self) -> &Geometry {
        &self.geometry
    }
}

impl InlineShape {
    /// The shape for vectors of `dim` elements and at most `degree` neighbours a node, with codes.
    /// Refuses 0, and numbers above [`MAX_DIMENSION`], [`MAX_DEGREE`], [`MAX_CODE_BYTES`] or
    /// [`MAX_BLOCKS`].
    pub fn new(
        element: Element,
        dim: usize,
        degree: usize,
        code_bytes: usize,
    ) -> Result<InlineShape, LayoutError> {
        if code_bytes == 0 || code_bytes > MAX_CODE_BYTES {
            return Err(LayoutError::Shape {
                what: "the length of a code in bytes",
                found: code_bytes as u64,
                expected: "1 to 65536",
                remedy: CHOOSE,
            });
        }
        let codes = degree.saturating_mul(code_bytes);
        let geometry = Geometry::new(element, dim, degree, codes)?;
        // The first block must have space for the checksums of all blocks.
        if geometry.blocks > MAX_BLOCKS {
            return Err(LayoutError::Shape {
                what: "the length of a record in bytes",
                found: geometry.record_bytes as u64,
                expected: "about a million at most, the bytes of a page of 256 blocks",
                remedy: CHOOSE,
            });
        }
        Ok(InlineShape {
            geometry,
            code_bytes,
        })
    }

    /// Bytes of a neighbour's code.
    #[inline]
    pub fn code_bytes(&self) -> usize {
        self.code_bytes
    }

    /// The header of a file with `nodes` nodes.
    pub fn header(&self, nodes: u64) -> FileHeader {
        let fields = FieldsWriter::new()
            .u32(u32::from(self.element().code()))
            .u32(self.dim() as u32)
            .u32(self.degree() as u32)
            .u32(self.code_bytes as u32)
            .u64(nodes)
            .finish();
        FileHeader::new(FileKind::Inline, self.file_length(nodes), fields)
    }

    /// Decodes the shape and the number of nodes. Refuses a header that contradicts itself.
    pub fn from_header(header: &FileHeader, file: &str) -> Result<(InlineShape, u64), LayoutError> {
        header.expect_kind(FileKind::Inline, file)?;
        let mut fields = header.fields(file);
        let element = geometry::read_element(&mut fields, file)?;
        let at = fields.offset();
        let dim = fields.u32("dimension")?;
        let degree = fields.u32("degree")?;
        let code_bytes = fields.u32("bytes of a code")?;
        let nodes_at = fields.offset();
        let nodes = fields.u64("number of nodes")?;
        fields.end()?;
        let shape = InlineShape::new(element, dim as usize, degree as usize, code_bytes as usize)
            .map_err(|_| LayoutError::Field {
            file: file.to_owned(),
            offset: at,
            what: "dimension, degree and bytes of a code",
            found: format!("{dim}, {degree} and {code_bytes}"),
            expected: "1 to 65536, 1 to 4096 and 1 to 65536, on at most 256 blocks".to_owned(),
        })?;
        shape.geometry.check_nodes(nodes, nodes_at, header, file)?;
        Ok((shape, nodes))
    }
}

/// Builds pages one after the other, in one reused buffer.
#[derive(Debug)]
pub struct InlineBuilder {
    records: RecordsBuilder,
    code_bytes: usize,
}

impl InlineBuilder {
    /// A builder with an empty page.
    pub fn new(shape: InlineShape) -> InlineBuilder {
        InlineBuilder {
            records: RecordsBuilder::new(shape.geometry),
            code_bytes: shape.code_bytes,
        }
    }

    /// Empties the page.
    pub fn clear(&mut self) {
        self.records.clear();
    }

    /// Records on the page.
    pub fn len(&self) -> usize {
        self.records.len()
    }

    /// Whether there is no record on the page.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether the page has no space for another record.
    pub fn is_full(&self) -> bool {
        self.records.is_full()
    }

    /// Appends a node with the codes of its neighbours, one after the other.
    ///
    /// # Panics
    /// Panics if the page is full, or an argument has a wrong length.
    pub fn push(&mut self, id: u64, vector: &[u8], neighbours: &[u32], codes: &[u8]) {
        assert_eq!(
            codes.len(),
            neighbours.len() * self.code_bytes,
            "the codes of the neighbours have the wrong number of bytes"
        );
        let room = self.records.push(id, vector, neighbours);
        room[..codes.len()].copy_from_slice(codes);
    }

    /// Seals the page as number `page` of its file and returns its bytes.
    pub fn finish(&mut self, page: u64) -> &[u8] {
        self.records.finish(page)
    }
}

/// A page, read in place.
#[derive(Debug, Clone, Copy)]
pub struct InlineView<'a> {
    records: RecordsView<'a>,
    code_bytes: usize,
}

impl<'a> InlineView<'a> {
    /// Opens page `page` of `file`, which must have `expected` records. With `verify`, checksums
    /// are checked too. Without `verify`, damaged bytes give wrong values, but cause no panic.
    #[inline]
    pub fn open(
        shape: &'a InlineShape,
        bytes: &'a [u8],
        page: u64,
        expected: Option<usize>,
        verify: bool,
        file: &'a str,
    ) -> Result<InlineView<'a>, LayoutError> {
        Ok(InlineView {
            records: RecordsView::open(&shape.geometry, bytes, page, expected, 0, verify, file)?,
            code_bytes: shape.code_bytes,
        })
    }

    /// Records on the page.
    #[inline]
    pub fn len(&self) -> usize {
        self.records.len()
    }

    /// Whether the page has no record.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The record in slot `slot`. Refuses a slot that does not exist, and a degree above R.
    #[inline]
    pub fn node(&self, slot: usize) -> Result<InlineNode<'a>, LayoutError> {
        let record = self.records.record(slot)?;
        let neighbours = Neighbours { bytes: record.list };
        Ok(InlineNode {
            id: record.id,
            vector: record.vector,
            neighbours,
            codes: &record.behind[..neighbours.len() * self.code_bytes],
        })
    }

    /// The page's records in order.
    pub fn nodes(&self) -> impl Iterator<Item = Result<InlineNode<'a>, LayoutError>> + 'a {
        let page = *self;
        (0..self.len()).map(move |slot| page.node(slot))
    }
}

/// A node's record, read in place.
#[derive(Debug, Clone, Copy)]
pub struct InlineNode<'a> {
    /// The external id of the vector.
    pub id: u64,
    /// The vector's bytes, little-endian elements.
    pub vector: &'a [u8],
    /// The adjacency list.
    pub neighbours: Neighbours<'a>,
    /// The neighbours' codes, in the order of `neighbours`.
    pub codes: &'a [u8],
}

/// How records fill pages. A page has several records in one block, or one record in several
/// blocks.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Fill {
    /// Nodes of a full page.
    pub nodes_per_page: usize,
    /// 4 KiB blocks of a page.
    pub blocks: usize,
    /// The share of a full page that records and the header use, above 0 and at most 1.
    pub used: f64,
}

impl Fill {
    /// Bytes of the file for each record, including a part of the page's header and unused space.
    pub fn record_bytes(&self) -> f64 {
        (self.blocks * BLOCK) as f64 / self.nodes_per_page as f64
    }
}

/// A shape with another degree or other codes, from [`proposals`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Proposal {
    /// The most neighbours of a node (R).
    pub degree: usize,
    /// Bytes of a neighbour's code.
    pub code_bytes: usize,
    /// Nodes of a full page.
    pub nodes_per_page: usize,
    /// 4 KiB blocks of a page.
    pub blocks: usize,
    /// The share of a full page that is in use ([`Fill::used`]).
    pub used: f64,
}

/// Computes how nodes of this shape fill their pages, even if [`InlineShape::new`] refuses it.
pub fn fill(element: Element, dim: usize, degree: usize, code_bytes: usize) -> Fill {
    let codes = degree.saturating_mul(code_bytes);
    let record_bytes = geometry::record_bytes(element, dim, degree, codes);
    let (blocks, nodes_per_page) = geometry::fit(record_bytes);
    // In floating point, because the largest numbers would overflow.
    let records = nodes_per_page as f64 * record_bytes as f64;
    let header = geometry::header_bytes(blocks) as f64;
    Fill {
        nodes_per_page,
        blocks,
        used: (header + records) / (blocks as f64 * BLOCK as f64),
    }
}

/// Suggests shapes that use their pages better. AiSAQ recommends that a node fills `n` blocks, or
/// that `n` nodes fill one block (section 3.1). The suggestions are, in this order:
///
/// 1. the largest degree with which a page has no more blocks and no fewer nodes;
/// 2. the longest codes of the same degree under these two conditions, up to `dim` bytes, as a
///    [quantiser](stratann_vector::ProductQuantizer) makes no longer codes;
/// 3. the largest degree with which a page has one block less, or one block and one more node.
///
/// Shapes that equal the given one or have no degree are omitted. [`InlineShape::new`] accepts all
/// suggestions. If it refuses the given shape, there are no suggestions.
pub fn proposals(element: Element, dim: usize, degree: usize, code_bytes: usize) -> Vec<Proposal> {
    if InlineShape::new(element, dim, degree, code_bytes).is_err() {
        return Vec::new();
    }
    let fixed = geometry::record_bytes(element, dim, 0, 0);
    let lists =
        |blocks: usize, records: usize| (geometry::room(blocks) / records).saturating_sub(fixed);
    let Fill {
        nodes_per_page,
        blocks,
        ..
    } = fill(element, dim, degree, code_bytes);
    let here = lists(blocks, nodes_per_page);
    let denser = match blocks {
        1 => lists(1, nodes_per_page + 1),
        _ => lists(blocks - 1, 1),
    };

    let neighbour = 4 + code_bytes;
    // If the given codes are longer than a quantiser's longest codes, they stay as long as they
    // are.
    let longest = (here / degree - 4).min(dim.max(code_bytes));
    [
        ((here / neighbour).min(MAX_DEGREE), code_bytes),
        (degree, longest),
        (denser / neighbour, code_bytes),
    ]
    .into_iter()
    .filter(|&(r, c)| r > 0 && (r, c) != (degree, code_bytes))
    .map(|(degree, code_bytes)| {
        let fill = fill(element, dim, degree, code_bytes);
        Proposal {
            degree,
            code_bytes,
            nodes_per_page: fill.nodes_per_page,
            blocks: fill.blocks,
            used: fill.used,
        }
    })
    .collect()
}

#[cfg(test)]
mod tests;
