//! Columns: the attributes and payloads of vectors, in *segments* of two byte strings, which never
//! change:
//!
//! ```text
//!   rows-…-0000      the rows of some nodes, with the node and the external id of each   (rows)
//!   columns-…-0000   the nodes of each value, which can be rebuilt from the rows         (part)
//! ```
//!
//! If several segments have a row of a node, the newest row counts. The files are read in parts,
//! with a checksum for each block.

pub mod part;
pub mod rows;
