//! Updates: inserts into an open index, and deletes from it.
//!
//! ```text
//!   live.rs       an index that is open for changes: log, memory, merge
//!   direct/       inserts straight into the graph on storage
//!   due.rs        when a merge is due
//!   fresh.rs      the graph of vectors that are not on storage yet
//!   health.rs     failures, and whether changes are still accepted
//!   overlay.rs    the changes since the checkpoint, as a search sees them
//!   replay.rs     rebuilds the overlay from the logs
//!   merge.rs      the batched merge: everything live becomes the next checkpoint
//!   rebalance/    moves new vectors into clusters on storage, and keeps clusters balanced
//!   scattered.rs  the extra reads of probes after clusters took new vectors
//!   survey.rs     the rows of a merge, and the segments of vectors that the merge keeps
//!   garbage.rs    which segments have too much garbage
//!   rows.rs       the vectors of a merge, read from the index
//!   attributes.rs the attributes of vectors in a merge
//!   contents.rs   the vectors and lists of a checkpoint, in node order
//!   ids.rs        the ids of a checkpoint
//!   reading.rs    attributes and payload of an id
//!   standing.rs   all live rows at one read timestamp, for full reads
//!   ranges.rs     a set of mostly consecutive ids
//! ```

mod attributes;
mod contents;
mod direct;
mod drift;
mod due;
mod fresh;
mod garbage;
mod growth;
mod health;
mod ids;
mod live;
mod logged;
mod matching;
mod merge;
mod outgrown;
mod overlay;
mod ranges;
mod reading;
mod rebalance;
mod replay;
mod rows;
mod scattered;
mod standing;
mod survey;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod trials;

pub(crate) use direct::inserting_bytes;
pub use direct::{DirectCounts, DirectOptions, Pruning};
pub(crate) use drift::Drift;
pub use drift::IndexHealth;
pub use due::{Due, MergeWhen, Merger};
pub use live::{
    CodebookFate, CompactReport, CutOff, CutOffInsert, LiveIndex, Resumed, WriteOptions,
};

pub(crate) use contents::each_list;
pub(crate) use contents::each_vector;
pub(crate) use contents::{Shares, each_list_in, each_vector_in};
pub(crate) use fresh::FreshScratch;
pub(crate) use growth::{LooksAt, far_grown, found_badly, looks_at};
pub(crate) use ids::CarriedIds;
pub(crate) use live::Snapshot;
pub(crate) use logged::logged_bytes;
pub(crate) use matching::Matches;
pub(crate) use merge::bytes_in;
pub(crate) use overlay::{Dead, Moment, Overlay, Seen};
pub(crate) use replay::replay;
pub(crate) use standing::{Held, Standing};
