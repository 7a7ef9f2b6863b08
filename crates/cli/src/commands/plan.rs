//! `stratann plan BASE`

use stratann::{BuildOptions, NoRows};
use stratann_terminal::failure::Failure;
use stratann_terminal::output::Output;
use stratann_terminal::progress::Shown;
use stratann_terminal::size;
use stratann_terminal::table::facts;

use super::build::options;
use crate::args::PlanArguments;
use crate::input::Files;

pub fn run(arguments: &PlanArguments, quiet: bool) -> Result<(), Failure> {
    let progress = Shown::new(quiet);
    let cap = arguments.shape.memory;
    let files = Files {
        vectors: &arguments.base,
        column: arguments.column.as_deref(),
        ids: arguments.ids.as_deref(),
        rows: &arguments.rows,
        index: &std::env::temp_dir(),
        memory: cap,
    };
    let check = |shape: &NoRows| {
        Ok(stratann::plan_build(
            shape,
            &BuildOptions {
                // A budget of space needs the number of vectors, which is not known yet.
                space: None,
                ..options(&arguments.shape, shape)?
            },
        )
        .map(drop)?)
    };
    let input = files.open(&progress, check)?;
    let source = &*input.vectors;
    let options = BuildOptions {
        ids: input.ids,
        ..options(&arguments.shape, source)?
    };
    let mut plan = match &input.rows {
        Some(rows) => stratann::plan_build_with_rows(source, rows, &options, &progress)?,
        None => stratann::plan_build(source, &options)?,
    };
    // A build copies a Parquet file too.
    plan.scratch += input.copied;
    if let Some(cap) = cap.filter(|&cap| cap < plan.least_memory) {
        return Err(Failure::Wrong(format!(
            "--memory {cap} is too little for this build. Give {} or more",
            plan.least_memory
        )));
    }
    let mut output = Output::lock();
    if arguments.json {
        output.json_line(&plan)?;
        return output.finish();
    }
    let vectors = format!(
        "{} of {} {}, {}",
        size::count(plan.vectors),
        plan.dimension,
        plan.element,
        size::format(plan.raw_bytes)
    );
    let memory = match (plan.in_parts, cap) {
        (true, Some(cap)) => format!(
            "{}, for a build in parts, which takes longer; {} for a build without parts",
            size::format(cap),
            size::format(plan.memory)
        ),
        _ => size::format(plan.memory),
    };
    let is_graph = plan.degree > 0;
    let mut lines = vec![
        ("vectors", vectors),
        ("preset", arguments.shape.preset.to_string()),
        ("layout", plan.layout.clone()),
    ];
    if is_graph {
        let degree = format!("R {}, {} bytes a code", plan.degree, plan.code_bytes);
        lines.push(("degree", degree));
    }
    let about = if is_graph { "about" } else { "at most about" };
    let mut index = format!("{about} {}", size::format(plan.storage));
    if plan.attributes > 0 {
        let attributes = size::format(plan.attributes);
        index.push_str(&format!(", of which attributes take {attributes}"));
    }
    lines.extend([
        ("build memory", memory),
        ("least --memory", size::format(plan.least_memory)),
        ("index", index),
        (
            "during the build",
            format!(
                "{} of temporary files beside the index",
                size::format(plan.scratch)
            ),
        ),
        (
            "search memory",
            format!("at least {}", size::format(plan.search_memory)),
        ),
    ]);
    output.text(facts(&lines))?;
    output.finish()
}
