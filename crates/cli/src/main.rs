//! The `stratann` command: what a user types, and nothing of the engine.
//!
//! ```text
//! args.rs      what may be typed;   names.rs  values that have names, and what they mean to the engine
//! commands/    one file a command: read arguments, call the engine, print
//! ids.rs       ids in a file
//! ```
//!
//! How that is printed, and how a command ends, is in `stratann_terminal`; what `stratann bench` does in `stratann_bench`.
//!
//! Exit status: 0 done, 1 it failed, 2 the call was wrong.

#![forbid(unsafe_code)]

mod args;
mod commands;
mod ids;
mod names;

use std::process::ExitCode;

use clap::Parser;
use stratann_terminal::{failure, progress};

use crate::args::{Arguments, Command};

fn main() -> ExitCode {
    // clap prints its own complaint, with the closest match, and leaves with status 2.
    let arguments = Arguments::parse();
    progress::install_logger(arguments.quiet);
    progress::outlive_limits();
    let quiet = arguments.quiet;
    let outcome = match arguments.command {
        Command::Build(arguments) => commands::build::run(&arguments, quiet),
        Command::Train(arguments) => commands::train::run(&arguments, quiet),
        Command::Search(arguments) => commands::search::run(&arguments),
        Command::Advise(arguments) => commands::advise::run(&arguments, quiet),
        Command::Truth(arguments) => commands::truth::run(&arguments, quiet),
        Command::Stats(arguments) => commands::stats::run(&arguments),
        Command::Insert(arguments) => commands::update::insert(&arguments, quiet),
        Command::Delete(arguments) => commands::update::delete(&arguments, quiet),
        Command::Compact(arguments) => commands::update::compact(&arguments, quiet),
        Command::Verify(arguments) => commands::verify::run(&arguments, quiet),
        Command::Repair(arguments) => commands::repair::run(&arguments, quiet),
        Command::Bench(arguments) => commands::bench::run(&arguments, quiet),
        Command::Copies(arguments) => commands::copies::run(&arguments),
        Command::MemoryServer(arguments) => commands::memory_server::run(&arguments),
        Command::Presets(arguments) => commands::presets::run(&arguments),
        Command::Completions(arguments) => commands::completions::run(&arguments),
    };
    failure::report(outcome)
}
