//! Records as they stand on pages of any format: what a check and a salvage read, whatever became of the tables beside.
//!
//! ```text
//!   PageFormat::read    bytes of a page that is whole ─> PageRecords: by slot a node, its id, and the bytes of its list and vector
//! ```
//!
//! Which of them count is no question of the format: a record that moved on leaves its bytes behind, and a segment that a merge kept
//! has records that are garbage. Tables say so. A traversal does not read pages so, but as [`NodePages`](super::NodePages).

use std::borrow::Cow;

use stratann_layout::{FileHeader, LayoutError};

/// The pages of a file in some format: a shape, which follows from the manifest or from the header of the file.
pub(crate) trait PageFormat {
    /// Bytes of a page.
    fn page_bytes(&self) -> usize;

    /// Pages behind its own that a record may go on on, at most.
    fn pages_behind(&self) -> usize {
        0
    }

    /// It as one whose pages follow from their nodes' numbers, if it is.
    fn as_fixed(&self) -> Option<&dyn FixedFormat> {
        None
    }

    /// Bytes behind the last page of a file of `nodes` nodes, which are zero.
    fn padding(&self, _nodes: u64) -> usize {
        0
    }

    /// Bytes that a list takes on storage, which stands as `list`.
    fn list_bytes(&self, list: &[u8]) -> usize;

    /// Whether a header is that of a file of `nodes` nodes in this format.
    fn is_of(&self, header: &FileHeader, nodes: u64, file: &str) -> Result<bool, LayoutError>;

    /// Reads page `page`, all checksums of which are verified. `bytes` may go on behind it, with pages that its last record may go on on:
    /// that record is refused alone if it is not whole. Of a page whose nodes follow from its number there are as many as
    /// the first `nodes` of the index have there; any number, if that is `None`.
    fn read<'p>(
        &'p self,
        page: u64,
        bytes: &'p [u8],
        nodes: Option<u64>,
        file: &'p str,
    ) -> Result<PageRecords<'p>, LayoutError>;
}

/// A format of pages with so many nodes each that a node's page follows from its number.
pub(crate) trait FixedFormat: PageFormat {
    /// Nodes of a full page; not 0.
    fn nodes_a_page(&self) -> u64;

    /// Pages that `nodes` nodes are on.
    fn pages(&self, nodes: u64) -> u64 {
        nodes.div_ceil(self.nodes_a_page())
    }

    /// The first node of a page, and how many of `nodes` nodes are on it.
    fn nodes_on(&self, page: u64, nodes: u64) -> (u64, u64) {
        let full = self.nodes_a_page();
        let first = page.saturating_mul(full);
        (first, nodes.saturating_sub(first).min(full))
    }
}

/// A page that was read.
pub(crate) struct PageRecords<'p> {
    /// Whether it names the node of each record: these were written anew after the build.
    pub(crate) relocated: bool,
    /// The node that it begins with, if not.
    pub(crate) first: u64,
    /// Bytes that a record of a page before goes on with, and those that its own last one has behind it.
    pub(crate) begun: u64,
    pub(crate) left: u64,
    /// Its records, by slot.
    pub(crate) records: Vec<Stored<'p>>,
}

/// A record as it stands on a page.
pub(crate) struct Stored<'p> {
    /// The node that its page says it is.
    pub(crate) node: Result<u32, LayoutError>,
    /// The outside id; 0 where ids are elsewhere.
    pub(crate) id: Result<u64, LayoutError>,
    /// Its list and its vector.
    pub(crate) bytes: Result<StoredBytes<'p>, LayoutError>,
}

/// The bytes of a record, not decoded.
pub(crate) struct StoredBytes<'p> {
    /// The list; empty where it is elsewhere. Where it is not encoded, a word for each link.
    pub(crate) list: Cow<'p, [u8]>,
    /// The vector; empty where it is elsewhere.
    pub(crate) vector: Cow<'p, [u8]>,
}

impl<'p> Stored<'p> {
    /// A record of which all is to be had or nothing.
    pub(crate) fn whole(
        node: Result<u32, LayoutError>,
        record: Result<(u64, &'p [u8], &'p [u8]), LayoutError>,
    ) -> Self {
        let (id, bytes) = match record {
            Ok((id, list, vector)) => {
                let (list, vector) = (Cow::Borrowed(list), Cow::Borrowed(vector));
                (Ok(id), Ok(StoredBytes { list, vector }))
            }
            Err(error) => (Err(error.clone()), Err(error)),
        };
        Self { node, id, bytes }
    }
}
