//! Tests of several volumes joined as one.

use std::sync::Arc;

use stratann_tier::testing::SplitVolume;
use stratann_tier::testing::{Crash, Failure, Mishap, Operation, SimVolume};
use stratann_tier::{TierError, Volume};

fn join(disks: &[SimVolume]) -> Arc<dyn Volume> {
    let disk = |n: usize| -> Arc<dyn Volume> { Arc::new(disks[n].clone()) };
    of(disk(0), disk(1), disk(2))
}

fn of(home: Arc<dyn Volume>, one: Arc<dyn Volume>, two: Arc<dyn Volume>) -> Arc<dyn Volume> {
    let route = |name: &str| match name.split_once('-')?.0 {
        "one" => Some(0),
        "two" => Some(1),
        _ => None,
    };
    Arc::new(SplitVolume::new(home, vec![one, two], Box::new(route)))
}

#[test]
fn each_file_is_where_its_name_says() {
    let [home, one, two] = [(); 3].map(|()| SimVolume::new());
    let arc = |volume: &SimVolume| -> Arc<dyn Volume> { Arc::new(volume.clone()) };
    let whole = of(arc(&home), arc(&one), arc(&two));
    for name in ["one-1", "two-1", "three-1", "MANIFEST.new", "one"] {
        whole.create(name).unwrap().append(name.as_bytes()).unwrap();
        assert_eq!(whole.read(name).unwrap(), name.as_bytes());
        assert_eq!(whole.len(name).unwrap(), name.len() as u64);
    }
    whole.rename("MANIFEST.new", "MANIFEST").unwrap();
    whole.rename("one-1", "one-2").unwrap();
    let error = whole.rename("one-2", "two-2").unwrap_err();
    assert!(error.to_string().contains("different volumes"), "{error}");
    assert_eq!(home.list().unwrap(), ["MANIFEST", "one", "three-1"]);
    assert_eq!(one.list().unwrap(), ["one-2"]);
    assert_eq!(two.list().unwrap(), ["two-1"]);
    home.create("one-3").unwrap();
    assert!(!whole.exists("one-3").unwrap());
    let names = ["MANIFEST", "one", "one-2", "three-1", "two-1"];
    assert_eq!(whole.list().unwrap(), names);
    for name in names {
        whole.remove(name).unwrap();
    }
    assert!(whole.list().unwrap().is_empty() && two.list().unwrap().is_empty());
}

#[test]
fn a_name_at_home_is_durable_behind_those_that_were_made_before_it() {
    let commit = |volume: &dyn Volume| -> Result<(), TierError> {
        let _lock = volume.lock()?;
        for version in 1..4u8 {
            for name in ["one", "two"] {
                let mut file = volume.create(&format!("{name}-{version}"))?;
                file.append(&[version; 100])?;
                file.sync()?;
            }
            let mut file = volume.create("MANIFEST.new")?;
            file.append(&[version; 10])?;
            file.sync()?;
            volume.sync()?;
            volume.rename("MANIFEST.new", "MANIFEST")?;
            volume.sync()?;
            for name in ["one", "two"].map(|name| format!("{name}-{}", version - 1)) {
                if volume.exists(&name)? {
                    volume.remove(&name)?;
                }
            }
        }
        Ok(())
    };
    let check = |volume: &SimVolume, seeds: u64, what: &str| {
        for (seed, mode) in (0..seeds).flat_map(|seed| Crash::ALL.map(|mode| (seed, mode))) {
            let image = volume.crash_image(seed, mode);
            let Ok(manifest) = image.read("MANIFEST") else {
                continue;
            };
            assert_eq!(manifest.len(), 10, "{what}, {mode:?}, {seed}");
            for name in ["one", "two"] {
                let file = image.read(&format!("{name}-{}", manifest[0]));
                let file = file.unwrap_or_else(|error| panic!("{what}, {mode:?}, {seed}: {error}"));
                assert_eq!(file, [manifest[0]; 100], "{what}, {mode:?}, {seed}");
            }
            commit(&image).unwrap_or_else(|error| panic!("{what}, {mode:?}, {seed}: {error}"));
        }
    };
    let whole = SimVolume::joined(3, join);
    commit(&whole).unwrap();
    for at in 0..whole.operations() {
        let volume = SimVolume::joined(3, join);
        volume.fail_after(at, Failure::Crash);
        commit(&volume).unwrap_err();
        check(&volume, 10, &format!("operation {at}"));
    }
    for discards in [false, true] {
        // The marks take three syncs, and each sync of the combined volume takes three syncs.
        for at in 0..3 + 3 * 6 {
            let volume = SimVolume::joined(3, join);
            volume.discard_failed_syncs(discards, discards);
            volume.fail_nth(Operation::SyncNames, at, Mishap::Undone);
            commit(&volume).unwrap_err();
            assert!(volume.failed().is_some(), "sync {at}");
            check(&volume, 10, &format!("sync {at}, discards: {discards}"));
        }
    }
}

#[test]
fn disks_crash_at_once_and_apart() {
    let machine = SimVolume::joined(3, join);
    let names = ["MANIFEST", "one-1", "two-1"];
    for name in names {
        let mut file = machine.create(name).unwrap();
        file.append(&[0; 100]).unwrap();
        file.sync().unwrap();
    }
    machine.sync().unwrap();
    for name in names {
        machine.open(name).unwrap().write_at(0, &[1; 100]).unwrap();
    }
    let mut seen = std::collections::BTreeSet::new();
    for (seed, mode) in (0..100).flat_map(|seed| Crash::ALL.map(|mode| (seed, mode))) {
        let image = machine.crash_image(seed, mode);
        seen.insert(names.map(|name| image.read(name).unwrap()[0]));
    }
    assert_eq!(seen.len(), 8, "{seen:?}");
    machine.fail_after(0, Failure::Crash);
    machine.create("one-2").unwrap_err();
    for name in names {
        assert!(matches!(machine.read(name), Err(TierError::Crashed { .. })));
    }
}

#[test]
fn a_volume_belongs_to_one_index() {
    let arc = |volume: &SimVolume| -> Arc<dyn Volume> { Arc::new(volume.clone()) };
    let new = || arc(&SimVolume::new());
    let (home, one, two) = (new(), new(), new());
    let first = of(home.clone(), one.clone(), two.clone());
    {
        let _lock = first.lock().unwrap();
        assert!(matches!(one.lock(), Err(TierError::InUse { .. })));
        assert!(matches!(first.lock(), Err(TierError::InUse { .. })));
        assert!(
            first.list().unwrap().is_empty(),
            "the mark is in the list of files"
        );
    }
    drop(first.lock().unwrap());
    let taken = |home: &Arc<dyn Volume>, one: &Arc<dyn Volume>, two: &Arc<dyn Volume>| {
        let refused = of(home.clone(), one.clone(), two.clone()).lock();
        let error = refused.unwrap_err();
        assert!(matches!(error, TierError::Taken { .. }), "{error}");
    };
    taken(&new(), &one, &new());
    taken(&new(), &home, &new());
    taken(&one, &new(), &new());
    let full = new();
    full.create("one-1").unwrap();
    taken(&home, &full, &two);
    let torn = new();
    torn.create("OWNER")
        .unwrap()
        .append(b"STRATANN OW")
        .unwrap();
    drop(of(home, torn, two).lock().unwrap());
    drop(first.lock().unwrap());
}

#[test]
fn a_home_that_lost_its_mark_gets_it_back_and_a_refusal_writes_none() {
    let disks = [(); 3].map(|()| SimVolume::new());
    let whole = join(&disks);
    drop(whole.lock().unwrap());
    whole.create("MANIFEST").unwrap();
    let mark = disks[0].read("OWNER").unwrap();
    disks[0].create("OWNER").unwrap();
    drop(whole.lock().unwrap());
    assert_eq!(disks[0].read("OWNER").unwrap(), mark);
    let others = [SimVolume::new(), SimVolume::new(), disks[1].clone()];
    let error = join(&others).lock().unwrap_err();
    assert!(error.to_string().contains("another index"), "{error}");
    assert!(others[0].list().unwrap().is_empty() && others[1].list().unwrap().is_empty());
    drop(whole.lock().unwrap());
}
