//! Builds slotted pages.

use super::{BEFORE, LEAST_PART, MAX_RECORDS, NO_IDS, NODE, RELOCATED, SlottedShape};
use crate::block;

fn length_width(range: usize) -> usize {
    match range {
        0 => 0,
        1..=0xff => 1,
        0x100..=0xffff => 2,
        _ => 4,
    }
}

#[derive(Debug, Clone, Copy)]
struct Extent {
    count: usize,
    bytes: usize,
    lists: (usize, usize),
    vectors: (usize, usize),
    ids: (u64, u64),
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

    /// The bytes of a list's size, of a vector's size, and of an id (0 without ids).
    fn widths(&self, ids: bool) -> (usize, usize, usize) {
        let range = self.ids.1 - self.ids.0;
        let id = if !ids || self.consecutive {
            0
        } else {
            // Equal ids have a range of 0, but a width of 0 would mean that they ascend.
            (8 - range.leading_zeros() as usize / 8).max(1)
        };
        (
            length_width(self.lists.1 - self.lists.0),
            length_width(self.vectors.1 - self.vectors.0),
            id,
        )
    }

    fn or_none(self) -> Extent {
        match self.count {
            0 => Extent {
                lists: (0, 0),
                vectors: (0, 0),
                ids: (0, 0),
                ..Extent::EMPTY
            },
            _ => self,
        }
    }

    fn page_bytes(&self, shape: &SlottedShape, relocated: bool) -> usize {
        let (list, vector, id) = self.widths(shape.has_ids());
        let node = if relocated { NODE } else { 0 };
        shape.header_bytes() + self.count * (node + list + vector + id) + self.bytes
    }
}

/// Builds pages one after the other, in reused buffers.
#[derive(Debug)]
pub struct SlottedBuilder {
    shape: SlottedShape,
    /// On a relocated page the least node, and `u32::MAX` while the page is empty.
    first: u32,
    relocated: bool,
    extent: Extent,
    /// The node of each record of a relocated page.
    nodes: Vec<u32>,
    lists: Vec<usize>,
    vectors: Vec<usize>,
    ids: Vec<u64>,
    records: Vec<u8>,
    /// The rest of a record from an earlier page, for this page and perhaps later ones.
    begun: Vec<u8>,
    before: [u8; BEFORE],
    page: Vec<u8>,
}

impl SlottedBuilder {
    /// A builder with an empty page, whose first record is node 0.
    pub fn new(shape: SlottedShape) -> SlottedBuilder {
        SlottedBuilder {
            shape,
            first: 0,
            relocated: false,
            extent: Extent::EMPTY,
            nodes: Vec::new(),
            lists: Vec::new(),
            vectors: Vec::new(),
            ids: Vec::new(),
            records: Vec::with_capacity(shape.page_bytes()),
            begun: Vec::new(),
            before: [0; BEFORE],
            page: vec![0; shape.page_bytes()],
        }
    }

    /// Empties the page. Its records will be nodes `first`, `first + 1` and so on.
    pub fn start(&mut self, first: u32) {
        self.empty(first, false);
        self.begun.clear();
    }

    /// Begins the page after a [finished](SlottedBuilder::finish) page, with the rest of that
    /// page's last record, if there is a rest. The first record that starts on the new page will be
    /// node `first`.
    pub fn go_on(&mut self, first: u32) {
        let left = self.left();
        self.before.copy_from_slice(&self.page[..BEFORE]);
        if self.extent.count == 0 {
            self.begun.drain(..self.begun.len() - left);
        } else {
            self.begun.clear();
            self.begun
                .extend_from_slice(&self.records[self.records.len() - left..]);
        }
        self.empty(first, false);
    }

    /// Empties the page and makes it a relocated one ([`SlottedBuilder::push_node`]).
    ///
    /// # Panics
    /// Panics if the file has kind `Vectors`, which has no relocated pages.
    pub fn start_relocated(&mut self) {
        let kind = self.shape.kind;
        assert!(self.shape.relocates(), "a relocated page in {kind}");
        self.empty(u32::MAX, true);
        self.begun.clear();
    }

    fn empty(&mut self, first: u32, relocated: bool) {
        self.first = first;
        self.relocated = relocated;
        self.extent = Extent::EMPTY;
        self.nodes.clear();
        self.lists.clear();
        self.vectors.clear();
        self.ids.clear();
        self.records.clear();
    }

    /// Appends a node (kind `Adjacency` does not store the id). If the record does not fit, returns
    /// `false` and changes nothing. If a record may [span pages](SlottedShape::runs_on), it fits if
    /// its first bytes do.
    ///
    /// # Panics
    /// Panics if the page is relocated, or the kind has no such list or vector.
    pub fn push(&mut self, id: u64, list: &[u8], vector: &[u8]) -> bool {
        assert!(
            !self.relocated,
            "`push` on a relocated page, which needs `push_node`"
        );
        self.append(id, list, vector)
    }

    /// Like [`SlottedBuilder::push`], for `node` on a relocated page.
    ///
    /// # Panics
    /// Panics if the page is not relocated or has the node, or the kind has no vectors.
    pub fn push_node(&mut self, node: u32, id: u64, list: &[u8], vector: &[u8]) -> bool {
        assert!(
            self.relocated,
            "`push_node` on a page that is not relocated"
        );
        assert!(!self.nodes.contains(&node), "node {node} twice on a page");
        let fits = self.append(id, list, vector);
        if fits {
            self.nodes.push(node);
            self.first = self.first.min(node);
        }
        fits
    }

    fn append(&mut self, id: u64, list: &[u8], vector: &[u8]) -> bool {
        let shape = &self.shape;
        let kind = shape.kind;
        assert!(list.is_empty() || shape.has_lists(), "a list in {kind}");
        assert!(
            vector.is_empty() || shape.has_vectors(),
            "a vector in {kind}"
        );
        let extent = self.extent.with(id, list.len(), vector.len());
        let bytes = extent.page_bytes(shape, self.relocated) + self.begun_bytes();
        let part = shape.page_bytes().checked_sub(bytes - vector.len());
        let least = match shape.runs_on() {
            true => vector.len().min(LEAST_PART),
            false => vector.len(),
        };
        if extent.count > MAX_RECORDS || part.is_none_or(|part| part < least) {
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

    /// Whether the page has no bytes of any record.
    pub fn is_empty(&self) -> bool {
        self.extent.count == 0 && self.begun.is_empty()
    }

    /// Whether the last record continues on the next page. Then no other record fits this page.
    pub fn goes_on(&self) -> bool {
        self.left() > 0
    }

    fn left(&self) -> usize {
        let bytes = self
            .extent
            .or_none()
            .page_bytes(&self.shape, self.relocated)
            + self.begun_bytes();
        bytes.saturating_sub(self.shape.page_bytes())
    }

    /// The bytes of `begun`, and of the checksum of the page before.
    fn begun_bytes(&self) -> usize {
        match self.begun.len() {
            0 => 0,
            bytes => BEFORE + bytes,
        }
    }

    /// Writes the checksums for page `page` of the file. More records may be pushed afterwards.
    ///
    /// # Panics
    /// Panics if the page is empty.
    pub fn finish(&mut self, page: u64) -> &[u8] {
        assert!(!self.is_empty(), "a page has one record or more");
        let (shape, extent, out) = (&self.shape, self.extent.or_none(), &mut self.page);
        let (list, vector, id) = extent.widths(shape.has_ids());
        let ids = if shape.has_ids() { id as u8 } else { NO_IDS };
        out.clear();
        out.resize(4 * shape.blocks, 0);
        out.extend_from_slice(&(extent.count as u16).to_le_bytes());
        let relocated = if self.relocated { RELOCATED } else { 0 };
        out.extend_from_slice(&[ids, (vector << 4 | list) as u8 | relocated]);
        out.extend_from_slice(&self.first.to_le_bytes());
        // On pages without lists, this field has the bytes left of a record from an earlier page.
        let least_list = if shape.runs_on() {
            self.begun.len()
        } else {
            extent.lists.0
        };
        out.extend_from_slice(&(least_list as u32).to_le_bytes());
        out.extend_from_slice(&(extent.vectors.0 as u32).to_le_bytes());
        if shape.has_ids() {
            out.extend_from_slice(&extent.ids.0.to_le_bytes());
        }
        if !self.begun.is_empty() {
            out.extend_from_slice(&self.before);
            out.extend_from_slice(&self.begun[..self.begun.len().min(shape.page_bytes())]);
        }
        for node in &self.nodes {
            out.extend_from_slice(&node.to_le_bytes());
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
