//! One measurement in a child process, and the copy of the index that it changes.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::Value;
use stratann_terminal::failure::Failure;
use stratann_terminal::progress;

use crate::job::{Plan, PlannedRun};
use crate::live::keys::{Kind, LiveRun};
use crate::live::result::Found;
use crate::live::{inserts, live, timeline};
use crate::report::{IndexFacts, RunResult};
use crate::run::Outcome;

/// The environment variable with the step that a child runs, as JSON.
pub const VARIABLE: &str = "STRATANN_BENCH_STEP";

/// A measurement.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Step {
    /// The run of the job.
    pub run: String,
    /// The measurement.
    pub what: What,
    /// The folder of the copied index.
    pub folder: PathBuf,
    /// The ground truth for recall.
    pub truth: PathBuf,
    /// The target rate in rows a second; `None` for as many rows as possible.
    pub rate: Option<f64>,
}

/// The measurement of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum What {
    /// The rate of inserts without searches.
    Most,
    /// Inserts and searches at the same time.
    Timeline,
    /// Many rows in each call, and searches afterwards.
    Insert,
    /// One row in each call.
    Calls,
}

/// The input of a step.
#[derive(Debug)]
pub struct Task<'a> {
    /// The job.
    pub plan: &'a Plan,
    /// The run of the job.
    pub run: &'a PlannedRun,
    /// The run's keys for updates.
    pub live: &'a LiveRun,
    /// The step.
    pub step: &'a Step,
}

impl Step {
    /// The step of this process. `None` if a user started the process.
    pub fn told() -> Result<Option<Step>, Failure> {
        let Some(text) = std::env::var_os(VARIABLE) else {
            return Ok(None);
        };
        let text = text.to_string_lossy();
        serde_json::from_str(&text).map(Some).map_err(|error| {
            Failure::Wrong(format!(
                "{VARIABLE} is only for processes that `stratann bench` starts; {error}. Unset it"
            ))
        })
    }

    /// Runs the measurement.
    pub fn take(&self, plan: &Plan) -> Result<Outcome, Failure> {
        progress::catch_interrupts();
        let run = plan.runs.iter().find(|run| run.name == self.run);
        let run = run.ok_or_else(|| {
            Failure::Wrong(format!("{VARIABLE}: the job has no run \"{}\"", self.run))
        })?;
        let task = Task {
            plan,
            run,
            live: live(run)?,
            step: self,
        };
        let found = match (self.what, &task.live.kind) {
            (What::Most, Kind::Timeline(timeline)) => timeline::most(&task, timeline)?,
            (What::Timeline, Kind::Timeline(timeline)) => timeline::run(&task, timeline)?,
            (What::Insert, Kind::Breakdown(breakdown)) => inserts::many(&task, breakdown)?,
            (What::Calls, Kind::Breakdown(breakdown)) => inserts::calls(&task, breakdown)?,
            (what, _) => {
                let message = format!("{VARIABLE}: run \"{}\" has no step {what:?}", self.run);
                return Err(Failure::Wrong(message));
            }
        };
        Ok(Outcome {
            runs: vec![self.outcome(run, found)],
            noise: Vec::new(),
            refused: Vec::new(),
        })
    }

    fn outcome(&self, run: &PlannedRun, found: Found) -> RunResult {
        RunResult {
            name: run.name.clone(),
            preset: run.preset.name.to_string(),
            build: run.build.clone(),
            search: run.search.clone(),
            backend: String::new(),
            index: IndexFacts {
                key: String::new(),
                reused: true,
                report: Value::Null,
                stats: Value::Null,
            },
            points: Vec::new(),
            live: None,
            step: Some(found),
        }
    }

    /// The copy of the index.
    pub fn index(&self) -> PathBuf {
        self.folder.join(INDEX)
    }
}

const INDEX: &str = "index";

/// The folder of a job's copies. The drop removes the folder.
#[derive(Debug)]
pub struct Work(PathBuf);

impl Work {
    /// Creates the folder.
    pub fn create(cache: &Path) -> Result<Work, Failure> {
        let folder = cache.join(format!("live-{}", std::process::id()));
        std::fs::create_dir_all(&folder)
            .map_err(|error| Failure::file("create", &folder, &error))?;
        Ok(Work(folder))
    }

    /// The path of the folder.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Replaces the copy of an index, and syncs it before the measurement.
    pub fn copy(&self, index: &Path) -> Result<(), Failure> {
        let copy = self.0.join(INDEX);
        if copy.exists() {
            std::fs::remove_dir_all(&copy)
                .map_err(|error| Failure::file("remove", &copy, &error))?;
        }
        std::fs::create_dir_all(&copy).map_err(|error| Failure::file("create", &copy, &error))?;
        let failed = |error| Failure::file("read", index, &error);
        for entry in std::fs::read_dir(index).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            if !entry.file_type().map_err(failed)?.is_file() {
                continue;
            }
            let to = copy.join(entry.file_name());
            std::fs::copy(entry.path(), &to)
                .and_then(|_| std::fs::File::open(&to)?.sync_all())
                .map_err(|error| Failure::file("write", &to, &error))?;
        }
        Ok(())
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The number of bytes of all files in a folder and its subfolders.
pub fn bytes_in(folder: &Path) -> u64 {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let bytes = entries.map(|entry| match entry.metadata() {
        Ok(facts) if facts.is_dir() => bytes_in(&entry.path()),
        Ok(facts) => facts.len(),
        // A merge has just removed the file.
        Err(_) => 0,
    });
    bytes.sum()
}

/// Resident bytes of this process now; 0 if `/proc` does not report them.
pub fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    kib.unwrap_or(0) * 1024
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_replaces_the_last_one() {
        let place = tempfile::tempdir().unwrap();
        let index = place.path().join("photos.idx");
        std::fs::create_dir(&index).unwrap();
        std::fs::write(index.join("a"), b"123").unwrap();
        let folder;
        {
            let work = Work::create(place.path()).unwrap();
            folder = work.path().to_owned();
            work.copy(&index).unwrap();
            std::fs::write(folder.join("index/b"), b"4567").unwrap();
            assert_eq!(bytes_in(&folder), 7);
            work.copy(&index).unwrap();
            assert_eq!(bytes_in(&folder), 3);
        }
        assert!(!folder.exists() && index.exists());
        assert_eq!(bytes_in(&folder), 0);
        assert!(resident_bytes() > 0);
    }
}
