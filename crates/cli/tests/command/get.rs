//! `get`, `search --print` and `build --ids`: the vector of each id, with ids of all 64 bits.

use std::fs;

use serde_json::Value;

use crate::support::{DIM, Place, QUERIES, ROWS, bin, names, u8s};
use crate::update::lines;

const FIRST: u64 = u64::MAX - 10_000;

fn place() -> Place {
    let place = Place::new();
    place.write("base.ids", &lines((0..ROWS as u64).map(id)));
    let build = [
        "build",
        "base.u8bin",
        "index",
        "--ids",
        "base.ids",
        "--degree",
        "16",
    ];
    place.run(&build).done();
    place
}

fn id(row: u64) -> u64 {
    FIRST + 7 * row
}

fn row(rows: &[u8], row: usize) -> &[u8] {
    &rows[8 + row * DIM..8 + (row + 1) * DIM]
}

#[test]
fn vectors_come_by_their_ids() {
    let place = place();
    let base = u8s(ROWS, DIM, 1);
    let get = |words: &[&str]| place.run(&[&["get", "index"][..], words].concat());
    let (two, five) = (id(2).to_string(), id(5).to_string());
    let ran = get(&[&five, &two, "--json"]).json_lines();
    assert_eq!(ran[0]["id"], id(5));
    assert_eq!(ran[1]["id"], id(2));
    let vector: Vec<u8> = (ran[1]["vector"].as_array().unwrap().iter())
        .map(|element| element.as_f64().unwrap() as u8)
        .collect();
    assert_eq!(vector, row(&base, 2));
    let ran = get(&[&five]).done();
    let first = row(&base, 5)[0];
    assert!(
        ran.stdout.starts_with(&format!("{}\t{first}, ", id(5))),
        "{ran:?}"
    );

    let all = get(&["--list"]).done().stdout;
    assert_eq!(all.as_bytes(), lines((0..ROWS as u64).map(id)));
    get(&["--out", "all.u8bin"]).done();
    assert_eq!(fs::read(place.path("all.u8bin")).unwrap(), base);
    get(&["--out", "all.u8bin"]).refused(2, &["all.u8bin", "--overwrite"]);
    get(&["--out", "all.fbin", "--overwrite"]).refused(2, &[".u8bin"]);

    place.write("few.ids", &lines([id(2), 77]));
    place.write("few.u8bin", &u8s(2, DIM, 9));
    place
        .run(&[
            "insert",
            "index",
            "few.u8bin",
            "--ids",
            "few.ids",
            "--upsert",
        ])
        .done();
    place.run(&["delete", "index", &five]).done();
    get(&["--ids", "few.ids", "--out", "few-again.u8bin"]).done();
    assert_eq!(
        fs::read(place.path("few-again.u8bin")).unwrap(),
        u8s(2, DIM, 9)
    );
    get(&[&two, &five, "3"]).refused(1, &["not in the index", &five, "3"]);
    let all = get(&["--list"]).done().stdout;
    assert_eq!(all.lines().count(), ROWS);
    assert!(all.starts_with("77\n") && !all.contains(&five));

    get(&["few.ids", "--out", "few-named.u8bin"]).done();
    assert_eq!(
        fs::read(place.path("few-named.u8bin")).unwrap(),
        u8s(2, DIM, 9)
    );
    get(&["x"]).refused(1, &["'x' is no id, and no file", "18446744073709551614"]);
    get(&["x", "3"]).refused(2, &["'x'", "18446744073709551614"]);
    get(&["few.ids", "3"]).refused(2, &["'few.ids' is not an id"]);
    get(&["18446744073709551615"]).refused(2, &["18446744073709551615"]);
    get(&["3", "--ids", "few.ids"]).refused(2, &["--ids"]);
    place.run(&["get", "nothing"]).refused(1, &["nothing"]);
}

#[test]
fn answers_are_printed_with_all_their_bits() {
    let place = place();
    let search = |words: &[&str]| {
        let search = ["search", "index", "queries.u8bin"];
        place.run(&[&search[..], words].concat())
    };
    let base = u8s(ROWS, DIM, 1);
    let queries = u8s(QUERIES, DIM, 2);
    let found = search(&["-k", "3", "--list", "100", "--print", "--json"]).json_lines();
    assert_eq!(found.len(), QUERIES);
    for (query, line) in found.iter().enumerate() {
        assert_eq!(line["query"], query);
        let ids = line["ids"].as_array().unwrap();
        let distances = line["distances"].as_array().unwrap();
        assert_eq!((ids.len(), distances.len()), (3, 3));
        for (found, distance) in ids.iter().zip(distances) {
            let at = (found.as_u64().unwrap() - FIRST) as usize / 7;
            let expected: i64 = (row(&base, at).iter().zip(row(&queries, query)))
                .map(|(a, b)| (i64::from(*a) - i64::from(*b)).pow(2))
                .sum();
            assert_eq!(distance.as_f64().unwrap(), expected as f64);
        }
    }
    let table = search(&["-k", "3", "--list", "100", "--print"])
        .done()
        .stdout;
    let nearest: Vec<&str> = table.lines().nth(2).unwrap().split_whitespace().collect();
    let Value::Array(ids) = &found[0]["ids"] else {
        panic!("{found:?}")
    };
    assert_eq!(nearest[..3], ["0", "1", &ids[0].to_string()]);
    assert!(!table.contains("queries/s"));

    let all = search(&["-k", "700", "--list", "700", "--print", "--json"]).json_lines();
    assert_eq!(all[0]["ids"].as_array().unwrap().len(), ROWS);
    search(&["--list", "20,40", "--print"]).refused(2, &["--list"]);
}

#[test]
fn a_slip_of_the_pen_gets_the_closest_match() {
    let place = Place::with_index();
    let refused = |words: &[&str], word: &str| {
        place.run(words).refused(2, &[word]);
    };
    let build = ["build", "base.u8bin", "other"];
    refused(
        &[&build[..], &["--preset", "stratan"]].concat(),
        "'stratann'",
    );
    refused(&[&build[..], &["--metric", "cosin"]].concat(), "'cosine'");
    refused(&[&build[..], &["--layout", "packet"]].concat(), "'packed'");
    refused(&[&build[..], &["--degre", "16"]].concat(), "'--degree'");
    let search = ["search", "index", "queries.u8bin"];
    refused(
        &[&search[..], &["--strategy", "pipeline"]].concat(),
        "'pipelined'",
    );
    refused(&["compact", "index", "--update", "relocat"], "'relocate'");
    refused(&["serch", "index", "queries.u8bin"], "'search'");
}

#[test]
fn ids_of_a_build_are_checked() {
    let place = Place::new();
    let build = |ids: &[u64]| {
        place.write("base.ids", &lines(ids.iter().copied()));
        place.run(&["build", "base.u8bin", "index", "--ids", "base.ids"])
    };
    build(&[1, 2, 3]).refused(2, &["3", "600"]);
    let mut ids: Vec<u64> = (0..ROWS as u64).collect();
    ids[7] = 9;
    build(&ids).refused(2, &["9"]);
    assert!(!place.path("index").exists());
    place.write("small.u8bin", &bin(2, DIM, &[1; 2 * DIM]));
    let both = [
        "build",
        "small.u8bin",
        "index",
        "--ids",
        "base.ids",
        "--first-id",
        "3",
    ];
    place.run(&both).refused(2, &["--first-id"]);
}

fn bytes_of(place: &Place, index: &str, begins: &[&str]) -> u64 {
    let names = names(&place.path(index));
    let some = names
        .iter()
        .filter(|name| begins.iter().any(|begin| name.starts_with(begin)));
    some.map(|name| {
        let path = place.path(index).join(name);
        std::fs::metadata(path).unwrap().len()
    })
    .sum()
}

#[test]
fn a_plan_counts_attributes_and_payloads() {
    let place = Place::with_photos();
    let mut lines = String::new();
    for row in 0..1_000 {
        lines.push_str(&format!(
            "{{\"year\": {}, \"name\": \"photo {row}\", \"tags\": [\"t{}\", \"sea\"], \"more\": \"{}\"}}\n",
            1_900 + row % 100,
            row % 7,
            "x".repeat(row % 200),
        ));
    }
    place.write("rows.jsonl", lines.as_bytes());
    let rows = ["--attributes", "rows.jsonl", "--payload", "more"];
    let of = |words: &[&str], rows: &[&str]| {
        let ran = place.run(&[words, rows, &["--json", "--threads", "1"]].concat());
        ran.done().json()
    };
    for preset in ["stratann", "spann"] {
        let plan = ["plan", "photos.u8bin", "--preset", preset];
        let (bare, with) = (of(&plan, &[]), of(&plan, &rows));
        let built = of(
            &["build", "photos.u8bin", preset, "--preset", preset],
            &rows,
        );
        let number = |of: &Value, key: &str| of[key].as_u64().unwrap();
        let expected = number(&with, "attributes");
        let there = bytes_of(&place, preset, &["rows-", "columns-"]);
        let share = expected as f64 / there as f64;
        assert!(
            (0.98..1.02).contains(&share),
            "{preset}: {expected}, {there}"
        );
        assert_eq!(number(&bare, "attributes"), 0);
        let storage = number(&with, "storage");
        assert_eq!(storage, number(&bare, "storage") + expected);
        let share = storage as f64 / number(&built, "bytes") as f64;
        let most = if preset == "spann" { 8.0 } else { 1.1 };
        assert!((0.9..most).contains(&share), "{preset}: {share}");
        assert!(number(&with, "search_memory") > number(&bare, "search_memory"));
        assert!(number(&with, "memory") > number(&bare, "memory"));
        // The memory of the process differs by a megabyte between runs.
        let least = (number(&with, "least_memory") + (4 << 20)).to_string();
        let capped = format!("{preset}-capped");
        let build = ["build", "photos.u8bin", &capped, "--preset", preset];
        of(&[&build[..], &["--memory", &least]].concat(), &rows);
        // The plan cannot predict tables of the graph.
        let least = (number(&with, "search_memory") + (1 << 20)).to_string();
        place
            .run(&["search", &capped, "asked.u8bin", "--memory", &least])
            .done();
    }
    let table = place.run(&[&["plan", "photos.u8bin"][..], &rows].concat());
    assert!(table.done().stdout.contains("of which attributes take"));
    place.write("few.jsonl", b"{\"year\": 1}\n");
    place
        .run(&["plan", "photos.u8bin", "--attributes", "few.jsonl"])
        .refused(2, &["few.jsonl", "1000"]);
}

#[test]
fn a_plan_says_what_a_build_takes() {
    let place = Place::with_photos();
    for preset in ["stratann", "diskann", "decouplevs", "aisaq", "odinann"] {
        let plan = ["plan", "photos.u8bin", "--preset", preset, "--json"];
        let plan = place.run(&plan).json_lines().remove(0);
        let build = [
            "build",
            "photos.u8bin",
            preset,
            "--preset",
            preset,
            "--json",
        ];
        let built = place.run(&build).json_lines().remove(0);
        assert_eq!(plan["layout"], built["layout"], "{preset}");
        assert_eq!(plan["degree"], built["degree"], "{preset}");
        let share = plan["storage"].as_f64().unwrap() / built["bytes"].as_f64().unwrap();
        assert!((0.85..1.15).contains(&share), "{preset}: {share}");
        assert!(plan["least_memory"].as_u64() <= plan["memory"].as_u64());
    }
    let spann = place.run(&["plan", "photos.u8bin", "--preset", "spann", "--json"]);
    let build = [
        "build",
        "photos.u8bin",
        "spann",
        "--preset",
        "spann",
        "--json",
    ];
    let built = place.run(&build).json_lines().remove(0);
    assert!(spann.json_lines()[0]["storage"].as_u64() >= built["bytes"].as_u64());
    let plan = |words: &[&str]| place.run(&[&["plan", "photos.u8bin"][..], words].concat());
    assert!(plan(&[]).done().stdout.contains("build memory"));
    let refused = plan(&["--memory", "1MB"]);
    assert_eq!(refused.stdout, "");
    refused.refused(2, &["--memory", "1000000"]);
    plan(&["--memory", "1MB", "--json"]).refused(2, &["--memory", "1000000"]);
    plan(&["--degree", "0"]).refused(2, &["at least 1"]);
    assert!(!place.path("index").exists());
}

#[test]
fn vectors_are_deleted_by_their_ids() {
    let place = Place::with_index();
    let delete = |words: &[&str]| place.run(&[&["delete", "index"][..], words].concat());
    let left = || place.run(&["count", "index"]).done().stdout;
    let all = left();
    delete(&["5", "x"]).refused(2, &["'x' is not an id", "one file of ids"]);
    delete(&["5", "18446744073709551615"]).refused(2, &["'18446744073709551615' is not an id"]);
    delete(&["missing"]).refused(1, &["'missing' is no id", "Check the path"]);
    delete(&[]).refused(2, &["Give ids, a file of ids, or --filter"]);
    delete(&["5", "--ids", "some"]).refused(2, &["cannot be used with"]);
    place.write("7", b"8\n");
    delete(&["7"]).refused(2, &["'7' is an id and the name of a file", "give ./7"]);
    assert_eq!(left(), all, "a refused command deleted vectors");
    delete(&["5", "6"]).done();
    delete(&["--ids", "7"]).done();
    delete(&["./7"]).refused(2, &["id is 8"]);
    place.write("some", b"9, 10\n");
    delete(&["some"]).done();
    let gone = ["5", "6", "8", "9", "10"];
    let get = place.run(&[&["get", "index"][..], &gone[..]].concat());
    get.refused(1, &["not in the index: 5, 6, 8, 9, 10"]);
    let get = |word: &str| place.run(&["get", "index", word]);
    get("7").refused(2, &["'7' is an id and the name of a file", "give ./7"]);
    get("./7").refused(1, &["not in the index: 8"]);
}
