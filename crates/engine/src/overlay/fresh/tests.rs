//! The fresh graph, compared with brute force and with a model, also while other threads change it.

use std::collections::{HashMap, HashSet};
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use proptest::prelude::*;

use super::*;
use crate::data::{Matrix, MatrixRef, VectorFile, VectorSource, brute_force};
use crate::progress::Silent;
use crate::slow::{slow, step};

fn fixture(name: &str) -> Matrix {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../fixtures");
    Matrix::read(&VectorFile::open(path.join(name)).unwrap()).unwrap()
}

fn floats(values: impl IntoIterator<Item = f32>) -> Vec<u8> {
    values.into_iter().flat_map(f32::to_le_bytes).collect()
}

fn random(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let mut bits = *state;
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    bits ^ (bits >> 31)
}

fn graph(metric: Metric, rows: &Matrix) -> FreshGraph {
    FreshGraph::new(
        metric,
        rows.element(),
        rows.dim(),
        FreshParameters::default(),
    )
}

/// Inserts rows under their row numbers, from `threads` threads.
fn fill(graph: &FreshGraph, rows: &Matrix, numbers: std::ops::Range<usize>, threads: usize) {
    let next = AtomicUsize::new(numbers.start);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let row = next.fetch_add(1, Ordering::Relaxed);
                    if row >= numbers.end {
                        break;
                    }
                    graph.insert(row as u64, rows.row(row), None);
                }
            });
        }
    });
}

fn answers(
    graph: &FreshGraph,
    query: &[u8],
    k: usize,
    list: usize,
    scratch: &mut FreshScratch,
) -> Vec<(u64, f32)> {
    let mut found = Vec::new();
    graph.search(query, k, list, graph.now(), scratch, |id, distance| {
        found.push((id, distance));
    });
    found
}

const LIST: usize = 64;
const WIDE: usize = 200;

/// The recall@10 with these list sizes, over the live vectors.
fn recalls<const N: usize>(graph: &FreshGraph, queries: &Matrix, lists: [usize; N]) -> [f64; N] {
    let kernel = graph.kernel;
    let (mut ids, mut bytes) = (Vec::new(), Vec::new());
    graph.for_each(|id, vector, _| {
        ids.push(id);
        bytes.extend_from_slice(vector);
    });
    assert_eq!(ids.len(), graph.len());
    let base = MatrixRef::new(&bytes, ids.len(), kernel.dim(), kernel.element()).unwrap();
    let truth = brute_force(&base, queries, 10, kernel.metric(), 2, &Silent).unwrap();
    let farthest = truth.distances.as_ref().unwrap();
    let mut scratch = FreshScratch::default();
    lists.map(|list| {
        let mut hits = 0;
        for query in 0..queries.rows() {
            let found = answers(graph, queries.row(query), 10, list, &mut scratch);
            assert_eq!(found.len(), 10);
            assert!(
                found
                    .windows(2)
                    .all(|pair| (pair[0].1, pair[0].0) < (pair[1].1, pair[1].0))
            );
            for &(id, distance) in &found {
                let vector = graph.get(id).expect("a result is not live");
                assert_eq!(kernel.distance(queries.row(query), &vector), distance);
                // Distances are compared, so that any of several equal rows counts.
                hits += usize::from(distance <= farthest[query * 10 + 9]);
            }
        }
        hits as f64 / (queries.rows() * 10) as f64
    })
}

fn unreachable(graph: &FreshGraph) -> usize {
    let mut view = View::new(graph);
    let slots = graph.slots();
    let mut reached = vec![false; slots];
    let mut stack = vec![graph.entry.load(Ordering::Acquire)];
    reached[stack[0] as usize] = true;
    let mut list = Vec::new();
    while let Some(slot) = stack.pop() {
        view.neighbours(slot, &mut list);
        assert!(list.len() <= graph.width && !list.contains(&slot));
        assert_eq!(list.iter().collect::<HashSet<_>>().len(), list.len());
        for &to in &list {
            if !std::mem::replace(&mut reached[to as usize], true) {
                stack.push(to);
            }
        }
    }
    reached.iter().filter(|&&reached| !reached).count()
}

fn check(what: &str, graph: &FreshGraph, queries: &Matrix, least: f64) {
    check_lists(what, graph, queries, [(LIST, least)]);
}

/// Several threads build a different graph in each run, so a large list is checked, too.
fn check_of_threads(what: &str, graph: &FreshGraph, queries: &Matrix) {
    check_lists(what, graph, queries, [(LIST, 0.95), (WIDE, 0.98)]);
}

fn check_lists<const N: usize>(
    what: &str,
    graph: &FreshGraph,
    queries: &Matrix,
    bars: [(usize, f64); N],
) {
    let recalls = recalls(graph, queries, bars.map(|(list, _)| list));
    let lost = unreachable(graph);
    eprintln!(
        "{what}: recall@10 {recalls:.4?}, {lost} of {} slots unreachable",
        graph.slots()
    );
    for (recall, (list, least)) in recalls.into_iter().zip(bars) {
        assert!(recall >= least, "{what}: recall@10 {recall}, list {list}");
    }
    assert!(lost * 1000 <= graph.slots(), "{what}: {lost} unreachable");
}

#[test]
fn finds_the_nearest_of_photo_sift_by_one_thread_and_after_replacing_some() {
    let rows = fixture("photo-sift-20k.base.u8bin");
    let queries = fixture("photo-sift-20k.query.u8bin");
    let graph = graph(Metric::L2, &rows);
    let all = 20_000 / step(4);
    let first = all / 10 * 7;
    fill(&graph, &rows, 0..first, 1);
    let mut state = 1;
    let mut deleted = HashSet::new();
    while deleted.len() < all - first {
        let id = random(&mut state) % first as u64;
        assert_eq!(graph.delete(id), deleted.insert(id));
    }
    check("43 % deleted", &graph, &queries, 0.98);
    fill(&graph, &rows, first..all, 1);
    assert_eq!((graph.len(), graph.slots()), (first, all));
    check("and replaced by others", &graph, &queries, 0.98);
    assert!(deleted.iter().all(|&id| !graph.contains(id)));
    for &id in &deleted {
        graph.insert(id, rows.row(id as usize), None);
    }
    check("and inserted again", &graph, &queries, 0.98);
}

#[test]
fn finds_the_nearest_of_photo_sift_by_four_threads_that_also_replace() {
    let rows = fixture("photo-sift-20k.base.u8bin");
    let queries = fixture("photo-sift-20k.query.u8bin");
    let graph = graph(Metric::L2, &rows);
    let all = 20_000 / step(4);
    fill(&graph, &rows, 0..all, 4);
    assert_eq!((graph.len(), graph.slots()), (all, all));
    check_of_threads("four threads", &graph, &queries);
    // An id gets the vector of the row whose number is larger by `other`.
    let (replaced, other) = (all / 10 * 3, all / 20 * 7);
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                loop {
                    let id = next.fetch_add(1, Ordering::Relaxed);
                    if id >= replaced {
                        break;
                    }
                    graph.insert(id as u64, rows.row(id + other), None);
                }
            });
        }
    });
    assert_eq!((graph.len(), graph.slots()), (all, all + replaced));
    assert_eq!(graph.get(5).unwrap(), rows.row(5 + other));
    check_of_threads("30 % replaced", &graph, &queries);
}

type Length = fn(usize) -> f32;

#[test]
fn finds_the_nearest_by_cosine_and_by_product() {
    let rows = fixture("package-text-2k.base.fbin");
    let queries = fixture("package-text-2k.query.fbin");
    let cosine = graph(Metric::Cosine, &rows);
    fill(&cosine, &rows, 0..2_000, 1);
    check("cosine, f32", &cosine, &queries, 0.98);

    let mut values = vec![0.0; rows.dim()];
    let lengths: [(&str, f64, Length); 4] = [
        ("equal", 0.98, |_| 1.0),
        ("growing", 0.98, |row| 0.5 + row as f32 / 1_000.0),
        // Log-normal, as lengths of learned embeddings often are.
        ("spread", 0.98, |row| {
            let mut state = row as u64;
            let mut unit = || random(&mut state) as f32 / u64::MAX as f32;
            let normal = (0..12).map(|_| unit()).sum::<f32>() - 6.0;
            (0.5 * normal).exp()
        }),
        // A few rows are results of nearly every query, but lists hardly have space for them.
        ("with outliers", 0.94, |row| {
            if row % 400 == 399 { 10.0 } else { 1.0 }
        }),
    ];
    for (what, least, length) in lengths {
        let mut bytes = Vec::new();
        for row in 0..rows.rows() {
            stratann_vector::to_f32(Element::F32, rows.row(row), &mut values);
            bytes.extend(floats(values.iter().map(|value| value * length(row))));
        }
        let rows = Matrix::new(bytes, rows.rows(), rows.dim(), Element::F32).unwrap();
        let product = graph(Metric::InnerProduct, &rows);
        fill(&product, &rows, 0..2_000, 1);
        check(
            &format!("product, f32, lengths {what}"),
            &product,
            &queries,
            least,
        );
    }

    let rows = fixture("photo-sift-20k.base.u8bin");
    let queries = fixture("photo-sift-20k.query.u8bin");
    for metric in [Metric::InnerProduct, Metric::Cosine] {
        let graph = graph(metric, &rows);
        fill(&graph, &rows, 0..5_000 / step(2), 1);
        check(&format!("{metric}, u8"), &graph, &queries, 0.98);
    }
}

#[test]
fn rows_that_are_equal_hide_nothing() {
    let graph = FreshGraph::new(Metric::L2, Element::U8, 2, FreshParameters::default());
    for id in 0..2_000u64 {
        graph.insert(id, &[(id % 10) as u8 * 20, 7], None);
    }
    let mut scratch = FreshScratch::default();
    for value in 0..10u8 {
        let found = answers(&graph, &[value * 20, 7], 10, 64, &mut scratch);
        assert!(found.iter().all(|&(_, distance)| distance == 0.0));
        assert_eq!(found.len(), 10);
    }
    assert_eq!(answers(&graph, &[0, 7], 250, 10, &mut scratch).len(), 250);
    let all = answers(&graph, &[0, 7], 3_000, 10, &mut scratch);
    assert_eq!(all.len(), 2_000);
    for id in (0..2_000u64).filter(|id| id % 10 == 3 && *id < 1_900) {
        assert!(graph.delete(id));
    }
    let found = answers(&graph, &[60, 7], 10, 10, &mut scratch);
    assert_eq!(found.len(), 10);
}

#[test]
fn few_live_among_many_deleted_are_all_found() {
    let rows = fixture("photo-sift-20k.base.u8bin");
    let graph = graph(Metric::L2, &rows);
    fill(&graph, &rows, 0..3_000, 1);
    let mut scratch = FreshScratch::default();
    for live in [400, 257, 256, 20, 1, 0] {
        for id in live..graph.len() {
            assert!(graph.delete(id as u64));
        }
        assert_eq!(graph.len(), live);
        let found = answers(&graph, rows.row(2_999), 10, 10, &mut scratch);
        assert_eq!(found.len(), live.min(10));
        assert!(found.iter().all(|&(id, _)| (id as usize) < live));
    }
}

#[test]
fn a_list_with_room_for_all_vectors_finds_one_to_which_no_link_leads() {
    let rows = fixture("photo-sift-20k.base.u8bin");
    let graph = graph(Metric::L2, &rows);
    fill(&graph, &rows, 0..2 * SCAN, 1);
    let lost = 300;
    let (mut view, mut list) = (View::new(&graph), Vec::new());
    for slot in 0..graph.slots() as u32 {
        view.neighbours(slot, &mut list);
        list.retain(|&to| to != lost);
        let (segment, at) = view.locate(slot);
        segment.replace(at, &list, &segment.nodes[at].lock.lock());
    }
    assert!(unreachable(&graph) > 0);
    let mut scratch = FreshScratch::default();
    let mut nearest = |list| answers(&graph, rows.row(lost as usize), 1, list, &mut scratch)[0];
    assert_ne!(nearest(LIST), (lost.into(), 0.0));
    assert_eq!(nearest(2 * SCAN), (lost.into(), 0.0));
}

#[test]
fn one_id_replaced_over_and_over_is_one_answer() {
    // The deleted vectors of the id surround the live vector, and fill the candidate list.
    let rows = fixture("photo-sift-20k.base.u8bin");
    let graph = graph(Metric::L2, &rows);
    fill(&graph, &rows, 0..1_000, 1);
    let mut vector = rows.row(0).to_vec();
    for turn in 0..3_000u64 {
        vector[(turn % 128) as usize] ^= 1;
        graph.insert(0, &vector, None);
    }
    assert_eq!((graph.len(), graph.slots()), (1_000, 4_000));
    let found = answers(&graph, &vector, 10, 32, &mut FreshScratch::default());
    assert_eq!((found[0], found.len()), ((0, 0.0), 10));
    assert!(found[1..].iter().all(|&(id, _)| id != 0));
    assert_eq!(graph.get(0).unwrap(), vector);
}

#[test]
fn each_is_visited_once_in_the_order_of_insertion() {
    let graph = FreshGraph::new(Metric::L2, Element::I8, 1, FreshParameters::default());
    let empty = graph.memory_bytes();
    assert_eq!(
        answers(&graph, &[1], 5, 5, &mut FreshScratch::default()),
        []
    );
    let slots: Vec<u32> = [30, 10, 20, 10]
        .map(|id| graph.insert(id, &[id as u8], None))
        .to_vec();
    assert_eq!(slots, [0, 1, 2, 3]);
    assert!(graph.delete(30) && !graph.delete(30) && !graph.delete(1));
    graph.insert(30, &[31], None);
    let mut seen = Vec::new();
    graph.for_each(|id, vector, _| seen.push((id, vector.to_vec())));
    assert_eq!(seen, [(20, vec![20]), (10, vec![10]), (30, vec![31])]);
    assert_eq!((graph.len(), graph.slots()), (3, 5));
    assert!(graph.contains(10) && !graph.contains(11));
    assert_eq!((graph.get(30), graph.get(11)), (Some(vec![31]), None));
    assert!(graph.memory_bytes() - empty > SEGMENT * (64 + 44 * 4));
}

/// Stops other threads when it is dropped, even after a panic.
struct Stops<'a>(&'a AtomicBool);

impl Drop for Stops<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn a_list_is_read_whole() {
    // Each list repeats one number, which determines the length of the list.
    let segment = Segment::new(42);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let _stops = Stops(&stop);
            for number in (1..u32::MAX).cycle() {
                if stop.load(Ordering::Relaxed) {
                    return;
                }
                let lock = segment.nodes[3].lock.lock();
                segment.replace(3, &[number; 41][..1 + number as usize % 41], &lock);
                assert!(segment.append(3, number, &lock));
                drop(lock);
                // On one processor, the reader would otherwise run only once in a time slice.
                if number % 64 == 0 {
                    std::thread::yield_now();
                }
            }
        });
        let _stops = Stops(&stop);
        let mut list = Vec::new();
        let mut different = HashSet::new();
        while different.len() < 2_000 {
            assert!(!stop.load(Ordering::Relaxed), "the writer has failed");
            segment.read(3, &mut list);
            let Some(&number) = list.first() else {
                std::thread::yield_now();
                continue;
            };
            if !different.insert(number) {
                std::thread::yield_now();
            }
            assert!(list.iter().all(|&other| other == number), "{list:?}");
            let length = 1 + number as usize % 41;
            assert!((length..=length + 1).contains(&list.len()), "{list:?}");
        }
    });
}

#[test]
fn searches_see_one_state_while_others_change_it() {
    // Ids below 1,000 do not change. Ids from 1,000 on are replaced all the time. Ids from 2,000 on
    // are inserted and deleted.
    let rows = fixture("photo-sift-20k.base.u8bin");
    let graph = graph(Metric::L2, &rows);
    fill(&graph, &rows, 0..1_100, 1);
    const SEARCHES: usize = 200;
    let (stop, searched) = (AtomicBool::new(false), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        let (graph, rows, stop, searched) = (&graph, &rows, &stop, &searched);
        for writer in 0..2u64 {
            scope.spawn(move || {
                let _stops = Stops(stop);
                let mut state = writer;
                for turn in 0.. {
                    let met = searched.load(Ordering::Relaxed) >= SEARCHES;
                    if turn >= 4_000 && met || stop.load(Ordering::Relaxed) {
                        return;
                    }
                    let id = 1_000 + 2 * (random(&mut state) % 50) + writer;
                    let mut vector = rows.row(id as usize).to_vec();
                    vector[turn % 128] ^= 1;
                    graph.insert(id, &vector, None);
                    let id = 2_000 + 2 * (turn as u64 % 20) + writer;
                    graph.insert(id, rows.row(id as usize), None);
                    assert!(graph.contains(id) && graph.delete(id) && !graph.contains(id));
                }
            });
        }
        let _stops = Stops(stop);
        let mut scratch = FreshScratch::default();
        let mut state = 9;
        let (mut searches, mut missed) = (0, 0);
        while !stop.load(Ordering::Relaxed) || searches < SEARCHES {
            let id = 1_000 + random(&mut state) % 100;
            let found = answers(graph, rows.row(id as usize), 10, 64, &mut scratch);
            assert_eq!(found.len(), 10);
            let ids: HashSet<u64> = found.iter().map(|&(id, _)| id).collect();
            assert_eq!(ids.len(), 10, "an id twice: {found:?}");
            searches += 1;
            searched.store(searches, Ordering::Relaxed);
            missed += usize::from(!ids.contains(&id));
            let mut live = HashSet::new();
            if searches % 100 == 0 {
                graph.for_each(|id, _, _| assert!(live.insert(id), "{id} twice"));
                assert!((0..1_100).all(|id| live.contains(&id)), "an id is gone");
            }
        }
        assert!(
            missed * 100 <= searches,
            "{missed} of {searches} searches missed their own vector"
        );
    });
    assert_eq!(graph.len(), 1_100);
    assert!((2_000..3_000).all(|id| !graph.contains(id)));
}

/// With few ids and values, steps often have equal ids or vectors.
#[derive(Clone, Debug)]
enum Step {
    Insert(u64, [u8; 3]),
    Delete(u64),
    Search([u8; 3], usize),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let vector = || prop::array::uniform3(0u8..20);
    let step = prop_oneof![
        6 => (0u64..450, vector()).prop_map(|(id, vector)| Step::Insert(id, vector)),
        2 => (0u64..450).prop_map(Step::Delete),
        1 => (vector(), 1usize..20).prop_map(|(query, k)| Step::Search(query, k)),
    ];
    prop::collection::vec(step, 1..2_500)
}

fn bytes(element: Element, vector: [u8; 3]) -> Vec<u8> {
    match element {
        Element::F32 => floats(vector.map(|value| f32::from(value) - 10.0)),
        _ => vector.to_vec(),
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: if slow() { 40 } else { 16 },
        ..ProptestConfig::default()
    })]

    #[test]
    fn behaves_as_a_map_that_can_be_searched(
        steps in steps(),
        metric in prop::sample::select(&Metric::ALL[..]),
        element in prop::sample::select(&[Element::U8, Element::F32][..]),
    ) {
        let graph = FreshGraph::new(metric, element, 3, FreshParameters::default());
        let mut model = HashMap::new();
        let mut scratch = FreshScratch::default();
        let mut slots = 0;
        for step in steps {
            match step {
                Step::Insert(id, vector) => {
                    let vector = bytes(element, vector);
                    prop_assert_eq!(graph.insert(id, &vector, None), slots);
                    slots += 1;
                    model.insert(id, vector);
                }
                Step::Delete(id) => prop_assert_eq!(graph.delete(id), model.remove(&id).is_some()),
                Step::Search(query, k) => {
                    let query = bytes(element, query);
                    let found = answers(&graph, &query, k, 400, &mut scratch);
                    let mut expected: Vec<(u64, f32)> = model
                        .iter()
                        .map(|(&id, vector)| (id, graph.kernel.distance(&query, vector)))
                        .collect();
                    expected.sort_by(|a, b| a.1.total_cmp(&b.1).then(a.0.cmp(&b.0)));
                    prop_assert_eq!(found.len(), k.min(model.len()));
                    for (&(id, distance), expected) in found.iter().zip(&expected) {
                        prop_assert_eq!(graph.kernel.distance(&query, &model[&id]), distance);
                        if model.len() <= SCAN {
                            prop_assert_eq!((id, distance), *expected);
                        }
                    }
                    let ids: HashSet<u64> = found.iter().map(|&(id, _)| id).collect();
                    prop_assert_eq!(ids.len(), found.len());
                }
            }
            prop_assert_eq!((graph.len(), graph.slots()), (model.len(), slots as usize));
        }
        let mut seen = HashMap::new();
        graph.for_each(|id, vector, _| {
            seen.insert(id, vector.to_vec());
        });
        prop_assert_eq!(seen, model);
    }
}

/// `STRATANN_FRESH_BASE` names another file of vectors. If the file has too few rows, the rows are
/// repeated with one bit changed in each element.
#[test]
#[ignore = "measures; run it alone, with --release --nocapture"]
fn speed() {
    let rows = match std::env::var_os("STRATANN_FRESH_BASE") {
        Some(path) => Matrix::read(&VectorFile::open(path).unwrap()).unwrap(),
        None => {
            let rows = fixture("photo-sift-20k.base.u8bin");
            let mut bytes = Vec::new();
            let mut state = 1;
            for turn in 0..3 {
                for &byte in rows.bytes() {
                    let noise = (random(&mut state) % 16) as u8;
                    bytes.push(if turn == 0 { byte } else { byte ^ noise });
                }
            }
            Matrix::new(bytes, 60_000, rows.dim(), rows.element()).unwrap()
        }
    };
    let queries = fixture("photo-sift-20k.query.u8bin");
    let cpu = stratann_tier::process_cpu_time;
    for count in [10_000, 50_000] {
        for threads in [1, 2] {
            let graph = graph(Metric::L2, &rows);
            let (clock, used) = (Instant::now(), cpu());
            fill(&graph, &rows, 0..count, threads);
            let (clock, used) = (clock.elapsed(), cpu() - used);
            println!(
                "{count} inserts, {threads} threads: {:.0}/s; {:.1} us of a processor each; {:.0} bytes each",
                count as f64 / clock.as_secs_f64(),
                used.as_secs_f64() * 1e6 / count as f64,
                graph.memory_bytes() as f64 / count as f64,
            );
            if threads == 2 {
                continue;
            }
            let mut scratch = FreshScratch::default();
            for list in [32, 64] {
                let (clock, used) = (Instant::now(), cpu());
                let turns = 10;
                for _ in 0..turns {
                    for query in 0..queries.rows() {
                        graph.search(
                            queries.row(query),
                            10,
                            list,
                            graph.now(),
                            &mut scratch,
                            |id, _| {
                                std::hint::black_box(id);
                            },
                        );
                    }
                }
                let searches = (turns * queries.rows()) as f64;
                let (clock, used) = (clock.elapsed(), cpu() - used);
                println!(
                    "  searches of {count}, list {list}: {:.0}/s; {:.1} us of a processor each",
                    searches / clock.as_secs_f64(),
                    used.as_secs_f64() * 1e6 / searches,
                );
            }
            let [recall] = recalls(&graph, &queries, [LIST]);
            println!("  recall@10 {recall:.4} at list {LIST}");
        }
    }
}

#[test]
fn a_row_that_took_the_place_of_another_is_counted_alone() {
    let rows = Matrix::new(vec![1, 2, 3, 4], 2, 2, Element::U8).unwrap();
    let graph = graph(Metric::L2, &rows);
    graph.insert(7, rows.row(0), Some(RowBytes::from(vec![1; 10_000])));
    let (takes, charged) = (graph.memory_bytes(), graph.charged_bytes());
    for _ in 0..50 {
        assert!(graph.set_row(7, RowBytes::from(vec![2; 10_000])));
    }
    assert_eq!(
        (graph.memory_bytes(), graph.charged_bytes()),
        (takes, charged)
    );
    graph.set_row(7, RowBytes::from(vec![2; 10]));
    assert_eq!(graph.charged_bytes(), charged - 9_990);
    // Searches may still need the row of a replaced vector.
    graph.insert(7, rows.row(1), Some(RowBytes::from(vec![1; 10_000])));
    assert!(graph.charged_bytes() > charged);
}

#[test]
fn what_waits_is_charged_as_much_as_it_takes() {
    for count in [1, 2, 127, 128, 129, 400, 3_000] {
        let rows = Matrix::new(vec![7; count * 16], count, 16, Element::U8).unwrap();
        let graph = graph(Metric::L2, &rows);
        for row in 0..count {
            graph.insert(row as u64, rows.row(row), None);
        }
        let (takes, charged) = (graph.memory_bytes() as u64, graph.charged_bytes());
        assert!(takes <= charged, "{count}: {takes} of {charged}");
    }
}
