//! Vectors that are apart from lists: segments of them, and those that came after the build.

pub(crate) mod added;
pub(crate) mod segments;
pub(crate) mod write;
