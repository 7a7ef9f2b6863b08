//! Tests changes of an index whose inserted vectors wait in the log for a merge, the errors of such
//! changes, and kills during them. `direct.rs` tests direct inserts.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, ExitStatus, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde_json::Value;
use stratann::{LiveIndex, OpenOptions, WriteOptions};

use crate::direct::{found_up_to, times};
use crate::support::{Place, ROWS, Ran, bin, f32s, keys, names, numbers, u8s};

pub const DIM: usize = 128;
/// The index is built from this many rows. Tests insert later rows of the fixture.
pub const BUILT: usize = 2_000;
const BATCH: usize = 256;

pub fn fixture() -> &'static [u8] {
    static BYTES: std::sync::OnceLock<Vec<u8>> = std::sync::OnceLock::new();
    let path = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../fixtures/photo-sift-20k.base.u8bin"
    );
    BYTES.get_or_init(|| fs::read(path).unwrap())
}

pub fn rows(first: usize, count: usize) -> Vec<u8> {
    let from = 8 + first * DIM;
    bin(count, DIM, &fixture()[from..from + count * DIM])
}

pub fn lines(ids: impl IntoIterator<Item = u64>) -> Vec<u8> {
    let lines: Vec<String> = ids.into_iter().map(|id| id.to_string()).collect();
    (lines.join("\n") + "\n").into_bytes()
}

/// A folder with an index of the first `BUILT` rows, built once for each preset.
pub fn place(preset: &str) -> Place {
    static KEPT: Mutex<BTreeMap<String, PathBuf>> = Mutex::new(BTreeMap::new());
    let place = Place::new();
    place.write("built.u8bin", &rows(0, BUILT));
    let mut kept = KEPT.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(index) = kept.get(preset) {
        copy(index, &place.path("index"));
        return place;
    }
    let build = ["build", "built.u8bin", "index", "--preset", preset];
    let small = ["--degree", "16", "--build-list", "40", "--seed", "1"];
    place.run(&[&build[..], &small].concat()).done();
    // The built index stays below the target folder until the next run of the tests.
    let index = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("built-{preset}"));
    let _ = fs::remove_dir_all(&index);
    copy(&place.path("index"), &index);
    kept.insert(preset.to_owned(), index);
    place
}

/// Adds the option with which inserted vectors wait in the log.
fn merging<'a>(words: &[&'a str]) -> Vec<&'a str> {
    [words, &["--update", "merge"]].concat()
}

/// The results of each query, nearest first, from the file of `--out`.
pub fn answers(place: &Place, queries: &str) -> Vec<Vec<(u64, f32)>> {
    answers_of(place, queries, "100")
}

/// The list is so long that the search visits every node that can be reached.
pub fn answers_wide(place: &Place, queries: &str) -> Vec<Vec<(u64, f32)>> {
    answers_of(place, queries, "2000")
}

fn answers_of(place: &Place, queries: &str, list: &str) -> Vec<Vec<(u64, f32)>> {
    let search = ["search", "index", queries, "--list", list, "--json"];
    let out = ["--out", "answers.bin", "--overwrite"];
    place.run(&[&search[..], &out].concat()).done();
    answers_in(place, "answers.bin")
}

pub fn answers_in(place: &Place, file: &str) -> Vec<Vec<(u64, f32)>> {
    let bytes = fs::read(place.path(file)).unwrap();
    let words: Vec<[u8; 4]> = bytes
        .chunks_exact(4)
        .map(|word| word.try_into().unwrap())
        .collect();
    let [queries, k] = [0, 1].map(|at| u32::from_le_bytes(words[at]) as usize);
    let (ids, distances) = words[2..].split_at(queries * k);
    assert_eq!(
        distances.len(),
        queries * k,
        "the numbers of ids and distances differ"
    );
    let pairs: Vec<_> = ids
        .iter()
        .zip(distances)
        .map(|(id, distance)| {
            (
                u64::from(u32::from_le_bytes(*id)),
                f32::from_le_bytes(*distance),
            )
        })
        .collect();
    pairs.chunks(k).map(<[_]>::to_vec).collect()
}

/// A search finds almost all rows. In a graph that several threads have built, the path to some
/// nodes is long, so a second search with a long list must find the rest.
#[track_caller]
pub fn all_found(place: &Place, queries: &str, ids: impl IntoIterator<Item = u64>, at: &str) {
    let ids: Vec<u64> = ids.into_iter().collect();
    let missed = |found: &[Vec<(u64, f32)>]| {
        assert_eq!(found.len(), ids.len(), "{at}");
        let pairs = ids.iter().zip(found);
        let missed = pairs.filter(|(id, answers)| !exactly(answers, **id));
        missed.map(|(id, _)| *id).collect::<Vec<u64>>()
    };
    let few = missed(&answers(place, queries));
    assert!(few.len() <= 2 + ids.len() / 50, "{at}: {few:?}");
    if !few.is_empty() {
        let gone = missed(&answers_wide(place, queries));
        assert!(gone.is_empty(), "{at}: {gone:?} of {few:?}");
    }
}

pub fn exactly(answers: &[(u64, f32)], id: u64) -> bool {
    answers.contains(&(id, 0.0))
}

/// The numbers of vectors in the checkpoint, of vectors in the log, and of deleted vectors.
#[track_caller]
pub fn counts(place: &Place) -> (u64, u64, u64) {
    let stats = place.run(&["stats", "index", "--json"]).done().json();
    let count = |key: &str| stats[key].as_u64().unwrap();
    (count("vectors"), count("logged"), count("deleted"))
}

#[test]
fn stats_tells_live_vectors_from_deleted_ones_and_that_a_merge_is_due() {
    let place = Place::with_index();
    let stats = || place.run(&["stats", "index", "--json"]).done().json();
    let text = || place.run(&["stats", "index"]).done().stdout;
    let line = |name: &str| {
        let text = text();
        let line = text.lines().find(|line| line.starts_with(name));
        line.unwrap_or_else(|| panic!("{name}: {text}")).to_owned()
    };
    let before = stats();
    assert_eq!(
        (&before["live"], &before["due"]),
        (&ROWS.into(), &Value::Null)
    );
    assert!(line("due ").ends_with(" nothing"), "{}", text());
    place.write("gone", &lines(0..200));
    let deleted = place
        .run(&["delete", "index", "gone", "--json"])
        .done()
        .json();
    let after = stats();
    assert_eq!(after["live"], ROWS - 200, "{after}");
    assert_eq!(
        (&after["vectors"], &after["deleted"]),
        (&ROWS.into(), &200.into())
    );
    assert_eq!(after["due"], deleted["due"]);
    assert!(line("live vectors").ends_with(" 400"), "{}", text());
    assert!(line("on storage").ends_with(" 600 vectors"), "{}", text());
    let due = "a merge: 33 % of the vectors on storage are deleted (`stratann compact`)";
    assert!(line("due ").ends_with(due), "{}", text());
    place.run(&["compact", "index"]).done();
    let merged = stats();
    assert_eq!(
        (&merged["live"], &merged["due"]),
        (&400.into(), &Value::Null)
    );
}

/// Returns the number of log records.
#[track_caller]
pub fn verified(place: &Place) -> u64 {
    let report = place.run(&["verify", "index", "--json"]).done().json();
    assert_eq!(report["problems"], Value::Array(vec![]));
    report["log_records"].as_u64().unwrap()
}

/// The numbers of inserted, deleted and remaining vectors.
#[track_caller]
pub fn changed(ran: Ran) -> [u64; 3] {
    let json = ran.done().json();
    let expected = [
        "compact", "deleted", "direct", "due", "inserted", "seconds", "trouble", "vectors",
    ];
    assert_eq!(keys(&json), expected);
    assert!(json["seconds"].as_f64().unwrap() >= 0.0);
    ["inserted", "deleted", "vectors"].map(|key| json[key].as_u64().unwrap())
}

pub fn logs(place: &Place) -> (Vec<String>, Vec<u64>) {
    let folder = place.path("index");
    let mut logs = names(&folder);
    logs.retain(|name| name.starts_with("log-"));
    let bytes = logs
        .iter()
        // A removed log counts as 0 bytes.
        .map(|name| fs::metadata(folder.join(name)).map_or(0, |facts| facts.len()));
    let bytes = bytes.collect();
    (logs, bytes)
}

pub fn logged_bytes(place: &Place) -> u64 {
    logs(place).1.iter().sum()
}

fn with_input(place: &Place, words: &[&str], input: &[u8]) -> Ran {
    let mut child = place
        .command(words)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(input).unwrap();
    let output = child.wait_with_output().unwrap();
    Ran {
        status: output.status.code(),
        stdout: String::from_utf8(output.stdout).unwrap(),
        stderr: String::from_utf8(output.stderr).unwrap(),
    }
}

#[test]
fn insert_delete_upsert_compact() {
    let place = place("stratann");
    assert_eq!((counts(&place), verified(&place)), ((2_000, 0, 0), 0));

    place.write("new.u8bin", &rows(2_000, 300));
    let insert = ["insert", "index", "new.u8bin", "--json"];
    assert_eq!(changed(place.run(&merging(&insert))), [300, 0, 2_300]);
    assert_eq!((counts(&place), verified(&place)), ((2_000, 300, 0), 300));
    all_found(&place, "new.u8bin", 2_000..2_300, "inserted");
    let stats = place.run(&["stats", "index"]).done().stdout;
    let line = stats.lines().find(|line| line.contains("in the log"));
    assert!(line.is_some_and(|line| line.contains("300")), "{stats}");

    place.write("all.u8bin", &rows(0, 2_300));
    place.write("asked.u8bin", &rows(10_000, 100));
    place
        .run(&["truth", "all.u8bin", "asked.u8bin", "all.bin", "-k", "10"])
        .done();
    let search = ["search", "index", "asked.u8bin", "--list", "100", "--json"];
    let with_truth = [&search[..], &["--truth", "all.bin"]].concat();
    let recall = |place: &Place| {
        let found = place.run(&with_truth).done().json_lines();
        found[0]["recall"].as_f64().unwrap()
    };
    let live = recall(&place);
    assert!(live >= 0.97, "{live}");

    place.write("more.u8bin", &rows(2_300, 5));
    place.write("more.ids", b"9000, 9001\n9002 9003\n\n9004\n");
    let insert = ["insert", "index", "more.u8bin", "--ids"];
    let from_file = [&insert[..], &["more.ids", "--json"]].concat();
    assert_eq!(changed(place.run(&merging(&from_file))), [5, 0, 2_305]);
    place.write("more.u8bin", &rows(2_305, 2));
    let from_input = [&insert[..], &["-", "--json", "--durability", "50ms"]].concat();
    assert_eq!(
        changed(with_input(&place, &merging(&from_input), b"5000 5001")),
        [2, 0, 2_307]
    );
    place.write("chosen.u8bin", &rows(2_300, 7));
    let chosen = [9_000, 9_001, 9_002, 9_003, 9_004, 5_000, 5_001];
    all_found(&place, "chosen.u8bin", chosen, "chosen");

    // Three of the vectors are in the checkpoint, and three in the log. One has the largest id.
    let gone = [0, 1, 1_999, 2_000, 2_001, 9_004];
    place.write("gone.ids", &lines(gone));
    let delete = ["delete", "index", "gone.ids", "--json", "--durability"];
    assert_eq!(
        changed(place.run(&merging(&[&delete[..], &["always"]].concat()))),
        [0, 6, 2_301]
    );
    assert_eq!(counts(&place), (2_000, 304, 3));
    let gone_rows = [0, 1, 1_999, 2_000, 2_001, 2_304].map(|row| rows(row, 1)[8..].to_vec());
    place.write("gone.u8bin", &bin(6, DIM, &gone_rows.concat()));
    let nowhere = |place: &Place| {
        for answers in answers(place, "gone.u8bin") {
            assert!(
                answers.iter().all(|(id, _)| !gone.contains(id)),
                "{answers:?}"
            );
        }
    };
    nowhere(&place);

    // The ids belong to a vector in the checkpoint, a vector in the log, a deleted vector, and no
    // vector.
    let replaced = [10, 2_010, 0, 7_000];
    place.write("upsert.ids", &lines(replaced));
    place.write("upsert.u8bin", &rows(3_000, 4));
    let upsert = ["insert", "index", "upsert.u8bin", "--ids", "upsert.ids"];
    let upsert = [&upsert[..], &["--upsert", "--json"]].concat();
    assert_eq!(changed(place.run(&merging(&upsert))), [4, 0, 2_303]);
    assert_eq!(counts(&place), (2_000, 307, 4));
    let before_rows = [10, 2_010].map(|row| rows(row, 1)[8..].to_vec());
    place.write("before.u8bin", &bin(2, DIM, &before_rows.concat()));
    let as_replaced = |place: &Place| {
        all_found(place, "upsert.u8bin", replaced, "replaced");
        for (answers, id) in answers(place, "before.u8bin").iter().zip(replaced) {
            assert!(!exactly(answers, id), "{id}: {answers:?}");
        }
    };
    as_replaced(&place);
    assert_eq!(verified(&place), 300 + 5 + 2 + 6 + 4);

    let (before, _) = logs(&place);
    assert!(
        before.len() >= 5,
        "there is no log for each command: {before:?}"
    );
    let compacted = place
        .run(&merging(&["compact", "index", "--json"]))
        .done()
        .json();
    let report = &compacted["compact"];
    let expected = [
        "bytes_after",
        "bytes_before",
        "clusters_merged",
        "clusters_split",
        "clusters_written",
        "codebook",
        "direct",
        "merged",
        "reassigned",
        "removed",
        "seconds",
        "segments_kept",
        "segments_rewritten",
        "vectors",
        "vectors_rewritten",
    ];
    assert_eq!(keys(report), expected);
    // The codebook of the build fits its few rows almost exactly, and other rows worse, so the
    // merge trains a new one.
    assert_eq!(report["codebook"], "trained");
    assert_eq!(compacted["vectors"], 2_303);
    let parts = ["vectors", "merged", "direct", "removed"].map(|key| report[key].as_u64().unwrap());
    assert_eq!(parts, [2_303, 307, 0, 4]);
    assert_eq!((counts(&place), verified(&place)), ((2_303, 0, 0), 0));
    let (after, _) = logs(&place);
    assert!(
        after.iter().all(|log| !before.contains(log)),
        "{after:?} were not removed, of {before:?}"
    );
    as_replaced(&place);
    let merged = recall(&place);
    assert!(
        merged >= 0.93,
        "the merge changed some results: recall {merged}"
    );

    let again = place.run(&["compact", "index"]).done();
    assert!(again.stdout.contains("nothing"), "{again:?}");

    // An id is never assigned twice, even after a merge has removed its vector.
    place.write("one.u8bin", &rows(4_000, 1));
    place.run(&["insert", "index", "one.u8bin"]).done();
    all_found(&place, "one.u8bin", [9_005], "one");
}

#[test]
fn every_preset_takes_changes_and_merges_them() {
    // The preset, the update method, and whether inserts are direct. In some layouts, inserted
    // vectors wait for a merge instead.
    let ways = [
        ("stratann", None, true),
        ("stratann", Some("merge"), false),
        ("odinann", None, true),
        ("diskann", None, false),
        ("diskann", Some("relocate"), true),
        ("pipeann", None, false),
        ("aisaq", None, true),
        // Pages of the layout inline are never moved.
        ("aisaq", Some("relocate"), false),
        ("decouplevs", None, false),
        ("decouplevs", Some("accumulate"), true),
        // The entries above cover each layout and each update method.
        ("stratann", Some("relocate"), true),
        ("stratann", Some("in-place"), true),
        ("odinann", Some("accumulate"), true),
        ("aisaq", Some("accumulate"), true),
        ("decouplevs", Some("relocate"), true),
    ];
    for &(preset, update, direct) in &ways[..times(10, 15)] {
        let place = place(preset);
        let way = update.map_or(vec![], |update| vec!["--update", update]);
        let preset_and_way = format!("{preset} {way:?}");
        place.write("new.u8bin", &rows(2_000, 40));
        place.write("gone.ids", &lines(0..20));
        let insert = ["insert", "index", "new.u8bin", "--json"];
        let insert = place.run(&[&insert[..], &way].concat());
        let counted = insert.json()["direct"]["inserts"].as_u64();
        assert_eq!(changed(insert), [40, 0, 2_040], "{preset_and_way}");
        assert_eq!(counted, direct.then_some(40), "{preset_and_way}");
        let expected = if direct {
            (2_040, 0, 0)
        } else {
            (2_000, 40, 0)
        };
        assert_eq!(counts(&place), expected, "{preset_and_way}");
        assert_eq!(verified(&place), expected.1, "{preset_and_way}");
        let found = |place: &Place| {
            all_found(place, "new.u8bin", 2_000..2_040, &preset_and_way);
        };
        found(&place);
        let delete = ["delete", "index", "gone.ids", "--compact", "--json"];
        let delete = [&delete[..], &way].concat();
        assert_eq!(
            changed(place.run(&delete)),
            [0, 20, 2_020],
            "{preset_and_way}"
        );
        assert_eq!(counts(&place), (2_020, 0, 0), "{preset_and_way}");
        assert_eq!(verified(&place), 0, "{preset_and_way}");
        found(&place);
        place.write("gone.u8bin", &rows(0, 20));
        for answers in answers(&place, "gone.u8bin") {
            assert!(
                answers.iter().all(|(id, _)| *id >= 20),
                "{preset_and_way}: {answers:?}"
            );
        }
        let stats = place.run(&["stats", "index", "--json"]).done().json();
        assert_eq!(
            stats["preset"], preset,
            "a merge keeps the choices of the build"
        );
    }
}

#[test]
fn what_is_wrong_with_a_change_is_said_and_changes_nothing() {
    let place = place("stratann");
    place.write("new.u8bin", &rows(2_000, 3));
    let insert = ["insert", "index", "new.u8bin", "--ids", "ids"];
    let delete = ["delete", "index", "ids"];
    let refused = |words: &[&str], ids: &[u8], expected: &[&str]| {
        place.write("ids", ids);
        place.run(words).refused(2, expected);
    };
    refused(&insert, b"7000 7001 1999", &["1999", "upsert"]);
    refused(&insert, b"7000 7001 7000", &["the id 7000 is given twice"]);
    refused(
        &insert,
        b"7000 7001",
        &["number of ids is 2; there are 3 rows"],
    );
    refused(&insert, b"", &["number of ids is 0; there are 3 rows"]);
    refused(
        &insert,
        b"7000\n7001\nseven",
        &["ids, line 3", "'seven'", "whole numbers"],
    );
    refused(&insert, b"7000\n7001 -3\n", &["ids, line 2", "'-3'"]);
    refused(
        &insert,
        b"1 2\n18446744073709551616",
        &["ids, line 2", "18446744073709551614"],
    );
    refused(
        &insert,
        b"1\n2\n18446744073709551615",
        &["18446744073709551615"],
    );
    refused(&delete, b"0 1 2000", &["2000", "an id in the index"]);
    refused(&delete, b"5\n5", &["the id 5 is given twice"]);
    refused(&delete, b"0 1 two", &["ids, line 1", "'two'"]);
    refused(
        &insert[..3]
            .iter()
            .chain(&["--upsert"])
            .copied()
            .collect::<Vec<_>>(),
        b"",
        &["--ids"],
    );

    place.write("narrow.u8bin", &u8s(3, 16, 1));
    place.write("floats.fbin", &f32s(3, DIM, 1, None));
    let inserted = |words: &[&str], expected: &[&str]| {
        place
            .run(&[&["insert"], words].concat())
            .refused(2, expected);
    };
    inserted(&["index", "narrow.u8bin"], &["narrow.u8bin", "16", "128"]);
    inserted(&["index", "floats.fbin"], &["floats.fbin", "f32", "u8"]);
    inserted(
        &["index", "new.u8bin", "--durability", "sometimes"],
        &["sometimes", "always", "100ms"],
    );
    inserted(
        &["index", "new.u8bin", "--threads", "0"],
        &["0", "at least 1"],
    );

    place
        .run(&["insert", "index", "none.u8bin"])
        .refused(1, &["none.u8bin"]);
    place
        .run(&["delete", "index", "none.ids"])
        .refused(1, &["none.ids", "Check the path"]);
    place.run(&["compact", "none"]).refused(1, &["none"]);

    assert_eq!((counts(&place), verified(&place)), ((2_000, 0, 0), 0));

    place.write("ids", &lines(0..2_000));
    fs::rename(place.path("index"), place.path("fresh")).unwrap();
    for (way, records) in [("merge", 2_000), ("accumulate", 0), ("relocate", 0)] {
        copy(&place.path("fresh"), &place.path("index"));
        let delete = ["delete", "index", "ids", "--json", "--update", way];
        assert_eq!(changed(place.run(&delete)), [0, 2_000, 0], "{way}");
        assert_eq!(counts(&place), (2_000, 0, 2_000), "{way}");
        let nothing = place.run(&["search", "index", "new.u8bin"]).done();
        assert!(
            nothing.stdout.contains("fewer than 10 results"),
            "{nothing:?}"
        );
        assert_eq!(verified(&place), records, "{way}");
        let insert = ["insert", "index", "new.u8bin", "--json", "--update", way];
        assert_eq!(changed(place.run(&insert)), [3, 0, 3], "{way}");
        let waits = if way == "merge" { 3 } else { 0 };
        assert_eq!(verified(&place), records + waits, "{way}");
        let search = ["search", "index", "new.u8bin", "-k", "3", "--list", "100"];
        place.run(&search).done();
        let compact = ["compact", "index", "--json", "--update", way];
        assert_eq!(place.run(&compact).done().json()["vectors"], 3, "{way}");
        assert_eq!(counts(&place), (3, 0, 0), "{way}");
        fs::remove_dir_all(place.path("index")).unwrap();
    }
}

#[test]
fn values_that_are_no_vectors() {
    let place = Place::new();
    place.write("base.fbin", &f32s(400, 16, 1, None));
    place
        .run(&["build", "base.fbin", "index", "--degree", "8"])
        .done();
    // The last row is invalid. All rows are checked before the first insert, so no row is inserted.
    place.write("nan.fbin", &f32s(600, 16, 2, Some((599 * 16, f32::NAN))));
    place
        .run(&["insert", "index", "nan.fbin"])
        .refused(1, &["nan.fbin", "599"]);
    assert_eq!((counts(&place), verified(&place)), ((400, 0, 0), 0));
}

#[test]
fn one_process_changes_while_others_read() {
    let place = place("stratann");
    place.write("new.u8bin", &rows(2_000, 2));
    place.write("ids", b"0");
    let holder = LiveIndex::open(
        place.path("index"),
        &OpenOptions::default(),
        &WriteOptions::default(),
    )
    .unwrap();
    for words in [
        &["insert", "index", "new.u8bin"][..],
        &["delete", "index", "ids"],
        &["compact", "index"],
    ] {
        place.run(words).refused(1, &["index", "LOCK"]);
    }
    // A reader needs no lock.
    assert_eq!(counts(&place), (2_000, 0, 0));
    holder.delete(&[0]).unwrap();
    assert_eq!((counts(&place), verified(&place)), ((2_000, 0, 1), 1));
    place.write("first.u8bin", &rows(0, 1));
    let found = answers(&place, "first.u8bin");
    assert!(!exactly(&found[0], 0), "{found:?}");
    drop(holder);
    let insert = ["insert", "index", "new.u8bin", "--json"];
    assert_eq!(changed(place.run(&insert)), [2, 0, 2_001]);
}

/// Runs the command with a limit of `blocks` blocks of 512 bytes on the size of files.
pub fn with_files_up_to(place: &Place, blocks: u32, words: &[&str]) -> Ran {
    let script = format!("ulimit -f {blocks}; exec \"$0\" \"$@\"");
    let output = std::process::Command::new("sh")
        .args(["-c", &script, env!("CARGO_BIN_EXE_stratann")])
        .args(words)
        .current_dir(place.path("."))
        .output()
        .unwrap();
    Ran {
        status: output.status.code(),
        stdout: String::from_utf8(output.stdout).unwrap(),
        stderr: String::from_utf8(output.stderr).unwrap(),
    }
}

#[test]
fn a_log_that_cannot_grow_keeps_what_it_has() {
    let place = place("stratann");
    place.write("new.u8bin", &rows(2_000, 1_000));
    let insert = ["insert", "index", "new.u8bin", "--durability", "always"];
    with_files_up_to(&place, 150, &merging(&insert)).refused(1, &["log-"]);
    let (_, logged, _) = counts(&place);
    assert!(
        logged > 0 && logged < 1_000,
        "{logged}: the size limit hit too early, or never"
    );
    assert_eq!(
        logged as usize % BATCH,
        0,
        "a part of a batch is in the index"
    );
    assert_eq!(verified(&place), logged);
    let insert = ["insert", "index", "new.u8bin", "--resume", "--json"];
    let resumed = place.run(&merging(&insert)).done().json();
    assert_eq!(
        (&resumed["in_before"], &resumed["vectors"]),
        (&logged.into(), &3_000.into())
    );
    all_found(&place, "new.u8bin", 2_000..3_000, "with room again");
}

/// Waits until the logs have this size, or the command has ended.
pub fn logged_or_ended(place: &Place, child: &mut Child, bytes: u64) -> Option<ExitStatus> {
    until_or_ended(child, || logged_bytes(place) >= bytes)
}

fn until_or_ended(child: &mut Child, so: impl Fn() -> bool) -> Option<ExitStatus> {
    let since = Instant::now();
    loop {
        if so() {
            return None;
        }
        if let Some(status) = child.try_wait().unwrap() {
            return Some(status);
        }
        assert!(since.elapsed() < Duration::from_secs(600), "it hangs");
        std::thread::sleep(Duration::from_micros(200));
    }
}

pub fn copy(from: &Path, to: &Path) {
    fs::create_dir(to).unwrap();
    for name in names(from) {
        fs::copy(from.join(&name), to.join(&name)).unwrap();
    }
}

#[test]
fn a_killed_insert_keeps_what_was_logged() {
    let hits = times(3, 50);
    let place = place("stratann");
    fs::rename(place.path("index"), place.path("fresh")).unwrap();
    let mut next = numbers(5);
    let mut in_the_middle = 0;
    // Kills are repeated until enough of them hit the middle of an insert.
    for life in 0.. {
        if in_the_middle >= hits {
            break;
        }
        assert!(
            life < hits.max(30),
            "only {in_the_middle} kills hit the middle of a command"
        );
        if life > 0 {
            fs::remove_dir_all(place.path("index")).unwrap();
        }
        copy(&place.path("fresh"), &place.path("index"));
        let mut logged = 0;
        for kill in 0..10.min(hits) {
            let first = BUILT + logged;
            place.write("rows.u8bin", &rows(first, 1_500));
            place.write("ids", &lines(first as u64..first as u64 + 1_500));
            let before = logged_bytes(&place);
            let insert = ["insert", "index", "rows.u8bin", "--ids", "ids"];
            let always = ["--durability", "always", "--quiet"];
            let mut child = place
                .command(&merging(&[&insert[..], &always].concat()))
                .spawn()
                .unwrap();
            // The insert is killed some microseconds after the log has grown by this many bytes.
            let wanted = u64::from(next()) % (900 * 150);
            let more = Duration::from_micros(u64::from(next()) % 3_000);
            let ended = logged_or_ended(&place, &mut child, before + wanted);
            // If the index had rows beyond the rows counted here, the insert would repeat their ids
            // and be refused.
            assert!(ended.is_none_or(|status| status.success()), "{ended:?}");
            std::thread::sleep(more);
            let (files, bytes) = logs(&place);
            child.kill().unwrap();
            child.wait().unwrap();

            let records = verified(&place) as usize;
            let (vectors, now, deleted) = counts(&place);
            let now = now as usize;
            let at = format!(
                "life {life}, kill {kill}, {wanted} bytes and {more:?}: {now} of {files:?}"
            );
            assert_eq!((vectors, deleted, records), (BUILT as u64, 0, now), "{at}");
            assert!(
                now >= logged && now <= logged + 1_500,
                "{at}, {logged} before"
            );
            // By the byte table in `layout/log.rs`, a log begins with three blocks. A record has 28
            // bytes and a vector, rounded up to a multiple of eight bytes.
            let record = (28 + DIM as u64).next_multiple_of(8);
            let whole = |bytes: &u64| bytes.saturating_sub(12_288) / record;
            // The first records of a log repeat records of the previous log that may not be durable
            // there. So the number of records follows from the log's first sequence number, at byte
            // 64.
            let begins = |name: &String| {
                let log = fs::read(place.path("index").join(name)).ok()?;
                let first = log.get(64..72)?.try_into().ok()?;
                Some(u64::from_le_bytes(first))
            };
            let logs = files.iter().zip(&bytes);
            let ends = logs.filter_map(|(name, bytes)| Some(begins(name)? + whole(bytes)));
            let seen = ends.max().unwrap_or(0);
            assert!(now as u64 >= seen, "{at}: {seen} records were in the files");
            in_the_middle += usize::from(now > logged && now < logged + 1_500);
            logged = now;

            let from = first.max(BUILT + logged.saturating_sub(300));
            found_up_to(&place, from, BUILT + logged, &at);
        }
        let compacted = place
            .run(&merging(&["compact", "index", "--json"]))
            .done()
            .json();
        assert_eq!(compacted["vectors"], (BUILT + logged) as u64);
        assert_eq!(verified(&place), 0);
    }
}

/// The checkpoints before and after the merge have the same vectors.
#[test]
fn a_killed_merge_changes_nothing() {
    // With direct inserts, the inserted vectors are in the checkpoint, and not in the log.
    for (preset, way, before) in [
        ("stratann", "merge", (2_000, 300, 100)),
        ("stratann", "accumulate", (2_300, 0, 100)),
        ("odinann", "relocate", (2_300, 0, 100)),
    ] {
        kill_merges(preset, &["--update", way], before);
    }
}

fn kill_merges(preset: &str, way: &[&str], before: (u64, u64, u64)) {
    let hits = times(2, 50);
    let place = place(preset);
    let run = |words: &[&str]| place.run(&[words, way].concat()).done();
    place.write("new.u8bin", &rows(2_000, 300));
    place.write("gone.ids", &lines(0..100));
    run(&["insert", "index", "new.u8bin"]);
    run(&["delete", "index", "gone.ids"]);
    assert_eq!(counts(&place), before, "{way:?}");
    fs::rename(place.path("index"), place.path("changed")).unwrap();
    let mut next = numbers(6);
    let index: PathBuf = place.path("index");
    let known = names(&place.path("changed"));
    let made = || {
        let now = names(&index);
        now.iter().filter(|name| !known.contains(name)).count()
    };
    let mut in_the_middle = 0;
    for kill in 0.. {
        if in_the_middle >= hits {
            break;
        }
        assert!(
            kill < 10 * hits,
            "{way:?}: only {in_the_middle} kills hit the middle of an insert"
        );
        if index.exists() {
            fs::remove_dir_all(&index).unwrap();
        }
        copy(&place.path("changed"), &index);
        let wanted = 1 + next() as usize % 6;
        let more = Duration::from_micros(u64::from(next()) % 3_000);
        let mut child = place
            .command(&[&["compact", "index", "--quiet"], way].concat())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let ended = until_or_ended(&mut child, || made() >= wanted);
        assert!(ended.is_none_or(|status| status.success()), "{ended:?}");
        std::thread::sleep(more);
        child.kill().unwrap();
        let ended = child.wait().unwrap();
        assert!(ended.code().is_none_or(|code| code == 0), "{ended:?}");
        in_the_middle += usize::from(!ended.success());
        let (vectors, logged, deleted) = counts(&place);
        let at = format!("{preset}, {way:?}, kill {kill}: {wanted} files and {more:?}");
        assert!(
            [before, (2_200, 0, 0)].contains(&(vectors, logged, deleted)),
            "{at}: {vectors}, {logged}, {deleted}"
        );
        verified(&place);
        all_found(&place, "new.u8bin", 2_000..2_300, &at);
        // The next merge removes the files of the killed merge.
        run(&["compact", "index"]);
        assert_eq!(
            (counts(&place), verified(&place)),
            ((2_200, 0, 0), 0),
            "{at}"
        );
        if vectors != 2_200 {
            let mut kinds: Vec<_> = names(&index)
                .iter()
                .map(|name| name.split('-').next().unwrap().to_owned())
                .collect();
            let files = kinds.len();
            kinds.dedup();
            assert_eq!(kinds.len(), files, "{at}: {:?}", names(&index));
            assert!(!kinds.contains(&"build".to_owned()), "{at}: {kinds:?}");
        }
    }
}

#[test]
fn a_merge_says_which_segments_it_kept_and_stats_what_is_garbage_in_them() {
    let place = Place::new();
    place.write("built.u8bin", &rows(0, BUILT));
    let build = ["build", "built.u8bin", "index", "--preset", "decouplevs"];
    let small = ["--degree", "16", "--build-list", "40", "--seed", "1"];
    let sizes = ["--chunk", "16KiB", "--segment", "32KiB"];
    place.run(&[&build[..], &small, &sizes].concat()).done();
    place.write("ids", &lines((0..256).step_by(2).chain(300..310)));
    place.run(&merging(&["delete", "index", "ids"])).done();
    let said = place.run(&merging(&["compact", "index"])).done().stdout;
    let segments = said.lines().find(|line| line.starts_with("segments"));
    let segments = segments.unwrap_or_else(|| panic!("{said}"));
    assert!(
        segments.ends_with("6 unchanged, 2 rewritten with 336 vectors"),
        "{segments}"
    );
    let stats = place.run(&["stats", "index", "--json"]).done().json();
    assert_eq!(
        (&stats["garbage"], &stats["deleted"]),
        (&10.into(), &0.into())
    );
    let said = place.run(&["stats", "index"]).done().stdout;
    assert!(
        said.contains("0, and 10 that merges left in segments"),
        "{said}"
    );
    assert_eq!((counts(&place), verified(&place)), ((1_862, 0, 0), 0));
}
