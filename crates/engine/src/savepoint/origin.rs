//! What a build follows from: its rows, its options and the program, as one hash.

use blake3::{Hash, Hasher};

use crate::Error;
use crate::build::BuildOptions;
use crate::data::VectorSource;
use crate::progress::{Progress, Stage};

/// The version of the build: raised with every change after which the same rows and options give other nodes, lists or codes, or are
/// kept otherwise. The version of the program counts as well.
const BUILD_VERSION: u32 = 1;

/// Bytes of rows that are read at a time.
const READ: usize = 1 << 20;

/// The origin of a build.
///
/// # Errors
/// Rows that cannot be read, an interruption.
pub(super) fn of(
    source: &dyn VectorSource,
    options: &BuildOptions,
    progress: &dyn Progress,
) -> Result<Hash, Error> {
    let mut hasher = Hasher::new();
    hasher.update(b"stratann build\0");
    hasher.update(&BUILD_VERSION.to_le_bytes());
    hasher.update(env!("CARGO_PKG_VERSION").as_bytes());
    let shape = (source.rows(), source.dim(), source.element());
    hasher.update(format!("\0{shape:?}\0").as_bytes());
    options.identify(&mut hasher);
    let _stage = Stage::begin(progress, "hashing vectors", source.rows() as u64);
    let (rows, row_bytes) = (source.rows(), source.row_bytes());
    let block = (READ / row_bytes).max(1);
    let mut buffer = Vec::new();
    for first in (0..rows).step_by(block) {
        if progress.interrupted() {
            return Err(Error::Interrupted);
        }
        let count = block.min(rows - first);
        match source.in_memory() {
            Some(all) => hasher.update(&all[first * row_bytes..(first + count) * row_bytes]),
            None => {
                buffer.resize(count * row_bytes, 0);
                source.read(first, &mut buffer)?;
                hasher.update(&buffer)
            }
        };
        progress.advance(count as u64);
    }
    Ok(hasher.finalize())
}
