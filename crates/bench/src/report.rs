//! The result of a job as JSON, together with the results of other programs.

use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use stratann_terminal::failure::Failure;

use crate::budget::Budget;
use crate::job::{Build, Data, Search};
use crate::live::result::{Found, Live, Span};
use crate::machine::Machine;
use crate::measured::{Latency, PartsUs, PerQuery};
use crate::space::Space;

/// All results of a job.
#[derive(Debug, Serialize)]
pub struct Report {
    /// The name of the job.
    pub job: String,
    /// The heading of the job.
    pub title: String,
    /// Version of this program.
    pub stratann: String,
    /// The time when the job began, in seconds since 1970.
    pub unix_time: u64,
    /// The machine.
    pub machine: Machine,
    /// The files.
    pub data: Data,
    /// The number of repeats of each measurement. Figures are medians over the repeats.
    pub repeat: usize,
    /// The runs of StratANN.
    pub runs: Vec<RunResult>,
    /// Names of runs whose memory budget was refused.
    pub refused: Vec<String>,
    /// The storage sizes of the indexes, if the runs search several indexes.
    pub space: Vec<Space>,
    /// Runs under several memory budgets, at the same recall.
    pub budgets: Vec<Budget>,
    /// Differences between two series of the same run.
    pub noise: Vec<Noise>,
    /// The results of other programs.
    pub others: Vec<Other>,
    /// Comparisons of all runs at equal recall.
    pub comparisons: Vec<Comparison>,
}

/// An index that was searched.
#[derive(Debug, Clone, Serialize)]
pub struct IndexFacts {
    /// The folder of the index in the cache.
    pub key: String,
    /// Whether the index was in the cache already.
    pub reused: bool,
    /// The report of the build.
    pub report: Value,
    /// The output of `stratann stats --json`.
    pub stats: Value,
}

/// One run of StratANN.
#[derive(Debug, Serialize)]
pub struct RunResult {
    /// The name of the run.
    pub name: String,
    /// The preset of the run.
    pub preset: String,
    /// Build options.
    pub build: Build,
    /// Search options.
    pub search: Search,
    /// How pages were read.
    pub backend: String,
    /// The index.
    pub index: IndexFacts,
    /// One point for each list size.
    pub points: Vec<Point>,
    /// The measurements of a job of live updates.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub live: Option<Live>,
    /// The result of a step that this child process ran for its parent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub step: Option<Found>,
}

/// One list size of a run: medians over the repeats.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Point {
    /// L.
    pub list: usize,
    /// k.
    pub k: usize,
    /// Recall@k.
    pub recall: f64,
    /// Queries a second.
    pub qps: f64,
    /// Queries a second of the slowest repeat.
    pub qps_min: f64,
    /// Queries a second of the fastest repeat.
    pub qps_max: f64,
    /// Reads a query that reached the tier.
    pub reads: f64,
    /// Latency in microseconds.
    pub latency_us: Latency,
    /// Averages over the queries.
    pub per_query: PerQuery,
    /// CPU time of a query in microseconds, including the kernel.
    pub cpu_us: f64,
    /// Threads.
    pub threads: usize,
    /// The peak memory in bytes, over all repeats.
    pub peak_rss_bytes: u64,
    /// The parts of a query's time, if the run measures them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parts: Option<PartsUs>,
}

impl RunResult {
    /// Returns the run in the form that is common to all programs.
    pub fn line(&self) -> Line {
        let points = self.points.iter().map(|p| Common {
            list: p.list,
            recall: p.recall,
            qps: p.qps,
            reads: Some(p.reads),
            mean_us: Some(p.latency_us.mean),
            p99_us: Some(p.latency_us.p99),
            memory: Some(p.peak_rss_bytes),
        });
        Line {
            name: self.name.clone(),
            other: false,
            points: points.collect(),
            seconds: match &self.live {
                Some(Live::Timeline(over_time)) => over_time.seconds.clone(),
                _ => Vec::new(),
            },
        }
    }
}

/// The differences between two equal runs, measured in turns.
#[derive(Debug, Serialize)]
pub struct Noise {
    /// The run.
    pub run: String,
    /// Largest difference of queries a second at one list size, as a share.
    pub qps: f64,
    /// Largest difference of the mean latency, as a share.
    pub latency: f64,
    /// Largest difference of reads a query, as a share.
    pub reads: f64,
    /// Largest difference of recall, in points of recall.
    pub recall: f64,
}

impl Noise {
    /// Compares a run with its second series.
    pub fn between(first: &RunResult, second: &[Point]) -> Noise {
        let pairs = || first.points.iter().zip(second);
        let share = |of: fn(&Point) -> f64| {
            pairs()
                .map(|(a, b)| (of(a) - of(b)).abs() / of(a).max(of(b)).max(1e-9))
                .fold(0.0, f64::max)
        };
        Noise {
            run: first.name.clone(),
            qps: share(|p| p.qps),
            latency: share(|p| p.latency_us.mean),
            reads: share(|p| p.reads),
            recall: pairs()
                .map(|(a, b)| (a.recall - b.recall).abs())
                .fold(0.0, f64::max),
        }
    }
}

/// The results of another program. A few lines of code in any language can write this form.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Other {
    /// The name of the program in tables and legends.
    pub name: String,
    /// One point for each setting of the program.
    pub points: Vec<OtherPoint>,
    /// Further facts: build time, version, parameters.
    #[serde(flatten)]
    pub facts: serde_json::Map<String, Value>,
}

/// One setting of another program. Figures that the program does not measure are absent.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct OtherPoint {
    /// The list size: L, ef, or the program's equivalent.
    pub list: usize,
    /// Recall@k.
    pub recall: f64,
    /// Queries a second.
    pub qps: f64,
    /// Reads a query.
    pub reads: Option<f64>,
    /// Mean latency in microseconds.
    pub mean_us: Option<f64>,
    /// 99th percentile in microseconds.
    pub p99_us: Option<f64>,
    /// Peak memory in bytes.
    pub memory: Option<u64>,
}

/// Reads the results of one or several other programs from a file.
pub fn read_others(path: &Path) -> Result<Vec<Other>, Failure> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum OneOrMany {
        One(Box<Other>),
        Many(Vec<Other>),
    }
    let bytes = std::fs::read(path).map_err(|error| Failure::file("read", path, &error))?;
    let wrong = |error: String| {
        Failure::Wrong(format!(
            "--with {} is not a result; {error}. The file must contain {{\"name\": .., \"points\": [{{\"list\", \"recall\", \"qps\", \
             \"reads\", \"mean_us\", \"p99_us\", \"memory\"}}]}} or an array of these",
            path.display()
        ))
    };
    let others = match serde_json::from_slice(&bytes).map_err(|error| wrong(error.to_string()))? {
        OneOrMany::One(other) => vec![*other],
        OneOrMany::Many(others) => others,
    };
    for other in &others {
        for point in &other.points {
            let recall = (0.0..=1.0).contains(&point.recall);
            if !(recall && point.qps.is_finite() && point.qps >= 0.0) {
                return Err(wrong(format!(
                    "\"{}\" has recall {} and {} queries a second at list size {}",
                    other.name, point.recall, point.qps, point.list
                )));
            }
        }
    }
    Ok(others)
}

/// A run at a given recall.
#[derive(Debug, Serialize)]
pub struct Comparison {
    /// The recall.
    pub recall: f64,
    /// The run.
    pub run: String,
    /// Queries a second at this recall.
    pub qps: f64,
    /// Reads a query at this recall.
    pub reads: Option<f64>,
    /// Mean latency at this recall, in microseconds.
    pub mean_us: Option<f64>,
    /// Queries a second, relative to the first run that reaches this recall.
    pub against_first: f64,
    /// The two list sizes between which the figures were interpolated.
    pub from: String,
}

/// A point of any program, with only the figures that all programs have.
#[derive(Debug, Clone)]
pub struct Common {
    /// L.
    pub list: usize,
    /// Recall.
    pub recall: f64,
    /// Queries a second.
    pub qps: f64,
    /// Reads a query.
    pub reads: Option<f64>,
    /// Mean latency in microseconds.
    pub mean_us: Option<f64>,
    /// 99th percentile in microseconds.
    pub p99_us: Option<f64>,
    /// Peak memory in bytes.
    pub memory: Option<u64>,
}

/// A named line of points.
#[derive(Debug, Clone)]
pub struct Line {
    /// The name of the line.
    pub name: String,
    /// Whether the line belongs to another program.
    pub other: bool,
    /// The points, by list size.
    pub points: Vec<Common>,
    /// The measurements of each second, in a job of live updates.
    pub seconds: Vec<Span>,
}

/// All runs of StratANN and of other programs, in one form.
pub fn lines(runs: &[RunResult], others: &[Other]) -> Vec<Line> {
    let ours = runs.iter().map(RunResult::line);
    let others = others.iter().map(|other| Line {
        name: other.name.clone(),
        other: true,
        points: other
            .points
            .iter()
            .map(|p| Common {
                list: p.list,
                recall: p.recall,
                qps: p.qps,
                reads: p.reads,
                mean_us: p.mean_us,
                p99_us: p.p99_us,
                memory: p.memory,
            })
            .collect(),
        seconds: Vec::new(),
    });
    ours.chain(others).collect()
}

/// The figures of every line at every target that it reaches.
pub fn compare(lines: &[Line], targets: &[f64]) -> Vec<Comparison> {
    let mut all = Vec::new();
    for target in targets {
        let mut first = None;
        for line in lines {
            let Some(mut found) = at(line, *target) else {
                continue;
            };
            let reference = *first.get_or_insert(found.qps);
            found.against_first = found.qps / f64::max(reference, 1e-9);
            all.push(found);
        }
    }
    all
}

/// The figures of a line at a recall, by linear interpolation. If even the smallest list size has a
/// higher recall, the figures of this list size. `None` if the line does not reach the recall.
pub fn at(line: &Line, target: f64) -> Option<Comparison> {
    let mut points: Vec<&Common> = line.points.iter().collect();
    points.sort_by(|a, b| a.recall.total_cmp(&b.recall));
    let above = points.iter().position(|p| p.recall >= target)?;
    let high = points[above];
    let comparison = |qps, reads, mean_us, from| Comparison {
        recall: target,
        run: line.name.clone(),
        qps,
        reads,
        mean_us,
        against_first: 1.0,
        from,
    };
    let Some(low) = above.checked_sub(1).map(|i| points[i]) else {
        let from = format!(
            "L {}, recall {:.4}: the lowest recall measured",
            high.list, high.recall
        );
        return Some(comparison(high.qps, high.reads, high.mean_us, from));
    };
    let share = (target - low.recall) / (high.recall - low.recall);
    let between = |low: f64, high: f64| low + (high - low) * share;
    let both = |low: Option<f64>, high: Option<f64>| Some(between(low?, high?));
    Some(comparison(
        between(low.qps, high.qps),
        both(low.reads, high.reads),
        both(low.mean_us, high.mean_us),
        format!("between L {} and {}", low.list, high.list),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(name: &str, points: &[(usize, f64, f64)]) -> Line {
        Line {
            name: name.into(),
            other: false,
            points: points
                .iter()
                .map(|(list, recall, qps)| Common {
                    list: *list,
                    recall: *recall,
                    qps: *qps,
                    reads: Some(*list as f64),
                    mean_us: None,
                    p99_us: None,
                    memory: None,
                })
                .collect(),
            seconds: Vec::new(),
        }
    }

    #[test]
    fn compared_at_the_same_recall() {
        let lines = [
            line("a", &[(20, 0.90, 1000.0), (40, 0.98, 500.0)]),
            line("b", &[(10, 0.96, 3000.0), (40, 0.99, 1000.0)]),
            line("c", &[(10, 0.5, 9000.0)]),
        ];
        let all = compare(&lines, &[0.94]);
        assert_eq!(all.len(), 2, "run c does not reach the recall");
        assert!((all[0].qps - 750.0).abs() < 1e-6 && (all[0].reads.unwrap() - 30.0).abs() < 1e-6);
        assert_eq!(all[0].from, "between L 20 and 40");
        // Run b is not extrapolated below its lowest recall.
        assert_eq!(all[1].qps, 3000.0);
        assert!(all[1].from.contains("lowest recall measured"));
        assert!((all[1].against_first - 4.0).abs() < 1e-9);
    }

    #[test]
    fn results_of_others() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("other.json");
        let read = |text: &str| {
            std::fs::write(&path, text).unwrap();
            read_others(&path)
        };
        let one = r#"{"name": "x", "build_seconds": 3, "points": [{"list": 20, "recall": 0.9, "qps": 10.0}]}"#;
        let others = read(one).unwrap();
        assert_eq!(others[0].points[0].reads, None);
        assert_eq!(others[0].facts["build_seconds"], 3);
        assert_eq!(read(&format!("[{one}, {one}]")).unwrap().len(), 2);
        for wrong in [
            "",
            "{}",
            "[1]",
            &one.replace("0.9", "90.0"),
            &one.replace("10.0", "-1.0"),
        ] {
            let Err(Failure::Wrong(message)) = read(wrong) else {
                panic!("{wrong} was accepted")
            };
            assert!(
                message.contains("other.json") && message.contains("points"),
                "{message}"
            );
        }
    }
}
