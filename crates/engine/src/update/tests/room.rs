//! What a budget lets in: it is counted by its bytes, has room when the index is opened again, and leaves nothing behind where it is refused.

use super::*;
use crate::update::direct::Pruning;

/// Bytes of memory that an index needs at least.
fn least(case: Case, volume: &SimVolume, folder: &Path) -> u64 {
    match open_within(case, volume, folder, 1) {
        Err(Error::Memory { needs, .. }) => needs,
        other => panic!("{case:?} in a byte: {other:?}"),
    }
}

fn open_within(
    case: Case,
    volume: &SimVolume,
    folder: &Path,
    memory: u64,
) -> Result<LiveIndex, Error> {
    let open = OpenOptions {
        memory: Some(memory),
        ..OpenOptions::default()
    };
    let options = WriteOptions {
        threads: 1,
        update: Some(case.1),
        direct: DirectOptions {
            pruning: Pruning::Delta,
            ..DirectOptions::default()
        },
        ..WriteOptions::default()
    };
    LiveIndex::open_in(Arc::new(volume.clone()), folder, &open, &options)
}

/// A row of so many bytes, about.
fn long(value: i64, bytes: usize) -> Row {
    Row {
        attributes: [("a".to_owned(), Value::Integer(value))].into(),
        payload: Some(format!("\"{}\"", "x".repeat(bytes))),
    }
}

fn rows_of(ids: &[u64], bytes: usize) -> RowTable {
    RowTable::new(ids.iter().map(|&id| long(id as i64, bytes)).collect())
}

const WAYS: [Case; 5] = [
    PACKED,
    INLINE,
    Case(Layout::Packed, Update::Merge),
    Case(Layout::Replicated, Update::Merge),
    Case(Layout::Replicated, Update::Rebalance),
];

#[test]
fn what_was_accepted_under_a_budget_opens_again_under_it() {
    for case in WAYS {
        let folder = tempfile::tempdir().unwrap();
        let volume = base(case, folder.path());
        let memory = least(case, &volume, folder.path()) + (6 << 20);
        let live = open_within(case, &volume, folder.path(), memory).unwrap();
        let mut accepted = 0;
        for first in (1_000..1_700).step_by(50) {
            let ids: Vec<u64> = (first..first + 50).collect();
            match live.insert_rows(&rows(&ids, 1), &rows_of(&ids, 8_000), Some(&ids), &Silent) {
                Ok(_) => accepted += 50,
                Err(error) => {
                    let (done, error) = match error {
                        Error::Partly { done, source, .. } => (done as u64, *source),
                        error => (0, error),
                    };
                    assert!(matches!(error, Error::Memory { .. }), "{case:?}: {error}");
                    accepted += done;
                    break;
                }
            }
        }
        assert!(accepted > 300, "{case:?}: {accepted}");
        // The process is gone.
        let crashed = volume.fork();
        drop(live);
        let live = open_within(case, &crashed, folder.path(), memory)
            .unwrap_or_else(|error| panic!("{case:?}: {error}"));
        assert_eq!(live.len() as u64, BASE + accepted);
        let filter = Filter::parse("a >= 1000").unwrap();
        assert_eq!(live.count(&filter).unwrap(), accepted, "{case:?}");
        assert_eq!(
            live.attributes(&[1_007]).unwrap(),
            [Some(long(1_007, 8_000))]
        );
    }
}

#[test]
fn rows_of_one_vector_are_counted_once_by_the_log_too() {
    for case in WAYS {
        let folder = tempfile::tempdir().unwrap();
        let volume = base(case, folder.path());
        let memory = least(case, &volume, folder.path()) + (4 << 20);
        let live = open_within(case, &volume, folder.path(), memory).unwrap();
        let ids = [500, 7];
        live.insert(&rows(&ids[..1], 1), Some(&ids[..1]), &Silent)
            .unwrap();
        for _ in 0..300 {
            live.set_attributes(&ids, &rows_of(&ids, 20_000), &Silent)
                .unwrap_or_else(|error| panic!("{case:?}: {error}"));
        }
        let crashed = volume.fork();
        drop(live);
        let live = open_within(case, &crashed, folder.path(), memory)
            .unwrap_or_else(|error| panic!("{case:?}: {error}"));
        let found = live.attributes(&ids).unwrap();
        assert_eq!(found, [Some(long(500, 20_000)), Some(long(7, 20_000))]);
    }
}

#[test]
fn rows_that_wait_for_a_checkpoint_are_bounded_by_their_bytes() {
    for case in [PACKED, INLINE, Case(Layout::Coupled, Update::Relocate)] {
        let folder = tempfile::tempdir().unwrap();
        let volume = base(case, folder.path());
        let memory = least(case, &volume, folder.path()) + (12 << 20);
        let live = open_within(case, &volume, folder.path(), memory).unwrap();
        let room = live.index().memory().for_rows();
        let waits = || live.on_storage().columns().new_bytes();
        let mut most = 0;
        for first in (1_000..1_800).step_by(100) {
            let ids: Vec<u64> = (first..first + 100).collect();
            live.insert_rows(&rows(&ids, 1), &rows_of(&ids, 30_000), Some(&ids), &Silent)
                .unwrap_or_else(|error| panic!("{case:?}: {error}"));
            live.set_attributes(&ids, &rows_of(&ids, 31_000), &Silent)
                .unwrap_or_else(|error| panic!("{case:?}: {error}"));
            most = most.max(waits());
        }
        // 48 MB of them came.
        assert!(
            most <= room && room < 10 << 20,
            "{case:?}: {most} of {room}"
        );
        assert!(live.stats().direct.unwrap().checkpoints > 3, "{case:?}");
        let filter = Filter::parse("a >= 1000").unwrap();
        assert_eq!(live.count(&filter).unwrap(), 800, "{case:?}");
    }
}

#[test]
fn a_change_that_failed_leaves_no_column() {
    for case in [PACKED, Case(Layout::Packed, Update::Merge)] {
        let folder = tempfile::tempdir().unwrap();
        let volume = base(case, folder.path());
        let live = open(case, &volume, folder.path(), Durability::Always).unwrap();
        let with = |value| {
            let row = Row {
                attributes: [("a".to_owned(), value)].into(),
                payload: None,
            };
            RowTable::new(vec![row])
        };
        let insert = |value| {
            let ids = Some(&[900][..]);
            live.insert_rows(&rows(&[900], 1), &with(value), ids, &Silent)
        };
        volume.fail_after(0, Failure::Io);
        insert(Value::Integer(1)).unwrap_err();
        live.set_attributes(&[7], &with(Value::Boolean(true)), &Silent)
            .unwrap_err();
        volume.heal();
        assert!(live.schema().is_empty(), "{case:?}");
        insert(Value::String("x".into())).unwrap();
        assert_eq!(live.schema().len(), 1);
    }
}

#[test]
fn a_vector_that_got_no_page_leaves_no_row_of_a_node_that_is_not_there() {
    let (case, folder) = (INLINE, tempfile::tempdir().unwrap());
    // Many pages, of which the last, where new vectors go, is none that a search comes across.
    let volume = base_of(case, 401, folder.path());
    let live = open(case, &volume, folder.path(), Durability::Always).unwrap();
    let names = volume.list().unwrap();
    let name = names
        .into_iter()
        .find(|name| name.starts_with("inline"))
        .unwrap();
    let end = volume.len(&name).unwrap();
    let mut sound = vec![0; BLOCK];
    volume
        .read_at(&name, end - BLOCK as u64, &mut sound)
        .unwrap();
    let mut file = volume.open_pages(&name).unwrap();
    let ids: Vec<u64> = (1_000..1_040).collect();
    let mut waited = Vec::new();
    for &id in &ids {
        file.write_at(end - BLOCK as u64, &vec![0xff; BLOCK])
            .unwrap();
        let columns = live.on_storage();
        let nodes = columns.len() as u32;
        let rows_of_one = RowTable::new(vec![row(id, 1)]);
        live.insert_rows(&rows(&[id], 1), &rows_of_one, Some(&[id]), &Silent)
            .unwrap();
        if live.stats().logged > 0 {
            let found = columns
                .columns()
                .row_of(nodes, &mut Default::default())
                .unwrap();
            assert_eq!(found, None, "{id}");
            waited.push(id);
        }
        live.delete(&[id]).unwrap();
        file.write_at(end - BLOCK as u64, &sound).unwrap();
    }
    assert!(!waited.is_empty());
    drop(live);
    let report = verify_in(&volume, &Silent).unwrap();
    assert!(report.clean(), "{:?}", report.problems);
}
