//! The origin of a build: one hash of the rows, the options and the program.

use std::collections::HashMap;

use blake3::{Hash, Hasher};

use crate::BuildOptions;
use crate::Error;
use crate::data::VectorSource;
use crate::progress::{Progress, Stage};

/// This number is raised if a change of the program gives other nodes, lists or codes for the same
/// rows and options, or other bytes of savepoints.
const BUILD_VERSION: u32 = 2;

const PROGRAM: &str = "the version of the program";
const VECTORS: &str = "the vectors";

const READ: usize = 1 << 20;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Origin {
    /// The hash of the description.
    pub(super) hash: Hash,
    /// The description: lines of name, tab and value.
    pub(super) told: String,
}

impl Origin {
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

    /// The names whose values differ from the description `before`, with both values if the values
    /// help a user.
    pub(super) fn differences(&self, before: &str) -> Vec<String> {
        let was: HashMap<&str, &str> = lines(before).collect();
        let differs = |(name, is): (&str, &str)| {
            let was = was.get(name).filter(|was| **was != is)?;
            Some(match name {
                PROGRAM | VECTORS => name.to_owned(),
                // A list of many values, or a hash, would not help a user.
                "preset" | "codebook" | "ids" => format!("the {name}"),
                _ => format!("{name} ({is}, it was {was})"),
            })
        };
        lines(&self.told).filter_map(differs).collect()
    }
}

fn lines(told: &str) -> impl Iterator<Item = (&str, &str)> {
    told.lines().filter_map(|line| line.split_once('\t'))
}

/// The hash does not depend on the kind of the source.
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
