//! Tests that a failed build leaves the earlier index, or no index that opens. Builds crash, fail,
//! or are interrupted.

mod decode;
mod ids;
mod layouts;
mod resume;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use stratann_layout::Manifest;
use stratann_layout::inserts::BegunInsert;
use stratann_layout::manifest::FILE_NAME as MANIFEST;
use stratann_tier::testing::{Crash, Failure, Mishap, Operation, SimVolume};
use stratann_vector::Element;

use super::*;
use crate::data::{Matrix, NoRows};
use crate::index::Index;
use crate::progress::Silent;
use crate::slow::{crashes, each_crash, slow, step};
use crate::stores::roles::tests::four_disks;
use crate::verify::verify_in;
use crate::{Compression, Layout, OpenOptions, SearchOptions, stored};

const MOST_FILES: Layout = Layout::Decoupled;

fn rows(n: usize) -> Matrix {
    let bytes = (0..n * 64).map(|i| (i * i % 251) as u8).collect();
    Matrix::new(bytes, n, 64, Element::U8).unwrap()
}

fn options(layout: Layout) -> BuildOptions {
    BuildOptions {
        degree: Some(8),
        build_list: 16,
        navigation: 0.1,
        threads: 1,
        overwrite: true,
        layout: Some(layout),
        compression: (layout == Layout::Decoupled).then_some(Compression::Paper),
        // A chunk has 64 rows and a segment 128 rows, so that an index has two or three segments.
        chunk_bytes: 4096,
        segment_bytes: 8192,
        ..BuildOptions::default()
    }
    .in_any_layout()
}

fn build_rows(
    volume: &SimVolume,
    n: usize,
    layout: Layout,
    scratch: &Path,
    progress: &dyn Progress,
) -> Result<BuildReport, Error> {
    let volume: Arc<dyn Volume> = Arc::new(volume.clone());
    let made = |source: &dyn VectorSource, options: &BuildOptions, placeholder| {
        let planned = Made::of(source, options)?;
        let _lock = volume.lock()?;
        let next = Next {
            placeholder,
            ..Next::default()
        };
        let (report, committed) =
            build_in(&volume, scratch, source, options, planned, next, progress)?;
        committed.durable(&*volume).map(|()| report)
    };
    let options = options(layout);
    match n {
        0 => {
            let like = rows(1);
            let none = NoRows::new(like.element(), like.dim());
            with_rows(&none, &options, made)
        }
        _ => made(&rows(n), &options, false),
    }
}

fn files_in(volume: &SimVolume) -> usize {
    let files = stored::manifest(volume).unwrap().files.len() + 1;
    assert_eq!(volume.list().unwrap().len(), files, "{:?}", volume.list());
    files
}

/// The number of vectors in the index, if it opens. Each vector must be unchanged.
fn vectors_in(volume: &SimVolume) -> Option<usize> {
    let index = match Index::open_in(
        Arc::new(volume.clone()),
        Path::new("sim"),
        &OpenOptions::default(),
    ) {
        Ok(index) => index,
        Err(Error::NotAnIndex { .. }) => return None,
        Err(error) => panic!("the folder has neither a whole index nor no index: {error}"),
    };
    let report = verify_in(volume, &Silent).unwrap();
    assert!(report.clean(), "{:?}", report.problems);
    let (nodes, source) = (decode::decode(volume), rows(index.len()));
    let mut row = vec![0; source.row_bytes()];
    for (&id, vector) in nodes.ids.iter().zip(&nodes.vectors) {
        source.read(id as usize, &mut row).unwrap();
        assert_eq!(vector, &row);
    }
    // A search for each vector would take most of the test's time.
    let options = SearchOptions {
        k: 1,
        list: 30,
        // Distances by leading parts would not be 0 for equal vectors.
        exact: true,
        ..SearchOptions::default()
    };
    let found = index.search(&rows(20), &options).unwrap();
    assert!(found.distances.iter().all(|&distance| distance == 0.0));
    Some(index.len())
}

#[test]
fn a_crash_at_any_write_or_sync_leaves_the_old_index_or_the_new_one() {
    for layout in Layout::ALL {
        crash_everywhere(layout, SimVolume::new());
    }
}

#[test]
fn nor_does_a_crash_where_roles_are_on_disks_of_their_own() {
    // The other layouts have no files of further roles.
    let most = [Layout::Decoupled, Layout::Inline];
    for layout in Layout::ALL {
        if slow() || most.contains(&layout) {
            crash_everywhere(layout, four_disks());
        }
    }
}

fn begin_insert(volume: &SimVolume) {
    let cut = BegunInsert {
        file: "array".into(),
        rows: 9,
        first_id: 150,
        content: "00".into(),
        beside: None,
        done: false,
        replaced_by: None,
    };
    inserts::write(volume, &[cut]).unwrap();
}

fn known(volume: &SimVolume) -> usize {
    let text = volume.read(MANIFEST).unwrap();
    let state = Manifest::decode(&text, MANIFEST).unwrap().state;
    inserts::of_index(volume, state.as_deref()).unwrap().len()
}

/// If a crash may restore the earlier index, its recorded inserts must stay.
#[test]
fn a_build_that_may_not_be_durable_keeps_what_the_index_before_knows_of_inserts() {
    let folder = tempfile::tempdir().unwrap();
    for layout in [Layout::Packed, Layout::Replicated] {
        let before = SimVolume::new();
        before.discard_failed_syncs(false, true);
        let build = |volume: &SimVolume, n| build_rows(volume, n, layout, folder.path(), &Silent);
        build(&before, 150).unwrap();
        begin_insert(&before);
        let (mut old, mut syncs) = (0, 0);
        loop {
            let volume = before.fork();
            volume.fail_from(Operation::SyncNames, syncs, Mishap::Undone);
            let outcome = build(&volume, 260);
            if volume.failed().is_none() {
                break;
            }
            syncs += 1;
            let undurable = matches!(outcome, Err(Error::Undurable { .. }));
            for mode in Crash::ALL {
                let image = volume.crash_image(syncs, mode);
                if vectors_in(&image) == Some(150) {
                    assert_eq!(known(&image), 1, "{layout}: {syncs}, {mode:?}");
                    old += usize::from(undurable);
                }
            }
        }
        assert!(old > 0, "{layout}: {syncs} syncs");
    }
}

/// Replaces an index by a second build, which crashes at each operation in turn.
fn crash_everywhere(layout: Layout, before: SimVolume) {
    let folder = tempfile::tempdir().unwrap();
    let build = |volume: &SimVolume, n| build_rows(volume, n, layout, folder.path(), &Silent);
    build(&before, 150).unwrap();
    begin_insert(&before);
    let (mut old, mut new) = (0, 0);
    let seeds = if slow() { 3 } else { 1 };
    let work = |volume: &SimVolume, acknowledge: &mut dyn FnMut()| {
        if build(volume, 260).is_ok() {
            acknowledge();
        }
    };
    let operations = each_crash(&before, layout as u64, 1, work, |crashed| {
        let at = crashed.at;
        for (seed, &mode) in
            (0..seeds).flat_map(|seed| crashed.modes.iter().map(move |m| (seed, m)))
        {
            let image = crashed.volume.crash_image(seed, mode);
            let found = vectors_in(&image);
            // The earlier index can resume its recorded insert. The new index cannot.
            let place = format!("{layout}, operation {at}, {mode:?}, seed {seed}");
            match found {
                Some(150) => {
                    assert_eq!(known(&image.fork()), 1, "{place}");
                    old += 1;
                }
                Some(260) => {
                    assert_eq!(known(&image.fork()), 0, "{place}");
                    if new == 0 {
                        for later in (0..).step_by(step(7)) {
                            let next = image.fork();
                            next.fail_after(later, Failure::Crash);
                            let _ = build(&next, 170);
                            let left = next.crash_image(seed, mode);
                            if vectors_in(&left) == Some(260) {
                                assert_eq!(known(&left), 0, "{place}, then {later}");
                            }
                            if !next.has_crashed() {
                                break;
                            }
                        }
                    }
                    new += 1;
                }
                other => panic!("{place}: {other:?} vectors"),
            }
            assert!(crashed.acknowledged == 0 || found == Some(260), "{place}");
            if seed == 0 && (slow() || at % 6 == 0) {
                build(&image, 170).unwrap();
                assert_eq!(vectors_in(&image), Some(170));
                // Four files are always there: MANIFEST, codebook, navigation graph, and codes or
                // entry points. Each of two segments has a file of vectors and a file of chunks. A
                // file of ids is there if the order of nodes is not the order of rows.
                let files = match layout {
                    Layout::Coupled | Layout::Inline | Layout::Csr => 4 + 1,
                    Layout::Packed => 4 + 2,
                    Layout::Decoupled | Layout::Layered => 4 + 2 + 4,
                    Layout::Replicated | Layout::Grouped => 3 + 1,
                    Layout::Addressed => 4 + 1,
                };
                let manifest = stored::manifest(&image).unwrap();
                let files = files + usize::from(manifest.file("ids").is_some());
                assert_eq!(files_in(&image), files);
            }
        }
    });
    assert!(operations > 10, "{operations} operations");
    assert!(old > 0 && new > 0, "{layout}: {old} old, {new} new");
}

#[test]
fn a_crash_in_the_first_build_leaves_nothing_that_opens_half() {
    let folder = tempfile::tempdir().unwrap();
    let volumes = [(SimVolume::new as fn() -> SimVolume, 1), (four_disks, 4)];
    // Between them, these layouts have files of every role, so they are also tested on several
    // disks.
    let most = [Layout::Decoupled, Layout::Inline];
    for (layout, (new, disks)) in Layout::ALL
        .into_iter()
        .flat_map(|l| volumes.map(|new| (l, new)))
    {
        if !slow() && disks > 1 && !most.contains(&layout) {
            continue;
        }
        let build = |volume: &SimVolume, acknowledge: &mut dyn FnMut()| {
            if build_rows(volume, 150, layout, folder.path(), &Silent).is_ok() {
                acknowledge();
            }
        };
        each_crash(&new(), layout as u64, 1, build, |crashed| {
            let at = crashed.at;
            for &mode in &crashed.modes {
                let found = vectors_in(&crashed.volume.crash_image(at, mode));
                assert!(
                    matches!(found, None | Some(150)),
                    "{layout}, operation {at}, {mode:?}: {found:?}"
                );
            }
        });
    }
}

#[test]
fn a_full_disk_is_an_error_and_the_old_index_stays() {
    let folder = tempfile::tempdir().unwrap();
    for layout in Layout::ALL {
        let build = |volume: &SimVolume, n| build_rows(volume, n, layout, folder.path(), &Silent);
        let before = SimVolume::new();
        build(&before, 150).unwrap();
        let files = files_in(&before);
        let mut refused = 0;
        let step = step(5);
        for at in (layout as u64 % step as u64..).step_by(step) {
            let volume = before.fork();
            volume.fail_after(at, Failure::NoSpace);
            let error = match build(&volume, 220) {
                Ok(_) => break,
                Err(error) => error,
            };
            refused += 1;
            assert!(error.to_string().contains("space"), "{layout}: {error}");
            volume.heal();
            assert_eq!(vectors_in(&volume), Some(150), "{layout}");
            build(&volume, 220).unwrap();
            assert_eq!(vectors_in(&volume), Some(220), "{layout}");
        }
        // The build creates and writes each file. So at least two operations for each file must
        // fail.
        assert!(
            (refused + 1) * step > 2 * files,
            "{layout}: {refused} of {files} files"
        );
    }
}

struct Impatient(AtomicU64);

impl Progress for Impatient {
    fn begin(&self, _: &str, _: u64) {}
    fn advance(&self, _: u64) {}
    fn end(&self) {}
    fn warn(&self, _: &str) {}
    fn interrupted(&self) -> bool {
        self.0.fetch_sub(1, Ordering::Relaxed) <= 1
    }
}

#[test]
fn an_interruption_at_any_point_leaves_only_the_old_index() {
    // `inline` encodes all nodes before it writes the first node. `MOST_FILES` writes the most
    // files.
    for layout in [Layout::Inline, MOST_FILES] {
        interrupt_everywhere(layout);
    }
}

fn interrupt_everywhere(layout: Layout) {
    let folder = tempfile::tempdir().unwrap();
    let build = |volume: &SimVolume, n, progress: &dyn Progress| {
        build_rows(volume, n, layout, folder.path(), progress)
    };
    let before = SimVolume::new();
    build(&before, 150, &Silent).unwrap();
    let files = before.list().unwrap();
    let mut interrupted = 0;
    for patience in 1.. {
        let volume = before.fork();
        match build(&volume, 220, &Impatient(AtomicU64::new(patience))) {
            Ok(_) => break,
            Err(Error::Interrupted) => interrupted += 1,
            Err(error) => panic!("{layout}: {error}"),
        }
        if vectors_in(&volume) != Some(220) {
            assert_eq!(
                volume.list().unwrap(),
                files,
                "{layout}, after {patience} checks for an interruption"
            );
        }
        assert_eq!(
            std::fs::read_dir(folder.path()).unwrap().count(),
            0,
            "scratch files"
        );
    }
    assert!(interrupted > 3, "{layout}: {interrupted}");
}

#[test]
fn an_index_whose_manifest_cannot_be_read_keeps_its_files_until_it_is_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let volume = SimVolume::new();
    build_rows(&volume, 150, MOST_FILES, folder.path(), &Silent).unwrap();
    let whole = volume.read("MANIFEST").unwrap();
    let mut damaged = whole.clone();
    damaged[40] ^= 1;
    let write = |bytes: &[u8]| {
        volume
            .create("MANIFEST")
            .unwrap()
            .write_at(0, bytes)
            .unwrap()
    };
    write(&damaged);
    let files = volume.list().unwrap();
    let impatient = Impatient(AtomicU64::new(3));
    build_rows(&volume, 220, MOST_FILES, folder.path(), &impatient).unwrap_err();
    assert_eq!(
        volume.list().unwrap(),
        files,
        "the build changed files of an index that cannot be read"
    );
    write(&whole);
    assert_eq!(vectors_in(&volume), Some(150));
    write(&damaged);
    build_rows(&volume, 220, MOST_FILES, folder.path(), &Silent).unwrap();
    assert_eq!(vectors_in(&volume), Some(220));
    assert_eq!(files_in(&volume), 10);
}

#[test]
fn a_commit_that_may_not_be_durable_keeps_both_indexes() {
    let folder = tempfile::tempdir().unwrap();
    for (first, before) in (0..).zip([SimVolume::new(), four_disks()]) {
        build_rows(&before, 150, MOST_FILES, folder.path(), &Silent).unwrap();
        let start = before.operations();
        let whole = before.fork();
        build_rows(&whole, 220, MOST_FILES, folder.path(), &Silent).unwrap();
        // The disks fail from operation `at` on, and a crash follows at once. By default, one disk
        // tries every second operation, and four disks try the others.
        let operations = whole.operations() - start;
        for at in (first % step(2) as u64..operations).step_by(step(2)) {
            let volume = before.fork();
            volume.fail_after(at, Failure::Io);
            let _ = build_rows(&volume, 220, MOST_FILES, folder.path(), &Silent);
            for mode in crashes(at) {
                let found = vectors_in(&volume.crash_image(at, mode));
                assert!(
                    matches!(found, Some(150 | 220)),
                    "operation {at}, {mode:?}: {found:?}"
                );
            }
        }
    }
}

#[test]
fn a_crash_in_a_build_of_nothing_leaves_an_index_of_nothing_or_none() {
    let folder = tempfile::tempdir().unwrap();
    for layout in Layout::ALL {
        let build = |volume: &SimVolume| build_rows(volume, 0, layout, folder.path(), &Silent);
        let found = |volume: &SimVolume| match Index::open_in(
            Arc::new(volume.clone()),
            Path::new("sim"),
            &OpenOptions::default(),
        ) {
            Ok(index) => Some(index.len()),
            Err(Error::NotAnIndex { .. }) => None,
            Err(error) => panic!("the folder has neither a whole index nor no index: {error}"),
        };
        let whole = SimVolume::new();
        assert_eq!(build(&whole).unwrap().vectors, 0);
        assert_eq!(found(&whole), Some(0), "{layout}");
        for at in 0..whole.operations() {
            let volume = SimVolume::new();
            volume.fail_after(at, Failure::Crash);
            let outcome = build(&volume);
            for mode in crashes(at + layout as u64) {
                let image = volume.crash_image(at, mode);
                let found = found(&image);
                assert!(
                    found == Some(0) || found.is_none() && outcome.is_err(),
                    "{layout} {at}"
                );
                assert_eq!(
                    found.is_some(),
                    verify_in(&image, &Silent).is_ok_and(|r| r.clean())
                );
            }
        }
    }
}
