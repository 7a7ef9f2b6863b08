//! Search: a query is an `async fn`, and a batch runs many queries on a pool of threads.
//!
//! ```text
//!   Index::search ── waits ──┬─ threads ──> executor of a thread ── in_flight ──> task: next query
//!   Index::submit ── handle ─┘                                     table, seeds, strategy, results
//! ```
//!
//! The dispatch by layout, metric, element type and strategy happens once for each query or batch,
//! never for each hop of a walk.

mod batch;
mod before;
pub(crate) mod depth;
mod estimates;
mod further;
mod leading;
pub(crate) mod low_list;
mod matching;
mod nodes;
mod parts;
mod probe;
mod promise;
mod ranking;
mod reader;
mod rerank;
mod results;
mod rounded;
mod scan;
mod served;
mod source;
mod spare;
mod stop;
mod strategy;
mod submit;
pub(crate) mod target;
#[cfg(test)]
mod tests;
mod traversal;
mod tuning;
mod walker;
mod ways;

use std::ops::AddAssign;
use std::time::{Duration, Instant};

use serde::Serialize;
use stratann_tier::{Task, TierError};

use self::batch::{Answers, Batch, Clock};
pub(crate) use self::depth::DepthFrom;
pub(crate) use self::further::Uses;
use self::further::further;
pub(crate) use self::low_list::LowList;
pub use self::low_list::MOST_OF_STEP;
pub(crate) use self::matching::Matches;
pub(crate) use self::nodes::{Exactness, Nodes};
pub use self::parts::Parts;
pub(crate) use self::parts::Timer;
pub(crate) use self::promise::Ends;
pub(crate) use self::ranking::Ranking;
pub(crate) use self::reader::Page;
pub(crate) use self::rerank::Reranker;
pub(crate) use self::rounded::{far, is_rounded, round};
pub(crate) use self::served::serves;
pub(crate) use self::source::LeftOut;
pub(crate) use self::strategy::width_of;
pub use self::submit::SubmittedSearch;
pub(crate) use self::submit::{Searched, submitted};
use self::traversal::SCAN_FROM;
pub use self::tuning::Tried;
pub(crate) use self::walker::{Plan, Walker, Within};
pub(crate) use self::ways::Growth;
pub use self::ways::{ByWay, Estimates, Explained};
use crate::data::VectorSource;
use crate::index::Index;
use crate::overlay::{Admission, Matching};
use crate::progress::{Progress, Stage};
use crate::stores::heat::Heat;

use crate::index::growth::looks_at;
use crate::overlay::{Overlay, Seen};
use crate::stores::composition::CodesAt;
use crate::{Error, Press, Rerank, SearchOptions, Strategy, Way, bounds};

/// The most queries in flight on a thread, for a short batch (`bench/in-flight.toml`). The
/// candidate lists of these queries together have space for at most `CHOSEN_LISTS` candidates.
const CHOSEN_IN_FLIGHT: usize = 8;
const CHOSEN_LISTS: usize = 4096;

/// The factor on the list size in an [unpacked](Index::is_unpacked) graph, whose pages have one
/// node.
const WITHOUT_MATES: f64 = 1.75;

/// The default number of probes. On photo-sift-100k, 31 probes have recall@10 .987 with `spann` and
/// .997 with `tiered-cluster` (`bench/clusters.toml`). SPANN probes up to 64 clusters (§4.1).
const PROBES: usize = 32;

impl SearchOptions {
    /// The number of clusters to probe in a cluster index: the option `probes`, or the larger of 32
    /// and `k`. If these clusters have fewer than `k` different vectors, more clusters are probed.
    pub fn probes_of(&self) -> usize {
        self.probes.unwrap_or(PROBES.max(self.k))
    }

    /// The most queries in flight on each thread for a batch of `rows` queries, if memory suffices:
    /// the option `in_flight`, or at most eight. Without the option, a batch of at least 256
    /// queries for each thread tries numbers up to 64 ([`SearchResults::tried`]).
    pub fn in_flight(&self, rows: usize) -> usize {
        self.in_flight.unwrap_or_else(|| {
            let threads = self.threads.max(1);
            let chosen = match rows / threads >= tuning::FROM {
                true => tuning::MOST,
                false => CHOSEN_IN_FLIGHT,
            };
            let most = (CHOSEN_LISTS / self.list.max(1)).clamp(1, chosen);
            rows.div_ceil(threads).clamp(1, most)
        })
    }
}

/// The cost of a batch, summed over its queries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counters {
    /// Nodes whose neighbours were scored, or clusters that were probed.
    pub hops: u64,
    /// Reads of graph pages, posting lists or groups that reached the tier.
    pub graph_reads: u64,
    /// Reads of vectors that reached the tier, if vectors are apart from the graph.
    pub vector_reads: u64,
    /// The part of `vector_reads` that began during the traversal.
    pub prefetched: u64,
    /// Candidates that were ranked by their vectors, if vectors are apart from the graph.
    pub reranked: u64,
    /// The part of `graph_reads` for posting lists, in a cluster index.
    pub posting_reads: u64,
    /// The part of `graph_reads` for groups, in a cluster index.
    pub group_reads: u64,
    /// The part of `vector_reads` for single members of clusters, whose group the query did not
    /// read.
    pub stray_reads: u64,
    /// Bytes of all reads.
    pub bytes_read: u64,
    /// Nodes that a cache supplied instead of a read.
    pub cache_hits: u64,
    /// Distances that were computed, both by code and exactly.
    pub distance_computations: u64,
    /// The part of `distance_computations` by low codes ([PRESS](Strategy::Press)).
    pub low_computations: u64,
}

impl AddAssign for Counters {
    fn add_assign(&mut self, other: Self) {
        self.hops += other.hops;
        self.graph_reads += other.graph_reads;
        self.vector_reads += other.vector_reads;
        self.prefetched += other.prefetched;
        self.reranked += other.reranked;
        self.posting_reads += other.posting_reads;
        self.group_reads += other.group_reads;
        self.stray_reads += other.stray_reads;
        self.bytes_read += other.bytes_read;
        self.cache_hits += other.cache_hits;
        self.distance_computations += other.distance_computations;
        self.low_computations += other.low_computations;
    }
}

/// The results of a batch and their cost.
#[derive(Clone, Debug)]
pub struct SearchResults {
    /// The number of results for each query.
    pub k: usize,
    /// External ids, `queries * k`, nearest first. If a query has fewer than `k` results, the
    /// remaining ids are `u64::MAX`, which is no vector's id, and their distances are infinite.
    pub ids: Vec<u64>,
    /// Distances of the results (see [`Metric`](stratann_vector::Metric) for sign and scale). In
    /// the layered layout, some are estimates, unless [exact](SearchOptions::exact) distances were
    /// requested.
    pub distances: Vec<f32>,
    /// Whether all distances are exact.
    pub exact: bool,
    /// The error bound of distances: four standard deviations of the most uncertain distance. The
    /// bound assumes that elements are uniform in the intervals of their leading parts. 0 for exact
    /// distances, and infinite if there is no bound.
    pub distance_error: f32,
    /// Wall-clock seconds of the batch, from the reservation of its memory on.
    pub seconds: f64,
    /// CPU seconds of the search threads during the batch, including other searches on these
    /// threads.
    pub cpu_seconds: f64,
    /// CPU seconds of the whole process during the batch, user and system.
    pub process_cpu_seconds: f64,
    /// The number of queries in flight on each thread at the end of the batch.
    pub in_flight: usize,
    /// The numbers of queries in flight that the batch tried, in order. Empty if the batch tried no
    /// numbers.
    pub tried: Vec<Tried>,
    /// Microseconds from a query's start to its results, in the order of the queries.
    pub latencies_us: Vec<f32>,
    /// The cost of the queries, summed.
    pub counters: Counters,
    /// The strategy that was chosen for the filter, and the estimates for the choice.
    pub explained: Option<Explained>,
    /// The time of each part of the search, if [`SearchOptions::parts`] was set.
    pub parts: Option<Parts>,
}

fn refuse_walks(options: &SearchOptions) -> Result<(), Error> {
    for (what, is_given) in [
        ("strategy", options.strategy.is_some()),
        ("navigation", options.navigation.is_some()),
        ("whole page", options.whole_page.is_some()),
        ("rerank", options.rerank.is_some()),
        ("stop early", options.stop_early),
        ("seeds", options.seeds > 0),
    ] {
        if is_given {
            let reason = "a search of clusters does not use it";
            let remedy = "Remove it, or set `probes`";
            return Err(Error::call(what, "given", reason, remedy));
        }
    }
    Ok(())
}

impl Index {
    /// Searches without sampling the queries for live recall.
    pub(crate) fn search_unwatched(
        &self,
        queries: &dyn VectorSource,
        options: &SearchOptions,
        progress: &dyn Progress,
    ) -> Result<SearchResults, Error> {
        let seen = self.overlay().map(|overlay| Seen {
            overlay,
            moment: overlay.now(),
        });
        let found = self.search_with(queries, options, progress, None, seen);
        found.map_err(|error| self.outdated(error))
    }

    /// Returns [`Error::Outdated`] if another process has changed the index.
    pub(crate) fn outdated(&self, error: Error) -> Error {
        match error {
            // Inserts of another process may have reused pages, or linked to nodes that this
            // checkpoint lacks.
            Error::Damaged { .. }
            | Error::Layout(_)
            | Error::Tier(TierError::OutOfRange { .. })
                if matches!(self.is_current(), Ok(false)) =>
            {
                Error::Outdated {
                    path: self.path().to_owned(),
                }
            }
            error => error,
        }
    }

    /// `heat` counts the reads of each page.
    pub(crate) fn search_with(
        &self,
        queries: &dyn VectorSource,
        options: &SearchOptions,
        progress: &dyn Progress,
        heat: Option<&Heat>,
        seen: Option<Seen<'_>>,
    ) -> Result<SearchResults, Error> {
        let answers = Answers::new(self, queries, options, seen.map(|seen| seen.overlay), None)?;
        let batch = Batch::new(self, queries, &answers, progress, heat, seen);
        let took = self.answered(&batch, &answers, options)?;
        answers.into_results(took)
    }

    /// Searches only the checkpoint. `left_out` has the node that is excluded from each query's
    /// results.
    pub(crate) fn search_leaving_out(
        &self,
        queries: &dyn VectorSource,
        options: &SearchOptions,
        left_out: Option<&[LeftOut]>,
        progress: &dyn Progress,
    ) -> Result<SearchResults, Error> {
        let seen = self.overlay().map(|overlay| Seen {
            overlay,
            moment: overlay.now(),
        });
        let answers = Answers::new(self, queries, options, seen.map(|seen| seen.overlay), None)?;
        let batch =
            Batch::new(self, queries, &answers, progress, None, seen).of_stored_alone(left_out);
        let took = self.answered(&batch, &answers, options)?;
        answers.into_results(took)
    }

    pub(crate) fn search_matching(
        &self,
        queries: &dyn VectorSource,
        options: &SearchOptions,
        progress: &dyn Progress,
        seen: Option<Seen<'_>>,
        matching: Matching<'_>,
    ) -> Result<SearchResults, Error> {
        let overlay = seen.map(|seen| seen.overlay);
        let answers = Answers::new(self, queries, options, overlay, Some(matching))?;
        let batch = Batch::new(self, queries, &answers, progress, None, seen).among(matching);
        let took = self.answered(&batch, &answers, options)?;
        answers.into_results(took)
    }

    fn answered(
        &self,
        batch: &Batch<'_>,
        answers: &Answers,
        options: &SearchOptions,
    ) -> Result<Duration, Error> {
        let (queries, progress) = (batch.queries(), batch.progress());
        let room = batch.room(options).wait(progress)?;
        let shares = answers.begin(options, queries.rows(), room);
        let worker_pool = answers.workers(self, options, shares.threads)?;
        let _stage = Stage::begin(progress, "searching", queries.rows() as u64);
        let start = Instant::now();
        worker_pool.run_tasks(shares.threads, &|thread, share| {
            let clock = Clock::new();
            let task = |number| Box::pin(batch.run(thread, number, clock.clone())) as Task<'_>;
            (0..shares.tasks(share)).map(task).collect()
        });
        Ok(start.elapsed())
    }

    /// Checks the numbers among the options as [`search`](Index::search) does, without queries.
    ///
    /// # Errors
    /// A number is beyond its bound ([`bounds`]).
    pub fn check_search(&self, options: &SearchOptions) -> Result<(), Error> {
        self.check_numbers(options, self.overlay()).map(drop)
    }

    /// Checks the options and the shape of the queries. An [outline](crate::Outline), which has a
    /// shape but no rows, suffices as `queries`.
    ///
    /// # Errors
    /// Fails as [`check_search`](Index::check_search) does, and if the dimension or the element
    /// type differs.
    pub fn check_queries(
        &self,
        queries: &dyn VectorSource,
        options: &SearchOptions,
    ) -> Result<(), Error> {
        self.check_shape_of(queries, "queries")?;
        self.check_search(options)
    }

    /// Returns the number of vectors that can be found.
    pub(crate) fn check_numbers(
        &self,
        options: &SearchOptions,
        overlay: Option<&Overlay>,
    ) -> Result<usize, Error> {
        let vectors = overlay.map_or(self.len(), |overlay| overlay.live(self.nodes()));
        bounds::recall(options.recall)?;
        let (most, what) = bounds::most_answers(vectors, "the number of vectors in the index");
        bounds::search(options, most, what)?;
        Ok(vectors)
    }

    fn plan_search(
        &self,
        queries: &dyn VectorSource,
        options: &SearchOptions,
        overlay: Option<&Overlay>,
        matching: Option<Matching<'_>>,
    ) -> Result<(Plan, Option<Explained>), Error> {
        let preset = self.preset();
        self.check_shape_of(queries, "queries")?;
        let vectors = self.check_numbers(options, overlay)?;
        let strategy = options.strategy.unwrap_or(preset.strategy);
        let two = self
            .codebook()
            .is_some_and(|book| book.low_codes().is_some());
        if strategy == Strategy::Press && !two && !self.has_clusters() {
            let reason =
                "it needs codes of two precisions, and this index has codes of one precision";
            let remedy = "Use best-first or pipelined, or build the index with the preset distvs";
            return Err(Error::call("strategy", strategy, reason, remedy));
        }
        // In a cluster index, the candidate list contains the clusters to probe.
        let depth = self.depth(options, vectors)?;
        let whole_page = options.whole_page.unwrap_or(preset.whole_page);
        let (depth, given) = match self.is_unpacked() && whole_page {
            true => {
                let longer = (options.list as f64 * WITHOUT_MATES).ceil() as usize;
                let measured = self.was_measured_unpacked();
                let times = if measured { 1.0 } else { WITHOUT_MATES };
                (depth.map(|depth| depth.times(times)), longer)
            }
            false => (depth, options.list),
        };
        let list = match (options.probes, self.has_clusters()) {
            (None, false) => depth.map_or(given, |depth| depth.most().max(options.k)),
            (_, true) => {
                refuse_walks(options)?;
                depth.map_or_else(|| options.probes_of(), |depth| depth.most())
            }
            (Some(probes), false) => {
                let reason = "it does not apply to a graph index";
                let remedy = "Remove it, or set a list size";
                return Err(Error::call("probes", probes, reason, remedy));
            }
        };
        let navigation = options
            .navigation
            .unwrap_or(preset.navigation && self.has_navigation());
        if navigation {
            // The navigation graph is loaded before the queries start.
            self.navigation()?;
        }
        if options.seeds > 0 && self.composition().codes != CodesAt::Memory {
            let reason =
                "the codes of this index are not in memory, so a search begins at entry points";
            return Err(Error::call(
                "number of seeds",
                options.seeds,
                reason,
                "Pass 0",
            ));
        }
        let mut plan = Plan {
            // Deletes can reduce the number of vectors below `k` at any time, so a larger `k` is no
            // error.
            k: options.k.min(vectors).max(1),
            list,
            fresh_list: match depth {
                Some(depth) if !self.has_clusters() => depth.most().max(options.k),
                _ => options.list.max(options.k),
            },
            probe_depth: depth.filter(|_| self.has_clusters()),
            growth: Growth::NONE,
            widest: list,
            before: f64::INFINITY,
            candidates: self.candidates(list, self.len() / SCAN_FROM),
            beam: options.beam.unwrap_or(preset.beam),
            strategy,
            press: match strategy {
                Strategy::Press => options.press,
                _ => Press {
                    seeds: options.seeds,
                    ..options.press
                },
            },
            navigation,
            whole_page: whole_page && !self.is_unpacked(),
            rerank: options.rerank.unwrap_or(preset.rerank),
            // Vectors that wait for a merge may move the boundary of the results, so exact
            // distances near the old boundary would not suffice.
            exact: options.exact || overlay.is_some_and(|overlay| overlay.logged() > 0),
            ends: match depth {
                Some(depth) => match self.depth_from(strategy) {
                    DepthFrom::Distances => Ends::AtDepth(depth),
                    DepthFrom::Estimates => Ends::AtDepthByCode(depth),
                    // The search uses the longest list that the recall target may need.
                    DepthFrom::Nothing => Ends::WithItsList,
                },
                None if options.stop_early => Ends::WithoutPromise,
                None => Ends::WithItsList,
            },
            looks_at: looks_at(self, vectors as u64),
            drifted_from: self.drifted_from(vectors as u64),
            further: 0,
            further_uses: Uses {
                whole_page: options.whole_page.unwrap_or(true) && !self.is_unpacked(),
                rerank: options.rerank.unwrap_or(Rerank::ALL),
            },
            hold: false,
            parts: options.parts,
            way: Way::Within,
            walked: list,
            through: 1.0,
            longest: usize::MAX,
        };
        plan.further = further(self, &plan);
        let explained = match (matching, options.way) {
            (Some(matching), way) => Some(ways::choose(self, &matching, way, &mut plan)),
            (None, None) => None,
            (None, Some(way)) => {
                let reason = "it applies to a search with a filter, and this search has no filter";
                let remedy = "Leave it out, or give a filter";
                return Err(Error::call("way", way, reason, remedy));
            }
        };
        Ok((plan, explained))
    }
}
