//! Columns: what vectors have beside them, in files of their own. A checkpoint's columns are
//! *segments*, each of two byte strings that are never changed once they are written.
//!
//! ```text
//!   rows-…-0000      the rows of some nodes, and which node and which id has which                  (rows)
//!   columns-…-0000   which of these nodes have which values: made of the rows, and made again        (part)
//! ```
//!
//! The newest segment that has a row of a node counts. Both files are read in parts, whose blocks
//! each have a checksum, and never mapped.

pub mod part;
pub mod rows;
