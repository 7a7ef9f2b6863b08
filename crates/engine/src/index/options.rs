//! Options for opening an index.

use stratann_tier::IoMode;

use crate::{Places, RecallWatch};

/// Options for opening an index.
#[derive(Clone, Debug)]
pub struct OpenOptions {
    /// The most memory to spend on this index, in bytes. `None` sets no limit.
    pub memory: Option<u64>,
    /// The way in which pages are read.
    pub io: IoMode,
    /// Whether the checksum of every page is verified when it is read (about 0.2 µs each).
    pub verify_pages: bool,
    /// The cache of hot records (DecoupleVS §3.4). It is part of the budget, if there is one.
    pub cache: CacheSize,
    /// Whether searches start from the navigation graph, so that a memory budget reserves memory
    /// for it. `None` is the preset's choice. Without a budget, it is loaded when a search needs
    /// it.
    pub navigation: Option<bool>,
    /// Bytes that the caller holds beside the index and that count towards `memory`. These are
    /// queries, answers, and [`THREAD_BYTES`] for each thread beyond two.
    pub beside: u64,
    /// The tier on which each role is read. Copies in memory count towards `memory`, and so do
    /// mapped ones.
    pub places: Places,
    /// Settings for a sample of the served queries, which measures live recall
    /// ([`Index::measure_recall`](crate::Index::measure_recall)). Its memory counts towards
    /// `memory`. Indexes of a catalog have none.
    pub watch_recall: Option<RecallWatch>,
}

/// About the memory of a search thread: its stack, its ring and its first buffers. A budget
/// includes two.
pub const THREAD_BYTES: u64 = 512 << 10;

/// The size of the cache of hot records. It keeps the records that searches read last: lists as
/// stored, together with vectors that are beside them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CacheSize {
    /// No cache.
    #[default]
    None,
    /// As many entries as fit into this many bytes.
    Bytes(u64),
    /// This many entries.
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
