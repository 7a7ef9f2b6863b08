//! The common part of `search` and `cluster search`.

use std::path::Path;

use serde::Serialize;
use stratann::GroundTruth;
use stratann_terminal::failure::Failure;
use stratann_terminal::output::{self, Output};
use stratann_terminal::size;
use stratann_terminal::table::Table;

use super::beside::{AllBeside, Shown};

/// `options` has the name of each option, a word for one value, and the number of values.
pub fn check_out(
    out: Option<&Path>,
    overwrite: bool,
    options: &[(&str, &str, usize)],
) -> Result<(), Failure> {
    let Some(out) = out else {
        return Ok(());
    };
    check_one("--out", options)?;
    output::refuse(out, overwrite)
}

/// Refuses an option with several values, because `taker` takes the results of one value.
pub fn check_one(taker: &str, options: &[(&str, &str, usize)]) -> Result<(), Failure> {
    match options.iter().find(|(_, _, values)| *values > 1) {
        None => Ok(()),
        Some((option, what, values)) => Err(Failure::Wrong(format!(
            "{option} has {values} values; {taker} takes the results of one {what}. Give one value"
        ))),
    }
}

#[derive(Serialize)]
struct Answers<'a> {
    query: usize,
    ids: &'a [u64],
    distances: &'a [f32],
    #[serde(flatten)]
    beside: Option<AllBeside>,
}

pub fn table(shown: Option<&Shown<'_>>) -> Table {
    let columns = &["query", "rank", "id", "distance"][..];
    Table::new(&[columns, shown.map_or(&[], Shown::columns)].concat())
}

/// Prints the results as a table or as JSON lines, with the attributes `shown`.
pub fn print(
    output: &mut Output,
    json: bool,
    k: usize,
    (ids, distances): (&[u64], &[f32]),
    shown: Option<&Shown<'_>>,
) -> Result<(), Failure> {
    let mut lines = table(shown);
    let rows = ids.chunks_exact(k).zip(distances.chunks_exact(k));
    for (query, (ids, distances)) in rows.enumerate() {
        let found = ids.partition_point(|&id| id != u64::MAX);
        let (ids, distances) = (&ids[..found], &distances[..found]);
        let beside = shown.map(|shown| shown.read(ids)).transpose()?;
        if json {
            output.json_line(&Answers {
                query,
                ids,
                distances,
                beside,
            })?;
            continue;
        }
        add_rows(&mut lines, (query, 1), (ids, distances), beside.as_ref());
        // A single table of all queries would take more memory than the results.
        if (query + 1).is_multiple_of(PRINTED) {
            output.text(lines.render())?;
            lines = table(shown);
        }
    }
    if !json && !(ids.len() / k).is_multiple_of(PRINTED) {
        output.text(lines.render())?;
    }
    Ok(())
}

/// `first` is the rank of the first result.
pub fn add_rows(
    table: &mut Table,
    (query, first): (usize, usize),
    (ids, distances): (&[u64], &[f32]),
    beside: Option<&AllBeside>,
) {
    for (at, (id, distance)) in ids.iter().zip(distances).enumerate() {
        let mut cells = vec![
            query.to_string(),
            (first + at).to_string(),
            id.to_string(),
            distance.to_string(),
        ];
        cells.extend(beside.into_iter().flat_map(|beside| beside.cells(at)));
        table.row(cells);
    }
}

const PRINTED: usize = 1_000;

pub fn check_lists(lists: &[usize], k: usize) -> Result<(), Failure> {
    match lists.iter().find(|list| **list < k) {
        None => Ok(()),
        Some(list) => Err(Failure::Wrong(format!(
            "--list {list} is smaller than k = {k}; a search returns the k best candidates of its list. Give a list size of at least {k}"
        ))),
    }
}

pub fn write(path: &Path, k: usize, ids: &[u64], distances: &[f32]) -> Result<(), Failure> {
    Ok(GroundTruth::write_results(path, k, ids, distances)?)
}

pub fn truth(
    path: Option<&Path>,
    rows: usize,
    queries: &Path,
    k: usize,
) -> Result<Option<GroundTruth>, Failure> {
    let Some(path) = path else {
        return Ok(None);
    };
    let truth = GroundTruth::read_nearest(path, k)?;
    fits(&truth, path, rows, queries, k)?;
    Ok(Some(truth))
}

fn fits(
    truth: &GroundTruth,
    path: &Path,
    rows: usize,
    queries: &Path,
    k: usize,
) -> Result<(), Failure> {
    if truth.queries != rows {
        return Err(Failure::Wrong(format!(
            "{} has the answers of {}, and {} has {}. Give the ground truth of these queries \
             (`stratann truth` computes it)",
            path.display(),
            size::queries(truth.queries as u64),
            queries.display(),
            size::queries(rows as u64),
        )));
    }
    if truth.k < k {
        return Err(Failure::Wrong(format!(
            "{} has {} neighbours for each query, fewer than k = {k}. Lower k, or compute more with `stratann truth -k {k}`",
            path.display(),
            truth.k,
        )));
    }
    Ok(())
}
