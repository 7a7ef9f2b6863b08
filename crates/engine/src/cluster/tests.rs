//! Clustering of rows that form separate groups, and of rows that are all equal.

use std::collections::HashSet;

use stratann_vector::{Element, Metric};

use super::*;
use crate::data::Matrix;
use crate::graph::random::Random;
use crate::progress::Silent;

const DIM: usize = 12;

/// Rows in groups of equal size. The groups are far from each other.
fn heaps(heaps: usize, each: usize) -> Matrix {
    let mut random = Random::new(7);
    let mut bytes = Vec::new();
    for _ in 0..heaps {
        let centre: Vec<f32> = (0..DIM).map(|_| random.below(1000) as f32).collect();
        for _ in 0..each {
            let row = centre.iter().map(|c| c + random.below(100) as f32 / 10.0);
            bytes.extend(row.flat_map(f32::to_le_bytes));
        }
    }
    Matrix::new(bytes, heaps * each, DIM, Element::F32).unwrap()
}

fn points(source: &Matrix, metric: Metric) -> PointRows<'_> {
    let mut space = Space::new(metric, source.element(), DIM);
    if space.needs_longest() {
        space.measure(source.in_memory().unwrap());
    }
    PointRows { source, space }
}

fn found(
    rows: &PointRows<'_>,
    size: usize,
    replicas: usize,
    threads: usize,
) -> (Vec<u32>, Memberships) {
    let scratch = tempfile::tempdir().unwrap();
    let partition = partition(rows, size, 42, threads, &Silent).unwrap();
    let heads = &partition.heads;
    let (_, heads_at) = Heads::build(rows, heads, Metric::L2, scratch.path(), 42, &Silent).unwrap();
    let closure = Closure {
        replicas,
        share: 10.0,
        most: 2 * size * replicas,
        blocks: None,
    };
    let memberships = memberships(rows, &heads_at, closure, threads, &Silent).unwrap();
    (partition.heads, memberships)
}

#[test]
fn clusters_are_balanced_and_the_same_with_any_number_of_threads() {
    let source = heaps(40, 125);
    let rows = points(&source, Metric::L2);
    let (heads, memberships) = found(&rows, 20, 4, 1);
    let unique: HashSet<_> = heads.iter().collect();
    assert_eq!(unique.len(), heads.len(), "two clusters have the same head");
    assert!(
        (250..=600).contains(&heads.len()),
        "{} clusters",
        heads.len()
    );
    let partition = partition(&rows, 20, 42, 3, &Silent).unwrap();
    assert!(partition.largest <= 30, "{} rows", partition.largest);
    let (heads_again, again) = found(&rows, 20, 4, 3);
    assert_eq!(heads, heads_again);
    for row in 0..5_000 {
        assert_eq!(memberships.of(row), again.of(row), "row {row}");
    }
}

#[test]
fn rows_that_are_all_alike_are_divided_evenly() {
    let row: Vec<u8> = (0..DIM).flat_map(|i| (i as f32).to_le_bytes()).collect();
    let source = Matrix::new(row.repeat(1_000), 1_000, DIM, Element::F32).unwrap();
    let (heads, memberships) = found(&points(&source, Metric::L2), 10, 3, 2);
    assert!(
        (60..=250).contains(&heads.len()),
        "{} clusters",
        heads.len()
    );
    // Here no head is nearer to another head than to the row, so a row may join three clusters.
    assert!((0..1_000).all(|row| (1..=3).contains(&memberships.of(row).len())));
    // Successive rows begin with different heads among equally near heads, so no cluster gets most
    // rows.
    let largest = memberships.sizes.iter().max().unwrap();
    assert!(*largest <= 150, "a cluster has {largest} members");
}

#[test]
fn a_row_joins_the_nearest_cluster_and_none_that_a_chosen_head_is_nearer_to() {
    let source = heaps(30, 60);
    for metric in [Metric::L2, Metric::Cosine, Metric::InnerProduct] {
        let rows = points(&source, metric);
        let (heads, memberships) = found(&rows, 12, 8, 2);
        let point = |row: u32| {
            let bytes = rows.floats(&[row]).unwrap();
            let values = bytes.chunks_exact(4);
            values
                .map(|v| f32::from_le_bytes(v.try_into().unwrap()))
                .collect::<Vec<_>>()
        };
        let apart = |a: u32, b: u32| -> f32 {
            let (a, b) = (point(a), point(b));
            a.iter().zip(&b).map(|(a, b)| (a - b) * (a - b)).sum()
        };
        let (mut nearest, mut total) = (0, 0);
        for row in (0..1_800).step_by(7) {
            let of = memberships.of(row);
            assert!((1..=8).contains(&of.len()), "{metric}: {of:?}");
            let distances: Vec<f32> = of.iter().map(|&c| apart(row, heads[c as usize])).collect();
            assert!(
                distances.is_sorted_by(|a, b| a <= &(b * 1.001 + 1e-4)),
                "{metric}: {distances:?}"
            );
            for (at, &cluster) in of.iter().enumerate() {
                for &chosen in &of[..at] {
                    let between = apart(heads[chosen as usize], heads[cluster as usize]);
                    assert!(
                        between >= distances[at] * 0.999 - 1e-4,
                        "{metric}, row {row}"
                    );
                }
            }
            let least = heads.iter().map(|&head| apart(row, head));
            let least = least.fold(f32::INFINITY, f32::min);
            nearest += usize::from(distances[0] <= least * 1.001 + 1e-4);
            total += 1;
        }
        assert!(
            nearest * 100 >= total * 98,
            "{metric}: {nearest} of {total}"
        );
    }
}

#[test]
fn members_are_listed_by_cluster_and_the_nearest_come_first() {
    let source = heaps(20, 50);
    let (_, memberships) = found(&points(&source, Metric::L2), 10, 4, 2);
    let (starts, members) = memberships.by_cluster();
    assert_eq!(members.len() as u64, memberships.total());
    let mut counted = vec![0; memberships.rows()];
    for cluster in 0..memberships.sizes.len() {
        let of = &members[starts[cluster] as usize..starts[cluster + 1] as usize];
        let is_nearest = |&row: &u32| memberships.of(row)[0] as usize == cluster;
        let own = of.iter().filter(|row| is_nearest(row)).count();
        assert!(of[..own].iter().all(is_nearest), "cluster {cluster}");
        assert!(of[..own].is_sorted() && of[own..].is_sorted());
        for &row in of {
            assert!(memberships.of(row).contains(&(cluster as u32)));
            counted[row as usize] += 1;
        }
    }
    assert!((0..1_000).all(|row| counted[row as usize] == memberships.of(row).len()));
}

#[test]
fn a_cluster_with_too_many_members_gives_up_those_that_have_a_nearer_one() {
    let source = heaps(20, 50);
    let rows = points(&source, Metric::L2);
    let scratch = tempfile::tempdir().unwrap();
    let partition = partition(&rows, 10, 42, 2, &Silent).unwrap();
    let (_, heads) = Heads::build(
        &rows,
        &partition.heads,
        Metric::L2,
        scratch.path(),
        42,
        &Silent,
    )
    .unwrap();
    let within = |most| {
        let closure = Closure {
            replicas: 8,
            share: 10.0,
            most,
            blocks: None,
        };
        memberships(&rows, &heads, closure, 2, &Silent).unwrap()
    };
    let (all, some) = (within(1_000), within(25));
    assert_eq!(all.given_up, 0);
    assert!(some.given_up > 0);
    assert_eq!(all.total() - some.total(), some.given_up);
    for row in 0..1_000 {
        assert_eq!(all.of(row)[0], some.of(row)[0], "the nearest stays");
    }
    let mut own = vec![0; some.sizes.len()];
    (0..1_000).for_each(|row| own[some.of(row)[0] as usize] += 1);
    let most = some
        .sizes
        .iter()
        .zip(own)
        .all(|(&size, own)| size <= own.max(25));
    assert!(most, "{:?}", some.sizes);
}

#[test]
fn groups_are_those_of_the_clusters_that_are_probed_most() {
    let source = heaps(20, 50);
    let (heads, memberships) = found(&points(&source, Metric::L2), 10, 4, 2);
    let nearest = groups(&memberships, &[]);
    assert!((0..1_000).all(|row| nearest[row as usize] == memberships.of(row)[0]));
    let visits: Vec<u64> = (0..heads.len() as u64).collect();
    let grouped = groups(&memberships, &visits);
    let cost = |groups: &[u32]| -> u64 {
        let strays = |row: u32| {
            let elsewhere = memberships
                .of(row)
                .iter()
                .filter(move |&&c| c != groups[row as usize]);
            elsewhere.map(|&c| visits[c as usize]).sum::<u64>()
        };
        (0..1_000).map(strays).sum()
    };
    for row in 0..1_000 {
        let most = memberships.of(row).iter().max();
        assert_eq!(Some(&grouped[row as usize]), most);
    }
    assert!(cost(&grouped) < cost(&nearest));
}
