//! Compares range searches and searches by id with brute force.

use super::filtered::photos;
use super::*;
use crate::{
    Element, Error, Filter, LiveIndex, Range, RangeResults, Row, RowTable, WriteOptions,
    build_with_rows,
};

fn distances(base: &Matrix, query: &[u8]) -> Vec<f32> {
    let rows = base.bytes().chunks(base.dim());
    let distance = |row: &[u8]| {
        let each = row.iter().zip(query);
        each.map(|(&a, &b)| f32::from(a.abs_diff(b)).powi(2)).sum()
    };
    rows.map(distance).collect()
}

fn one(queries: &Matrix, at: usize) -> Matrix {
    let bytes = queries.bytes()[at * queries.dim()..][..queries.dim()].to_vec();
    Matrix::new(bytes, 1, queries.dim(), queries.element()).unwrap()
}

/// Returns all pages of a range. Checks that distances are exact and ascend, and that ids are
/// distinct.
fn all_pages(
    search: &dyn Fn(&Range) -> Result<RangeResults, Error>,
    range: Range,
    truth: &[f32],
) -> (Vec<u64>, usize, bool) {
    let (mut range, mut ids, mut pages, mut complete) = (range, Vec::new(), 0, true);
    let mut last = (f32::NEG_INFINITY, 0);
    loop {
        let page = search(&range).unwrap();
        assert!(page.ids.len() <= range.most);
        assert_eq!(page.ids.len(), page.distances.len());
        for (&id, &distance) in page.ids.iter().zip(&page.distances) {
            assert_eq!(distance, truth[id as usize]);
            assert!(distance <= range.distance);
            assert!(last.0 < distance || (last.0 == distance && last.1 < id) || ids.is_empty());
            last = (distance, id);
            ids.push(id);
        }
        pages += 1;
        complete &= page.complete;
        match page.next {
            Some(next) => {
                assert_eq!(page.ids.len(), range.most);
                range.after = Some(next);
            }
            None => return (ids, pages, complete),
        }
    }
}

#[test]
fn all_within_a_distance_come_page_by_page() {
    let (base, queries) = photos();
    for stored in [COUPLED, BEST, INLINE, LAYERED] {
        let index = Index::open(path(stored), &OpenOptions::default()).unwrap();
        let options = options(Preset::STRATANN);
        let (mut found, mut wanted) = (0, 0);
        for at in 0..8 {
            let query = one(&queries, at);
            let truth = distances(&base, query.bytes());
            let mut sorted = truth.clone();
            sorted.sort_by(f32::total_cmp);
            for rank in [0, 5, 70, 400] {
                let range = Range {
                    most: 50,
                    ..Range::of(sorted[rank])
                };
                let search =
                    |range: &Range| index.search_range(&query, range, &options, None, &Silent);
                let (ids, pages, _) = all_pages(&search, range, &truth);
                let within = truth.iter().filter(|&&there| there <= range.distance);
                let within = within.count();
                assert!(pages >= ids.len().div_ceil(50).max(1), "{stored:?} {rank}");
                found += ids.len();
                wanted += within;
            }
            let range = Range::of(sorted[0] - 1.0);
            let nothing = index
                .search_range(&query, &range, &options, None, &Silent)
                .unwrap();
            assert!(nothing.ids.is_empty() && nothing.next.is_none());
            assert!(!nothing.complete, "a walk claims to be complete");
        }
        let recall = found as f64 / wanted as f64;
        println!("{stored:?}: {found} of {wanted}");
        assert!(recall >= 0.98, "{stored:?}: {recall}");
        let query = one(&queries, 0);
        let truth = distances(&base, query.bytes());
        let range = Range {
            most: 1_700,
            ..Range::of(f32::INFINITY)
        };
        let search = |range: &Range| index.search_range(&query, range, &options, None, &Silent);
        let (mut ids, pages, _) = all_pages(&search, range, &truth);
        ids.sort_unstable();
        assert!(
            ids.iter().copied().eq(0..base.rows() as u64),
            "{stored:?}: {} of {}",
            ids.len(),
            base.rows()
        );
        assert_eq!(pages, 2);
        let second = Range {
            most: DESCRIPTORS,
            ..range
        };
        assert!(search(&second).unwrap().complete);
    }
}

#[test]
fn a_range_is_complete_only_where_all_was_met() {
    // Many vectors are equal, and a walk does not reach some of them.
    let folder = tempfile::tempdir().unwrap();
    let rows = |count: usize| -> Vec<u8> {
        (0..count)
            .flat_map(|row| [(row % 5 * 40) as u8; 16])
            .collect()
    };
    let (built, all) = (300, 1_500);
    for preset in [Preset::DECOUPLEVS, "spann".parse::<Preset>().unwrap()] {
        let place = folder.path().join(preset.to_string());
        let base = Matrix::new(rows(built), built, 16, Element::U8).unwrap();
        let build_options = BuildOptions {
            preset,
            threads: 1,
            ..BuildOptions::default()
        };
        build(&base, &place, &build_options, &Silent).unwrap();
        let live = LiveIndex::open(&place, &OpenOptions::default(), &WriteOptions::default());
        let live = live.unwrap();
        let others = Matrix::new(rows(all - built), all - built, 16, Element::U8).unwrap();
        live.insert(&others, None, &Silent).unwrap();
        let query = Matrix::new(vec![0; 16], 1, 16, Element::U8).unwrap();
        // A search of many small pages takes long, so fewer sizes run by default.
        let sizes = match crate::slow::slow() {
            true => &[7, 100, all][..],
            false => &[70, all],
        };
        for &most in sizes {
            for (list, probes) in [(100, Some(1)), (2 * all, Some(1)), (2 * all, None)] {
                let options = SearchOptions {
                    list,
                    probes: probes.filter(|_| live.index().has_clusters()),
                    ..SearchOptions::default()
                };
                let mut range = Range {
                    most,
                    ..Range::of(1e9)
                };
                let (mut found, mut last) = (0, false);
                while !last {
                    let page = live
                        .search_range(&query, &range, &options, None, &Silent)
                        .unwrap();
                    found += page.ids.len();
                    last = page.next.is_none();
                    range.after = page.next;
                    let missed = last && found < all;
                    assert!(
                        !(missed && page.complete),
                        "{preset} {most} {list} {probes:?}: `complete` is true for {found} of {all} vectors"
                    );
                }
            }
        }
    }
}

#[test]
fn ranges_and_ids_go_by_filters_and_by_what_is_in_memory() {
    let (base, queries) = photos();
    let (built, all) = (2_400, base.rows());
    let part = |rows: std::ops::Range<usize>| {
        let bytes = base.bytes()[rows.start * base.dim()..rows.end * base.dim()].to_vec();
        Matrix::new(bytes, rows.len(), base.dim(), base.element()).unwrap()
    };
    let rows = |ids: std::ops::Range<u64>| {
        let row = |id: u64| {
            let mut row = Row::default();
            row.attributes
                .insert("third".into(), ((id % 3) as i64).into());
            row.attributes
                .insert("few".into(), ((id % 200) as i64).into());
            row
        };
        RowTable::new(ids.map(row).collect())
    };
    let folder = tempfile::tempdir().unwrap();
    for layout in [Layout::Coupled, Layout::Grouped] {
        let path = folder.path().join(layout.name());
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
        let live =
            LiveIndex::open(&path, &OpenOptions::default(), &WriteOptions::default()).unwrap();
        let ids: Vec<u64> = (built as u64..all as u64).collect();
        live.insert_rows(
            &part(built..all),
            &rows(built as u64..all as u64),
            Some(&ids),
            &Silent,
        )
        .unwrap();
        live.delete(&[0, 3, 2_999]).unwrap();
        let is_there = |id: u64| ![0, 3, 2_999].contains(&id);
        let options = SearchOptions {
            list: 60,
            ..SearchOptions::default()
        };
        for (text, matches) in [
            (
                "third == 1",
                Box::new(|id: u64| id % 3 == 1) as Box<dyn Fn(u64) -> bool>,
            ),
            ("few == 7", Box::new(|id: u64| id % 200 == 7)),
        ] {
            let filter = Filter::parse(text).unwrap();
            let (mut found, mut wanted) = (0, 0);
            for at in 0..6 {
                let query = one(&queries, at);
                let truth = distances(&base, query.bytes());
                let mut sorted = truth.clone();
                sorted.sort_by(f32::total_cmp);
                let range = Range {
                    most: 20,
                    ..Range::of(sorted[150])
                };
                let search = |range: &Range| {
                    live.search_range(&query, range, &options, Some(&filter), &Silent)
                };
                let (ids, ..) = all_pages(&search, range, &truth);
                assert!(ids.iter().all(|&id| matches(id) && is_there(id)), "{ids:?}");
                let within = |id: &u64| {
                    matches(*id) && is_there(*id) && truth[*id as usize] <= range.distance
                };
                found += ids.len();
                wanted += (0..all as u64).filter(within).count();
                let range = Range::of(f32::INFINITY);
                let everything = search(&range).unwrap();
                let count = (0..all as u64)
                    .filter(|&id| matches(id) && is_there(id))
                    .count();
                assert_eq!(everything.ids.len(), count, "{layout}, {text}");
            }
            println!("{layout}, {text}: {found} of {wanted}");
            assert!(
                found * 100 >= wanted * 95,
                "{layout}, {text}: {found} of {wanted}"
            );

            let like = [7, 2_500, 2_607];
            let found = live
                .search_like(&like, &options, Some(&filter), &Silent)
                .unwrap();
            assert_eq!(found.k, 10);
            let (mut right, mut asked) = (0, 0);
            for (id, ids) in like.iter().zip(found.ids.chunks(10)) {
                let query = &base.bytes()[*id as usize * base.dim()..][..base.dim()];
                let truth = distances(&base, query);
                let mut nearest: Vec<u64> = (0..all as u64)
                    .filter(|&other| other != *id && matches(other) && is_there(other))
                    .collect();
                nearest.sort_by(|&a, &b| {
                    truth[a as usize]
                        .total_cmp(&truth[b as usize])
                        .then(a.cmp(&b))
                });
                nearest.truncate(10);
                let there: Vec<u64> = ids.iter().copied().filter(|&id| id < u64::MAX).collect();
                assert_eq!(there.len(), nearest.len(), "{layout}, {text}, {id}");
                assert!(!there.contains(id), "{layout}, {text}, {id}: {there:?}");
                let farthest = truth[*nearest.last().unwrap() as usize];
                right += there
                    .iter()
                    .filter(|&&id| truth[id as usize] <= farthest)
                    .count();
                asked += nearest.len();
            }
            assert!(
                right * 100 >= asked * 90,
                "{layout}, {text}: {right} of {asked}"
            );
        }
        let missing = live
            .search_like(&[1, 3], &options, None, &Silent)
            .unwrap_err();
        assert!(
            missing.is_call_wrong() && missing.to_string().contains('3'),
            "{missing}"
        );
        let none = live.search_like(&[], &options, None, &Silent).unwrap_err();
        assert!(none.is_call_wrong(), "{none}");
        let own = Range {
            without: Some(7),
            ..Range::of(0.0)
        };
        let query = part(7..8);
        let found = live
            .search_range(&query, &own, &options, None, &Silent)
            .unwrap();
        assert!(!found.ids.contains(&7));
    }
}

#[test]
fn ranges_that_cannot_be_are_refused() {
    let index = Index::open(path(COUPLED), &OpenOptions::default()).unwrap();
    let queries = &small().queries;
    let options = SearchOptions::default();
    let search = |query: &Matrix, range: &Range, options: &SearchOptions| {
        let found = index.search_range(query, range, options, None, &Silent);
        let error = found.unwrap_err();
        assert!(error.is_call_wrong(), "{error}");
        error.to_string()
    };
    let query = one(queries, 0);
    assert!(search(queries, &Range::of(1.0), &options).contains("one vector"));
    assert!(search(&query, &Range::of(f32::NAN), &options).contains("distance"));
    let empty = Range {
        most: 0,
        ..Range::of(1.0)
    };
    assert!(search(&query, &empty, &options).contains("at least 1"));
    let recall = SearchOptions {
        recall: Some(0.9),
        ..options
    };
    assert!(search(&query, &Range::of(1.0), &recall).contains("list size"));
    for k in [0, usize::MAX] {
        let options = SearchOptions { k, ..options };
        let error = index.search_like(&[3], &options, None, &Silent);
        let error = error.unwrap_err();
        assert!(error.is_call_wrong(), "k {k}: {error}");
    }
}
