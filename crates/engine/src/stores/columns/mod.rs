//! The columns of an index: the attributes of its vectors, stored by node.
//!
//! ```text
//!   segments    of the build, or the last merge; then of later checkpoints      storage
//!   new rows    of direct inserts and replaced rows since the last checkpoint   memory and log
//!
//!   node ──> its row, looked up in:      new rows ─> last segment ─> .. ─> first segment
//!   id ────> its node, in the same order:  only nodes that have a row here
//! ```
//!
//! A segment is two files that never change ([`stratann_layout::columns`]). One file has the rows,
//! and the other is an index part that maps values to nodes. Each checkpoint with new rows writes a
//! segment, and merges small earlier segments into it. So the number of segments is logarithmic in
//! the number of rows.
//!
//! In memory are the directory of each segment, the first keys of its groups of keys, and the set
//! of its nodes. The matches of recent filters are cached ([`remembered`]).
//!
//! Rows of vectors that are only in memory are beside these vectors
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

/// The bytes of an encoded row; empty if the row has no attributes.
pub(crate) type RowBytes = Arc<[u8]>;

/// The approximate bytes of memory that a new row takes in addition to its bytes: its entries in
/// two tables, and the allocator's overhead.
pub(crate) const BESIDE_ROW: u64 = 100;

pub(crate) fn row_charge(row: &[u8]) -> u64 {
    row.len() as u64 + BESIDE_ROW
}

pub(crate) fn decoded(bytes: &[u8]) -> Result<Row, Error> {
    match bytes.is_empty() {
        true => Ok(Row::default()),
        false => Ok(Row::decode(bytes, "row", 0)?),
    }
}

pub(crate) fn encoded(row: &Row) -> Result<Vec<u8>, Error> {
    let mut bytes = Vec::new();
    if !row.attributes.is_empty() || row.payload.is_some() {
        row.encode(&mut bytes)?;
    }
    Ok(bytes)
}

#[derive(Debug)]
pub(crate) struct Segment {
    number: u32,
    pub(crate) rows: RowsReader,
    pub(crate) part: PartReader,
}

impl Segment {
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
                what: format!("it has {found} nodes, but the file of rows has {expected} rows"),
            });
        }
        Ok(Self { number, rows, part })
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Found {
    pub(crate) node: u32,
    pub(crate) id: u64,
    pub(crate) row: RowBytes,
}

#[derive(Debug, Default)]
pub(crate) struct Columns {
    held: RwLock<Held>,
    remembered: Arc<Remembered>,
}

#[derive(Debug, Default)]
struct Held {
    segments: Arc<Vec<Arc<Segment>>>,
    schema: Schema,
    /// The columns that only rows of unfinished calls have. The number counts the calls that
    /// declared the column.
    on_their_way: HashMap<String, usize>,
    /// The new rows. If a view shares the rows, a thread that adds a row first copies all of them.
    new: Arc<NewRows>,
}

/// Columns of rows that are about to be logged. A drop without [`keep`](Self::keep) removes the
/// columns that no other row has.
#[derive(Debug)]
#[must_use = "columns that are dropped were not taken on"]
pub(crate) struct Declared<'a> {
    columns: &'a Columns,
    names: BTreeSet<String>,
}

impl Declared<'_> {
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

    pub(crate) fn schema(&self) -> Schema {
        self.held.read().schema.clone()
    }

    pub(crate) fn is_empty(&self) -> bool {
        let held = self.held.read();
        held.segments.is_empty() && held.new.is_empty() && held.schema.is_empty()
    }

    pub(crate) fn has_new(&self) -> bool {
        !self.held.read().new.is_empty()
    }

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

    pub(crate) fn new_bytes(&self) -> u64 {
        self.held.read().new.memory_bytes()
    }

    /// Adds the columns of rows that are about to be inserted. After an error, no column is added.
    /// In columns of floats, integers become floats. The columns stay only if the result is
    /// [kept](Declared::keep).
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

    /// Adds the columns of `schema`, which belongs to the index that this index replaces.
    pub(crate) fn declare_all(&self, schema: &Schema) -> Result<(), Error> {
        let mut held = self.held.write();
        for (name, kind) in schema.iter() {
            held.schema.declare(name, kind)?;
        }
        Ok(())
    }

    pub(crate) fn declare_logged(&self, row: &[u8]) -> Result<(), Error> {
        self.declare(std::slice::from_mut(&mut decoded(row)?))?
            .keep();
        Ok(())
    }

    pub(crate) fn put(&self, node: u32, id: u64, row: RowBytes) {
        let mut held = self.held.write();
        Arc::make_mut(&mut held.new).put(node, id, row);
    }

    /// Removes the row of a node whose insert failed. The node must not have got another row since
    /// then.
    pub(crate) fn take_back(&self, node: u32) {
        let mut held = self.held.write();
        Arc::make_mut(&mut held.new).take_back(node);
    }

    pub(crate) fn matching(&self, filter: &Checked, nodes: u32) -> Result<NodeSet, Error> {
        self.view().matching(filter, nodes)
    }

    pub(crate) fn view(&self) -> View {
        let held = self.held.read();
        View::of(
            held.segments.clone(),
            held.new.clone(),
            self.remembered.clone(),
        )
    }

    pub(crate) fn row_of(&self, node: u32, windows: &mut Windows) -> Result<Option<Found>, Error> {
        self.view().row_of(node, windows)
    }

    /// `None` if no node of the id has a row.
    pub(crate) fn node_of(&self, id: u64, windows: &mut Windows) -> Result<Option<u32>, Error> {
        self.view().node_of(id, windows)
    }

    /// Writes a segment of the rows in memory and of the rows `more`, whose nodes are about to be
    /// added. Small earlier segments are merged into the new segment, without rows for which
    /// `is_dead` is true. Rows that are added during the call may be included.
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
        // The nodes in `more` have higher numbers than all other nodes.
        new.extend(more);
        if new.is_empty() {
            return Ok(None);
        }
        let mut rows = new.len() as u64;
        let mut kept = segments.len();
        // The segment of the build is large, and is never merged here.
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

    /// Replaces the segments and the new rows by the written segments, which a checkpoint has
    /// committed. No row may have changed since [`write_new`](Columns::write_new).
    pub(crate) fn committed(&self, written: Written) {
        let mut held = self.held.write();
        held.segments = written.segments;
        held.new = Arc::default();
    }
}

pub(crate) struct Written {
    segments: Arc<Vec<Arc<Segment>>>,
    gone: Vec<u32>,
    files: [FileEntry; 2],
}

impl Written {
    pub(crate) fn name_in(&self, manifest: &mut Manifest) {
        name_segment(manifest, &self.files, &self.gone);
    }
}

pub(crate) fn name_segment(manifest: &mut Manifest, files: &[FileEntry; 2], gone: &[u32]) {
    manifest.files.retain(|entry| match entry.kind() {
        Some((FileKind::Rows | FileKind::Columns, Some(n))) => !gone.contains(&n),
        _ => true,
    });
    manifest.files.extend(files.iter().cloned());
    manifest.writer_features |= stratann_layout::manifest::COLUMNS;
}

#[derive(Debug, Default)]
pub(crate) struct Windows {
    each: Vec<RowWindows>,
    /// The segments to which the windows belong, even if newer segments have replaced them.
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
