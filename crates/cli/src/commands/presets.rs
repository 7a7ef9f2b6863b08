//! `stratann presets`

use stratann::{Preset, Rerank};
use stratann_terminal::failure::Failure;
use stratann_terminal::output::Output;
use stratann_terminal::table::Table;

use crate::args::PresetsArguments;

pub fn run(arguments: &PresetsArguments) -> Result<(), Failure> {
    let mut output = Output::lock();
    if arguments.json {
        for preset in Preset::ALL {
            output.json_line(&preset)?;
        }
        return output.finish();
    }
    let mut table = Table::new(&[
        "<preset",
        "<order",
        "<layout",
        "<compression",
        "<strategy",
        "beam",
        "<navigation",
        "<whole page",
        "<re-ranking",
        "<about",
    ]);
    let yes_no = |value: bool| if value { "yes" } else { "no" }.to_string();
    for preset in Preset::ALL {
        table.row(vec![
            preset.name.to_string(),
            preset.order.to_string(),
            preset
                .layout
                .map_or("chosen by the build".into(), |layout| layout.to_string()),
            preset.compression.to_string(),
            preset.strategy.to_string(),
            preset.beam.to_string(),
            yes_no(preset.navigation),
            yes_no(preset.whole_page),
            reranking(&preset),
            preset.about.to_string(),
        ]);
    }
    output.text(table.render())?;
    output.finish()
}

/// If lists and vectors are in the same record, a vector is ranked when its list is read.
fn reranking(preset: &Preset) -> String {
    let Rerank {
        batch,
        benefit,
        estimate,
        ratio,
    } = preset.rerank;
    match (preset.layout, estimate) {
        (Some(layout), _) if layout.has_vectors_in_records() => "during the walk".into(),
        _ if ratio > 0.0 => format!("the first {ratio} of the candidates"),
        (_, true) => format!("batch of {batch}, then by estimate"),
        (_, false) => format!("batches of {batch}, benefit {benefit}"),
    }
}
