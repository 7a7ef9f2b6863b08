//! What a build follows from: its rows, its options and the program, as one hash.

use std::collections::HashMap;

use blake3::{Hash, Hasher};

use crate::Error;
use crate::build::BuildOptions;
use crate::data::VectorSource;
use crate::progress::{Progress, Stage};

/// The version of the build: raised with every change after which the same rows and options give other nodes, lists or codes, or are
/// kept otherwise. The version of the program counts as well.
const BUILD_VERSION: u32 = 2;

/// What is told of the program and of the rows.
const PROGRAM: &str = "the version of the program";
const VECTORS: &str = "the vectors";

/// Bytes of rows that are read at a time.
const READ: usize = 1 << 20;

/// What a build follows from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Origin {
    /// Of all of it: what savepoints are bound to.
    pub(super) hash: Hash,
    /// What it is, a line each: a name, a tab and a value. For those who are to be told what differs.
    pub(super) told: String,
}

impl Origin {
    /// The origin of a build.
    ///
    /// # Errors
    /// Rows that cannot be read, an interruption.
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
        // Whatever a value is, it is one line.
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

    /// What of it is otherwise than `before` was told: empty where nothing was told that can be compared.
    pub(super) fn differences(&self, before: &str) -> Vec<String> {
        let was: HashMap<&str, &str> = lines(before).collect();
        let differs = |(name, is): (&str, &str)| {
            let was = was.get(name).filter(|was| **was != is)?;
            Some(match name {
                PROGRAM | VECTORS => name.to_owned(),
                // A row of many values, and hashes, say nothing to anybody.
                "preset" | "codebook" | "ids" => format!("the {name}"),
                _ => format!("{name} ({is}, it was {was})"),
            })
        };
        lines(&self.told).filter_map(differs).collect()
    }
}

/// Names and values.
fn lines(told: &str) -> impl Iterator<Item = (&str, &str)> {
    told.lines().filter_map(|line| line.split_once('\t'))
}

/// What the rows are, whatever holds them.
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
