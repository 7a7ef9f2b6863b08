//! How an index is opened.

use stratann_tier::IoMode;

use crate::{Places, RecallWatch};

/// How to open an index.
#[derive(Clone, Debug)]
pub struct OpenOptions {
    /// The most memory to spend on this index, in bytes; `None` is as much as it wants.
    pub memory: Option<u64>,
    /// How pages are read.
    pub io: IoMode,
    /// Whether the checksum of every page is verified when it is read (about 0.2 µs each).
    pub verify_pages: bool,
    /// The cache of hot records (DecoupleVS §3.4); part of the budget, if there is one.
    pub cache: CacheSize,
    /// Whether searches will start from the navigation graph, so that a memory budget has room for it; `None` is the
    /// preset's choice. Without a budget it is there whenever a search asks for it.
    pub navigation: Option<bool>,
    /// Bytes that the caller holds beside the index and that count towards `memory`: queries, answers, and for each thread beyond
    /// two what [`THREAD_BYTES`] says.
    pub beside: u64,
    /// On which tier each role is read. Copies in memory count towards `memory`.
    pub places: Places,
    /// What keeps a sample of the queries that are served, so that it is known how much searches find ([`Index::measure_recall`](crate::Index::measure_recall)).
    /// What it takes counts towards `memory`. A catalog's indexes have none.
    pub watch_recall: Option<RecallWatch>,
}

/// What a searching thread takes, about: its stack, its ring and its first buffers. A budget has room for two.
pub const THREAD_BYTES: u64 = 512 << 10;

/// How large the cache of hot records is. It keeps what searches read last: lists as they are stored, beside their
/// vectors where these stand beside them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CacheSize {
    /// No cache.
    #[default]
    None,
    /// As many entries as fit into so many bytes.
    Bytes(u64),
    /// So many entries.
    Entries(usize),
}

impl Default for OpenOptions {
    fn default() -> Self {
        Self {
            memory: None,
            io: IoMode::Auto,
            verify_pages: true,
            cache: CacheSize::None,
            navigation: None,
            beside: 0,
            places: Places::default(),
            watch_recall: None,
        }
    }
}
