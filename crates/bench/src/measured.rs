//! The measurements of a search, as `stratann search --json` prints them.

use serde::{Deserialize, Serialize};
use stratann::{Counters, Explained, Parts, Tried};

/// The output of `--json` for one list size. The keys are a public interface and must not change.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Measured {
    /// List size L.
    pub list: usize,
    /// k, the number of requested neighbours.
    pub k: usize,
    /// Recall@k with ties counted as hits; null without ground truth.
    pub recall: Option<f64>,
    /// Queries a second, all threads together.
    pub qps: f64,
    /// Latency of a query in microseconds.
    pub latency_us: Latency,
    /// Averages over the queries.
    pub per_query: PerQuery,
    /// The number of threads that searched.
    pub threads: usize,
    /// The number of queries in flight on each thread at the end of the batch.
    #[serde(default)]
    pub in_flight: usize,
    /// The tried numbers of queries in flight, unless the caller set `in_flight`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub in_flight_tried: Vec<Tried>,
    /// CPU time of the process over the batch, user and system, in microseconds a query.
    #[serde(default)]
    pub cpu_us: f64,
    /// The largest error of a distance
    /// ([`SearchResults::distance_error`](stratann::SearchResults)), null if unbounded.
    #[serde(default)]
    pub distance_error: Option<f32>,
    /// The peak resident memory of this process in bytes.
    pub peak_rss_bytes: u64,
    /// The evaluation of the filter, with the expected reads of each strategy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub filter: Option<Explained>,
    /// The time of each part of a query; absent unless requested.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parts: Option<PartsUs>,
}

/// The mean time of each part of a query, in microseconds. The rest of the latency is other work.
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
    /// Computes the means over `queries` queries.
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

    /// The columns of a table: the parts, and the remaining part of the mean latency.
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
        // The clocks are read one after the other, so a small remainder could be negative.
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
    /// Computes the figures from latencies in any order.
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

/// The mean; 0 for no values.
pub fn mean(values: &[f32]) -> f64 {
    values.iter().copied().map(f64::from).sum::<f64>() / values.len().max(1) as f64
}

/// The smallest value that at least `share` of the sorted values do not exceed, or 0.
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
    /// Vector reads that began during the walk of the graph.
    #[serde(default)]
    pub prefetched: f64,
    /// Candidates ranked by vectors that were read separately.
    #[serde(default)]
    pub reranked: f64,
    /// In a cluster index: the graph reads that read posting lists. Absent for a graph.
    #[serde(default, skip_serializing_if = "is_none")]
    pub posting_reads: f64,
    /// In a cluster index: the graph reads that read groups.
    #[serde(default, skip_serializing_if = "is_none")]
    pub group_reads: f64,
    /// In a cluster index: the vector reads of members outside the groups that were read.
    #[serde(default, skip_serializing_if = "is_none")]
    pub stray_reads: f64,
    /// Bytes read from the tier.
    pub bytes_read: f64,
    /// Nodes that a cache served without a read.
    pub cache_hits: f64,
    /// Distances computed: exact distances, and distances from codes.
    pub distance_computations: f64,
    /// Distances by low-precision codes; absent if the search has none.
    #[serde(default, skip_serializing_if = "is_none")]
    pub low_computations: f64,
}

fn is_none(mean: &f64) -> bool {
    *mean == 0.0
}

impl PerQuery {
    /// Computes the means over `queries` queries.
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

/// The documented measurements, and others for `stratann bench`.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Detailed {
    /// The documented part.
    #[serde(flatten)]
    pub measured: Measured,
    /// The number of queries.
    pub queries: usize,
    /// The wall-clock time of the batch in seconds.
    pub seconds: f64,
    /// The CPU time of the batch in seconds, including the kernel.
    pub cpu_seconds: f64,
    /// How pages were read.
    pub backend: String,
    /// The number of queries with fewer than k results.
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
