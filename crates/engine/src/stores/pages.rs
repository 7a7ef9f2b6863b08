//! Pages of nodes: what a traversal, an insert and a merge see of them, whatever their layout.
//!
//! ```text
//!              page_of(node)          view(bytes of the page)          list, vector: decoded
//!   coupled    computed               records of one size              as they are
//!   csr        computed               a row of its own                 links of as many bits as are needed, the vector as it is
//!   inline     computed               records of one size              as they are, and the neighbours' codes
//!   packed     directory              slotted: list, vector, id        compressed, both
//!   lists      directory              slotted: list                    compressed; the vectors are in segments
//!   layered    directory              slotted: list, leading part, id  compressed; the trailing parts are in segments
//!   segments   chunk metadata         slotted: vector, id              compressed
//! ```

use std::sync::{Arc, OnceLock};

use stratann_codec::CodecError;

use super::topology::placement::Placement;
use crate::Error;
use crate::plan::PageFile;

/// A node's bytes on a page or in a cache, not decoded yet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Record<'a> {
    /// The outside id; 0 where the layout keeps it with the vector, elsewhere.
    pub(crate) id: u64,
    /// Bytes of the adjacency list.
    pub(crate) list: &'a [u8],
    /// `list` and what follows it in memory: room for a decoder that reads ahead.
    pub(crate) list_and_rest: &'a [u8],
    /// The neighbours' codes in the order of the list; empty where these are in memory.
    pub(crate) codes: &'a [u8],
    /// Bytes of the vector; empty where the layout keeps it elsewhere.
    pub(crate) vector: &'a [u8],
}

/// A placement that pages and graph share; empty in an index that never took a direct insert.
pub(crate) type Placed = Arc<OnceLock<Placement>>;

/// A page, read in place.
pub(crate) trait PageView<'p>: Copy {
    /// The node of a record.
    fn node(self, slot: usize) -> Result<u32, Error>;
    /// The place of a node's record, if the page has it.
    fn slot_of(self, node: u32) -> Option<usize>;
    /// Its records.
    fn len(self) -> usize;
    /// One of them.
    fn record(self, slot: usize) -> Result<Record<'p>, Error>;
}

/// The pages of a graph's nodes in one layout.
pub(crate) trait NodePages: Send + Sync {
    /// Whether a node's vector stands beside its list: then it is ranked when its page is there.
    const VECTORS: bool;
    /// Whether what stands there is its leading part, near enough to rank by, whose trailing part is in a segment.
    const PARTS: bool = false;
    /// Whether the neighbours' codes stand beside the list: then none but those of the entry points are in memory.
    const CODES: bool;
    /// How direct inserts change it: [`RecordsMove`], [`PagesStay`] or [`NothingChanges`].
    type Changes: Changes;
    /// Whether its records move then, so that no page is written anew in its place.
    const MOVES: bool = Self::Changes::MOVES;

    /// A page of it.
    type View<'p>: PageView<'p>
    where
        Self: 'p;

    /// The page that holds `node`.
    fn page_of(&self, node: u32) -> u64;

    /// The page that the build put `node` on, where that may be another one by now.
    fn built_page(&self, node: u32) -> Option<u64> {
        Some(self.page_of(node))
    }

    /// Where a page stands in the file: offset and length in bytes.
    fn place(&self, page: u64) -> (u64, usize);

    /// Reads a page in place; `check` verifies its checksums.
    fn view<'p>(&'p self, bytes: &'p [u8], page: u64, check: bool)
    -> Result<Self::View<'p>, Error>;

    /// Pages in a file of `nodes` nodes, and the bytes of one.
    fn file(&self, nodes: u64) -> PageFile;

    /// Bytes of the tables in memory that say which page holds which node.
    fn table_bytes(&self) -> usize {
        0
    }

    /// Where the first `nodes` nodes are, of which none has moved yet.
    fn placement(&self, nodes: u32) -> Placement {
        let pages = self.file(nodes.into()).pages as u32;
        Placement::new((0..nodes).map(|node| self.page_of(node) as u32), pages)
    }

    /// Bytes of the longest record in a cache.
    fn cached_bytes(&self) -> usize;

    /// Decodes the list of `node`. Its ids may lie beyond the collection if the bytes are damaged.
    fn list(&self, node: u32, record: &Record<'_>, out: &mut Vec<u32>) -> Result<(), Error>;

    /// Decodes the vector of `node` into `scratch`, which has a vector's length, or finds it in the record. Of one in
    /// [parts](NodePages::PARTS) it is what the leading part says. Here it is what the record has: a vector as it is, or none.
    #[inline]
    fn vector<'s>(
        &'s self,
        _node: u32,
        record: &Record<'s>,
        _scratch: &'s mut [u8],
    ) -> Result<&'s [u8], Error> {
        Ok(record.vector)
    }

    /// Appends the leading part of a node's vector as it will stand on a page: of a node that is on none yet. Nothing where vectors are
    /// not in [parts](NodePages::PARTS).
    fn leading_part(&self, _node: u32, _vector: &[u8], _out: &mut Vec<u8>) -> Result<(), Error> {
        Ok(())
    }

    /// How far an element of a node's vector may be from what its leading part says, infinite if anywhere; 0 where vectors are not in
    /// parts.
    fn error(&self, _node: u32, _part: &[u8]) -> f32 {
        0.0
    }
}

/// How direct inserts change the pages of a layout.
pub(crate) trait Changes {
    /// Whether a record is written anew on another page, and a table says where each is.
    const MOVES: bool;
}

/// Records are written anew on other pages: the layout is [`Composable`].
pub(crate) struct RecordsMove;

/// Pages are written anew in their places: the layout is [`Rewritable`].
pub(crate) struct PagesStay;

/// Nothing is written anew: the layout takes no direct inserts, and new vectors wait for a merge. As where records move, no page changes
/// under a reader.
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

/// A layout whose pages can be composed anew of any records: one whose records move.
pub(crate) trait Composable: NodePages {
    /// What puts pages together.
    type Composer: Composer;

    /// One with nothing on its page.
    fn composer(&self) -> Self::Composer;

    /// Records that a page of the build has, on average.
    fn records_a_page(&self) -> usize;

    /// Appends a list, which ascends, as it stands on a page.
    fn encode_list(&self, node: u32, list: &[u32], out: &mut Vec<u8>) -> Result<(), Error>;

    /// Appends a vector as it stands on a page.
    fn encode_vector(&self, node: u32, vector: &[u8], out: &mut Vec<u8>) -> Result<(), Error>;
}

/// Puts a page together of records of any nodes, list and vector as they stand on a page.
pub(crate) trait Composer {
    /// Empties the page.
    fn start(&mut self);
    /// Adds a record; false if it does not fit.
    fn push(&mut self, node: u32, id: u64, list: &[u8], vector: &[u8]) -> bool;
    /// The page's bytes, as number `page` of its file.
    fn finish(&mut self, page: u32) -> &[u8];
}

/// A layout whose pages are composed anew of their own nodes, in their places, with the neighbours' codes.
pub(crate) trait Rewritable: NodePages {
    /// What puts pages together.
    type Composer: CodedComposer;

    /// One with nothing on its page.
    fn composer(&self) -> Self::Composer;

    /// The first node of a page.
    fn first_node(&self, page: u32) -> u64;
}

/// Puts a page together of the records of consecutive nodes, with the codes beside their lists.
pub(crate) trait CodedComposer {
    /// Empties the page.
    fn start(&mut self);
    /// Adds the record of the next node, of at most the degree's links; false if there is no room for it.
    fn push(&mut self, id: u64, vector: &[u8], list: &[u32], codes: &[u8]) -> bool;
    /// The page's bytes, as number `page` of its file.
    fn finish(&mut self, page: u32) -> &[u8];
}

/// A list has grown beyond what there is room for: what it was changed from was not what it should have been.
#[cold]
pub(crate) fn too_long(file: &str, node: u32, links: usize, most: usize) -> Error {
    Error::Damaged {
        file: file.to_owned(),
        what: format!("node {node} has {links} links, {most} are the most in this index"),
    }
}

/// Names the file and the node of bytes that do not decode.
#[cold]
pub(crate) fn undecodable(file: &str, node: u32, error: &CodecError) -> Error {
    Error::Damaged {
        file: file.to_owned(),
        what: format!("node {node}: {error}"),
    }
}

/// What a cached record with a vector begins with: its id, and the lengths of its list and codes.
const CACHED_HEADER: usize = 16;
/// Zeros behind a record out of a cache, for decoders that read ahead.
const SLACK: usize = 8;

impl<'a> Record<'a> {
    /// One of which nothing is known but the bytes of the vector.
    pub(crate) fn of_vector(vector: &'a [u8]) -> Self {
        Self {
            id: 0,
            list: &[],
            list_and_rest: &[],
            codes: &[],
            vector,
        }
    }

    /// Bytes that [`cached`](Record::cached) makes of a record whose list, codes and vector take at most so many. Where a
    /// record is a list alone (`vector` is 0) that is the list's: the entries of DecoupleVS §3.4 are of the Elias–Fano
    /// bound.
    pub(crate) fn cached_bytes(list: usize, codes: usize, vector: usize) -> usize {
        match vector {
            0 => list,
            vector => CACHED_HEADER + list + codes + vector,
        }
    }

    /// Writes the record as one run of bytes, for a cache.
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

    /// Reads what [`cached`](Record::cached) wrote for a record with or without a vector; appends some zeros to it. `None`
    /// if it is something else.
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
