//! Live recall: results of served queries are compared with exact results, on real data.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use stratann::{
    BuildOptions, Catalog, CatalogOptions, Element, Error, ErrorKind, Filter, Index, LiveIndex,
    LiveRecall, Matrix, Metric, OpenOptions, Preset, Progress, Range, RecallWatch, Row, RowTable,
    SearchOptions, SearchResults, Silent, Strategy, Update, Value, VectorSource, Way, WriteOptions,
    brute_force, build, build_with_rows,
};
use stratann_tier::testing::refuse_threads_after;

use super::fixtures::{SIFT_BASE, SIFT_QUERIES, head, rows, slow};

const ROWS: usize = 3_000;
const QUERIES: usize = 60;
/// Longer than each wait of these tests, unless the program hangs.
const LONG: Duration = Duration::from_secs(300);

/// Tests that count the measuring threads lock this mutex.
static THREADS: Mutex<()> = Mutex::new(());

fn watched(queries: usize) -> OpenOptions {
    OpenOptions {
        watch_recall: Some(RecallWatch::new(queries).unwrap()),
        ..OpenOptions::default()
    }
}

fn built(folder: &Path, preset: Preset, rows: usize) -> PathBuf {
    let path = folder.join(preset.name);
    build(&head(SIFT_BASE, rows), &path, &options(preset), &Silent).unwrap();
    path
}

fn options(preset: Preset) -> BuildOptions {
    let is_graph = !preset.layout.is_some_and(|layout| layout.has_clusters());
    let usual = BuildOptions::default();
    BuildOptions {
        preset,
        degree: is_graph.then_some(16),
        build_list: if is_graph { 24 } else { usual.build_list },
        // One thread builds the same graph each time.
        threads: 1,
        ..usual
    }
}

/// A search that misses some neighbours, and does not depend on the order of completions.
fn narrow(index: &Index) -> SearchOptions {
    let strategy = match index.preset().strategy {
        Strategy::Press => Strategy::Press,
        Strategy::BestFirst | Strategy::Pipelined => Strategy::BestFirst,
    };
    let has_clusters = index.has_clusters();
    SearchOptions {
        list: 10,
        probes: has_clusters.then_some(2),
        strategy: (!has_clusters).then_some(strategy),
        // Without whole pages, the results do not depend on the distribution of nodes over pages.
        whole_page: (!has_clusters).then_some(false),
        exact: true,
        ..SearchOptions::default()
    }
}

fn found(known: &LiveRecall) -> f64 {
    known.last.unwrap().found
}

/// The mean and the lowest recall. Distances are squared.
fn recall(queries: &Matrix, results: &SearchResults, rows: &[(u64, Vec<u8>)]) -> (f64, f64) {
    let mut shares = Vec::new();
    for (at, ids) in results.ids.chunks_exact(results.k).enumerate() {
        let query = queries.row(at);
        let distance = |row: &[u8]| -> u32 {
            let pairs = query.iter().zip(row);
            pairs.map(|(&a, &b)| u32::from(a.abs_diff(b)).pow(2)).sum()
        };
        let all = rows.iter().map(|(id, row)| (distance(row), *id));
        let mut all: Vec<(u32, u64)> = all.collect();
        all.sort_unstable();
        let wanted = results.k.min(all.len());
        let near = all.iter().take_while(|one| one.0 <= all[wanted - 1].0);
        let near: HashSet<u64> = near.map(|one| one.1).collect();
        let hits = ids.iter().filter(|id| near.contains(id)).count();
        shares.push(hits.min(wanted) as f64 / wanted as f64);
    }
    let lowest = shares.iter().copied().fold(1.0, f64::min);
    (shares.iter().sum::<f64>() / shares.len() as f64, lowest)
}

fn rows_of(base: &Matrix, first: u64) -> Vec<(u64, Vec<u8>)> {
    let ids = first..first + base.rows() as u64;
    ids.zip((0..base.rows()).map(|row| base.row(row).to_vec()))
        .collect()
}

fn agree(known: &LiveRecall, expected: (f64, f64), what: &str) {
    let last = known.last.unwrap();
    assert!(
        (last.found - expected.0).abs() < 1e-9 && (last.lowest - expected.1).abs() < 1e-9,
        "{what}: {last:?}, {expected:?}"
    );
}

#[test]
fn what_is_measured_is_what_brute_force_says() {
    let root = tempfile::tempdir().unwrap();
    let (base, queries) = (head(SIFT_BASE, ROWS), head(SIFT_QUERIES, QUERIES));
    let base = rows_of(&base, 0);
    let few = [
        Preset::STRATANN,
        Preset::AISAQ,
        Preset::DISTVS,
        Preset::SPANN,
        Preset::TIERED_CLUSTER,
    ];
    for preset in Preset::ALL {
        if !slow() && !few.iter().any(|one| one.name == preset.name) {
            continue;
        }
        let path = built(root.path(), preset, ROWS);
        let index = Index::open(&path, &watched(QUERIES)).unwrap();
        let options = narrow(&index);
        assert_eq!(
            index.stats().live_recall,
            Some(index.measure_recall(&Silent).unwrap())
        );
        let results = index.search(&queries, &options).unwrap();
        let waits = index.stats().live_recall.unwrap();
        assert_eq!((waits.waiting, waits.last), (QUERIES as u64, None));
        let known = index.measure_recall(&Silent).unwrap();
        let expected = recall(&queries, &results, &base);
        assert!(
            expected.0 < 1.0 || preset.name == Preset::SPANN.name,
            "{preset}"
        );
        agree(&known, expected, preset.name);
        let last = known.last.unwrap();
        assert_eq!(
            (last.queries, last.k, last.asked),
            (QUERIES as u64, Some(10), None)
        );
        assert_eq!(
            (known.samples_measured, known.waiting, known.thrown_away),
            (1, 0, 0)
        );
        assert!(known.at.is_some() && known.error.is_none());
        assert_eq!(index.stats().live_recall, Some(known));
        let budget = OpenOptions {
            memory: Some(48 << 20),
            ..watched(QUERIES)
        };
        let index = Index::open(&path, &budget).unwrap();
        let results = index.search(&queries, &options).unwrap();
        let expected = recall(&queries, &results, &base);
        index.measure_recall(&Silent).unwrap();
        index.search(&queries, &options).unwrap();
        let known = index.measure_recall(&Silent).unwrap();
        agree(&known, expected, preset.name);
        let all = known.all.unwrap();
        assert_eq!(
            (known.samples_measured, all.queries),
            (2, 2 * QUERIES as u64)
        );
        assert!((all.found - expected.0).abs() < 1e-9, "{preset}");
    }
}

#[test]
fn a_sample_is_of_queries_one_by_one_in_batches_and_submitted() {
    let root = tempfile::tempdir().unwrap();
    let path = built(root.path(), Preset::STRATANN, 500);
    let index = Arc::new(Index::open(&path, &watched(20)).unwrap());
    let queries = head(SIFT_QUERIES, 100);
    let options = narrow(&index);
    let waiting = || index.stats().live_recall.unwrap().waiting;
    for (row, expected) in (0..5).zip(1..) {
        let one = Matrix::new(
            queries.row(row).to_vec(),
            1,
            queries.dim(),
            queries.element(),
        );
        index.search(&one.unwrap(), &options).unwrap();
        assert_eq!(waiting(), expected);
    }
    index
        .submit(head(SIFT_QUERIES, 3), &options, None)
        .unwrap()
        .wait()
        .unwrap();
    assert_eq!(waiting(), 8);
    // Searches with many results, and range searches, are not sampled.
    let many = SearchOptions {
        k: 101,
        list: 101,
        ..options
    };
    index.search(&queries, &many).unwrap();
    let range = Range {
        distance: 1e5,
        most: 10,
        after: None,
        without: None,
    };
    index
        .search_range(&head(SIFT_QUERIES, 1), &range, &options, None, &Silent)
        .unwrap();
    let wrong = SearchOptions { k: 11, ..options };
    index.search(&queries, &wrong).unwrap_err();
    assert_eq!(waiting(), 8);
    index.search(&queries, &options).unwrap();
    assert_eq!(waiting(), 20);
    let asked = SearchOptions {
        recall: Some(0.9),
        ..options
    };
    let known = index.measure_recall(&Silent).unwrap();
    assert_eq!(
        (known.sample, known.waiting, known.last.unwrap().queries),
        (20, 0, 20)
    );
    // In so small an index, a search with a recall target reads all vectors.
    index.search(&head(SIFT_QUERIES, 4), &asked).unwrap();
    let five = SearchOptions { k: 5, ..options };
    index.search(&head(SIFT_QUERIES, 4), &five).unwrap();
    let last = index.measure_recall(&Silent).unwrap().last.unwrap();
    assert_eq!((last.queries, last.k, last.asked), (8, None, Some(0.9)));
    assert_eq!(last.found_of_asked, Some(1.0));
    assert!(last.found <= 1.0 && last.lowest <= last.found);
}

/// Every third row is red, and all rows are numbered.
fn coloured(rows: usize) -> RowTable {
    let row = |at: usize| Row {
        attributes: [
            ("red".to_owned(), Value::Boolean(at.is_multiple_of(3))),
            ("number".to_owned(), Value::Integer(at as i64)),
        ]
        .into(),
        payload: None,
    };
    RowTable::new((0..rows).map(row).collect())
}

#[test]
fn filters_deletes_and_inserts_are_seen_as_searches_see_them() {
    let root = tempfile::tempdir().unwrap();
    let queries = head(SIFT_QUERIES, QUERIES);
    for (preset, update) in [
        (Preset::STRATANN, Update::Merge),
        (Preset::STRATANN, Update::Accumulate),
        (Preset::DECOUPLEVS, Update::Relocate),
        (Preset::SPANN, Update::Merge),
        (Preset::TIERED_CLUSTER, Update::Rebalance),
    ] {
        let path = root.path().join(format!("{preset}-{update}"));
        let base = head(SIFT_BASE, ROWS);
        build_with_rows(&base, &coloured(ROWS), &path, &options(preset), &Silent).unwrap();
        let writes = WriteOptions {
            update: Some(update),
            threads: 1,
            ..WriteOptions::default()
        };
        let live = LiveIndex::open(&path, &watched(2 * QUERIES), &writes).unwrap();
        let ids: Vec<u64> = (10_000..10_400).collect();
        let more = rows(SIFT_BASE, ROWS, 400);
        live.insert_rows(&more, &coloured(400), Some(&ids), &Silent)
            .unwrap();
        let gone: Vec<u64> = (0..3_000).step_by(7).chain([10_003, 10_006]).collect();
        live.delete(&gone).unwrap();
        let replaced: Vec<u64> = vec![9, 12, 10_009];
        live.upsert_rows(&rows(SIFT_BASE, 5_000, 3), &coloured(3), &replaced, &Silent)
            .unwrap();
        let mut all = rows_of(&base, 0);
        all.extend(rows_of(&more, 10_000));
        let goes = |id: &u64| gone.contains(id) || replaced.contains(id);
        all.retain(|(id, _)| !goes(id));
        let others = rows(SIFT_BASE, 5_000, 3);
        all.extend(
            replaced
                .iter()
                .enumerate()
                .map(|(at, &id)| (id, others.row(at).to_vec())),
        );
        let red = all.iter().filter(|(id, _)| match id {
            9 => true,
            12 | 10_009 => false,
            id => (id % 10_000).is_multiple_of(3),
        });
        let red: Vec<_> = red.cloned().collect();
        let filter = Filter::parse("red == true").unwrap();
        let options = narrow(&live.index());
        let what = format!("{preset}, {update}");
        // After this search, later searches know which nodes are deleted.
        live.search(&queries, &options).unwrap();
        live.measure_recall(&Silent).unwrap();
        let plain = live.search(&queries, &options).unwrap();
        let known = live.measure_recall(&Silent).unwrap();
        agree(&known, recall(&queries, &plain, &all), &what);
        for way in [None, Some(Way::Within), Some(Way::Before)] {
            let options = SearchOptions { way, ..options };
            let some = live.search_filtered(&queries, &options, &filter).unwrap();
            let known = live.measure_recall(&Silent).unwrap();
            agree(&known, recall(&queries, &some, &red), &what);
        }
        // One measurement covers three filters and no filter. No vector matches the second filter.
        let few = Filter::parse("number < 4").unwrap();
        let none = Filter::parse("number < 0").unwrap();
        let one = |filter| {
            live.search_filtered(&head(SIFT_QUERIES, 2), &options, filter)
                .unwrap()
        };
        for filter in [&few, &none, &filter] {
            one(filter);
        }
        live.search(&head(SIFT_QUERIES, 2), &options).unwrap();
        let known = live.measure_recall(&Silent).unwrap();
        assert_eq!(known.last.unwrap().queries, 6, "{what}");
        assert_eq!(
            (known.samples_measured, known.thrown_away, known.error),
            (6, 0, None)
        );
        drop(live);
        let index = Index::open(&path, &watched(QUERIES)).unwrap();
        let options = narrow(&index);
        index.search(&queries, &options).unwrap();
        index.measure_recall(&Silent).unwrap();
        let plain = index.search(&queries, &options).unwrap();
        let known = index.measure_recall(&Silent).unwrap();
        agree(&known, recall(&queries, &plain, &all), &what);
        let some = index.search_filtered(&queries, &options, &filter).unwrap();
        let known = index.measure_recall(&Silent).unwrap();
        agree(&known, recall(&queries, &some, &red), &what);
    }
}

#[test]
fn every_metric_is_measured() {
    let root = tempfile::tempdir().unwrap();
    let base = matrix_of_floats(1_500, 24, 1);
    let queries = matrix_of_floats(40, 24, 2);
    for metric in Metric::ALL {
        for preset in [Preset::STRATANN, Preset::SPANN] {
            let path = root.path().join(format!("{preset}-{metric}"));
            let build_options = BuildOptions {
                metric,
                ..options(preset)
            };
            build(&base, &path, &build_options, &Silent).unwrap();
            let index = Index::open(&path, &watched(40)).unwrap();
            let results = index.search(&queries, &narrow(&index)).unwrap();
            let truth = brute_force(&base, &queries, 20, metric, 1, &Silent).unwrap();
            let expected = truth.recall(&results.ids, &results.distances, 10).unwrap();
            let known = index.measure_recall(&Silent).unwrap();
            assert!(expected < 1.0, "{preset}, {metric}");
            assert!(
                (found(&known) - expected).abs() < 1e-9,
                "{preset}, {metric}: {known:?}"
            );
        }
    }
}

fn matrix_of_floats(rows: usize, dim: usize, seed: u64) -> Matrix {
    let mut state = seed;
    let mut next = || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1u64 << 24) as f32 - 0.5
    };
    let mut bytes = Vec::new();
    for row in 0..rows {
        for column in 0..dim {
            let centre = ((row % 7 + column) % 5) as f32 / 3.0;
            bytes.extend_from_slice(&(centre + next()).to_le_bytes());
        }
    }
    Matrix::new(bytes, rows, dim, Element::F32).unwrap()
}

/// Searches that compare all vectors find all true neighbours, whatever another thread changes.
#[test]
fn what_others_change_meanwhile_makes_nothing_wrong() {
    let root = tempfile::tempdir().unwrap();
    // These searches read all vectors, because the index grew from 100 vectors, or because the
    // search probes all clusters.
    for (preset, update) in [
        (Preset::STRATANN, Update::Accumulate),
        (Preset::STRATANN, Update::Merge),
        (Preset::SPANN, Update::Rebalance),
        (Preset::TIERED_CLUSTER, Update::Rebalance),
    ] {
        let path = root.path().join(format!("{preset}-{update}"));
        build(&head(SIFT_BASE, 100), &path, &options(preset), &Silent).unwrap();
        let writes = WriteOptions {
            update: Some(update),
            threads: 1,
            ..WriteOptions::default()
        };
        let live = LiveIndex::open(&path, &watched(16), &writes).unwrap();
        let options = SearchOptions {
            list: 3_000,
            probes: live.index().has_clusters().then_some(3_000),
            ..SearchOptions::default()
        };
        let queries = head(SIFT_QUERIES, 16);
        let done = AtomicBool::new(false);
        let mut thrown_away = 0;
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for round in 0..12 {
                    let ids: Vec<u64> = (1_000 + 60 * round..).take(100).collect();
                    let new = rows(SIFT_BASE, 200 + 50 * round as usize, 100);
                    live.upsert(&new, &ids, &Silent).unwrap();
                    live.delete(&ids[..20]).unwrap();
                }
                done.store(true, Ordering::Release);
            });
            while !done.load(Ordering::Acquire) {
                live.search(&queries, &options).unwrap();
                match live.measure_recall(&Silent) {
                    Ok(known) => assert!(
                        known.last.is_none_or(|last| last.found == 1.0),
                        "{preset}, {update}: {known:?}"
                    ),
                    // This error says that the clusters were rebalanced again and again.
                    Err(error) => {
                        assert!(matches!(error, Error::Restless { .. }), "{error}");
                        thrown_away += 1;
                    }
                }
            }
        });
        live.search(&queries, &options).unwrap();
        let known = live.measure_recall(&Silent).unwrap();
        assert_eq!(
            (found(&known), known.last.unwrap().queries),
            (1.0, 16),
            "{preset}, {update}"
        );
        assert_eq!((known.thrown_away, known.error), (thrown_away, None));
    }
}

fn measuring() -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let name = |task: std::io::Result<std::fs::DirEntry>| {
        std::fs::read_to_string(task.unwrap().path().join("comm")).unwrap_or_default()
    };
    tasks
        .map(name)
        .filter(|name| name.trim() == "stratann-recall")
        .count()
}

fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !is_so() {
        assert!(begin.elapsed() < LONG, "{what} was not reached in time");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_full_sample_is_measured_in_the_background_until_the_index_is_closed() {
    let _alone = THREADS.lock();
    let root = tempfile::tempdir().unwrap();
    let path = built(root.path(), Preset::STRATANN, ROWS);
    let (base, queries) = (
        rows_of(&head(SIFT_BASE, ROWS), 0),
        head(SIFT_QUERIES, QUERIES),
    );
    let plain = Arc::new(Index::open(&path, &OpenOptions::default()).unwrap());
    plain.search(&queries, &narrow(&plain)).unwrap();
    assert_eq!((plain.stats().live_recall, measuring()), (None, 0));
    for error in [
        plain.measure_recall(&Silent).unwrap_err(),
        plain.measure_recall_in_background().unwrap_err(),
    ] {
        assert_eq!(error.kind(), ErrorKind::Call);
        assert!(error.to_string().contains("watch_recall"), "{error}");
    }
    let watch = watched(QUERIES);
    let index = Arc::new(Index::open(&path, &watch).unwrap());
    assert_eq!(
        measuring(),
        0,
        "a measurement began before it was requested"
    );
    index.measure_recall_in_background().unwrap();
    index.measure_recall_in_background().unwrap();
    wait_until("one thread", || measuring() == 1);
    let results = index.search(&queries, &narrow(&index)).unwrap();
    wait_until("a pass", || {
        index.stats().live_recall.unwrap().samples_measured == 1
    });
    agree(
        &index.stats().live_recall.unwrap(),
        recall(&queries, &results, &base),
        "background",
    );
    drop(index);
    assert_eq!(measuring(), 0);
    let live = LiveIndex::open(&path, &watch, &WriteOptions::default()).unwrap();
    let live = Arc::new(live);
    assert_eq!(live.stats().live_recall.unwrap().samples_measured, 1);
    live.measure_recall_in_background().unwrap();
    live.search(&queries, &narrow(&live.index())).unwrap();
    wait_until("another pass", || {
        live.stats().live_recall.unwrap().samples_measured == 2
    });
    live.compact(&Silent).unwrap();
    assert_eq!(
        live.stats().live_recall.unwrap().all.unwrap().queries,
        2 * QUERIES as u64
    );
    live.search(&queries, &narrow(&live.index())).unwrap();
    drop(live);
    assert_eq!(measuring(), 0);
    for _ in 0..5 {
        let index = Arc::new(Index::open(&path, &watched(QUERIES)).unwrap());
        index.measure_recall_in_background().unwrap();
        index.search(&queries, &narrow(&index)).unwrap();
        drop(index);
        // The measuring thread may have dropped the index last, so the test waits for its end.
        wait_until("no thread", || measuring() == 0);
    }
}

#[test]
fn a_watch_that_is_told_of_searches_has_no_other_ones() {
    let root = tempfile::tempdir().unwrap();
    let path = built(root.path(), Preset::STRATANN, 300);
    let queries = head(SIFT_QUERIES, QUERIES);
    let watch = RecallWatch::told(QUERIES).unwrap();
    let options = OpenOptions {
        watch_recall: Some(watch.clone()),
        ..OpenOptions::default()
    };
    let index = Index::open(&path, &options).unwrap();
    let search = narrow(&index);
    index.search(&queries, &search).unwrap();
    drop(index);
    let live = Arc::new(LiveIndex::open(&path, &options, &WriteOptions::default()).unwrap());
    live.search(&queries, &search).unwrap();
    let submitted = live.submit(Matrix::read(&queries).unwrap(), &search, None);
    submitted.unwrap().wait().unwrap();
    assert_eq!(watch.found().waiting, 0);
    watch.has_served(&queries, &search, None);
    assert_eq!(watch.found().waiting, QUERIES as u64);
    let known = live.measure_recall(&Silent).unwrap();
    assert_eq!(known.all.unwrap().queries, QUERIES as u64);
}

#[test]
fn the_last_started_thread_measures_and_a_refused_one_can_be_started_again() {
    let _alone = THREADS.lock();
    let root = tempfile::tempdir().unwrap();
    let path = built(root.path(), Preset::STRATANN, 300);
    let options = watched(QUERIES);
    let watch = options.watch_recall.clone().unwrap();
    let index = Arc::new(Index::open(&path, &options).unwrap());
    let live = LiveIndex::open(&path, &options, &WriteOptions::default()).unwrap();
    let live = Arc::new(live);
    let measures = || (index.is_measured(), live.is_measured_by(&watch));
    assert_eq!(measures(), (false, false));
    index.measure_recall_in_background().unwrap();
    assert_eq!(measures(), (true, false));
    live.measure_recall_in_background_by(&watch).unwrap();
    assert_eq!(measures(), (false, true));
    refuse_threads_after(Some(0));
    let refused = index.measure_recall_in_background();
    refuse_threads_after(None);
    assert!(refused.is_err() && watch.found().error.is_some());
    assert_eq!(measures(), (false, false));
    index.measure_recall_in_background().unwrap();
    assert_eq!(measures(), (true, false));
    live.measure_recall_in_background_by(&watch).unwrap();
    live.end_measurements_by(&watch);
    index.end_measurements();
    assert_eq!((measures(), measuring()), ((false, false), 0));
}

struct Stop;

impl Progress for Stop {
    fn begin(&self, _: &str, _: u64) {}
    fn advance(&self, _: u64) {}
    fn end(&self) {}
    fn warn(&self, _: &str) {}
    fn interrupted(&self) -> bool {
        true
    }
}

#[test]
fn a_pass_that_is_interrupted_or_cannot_read_says_so_and_searches_go_on() {
    let root = tempfile::tempdir().unwrap();
    let path = built(root.path(), Preset::STRATANN, ROWS);
    let queries = head(SIFT_QUERIES, QUERIES);
    // Pages are read from the file, and not cached.
    let mut open = OpenOptions {
        memory: Some(1),
        ..watched(QUERIES)
    };
    let index = loop {
        match Index::open(&path, &open) {
            Ok(index) => break index,
            Err(Error::Memory { needs, .. }) => open.memory = Some(needs),
            Err(error) => panic!("{error}"),
        }
    };
    index.search(&queries, &narrow(&index)).unwrap();
    let error = index.measure_recall(&Stop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Interrupted);
    let known = index.stats().live_recall.unwrap();
    assert_eq!(
        (known.samples_measured, known.waiting, known.error),
        (0, 0, None)
    );
    // Some queries never read this page.
    let pages = std::fs::read_dir(&path)
        .unwrap()
        .map(|file| file.unwrap().path());
    let pages = pages.filter(|file| {
        file.file_name()
            .unwrap()
            .to_str()
            .unwrap()
            .starts_with("packed-")
    });
    let pages: Vec<PathBuf> = pages.collect();
    let [pages] = &pages[..] else {
        panic!("{pages:?}")
    };
    index.search(&queries, &narrow(&index)).unwrap();
    let mut bytes = std::fs::read(pages).unwrap();
    let end = bytes.len();
    bytes[end - 4_096..end - 2_048].fill(0x5a);
    // The bytes are written in place, because the index has the file open.
    std::os::unix::fs::FileExt::write_all_at(
        &std::fs::OpenOptions::new().write(true).open(pages).unwrap(),
        &bytes[end - 4_096..],
        (end - 4_096) as u64,
    )
    .unwrap();
    let error = index.measure_recall(&Silent).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Damaged, "{error}");
    let known = index.stats().live_recall.unwrap();
    assert_eq!(
        (known.samples_measured, known.thrown_away, known.waiting),
        (0, 0, 0)
    );
    assert_eq!(known.error, Some(error.to_string()));
    let answered = (0..QUERIES).filter(|&row| {
        let one = rows(SIFT_QUERIES, row, 1);
        index.search(&one, &narrow(&index)).is_ok()
    });
    assert!(answered.count() > 0);
}

#[test]
fn a_watch_is_of_one_index() {
    let root = tempfile::tempdir().unwrap();
    let (first, second) = (
        built(root.path(), Preset::STRATANN, 300),
        built(root.path(), Preset::SPANN, 300),
    );
    let watch = watched(10);
    let index = Index::open(&first, &watch).unwrap();
    let queries = head(SIFT_QUERIES, 10);
    index.search(&queries, &narrow(&index)).unwrap();
    let error = Index::open(&second, &watch).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Call);
    assert!(
        error
            .to_string()
            .contains("a `RecallWatch` measures one index. Make one for each"),
        "{error}"
    );
    for queries in [0, 1_001] {
        assert_eq!(
            RecallWatch::new(queries).unwrap_err().kind(),
            ErrorKind::Call
        );
    }
    let catalog = CatalogOptions {
        open: watched(10),
        ..CatalogOptions::default()
    };
    assert_eq!(
        Catalog::open(root.path(), &catalog).unwrap_err().kind(),
        ErrorKind::Call
    );
    // The sample stays with its index when the directory is moved.
    drop(index);
    let moved = root.path().join("moved");
    std::fs::rename(&first, &moved).unwrap();
    let index = Index::open(&moved, &watch).unwrap();
    assert_eq!(index.stats().live_recall.unwrap().waiting, 10);
    assert_eq!(index.measure_recall(&Silent).unwrap().samples_measured, 1);
    drop(index);
    std::fs::remove_dir_all(&moved).unwrap();
    let floats = matrix_of_floats(200, 24, 1);
    build(&floats, &moved, &options(Preset::STRATANN), &Silent).unwrap();
    let index = Index::open(&moved, &watch).unwrap();
    assert_eq!(
        index.stats().live_recall.unwrap(),
        LiveRecall {
            sample: 10,
            ..LiveRecall::default()
        }
    );
    index.search(&floats, &narrow(&index)).unwrap();
    assert_eq!(
        index.measure_recall(&Silent).unwrap().last.unwrap().queries,
        10
    );
}
