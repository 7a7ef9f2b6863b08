//! Tests of real directories, and of the counters of a meter.

use std::fs;
use std::sync::Arc;

use stratann_tier::testing::{Fault, Faults, Faulty, Meter, Reading, SimVolume};
use stratann_tier::{
    Directory, DramTier, IoMode, MappedTier, Owned, ReadQueue, Request, Thread, Tier, TierError,
    Volume, copy_of, next, own,
};

#[test]
fn a_directory_in_use_is_refused_and_says_what_to_do() {
    let root = tempfile::tempdir().unwrap();
    let path = root.path().join("a/b");
    let first = Directory::create(&path).unwrap();
    let again = Directory::create(&path).unwrap();
    let guard = first.lock().unwrap();
    let error = again.lock().unwrap_err();
    let text = error.to_string();
    assert!(matches!(error, TierError::InUse { .. }));
    assert!(
        text.contains(&path.display().to_string())
            && text.contains("wait")
            && text.contains("LOCK"),
        "{text}"
    );
    let process = std::process::id();
    let own = format!(
        "another handle of this process ({process}), or the process {process} of another container,"
    );
    assert!(text.contains(&own), "{text}");
    first.held_as("the storage of servers", "Change it through them");
    again.held_as("nobody", "Nothing");
    let text = again.lock().unwrap_err().to_string();
    let told = format!("{own} has it open for changes, as the storage of servers. Change");
    assert!(
        text.contains(&told) && text.contains(". Change it through them. The lock"),
        "{text}"
    );
    // Another process may have ended, or run on another host.
    let elsewhere = format!("{process} far-away\na server\n\n");
    let same_number = format!(
        "process {process} of host far-away, if it still runs, has it open for changes, as a server. "
    );
    let lock = path.join("LOCK");
    for (written, told) in [
        (&*elsewhere, &*same_number),
        (
            "4711\n\n\n",
            "process 4711, if it still runs, has it open for changes. ",
        ),
        (
            "4711 \u{7}\na \u{7}bell\n\n",
            "process 4711, if it still runs, has it open for changes. ",
        ),
        (
            "x\n",
            "another process, or another handle of this process, has it",
        ),
        (
            "",
            "another process, or another handle of this process, has it",
        ),
    ] {
        fs::write(&lock, written).unwrap();
        let text = again.lock().unwrap_err().to_string();
        assert!(text.contains(told) && text.contains("wait"), "{text}");
    }
    assert!(again.list().unwrap().is_empty());
    drop(guard);
    assert_eq!(fs::read(&lock).unwrap(), b"");
    let _guard = again.lock().unwrap();
    let text = first.lock().unwrap_err().to_string();
    assert!(text.contains(&own), "{text}");
}

#[test]
fn what_is_no_directory_is_named() {
    let root = tempfile::tempdir().unwrap();
    let missing = root.path().join("missing");
    let error = Directory::open(&missing).unwrap_err();
    assert!(
        matches!(&error, TierError::Missing { place, .. } if place.ends_with("missing")),
        "{error}"
    );
    let file = root.path().join("file");
    fs::write(&file, "x").unwrap();
    assert!(
        Directory::open(&file)
            .unwrap_err()
            .to_string()
            .contains("file")
    );
    assert!(Directory::create(&file).is_err());
    assert!(MappedTier::open(&missing).is_err());
}

#[test]
fn only_files_are_listed() {
    let root = tempfile::tempdir().unwrap();
    fs::create_dir(root.path().join("sub")).unwrap();
    fs::write(root.path().join("z"), "").unwrap();
    fs::write(root.path().join("LOCK"), "").unwrap();
    assert_eq!(Directory::open(root.path()).unwrap().list().unwrap(), ["z"]);
}

#[test]
fn a_full_device_is_reported_with_the_remedy() {
    // This device is always full. Some sandboxes do not have it.
    let Ok(full) = fs::OpenOptions::new().write(true).open("/dev/full") else {
        return;
    };
    let error = std::os::unix::fs::FileExt::write_all_at(&full, &[0; 10], 0).unwrap_err();
    let error = TierError::io("write", "/x/graph", 4096, 10, error);
    assert!(matches!(error, TierError::NoSpace { .. }));
    assert!(
        error.to_string().contains("/x/graph")
            && error.to_string().contains("while writing 10 bytes"),
        "{error}"
    );
    let denied = TierError::io(
        "open",
        "/x",
        0,
        0,
        std::io::Error::from_raw_os_error(libc::EACCES),
    );
    assert!(
        denied.to_string().contains("permission denied to open"),
        "{denied}"
    );
    assert_eq!(denied.place(), "/x");
}

#[test]
fn a_meter_counts_reads_bytes_errors_and_time() {
    let inner = Faulty::new(
        Arc::new(DramTier::new(vec![0u8; 4096])),
        Faults::none().at_read(2, Fault::Error(5)),
    );
    let meter = Meter::timed(Arc::new(inner));
    let thread = Thread::local(IoMode::Pread).unwrap();
    let mut queue = meter.queue(&thread).unwrap();
    let begun = std::time::Instant::now();
    for tag in 0..4 {
        queue
            .submit(Request {
                tag,
                offset: 0,
                len: 100,
            })
            .unwrap();
    }
    assert!(
        queue
            .submit(Request {
                tag: 9,
                offset: 4000,
                len: 97
            })
            .is_err(),
        "an invalid read was accepted"
    );
    std::thread::sleep(std::time::Duration::from_millis(5));
    thread.block_on(async {
        while queue.in_flight() > 0 {
            let _ = next(queue.as_mut()).await;
        }
    });
    let reading = meter.snapshot();
    assert_eq!((reading.reads, reading.bytes, reading.errors), (4, 400, 1));
    let (least, most) = (std::time::Duration::from_millis(20), 4 * begun.elapsed());
    assert!(
        (least..=most).contains(&reading.in_flight),
        "four reads of 5 ms are 20 ms, and {most:?} at most; counted {:?}",
        reading.in_flight
    );
    assert_eq!(meter.reset(), reading);
    assert_eq!(meter.snapshot(), Reading::default());
}

#[test]
fn nothing_is_written_through_a_link() {
    let root = tempfile::tempdir().unwrap();
    let victim = root.path().join("victim");
    fs::write(&victim, "precious").unwrap();
    let volume = Directory::create(root.path().join("i")).unwrap();
    let entry = |name: &str| root.path().join("i").join(name);
    for name in ["MANIFEST.new", "graph-000001"] {
        std::os::unix::fs::symlink(&victim, entry(name)).unwrap();
        for opened in [volume.open(name), volume.open_pages(name)] {
            let error = opened.unwrap_err();
            assert!(
                matches!(&error, TierError::NotPlain { found, .. } if found.contains("link")),
                "{error}"
            );
        }
        assert_eq!(volume.read(name).unwrap(), b"precious");
        assert_eq!(volume.list().unwrap(), [name]);
        let mut file = volume.create(name).unwrap();
        file.append(b"new").unwrap();
        assert_eq!(fs::read(&victim).unwrap(), b"precious");
        assert_eq!(volume.read(name).unwrap(), b"new");
        volume.remove(name).unwrap();
    }
    fs::hard_link(&victim, entry("log-000001")).unwrap();
    for opened in [volume.open("log-000001"), volume.open_pages("log-000001")] {
        let error = opened.unwrap_err();
        assert!(error.to_string().contains("hard links"), "{error}");
    }
    drop(volume.create("log-000001").unwrap());
    std::os::unix::fs::symlink(&victim, entry("LOCK")).unwrap();
    let error = volume.lock().unwrap_err();
    assert!(matches!(error, TierError::NotPlain { .. }), "{error}");
    assert_eq!(fs::read(&victim).unwrap(), b"precious");
    let pipe = std::ffi::CString::new(entry("pipe").to_str().unwrap()).unwrap();
    // SAFETY: the path is a C string.
    assert_eq!(unsafe { libc::mkfifo(pipe.as_ptr(), 0o600) }, 0);
    assert!(volume.read("pipe").is_err() && volume.open("pipe").is_err());
    assert!(volume.open_tier("pipe").is_err() && volume.len("pipe").is_err());
}

#[test]
fn a_file_with_other_names_is_copied_before_it_is_written_to() {
    let root = tempfile::tempdir().unwrap();
    let path = root.path().join("i");
    let volume = Directory::create(&path).unwrap();
    let bytes: Vec<u8> = (0..3_000_000u32).map(|n| (n % 251) as u8).collect();
    volume.create("pages").unwrap().append(&bytes).unwrap();
    let mut silent = |_| true;
    assert_eq!(own(&volume, "pages", &mut silent).unwrap(), Owned::Before);
    let guard = volume.lock().unwrap();
    drop(guard);
    let backup = root.path().join("backup");
    fs::create_dir(&backup).unwrap();
    for name in ["pages", "LOCK"] {
        fs::hard_link(path.join(name), backup.join(name)).unwrap();
    }
    let _guard = volume.lock().unwrap();
    let _other = Directory::open(&backup).unwrap().lock().unwrap();
    volume.check_held().unwrap();
    fs::write(path.join("pages.own"), b"a part").unwrap();
    assert!(volume.open("pages").is_err());
    let mut pieces = Vec::new();
    let given_up = own(&volume, "pages", &mut |bytes| {
        pieces.push(bytes);
        pieces.len() < 2
    });
    assert_eq!((given_up.unwrap(), pieces.len()), (Owned::GivenUp, 2));
    assert_eq!(volume.list().unwrap(), ["pages"]);
    assert!(volume.open("pages").is_err());
    let tier = volume.open_tier("pages").unwrap();
    let mut read = 0;
    let copied = own(&volume, "pages", &mut |bytes| {
        read += bytes;
        true
    });
    assert_eq!(copied.unwrap(), Owned::Copied);
    assert_eq!(read, bytes.len() as u64);
    assert_eq!(volume.list().unwrap(), ["pages"]);
    assert_eq!(volume.read("pages").unwrap(), bytes);
    volume
        .open("pages")
        .unwrap()
        .write_at(0, b"changed")
        .unwrap();
    assert_eq!(&volume.read("pages").unwrap()[..7], b"changed");
    assert_eq!(fs::read(backup.join("pages")).unwrap(), bytes);
    assert_eq!(own(&volume, "pages", &mut silent).unwrap(), Owned::Before);
    assert!(own(&volume, "none", &mut silent).is_err());
    let thread = Thread::local(IoMode::Auto).unwrap();
    let mut queue = tier.queue(&thread).unwrap();
    let request = Request {
        tag: 0,
        offset: 0,
        len: 4096,
    };
    let first = |queue: &mut Box<dyn ReadQueue>| {
        queue.submit(request).unwrap();
        let read = thread.block_on(next(&mut **queue));
        read.result.unwrap()[..7].to_vec()
    };
    assert_eq!(first(&mut queue), bytes[..7]);
    tier.reopen().unwrap();
    assert_eq!(first(&mut queue), b"changed");
    assert_eq!(copy_of("pages.own"), Some("pages"));
}

#[test]
fn a_handle_never_touches_what_has_taken_its_place() {
    let root = tempfile::tempdir().unwrap();
    let path = root.path().join("i");
    let old = Directory::create(&path).unwrap();
    old.create("a").unwrap().append(b"old").unwrap();
    let tier = old.open_tier("a").unwrap();
    let guard = old.lock().unwrap();
    old.check_held().unwrap();
    old.check_path(&path).unwrap();
    fs::remove_dir_all(&path).unwrap();
    let new = Directory::create(&path).unwrap();
    new.create("a").unwrap().append(b"new").unwrap();
    let lock = new.lock().unwrap();
    let changes = [
        old.create("b").err(),
        old.create("a").err(),
        old.open("a").err(),
        old.remove("a").err(),
        old.rename("a", "b").err(),
        old.check_path(&path).err(),
    ];
    for (number, change) in changes.into_iter().enumerate() {
        assert!(
            matches!(&change, Some(TierError::Replaced { place, .. }) if *place == path.display().to_string()),
            "change {number}: {change:?}"
        );
    }
    assert!(old.read("a").is_err() && !old.exists("a").unwrap());
    assert_eq!(tier.len(), 3, "the open file cannot be read");
    drop(guard);
    assert!(old.create("b").is_err());
    assert_eq!(new.list().unwrap(), ["a"]);
    assert_eq!(new.read("a").unwrap(), b"new");
    new.check_held().unwrap();
    drop(lock);
}

#[test]
fn a_lock_that_was_removed_is_lost() {
    let root = tempfile::tempdir().unwrap();
    let old = Directory::open(root.path()).unwrap();
    let guard = old.lock().unwrap();
    fs::remove_file(root.path().join("LOCK")).unwrap();
    let new = Directory::open(root.path()).unwrap();
    assert!(matches!(old.create("a"), Err(TierError::Replaced { .. })));
    let lock = new.lock().unwrap();
    assert!(matches!(old.create("a"), Err(TierError::Replaced { .. })));
    new.create("a").unwrap();
    drop(guard);
    assert!(new.note().is_some() && old.note().is_none());
    assert!(matches!(old.lock(), Err(TierError::InUse { .. })));
    drop(lock);
    drop(old.lock().unwrap());
}

/// A thread with the lock removes the lock file, as a failing build does, while others try to lock.
#[test]
fn a_lock_is_that_of_the_file_that_has_the_name() {
    use std::sync::atomic::{AtomicBool, Ordering};
    let root = tempfile::tempdir().unwrap();
    let inside = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                for _ in 0..2000 {
                    let volume = Directory::open(root.path()).unwrap();
                    let Ok(guard) = volume.lock() else { continue };
                    assert!(
                        !inside.swap(true, Ordering::SeqCst),
                        "two handles have the lock"
                    );
                    inside.store(false, Ordering::SeqCst);
                    volume.remove("LOCK").unwrap();
                    drop(guard);
                }
            });
        }
    });
}

#[test]
fn every_level_that_is_created_is_there() {
    let root = tempfile::tempdir().unwrap();
    let path = root.path().join("a/b/c");
    let volume = Directory::create(&path).unwrap();
    Directory::create(&path).unwrap().discard();
    assert!(
        path.is_dir(),
        "a handle discarded a folder that it had not made"
    );
    volume.create("x").unwrap();
    volume.clone().discard();
    assert!(path.is_dir(), "a folder with files was discarded");
    volume.remove("x").unwrap();
    volume.discard();
    assert!(!path.exists());
}

#[test]
fn a_file_shares_the_blocks_of_another_or_stays_as_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let directory = Directory::open(folder.path()).unwrap();
    let bytes: Vec<u8> = (0..3 * 4096 + 5).map(|at| (at % 251) as u8).collect();
    let mut original = directory.create("a").unwrap();
    original.write_at(0, &bytes).unwrap();
    let reader = directory.open_reader("a").unwrap();
    directory.remove("a").unwrap();
    let mut copy = directory.create("b").unwrap();
    let shared = copy.share(&*reader).unwrap();
    assert_eq!(copy.len(), if shared { bytes.len() as u64 } else { 0 });
    if shared {
        assert_eq!(directory.read("b").unwrap(), bytes);
        copy.write_at(0, b"new").unwrap();
        let mut first = [0; 3];
        reader.read_at(0, &mut first).unwrap();
        assert_eq!(first, bytes[..3]);
    }
    let volume = SimVolume::new();
    volume.create("a").unwrap().append(&bytes).unwrap();
    let reader = volume.open_reader("a").unwrap();
    assert!(!directory.create("c").unwrap().share(&*reader).unwrap());
}

fn kept(directory: &Directory, name: &str, bytes: u64) -> bool {
    let kept = directory.keep_room(name, bytes).unwrap();
    assert_eq!(
        directory.exists(name).unwrap(),
        kept,
        "a file exists although no bytes were reserved for it, or the reverse"
    );
    assert_eq!(directory.kept_room(name).unwrap() >= bytes, kept);
    kept
}

#[test]
fn room_is_kept_beyond_the_end_of_a_file_and_goes_with_its_name() {
    let root = tempfile::tempdir().unwrap();
    let directory = Directory::open(root.path()).unwrap();
    assert_eq!(directory.kept_room("room").unwrap(), 0);
    if !kept(&directory, "room", 64 << 10) {
        eprintln!("skipped: the file system of {root:?} supports no reservations");
        return;
    }
    assert_eq!(directory.len("room").unwrap(), 0);
    assert!(kept(&directory, "room", 64 << 10) && kept(&directory, "room", 96 << 10));
    let mut file = directory.open("room").unwrap();
    file.write_at(0, &[7; 5_000]).unwrap();
    file.sync().unwrap();
    directory.rename("room", "log").unwrap();
    assert_eq!(directory.len("log").unwrap(), 5_000);
    assert_eq!(directory.kept_room("log").unwrap(), 88 << 10);
    assert_eq!(directory.kept_room("room").unwrap(), 0);
    file.write_at(5_000, &[8; 60_000]).unwrap();
    file.set_len(5_000).unwrap();
    assert_eq!(directory.kept_room("log").unwrap(), 0);
}

#[test]
fn a_file_of_room_that_is_not_empty_or_has_other_names_is_replaced() {
    let root = tempfile::tempdir().unwrap();
    let directory = Directory::open(root.path()).unwrap();
    let (room, other) = (root.path().join("room"), root.path().join("other"));
    fs::write(&room, "somebody's").unwrap();
    fs::hard_link(&room, &other).unwrap();
    if !kept(&directory, "room", 8 << 10) {
        return;
    }
    assert_eq!(fs::read(&other).unwrap(), b"somebody's");
    fs::remove_file(&other).unwrap();
    fs::hard_link(&room, &other).unwrap();
    assert!(kept(&directory, "room", 8 << 10));
    fs::write(&other, "somebody's").unwrap();
    assert_eq!(fs::read(&room).unwrap(), b"");
}
