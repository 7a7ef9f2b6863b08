//! Attributes in Parquet files, which `parquet/write.py` wrote.

use std::path::Path;

use serde_json::{Value, json};

use crate::support::{Place, ROWS, SMALL_BUILD, u8s};
use crate::update::lines;

fn given(place: &Place, names: &[&str]) {
    let folder = Path::new(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/tests/command/parquet"
    ));
    for name in names {
        place.write(name, &std::fs::read(folder.join(name)).unwrap());
    }
}

fn build(place: &Place, index: &str, options: &[&str]) -> crate::support::Ran {
    let mut words = SMALL_BUILD.to_vec();
    words[2] = index;
    place.run(&[&words[..], options].concat())
}

fn rows(place: &Place, index: &str) -> Vec<Value> {
    let printed = place.run(&["get", index, "--attributes"]).done();
    printed.json_lines()
}

#[test]
fn a_parquet_file_gives_what_the_same_rows_in_json_give() {
    let place = Place::new();
    given(&place, &["rows.parquet"]);
    let json: String = (0..ROWS)
        .map(|id| crate::attributes::row(id).to_string() + "\n")
        .collect();
    place.write("rows.jsonl", json.as_bytes());
    let options = [
        "--attributes",
        "rows.jsonl",
        "--payload",
        "more",
        "--times",
        "made",
    ];
    build(&place, "lines", &options).done();
    build(
        &place,
        "index",
        &["--attributes", "rows.parquet", "--payload", "more"],
    )
    .done();
    assert_eq!(rows(&place, "index"), rows(&place, "lines"));
    place.run(&["verify", "index"]).done();
    // Temporary files are removed.
    let left = [
        "base.u8bin",
        "index",
        "lines",
        "queries.u8bin",
        "rows.jsonl",
        "rows.parquet",
    ];
    assert_eq!(place.names(), left);

    // The first bytes of a file, not its name, make it a Parquet file.
    std::fs::rename(place.path("rows.parquet"), place.path("rows")).unwrap();
    let again = ["--attributes", "rows", "--payload", "more", "--overwrite"];
    build(&place, "index", &again).done();
    assert_eq!(rows(&place, "index"), rows(&place, "lines"));
}

#[test]
fn every_type_in_every_compression_is_an_attribute() {
    let place = Place::new();
    place.write("three.u8bin", &u8s(3, 16, 3));
    place
        .run(&["create", "index", "--dimension", "16", "--dtype", "u8"])
        .done();
    let first = json!({
        "boolean": true, "int8": -128, "int16": -32768, "int32": i32::MIN, "int64": i64::MIN,
        "uint8": 0, "uint16": 0, "uint32": 0, "uint64": 0,
        "float16": 1.5, "float32": 0.25, "float64": 1.0,
        "string": "a \"quoted\"\nline", "large": "", "category": "red",
        "date": 1_709_164_800_000_000_i64, "seconds": 1_709_208_000_000_000_i64,
        "milliseconds": 1_709_208_000_123_000_i64, "microseconds": 1_709_208_000_123_456_i64,
        "nanoseconds": 1_709_208_000_123_456_i64,
        "strings": ["p", "q"], "integers": [1, -2],
    });
    let second = json!({
        "boolean": false, "int8": 127, "int16": 32767, "int32": i32::MAX, "int64": i64::MAX,
        "uint8": 255, "uint16": 65535, "uint32": u32::MAX, "uint64": i64::MAX,
        "string": "äö€", "large": "x", "category": "blue",
        "date": -86_400_000_000_i64, "nanoseconds": -1, "integers": [3],
    });
    let forms = ["none", "snappy", "zstd", "gzip", "lz4", "pages2"];
    for (at, form) in forms.iter().enumerate() {
        let file = format!("types.{form}.parquet");
        given(&place, &[&file]);
        place
            .run(&["insert", "index", "three.u8bin", "--attributes", &file])
            .done();
        let ids = [3 * at, 3 * at + 1, 3 * at + 2].map(|id| id.to_string());
        let get = ["get", "index", "--attributes", &ids[0], &ids[1], &ids[2]];
        let printed = place.run(&get).done().stdout;
        // A number that is too large for a float stands for infinity.
        let printed = printed
            .replacen("-1e999", "null", 1)
            .replacen("1e999", "null", 1);
        let mut found: Vec<Value> = (printed.lines())
            .map(|line| serde_json::from_str(line).unwrap())
            .collect();
        for name in ["float16", "float64"] {
            let infinite = found[1]["attributes"].as_object_mut().unwrap().remove(name);
            assert_eq!(infinite, Some(Value::Null), "{printed}");
        }
        assert_eq!(found[0]["attributes"], first, "{form}");
        assert_eq!(found[1]["attributes"], second, "{form}");
        assert_eq!(found[2]["attributes"], json!({}), "{form}");
    }
    let times = "date < '1970-01-01' and nanoseconds < '1970-01-01'";
    let count = place.run(&["count", "index", "--filter", times]).done();
    assert_eq!(count.stdout, format!("{}\n", forms.len()));
}

#[test]
fn attributes_are_set_from_a_file_whose_column_has_the_ids() {
    let place = Place::with_index();
    given(&place, &["set.parquet", "int96.parquet", "json.parquet"]);
    let set = |words: &[&str]| place.run(&[&["set-attributes", "index"][..], words].concat());
    let get = |ids: &[&str]| {
        let words = [&["get", "index", "--attributes"][..], ids].concat();
        place.run(&words).done().json_lines()
    };
    set(&["set.parquet"]).refused(2, &["--id names \"id\"", "\"key\", \"price\", \"note\""]);
    set(&["set.parquet", "--id", "note"])
        .refused(1, &["\"note\" is of type string", "whole numbers"]);
    set(&["set.parquet", "--id", "key"]).done();
    let whole = [
        json!({"id": 8, "attributes": {"price": 7.0, "note": "new"}}),
        json!({"id": 9, "attributes": {}}),
        json!({"id": 10, "attributes": {"note": "x"}}),
    ];
    assert_eq!(get(&["8", "9", "10"]), whole);
    // With `--keep`, a null removes a value, and others stay.
    place.write("more.jsonl", b"{\"id\": 10, \"price\": 1, \"other\": 2}\n");
    set(&["more.jsonl", "--keep"]).done();
    set(&["set.parquet", "--id", "key", "--keep"]).done();
    assert_eq!(
        get(&["10"])[0]["attributes"],
        json!({"note": "x", "other": 2})
    );

    place.write("ids", &lines([1, 2, 3]));
    set(&["int96.parquet", "--ids", "ids"]).done();
    let at = |time: i64| json!({ "at": time });
    assert_eq!(get(&["1"])[0]["attributes"], at(1_709_208_000_123_456));
    assert_eq!(get(&["2"])[0]["attributes"], at(-1));
    // A payload stays unchanged, except for its line ends.
    place.write("ids", &lines([4, 5]));
    set(&["json.parquet", "--ids", "ids", "--payload", "more"]).done();
    let printed = place
        .run(&["get", "index", "4", "--attributes"])
        .done()
        .stdout;
    assert!(printed.contains("{\"k\": 1e400}"), "{printed}");
    assert_eq!(get(&["5"])[0], json!({"id": 5, "attributes": {"a": 2}}));
}

#[test]
fn what_is_wrong_with_a_file_is_told_with_its_column_and_type() {
    let place = Place::new();
    let files = [
        "rows.parquet",
        "decimal.parquet",
        "json.parquet",
        "set.parquet",
        "types.brotli.parquet",
    ];
    given(&place, &files);
    let refused = |file: &str, status: i32, words: &[&str]| {
        let said = build(&place, "index", &["--attributes", file]);
        said.refused(status, &[&[file][..], words].concat());
        assert!(!place.path("index").exists());
    };
    refused(
        "decimal.parquet",
        1,
        &["\"cost\" is of type decimal", "--payload"],
    );
    refused(
        "rows.parquet",
        1,
        &["\"more\" is of type struct", "--payload"],
    );
    refused(
        "json.parquet",
        1,
        &["\"more\" is of type JSON", "--payload"],
    );
    place.write("three.u8bin", &u8s(3, 16, 3));
    let brotli = [
        "build",
        "three.u8bin",
        "index",
        "--attributes",
        "types.brotli.parquet",
    ];
    let words = [
        "compressed with brotli",
        "snappy, gzip, zstd and lz4. Write the file again",
    ];
    place.run(&brotli).refused(1, &words);
    let named = [&brotli[..], &["--payload", "none"]].concat();
    place.run(&named).refused(1, &words);
    refused(
        "set.parquet",
        2,
        &["3", "600, as many as there are vectors"],
    );
    let words = ["--attributes", "set.parquet", "--payload", "notes"];
    build(&place, "index", &words).refused(2, &["--payload names \"notes\"", "\"note\""]);
    let words = ["--attributes", "set.parquet", "--times", "made"];
    build(&place, "index", &words).refused(2, &["--times names \"made\""]);

    refused("not-there.parquet", 1, &["Check the path"]);
    place.write("empty.parquet", b"");
    refused(
        "empty.parquet",
        1,
        &["not a whole Parquet file", "Fetch the file again"],
    );
    place.write("lines.parquet", b"{\"a\": 1}\n");
    refused("lines.parquet", 1, &["not a whole Parquet file"]);
    let whole = std::fs::read(place.path("rows.parquet")).unwrap();
    place.write("cut.parquet", &whole[..whole.len() / 2]);
    refused("cut.parquet", 1, &["not a whole Parquet file"]);
    std::fs::create_dir(place.path("folder.parquet")).unwrap();
    refused("folder.parquet", 1, &["directory"]);
}
