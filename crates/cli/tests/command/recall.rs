//! `search --recall`, which chooses the list size for a recall, and `calibrate`.

use crate::support::{Place, QUERIES, Ran, u8s};

fn built(preset: &str) -> Place {
    let place = Place::new();
    let build = ["build", "base.u8bin", "index", "--preset", preset];
    place.run(&build).done();
    place
}

#[test]
fn a_calibration_that_is_refused_is_not_said_to_be_done() {
    let place = Place::with_index();
    place.write("narrow.u8bin", &u8s(20, 8, 3));
    let narrow = place.run(&["calibrate", "index", "narrow.u8bin"]);
    let narrow = narrow.refused(2, &["dimension of narrow.u8bin is 8"]);
    let create = ["create", "none", "--dimension", "16", "--dtype", "u8"];
    place.run(&create).done();
    let none = place.run(&["calibrate", "none"]);
    let none = none.refused(2, &["2 vectors in the index"]);
    let given = place.run(&["calibrate", "none", "queries.u8bin"]);
    let given = given.refused(2, &["2 vectors in the index"]);
    for said in [narrow, none, given] {
        assert!(!said.stderr.contains("done"), "{said:?}");
    }
}

#[test]
fn a_recall_is_not_measured_with_a_handful_of_queries() {
    let place = Place::with_index();
    let measured = || {
        let stats = place.run(&["stats", "index", "--json"]).done().json();
        stats["calibrated"].clone()
    };
    let said = |word: &str| {
        let stats = place.run(&["stats", "index"]).done().stdout;
        let line = stats.lines().find(|line| line.starts_with("recall "));
        assert!(line.unwrap().contains(word), "{stats}");
    };
    assert_eq!(measured(), serde_json::Value::Null);
    said("not measured");
    let few = place.run(&["calibrate", "index", "queries.u8bin"]);
    let given = format!("number of queries is {QUERIES}");
    few.refused(2, &[&given, "at least 100 queries", "or none"]);
    assert_eq!(measured(), serde_json::Value::Null);

    place.run(&["calibrate", "index"]).done();
    assert_eq!(measured()["source"], "index");
    said("made from vectors of the index");
    place.write("many.u8bin", &u8s(100, 16, 3));
    place.run(&["calibrate", "index", "many.u8bin"]).done();
    assert_eq!(
        measured(),
        serde_json::json!({"queries": 100, "source": "user"})
    );
    said("100 queries of yours");

    place.write("small.u8bin", &u8s(99, 16, 4));
    place.run(&["build", "small.u8bin", "small"]).done();
    place.run(&["calibrate", "small"]).refused(
        2,
        &[
            "number of vectors in the index is 99",
            "at least 100 queries",
        ],
    );
}

#[test]
fn a_calibration_is_headed_by_its_numbers() {
    let headed = |place: &Place| {
        let table = place.run(&["calibrate", "index"]).done().stdout;
        table.lines().next().unwrap().to_owned()
    };
    assert_eq!(headed(&built("spann")), "probes  recall");
    assert_eq!(headed(&Place::with_index()), "list  recall");
}

#[test]
fn what_does_not_go_with_a_recall_is_told_by_the_option_that_was_given() {
    let place = built("distvs");
    place.run(&["calibrate", "index"]).done();
    let search = |words: &[&str]| {
        let search = ["search", "index", "queries.u8bin", "--recall", "0.9"];
        place.run(&[&search[..], words].concat())
    };
    let told = |said: Ran, words: &[&str], option: &str| {
        let said = said.refused(2, words);
        assert!(!said.stderr.contains("expected"), "{said:?}");
        assert!(said.stderr.contains(option), "{said:?}");
    };
    let preset = [
        "--preset diskann is given with --recall",
        "Leave out --preset, or give --list",
    ];
    told(search(&["--preset", "diskann"]), &preset, "was measured");
    let given = ["strategy is best-first", "Leave it out"];
    told(
        search(&["--strategy", "best-first"]),
        &given,
        "was measured",
    );
    let given = ["rerank is not the preset's", "Leave it out"];
    told(search(&["--rerank-ratio", "0.1"]), &given, "was measured");
    search(&[]).done();
}

#[test]
fn a_recall_beyond_the_measurement_brings_a_warning() {
    let place = Place::with_index();
    place.run(&["calibrate", "index"]).done();
    let warning = "warning: recall is 1; the measurement of this index reached at most 0.9";
    let search = |words: &[&str]| place.run(&[&["search", "index"], words].concat()).done();
    let attainable = search(&["queries.u8bin", "--recall", "0.5"]);
    assert!(!attainable.stderr.contains("warning"), "{attainable:?}");
    let told = search(&["queries.u8bin", "--recall", "1", "--json"]);
    assert!(told.stderr.contains(warning), "{told:?}");
    assert!(
        told.stderr.contains("give a list size above 300 "),
        "{told:?}"
    );
    assert_eq!(told.json_lines().len(), 1);
    // Of several indexes, the warning names one.
    place
        .run(&["build", "base.u8bin", "other", "--no-calibrate"])
        .done();
    let several = search(&["other", "queries.u8bin", "--recall", "1"]);
    let named = warning.replace("warning: ", "warning: index: ");
    assert!(several.stderr.contains(&named), "{several:?}");
    assert_eq!(several.stderr.matches("warning").count(), 1, "{several:?}");
}
