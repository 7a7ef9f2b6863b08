//! Options for opening an index.

use stratann_tier::IoMode;

use crate::{Places, RecallWatch};

/// Options for opening an index.
#[derive(Clone, Debug)]
pub struct OpenOptions {
    /// The most memory to spend on this index, in bytes. `None` sets no limit.
    pub memory: Option<u64>,
    /// The system calls by which pages are read.
    pub io: IoMode,
    /// Whether the checksum of every page is verified when it is read (about 0.2 µs each).
    pub verify_pages: bool,
    /// The cache of hot records (DecoupleVS §3.4). Its memory counts towards `memory`.
    pub cache: CacheSize,
    /// Whether searches start from the navigation graph. `None` takes the choice of the preset. A
    /// memory budget reserves memory for this graph; without a budget, the first search loads it.
    pub navigation: Option<bool>,
    /// The caller's own bytes that count towards `memory`: queries, results, and
    /// [`THREAD_BYTES`](crate::THREAD_BYTES) for each search thread beyond two.
    pub beside: u64,
    /// The tier from which each role is read. Copies in memory and mapped copies count as `memory`.
    pub places: Places,
    /// A sample of the served queries, for live recall
    /// ([`Index::measure_recall`](crate::Index::measure_recall)). The sample counts towards
    /// `memory`. An index of a catalog cannot have it.
    pub watch_recall: Option<RecallWatch>,
    /// Whether an index of the preset `stratann` is [unpacked](crate::MemoryPlan::unpacked), if it
    /// is opened only for searches and `memory` has enough space. Opening an index then takes
    /// longer. An index with a `cache` or with `places` is never unpacked.
    pub unpack: bool,
}

/// The size of the cache of hot records: lists, and vectors beside lists, that searches have read
/// recently.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CacheSize {
    /// No cache.
    #[default]
    None,
    /// The cache has as many entries as fit into this number of bytes.
    Bytes(u64),
    /// The cache has this number of entries.
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
            unpack: true,
        }
    }
}
