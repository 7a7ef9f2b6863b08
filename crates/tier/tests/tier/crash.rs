//! Tests of the simulated volume itself.

use std::collections::BTreeSet;

use stratann_tier::testing::{Crash, Failure, SimVolume};
use stratann_tier::{TierError, Volume, VolumeFile};

const SEEDS: u64 = 60;

fn written(name: &str, bytes: &[u8]) -> (SimVolume, Box<dyn VolumeFile>) {
    let volume = SimVolume::new();
    let mut file = volume.create(name).unwrap();
    file.write_at(0, bytes).unwrap();
    file.sync().unwrap();
    volume.sync().unwrap();
    (volume, file)
}

#[test]
fn what_was_synced_survives_every_crash() {
    let (volume, mut file) = written("a", &[1; 10_000]);
    file.write_at(20_000, &[2; 5_000]).unwrap();
    for mode in Crash::ALL {
        for seed in 0..SEEDS {
            let image = volume.crash_image(seed, mode);
            assert_eq!(image.list().unwrap(), ["a"]);
            assert_eq!(image.read("a").unwrap()[..10_000], [1; 10_000]);
        }
    }
}

#[test]
fn dropped_writes_are_gone_and_torn_ones_end_at_a_sector() {
    let (volume, mut file) = written("a", &[1; 1000]);
    file.write_at(1000, &[2; 100]).unwrap();
    file.write_at(700, &[3; 3000]).unwrap();
    let mut ends = BTreeSet::new();
    for seed in 0..SEEDS {
        assert_eq!(
            volume.crash_image(seed, Crash::Dropped).read("a").unwrap(),
            [1; 1000]
        );
        let bytes = volume.crash_image(seed, Crash::Torn).read("a").unwrap();
        let new = bytes
            .iter()
            .skip(700)
            .take_while(|&&byte| byte == 3)
            .count();
        assert!(
            new == 0 || (700 + new) % 512 == 0,
            "torn at byte {}",
            700 + new
        );
        ends.insert((new, bytes.len()));
        let rest = &bytes[700 + new..];
        let right: Vec<u8> = (700 + new..)
            .map(|at| {
                if at < 1000 {
                    1
                } else if at < 1100 {
                    2
                } else {
                    0
                }
            })
            .take(rest.len())
            .collect();
        assert_eq!(
            rest, right,
            "the bytes after the tear are not the old bytes"
        );
    }
    assert!(
        ends.len() > 8,
        "the writes end at too few different bytes: {ends:?}"
    );
}

#[test]
fn reordered_writes_survive_in_any_combination() {
    let (volume, mut file) = written("a", &[0; 30]);
    for i in 0..3u8 {
        file.write_at(u64::from(i) * 10, &[i + 1; 10]).unwrap();
    }
    let mut seen = BTreeSet::new();
    for seed in 0..200 {
        let bytes = volume
            .crash_image(seed, Crash::Reordered)
            .read("a")
            .unwrap();
        assert_eq!(bytes.len(), 30);
        seen.insert([bytes[0], bytes[10], bytes[20]]);
    }
    assert_eq!(seen.len(), 8, "{seen:?}");
    let (volume, mut file) = written("b", &[0; 40_960]);
    file.write_at(0, &[1; 40_960]).unwrap();
    let parts: BTreeSet<usize> = (0..200)
        .map(|seed| {
            volume
                .crash_image(seed, Crash::Reordered)
                .read("b")
                .unwrap()
                .iter()
                .filter(|&&b| b == 1)
                .count()
        })
        .collect();
    assert!(
        parts.len() > 5 && parts.iter().all(|part| part % 4096 == 0),
        "{parts:?}"
    );
}

#[test]
fn names_need_a_sync_of_their_own() {
    let (volume, _file) = written("a", b"old");
    let mut new = volume.create("b").unwrap();
    new.append(b"new").unwrap();
    new.sync().unwrap();
    volume.rename("b", "a").unwrap();
    for mode in Crash::ALL {
        let mut seen = BTreeSet::new();
        for seed in 0..SEEDS {
            let bytes = volume.crash_image(seed, mode).read("a").unwrap();
            seen.insert(bytes);
        }
        if mode != Crash::Torn {
            assert_eq!(
                seen,
                BTreeSet::from([b"old".to_vec(), b"new".to_vec()]),
                "{mode:?}: not both contents, old and new, are possible"
            );
        }
    }
    volume.sync().unwrap();
    volume.remove("a").unwrap();
    let survives = (0..SEEDS)
        .filter(|&seed| {
            volume
                .crash_image(seed, Crash::Dropped)
                .exists("a")
                .unwrap()
        })
        .count();
    assert!(
        survives > 0 && survives < SEEDS as usize,
        "{survives} of {SEEDS} crashes lost the removal; some must lose it and some must keep it"
    );
}

/// The crash images must reveal a rename of a file before its bytes are synced.
#[test]
fn a_rename_of_unsynced_bytes_is_found_out() {
    let (volume, _file) = written("a", b"old");
    let mut new = volume.create("b").unwrap();
    new.append(b"new").unwrap();
    volume.rename("b", "a").unwrap();
    volume.sync().unwrap();
    let bad = (0..SEEDS)
        .filter(|&seed| {
            volume
                .crash_image(seed, Crash::Dropped)
                .read("a")
                .unwrap()
                .is_empty()
        })
        .count();
    assert_eq!(bad, SEEDS as usize);
}

/// The protocol of a manifest: write a new file, sync it, rename it, sync the directory.
fn replace(volume: &dyn Volume, version: u8) -> Result<(), TierError> {
    let mut file = volume.create("MANIFEST.new")?;
    file.write_at(0, &[version; 3000])?;
    file.write_at(3000, &[version; 3000])?;
    file.sync()?;
    volume.rename("MANIFEST.new", "MANIFEST")?;
    volume.sync()
}

#[test]
fn a_crash_at_every_operation_leaves_the_old_or_the_new() {
    let whole = {
        let volume = SimVolume::new();
        for version in 1..=4 {
            replace(&volume, version).unwrap();
        }
        volume.operations()
    };
    assert_eq!(whole, 4 * 6);
    let mut images = 0;
    for after in 0..whole {
        let volume = SimVolume::new();
        volume.fail_after(after, Failure::Crash);
        let mut acknowledged = 0;
        let error = (1..=4)
            .find_map(|version| match replace(&volume, version) {
                Ok(()) => {
                    acknowledged = version;
                    None
                }
                Err(error) => Some(error),
            })
            .unwrap();
        assert!(matches!(error, TierError::Crashed { .. }), "{error}");
        assert!(volume.has_crashed() && volume.read("MANIFEST").is_err() && volume.list().is_err());
        assert_eq!(volume.operations(), after + 1);
        for mode in Crash::ALL {
            for seed in 0..20 {
                let image = volume.crash_image(seed, mode);
                match image.read("MANIFEST") {
                    Ok(bytes) => {
                        assert!(
                            bytes.len() == 6000 && bytes.iter().all(|b| *b == bytes[0]),
                            "after {after}, {mode:?}"
                        );
                        assert!(
                            bytes[0] >= acknowledged,
                            "after {after}: an acknowledged version was lost"
                        );
                        assert!(bytes[0] <= acknowledged + 1);
                    }
                    Err(_) => assert_eq!(acknowledged, 0, "after {after}, {mode:?}, seed {seed}"),
                }
                replace(&image, 9).unwrap();
                images += 1;
            }
        }
    }
    assert_eq!(images, whole * 60);
}

#[test]
fn errors_without_a_crash_can_be_recovered_from() {
    let (volume, mut file) = written("a", &[1; 4096]);
    volume.fail_after(1, Failure::NoSpace);
    file.write_at(0, &[2; 4096]).unwrap();
    let error = file.write_at(4096, &[3; 4096]).unwrap_err();
    assert!(
        matches!(
            error,
            TierError::NoSpace {
                offset: 4096,
                len: 4096,
                ..
            }
        ),
        "{error}"
    );
    assert!(
        error.to_string().contains("while writing 4096 bytes"),
        "{error}"
    );
    assert_eq!(
        file.len(),
        4096 + 2048,
        "the write did not fill the device to its end"
    );
    assert!(matches!(
        volume.create("b").unwrap_err(),
        TierError::NoSpace { .. }
    ));
    file.set_len(4096).unwrap();
    file.sync().unwrap();
    volume.rename("a", "c").unwrap();
    volume.heal();
    file.write_at(4096, &[3; 4096]).unwrap();

    volume.fail_after(0, Failure::Io);
    let answers = [
        file.write_at(0, &[4]).err(),
        file.sync().err(),
        volume.sync().err(),
        volume.remove("c").err(),
    ];
    for answer in answers {
        assert!(
            matches!(&answer, Some(TierError::Io { source, .. }) if source.raw_os_error() == Some(5)),
            "{answer:?}"
        );
    }
    assert_eq!(
        volume.read("c").unwrap().len(),
        8192,
        "a read returned other bytes"
    );
    volume.heal();
    volume.sync().unwrap();

    let copy = volume.fork();
    volume.remove("c").unwrap();
    assert!(
        copy.exists("c").unwrap(),
        "a removal in the original changed the fork"
    );
    volume.fail_after(0, Failure::Crash);
    assert!(volume.sync().is_err());
    volume.heal();
    assert!(
        volume.has_crashed(),
        "the machine works again without a crash image"
    );
}

#[test]
fn any_one_operation_fails_once_and_is_counted() {
    use stratann_tier::testing::{Mishap, Operation};
    let work = |volume: &SimVolume| -> Vec<bool> {
        let mut file = None;
        vec![
            volume.create("a").map(|new| file = Some(new)).is_ok(),
            file.as_mut()
                .is_some_and(|f| f.write_at(0, &[7; 4096]).is_ok()),
            file.as_mut().is_some_and(|f| f.sync().is_ok()),
            volume.sync().is_ok(),
            volume.list().is_ok(),
            volume.exists("a").is_ok(),
            volume.read("a").is_ok(),
            volume.lock().is_ok(),
            volume.open_tier("a").is_ok(),
            volume.rename("a", "b").is_ok(),
            volume.open("b").is_ok(),
            volume.remove("b").is_ok(),
        ]
    };
    let whole = SimVolume::new();
    assert!(work(&whole).into_iter().all(|ok| ok));
    let calls = whole.calls();
    assert_eq!(calls, 12);
    for mishap in Mishap::ALL {
        for n in 0..calls {
            let volume = SimVolume::new();
            volume.fail_call(n, mishap);
            let done = work(&volume);
            assert_eq!(
                done.iter().position(|ok| !ok),
                Some(n as usize),
                "{mishap:?}"
            );
            assert!(volume.failed().is_some(), "{mishap:?} {n}");
        }
        let volume = SimVolume::new();
        volume.fail_call(calls, mishap);
        assert!(work(&volume).into_iter().all(|ok| ok));
        assert_eq!(volume.failed(), None);
    }
    let volume = SimVolume::new();
    volume.fail_nth(Operation::Rename, 0, Mishap::Done);
    assert_eq!(work(&volume).iter().filter(|ok| !**ok).count(), 1);
    assert!(volume.list().unwrap().is_empty(), "renamed nevertheless");
    assert_eq!(volume.failed(), Some((Operation::Rename, "a".to_owned())));
}

#[test]
fn a_failed_sync_discards_what_it_was_to_keep_where_it_is_told_to() {
    use stratann_tier::testing::{Mishap, Operation};
    for discards in [false, true] {
        let (volume, mut file) = written("a", b"old");
        volume.discard_failed_syncs(discards, discards);
        file.write_at(0, b"new").unwrap();
        volume.create("b").unwrap();
        volume.fail_nth(Operation::Sync, 0, Mishap::Undone);
        file.sync().unwrap_err();
        volume.fail_nth(Operation::SyncNames, 0, Mishap::Undone);
        volume.sync().unwrap_err();
        file.sync().unwrap();
        volume.sync().unwrap();
        assert_eq!(
            volume.read("a").unwrap(),
            b"new",
            "a read does not return the written bytes"
        );
        for mode in Crash::ALL {
            let image = volume.crash_image(0, mode);
            let right: &[u8] = if discards { b"old" } else { b"new" };
            assert_eq!(image.read("a").unwrap(), right);
            assert_eq!(image.exists("b").unwrap(), !discards);
        }
    }
}
