//! A recall in place of a list size: `calibrate`, and `search --recall`.

use crate::support::{Place, Ran, u8s};

/// An index of the rows of `base.u8bin`, of a preset.
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
