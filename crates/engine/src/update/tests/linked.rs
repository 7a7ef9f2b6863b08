//! Indexes whose files have other names: a backup by hard links keeps its bytes, whatever is changed and wherever that crashes.

use std::collections::BTreeMap;

use super::*;
use crate::Index;

/// What begins the other name of a file.
const KEPT: &str = "kept-";

/// An index all of whose files have another name.
fn linked(case: Case, folder: &Path) -> SimVolume {
    let volume = base(case, folder);
    for name in volume.list().unwrap() {
        volume.link(&name, &format!("{KEPT}{name}"));
    }
    volume
}

/// The bytes of the backup.
fn kept(volume: &SimVolume) -> BTreeMap<String, Vec<u8>> {
    let names = volume.list().unwrap();
    let names = names.into_iter().filter(|name| name.starts_with(KEPT));
    names
        .map(|name| (name.clone(), volume.read(&name).unwrap()))
        .collect()
}

fn calls() -> Vec<Call> {
    vec![
        Call::Insert(vec![100, 101, 102], 1),
        Call::Delete(vec![3, 101]),
        Call::Upsert(vec![7, 102, 200], 2),
        Call::Flush,
        Call::Insert((300..312).collect(), 1),
        Call::Compact,
        Call::Insert(vec![400], 3),
    ]
}

#[test]
fn a_backup_by_hard_links_keeps_its_bytes_wherever_a_change_crashes() {
    for case in [
        PACKED,
        Case(Layout::Coupled, Update::Relocate),
        Case(Layout::Coupled, Update::InPlace),
        DECOUPLED,
        INLINE,
        Case(Layout::Layered, Update::Relocate),
        Case(Layout::Grouped, Update::Rebalance),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let before = linked(case, folder.path());
        let (backup, calls) = (kept(&before), calls());
        let whole = before.fork();
        let start = whole.operations();
        assert_eq!(
            run_calls(&calls, case, &whole, folder.path()),
            calls.len(),
            "{case:?}"
        );
        assert_eq!(kept(&whole), backup, "{case:?}");
        let operations = whole.operations() - start;
        for at in (0..operations).step_by(step(5)) {
            let volume = before.fork();
            volume.fail_after(at, Failure::Crash);
            let done = run_calls(&calls, case, &volume, folder.path());
            let mut model = first();
            calls[..done].iter().for_each(|call| call.apply(&mut model));
            for mode in crashes(at) {
                let place = format!("{case:?}, operation {at}, {mode:?}, after {done} calls");
                let image = volume.crash_image(0, mode);
                assert_eq!(kept(&image), backup, "{place}");
                let live = open(case, &image, folder.path(), Durability::Always)
                    .unwrap_or_else(|error| panic!("{place}: {error}"));
                let found = contents(&live);
                check(&found, &model, calls.get(done), &place);
                let row = wide_rows(live.index().dim(), &[1_000], 9);
                live.insert(&row, Some(&[1_000]), &Silent).unwrap();
                live.compact(&Silent).unwrap();
                drop(live);
                assert_eq!(kept(&image), backup, "{place}");
                let report = verify_in(&image, &Silent).unwrap();
                assert!(report.clean(), "{place}: {:?}", report.problems);
                // Nothing is left of a copy that was cut off.
                let names = image.list().unwrap();
                assert!(
                    !names.iter().any(|name| name.ends_with(".own")),
                    "{place}: {names:?}"
                );
            }
        }
    }
}

#[test]
fn an_index_that_is_open_for_reading_is_opened_again_where_a_file_is_copied() {
    for case in [INLINE, Case(Layout::Coupled, Update::Relocate)] {
        let folder = tempfile::tempdir().unwrap();
        let volume = linked(case, folder.path());
        let backup = kept(&volume);
        let shared: Arc<dyn Volume> = Arc::new(volume.clone());
        let index = Index::open_in(shared, folder.path(), &OpenOptions::default()).unwrap();
        let options = WriteOptions {
            threads: 1,
            update: Some(case.1),
            direct: DirectOptions {
                pending: 600,
                checkpoint: Some(4),
                ..DirectOptions::default()
            },
            ..WriteOptions::default()
        };
        let live = LiveIndex::over(&Arc::new(index), &options).unwrap();
        let ids: Vec<u64> = (500..540).collect();
        live.insert(&rows(&ids, 1), Some(&ids), &Silent).unwrap();
        let found = live.search(
            &rows(&ids, 1),
            &SearchOptions {
                k: 1,
                threads: 1,
                exact: true,
                ..SearchOptions::default()
            },
        );
        assert_eq!(found.unwrap().ids, ids, "{case:?}");
        drop(live);
        assert_eq!(kept(&volume), backup, "{case:?}");
    }
}
