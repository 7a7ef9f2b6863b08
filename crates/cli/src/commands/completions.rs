//! `stratann completions SHELL`

use clap::CommandFactory;
use stratann_terminal::failure::Failure;
use stratann_terminal::output::Output;

use crate::args::{Arguments, CompletionsArguments};

pub fn run(arguments: &CompletionsArguments) -> Result<(), Failure> {
    // The generator panics if a write fails, so the script goes to memory first.
    let mut script = Vec::new();
    clap_complete::generate(
        arguments.shell,
        &mut Arguments::command(),
        "stratann",
        &mut script,
    );
    let mut output = Output::lock();
    output.text(String::from_utf8_lossy(&script))?;
    output.finish()
}
