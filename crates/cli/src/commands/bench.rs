//! `stratann bench JOB.toml`

use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use stratann_bench::job::{self, Data};
use stratann_bench::machine::Machine;
use stratann_bench::plot::{self, Across};
use stratann_bench::report::{self, Report};
use stratann_bench::run::{self, Outcome, Setting};
use stratann_bench::{budget, space, tables};
use stratann_terminal::failure::Failure;
use stratann_terminal::output::Output;

use crate::args::BenchArguments;

/// Writes NAME.json and NAME.svg, and NAME-memory.svg if the job compares budgets.
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
                "--only matches no run of {}. Its runs are \"{}\"",
                arguments.job.display(),
                names.join("\", \"")
            )));
        }
    }
    // A wrong path fails before the measurements.
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

    let mut output = Output::lock();
    if arguments.json {
        output.json_document(&report)?;
    } else {
        output.text(tables::render(&report))?;
        output.line(format!("results: {}, plot: {plots}", json.display()))?;
    }
    output.finish()
}

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

#[cfg(test)]
mod tests {
    use clap::Parser;
    use stratann_bench::job::{Build, Entries, PlannedRun, Search};
    use stratann_bench::run::{build_words, search_words};
    use stratann_terminal::size::CacheEntries;

    use crate::args::{Arguments, Command};
    use stratann::Compression;

    #[test]
    fn options_become_words_that_the_command_line_knows() {
        let run = PlannedRun {
            name: "all".into(),
            preset: stratann::Preset::DISKANN,
            noise: false,
            live: None,
            build: Build {
                degree: Some(32),
                build_list: Some(50),
                alpha: Some(1.1),
                code_bytes: Some(16),
                order: Some("locality".into()),
                layout: Some("decoupled".into()),
                compression: Some("paper".into()),
                segment: Some("2MiB".into()),
                navigation: Some(0.0),
                memory: Some("1GiB".into()),
                search_memory: Some("64MB".into()),
                space: None,
                cluster_size: Some(20),
                replicas: Some(4),
                query_log: Some("log.u8bin".into()),
                threads: Some(1),
                seed: Some(7),
            },
            search: Search {
                k: Some(5),
                lists: Some(vec![10, 20]),
                beam: Some(2),
                strategy: Some("best-first".into()),
                nav: Some(true),
                whole_page: Some(false),
                stop_early: Some(true),
                rerank_ratio: Some(0.5),
                low_list: Some(3.0),
                refine: Some(0.25),
                threads: Some(2),
                in_flight: Some(4),
                memory: Some("64MB".into()),
                cache: None,
                cache_entries: Some(Entries("1%".into())),
                parts: Some(true),
                io: Some("pread".into()),
                place: Some("topology=dram,vectors=nvm-model".into()),
            },
        };
        let with = |start: &[&str], words: Vec<String>| {
            let line = start.iter().map(|word| word.to_string()).chain(words);
            Arguments::try_parse_from(line).unwrap().command
        };
        let Command::Build(build) = with(&["stratann", "build", "b", "i"], build_words(&run.build))
        else {
            panic!("not a build")
        };
        assert_eq!(
            (
                build.shape.degree,
                build.shape.seed,
                build.shape.memory,
                build.shape.segment
            ),
            (Some(32), 7, Some(1 << 30), 2 << 20)
        );
        assert_eq!(
            (build.shape.layout, build.shape.compression),
            (Some(stratann::Layout::Decoupled), Some(Compression::Paper))
        );
        assert_eq!(
            (build.shape.cluster_size, build.shape.replicas),
            (Some(20), Some(4))
        );
        assert_eq!(build.shape.query_log, Some("log.u8bin".into()));
        let Command::Search(search) = with(&["stratann", "search", "i", "q"], search_words(&run))
        else {
            panic!("not a search")
        };
        assert_eq!(
            (search.k, search.list.as_slice(), search.in_flight),
            (5, &[10, 20][..], Some(4))
        );
        assert_eq!(
            (search.navigation(), search.whole_page()),
            (Some(true), Some(false))
        );
        assert!(search.measure && search.json && search.parts && search.stop_early);
        assert_eq!(
            (search.rerank_ratio, search.low_list, search.refine),
            (Some(0.5), Some(3.0), Some(0.25))
        );
        assert_eq!(search.cache_entries, Some(CacheEntries::Share(0.01)));
        let places = search.places.all().unwrap();
        assert_eq!(places.to_string(), "topology=dram,vectors=nvm-model");
    }
}
