//! `stratann truth BASE QUERIES OUT`

use stratann::{GroundTruth, VectorFile};
use stratann_terminal::failure::Failure;
use stratann_terminal::output::{self, Output};
use stratann_terminal::progress::Shown;
use stratann_terminal::size;

use crate::args::{TruthArguments, threads_or_cores};

/// Computes and writes it.
pub fn run(arguments: &TruthArguments, quiet: bool) -> Result<(), Failure> {
    let base = VectorFile::open(&arguments.base)?;
    let queries = VectorFile::open(&arguments.queries)?;
    GroundTruth::check_name(&arguments.out)?;
    output::refuse(&arguments.out, arguments.overwrite)?;
    let progress = Shown::new(quiet);
    let threads = threads_or_cores(arguments.threads);
    let started = std::time::Instant::now();
    let truth = stratann::brute_force(
        &base,
        &queries,
        arguments.k,
        arguments.metric,
        threads,
        &progress,
    )?;
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
