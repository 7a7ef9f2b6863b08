//! Wrong calls and invalid files: the exit status, the text of the error, and no files left.

use std::fs;
#[cfg(unix)]
use std::os::unix::process::ExitStatusExt;

use crate::support::{DIM, Place, QUERIES, ROWS, SMALL_BUILD, bin, f32s, names, u8s};

#[track_caller]
fn build_refused(place: &Place, words: &[&str], status: i32, expected: &[&str]) {
    let before = place.names();
    place
        .run(&[&["build"][..], words].concat())
        .refused(status, expected);
    assert_eq!(
        place.names(),
        before,
        "the refused build left a file behind"
    );
}

#[test]
fn vector_files() {
    let place = Place::new();
    build_refused(&place, &["missing.u8bin", "i"], 1, &["missing.u8bin"]);
    place.write("base.dat", &u8s(10, DIM, 1));
    build_refused(
        &place,
        &["base.dat", "i"],
        2,
        &["base.dat", ".u8bin", ".parquet (with --vectors COLUMN)"],
    );
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
    place.run(&["build", "norows.u8bin", "empty"]).done();
    build_refused(&place, &[".", "i"], 2, &[".fbin"]);
}

#[test]
fn values_that_are_no_vectors() {
    let place = Place::new();
    for (name, value) in [("nan", f32::NAN), ("inf", f32::INFINITY)] {
        let file = format!("{name}.fbin");
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
    search(&["-k", "65537", "--list", "70000"]).refused(2, &["65537", "65536"]);
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
    truth(&["base.u8bin", "queries.u8bin", "t.bin", "-k", "65537"]).refused(2, &["65537", "65536"]);
    for name in ["all.bin", "all.ibin", "all.ivecs"] {
        truth(&["base.u8bin", "queries.u8bin", name, "-k", "601"]).done();
        let words = [
            "search",
            "index",
            "queries.u8bin",
            "--truth",
            name,
            "-k",
            "601",
        ];
        let found = place.run(&[&words[..], &["--list", "601", "--json"]].concat());
        assert!(found.done().stdout.contains("\"recall\":1.0"), "{name}");
    }
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
    // Only `search` and `stats` accept a directory of indexes. The errors of other commands name an
    // index in the directory.
    place.write("some.ids", b"1 2 3\n");
    for words in [
        &["verify", "."][..],
        &["repair", "."],
        &["compact", "."],
        &["insert", ".", "base.u8bin"],
        &["delete", ".", "some.ids"],
    ] {
        place
            .run(words)
            .refused(1, &["not an index", "folder of 1 index", "./index"]);
    }
}

#[test]
fn a_refused_call_touches_no_file() {
    use std::os::unix::fs::MetadataExt;
    let place = Place::with_index();
    let files = || {
        let name = |name: String| {
            let file = fs::metadata(place.path("index").join(&name)).unwrap();
            let changed = (
                file.mtime(),
                file.mtime_nsec(),
                file.ctime(),
                file.ctime_nsec(),
            );
            (name, file.ino(), changed)
        };
        // A call that takes the lock writes to LOCK.
        let names = names(&place.path("index")).into_iter();
        let names = names.filter(|name| name != "LOCK");
        names.map(name).collect::<Vec<_>>()
    };
    let before = files();
    let build = ["build", "base.u8bin", "index"];
    place.run(&build).refused(2, &["holds an index already"]);
    assert_eq!(files(), before);
    let resume = [&build[..], &["--resume"]].concat();
    place.run(&resume).refused(2, &["holds an index already"]);
    assert_eq!(files(), before);
    let calibrate = ["calibrate", "index", "queries.u8bin"];
    place.run(&calibrate).refused(2, &["at least 100 queries"]);
    assert_eq!(files(), before);
}

#[cfg(unix)]
#[test]
fn what_may_not_be_read_is_not_called_damaged() {
    use std::os::unix::fs::{MetadataExt, PermissionsExt};
    use std::os::unix::process::CommandExt;

    let place = Place::with_index();
    let mode = |name: &str, mode: u32| {
        fs::set_permissions(place.path(name), fs::Permissions::from_mode(mode)).unwrap();
    };
    // Root can read every file, so another user runs a copy of the command.
    let root = fs::metadata(place.path("index")).unwrap().uid() == 0;
    // The program `cp` makes the copy. If this process wrote it, another test's command could
    // inherit the open file.
    let copy = std::process::Command::new("cp")
        .arg(env!("CARGO_BIN_EXE_stratann"))
        .arg(place.path("stratann"))
        .status();
    assert!(copy.unwrap().success());
    mode("", 0o755);
    let run = |words: &[&str]| {
        let mut command = std::process::Command::new(place.path("stratann"));
        command.current_dir(place.path("")).args(words);
        if root {
            command.uid(65_534).gid(65_534);
        }
        let output = command.output().unwrap();
        crate::support::Ran {
            status: output.status.code(),
            stdout: String::from_utf8(output.stdout).unwrap(),
            stderr: String::from_utf8(output.stderr).unwrap(),
        }
    };
    let index = names(&place.path("index"));
    let packed = index.iter().find(|name| name.starts_with("packed"));
    let packed = format!("index/{}", packed.unwrap());
    mode(&packed, 0);
    run(&["stats", "index"]).refused(1, &[&packed, "permission denied"]);
    run(&["search", "index", "queries.u8bin"]).refused(1, &[&packed, "permission denied"]);
    let verified = run(&["verify", "index"]).refused(1, &["may have no damage"]);
    assert!(!verified.stderr.contains("stratann repair"), "{verified:?}");
    mode(&packed, 0o644);
    run(&["verify", "index"]).done();
    mode("index", 0);
    for command in [&["stats", "index"][..], &["verify", "index"]] {
        let ran = run(command).refused(1, &["index"]);
        assert!(!ran.stderr.contains("stratann repair"), "{ran:?}");
    }
    mode("index", 0o755);
}

#[test]
fn results_that_have_no_place_are_refused_before_the_work() {
    let place = Place::with_index();
    fs::create_dir(place.path("folder.bin")).unwrap();
    for (words, status, expected) in [
        (
            &["truth", "base.u8bin", "queries.u8bin", "t.txt"][..],
            2,
            &["t.txt", ".bin"][..],
        ),
        (
            &["truth", "base.u8bin", "queries.u8bin", "no/such/t.bin"],
            1,
            &["no/such/t.bin", "The directory no/such does not exist"],
        ),
        (
            &["truth", "base.u8bin", "queries.u8bin", "folder.bin"],
            2,
            &["folder.bin", "directory"],
        ),
        (
            &["train", "base.u8bin", "no/such/code"],
            1,
            &["no/such/code", "The directory no/such does not exist"],
        ),
        (
            &["train", "base.u8bin", "base.u8bin/code"],
            1,
            &["base.u8bin/code", "The directory base.u8bin does not exist"],
        ),
        (
            &["search", "index", "queries.u8bin", "--out", "no/such.bin"],
            1,
            &["no/such.bin", "The directory no does not exist"],
        ),
    ] {
        let ran = place.run(words).refused(status, expected);
        assert!(
            !ran.stderr.contains("done in") && ran.stdout.is_empty(),
            "{ran:?}"
        );
    }
    let names = place.names();
    assert_eq!(
        names,
        ["base.u8bin", "folder.bin", "index", "queries.u8bin"],
        "the command left a file behind"
    );
}

#[test]
fn arguments_in_the_wrong_order() {
    let place = Place::with_index();
    place
        .run(&["search", "queries.u8bin", "index"])
        .refused(2, &["index is a directory", "first", "last"]);
    place
        .run(&["build", "index", "base.u8bin"])
        .refused(2, &["index: a directory", ".fbin"]);
    place
        .run(&["insert", "base.u8bin", "index"])
        .refused(2, &["index: a directory", ".fbin"]);
    place
        .run(&["delete", "index", "index"])
        .refused(1, &["index", "Give the name of a file"]);
    place
        .run(&["insert", "index", "missing.u8bin"])
        .refused(1, &["missing.u8bin", "Check the path"]);
    place
        .run(&["build", "base", "other"])
        .refused(2, &["base: a name without an extension", ".u8bin"]);
}

#[test]
fn answers_that_are_not_there_are_counted() {
    let place = Place::new();
    place.write(
        "rest.u8bin",
        &bin(5, DIM, &u8s(ROWS, DIM, 1)[8..8 + 5 * DIM]),
    );
    let truth = ["truth", "rest.u8bin", "queries.u8bin", "t.bin", "-k", "5"];
    place.run(&truth).done();
    let ids = |ids: std::ops::Range<usize>| {
        let ids: Vec<String> = ids.map(|id| id.to_string()).collect();
        ids.join("\n")
    };
    place.write("most.ids", ids(5..ROWS).as_bytes());
    place.write("all.ids", ids(0..ROWS).as_bytes());
    fs::create_dir(place.path("shelf")).unwrap();
    for (name, gone) in [
        ("shelf/a", "most.ids"),
        ("shelf/b", "most.ids"),
        ("shelf/c", "all.ids"),
    ] {
        place
            .run(&["build", "base.u8bin", name, "--degree", "16"])
            .done();
        place.run(&["delete", name, gone]).done();
    }
    let search = |words: &[&str]| {
        let search = ["search", "shelf", "queries.u8bin", "--list", "600"];
        place.run(&[&search[..], words].concat()).done()
    };
    let found = search(&["-k", "10"]);
    let short = "20 of the queries at list 600 have fewer than 10 results";
    assert!(found.stdout.contains(short), "{found:?}");
    assert!(!search(&["-k", "5"]).stdout.contains("fewer than"));
    let json = search(&["-k", "5", "--truth", "t.bin", "--json"]).json_lines();
    assert_eq!(json[0]["recall"], 1.0);
}

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
            if what == "magic" && file.starts_with("ids-") {
                // A look-up by id reads the records instead, and warns.
                let ran = place.run(&["get", "index", "5"]).done();
                assert!(ran.stderr.contains(&file), "{ran:?}");
                place.run(&["search", "index", "queries.u8bin"]).done();
            } else if what == "magic" {
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
    place
        .run(&["bench", "base.u8bin"])
        .refused(2, &["not a text file"]);
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

/// The build takes long enough to receive a signal.
#[cfg(unix)]
const LONG_BUILD: [&str; 9] = [
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

#[cfg(unix)]
fn start(command: &mut std::process::Command) -> std::process::Child {
    let command = command
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped());
    command.spawn().unwrap()
}

#[cfg(unix)]
fn signal(place: &Place, child: &std::process::Child, signal: &str) {
    let since = std::time::Instant::now();
    while !place.path("large/build-scratch").exists() {
        assert!(since.elapsed().as_secs() < 300, "the build does not begin");
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
    let sent = std::process::Command::new("kill")
        .args([signal, &child.id().to_string()])
        .status();
    assert!(sent.unwrap().success());
}

#[cfg(unix)]
pub fn is_ignored(number: i32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| mask >> (number - 1) & 1 == 1)
}

#[cfg(unix)]
#[test]
fn an_interrupted_build_leaves_nothing() {
    let place = Place::new();
    place.write("large.u8bin", &u8s(60_000, 64, 9));
    // If a script starts the tests in the background, they ignore Ctrl-C.
    let signals = [("-HUP", 1), ("-INT", 2), ("-TERM", 15)];
    for (sent, number) in signals {
        if is_ignored(number) {
            eprintln!("skipped: {sent}; these tests were started with this signal ignored");
            continue;
        }
        let child = start(&mut place.command(&LONG_BUILD));
        signal(&place, &child, sent);
        let output = child.wait_with_output().unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.signal(), Some(number), "{sent}: {stderr}");
        assert!(stderr.contains("error: interrupted"), "{sent}: {stderr}");
        place.run(&["stats", "large"]).refused(1, &["large"]);
        let left = if place.path("large").exists() {
            names(&place.path("large"))
        } else {
            Vec::new()
        };
        assert!(left.is_empty(), "{sent}: {left:?}");
    }
}

#[cfg(unix)]
#[test]
fn a_signal_that_is_to_be_ignored_is() {
    let place = Place::new();
    place.write("large.u8bin", &u8s(60_000, 64, 9));
    let mut command = std::process::Command::new("sh");
    command
        .current_dir(place.path(""))
        .args(["-c", "trap '' HUP; exec \"$0\" \"$@\""])
        .arg(env!("CARGO_BIN_EXE_stratann"))
        .args(LONG_BUILD);
    let child = start(&mut command);
    signal(&place, &child, "-HUP");
    signal(&place, &child, "-TERM");
    let output = child.wait_with_output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.signal(), Some(15), "{stderr}");
    assert_eq!(stderr.matches("stopping").count(), 1, "{stderr}");
}

#[cfg(unix)]
#[test]
fn a_killed_build_is_cleared_by_the_next() {
    let place = Place::new();
    place.write("large.u8bin", &u8s(60_000, 64, 9));
    let child = start(&mut place.command(&LONG_BUILD));
    signal(&place, &child, "-KILL");
    child.wait_with_output().unwrap();
    let left = names(&place.path("large"));
    assert!(left.contains(&"build-scratch".to_owned()), "{left:?}");
    let again = ["build", "base.u8bin", "large", "--degree", "16"];
    place.run(&again).done();
    let left = names(&place.path("large"));
    assert!(!left.contains(&"build-scratch".to_owned()), "{left:?}");
    place.run(&["verify", "large"]).done();
}
