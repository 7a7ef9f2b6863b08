//! The origin of a build, as one hash: its rows, its options and the program.

use std::collections::HashMap;

use blake3::{Hash, Hasher};

use crate::Error;
use crate::build::BuildOptions;
use crate::data::VectorSource;
use crate::progress::{Progress, Stage};

/// The version of the build. A change raises it if the same rows and options then give other nodes,
/// lists or codes, or other bytes of savepoints. The version of the program counts as well.
const BUILD_VERSION: u32 = 2;

/// The names of the program and of the rows in a description.
const PROGRAM: &str = "the version of the program";
const VECTORS: &str = "the vectors";

/// Bytes of rows that are read at a time.
const READ: usize = 1 << 20;

/// The origin of a build.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Origin {
    /// The hash of the description. A savepoint is bound to it.
    pub(super) hash: Hash,
    /// The description: a line each of name, tab and value. From it, the differences to another
    /// build are reported.
    pub(super) told: String,
}

impl Origin {
    /// The origin of a build of these rows and options.
    ///
    /// # Errors
    /// Rows that cannot be read; an interruption.
    pub(super) fn of(
        source: &dyn VectorSource,
        options: &BuildOptions,
        progress: &dyn Progress,
    ) -> Result<Self, Error> {
        let shape = (source.rows(), source.dim(), source.element());
        let rows = hash_rows(source, progress)?;
        let mut lines = vec![
            (
                PROGRAM,
                format!("{} {BUILD_VERSION}", env!("CARGO_PKG_VERSION")),
            ),
            (VECTORS, format!("{shape:?} {rows}")),
        ];
        lines.extend(options.named());
        // Escaped, so that any value is one line.
        let line = |(name, value): &(&str, String)| format!("{name}\t{}\n", value.escape_debug());
        let told: String = lines.iter().map(line).collect();
        let mut hasher = Hasher::new();
        hasher.update(b"stratann build\0");
        hasher.update(told.as_bytes());
        Ok(Self {
            hash: hasher.finalize(),
            told,
        })
    }

    /// The names, and if useful the values, that differ from the description `before`. Empty if
    /// `before` has nothing to compare.
    pub(super) fn differences(&self, before: &str) -> Vec<String> {
        let was: HashMap<&str, &str> = lines(before).collect();
        let differs = |(name, is): (&str, &str)| {
            let was = was.get(name).filter(|was| **was != is)?;
            Some(match name {
                PROGRAM | VECTORS => name.to_owned(),
                // A list of many values, or a hash, would help no user.
                "preset" | "codebook" | "ids" => format!("the {name}"),
                _ => format!("{name} ({is}, it was {was})"),
            })
        };
        lines(&self.told).filter_map(differs).collect()
    }
}

/// The pairs of a description: name and value.
fn lines(told: &str) -> impl Iterator<Item = (&str, &str)> {
    told.lines().filter_map(|line| line.split_once('\t'))
}

/// The hash of the rows, independent of the source that holds them.
fn hash_rows(source: &dyn VectorSource, progress: &dyn Progress) -> Result<Hash, Error> {
    let mut hasher = Hasher::new();
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
