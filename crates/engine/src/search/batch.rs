//! A batch of queries on the worker pool: the same tasks, whether the caller waits for them or has submitted them.
//!
//! ```text
//!   search   lends index and queries ──┐
//!   submit   owns them ────────────────┴─> Batch: what a task borrows ─> Answers: what is left when all tasks are gone
//! ```

use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use stratann_tier::{Thread, WorkerPool, thread_cpu_time};

use super::results::Neighbour;
use super::scan::{Scan, let_others};
use super::stop::Stop;
use super::traversal::{MOST_SHARES, SCAN_FROM, Traversal};
use super::{
    Admission, Counters, Parts, Plan, SearchOptions, SearchResults, Timer, Walker, Within,
};
use crate::data::{VectorSource, check_rows};
use crate::index::Index;
use crate::measure::Heat;
use crate::progress::Progress;
use crate::room::Queued;
use crate::stores::{NodePages, on_pages};
use crate::update::{FreshScratch, Overlay, Seen};
use crate::{Error, bounds};

/// By how much a list is longer with which a walk begins again that found too few.
const LONGER: usize = 4;

/// The longest list of such a walk under a memory budget, where the one that was asked for takes next to nothing.
const SHORT: usize = 128;

/// How the tasks of a batch are divided among threads.
#[derive(Clone, Copy)]
pub(super) struct Shares {
    pub(super) threads: usize,
    queries: usize,
}

impl Shares {
    /// Of a batch of `rows` queries, of which so many have room to be in flight.
    pub(super) fn new(options: &SearchOptions, rows: usize, queries: usize) -> Self {
        Self {
            threads: options.threads.min(rows).min(queries).max(1),
            queries,
        }
    }

    /// The tasks of a share: each as many, and the first ones those that are left over.
    pub(super) fn tasks(&self, share: usize) -> usize {
        self.queries / self.threads + usize::from(share < self.queries % self.threads)
    }
}

/// What the tasks of a batch have in common, and what they have answered.
pub(super) struct Answers {
    plan: Plan,
    /// The next query that nobody answers yet.
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

impl Answers {
    /// Of a search, with what changed since the checkpoint.
    ///
    /// # Errors
    /// Wrong arguments; answers that memory has no room for.
    pub(super) fn new(
        index: &Index,
        queries: &dyn VectorSource,
        options: &SearchOptions,
        overlay: Option<&Overlay>,
    ) -> Result<Self, Error> {
        let plan = index.plan_search(queries, options, overlay)?;
        let (rows, k) = (queries.rows(), options.k);
        let answers = bounds::answers(k, rows)?;
        Ok(Self {
            plan,
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
        })
    }

    /// Workers for so many shares of its tasks.
    pub(super) fn workers(
        &self,
        index: &Index,
        options: &SearchOptions,
        threads: usize,
    ) -> Result<Arc<WorkerPool>, Error> {
        let most = index.most_at_once(self.plan.list, options.threads);
        index.workers(threads, most)
    }

    /// The results, when all tasks are gone, which took so long.
    pub(super) fn into_results(self, took: Duration) -> Result<SearchResults, Error> {
        let done = self.done.into_inner();
        if let Some(error) = done.error {
            return Err(error);
        }
        Ok(SearchResults {
            seconds: took.as_secs_f64(),
            cpu_seconds: done.cpu.as_secs_f64(),
            parts: self.plan.parts.then_some(done.parts),
            ..done.results
        })
    }

    /// Takes a query's answers.
    fn answer(&self, query: usize, latency: Duration, found: &[Neighbour]) {
        let results = &mut self.done.lock().results;
        let at = query * results.k;
        for (i, neighbour) in found.iter().enumerate() {
            results.ids[at + i] = neighbour.id;
            results.distances[at + i] = neighbour.distance;
        }
        results.latencies_us[query] = latency.as_secs_f32() * 1e6;
    }

    /// A task has failed: the others run out of queries.
    fn fail(&self, error: Error, queries: usize) {
        self.done.lock().error.get_or_insert(error);
        self.next.store(queries, Ordering::Relaxed);
    }
}

/// What a thread has computed when the first task of a share began. Where other searches go on, it computes for them as well.
#[derive(Clone)]
pub(super) struct Clock(Rc<Duration>);

impl Clock {
    pub(super) fn new() -> Self {
        Self(Rc::new(thread_cpu_time()))
    }

    /// What it has computed since, if this was the share's last task.
    fn last(self) -> Option<Duration> {
        let begun = Rc::into_inner(self.0)?;
        Some(thread_cpu_time().saturating_sub(begun))
    }
}

/// What the tasks of a batch borrow.
#[derive(Clone, Copy)]
pub(super) struct Batch<'a> {
    index: &'a Index,
    queries: &'a dyn VectorSource,
    answers: &'a Answers,
    progress: &'a dyn Progress,
    heat: Option<&'a Heat>,
    seen: Option<Seen<'a>>,
    admission: Admission<'a>,
    stop: Option<&'a Stop>,
}

impl<'a> Batch<'a> {
    pub(super) fn new(
        index: &'a Index,
        queries: &'a dyn VectorSource,
        answers: &'a Answers,
        progress: &'a dyn Progress,
        heat: Option<&'a Heat>,
        seen: Option<Seen<'a>>,
    ) -> Self {
        Self {
            index,
            queries,
            answers,
            progress,
            heat,
            seen,
            admission: seen.map_or_else(Admission::default, |seen| seen.admission()),
            stop: None,
        }
    }

    /// One that `stop` may end before it is done.
    pub(super) fn until(self, stop: &'a Stop) -> Self {
        Self {
            stop: Some(stop),
            ..self
        }
    }

    /// Room in the memory budget for its queries in flight; some of it may be taken.
    pub(super) fn room(&self, options: &SearchOptions) -> Queued {
        let wanted = options.threads.saturating_mul(options.in_flight);
        let plan = &self.answers.plan;
        let candidates = match self.admission.refused() {
            0 => 0,
            // Those that may be no answers, and the reserve for those of which that is not known.
            refused => plan
                .candidates
                .min(refused.saturating_add(plan.list.saturating_mul(MOST_SHARES))),
        };
        let wanted = wanted.min(self.queries.rows());
        self.index.room(plan.list, candidates, wanted)
    }

    /// One task, from its beginning to its end, whatever that is.
    pub(super) async fn run(self, thread: &Thread, clock: Clock) {
        let outcome = match self.stop {
            None => self.task(thread).await,
            Some(stop) => {
                // Dropped where it is stopped, with its reads, its pin and its buffers.
                let task = Box::pin(self.task(thread));
                stop.unless_stopped(thread, task)
                    .await
                    .and_then(|outcome| outcome)
            }
        };
        if let Err(error) = outcome {
            self.answers.fail(error, self.queries.rows());
        }
        if let Some(cpu) = clock.last() {
            self.answers.done.lock().cpu += cpu;
        }
    }

    /// Query after query until the batch has none left.
    async fn task(&self, thread: &Thread) -> Result<(), Error> {
        on_pages!(&self.index.graph().pages, pages => self.task_on(pages, thread).await)
    }

    /// One task, on an index of one layout.
    async fn task_on<N: NodePages>(&self, pages: &N, thread: &Thread) -> Result<(), Error> {
        let (index, queries, plan) = (self.index, self.queries, &self.answers.plan);
        let timer = Timer::new(plan.parts);
        let within = Within {
            thread,
            timer: &timer,
            heat: self.heat,
            admission: self.admission,
        };
        let mut walker = Walker::new(index, pages, *plan, &within)?;
        let mut counters = Counters::default();
        let mut fresh_scratch = FreshScratch::default();
        let mut waiting: Vec<(u64, f32)> = Vec::new();
        loop {
            let query = self.answers.next.fetch_add(1, Ordering::Relaxed);
            if query >= queries.rows() {
                break;
            }
            if self.stop.is_some() && query > 0 {
                // Where all pages are in memory nothing else would let other searches go on, and end those that are to end.
                let_others().await;
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
                    plan.k,
                    plan.list,
                    moment,
                    &mut fresh_scratch,
                    |id, distance| waiting.push((id, distance)),
                );
            }
            let live = self
                .seen
                .map_or(index.len(), |seen| seen.overlay.live(index.len()));
            // Where the list has room for all that deletions left, a walk would visit all that it can reach, and could still miss some.
            let all = !self.admission.is_of_all() && (1..=plan.list).contains(&live);
            let mut list = Some(plan.list);
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
                enough = !all && traversal.ranking.nearest.found().len() >= plan.k.min(live);
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
            self.answers.answer(query, latency, found);
        }
        let mut done = self.answers.done.lock();
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
