//! Search: one query is one `async fn`, a batch is many of them on a pool of threads.
//!
//! ```text
//!   Index::search ── waits ──┬─ threads ──> executor of a thread ── in_flight ──> task: the next query of the batch
//!   Index::submit ── handle ─┘                                                      table, seeds, strategy, answers
//! ```
//!
//! - [`batch`]: the tasks of a batch, the same whether the caller waits for them or has submitted them
//! - [`tuning`]: how many queries are in flight, found out with the first ones of a batch
//! - [`submit`]: a search that is submitted: its handle, its end
//! - [`stop`]: what ends one before it is done: a deadline, a cancellation
//! - [`source`]: the seam between what is the same for every search and how candidates are found
//! - [`walker`]: one query after the other through a graph, as a search or an insert asks for it
//! - [`probe`]: the clusters that are nearest to a query, one query after the other
//! - [`traversal`]: what a page means: scoring, expansion, ranking on the path
//! - [`strategy`]: in which order nodes are read, a file for each strategy
//! - [`reader`]: pages of nodes, in completion order
//! - [`admission`]: what may be an answer at all
//! - [`ranking`]: exact distances, and which are worth computing
//! - [`promise`]: when a search ends before its list does
//! - [`leading`]: candidates that are ranked by the leading parts of their vectors, and which are in doubt then
//! - [`rerank`]: vectors that are apart from the graph, fetched after the path
//! - [`ways`]: how what matches a filter is found, and which way is chosen
//! - [`before`]: the nearest of a set of nodes, by their codes and then by the vectors of the best
//! - [`further`](mod@further): a longer list where answers are among vectors of which codes say little
//! - [`range`]: all within a distance, and what is like a vector of the index
//! - [`scan`]: every vector, where the list has room for all that deletions left, or the graph leads to too few
//! - [`nodes`]: nodes that are asked for by number, as a look-up by id does
//! - [`spare`]: the buffers that a walk leaves to the next one on its thread
//! - [`parts`]: where the time goes
//!
//! Dispatch over layout, metric, element type and strategy happens once a query or once a batch, never per hop.

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

/// How to search. What is `None` is taken from the index's preset.
#[derive(Clone, Copy, Debug)]
pub struct SearchOptions {
    /// How many answers a query gets: fewer where the index has fewer vectors, and the places behind them say so ([`SearchResults::ids`]). Up to the
    /// vectors in the index, or [`MOST_PADDED`](crate::bounds::MOST_PADDED) if that is more.
    pub k: usize,
    /// L, the size of the candidate list: the knob between recall and speed. At least `k`. With room for all vectors that are left,
    /// answers are exact. So they are with any list in an index that [outgrew its codes](crate::Due::Grown) and has fewer than 1,000 vectors, or than 10,000 after a build of fewer than 128.
    ///
    /// In an index [that has drifted](crate::Due::Drifted), a query with an answer that came since the last build or merge searches once more, with a list 8 times as long.
    ///
    /// Of a cluster index: the same for vectors that wait for a merge, which are in a graph of their own.
    pub list: usize,
    /// How many clusters are probed, of a cluster index: the knob between recall and speed there. `None` is 32, or `k` if that is more
    /// ([`probes_of`](SearchOptions::probes_of)).
    ///
    /// What only the walk of a graph has is refused there: `strategy`, `navigation`, `whole_page`, `rerank`, `stop_early`.
    pub probes: Option<usize>,
    /// W: reads in flight of a best-first beam, or the largest width of the pipeline.
    pub beam: Option<usize>,
    /// In which order nodes are read.
    pub strategy: Option<Strategy>,
    /// Whether to start from the navigation graph.
    pub navigation: Option<bool>,
    /// Whether a page that was read serves every candidate in it.
    pub whole_page: Option<bool>,
    /// When re-ranking ends, where vectors are apart from lists.
    pub rerank: Option<Rerank>,
    /// How wide [`Strategy::Press`] searches; no other strategy looks at it.
    pub press: Press,
    /// Where the strategy is another one than PRESS, and there is no navigation graph: nodes, spread over the collection, that are looked at by their codes (the low ones, where there
    /// are two), near the nearest of which the search begins, as [`Press::seeds`]. 0: it begins at the entry points, as the systems do that it comes from.
    pub seeds: usize,
    /// Whether the answers' distances are wanted to the last bit where nodes are ranked by the leading parts of their vectors: then the
    /// trailing parts of all answers are read. Everywhere else they are anyway.
    pub exact: bool,
    /// Whether a search ends when no candidate that is left can be expected to be an answer or to lead to one, as far as the codes' error
    /// that the query has met tells, though its list has some left. It reads less, and finds a little less, with the same list.
    pub stop_early: bool,
    /// The share of the true `k` nearest that is to be found, above 0 and up to 1, in place of a `list`, which is not looked at: as many
    /// candidates are looked at as took that, as far as the answers of the query are ([`calibrate`](crate::calibrate)); of clusters as many are
    /// probed, as far as their nearest head is. Not together with `stop_early` or `probes`, nor with PRESS where the preset has another strategy,
    /// or the other way round.
    pub recall: Option<f64>,
    /// How what matches a filter is found; `None` chooses by what each way is expected to cost. Without a filter nothing else is taken.
    pub way: Option<Way>,
    /// Whether to measure where the time goes ([`SearchResults::parts`]); that itself costs time.
    pub parts: bool,
    /// OS threads.
    pub threads: usize,
    /// Queries in flight on each thread: 1 for the least latency, more for throughput. Fewer are in flight if the memory
    /// budget has no room for so many. `None` chooses by the batch ([`in_flight`](SearchOptions::in_flight)): one of 256 queries and more
    /// for each thread finds out with the first ones how many answer most a second. Answers of best-first search do not depend on it.
    pub in_flight: Option<usize>,
}

/// The most queries in flight on a thread that are chosen for a batch that is too short to measure (`bench/in-flight.toml` compares them),
/// and how long their lists may be together in any batch: a query takes memory by its list.
const CHOSEN_IN_FLIGHT: usize = 8;
const CHOSEN_LISTS: usize = 4096;

/// Clusters that are probed where nobody says how many. On photo-sift-100k 31 find .987 of the ten nearest with `spann` and .997 with
/// `tiered-cluster` (`bench/clusters.toml`), where a graph's default list finds about as much; SPANN probes up to 64 (§4.1).
const PROBES: usize = 32;

impl SearchOptions {
    /// How many clusters of a cluster index are probed: as said, or else 32, or as many as there are to be answers. With these fewer than k
    /// vectors may stand there, since one stands in several: then more are probed.
    pub fn probes_of(&self) -> usize {
        self.probes.unwrap_or(PROBES.max(self.k))
    }

    /// How many queries of a batch of `rows` are in flight on each thread at most, if the memory budget has room: as said, or else up to
    /// eight, as long as each thread has so many and lists are not long. A query that comes alone is alone. A batch of 256 and more for each
    /// thread has up to 64 for as long as it tries what is best ([`SearchResults::tried`]), and then what is ([`SearchResults::in_flight`]).
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

/// What a batch of queries cost, summed over its queries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counters {
    /// Nodes whose neighbours were scored; clusters that were probed.
    pub hops: u64,
    /// Reads of graph pages that reached the tier; of postings or groups in a cluster index.
    pub graph_reads: u64,
    /// Reads of vectors that reached the tier, where vectors are apart from the graph.
    pub vector_reads: u64,
    /// Of these, the ones that began while the traversal went on.
    pub prefetched: u64,
    /// Candidates that were ranked by their vectors, where vectors are apart from the graph.
    pub reranked: u64,
    /// Of the reads of graph pages, in a cluster index: those of postings, with vectors or with numbers alone.
    pub posting_reads: u64,
    /// The same of groups: vectors that are read together with the numbers of others.
    pub group_reads: u64,
    /// Of the reads of vectors, in a cluster index: those that stand in no group that was read.
    pub stray_reads: u64,
    /// Bytes of all reads.
    pub bytes_read: u64,
    /// Nodes that a cache served instead of a read.
    pub cache_hits: u64,
    /// Distances, by code and exact.
    pub distance_computations: u64,
    /// Of these, the ones by codes of low precision, where [PRESS](Strategy::Press) has two.
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

/// The answers of a batch and what they cost.
#[derive(Clone, Debug)]
pub struct SearchResults {
    /// Answers a query.
    pub k: usize,
    /// Outside ids, `queries * k`, nearest first. Where fewer than `k` vectors are in the index, or match the filter, `u64::MAX` at infinite distance stands in the
    /// places that are left; nowhere else.
    pub ids: Vec<u64>,
    /// Their exact distances (see [`Metric`](stratann_vector::Metric) for sign and scale). In the layered layout answers that were in no
    /// doubt have the distance that the leading part of their vector gives reason to expect, unless [exact](SearchOptions::exact) ones
    /// were asked for.
    pub distances: Vec<f32>,
    /// Whether all distances are exact.
    pub exact: bool,
    /// How far a distance may be from the exact one: four standard deviations of the one of which the leading part says least. 0 where all are exact;
    /// infinite where a leading part bounds nothing. A leading part says in which step each element lies; an element is taken to be as
    /// likely anywhere in it. As far as that holds, of a thousand distances as uncertain as that one three are farther off, and most
    /// are less uncertain.
    pub distance_error: f32,
    /// Wall-clock seconds of the batch, from when the memory budget had room for it.
    pub seconds: f64,
    /// CPU seconds of the searching threads, kernel included, and what they computed meanwhile for other searches.
    pub cpu_seconds: f64,
    /// CPU seconds of the whole process meanwhile, user and system: with those of threads that read for others, and of whatever else
    /// it did.
    pub process_cpu_seconds: f64,
    /// Queries that were in flight on each thread in the end: fewer than were asked for where memory had room for fewer, and what
    /// the batch chose where nobody said how many.
    pub in_flight: usize,
    /// What the batch tried before it chose, in that order; empty where it did not.
    pub tried: Vec<Tried>,
    /// Microseconds from a query's start to its answers, in the order of the queries.
    pub latencies_us: Vec<f32>,
    /// What the queries cost, summed.
    pub counters: Counters,
    /// How what matches was found, if there was a filter.
    pub explained: Option<Explained>,
    /// Where their time went, if that was asked for.
    pub parts: Option<Parts>,
}

/// Refuses what only the walk of a graph has, where clusters are probed.
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
            let expected =
                "not given: this index is of clusters, which are probed; it is a graph's";
            return Err(Error::call(what, "given", expected));
        }
    }
    Ok(())
}

impl Index {
    /// Searches a batch of queries.
    ///
    /// # Errors
    /// Wrong arguments ([`Error::is_call_wrong`]): `k` of 0, a list below `k`, a number
    /// beyond its bound ([`bounds`]), queries of another dimension or element type, NaN or infinity, a zero vector under cosine. Otherwise a read that failed
    /// or a page that is damaged; [`Error::Outdated`] if another process has inserted so much meanwhile that pages are gone
    /// that this one knew. No partial answers are returned.
    pub fn search(
        &self,
        queries: &dyn VectorSource,
        options: &SearchOptions,
    ) -> Result<SearchResults, Error> {
        self.search_observed(queries, options, &Silent)
    }

    /// As [`search`](Index::search); `progress` is told of each query that is done and may interrupt the batch.
    ///
    /// # Errors
    /// As those of [`search`](Index::search), and [`Error::Interrupted`].
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

    /// The same; live recall is not of it.
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

    /// What an error of a search comes of: of what another process has changed meanwhile, perhaps.
    pub(crate) fn outdated(&self, error: Error) -> Error {
        match error {
            // Direct inserts use pages again that only checkpoints before the last one name; and where they write pages in
            // their places, these lead to pages that the checkpoint has not.
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

    /// As [`search_observed`](Index::search_observed); `heat` is told which pages are read, and `seen` says what
    /// changed since the checkpoint, as all queries see it.
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

    /// As [`search_observed`](Index::search_observed), of what is on storage alone: what came since the checkpoint is no answer, nor what went since. A node is no
    /// answer of each query, if some are left out, and perhaps does not lead on.
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

    /// As [`search_observed`](Index::search_observed), of what matches a filter alone.
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

    /// Has threads answer a batch, and waits for them. Gives how long that took.
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

    /// Refuses the numbers that a [`search`](Index::search) refuses, whatever the queries are.
    ///
    /// # Errors
    /// A number beyond its bound ([`bounds`]).
    pub fn check_search(&self, options: &SearchOptions) -> Result<(), Error> {
        self.check_numbers(options, self.overlay()).map(drop)
    }

    /// As [`check_search`](Index::check_search), with what changed since the checkpoint. Gives the vectors that can be found.
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
                format!("{}, the index's", self.dim()),
            ));
        }
        if queries.element() != self.element() {
            return Err(Error::call(
                format!("element type of {}", queries.name()),
                queries.element(),
                format!("{}, the index's", self.element()),
            ));
        }
        let vectors = self.check_numbers(options, overlay)?;
        // The places of a list are for clusters that are probed, where there are some.
        let depth = self.depth(options, vectors)?;
        let list = match (options.probes, self.has_clusters()) {
            (None, false) => depth.map_or(options.list, |depth| depth.most().max(options.k)),
            (_, true) => {
                refuse_walks(options)?;
                depth.map_or_else(|| options.probes_of(), |depth| depth.most())
            }
            (Some(probes), false) => {
                let expected = "none: this index is a graph, which is searched with a list size";
                return Err(Error::call("probes", probes, expected));
            }
        };
        let navigation = options
            .navigation
            .unwrap_or(preset.navigation && self.has_navigation());
        if navigation {
            // Loads it now, so that no query pays for it, and says why if it cannot be had.
            self.navigation()?;
        }
        let strategy = options.strategy.unwrap_or(preset.strategy);
        let two = self
            .codebook()
            .is_some_and(|book| book.low_codes().is_some());
        if strategy == Strategy::Press && !two && !self.has_clusters() {
            let expected = "best-first or pipelined, or an index with codes of two precisions: one that is built with the preset distvs";
            return Err(Error::call("strategy", strategy, expected));
        }
        if options.seeds > 0 && self.composition().codes != CodesAt::Memory {
            let expected = "0: codes of this index are not in memory, so that its search begins at entry points";
            return Err(Error::call("seeds", options.seeds, expected));
        }
        let mut plan = Plan {
            // More there are not. A delete can make it so at any time, so it is no error.
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
            // Beside vectors that wait for a merge, the boundary of the answers is another one than that of those on storage.
            exact: options.exact || overlay.is_some_and(|overlay| overlay.logged() > 0),
            ends: match depth {
                // Where vectors are apart, nobody knows in time how far the answers are, and PRESS ranks them last: all of the longest list.
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
                let expected = "none: without a filter there is one way";
                return Err(Error::call("way", way, expected));
            }
        };
        Ok((plan, explained))
    }
}
