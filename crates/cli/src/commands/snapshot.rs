//! `stratann snapshot INDEX DEST`

use stratann_terminal::failure::Failure;
use stratann_terminal::output::Output;
use stratann_terminal::progress::Shown;
use stratann_terminal::size;
use stratann_terminal::table::facts;

use crate::args::SnapshotArguments;

pub fn run(arguments: &SnapshotArguments, quiet: bool) -> Result<(), Failure> {
    let (index, dest) = (&arguments.index, &arguments.dest);
    let report = stratann::snapshot(index, dest, &Shown::new(quiet))?;
    let mut output = Output::lock();
    if arguments.json {
        output.json_document(&report)?;
        return output.finish();
    }
    let mut bytes = size::format(report.bytes);
    if report.shared_bytes > 0 {
        let shared = size::format(report.shared_bytes);
        bytes += &format!(", including {shared} in blocks shared with the original");
    }
    let changes = format!("{}, in the log", size::count(report.log_records));
    let mut lines = vec![
        ("index", index.display().to_string()),
        ("copy", dest.display().to_string()),
        ("files", size::count(report.files)),
        ("on storage", bytes),
        ("changes since the checkpoint", changes),
    ];
    if report.tries > 1 {
        let tries = format!(
            "{} times, because checkpoints were made during the copy",
            report.tries
        );
        lines.push(("begun", tries));
    }
    lines.push(("copied", format!("in {}", size::seconds(report.seconds))));
    output.text(facts(&lines))?;
    output.finish()
}
