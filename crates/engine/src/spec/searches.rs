//! The options of a search.

use super::preset::{Press, Rerank, named};

named! {
    /// The order in which nodes are read and scored.
    pub enum Strategy, "strategy" {
        /// DiskANN's beam search: reads the best W unread candidates, and waits for all of them.
        BestFirst = "best-first", "Reads a beam of nodes, and waits for all of them (DiskANN)",
        /// PipeANN's search: handles each completion at once, and widens its pipeline as it
        /// converges.
        Pipelined = "pipelined", "Continues after each single read; the beam widens as the search converges (PipeANN)",
        /// DistVS's search: low codes rule out most neighbours, and high codes decide which node is
        /// expanded next.
        Press = "press", "Ranks by low codes, then by high codes; needs codes of two precisions, as the preset distvs has (DistVS)",
    }
}

named! {
    /// The strategy of a search with a filter.
    pub enum Way, "way" {
        /// Walks the graph or probes clusters, also through vectors that do not match.
        Within = "within", "Walks the graph, or probes clusters, and also passes vectors that do not match",
        /// Starts from all matches, and compares them one after the other.
        Before = "before", "Compares the codes of all matches, and reads the vectors of the best",
    }
}

/// The options of a search. Unless an option says otherwise, `None` is the choice of the preset.
#[derive(Clone, Copy, Debug)]
pub struct SearchOptions {
    /// The number of results for each query. The largest k is the number of vectors, but at least
    /// [`MOST_PADDED`](crate::bounds::MOST_PADDED). Missing results are padded.
    pub k: usize,
    /// The list size (L), at least `k`. If the list has a place for each live vector, results are
    /// exact. Results are also exact in a small index that [outgrew its codes](crate::Due::Grown):
    /// fewer than 1,000 vectors, or fewer than 10,000 if the last build had fewer than 128.
    ///
    /// If the index [has drifted](crate::Due::Drifted) and a result was inserted since the last
    /// build or merge, the query searches again with a list 8 times as long.
    ///
    /// In a cluster index, this is the list size of searches among the vectors that wait in memory.
    pub list: usize,
    /// The number of clusters that a query probes, in a cluster index. `None` means 32, or `k` if
    /// `k` is larger ([`probes_of`](SearchOptions::probes_of)).
    ///
    /// A cluster index refuses the options of a walk: `strategy`, `navigation`, `whole_page`,
    /// `rerank`, `stop_early`, `seeds`.
    pub probes: Option<usize>,
    /// The beam width (W): the number of reads in flight in a best-first search, or the largest
    /// number in a pipelined search.
    pub beam: Option<usize>,
    /// The order in which nodes are read.
    pub strategy: Option<Strategy>,
    /// Whether a walk starts from the navigation graph.
    pub navigation: Option<bool>,
    /// Whether a walk ranks all nodes on each page that it reads, and not only the requested nodes.
    pub whole_page: Option<bool>,
    /// The rule that ends re-ranking, if vectors are apart from lists.
    pub rerank: Option<Rerank>,
    /// The parameters of [`Strategy::Press`]. Other strategies ignore them.
    pub press: Press,
    /// The number of seeds of a search without a navigation graph. Seeds are nodes spread over the
    /// collection. The search ranks the seeds by their codes, and begins near the nearest. With 0
    /// seeds, the search begins at the entry points. PRESS uses [`Press::seeds`] instead.
    pub seeds: usize,
    /// Whether distances must be exact to the last bit in the layered layout. The search then reads
    /// the trailing parts of all results. Other layouts always give exact distances.
    pub exact: bool,
    /// Whether a search ends as soon as the code errors of the query so far make a better result
    /// unlikely. Such a search reads less, and its recall is a little lower.
    pub stop_early: bool,
    /// The target recall: the share of the true `k` nearest to find, above 0 and up to 1. `list` is
    /// then ignored. The measurements of [`calibrate`](crate::calibrate) give the number of
    /// candidates: as many as were needed by queries whose results had the same distance. In a
    /// cluster index, the number of probes follows from the distance of the nearest head.
    ///
    /// `recall` cannot be combined with `stop_early` or `probes`. A search must use PRESS if and
    /// only if the preset's strategy is PRESS.
    pub recall: Option<f64>,
    /// The strategy for a filter. `None` chooses the strategy with the lower expected cost. Without
    /// a filter, the strategy must be `None`.
    pub way: Option<Way>,
    /// Whether to measure the time of each part of the search
    /// ([`SearchResults::parts`](crate::SearchResults::parts)), which itself costs time.
    pub parts: bool,
    /// The number of OS threads that run the queries.
    pub threads: usize,
    /// The number of queries in flight on each thread: 1 for the least latency, more for
    /// throughput. `None` chooses by the size of the batch
    /// ([`in_flight`](SearchOptions::in_flight)). A batch of at least 256 queries for each thread
    /// tries several numbers. A small memory budget lowers the number. The results of best-first
    /// search do not depend on this number.
    pub in_flight: Option<usize>,
}

impl Default for SearchOptions {
    fn default() -> Self {
        Self {
            k: 10,
            list: 100,
            probes: None,
            beam: None,
            strategy: None,
            navigation: None,
            whole_page: None,
            rerank: None,
            press: Press::default(),
            seeds: 0,
            exact: false,
            stop_early: false,
            recall: None,
            way: None,
            parts: false,
            threads: 1,
            in_flight: None,
        }
    }
}
