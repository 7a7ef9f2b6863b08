//! The options of changes.

use std::time::Duration;

use super::preset::Update;

/// The options for opening an index for changes.
#[derive(Clone, Debug)]
pub struct WriteOptions {
    /// The durability of a change when its call returns.
    pub durability: Durability,
    /// The maximum number of threads that insert the rows of one call.
    pub threads: usize,
    /// The strategy of inserts. `None` is the choice of the preset. If the layout has no direct
    /// inserts, vectors wait for a merge.
    pub update: Option<Update>,
    /// The options of direct inserts.
    pub direct: DirectOptions,
}

impl Default for WriteOptions {
    fn default() -> Self {
        Self {
            durability: Durability::Always,
            threads: crate::threads::processors(),
            update: None,
            direct: DirectOptions::default(),
        }
    }
}

/// The time at which an append to the log is durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// The append is durable when its call returns.
    Always,
    /// The append is durable at most this time after its call returned.
    Every(Duration),
    /// The append is durable at the latest when a later
    /// [`LiveIndex::flush`](crate::LiveIndex::flush) or merge returns.
    OnFlush,
}

/// The options of direct inserts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DirectOptions {
    /// The method by which full lists are pruned.
    pub pruning: Pruning,
    /// The list size (L) of the search of an insert. `None` means the degree plus 32, as in OdinANN
    /// §4.6. If searches use all nodes on a page, `None` means the degree.
    pub list: Option<usize>,
    /// The maximum number of bytes of changes that wait in memory ([`Update::Accumulate`]).
    pub pending: u64,
    /// Whether an insert writes the page of the new vector ([`Update::Accumulate`]). Searches
    /// during inserts are then equally fast from the start. If false, new vectors wait in memory.
    pub write_home: bool,
    /// Whether background threads write the pages that inserts changed (OdinANN §3.3, optimisation
    /// 1: the write-back cache). If false, each insert waits until its pages are written. With
    /// [`Update::Relocate`], the insert then has the locks of its records, as in the comparison of
    /// the paper's Figure 9.
    pub write_behind: bool,
    /// The number of concurrent inserts on each thread.
    pub in_flight: usize,
    /// Whether a call with many rows merges them, if a merge is cheaper than inserts. A merge is
    /// cheaper for at least 1,000 rows that are at least an eighth of the index.
    pub merge_many: bool,
    /// The number of changes between two checkpoints. In a cluster index, the number of waiting
    /// vectors at which a rebalance is due. With `None`, it grows with the index.
    pub checkpoint: Option<u64>,
}

impl Default for DirectOptions {
    fn default() -> Self {
        Self {
            pruning: Pruning::Delta,
            list: None,
            pending: 12 << 20,
            write_home: true,
            write_behind: true,
            in_flight: 4,
            merge_many: false,
            checkpoint: None,
        }
    }
}

/// The method by which full lists are pruned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pruning {
    /// Compares only the new node with the other nodes.
    Delta,
    /// Compares all nodes with each other, as in DiskANN (the baseline in Figure 9 of OdinANN).
    Full,
}

/// Limits at which a merge is due. An infinite limit is never reached.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MergeWhen {
    /// The share of the vectors on storage that were deleted or replaced.
    pub deleted: f64,
    /// The mean reads of a query, as a multiple of the reads with nothing deleted.
    pub reads: f64,
    /// The number of vectors that wait in memory, as a share of the number on storage. Rows without
    /// a vector count too.
    pub logged: f64,
    /// Dead bytes in the files of clusters, as a share of these files. In a graph: superfluous
    /// pages, as a share of all pages. A graph of ten times `least` vectors has a limit of at least
    /// 0.55.
    pub garbage: f64,
    /// The reads of a probe in a grouped index, as a multiple of the reads after the build. For a
    /// whole search, the multiple is lower, because the probed clusters have vectors in common.
    pub scattered: f64,
    /// The number of vectors, as a multiple of the number at the last build or merge. The limit
    /// applies if that build or merge had fewer vectors than a codebook is trained on.
    pub grown: f64,
    /// The share of inserted vectors that are unlike the vectors on which the codes were trained.
    /// Searches often miss such vectors.
    pub drifted: f64,
    /// The minimum number of changed vectors for a merge. Some rules have a lower minimum: 256
    /// inserted vectors for `drifted`; 64 deleted vectors for `deleted`, at twice the limit; 32 for
    /// `grown`, and for `garbage` in a small graph.
    pub least: u64,
}

impl Default for MergeWhen {
    fn default() -> Self {
        Self {
            deleted: 0.1,
            reads: 1.1,
            logged: 0.06,
            garbage: 0.4,
            scattered: 1.3,
            grown: 4.0,
            drifted: 0.01,
            least: 1_000,
        }
    }
}
