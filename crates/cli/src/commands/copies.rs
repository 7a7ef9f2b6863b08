//! `stratann copies [INDEX] --place ..`

use serde_json::json;
use stratann::Copies;
use stratann_terminal::failure::Failure;
use stratann_terminal::output::Output;
use stratann_terminal::size;
use stratann_terminal::table::Table;

use crate::args::CopiesArguments;

/// Lists the copies at places, and removes unused ones if requested.
pub fn run(arguments: &CopiesArguments) -> Result<(), Failure> {
    let places = arguments.places.all()?;
    if places.is_empty() {
        return Err(Failure::Wrong(
            "--place is missing. Name the place to look at, for example --place topology=mapped:/dev/shm/x".to_owned(),
        ));
    }
    let index = arguments.index.as_deref();
    let copies = match arguments.remove {
        true => stratann::remove_copies(index, &places)?,
        false => stratann::copies(index, &places)?,
    };
    let mut output = Output::lock();
    if arguments.json {
        output.json_document(&json!({ "copies": copies }))?;
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
        Some(false) => "another",
        None => "",
    }
}

fn used(found: &Copies) -> &'static str {
    match (found.removed, found.in_use) {
        (true, _) => "removed",
        (false, true) => "in use",
        (false, false) => "no",
    }
}
