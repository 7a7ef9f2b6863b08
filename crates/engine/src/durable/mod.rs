//! Durability: what is on disk is always an index that opens.

mod checkpoint;

pub(crate) use checkpoint::Checkpoint;
