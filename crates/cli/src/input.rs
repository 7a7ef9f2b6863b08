//! The vectors of a build or an insert, with their ids and attributes, from the files of a call.

use std::path::Path;

use stratann::{JsonColumns, JsonRows, Progress, VectorFile, VectorSource};
use stratann_terminal::failure::Failure;

use crate::args::{RowArguments, SetAttributesArguments};
use crate::ids;
use crate::parquet::{self, Target, Wanted};

/// Vectors, with their ids and attributes.
pub struct Input {
    pub vectors: Box<dyn VectorSource>,
    /// The ids that were given.
    pub ids: Option<Vec<u64>>,
    pub rows: Option<JsonRows>,
}

/// The files and options that an input is read from.
pub struct Files<'a> {
    /// The file of vectors.
    pub vectors: &'a Path,
    /// The column of vectors, of a Parquet file.
    pub column: Option<&'a str>,
    /// The file of ids, or the column of them if there is a column of vectors.
    pub ids: Option<&'a Path>,
    pub rows: &'a RowArguments,
    /// Whether the file of vectors may have no rows.
    pub even_empty: bool,
    /// The index, and the cap of the process.
    pub index: &'a Path,
    pub memory: Option<u64>,
}

impl Files<'_> {
    /// Opens them. A Parquet file is read once, also where it has the attributes too.
    ///
    /// # Errors
    /// One of them cannot be read, or they do not fit together.
    pub fn open(&self, progress: &dyn Progress) -> Result<Input, Failure> {
        let target = Target {
            index: self.index,
            memory: self.memory,
            progress,
        };
        let Some(column) = self.column else {
            return self.separate(target);
        };
        let ids = match self.ids.map(|ids| (ids, ids.to_str())) {
            None => None,
            Some((_, Some(name))) => Some(("--ids", name)),
            Some((ids, None)) => {
                return Err(Failure::Wrong(format!(
                    "--ids {} is no name in UTF-8; with --vectors it names a column. Give one of {}",
                    ids.display(),
                    self.vectors.display()
                )));
            }
        };
        let columns = self.rows.columns();
        let beside = self.rows.attributes.as_deref();
        let is_same = beside.is_some_and(|file| same(file, self.vectors));
        let wanted = Wanted {
            vectors: Some(column),
            ids,
            attributes: is_same.then_some(&columns),
            rows: None,
        };
        let contents = parquet::read(self.vectors, &wanted, target)?;
        let Some(vectors) = contents.vectors else {
            return Err(Failure::Failed(format!(
                "{}: column {column:?} has no vectors",
                self.vectors.display()
            )));
        };
        let rows = match beside.filter(|_| !is_same) {
            Some(file) => Some(rows_of(file, &columns, vectors.rows(), target)?),
            None => contents.rows,
        };
        Ok(Input {
            vectors: Box::new(vectors),
            ids: contents.ids,
            rows,
        })
    }

    /// Opens a file of vectors, and one for each other thing.
    fn separate(&self, target: Target) -> Result<Input, Failure> {
        if parquet::is_named(self.vectors) {
            return Err(without_column(self.vectors));
        }
        let vectors = match self.even_empty {
            true => VectorFile::open_even_empty(self.vectors)?,
            false => VectorFile::open(self.vectors)?,
        };
        let columns = self.rows.columns();
        let rows = self.rows.attributes.as_deref();
        let rows = rows.map(|file| rows_of(file, &columns, vectors.rows(), target));
        Ok(Input {
            ids: self.ids.map(ids::read).transpose()?,
            rows: rows.transpose()?,
            vectors: Box::new(vectors),
        })
    }
}

/// The error for a Parquet file of vectors without the option that names their column.
fn without_column(file: &Path) -> Failure {
    if let Err(error) = std::fs::File::open(file) {
        return Failure::file("open", file, &error);
    }
    let columns = parquet::vector_columns(file);
    let columns: Vec<String> = columns.iter().map(|name| format!("{name:?}")).collect();
    let there = match columns.is_empty() {
        true => String::new(),
        false => format!(": {}", columns.join(" or ")),
    };
    Failure::Wrong(format!(
        "{} is a Parquet file, and no option says which of its columns has the vectors. Name it with \
         --vectors{there}",
        file.display()
    ))
}

/// Whether two paths lead to one file.
fn same(one: &Path, other: &Path) -> bool {
    let real = |path: &Path| std::fs::canonicalize(path).ok();
    one == other || real(one).is_some_and(|one| Some(one) == real(other))
}

/// The attributes that `set-attributes` sets, and as many ids of their vectors.
///
/// # Errors
/// A file cannot be read, or they do not fit together.
pub fn attributes(
    arguments: &SetAttributesArguments,
    progress: &dyn Progress,
) -> Result<(JsonRows, Vec<u64>), Failure> {
    let columns = JsonColumns {
        times: arguments.times.iter().cloned().collect(),
        payload: arguments.payload.clone(),
        id: arguments.ids.is_none().then(|| arguments.id.clone()),
        without: arguments.without.iter().cloned().collect(),
    };
    let ids = arguments.ids.as_deref().map(ids::read).transpose()?;
    if !parquet::is_one(&arguments.rows) {
        let rows = JsonRows::open(&arguments.rows, &columns)?;
        let ids = ids.unwrap_or_else(|| rows.ids().to_vec());
        return Ok((rows, ids));
    }
    let wanted = Wanted {
        ids: columns.id.as_deref().map(|id| ("--id", id)),
        attributes: Some(&columns),
        rows: ids.as_ref().map(|ids| (ids.len() as u64, "ids")),
        ..Wanted::default()
    };
    let target = Target {
        index: &arguments.index,
        memory: arguments.write.memory,
        progress,
    };
    let contents = parquet::read(&arguments.rows, &wanted, target)?;
    let ids = ids.or(contents.ids).unwrap_or_default();
    Ok((of_file(&arguments.rows, contents.rows)?, ids))
}

/// The attributes of so many vectors, in a file of JSON lines or Parquet.
fn rows_of(
    file: &Path,
    columns: &JsonColumns,
    vectors: usize,
    target: Target,
) -> Result<JsonRows, Failure> {
    if !parquet::is_one(file) {
        return Ok(JsonRows::open(file, columns)?);
    }
    let wanted = Wanted {
        attributes: Some(columns),
        rows: Some((vectors as u64, "vectors")),
        ..Wanted::default()
    };
    of_file(file, parquet::read(file, &wanted, target)?.rows)
}

/// The rows of a Parquet file, which were wanted.
fn of_file(file: &Path, rows: Option<JsonRows>) -> Result<JsonRows, Failure> {
    let none = || Failure::Failed(format!("{}: it has no rows of attributes", file.display()));
    rows.ok_or_else(none)
}
