//! Changes that a killed process has left in the page cache, and syncs that fail at the next open.

use stratann_tier::testing::{Mishap, Operation};

use super::*;

fn left_unsynced(folder: &Path) -> (SimVolume, Model) {
    let case = Case(Layout::Packed, Update::Merge);
    let volume = base(case, folder);
    volume.discard_failed_syncs(true, true);
    let live = open(case, &volume, folder, Durability::OnFlush).unwrap();
    let mut model = first();
    for call in [
        Call::Insert(vec![100, 101], 1),
        Call::Delete(vec![3]),
        Call::Upsert(vec![7], 2),
    ] {
        call.make(&live).unwrap();
        call.apply(&mut model);
    }
    // A killed process syncs nothing, and only its lock is released.
    std::mem::forget(live);
    (volume.fork(), model)
}

fn open_again(volume: &SimVolume, folder: &Path) -> Result<LiveIndex, Error> {
    let case = Case(Layout::Packed, Update::Merge);
    open(case, volume, folder, Durability::OnFlush)
}

#[test]
fn a_sync_that_failed_when_the_index_was_opened_is_not_relied_on_afterwards() {
    let folder = tempfile::tempdir().unwrap();
    let (left, before) = left_unsynced(folder.path());
    for kind in [Operation::Sync, Operation::SyncNames] {
        let mut failed = 0;
        for nth in 0.. {
            let (volume, mut model) = (left.fork(), before.clone());
            volume.fail_nth(kind, nth, Mishap::Undone);
            let opened = open_again(&volume, folder.path());
            let place = format!("{kind:?} {nth}");
            if volume.failed().is_none() {
                break;
            }
            failed += 1;
            assert!(opened.is_err(), "{place}");
            drop(opened);
            let live = open_again(&volume, folder.path()).unwrap();
            assert_eq!(contents(&live), model, "{place}");
            let call = Call::Insert(vec![200], 3);
            call.make(&live).unwrap();
            call.apply(&mut model);
            live.flush().unwrap();
            for mode in Crash::ALL {
                let image = volume.crash_image(nth, mode);
                let live = open_again(&image, folder.path()).unwrap();
                assert_eq!(contents(&live), model, "{place}, {mode:?}");
            }
        }
        assert!(failed > 0, "{kind:?}");
    }
}

#[test]
fn what_was_opened_and_closed_is_durable_though_nothing_was_changed() {
    let folder = tempfile::tempdir().unwrap();
    let (volume, model) = left_unsynced(folder.path());
    for _ in 0..3 {
        drop(open_again(&volume, folder.path()).unwrap());
        let image = volume.crash_image(0, Crash::Dropped);
        let live = open_again(&image, folder.path()).unwrap();
        assert_eq!(contents(&live), model);
    }
    let logs = volume.list().unwrap();
    let logs = logs.iter().filter(|name| name.starts_with("log")).count();
    assert_eq!(
        logs, 1,
        "there are empty logs, or the remaining changes are in several logs"
    );
}

#[test]
fn openings_that_fail_leave_no_more_than_one_log() {
    let folder = tempfile::tempdir().unwrap();
    let (mut volume, model) = left_unsynced(folder.path());
    let logs = |volume: &SimVolume| {
        let names = volume.list().unwrap();
        names.iter().filter(|name| name.starts_with("log")).count()
    };
    drop(open_again(&volume, folder.path()).unwrap());
    let before = logs(&volume);
    for _ in 0..4 {
        std::mem::forget(open_again(&volume, folder.path()).unwrap());
        volume = volume.fork();
        assert!(logs(&volume) <= before + 1);
    }
    let live = open_again(&volume, folder.path()).unwrap();
    assert_eq!(contents(&live), model);
}
