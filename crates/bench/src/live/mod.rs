//! Jobs of live updates: `[timeline]` measures searches during changes in each second, and
//! `[breakdown]` several insert strategies in turn.
//!
//! ```text
//! keys.rs       the keys of a job
//! truth.rs      exact answers while rows come and go
//! step.rs       the task of a child process, and the copy of the index that it changes
//! timeline.rs   inserts and searches together     ┐ in the child
//! inserts.rs    inserts alone                     ┘
//! result.rs     the results;   tables.rs  for a terminal
//! ```
//!
//! Every measurement changes a copy of the index, in a child process whose environment names the
//! step ([`step::VARIABLE`]).

pub mod inserts;
pub mod keys;
pub mod result;
pub mod step;
pub mod tables;
pub mod timeline;
pub mod truth;

use std::path::{Path, PathBuf};

use serde::Deserialize;
use stratann::{Matrix, Update, VectorFile, VectorSource};
use stratann_terminal::failure::Failure;
use stratann_terminal::progress::{self, Shown};

use crate::job::{Plan, PlannedRun};
use crate::live::keys::{Breakdown, Deletes, Kind, LiveRun, Rate, Timeline};
use crate::live::result::{BrokenDown, Found, Live};
use crate::live::step::{Step, What, Work};
use crate::live::truth::{FirstRows, Truth};
use crate::report::{IndexFacts, RunResult};
use crate::run::{self, Outcome, Setting};

/// Runs a job of live updates. In a child process, runs one step of the job.
pub fn run(plan: &Plan, setting: &Setting) -> Result<Outcome, Failure> {
    match Step::told()? {
        Some(step) => step.take(plan),
        None => measure(plan, setting),
    }
}

fn live(run: &PlannedRun) -> Result<&LiveRun, Failure> {
    run.live.as_ref().ok_or_else(|| {
        Failure::Wrong(format!(
            "run \"{}\" measures no live updates. Give the job a table [timeline] or [breakdown]",
            run.name
        ))
    })
}

fn measure(plan: &Plan, setting: &Setting) -> Result<Outcome, Failure> {
    if plan.repeat != 1 {
        return Err(Failure::Wrong(
            "--repeat does not apply to a job of live updates; each run changes its index, so the job measures each run once. Run the job again".into(),
        ));
    }
    let base = VectorFile::open(&plan.base)?;
    let queries = Matrix::read(&VectorFile::open(&plan.queries)?)?;
    for run in &plan.runs {
        check(plan, run, live(run)?, base.rows())?;
    }
    progress::catch_interrupts();
    std::fs::create_dir_all(&setting.cache)
        .map_err(|error| Failure::file("create", &setting.cache, &error))?;
    let mut indexes: Vec<(PathBuf, IndexFacts)> = Vec::new();
    for run in &plan.runs {
        indexes.push(run::index(plan, run, setting, &indexes)?);
    }
    let work = Work::create(&setting.cache)?;
    let truths = truths(plan, setting, &base, &queries, work.path())?;
    let mut runs = Vec::new();
    for ((planned, (index, facts)), truth) in plan.runs.iter().zip(indexes).zip(&truths) {
        let step = |what, rate| Step {
            run: planned.name.clone(),
            what,
            folder: work.path().to_owned(),
            truth: truth.clone(),
            rate,
        };
        let take = |what, rate, say: &str| {
            run::say(setting, &format!("{}: {say}", planned.name));
            take(plan, setting, &work, &index, &step(what, rate))
        };
        let (live, points) = match &live(planned)?.kind {
            Kind::Timeline(timeline) => (over_time(timeline, &take)?, Vec::new()),
            Kind::Breakdown(breakdown) => {
                let broken_down = broken_down(breakdown, &take)?;
                let points = vec![broken_down.inserted.searches.clone()];
                (Live::Breakdown(Box::new(broken_down)), points)
            }
        };
        let backend = match &live {
            Live::Timeline(over_time) => over_time.backend.clone(),
            Live::Breakdown(_) => String::new(),
        };
        runs.push(RunResult {
            name: planned.name.clone(),
            preset: planned.preset.name.to_string(),
            build: planned.build.clone(),
            search: planned.search.clone(),
            backend,
            index: facts,
            points,
            live: Some(live),
            step: None,
        });
    }
    Ok(Outcome {
        runs,
        noise: Vec::new(),
        refused: Vec::new(),
    })
}

fn check(plan: &Plan, run: &PlannedRun, live: &LiveRun, rows: usize) -> Result<(), Failure> {
    let wrong = |message: String| {
        let file = plan.file.display();
        Err(Failure::Wrong(format!(
            "{file}: run \"{}\": {message}",
            run.name
        )))
    };
    let base = plan.base.display();
    let built = live.built();
    if built >= rows {
        return wrong(format!(
            "built = {built} leaves no rows to insert; {base} has {rows} rows. Give a smaller `built`"
        ));
    }
    let left = rows - built;
    match &live.kind {
        Kind::Timeline(_) => Ok(()),
        Kind::Breakdown(breakdown) if breakdown.rows > left => wrong(format!(
            "rows = {} is too large; the build leaves {left} rows of {base}. Give at most {left}",
            breakdown.rows
        )),
        Kind::Breakdown(breakdown) if breakdown.calls > left => wrong(format!(
            "calls = {} is too large; the build leaves {left} rows of {base}. Give at most {left}",
            breakdown.calls
        )),
        Kind::Breakdown(_) => Ok(()),
    }
}

/// The number of rows that are ever live, and the smallest number of rows that are live at any
/// time.
fn range(live: &LiveRun, rows: usize) -> (usize, usize) {
    match &live.kind {
        Kind::Timeline(timeline) => {
            let built = timeline.built;
            let least = match timeline.deletes {
                Deletes::None | Deletes::Same => built,
                // All deletes may happen before the first insert.
                Deletes::Rows(a_second) => {
                    let gone = (a_second * timeline.seconds as f64).ceil() as usize;
                    built.saturating_sub(gone).max(built / 20)
                }
            };
            (rows, least)
        }
        Kind::Breakdown(breakdown) => {
            let all = breakdown.built + breakdown.rows;
            (all, all)
        }
    }
}

fn truths(
    plan: &Plan,
    setting: &Setting,
    base: &VectorFile,
    queries: &Matrix,
    folder: &Path,
) -> Result<Vec<PathBuf>, Failure> {
    let mut known: Vec<(usize, usize)> = Vec::new();
    let mut paths = Vec::new();
    for run in &plan.runs {
        let (rows, least) = range(live(run)?, base.rows());
        let path = folder.join(format!("truth-{rows}-{least}.bin"));
        if !known.contains(&(rows, least)) {
            let first = FirstRows { file: base, rows };
            let shown = Shown::new(setting.quiet);
            Truth::write(&path, &first, least, queries, plan.metric, &shown)?;
            known.push((rows, least));
        }
        paths.push(path);
    }
    Ok(paths)
}

type Take<'a> = &'a dyn Fn(What, Option<f64>, &str) -> Result<Found, Failure>;

fn over_time(timeline: &Timeline, take: Take<'_>) -> Result<Live, Failure> {
    let most = match timeline.rate {
        Rate::Half => match take(What::Most, None, "the most inserts a second")? {
            Found::Most(most) => Some(most),
            other => return Err(unexpected(&other)),
        },
        Rate::Most | Rate::Rows(_) => None,
    };
    let rate = match timeline.rate {
        Rate::Most => None,
        Rate::Half => most.map(|most| most / 2.0),
        Rate::Rows(rate) => Some(rate),
    };
    let say = match rate {
        Some(rate) => format!("{} s, {rate:.0} inserts a second", timeline.seconds),
        None => format!("{} s, as many inserts as possible", timeline.seconds),
    };
    match take(What::Timeline, rate, &say)? {
        Found::OverTime(mut over_time) => {
            over_time.most_a_second = most;
            Ok(Live::Timeline(over_time))
        }
        other => Err(unexpected(&other)),
    }
}

fn broken_down(breakdown: &Breakdown, take: Take<'_>) -> Result<BrokenDown, Failure> {
    let rows = format!("inserting {} rows", breakdown.rows);
    let inserted = match take(What::Insert, None, &rows)? {
        Found::Inserted(inserted) => *inserted,
        other => return Err(unexpected(&other)),
    };
    let calls = format!("{} inserts of one row", breakdown.calls);
    match take(What::Calls, None, &calls)? {
        Found::Calls(call) => Ok(BrokenDown {
            settings: breakdown.clone(),
            inserted,
            call,
        }),
        other => Err(unexpected(&other)),
    }
}

fn unexpected(found: &Found) -> Failure {
    Failure::Failed(format!(
        "the stratann process of a step measured something else: {found:?}"
    ))
}

fn take(
    plan: &Plan,
    setting: &Setting,
    work: &Work,
    index: &Path,
    step: &Step,
) -> Result<Found, Failure> {
    #[derive(Deserialize)]
    struct Report {
        runs: Vec<Measured>,
    }
    #[derive(Deserialize)]
    struct Measured {
        step: Option<Found>,
    }
    work.copy(index)?;
    let out = work.path().join("out");
    let arguments = [
        "bench".as_ref(),
        plan.file.as_os_str(),
        "--json".as_ref(),
        "--out".as_ref(),
        out.as_os_str(),
    ];
    let told = (step::VARIABLE, serde_json::to_string(step)?);
    let printed = run::child_told(&arguments, Some(told), setting)?;
    let report: Report = run::parse(&printed)?;
    let first = report.runs.into_iter().next();
    first
        .and_then(|run| run.step)
        .ok_or_else(|| Failure::Failed("the stratann process of a step measured nothing".into()))
}

/// The insert strategy that an index really uses.
fn way(live: &LiveRun, run: &PlannedRun, stats: &stratann::Stats) -> Result<String, Failure> {
    let asked = live.update(&run.preset);
    match (&stats.direct, asked) {
        (Some(_), _) | (None, Update::Merge) => Ok(keys::way(asked, &live.direct())),
        (None, Update::Rebalance) if stats.clusters.is_some() => {
            Ok(keys::way(asked, &live.direct()))
        }
        (None, _) if live.update.is_none() => Ok(keys::way(Update::Merge, &live.direct())),
        (None, _) => Err(Failure::Wrong(format!(
            "run \"{}\": update = \"{asked}\" does not apply to an index of layout {} and metric {}. Give update = \"merge\", or build another layout",
            run.name, stats.layout, stats.metric
        ))),
    }
}
