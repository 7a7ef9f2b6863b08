//! Tests of whole graphs, built in memory and in parts.

use super::adjacency::Graph;
use super::points::Points;
use super::random::Random;
use super::vamana::build;
use super::*;
use crate::data::{MatrixRef, VectorSource};
use crate::progress::{Progress, Silent};
use std::collections::HashSet;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use stratann_vector::{Element, Kernel, Metric};

fn clustered(rows: usize, dim: usize, clusters: usize, seed: u64) -> Vec<u8> {
    let mut random = Random::new(seed);
    let centres: Vec<Vec<usize>> = (0..clusters)
        .map(|_| (0..dim).map(|_| random.below(200)).collect())
        .collect();
    (0..rows)
        .flat_map(|_| {
            let centre = random.below(clusters);
            (0..dim)
                .map(|at| (centres[centre][at] + random.below(50)) as u8)
                .collect::<Vec<u8>>()
        })
        .collect()
}

fn floats(bytes: &[u8]) -> Vec<u8> {
    bytes
        .iter()
        .flat_map(|&value| (f32::from(value) - 100.0).to_le_bytes())
        .collect()
}

fn parameters(threads: usize) -> Parameters {
    Parameters {
        degree: 24,
        build_list: 50,
        alpha: 1.2,
        threads,
        seed: 7,
    }
}

fn check(neighbours: &dyn Fn(u32) -> Vec<u32>, nodes: usize, degree: usize, entry: u32) {
    let mut reached = vec![false; nodes];
    let mut stack = vec![entry];
    reached[entry as usize] = true;
    while let Some(node) = stack.pop() {
        for to in neighbours(node) {
            if !std::mem::replace(&mut reached[to as usize], true) {
                stack.push(to);
            }
        }
    }
    for node in 0..nodes as u32 {
        let list = neighbours(node);
        assert!(
            list.len() <= degree,
            "node {node} has {} neighbours",
            list.len()
        );
        assert!(
            list.iter().all(|&to| to != node && (to as usize) < nodes),
            "node {node}: {list:?}"
        );
        assert_eq!(
            list.iter().collect::<HashSet<_>>().len(),
            list.len(),
            "node {node}: {list:?}"
        );
        assert!(reached[node as usize], "node {node} cannot be reached");
    }
}

fn check_graph(graph: &Graph, degree: usize, entry: u32) {
    check(
        &|node| graph.neighbours(node).to_vec(),
        graph.len(),
        degree,
        entry,
    );
}

fn recall(
    rows: &[u8],
    element: Element,
    dim: usize,
    entry: u32,
    neighbours: &dyn Fn(u32) -> Vec<u32>,
) -> f64 {
    let asked = 0..rows.len() / (dim * element.size());
    recall_of(asked, rows, element, dim, entry, neighbours)
}

fn recall_of(
    asked: std::ops::Range<usize>,
    rows: &[u8],
    element: Element,
    dim: usize,
    entry: u32,
    neighbours: &dyn Fn(u32) -> Vec<u32>,
) -> f64 {
    let stride = dim * element.size();
    let count = rows.len() / stride;
    let kernel = Kernel::new(Metric::L2, element, dim);
    let row = |id: u32| &rows[id as usize * stride..(id as usize + 1) * stride];
    let mut random = Random::new(99);
    let (mut hits, mut wanted) = (0, 0);
    for _ in 0..50 {
        let query = row((asked.start + random.below(asked.len())) as u32);
        let distance = |id: u32| kernel.distance(query, row(id));
        let mut list = vec![(distance(entry), entry, false)];
        let mut seen = HashSet::from([entry]);
        while let Some(at) = list.iter().position(|item| !item.2) {
            list[at].2 = true;
            for to in neighbours(list[at].1) {
                if seen.insert(to) {
                    list.push((distance(to), to, false));
                }
            }
            list.sort_by(|a, b| a.0.total_cmp(&b.0));
            list.truncate(30);
        }
        let mut all: Vec<f32> = (0..count as u32).map(distance).collect();
        all.sort_by(f32::total_cmp);
        hits += list.iter().take(10).filter(|item| item.0 <= all[9]).count();
        wanted += 10;
    }
    hits as f64 / wanted as f64
}

#[test]
fn a_graph_is_sound_and_finds_what_is_near() {
    for threads in [1, 3] {
        let rows = clustered(3000, 16, 40, 1);
        let points = Points::new(&rows, Element::U8, 16);
        let entry = medoid(&points, threads, 7);
        let graph = build(&points, entry, &parameters(threads), &Silent).unwrap();
        check_graph(&graph, 24, entry);
        assert!(graph.degree_mean() > 20.0 && graph.degree_max() <= 24);
        assert_eq!(
            graph.edges(),
            (0..3000)
                .map(|node| graph.neighbours(node).len() as u64)
                .sum::<u64>()
        );
        let found = recall(&rows, Element::U8, 16, entry, &|node| {
            graph.neighbours(node).to_vec()
        });
        // Several threads make a different graph each time, which may hide a whole group.
        let least = if threads == 1 { 0.97 } else { 0.85 };
        assert!(found > least, "{threads} threads: recall {found}");
    }
}

#[test]
fn one_thread_and_a_seed_give_one_graph() {
    let rows = clustered(1500, 12, 10, 2);
    let points = Points::new(&rows, Element::U8, 12);
    let entry = medoid(&points, 1, 7);
    assert_eq!(entry, medoid(&points, 4, 7));
    let graph = || build(&points, entry, &parameters(1), &Silent).unwrap();
    assert_eq!(graph(), graph());
    let other = build(
        &points,
        entry,
        &Parameters {
            seed: 8,
            ..parameters(1)
        },
        &Silent,
    )
    .unwrap();
    assert_ne!(graph(), other);
}

#[test]
fn few_rows_make_small_graphs() {
    for rows in [1, 2, 3, 10, 23, 24, 25, 60] {
        let bytes = clustered(rows, 4, 3, rows as u64);
        let points = Points::new(&bytes, Element::U8, 4);
        let order = locality_order(&points, 10, 2, 1);
        assert_eq!(order.iter().collect::<HashSet<_>>().len(), rows);
        let entry = medoid(&points, 5, 7);
        let graph = build(&points, entry, &parameters(2), &Silent).unwrap();
        assert_eq!(graph.len(), rows);
        check_graph(&graph, 24, entry);
        if rows == 1 {
            assert!(graph.neighbours(0).is_empty());
        }
    }
}

#[test]
fn extreme_parameters_are_sound() {
    let rows = clustered(300, 8, 5, 3);
    let points = Points::new(&rows, Element::U8, 8);
    for (degree, build_list, alpha) in [
        (1, 1, 1.0),
        (2, 5, 1.2),
        (4, 10, 0.5),
        (300, 400, 1.2),
        (16, 30, 3.0),
    ] {
        let parameters = Parameters {
            degree,
            build_list,
            alpha,
            ..parameters(2)
        };
        let entry = medoid(&points, 1, 1);
        let graph = build(&points, entry, &parameters, &Silent).unwrap();
        if degree >= 2 {
            check_graph(&graph, degree, entry);
        }
        assert!(graph.degree_max() <= degree);
    }
}

#[test]
fn equal_rows_do_not_break_the_graph() {
    // At first, all rows are equal. Then a thousand other rows replace some of them.
    let mut rows = vec![9u8; 1500 * 8];
    for others in [0, 1000] {
        rows[..others * 8].copy_from_slice(&clustered(others, 8, 20, 4));
        let points = Points::new(&rows, Element::U8, 8);
        let order = locality_order(&points, 10, 2, 1);
        assert_eq!(order.iter().collect::<HashSet<_>>().len(), 1500);
        let entry = medoid(&points, 2, 7);
        let graph = build(&points, entry, &parameters(2), &Silent).unwrap();
        check_graph(&graph, 24, entry);
        let graph = build(&points, entry, &parameters(1), &Silent).unwrap();
        check_graph(&graph, 24, entry);
        let found = recall(&rows, Element::U8, 8, entry, &|node| {
            graph.neighbours(node).to_vec()
        });
        assert!(found > 0.95, "{others} others: recall {found}");
    }
}

/// Each row has one non-zero element. Ten rows are equal, and all others are equally far from them.
#[test]
fn equal_rows_are_found_where_all_others_are_equally_far() {
    const KINDS: usize = 150;
    let mut kinds: Vec<usize> = (0..10 * KINDS).map(|row| row % KINDS).collect();
    Random::new(3).shuffle(&mut kinds);
    let mut rows = vec![0; kinds.len() * KINDS];
    for (row, &kind) in kinds.iter().enumerate() {
        rows[row * KINDS + kind] = 200;
    }
    let points = Points::new(&rows, Element::U8, KINDS);
    let graph = build(&points, 0, &parameters(1), &Silent).unwrap();
    check_graph(&graph, 24, 0);
    let found = recall(&rows, Element::U8, KINDS, 0, &|node| {
        graph.neighbours(node).to_vec()
    });
    assert!(found >= 0.9, "recall {found}");
    for node in 0..kinds.len() as u32 {
        let kind = kinds[node as usize];
        let of_kind = |at: &usize| kinds[*at] == kind;
        let behind = (node as usize + 1..kinds.len()).chain(0..node as usize);
        let next = behind.clone().find(of_kind);
        let before = behind.rev().find(of_kind);
        for ring in [next, before].into_iter().flatten() {
            assert!(graph.neighbours(node).contains(&(ring as u32)), "{node}");
        }
    }
}

#[test]
fn locality_order_puts_near_rows_on_one_page() {
    let rows = clustered(5000, 16, 100, 5);
    let points = Points::new(&rows, Element::U8, 16);
    let order = locality_order(&points, 10, 1, 3);
    assert_eq!(
        order,
        locality_order(&points, 10, 4, 3),
        "the order depends on the number of threads"
    );
    assert_eq!(order.iter().collect::<HashSet<_>>().len(), 5000);
    let within = |order: &[u32]| {
        let pairs = order.chunks(10).flat_map(|page| page.windows(2));
        pairs
            .map(|pair| f64::from(points.distance(pair[0], pair[1])))
            .sum::<f64>()
    };
    let input: Vec<u32> = (0..5000).collect();
    assert!(within(&order) < 0.3 * within(&input));
}

struct Stops(AtomicU64, u64);

impl Progress for Stops {
    fn begin(&self, _: &str, _: u64) {}
    fn advance(&self, _: u64) {}
    fn end(&self) {}
    fn interrupted(&self) -> bool {
        self.0.fetch_add(1, Relaxed) >= self.1
    }
    fn warn(&self, _: &str) {}
}

fn run(
    source: &dyn VectorSource,
    metric: Metric,
    order: Order,
    free: Option<u64>,
    progress: &dyn Progress,
) -> Result<Constructed, GraphError> {
    run_with(2, source, metric, order, free, progress)
}

fn run_alone(
    source: &dyn VectorSource,
    metric: Metric,
    order: Order,
    free: Option<u64>,
) -> Constructed {
    run_with(1, source, metric, order, free, &Silent).unwrap()
}

fn run_with(
    threads: usize,
    source: &dyn VectorSource,
    metric: Metric,
    order: Order,
    free: Option<u64>,
    progress: &dyn Progress,
) -> Result<Constructed, GraphError> {
    let scratch = tempfile::tempdir().unwrap();
    let parameters = parameters(threads);
    let task = Task {
        metric,
        order,
        parameters: &parameters,
        memory: None,
        scratch: scratch.path(),
        known: None,
        check: crate::data::check_rows,
        savepoints: None,
        afterwards: None,
    };
    let constructed = super::construct::construct_within(source, &task, free, progress);
    if constructed.is_err() {
        let left: Vec<_> = std::fs::read_dir(scratch.path()).unwrap().collect();
        assert!(left.is_empty(), "left behind: {left:?}");
    } else {
        // The files must exist until their reader is dropped.
        std::mem::forget(scratch);
    }
    constructed
}

/// A memory cap under which only a build in parts fits.
fn tight(kib: u64) -> Option<u64> {
    Some(super::construct::OVERHEAD + (kib << 10))
}

fn check_constructed(source: &MatrixRef<'_>, mut built: Constructed) -> f64 {
    let rows = source.rows();
    let mut lists = Vec::new();
    let mut list = Vec::new();
    for node in 0..rows as u32 {
        built.lists.read(node, &mut list).unwrap();
        lists.push(list.clone());
    }
    check(&|node| lists[node as usize].clone(), rows, 24, built.entry);
    assert_eq!(
        built.stats.edges,
        lists.iter().map(|list| list.len() as u64).sum::<u64>()
    );
    assert_eq!(
        built.stats.degree_max,
        lists.iter().map(Vec::len).max().unwrap()
    );
    assert_eq!(built.order.iter().collect::<HashSet<_>>().len(), rows);
    let ordered = built.rows.in_order(&built.order, source);
    let mut bytes = vec![0; rows * source.row_bytes()];
    ordered.read(0, &mut bytes).unwrap();
    for (node, row) in bytes.chunks_exact(source.row_bytes()).enumerate() {
        assert_eq!(row, source.row(built.order[node] as usize), "node {node}");
    }
    assert!(ordered.read(rows, &mut bytes).is_err());
    recall(
        &bytes,
        source.element(),
        source.dim(),
        built.entry,
        &|node| lists[node as usize].clone(),
    )
}

#[test]
fn construct_in_memory_and_by_parts_agree_in_kind() {
    let bytes = clustered(30_000, 16, 60, 6);
    let source = MatrixRef::new(&bytes, 30_000, 16, Element::U8).unwrap();
    for order in [Order::Input, Order::Locality { page: 10 }] {
        let whole = run_alone(&source, Metric::L2, order, None);
        assert_eq!(whole.stats.parts, 1);
        assert_eq!(whole.stats.parts, 1);
        let whole = check_constructed(&source, whole);
        let capped = run_alone(&source, Metric::L2, order, tight(2048));
        assert!(capped.stats.parts >= 3, "{:?}", capped.stats);
        assert!(capped.stats.parts > 1);
        if order == Order::Input {
            assert_eq!(capped.order, (0..30_000).collect::<Vec<u32>>());
        }
        let capped = check_constructed(&source, capped);
        assert!(
            whole > 0.97 && capped > whole - 0.02,
            "{order:?}: {whole} and {capped}"
        );
    }
}

#[test]
fn nodes_may_get_other_numbers_again_and_again() {
    let bytes = clustered(8_000, 16, 60, 6);
    let source = MatrixRef::new(&bytes, 8_000, 16, Element::U8).unwrap();
    let by_row = |built: &mut Constructed| {
        let mut rows = vec![Vec::new(); 8_000];
        for node in 0..8_000 {
            let list = &mut rows[built.order[node] as usize];
            built.lists.read(node as u32, list).unwrap();
            list.iter_mut()
                .for_each(|other| *other = built.order[*other as usize]);
        }
        rows
    };
    for order in [Order::Input, Order::Locality { page: 10 }] {
        for free in [None, tight(1000)] {
            let mut built = run(&source, Metric::L2, order, free, &Silent).unwrap();
            assert_eq!(built.stats.parts > 1, free.is_some(), "{:?}", built.stats);
            let (rows, entry) = (by_row(&mut built), built.order[built.entry as usize]);
            for seed in 0..2 {
                let mut was: Vec<u32> = (0..8_000).collect();
                Random::new(seed).shuffle(&mut was);
                let expected: Vec<u32> =
                    was.iter().map(|&node| built.order[node as usize]).collect();
                built.renumber(was);
                assert_eq!(built.order, expected);
                assert_eq!(built.order[built.entry as usize], entry);
                assert!(by_row(&mut built) == rows, "{order:?}, {free:?}");
            }
            check_constructed(&source, built);
        }
    }
}

#[test]
fn floats_are_rounded_while_a_graph_is_built_and_it_finds_as_much() {
    let (count, dim) = (6_000, 48);
    // With only twelve groups in place of 60, searches sometimes miss one of them. Over 40 seeds,
    // the mean recall is .9993 with floats and .9990 with rounded points, and the least recall is
    // .96 and .88.
    let exact = clustered(count, dim, 60, 7);
    let bytes = floats(&exact);
    let order = Order::Locality { page: 3 };
    // The same points are indexed as bytes, which are not rounded.
    let source = MatrixRef::new(&exact, count, dim, Element::U8).unwrap();
    let built = run_alone(&source, Metric::L2, order, None);
    assert!(!built.stats.rounded);
    let expected = check_constructed(&source, built);
    let source = MatrixRef::new(&bytes, count, dim, Element::F32).unwrap();
    for memory in [None, tight(1024)] {
        let built = run_alone(&source, Metric::L2, order, memory);
        assert!(built.stats.rounded);
        assert_eq!(built.stats.parts > 1, memory.is_some());
        let recall = check_constructed(&source, built);
        let least = expected - if memory.is_some() { 0.05 } else { 0.03 };
        assert!(recall > least, "{memory:?}: {recall}, {expected} by bytes");
    }
}

#[test]
fn other_metrics_are_built_in_their_space() {
    let bytes = floats(&clustered(6_000, 12, 30, 7));
    let source = MatrixRef::new(&bytes, 6_000, 12, Element::F32).unwrap();
    for metric in [Metric::Cosine, Metric::InnerProduct] {
        for memory in [None, tight(1024)] {
            let built = run(
                &source,
                metric,
                Order::Locality { page: 3 },
                memory,
                &Silent,
            )
            .unwrap();
            assert_eq!(built.stats.parts > 1, memory.is_some());
            check_constructed(&source, built);
        }
    }
}

#[test]
fn far_apart_clusters_are_reachable_by_parts_too() {
    // No row is between the two clusters, and there are enough equal rows to fill parts.
    let mut bytes = clustered(12_000, 8, 2, 8);
    for row in bytes.chunks_exact_mut(8).take(5000) {
        row.fill(255);
    }
    let source = MatrixRef::new(&bytes, 12_000, 8, Element::U8).unwrap();
    for order in [Order::Input, Order::Locality { page: 10 }] {
        let built = run(&source, Metric::L2, order, tight(1024), &Silent).unwrap();
        assert!(built.stats.parts >= 3);
        check_constructed(&source, built);
    }
}

#[test]
fn a_cap_too_small_names_the_least() {
    let bytes = clustered(20_000, 16, 60, 6);
    let source = MatrixRef::new(&bytes, 20_000, 16, Element::U8).unwrap();
    let scratch = tempfile::tempdir().unwrap();
    let parameters = parameters(1);
    let task = Task {
        metric: Metric::L2,
        order: Order::Input,
        parameters: &parameters,
        memory: Some(1 << 20),
        scratch: scratch.path(),
        known: None,
        check: crate::data::check_rows,
        savepoints: None,
        afterwards: None,
    };
    let error = construct(&source, &task, &Silent).unwrap_err();
    let GraphError::Memory { given, least } = error else {
        panic!("{error}")
    };
    assert!(given == 1 << 20 && least > given);
    assert!(error.to_string().contains(&least.to_string()), "{error}");
    let error = run(&source, Metric::L2, Order::Input, Some(1 << 20), &Silent).unwrap_err();
    let GraphError::Memory { least, .. } = error else {
        panic!("{error}")
    };
    run(&source, Metric::L2, Order::Input, Some(least), &Silent).unwrap();
    let error = run(&source, Metric::L2, Order::Input, Some(least - 1), &Silent).unwrap_err();
    assert!(matches!(error, GraphError::Memory { .. }), "{error}");
}

#[test]
fn an_interrupted_build_stops_and_leaves_nothing() {
    let bytes = clustered(20_000, 16, 60, 6);
    let source = MatrixRef::new(&bytes, 20_000, 16, Element::U8).unwrap();
    for after in [0, 3, 30, 100] {
        for memory in [None, tight(2048)] {
            let stops = Stops(AtomicU64::new(0), after);
            let error = run(
                &source,
                Metric::L2,
                Order::Locality { page: 10 },
                memory,
                &stops,
            )
            .unwrap_err();
            assert!(matches!(error, GraphError::Interrupted), "{error}");
        }
    }
}

#[test]
fn bad_rows_are_refused() {
    let mut bytes = floats(&clustered(100, 4, 3, 1));
    bytes[4 * 4 * 50..4 * 4 * 50 + 4].copy_from_slice(&f32::NAN.to_le_bytes());
    let source = MatrixRef::new(&bytes, 100, 4, Element::F32).unwrap();
    let error = run(&source, Metric::L2, Order::Input, None, &Silent).unwrap_err();
    assert!(error.to_string().contains("row 50"), "{error}");
}

#[derive(Debug)]
struct Lists<'a>(&'a [Vec<u32>]);

impl Known for Lists<'_> {
    fn rows(&self) -> usize {
        self.0.len()
    }

    fn each(&self, each: &mut dyn FnMut(u32, &[u32])) -> Result<(), GraphError> {
        for (row, list) in self.0.iter().enumerate() {
            each(row as u32, list);
        }
        Ok(())
    }
}

#[test]
fn a_graph_grows_from_whichever_node_searches_begin_at() {
    let (dim, old) = (8, 1_500);
    let rows = clustered(2_500, dim, 20, 5);
    let first = Points::new(&rows[..old * dim], Element::U8, dim);
    let graph = build(&first, 3, &parameters(1), &Silent).unwrap();
    let lists: Vec<_> = (0..old as u32)
        .map(|node| graph.neighbours(node).to_vec())
        .collect();
    let points = Points::new(&rows, Element::U8, dim);
    let order: Vec<u32> = (0..points.rows() as u32).collect();
    // One of the entry nodes has a list. The other has none yet.
    for entry in [3, 2_000] {
        let known = Lists(&lists);
        let graph =
            super::vamana::grow(&points, &order, &known, entry, &parameters(2), &Silent).unwrap();
        check_graph(&graph, 24, entry);
        let recall = recall(&rows, Element::U8, dim, entry, &|node| {
            graph.neighbours(node).to_vec()
        });
        assert!(recall > 0.95, "{entry}: {recall}");
    }
}

#[test]
fn new_nodes_find_known_ones_that_the_entry_has_lost() {
    // No edge connects a dense cluster with the rows around it.
    let (dim, around, known, all) = (8, 200, 800, 950);
    let mut random = Random::new(11);
    let rows: Vec<u8> = (0..all * dim)
        .map(|at| match at < around * dim {
            true => 20 + random.below(60) as u8,
            false => 180 + random.below(8) as u8,
        })
        .collect();
    let lists_of = |nodes: std::ops::Range<usize>| {
        let bytes = &rows[nodes.start * dim..nodes.end * dim];
        let points = Points::new(bytes, Element::U8, dim);
        let graph = build(&points, 0, &parameters(1), &Silent).unwrap();
        let list = |node| {
            let list = graph.neighbours(node).iter();
            list.map(|to| to + nodes.start as u32).collect::<Vec<_>>()
        };
        (0..nodes.len() as u32).map(list).collect::<Vec<_>>()
    };
    let apart = [lists_of(0..around), lists_of(around..known)].concat();
    // The chosen row is farthest from the cluster, so no search for a row of the cluster meets it.
    let sum = |node: &usize| -> u32 {
        rows[node * dim..][..dim]
            .iter()
            .map(|&x| u32::from(x))
            .sum()
    };
    let farthest = (0..around).min_by_key(sum).unwrap();
    let mut misled = apart.clone();
    misled[farthest][0] = known as u32 - 1;
    let points = Points::new(&rows, Element::U8, dim);
    let order: Vec<u32> = (0..all as u32).collect();
    for lists in [apart, misled] {
        // One of the entry nodes is a row around the cluster. The other is a new row.
        for entry in [3, known as u32] {
            let known = Lists(&lists);
            let graph =
                super::vamana::grow(&points, &order, &known, entry, &parameters(1), &Silent)
                    .unwrap();
            check_graph(&graph, 24, entry);
            for from in [entry, around as u32, all as u32 - 1] {
                let recall = recall_of(around..all, &rows, Element::U8, dim, from, &|node| {
                    graph.neighbours(node).to_vec()
                });
                assert!(recall > 0.95, "{entry}, from {from}: {recall}");
            }
        }
    }
}
