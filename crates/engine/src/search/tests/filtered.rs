//! Searches with filters, compared with brute force.

use std::collections::HashSet;

use super::*;
use crate::filter::NodeSet;
use crate::index::contents::each_vector;
use crate::slow::slow;

const K: usize = 10;

const ROWS: usize = DESCRIPTORS;

fn matching(nodes: &NodeSet) -> Matching<'_> {
    static NONE: OnceLock<NodeSet> = OnceLock::new();
    let none = NONE.get_or_init(NodeSet::default);
    Matching {
        nodes,
        fresh: [none; 2],
        looked: Default::default(),
    }
}

fn among(
    index: &Index,
    queries: &Matrix,
    options: &SearchOptions,
    nodes: &NodeSet,
) -> SearchResults {
    index
        .search_matching(queries, options, &Silent, None, matching(nodes))
        .unwrap()
}

fn ids(index: &Index) -> Vec<u64> {
    let mut ids = vec![u64::MAX; index.len()];
    each_vector(index, &Silent, &mut |node, id, _| {
        ids[node as usize] = id;
        Ok(())
    })
    .unwrap();
    assert!(ids.iter().all(|&id| id < u64::MAX));
    ids
}

/// A pseudo-random condition on ids, the same for all indexes.
fn drawn(share: f64) -> impl Fn(u64) -> bool {
    move |id| {
        let hash = (id + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(31);
        let hash = hash.wrapping_mul(0xD6E8_FEB8_6659_FD93) >> 11;
        (hash as f64 / (1u64 << 53) as f64) < share
    }
}

pub(super) fn photos() -> (Matrix, Matrix) {
    let base = head(&fixture("photo-sift-20k.base.u8bin"), ROWS);
    let queries = head(&fixture("photo-sift-20k.query.u8bin"), 30);
    (base, queries)
}

/// The recall among the matching vectors.
fn checked(
    what: &str,
    found: &SearchResults,
    queries: &Matrix,
    base: &Matrix,
    rows: &[u64],
) -> f64 {
    let row = base.dim() * base.element().size();
    let wanted: HashSet<u64> = rows.iter().copied().collect();
    let count = K.min(rows.len());
    if rows.is_empty() {
        assert!(found.ids.iter().all(|&id| id == u64::MAX), "{what}");
        return 1.0;
    }
    let bytes: Vec<u8> = rows
        .iter()
        .flat_map(|&id| base.bytes()[id as usize * row..][..row].to_vec())
        .collect();
    let left = Matrix::new(bytes, rows.len(), base.dim(), base.element()).unwrap();
    let truth = brute_force(&left, queries, count, Metric::L2, 2, &Silent).unwrap();
    let mut right = 0;
    for (query, ids) in found.ids.chunks(found.k).enumerate() {
        let (there, padding) = ids.split_at(count);
        let different: HashSet<&u64> = there.iter().collect();
        assert_eq!(different.len(), count, "{what}, query {query}: {ids:?}");
        assert!(
            there.iter().all(|id| wanted.contains(id)),
            "{what}, query {query}: {ids:?}"
        );
        assert!(
            padding.iter().all(|&id| id == u64::MAX),
            "{what}, query {query}: {ids:?}"
        );
        let farthest = truth.distances.as_ref().unwrap()[query * count + count - 1];
        let distances = &found.distances[query * found.k..][..count];
        right += match found.exact {
            true => distances
                .iter()
                .filter(|&&distance| distance <= farthest)
                .count(),
            false => {
                let nearest: HashSet<u64> = truth.ids[query * count..][..count]
                    .iter()
                    .map(|&at| rows[at as usize])
                    .collect();
                there.iter().filter(|id| nearest.contains(id)).count()
            }
        };
    }
    right as f64 / (count * queries.rows()) as f64
}

/// The ids, sorted by distance from the vector that is farthest from all queries.
fn lonely(base: &Matrix, queries: &Matrix) -> &'static [u64] {
    static ORDER: OnceLock<Vec<u64>> = OnceLock::new();
    ORDER.get_or_init(|| {
        let row = base.dim();
        let distance = |a: &[u8], b: &[u8]| -> u64 {
            a.iter()
                .zip(b)
                .map(|(&a, &b)| u64::from(a.abs_diff(b)).pow(2))
                .sum()
        };
        let rows: Vec<&[u8]> = base.bytes().chunks(row).collect();
        let nearest_query = |at: &&&[u8]| {
            let queries = queries.bytes().chunks(row);
            queries.map(|query| distance(query, at)).min().unwrap()
        };
        let lonely = rows.iter().max_by_key(nearest_query).unwrap();
        let mut order: Vec<u64> = (0..ROWS as u64).collect();
        order.sort_by_cached_key(|&id| distance(rows[id as usize], lonely));
        order
    })
}

fn check_index(
    name: &str,
    index: &Index,
    options: &SearchOptions,
    base: &Matrix,
    queries: &Matrix,
) {
    let ids = ids(index);
    let search = |what: &str, matches: &dyn Fn(u64) -> bool| {
        let set: NodeSet = (0..)
            .zip(&ids)
            .filter(|&(_, &id)| matches(id))
            .map(|(node, _)| node)
            .collect();
        let rows: Vec<u64> = (0..ROWS as u64).filter(|&id| matches(id)).collect();
        assert_eq!(set.len() as usize, rows.len());
        // A requested walk may find too few matches, so its bound is lower.
        for way in [None, Some(Way::Within)] {
            let found = among(index, queries, &SearchOptions { way, ..*options }, &set);
            assert!(way.is_none_or(|way| found.explained.unwrap().way == way));
            let what = format!("{name}, {what}, {} match, {way:?}", rows.len());
            let recall = checked(&what, &found, queries, base, &rows);
            let counters = found.counters;
            println!(
                "{what}: recall {recall:.3}, {} + {} reads",
                counters.graph_reads, counters.vector_reads
            );
            // PRESS ends a walk by its low codes, which are less exact.
            let least = if way.is_some() { 0.9 } else { 0.95 };
            assert!(recall >= least, "{what}: recall {recall}");
        }
    };
    let shares = match slow() {
        true => &[1.0, 0.5, 0.1, 0.01, 0.001, 0.0][..],
        false => &[0.5, 0.01, 0.0],
    };
    for &share in shares {
        search("drawn", &drawn(share));
    }
    let order = lonely(base, queries);
    let counts = match slow() {
        true => &[ROWS / 5, ROWS / 20, 30][..],
        false => &[ROWS / 20],
    };
    for &count in counts {
        let region: HashSet<u64> = order[..count].iter().copied().collect();
        search("one region", &|id| region.contains(&id));
    }
}

#[test]
fn every_layout_and_strategy_answers_what_matches() {
    let (base, queries) = photos();
    for (at, stored) in STORED.into_iter().enumerate() {
        let index = Index::open(path(stored), &OpenOptions::default()).unwrap();
        let both = [
            ("best-first", Preset::DISKANN),
            ("pipelined", Preset::STRATANN),
        ];
        let ways = if slow() {
            &both[..]
        } else {
            &both[at % 2..][..1]
        };
        for &(name, preset) in ways {
            let options = SearchOptions {
                list: 60,
                ..options(preset)
            };
            check_index(
                &format!("{stored:?}, {name}"),
                &index,
                &options,
                &base,
                &queries,
            );
        }
    }
}

#[test]
fn nested_codes_answer_what_matches() {
    let (base, queries) = photos();
    let folder = tempfile::tempdir().unwrap();
    let build_options = BuildOptions {
        preset: Preset::DISTVS,
        degree: Some(32),
        build_list: 50,
        threads: 1,
        ..BuildOptions::default()
    };
    let path = folder.path().join("nested");
    build(&base, &path, &build_options, &Silent).unwrap();
    let index = Index::open(&path, &OpenOptions::default()).unwrap();
    for strategy in [Strategy::Press, Strategy::BestFirst] {
        let options = SearchOptions {
            list: 60,
            strategy: Some(strategy),
            ..SearchOptions::default()
        };
        check_index(
            &format!("nested codes, {strategy}"),
            &index,
            &options,
            &base,
            &queries,
        );
    }
}

#[test]
fn clusters_answer_what_matches() {
    let (base, queries) = photos();
    let folder = tempfile::tempdir().unwrap();
    for layout in [Layout::Replicated, Layout::Addressed, Layout::Grouped] {
        let build_options = BuildOptions {
            layout: Some(layout),
            cluster_size: Some(12),
            threads: 1,
            ..BuildOptions::default()
        };
        let path = folder.path().join(layout.name());
        build(&base, &path, &build_options, &Silent).unwrap();
        let index = Index::open(&path, &OpenOptions::default()).unwrap();
        let options = SearchOptions {
            probes: Some(24),
            ..SearchOptions::default()
        };
        check_index(layout.name(), &index, &options, &base, &queries);
    }
}

fn of_clusters(folder: &std::path::Path, base: &Matrix, layout: Layout) -> Index {
    let build_options = BuildOptions {
        layout: Some(layout),
        cluster_size: Some(12),
        threads: 1,
        ..BuildOptions::default()
    };
    let path = folder.join(layout.name());
    build(base, &path, &build_options, &Silent).unwrap();
    Index::open(&path, &OpenOptions::default()).unwrap()
}

fn reads(found: &SearchResults) -> u64 {
    found.counters.graph_reads + found.counters.vector_reads
}

#[test]
fn probes_of_clusters_find_as_much_with_evenly_spread_matches_as_without_a_filter() {
    let base = head(&fixture("photo-sift-20k.base.u8bin"), 20_000);
    let queries = head(&fixture("photo-sift-20k.query.u8bin"), 60);
    let folder = tempfile::tempdir().unwrap();
    let index = of_clusters(folder.path(), &base, Layout::Replicated);
    let ids = ids(&index);
    let options = SearchOptions {
        probes: Some(6),
        ..SearchOptions::default()
    };
    let recall = |share: f64| {
        let matches = drawn(share);
        let nodes = (0..).zip(&ids).filter(|&(_, &id)| matches(id));
        let set: NodeSet = nodes.map(|(node, _)| node).collect();
        let rows: Vec<u64> = (0..base.rows() as u64).filter(|&id| matches(id)).collect();
        let found = among(&index, &queries, &options, &set);
        let recall = checked("replicated", &found, &queries, &base, &rows);
        println!("{share}: recall {recall:.3}, {} reads", reads(&found));
        recall
    };
    let without = recall(1.0);
    assert!((0.85..0.95).contains(&without), "{without}");
    for share in [0.5, 0.1, 0.05, 0.02, 0.01, 0.005] {
        let with = recall(share);
        assert!(with >= without - 0.005, "{share}: {with}, {without}");
    }
}

#[test]
fn far_matches_in_groups_are_read_at_once() {
    let (base, queries) = photos();
    let folder = tempfile::tempdir().unwrap();
    let index = of_clusters(folder.path(), &base, Layout::Grouped);
    let ids = ids(&index);
    let options = SearchOptions {
        k: 1,
        probes: Some(2),
        ..SearchOptions::default()
    };
    // The filter matches a twentieth of the region, so that few of the matches share a read.
    let region: HashSet<u64> = lonely(&base, &queries)[..ROWS / 3]
        .iter()
        .copied()
        .filter(|&id| drawn(0.05)(id))
        .collect();
    let nodes = (0..).zip(&ids).filter(|&(_, id)| region.contains(id));
    let set: NodeSet = nodes.map(|(node, _)| node).collect();
    let with = |way| among(&index, &queries, &SearchOptions { way, ..options }, &set);
    let (chosen, before, within) = (with(None), with(Some(Way::Before)), with(Some(Way::Within)));
    let (c, b) = (chosen.explained.unwrap(), before.explained.unwrap());
    let each = reads(&before) as f64 / queries.rows() as f64;
    println!(
        "{} match; chosen {}, before {}, within {} reads; {c:?}",
        set.len(),
        reads(&chosen),
        reads(&before),
        reads(&within)
    );
    assert_eq!(b.estimates.before, each);
    // Some queries are near a part of the region.
    assert_eq!((c.way, c.dry > 0), (Way::Within, true));
    assert!(reads(&chosen) < reads(&within), "{c:?}");
    let pairs = chosen.distances.iter().zip(&before.distances);
    let right = pairs.filter(|(found, nearest)| found == nearest).count();
    assert!(10 * right >= 8 * queries.rows(), "{right}");
    assert_eq!(within.explained.unwrap().dry, 0);
}

#[test]
fn even_matches_in_groups_are_probed() {
    let (base, queries) = photos();
    let folder = tempfile::tempdir().unwrap();
    let index = of_clusters(folder.path(), &base, Layout::Grouped);
    let ids = ids(&index);
    for share in [0.2, 0.1, 0.05] {
        let matches = drawn(share);
        let nodes = (0..).zip(&ids).filter(|&(_, &id)| matches(id));
        let set: NodeSet = nodes.map(|(node, _)| node).collect();
        let with = |way| {
            let options = SearchOptions {
                probes: Some(4),
                way,
                ..SearchOptions::default()
            };
            among(&index, &queries, &options, &set)
        };
        let (chosen, within) = (with(None), with(Some(Way::Within)));
        let explained = chosen.explained.unwrap();
        let counts = (reads(&chosen), reads(&within));
        assert_eq!(explained.way, Way::Within, "{share}: {explained:?}");
        assert!(
            10 * counts.0 <= 11 * counts.1,
            "{share}: {counts:?}, {explained:?}"
        );
    }
}

#[test]
fn both_ways_are_right_by_themselves() {
    let (base, queries) = photos();
    for stored in [COUPLED, BEST, INLINE, LAYERED] {
        let index = Index::open(path(stored), &OpenOptions::default()).unwrap();
        let ids = ids(&index);
        for share in [0.5, 0.1, 0.02] {
            let matches = drawn(share);
            let set: NodeSet = (0..)
                .zip(&ids)
                .filter(|&(_, &id)| matches(id))
                .map(|(node, _)| node)
                .collect();
            let rows: Vec<u64> = (0..ROWS as u64).filter(|&id| matches(id)).collect();
            for way in [Way::Within, Way::Before] {
                let options = SearchOptions {
                    list: 60,
                    way: Some(way),
                    ..options(Preset::STRATANN)
                };
                let found = among(&index, &queries, &options, &set);
                let what = format!("{stored:?}, {share}, {way:?}");
                let recall = checked(&what, &found, &queries, &base, &rows);
                let counters = found.counters;
                println!(
                    "{what}: recall {recall:.3}, {} + {} reads",
                    counters.graph_reads, counters.vector_reads
                );
                assert!(recall >= 0.95, "{what}: recall {recall}");
                if way == Way::Before && [COUPLED, BEST].contains(&stored) {
                    // Beside the k results, a query reads the vectors that show the error of codes.
                    let reads = counters.graph_reads + counters.vector_reads;
                    let each = reads as f64 / queries.rows() as f64;
                    assert!(each <= (K + 10) as f64, "{what}: {each} reads a query");
                }
            }
        }
    }
}

#[test]
fn a_filter_and_deletes_leave_what_matches_and_is_not_deleted() {
    let (base, queries) = photos();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("deleted");
    let build_options = BuildOptions {
        degree: Some(32),
        build_list: 50,
        threads: 1,
        ..BuildOptions::default()
    };
    build(&base, &path, &build_options, &Silent).unwrap();
    let index = Index::open(&path, &OpenOptions::default()).unwrap();
    let ids = ids(&index);
    drop(index);
    let gone = |id: u64| id % 4 != 1;
    let dead: Vec<u64> = (0..ROWS as u64).filter(|&id| gone(id)).collect();
    let write = crate::WriteOptions::default();
    let live = crate::LiveIndex::open(&path, &OpenOptions::default(), &write).unwrap();
    live.delete(&dead).unwrap();
    live.flush().unwrap();
    drop(live);
    let index = Index::open(&path, &OpenOptions::default()).unwrap();
    let overlay = index.overlay().unwrap();
    let options = SearchOptions {
        list: 60,
        ..SearchOptions::default()
    };
    for share in [0.5, 0.1, 0.01] {
        let matches = drawn(share);
        let set: NodeSet = (0..)
            .zip(&ids)
            .filter(|&(_, &id)| matches(id))
            .map(|(node, _)| node)
            .collect();
        let rows: Vec<u64> = (0..ROWS as u64)
            .filter(|&id| matches(id) && !gone(id))
            .collect();
        for way in [Way::Within, Way::Before] {
            let seen = Seen {
                overlay,
                moment: overlay.now(),
            };
            let options = SearchOptions {
                way: Some(way),
                ..options
            };
            let found =
                index.search_matching(&queries, &options, &Silent, Some(seen), matching(&set));
            let what = format!("{share}, {way:?}, with deletes");
            let recall = checked(&what, &found.unwrap(), &queries, &base, &rows);
            assert!(recall >= 0.95, "{what}: recall {recall}");
        }
    }
}

#[test]
fn filters_are_answered_from_columns_and_from_rows_in_memory() {
    use crate::{
        ColumnType, Filter, LiveIndex, Row, RowTable, Update, WriteOptions, build_with_rows,
    };

    let (base, queries) = photos();
    let row_bytes = base.dim();
    let part = |rows: std::ops::Range<usize>| {
        let bytes = base.bytes()[rows.start * row_bytes..rows.end * row_bytes].to_vec();
        Matrix::new(bytes, rows.len(), base.dim(), base.element()).unwrap()
    };
    // The attributes of a vector follow from its id. One vector in eleven has no attributes.
    let row = |id: u64| {
        let mut row = Row::default();
        if !id.is_multiple_of(11) {
            let tags = vec![format!("t{}", id % 7), "all".to_owned()];
            row.attributes.insert("tags".into(), tags.into());
            row.attributes
                .insert("size".into(), (id as i64 % 1_000).into());
            row.attributes
                .insert("price".into(), (id as f64 / 4.0).into());
        }
        row
    };
    let rows = |ids: std::ops::Range<u64>| RowTable::new(ids.map(row).collect());
    let folder = tempfile::tempdir().unwrap();
    let built = 2_400;
    let all = [
        (Layout::Coupled, Some(Update::Relocate)),
        (Layout::Decoupled, None),
        (Layout::Grouped, None),
        (Layout::Coupled, None),
        (Layout::Inline, None),
    ];
    for &(layout, update) in if slow() { &all[..] } else { &all[..3] } {
        let path = folder.path().join(format!("{layout} {update:?}"));
        let build_options = BuildOptions {
            layout: Some(layout),
            threads: 1,
            ..BuildOptions::default()
        };
        build_with_rows(
            &part(0..built),
            &rows(0..built as u64),
            &path,
            &build_options,
            &Silent,
        )
        .unwrap();
        let write = WriteOptions {
            threads: 1,
            update,
            ..WriteOptions::default()
        };
        let live = LiveIndex::open(&path, &OpenOptions::default(), &write).unwrap();
        let ids: Vec<u64> = (built as u64..ROWS as u64).collect();
        live.insert_rows(
            &part(built..ROWS),
            &rows(built as u64..ROWS as u64),
            Some(&ids),
            &Silent,
        )
        .unwrap();
        let gone = |id: u64| id % 13 == 5;
        let dead: Vec<u64> = (0..ROWS as u64).filter(|&id| gone(id)).collect();
        live.delete(&dead).unwrap();
        assert_eq!(live.schema().get("tags"), Some(ColumnType::Strings));
        let has = |id: u64| !id.is_multiple_of(11);
        let cases: [(&str, &dyn Fn(u64) -> bool); 6] = [
            ("tags contains 't3'", &|id| has(id) && id % 7 == 3),
            ("size < 20 or tags contains any ['t1', 't2']", &|id| {
                has(id) && (id % 1_000 < 20 || matches!(id % 7, 1 | 2))
            }),
            ("not exists size", &|id| !has(id)),
            ("size between 100 and 104", &|id| {
                has(id) && (100..=104).contains(&(id % 1_000))
            }),
            ("price >= 600.0 and size != 7", &|id| {
                has(id) && id >= 2_400 && id % 1_000 != 7
            }),
            ("size == -1", &|_| false),
        ];
        for merged in [false, true] {
            if merged {
                live.compact(&crate::Silent).unwrap();
            }
            for (text, matches) in &cases {
                let filter = Filter::parse(text).unwrap();
                let options = SearchOptions {
                    list: 60,
                    ..SearchOptions::default()
                };
                let found = live.search_filtered(&queries, &options, &filter).unwrap();
                let left: Vec<u64> = (0..ROWS as u64)
                    .filter(|&id| matches(id) && !gone(id))
                    .collect();
                let what = format!("{layout}, {update:?}, merged: {merged}, {text}");
                assert_eq!(live.count(&filter).unwrap(), left.len() as u64, "{what}");
                let recall = checked(&what, &found, &queries, &base, &left);
                assert!(recall >= 0.95, "{what}: recall {recall}");
            }
        }
        let unknown = Filter::parse("colour == 'red'").unwrap();
        let error = live
            .search_filtered(&queries, &SearchOptions::default(), &unknown)
            .unwrap_err();
        assert!(
            error.is_call_wrong() && error.to_string().contains("no column"),
            "{error}"
        );
    }
}
