//! Lossless codecs for adjacency lists and vectors, without I/O or threads.
//!
//! ```text
//! lists      the neighbours of a node, a set of u32 node numbers
//!   elias_fano   the code of DecoupleVS: at most 2R + R*ceil(log2(N/R)) bits for R of N nodes
//!   gaps     differences outward from the node's own number, Huffman-coded; for locality order
//!   ListModel    trained on a sample; picks the shorter code for each list, marked by one byte
//!
//! vectors    one vector at a time, each decodable alone
//!   huffman      one table for all bytes of a segment; with xor_delta, the codec of DecoupleVS
//!   xor_delta    the most frequent byte of each position in a chunk, removed by XOR if that helps
//!   float_split  sign and mantissa unchanged, exponents Huffman-coded
//!   classes      a vector's group and a byte's position choose one of a few tables for the byte
//!   SegmentModel trained on a sample of a segment; chooses the codec by measurement
//!   NestedModel  codes in two parts: the first part suffices to rank, both restore every bit
//! ```
//!
//! Lists and vectors are coded with a *model*, which is trained on a sample and stored once for
//! each file or segment ([`ListModel::to_bytes`], [`SegmentModel::to_bytes`]). A model codes any
//! input exactly, but input unlike the sample takes more bits.
//!
//! If a decoder gets arbitrary bytes, it returns a value or a [`CodecError`]. It never panics, and
//! allocates at most a small multiple of its input. The checksums of pages reveal damage that a
//! decoder does not notice.
//!
//! # Bits
//!
//! In all codes, the first bit is the lowest bit of the first byte. A *backward* stream starts at
//! the lowest bit of the last byte and continues towards the front.

#![forbid(unsafe_code)]

mod bits;
mod error;
mod lists;
mod model;
mod prefix;
mod vectors;

pub use error::CodecError;
pub use lists::elias_fano;
pub use lists::gaps;
pub use lists::{ListCodec, ListModel, ListTrainer};
pub use vectors::{Element, NestedModel, SegmentModel, Shape, VectorCodec, xor_delta};
