//! Inline pages: beside a node's vector and list stand its neighbours' codes, so that a search
//! needs no codes in memory: the read that brings a node brings all that the next step of the
//! search is chosen by. This is the node chunk of AiSAQ (section 3.1).
//!
//! ```text
//! file = [header block][page 0][page 1]..       page p starts at byte 4096 + p * page_bytes
//! ```
//!
//! The header's fields: element code u32, dimension u32, degree R u32, bytes of a code c u32, nodes
//! u64.
//!
//! Pages are those of [`crate::coupled`], with the same checksums and count in front: as many
//! records as fit a 4 KiB block, or one record on as few blocks as it needs. Records are longer by
//! their codes:
//!
//! ```text
//! offset    size  what (record); V = dimension * element size, rounded up to a multiple of 4
//!      0       8  outside id u64
//!      8       V  the vector, then zeros up to V
//!    8+V       2  degree u16: neighbours in use
//!   10+V       2  zero
//!   12+V     4*R  neighbours u32 each: inside numbers of nodes; those not in use are zero
//!      .     c*R  their codes, c bytes each, in the same order; those not in use are zero
//! ```
//!
//! Behind its last code a record is not padded, for that could cost a page a record: where c * R is
//! no multiple of 4, all records of a page but the first may begin at any byte.
//!
//! A node's code is written once for every list that the node is in, so that a record is often
//! several times as long as a coupled one, and a neighbour more may take a block more. How much of
//! its page a shape uses is what [`fill`] says; [`proposals`] names degrees and codes that use
//! more, or need fewer blocks.

use std::ops::Deref;

use crate::block::BLOCK;
use crate::coupled::{MAX_DEGREE, MAX_DIMENSION, Neighbours};
use crate::error::LayoutError;
use crate::geometry::{self, Geometry};
use crate::header::{FieldsWriter, FileHeader, FileKind};
use crate::records::{RecordsBuilder, RecordsView};
use crate::slotted::MAX_BLOCKS;
use stratann_vector::Element;

/// Format version of [`FileKind::Inline`]. 1: the first.
pub const FORMAT_VERSION: u32 = 1;

/// The most bytes of a code that the format holds: one for each dimension, were there as many as
/// there can be.
pub const MAX_CODE_BYTES: usize = MAX_DIMENSION;

/// What decides where everything stands: element type, dimension, degree bound and bytes of a code.
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
    /// The shape for vectors of `dim` elements and at most `degree` neighbours a node, each with a
    /// code of `code_bytes`.
    ///
    /// Refuses a dimension of zero or above [`MAX_DIMENSION`], a degree of zero or above
    /// [`MAX_DEGREE`], a code of no bytes or more than [`MAX_CODE_BYTES`], and a record that does
    /// not fit [`MAX_BLOCKS`] blocks.
    pub fn new(
        element: Element,
        dim: usize,
        degree: usize,
        code_bytes: usize,
    ) -> Result<InlineShape, LayoutError> {
        if code_bytes == 0 || code_bytes > MAX_CODE_BYTES {
            return Err(LayoutError::Shape {
                what: "the bytes of a code",
                found: code_bytes as u64,
                expected: "1 to 65536",
            });
        }
        let codes = degree.saturating_mul(code_bytes);
        let geometry = Geometry::new(element, dim, degree, codes)?;
        // The checksums of all blocks have to fit the first one.
        if geometry.blocks > MAX_BLOCKS {
            return Err(LayoutError::Shape {
                what: "the bytes of a record",
                found: geometry.record_bytes as u64,
                expected: "what fits a page of 256 blocks, about a million",
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

    /// The shape and the number of nodes that a header says; refuses a header that contradicts
    /// itself.
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

/// Puts pages together, one after the other, in one buffer that is reused.
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

    /// Whether no further record fits.
    pub fn is_full(&self) -> bool {
        self.records.is_full()
    }

    /// Appends a node: outside id, vector bytes, neighbours as inside numbers, and the neighbours'
    /// codes one after the other.
    ///
    /// # Panics
    /// When the page is full, the vector has the wrong length, the neighbours are more than R, or
    /// the codes are not one for each neighbour.
    pub fn push(&mut self, id: u64, vector: &[u8], neighbours: &[u32], codes: &[u8]) {
        assert_eq!(
            codes.len(),
            neighbours.len() * self.code_bytes,
            "bytes of the neighbours' codes"
        );
        let room = self.records.push(id, vector, neighbours);
        room[..codes.len()].copy_from_slice(codes);
    }

    /// Seals the page as number `page` of its file and gives its bytes. [`InlineBuilder::clear`]
    /// starts the next one.
    pub fn finish(&mut self, page: u64) -> &[u8] {
        self.records.finish(page)
    }
}

/// A page, read in place: nothing is copied or allocated.
#[derive(Debug, Clone, Copy)]
pub struct InlineView<'a> {
    records: RecordsView<'a>,
    code_bytes: usize,
}

impl<'a> InlineView<'a> {
    /// Opens page `page` of `file`.
    ///
    /// Refuses bytes that are not a page long, and a count of records that cannot be or is not
    /// `expected` (see `InlineShape::nodes_on_page`). With `verify` the checksums of its blocks are
    /// checked too; without, damaged bytes are still read without a panic, but give wrong values.
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

    /// Whether the page holds no record.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The record in place `slot`. Refuses a slot that is not there and a degree above R.
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
    /// The id that the user knows the vector by.
    pub id: u64,
    /// The vector's bytes, little-endian elements.
    pub vector: &'a [u8],
    /// The adjacency list.
    pub neighbours: Neighbours<'a>,
    /// The neighbours' codes, [`InlineShape::code_bytes`] each, in the order of `neighbours` and as
    /// many.
    pub codes: &'a [u8],
}

/// How nodes of one shape fill their pages. One of the numbers is 1, or both are: either nodes
/// share a block, or one node has its blocks to itself.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Fill {
    /// Nodes of a full page.
    pub nodes_per_page: usize,
    /// 4 KiB blocks of a page.
    pub blocks: usize,
    /// The share of a full page that is not left over, above 0 and at most 1: records, and what the
    /// page needs in front of them.
    pub used: f64,
}

impl Fill {
    /// Bytes of the file for each record: its own, and its share of what pages have beside records
    /// and leave over.
    pub fn record_bytes(&self) -> f64 {
        (self.blocks * BLOCK) as f64 / self.nodes_per_page as f64
    }
}

/// A shape with another degree or other codes than the one that was asked about; see [`proposals`].
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
    /// The share of a full page that is not left over; see [`Fill::used`].
    pub used: f64,
}

/// How nodes of this shape fill their pages.
///
/// Takes any numbers: also those of a shape that [`InlineShape::new`] refuses, and codes of no
/// bytes, for which the answer is that of [`crate::coupled`] pages.
pub fn fill(element: Element, dim: usize, degree: usize, code_bytes: usize) -> Fill {
    let codes = degree.saturating_mul(code_bytes);
    let record_bytes = geometry::record_bytes(element, dim, degree, codes);
    let (blocks, nodes_per_page) = geometry::fit(record_bytes);
    // In floating point, for the largest numbers have no product.
    let records = nodes_per_page as f64 * record_bytes as f64;
    let header = geometry::header_bytes(blocks) as f64;
    Fill {
        nodes_per_page,
        blocks,
        used: (header + records) / (blocks as f64 * BLOCK as f64),
    }
}

/// Shapes that make more of their pages than this one. AiSAQ recommends (section 3.1) to choose R
/// so that a node fills `n` blocks or `n` nodes fill one; the bytes of a record and of a page's
/// header are those of this format. In this order, each only if it is another shape than this one
/// and its degree is not zero:
///
/// 1. the largest degree, with codes as long, that needs no more blocks, and puts as many nodes on
///    a page;
/// 2. the longest codes, with the same degree, of which the same is true, up to `dim` bytes: no
///    [quantiser](stratann_vector::ProductQuantizer) has longer ones;
/// 3. the largest degree, with codes as long, that needs a block less, or, where the page is one
///    block, that puts a node more on it.
///
/// [`InlineShape::new`] accepts all of them. There is none for a shape that it refuses.
pub fn proposals(element: Element, dim: usize, degree: usize, code_bytes: usize) -> Vec<Proposal> {
    if InlineShape::new(element, dim, degree, code_bytes).is_err() {
        return Vec::new();
    }
    // What a record has for neighbours and codes, where this many records are to fit this many
    // blocks.
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
    // Codes that are longer than a quantiser's already are not proposed to be shorter.
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
