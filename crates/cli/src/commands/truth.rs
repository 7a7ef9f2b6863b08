//! `stratann truth BASE QUERIES OUT`

use stratann::GroundTruth;
use stratann_terminal::failure::Failure;
use stratann_terminal::output::{self, Output};
use stratann_terminal::progress::Shown;
use stratann_terminal::size;

use crate::args::{TruthArguments, threads_or_cores};
use crate::input::{Vectors, check_parquet, column_name};
use crate::parquet;

pub fn run(arguments: &TruthArguments, quiet: bool) -> Result<(), Failure> {
    GroundTruth::check_name(&arguments.out)?;
    output::refuse(&arguments.out, arguments.overwrite)?;
    let progress = Shown::new(quiet);
    let column = arguments.column.as_deref();
    if column.is_some() {
        check_parquet(&[&arguments.base, &arguments.queries])?;
    }
    let of = |file| Vectors {
        file,
        column,
        ids: None,
        memory: None,
    };
    let is_column = column.is_some() && parquet::is_one(&arguments.base);
    let named = arguments.ids.as_deref().filter(|_| is_column);
    let named = named.map(|ids| column_name(ids, &arguments.base));
    let base = Vectors {
        ids: named.transpose()?,
        ..of(&arguments.base)
    };
    let queries = of(&arguments.queries);
    let threads = threads_or_cores(arguments.threads);
    let separate = match &arguments.ids {
        Some(file) if base.ids.is_none() => Some(crate::ids::read(file)?),
        _ => None,
    };
    if column.is_some() {
        // The shapes are checked before the long copy of a file.
        let (base_shape, queries) = (base.shape()?, queries.shape()?);
        if let (Some(shape), Some(queries)) = (base_shape, queries) {
            stratann::check_brute_force(&shape, &queries, arguments.k, threads)?;
            if base.ids.is_none() {
                check_ids(arguments, separate.as_deref(), shape.rows)?;
            }
        }
    }
    let (queries, _) = queries.open(&progress)?;
    let (base, of_column) = base.open(&progress)?;
    let ids = separate.or(of_column);
    // The ids are checked before the computation, which may take hours.
    check_ids(arguments, ids.as_deref(), base.rows())?;
    let started = std::time::Instant::now();
    let mut truth = stratann::brute_force(
        &*base,
        &*queries,
        arguments.k,
        arguments.metric,
        threads,
        &progress,
    )?;
    // The ids are row numbers here, and `u64::MAX` for missing results.
    for id in truth.ids.iter_mut().filter(|id| **id != u64::MAX) {
        *id = match &ids {
            Some(ids) => ids[*id as usize],
            None => *id + arguments.first_id,
        };
    }
    truth.write(&arguments.out)?;
    let mut output = Output::lock();
    output.line(format!(
        "{}: the {} nearest neighbours of {}, in {}",
        arguments.out.display(),
        truth.k,
        size::queries(truth.queries as u64),
        size::seconds(started.elapsed().as_secs_f64())
    ))?;
    output.finish()
}

fn check_ids(arguments: &TruthArguments, ids: Option<&[u64]>, rows: usize) -> Result<(), Failure> {
    if let (Some(ids), Some(file)) = (ids, &arguments.ids)
        && ids.len() != rows
    {
        return Err(Failure::Wrong(format!(
            "{} has {}, and {} has {}. Give an id for each vector",
            file.display(),
            size::counted(ids.len() as u64, "id", "ids"),
            arguments.base.display(),
            size::vectors(rows as u64),
        )));
    }
    let Some(behind) = arguments.first_id.checked_add(rows as u64) else {
        return Err(Failure::Wrong(format!(
            "--first-id {} is too large; the ids of {rows} vectors would exceed 18446744073709551614. Give a smaller id",
            arguments.first_id,
        )));
    };
    let last = [behind.saturating_sub(1)];
    Ok(GroundTruth::check_ids(
        &arguments.out,
        ids.unwrap_or(&last),
    )?)
}
