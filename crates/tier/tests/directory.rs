//! Real directories, and what a meter counts.

use std::fs;
use std::sync::Arc;

use stratann_tier::{
    Directory, DramTier, Fault, Faults, Faulty, IoMode, MappedTier, Meter, Reading, Request,
    Thread, Tier, TierError, Volume, next,
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
    // Readers need no lock.
    assert!(again.list().unwrap().is_empty());
    drop(guard);
    again.lock().unwrap();
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
    // The kernel's own device that is always full; not every sandbox has it.
    let Ok(full) = fs::OpenOptions::new().write(true).open("/dev/full") else {
        return;
    };
    let error = std::os::unix::fs::FileExt::write_all_at(&full, &[0; 10], 0).unwrap_err();
    let error = TierError::io("write", "/x/graph", 4096, 10, error);
    assert!(matches!(error, TierError::NoSpace { .. }));
    assert!(
        error.to_string().contains("/x/graph")
            && error.to_string().contains("free at least 10 bytes"),
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
    let mut lane = meter.lane(&thread).unwrap();
    for tag in 0..4 {
        lane.submit(Request {
            tag,
            offset: 0,
            len: 100,
        })
        .unwrap();
    }
    assert!(
        lane.submit(Request {
            tag: 9,
            offset: 4000,
            len: 97
        })
        .is_err(),
        "refused, so not counted"
    );
    std::thread::sleep(std::time::Duration::from_millis(5));
    thread.block_on(async {
        while lane.in_flight() > 0 {
            let _ = next(lane.as_mut()).await;
        }
    });
    let reading = meter.snapshot();
    assert_eq!((reading.reads, reading.bytes, reading.errors), (4, 400, 1));
    let millis = reading.in_flight.as_millis();
    assert!(
        (20..2000).contains(&millis),
        "four reads of 5 ms are 20 ms; counted {millis}"
    );
    assert_eq!(meter.reset(), reading);
    assert_eq!(meter.snapshot(), Reading::default());
}
