//! Pages of nodes: the interface through which traversals, inserts and merges use the pages of
//! every layout.
//!
//! ```text
//!              page_of(node)    view(bytes of the page)           list, vector: decoded
//!   coupled    computed         records of one size               uncompressed
//!   csr        computed         a row of its own                  bit-packed links, raw vector
//!   inline     computed         records of one size               uncompressed, neighbours' codes
//!   packed     directory        slotted: list, vector, id         both compressed
//!   lists      directory        slotted: list                     compressed; vectors in segments
//!   layered    directory        slotted: list, leading part, id   compressed; the rest in segments
//!   segments   chunk metadata   slotted: vector, id               compressed
//! ```

use std::sync::{Arc, OnceLock};

use stratann_codec::CodecError;

use super::topology::placement::Placement;
use crate::Error;
use crate::plan::PageFile;

/// A node's record on a page or in a cache, not decoded yet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Record<'a> {
    /// The id, or 0 if the layout stores the id and the vector elsewhere.
    pub(crate) id: u64,
    /// Bytes of the adjacency list.
    pub(crate) list: &'a [u8],
    /// `list`, and the bytes that follow it in memory, for a decoder that reads ahead.
    pub(crate) list_and_rest: &'a [u8],
    /// The codes of the neighbours in the order of the list. It is empty if codes are in memory.
    pub(crate) codes: &'a [u8],
    /// The bytes of the vector. It is empty if the layout stores vectors elsewhere.
    pub(crate) vector: &'a [u8],
}

/// The placement of nodes, which the pages and the graph share. The cell is empty if the index
/// never took a direct insert.
pub(crate) type Placed = Arc<OnceLock<Placement>>;

/// A view of the records of a page, on the bytes of the page.
pub(crate) trait PageView<'p>: Copy {
    /// The node of a record.
    fn node(self, slot: usize) -> Result<u32, Error>;
    /// The slot of a node's record, if it is on the page.
    fn slot_of(self, node: u32) -> Option<usize>;
    /// The number of records.
    fn len(self) -> usize;
    /// The record in a slot.
    fn record(self, slot: usize) -> Result<Record<'p>, Error>;
}

/// The pages of a graph's nodes in one layout.
pub(crate) trait NodePages: Send + Sync {
    /// Whether the vector of a node is beside its list. If it is, a search ranks a node when its
    /// page has arrived.
    const VECTORS: bool;
    /// Whether only the leading part of a vector is beside the list, and the trailing part is in a
    /// segment. The leading part is exact enough for ranking.
    const PARTS: bool = false;
    /// Whether the codes of the neighbours are beside the list. If they are, only the codes of the
    /// entry points are in memory.
    const CODES: bool;
    /// How direct inserts change the pages: [`RecordsMove`], [`PagesStay`] or [`NothingChanges`].
    type Changes: Changes;
    /// Whether no page is rewritten in place, because changed records move to other pages.
    const MOVES: bool = Self::Changes::MOVES;

    /// A view of a page.
    type View<'p>: PageView<'p>
    where
        Self: 'p;

    /// The page of `node`.
    fn page_of(&self, node: u32) -> u64;

    /// The page on which the build put `node`. The node may have moved to another page since.
    fn built_page(&self, node: u32) -> Option<u64> {
        Some(self.page_of(node))
    }

    /// The position of a page in the file: offset and length in bytes.
    fn place(&self, page: u64) -> (u64, usize);

    /// Returns a view of a page on its bytes. `check` verifies the checksums of the page.
    fn view<'p>(&'p self, bytes: &'p [u8], page: u64, check: bool)
    -> Result<Self::View<'p>, Error>;

    /// The number of pages in a file of `nodes` nodes, and the bytes of a page.
    fn file(&self, nodes: u64) -> PageFile;

    /// The bytes in memory of the tables that map nodes to pages.
    fn table_bytes(&self) -> usize {
        0
    }

    /// The placement of the first `nodes` nodes, before any of them has moved.
    fn placement(&self, nodes: u32) -> Placement {
        let pages = self.file(nodes.into()).pages as u32;
        Placement::new((0..nodes).map(|node| self.page_of(node) as u32), pages)
    }

    /// The bytes of the longest record in a cache.
    fn cached_bytes(&self) -> usize;

    /// Decodes the list of `node`. If the bytes are damaged, the list may have nodes that the index
    /// does not have.
    fn list(&self, node: u32, record: &Record<'_>, out: &mut Vec<u32>) -> Result<(), Error>;

    /// Returns the vector of `node`. A layout with encoded vectors decodes it into `scratch`, which
    /// has the length of a vector. If vectors are in [parts](NodePages::PARTS), the vector is
    /// decoded from its leading part. By default, the method returns the bytes in the record: an
    /// uncompressed vector, or no bytes.
    #[inline]
    fn vector<'s>(
        &'s self,
        _node: u32,
        record: &Record<'s>,
        _scratch: &'s mut [u8],
    ) -> Result<&'s [u8], Error> {
        Ok(record.vector)
    }

    /// Appends the leading part of the vector of a node that is on no page yet, in the form in
    /// which pages will store it. If vectors are not in [parts](NodePages::PARTS), the method
    /// appends nothing.
    fn leading_part(&self, _node: u32, _vector: &[u8], _out: &mut Vec<u8>) -> Result<(), Error> {
        Ok(())
    }

    /// The largest difference of an element from its value in the leading part. It is infinite if
    /// the difference has no limit, and 0 if vectors are not in parts.
    fn error(&self, _node: u32, _part: &[u8]) -> f32 {
        0.0
    }
}

/// How direct inserts change the pages of a layout.
pub(crate) trait Changes {
    /// Whether a changed record moves to another page. A table then has the page of each node.
    const MOVES: bool;
}

/// Changed records move to other pages: the layout is [`Composable`].
pub(crate) struct RecordsMove;

/// Pages are rewritten in place: the layout is [`Rewritable`].
pub(crate) struct PagesStay;

/// Pages never change: the layout takes no direct inserts, and new vectors wait for a merge. No
/// page is rewritten in place, so `MOVES` is true.
pub(crate) struct NothingChanges;

impl Changes for NothingChanges {
    const MOVES: bool = true;
}

impl Changes for RecordsMove {
    const MOVES: bool = true;
}

impl Changes for PagesStay {
    const MOVES: bool = false;
}

/// A layout whose pages can hold any nodes, so that records can move.
pub(crate) trait Composable: NodePages {
    /// The type that builds pages.
    type Composer: Composer;

    /// A composer with an empty page.
    fn composer(&self) -> Self::Composer;

    /// The average number of records on a page of the build.
    fn records_a_page(&self) -> usize;

    /// Appends an ascending list in the form in which pages store it.
    fn encode_list(&self, node: u32, list: &[u32], out: &mut Vec<u8>) -> Result<(), Error>;

    /// Appends a vector in the form in which pages store it.
    fn encode_vector(&self, node: u32, vector: &[u8], out: &mut Vec<u8>) -> Result<(), Error>;
}

/// Builds a page of records of any nodes. The caller passes lists and vectors in the form in which
/// pages store them.
pub(crate) trait Composer {
    /// Empties the page.
    fn start(&mut self);
    /// Adds a record. Returns false if the record does not fit.
    fn push(&mut self, node: u32, id: u64, list: &[u8], vector: &[u8]) -> bool;
    /// The bytes of the page, which will be page `page` of its file.
    fn finish(&mut self, page: u32) -> &[u8];
}

/// A layout whose pages are rewritten in place. A page keeps its nodes, and has the codes of their
/// neighbours.
pub(crate) trait Rewritable: NodePages {
    /// The type that builds pages.
    type Composer: CodedComposer;

    /// A composer with an empty page.
    fn composer(&self) -> Self::Composer;

    /// The first node of a page.
    fn first_node(&self, page: u32) -> u64;
}

/// Builds a page of records of consecutive nodes, with the codes beside their lists.
pub(crate) trait CodedComposer {
    /// Empties the page.
    fn start(&mut self);
    /// Adds the record of the next node. Its list has at most as many links as the degree of the
    /// graph. Returns false if the page is full.
    fn push(&mut self, id: u64, vector: &[u8], list: &[u32], codes: &[u8]) -> bool;
    /// The bytes of the page, which will be page `page` of its file.
    fn finish(&mut self, page: u32) -> &[u8];
}

/// The error of a list that is longer than the index allows. Such a list is damaged on storage.
#[cold]
pub(crate) fn too_long(file: &str, node: u32, links: usize, most: usize) -> Error {
    Error::Damaged {
        file: file.to_owned(),
        what: format!("node {node} has {links} links, but this index allows {most}"),
    }
}

/// The error of bytes that do not decode, with the file and the node.
#[cold]
pub(crate) fn undecodable(file: &str, node: u32, error: &CodecError) -> Error {
    Error::Damaged {
        file: file.to_owned(),
        what: format!("node {node}: {error}"),
    }
}

/// The bytes of the header of a cached record with a vector. The header has the id, and the lengths
/// of the list and of the codes.
const CACHED_HEADER: usize = 16;
/// Zeros after a cached record, for decoders that read ahead.
const SLACK: usize = 8;

impl<'a> Record<'a> {
    /// A record with only the bytes of a vector.
    pub(crate) fn of_vector(vector: &'a [u8]) -> Self {
        Self {
            id: 0,
            list: &[],
            list_and_rest: &[],
            codes: &[],
            vector,
        }
    }

    /// The most bytes that [`cached`](Record::cached) writes for a record, given the largest sizes
    /// of its list, codes and vector. If `vector` is 0, the record has only its list. A cache of
    /// such records has entries of the size of the Elias–Fano bound, as in DecoupleVS §3.4.
    pub(crate) fn cached_bytes(list: usize, codes: usize, vector: usize) -> usize {
        match vector {
            0 => list,
            vector => CACHED_HEADER + list + codes + vector,
        }
    }

    /// Writes the record as consecutive bytes, for a cache.
    pub(crate) fn cached(&self, out: &mut Vec<u8>) {
        out.clear();
        if !self.vector.is_empty() {
            out.extend_from_slice(&self.id.to_le_bytes());
            out.extend_from_slice(&(self.list.len() as u32).to_le_bytes());
            out.extend_from_slice(&(self.codes.len() as u32).to_le_bytes());
        }
        out.extend_from_slice(self.list);
        out.extend_from_slice(self.codes);
        out.extend_from_slice(self.vector);
    }

    /// Returns the record whose bytes [`cached`](Record::cached) wrote, or `None` if the bytes are
    /// malformed. `vectors` says whether the record has a vector. Appends some zeros to the bytes.
    pub(crate) fn from_cached(bytes: &'a mut Vec<u8>, vectors: bool) -> Option<Record<'a>> {
        let end = bytes.len();
        bytes.resize(end + SLACK, 0);
        let bytes = &*bytes;
        if !vectors {
            return Some(Record {
                id: 0,
                list: &bytes[..end],
                list_and_rest: bytes,
                codes: &[],
                vector: &[],
            });
        }
        let id = bytes.get(..8)?.try_into().ok()?;
        let length = |at: usize| {
            let length = bytes.get(at..at + 4)?.try_into().ok()?;
            Some(u32::from_le_bytes(length) as usize)
        };
        let list_end = CACHED_HEADER.checked_add(length(8)?)?;
        let codes_end = list_end.checked_add(length(12)?)?;
        Some(Record {
            id: u64::from_le_bytes(id),
            list: bytes.get(CACHED_HEADER..list_end)?,
            list_and_rest: &bytes[CACHED_HEADER..],
            codes: bytes.get(list_end..codes_end)?,
            vector: bytes.get(codes_end..end)?,
        })
    }
}
