//! `stratann repair INDEX`

use stratann::{RepairOptions, RepairReport};
use stratann_terminal::failure::Failure;
use stratann_terminal::output::Output;
use stratann_terminal::progress::Shown;
use stratann_terminal::size;
use stratann_terminal::table::{Table, facts};

use crate::args::{RepairArguments, threads_or_cores};

pub fn run(arguments: &RepairArguments, quiet: bool) -> Result<(), Failure> {
    let options = RepairOptions {
        threads: threads_or_cores(arguments.threads),
        memory: arguments.memory,
        force: arguments.force,
    };
    let report = stratann::repair(&arguments.index, &options, &Shown::new(quiet))?;
    let mut output = Output::lock();
    if arguments.json {
        output.json_document(&report)?;
        return output.finish();
    }
    let mut lines = vec![("index", arguments.index.display().to_string())];
    if report.repaired {
        let log = match report.from_log {
            0 => String::new(),
            n => format!(", {} of them from the log", size::count(n)),
        };
        lines.push(("vectors", size::count(report.vectors) + &log));
        lines.push(("lost", size::count(report.vectors_lost)));
        let storage = format!(
            "{}, before the repair {}",
            size::format(report.bytes_after),
            size::format(report.bytes_before)
        );
        lines.push(("on storage", storage));
        lines.push(("repaired", format!("in {}", size::seconds(report.seconds))));
    } else {
        lines.push(("vectors", size::count(report.vectors)));
        lines.push(("repaired", "nothing: the index has no damage".into()));
    }
    output.text(facts(&lines))?;
    if !report.lost.is_empty() {
        output.line("")?;
        output.text(damage(&report).render())?;
    }
    output.finish()
}

fn damage(report: &RepairReport) -> Table {
    let mut table = Table::new(&["<file", "vectors lost", "<damage"]);
    for lost in &report.lost {
        let vectors = match lost.vectors {
            0 => "none".to_owned(),
            n => size::count(n),
        };
        table.row(vec![lost.file.clone(), vectors, lost.what.clone()]);
    }
    table
}
