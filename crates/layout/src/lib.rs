//! The on-disk formats of StratANN: bytes to structs and back, and nothing else.
//!
//! This crate opens no file and knows no device: it takes bytes that somebody else read and says what
//! they mean, or refuses them with an error that names the file, the offset, what was found, what was
//! expected and what to do. It never panics on bytes and never guesses.
//!
//! ```text
//! index directory
//! ├── MANIFEST         text: names the files of the current checkpoint           (manifest)
//! ├── graph            [header block][page][page]..   vector + adjacency list    (coupled)
//! ├── codes            [header block][block][block].. a byte string              (stream)
//! ├── codebook         [header block][block]..        a byte string              (stream)
//! └── navigation       [header block][block]..        a byte string              (stream, navigation)
//! ```
//!
//! All integers are little-endian. Each 4 KiB block of each file has a crc32c checksum of its own that is
//! seeded with the block's number in its file, so that a block that was written to a wrong place is found
//! as surely as a flipped bit. Each byte table stands once, in the module that reads it.

#![forbid(unsafe_code)]

pub mod block;
pub mod coupled;
pub mod error;
pub mod header;
pub mod manifest;
pub mod navigation;
pub mod stream;

pub use block::{BLOCK, PAYLOAD};
pub use coupled::{CoupledShape, Neighbours, NodeView, PageBuilder, PageView};
pub use error::LayoutError;
pub use header::{FieldsReader, FieldsWriter, FileHeader, FileKind};
pub use manifest::{FileEntry, Manifest, NavigationFacts};
pub use navigation::NavigationFile;
pub use stream::{StreamReader, StreamWriter};
