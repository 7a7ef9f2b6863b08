//! Writes a segment: first its rows, in node order, and then the index part made from them.
//!
//! ```text
//!   push ──> rows, as they come     finish ──> entries by node, ids by id     ┐ sorted in a
//!       └──> entries, ids                 └──> columns by name, key and node  ┴ budget (`sorter`)
//! ```
//!
//! In memory, only the sets of nodes of the current column grow with the rows: by one bit to two
//! bytes for each row.

use std::collections::BTreeMap;

use roaring::RoaringBitmap;
use stratann_layout::attributes::{ColumnType, MOST_COLUMNS};
use stratann_layout::columns::part::PartFile;
use stratann_layout::columns::part::{Span, encode_directory};
use stratann_layout::columns::rows::{RowEntry, RowsFile};
use stratann_layout::stream::GrowingStream;
use stratann_layout::{FileEntry, FileKind, ids};
use stratann_tier::Volume;

use super::part_writer::{PartWriter, Records};
use super::rows::RowsReader;
use super::{Segment, decoded};
use crate::Error;
use crate::durable::Checkpoint;
use crate::filter::Schema;
use crate::sorter::Sorter;
use crate::stores::writing::files::Sequential;

/// The temporary files of the sorters. Real segments have lower numbers.
const ENTRIES: (FileKind, u32) = (FileKind::Columns, u32::MAX);
const IDS: (FileKind, u32) = (FileKind::Columns, u32::MAX - 1);
const COLUMNS: (FileKind, u32) = (FileKind::Columns, u32::MAX - 2);

pub(super) struct Stream {
    file: Sequential,
    stream: GrowingStream,
}

impl Stream {
    pub(super) fn create(
        checkpoint: &Checkpoint<'_>,
        kind: FileKind,
        n: u32,
    ) -> Result<Self, Error> {
        Ok(Self {
            file: Sequential::create_headless(checkpoint, kind, Some(n))?,
            stream: GrowingStream::new(),
        })
    }

    pub(super) fn push(&mut self, bytes: &[u8]) -> Result<(), Error> {
        let Self { file, stream } = self;
        Ok(stream.push(bytes, &mut |blocks| file.write(blocks))?)
    }

    pub(super) fn part(&mut self, bytes: &[u8]) -> Result<Span, Error> {
        let length = u32::try_from(bytes.len()).map_err(|_| {
            Error::call(
                "a part of a column",
                format!("{} bytes", bytes.len()),
                "all values of a column together take fewer than 4 GiB",
                "Give shorter values, or divide them among several columns",
            )
        })?;
        let offset = self.stream.pushed();
        self.push(bytes)?;
        Ok(Span { offset, length })
    }

    pub(super) fn set(&mut self, set: &mut RoaringBitmap) -> Result<Span, Error> {
        set.optimize();
        let mut bytes = Vec::with_capacity(set.serialized_size());
        let _ = set.serialize_into(&mut bytes);
        self.part(&bytes)
    }

    fn align(&mut self) -> Result<(), Error> {
        let Self { file, stream } = self;
        Ok(stream.align(&mut |blocks| file.write(blocks))?)
    }

    fn finish(self, kind: FileKind, fields: &[u8]) -> Result<FileEntry, Error> {
        let Self { mut file, stream } = self;
        let header = stream.finish(kind, fields, &mut |blocks| file.write(blocks))?;
        Ok(file.finish_headless(&header)?)
    }
}

pub(crate) struct SegmentWriter<'a> {
    volume: &'a dyn Volume,
    checkpoint: &'a Checkpoint<'a>,
    number: u32,
    memory: u64,
    stream: Stream,
    /// The entry of each row, sorted by node.
    entries: Sorter<'a>,
    /// The number of the entry of each row, sorted by id.
    ids: Sorter<'a>,
    rows: u32,
    columns: BTreeMap<String, ColumnType>,
}

impl<'a> SegmentWriter<'a> {
    /// Sorting takes about `memory` bytes. The segment has all columns of `schema`, even those
    /// without a value.
    pub(crate) fn create(
        volume: &'a dyn Volume,
        checkpoint: &'a Checkpoint<'a>,
        number: u32,
        schema: &Schema,
        memory: u64,
    ) -> Result<Self, Error> {
        let columns = schema.iter().map(|(name, kind)| (name.to_owned(), kind));
        Ok(Self {
            volume,
            checkpoint,
            number,
            memory,
            stream: Stream::create(checkpoint, FileKind::Rows, number)?,
            entries: Sorter::new(volume, checkpoint, ENTRIES, memory / 2),
            ids: Sorter::new(volume, checkpoint, IDS, memory / 2),
            rows: 0,
            columns: columns.collect(),
        })
    }

    /// Nodes must ascend. Only the newest row of each id may be added. A row without values is
    /// empty.
    pub(crate) fn push(&mut self, node: u32, id: u64, row: &[u8]) -> Result<(), Error> {
        for (name, value) in decoded(row)?.attributes {
            let kind = value.column_type();
            if *self.columns.entry(name).or_insert(kind) != kind {
                let what = format!("a row of id {id} has a value of another type than its column");
                let file = self.volume.name();
                return Err(Error::Damaged { file, what });
            }
        }
        let entry = RowEntry {
            id,
            node,
            offset: self.stream.stream.pushed(),
            length: row.len() as u32,
        };
        self.entries.push(&[&node.to_be_bytes(), &entry.encode()])?;
        self.ids
            .push(&[&id.to_be_bytes(), &self.rows.to_be_bytes()])?;
        self.rows = self.rows.checked_add(1).ok_or_else(|| {
            let reason = "an index has fewer rows";
            let remedy = "Divide the rows among several indexes";
            Error::call("number of rows", "2^32", reason, remedy)
        })?;
        self.stream.push(row)
    }

    /// Both files are opened here, because opening must not fail after the checkpoint is committed.
    pub(crate) fn finish(self) -> Result<(Segment, [FileEntry; 2]), Error> {
        let Self {
            volume,
            checkpoint,
            number,
            memory,
            mut stream,
            entries,
            ids,
            rows,
            columns,
        } = self;
        if columns.len() > MOST_COLUMNS {
            let reason = format!("an index has at most {MOST_COLUMNS}");
            let remedy = "Put more values into the payload";
            return Err(Error::call(
                "number of columns",
                columns.len(),
                reason,
                remedy,
            ));
        }
        let file = RowsFile::new(rows.into(), stream.stream.pushed())?;
        stream.align()?;
        let node = size_of::<u32>();
        entries
            .sorted()?
            .each(&mut |entry| stream.push(&entry[node..]))?;
        stream.align()?;
        let mut last = None;
        ids.sorted()?.each(&mut |record| {
            let (mut id, mut entry) = ([0; 8], [0; 4]);
            id.copy_from_slice(&record[..8]);
            entry.copy_from_slice(&record[8..]);
            let id = u64::from_be_bytes(id);
            if last.replace(id) == Some(id) {
                let what = format!("external id {id} has two rows");
                let file = volume.name();
                return Err(Error::Damaged { file, what });
            }
            stream.push(&ids::entry(id, u32::from_be_bytes(entry)))
        })?;
        let rows_entry = stream.finish(FileKind::Rows, &file.fields())?;
        let rows = RowsReader::open(volume, &rows_entry)?;
        let sorter = Sorter::new(volume, checkpoint, COLUMNS, memory);
        let part_entry = write_part(checkpoint, number, &rows, columns, sorter)?;
        let segment = Segment::opened(number, rows, volume, &part_entry)?;
        Ok((segment, [rows_entry, part_entry]))
    }
}

fn write_part(
    checkpoint: &Checkpoint<'_>,
    number: u32,
    rows: &RowsReader,
    columns: BTreeMap<String, ColumnType>,
    sorter: Sorter<'_>,
) -> Result<FileEntry, Error> {
    let columns: Vec<(String, ColumnType)> = columns.into_iter().collect();
    let mut nodes = RoaringBitmap::new();
    let mut records = Records::new(&columns, sorter);
    rows.each(0, &mut |entry, row| {
        let _ = nodes.try_push(entry.node);
        for (name, value) in decoded(row)?.attributes {
            records.push(&name, &value, entry.node)?;
        }
        Ok(true)
    })?;
    let mut stream = Stream::create(checkpoint, FileKind::Columns, number)?;
    let directory = PartWriter::write(&columns, records, &mut stream)?;
    let nodes = stream.set(&mut nodes)?;
    let directory = stream.part(&encode_directory(&directory))?;
    let file = PartFile {
        nodes,
        directory,
        payload: stream.stream.pushed(),
    };
    stream.finish(FileKind::Columns, &file.fields())
}
