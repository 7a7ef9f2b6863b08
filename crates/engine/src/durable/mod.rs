//! Durability: what is on disk is always an index that opens, and what was acknowledged is in it.
//!
//! - [`checkpoint`]: how a set of files becomes the index, all at once
//! - [`inserts`]: which inserts can go on where they were cut off
//! - [`log`]: what changed since the last of them
//! - [`room`]: what is kept on storage so that deletes go on when the disk is full

mod checkpoint;
pub(crate) mod inserts;
mod log;
mod room;

pub(crate) use checkpoint::{
    Checkpoint, Committed, are_of_first_build, begin_state, is_ours, opened_from,
};
pub use log::Durability;
pub(crate) use log::{
    Log, LogPosition, LostRecords, NextLog, log_bytes, log_name, number_of as log_number, replay,
    salvage,
};
pub(crate) use room::{is_room, keep_room, keep_small_room, kept_room, room_for_deletes};
