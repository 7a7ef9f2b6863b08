//! The memory that a catalog leases to indexes that are open for changes.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use stratann::{
    BuildOptions, Catalog, CatalogOptions, Error, ErrorKind, LiveIndex, Preset, Progress, Row,
    RowTable, Silent, WriteOptions, build,
};

use super::catalog::{Place, base, change, codebook, small};

fn with_one(preset: Preset, name: &str) -> Place {
    let place = Place::new();
    let options = match preset {
        Preset::SPANN => BuildOptions {
            preset,
            threads: 1,
            ..BuildOptions::default()
        },
        _ => small(preset, &codebook(1)),
    };
    build(&base(400), place.path(name), &options, &Silent).unwrap();
    place
}

#[test]
fn a_small_index_is_lent_little_of_a_large_budget() {
    for preset in [
        Preset::STRATANN,
        Preset::DISKANN,
        Preset::AISAQ,
        Preset::SPANN,
    ] {
        let place = with_one(preset, "a");
        let catalog = place.catalog(Some(place.budget(1 << 30)));
        let nothing = catalog.memory_bytes();
        let live = change(&catalog, "a").unwrap();
        let lent = catalog.memory_bytes() - nothing;
        assert!((2 << 20..10 << 20).contains(&lent), "{preset}: {lent}");
        drop(live);
    }
}

#[test]
fn what_waits_is_lent_more_and_a_merge_gives_it_back() {
    let place = with_one(Preset::DISKANN, "a");
    let catalog = place.catalog(Some(place.budget(24 << 20)));
    let live = change(&catalog, "a").unwrap();
    let (first, own) = (catalog.memory_bytes(), live.index().memory().budget);
    // The attributes of vectors wait together with the vectors.
    let (rows, ids) = (base(20), (0..20).collect::<Vec<u64>>());
    let row = Row {
        payload: Some(format!("\"{}\"", "x".repeat(20_000))),
        ..Row::default()
    };
    let beside = RowTable::new(vec![row; 20]);
    let turn = |_| {
        live.upsert_rows(&rows, &beside, &ids, &Silent).unwrap();
        catalog.memory_bytes() > first
    };
    assert!(
        (0..40).any(turn),
        "the leases never exceed the first {first} bytes"
    );
    assert!(turn(0));
    let grown = catalog.memory_bytes();
    assert!(
        grown > first + 400_000,
        "{grown} bytes leased, at first {first}"
    );
    assert!(grown <= catalog.memory().unwrap());
    live.compact(&Silent).unwrap();
    let merged = catalog.memory_bytes();
    assert!(
        merged < first + 200_000,
        "{merged} bytes leased after the merge, at first {first}"
    );
    assert!(live.index().memory().budget >= own);
    assert!(
        (0..40).any(turn),
        "the leases never exceed the first {first} bytes"
    );
    drop(live);
    assert!(catalog.memory_bytes() < first);
}

fn hold(catalog: &Catalog, names: &[String]) -> (Vec<LiveIndex>, Option<Error>) {
    let mut held = Vec::new();
    for name in names {
        match change(catalog, name) {
            Ok(live) => held.push(live),
            Err(error) => return (held, Some(error)),
        }
    }
    (held, None)
}

#[test]
fn the_budget_that_a_refused_change_names_suffices() {
    let place = with_one(Preset::AISAQ, "0");
    let names: Vec<String> = (0..5).map(|n| n.to_string()).collect();
    for name in &names[1..] {
        place.link("0", name);
    }
    let mut budget = place.budget(10 << 20);
    let mut before = 0;
    loop {
        let catalog = place.catalog(Some(budget));
        let (held, refused) = hold(&catalog, &names);
        assert!(catalog.memory_bytes() <= budget);
        assert!(held.len() > before, "{before}: {refused:?}");
        before = held.len();
        let Some(error) = refused else {
            break;
        };
        let text = error.to_string();
        assert_eq!(error.kind(), ErrorKind::InUse, "{text}");
        for words in ["`index.close()`", &format!("in use ({before};")] {
            assert!(text.contains(words), "{words}: {text}");
        }
        let Error::Crowded { needs, .. } = error else {
            panic!("{text}");
        };
        assert!(needs > budget, "{text}");
        budget = needs;
    }
    assert_eq!(before, names.len());
}

#[test]
fn changes_wait_for_each_other_where_there_is_room_for_one() {
    let place = with_one(Preset::AISAQ, "0");
    for name in ["1", "2"] {
        place.link("0", name);
    }
    let alone = match change(&place.catalog(Some(place.budget(1 << 20))), "0") {
        Err(Error::Memory { needs, .. }) => needs,
        other => panic!("{other:?}"),
    };
    // While a call waits to open an index for changes, the catalog does not close this index.
    let options = CatalogOptions {
        memory: Some(alone + (2 << 20)),
        patience: Duration::from_secs(3_600),
        ..CatalogOptions::default()
    };
    let catalog = Catalog::open(place.path(""), &options).unwrap();
    thread::scope(|threads| {
        for name in ["0", "1", "2"] {
            let catalog = &catalog;
            threads.spawn(move || {
                for turn in 0..4 {
                    let live = change(catalog, name).unwrap();
                    live.upsert(&base(1), &[1_000 + turn], &Silent).unwrap();
                }
            });
        }
    });
    for name in ["0", "1", "2"] {
        assert_eq!(catalog.index(name).unwrap().live(), 404, "{name}");
    }
}

/// Interrupts the work after this many calls of `interrupted`.
struct Impatient(AtomicUsize);

impl Impatient {
    const ASKED: usize = 3;

    fn new() -> Self {
        Self(AtomicUsize::new(0))
    }
}

impl Progress for Impatient {
    fn begin(&self, _: &str, _: u64) {}
    fn advance(&self, _: u64) {}
    fn end(&self) {}
    fn interrupted(&self) -> bool {
        self.0.fetch_add(1, Ordering::Relaxed) >= Self::ASKED
    }
    fn warn(&self, _: &str) {}
}

/// Without interruptions, the catalog would let the calls wait for an hour.
#[test]
fn who_waits_for_memory_of_a_catalog_is_interrupted() {
    let place = with_one(Preset::AISAQ, "0");
    for name in ["1", "2"] {
        place.link("0", name);
    }
    let alone = match change(&place.catalog(Some(place.budget(1 << 20))), "0") {
        Err(Error::Memory { needs, .. }) => needs,
        other => panic!("{other:?}"),
    };
    let options = CatalogOptions {
        memory: Some(alone + (1 << 18)),
        patience: Duration::from_secs(3_600),
        ..CatalogOptions::default()
    };
    let catalog = Catalog::open(place.path(""), &options).unwrap();
    let other = catalog.index("1").unwrap();
    let held = change(&catalog, "0").unwrap();
    let progress = Impatient::new();
    let error = LiveIndex::over_observed(&other, &WriteOptions::default(), &progress).unwrap_err();
    assert!(matches!(error, Error::Interrupted), "{error}");
    assert!(progress.0.load(Ordering::Relaxed) > Impatient::ASKED);
    // The interrupted call holds no memory.
    drop(held);
    LiveIndex::over(&other, &WriteOptions::default()).unwrap();
}
