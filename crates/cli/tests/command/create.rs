//! An index without vectors, which a user creates, fills, empties and fills again.

use serde_json::json;

use crate::support::{DIM, Place, ROWS, bin};
use crate::update::lines;

const PRESETS: [&str; 4] = ["stratann", "aisaq", "spann", "distvs"];

fn created(preset: &str) -> Place {
    let place = Place::new();
    let create = ["create", "index", "--dimension", "16", "--dtype", "uint8"];
    let said = place
        .run(&[&create[..], &["--preset", preset]].concat())
        .done();
    assert!(said.stdout.contains("0 of 16 u8"), "{}", said.stdout);
    place
}

fn count(place: &Place) -> usize {
    let counted = place.run(&["count", "index"]).done();
    counted.stdout.trim().parse().unwrap()
}

#[test]
fn an_index_without_vectors_is_asked_filled_emptied_and_filled_again() {
    for preset in PRESETS {
        let place = created(preset);
        assert_eq!(count(&place), 0);
        let search = ["search", "index", "queries.u8bin", "-k", "3", "--json"];
        place.run(&search).done();
        let stats = place.run(&["stats", "index", "--json"]).done().json();
        assert_eq!(
            (stats["vectors"].as_u64(), stats["deleted"].as_u64()),
            (Some(0), Some(0))
        );
        place.run(&["stats", "index"]).done();
        place.run(&["verify", "index"]).done();
        assert_eq!(place.run(&["get", "index", "--list"]).done().stdout, "");
        place.run(&["repair", "index", "--force"]).done();
        place.run(&["compact", "index"]).done();
        let filter = ["search", "index", "queries.u8bin", "--filter", "year > 3"];
        place.run(&filter).refused(2, &["year"]);
        place
            .run(&["calibrate", "index"])
            .refused(2, &["at least one query"]);

        place.run(&["insert", "index", "base.u8bin"]).done();
        assert_eq!(count(&place), ROWS);
        place.write("all", &lines(0..ROWS as u64));
        place.run(&["delete", "index", "all"]).done();
        assert_eq!(count(&place), 0);
        let full = place.run(&["stats", "index", "--json"]).done().json();
        let compacted = place.run(&["compact", "index", "--json"]).done().json();
        assert_eq!(compacted["vectors"], 0, "{compacted}");
        let stats = place.run(&["stats", "index", "--json"]).done().json();
        assert_eq!(
            (&stats["vectors"], &stats["trouble"]),
            (&0.into(), &().into()),
            "{preset}"
        );
        assert!(
            stats["bytes"]["total"].as_u64() <= full["bytes"]["total"].as_u64(),
            "{preset}"
        );
        place.run(&["insert", "index", "base.u8bin"]).done();
        assert_eq!(count(&place), ROWS);
        place.run(&["compact", "index"]).done();
        place.run(&["verify", "index"]).done();
        // New ids follow the largest id that the index ever had.
        let ids = place.run(&["get", "index", "--list"]).done().stdout;
        assert_eq!(ids.lines().next(), Some(&*ROWS.to_string()), "{preset}");
    }
}

#[test]
fn an_index_that_is_there_may_be_left_as_it_is() {
    let place = Place::new();
    let words = ["create", "index", "-d", "16", "--dtype", "u8", "--exist-ok"];
    let created = place.run(&words).done();
    assert!(created.stdout.contains("0 of 16 u8"), "{}", created.stdout);
    place.run(&["insert", "index", "base.u8bin"]).done();
    let again = place.run(&words).done();
    assert!(again.stdout.contains("exists already"), "{}", again.stdout);
    let json = place.run(&[&words[..], &["--json"]].concat()).done().json();
    let there = json!({ "there_already": true, "dimension": 16, "element": "u8", "metric": "l2" });
    assert_eq!(json, there);
    // The report has these keys and the keys of a build.
    let other = ["create", "other", "-d", "16", "--dtype", "u8", "--json"];
    let made = place.run(&other).done().json();
    let keys = [
        "there_already",
        "dimension",
        "element",
        "metric",
        "vectors",
        "parts",
    ];
    let facts = Vec::from(keys.map(|key| made[key].clone()));
    assert_eq!(json!(facts), json!([false, 16, "u8", "l2", 0, 1]));
    assert_eq!(count(&place), ROWS);
    for (other, said) in [
        (["-d", "8", "--dtype", "u8"], ["dimension is 8", "16"]),
        (["-d", "16", "--dtype", "i8"], ["element type is i8", "u8"]),
    ] {
        let words = ["create", "index", "--exist-ok"];
        place.run(&[&words[..], &other].concat()).refused(2, &said);
    }
    let other = [&words[..], &["--metric", "cosine"]].concat();
    place.run(&other).refused(2, &["metric is cosine", "l2"]);
    let both = [&words[..], &["--overwrite"]].concat();
    place.run(&both).refused(2, &["--overwrite"]);
    place.run(&words[..6]).refused(2, &["index"]);
    let words = ["create", "base.u8bin", "-d", "16", "--exist-ok"];
    place.run(&words).refused(2, &["base.u8bin"]);
    assert_eq!(count(&place), ROWS);
}

#[test]
fn a_file_of_no_rows_is_built_of() {
    let place = Place::new();
    place.write("none.u8bin", &bin(0, DIM, &[]));
    let plan = place.run(&["plan", "none.u8bin", "--json"]).done().json();
    assert_eq!(
        (&plan["vectors"], &plan["dimension"]),
        (&0.into(), &DIM.into())
    );
    let built = place
        .run(&["build", "none.u8bin", "index", "--json"])
        .done()
        .json();
    assert_eq!(built["vectors"], 0);
    place.run(&["insert", "index", "base.u8bin"]).done();
    assert_eq!(count(&place), ROWS);
    place.write("none.fvecs", &[]);
    place
        .run(&["build", "none.fvecs", "other"])
        .refused(1, &["none.fvecs", "the number of rows is 0"]);
    // A search without queries fails. An insert without vectors succeeds, because a nightly insert
    // may have none.
    place
        .run(&["search", "index", "none.u8bin"])
        .refused(1, &["none.u8bin", "the number of rows is 0"]);
    let nightly = place.run(&["insert", "index", "none.u8bin"]).done();
    let said = "none.u8bin has no rows; nothing was inserted";
    assert!(nightly.stderr.contains(said), "{}", nightly.stderr);
    assert_eq!(count(&place), ROWS);
    place.write("other.u8bin", &[0, 0, 0, 0, 7, 0, 0, 0]);
    place.write("ids.txt", b"1\n2\n");
    let other = place.run(&["insert", "index", "other.u8bin"]);
    other.refused(2, &["dimension", "7"]);
    let ids = place.run(&["insert", "index", "none.u8bin", "--ids", "ids.txt"]);
    assert_ne!(ids.status, Some(0), "{}", ids.stderr);
}

#[test]
fn an_index_is_created_with_columns() {
    let place = Place::new();
    let create = ["create", "index", "-d", "16", "--dtype", "u8", "--columns"];
    let columns = "year=integer,tags=list of strings";
    place.run(&[&create[..], &[columns]].concat()).done();
    let filter = "year > 3 and tags contains 'a'";
    let count = place.run(&["count", "index", "--filter", filter]).done();
    assert_eq!(count.stdout.trim(), "0");
    let again = |columns: &str| place.run(&[&create[..], &[columns, "--exist-ok"]].concat());
    again(columns).done();
    again("year=float").refused(2, &["column \"year\" is of type float", "of type integer"]);
    again("yeer=float").refused(2, &["column \"yeer\"", "has no such column", "Leave"]);
    again("year=integer,year=float").refused(2, &["names \"year\" twice"]);
    again("year").refused(2, &["a column is NAME=TYPE. Write it as \"year=integer\""]);
    for (wrong, meant) in [
        ("year=int", "integer"),
        ("name=VARCHAR(20)", "string"),
        ("day=datetime64[ns]", "timestamp"),
        ("tags=Text[]", "list of strings"),
    ] {
        let said = format!("there is no such type (did you mean \"{meant}\"?)");
        again(wrong).refused(2, &[wrong, &said, "boolean, integer, float"]);
    }
    again("year=").refused(2, &["there is no such type. Use one of: boolean, integer"]);
}

#[test]
fn what_cannot_be_created_is_refused() {
    let place = Place::new();
    place.run(&["create", "index"]).refused(2, &["--dimension"]);
    place
        .run(&["create", "index", "-d", "0"])
        .refused(2, &["--dimension"]);
    place
        .run(&["create", "index", "-d", "99999"])
        .refused(2, &["dimension", "99999"]);
    place
        .run(&["create", "index", "-d", "4", "--dtype", "f8"])
        .refused(2, &["f8"]);
    let space = ["create", "index", "-d", "4", "--space", "1MiB"];
    place.run(&space).refused(2, &["space", "Give a degree"]);
    assert!(!place.path("index").exists());
    place.run(&["create", "index", "-d", "4"]).done();
    let exists = place.run(&["create", "index", "-d", "4"]);
    assert_ne!(exists.status, Some(0));
    place
        .run(&["create", "index", "-d", "5", "--overwrite", "-m", "cosine"])
        .done();
    let stats = place.run(&["stats", "index", "--json"]).done().json();
    let found = (&stats["dimension"], &stats["element"], &stats["metric"]);
    assert_eq!(found, (&5.into(), &"f32".into(), &"cosine".into()));
}
