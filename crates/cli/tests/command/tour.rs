//! The commands that a user runs one after the other, and the keys of their JSON output.

use crate::support::{DIM, Place, QUERIES, ROWS, SMALL_BUILD, keys};
use serde_json::Value;

#[test]
fn build_truth_search_stats_verify() {
    let place = Place::new();
    let built = place.run(&SMALL_BUILD).done();
    assert!(
        built.stdout.contains("600") && built.stdout.contains("peak memory"),
        "{built:?}"
    );
    let truth = place
        .run(&[
            "truth",
            "base.u8bin",
            "queries.u8bin",
            "truth.bin",
            "-k",
            "20",
        ])
        .done();
    assert!(truth.stdout.contains("20 nearest"), "{truth:?}");
    assert_eq!(
        std::fs::read(place.path("truth.bin")).unwrap().len(),
        8 + QUERIES * 20 * 8
    );

    let search = [
        "search",
        "index",
        "queries.u8bin",
        "--truth",
        "truth.bin",
        "--list",
    ];
    let table = place.run(&[&search[..], &["20,50"]].concat()).done();
    assert!(
        table.stdout.contains("recall@10") && table.stdout.contains("peak memory"),
        "{table:?}"
    );
    assert_eq!(
        table
            .stdout
            .lines()
            .filter(|line| line.trim_start().starts_with("50 "))
            .count(),
        1
    );

    let lines = place
        .run(&[&search[..], &["20,50,200", "--json"]].concat())
        .done()
        .json_lines();
    let lists: Vec<u64> = lines
        .iter()
        .map(|line| line["list"].as_u64().unwrap())
        .collect();
    assert_eq!(lists, [20, 50, 200]);
    let recall = lines[2]["recall"].as_f64().unwrap();
    assert!(
        recall >= 0.98,
        "with a list size of a third of the collection, recall is {recall}"
    );
    assert!(
        lines[0]["per_query"]["graph_reads"].as_f64()
            < lines[2]["per_query"]["graph_reads"].as_f64()
    );

    let verified = place.run(&["verify", "index"]).done();
    assert!(verified.stdout.contains("clean"), "{verified:?}");
    assert_eq!(
        place.run(&["verify", "index", "--json"]).done().json()["problems"],
        Value::Array(vec![])
    );
}

#[test]
fn search_json_has_exactly_the_documented_keys() {
    let place = Place::with_index();
    let ran = place.run(&[
        "search",
        "index",
        "queries.u8bin",
        "--json",
        "-k",
        "5",
        "--list",
        "30",
        "--threads",
        "2",
    ]);
    let lines = ran.done().json_lines();
    let [line] = &lines[..] else {
        panic!("{lines:?}")
    };
    assert_eq!(
        keys(line),
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
    assert_eq!(keys(&line["latency_us"]), ["mean", "p50", "p90", "p99"]);
    assert_eq!(
        keys(&line["per_query"]),
        [
            "bytes_read",
            "cache_hits",
            "distance_computations",
            "graph_reads",
            "hops",
            "prefetched",
            "reranked",
            "vector_reads"
        ]
    );
    assert_eq!(
        line["recall"],
        Value::Null,
        "a search without --truth reports a recall"
    );
    assert_eq!(
        (&line["k"], &line["threads"]),
        (&Value::from(5), &Value::from(2))
    );
    assert!(line["peak_rss_bytes"].as_u64().unwrap() > 100_000);
    // The batch has too few queries to try several numbers of queries in flight.
    assert!((1..=8).contains(&line["in_flight"].as_u64().unwrap()));
    assert!(line["cpu_us"].as_f64().unwrap() > 0.0);
    assert_eq!(line["distance_error"], 0.0);
    assert!(line["qps"].as_f64().unwrap() > 0.0);
    let us = |name: &str| line["latency_us"][name].as_f64().unwrap();
    assert!(us("p50") > 0.0 && us("p50") <= us("p90") && us("p90") <= us("p99"));
}

#[test]
fn stats_json_has_the_documented_keys() {
    let place = Place::with_index();
    let stats = place.run(&["stats", "index", "--json"]).done().json();
    for key in [
        "preset",
        "vectors",
        "dimension",
        "element",
        "metric",
        "degree_mean",
        "degree_max",
        "bytes",
        "bits_per_edge",
        "vector_ratio",
        "deleted",
        "garbage",
        "format_version",
        "layout",
        "compression",
        "coupled_bytes",
        "saved",
        "graph_and_vectors",
    ] {
        assert!(keys(&stats).contains(&key), "{key} is missing");
    }
    for (group, all) in [
        ("compression", &["list_codec", "vector_codec"][..]),
        ("graph_and_vectors", &["bytes", "coupled_bytes", "saved"]),
    ] {
        assert_eq!(keys(&stats[group]), all);
    }
    for key in ["graph", "vectors", "codes", "ids", "other", "total"] {
        assert!(
            keys(&stats["bytes"]).contains(&key),
            "bytes.{key} is missing"
        );
    }
    assert_eq!(stats["vectors"], ROWS);
    assert_eq!(stats["dimension"], DIM);
    assert_eq!(
        (&stats["element"], &stats["metric"]),
        (&Value::from("u8"), &Value::from("l2"))
    );
    let on_disk: u64 = std::fs::read_dir(place.path("index"))
        .unwrap()
        .map(|entry| entry.unwrap().metadata().unwrap().len())
        .sum();
    let total = stats["bytes"]["total"].as_u64().unwrap();
    assert!(
        total <= on_disk && total + 8192 > on_disk,
        "{total} of {on_disk} bytes"
    );
    let human = place.run(&["stats", "index"]).done();
    assert!(
        human.stdout.contains("600") && human.stdout.contains("total"),
        "{human:?}"
    );
    for word in [
        "layout",
        "lists: ",
        "vectors: ",
        "saved",
        stats["layout"].as_str().unwrap(),
    ] {
        assert!(human.stdout.contains(word), "{word}: {human:?}");
    }
}

#[test]
fn build_json_is_one_object() {
    let place = Place::new();
    let report = place
        .run(&[&SMALL_BUILD[..], &["--json", "--preset", "diskann"]].concat())
        .done()
        .json();
    assert_eq!(report["vectors"], ROWS);
    assert!(
        report["stages"]
            .as_array()
            .is_some_and(|stages| !stages.is_empty())
    );
    assert!(
        report["cpu_seconds"].as_f64().is_some() && report["peak_rss_bytes"].as_u64().is_some()
    );
}

#[test]
fn answers_are_written_in_the_ground_truth_format() {
    let place = Place::with_index();
    place
        .run(&[
            "truth",
            "base.u8bin",
            "queries.u8bin",
            "truth.bin",
            "-k",
            "10",
        ])
        .done();
    let search = [
        "search",
        "index",
        "queries.u8bin",
        "--list",
        "600",
        "--out",
        "found.bin",
    ];
    place.run(&search).done();
    // The list has all vectors, so the results are exact.
    assert_eq!(
        std::fs::read(place.path("found.bin")).unwrap(),
        std::fs::read(place.path("truth.bin")).unwrap()
    );
    place
        .run(&search)
        .refused(2, &["found.bin", "exists", "--overwrite"]);
    place.run(&[&search[..], &["--overwrite"]].concat()).done();
}

#[test]
fn a_recall_is_reached_with_the_smallest_list() {
    let place = Place::with_index();
    place
        .run(&["truth", "base.u8bin", "queries.u8bin", "truth.bin"])
        .done();
    let search = [
        "search",
        "index",
        "queries.u8bin",
        "--truth",
        "truth.bin",
        "--strategy",
        "best-first",
        "--json",
    ];
    let found = place
        .run(&[&search[..], &["--recall", "0.95", "--find-list"]].concat())
        .done()
        .json_lines();
    assert_eq!(
        found.len(),
        1,
        "--find-list reports more than the list size that it found"
    );
    assert!(found[0]["recall"].as_f64().unwrap() >= 0.95);
    let list = found[0]["list"].as_u64().unwrap();
    if list > 10 {
        let less = place
            .run(&[&search[..], &["--list", &(list - 1).to_string()]].concat())
            .done()
            .json_lines();
        assert!(
            less[0]["recall"].as_f64().unwrap() < 0.95,
            "{list} is not the smallest"
        );
    }
    place
        .run(&[
            "search",
            "index",
            "queries.u8bin",
            "--recall",
            "0.9",
            "--find-list",
        ])
        .refused(2, &["--truth"]);
    // With so few vectors, a search with `--recall` compares the query with all vectors.
    let all = place.run(&[&search[..], &["--recall", "0.9"]].concat());
    assert!(all.done().json_lines()[0]["recall"].as_f64().unwrap() > 0.99);
    place
        .run(&[&search[..], &["--recall", "95"]].concat())
        .refused(2, &["95", "0.95"]);
    place
        .run(&[&search[..], &["--recall", "0.9", "--list", "20"]].concat())
        .refused(2, &["--list"]);
}

#[test]
fn ways_to_search_agree() {
    let place = Place::with_index();
    let answers = |name: &str, words: &[&str]| {
        let base = [
            "search",
            "index",
            "queries.u8bin",
            "--list",
            "600",
            "--overwrite",
            "--out",
            name,
        ];
        place.run(&[&base[..], words].concat()).done();
        std::fs::read(place.path(name)).unwrap()
    };
    let plain = answers(
        "plain.bin",
        &[
            "--threads",
            "1",
            "--strategy",
            "best-first",
            "--no-nav",
            "--no-whole-page",
        ],
    );
    // A best-first search does not depend on the order in which reads complete.
    for words in [
        &["--threads", "2", "--in-flight", "4"][..],
        &["--whole-page"],
        &["--io", "pread"],
        &["--preset", "diskann"],
        &["--preset", "stratann"],
    ] {
        let words = [&["--strategy", "best-first"][..], words].concat();
        assert_eq!(answers("other.bin", &words), plain, "{words:?}");
    }
    // The results of a pipelined search depend on the order in which reads complete, so only its
    // recall is compared.
    place
        .run(&["truth", "base.u8bin", "queries.u8bin", "truth.bin"])
        .done();
    for words in [
        &["--strategy", "pipelined", "--beam", "8"][..],
        &["--strategy", "pipelined", "--preset", "stratann"],
    ] {
        let search = ["search", "index", "queries.u8bin", "--list", "600"];
        let judged = ["--truth", "truth.bin", "--json"];
        let found = place.run(&[&search[..], &judged, words].concat()).done();
        let recall = found.json_lines()[0]["recall"].as_f64().unwrap();
        assert!(recall >= 0.99, "{words:?}: {recall}");
    }
}

#[test]
fn metrics_and_floats() {
    let place = Place::new();
    place.write("base.fbin", &crate::support::f32s(ROWS, DIM, 3, None));
    place.write("queries.fbin", &crate::support::f32s(QUERIES, DIM, 4, None));
    for metric in ["l2", "ip", "cosine", "euclidean", "mips", "cos"] {
        let index = format!("index-{metric}");
        let truth = format!("truth-{metric}.bin");
        let metric = ["--metric", metric];
        place
            .run(
                &[
                    &["build", "base.fbin", &index, "--degree", "24"][..],
                    &metric,
                ]
                .concat(),
            )
            .done();
        place
            .run(&[&["truth", "base.fbin", "queries.fbin", &truth][..], &metric].concat())
            .done();
        let lines = place
            .run(&[
                "search",
                &index,
                "queries.fbin",
                "--truth",
                &truth,
                "--list",
                "300",
                "--json",
            ])
            .done()
            .json_lines();
        let recall = lines[0]["recall"].as_f64().unwrap();
        assert!(recall > 0.9, "{metric:?}: {recall}");
    }
}

#[test]
fn presets_version_help_and_completions() {
    let place = Place::new();
    let presets = place.run(&["presets"]).done();
    let json = place.run(&["presets", "--json"]).done().json_lines();
    for preset in &json {
        let name = preset["name"].as_str().unwrap();
        assert!(presets.stdout.contains(name), "{name}");
        assert!(
            place.run(&["build", "--help"]).done().stdout.contains(name),
            "{name}"
        );
    }
    assert!(json.len() >= 3);
    let version = place.run(&["--version"]).done();
    assert_eq!(
        version.stdout.trim(),
        concat!("stratann ", env!("CARGO_PKG_VERSION"))
    );
    assert!(
        place
            .run(&["completions", "bash"])
            .done()
            .stdout
            .contains("stratann")
    );
}

#[test]
fn a_closed_pipe_is_no_error() {
    let place = Place::with_index();
    for words in [
        &["stats", "index"][..],
        &["stats", "index", "--json"],
        &["presets"],
        &["completions", "bash"],
        &["verify", "index"],
        &[
            "search",
            "index",
            "queries.u8bin",
            "--list",
            "20,30",
            "--json",
        ],
    ] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let output = place.command(words).stdout(writer).output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{words:?}");
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert!(
            !stderr.contains("error") && !stderr.contains("panicked"),
            "{words:?}: {stderr}"
        );
    }
}

#[test]
fn quiet_says_nothing_and_lines_say_what_is_done() {
    let place = Place::new();
    let loud = place.run(&SMALL_BUILD).done();
    assert!(loud.stderr.contains("done in"), "{loud:?}");
    let quiet = place
        .run(&[&SMALL_BUILD[..], &["--overwrite", "--quiet"]].concat())
        .done();
    assert_eq!(quiet.stderr, "");
}

#[test]
fn events_are_told_to_who_asks() {
    let place = Place::with_index();
    let told = |level: &str, words: &[&str]| {
        let output = place
            .command(words)
            .env("STRATANN_LOG", level)
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stderr).unwrap()
    };
    let search = ["search", "index", "queries.u8bin", "--quiet"];
    assert_eq!(told("warn", &search), "");
    let opened = told("debug", &search);
    assert!(
        opened.contains("opened") && opened.contains("codes="),
        "{opened}"
    );
    assert!(!opened.contains("replayed"), "{opened}");
    let insert = ["insert", "index", "queries.u8bin", "--update", "merge"];
    place.run(&insert).done();
    let replayed = told("debug", &search);
    assert!(replayed.contains("replayed the log"), "{replayed}");
    let merged = told("info", &["compact", "index", "--quiet"]);
    assert!(
        merged.contains("merged") && merged.contains("vectors="),
        "{merged}"
    );
}

#[test]
fn recall_is_measured_by_a_sample_without_a_truth() {
    let place = Place::new();
    place.run(&SMALL_BUILD).done();
    place
        .run(&[
            "truth",
            "base.u8bin",
            "queries.u8bin",
            "truth.bin",
            "-k",
            "60",
        ])
        .done();
    let best_first = [
        "--strategy",
        "best-first",
        "--json",
        "-k",
        "60",
        "-L",
        "60,600",
    ];
    let by_truth = ["search", "index", "queries.u8bin", "--truth", "truth.bin"];
    let by_truth = place.run(&[&by_truth[..], &best_first].concat());
    let by_truth = by_truth.done().json_lines();
    let search = ["search", "index", "queries.u8bin", "--watch-recall", "20"];
    let lines = place.run(&[&search[..], &best_first].concat());
    let lines = lines.done().json_lines();
    assert_eq!(lines.len(), 4, "{lines:?}");
    let live = |line: &Value| line["live_recall"]["last"].clone();
    let (short, all) = (live(&lines[1]), live(&lines[3]));
    assert_eq!(short["queries"], QUERIES as u64);
    let expected = by_truth[0]["recall"].as_f64().unwrap();
    let found = short["found"].as_f64().unwrap();
    assert!((found - expected).abs() < 1e-9, "{found}, {expected}");
    assert_eq!(
        (all["found"].as_f64(), all["k"].as_u64()),
        (Some(1.0), Some(60))
    );
    let table = place.run(&[&search[..], &["-L", "600"]].concat()).done();
    let line = "recall@10 at list 600: 1.0000 on 20 queries that were compared by brute force; 1.0000 for the worst query";
    assert!(table.stdout.contains(line), "{table:?}");
    let others = ["search", "index", "queries.u8bin", "--watch-recall"];
    for (more, what) in [
        (&["20", "-k", "101"][..], "at most 100"),
        (&["1001"], "1,000"),
        (&["20", "--within", "3"], "--within"),
    ] {
        let refused = place.run(&[&others[..], more].concat());
        assert_eq!(refused.status, Some(2), "{refused:?}");
        assert!(refused.stderr.contains(what), "{refused:?}");
    }
    let several = place.run(&[
        "search",
        "index",
        "index/../index/.",
        "queries.u8bin",
        "--watch-recall",
        "20",
    ]);
    assert_eq!(several.status, Some(2), "{several:?}");
    assert!(
        several.stderr.contains("applies to one index"),
        "{several:?}"
    );
}
