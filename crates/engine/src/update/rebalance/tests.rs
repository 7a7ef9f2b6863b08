//! Tests of rebalances, which check the members of the clusters vector by vector.

use std::collections::HashMap;
use std::path::Path;

use stratann_vector::{Element, Kernel, Metric};

use super::entries::Stored;
use super::*;
use crate::MergeWhen;
use crate::data::{Matrix, MatrixRef, VectorSource};
use crate::index::contents::each_vector;
use crate::update::due::Due;
use crate::{
    BuildOptions, DirectOptions, Layout, LiveIndex, OpenOptions, Preset, SearchOptions, Silent,
    Update, VectorFile, WriteOptions, build as build_index, verify,
};

const LAYOUTS: [Layout; 3] = [Layout::Replicated, Layout::Addressed, Layout::Grouped];
const DIM: usize = 128;
const SIZE: usize = 8;
const REPLICAS: usize = 4;

fn photos(rows: std::ops::Range<usize>) -> Matrix {
    let path =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/photo-sift-20k.base.u8bin");
    let file = VectorFile::open(path).unwrap();
    let mut bytes = vec![0; rows.len() * DIM];
    file.read(rows.start, &mut bytes).unwrap();
    Matrix::new(bytes, rows.len(), DIM, Element::U8).unwrap()
}

/// Sorts rows of photos by brightness, so that later rows have another distribution.
fn drifting(count: usize) -> Vec<Box<[u8]>> {
    let rows = photos(0..count);
    let rows = rows.in_memory().unwrap().chunks_exact(DIM);
    let mut rows: Vec<Box<[u8]>> = rows.map(Box::from).collect();
    rows.sort_by_key(|row| row[..64].iter().map(|&value| u32::from(value)).sum::<u32>());
    rows
}

fn matrix(rows: &[Box<[u8]>]) -> Matrix {
    Matrix::new(rows.concat(), rows.len(), DIM, Element::U8).unwrap()
}

fn built(path: &Path, rows: &dyn VectorSource, layout: Layout) {
    let options = BuildOptions {
        layout: Some(layout),
        cluster_size: Some(SIZE),
        replicas: Some(REPLICAS),
        threads: 1,
        ..BuildOptions::default()
    };
    build_index(rows, path, &options, &Silent).unwrap();
}

fn open(path: &Path, open: &OpenOptions, at: Option<u64>) -> LiveIndex {
    let options = WriteOptions {
        direct: DirectOptions {
            checkpoint: at,
            ..DirectOptions::default()
        },
        update: Some(Update::Rebalance),
        threads: 1,
        ..WriteOptions::default()
    };
    LiveIndex::open(path, open, &options).unwrap()
}

fn clusters_of(index: &Index) -> HashMap<u32, Vec<u32>> {
    let (stores, none) = (index.clusters().unwrap(), HashMap::new());
    let mut stored = Stored::open(&**index.volume(), stores, &none).unwrap();
    let mut of: HashMap<u32, Vec<u32>> = HashMap::new();
    for cluster in 0..stores.clusters() {
        for entry in stored.entries(cluster).unwrap() {
            of.entry(entry.node).or_default().push(cluster);
        }
    }
    of
}

fn sizes(index: &Index) -> Vec<usize> {
    let mut sizes = vec![0; index.clusters().unwrap().clusters() as usize];
    for clusters in clusters_of(index).values() {
        clusters
            .iter()
            .for_each(|&cluster| sizes[cluster as usize] += 1);
    }
    sizes
}

/// The share of vectors that are not in the cluster of their nearest head, by brute force.
fn astray(index: &Index) -> f64 {
    let of = clusters_of(index);
    let heads = index.clusters().unwrap().heads.vectors();
    let kernel = Kernel::new(Metric::L2, Element::U8, DIM);
    let mut distances = vec![0.0; heads.len() / DIM];
    let (mut astray, mut all) = (0, 0);
    each_vector(index, &Silent, &mut |node, _, vector| {
        kernel.distances_dense(vector, heads, &mut distances);
        let nearest = distances.iter().copied().fold(f32::INFINITY, f32::min);
        let is_in_it = of[&node]
            .iter()
            .any(|&cluster| distances[cluster as usize] == nearest);
        astray += usize::from(!is_in_it);
        all += 1;
        Ok(())
    })
    .unwrap();
    astray as f64 / all as f64
}

#[test]
fn vectors_are_in_the_cluster_whose_head_is_nearest_though_what_comes_drifts() {
    let folder = tempfile::tempdir().unwrap();
    let rows = drifting(4_000);
    // Without reassignment, the shares of vectors outside the cluster of their nearest head are
    // .225, .164 and .186. The layouts without stored own clusters have higher limits, since they
    // examine few vectors around a split cluster.
    let most = [0.1, 0.15, 0.155];
    for (layout, most) in LAYOUTS.into_iter().zip(most) {
        let path = folder.path().join(layout.name());
        built(&path, &matrix(&rows[..1_500]), layout);
        let live = open(&path, &OpenOptions::default(), Some(250));
        let before = astray(&live.index());
        assert!(before < 0.001, "{layout}: {before} astray as built");
        for part in rows[1_500..].chunks(250) {
            live.insert(&matrix(part), None, &Silent).unwrap();
        }
        let index = live.index();
        assert_eq!(index.len(), 4_000, "{layout}");
        let after = astray(&index);
        assert!(after < most, "{layout}: {after} astray");
    }
}

#[test]
fn equal_rows_make_clusters_of_the_usual_size() {
    let folder = tempfile::tempdir().unwrap();
    let base = photos(0..400);
    let one = photos(500..501);
    let mut bytes = one.in_memory().unwrap().repeat(600);
    bytes[DIM * 300] ^= 1;
    let alike = MatrixRef::new(&bytes, 600, DIM, Element::U8).unwrap();
    for layout in LAYOUTS {
        let path = folder.path().join(layout.name());
        built(&path, &base, layout);
        let live = open(&path, &OpenOptions::default(), Some(300));
        live.insert(&alike, None, &Silent).unwrap();
        live.rebalance(&Silent).unwrap();
        let index = live.index();
        assert_eq!(index.len(), 1_000, "{layout}");
        let largest = sizes(&index).into_iter().max().unwrap();
        // A build makes clusters of up to half of this size. Reassignment adds vectors.
        let most = 2 * crate::cluster::MOST_MEMBERS * REPLICAS * SIZE;
        assert!(
            largest <= most,
            "{layout}: {largest} members, {most} at most"
        );
        let found = live.search(
            &one,
            &SearchOptions {
                k: 500,
                list: 500,
                probes: Some(400),
                ..SearchOptions::default()
            },
        );
        let found = found.unwrap();
        let equal = found.distances.iter().filter(|&&distance| distance == 0.0);
        assert!(equal.count() >= 499, "{layout}");
        drop((live, index));
        let report = verify(&path, &Silent).unwrap();
        assert!(report.clean(), "{layout}: {:?}", report.problems);
    }
}

#[test]
fn clusters_change_where_their_roles_are_on_another_tier() {
    let folder = tempfile::tempdir().unwrap();
    let queries = photos(3_000..3_040);
    for layout in LAYOUTS {
        for tiers in [
            "topology=dram,vectors=dram",
            "topology=mapped:MAPPED,vectors=mapped:MAPPED",
        ] {
            let path = folder.path().join(format!("{layout}-{}", tiers.len()));
            built(&path, &photos(0..600), layout);
            let mapped = folder.path().join(format!("mapped-{layout}"));
            std::fs::create_dir_all(&mapped).unwrap();
            let text = tiers.replace("MAPPED", &mapped.display().to_string());
            let text = match (layout, text.split_once(',')) {
                (Layout::Replicated | Layout::Grouped, Some((_, vectors))) => vectors.to_owned(),
                _ => text,
            };
            let options = OpenOptions {
                places: text.parse().unwrap(),
                ..OpenOptions::default()
            };
            let live = open(&path, &options, Some(200));
            for first in (600..1_200).step_by(200) {
                live.insert(&photos(first..first + 200), None, &Silent)
                    .unwrap();
            }
            assert_eq!(live.index().len(), 1_200, "{layout}, {text}");
            let probing = SearchOptions {
                probes: Some(12),
                ..SearchOptions::default()
            };
            let found = live.search(&queries, &probing).unwrap();
            drop(live);
            let index = Index::open(&path, &OpenOptions::default()).unwrap();
            let alone = index.search(&queries, &probing).unwrap();
            assert_eq!(
                (found.ids, found.distances),
                (alone.ids, alone.distances),
                "{layout}, {text}"
            );
            assert!(verify(&path, &Silent).unwrap().clean(), "{layout}, {text}");
        }
    }
}

#[test]
fn a_merge_is_due_when_much_of_the_files_does_not_count() {
    let folder = tempfile::tempdir().unwrap();
    for layout in LAYOUTS {
        let path = folder.path().join(layout.name());
        built(&path, &photos(0..600), layout);
        let live = open(&path, &OpenOptions::default(), Some(300));
        let when = MergeWhen {
            least: 200,
            ..MergeWhen::default()
        };
        let none = live.index().clusters().unwrap().garbage();
        assert!(none < 0.05, "{layout}: {none}");
        live.insert(&photos(600..850), None, &Silent).unwrap();
        assert_eq!(live.due(&when), None, "{layout}");
        live.insert(&photos(850..900), None, &Silent).unwrap();
        let garbage = live.index().clusters().unwrap().garbage();
        assert!(garbage > none && garbage < 1.0, "{layout}: {garbage}");
        let when = MergeWhen {
            garbage: garbage / 2.0,
            ..when
        };
        assert_eq!(live.due(&when), Some(Due::Garbage(garbage)), "{layout}");
        live.compact(&Silent).unwrap();
        assert_eq!(live.due(&when), None, "{layout}");
    }
}

/// A rebalance dissolves the groups of clusters that it rewrites, so searches make more reads.
#[test]
fn a_merge_is_due_when_a_cluster_reads_far_more_than_it_did_as_it_was_built() {
    let folder = tempfile::tempdir().unwrap();
    let queries = photos(3_000..3_100);
    for layout in [Layout::Grouped, Layout::Addressed] {
        let path = folder.path().join(layout.name());
        built(&path, &photos(0..600), layout);
        let live = open(&path, &OpenOptions::default(), Some(100));
        let when = MergeWhen {
            least: 100,
            garbage: f64::INFINITY,
            grown: f64::INFINITY,
            ..MergeWhen::default()
        };
        let reads = |index: &Index| {
            let options = SearchOptions {
                probes: Some(8),
                ..SearchOptions::default()
            };
            let counters = index.search(&queries, &options).unwrap().counters;
            (counters.graph_reads + counters.vector_reads) as f64 / 100.0
        };
        assert_eq!(live.due(&when), None, "{layout}");
        let mut nights = 0;
        let due = (600..1_800).step_by(100).find_map(|first| {
            live.insert(&photos(first..first + 100), None, &Silent)
                .unwrap();
            nights += 1;
            live.due(&when)
        });
        let index = live.index();
        let volume = &**index.volume();
        let times = index.clusters().unwrap().scatter(volume).unwrap();
        let before = reads(&index);
        live.compact(&Silent).unwrap();
        assert_eq!(live.due(&when), None, "{layout}");
        let after = reads(&live.index());
        let said = format!("{layout}: {nights} inserts, {before} reads and {after} after a merge");
        match layout {
            Layout::Grouped => {
                let times = times.unwrap();
                assert_eq!(due, Some(Due::Scattered(times)), "{said}");
                assert!(times >= 1.3 && nights > 1, "{said}: {times}");
                assert!(before <= 1.3 * after, "{said}");
            }
            _ => assert_eq!((due, times), (None, None), "{said}"),
        }
        eprintln!("{said}");
    }
}

#[test]
fn a_checkpoint_that_has_no_room_is_refused_before_the_work_and_comes_earlier_under_a_budget() {
    let folder = tempfile::tempdir().unwrap();
    const WIDE: usize = 96 * DIM;
    let wide = |rows: std::ops::Range<usize>| {
        let (count, rows) = (rows.len(), photos(rows.start * 8..rows.end * 8));
        let parts = rows.in_memory().unwrap().chunks_exact(8 * DIM);
        let rows = parts.flat_map(|row| row.repeat(WIDE / (8 * DIM)));
        Matrix::new(rows.collect(), count, WIDE, Element::U8).unwrap()
    };
    let path = |name: &str| folder.path().join(name);
    built(&path("late"), &wide(0..300), Layout::Replicated);
    built(&path("early"), &wide(0..300), Layout::Replicated);
    let index = Index::open(path("late"), &OpenOptions::default()).unwrap();
    let facts = index.manifest().clusters().unwrap();
    let needs = Needs::of(&index, index.clusters().unwrap(), facts, 0);
    assert!(needs.bytes(100) - needs.bytes(0) >= 200 * WIDE as u64);
    assert_eq!(
        (needs.most(needs.bytes(500), 0), needs.most(1, 0)),
        (500, 0)
    );
    drop(index);
    let budget = OpenOptions {
        memory: Some(80 << 20),
        ..OpenOptions::default()
    };
    let free = open(&path("late"), &OpenOptions::default(), Some(100_000));
    free.insert(&wide(300..1_300), None, &Silent).unwrap();
    drop(free);
    let live = open(&path("late"), &budget, Some(100_000));
    let error = live.rebalance(&Silent).unwrap_err();
    assert!(matches!(error, Error::Memory { .. }), "{error}");
    let says = error.to_string();
    assert!(
        says.contains("1000 vectors that wait") && says.contains("nothing was changed"),
        "{says}"
    );
    assert_eq!((live.len(), live.index().len()), (1_300, 300));
    let one = SearchOptions {
        k: 1,
        ..SearchOptions::default()
    };
    let found = live.search(&wide(1_299..1_300), &one).unwrap();
    assert_eq!(found.distances, [0.0]);
    drop(live);
    let free = open(&path("late"), &OpenOptions::default(), None);
    assert_eq!(free.rebalance(&Silent).unwrap().merged, 1_000);
    let live = open(&path("early"), &budget, None);
    live.insert(&wide(300..1_300), None, &Silent).unwrap();
    assert!(live.index().len() > 300, "{:?}", live.stats().trouble);
    assert_eq!(live.stats().trouble, None);
}

#[test]
fn under_a_small_budget_vectors_go_into_clusters_before_there_is_no_room_for_more() {
    let folder = tempfile::tempdir().unwrap();
    let open_with = |memory: u64, wanted: Option<u64>| {
        let budget = OpenOptions {
            memory: Some(memory),
            ..OpenOptions::default()
        };
        let options = WriteOptions {
            threads: 1,
            update: Some(Update::Rebalance),
            direct: DirectOptions {
                checkpoint: wanted,
                ..DirectOptions::default()
            },
            ..WriteOptions::default()
        };
        LiveIndex::open(folder.path(), &budget, &options)
    };
    built(folder.path(), &photos(0..1_000), Layout::Grouped);
    let Err(Error::Memory { needs, .. }) = open_with(1, None) else {
        panic!("a byte is enough");
    };
    let mut came = 1_000;
    for wanted in [None, Some(100_000)] {
        let live = open_with(needs + 700 * (DIM as u64 + 300), wanted).unwrap();
        let put = live.insert(&photos(came..came + 2_000), None, &Silent);
        assert!(put.is_ok(), "{put:?}: {:?}", live.stats().trouble);
        came += 2_000;
        assert_eq!(live.len(), came);
        assert!(live.index().len() > came - 800, "{}", live.index().len());
        assert_eq!(live.stats().trouble, None);
    }
}

/// A central member is nearer to all other members than the other members are to each other. With
/// such a member as a head, each split would make a cluster of one vector, without end.
#[test]
fn clusters_around_hubs_come_to_an_end_of_being_split() {
    let mut state = 1_u64;
    let mut uniform = || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1 << 24) as f32
    };
    // The sum of twelve uniform numbers minus six has nearly a normal distribution.
    let mut rows = |count: usize, spread: f32| {
        let mut bytes = Vec::new();
        for _ in 0..count * 64 {
            let sum: f32 = (0..12).map(|_| uniform()).sum();
            bytes.extend_from_slice(&(spread * (sum - 6.0)).to_le_bytes());
        }
        Matrix::new(bytes, count, 64, Element::F32).unwrap()
    };
    let (few, many) = (rows(1_000, 0.5), rows(4_000, 1.0));
    for preset in [Preset::TIERED_CLUSTER, Preset::SPANN] {
        let folder = tempfile::tempdir().unwrap();
        let options = BuildOptions {
            preset,
            threads: 1,
            ..BuildOptions::default()
        };
        build_index(&few, folder.path(), &options, &Silent).unwrap();
        let live = open(folder.path(), &OpenOptions::default(), None);
        live.insert(&many, None, &Silent).unwrap();
        live.rebalance(&Silent).unwrap();
        assert_eq!(live.stats().trouble, None, "{preset}");
        let index = live.on_storage();
        let clusters = index.clusters().unwrap().clusters();
        assert!((20..2_500).contains(&clusters), "{preset}: {clusters}");
        assert_eq!(clusters_of(&index).len(), 5_000, "{preset}");
    }
}

/// Inserts come all around a small dense region. A candidate list full of heads that link only to
/// each other would keep every walk in this region.
#[test]
fn vectors_around_what_was_built_are_found_in_their_clusters() {
    const WIDE: usize = 24;
    let mut state = 1_u64;
    let mut uniform = || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1 << 24) as f32
    };
    let mut rows = |count: usize, spread: f32| {
        let mut bytes = Vec::new();
        for _ in 0..count * WIDE {
            let sum: f32 = (0..12).map(|_| uniform()).sum();
            bytes.extend_from_slice(&(spread * (sum - 6.0)).to_le_bytes());
        }
        Matrix::new(bytes, count, WIDE, Element::F32).unwrap()
    };
    let (few, many) = (rows(1_000, 0.01), rows(3_000, 1.0));
    let folder = tempfile::tempdir().unwrap();
    let options = BuildOptions {
        preset: Preset::SPANN,
        threads: 1,
        ..BuildOptions::default()
    };
    build_index(&few, folder.path(), &options, &Silent).unwrap();
    let live = open(folder.path(), &OpenOptions::default(), None);
    let row = WIDE * Element::F32.size();
    for part in many.in_memory().unwrap().chunks(1_000 * row) {
        let part = MatrixRef::new(part, part.len() / row, WIDE, Element::F32).unwrap();
        live.insert(&part, None, &Silent).unwrap();
    }
    live.rebalance(&Silent).unwrap();
    let asked = many.in_memory().unwrap().chunks(row).step_by(4);
    let asked = Matrix::new(asked.flatten().copied().collect(), 750, WIDE, Element::F32).unwrap();
    // If walks end in the region, the recall is .941 and .993. In a build of all vectors, the
    // recall is .980 and 1.
    for (probes, least) in [(4, 0.97), (64, 0.998)] {
        let options = SearchOptions {
            k: 1,
            probes: Some(probes),
            ..SearchOptions::default()
        };
        let found = live.search(&asked, &options).unwrap();
        let exact = found.distances.iter().filter(|&&distance| distance == 0.0);
        let share = exact.count() as f64 / 750.0;
        assert!(share >= least, "{probes} probes: {share}");
    }
}
