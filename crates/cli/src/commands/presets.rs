//! `stratann presets`

use stratann::Preset;

use crate::args::PresetsArguments;
use crate::failure::Failure;
use crate::output::Output;
use crate::table::Table;

/// Lists them.
pub fn run(arguments: &PresetsArguments) -> Result<(), Failure> {
    let mut output = Output::new();
    if arguments.json {
        for preset in Preset::ALL {
            output.json_line(&preset)?;
        }
        return output.finish();
    }
    let mut table = Table::new(&[
        "<preset",
        "<order",
        "<strategy",
        "beam",
        "<navigation",
        "<whole page",
        "<about",
    ]);
    let yes_no = |value: bool| if value { "yes" } else { "no" }.to_string();
    for preset in Preset::ALL {
        table.row(vec![
            preset.name.to_string(),
            preset.order.to_string(),
            preset.strategy.to_string(),
            preset.beam.to_string(),
            yes_no(preset.navigation),
            yes_no(preset.whole_page),
            preset.about.to_string(),
        ]);
    }
    output.text(table.render())?;
    output.finish()
}
