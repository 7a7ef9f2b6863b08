//! Search: a query is an `async fn`, and a batch is many of them on a pool of threads.
//!
//! ```text
//!   Index::search ── waits ──┬─ threads ──> executor of a thread ── in_flight ──> task: next query
//!   Index::submit ── handle ─┘                                     table, seeds, strategy, answers
//! ```
//!
//! - [`batch`]: the tasks of a batch. They are the same for `search`, which waits, and for `submit`
//! - [`tuning`]: the number of queries in flight, measured with the first queries of a batch
//! - [`submit`]: a submitted search: its handle, its end
//! - [`stop`]: reasons to end a search early: a deadline, a cancellation
//! - [`source`]: the interface between the common part of searches and the source of candidates
//! - [`walker`]: one query after the other through a graph, for a search or an insert
//! - [`probe`]: the clusters that are nearest to a query, one query after the other
//! - [`traversal`]: scoring, expansion, and ranking on the path, for each page
//! - [`strategy`]: the order in which nodes are read, a file for each strategy
//! - [`reader`]: pages of nodes, in completion order
//! - [`admission`]: the predicate for answers
//! - [`ranking`]: exact distances, and the candidates for which they are worth computing
//! - [`promise`]: the rule that ends a search before its list does
//! - [`leading`]: candidates that are ranked by the leading parts of their vectors, and the
//!   doubtful ones among them
//! - [`rerank`]: vectors apart from the graph, fetched after the path
//! - [`ways`]: the ways to search with a filter, and the choice between them
//! - [`before`]: the nearest of a set of nodes, by their codes and then by the vectors of the best
//! - [`further`](mod@further): a longer list for answers among vectors that codes describe badly
//! - [`range`]: all vectors within a distance, and vectors like one of the index
//! - [`scan`]: every vector, if the list can hold all live vectors, or the graph leads to too few
//! - [`nodes`]: nodes by their numbers, for look-ups by id
//! - [`spare`]: buffers that a walk leaves to the next one on its thread
//! - [`parts`]: the time of each part of a search
//!
//! Dispatch over layout, metric, element type and strategy happens once a query or once a batch,
//! never once a hop.

mod admission;
mod batch;
mod before;
mod further;
mod leading;
mod nodes;
mod parts;
mod probe;
mod promise;
mod range;
mod ranking;
mod reader;
mod rerank;
mod results;
mod scan;
mod source;
mod spare;
mod stop;
mod strategy;
mod submit;
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

pub(crate) use self::admission::{Admission, Matching};
use self::batch::{Answers, Batch, Clock};
pub(crate) use self::further::Uses;
use self::further::further;
pub(crate) use self::leading::{BEYOND, CANDIDATE_BYTES};
pub(crate) use self::nodes::{Exactness, Nodes};
pub use self::parts::Parts;
pub(crate) use self::parts::Timer;
pub(crate) use self::promise::Ends;
pub use self::range::{Range, RangePlace, RangeResults};
pub(crate) use self::ranking::Ranking;
pub(crate) use self::reader::Page;
pub(crate) use self::rerank::Reranker;
pub(crate) use self::source::LeftOut;
pub use self::strategy::Strategy;
pub use self::submit::SubmittedSearch;
pub(crate) use self::submit::{Searched, submitted};
use self::traversal::SCAN_FROM;
pub use self::tuning::Tried;
pub(crate) use self::walker::{Plan, Walker, Within};
pub use self::ways::{ByWay, Estimates, Explained, Way};
use crate::data::VectorSource;
use crate::index::Index;
use crate::measure::Heat;
use crate::progress::{Progress, Silent, Stage};
use crate::stores::VectorsAt;
use crate::stores::composition::CodesAt;
use crate::update::{Overlay, Seen, looks_at};
use crate::{Error, Press, Rerank, bounds};

/// The options of a search. `None` takes the value of the index's preset.
#[derive(Clone, Copy, Debug)]
pub struct SearchOptions {
    /// Answers for each query. If the index has fewer vectors, the other places are padded
    /// ([`SearchResults::ids`]). At most the number of vectors in the index, or
    /// [`MOST_PADDED`](crate::bounds::MOST_PADDED) if that is more.
    pub k: usize,
    /// L, the size of the candidate list, at least `k`. A longer list finds more, and is slower. If
    /// the list can hold all live vectors, answers are exact. They are also exact, whatever the
    /// list, in an index that [outgrew its codes](crate::Due::Grown) and has fewer than 1,000
    /// vectors, or fewer than 10,000 after a build of fewer than 128.
    ///
    /// In an index [that has drifted](crate::Due::Drifted), a query with an answer among the
    /// vectors since the last build or merge searches once more, with a list 8 times as long.
    ///
    /// In a cluster index, it is the list for vectors that wait for a merge, which have a graph of
    /// their own.
    pub list: usize,
    /// The number of clusters that a query probes, in a cluster index. More probes find more, and
    /// are slower. `None` is 32, or `k` if that is more ([`probes_of`](SearchOptions::probes_of)).
    ///
    /// A cluster index refuses the options of a walk: `strategy`, `navigation`, `whole_page`,
    /// `rerank`, `stop_early`, `seeds`.
    pub probes: Option<usize>,
    /// W: reads in flight of a best-first beam, or the largest width of the pipeline.
    pub beam: Option<usize>,
    /// The order in which nodes are read.
    pub strategy: Option<Strategy>,
    /// Whether to start from the navigation graph.
    pub navigation: Option<bool>,
    /// Whether a page serves every candidate in it once it has been read.
    pub whole_page: Option<bool>,
    /// The rule that ends re-ranking, if vectors are apart from lists.
    pub rerank: Option<Rerank>,
    /// The width of [`Strategy::Press`]. Other strategies ignore it.
    pub press: Press,
    /// As [`Press::seeds`], for the other strategies without a navigation graph. This number of
    /// nodes, spread over the collection, are ranked by their codes (the low ones, if there are
    /// two). The search begins near the nearest of them. With 0 it begins at the entry points, as
    /// in the papers.
    pub seeds: usize,
    /// Whether the distances of answers must be exact to the last bit, if nodes are ranked by the
    /// leading parts of their vectors. Then the trailing parts of all answers are read. In other
    /// layouts distances are always exact.
    pub exact: bool,
    /// Whether a search ends before its list does, when no candidate left is expected to be an
    /// answer or to lead to one. The expectation follows the error of codes that the query has
    /// seen. With the same list, such a search reads less and finds a little less.
    pub stop_early: bool,
    /// The target recall: the share of the true `k` nearest to find, above 0 and up to 1. It
    /// replaces `list`, which is ignored. A search considers as many candidates as it took in the
    /// measurements ([`calibrate`](crate::calibrate)) for queries whose answers are as far. A
    /// cluster index probes as many clusters as it took for queries whose nearest head is as far.
    ///
    /// It cannot be combined with `stop_early` or `probes`. The recall was measured with the
    /// preset's strategy. So the strategy must be PRESS if the preset's is, and another one if not.
    pub recall: Option<f64>,
    /// The way of a search with a filter. `None` chooses by the expected cost of each way. Without
    /// a filter, only `None` is taken.
    pub way: Option<Way>,
    /// Whether to measure the time of each part ([`SearchResults::parts`]). The measurement itself
    /// costs time.
    pub parts: bool,
    /// OS threads.
    pub threads: usize,
    /// Queries in flight on each thread: 1 for the least latency, more for throughput. Fewer are in
    /// flight if the memory budget cannot hold so many. `None` chooses by the batch
    /// ([`in_flight`](SearchOptions::in_flight)). A batch of 256 queries and more for each thread
    /// measures with its first queries which number answers most a second. Answers of best-first
    /// search do not depend on it.
    pub in_flight: Option<usize>,
}

/// The most queries in flight on a thread for a batch that is too short to measure
/// (`bench/in-flight.toml` compares them). `CHOSEN_LISTS` is the most that their lists may hold
/// together in any batch, since a query takes memory by its list.
const CHOSEN_IN_FLIGHT: usize = 8;
const CHOSEN_LISTS: usize = 4096;

/// The default number of probes. On photo-sift-100k 31 find .987 of the ten nearest with `spann`
/// and .997 with `tiered-cluster` (`bench/clusters.toml`), about as much as a graph's default list.
/// SPANN probes up to 64 (§4.1).
const PROBES: usize = 32;

impl SearchOptions {
    /// The number of clusters to probe in a cluster index: `probes`, or else 32, or `k` if that is
    /// more. These clusters may have fewer than k vectors, since a vector may be in several. Then
    /// more are probed.
    pub fn probes_of(&self) -> usize {
        self.probes.unwrap_or(PROBES.max(self.k))
    }

    /// The most queries in flight on each thread, for a batch of `rows`, if the memory budget can
    /// hold them. This is the option's number, or else up to eight, as long as each thread has so
    /// many and lists are short. A batch of 256 and more for each thread has up to 64 while it
    /// measures ([`SearchResults::tried`]), and the best number after that
    /// ([`SearchResults::in_flight`]).
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

/// The cost of a batch, summed over its queries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counters {
    /// Nodes whose neighbours were scored, or clusters that were probed.
    pub hops: u64,
    /// Reads of graph pages that reached the tier. In a cluster index, reads of posting lists or
    /// groups.
    pub graph_reads: u64,
    /// Reads of vectors that reached the tier, if vectors are apart from the graph.
    pub vector_reads: u64,
    /// The part of `vector_reads` that began during the traversal.
    pub prefetched: u64,
    /// Candidates that were ranked by their vectors, if vectors are apart from the graph.
    pub reranked: u64,
    /// The part of `graph_reads` for posting lists in a cluster index, with vectors or with numbers
    /// alone.
    pub posting_reads: u64,
    /// The part of `graph_reads` for groups: vectors that are read together with the numbers of
    /// others.
    pub group_reads: u64,
    /// The part of `vector_reads` for members outside the groups that were read, in a cluster
    /// index.
    pub stray_reads: u64,
    /// Bytes of all reads.
    pub bytes_read: u64,
    /// Nodes that came from a cache instead of a read.
    pub cache_hits: u64,
    /// Distances, by code and exact.
    pub distance_computations: u64,
    /// The part of `distance_computations` by codes of low precision, if [PRESS](Strategy::Press)
    /// has two.
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

/// The answers of a batch and their cost.
#[derive(Clone, Debug)]
pub struct SearchResults {
    /// Answers for each query.
    pub k: usize,
    /// External ids, `queries * k`, nearest first. If fewer than `k` vectors are in the index or
    /// match the filter, the other places have `u64::MAX` at infinite distance. No other place has
    /// it.
    pub ids: Vec<u64>,
    /// Exact distances of the answers (see [`Metric`](stratann_vector::Metric) for sign and scale).
    /// In the layered layout, an answer in no doubt has the distance that its leading part
    /// estimates, unless [exact](SearchOptions::exact) distances were asked for.
    pub distances: Vec<f32>,
    /// Whether all distances are exact.
    pub exact: bool,
    /// The error of distances: four standard deviations of the most uncertain distance. 0 if all
    /// are exact, infinite if a leading part gives no bound. A leading part gives the step in which
    /// each element lies, and an element is taken to be equally likely anywhere in the step. If
    /// this holds, three of a thousand distances as uncertain as that one are farther off, and most
    /// are less uncertain.
    pub distance_error: f32,
    /// Wall-clock seconds of the batch, from the time at which it had its memory.
    pub seconds: f64,
    /// CPU seconds of the searching threads, with the kernel's share, and with their work for other
    /// searches meanwhile.
    pub cpu_seconds: f64,
    /// CPU seconds of the whole process meanwhile, user and system. They include threads that read
    /// for others, and all other work of the process.
    pub process_cpu_seconds: f64,
    /// Queries in flight on each thread at the end. Fewer than the option if the memory had no
    /// place for more. Without the option, the number that the batch chose.
    pub in_flight: usize,
    /// The numbers that the batch tried before it chose, in that order. Empty if it tried none.
    pub tried: Vec<Tried>,
    /// Microseconds from a query's start to its answers, in the order of the queries.
    pub latencies_us: Vec<f32>,
    /// The cost of the queries, summed.
    pub counters: Counters,
    /// The chosen way and its estimates, if there was a filter.
    pub explained: Option<Explained>,
    /// The time of each part, if that was asked for.
    pub parts: Option<Parts>,
}

/// Refuses the options of a walk of a graph for a cluster index.
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
    /// Searches a batch of queries.
    ///
    /// # Errors
    /// Wrong arguments ([`Error::is_call_wrong`]): `k` of 0, a list below `k`, a number beyond its
    /// bound ([`bounds`]), queries of another dimension or element type, NaN or infinity, a zero
    /// vector under cosine. Otherwise a read that failed or a damaged page. [`Error::Outdated`] if
    /// another process has inserted so much meanwhile that pages of this handle are gone. No
    /// partial answers are returned.
    pub fn search(
        &self,
        queries: &dyn VectorSource,
        options: &SearchOptions,
    ) -> Result<SearchResults, Error> {
        self.search_observed(queries, options, &Silent)
    }

    /// As [`search`](Index::search). `progress` is called for each finished query, and may
    /// interrupt the batch.
    ///
    /// # Errors
    /// As for [`search`](Index::search), and [`Error::Interrupted`].
    pub fn search_observed(
        &self,
        queries: &dyn VectorSource,
        options: &SearchOptions,
        progress: &dyn Progress,
    ) -> Result<SearchResults, Error> {
        let found = self.search_unwatched(queries, options, progress)?;
        self.has_served(queries, options, None);
        Ok(found)
    }

    /// The same, without a sample for live recall.
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

    /// The error of a search as the caller sees it: [`Error::Outdated`] if another process has
    /// changed the index meanwhile.
    pub(crate) fn outdated(&self, error: Error) -> Error {
        match error {
            // Direct inserts reuse pages that only checkpoints before the last one name. If pages
            // are written in place, they may lead to pages that the checkpoint does not have.
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

    /// As [`search_observed`](Index::search_observed). `heat` counts the reads of pages. `seen` has
    /// the changes since the checkpoint, the same for all queries.
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

    /// As [`search_observed`](Index::search_observed), but only vectors on storage are answers.
    /// Vectors inserted or deleted since the checkpoint are none. `left_out` has a node
    /// for each query, which is no answer of it. [`LeftOut`] says whether the walk traverses it.
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

    /// As [`search_observed`](Index::search_observed), but only vectors that match a filter are
    /// answers.
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

    /// Lets threads answer a batch, and waits for them. Returns the time that it took.
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

    /// Refuses the numbers that [`search`](Index::search) refuses, whatever the queries.
    ///
    /// # Errors
    /// A number beyond its bound ([`bounds`]).
    pub fn check_search(&self, options: &SearchOptions) -> Result<(), Error> {
        self.check_numbers(options, self.overlay()).map(drop)
    }

    /// As [`check_search`](Index::check_search), with the changes since the checkpoint. Returns the
    /// number of vectors that can be found.
    pub(crate) fn check_numbers(
        &self,
        options: &SearchOptions,
        overlay: Option<&Overlay>,
    ) -> Result<usize, Error> {
        let vectors = overlay.map_or(self.len(), |overlay| overlay.live(self.nodes()));
        bounds::recall(options.recall)?;
        let (most, what) = bounds::most_answers(vectors, "the vectors in the index");
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
        if queries.dim() != self.dim() {
            return Err(Error::call(
                format!("dimension of {}", queries.name()),
                queries.dim(),
                format!("the index's is {}", self.dim()),
                "Give queries of this dimension",
            ));
        }
        if queries.element() != self.element() {
            return Err(Error::call(
                format!("element type of {}", queries.name()),
                queries.element(),
                format!("the index's is {}", self.element()),
                "Give queries of this element type",
            ));
        }
        let vectors = self.check_numbers(options, overlay)?;
        // In a cluster index, the places of a list are for clusters to probe.
        let depth = self.depth(options, vectors)?;
        let list = match (options.probes, self.has_clusters()) {
            (None, false) => depth.map_or(options.list, |depth| depth.most().max(options.k)),
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
            // Loaded now, so that no query pays for it, and an error appears here.
            self.navigation()?;
        }
        let strategy = options.strategy.unwrap_or(preset.strategy);
        let two = self
            .codebook()
            .is_some_and(|book| book.low_codes().is_some());
        if strategy == Strategy::Press && !two && !self.has_clusters() {
            let reason = "it needs codes of two precisions, and this index has one";
            let remedy = "Use best-first or pipelined, or build the index with the preset distvs";
            return Err(Error::call("strategy", strategy, reason, remedy));
        }
        if options.seeds > 0 && self.composition().codes != CodesAt::Memory {
            let reason =
                "codes of this index are not in memory, and its search begins at entry points";
            return Err(Error::call(
                "number of seeds",
                options.seeds,
                reason,
                "Pass 0",
            ));
        }
        let mut plan = Plan {
            // There are no more vectors. A delete can cause this at any time, so it is no error.
            k: options.k.min(vectors).max(1),
            list,
            fresh_list: match depth {
                Some(depth) if !self.has_clusters() => depth.most().max(options.k),
                _ => options.list.max(options.k),
            },
            probe_depth: depth.filter(|_| self.has_clusters()),
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
            whole_page: options.whole_page.unwrap_or(preset.whole_page),
            rerank: options.rerank.unwrap_or(preset.rerank),
            // Vectors that wait for a merge change the boundary between answers and others, so an
            // estimate is not enough.
            exact: options.exact || overlay.is_some_and(|overlay| overlay.logged() > 0),
            ends: match depth {
                // If vectors are apart from lists, a walk does not know the distances of its
                // answers in time, and PRESS ranks them last. So the search takes the longest list.
                Some(_) if self.composition().vectors == VectorsAt::Segments => Ends::WithItsList,
                Some(_) if strategy == Strategy::Press => Ends::WithItsList,
                Some(depth) => Ends::AtDepth(depth),
                None if options.stop_early => Ends::WithoutPromise,
                None => Ends::WithItsList,
            },
            looks_at: looks_at(self, vectors as u64),
            drifted_from: self.drifted_from(vectors as u64),
            further: 0,
            further_uses: Uses {
                whole_page: options.whole_page.unwrap_or(true),
                rerank: options.rerank.unwrap_or(Rerank::ALL),
            },
            hold: false,
            parts: options.parts,
            way: Way::Within,
            walked: list,
            longest: usize::MAX,
        };
        plan.further = further(self, &plan);
        let explained = match (matching, options.way) {
            (Some(matching), way) => Some(ways::choose(self, &matching, way, &mut plan)),
            (None, None) => None,
            (None, Some(way)) => {
                let reason = "it applies to a search with a filter, and this search has none";
                let remedy = "Leave it out, or give a filter";
                return Err(Error::call("way", way, reason, remedy));
            }
        };
        Ok((plan, explained))
    }
}
