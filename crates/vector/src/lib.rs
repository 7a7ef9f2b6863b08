//! Vectors in memory: element types, metrics, distance kernels and the product quantiser.
//!
//! A vector is a *row*: `dim` elements of one [`Element`] type, little-endian, at any alignment, as
//! in a file or a page.
//!
//! ```text
//!   bytes ──Kernel──────────────────────────> exact distance
//!   f32   ──ProductQuantizer::encode──> code ─┐
//!   query ──ProductQuantizer::table───> table ┴─DistanceTable::score──> estimated distance
//! ```
//!
//! **Smaller is nearer**, for every metric (see [`Metric`]).
//!
//! **Every instruction set gives the same bits**, and so the same indexes and answers. Integer
//! kernels are exact. Floating-point kernels fix the order of summation (`kernel::body`) and never
//! fuse a multiplication with an addition.
//!
//! This crate does no I/O. Its `unsafe` code is for SIMD only.

mod aligned;
mod element;
mod isa;
mod kernel;
mod metric;
mod norm;
mod paired;
mod quantiser;
mod rounding;
mod table;
mod training;

pub use element::{Element, UnknownElement, first_beyond, first_invalid, from_f32, to_f32};
pub use isa::{InstructionSet, UnknownInstructionSet};
pub use kernel::Kernel;
pub use metric::{Metric, Reduction, UnknownMetric};
pub use norm::{norm, normalize};
pub use paired::{LowCodes, PairedQuantizer, UnknownLowCodes};
pub use quantiser::{CENTROIDS, ProductQuantizer, QuantizerError};
pub use rounding::Rounding;
pub use table::DistanceTable;
pub use training::Training;
