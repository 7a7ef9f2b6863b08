//! Groups of runs that differ only in their memory budget, at equal recall.

use serde::Serialize;
use stratann_terminal::size;

use crate::job::Search;
use crate::report::{self, Common, Line, RunResult};

/// The runs of a group at one recall.
#[derive(Debug, Serialize)]
pub struct Budget {
    /// The part of the names that all runs share, without the budget.
    pub name: String,
    /// The recall.
    pub recall: f64,
    /// A point for each run that reaches the recall, ordered by budget.
    pub points: Vec<BudgetPoint>,
}

/// A run at the recall.
#[derive(Debug, Serialize)]
pub struct BudgetPoint {
    /// The run.
    pub run: String,
    /// The budget in bytes.
    pub budget: u64,
    /// The peak memory of the process of the run, over all list sizes.
    pub peak_rss_bytes: u64,
    /// Reads a query.
    pub reads: Option<f64>,
    /// Queries a second.
    pub qps: f64,
    /// Mean latency in microseconds.
    pub mean_us: Option<f64>,
    /// The two list sizes between which the figures were interpolated.
    pub from: String,
}

/// Compares runs with two or more budgets at each recall.
pub fn budgets(runs: &[RunResult], targets: &[f64]) -> Vec<Budget> {
    let mut groups: Vec<Vec<(u64, &RunResult)>> = Vec::new();
    for run in runs {
        let Some(budget) = bytes(&run.search) else {
            continue;
        };
        match groups.iter_mut().find(|group| alike(group[0].1, run)) {
            Some(group) => group.push((budget, run)),
            None => groups.push(vec![(budget, run)]),
        }
    }
    groups.retain(|group| group.iter().any(|(budget, _)| *budget != group[0].0));
    let mut all = Vec::new();
    for target in targets {
        for group in &mut groups {
            group.sort_by_key(|(budget, _)| *budget);
            let points = group
                .iter()
                .filter_map(|(budget, run)| point(*budget, run, *target))
                .collect();
            all.push(Budget {
                name: name(group[0].1),
                recall: *target,
                points,
            });
        }
    }
    all
}

fn bytes(search: &Search) -> Option<u64> {
    size::parse(search.memory.as_deref()?).ok()
}

fn alike(a: &RunResult, b: &RunResult) -> bool {
    let without = |search: &Search| Search {
        memory: None,
        ..search.clone()
    };
    a.preset == b.preset && a.index.key == b.index.key && without(&a.search) == without(&b.search)
}

/// The name of a run without its budget: `stratann` for the run `stratann, 64MB`.
fn name(run: &RunResult) -> String {
    let memory = run.search.memory.as_deref().unwrap_or_default();
    let name = run.name.strip_suffix(memory).unwrap_or(&run.name);
    match name.trim_end_matches([' ', ',']) {
        "" => run.preset.clone(),
        name => name.to_string(),
    }
}

fn point(budget: u64, run: &RunResult, recall: f64) -> Option<BudgetPoint> {
    let there = report::at(&run.line(), recall)?;
    let peaks = run.points.iter().map(|point| point.peak_rss_bytes);
    Some(BudgetPoint {
        run: run.name.clone(),
        budget,
        peak_rss_bytes: peaks.max().unwrap_or(0),
        reads: there.reads,
        qps: there.qps,
        mean_us: there.mean_us,
        from: there.from,
    })
}

/// The groups as lines of a plot, one for each recall.
pub fn lines(budgets: &[Budget]) -> Vec<Line> {
    let one_recall = budgets.iter().all(|b| b.recall == budgets[0].recall);
    let line = |budget: &Budget| Line {
        name: match one_recall {
            true => budget.name.clone(),
            false => format!("{} at {}", budget.name, budget.recall),
        },
        other: false,
        points: budget
            .points
            .iter()
            .map(|point| Common {
                list: 0,
                recall: budget.recall,
                qps: point.qps,
                reads: point.reads,
                mean_us: point.mean_us,
                p99_us: None,
                memory: Some(point.budget),
            })
            .collect(),
        seconds: Vec::new(),
    };
    budgets.iter().map(line).collect()
}
