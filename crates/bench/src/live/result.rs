//! What runs of live updates found out.

use serde::{Deserialize, Serialize};
use stratann::{CompactReport, DirectCounts};

use crate::live::keys::{Breakdown, Timeline};
use crate::report::Point;

/// What a run measured.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "kebab-case", tag = "kind")]
pub enum Live {
    /// Over time.
    Timeline(Box<OverTime>),
    /// Inserts alone, all in all.
    Breakdown(Box<BrokenDown>),
}

/// What happened between two moments.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Span {
    /// Seconds since the start.
    pub from: f64,
    /// Seconds since the start.
    pub to: f64,
    /// Rows that were inserted.
    pub inserts: u64,
    /// Rows that were deleted.
    pub deletes: u64,
    /// Queries that were answered.
    pub searches: u64,
    /// Their median latency in microseconds; 0 if there were none, as the others.
    pub p50_us: f64,
    /// 90 % of them were not slower.
    pub p90_us: f64,
    /// 99 % of them were not slower.
    pub p99_us: f64,
    /// Recall@10 of those in the sample, over what was live at that moment; null if there were none.
    pub recall: Option<f64>,
    /// Resident set at the end.
    pub rss_bytes: u64,
    /// Bytes on storage at the end, a merge's unfinished files among them.
    pub storage_bytes: u64,
    /// Pages that inserts read to find neighbours; null where they go into memory.
    pub pages_read: Option<u64>,
    /// Pages that inserts wrote; null where they go into memory.
    pub pages_written: Option<u64>,
    /// Whether a merge went on.
    pub merging: bool,
    /// Whether there were rows to insert all the time.
    pub inserting: bool,
    /// Whether it was before the first insert.
    pub alone: bool,
}

impl Span {
    /// So many in this time, a second.
    pub fn rate(&self, count: u64) -> f64 {
        count as f64 / (self.to - self.from).max(1e-9)
    }
}

/// A merge.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Merge {
    /// Seconds since the start.
    pub began: f64,
    /// Vectors in the new checkpoint.
    pub vectors: u64,
    /// Vectors that came from the log.
    pub merged: u64,
    /// Vectors that were deleted or replaced.
    pub removed: u64,
    /// Segments of vectors that stayed as they were, and those that were written anew, with how many vectors.
    pub segments_kept: u64,
    /// Segments that were written anew.
    pub segments_rewritten: u64,
    /// Vectors of those.
    pub vectors_rewritten: u64,
    /// Bytes on storage afterwards.
    pub bytes_after: u64,
    /// How long it took.
    pub seconds: f64,
}

impl Merge {
    /// A merge that began so many seconds after the start.
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

/// Inserts and searches at once.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct OverTime {
    /// What the job says.
    pub settings: Timeline,
    /// How vectors got in.
    pub way: String,
    /// Rows a second that went in without searches and without a limit, if the rate is half of that.
    pub most_a_second: Option<f64>,
    /// Rows a second that were to go in; null: as many as could.
    pub rate: Option<f64>,
    /// How pages were read.
    pub backend: String,
    /// Queries whose answers were judged, each time that they were searched.
    pub recall_of: usize,
    /// When the base had no more rows to insert.
    pub rows_out: Option<f64>,
    /// Vectors at the end.
    pub vectors: u64,
    /// Answers that had been deleted before the search began; there must not be any.
    pub stale: u64,
    /// The least and the largest P50 of the windows in which rows were inserted.
    pub p50_us: Option<[f64; 2]>,
    /// The largest over the least.
    pub p50_ratio: Option<f64>,
    /// The least and the largest P50 of the windows before the first insert, but for the first of them: what the machine alone
    /// makes of it.
    pub alone_p50_us: Option<[f64; 2]>,
    /// Most memory.
    pub peak_rss_bytes: u64,
    /// The merges.
    pub merges: Vec<Merge>,
    /// The windows of the table.
    pub windows: Vec<Span>,
    /// Each second.
    pub seconds: Vec<Span>,
}

/// Rows that went in as fast as they could, and what came of it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Inserted {
    /// How vectors got in.
    pub way: String,
    /// How many.
    pub rows: u64,
    /// How long it took until all were durable.
    pub seconds: f64,
    /// The merge, where one belongs to the way.
    pub merge: Option<Merge>,
    /// Rows a second, the merge included.
    pub inserts_a_second: f64,
    /// Pages read to find neighbours, an insert; null where that is not counted (a merge), as the next two.
    pub pages_read: Option<f64>,
    /// Pages written, an insert.
    pub pages_written: Option<f64>,
    /// Lists changed, an insert.
    pub lists_changed: Option<f64>,
    /// How often old nodes of a list had to be compared with each other, an insert.
    pub fallbacks: Option<f64>,
    /// Most memory of the inserts, and of the merge.
    pub peak_rss_bytes: u64,
    /// Bytes on storage afterwards, log included.
    pub storage_bytes: u64,
    /// Seconds that closing the index took: what waits in memory goes to storage.
    pub close_seconds: f64,
    /// Bytes on storage after that.
    pub closed_bytes: u64,
    /// Searches afterwards.
    pub searches: Point,
}

impl Inserted {
    /// Puts the counts in, by the insert.
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
    /// How many.
    pub calls: usize,
    /// Mean latency in microseconds.
    pub mean_us: f64,
    /// Median.
    pub p50_us: f64,
    /// 99 % were not slower.
    pub p99_us: f64,
}

/// Inserts alone.
#[derive(Debug, Clone, Serialize)]
pub struct BrokenDown {
    /// What the job says.
    pub settings: Breakdown,
    /// Many rows at once.
    #[serde(flatten)]
    pub inserted: Inserted,
    /// One row a call, in an index of its own.
    pub call: Calls,
}

/// What a child process found out.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Found {
    /// Rows a second that go in without searches.
    Most(f64),
    /// Inserts and searches at once.
    OverTime(Box<OverTime>),
    /// Many rows at once.
    Inserted(Box<Inserted>),
    /// One row a call.
    Calls(Calls),
}
