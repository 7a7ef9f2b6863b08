//! Ids that are not row numbers, with a file of ids, and without this file, as in an earlier
//! version.

use stratann_layout::manifest::{COLUMNS, FILE_NAME as MANIFEST, IDS};

use super::*;
use crate::RepairOptions;
use crate::repair::repair_in;
use crate::update::ids::StoredIds;

/// Ids 3 and 11 were deleted, and ids 100 to 102 were inserted.
pub(super) fn merged(case: Case, folder: &Path) -> (SimVolume, Model) {
    let volume = base(case, folder);
    let live = open(case, &volume, folder, Durability::Always).unwrap();
    let mut model = first();
    for call in [
        Call::Delete(vec![3, 11]),
        Call::Insert(vec![100, 101, 102], 1),
        Call::Compact,
    ] {
        call.make(&live).unwrap();
        call.apply(&mut model);
    }
    (volume, model)
}

pub(super) fn forget_ids(volume: &SimVolume) {
    let mut manifest = stored::manifest(volume).unwrap();
    let name = manifest.file("ids").unwrap().name.clone();
    manifest.files.retain(|entry| entry.name != name);
    manifest.state = None;
    manifest.writer_features &= COLUMNS;
    let mut file = volume.create(MANIFEST).unwrap();
    file.write_at(0, &manifest.encode()).unwrap();
    file.sync().unwrap();
    volume.remove(&name).unwrap();
    volume.sync().unwrap();
}

fn changed(case: Case, volume: &SimVolume, folder: &Path, mut model: Model) {
    let mut live = open(case, volume, folder, Durability::Always).unwrap();
    for id in 0..110 {
        assert_eq!(live.contains(id).unwrap(), model.contains_key(&id), "{id}");
    }
    let insert = |id| Call::Insert(vec![id], 1).make(&live);
    insert(102).unwrap_err();
    Call::Delete(vec![11]).make(&live).unwrap_err();
    for call in [
        Call::Insert(vec![3, 200], 4),
        Call::Upsert(vec![7, 102, 11], 5),
        Call::Delete(vec![0, 101, 200]),
        Call::Compact,
        Call::Upsert(vec![3, 102, 300], 6),
    ] {
        call.make(&live).unwrap();
        call.apply(&mut model);
        assert_eq!(contents(&live), model, "{case:?}, {call:?}");
        assert_eq!(live.len(), model.len(), "{case:?}, {call:?}");
        drop(live);
        let report = verify_in(volume, &Silent).unwrap();
        assert!(report.clean(), "{case:?}, {call:?}: {:?}", report.problems);
        live = open(case, volume, folder, Durability::Always).unwrap();
    }
    find_all(&live, &model);
}

#[test]
fn a_merge_says_which_ids_there_are() {
    for case in CASES {
        let folder = tempfile::tempdir().unwrap();
        let (volume, model) = merged(case, folder.path());
        let manifest = stored::manifest(&volume).unwrap();
        assert_eq!(
            (manifest.next_id, manifest.writer_features & IDS),
            (103, IDS)
        );
        assert_eq!(
            stored::entry(&volume, &manifest, stratann_layout::FileKind::Ids, None)
                .unwrap()
                .length,
            8192
        );
        changed(case, &volume, folder.path(), model);
    }
}

#[test]
fn an_index_of_an_earlier_version_takes_changes_and_leaves_no_file_of_ids_behind() {
    for case in CASES {
        let folder = tempfile::tempdir().unwrap();
        let (volume, model) = merged(case, folder.path());
        forget_ids(&volume);
        let before = volume.list().unwrap();
        let live = open(case, &volume, folder.path(), Durability::Always).unwrap();
        assert_eq!(contents(&live), model);
        let of_ids = |volume: &SimVolume| {
            let names = volume.list().unwrap().into_iter();
            names.filter(|name| name.starts_with("ids")).count()
        };
        assert_eq!(
            of_ids(&volume),
            0,
            "a file of ids exists while the index is open"
        );
        drop(live);
        assert_eq!(volume.list().unwrap(), before, "{case:?}");
        changed(case, &volume, folder.path(), model);
        assert_eq!(of_ids(&volume), 1);
    }
}

#[test]
fn a_machine_that_crashes_while_ids_are_collected_has_lost_nothing() {
    let (case, folder) = (PACKED, tempfile::tempdir().unwrap());
    let (before, model) = merged(case, folder.path());
    forget_ids(&before);
    let start = before.operations();
    let whole = before.fork();
    drop(open(case, &whole, folder.path(), Durability::Always).unwrap());
    let operations = whole.operations() - start;
    assert!(operations > 4, "{operations}");
    for at in 0..operations {
        let volume = before.fork();
        volume.fail_after(at, Failure::Crash);
        let _ = open(case, &volume, folder.path(), Durability::Always);
        for mode in [Crash::Dropped, Crash::Torn, Crash::Reordered] {
            let image = volume.crash_image(1, mode);
            let live = open(case, &image, folder.path(), Durability::Always).unwrap();
            assert_eq!(contents(&live), model, "{at}, {mode:?}");
            drop(live);
            let names = image.list().unwrap();
            assert!(
                !names.iter().any(|name| name.starts_with("ids")),
                "{names:?}"
            );
        }
    }
}

#[test]
fn a_damaged_file_of_ids_fails_what_asks_it_and_is_made_anew_by_a_repair() {
    for case in [
        PACKED,
        DECOUPLED,
        INLINE,
        Case(Layout::Coupled, Update::Merge),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let (volume, model) = merged(case, folder.path());
        let manifest = stored::manifest(&volume).unwrap();
        let name = manifest.file("ids").unwrap().name.clone();
        let live = open(case, &volume, folder.path(), Durability::Always).unwrap();
        let mut file = volume.open(&name).unwrap();
        file.write_at(5_000, &[77]).unwrap();
        let error = Call::Upsert(vec![5], 2).make(&live).unwrap_err();
        assert!(error.to_string().contains(&name), "{error}");
        Call::Delete(vec![5]).make(&live).unwrap_err();
        live.contains(5).unwrap_err();
        assert_eq!(contents(&live), model);
        Call::Insert(vec![500], 1).make(&live).unwrap();
        drop(live);
        let mut model = model;
        model.insert(500, vector(500, 1));
        // The records have the same ids as the file.
        let again = volume.fork();
        let live = open(case, &again, folder.path(), Durability::Always).unwrap();
        assert_eq!(contents(&live), model);
        assert!(live.contains(5).unwrap() && !live.contains(11).unwrap());
        Call::Upsert(vec![5], 2).make(&live).unwrap();
        Call::Compact.make(&live).unwrap();
        drop(live);
        assert!(verify_in(&again, &Silent).unwrap().clean());
        again
            .remove(&stored::manifest(&again).unwrap().file("ids").unwrap().name)
            .unwrap();
        let live = open(case, &again, folder.path(), Durability::Always).unwrap();
        assert!(live.contains(5).unwrap() && !live.contains(11).unwrap());
        drop(live);
        let report = verify_in(&volume, &Silent).unwrap();
        let problem = &report.problems[0];
        assert_eq!(
            (report.problem_count, problem.offset),
            (1, Some(BLOCK as u64))
        );
        assert!(problem.file.ends_with(&name), "{problem:?}");
        let shared: Arc<dyn Volume> = Arc::new(volume.clone());
        let options = RepairOptions {
            threads: 1,
            ..RepairOptions::default()
        };
        let repaired = repair_in(&shared, folder.path(), &options, &Silent).unwrap();
        assert_eq!((repaired.vectors_lost, repaired.lost.len()), (0, 1));
        let live = open(case, &volume, folder.path(), Durability::Always).unwrap();
        assert_eq!(contents(&live), model);
        let StoredIds::Table(table, 501) = StoredIds::of(&live.index()).unwrap().unwrap() else {
            panic!("no table of ids");
        };
        assert_eq!(table.entries().entries(), model.len() as u64);
        drop(live);
        assert!(verify_in(&volume, &Silent).unwrap().clean());
    }
}

#[test]
fn the_next_ids_are_none_that_another_call_is_giving_to_its_vectors() {
    let folder = tempfile::tempdir().unwrap();
    let volume = base(PACKED, folder.path());
    let live = open(PACKED, &volume, folder.path(), Durability::Always).unwrap();
    // The other call has not logged its vectors yet.
    let theirs = live.reserve(&[BASE + 1, BASE + 7]);
    let ids = live.insert(&rows(&[900, 901, 902], 1), None, &Silent);
    assert_eq!(ids.unwrap(), [BASE + 2, BASE + 3, BASE + 4]);
    let ids = live.insert(&rows(&[903, 904, 905], 1), None, &Silent);
    assert_eq!(ids.unwrap(), [BASE + 8, BASE + 9, BASE + 10]);
    drop(theirs);
    let ids = live.insert(&rows(&[906], 1), None, &Silent).unwrap();
    assert_eq!(ids, [BASE + 11]);
}
