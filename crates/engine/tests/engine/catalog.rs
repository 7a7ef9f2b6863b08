//! A catalog as an application uses it.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use stratann::{
    BuildOptions, Catalog, CatalogOptions, Codebook, DirectOptions, Element, Error, ErrorKind,
    Filter, Index, LiveIndex, MOST_OPEN, Matrix, MatrixRef, Metric, OpenOptions, Preset, Progress,
    Row, RowTable, SearchOptions, Silent, TrainOptions, Value, VectorSource, WriteOptions,
    brute_force, build, build_with_rows,
};
use stratann_layout::Manifest;
use tempfile::TempDir;

use super::fixtures::{SIFT_BASE, SIFT_QUERIES, head};

pub(super) fn base(rows: usize) -> Matrix {
    head(SIFT_BASE, rows)
}

fn queries(rows: usize) -> Matrix {
    head(SIFT_QUERIES, rows)
}

pub(super) fn codebook(seed: u64) -> Codebook {
    let options = TrainOptions {
        code_bytes: Some(16),
        threads: 1,
        seed,
        ..TrainOptions::default()
    };
    Codebook::train(&base(1_000), &options, &Silent).unwrap()
}

pub(super) fn small(preset: Preset, codebook: &Codebook) -> BuildOptions {
    BuildOptions {
        preset,
        degree: Some(16),
        build_list: 32,
        codebook: Some(codebook.clone()),
        threads: 1,
        overwrite: true,
        ..BuildOptions::default()
    }
}

pub(super) struct Place {
    folder: TempDir,
}

impl Place {
    pub(super) fn new() -> Self {
        Self {
            folder: tempfile::tempdir().unwrap(),
        }
    }

    fn dir(&self) -> &Path {
        self.folder.path()
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.dir().join(name)
    }

    fn add(&self, name: &str, rows: usize, codebook: &Codebook) {
        let options = small(Preset::AISAQ, codebook);
        build(&base(rows), self.path(name), &options, &Silent).unwrap();
    }

    fn with_three(codebook: &Codebook) -> Self {
        let place = Self::new();
        for (name, rows) in [("a", 200), ("b", 300), ("c", 400)] {
            place.add(name, rows, codebook);
        }
        place
    }

    pub(super) fn link(&self, from: &str, to: &str) {
        fs::create_dir(self.path(to)).unwrap();
        for entry in fs::read_dir(self.path(from)).unwrap() {
            let entry = entry.unwrap();
            fs::hard_link(entry.path(), self.path(to).join(entry.file_name())).unwrap();
        }
    }

    pub(super) fn catalog(&self, memory: Option<u64>) -> Catalog {
        let options = CatalogOptions {
            memory,
            patience: Duration::ZERO,
            ..CatalogOptions::default()
        };
        Catalog::open(self.dir(), &options).unwrap()
    }

    /// A budget that leaves `room` bytes for indexes and codebooks, up to about a megabyte.
    pub(super) fn budget(&self, room: u64) -> u64 {
        let options = CatalogOptions {
            memory: Some(1),
            ..CatalogOptions::default()
        };
        match Catalog::open(self.dir(), &options) {
            Err(Error::Memory { needs, .. }) => needs + room,
            other => panic!("{other:?}"),
        }
    }

    fn costs(&self, name: &str) -> (u64, u64) {
        let catalog = self.catalog(None);
        let nothing = catalog.memory_bytes();
        let index = catalog.index(name).unwrap();
        let both = catalog.memory_bytes() - nothing;
        let codebook = (4 * 256 * index.dim()) as u64;
        (both - codebook, codebook)
    }
}

fn rows(catalog: &Catalog, name: &str) -> usize {
    catalog.index(name).unwrap().len()
}

fn is_open(index: &Weak<Index>) -> bool {
    index.strong_count() > 0
}

fn weak(catalog: &Catalog, name: &str) -> Weak<Index> {
    Arc::downgrade(&catalog.index(name).unwrap())
}

#[test]
fn names_are_those_of_directories_with_a_manifest() {
    let place = Place::new();
    let catalog = place.catalog(None);
    assert_eq!(catalog.names().unwrap(), Vec::<String>::new());
    assert!(catalog.is_empty().unwrap());
    let error = catalog.index("photos").unwrap_err();
    assert!(error.to_string().contains("no index at all"), "{error}");

    let codebook = codebook(1);
    place.add("zebra", 100, &codebook);
    place.add("Ant", 120, &codebook);
    fs::create_dir(place.path("unfinished")).unwrap();
    fs::write(place.path("file"), "no index").unwrap();
    assert_eq!(catalog.names().unwrap(), ["Ant", "zebra"]);
    assert_eq!(catalog.len().unwrap(), 2);
    assert!(catalog.contains("zebra") && !catalog.contains("unfinished"));
    assert!(!catalog.contains("zebra/../Ant") && !catalog.contains(""));
    assert_eq!(catalog.open_count(), 0, "`names` opened an index");
    assert_eq!(rows(&catalog, "Ant"), 120);
    assert_eq!(catalog.open_count(), 1);

    let facts = catalog.facts("zebra").unwrap();
    assert_eq!((facts.vectors, facts.dimension), (100, 128));
    assert_eq!((&*facts.preset, &*facts.layout), ("aisaq", "inline"));
    assert_eq!(facts.codebook, codebook.hash());
    assert_eq!(catalog.open_count(), 1, "`facts` opened an index");
}

#[test]
fn a_wrong_name_is_refused_with_those_that_are_like_it() {
    let codebook = codebook(1);
    let place = Place::with_three(&codebook);
    let catalog = place.catalog(None);
    for name in ["", ".", "..", "../a", "a/", "/etc", "a\\b", "a\0"] {
        let error = catalog.index(name).unwrap_err();
        let text = error.to_string();
        assert!(matches!(error, Error::NoSuchIndex { .. }), "{error}");
        assert!(
            text.contains("separator") && text.contains("a, b, c"),
            "{text}"
        );
        assert!(error.is_call_wrong());
    }
    let text = catalog.index("d").unwrap_err().to_string();
    assert!(
        text.contains("\"d\"") && text.contains("there are a, b, c"),
        "{text}"
    );
    for n in 0..30 {
        place.link("a", &format!("photos-{n:02}"));
    }
    let text = catalog.index("Photo-17").unwrap_err().to_string();
    let (_, likely) = text
        .split_once("of 33 indexes, the most similar names are ")
        .unwrap();
    assert!(likely.starts_with("photos-17, "), "{text}");
    assert_eq!(likely.split(", ").count(), 8, "{text}");
    fs::create_dir(place.path("unfinished")).unwrap();
    let text = catalog.index("unfinished").unwrap_err().to_string();
    assert!(text.contains("no MANIFEST"), "{text}");
}

/// A directory without the right to read, and a link to itself, count as possible indexes.
#[cfg(unix)]
#[test]
fn what_cannot_be_looked_at_is_not_left_out() {
    let place = Place::with_three(&codebook(1));
    // Only root may read this directory at the root of a file system.
    std::os::unix::fs::symlink("lost+found", place.path("lost+found")).unwrap();
    let catalog = place.catalog(None);
    assert_eq!(catalog.names().unwrap().len(), 3);
    std::os::unix::fs::symlink("round", place.path("round")).unwrap();
    let error = catalog.names().unwrap_err().to_string();
    assert!(error.contains("round"), "{error}");
    let error = Index::open(place.dir(), &OpenOptions::default()).unwrap_err();
    assert!(matches!(error, Error::NotAnIndex { .. }), "{error}");
    assert!(error.to_string().contains("round"), "{error}");
    let paths = [place.path("a"), place.path("round")];
    let catalog = Catalog::of_paths(paths, &CatalogOptions::default()).unwrap();
    assert!(catalog.names().is_err());
}

#[test]
fn what_cannot_be_a_catalog_is_refused() {
    let codebook = codebook(1);
    let place = Place::with_three(&codebook);
    let refused = |path: &Path, options: &CatalogOptions, words: &[&str]| {
        let error = Catalog::open(path, options).unwrap_err();
        let text = error.to_string();
        for word in words {
            assert!(text.contains(word), "{word}: {text}");
        }
        assert!(error.is_call_wrong(), "{text}");
    };
    let plain = CatalogOptions::default();
    refused(
        &place.path("a"),
        &plain,
        &["an index", "its parent directory"],
    );
    refused(&place.path("missing"), &plain, &["missing", "not there"]);
    refused(&place.path("a/MANIFEST"), &plain, &["a file"]);
    let low = CatalogOptions {
        memory: Some(1_000_000),
        ..plain.clone()
    };
    refused(place.dir(), &low, &["1000000", "the program"]);
    let twice = CatalogOptions {
        open: OpenOptions {
            memory: Some(64_000_000),
            ..OpenOptions::default()
        },
        ..plain.clone()
    };
    refused(place.dir(), &twice, &["64000000", "the catalog's own"]);
    assert!(Catalog::of_paths(Vec::<PathBuf>::new(), &plain).is_err());
}

#[test]
fn the_least_recently_used_index_goes_first() {
    let codebook = codebook(1);
    let place = Place::with_three(&codebook);
    let (own, shared) = place.costs("c");
    assert!(
        (8_000..40_000).contains(&own),
        "the index has {own} bytes beside the codebook"
    );
    // All indexes take the same memory, because codes are stored with the nodes.
    assert_eq!(place.costs("a"), (own, shared));
    let budget = place.budget(shared + 2 * own);
    let catalog = place.catalog(Some(budget));
    let (a, b) = (weak(&catalog, "a"), weak(&catalog, "b"));
    assert!(is_open(&a) && is_open(&b));
    assert_eq!(catalog.memory_bytes(), budget);
    weak(&catalog, "a");
    let c = weak(&catalog, "c");
    assert!(is_open(&a) && !is_open(&b) && is_open(&c));
    assert_eq!(catalog.open_count(), 2);
    let b = weak(&catalog, "b");
    assert!(!is_open(&a) && is_open(&b) && is_open(&c));
    assert_eq!(catalog.memory_bytes(), budget);
    assert!(catalog.close("b") && !catalog.close("b") && !catalog.close("nonsense"));
    assert!(!is_open(&b));
    assert_eq!(catalog.memory_bytes(), budget - own);
    assert!(catalog.close("c"));
    assert_eq!(
        (catalog.codebook_count(), catalog.memory_bytes()),
        (1, budget - 2 * own)
    );
}

#[test]
fn no_order_of_calls_exceeds_the_budget() {
    let place = Place::new();
    let codebooks = [codebook(1), codebook(2), codebook(3)];
    for (n, (preset, rows)) in [
        (Preset::AISAQ, 200),
        (Preset::DISKANN, 3_000),
        (Preset::STRATANN, 1_000),
        (Preset::DISKANN, 900),
        (Preset::AISAQ, 300),
        (Preset::DECOUPLEVS, 700),
    ]
    .into_iter()
    .enumerate()
    {
        let options = small(preset, &codebooks[n % 3]);
        build(&base(rows), place.path(&n.to_string()), &options, &Silent).unwrap();
    }
    let budget = place.budget(560_000);
    let catalog = place.catalog(Some(budget));
    let mut held: Vec<Arc<Index>> = Vec::new();
    let (mut opened, mut refused, mut state) = (0, 0, 7_u32);
    for _ in 0..400 {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let (name, action) = ((state >> 16) % 6, (state >> 24) % 8);
        let name = name.to_string();
        match action {
            0 => {
                catalog.close(&name);
            }
            1 | 2 => held.clear(),
            _ => match catalog.index(&name) {
                Ok(index) => {
                    opened += 1;
                    if action > 5 {
                        held.push(index);
                    }
                }
                Err(Error::Memory {
                    budget: given,
                    needs,
                    part,
                }) => {
                    refused += 1;
                    assert!(given == budget && needs > budget, "{needs}");
                    assert!(part.contains("in use") && !held.is_empty(), "{part}");
                }
                Err(error) => panic!("{error}"),
            },
        }
        let bytes = catalog.memory_bytes();
        assert!(bytes <= budget, "{bytes} bytes in use, budget {budget}");
    }
    assert!(
        opened > 100 && refused > 0,
        "{opened} indexes opened, {refused} refused"
    );
}

#[test]
fn an_index_that_can_never_fit_is_refused_with_the_bytes() {
    let codebook = codebook(1);
    let place = Place::with_three(&codebook);
    let (own, shared) = place.costs("a");
    let (low, enough) = (place.budget(own + shared - 1), place.budget(own + shared));
    let catalog = place.catalog(Some(low));
    let before = catalog.memory_bytes();
    match catalog.index("a") {
        Err(error @ Error::Memory { budget, needs, .. }) => {
            assert_eq!((budget, needs), (low, enough));
            assert!(error.to_string().contains("\"a\" alone"), "{error}");
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(
        (catalog.memory_bytes(), catalog.codebook_count()),
        (before, 0)
    );
    assert_eq!(rows(&place.catalog(Some(enough)), "a"), 200);
}

#[test]
fn what_callers_hold_is_not_free() {
    let codebook = codebook(1);
    let place = Place::with_three(&codebook);
    let (own, shared) = place.costs("a");
    let budget = place.budget(shared + 2 * own);
    let catalog = place.catalog(Some(budget));
    let (a, b) = (catalog.index("a").unwrap(), catalog.index("b").unwrap());
    let error = catalog.index("c").unwrap_err();
    assert!(error.to_string().contains("indexes in use (2)"), "{error}");
    // Closing an index in use frees no memory. A later request for this index fails, because it
    // would open the index a second time.
    assert!(catalog.close("a"));
    assert_eq!((catalog.memory_bytes(), catalog.open_count()), (budget, 2));
    assert!(catalog.index("c").is_err() && catalog.index("a").is_err());
    assert_eq!(a.len(), 200);
    drop(a);
    assert_eq!(
        (catalog.memory_bytes(), catalog.open_count()),
        (budget - own, 1)
    );
    assert_eq!(rows(&catalog, "c"), 400);
    assert!(Arc::ptr_eq(&b, &catalog.index("b").unwrap()));
}

#[test]
fn indexes_of_one_space_share_a_codebook_and_a_switch_does_not_read_it_again() {
    let (x, y) = (codebook(1), codebook(2));
    let place = Place::new();
    place.add("a", 200, &x);
    place.add("b", 300, &x);
    place.add("other", 250, &y);
    let catalog = place.catalog(None);
    let (a, b) = (catalog.index("a").unwrap(), catalog.index("b").unwrap());
    assert!(
        a.codebook()
            .unwrap()
            .shares_memory_with(b.codebook().unwrap())
    );
    assert_eq!(catalog.codebook_count(), 1);
    let other = catalog.index("other").unwrap();
    assert!(
        !other
            .codebook()
            .unwrap()
            .shares_memory_with(a.codebook().unwrap())
    );
    assert_eq!(catalog.codebook_count(), 2);

    let (own, shared) = place.costs("a");
    let catalog = place.catalog(Some(place.budget(own + shared)));
    let first = catalog.index("a").unwrap().codebook().unwrap().clone();
    for name in ["b", "a", "b"] {
        let index = catalog.index(name).unwrap();
        assert!(
            index.codebook().unwrap().shares_memory_with(&first),
            "{name}"
        );
        assert_eq!((catalog.open_count(), catalog.codebook_count()), (1, 1));
    }
    assert_eq!(rows(&catalog, "other"), 250);
    assert_eq!(catalog.codebook_count(), 1);
    assert!(
        !catalog
            .index("a")
            .unwrap()
            .codebook()
            .unwrap()
            .shares_memory_with(&first)
    );

    // The catalog keeps the codebook that was used last, even if no index uses it.
    let catalog = place.catalog(Some(place.budget(own + 2 * shared)));
    let first = catalog.index("a").unwrap().codebook().unwrap().clone();
    assert_eq!(rows(&catalog, "other"), 250);
    assert_eq!((catalog.open_count(), catalog.codebook_count()), (1, 2));
    assert!(
        catalog
            .index("b")
            .unwrap()
            .codebook()
            .unwrap()
            .shares_memory_with(&first)
    );
}

#[test]
fn a_codebook_that_is_not_what_the_manifest_says_is_not_shared() {
    let (x, y) = (codebook(1), codebook(2));
    let place = Place::new();
    place.add("liar", 200, &x);
    place.add("honest", 200, &y);
    let path = place.path("liar/MANIFEST");
    let mut manifest = Manifest::decode(&fs::read(&path).unwrap(), "MANIFEST").unwrap();
    manifest.codebook = y.hash().to_owned();
    fs::write(&path, manifest.encode()).unwrap();
    let catalog = place.catalog(None);
    let error = catalog.index("liar").unwrap_err();
    assert!(error.to_string().contains("codebook"), "{error}");
    assert_eq!((catalog.open_count(), catalog.codebook_count()), (0, 0));
    let before = catalog.memory_bytes();
    assert_eq!(
        catalog.index("honest").unwrap().codebook().unwrap().hash(),
        y.hash()
    );
    catalog.close("honest");
    assert!(catalog.memory_bytes() > before);
}

#[test]
fn an_index_that_was_replaced_or_removed_is_noticed() {
    let (x, y) = (codebook(1), codebook(2));
    let place = Place::with_three(&x);
    let catalog = place.catalog(None);
    let old = catalog.index("a").unwrap();
    assert!(Arc::ptr_eq(&old, &catalog.index("a").unwrap()));
    place.add("a", 350, &y);
    let new = catalog.index("a").unwrap();
    assert_eq!((old.len(), new.len()), (200, 350));
    assert_eq!(new.codebook().unwrap().hash(), y.hash());
    assert_eq!(
        catalog.open_count(),
        2,
        "the handle of the replaced index is not counted"
    );
    let options = SearchOptions {
        k: 1,
        list: 30,
        ..SearchOptions::default()
    };
    let row = base(1);
    assert_eq!(old.search(&row, &options).unwrap().distances, [0.0]);
    assert_eq!(new.search(&row, &options).unwrap().distances, [0.0]);
    drop(old);
    assert_eq!(catalog.open_count(), 1);
    place.add("a", 350, &y);
    assert!(!Arc::ptr_eq(&new, &catalog.index("a").unwrap()));
    drop(new);

    fs::remove_dir_all(place.path("a")).unwrap();
    let error = catalog.index("a").unwrap_err();
    assert!(matches!(error, Error::NoSuchIndex { .. }), "{error}");
    assert_eq!(catalog.open_count(), 0);
    assert!(!catalog.contains("a") && catalog.len().unwrap() == 2);
    place.add("a", 100, &x);
    assert_eq!(rows(&catalog, "a"), 100);
}

#[test]
fn what_somebody_changes_is_seen() {
    let place = Place::with_three(&codebook(1));
    let catalog = place.catalog(None);
    let all = SearchOptions {
        k: 1,
        list: 400,
        ..SearchOptions::default()
    };
    let nearest = |row: usize| {
        let (found, rows) = (base(row + 1), 128);
        let query = &found.in_memory().unwrap()[row * rows..];
        let query = MatrixRef::new(query, 1, rows, Element::U8).unwrap();
        (catalog.index("a").unwrap().search(&query, &all).unwrap()).distances[0]
    };
    assert_eq!(nearest(7), 0.0);
    let inner = catalog.index("a").unwrap();
    for row in [7, 8] {
        let options = WriteOptions::default();
        let live = match row {
            7 => LiveIndex::over(&inner, &options),
            _ => LiveIndex::open(place.path("a"), &OpenOptions::default(), &options),
        };
        let live = live.unwrap();
        assert_eq!(nearest(row), 0.0);
        live.delete(&[row as u64]).unwrap();
        assert!(nearest(row) > 0.0, "a deleted vector is a result");
        let ids: Vec<u64> = (1_000..).take(row + 1).collect();
        live.upsert(&base(row + 1), &ids, &Silent).unwrap();
        assert_eq!(nearest(row), 0.0, "an inserted vector is no result");
        live.compact(&Silent).unwrap();
        assert_eq!(nearest(row), 0.0);
    }
}

pub(super) fn change(catalog: &Catalog, name: &str) -> Result<LiveIndex, Error> {
    let index = catalog.index(name)?;
    LiveIndex::over(&index, &WriteOptions::default())
}

/// The bytes that the program takes of any budget.
const PROGRAM: u64 = 8 << 20;

/// Changes an index when the first query is done, and closes it after each change.
struct Changing<'a> {
    index: &'a Path,
    done: AtomicUsize,
}

impl Progress for Changing<'_> {
    fn begin(&self, _: &str, _: u64) {}

    fn advance(&self, _: u64) {
        if self.done.fetch_add(1, Ordering::Relaxed) > 0 {
            return;
        }
        let options = WriteOptions {
            direct: DirectOptions {
                merge_many: false,
                ..DirectOptions::default()
            },
            ..WriteOptions::default()
        };
        let rows = base(400);
        for turn in 0..4_u64 {
            let live = LiveIndex::open(self.index, &OpenOptions::default(), &options).unwrap();
            for id in 300 + 20 * turn..320 + 20 * turn {
                let mut row = vec![0; rows.row_bytes()];
                rows.read(id as usize, &mut row).unwrap();
                let row = MatrixRef::new(&row, 1, rows.dim(), Element::U8).unwrap();
                live.insert(&row, Some(&[id]), &Silent).unwrap();
            }
        }
    }

    fn end(&self) {}

    fn interrupted(&self) -> bool {
        false
    }

    fn warn(&self, _: &str) {}
}

#[test]
fn an_index_that_changes_during_a_search_is_searched_again() {
    let place = Place::new();
    let options = BuildOptions {
        degree: Some(16),
        build_list: 32,
        threads: 1,
        ..BuildOptions::default()
    };
    build(&base(300), place.path("a"), &options, &Silent).unwrap();
    let catalog = Catalog::open(place.dir(), &CatalogOptions::default()).unwrap();
    let options = SearchOptions {
        k: 5,
        list: 300,
        threads: 1,
        in_flight: Some(1),
        ..SearchOptions::default()
    };
    let changing = Changing {
        index: &place.path("a"),
        done: AtomicUsize::new(0),
    };
    let found = catalog.search_observed(&["a"], &base(380), &options, &changing);
    let found = found.unwrap();
    // The whole batch is searched again, so its first queries also see the change.
    assert!(changing.done.into_inner() > 380);
    for (row, ids) in found.ids.chunks(5).enumerate() {
        assert!(ids.contains(&(row as u64)), "{row}: {ids:?}");
    }
}

#[test]
fn what_is_changed_through_a_catalog_is_within_its_budget() {
    let codebook = codebook(1);
    let place = Place::new();
    let presets = [
        Preset::AISAQ,
        Preset::DISKANN,
        Preset::STRATANN,
        Preset::DECOUPLEVS,
        Preset::SPANN,
    ];
    for (n, preset) in presets.into_iter().enumerate() {
        let options = match preset {
            Preset::SPANN => BuildOptions {
                preset,
                threads: 1,
                ..BuildOptions::default()
            },
            _ => small(preset, &codebook),
        };
        build(&base(400), place.path(&n.to_string()), &options, &Silent).unwrap();
    }
    let budget = place.budget(24 << 20);
    let catalog = place.catalog(Some(budget));
    let nothing = catalog.memory_bytes();
    for (n, preset) in presets.into_iter().enumerate() {
        let live = change(&catalog, &n.to_string()).unwrap();
        let own = live.index().memory().budget;
        let own = own.unwrap_or_else(|| panic!("{preset}: changes have no budget"));
        let counted = catalog.memory_bytes();
        assert!(
            own - PROGRAM + nothing <= counted,
            "{preset}: budget {own}, {counted} bytes counted"
        );
        assert!(
            counted <= budget,
            "{preset}: {counted} bytes counted, budget {budget}"
        );
        let ids: Vec<u64> = (1_000..1_300).collect();
        live.upsert(&base(300), &ids, &Silent).unwrap();
        live.delete(&[7]).unwrap();
        live.compact(&Silent).unwrap();
        assert_eq!(live.index().memory().budget, Some(own), "{preset}");
        assert_eq!(catalog.memory_bytes(), counted, "{preset}");
        let ids: Vec<u64> = (2_000..2_300).collect();
        live.upsert(&base(300), &ids, &Silent).unwrap();
        let found = catalog.index(&n.to_string()).unwrap();
        assert_eq!(found.live(), 400 + 600 - 1, "{preset}");
        drop(found);
        assert!(catalog.memory_bytes() <= budget, "{preset}");
        drop(live);
        catalog.close(&n.to_string());
        let left = catalog.memory_bytes() - nothing;
        assert!(left <= 4 * 256 * 128, "{preset}: {left} bytes stay in use");
    }
}

#[test]
fn what_waits_in_memory_ends_where_the_budget_does() {
    let place = Place::new();
    let options = small(Preset::DISKANN, &codebook(1));
    build(&base(400), place.path("a"), &options, &Silent).unwrap();
    let budget = place.budget(6 << 20);
    let catalog = place.catalog(Some(budget));
    let live = change(&catalog, "a").unwrap();
    let rows = base(1_000);
    let most = budget / 128 / 1_000 + 2;
    let refused = (1..most).find_map(|turn| {
        let ids: Vec<u64> = (turn * 1_000..).take(1_000).collect();
        live.upsert(&rows, &ids, &Silent).err()
    });
    let error = refused.expect("a change over the budget was accepted");
    assert_eq!(error.kind(), ErrorKind::Memory, "{error}");
    assert!(error.to_string().contains("stratann compact"), "{error}");
    assert!(catalog.memory_bytes() <= budget);
}

#[test]
fn a_change_for_which_there_is_no_room_is_refused_and_leaves_nothing() {
    let codebook = codebook(1);
    let place = Place::with_three(&codebook);
    let (own, shared) = place.costs("a");
    let low = place.budget(own + shared);
    let catalog = place.catalog(Some(low));
    let index = catalog.index("a").unwrap();
    let before = catalog.memory_bytes();
    let needs = match LiveIndex::over(&index, &WriteOptions::default()) {
        Err(error @ Error::Memory { .. }) => {
            let text = error.to_string();
            assert!(
                text.contains("a change of the index") && text.contains("alone"),
                "{text}"
            );
            let Error::Memory { budget, needs, .. } = error else {
                unreachable!()
            };
            assert_eq!(budget, low);
            needs
        }
        other => panic!("{other:?}"),
    };
    assert_eq!(catalog.memory_bytes(), before);
    let alone = LiveIndex::open(place.path("a"), index.options(), &WriteOptions::default());
    drop(alone.unwrap());
    drop((index, catalog));
    let catalog = place.catalog(Some(needs + 1_000));
    let held = catalog.index("b").unwrap();
    let error = change(&catalog, "a").unwrap_err();
    assert!(error.to_string().contains("indexes in use (1"), "{error}");
    drop(held);
    let live = change(&catalog, "a").unwrap();
    assert!(catalog.memory_bytes() <= needs + 1_000);
    let error = catalog.index("b").unwrap_err();
    assert!(error.to_string().contains("in use"), "{error}");
    drop(live);
    assert_eq!(rows(&catalog, "b"), 300);
}

#[test]
fn several_are_changed_at_once_and_each_has_a_part() {
    let place = Place::with_three(&codebook(1));
    let budget = place.budget(40 << 20);
    let catalog = place.catalog(Some(budget));
    let live = ["a", "b", "c"].map(|name| change(&catalog, name).unwrap());
    let own = live
        .each_ref()
        .map(|live| live.index().memory().budget.unwrap());
    assert!(own.iter().sum::<u64>() <= budget + 2 * PROGRAM, "{own:?}");
    assert_eq!(catalog.open_count(), 3, "{catalog:?}");
    let all = catalog.memory_bytes();
    assert!(all <= budget, "{all} bytes in use, budget {budget}");
    drop(live);
    assert!(catalog.memory_bytes() < all);
}

#[test]
fn what_is_opened_again_is_counted_and_outlives_the_catalog() {
    let place = Place::with_three(&codebook(1));
    let (own, shared) = place.costs("a");
    let budget = place.budget(2 * own + shared);
    let catalog = place.catalog(Some(budget));
    let first = catalog.index("a").unwrap();
    let opener = first.opener();
    assert_eq!(opener.options().memory, None);
    let again = opener.open(place.path("a")).unwrap();
    assert_eq!((catalog.memory_bytes(), catalog.open_count()), (budget, 2));
    // The new handle replaces the open index, though both together exceed the budget.
    let third = again.opener().open(place.path("a")).unwrap();
    assert_eq!(catalog.memory_bytes(), budget + own);
    let error = catalog.index("b").unwrap_err();
    assert!(error.to_string().contains("in use"), "{error}");
    drop((again, third));
    assert_eq!(
        (catalog.memory_bytes(), catalog.open_count()),
        (budget - own, 1)
    );
    drop(catalog);
    let error = LiveIndex::over(&first, &WriteOptions::default()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Memory, "{error}");
    assert_eq!(opener.open(place.path("a")).unwrap().len(), 200);
}

#[test]
fn an_index_that_does_not_open_leaves_the_others_and_takes_nothing() {
    let codebook = codebook(1);
    let place = Place::with_three(&codebook);
    let catalog = place.catalog(None);
    rows(&catalog, "b");
    let (count, bytes) = (catalog.open_count(), catalog.memory_bytes());
    let entries = fs::read_dir(place.path("a")).unwrap();
    let file = entries
        .map(|entry| entry.unwrap().path())
        .find(|path| path.to_string_lossy().contains("/entries-"))
        .unwrap();
    let mut damaged = fs::read(&file).unwrap();
    damaged[4096 + 20] ^= 1;
    fs::write(&file, &damaged).unwrap();
    let text = catalog.index("a").unwrap_err().to_string();
    assert!(text.contains("entries-"), "{text}");
    fs::write(place.path("c/MANIFEST"), "nonsense").unwrap();
    assert!(catalog.index("c").is_err());
    assert_eq!(
        (catalog.open_count(), catalog.memory_bytes()),
        (count, bytes)
    );
    assert_eq!(rows(&catalog, "b"), 300);
    damaged[4096 + 20] ^= 1;
    fs::write(&file, &damaged).unwrap();
    assert_eq!(rows(&catalog, "a"), 200);
}

#[test]
fn so_many_and_no_more_are_open() {
    let codebook = codebook(1);
    let place = Place::new();
    place.add("0", 20, &codebook);
    for n in 1..MOST_OPEN + 3 {
        place.link("0", &n.to_string());
    }
    let catalog = place.catalog(None);
    let first = weak(&catalog, "0");
    for n in 1..MOST_OPEN {
        rows(&catalog, &n.to_string());
    }
    assert_eq!(catalog.open_count(), MOST_OPEN);
    assert!(is_open(&first));
    let held: Vec<_> = (0..MOST_OPEN + 2)
        .map(|n| catalog.index(&n.to_string()))
        .collect();
    let refused: Vec<&Error> = held.iter().filter_map(|one| one.as_ref().err()).collect();
    assert_eq!((refused.len(), catalog.open_count()), (2, MOST_OPEN));
    assert!(
        refused[0].to_string().contains("Drop the indexes"),
        "{}",
        refused[0]
    );
    drop(held);
    rows(&catalog, &(MOST_OPEN + 1).to_string());
    assert_eq!(catalog.open_count(), MOST_OPEN);
    assert!(!is_open(&first));
}

#[test]
fn threads_open_search_and_close_at_once() {
    let (x, y) = (codebook(1), codebook(2));
    let place = Place::with_three(&x);
    place.add("d", 250, &y);
    place.add("e", 350, &y);
    let (own, shared) = place.costs("a");
    // The budget is too small for all indexes, but suffices for the indexes in use at once.
    let budget = place.budget(2 * shared + 4 * own);
    let catalog = place.catalog(Some(budget));
    let row = base(1);
    let options = SearchOptions {
        k: 1,
        list: 30,
        ..SearchOptions::default()
    };
    let searched = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for thread in 0..4_usize {
            let (catalog, row, options, searched) = (&catalog, &row, &options, &searched);
            scope.spawn(move || {
                for round in 0..60 {
                    let name = ["a", "b", "c", "d", "e"][(thread * 2 + round * (thread + 1)) % 5];
                    // Four large indexes exceed the budget, so one thread waits for another.
                    let index = loop {
                        match catalog.index(name) {
                            Ok(index) => break index,
                            Err(Error::Memory { .. }) => std::thread::yield_now(),
                            Err(error) => panic!("{name}: {error}"),
                        }
                    };
                    let found = index.search(row, options).unwrap();
                    assert_eq!((found.ids[0], found.distances[0]), (0, 0.0), "{name}");
                    searched.fetch_add(1, Ordering::Relaxed);
                    drop(index);
                    assert!(catalog.memory_bytes() <= budget);
                    if round % 7 == thread {
                        catalog.close(name);
                    }
                }
            });
        }
    });
    assert_eq!(searched.into_inner(), 4 * 60);
}

#[test]
fn threads_that_want_one_index_open_it_once() {
    let codebook = codebook(1);
    let place = Place::with_three(&codebook);
    let catalog = place.catalog(None);
    let opened: Vec<Arc<Index>> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..8)
            .map(|_| scope.spawn(|| catalog.index("b").unwrap()))
            .collect();
        threads.into_iter().map(|t| t.join().unwrap()).collect()
    });
    assert!(opened.iter().all(|index| Arc::ptr_eq(index, &opened[0])));
    assert_eq!(catalog.open_count(), 1);
}

/// Four indexes of 500 vectors each. The id of a vector is its row number.
fn quarters(place: &Place) -> [&'static str; 4] {
    let (all, codebook) = (base(2_000), codebook(1));
    let names = ["north", "east", "south", "west"];
    let presets = [
        Preset::AISAQ,
        Preset::DISKANN,
        Preset::STRATANN,
        Preset::AISAQ,
    ];
    for (n, (name, preset)) in names.into_iter().zip(presets).enumerate() {
        let quarter = 500 * all.row_bytes();
        let rows = &all.bytes()[n * quarter..][..quarter];
        let rows = MatrixRef::new(rows, 500, all.dim(), all.element()).unwrap();
        let options = BuildOptions {
            ids: Some((500 * n as u64..500 * (n as u64 + 1)).collect()),
            ..small(preset, &codebook)
        };
        build(&rows, place.path(name), &options, &Silent).unwrap();
    }
    names
}

#[test]
fn a_search_of_several_indexes_is_that_of_their_union() {
    let place = Place::new();
    let names = quarters(&place);
    let queries = queries(50);
    let truth = brute_force(&base(2_000), &queries, 20, Metric::L2, 2, &Silent).unwrap();
    let options = SearchOptions {
        k: 20,
        list: 500,
        threads: 2,
        parts: true,
        ..SearchOptions::default()
    };
    let catalog = place.catalog(None);
    let found = catalog.search(&names, &queries, &options).unwrap();
    let ids: Vec<u64> = truth.ids.clone();
    assert_eq!((found.k, &found.ids), (20, &ids));
    assert_eq!(Some(&found.distances), truth.distances.as_ref());

    let each = names.map(|name| {
        let index = catalog.index(name).unwrap();
        index.search(&queries, &options).unwrap()
    });
    let sum: u64 = each.iter().map(|one| one.counters.hops).sum();
    assert_eq!(found.counters.hops, sum);
    assert!(each.iter().all(|one| one.counters.graph_reads > 0));
    assert_eq!(found.latencies_us.len(), 50);
    assert!(found.latencies_us.iter().all(|&us| us > 0.0));
    assert!(found.seconds > 0.0 && found.parts.is_some());
    // The queries run one after the other, and a latency covers the work in all indexes.
    let alone = SearchOptions {
        threads: 1,
        in_flight: Some(1),
        ..options
    };
    let alone = catalog.search(&names, &queries, &alone).unwrap();
    let latencies: f64 = alone.latencies_us.iter().map(|&us| f64::from(us)).sum();
    let parts = alone.parts.unwrap();
    let parts = parts.reads + parts.codes + parts.list_decoding + parts.exact;
    let took = latencies * 1e-6;
    assert!(took > 0.99 * parts, "{took}, {parts}");
    assert!(took < 1.01 * alone.seconds, "{took}, {}", alone.seconds);

    let again = ["west", "east", "east", "north", "south"];
    let again = catalog.search(&again, &queries, &options).unwrap();
    assert_eq!((&again.ids, again.counters.hops), (&found.ids, sum));

    let costs = names.map(|name| place.costs(name).0);
    let room = place.costs(names[0]).1 + costs.into_iter().max().unwrap();
    let catalog = place.catalog(Some(place.budget(room)));
    let tight = catalog.search(&names, &queries, &options).unwrap();
    assert_eq!(tight.ids, found.ids);
}

/// The index `south` has no attributes, and only `east` has colours. In `wild`, the values of
/// `part` are texts.
fn row(name: &str, id: u64) -> Row {
    let part = match name {
        "wild" => Value::String("x".into()),
        _ => Value::Integer(id as i64 % 7),
    };
    let colour = Value::String(if id.is_multiple_of(2) { "red" } else { "blue" }.into());
    let mut row = Row::default();
    row.attributes.insert("part".into(), part);
    if name == "east" {
        row.attributes.insert("colour".into(), colour);
    }
    row
}

fn quarters_with_rows(place: &Place) -> [&'static str; 4] {
    let (all, codebook) = (base(2_000), codebook(1));
    let names = ["south", "north", "east", "west"];
    for (n, name) in names.into_iter().enumerate() {
        let rows = all.bytes().chunks_exact(500 * all.row_bytes()).nth(n);
        let rows = MatrixRef::new(rows.unwrap(), 500, all.dim(), all.element()).unwrap();
        let ids: Vec<u64> = (500 * n as u64..500 * (n as u64 + 1)).collect();
        let options = BuildOptions {
            ids: Some(ids.clone()),
            ..small(Preset::AISAQ, &codebook)
        };
        if name == "south" {
            build(&rows, place.path(name), &options, &Silent).unwrap();
            continue;
        }
        let beside = RowTable::new(ids.iter().map(|&id| row(name, id)).collect());
        build_with_rows(&rows, &beside, place.path(name), &options, &Silent).unwrap();
    }
    names
}

#[test]
fn a_search_of_several_indexes_with_a_filter_is_that_of_what_matches_in_their_union() {
    let place = Place::new();
    let names = quarters_with_rows(&place);
    let (all, queries) = (base(2_000), queries(20));
    let options = SearchOptions {
        k: 20,
        list: 500,
        threads: 2,
        ..SearchOptions::default()
    };
    let costs = names.map(|name| place.costs(name).0);
    let room = place.costs(names[0]).1 + costs.into_iter().max().unwrap();
    let tight = place.catalog(Some(place.budget(room)));
    let wide = place.catalog(None);
    type Matches = fn(u64) -> bool;
    let filters: [(&str, Matches); 5] = [
        ("part == 3", |id| id >= 500 && id % 7 == 3),
        ("colour == 'red'", |id| {
            (1_000..1_500).contains(&id) && id % 2 == 0
        }),
        ("colour != 'red' and part < 2", |id| {
            id >= 500 && id % 7 < 2 && !((1_000..1_500).contains(&id) && id % 2 == 0)
        }),
        ("not exists colour", |id| !(1_000..1_500).contains(&id)),
        ("part == 6 and colour == 'blue' and part > 7", |_| false),
    ];
    for (text, matches) in filters {
        let ids: Vec<u64> = (0..2_000).filter(|&id| matches(id)).collect();
        let rows = ids.iter().flat_map(|&id| all.row(id as usize)).copied();
        let wanted = queries.rows() * 20;
        let mut expected = vec![u64::MAX; wanted];
        if !ids.is_empty() {
            let rows = Matrix::new(rows.collect(), ids.len(), all.dim(), all.element()).unwrap();
            let truth = brute_force(&rows, &queries, 20, Metric::L2, 2, &Silent).unwrap();
            expected = truth.ids.iter().map(|&row| ids[row as usize]).collect();
        }
        let filter = Filter::parse(text).unwrap();
        for catalog in [&wide, &tight] {
            let found = catalog.search_filtered(&names, &queries, &options, &filter);
            let found = found.unwrap_or_else(|error| panic!("{text}: {error}"));
            assert_eq!(found.ids, expected, "{text}");
            let explained = found.explained.unwrap();
            assert_eq!(explained.matching, ids.len() as u64, "{text}");
            let indexes = explained.indexes;
            assert_eq!(indexes.within + indexes.before, 4, "{text}");
        }
    }
}

#[test]
fn a_filter_that_does_not_fit_several_indexes_is_told() {
    let place = Place::new();
    let names = quarters_with_rows(&place);
    let catalog = place.catalog(None);
    let search = |names: &[&str], text: &str| {
        let filter = Filter::parse(text).unwrap();
        let found = catalog.search_filtered(names, &queries(1), &SearchOptions::default(), &filter);
        match found {
            Err(error @ Error::Filter { .. }) => error.to_string(),
            other => panic!("{text}: {other:?}"),
        }
    };
    let said = search(&names, "part == 3 or colr == 'red'");
    assert!(said.contains("did you mean \"colour\""), "{said}");
    assert!(
        said.contains("character 14") && !said.contains("index \""),
        "{said}"
    );
    let said = search(&names, "part == 'x'");
    assert!(
        said.contains("integer") && !said.contains("index \""),
        "{said}"
    );
    let rows = base(100);
    let beside = RowTable::new((0..100).map(|id| row("wild", id)).collect());
    let options = small(Preset::AISAQ, &codebook(1));
    build_with_rows(&rows, &beside, place.path("wild"), &options, &Silent).unwrap();
    let said = search(&["north", "south", "wild"], "part == 3");
    assert!(said.contains("(index \"wild\")"), "{said}");
    let said = search(&["south"], "part == 3");
    assert!(said.contains("(index \"south\")"), "{said}");
}

#[test]
fn an_index_may_have_fewer_vectors_than_answers_are_wanted() {
    let (codebook, place) = (codebook(1), Place::new());
    place.add("few", 5, &codebook);
    let options = BuildOptions {
        ids: Some((1_000..1_100).collect()),
        ..small(Preset::AISAQ, &codebook)
    };
    build(&base(100), place.path("more"), &options, &Silent).unwrap();
    let catalog = place.catalog(None);
    let options = SearchOptions {
        k: 10,
        list: 100,
        ..SearchOptions::default()
    };
    let found = catalog
        .search(&["few", "more"], &base(5), &options)
        .unwrap();
    for (row, ids) in found.ids.chunks_exact(10).enumerate() {
        // Each vector is in both indexes, under two ids.
        assert_eq!(ids[..2], [row as u64, 1_000 + row as u64]);
        assert!(ids.iter().all(|&id| id != u64::MAX));
    }
    let all = SearchOptions {
        k: 106,
        list: 200,
        ..options
    };
    let found = catalog.search(&["few", "more"], &base(5), &all).unwrap();
    for (ids, distances) in found.ids.chunks(106).zip(found.distances.chunks(106)) {
        assert!(ids[..105].iter().all(|&id| id != u64::MAX));
        assert_eq!((ids[105], distances[105]), (u64::MAX, f32::INFINITY));
    }
    let beyond = SearchOptions {
        k: 1 << 17,
        list: 1 << 17,
        ..options
    };
    let error = catalog
        .search(&["few", "more"], &base(5), &beyond)
        .unwrap_err();
    assert!(
        error.is_call_wrong() && error.to_string().contains("at most 65536"),
        "{error}"
    );
}

#[test]
fn indexes_of_two_spaces_are_not_searched_together() {
    let place = Place::new();
    place.add("photos", 200, &codebook(1));
    let texts = head("package-text-2k.base.fbin", 200);
    let options = BuildOptions {
        preset: Preset::AISAQ,
        degree: Some(16),
        build_list: 32,
        threads: 1,
        ..BuildOptions::default()
    };
    build(&texts, place.path("texts"), &options, &Silent).unwrap();
    let cosine = BuildOptions {
        metric: Metric::Cosine,
        ..options
    };
    build(&texts, place.path("cosine"), &cosine, &Silent).unwrap();
    let catalog = place.catalog(None);
    let search = |names: &[&str]| {
        let queries = head("package-text-2k.query.fbin", 3);
        catalog.search(names, &queries, &SearchOptions::default())
    };
    let text = search(&["texts", "photos"]).unwrap_err().to_string();
    for word in ["\"texts\"", "\"photos\"", "384 f32", "128 u8"] {
        assert!(text.contains(word), "{word}: {text}");
    }
    let text = search(&["texts", "cosine"]).unwrap_err().to_string();
    assert!(
        text.contains("under cosine") && text.contains("under l2"),
        "{text}"
    );
    assert_eq!(catalog.open_count(), 0, "a refused search opened an index");
    assert!(search(&[]).is_err_and(|error| error.is_call_wrong()));
    let text = search(&["photos"]).unwrap_err().to_string();
    assert!(
        text.contains("128") && text.contains("\"photos\""),
        "{text}"
    );
    let text = search(&["texts", "photoes"]).unwrap_err().to_string();
    assert!(text.contains("photos"), "{text}");
    assert!(search(&["texts"]).is_ok());
}

#[test]
fn indexes_anywhere_are_named_by_their_paths() {
    let place = Place::with_three(&codebook(1));
    let paths = [place.path("a"), place.path("c"), place.path("missing")];
    let names: Vec<String> = paths.iter().map(|p| p.display().to_string()).collect();
    let catalog = Catalog::of_paths(paths, &CatalogOptions::default()).unwrap();
    assert_eq!(catalog.names().unwrap(), names[..2]);
    assert_eq!(rows(&catalog, &names[1]), 400);
    let error = catalog.index(&names[2]).unwrap_err();
    assert!(matches!(error, Error::NotAnIndex { .. }), "{error}");
    assert!(matches!(catalog.index("b"), Err(Error::NoSuchIndex { .. })));
    let options = SearchOptions {
        k: 1,
        list: 30,
        ..SearchOptions::default()
    };
    let found = catalog.search(&names[..2], &base(3), &options).unwrap();
    assert_eq!(found.ids, [0, 1, 2]);
}

#[test]
fn the_navigation_graph_is_part_of_the_budget_where_the_preset_uses_it() {
    let (place, codebook) = (Place::new(), codebook(1));
    for preset in [Preset::STRATANN, Preset::DISKANN] {
        let options = BuildOptions {
            navigation: 0.2,
            ..small(preset, &codebook)
        };
        build(&base(1_000), place.path(preset.name), &options, &Silent).unwrap();
    }
    let catalog = place.catalog(Some(64_000_000));
    let (with, without) = (
        catalog.index("stratann").unwrap(),
        catalog.index("diskann").unwrap(),
    );
    assert!(with.has_navigation() && !without.has_navigation());
    assert!(with.memory().navigation > 25_000);
    assert_eq!(
        (without.memory().navigation, with.memory().graph_pages),
        (0, 0)
    );
    assert_eq!(with.memory().budget, Some(64_000_000));
    let options = SearchOptions {
        navigation: Some(true),
        ..SearchOptions::default()
    };
    let text = without
        .search(&queries(2), &options)
        .unwrap_err()
        .to_string();
    assert!(text.contains("memory budget"), "{text}");
    assert!(with.search(&queries(2), &options).is_ok());
}

#[test]
fn a_catalog_and_its_parts_go_to_other_threads() {
    fn goes<T: Send + Sync>() {}
    goes::<Catalog>();
    goes::<Arc<Index>>();
}
