//! Submitted searches over slow or failing tiers, which must release all resources at their end.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use stratann_tier::testing::Slow;
use stratann_tier::{Directory, ReadQueue, Tier};

use super::*;
use crate::room::Wanted;

/// A time that a step of these tests exceeds only if it hangs.
const LONG: Duration = Duration::from_secs(300);

/// An index in memory whose reads take `latency`.
fn slow_at(path: &std::path::Path, latency: Duration, memory: Option<u64>) -> (Arc<Index>, Slow) {
    let open = OpenOptions {
        memory,
        ..OpenOptions::default()
    };
    let mut index = Index::open(path, &open).unwrap();
    let volume = Directory::open(path).unwrap();
    let mut tiers = Vec::new();
    let tiers = std::cell::RefCell::new(&mut tiers);
    index.replace_tiers(&|name| {
        let memory = DramTier::new(volume.read(name).unwrap());
        let slow = Slow::new(Arc::new(memory), latency);
        tiers.borrow_mut().push(slow.clone());
        Arc::new(slow)
    });
    // The first tier is the tier of the graph.
    let graph = tiers.into_inner()[0].clone();
    (Arc::new(index), graph)
}

fn slow(stored: Stored, latency: Duration) -> (Arc<Index>, Slow) {
    slow_at(&path(stored), latency, None)
}

fn all() -> Matrix {
    small().queries.clone()
}

fn some(rows: usize) -> Matrix {
    head(&fixture("photo-sift-20k.query.u8bin"), rows)
}

fn plain() -> SearchOptions {
    options(Preset::DISKANN)
}

fn until(what: &str, met: impl Fn() -> bool) {
    let start = Instant::now();
    while !met() {
        assert!(start.elapsed() < LONG, "{what}");
        std::thread::sleep(Duration::from_micros(100));
    }
}

fn alone(index: &Arc<Index>) -> bool {
    Arc::strong_count(index) == 1
}

fn same(found: &SearchResults, expected: &SearchResults, what: &str) {
    assert_eq!(found.ids, expected.ids, "{what}");
    assert_eq!(found.distances, expected.distances, "{what}");
    assert_eq!(found.counters, expected.counters, "{what}");
}

#[test]
fn a_submitted_search_answers_as_one_that_is_waited_for() {
    for stored in STORED {
        for (threads, in_flight) in [(1, 1), (2, 3)] {
            let options = SearchOptions {
                threads,
                in_flight: Some(in_flight),
                parts: true,
                ..plain()
            };
            let index = Arc::new(stored_under(stored, Faults::none()));
            let expected = index.search(&all(), &options).unwrap();
            let found = index.submit(all(), &options, None).unwrap().wait().unwrap();
            same(&found, &expected, &format!("{stored:?}, {threads} threads"));
            assert!(found.parts.is_some() && found.seconds > 0.0 && found.cpu_seconds > 0.0);
            assert!(found.latencies_us.iter().all(|&latency| latency > 0.0));
            assert!(alone(&index), "{stored:?}");
        }
    }
}

#[test]
fn wrong_arguments_are_refused_at_once() {
    let index = Arc::new(under(Faults::none()));
    for options in [
        SearchOptions { k: 0, ..plain() },
        SearchOptions { list: 3, ..plain() },
    ] {
        let error = index.submit(all(), &options, None).unwrap_err();
        assert!(error.is_call_wrong(), "{error}");
    }
    assert!(alone(&index));
}

#[test]
fn a_deadline_that_has_passed_reads_nothing() {
    let (index, tier) = slow(COUPLED, Duration::ZERO);
    let late = index.submit(all(), &plain(), Some(Instant::now())).unwrap();
    assert!(late.is_done());
    assert!(matches!(late.wait(), Err(Error::DeadlineExceeded)));
    assert_eq!(tier.reads(), 0);
    assert!(alone(&index));
}

#[test]
fn a_deadline_ends_a_slow_search() {
    for stored in [COUPLED, BEST, INLINE] {
        let (index, tier) = slow(stored, Duration::from_millis(20));
        for (threads, in_flight) in [(1, 1), (2, 4)] {
            let options = SearchOptions {
                threads,
                in_flight: Some(in_flight),
                ..plain()
            };
            let deadline = Instant::now() + Duration::from_millis(1);
            let outcome = index
                .submit(all(), &options, Some(deadline))
                .unwrap()
                .wait();
            assert!(
                matches!(outcome, Err(Error::DeadlineExceeded)),
                "{stored:?}"
            );
            assert!(Instant::now() >= deadline && alone(&index));
        }
        assert!(tier.reads() < 100, "{stored:?}: {}", tier.reads());
        let far = Instant::now() + 10 * LONG;
        let found = index.submit(some(2), &plain(), Some(far)).unwrap().wait();
        let expected = stored_under(stored, Faults::none()).search(&some(2), &plain());
        same(&found.unwrap(), &expected.unwrap(), &format!("{stored:?}"));
    }
}

#[test]
fn one_that_is_cancelled_or_dropped_leaves_nothing_behind() {
    let direct = fixture("index-v4-direct");
    let expected = Index::open(&direct, &OpenOptions::default())
        .unwrap()
        .search(&some(3), &plain())
        .unwrap();
    let (index, tier) = slow_at(&direct, Duration::from_millis(5), None);
    for drops in [false, true] {
        let before = tier.reads();
        let search = index.submit(all(), &plain(), None).unwrap();
        until("it reads", || tier.reads() > before + 3);
        let graph = index.graph();
        let pins = &graph.placement.get().unwrap().pins;
        let moment = pins.advance();
        match drops {
            true => drop(search),
            false => {
                search.cancel();
                assert!(matches!(search.wait(), Err(Error::Interrupted)));
                assert!(alone(&index));
            }
        }
        until("the index is let go", || alone(&index));
        assert!(pins.oldest() > moment, "a pin stays");
    }
    let found = index.submit(some(3), &plain(), None).unwrap().wait();
    same(&found.unwrap(), &expected, "afterwards");
}

#[test]
fn it_goes_on_when_all_handles_of_the_index_are_dropped() {
    let expected = under(Faults::none()).search(&some(5), &plain()).unwrap();
    let (index, tier) = slow(COUPLED, Duration::from_millis(1));
    let search = index.submit(some(5), &plain(), None).unwrap();
    until("it reads", || tier.reads() > 0);
    drop(index);
    same(&search.wait().unwrap(), &expected, "without a handle");
    let (index, tier) = slow(COUPLED, Duration::from_millis(1));
    let search = index.submit(some(5), &plain(), None).unwrap();
    until("it reads", || tier.reads() > 0);
    let watched = Arc::downgrade(&index);
    drop((index, search));
    until("the index is closed", || watched.upgrade().is_none());
}

#[test]
fn a_larger_pool_takes_the_place_of_one_that_still_searches() {
    let (index, tier) = slow(COUPLED, Duration::from_millis(2));
    let one = SearchOptions {
        threads: 1,
        ..plain()
    };
    let expected = index.search(&some(8), &one).unwrap();
    let before = tier.reads();
    let search = index.submit(some(8), &one, None).unwrap();
    until("it reads", || tier.reads() > before);
    let more = SearchOptions {
        threads: crate::threads::processors() + 3,
        ..plain()
    };
    same(
        &index.search(&some(8), &more).unwrap(),
        &expected,
        "more threads",
    );
    same(&search.wait().unwrap(), &expected, "on the threads before");
    assert!(alone(&index));
}

#[test]
fn a_thousand_at_once_are_all_answered() {
    let (index, _) = slow(COUPLED, Duration::from_millis(1));
    let expected = under(Faults::none()).search(&all(), &plain()).unwrap();
    let queries = all();
    let one = |row: usize| {
        let bytes = queries.row(row).to_vec();
        Matrix::new(bytes, 1, queries.dim(), queries.element()).unwrap()
    };
    let searches: Vec<_> = (0..1_000)
        .map(|number| index.submit(one(number % 100), &plain(), None).unwrap())
        .collect();
    for (number, search) in searches.into_iter().enumerate() {
        let found = search.wait().unwrap();
        let at = 10 * (number % 100);
        assert_eq!(found.ids, expected.ids[at..at + 10], "{number}");
        assert_eq!(found.distances, expected.distances[at..at + 10]);
    }
    assert!(alone(&index));
}

fn narrow(latency: Duration) -> (Arc<Index>, Slow, SearchOptions) {
    let least = {
        let open = OpenOptions {
            memory: Some(1),
            ..OpenOptions::default()
        };
        match Index::open(path(COUPLED), &open) {
            Err(Error::Memory { needs, .. }) => needs,
            other => panic!("{other:?}"),
        }
    };
    let (index, tier) = slow_at(&path(COUPLED), latency, Some(least));
    let options = SearchOptions {
        list: 400,
        navigation: Some(false),
        in_flight: Some(4),
        ..plain()
    };
    assert!(index.most_at_once(400, 8) <= 1);
    (index, tier, options)
}

#[test]
fn room_is_waited_for_by_nobody_and_comes_back() {
    let (index, tier, options) = narrow(Duration::from_millis(2));
    let expected = index.search(&some(2), &options).unwrap();
    let soon = || Some(Instant::now() + Duration::from_millis(5));
    for _ in 0..3 {
        let before = tier.reads();
        let first = index.submit(all(), &options, None).unwrap();
        until("it reads", || tier.reads() > before);
        // These searches must wait for memory without occupying the thread.
        let late = index.submit(some(2), &options, soon()).unwrap();
        let stopped = index.submit(some(2), &options, None).unwrap();
        let dropped = index.submit(some(2), &options, None).unwrap();
        let waits = index.submit(some(2), &options, None).unwrap();
        assert!(matches!(late.wait(), Err(Error::DeadlineExceeded)));
        stopped.cancel();
        assert!(matches!(stopped.wait(), Err(Error::Interrupted)));
        drop(dropped);
        assert!(!first.is_done() && !waits.is_done());
        std::thread::scope(|scope| {
            let blocked = scope.spawn(|| index.search(&some(2), &options).unwrap());
            std::thread::sleep(Duration::from_millis(5));
            assert!(!blocked.is_finished() && !waits.is_done());
            first.cancel();
            assert!(matches!(first.wait(), Err(Error::Interrupted)));
            same(&waits.wait().unwrap(), &expected, "it waited");
            same(&blocked.join().unwrap(), &expected, "its thread waited");
        });
        until("the index is let go", || alone(&index));
    }
    let room = index.room(400, 0, Wanted::all(1)).at_once();
    assert!(room.is_some() && index.room(400, 0, Wanted::all(1)).at_once().is_none());
}

#[test]
fn handles_are_waited_for_awaited_and_told() {
    let (index, _) = slow(COUPLED, Duration::from_millis(1));
    let expected = under(Faults::none()).search(&some(2), &plain()).unwrap();
    let submit = || index.submit(some(2), &plain(), None).unwrap();
    let mut search = submit();
    let found = loop {
        match search.wait_timeout(Duration::from_micros(300)) {
            Ok(found) => break found,
            Err(again) => search = again,
        }
    };
    same(&found.unwrap(), &expected, "waited for in turns");
    let forever = submit().wait_timeout(Duration::MAX).unwrap();
    same(&forever.unwrap(), &expected, "waited for");
    let thread = Thread::local(stratann_tier::IoMode::Auto).unwrap();
    let (first, second) = (submit(), submit());
    let both = thread.block_on(async { (first.await, second.await) });
    same(&both.0.unwrap(), &expected, "the first");
    same(&both.1.unwrap(), &expected, "the second");
    for late in [false, true] {
        let (send, told) = std::sync::mpsc::channel();
        let search = submit();
        if late {
            until("it ends", || search.is_done());
        }
        search.notify(move || send.send(()).unwrap());
        told.recv_timeout(LONG).unwrap();
        assert!(search.is_done());
        same(&search.wait().unwrap(), &expected, "told of");
    }
    let search = submit();
    search.notify(|| panic!("on purpose"));
    let outcome = catch_unwind(AssertUnwindSafe(|| until("it ends", || search.is_done())));
    assert!(outcome.is_ok());
    same(
        &submit().wait().unwrap(),
        &expected,
        "after a panic of another's",
    );
}

/// Panics at the first read while `now` is set.
#[derive(Debug)]
struct Broken {
    inner: Arc<dyn Tier>,
    now: Arc<AtomicBool>,
}

impl Tier for Broken {
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
        assert!(!self.now.load(Ordering::SeqCst), "on purpose");
        self.inner.queue(thread)
    }
}

#[test]
fn a_panic_and_an_error_reach_whoever_waits() {
    let now = Arc::new(AtomicBool::new(true));
    let mut index = Index::open(path(COUPLED), &OpenOptions::default()).unwrap();
    let volume = Directory::open(path(COUPLED)).unwrap();
    index.replace_tiers(&|name| {
        Arc::new(Broken {
            inner: Arc::new(DramTier::new(volume.read(name).unwrap())),
            now: now.clone(),
        })
    });
    let index = Arc::new(index);
    let search = index.submit(some(2), &plain(), None).unwrap();
    let panic = catch_unwind(AssertUnwindSafe(|| search.wait())).unwrap_err();
    assert_eq!(panic.downcast_ref::<&str>(), Some(&"on purpose"));
    until("the index is let go", || alone(&index));
    // No caller waits for this search.
    drop(index.submit(some(2), &plain(), None).unwrap());
    until("the index is let go", || alone(&index));
    now.store(false, Ordering::SeqCst);
    let found = index.submit(some(2), &plain(), None).unwrap().wait();
    let expected = under(Faults::none()).search(&some(2), &plain());
    same(&found.unwrap(), &expected.unwrap(), "the threads go on");

    let index = Arc::new(under(Faults::none().at_read(5, Fault::Error(5))));
    let error = index.submit(all(), &plain(), None).unwrap().wait();
    assert!(matches!(error, Err(Error::Tier(_))), "{error:?}");
}

#[test]
fn one_whose_pages_are_in_memory_is_ended_between_queries() {
    let open = OpenOptions {
        memory: Some(64 << 20),
        ..OpenOptions::default()
    };
    let index = Arc::new(Index::open(path(COUPLED), &open).unwrap());
    let many = Matrix::new(
        all().bytes().repeat(200),
        20_000,
        all().dim(),
        all().element(),
    );
    let long = SearchOptions {
        list: 400,
        ..plain()
    };
    let search = index.submit(many.unwrap(), &long, None).unwrap();
    // A later search on the same thread keeps its own deadline.
    let soon = Instant::now() + Duration::from_millis(3);
    let short = index.submit(some(1), &plain(), None).unwrap().wait();
    assert!(short.is_ok() && !search.is_done());
    let late = index.submit(all(), &long, Some(soon)).unwrap().wait();
    assert!(matches!(late, Err(Error::DeadlineExceeded)) && !search.is_done());
    search.cancel();
    assert!(matches!(search.wait(), Err(Error::Interrupted)));
    assert!(alone(&index));
}
