//! `stratann get INDEX [ID..]`

use serde::Serialize;
use stratann::data::write_bin;
use stratann::{DataError, Element, Error, Index, OpenOptions, Progress, Rows, VectorSource};
use stratann_terminal::failure::Failure;
use stratann_terminal::output::{self, Output};
use stratann_terminal::progress::Shown;
use stratann_terminal::size;
use stratann_terminal::table::facts;

use super::beside::Beside;
use crate::args::GetArguments;
use crate::ids;

const BATCH: usize = 1 << 12;
const ELEMENTS: usize = 8;
const NAMED: usize = 10;

pub fn run(arguments: &GetArguments, quiet: bool) -> Result<(), Failure> {
    if let Some(out) = &arguments.out {
        output::refuse(out, arguments.overwrite)?;
    }
    let asked = ids::given(&arguments.id, arguments.ids.as_deref())?;
    let open = OpenOptions {
        memory: arguments.memory,
        unpack: false,
        ..OpenOptions::default()
    };
    let index = Index::open(&arguments.index, &open)?;
    // With `--out`, Ctrl-C lets the command remove the file. Without, Ctrl-C ends the command at
    // once, because the command may wait for the reader of its output.
    let progress = match &arguments.out {
        Some(_) => Shown::new(quiet),
        None => Shown::of_reader(quiet),
    };
    let mut missing = Vec::new();
    let mut output = Output::lock();
    if let Some(out) = &arguments.out {
        let ids = match asked {
            Some(asked) => there(&index, &asked, &progress, &mut missing)?,
            None => all(&index, arguments, &progress)?,
        };
        if ids.is_empty() {
            return Err(Failure::Failed(format!(
                "{}: the index has none of the requested vectors. Nothing was written",
                arguments.index.display()
            )));
        }
        let rows = ById {
            index: &index,
            ids,
            name: arguments.index.display().to_string(),
            progress: &progress,
        };
        write_bin(out, &rows)?;
        let lines = [
            ("vectors", size::count(rows.ids.len() as u64)),
            ("written to", out.display().to_string()),
        ];
        output.text(facts(&lines))?;
    } else {
        let mut last = None;
        for batch in 0.. {
            goes_on(&progress)?;
            let ids = match &asked {
                Some(asked) => asked.chunks(BATCH).nth(batch).unwrap_or_default().to_vec(),
                None => page(&index, arguments, last)?,
            };
            last = ids.last().copied();
            if last.is_none() {
                break;
            }
            print(
                &mut output,
                &index,
                &ids,
                arguments,
                &progress,
                &mut missing,
            )?;
        }
    }
    output.finish()?;
    match missing.len() {
        0 => Ok(()),
        count => Err(Failure::Failed(format!(
            "{}: ids not in the index: {}{}",
            arguments.index.display(),
            missing[..count.min(NAMED)]
                .iter()
                .map(u64::to_string)
                .collect::<Vec<_>>()
                .join(", "),
            match count > NAMED {
                true => format!(" and {} more", size::count((count - NAMED) as u64)),
                false => String::new(),
            }
        ))),
    }
}

fn goes_on(progress: &dyn Progress) -> Result<(), Error> {
    match progress.interrupted() {
        // The text of `Interrupted` is about changes, and a look-up makes none.
        true => Err(Error::Stopped),
        false => Ok(()),
    }
}

fn page(index: &Index, arguments: &GetArguments, after: Option<u64>) -> Result<Vec<u64>, Error> {
    match &arguments.filter {
        None => index.ids(after, BATCH),
        Some(filter) => index.ids_matching(filter, after, BATCH),
    }
}

fn all(
    index: &Index,
    arguments: &GetArguments,
    progress: &dyn Progress,
) -> Result<Vec<u64>, Error> {
    if let Some(filter) = &arguments.filter {
        return index.ids_matching(filter, None, usize::MAX);
    }
    let mut ids = Vec::new();
    loop {
        goes_on(progress)?;
        let next = page(index, arguments, ids.last().copied())?;
        if next.is_empty() {
            return Ok(ids);
        }
        ids.extend(next);
    }
}

fn there(
    index: &Index,
    asked: &[u64],
    progress: &dyn Progress,
    missing: &mut Vec<u64>,
) -> Result<Vec<u64>, Error> {
    let mut ids = Vec::with_capacity(asked.len());
    for &id in asked {
        goes_on(progress)?;
        match index.contains(id)? {
            true => ids.push(id),
            false => missing.push(id),
        }
    }
    Ok(ids)
}

#[derive(Serialize)]
struct Line {
    id: u64,
    vector: Vec<f32>,
}

#[derive(Serialize)]
struct Row {
    id: u64,
    #[serde(flatten)]
    beside: Beside,
}

fn print(
    output: &mut Output,
    index: &Index,
    asked: &[u64],
    arguments: &GetArguments,
    progress: &dyn Progress,
    missing: &mut Vec<u64>,
) -> Result<(), Failure> {
    if arguments.list {
        for id in there(index, asked, progress, missing)? {
            output.line(id.to_string())?;
        }
        return Ok(());
    }
    if arguments.attributes {
        for (&id, row) in asked.iter().zip(index.attributes(asked)?) {
            let Some(row) = row else {
                missing.push(id);
                continue;
            };
            let beside = Beside::of(id, row)?;
            output.json_line(&Row { id, beside })?;
        }
        return Ok(());
    }
    let mut rows: Rows = index.vectors(asked, progress)?;
    missing.append(&mut rows.missing);
    for (place, &id) in rows.ids.iter().enumerate() {
        let vector = rows.floats(place).unwrap_or_default();
        if arguments.json {
            output.json_line(&Line { id, vector })?;
            continue;
        }
        let shown = vector.iter().take(ELEMENTS).map(f32::to_string);
        let more = if rows.dim > ELEMENTS { ", .." } else { "" };
        let shown = shown.collect::<Vec<_>>().join(", ");
        output.line(format!("{id}\t{shown}{more}"))?;
    }
    Ok(())
}

/// The vectors of `ids`, in this order. The index has all of these ids.
struct ById<'a> {
    index: &'a Index,
    ids: Vec<u64>,
    name: String,
    progress: &'a dyn Progress,
}

impl VectorSource for ById<'_> {
    fn rows(&self) -> usize {
        self.ids.len()
    }

    fn dim(&self) -> usize {
        self.index.dim()
    }

    fn element(&self) -> Element {
        self.index.element()
    }

    fn name(&self) -> &str {
        &self.name
    }

    fn read(&self, first: usize, out: &mut [u8]) -> Result<(), DataError> {
        let ids = &self.ids[first..first + out.len() / self.row_bytes()];
        let rows = self.index.vectors(ids, self.progress);
        let rows = rows.map_err(|error| DataError::Index(Box::new(error)))?;
        out.copy_from_slice(&rows.vectors);
        Ok(())
    }
}
