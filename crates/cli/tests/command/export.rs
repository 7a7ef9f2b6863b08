//! Exports an index to files, and builds an index from these files.

use std::fs;

use crate::support::{Place, ROWS, u8s};

/// The list has all vectors, so the results are exact.
fn answers(place: &Place, index: &str) -> Vec<u8> {
    let out = format!("{index}.answers.bin64");
    let words = [
        "search",
        index,
        "queries.u8bin",
        "--list",
        "1000",
        "--exact",
        "--out",
        &out,
    ];
    place.run(&words).done();
    fs::read(place.path(&out)).unwrap()
}

#[test]
fn an_index_that_is_built_of_an_export_answers_alike() {
    let place = Place::with_index();
    place.write("new.u8bin", &u8s(40, 16, 7));
    let ids: Vec<String> = (0..40)
        .map(|id| (5_000_000_000u64 + id).to_string())
        .collect();
    place.write("new.ids", ids.join("\n").as_bytes());
    place
        .run(&["insert", "index", "new.u8bin", "--ids", "new.ids"])
        .done();
    place.write("gone.ids", b"1 2 3 5000000000");
    place.run(&["delete", "index", "gone.ids"]).done();
    // A number that is too large for a float stands for infinity.
    let price = |row: usize| ["1e999", "-1e999", "2.5", "7"][row % 4];
    let rows: String = (0..ROWS)
        .filter(|row| !(1..=3).contains(row))
        .map(|row| format!("{{\"id\": {row}, \"row\": {row}, \"at\": {row}, \"note\": [{row}], \"price\": {}}}\n", price(row)))
        .collect();
    place.write("rows.jsonl", rows.as_bytes());
    let set = [
        "set-attributes",
        "index",
        "rows.jsonl",
        "--times",
        "at",
        "--payload",
        "note",
    ];
    place.run(&set).done();
    let before = answers(&place, "index");
    for (n, (out, ids)) in [("all.u8bin", "all.ids"), ("all.npy", "all.ids.npy")]
        .into_iter()
        .enumerate()
    {
        let ran = place
            .run(&["export", "index", "--out", out, "--overwrite"])
            .done();
        for words in ["636 of 16 x u8", out, ids, "all.jsonl", "at", "payload"] {
            assert!(ran.stdout.contains(words), "{words}: {}", ran.stdout);
        }
        let again = format!("again-{n}");
        let build = [
            "build",
            out,
            &again,
            "--ids",
            ids,
            "--attributes",
            "all.jsonl",
            "--times",
            "at",
            "--payload",
            "payload",
            "--degree",
            "16",
            "--build-list",
            "32",
            "--code-bytes",
            "8",
        ];
        place.run(&build).done();
        assert_eq!(answers(&place, &again), before, "{out}");
        let get = |index: &str| {
            let words = ["get", index, "--attributes"];
            place.run(&words).done().stdout
        };
        assert_eq!(get(&again), get("index"), "{out}");
    }
    place
        .run(&["export", "index", "--out", "all.u8bin"])
        .refused(2, &["all.u8bin: it is there already"]);
    place
        .run(&["export", "index", "--out", "other.fbin"])
        .refused(2, &["other.fbin", ".npy .u8bin"]);
    let ran = place
        .run(&[
            "export",
            "index",
            "--out",
            "other.npy",
            "--ids",
            "other.txt",
            "--json",
        ])
        .done();
    let report = ran.json();
    assert_eq!(report["vectors"], 636);
    assert_eq!(report["ids"], "other.txt");
    assert_eq!(report["attributes"], "other.jsonl");
    let ids = fs::read_to_string(place.path("other.txt")).unwrap();
    assert_eq!(ids.lines().count(), 636);
}

#[test]
fn the_truth_of_an_index_with_wide_ids_has_them() {
    let place = Place::new();
    let first = "5000000000";
    let truth = |out: &str| {
        let words = [
            "truth",
            "base.u8bin",
            "queries.u8bin",
            out,
            "-k",
            "10",
            "--first-id",
            first,
        ];
        place.run(&words)
    };
    truth("truth.bin").refused(2, &["an id is 50000", ".bin64"]);
    // The zero vectors make the computation fail, so an error about ids shows that the ids were
    // checked before.
    place.write("zero.u8bin", &[&u8s(3, 16, 7)[..8], &[0; 48]].concat());
    place.write("wide.ids", b"1 2 5000000000");
    for ids in [["--first-id", "4294967293"], ["--ids", "wide.ids"]] {
        for (out, status, said) in [
            ("t.bin", 2, "32 bits"),
            ("t.ibin", 2, "32 bits"),
            ("t.ivecs", 2, "32 bits"),
            ("t.npy", 1, "needs a direction"),
        ] {
            let words = [
                "truth",
                "zero.u8bin",
                "queries.u8bin",
                out,
                "--metric",
                "cosine",
                "-k",
                "1",
            ];
            place
                .run(&[&words[..], &ids].concat())
                .refused(status, &[said]);
            assert!(!place.path(out).exists());
        }
    }
    truth("truth.bin64").done();
    truth("truth.npy").done();
    let build = [
        "build",
        "base.u8bin",
        "index",
        "--first-id",
        first,
        "--degree",
        "16",
        "--build-list",
        "32",
        "--code-bytes",
        "8",
    ];
    place.run(&build).done();
    for file in ["truth.bin64", "truth.npy"] {
        let words = [
            "search",
            "index",
            "queries.u8bin",
            "--truth",
            file,
            "--list",
            "1000",
            "--json",
        ];
        let ran = place.run(&words).done();
        assert_eq!(ran.json_lines()[0]["recall"], 1.0, "{file}: {}", ran.stdout);
    }
    place.write("few.ids", b"1 2 3");
    place
        .run(&[
            "truth",
            "base.u8bin",
            "queries.u8bin",
            "t.bin",
            "--ids",
            "few.ids",
        ])
        .refused(2, &["has 3 ids", "600 vectors"]);
}

#[test]
fn where_there_are_fewer_rows_than_neighbours_truth_has_no_other_ids() {
    let place = Place::new();
    place.write("few.u8bin", &u8s(3, 16, 7));
    place.write("few.ids", b"70 80 90");
    for (out, ids) in [
        ("first.bin64", ["--first-id", "70"]),
        ("ids.bin64", ["--ids", "few.ids"]),
    ] {
        let words = ["truth", "few.u8bin", "queries.u8bin", out, "-k", "5"];
        place.run(&[&words[..], &ids[..]].concat()).done();
        let file = fs::read(place.path(out)).unwrap();
        let ids = file[8..48].chunks_exact(8);
        let ids: Vec<u64> = ids
            .map(|id| u64::from_le_bytes(id.try_into().unwrap()))
            .collect();
        assert!(ids[..3].iter().all(|id| (70..=90).contains(id)), "{ids:?}");
        assert_eq!(ids[3..], [u64::MAX; 2]);
    }
}
