//! `stratann verify INDEX`

use stratann::{Layout, VerifyReport};
use stratann_terminal::failure::Failure;
use stratann_terminal::output::Output;
use stratann_terminal::progress::Shown;
use stratann_terminal::size;
use stratann_terminal::table::facts;

use crate::args::VerifyArguments;

/// Reads all files of an index. Fails if anything is damaged.
pub fn run(arguments: &VerifyArguments, quiet: bool) -> Result<(), Failure> {
    let progress = Shown::new(quiet);
    let places = arguments.places.all()?;
    let report = stratann::verify_placed(&arguments.index, &places, &progress)?;
    match print(arguments, &report) {
        // If the reader closes the output, the exit status still reports damage.
        Ok(()) | Err(Failure::Closed) => {}
        Err(failure) => return Err(failure),
    }
    let index = arguments.index.display();
    let problems = match report.problem_count {
        0 => return Ok(()),
        1 => "1 problem".to_owned(),
        n => format!("{n} problems"),
    };
    // Without a readable MANIFEST no file was read, and no repair is possible.
    let remedy = match report.files {
        _ if report.unread == report.problem_count => {
            "these files could not be checked, and may have no damage. Remove the listed causes, then verify again".to_owned()
        }
        _ if report.original_problems == Some(0) => {
            let places = arguments.places.all()?;
            format!(
                "the index itself has no damage. `stratann copies {index} --place {places} --remove` removes the damaged copies, and the next opening of the index \
                 makes new copies"
            )
        }
        0 => "restore a copy of the index, or rebuild it from its source".to_owned(),
        _ => {
            let whose = match report.original_problems {
                Some(_) => "the index itself is damaged too. ",
                None => "",
            };
            format!(
                "{whose}`stratann repair {index}` rebuilds the index from its readable vectors"
            )
        }
    };
    Err(Failure::Failed(format!(
        "{index}: {problems}, listed above; {remedy}"
    )))
}

fn print(arguments: &VerifyArguments, report: &VerifyReport) -> Result<(), Failure> {
    let mut output = Output::lock();
    if arguments.json {
        output.json_document(report)?;
        return output.finish();
    }
    let mut lines = vec![
        ("index", arguments.index.display().to_string()),
        ("files", report.files.to_string()),
        ("bytes", size::count(report.bytes)),
    ];
    match report.layout.parse() {
        Ok(layout) if Layout::has_clusters(layout) => lines.extend([
            ("clusters", size::count(report.pages)),
            ("vectors", size::count(report.nodes)),
        ]),
        layout => {
            // Rows without padding have no pages of their own.
            if !matches!(layout, Ok(Layout::Csr)) {
                lines.push(("pages", size::count(report.pages)));
            }
            lines.extend([
                ("nodes", size::count(report.nodes)),
                ("edges", size::count(report.edges)),
            ]);
        }
    }
    lines.push(("log records", size::count(report.log_records)));
    output.text(facts(&lines))?;
    for problem in &report.problems {
        if problem.what.starts_with(&problem.file) {
            output.line(&problem.what)?;
            continue;
        }
        let place = problem
            .offset
            .map_or(String::new(), |offset| format!(", byte {offset}"));
        output.line(format!("{}{place}: {}", problem.file, problem.what))?;
    }
    if report.clean() {
        output.line("clean")?;
    }
    output.finish()
}
