//! The index at a path is replaced while a handle has it open.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use stratann::{
    BuildOptions, Catalog, Error, ErrorKind, Index, LiveIndex, Matrix, Metric, OpenOptions, Preset,
    SearchOptions, Silent, WriteOptions, build, verify,
};

use super::fixtures::{self, SIFT_BASE};

const ROWS: usize = 400;

fn rows(first: usize) -> Matrix {
    fixtures::rows(SIFT_BASE, first, ROWS)
}

fn built(first: usize, preset: Preset, path: &Path) {
    let options = BuildOptions {
        preset,
        degree: Some(16),
        build_list: 24,
        threads: 1,
        ..BuildOptions::default()
    };
    build(&rows(first), path, &options, &Silent).unwrap();
}

fn live(path: &Path) -> LiveIndex {
    let options = WriteOptions {
        threads: 1,
        ..WriteOptions::default()
    };
    LiveIndex::open(path, &OpenOptions::default(), &options).unwrap()
}

/// `build` with `overwrite` keeps the directory, so only the form of the vectors tells that the
/// handle would change another index.
#[test]
fn a_handle_never_changes_an_index_of_another_form() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("index");
    built(0, Preset::STRATANN, &path);
    let old = Arc::new(Index::open(&path, &OpenOptions::default()).unwrap());
    let other = BuildOptions {
        metric: Metric::Cosine,
        overwrite: true,
        degree: Some(16),
        build_list: 24,
        threads: 1,
        ..BuildOptions::default()
    };
    build(&rows(ROWS), &path, &other, &Silent).unwrap();
    let error = LiveIndex::over(&old, &WriteOptions::default()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Outdated, "{error}");
    let text = error.to_string();
    for part in [
        "128 dimensions, u8, cosine has replaced",
        "128 dimensions, u8, l2",
    ] {
        assert!(text.contains(part), "{text}");
    }
    // The refused change left no lock behind.
    assert_eq!(live(&path).len(), ROWS);
}

#[test]
fn a_lost_file_of_an_index_is_damage_that_repair_mends() {
    let folder = tempfile::tempdir().unwrap();
    for entry in {
        let path = folder.path().join("list");
        built(0, Preset::STRATANN, &path);
        fs::read_dir(&path).unwrap()
    } {
        let name = entry.unwrap().file_name().into_string().unwrap();
        if name == "MANIFEST" || name == "lock" || name.starts_with("log") {
            continue;
        }
        let path = folder.path().join(format!("without-{name}"));
        built(0, Preset::STRATANN, &path);
        fs::remove_file(path.join(&name)).unwrap();
        // Some files only make searches faster.
        let Err(error) = Index::open(&path, &OpenOptions::default()) else {
            continue;
        };
        assert_eq!(error.kind(), ErrorKind::Damaged, "{name}: {error}");
        let text = error.to_string();
        for part in [name.as_str(), "the file is missing", "`stratann repair`"] {
            assert!(text.contains(part), "{text}");
        }
    }
}

/// Notebooks build an index again while a handle has the old index open.
#[test]
fn a_handle_leaves_the_index_alone_that_has_taken_its_place() {
    let folder = tempfile::tempdir().unwrap();
    for preset in [Preset::STRATANN, Preset::DECOUPLEVS, Preset::DISKANN] {
        for keeps_directory in [false, true] {
            let path = folder
                .path()
                .join(format!("{}-{keeps_directory}", preset.name));
            built(0, preset, &path);
            let old = live(&path);
            old.delete(&[1, 2, 3]).unwrap();
            old.insert(&rows(1000), None, &Silent).unwrap();
            if keeps_directory {
                for entry in fs::read_dir(&path).unwrap() {
                    fs::remove_file(entry.unwrap().path()).unwrap();
                }
            } else {
                fs::remove_dir_all(&path).unwrap();
            }
            built(ROWS, preset, &path);
            // Searches still read the old index.
            let says = |done: Result<(), Error>| {
                let text = done.unwrap_err().to_string();
                assert!(text.contains("open the index again"), "{preset}: {text}");
            };
            says(old.delete(&[4]).map(drop));
            says(old.insert(&rows(2000), None, &Silent).map(drop));
            says(old.flush());
            says(old.compact(&Silent).map(drop));
            let options = SearchOptions::default();
            old.search(&rows(0), &options).unwrap();
            drop(old);
            let report = verify(&path, &Silent).unwrap();
            assert!(report.clean(), "{preset}: {report:?}");
            let new = live(&path);
            assert_eq!(new.len(), ROWS);
            new.insert(&rows(3000), None, &Silent).unwrap();
            drop(new);
            assert!(verify(&path, &Silent).unwrap().clean());
        }
    }
}

#[test]
fn a_reader_goes_on_after_a_merge_of_another() {
    let folder = tempfile::tempdir().unwrap();
    for preset in Preset::ALL {
        let path = folder.path().join(preset.name);
        let has_graph = preset.layout.is_none_or(|layout| !layout.has_clusters());
        let options = BuildOptions {
            preset,
            degree: has_graph.then_some(16),
            build_list: if has_graph { 24 } else { 100 },
            threads: 1,
            navigation: 0.1,
            ..BuildOptions::default()
        };
        build(&rows(0), &path, &options, &Silent).unwrap();
        let reader = Index::open(&path, &OpenOptions::default()).unwrap();
        let writer = live(&path);
        writer.delete(&[1, 2, 3]).unwrap();
        writer.compact(&Silent).unwrap();
        let options = SearchOptions {
            navigation: has_graph.then_some(true),
            ..SearchOptions::default()
        };
        let found = reader.search(&rows(0), &options).unwrap();
        assert_eq!(
            found.ids[0], 0,
            "{preset}: the first row does not find itself"
        );
        assert!(!reader.is_current().unwrap());
        // The first search of the reader comes after the second merge.
        writer.delete(&[4, 5]).unwrap();
        writer.compact(&Silent).unwrap();
        reader.search(&rows(0), &options).unwrap();
    }
}

#[test]
fn nothing_of_an_index_is_written_through_a_link() {
    let folder = tempfile::tempdir().unwrap();
    let victim = folder.path().join("victim");
    for preset in [Preset::STRATANN, Preset::DISKANN] {
        let path = folder.path().join(preset.name);
        built(0, preset, &path);
        fs::write(&victim, "precious").unwrap();
        std::os::unix::fs::symlink(&victim, path.join("MANIFEST.new")).unwrap();
        std::os::unix::fs::symlink(&victim, path.join("log-000001")).unwrap();
        let options = WriteOptions::default();
        if let Ok(index) = LiveIndex::open(&path, &OpenOptions::default(), &options) {
            drop(index.insert(&rows(1000), None, &Silent));
            drop(index.compact(&Silent));
        }
        assert_eq!(fs::read(&victim).unwrap(), b"precious");
        fs::remove_file(path.join("log-000001")).ok();
    }
    let path = folder.path().join("linked");
    built(0, Preset::STRATANN, &path);
    let graph = |path: &std::path::PathBuf| {
        let name = path.file_name().unwrap().to_str().unwrap();
        let kinds = ["graph-", "inline-", "packed-", "adjacency-"];
        kinds.iter().any(|kind| name.starts_with(kind))
    };
    let files = fs::read_dir(&path).unwrap();
    let mut files = files.map(|entry| entry.unwrap().path());
    let pages = files.find(graph).unwrap();
    let elsewhere = folder.path().join("elsewhere");
    fs::rename(&pages, &elsewhere).unwrap();
    std::os::unix::fs::symlink(&elsewhere, &pages).unwrap();
    let before = fs::read(&elsewhere).unwrap();
    let index = Index::open(&path, &OpenOptions::default()).unwrap();
    index.search(&rows(0), &SearchOptions::default()).unwrap();
    let error =
        LiveIndex::open(&path, &OpenOptions::default(), &WriteOptions::default()).unwrap_err();
    assert!(error.to_string().contains("symbolic link"), "{error}");
    assert!(before == fs::read(&elsewhere).unwrap());
}

#[test]
fn a_folder_of_indexes_is_told_from_an_index() {
    let folder = tempfile::tempdir().unwrap();
    built(0, Preset::DISKANN, &folder.path().join("first"));
    let error = Index::open(folder.path(), &OpenOptions::default()).unwrap_err();
    let text = error.to_string();
    assert!(text.contains("catalog") && text.contains("first"), "{text}");
    assert!(Catalog::open(folder.path(), &Default::default()).is_ok());
    let file = folder.path().join("first/MANIFEST");
    let text = Index::open(&file, &OpenOptions::default())
        .unwrap_err()
        .to_string();
    assert!(text.contains("it is a file"), "{text}");
    let none = folder.path().join("none");
    let text = Index::open(&none, &OpenOptions::default())
        .unwrap_err()
        .to_string();
    assert!(text.contains("no such directory"), "{text}");
    // A link that leads to itself neither exists nor is missing.
    let circle = folder.path().join("circle");
    std::os::unix::fs::symlink(&circle, &circle).unwrap();
    let error = Index::open(&circle, &OpenOptions::default()).unwrap_err();
    assert!(matches!(error, Error::Tier(_)), "{error}");
    let odd = folder.path().join("odd");
    fs::create_dir(&odd).unwrap();
    std::os::unix::fs::symlink("MANIFEST", odd.join("MANIFEST")).unwrap();
    for error in [
        Index::open(&odd, &OpenOptions::default())
            .map(drop)
            .unwrap_err(),
        verify(&odd, &Silent).map(drop).unwrap_err(),
        stratann::repair(&odd, &Default::default(), &Silent)
            .map(drop)
            .unwrap_err(),
    ] {
        assert!(matches!(error, Error::Tier(_)), "{error}");
    }
}
