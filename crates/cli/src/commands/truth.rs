//! `stratann truth BASE QUERIES OUT`

use stratann::GroundTruth;
use stratann_terminal::failure::Failure;
use stratann_terminal::output::{self, Output};
use stratann_terminal::progress::Shown;
use stratann_terminal::size;

use crate::args::{TruthArguments, threads_or_cores};
use crate::input::{check_parquet, vectors};

/// Computes the exact neighbours, and writes them.
pub fn run(arguments: &TruthArguments, quiet: bool) -> Result<(), Failure> {
    GroundTruth::check_name(&arguments.out)?;
    output::refuse(&arguments.out, arguments.overwrite)?;
    let progress = Shown::new(quiet);
    let column = arguments.column.as_deref();
    if column.is_some() {
        check_parquet(&[&arguments.base, &arguments.queries])?;
    }
    let queries = vectors(&arguments.queries, column, None, &progress)?;
    let base = vectors(&arguments.base, column, None, &progress)?;
    let ids = match &arguments.ids {
        Some(file) => Some(crate::ids::read(file)?),
        None => None,
    };
    if let (Some(ids), Some(file)) = (&ids, &arguments.ids)
        && ids.len() != base.rows()
    {
        return Err(Failure::Wrong(format!(
            "{} has {} ids, and {} has {} vectors. Give an id for each vector",
            file.display(),
            ids.len(),
            arguments.base.display(),
            base.rows()
        )));
    }
    let Some(behind) = arguments.first_id.checked_add(base.rows() as u64) else {
        return Err(Failure::Wrong(format!(
            "--first-id {} is too large; the ids of {} vectors would exceed 18446744073709551614. Give a smaller one",
            arguments.first_id,
            base.rows()
        )));
    };
    // The ids are checked before the computation, which may take hours.
    match &ids {
        Some(ids) => GroundTruth::check_ids(&arguments.out, ids)?,
        None => GroundTruth::check_ids(&arguments.out, &[behind.saturating_sub(1)])?,
    }
    let threads = threads_or_cores(arguments.threads);
    let started = std::time::Instant::now();
    let mut truth = stratann::brute_force(
        &*base,
        &*queries,
        arguments.k,
        arguments.metric,
        threads,
        &progress,
    )?;
    // Row numbers so far, and placeholders if there are fewer than k.
    for id in truth.ids.iter_mut().filter(|id| **id != u64::MAX) {
        *id = match &ids {
            Some(ids) => ids[*id as usize],
            None => *id + arguments.first_id,
        };
    }
    truth.write(&arguments.out)?;
    let mut output = Output::lock();
    output.line(format!(
        "{}: the {} nearest of {} queries, in {}",
        arguments.out.display(),
        truth.k,
        size::count(truth.queries as u64),
        size::seconds(started.elapsed().as_secs_f64())
    ))?;
    output.finish()
}
