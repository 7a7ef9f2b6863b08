//! A batch of queries on the worker pool. `search` waits for the tasks, and `submit` does not.
//!
//! ```text
//!   search   borrows index and queries ──┐
//!   submit   owns them ──────────────────┴─> Batch: data that a task borrows
//!                                               ─> Answers: remain after the last task
//! ```

use std::rc::Rc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use stratann_tier::{Thread, WorkerPool, process_cpu_time, thread_cpu_time};

use super::further::walked_further;
use super::probe::Prober;
use super::results::Neighbour;
use super::scan::let_others;
use super::source::{CandidateSource, Guided, LeftOut};
use super::stop::Stop;
use super::traversal::{MOST_SHARES, SCAN_FROM};
use super::tuning::{Turn, Turns};
use super::{
    Admission, Counters, Matching, Parts, Plan, SearchOptions, SearchResults, Timer, Walker, Way,
    Within, ways,
};
use crate::data::{VectorSource, check_rows};
use crate::index::growth::LooksAt;
use crate::index::{Index, Kind};
use crate::overlay::fresh::FreshScratch;
use crate::overlay::{Overlay, Seen};
use crate::progress::Progress;
use crate::room::{Queued, Taken, Wanted};
use crate::stores::heat::Heat;
use crate::stores::{VectorsAt, on_pages};
use crate::{Error, bounds};

/// A walk that found too few results is repeated with a candidate list this many times as long.
const LONGER: usize = 4;

/// Under a memory budget, the candidate list of a repeated walk is at most this long.
const SHORT: usize = 128;

/// Nearly all errors are at most this many standard deviations ([`SearchResults::distance_error`]).
const WITHIN: f32 = 4.0;

#[derive(Clone, Copy)]
pub(super) struct Shares {
    pub(super) threads: usize,
    queries: usize,
}

impl Shares {
    /// The reserved memory suffices for `queries` queries in flight.
    pub(super) fn new(options: &SearchOptions, rows: usize, queries: usize) -> Self {
        Self {
            threads: options.threads.min(rows).min(queries).max(1),
            queries,
        }
    }

    pub(super) fn most(&self) -> usize {
        self.tasks(0)
    }

    /// The number of tasks on one thread. If tasks do not divide evenly, the first threads have one
    /// task more.
    pub(super) fn tasks(&self, share: usize) -> usize {
        self.queries / self.threads + usize::from(share < self.queries % self.threads)
    }
}

pub(super) struct Answers {
    plan: Plan,
    next: AtomicUsize,
    /// Decides which task may take the next query. Set when the memory is reserved.
    turns: OnceLock<Turns>,
    done: Mutex<Done>,
}

struct Done {
    results: SearchResults,
    parts: Parts,
    cpu: Duration,
    process: Duration,
    error: Option<Error>,
}

impl Answers {
    /// `overlay` has the changes since the checkpoint, and `matching` the matches of the filter.
    pub(super) fn new(
        index: &Index,
        queries: &dyn VectorSource,
        options: &SearchOptions,
        overlay: Option<&Overlay>,
        matching: Option<Matching<'_>>,
    ) -> Result<Self, Error> {
        let (plan, explained) = index.plan_search(queries, options, overlay, matching)?;
        let (rows, k) = (queries.rows(), options.k);
        let answers = bounds::answers(k, rows)?;
        Ok(Self {
            plan,
            next: AtomicUsize::new(0),
            turns: OnceLock::new(),
            // Tasks write their results here, because copies would need twice the memory.
            done: Mutex::new(Done {
                results: SearchResults {
                    k,
                    ids: bounds::room(answers, u64::MAX)?,
                    distances: bounds::room(answers, f32::INFINITY)?,
                    exact: plan.exact
                        || index.is_unpacked()
                        || index.composition().vectors != VectorsAt::Parts,
                    distance_error: 0.0,
                    seconds: 0.0,
                    cpu_seconds: 0.0,
                    process_cpu_seconds: 0.0,
                    in_flight: 0,
                    tried: Vec::new(),
                    latencies_us: vec![0.0; rows],
                    counters: Counters::default(),
                    explained,
                    parts: None,
                },
                parts: Parts::default(),
                cpu: Duration::ZERO,
                process: process_cpu_time(),
                error: None,
            }),
        })
    }

    /// The options given to `new` must have no filter strategy.
    pub(super) fn among(mut self, index: &Index, matching: Matching<'_>, way: Option<Way>) -> Self {
        let explained = ways::choose(index, &matching, way, &mut self.plan);
        self.done.get_mut().results.explained = Some(explained);
        self
    }

    pub(super) fn begin(&self, options: &SearchOptions, rows: usize, room: Taken) -> Shares {
        let shares = Shares::new(options, rows, room.queries);
        self.done.lock().process = process_cpu_time();
        let turns = Turns::new(shares, rows, room, options.in_flight.is_none());
        // A batch begins once, so `turns` is empty here.
        self.turns.get_or_init(|| turns);
        shares
    }

    pub(super) fn workers(
        &self,
        index: &Index,
        options: &SearchOptions,
        threads: usize,
    ) -> Result<Arc<WorkerPool>, Error> {
        let most = index.most_at_once(self.plan.walked, options.threads);
        index.workers(threads, most)
    }

    /// All tasks must have ended. `took` is the duration of the batch.
    pub(super) fn into_results(self, took: Duration) -> Result<SearchResults, Error> {
        let done = self.done.into_inner();
        if let Some(error) = done.error {
            return Err(error);
        }
        let turns = self.turns.into_inner().map(Turns::into_chosen);
        let (in_flight, tried) = turns.unwrap_or_default();
        Ok(SearchResults {
            seconds: took.as_secs_f64(),
            cpu_seconds: done.cpu.as_secs_f64(),
            process_cpu_seconds: process_cpu_time()
                .saturating_sub(done.process)
                .as_secs_f64(),
            in_flight,
            tried,
            parts: self.plan.parts.then_some(done.parts),
            ..done.results
        })
    }

    fn answer(&self, query: usize, latency: Duration, found: &[Neighbour], deviation: f32) {
        let results = &mut self.done.lock().results;
        results.distance_error = results.distance_error.max(WITHIN * deviation);
        let at = query * results.k;
        for (i, neighbour) in found.iter().enumerate() {
            results.ids[at + i] = neighbour.id;
            results.distances[at + i] = neighbour.distance;
        }
        results.latencies_us[query] = latency.as_secs_f32() * 1e6;
    }

    fn went_dry(&self) {
        if let Some(explained) = &mut self.done.lock().results.explained {
            explained.dry += 1;
        }
    }

    fn went_wider(&self) {
        if let Some(explained) = &mut self.done.lock().results.explained {
            explained.wider += 1;
        }
    }

    fn fail(&self, error: Error, queries: usize) {
        self.done.lock().error.get_or_insert(error);
        self.next.store(queries, Ordering::Relaxed);
    }
}

/// The CPU time of a thread when the first of its tasks for the batch began.
#[derive(Clone)]
pub(super) struct Clock(Rc<Duration>);

impl Clock {
    pub(super) fn new() -> Self {
        Self(Rc::new(thread_cpu_time()))
    }

    /// For the last task of the thread, returns the CPU time since the first task began. For other
    /// tasks, returns `None`.
    fn last(self) -> Option<Duration> {
        let begun = Rc::into_inner(self.0)?;
        Some(thread_cpu_time().saturating_sub(begun))
    }
}

#[derive(Clone, Copy)]
pub(super) struct Batch<'a> {
    index: &'a Index,
    queries: &'a dyn VectorSource,
    answers: &'a Answers,
    progress: &'a dyn Progress,
    heat: Option<&'a Heat>,
    seen: Option<Seen<'a>>,
    admission: Admission<'a>,
    matching: Option<Matching<'a>>,
    stop: Option<&'a Stop>,
    stored_alone: bool,
    /// For each query, a node that is excluded from its results.
    left_out: Option<&'a [LeftOut]>,
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
            matching: None,
            stop: None,
            stored_alone: false,
            left_out: None,
        }
    }

    pub(super) fn among(self, matching: Matching<'a>) -> Self {
        Self {
            admission: self.admission.among(matching.nodes, self.index.nodes()),
            matching: Some(matching),
            ..self
        }
    }

    pub(super) fn queries(&self) -> &'a dyn VectorSource {
        self.queries
    }

    pub(super) fn progress(&self) -> &'a dyn Progress {
        self.progress
    }

    pub(super) fn of_stored_alone(self, left_out: Option<&'a [LeftOut]>) -> Self {
        Self {
            stored_alone: true,
            left_out,
            ..self
        }
    }

    pub(super) fn until(self, stop: &'a Stop) -> Self {
        Self {
            stop: Some(stop),
            ..self
        }
    }

    pub(super) fn room(&self, options: &SearchOptions) -> Queued {
        let rows = self.queries.rows();
        let wanted = options.threads.saturating_mul(options.in_flight(rows));
        // Without the option `in_flight`, one query in flight on each thread suffices, so that
        // other searches can have the rest of the budget.
        let needed = match options.in_flight {
            Some(_) => wanted,
            None => options.threads,
        };
        let plan = &self.answers.plan;
        let candidates = match self.admission.refused() {
            0 => 0,
            // The limit on candidates leaves a reserve for candidates that turn out to be excluded
            // when they are read.
            refused => plan
                .candidates
                .min(refused.saturating_add(plan.list.saturating_mul(MOST_SHARES))),
        };
        let wanted = Wanted {
            needed: needed.min(rows),
            most: wanted.min(rows),
        };
        let walked = plan.walked.max(walked_further(plan, plan.further));
        self.index.room(walked, candidates, wanted)
    }

    pub(super) async fn run(self, thread: &Thread, number: usize, clock: Clock) {
        let outcome = match self.stop {
            None => self.task(thread, number).await,
            Some(stop) => {
                // A stopped task is dropped, together with its reads, its pin and its buffers.
                let task = Box::pin(self.task(thread, number));
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

    /// Runs queries until none is left, or the number of queries in flight excludes this task.
    async fn task(&self, thread: &Thread, number: usize) -> Result<(), Error> {
        let Some(turns) = self.answers.turns.get() else {
            return Ok(());
        };
        if !turns.wait(thread, number).await {
            return Ok(());
        }
        let turn = Turn { turns, number };
        let (index, plan) = (self.index, self.answers.plan);
        let timer = Timer::new(plan.parts);
        let within = Within {
            thread,
            timer: &timer,
            heat: self.heat,
            admission: self.admission,
        };
        let counters = match index.kind() {
            Kind::Graph(graph) => on_pages!(&graph.search_stores().pages, pages => {
                self.task_from(Walker::new(index, pages, plan, &within)?, thread, &turn).await?
            }),
            Kind::Clusters(clusters) => {
                let prober = Prober::new(index, clusters, plan, &within)?;
                self.task_from(prober, thread, &turn).await?
            }
        };
        let mut done = self.answers.done.lock();
        done.results.counters += counters;
        done.parts += timer.parts();
        Ok(())
    }

    async fn task_from<'s, S: Guided<'s>>(
        &self,
        mut source: S,
        thread: &Thread,
        turn: &Turn<'_>,
    ) -> Result<Counters, Error> {
        let (index, queries, plan) = (self.index, self.queries, &self.answers.plan);
        let mut counters = Counters::default();
        let mut fresh_scratch = FreshScratch::default();
        let mut waiting: Vec<(u64, f32)> = Vec::new();
        loop {
            if !turn.again(thread).await {
                return Ok(counters);
            }
            let query = self.answers.next.fetch_add(1, Ordering::Relaxed);
            if query >= queries.rows() {
                return Ok(counters);
            }
            if self.stop.is_some() && query > 0 {
                // If all pages are in memory, other searches run only during this call.
                let_others().await;
            }
            let start = Instant::now();
            let _pin = index.pin();
            let bytes = &mut source.ranking().query;
            queries.read(query, bytes)?;
            check_rows(queries, index.metric(), query, bytes)?;
            source.leave_out(self.left_out.and_then(|nodes| nodes.get(query).copied()));
            // The walk finds vectors that moved to storage before the batch's read timestamp, and
            // this search of the fresh graphs finds the others.
            waiting.clear();
            let in_memory = self.seen.iter().filter(|_| !self.stored_alone);
            for (at, (fresh, moment)) in in_memory.flat_map(Seen::fresh).enumerate() {
                if let Some(matching) = self.matching {
                    let (query, k) = (&source.ranking().query, plan.k);
                    let slots = matching.fresh[at.min(1)];
                    let offer = |id, distance| waiting.push((id, distance));
                    fresh.search_among(query, k, slots, moment, &mut fresh_scratch, offer);
                    continue;
                }
                fresh.search(
                    &source.ranking().query,
                    plan.k,
                    plan.fresh_list,
                    moment,
                    &mut fresh_scratch,
                    |id, distance| waiting.push((id, distance)),
                );
            }
            let (live, all) = match self.matching {
                // If a walk finds fewer than `k` results, and not all matches, a scan follows.
                Some(matching) => (matching.len(), plan.way == Way::Before),
                None => {
                    let seen = self.seen.map(|seen| seen.overlay.live(index.nodes()));
                    let live = seen.unwrap_or(index.nodes());
                    // If the list has room for all live vectors, a scan replaces the walk, which
                    // would miss unreachable vectors.
                    let room = !self.admission.is_of_all() && (1..=plan.list).contains(&live);
                    (live, room || plan.looks_at == LooksAt::All)
                }
            };
            let mut list = Some(plan.list);
            let mut enough = false;
            // A search with excluded nodes serves to measure the recall of a list size, so it never
            // lengthens the list.
            let mut further = match self.left_out {
                None => plan.further,
                Some(_) => 0,
            };
            let mut is_further = false;
            // A longer candidate list reaches live vectors that are farther than the deleted
            // vectors.
            while let Some(length) = list.filter(|_| !enough) {
                if all {
                    source.begin_at_none();
                } else {
                    match is_further {
                        false => source.find(length).await?,
                        true => source.find_further(length).await?,
                    }
                    counters += source.take_counters();
                }
                let ranking = source.ranking();
                ranking.offer_all(&waiting);
                let found = ranking.nearest.found().len();
                let is_dry = source.is_dry();
                let found_all = found >= plan.k.min(live) || source.has_all();
                enough = !all && !is_dry && found_all;
                list = self.longer(length).filter(|&list| list <= plan.longest);
                if enough && further > 0 && source.ranking().an_answer_came() {
                    list = Some(std::mem::take(&mut further).max(length));
                    (enough, is_further) = (false, true);
                }
                list = list.filter(|_| !all);
            }
            if !all && source.is_wider() {
                self.answers.went_wider();
            }
            if !enough && live > 0 {
                if !all {
                    self.answers.went_dry();
                }
                // Here, a scan is less work than a walk with a longer candidate list.
                tracing::debug!(
                    index = %index.path().display(),
                    vectors = index.nodes(),
                    "scans every vector that may be a result, since a walk would find too few"
                );
                let mut scan = source.scan(thread, self.progress);
                scan.find(plan.list).await?;
                counters += scan.take_counters();
                // A scan of vectors in two parts starts with no results, so the waiting vectors are
                // offered again. Other scans ignore repeated offers.
                scan.ranking().offer_all(&waiting);
            }
            self.progress.advance(1);
            if self.progress.interrupted() {
                return Err(Error::Interrupted);
            }
            let latency = start.elapsed();
            let ranking = source.ranking();
            let deviation = ranking.leading.deviation();
            self.answers
                .answer(query, latency, ranking.nearest.found(), deviation);
            turn.answered();
        }
    }

    /// The list size for a repeated walk, or `None` if a scan is less work or memory is short.
    fn longer(&self, list: usize) -> Option<usize> {
        let longer = list.saturating_mul(LONGER);
        let most = match self.index.memory().budget {
            None => self.index.nodes() / SCAN_FROM,
            Some(_) => SHORT,
        };
        (longer <= most).then_some(longer)
    }
}
