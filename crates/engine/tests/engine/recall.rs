//! Searches for a target recall, on real data.

use std::path::Path;
use std::sync::Mutex;

use stratann::{
    BuildOptions, CacheSize, Catalog, CatalogOptions, Element, Error, ErrorKind, Filter,
    GroundTruth, Index, Layout, LiveIndex, Matrix, Metric, OpenOptions, Preset, Progress, Rerank,
    Row, RowTable, SearchOptions, SearchResults, Silent, Strategy, Update, Value, VectorSource,
    Way, WriteOptions, brute_force, build, build_with_rows, calibrate, verify,
};

use crate::fixtures::{SIFT_BASE, SIFT_QUERIES, head, matrix, rows};

/// Enough vectors for a measurement.
const ROWS: usize = 6000;

fn options(layout: Option<Layout>) -> BuildOptions {
    BuildOptions {
        layout,
        degree: Some(32),
        build_list: 50,
        // One thread builds the same graph each time. With several threads, the graph depends on
        // their interleaving.
        threads: 1,
        ..BuildOptions::default()
    }
}

fn open(path: &Path) -> Index {
    Index::open(path, &OpenOptions::default()).unwrap()
}

/// A search whose strategy does not depend on the order of completions.
fn asked(recall: f64) -> SearchOptions {
    SearchOptions {
        recall: Some(recall),
        strategy: Some(Strategy::BestFirst),
        ..SearchOptions::default()
    }
}

fn reads(found: &SearchResults) -> u64 {
    found.counters.graph_reads + found.counters.vector_reads
}

#[test]
fn equal_vectors_count_as_each_other() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("index");
    // Each of 20 photos has 300 copies.
    let photos = head(SIFT_BASE, 20);
    let copies = photos.in_memory().unwrap().repeat(300);
    let copies = Matrix::new(copies, ROWS, photos.dim(), Element::U8).unwrap();
    build(&copies, &path, &options(None), &Silent).unwrap();
    let index = open(&path);
    let wanted = SearchOptions {
        k: 100,
        ..asked(0.9)
    };
    let longest = index.longest_list(&wanted).unwrap();
    assert!(longest < 300, "{longest}");
    assert_eq!(index.beyond_measured(&wanted, longest), None);
}

#[test]
fn a_recall_is_found_that_was_asked_for() {
    let root = tempfile::tempdir().unwrap();
    let base = matrix(SIFT_BASE);
    let queries = head(SIFT_QUERIES, 300);
    let truth = brute_force(&base, &queries, 100, Metric::L2, 2, &Silent).unwrap();
    let of = |found: &SearchResults| truth.recall(&found.ids, &found.distances, found.k).unwrap();
    let path = root.path().join("index");
    build(&base, &path, &options(None), &Silent).unwrap();
    let index = open(&path);
    let mut last = (0.0, 0);
    for recall in [0.9, 0.95, 0.99] {
        let found = index.search(&queries, &asked(recall)).unwrap();
        let (measured, read) = (of(&found), reads(&found));
        // With 300 queries, the recall is known to .01 at best.
        assert!(
            measured > recall - 0.015,
            "target {recall}: recall {measured}"
        );
        assert!(
            measured > last.0 && read > last.1,
            "target {recall}: recall {measured}, {read} reads, before {last:?}"
        );
        last = (measured, read);
    }
    // Fewer results need shorter lists, and more results need longer lists.
    let wanted = |k| SearchOptions { k, ..asked(0.9) };
    let lists = [1, 10, 100].map(|k| index.longest_list(&wanted(k)).unwrap());
    assert!(
        lists[0] < lists[1] && lists[1] < lists[2] && lists[2] >= 100,
        "{lists:?}"
    );
    for k in [1, 3, 100] {
        let found = index.search(&queries, &wanted(k)).unwrap();
        assert!(of(&found) > 0.88, "{k}: {}", of(&found));
    }
    let error = index.search(&queries, &wanted(101)).unwrap_err();
    assert!(error.to_string().contains("at most 100 results"), "{error}");
    let report = verify(&path, &Silent).unwrap();
    assert_eq!(report.problem_count, 0, "{report:?}");
    // The recall is measured with the given queries, which are nearer to the vectors of the index
    // than these vectors are to each other.
    let calibration =
        calibrate(&path, &OpenOptions::default(), Some(&queries), 1, &Silent).unwrap();
    assert_eq!(calibration.queries, 300);
    let recalls: Vec<f64> = calibration
        .recalls
        .iter()
        .map(|&(_, recall)| recall)
        .collect();
    assert!(
        recalls[0] < 0.7 && *recalls.last().unwrap() > 0.995,
        "{recalls:?}"
    );
    let again = open(&path).search(&queries, &asked(0.95)).unwrap();
    assert!((0.945..0.985).contains(&of(&again)), "{}", of(&again));
    // Without given queries, the calibration uses every second of the chosen vectors, and a query
    // made from each of these vectors. The few queries that round to their vector are left out.
    let own = calibrate(&path, &OpenOptions::default(), None, 1, &Silent).unwrap();
    let chosen = (index.len() / 40).clamp(125, 500);
    let made = own.queries - chosen.div_ceil(2);
    assert!(
        (chosen - 3..=chosen).contains(&made),
        "{made} queries made of {chosen} rows"
    );
    // An open handle continues to use the measurement that it has read.
    assert!(index.search(&queries, &asked(0.95)).is_ok());
    assert_eq!(verify(&path, &Silent).unwrap().problem_count, 0);
}

#[test]
fn what_came_since_the_checkpoint_is_no_answer_that_a_calibration_counts() {
    let root = tempfile::tempdir().unwrap();
    let (half, queries) = (head(SIFT_BASE, ROWS / 2), head(SIFT_QUERIES, 200));
    let others = rows(SIFT_BASE, ROWS / 2, ROWS / 2);
    for preset in [Preset::STRATANN, Preset::DECOUPLEVS] {
        let path = root.path().join(preset.to_string());
        let options = BuildOptions {
            preset,
            ..options(None)
        };
        build(&half, &path, &options, &Silent).unwrap();
        let measured = || {
            let open = OpenOptions::default();
            let found = calibrate(&path, &open, Some(&queries), 2, &Silent).unwrap();
            found.recalls
        };
        let before = measured();
        let ids: Vec<u64> = (10_000..).take(ROWS / 2).collect();
        let writes = WriteOptions {
            threads: 1,
            ..WriteOptions::default()
        };
        let live = LiveIndex::open(&path, &OpenOptions::default(), &writes).unwrap();
        live.insert(&others, Some(&ids), &Silent).unwrap();
        live.flush().unwrap();
        drop(live);
        // The inserted vectors could be half of the true neighbours. They must not count as missed
        // for every list.
        for (&(list, recall), &(_, before)) in measured().iter().zip(&before) {
            // If the inserted vectors are in the graph by now, they are also among the true
            // answers.
            assert!(
                recall > before - 0.03,
                "{preset}, list {list}: recall {recall}, before {before}"
            );
        }
    }
}

#[test]
fn every_layout_of_a_graph_is_asked_for_a_recall() {
    let root = tempfile::tempdir().unwrap();
    let base = head(SIFT_BASE, ROWS);
    let queries = head(SIFT_QUERIES, 100);
    let truth = brute_force(&base, &queries, 10, Metric::L2, 2, &Silent).unwrap();
    let slow = std::env::var_os("STRATANN_SLOW").is_some();
    let few = [Layout::Packed, Layout::Decoupled, Layout::Layered];
    for layout in Layout::ALL
        .into_iter()
        .filter(|layout| !layout.has_clusters() && (slow || few.contains(layout)))
    {
        let path = root.path().join(layout.to_string());
        build(&base, &path, &options(Some(layout)), &Silent).unwrap();
        let index = open(&path);
        for strategy in [Strategy::BestFirst, Strategy::Pipelined] {
            let way = SearchOptions {
                strategy: Some(strategy),
                ..asked(0.95)
            };
            let found = index.search(&queries, &way).unwrap();
            let recall = truth.recall(&found.ids, &found.distances, 10).unwrap();
            println!("{layout}, {strategy}: recall {recall}");
            assert!(recall > 0.93, "{layout}, {strategy}: recall {recall}");
        }
        // No query expands more nodes than with the longest list, and easy queries expand fewer.
        // With a beam of 1, a query takes the same walk, and ends earlier. For .99, the shortest
        // measured list is never enough.
        let way = SearchOptions {
            beam: Some(1),
            ..asked(0.99)
        };
        let fixed = SearchOptions {
            recall: None,
            list: index.longest_list(&way).unwrap(),
            ..way
        };
        let hops = |options: &SearchOptions| {
            let each = (0..100).map(|at| {
                let one = rows(SIFT_QUERIES, at, 1);
                index.search(&one, options).unwrap().counters.hops
            });
            each.collect::<Vec<u64>>()
        };
        let (by_recall, fixed) = (hops(&way), hops(&fixed));
        let [few, many] = [&by_recall, &fixed].map(|hops| hops.iter().sum::<u64>());
        println!("{layout}: {few} hops, {many} with the longest list");
        assert!(
            by_recall.iter().zip(&fixed).all(|(by, fixed)| by <= fixed),
            "{layout}: hops by recall {by_recall:?}, with the longest list {fixed:?}"
        );
        // An earlier version used the longest list for every query of the layout decoupled.
        assert!(
            few < many,
            "{layout}: {few} hops, {many} with the longest list"
        );
    }
}

/// With pages in memory, a walk expands one node at a time. An earlier version used the list sizes
/// that suffice for several nodes at a time.
#[test]
fn a_search_in_memory_has_list_sizes_of_its_own() {
    let root = tempfile::tempdir().unwrap();
    let path = root.path().join("index");
    let base = head(SIFT_BASE, ROWS);
    let queries = head(SIFT_QUERIES, 300);
    let truth = brute_force(&base, &queries, 10, Metric::L2, 2, &Silent).unwrap();
    build(&base, &path, &options(None), &Silent).unwrap();
    let read = open(&path);
    let memory = OpenOptions {
        memory: Some(64 << 20),
        unpack: false,
        ..OpenOptions::default()
    };
    let held = Index::open(&path, &memory).unwrap();
    let cache = OpenOptions {
        cache: CacheSize::Entries(ROWS),
        ..OpenOptions::default()
    };
    let cached = Index::open(&path, &cache).unwrap();
    assert_eq!(
        (read.memory().graph_share, held.memory().graph_share),
        (0.0, 1.0)
    );
    for recall in [0.95, 0.99] {
        let of = |index: &Index| index.longest_list(&asked(recall)).unwrap();
        println!(
            "target {recall}: {} candidates, {} in memory",
            of(&read),
            of(&held)
        );
        assert!(of(&held) > of(&read), "{recall}");
        assert_eq!(of(&cached), of(&held), "{recall}");
        let found = held.search(&queries, &asked(recall)).unwrap();
        let measured = truth.recall(&found.ids, &found.distances, 10).unwrap();
        assert!(
            measured > recall - 0.015,
            "target {recall}: recall {measured}"
        );
    }
}

#[test]
fn vectors_apart_from_lists_reach_the_recall_on_pages_and_unpacked() {
    let root = tempfile::tempdir().unwrap();
    let path = root.path().join("index");
    let base = head(SIFT_BASE, ROWS);
    let queries = head(SIFT_QUERIES, 300);
    let truth = brute_force(&base, &queries, 10, Metric::L2, 2, &Silent).unwrap();
    build(&base, &path, &options(Some(Layout::Decoupled)), &Silent).unwrap();
    for unpack in [false, true] {
        let memory = OpenOptions {
            memory: Some(64 << 20),
            unpack,
            ..OpenOptions::default()
        };
        let index = Index::open(&path, &memory).unwrap();
        assert_eq!(index.memory().unpacked > 0, unpack);
        for recall in [0.9, 0.95, 0.99] {
            let found = index.search(&queries, &asked(recall)).unwrap();
            let measured = truth.recall(&found.ids, &found.distances, 10).unwrap();
            let hops = found.counters.hops;
            println!("unpacked {unpack}, target {recall}: recall {measured}, {hops} nodes");
            // With 300 queries, the recall is known to .01 at best.
            assert!(
                measured > recall - 0.015,
                "unpacked {unpack}, target {recall}: recall {measured}"
            );
        }
    }
}

/// Rows with a number from 0 to 9.
fn numbered(count: usize) -> RowTable {
    let row = |at: usize| Row {
        attributes: [("number".to_owned(), Value::Integer((at % 10) as i64))].into(),
        payload: None,
    };
    RowTable::new((0..count).map(row).collect())
}

/// The true answers among the vectors whose number is below `below`.
fn truth_below(below: usize, queries: &Matrix) -> GroundTruth {
    let base = head(SIFT_BASE, ROWS);
    let matching: Vec<usize> = (0..ROWS).filter(|at| at % 10 < below).collect();
    let bytes = matching.iter().flat_map(|&at| base.row(at).to_vec());
    let some = Matrix::new(bytes.collect(), matching.len(), base.dim(), base.element()).unwrap();
    let mut truth = brute_force(&some, queries, 10, Metric::L2, 2, &Silent).unwrap();
    for id in &mut truth.ids {
        *id = matching[*id as usize] as u64;
    }
    truth
}

#[test]
fn a_search_with_a_filter_keeps_the_recall_and_ends_as_early() {
    let root = tempfile::tempdir().unwrap();
    let base = head(SIFT_BASE, ROWS);
    let queries = head(SIFT_QUERIES, 100);
    for layout in [Layout::Layered, Layout::Packed, Layout::Inline] {
        let path = root.path().join(layout.to_string());
        let options = options(Some(layout));
        build_with_rows(&base, &numbered(ROWS), &path, &options, &Silent).unwrap();
        let index = open(&path);
        // One read at a time, so that no result depends on the order of completions.
        let way = SearchOptions {
            beam: Some(1),
            way: Some(Way::Within),
            ..asked(0.95)
        };
        let fixed = |list| SearchOptions {
            recall: None,
            list,
            ..way
        };
        let plain = SearchOptions { way: None, ..way };
        let plain = index.search(&queries, &plain).unwrap();
        let longest = index.longest_list(&way).unwrap();
        for below in [10, 8, 5] {
            let filter = Filter::parse(&format!("number < {below}")).unwrap();
            let found = index.search_filtered(&queries, &way, &filter).unwrap();
            let truth = truth_below(below, &queries);
            let recall = truth.recall(&found.ids, &found.distances, 10).unwrap();
            let all = index
                .search_filtered(&queries, &fixed(longest), &filter)
                .unwrap();
            let hops = [&plain, &found, &all].map(|found| found.counters.hops);
            println!("{layout}, {below} rows in 10 match: recall {recall}, {hops:?} nodes");
            assert!(
                recall > 0.93,
                "{layout}, {below} rows in 10 match: recall {recall}"
            );
            // An earlier version used the longest list for every query.
            assert!(
                hops[1] < hops[2],
                "{layout}, {below} rows in 10 match: {hops:?} nodes"
            );
            let most = 2.0 * hops[0] as f64;
            assert!(
                hops[1] as f64 <= most,
                "{layout}, {below} rows in 10 match: {hops:?} nodes"
            );
            if below == 10 {
                // A filter that all vectors match is no filter.
                assert_eq!(hops[0], hops[1], "{layout}");
                assert_eq!(plain.distances, found.distances, "{layout}");
            }
        }
        // A walk does not expand all nodes up to the last match of its list.
        let filter = Filter::parse("number < 1").unwrap();
        let found = index
            .search_filtered(&queries, &fixed(100), &filter)
            .unwrap();
        let nearer = 100 * found.explained.unwrap().list as u64 * 10;
        let hops = found.counters.hops;
        println!("{layout}, 1 row in 10 matches: {hops} of {nearer} nodes");
        assert!(hops < nearer * 3 / 4, "{layout}: {hops} of {nearer} nodes");
    }
}

fn of(preset: Preset) -> BuildOptions {
    BuildOptions {
        preset,
        threads: 1,
        ..BuildOptions::default()
    }
}

#[test]
fn a_target_beyond_the_measurement_is_told() {
    let root = tempfile::tempdir().unwrap();
    let base = head(SIFT_BASE, ROWS);
    let [graph, clusters, unmeasured, few] =
        ["graph", "clusters", "unmeasured", "few"].map(|name| root.path().join(name));
    build(&base, &graph, &options(None), &Silent).unwrap();
    build(&base, &clusters, &of(Preset::SPANN), &Silent).unwrap();
    let no_measurement = BuildOptions {
        calibrate: false,
        ..options(None)
    };
    build(&base, &unmeasured, &no_measurement, &Silent).unwrap();
    let wanted = |recall, k| SearchOptions {
        recall: Some(recall),
        k,
        ..SearchOptions::default()
    };
    let beyond = |index: &Index, options: &SearchOptions| {
        let longest = index.longest_list(options)?;
        Ok::<_, Error>(index.beyond_measured(options, longest))
    };
    let index = open(&graph);
    for recall in [0.5, 0.9, 0.95] {
        let warning = beyond(&index, &wanted(recall, 10)).unwrap();
        assert_eq!(warning, None, "target {recall}");
    }
    let warning = beyond(&index, &wanted(1.0, 10)).unwrap();
    let warning = warning.unwrap_or_default();
    assert!(
        warning.starts_with("recall is 1; the measurement of this index reached at most 0.9"),
        "{warning:?}"
    );
    assert!(warning.contains("give a list size above 300 "), "{warning}");
    let error = beyond(&index, &wanted(1.5, 10)).unwrap_err();
    assert!(error.is_call_wrong(), "{error}");
    let no_target = SearchOptions::default();
    assert_eq!(beyond(&index, &no_target).unwrap(), None);
    // In the measurement of the clusters, searches with enough probes found all results.
    let all = beyond(&open(&clusters), &wanted(1.0, 10)).unwrap();
    assert_eq!(all, None);
    // Without a measurement, a search of so small an index compares all vectors. A list of the
    // largest measured size has room for all vectors of an even smaller index.
    build(&head(SIFT_BASE, 200), &few, &options(None), &Silent).unwrap();
    calibrate(&few, &OpenOptions::default(), None, 1, &Silent).unwrap();
    for path in [&unmeasured, &few] {
        let found = beyond(&open(path), &wanted(1.0, 10)).unwrap();
        assert_eq!(found, None);
    }
    // A catalog names the index of the warning.
    let catalog = Catalog::open(root.path(), &CatalogOptions::default()).unwrap();
    let told = Told::default();
    let queries = head(SIFT_QUERIES, 2);
    let names = ["unmeasured", "graph"];
    catalog
        .search_observed(&names, &queries, &wanted(1.0, 10), &told)
        .unwrap();
    let warnings = told.0.into_inner().unwrap();
    assert!(
        warnings.len() == 1 && warnings[0].starts_with("graph: recall is 1; "),
        "{warnings:?}"
    );
}

/// Collects warnings.
#[derive(Default)]
struct Told(Mutex<Vec<String>>);

impl Progress for Told {
    fn begin(&self, _: &str, _: u64) {}
    fn advance(&self, _: u64) {}
    fn end(&self) {}
    fn interrupted(&self) -> bool {
        false
    }
    fn warn(&self, message: &str) {
        self.0.lock().unwrap().push(message.to_owned());
    }
}

#[test]
fn clusters_and_press_are_asked_for_a_recall() {
    let root = tempfile::tempdir().unwrap();
    let base = head(SIFT_BASE, ROWS);
    let queries = head(SIFT_QUERIES, 300);
    let truth = brute_force(&base, &queries, 10, Metric::L2, 2, &Silent).unwrap();
    for preset in [Preset::SPANN, Preset::TIERED_CLUSTER, Preset::DISTVS] {
        let path = root.path().join(preset.name);
        build(&base, &path, &of(preset), &Silent).unwrap();
        assert_eq!(verify(&path, &Silent).unwrap().problem_count, 0);
        let index = open(&path);
        let wanted = |recall| SearchOptions {
            recall: Some(recall),
            ..SearchOptions::default()
        };
        let mut last = 0;
        for recall in [0.9, 0.95, 0.99] {
            let found = index.search(&queries, &wanted(recall)).unwrap();
            let measured = truth.recall(&found.ids, &found.distances, 10).unwrap();
            let longest = index.longest_list(&wanted(recall)).unwrap();
            let counters = &found.counters;
            println!(
                "{preset}, target {recall}: recall {measured}, longest list {longest}, {counters:?}"
            );
            // With 300 queries, the recall is known to .01 at best.
            assert!(
                measured > recall - 0.015,
                "{preset}, target {recall}: recall {measured}"
            );
            assert!(
                counters.hops > last,
                "{preset}, target {recall}: {counters:?}"
            );
            last = counters.hops;
        }
        if index.has_clusters() {
            // Each query decides how many clusters are probed: few if it is near a head.
            let hops = |at| {
                let one = rows(SIFT_QUERIES, at, 1);
                index.search(&one, &wanted(0.95)).unwrap().counters.hops
            };
            let hops: Vec<u64> = (0..100).map(hops).collect();
            assert!(hops.iter().min() < hops.iter().max(), "{preset}: {hops:?}");
        }
        // A vector that is left out of its own search takes no slot in the list. Otherwise a list
        // of k entries would be too short by one entry.
        let open_options = OpenOptions::default();
        let own = calibrate(&path, &open_options, None, 1, &Silent).unwrap();
        let last = |list| own.recalls.iter().rfind(|&&(at, _)| at <= list).unwrap().1;
        let is_of_lists = !index.has_clusters();
        // All queries of this calibration are vectors of the index: one vector in forty.
        let chosen = (index.len() / 40).clamp(125, 500);
        assert_eq!(own.queries, chosen, "{preset}");
        assert!(
            !is_of_lists || last(10) < last(13) + 0.005,
            "{:?}",
            own.recalls
        );
        // The calibration uses the user's own queries.
        let calibration = calibrate(&path, &open_options, Some(&queries), 1, &Silent).unwrap();
        assert_eq!(calibration.queries, 300);
        let index = open(&path);
        let found = index.search(&queries, &wanted(0.95)).unwrap();
        let measured = truth.recall(&found.ids, &found.distances, 10).unwrap();
        assert!(
            (0.935..0.99).contains(&measured),
            "{preset}: recall {measured}"
        );
        if !index.has_clusters() {
            // A smaller ratio would rank less of the measured list.
            let rerank = Rerank {
                ratio: 0.1,
                ..index.preset().rerank
            };
            let fewer = SearchOptions {
                rerank: Some(rerank),
                ..wanted(0.95)
            };
            let error = index.search(&queries, &fewer).unwrap_err().to_string();
            assert!(error.contains("rerank"), "{error}");
            continue;
        }
        drop(index);
        // Three of four vectors are deleted, so the same number of live vectors is in four times as
        // many clusters.
        let writes = WriteOptions {
            threads: 1,
            ..WriteOptions::default()
        };
        let live = LiveIndex::open(&path, &open_options, &writes).unwrap();
        let gone: Vec<u64> = (0..ROWS as u64).filter(|id| id % 4 != 0).collect();
        live.delete(&gone).unwrap();
        let left: Vec<u8> = (0..ROWS / 4)
            .flat_map(|row| rows(SIFT_BASE, 4 * row, 1).bytes().to_vec())
            .collect();
        let left = Matrix::new(left, ROWS / 4, 128, Element::U8).unwrap();
        let truth = brute_force(&left, &queries, 10, Metric::L2, 2, &Silent).unwrap();
        let found = live.search(&queries, &wanted(0.95)).unwrap();
        let ids: Vec<u64> = found.ids.iter().map(|id| id / 4).collect();
        let measured = truth.recall(&ids, &found.distances, 10).unwrap();
        println!("{preset}: recall {measured} in the quarter that is left");
        assert!(measured > 0.935, "{preset}: recall {measured}");
    }
    // With the same list, a walk finds less than the measured strategy.
    let index = open(&root.path().join(Preset::DISTVS.name));
    let error = index.search(&queries, &asked(0.9)).unwrap_err();
    assert!(
        error.is_call_wrong() && error.to_string().contains("strategy"),
        "{error}"
    );
}

/// The region of each vector: the number of the nearest of the vectors `pivots`.
fn regions(vectors: &Matrix, pivots: &Matrix) -> Vec<u64> {
    let nearest = brute_force(pivots, vectors, 1, Metric::L2, 2, &Silent).unwrap();
    nearest.ids
}

#[test]
fn clusters_keep_the_recall_if_all_matches_are_elsewhere() {
    let root = tempfile::tempdir().unwrap();
    let base = head(SIFT_BASE, ROWS);
    let queries = head(SIFT_QUERIES, 200);
    let pivots: Vec<u8> = (0..8).flat_map(|at| base.row(at * 700).to_vec()).collect();
    let pivots = Matrix::new(pivots, 8, 128, Element::U8).unwrap();
    let (regions_of_rows, regions_of_queries) =
        (regions(&base, &pivots), regions(&queries, &pivots));
    let rows = (0..ROWS).map(|at| Row {
        attributes: [
            (
                "region".to_owned(),
                Value::Integer(regions_of_rows[at] as i64),
            ),
            ("number".to_owned(), Value::Integer((at % 10) as i64)),
            ("tens".to_owned(), Value::Integer((at / 10 % 10) as i64)),
        ]
        .into(),
        payload: None,
    });
    let rows = RowTable::new(rows.collect());
    let way = SearchOptions {
        recall: Some(0.95),
        way: Some(Way::Within),
        ..SearchOptions::default()
    };
    for layout in [Layout::Replicated, Layout::Addressed, Layout::Grouped] {
        let path = root.path().join(layout.to_string());
        let preset = match layout {
            Layout::Grouped => Preset::TIERED_CLUSTER,
            _ => Preset::SPANN,
        };
        let options = BuildOptions {
            layout: Some(layout),
            ..of(preset)
        };
        build_with_rows(&base, &rows, &path, &options, &Silent).unwrap();
        let index = open(&path);
        let clusters = index.stats().clusters.unwrap().clusters;
        let (mut found, mut asked, mut wider, mut hops) = (0.0, 0, 0, 0);
        for region in 0..8u64 {
            let matching: Vec<usize> = (0..ROWS)
                .filter(|&at| regions_of_rows[at] == region)
                .collect();
            let others: Vec<usize> = (0..200)
                .filter(|&at| regions_of_queries[at] != region)
                .collect();
            let some = |of: &Matrix, at: &[usize]| {
                let bytes = at.iter().flat_map(|&at| of.row(at).to_vec());
                Matrix::new(bytes.collect(), at.len(), 128, Element::U8).unwrap()
            };
            let others = some(&queries, &others);
            let mut truth =
                brute_force(&some(&base, &matching), &others, 10, Metric::L2, 2, &Silent).unwrap();
            for id in &mut truth.ids {
                *id = matching[*id as usize] as u64;
            }
            let filter = Filter::parse(&format!("region == {region}")).unwrap();
            let answers = index.search_filtered(&others, &way, &filter).unwrap();
            let explained = answers.explained.unwrap();
            let recall = truth.recall(&answers.ids, &answers.distances, 10).unwrap();
            assert!(recall > 0.93, "{layout}, region {region}: recall {recall}");
            println!(
                "{layout}, region {region}: recall {recall}, {explained:?}, {:?}",
                answers.counters
            );
            found += recall * others.rows() as f64;
            asked += others.rows() as u64;
            wider += explained.wider;
            hops += answers.counters.hops;
        }
        let recall = found / asked as f64;
        let mean = hops as f64 / asked as f64;
        println!(
            "{layout}: recall {recall}, a query probes {mean} of {clusters} clusters, {wider} of {asked} queries probe more"
        );
        assert!(recall > 0.96, "{layout}: recall {recall}");
        assert!(
            mean < 0.25 * clusters as f64,
            "{layout}: a query probes {mean} of {clusters} clusters"
        );
        assert!(
            wider > asked / 2,
            "{layout}: {wider} of {asked} queries probe more"
        );
        // If a region has fewer matches than a query may read, each strategy finds all of them.
        let filter = Filter::parse("region == 4 and number == 3").unwrap();
        let few = index.search_filtered(&queries, &way, &filter).unwrap();
        let matching = few.explained.unwrap().matching;
        assert!((10..100).contains(&matching), "{matching}");
        assert!(
            few.ids
                .iter()
                .all(|&id| id % 10 == 3 && regions_of_rows[id as usize] == 4)
        );
        // If the matches are spread evenly, the first probes are enough, even if some vectors are
        // deleted.
        let evenly = |live: &LiveIndex| {
            let filter = Filter::parse("number < 2").unwrap();
            let found = live.search_filtered(&queries, &way, &filter).unwrap();
            println!("{layout}, evenly: {:?}", found.counters);
            assert_eq!(found.explained.unwrap().wider, 0, "{layout}");
            found.counters.hops
        };
        drop(index);
        let writes = WriteOptions {
            threads: 1,
            ..WriteOptions::default()
        };
        let live = LiveIndex::open(&path, &OpenOptions::default(), &writes).unwrap();
        let before = evenly(&live);
        let gone: Vec<u64> = (0..ROWS as u64).filter(|id| id / 10 % 10 < 3).collect();
        live.delete(&gone).unwrap();
        // A search then probes more clusters, because each cluster has fewer live vectors.
        let hops = evenly(&live);
        assert!(
            hops < 2 * before,
            "{layout}: {hops} probes, before {before}"
        );
        // If all matches are deleted, no cluster is read twice.
        let filter = Filter::parse("tens < 3").unwrap();
        let none = live.search_filtered(&queries, &way, &filter).unwrap();
        assert!(none.ids.iter().all(|&id| id == u64::MAX), "{layout}");
        let (hops, dry) = (none.counters.hops, none.explained.unwrap().dry);
        // If vectors are stored once, a query may continue with *before*, which finds no vector to
        // read.
        assert!(
            hops <= 200 * clusters && (dry == 0 || layout != Layout::Replicated),
            "{layout}: {hops} probes, {dry} queries with too few results"
        );
    }
}

#[test]
fn clusters_that_were_split_are_probed_as_far() {
    let root = tempfile::tempdir().unwrap();
    let path = root.path().join("index");
    build(&head(SIFT_BASE, ROWS), &path, &of(Preset::SPANN), &Silent).unwrap();
    let writes = WriteOptions {
        threads: 1,
        update: Some(Update::Rebalance),
        ..WriteOptions::default()
    };
    let live = LiveIndex::open(&path, &OpenOptions::default(), &writes).unwrap();
    let ids: Vec<u64> = (ROWS as u64..).take(ROWS).collect();
    live.insert(&rows(SIFT_BASE, ROWS, ROWS), Some(&ids), &Silent)
        .unwrap();
    live.rebalance(&Silent).unwrap();
    drop(live);
    let (base, queries) = (head(SIFT_BASE, 2 * ROWS), head(SIFT_QUERIES, 300));
    let truth = brute_force(&base, &queries, 10, Metric::L2, 2, &Silent).unwrap();
    let index = open(&path);
    for recall in [0.9, 0.95] {
        let wanted = SearchOptions {
            recall: Some(recall),
            ..SearchOptions::default()
        };
        let found = index.search(&queries, &wanted).unwrap();
        let measured = truth.recall(&found.ids, &found.distances, 10).unwrap();
        println!("target {recall}: recall {measured}, {:?}", found.counters);
        assert!(
            measured > recall - 0.015,
            "target {recall}: recall {measured}"
        );
    }
}

#[test]
fn what_cannot_be_is_said() {
    let root = tempfile::tempdir().unwrap();
    let queries = head(SIFT_QUERIES, 10);
    let path = |name: &str| root.path().join(name);
    let base = head(SIFT_BASE, ROWS);
    let unmeasured = BuildOptions {
        calibrate: false,
        ..options(None)
    };
    build(&base, path("index"), &unmeasured, &Silent).unwrap();
    let index = open(&path("index"));
    // In a small index, a search compares all vectors. An index of 6,000 vectors is small.
    let all = index.search(&queries, &asked(0.9)).unwrap();
    let exact = brute_force(&base, &queries, 10, Metric::L2, 1, &Silent).unwrap();
    assert_eq!(exact.recall(&all.ids, &all.distances, 10).unwrap(), 1.0);
    for recall in [0.0, -0.5, 1.01, f64::NAN] {
        let error = index.search(&queries, &asked(recall)).unwrap_err();
        assert!(error.is_call_wrong(), "{error}");
        assert!(error.to_string().contains("such as 0.95"), "{error}");
    }
    let both = SearchOptions {
        stop_early: true,
        ..asked(0.9)
    };
    let error = index.search(&queries, &both).unwrap_err();
    assert!(error.to_string().contains("stop early"), "{error}");
    // With few vectors in clusters, all clusters are probed.
    let clusters = of(Preset::SPANN);
    let few = head(SIFT_BASE, 2000);
    build(&few, path("clusters"), &clusters, &Silent).unwrap();
    let index_of_clusters = open(&path("clusters"));
    let no_strategy = SearchOptions {
        strategy: None,
        ..asked(0.9)
    };
    let all = index_of_clusters.search(&queries, &no_strategy).unwrap();
    let exact = brute_force(&few, &queries, 10, Metric::L2, 1, &Silent).unwrap();
    assert!(exact.recall(&all.ids, &all.distances, 10).unwrap() > 0.99);
    let both = SearchOptions {
        probes: Some(3),
        ..no_strategy
    };
    let error = index_of_clusters.search(&queries, &both).unwrap_err();
    assert!(error.to_string().contains("probes"), "{error}");
    // A larger index that was not measured has no known recalls.
    let more = head(SIFT_BASE, 10_100);
    build(&more, path("large"), &unmeasured, &Silent).unwrap();
    let large = open(&path("large"));
    let error = large.search(&queries, &asked(0.9)).unwrap_err();
    assert!(error.to_string().contains("stratann calibrate"), "{error}");
    let wrong = Matrix::new(vec![0; 40], 10, 1, Element::F32).unwrap();
    let error = calibrate(
        path("large"),
        &OpenOptions::default(),
        Some(&wrong),
        1,
        &Silent,
    );
    assert!(error.unwrap_err().is_call_wrong());
    let writing = LiveIndex::over(&large.into(), &WriteOptions::default()).unwrap();
    let error = calibrate(path("large"), &OpenOptions::default(), None, 1, &Silent).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InUse, "{error}");
    drop(writing);
    calibrate(path("large"), &OpenOptions::default(), None, 2, &Silent).unwrap();
    assert!(open(&path("large")).search(&queries, &asked(0.9)).is_ok());
    // The measurement is damaged. Only a search for a recall reports it.
    let file = std::fs::read_dir(path("large")).unwrap();
    let file = file.map(|entry| entry.unwrap().path());
    let file = file
        .into_iter()
        .find(|path| path.to_string_lossy().contains("recall-"));
    let file = file.unwrap();
    let mut bytes = std::fs::read(&file).unwrap();
    let at = bytes.len() - 100;
    bytes[at] ^= 1;
    std::fs::write(&file, bytes).unwrap();
    let damaged = open(&path("large"));
    assert!(damaged.search(&queries, &SearchOptions::default()).is_ok());
    let error = damaged
        .search(&queries, &asked(0.9))
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("recall-") && error.contains("checksum"),
        "{error}"
    );
    assert_eq!(verify(path("large"), &Silent).unwrap().problem_count, 1);
}
