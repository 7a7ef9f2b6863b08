//! Several indexes share a codebook, and are searched as one index.

use std::fs;

use crate::support::{DIM, Place, QUERIES, ROWS, bin, f32s, keys, u8s};
use serde_json::Value;

/// `shelf/low` and `shelf/high` have half of the rows each, and share the codebook `code`.
fn halves() -> Place {
    let place = Place::new();
    place
        .run(&["train", "base.u8bin", "code", "--code-bytes", "8"])
        .done();
    let rows = &u8s(ROWS, DIM, 1)[8..];
    let (low, high) = rows.split_at(rows.len() / 2);
    place.write("low.u8bin", &bin(ROWS / 2, DIM, low));
    place.write("high.u8bin", &bin(ROWS / 2, DIM, high));
    fs::create_dir(place.path("shelf")).unwrap();
    for (half, preset, first) in [("low", "aisaq", "0"), ("high", "diskann", "300")] {
        let (base, index) = (format!("{half}.u8bin"), format!("shelf/{half}"));
        let build = [
            "build",
            &base,
            &index,
            "--preset",
            preset,
            "--codebook",
            "code",
            "--first-id",
            first,
            "--degree",
            "16",
            "--build-list",
            "32",
        ];
        place.run(&build).done();
    }
    place
}

fn with_truth(place: &Place) {
    let truth = ["truth", "base.u8bin", "queries.u8bin", "truth.bin"];
    place.run(&[&truth[..], &["-k", "10"]].concat()).done();
}

#[test]
fn a_codebook_is_trained_and_does_not_depend_on_threads() {
    let place = Place::new();
    let train = |name: &str, words: &[&str]| {
        let call = ["train", "base.u8bin", name, "--code-bytes", "8", "--json"];
        place.run(&[&call[..], words].concat())
    };
    let one = train("one", &["--threads", "1"]).done();
    assert!(one.stderr.contains("training codes: done"), "{one:?}");
    let one = one.json();
    assert_eq!(
        keys(&one),
        [
            "bytes",
            "code_bytes",
            "codebook",
            "dimension",
            "hash",
            "seconds"
        ]
    );
    assert_eq!(
        (&one["dimension"], &one["code_bytes"]),
        (&DIM.into(), &8.into())
    );
    assert_eq!(one["bytes"], fs::metadata(place.path("one")).unwrap().len());
    let two = train("two", &["--threads", "2"]).done().json();
    assert_eq!(two["hash"], one["hash"]);
    assert_eq!(
        fs::read(place.path("one")).unwrap(),
        fs::read(place.path("two")).unwrap()
    );
    let other = train("other", &["--seed", "7", "--metric", "cosine"]).done();
    assert_ne!(other.json()["hash"], one["hash"]);
    train("one", &["--seed", "7"]).refused(2, &["one", "exists", "--overwrite"]);
    let again = train("one", &["--seed", "7", "--overwrite"]).done().json();
    assert_ne!(again["hash"], one["hash"]);
    let human = place.run(&["train", "base.u8bin", "human"]).done();
    assert!(human.stdout.contains("4 bytes a vector"), "{human:?}");

    train("no/such", &[]).refused(1, &["no"]);
    train("x", &["--code-bytes", "17"]).refused(2, &["--code-bytes"]);
    let train = |words: &[&str]| place.run(&[&["train"][..], words].concat());
    train(&["base.u8bin", "x", "--code-bytes", "17"]).refused(2, &["17", "16"]);
    train(&["missing.u8bin", "x"]).refused(1, &["missing.u8bin"]);
    train(&["base.u8bin"]).refused(2, &["CODEBOOK"]);
    assert!(
        !place
            .names()
            .iter()
            .any(|name| name == "x" || name.ends_with(".new"))
    );
}

#[test]
fn a_codebook_that_does_not_fit_is_refused() {
    let place = Place::new();
    place
        .run(&["train", "base.u8bin", "code", "--code-bytes", "8"])
        .done();
    let build = |base: &str, words: &[&str]| {
        place.run(&[&["build", base, "i", "--degree", "8"][..], words].concat())
    };
    build("base.u8bin", &["--codebook", "code", "--code-bytes", "4"])
        .refused(2, &["code bytes", "4", "8", "codebook"]);
    place.write("wide.u8bin", &u8s(ROWS, 2 * DIM, 1));
    build("wide.u8bin", &["--codebook", "code"]).refused(2, &["codebook", "16", "32"]);
    build("base.u8bin", &["--codebook", "missing"]).refused(1, &["missing"]);
    build("base.u8bin", &["--codebook", "base.u8bin"]).refused(1, &["base.u8bin"]);
    let whole = fs::read(place.path("code")).unwrap();
    place.write("short", &whole[..whole.len() - 1]);
    build("base.u8bin", &["--codebook", "short"]).refused(1, &["short"]);
    let mut damaged = whole;
    damaged[5_000] ^= 1;
    place.write("damaged", &damaged);
    build("base.u8bin", &["--codebook", "damaged"]).refused(1, &["damaged"]);
    build("base.u8bin", &["--first-id", "18446744073709551600"])
        .refused(2, &["--first-id", "18446744073709551600", "600 rows"]);
    assert!(!place.path("i").exists());
    build("base.u8bin", &["--codebook", "code", "--code-bytes", "8"]).done();
    let call = [
        "build",
        "base.u8bin",
        "j",
        "--codebook",
        "i/codebook-000001",
    ];
    place.run(&call).done();
    place.run(&["verify", "j"]).done();
}

#[test]
fn several_indexes_are_searched_as_one() {
    let place = halves();
    with_truth(&place);
    let search = |what: &[&str], words: &[&str]| {
        let call = [
            &["search"][..],
            what,
            &["queries.u8bin", "--truth", "truth.bin"],
        ];
        place.run(&[&call.concat()[..], words].concat())
    };
    let both = &["shelf/low", "shelf/high"][..];
    // The list has all vectors of each index, so the results are exact.
    let all = ["--list", "300", "--json"];
    let lines = search(both, &all).done().json_lines();
    assert_eq!(lines[0]["recall"], 1.0);
    assert_eq!(
        keys(&lines[0]),
        [
            "cpu_us",
            "distance_error",
            "in_flight",
            "k",
            "latency_us",
            "list",
            "peak_rss_bytes",
            "per_query",
            "qps",
            "recall",
            "threads"
        ]
    );
    let one = search(&["shelf/low"], &all).done().json_lines();
    assert!(
        one[0]["recall"].as_f64().unwrap() < 0.9,
        "the one index has half of the rows"
    );
    let reads = |line: &Value| line["per_query"]["bytes_read"].as_f64().unwrap();
    assert!(reads(&lines[0]) > reads(&one[0]), "{lines:?} {one:?}");
    let truth = fs::read(place.path("truth.bin")).unwrap();
    for (what, words) in [
        (both, &[][..]),
        (&["shelf/high", "shelf/low", "shelf/high"], &[]),
        (&["shelf"], &["--memory", "32MB"]),
        (
            &["shelf", "shelf/low"],
            &["--threads", "2", "--preset", "pipeann"],
        ),
        (
            &["shelf"],
            &["--rerank-batch", "7", "--cache-entries", "50"],
        ),
    ] {
        let out = ["--list", "300", "--out", "found.bin", "--overwrite"];
        let ran = search(what, &[&out[..], words].concat()).done();
        assert!(ran.stdout.contains("20 queries in 2 indexes"), "{ran:?}");
        assert_eq!(
            fs::read(place.path("found.bin")).unwrap(),
            truth,
            "{what:?}"
        );
    }
    let reached = search(both, &["--recall", "0.9", "--json"])
        .done()
        .json_lines();
    assert!(reached[0]["recall"].as_f64().unwrap() >= 0.9);
    assert_eq!(
        search(both, &["--json", "--list", "20,40"])
            .json_lines()
            .len(),
        2
    );
    fs::create_dir(place.path("box")).unwrap();
    fs::rename(place.path("shelf/low"), place.path("box/low")).unwrap();
    let ran = search(&["box"], &[]).done();
    assert!(ran.stdout.contains("20 queries, "), "{ran:?}");
}

#[test]
fn a_folder_of_indexes_is_searched_and_said_to_be_one_without_what_is_hidden() {
    let place = halves();
    // A folder with a leading dot may be an unfinished copy.
    fs::create_dir(place.path("shelf/.copy")).unwrap();
    for file in fs::read_dir(place.path("shelf/low")).unwrap() {
        let file = file.unwrap();
        fs::copy(
            file.path(),
            place.path("shelf/.copy").join(file.file_name()),
        )
        .unwrap();
    }
    let search = [
        "search",
        "shelf",
        "queries.u8bin",
        "--list",
        "300",
        "--print",
        "--json",
    ];
    let found = place.run(&search).done();
    let note = "shelf is a directory of indexes; its 2 indexes are searched as one index";
    assert!(found.stderr.contains(note), "{found:?}");
    let both = ["search", "shelf/low", "shelf/high", "queries.u8bin"];
    let both = place.run(&[&both[..], &search[3..]].concat()).done();
    assert_eq!(found.stdout, both.stdout);
    assert!(!both.stderr.contains("directory of indexes"), "{both:?}");
    let quiet = place.run(&[&["--quiet"][..], &search].concat()).done();
    assert_eq!(quiet.stderr, "");
}

#[test]
fn what_cannot_be_searched_as_one_is_refused() {
    let place = halves();
    let search = |what: &[&str], words: &[&str]| {
        place.run(&[&["search"][..], what, &["queries.u8bin"], words].concat())
    };
    place.write("floats.fbin", &f32s(ROWS, DIM, 1, None));
    let build = ["build", "floats.fbin", "floats", "--degree", "8"];
    place.run(&build).done();
    search(&["shelf/low", "floats"], &[]).refused(2, &["shelf/low", "floats", "f32", "u8"]);
    search(&["shelf", "missing"], &[]).refused(1, &["missing"]);
    search(&["shelf", "base.u8bin"], &[]).refused(1, &["base.u8bin"]);
    search(&["shelf"], &["-k", "65537", "--list", "70000"]).refused(2, &["65537", "65536"]);
    search(&["shelf"], &["--memory", "1MB"]).refused(2, &["memory", "1000000"]);
    search(&["shelf"], &["--cache-entries", "1%"]).refused(2, &["--cache-entries", "2"]);
    search(&["shelf"], &["--nav"]).refused(2, &["navigation", "shelf/high"]);
    let alone = place.run(&["search", "queries.u8bin"]);
    alone.refused(2, &["QUERIES"]);
    assert_eq!(QUERIES, 20);
}

#[test]
fn one_thing_is_counted_in_the_singular() {
    let place = Place::new();
    place.write("one.u8bin", &u8s(1, DIM, 1));
    let build = ["build", "one.u8bin", "shelf/one"];
    std::fs::create_dir(place.path("shelf")).unwrap();
    place.run(&build).done();
    let said = |words: &[&str], line: &str| {
        let ran = place.run(words).done();
        let all = ran.stdout + &ran.stderr;
        assert!(all.contains(line), "{line}: {all}");
    };
    said(&["stats", "shelf"], "1 index, 1 vector, ");
    said(&["stats", "shelf/one"], "  1 vector\n");
    said(
        &["search", "shelf/one", "one.u8bin", "-k", "1"],
        "1 query, ",
    );
    said(
        &["search", "shelf", "one.u8bin", "-k", "1"],
        "its only index is searched",
    );
    let truth = ["truth", "one.u8bin", "one.u8bin", "truth.bin", "-k", "1"];
    said(&truth, "the 1 nearest neighbours of 1 query, ");
    place.run(&["insert", "shelf/one", "one.u8bin"]).done();
    place.run(&["delete", "shelf/one", "0"]).done();
    said(&["compact", "shelf/one"], " 1 vector");
}

#[test]
fn stats_of_a_directory_list_its_indexes() {
    let place = halves();
    let shown = place.run(&["stats", "shelf"]).done().stdout;
    for word in [
        "low",
        "high",
        "aisaq",
        "diskann",
        "u8",
        "2 indexes, 600 vectors",
    ] {
        assert!(shown.contains(word), "{word}: {shown}");
    }
    assert!(shown.contains(", 1 codebook\n"), "{shown}");
    let lines = place.run(&["stats", "shelf", "--json"]).done().json_lines();
    assert_eq!(lines.len(), 2);
    assert_eq!(
        (&lines[0]["name"], &lines[1]["name"]),
        (&"high".into(), &"low".into())
    );
    for line in &lines {
        for key in [
            "vectors",
            "dimension",
            "preset",
            "bytes",
            "codebook",
            "format_version",
        ] {
            assert!(keys(line).contains(&key), "{key}");
        }
        assert_eq!(line["vectors"], ROWS / 2);
        assert_eq!(line["codebook"], lines[0]["codebook"]);
        let hash = line["codebook"].as_str().unwrap();
        assert!(hash.len() == 64 && shown.contains(&hash[..12]), "{hash}");
        let index = format!("shelf/{}", line["name"].as_str().unwrap());
        let stats = place.run(&["stats", &index, "--json"]).done().json();
        assert_eq!(stats["bytes"]["total"], line["bytes"]);
    }
    place
        .run(&["stats", "shelf", "--memory", "64MB"])
        .refused(2, &["--memory", "shelf/high"]);
    fs::write(place.path("shelf/high/MANIFEST"), "nonsense").unwrap();
    let damaged = place.run(&["stats", "shelf"]);
    assert!(
        damaged.stdout.contains("low"),
        "the undamaged index is listed"
    );
    damaged.refused(1, &["1 of 2", "high/MANIFEST"]);
}
