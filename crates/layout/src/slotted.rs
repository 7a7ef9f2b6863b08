//! Slotted pages: encoded records of different lengths, of which a page holds as many as fit.
//!
//! ```text
//! file = [header block][page 0][page 1]..       page p starts at byte 4096 + p * page_bytes
//! ```
//!
//! The header's fields: element code u32, dimension u32, degree R u32, blocks of a page `k` u32, first node
//! u32, nodes u64, pages u64.
//!
//! A record is a node's encoded list, then its encoded vector; in a file of kind `Adjacency` the vectors are
//! empty, in one of kind `Vectors` the lists are. What the bytes mean is the codec's business. Records fill
//! the pages in the order of their nodes, without gaps, so that a page says which node it starts with and no
//! more. A page is `k` consecutive 4 KiB blocks: as few as the largest record of the file needs.
//!
//! ```text
//! offset    size  what (page)
//!      0     4*k  checksums of the page's blocks (see `block`)
//!    4*k       2  count of records c, 1 or more
//!  4*k+2       1  bytes of an id w: 1 to 8; 0: the ids are the least, the least + 1 and so on;
//!                 255: the page has no ids (files of kind `Adjacency`, and those only)
//!  4*k+3       1  bytes of a length: l of a list's in the low four bits, v of a vector's in the high four
//!                 bits; 1, 2 or 4, or 0 where all are the least
//!  4*k+4       4  node of the first record u32
//!  4*k+8       4  least length of a list u32; 0 without lists
//! 4*k+12       4  least length of a vector u32; 0 without vectors
//! 4*k+16       8  least id u64; not there where w is 255
//!      .     c*l  for each record, the length of its list less the least
//!      .     c*v  for each record, the length of its vector less the least
//!      .     c*w  for each record, its outside id less the least; not there where w is 255
//!      .       .  records: bytes of the list, bytes of the vector, one after the other; then zeros
//! ```
//!
//! What is written for each record is thus a byte or two for a length, and as many bytes for an id as the
//! ids on its page spread over: about five bytes where ids are in no order, two where they ascend. A record
//! is found with a sum over the lengths before it, which are next to one another.

use crate::block::{self, BLOCK, u16_at, u32_at, u64_at};
use crate::coupled::{MAX_DEGREE, MAX_DIMENSION};
use crate::error::LayoutError;
use crate::header::{FieldsWriter, FileHeader, FileKind};
use stratann_vector::Element;

/// Format version of [`FileKind::Packed`], [`FileKind::Adjacency`] and [`FileKind::Vectors`]. 1: the first.
pub const FORMAT_VERSION: u32 = 1;

/// The most 4 KiB blocks of a page. The checksums of all of them have to fit the first one.
pub const MAX_BLOCKS: usize = 256;

/// The most records of a page.
pub const MAX_RECORDS: usize = u16::MAX as usize;

/// Bytes between the checksums and the least id.
const FIXED: usize = 16;
/// Stands for "no ids" where the bytes of an id stand.
const NO_IDS: u8 = 255;

/// What decides where pages stand and what is in them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SlottedShape {
    kind: FileKind,
    element: Element,
    dim: usize,
    degree: usize,
    blocks: usize,
}

/// What the header of a file of slotted pages says beside its shape.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SlottedFacts {
    /// The node of the file's first record.
    pub first: u32,
    /// Records in the file: nodes `first..first + nodes`.
    pub nodes: u64,
    /// Pages of the file.
    pub pages: u64,
}

impl SlottedShape {
    /// The shape of a file for vectors of `dim` elements and at most `degree` neighbours a node. Its pages
    /// have as few blocks as one record of `largest` bytes needs, list and vector taken together.
    ///
    /// Refuses a kind that has no slotted pages, a dimension of zero or above [`MAX_DIMENSION`], a degree of
    /// zero or above [`MAX_DEGREE`], and a record that does not fit [`MAX_BLOCKS`] blocks.
    pub fn new(
        kind: FileKind,
        element: Element,
        dim: usize,
        degree: usize,
        largest: usize,
    ) -> Result<SlottedShape, LayoutError> {
        let mut shape = SlottedShape::of_one_block(kind, element, dim, degree)?;
        while shape.page_bytes() - shape.header_bytes() < largest {
            if shape.blocks == MAX_BLOCKS {
                return Err(LayoutError::Shape {
                    what: "the bytes of the largest record",
                    found: largest as u64,
                    expected: "what fits a page of 256 blocks, about a million",
                });
            }
            shape.blocks += 1;
        }
        Ok(shape)
    }

    fn of_one_block(
        kind: FileKind,
        element: Element,
        dim: usize,
        degree: usize,
    ) -> Result<SlottedShape, LayoutError> {
        let refused = |what, found, expected| LayoutError::Shape {
            what,
            found,
            expected,
        };
        if !is_slotted(kind) {
            let expected = "slotted pages in kinds 5, 6 and 7";
            return Err(refused("the file kind", u64::from(kind.code()), expected));
        }
        if dim == 0 || dim > MAX_DIMENSION {
            return Err(refused("the dimension", dim as u64, "1 to 65536"));
        }
        if degree == 0 || degree > MAX_DEGREE {
            return Err(refused("the degree R", degree as u64, "1 to 4096"));
        }
        Ok(SlottedShape {
            kind,
            element,
            dim,
            degree,
            blocks: 1,
        })
    }

    /// The kind of the file: `Packed`, `Adjacency` or `Vectors`.
    pub fn kind(&self) -> FileKind {
        self.kind
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

    /// Bytes of a decoded vector.
    pub fn vector_bytes(&self) -> usize {
        self.dim * self.element.size()
    }

    /// 4 KiB blocks of a page.
    pub fn blocks_per_page(&self) -> usize {
        self.blocks
    }

    /// Bytes of a page, a multiple of [`BLOCK`].
    #[inline]
    pub fn page_bytes(&self) -> usize {
        self.blocks * BLOCK
    }

    /// The offset in the file at which a page starts, in bytes.
    #[inline]
    pub fn file_offset(&self, page: u64) -> u64 {
        page.saturating_mul(self.page_bytes() as u64)
            .saturating_add(BLOCK as u64)
    }

    /// The length of a file of `pages` pages, in bytes.
    pub fn file_length(&self, pages: u64) -> u64 {
        self.file_offset(pages)
    }

    /// The header of a file that holds nodes `first..first + nodes` on `pages` pages.
    pub fn header(&self, first: u32, nodes: u64, pages: u64) -> FileHeader {
        let fields = FieldsWriter::new()
            .u32(u32::from(self.element.code()))
            .u32(self.dim as u32)
            .u32(self.degree as u32)
            .u32(self.blocks as u32)
            .u32(first)
            .u64(nodes)
            .u64(pages)
            .finish();
        FileHeader::new(self.kind, self.file_length(pages), fields)
    }

    /// The shape that a header says, and what else it says; refuses a header that contradicts itself.
    pub fn from_header(
        header: &FileHeader,
        file: &str,
    ) -> Result<(SlottedShape, SlottedFacts), LayoutError> {
        if !is_slotted(header.kind) {
            return Err(LayoutError::WrongKind {
                file: file.to_owned(),
                offset: 8,
                found: header.kind.name(),
                expected: "packed, adjacency or vectors",
            });
        }
        let field = |offset, what, found: String, expected: &str| LayoutError::Field {
            file: file.to_owned(),
            offset,
            what,
            found,
            expected: expected.to_owned(),
        };
        let mut fields = header.fields(file);
        let element_at = fields.offset();
        let code = fields.u32("element code")?;
        let shape_at = fields.offset();
        let dim = fields.u32("dimension")?;
        let degree = fields.u32("degree")?;
        let blocks_at = fields.offset();
        let blocks = fields.u32("blocks of a page")?;
        let first_at = fields.offset();
        let first = fields.u32("first node")?;
        let nodes = fields.u64("number of nodes")?;
        let pages_at = fields.offset();
        let pages = fields.u64("number of pages")?;
        fields.end()?;

        let element = u8::try_from(code).ok().and_then(Element::from_code);
        let element = element.ok_or_else(|| {
            let expected = "a known element type";
            field(element_at, "element code", code.to_string(), expected)
        })?;
        let shape = SlottedShape::of_one_block(header.kind, element, dim as usize, degree as usize);
        let mut shape = shape.map_err(|_| {
            let (found, expected) = (format!("{dim} and {degree}"), "1 to 65536 and 1 to 4096");
            field(shape_at, "dimension and degree", found, expected)
        })?;
        if blocks == 0 || blocks as usize > MAX_BLOCKS {
            let (what, expected) = ("blocks of a page", "1 to 256");
            return Err(field(blocks_at, what, blocks.to_string(), expected));
        }
        shape.blocks = blocks as usize;
        if u64::from(first).saturating_add(nodes) > u64::from(u32::MAX) {
            let (what, found) = (
                "first node and number of nodes",
                format!("{first} and {nodes}"),
            );
            return Err(field(first_at, what, found, "at most 4294967295 together"));
        }
        // Every page holds a record or more, and every record is on a page.
        if pages > nodes || nodes > pages.saturating_mul(MAX_RECORDS as u64) {
            let expected = format!("enough for {nodes} nodes, 1 to {MAX_RECORDS} each");
            return Err(field(
                pages_at,
                "number of pages",
                pages.to_string(),
                &expected,
            ));
        }
        if header.length != shape.file_length(pages) {
            return Err(field(
                32,
                "file length",
                header.length.to_string(),
                &format!("{} for {pages} pages", shape.file_length(pages)),
            ));
        }
        let facts = SlottedFacts {
            first,
            nodes,
            pages,
        };
        Ok((shape, facts))
    }

    fn has_lists(&self) -> bool {
        self.kind != FileKind::Vectors
    }

    fn has_vectors(&self) -> bool {
        self.kind != FileKind::Adjacency
    }

    fn has_ids(&self) -> bool {
        self.kind != FileKind::Adjacency
    }

    /// Bytes of a page in front of its arrays.
    #[inline]
    fn header_bytes(&self) -> usize {
        4 * self.blocks + FIXED + if self.has_ids() { 8 } else { 0 }
    }

    /// The number in the file of the first block of a page.
    fn first_block(&self, page: u64) -> u64 {
        page.saturating_mul(self.blocks as u64).saturating_add(1)
    }
}

fn is_slotted(kind: FileKind) -> bool {
    matches!(
        kind,
        FileKind::Packed | FileKind::Adjacency | FileKind::Vectors
    )
}

/// Bytes that lengths need which spread over `range`.
fn length_width(range: usize) -> usize {
    match range {
        0 => 0,
        1..=0xff => 1,
        0x100..=0xffff => 2,
        _ => 4,
    }
}

/// What decides how many bytes a page needs.
#[derive(Debug, Clone, Copy)]
struct Extent {
    count: usize,
    /// Bytes of all records.
    bytes: usize,
    lists: (usize, usize),
    vectors: (usize, usize),
    ids: (u64, u64),
    /// Each id is its predecessor's plus one.
    consecutive: bool,
}

impl Extent {
    const EMPTY: Extent = Extent {
        count: 0,
        bytes: 0,
        lists: (usize::MAX, 0),
        vectors: (usize::MAX, 0),
        ids: (u64::MAX, 0),
        consecutive: true,
    };

    fn with(self, id: u64, list: usize, vector: usize) -> Extent {
        let grown =
            |(least, most): (usize, usize), length: usize| (least.min(length), most.max(length));
        let follows = self.ids.1.checked_add(1) == Some(id);
        Extent {
            count: self.count + 1,
            bytes: self.bytes + list + vector,
            lists: grown(self.lists, list),
            vectors: grown(self.vectors, vector),
            ids: (self.ids.0.min(id), self.ids.1.max(id)),
            consecutive: self.count == 0 || self.consecutive && follows,
        }
    }

    /// Bytes of a list's length, of a vector's and of an id, the last if there are ids.
    fn widths(&self, ids: bool) -> (usize, usize, usize) {
        let range = self.ids.1 - self.ids.0;
        let id = if !ids || self.consecutive {
            0
        } else {
            // Equal ids spread over nothing, but no byte would mean that they ascend.
            (8 - range.leading_zeros() as usize / 8).max(1)
        };
        (
            length_width(self.lists.1 - self.lists.0),
            length_width(self.vectors.1 - self.vectors.0),
            id,
        )
    }

    fn page_bytes(&self, shape: &SlottedShape) -> usize {
        let (list, vector, id) = self.widths(shape.has_ids());
        shape.header_bytes() + self.count * (list + vector + id) + self.bytes
    }
}

/// Puts pages together, one after the other, in buffers that are reused.
#[derive(Debug)]
pub struct SlottedBuilder {
    shape: SlottedShape,
    first: u32,
    extent: Extent,
    lists: Vec<usize>,
    vectors: Vec<usize>,
    ids: Vec<u64>,
    records: Vec<u8>,
    page: Vec<u8>,
}

impl SlottedBuilder {
    /// A builder with an empty page, whose first record is node 0.
    pub fn new(shape: SlottedShape) -> SlottedBuilder {
        SlottedBuilder {
            shape,
            first: 0,
            extent: Extent::EMPTY,
            lists: Vec::new(),
            vectors: Vec::new(),
            ids: Vec::new(),
            records: Vec::with_capacity(shape.page_bytes()),
            page: vec![0; shape.page_bytes()],
        }
    }

    /// Empties the page. Its first record will be node `first`.
    pub fn start(&mut self, first: u32) {
        self.first = first;
        self.extent = Extent::EMPTY;
        self.lists.clear();
        self.vectors.clear();
        self.ids.clear();
        self.records.clear();
    }

    /// Appends a node if it fits: outside id, encoded list, encoded vector. `false`: it does not fit, and
    /// nothing has changed. An empty page takes any record that is no larger than the shape's largest.
    ///
    /// In a file of kind `Adjacency` the id is not kept.
    ///
    /// # Panics
    /// When there is a vector in a file of kind `Adjacency`, or a list in one of kind `Vectors`.
    pub fn push(&mut self, id: u64, list: &[u8], vector: &[u8]) -> bool {
        let shape = &self.shape;
        let kind = shape.kind;
        assert!(list.is_empty() || shape.has_lists(), "a list in {kind}");
        assert!(
            vector.is_empty() || shape.has_vectors(),
            "a vector in {kind}"
        );
        let extent = self.extent.with(id, list.len(), vector.len());
        if extent.count > MAX_RECORDS || extent.page_bytes(shape) > shape.page_bytes() {
            return false;
        }
        self.extent = extent;
        self.lists.push(list.len());
        self.vectors.push(vector.len());
        self.ids.push(id);
        self.records.extend_from_slice(list);
        self.records.extend_from_slice(vector);
        true
    }

    /// Records on the page.
    pub fn len(&self) -> usize {
        self.extent.count
    }

    /// Whether there is no record on the page.
    pub fn is_empty(&self) -> bool {
        self.extent.count == 0
    }

    /// Seals the page as number `page` of its file and gives its bytes. [`SlottedBuilder::start`] starts the
    /// next one.
    ///
    /// # Panics
    /// When the page is empty: no file has such a page.
    pub fn finish(&mut self, page: u64) -> &[u8] {
        assert!(!self.is_empty(), "a page holds a record or more");
        let (shape, extent, out) = (&self.shape, &self.extent, &mut self.page);
        let (list, vector, id) = extent.widths(shape.has_ids());
        let ids = if shape.has_ids() { id as u8 } else { NO_IDS };
        out.clear();
        out.resize(4 * shape.blocks, 0);
        out.extend_from_slice(&(extent.count as u16).to_le_bytes());
        out.extend_from_slice(&[ids, (vector << 4 | list) as u8]);
        out.extend_from_slice(&self.first.to_le_bytes());
        out.extend_from_slice(&(extent.lists.0 as u32).to_le_bytes());
        out.extend_from_slice(&(extent.vectors.0 as u32).to_le_bytes());
        if shape.has_ids() {
            out.extend_from_slice(&extent.ids.0.to_le_bytes());
        }
        for length in &self.lists {
            let more = (length - extent.lists.0) as u32;
            out.extend_from_slice(&more.to_le_bytes()[..list]);
        }
        for length in &self.vectors {
            let more = (length - extent.vectors.0) as u32;
            out.extend_from_slice(&more.to_le_bytes()[..vector]);
        }
        for number in &self.ids {
            let more = number - extent.ids.0;
            out.extend_from_slice(&more.to_le_bytes()[..id]);
        }
        out.extend_from_slice(&self.records);
        out.resize(shape.page_bytes(), 0);
        block::seal_page(out, shape.first_block(page));
        out
    }
}

/// A page, read in place: nothing is copied or allocated.
#[derive(Debug, Clone, Copy)]
pub struct SlottedView<'a> {
    shape: &'a SlottedShape,
    bytes: &'a [u8],
    file: &'a str,
    page: u64,
    first: u32,
    count: usize,
    lists: Lengths<'a>,
    vectors: Lengths<'a>,
    id_width: u8,
    least_id: u64,
    ids: &'a [u8],
    records_at: usize,
}

/// The lengths of a page's lists or vectors.
#[derive(Debug, Clone, Copy)]
struct Lengths<'a> {
    least: u32,
    width: usize,
    more: &'a [u8],
}

impl Lengths<'_> {
    /// The length in place `slot`; the caller knows that it is there.
    #[inline]
    fn of(&self, slot: usize) -> u64 {
        let more = match self.width {
            0 => 0,
            1 => u32::from(self.more[slot]),
            2 => u32::from(u16_at(self.more, 2 * slot)),
            _ => u32_at(self.more, 4 * slot),
        };
        u64::from(self.least) + u64::from(more)
    }

    /// The sum of the lengths before place `slot`; the caller knows that there are so many. It is far below
    /// 2^64, for there are less than 2^16.
    #[inline]
    fn before(&self, slot: usize) -> u64 {
        let more = &self.more[..slot * self.width];
        let sum = match self.width {
            0 => 0,
            // Neither sum is more than 65535 * 65535, which is below 2^32.
            1 => u64::from(more.iter().map(|&byte| u32::from(byte)).sum::<u32>()),
            2 => {
                let words = more.chunks_exact(2).map(|two| u32::from(u16_at(two, 0)));
                u64::from(words.sum::<u32>())
            }
            _ => {
                let words = more.chunks_exact(4).map(|four| u64::from(u32_at(four, 0)));
                words.sum()
            }
        };
        slot as u64 * u64::from(self.least) + sum
    }
}

/// A node's record, read in place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Record<'a> {
    /// The encoded list.
    pub list: &'a [u8],
    /// From the list's first byte to the end of the page: room for a decoder that reads whole words.
    pub list_and_rest: &'a [u8],
    /// The encoded vector.
    pub vector: &'a [u8],
}

impl<'a> SlottedView<'a> {
    /// Opens page `page` of `file`.
    ///
    /// Refuses bytes that are not a page long, a page without records, and widths and counts that the
    /// format does not have or that do not fit the page. With `verify` also checks the checksums of its
    /// blocks, that all records are inside, and that zeros follow them; without, it looks at the same few
    /// bytes however many records there are, and damaged bytes are still read without a panic, but give
    /// errors or wrong values.
    #[inline]
    pub fn open(
        shape: &'a SlottedShape,
        bytes: &'a [u8],
        page: u64,
        verify: bool,
        file: &'a str,
    ) -> Result<SlottedView<'a>, LayoutError> {
        if bytes.len() != shape.page_bytes() {
            return Err(LayoutError::Truncated {
                file: file.to_owned(),
                offset: shape.file_offset(page),
                expected: shape.page_bytes() as u64,
                found: bytes.len() as u64,
            });
        }
        if verify {
            block::check_page(bytes, shape.first_block(page), file)?;
        }
        let at = 4 * shape.blocks;
        let header_bytes = shape.header_bytes();
        let header = &bytes[at..header_bytes];
        let count = usize::from(u16_at(header, 0));
        let (id_width, widths) = (header[2], header[3]);
        let (list, vector) = (usize::from(widths & 15), usize::from(widths >> 4));
        let (least_list, least_vector) = (u32_at(header, 8), u32_at(header, 12));
        let (id, least_id) = match shape.has_ids() {
            true => (usize::from(id_width), u64_at(header, FIXED)),
            false => (0, 0),
        };
        let known = |width: usize| matches!(width, 0 | 1 | 2 | 4);
        let right = count > 0
            && known(list)
            && known(vector)
            && (id_width <= 8 && shape.has_ids() || id_width == NO_IDS && !shape.has_ids())
            && (shape.has_lists() || list == 0 && least_list == 0)
            && (shape.has_vectors() || vector == 0 && least_vector == 0);
        let lists_at = header_bytes;
        let vectors_at = lists_at + count * list;
        let ids_at = vectors_at + count * vector;
        let records_at = ids_at + count * id;
        if !right || records_at > bytes.len() {
            return Err(wrong_header(shape, bytes, page, file));
        }
        let view = SlottedView {
            shape,
            bytes,
            file,
            page,
            first: u32_at(header, 4),
            count,
            lists: Lengths {
                least: least_list,
                width: list,
                more: &bytes[lists_at..vectors_at],
            },
            vectors: Lengths {
                least: least_vector,
                width: vector,
                more: &bytes[vectors_at..ids_at],
            },
            id_width,
            least_id,
            ids: &bytes[ids_at..records_at],
            records_at,
        };
        if verify {
            view.check_end()?;
        }
        Ok(view)
    }

    /// Records on the page, 1 or more.
    #[inline]
    pub fn len(&self) -> usize {
        self.count
    }

    /// Whether the page holds no record, which no page that opens does.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The node of the first record. It comes from the file: it may be any `u32`.
    #[inline]
    pub fn first(&self) -> u32 {
        self.first
    }

    /// The outside id of the record in place `slot`. Refuses a slot that is not there, a page without ids,
    /// and an id above 2^64 - 1.
    #[inline]
    pub fn id(&self, slot: usize) -> Result<u64, LayoutError> {
        if slot >= self.count {
            return Err(self.no_slot(slot));
        }
        let more = match self.id_width {
            0 => slot as u64,
            NO_IDS => return Err(self.no_id("none on this page", "a file with ids")),
            width => {
                let width = usize::from(width);
                let mut eight = [0; 8];
                eight[..width].copy_from_slice(&self.ids[slot * width..(slot + 1) * width]);
                u64::from_le_bytes(eight)
            }
        };
        match self.least_id.checked_add(more) {
            Some(id) => Ok(id),
            None => Err(self.no_id(&format!("{} + {more}", self.least_id), "below 2^64")),
        }
    }

    /// The record in place `slot`. Refuses a slot that is not there, and lengths that lead out of the page.
    #[inline]
    pub fn record(&self, slot: usize) -> Result<Record<'a>, LayoutError> {
        if slot >= self.count {
            return Err(self.no_slot(slot));
        }
        self.record_at(slot, self.start_of(slot))
    }

    /// The page's records in order; quicker than one after the other with [`SlottedView::record`].
    pub fn records(&self) -> impl ExactSizeIterator<Item = Result<Record<'a>, LayoutError>> + 'a {
        let page = *self;
        let mut at = page.records_at as u64;
        (0..page.count).map(move |slot| {
            let record = page.record_at(slot, at);
            at += page.lists.of(slot) + page.vectors.of(slot);
            record
        })
    }

    /// Where the record in place `slot` starts, which may be out of the page; for `slot` = count, where the
    /// last one ends.
    #[inline]
    fn start_of(&self, slot: usize) -> u64 {
        self.records_at as u64 + self.lists.before(slot) + self.vectors.before(slot)
    }

    #[inline]
    fn record_at(&self, slot: usize, start: u64) -> Result<Record<'a>, LayoutError> {
        let middle = start + self.lists.of(slot);
        let end = middle + self.vectors.of(slot);
        if end > self.bytes.len() as u64 {
            return Err(self.outside(slot, end));
        }
        let (start, middle, end) = (start as usize, middle as usize, end as usize);
        let list_and_rest = &self.bytes[start..];
        Ok(Record {
            list: &list_and_rest[..middle - start],
            list_and_rest,
            vector: &list_and_rest[middle - start..end - start],
        })
    }

    /// Refuses records that are not inside, and anything but zeros behind them.
    fn check_end(&self) -> Result<(), LayoutError> {
        let end = self.start_of(self.count);
        if end > self.bytes.len() as u64 {
            return Err(self.outside(self.count - 1, end));
        }
        crate::error::check_zero(
            &self.bytes[end as usize..],
            self.offset().saturating_add(end),
            self.file,
        )
    }

    fn offset(&self) -> u64 {
        self.shape.file_offset(self.page)
    }

    #[cold]
    fn wrong(&self, at: usize, what: &'static str, found: String, expected: String) -> LayoutError {
        let at = (4 * self.shape.blocks + at) as u64;
        LayoutError::Field {
            file: self.file.to_owned(),
            offset: self.offset().saturating_add(at),
            what,
            found,
            expected,
        }
    }

    #[cold]
    fn no_slot(&self, slot: usize) -> LayoutError {
        let expected = format!("more than {slot}");
        self.wrong(
            0,
            "count of records on the page",
            self.count.to_string(),
            expected,
        )
    }

    #[cold]
    fn no_id(&self, found: &str, expected: &str) -> LayoutError {
        self.wrong(2, "outside id", found.to_owned(), expected.to_owned())
    }

    #[cold]
    fn outside(&self, slot: usize, end: u64) -> LayoutError {
        let expected = format!("at most {}", self.bytes.len());
        self.wrong(
            3,
            "end of a record",
            format!("{end} in place {slot}"),
            expected,
        )
    }
}

/// Says what of a page's header is wrong.
#[cold]
fn wrong_header(shape: &SlottedShape, bytes: &[u8], page: u64, file: &str) -> LayoutError {
    let at = 4 * shape.blocks;
    let header = &bytes[at..];
    let (count, id_width, widths) = (u16_at(header, 0), header[2], header[3]);
    let (list, vector) = (widths & 15, widths >> 4);
    let (least_list, least_vector) = (u32_at(header, 8), u32_at(header, 12));
    let known = |width: u8| matches!(width, 0 | 1 | 2 | 4);
    let id_right = match shape.has_ids() {
        true => id_width <= 8,
        false => id_width == NO_IDS,
    };
    let kind = shape.kind;
    let (more, what, found, expected) = if count == 0 {
        let what = "count of records on the page";
        (0, what, "0".to_owned(), "1 or more".to_owned())
    } else if !id_right {
        let expected = match shape.has_ids() {
            true => format!("0 to 8 in a file of kind {kind}"),
            false => format!("{NO_IDS} in a file of kind {kind}"),
        };
        (2, "bytes of an id", id_width.to_string(), expected)
    } else if !known(list) || !known(vector) {
        let found = format!("{list} and {vector}");
        (3, "bytes of a length", found, "0, 1, 2 or 4".to_owned())
    } else if !shape.has_lists() && (list, least_list) != (0, 0) {
        let (found, expected) = (
            format!("{least_list} or more"),
            format!("0 in a file of kind {kind}"),
        );
        (8, "length of a list", found, expected)
    } else if !shape.has_vectors() && (vector, least_vector) != (0, 0) {
        let (found, expected) = (
            format!("{least_vector} or more"),
            format!("0 in a file of kind {kind}"),
        );
        (12, "length of a vector", found, expected)
    } else {
        let what = "count of records on the page";
        let expected = "no more than a page has room for".to_owned();
        (0, what, count.to_string(), expected)
    };
    LayoutError::Field {
        file: file.to_owned(),
        offset: shape.file_offset(page).saturating_add((at + more) as u64),
        what,
        found,
        expected,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_round_trips() {
        let shape = SlottedShape::new(FileKind::Packed, Element::U8, 128, 64, 300).unwrap();
        let mut builder = SlottedBuilder::new(shape);
        builder.start(17);
        let mut pushed = Vec::new();
        loop {
            let at = pushed.len() as u64;
            let (id, list, vector) = (at * 7919 % 100_003, vec![1; at as usize % 90], vec![2; 86]);
            if !builder.push(id, &list, &vector) {
                break;
            }
            pushed.push((id, list, vector));
        }
        let page = builder.finish(5);
        let view = SlottedView::open(&shape, page, 5, true, "packed").unwrap();
        assert_eq!((view.len(), view.first()), (pushed.len(), 17));
        for (slot, (id, list, vector)) in pushed.iter().enumerate() {
            let record = view.record(slot).unwrap();
            assert_eq!(view.id(slot).unwrap(), *id);
            assert_eq!((record.list, record.vector), (&list[..], &vector[..]));
        }
    }
}
