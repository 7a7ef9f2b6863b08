//! Numbers that are too large are refused with status 2. The error names the option and the bound.

use crate::support::{DIM, Place, f32s};

#[test]
fn numbers_beyond_their_bounds() {
    let place = Place::with_index();
    for (words, expected) in [
        (
            "search index queries.u8bin --list 1000000000000",
            ["--list", "4,294,967,294"],
        ),
        (
            "search index queries.u8bin --list 20,1000000000000",
            ["--list", "4,294,967,294"],
        ),
        (
            "search index queries.u8bin -k 1000000000000",
            ["k", "at most 65536"],
        ),
        (
            "search index queries.u8bin --beam 1000000000000",
            ["--beam", "1,024"],
        ),
        (
            "search index queries.u8bin -T 1000000",
            ["--threads", "1,024"],
        ),
        (
            "search index queries.u8bin --in-flight 1000000000000",
            ["--in-flight", "1,024"],
        ),
        (
            "search index queries.u8bin --rerank-batch 1000000000000",
            ["--rerank-batch", "4,294,967,294"],
        ),
        (
            "search index queries.u8bin --list 99999999999999999999999",
            ["--list", "whole number"],
        ),
        ("build base.u8bin new -T 1000000", ["--threads", "1,024"]),
        (
            "build base.u8bin new --build-list 1000000000000",
            ["--build-list", "4,294,967,294"],
        ),
        (
            "build base.u8bin new --degree 1000000000000",
            ["degree", "4096"],
        ),
        (
            "build base.u8bin new --code-bytes 1000000000000",
            ["code bytes", "16"],
        ),
        (
            "build base.u8bin new --first-id 18446744073709551615",
            ["--first-id", "18446744073709551015"],
        ),
        (
            "build base.u8bin new --first-id 18446744073709551016",
            ["--first-id", "18446744073709551015"],
        ),
        (
            "train base.u8bin book --threads 1000000",
            ["--threads", "1,024"],
        ),
        (
            "truth base.u8bin queries.u8bin t.bin -T 1000000",
            ["--threads", "1,024"],
        ),
        (
            "truth base.u8bin queries.u8bin t.bin -k 1000000000000",
            ["k", "1 to 65536"],
        ),
        (
            "insert index base.u8bin --insert-list 1000000000000",
            ["--insert-list", "4,294,967,294"],
        ),
        ("insert index base.u8bin -T 1000000", ["--threads", "1,024"]),
        ("repair index -T 1000000", ["--threads", "1,024"]),
        ("compact index -T 1000000", ["--threads", "1,024"]),
    ] {
        let words: Vec<&str> = words.split(' ').collect();
        place.run(&words).refused(2, &expected);
    }
    for name in ["new", "book", "t.bin"] {
        assert!(!place.path(name).exists(), "{name} was made");
    }
    // A list size above the number of vectors means all vectors.
    place
        .run(&[
            "search",
            "index",
            "queries.u8bin",
            "--list",
            "4294967294",
            "--in-flight",
            "1024",
        ])
        .done();
}

#[test]
fn ids_that_are_none() {
    let place = Place::with_index();
    place.write("one.u8bin", &crate::support::u8s(1, DIM, 9));
    for text in [
        "18446744073709551615",
        "-1",
        "1.5",
        "0x10",
        "1e3",
        "18446744073709551616",
    ] {
        place.write("ids", format!("{text}\n").as_bytes());
        place
            .run(&["insert", "index", "one.u8bin", "--ids", "ids"])
            .refused(2, &["ids, line 1", text, "18446744073709551614"]);
        place
            .run(&["delete", "index", "ids"])
            .refused(2, &["ids, line 1", text]);
    }
    place.write("ids", b"18446744073709551614");
    place
        .run(&["insert", "index", "one.u8bin", "--ids", "ids"])
        .done();
    place.run(&["delete", "index", "ids"]).done();
    place
        .run(&[
            "build",
            "base.u8bin",
            "high",
            "--degree",
            "8",
            "--first-id",
            "18446744073709551015",
        ])
        .done();
}

#[test]
fn values_without_a_finite_distance() {
    let place = Place::new();
    let huge = f32s(300, DIM, 1, Some((41 * DIM + 3, 1e30)));
    place.write("huge.fbin", &huge);
    place.write("good.fbin", &f32s(300, DIM, 1, None));
    for metric in ["l2", "ip"] {
        place
            .run(&["build", "huge.fbin", "i", "--metric", metric])
            .refused(1, &["huge.fbin", "row 41, column 3", "1e30", "at most"]);
        place
            .run(&[
                "truth",
                "good.fbin",
                "huge.fbin",
                "t.bin",
                "-k",
                "5",
                "--metric",
                metric,
            ])
            .refused(1, &["huge.fbin", "row 41, column 3"]);
    }
    place
        .run(&[
            "build",
            "huge.fbin",
            "i",
            "--metric",
            "cosine",
            "--degree",
            "8",
        ])
        .done();
    place.run(&["search", "i", "huge.fbin"]).done();
}
