//! Runs a job. Every build and search is a child process, so that memory is measured as for a user,
//! and no run affects the heap of the next. The runs search in turns, so that a slow minute of the
//! machine affects all runs alike.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde::{Deserialize, Serialize};
use serde_json::Value;
use stratann::{Element, VectorFile, VectorSource};
use stratann_terminal::failure::Failure;
use stratann_terminal::progress;

use crate::job::{Build, Plan, PlannedRun};
use crate::live;
use crate::live::truth::FirstRows;
use crate::measured::{Detailed, Latency, PartsUs, PerQuery};
use crate::report::{IndexFacts, Noise, Point, RunResult};

/// The settings of a job: the folder of indexes, and the verbosity.
#[derive(Debug)]
pub struct Setting {
    /// Folder of built indexes.
    pub cache: PathBuf,
    /// Whether to rebuild indexes that are in the cache already.
    pub rebuild: bool,
    /// Whether to print no progress.
    pub quiet: bool,
}

#[derive(Debug, Serialize, Deserialize)]
struct Remembered {
    /// All facts on which the index depends, so that a collision of hashes is harmless.
    made_from: String,
    report: Value,
}

struct Series {
    run: usize,
    turns: Vec<Vec<Detailed>>,
}

/// The result of a job.
#[derive(Debug)]
pub struct Outcome {
    /// The runs that were measured.
    pub runs: Vec<RunResult>,
    /// Differences between two series of the same run.
    pub noise: Vec<Noise>,
    /// Names of the runs whose memory budget was refused.
    pub refused: Vec<String>,
}

/// Runs a job: builds missing indexes, and then measures.
pub fn run(plan: &Plan, setting: &Setting) -> Result<Outcome, Failure> {
    if plan.runs.iter().any(|run| run.live.is_some()) {
        return live::run(plan, setting);
    }
    progress::catch_interrupts();
    std::fs::create_dir_all(&setting.cache)
        .map_err(|error| Failure::file("create", &setting.cache, &error))?;
    let mut indexes: Vec<(PathBuf, IndexFacts)> = Vec::new();
    for run in &plan.runs {
        indexes.push(index(plan, run, setting, &indexes)?);
    }
    let mut series: Vec<Series> = Vec::new();
    let mut refused: Vec<String> = Vec::new();
    for (run, planned) in plan.runs.iter().enumerate() {
        let times = if planned.noise { 2 } else { 1 };
        series.extend((0..times).map(|_| Series {
            run,
            turns: Vec::new(),
        }));
    }
    for turn in 1..=plan.repeat {
        for one in &mut series {
            let planned = &plan.runs[one.run];
            if refused.contains(&planned.name) {
                continue;
            }
            say(
                setting,
                &format!("round {turn} of {}: {}", plan.repeat, planned.name),
            );
            match search(plan, planned, &indexes[one.run].0, setting) {
                Ok(points) => one.turns.push(points),
                Err(Failure::Wrong(_)) if turn == 1 && planned.search.memory.is_some() => {
                    refused.push(planned.name.clone());
                }
                Err(failure) => return Err(failure),
            }
        }
    }
    series.retain(|one| !refused.contains(&plan.runs[one.run].name));
    if series.is_empty() {
        return Err(Failure::Wrong(
            "no run was measured; the reasons for refusing each memory budget are above. Raise the budgets".into(),
        ));
    }
    let mut results: Vec<RunResult> = Vec::new();
    let mut noise = Vec::new();
    for one in &series {
        let planned = &plan.runs[one.run];
        let points = medians(&one.turns);
        match results.last() {
            Some(first) if first.name == planned.name => noise.push(Noise::between(first, &points)),
            _ => results.push(RunResult {
                name: planned.name.clone(),
                preset: planned.preset.name.to_string(),
                build: planned.build.clone(),
                search: planned.search.clone(),
                backend: one.turns[0]
                    .first()
                    .map(|d| d.backend.clone())
                    .unwrap_or_default(),
                index: indexes[one.run].1.clone(),
                points,
                live: None,
                step: None,
            }),
        }
    }
    Ok(Outcome {
        runs: results,
        noise,
        refused,
    })
}

pub(super) fn say(setting: &Setting, line: &str) {
    if !setting.quiet {
        eprintln!("{line}");
    }
}

pub(super) fn index(
    plan: &Plan,
    run: &PlannedRun,
    setting: &Setting,
    earlier: &[(PathBuf, IndexFacts)],
) -> Result<(PathBuf, IndexFacts), Failure> {
    let made_from = made_from(plan, run)?;
    // The name depends only on the vectors and `made_from`, so that jobs share indexes.
    let vectors = plan.base.file_stem().unwrap_or_default().to_string_lossy();
    let key = format!("{vectors}-{:016x}", fnv(made_from.as_bytes()));
    if let Some(known) = earlier.iter().find(|(_, facts)| facts.key == key) {
        return Ok(known.clone());
    }
    let folder = setting.cache.join(&key);
    let note = setting.cache.join(format!("{key}.json"));
    if !setting.rebuild
        && let Some(remembered) = remembered(&note)
        && remembered.made_from == made_from
        && let Ok(stats) = child(
            &["stats".as_ref(), folder.as_os_str(), "--json".as_ref()],
            setting,
        )
        && let Ok(stats) = serde_json::from_str(&stats)
    {
        say(setting, &format!("index {key}: from the cache"));
        let facts = IndexFacts {
            key,
            reused: true,
            report: remembered.report,
            stats,
        };
        return Ok((folder, facts));
    }
    say(setting, &format!("index {key}: building"));
    let mut words: Vec<String> = [
        "--preset",
        run.preset.name,
        "--metric",
        plan.metric.name(),
        "--json",
        "--overwrite",
    ]
    .map(String::from)
    .to_vec();
    words.extend(build_words(&run.build));
    let part = match &run.live {
        Some(live) => Some(Part::write(plan, live.built(), &setting.cache)?),
        None => None,
    };
    let base = part.as_ref().map_or(&plan.base, |part| &part.0);
    let mut arguments = vec!["build".as_ref(), base.as_os_str(), folder.as_os_str()];
    arguments.extend(words.iter().map(AsRef::<std::ffi::OsStr>::as_ref));
    let report: Value = parse(&child(&arguments, setting)?)?;
    let stats = parse(&child(
        &["stats".as_ref(), folder.as_os_str(), "--json".as_ref()],
        setting,
    )?)?;
    let remember = Remembered {
        made_from,
        report: report.clone(),
    };
    std::fs::write(&note, serde_json::to_vec_pretty(&remember)?)
        .map_err(|error| Failure::file("write", &note, &error))?;
    let facts = IndexFacts {
        key,
        reused: false,
        report,
        stats,
    };
    Ok((folder, facts))
}

/// A file with the first rows of the base. The drop removes the file after the build.
struct Part(PathBuf);

impl Part {
    fn write(plan: &Plan, rows: usize, folder: &Path) -> Result<Part, Failure> {
        let file = VectorFile::open(&plan.base)?;
        let extension = match file.element() {
            Element::F32 => "fbin",
            Element::F16 => "hbin",
            Element::U8 => "u8bin",
            Element::I8 => "i8bin",
        };
        let name = format!("first-{rows}-of-{}.{extension}", std::process::id());
        // Created before its file, so that an incomplete file is removed too.
        let part = Part(folder.join(name));
        let first = FirstRows { file: &file, rows };
        stratann::data::write_bin(&part.0, &first)?;
        Ok(part)
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn remembered(note: &Path) -> Option<Remembered> {
    serde_json::from_slice(&std::fs::read(note).ok()?).ok()
}

/// All facts on which an index depends. Only live updates take further options from the preset.
fn made_from(plan: &Plan, run: &PlannedRun) -> Result<String, Failure> {
    let read = |error| Failure::file("read", &plan.base, &error);
    let base = plan.base.canonicalize().map_err(read)?;
    let facts = base.metadata().map_err(read)?;
    let modified = facts
        .modified()
        .ok()
        .and_then(|time| time.duration_since(std::time::UNIX_EPOCH).ok())
        .map_or(0, |age| age.as_nanos());
    let mut all = format!(
        "stratann {}; {}, {} bytes, of {modified}; {}; {}",
        env!("CARGO_PKG_VERSION"),
        base.display(),
        facts.len(),
        plan.metric.name(),
        serde_json::to_string(&run.build)?
    );
    if let Some(live) = &run.live {
        all += &format!("; the first {} rows, {}", live.built(), run.preset.name);
    }
    Ok(all)
}

/// The hash FNV-1a. `DefaultHasher` may differ between releases of Rust.
fn fnv(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

fn option<T: ToString>(words: &mut Vec<String>, name: &str, value: Option<T>) {
    if let Some(value) = value {
        // Option and value are one word, so that a value is never parsed as an option.
        words.push(format!("{name}={}", value.to_string()));
    }
}

/// The options of `stratann build` for a run.
pub fn build_words(build: &Build) -> Vec<String> {
    let mut words = Vec::new();
    option(&mut words, "--degree", build.degree);
    option(&mut words, "--build-list", build.build_list);
    option(&mut words, "--alpha", build.alpha);
    option(&mut words, "--code-bytes", build.code_bytes);
    option(&mut words, "--order", build.order.as_ref());
    option(&mut words, "--layout", build.layout.as_ref());
    option(&mut words, "--compression", build.compression.as_ref());
    option(&mut words, "--segment", build.segment.as_ref());
    option(&mut words, "--navigation", build.navigation);
    option(&mut words, "--memory", build.memory.as_ref());
    let search_memory = build.search_memory.as_ref();
    option(&mut words, "--search-memory", search_memory);
    option(&mut words, "--space", build.space.as_ref());
    option(&mut words, "--cluster-size", build.cluster_size);
    option(&mut words, "--replicas", build.replicas);
    let query_log = build.query_log.as_ref().map(|path| path.display());
    option(&mut words, "--query-log", query_log);
    option(&mut words, "--threads", build.threads);
    option(&mut words, "--seed", build.seed);
    words
}

/// The options of `stratann search` for a run.
pub fn search_words(run: &PlannedRun) -> Vec<String> {
    let search = &run.search;
    let mut words = vec!["--json".to_string(), "--measure".to_string()];
    let lists = search
        .lists
        .iter()
        .flatten()
        .map(usize::to_string)
        .collect::<Vec<_>>();
    option(&mut words, "--preset", Some(run.preset.name));
    let width = match run.has_clusters() {
        true => "--probes",
        false => "--list",
    };
    option(&mut words, width, Some(lists.join(",")));
    option(&mut words, "--k", search.k);
    option(&mut words, "--beam", search.beam);
    option(&mut words, "--strategy", search.strategy.as_ref());
    option(&mut words, "--rerank-ratio", search.rerank_ratio);
    option(&mut words, "--low-list", search.low_list);
    option(&mut words, "--refine", search.refine);
    option(&mut words, "--threads", search.threads);
    option(&mut words, "--in-flight", search.in_flight);
    option(&mut words, "--memory", search.memory.as_ref());
    option(&mut words, "--cache", search.cache.as_ref());
    let entries = search.cache_entries.as_ref().map(|entries| &entries.0);
    option(&mut words, "--cache-entries", entries);
    option(&mut words, "--io", search.io.as_ref());
    option(&mut words, "--place", search.place.as_ref());
    words.extend((search.parts == Some(true)).then(|| "--parts".to_string()));
    words.extend((search.stop_early == Some(true)).then(|| "--stop-early".to_string()));
    let mut choice = |value: Option<bool>, yes: &str, no: &str| {
        words.extend(value.map(|value| if value { yes } else { no }.to_string()));
    };
    choice(search.nav, "--nav", "--no-nav");
    choice(search.whole_page, "--whole-page", "--no-whole-page");
    words
}

fn search(
    plan: &Plan,
    run: &PlannedRun,
    index: &Path,
    setting: &Setting,
) -> Result<Vec<Detailed>, Failure> {
    let words = search_words(run);
    let mut arguments = vec![
        "search".as_ref(),
        index.as_os_str(),
        plan.queries.as_os_str(),
    ];
    if let Some(truth) = &plan.truth {
        arguments.extend(["--truth".as_ref(), truth.as_os_str()]);
    }
    arguments.extend(words.iter().map(AsRef::<std::ffi::OsStr>::as_ref));
    child(&arguments, setting)?.lines().map(parse).collect()
}

pub(super) fn parse<T: serde::de::DeserializeOwned>(text: &str) -> Result<T, Failure> {
    serde_json::from_str(text).map_err(|error| {
        Failure::Failed(format!(
            "the stratann process of a run printed other JSON than expected: {error}"
        ))
    })
}

fn child(arguments: &[&std::ffi::OsStr], setting: &Setting) -> Result<String, Failure> {
    child_told(arguments, None, setting)
}

pub(super) fn child_told(
    arguments: &[&std::ffi::OsStr],
    told: Option<(&str, String)>,
    setting: &Setting,
) -> Result<String, Failure> {
    if progress::interrupted() {
        return Err(Failure::Failed("interrupted".into()));
    }
    let program = std::env::current_exe().map_err(|error| {
        Failure::Failed(format!(
            "the program file of this process cannot be found: {error}"
        ))
    })?;
    let mut command = Command::new(&program);
    if setting.quiet {
        command.arg("--quiet");
    }
    let output = command
        .envs(told)
        .args(arguments)
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .map_err(|error| Failure::file("run", &program, &error))?;
    let what = || {
        arguments
            .iter()
            .take(2)
            .map(|word| word.to_string_lossy())
            .collect::<Vec<_>>()
            .join(" ")
    };
    match output.status.code() {
        Some(0) => String::from_utf8(output.stdout).map_err(|_| {
            Failure::Failed(format!(
                "`stratann {}` printed bytes that are not text",
                what()
            ))
        }),
        _ if progress::interrupted() => Err(Failure::Failed("interrupted".into())),
        Some(2) => Err(Failure::Wrong(format!(
            "`stratann {}` was refused; the reason is above",
            what()
        ))),
        _ => Err(Failure::Failed(format!(
            "`stratann {}` failed ({}); the reason is above",
            what(),
            output.status
        ))),
    }
}

fn medians(turns: &[Vec<Detailed>]) -> Vec<Point> {
    let lists = turns.iter().map(Vec::len).min().unwrap_or(0);
    (0..lists)
        .map(|list| {
            let all: Vec<&Detailed> = turns.iter().map(|turn| &turn[list]).collect();
            let middle =
                |of: &dyn Fn(&Detailed) -> f64| median(all.iter().map(|d| of(d)).collect());
            let qps = all.iter().map(|d| d.measured.qps);
            let first = all[0];
            let per_query = PerQuery {
                hops: middle(&|d| d.measured.per_query.hops),
                graph_reads: middle(&|d| d.measured.per_query.graph_reads),
                vector_reads: middle(&|d| d.measured.per_query.vector_reads),
                prefetched: middle(&|d| d.measured.per_query.prefetched),
                reranked: middle(&|d| d.measured.per_query.reranked),
                posting_reads: middle(&|d| d.measured.per_query.posting_reads),
                group_reads: middle(&|d| d.measured.per_query.group_reads),
                stray_reads: middle(&|d| d.measured.per_query.stray_reads),
                bytes_read: middle(&|d| d.measured.per_query.bytes_read),
                cache_hits: middle(&|d| d.measured.per_query.cache_hits),
                distance_computations: middle(&|d| d.measured.per_query.distance_computations),
                low_computations: middle(&|d| d.measured.per_query.low_computations),
            };
            Point {
                list: first.measured.list,
                k: first.measured.k,
                recall: middle(&|d| d.measured.recall.unwrap_or(0.0)),
                qps: middle(&|d| d.measured.qps),
                qps_min: qps.clone().fold(f64::INFINITY, f64::min),
                qps_max: qps.fold(0.0, f64::max),
                reads: per_query.graph_reads + per_query.vector_reads,
                latency_us: Latency {
                    mean: middle(&|d| d.measured.latency_us.mean),
                    p50: middle(&|d| d.measured.latency_us.p50),
                    p90: middle(&|d| d.measured.latency_us.p90),
                    p99: middle(&|d| d.measured.latency_us.p99),
                },
                per_query,
                cpu_us: middle(&|d| d.cpu_seconds * 1e6 / d.queries.max(1) as f64),
                threads: first.measured.threads,
                peak_rss_bytes: all
                    .iter()
                    .map(|d| d.measured.peak_rss_bytes)
                    .max()
                    .unwrap_or(0),
                parts: first.measured.parts.map(|_| {
                    let part = |of: fn(&PartsUs) -> f64| {
                        middle(&|d| d.measured.parts.as_ref().map_or(0.0, of))
                    };
                    PartsUs {
                        reads: part(|p| p.reads),
                        codes: part(|p| p.codes),
                        list_decoding: part(|p| p.list_decoding),
                        vector_decoding: part(|p| p.vector_decoding),
                        exact: part(|p| p.exact),
                    }
                }),
            }
        })
        .collect()
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let half = values.len() / 2;
    match values.len() {
        0 => 0.0,
        n if n % 2 == 1 => values[half],
        _ => (values[half - 1] + values[half]) / 2.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn middle_values() {
        assert_eq!(median(vec![]), 0.0);
        assert_eq!(median(vec![3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(vec![4.0, 1.0, 2.0, 3.0]), 2.5);
    }

    #[test]
    fn hash_is_fnv() {
        assert_eq!(fnv(b""), 0xcbf2_9ce4_8422_2325);
        assert_eq!(fnv(b"a"), 0xaf63_dc4c_8601_ec8c);
    }
}
