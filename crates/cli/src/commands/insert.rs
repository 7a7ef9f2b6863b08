//! `stratann insert INDEX VECTORS`, and advice to resume an insert that was cut off.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Instant;

use stratann::data::RowSource;
use stratann::{CutOff, Error, LiveIndex, NoRows, Progress, Resumed, VectorSource};
use stratann_terminal::failure::Failure;
use stratann_terminal::progress::Shown;

use super::update::{Changed, changing, finish, open};
use crate::args::InsertArguments;
use crate::input::{Files, Input};
use crate::parquet;

pub fn run(arguments: &InsertArguments, quiet: bool) -> Result<(), Failure> {
    if arguments.forget {
        return forget(arguments, quiet);
    }
    // With an absolute path, warnings and `--forget` name the same file in any working directory.
    let shown = Shown::new(quiet);
    let files = Files {
        vectors: &whole(&arguments.vectors),
        column: arguments.column.as_deref(),
        ids: arguments.ids.as_deref(),
        rows: &arguments.rows,
        index: &arguments.index,
        memory: arguments.write.memory,
    };
    // The index is closed during the copy, because index and copy together could exceed the memory.
    let check = |shape: &NoRows| {
        let live = open(&arguments.index, &arguments.write)?;
        Ok(live.check_shape(shape.element(), shape.dim())?)
    };
    let input = match files.are_an_empty_parquet(&shown)? {
        true => None,
        false => Some(files.open(&shown, check)?),
    };
    let live = open(&arguments.index, &arguments.write)?;
    // An insert without rows checks neither dimension nor type, so they are checked here.
    if let Some(input) = input.as_ref().filter(|input| input.vectors.rows() == 0) {
        live.check_shape(input.vectors.element(), input.vectors.dim())?;
    }
    // A file without rows ends the command here, with two exceptions that the insert below refuses:
    // ids without vectors, and `--resume` with a new file.
    let is_empty = |input: &Input| {
        let has_ids = input.ids.as_ref().is_some_and(|ids| !ids.is_empty());
        input.vectors.rows() == 0 && !has_ids && !arguments.resume
    };
    let Some(input) = input.filter(|input| !is_empty(input)) else {
        let file = arguments.vectors.display();
        shown.warn(&format!("{file} has no rows; nothing was inserted"));
        let none = Changed::by_insert(0, None, 0.0);
        return finish(&live, none, arguments.compact, arguments.json, &shown);
    };
    let (vectors, ids) = (&*input.vectors, &input.ids);
    let rows = input.rows.as_ref().map(|rows| rows as &dyn RowSource);
    let start = Instant::now();
    let put = match (ids, arguments.upsert) {
        (Some(ids), true) => upsert(&live, vectors, rows, ids, &shown),
        (ids, _) => {
            let cut_off = match (arguments.resume, arguments.no_resume) {
                (true, _) => CutOff::Resume,
                (_, true) => CutOff::Forget,
                _ => CutOff::Refuse,
            };
            say_others(&live, arguments, &shown);
            live.insert_resumable(vectors, rows, ids.as_deref(), cut_off, &shown)
        }
    };
    let put = put.map_err(|error| cut_off(error, arguments))?;
    let before = arguments.resume.then_some(put.before as u64);
    let seconds = start.elapsed().as_secs_f64();
    let changed = Changed::by_insert(put.inserted as u64, before, seconds);
    finish(&live, changed, arguments.compact, arguments.json, &shown)
}

fn forget(arguments: &InsertArguments, quiet: bool) -> Result<(), Failure> {
    let live = open(&arguments.index, &arguments.write)?;
    let start = Instant::now();
    let given = whole(&arguments.vectors).to_string_lossy().into_owned();
    let cut: Vec<String> = (live.cut_off_inserts().into_iter())
        .map(|insert| insert.file)
        .collect();
    let of_file = cut.iter().find(|file| is_same(&arguments.vectors, file));
    // An insert from Python has no file, but a name that warnings print.
    let named = || (cut.iter()).find(|file| arguments.vectors.as_os_str() == file.as_str());
    let file = of_file.or_else(named).cloned().unwrap_or(given);
    let forgotten = live.forget_cut_off(&file).map_err(changing)?;
    let changed = Changed::by_forgetting(&file, forgotten.len(), start.elapsed().as_secs_f64());
    finish(&live, changed, false, arguments.json, &Shown::new(quiet))
}

fn whole(path: &Path) -> PathBuf {
    let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let folder = path.parent().and_then(|folder| folder.canonicalize().ok());
    match (folder, path.file_name()) {
        (Some(folder), Some(name)) => folder.join(name),
        _ => path,
    }
}

fn is_same(path: &Path, name: &str) -> bool {
    let (path, name) = (whole(path), Path::new(name));
    let there = |path: &Path| std::fs::canonicalize(path).ok();
    path == name || there(&path).is_some_and(|path| Some(path) == there(name))
}

fn upsert(
    live: &LiveIndex,
    vectors: &dyn VectorSource,
    rows: Option<&dyn RowSource>,
    ids: &[u64],
    shown: &Shown,
) -> Result<Resumed, Error> {
    match rows {
        Some(rows) => live.upsert_rows(vectors, rows, ids, shown)?,
        None => live.upsert(vectors, ids, shown)?,
    }
    live.flush()?;
    Ok(Resumed {
        before: 0,
        inserted: ids.len(),
        first_id: None,
    })
}

fn say_others(live: &LiveIndex, arguments: &InsertArguments, shown: &Shown) {
    for insert in live.cut_off_inserts() {
        if is_same(&arguments.vectors, &insert.file) {
            continue;
        }
        let index = quoted(arguments.index.as_os_str());
        let name = quoted(insert.file.as_ref());
        let file = match Path::new(&insert.file).is_absolute() {
            true => &*name,
            false => "FILE-OF-THESE-VECTORS",
        };
        let column = match parquet::is_named(Path::new(&insert.file)) {
            true => " --vectors COLUMN",
            false => "",
        };
        let beside = match insert.attributes {
            true => ", with the same `--attributes`, `--payload` and `--times`,",
            false => "",
        };
        shown.warn(&format!(
            "an insert of {name} was cut off, and some rows of the file are not in the index. `stratann insert --resume {index} {file}{column}`{beside} continues that insert. \
             `stratann insert --forget {index} {name}` leaves the inserted rows in the index, and ends this warning; a later insert of the file then inserts all rows"
        ));
    }
}

fn cut_off(error: Error, arguments: &InsertArguments) -> Failure {
    let advice = match &error {
        Error::Partly { .. } if arguments.upsert => {
            ". Run the same command again: each row that is already in the index is then replaced by the same row".to_owned()
        }
        Error::Partly { .. } | Error::CutOff { .. } => {
            format!(". To continue: {}", with_resume(std::env::args_os()))
        }
        // The existing ids may belong to an insert that was cut off.
        Error::Argument { what, .. }
            if what == "id" && arguments.ids.is_some() && !arguments.upsert =>
        {
            format!(
                ". If an insert of these rows was cut off, this command continues it: {}",
                with_resume(std::env::args_os())
            )
        }
        _ => String::new(),
    };
    match changing(error) {
        Failure::Failed(message) => Failure::Failed(message + &advice),
        Failure::Wrong(message) => Failure::Wrong(message + &advice),
        failure => failure,
    }
}

fn with_resume(words: impl Iterator<Item = OsString>) -> String {
    let mut call = Vec::new();
    let mut told = false;
    for (at, word) in words.enumerate() {
        if word == "--resume" || word == "--no-resume" {
            continue;
        }
        call.push(quoted(&word));
        if at > 0 && word == "insert" && !told {
            told = true;
            call.push("--resume".to_owned());
        }
    }
    call.join(" ")
}

fn quoted(word: &std::ffi::OsStr) -> String {
    let word = word.to_string_lossy();
    let plain = |c: char| c.is_alphanumeric() || "-_./:,=+@%".contains(c);
    match !word.is_empty() && word.chars().all(plain) {
        true => word.into_owned(),
        false => format!("'{}'", word.replace('\'', "'\\''")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_call_that_goes_on_is_one_for_a_shell() {
        let said = |words: &[&str]| with_resume(words.iter().map(OsString::from));
        assert_eq!(
            said(&[
                "stratann",
                "-q",
                "insert",
                "my index",
                "it's.fbin",
                "--ids=a.ids"
            ]),
            r"stratann -q insert --resume 'my index' 'it'\''s.fbin' --ids=a.ids"
        );
        assert_eq!(
            said(&["insert", "insert", "--no-resume", "--", "insert", "x.npy"]),
            "insert insert --resume -- insert x.npy"
        );
    }
}
