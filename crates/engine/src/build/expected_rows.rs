//! Estimates the storage and memory of attributes before a build, from an even sample of the rows.
//!
//! If the sample has all rows, the sizes are almost exact. Otherwise the sizes are extrapolated
//! from the growth between half of the sample and the whole sample.

use stratann_layout::FileEntry;
use stratann_tier::{Directory, TierError};

use super::rows::Rows;
use crate::Error;
use crate::durable::Checkpoint;
use crate::plan::segment_memory;
use crate::stores::columns::SegmentWriter;

/// The most and the fewest rows of a sample, and its approximate bytes.
const MOST_ROWS: usize = 1 << 16;
const LEAST_ROWS: usize = 1 << 6;
const BYTES: usize = 16 << 20;

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ExpectedRows {
    pub(super) storage: u64,
    /// The bytes of tables in memory while the index is open.
    pub(super) search: u64,
    pub(super) build: u64,
}

impl ExpectedRows {
    /// The largest size of the temporary files of the sort.
    pub(super) fn scratch(&self, memory: Option<u64>) -> u64 {
        match self.storage > segment_memory(memory) {
            // During the sort, the record of a numeric value has 22 bytes; in the file, 12 bytes.
            true => 2 * self.storage,
            false => 0,
        }
    }
}

fn even(rows: usize, count: usize) -> impl Iterator<Item = usize> {
    // The result is less than `rows`, because `n` is less than `count`.
    (0..count).map(move |n| (n as u128 * rows as u128 / count as u128) as usize)
}

impl Rows<'_> {
    pub(super) fn expected(&self, vectors: usize) -> Result<ExpectedRows, Error> {
        let few = vectors.min(LEAST_ROWS);
        let mut bytes = 0;
        for row in even(vectors, few) {
            bytes += self.bytes(row)?.len();
        }
        let each = bytes.div_ceil(few).max(1);
        let sample = (BYTES / each).clamp(LEAST_ROWS, MOST_ROWS);
        self.expected_of(vectors, sample.min(vectors))
    }

    fn expected_of(&self, vectors: usize, sample: usize) -> Result<ExpectedRows, Error> {
        let (storage, search) = self.written(vectors, sample)?;
        let mut expected = ExpectedRows {
            storage,
            search,
            ..ExpectedRows::default()
        };
        if sample < vectors {
            let half = self.written(vectors, sample / 2)?;
            // Bytes that do not depend on the number of rows, such as names of columns, cancel out
            // here.
            let times = (vectors - sample) as f64 / (sample - sample / 2) as f64;
            let more = |all: u64, half: u64| (all.saturating_sub(half) as f64 * times) as u64;
            expected.storage += more(storage, half.0);
            expected.search += more(search, half.1);
        }
        // Up to its memory limit, the sort needs about as many bytes of memory as it sorts.
        expected.build = expected.storage.min(segment_memory(None));
        Ok(expected)
    }

    /// The bytes that a sample of the rows takes on storage and in memory.
    fn written(&self, vectors: usize, sample: usize) -> Result<(u64, u64), Error> {
        let failed = |source| {
            let place = std::env::temp_dir().display().to_string();
            TierError::io("create a folder in", place, 0, 0, source)
        };
        let folder = tempfile::tempdir().map_err(failed)?;
        let directory = Directory::create(folder.path())?;
        let checkpoint = Checkpoint::begin(&directory, false)?;
        let memory = segment_memory(None);
        let schema = self.schema();
        let mut writer = SegmentWriter::create(&directory, &checkpoint, 0, &schema, memory)?;
        for (node, row) in (0..).zip(even(vectors, sample)) {
            writer.push(node, row as u64, &self.bytes(row)?)?;
        }
        let (segment, files) = writer.finish()?;
        let storage = files.iter().map(|FileEntry { length, .. }| length).sum();
        Ok((storage, segment.part.memory_bytes()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Row, RowTable, Silent, Value};

    fn rows(count: usize) -> RowTable {
        let row = |at: usize| Row {
            attributes: [
                ("number".to_owned(), Value::Integer((at * 7_919) as i64)),
                ("colour".to_owned(), Value::String(format!("c{}", at % 9))),
                ("name".to_owned(), Value::String(format!("name {at}"))),
            ]
            .into(),
            payload: at
                .is_multiple_of(3)
                .then(|| format!("\"{}\"", "x".repeat(at % 90))),
        };
        RowTable::new((0..count).map(row).collect())
    }

    #[test]
    fn a_sample_tells_what_all_rows_take_within_a_twentieth() {
        let count = 20_000;
        let table = rows(count);
        let given = Rows::of(&table, count, &Silent).unwrap();
        let (storage, search) = given.written(count, count).unwrap();
        let all = given.expected(count).unwrap();
        assert_eq!((all.storage, all.search), (storage, search));
        let some = given.expected_of(count, 2_000).unwrap();
        let share = some.storage as f64 / storage as f64;
        assert!((0.95..1.05).contains(&share), "{share}");
        let share = some.search as f64 / search as f64;
        assert!((0.8..1.5).contains(&share), "{share}");
    }
}
