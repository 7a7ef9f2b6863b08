//! Vectors that are apart from lists: segments of vectors, and vectors inserted after the build.

pub(crate) mod added;
pub(crate) mod leading;
pub(crate) mod model;
pub(crate) mod segments;
pub(crate) mod write;
