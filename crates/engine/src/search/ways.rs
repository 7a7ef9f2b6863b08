//! How a search finds what matches a filter: the one place that chooses.
//!
//! | way | how | what it reads, about |
//! |---|---|---|
//! | *within* | a walk, or a probe, goes through what does not match; its list counts what does | list / selectivity nodes; probes |
//! | *before* | codes of all that match, then the vectors of the best ([`before`](super::before)); without codes in memory the vectors of all | some times k vectors; or as many as match |
//!
//! **The list adapts.** Of the answers' neighbourhood a search without a filter looks at `list` nodes for k answers. With one, the k-th answer is
//! as near as the k / s-th vector is, s being the selectivity: a list of `list` matches would look at `list / s` nodes, a list of k at `k / s`. In
//! between there are [`GROWTH`] `s`: 1.4 times as many nodes at s = 1/2, 2.8 times at 1/10, as long as that leaves [`LEAST`] k, or of a list that is
//! not so long half of what is beyond k.
//!
//! **Dry.** Where what matches is elsewhere, a walk meets too little of it. It ends when it has come to as many nodes as *before* costs reads (at
//! least twice what it was expected to), and *before* follows: whatever the filter, a search costs no more than twice the cheaper way, about.
//!
//! **After.** There is no third way, to search as if there were no filter and then to check the answers. *Within* comes to the same nodes, on the same pages, reads
//! the vectors of what matches alone, and knows what matches without a look at a row; what it takes is in memory by then. *After* would save the look into the columns,
//! which is once for all queries, and would read a row, which is two blocks, for each candidate. `docs/measured.md` has what both take.
//!
//! **All.** Where a search looks at every vector anyway ([`looks_at`](crate::update::looks_at)), *before* reads the vectors of all that match, and no code is compared.
//!
//! Selectivity is exact: it is of the nodes, which are known by then. What was expected and chosen is told ([`Explained`]).

use std::ops::AddAssign;

use serde::{Deserialize, Serialize};

use super::Matching;
use super::before::HEAD;
use super::further::{further, walked_further};
use super::promise::Ends;
use super::walker::Plan;
use crate::index::{Index, Kind};
use crate::preset::named;
use crate::stores::VectorsAt;
use crate::stores::clusters::Vectors;
use crate::update::LooksAt;

named! {
    /// How a search finds what matches a filter.
    pub enum Way, "way" {
        /// The walk or the probes, which go through what does not match.
        Within = "within", "Goes through the graph or the clusters, also through what does not match",
        /// What matches, one after the other.
        Before = "before", "Compares the codes of all that match, and reads the vectors of the best",
    }
}

/// What a search with a filter chose, and by which estimates; what it cost are its [counters](crate::SearchResults::counters). Of several indexes that
/// were [searched as one](crate::Catalog::search_filtered) numbers are sums over these.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Explained {
    /// Vectors that match, those of them included that were deleted since the last checkpoint.
    pub matching: u64,
    /// The way that was chosen, or asked for. It is [`Way::Before`] in an index that [outgrew its codes](crate::Due::Grown) and has so few vectors that searches look at all. Of several indexes the one that more of them chose.
    pub way: Way,
    /// The list size, or the number of clusters that are probed, that the search came to for what matches; without a meaning in [`Way::Before`]. Of several
    /// indexes the largest.
    pub list: usize,
    /// How many indexes were searched in each way.
    #[serde(default)]
    pub indexes: ByWay,
    /// What each way would read for a query, about.
    pub estimates: Estimates,
    /// Reads of columns that it took to find out what matches, once for all queries of a batch; not among the counters.
    pub column_reads: u64,
    /// Their bytes.
    pub column_bytes: u64,
    /// Queries that went on by [`Way::Before`], since [`Way::Within`] met too little of what matches.
    pub dry: u64,
}

/// How many indexes were searched in each way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ByWay {
    /// [`Way::Within`].
    pub within: u32,
    /// [`Way::Before`].
    pub before: u32,
}

impl ByWay {
    /// One index.
    fn of(way: Way) -> Self {
        Self {
            within: u32::from(way == Way::Within),
            before: u32::from(way == Way::Before),
        }
    }
}

impl AddAssign for Explained {
    /// Adds what was chosen for another index.
    fn add_assign(&mut self, other: Self) {
        self.matching += other.matching;
        self.list = self.list.max(other.list);
        self.indexes.within += other.indexes.within;
        self.indexes.before += other.indexes.before;
        self.way = match self.indexes.within >= self.indexes.before {
            true => Way::Within,
            false => Way::Before,
        };
        self.estimates.within += other.estimates.within;
        self.estimates.before += other.estimates.before;
        self.column_reads += other.column_reads;
        self.column_bytes += other.column_bytes;
        self.dry += other.dry;
    }
}

/// The power of the selectivity by which a walk grows.
const GROWTH: f64 = -0.45;

/// Matches in the list for each answer, at least, where the list of a search without a filter has so many: with one alone a walk finds 94 % of the
/// nearest in tests. Where that list is hardly longer than k, half of what it is longer by is enough.
const LEAST: usize = 2;

/// The list size with which builds measure reads.
const MEASURED: f64 = crate::measure::LIST as f64;

/// The power of the nodes that it goes through by which the reads of a walk grow where a page that was read serves all its nodes
/// (`bench/filters.py`: from 26 to 1,300 nodes a walk on photo-sift-100k grows by .72); without that each node is a read.
const SHARED: f64 = 0.75;

/// What it costs to go through a node that is in memory, as a part of a read.
const HOP: f64 = 0.02;

/// Codes that are compared in the time of a read, about. By CPU: 24 ns each, of 32 bytes, beside 22 us for a read and the six nodes that come of it on photo-sift-100k
/// (`bench/filters.py`).
const CODES_A_READ: f64 = 1000.0;

/// What each way would read for a query, about; codes that are compared count as the reads that take as long.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Estimates {
    /// [`Way::Within`].
    pub within: f64,
    /// [`Way::Before`].
    pub before: f64,
}

/// Pages that nodes are on, about, of which there are `built` on as many pages in the build, and `all` now.
fn pages_now(built: f64, pages: u64, all: f64) -> f64 {
    (all / (built / pages.max(1) as f64).max(1.0)).max(1.0)
}

/// Pages that some of `all` nodes are on, if these are anywhere on so many `pages`.
fn touched(some: f64, all: f64, pages: f64) -> f64 {
    pages * (1.0 - (1.0 - (some / all).clamp(0.0, 1.0)).powf((all / pages).max(1.0)))
}

/// Adapts a plan to a filter that these nodes match, and chooses the way, unless one is given.
pub(super) fn choose(
    index: &Index,
    matching: &Matching<'_>,
    way: Option<Way>,
    plan: &mut Plan,
) -> Explained {
    if let Ends::AtDepth(_) = plan.ends {
        // It was measured among all vectors; the longest list that it may take finds as much among some.
        plan.ends = Ends::WithItsList;
    }
    // The distance of the nearest head says nothing of how far what matches is.
    plan.probe_depth = None;
    let (all, nodes) = (index.nodes().max(1) as f64, matching.nodes.len() as f64);
    let share = (nodes / all).clamp(1.0 / all, 1.0);
    let list = plan.list as f64;
    let grown = list * share.powf(GROWTH);
    let estimates = match index.kind() {
        Kind::Graph(graph) => {
            let k = plan.k as f64;
            let least = (k + (list - k) / 2.0).clamp(1.0, LEAST as f64 * k);
            let list = (grown * share).clamp(least.min(list), list).ceil();
            let walked = (list / share).min(all);
            plan.list = list as usize;
            plan.walked = walked as usize;
            plan.further = further(index, plan);
            // Of so many of these codes say little or nothing.
            let blind = match (plan.looks_at, plan.drifted_from) {
                (LooksAt::All | LooksAt::WholePages, _) => nodes,
                (LooksAt::Chosen, Some(first)) => matching.nodes.len_from(first) as f64,
                (LooksAt::Chosen, None) => 0.0,
            };
            let (lists, vectors) = graph.stores.files();
            let built = index.manifest().vectors.max(1) as f64;
            let pages = match graph.stores.placement.get().filter(|_| blind > 0.0) {
                None => lists.pages.max(1) as f64,
                Some(placement) => {
                    pages_now(built, lists.pages, all).min(placement.pages().max(1).into())
                }
            };
            let before = match graph.stores.composition.has_codes_in_records() {
                true => nodes.min(pages),
                false => {
                    let memory = index.memory();
                    let (here, pages) = match graph.stores.composition.vectors {
                        VectorsAt::Segments => {
                            (memory.vector_share, pages_now(built, vectors.pages, all))
                        }
                        VectorsAt::Records | VectorsAt::Parts => (memory.graph_share, pages),
                    };
                    // Of those behind the first few are near enough by code, and some vectors share a page. Where codes say nothing, the pages of all are read.
                    let told = (nodes - blind).min((plan.k + HEAD) as f64);
                    let vectors = told + touched(blind, all, pages);
                    nodes / CODES_A_READ + vectors * (1.0 - here).max(0.0)
                }
            };
            let shared = plan.whole_page && all >= 2.0 * pages;
            let costs = |list: f64| {
                let walked = (list / share).min(all);
                let reads = match index.memory().predicted_reads {
                    // What a build has measured of a few vectors says nothing of the many that came.
                    _ if plan.looks_at != LooksAt::Chosen => walked.min(pages),
                    // Vectors that are apart are read of what matches alone.
                    Some([lists, vectors]) => {
                        let power = if shared { SHARED } else { 1.0 };
                        lists * (walked / MEASURED).powf(power) + vectors * list / MEASURED
                    }
                    None => walked,
                };
                reads + HOP * walked
            };
            // As many queries look further as the answers are of those of which codes say little.
            let further = match walked_further(plan, plan.further) as f64 {
                walked if walked > 0.0 && plan.further_uses.whole_page => {
                    touched(walked, all, pages) + HOP * walked
                }
                _ => costs(plan.further as f64),
            };
            let further = blind / nodes.max(1.0) * further;
            Estimates {
                within: costs(list) + further,
                before,
            }
        }
        Kind::Clusters(clusters) => {
            let most = f64::from(clusters.clusters());
            let probes = grown.ceil().min(most);
            plan.list = probes as usize;
            plan.walked = plan.list;
            let before = match clusters.vectors {
                // A vector is read with its cluster.
                Vectors::Replicated => most,
                Vectors::Addressed | Vectors::Grouped(_) => nodes,
            };
            Estimates {
                within: probes,
                before,
            }
        }
    };
    let fits = index.most_at_once(plan.walked, 1) > 0;
    let cheaper = match estimates.before <= estimates.within || !fits {
        true => Way::Before,
        false => Way::Within,
    };
    plan.way = match plan.looks_at {
        // Whatever was asked for: a walk would miss some.
        LooksAt::All => Way::Before,
        LooksAt::Chosen | LooksAt::WholePages => way.unwrap_or(cheaper),
    };
    if plan.way == Way::Before {
        // Nobody walks.
        (plan.walked, plan.further) = (plan.list, 0);
    }
    let most = (estimates.before as usize).max(2 * plan.walked);
    plan.candidates = index.candidates(plan.walked, most);
    plan.longest = estimates.before as usize;
    tracing::debug!(
        index = %index.path().display(),
        matching = matching.nodes.len(),
        way = ?plan.way,
        within = estimates.within,
        before = estimates.before,
        "chose how to find what matches a filter"
    );
    Explained {
        matching: matching.len() as u64,
        way: plan.way,
        list: plan.list,
        indexes: ByWay::of(plan.way),
        estimates,
        column_reads: matching.looked.reads,
        column_bytes: matching.looked.bytes,
        dry: 0,
    }
}
