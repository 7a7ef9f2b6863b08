//! The `stratann` command: its arguments and output.
//!
//! ```text
//! args.rs      the arguments;   names.rs  named values, and their meaning for the engine
//! commands/    one file a command (`cluster/` has several): read arguments, call the engine, print
//! input.rs     vectors, their ids and attributes, from files
//! ids.rs       ids in a file
//! config.rs    options of servers in a file
//! parquet/     Parquet files
//! ```
//!
//! `stratann_terminal` has the output and the exit statuses, `stratann_bench` the work of
//! `stratann bench`.
//!
//! Exit status: 0 success, 1 failure, 2 a wrong call. A signal that stops a command also ends it.

#![forbid(unsafe_code)]

mod args;
mod commands;
mod config;
mod ids;
mod input;
mod names;
mod parquet;
mod pipe;

use std::io::Write;
use std::process::ExitCode;

use clap::{CommandFactory, Parser};
use stratann_terminal::logger::Form;
use stratann_terminal::{failure, logger, progress};

use crate::args::{Arguments, ClusterCommand, Command};

/// If the system refuses memory, the command ends with status 1, and not by a signal.
#[global_allocator]
static ALLOCATOR: stratann::RecordingAllocator = stratann::RecordingAllocator;

/// `STRATANN_LOG` overrides the level. A server's log is read later, so its lines have times.
fn logged(arguments: &Arguments) -> (log::LevelFilter, Form) {
    let server = match &arguments.command {
        Command::MemoryServer(of) => Some(&of.server),
        Command::StorageServer(of) => Some(&of.server),
        Command::ComputeServer(of) => Some(&of.server),
        Command::Cluster(ClusterCommand::Up(of)) => Some(&of.server),
        _ => None,
    };
    let form = match server {
        None => Form::Plain,
        Some(server) if server.log_json => Form::Json,
        Some(_) => Form::Timed,
    };
    let level = match server {
        _ if arguments.quiet => log::LevelFilter::Error,
        None => log::LevelFilter::Warn,
        Some(_) => log::LevelFilter::Info,
    };
    (level, form)
}

fn main() -> ExitCode {
    stratann::share_arenas_under_a_limit();
    if let Err(error) = stratann::explain_aborts() {
        // Without this handler, refused memory ends the command by a signal.
        let _ = writeln!(
            std::io::stderr(),
            "warning: the handler for refused memory is missing ({error}). If the system refuses memory, a signal ends the command"
        );
    }
    let mut typed = Arguments::command();
    typed.build();
    let words = config::expanded(std::env::args_os().collect(), &typed);
    let words = match words {
        Ok(words) => words,
        Err(failure) => return failure::report(Err(failure)),
    };
    // clap prints its own error with the closest match, and exits with status 2.
    let arguments = match Arguments::try_parse_from(&words.words) {
        Ok(arguments) => arguments,
        Err(error) => {
            let _ = error.print();
            if let Some(note) = words.note(&error) {
                let _ = writeln!(std::io::stderr(), "{note}");
            }
            return ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2));
        }
    };
    let (level, form) = logged(&arguments);
    logger::install(level, form);
    progress::outlive_limits();
    progress::end_at_interrupts();
    let quiet = arguments.quiet;
    let outcome = match arguments.command {
        Command::Build(arguments) => commands::build::run(&arguments, quiet),
        Command::Create(arguments) => commands::build::create(&arguments, quiet),
        Command::Plan(arguments) => commands::plan::run(&arguments, quiet),
        Command::Train(arguments) => commands::train::run(&arguments, quiet),
        Command::Search(arguments) => commands::search::run(&arguments, quiet),
        Command::Advise(arguments) => commands::advise::run(&arguments, quiet),
        Command::Truth(arguments) => commands::truth::run(&arguments, quiet),
        Command::Stats(arguments) => commands::stats::run(&arguments),
        Command::Insert(arguments) => commands::insert::run(&arguments, quiet),
        Command::Delete(arguments) => commands::update::delete(&arguments, quiet),
        Command::SetAttributes(arguments) => commands::update::set_attributes(&arguments, quiet),
        Command::Calibrate(arguments) => commands::calibrate::run(&arguments, quiet),
        Command::Get(arguments) => commands::get::run(&arguments, quiet),
        Command::Count(arguments) => commands::count::run(&arguments),
        Command::Compact(arguments) => commands::update::compact(&arguments, quiet),
        Command::Verify(arguments) => commands::verify::run(&arguments, quiet),
        Command::Repair(arguments) => commands::repair::run(&arguments, quiet),
        Command::Snapshot(arguments) => commands::snapshot::run(&arguments, quiet),
        Command::Export(arguments) => commands::export::run(&arguments, quiet),
        Command::Bench(arguments) => commands::bench::run(&arguments, quiet),
        Command::Copies(arguments) => commands::copies::run(&arguments),
        Command::MemoryServer(arguments) => commands::memory_server::run(&arguments, quiet),
        Command::StorageServer(arguments) => commands::servers::storage(&arguments),
        Command::ComputeServer(arguments) => commands::servers::compute(&arguments),
        Command::Cluster(command) => commands::cluster::run(&command, quiet),
        Command::Presets(arguments) => commands::presets::run(&arguments),
        Command::Completions(arguments) => commands::completions::run(&arguments),
    };
    failure::report(outcome)
}
