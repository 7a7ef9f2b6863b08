//! The strategies of a filtered search, and the choice between them.
//!
//! | strategy | method | approximate reads |
//! |---|---|---|
//! | *within* | a walk or a probe, also through other nodes | list / selectivity nodes; probes |
//! | *before* | codes of all matches, then vectors of the best | a few times k vectors |
//!
//! The list size of *within* counts matches. If codes are not in memory, *before* reads the vector
//! of each match. The selectivity is exact, because the matching nodes are known before the choice.
//!
//! **The list adapts.** With selectivity s, a list of `list` matches would visit `list / s` nodes.
//! The planner reduces this number to `list` times the power [`GROWTH`] of s. But the list has
//! space for at least [`LEAST`] times k matches, or k plus half of `list - k` if that is less.
//!
//! **Through.** A walk expands each match in its list. It expands other nodes only at the first
//! positions of the list: `list` positions, plus the part [`THROUGH`] of the `list / s - list`
//! nodes that do not match. That suffices, because most matches are neighbours of several nearer
//! nodes.
//!
//! **Recall.** With a recall target, the distance of the k-th nearest vector gives the list size of
//! each query ([`promise`](super::promise)). This list size is then adapted to the filter.
//!
//! **Clusters.** A query with a filter probes more clusters than without ([`Growth`]). If matches
//! are spread unevenly, the query probes still more clusters, or uses *before*
//! ([`probe`](super::probe)).
//!
//! **Dry.** If a walk finds too few matches, the query continues with *before*. The list of the
//! walk has at most as many candidates as *before* needs reads, or twice the expected number of
//! candidates if that is more. So a search costs at most about twice as much as with the cheaper
//! strategy.
//!
//! **After.** No strategy filters the results of a finished search. Such a strategy would visit the
//! same nodes as *within*, and would also compare attributes (`docs/measured.md`).

use std::ops::AddAssign;

use serde::{Deserialize, Serialize};

use super::Matching;
use super::before::HEAD;
use super::further::{further, walked_further};
use super::promise::Ends;
use super::walker::Plan;
use crate::index::growth::LooksAt;
use crate::index::{GraphIndex, Index, Kind};
use crate::spec::Way;
use crate::stores::VectorsAt;
use crate::stores::clusters::{ClusterStores, Vectors};

/// The choices of a search with a filter, and the estimates behind them. If several indexes were
/// [searched as one](crate::Catalog::search_filtered), the numbers are sums over these indexes.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Explained {
    /// The number of matching vectors, including vectors deleted since the last checkpoint.
    pub matching: u64,
    /// The strategy that was chosen or requested. For several indexes, the strategy of most of
    /// them. An index of few vectors with [outgrown codes](crate::Due::Grown) always uses
    /// [`Way::Before`].
    pub way: Way,
    /// The largest adapted list size, or number of clusters to probe. It has no meaning with
    /// [`Way::Before`].
    pub list: usize,
    /// The number of indexes searched by each strategy.
    #[serde(default)]
    pub indexes: ByWay,
    /// About how many reads a query takes with each strategy, if matches are spread evenly.
    pub estimates: Estimates,
    /// Reads of columns to find the matches, once for a batch. [`Counters`](super::Counters) does
    /// not include them.
    pub column_reads: u64,
    /// Bytes of the column reads.
    pub column_bytes: u64,
    /// Queries that continued with [`Way::Before`], after too few matches or too many probes.
    pub dry: u64,
    /// Queries of a cluster index that probed more clusters than `list`.
    #[serde(default)]
    pub wider: u64,
}

/// The number of indexes searched by each strategy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ByWay {
    /// The indexes searched by [`Way::Within`].
    pub within: u32,
    /// The indexes searched by [`Way::Before`].
    pub before: u32,
}

impl ByWay {
    fn of(way: Way) -> Self {
        Self {
            within: u32::from(way == Way::Within),
            before: u32::from(way == Way::Before),
        }
    }
}

impl AddAssign for Explained {
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
        self.wider += other.wider;
    }
}

/// The exponent of the selectivity in the growth of a walk.
const GROWTH: f64 = -0.45;

/// The least number of matches in the list for each result. In tests with one match in place of
/// two, a walk finds 94 % of the nearest matches.
const LEAST: f64 = 2.0;

/// The part of the `list / s - list` positions after the first `list` at which a walk expands nodes
/// that do not match. With 1 in place of .5, walks of photo-sift-1m with selectivity .1 took 55
/// reads in place of 37, with the same recall (.993, measured by hand).
const THROUGH: f64 = 0.5;

/// The list size with which builds measure reads.
const MEASURED: f64 = crate::stores::heat::LIST as f64;

/// The reads of a walk grow with this power of the number of visited nodes, if the walk uses all
/// nodes of a page that it reads. In `bench/filters.py`, walks of 26 to 1,300 nodes on
/// photo-sift-100k grow with the power .72.
const SHARED: f64 = 0.75;

/// The cost of a visit to a node in memory, in reads.
const HOP: f64 = 0.02;

/// About how many codes are compared in the time of a read. A comparison with a code of 32 bytes
/// takes 24 ns of CPU time, and a read on photo-sift-100k 22 us (`bench/filters.py`).
const CODES_A_READ: f64 = 1000.0;

/// The share of strays that a query reads singly. In `bench/filters.py`, queries that probe 7 to 90
/// clusters read .31 to .52 of the strays.
const APART: f64 = 0.5;

/// The growth of the number of probes with a filter.
///
/// Without a filter, a query finds its k nearest vectors in `p` clusters. With selectivity s, it
/// must find the k / s nearest vectors. Let `R` clusters together have k / s vectors, and `r`
/// clusters k vectors. The number of heads within a squared distance x grows about as x^2 on
/// photo-sift-100k. So the square root of the number of probes grows by sqrt(R) - sqrt(r). In a
/// simulation on this collection, recall was .918 without a filter, and .918 to .956 with s from
/// 1/2 to 1/1000. With x^1.5 in place of x^2, recall was .896 to .943, and with x^3, .933 to .976.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Growth {
    pub(super) list: usize,
    /// sqrt(r).
    near: f64,
    /// sqrt(1 / s) - 1, which is 0 without a filter.
    by: f64,
}

impl Growth {
    pub(crate) const NONE: Self = Self {
        list: 0,
        near: 0.0,
        by: 0.0,
    };

    /// `near` is the number of clusters that together have as many vectors as there are results.
    fn new(list: usize, near: f64, share: f64) -> Self {
        Self {
            list,
            near: near.sqrt(),
            by: share.powf(-0.5) - 1.0,
        }
    }

    /// The number of probes of a query that would take `probes` without the filter. If a cluster
    /// has more vectors than there are results, this number is at most `probes` / s.
    pub(super) fn of(&self, probes: f64) -> f64 {
        let root = probes.sqrt();
        let step = self.near.min(root) * self.by;
        probes + step * (2.0 * root + step)
    }
}

/// The approximate reads of a probe of one cluster whose members match with probability `share`.
pub(super) fn reads_of_probe(clusters: &ClusterStores, share: f64) -> f64 {
    1.0 + APART * share * clusters.others
}

/// About how many reads a query takes with each strategy, if matches are spread evenly. Comparisons
/// of codes count as the number of reads that take the same time.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Estimates {
    /// The reads of a query by [`Way::Within`].
    pub within: f64,
    /// The reads of a query by [`Way::Before`].
    pub before: f64,
}

/// The approximate number of pages of `all` nodes, if the build put `built` nodes on `pages` pages.
fn pages_now(built: f64, pages: u64, all: f64) -> f64 {
    (all / (built / pages.max(1) as f64).max(1.0)).max(1.0)
}

/// The expected number of pages that hold at least one of `some` nodes, spread at random.
fn touched(some: f64, all: f64, pages: f64) -> f64 {
    pages * (1.0 - (1.0 - (some / all).clamp(0.0, 1.0)).powf((all / pages).max(1.0)))
}

/// Adapts a plan to the matches of a filter, and chooses the strategy unless `way` names one.
pub(super) fn choose(
    index: &Index,
    matching: &Matching<'_>,
    way: Option<Way>,
    plan: &mut Plan,
) -> Explained {
    let all = index.nodes().max(1) as f64;
    let share = (matching.nodes.len() as f64 / all).clamp(1.0 / all, 1.0);
    let estimates = match index.kind() {
        Kind::Graph(graph) => {
            let list = adapt_walk(index, share, plan);
            let pages = Pages::of(index, graph, matching, plan);
            Estimates {
                within: pages.within(list, share, plan),
                before: pages.before(plan.k),
            }
        }
        Kind::Clusters(clusters) => {
            let most = f64::from(clusters.clusters());
            let typical = plan
                .probe_depth
                .map_or(plan.list as f64, |depth| depth.typical());
            let wanted = (plan.k as u64).min(matching.nodes.len()) as f64;
            plan.growth = Growth::new(plan.list, wanted * most / all, share);
            plan.list = plan.growth.of(plan.list as f64).ceil().min(most) as usize;
            plan.walked = plan.list;
            Estimates {
                within: plan.growth.of(typical).min(most) * reads_of_probe(clusters, share),
                before: match clusters.vectors {
                    Vectors::Replicated => most,
                    Vectors::Addressed | Vectors::Grouped(_) => clusters.reads_of(matching.nodes),
                },
            }
        }
    };
    let fits = index.most_at_once(plan.walked, 1) > 0;
    let cheaper = match estimates.before <= estimates.within || !fits {
        true => Way::Before,
        false => Way::Within,
    };
    plan.way = match plan.looks_at {
        // A requested strategy is overridden, because a walk would miss some vectors.
        LooksAt::All => Way::Before,
        LooksAt::Chosen | LooksAt::WholePages => way.unwrap_or(cheaper),
    };
    if way.is_none() {
        plan.before = estimates.before;
    }
    if plan.way == Way::Before {
        (plan.walked, plan.further) = (plan.list, 0);
    }
    let most = (estimates.before as usize).max(2 * plan.walked);
    plan.candidates = index.candidates(plan.walked, most);
    plan.longest = match index.kind() {
        Kind::Graph(_) => estimates.before as usize,
        // A query of a cluster index probes further clusters instead of beginning again.
        Kind::Clusters(clusters) => {
            let widest = plan.list.saturating_add(plan.candidates);
            plan.widest = widest.min(clusters.clusters() as usize);
            plan.list
        }
    };
    tracing::debug!(
        index = %index.path().display(),
        matching = matching.nodes.len(),
        way = ?plan.way,
        within = estimates.within,
        before = estimates.before,
        "chose the strategy of a search with a filter"
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
        wider: 0,
    }
}

/// Adapts the list of a walk to a filter of selectivity `share`. Returns the longest list that a
/// query may use. Queries unlike the vectors of the index need nearly this length.
fn adapt_walk(index: &Index, share: f64, plan: &mut Plan) -> f64 {
    let k = plan.k as f64;
    let adapted = |list: f64, least: f64| {
        let grown = list * share.powf(GROWTH);
        (grown * share).clamp(least.clamp(1.0, LEAST * k).min(list), list)
    };
    let list = plan.list as f64;
    let list = match &mut plan.ends {
        Ends::AtDepth(depth) | Ends::AtDepthByCode(depth) => {
            *depth = depth.map(|list| adapted(list, list));
            depth.most() as f64
        }
        Ends::WithItsList | Ends::WithoutPromise => adapted(list, k + (list - k) / 2.0).ceil(),
    };
    if plan.ends != Ends::WithoutPromise {
        plan.through = THROUGH;
    }
    plan.list = list as usize;
    plan.walked = (list / share).min(index.nodes().max(1) as f64) as usize;
    plan.further = further(index, plan);
    list
}

struct Pages<'a> {
    index: &'a Index,
    all: f64,
    matches: f64,
    /// The number of matches that codes hardly distinguish.
    blind: f64,
    lists: f64,
    /// The number of pages with vectors, and the share of these pages in memory. `None` if codes
    /// are in the records.
    vectors: Option<(f64, f64)>,
}

impl<'a> Pages<'a> {
    fn of(index: &'a Index, graph: &GraphIndex, matching: &Matching<'_>, plan: &Plan) -> Self {
        let (all, matches) = (index.nodes().max(1) as f64, matching.nodes.len() as f64);
        let blind = match (plan.looks_at, plan.drifted_from) {
            (LooksAt::All | LooksAt::WholePages, _) => matches,
            (LooksAt::Chosen, Some(first)) => matching.nodes.len_from(first) as f64,
            (LooksAt::Chosen, None) => 0.0,
        };
        let (lists, vectors) = graph.stores.files();
        let built = index.manifest().vectors.max(1) as f64;
        let lists = match graph.stores.placement.get().filter(|_| blind > 0.0) {
            None => lists.pages.max(1) as f64,
            Some(placement) => {
                pages_now(built, lists.pages, all).min(placement.pages().max(1).into())
            }
        };
        let memory = index.memory();
        let composition = graph.stores.composition;
        let vectors = match composition.vectors {
            _ if composition.has_codes_in_records() => None,
            VectorsAt::Segments => {
                Some((pages_now(built, vectors.pages, all), memory.vector_share))
            }
            VectorsAt::Records | VectorsAt::Parts => Some((lists, memory.graph_share)),
        };
        Self {
            index,
            all,
            matches,
            blind,
            lists,
            vectors,
        }
    }

    fn before(&self, k: usize) -> f64 {
        let Some((pages, in_memory)) = self.vectors else {
            return self.matches.min(self.lists);
        };
        // If codes do not distinguish some matches, a query reads the pages of all these matches.
        let told = (self.matches - self.blind).min((k + HEAD) as f64);
        let vectors = told + touched(self.blind, self.all, pages);
        self.matches / CODES_A_READ + vectors * (1.0 - in_memory).max(0.0)
    }

    fn within(&self, list: f64, share: f64, plan: &Plan) -> f64 {
        // The further walk grows with the number of matches that codes hardly distinguish.
        let further = match walked_further(plan, plan.further) as f64 {
            walked if walked > 0.0 && plan.further_uses.whole_page => {
                touched(walked, self.all, self.lists) + HOP * walked
            }
            _ => self.walk(plan.further as f64, share, plan),
        };
        self.walk(list, share, plan) + self.blind / self.matches.max(1.0) * further
    }

    fn walk(&self, list: f64, share: f64, plan: &Plan) -> f64 {
        let nearer = list / share;
        let places = list + plan.through * (nearer - list);
        let walked = (places + share * (nearer - places)).min(self.all);
        let reads = match self.index.memory().predicted_reads {
            // The build measured the reads before the other vectors were inserted.
            _ if plan.looks_at != LooksAt::Chosen => walked.min(self.lists),
            // If vectors are apart from lists, only the vectors of matches are read.
            Some([lists, vectors]) => {
                let shared = plan.whole_page && self.all >= 2.0 * self.lists;
                let power = if shared { SHARED } else { 1.0 };
                lists * (walked / MEASURED).powf(power) + vectors * list / MEASURED
            }
            None => walked,
        };
        reads + HOP * walked
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probes_grow_by_the_square_of_the_distance() {
        // The numbers of photo-sift-100k with the presets spann and tiered-cluster.
        for (probes, near) in [(12.1, 1.08), (7.1, 0.38)] {
            let times = |share| Growth::new(33, near, share).of(probes) / probes;
            assert_eq!(times(1.0), 1.0);
            assert!(times(0.5) <= 1.4 && times(0.1) <= 3.0, "{probes}");
            // With very few matches, a query probes hardly more clusters than have the k / s
            // nearest vectors.
            let share: f64 = 1e-6;
            let needed = near / share / probes;
            assert!((1.0..1.01).contains(&(times(share) / needed)), "{probes}");
        }
        let few = Growth::new(2, 50.0, 0.1).of(2.0);
        assert!((few - 20.0).abs() < 1e-9, "{few}");
        for probes in 1..1_000 {
            assert_eq!(Growth::NONE.of(f64::from(probes)), f64::from(probes));
        }
    }
}
