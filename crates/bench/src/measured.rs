//! What a search measured: what `stratann search --json` prints, and what a benchmark reads of it.

use serde::{Deserialize, Serialize};
use stratann::{Counters, Explained, Parts, Tried};

/// What `--json` prints for one list size. The keys are an interface: change none.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Measured {
    /// List size L.
    pub list: usize,
    /// Neighbours asked for.
    pub k: usize,
    /// Recall@k with ties counted as hits; null without ground truth.
    pub recall: Option<f64>,
    /// Queries a second, all threads together.
    pub qps: f64,
    /// Latency of a query in microseconds.
    pub latency_us: Latency,
    /// Averages over the queries.
    pub per_query: PerQuery,
    /// Threads that searched.
    pub threads: usize,
    /// Queries that were in flight on each thread in the end.
    #[serde(default)]
    pub in_flight: usize,
    /// What the batch tried before it chose that number itself; only there when it did.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub in_flight_tried: Vec<Tried>,
    /// CPU time of the process over the batch, user and system, in microseconds a query.
    #[serde(default)]
    pub cpu_us: f64,
    /// How far a distance may be from the exact one ([`SearchResults::distance_error`](stratann::SearchResults)): 0 where all are exact,
    /// null where nothing bounds it.
    #[serde(default)]
    pub distance_error: Option<f32>,
    /// Most memory that this process ever held.
    pub peak_rss_bytes: u64,
    /// How what matches a filter was found, and what each way was expected to read; only there with a filter.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub filter: Option<Explained>,
    /// Where a query's time went; only there when it was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parts: Option<PartsUs>,
}

/// Where a query's time went: means in microseconds. The rest of the latency is the candidate list, expansion and
/// everything else.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct PartsUs {
    /// Waiting for reads.
    pub reads: f64,
    /// Tables of code distances, and scoring by code.
    pub codes: f64,
    /// Decoding adjacency lists.
    pub list_decoding: f64,
    /// Decoding vectors.
    pub vector_decoding: f64,
    /// Exact distances.
    pub exact: f64,
}

impl PartsUs {
    /// Of so many queries.
    pub fn of(parts: &Parts, queries: usize) -> PartsUs {
        let mean = |seconds: f64| seconds * 1e6 / queries.max(1) as f64;
        PartsUs {
            reads: mean(parts.reads),
            codes: mean(parts.codes),
            list_decoding: mean(parts.list_decoding),
            vector_decoding: mean(parts.vector_decoding),
            exact: mean(parts.exact),
        }
    }

    /// Columns of a table: the parts, and what is left of the mean latency.
    pub const COLUMNS: [&str; 6] = [
        "reads",
        "codes",
        "list decoding",
        "vector decoding",
        "exact",
        "rest",
    ];

    /// The cells of these columns.
    pub fn cells(&self, mean_us: f64) -> [String; 6] {
        let parts = [
            self.reads,
            self.codes,
            self.list_decoding,
            self.vector_decoding,
            self.exact,
        ];
        // Clocks are read one after the other: what is left of little may come out below nothing.
        let rest = (mean_us - parts.iter().sum::<f64>()).max(0.0);
        let [reads, codes, lists, vectors, exact] = parts;
        [reads, codes, lists, vectors, exact, rest].map(|us| format!("{us:.1}"))
    }
}

/// Latency of a query in microseconds.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Latency {
    /// Mean.
    pub mean: f64,
    /// Median.
    pub p50: f64,
    /// 90th percentile.
    pub p90: f64,
    /// 99th percentile.
    pub p99: f64,
}

impl Latency {
    /// Of these queries, in any order.
    pub fn of(latencies_us: &[f32]) -> Latency {
        let mut sorted = latencies_us.to_vec();
        sorted.sort_by(f32::total_cmp);
        Latency {
            mean: mean(&sorted),
            p50: percentile(&sorted, 0.50),
            p90: percentile(&sorted, 0.90),
            p99: percentile(&sorted, 0.99),
        }
    }
}

/// The mean; 0 of nothing.
pub fn mean(values: &[f32]) -> f64 {
    values.iter().copied().map(f64::from).sum::<f64>() / values.len().max(1) as f64
}

/// The smallest value that at least this share of the sorted ones does not exceed (nearest rank); 0 of nothing.
pub fn percentile(sorted: &[f32], share: f64) -> f64 {
    let rank = (share * sorted.len() as f64).ceil() as usize;
    sorted
        .get(rank.saturating_sub(1))
        .copied()
        .map_or(0.0, f64::from)
}

/// Averages over the queries.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct PerQuery {
    /// Nodes whose neighbours were scored.
    pub hops: f64,
    /// Reads of the graph that reached the tier.
    pub graph_reads: f64,
    /// Reads of vectors alone that reached the tier.
    pub vector_reads: f64,
    /// Of these, the ones that began while the graph was walked.
    #[serde(default)]
    pub prefetched: f64,
    /// Candidates that were ranked by vectors read alone.
    #[serde(default)]
    pub reranked: f64,
    /// Of the reads of the graph, in a cluster index: those of postings; absent in a graph.
    #[serde(default, skip_serializing_if = "is_none")]
    pub posting_reads: f64,
    /// The same of groups.
    #[serde(default, skip_serializing_if = "is_none")]
    pub group_reads: f64,
    /// Of the reads of vectors alone, in a cluster index: those that stand in no group that was read.
    #[serde(default, skip_serializing_if = "is_none")]
    pub stray_reads: f64,
    /// Bytes read from the tier.
    pub bytes_read: f64,
    /// Nodes that a cache served instead of a read.
    pub cache_hits: f64,
    /// Distances computed, exact ones and from codes.
    pub distance_computations: f64,
    /// Of these, the ones by codes of low precision; absent where a search has none.
    #[serde(default, skip_serializing_if = "is_none")]
    pub low_computations: f64,
}

/// A count that only other indexes or searches have.
fn is_none(mean: &f64) -> bool {
    *mean == 0.0
}

impl PerQuery {
    /// Of so many queries.
    pub fn of(counters: &Counters, queries: usize) -> PerQuery {
        let mean = |sum: u64| sum as f64 / queries.max(1) as f64;
        PerQuery {
            hops: mean(counters.hops),
            graph_reads: mean(counters.graph_reads),
            vector_reads: mean(counters.vector_reads),
            prefetched: mean(counters.prefetched),
            reranked: mean(counters.reranked),
            posting_reads: mean(counters.posting_reads),
            group_reads: mean(counters.group_reads),
            stray_reads: mean(counters.stray_reads),
            bytes_read: mean(counters.bytes_read),
            cache_hits: mean(counters.cache_hits),
            distance_computations: mean(counters.distance_computations),
            low_computations: mean(counters.low_computations),
        }
    }
}

/// What `stratann bench` wants to know beyond the documented keys.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Detailed {
    /// The documented part.
    #[serde(flatten)]
    pub measured: Measured,
    /// Queries searched.
    pub queries: usize,
    /// Wall clock of the batch.
    pub seconds: f64,
    /// CPU time of the batch, kernel included.
    pub cpu_seconds: f64,
    /// How pages were read.
    pub backend: String,
    /// Queries with fewer than k answers.
    pub short: usize,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_values_that_occurred() {
        let latency = Latency::of(&(1..=100).rev().map(|n| n as f32).collect::<Vec<_>>());
        assert_eq!((latency.p50, latency.p90, latency.p99), (50.0, 90.0, 99.0));
        assert_eq!(latency.mean, 50.5);
    }

    #[test]
    fn percentiles_of_few_and_none() {
        let one = Latency::of(&[7.0]);
        assert_eq!((one.mean, one.p50, one.p99), (7.0, 7.0, 7.0));
        let none = Latency::of(&[]);
        assert_eq!((none.mean, none.p50), (0.0, 0.0));
    }
}
