//! Scans read through the open tiers of the index, and need little memory.

use std::cell::Cell;
use std::fmt;
use std::future::poll_fn;
use std::task::{Context, Poll};

use stratann_tier::{Completion, ReadQueue, Request, Tier};

use super::deleted::{ROWS, built, live_with, normal, presets};
use super::*;
use crate::Update;
use crate::stores::Pages;

fn at_random(kept: usize) -> Vec<u64> {
    let mut ids: Vec<u64> = (0..ROWS as u64).collect();
    let order = |id: &u64| (id + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(29);
    ids.sort_by_key(|id| order(id).wrapping_mul(0xD6E8_FEB8_6659_FD93));
    ids.split_off(kept)
}

fn listed(list: usize) -> SearchOptions {
    SearchOptions {
        list,
        ..SearchOptions::default()
    }
}

/// With `update`, some vectors were also inserted and deleted.
fn few_left(
    folder: &std::path::Path,
    preset: Preset,
    update: Option<Update>,
    kept: usize,
) -> (PathBuf, Vec<u64>) {
    let path = built(folder, preset, None);
    let index = live_with(&path, update);
    let gone = at_random(kept);
    if update.is_some() {
        let ids: Vec<u64> = (5_000..5_040).collect();
        index.insert(&normal(40, 5), Some(&ids), &Silent).unwrap();
        index.delete(&ids).unwrap();
    }
    index.delete(&gone).unwrap();
    index.flush().unwrap();
    let kept = (0..ROWS as u64).filter(|id| !gone.contains(id)).collect();
    (path, kept)
}

fn cases() -> Vec<(Preset, Option<Update>)> {
    let direct = [
        (Preset::DISKANN, Some(Update::Relocate)),
        (Preset::STRATANN, Some(Update::Accumulate)),
        (Preset::DECOUPLEVS, Some(Update::Accumulate)),
        (Preset::AISAQ, Some(Update::InPlace)),
    ];
    let built = presets().map(|preset| (preset, None));
    direct.into_iter().chain(built).collect()
}

#[test]
fn a_list_with_room_for_all_that_are_left_answers_exactly() {
    let folder = tempfile::tempdir().unwrap();
    let queries = normal(20, 99);
    let rows = normal(ROWS, 7);
    for (case, (preset, update)) in cases().into_iter().enumerate() {
        let folder = folder.path().join(case.to_string());
        std::fs::create_dir(&folder).unwrap();
        let (path, kept) = few_left(&folder, preset, update, 20);
        let index = Index::open(&path, &OpenOptions::default()).unwrap();
        let mut bytes = Vec::new();
        for &id in &kept {
            let mut row = vec![0; rows.dim() * rows.element().size()];
            rows.read(id as usize, &mut row).unwrap();
            bytes.extend(row);
        }
        let left = Matrix::new(bytes, kept.len(), rows.dim(), rows.element()).unwrap();
        let truth = brute_force(&left, &queries, 10, Metric::L2, 1, &Silent).unwrap();
        for list in [20, 50] {
            let found = index.search(&queries, &listed(list)).unwrap();
            let places: Vec<u64> = found
                .ids
                .iter()
                .map(|id| kept.iter().position(|kept| kept == id).unwrap() as u64)
                .collect();
            let recall = truth.recall(&places, &found.distances, 10).unwrap();
            assert_eq!(recall, 1.0, "{preset}, {update:?}, list of {list}");
        }
    }
}

#[test]
fn all_vectors_are_found_when_the_names_of_their_files_are_gone() {
    let folder = tempfile::tempdir().unwrap();
    let queries = normal(4, 99);
    for (case, (preset, update)) in cases().into_iter().enumerate() {
        let folder = folder.path().join(case.to_string());
        std::fs::create_dir(&folder).unwrap();
        let (path, kept) = few_left(&folder, preset, update, 40);
        let index = Index::open(&path, &OpenOptions::default()).unwrap();
        // Codes and similar files are loaded by name at their first use.
        index.search(&queries, &listed(10)).unwrap();
        // The files are removed, as by a merge in another process.
        for entry in std::fs::read_dir(&path).unwrap() {
            let entry = entry.unwrap();
            let name = entry.file_name().into_string().unwrap();
            if name.starts_with("graph") || name.starts_with("vectors") {
                std::fs::remove_file(entry.path()).unwrap();
            }
        }
        // With the second list size, a walk runs before the scan.
        for (k, list) in [(40, 60), (39, 39)] {
            let wide = SearchOptions { k, ..listed(list) };
            let found = index.search(&queries, &wide);
            let found = found.unwrap_or_else(|error| panic!("{preset}, {update:?}: {error}"));
            for ids in found.ids.chunks(k) {
                let met = ids.iter().filter(|id| kept.contains(id)).count();
                assert_eq!(met, k, "{preset}, {update:?}, list of {list}");
            }
        }
    }
}

#[derive(Default)]
struct Traffic {
    doors: AtomicUsize,
    most_doors: AtomicUsize,
    bytes: AtomicUsize,
    most_bytes: AtomicUsize,
    read: AtomicUsize,
}

struct Watched(Arc<dyn Tier>, Arc<Traffic>);

impl fmt::Debug for Watched {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Watched({:?})", self.0)
    }
}

impl Tier for Watched {
    fn name(&self) -> &str {
        self.0.name()
    }

    fn len(&self) -> u64 {
        self.0.len()
    }

    fn granularity(&self) -> u32 {
        self.0.granularity()
    }

    fn queue(&self, thread: &Thread) -> Result<Box<dyn ReadQueue>, TierError> {
        let doors = self.1.doors.fetch_add(1, Ordering::Relaxed) + 1;
        self.1.most_doors.fetch_max(doors, Ordering::Relaxed);
        let queue = self.0.queue(thread)?;
        Ok(Box::new(WatchedQueue(queue, self.1.clone(), 0)))
    }
}

struct WatchedQueue(Box<dyn ReadQueue>, Arc<Traffic>, usize);

impl WatchedQueue {
    fn took(&mut self, done: &Completion) {
        if let Ok(block) = &done.result {
            self.1.bytes.fetch_sub(block.len(), Ordering::Relaxed);
            self.2 -= block.len();
        }
    }
}

impl Drop for WatchedQueue {
    fn drop(&mut self) {
        self.1.doors.fetch_sub(1, Ordering::Relaxed);
        self.1.bytes.fetch_sub(self.2, Ordering::Relaxed);
    }
}

impl ReadQueue for WatchedQueue {
    fn submit(&mut self, request: Request) -> Result<(), TierError> {
        self.0.submit(request)?;
        let len = request.len as usize;
        self.2 += len;
        self.1.read.fetch_add(len, Ordering::Relaxed);
        let bytes = self.1.bytes.fetch_add(len, Ordering::Relaxed) + len;
        self.1.most_bytes.fetch_max(bytes, Ordering::Relaxed);
        Ok(())
    }

    fn flush(&mut self) {
        self.0.flush();
    }

    fn in_flight(&self) -> usize {
        self.0.in_flight()
    }

    fn try_next(&mut self) -> Option<Completion> {
        let done = self.0.try_next()?;
        self.took(&done);
        Some(done)
    }

    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Completion> {
        let polled = self.0.poll_next(cx);
        if let Poll::Ready(done) = &polled {
            self.took(done);
        }
        polled
    }

    fn reset(&mut self) {
        self.0.reset();
    }
}

/// No vector has this id.
const GONE: u64 = 1 << 40;

#[test]
fn a_scan_holds_a_few_pages_and_a_door_however_many_segments_there_are() {
    // Without a deleted id, the search would walk in place of a scan.
    for stored in [COUPLED, BEST] {
        let traffic = Arc::new(Traffic::default());
        let index = Index::open(path(stored), &OpenOptions::default()).unwrap();
        let mut index = index.with_deleted(GONE).unwrap();
        let segments = index.graph().segments.as_ref().map_or(0, |s| s.len());
        let volume = stratann_tier::Directory::open(path(stored)).unwrap();
        index.replace_tiers(&|name| {
            let bytes = volume.read(name).unwrap();
            Arc::new(Watched(Arc::new(DramTier::new(bytes)), traffic.clone()))
        });
        let one = SearchOptions {
            in_flight: Some(1),
            ..listed(DESCRIPTORS)
        };
        let found = index.search(&small().queries, &one).unwrap();
        assert_eq!(recall(&found), 1.0, "{stored:?}");
        let (graph, vectors) = index.graph().files();
        let pages = if segments > 0 { vectors } else { graph };
        assert!(segments != 1);
        let read = traffic.read.load(Ordering::Relaxed);
        assert!(
            read as u64 >= pages.pages * pages.page_bytes as u64,
            "{stored:?}: {read}"
        );
        let most = traffic.most_bytes.load(Ordering::Relaxed);
        assert!(most <= 16 * pages.page_bytes, "{stored:?}: {most} bytes");
        // The walker has one open queue, and the scan has another.
        assert_eq!(traffic.most_doors.load(Ordering::Relaxed), 2, "{stored:?}");
    }
}

#[test]
fn a_scan_looks_again_where_a_page_is_damaged_and_never_passes_over_an_error() {
    let queries = &small().queries;
    for stored in [COUPLED, INLINE, BEST] {
        let vectors: fn(&str) -> bool = match stored {
            BEST => |name| name.ends_with("-0001"),
            _ => |_| true,
        };
        let all = listed(DESCRIPTORS);
        let once = hitting(
            vectors,
            stored,
            Faults::none().at_read(2, Fault::Flip(12_345)),
        );
        let once = once.with_deleted(GONE).unwrap();
        assert_eq!(
            recall(&once.search(queries, &all).unwrap()),
            1.0,
            "{stored:?}"
        );
        let pages = 4096..u64::MAX;
        for (fault, says) in [
            (Fault::Error(5), "byte"),
            (Fault::Error(24), "too many open files"),
            (Fault::Flip(12_345), "checksum"),
        ] {
            let faults = Faults::none().in_range(pages.clone(), fault);
            let index = hitting(vectors, stored, faults);
            let error = index.with_deleted(GONE).unwrap().search(queries, &all);
            let error = error.unwrap_err().to_string();
            assert!(error.contains(says), "{stored:?}, {fault:?}: {error}");
        }
    }
}

#[test]
fn other_tasks_of_a_thread_go_on_beside_a_scan() {
    // If all pages are in memory, the scan never waits for a read.
    let resident = OpenOptions {
        memory: Some(64 << 20),
        ..OpenOptions::default()
    };
    for open in [OpenOptions::default(), resident] {
        let index = Index::open(path(COUPLED), &open).unwrap();
        let Pages::Coupled(pages) = &index.graph().pages else {
            panic!("the layout is not coupled");
        };
        let thread = Thread::local(stratann_tier::IoMode::Auto).unwrap();
        let (turns, done) = (Cell::new(0), Cell::new(false));
        let scan = Scan {
            index: &index,
            thread: &thread,
            progress: &Silent,
            admission: Admission::default(),
            among: None,
        };
        let scanned = Box::pin(async {
            let (mut counters, mut met) = (Counters::default(), 0);
            let mut each = |_, _, _: &[u8], _: &[u8]| met += 1;
            let all = scan.each_vector(pages, &mut counters, &mut each).await;
            all.unwrap();
            assert_eq!(met, DESCRIPTORS);
            done.set(true);
        });
        let other = Box::pin(poll_fn(|cx| {
            turns.set(turns.get() + 1);
            cx.waker().wake_by_ref();
            match done.get() {
                true => Poll::Ready(()),
                false => Poll::Pending,
            }
        }));
        thread.run_all(vec![scanned, other]);
        assert!(turns.get() > 3, "{} turns", turns.get());
    }
}
