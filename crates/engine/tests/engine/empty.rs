//! Indexes that begin without vectors, and indexes whose vectors were all deleted.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use stratann::{
    BuildOptions, DirectOptions, Durability, Element, Error, ErrorKind, ExportOptions, Filter,
    Index, LiveIndex, MergeWhen, Metric, NoRows, OpenOptions, Preset, Progress, Range,
    RepairOptions, SearchOptions, Silent, Strategy, VectorSource, WriteOptions, brute_force, build,
    create, plan_build, repair, verify,
};

use super::fixtures::{SIFT_BASE, SIFT_QUERIES, head, rows, slow};

const PRESETS: [Preset; 10] = [
    Preset::STRATANN,
    Preset::DECOUPLEVS,
    Preset::ODINANN,
    Preset::AISAQ,
    Preset::DISKANN,
    Preset::SPANN,
    Preset::TIERED_CLUSTER,
    Preset::DISTVS,
    Preset::PIPEANN,
    Preset::TIERED_GRAPH,
];

fn options(preset: Preset) -> BuildOptions {
    let graph = ![Preset::SPANN.name, Preset::TIERED_CLUSTER.name].contains(&preset.name);
    let usual = BuildOptions::default();
    BuildOptions {
        preset,
        degree: graph.then_some(32),
        build_list: if graph { 50 } else { usual.build_list },
        // One thread builds the same graph each time.
        threads: 1,
        ..usual
    }
}

fn begin(path: &Path, preset: Preset) {
    let dim = head(SIFT_BASE, 1).dim();
    let report = create(path, Element::U8, dim, &options(preset), &Silent).unwrap();
    assert_eq!(report.vectors, 0);
}

fn live(path: &Path) -> LiveIndex {
    let options = WriteOptions {
        durability: Durability::OnFlush,
        threads: 1,
        update: None,
        direct: DirectOptions::default(),
    };
    LiveIndex::open(path, &OpenOptions::default(), &options).unwrap()
}

fn read_only(path: &Path) -> Index {
    Index::open(path, &OpenOptions::default()).unwrap()
}

fn finds_nothing(path: &Path) {
    let index = read_only(path);
    assert_eq!((index.len(), index.live()), (0, 0));
    let queries = head(SIFT_QUERIES, 3);
    for k in [1, 7] {
        let options = SearchOptions {
            k,
            list: 20,
            ..SearchOptions::default()
        };
        let found = index.search(&queries, &options).unwrap();
        assert_eq!(found.ids, vec![u64::MAX; 3 * k]);
        assert!(
            found
                .distances
                .iter()
                .all(|d| d.is_nan() || d.is_infinite()),
            "{:?}",
            found.distances
        );
    }
    let stats = index.stats();
    assert_eq!((stats.vectors, stats.deleted, stats.logged), (0, 0, 0));
    assert!(index.ids(None, 10).unwrap().is_empty());
    let rows = index.vectors(&[0, 7, u64::MAX], &Silent).unwrap();
    assert_eq!(rows.missing, [0, 7, u64::MAX]);
    let report = verify(path, &Silent).unwrap();
    assert!(report.clean(), "{:?}", report.problems);
}

fn search(k: usize) -> SearchOptions {
    SearchOptions {
        k,
        list: k.max(40),
        ..SearchOptions::default()
    }
}

#[test]
fn an_index_begins_with_nothing() {
    for preset in PRESETS {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("index");
        begin(&path, preset);
        finds_nothing(&path);
        let index = live(&path);
        assert_eq!((index.len(), index.is_empty()), (0, true));
        assert_eq!(index.compact(&Silent).unwrap().vectors, 0);
        assert_eq!(index.delete(&[0]).unwrap_err().kind(), ErrorKind::Call);
        let first = head(SIFT_BASE, 1);
        assert_eq!(index.insert(&first, None, &Silent).unwrap(), [0]);
        assert_eq!(index.len(), 1);
        drop(index);
        let index = live(&path);
        assert_eq!(index.len(), 1);
        assert_eq!(index.search(&first, &search(2)).unwrap().ids, [0, u64::MAX]);
        index.delete(&[0]).unwrap();
        assert_eq!(index.len(), 0);
        drop(index);
        let index = read_only(&path);
        assert_eq!(index.live(), 0);
        assert_eq!(index.search(&first, &search(2)).unwrap().ids, [u64::MAX; 2]);
        drop(index);
        assert!(verify(&path, &Silent).unwrap().clean());
        let index = live(&path);
        assert_eq!(index.compact(&Silent).unwrap().vectors, 0);
        assert_eq!(index.insert(&first, None, &Silent).unwrap(), [1]);
        index.delete(&[1]).unwrap();
        index.compact(&Silent).unwrap();
        drop(index);
        finds_nothing(&path);
    }
}

#[test]
fn all_that_takes_an_index_takes_one_of_nothing() {
    for preset in PRESETS {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path();
        begin(path, preset);
        let name = preset.name;
        let open = OpenOptions {
            memory: Some(64 << 20),
            ..OpenOptions::default()
        };
        let index = Index::open(path, &open).unwrap();
        let query = head(SIFT_QUERIES, 1);
        let graph = !index.has_clusters();
        let mut ways = vec![search(3)];
        // The strategy PRESS ends a search by a rule of its own.
        if graph && name != Preset::DISTVS.name {
            ways.push(SearchOptions {
                recall: Some(0.9),
                ..search(3)
            });
        }
        if graph {
            ways.push(SearchOptions {
                strategy: Some(Strategy::BestFirst),
                exact: true,
                ..search(3)
            });
        } else {
            ways.push(SearchOptions {
                probes: Some(3),
                ..search(3)
            });
        }
        for options in ways {
            let found = index.search(&query, &options);
            let found = found.unwrap_or_else(|error| panic!("{name}: {error}"));
            assert_eq!(found.ids, [u64::MAX; 3], "{name}");
        }
        let range = Range::of(1e9);
        let found = index
            .search_range(&query, &range, &search(10), None, &Silent)
            .unwrap();
        assert!(found.ids.is_empty() && found.next.is_none(), "{name}");
        let filter = Filter::parse("year >= 2020").unwrap();
        let error = index
            .search_filtered(&query, &search(3), &filter)
            .unwrap_err();
        assert!(matches!(error, Error::Filter { .. }), "{name}: {error}");
        drop(index);
        let report = repair(
            path,
            &RepairOptions {
                force: true,
                threads: 1,
                memory: None,
            },
            &Silent,
        );
        let report = report.unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(
            (report.repaired, report.vectors, report.vectors_lost),
            (true, 0, 0),
            "{name}"
        );
        finds_nothing(path);
        let again = BuildOptions {
            overwrite: true,
            ..options(preset)
        };
        build(&head(SIFT_BASE, 40), path, &again, &Silent).unwrap();
        assert_eq!(read_only(path).live(), 40, "{name}");
        let none = NoRows::new(Element::F32, 24);
        let plan = plan_build(&none, &options(preset)).unwrap();
        assert_eq!(
            (plan.vectors, plan.raw_bytes, plan.dimension),
            (0, 0, 24),
            "{name}"
        );
    }
}

#[test]
fn vectors_of_no_rows_are_of_every_type_and_metric() {
    let folder = tempfile::tempdir().unwrap();
    for element in [Element::F32, Element::F16, Element::U8, Element::I8] {
        for metric in [Metric::L2, Metric::Cosine, Metric::InnerProduct] {
            let path = folder.path().join(format!("{element}-{metric}"));
            let options = BuildOptions {
                metric,
                ..options(Preset::STRATANN)
            };
            create(&path, element, 5, &options, &Silent).unwrap();
            let index = read_only(&path);
            assert_eq!(
                (index.dim(), index.element(), index.metric()),
                (5, element, metric)
            );
            assert_eq!(index.live(), 0);
        }
    }
    let refused = |dim, options: &BuildOptions, text: &str| {
        let path = folder.path().join("none");
        let error = create(&path, Element::F32, dim, options, &Silent).unwrap_err();
        assert!(error.is_call_wrong(), "{error}");
        assert!(error.to_string().contains(text), "{error}");
        assert!(!path.exists());
    };
    refused(0, &options(Preset::STRATANN), "dimension of vectors is 0");
    refused(
        1 << 30,
        &options(Preset::SPANN),
        "dimension of vectors is 1073741824",
    );
    let ids = BuildOptions {
        ids: Some(vec![7]),
        ..options(Preset::STRATANN)
    };
    refused(4, &ids, "number of ids is 1; there are 0 rows");
    let space = BuildOptions {
        space: Some(1 << 20),
        degree: None,
        ..options(Preset::STRATANN)
    };
    refused(4, &space, "Give a degree");
}

/// While another thread replaces vectors, the count is right at all times.
#[test]
fn how_many_there_are_is_right_at_every_moment() {
    struct Upserts<'a>(&'a LiveIndex, AtomicBool);
    impl Progress for Upserts<'_> {
        fn begin(&self, _: &str, _: u64) {
            if !self.1.swap(true, Ordering::Relaxed) {
                let ids: Vec<u64> = (0..200).collect();
                self.0
                    .upsert(&rows(SIFT_BASE, 1_000, 200), &ids, &Silent)
                    .unwrap();
            }
        }
        fn advance(&self, _: u64) {}
        fn end(&self) {}
        fn warn(&self, _: &str) {}
        fn interrupted(&self) -> bool {
            false
        }
    }
    let all = [
        Preset::STRATANN,
        Preset::DISKANN,
        Preset::ODINANN,
        Preset::AISAQ,
        Preset::SPANN,
    ];
    for preset in &all[..if slow() { all.len() } else { 2 }] {
        let folder = tempfile::tempdir().unwrap();
        build(
            &head(SIFT_BASE, 300),
            folder.path(),
            &options(*preset),
            &Silent,
        )
        .unwrap();
        let index = live(folder.path());
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let watcher = scope.spawn(|| {
                let mut wrong = Vec::new();
                while !done.load(Ordering::Acquire) {
                    let len = index.len();
                    if len != 300 {
                        wrong.push(len);
                    }
                    std::thread::sleep(std::time::Duration::from_micros(50));
                }
                wrong.dedup();
                wrong
            });
            let changer = scope.spawn(|| {
                for round in 0..2 {
                    let ids: Vec<u64> = (0..300).collect();
                    index
                        .upsert(&rows(SIFT_BASE, 300 * round, 300), &ids, &Silent)
                        .unwrap();
                    index
                        .compact(&Upserts(&index, AtomicBool::new(false)))
                        .unwrap();
                }
            });
            let changed = changer.join();
            done.store(true, Ordering::Release);
            let wrong = watcher.join().unwrap();
            changed.unwrap();
            assert!(wrong.is_empty(), "{}: {wrong:?}", preset.name);
        });
        assert_eq!(index.len(), 300, "{}", preset.name);
        drop(index);
        assert_eq!(read_only(folder.path()).live(), 300, "{}", preset.name);
    }
}

#[test]
fn what_is_emptied_and_filled_again_counts_right() {
    const COUNT: usize = 90;
    let ways = [
        (false, false, false),
        (true, false, true),
        (false, true, true),
        (true, true, false),
    ];
    let few = if slow() { ways.len() } else { 1 };
    for (number, preset) in PRESETS.into_iter().enumerate() {
        let tried = ways.into_iter().cycle().skip(number).take(few);
        for (reopens, merges, upserts) in tried {
            let said = format!("{}, {reopens} {merges} {upserts}", preset.name);
            let folder = tempfile::tempdir().unwrap();
            build(
                &head(SIFT_BASE, COUNT),
                folder.path(),
                &options(preset),
                &Silent,
            )
            .unwrap();
            let mut index = live(folder.path());
            let ids: Vec<u64> = (0..COUNT as u64).collect();
            for round in 1..3 {
                for (at, some) in ids.chunks(40).enumerate() {
                    index.delete(some).unwrap();
                    let left = COUNT - (40 * at + some.len());
                    assert_eq!(index.len(), left, "{said}");
                }
                if reopens {
                    drop(index);
                    assert_eq!(read_only(folder.path()).live(), 0, "{said}");
                    index = live(folder.path());
                    assert_eq!(index.len(), 0, "{said}");
                }
                if merges {
                    assert_eq!(index.compact(&Silent).unwrap().vectors, 0, "{said}");
                    assert_eq!(index.len(), 0, "{said}");
                }
                for (at, some) in ids.chunks(40).enumerate() {
                    let vectors = rows(SIFT_BASE, COUNT * round + 40 * at, some.len());
                    match upserts {
                        true => index.upsert(&vectors, some, &Silent).unwrap(),
                        false => _ = index.insert(&vectors, Some(some), &Silent).unwrap(),
                    }
                    assert_eq!(index.len(), 40 * at + some.len(), "{said}");
                }
                index
                    .upsert(&rows(SIFT_BASE, COUNT * round, COUNT), &ids, &Silent)
                    .unwrap();
                assert_eq!(index.len(), COUNT, "{said}");
            }
            let found = index
                .search(&rows(SIFT_BASE, COUNT * 2, 1), &search(COUNT))
                .unwrap();
            assert!(!found.ids.contains(&u64::MAX), "{said}: {:?}", found.ids);
            drop(index);
            assert_eq!(read_only(folder.path()).live(), COUNT, "{said}");
        }
    }
}

#[test]
fn an_index_that_grew_without_a_merge_says_that_it_is_in_trouble() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("index");
    // The build does as little work per vector as possible.
    let options = BuildOptions {
        degree: Some(16),
        build_list: 16,
        ..BuildOptions::default()
    };
    create(
        &path,
        Element::U8,
        head(SIFT_BASE, 1).dim(),
        &options,
        &Silent,
    )
    .unwrap();
    let index = live(&path);
    let grow = |count: usize| {
        let rows = rows(SIFT_BASE, index.len(), count - index.len());
        index.insert(&rows, None, &Silent).unwrap();
    };
    let missed = || {
        let asked = rows(SIFT_BASE, 5_000, 100);
        let options = SearchOptions {
            k: 1,
            exact: true,
            ..SearchOptions::default()
        };
        let found = index.search(&asked, &options).unwrap();
        found.distances.iter().filter(|&&far| far > 0.0).count()
    };
    grow(9_999);
    assert_eq!((index.stats().trouble, missed()), (None, 0));
    grow(10_000);
    let trouble = index.stats().trouble.unwrap();
    assert!(missed() > 10, "{} of 100 rows are missed", missed());
    assert!(trouble.contains("often miss"), "{trouble}");
    assert!(trouble.contains("10000 times the vectors"), "{trouble}");
    assert!(trouble.ends_with("compact the index)"), "{trouble}");
    drop(index);
    assert_eq!(read_only(&path).stats().trouble, Some(trouble));
    let index = live(&path);
    index.compact(&Silent).unwrap();
    assert_eq!(read_only(&path).stats().trouble, None);
    assert_eq!(index.stats().trouble, None);
}

/// After inserts in pieces and due merges, the recall is as good as after a build of all vectors.
#[test]
fn an_index_that_begins_with_nothing_gets_as_good_as_a_build() {
    let count = if slow() { 2_000 } else { 1_200 };
    let queries = head(SIFT_QUERIES, 200);
    let base = head(SIFT_BASE, count);
    let truth = brute_force(&base, &queries, 10, Metric::L2, 2, &Silent).unwrap();
    // The second preset has clusters, so a default run tests a graph and clusters.
    let order = [0, 5, 1, 2, 3, 4, 6, 7, 8, 9].map(|at: usize| PRESETS[at]);
    let few = if slow() { order.len() } else { 2 };
    for preset in &order[..few] {
        let clusters = options(*preset).degree.is_none();
        let recall = |path: &Path| {
            let index = read_only(path);
            assert_eq!(index.live(), count);
            let search = match clusters {
                true => SearchOptions {
                    probes: Some(8),
                    ..search(10)
                },
                false => SearchOptions {
                    strategy: Some(Strategy::BestFirst),
                    ..search(10)
                },
            };
            let found = index.search(&queries, &search).unwrap();
            truth.recall(&found.ids, &found.distances, 10).unwrap()
        };
        let folder = tempfile::tempdir().unwrap();
        let (grown, built) = (folder.path().join("grown"), folder.path().join("built"));
        build(&base, &built, &options(*preset), &Silent).unwrap();
        begin(&grown, *preset);
        let index = live(&grown);
        let when = MergeWhen::default();
        for first in (0..count).step_by(100) {
            index
                .insert(&rows(SIFT_BASE, first, 100), None, &Silent)
                .unwrap();
            // This merge replaces the background merge, which depends on the clock.
            if index.due(&when).is_some() {
                index.compact(&Silent).unwrap();
            }
        }
        assert!(index.merges() > 0, "{}", preset.name);
        drop(index);
        let (grown_recall, built_recall) = (recall(&grown), recall(&built));
        let said = format!(
            "{}: {grown_recall} grown, {built_recall} built",
            preset.name
        );
        eprintln!("{said}");
        assert!(grown_recall >= built_recall - 0.01, "{said}");
        assert!(verify(&grown, &Silent).unwrap().clean(), "{said}");
    }
}

fn exported(folder: &Path, written: u64) -> Vec<(u64, Vec<u8>)> {
    let ids = std::fs::read_to_string(folder.join("rows.ids")).unwrap();
    let ids: Vec<u64> = ids.lines().map(|line| line.parse().unwrap()).collect();
    assert_eq!(ids.len() as u64, written);
    let vectors = std::fs::read(folder.join("rows.u8bin")).unwrap();
    let bytes = (vectors.len() - 8) / ids.len();
    let vectors = vectors[8..].chunks_exact(bytes).map(<[u8]>::to_vec);
    let mut rows: Vec<_> = ids.into_iter().zip(vectors).collect();
    rows.sort_unstable();
    rows
}

#[test]
fn all_of_an_index_that_began_with_nothing_is_exported() {
    let options = ExportOptions {
        overwrite: true,
        ..ExportOptions::default()
    };
    for preset in PRESETS {
        for count in [1, 5] {
            let folder = tempfile::tempdir().unwrap();
            let (path, out) = (
                folder.path().join("index"),
                folder.path().join("rows.u8bin"),
            );
            begin(&path, preset);
            let (index, all) = (live(&path), head(SIFT_BASE, count));
            index.insert(&all, None, &Silent).unwrap();
            let bytes = all.bytes().chunks_exact(all.row_bytes());
            let expected: Vec<_> = (0u64..).zip(bytes.map(<[u8]>::to_vec)).collect();
            let report = index.export(&out, &options, &Silent).unwrap();
            assert_eq!(
                exported(folder.path(), report.vectors),
                expected,
                "{preset}"
            );
            drop(index);
            let report = read_only(&path).export(&out, &options, &Silent).unwrap();
            assert_eq!(
                exported(folder.path(), report.vectors),
                expected,
                "{preset}"
            );
        }
    }
}
