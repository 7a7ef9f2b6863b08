//! `stratann calibrate INDEX [QUERIES]`

use stratann::OpenOptions;
use stratann_terminal::failure::Failure;
use stratann_terminal::output::Output;
use stratann_terminal::progress::Shown;
use stratann_terminal::table::Table;

use crate::args::{CalibrateArguments, threads_or_cores};
use crate::input::{check_parquet, vectors};

/// Measures recall, and prints it by list size, or by probes.
pub fn run(arguments: &CalibrateArguments, quiet: bool) -> Result<(), Failure> {
    let progress = Shown::new(quiet);
    let column = arguments.column.as_deref();
    let queries = arguments.queries.as_deref();
    if let Some(file) = queries.filter(|_| column.is_some()) {
        check_parquet(&[file])?;
    }
    let queries = queries.map(|file| vectors(file, column, arguments.memory, &progress));
    let queries = queries.transpose()?;
    let open = OpenOptions {
        memory: arguments.memory,
        ..OpenOptions::default()
    };
    let found = stratann::calibrate(
        &arguments.index,
        &open,
        queries.as_deref(),
        threads_or_cores(arguments.threads),
        &progress,
    )?;
    let mut output = Output::lock();
    if arguments.json {
        output.json_document(&found)?;
        return output.finish();
    }
    let width = match found.probes {
        true => "probes",
        false => "list",
    };
    let mut table = Table::new(&[width, "recall"]);
    for (list, recall) in &found.recalls {
        table.row(vec![list.to_string(), format!("{recall:.4}")]);
    }
    output.text(table.render())?;
    output.finish()
}
