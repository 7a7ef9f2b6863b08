//! Columns: the attributes and payloads of vectors, in files of their own. The columns of a
//! checkpoint consist of *segments*. Each segment consists of two byte strings that never change
//! after they are written.
//!
//! ```text
//!   rows-…-0000      the rows of some nodes, with the node and the external id of each   (rows)
//!   columns-…-0000   the nodes of each value, which can be rebuilt from the rows         (part)
//! ```
//!
//! If several segments have a row of a node, the row of the newest segment counts. The files `rows`
//! and `columns` are read in parts, and never memory-mapped. Each block has a checksum.

pub mod part;
pub mod rows;
