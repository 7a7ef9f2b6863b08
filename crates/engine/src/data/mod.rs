//! The input of a user: vector files, rows of attributes, and ground truth.
//!
//! | extension | contents | element | module |
//! |---|---|---|---|
//! | `.fbin .hbin .u8bin .i8bin` | big-ann matrix | f32, f16, u8, i8 | `bin` |
//! | `.fvecs .bvecs` | TexMex vectors | f32, u8 | `vecs` |
//! | `.npy` | numpy array, 2 dimensions | f32, f16, u8, i8; f64 becomes f32 | `npy` |
//! | `.npy` | numpy array, 1 dimension | u64 ids | `ids` |
//! | any | rows of attributes, a JSON object a line | | `rows` |
//! | `.bin .ibin .ivecs` | ground truth | u32 ids, f32 distances | `truth` |
//! | `.bin64 .npy` | ground truth | u64 ids, f32 distances | `truth` |
//!
//! A collection may be larger than the memory of a build. So a source is read by ranges of rows
//! into the caller's buffer. No file is ever mapped, and only a [`Matrix`] is read as a whole.

mod bin;
mod exact;
mod ids;
mod none;
mod npy;
mod output;
mod rows;
mod source;
mod truth;
mod vecs;

pub use crate::error::DataError;
pub(crate) use bin::bin_extension;
pub use bin::write_bin;
pub use exact::{brute_force, check_brute_force};
pub use ids::read_ids;
pub use none::{NoRows, Outline};
pub(crate) use npy::NpyHeader;
pub(crate) use output::Output;
pub use rows::{Cleared, JsonColumns, JsonRows, RowSource, RowTable, json_of};
pub(crate) use source::{Check, check_stored_rows, extension, extension_error, room_for};
pub use source::{Matrix, MatrixRef, VectorFile, VectorSource, check_range, check_rows};
pub use truth::GroundTruth;
