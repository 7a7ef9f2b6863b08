//! Layouts, compressions, caches and re-ranking, as a user chooses them.

use crate::support::{Place, bin, keys, names};
use serde_json::Value;

// With one thread, the graph is the same in every run.
const BUILD: [&str; 9] = [
    "build",
    "photos.u8bin",
    "index",
    "--degree",
    "24",
    "--build-list",
    "40",
    "--threads",
    "1",
];
const SEARCH: [&str; 5] = ["search", "index", "asked.u8bin", "--truth", "truth.bin"];
/// Best-first searches do not depend on the order in which reads complete.
const STEADY: [&str; 4] = ["--strategy", "best-first", "--threads", "1"];

impl Place {
    fn build(&self, words: &[&str]) -> String {
        let ran = self.run(&[&BUILD[..], words].concat()).done();
        ran.stdout
    }

    #[track_caller]
    fn search(&self, words: &[&str]) -> Value {
        let mut lines = self
            .run(&[&SEARCH[..], &["--json"], words].concat())
            .done()
            .json_lines();
        assert_eq!(lines.len(), 1);
        lines.remove(0)
    }
}

fn number(value: &Value) -> f64 {
    value
        .as_f64()
        .unwrap_or_else(|| panic!("{value} is no number"))
}

#[test]
fn every_layout_and_compression() {
    let place = Place::with_photos();
    let mut totals = Vec::new();
    for (layout, compression) in [
        ("coupled", "raw"),
        ("packed", "raw"),
        ("packed", "paper"),
        ("packed", "best"),
        ("decoupled", "raw"),
        ("decoupled", "paper"),
        ("decoupled", "best"),
        ("layered", "best"),
    ] {
        let what = format!("{layout}, {compression}");
        let words = [
            "--layout",
            layout,
            "--compression",
            compression,
            "--overwrite",
        ];
        let said = place.build(&words);
        assert!(said.contains(layout), "{what}: {said}");
        place.run(&["verify", "index"]).done();

        let stats = place.run(&["stats", "index", "--json"]).done().json();
        assert_eq!(stats["layout"], layout);
        let ratio = number(&stats["vector_ratio"]);
        match compression {
            "raw" => assert_eq!(ratio, 1.0, "{what}"),
            _ => assert!(ratio > 1.05, "{what}: {ratio}"),
        }
        totals.push(number(&stats["bytes"]["total"]));
        let human = place.run(&["stats", "index"]).done().stdout;
        assert!(human.contains(layout), "{what}: {human}");

        // A single batch re-ranks all vectors. With several batches, re-ranking could end after the
        // first.
        let exact = place.search(&["--list", "1000", "--benefit", "0", "--rerank-batch", "1000"]);
        match layout {
            // The search reads no trailing parts of candidates whose rank is certain.
            "layered" => assert!(number(&exact["recall"]) > 0.985, "{what}: {exact}"),
            _ => assert_eq!(exact["recall"], 1.0, "{what}"),
        }
        let usual = place.search(&["--list", "60"]);
        assert!(number(&usual["recall"]) > 0.97, "{what}: {usual}");
        let error = number(&usual["distance_error"]);
        assert_eq!(error > 0.0, layout == "layered", "{what}: {usual}");
        let all_bits = place.search(&["--list", "60", "--exact"]);
        assert_eq!(all_bits["distance_error"], 0.0, "{what}");
        let words = place.run(&[&SEARCH[..], &["--list", "60"]].concat());
        let words = words.done().stdout;
        assert_eq!(
            words.contains("exact to within"),
            layout == "layered",
            "{words}"
        );
        let (graph, vectors) = (
            number(&usual["per_query"]["graph_reads"]),
            number(&usual["per_query"]["vector_reads"]),
        );
        assert!(graph > 1.0, "{what}: {usual}");
        let apart = matches!(layout, "decoupled" | "layered");
        assert_eq!(vectors > 0.0, apart, "{what}: {usual}");
    }
    let [coupled, _, _, packed, _, _, decoupled, layered] = totals[..] else {
        panic!("{totals:?}")
    };
    assert!(packed < coupled && decoupled < coupled, "{totals:?}");
    assert!(layered < coupled, "{totals:?}");
}

#[test]
fn the_preset_chooses_unless_the_user_does() {
    let place = Place::with_photos();
    let layout = |words: &[&str]| {
        place.build(&[words, &["--overwrite"]].concat());
        let stats = place.run(&["stats", "index", "--json"]).done().json();
        stats["layout"].as_str().unwrap().to_string()
    };
    assert_eq!(layout(&["--preset", "diskann"]), "coupled");
    assert_eq!(layout(&["--preset", "decouplevs"]), "decoupled");
    assert_eq!(layout(&["--preset", "stratann"]), "packed");
    assert_eq!(
        layout(&["--preset", "stratann", "--layout", "coupled"]),
        "coupled"
    );
    assert_eq!(
        layout(&["--preset", "diskann", "--layout", "packed"]),
        "packed"
    );
}

#[test]
fn chunks_and_segments_cut_the_vectors() {
    let place = Place::with_photos();
    let segments = |words: &[&str]| {
        let decoupled = ["--preset", "decouplevs", "--overwrite"];
        place.build(&[&decoupled[..], words].concat());
        place.run(&["verify", "index"]).done();
        let files = names(&place.path("index"));
        files
            .iter()
            .filter(|file| file.starts_with("vectors-"))
            .count()
    };
    assert_eq!(segments(&[]), 1);
    // 1,000 vectors of 128 bytes, 512 in each segment.
    assert_eq!(segments(&["--chunk", "16KiB", "--segment", "64KiB"]), 2);
    // The chunk size is 140 / (0.01 - 1/1024) = 15,514 bytes.
    assert_eq!(
        segments(&["--chunk-overhead", "0.01", "--segment", "16kB"]),
        9
    );
    let found = place.search(&["--list", "60"]);
    assert!(number(&found["recall"]) > 0.97, "{found}");
}

#[test]
fn a_cache_saves_reads_and_finds_the_same() {
    let place = Place::with_photos();
    for preset in ["diskann", "decouplevs", "stratann"] {
        place.build(&["--preset", preset, "--overwrite"]);
        let search = |words: &[&str]| place.search(&[&STEADY[..], words].concat());
        let reads = |found: &Value| number(&found["per_query"]["graph_reads"]);
        let hits = |found: &Value| number(&found["per_query"]["cache_hits"]);
        let without = search(&["--list", "60"]);
        assert_eq!(hits(&without), 0.0, "{preset}");
        for cache in [
            ["--cache", "8MB"],
            ["--cache-entries", "1000"],
            ["--cache-entries", "100%"],
            ["--cache-entries", "18446744073709551615"],
        ] {
            let with = search(&[&cache[..], &["--list", "60"]].concat());
            let what = format!("{preset}, {cache:?}: {with}");
            assert!(
                hits(&with) > 0.0 && reads(&with) < reads(&without),
                "{what}"
            );
            // The search reads every record from the cache, so recall 1 shows that the cached
            // records are right.
            let exact = search(&[&cache[..], &["--list", "1000", "--benefit", "0"]].concat());
            assert!(hits(&exact) > 100.0, "{what}");
            assert_eq!(exact["recall"], 1.0, "{what}");
        }
        let little = search(&["--cache-entries", "0.1%", "--list", "60"]);
        let hops = number(&little["per_query"]["hops"]);
        assert!(hits(&little) < hops / 2.0, "{preset}: {little}");
    }
}

#[test]
fn re_ranking_reads_as_much_as_it_is_told_to() {
    let place = Place::with_photos();
    place.build(&["--preset", "decouplevs"]);
    let reads = |words: &[&str]| {
        let list = ["--list", "100"];
        let pipelined = place.search(&[&list[..], &["--strategy", "pipelined"], words].concat());
        let found = place.search(&[&list[..], &STEADY, words].concat());
        for found in [&pipelined, &found] {
            assert!(number(&found["recall"]) > 0.9, "{words:?}: {found}");
        }
        number(&found["per_query"]["vector_reads"])
    };
    let all = reads(&["--benefit", "0"]);
    let none_pays = reads(&["--benefit", "1", "--rerank-batch", "10"]);
    assert!(none_pays < all, "{none_pays} of {all}");
    assert!(reads(&["--rerank", "estimate"]) <= all);
    assert!(reads(&["--rerank-batch", "1"]) <= all);
    assert_eq!(reads(&["--rerank-batch", "4294967294"]), all);
    let typed = reads(&["--preset", "decouplevs", "--benefit", "0"]);
    assert_eq!(typed, all);
}

#[test]
fn exact_distances_take_the_trailing_parts_of_all_answers() {
    let place = Place::with_photos();
    place.build(&["--layout", "layered"]);
    let words = [&["--list", "60"][..], &STEADY].concat();
    let near = place.search(&words);
    let exact = place.search(&[&words[..], &["--exact"]].concat());
    let of = |found: &Value, key: &str| number(&found["per_query"][key]);
    for found in [&near, &exact] {
        assert!(number(&found["recall"]) > 0.95, "{found}");
        assert!(
            of(found, "vector_reads") <= of(found, "reranked"),
            "{found}"
        );
    }
    assert!(of(&near, "reranked") > 0.0, "{near}");
    assert!(of(&exact, "reranked") >= 10.0, "{exact}");
    assert!(of(&exact, "reranked") > of(&near, "reranked"), "{exact}");
    // In a layout with whole vectors, `--exact` reads nothing more.
    place.build(&["--layout", "packed", "--overwrite"]);
    let packed = place.search(&words);
    let exact = place.search(&[&words[..], &["--exact"]].concat());
    for found in [&packed, &exact] {
        assert_eq!(of(found, "reranked") + of(found, "vector_reads"), 0.0);
    }
}

#[test]
fn a_search_stops_early_if_it_is_told_to() {
    let place = Place::with_photos();
    let words = [&["--list", "100"][..], &STEADY].concat();
    let of = |found: &Value, key: &str| number(&found["per_query"][key]);
    for layout in ["packed", "decoupled"] {
        place.build(&["--layout", layout, "--overwrite"]);
        let late = place.search(&words);
        let early = place.search(&[&words[..], &["--stop-early"]].concat());
        assert!(of(&early, "hops") < of(&late, "hops"), "{early} {late}");
        // In the layout decoupled, the lists fill few pages, and each search reads most of them, so
        // reads are not compared.
        if layout == "packed" {
            assert!(
                of(&early, "graph_reads") < of(&late, "graph_reads"),
                "{early} {late}"
            );
        }
        let pipelined = ["--list", "100", "--strategy", "pipelined", "--stop-early"];
        let pipelined = place.search(&pipelined);
        let found = [&early, &pipelined, &late].map(|found| number(&found["recall"]));
        assert!(found[0] > found[2] - 0.01, "{found:?}");
        assert!(found[1] > found[2] - 0.02, "{found:?}");
    }
}

#[test]
fn what_is_inserted_beside_leading_parts_is_found_exactly() {
    let place = Place::with_photos();
    place.build(&["--layout", "layered"]);
    let fixtures = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures");
    let base = std::fs::read(format!("{fixtures}/photo-sift-20k.base.u8bin")).unwrap();
    let new = &base[8 + 10_000 * 128..][..50 * 128];
    place.write("new.u8bin", &bin(50, 128, new));
    for update in [None, Some("accumulate"), Some("relocate"), Some("in-place")] {
        let way = update.map_or(vec![], |update| vec!["--update", update]);
        let words = ["insert", "index", "new.u8bin", "--json"];
        let json = place.run(&[&words[..], &way].concat()).done().json();
        assert_eq!(json["direct"]["inserts"], 50, "{update:?}: {json}");
    }
    let words = [
        "insert",
        "index",
        "new.u8bin",
        "--update",
        "merge",
        "--json",
    ];
    let json = place.run(&words).done().json();
    assert!(json["direct"].is_null(), "{json}");
    place.run(&["verify", "index"]).done();
    let json = place.run(&["compact", "index", "--json"]).done().json();
    // Before the merge, direct inserts add the waiting vectors to the index.
    assert_eq!(json["compact"]["direct"], 250, "{json}");
    assert_eq!(json["vectors"], 1_250, "{json}");
    place.run(&["verify", "index"]).done();
    let words = ["search", "index", "new.u8bin", "--list", "100", "-k", "1"];
    let out = ["--out", "found.bin"];
    place.run(&[&words[..], &out].concat()).done();
    let found = std::fs::read(place.path("found.bin")).unwrap();
    assert_eq!(found.len(), 8 + 50 * 8);
    let at_nothing = found[8 + 50 * 4..].chunks_exact(4);
    let at_nothing = at_nothing.filter(|bytes| bytes == &0f32.to_le_bytes());
    assert!(at_nothing.count() >= 49);
}

#[test]
fn parts_are_there_when_asked_for() {
    let place = Place::with_photos();
    place.build(&["--preset", "decouplevs"]);
    let words = ["--list", "60", "--threads", "1"];
    assert!(!keys(&place.search(&words)).contains(&"parts"));
    let found = place.search(&[&words[..], &["--parts"]].concat());
    let parts = &found["parts"];
    assert_eq!(
        keys(parts),
        [
            "codes",
            "exact",
            "list_decoding",
            "reads",
            "vector_decoding"
        ]
    );
    let sum: f64 = keys(parts).iter().map(|key| number(&parts[*key])).sum();
    assert!(
        keys(parts).iter().all(|key| number(&parts[*key]) > 0.0),
        "{found}"
    );
    assert!(
        sum <= number(&found["latency_us"]["mean"]) * 1.01,
        "{found}"
    );
    let table = place
        .run(&[&SEARCH[..], &words[..], &["--parts"]].concat())
        .done();
    assert!(table.stdout.contains("list decoding"), "{table:?}");
}

/// The repository has indexes of earlier format versions.
#[test]
fn frozen_indexes_are_read() {
    let place = Place::new();
    let fixtures = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures");
    let base = std::fs::read(format!("{fixtures}/photo-sift-20k.base.u8bin")).unwrap();
    place.write("rows.u8bin", &bin(2_000, 128, &base[8..8 + 2_000 * 128]));
    let queries = format!("{fixtures}/photo-sift-20k.query.u8bin");
    let truth = ["truth", "rows.u8bin", &queries, "truth.bin", "-k", "10"];
    place.run(&truth).done();
    for (name, version, layout) in [
        ("index-v1", 1, "coupled"),
        ("index-v2-packed", 2, "packed"),
        ("index-v2-decoupled", 2, "decoupled"),
        ("index-v3-inline", 3, "inline"),
    ] {
        let index = format!("{fixtures}/{name}");
        let report = place.run(&["verify", &index, "--json"]).done().json();
        assert_eq!(report["nodes"], 2_000, "{name}: {report}");
        let stats = place.run(&["stats", &index, "--json"]).done().json();
        assert_eq!(
            (&stats["format_version"], &stats["layout"]),
            (&Value::from(version), &Value::from(layout)),
            "{name}"
        );
        for strategy in ["best-first", "pipelined"] {
            let search = ["search", &index, &queries, "--truth", "truth.bin", "--json"];
            let options = ["--list", "60", "--strategy", strategy];
            let ran = place.run(&[&search[..], &options].concat());
            let found = &ran.done().json_lines()[0];
            assert!(
                number(&found["recall"]) > 0.97,
                "{name}, {strategy}: {found}"
            );
        }
    }
}

#[test]
fn presets_show_their_choices() {
    let place = Place::new();
    let said = place.run(&["presets"]).done().stdout;
    for word in [
        "layout",
        "coupled",
        "decoupled",
        "chosen by the build",
        "paper",
        "re-ranking",
        "during the walk",
    ] {
        assert!(said.contains(word), "'{word}' is not in: {said}");
    }
    for preset in place.run(&["presets", "--json"]).done().json_lines() {
        for key in ["layout", "compression", "rerank"] {
            assert!(keys(&preset).contains(&key), "{preset}");
        }
    }
}
