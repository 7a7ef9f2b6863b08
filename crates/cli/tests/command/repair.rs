//! A user repairs a damaged index.

use std::fs;

use crate::support::{Place, QUERIES, ROWS, SMALL_BUILD, keys, names};

fn place() -> Place {
    let place = Place::new();
    place
        .run(&[&SMALL_BUILD[..], &["--preset", "diskann"]].concat())
        .done();
    place
}

fn damage(place: &Place, kind: &str, at: impl Fn(usize) -> usize) {
    let folder = place.path("index");
    let mut files = names(&folder).into_iter();
    let name = files.find(|name| name.starts_with(&format!("{kind}-")));
    let path = folder.join(name.unwrap());
    let mut bytes = fs::read(&path).unwrap();
    let at = at(bytes.len());
    bytes[at] ^= 0x10;
    fs::write(path, bytes).unwrap();
}

#[test]
fn verify_says_what_to_do_and_repair_does_it() {
    let place = place();
    let whole = place.run(&["repair", "index"]).done();
    assert!(
        whole.stdout.contains("the index has no damage"),
        "{whole:?}"
    );

    damage(&place, "graph", |length| length / 2);
    damage(&place, "codes", |length| length / 2);
    place
        .run(&["search", "index", "queries.u8bin"])
        .refused(1, &["codes"]);
    place
        .run(&["verify", "index"])
        .refused(1, &["2 problems", "`stratann repair index`"]);
    let ran = place.run(&["repair", "index", "--threads", "1"]).done();
    for words in [
        "graph-000001",
        "codes-000001",
        "pages are damaged",
        "vectors lost",
        "none",
    ] {
        assert!(ran.stdout.contains(words), "{words}: {}", ran.stdout);
    }
    assert!(ran.stderr.contains("done in"), "{ran:?}");
    let verified = place.run(&["verify", "index"]).done();
    assert!(verified.stdout.contains("clean"), "{verified:?}");
    let found = place.run(&[
        "search",
        "index",
        "queries.u8bin",
        "--list",
        "60",
        "--out",
        "out.bin",
    ]);
    found.done();
    let stats = place.run(&["stats", "index", "--json"]).done().json();
    let left = stats["vectors"].as_u64().unwrap();
    assert!(left < ROWS as u64 && left > ROWS as u64 - 60, "{left}");
}

#[test]
fn json_counts_what_is_lost_and_the_log_counts() {
    let place = place();
    place.write("gone.ids", b"0 1 2");
    place.run(&["insert", "index", "queries.u8bin"]).done();
    place.run(&["delete", "index", "gone.ids"]).done();
    damage(&place, "graph", |_| 4096 + 100);
    let report = place
        .run(&["repair", "index", "--memory", "256MiB", "--json", "--quiet"])
        .done()
        .json();
    let expected = [
        "bytes_after",
        "bytes_before",
        "from_log",
        "lost",
        "repaired",
        "seconds",
        "vectors",
        "vectors_lost",
    ];
    assert_eq!(keys(&report), expected);
    assert_eq!(report["repaired"], true);
    assert_eq!(report["from_log"], QUERIES);
    let (vectors, lost) = (&report["vectors"], &report["vectors_lost"]);
    let (vectors, lost) = (vectors.as_u64().unwrap(), lost.as_u64().unwrap());
    assert!(lost > 0);
    // A deleted vector does not count as lost.
    assert_eq!(vectors + lost, (ROWS + QUERIES - 3) as u64);
    let listed = report["lost"].as_array().unwrap();
    assert_eq!(listed.len(), 1, "{report}");
    assert_eq!(keys(&listed[0]), ["file", "vectors", "what"]);
    assert!(listed[0]["vectors"].as_u64().unwrap() >= lost);
    // Ids of lost vectors are not assigned again.
    place.run(&["insert", "index", "queries.u8bin"]).done();
    let force = place
        .run(&["repair", "index", "--force", "--json"])
        .done()
        .json();
    assert_eq!(force["vectors"], vectors + QUERIES as u64);
    assert_eq!(
        (&force["vectors_lost"], &force["repaired"]),
        (&0.into(), &true.into())
    );
    place.run(&["verify", "index"]).done();
}

#[test]
fn what_cannot_be_repaired_is_said_and_left() {
    let place = place();
    place
        .run(&["repair", "nothing"])
        .refused(1, &["nothing", "no such directory"]);
    place.run(&["repair", "."]).refused(1, &["not an index"]);
    assert!(!place.path("LOCK").exists());
    place
        .run(&["repair", "index", "--threads", "0"])
        .refused(2, &["--threads"]);
    let manifest = place.path("index/MANIFEST");
    let whole = fs::read(&manifest).unwrap();
    fs::write(&manifest, &whole[..whole.len() / 2]).unwrap();
    place
        .run(&["verify", "index"])
        .refused(1, &["1 problem", "rebuild it from its source"]);
    let before = names(&place.path("index"));
    place.run(&["repair", "index"]).refused(
        1,
        &["cannot be repaired", "MANIFEST", "build the index again"],
    );
    assert_eq!(names(&place.path("index")), before);
    fs::write(&manifest, &whole).unwrap();
    let graph = before
        .iter()
        .find(|name| name.starts_with("graph-"))
        .unwrap();
    fs::remove_file(place.path("index").join(graph)).unwrap();
    place.run(&["repair", "index"]).refused(
        1,
        &[
            "no vector can be read",
            "it is missing",
            "nothing was changed",
        ],
    );
}
