//! `stratann bench JOB.toml`

use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use crate::args::BenchArguments;
use crate::bench::job::{self, Data};
use crate::bench::machine::Machine;
use crate::bench::plot::{self, Across};
use crate::bench::report::{self, Report};
use crate::bench::run::{self, Outcome, Setting};
use crate::bench::{budget, space, tables};
use crate::failure::Failure;
use crate::output::Output;

/// Runs the job, writes NAME.json and NAME.svg (and NAME-memory.svg if it compares budgets), prints the tables.
pub fn run(arguments: &BenchArguments, quiet: bool) -> Result<(), Failure> {
    let data_root = std::env::var_os("STRATANN_DATA").map(PathBuf::from);
    let mut plan = job::read(&arguments.job, data_root.as_deref())?;
    if let Some(repeat) = arguments.repeat {
        plan.repeat = repeat;
    }
    if !arguments.only.is_empty() {
        let names: Vec<String> = plan.runs.iter().map(|run| run.name.clone()).collect();
        plan.runs.retain(|run| {
            arguments
                .only
                .iter()
                .any(|text| run.name.contains(text.as_str()))
        });
        if plan.runs.is_empty() {
            return Err(Failure::Wrong(format!(
                "--only leaves no run of {}: it has \"{}\"",
                arguments.job.display(),
                names.join("\", \"")
            )));
        }
    }
    // Before the long work: a typing error in here should not cost it.
    let mut others = Vec::new();
    for path in &arguments.with {
        others.extend(report::read_others(path)?);
    }
    std::fs::create_dir_all(&arguments.out)
        .map_err(|error| Failure::file("create", &arguments.out, &error))?;

    let unix_time = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |age| age.as_secs());
    let setting = Setting {
        cache: arguments
            .cache
            .clone()
            .unwrap_or_else(|| arguments.out.join("indexes")),
        rebuild: arguments.rebuild,
        quiet,
    };
    let Outcome {
        runs,
        noise,
        refused,
    } = run::run(&plan, &setting)?;
    let lines = report::lines(&runs, &others);
    let report = Report {
        job: plan.name.clone(),
        title: plan.title.clone(),
        stratann: env!("CARGO_PKG_VERSION").to_string(),
        unix_time,
        machine: Machine::look(),
        data: Data {
            root: None,
            base: plan.base.clone(),
            queries: plan.queries.clone(),
            truth: plan.truth.clone(),
            metric: plan.metric.name().to_string(),
        },
        repeat: plan.repeat,
        comparisons: report::compare(&lines, &plan.targets),
        space: space::space(&runs),
        budgets: budget::budgets(&runs, &plan.targets),
        runs,
        refused,
        noise,
        others,
    };
    let k = report
        .runs
        .first()
        .and_then(|run| run.points.first())
        .map_or(10, |point| point.k);
    let json = arguments.out.join(format!("{}.json", plan.name));
    let svg = arguments.out.join(format!("{}.svg", plan.name));
    replace(&json, &serde_json::to_vec_pretty(&report)?)?;
    let machine = tables::machine_line(&report.machine);
    let across = Across::recall(k);
    replace(
        &svg,
        plot::svg(&report.title, &machine, &across, &lines).as_bytes(),
    )?;
    let mut plots = svg.display().to_string();
    if !report.budgets.is_empty() {
        let path = arguments.out.join(format!("{}-memory.svg", plan.name));
        let lines = budget::lines(&report.budgets);
        let picture = plot::svg(&report.title, &machine, &Across::memory(), &lines);
        replace(&path, picture.as_bytes())?;
        plots = format!("{plots} and {}", path.display());
    }

    let mut output = Output::new();
    if arguments.json {
        output.json_document(&report)?;
    } else {
        output.text(tables::render(&report))?;
        output.line(format!("results: {}, plot: {plots}", json.display()))?;
    }
    output.finish()
}

/// Puts a file in the place of an older one, complete or not at all.
fn replace(path: &Path, bytes: &[u8]) -> Result<(), Failure> {
    let mut name = path.as_os_str().to_owned();
    name.push(".new");
    let fresh = PathBuf::from(name);
    let written = std::fs::write(&fresh, bytes).and_then(|()| std::fs::rename(&fresh, path));
    written.map_err(|error| {
        let _ = std::fs::remove_file(&fresh);
        Failure::file("write", path, &error)
    })
}
