//! Inserts that are interrupted at any operation, and resumed. Each row must be inserted exactly
//! once, under its id.

use stratann_layout::inserts::FILE_NAME as INSERTS;
use stratann_tier::TierError;

use std::sync::atomic::{AtomicBool, Ordering};

use super::*;
use crate::data::RowSource;
use crate::progress::Progress;

fn rows_of(case: Case) -> u64 {
    match case.1 {
        Update::Merge | Update::Rebalance => 600,
        Update::InPlace => 18,
        _ => 150,
    }
}

fn insert(case: Case, live: &LiveIndex, given: bool, cut_off: CutOff) -> Result<Resumed, Error> {
    let ids: Vec<u64> = (BASE..BASE + rows_of(case)).collect();
    let beside = RowTable::new(ids.iter().map(|&id| row(id, 1)).collect());
    let rows = wide_rows(live.index().dim(), &ids, 1);
    let ids = given.then_some(&ids[..]);
    live.insert_resumable(&rows, Some(&beside), ids, cut_off, &Silent)
}

fn cut_off(live: &LiveIndex) -> Vec<String> {
    let cut = live.cut_off_inserts().into_iter();
    cut.map(|insert| insert.file).collect()
}

fn all(case: Case) -> Model {
    let came = (BASE..BASE + rows_of(case)).map(|id| (id, vector(id, 1)));
    first().into_iter().chain(came).collect()
}

fn go_on(case: Case, live: &LiveIndex, given: bool) -> Result<Resumed, Error> {
    match insert(case, live, given, CutOff::Resume) {
        // The crash came before the insert was recorded.
        Err(error) if error.kind() == ErrorKind::Call && !given => {
            assert_eq!(live.len(), BASE as usize, "{error}");
            insert(case, live, given, CutOff::Refuse)
        }
        put => put,
    }
}

fn crash_everywhere(case: Case, given: bool) -> usize {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let before = base(case, folder);
    let open = |volume: &SimVolume| open(case, volume, folder, Durability::OnFlush);
    let whole = before.fork();
    let start = whole.operations();
    let live = open(&whole).unwrap();
    insert(case, &live, given, CutOff::Refuse).unwrap();
    drop(live);
    let operations = whole.operations() - start;
    let (total, mut middle) = (rows_of(case) as usize, 0);
    for at in (0..operations).step_by(step(1 + operations as usize / 14)) {
        let volume = before.fork();
        volume.fail_after(at, Failure::Crash);
        let put = open(&volume).and_then(|live| insert(case, &live, given, CutOff::Refuse));
        for mode in crashes(at) {
            let place = format!("{case:?}, given {given}, operation {at}, {mode:?}");
            let image = volume.crash_image(0, mode);
            let again = image.fork();
            again.fail_after(at / 2, Failure::Crash);
            let _ = open(&again).and_then(|live| go_on(case, &live, given));
            for image in [image, again.crash_image(1, mode)] {
                let live = open(&image).unwrap_or_else(|error| panic!("{place}: {error}"));
                let there = live.len() - BASE as usize;
                if put.is_ok() {
                    assert_eq!(there, total, "{place}");
                }
                if there > 0 && there < total {
                    middle += 1;
                    let refused = insert(case, &live, given, CutOff::Refuse).unwrap_err();
                    match refused {
                        Error::CutOff { done, first_id, .. } if !given => {
                            assert_eq!((done, first_id), (there, BASE), "{place}");
                        }
                        error => assert!(given && error.kind() == ErrorKind::Call, "{error}"),
                    }
                    assert_eq!(live.len() - BASE as usize, there, "{place}");
                }
                let resumed = go_on(case, &live, given);
                let resumed = resumed.unwrap_or_else(|error| panic!("{place}: {error}"));
                assert_eq!(resumed.before, there, "{place}");
                assert_eq!(resumed.inserted, total - there, "{place}");
                assert_eq!(contents(&live), all(case), "{place}");
                let resumed = insert(case, &live, given, CutOff::Resume).unwrap();
                assert_eq!(resumed.before, total, "{place}");
                drop(live);
                let image = image.crash_image(2, mode);
                assert_eq!(contents(&open(&image).unwrap()), all(case), "{place}");
            }
        }
    }
    middle
}

#[test]
fn an_insert_that_crashes_at_any_operation_goes_on_with_each_row_once() {
    for case in [
        Case(Layout::Packed, Update::Merge),
        PACKED,
        Case(Layout::Coupled, Update::Relocate),
        INLINE,
        Case(Layout::Grouped, Update::Rebalance),
    ] {
        let middle: usize = [false, true]
            .map(|given| crash_everywhere(case, given))
            .iter()
            .sum();
        assert!(
            middle > 0,
            "{case:?}: no crash hit the middle of the insert"
        );
    }
}

/// An index in which a kill has interrupted an insert, with the number of its vectors.
fn killed(case: Case, folder: &Path) -> (SimVolume, u64) {
    let before = base(case, folder);
    let open = |volume: &SimVolume| open(case, volume, folder, Durability::Always);
    let cut = (0..).find_map(|at| {
        let volume = before.fork();
        volume.fail_after(at, Failure::Crash);
        let _ = open(&volume).and_then(|live| insert(case, &live, false, CutOff::Refuse));
        let image = volume.crash_image(0, Crash::Torn);
        let there = open(&image).unwrap().len() as u64;
        (there > BASE).then_some((image, there))
    });
    let (volume, there) = cut.unwrap();
    assert!(there < BASE + rows_of(case));
    (volume, there)
}

#[test]
fn an_insert_goes_on_only_with_what_its_rows_have_beside_them() {
    let case = Case(Layout::Packed, Update::Merge);
    let folder = tempfile::tempdir().unwrap();
    let (volume, there) = killed(case, folder.path());
    let live = open(case, &volume, folder.path(), Durability::Always).unwrap();
    assert!(live.cut_off_inserts()[0].attributes);
    let ids: Vec<u64> = (BASE..BASE + rows_of(case)).collect();
    let vectors = wide_rows(live.index().dim(), &ids, 1);
    let others = RowTable::new(ids.iter().map(|&id| super::row(id, 2)).collect());
    for beside in [None, Some(&others as &dyn RowSource)] {
        for cut_off in [CutOff::Resume, CutOff::Refuse] {
            let refused = live.insert_resumable(&vectors, beside, None, cut_off, &Silent);
            let text = refused.unwrap_err().to_string();
            assert!(
                text.contains("attributes of the rows of array") && text.contains("`--attributes`"),
                "{text}"
            );
            assert_eq!(live.len() as u64, there);
        }
    }
    let resumed = insert(case, &live, false, CutOff::Resume).unwrap();
    assert_eq!(resumed.before as u64, there - BASE);
    let done = live.insert_resumable(&vectors, None, None, CutOff::Resume, &Silent);
    assert!(done.unwrap_err().to_string().contains("not given"));
    assert_eq!(contents(&live), all(case));
    let twice = live.insert_resumable(&vectors, None, None, CutOff::Refuse, &Silent);
    assert_eq!(twice.unwrap().inserted as u64, rows_of(case));
}

#[test]
fn an_insert_that_was_cut_off_is_forgotten_by_its_name() {
    let case = Case(Layout::Packed, Update::Merge);
    let folder = tempfile::tempdir().unwrap();
    let (volume, there) = killed(case, folder.path());
    let open = |volume: &SimVolume| open(case, volume, folder.path(), Durability::Always).unwrap();
    let live = open(&volume);
    let unknown = live.forget_cut_off("another").unwrap_err().to_string();
    assert!(unknown.contains("Give one of these: array"), "{unknown}");
    let last = BASE + rows_of(case) - 1;
    let other = rows(&[last], 3);
    live.insert(&other, Some(&[last]), &Silent).unwrap_err();
    // After a crash at any write, the index either still knows the insert or has forgotten it.
    for at in 0..4 {
        let volume = volume.fork();
        let live = open(&volume);
        volume.fail_after(at, Failure::Crash);
        let forgotten = live.forget_cut_off("array").is_ok();
        drop(live);
        let live = open(&volume.crash_image(0, Crash::Torn));
        assert!(!forgotten || cut_off(&live).is_empty(), "operation {at}");
        assert_eq!(live.len() as u64, there, "operation {at}");
    }
    let forgotten = live.forget_cut_off("array").unwrap();
    assert_eq!(
        (forgotten[0].first_id, forgotten[0].rows),
        (BASE, rows_of(case))
    );
    drop(live);
    let live = open(&volume);
    assert_eq!(cut_off(&live), [""; 0]);
    assert_eq!(live.len() as u64, there);
    live.insert(&other, Some(&[last]), &Silent).unwrap();
    let none = live.forget_cut_off("array").unwrap_err().to_string();
    assert!(
        none.contains("no insert of this file was cut off"),
        "{none}"
    );
}

#[derive(Default)]
struct Ends(AtomicBool);

impl Progress for Ends {
    fn begin(&self, _: &str, _: u64) {}

    fn advance(&self, _: u64) {
        self.0.store(true, Ordering::Relaxed);
    }

    fn end(&self) {}

    fn interrupted(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    fn warn(&self, _: &str) {}
}

/// The crash came after the record of the insert, and before its first row.
#[test]
fn an_insert_of_which_no_row_is_in_is_not_ended_by_others() {
    let case = Case(Layout::Packed, Update::Merge);
    let folder = tempfile::tempdir().unwrap();
    let before = base(case, folder.path());
    let open = |volume: &SimVolume| open(case, volume, folder.path(), Durability::Always);
    let begun = (0..).find_map(|at| {
        let volume = before.fork();
        volume.fail_after(at, Failure::Crash);
        let _ = open(&volume).and_then(|live| insert(case, &live, false, CutOff::Refuse));
        let image = volume.crash_image(0, Crash::Torn);
        let live = open(&image).unwrap();
        let none_in = live.len() == BASE as usize && !cut_off(&live).is_empty();
        none_in.then(|| image.clone())
    });
    let live = open(&begun.unwrap()).unwrap();
    let ids: Vec<u64> = (BASE..BASE + rows_of(case)).collect();
    let others = wide_rows(live.index().dim(), &ids, 3);
    let beside = RowTable::new(ids.iter().map(|&id| super::row(id, 1)).collect());
    live.insert_rows(&others, &beside, Some(&ids), &Silent)
        .expect_err("the ids of another insert");
    assert_eq!(cut_off(&live), ["array"]);
    insert(case, &live, false, CutOff::Resume).unwrap();
    assert_eq!(contents(&live), all(case));
    // Other calls have put other vectors under the ids of the insert.
    live.delete(&ids).unwrap();
    live.insert_rows(&others, &beside, Some(&ids), &Silent)
        .unwrap();
    let other = insert(case, &live, false, CutOff::Resume).unwrap_err();
    assert!(
        other
            .to_string()
            .contains("another vector than the index has"),
        "{other}"
    );
}

/// The error of an interrupted insert suggests an insert of the remaining rows under their ids.
#[test]
fn an_insert_goes_on_with_the_rest_of_its_rows_by_their_ids() {
    let case = Case(Layout::Packed, Update::Merge);
    let folder = tempfile::tempdir().unwrap();
    let (volume, there) = killed(case, folder.path());
    let open = |volume: &SimVolume| open(case, volume, folder.path(), Durability::Always).unwrap();
    let rest: Vec<u64> = (there..BASE + rows_of(case)).collect();
    let beside = RowTable::new(rest.iter().map(|&id| super::row(id, 1)).collect());
    let vectors = wide_rows(open(&volume).index().dim(), &rest, 1);
    for upserts in [false, true] {
        let volume = volume.fork();
        let live = open(&volume);
        let replaced = wide_rows(live.index().dim(), &[BASE], 1);
        let row = RowTable::new(vec![super::row(BASE, 1)]);
        live.upsert_rows(&replaced, &row, &[BASE], &Silent).unwrap();
        live.insert(&vectors, Some(&rest), &Silent)
            .expect_err("without what its rows have beside them");
        let others: Vec<u64> = (0..rest.len() as u64).map(|n| rest[0] + 1 + n).collect();
        live.insert_rows(&vectors, &beside, Some(&others), &Silent)
            .expect_err("one row on");
        assert_eq!(cut_off(&live), ["array"]);
        match upserts {
            false => drop(
                live.insert_rows(&vectors, &beside, Some(&rest), &Silent)
                    .unwrap(),
            ),
            true => {
                let cut = live.insert_rows(&vectors, &beside, Some(&rest), &Ends::default());
                assert!(matches!(cut, Err(Error::Partly { .. })), "{cut:?}");
                assert_eq!(cut_off(&live), ["array"]);
                live.upsert_rows(&vectors, &beside, &rest, &Silent).unwrap();
            }
        }
        assert_eq!(cut_off(&live), [""; 0]);
        assert_eq!(contents(&live), all(case));
        let done = insert(case, &live, false, CutOff::Resume).unwrap();
        assert_eq!(done.before as u64, rows_of(case));
        drop(live);
        assert_eq!(contents(&open(&volume)), all(case));
    }
}

#[test]
fn ids_of_the_rest_stay_with_an_insert_that_was_cut_off() {
    let case = Case(Layout::Packed, Update::Merge);
    let folder = tempfile::tempdir().unwrap();
    let (volume, there) = killed(case, folder.path());
    let open = |volume: &SimVolume| open(case, volume, folder.path(), Durability::Always);
    let live = open(&volume).unwrap();
    assert_eq!(cut_off(&live), ["array"]);
    let other = rows(&[7_000, 7_001], 3);
    let ids = live.insert(&other, None, &Silent).unwrap();
    let end = BASE + rows_of(case);
    assert_eq!(ids, [end, end + 1]);
    // If such an id were in the index, all rows before it would seem to be inserted.
    for id in [end - 1, there + 1] {
        let theirs = (&rows(&[id], 3), [id]);
        let put = [
            live.insert(theirs.0, Some(&theirs.1), &Silent).map(drop),
            live.upsert(theirs.0, &theirs.1, &Silent),
            live.insert_resumable(theirs.0, None, Some(&theirs.1), CutOff::Refuse, &Silent)
                .map(drop),
        ];
        for refused in put {
            let text = refused.unwrap_err().to_string();
            assert!(text.contains("an insert of array was cut off"), "{text}");
        }
        assert!(!live.contains(id).unwrap());
    }
    let copy = SimVolume::new();
    crate::snapshot::take(&volume, &copy, Some(&live), &Silent).unwrap();
    let copied = open(&copy).unwrap();
    assert_eq!(cut_off(&copied), ["array"]);
    let refused = insert(case, &copied, false, CutOff::Refuse);
    assert!(matches!(refused, Err(Error::CutOff { .. })), "{refused:?}");
    drop(copied);
    let warnings = Warnings::default();
    assert!(verify_in(&volume, &warnings).unwrap().clean());
    let warnings = warnings.0.into_inner().join("\n");
    assert!(
        warnings.contains("`--resume`; to forget it, use `--forget`"),
        "{warnings}"
    );
    assert!(!warnings.contains("not ours"), "{warnings}");
    live.delete(&[BASE + 3, end]).unwrap();
    live.upsert(&rows(&[BASE + 5], 4), &[BASE + 5], &Silent)
        .unwrap();
    live.compact(&Silent).unwrap();
    drop(live);
    let live = open(&volume).unwrap();
    let resumed = insert(case, &live, false, CutOff::Resume).unwrap();
    assert_eq!(resumed.before as u64, there - BASE);
    assert_eq!(cut_off(&live), [""; 0]);
    assert!(
        !live.contains(BASE + 3).unwrap(),
        "a deleted vector is in the index again"
    );
    let found = live
        .vectors(&[BASE + 5, end - 1, end + 1], &Silent)
        .unwrap();
    let expected = [vector(BASE + 5, 4), vector(end - 1, 1), vector(7_001, 3)].concat();
    assert_eq!(found.vectors, expected);
    assert_eq!(live.len() as u64, end - 1 + 1);
    // A resume of the done insert does not restore rows that other calls have deleted.
    live.delete(&[end - 1]).unwrap();
    assert_eq!(
        insert(case, &live, false, CutOff::Resume).unwrap().inserted,
        0
    );
    assert!(!live.contains(end - 1).unwrap());
    live.insert_resumable(&rows(&[8_000], 3), None, None, CutOff::Refuse, &Silent)
        .unwrap();
    let unknown = insert(case, &live, false, CutOff::Resume).unwrap_err();
    assert!(
        unknown.to_string().contains("without resuming"),
        "{unknown}"
    );
}

#[derive(Default)]
struct Warnings(Mutex<Vec<String>>);

impl Progress for Warnings {
    fn begin(&self, _: &str, _: u64) {}
    fn advance(&self, _: u64) {}
    fn end(&self) {}
    fn warn(&self, message: &str) {
        self.0.lock().push(message.to_owned());
    }
    fn interrupted(&self) -> bool {
        false
    }
}

/// Without INSERTS, the index can no longer refuse a second insert of the same rows.
#[test]
fn verify_tells_that_it_is_not_known_which_inserts_were_cut_off() {
    let folder = tempfile::tempdir().unwrap();
    let volume = base(PACKED, folder.path());
    let live = open(PACKED, &volume, folder.path(), Durability::Always).unwrap();
    insert(PACKED, &live, false, CutOff::Refuse).unwrap();
    drop(live);
    assert!(verify_in(&volume, &Silent).unwrap().clean());
    let mut file = volume.open(INSERTS).unwrap();
    file.write_at(30, b"?").unwrap();
    drop(file);
    let report = verify_in(&volume, &Silent).unwrap();
    assert_eq!(report.problem_count, 1, "{report:?}");
    assert!(report.problems[0].what.contains("cut off"), "{report:?}");
    let live = open(PACKED, &volume, folder.path(), Durability::Always).unwrap();
    let copy = SimVolume::new();
    crate::snapshot::take(&volume, &copy, Some(&live), &Silent).unwrap();
    assert!(verify_in(&copy, &Silent).unwrap().clean());
    drop(live);
    let shared: Arc<dyn Volume> = Arc::new(volume.clone());
    let options = RepairOptions::default();
    let repaired = repair_in(&shared, folder.path(), &options, &Silent).unwrap();
    assert!(!repaired.repaired, "{repaired:?}");
    assert!(verify_in(&volume, &Silent).unwrap().clean());
}

#[test]
fn inserts_of_a_later_program_stay_as_they_are() {
    let folder = tempfile::tempdir().unwrap();
    let volume = base(PACKED, folder.path());
    let text = b"STRATANN INSERTS 4 94472cb5\n";
    let mut file = volume.create(INSERTS).unwrap();
    file.write_at(0, text).unwrap();
    drop(file);
    let warnings = Warnings::default();
    assert!(verify_in(&volume, &warnings).unwrap().clean());
    let told = warnings.0.lock().join("\n");
    assert!(told.contains("version 4"), "{told}");
    let shared: Arc<dyn Volume> = Arc::new(volume.clone());
    let repair = |force| {
        let options = RepairOptions {
            force,
            ..RepairOptions::default()
        };
        repair_in(&shared, folder.path(), &options, &Silent).map(drop)
    };
    let opened = open(PACKED, &volume, folder.path(), Durability::Always).map(drop);
    for refused in [repair(false), opened] {
        let refused = refused.unwrap_err().to_string();
        assert!(refused.contains("version 4"), "{refused}");
    }
    assert_eq!(volume.read(INSERTS).unwrap(), text);
    repair(true).unwrap();
    open(PACKED, &volume, folder.path(), Durability::Always).unwrap();
}

/// A file with hard links is copied before the first row is inserted.
#[test]
fn what_is_refused_before_the_first_row_is_no_insert_that_was_cut_off() {
    for case in [PACKED, Case(Layout::Coupled, Update::InPlace)] {
        let folder = tempfile::tempdir().unwrap();
        let linked = base(case, folder.path());
        for name in linked.list().unwrap() {
            linked.link(&name, &format!("kept-{name}"));
        }
        let mut refusals = 0;
        for at in 0..8 {
            let volume = linked.fork();
            let live = open(case, &volume, folder.path(), Durability::Always).unwrap();
            volume.fail_after(at, Failure::NoSpace);
            let refused = insert(case, &live, false, CutOff::Refuse);
            let Err(Error::Tier(TierError::NoSpaceForCopy { .. })) = refused else {
                continue;
            };
            refusals += 1;
            volume.heal();
            assert_eq!(cut_off(&live), [""; 0], "{case:?}, operation {at}");
            drop(live);
            let live = open(case, &volume, folder.path(), Durability::Always).unwrap();
            assert_eq!(cut_off(&live), [""; 0], "{case:?}, operation {at}");
        }
        assert!(refusals > 0, "{case:?}");
    }
}

/// If not all given ids are in the index, the last ids may belong to other rows, or some rows were
/// deleted.
#[test]
fn given_ids_that_are_not_all_in_are_not_gone_on_with() {
    let case = Case(Layout::Packed, Update::Merge);
    let folder = tempfile::tempdir().unwrap();
    let volume = base(case, folder.path());
    let live = open(case, &volume, folder.path(), Durability::Always).unwrap();
    let ids: Vec<u64> = (BASE..BASE + 20).collect();
    live.insert(&rows(&ids[..5], 1), Some(&ids[..5]), &Silent)
        .unwrap();
    live.insert(&rows(&ids[19..], 1), Some(&ids[19..]), &Silent)
        .unwrap();
    let before = contents(&live);
    let all = rows(&ids, 1);
    let refused = live.insert_resumable(&all, None, Some(&ids), CutOff::Resume, &Silent);
    let text = refused.unwrap_err().to_string();
    assert!(
        text.contains("the id of row 5") && text.contains("`--upsert`"),
        "{text}"
    );
    assert_eq!(contents(&live), before);
}

#[test]
fn other_rows_are_not_gone_on_with() {
    let case = Case(Layout::Packed, Update::Merge);
    let folder = tempfile::tempdir().unwrap();
    let volume = base(case, folder.path());
    let live = open(case, &volume, folder.path(), Durability::Always).unwrap();
    let ids = [3, 4, 90];
    let refused = live.insert_resumable(&rows(&ids, 8), None, Some(&ids), CutOff::Resume, &Silent);
    let text = refused.unwrap_err().to_string();
    assert!(
        text.contains("another vector than the index has under its id, 3"),
        "{text}"
    );
    assert_eq!(contents(&live), first());
    let short = Matrix::new(vec![0; 2 * DIM], 4, DIM / 2, Element::U8).unwrap();
    let refused = live.insert_resumable(&short, None, None, CutOff::Refuse, &Silent);
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::Call);
    assert_eq!(cut_off(&live), [""; 0]);
}
