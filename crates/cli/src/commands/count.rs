//! `stratann count INDEX`

use serde::Serialize;
use stratann::{Index, OpenOptions};
use stratann_terminal::failure::Failure;
use stratann_terminal::output::Output;

use crate::args::CountArguments;

/// The output of `--json`.
#[derive(Serialize)]
struct Counted {
    /// All vectors that a search can find.
    vectors: u64,
    /// The vectors that match the filter.
    matching: u64,
}

/// Prints the number of vectors, or of vectors that match a filter.
pub fn run(arguments: &CountArguments) -> Result<(), Failure> {
    let index = Index::open(&arguments.index, &OpenOptions::default())?;
    let vectors = index.live() as u64;
    let matching = match &arguments.filter {
        Some(filter) => index.count(filter)?,
        None => vectors,
    };
    let mut output = Output::lock();
    match arguments.json {
        true => output.json_line(&Counted { vectors, matching })?,
        false => output.line(matching.to_string())?,
    }
    output.finish()
}
