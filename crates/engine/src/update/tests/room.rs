//! Changes under a memory budget, and deletes on a full disk. Accepted changes must fit into the
//! budget when the index is opened again, and refused changes must leave nothing behind.

use stratann_tier::testing::Mishap;

use super::*;
use crate::Pruning;
use crate::data::MatrixRef;
use crate::durable::room_for_deletes;

/// The smallest budget, in bytes.
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
fn the_first_vector_that_was_accepted_opens_again() {
    for case in &WAYS[2..] {
        let case = *case;
        let folder = tempfile::tempdir().unwrap();
        let before = base(case, folder.path());
        let mut memory = least(case, &before, folder.path());
        let volume = loop {
            let volume = before.fork();
            let put = open_within(case, &volume, folder.path(), memory)
                .and_then(|live| live.insert(&rows(&[1_000], 1), Some(&[1_000]), &Silent));
            match put {
                Ok(_) => break volume,
                Err(Error::Memory { needs, .. }) if needs > memory => memory = needs,
                Err(error) => panic!("{case:?}: {error}"),
            }
        };
        let live = open_within(case, &volume, folder.path(), memory)
            .unwrap_or_else(|error| panic!("{case:?}: {error}"));
        live.delete(&[1_000]).unwrap();
        drop(live);
        open_within(case, &volume, folder.path(), memory).unwrap();
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
        // The attributes of all these calls have 48 MB.
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
    // No search reads the last page, which gets the new vectors.
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

/// An index with reserved blocks, in which some vectors are only in the log. Also returns the ids
/// of all vectors.
fn with_room(case: Case, folder: &Path) -> (SimVolume, Vec<u64>) {
    let volume = base(case, folder);
    volume.gives_room();
    let live = open(case, &volume, folder, Durability::Always).unwrap();
    let ids: Vec<u64> = (500..510).collect();
    live.insert(&rows(&ids, 1), Some(&ids), &Silent).unwrap();
    drop(live);
    (volume, (0..BASE).chain(ids).collect())
}

fn holds(case: Case, volume: &SimVolume, folder: &Path, ids: &[u64], at: &str) {
    let live = open(case, volume, folder, Durability::Always)
        .unwrap_or_else(|error| panic!("{case:?}, {at}: {error}"));
    let found: Vec<u64> = contents(&live).into_keys().collect();
    assert_eq!(found, ids, "{case:?}, {at}");
    drop(live);
    let report = verify_in(volume, &Silent).unwrap();
    assert!(report.clean(), "{case:?}, {at}: {:?}", report.problems);
}

#[test]
fn deletes_go_on_when_the_disk_is_full() {
    for case in WAYS {
        let folder = tempfile::tempdir().unwrap();
        let (volume, mut ids) = with_room(case, folder.path());
        let open = || open(case, &volume, folder.path(), Durability::Always);
        volume.fail_after(0, Failure::NoSpace);
        for round in 0..4 {
            let live = open().unwrap_or_else(|error| panic!("{case:?}, {round}: {error}"));
            let gone = [ids.remove(0), ids.pop().unwrap()];
            live.delete(&gone)
                .unwrap_or_else(|error| panic!("{case:?}, {round}: {error}"));
            let one = [900 + round];
            let refused = live.insert(&rows(&one, 1), Some(&one), &Silent);
            let refused = refused.unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::NoSpace, "{case:?}: {refused}");
            let set = RowTable::new(vec![row(7, 1)]);
            let refused = live.set_attributes(&[7], &set, &Silent).unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::NoSpace, "{case:?}: {refused}");
            live.delete(&[ids.remove(0)]).unwrap();
        }
        holds(case, &volume.fork(), folder.path(), &ids, "full");
        volume.heal();
        let live = open().unwrap();
        live.insert(&rows(&[900], 1), Some(&[900]), &Silent)
            .unwrap();
        ids.push(900);
        assert!(live.stats().room_bytes >= room_for_deletes(0), "{case:?}");
        drop(live);
        holds(case, &volume, folder.path(), &ids, "healed");
    }
}

#[test]
fn rows_wait_until_room_for_deletes_is_kept_again() {
    let (case, folder) = (PACKED, tempfile::tempdir().unwrap());
    let (volume, _) = with_room(case, folder.path());
    let live = open(case, &volume, folder.path(), Durability::Always).unwrap();
    volume.fail_after(0, Failure::NoSpace);
    live.delete(&[3]).unwrap();
    let error = live
        .insert(&rows(&[900], 1), Some(&[900]), &Silent)
        .unwrap_err();
    assert!(error.to_string().contains("log.room"), "{error}");
    assert_eq!(
        live.stats().room_bytes,
        8 << 10,
        "the reserve is not the one of the manifest"
    );
    volume.heal();
    live.insert(&rows(&[900], 1), Some(&[900]), &Silent)
        .unwrap();
    assert!(live.stats().room_bytes > room_for_deletes(0));
}

#[test]
fn a_delete_for_which_no_room_is_left_leaves_the_index_as_it_was() {
    let (case, folder) = (
        Case(Layout::Packed, Update::Merge),
        tempfile::tempdir().unwrap(),
    );
    let volume = base(case, folder.path());
    volume.gives_room();
    let live = open(case, &volume, folder.path(), Durability::Always).unwrap();
    // The index had few vectors when it was opened, so it has reserved blocks for a thousand
    // deletes.
    let came: Vec<u64> = (1_000..3_000).collect();
    live.insert(&rows(&came, 1), Some(&came), &Silent).unwrap();
    volume.fail_after(0, Failure::NoSpace);
    let mut left = came.chunks(100);
    let mut gone = 0;
    let error = loop {
        match live.delete(left.next().unwrap()) {
            Ok(()) => gone += 100,
            Err(error) => break error,
        }
    };
    assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
    assert!((1_000..1_200).contains(&gone), "{gone}");
    drop(live);
    volume.heal();
    let there: Vec<u64> = (0..BASE).chain(1_000 + gone..3_000).collect();
    holds(case, &volume, folder.path(), &there, "used up");
}

#[test]
fn room_that_is_taken_survives_what_happens_meanwhile() {
    for case in [PACKED, Case(Layout::Replicated, Update::Rebalance)] {
        let folder = tempfile::tempdir().unwrap();
        let (start, ids) = with_room(case, folder.path());
        let deletes = |volume: &SimVolume| {
            let mut gone = Vec::new();
            volume.fail_after(0, Failure::NoSpace);
            let live = open(case, volume, folder.path(), Durability::Always)?;
            for id in [3, 500, 4] {
                if live.delete(&[id]).is_ok() {
                    gone.push(id);
                }
            }
            Ok::<_, Error>(gone)
        };
        let whole = start.fork();
        let before = whole.calls();
        assert_eq!(deletes(&whole).unwrap(), [3, 500, 4], "{case:?}");
        let calls = whole.calls() - before;
        for call in (0..calls).step_by(step(7)) {
            for mishap in [Mishap::Undone, Mishap::Done, Mishap::NoRoom] {
                let volume = start.fork();
                volume.fail_call(call, mishap);
                let gone = deletes(&volume).unwrap_or_default();
                for mode in Crash::ALL {
                    let image = volume.crash_image(call, mode);
                    let at = format!("{case:?}, call {call}, {mishap:?}, {mode:?}");
                    let live = open(case, &image, folder.path(), Durability::Always)
                        .unwrap_or_else(|error| panic!("{at}: {error}"));
                    let found: Vec<u64> = contents(&live).into_keys().collect();
                    for id in &ids {
                        let is_free = [3, 500, 4].contains(id);
                        let is_there = found.contains(id);
                        assert!(!gone.contains(id) || !is_there, "{at}: {id} is back");
                        assert!(is_free || is_there, "{at}: {id} is lost");
                    }
                    drop(live);
                    let report = verify_in(&image, &Silent).unwrap();
                    assert!(report.clean(), "{at}: {:?}", report.problems);
                }
            }
        }
    }
}

#[test]
fn an_insert_is_forgotten_on_a_full_disk() {
    let (case, folder) = (PACKED, tempfile::tempdir().unwrap());
    let (volume, _) = with_room(case, folder.path());
    let live = open(case, &volume, folder.path(), Durability::Always).unwrap();
    let names = ["first", "second"];
    for (number, name) in names.into_iter().enumerate() {
        let ids: Vec<u64> = (0..600)
            .map(|id| 10_000 * (number as u64 + 1) + id)
            .collect();
        volume.fail_after(20, Failure::NoSpace);
        let bytes: Vec<u8> = ids.iter().flat_map(|&id| vector(id, 1)).collect();
        let named = MatrixRef::new(&bytes, ids.len(), DIM, Element::U8).unwrap();
        live.insert_resumable(&named.named(name), None, None, CutOff::Refuse, &Silent)
            .unwrap_err();
        volume.heal();
    }
    assert_eq!(live.cut_off_inserts().len(), 2);
    volume.fail_after(0, Failure::NoSpace);
    for name in names {
        assert_eq!(live.forget_cut_off(name).unwrap().len(), 1);
    }
    drop(live);
    let live = open(case, &volume, folder.path(), Durability::Always).unwrap();
    assert!(live.cut_off_inserts().is_empty());
}
