//! Durability: what is on disk is always an index that opens.

mod checkpoint;
#[cfg_attr(
    not(test),
    expect(
        dead_code,
        reason = "live updates, which come next, write and replay it"
    )
)]
mod log;

pub(crate) use checkpoint::Checkpoint;
