//! `stratann export INDEX --out FILE`

use stratann::{ExportOptions, Index, OpenOptions};
use stratann_terminal::failure::Failure;
use stratann_terminal::output::Output;
use stratann_terminal::progress::Shown;
use stratann_terminal::size;
use stratann_terminal::table::facts;

use crate::args::ExportArguments;

pub fn run(arguments: &ExportArguments, quiet: bool) -> Result<(), Failure> {
    let open = OpenOptions {
        memory: arguments.memory,
        unpack: false,
        ..OpenOptions::default()
    };
    let options = ExportOptions {
        ids: arguments.ids.clone(),
        attributes: arguments.attributes.clone(),
        overwrite: arguments.overwrite,
    };
    let index = Index::open(&arguments.index, &open)?;
    let report = index.export(&arguments.out, &options, &Shown::new(quiet))?;
    let mut output = Output::lock();
    if arguments.json {
        output.json_document(&report)?;
        return output.finish();
    }
    let (vectors, dimension) = (size::count(report.vectors), report.dimension);
    let mut lines = vec![
        ("index", arguments.index.display().to_string()),
        (
            "vectors",
            format!("{vectors} of {dimension} x {}", report.element),
        ),
        ("written to", report.out.display().to_string()),
        ("their ids", report.ids.display().to_string()),
    ];
    if let Some(path) = &report.attributes {
        lines.push(("their attributes", path.display().to_string()));
    }
    // A build from these files needs these options.
    if !report.times.is_empty() {
        lines.push(("keys of times", report.times.join(",")));
    }
    if let Some(key) = &report.payload {
        lines.push(("key of the payload", key.clone()));
    }
    lines.push(("exported", format!("in {}", size::seconds(report.seconds))));
    output.text(facts(&lines))?;
    output.finish()
}
