//! Prefetches of vectors apart from lists, with the part of the beam width that graph reads leave
//! free (DecoupleVS §3.4).

use std::collections::HashSet;
use std::fmt;
use std::task::{Context, Poll};

use parking_lot::Mutex;
use stratann_tier::{Completion, ReadQueue, Request, Tier};

use super::*;

/// Counts of reads in flight, over all queues of a search.
#[derive(Default)]
struct Traffic {
    graph: AtomicUsize,
    vectors: AtomicUsize,
    /// While reads of the graph are in flight: the most reads of both kinds in flight, and the
    /// number of vector reads that begin.
    most: AtomicUsize,
    prefetched: AtomicUsize,
    /// The most reads of the graph in flight.
    widest: AtomicUsize,
    pages: Mutex<HashSet<(String, u64)>>,
}

struct Counted {
    inner: Arc<dyn Tier>,
    traffic: Arc<Traffic>,
    slow: usize,
    /// The name of the file, if it has vectors.
    vectors: Option<String>,
}

impl fmt::Debug for Counted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Counted({:?})", self.inner)
    }
}

impl Tier for Counted {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn len(&self) -> u64 {
        self.inner.len()
    }

    fn granularity(&self) -> u32 {
        self.inner.granularity()
    }

    fn queue(&self, thread: &Thread) -> Result<Box<dyn ReadQueue>, TierError> {
        Ok(Box::new(CountedQueue {
            inner: self.inner.queue(thread)?,
            traffic: self.traffic.clone(),
            slow: self.slow,
            asked: 0,
            vectors: self.vectors.clone(),
        }))
    }
}

struct CountedQueue {
    inner: Box<dyn ReadQueue>,
    traffic: Arc<Traffic>,
    slow: usize,
    asked: usize,
    vectors: Option<String>,
}

impl CountedQueue {
    fn own(&self) -> &AtomicUsize {
        match self.vectors {
            Some(_) => &self.traffic.vectors,
            None => &self.traffic.graph,
        }
    }

    fn took(&self) {
        self.own().fetch_sub(1, Ordering::Relaxed);
    }
}

impl ReadQueue for CountedQueue {
    fn submit(&mut self, request: Request) -> Result<(), TierError> {
        if let Some(name) = &self.vectors {
            let page = (name.clone(), request.offset);
            self.traffic.pages.lock().insert(page);
        }
        self.inner.submit(request)?;
        self.own().fetch_add(1, Ordering::Relaxed);
        let graph = self.traffic.graph.load(Ordering::Relaxed);
        self.traffic.widest.fetch_max(graph, Ordering::Relaxed);
        if graph > 0 {
            let all = graph + self.traffic.vectors.load(Ordering::Relaxed);
            self.traffic.most.fetch_max(all, Ordering::Relaxed);
            let prefetched = usize::from(self.vectors.is_some());
            self.traffic
                .prefetched
                .fetch_add(prefetched, Ordering::Relaxed);
        }
        Ok(())
    }

    fn flush(&mut self) {
        self.inner.flush();
    }

    fn in_flight(&self) -> usize {
        self.inner.in_flight()
    }

    fn try_next(&mut self) -> Option<Completion> {
        if self.asked < self.slow {
            return None;
        }
        let done = self.inner.try_next()?;
        self.took();
        Some(done)
    }

    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Completion> {
        if self.asked < self.slow {
            self.asked += 1;
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        let polled = self.inner.poll_next(cx);
        if polled.is_ready() {
            self.asked = 0;
            self.took();
        }
        polled
    }

    fn reset(&mut self) {
        self.own()
            .fetch_sub(self.inner.in_flight(), Ordering::Relaxed);
        self.inner.reset();
    }
}

impl Drop for CountedQueue {
    fn drop(&mut self) {
        self.own()
            .fetch_sub(self.inner.in_flight(), Ordering::Relaxed);
    }
}

/// The vectors are apart from lists, and all files are read through `faults`.
fn counted(faults: &Faults) -> (Index, Arc<Traffic>) {
    counted_at(&path(BEST), faults, 0)
}

/// A read of the graph takes `slow` polls.
fn counted_at(path: &std::path::Path, faults: &Faults, slow: usize) -> (Index, Arc<Traffic>) {
    let mut index = Index::open(path, &OpenOptions::default()).unwrap();
    let volume = stratann_tier::Directory::open(path).unwrap();
    let traffic = Arc::<Traffic>::default();
    index.replace_tiers(&|name| {
        let bytes = volume.read(name).unwrap();
        Arc::new(Counted {
            inner: Arc::new(Faulty::new(Arc::new(DramTier::new(bytes)), faults.clone())),
            traffic: traffic.clone(),
            slow: if name.starts_with("vectors") { 0 } else { slow },
            vectors: name.starts_with("vectors").then(|| name.to_owned()),
        })
    });
    (index, traffic)
}

/// Searches for a single query, with a head of K + B = 20 candidates.
fn alone(index: &Index, query: usize, strategy: Strategy, beam: usize) -> SearchResults {
    let queries = &small().queries;
    let row = queries.dim() * queries.element().size();
    let mut bytes = vec![0; row];
    queries.read(query, &mut bytes).unwrap();
    let query = Matrix::new(bytes, 1, queries.dim(), queries.element()).unwrap();
    let options = SearchOptions {
        strategy: Some(strategy),
        beam: Some(beam),
        list: 60,
        ..options(Preset::DECOUPLEVS)
    };
    index.search(&query, &options).unwrap()
}

#[test]
fn vectors_are_prefetched_and_reads_never_exceed_the_beam() {
    for (strategy, beam) in [Strategy::Pipelined, Strategy::BestFirst]
        .into_iter()
        .flat_map(|strategy| [2, 4, 8].map(|beam| (strategy, beam)))
    {
        let mut best = 0;
        for faults in [
            Faults::none(),
            Faults::none().random_order(3),
            Faults::none().randomly(0.3, 7, Fault::Delay(2)),
        ] {
            let (index, traffic) = counted(&faults);
            for query in 0..30 {
                traffic.prefetched.store(0, Ordering::Relaxed);
                let found = alone(&index, query, strategy, beam);
                let seen = traffic.prefetched.load(Ordering::Relaxed);
                best = best.max(seen);
                let prefetched = found.counters.prefetched as usize;
                // Some prefetches may begin after the last page of the graph has arrived.
                assert!(prefetched >= seen, "{prefetched}, but {seen} were seen");
            }
            let most = traffic.most.load(Ordering::Relaxed);
            assert!(
                most <= beam,
                "{strategy}, W = {beam}: {most} reads in flight"
            );
            // At the start, no vectors are prefetched, so graph reads use the whole beam width.
            let widest = traffic.widest.load(Ordering::Relaxed);
            assert_eq!(
                widest, beam,
                "{strategy}: the most concurrent reads of the graph"
            );
        }
        assert!(best > 0, "{strategy}, W = {beam}: no vector was prefetched");
    }
}

#[test]
fn what_was_prefetched_is_not_read_again() {
    let (index, traffic) = counted(&Faults::none());
    let mut prefetched = 0;
    for (strategy, query) in [Strategy::Pipelined, Strategy::BestFirst]
        .into_iter()
        .flat_map(|strategy| (0..30).map(move |query| (strategy, query)))
    {
        traffic.pages.lock().clear();
        let found = alone(&index, query, strategy, 8).counters;
        let pages = traffic.pages.lock().len() as u64;
        assert_eq!(found.vector_reads, pages, "{strategy}, query {query}");
        prefetched += found.prefetched;
    }
    assert!(prefetched > 0);
}

#[test]
fn free_reads_are_used_again_until_the_whole_head_is_here() {
    let (folder, queries) = rerank::wide();
    const BEAM: usize = 4;
    let rerank = Rerank {
        batch: 50,
        ..Rerank::PAPER
    };
    let options = SearchOptions {
        list: 200,
        beam: Some(BEAM),
        rerank: Some(rerank),
        ..options(Preset::DECOUPLEVS)
    };
    let head = options.k + rerank.batch;
    // During one read of the graph, there is time for all vectors of the head.
    let (index, traffic) = counted_at(&folder.path().join("index"), &Faults::none(), 1_000);
    let mut all = 0;
    for query in 0..queries.rows() {
        let query = rerank::query_of(queries, query);
        let found = index.search(&query, &options).unwrap().counters;
        // A page may begin with the end of an earlier record.
        let after = (found.vector_reads - found.prefetched) as usize;
        all += usize::from(found.prefetched as usize > head - 2 * BEAM && after <= rerank.batch);
    }
    assert!(traffic.most.load(Ordering::Relaxed) <= BEAM);
    assert_eq!(traffic.widest.load(Ordering::Relaxed), BEAM);
    assert!(
        10 * all >= 8 * queries.rows(),
        "{all} of {}",
        queries.rows()
    );
}
