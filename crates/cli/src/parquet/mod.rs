//! Attributes in a Parquet file: the command writes its rows as JSON lines to a temporary file, and
//! reads them from there.
//!
//! ```text
//!   FILE.parquet ──> row group by row group, some rows at a time ──> lines of JSON ──> JsonRows
//!   column.rs  values of each type as JSON
//!   pages.rs   checks of pages before their column is read
//!   error.rs   errors
//! ```
//!
//! A build asks for rows in any order. A Parquet file can answer only by reading a whole row group.
//! The temporary file has no name, so that it is gone when the command ends in any way.

mod column;
mod error;
mod pages;
#[cfg(test)]
mod tests;

use std::any::Any;
use std::fs::File;
use std::io::{BufWriter, Read, Write};
use std::panic::{self, AssertUnwindSafe};
use std::path::{Path, PathBuf};

use parquet::file::metadata::{ParquetMetaData, RowGroupMetaData};
use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::schema::types::SchemaDescriptor;
use stratann::{JsonColumns, JsonRows};
use stratann_terminal::failure::Failure;

use self::column::Column;
use self::error::ParquetError;
use self::pages::Checked;

/// The first and last bytes of a Parquet file.
const MAGIC: &[u8; 4] = b"PAR1";

/// Rows of all columns in memory at a time.
const AT_ONCE: usize = 256;

/// Whether a file is read as Parquet: by its name, or by its first bytes.
pub fn is_one(path: &Path) -> bool {
    let named =
        (path.extension()).is_some_and(|extension| extension.eq_ignore_ascii_case("parquet"));
    let begins = |mut file: File| {
        let mut found = [0; 4];
        file.read_exact(&mut found).is_ok() && &found == MAGIC
    };
    named || (path.is_file() && File::open(path).is_ok_and(begins))
}

/// The rows of a Parquet file. Their temporary file is in `index`, the folder of an index, or in
/// the nearest folder above it that exists.
///
/// # Errors
/// A file that cannot be read, that has values which no row can have, or that takes more than
/// `memory` bytes to read.
pub fn rows(
    path: &Path,
    columns: &JsonColumns,
    index: &Path,
    memory: Option<u64>,
) -> Result<JsonRows, Failure> {
    let name = path.display().to_string();
    let file = File::open(path).map_err(|error| Failure::file("open", path, &error))?;
    let folder = folder_of(index);
    // A panic becomes an error below, so the hook prints nothing on standard error.
    let hook = panic::take_hook();
    panic::set_hook(Box::new(|_| {}));
    let lines = lines(file, columns, &folder, memory);
    panic::set_hook(hook);
    let (lines, columns) = lines.map_err(|error| error.of(&name))?;
    Ok(JsonRows::of_file(lines, name, &columns)?)
}

/// The folder of an index, or if it does not exist, the nearest folder above it that does.
fn folder_of(index: &Path) -> PathBuf {
    let above = index.ancestors();
    let there = above.filter(|folder| !folder.as_os_str().is_empty());
    let there = there.into_iter().find(|folder| folder.is_dir());
    there.unwrap_or(Path::new(".")).to_owned()
}

/// The rows of a file as lines of JSON in a file without a name, and the properties of their
/// columns that the lines lack.
fn lines(
    file: File,
    columns: &JsonColumns,
    folder: &Path,
    memory: Option<u64>,
) -> Result<(File, JsonColumns), ParquetError> {
    // The reader panics if a damaged file says that a column begins before the file. It also panics
    // if values refer to a dictionary that does not exist.
    panic::catch_unwind(AssertUnwindSafe(|| written(file, columns, folder, memory)))
        .unwrap_or_else(|panicked| Err(unreadable(panicked.as_ref())))
}

fn unreadable(panicked: &(dyn Any + Send)) -> ParquetError {
    let text = panicked.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panicked.downcast_ref::<String>().map(String::as_str));
    ParquetError::Unreadable {
        found: text.unwrap_or("its reader failed").to_owned(),
    }
}

fn written(
    file: File,
    options: &JsonColumns,
    folder: &Path,
    memory: Option<u64>,
) -> Result<(File, JsonColumns), ParquetError> {
    let reader = SerializedFileReader::new(file)?;
    let schema = reader.metadata().file_metadata().schema_descr_ptr();
    let columns = Column::all(&schema, options.payload.as_deref())?;
    let options = checked(options, &columns, &schema)?;
    let needed = memory_of(reader.metadata());
    if let Some(cap) = memory.filter(|&cap| needed > cap) {
        return Err(ParquetError::Memory { needed, cap });
    }
    let cannot_write = |error: std::io::Error| ParquetError::Spool {
        folder: folder.display().to_string(),
        found: error.to_string(),
    };
    let lines = tempfile::tempfile_in(folder).map_err(cannot_write)?;
    let mut lines = BufWriter::with_capacity(1 << 20, lines);
    let mut row = 0;
    for group in 0..reader.num_row_groups() {
        let group = Checked(reader.get_row_group(group)?);
        let rows = parquet::file::reader::RowGroupReader::metadata(&group).num_rows();
        let mut left = usize::try_from(rows).map_err(parquet::errors::ParquetError::from)?;
        let mut values = Vec::with_capacity(columns.len());
        for column in &columns {
            values.push(column.open(&group)?);
        }
        while left > 0 {
            let now = left.min(AT_ONCE);
            let mut texts = Vec::with_capacity(columns.len());
            for (column, values) in columns.iter().zip(&mut values) {
                let read = values.next(now, row)?;
                if options.id.as_ref() == Some(&column.name) {
                    column.check_ids(&read, row)?;
                }
                texts.push(read.into_iter());
            }
            for _ in 0..now {
                line(&columns, &mut texts, &mut lines).map_err(cannot_write)?;
            }
            row += now as u64;
            left -= now;
        }
    }
    let lines = lines.into_inner();
    let lines = lines.map_err(|error| cannot_write(error.into_error()))?;
    Ok((lines, options))
}

/// An estimate of the bytes that reading a file takes. For each column it has a dictionary and two
/// pages, of the default size of writers.
fn memory_of(file: &ParquetMetaData) -> u64 {
    const COLUMN: u64 = 3 << 20;
    let of_group = |group: &RowGroupMetaData| {
        let columns = group.columns().iter();
        let bytes = columns.map(|column| u64::try_from(column.uncompressed_size()).unwrap_or(0));
        bytes.map(|bytes| bytes.min(COLUMN)).sum()
    };
    file.row_groups().iter().map(of_group).max().unwrap_or(0)
}

/// Writes the next row of all columns.
fn line(
    columns: &[Column],
    texts: &mut [std::vec::IntoIter<String>],
    lines: &mut impl Write,
) -> std::io::Result<()> {
    let mut before = "{";
    for (column, texts) in columns.iter().zip(texts) {
        lines.write_all(before.as_bytes())?;
        serde_json::to_writer(&mut *lines, &column.name)?;
        let text = texts.next();
        write!(lines, ":{}", text.as_deref().unwrap_or("null"))?;
        before = ",";
    }
    lines.write_all(b"}\n")
}

/// The options of columns, with the columns added whose types are times.
///
/// # Errors
/// An option names a column that does not exist, or a column of a type that it cannot take.
fn checked(
    options: &JsonColumns,
    columns: &[Column],
    schema: &SchemaDescriptor,
) -> Result<JsonColumns, ParquetError> {
    if columns.is_empty() {
        return Err(ParquetError::NoColumns);
    }
    let named = |option: &'static str, name: &str| {
        let found = columns.iter().find(|column| column.name == name);
        found.ok_or_else(|| ParquetError::Missing {
            option,
            column: name.to_owned(),
            there: columns.iter().map(|column| column.name.clone()).collect(),
        })
    };
    for name in &options.times {
        named("--times", name)?;
    }
    if let Some(name) = &options.payload {
        named("--payload", name)?;
    }
    if let Some(name) = &options.id {
        let column = named("--id", name)?;
        if !column.is_whole(schema) {
            return Err(ParquetError::Type {
                column: name.clone(),
                found: column.type_name(schema),
                expected: "ids are whole numbers. Name another column with --id, or give --ids"
                    .to_owned(),
            });
        }
    }
    let mut options = options.clone();
    let times = columns.iter().filter(|column| column.is_time());
    options
        .times
        .extend(times.map(|column| column.name.clone()));
    Ok(options)
}
