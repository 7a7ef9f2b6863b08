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
        /// DistVS's search: low-precision codes rule out most neighbours, and high-precision codes
        /// decide which node is expanded next.
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

/// The options of a search. If an option is `None`, the search takes the value of the index's
/// preset, unless the text of the option says otherwise.
#[derive(Clone, Copy, Debug)]
pub struct SearchOptions {
    /// The number of results for each query. If the index has fewer vectors, the remaining places
    /// are padded ([`SearchResults::ids`](crate::SearchResults::ids)). `k` is at most the number of
    /// vectors in the index, or
    /// [`MOST_PADDED`](crate::bounds::MOST_PADDED) if that is larger.
    pub k: usize,
    /// The list size (L), at least `k`. A longer candidate list finds more of the true nearest
    /// vectors, and is slower. If the candidate list has a place for each live vector, results are
    /// exact. With any list size, results are also exact in a small index that [outgrew its
    /// codes](crate::Due::Grown). An index with fewer than 1,000 vectors is small. If the last
    /// build had fewer than 128 vectors, an index with fewer than 10,000 is small too.
    ///
    /// If the index [has drifted](crate::Due::Drifted) and a result was inserted since the last
    /// build or merge, the query searches again with a candidate list 8 times as long.
    ///
    /// In a cluster index, vectors that wait for a merge are in a graph in memory. There, this
    /// option is the list size of searches in that graph.
    pub list: usize,
    /// The number of clusters that a query probes, in a cluster index. More probes find more of the
    /// true nearest vectors, and take longer. `None` means 32 probes, or `k` probes if `k` is
    /// larger ([`probes_of`](SearchOptions::probes_of)).
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
    /// Whether a walk ranks all nodes on each page that it reads, and not only the nodes that it
    /// requested.
    pub whole_page: Option<bool>,
    /// The rule that ends re-ranking, if vectors are apart from lists.
    pub rerank: Option<Rerank>,
    /// The parameters of [`Strategy::Press`]. Other strategies ignore them.
    pub press: Press,
    /// The number of seeds of a search without a navigation graph. A search with PRESS uses
    /// [`Press::seeds`] instead. Seeds are nodes spread over the collection. The search ranks the
    /// seeds by their codes, and begins near the nearest seeds. If the index has low and high
    /// codes, it uses the low codes. With 0 seeds, a search begins at the entry points, as in the
    /// papers.
    pub seeds: usize,
    /// Whether the distances of results must be exact to the last bit in the layered layout. This
    /// layout ranks by the leading parts of vectors. If the option is set, the search also reads
    /// the trailing parts of all results. In other layouts distances are always exact.
    pub exact: bool,
    /// Whether a search may end before its whole candidate list is expanded. Such a search ends
    /// when it expects that no remaining candidate is a result or leads to a result. The
    /// expectation depends on the code errors that the query has measured so far. With this option,
    /// a search reads less at the same list size, and its recall is a little lower.
    pub stop_early: bool,
    /// The target recall: the share of the true `k` nearest to find, above 0 and up to 1. `list` is
    /// then ignored. The number of candidates of a query follows from the measurements of
    /// [`calibrate`](crate::calibrate): it is the number that measured queries needed if their
    /// results were at the same distance. In a cluster index, the number of probes follows in the
    /// same way from the distance of the nearest head.
    ///
    /// `recall` cannot be combined with `stop_early` or `probes`. Recall was measured with the
    /// preset's strategy. If the preset's strategy is PRESS, the search must use PRESS. If it is
    /// not PRESS, the search must not use PRESS.
    pub recall: Option<f64>,
    /// The strategy for a filter, [`Way::Within`] or [`Way::Before`]. If it is `None`, the search
    /// chooses the strategy with the lower expected cost. Without a filter, it must be `None`.
    pub way: Option<Way>,
    /// Whether to measure the time of each part of the search
    /// ([`SearchResults::parts`](crate::SearchResults::parts)). The
    /// measurement itself costs time.
    pub parts: bool,
    /// The number of OS threads that run the queries.
    pub threads: usize,
    /// The number of queries in flight on each thread: 1 for the least latency, more for
    /// throughput. If the memory budget is too small for this number, fewer queries are in flight.
    /// If the option is `None`, the search chooses the number by the size of the batch
    /// ([`in_flight`](SearchOptions::in_flight)). A batch of at least 256 queries for each thread
    /// tries several numbers with its first queries, and continues with the number of highest
    /// throughput. The results of best-first search do not depend on the number of queries in
    /// flight.
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
