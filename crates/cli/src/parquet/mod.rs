//! Reads vectors, ids and attributes from Parquet files. Rows are copied to temporary files, which
//! the engine reads.
//!
//! ```text
//!   FILE.parquet ──> row group by row group, some rows at a time ─┬─> elements ──────> Vectors
//!                                                                 ├─> ids in memory
//!                                                                 └─> lines of JSON ─> JsonRows
//!   vectors.rs  ids.rs  column.rs  columns of each kind;   types.rs  names of types
//!   footer.rs  header.rs  thrift.rs  pages.rs  delta.rs  checks of a file;   budget.rs  its memory
//!   error.rs  errors
//! ```
//!
//! A build reads rows in any order. Without the copies, it would decode a whole row group for each
//! row. The temporary files have no names, so the system removes them in any case.

mod budget;
mod column;
mod delta;
mod error;
mod footer;
mod header;
mod ids;
mod pages;
#[cfg(test)]
mod tests;
mod thrift;
mod types;
mod vectors;

use std::any::Any;
use std::fs::File;
use std::io::{BufWriter, Read, Write};
use std::panic::{self, AssertUnwindSafe};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parquet::basic::Compression;
use parquet::file::metadata::ParquetMetaData;
use parquet::file::reader::{FileReader, RowGroupReader};
use parquet::file::serialized_reader::SerializedFileReader;
use parquet::schema::types::SchemaDescriptor;
use stratann::{JsonColumns, JsonRows, Outline, Progress, VectorSource};
use stratann_terminal::failure::Failure;

use self::budget::Budget;
use self::column::Column;
use self::error::ParquetError;
use self::ids::IdColumn;
use self::pages::Checked;
use self::vectors::VectorColumn;

use crate::pipe;

pub use self::error::listed;
pub use self::vectors::Vectors;

/// A Parquet file begins and ends with these bytes.
pub const MAGIC: &[u8; 4] = b"PAR1";

const AT_ONCE: usize = 256;

pub fn is_named(path: &Path) -> bool {
    let extension = path.extension();
    extension.is_some_and(|extension| extension.eq_ignore_ascii_case("parquet"))
}

pub fn is_one(path: &Path) -> bool {
    let begins = |mut file: File| {
        let mut found = [0; 4];
        file.read_exact(&mut found).is_ok() && &found == MAGIC
    };
    is_named(path) || (path.is_file() && File::open(path).is_ok_and(begins))
}

/// Opens a file that is read by position. A pipe is refused before it is opened.
pub fn open(path: &Path) -> Result<File, Failure> {
    if pipe::is_one(path)? {
        return Err(Failure::Wrong(format!(
            "{} is not a regular file; its rows are read in any order. Copy it to a regular file",
            path.display()
        )));
    }
    File::open(path).map_err(|error| Failure::file("open", path, &error))
}

#[derive(Default)]
pub struct Wanted<'a> {
    pub vectors: Option<&'a str>,
    /// The column of ids, and the option that names it.
    pub ids: Option<(&'static str, &'a str)>,
    /// The options for attributes, if all other columns become attributes.
    pub attributes: Option<&'a JsonColumns>,
    /// The number of rows that the file must have, and the noun for the counted things in an error.
    pub rows: Option<(u64, &'static str)>,
}

#[derive(Debug, Default)]
pub struct Contents {
    pub vectors: Option<Vectors>,
    pub ids: Option<Vec<u64>>,
    pub rows: Option<JsonRows>,
    /// The bytes of temporary files.
    pub copied: u64,
}

#[derive(Clone, Copy)]
pub struct Target<'a> {
    /// The index folder, for temporary files, or the nearest existing folder above it.
    pub index: &'a Path,
    pub memory: Option<u64>,
    /// Whether the command has `--memory`, which an error then names.
    pub has_memory: bool,
    pub progress: &'a dyn Progress,
}

/// Reads the wanted columns in one pass.
pub fn read(path: &Path, wanted: &Wanted, target: Target) -> Result<Contents, Failure> {
    let name = path.display().to_string();
    let file = open(path)?;
    let folder = folder_of(target.index);
    let read = guarded(|| written(file, &name, wanted, &folder, target));
    // The display of progress ends, even if the reader panicked.
    target.progress.end();
    let (mut contents, lines) = read.map_err(|error| error.of(&name))?;
    if let Some((lines, columns)) = lines {
        contents.rows = Some(JsonRows::of_file(lines, name, &columns, target.progress)?);
    }
    Ok(contents)
}

/// The dimension and type of the first vector, and the number of rows; `None` without rows.
pub fn shape(path: &Path, wanted: &Wanted, target: Target) -> Result<Option<Outline>, Failure> {
    let name = path.display().to_string();
    let file = open(path)?;
    let shape = guarded(|| {
        let opened = Opened::of(file, wanted, target)?;
        let (columns, groups) = (opened.columns(wanted)?, opened.groups());
        let rows = opened.rows(wanted)?;
        let Some(mut column) = columns.vectors else {
            return Ok(None);
        };
        for group in groups {
            let group = group?;
            if group.metadata().num_rows() > 0 {
                column.next(&mut column.open(&group)?, 1, 0, &mut Vec::new())?;
                break;
            }
        }
        Ok(column.shape().map(|shape| (shape, rows)))
    });
    let Some((shape, rows)) = shape.map_err(|error| error.of(&name))? else {
        return Ok(None);
    };
    Ok(Some(Outline {
        name,
        rows: usize::try_from(rows).unwrap_or(usize::MAX),
        dim: shape.dim(),
        element: shape.element(),
    }))
}

/// Checks the footer, the types of the wanted columns, and the number of rows.
pub fn check(path: &Path, wanted: &Wanted, target: Target) -> Result<(), Failure> {
    let name = path.display().to_string();
    let file = open(path)?;
    let checked = guarded(|| {
        let opened = Opened::of(file, wanted, target)?;
        opened.columns(wanted)?;
        opened.rows(wanted).map(drop)
    });
    checked.map_err(|error| error.of(&name))
}

/// The columns whose type fits vectors. Empty if the file cannot be read.
pub fn vector_columns(path: &Path) -> Vec<String> {
    let Ok(file) = open(path) else {
        return Vec::new();
    };
    let columns = guarded(|| {
        let reader = footer::open(file, &Budget::new(None, false))?;
        let schema = reader.metadata().file_metadata().schema_descr_ptr();
        Ok(VectorColumn::candidates(&schema))
    });
    columns.unwrap_or_default()
}

/// The index folder, or the nearest existing folder above it.
pub fn folder_of(index: &Path) -> PathBuf {
    let above = index.ancestors();
    let there = above.filter(|folder| !folder.as_os_str().is_empty());
    let there = there.into_iter().find(|folder| folder.is_dir());
    there.unwrap_or(Path::new(".")).to_owned()
}

/// Turns a panic of the reader into an error. The reader panics on columns that begin before the
/// file, and on missing dictionaries.
fn guarded<T>(work: impl FnOnce() -> Result<T, ParquetError>) -> Result<T, ParquetError> {
    let hook = panic::take_hook();
    panic::set_hook(Box::new(|_| {}));
    let outcome = panic::catch_unwind(AssertUnwindSafe(work));
    panic::set_hook(hook);
    outcome.unwrap_or_else(|panicked| Err(unreadable(panicked.as_ref())))
}

fn unreadable(panicked: &(dyn Any + Send)) -> ParquetError {
    let text = panicked.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panicked.downcast_ref::<String>().map(String::as_str));
    ParquetError::Unreadable {
        found: text
            .unwrap_or("the reader of the file failed without a reason")
            .to_owned(),
    }
}

struct Columns {
    vectors: Option<VectorColumn>,
    ids: Option<IdColumn>,
    attributes: Option<(Vec<Column>, JsonColumns)>,
}

impl Columns {
    /// Fails if a column is missing, is named twice, or has a type that does not fit.
    fn of(schema: &SchemaDescriptor, wanted: &Wanted) -> Result<Self, ParquetError> {
        let fields = schema.root_schema().get_fields();
        let at = |option: &'static str, name: &str| {
            let found = fields.iter().position(|field| field.name() == name);
            found.ok_or_else(|| ParquetError::Missing {
                option,
                column: name.to_owned(),
                there: fields.iter().map(|field| field.name().to_owned()).collect(),
            })
        };
        let mut named: Vec<(&'static str, &str)> = Vec::new();
        named.extend(wanted.vectors.map(|name| ("--vectors", name)));
        named.extend(wanted.ids);
        if let Some(options) = wanted.attributes {
            let payload = options.payload.as_deref();
            named.extend(payload.map(|name| ("--payload", name)));
            named.extend(options.times.iter().map(|name| ("--times", name.as_str())));
            named.extend(
                options
                    .without
                    .iter()
                    .map(|name| ("--without", name.as_str())),
            );
        }
        for (nth, &(option, name)) in named.iter().enumerate() {
            at(option, name)?;
            if let Some((before, _)) = named[..nth].iter().find(|(_, before)| *before == name) {
                return Err(ParquetError::Both {
                    options: [before, option],
                    column: name.to_owned(),
                });
            }
        }
        let vectors = match wanted.vectors {
            Some(name) => Some(VectorColumn::of(schema, at("--vectors", name)?)?),
            None => None,
        };
        let ids = match wanted.ids {
            Some((option, name)) => Some(IdColumn::of(schema, at(option, name)?, option)?),
            None => None,
        };
        let attributes = match wanted.attributes {
            Some(options) => {
                let is_left_out = |name: &str| {
                    wanted.vectors == Some(name)
                        || wanted.ids.is_some_and(|(_, id)| id == name)
                        || options.without.contains(name)
                };
                let columns = Column::all(schema, options.payload.as_deref(), is_left_out)?;
                if columns.is_empty() {
                    return Err(ParquetError::NoColumns);
                }
                let times = columns.iter().filter(|column| column.is_time());
                let mut options = options.clone();
                options.id = None;
                options
                    .times
                    .extend(times.map(|column| column.name.clone()));
                Some((columns, options))
            }
            None => None,
        };
        Ok(Self {
            vectors,
            ids,
            attributes,
        })
    }
}

fn check_compression(file: &ParquetMetaData, wanted: &Wanted) -> Result<(), ParquetError> {
    let schema = file.file_metadata().schema_descr();
    let is_wanted = |name: &str| match wanted.attributes {
        Some(options) => !options.without.contains(name),
        None => wanted.vectors == Some(name) || wanted.ids.is_some_and(|(_, id)| id == name),
    };
    for group in file.row_groups() {
        for (at, chunk) in group.columns().iter().enumerate() {
            let name = schema.get_column_root(at).name();
            let found = match chunk.compression() {
                Compression::UNCOMPRESSED
                | Compression::SNAPPY
                | Compression::GZIP(_)
                | Compression::ZSTD(_)
                | Compression::LZ4
                | Compression::LZ4_RAW => continue,
                Compression::BROTLI(_) => "brotli",
                Compression::LZO => "lzo",
            };
            if is_wanted(name) {
                return Err(ParquetError::Compression {
                    column: name.to_owned(),
                    found: found.to_owned(),
                });
            }
        }
    }
    Ok(())
}

struct Opened {
    reader: SerializedFileReader<File>,
    /// A second handle of the file, from which page headers are read.
    again: Arc<File>,
    budget: Arc<Budget>,
}

impl Opened {
    fn of(file: File, wanted: &Wanted, target: Target) -> Result<Self, ParquetError> {
        let budget = Arc::new(Budget::new(target.memory, target.has_memory));
        let again = file.try_clone();
        let again = again.map_err(parquet::errors::ParquetError::from)?;
        let reader = footer::open(file, &budget)?;
        check_compression(reader.metadata(), wanted)?;
        Ok(Self {
            reader,
            again: Arc::new(again),
            budget,
        })
    }

    fn columns(&self, wanted: &Wanted) -> Result<Columns, ParquetError> {
        let schema = self.reader.metadata().file_metadata().schema_descr();
        Columns::of(schema, wanted)
    }

    /// Fails if the command needs another number of rows.
    fn rows(&self, wanted: &Wanted) -> Result<u64, ParquetError> {
        let mut rows = 0u64;
        for group in self.reader.metadata().row_groups() {
            let of_group =
                u64::try_from(group.num_rows()).map_err(parquet::errors::ParquetError::from)?;
            rows = rows.saturating_add(of_group);
        }
        match wanted.rows {
            Some((expected, of)) if expected != rows => Err(ParquetError::Rows {
                found: rows,
                expected,
                of,
            }),
            _ => Ok(rows),
        }
    }

    fn groups(&self) -> impl Iterator<Item = Result<Checked<'_>, ParquetError>> {
        (0..self.reader.num_row_groups()).map(|group| {
            Ok(Checked {
                group: self.reader.get_row_group(group)?,
                file: Arc::clone(&self.again),
                budget: Arc::clone(&self.budget),
            })
        })
    }
}

type Lines = (File, JsonColumns);

fn written(
    file: File,
    name: &str,
    wanted: &Wanted,
    folder: &Path,
    target: Target,
) -> Result<(Contents, Option<Lines>), ParquetError> {
    let opened = Opened::of(file, wanted, target)?;
    let mut columns = opened.columns(wanted)?;
    let rows = opened.rows(wanted)?;
    let cannot_write = |error: std::io::Error| ParquetError::Spool {
        folder: folder.display().to_string(),
        found: error.to_string(),
    };
    let spool = || {
        let file = tempfile::tempfile_in(folder).map_err(cannot_write)?;
        Ok::<_, ParquetError>(BufWriter::with_capacity(1 << 20, file))
    };
    let mut elements = columns.vectors.is_some().then(spool).transpose()?;
    let mut lines = columns.attributes.is_some().then(spool).transpose()?;
    let mut ids = columns.ids.is_some().then(Vec::new);
    target.progress.begin(&format!("reading {name}"), rows);
    {
        let spools = Spools {
            elements: elements.as_mut(),
            lines: lines.as_mut(),
            ids: ids.as_mut(),
            cannot_write: &cannot_write,
        };
        let groups = opened.groups();
        convert(
            groups,
            &mut columns,
            spools,
            &opened.budget,
            target.progress,
        )?;
    }
    let whole = |spool: BufWriter<File>| {
        let file = spool.into_inner();
        file.map_err(|error| cannot_write(error.into_error()))
    };
    let vectors = match (elements, &columns.vectors) {
        (Some(elements), Some(column)) => Some(column.source(whole(elements)?, name, rows)?),
        _ => None,
    };
    let lines = match (lines, columns.attributes) {
        (Some(lines), Some((_, options))) => Some((whole(lines)?, options)),
        _ => None,
    };
    let bytes = vectors
        .as_ref()
        .map_or(0, |vectors| (vectors.rows() * vectors.row_bytes()) as u64);
    let of_lines = lines.as_ref().map(|(lines, _)| lines.metadata());
    let of_lines = of_lines.transpose().map_err(cannot_write)?;
    let contents = Contents {
        vectors,
        ids,
        rows: None,
        copied: bytes + of_lines.map_or(0, |lines| lines.len()),
    };
    Ok((contents, lines))
}

struct Spools<'a> {
    elements: Option<&'a mut BufWriter<File>>,
    lines: Option<&'a mut BufWriter<File>>,
    ids: Option<&'a mut Vec<u64>>,
    cannot_write: &'a dyn Fn(std::io::Error) -> ParquetError,
}

fn convert<'a>(
    groups: impl Iterator<Item = Result<Checked<'a>, ParquetError>>,
    columns: &mut Columns,
    mut to: Spools,
    budget: &Budget,
    progress: &dyn Progress,
) -> Result<(), ParquetError> {
    let (mut row, mut bytes) = (0, Vec::new());
    let cannot_write = to.cannot_write;
    for group in groups {
        let group = group?;
        let rows = group.metadata().num_rows();
        let mut left = usize::try_from(rows).map_err(parquet::errors::ParquetError::from)?;
        let mut lists = columns
            .vectors
            .as_ref()
            .map(|column| column.open(&group))
            .transpose()?;
        let mut ids = columns
            .ids
            .as_ref()
            .map(|column| column.open(&group))
            .transpose()?;
        let attributes = columns
            .attributes
            .as_ref()
            .map(|(columns, _)| columns.as_slice());
        let attributes = attributes.unwrap_or_default();
        let mut values = Vec::with_capacity(attributes.len());
        for column in attributes {
            values.push(column.open(&group, budget)?);
        }
        while left > 0 {
            if progress.interrupted() {
                return Err(ParquetError::Interrupted);
            }
            budget.next_batch();
            let now = left.min(AT_ONCE);
            // The id of each row, and the position of its JSON line, stay in memory.
            let stay = usize::from(ids.is_some()) + usize::from(to.lines.is_some());
            budget.take((8 * now * stay) as u64)?;
            if let (Some(ids), Some(to)) = (&mut ids, &mut to.ids) {
                ids.next(now, row, to)?;
            }
            if let (Some(column), Some(lists), Some(to)) =
                (&mut columns.vectors, &mut lists, &mut to.elements)
            {
                column.next(lists, now, row, &mut bytes)?;
                to.write_all(&bytes).map_err(cannot_write)?;
            }
            if let Some(to) = &mut to.lines {
                let mut texts = Vec::with_capacity(attributes.len());
                for values in &mut values {
                    texts.push(values.next(now, row)?.into_iter());
                }
                for _ in 0..now {
                    line(attributes, &mut texts, to).map_err(cannot_write)?;
                }
            }
            row += now as u64;
            left -= now;
            progress.advance(now as u64);
        }
    }
    Ok(())
}

fn line(
    columns: &[Column],
    texts: &mut [std::vec::IntoIter<String>],
    lines: &mut impl Write,
) -> std::io::Result<()> {
    lines.write_all(b"{")?;
    let mut before = "";
    for (column, texts) in columns.iter().zip(texts) {
        lines.write_all(before.as_bytes())?;
        serde_json::to_writer(&mut *lines, &column.name)?;
        let text = texts.next();
        write!(lines, ":{}", text.as_deref().unwrap_or("null"))?;
        before = ",";
    }
    lines.write_all(b"}\n")
}
