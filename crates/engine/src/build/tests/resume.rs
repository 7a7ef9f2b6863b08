//! Tests builds that are killed at any point and resumed. They must write the same bytes as
//! an uninterrupted build.

use std::collections::BTreeMap;
use std::sync::Mutex;

use stratann_tier::testing::{Crash, Mishap, Operation};

use super::*;

/// Both passes of the graph have several batches.
const ROWS: usize = 300;

fn resuming(layout: Layout) -> BuildOptions {
    BuildOptions {
        resume: true,
        savepoint_seconds: 0.0,
        ..options(layout)
    }
}

fn build_of(
    volume: &SimVolume,
    source: &dyn VectorSource,
    options: &BuildOptions,
    progress: &dyn Progress,
) -> Result<BuildReport, Error> {
    let folder = tempfile::tempdir().unwrap();
    let planned = Made::of(source, options)?;
    let volume: Arc<dyn Volume> = Arc::new(volume.clone());
    let _lock = volume.lock()?;
    let next = Next::default();
    let scratch = folder.path();
    let (report, committed) = build_in(&volume, scratch, source, options, planned, next, progress)?;
    committed.durable(&*volume).map(|()| report)
}

/// The content of all files, and the manifest. The number of the checkpoint is removed from both.
fn contents(volume: &SimVolume) -> (BTreeMap<String, Vec<u8>>, Manifest) {
    let mut manifest = stored::manifest(volume).unwrap();
    let number = format!("-{:06}", manifest.checkpoint);
    let mut files = BTreeMap::new();
    for name in volume.list().unwrap() {
        if name != MANIFEST {
            files.insert(name.replace(&number, ""), volume.read(&name).unwrap());
        }
    }
    manifest.checkpoint = 0;
    assert!(manifest.state.take().is_some());
    for entry in &mut manifest.files {
        entry.name = entry.name.replace(&number, "");
    }
    (files, manifest)
}

fn same(volume: &SimVolume, whole: &(BTreeMap<String, Vec<u8>>, Manifest), what: &str) {
    let found = contents(volume);
    let names = |files: &BTreeMap<String, Vec<u8>>| files.keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(&found.0), names(&whole.0), "{what}");
    for (name, bytes) in &whole.0 {
        assert!(&found.0[name] == bytes, "{what}: {name} differs");
    }
    assert_eq!(found.1, whole.1, "{what}");
}

fn whole(layout: Layout, source: &dyn VectorSource) -> (BTreeMap<String, Vec<u8>>, Manifest) {
    let volume = SimVolume::new();
    let report = build_of(&volume, source, &options(layout), &Silent).unwrap();
    assert_eq!((report.resumed.len(), report.savepoint_bytes), (0, 0));
    contents(&volume)
}

fn interrupted(source: &dyn VectorSource, options: &BuildOptions) -> SimVolume {
    struct UntilPages(Mutex<bool>);
    impl Progress for UntilPages {
        fn begin(&self, stage: &str, _: u64) {
            *self.0.lock().unwrap() |= matches!(stage, "writing" | "encoding");
        }
        fn advance(&self, _: u64) {}
        fn end(&self) {}
        fn warn(&self, _: &str) {}
        fn interrupted(&self) -> bool {
            *self.0.lock().unwrap()
        }
    }
    let volume = SimVolume::new();
    let stopped = build_of(&volume, source, options, &UntilPages(Mutex::new(false)));
    assert!(matches!(stopped, Err(Error::Interrupted)), "{stopped:?}");
    let names = volume.list().unwrap();
    assert_eq!(
        names,
        ["savepoint-codebook", "savepoint-lists", "savepoint-order"]
    );
    volume
}

#[test]
fn a_build_that_crashes_at_any_write_is_resumed_to_the_same_bits() {
    let layouts = [Layout::Inline, MOST_FILES];
    // Builds of cluster indexes write no savepoints.
    for layout in Layout::ALL
        .into_iter()
        .filter(|layout| !layout.has_clusters())
    {
        if slow() || layouts.contains(&layout) {
            crash_and_resume(layout);
        }
    }
}

fn crash_and_resume(layout: Layout) {
    let (source, options) = (rows(ROWS), resuming(layout));
    let expected = whole(layout, &source);
    let volume = SimVolume::new();
    let report = build_of(&volume, &source, &options, &Silent).unwrap();
    assert!(report.resumed.is_empty() && report.savepoint_bytes > 0);
    same(&volume, &expected, "uninterrupted, with savepoints");
    let mut resumed = BTreeMap::<String, usize>::new();
    for at in 0..volume.operations() {
        let volume = SimVolume::new();
        volume.fail_after(at, Failure::Crash);
        let crashed = build_of(&volume, &source, &options, &Silent).is_err();
        for mode in crashes(at) {
            let what = format!("{layout}, operation {at}, {mode:?}");
            let image = volume.crash_image(at, mode);
            let report = build_of(&image, &source, &options, &Silent).unwrap();
            same(&image, &expected, &what);
            assert!(crashed || !is_there(&image, "savepoint"), "{what}");
            for what in report.resumed {
                *resumed.entry(what).or_default() += 1;
            }
        }
    }
    let all = [
        "codebook",
        "graph",
        "graph, pass 1 of 2: 42 %",
        "graph, pass 1 of 2: 85 %",
        "graph, pass 1 of 2: 100 %",
        "graph, pass 2 of 2: 42 %",
        "graph, pass 2 of 2: 85 %",
        "graph, pass 2 of 2: 100 %",
        "order",
    ];
    for place in all {
        assert!(resumed.contains_key(place), "{place} is not in {resumed:?}");
    }
}

fn is_there(volume: &SimVolume, start: &str) -> bool {
    let names = volume.list().unwrap();
    names.iter().any(|name| name.starts_with(start))
}

#[test]
fn a_build_that_is_interrupted_anywhere_is_resumed_to_the_same_bits() {
    let (source, options) = (rows(ROWS), resuming(MOST_FILES));
    let expected = whole(MOST_FILES, &source);
    let mut kept = 0;
    for patience in 1.. {
        let volume = SimVolume::new();
        let patient = Impatient(AtomicU64::new(patience));
        match build_of(&volume, &source, &options, &patient) {
            Ok(_) => break,
            Err(Error::Interrupted) => {}
            Err(error) => panic!("{error}"),
        }
        let names = volume.list().unwrap();
        assert!(
            names.iter().all(|name| name.starts_with("savepoint-")),
            "{names:?}"
        );
        kept += usize::from(!names.is_empty());
        let what = format!("after {patience} questions");
        build_of(&volume, &source, &options, &Silent).unwrap();
        same(&volume, &expected, &what);
    }
    assert!(kept > 5, "{kept}");
}

#[test]
fn a_build_is_killed_again_and_again_and_ends_all_the_same() {
    let (source, options) = (rows(ROWS), resuming(MOST_FILES));
    let expected = whole(MOST_FILES, &source);
    let mut volume = SimVolume::new();
    let mut lives = 0;
    loop {
        // Before the failure, a build can write three savepoints, or all files that follow the
        // savepoints.
        volume.fail_after(15 + lives, Failure::Crash);
        let built = build_of(&volume, &source, &options, &Silent);
        if built.is_ok() && !volume.has_crashed() {
            break;
        }
        lives += 1;
        assert!(lives < 100);
        volume = volume.crash_image(lives, Crash::Torn);
    }
    assert!(lives > 3, "{lives}");
    same(&volume, &expected, &format!("{lives} lives"));
}

#[test]
fn what_befalls_a_savepoint_does_not_befall_the_build() {
    let (source, options) = (rows(ROWS), resuming(Layout::Packed));
    let expected = whole(Layout::Packed, &source);
    let before = interrupted(&source, &options);
    let mut failed = 0;
    for start in [SimVolume::new(), before] {
        // By default, each call is tried with one kind of mishap, and consecutive calls with
        // different kinds.
        let all = (0..).flat_map(|call| Mishap::ALL.map(|mishap| (call, mishap)));
        let some = |n: usize| slow() || n % 3 == n / 3 % 3;
        for (call, mishap) in all.enumerate().filter(|one| some(one.0)).map(|one| one.1) {
            let volume = start.fork();
            volume.fail_call(call, mishap);
            let built = build_of(&volume, &source, &options, &Silent);
            let Some((operation, name)) = volume.failed() else {
                break;
            };
            // A sync of a directory belongs to a savepoint or to the commit.
            if name.starts_with("savepoint") {
                failed += 1;
                let what = format!("{operation:?} of {name}, {mishap:?}");
                built.unwrap_or_else(|error| panic!("{what}: {error}"));
                build_of(&volume, &source, &options, &Silent).unwrap();
                same(&volume, &expected, &what);
            }
        }
    }
    assert!(failed > if slow() { 30 } else { 10 }, "{failed}");
}

#[derive(Default)]
struct Warned(Mutex<Vec<String>>);

impl Progress for Warned {
    fn begin(&self, _: &str, _: u64) {}
    fn advance(&self, _: u64) {}
    fn end(&self) {}
    fn interrupted(&self) -> bool {
        false
    }
    fn warn(&self, message: &str) {
        self.0.lock().unwrap().push(message.to_owned());
    }
}

#[test]
fn a_disk_that_is_full_for_savepoints_is_said_once_and_gives_their_room_back() {
    let (source, options) = (rows(ROWS), resuming(Layout::Packed));
    let expected = whole(Layout::Packed, &source);
    let volume = interrupted(&source, &resuming(Layout::Packed));
    // Without this file, a resumed build can use only the order of the nodes from savepoints.
    volume.remove("savepoint-lists").unwrap();
    volume.fail_nth(Operation::Write, 0, Mishap::NoRoom);
    let warned = Warned::default();
    let report = build_of(&volume, &source, &options, &warned).unwrap();
    assert_eq!(volume.failed().unwrap().1, "savepoint.new");
    let warned = warned.0.into_inner().unwrap();
    assert_eq!(warned.len(), 1, "{warned:?}");
    assert!(
        warned[0].contains("without savepoints") && warned[0].contains("no space left"),
        "{warned:?}"
    );
    assert_eq!(
        report.resumed,
        ["order"],
        "the codebook was removed with the other savepoints"
    );
    assert_eq!(report.savepoint_bytes, 0);
    same(&volume, &expected, "on a full disk");
}

#[test]
fn damaged_savepoints_are_not_used_and_harm_nothing() {
    let (source, options) = (rows(ROWS), resuming(Layout::Packed));
    let expected = whole(Layout::Packed, &source);
    let before = interrupted(&source, &options);
    let whole = build_of(&before.fork(), &source, &options, &Silent).unwrap();
    assert_eq!(whole.resumed, ["order", "graph", "codebook"]);
    assert_eq!(
        whole.savepoint_bytes, 0,
        "a resumed build wrote savepoints although all stages were done"
    );
    for (name, word) in [
        ("order", "order"),
        ("lists", "graph"),
        ("codebook", "codebook"),
    ] {
        let name = format!("savepoint-{name}");
        let bytes = before.read(&name).unwrap();
        let end = bytes.len();
        let mut damages: Vec<Vec<u8>> = [0, 4, 12, 16, 20, 24, 32, 64, 100, 4096, 4100, end - 1]
            .into_iter()
            .map(|at| {
                let mut flipped = bytes.clone();
                flipped[at] ^= 1;
                flipped
            })
            .collect();
        damages.extend([0, 1, 4095, 4096, end - 1].map(|len| bytes[..len].to_vec()));
        damages.push([&bytes[..], &[0; 4096]].concat());
        for (n, damage) in damages.iter().enumerate() {
            let volume = before.fork();
            volume.create(&name).unwrap().write_at(0, damage).unwrap();
            let report = build_of(&volume, &source, &options, &Silent).unwrap();
            let what = format!("{name}, damage {n}");
            assert!(!report.resumed.iter().any(|r| r == word), "{what}");
            same(&volume, &expected, &what);
        }
    }
}

#[test]
fn savepoints_of_other_rows_or_options_are_not_used() {
    let (source, first) = (rows(ROWS), resuming(Layout::Packed));
    let before = interrupted(&source, &first);
    let mut bytes = source.bytes().to_vec();
    bytes[ROWS * 64 - 1] ^= 1;
    let other = Matrix::new(bytes, ROWS, 64, Element::U8).unwrap();
    let changed = [
        BuildOptions {
            seed: 43,
            ..first.clone()
        },
        BuildOptions {
            build_list: 17,
            ..first.clone()
        },
        BuildOptions {
            degree: Some(9),
            ..first.clone()
        },
        BuildOptions {
            metric: stratann_vector::Metric::Cosine,
            ..first.clone()
        },
        BuildOptions {
            ids: Some((7..7 + ROWS as u64).collect()),
            ..first.clone()
        },
        BuildOptions {
            threads: 2,
            ..first.clone()
        },
    ];
    let cases = changed.iter().map(|options| (&source, options));
    let mut all_that_differs = Vec::new();
    for (rows, options) in cases.chain([(&other, &first)]) {
        let (volume, warned) = (before.fork(), Warned::default());
        let report = build_of(&volume, rows, options, &warned).unwrap();
        assert!(report.resumed.is_empty(), "{options:?}: {report:?}");
        let warned = warned.0.into_inner().unwrap();
        assert!(
            warned.len() == 1 && warned[0].contains("other vectors, options"),
            "{warned:?}"
        );
        let differs = warned[0].split("differences: ").nth(1).unwrap();
        let differs = differs.split("); this").next().unwrap();
        all_that_differs.push(differs.to_owned());
        assert!(!is_there(&volume, "savepoint"));
        if options.threads == 1 {
            let fresh = SimVolume::new();
            build_of(&fresh, rows, options, &Silent).unwrap();
            same(&volume, &contents(&fresh), &format!("{options:?}"));
        }
    }
    let expected = [
        "seed (43, it was 42)",
        "build list (17, it was 16)",
        "degree (9, it was 8)",
        "metric (cosine, it was l2)",
        "the ids",
        "threads (several, it was one)",
        "the vectors",
    ];
    assert_eq!(all_that_differs, expected);
    let volume = before.fork();
    let options = BuildOptions {
        overwrite: false,
        savepoint_seconds: 60.0,
        ..first
    };
    let report = build_of(&volume, &source, &options, &Silent).unwrap();
    assert_eq!(report.resumed, ["order", "graph", "codebook"]);
}

#[test]
fn without_resume_savepoints_stay_unused_until_the_build_is_done() {
    let source = rows(ROWS);
    let before = interrupted(&source, &resuming(Layout::Packed));
    let impatient = Impatient(AtomicU64::new(5));
    let names = before.list().unwrap();
    build_of(&before, &source, &options(Layout::Packed), &impatient).unwrap_err();
    assert_eq!(
        before.list().unwrap(),
        names,
        "an interrupted build without --resume removed the savepoints"
    );
    let warned = Warned::default();
    let report = build_of(&before, &source, &options(Layout::Packed), &warned).unwrap();
    assert!(report.resumed.is_empty());
    let warned = warned.0.into_inner().unwrap();
    assert!(
        warned.len() == 1 && warned[0].contains("--resume"),
        "{warned:?}"
    );
    same(&before, &whole(Layout::Packed, &source), "removed");
}

#[test]
fn a_build_with_several_threads_is_resumed_by_any_number_of_them() {
    let source = rows(1_000);
    let options = |threads| BuildOptions {
        threads,
        ..resuming(Layout::Packed)
    };
    let mut resumed = 0;
    for patience in (12..).step_by(4) {
        let volume = SimVolume::new();
        let impatient = Impatient(AtomicU64::new(patience));
        if resumed > 1 || build_of(&volume, &source, &options(2), &impatient).is_ok() {
            break;
        }
        let report = build_of(&volume, &source, &options(3), &Silent).unwrap();
        resumed += report
            .resumed
            .iter()
            .filter(|r| r.contains("graph"))
            .count();
        assert_eq!(vectors_in(&volume), Some(1_000));
    }
    assert!(resumed > 1, "{resumed}");
}
