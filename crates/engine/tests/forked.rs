//! A forked process has a copy of what is open, and none of its threads: dropping it there ends, and changes nothing on storage.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use stratann::{
    BuildOptions, Durability, LiveIndex, Matrix, MergeWhen, OpenOptions, Preset, Silent, Update,
    VectorFile, VectorSource, WriteOptions, build, verify,
};
use stratann_tier::IoMode;
use stratann_tier::testing::forked;

const ROWS: usize = 600;

fn rows(first: usize) -> Matrix {
    let path =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/photo-sift-20k.base.u8bin");
    let file = VectorFile::open(path).unwrap();
    let mut bytes = vec![0; ROWS * file.dim() * file.element().size()];
    file.read(first, &mut bytes).unwrap();
    Matrix::new(bytes, ROWS, file.dim(), file.element()).unwrap()
}

/// All files of a folder.
fn files(path: &Path) -> BTreeMap<String, Vec<u8>> {
    let entries = std::fs::read_dir(path).unwrap();
    entries
        .map(|entry| {
            let entry = entry.unwrap();
            let name = entry.file_name().into_string().unwrap();
            (name, std::fs::read(entry.path()).unwrap())
        })
        .collect()
}

#[test]
fn a_forked_process_drops_an_index_and_harms_nothing() {
    let folder = tempfile::tempdir().unwrap();
    for (name, preset, update, io) in [
        (
            "stratann",
            Preset::STRATANN,
            Update::Accumulate,
            IoMode::Auto,
        ),
        ("pread", Preset::STRATANN, Update::Accumulate, IoMode::Pread),
        ("merge", Preset::DECOUPLEVS, Update::Merge, IoMode::Auto),
        ("inline", Preset::AISAQ, Update::InPlace, IoMode::Auto),
    ] {
        let path = folder.path().join(name);
        let options = BuildOptions {
            preset,
            degree: Some(16),
            build_list: 24,
            threads: 1,
            ..BuildOptions::default()
        };
        build(&rows(0), &path, &options, &Silent).unwrap();
        let write = WriteOptions {
            // A thread that syncs, and what it would have to sync when the index is dropped.
            durability: Durability::Every(Duration::from_secs(3_600)),
            threads: 2,
            update: Some(update),
            ..WriteOptions::default()
        };
        let open = OpenOptions {
            io,
            ..OpenOptions::default()
        };
        let live = LiveIndex::open(&path, &open, &write).unwrap();
        let live = std::sync::Arc::new(live);
        let merger = live.merge_when_due(MergeWhen::default()).unwrap();
        live.insert(&rows(ROWS), None, &Silent).unwrap();
        live.delete(&[3, 4, 5]).unwrap();
        live.search(&rows(0), &stratann::SearchOptions::default())
            .unwrap();

        let before = files(&path);
        let (mut theirs, mut merging) = (Some(live), Some(merger));
        assert!(
            forked(60, || {
                drop(merging.take());
                drop(theirs.take());
                true
            }),
            "{name}: it failed, or did not end"
        );
        assert!(files(&path) == before, "{name}: files were changed");
        // Theirs is as it was.
        drop(merging.take());
        let live = theirs.take().unwrap();
        live.insert(&rows(2 * ROWS), None, &Silent).unwrap();
        drop(live);
        assert_eq!(verify(&path, &Silent).unwrap().problems.len(), 0, "{name}");
        let again = LiveIndex::open(&path, &OpenOptions::default(), &write).unwrap();
        assert_eq!(again.len(), 3 * ROWS - 3, "{name}");
    }
}
