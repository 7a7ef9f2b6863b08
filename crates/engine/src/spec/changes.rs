//! The options of changes.

use std::time::Duration;

use super::preset::Update;

/// The options for opening an index for changes.
#[derive(Clone, Debug)]
pub struct WriteOptions {
    /// The durability at which a call that changes the index returns.
    pub durability: Durability,
    /// The maximum number of threads that insert the rows of one call.
    pub threads: usize,
    /// The strategy by which new vectors are inserted. `None` stands for the choice of the preset.
    /// If the layout does not support direct inserts, vectors wait for a merge.
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

/// The time at which an append is durable.
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
    /// The list size (L) of the search that an insert makes. `None` means the degree plus 32, as in
    /// OdinANN §4.6. If searches use all nodes on the pages that they read, `None` means the
    /// degree, since these nodes are candidates as well.
    pub list: Option<usize>,
    /// The maximum number of bytes of changes that wait in memory ([`Update::Accumulate`]).
    pub pending: u64,
    /// Whether an insert writes the page of the new vector ([`Update::Accumulate`]). If true,
    /// writes begin with the first insert, so searches that run beside inserts are equally fast
    /// from the start. If false, new vectors wait in memory as changes do.
    pub write_home: bool,
    /// Whether background threads write the pages that inserts changed (OdinANN §3.3, optimisation
    /// 1: the write-back cache). If false, each insert waits until its pages are on storage. Under
    /// [`Update::Relocate`], the insert keeps the locks of its records while it waits. `false` is
    /// useful only for the comparison in Figure 9 of the paper.
    pub write_behind: bool,
    /// The number of concurrent inserts on each thread.
    pub in_flight: usize,
    /// Whether the rows of one call wait for a merge if a merge is cheaper than inserting each row.
    /// A merge is cheaper for 1,000 rows and more, if they are at least an eighth of the index. The
    /// call makes the merge itself.
    pub merge_many: bool,
    /// The number of changes between two checkpoints. In a cluster index: the number of waiting
    /// vectors at which a rebalance is due. With `None`, the number grows with the index.
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
    /// Compares all nodes with each other, as in DiskANN. This method is the baseline in Figure 9
    /// of OdinANN.
    Full,
}
