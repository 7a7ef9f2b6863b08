//! Searches that stop early: their results, and the cases in which they must not stop.

use std::collections::HashSet;

use stratann_tier::testing::SimVolume;
use stratann_vector::Element;

use super::*;
use crate::build::build_rows;
use crate::slow::slow;
use crate::{Durability, LiveIndex, Update, WriteOptions};

fn early(options: SearchOptions) -> SearchOptions {
    SearchOptions {
        list: 100,
        stop_early: true,
        ..options
    }
}

fn late(options: SearchOptions) -> SearchOptions {
    SearchOptions {
        stop_early: false,
        ..early(options)
    }
}

fn ways() -> impl Iterator<Item = SearchOptions> {
    let orders = [(Strategy::BestFirst, 4), (Strategy::Pipelined, 8)];
    let ways = orders.into_iter().flat_map(|order| {
        [(false, false), (false, true), (true, false), (true, true)].map(|way| (order, way))
    });
    ways.map(
        |((strategy, beam), (whole_page, navigation))| SearchOptions {
            strategy: Some(strategy),
            beam: Some(beam),
            whole_page: Some(whole_page),
            navigation: Some(navigation),
            ..SearchOptions::default()
        },
    )
}

fn some_ways() -> impl Iterator<Item = SearchOptions> {
    ways().step_by(3)
}

/// By default, two or three combinations. Three successive values of `number` together give all
/// combinations.
fn ways_of(number: usize) -> impl Iterator<Item = SearchOptions> {
    let few = ways().enumerate();
    let few = few.filter(move |(way, _)| slow() || way % 3 == number % 3);
    few.map(|(_, way)| way)
}

fn search(index: &Index, options: &SearchOptions) -> SearchResults {
    index.search(&small().queries, options).unwrap()
}

#[test]
fn fewer_nodes_are_expanded_and_next_to_nothing_is_lost() {
    for (number, stored) in STORED.into_iter().enumerate() {
        let index = stored_under(stored, Faults::none());
        for way in ways_of(number) {
            let (early, late) = (search(&index, &early(way)), search(&index, &late(way)));
            let what = format!("{stored:?}, {way:?}");
            let (found, all) = (recall(&early), recall(&late));
            assert!(found > all - 0.01, "{what}: {found} of {all}");
            let (few, many) = (early.counters, late.counters);
            assert!(few.hops < many.hops, "{what}: {} {}", few.hops, many.hops);
            // Each query expands at least as many nodes as it has results.
            assert!(few.hops >= 10 * 100, "{what}: {}", few.hops);
            let reads = |of: Counters| of.graph_reads + of.vector_reads;
            assert!(reads(few) < reads(many), "{what}: {few:?} {many:?}");
        }
    }
}

#[test]
fn longer_lists_find_more_and_read_more() {
    for stored in [COUPLED, BEST, LAYERED, INLINE] {
        let index = stored_under(stored, Faults::none());
        let of = |list| {
            let options = options(Preset::STRATANN);
            let found = search(
                &index,
                &SearchOptions {
                    list,
                    ..early(options)
                },
            );
            (recall(&found), found.counters.hops)
        };
        let found = [20, 40, 80, 160].map(of);
        assert!(
            found.is_sorted_by(|a, b| a.1 < b.1),
            "{stored:?}: {found:?}"
        );
        assert!(
            found.is_sorted_by(|a, b| a.0 <= b.0 + 0.003),
            "{stored:?}: {found:?}"
        );
        assert!(found[3].0 > 0.99, "{stored:?}: {found:?}");
    }
}

#[test]
fn best_first_stops_where_it_does_under_any_completion_order() {
    for (stored, whole_page) in STORED.into_iter().flat_map(|s| [(s, false), (s, true)]) {
        let options = SearchOptions {
            whole_page: Some(whole_page),
            ..early(options(Preset::DISKANN))
        };
        let calm = search(&stored_under(stored, Faults::none()), &options);
        for (order, faults) in orders().into_iter().take(4) {
            let mixed = search(&stored_under(stored, faults), &options);
            assert_eq!(mixed.ids, calm.ids, "{stored:?}, {order}");
            assert_eq!(mixed.distances, calm.distances, "{stored:?}, {order}");
            assert_eq!(mixed.counters, calm.counters, "{stored:?}, {order}");
        }
    }
}

/// Distances that are known only after the walk must not resume the walk, nor rank candidates
/// again.
#[test]
fn a_walk_that_has_ended_is_over_and_nobody_is_ranked_twice() {
    let index = stored_under(BEST, Faults::none());
    let of = |benefit, estimate| {
        let rerank = Rerank {
            benefit,
            estimate,
            ..Rerank::PAPER
        };
        let options = SearchOptions {
            rerank: Some(rerank),
            ..early(options(Preset::DISKANN))
        };
        search(&index, &options).counters
    };
    // The three options rank all candidates, some of them, or hardly any.
    let (all, some, few) = (of(0.0, false), of(0.3, true), of(1.0, false));
    assert_eq!(all.hops, some.hops);
    assert_eq!(all.hops, few.hops);
    assert!(all.reranked > some.reranked && all.reranked > few.reranked);
    // At most one in a hundred candidates was ranked during the walk and then left the list.
    let list = 100 * 100;
    assert!(all.reranked >= list, "{all:?}");
    assert!(all.reranked <= list + 100, "{all:?}");
    assert!(all.prefetched > 100, "{all:?}");
}

#[test]
fn a_row_that_is_asked_for_is_found() {
    let rows = head(&fixture("photo-sift-20k.base.u8bin"), DESCRIPTORS);
    let asked: Vec<u8> = (0..DESCRIPTORS)
        .step_by(8)
        .flat_map(|row| rows.bytes()[row * 128..][..128].to_vec())
        .collect();
    let asked = Matrix::new(asked, DESCRIPTORS / 8, 128, Element::U8).unwrap();
    for (number, stored) in STORED.into_iter().enumerate() {
        let index = stored_under(stored, Faults::none());
        for way in ways_of(number) {
            for list in [20, 100] {
                let options = SearchOptions {
                    k: 1,
                    exact: true,
                    list,
                    ..early(way)
                };
                let found = index.search(&asked, &options).unwrap();
                let missed = found.distances.iter().filter(|&&distance| distance != 0.0);
                assert_eq!(missed.count(), 0, "{stored:?}, {list}, {way:?}");
            }
        }
    }
}

#[test]
fn a_list_with_room_for_all_is_gone_through_to_its_end() {
    // The expansion of all nodes takes long, so by default few indexes are searched.
    let packed = (Layout::Packed, Compression::Best, Order::Input);
    let few = [COUPLED, INLINE, packed, BEST, LAYERED];
    for stored in if slow() { &STORED[..] } else { &few } {
        let (stored, index) = (*stored, stored_under(*stored, Faults::none()));
        let options = SearchOptions {
            list: DESCRIPTORS,
            exact: true,
            ..early(options(Preset::DISKANN))
        };
        let found = search(&index, &options);
        // A vector whose leading part is at the same distance may take the place of a result.
        let least = if stored == LAYERED { 0.995 } else { 1.0 };
        assert!(recall(&found) >= least, "{stored:?}: {}", recall(&found));
        let hops = found.counters.hops;
        assert!(hops > 100 * (DESCRIPTORS as u64 - 10), "{stored:?}: {hops}");
    }
}

/// If codes are in the records, some keys are exact.
#[test]
fn what_is_in_memory_stops_no_search_too_soon() {
    for (number, stored) in STORED.into_iter().enumerate() {
        for (memory, cache) in [
            (Some(64 << 20), CacheSize::None),
            (None, CacheSize::Entries(600)),
        ] {
            let open = OpenOptions {
                memory,
                cache,
                ..OpenOptions::default()
            };
            // The order of reads and queries is fixed, so the cache has the same contents in each
            // run of the test.
            let index = from_memory(path(stored), &open);
            let number = number + usize::from(memory.is_none());
            for way in ways_of(number) {
                let alone = |options| SearchOptions {
                    in_flight: Some(1),
                    ..options
                };
                search(&index, &alone(late(way)));
                let [early, late] = [early(way), late(way)].map(|way| search(&index, &alone(way)));
                let what = format!("{stored:?}, {memory:?}, {way:?}");
                let (found, all) = (recall(&early), recall(&late));
                assert!(found > all - 0.01, "{what}: {found} of {all}");
                assert!(early.counters.hops < late.counters.hops, "{what}");
            }
        }
    }
}

/// Pages are read from memory, so that reads complete in the order of requests.
fn from_memory(path: std::path::PathBuf, open: &OpenOptions) -> Index {
    let mut index = Index::open(&path, open).unwrap();
    let volume = stratann_tier::Directory::open(&path).unwrap();
    index.replace_tiers(&|name| Arc::new(DramTier::new(volume.read(name).unwrap())));
    index
}

fn changing(folder: &std::path::Path, layout: Layout, update: Option<Update>) -> LiveIndex {
    let base = head(&fixture("photo-sift-20k.base.u8bin"), 1_500);
    let options = BuildOptions {
        layout: Some(layout),
        degree: Some(24),
        build_list: 50,
        navigation: 0.02,
        threads: 1,
        ..BuildOptions::default()
    };
    let path = folder.join(layout.to_string());
    std::fs::create_dir(&path).unwrap();
    let volume = SimVolume::new();
    build_rows(&volume, &base, &options, &path);
    let write = WriteOptions {
        durability: Durability::OnFlush,
        threads: 1,
        update,
        ..WriteOptions::default()
    };
    let open = OpenOptions::default();
    LiveIndex::open_in(Arc::new(volume), &path, &open, &write).unwrap()
}

const LAYOUTS: [Layout; 5] = [
    Layout::Coupled,
    Layout::Packed,
    Layout::Inline,
    Layout::Decoupled,
    Layout::Layered,
];

#[test]
fn what_is_deleted_is_no_answer_that_ends_a_search() {
    let folder = tempfile::tempdir().unwrap();
    let base = head(&fixture("photo-sift-20k.base.u8bin"), 1_500);
    let queries = &small().queries;
    let left: Vec<u8> = (0..1_500)
        .filter(|row| row % 3 == 0)
        .flat_map(|row| base.bytes()[row * 128..][..128].to_vec())
        .collect();
    let left = Matrix::new(left, 500, 128, Element::U8).unwrap();
    let truth = brute_force(&left, queries, 10, Metric::L2, 1, &Silent).unwrap();
    for (number, layout) in LAYOUTS.into_iter().enumerate() {
        let live = changing(folder.path(), layout, None);
        let gone: Vec<u64> = (0..1_500).filter(|id| id % 3 != 0).collect();
        live.delete(&gone).unwrap();
        let ways = some_ways().enumerate();
        for (_, way) in ways.filter(|(way, _)| slow() || way % 3 == number % 3) {
            let of = |options: SearchOptions| {
                let options = SearchOptions {
                    exact: true,
                    ..options
                };
                // The first search meets deleted nodes, and the second knows them in advance.
                let found = [(); 2].map(|()| live.search(queries, &options).unwrap());
                found.map(|found| {
                    assert!(found.ids.iter().all(|id| id % 3 == 0), "{layout}, {way:?}");
                    let ids: Vec<u64> = found.ids.iter().map(|id| id / 3).collect();
                    let recall = truth.recall(&ids, &found.distances, 10).unwrap();
                    (recall, found.counters.hops)
                })
            };
            let (late, early) = (of(late(way)), of(early(way)));
            for (early, late) in early.into_iter().zip(late) {
                assert!(
                    early.0 > late.0 - 0.01,
                    "{layout}, {way:?}: {early:?} {late:?}"
                );
                assert!(early.1 < late.1, "{layout}, {way:?}: {early:?} {late:?}");
            }
        }
    }
}

/// The distances of vectors that wait for a merge do not show how far the walk has come.
#[test]
fn what_waits_in_memory_ends_no_search() {
    let folder = tempfile::tempdir().unwrap();
    let queries = rerank::query_of(&small().queries, 3);
    for layout in [
        Layout::Packed,
        Layout::Decoupled,
        Layout::Layered,
        Layout::Inline,
    ] {
        let live = changing(folder.path(), layout, Some(Update::Merge));
        let nearest = |options: SearchOptions| {
            let found = live.search(&queries, &options).unwrap();
            let stored = found.ids.iter().copied().find(|&id| id < 1_500);
            (stored, found)
        };
        let (before, _) = nearest(late(SearchOptions::default()));
        let copies = queries.bytes().repeat(9);
        let copies = Matrix::new(copies, 9, 128, Element::U8).unwrap();
        live.insert(&copies, None, &Silent).unwrap();
        for way in ways() {
            let (stored, found) = nearest(early(way));
            assert_eq!(stored, before, "{layout}, {way:?}: {:?}", found.ids);
            let waiting: HashSet<_> = found.ids.iter().filter(|&&id| id >= 1_500).collect();
            assert_eq!(waiting.len(), 9, "{layout}, {way:?}: {:?}", found.ids);
        }
    }
}

/// Other metrics have other distances and errors, and some of these are negative.
#[test]
fn every_metric_has_its_bound() {
    let folder = tempfile::tempdir().unwrap();
    let base = head(&fixture("package-text-2k.base.fbin"), 2_000);
    let queries = head(&fixture("package-text-2k.query.fbin"), 100);
    for metric in [Metric::Cosine, Metric::InnerProduct] {
        let truth = brute_force(&base, &queries, 10, metric, 1, &Silent).unwrap();
        for layout in [Layout::Packed, Layout::Decoupled, Layout::Layered] {
            // By default, each metric and each layout runs at least once.
            let few = match metric {
                Metric::Cosine => [Layout::Packed, Layout::Layered],
                _ => [Layout::Decoupled, Layout::Layered],
            };
            if !slow() && !few.contains(&layout) {
                continue;
            }
            let options = BuildOptions {
                metric,
                layout: Some(layout),
                degree: Some(24),
                build_list: 40,
                navigation: 0.02,
                threads: 1,
                overwrite: true,
                ..BuildOptions::default()
            };
            let path = folder.path().join("index");
            build(&base, &path, &options, &Silent).unwrap();
            let index = from_memory(path, &OpenOptions::default());
            for way in some_ways() {
                let of = |options: SearchOptions| {
                    let options = SearchOptions {
                        exact: true,
                        ..options
                    };
                    let found = index.search(&queries, &options).unwrap();
                    let recall = truth.recall(&found.ids, &found.distances, 10).unwrap();
                    (recall, found.counters.hops)
                };
                let (few, all) = (of(early(way)), of(late(way)));
                let what = format!("{metric:?}, {layout}, {way:?}: {few:?} {all:?}");
                assert!(few.0 > all.0 - 0.02, "{what}");
                assert!(few.1 < all.1, "{what}");
                // A search without early stop that costs about as much must not find more.
                let shorter = (10..=few.1 as usize / 100)
                    .rev()
                    .step_by(2)
                    .map(|list| of(SearchOptions { list, ..late(way) }));
                let short = shorter.into_iter().find(|short| short.1 <= few.1);
                let short = short.expect(
                    "the search with early stop takes more reads than one with list size 10",
                );
                assert!(few.0 > short.0 - 0.006, "{what} {short:?}");
            }
        }
    }
}

#[test]
fn nobody_stops_early_who_did_not_ask_for_it() {
    assert!(!SearchOptions::default().stop_early);
    for stored in [COUPLED, BEST] {
        let index = stored_under(stored, Faults::none());
        let plan = index.plan_search(&small().queries, &SearchOptions::default(), None, None);
        assert_eq!(plan.unwrap().0.ends, Ends::WithItsList);
    }
}
