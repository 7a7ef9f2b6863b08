//! Direct inserts into an index of real data, as a program does them through the library.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use stratann::{
    BuildOptions, DirectOptions, Due, Durability, Error, GroundTruth, Index, Layout, LiveIndex,
    Matrix, MergeWhen, Metric, OpenOptions, Preset, Progress, SearchOptions, SearchResults, Silent,
    Strategy, Update, VectorSource, WriteOptions, brute_force, build, verify,
};

use super::fixtures::{SIFT_BASE, SIFT_QUERIES, head, matrix, rows, slow};

const DEGREE: usize = 32;

fn part(all: &Matrix, first: usize, rows: usize) -> Matrix {
    let row = all.row_bytes();
    let mut bytes = vec![0; rows * row];
    all.read(first, &mut bytes).unwrap();
    Matrix::new(bytes, rows, all.dim(), all.element()).unwrap()
}

fn built(rows: &Matrix, preset: Preset, path: &Path) {
    let options = BuildOptions {
        preset,
        degree: Some(DEGREE),
        build_list: 50,
        threads: 2,
        ..BuildOptions::default()
    };
    build(rows, path, &options, &Silent).unwrap();
}

fn writing(update: Update) -> WriteOptions {
    WriteOptions {
        durability: Durability::OnFlush,
        threads: 2,
        update: Some(update),
        direct: DirectOptions::default(),
    }
}

/// Inserts run one after another, so that each run builds the same graph.
fn alone(update: Option<Update>) -> WriteOptions {
    WriteOptions {
        durability: Durability::OnFlush,
        threads: 1,
        update,
        direct: DirectOptions {
            in_flight: 1,
            ..DirectOptions::default()
        },
    }
}

/// Recall@10 and reads for each query at list size 40, with best-first search.
fn quality(
    truth: &GroundTruth,
    search: impl Fn(&Matrix, &SearchOptions) -> SearchResults,
) -> (f64, f64) {
    let queries = matrix(SIFT_QUERIES);
    let options = SearchOptions {
        list: 40,
        strategy: Some(Strategy::BestFirst),
        ..SearchOptions::default()
    };
    let results = search(&queries, &options);
    let recall = truth.recall(&results.ids, &results.distances, 10).unwrap();
    (
        recall,
        results.counters.graph_reads as f64 / queries.rows() as f64,
    )
}

/// Old versions of pages are not free before the next checkpoint.
#[test]
fn a_graph_is_merged_when_most_of_its_pages_are_free() {
    let size = |path: &Path| -> u64 {
        let files = std::fs::read_dir(path).unwrap();
        files
            .map(|file| file.unwrap().metadata().unwrap().len())
            .sum()
    };
    // The index of the last case becomes much larger than the smallest index that is worth a merge.
    let cases = [
        (Preset::ODINANN, 1_000, 1.8),
        (Preset::STRATANN, 1_000, 1.8),
        (Preset::ODINANN, 50, 2.4),
    ];
    for (preset, least, bound) in cases {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("index");
        built(&head(SIFT_BASE, 1_000), preset, &path);
        let each = size(&path) as f64 / 1_000.0;
        let (mut next, mut merged) = (1_000, 1_000);
        let mut nights = |merges: bool| {
            let (mut most, mut due) = (0.0f64, 0);
            for _ in 0..6 {
                let index = LiveIndex::open(&path, &OpenOptions::default(), &alone(None)).unwrap();
                let new = rows(SIFT_BASE, next, 60);
                index.insert(&new, None, &Silent).unwrap();
                next += 60;
                index.flush().unwrap();
                let when = MergeWhen {
                    least,
                    ..MergeWhen::default()
                };
                if matches!(index.due(&when), Some(Due::Garbage(share)) if share >= 0.4) {
                    due += 1;
                    if merges {
                        index.compact(&Silent).unwrap();
                        assert_eq!(index.due(&when), None);
                        merged = next;
                    }
                }
                drop(index);
                let times = size(&path) as f64 / (each * next as f64);
                most = times.max(most);
                let tenth = next - merged >= next / 10;
                assert!(
                    !merges || !tenth || times < bound,
                    "{}: {times} times",
                    preset.name
                );
            }
            (most, due)
        };
        let (merged, merges) = nights(true);
        let (grown, due) = nights(false);
        let said = format!(
            "{}: {merged} and {merges} merges, {grown} without",
            preset.name
        );
        eprintln!("{said}, {due}");
        assert!(merges > 0 && due > 0, "{said}");
        // The last case merges so seldom that its largest size is about the size without merges.
        assert!(least == 50 || merged < grown, "{said}");
    }
}

/// As long as more inserts may follow, an index of so few vectors is not merged.
#[test]
fn a_small_graph_that_is_closed_is_merged_where_it_takes_more_than_twice_a_build() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("index");
    let options = BuildOptions {
        preset: Preset::ODINANN,
        degree: Some(64),
        build_list: 64,
        threads: 2,
        ..BuildOptions::default()
    };
    build(&head(SIFT_BASE, 6_000), &path, &options, &Silent).unwrap();
    let pages = |index: &LiveIndex| index.stats().direct.unwrap().pages as f64;
    let index = LiveIndex::open(&path, &OpenOptions::default(), &alone(None)).unwrap();
    let of_the_build = pages(&index);
    for first in (6_000..6_360).step_by(60) {
        index
            .insert(&rows(SIFT_BASE, first, 60), None, &Silent)
            .unwrap();
    }
    let when = MergeWhen::default();
    assert_eq!(index.due(&when), None);
    let times = pages(&index) / of_the_build;
    assert!(times > 2.4, "{times}: the index needs no merge");
    let index = Arc::new(index);
    let merger = index.merge_when_due(when).unwrap();
    merger.finish(&Silent);
    assert_eq!(index.merges(), 1);
    assert!(pages(&index) < 1.1 * of_the_build);
}

#[test]
fn inserted_vectors_are_found_as_by_a_fresh_build_and_written_in_few_pages() {
    let count = if slow() { 20_000 } else { 4_000 };
    let (all, built_of) = (head(SIFT_BASE, count), count / 4 * 3);
    let rest = part(&all, built_of, count - built_of);
    let truth = brute_force(&all, &matrix(SIFT_QUERIES), 10, Metric::L2, 2, &Silent).unwrap();
    let quality =
        |search: &dyn Fn(&Matrix, &SearchOptions) -> SearchResults| quality(&truth, search);
    for (preset, update, most_pages) in [
        (Preset::STRATANN, Update::Accumulate, 3.0),
        (Preset::DECOUPLEVS, Update::Accumulate, 4.0),
        // The bound is twice R / n, where n is the number of records of this size on a page: 16.
        (Preset::ODINANN, Update::Relocate, 2.0 * 32.0 / 16.0),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let (fresh, grown) = (folder.path().join("fresh"), folder.path().join("grown"));
        built(&all, preset, &fresh);
        built(&part(&all, 0, built_of), preset, &grown);
        let index = Index::open(&fresh, &OpenOptions::default()).unwrap();
        let (aim, reads_aim) = quality(&|queries, options| index.search(queries, options).unwrap());
        let live = LiveIndex::open(&grown, &OpenOptions::default(), &writing(update)).unwrap();
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let some = part(&all, 100, 50);
                while !done.load(Ordering::Relaxed) {
                    // The list is long, because the links that two threads make differ each time.
                    let options = SearchOptions {
                        k: 1,
                        list: 200,
                        strategy: Some(Strategy::BestFirst),
                        ..SearchOptions::default()
                    };
                    let results = live.search(&some, &options).unwrap();
                    let exact = results.distances.iter().filter(|&&d| d == 0.0).count();
                    assert!(exact >= 48, "{exact} of 50");
                }
            });
            let ids = live.insert(&rest, None, &Silent);
            done.store(true, Ordering::Relaxed);
            assert_eq!(ids.unwrap()[0], built_of as u64);
        });
        let direct = live.stats().direct.unwrap();
        assert_eq!((direct.inserts as usize, live.len()), (count / 4, count));
        let each = |count: u64| count as f64 / direct.inserts as f64;
        let (recall, reads) = quality(&|queries, options| live.search(queries, options).unwrap());
        let said = format!(
            "{}: recall {recall:.4} in {reads:.1} reads, fresh {aim:.4} in {reads_aim:.1}; {:.2} pages written an insert, {:?}",
            preset.name,
            each(direct.pages_written),
            direct
        );
        eprintln!("{said}");
        assert!(recall >= aim - 0.01, "{said}");
        // The ratio was 1.02, 1.07 and 1.09 in three runs, because the links of two threads differ.
        assert!(reads <= 1.25 * reads_aim, "{said}");
        assert!(each(direct.pages_written) <= most_pages, "{said}");
        drop(live);

        let index = Index::open(&grown, &OpenOptions::default()).unwrap();
        assert_eq!((index.live(), index.stats().logged), (count, 0));
        let again = quality(&|queries, options| index.search(queries, options).unwrap());
        assert!((again.0 - recall).abs() < 0.003, "{said}, {again:?}");
        let report = verify(&grown, &Silent).unwrap();
        assert!(report.clean(), "{:?}", report.problems);
    }
}

#[test]
fn what_was_not_checkpointed_is_replayed_and_a_merge_keeps_it() {
    let all = matrix(SIFT_BASE);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("index");
    built(&part(&all, 0, 4_000), Preset::STRATANN, &path);
    let mut options = writing(Update::Accumulate);
    options.durability = Durability::Always;
    options.direct.checkpoint = Some(300);
    let live = LiveIndex::open(&path, &OpenOptions::default(), &options).unwrap();
    live.insert(&part(&all, 4_000, 1_000), None, &Silent)
        .unwrap();
    live.delete(&[5, 4_007]).unwrap();
    live.upsert(&part(&all, 6_000, 2), &[6, 4_008], &Silent)
        .unwrap();
    // The copy has the files that a crash would leave.
    let copy = folder.path().join("copy");
    std::fs::create_dir(&copy).unwrap();
    for file in std::fs::read_dir(&path).unwrap() {
        let file = file.unwrap();
        std::fs::copy(file.path(), copy.join(file.file_name())).unwrap();
    }
    let expected = |search: &dyn Fn(&Matrix) -> stratann::SearchResults, place: &str| {
        for (row, id) in [
            (5, None),
            (4_007, None),
            (6_000, Some(6)),
            (6_001, Some(4_008)),
            (4_999, Some(4_999)),
            (17, Some(17)),
        ] {
            let results = search(&part(&all, row, 1));
            match id {
                Some(id) => {
                    assert_eq!((results.ids[0], results.distances[0]), (id, 0.0), "{place}")
                }
                None => assert_ne!(results.distances[0], 0.0, "{place}"),
            }
        }
    };
    let options = |list| SearchOptions {
        k: 1,
        list,
        strategy: Some(Strategy::BestFirst),
        ..SearchOptions::default()
    };
    expected(&|row| live.search(row, &options(50)).unwrap(), "live");
    assert!(live.stats().direct.unwrap().checkpoints >= 2);
    let reader = Index::open(&copy, &OpenOptions::default()).unwrap();
    expected(
        &|row| reader.search(row, &options(50)).unwrap(),
        "a reader after a crash",
    );
    assert_eq!(reader.live(), live.len());
    let again = LiveIndex::open(&copy, &OpenOptions::default(), &WriteOptions::default()).unwrap();
    expected(
        &|row| again.search(row, &options(50)).unwrap(),
        "a writer after a crash",
    );
    assert_eq!((again.len(), again.stats().logged), (live.len(), 0));
    assert!(
        !reader.is_current().unwrap(),
        "the reader has the last checkpoint"
    );
    let report = again.compact(&Silent).unwrap();
    assert_eq!((report.vectors, report.removed), (4_998, 4));
    expected(
        &|row| again.search(row, &options(50)).unwrap(),
        "after a merge",
    );
    let id = again.insert(&part(&all, 7_000, 1), None, &Silent).unwrap()[0];
    assert_eq!(id, 5_000);
    let found = again.search(&part(&all, 7_000, 1), &options(50)).unwrap();
    assert_eq!(found.ids, [5_000]);
    drop(again);
    assert!(verify(&copy, &Silent).unwrap().clean());
}

fn stretched(rows: &Matrix) -> Matrix {
    let mut bytes = vec![0; rows.rows() * rows.row_bytes()];
    rows.read(0, &mut bytes).unwrap();
    for (row, bytes) in bytes.chunks_exact_mut(rows.row_bytes()).enumerate() {
        let by = 1.0 + (row * 7 % 11) as f32 / 5.0;
        for value in bytes.chunks_exact_mut(4) {
            let float = f32::from_le_bytes([value[0], value[1], value[2], value[3]]);
            value.copy_from_slice(&(by * float).to_le_bytes());
        }
    }
    Matrix::new(bytes, rows.rows(), rows.dim(), rows.element()).unwrap()
}

#[test]
fn vectors_go_in_directly_by_angle_and_by_product_into_every_layout() {
    let count = if slow() { 2_000 } else { 1_000 };
    let all = stretched(&head("package-text-2k.base.fbin", count));
    let (built_of, queries) = (count / 4 * 3, matrix("package-text-2k.query.fbin"));
    for metric in [Metric::Cosine, Metric::InnerProduct] {
        let truth = brute_force(&all, &queries, 10, metric, 2, &Silent).unwrap();
        for layout in [
            Layout::Coupled,
            Layout::Packed,
            Layout::Decoupled,
            Layout::Inline,
            Layout::Layered,
        ] {
            let by_angle = matches!(layout, Layout::Coupled | Layout::Decoupled);
            if !slow() && layout != Layout::Layered && by_angle != (metric == Metric::Cosine) {
                continue;
            }
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("index");
            let options = BuildOptions {
                metric,
                degree: Some(24),
                build_list: 40,
                layout: Some(layout),
                threads: 1,
                ..BuildOptions::default()
            };
            build(&part(&all, 0, built_of), &path, &options, &Silent).unwrap();
            let options = alone(None);
            let live = LiveIndex::open(&path, &OpenOptions::default(), &options).unwrap();
            let rest = part(&all, built_of, count - built_of);
            live.insert(&rest, None, &Silent).unwrap();
            let inserts = live.stats().direct.map(|direct| direct.inserts as usize);
            assert_eq!(inserts, Some(rest.rows()));
            let stats = live.stats();
            assert_eq!(stats.logged, 0);
            let options = SearchOptions {
                list: 60,
                strategy: Some(Strategy::BestFirst),
                ..SearchOptions::default()
            };
            let found = live.search(&queries, &options).unwrap();
            let recall = truth.recall(&found.ids, &found.distances, 10).unwrap();
            eprintln!("{metric}, {layout}: recall {recall:.4}");
            assert!(recall > 0.95, "{metric}, {layout}: {recall}");
        }
    }
}

#[test]
fn exact_answers_come_of_trailing_parts_that_are_not_written_yet() {
    let all = matrix("package-text-2k.base.fbin");
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("index");
    let options = BuildOptions {
        metric: Metric::Cosine,
        degree: Some(24),
        build_list: 40,
        layout: Some(Layout::Layered),
        threads: 1,
        ..BuildOptions::default()
    };
    build(&part(&all, 0, 1_500), &path, &options, &Silent).unwrap();
    let live = LiveIndex::open(&path, &OpenOptions::default(), &alone(None)).unwrap();
    // Near vectors have trailing parts that continue from page to page in memory.
    let (first, dim) = (part(&all, 3, 1), all.dim());
    let near: Vec<u8> = (0..40)
        .flat_map(|n| {
            let row = first.row(0).chunks_exact(4).enumerate();
            row.flat_map(move |(i, value)| {
                let value = f32::from_le_bytes(value.try_into().unwrap());
                let off = if (i + n) % 11 == 0 { 1e-3 } else { 0.0 };
                (value + off).to_le_bytes()
            })
            .collect::<Vec<u8>>()
        })
        .collect();
    let near = Matrix::new(near, 40, dim, all.element()).unwrap();
    let options = SearchOptions {
        k: 10,
        list: 60,
        exact: true,
        strategy: Some(Strategy::BestFirst),
        ..SearchOptions::default()
    };
    for n in 0..40 {
        let (row, id) = (part(&near, n, 1), 5_000 + n as u64);
        live.insert(&row, Some(&[id]), &Silent).unwrap();
        let found = live.search(&part(&near, 0, n + 1), &options).unwrap();
        let answers = &found.ids[n * 10..][..10];
        assert!(answers.contains(&id), "{id}: {answers:?}");
    }
}

/// Over a tenth of all ids is deleted. The deleted ids take more memory than the budget leaves
/// free.
#[test]
fn what_was_deleted_since_the_last_merge_is_within_the_budget() {
    for preset in [Preset::ODINANN, Preset::AISAQ, Preset::STRATANN] {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("index");
        built(&head(SIFT_BASE, 1_000), preset, &path);
        let index = LiveIndex::open(&path, &OpenOptions::default(), &alone(None)).unwrap();
        let deleted: Vec<u64> = (0..400).collect();
        index.delete(&deleted).unwrap();
        index
            .insert(&rows(SIFT_BASE, 1_000, 50), None, &Silent)
            .unwrap();
        index.flush().unwrap();
        drop(index);
        let of = |memory| {
            let options = OpenOptions {
                memory: Some(memory),
                ..OpenOptions::default()
            };
            let index = Index::open(&path, &options)?;
            // Searches keep the set of deleted nodes in memory.
            index.search(&matrix(SIFT_QUERIES), &SearchOptions::default())?;
            Ok(index.stats().memory)
        };
        let plan = of(100 << 20).unwrap();
        assert!(plan.changes > 10_000, "{preset}: {plan:?}");
        let least = match of(1) {
            Err(Error::Memory { needs, .. }) => needs,
            other => panic!("{other:?}"),
        };
        of(least).unwrap();
        let pages = plan.graph_pages + plan.vector_pages;
        for memory in [
            least + 2 * plan.changes,
            least + 2 * plan.changes + pages / 2,
        ] {
            let plan = of(memory).unwrap();
            let index = plan.codes + plan.codebook + plan.tables + plan.navigation;
            let pages = plan.graph_pages + plan.vector_pages;
            let taken = plan.program + plan.queries + index + pages + plan.changes;
            assert!(taken <= memory, "{preset}: {taken} of {memory}: {plan:?}");
        }
    }
}

#[test]
fn memory_for_all_pages_holds_those_that_inserts_wrote() {
    let all = matrix(SIFT_BASE);
    let rest = part(&all, 2_000, 1_000);
    let queries = matrix(SIFT_QUERIES);
    let cases = [
        (Layout::Packed, Update::Accumulate),
        (Layout::Layered, Update::Relocate),
        (Layout::Inline, Update::InPlace),
        (Layout::Packed, Update::Relocate),
        (Layout::Decoupled, Update::Accumulate),
        (Layout::Coupled, Update::Relocate),
    ];
    for (layout, update) in cases.into_iter().take(if slow() { 6 } else { 3 }) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("index");
        let options = BuildOptions {
            layout: Some(layout),
            degree: Some(16),
            build_list: 30,
            code_bytes: Some(16),
            threads: 2,
            ..BuildOptions::default()
        };
        build(&part(&all, 0, 2_000), &path, &options, &Silent).unwrap();
        let live = LiveIndex::open(&path, &OpenOptions::default(), &writing(update)).unwrap();
        live.insert(&rest, None, &Silent).unwrap();
        live.flush().unwrap();
        drop(live);
        let search = SearchOptions {
            strategy: Some(Strategy::BestFirst),
            ..SearchOptions::default()
        };
        let read = Index::open(&path, &OpenOptions::default()).unwrap();
        let read = read.search(&queries, &search).unwrap();
        assert!(read.counters.graph_reads > 0, "{layout:?}");
        let options = OpenOptions {
            memory: Some(100 << 20),
            ..OpenOptions::default()
        };
        let index = Index::open(&path, &options).unwrap();
        let predicted = index.memory().predicted_reads.unwrap();
        assert!(
            predicted[0] + predicted[1] < 1e-9,
            "{layout:?}: {predicted:?}"
        );
        let held = index.search(&queries, &search).unwrap();
        let reads = (held.counters.graph_reads, held.counters.vector_reads);
        assert_eq!(reads, (0, 0), "{layout:?} {update:?}");
        // With a larger budget, the graph is unpacked.
        let opened = |memory| {
            let options = OpenOptions {
                memory: Some(memory),
                ..OpenOptions::default()
            };
            Index::open(&path, &options)
        };
        let Err(stratann::Error::Memory { needs, .. }) = opened(1) else {
            panic!("{layout:?}: one byte of memory is enough");
        };
        let (mut paged, mut more) = (needs, 100 << 20);
        while index.memory().unpacked > 0 && more - paged > 1 {
            let middle = (paged + more) / 2;
            match opened(middle).unwrap().memory().unpacked {
                0 => paged = middle,
                _ => more = middle,
            }
        }
        let index = match index.memory().unpacked {
            0 => index,
            _ => opened(paged).unwrap(),
        };
        let held = index.search(&queries, &search).unwrap();
        let reads = held.counters.graph_reads + held.counters.vector_reads;
        let plan = index.memory();
        // Pages that inserts left half empty can take more memory than the unpacked graph.
        let all = plan.predicted_reads.unwrap().iter().sum::<f64>() < 1e-9;
        assert_eq!(reads == 0, all, "{layout:?} {update:?}: {reads}, {plan:?}");
        assert!(
            all || update == Update::Relocate,
            "{layout:?} {update:?}: {plan:?}"
        );
        let pages = plan.graph_pages + plan.vector_pages;
        let index = opened(needs + plan.navigation + pages / 2).unwrap();
        let half = index.memory().graph_pages + index.memory().vector_pages;
        assert!(half < pages && half > 0, "{layout:?}: {half} of {pages}");
        let some = index.search(&queries, &search).unwrap();
        let reads = |found: &stratann::SearchResults| {
            found.counters.graph_reads + found.counters.vector_reads
        };
        assert!((1..reads(&read)).contains(&reads(&some)), "{layout:?}");
    }
}

#[test]
fn a_layout_that_takes_no_direct_inserts_merges_them() {
    let all = matrix(SIFT_BASE);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("index");
    built(&part(&all, 0, 3_000), Preset::TIERED_GRAPH, &path);
    let rest = part(&all, 3_000, 500);
    for update in [Update::Relocate, Update::Merge] {
        let live = LiveIndex::open(&path, &OpenOptions::default(), &writing(update)).unwrap();
        let ids = live.insert(&rest, None, &Silent).unwrap();
        assert!(live.stats().direct.is_none(), "{update}");
        live.delete(&[ids[7]]).unwrap();
        live.compact(&Silent).unwrap();
    }
    let report = verify(&path, &Silent).unwrap();
    assert!(report.clean(), "{:?}", report.problems);
    let index = Index::open(&path, &OpenOptions::default()).unwrap();
    assert_eq!(index.len(), 3_998);
    let found = index
        .search(
            &rest,
            &SearchOptions {
                k: 1,
                ..SearchOptions::default()
            },
        )
        .unwrap();
    let exact = found
        .distances
        .iter()
        .filter(|&&distance| distance == 0.0)
        .count();
    assert!(exact >= 495, "{exact} of 500");
}

struct Impatient;

impl Progress for Impatient {
    fn begin(&self, _: &str, _: u64) {}
    fn advance(&self, _: u64) {}
    fn end(&self) {}
    fn warn(&self, _: &str) {}
    fn interrupted(&self) -> bool {
        true
    }
}

#[test]
fn whoever_opens_an_index_may_leave_what_waits_in_its_log() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("index");
    built(&head(SIFT_BASE, 1_000), Preset::STRATANN, &path);
    let waits = WriteOptions {
        update: Some(Update::Merge),
        ..alone(None)
    };
    let live = LiveIndex::open(&path, &OpenOptions::default(), &waits).unwrap();
    live.insert(&rows(SIFT_BASE, 1_000, 100), None, &Silent)
        .unwrap();
    drop(live);
    let index = Arc::new(Index::open(&path, &OpenOptions::default()).unwrap());
    for _ in 0..2 {
        let live = LiveIndex::over_observed(&index, &alone(None), &Impatient).unwrap();
        assert_eq!((live.stats().logged, live.len()), (100, 1_100));
    }
    let live = LiveIndex::over_observed(&index, &alone(None), &Impatient).unwrap();
    live.delete(&[1_000]).unwrap();
    drop(live);
    let live = LiveIndex::open(&path, &OpenOptions::default(), &alone(None)).unwrap();
    assert_eq!((live.stats().logged, live.len()), (0, 1_099));
}
