//! Durability. At any time, the files on disk are an index that can be opened and that has every
//! durable change.
//!
//! - [`checkpoint`]: replaces the index by a new set of files, atomically
//! - [`inserts`]: records the inserts that can be resumed after an interruption
//! - [`log`]: the write-ahead log of the changes after the last checkpoint
//! - [`room`]: reserves blocks on storage, so that deletes still work on a full disk

mod checkpoint;
pub(crate) mod inserts;
mod log;
mod room;

pub(crate) use checkpoint::{
    Checkpoint, Committed, are_of_first_build, begin_state, check_replaceable, is_ours, opened_from,
};
pub(crate) use log::{
    Log, LogPosition, LostRecords, NextLog, log_bytes, log_name, number_of as log_number, replay,
    salvage,
};
pub(crate) use room::{is_room, keep_room, keep_small_room, kept_room, room_for_deletes};
