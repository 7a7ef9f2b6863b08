//! The common part of `search` and `cluster search`: checks of list sizes, ground truth, and the
//! file of answers.

use std::path::Path;

use serde::Serialize;
use stratann::GroundTruth;
use stratann_terminal::failure::Failure;
use stratann_terminal::output::{self, Output};
use stratann_terminal::table::Table;

/// Refuses a file of answers that exists, or that would have to hold several measurements.
/// `options`: for each option, its name, a word for its values, and their number.
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

/// Refuses several measurements, since `taker` takes the answers of one.
pub fn check_one(taker: &str, options: &[(&str, &str, usize)]) -> Result<(), Failure> {
    match options.iter().find(|(_, _, values)| *values > 1) {
        None => Ok(()),
        Some((option, what, values)) => Err(Failure::Wrong(format!(
            "{option} has {values} values; {taker} takes the answers of one {what}. Give one"
        ))),
    }
}

/// The answers of a query as a line of JSON, fewer than k if there are no more.
#[derive(Serialize)]
struct Answers<'a> {
    query: usize,
    ids: &'a [u64],
    distances: &'a [f32],
}

/// Prints `k` ids and distances for each query: as a table, or as a line of JSON for each query.
pub fn print(
    output: &mut Output,
    json: bool,
    k: usize,
    ids: &[u64],
    distances: &[f32],
) -> Result<(), Failure> {
    let mut table = Table::new(&["query", "rank", "id", "distance"]);
    let rows = ids.chunks_exact(k).zip(distances.chunks_exact(k));
    for (query, (ids, distances)) in rows.enumerate() {
        let found = ids.partition_point(|&id| id != u64::MAX);
        let (ids, distances) = (&ids[..found], &distances[..found]);
        if json {
            output.json_line(&Answers {
                query,
                ids,
                distances,
            })?;
            continue;
        }
        for (rank, (id, distance)) in (1..).zip(ids.iter().zip(distances)) {
            table.row(vec![
                query.to_string(),
                rank.to_string(),
                id.to_string(),
                distance.to_string(),
            ]);
        }
        // Printed in parts, since a table of all rows would take more memory than the answers.
        if (query + 1).is_multiple_of(PRINTED) {
            output.text(table.render())?;
            table = Table::new(&["query", "rank", "id", "distance"]);
        }
    }
    if !json && !(ids.len() / k).is_multiple_of(PRINTED) {
        output.text(table.render())?;
    }
    Ok(())
}

/// Queries in one table of answers, after which another table begins.
const PRINTED: usize = 1_000;

/// Refuses a list that is too short for the answers.
pub fn check_lists(lists: &[usize], k: usize) -> Result<(), Failure> {
    match lists.iter().find(|list| **list < k) {
        None => Ok(()),
        Some(list) => Err(Failure::Wrong(format!(
            "--list {list} is smaller than k = {k}; a search returns the k best of its list. Give a list of at least {k}"
        ))),
    }
}

/// Writes `k` ids and distances for each query to a file.
pub fn write(path: &Path, k: usize, ids: &[u64], distances: &[f32]) -> Result<(), Failure> {
    Ok(GroundTruth::write_results(path, k, ids, distances)?)
}

/// Reads the ground truth of `rows` queries in a file, if there is one.
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

/// Checks that the ground truth belongs to these queries.
fn fits(
    truth: &GroundTruth,
    path: &Path,
    rows: usize,
    queries: &Path,
    k: usize,
) -> Result<(), Failure> {
    if truth.queries != rows {
        return Err(Failure::Wrong(format!(
            "{} has the answers of {} queries, and {} has {rows} queries. Give the ground truth of these queries \
             (`stratann truth` computes it)",
            path.display(),
            truth.queries,
            queries.display(),
        )));
    }
    if truth.k < k {
        return Err(Failure::Wrong(format!(
            "{} has {} neighbours a query, fewer than k = {k}. Lower k, or compute more with `stratann truth -k {k}`",
            path.display(),
            truth.k,
        )));
    }
    Ok(())
}
