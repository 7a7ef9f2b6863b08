//! The rows of a segment, found by node and by id.

use stratann_layout::columns::rows::{ENTRY, ID_ENTRY, RowEntry, RowsFile};
use stratann_layout::{FileEntry, PAYLOAD};
use stratann_tier::Volume;

use super::bytes::{StreamFile, Window};
use crate::Error;

const AHEAD: u64 = 256 << 10;
const ENTRIES: u64 = (PAYLOAD / ENTRY) as u64;
const IDS: u64 = (PAYLOAD / ID_ENTRY) as u64;
/// A look-up first guesses by interpolation, this many times. Then every second guess is the middle
/// of the remaining range.
const BY_ENDS: u32 = 4;

/// Receives a row, and returns whether to continue.
pub(crate) type EachRow<'a> = dyn FnMut(&RowEntry, &[u8]) -> Result<bool, Error> + 'a;

#[derive(Debug)]
pub(crate) struct RowsReader {
    bytes: StreamFile,
    rows: RowsFile,
    /// The first and the last node. Without rows, these values have no meaning.
    nodes: (u32, u32),
    ids: (u64, u64),
}

/// The bytes that were last read from each part of a file, cached for reads nearby.
#[derive(Debug, Default)]
pub(crate) struct RowWindows {
    entries: Window,
    ids: Window,
    rows: Window,
}

impl RowsReader {
    pub(crate) fn open(volume: &dyn Volume, entry: &FileEntry) -> Result<Self, Error> {
        let (bytes, rows) = StreamFile::open(volume, entry, RowsFile::open)?;
        let mut reader = Self {
            bytes,
            rows,
            nodes: (0, 0),
            ids: (0, 0),
        };
        if let Some(last) = rows.rows().checked_sub(1) {
            let mut windows = RowWindows::default();
            let nodes = (
                reader.entry(0, &mut windows)?.node,
                reader.entry(last, &mut windows)?.node,
            );
            let ids = (
                reader.id(0, &mut windows)?.0,
                reader.id(last, &mut windows)?.0,
            );
            (reader.nodes, reader.ids) = (nodes, ids);
        }
        Ok(reader)
    }

    pub(crate) fn file(&self) -> &str {
        &self.bytes.file
    }

    pub(crate) fn rows(&self) -> u64 {
        self.rows.rows()
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.rows.bytes()
    }

    pub(crate) fn entry(&self, at: u64, windows: &mut RowWindows) -> Result<RowEntry, Error> {
        self.entry_ahead(at, windows, 0)
    }

    fn entry_ahead(
        &self,
        at: u64,
        windows: &mut RowWindows,
        ahead: u64,
    ) -> Result<RowEntry, Error> {
        let from = self.rows.entry_at(at);
        let to = from
            .saturating_add(ahead)
            .min(self.rows.entry_at(self.rows()));
        let part = from..from + ENTRY as u64;
        let bytes = self.bytes.read_in(&mut windows.entries, part, to)?;
        Ok(self.rows.entry(bytes, at, self.file())?)
    }

    pub(crate) fn id(&self, n: u64, windows: &mut RowWindows) -> Result<(u64, u32), Error> {
        let from = self.rows.id_at(n);
        let part = from..from + ID_ENTRY as u64;
        let bytes = self.bytes.read_in(&mut windows.ids, part, 0)?;
        Ok(self.rows.id(bytes, n, self.file())?)
    }

    pub(crate) fn row<'w>(
        &self,
        entry: &RowEntry,
        windows: &'w mut RowWindows,
    ) -> Result<&'w [u8], Error> {
        self.bytes.read_in(&mut windows.rows, entry.bytes(), 0)
    }

    pub(crate) fn find_node(
        &self,
        node: u32,
        windows: &mut RowWindows,
    ) -> Result<Option<RowEntry>, Error> {
        let ends = (self.nodes.0.into(), self.nodes.1.into());
        let found = self.search(node.into(), ends, ENTRIES, &mut |at| {
            Ok(self.entry(at, windows)?.node.into())
        })?;
        match found {
            Ok(at) => self.entry(at, windows).map(Some),
            Err(_) => Ok(None),
        }
    }

    pub(crate) fn find_id(
        &self,
        id: u64,
        windows: &mut RowWindows,
    ) -> Result<Option<RowEntry>, Error> {
        let found = self.search(id, self.ids, IDS, &mut |n| Ok(self.id(n, windows)?.0))?;
        let Ok(n) = found else {
            return Ok(None);
        };
        let (_, entry) = self.id(n, windows)?;
        let entry = self.entry(entry.into(), windows)?;
        match entry.id == id {
            true => Ok(Some(entry)),
            false => Err(self.damaged(format!(
                "external id {id} leads to a row of id {}",
                entry.id
            ))),
        }
    }

    /// The position of a key, or the position at which the key would be inserted. A block is
    /// guessed by interpolation between the keys at both ends.
    fn search(
        &self,
        key: u64,
        (least, most): (u64, u64),
        block: u64,
        key_at: &mut dyn FnMut(u64) -> Result<u64, Error>,
    ) -> Result<Result<u64, u64>, Error> {
        let rows = self.rows();
        if rows == 0 || key < least {
            return Ok(Err(0));
        }
        if key > most {
            return Ok(Err(rows));
        }
        let (mut low, mut high) = (0, rows);
        let (mut least, mut most) = (least, most);
        let mut guesses = 0;
        while high - low > block {
            guesses += 1;
            let middle = match guesses <= BY_ENDS || guesses % 2 == 0 {
                true => low + between(key, least, most, high - low),
                false => low + (high - low) / 2,
            };
            // One read returns the first and the last position in the block of the guess.
            let first = (middle / block * block).max(low);
            let last = (middle / block * block + block).min(high) - 1;
            let (first_key, last_key) = (key_at(first)?, key_at(last)?);
            if key < first_key {
                (high, most) = (first, first_key);
            } else if key > last_key {
                (low, least) = (last + 1, last_key);
            } else {
                (low, high) = (first, last + 1);
            }
            if low == high {
                return Ok(Err(low));
            }
        }
        while low < high {
            let middle = low + (high - low) / 2;
            match key_at(middle)?.cmp(&key) {
                std::cmp::Ordering::Equal => return Ok(Ok(middle)),
                std::cmp::Ordering::Less => low = middle + 1,
                std::cmp::Ordering::Greater => high = middle,
            }
        }
        Ok(Err(low))
    }

    /// Calls `each` with the rows from entry `first` on, until `each` returns false.
    pub(crate) fn each(&self, first: u64, each: &mut EachRow<'_>) -> Result<(), Error> {
        let mut windows = RowWindows::default();
        let mut last = None;
        for at in first..self.rows() {
            let entry = self.entry_ahead(at, &mut windows, AHEAD)?;
            if last.is_some_and(|last| last >= entry.node) {
                return Err(self.damaged(format!(
                    "the node of entry {at} is not above the node of the entry before"
                )));
            }
            last = Some(entry.node);
            let to = entry.offset.saturating_add(AHEAD).min(self.bytes());
            let row = self.bytes.read_in(&mut windows.rows, entry.bytes(), to)?;
            if !each(&entry, row)? {
                return Ok(());
            }
        }
        Ok(())
    }

    fn damaged(&self, what: String) -> Error {
        let file = self.file().to_owned();
        Error::Damaged { file, what }
    }
}

/// The position of `key` among `count` evenly spaced keys.
fn between(key: u64, least: u64, most: u64, count: u64) -> u64 {
    let span = u128::from(most.saturating_sub(least)) + 1;
    let at = u128::from(key.saturating_sub(least)) * u128::from(count) / span;
    u64::try_from(at).unwrap_or(u64::MAX).min(count - 1)
}
