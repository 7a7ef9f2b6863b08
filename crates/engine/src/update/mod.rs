//! Updates: how a vector gets into an index that is open, and out of it.
//!
//! ```text
//!   live.rs       the index that takes them: log, memory, merge
//!   direct/       inserts straight into the graph on storage
//!   due.rs        when a merge is due
//!   fresh.rs      the graph of vectors that are not on storage yet
//!   health.rs     what went wrong, and whether changes go on
//!   overlay.rs    what changed, as a search sees it
//!   replay.rs     the same, from the logs
//!   merge.rs      the batched merge: everything live becomes the next checkpoint
//!   rebalance/    new vectors into clusters on storage, which stay in balance
//!   scattered.rs  how many more reads probes take, where clusters took new vectors
//!   survey.rs     what a merge takes, row after row, and which segments of vectors it keeps
//!   garbage.rs    which of them have too much garbage
//!   rows.rs       rows that are read where they stand
//!   attributes.rs what vectors have beside them, in a merge
//!   contents.rs   what a checkpoint holds, node after node
//!   ids.rs        which ids it holds
//!   reading.rs    what an id has beside its vector
//!   standing.rs   all that counts at a moment, for who reads all of it
//!   ranges.rs     a set of ids that are mostly consecutive
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
pub(crate) use fresh::FreshScratch;
pub(crate) use growth::{LooksAt, far_grown, found_badly, looks_at};
pub(crate) use ids::CarriedIds;
pub(crate) use live::Snapshot;
pub(crate) use logged::logged_bytes;
pub(crate) use matching::Matches;
pub(crate) use merge::bytes_in;
pub(crate) use overlay::{Dead, Moment, Overlay, Seen};
pub(crate) use replay::replay;
pub(crate) use standing::Standing;
