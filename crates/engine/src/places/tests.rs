//! Tests that searches read the copies on a place, and that errors name a damaged copy.

use std::fs;
use std::os::unix::fs::FileExt;

use stratann_layout::manifest::FILE_NAME as MANIFEST;
use stratann_vector::Element;
use tempfile::TempDir;

use super::*;
use crate::data::Matrix;
use crate::progress::Silent;
use crate::slow::{slow, step};
use crate::{
    BuildOptions, Catalog, CatalogOptions, Compression, DirectOptions, Index, Layout, LiveIndex,
    MatrixRef, OpenOptions, SearchOptions, Strategy, WriteOptions, build, copies, remove_copies,
    verify, verify_placed,
};

const DIMENSION: usize = 48;

fn rows(n: usize, from: usize) -> Matrix {
    let bytes = (from * DIMENSION..(from + n) * DIMENSION).map(|i| (i * i % 251) as u8);
    Matrix::new(bytes.collect(), n, DIMENSION, Element::U8).unwrap()
}

fn new_rows(n: usize, seed: u32) -> Matrix {
    let mix = |i: usize| ((i as u32 + seed).wrapping_mul(2_654_435_761) >> 24) as u8;
    let bytes = (0..n * DIMENSION).map(mix).collect();
    Matrix::new(bytes, n, DIMENSION, Element::U8).unwrap()
}

fn places(text: &str) -> Places {
    text.parse()
        .unwrap_or_else(|error| panic!("{text}: {error}"))
}

fn options(layout: Layout) -> BuildOptions {
    BuildOptions {
        degree: (!layout.has_clusters()).then_some(12),
        build_list: if layout.has_clusters() { 100 } else { 24 },
        navigation: 0.1,
        threads: 1,
        layout: Some(layout),
        compression: (layout == Layout::Decoupled).then_some(Compression::Paper),
        chunk_bytes: 4096,
        segment_bytes: 8192,
        overwrite: true,
        ..BuildOptions::default()
    }
}

struct Built {
    root: TempDir,
    path: PathBuf,
    layout: Layout,
}

impl Built {
    fn new(layout: Layout) -> Built {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("index");
        build(&rows(600, 0), &path, &options(layout), &Silent).unwrap();
        Built { root, path, layout }
    }

    fn all_on(&self, tier: &str) -> String {
        let roles = Placed::ALL
            .into_iter()
            .filter(|role| role.is_of(self.layout));
        let placed: Vec<_> = roles
            .map(|role| format!("{}={tier}", role.name()))
            .collect();
        placed.join(",")
    }

    fn folder(&self, name: &str) -> PathBuf {
        self.root.path().join(name)
    }

    fn open(&self, text: &str) -> Result<Index, Error> {
        let places = match text {
            "" => Places::default(),
            text => places(text),
        };
        let options = OpenOptions {
            places,
            ..OpenOptions::default()
        };
        Index::open(&self.path, &options)
    }

    fn pages(folder: &Path) -> Vec<PathBuf> {
        let entries = fs::read_dir(folder)
            .unwrap()
            .map(|entry| entry.unwrap().path());
        let is_read = |path: &PathBuf| {
            let kind = FileKind::of_name(path.file_name().unwrap().to_str().unwrap());
            kind.is_some_and(|kind| Placed::ALL.iter().any(|role| role.reads(kind)))
        };
        let mut files: Vec<_> = entries.filter(is_read).collect();
        files.sort();
        files
    }

    fn copies(place: &Path) -> Vec<PathBuf> {
        let entries = fs::read_dir(place)
            .unwrap()
            .map(|entry| entry.unwrap().path());
        entries.collect()
    }
}

/// Damages a byte of every page except the header.
fn spoil(file: &Path) {
    let file = fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open(file)
        .unwrap();
    let pages = file.metadata().unwrap().len() / 4096;
    for page in 1..pages {
        let mut byte = [0];
        file.read_exact_at(&mut byte, page * 4096 + 100).unwrap();
        file.write_all_at(&[byte[0] ^ 0x40], page * 4096 + 100)
            .unwrap();
    }
}

type Answers = (Vec<u64>, Vec<f32>);

/// Results of pipelined searches depend on the order of completions, so these results are not
/// compared.
fn answers(index: &Index) -> Result<Answers, Error> {
    let queries = rows(20, 300);
    let search = |strategy| {
        let options = SearchOptions {
            list: 30,
            strategy: (!index.has_clusters()).then_some(strategy),
            threads: 2,
            ..SearchOptions::default()
        };
        index.search(&queries, &options)
    };
    search(Strategy::Pipelined)?;
    let found = search(Strategy::BestFirst)?;
    Ok((found.ids, found.distances))
}

#[test]
fn places_are_written_as_they_are_shown_and_nonsense_is_refused() {
    for text in [
        "topology=dram",
        "vectors=ssd,topology=mapped:/dev/shm/x",
        "topology=rdma-model,vectors=cxl-model",
        "topology=nvm-model,vectors=ssd-model",
        "topology=ssd:/mnt/a b",
        "topology=remote:127.0.0.1:7700/photos,vectors=remote-tls:[::1]:7700/a_b-c",
        "topology=remote:shm:/run/user/x/ring/photos",
        "topology=remote:ucx:127.0.0.1:7700/photos",
    ] {
        assert_eq!(places(text).to_string(), text);
    }
    assert!(Places::default().is_empty() && Places::default().to_string().is_empty());
    let relative = places("topology=mapped:here").to_string();
    assert!(relative.starts_with("topology=mapped:/") && relative.ends_with("/here"));
    let wrong = [
        ("", "role=tier"),
        ("topology", "role=tier"),
        ("graph=dram", "no role"),
        ("codes=dram", "no place of their own"),
        ("ids=ssd", "no place of their own"),
        ("log=mapped:/x", "MANIFEST"),
        ("topology=", "no tier"),
        ("topology=tape", "no tier"),
        ("topology=tape-model", "no tier"),
        ("topology=dram:/x", "no tier with a folder"),
        ("topology=mapped", "needs a folder"),
        ("topology=remote:127.0.0.1/x", "host:port"),
        ("topology=remote:127.0.0.1:0/x", "host:port"),
        ("topology=remote:shm:/x", "names no socket"),
        ("topology=remote-tls:shm:/x/y", "not encrypted"),
        ("topology=remote-tls:ucx:127.0.0.1:7700/x", "not encrypted"),
        ("topology=remote:ucx:127.0.0.1/x", "host:port"),
        (
            "topology=remote:UCX:127.0.0.1:7700/x",
            "did you mean ucx:127.0.0.1:7700/x?",
        ),
        (
            "topology=remote:shm:ucx:127.0.0.1:7700/x",
            "did you mean ucx:127.0.0.1:7700/x?",
        ),
        ("topology=remote:Shm:/x/y", "did you mean shm:/x/y?"),
        ("topology=remote:127.0.0.1:7700", "end with a name"),
        ("topology=remote:127.0.0.1:7700/a.b", "end with a name"),
        ("topology=mapped:", "names no folder"),
        ("topology=dram,topology=ssd", "a place already"),
    ];
    for (text, why) in wrong {
        let error = text.parse::<Places>().unwrap_err();
        assert!(error.contains(why), "{text}: {error}");
    }
    let both = places("topology=dram")
        .and(&places("vectors=dram"))
        .unwrap();
    assert_eq!(both, places("topology=dram,vectors=dram"));
    assert!(both.and(&places("vectors=ssd")).is_err());
}

#[test]
fn copies_in_a_folder_are_read_and_not_the_index() {
    for layout in Layout::ALL {
        for tier in ["mapped", "ssd"] {
            let built = Built::new(layout);
            let right = answers(&built.open("").unwrap()).unwrap();
            let place = built.folder("place");
            let text = built.all_on(&format!("{tier}:{}", place.display()));
            assert_eq!(
                answers(&built.open(&text).unwrap()).unwrap(),
                right,
                "{layout} {text}"
            );
            let [copies] = &Built::copies(&place)[..] else {
                panic!("{:?}", Built::copies(&place));
            };
            let (pages, originals) = (Built::pages(copies), Built::pages(&built.path));
            assert!(!pages.is_empty() && pages.len() == originals.len());
            originals.iter().for_each(|file| spoil(file));
            assert!(answers(&built.open("").unwrap()).is_err(), "{layout}");
            assert_eq!(
                answers(&built.open(&text).unwrap()).unwrap(),
                right,
                "{layout} {text}"
            );
            spoil(&pages[0]);
            let error = answers(&built.open(&text).unwrap())
                .unwrap_err()
                .to_string();
            assert!(error.contains(pages[0].to_str().unwrap()), "{error}");
            // The error also names the original, because it may be damaged as well.
            let original = format!("(a copy of {}", built.path.display());
            assert!(error.contains(&original), "{error}");
        }
    }
}

#[test]
fn copies_in_memory_are_read_and_not_the_index() {
    for layout in Layout::ALL {
        for tier in ["dram", "nvm-model", "cxl-model"] {
            let built = Built::new(layout);
            let right = answers(&built.open("").unwrap()).unwrap();
            let text = built.all_on(tier);
            let index = built.open(&text).unwrap();
            Built::pages(&built.path)
                .iter()
                .for_each(|file| spoil(file));
            assert_eq!(answers(&index).unwrap(), right, "{layout} {text}");
            assert!(
                answers(&built.open(&text).unwrap()).is_err(),
                "{layout} {text}"
            );
        }
    }
}

#[test]
fn each_role_is_on_its_own_tier() {
    let built = Built::new(Layout::Decoupled);
    let right = answers(&built.open("").unwrap()).unwrap();
    let place = built.folder("place");
    let text = format!("topology=dram,vectors=mapped:{}", place.display());
    let index = built.open(&text).unwrap();
    let copies = Built::copies(&place);
    let pages = Built::pages(&copies[0]);
    assert!(
        pages
            .iter()
            .all(|file| file.to_str().unwrap().contains("/vectors-")),
        "{pages:?}"
    );
    Built::pages(&built.path)
        .iter()
        .for_each(|file| spoil(file));
    assert_eq!(answers(&index).unwrap(), right);
}

#[test]
fn a_model_answers_as_late_as_the_device() {
    let built = Built::new(Layout::Packed);
    let index = built.open("topology=ssd-model").unwrap();
    let options = SearchOptions {
        list: 30,
        beam: Some(1),
        strategy: Some(Strategy::BestFirst),
        threads: 1,
        in_flight: Some(1),
        ..SearchOptions::default()
    };
    let found = index.search(&rows(5, 300), &options).unwrap();
    let reads = found.counters.graph_reads as f64;
    // Each of the successive reads takes at least 75 µs.
    assert!(
        reads > 5.0 && found.seconds > reads * 75e-6,
        "{reads} reads took {} s",
        found.seconds
    );
}

#[test]
fn a_place_without_effect_is_refused() {
    let built = Built::new(Layout::Packed);
    let error = built.open("vectors=dram").unwrap_err();
    assert!(error.is_call_wrong(), "{error}");
    assert!(error.to_string().contains("beside the lists"), "{error}");
    let path = built.folder("other");
    for tier in ["dram", "rdma-model"] {
        let options = BuildOptions {
            places: places(&format!("topology={tier}")),
            ..options(Layout::Packed)
        };
        let error = build(&rows(600, 0), &path, &options, &Silent).unwrap_err();
        assert!(
            error.is_call_wrong() && error.to_string().contains("at the end of the build"),
            "{error}"
        );
        assert!(!path.exists());
    }
    let error = verify_placed(&built.path, &places("topology=dram"), &Silent).unwrap_err();
    assert!(error.is_call_wrong(), "{error}");
}

#[test]
fn a_build_leaves_copies_where_they_are_wanted() {
    let built = Built::new(Layout::Decoupled);
    let (path, place) = (built.folder("other"), built.folder("place"));
    let options = BuildOptions {
        places: places(&format!(
            "topology=mapped:{0},vectors=mapped:{0}",
            place.display()
        )),
        ..options(Layout::Decoupled)
    };
    build(&rows(600, 0), &path, &options, &Silent).unwrap();
    let copies = Built::copies(&place);
    assert_eq!(
        copies.len(),
        1,
        "the copies of the two roles are in different folders"
    );
    assert_eq!(Built::pages(&copies[0]).len(), Built::pages(&path).len());
    let options = BuildOptions {
        places: places(&format!("vectors=mapped:{}", place.display())),
        ..self::options(Layout::Packed)
    };
    let other = built.folder("second");
    let error = build(&rows(600, 0), &other, &options, &Silent).unwrap_err();
    assert!(error.to_string().contains("beside the lists"), "{error}");
    assert!(!other.exists());
    fs::write(built.folder("file"), "x").unwrap();
    let options = BuildOptions {
        places: places(&format!(
            "topology=mapped:{}",
            built.folder("file").display()
        )),
        ..self::options(Layout::Packed)
    };
    let other = built.folder("third");
    assert!(build(&rows(600, 0), &other, &options, &Silent).is_err() && !other.exists());
}

#[test]
fn copies_of_another_index_or_checkpoint_are_never_read() {
    let built = Built::new(Layout::Packed);
    let place = built.folder("place");
    let text = format!("topology=mapped:{}", place.display());
    let before = built.open(&text).unwrap();
    let right = answers(&before).unwrap();
    build(
        &rows(600, 5000),
        &built.path,
        &options(Layout::Packed),
        &Silent,
    )
    .unwrap();
    assert_eq!(answers(&before).unwrap(), right);
    let after = built.open(&text).unwrap();
    assert_eq!(Built::copies(&place).len(), 2);
    assert_eq!(
        answers(&after).unwrap(),
        answers(&built.open("").unwrap()).unwrap()
    );
    assert_ne!(answers(&after).unwrap(), right);
    drop((before, after));
    built.open(&text).unwrap();
    assert_eq!(Built::copies(&place).len(), 1, "an unused copy is left");
    let other = Built::new(Layout::Packed);
    let index = other.open(&text).unwrap();
    assert_eq!(Built::copies(&place).len(), 2);
    assert_eq!(answers(&index).unwrap(), right);
}

#[test]
fn an_index_with_the_same_manifest_has_copies_of_its_own() {
    let built = Built::new(Layout::Packed);
    let text = format!("topology=mapped:{}", built.folder("place").display());
    let manifests = [1, 2].map(|step| {
        fs::remove_dir_all(&built.path).unwrap();
        // The largest id of both indexes is the same, and no id is a row number.
        let ids: Vec<u64> = (1..=600).map(|row| row * 599 * step % 601).collect();
        let options = BuildOptions {
            ids: Some(ids),
            ..options(Layout::Packed)
        };
        build(&rows(600, 0), &built.path, &options, &Silent).unwrap();
        let placed = answers(&built.open(&text).unwrap()).unwrap();
        assert!(placed == answers(&built.open("").unwrap()).unwrap());
        stored::manifest(&stored::existing(&built.path).unwrap()).unwrap()
    });
    let [mut one, other] = manifests;
    assert!(one.state.is_some() && one.state != other.state);
    one.state.clone_from(&other.state);
    assert!(
        one == other,
        "the manifests differ in more than the checkpoint id"
    );
}

#[test]
fn a_state_has_one_name_everywhere_but_in_an_index_that_does_not_say_which_it_is() {
    let built = Built::new(Layout::Packed);
    let copied = built.folder("copied");
    let named = |path: &Path| Identity::of(&stored::existing(path).unwrap(), path).unwrap();
    let copy = || {
        fs::create_dir_all(&copied).unwrap();
        for entry in fs::read_dir(&built.path).unwrap().flatten() {
            fs::copy(entry.path(), copied.join(entry.file_name())).unwrap();
        }
    };
    copy();
    let first = named(&built.path);
    assert!(first.everywhere && named(&copied) == first);
    for path in [&built.path, &copied] {
        let live =
            LiveIndex::open(path, &OpenOptions::default(), &WriteOptions::default()).unwrap();
        live.insert(&new_rows(20, 7), None, &Silent).unwrap();
        live.flush().unwrap();
    }
    let states = [&built.path, &copied].map(|path| named(path));
    assert!(states[0] != first && states[1] != first && states[0] != states[1]);
    let manifest = built.path.join(MANIFEST);
    let mut old = Manifest::decode(&fs::read(&manifest).unwrap(), "m").unwrap();
    old.state = None;
    fs::write(&manifest, old.encode()).unwrap();
    copy();
    let (here, there) = (named(&built.path), named(&copied));
    assert!(!here.everywhere && !there.everywhere && here != there);
}

#[test]
fn an_index_that_was_moved_is_not_changed_by_its_path() {
    let built = Built::new(Layout::Packed);
    let index = std::sync::Arc::new(built.open("topology=dram").unwrap());
    let moved = built.folder("moved");
    fs::rename(&built.path, &moved).unwrap();
    build(
        &rows(300, 0),
        &built.path,
        &options(Layout::Packed),
        &Silent,
    )
    .unwrap();
    let error = LiveIndex::over(&index, &WriteOptions::default()).unwrap_err();
    assert!(error.to_string().contains("moved or removed"), "{error}");
}

#[test]
fn copies_of_files_that_inserts_added_to_count_with_all_of_these() {
    let built = Built::new(Layout::Packed);
    let live = LiveIndex::open(
        &built.path,
        &OpenOptions::default(),
        &WriteOptions::default(),
    )
    .unwrap();
    live.insert(&new_rows(600, 7), None, &Silent).unwrap();
    live.flush().unwrap();
    drop(live);
    let bytes: u64 = Built::pages(&built.path)
        .iter()
        .map(|file| fs::metadata(file).unwrap().len())
        .sum();
    let index = built.open("topology=dram").unwrap();
    let built_bytes = index.manifest().files.iter();
    let built_bytes = built_bytes.filter(|entry| entry.role == "packed");
    assert!(bytes > built_bytes.map(|entry| entry.length).sum::<u64>());
    assert_eq!(index.memory().places, bytes);
}

#[test]
fn copies_in_memory_count_towards_the_budget() {
    let built = Built::new(Layout::Coupled);
    let index = built.open("topology=dram").unwrap();
    let bytes: u64 = Built::pages(&built.path)
        .iter()
        .map(|file| fs::metadata(file).unwrap().len())
        .sum();
    assert_eq!(index.memory().places, bytes);
    assert_eq!(built.open("").unwrap().memory().places, 0);
    let with = |memory: u64, text: &str| {
        let options = OpenOptions {
            memory: Some(memory),
            places: places(text),
            ..OpenOptions::default()
        };
        Index::open(&built.path, &options)
    };
    // The copies need more memory than a step of this loop.
    let mut enough = 1 << 20;
    while with(enough, "topology=ssd").is_err() {
        enough += 10_000;
    }
    let error = with(enough - 10_000 + bytes - 1, "topology=dram").unwrap_err();
    assert!(matches!(error, Error::Memory { .. }), "{error}");
    assert!(error.to_string().contains("copies in memory"), "{error}");
    let index = with(enough + bytes, "topology=dram").unwrap();
    assert_eq!(
        (index.memory().places, index.memory().graph_pages),
        (bytes, 0)
    );
    let mapped = format!(
        "topology=mapped:{}",
        built.root.path().join("there").display()
    );
    assert_eq!(built.open(&mapped).unwrap().memory().places, bytes);
    let error = with(enough - 10_000 + bytes - 1, &mapped).unwrap_err();
    assert!(matches!(error, Error::Memory { .. }), "{error}");
    assert_eq!(
        with(enough + bytes, &mapped).unwrap().memory().places,
        bytes
    );
    let on_disk = format!("topology=ssd:{}", built.root.path().join("disk").display());
    assert_eq!(with(enough, &on_disk).unwrap().memory().places, 0);
    let error = with(bytes / 2, "topology=dram").unwrap_err();
    assert!(
        matches!(error, Error::Memory { needs, .. } if needs == bytes),
        "{error}"
    );
}

#[test]
fn copies_in_memory_that_grow_count_towards_the_budget() {
    let built = Built::new(Layout::Packed);
    let open = |memory: u64| OpenOptions {
        memory: Some(memory),
        places: places("topology=dram"),
        ..OpenOptions::default()
    };
    let live = |memory: u64| LiveIndex::open(&built.path, &open(memory), &WriteOptions::default());
    let mut memory = 9 << 20;
    let (live, left) = loop {
        match live(memory) {
            Ok(live) if live.index().memory().unused >= 100_000 => {
                let left = live.index().memory().unused;
                break (live, left);
            }
            _ => memory += 50_000,
        }
    };
    let charged = live.index().memory().places;
    let copies = || -> u64 {
        let files = Built::pages(&built.path);
        files
            .iter()
            .map(|file| fs::metadata(file).unwrap().len())
            .sum()
    };
    assert_eq!(copies(), charged);
    let mut inserted = 0;
    let error = loop {
        assert!(
            inserted < 20_000,
            "the index accepts inserts beyond its memory: {} bytes of {left}",
            copies() - charged
        );
        match live.insert(&new_rows(10, 7 + inserted), None, &Silent) {
            Ok(_) => inserted += 10,
            Err(error) => break error,
        }
    };
    assert!(inserted >= 10, "no insert fits into the memory: {error}");
    assert!(
        matches!(error, Error::Memory { budget, needs, .. } if budget == memory && needs > memory)
    );
    assert!(error.to_string().contains("copies of its pages"), "{error}");
    // The copies grew at most by the vectors of the last inserts.
    let most = left + 10 * 20 * 4096;
    assert!(
        copies() - charged <= most,
        "{} of {left}",
        copies() - charged
    );
    assert_eq!(live.len(), 600 + inserted as usize);
    live.flush().unwrap();
    drop(live);
    assert!(verify(&built.path, &Silent).unwrap().clean());
    let options = OpenOptions {
        memory: Some(memory),
        ..OpenOptions::default()
    };
    let live = LiveIndex::open(&built.path, &options, &WriteOptions::default()).unwrap();
    live.insert(&new_rows(10, 7 + inserted), None, &Silent)
        .unwrap();
}

#[test]
fn an_index_on_places_takes_changes_and_they_are_in_the_index() {
    for (at, layout) in Layout::ALL.into_iter().enumerate() {
        let tiers = ["mapped:", "ssd:", "dram", "nvm-model"];
        // By default, one tier with copies in files and one with copies in memory is tested.
        for tier in tiers
            .into_iter()
            .skip(if slow() { 0 } else { at % 2 })
            .step_by(step(2))
        {
            let built = Built::new(layout);
            let place = built.folder("place");
            let tier = match tier.strip_suffix(':') {
                Some(tier) => format!("{tier}:{}", place.display()),
                None => tier.to_owned(),
            };
            let text = built.all_on(&tier);
            let options = OpenOptions {
                places: places(&text),
                ..OpenOptions::default()
            };
            let index = std::sync::Arc::new(Index::open(&built.path, &options).unwrap());
            // Inserts run one after the other, so that each run builds the same graph.
            let writing = WriteOptions {
                threads: 1,
                direct: DirectOptions {
                    in_flight: 1,
                    ..DirectOptions::default()
                },
                ..WriteOptions::default()
            };
            let live = LiveIndex::over(&index, &writing).unwrap();
            let more = new_rows(100, 1);
            let ids: Vec<u64> = (10_000..10_100).collect();
            live.insert(&more, Some(&ids), &Silent).unwrap();
            live.delete(&[3, 5]).unwrap();
            let own = |id: usize| MatrixRef::new(more.row(id), 1, DIMENSION, Element::U8).unwrap();
            // The candidate list has space for all vectors, so that two graphs give the same
            // results.
            let best_first = SearchOptions {
                strategy: (!index.has_clusters()).then_some(Strategy::BestFirst),
                list: 1_000,
                ..SearchOptions::default()
            };
            let find = SearchOptions {
                k: 1,
                list: 50,
                ..best_first
            };
            for row in [0, 50, 99] {
                let found = live.search(&own(row), &find).unwrap();
                assert_eq!(found.ids, [10_000 + row as u64], "{layout} {text}");
            }
            live.compact(&Silent).unwrap();
            live.insert(&new_rows(50, 1_000_000), None, &Silent)
                .unwrap();
            let right = live.search(&rows(20, 300), &best_first).unwrap();
            drop(live);
            drop(index);
            let report = verify(&built.path, &Silent).unwrap();
            assert!(report.clean(), "{layout} {text}: {:?}", report.problems);
            for text in ["", &text] {
                let index = built.open(text).unwrap();
                let found = index.search(&rows(20, 300), &best_first).unwrap();
                assert_eq!(found.ids, right.ids, "{layout} {text}");
            }
            if tier.contains(':') {
                let left = Built::copies(&place);
                assert!(
                    left.len() == 1 && !left[0].to_str().unwrap().contains("live"),
                    "{left:?}"
                );
            }
        }
    }
}

#[test]
fn verify_looks_at_the_copies() {
    let built = Built::new(Layout::Decoupled);
    let place = built.folder("place");
    let places = places(&built.all_on(&format!("mapped:{}", place.display())));
    let report = verify_placed(&built.path, &places, &Silent).unwrap();
    assert!(report.clean(), "{:?}", report.problems);
    let copies = Built::copies(&place);
    for file in Built::pages(&copies[0]) {
        let bytes = fs::read(&file).unwrap();
        spoil(&file);
        let report = verify_placed(&built.path, &places, &Silent).unwrap();
        let named = |problem: &crate::Problem| problem.file.starts_with(file.to_str().unwrap());
        assert!(report.problems.iter().any(named), "{:?}", report.problems);
        assert_eq!(report.original_problems, Some(0));
        fs::write(&file, bytes).unwrap();
    }
    assert!(verify(&built.path, &Silent).unwrap().clean());
    Built::pages(&built.path)
        .iter()
        .for_each(|file| spoil(file));
    let other = self::places(&built.all_on(&format!("ssd:{}", built.folder("other").display())));
    let report = verify_placed(&built.path, &other, &Silent).unwrap();
    assert_eq!(report.original_problems, Some(report.problem_count));
    assert!(report.problem_count > 0);
    let report = verify(&built.path, &Silent).unwrap();
    assert_eq!((report.clean(), report.original_problems), (false, None));
}

#[test]
fn copies_are_listed_and_those_that_nobody_uses_are_removed() {
    let built = Built::new(Layout::Packed);
    let place = built.folder("place");
    let text = format!("topology=mapped:{}", place.display());
    let all = places(&text);
    let index = built.open(&text).unwrap();
    let other = Built::new(Layout::Packed);
    drop(other.open(&text).unwrap());
    let found = copies(None, &all).unwrap();
    assert_eq!(found.len(), 2);
    assert!(
        found
            .iter()
            .all(|copies| copies.current.is_none() && !copies.removed)
    );
    let bytes: u64 = Built::pages(&built.path)
        .iter()
        .map(|file| fs::metadata(file).unwrap().len())
        .sum();
    let [mine] = &copies(Some(&built.path), &all).unwrap()[..] else {
        panic!("the list has copies of other indexes");
    };
    assert_eq!(
        (mine.current, mine.in_use, mine.files),
        (Some(true), true, 1)
    );
    assert_eq!((mine.bytes, &mine.place[..7]), (bytes, "mapped:"));
    let removed = remove_copies(None, &all).unwrap();
    let how: Vec<_> = removed
        .iter()
        .map(|copies| (copies.in_use, copies.removed))
        .collect();
    assert!(
        how.contains(&(true, false)) && how.contains(&(false, true)),
        "{how:?}"
    );
    assert_eq!(Built::copies(&place).len(), 1);
    answers(&index).unwrap();
    drop(index);
    fs::remove_dir_all(&built.path).unwrap();
    let removed = remove_copies(Some(&built.path), &all).unwrap();
    assert_eq!(
        (removed.len(), removed[0].removed, removed[0].current),
        (1, true, None)
    );
    assert!(Built::copies(&place).is_empty());
    fs::create_dir(place.join("other")).unwrap();
    assert!(remove_copies(None, &all).unwrap().is_empty());
    assert!(place.join("other").exists());
    assert!(
        copies(None, &places("topology=dram"))
            .unwrap_err()
            .is_call_wrong()
    );
    assert!(copies(None, &places("topology=mapped:/nowhere/at/all")).is_err());
}

#[test]
fn the_indexes_of_a_catalog_are_on_places() {
    let built = Built::new(Layout::Packed);
    let right = answers(&built.open("").unwrap()).unwrap();
    let place = built.folder("place");
    let options = CatalogOptions {
        open: OpenOptions {
            places: places(&format!("topology=mapped:{}", place.display())),
            ..OpenOptions::default()
        },
        ..CatalogOptions::default()
    };
    let catalog = Catalog::open(built.root.path(), &options).unwrap();
    drop(catalog.index("index").unwrap());
    catalog.close("index");
    Built::pages(&built.path)
        .iter()
        .for_each(|file| spoil(file));
    assert_eq!(answers(&catalog.index("index").unwrap()).unwrap(), right);
    // The copy in memory would be made before the catalog reserves memory for it.
    let options = CatalogOptions {
        open: OpenOptions {
            places: places("topology=dram"),
            ..OpenOptions::default()
        },
        ..CatalogOptions::default()
    };
    let catalog = Catalog::open(built.root.path(), &options).unwrap();
    let error = catalog.index("index").unwrap_err().to_string();
    assert!(error.contains("a catalog would copy"), "{error}");
}
