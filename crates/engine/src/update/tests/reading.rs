//! Reads by id and by filter, and deletes by filter, while other threads change the index.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use stratann_layout::attributes::Value;

use super::*;
use crate::data::DataError;
use crate::data::RowSource;
use crate::progress::Progress;

fn aged(old: bool) -> Row {
    let mut row = Row::default();
    row.attributes.insert("old".into(), Value::Boolean(old));
    row
}

fn all_old(case: Case, vectors: u64, folder: &Path) -> Arc<LiveIndex> {
    let volume = base_of(case, vectors, folder);
    let live = open(case, &volume, folder, Durability::OnFlush).unwrap();
    let ids: Vec<u64> = (0..vectors).collect();
    let rows = RowTable::new(ids.iter().map(|_| aged(true)).collect());
    live.set_attributes(&ids, &rows, &Silent).unwrap();
    Arc::new(live)
}

fn filter(text: &str) -> Filter {
    Filter::parse(text).unwrap()
}

fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < Duration::from_secs(60), "never: {what}");
        thread::yield_now();
    }
}

/// A drop calls the function, even after a panic, so that waiting threads end.
struct Finally<F: FnMut()>(F);

impl<F: FnMut()> Drop for Finally<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}

/// The function runs when the row is read for the log, while the id of the row is reserved.
struct Meanwhile<F>(AtomicUsize, F);

impl<F: Fn() + Send + Sync> RowSource for Meanwhile<F> {
    fn name(&self) -> &str {
        "row"
    }
    fn rows(&self) -> usize {
        1
    }
    fn row(&self, _: usize) -> Result<Row, DataError> {
        // The first read is the check of the row.
        if self.0.fetch_add(1, Ordering::Relaxed) == 1 {
            (self.1)();
        }
        Ok(aged(false))
    }
}

#[test]
fn a_deletion_by_filter_waits_for_who_changes_an_id_and_spares_what_does_not_match_any_more() {
    for case in [PACKED, Case(Layout::Packed, Update::Merge)] {
        let folder = tempfile::tempdir().unwrap();
        let live = all_old(case, 40, folder.path());
        let deletes: Mutex<Option<thread::JoinHandle<Result<u64, Error>>>> = Mutex::default();
        let begin = || {
            let deleting = live.clone();
            *deletes.lock() = Some(thread::spawn(move || {
                deleting.delete_matching(&filter("old == true"))
            }));
            wait_until("all others are deleted", || {
                live.len() == 1 || deletes.lock().as_ref().unwrap().is_finished()
            });
        };
        let row = Meanwhile(AtomicUsize::new(0), begin);
        live.set_attributes(&[7], &row, &Silent).unwrap();
        let deleted = deletes.lock().take().unwrap().join().unwrap();
        assert_eq!(deleted.unwrap(), 39, "{case:?}");
        assert_eq!(live.attributes(&[7, 8]).unwrap(), [Some(aged(false)), None]);
        assert_eq!(live.delete_matching(&filter("old == true")).unwrap(), 0);
        assert_eq!(live.ids(None, 9).unwrap(), [7]);
    }
}

#[test]
fn a_deletion_by_filter_that_ends_in_the_middle_says_how_many_are_gone() {
    let error = Error::PartlyDeleted {
        deleted: 3,
        matched: 9,
        source: Box::new(Error::Stopped),
    };
    let said = "interrupted; 3 of the 9 vectors that matched are deleted, and stay so. Delete by the filter again for the others";
    assert_eq!(error.to_string(), said);
}

#[test]
fn many_delete_by_filter_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let live = all_old(PACKED, 1_500, folder.path());
    let deleted = thread::scope(|scope| {
        let deleting = || live.delete_matching(&filter("old == true")).unwrap();
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(deleting)).collect();
        let one_by_one = (0..1_500).filter(|&id| live.delete(&[id]).is_ok()).count();
        let by_filter = threads.into_iter().map(|thread| thread.join().unwrap());
        one_by_one as u64 + by_filter.sum::<u64>()
    });
    assert_eq!((deleted, live.len()), (1_500, 0));
}

struct Midway<F>(AtomicBool, F);

impl<F: Fn() + Sync> Progress for Midway<F> {
    fn begin(&self, _: &str, _: u64) {
        if !self.0.swap(true, Ordering::Relaxed) {
            (self.1)();
        }
    }
    fn advance(&self, _: u64) {}
    fn end(&self) {}
    fn warn(&self, _: &str) {}
    fn interrupted(&self) -> bool {
        false
    }
}

/// A reader that is created during a merge must see the contents of that time. Before `check` runs,
/// the vectors 100 to 109 have moved.
fn read_across_a_merge(case: Case, check: fn(&crate::update::reading::Reading<'_>)) {
    let folder = tempfile::tempdir().unwrap();
    let live = all_old(case, 40, folder.path());
    live.delete(&[3]).unwrap();
    let (over, wait) = mpsc::channel::<()>();
    let (begun, has_begun) = mpsc::channel::<()>();
    let (wait, begun, has_begun) = (Mutex::new(wait), Mutex::new(begun), Mutex::new(has_begun));
    thread::scope(|scope| {
        let reader = &*live;
        let (begun, wait) = (&begun, &wait);
        let midway = Midway(AtomicBool::new(false), move || {
            let ids: Vec<u64> = (100..110).collect();
            let rows = RowTable::new(ids.iter().map(|_| aged(true)).collect());
            let vectors = wide_rows(reader.index().dim(), &ids, 1);
            reader
                .insert_rows(&vectors, &rows, Some(&ids), &Silent)
                .unwrap();
            scope.spawn(move || {
                let read = reader.reading(|reading| {
                    begun.lock().send(()).unwrap();
                    wait.lock().recv().unwrap();
                    check(reading);
                    Ok(())
                });
                read.unwrap();
            });
            has_begun.lock().recv().unwrap();
        });
        live.compact(&midway).unwrap();
        live.delete(&[5, 101]).unwrap();
        over.send(()).unwrap();
    });
    assert_eq!(live.count(&filter("old == true")).unwrap(), 47, "{case:?}");
}

fn expected() -> Vec<u64> {
    let built = (0..40).filter(|&id| id != 3);
    built.chain(100..110).collect()
}

#[test]
fn what_is_read_is_of_one_moment_whatever_a_merge_does() {
    for case in lookups::cases() {
        read_across_a_merge(case, |reading| {
            let rows = reading.attributes(&expected()).unwrap();
            assert_eq!(rows, vec![Some(aged(true)); 49]);
            assert_eq!(reading.attributes(&[3]).unwrap(), [None]);
            assert_eq!(reading.count(&filter("old == true")).unwrap(), 49);
            assert_eq!(reading.count(&filter("old != false")).unwrap(), 49);
            for text in ["old == true", "old != false"] {
                let matched = reading.matched(&filter(text)).unwrap();
                for limit in [usize::MAX, 100, 49, 7] {
                    let ids = reading.ids(&matched, Some(1), limit).unwrap();
                    let all = expected().into_iter().skip(2).take(limit);
                    assert_eq!(ids, all.collect::<Vec<_>>(), "{text}, {limit}");
                }
                let rows = reading.scroll(&filter(text), Some(38), 3).unwrap();
                let row = |id| (id, aged(true));
                assert_eq!(rows, [row(39), row(100), row(101)]);
            }
        });
    }
}

#[test]
fn what_was_acknowledged_is_read_while_merges_go_on() {
    for case in [
        PACKED,
        DECOUPLED,
        Case(Layout::Packed, Update::Merge),
        Case(Layout::Addressed, Update::Rebalance),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let live = all_old(case, 60, folder.path());
        let (there, coming, over) = (
            AtomicU64::new(60),
            AtomicU64::new(60),
            AtomicBool::new(false),
        );
        thread::scope(|scope| {
            scope.spawn(|| {
                let _over = Finally(|| over.store(true, Ordering::SeqCst));
                for first in (60..600).step_by(9) {
                    let ids: Vec<u64> = (first..first + 9).collect();
                    let rows = RowTable::new(ids.iter().map(|_| aged(true)).collect());
                    let vectors = wide_rows(live.index().dim(), &ids, 1);
                    coming.store(first + 9, Ordering::SeqCst);
                    live.insert_rows(&vectors, &rows, Some(&ids), &Silent)
                        .unwrap();
                    there.store(first + 9, Ordering::SeqCst);
                    live.upsert_rows(
                        &wide_rows(live.index().dim(), &[7], 3),
                        &RowTable::new(vec![aged(true)]),
                        &[7],
                        &Silent,
                    )
                    .unwrap();
                }
            });
            scope.spawn(|| {
                while !over.load(Ordering::SeqCst) {
                    live.compact(&Silent).unwrap();
                }
            });
            scope.spawn(|| {
                while !over.load(Ordering::SeqCst) {
                    let ids: Vec<u64> = (0..there.load(Ordering::SeqCst)).collect();
                    let rows = live.attributes(&ids).unwrap();
                    let wrong = rows.iter().position(|row| *row != Some(aged(true)));
                    assert_eq!(wrong, None, "{case:?}, of {}", ids.len());
                    assert!(live.contains(7).unwrap());
                }
            });
            scope.spawn(|| {
                while !over.load(Ordering::SeqCst) {
                    let least = there.load(Ordering::SeqCst);
                    let count = live.count(&filter("old == true")).unwrap();
                    let most = coming.load(Ordering::SeqCst);
                    assert!((least..=most).contains(&count), "{count}, {least}, {most}");
                    let ids = live.scroll(&filter("old == true"), None, 1_000).unwrap();
                    let ids = ids.iter().take(least as usize).map(|row| row.0);
                    assert!(ids.eq(0..least), "{case:?}, of {least}");
                }
            });
        });
    }
}

#[test]
fn a_page_is_empty_only_behind_the_last() {
    let folder = tempfile::tempdir().unwrap();
    let live = all_old(PACKED, 400, folder.path());
    let at = AtomicU64::new(0);
    thread::scope(|scope| {
        scope.spawn(|| {
            let _over = Finally(|| at.store(390, Ordering::SeqCst));
            for id in 0..390 {
                live.delete(&[id]).unwrap();
                at.store(id + 1, Ordering::SeqCst);
            }
        });
        while at.load(Ordering::SeqCst) < 390 {
            let after = at.load(Ordering::SeqCst).checked_sub(1);
            let rows = live.scroll(&filter("old == true"), after, 1).unwrap();
            assert_eq!(rows.len(), 1, "behind {after:?}");
        }
    });
}

#[test]
fn rows_are_set_in_an_index_that_was_built_without_while_merges_move_its_vectors() {
    for case in lookups::cases() {
        let folder = tempfile::tempdir().unwrap();
        let volume = base_of(case, 600, folder.path());
        let live = open(case, &volume, folder.path(), Durability::OnFlush).unwrap();
        live.delete(&[1]).unwrap();
        let ids: Vec<u64> = (2..600).chain([0]).collect();
        let rows = RowTable::new(ids.iter().map(|&id| aged(id % 3 == 0)).collect());
        thread::scope(|scope| {
            scope.spawn(|| live.set_attributes(&ids, &rows, &Silent).unwrap());
            live.compact(&Silent).unwrap();
        });
        let expected = ids.iter().map(|&id| Some(aged(id % 3 == 0)));
        assert_eq!(live.attributes(&ids).unwrap(), expected.collect::<Vec<_>>());
        assert_eq!(live.count(&filter("old == true")).unwrap(), 200, "{case:?}");
        assert_eq!(live.attributes(&[1]).unwrap(), [None]);
    }
}

#[test]
fn counts_are_right_however_deletions_are_met() {
    for case in lookups::cases() {
        let folder = tempfile::tempdir().unwrap();
        let live = all_old(case, 60, folder.path());
        let mut left = 60;
        for round in 0..6 {
            live.upsert(
                &wide_rows(live.index().dim(), &[50 + round], 1),
                &[50 + round],
                &Silent,
            )
            .unwrap();
            live.delete(&[round, 10 + round]).unwrap();
            left -= 3;
            let without = round + 1;
            for _ in 0..2 {
                let count = |text| live.count(&filter(text)).unwrap();
                let what = format!("{case:?}, round {round}");
                assert_eq!(count("old == true"), left, "{what}");
                assert_eq!(count("old == false"), 0, "{what}");
                assert_eq!(count("old != true"), without, "{what}");
                assert_eq!(count("old != false"), left + without, "{what}");
            }
            let ids = live
                .ids_matching(&filter("old == true"), None, 1_000)
                .unwrap();
            assert_eq!(ids.len() as u64, left, "{case:?}");
            let ids = live
                .ids_matching(&filter("not exists old"), None, 1_000)
                .unwrap();
            assert!(ids.into_iter().eq(50..=50 + round), "{case:?}");
        }
    }
}

#[test]
fn rows_that_are_set_alone_are_a_reason_to_merge_where_vectors_wait() {
    for case in lookups::cases() {
        if !matches!(case.1, Update::Merge | Update::Rebalance) {
            continue;
        }
        let folder = tempfile::tempdir().unwrap();
        let live = all_old(case, 60, folder.path());
        let when = crate::MergeWhen {
            least: 10,
            ..crate::MergeWhen::default()
        };
        if case.1 == Update::Rebalance {
            assert!(live.extents().logged < 60, "{case:?}: {:?}", live.extents());
            assert!(!live.index().columns().has_new());
            assert_eq!(live.due(&when), None);
        } else {
            live.compact(&Silent).unwrap();
            assert_eq!(live.due(&when), None, "{case:?}");
            // In the log, repeats of one row take as much space as different rows.
            for _ in 0..200 {
                let row = RowTable::new(vec![aged(false)]);
                live.set_attributes(&[7], &row, &Silent).unwrap();
            }
            let due = live.due(&when);
            assert!(matches!(due, Some(crate::Due::Logged(_))), "{due:?}");
            live.compact(&Silent).unwrap();
            assert_eq!(live.due(&when), None, "{case:?}");
        }
        assert_eq!(live.count(&filter("exists old")).unwrap(), 60);
    }
}

/// The vectors are read after the rows. In between, all ids are replaced, also so often that the
/// vectors of the first timestamp are forgotten.
#[test]
fn vectors_and_their_rows_are_of_one_state() {
    let ids: Vec<u64> = (0..12).collect();
    for case in lookups::cases() {
        let folder = tempfile::tempdir().unwrap();
        let live = all_old(case, BASE, folder.path());
        let dim = live.index().dim();
        let upsert = |version: u64| {
            let mut row = Row::default();
            let value = Value::Integer(version as i64);
            row.attributes.insert("version".into(), value);
            let rows = RowTable::new(vec![row; ids.len()]);
            live.upsert_rows(&wide_rows(dim, &ids, version), &rows, &ids, &Silent)
                .unwrap();
        };
        for times in [1, 40] {
            upsert(2);
            let done = AtomicUsize::new(0);
            let between = || {
                if done.fetch_add(1, Ordering::Relaxed) == 0 {
                    (3..3 + times).for_each(upsert);
                }
            };
            let unchanged = BASE - 1;
            let asked = ids.iter().copied().chain([7, 1 << 40, unchanged]);
            let asked: Vec<u64> = asked.collect();
            let (found, rows) = live.vectors_after_rows(&asked, &Silent, between).unwrap();
            assert!(done.into_inner() >= 1, "{case:?}");
            assert_eq!((&found.missing[..], &rows[13]), (&[1 << 40][..], &None));
            assert_eq!(found.ids[..13], asked[..13], "{case:?}");
            assert_eq!(found.ids[13..], [unchanged], "{case:?}");
            for ((id, vector), row) in found.iter().zip(rows.into_iter().flatten()).take(13) {
                let Some(Value::Integer(version)) = row.attributes.get("version") else {
                    panic!("{case:?}, {id}: {row:?}");
                };
                let expected = wide_rows(dim, &[id], *version as u64);
                assert_eq!(vector, expected.row(0), "{case:?}, {id}, {version}");
            }
        }
    }
}
