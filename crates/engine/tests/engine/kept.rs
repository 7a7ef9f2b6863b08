//! Merges that leave segments of vectors unchanged (DecoupleVS §3.5), on real data.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use stratann::{
    BuildOptions, CompactReport, Compression, DirectOptions, Durability, Index, LiveIndex, Matrix,
    Metric, OpenOptions, Preset, RepairOptions, SearchOptions, Silent, Strategy, Update,
    VectorSource, WriteOptions, brute_force, build, repair, verify,
};
use stratann_layout::{
    BLOCK, ChunksFile, DeadSlots, FileKind, Manifest, SegmentSpan, StreamReader, stream,
};

use super::fixtures::{SIFT_BASE, SIFT_QUERIES, matrix};

#[derive(Clone, Copy)]
struct Data {
    name: &'static str,
    queries: &'static str,
    metric: Metric,
    /// The number of vectors of the build; the other vectors are inserted.
    built: u64,
    /// The number of vectors of a segment. `segment_bytes` is the size of a segment in bytes.
    segment: u64,
    segment_bytes: u64,
    chunk_bytes: u64,
}

const SIFT: Data = Data {
    name: SIFT_BASE,
    queries: SIFT_QUERIES,
    metric: Metric::L2,
    built: 1_100,
    segment: 128,
    segment_bytes: 16 << 10,
    chunk_bytes: 8 << 10,
};

const QUERIES: u64 = 100;

const TEXT: Data = Data {
    name: "package-text-2k.base.fbin",
    queries: "package-text-2k.query.fbin",
    metric: Metric::Cosine,
    built: 900,
    // A segment has ten chunks of ten vectors.
    segment: 100,
    segment_bytes: 10 * (16 << 10),
    chunk_bytes: 16 << 10,
};

fn gather(all: &Matrix, rows: &[u64]) -> Matrix {
    let rows: Vec<u32> = rows.iter().map(|&row| row as u32).collect();
    let mut bytes = vec![0; rows.len() * all.row_bytes()];
    all.gather(&rows, &mut bytes).unwrap();
    Matrix::new(bytes, rows.len(), all.dim(), all.element()).unwrap()
}

fn writing(update: Update) -> WriteOptions {
    WriteOptions {
        durability: Durability::OnFlush,
        // The test compares recall, and concurrent inserts would make other links each time.
        threads: 1,
        update: Some(update),
        direct: DirectOptions {
            in_flight: 1,
            ..DirectOptions::default()
        },
    }
}

fn with_list(list: usize) -> SearchOptions {
    SearchOptions {
        list,
        strategy: Some(Strategy::BestFirst),
        ..SearchOptions::default()
    }
}

fn repairing() -> RepairOptions {
    RepairOptions {
        threads: 1,
        ..RepairOptions::default()
    }
}

fn manifest(path: &Path) -> Manifest {
    Manifest::decode(&std::fs::read(path.join("MANIFEST")).unwrap(), "MANIFEST").unwrap()
}

struct Place {
    data: Data,
    all: Matrix,
    folder: tempfile::TempDir,
    live: BTreeSet<u64>,
    next: u64,
    recall: f64,
}

impl Place {
    fn new(data: Data, compression: Compression) -> Self {
        let mut place = Self {
            all: matrix(data.name),
            folder: tempfile::tempdir().unwrap(),
            live: (0..data.built).collect(),
            next: data.built,
            recall: 0.0,
            data,
        };
        let rows: Vec<u64> = (0..data.built).collect();
        let options = BuildOptions {
            preset: Preset::DECOUPLEVS,
            metric: data.metric,
            compression: Some(compression),
            degree: Some(24),
            build_list: 50,
            chunk_bytes: data.chunk_bytes,
            segment_bytes: data.segment_bytes,
            threads: 1,
            ..BuildOptions::default()
        };
        build(&gather(&place.all, &rows), place.index(), &options, &Silent).unwrap();
        place.recall = place.recall_now();
        place
    }

    fn index(&self) -> std::path::PathBuf {
        self.folder.path().join("index")
    }

    fn open(&self, update: Update) -> LiveIndex {
        let open = OpenOptions::default();
        LiveIndex::open(self.index(), &open, &writing(update)).unwrap()
    }

    fn delete(&mut self, live: &LiveIndex, ids: impl IntoIterator<Item = u64>) {
        let ids: Vec<u64> = ids.into_iter().filter(|id| self.live.remove(id)).collect();
        live.delete(&ids).unwrap();
    }

    fn insert(&mut self, live: &LiveIndex, count: u64) {
        let ids: Vec<u64> = (self.next..self.next + count).collect();
        self.next += count;
        live.insert(&gather(&self.all, &ids), Some(&ids), &Silent)
            .unwrap();
        self.live.extend(ids);
    }

    fn compact(&self, live: &LiveIndex) -> CompactReport {
        let before = self.vectors();
        let report = live.compact(&Silent).unwrap();
        let after = self.vectors();
        let kept = after.iter().filter(|(name, bytes)| {
            let old = before.get(*name);
            assert!(old.is_none_or(|old| old == *bytes), "{name} was changed");
            old.is_some()
        });
        assert_eq!(kept.count() as u64, report.segments_kept);
        report
    }

    fn vectors(&self) -> BTreeMap<String, Vec<u8>> {
        let manifest = manifest(&self.index());
        let of_vectors = manifest
            .files
            .iter()
            .filter(|file| matches!(file.kind(), Some((FileKind::Vectors, _))));
        of_vectors
            .map(|file| {
                let bytes = std::fs::read(self.index().join(&file.name)).unwrap();
                (file.name.clone(), bytes)
            })
            .collect()
    }

    fn recall_now(&self) -> f64 {
        let live: Vec<u64> = self.live.iter().copied().collect();
        let queries: Vec<u64> = (0..QUERIES).collect();
        let queries = gather(&matrix(self.data.queries), &queries);
        let base = gather(&self.all, &live);
        let truth = brute_force(&base, &queries, 10, self.data.metric, 2, &Silent).unwrap();
        let index = Index::open(self.index(), &OpenOptions::default()).unwrap();
        let results = index.search(&queries, &with_list(60)).unwrap();
        let places: Vec<u64> = results
            .ids
            .iter()
            .map(|id| {
                let place = live.binary_search(id);
                place.unwrap_or_else(|_| panic!("id {id} was deleted")) as u64
            })
            .collect();
        truth.recall(&places, &results.distances, 10).unwrap()
    }

    fn check(&self) {
        let report = verify(self.index(), &Silent).unwrap();
        assert!(report.clean(), "{:#?}", report.problems);
        let recall = self.recall_now();
        assert!(
            recall > self.recall - 0.01,
            "recall {recall}, after the build {}",
            self.recall
        );
        self.find(5);
    }

    fn find_all(&self) {
        self.find(1);
    }

    /// Searches for every `step`-th live vector. A search of a graph may miss a few vectors.
    fn find(&self, step: usize) {
        let ids: Vec<u64> = self.live.iter().copied().step_by(step).collect();
        let index = Index::open(self.index(), &OpenOptions::default()).unwrap();
        assert_eq!(index.live(), self.live.len());
        let asked = gather(&self.all, &ids);
        let results = index.search(&asked, &with_list(100)).unwrap();
        let mut missed = Vec::new();
        for (at, id) in ids.iter().enumerate() {
            let found = &results.ids[10 * at..10 * at + 10];
            assert!(found.iter().all(|id| self.live.contains(id)), "{found:?}");
            let Some(place) = found.iter().position(|found| found == id) else {
                missed.push(id);
                continue;
            };
            let distance = results.distances[10 * at + place];
            assert!(distance.abs() < 1e-6, "id {id} is at distance {distance}");
        }
        assert!(missed.len() <= 1 + ids.len() / 1000, "{missed:?}");
    }
}

fn some(range: std::ops::Range<u64>, step: usize) -> impl Iterator<Item = u64> {
    range.step_by(step)
}

fn merges_over_and_over(data: Data, update: Update) {
    let mut place = Place::new(data, Compression::Paper);
    let (segment, built) = (data.segment, data.built);
    let live = place.open(update);
    let segments = built.div_ceil(segment);

    // Half of the second segment, all of the fourth, and one in thirty vectors of the others are
    // deleted.
    place.delete(&live, some(segment..2 * segment, 2));
    place.delete(&live, 3 * segment..4 * segment);
    place.delete(&live, some(0..built, 30));
    place.insert(&live, segment / 2);
    let report = place.compact(&live);
    assert_eq!(report.segments_kept, segments - 3, "{report:?}");
    assert_eq!(report.segments_rewritten, 2, "{report:?}");
    let stats = live.stats();
    assert!(stats.garbage > 0 && stats.deleted == 0, "{stats:?}");
    place.check();

    // Garbage of several deletes adds up. In each segment, less than a fifth is garbage.
    let garbage = stats.garbage;
    place.delete(&live, some(10..built, 12));
    place.insert(&live, segment);
    let report = place.compact(&live);
    assert!(report.segments_kept >= segments - 3, "{report:?}");
    assert!(live.stats().garbage > garbage);
    place.check();

    // Now a fifth of most segments is garbage, and a merge rewrites these segments.
    place.delete(&live, some(5..built, 8));
    place.insert(&live, segment);
    let report = place.compact(&live);
    assert!(report.segments_rewritten > 1, "{report:?}");
    let anyway = 2 * segment;
    let written = report.vectors_rewritten + report.merged;
    assert!(written > segment && written <= 2 * anyway, "{report:?}");
    place.check();

    // Even if the last segment becomes empty, the index has a segment for new vectors.
    drop(live);
    let live = place.open(update);
    place.delete(&live, built..built + 3 * segment);
    place.compact(&live);
    place.check();
    place.insert(&live, 20);
    live.flush().unwrap();
    place.find(5);
    drop(live);
    place.check();
    let live = place.open(Update::Merge);
    place.delete(&live, some(1..built, 40));
    place.compact(&live);
    place.check();
    place.find_all();
}

#[test]
fn segments_of_bytes_are_kept_from_merge_to_merge() {
    merges_over_and_over(SIFT, Update::Merge);
}

#[test]
fn segments_of_floats_are_kept_from_merge_to_merge() {
    merges_over_and_over(TEXT, Update::Merge);
}

#[test]
fn segments_are_kept_where_inserts_are_direct() {
    merges_over_and_over(SIFT, Update::Accumulate);
}

#[test]
fn what_was_replaced_is_found_as_it_is_now() {
    let place = Place::new(SIFT, Compression::Paper);
    let live = place.open(Update::Merge);
    // Each of these ids gets the vector of another id.
    let ids: Vec<u64> = some(7..SIFT.built, 50).collect();
    let rows: Vec<u64> = ids.iter().map(|id| id + 5_000).collect();
    let rows = gather(&place.all, &rows);
    for _ in 0..2 {
        live.upsert(&rows, &ids, &Silent).unwrap();
        let report = place.compact(&live);
        assert!(report.segments_kept > 4, "{report:?}");
    }
    let list = SearchOptions::default().list;
    let results = live.search(&rows, &with_list(list)).unwrap();
    for (at, id) in ids.iter().enumerate() {
        assert_eq!(
            (results.ids[10 * at], results.distances[10 * at]),
            (*id, 0.0)
        );
    }
    assert_eq!(live.len(), SIFT.built as usize);
    drop(live);
    assert!(verify(place.index(), &Silent).unwrap().clean());
}

#[test]
fn a_slot_that_is_not_the_dead_one_is_found_by_the_id_that_stands_twice() {
    let place = Place::new(SIFT, Compression::Paper);
    let live = place.open(Update::Merge);
    let ids: Vec<u64> = some(7..SIFT.built, 50).collect();
    live.upsert(&gather(&place.all, &ids), &ids, &Silent)
        .unwrap();
    place.compact(&live);
    drop(live);
    let manifest = manifest(&place.index());
    let (segment, kept) = (&manifest.segments[0], manifest.segments[0].kept.unwrap());
    let path = place
        .index()
        .join(&manifest.segment_file(FileKind::Chunks, 0).unwrap().name);
    let whole = std::fs::read(&path).unwrap();
    let mut reader = StreamReader::open(FileKind::Chunks, &whole[..BLOCK], "chunks").unwrap();
    let mut payload = Vec::new();
    let take = |bytes: &[u8]| payload.extend_from_slice(bytes);
    reader.push_with(&whole[BLOCK..], take).unwrap();
    let vectors = place.vectors();
    let (_, bytes) = vectors.iter().next().unwrap();
    let span = SegmentSpan {
        first: segment.first,
        nodes: segment.vectors.into(),
        garbage: kept.garbage.into(),
        pages: bytes.len() as u64 / 4096 - 1,
    };
    let chunks = ChunksFile::decode(&payload, span, place.all.dim(), "chunks").unwrap();
    let mut wrong = chunks.clone();
    wrong.dead = DeadSlots::default();
    for page in 0..span.pages {
        let mut slots = chunks.dead.of_page(page).to_vec();
        slots.iter_mut().for_each(|slot| *slot ^= 1);
        wrong.dead.push(page as u32, &slots);
    }
    assert_ne!(wrong, chunks);
    std::fs::write(
        &path,
        stream::encode(FileKind::Chunks, &wrong.encode(), &[]),
    )
    .unwrap();
    let report = verify(place.index(), &Silent).unwrap();
    let found = |problem: &stratann::Problem| problem.what.contains("which another node has, too");
    assert!(report.problems.iter().any(found), "{:#?}", report.problems);
    // The first page has one node too few, and the second page has one node too many.
    let mut wrong = chunks;
    wrong.chunks[0].boundaries[0] -= 1;
    std::fs::write(
        &path,
        stream::encode(FileKind::Chunks, &wrong.encode(), &[]),
    )
    .unwrap();
    let report = verify(place.index(), &Silent).unwrap();
    let found =
        |problem: &stratann::Problem| problem.what.contains("according to the table of pages");
    assert!(report.problems.iter().any(found), "{:#?}", report.problems);
}

#[test]
fn a_reader_that_was_open_before_a_merge_goes_on() {
    let mut place = Place::new(SIFT, Compression::Paper);
    let reader = Index::open(place.index(), &OpenOptions::default()).unwrap();
    let queries = matrix(SIFT.queries);
    let options = with_list(SearchOptions::default().list);
    let pipelined = SearchOptions {
        strategy: Some(Strategy::Pipelined),
        ..options
    };
    let before = reader.search(&queries, &options).unwrap();
    let live = place.open(Update::Merge);
    place.delete(&live, some(0..SIFT.built, 9));
    let report = place.compact(&live);
    assert!(report.segments_kept > 4, "{report:?}");
    let after = reader.search(&queries, &options).unwrap();
    assert_eq!((after.ids, after.distances), (before.ids, before.distances));
    // A pipelined search may find either of two nearly equal vectors.
    let after = reader.search(&queries, &pipelined).unwrap();
    assert!(after.ids.iter().all(|&id| id < SIFT.built));
}

/// An index in which a merge has left one of the segments unchanged.
fn with_garbage(data: Data, compression: Compression) -> (Place, String) {
    let mut place = Place::new(data, compression);
    let live = place.open(Update::Merge);
    place.delete(&live, some(0..data.built, 9));
    place.insert(&live, data.segment / 2);
    let report = place.compact(&live);
    assert!(report.segments_kept > 0, "{report:?}");
    drop(live);
    let manifest = manifest(&place.index());
    assert!(
        manifest.segments[0]
            .kept
            .is_some_and(|kept| kept.garbage > 0)
    );
    let chunks = manifest.segment_file(FileKind::Chunks, 0).unwrap();
    let name = chunks.name.clone();
    (place, name)
}

fn damage(path: &Path, at: usize) {
    let mut bytes = std::fs::read(path).unwrap();
    bytes[at] ^= 0x55;
    std::fs::write(path, bytes).unwrap();
}

#[test]
fn repair_leaves_garbage_where_it_is() {
    for update in [Update::Merge, Update::Accumulate] {
        let (mut place, _) = with_garbage(TEXT, Compression::Paper);
        if update == Update::Accumulate {
            let live = place.open(update);
            place.insert(&live, 30);
            place.delete(&live, some(4..TEXT.built, 50));
        }
        let manifest = manifest(&place.index());
        let lists = place
            .index()
            .join(&manifest.file("adjacency").unwrap().name);
        // The test damages every page, so that a damaged page is in use.
        for page in 1..std::fs::metadata(&lists).unwrap().len() as usize / 4096 {
            damage(&lists, 4096 * page + 100);
        }
        assert!(!verify(place.index(), &Silent).unwrap().clean());
        let report = repair(place.index(), &repairing(), &Silent).unwrap();
        assert!(report.repaired && report.vectors_lost == 0, "{report:#?}");
        assert_eq!(report.vectors, place.live.len() as u64);
        place.check();
    }
}

#[test]
fn with_the_chunks_of_a_segment_its_vectors_are_lost_and_no_garbage_comes_back() {
    for update in [Update::Merge, Update::Accumulate] {
        let (mut place, chunks) = with_garbage(TEXT, Compression::Paper);
        let vectors = u64::from(manifest(&place.index()).segments[0].vectors);
        if update == Update::Accumulate {
            let live = place.open(update);
            place.insert(&live, 30);
        }
        std::fs::remove_file(place.index().join(chunks)).unwrap();
        let report = verify(place.index(), &Silent).unwrap();
        assert!(!report.clean());
        let report = repair(place.index(), &repairing(), &Silent).unwrap();
        assert_eq!(report.vectors_lost, vectors, "{report:#?}");
        assert_eq!(report.vectors, place.live.len() as u64 - vectors);
        place.live = place.live.split_off(&TEXT.segment);
        place.check();
    }
}

#[test]
fn where_nobody_knows_what_is_garbage_it_is_taken_and_said() {
    for update in [Update::Merge, Update::Accumulate] {
        // With these data, the compression of vectors uses no base vector. A chunk has two vectors,
        // and takes more than a block.
        let data = Data {
            built: 1_100,
            segment: 700,
            segment_bytes: 700 * 1536,
            chunk_bytes: 4096,
            ..TEXT
        };
        let (mut place, chunks) = with_garbage(data, Compression::Best);
        let again: Vec<u64> = vec![9, 9 * 77];
        let live = place.open(update);
        live.insert(&gather(&place.all, &again), Some(&again), &Silent)
            .unwrap();
        place.live.extend(again);
        if update == Update::Merge {
            let report = place.compact(&live);
            assert!(report.segments_kept > 0, "{report:?}");
        }
        drop(live);
        let name = manifest(&place.index())
            .segment_file(FileKind::Chunks, 0)
            .unwrap()
            .name
            .clone();
        assert_eq!(name == chunks, update == Update::Accumulate);
        let path = place.index().join(name);
        let length = std::fs::metadata(&path).unwrap().len();
        assert!(length >= 3 * 4096, "{length}");
        damage(&path, length as usize - 4096 + 10);
        let report = repair(place.index(), &repairing(), &Silent).unwrap();
        let said = report
            .lost
            .iter()
            .find(|lost| lost.what.contains("may have been deleted"));
        assert!(said.is_some_and(|said| said.vectors == 0), "{report:#?}");
        assert_eq!(report.vectors_lost, 0, "{report:#?}");
        // Some deleted vectors are live again, but never in place of a later vector.
        let back = report.vectors - place.live.len() as u64;
        assert!(back > 0 && back < data.segment / 9, "{back}");
        let live = place.open(Update::Merge);
        let gone: Vec<u64> = some(0..data.built, 9)
            .filter(|id| !place.live.contains(id) && live.contains(*id).unwrap())
            .collect();
        assert_eq!(gone.len() as u64, back);
        live.delete(&gone).unwrap();
        drop(live);
        place.find_all();
    }
}
