//! Coupled pages: a node's vector and its adjacency list side by side, so that one read brings both.
//!
//! ```text
//! file = [header block][page 0][page 1]..       page p starts at byte 4096 + p * page_bytes
//! ```
//!
//! The header's fields: element code u32, dimension u32, degree R u32, nodes u64.
//!
//! A page is `k` consecutive 4 KiB blocks. `k` is 1 where a record fits one block, and then a page holds as
//! many records as fit. Otherwise a page holds one record and `k` is as small as possible. The checksums
//! of all `k` blocks stand in front, so that the records behind them are not cut: a vector is one slice of
//! the page, whatever its length.
//!
//! ```text
//! offset    size  what (page)
//!      0       4  crc32c of (number of the page's first block as u64, then bytes 4..4096)
//!    4*i       4  crc32c of (number of block i of the page, then its 4096 bytes), i = 1..k
//!    4*k       2  count of records
//!  4*k+2       2  zero
//!  4*k+4       .  records, one after the other, then zeros
//!
//! offset    size  what (record); V = dimension * element size, rounded up to a multiple of 4
//!      0       8  outside id u64
//!      8       V  the vector, then zeros up to V
//!    8+V       2  degree u16: neighbours in use
//!   10+V       2  zero
//!   12+V     4*R  neighbours u32 each: inside numbers of nodes; those not in use are zero
//! ```
//!
//! Nodes fill the pages in order, so that a node's page and slot are computed and no table is needed. A
//! block's number is its offset in the file divided by 4096.

use crate::block::{self, BLOCK, u32_at};
use crate::error::LayoutError;
use crate::header::{FieldsWriter, FileHeader, FileKind};
use stratann_vector::Element;

/// Format version of [`FileKind::Graph`]. 1: the first.
pub const FORMAT_VERSION: u32 = 1;

/// The largest dimension that the format holds.
pub const MAX_DIMENSION: usize = 65_536;
/// The largest degree (neighbours of a node) that the format holds.
pub const MAX_DEGREE: usize = 4096;

/// Bytes of a record beside its vector and neighbours: id, degree and two zeros.
const RECORD_FIXED: usize = 12;

/// What decides where everything stands: element type, dimension and degree bound.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CoupledShape {
    element: Element,
    dim: usize,
    degree: usize,
    /// Bytes of a vector, without padding.
    vector_bytes: usize,
    /// Offset in a record of the degree.
    degree_at: usize,
    record_bytes: usize,
    blocks: usize,
    nodes_per_page: usize,
}

impl CoupledShape {
    /// The shape for vectors of `dim` elements and at most `degree` neighbours a node.
    ///
    /// Refuses a dimension of zero or above [`MAX_DIMENSION`], and a degree of zero or above
    /// [`MAX_DEGREE`].
    pub fn new(element: Element, dim: usize, degree: usize) -> Result<CoupledShape, LayoutError> {
        if dim == 0 || dim > MAX_DIMENSION {
            return Err(LayoutError::Shape {
                what: "the dimension",
                found: dim as u64,
                expected: "1 to 65536",
            });
        }
        if degree == 0 || degree > MAX_DEGREE {
            return Err(LayoutError::Shape {
                what: "the degree R",
                found: degree as u64,
                expected: "1 to 4096",
            });
        }
        let vector_bytes = dim * element.size();
        let degree_at = 8 + vector_bytes.next_multiple_of(4);
        let record_bytes = RECORD_FIXED + vector_bytes.next_multiple_of(4) + 4 * degree;
        let mut blocks = 1;
        while blocks * BLOCK - (4 * blocks + 4) < record_bytes {
            blocks += 1;
        }
        let nodes_per_page = if blocks == 1 {
            (BLOCK - header_bytes(1)) / record_bytes
        } else {
            1
        };
        Ok(CoupledShape {
            element,
            dim,
            degree,
            vector_bytes,
            degree_at,
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
    pub fn degree(&self) -> usize {
        self.degree
    }

    /// Bytes of a vector.
    pub fn vector_bytes(&self) -> usize {
        self.vector_bytes
    }

    /// Bytes of a record.
    pub fn record_bytes(&self) -> usize {
        self.record_bytes
    }

    /// Nodes of a full page, 1 or more.
    pub fn nodes_per_page(&self) -> usize {
        self.nodes_per_page
    }

    /// 4 KiB blocks of a page: 1, or more where a record does not fit a block.
    pub fn blocks_per_page(&self) -> usize {
        self.blocks
    }

    /// Bytes of a page, a multiple of [`BLOCK`].
    pub fn page_bytes(&self) -> usize {
        self.blocks * BLOCK
    }

    /// The page that holds `node`.
    #[inline]
    pub fn page_of(&self, node: u32) -> u64 {
        u64::from(node) / self.nodes_per_page as u64
    }

    /// The place of `node` on its page.
    #[inline]
    pub fn slot_of(&self, node: u32) -> usize {
        node as usize % self.nodes_per_page
    }

    /// The first node of a page.
    #[inline]
    pub fn first_node(&self, page: u64) -> u64 {
        page.saturating_mul(self.nodes_per_page as u64)
    }

    /// Pages that `nodes` nodes need.
    pub fn pages(&self, nodes: u64) -> u64 {
        nodes.div_ceil(self.nodes_per_page as u64)
    }

    /// Nodes that page `page` of a file with `nodes` nodes holds.
    #[inline]
    pub fn nodes_on_page(&self, page: u64, nodes: u64) -> usize {
        nodes
            .saturating_sub(self.first_node(page))
            .min(self.nodes_per_page as u64) as usize
    }

    /// The offset in the file at which a page starts, in bytes.
    #[inline]
    pub fn file_offset(&self, page: u64) -> u64 {
        page.saturating_mul(self.page_bytes() as u64)
            .saturating_add(BLOCK as u64)
    }

    /// The length of a file with `nodes` nodes, in bytes.
    pub fn file_length(&self, nodes: u64) -> u64 {
        self.file_offset(self.pages(nodes))
    }

    /// The header of a file with `nodes` nodes.
    pub fn header(&self, nodes: u64) -> FileHeader {
        let fields = FieldsWriter::new()
            .u32(u32::from(self.element.code()))
            .u32(self.dim as u32)
            .u32(self.degree as u32)
            .u64(nodes)
            .finish();
        FileHeader::new(FileKind::Graph, self.file_length(nodes), fields)
    }

    /// The shape and the number of nodes that a header says; refuses a header that contradicts itself.
    pub fn from_header(
        header: &FileHeader,
        file: &str,
    ) -> Result<(CoupledShape, u64), LayoutError> {
        header.expect_kind(FileKind::Graph, file)?;
        let field = |offset, what, found: String, expected: &str| LayoutError::Field {
            file: file.to_owned(),
            offset,
            what,
            found,
            expected: expected.to_owned(),
        };
        let mut fields = header.fields(file);
        let at = fields.offset();
        let code = fields.u32("element code")?;
        let element = u8::try_from(code)
            .ok()
            .and_then(Element::from_code)
            .ok_or_else(|| field(at, "element code", code.to_string(), "a known element type"))?;
        let at = fields.offset();
        let dim = fields.u32("dimension")?;
        let degree = fields.u32("degree")?;
        let nodes_at = fields.offset();
        let nodes = fields.u64("number of nodes")?;
        fields.end()?;
        let shape = CoupledShape::new(element, dim as usize, degree as usize).map_err(|_| {
            field(
                at,
                "dimension and degree",
                format!("{dim} and {degree}"),
                "1 to 65536 and 1 to 4096",
            )
        })?;
        if nodes > u64::from(u32::MAX) {
            return Err(field(
                nodes_at,
                "number of nodes",
                nodes.to_string(),
                "at most 4294967295",
            ));
        }
        if header.length != shape.file_length(nodes) {
            return Err(field(
                32,
                "file length",
                header.length.to_string(),
                &format!("{} for {nodes} nodes", shape.file_length(nodes)),
            ));
        }
        Ok((shape, nodes))
    }

    /// The number in the file of the first block of a page.
    fn first_block(&self, page: u64) -> u64 {
        page.saturating_mul(self.blocks as u64).saturating_add(1)
    }
}

/// Bytes of a page in front of its records.
const fn header_bytes(blocks: usize) -> usize {
    4 * blocks + 4
}

/// Puts pages together, one after the other, in one buffer that is reused.
#[derive(Debug)]
pub struct PageBuilder {
    shape: CoupledShape,
    page: Vec<u8>,
    count: usize,
}

impl PageBuilder {
    /// A builder with an empty page.
    pub fn new(shape: CoupledShape) -> PageBuilder {
        PageBuilder {
            shape,
            page: vec![0; shape.page_bytes()],
            count: 0,
        }
    }

    /// Empties the page.
    pub fn clear(&mut self) {
        self.page.fill(0);
        self.count = 0;
    }

    /// Records on the page.
    pub fn len(&self) -> usize {
        self.count
    }

    /// Whether there is no record on the page.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Whether no further record fits.
    pub fn is_full(&self) -> bool {
        self.count == self.shape.nodes_per_page
    }

    /// Appends a node: outside id, vector bytes, neighbours as inside numbers.
    ///
    /// # Panics
    /// When the page is full, the vector has the wrong length or the neighbours are more than R.
    pub fn push(&mut self, id: u64, vector: &[u8], neighbours: &[u32]) {
        let shape = &self.shape;
        assert!(self.count < shape.nodes_per_page, "the page is full");
        assert_eq!(vector.len(), shape.vector_bytes, "bytes of the vector");
        assert!(
            neighbours.len() <= shape.degree,
            "{} neighbours, the format has room for {}",
            neighbours.len(),
            shape.degree
        );
        let at = header_bytes(shape.blocks) + self.count * shape.record_bytes;
        let record = &mut self.page[at..at + shape.record_bytes];
        record[..8].copy_from_slice(&id.to_le_bytes());
        record[8..8 + vector.len()].copy_from_slice(vector);
        let degree = neighbours.len() as u16;
        record[shape.degree_at..shape.degree_at + 2].copy_from_slice(&degree.to_le_bytes());
        for (slot, neighbour) in record[shape.degree_at + 4..]
            .chunks_exact_mut(4)
            .zip(neighbours)
        {
            slot.copy_from_slice(&neighbour.to_le_bytes());
        }
        self.count += 1;
    }

    /// Seals the page as number `page` of its file and gives its bytes. [`PageBuilder::clear`] starts the
    /// next one.
    pub fn finish(&mut self, page: u64) -> &[u8] {
        let blocks = self.shape.blocks;
        let first = self.shape.first_block(page);
        self.page[4 * blocks..4 * blocks + 2].copy_from_slice(&(self.count as u16).to_le_bytes());
        for at in 1..blocks {
            let sum = block::checksum(
                first.saturating_add(at as u64),
                &self.page[at * BLOCK..(at + 1) * BLOCK],
            );
            self.page[4 * at..4 * at + 4].copy_from_slice(&sum.to_le_bytes());
        }
        // Last, for it covers the other checksums.
        block::seal(&mut self.page[..BLOCK], first);
        &self.page
    }
}

/// A page, read in place: nothing is copied or allocated.
#[derive(Debug, Clone, Copy)]
pub struct PageView<'a> {
    shape: &'a CoupledShape,
    bytes: &'a [u8],
    page: u64,
    count: usize,
    file: &'a str,
}

impl<'a> PageView<'a> {
    /// Opens page `page` of `file`.
    ///
    /// Refuses bytes that are not a page long, and a count of records that cannot be or is not `expected`
    /// (see [`CoupledShape::nodes_on_page`]). With `verify` the checksums of its blocks are checked too;
    /// without, damaged bytes are still read without a panic, but give wrong values.
    #[inline]
    pub fn open(
        shape: &'a CoupledShape,
        bytes: &'a [u8],
        page: u64,
        expected: Option<usize>,
        verify: bool,
        file: &'a str,
    ) -> Result<PageView<'a>, LayoutError> {
        if bytes.len() != shape.page_bytes() {
            return Err(LayoutError::Truncated {
                file: file.to_owned(),
                offset: shape.file_offset(page),
                expected: shape.page_bytes() as u64,
                found: bytes.len() as u64,
            });
        }
        if verify {
            verify_blocks(shape, bytes, page, file)?;
        }
        let at = 4 * shape.blocks;
        let count = usize::from(u16::from_le_bytes([bytes[at], bytes[at + 1]]));
        let right = match expected {
            Some(expected) => count == expected,
            None => count <= shape.nodes_per_page,
        };
        if !right || count > shape.nodes_per_page {
            return Err(wrong_count(shape, page, count, expected, file));
        }
        crate::error::check_zero(
            &bytes[at + 2..at + 4],
            shape.file_offset(page).saturating_add(at as u64 + 2),
            file,
        )?;
        Ok(PageView {
            shape,
            bytes,
            page,
            count,
            file,
        })
    }

    /// Records on the page.
    #[inline]
    pub fn len(&self) -> usize {
        self.count
    }

    /// Whether the page holds no record.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The record in place `slot`. Refuses a slot that is not there and a degree above R.
    #[inline]
    pub fn node(&self, slot: usize) -> Result<NodeView<'a>, LayoutError> {
        if slot >= self.count {
            return Err(self.no_slot(slot));
        }
        let shape = self.shape;
        let at = header_bytes(shape.blocks) + slot * shape.record_bytes;
        let record = &self.bytes[at..at + shape.record_bytes];
        let degree_at = shape.degree_at;
        let degree = usize::from(u16::from_le_bytes([
            record[degree_at],
            record[degree_at + 1],
        ]));
        if degree > shape.degree {
            return Err(self.wrong_degree(at + degree_at, degree));
        }
        let mut id = [0; 8];
        id.copy_from_slice(&record[..8]);
        Ok(NodeView {
            id: u64::from_le_bytes(id),
            vector: &record[8..8 + shape.vector_bytes],
            neighbours: Neighbours {
                bytes: &record[degree_at + 4..degree_at + 4 + 4 * degree],
            },
        })
    }

    /// The page's records in order.
    pub fn nodes(&self) -> impl Iterator<Item = Result<NodeView<'a>, LayoutError>> + 'a {
        let page = *self;
        (0..self.count).map(move |slot| page.node(slot))
    }

    #[cold]
    fn no_slot(&self, slot: usize) -> LayoutError {
        LayoutError::Field {
            file: self.file.to_owned(),
            offset: self
                .shape
                .file_offset(self.page)
                .saturating_add(4 * self.shape.blocks as u64),
            what: "count of records on the page",
            found: self.count.to_string(),
            expected: format!("more than {slot}"),
        }
    }

    #[cold]
    fn wrong_degree(&self, at: usize, degree: usize) -> LayoutError {
        LayoutError::Field {
            file: self.file.to_owned(),
            offset: self.shape.file_offset(self.page).saturating_add(at as u64),
            what: "degree of a node",
            found: degree.to_string(),
            expected: format!("at most {}", self.shape.degree),
        }
    }
}

#[inline]
fn verify_blocks(
    shape: &CoupledShape,
    bytes: &[u8],
    page: u64,
    file: &str,
) -> Result<(), LayoutError> {
    let first = shape.first_block(page);
    block::check(&bytes[..BLOCK], first, file)?;
    for at in 1..shape.blocks {
        let number = first.saturating_add(at as u64);
        let stored = u32_at(bytes, 4 * at);
        let computed = block::checksum(number, &bytes[at * BLOCK..(at + 1) * BLOCK]);
        if stored != computed {
            return Err(block::mismatch(number, stored, computed, file));
        }
    }
    Ok(())
}

#[cold]
fn wrong_count(
    shape: &CoupledShape,
    page: u64,
    found: usize,
    expected: Option<usize>,
    file: &str,
) -> LayoutError {
    LayoutError::Field {
        file: file.to_owned(),
        offset: shape
            .file_offset(page)
            .saturating_add(4 * shape.blocks as u64),
        what: "count of records on the page",
        found: found.to_string(),
        expected: match expected {
            Some(expected) => expected.to_string(),
            None => format!("at most {}", shape.nodes_per_page),
        },
    }
}

/// A node's record, read in place.
#[derive(Debug, Clone, Copy)]
pub struct NodeView<'a> {
    /// The id that the user knows the vector by.
    pub id: u64,
    /// The vector's bytes, little-endian elements.
    pub vector: &'a [u8],
    /// The adjacency list.
    pub neighbours: Neighbours<'a>,
}

/// An adjacency list, read in place. The numbers come from the file: they may be any `u32`.
#[derive(Debug, Clone, Copy)]
pub struct Neighbours<'a> {
    bytes: &'a [u8],
}

impl<'a> Neighbours<'a> {
    /// How many neighbours there are.
    #[inline]
    pub fn len(&self) -> usize {
        self.bytes.len() / 4
    }

    /// Whether there are none.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// The neighbours, as inside numbers of nodes.
    #[inline]
    pub fn iter(&self) -> impl ExactSizeIterator<Item = u32> + 'a {
        self.bytes
            .chunks_exact(4)
            .map(|four| u32::from_le_bytes([four[0], four[1], four[2], four[3]]))
    }

    /// Replaces what is in `out`; allocates only where `out` has never been that long.
    #[inline]
    pub fn copy_into(&self, out: &mut Vec<u32>) {
        out.clear();
        out.extend(self.iter());
    }
}
