//! Coupled pages: a node's vector and adjacency list are adjacent, so that one read returns both.
//!
//! ```text
//! file = [header block][page 0][page 1]..       page p starts at byte 4096 + p * page_bytes
//! ```
//!
//! The header's fields: element code u32, dimension u32, degree R u32, nodes u64.
//!
//! A page is `k` consecutive 4 KiB blocks. If a record fits one block, `k` is 1. Otherwise a page
//! has one record, and `k` is as small as possible. The checksums are at the front, so that a
//! vector is one slice of the page.
//!
//! ```text
//! offset    size  contents (page)
//!      0       4  crc32c of (number of the page's first block as u64, then bytes 4..4096)
//!    4*i       4  crc32c of (number of block i of the page, then its 4096 bytes), i = 1..k
//!    4*k       2  count of records
//!  4*k+2       2  1: the page is relocated; otherwise zero
//!  4*k+4       .  records, one after the other, then zeros
//!
//! offset    size  contents (record); V = dimension * element size, rounded up to a multiple of 4
//!      0       8  external id u64
//!      8       V  the vector, then zeros up to V
//!    8+V       2  degree u16: neighbours in use
//!   10+V       2  zero
//!   12+V     4*R  neighbours u32 each: internal numbers of nodes; unused ones are zero
//! 12+V+4*R     4  the node u32, none twice on a page; on relocated pages only
//! ```
//!
//! Nodes fill the pages in order, so a node's page and slot follow from its number.
//!
//! A rewritten record goes to a *relocated* page, which stores the node of each record in four more
//! bytes. If these bytes do not fit on a page with one record, files of this shape have no
//! relocated pages.

use std::ops::Deref;

use crate::block::u32_at;
use crate::error::LayoutError;
use crate::geometry::{self, Geometry};
use crate::header::{FieldsWriter, FileHeader, FileKind};
use crate::records::{self, RecordsBuilder, RecordsView};
use stratann_vector::Element;

pub use crate::geometry::{MAX_DEGREE, MAX_DIMENSION};

/// Format version of [`FileKind::Graph`]. 1: the first.
pub const FORMAT_VERSION: u32 = 1;

const NODE: usize = 4;
const RELOCATED: u16 = 1;
const NODE_OF: &str = "node of a record";

/// The properties that determine all positions: element type, dimension and degree bound.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CoupledShape {
    geometry: Geometry,
    /// The geometry of relocated pages; `None` if their records do not fit the blocks of a page.
    relocated: Option<Geometry>,
}

impl Deref for CoupledShape {
    type Target = Geometry;

    #[inline]
    fn deref(&self) -> &Geometry {
        &self.geometry
    }
}

impl CoupledShape {
    /// The shape for vectors of `dim` elements and at most `degree` neighbours a node. Refuses 0,
    /// and numbers above [`MAX_DIMENSION`] or [`MAX_DEGREE`].
    pub fn new(element: Element, dim: usize, degree: usize) -> Result<CoupledShape, LayoutError> {
        let geometry = Geometry::new(element, dim, degree, 0)?;
        let relocated = Geometry::new(element, dim, degree, NODE)?;
        Ok(CoupledShape {
            geometry,
            relocated: (relocated.blocks == geometry.blocks).then_some(relocated),
        })
    }

    /// Nodes on a full relocated page; 0 if the shape has no such pages.
    pub fn relocated_per_page(&self) -> usize {
        self.relocated.map_or(0, |geometry| geometry.nodes_per_page)
    }

    /// The header of a file with `nodes` nodes.
    pub fn header(&self, nodes: u64) -> FileHeader {
        let fields = FieldsWriter::new()
            .u32(u32::from(self.element().code()))
            .u32(self.dim() as u32)
            .u32(self.degree() as u32)
            .u64(nodes)
            .finish();
        FileHeader::new(FileKind::Graph, self.file_length(nodes), fields)
    }

    /// Decodes the shape and the number of nodes. Refuses a header that contradicts itself.
    pub fn from_header(
        header: &FileHeader,
        file: &str,
    ) -> Result<(CoupledShape, u64), LayoutError> {
        header.expect_kind(FileKind::Graph, file)?;
        let mut fields = header.fields(file);
        let element = geometry::read_element(&mut fields, file)?;
        let at = fields.offset();
        let dim = fields.u32("dimension")?;
        let degree = fields.u32("degree")?;
        let nodes_at = fields.offset();
        let nodes = fields.u64("number of nodes")?;
        fields.end()?;
        let shape = CoupledShape::new(element, dim as usize, degree as usize).map_err(|_| {
            LayoutError::Field {
                file: file.to_owned(),
                offset: at,
                what: "dimension and degree",
                found: format!("{dim} and {degree}"),
                expected: "1 to 65536 and 1 to 4096".to_owned(),
            }
        })?;
        shape.geometry.check_nodes(nodes, nodes_at, header, file)?;
        Ok((shape, nodes))
    }
}

/// Builds pages one after the other, in one reused buffer.
#[derive(Debug)]
pub struct PageBuilder {
    shape: CoupledShape,
    records: RecordsBuilder,
    relocated: bool,
    nodes: Vec<u32>,
}

impl PageBuilder {
    /// A builder with an empty page.
    pub fn new(shape: CoupledShape) -> PageBuilder {
        PageBuilder {
            shape,
            records: RecordsBuilder::new(shape.geometry),
            relocated: false,
            nodes: Vec::new(),
        }
    }

    /// Empties the page, for consecutive nodes ([`PageBuilder::push`]).
    pub fn clear(&mut self) {
        self.records.start(self.shape.geometry, 0);
        self.relocated = false;
        self.nodes.clear();
    }

    /// Empties the page for records of any nodes ([`PageBuilder::push_node`]).
    ///
    /// # Panics
    /// Panics if [`CoupledShape::relocated_per_page`] is 0.
    pub fn start_relocated(&mut self) {
        let Some(geometry) = self.shape.relocated else {
            panic!("a record with its node number does not fit into a page of this shape");
        };
        self.records.start(geometry, RELOCATED);
        self.relocated = true;
        self.nodes.clear();
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

    /// Appends a node: external id, vector bytes, neighbours as node numbers.
    ///
    /// # Panics
    /// Panics if the page is full or relocated, or an argument has a wrong length.
    pub fn push(&mut self, id: u64, vector: &[u8], neighbours: &[u32]) {
        assert!(
            !self.relocated,
            "`push` on a relocated page, which needs `push_node`"
        );
        self.records.push(id, vector, neighbours);
    }

    /// Appends `node` to a relocated page. If the page is full, returns `false`.
    ///
    /// # Panics
    /// Panics if the page is not relocated or has the node, or an argument has a wrong length.
    pub fn push_node(&mut self, node: u32, id: u64, vector: &[u8], neighbours: &[u32]) -> bool {
        assert!(
            self.relocated,
            "`push_node` on a page that is not relocated"
        );
        assert!(!self.nodes.contains(&node), "node {node} twice on a page");
        if self.records.is_full() {
            return false;
        }
        let behind = self.records.push(id, vector, neighbours);
        behind.copy_from_slice(&node.to_le_bytes());
        self.nodes.push(node);
        true
    }

    /// Writes the checksums for page `page` of the file. More records may be pushed afterwards.
    ///
    /// # Panics
    /// Panics if the page is relocated and empty.
    pub fn finish(&mut self, page: u64) -> &[u8] {
        assert!(
            !self.relocated || !self.is_empty(),
            "a relocated page has one record or more"
        );
        self.records.finish(page)
    }
}

/// A page that is read in place, without copies or allocations.
#[derive(Debug, Clone, Copy)]
pub struct PageView<'a> {
    shape: &'a CoupledShape,
    records: RecordsView<'a>,
    relocated: bool,
}

impl<'a> PageView<'a> {
    /// Opens page `page` of `file`. The page itself shows whether it is relocated. A page that is
    /// not relocated must have `expected` records. If `expected` is 0, the page must be relocated.
    ///
    /// With `verify`, the method also compares the checksums, and refuses a relocated page that has
    /// a node twice. Without `verify`, damaged bytes give wrong values, but cause no panic.
    #[inline]
    pub fn open(
        shape: &'a CoupledShape,
        bytes: &'a [u8],
        page: u64,
        expected: Option<usize>,
        verify: bool,
        file: &'a str,
    ) -> Result<PageView<'a>, LayoutError> {
        if records::mark(&shape.geometry, bytes) == Some(RELOCATED)
            && let Some(geometry) = &shape.relocated
        {
            let records = RecordsView::open(geometry, bytes, page, None, RELOCATED, verify, file)?;
            let view = PageView {
                shape,
                records,
                relocated: true,
            };
            view.check_nodes(verify)?;
            return Ok(view);
        }
        let records = RecordsView::open(&shape.geometry, bytes, page, expected, 0, verify, file)?;
        let view = PageView {
            shape,
            records,
            relocated: false,
        };
        if expected == Some(0) {
            return Err(view.behind_the_build());
        }
        Ok(view)
    }

    /// Refuses a relocated page without records. If `all` is true, also refuses a repeated node.
    fn check_nodes(&self, all: bool) -> Result<(), LayoutError> {
        if self.is_empty() {
            let at = 4 * self.shape.blocks_per_page();
            let what = "count of records on the page";
            return Err(self.records.wrong(at, what, 0, "1 or more"));
        }
        let twice = |&slot: &usize| self.find(self.named(slot)) != Some(slot);
        let slots = if all { 0..self.len() } else { 0..0 };
        let Some(slot) = slots.into_iter().find(twice) else {
            return Ok(());
        };
        let at = self.records.behind_at(slot);
        let found = format!("{}, twice", self.named(slot));
        Err(self.records.wrong(at, NODE_OF, found, "each node once"))
    }

    #[cold]
    fn behind_the_build(&self) -> LayoutError {
        let at = 4 * self.shape.blocks_per_page() + 2;
        let expected = "1, a relocated page, since it is after the pages of the build";
        self.records.wrong(at, "kind of a page", 0, expected)
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

    /// Whether the page stores the node of each record.
    #[inline]
    pub fn is_relocated(&self) -> bool {
        self.relocated
    }

    /// The node of the record in slot `slot`. On a relocated page, this number is not checked.
    #[inline]
    pub fn node_number(&self, slot: usize) -> Result<u32, LayoutError> {
        if slot >= self.len() {
            return Err(self.records.no_slot(slot));
        }
        if self.relocated {
            return Ok(self.named(slot));
        }
        let node = self.first_node().saturating_add(slot as u64);
        u32::try_from(node).map_err(|_| {
            let at = self.shape.geometry.record_at(slot);
            self.records.wrong(at, NODE_OF, node, "below 2^32")
        })
    }

    /// The slot of `node`, if the page has a record of this node.
    #[inline]
    pub fn slot_of(&self, node: u32) -> Option<usize> {
        if self.relocated {
            return self.find(node);
        }
        let slot = u64::from(node).checked_sub(self.first_node())?;
        (slot < self.len() as u64).then_some(slot as usize)
    }

    #[inline]
    fn find(&self, node: u32) -> Option<usize> {
        (0..self.len()).find(|&slot| self.named(slot) == node)
    }

    #[inline]
    fn named(&self, slot: usize) -> u32 {
        u32_at(self.records.behind(slot), 0)
    }

    #[inline]
    fn first_node(&self) -> u64 {
        self.shape.first_node(self.records.page())
    }

    /// The record in slot `slot`. Refuses a slot that does not exist, and a degree above R.
    #[inline]
    pub fn node(&self, slot: usize) -> Result<NodeView<'a>, LayoutError> {
        let record = self.records.record(slot)?;
        Ok(NodeView {
            id: record.id,
            vector: record.vector,
            neighbours: Neighbours { bytes: record.list },
        })
    }

    /// The page's records in order.
    pub fn nodes(&self) -> impl Iterator<Item = Result<NodeView<'a>, LayoutError>> + 'a {
        let page = *self;
        (0..self.len()).map(move |slot| page.node(slot))
    }
}

/// A node's record, read in place.
#[derive(Debug, Clone, Copy)]
pub struct NodeView<'a> {
    /// The external id of the vector.
    pub id: u64,
    /// The vector's bytes, little-endian elements.
    pub vector: &'a [u8],
    /// The adjacency list.
    pub neighbours: Neighbours<'a>,
}

/// An adjacency list, read in place. Its numbers are not checked.
#[derive(Debug, Clone, Copy)]
pub struct Neighbours<'a> {
    pub(crate) bytes: &'a [u8],
}

impl<'a> Neighbours<'a> {
    /// The neighbours as stored on the page: a little-endian u32 each.
    #[inline]
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// The number of neighbours.
    #[inline]
    pub fn len(&self) -> usize {
        self.bytes.len() / 4
    }

    /// Whether there are no neighbours.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// The neighbours, as node numbers.
    #[inline]
    pub fn iter(&self) -> impl ExactSizeIterator<Item = u32> + 'a {
        self.bytes
            .chunks_exact(4)
            .map(|four| u32::from_le_bytes([four[0], four[1], four[2], four[3]]))
    }

    /// Replaces `out` by the neighbours. Allocates only if the capacity is too small.
    #[inline]
    pub fn copy_into(&self, out: &mut Vec<u32>) {
        out.clear();
        out.extend(self.iter());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::block::{self, BLOCK};
    use proptest::prelude::*;

    fn shape(element: Element, dim: usize, degree: usize) -> CoupledShape {
        CoupledShape::new(element, dim, degree).unwrap()
    }

    fn numbers(seed: u64) -> impl Iterator<Item = u64> {
        let mut state = seed;
        std::iter::repeat_with(move || {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            state >> 24
        })
    }

    type Node = (u64, Vec<u8>, Vec<u32>);

    fn nodes(shape: &CoupledShape, count: usize, seed: u64) -> Vec<Node> {
        let mut number = numbers(seed);
        let mut next = || number.next().unwrap();
        (0..count)
            .map(|_| {
                let id = next() << 20 | next();
                let vector = (0..shape.vector_bytes()).map(|_| next() as u8).collect();
                let degree = next() as usize % (shape.degree() + 1);
                (id, vector, (0..degree).map(|_| next() as u32).collect())
            })
            .collect()
    }

    fn build(shape: CoupledShape, page: u64, nodes: &[Node]) -> Vec<u8> {
        let mut builder = PageBuilder::new(shape);
        for (id, vector, neighbours) in nodes {
            builder.push(*id, vector, neighbours);
        }
        builder.finish(page).to_vec()
    }

    fn assert_same(view: &PageView<'_>, nodes: &[Node]) {
        assert_eq!(view.len(), nodes.len());
        let mut copied = Vec::new();
        for (node, (id, vector, neighbours)) in view.nodes().zip(nodes) {
            let node = node.unwrap();
            assert_eq!(node.id, *id);
            assert_eq!(node.vector, &vector[..]);
            assert_eq!(node.neighbours.len(), neighbours.len());
            assert!(node.neighbours.iter().eq(neighbours.iter().copied()));
            node.neighbours.copy_into(&mut copied);
            assert_eq!(&copied, neighbours);
        }
    }

    fn build_relocated(shape: CoupledShape, page: u64, numbers: &[u32], nodes: &[Node]) -> Vec<u8> {
        let mut builder = PageBuilder::new(shape);
        builder.start_relocated();
        for (&number, (id, vector, neighbours)) in numbers.iter().zip(nodes) {
            assert!(builder.push_node(number, *id, vector, neighbours));
        }
        builder.finish(page).to_vec()
    }

    fn assert_nodes(view: &PageView<'_>, numbers: &[u32]) {
        assert_eq!(view.len(), numbers.len());
        for (slot, &number) in numbers.iter().enumerate() {
            assert_eq!(view.node_number(slot), Ok(number));
            for near in [number, number.wrapping_sub(1), number.wrapping_add(1)] {
                let slot = numbers.iter().position(|&number| number == near);
                assert_eq!(view.slot_of(near), slot, "node {near}");
            }
        }
        for slot in [numbers.len(), usize::MAX] {
            view.node_number(slot).unwrap_err();
        }
    }

    #[test]
    fn nodes_per_page_of_known_shapes() {
        for (element, dim, degree, nodes, blocks) in [
            (Element::U8, 128, 64, 10, 1),
            (Element::F32, 384, 64, 2, 1),
            (Element::F32, 1536, 64, 1, 2),
            (Element::F16, 96, 32, 12, 1),
            (Element::I8, 1, 1, 204, 1),
            (Element::F32, 1018, 1, 1, 1),
            (Element::F32, 1019, 1, 1, 2),
            (Element::F32, 65_536, 4096, 1, 69),
        ] {
            let shape = shape(element, dim, degree);
            assert_eq!(shape.nodes_per_page(), nodes, "{element} {dim} {degree}");
            assert_eq!(shape.blocks_per_page(), blocks, "{element} {dim} {degree}");
            assert_eq!(shape.page_bytes(), blocks * BLOCK);
        }
    }

    #[test]
    fn impossible_shapes_are_refused() {
        for (dim, degree) in [
            (0, 64),
            (65_537, 64),
            (128, 0),
            (128, 4097),
            (usize::MAX, 1),
        ] {
            let error = CoupledShape::new(Element::F32, dim, degree).unwrap_err();
            assert!(matches!(error, LayoutError::Shape { .. }));
        }
        let text = CoupledShape::new(Element::F32, 0, 64)
            .unwrap_err()
            .to_string();
        assert_eq!(
            text,
            "the dimension is 0; the format allows 1 to 65536. Choose another value, or another layout"
        );
    }

    #[test]
    fn places_are_computed() {
        let shape = shape(Element::U8, 128, 64);
        assert_eq!((shape.page_of(0), shape.slot_of(0)), (0, 0));
        assert_eq!((shape.page_of(39), shape.slot_of(39)), (3, 9));
        assert_eq!(shape.page_of(u32::MAX), 429_496_729);
        assert_eq!(shape.pages(0), 0);
        assert_eq!(shape.pages(41), 5);
        assert_eq!(shape.nodes_on_page(4, 41), 1);
        assert_eq!(shape.nodes_on_page(3, 41), 10);
        assert_eq!(shape.nodes_on_page(5, 41), 0);
        assert_eq!(shape.file_offset(0), 4096);
        assert_eq!(shape.file_length(41), 6 * 4096);
    }

    #[test]
    fn bytes_stand_where_the_table_says() {
        let shape = shape(Element::U8, 5, 3);
        assert_eq!(shape.record_bytes(), 8 + 8 + 4 + 12);
        let page = build(
            shape,
            0,
            &[
                (1, vec![1, 2, 3, 4, 5], vec![9]),
                (0x0102, vec![6; 5], vec![7, 8]),
            ],
        );
        assert_eq!(page[4..8], [2, 0, 0, 0]);
        assert_eq!(
            page[8..24],
            [1, 0, 0, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 0, 0, 0]
        );
        assert_eq!(
            page[24..40],
            [1, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]
        );
        assert_eq!(page[40..42], [2, 1]);
        let mut covered = 1u64.to_le_bytes().to_vec();
        covered.extend_from_slice(&page[4..]);
        assert_eq!(page[..4], crc32c::crc32c(&covered).to_le_bytes());
    }

    #[test]
    fn relocated_pages_are_as_large_as_others() {
        for (element, dim, degree, nodes) in [
            (Element::U8, 128, 64, 10),
            (Element::F32, 384, 64, 2),
            (Element::F32, 1536, 64, 1),
            (Element::F16, 96, 32, 12),
            (Element::I8, 1, 1, 170),
            (Element::F32, 1017, 1, 1),
            (Element::F32, 1018, 1, 0),
            (Element::F32, 1019, 1, 1),
            (Element::F32, 2040, 1, 1),
            (Element::F32, 2041, 1, 0),
            (Element::F32, 2042, 1, 1),
        ] {
            let shape = shape(element, dim, degree);
            let found = shape.relocated_per_page();
            assert_eq!(found, nodes, "{element} {dim} {degree}");
            let needed = 4 * shape.blocks_per_page() + 4 + found * (shape.record_bytes() + 4);
            assert!(needed <= shape.page_bytes(), "{element} {dim} {degree}");
            assert!(found > 0 || shape.nodes_per_page() == 1);
        }
    }

    #[test]
    fn a_relocated_page_names_its_nodes() {
        let shape = shape(Element::U8, 5, 3);
        let nodes = [
            (1, vec![1, 2, 3, 4, 5], vec![9]),
            (0x0102, vec![6; 5], vec![7, 8]),
        ];
        let numbers = [0x0102_0304, u32::MAX];
        let page = build_relocated(shape, 0, &numbers, &nodes);
        assert_eq!(page[4..8], [2, 0, 1, 0]);
        assert_eq!(
            page[8..24],
            [1, 0, 0, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 0, 0, 0]
        );
        assert_eq!(
            page[24..40],
            [1, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]
        );
        assert_eq!(page[40..46], [4, 3, 2, 1, 2, 1]);
        assert_eq!(page[76..80], [255; 4]);
        assert!(page[80..].iter().all(|&byte| byte == 0));
        for expected in [None, Some(0), Some(2), Some(77)] {
            let view = PageView::open(&shape, &page, 0, expected, true, "g").unwrap();
            assert!(view.is_relocated());
            assert_same(&view, &nodes);
            assert_nodes(&view, &numbers);
        }
    }

    #[test]
    fn other_pages_have_consecutive_nodes() {
        let shape = shape(Element::U8, 128, 64);
        let nodes = nodes(&shape, 6, 1);
        for page in [0, 7, 429_496_729] {
            let bytes = build(shape, page, &nodes);
            let view = PageView::open(&shape, &bytes, page, Some(6), true, "g").unwrap();
            assert!(!view.is_relocated());
            let first = shape.first_node(page) as u32;
            assert_nodes(&view, &(first..=first + 5).collect::<Vec<_>>());
        }
        for page in [429_496_730, u64::MAX] {
            let bytes = build(shape, page, &nodes);
            let view = PageView::open(&shape, &bytes, page, Some(6), true, "g").unwrap();
            let text = view.node_number(0).unwrap_err().to_string();
            assert!(text.contains("node of a record at offset"), "{text}");
            assert_eq!(view.slot_of(u32::MAX), None);
        }
    }

    #[test]
    fn behind_the_build_all_pages_are_relocated() {
        let shape = shape(Element::U8, 16, 8);
        for count in [0, 1] {
            let page = build(shape, 5, &nodes(&shape, count, 2));
            PageView::open(&shape, &page, 5, None, true, "g").unwrap();
            let error = PageView::open(&shape, &page, 5, Some(0), true, "g").unwrap_err();
            assert!(matches!(error, LayoutError::Field { .. }), "{error}");
            if count == 0 {
                let text = error.to_string();
                let expected = "g: kind of a page at offset 24582 is 0; expected 1, a relocated";
                assert!(text.starts_with(expected), "{text}");
            }
        }
    }

    #[test]
    fn what_a_relocated_page_cannot_have_is_refused() {
        let tight = shape(Element::F32, 1018, 1);
        let shape = shape(Element::U8, 16, 8);
        let most = shape.relocated_per_page();
        let numbers: Vec<u32> = (0..most as u32).rev().collect();
        let page = build_relocated(shape, 0, &numbers, &nodes(&shape, most, 2));
        assert!(most < shape.nodes_per_page());
        let refused = |at: usize, with: &[u8], verify: bool| {
            let mut page = page.clone();
            page[at..at + with.len()].copy_from_slice(with);
            block::seal(&mut page, 1);
            let error = PageView::open(&shape, &page, 0, None, verify, "g");
            error
                .map(|view| view.len())
                .map_err(|error| error.to_string())
        };
        for verify in [false, true] {
            let text = refused(4, &[most as u8 + 1], verify).unwrap_err();
            assert!(text.contains(&format!("expected at most {most}")), "{text}");
            let text = refused(4, &[0], verify).unwrap_err();
            assert!(
                text.contains("at offset 4100 is 0; expected 1 or more"),
                "{text}"
            );
            for mark in [[2, 0], [1, 1], [0, 1]] {
                let text = refused(6, &mark, verify).unwrap_err();
                assert!(text.contains("reserved byte"), "{text}");
            }
        }
        let (first, record) = (most as u8 - 1, shape.record_bytes() + 4);
        assert_eq!(refused(4 + 2 * record, &[first], false), Ok(most));
        let text = refused(4 + 2 * record, &[first], true).unwrap_err();
        let at = 4096 + 4 + 2 * record;
        let expected = format!("g: node of a record at offset {at} is {first}, twice; expected");
        assert!(text.starts_with(&expected), "{text}");

        assert_eq!(tight.relocated_per_page(), 0);
        let mut page = build(tight, 0, &nodes(&tight, 1, 3));
        page[6] = 1;
        block::seal(&mut page, 1);
        let error = PageView::open(&tight, &page, 0, None, true, "g").unwrap_err();
        assert!(matches!(error, LayoutError::Reserved { offset: 4102, .. }));
    }

    #[test]
    fn a_finished_page_takes_more_records() {
        let shape = shape(Element::U8, 128, 64);
        let most = shape.relocated_per_page();
        let nodes = nodes(&shape, most + 1, 8);
        let numbers: Vec<u32> = (0..most as u32 + 1).map(|slot| 1000 - 9 * slot).collect();
        let mut builder = PageBuilder::new(shape);
        builder.push(7, &[255; 128], &[u32::MAX; 64]);
        builder.start_relocated();
        assert!(builder.is_empty());
        for (at, (id, vector, neighbours)) in nodes.iter().enumerate() {
            let fits = builder.push_node(numbers[at], *id, vector, neighbours);
            assert_eq!(fits, at < most);
            let so_far =
                build_relocated(shape, 3, &numbers[..builder.len()], &nodes[..builder.len()]);
            assert_eq!(builder.finish(3), so_far);
            assert_eq!(builder.is_full(), builder.len() == most);
        }
        builder.clear();
        for (at, (id, vector, neighbours)) in nodes[..2].iter().enumerate() {
            builder.push(*id, vector, neighbours);
            assert_eq!(builder.finish(2), build(shape, 2, &nodes[..=at]));
        }
    }

    #[test]
    #[should_panic(expected = "does not fit into a page of this shape")]
    fn a_shape_without_relocated_pages_starts_none() {
        PageBuilder::new(shape(Element::F32, 1018, 1)).start_relocated();
    }

    #[test]
    #[should_panic(expected = "a relocated page has one record or more")]
    fn no_relocated_page_is_empty() {
        let mut builder = PageBuilder::new(shape(Element::U8, 1, 1));
        builder.start_relocated();
        builder.finish(0);
    }

    #[test]
    #[should_panic(expected = "`push_node` on a page that is not relocated")]
    fn other_pages_name_no_nodes() {
        let mut builder = PageBuilder::new(shape(Element::U8, 1, 1));
        builder.start_relocated();
        builder.clear();
        builder.push_node(0, 0, &[1], &[1]);
    }

    #[test]
    #[should_panic(expected = "`push` on a relocated page, which needs `push_node`")]
    fn a_relocated_page_takes_no_record_without_a_node() {
        let mut builder = PageBuilder::new(shape(Element::U8, 1, 1));
        builder.start_relocated();
        builder.push(0, &[1], &[1]);
    }

    #[test]
    #[should_panic(expected = "node 7 twice on a page")]
    fn a_node_stands_on_a_page_once() {
        let mut builder = PageBuilder::new(shape(Element::U8, 1, 1));
        builder.start_relocated();
        builder.push_node(7, 0, &[1], &[1]);
        builder.push_node(7, 1, &[1], &[1]);
    }

    #[test]
    fn a_page_of_several_blocks_keeps_its_record_whole() {
        let shape = shape(Element::F32, 1536, 64);
        let nodes = nodes(&shape, 1, 5);
        let page = build(shape, 11, &nodes);
        assert_eq!(page.len(), 8192);
        assert_same(
            &PageView::open(&shape, &page, 11, Some(1), true, "g").unwrap(),
            &nodes,
        );
        assert_eq!(page[4..8], block::checksum(24, &page[4096..]).to_le_bytes());
    }

    #[test]
    fn every_bit_flip_is_found() {
        for shape in [shape(Element::U8, 128, 64), shape(Element::F32, 1200, 8)] {
            let whole = nodes(&shape, shape.nodes_per_page(), 1);
            let relocated = &whole[..shape.relocated_per_page()];
            let numbers: Vec<u32> = (3..).take(relocated.len()).collect();
            for mut page in [
                build(shape, 6, &whole),
                build_relocated(shape, 6, &numbers, relocated),
            ] {
                for bit in 0..page.len() * 8 {
                    page[bit / 8] ^= 1 << (bit % 8);
                    let error = PageView::open(&shape, &page, 6, None, true, "g").unwrap_err();
                    assert!(
                        matches!(error, LayoutError::Checksum { .. }),
                        "bit {bit}: {error}"
                    );
                    page[bit / 8] ^= 1 << (bit % 8);
                }
                PageView::open(&shape, &page, 6, None, true, "g").unwrap();
            }
        }
    }

    #[test]
    fn a_misplaced_page_is_found() {
        let shape = shape(Element::U8, 16, 8);
        let page = build(shape, 3, &nodes(&shape, 4, 2));
        let text = PageView::open(&shape, &page, 4, None, true, "a.idx/graph")
            .unwrap_err()
            .to_string();
        assert!(
            text.starts_with("a.idx/graph: checksum mismatch in the block at offset 20480"),
            "{text}"
        );
    }

    #[test]
    fn wrong_counts_slots_and_degrees_are_refused() {
        let shape = shape(Element::U8, 16, 8);
        let page = build(shape, 0, &nodes(&shape, 4, 2));
        let text = PageView::open(&shape, &page, 0, Some(5), true, "g")
            .unwrap_err()
            .to_string();
        assert!(
            text.starts_with("g: count of records on the page at offset 4100 is 4; expected 5"),
            "{text}"
        );
        let view = PageView::open(&shape, &page, 0, Some(4), true, "g").unwrap();
        view.node(4).unwrap_err();
        view.node(usize::MAX).unwrap_err();
        PageView::open(&shape, &page[..4095], 0, None, true, "g").unwrap_err();

        let mut damaged = page.clone();
        damaged[4] = 255;
        PageView::open(&shape, &damaged, 0, None, false, "g").unwrap_err();
        PageView::open(&shape, &damaged, 0, Some(255), false, "g").unwrap_err();
        let mut damaged = page.clone();
        damaged[7] = 1;
        let error = PageView::open(&shape, &damaged, 0, None, false, "g").unwrap_err();
        assert_eq!(error.offset(), Some(4103));
        let mut damaged = page;
        damaged[8 + 24] = 9;
        let view = PageView::open(&shape, &damaged, 0, None, false, "g").unwrap();
        let text = view.node(0).unwrap_err().to_string();
        assert!(
            text.starts_with("g: degree of a node at offset 4128 is 9; expected at most 8"),
            "{text}"
        );
    }

    #[test]
    fn header_round_trip_and_contradictions() {
        let shape = shape(Element::F16, 100, 32);
        let header = shape.header(12_345);
        let block = header.encode();
        let back = FileHeader::decode(&block, "graph").unwrap();
        assert_eq!(
            CoupledShape::from_header(&back, "graph").unwrap(),
            (shape, 12_345)
        );

        for (at, value) in [(0, 77), (0, 300), (4, 0), (8, 5000), (12, 22_345), (16, 1)] {
            let mut header = shape.header(12_340);
            header.fields[at..at + 4].copy_from_slice(&u32::to_le_bytes(value));
            let error = CoupledShape::from_header(&header, "graph").unwrap_err();
            assert!(matches!(error, LayoutError::Field { .. }), "{error}");
        }
        let mut header = shape.header(1);
        header.fields.push(0);
        CoupledShape::from_header(&header, "graph").unwrap_err();
        header.fields.truncate(10);
        CoupledShape::from_header(&header, "graph").unwrap_err();
        header.kind = FileKind::Codes;
        let error = CoupledShape::from_header(&header, "graph").unwrap_err();
        assert!(matches!(error, LayoutError::WrongKind { .. }));
    }

    #[test]
    fn the_frozen_index_is_written_to_the_byte() {
        let path = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../../fixtures/index-v1/graph-000001"
        );
        let bytes = std::fs::read(path).unwrap();
        let header = FileHeader::decode(&bytes, "graph").unwrap();
        header.check_length(bytes.len() as u64, "graph").unwrap();
        let (shape, nodes) = CoupledShape::from_header(&header, "graph").unwrap();
        assert_eq!(shape.header(nodes).encode(), bytes[..BLOCK]);

        let mut builder = PageBuilder::new(shape);
        let mut neighbours = Vec::new();
        for page in 0..shape.pages(nodes) {
            let at = shape.file_offset(page) as usize;
            let stored = &bytes[at..at + shape.page_bytes()];
            let expected = Some(shape.nodes_on_page(page, nodes));
            let view = PageView::open(&shape, stored, page, expected, true, "graph").unwrap();
            builder.clear();
            for node in view.nodes() {
                let node = node.unwrap();
                node.neighbours.copy_into(&mut neighbours);
                builder.push(node.id, node.vector, &neighbours);
            }
            assert_eq!(builder.finish(page), stored, "page {page}");
        }
    }

    #[test]
    fn a_cleared_builder_keeps_nothing() {
        let shape = shape(Element::U8, 16, 8);
        let mut builder = PageBuilder::new(shape);
        builder.push(7, &[255; 16], &[1, 2, 3]);
        builder.push(8, &[255; 16], &[1, 2, 3, 4, 5, 6, 7, 8]);
        builder.finish(0);
        builder.clear();
        assert!(builder.is_empty());
        builder.push(9, &[1; 16], &[5]);
        assert_eq!(
            builder.finish(2),
            build(shape, 2, &[(9, vec![1; 16], vec![5])])
        );
    }

    fn read_all(
        shape: &CoupledShape,
        view: &PageView<'_>,
        verify: bool,
    ) -> Result<(), TestCaseError> {
        for node in view.nodes().flatten() {
            prop_assert!(node.neighbours.iter().count() <= shape.degree());
            prop_assert_eq!(node.vector.len(), shape.vector_bytes());
        }
        for slot in 0..view.len() {
            let Ok(number) = view.node_number(slot) else {
                prop_assert!(!view.is_relocated());
                continue;
            };
            let found = view.slot_of(number);
            if view.is_relocated() && !verify {
                prop_assert!(found.is_some_and(|found| found <= slot));
            } else {
                prop_assert_eq!(found, Some(slot));
            }
        }
        prop_assert!(view.node_number(view.len()).is_err());
        Ok(())
    }

    fn any_shape() -> impl Strategy<Value = CoupledShape> {
        (0usize..4, 1usize..2000, 1usize..300)
            .prop_map(|(element, dim, degree)| shape(Element::ALL[element], dim, degree))
    }

    proptest! {
        #[test]
        fn any_page_round_trips(shape in any_shape(), fill in 0usize..=1000, page in 0u64..1 << 40, seed: u64) {
            let nodes = nodes(&shape, 1 + fill % shape.nodes_per_page(), seed);
            let bytes = build(shape, page, &nodes);
            prop_assert_eq!(bytes.len(), shape.page_bytes());
            let view = PageView::open(&shape, &bytes, page, Some(nodes.len()), true, "g").unwrap();
            assert_same(&view, &nodes);
            if let Ok(last) = u32::try_from(shape.first_node(page) + nodes.len() as u64 - 1) {
                let first = shape.first_node(page) as u32;
                assert_nodes(&view, &(first..=last).collect::<Vec<_>>());
            }
        }

        #[test]
        fn any_relocated_page_round_trips(
            shape in any_shape(),
            fill in 0usize..=1000,
            page in 0u64..1 << 40,
            expected: Option<usize>,
            seed: u64,
        ) {
            let most = shape.relocated_per_page();
            prop_assume!(most > 0);
            let nodes = nodes(&shape, 1 + fill % most, seed);
            let number = |slot: usize| (slot as u32).wrapping_mul(0x9e37_79b1) ^ seed as u32;
            let numbers: Vec<u32> = (0..nodes.len()).map(number).collect();
            let bytes = build_relocated(shape, page, &numbers, &nodes);
            prop_assert_eq!(bytes.len(), shape.page_bytes());
            let view = PageView::open(&shape, &bytes, page, expected, true, "g").unwrap();
            prop_assert!(view.is_relocated());
            assert_same(&view, &nodes);
            assert_nodes(&view, &numbers);
        }

        #[test]
        fn damaged_pages_never_panic(
            shape in any_shape(),
            (relocated, verify, sealed) in any::<(bool, bool, bool)>(),
            page: u64,
            seed: u64,
            damage in prop::collection::vec((any::<prop::sample::Index>(), 0usize..3, any::<u8>()), 0..6),
        ) {
            let relocated = relocated && shape.relocated_per_page() > 0;
            let most = if relocated { shape.relocated_per_page() } else { shape.nodes_per_page() };
            let nodes = nodes(&shape, most, seed);
            let mut bytes = if relocated {
                build_relocated(shape, page, &(0..most as u32).rev().collect::<Vec<_>>(), &nodes)
            } else {
                build(shape, page, &nodes)
            };
            let start = 4 * shape.blocks_per_page();
            for (at, near, byte) in damage {
                let reach = [4, 200, bytes.len()][near].min(bytes.len() - start);
                bytes[start + at.index(reach)] = byte;
            }
            if sealed {
                block::seal_page(&mut bytes, shape.geometry.first_block(page));
            }
            if let Ok(view) = PageView::open(&shape, &bytes, page, None, verify, "g") {
                read_all(&shape, &view, verify)?;
            }
        }

        #[test]
        fn any_node_has_one_place(shape in any_shape(), node: u32) {
            let (page, slot) = (shape.page_of(node), shape.slot_of(node));
            prop_assert_eq!(shape.first_node(page) + slot as u64, u64::from(node));
            prop_assert!(slot < shape.nodes_on_page(page, u64::from(node) + 1));
            prop_assert!(shape.file_offset(page) + shape.page_bytes() as u64 <= shape.file_length(u64::from(node) + 1));
        }

        #[test]
        fn arbitrary_bytes_never_panic(
            shape in any_shape(),
            seed: u64,
            page: u64,
            expected: Option<usize>,
            verify: bool,
            sealed: bool,
            small_count: bool,
            mark in 0u8..3,
        ) {
            let mut bytes: Vec<u8> = numbers(seed).map(|n| n as u8).take(shape.page_bytes()).collect();
            let at = 4 * shape.blocks_per_page();
            if small_count {
                bytes[at..at + 4].copy_from_slice(&[(seed % 3) as u8, 0, mark, 0]);
            }
            if sealed {
                block::seal_page(&mut bytes, shape.geometry.first_block(page));
            }
            if let Ok(view) = PageView::open(&shape, &bytes, page, expected, verify, "g") {
                prop_assert!(mark < 2 || !small_count);
                prop_assert!(expected != Some(0) || view.is_relocated());
                read_all(&shape, &view, verify)?;
            }
        }

        #[test]
        fn arbitrary_headers_never_panic(fields in prop::collection::vec(any::<u8>(), 0..40), length: u64) {
            let header = FileHeader::new(FileKind::Graph, length, fields);
            let _ = CoupledShape::from_header(&header, "g");
        }
    }
}
