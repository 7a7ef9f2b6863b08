//! Slotted pages have encoded records of different lengths, as many as fit.
//!
//! ```text
//! file = [header block][page 0][page 1]..       page p starts at byte 4096 + p * page_bytes
//! ```
//!
//! The header's fields: element code u32, dimension u32, degree R u32, blocks of a page `k` u32,
//! first node u32, nodes u64, pages u64.
//!
//! A record is a node's encoded list, then its encoded vector. In a file of kind `Adjacency`, all
//! vectors are empty. In a file of kind `Vectors`, all lists are empty. In a file of kind
//! `Layered`, the vector is a leading part, whose trailing part is in a file of kind `Vectors`.
//!
//! Records fill the pages in the order of nodes, without gaps, so a page stores only its first
//! node. A page is `k` consecutive 4 KiB blocks: as few as the file's largest record needs.
//!
//! A rewritten record goes to a *relocated* page of the same file, which stores the node of each
//! record. A file of kind `Vectors` has no relocated pages.
//!
//! ```text
//! offset    size  contents (page)
//!      0     4*k  checksums of the page's blocks (see `block`)
//!    4*k       2  count of records c, 1 or more
//!  4*k+2       1  bytes of an id w: 1 to 8; 0: the ids are the least, the least + 1 and so on;
//!                 255: the page has no ids (only in files of kind `Adjacency`)
//!  4*k+3       1  bytes of a length: l of lists in the low three bits, v of vectors in the high
//!                 four: 1, 2, 4, or 0 if all lengths are equal. Bit 3 (value 8): relocated page
//!  4*k+4       4  node of the first record u32; on a relocated page the least node of all
//!  4*k+8       4  least length of a list u32; 0 without lists
//! 4*k+12       4  least length of a vector u32; 0 without vectors
//! 4*k+16       8  least id u64; absent if w is 255
//!      .     c*4  for each record, its node u32, in any order, none twice; on relocated pages only
//!      .     c*l  for each record, the length of its list less the least
//!      .     c*v  for each record, the length of its vector less the least
//!      .     c*w  for each record, its external id less the least; absent if w is 255
//!      .       .  records: bytes of the list, bytes of the vector, one after the other; then zeros
//! ```
//!
//! The length and the id of a record take about five bytes if the ids are unordered, and about two
//! bytes if they ascend. The position of a record is the sum of the lengths before it.
//!
//! # Spanning records
//!
//! In files of kind `Vectors` of version 2, a page is one block, and a record may *span* pages: it
//! continues on as many following pages as it needs. If fewer than 256 bytes are free at the end of
//! a page, they stay empty, because they are not worth the read of a second page. `k` in the header
//! is the most pages that a record may span. A page differs from the table above in these fields:
//!
//! ```text
//! offset    size  contents (page)
//!      4       2  count of records c that start here; 0 or more
//!     12       4  g: bytes left, here and on later pages, of a record from an earlier page; or 0
//!     28       4  if g is more than 0: the checksum of the page before
//!      .       .  these g bytes, as many as fit; then the lengths, as above. If they fill the
//!                 page, c is 0
//!      .       .  records; the last one may continue on the next page, with its rest as g
//! ```
//!
//! So a page shows where its first own record starts, and over how many pages its last record
//! continues: each later page takes 4,064 bytes, except the last one. [`crate::RunsOn`] has the
//! same facts in memory, so that a search reads all pages of a record with one read.
//!
//! If a device loses the write of a page, the next page's checksum of the page before does not
//! match. So no reader composes a record of two versions.

mod builder;
mod view;

pub use builder::SlottedBuilder;
pub use view::{Record, SlottedView};

use crate::block::{self, BLOCK};
use crate::coupled::{MAX_DEGREE, MAX_DIMENSION};
use crate::error::{CHOOSE, LayoutError};
use crate::header::{Beside, FieldsWriter, FileHeader, FileKind, Form};
use stratann_vector::Element;

/// Format version of [`FileKind::Packed`], [`FileKind::Adjacency`] and [`FileKind::Layered`].
pub const FORMAT_VERSION: u32 = 1;

/// Format version of [`FileKind::Vectors`]. 1: the first; 2: records span pages.
pub const VECTORS_FORMAT_VERSION: u32 = 2;

/// The most 4 KiB blocks of a page: the checksums of all blocks must fit the first block.
pub const MAX_BLOCKS: usize = 256;

/// The most records of a page.
pub const MAX_RECORDS: usize = u16::MAX as usize;

const FIXED: usize = 16;
const NO_IDS: u8 = 255;
const RELOCATED: u8 = 8;
const NODE: usize = 4;
const BEFORE: usize = 4;
/// The fewest bytes of a record on its first page. Fewer bytes are not worth the read of a page.
const LEAST_PART: usize = 256;

/// The properties that determine the positions and contents of pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SlottedShape {
    kind: FileKind,
    holds: Holds,
    element: Element,
    dim: usize,
    degree: usize,
    blocks: usize,
    /// The most pages that a record spans; 0 if records do not span pages.
    run: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Holds {
    Both,
    List,
    Vector,
}

impl Holds {
    fn of(kind: FileKind) -> Option<Holds> {
        match kind.form() {
            Form::Lists(pages) => match (pages.slotted, pages.vectors) {
                (true, Beside::Vector | Beside::LeadingPart) => Some(Holds::Both),
                (true, Beside::Nothing) => Some(Holds::List),
                (false, _) => None,
            },
            Form::Segment => Some(Holds::Vector),
            Form::Clusters(_) | Form::Stream | Form::Log => None,
        }
    }
}

/// The facts in the header of a file of slotted pages besides its shape.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SlottedFacts {
    /// The node of the file's first record.
    pub first: u32,
    /// Records in the file, of the nodes `first..first + nodes`. These are the numbers that the
    /// nodes had when the file was written ([`crate::chunks`]).
    pub nodes: u64,
    /// Pages of the file.
    pub pages: u64,
}

impl SlottedShape {
    /// The shape of a file for vectors of `dim` elements and at most `degree` neighbours a node. A
    /// page has as few blocks as a record of `largest` bytes needs.
    ///
    /// Refuses a kind without slotted pages, and a number that is 0 or above its limit.
    pub fn new(
        kind: FileKind,
        element: Element,
        dim: usize,
        degree: usize,
        largest: usize,
    ) -> Result<SlottedShape, LayoutError> {
        let mut shape = SlottedShape::of_one_block(kind, element, dim, degree)?;
        let node = if shape.relocates() { NODE } else { 0 };
        while shape.page_bytes() - shape.header_bytes() < largest.saturating_add(node) {
            if shape.blocks == MAX_BLOCKS {
                return Err(LayoutError::Shape {
                    what: "the length of the largest record in bytes",
                    found: largest as u64,
                    expected: "about a million at most, the bytes of a page of 256 blocks",
                    remedy: CHOOSE,
                });
            }
            shape.blocks += 1;
        }
        Ok(shape)
    }

    /// The shape of a file of kind `Vectors` whose records, of at most `largest` bytes, may span
    /// pages. Refuses the same arguments as [`SlottedShape::new`].
    pub fn running_on(
        element: Element,
        dim: usize,
        degree: usize,
        largest: usize,
    ) -> Result<SlottedShape, LayoutError> {
        let mut shape = SlottedShape::of_one_block(FileKind::Vectors, element, dim, degree)?;
        // With fewer free bytes than `LEAST_PART`, a record either fits or starts on the next page.
        let behind = largest.saturating_sub(LEAST_PART);
        if behind == 0 {
            return Ok(shape);
        }
        shape.run = 1 + behind.div_ceil(shape.going_on());
        if shape.run > MAX_BLOCKS {
            return Err(LayoutError::Shape {
                what: "the length of the largest record in bytes",
                found: largest as u64,
                expected: "about a million at most, the bytes of 256 blocks",
                remedy: CHOOSE,
            });
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
            remedy: CHOOSE,
        };
        let Some(holds) = Holds::of(kind) else {
            let expected = "slotted pages in kinds 5, 6, 7 and 18";
            return Err(refused("the file kind", u64::from(kind.code()), expected));
        };
        if dim == 0 || dim > MAX_DIMENSION {
            return Err(refused("the dimension", dim as u64, "1 to 65536"));
        }
        if degree == 0 || degree > MAX_DEGREE {
            return Err(refused("the degree R", degree as u64, "1 to 4096"));
        }
        Ok(SlottedShape {
            kind,
            holds,
            element,
            dim,
            degree,
            blocks: 1,
            run: 0,
        })
    }

    /// The kind of the file: `Packed`, `Adjacency`, `Layered` or `Vectors`.
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

    fn going_on(&self) -> usize {
        self.page_bytes() - self.header_bytes() - BEFORE
    }

    /// Whether a record that does not fit on a page continues on the next one.
    #[inline]
    pub fn runs_on(&self) -> bool {
        self.run > 0
    }

    /// The most pages that a record spans.
    pub fn pages_per_record(&self) -> usize {
        self.run.max(1)
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

    /// The header of a file with nodes `first..first + nodes` on `pages` pages.
    pub fn header(&self, first: u32, nodes: u64, pages: u64) -> FileHeader {
        let fields = FieldsWriter::new()
            .u32(u32::from(self.element.code()))
            .u32(self.dim as u32)
            .u32(self.degree as u32)
            .u32(self.run.max(self.blocks) as u32)
            .u32(first)
            .u64(nodes)
            .u64(pages)
            .finish();
        let mut header = FileHeader::new(self.kind, self.file_length(pages), fields);
        if !self.runs_on() {
            header.version = FORMAT_VERSION;
        }
        header
    }

    /// Decodes the shape and the other facts. Refuses a header that contradicts itself.
    pub fn from_header(
        header: &FileHeader,
        file: &str,
    ) -> Result<(SlottedShape, SlottedFacts), LayoutError> {
        if Holds::of(header.kind).is_none() {
            return Err(LayoutError::WrongKind {
                file: file.to_owned(),
                offset: 8,
                found: header.kind.name(),
                expected: "packed, adjacency, layered or vectors",
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
        if header.version == FORMAT_VERSION || shape.has_lists() {
            shape.blocks = blocks as usize;
        } else {
            shape.run = blocks as usize;
        }
        if u64::from(first).saturating_add(nodes) > u64::from(u32::MAX) {
            let (what, found) = (
                "first node and number of nodes",
                format!("{first} and {nodes}"),
            );
            return Err(field(first_at, what, found, "at most 4294967295 together"));
        }
        // Every page has at least one record or a part of one.
        if pages > nodes.saturating_mul(shape.pages_per_record() as u64)
            || nodes > pages.saturating_mul(MAX_RECORDS as u64)
        {
            let expected = format!("enough for {nodes} nodes, 1 to {MAX_RECORDS} nodes a page");
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
                &format!("{}, for {pages} pages", shape.file_length(pages)),
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
        self.holds != Holds::Vector
    }

    fn has_vectors(&self) -> bool {
        self.holds != Holds::List
    }

    /// Whether records have external ids. Records with vectors do.
    pub fn has_ids(&self) -> bool {
        self.has_vectors()
    }

    /// Whether a file of this kind may have relocated pages.
    pub fn relocates(&self) -> bool {
        self.has_lists()
    }

    /// Bytes of a page for records, lengths, nodes and ids, if records do not span pages.
    pub fn room(&self) -> usize {
        self.page_bytes() - self.header_bytes()
    }

    #[inline]
    fn header_bytes(&self) -> usize {
        4 * self.blocks + FIXED + if self.has_ids() { 8 } else { 0 }
    }

    /// Checks the checksums of the pages in `bytes`, from number `page` on.
    pub fn check(&self, bytes: &[u8], page: u64, file: &str) -> Result<(), LayoutError> {
        let mut first = self.first_block(page);
        for page in bytes.chunks(self.page_bytes()) {
            if page.len() != self.page_bytes() {
                return block::check(page, first, file);
            }
            block::check_page(page, first, file)?;
            first = first.saturating_add(self.blocks as u64);
        }
        Ok(())
    }

    fn first_block(&self, page: u64) -> u64 {
        page.saturating_mul(self.blocks as u64).saturating_add(1)
    }
}

#[cfg(test)]
mod tests;
