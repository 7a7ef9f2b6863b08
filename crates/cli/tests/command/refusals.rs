//! Everything that can be wrong with a call or with files: the exit status, the words, and that nothing is left.

use std::fs;

use crate::support::{DIM, Place, QUERIES, ROWS, SMALL_BUILD, f32s, names, u8s};

/// A build that is refused leaves the folder as it was.
#[track_caller]
fn build_refused(place: &Place, words: &[&str], status: i32, expected: &[&str]) {
    let before = place.names();
    place
        .run(&[&["build"][..], words].concat())
        .refused(status, expected);
    assert_eq!(place.names(), before, "the build left something behind");
}

#[test]
fn vector_files() {
    let place = Place::new();
    build_refused(&place, &["missing.u8bin", "i"], 1, &["missing.u8bin"]);
    place.write("base.dat", &u8s(10, DIM, 1));
    build_refused(&place, &["base.dat", "i"], 2, &["base.dat", ".u8bin"]);
    let whole = u8s(ROWS, DIM, 1);
    place.write("short.u8bin", &whole[..whole.len() - 5]);
    build_refused(
        &place,
        &["short.u8bin", "i"],
        1,
        &["short.u8bin", &whole.len().to_string()],
    );
    place.write("header.u8bin", &whole[..6]);
    build_refused(&place, &["header.u8bin", "i"], 1, &["header.u8bin"]);
    place.write("empty.u8bin", &[]);
    build_refused(&place, &["empty.u8bin", "i"], 1, &["empty.u8bin"]);
    place.write("norows.u8bin", &u8s(0, DIM, 1));
    assert_ne!(place.run(&["build", "norows.u8bin", "i"]).status, Some(0));
    build_refused(&place, &[".", "i"], 2, &[".fbin"]);
}

#[test]
fn values_that_are_no_vectors() {
    let place = Place::new();
    for (name, value) in [("nan", f32::NAN), ("inf", f32::INFINITY)] {
        let file = format!("{name}.fbin");
        // Row 300, element 7.
        place.write(&file, &f32s(ROWS, DIM, 1, Some((300 * DIM + 7, value))));
        build_refused(&place, &[&file, "i"], 1, &[&file, "300"]);
    }
    let mut zero = f32s(ROWS, DIM, 1, None);
    zero[8 + 41 * DIM * 4..8 + 42 * DIM * 4].fill(0);
    place.write("zero.fbin", &zero);
    build_refused(
        &place,
        &["zero.fbin", "i", "--metric", "cosine"],
        1,
        &["zero.fbin", "41"],
    );
    // A zero vector is a vector like any other under L2.
    place
        .run(&["build", "zero.fbin", "i", "--metric", "l2", "--degree", "8"])
        .done();
}

#[test]
fn build_options() {
    let place = Place::new();
    build_refused(
        &place,
        &["base.u8bin", "i", "--preset", "diskan"],
        2,
        &["diskan", "diskann"],
    );
    build_refused(
        &place,
        &["base.u8bin", "i", "--metric", "cosin"],
        2,
        &["cosin", "cosine"],
    );
    build_refused(
        &place,
        &["base.u8bin", "i", "--order", "random"],
        2,
        &["random", "locality"],
    );
    build_refused(
        &place,
        &["base.u8bin", "i", "--degree", "0"],
        2,
        &["0", "at least 1"],
    );
    build_refused(
        &place,
        &["base.u8bin", "i", "--degree", "many"],
        2,
        &["many"],
    );
    build_refused(
        &place,
        &["base.u8bin", "i", "--alpha", "0.5"],
        2,
        &["alpha", "0.5"],
    );
    build_refused(
        &place,
        &["base.u8bin", "i", "--navigation", "2"],
        2,
        &["navigation", "2"],
    );
    build_refused(
        &place,
        &["base.u8bin", "i", "--code-bytes", "17"],
        2,
        &["17", "16"],
    );
    build_refused(
        &place,
        &["base.u8bin", "i", "--memory", "2 parsecs"],
        2,
        &["parsecs", "2GiB"],
    );
    build_refused(
        &place,
        &["base.u8bin", "i", "--memory", "1kB"],
        2,
        &["1000", "memory"],
    );
    for (words, expected) in [
        (&["--layout", "coupeld"][..], &["coupeld", "coupled"][..]),
        (&["--compression", "zip"], &["zip", "paper"]),
        (
            &["--layout", "coupled", "--compression", "best"],
            &["compression", "best", "raw", "packed"],
        ),
        (
            &["--preset", "diskann", "--compression", "paper"],
            &["compression", "paper", "raw"],
        ),
        (&["--chunk", "100"], &["chunk", "100", "4096"]),
        (&["--chunk", "0"], &["--chunk", "default"]),
        (&["--chunk", "2 parsecs"], &["--chunk", "parsecs", "2GiB"]),
        (&["--segment", "1MiB"], &["segment", "1048576", "4194304"]),
        (&["--segment", "x"], &["--segment", "'x'"]),
        (
            &["--chunk-overhead", "0.0005"],
            &["chunk overhead", "0.0005", "1/1024"],
        ),
        (
            &["--chunk-overhead", "2"],
            &["chunk overhead", "2", "up to 1"],
        ),
        (&["--chunk-overhead", "NaN"], &["chunk overhead", "NaN"]),
        (&["--chunk-overhead", "little"], &["little"]),
        (
            &["--chunk-overhead", "0.01", "--chunk", "1MiB"],
            &["--chunk-overhead", "--chunk"],
        ),
    ] {
        build_refused(&place, &[&["base.u8bin", "i"], words].concat(), 2, expected);
    }
    build_refused(&place, &["base.u8bin"], 2, &["INDEX"]);
    build_refused(
        &place,
        &["base.u8bin", "i", "--degre", "3"],
        2,
        &["--degre", "--degree"],
    );
}

#[test]
fn an_index_is_not_replaced_by_accident() {
    let place = Place::with_index();
    let before = names(&place.path("index"));
    place.run(&SMALL_BUILD).refused(2, &["index", "overwrite"]);
    assert_eq!(names(&place.path("index")), before);
    place
        .run(&[&SMALL_BUILD[..], &["--overwrite"]].concat())
        .done();
    place.run(&["verify", "index"]).done();
    // A folder with something of the user's in it is no place for an index either.
    fs::create_dir(place.path("mine")).unwrap();
    fs::write(place.path("mine/letter.txt"), "dear").unwrap();
    for words in [
        &["build", "base.u8bin", "mine"][..],
        &["build", "base.u8bin", "mine", "--overwrite"],
    ] {
        let ran = place.run(words);
        assert_eq!(
            fs::read(place.path("mine/letter.txt")).unwrap(),
            b"dear",
            "{ran:?}"
        );
    }
    // Nor is a file.
    place.write("file", b"x");
    assert_ne!(place.run(&["build", "base.u8bin", "file"]).status, Some(0));
    assert_eq!(fs::read(place.path("file")).unwrap(), b"x");
}

#[test]
fn search_options() {
    let place = Place::with_index();
    let search =
        |words: &[&str]| place.run(&[&["search", "index", "queries.u8bin"][..], words].concat());
    search(&["-k", "0"]).refused(2, &["0", "at least 1"]);
    search(&["-k", "601", "--list", "700"]).refused(2, &["601", "600"]);
    search(&["-k", "20", "--list", "10"]).refused(2, &["10", "20"]);
    search(&["-k", "20", "--list", "100,10"]).refused(2, &["10", "20"]);
    search(&["--list", "0"]).refused(2, &["at least 1"]);
    search(&["--list", "20,x"]).refused(2, &["x"]);
    search(&["--strategy", "worst-first"]).refused(2, &["worst-first", "best-first"]);
    search(&["--io", "tape"]).refused(2, &["tape", "pread"]);
    search(&["--beam", "0"]).refused(2, &["at least 1"]);
    search(&["--memory", "1kB"]).refused(2, &["memory", "1000"]);
    search(&["--cache", "0"]).refused(2, &["--cache", "default"]);
    search(&["--cache", "2 parsecs"]).refused(2, &["--cache", "parsecs"]);
    search(&["--cache", "900TiB"]).refused(2, &["--cache", "RAM"]);
    for (entries, expected) in [
        ("0", "'0'"),
        ("some", "'some'"),
        ("0%", "above 0%"),
        ("101%", "up to 100%"),
        ("x%", "'x%'"),
        ("NaN%", "above 0%"),
        ("1.5", "'1.5'"),
        ("-1", "-1"),
    ] {
        let words = format!("--cache-entries={entries}");
        search(&[&words]).refused(2, &["--cache-entries", expected, "1%"]);
    }
    search(&["--cache", "1MB", "--cache-entries", "3"]).refused(2, &["--cache", "--cache-entries"]);
    search(&["--rerank-batch", "0"]).refused(2, &["--rerank-batch", "at least 1"]);
    search(&["--rerank-batch", "few"]).refused(2, &["--rerank-batch", "few"]);
    for benefit in ["1.5", "-0.1", "NaN", "much"] {
        let words = format!("--benefit={benefit}");
        search(&[&words]).refused(2, &["--benefit", benefit, "0 to 1"]);
    }
    search(&["--rerank", "estimates"]).refused(2, &["estimates", "estimate", "batches"]);
    search(&["--truth", "missing.bin"]).refused(1, &["missing.bin"]);
    search(&["--out", "o.bin", "--list", "20,30"]).refused(2, &["--out", "2"]);
    assert!(!place.path("o.bin").exists());
}

#[test]
fn queries_that_do_not_fit() {
    let place = Place::with_index();
    place.write("wide.u8bin", &u8s(QUERIES, DIM + 1, 2));
    place
        .run(&["search", "index", "wide.u8bin"])
        .refused(2, &["wide.u8bin", "17", "16"]);
    place.write("floats.fbin", &f32s(QUERIES, DIM, 2, None));
    place
        .run(&["search", "index", "floats.fbin"])
        .refused(2, &["floats.fbin", "f32", "u8"]);
    place
        .run(&["search", "index", "missing.u8bin"])
        .refused(1, &["missing.u8bin"]);
    place.write("base.fbin", &f32s(ROWS, DIM, 1, None));
    place
        .run(&[
            "build",
            "base.fbin",
            "floats",
            "--metric",
            "cosine",
            "--degree",
            "16",
        ])
        .done();
    place.write(
        "nan.fbin",
        &f32s(QUERIES, DIM, 2, Some((3 * DIM, f32::NAN))),
    );
    place
        .run(&["search", "floats", "nan.fbin"])
        .refused(1, &["nan.fbin", "3"]);
    let mut zero = f32s(QUERIES, DIM, 2, None);
    zero[8..8 + DIM * 4].fill(0);
    place.write("zero.fbin", &zero);
    place
        .run(&["search", "floats", "zero.fbin"])
        .refused(1, &["zero.fbin", "0"]);
}

#[test]
fn ground_truth_that_does_not_fit() {
    let place = Place::with_index();
    let truth = |words: &[&str]| place.run(&[&["truth"][..], words].concat());
    truth(&["base.u8bin", "queries.u8bin", "t5.bin", "-k", "5"]).done();
    let search = |truth: &str| place.run(&["search", "index", "queries.u8bin", "--truth", truth]);
    search("t5.bin").refused(2, &["t5.bin", "5", "10"]);
    place.write("few.u8bin", &u8s(3, DIM, 2));
    truth(&["base.u8bin", "few.u8bin", "few.bin", "-k", "10"]).done();
    search("few.bin").refused(2, &["few.bin", "3", "20"]);
    let bytes = fs::read(place.path("few.bin")).unwrap();
    place.write("short.bin", &bytes[..bytes.len() - 3]);
    search("short.bin").refused(1, &["short.bin"]);

    truth(&["base.u8bin", "queries.u8bin", "t5.bin"])
        .refused(2, &["t5.bin", "exists", "--overwrite"]);
    truth(&["base.u8bin", "queries.u8bin", "t.bin", "-k", "601"]).refused(2, &["601", "600"]);
    truth(&["base.u8bin", "queries.u8bin", "t.txt"]).refused(2, &["t.txt", ".bin"]);
    place.write("wide.u8bin", &u8s(3, DIM + 1, 2));
    truth(&["base.u8bin", "wide.u8bin", "t.bin"]).refused(2, &["17", "16"]);
    truth(&["base.u8bin", "queries.u8bin", "no/such/t.bin"]).refused(1, &["no/such"]);
    assert!(!place.path("t.bin").exists() && !place.path("t.txt").exists());
}

#[test]
fn what_is_no_index() {
    let place = Place::with_index();
    fs::create_dir(place.path("empty")).unwrap();
    for command in [&["stats"][..], &["verify"], &["search"]] {
        let on = |index: &str| {
            let queries: &[&str] = if command == ["search"] {
                &["queries.u8bin"]
            } else {
                &[]
            };
            place.run(&[command, &[index], queries].concat())
        };
        on("missing").refused(1, &["missing"]);
        on("base.u8bin").refused(1, &["base.u8bin"]);
        on("empty").refused(1, &["not an index"]);
    }
    // The others take it for a directory of indexes, which it is.
    place.run(&["verify", "."]).refused(1, &["not an index"]);
}

/// Each file of the index in turn gets a wrong magic, a wrong end, or a wrong bit somewhere.
#[test]
fn damage_is_named_and_verify_finds_it() {
    let place = Place::new();
    place
        .run(&[&SMALL_BUILD[..], &["--navigation", "0.2"]].concat())
        .done();
    for file in names(&place.path("index")) {
        let path = place.path("index").join(&file);
        let whole = fs::read(&path).unwrap();
        if whole.is_empty() {
            continue; // the lock
        }
        let mut magic = whole.clone();
        magic[0] ^= 0xff;
        let mut bit = whole.clone();
        bit[whole.len() / 2] ^= 0x10;
        let short = whole[..whole.len() - 1].to_vec();
        for (what, bytes) in [("magic", magic), ("bit", bit), ("short", short)] {
            fs::write(&path, &bytes).unwrap();
            let ran = place.run(&["verify", "index"]);
            assert_eq!(ran.status, Some(1), "{what} of {file}: {ran:?}");
            assert!(
                (ran.stdout.clone() + &ran.stderr).contains(&file),
                "{what} of {file}: {ran:?}"
            );
            if what == "magic" {
                // Whatever the search makes of it, it says so and names the file.
                let ran = place.run(&["search", "index", "queries.u8bin", "--nav"]);
                assert_eq!(ran.status, Some(1), "{file}: {ran:?}");
                assert!(
                    ran.stderr.contains(&file) && !ran.stderr.contains("panicked"),
                    "{file}: {ran:?}"
                );
            }
        }
        fs::write(&path, &whole).unwrap();
    }
    place.run(&["verify", "index"]).done();
}

#[test]
fn jobs() {
    let place = Place::new();
    place
        .run(&["bench", "missing.toml"])
        .refused(1, &["missing.toml"]);
    place.write("broken.toml", b"name = ");
    place
        .run(&["bench", "broken.toml"])
        .refused(2, &["broken.toml"]);
    place.write("typo.toml", b"name = \"x\"\nrepeets = 3\n");
    place
        .run(&["bench", "typo.toml"])
        .refused(2, &["typo.toml", "repeets", "repeat"]);
    let names = place.names();
    assert!(!names.contains(&"bench".to_string()), "{names:?}");
}

/// Ctrl-C in the middle of a build.
#[cfg(unix)]
#[test]
fn an_interrupted_build_leaves_nothing() {
    let place = Place::new();
    // Long enough to be in the middle of something after half a second.
    place.write("large.u8bin", &u8s(60_000, 64, 9));
    let build = [
        "build",
        "large.u8bin",
        "large",
        "--threads",
        "1",
        "--degree",
        "64",
        "--build-list",
        "200",
    ];
    let child = place
        .command(&build)
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    std::thread::sleep(std::time::Duration::from_millis(1000));
    let killed = std::process::Command::new("kill")
        .args(["-INT", &child.id().to_string()])
        .status()
        .unwrap();
    assert!(killed.success());
    let output = child.wait_with_output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(stderr.contains("error: interrupted"), "{stderr}");
    place.run(&["stats", "large"]).refused(1, &["large"]);
    let left = if place.path("large").exists() {
        names(&place.path("large"))
    } else {
        Vec::new()
    };
    assert!(left.is_empty(), "{left:?}");
}
