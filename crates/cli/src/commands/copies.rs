//! `stratann copies [INDEX] --place ..`

use serde::Serialize;
use serde_json::json;
use stratann::Copies;
use stratann_terminal::failure::Failure;
use stratann_terminal::output::Output;
use stratann_terminal::size;
use stratann_terminal::table::Table;

use crate::args::CopiesArguments;

#[derive(Serialize)]
struct Listed<'a> {
    #[serde(flatten)]
    found: &'a Copies,
    state: &'static str,
}

/// Lists the copies. `--remove` removes the copies that no process uses.
pub fn run(arguments: &CopiesArguments) -> Result<(), Failure> {
    let places = arguments.places.all()?;
    if places.is_empty() {
        return Err(Failure::Wrong(
            "--place is missing. Name the tier that has the copies, for example --place topology=mapped:/dev/shm/x".to_owned(),
        ));
    }
    let index = arguments.index.as_deref();
    let copies = match arguments.remove {
        true => stratann::remove_copies(index, &places)?,
        false => stratann::copies(index, &places)?,
    };
    let mut output = Output::lock();
    if arguments.json {
        let listed = copies.iter().map(|found| Listed {
            found,
            state: state(found),
        });
        let listed: Vec<Listed<'_>> = listed.collect();
        output.json_document(&json!({ "copies": listed }))?;
        return output.finish();
    }
    let mut table = Table::new(&["<copies", "<state", "files", "bytes", "<used"]);
    for found in &copies {
        table.row(vec![
            found.name.clone(),
            state(found).to_owned(),
            found.files.to_string(),
            size::format(found.bytes),
            used(found).to_owned(),
        ]);
    }
    output.text(table.render())?;
    let bytes: u64 = copies.iter().map(|found| found.bytes).sum();
    output.line(format!("{} in all", size::format(bytes)))?;
    output.finish()
}

fn state(found: &Copies) -> &'static str {
    match found.current {
        Some(true) => "current",
        Some(false) => "outdated",
        // The copies cannot be compared with their index: it was not named, or no longer exists.
        None => "unknown",
    }
}

fn used(found: &Copies) -> &'static str {
    match (found.removed, found.in_use) {
        (true, _) => "removed",
        (false, true) => "in use",
        (false, false) => "no",
    }
}
