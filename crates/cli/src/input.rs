//! Reads the vectors of a build or an insert, with their ids and attributes, from files.

use std::fs::File;
use std::io::Write;
use std::path::Path;

use stratann::{
    DataError, JsonColumns, JsonRows, NoRows, Outline, Progress, RowSource, Silent, VectorFile,
    VectorSource,
};
use stratann_terminal::failure::Failure;

use crate::args::{RowArguments, SetAttributesArguments};
use crate::ids;
use crate::parquet::{self, Target, Wanted};
use crate::pipe;

pub struct Input {
    pub vectors: Box<dyn VectorSource>,
    pub ids: Option<Vec<u64>>,
    pub rows: Option<JsonRows>,
    /// The bytes of temporary copies of Parquet files and pipes.
    pub copied: u64,
}

pub struct Files<'a> {
    pub vectors: &'a Path,
    pub column: Option<&'a str>,
    /// The file of ids, or the column of ids if vectors come from a column.
    pub ids: Option<&'a Path>,
    pub rows: &'a RowArguments,
    /// The index directory, and the cap on the memory of the process.
    pub index: &'a Path,
    pub memory: Option<u64>,
}

impl Files<'_> {
    /// Opens the files. Before a long copy, `check` may refuse the dimension and the element type.
    pub fn open(
        &self,
        progress: &dyn Progress,
        check: impl FnOnce(&NoRows) -> Result<(), Failure>,
    ) -> Result<Input, Failure> {
        let target = self.target(progress);
        let Some(column) = self.column else {
            return self.separate(target, check);
        };
        check_parquet(&[self.vectors])?;
        let ids = self.ids.map(|ids| column_name(ids, self.vectors));
        let ids = ids.transpose()?.map(|name| ("--ids", name));
        let columns = self.rows.columns();
        let beside = self.rows.attributes.as_deref();
        let is_same = beside.is_some_and(|file| same(file, self.vectors));
        let wanted = Wanted {
            vectors: Some(column),
            ids,
            attributes: is_same.then_some(&columns),
            rows: None,
        };
        let outline = parquet::shape(self.vectors, &wanted, target)?;
        if let Some(outline) = &outline {
            check(&NoRows::new(outline.element, outline.dim))?;
        }
        let beside = beside.filter(|_| !is_same);
        // Errors in attributes come before the copy. A second Parquet file is only checked here.
        let (rows, copied) = match (beside, &outline) {
            (Some(file), Some(outline)) if parquet::is_one(file) => {
                parquet::check(file, &of_vectors(&columns, outline.rows), target)?;
                (None, 0)
            }
            (_, Some(outline)) => rows_of(beside, &columns, outline.rows, target)?,
            // `parquet::read` reports a file without rows.
            (_, None) => (None, 0),
        };
        let contents = parquet::read(self.vectors, &wanted, target)?;
        let Some(vectors) = contents.vectors else {
            return Err(none_in(self.vectors, column));
        };
        let (rows, copied) = match rows {
            None => rows_of(beside, &columns, vectors.rows(), target)?,
            rows => (rows, copied),
        };
        Ok(Input {
            vectors: Box::new(vectors),
            ids: contents.ids,
            rows: rows.or(contents.rows),
            copied: contents.copied + copied,
        })
    }

    /// Whether the vectors come from a Parquet file without rows, so their dimension is unknown.
    pub fn are_an_empty_parquet(&self, progress: &dyn Progress) -> Result<bool, Failure> {
        let Some(column) = self.column.filter(|_| parquet::is_one(self.vectors)) else {
            return Ok(false);
        };
        let wanted = Wanted {
            vectors: Some(column),
            ..Wanted::default()
        };
        let target = self.target(progress);
        Ok(parquet::shape(self.vectors, &wanted, target)?.is_none())
    }

    fn target<'a>(&'a self, progress: &'a dyn Progress) -> Target<'a> {
        Target {
            index: self.index,
            memory: self.memory,
            has_memory: true,
            progress,
        }
    }

    fn separate(
        &self,
        target: Target,
        check: impl FnOnce(&NoRows) -> Result<(), Failure>,
    ) -> Result<Input, Failure> {
        if parquet::is_named(self.vectors) {
            return Err(without_column(self.vectors));
        }
        let vectors = VectorFile::open_even_empty(self.vectors).map_err(or_parquet)?;
        let columns = self.rows.columns();
        let rows = self.rows.attributes.as_deref();
        if rows.is_some_and(parquet::is_one) {
            check(&NoRows::new(vectors.element(), vectors.dim()))?;
        }
        check_standard_input(self.ids, rows)?;
        let ids = self.ids.map(ids::read).transpose()?;
        let (rows, copied) = rows_of(rows, &columns, vectors.rows(), target)?;
        Ok(Input {
            ids,
            rows,
            vectors: Box::new(vectors),
            copied,
        })
    }
}

#[derive(Clone, Copy)]
pub struct Vectors<'a> {
    pub file: &'a Path,
    pub column: Option<&'a str>,
    /// The column of ids in a Parquet file, if the caller needs them.
    pub ids: Option<&'a str>,
    /// The value of `--memory`; `None` if the command has no such option.
    pub memory: Option<Option<u64>>,
}

pub type Opened = (Box<dyn VectorSource>, Option<Vec<u64>>);

impl<'a> Vectors<'a> {
    fn parquet(&self) -> Option<&'a str> {
        self.column.filter(|_| parquet::is_one(self.file))
    }

    fn wanted(&self, column: &'a str) -> Wanted<'a> {
        Wanted {
            vectors: Some(column),
            ids: self.ids.map(|ids| ("--ids", ids)),
            ..Wanted::default()
        }
    }

    fn target<'t>(&self, folder: &'t Path, progress: &'t dyn Progress) -> Target<'t> {
        Target {
            index: folder,
            memory: self.memory.flatten(),
            has_memory: self.memory.is_some(),
            progress,
        }
    }

    /// The outline of a Parquet file, before [`open`](Self::open) copies it. `None` without rows.
    pub fn outline(&self) -> Result<Option<Outline>, Failure> {
        let Some(column) = self.parquet() else {
            return Ok(None);
        };
        let folder = std::env::temp_dir();
        parquet::shape(
            self.file,
            &self.wanted(column),
            self.target(&folder, &Silent),
        )
    }

    /// Like [`outline`](Self::outline), but also for other files.
    pub fn shape(&self) -> Result<Option<Outline>, Failure> {
        if self.parquet().is_some() {
            return self.outline();
        }
        let (vectors, _) = self.open(&Silent)?;
        Ok(Some(Outline {
            name: vectors.name().to_owned(),
            rows: vectors.rows(),
            dim: vectors.dim(),
            element: vectors.element(),
        }))
    }

    /// Opens the vectors. A Parquet file is copied to the folder of temporary files.
    pub fn open(&self, progress: &dyn Progress) -> Result<Opened, Failure> {
        let Some(column) = self.parquet() else {
            return match parquet::is_named(self.file) {
                true => Err(without_column(self.file)),
                false => {
                    let vectors = VectorFile::open(self.file).map_err(or_parquet)?;
                    Ok((Box::new(vectors), None))
                }
            };
        };
        let folder = std::env::temp_dir();
        let target = self.target(&folder, progress);
        let contents = parquet::read(self.file, &self.wanted(column), target)?;
        let none = || none_in(self.file, column);
        Ok((Box::new(contents.vectors.ok_or_else(none)?), contents.ids))
    }
}

/// The value of `--ids`, which names a column if vectors come from a Parquet file.
pub fn column_name<'a>(ids: &'a Path, vectors: &Path) -> Result<&'a str, Failure> {
    ids.to_str().ok_or_else(|| {
        Failure::Wrong(format!(
            "--ids {} is not UTF-8; with --vectors, --ids names a column. Give the name of a column of {}",
            ids.display(),
            vectors.display()
        ))
    })
}

/// Refuses `--vectors` if none of these files is a Parquet file.
pub fn check_parquet(files: &[&Path]) -> Result<(), Failure> {
    for file in files {
        parquet::open(file)?;
    }
    if files.iter().any(|file| parquet::is_one(file)) {
        return Ok(());
    }
    let are = if files.len() > 1 {
        "are no Parquet files"
    } else {
        "is no Parquet file"
    };
    let files: Vec<String> = files
        .iter()
        .map(|file| file.display().to_string())
        .collect();
    let files = files.join(" and ");
    Err(Failure::Wrong(format!(
        "--vectors names a column of a Parquet file, and {files} {are}. Remove --vectors"
    )))
}

fn none_in(file: &Path, column: &str) -> Failure {
    Failure::Failed(format!(
        "{}: column {column:?} has no vectors",
        file.display()
    ))
}

/// Adds Parquet, which only the command reads, to the formats that an error of the engine lists.
fn or_parquet(error: DataError) -> DataError {
    match error {
        DataError::Extension {
            file,
            found,
            expected,
        } => DataError::Extension {
            file,
            found,
            expected: format!("{expected} .parquet (with --vectors COLUMN)"),
        },
        error => error,
    }
}

fn without_column(file: &Path) -> Failure {
    if let Err(failure) = parquet::open(file) {
        return failure;
    }
    let columns = parquet::vector_columns(file);
    let columns: Vec<String> = columns.iter().map(|name| format!("{name:?}")).collect();
    let there = match columns.is_empty() {
        true => String::new(),
        false => format!(": {}", columns.join(" or ")),
    };
    Failure::Wrong(format!(
        "{} is a Parquet file, and no option names its column of vectors. Name the column with \
         --vectors{there}",
        file.display()
    ))
}

fn same(one: &Path, other: &Path) -> bool {
    let real = |path: &Path| std::fs::canonicalize(path).ok();
    one == other || real(one).is_some_and(|one| Some(one) == real(other))
}

fn check_standard_input(ids: Option<&Path>, attributes: Option<&Path>) -> Result<(), Failure> {
    let is_input = |path: Option<&Path>| path.is_some_and(|path| path.as_os_str() == "-");
    match is_input(ids) && is_input(attributes) {
        true => Err(Failure::Wrong(
            "the name - is given for ids and for attributes; the standard input is one of the two. Name a file for the other".into(),
        )),
        false => Ok(()),
    }
}

/// The attributes to set, and the id of each row.
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
    check_standard_input(arguments.ids.as_deref(), Some(&arguments.rows))?;
    let ids = arguments.ids.as_deref().map(ids::read).transpose()?;
    let target = Target {
        index: &arguments.index,
        memory: arguments.write.memory,
        has_memory: true,
        progress,
    };
    if !parquet::is_one(&arguments.rows) {
        let (rows, _) = json_lines(&arguments.rows, &columns, target)?;
        let ids = ids.unwrap_or_else(|| rows.ids().to_vec());
        return Ok((rows, ids));
    }
    let wanted = Wanted {
        ids: columns.id.as_deref().map(|id| ("--id", id)),
        attributes: Some(&columns),
        rows: ids.as_ref().map(|ids| (ids.len() as u64, "ids")),
        ..Wanted::default()
    };
    let contents = parquet::read(&arguments.rows, &wanted, target)?;
    let ids = ids.or(contents.ids).unwrap_or_default();
    Ok((of_file(&arguments.rows, contents.rows)?, ids))
}

/// The attributes of `vectors` vectors, and the bytes of the temporary copy.
fn rows_of(
    file: Option<&Path>,
    columns: &JsonColumns,
    vectors: usize,
    target: Target,
) -> Result<(Option<JsonRows>, u64), Failure> {
    let Some(file) = file else {
        return Ok((None, 0));
    };
    if !parquet::is_one(file) {
        let (rows, copied) = json_lines(file, columns, target)?;
        if rows.rows() != vectors {
            return Err(Failure::Wrong(format!(
                "number of rows of {} is {}; there are {vectors} vectors. Give one row for each vector",
                file.display(),
                rows.rows()
            )));
        }
        return Ok((Some(rows), copied));
    }
    let contents = parquet::read(file, &of_vectors(columns, vectors), target)?;
    Ok((Some(of_file(file, contents.rows)?), contents.copied))
}

fn of_vectors(columns: &JsonColumns, vectors: usize) -> Wanted<'_> {
    Wanted {
        attributes: Some(columns),
        rows: Some((vectors as u64, "vectors")),
        ..Wanted::default()
    }
}

/// The rows of a file of JSON lines, and the bytes of the temporary copy of a pipe.
fn json_lines(
    path: &Path,
    columns: &JsonColumns,
    target: Target,
) -> Result<(JsonRows, u64), Failure> {
    let (file, copied) = match pipe::is_one(path)? {
        true => copied(path, target)?,
        false => {
            let file = File::open(path).map_err(|error| Failure::file("open", path, &error))?;
            (file, 0)
        }
    };
    let name = path.display().to_string();
    let rows = JsonRows::of_file(file, name, columns, target.progress)?;
    check_keys(path, &rows, columns, target.progress)?;
    Ok((rows, copied))
}

/// Pipes are copied, because rows are read more than once.
fn copied(path: &Path, target: Target) -> Result<(File, u64), Failure> {
    let folder = parquet::folder_of(target.index);
    let cannot_write = |error: std::io::Error| {
        Failure::Failed(format!(
            "{} cannot be copied to a temporary file in {}; {error}. Make the folder writable, and free space for the rows",
            path.display(),
            folder.display()
        ))
    };
    let mut copy = tempfile::tempfile_in(&folder).map_err(cannot_write)?;
    let mut bytes = 0;
    pipe::read(path, |part| {
        if bytes == 0 && part.starts_with(parquet::MAGIC) {
            return Err(Failure::Wrong(format!(
                "{} is a pipe with a Parquet file, which cannot be read from front to back. Write the data to a regular file, and name that file",
                path.display()
            )));
        }
        bytes += part.len() as u64;
        copy.write_all(part).map_err(cannot_write)
    })?;
    Ok((copy, bytes))
}

/// Checks the options that name a key of the lines. If no line has the key, but lines have a
/// similar key, the name is probably misspelt, and the call fails. Without a similar key, the user
/// gets a warning.
fn check_keys(
    file: &Path,
    rows: &JsonRows,
    columns: &JsonColumns,
    progress: &dyn Progress,
) -> Result<(), Failure> {
    if rows.rows() == 0 {
        return Ok(());
    }
    let there: Vec<&str> = rows.keys().collect();
    let payload = columns.payload.iter().map(|key| ("--payload", key));
    let times = columns.times.iter().map(|key| ("--times", key));
    let without = columns.without.iter().map(|key| ("--without", key));
    let named: Vec<_> = payload.chain(times).chain(without).collect();
    for &(option, key) in &named {
        if there.contains(&key.as_str()) {
            continue;
        }
        let others = there.iter().copied();
        let unnamed = others.filter(|other| named.iter().all(|(_, key)| key != other));
        let what = format!(
            "{}: {option} names {key:?}, which is no key of its lines",
            file.display()
        );
        match stratann::meant(key, unnamed) {
            Some(meant) => {
                return Err(Failure::Wrong(format!(
                    "{what}; did you mean {meant:?}? The lines have {}. Name one of these keys, or leave out the option",
                    parquet::listed(&there)
                )));
            }
            None => progress.warn(&format!(
                "{what}; the lines have {}",
                parquet::listed(&there)
            )),
        }
    }
    Ok(())
}

fn of_file(file: &Path, rows: Option<JsonRows>) -> Result<JsonRows, Failure> {
    let none = || Failure::Failed(format!("{}: it has no rows of attributes", file.display()));
    rows.ok_or_else(none)
}
