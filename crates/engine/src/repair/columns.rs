//! Reads the newest row of each id, from the logs or from the segments.
//!
//! The index part (the file `columns`) can be made again from rows, except for columns without a
//! value. If the header of a file of rows is damaged, the number of rows is taken from the index
//! part.

use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt;

use stratann_layout::attributes::ColumnType;
use stratann_layout::columns::rows::{ENTRY, RowEntry, RowsFile};
use stratann_layout::stream::{aligned, blocks_of};
use stratann_layout::{BLOCK, FileEntry, FileKind, Manifest, PAYLOAD, block};
use stratann_tier::Volume;

use super::Lost;
use super::files::{self, Header};
use crate::build::CarriedRows;
use crate::filter::Schema;
use crate::progress::Progress;
use crate::stores::columns::{PartReader, decoded};
use crate::{Error, stored};

const ENTRIES: u64 = (PAYLOAD / ENTRY) as u64;

#[derive(Clone, Copy, Debug)]
struct Place {
    segment: usize,
    offset: u64,
    length: u32,
}

#[derive(Debug)]
struct Segment {
    name: String,
}

pub(super) struct Salvaged<'a> {
    volume: &'a dyn Volume,
    segments: Vec<Segment>,
    places: HashMap<u64, Place>,
    logged: HashMap<u64, Vec<u8>>,
    schema: Schema,
    ids: Vec<u64>,
    pub(super) lost: Vec<Lost>,
}

impl fmt::Debug for Salvaged<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rows of {} ids", self.places.len() + self.logged.len())
    }
}

impl<'a> Salvaged<'a> {
    /// `None` if the index has no columns. `logged` has the last row of each id in the logs.
    pub(super) fn read(
        volume: &'a dyn Volume,
        manifest: &Manifest,
        logged: HashMap<u64, Vec<u8>>,
        progress: &dyn Progress,
    ) -> Result<Option<Self>, Error> {
        let numbers = manifest.column_segments();
        if numbers.is_empty() && logged.values().all(Vec::is_empty) {
            return Ok(None);
        }
        let mut found = Self {
            volume,
            segments: Vec::new(),
            places: HashMap::new(),
            logged,
            schema: Schema::default(),
            ids: Vec::new(),
            lost: Vec::new(),
        };
        // Rows of later segments take precedence.
        for number in numbers {
            let rows = stored::entry(volume, manifest, FileKind::Rows, Some(number))?;
            let part = stored::entry(volume, manifest, FileKind::Columns, Some(number))?;
            found.segment(rows, part, progress)?;
        }
        Ok(Some(found))
    }

    pub(super) fn of_ids(&mut self, ids: &[u64]) {
        self.ids = ids.to_vec();
    }

    fn segment(
        &mut self,
        entry: &FileEntry,
        part: &FileEntry,
        progress: &dyn Progress,
    ) -> Result<(), Error> {
        let volume = self.volume;
        let part_file = stored::name_of(volume, &part.name);
        let part = match PartReader::open(volume, part) {
            Ok(part) => Some(part),
            Err(error) if files::is_damage(&error) => None,
            Err(error) => return Err(error),
        };
        for column in part.iter().flat_map(PartReader::columns) {
            if let Some(kind) = ColumnType::from_code(column.kind) {
                // If two segments have different types for a column, the rows of the later segment
                // decide.
                let _ = self.schema.declare(&column.name, kind);
            }
        }
        let file = stored::name_of(volume, &entry.name);
        let lose = |what: String| Lost {
            file: file.clone(),
            what,
            vectors: 0,
        };
        if part.is_none() {
            self.lost.push(Lost {
                file: part_file,
                what: "damaged; columns without any value are lost, and a filter that names such a column fails".to_owned(),
                vectors: 0,
            });
        }
        let mut first = vec![0; BLOCK];
        let shape = match files::header(volume, entry, FileKind::Rows)? {
            Header::None(what) => {
                self.lost.push(lose(format!("{what}; its rows are lost")));
                return Ok(());
            }
            Header::Right(_) if files::read(volume, &entry.name, 0, &mut first)? => {
                RowsFile::open(&first, &file).ok().map(|(shape, _)| shape)
            }
            _ => part.and_then(|part| shape_of(entry, part.nodes().len())),
        };
        let Some(shape) = shape else {
            let what = "its header and its index part are damaged; its rows are lost";
            self.lost.push(lose(what.to_owned()));
            return Ok(());
        };
        let segment = self.segments.len();
        self.segments.push(Segment {
            name: entry.name.clone(),
        });
        let whole = self.whole_blocks(entry, blocks_of(0..shape.bytes()), progress)?;
        let (mut gone, mut unknown) = (0u64, 0u64);
        let mut bytes = vec![0; BLOCK];
        let end = shape.entry_at(shape.rows());
        for number in blocks_of(shape.entry_at(0)..end) {
            let before = (number - 1) * PAYLOAD as u64 - shape.entry_at(0);
            let at = before / ENTRY as u64;
            let count = (shape.rows() - at).min(ENTRIES);
            if !block_at(volume, &entry.name, number, &mut bytes)? {
                unknown += count;
                continue;
            }
            let entries = bytes[BLOCK - PAYLOAD..].chunks_exact(ENTRY);
            for (at, bytes) in (at..at + count).zip(entries) {
                let Ok(RowEntry {
                    id, offset, length, ..
                }) = shape.entry(bytes, at, &file)
                else {
                    unknown += 1;
                    continue;
                };
                let row = offset..offset + u64::from(length);
                if blocks_of(row).all(|block| whole.get(block as usize - 1) == Some(&true)) {
                    let place = Place {
                        segment,
                        offset,
                        length,
                    };
                    self.places.insert(id, place);
                } else {
                    // The newest row of this id is lost. A row in an older segment is outdated.
                    self.places.remove(&id);
                    gone += u64::from(!self.logged.contains_key(&id));
                }
            }
        }
        if gone > 0 {
            let what = format!(
                "damaged blocks; {gone} rows of attributes are lost, and the vectors of these rows have no attributes now"
            );
            self.lost.push(lose(what));
        }
        if unknown > 0 {
            let what = format!(
                "damaged entries; {unknown} rows of attributes with unknown ids are lost, and the vectors of these rows have no attributes now, or earlier attributes"
            );
            self.lost.push(lose(what));
        }
        Ok(())
    }

    /// Whether each of the blocks is undamaged. Block 0 is the header, so the payload begins with
    /// block 1.
    fn whole_blocks(
        &self,
        entry: &FileEntry,
        blocks: std::ops::Range<u64>,
        progress: &dyn Progress,
    ) -> Result<Vec<bool>, Error> {
        let mut bytes = vec![0; BLOCK];
        blocks
            .map(|number| {
                if number % 256 == 0 && progress.interrupted() {
                    return Err(Error::Interrupted);
                }
                block_at(self.volume, &entry.name, number, &mut bytes)
            })
            .collect()
    }

    fn stored(&self, place: Place) -> Result<Vec<u8>, Error> {
        let name = &self.segments[place.segment].name;
        let part = place.offset..place.offset + u64::from(place.length);
        let (mut row, mut bytes) = (Vec::with_capacity(place.length as usize), vec![0; BLOCK]);
        for number in blocks_of(part.clone()) {
            if !block_at(self.volume, name, number, &mut bytes)? {
                return Ok(Vec::new());
            }
            let begin = (number - 1) * PAYLOAD as u64;
            let from = part.start.saturating_sub(begin) as usize;
            let to = (part.end - begin).min(PAYLOAD as u64) as usize;
            row.extend_from_slice(&bytes[BLOCK - PAYLOAD..][from..to]);
        }
        Ok(row)
    }
}

fn block_at(volume: &dyn Volume, name: &str, number: u64, out: &mut [u8]) -> Result<bool, Error> {
    let read = files::read(volume, name, number * BLOCK as u64, out)?;
    Ok(read && block::check(out, number, name).is_ok())
}

/// The shape of a file of rows whose header is damaged. It follows from the number of rows and from
/// the length of the file in the manifest.
fn shape_of(entry: &FileEntry, rows: u64) -> Option<RowsFile> {
    let none = RowsFile::new(rows, 0).ok()?;
    let blocks = (entry.length / BLOCK as u64).checked_sub(1)?;
    let behind = aligned(none.payload_bytes()) / PAYLOAD as u64;
    RowsFile::new(rows, blocks.checked_sub(behind)? * PAYLOAD as u64).ok()
}

impl CarriedRows for Salvaged<'_> {
    fn schema(&self) -> Schema {
        self.schema.clone()
    }

    fn bytes(&self, row: usize) -> Result<Cow<'_, [u8]>, Error> {
        let Some(id) = self.ids.get(row) else {
            return Ok(Cow::default());
        };
        let found: Cow<'_, [u8]> = match (self.logged.get(id), self.places.get(id)) {
            (Some(row), _) => row.into(),
            (None, Some(&place)) => self.stored(place)?.into(),
            (None, None) => Cow::default(),
        };
        // A row that cannot be decoded is useless.
        match decoded(&found) {
            Ok(_) => Ok(found),
            Err(_) => Ok(Cow::default()),
        }
    }
}
