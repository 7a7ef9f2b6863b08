//! Changes of attributes and deletions by filter that end in the middle.

use std::sync::atomic::{AtomicUsize, Ordering};

use stratann::{
    BuildOptions, Error, Filter, LiveIndex, OpenOptions, Preset, Progress, Row, RowTable, Silent,
    Value, WriteOptions, build,
};

use super::fixtures::{SIFT_BASE, head};

const ROWS: usize = 3_000;

/// Ends the work when it has come so far so many times.
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
    let path = folder.join("index");
    let options = BuildOptions {
        preset: Preset::STRATANN,
        degree: Some(8),
        build_list: 16,
        threads: 2,
        ..BuildOptions::default()
    };
    build(&head(SIFT_BASE, ROWS), &path, &options, &Silent).unwrap();
    LiveIndex::open(&path, &OpenOptions::default(), &WriteOptions::default()).unwrap()
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
        "{done} of {total}"
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
    assert!(deleted > 0 && deleted < matched, "{deleted} of {matched}");
    assert_eq!(live.len() as u64, matched - deleted);
    // Again for the others.
    assert_eq!(live.delete_matching(&filter).unwrap(), matched - deleted);
    assert_eq!(live.len(), 0);
}
