//! Files that are damaged in every way end in an error, and never in a panic.

use std::io::Write;

use super::*;

fn file_of(bytes: &[u8]) -> File {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(bytes).unwrap();
    file
}

fn outcome(bytes: &[u8]) -> Result<(), ParquetError> {
    lines(
        file_of(bytes),
        &JsonColumns::default(),
        &std::env::temp_dir(),
        None,
    )
    .map(|_| ())
}

fn fixture(name: &str) -> Vec<u8> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/command/parquet");
    std::fs::read(Path::new(folder).join(name)).unwrap()
}

/// Steps between the places of a file that are damaged: one in the slow tests.
fn step() -> usize {
    match std::env::var_os("STRATANN_SLOW") {
        None => 7,
        Some(_) => 1,
    }
}

#[test]
fn a_file_that_is_cut_off_is_no_file() {
    for name in ["types.none.parquet", "types.pages2.parquet"] {
        let whole = fixture(name);
        assert_eq!(outcome(&whole), Ok(()));
        for length in (0..whole.len()).step_by(step()) {
            assert!(
                outcome(&whole[..length]).is_err(),
                "{name} of {length} bytes"
            );
        }
    }
}

/// A changed byte of a value is another value: whether there is an error depends on the byte.
#[test]
fn whatever_byte_is_changed_nothing_panics_and_no_page_is_believed() {
    let files = ["none", "snappy", "zstd", "gzip", "lz4", "pages2"];
    let mut refused = 0;
    for (first, name) in files.iter().enumerate() {
        let mut bytes = fixture(&format!("types.{name}.parquet"));
        for at in (first..bytes.len()).step_by(step()) {
            for mask in [0xff, 0x01] {
                bytes[at] ^= mask;
                refused += usize::from(outcome(&bytes).is_err());
                bytes[at] ^= mask;
            }
        }
    }
    assert!(refused > 0);
}

/// A page of 15 bytes that says it has 2^31 - 1 strings: no room is made for them.
#[test]
fn a_dictionary_that_says_more_than_it_can_hold_is_refused_before_there_is_room() {
    let mut bytes = fixture("dictionary.parquet");
    let written = bytes
        .windows(2)
        .position(|pair| pair == [0x15, 0x06])
        .unwrap();
    let long = [0x15, 0xfe, 0xff, 0xff, 0xff, 0x0f];
    bytes.splice(written..written + 2, long);
    let found = outcome(&bytes).unwrap_err().to_string();
    assert!(found.contains("dictionary of"), "{found}");
}
