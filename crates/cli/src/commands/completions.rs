//! `stratann completions SHELL`

use clap::CommandFactory;
use stratann_terminal::failure::Failure;
use stratann_terminal::output::Output;

use crate::args::{Arguments, CompletionsArguments};

/// Prints the script.
pub fn run(arguments: &CompletionsArguments) -> Result<(), Failure> {
    // The script is written to memory first: the generator panics if a write fails, for example to
    // a closed pipe.
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
