//! Estimates for real vectors on modelled devices.

use serde_json::Value;

use super::support::{Place, bin};

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap()
}

/// A sample needs rows for a trial index, and other rows as queries.
fn place() -> Place {
    let place = Place::new();
    let path = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../fixtures/photo-sift-20k.base.u8bin"
    );
    let bytes = std::fs::read(path).unwrap();
    place.write("base.u8bin", &bin(3_000, 128, &bytes[8..8 + 3_000 * 128]));
    place.write(
        "asked.u8bin",
        &bin(50, 128, &bytes[8 + 3_000 * 128..8 + 3_050 * 128]),
    );
    place.write("short.u8bin", &bin(50, 64, &bytes[8..8 + 50 * 64]));
    place
}

#[test]
fn a_device_of_blocks_and_finer_memory_want_different_indexes() {
    let place = place();
    let first = |device: &str| {
        let words = [
            "advise",
            "base.u8bin",
            "--device",
            device,
            "--sample",
            "1500",
            "--rows",
            "1M",
            "--threads",
            "1",
            "--json",
            "--scratch",
            ".",
        ];
        let lines = place.run(&words).done().json_lines();
        assert_eq!(lines.len(), 9, "{lines:?}");
        for line in &lines {
            assert!(line["fits"].as_bool().unwrap(), "{line}");
            assert!(number(&line["recall"]) >= 0.95, "{line}");
            assert!(number(&line["reads"]) > 1.0, "{line}");
            assert!(number(&line["size"]) > 128e6, "{line}");
            assert!(number(&line["throughput"]) > 0.0, "{line}");
        }
        // The wait for the device follows from counts, without the measured CPU time.
        let waits = |name: &str| {
            let of = lines.iter().filter(|line| line["preset"] == name);
            of.map(|line| number(&line["latency_us"]) - 1e6 * number(&line["cpu"]))
                .fold(f64::INFINITY, f64::min)
        };
        for line in &lines {
            // The processor bounds the throughput of one thread with eight queries in flight.
            let [cpu, throughput] = ["cpu", "throughput"].map(|key| number(&line[key]));
            let processor = 1.0 / cpu;
            assert!(throughput <= processor * 1.000_001, "{line}");
            let by_processor = throughput > processor * 0.999_999;
            assert_eq!(by_processor, line["bound_by"] == "computation", "{line}");
            assert!(
                cpu > 0.0 && number(&line["latency_us"]) > 1e6 * cpu,
                "{line}"
            );
        }
        ["tiered-graph", "diskann"].map(waits)
    };
    // Rows without padding are read to the byte, but an SSD reads whole blocks.
    let [rows, pages] = first("ssd");
    assert!(rows > pages, "{rows} {pages}");
    let [finer, _] = first("cxl");
    assert!(finer < rows / 10.0, "{finer} {rows}");
    let left = place.names();
    assert!(!left.iter().any(|name| name.contains("advise")), "{left:?}");
}

#[test]
fn vectors_take_their_bytes_however_few_are_sampled() {
    let place = place();
    let advise = ["advise", "base.u8bin", "--sample", "500", "--rows", "10G"];
    let words = [&advise[..], &["--json", "--scratch", "."]].concat();
    for line in place.run(&words).done().json_lines() {
        // The codecs save a seventh of the 128 bytes of a vector.
        assert!(number(&line["size"]) > 0.8 * 128e10, "{line}");
    }
}

#[test]
fn under_ten_megabytes_what_has_no_codes_in_memory_is_tried() {
    let place = place();
    let advise = ["advise", "base.u8bin", "--sample", "800", "--rows", "10M"];
    let asked = ["--queries", "asked.u8bin", "--memory", "10MB"];
    let words = [&advise[..], &asked, &["--scratch", "."]].concat();
    let lines = place.run(&[&words[..], &["--json"]].concat());
    let lines = lines.done().json_lines();
    let of = |preset: &str, layout: Value| {
        let found = lines
            .iter()
            .find(|line| line["preset"] == preset && line["layout"] == layout);
        found
            .unwrap_or_else(|| panic!("{preset}, {layout}: {lines:?}"))
            .clone()
    };
    assert_eq!(of("diskann", Value::Null)["fits"], false);
    for line in [of("aisaq", Value::Null), of("stratann", "inline".into())] {
        assert_eq!(line["fits"], true, "{line}");
        assert!(number(&line["memory"]) <= 10e6, "{line}");
    }
    let said = place.run(&words).done().stdout;
    assert!(said.contains("--memory 10000000"), "{said}");
}

#[test]
fn what_cannot_be_advised_on_is_refused() {
    let place = place();
    for (words, text) in [
        (vec!["--device", "tape"], "ssd, rdma, cxl, nvm, dram"),
        (vec!["--rows", "many"], "250000"),
        (vec!["--recall", "1"], "above 0 and below 1"),
        (vec!["--sample", "50"], "sample"),
        (vec!["--queries", "short.u8bin"], "u8 of 128 elements"),
    ] {
        let words = [&["advise", "base.u8bin"][..], &words].concat();
        place.run(&words).refused(2, &[text]);
    }
    let words = [
        "advise",
        "base.u8bin",
        "--sample",
        "500",
        "--memory",
        "1MB",
        "--scratch",
        ".",
    ];
    let said = place.run(&words).done().stdout;
    assert!(
        said.contains("no candidate fits") && said.contains("memory"),
        "{said}"
    );
}
