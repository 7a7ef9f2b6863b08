//! `stratann plan BASE`

use stratann::VectorFile;
use stratann_terminal::failure::Failure;
use stratann_terminal::output::Output;
use stratann_terminal::size;
use stratann_terminal::table::facts;

use super::build::options;
use crate::args::PlanArguments;

/// Prints the expected costs of a build, without building.
pub fn run(arguments: &PlanArguments) -> Result<(), Failure> {
    let source = VectorFile::open_even_empty(&arguments.base)?;
    let plan = stratann::plan_build(&source, &options(&arguments.shape, &source)?)?;
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
    let memory = match (plan.in_parts, arguments.shape.memory) {
        (true, Some(cap)) => format!(
            "{}, in parts, which takes longer; {} without parts",
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
    lines.extend([
        ("build memory", memory),
        (
            "at least",
            format!("{} (--memory)", size::format(plan.least_memory)),
        ),
        ("index", format!("{about} {}", size::format(plan.storage))),
        (
            "while it is built",
            format!("{} of scratch beside it", size::format(plan.scratch)),
        ),
        (
            "search memory",
            format!("at least {}", size::format(plan.search_memory)),
        ),
    ]);
    output.text(facts(&lines))?;
    output.finish()?;
    match arguments.shape.memory {
        Some(cap) if cap < plan.least_memory => Err(Failure::Wrong(format!(
            "--memory {cap} is too little for this build. Give {} or more",
            plan.least_memory
        ))),
        _ => Ok(()),
    }
}
