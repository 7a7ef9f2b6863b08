//! How vectors get in and out of an index that is there: fresh ones are searched in memory until they are merged.

#[cfg_attr(
    not(test),
    expect(
        dead_code,
        reason = "the foundation of updates: nothing outside its tests inserts yet"
    )
)]
pub(crate) mod fresh;
