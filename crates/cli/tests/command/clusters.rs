//! Cluster indexes, as a user builds, searches and changes them.

use crate::support::Place;

const SEARCH: [&str; 6] = [
    "search",
    "index",
    "asked.u8bin",
    "--truth",
    "truth.bin",
    "--json",
];

#[test]
fn clusters_are_built_searched_changed_and_checked() {
    for (preset, layout, reads) in [
        ("spann", "replicated", "posting_reads"),
        ("tiered-cluster", "grouped", "group_reads"),
    ] {
        let place = Place::with_photos();
        let build = ["build", "photos.u8bin", "index", "--preset", preset];
        let built = place.run(&[&build[..], &["--cluster-size", "10"]].concat());
        assert!(built.done().stdout.contains("clusters"));
        let stats = place.run(&["stats", "index", "--json"]).done();
        let stats = stats.json();
        assert_eq!(stats["layout"], layout);
        assert!(stats["clusters"]["clusters"].as_u64().unwrap() > 50);
        assert!(stats["amplification"].as_f64().unwrap() > 1.0);
        let words = place.run(&["stats", "index"]).done().stdout;
        assert!(words.contains("replicas") && !words.contains("bits an edge"));

        let probes = place.run(&[&SEARCH[..], &["--probes", "2,8,20"]].concat());
        let lines = probes.done().json_lines();
        let recall = |at: usize| lines[at]["recall"].as_f64().unwrap();
        assert_eq!((lines.len(), lines[1]["list"].as_u64()), (3, Some(8)));
        assert!(recall(0) < recall(1) && recall(2) > 0.95, "{lines:?}");
        let per_query = &lines[1]["per_query"];
        assert_eq!(per_query[reads].as_f64(), Some(8.0), "{per_query}");
        // The default number of probes is 32, or k if k is larger.
        for (option, probes) in [(&[][..], 32), (&["-k", "40"], 40), (&["--list", "12"], 12)] {
            let words = ["search", "index", "asked.u8bin", "--json"];
            let found = place.run(&[&words[..], option].concat()).done();
            assert_eq!(
                found.json_lines()[0]["list"].as_u64(),
                Some(probes),
                "{option:?}"
            );
        }
        let words = place.run(&["search", "index", "asked.u8bin", "--preset", preset]);
        let words = words.done().stdout;
        assert!(
            words.contains("stray reads") && !words.contains("graph reads"),
            "{words}"
        );
        let found = place.run(&[&SEARCH[..], &["--recall", "0.9", "--find-list"]].concat());
        let found = found.done().json_lines().remove(0);
        assert!(found["recall"].as_f64().unwrap() >= 0.9);
        assert!((1..20).contains(&found["list"].as_u64().unwrap()));

        place
            .run(&["insert", "index", "asked.u8bin", "--compact"])
            .done();
        let words = place.run(&["verify", "index"]).done().stdout;
        assert!(
            words.contains("clusters") && !words.contains("edges"),
            "{words}"
        );
        let found = place.run(&[
            "search",
            "index",
            "asked.u8bin",
            "-k",
            "1",
            "--probes",
            "3",
            "--out",
            "own.bin",
        ]);
        found.done();
        let own = std::fs::read(place.path("own.bin")).unwrap();
        let ids = own[8..8 + 4 * 50].chunks_exact(4);
        let ids = ids.map(|id| u32::from_le_bytes(id.try_into().unwrap()));
        assert!(
            ids.eq(1_000..1_050),
            "each inserted vector is nearest to itself"
        );
    }
}

#[test]
fn what_is_of_graphs_is_refused_with_clusters_and_the_reverse() {
    let place = Place::with_photos();
    let refused = |words: &[&str], expected: &[&str]| {
        place.run(words).refused(2, expected);
    };
    fn with<'w>(words: &[&'w str]) -> Vec<&'w str> {
        let build = ["build", "photos.u8bin", "index", "--preset"];
        build.iter().chain(words).copied().collect()
    }
    refused(&with(&["spann", "-R", "16"]), &["degree", "clusters"]);
    refused(&with(&["spann", "--resume"]), &["resume"]);
    refused(&with(&["spann", "-L", "50"]), &["build list", "clusters"]);
    refused(&with(&["spann", "--alpha", "1.1"]), &["alpha", "clusters"]);
    refused(
        &with(&["diskann", "--replicas", "4"]),
        &["replicas", "spann"],
    );
    refused(&with(&["spann", "--replicas", "100"]), &["replicas", "64"]);
    let missing = ["tiered-cluster", "--query-log", "none.u8bin"];
    place.run(&with(&missing)).refused(1, &["none.u8bin"]);
    place.run(&with(&["spann"])).done();
    for (option, word) in [
        (&["--strategy", "best-first"][..], "strategy"),
        (&["--no-nav"], "navigation"),
        (&["--whole-page"], "whole page"),
        (&["--benefit", "0.1"], "rerank"),
        (&["--stop-early"], "stop early"),
        (&["--cache", "1MB"], "cache"),
        (&["--preset", "stratann"], "--preset stratann"),
    ] {
        let search = ["search", "index", "asked.u8bin"];
        refused(&[&search[..], option].concat(), &[word, "cluster"]);
    }
    let insert = ["insert", "index", "asked.u8bin", "--update"];
    refused(
        &[&insert[..], &["accumulate"]].concat(),
        &["accumulate", "rebalance", "clusters"],
    );
    std::fs::remove_dir_all(place.path("index")).unwrap();
    place.run(&with(&["diskann", "-R", "16"])).done();
    refused(
        &[&insert[..], &["rebalance"]].concat(),
        &["rebalance", "graph"],
    );
    refused(
        &["search", "index", "asked.u8bin", "--probes", "3"],
        &["probes", "list size"],
    );
}
