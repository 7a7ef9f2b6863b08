//! Searches during which changes run. A search finds either the old or the new vector of a replaced
//! id. A merge that commits during a search does not affect this search.

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use stratann_tier::{
    Completion, LockGuard, Note, ReadQueue, Request, Thread, Tier, TierError, VolumeFile,
    VolumeReader,
};

use super::*;
use crate::data::{DataError, VectorSource};
use crate::progress::Progress;
use crate::stores::topology::placement::NOWHERE;

type Deed = Box<dyn FnOnce() + Send>;

#[derive(Clone, Default)]
pub(super) struct Ambush(Arc<Mutex<Option<(u64, Deed)>>>);

impl std::fmt::Debug for Ambush {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Ambush")
    }
}

impl Ambush {
    pub(super) fn set(&self, reads: u64, deed: Deed) {
        *self.0.lock() = Some((reads, deed));
    }

    pub(super) fn is_over(&self) -> bool {
        self.0.lock().take().is_none()
    }

    fn read(&self) {
        let mut set = self.0.lock();
        match &mut *set {
            Some((0, _)) => {
                let deed = set.take();
                // The action searches too, so the lock is released first.
                drop(set);
                if let Some((_, deed)) = deed {
                    deed();
                }
            }
            Some((reads, _)) => *reads -= 1,
            None => {}
        }
    }
}

#[derive(Clone, Debug)]
struct Watched {
    volume: SimVolume,
    ambush: Ambush,
}

impl Volume for Watched {
    fn name(&self) -> String {
        self.volume.name()
    }
    fn create(&self, name: &str) -> Result<Box<dyn VolumeFile>, TierError> {
        self.volume.create(name)
    }
    fn open(&self, name: &str) -> Result<Box<dyn VolumeFile>, TierError> {
        self.volume.open(name)
    }
    fn read(&self, name: &str) -> Result<Vec<u8>, TierError> {
        self.volume.read(name)
    }
    fn read_at(&self, name: &str, offset: u64, out: &mut [u8]) -> Result<(), TierError> {
        self.volume.read_at(name, offset, out)
    }
    fn open_reader(&self, name: &str) -> Result<Box<dyn VolumeReader>, TierError> {
        self.volume.open_reader(name)
    }
    fn len(&self, name: &str) -> Result<u64, TierError> {
        self.volume.len(name)
    }
    fn open_tier(&self, name: &str) -> Result<Arc<dyn Tier>, TierError> {
        Ok(Arc::new(WatchedTier {
            tier: self.volume.open_tier(name)?,
            ambush: self.ambush.clone(),
        }))
    }
    fn rename(&self, from: &str, to: &str) -> Result<(), TierError> {
        self.volume.rename(from, to)
    }
    fn remove(&self, name: &str) -> Result<(), TierError> {
        self.volume.remove(name)
    }
    fn list(&self) -> Result<Vec<String>, TierError> {
        self.volume.list()
    }
    fn sync(&self) -> Result<(), TierError> {
        Volume::sync(&self.volume)
    }
    fn lock(&self) -> Result<LockGuard, TierError> {
        self.volume.lock()
    }
    fn has_other_names(&self, name: &str) -> Result<bool, TierError> {
        self.volume.has_other_names(name)
    }
    fn note(&self) -> Option<Arc<Note>> {
        self.volume.note()
    }
}

#[derive(Debug)]
struct WatchedTier {
    tier: Arc<dyn Tier>,
    ambush: Ambush,
}

impl Tier for WatchedTier {
    fn name(&self) -> &str {
        self.tier.name()
    }
    fn len(&self) -> u64 {
        self.tier.len()
    }
    fn granularity(&self) -> u32 {
        self.tier.granularity()
    }
    fn reopen(&self) -> Result<(), TierError> {
        self.tier.reopen()
    }
    fn queue(&self, thread: &Thread) -> Result<Box<dyn ReadQueue>, TierError> {
        Ok(Box::new(WatchedQueue {
            queue: self.tier.queue(thread)?,
            ambush: self.ambush.clone(),
        }))
    }
}

struct WatchedQueue {
    queue: Box<dyn ReadQueue>,
    ambush: Ambush,
}

impl ReadQueue for WatchedQueue {
    fn submit(&mut self, request: Request) -> Result<(), TierError> {
        self.ambush.read();
        self.queue.submit(request)
    }
    fn flush(&mut self) {
        self.queue.flush();
    }
    fn in_flight(&self) -> usize {
        self.queue.in_flight()
    }
    fn try_next(&mut self) -> Option<Completion> {
        self.queue.try_next()
    }
    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Completion> {
        self.queue.poll_next(cx)
    }
    fn reset(&mut self) {
        self.queue.reset();
    }
}

const MANY: u64 = 500;

/// A vector that differs from the first vector of an id in one bit, which `version` chooses.
pub(super) fn nearly(case: Case, id: u64, version: u64) -> Matrix {
    let mut bytes = vector(id, 0);
    let at = (version as usize - 1) % DIM;
    bytes[at] ^= 1;
    let bytes = bytes.repeat(case.dim() / DIM);
    Matrix::new(bytes, 1, case.dim(), Element::U8).unwrap()
}

pub(super) fn watched(case: Case, folder: &Path) -> (Arc<LiveIndex>, Ambush) {
    let ambush = Ambush::default();
    let live = watched_on(case, base_of(case, MANY, folder), &ambush, folder);
    (live, ambush)
}

pub(super) fn watched_on(
    case: Case,
    volume: SimVolume,
    ambush: &Ambush,
    folder: &Path,
) -> Arc<LiveIndex> {
    let ambush = ambush.clone();
    let volume = Watched { volume, ambush };
    let live = open_on(case, Arc::new(volume), folder, Durability::OnFlush).unwrap();
    Arc::new(live)
}

fn nearest(live: &LiveIndex, id: u64) -> u64 {
    nearest_with(live, id, 100)
}

/// With a list for all nodes, the search examines each node, and does not walk.
fn nearest_with(live: &LiveIndex, id: u64, list: usize) -> u64 {
    let options = SearchOptions {
        k: 1,
        list,
        threads: 1,
        ..SearchOptions::default()
    };
    let query = wide_rows(live.index().dim(), &[id], 0);
    live.search(&query, &options).unwrap().ids[0]
}

/// A search waits a tenth of a second for a node that moves between pages, and then gives up on
/// this node. A search that took less than this time gave up on no node.
const GIVES_UP: Duration = Duration::from_millis(90);

/// A preempted writer may move a node for longer than a search waits, so a search that gave up is
/// repeated. A dozen such searches in a row count as a defect.
fn is_found(live: &LiveIndex, id: u64) -> bool {
    for _ in 0..12 {
        let since = Instant::now();
        if nearest(live, id) == id {
            return true;
        }
        if since.elapsed() < GIVES_UP {
            return false;
        }
    }
    false
}

#[test]
fn a_search_that_an_upsert_overtakes_finds_the_old_vector_or_the_new_one() {
    for case in CASES {
        let folder = tempfile::tempdir().unwrap();
        let (live, ambush) = watched(case, folder.path());
        let mut came = 0;
        for (reads, id) in (0..10).zip((3..).step_by(41)) {
            assert_eq!(nearest(&live, id), id, "{case:?}, before");
            for version in 1..4 {
                let deed = live.clone();
                let deed = move || {
                    deed.upsert(&nearly(case, id, version), &[id], &Silent)
                        .unwrap()
                };
                ambush.set(reads, Box::new(deed));
                let found = nearest(&live, id);
                came += u64::from(ambush.is_over());
                assert_eq!(found, id, "{case:?}, version {version} before read {reads}");
                assert_eq!(nearest(&live, id), id, "{case:?}, afterwards");
            }
        }
        // In a cluster index, the search probes one cluster, with one read.
        let least = if case.0.has_clusters() { 3 } else { 4 };
        assert!(
            came >= least,
            "{case:?}: only {came} searches were overtaken"
        );
    }
}

#[test]
fn searches_beside_upserts_always_find_a_version() {
    for case in CASES {
        let folder = tempfile::tempdir().unwrap();
        let (live, _) = watched(case, folder.path());
        let (stop, missed, made) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
        let ids: Vec<u64> = (0..8).map(|at| 11 + 31 * at).collect();
        thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    while !stop.load(Ordering::Relaxed) {
                        for &id in &ids {
                            made.fetch_add(1, Ordering::Relaxed);
                            let found = is_found(&live, id);
                            missed.fetch_add(u64::from(!found), Ordering::Relaxed);
                        }
                    }
                });
            }
            for version in 1..9 {
                for &id in &ids {
                    live.upsert(&nearly(case, id, version), &[id], &Silent)
                        .unwrap();
                }
            }
            stop.store(true, Ordering::Relaxed);
        });
        for &id in &ids {
            assert_eq!(nearest(&live, id), id, "{case:?}, afterwards");
        }
        let (missed, made) = (missed.into_inner(), made.into_inner());
        assert_eq!(missed, 0, "{case:?}: of {made} searches");
    }
}

#[test]
fn a_search_waits_for_a_node_that_is_on_its_way_between_pages() {
    let mut moving = 0;
    for case in CASES {
        let folder = tempfile::tempdir().unwrap();
        let (live, _) = watched(case, folder.path());
        let index = live.index();
        let mut ids = Vec::new();
        each_vector(&index, &Silent, &mut |node, id, _| {
            ids.push((node, id));
            Ok(())
        })
        .unwrap();
        if index.has_clusters() {
            continue;
        }
        let placement = index.graph().placement.get();
        let Some(placement) = placement.filter(|placement| !placement.is_even()) else {
            continue;
        };
        moving += 1;
        live.delete(&[ids[1].1]).unwrap();
        for (at, &(node, id)) in ids.iter().step_by(101).enumerate() {
            // A search of all vectors must not take a moving node for an unfinished insert, and
            // must not look for the node on its former page.
            for list in [100, 2 * MANY as usize] {
                let moment = Duration::from_millis(if at == 0 { 500 } else { 30 });
                let page = placement.page_of(node);
                placement.relocate(node, NOWHERE);
                let found = thread::scope(|scope| {
                    let searching = scope.spawn(|| nearest_with(&live, id, list));
                    thread::sleep(moment);
                    placement.relocate(node, page);
                    searching.join().unwrap()
                });
                assert_eq!(found, id, "{case:?}, node {node}, list {list}");
            }
        }
    }
    assert!(moving > 3, "{moving}");
}

struct Held<'a> {
    rows: Matrix,
    begun: &'a Barrier,
    go_on: &'a Barrier,
    once: AtomicBool,
}

impl VectorSource for Held<'_> {
    fn rows(&self) -> usize {
        self.rows.rows()
    }
    fn dim(&self) -> usize {
        self.rows.dim()
    }
    fn element(&self) -> Element {
        self.rows.element()
    }
    fn name(&self) -> &str {
        "held queries"
    }
    fn read(&self, first: usize, out: &mut [u8]) -> Result<(), DataError> {
        if !self.once.swap(true, Ordering::Relaxed) {
            self.begun.wait();
            self.go_on.wait();
        }
        self.rows.read(first, out)
    }
}

struct Beside<F: Fn() + Sync> {
    deed: F,
    once: AtomicBool,
}

impl<F: Fn() + Sync> Progress for Beside<F> {
    fn begin(&self, _: &str, _: u64) {}
    fn advance(&self, _: u64) {}
    fn end(&self) {}
    fn warn(&self, _: &str) {}
    fn interrupted(&self) -> bool {
        if !self.once.swap(true, Ordering::Relaxed) {
            (self.deed)();
        }
        false
    }
}

#[test]
fn a_batch_that_began_before_a_merge_commits_finds_what_the_merge_digests() {
    for case in CASES.into_iter().filter(|case| !case.keeps()) {
        let folder = tempfile::tempdir().unwrap();
        let volume = base(case, folder.path());
        let live = open(case, &volume, folder.path(), Durability::OnFlush).unwrap();
        live.delete(&[3]).unwrap();
        let (begun, go_on) = (Barrier::new(2), Barrier::new(2));
        let ids = [500, 501, 7];
        let queries = Held {
            rows: rows(&ids, 1),
            begun: &begun,
            go_on: &go_on,
            once: AtomicBool::new(false),
        };
        let options = SearchOptions {
            k: 1,
            list: 60,
            threads: 1,
            in_flight: Some(1),
            ..SearchOptions::default()
        };
        thread::scope(|scope| {
            let (sender, receiver) = std::sync::mpsc::channel();
            let beside = Beside {
                deed: || {
                    live.upsert(&rows(&ids, 1), &ids, &Silent).unwrap();
                    let (live, queries, options) = (&live, &queries, &options);
                    let search = scope.spawn(move || live.search(queries, options).unwrap());
                    sender.send(search).unwrap();
                    begun.wait();
                },
                once: AtomicBool::new(false),
            };
            live.compact(&beside).unwrap();
            live.upsert(&rows(&[501], 2), &[501], &Silent).unwrap();
            live.delete(&[500]).unwrap();
            go_on.wait();
            let results = receiver.recv().unwrap().join().unwrap();
            assert_eq!(results.ids, ids, "{case:?}");
            assert!(results.distances.iter().all(|&d| d == 0.0), "{case:?}");
        });
    }
}
