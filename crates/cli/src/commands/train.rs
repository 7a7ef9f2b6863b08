//! `stratann train BASE CODEBOOK`

use std::time::Instant;

use serde::Serialize;
use stratann::{Codebook, Error, TrainOptions, VectorFile, VectorSource};
use stratann_terminal::failure::Failure;
use stratann_terminal::output::{self, Output};
use stratann_terminal::progress::{self, Shown};
use stratann_terminal::size;
use stratann_terminal::table::facts;

use crate::args::{TrainArguments, threads_or_cores};

#[derive(Debug, Serialize)]
struct Trained {
    codebook: String,
    /// BLAKE3 of the centroids.
    hash: String,
    dimension: usize,
    code_bytes: usize,
    /// The size of the file.
    bytes: u64,
    seconds: f64,
}

pub fn run(arguments: &TrainArguments, quiet: bool) -> Result<(), Failure> {
    let source = VectorFile::open(&arguments.base)?;
    output::refuse(&arguments.codebook, arguments.overwrite)?;
    let options = TrainOptions {
        metric: arguments.metric,
        code_bytes: arguments.code_bytes,
        threads: threads_or_cores(arguments.threads),
        seed: arguments.seed,
        low_codes: arguments.low_codes,
    };
    let shown = Shown::new(quiet);
    let started = Instant::now();
    let codebook = Codebook::train(&source, &options, &shown)?;
    if progress::interrupted() {
        return Err(Error::Interrupted.into());
    }
    codebook.write(&arguments.codebook)?;
    let written = std::fs::metadata(&arguments.codebook);
    let written = written.map_err(|error| Failure::file("read", &arguments.codebook, &error))?;
    let trained = Trained {
        codebook: arguments.codebook.display().to_string(),
        hash: codebook.hash().to_owned(),
        dimension: codebook.dim(),
        code_bytes: codebook.code_bytes(),
        bytes: written.len(),
        seconds: started.elapsed().as_secs_f64(),
    };
    let mut output = Output::lock();
    if arguments.json {
        output.json_line(&trained)?;
        return output.finish();
    }
    let vectors = format!("of {} {}", source.dim(), source.element());
    output.text(facts(&[
        ("codebook", trained.codebook),
        ("for vectors", vectors),
        ("code", format!("{} bytes a vector", trained.code_bytes)),
        ("hash", trained.hash),
        ("on storage", size::format(trained.bytes)),
        ("time", size::seconds(trained.seconds)),
    ]))?;
    output.finish()
}
