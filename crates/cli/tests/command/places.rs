//! `--place`: each role of an index on a tier, wherever an index is opened.

use std::fs;
use std::os::unix::fs::FileExt;

use crate::support::{Place, names};

/// The ids and distances that a search found.
fn found(place: &Place, words: &[&str]) -> Vec<u8> {
    let mut all = vec![
        "search",
        "a.idx",
        "queries.u8bin",
        "--out",
        "found.bin",
        "--overwrite",
    ];
    all.extend(words);
    place.run(&all).done();
    fs::read(place.path("found.bin")).unwrap()
}

#[test]
fn every_command_that_opens_an_index_reads_it_where_it_is_told_to() {
    let place = Place::with_photos();
    let build = [
        "build",
        "photos.u8bin",
        "a.idx",
        "--degree",
        "16",
        "--layout",
        "decoupled",
    ];
    let both = "topology=mapped:near,vectors=mapped:near";
    place.run(&[&build[..], &["--place", both]].concat()).done();
    fs::copy(place.path("asked.u8bin"), place.path("queries.u8bin")).unwrap();
    assert_eq!(
        names(&place.path("near")).len(),
        1,
        "the build has made copies"
    );
    let right = found(&place, &[]);
    for words in [
        &["--place", both][..],
        &["--place", "topology=dram", "--place", "vectors=nvm-model"],
        &["--place", "topology=ssd:other,vectors=ssd"],
        &["--place", "topology=cxl-model,vectors=rdma-model"],
    ] {
        assert_eq!(found(&place, words), right, "{words:?}");
    }
    assert_eq!(names(&place.path("other")).len(), 1);
    let stats = place
        .run(&["stats", "a.idx", "--json", "--place", "topology=dram"])
        .done()
        .json();
    assert!(stats["memory"]["places"].as_u64() > Some(4096), "{stats}");
    // A byte of a copy that is not what it was.
    let copies = place.path("near").join(&names(&place.path("near"))[0]);
    let spoiled = names(&copies)
        .into_iter()
        .find(|name| name.starts_with("adjacency-"));
    let spoiled = copies.join(spoiled.unwrap());
    let file = fs::OpenOptions::new().write(true).open(&spoiled).unwrap();
    file.write_all_at(b"not what it was", 4096 + 200).unwrap();
    place.run(&["verify", "a.idx"]).done();
    let damaged = place.run(&["verify", "a.idx", "--place", both]);
    assert_eq!(damaged.status, Some(1), "{damaged:?}");
    assert!(
        damaged
            .stdout
            .contains(spoiled.file_name().unwrap().to_str().unwrap()),
        "{damaged:?}"
    );
    // Changes have copies of their own, and those of the checkpoint before are gone when nobody uses them.
    for words in [
        &["insert", "a.idx", "queries.u8bin", "--place", both][..],
        &["compact", "a.idx", "--place", both],
        &["verify", "a.idx", "--place", both],
        &["verify", "a.idx"],
    ] {
        place.run(words).done();
    }
    assert_eq!(names(&place.path("near")).len(), 1);
    assert_ne!(
        copies,
        place.path("near").join(&names(&place.path("near"))[0])
    );
    assert_eq!(found(&place, &["--place", both]), found(&place, &[]));
}

#[test]
fn a_place_that_cannot_be_is_refused_with_the_reason() {
    let place = Place::with_index();
    let index = "index";
    let search = |text: &str| place.run(&["search", index, "queries.u8bin", "--place", text]);
    for (text, words) in [
        ("topology", &["role=tier"][..]),
        ("codes=dram", &["codes", "no place of their own"]),
        ("log=dram", &["MANIFEST"]),
        ("topology=tape", &["tape", "rdma-model"]),
        ("vectors=dram", &["place topology"]),
        ("topology=mapped:/dev/shm", &["/dev/shm", "another folder"]),
        ("topology=mapped:a/b/c", &["a/b", "no such file"]),
    ] {
        let refused = search(text);
        let status = refused.status;
        assert!(matches!(status, Some(1 | 2)), "{refused:?}");
        refused.refused(status.unwrap(), words);
    }
    let words = [
        "search",
        &index,
        "queries.u8bin",
        "--place",
        "topology=dram",
        "--memory",
        "12kB",
    ];
    place.run(&words).refused(2, &["12000", "copies in memory"]);
    let twice = ["--place", "topology=dram", "--place", "topology=ssd"];
    place
        .run(&[&["stats", index][..], &twice].concat())
        .refused(2, &["a place already"]);
}
