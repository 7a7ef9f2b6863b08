//! The results of runs with live updates.

use serde::{Deserialize, Serialize};
use stratann::{CompactReport, DirectCounts};

use crate::live::keys::{Breakdown, Timeline};
use crate::report::Point;

/// The measurements of a run.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "kebab-case", tag = "kind")]
pub enum Live {
    /// Figures over time.
    Timeline(Box<OverTime>),
    /// Inserts without searches, in total.
    Breakdown(Box<BrokenDown>),
}

/// The activity in one time span.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Span {
    /// The start of the span, in seconds since the start of the measurement.
    pub from: f64,
    /// The end of the span, in seconds since the start of the measurement.
    pub to: f64,
    /// Rows that were inserted.
    pub inserts: u64,
    /// Rows that were deleted.
    pub deletes: u64,
    /// Queries that were answered.
    pub searches: u64,
    /// The median latency in microseconds; all latencies are 0 without queries.
    pub p50_us: f64,
    /// The latency that 90 % of the queries did not exceed.
    pub p90_us: f64,
    /// The latency that 99 % did not exceed.
    pub p99_us: f64,
    /// Recall@10 of the sampled queries, against the rows live at that time; null without samples.
    pub recall: Option<f64>,
    /// Resident memory at the end of the span.
    pub rss_bytes: u64,
    /// Bytes on storage at the end of the span, including the unfinished files of a merge.
    pub storage_bytes: u64,
    /// Pages that inserts read to find neighbours; null if vectors wait in memory.
    pub pages_read: Option<u64>,
    /// Pages that inserts wrote; null if vectors wait in memory.
    pub pages_written: Option<u64>,
    /// Whether a merge was running.
    pub merging: bool,
    /// Whether the base had rows to insert during the whole span.
    pub inserting: bool,
    /// Whether the span ended before the first insert.
    pub alone: bool,
}

impl Span {
    /// The rate of `count` events in this span, a second.
    pub fn rate(&self, count: u64) -> f64 {
        count as f64 / (self.to - self.from).max(1e-9)
    }
}

/// A merge.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Merge {
    /// The time when the merge began, in seconds since the start of the measurement.
    pub began: f64,
    /// Vectors in the new checkpoint.
    pub vectors: u64,
    /// Vectors that were in the log.
    pub merged: u64,
    /// Vectors that were deleted or replaced.
    pub removed: u64,
    /// Segments of vectors that were kept unchanged.
    pub segments_kept: u64,
    /// Segments that were rewritten.
    pub segments_rewritten: u64,
    /// Vectors in rewritten segments.
    pub vectors_rewritten: u64,
    /// Bytes on storage after the merge.
    pub bytes_after: u64,
    /// The duration of the merge in seconds.
    pub seconds: f64,
}

impl Merge {
    /// Creates the record of a merge that began `began` seconds after the start.
    pub fn of(began: f64, report: &CompactReport) -> Merge {
        Merge {
            began,
            vectors: report.vectors,
            merged: report.merged,
            removed: report.removed,
            segments_kept: report.segments_kept,
            segments_rewritten: report.segments_rewritten,
            vectors_rewritten: report.vectors_rewritten,
            bytes_after: report.bytes_after,
            seconds: report.seconds,
        }
    }
}

/// Inserts and searches at the same time.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct OverTime {
    /// The keys of the job.
    pub settings: Timeline,
    /// How vectors were inserted.
    pub way: String,
    /// Rows a second without searches and without a limit, if the target rate is half of this rate.
    pub most_a_second: Option<f64>,
    /// The target rate in rows a second; null: as many as possible.
    pub rate: Option<f64>,
    /// How pages were read.
    pub backend: String,
    /// The number of judged queries, in each pass.
    pub recall_of: usize,
    /// Seconds until all rows of the base had been inserted; null if some rows were not inserted.
    pub rows_out: Option<f64>,
    /// The number of vectors at the end.
    pub vectors: u64,
    /// Results whose vector had been deleted before their search began; must be 0.
    pub stale: u64,
    /// The smallest and the largest P50 of the windows with inserts.
    pub p50_us: Option<[f64; 2]>,
    /// The ratio of the largest to the smallest P50.
    pub p50_ratio: Option<f64>,
    /// The smallest and largest P50 before the first insert, without the first window.
    pub alone_p50_us: Option<[f64; 2]>,
    /// Peak memory in bytes.
    pub peak_rss_bytes: u64,
    /// The merges.
    pub merges: Vec<Merge>,
    /// The windows of the table.
    pub windows: Vec<Span>,
    /// A span for each second.
    pub seconds: Vec<Span>,
}

/// The result of inserting rows at full speed.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Inserted {
    /// How vectors were inserted.
    pub way: String,
    /// The number of rows.
    pub rows: u64,
    /// Seconds until all rows were durable.
    pub seconds: f64,
    /// The merge, if the insert strategy has merges.
    pub merge: Option<Merge>,
    /// Rows a second, with the merge.
    pub inserts_a_second: f64,
    /// Pages that an insert reads to find neighbours. With a merge, this figure and the next three
    /// are null.
    pub pages_read: Option<f64>,
    /// Pages written for each insert.
    pub pages_written: Option<f64>,
    /// Lists changed for each insert.
    pub lists_changed: Option<f64>,
    /// How often, for each insert, old nodes of a list were compared with each other.
    pub fallbacks: Option<f64>,
    /// Peak memory of the inserts and of the merge, in bytes.
    pub peak_rss_bytes: u64,
    /// Bytes on storage after the inserts, including the log.
    pub storage_bytes: u64,
    /// Seconds to close the index, which writes the data in memory.
    pub close_seconds: f64,
    /// Bytes on storage after the close.
    pub closed_bytes: u64,
    /// Searches after the inserts.
    pub searches: Point,
}

impl Inserted {
    /// Sets the counts, divided by the number of inserts.
    pub fn count(&mut self, counts: &DirectCounts) {
        let each = |count: u64| Some(count as f64 / counts.inserts.max(1) as f64);
        self.pages_read = each(counts.pages_read);
        self.pages_written = each(counts.pages_written);
        self.lists_changed = each(counts.changes);
        self.fallbacks = each(counts.fallbacks);
    }
}

/// Calls that inserted one row each.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Calls {
    /// The number of calls.
    pub calls: usize,
    /// Mean latency in microseconds.
    pub mean_us: f64,
    /// Median.
    pub p50_us: f64,
    /// The latency that 99 % did not exceed.
    pub p99_us: f64,
}

/// Inserts without searches.
#[derive(Debug, Clone, Serialize)]
pub struct BrokenDown {
    /// The keys of the job.
    pub settings: Breakdown,
    /// Many rows in each call.
    #[serde(flatten)]
    pub inserted: Inserted,
    /// One row in each call, in another copy of the index.
    pub call: Calls,
}

/// The result of a child process.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Found {
    /// Rows a second without searches.
    Most(f64),
    /// Inserts and searches at the same time.
    OverTime(Box<OverTime>),
    /// Many rows in each call.
    Inserted(Box<Inserted>),
    /// One row in each call.
    Calls(Calls),
}
