//! Attributes and filters in every command that has them.

use std::io::Write;
use std::process::Stdio;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::support::{DIM, Place, QUERIES, ROWS, SMALL_BUILD, u8s};
use crate::update::lines;

/// One row in seven has no attributes.
pub fn row(id: usize) -> Value {
    match id % 7 {
        0 => json!({}),
        _ => json!({
            "price": id as f64 / 4.0,
            "tags": [format!("t{}", id % 5), "all"],
            "made": "2024-02-29T12:00:00Z",
            "more": {"id": id},
        }),
    }
}

fn jsonl(ids: impl Iterator<Item = usize>) -> Vec<u8> {
    let mut text = String::new();
    for id in ids {
        text += &row(id).to_string();
        text.push('\n');
    }
    text.into_bytes()
}

const ROW_OPTIONS: [&str; 6] = [
    "--attributes",
    "rows.jsonl",
    "--payload",
    "more",
    "--times",
    "made",
];

fn place() -> Place {
    let place = Place::new();
    place.write("rows.jsonl", &jsonl(0..ROWS));
    place.run(&[&SMALL_BUILD[..], &ROW_OPTIONS].concat()).done();
    place
}

fn matching(ids: impl Iterator<Item = usize>) -> Vec<u64> {
    let matches = |id: &usize| !id.is_multiple_of(7) && id % 5 == 3 && *id < 400;
    ids.filter(matches).map(|id| id as u64).collect()
}

const FILTER: &str = "price < 100 and tags contains 't3'";

#[test]
fn an_insert_warns_of_a_new_column_that_is_nearly_another() {
    let place = place();
    place.write("two.u8bin", &u8s(2, DIM, 3));
    place.write(
        "two.jsonl",
        b"{\"prize\": 3}\n{\"prize\": 4, \"size\": 1}\n",
    );
    let insert = ["insert", "index", "two.u8bin", "--attributes", "two.jsonl"];
    let warning = "column \"prize\" is new; did you mean \"price\"";
    let warned = |more: &[&str]| {
        let done = place.run(&[&insert[..], more].concat()).done();
        done.stderr.matches(warning).count()
    };
    assert_eq!(warned(&[]), 1);
    assert_eq!(warned(&["--no-resume"]), 0);
    place.write("two.ids", &lines([1, 2]));
    place.write("two.jsonl", b"{\"pricey\": 3}\n{}\n");
    let done = place.run(&[&insert[..], &["--ids", "two.ids", "--upsert"]].concat());
    let warning = "column \"pricey\" is new; did you mean \"price\"";
    assert_eq!(done.done().stderr.matches(warning).count(), 1);
}

#[test]
fn the_parts_in_stats_add_up_to_the_total() {
    let place = place();
    let text = place.run(&["stats", "index"]).done().stdout;
    let bytes = |part: &str| -> u64 {
        let line = text.lines().rfind(|line| line.starts_with(part));
        let line = line.unwrap_or_else(|| panic!("{part}: {text}"));
        let rest = line[part.len()..].split_whitespace().next().unwrap();
        rest.replace(',', "").parse().unwrap()
    };
    let parts = ["graph", "vectors", "codes", "ids", "attributes", "other"];
    let sum: u64 = parts.map(bytes).iter().sum();
    assert!(bytes("attributes") > 0);
    assert_eq!(sum, bytes("total"));
}

#[test]
fn results_are_printed_with_their_attributes() {
    let place = place();
    let search = ["search", "index", "queries.u8bin", "-k", "8", "--print"];
    let printed = |more: &[&str]| place.run(&[&search[..], more].concat());
    let plain = printed(&["--json"]).done().json_lines();
    let all = printed(&["--json", "--attributes"]).done().json_lines();
    let some = ["--json", "--attributes=price,tags"];
    let some = printed(&some).done().json_lines();
    assert_eq!((plain.len(), all.len()), (QUERIES, QUERIES));
    let mut seen = 0;
    for (at, plain) in plain.iter().enumerate() {
        assert!(plain.get("attributes").is_none() && some[at].get("payloads").is_none());
        assert_eq!(
            (&plain["ids"], &plain["distances"]),
            (&all[at]["ids"], &all[at]["distances"])
        );
        for (rank, id) in plain["ids"].as_array().unwrap().iter().enumerate() {
            let of = row(id.as_u64().unwrap() as usize);
            let (attributes, payload) = (&all[at]["attributes"][rank], &all[at]["payloads"][rank]);
            let pair = |json: &Value| (json["price"].clone(), json["tags"].clone());
            assert_eq!(pair(attributes), pair(&of));
            assert_eq!(
                (payload, attributes.get("made").is_some()),
                (&of["more"], !payload.is_null())
            );
            let named = some[at]["attributes"][rank].as_object().unwrap();
            assert_eq!(named.len(), if payload.is_null() { 0 } else { 2 });
            seen += named.len();
        }
    }
    assert!(seen > 0);
    let table = printed(&["--attributes"]).done().stdout;
    let header: Vec<&str> = table.lines().next().unwrap().split_whitespace().collect();
    assert_eq!(
        header,
        ["query", "rank", "id", "distance", "attributes", "payload"]
    );
    let lines = place.run(&[
        "search",
        "index",
        "--like",
        "1",
        "-k",
        "3",
        "--attributes",
        "--json",
    ]);
    let like = lines.done().json();
    assert_eq!(like["attributes"].as_array().unwrap().len(), 3);
    let within = [
        "search", "index", "--like", "1", "--within", "1e9", "--json",
    ];
    let within = place
        .run(&[&within[..], &["--attributes=price"]].concat())
        .done()
        .json_lines();
    let ids = within[0]["ids"].as_array().unwrap().len();
    assert_eq!(within[0]["attributes"].as_array().unwrap().len(), ids);

    let said =
        "--attributes names \"prize\", which is no column of the index; did you mean \"price\"?";
    printed(&["--attributes=prize"]).refused(2, &[said]);
    for words in [
        &[
            "search",
            "index",
            "queries.u8bin",
            "--print",
            "--attributes",
            "price",
        ][..],
        &["search", "index", "--like", "3", "--attributes", "price"],
    ] {
        place
            .run(words)
            .refused(2, &["price is neither a file", "Give --attributes=price"]);
    }
    let alone = ["search", "index", "queries.u8bin", "--attributes"];
    place
        .run(&alone)
        .refused(2, &["without --print", "Add --print"]);
}

#[test]
fn lines_of_attributes_come_from_a_pipe_too() {
    let place = Place::new();
    let piped = |words: &[&str], lines: &[u8]| {
        let mut command = place.command(words);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(lines).unwrap();
        let done = child.wait_with_output().unwrap();
        (done.status.code(), String::from_utf8(done.stderr).unwrap())
    };
    place.write("rows.jsonl", &jsonl(0..ROWS));
    let options = ["--payload", "more", "--times", "made", "--attributes"];
    let build = |from: &'static str| [&SMALL_BUILD[..], &options, &[from]].concat();
    let (status, said) = piped(&build("/dev/stdin"), &jsonl(0..ROWS));
    assert_eq!(status, Some(0), "{said}");
    let shown = |index: &str| {
        let get = ["get", index, "--attributes"];
        place.run(&get).done().stdout
    };
    let of_pipe = shown("index");
    place
        .run(&[&build("rows.jsonl")[..], &["--overwrite"]].concat())
        .done();
    assert_eq!(of_pipe, shown("index"));
    let (status, said) = piped(
        &[&build("-")[..], &["--overwrite"]].concat(),
        &jsonl(0..ROWS),
    );
    assert_eq!(status, Some(0), "{said}");
    assert_eq!(of_pipe, shown("index"));
    let set = ["set-attributes", "index", "/dev/stdin"];
    for words in [set, ["set-attributes", "index", "-"]] {
        let (status, said) = piped(&words, b"{\"id\": 1, \"price\": 1}\n");
        assert_eq!(status, Some(0), "{said}");
    }
    let both = [&build("-")[..], &["--ids", "-", "--overwrite"]].concat();
    for words in [&both[..], &["set-attributes", "index", "-", "--ids", "-"]] {
        let (status, said) = piped(words, b"");
        assert_eq!(status, Some(2), "{said}");
        assert!(
            said.contains("- is given for ids and for attributes"),
            "{said}"
        );
    }
    let (status, said) = piped(&set, b"PAR1 and more");
    assert_eq!(status, Some(2), "{said}");
    assert!(said.contains("is a pipe with a Parquet file"), "{said}");
}

#[cfg(unix)]
#[test]
fn a_pipe_in_place_of_a_file_of_vectors_is_refused_before_anything_writes_to_it() {
    let place = Place::with_index();
    for name in ["pipe.u8bin", "pipe.npy", "pipe.parquet"] {
        let made = std::process::Command::new("mkfifo")
            .arg(place.path(name))
            .status();
        assert!(made.unwrap().success());
    }
    for words in [
        &["insert", "index", "pipe.u8bin"][..],
        &["insert", "index", "base.u8bin", "--ids", "pipe.npy"],
        &["insert", "index", "pipe.parquet"],
        &["insert", "index", "pipe.parquet", "--vectors", "v"],
        &["search", "index", "pipe.npy"],
        &["search", "index", "pipe.parquet", "--vectors", "v"],
        &["set-attributes", "index", "pipe.parquet"],
    ] {
        let mut command = place.command(words);
        let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
        wait(&mut child, || false);
        if child.try_wait().unwrap().is_none() {
            child.kill().unwrap();
        }
        let output = child.wait_with_output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(
            said.contains("not a regular file"),
            "{words:?}: {said}, {:?}",
            output.status
        );
    }
}

#[test]
fn set_attributes_opens_the_index_once() {
    let place = Place::with_index();
    place.write("rows.jsonl", b"{\"id\": 1, \"price\": 1}\n");
    let mut command = place.command(&["set-attributes", "index", "rows.jsonl"]);
    let output = command.env("STRATANN_LOG", "debug").output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{said}");
    assert_eq!(
        said.matches("opened; memory of its parts").count(),
        1,
        "{said}"
    );
    place
        .run(&["set-attributes", "none", "gone.jsonl"])
        .refused(1, &["none"]);
}

#[test]
fn a_name_that_no_line_has_is_refused_before_anything_is_written() {
    let place = Place::new();
    place.write("rows.jsonl", &jsonl(0..ROWS));
    let options = |names: [&'static str; 2]| {
        let [payload, times] = names;
        ["--payload", payload, "--times", times]
    };
    let build = [&SMALL_BUILD[..], &["--attributes", "rows.jsonl"]].concat();
    let is_key = "which is no key of its lines; did you mean";
    let refused = |names: [&'static str; 2], status: i32, said: &[&str]| {
        let ran = place.run(&[&build[..], &options(names)].concat());
        ran.refused(status, said);
        assert!(!place.path("index").exists());
    };
    let times = [
        "--times names \"mode\"",
        is_key,
        "\"made\"",
        "leave out the option",
    ];
    refused(["more", "mode"], 2, &times);
    let payload = ["in \"more\"", "give its key \"more\", and not \"moer\""];
    refused(["moer", "made"], 1, &payload);
    let without = ["--without", "tagz"];
    let ran = place.run(&[&build[..], &options(["more", "made"]), &without].concat());
    ran.refused(2, &["--without names \"tagz\"", is_key, "\"tags\""]);
    let right = [
        &build[..],
        &options(["more", "made"]),
        &["--without", "tags"],
    ]
    .concat();
    place.run(&right).done();

    let schema = || {
        place
            .run(&["get", "index", "1", "--attributes"])
            .done()
            .stdout
    };
    let before = schema();
    place.write("new.u8bin", &u8s(1, DIM, 5));
    place.write("new.jsonl", b"{\"price\": 1, \"more\": null}\n");
    let insert = ["insert", "index", "new.u8bin", "--attributes", "new.jsonl"];
    let ran = place.run(&[&insert[..], &["--payload", "mroe"]].concat());
    ran.refused(2, &["--payload names \"mroe\"", "\"more\""]);
    place.write("set.jsonl", b"{\"id\": 1, \"price\": 1, \"mode\": 0}\n");
    let set = ["set-attributes", "index", "set.jsonl", "--times", "made"];
    let ran = place.run(&set);
    ran.refused(2, &["--times names \"made\"", "\"mode\""]);
    assert_eq!(schema(), before);
    place
        .run(&[&insert[..], &["--payload", "more"]].concat())
        .done();
}

#[test]
fn answers_match_a_filter_and_are_the_nearest_that_do() {
    let place = place();
    let base = u8s(ROWS, DIM, 1);
    let queries = u8s(QUERIES, DIM, 2);
    let search = [
        "search",
        "index",
        "queries.u8bin",
        "--filter",
        FILTER,
        "--list",
        "100",
    ];
    let print = [&search[..], &["--print", "--json"]].concat();
    let found = place.run(&print).done().json_lines();
    let wanted = matching(0..ROWS);
    assert_eq!(found.len(), QUERIES);
    let mut right = 0;
    for (query, line) in found.iter().enumerate() {
        let distance = |id: u64| -> i64 {
            let of = |bytes: &[u8], row: usize| bytes[8 + row * DIM..8 + (row + 1) * DIM].to_vec();
            let (a, b) = (of(&base, id as usize), of(&queries, query));
            let each = a.iter().zip(&b);
            each.map(|(&a, &b)| (i64::from(a) - i64::from(b)).pow(2))
                .sum()
        };
        let mut nearest = wanted.clone();
        nearest.sort_by_key(|&id| (distance(id), id));
        let ids: Vec<u64> = (line["ids"].as_array().unwrap().iter())
            .map(|id| id.as_u64().unwrap())
            .collect();
        assert_eq!(ids.len(), 10, "{line}");
        assert!(ids.iter().all(|id| wanted.contains(id)), "{line}");
        right += ids.iter().filter(|id| nearest[..10].contains(id)).count();
    }
    assert!(right >= QUERIES * 10 * 95 / 100, "{right}");

    let few = [
        "search",
        "index",
        "queries.u8bin",
        "--filter",
        "price between 10 and 11",
    ];
    let table = place.run(&few).done().stdout;
    assert!(
        table.contains("fewer than 10 results: the index has too few vectors that match"),
        "{table}"
    );
    let found = place
        .run(&[&few[..], &["--print", "--json"]].concat())
        .json_lines();
    let mut ids: Vec<u64> = (found[0]["ids"].as_array().unwrap().iter())
        .map(|id| id.as_u64().unwrap())
        .collect();
    ids.sort_unstable();
    assert_eq!(ids, [40, 41, 43, 44]);
}

#[test]
fn what_vectors_have_is_counted_listed_and_printed() {
    let place = place();
    let count = |words: &[&str]| place.run(&[&["count", "index"][..], words].concat());
    let wanted = matching(0..ROWS);
    assert_eq!(count(&[]).done().stdout, format!("{ROWS}\n"));
    assert_eq!(
        count(&["--filter", FILTER, "--json"]).done().json(),
        json!({"vectors": ROWS, "matching": wanted.len()})
    );
    let get = |words: &[&str]| place.run(&[&["get", "index"][..], words].concat());
    let list = get(&["--filter", FILTER, "--list"]).done().stdout;
    assert_eq!(list.as_bytes(), lines(wanted.iter().copied()));
    let rows = get(&["7", "8", "--attributes"]).done().json_lines();
    assert_eq!(rows[0], json!({"id": 7, "attributes": {}}));
    let made = 1_709_208_000_000_000_i64;
    assert_eq!(
        rows[1],
        json!({
            "id": 8, "payload": {"id": 8},
            "attributes": {"price": 2.0, "tags": ["t3", "all"], "made": made},
        })
    );
    get(&["77777", "--attributes"]).refused(1, &["not in the index", "77777"]);

    place.write("new.u8bin", &u8s(2, DIM, 9));
    place.write("new.ids", &lines([8, 1_003]));
    place.write("rows.jsonl", &jsonl([1_003, 1_003].into_iter()));
    let upsert = [
        "insert",
        "index",
        "new.u8bin",
        "--ids",
        "new.ids",
        "--upsert",
    ];
    place.run(&[&upsert[..], &ROW_OPTIONS].concat()).done();
    assert_eq!(count(&["--filter", "price == 250.75"]).done().stdout, "2\n");
    place.run(&["compact", "index"]).done();
    assert_eq!(count(&["--filter", "price == 250.75"]).done().stdout, "2\n");
    place.run(&upsert).done();
    assert_eq!(count(&["--filter", "price == 250.75"]).done().stdout, "0\n");
    place.run(&["verify", "index"]).done();
}

#[test]
fn what_is_wrong_with_rows_and_filters_is_told() {
    let place = place();
    let search =
        |filter: &str| place.run(&["search", "index", "queries.u8bin", "--filter", filter]);
    search("price <").refused(2, &["character 8"]);
    search("prize < 3").refused(2, &["\"prize\"", "price"]);
    search("price == 'x'").refused(2, &["float"]);
    place.run(&build_of("base.u8bin", "other", "0")).done();
    let both = |filter| {
        let words = ["search", "index", "other", "queries.u8bin", "--filter"];
        place.run(&[&words[..], &[filter]].concat())
    };
    both("prize < 3").refused(2, &["character 1", "did you mean \"price\""]);
    both("price < 'x'").refused(2, &["float"]);
    both("price <").refused(2, &["character 8"]);
    let none = ["count", "other", "--filter", "price < 3"];
    place.run(&none).refused(2, &["price"]);
    place.write("rows.jsonl", &jsonl(0..3));
    let few = [&["build", "base.u8bin", "third"][..], &ROW_OPTIONS].concat();
    place.run(&few).refused(2, &["3", "600"]);
    assert!(!place.path("third").exists());
    place.write("rows.jsonl", b"{\"a\": 1}\n{\"a\": {}}\n");
    place.run(&few).refused(1, &["rows.jsonl, line 2"]);
}

fn build_of<'a>(base: &'a str, index: &'a str, first_id: &'a str) -> Vec<&'a str> {
    let mut words = SMALL_BUILD.to_vec();
    for word in &mut words {
        match *word {
            "base.u8bin" => *word = base,
            "index" => *word = index,
            _ => {}
        }
    }
    words.extend(["--first-id", first_id]);
    words
}

#[test]
fn several_indexes_are_asked_with_a_filter_as_one() {
    let place = place();
    place.run(&build_of("base.u8bin", "plain", "5000")).done();
    place.write("rows.jsonl", &jsonl(0..ROWS));
    let again = build_of("base.u8bin", "again", "1000");
    place.run(&[&again[..], &ROW_OPTIONS].concat()).done();
    let search = |indexes: &[&str], filter: &str, more: &[&str]| {
        let queries = ["queries.u8bin", "--list", "600", "--filter", filter];
        let words = [&["search"][..], indexes, &queries, more];
        place.run(&words.concat()).done()
    };
    let print = ["--print", "--json"];
    let ids_of = |line: &Value| -> Vec<u64> {
        let ids = line["ids"].as_array().unwrap().iter();
        ids.map(|id| id.as_u64().unwrap()).collect()
    };
    let alone = search(&["index"], FILTER, &print).json_lines();
    let all = search(&["plain", "index", "again"], FILTER, &print).json_lines();
    for (alone, all) in alone.iter().zip(&all) {
        let mut expected: Vec<u64> = ids_of(alone)[..5].to_vec();
        expected.extend(ids_of(alone)[..5].iter().map(|id| id + 1_000));
        let mut found = ids_of(all);
        found.sort_unstable();
        expected.sort_unstable();
        assert_eq!(found, expected);
    }
    let none = search(&["plain", "index"], "not exists price", &print).json_lines();
    let of_plain = |line: &Value| ids_of(line).iter().any(|&id| id >= 5_000);
    let others = |line: &Value| ids_of(line).iter().all(|&id| id >= 5_000 || id % 7 == 0);
    assert!(none.iter().all(|line| of_plain(line) && others(line)));

    let matching = 2 * matching(0..ROWS).len();
    let said = search(&["plain", "index", "again"], FILTER, &["--explain"]).stdout;
    let first = format!("{matching} vectors match; filter strategy ");
    assert!(said.contains(&first), "{said}");
    assert!(
        said.contains(" in 3 indexes") || said.contains(" indexes, before in "),
        "{said}"
    );
    let json = search(&["plain", "index", "again"], FILTER, &["--json"]).json();
    assert_eq!(json["filter"]["matching"], matching, "{json}");
    let indexes = &json["filter"]["indexes"];
    let each = ["within", "before"].map(|way| indexes[way].as_u64().unwrap());
    assert_eq!(each[0] + each[1], 3, "{json}");
}

#[test]
fn attributes_are_changed_without_vectors() {
    let place = place();
    let set = |words: &[&str]| place.run(&[&["set-attributes", "index"][..], words].concat());
    let get = |ids: &[&str]| {
        let words = [&["get", "index", "--attributes"][..], ids].concat();
        place.run(&words).done().json_lines()
    };
    let rows = concat!(
        "{\"id\": 8, \"price\": 7, \"made\": \"1970-01-01T00:00:01Z\", \"more\": [1, null]}\n",
        "{\"price\": 0.5, \"id\": 9, \"note\": \"new\"}\n",
        "{\"id\": 10}\n"
    );
    place.write("set.jsonl", rows.as_bytes());
    let done = set(&[
        "set.jsonl",
        "--payload",
        "more",
        "--times",
        "made",
        "--json",
    ])
    .done();
    let json = done.json();
    assert_eq!(json["set"], 3, "{json}");
    assert_eq!(json["new_columns"], json!({"note": "string"}), "{json}");
    assert_eq!(
        (&json["inserted"], &json["vectors"]),
        (&json!(0), &json!(ROWS))
    );
    let changed = [
        json!({"id": 8, "attributes": {"price": 7.0, "made": 1_000_000}, "payload": [1, null]}),
        json!({"id": 9, "attributes": {"price": 0.5, "note": "new"}}),
        json!({"id": 10, "attributes": {}}),
    ];
    assert_eq!(get(&["8", "9", "10"]), changed);
    assert!(!done.stderr.contains("did you mean"), "{done:?}");
    // A name that resembles the name of a column becomes a new column, with a warning.
    place.write("wrong.jsonl", b"{\"id\": 12, \"prize\": 3}\n");
    for keep in [&["--keep"][..], &[]] {
        let done = set(&[&["wrong.jsonl", "--json"][..], keep].concat()).done();
        let is_new = done.json()["new_columns"] == json!({"prize": "integer"});
        let warned = done
            .stderr
            .contains("warning: column \"prize\" is new; did you mean \"price\"");
        // The second call finds the column in the index.
        assert_eq!(
            (is_new, warned),
            (!keep.is_empty(), !keep.is_empty()),
            "{done:?}"
        );
    }
    // A float cannot represent some of these numbers exactly.
    let beyond = r#"{"k":1e999,"n":12345678901234567890123,"d":1.50}"#;
    let row = format!("{{\"id\": 11, \"more\": {beyond}}}\n");
    place.write("beyond.jsonl", row.as_bytes());
    set(&["beyond.jsonl", "--payload", "more"]).done();
    let said = place.run(&["get", "index", "11", "--attributes"]).done();
    assert!(said.stdout.contains(beyond), "{said:?}");
    place.run(&["compact", "index"]).done();
    assert_eq!(get(&["8", "9", "10"]), changed);

    // New columns are reported, because their names may be misspelt.
    place.write("set.jsonl", b"{\"id\": 1, \"prise\": 3}\n");
    place.write("set.ids", b"11\n");
    let said = set(&["set.jsonl", "--ids", "set.ids"]).done().stdout;
    assert!(
        said.contains("new columns") && said.contains("\"prise\" (integer)"),
        "{said}"
    );
    assert_eq!(get(&["11"])[0]["attributes"], json!({"id": 1, "prise": 3}));
    place.write("set.jsonl", b"{\"key\": 12, \"price\": 3}\n");
    let said = set(&["set.jsonl", "--id", "key", "--compact"])
        .done()
        .stdout;
    assert!(
        !said.contains("new columns") && said.contains("merged"),
        "{said}"
    );
    assert_eq!(get(&["12"])[0]["attributes"], json!({"price": 3.0}));

    place.write(
        "set.jsonl",
        b"{\"id\": 8, \"price\": 8}\n{\"id\": 9, \"more\": [3]}\n",
    );
    set(&["set.jsonl", "--keep", "--payload", "more"]).done();
    let kept = [
        json!({"id": 8, "attributes": {"price": 8.0, "made": 1_000_000}, "payload": [1, null]}),
        json!({"id": 9, "attributes": {"price": 0.5, "note": "new"}, "payload": [3]}),
    ];
    assert_eq!(get(&["8", "9"]), kept);
    place.write(
        "set.jsonl",
        b"{\"id\": 8, \"more\": null, \"other\": null}\n{\"id\": 9, \"note\": null, \"price\": []}\n",
    );
    set(&["set.jsonl", "--keep", "--payload", "more"]).done();
    let cleared = [
        json!({"id": 8, "attributes": {"price": 8.0, "made": 1_000_000}}),
        json!({"id": 9, "attributes": {}, "payload": [3]}),
    ];
    assert_eq!(get(&["8", "9"]), cleared);
    let [eighth, ninth] = cleared;
    let changed = [eighth, ninth, changed[2].clone()];

    for (rows, said) in [
        (
            "{\"id\": 8, \"price\": 1}\n{\"id\": 77777, \"price\": 1}\n",
            "77777",
        ),
        (
            "{\"id\": 8, \"price\": 1}\n{\"id\": 8}\n",
            "the id 8 is given twice",
        ),
        (
            "{\"id\": 8, \"price\": 1}\n{\"id\": 9, \"price\": \"x\"}\n",
            "row 1",
        ),
    ] {
        place.write("set.jsonl", rows.as_bytes());
        set(&["set.jsonl"]).refused(2, &[said]);
    }
    for (rows, said) in [
        ("{\"id\": 8}\n{\"ident\": 9}\n", "missing in \"id\""),
        ("{\"id\": 8}\n{\"id\": -1}\n", "-1 in \"id\""),
        ("{\"id\": 8}\n[9]\n", "a JSON object"),
    ] {
        place.write("set.jsonl", rows.as_bytes());
        set(&["set.jsonl"]).refused(1, &["set.jsonl, line 2", said]);
    }
    place.write("set.jsonl", b"{}\n{}\n");
    set(&["set.jsonl", "--ids", "set.ids"]).refused(2, &["number of ids is 1; there are 2 rows"]);
    set(&["set.jsonl", "--id", "key", "--ids", "set.ids"]).refused(2, &["--ids", "--id"]);
    set(&["missing.jsonl"]).refused(1, &["missing.jsonl"]);
    place
        .run(&["set-atributes", "index", "set.jsonl"])
        .refused(2, &["set-attributes"]);
    assert_eq!(get(&["8", "9", "10"]), changed);
    place.run(&["verify", "index"]).done();
}

#[test]
fn what_matches_is_deleted() {
    let place = place();
    let delete = |words: &[&str]| place.run(&[&["delete", "index"][..], words].concat());
    let count = |filter: &str| {
        let ran = place.run(&["count", "index", "--filter", filter]);
        ran.done().stdout
    };
    let wanted = matching(0..ROWS).len();
    for (words, said) in [
        (&["--filter", "prize < 3"][..], "did you mean \"price\""),
        (&["--filter", "price <"], "character 8"),
        (&["--filter", FILTER, "gone.ids"], "--filter"),
        (&[], "--filter"),
        (&["--fliter", FILTER], "--filter"),
    ] {
        delete(words).refused(2, &[said]);
    }
    assert_eq!(count(FILTER), format!("{wanted}\n"));
    let json = delete(&["--filter", FILTER, "--json"]).done().json();
    assert_eq!(json["deleted"], wanted, "{json}");
    assert_eq!(json["vectors"], ROWS - wanted, "{json}");
    assert_eq!(count(FILTER), "0\n");
    let said = delete(&["--filter", FILTER]).done().stdout;
    assert!(said.contains("nothing: no vector matches"), "{said}");
    let said = delete(&["--filter", "price > 100", "--compact"])
        .done()
        .stdout;
    assert!(
        said.contains("deleted") && said.contains("merged"),
        "{said}"
    );
    assert_eq!(count("price > 100"), "0\n");
    place.run(&["verify", "index"]).done();
}

pub fn wait(child: &mut std::process::Child, mut met: impl FnMut() -> bool) -> bool {
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(60) {
        if met() {
            return true;
        }
        if child.try_wait().unwrap().is_some() {
            return met();
        }
        std::thread::sleep(Duration::from_micros(200));
    }
    false
}

fn number_before(text: &str, words: &str) -> usize {
    let before = &text[..text.find(words).unwrap()];
    let digits = before.rsplit(|c: char| !c.is_ascii_digit()).next();
    digits.unwrap().parse().unwrap()
}

fn log_bytes(index: &std::path::Path) -> u64 {
    let files = std::fs::read_dir(index).unwrap().filter_map(Result::ok);
    let logs = files.filter(|file| file.file_name().to_string_lossy().starts_with("log-"));
    logs.filter_map(|log| log.metadata().ok())
        .map(|log| log.len())
        .sum()
}

/// Interrupts the command when the log has grown. If the signal was too late, tries again.
#[cfg(unix)]
fn interrupted(place: &Place, words: &[&str], before: impl Fn()) -> String {
    let index = place.path("large");
    for _ in 0..20 {
        before();
        let logged = log_bytes(&index);
        // The program that kills starts before the command. If it started later, the kill could be
        // too late.
        let mut kills = std::process::Command::new("sh")
            .args(["-c", "read id && kill -TERM $id"])
            .stdin(Stdio::piped())
            // If the command has ended, the kill fails.
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut child = place
            .command(words)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        wait(&mut child, || log_bytes(&index) > logged);
        writeln!(kills.stdin.take().unwrap(), "{}", child.id()).unwrap();
        let _ = kills.wait();
        let output = child.wait_with_output().unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        if !output.status.success() && !stderr.contains("the command was complete") {
            // A signal ended the command.
            assert_eq!(output.status.code(), None, "{stderr}");
            return stderr;
        }
    }
    panic!("{words:?}: no kill hit the middle of the command");
}

#[cfg(unix)]
#[test]
fn one_that_is_interrupted_says_how_much_is_done() {
    let place = Place::new();
    let many = 3_000;
    place.write("many.u8bin", &u8s(many, DIM, 3));
    place.run(&build_of("many.u8bin", "large", "0")).done();
    let payload = "x".repeat(8_000);
    let rows: Vec<String> = (0..many)
        .map(|id| json!({"id": id, "old": true, "more": payload}).to_string())
        .collect();
    place.write("set.jsonl", rows.join("\n").as_bytes());
    let count = || -> usize {
        let ran = place.run(&["count", "large", "--filter", "old == true"]);
        ran.done().stdout.trim().parse().unwrap()
    };
    let set = [
        "set-attributes",
        "large",
        "set.jsonl",
        "--payload",
        "more",
        "--durability",
        "always",
    ];
    place.write("none.jsonl", "{}\n".repeat(many).as_bytes());
    let ids = lines(0..many as u64);
    place.write("all.ids", &ids);
    let said = interrupted(&place, &set, || {
        let none = ["set-attributes", "large", "none.jsonl", "--ids", "all.ids"];
        place.run(&none).done();
    });
    assert!(said.contains("interrupted; the first "), "{said}");
    assert!(
        said.contains("are set, and stay so. Set the others"),
        "{said}"
    );
    let done = number_before(&said, " of 3000 rows are set");
    assert!(done > 0 && done < many, "{said}");
    assert_eq!(count(), done);

    let delete = [
        "delete",
        "large",
        "--filter",
        "old == true",
        "--durability",
        "always",
    ];
    let said = interrupted(&place, &delete, || {
        let upsert = [
            "insert",
            "large",
            "many.u8bin",
            "--ids",
            "all.ids",
            "--upsert",
        ];
        let rows = ["--attributes", "set.jsonl", "--payload", "more"];
        place.run(&[&upsert[..], &rows].concat()).done();
    });
    let gone = number_before(&said, " of the 3000 vectors that matched are deleted");
    assert!(gone > 0 && gone < many, "{said}");
    assert!(
        said.contains("Delete by the filter again for the others"),
        "{said}"
    );
    assert_eq!(count(), many - gone);
    place.run(&["verify", "large"]).done();
}

#[test]
fn a_search_says_how_it_found_what_matches() {
    let place = place();
    let search = ["search", "index", "queries.u8bin", "--filter", FILTER];
    let said = place.run(&[&search[..], &["--explain"]].concat()).done();
    let matching = matching(0..ROWS).len();
    assert!(
        said.stdout
            .contains(&format!("{matching} vectors match; filter strategy ")),
        "{}",
        said.stdout
    );
    for words in [
        "reads of columns",
        "within: expected to cost as much as",
        "before: expected to cost as much as",
    ] {
        assert!(said.stdout.contains(words), "{}", said.stdout);
    }
    for way in ["within", "before"] {
        let json = place
            .run(&[&search[..], &["--way", way, "--json"]].concat())
            .done()
            .json();
        assert_eq!(json["filter"]["way"], way, "{json}");
        assert_eq!(json["filter"]["matching"], matching, "{json}");
        assert!(
            json["filter"]["estimates"][way].as_f64().unwrap() > 0.0,
            "{json}"
        );
    }
    let clusters = ["build", "base.u8bin", "clusters", "--preset", "spann"];
    place.run(&[&clusters[..], &ROW_OPTIONS].concat()).done();
    for (index, words) in [
        ("index", ", with a list size of up to "),
        ("clusters", " probes\n"),
    ] {
        let search = ["search", index, "queries.u8bin", "--filter", FILTER];
        let within = ["--explain", "--way", "within"];
        let said = place.run(&[&search[..], &within].concat()).done().stdout;
        assert!(said.contains(words), "{said}");
        assert!(
            !said.contains("up to") || !said.contains(" matches\n"),
            "{said}"
        );
    }
    let plain = place.run(&["search", "index", "queries.u8bin", "--json"]);
    assert!(plain.done().json().get("filter").is_none());
    place
        .run(&["search", "index", "queries.u8bin", "--explain"])
        .refused(2, &["--filter"]);
}

#[test]
fn what_is_within_a_distance_and_what_is_like_an_id_is_printed() {
    let place = place();
    let base = u8s(ROWS, DIM, 1);
    let row = |id: u64| &base[8 + id as usize * DIM..][..DIM];
    let distance = |a: u64, b: u64| -> i64 {
        let each = row(a).iter().zip(row(b));
        each.map(|(&a, &b)| (i64::from(a) - i64::from(b)).pow(2))
            .sum()
    };
    let mut others: Vec<u64> = (0..ROWS as u64).filter(|&id| id != 8).collect();
    others.sort_by_key(|&id| (distance(8, id), id));
    let ids_of = |line: &Value| -> Vec<u64> {
        let ids = line["ids"].as_array().unwrap().iter();
        ids.map(|id| id.as_u64().unwrap()).collect()
    };
    let like = ["search", "index", "--like", "8", "--json", "--list", "300"];
    let found = place.run(&like).done().json_lines();
    assert_eq!(ids_of(&found[0]), others[..10]);

    let within = distance(8, others[19]).to_string();
    let range = [&like[..], &["--within", &within]].concat();
    let found = place.run(&range).done().json_lines();
    let wanted: Vec<u64> = others
        .iter()
        .copied()
        .filter(|&id| distance(8, id) <= within.parse().unwrap())
        .collect();
    assert_eq!(ids_of(&found[0]), wanted);
    assert_eq!(found[0]["complete"], false);
    let filtered = [&range[..], &["--filter", FILTER]].concat();
    let found = place.run(&filtered).done().json_lines();
    let matching = matching(wanted.iter().map(|&id| id as usize));
    assert_eq!(ids_of(&found[0]), matching);

    // A walk cannot prove that no vector is within distance -1.
    let none = ["search", "index", "queries.u8bin", "--within", "-1"];
    let table = place.run(&none).done().stdout;
    assert!(
        table.contains("query 0: some vectors within the distance may be missing"),
        "{table}"
    );
    let all = [
        "search",
        "index",
        "queries.u8bin",
        "--within",
        "1e30",
        "--json",
    ];
    let found = place.run(&all).done().json_lines();
    assert_eq!(found.len(), QUERIES);
    assert!(
        found
            .iter()
            .all(|page| ids_of(page).len() == ROWS && page["complete"] == true)
    );

    place
        .run(&["search", "index", "--like", "8,77777"])
        .refused(2, &["77777"]);
    place
        .run(&["search", "index", "--like", "77777", "--within", "3"])
        .refused(2, &["--like 77777", "no vector of the index has this id"]);
    place
        .run(&[
            "search",
            "index",
            "queries.u8bin",
            "--within",
            "3",
            "--truth",
            "t.bin",
        ])
        .refused(2, &["--within", "--truth"]);
}
