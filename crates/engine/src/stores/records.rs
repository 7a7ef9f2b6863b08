//! The records on a page, in any format of pages. Verify and repair read them without tables.
//!
//! ```text
//!   PageFormat::read    bytes of a whole page ─> PageRecords: for each slot a node, its id,
//!                                                and the bytes of its list and vector
//! ```
//!
//! The format does not show which records are valid. A record that moved leaves its old bytes, and
//! a segment that a merge left unchanged has garbage. Traversals use
//! [`NodePages`](super::NodePages) instead.

use std::borrow::Cow;

use stratann_layout::{FileHeader, LayoutError};

pub(crate) trait PageFormat {
    fn page_bytes(&self) -> usize;

    /// A record may continue on at most this many pages after its first page.
    fn pages_behind(&self) -> usize {
        0
    }

    fn as_fixed(&self) -> Option<&dyn FixedFormat> {
        None
    }

    fn padding(&self, _nodes: u64) -> usize {
        0
    }

    /// The number of bytes that `list` takes on storage.
    fn list_bytes(&self, list: &[u8]) -> usize;

    fn is_of(&self, header: &FileHeader, nodes: u64, file: &str) -> Result<bool, LayoutError>;

    /// Reads page `page` and verifies all its checksums.
    ///
    /// `bytes` may continue with the pages that have the end of the last record. If the end is
    /// missing, only this record is refused. If `nodes` is given, a page of fixed records must have
    /// as many records as in an index of `nodes` nodes.
    fn read<'p>(
        &'p self,
        page: u64,
        bytes: &'p [u8],
        nodes: Option<u64>,
        file: &'p str,
    ) -> Result<PageRecords<'p>, LayoutError>;
}

/// A format with a fixed number of nodes on each page. So a node's page follows from its number.
pub(crate) trait FixedFormat: PageFormat {
    /// The number of nodes on a full page, which is never 0.
    fn nodes_a_page(&self) -> u64;

    fn pages(&self, nodes: u64) -> u64 {
        nodes.div_ceil(self.nodes_a_page())
    }

    /// The first node of a page, and the number of nodes on it in an index of `nodes` nodes.
    fn nodes_on(&self, page: u64, nodes: u64) -> (u64, u64) {
        let full = self.nodes_a_page();
        let first = page.saturating_mul(full);
        (first, nodes.saturating_sub(first).min(full))
    }
}

pub(crate) struct PageRecords<'p> {
    /// Whether the page has the node number of each record. Only pages that were written after the
    /// build have these numbers.
    pub(crate) relocated: bool,
    /// The first node of the page, if the build wrote the page.
    pub(crate) first: u64,
    /// The number of bytes at the start of the page that continue a record of an earlier page.
    pub(crate) begun: u64,
    /// The number of bytes of the page's last record that are on following pages.
    pub(crate) left: u64,
    pub(crate) records: Vec<Stored<'p>>,
}

pub(crate) struct Stored<'p> {
    pub(crate) node: Result<u32, LayoutError>,
    /// The id, or 0 if ids are stored elsewhere.
    pub(crate) id: Result<u64, LayoutError>,
    pub(crate) bytes: Result<StoredBytes<'p>, LayoutError>,
}

pub(crate) struct StoredBytes<'p> {
    /// The encoded list, or a word for each link if lists are not encoded. Empty if lists are
    /// stored elsewhere.
    pub(crate) list: Cow<'p, [u8]>,
    /// Empty if vectors are stored elsewhere.
    pub(crate) vector: Cow<'p, [u8]>,
}

impl<'p> Stored<'p> {
    /// A record whose parts are either all readable, or all unreadable.
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
