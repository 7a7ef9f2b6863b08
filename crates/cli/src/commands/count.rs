//! `stratann count INDEX`

use serde::Serialize;
use stratann::{Index, OpenOptions};
use stratann_terminal::failure::Failure;
use stratann_terminal::output::Output;

use crate::args::CountArguments;

#[derive(Serialize)]
struct Counted {
    vectors: u64,
    matching: u64,
}

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
