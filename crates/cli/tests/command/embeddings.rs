//! Vectors in Parquet files: `--vectors`, `--ids` and `--attributes`.

use parquet::file::properties::WriterProperties;
use serde_json::{Value, json};

use crate::support::{DIM, Place, QUERIES, ROWS, Ran, f32s};
use crate::written::{Column, Lists, Values, file, list, whole};

fn floats(file: &[u8]) -> Vec<Vec<f32>> {
    let rows = file[8..].chunks_exact(4 * DIM);
    let element = |bytes: &[u8]| f32::from_le_bytes(bytes.try_into().unwrap());
    rows.map(|row| row.chunks_exact(4).map(element).collect())
        .collect()
}

/// Every third id is larger than any signed 64-bit number.
fn id(row: usize) -> u64 {
    match row % 3 {
        0 => u64::MAX - 1 - row as u64,
        _ => 7 * row as u64,
    }
}

const ID: &str = "optional int64 id (INTEGER(64,false));";
const TEXT: &str = "optional binary text (UTF8);";

fn put(place: &Place, name: &str, columns: &[Column]) {
    let bytes = file(columns, 256, WriterProperties::builder().build());
    place.write(name, &bytes);
}

/// `docs.parquet` has the same rows as `base.fbin`, `ids` and `docs.jsonl` together.
fn documents() -> Place {
    let place = Place::new();
    let base = f32s(ROWS, DIM, 1, None);
    let queries = f32s(QUERIES, DIM, 2, None);
    let vectors = Values::Floats(whole(&floats(&base)));
    let ids = Values::Longs((0..ROWS).map(|row| Some(id(row).cast_signed())).collect());
    let text = |row: usize| (!row.is_multiple_of(7)).then(|| format!("{{\"row\": {row}}}"));
    let texts = Values::Texts((0..ROWS).map(text).collect());
    let years = Values::Integers((0..ROWS).map(|row| Some(1990 + row as i32 % 40)).collect());
    let embedding = list("embedding", "float element");
    let columns = [
        ("optional int32 year;", years),
        (embedding.as_str(), vectors),
        (ID, ids),
        (TEXT, texts),
    ];
    put(&place, "docs.parquet", &columns);
    place.write("base.fbin", &base);
    place.write("queries.fbin", &queries);
    let lines = |line: &dyn Fn(usize) -> String| (0..ROWS).map(line).collect::<String>();
    place.write("ids", lines(&|row| format!("{}\n", id(row))).as_bytes());
    let row = |row: usize| match text(row) {
        Some(text) => json!({"year": 1990 + row % 40, "text": text}),
        None => json!({"year": 1990 + row % 40}),
    };
    place.write(
        "docs.jsonl",
        lines(&|at| row(at).to_string() + "\n").as_bytes(),
    );
    place
}

fn build(place: &Place, base: &str, index: &str, options: &[&str]) -> Ran {
    let words = ["build", base, index, "--degree", "16", "--build-list", "32"];
    place.run(&[&words[..], options].concat())
}

fn contents(place: &Place, index: &str) -> (Vec<Value>, Vec<Value>) {
    let get = |option: &str| place.run(&["get", index, option]).done().json_lines();
    (get("--json"), get("--attributes"))
}

const ALL: [&str; 6] = [
    "--vectors",
    "embedding",
    "--ids",
    "id",
    "--attributes",
    "docs.parquet",
];

#[test]
fn one_parquet_file_gives_vectors_ids_and_attributes() {
    let place = documents();
    let before = place.names();
    let separate = ["--ids", "ids", "--attributes", "docs.jsonl"];
    build(&place, "base.fbin", "lines", &separate).done();
    build(&place, "docs.parquet", "index", &ALL).done();
    assert_eq!(contents(&place, "index"), contents(&place, "lines"));
    place.run(&["verify", "index"]).done();

    let filter = ["--filter", "year >= 2020", "--print", "--json"];
    let words = [&["search", "index", "queries.fbin"][..], &filter].concat();
    assert_eq!(place.run(&words).done().stdout.lines().count(), QUERIES);
    let count = ["count", "index", "--filter", "year >= 2020"];
    assert_eq!(place.run(&count).done().stdout, format!("{}\n", ROWS / 4));

    let payload = [&ALL[..], &["--payload", "text"]].concat();
    build(&place, "docs.parquet", "texts", &payload).done();
    let id = id(1).to_string();
    let printed = place.run(&["get", "texts", &id, "--attributes"]).done();
    let expected = json!({"id": 7, "attributes": {"year": 1991}, "payload": "{\"row\": 1}"});
    assert_eq!(printed.json_lines(), [expected]);

    let elsewhere = [
        "--vectors",
        "embedding",
        "--first-id",
        "5",
        "--attributes",
        "docs.jsonl",
        "--without",
        "text",
    ];
    build(&place, "docs.parquet", "counted", &elsewhere).done();
    let (vectors, rows) = contents(&place, "counted");
    assert_eq!(vectors.len(), ROWS);
    assert_eq!(rows[0], json!({"id": 5, "attributes": {"year": 1990}}));
    let mut left = place.names();
    left.retain(|name| !["lines", "index", "texts", "counted"].contains(&name.as_str()));
    assert_eq!(left, before);
}

#[test]
fn rows_of_a_parquet_file_are_inserted_and_replaced() {
    let place = documents();
    let create = ["create", "index", "--dimension", "16"];
    place.run(&create).done();
    let insert = ["insert", "index", "docs.parquet"];
    place.run(&[&insert[..], &ALL].concat()).done();
    build(&place, "docs.parquet", "built", &ALL).done();
    assert_eq!(contents(&place, "index"), contents(&place, "built"));
    place
        .run(&[&insert[..], &ALL].concat())
        .refused(2, &["id", "--resume"]);
    let without = ["--without", "text", "--upsert"];
    place.run(&[&insert[..], &ALL, &without].concat()).done();
    let get = |id: u64| {
        let printed = place.run(&["get", "index", "--attributes", &id.to_string()]);
        printed.done().json_lines()
    };
    assert_eq!(get(id(1)), [json!({"id": 7, "attributes": {"year": 1991}})]);
    place
        .run(&["create", "counted", "--dimension", "16"])
        .done();
    let counted = [
        "insert",
        "counted",
        "docs.parquet",
        "--vectors",
        "embedding",
    ];
    place.run(&counted).done();
    let again = place.run(&[&counted[..], &["--resume"]].concat()).done();
    assert!(again.stdout.contains("600"), "{again:?}");
    assert_eq!(contents(&place, "counted").0.len(), ROWS);
}

#[test]
fn elements_of_every_kind_are_vectors() {
    let place = Place::new();
    let numbers: Vec<Vec<i32>> = (0..9).map(|row| vec![row, -row, 3, 100 - row]).collect();
    let make = |each: &dyn Fn(i32) -> f64| -> Vec<Vec<f64>> {
        let row = |row: &Vec<i32>| row.iter().map(|&value| each(value)).collect();
        numbers.iter().map(row).collect()
    };
    let doubles = make(&|value| f64::from(value) + 0.1);
    let unsigned: Vec<Vec<i32>> = numbers
        .iter()
        .map(|row| row.iter().map(|v| v & 255).collect())
        .collect();
    let halves: Vec<Vec<u16>> = (0..9).map(|row| vec![0x3c00 + row, 0xc000, 0, 1]).collect();
    let cases = [
        (
            "double",
            "double element",
            Values::Doubles(whole(&doubles)),
            "f32",
        ),
        (
            "half",
            "fixed_len_byte_array(2) element (FLOAT16)",
            Values::Halves(whole(&halves)),
            "f16",
        ),
        (
            "signed",
            "int32 element (INTEGER(8,true))",
            Values::Bytes(whole(&numbers)),
            "i8",
        ),
        (
            "unsigned",
            "int32 element (INTEGER(8,false))",
            Values::Bytes(whole(&unsigned)),
            "u8",
        ),
    ];
    for (name, item, values, element) in cases {
        put(&place, "some.parquet", &[(&list("v", item), values)]);
        build(&place, "some.parquet", name, &["--vectors", "v"]).done();
        let stats = place.run(&["stats", name, "--json"]).done().stdout;
        assert!(stats.contains(&format!("\"{element}\"")), "{name}: {stats}");
        let printed = place.run(&["get", name, "8", "--json"]).done().json_lines();
        let expected = match name {
            "double" => [8.1, -7.9, 3.1, 92.1],
            "half" => [1.0078125, -2.0, 0.0, 5.9604645e-8],
            "signed" => [8.0, -8.0, 3.0, 92.0],
            _ => [8.0, 248.0, 3.0, 92.0],
        };
        let found = printed[0]["vector"].as_array().unwrap().iter();
        let found: Vec<f32> = found.map(|value| value.as_f64().unwrap() as f32).collect();
        assert_eq!(found, expected, "{name}");
    }
}

type Row = Option<Vec<Option<f32>>>;

fn with(row: Row) -> Lists<f32> {
    let mut rows = whole(&vec![vec![1.0, 2.0]; 700]);
    rows[400] = row;
    rows
}

#[test]
fn a_row_that_is_no_vector_is_refused_by_its_number() {
    let place = Place::new();
    let vectors = list("v", "float element");
    let ids = |wrong: Option<i64>| {
        let mut ids: Vec<Option<i64>> = (0..700).map(Some).collect();
        ids[500] = wrong;
        Values::Longs(ids)
    };
    let cases: [(Row, &[&str]); 5] = [
        (None, &["row 400, column \"v\" is null"]),
        (Some(vec![]), &["row 400", "an empty list"]),
        (
            Some(vec![Some(1.0), None]),
            &["row 400", "a list that contains a null"],
        ),
        (
            Some(vec![Some(1.0); 3]),
            &["row 400", "a list of 3 numbers", "2, as in row 0"],
        ),
        (
            Some(vec![Some(1.0), Some(f32::NAN)]),
            &["row 400, column 1 is NaN"],
        ),
    ];
    for (row, words) in cases {
        put(
            &place,
            "some.parquet",
            &[(&vectors, Values::Floats(with(row)))],
        );
        let options = ["--vectors", "v"];
        build(&place, "some.parquet", "index", &options).refused(1, words);
        assert!(!place.path("index").exists());
    }
    let right = Values::Floats(whole(&vec![vec![1.0, 2.0]; 700]));
    let cases: [(&str, Option<i64>, &[&str]); 4] = [
        (ID, None, &["row 500, column \"id\" is null"]),
        (ID, Some(-1), &["row 500", "18446744073709551615", "an id"]),
        ("optional int64 id;", Some(-2), &["row 500", "-2", "an id"]),
        (
            "optional int64 id (TIMESTAMP_MILLIS);",
            Some(1),
            &["\"id\" is of type timestamp", "--ids"],
        ),
    ];
    for (kind, wrong, words) in cases {
        let columns = [(vectors.as_str(), right.clone()), (kind, ids(wrong))];
        put(&place, "some.parquet", &columns);
        let options = ["--vectors", "v", "--ids", "id"];
        build(&place, "some.parquet", "index", &options).refused(1, words);
    }
    let wide = list("v", "double element");
    let values = Values::Doubles(whole(&[vec![1.0, 2.0], vec![1.0, 1e39]]));
    put(&place, "some.parquet", &[(&wide, values)]);
    build(&place, "some.parquet", "index", &["--vectors", "v"])
        .refused(1, &["row 1", "a list with 1e39 in it", "f32"]);
    put(
        &place,
        "some.parquet",
        &[(&vectors, Values::Floats(Vec::new()))],
    );
    build(&place, "some.parquet", "index", &["--vectors", "v"])
        .refused(1, &["no rows", "stratann create"]);
    // An insert without rows succeeds, because a nightly insert may have none.
    let create = ["create", "index", "-d", "2"];
    place.run(&create).done();
    let insert = ["insert", "index", "some.parquet", "--vectors", "v"];
    let nightly = place.run(&insert).done();
    let said = "some.parquet has no rows; nothing was inserted";
    assert!(nightly.stderr.contains(said), "{}", nightly.stderr);
    let json = place
        .run(&[&insert[..], &["--json"]].concat())
        .done()
        .json();
    assert_eq!(json["inserted"], 0);
}

#[test]
fn options_that_fit_no_column_are_told_with_those_that_do() {
    let place = documents();
    let refused = |options: &[&str], status: i32, words: &[&str]| {
        build(&place, "docs.parquet", "index", options).refused(status, words);
    };
    refused(
        &[],
        2,
        &["docs.parquet is a Parquet file", "--vectors: \"embedding\""],
    );
    let there = "has \"year\", \"embedding\", \"id\", \"text\"";
    refused(
        &["--vectors", "vector"],
        2,
        &["--vectors names \"vector\"", there],
    );
    refused(
        &["--vectors", "text"],
        1,
        &["\"text\" is of type string", "a vector is a list"],
    );
    refused(
        &["--vectors", "embedding", "--ids", "ids"],
        2,
        &["--ids names \"ids\"", there],
    );
    refused(
        &["--vectors", "embedding", "--ids", "embedding"],
        2,
        &["--vectors and --ids"],
    );
    let twice = ["--payload", "text", "--without", "year,text"];
    refused(
        &[&ALL[..], &twice].concat(),
        2,
        &["--payload and --without both name column \"text\""],
    );
    let none = [&ALL[..], &["--without", "texts"]].concat();
    refused(&none, 2, &["--without names \"texts\"", there]);
    let all = [&ALL[..], &["--without", "year,text"]].concat();
    refused(&all, 1, &["no columns for attributes"]);
    build(&place, "base.fbin", "index", &["--vectors", "embedding"]).refused(
        2,
        &["--vectors names a column of a Parquet file, and base.fbin is no Parquet file. Remove --vectors"],
    );
    build(&place, "not-there.parquet", "index", &[]).refused(1, &["Check the path"]);
    build(
        &place,
        "not-there.fbin",
        "index",
        &["--vectors", "embedding"],
    )
    .refused(1, &["Check the path"]);
    let near = "--vectors names \"Embeding\", which is no column; did you mean \"embedding\"?";
    refused(&["--vectors", "Embeding"], 2, &[near, there]);
    let strings = ["--vectors", "embedding", "--ids", "text"];
    refused(
        &strings,
        1,
        &[
            "\"text\" is of type string",
            "or leave --ids out",
            "Documents in Python",
        ],
    );
    let insert = ["insert", "index", "docs.parquet"];
    place.run(&["create", "index", "--dimension", "16"]).done();
    place.run(&insert).refused(2, &["--vectors: \"embedding\""]);
}

/// The last row of the file is no vector. Other checks fail first, so no error mentions this row.
#[test]
fn a_file_is_copied_after_all_else_was_checked() {
    let place = documents();
    let mut rows = whole(&vec![vec![0.5; DIM]; 300]);
    rows[299] = None;
    let vectors = list("v", "float element");
    let years = Values::Integers(vec![Some(1990); 300]);
    let columns = [
        (vectors.as_str(), Values::Floats(rows)),
        ("optional int32 year;", years),
    ];
    put(&place, "wrong.parquet", &columns);
    build(&place, "base.fbin", "index", &[]).done();
    place.run(&["create", "wide", "--dimension", "17"]).done();
    let vectors = ["--vectors", "v"];
    let refused = |words: &[&str], status: i32, said: &[&str]| {
        let ran = place.run(&[words, &vectors].concat()).refused(status, said);
        assert!(!ran.stderr.contains("299"), "{ran:?}");
    };
    refused(
        &["build", "wrong.parquet", "index"],
        2,
        &["holds an index already"],
    );
    let code = ["build", "wrong.parquet", "new", "--code-bytes", "99"];
    refused(&code, 2, &["code", "99"]);
    let place_of = ["build", "wrong.parquet", "new", "--place", "nothing=memory"];
    refused(&place_of, 2, &["nothing"]);
    refused(
        &["plan", "wrong.parquet", "--code-bytes", "99"],
        2,
        &["code", "99"],
    );
    refused(&["insert", "no-index", "wrong.parquet"], 1, &["no-index"]);
    refused(
        &["insert", "wide", "wrong.parquet"],
        2,
        &["16", "the index has dimension 17"],
    );
    refused(&["search", "no-index", "wrong.parquet"], 1, &["no-index"]);
    let narrow = ["16", "the index has dimension 17"];
    refused(&["search", "wide", "wrong.parquet"], 2, &narrow);
    refused(&["calibrate", "wide", "wrong.parquet"], 2, &narrow);
    refused(
        &["search", "wide", "wrong.parquet", "--within", "1"],
        2,
        &narrow,
    );
    let k = ["search", "index", "wrong.parquet", "-k", "70000"];
    refused(&k, 2, &["70000"]);
    let filter = ["search", "index", "wrong.parquet", "--filter", "year > 3"];
    refused(&filter, 2, &["no column \"year\"", "set-attributes"]);
    let exact = [
        "search",
        "index",
        "wrong.parquet",
        "--truth",
        "no-truth.bin",
    ];
    refused(&exact, 1, &["no-truth.bin"]);
    let truth = |base: &'static str, queries: &'static str, more: [&'static str; 2]| {
        [&["truth", base, queries, "truth.bin"][..], &more].concat()
    };
    place.write("narrow.fbin", &f32s(3, 8, 1, None));
    let ten = ["-k", "10"];
    refused(
        &truth("wrong.parquet", "narrow.fbin", ten),
        2,
        &["dimension"],
    );
    refused(
        &truth("wrong.parquet", "base.fbin", ["-k", "70000"]),
        2,
        &["k is 70000"],
    );
    place.write("three", b"1 2 3");
    refused(
        &truth("base.fbin", "wrong.parquet", ["--ids", "three"]),
        2,
        &["has 3 ids"],
    );
    let beside = ["build", "wrong.parquet", "new", "--attributes"];
    let other = |name: &'static str| [&beside[..], &[name]].concat();
    refused(
        &other("docs.jsonl"),
        2,
        &["number of rows of docs.jsonl is 600", "300 vectors"],
    );
    let second = [&other("docs.parquet")[..], &["--without", "embedding"]].concat();
    refused(&second, 2, &["600 rows", "300"]);
    refused(&other("no.jsonl"), 1, &["no.jsonl"]);
    let set = ["set-attributes", "no-index", "wrong.parquet"];
    place.run(&set).refused(1, &["no-index"]);
    let attributes = ["--attributes", "wrong.parquet", "--without", "v"];
    let words = [&["insert", "wide", "base.fbin"][..], &attributes].concat();
    place
        .run(&words)
        .refused(2, &["16", "the index has dimension 17"]);
    assert!(!place.path("new").exists());
    place
        .run(&["build", "wrong.parquet", "new", "--vectors", "v"])
        .refused(1, &["row 299"]);
}

#[test]
fn queries_and_exact_answers_come_from_a_parquet_file_too() {
    let place = documents();
    build(&place, "base.fbin", "index", &[]).done();
    let vectors = ["--vectors", "embedding"];
    let asked = f32s(QUERIES, DIM, 2, None);
    let embedding = list("embedding", "float element");
    let column = (embedding.as_str(), Values::Floats(whole(&floats(&asked))));
    put(&place, "queries.parquet", &[column]);
    let truth = |base: &str, queries: &str, out: &str, options: &[&str]| {
        let words = ["truth", base, queries, out, "-k", "10"];
        place.run(&[&words[..], options].concat())
    };
    truth("base.fbin", "queries.fbin", "lines.bin", &[]).done();
    let of_column = [&vectors[..], &["--ids", "id"]].concat();
    truth(
        "docs.parquet",
        "queries.parquet",
        "column.bin64",
        &of_column,
    )
    .done();
    truth("base.fbin", "queries.fbin", "file.bin64", &["--ids", "ids"]).done();
    let bytes = |name: &str| std::fs::read(place.path(name)).unwrap();
    assert_eq!(bytes("column.bin64"), bytes("file.bin64"));
    let no_ids = [&vectors[..], &["--ids", "ids"]].concat();
    truth("docs.parquet", "queries.parquet", "no.bin64", &no_ids)
        .refused(2, &["--ids names \"ids\"", "did you mean \"id\"?"]);
    truth("docs.parquet", "queries.parquet", "both.bin", &vectors).done();
    truth("base.fbin", "queries.parquet", "queries.bin", &vectors).done();
    let read = |name: &str| std::fs::read(place.path(name)).unwrap();
    assert_eq!(read("both.bin"), read("lines.bin"));
    assert_eq!(read("queries.bin"), read("lines.bin"));
    let search = |queries: &str, options: &[&str]| {
        let words = ["search", "index", queries, "--strategy", "best-first"];
        let options = [&words[..], &["--print", "--json"], options].concat();
        place.run(&options)
    };
    let found = search("queries.parquet", &vectors).done().stdout;
    assert_eq!(found, search("queries.fbin", &[]).done().stdout);
    let within = ["--within", "1"];
    let near = search("queries.parquet", &[&vectors[..], &within].concat());
    assert_eq!(
        near.done().stdout,
        search("queries.fbin", &within).done().stdout
    );
    let calibrate = ["calibrate", "index", "docs.parquet", "--json"];
    place.run(&[&calibrate[..], &vectors].concat()).done();

    let none = "--vectors names a column of a Parquet file, and";
    search("queries.fbin", &vectors).refused(
        2,
        &[none, "queries.fbin is no Parquet file. Remove --vectors"],
    );
    truth("base.fbin", "queries.fbin", "no.bin", &vectors).refused(
        2,
        &[
            none,
            "base.fbin and queries.fbin are no Parquet files. Remove --vectors",
        ],
    );
    search("queries.parquet", &[]).refused(2, &["--vectors: \"embedding\""]);
    place
        .run(&calibrate)
        .refused(2, &["--vectors: \"embedding\""]);
    assert!(!place.path("no.bin").exists());
}

#[test]
fn a_plan_has_the_ids_and_the_copy_of_a_file() {
    let place = documents();
    let plan = |words: &[&str]| {
        let ran = place.run(&[&["plan", "--json"][..], words].concat());
        ran.done().json()
    };
    let lines = plan(&["base.fbin", "--ids", "ids", "--attributes", "docs.jsonl"]);
    let file = plan(&[&["docs.parquet"][..], &ALL].concat());
    let lines_bytes = std::fs::metadata(place.path("docs.jsonl")).unwrap().len();
    let vectors = (ROWS * DIM * 4) as u64;
    let scratch = |plan: &Value| plan["scratch"].as_u64().unwrap();
    let copied = scratch(&file) - scratch(&lines);
    // The copy has a null where a JSON line lacks the key.
    assert!(copied > vectors + lines_bytes, "{copied}");
    assert!(copied < vectors + 2 * lines_bytes, "{copied}");
    assert_eq!(file["storage"], lines["storage"]);
    assert_eq!(file["attributes"], lines["attributes"]);
}

#[test]
fn all_columns_that_are_no_attributes_are_named_and_can_be_left_out() {
    let place = documents();
    let flags = Values::Booleans(vec![Some(true), None, Some(false)]);
    let lists = Values::Floats(whole(&[vec![0.5], vec![1.5], vec![2.5]]));
    let costs = Values::Integers(vec![Some(5), Some(6), Some(7)]);
    let (first, second) = (list("near", "float element"), list("v w", "float element"));
    let second = second.replace("v w", "far");
    let columns = [
        ("optional boolean flag;", flags),
        (first.as_str(), lists.clone()),
        ("optional int32 cost (DECIMAL(9,2));", costs),
        (second.as_str(), lists),
    ];
    put(&place, "some.parquet", &columns);
    place.write("three.fbin", &f32s(3, DIM, 5, None));
    let attributes = ["--attributes", "some.parquet"];
    build(&place, "three.fbin", "index", &attributes).refused(
        1,
        &[
            "column \"near\" is of type list of float: a list may have only strings or integers",
            "column \"cost\" is of type decimal: a float cannot store its digits exactly",
            "column \"far\" is of type list of float",
            "--without near,cost,far",
            "--payload",
        ],
    );
    let without = ["--without", "near,far,cost"];
    build(
        &place,
        "three.fbin",
        "index",
        &[&attributes[..], &without].concat(),
    )
    .done();
    let get = |id: &str| {
        place
            .run(&["get", "index", "--attributes", id])
            .done()
            .json_lines()
    };
    assert_eq!(get("0"), [json!({"id": 0, "attributes": {"flag": true}})]);
    place.write("keys", b"0 1 2");
    let set = ["set-attributes", "index", "some.parquet", "--ids", "keys"];
    place.run(&set).refused(1, &["--without near,cost,far"]);
    let some = ["--without", "near", "--payload", "cost"];
    place
        .run(&[&set[..], &some].concat())
        .refused(1, &["--without far, or convert"]);
    place.run(&[&set[..], &without].concat()).done();
    place.write("some.jsonl", b"{\"id\": 1, \"a\": 1, \"b\": {\"c\": 2}}\n");
    let set = ["set-attributes", "index", "some.jsonl", "--without", "b"];
    place.run(&set).done();
    assert_eq!(get("1"), [json!({"id": 1, "attributes": {"a": 1}})]);
}

#[test]
fn ids_without_a_sign_name_the_rows_whose_attributes_change() {
    let place = documents();
    build(&place, "docs.parquet", "index", &ALL).done();
    let ids = [id(0), id(1), id(3)].map(|id| Some(id.cast_signed()));
    let columns = [
        (ID, Values::Longs(ids.to_vec())),
        (
            "optional int32 year;",
            Values::Integers(vec![Some(1), Some(2), Some(3)]),
        ),
    ];
    put(&place, "set.parquet", &columns);
    place
        .run(&["set-attributes", "index", "set.parquet"])
        .done();
    let count = ["count", "index", "--filter", "year < 10"];
    assert_eq!(place.run(&count).done().stdout, "3\n");
    let get = ["get", "index", "--attributes", "18446744073709551614"];
    let expected = json!({"id": u64::MAX - 1, "attributes": {"year": 1}});
    assert_eq!(place.run(&get).done().json_lines(), [expected]);
}

fn nested(groups: usize) -> Vec<u8> {
    let group = [0x35, 0, 0x18, 1, b'a', 0x15, 2, 0];
    let leaf = [0x15, 2, 0x25, 0, 0x18, 1, b'a', 0];
    let mut elements = groups + 1;
    let mut footer = vec![0x15, 2, 0x19, 0xfc];
    while elements >= 0x80 {
        footer.push(elements as u8 | 0x80);
        elements >>= 7;
    }
    footer.push(elements as u8);
    footer.extend(group.repeat(groups));
    footer.extend(leaf);
    footer.extend([0x16, 0, 0x19, 0x0c, 0]);
    let length = (footer.len() as u32).to_le_bytes();
    [b"PAR1", &footer[..], &length, b"PAR1"].concat()
}

#[test]
fn a_schema_without_a_bottom_ends_in_an_error() {
    let place = Place::new();
    let words: [(usize, &[&str]); 3] = [
        (1, &["0 rows; it must have 600"]),
        (60, &["column \"a\" is of type struct"]),
        (
            200_000,
            &["not a whole Parquet file", "nested in more than 64 others"],
        ),
    ];
    for (groups, words) in words {
        place.write("deep.parquet", &nested(groups));
        let status = if groups == 1 { 2 } else { 1 };
        build(
            &place,
            "base.u8bin",
            "index",
            &["--attributes", "deep.parquet"],
        )
        .refused(status, words);
    }
}
