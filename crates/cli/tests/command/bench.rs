//! `stratann bench` on a tiny job: files, cache, merging of other programs' results.

use crate::support::{Place, names};
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
    // The order alone makes another index; the preset does not.
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

    // Again: both indexes come from the cache.
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
    // Other vectors in the same file make another index.
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
    // What the child says is shown, and its status passed on.
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
    // A budget that is too small is said to be, and stops nothing else.
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
