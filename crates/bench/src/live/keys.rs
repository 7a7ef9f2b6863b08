//! The keys of a job of live updates. A run may override some keys.
//! ```toml
//! [timeline]                  # inserts and searches at the same time, measured each second
//! built = 800_000             # rows of the base in the built index; the other rows are inserted
//! rate = "half"               # rows a second; 0: as fast as possible; "half": half of the rate
//!                             # that this insert strategy reached without searches
//! insert_threads = 1
//! search_threads = 1
//! list = 40
//! seconds = 60
//! window = 5                  # seconds in one line of the table
//! alone = 30                  # seconds of searches before the first insert, in whole windows;
//!                             # they show how steady the machine is
//! deletes = 0                 # oldest rows to delete each second; "same": a row for each insert
//! merge_at = 20               # seconds after which a merge begins; 0: none
//! merge_at_logged = 0.06      # or: a merge begins when the vectors that wait for it, or the
//!                             # deleted vectors, are this share of the checkpoint's vectors
//!
//! [breakdown]                 # or: several insert strategies, one after the other, without
//!                             # searches meanwhile (OdinANN, Figure 9)
//! built = 800_000
//! rows = 20_000               # rows to insert
//! threads = 2
//! list = 40                   # list size of the searches after the inserts
//! calls = 1_000               # inserts of one row whose latency is measured
//!
//! [[run]]
//! name = "relocate, full pruning"
//! preset = "odinann"
//! update = "relocate"         # the insert strategy; if absent, the strategy of the preset
//! pruning = "full"            # or "delta", the default
//! writes = "waited"           # pages are written by the insert; or "behind", the default: by
//!                             # threads in the background
//! timeline = { merge_at = 0 } # keys that replace keys of [timeline] (or [breakdown])
//! ```

use std::time::Duration;

use std::fmt;

use serde::de::Visitor;
use serde::{Deserialize, Deserializer, Serialize};
use stratann::{DirectOptions, Preset, Pruning, Update};

/// Neighbours of a query in jobs of live updates.
pub const K: usize = 10;

/// The table `[timeline]` of a job, and the key `timeline` of a run.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TimelineKeys {
    built: Option<usize>,
    rate: Option<NumberOrWord>,
    insert_threads: Option<usize>,
    search_threads: Option<usize>,
    list: Option<usize>,
    seconds: Option<usize>,
    window: Option<usize>,
    alone: Option<usize>,
    deletes: Option<NumberOrWord>,
    merge_at: Option<f64>,
    merge_at_logged: Option<f64>,
}

/// The table `[breakdown]` of a job, and the key `breakdown` of a run.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BreakdownKeys {
    built: Option<usize>,
    rows: Option<usize>,
    threads: Option<usize>,
    list: Option<usize>,
    calls: Option<usize>,
}

#[derive(Debug, Clone, PartialEq)]
enum NumberOrWord {
    Number(f64),
    Word(String),
}

impl<'de> Deserialize<'de> for NumberOrWord {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Either;

        impl Visitor<'_> for Either {
            type Value = NumberOrWord;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a number a second, or a word such as \"half\"")
            }

            fn visit_i64<E>(self, number: i64) -> Result<NumberOrWord, E> {
                Ok(NumberOrWord::Number(number as f64))
            }

            fn visit_f64<E>(self, number: f64) -> Result<NumberOrWord, E> {
                Ok(NumberOrWord::Number(number))
            }

            fn visit_str<E>(self, text: &str) -> Result<NumberOrWord, E> {
                Ok(NumberOrWord::Word(text.to_owned()))
            }
        }

        deserializer.deserialize_any(Either)
    }
}

/// The rate of inserts.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Rate {
    /// As many rows a second as possible.
    Most,
    /// Half of the rate that a run without searches reached.
    Half,
    /// Rows a second.
    Rows(f64),
}

/// The rate at which the oldest rows are deleted.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Deletes {
    /// No rows are deleted.
    None,
    /// One row for each insert.
    Same,
    /// Rows a second.
    Rows(f64),
}

/// The time when a merge begins.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MergeAt {
    /// No merge begins.
    Never,
    /// Once, after this many seconds.
    Second(f64),
    /// Whenever the waiting or the deleted vectors reach this share of the checkpoint's vectors.
    Logged(f64),
}

impl MergeAt {
    /// Whether a merge begins now, `changing` after the first insert and after `merges` merges.
    /// `share` is the number of waiting or deleted vectors, relative to the checkpoint.
    pub fn is_due(self, changing: Duration, merges: usize, share: f64) -> bool {
        match self {
            MergeAt::Never => false,
            MergeAt::Second(second) => merges == 0 && changing.as_secs_f64() >= second,
            MergeAt::Logged(least) => share >= least,
        }
    }
}

/// Inserts and searches at the same time.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Timeline {
    /// Rows of the base from which the index is built.
    pub built: usize,
    /// The rate of inserts.
    pub rate: Rate,
    /// Threads that insert.
    pub insert_threads: usize,
    /// Threads that search.
    pub search_threads: usize,
    /// L of the searches.
    pub list: usize,
    /// The duration of the measurement in seconds.
    pub seconds: usize,
    /// Seconds in one line of the table.
    pub window: usize,
    /// Seconds of searches before the first insert.
    pub alone: usize,
    /// The rate of deletes.
    pub deletes: Deletes,
    /// When merges begin.
    pub merge: MergeAt,
}

/// Inserts without searches.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Breakdown {
    /// Rows of the base from which the index is built.
    pub built: usize,
    /// Rows that are inserted.
    pub rows: usize,
    /// Threads that insert.
    pub threads: usize,
    /// L of the searches after the inserts.
    pub list: usize,
    /// Inserts of one row whose latency is measured.
    pub calls: usize,
}

/// The measurement.
#[derive(Debug, Clone, PartialEq)]
pub enum Kind {
    /// Figures over time.
    Timeline(Timeline),
    /// Inserts without searches, in total.
    Breakdown(Breakdown),
}

/// A run of a job of live updates.
#[derive(Debug, Clone, PartialEq)]
pub struct LiveRun {
    /// The measurement.
    pub kind: Kind,
    /// How vectors are inserted, if the run sets it.
    pub update: Option<Update>,
    /// How lists are pruned.
    pub pruning: Pruning,
    /// Whether inserts continue while their pages are written.
    pub write_behind: bool,
}

/// The tables of a job, and the keys of a run.
#[derive(Debug, Clone, Copy)]
pub struct Said<'a> {
    /// `[timeline]`
    pub timeline: Option<&'a TimelineKeys>,
    /// `[breakdown]`
    pub breakdown: Option<&'a BreakdownKeys>,
    /// `timeline` of the run.
    pub run_timeline: Option<&'a TimelineKeys>,
    /// `breakdown` of the run.
    pub run_breakdown: Option<&'a BreakdownKeys>,
    /// `update` of the run.
    pub update: Option<&'a str>,
    /// `pruning` of the run.
    pub pruning: Option<&'a str>,
    /// `writes` of the run.
    pub writes: Option<&'a str>,
}

impl LiveRun {
    /// Rows of the base from which the index is built.
    pub fn built(&self) -> usize {
        match &self.kind {
            Kind::Timeline(timeline) => timeline.built,
            Kind::Breakdown(breakdown) => breakdown.built,
        }
    }

    /// L and the number of threads of the searches.
    pub fn search(&self) -> (usize, usize) {
        match &self.kind {
            Kind::Timeline(timeline) => (timeline.list, timeline.search_threads),
            Kind::Breakdown(breakdown) => (breakdown.list, 1),
        }
    }

    /// The options of direct inserts.
    pub fn direct(&self) -> DirectOptions {
        DirectOptions {
            pruning: self.pruning,
            write_behind: self.write_behind,
            ..DirectOptions::default()
        }
    }

    /// How vectors are inserted into an index of this preset.
    pub fn update(&self, preset: &Preset) -> Update {
        self.update.unwrap_or(preset.update)
    }
}

/// Returns the measurement of a run of live updates; `None` in a job of searches.
pub fn planned(said: &Said<'_>) -> Result<Option<LiveRun>, String> {
    let kind = match (said.timeline, said.breakdown) {
        (Some(_), Some(_)) => {
            return Err("[timeline] and [breakdown] are two jobs. Write a file for each".into());
        }
        (Some(keys), None) => {
            refuse("breakdown", said.run_breakdown.is_some(), "[breakdown]")?;
            let own = said.run_timeline.cloned().unwrap_or_default();
            Kind::Timeline(own.inherit(keys).planned()?)
        }
        (None, Some(keys)) => {
            refuse("timeline", said.run_timeline.is_some(), "[timeline]")?;
            let own = said.run_breakdown.cloned().unwrap_or_default();
            Kind::Breakdown(own.inherit(keys).planned()?)
        }
        (None, None) => {
            let either = "[timeline] or [breakdown]";
            refuse("timeline", said.run_timeline.is_some(), "[timeline]")?;
            refuse("breakdown", said.run_breakdown.is_some(), "[breakdown]")?;
            refuse("update", said.update.is_some(), either)?;
            refuse("pruning", said.pruning.is_some(), either)?;
            refuse("writes", said.writes.is_some(), either)?;
            return Ok(None);
        }
    };
    let update = match said.update {
        Some(name) => Some(name.parse::<Update>().map_err(|error| error.to_string())?),
        None => None,
    };
    let pruning = match said.pruning {
        None | Some("delta") => Pruning::Delta,
        Some("full") => Pruning::Full,
        Some(other) => {
            return Err(format!(
                "pruning = \"{other}\" is unknown. Give \"delta\" or \"full\""
            ));
        }
    };
    let write_behind = match said.writes {
        None | Some("behind") => true,
        Some("waited") => false,
        Some(other) => {
            return Err(format!(
                "writes = \"{other}\" is unknown. Give \"behind\" or \"waited\""
            ));
        }
    };
    Ok(Some(LiveRun {
        kind,
        update,
        pruning,
        write_behind,
    }))
}

fn refuse(key: &str, given: bool, table: &str) -> Result<(), String> {
    match given {
        true => Err(format!(
            "{key} does not apply to a job without {table}. Remove it"
        )),
        false => Ok(()),
    }
}

fn needed(key: &str, value: Option<usize>) -> Result<usize, String> {
    match value {
        Some(0) => Err(format!("{key} = 0 is too small. Give at least 1")),
        Some(value) => Ok(value),
        None => Err(format!("{key} is missing. Give a number of 1 or more")),
    }
}

fn list(value: Option<usize>) -> Result<usize, String> {
    match value.unwrap_or(40) {
        list if list < K => Err(format!(
            "list = {list} is smaller than k = {K}. Give at least {K}"
        )),
        list => Ok(list),
    }
}

impl TimelineKeys {
    fn inherit(self, other: &Self) -> Self {
        let other = other.clone();
        // A run that sets one key for merges does not inherit the other.
        let merges = self.merge_at.is_some() || self.merge_at_logged.is_some();
        Self {
            built: self.built.or(other.built),
            rate: self.rate.or(other.rate),
            insert_threads: self.insert_threads.or(other.insert_threads),
            search_threads: self.search_threads.or(other.search_threads),
            list: self.list.or(other.list),
            seconds: self.seconds.or(other.seconds),
            window: self.window.or(other.window),
            alone: self.alone.or(other.alone),
            deletes: self.deletes.or(other.deletes),
            merge_at: self.merge_at.or(other.merge_at.filter(|_| !merges)),
            merge_at_logged: self
                .merge_at_logged
                .or(other.merge_at_logged.filter(|_| !merges)),
        }
    }

    fn planned(&self) -> Result<Timeline, String> {
        let amount = |number: f64| number.is_finite() && number >= 0.0;
        let rate = match &self.rate {
            None => {
                return Err(
                    "rate is missing. Give rows a second, 0 for as many as possible, or \"half\""
                        .into(),
                );
            }
            Some(NumberOrWord::Word(word)) if word == "half" => Rate::Half,
            Some(NumberOrWord::Number(0.0)) => Rate::Most,
            Some(NumberOrWord::Number(rows)) if amount(*rows) => Rate::Rows(*rows),
            Some(other) => {
                return Err(format!(
                    "rate = {other} is not a rate. Give rows a second, 0 for as many as possible, or \"half\" for half of that rate"
                ));
            }
        };
        let deletes = match &self.deletes {
            None | Some(NumberOrWord::Number(0.0)) => Deletes::None,
            Some(NumberOrWord::Word(word)) if word == "same" => Deletes::Same,
            Some(NumberOrWord::Number(rows)) if amount(*rows) => Deletes::Rows(*rows),
            Some(other) => {
                return Err(format!(
                    "deletes = {other} is not a rate. Give rows a second, 0 for none, or \"same\" for one row for each insert"
                ));
            }
        };
        let merge = match (self.merge_at, self.merge_at_logged) {
            (Some(_), Some(_)) => {
                return Err("merge_at and merge_at_logged are both given. Give one of them".into());
            }
            (None, None) | (Some(0.0), None) => MergeAt::Never,
            (Some(second), None) if amount(second) => MergeAt::Second(second),
            (Some(second), None) => {
                return Err(format!(
                    "merge_at = {second} is not a time. Give seconds, or 0 for no merge"
                ));
            }
            (None, Some(share)) if share > 0.0 && share <= 1.0 => MergeAt::Logged(share),
            (None, Some(share)) => {
                return Err(format!(
                    "merge_at_logged = {share} is not a share. Give a number above 0 and up to 1, such as 0.06"
                ));
            }
        };
        let window = needed("window", self.window.or(Some(5)))?;
        let alone = self.alone.unwrap_or(0);
        if !alone.is_multiple_of(window) {
            return Err(format!(
                "alone = {alone} is not a multiple of window = {window}. Give a multiple of {window}"
            ));
        }
        Ok(Timeline {
            built: needed("built", self.built)?,
            rate,
            insert_threads: needed("insert_threads", self.insert_threads.or(Some(1)))?,
            search_threads: needed("search_threads", self.search_threads.or(Some(1)))?,
            list: list(self.list)?,
            seconds: needed("seconds", self.seconds)?,
            window,
            alone,
            deletes,
            merge,
        })
    }
}

impl BreakdownKeys {
    fn inherit(self, other: &Self) -> Self {
        Self {
            built: self.built.or(other.built),
            rows: self.rows.or(other.rows),
            threads: self.threads.or(other.threads),
            list: self.list.or(other.list),
            calls: self.calls.or(other.calls),
        }
    }

    fn planned(&self) -> Result<Breakdown, String> {
        let cores = stratann::processors();
        Ok(Breakdown {
            built: needed("built", self.built)?,
            rows: needed("rows", self.rows)?,
            threads: needed("threads", self.threads.or(Some(cores)))?,
            list: list(self.list)?,
            calls: needed("calls", self.calls.or(Some(1_000)))?,
        })
    }
}

impl fmt::Display for NumberOrWord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(number) => write!(f, "{number}"),
            Self::Word(word) => write!(f, "\"{word}\""),
        }
    }
}

/// An insert strategy as text: `relocate`, or `in-place, full pruning, waits`.
pub fn way(update: Update, direct: &DirectOptions) -> String {
    let mut words = update.to_string();
    if update != Update::Merge {
        if direct.pruning == Pruning::Full {
            words.push_str(", full pruning");
        }
        if !direct.write_behind {
            words.push_str(", waits");
        }
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_merge_begins_once_after_a_time_or_whenever_enough_waits() {
        let second = Duration::from_secs;
        assert!(!MergeAt::Never.is_due(second(100), 0, 1.0));
        let once = MergeAt::Second(2.0);
        let due = [1, 2, 3].map(|at| once.is_due(second(at), 0, 0.0));
        assert_eq!(due, [false, true, true]);
        assert!(
            !once.is_due(second(3), 1, 1.0),
            "the merge was already made"
        );
        let often = MergeAt::Logged(0.03);
        let due = [0.0, 0.029, 0.03, 0.5].map(|share| often.is_due(second(0), 7, share));
        assert_eq!(due, [false, false, true, true]);
    }
}
