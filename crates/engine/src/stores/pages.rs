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

#[derive(Clone, Copy, Debug)]
pub(crate) struct Record<'a> {
    /// The id, or 0 if the layout stores the id and the vector elsewhere.
    pub(crate) id: u64,
    pub(crate) list: &'a [u8],
    /// `list`, and the bytes that follow it in memory, for a decoder that reads ahead.
    pub(crate) list_and_rest: &'a [u8],
    /// The codes of the neighbours in the order of the list; empty if codes are in memory.
    pub(crate) codes: &'a [u8],
    /// The bytes of the vector; empty if the layout stores vectors elsewhere.
    pub(crate) vector: &'a [u8],
}

/// The placement of nodes, shared with the graph; empty before the first direct insert.
pub(crate) type Placed = Arc<OnceLock<Placement>>;

pub(crate) trait PageView<'p>: Copy {
    fn node(self, slot: usize) -> Result<u32, Error>;
    fn slot_of(self, node: u32) -> Option<usize>;
    fn len(self) -> usize;
    fn record(self, slot: usize) -> Result<Record<'p>, Error>;
}

pub(crate) trait NodePages: Send + Sync {
    /// Whether the vector of a node is beside its list. A search then ranks the node at once.
    const VECTORS: bool;
    /// Whether only the leading part of a vector is beside the list. The leading part is exact
    /// enough for ranking.
    const PARTS: bool = false;
    /// Whether the codes of the neighbours are beside the list. Memory then has only codes of entry
    /// points.
    const CODES: bool;
    /// How direct inserts change the pages: [`RecordsMove`], [`PagesStay`] or [`NothingChanges`].
    type Changes: Changes;
    /// Whether no page is rewritten in place, because changed records move to other pages.
    const MOVES: bool = Self::Changes::MOVES;

    type View<'p>: PageView<'p>
    where
        Self: 'p;

    fn page_of(&self, node: u32) -> u64;

    fn built_page(&self, node: u32) -> Option<u64> {
        Some(self.page_of(node))
    }

    fn place(&self, page: u64) -> (u64, usize);

    /// `check` verifies the checksums of the page.
    fn view<'p>(&'p self, bytes: &'p [u8], page: u64, check: bool)
    -> Result<Self::View<'p>, Error>;

    fn file(&self, nodes: u64) -> PageFile;

    fn table_bytes(&self) -> usize {
        0
    }

    fn placement(&self, nodes: u32) -> Placement {
        let pages = self.file(nodes.into()).pages as u32;
        Placement::new((0..nodes).map(|node| self.page_of(node) as u32), pages)
    }

    fn cached_bytes(&self) -> usize;

    /// If the bytes are damaged, the list may have nodes that do not exist.
    fn list(&self, node: u32, record: &Record<'_>, out: &mut Vec<u32>) -> Result<(), Error>;

    /// The vector of `node`, decoded into `scratch` if it is encoded. If vectors are in
    /// [parts](NodePages::PARTS), the leading part gives the vector.
    #[inline]
    fn vector<'s>(
        &'s self,
        _node: u32,
        record: &Record<'s>,
        _scratch: &'s mut [u8],
    ) -> Result<&'s [u8], Error> {
        Ok(record.vector)
    }

    /// Encodes the leading part of a vector as it is stored on pages, and appends it to the output.
    fn leading_part(&self, _node: u32, _vector: &[u8], _out: &mut Vec<u8>) -> Result<(), Error> {
        Ok(())
    }

    /// The largest difference of an element from its value in the leading part. It may be infinite.
    fn error(&self, _node: u32, _part: &[u8]) -> f32 {
        0.0
    }
}

pub(crate) trait Changes {
    const MOVES: bool;
}

pub(crate) struct RecordsMove;

pub(crate) struct PagesStay;

/// Pages never change, and new vectors wait for a merge. `MOVES` is true, because no page is
/// rewritten in place.
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
    type Composer: Composer;

    fn composer(&self) -> Self::Composer;

    fn records_a_page(&self) -> usize;

    /// Encodes an ascending list as it is stored on pages, and appends it to the output.
    fn encode_list(&self, node: u32, list: &[u32], out: &mut Vec<u8>) -> Result<(), Error>;

    /// Encodes a vector as it is stored on pages, and appends it to the output.
    fn encode_vector(&self, node: u32, vector: &[u8], out: &mut Vec<u8>) -> Result<(), Error>;
}

/// Builds a page of records of any nodes. Lists and vectors must be encoded as on pages.
pub(crate) trait Composer {
    fn start(&mut self);
    fn push(&mut self, node: u32, id: u64, list: &[u8], vector: &[u8]) -> bool;
    fn finish(&mut self, page: u32) -> &[u8];
}

/// A layout whose pages are rewritten in place. A page always has the same nodes.
pub(crate) trait Rewritable: NodePages {
    type Composer: CodedComposer;

    fn composer(&self) -> Self::Composer;

    fn first_node(&self, page: u32) -> u64;
}

/// Builds a page of records of consecutive nodes, with the codes beside their lists.
pub(crate) trait CodedComposer {
    fn start(&mut self);
    fn push(&mut self, id: u64, vector: &[u8], list: &[u32], codes: &[u8]) -> bool;
    fn finish(&mut self, page: u32) -> &[u8];
}

#[cold]
pub(crate) fn too_long(file: &str, node: u32, links: usize, most: usize) -> Error {
    Error::Damaged {
        file: file.to_owned(),
        what: format!("node {node} has {links} links, but this index allows {most}"),
    }
}

#[cold]
pub(crate) fn undecodable(file: &str, node: u32, error: &CodecError) -> Error {
    Error::Damaged {
        file: file.to_owned(),
        what: format!("node {node}: {error}"),
    }
}

/// The header has the id, and the lengths of the list and of the codes.
const CACHED_HEADER: usize = 16;
/// Zeros after a cached record, for decoders that read ahead.
const SLACK: usize = 8;

impl<'a> Record<'a> {
    pub(crate) fn of_vector(vector: &'a [u8]) -> Self {
        Self {
            id: 0,
            list: &[],
            list_and_rest: &[],
            codes: &[],
            vector,
        }
    }

    /// The most bytes that [`cached`](Record::cached) writes. If `vector` is 0, a cached record has
    /// only its list, and `list` is the list's Elias–Fano bound (DecoupleVS §3.4).
    pub(crate) fn cached_bytes(list: usize, codes: usize, vector: usize) -> usize {
        match vector {
            0 => list,
            vector => CACHED_HEADER + list + codes + vector,
        }
    }

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

    /// The record in cached bytes, to which the call appends zeros. `None` if the bytes are
    /// malformed.
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
