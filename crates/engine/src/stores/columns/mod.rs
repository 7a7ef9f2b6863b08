//! The columns of an index: the attributes of its vectors, stored by node.
//!
//! ```text
//!   segments    of the build, or the last merge; then of later checkpoints      storage
//!   new rows    of direct inserts and replaced rows since the last checkpoint   memory and log
//!
//!   node ──> newest row that counts:   new rows ─> last segment ─> .. ─> first segment
//!   id ────> node, in the same order:  only nodes that have a row here
//! ```
//!
//! A segment is two files that never change ([`stratann_layout::columns`]). The first file has
//! rows, which are found by node and by id. The second file is an index part. It maps values to
//! nodes, and is made from the rows. Each checkpoint with new rows writes a segment. Earlier
//! segments that are small beside the new segment are merged into it. So the number of segments is
//! logarithmic in the number of rows. A merge of the index writes a single segment.
//!
//! For each segment, its directory, the first keys of its groups of keys, and the set of its nodes
//! are in memory ([`Columns::memory_bytes`]). The matches of recent filters are cached
//! ([`remembered`]).
//!
//! Rows of vectors that are only in memory are kept beside these vectors
//! ([`FreshGraph`](crate::update::FreshGraph)).

mod bytes;
mod check;
pub(crate) mod keys;
mod new;
mod part;
mod part_writer;
mod remembered;
mod rows;
#[cfg(test)]
mod tests;
mod view;
mod write;

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use parking_lot::RwLock;
use stratann_layout::attributes::{ColumnType, Row};
use stratann_layout::{FileEntry, FileKind, Manifest};
use stratann_tier::Volume;

pub(crate) use self::bytes::Looked;
pub(crate) use self::check::check;
use self::new::NewRows;
pub(crate) use self::part::PartReader;
use self::remembered::Remembered;
pub(crate) use self::rows::{RowWindows, RowsReader};
pub(crate) use self::view::View;
pub(crate) use self::write::SegmentWriter;
use crate::durable::Checkpoint;
use crate::filter::{Checked, NodeSet, Schema};
use crate::{Error, stored};

/// The bytes of an encoded row, shared by all references. They are empty if the row has no
/// attributes.
pub(crate) type RowBytes = Arc<[u8]>;

/// The approximate bytes of memory of a waiting row, without the bytes of the row: its entries in
/// two tables, and the overhead of the allocator.
pub(crate) const BESIDE_ROW: u64 = 100;

/// The bytes of memory that count for a waiting row.
pub(crate) fn row_charge(row: &[u8]) -> u64 {
    row.len() as u64 + BESIDE_ROW
}

/// Decodes a row. An empty byte string is an empty row.
///
/// # Errors
/// The bytes are not a row.
pub(crate) fn decoded(bytes: &[u8]) -> Result<Row, Error> {
    match bytes.is_empty() {
        true => Ok(Row::default()),
        false => Ok(Row::decode(bytes, "row", 0)?),
    }
}

/// Encodes a row. An empty row becomes an empty byte string.
///
/// # Errors
/// The row exceeds a limit of its size.
pub(crate) fn encoded(row: &Row) -> Result<Vec<u8>, Error> {
    let mut bytes = Vec::new();
    if !row.attributes.is_empty() || row.payload.is_some() {
        row.encode(&mut bytes)?;
    }
    Ok(bytes)
}

/// An open segment.
#[derive(Debug)]
pub(crate) struct Segment {
    number: u32,
    pub(crate) rows: RowsReader,
    pub(crate) part: PartReader,
}

impl Segment {
    /// Opens a segment that a manifest names.
    fn open(volume: &dyn Volume, manifest: &Manifest, number: u32) -> Result<Self, Error> {
        let entry = |kind| stored::entry(volume, manifest, kind, Some(number));
        let rows = RowsReader::open(volume, entry(FileKind::Rows)?)?;
        Self::opened(number, rows, volume, entry(FileKind::Columns)?)
    }

    fn opened(
        number: u32,
        rows: RowsReader,
        volume: &dyn Volume,
        part: &FileEntry,
    ) -> Result<Self, Error> {
        let part = PartReader::open(volume, part)?;
        let (found, expected) = (part.nodes().len(), rows.rows());
        if found != expected {
            return Err(Error::Damaged {
                file: part.file().to_owned(),
                what: format!("it has {found} nodes; there are {expected} rows"),
            });
        }
        Ok(Self { number, rows, part })
    }
}

/// A row with its node and id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Found {
    pub(crate) node: u32,
    pub(crate) id: u64,
    pub(crate) row: RowBytes,
}

/// The columns of an open index. Any number of threads may share them.
#[derive(Debug, Default)]
pub(crate) struct Columns {
    held: RwLock<Held>,
    remembered: Arc<Remembered>,
}

#[derive(Debug, Default)]
struct Held {
    /// The segments, oldest first.
    segments: Arc<Vec<Arc<Segment>>>,
    schema: Schema,
    /// The columns that only rows of unfinished calls have, with the number of calls that declared
    /// each column. These rows are not in the log yet.
    on_their_way: HashMap<String, usize>,
    /// The new rows, shared with views. If a view has them, a thread that adds a row copies them
    /// first.
    new: Arc<NewRows>,
}

/// The columns that were declared for rows that are about to be logged. If this value is dropped
/// and not [kept](Self::keep), the columns that no other row has are removed again.
#[derive(Debug)]
#[must_use = "columns that are dropped were not taken on"]
pub(crate) struct Declared<'a> {
    columns: &'a Columns,
    names: BTreeSet<String>,
}

impl Declared<'_> {
    /// Keeps the columns, because the rows are logged.
    pub(crate) fn keep(mut self) {
        let names = std::mem::take(&mut self.names);
        if !names.is_empty() {
            let mut held = self.columns.held.write();
            held.on_their_way.retain(|name, _| !names.contains(name));
        }
    }
}

impl Drop for Declared<'_> {
    fn drop(&mut self) {
        if self.names.is_empty() {
            return;
        }
        let mut held = self.columns.held.write();
        let Held {
            schema,
            on_their_way,
            ..
        } = &mut *held;
        for name in &self.names {
            if let Some(calls) = on_their_way.get_mut(name) {
                *calls -= 1;
                if *calls == 0 {
                    on_their_way.remove(name);
                    schema.forget(name);
                }
            }
        }
    }
}

impl Columns {
    /// Opens the columns that a manifest names, if there are any. `memory` is the index's memory
    /// budget.
    ///
    /// # Errors
    /// A file is missing, damaged or of another index. Two segments have different types for a
    /// column.
    pub(crate) fn open(
        volume: &dyn Volume,
        manifest: &Manifest,
        memory: Option<u64>,
    ) -> Result<Self, Error> {
        let (mut segments, mut schema) = (Vec::new(), Schema::default());
        for number in manifest.column_segments() {
            let segment = Segment::open(volume, manifest, number)?;
            for column in segment.part.columns() {
                let kind = ColumnType::from_code(column.kind);
                let fits = kind.is_some_and(|kind| schema.declare(&column.name, kind).is_ok());
                if !fits {
                    return Err(Error::Damaged {
                        file: segment.part.file().to_owned(),
                        what: format!(
                            "the type of column {:?} is {}, which does not exist, or differs from other segments",
                            column.name, column.kind
                        ),
                    });
                }
            }
            segments.push(Arc::new(segment));
        }
        Ok(Self {
            held: RwLock::new(Held {
                segments: Arc::new(segments),
                schema,
                on_their_way: HashMap::new(),
                new: Arc::default(),
            }),
            remembered: Arc::new(Remembered::new(memory)),
        })
    }

    /// The columns and their types.
    pub(crate) fn schema(&self) -> Schema {
        self.held.read().schema.clone()
    }

    /// Whether no vector of the index ever had a row.
    pub(crate) fn is_empty(&self) -> bool {
        let held = self.held.read();
        held.segments.is_empty() && held.new.is_empty() && held.schema.is_empty()
    }

    /// Whether rows that no checkpoint has are in memory.
    pub(crate) fn has_new(&self) -> bool {
        !self.held.read().new.is_empty()
    }

    /// The approximate bytes of memory.
    pub(crate) fn memory_bytes(&self) -> u64 {
        let held = self.held.read();
        let segments = held.segments.iter();
        let parts: u64 = segments.map(|segment| segment.part.memory_bytes()).sum();
        let remembered = match held.segments.is_empty() {
            true => 0,
            false => self.remembered.memory_bytes(),
        };
        parts + remembered + held.new.memory_bytes()
    }

    /// The part of [`memory_bytes`](Columns::memory_bytes) for rows that wait for a checkpoint.
    pub(crate) fn new_bytes(&self) -> u64 {
        self.held.read().new.memory_bytes()
    }

    /// Adds the columns of rows that are about to be inserted. In columns of floats, integers
    /// become floats. The columns stay only if the result is [kept](Declared::keep).
    ///
    /// # Errors
    /// A value has another type than its column, or the index would have more columns than allowed.
    /// After an error, no column was added.
    pub(crate) fn declare(&self, rows: &mut [Row]) -> Result<Declared<'_>, Error> {
        let mut declared = Declared {
            columns: self,
            names: BTreeSet::new(),
        };
        let known = {
            let held = self.held.read();
            held.on_their_way.is_empty() && rows.iter_mut().all(|row| held.schema.knows(row))
        };
        if known {
            return Ok(declared);
        }
        let mut held = self.held.write();
        let mut schema = held.schema.clone();
        for row in &mut *rows {
            schema.take(row)?;
        }
        let Held {
            schema: before,
            on_their_way,
            ..
        } = &mut *held;
        for name in rows.iter().flat_map(|row| row.attributes.keys()) {
            let waits = before.get(name).is_none() || on_their_way.contains_key(name);
            if waits && !declared.names.contains(name) {
                *on_their_way.entry(name.clone()).or_default() += 1;
                declared.names.insert(name.clone());
            }
        }
        *before = schema;
        Ok(declared)
    }

    /// Adds all columns of `schema`, the schema of the index that this index replaces.
    ///
    /// # Errors
    /// Fails as [`declare`](Columns::declare) does.
    pub(crate) fn declare_all(&self, schema: &Schema) -> Result<(), Error> {
        let mut held = self.held.write();
        for (name, kind) in schema.iter() {
            held.schema.declare(name, kind)?;
        }
        Ok(())
    }

    /// Does the same as [`declare`](Columns::declare), for a row from the log, which was checked
    /// before it was logged.
    pub(crate) fn declare_logged(&self, row: &[u8]) -> Result<(), Error> {
        self.declare(std::slice::from_mut(&mut decoded(row)?))?
            .keep();
        Ok(())
    }

    /// Sets the row of a node. If the node has a row, the new row replaces it.
    pub(crate) fn put(&self, node: u32, id: u64, row: RowBytes) {
        let mut held = self.held.write();
        Arc::make_mut(&mut held.new).put(node, id, row);
    }

    /// Removes the row of a node whose insert failed. The node must not have got another row since
    /// the insert.
    pub(crate) fn take_back(&self, node: u32) {
        let mut held = self.held.write();
        Arc::make_mut(&mut held.new).take_back(node);
    }

    /// Returns exactly the nodes below `nodes` whose newest row matches a filter.
    ///
    /// # Errors
    /// Fails as [`View::matching`] does.
    pub(crate) fn matching(&self, filter: &Checked, nodes: u32) -> Result<NodeSet, Error> {
        self.view().matching(filter, nodes)
    }

    /// A view of the present rows.
    pub(crate) fn view(&self) -> View {
        let held = self.held.read();
        View::of(
            held.segments.clone(),
            held.new.clone(),
            self.remembered.clone(),
        )
    }

    /// The newest row of a node.
    ///
    /// # Errors
    /// The row cannot be read, or is damaged.
    pub(crate) fn row_of(&self, node: u32, windows: &mut Windows) -> Result<Option<Found>, Error> {
        self.view().row_of(node, windows)
    }

    /// Returns the newest node of an id, or `None` if no node of the id has a row.
    ///
    /// # Errors
    /// Fails as [`row_of`](Columns::row_of) does.
    pub(crate) fn node_of(&self, id: u64, windows: &mut Windows) -> Result<Option<u32>, Error> {
        self.view().node_of(id, windows)
    }

    /// Writes a segment of the rows that are only in memory, and of the rows in `more`, whose nodes
    /// are about to be added. Merges small earlier segments into the new segment. Leaves out rows
    /// for which `is_dead` is true. Returns `None` if there are no rows. Rows that are added during
    /// the call may be included.
    ///
    /// # Errors
    /// The segment cannot be written, or its rows cannot be read.
    pub(crate) fn write_new(
        &self,
        volume: &dyn Volume,
        checkpoint: &Checkpoint<'_>,
        more: Vec<Found>,
        is_dead: &dyn Fn(u64, u32) -> bool,
        memory: u64,
    ) -> Result<Option<Written>, Error> {
        let (segments, schema, mut new) = {
            let held = self.held.read();
            (
                held.segments.clone(),
                held.schema.clone(),
                held.new.newest(),
            )
        };
        // The numbers of the nodes in `more` are above all others.
        new.extend(more);
        if new.is_empty() {
            return Ok(None);
        }
        let mut rows = new.len() as u64;
        let mut kept = segments.len();
        // The build wrote the first segment. It is large, so it is never merged here.
        while kept > 1 && segments[kept - 1].rows.rows() <= 2 * rows {
            kept -= 1;
            rows += segments[kept].rows.rows();
        }
        let number = segments.last().map_or(0, |last| last.number + 1);
        let mut writer = SegmentWriter::create(volume, checkpoint, number, &schema, memory)?;
        view::each_newest(
            &segments[kept..],
            new,
            &mut |node, id, row| match is_dead(id, node) {
                true => Ok(()),
                false => writer.push(node, id, row),
            },
        )?;
        let (segment, files) = writer.finish()?;
        let mut next: Vec<Arc<Segment>> = segments[..kept].to_vec();
        next.push(Arc::new(segment));
        Ok(Some(Written {
            segments: Arc::new(next),
            gone: segments[kept..].iter().map(|gone| gone.number).collect(),
            files,
        }))
    }

    /// Uses a written segment from now on. A checkpoint must have committed the segment. No row may
    /// change between [`write_new`](Columns::write_new) and this call.
    pub(crate) fn committed(&self, written: Written) {
        let mut held = self.held.write();
        held.segments = written.segments;
        held.new = Arc::default();
    }
}

/// A written segment, with the data for its checkpoint.
pub(crate) struct Written {
    segments: Arc<Vec<Arc<Segment>>>,
    /// The numbers of the segments that this segment replaces.
    gone: Vec<u32>,
    files: [FileEntry; 2],
}

impl Written {
    /// Names the segment in a manifest, in place of the segments that it replaces.
    pub(crate) fn name_in(&self, manifest: &mut Manifest) {
        name_segment(manifest, &self.files, &self.gone);
    }
}

/// Names a segment in a manifest, in place of the segments `gone`.
pub(crate) fn name_segment(manifest: &mut Manifest, files: &[FileEntry; 2], gone: &[u32]) {
    manifest.files.retain(|entry| match entry.kind() {
        Some((FileKind::Rows | FileKind::Columns, Some(n))) => !gone.contains(&n),
        _ => true,
    });
    manifest.files.extend(files.iter().cloned());
    manifest.writer_features |= stratann_layout::manifest::COLUMNS;
}

/// The bytes that were last read from each segment, cached for reads nearby.
#[derive(Debug, Default)]
pub(crate) struct Windows {
    each: Vec<RowWindows>,
    /// The segments to which the windows belong. Newer segments may have replaced these segments.
    of: Option<Arc<Vec<Arc<Segment>>>>,
}

impl Windows {
    fn fit(&mut self, segments: &Arc<Vec<Arc<Segment>>>) {
        let same = |of: &Arc<_>| Arc::ptr_eq(of, segments);
        if !self.of.as_ref().is_some_and(same) {
            self.each = segments.iter().map(|_| RowWindows::default()).collect();
            self.of = Some(segments.clone());
        }
    }
}
