//! Search: one query is one `async fn`, a batch is many of them on a pool of threads.
//!
//! ```text
//!   Index::search ── threads ──> executor of a thread ── in_flight ──> task: the next query of the batch
//!                                                                        table, seeds, strategy, answers
//! ```
//!
//! - [`walker`]: one query after the other, as a search or an insert asks for it
//! - [`traversal`]: what a page means: scoring, expansion, ranking on the path
//! - [`strategy`]: in which order nodes are read, a file for each strategy
//! - [`reader`]: pages of nodes, in completion order
//! - [`admission`]: what may be an answer at all
//! - [`ranking`]: exact distances, and which are worth computing
//! - [`rerank`]: vectors that are apart from the graph, fetched after the path
//! - [`scan`]: every vector, where the list has room for all that deletions left, or the graph leads to too few
//! - [`spare`]: the buffers that a walk leaves to the next one on its thread
//! - [`parts`]: where the time goes
//!
//! Dispatch over layout, metric, element type and strategy happens once a query or once a batch, never per hop.

mod admission;
mod parts;
mod ranking;
mod reader;
mod rerank;
mod results;
mod scan;
mod spare;
mod strategy;
#[cfg(test)]
mod tests;
mod traversal;
mod walker;

use std::ops::AddAssign;
use std::rc::Rc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use serde::Serialize;
use stratann_tier::{Task, Thread, TierError, thread_cpu_time};

pub(crate) use self::admission::Admission;
pub use self::parts::Parts;
pub(crate) use self::parts::Timer;
pub(crate) use self::reader::Page;
use self::scan::Scan;
pub use self::strategy::Strategy;
use self::traversal::{MOST_SHARES, SCAN_FROM, Traversal};
pub(crate) use self::walker::{Plan, Walker, Within};
use crate::data::{VectorSource, check_rows};
use crate::index::Index;
use crate::measure::Heat;
use crate::progress::{Progress, Silent, Stage};
use crate::stores::{NodePages, on_pages};
use crate::update::{FreshScratch, Overlay, Seen};
use crate::{Error, Rerank, bounds};

/// How to search. What is `None` is taken from the index's preset.
#[derive(Clone, Copy, Debug)]
pub struct SearchOptions {
    /// How many answers a query gets. Of an index that changes, or has changed since its checkpoint, it gets fewer where fewer are left,
    /// and the places behind them say so ([`SearchResults::ids`]); of one that does not, more than there are is an error.
    pub k: usize,
    /// L, the size of the candidate list: the knob between recall and speed. At least `k`. With room for all vectors that are left,
    /// answers are exact.
    pub list: usize,
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
    /// Whether to measure where the time goes ([`SearchResults::parts`]); that itself costs time.
    pub parts: bool,
    /// OS threads.
    pub threads: usize,
    /// Queries in flight on each thread: 1 for the least latency, more for throughput. Fewer are in flight if the memory
    /// budget has no room for so many.
    pub in_flight: usize,
}

impl Default for SearchOptions {
    fn default() -> Self {
        Self {
            k: 10,
            list: 100,
            beam: None,
            strategy: None,
            navigation: None,
            whole_page: None,
            rerank: None,
            parts: false,
            threads: 1,
            in_flight: 1,
        }
    }
}

/// What a batch of queries cost, summed over its queries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counters {
    /// Nodes whose neighbours were scored.
    pub hops: u64,
    /// Reads of graph pages that reached the tier.
    pub graph_reads: u64,
    /// Reads of vectors that reached the tier, where vectors are apart from the graph.
    pub vector_reads: u64,
    /// Of these, the ones that began while the traversal went on.
    pub prefetched: u64,
    /// Candidates that were ranked by their vectors, where vectors are apart from the graph.
    pub reranked: u64,
    /// Bytes of both.
    pub bytes_read: u64,
    /// Nodes that a cache served instead of a read.
    pub cache_hits: u64,
    /// Distances, by code and exact.
    pub distance_computations: u64,
}

impl AddAssign for Counters {
    fn add_assign(&mut self, other: Self) {
        self.hops += other.hops;
        self.graph_reads += other.graph_reads;
        self.vector_reads += other.vector_reads;
        self.prefetched += other.prefetched;
        self.reranked += other.reranked;
        self.bytes_read += other.bytes_read;
        self.cache_hits += other.cache_hits;
        self.distance_computations += other.distance_computations;
    }
}

/// The answers of a batch and what they cost.
#[derive(Clone, Debug)]
pub struct SearchResults {
    /// Answers a query.
    pub k: usize,
    /// Outside ids, `queries * k`, nearest first. Where the index has fewer than `k` vectors, as it may at any time when another
    /// thread deletes some, `u64::MAX` at infinite distance stands in the places that are left; nowhere else.
    pub ids: Vec<u64>,
    /// Their exact distances (see [`Metric`](stratann_vector::Metric) for sign and scale).
    pub distances: Vec<f32>,
    /// Wall-clock seconds of the batch.
    pub seconds: f64,
    /// CPU seconds of the searching threads, kernel included, and what they computed meanwhile for other searches.
    pub cpu_seconds: f64,
    /// Microseconds from a query's start to its answers, in the order of the queries.
    pub latencies_us: Vec<f32>,
    /// What the queries cost, summed.
    pub counters: Counters,
    /// Where their time went, if that was asked for.
    pub parts: Option<Parts>,
}

/// By how much a list is longer with which a walk begins again that found too few.
const LONGER: usize = 4;

/// The longest list of such a walk under a memory budget, where the one that was asked for takes next to nothing.
const SHORT: usize = 128;

/// The largest k that is answered with padding where fewer vectors are left.
const MOST_PADDED: usize = 1 << 16;

/// What the tasks of a batch share.
struct Batch<'a> {
    index: &'a Index,
    queries: &'a dyn VectorSource,
    plan: Plan,
    progress: &'a dyn Progress,
    heat: Option<&'a Heat>,
    seen: Option<Seen<'a>>,
    admission: Admission<'a>,
    next: AtomicUsize,
    done: Mutex<Done>,
}

/// What is known when some of its queries are answered.
struct Done {
    results: SearchResults,
    parts: Parts,
    cpu: Duration,
    error: Option<Error>,
}

impl Done {
    /// Takes a query's answers.
    fn answer(&mut self, query: usize, latency: Duration, found: &[results::Neighbour]) {
        let results = &mut self.results;
        let at = query * results.k;
        for (i, neighbour) in found.iter().enumerate() {
            results.ids[at + i] = neighbour.id;
            results.distances[at + i] = neighbour.distance;
        }
        results.latencies_us[query] = latency.as_secs_f32() * 1e6;
    }
}

impl Index {
    /// Searches a batch of queries.
    ///
    /// # Errors
    /// Wrong arguments ([`Error::is_call_wrong`]): `k` of 0 or beyond a collection that does not change, a list below `k`, a number
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
        let seen = self.overlay().map(|overlay| Seen {
            overlay,
            moment: overlay.now(),
        });
        let found = self.search_with(queries, options, progress, None, seen);
        found.map_err(|error| match error {
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
        })
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
        let plan = self.plan_search(queries, options, seen.map(|seen| seen.overlay))?;
        let (rows, k) = (queries.rows(), options.k);
        let answers = bounds::answers(k, rows)?;
        let admission = seen.map_or_else(Admission::default, |seen| seen.admission());
        let batch = Batch {
            index: self,
            queries,
            plan,
            progress,
            heat,
            seen,
            admission,
            next: AtomicUsize::new(0),
            // Answers go straight to where they stay: thousands of queries would take as much again in between.
            done: Mutex::new(Done {
                results: SearchResults {
                    k,
                    ids: bounds::room(answers, u64::MAX)?,
                    distances: bounds::room(answers, f32::INFINITY)?,
                    seconds: 0.0,
                    cpu_seconds: 0.0,
                    latencies_us: vec![0.0; rows],
                    counters: Counters::default(),
                    parts: None,
                },
                parts: Parts::default(),
                cpu: Duration::ZERO,
                error: None,
            }),
        };
        // The memory budget has room for so many, and some of it may be taken.
        let wanted = options.threads.saturating_mul(options.in_flight).min(rows);
        let candidates = match admission.refused() {
            0 => 0,
            // Those that may be no answers, and the reserve for those of which that is not known.
            refused => plan
                .candidates
                .min(refused.saturating_add(plan.list.saturating_mul(MOST_SHARES))),
        };
        let room = self.room(plan.list, candidates, wanted, progress)?;
        let threads = options.threads.min(rows).min(room.queries).max(1);
        let worker_pool = self.workers(threads, self.most_at_once(plan.list, options.threads))?;
        let _stage = Stage::begin(progress, "searching", rows as u64);
        let start = Instant::now();
        worker_pool.run_tasks(threads, &|thread, share| {
            // Each as many, and the first ones those that are left over.
            let more = usize::from(share < room.queries % threads);
            batch.tasks(thread, room.queries / threads + more)
        });
        let seconds = start.elapsed().as_secs_f64();
        let done = batch.done.into_inner();
        if let Some(error) = done.error {
            return Err(error);
        }
        Ok(SearchResults {
            seconds,
            cpu_seconds: done.cpu.as_secs_f64(),
            parts: plan.parts.then_some(done.parts),
            ..done.results
        })
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
        let vectors = overlay.map_or(self.len(), |overlay| overlay.live(self.len()));
        // Of what never changes, more than there is is asked by mistake.
        let (most, what) = match overlay {
            Some(_) if vectors < MOST_PADDED => (MOST_PADDED, "the most where fewer are left"),
            _ => (vectors, "the vectors in the index"),
        };
        bounds::search(options, most, what)?;
        Ok(vectors)
    }

    fn plan_search(
        &self,
        queries: &dyn VectorSource,
        options: &SearchOptions,
        overlay: Option<&Overlay>,
    ) -> Result<Plan, Error> {
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
        let navigation = options
            .navigation
            .unwrap_or(preset.navigation && self.has_navigation());
        if navigation {
            // Loads it now, so that no query pays for it, and says why if it cannot be had.
            self.navigation()?;
        }
        Ok(Plan {
            // More there are not. A delete can make it so at any time, so it is no error.
            k: options.k.min(vectors).max(1),
            list: options.list,
            candidates: self.candidates(options.list, self.len() / SCAN_FROM),
            beam: options.beam.unwrap_or(preset.beam),
            strategy: options.strategy.unwrap_or(preset.strategy),
            navigation,
            whole_page: options.whole_page.unwrap_or(preset.whole_page),
            rerank: options.rerank.unwrap_or(preset.rerank),
            hold: false,
            parts: options.parts,
        })
    }
}

/// Tells a batch what a thread computed from its first task to its last. Where other searches went on, it computed for them as well.
struct CpuClock<'a> {
    begun: Duration,
    done: &'a Mutex<Done>,
}

impl Drop for CpuClock<'_> {
    fn drop(&mut self) {
        self.done.lock().cpu += thread_cpu_time().saturating_sub(self.begun);
    }
}

impl Batch<'_> {
    /// One thread's share.
    fn tasks<'b>(&'b self, thread: &'b Thread, in_flight: usize) -> Vec<Task<'b>> {
        let clock = Rc::new(CpuClock {
            begun: thread_cpu_time(),
            done: &self.done,
        });
        let task = |_| {
            let clock = clock.clone();
            Box::pin(async move {
                if let Err(error) = self.task(thread).await {
                    self.done.lock().error.get_or_insert(error);
                    // Let the other tasks run out of queries.
                    self.next.store(self.queries.rows(), Ordering::Relaxed);
                }
                drop(clock);
            }) as Task<'b>
        };
        (0..in_flight).map(task).collect()
    }

    /// One task: query after query until the batch has none left.
    async fn task(&self, thread: &Thread) -> Result<(), Error> {
        on_pages!(&self.index.graph().pages, pages => self.task_on(pages, thread).await)
    }

    /// One task, on an index of one layout.
    async fn task_on<N: NodePages>(&self, pages: &N, thread: &Thread) -> Result<(), Error> {
        let (index, queries) = (self.index, self.queries);
        let timer = Timer::new(self.plan.parts);
        let within = Within {
            thread,
            timer: &timer,
            heat: self.heat,
            admission: self.admission,
        };
        let mut walker = Walker::new(index, pages, self.plan, &within)?;
        let mut counters = Counters::default();
        let mut fresh_scratch = FreshScratch::default();
        let mut waiting: Vec<(u64, f32)> = Vec::new();
        loop {
            let query = self.next.fetch_add(1, Ordering::Relaxed);
            if query >= queries.rows() {
                break;
            }
            let start = Instant::now();
            let _pin = index
                .graph()
                .placement
                .get()
                .map(|placement| placement.pins.pin());
            let bytes = &mut walker.traversal.ranking.query;
            queries.read(query, bytes)?;
            check_rows(queries, index.metric(), query, bytes)?;
            // As they were when the batch began: a vector that has moved to the graph on storage since is met here, and one that moved
            // before is met there.
            waiting.clear();
            for (fresh, moment) in self.seen.iter().flat_map(Seen::fresh) {
                fresh.search(
                    &walker.traversal.ranking.query,
                    self.plan.k,
                    self.plan.list,
                    moment,
                    &mut fresh_scratch,
                    |id, distance| waiting.push((id, distance)),
                );
            }
            let live = self
                .seen
                .map_or(index.len(), |seen| seen.overlay.live(index.len()));
            // Where the list has room for all that deletions left, a walk would visit all that it can reach, and could still miss some.
            let all = !self.admission.is_of_all() && (1..=self.plan.list).contains(&live);
            let mut list = Some(self.plan.list);
            let mut before = Counters::default();
            let mut enough = false;
            // Where too many of the nearest are deleted, a longer list leads past them.
            while let Some(length) = list.filter(|_| !enough) {
                walker.set_list(length);
                if all {
                    walker.begin_at_none();
                } else {
                    walker.search().await?;
                }
                let traversal = &mut walker.traversal;
                before += std::mem::take(&mut traversal.counters);
                for &(id, distance) in &waiting {
                    traversal.ranking.nearest.offer(id, distance);
                }
                enough = !all && traversal.ranking.nearest.found().len() >= self.plan.k.min(live);
                list = self.longer(length).filter(|_| !all);
            }
            let traversal = &mut walker.traversal;
            traversal.counters = before;
            if !enough {
                self.look_at_all(pages, thread, traversal).await?;
            }
            self.progress.advance(1);
            if self.progress.interrupted() {
                return Err(Error::Interrupted);
            }
            counters += traversal.counters;
            let latency = start.elapsed();
            let found = traversal.ranking.nearest.found();
            self.done.lock().answer(query, latency, found);
        }
        let mut done = self.done.lock();
        done.results.counters += counters;
        done.parts += timer.parts();
        Ok(())
    }

    /// The next longer list to walk with before every vector is looked at; `None` where that is less work, or takes more memory than a
    /// budget has for a query.
    fn longer(&self, list: usize) -> Option<usize> {
        let longer = list.saturating_mul(LONGER);
        let most = match self.index.memory().budget {
            None => self.index.len() / SCAN_FROM,
            Some(_) => SHORT,
        };
        (longer <= most).then_some(longer)
    }

    /// Ranks every vector on storage: where the list has room for all that are left of an index, or its graph leads to too few, that
    /// is less work than to look for them.
    #[cold]
    async fn look_at_all<'t, N: NodePages>(
        &self,
        pages: &N,
        thread: &Thread,
        traversal: &mut Traversal<'t, N>,
    ) -> Result<(), Error> {
        tracing::debug!(
            index = %self.index.path().display(),
            vectors = self.index.len(),
            "looks at every vector: a walk leads to too few that are left"
        );
        // Their place in memory is what the scan takes.
        traversal.let_go();
        let scan = Scan {
            index: self.index,
            thread,
            progress: self.progress,
            admission: self.admission,
        };
        let Traversal {
            ranking, counters, ..
        } = traversal;
        let mut each = |node, id, vector: &[u8]| {
            ranking.rank_exactly(node, id, vector);
        };
        let scanned = scan.each_vector(pages, counters, &mut each).await;
        counters.distance_computations += std::mem::take(&mut ranking.computations);
        scanned
    }
}
