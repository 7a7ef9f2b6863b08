//! `stratann bench` on a tiny job: files, cache, and results of other programs.

use crate::support::{Place, names};
use crate::update::rows;
use serde_json::Value;

const JOB: &str = r#"
name = "tiny"
title = "Tiny <job>"
repeat = 2
targets = [0.5, 1.0]
[data]
base = "base.u8bin"
queries = "queries.u8bin"
truth = "truth.bin"
metric = "l2"
[build]
degree = 16
build_list = 32
code_bytes = 8
[search]
lists = [20, 100]
[[run]]
name = "diskann"
preset = "diskann"
noise = true
[[run]]
name = "pipeann"
preset = "pipeann"
[[run]]
name = "diskann, locality"
preset = "diskann"
build = { order = "locality" }
search = { whole_page = true }
"#;

const OTHER: &str = r#"{"name": "in memory", "points": [{"list": 20, "recall": 0.97, "qps": 30000, "memory": 1000000}]}"#;

#[test]
fn a_job_from_end_to_end() {
    let place = Place::new();
    place
        .run(&["truth", "base.u8bin", "queries.u8bin", "truth.bin"])
        .done();
    place.write("job.toml", JOB.as_bytes());
    place.write("other.json", OTHER.as_bytes());
    let ran = place
        .run(&[
            "bench",
            "job.toml",
            "--out",
            "results",
            "--with",
            "other.json",
        ])
        .done();
    for word in [
        "diskann, locality",
        "pipeann",
        "in memory",
        "noise",
        "recall@10",
        "1.00 x",
    ] {
        assert!(
            ran.stdout.contains(word),
            "'{word}' is not in: {}",
            ran.stdout
        );
    }
    let result: Value =
        serde_json::from_slice(&std::fs::read(place.path("results/tiny.json")).unwrap()).unwrap();
    let runs = result["runs"].as_array().unwrap();
    assert_eq!(runs.len(), 3);
    for run in runs {
        let points = run["points"].as_array().unwrap();
        assert_eq!(points.len(), 2);
        for point in points {
            assert!(point["recall"].as_f64().unwrap() > 0.5, "{point}");
            assert!(point["qps_min"].as_f64() <= point["qps"].as_f64());
            assert!(point["reads"].as_f64().unwrap() > 1.0);
        }
        assert_eq!(run["index"]["reused"], false);
    }
    assert_eq!(runs[0]["index"]["key"], runs[1]["index"]["key"]);
    assert_ne!(runs[0]["index"]["key"], runs[2]["index"]["key"]);
    assert_eq!(result["noise"].as_array().unwrap().len(), 1);
    assert_eq!(result["others"][0]["name"], "in memory");
    assert!(result["machine"]["cores"].as_u64().unwrap() > 0);
    assert!(
        runs[0]["backend"]
            .as_str()
            .is_some_and(|name| !name.is_empty())
    );
    let picture = std::fs::read_to_string(place.path("results/tiny.svg")).unwrap();
    assert!(
        picture.contains("Tiny &lt;job&gt;")
            && picture.contains("in memory")
            && picture.contains("polyline")
    );
    assert_eq!(
        names(&place.path("results")),
        ["indexes", "tiny.json", "tiny.svg"]
    );

    let again = place
        .run(&[
            "bench", "job.toml", "--out", "results", "--json", "--repeat", "1",
        ])
        .done()
        .json();
    assert!(
        again["runs"]
            .as_array()
            .unwrap()
            .iter()
            .all(|run| run["index"]["reused"] == true),
        "{again}"
    );
    place.write(
        "base.u8bin",
        &crate::support::u8s(crate::support::ROWS, crate::support::DIM, 77),
    );
    let words = [
        "bench", "job.toml", "--out", "results", "--json", "--repeat", "1", "--only", "pipeann",
    ];
    let other = place.run(&words).done().json();
    assert_eq!(other["runs"].as_array().unwrap().len(), 1);
    assert_eq!(other["runs"][0]["index"]["reused"], false);
}

#[test]
fn mistakes_cost_no_time() {
    let place = Place::new();
    place.write("truth.bin", b"");
    place.write("job.toml", JOB.as_bytes());
    place.write("bad.json", b"{\"points\": 3}");
    let bench =
        |words: &[&str]| place.run(&[&["bench", "job.toml", "--out", "o"][..], words].concat());
    bench(&["--with", "bad.json"]).refused(2, &["bad.json", "points"]);
    bench(&["--with", "missing.json"]).refused(1, &["missing.json"]);
    bench(&["--only", "nothing"]).refused(2, &["--only", "pipeann"]);
    assert!(!place.path("o").exists());
    let ran = bench(&["--only", "pipeann", "--repeat", "1"]);
    assert_eq!(ran.status, Some(1), "{ran:?}");
    assert!(ran.stderr.contains("truth.bin"), "{ran:?}");
}

const COMPARING: &str = r#"
name = "comparing"
repeat = 1
targets = [0.9]
[data]
base = "photos.u8bin"
queries = "asked.u8bin"
truth = "truth.bin"
metric = "l2"
[build]
degree = 24
build_list = 40
[search]
lists = [10, 60]
[[run]]
name = "diskann, 48MB"
preset = "diskann"
search = { memory = "48MB" }
[[run]]
name = "diskann, 64MiB"
preset = "diskann"
search = { memory = "64MiB" }
[[run]]
name = "diskann, 1MB"
preset = "diskann"
search = { memory = "1MB" }
[[run]]
name = "decouplevs"
preset = "decouplevs"
search = { cache_entries = "1%", parts = true }
[[run]]
name = "packed"
preset = "stratann"
build = { layout = "packed", compression = "paper" }
search = { cache = "1MB" }
"#;

#[test]
fn space_parts_and_budgets() {
    let place = Place::with_photos();
    place.write("job.toml", COMPARING.as_bytes());
    let ran = place.run(&["bench", "job.toml", "--out", "o"]);
    assert_eq!(ran.status, Some(0), "{ran:?}");
    for word in [
        "space of the index of",
        "decoupled",
        "vector ratio",
        "time of a query of",
        "list decoding",
        "48.0 MB",
        "67.1 MB",
        "comparing-memory.svg",
    ] {
        assert!(
            ran.stdout.contains(word),
            "'{word}' is not in: {}",
            ran.stdout
        );
    }
    assert!(ran.stdout.contains("refused: \"diskann, 1MB\""), "{ran:?}");
    assert!(ran.stderr.contains("1000000 bytes is too small"), "{ran:?}");
    let result: Value =
        serde_json::from_slice(&std::fs::read(place.path("o/comparing.json")).unwrap()).unwrap();
    assert_eq!(result["refused"], Value::from(vec!["diskann, 1MB"]));
    let space = result["space"].as_array().unwrap();
    let layouts: Vec<_> = space.iter().map(|index| &index["layout"]).collect();
    assert_eq!(layouts, ["coupled", "decoupled", "packed"]);
    assert_eq!(space[0]["runs"].as_array().unwrap().len(), 2);
    assert!(
        space[1]["saved"].as_f64() > space[0]["saved"].as_f64(),
        "{space:?}"
    );
    let runs = result["runs"].as_array().unwrap();
    assert!(
        runs[2]["points"][0]["parts"]["list_decoding"]
            .as_f64()
            .unwrap()
            > 0.0
    );
    assert_eq!(runs[0]["points"][0].get("parts"), None);
    let [budget] = &result["budgets"].as_array().unwrap()[..] else {
        panic!("{result}")
    };
    assert_eq!(budget["name"], "diskann");
    let budgets: Vec<_> = budget["points"]
        .as_array()
        .unwrap()
        .iter()
        .map(|p| &p["budget"])
        .collect();
    assert_eq!(budgets, [48_000_000, 64 << 20]);
    let picture = std::fs::read_to_string(place.path("o/comparing-memory.svg")).unwrap();
    assert!(picture.contains("memory budget in MB") && picture.contains("polyline"));

    let alone = ["bench", "job.toml", "--out", "o", "--only", "1MB"];
    place.run(&alone).refused(2, &["too small"]);
}

#[track_caller]
fn check_seconds(run: &Value, seconds: usize) {
    let live = &run["live"];
    let spans = live["seconds"].as_array().unwrap();
    assert_eq!(spans.len(), seconds, "{run}");
    let mut last = 0.0;
    for span in spans {
        let number = |key: &str| {
            span[key]
                .as_f64()
                .unwrap_or_else(|| panic!("{key}: {span}"))
        };
        assert!(number("from") == last && number("to") > last, "{span}");
        last = number("to");
        assert!(number("rss_bytes") > 1e6 && number("storage_bytes") > 1e5);
        // A busy machine may have a second without a search.
        let searches = number("searches");
        let latencies = ["p50_us", "p90_us", "p99_us"].map(number);
        let some = latencies[0] > 0.0;
        assert!(some == (searches > 0.0) && latencies.is_sorted(), "{span}");
        if let Some(recall) = span["recall"].as_f64() {
            assert!((0.0..=1.0).contains(&recall), "{span}");
            assert!(recall > 0.8 || searches < 100.0, "{span}");
        }
    }
    assert!(sum(run, "searches") > 0, "{run}");
    assert_eq!(live["stale"], 0, "{run}");
    let windows = live["windows"].as_array().unwrap();
    let mut counted = windows
        .iter()
        .filter(|window| window["inserting"] == true && window["searches"] != 0);
    assert_eq!(live["p50_us"].is_null(), counted.next().is_none(), "{run}");
    if !live["p50_us"].is_null() {
        let [least, most] = [0, 1].map(|at| live["p50_us"][at].as_f64().unwrap());
        assert!(live["p50_ratio"].as_f64().unwrap() >= 1.0 && least <= most);
    }
}

fn end(run: &Value) -> f64 {
    let seconds = run["live"]["seconds"].as_array().unwrap();
    seconds.last().unwrap()["to"].as_f64().unwrap()
}

fn sum(run: &Value, key: &str) -> u64 {
    let seconds = run["live"]["seconds"].as_array().unwrap();
    seconds
        .iter()
        .map(|second| second[key].as_u64().unwrap())
        .sum()
}

/// Whether each run has searches and inserts. For each pair in `own`, the run with this number must
/// have a count above 0 under this key.
fn all_done(result: &Value, own: &[(usize, &str)]) -> bool {
    let runs = result["runs"].as_array().unwrap();
    let both = |run| sum(run, "searches") > 0 && sum(run, "inserts") > 0;
    runs.iter().all(both) && own.iter().all(|&(run, key)| sum(&runs[run], key) > 0)
}

#[test]
fn live_updates_over_time() {
    let place = Place::new();
    // This is the repository's job with fewer rows, because builds take most of the time.
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
    let mut job = std::fs::read_to_string(format!("{folder}/bench/updates-fixture.toml")).unwrap();
    let queries = format!("queries = \"{folder}/fixtures/photo-sift-20k.query.u8bin\"");
    for (from, to) in [
        ("root = \"../fixtures\"", ""),
        ("queries = \"photo-sift-20k.query.u8bin\"", &queries),
        ("built = 8_000", "built = 2_000"),
        ("merge_at_logged = 0.03", "merge_at_logged = 0.12"),
        ("\nseconds = 3", "\nseconds = 2"),
    ] {
        assert_eq!(job.matches(from).count(), 1, "{from}");
        job = job.replace(from, to);
    }
    place.write("job.toml", job.as_bytes());
    place.write("photo-sift-20k.base.u8bin", &rows(0, 4_000));
    let job = "job.toml";
    // On a busy machine, a run of two seconds may have no searches or no inserts.
    let tried = |words: &[&str], own: &[(usize, &str)]| {
        for tries in 1.. {
            let bench = ["bench", job, "--out", "o"];
            let ran = place.run(&[&bench[..], words].concat()).done();
            let json = std::fs::read(place.path("o/updates-fixture.json")).unwrap();
            let result: Value = serde_json::from_slice(&json).unwrap();
            if tries == 3 || all_done(&result, own) {
                return (ran, result);
            }
            eprintln!("a run lacks an activity: {result}");
        }
        unreachable!()
    };
    let own = [(1, "pages_read"), (1, "pages_written"), (3, "deletes")];
    let (ran, result) = tried(&[], &own);
    for word in [
        "p50 us",
        "most/least",
        "diskann, merging",
        "relocate",
        "accumulate",
        "updates-fixture.svg",
    ] {
        assert!(
            ran.stdout.contains(word),
            "'{word}' is not in: {}",
            ran.stdout
        );
    }
    assert_eq!(
        names(&place.path("o")),
        ["indexes", "updates-fixture.json", "updates-fixture.svg"]
    );
    let kept = names(&place.path("o/indexes"));
    assert!(
        kept.iter().all(|name| name.starts_with("photo-sift-20k")),
        "{kept:?}"
    );

    let runs = result["runs"].as_array().unwrap();
    let [stratann, odinann, merging, replacing] = &runs[..] else {
        panic!("{result}")
    };
    for run in runs {
        check_seconds(run, 2);
        assert!(run.get("step").is_none());
        assert_eq!(run["live"]["windows"].as_array().unwrap().len(), 2);
    }
    let live = &stratann["live"];
    assert_eq!(
        live["rate"].as_f64().unwrap() * 2.0,
        live["most_a_second"].as_f64().unwrap()
    );
    assert_eq!(live["way"], "accumulate");
    assert!(sum(stratann, "inserts") > 0 && live["settings"]["built"] == 2000);
    assert_eq!(odinann["live"]["way"], "relocate");
    assert!(sum(odinann, "pages_read") > 0 && sum(odinann, "pages_written") > 0);
    // Calls are paced, so a run inserts at most 800 rows a second (300 with merges).
    for (run, rate) in [(odinann, 800.0), (merging, 300.0), (replacing, 800.0)] {
        let (inserts, most) = (sum(run, "inserts"), rate * end(run) + 16.0);
        assert!(inserts > 0 && inserts as f64 <= most, "{most}: {run}");
    }
    assert_eq!(sum(odinann, "deletes"), 0);
    assert_eq!(merging["live"]["way"], "merge");
    assert!(merging["live"]["seconds"][0]["pages_read"].is_null());
    // A merge begins if 240 vectors wait at the end of a second, except the last second.
    let merges = merging["live"]["merges"].as_array().unwrap();
    let seconds = merging["live"]["seconds"].as_array().unwrap();
    let early = seconds[..1].iter().map(|span| span["inserts"].as_u64());
    let early: u64 = early.map(Option::unwrap).sum();
    assert!(!merges.is_empty() || early < 240, "{merging}");
    for merge in merges {
        assert!(merge["merged"].as_u64() >= Some(240), "{merges:?}");
    }
    let (inserts, deletes) = (sum(replacing, "inserts"), sum(replacing, "deletes"));
    assert!(deletes > 0 && deletes <= inserts, "{inserts} {deletes}");
    assert_eq!(odinann["index"]["key"], replacing["index"]["key"]);
    assert_ne!(odinann["index"]["key"], merging["index"]["key"]);
    assert_eq!(odinann["index"]["stats"]["vectors"], 2000);
    let picture = std::fs::read_to_string(place.path("o/updates-fixture.svg")).unwrap();
    assert!(picture.contains("P99") && picture.contains("on storage in MB"));
    assert_eq!(picture.matches("<polyline").count(), 6 * runs.len());

    let (again, _) = tried(&["--json", "--only", "replacing"], &[]);
    let again = again.json();
    assert_eq!(again["runs"][0]["index"]["reused"], true);
    check_seconds(&again["runs"][0], 2);
}

const BREAKDOWN: &str = r#"
name = "ways"
[data]
base = "photos.u8bin"
queries = "asked.u8bin"
metric = "l2"
[build]
degree = 24
build_list = 40
[breakdown]
built = 700
rows = 300
threads = 2
list = 40
calls = 20
[[run]]
name = "in-place, full"
preset = "odinann"
update = "in-place"
pruning = "full"
[[run]]
name = "relocate"
preset = "odinann"
[[run]]
name = "accumulate"
preset = "stratann"
[[run]]
name = "merge"
preset = "odinann"
update = "merge"
"#;

#[test]
fn ways_to_insert_in_turn() {
    let place = Place::with_photos();
    place.write("job.toml", BREAKDOWN.as_bytes());
    let ran = place.run(&["bench", "job.toml", "--out", "o"]).done();
    for word in [
        "in-place, full pruning",
        "call p99 us",
        "lists changed",
        "300 rows into an index of 700",
    ] {
        assert!(
            ran.stdout.contains(word),
            "'{word}' is not in: {}",
            ran.stdout
        );
    }
    let result: Value =
        serde_json::from_slice(&std::fs::read(place.path("o/ways.json")).unwrap()).unwrap();
    let runs = result["runs"].as_array().unwrap();
    let ways: Vec<_> = runs.iter().map(|run| &run["live"]["way"]).collect();
    assert_eq!(
        ways,
        ["in-place, full pruning", "relocate", "accumulate", "merge"]
    );
    for run in runs {
        let live = &run["live"];
        assert_eq!(
            (&live["rows"], &live["call"]["calls"]),
            (&300.into(), &20.into())
        );
        let positive = |value: &Value| value.as_f64().is_some_and(|value| value > 0.0);
        for key in [
            "inserts_a_second",
            "peak_rss_bytes",
            "storage_bytes",
            "closed_bytes",
        ] {
            assert!(positive(&live[key]), "{key}: {live}");
        }
        assert!(live["call"]["p50_us"].as_f64() <= live["call"]["p99_us"].as_f64());
        assert!(positive(&live["searches"]["reads"]), "{live}");
        assert!(live["searches"]["recall"].as_f64() > Some(0.9), "{live}");
        assert_eq!(run["points"][0], live["searches"]);
        let merges = live["way"] == "merge";
        assert_eq!(live["merge"].is_null(), !merges);
        for key in ["pages_read", "pages_written", "lists_changed"] {
            assert_eq!(live[key].is_null(), merges, "{key}: {live}");
        }
    }
    assert!(runs[0]["live"]["lists_changed"].as_f64() > Some(1.0));
}

#[test]
fn mistakes_in_a_job_of_live_updates() {
    let place = Place::with_photos();
    let timeline = BREAKDOWN.replace(
        "[breakdown]\nbuilt = 700\nrows = 300\nthreads = 2\nlist = 40\ncalls = 20",
        "[timeline]\nbuilt = 700\nrate = \"half\"\nseconds = 2\nmerge_at = 1",
    );
    let refused = |text: &str, from: &str, to: &str, words: &[&str]| {
        assert!(text.contains(from), "{from}");
        place.write("job.toml", text.replacen(from, to, 1).as_bytes());
        let ran = place.run(&["bench", "job.toml", "--out", "o"]);
        ran.refused(2, &[&["job.toml"], words].concat());
        assert!(!place.path("o/indexes").exists() || names(&place.path("o/indexes")).is_empty());
    };
    for (from, to, words) in [
        ("rate = \"half\"", "rat = 3", &["rat"][..]),
        (
            "rate = \"half\"",
            "rate = \"third\"",
            &["rate", "third", "half"],
        ),
        ("rate = \"half\"", "rate = -2", &["rate = -2"]),
        (
            "rate = \"half\"",
            "rate = true",
            &["rate", "a number a second"],
        ),
        ("rate = \"half\"", "", &["rate is missing"]),
        ("seconds = 2", "seconds = 0", &["seconds = 0", "at least 1"]),
        ("seconds = 2", "", &["seconds is missing"]),
        ("built = 700", "", &["built is missing"]),
        (
            "built = 700",
            "built = 1000",
            &["built = 1000", "1000 rows"],
        ),
        ("merge_at = 1", "merge_at = -1", &["merge_at = -1"]),
        (
            "merge_at = 1",
            "merge_at_logged = 6",
            &["merge_at_logged = 6", "0.06"],
        ),
        (
            "merge_at = 1",
            "merge_at = 1\nmerge_at_logged = 0.1",
            &["one of them"],
        ),
        (
            "merge_at = 1",
            "deletes = \"all\"",
            &["deletes", "all", "same"],
        ),
        ("merge_at = 1", "list = 3", &["list = 3", "smaller than k"]),
        (
            "merge_at = 1",
            "search_threads = 0",
            &["search_threads = 0"],
        ),
        (
            "merge_at = 1",
            "insert_threads = 0",
            &["insert_threads = 0"],
        ),
        ("merge_at = 1", "window = 0", &["window = 0"]),
        ("merge_at = 1", "[breakdown]\nrows = 3", &["two jobs"]),
        ("merge_at = 1", "[search]\nk = 5", &["[search]"]),
        (
            "update = \"in-place\"",
            "update = \"sideways\"",
            &["sideways", "relocate"],
        ),
        (
            "pruning = \"full\"",
            "pruning = \"half\"",
            &["pruning", "half", "delta"],
        ),
        (
            "pruning = \"full\"",
            "breakdown = { rows = 3 }",
            &["breakdown"],
        ),
        (
            "pruning = \"full\"",
            "timeline = { sceonds = 3 }",
            &["sceonds"],
        ),
        ("pruning = \"full\"", "search = { beam = 3 }", &["search"]),
        ("pruning = \"full\"", "noise = true", &["noise"]),
        (
            "name = \"ways\"",
            "name = \"ways\"\nrepeat = 2",
            &["repeat"],
        ),
        (
            "name = \"ways\"",
            "name = \"ways\"\ntargets = [0.9]",
            &["targets"],
        ),
        (
            "metric = \"l2\"",
            "metric = \"l2\"\ntruth = \"truth.bin\"",
            &["truth"],
        ),
    ] {
        refused(&timeline, from, to, words);
    }
    for (from, to, words) in [
        ("rows = 300", "rows = 301", &["rows = 301", "300"][..]),
        ("rows = 300", "row = 300", &["row"]),
        ("rows = 300", "", &["rows is missing"]),
        ("calls = 20", "calls = 500", &["calls = 500"]),
        ("threads = 2", "threads = 0", &["threads = 0"]),
        (
            "pruning = \"full\"",
            "timeline = { seconds = 3 }",
            &["timeline"],
        ),
    ] {
        refused(BREAKDOWN, from, to, words);
    }
    refused(
        COMPARING,
        "[[run]]",
        "[[run]]\nupdate = \"merge\"",
        &["update", "[timeline]"],
    );
    refused(
        COMPARING,
        "[[run]]",
        "[[run]]\npruning = \"full\"",
        &["pruning"],
    );
    refused(
        COMPARING,
        "truth = \"truth.bin\"",
        "",
        &["truth", "missing"],
    );
    // If a layout does not support the update method, the job is refused. It does not use another
    // method.
    let inline = "name = \"relocate\"\npreset = \"aisaq\"\nupdate = \"relocate\"";
    let unable = BREAKDOWN.replace("name = \"relocate\"\npreset = \"odinann\"", inline);
    place.write("job.toml", unable.as_bytes());
    let ran = place.run(&["bench", "job.toml", "--out", "o"]);
    assert_eq!(ran.status, Some(2), "{ran:?}");
    assert!(
        ran.stderr.contains("relocate") && ran.stderr.contains("inline"),
        "{ran:?}"
    );
    let repeated = ["bench", "job.toml", "--out", "o", "--repeat", "2"];
    place.run(&repeated).refused(2, &["--repeat"]);
}
