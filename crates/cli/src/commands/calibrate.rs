//! `stratann calibrate INDEX [QUERIES]`

use stratann::OpenOptions;
use stratann_terminal::failure::Failure;
use stratann_terminal::output::Output;
use stratann_terminal::progress::Shown;
use stratann_terminal::table::Table;

use crate::args::{CalibrateArguments, threads_or_cores};
use crate::input::{Vectors, check_parquet};

pub fn run(arguments: &CalibrateArguments, quiet: bool) -> Result<(), Failure> {
    let progress = Shown::new(quiet);
    let open = OpenOptions {
        memory: arguments.memory,
        ..OpenOptions::default()
    };
    let column = arguments.column.as_deref();
    let file = arguments.queries.as_deref();
    let vectors = file.map(|file| Vectors {
        file,
        column,
        ids: None,
        memory: Some(arguments.memory),
    });
    if let Some(vectors) = &vectors {
        if column.is_some() {
            check_parquet(&[vectors.file])?;
        }
        if let Some(outline) = vectors.outline()? {
            stratann::check_calibration(&arguments.index, &open, &outline)?;
        }
    }
    let queries = vectors.map(|vectors| vectors.open(&progress)).transpose()?;
    let queries = queries.map(|(queries, _)| queries);
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
