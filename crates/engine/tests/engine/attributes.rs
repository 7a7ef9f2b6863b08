//! Changes of attributes, and deletions by filter, that are interrupted or fail.

use std::sync::atomic::{AtomicUsize, Ordering};

use stratann::{
    BuildOptions, Error, Filter, LiveIndex, OpenOptions, Preset, Progress, Row, RowTable, Silent,
    Value, WriteOptions, build,
};

use super::fixtures::{SIFT_BASE, head, rows};

const ROWS: usize = 3_000;

/// Interrupts the work after this many calls to `advance`.
struct EndsAfter(AtomicUsize);

impl EndsAfter {
    fn new(advances: usize) -> Self {
        Self(AtomicUsize::new(advances))
    }
}

impl Progress for EndsAfter {
    fn begin(&self, _: &str, _: u64) {}
    fn advance(&self, _: u64) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
    fn end(&self) {}
    fn warn(&self, _: &str) {}
    fn interrupted(&self) -> bool {
        self.0.load(Ordering::Relaxed) == 0
    }
}

fn live(folder: &std::path::Path) -> LiveIndex {
    live_of(Preset::STRATANN, ROWS, folder)
}

fn live_of(preset: Preset, rows: usize, folder: &std::path::Path) -> LiveIndex {
    let path = folder.join("index");
    let graph = preset.name != Preset::SPANN.name;
    let usual = BuildOptions::default();
    let options = BuildOptions {
        preset,
        degree: graph.then_some(8),
        build_list: if graph { 16 } else { usual.build_list },
        threads: 2,
        ..usual
    };
    build(&head(SIFT_BASE, rows), &path, &options, &Silent).unwrap();
    opened(folder)
}

fn opened(folder: &std::path::Path) -> LiveIndex {
    let path = folder.join("index");
    LiveIndex::open(&path, &OpenOptions::default(), &WriteOptions::default()).unwrap()
}

fn row(numbers: &[(&str, i64)], payload: Option<&str>) -> Row {
    let numbers = numbers.iter().copied();
    let attributes = numbers.map(|(name, number)| (name.to_owned(), Value::Integer(number)));
    Row {
        attributes: attributes.collect(),
        payload: payload.map(str::to_owned),
    }
}

/// Vectors are on storage or in memory, with or without attributes and a merge.
#[test]
fn an_update_keeps_what_it_is_not_given() {
    for preset in [Preset::STRATANN, Preset::DISKANN, Preset::SPANN] {
        let folder = tempfile::tempdir().unwrap();
        let index = live_of(preset, 300, folder.path());
        let update = |index: &LiveIndex, id, row| {
            let rows = RowTable::new(vec![row]);
            index.update_attributes(&[id], &rows, &Silent)
        };
        let new = RowTable::new(vec![row(&[("a", 1), ("b", 2)], Some("1"))]);
        let more = rows(SIFT_BASE, 300, 1);
        index
            .insert_rows(&more, &new, Some(&[900]), &Silent)
            .unwrap();
        update(&index, 5, row(&[("a", 5)], None)).unwrap();
        update(&index, 900, row(&[("b", 3), ("c", 4)], None)).unwrap();
        update(&index, 5, row(&[("b", 6)], Some("2"))).unwrap();
        let expected = [
            Some(row(&[("a", 5), ("b", 6)], Some("2"))),
            Some(row(&[("a", 1), ("b", 3), ("c", 4)], Some("1"))),
        ];
        assert_eq!(
            index.attributes(&[5, 900]).unwrap(),
            expected,
            "{}",
            preset.name
        );
        index.compact(&Silent).unwrap();
        assert_eq!(
            index.attributes(&[5, 900]).unwrap(),
            expected,
            "{}",
            preset.name
        );
        update(&index, 900, row(&[("a", 9)], None)).unwrap();
        let both = RowTable::new(vec![row(&[("a", 0)], None); 2]);
        index
            .update_attributes(&[5, 901], &both, &Silent)
            .unwrap_err();
        drop(index);
        let index = opened(folder.path());
        let expected = [
            expected[0].clone(),
            Some(row(&[("a", 9), ("b", 3), ("c", 4)], Some("1"))),
        ];
        assert_eq!(
            index.attributes(&[5, 900]).unwrap(),
            expected,
            "{}",
            preset.name
        );
        let filter = Filter::parse("a == 9 and b == 3").unwrap();
        assert_eq!(
            index.ids_matching(&filter, None, 9).unwrap(),
            [900],
            "{}",
            preset.name
        );
    }
}

#[test]
fn updates_of_one_vector_by_several_threads_lose_nothing_of_each_other() {
    let folder = tempfile::tempdir().unwrap();
    let index = live_of(Preset::STRATANN, 300, folder.path());
    let names = ["a", "b", "c", "d"];
    std::thread::scope(|scope| {
        for name in names {
            let index = &index;
            scope.spawn(move || {
                for number in 0..20 {
                    let rows = RowTable::new(vec![row(&[(name, number)], None); 2]);
                    index.update_attributes(&[7, 8], &rows, &Silent).unwrap();
                }
            });
        }
    });
    let last = Some(row(&names.map(|name| (name, 19)), None));
    assert_eq!(index.attributes(&[7, 8]).unwrap(), [last.clone(), last]);
}

fn old() -> Row {
    Row {
        attributes: [("old".to_owned(), Value::Boolean(true))].into(),
        payload: None,
    }
}

#[test]
fn what_is_done_of_a_change_that_ends_in_the_middle_is_said_and_stays() {
    let folder = tempfile::tempdir().unwrap();
    let live = live(folder.path());
    let ids: Vec<u64> = (0..ROWS as u64).collect();
    let rows = RowTable::new(vec![old(); ROWS]);
    let error = live
        .set_attributes(&ids, &rows, &EndsAfter::new(0))
        .unwrap_err();
    assert!(matches!(error, Error::Interrupted), "{error}");
    let error = live
        .set_attributes(&ids, &rows, &EndsAfter::new(2))
        .unwrap_err();
    let Error::PartlySet {
        done,
        total,
        source,
    } = error
    else {
        panic!("{error}");
    };
    assert!(matches!(*source, Error::Stopped), "{source}");
    assert!(
        done > 0 && done < ROWS && total == ROWS,
        "{done} of {total} rows are set"
    );
    let filter = Filter::parse("old == true").unwrap();
    assert_eq!(live.count(&filter).unwrap(), done as u64);
    assert_eq!(live.attributes(&[done as u64 - 1]).unwrap(), [Some(old())]);

    live.set_attributes(&ids, &rows, &Silent).unwrap();
    let error = live
        .delete_matching_observed(&filter, &EndsAfter::new(0))
        .unwrap_err();
    assert!(matches!(error, Error::Interrupted), "{error}");
    assert_eq!(live.len(), ROWS);
    let error = live
        .delete_matching_observed(&filter, &EndsAfter::new(2))
        .unwrap_err();
    let Error::PartlyDeleted {
        deleted,
        matched,
        source,
    } = error
    else {
        panic!("{error}");
    };
    assert!(matches!(*source, Error::Stopped), "{source}");
    assert_eq!(matched, ROWS as u64);
    assert!(
        deleted > 0 && deleted < matched,
        "{deleted} of {matched} matching rows are deleted"
    );
    assert_eq!(live.len() as u64, matched - deleted);
    // Deleting ids is one change, which an interruption prevents until it begins.
    let left = live.ids(None, ROWS).unwrap();
    let error = live.delete_observed(&left, &EndsAfter::new(0)).unwrap_err();
    assert!(matches!(error, Error::Interrupted), "{error}");
    assert_eq!(live.len() as u64, matched - deleted);
    // A second call deletes the remaining vectors.
    assert_eq!(live.delete_matching(&filter).unwrap(), matched - deleted);
    assert_eq!(live.len(), 0);
}

/// An update that keeps large attributes takes no more memory than a call that sets whole rows.
#[test]
fn an_update_of_large_rows_goes_piece_by_piece() {
    const MOST: usize = 60_000;
    let folder = tempfile::tempdir().unwrap();
    let index = live_of(Preset::STRATANN, 300, folder.path());
    let ids: Vec<u64> = (0..300).collect();
    let large = row(&[("a", 1)], Some(&format!("\"{}\"", "x".repeat(MOST))));
    index
        .set_attributes(&ids, &RowTable::new(vec![large; 300]), &Silent)
        .unwrap();
    drop(index);
    let path = folder.path().join("index");
    let open = OpenOptions {
        memory: Some(24_000_000),
        ..OpenOptions::default()
    };
    let index = LiveIndex::open(&path, &open, &WriteOptions::default()).unwrap();
    let update = RowTable::new(vec![row(&[("b", 2)], None); 300]);
    index.update_attributes(&ids, &update, &Silent).unwrap();
    let [Some(last)] = &index.attributes(&[299]).unwrap()[..] else {
        panic!("no row");
    };
    assert_eq!(last.attributes.len(), 2);
    assert_eq!(last.payload.as_ref().map(String::len), Some(MOST + 2));

    // Together, these texts are too long for a row. The third of four rows fails.
    let text = |length: usize| Value::String("y".repeat(length));
    let long = |name: &str, length| Row {
        attributes: [(name.to_owned(), text(length))].into(),
        payload: None,
    };
    let lists = |name: &str| Row {
        attributes: (0..5)
            .map(|part| (format!("{name}{part}"), text(30_000)))
            .collect(),
        payload: None,
    };
    index
        .set_attributes(&[7], &RowTable::new(vec![lists("c")]), &Silent)
        .unwrap();
    let rows = vec![long("d", 10), long("d", 10), lists("e"), long("d", 10)];
    let error = index
        .update_attributes(&[5, 6, 7, 8], &RowTable::new(rows), &Silent)
        .unwrap_err();
    assert!(error.to_string().contains("id 7"), "{error}");
    assert!(matches!(error, Error::PartlySet { done: 2, .. }), "{error}");
    let filter = Filter::parse("exists d").unwrap();
    assert_eq!(index.ids_matching(&filter, None, 9).unwrap(), [5, 6]);
}
