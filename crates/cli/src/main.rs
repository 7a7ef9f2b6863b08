//! The `stratann` command: what a user types, and nothing of the engine.
//!
//! ```text
//! args.rs      what may be typed;   names.rs  values that have names, and what they mean to the engine
//! commands/    one file a command: read arguments, call the engine, print
//! bench/       `stratann bench`: jobs as data, runs in child processes, tables and plots
//! progress.rs  bars on a terminal, log lines elsewhere, the signals that end a program
//! table.rs     aligned tables;   output.rs  standard output, pipes that close early
//! ids.rs       ids in a file
//! size.rs      `2GiB`, `64MB` and back;   failure.rs  errors and exit statuses
//! ```
//!
//! Exit status: 0 done, 1 it failed, 2 the call was wrong.

#![forbid(unsafe_code)]

mod args;
mod bench;
mod commands;
mod failure;
mod ids;
mod names;
mod output;
mod progress;
mod size;
mod table;

use std::process::ExitCode;

use clap::Parser;

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
        Command::Truth(arguments) => commands::truth::run(&arguments, quiet),
        Command::Stats(arguments) => commands::stats::run(&arguments),
        Command::Insert(arguments) => commands::update::insert(&arguments, quiet),
        Command::Delete(arguments) => commands::update::delete(&arguments, quiet),
        Command::Compact(arguments) => commands::update::compact(&arguments, quiet),
        Command::Verify(arguments) => commands::verify::run(&arguments, quiet),
        Command::Repair(arguments) => commands::repair::run(&arguments, quiet),
        Command::Bench(arguments) => commands::bench::run(&arguments, quiet),
        Command::Presets(arguments) => commands::presets::run(&arguments),
        Command::Completions(arguments) => commands::completions::run(&arguments),
    };
    failure::report(outcome)
}
