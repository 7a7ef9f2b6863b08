//! Updates: inserts into an open index, and deletes from it.
//!
//! ```text
//!   live.rs       an index that is open for changes: log, memory, merge
//!   direct/       inserts straight into the graph on storage
//!   due.rs        when a merge is due
//!   health.rs     failures, and whether changes are still accepted
//!   merge.rs      the batched merge: everything live becomes the next checkpoint
//!   rebalance/    moves new vectors into clusters on storage, and keeps clusters balanced
//!   scattered.rs  the extra reads of probes after clusters took new vectors
//!   survey.rs     the rows of a merge, and the segments of vectors that the merge keeps
//!   garbage.rs    which segments have too much garbage
//!   rows.rs       the vectors of a merge, read from the index
//!   attributes.rs the attributes of vectors in a merge
//!   ids.rs        the ids of a checkpoint
//!   reading.rs    attributes and payload of an id
//!   stats.rs      statistics of an index, which `stratann stats` prints
//!   matching.rs   searches with filters
//!   standing.rs   all live rows at one read timestamp, for full reads
//! ```
//!
//! [`overlay`](crate::overlay) has the changes since the checkpoint, as a search sees them.

mod attributes;
mod direct;
mod drift;
mod due;
mod garbage;
mod health;
mod ids;
mod live;
mod matching;
mod merge;
mod outgrown;
mod reading;
mod rebalance;
mod rows;
mod scattered;
mod standing;
mod stats;
mod survey;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod trials;

pub use direct::DirectCounts;
pub use drift::IndexHealth;
pub use due::{Due, Merger};
use due::{far_grown, found_badly};
pub use live::{CodebookFate, CompactReport, CutOff, CutOffInsert, LiveIndex, Resumed};
pub use stats::{Bytes, ClusterStats, Codecs, GraphAndVectors, Stats};

pub(crate) use live::{Meanwhile, Snapshot};
pub(crate) use merge::bytes_in;
pub(crate) use standing::{Held, Standing};
