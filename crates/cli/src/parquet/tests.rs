//! A damaged file causes an error, never a panic, and written values are read back.

use std::sync::atomic::{AtomicU64, Ordering};

use parquet::basic::{Compression, Encoding, GzipLevel, ZstdLevel};
use parquet::file::properties::{WriterProperties, WriterVersion};
use parquet::schema::types::ColumnPath;
use proptest::prelude::*;
use stratann::{RowSource, Silent, Value, VectorSource};

use super::*;

#[expect(
    dead_code,
    reason = "the tests of the command have columns of more kinds"
)]
#[path = "../../tests/command/written.rs"]
mod written;

use written::{Column as Written, Values, file as parquet_of, list, whole};

fn file_of(bytes: &[u8]) -> File {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(bytes).unwrap();
    file
}

fn found(bytes: &[u8], wanted: &Wanted, memory: Option<u64>) -> Result<Contents, ParquetError> {
    let index = std::env::temp_dir();
    let target = Target {
        index: &index,
        memory,
        has_memory: true,
        progress: &Silent,
    };
    let read = || super::written(file_of(bytes), "f", wanted, &index, target);
    let (mut contents, lines) = guarded(read)?;
    contents.rows = lines.map(|(lines, columns)| {
        JsonRows::of_file(lines, "f".to_owned(), &columns, &Silent).unwrap()
    });
    Ok(contents)
}

fn read_within(bytes: &[u8], memory: Option<u64>) -> Result<(), ParquetError> {
    let columns = JsonColumns::default();
    let wanted = Wanted {
        attributes: Some(&columns),
        ..Wanted::default()
    };
    found(bytes, &wanted, memory).map(|_| ())
}

fn outcome(bytes: &[u8]) -> Result<(), ParquetError> {
    read_within(bytes, None)
}

fn fixture(name: &str) -> Vec<u8> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/command/parquet");
    std::fs::read(Path::new(folder).join(name)).unwrap()
}

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

/// A file with a changed byte may still be valid, with another value.
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

/// A file with one page of 600 numbers. In the page's header, the wrong `size` follows the type (15
/// 00) at offset 4.
fn with_size(compression: Compression, size: &[u8]) -> Vec<u8> {
    let numbers = (0..600).map(|at: i32| Some(at.wrapping_mul(0x9e37_79b1_u32.cast_signed())));
    let column = ("required int32 n;", Values::Integers(numbers.collect()));
    let properties = WriterProperties::builder()
        .set_compression(compression)
        .set_dictionary_enabled(false)
        .set_statistics_enabled(parquet::file::properties::EnabledStatistics::None)
        .build();
    let mut bytes = parquet_of(&[column], 600, properties);
    assert_eq!((&bytes[4..7], bytes[9]), (&[0x15, 0, 0x15][..], 0x15));
    // The page loses as many bytes, so that the length of the file stays.
    let more = size.len() - 2;
    let compressed = (u16::from(bytes[11]) << 7 | u16::from(bytes[10] & 0x7f)) - 2 * more as u16;
    (bytes[10], bytes[11]) = (compressed as u8 | 0x80, (compressed >> 7) as u8);
    let end = 200;
    bytes.drain(end..end + more);
    bytes.splice(7..9, size.iter().copied());
    bytes
}

#[test]
fn a_page_that_says_it_is_larger_than_memory_is_refused_before_there_is_room() {
    let two = [0xfe, 0xff, 0xff, 0xff, 0x0f];
    let refused = read_within(&with_size(Compression::SNAPPY, &two), None).unwrap_err();
    let ParquetError::Memory { needed, cap, .. } = refused else {
        panic!("{refused}");
    };
    assert!(needed > 2 << 30 && cap == 1 << 30, "{refused}");
    let few = [0x88, 0x00];
    let gzip = Compression::GZIP(GzipLevel::default());
    let refused = read_within(&with_size(gzip, &few), None)
        .unwrap_err()
        .to_string();
    assert!(
        refused.contains("more than the 4 bytes that its header says"),
        "{refused}"
    );
}

#[test]
fn rows_are_compared_before_a_page_is_read() {
    let mut bytes = parquet_of(
        &[("optional int32 n;", Values::Integers(vec![None; 100_000]))],
        100_000,
        WriterProperties::builder().build(),
    );
    let end = bytes.len() - 8;
    let footer = u32::from_le_bytes(bytes[end..end + 4].try_into().unwrap()) as usize;
    bytes[4..end - footer].fill(0xff);
    let columns = JsonColumns::default();
    let wanted = |rows: u64| Wanted {
        attributes: Some(&columns),
        rows: Some((rows, "vectors")),
        ..Wanted::default()
    };
    let refused = found(&bytes, &wanted(600), None).unwrap_err().to_string();
    let expected = "the file has 100000 rows; it must have 600, as many as there are vectors. Give another file";
    assert_eq!(refused, expected);
    let refused = found(&bytes, &wanted(100_000), None).unwrap_err();
    assert!(
        matches!(refused, ParquetError::Unreadable { .. }),
        "{refused}"
    );
}

#[test]
fn a_list_that_takes_a_few_bytes_and_much_memory_is_refused() {
    let vectors = list("v", "float element");
    let column = (
        vectors.as_str(),
        Values::Floats(vec![Some(vec![None; 1 << 20])]),
    );
    let bytes = parquet_of(&[column], 1, WriterProperties::builder().build());
    assert!(bytes.len() < 10_000);
    let wanted = Wanted {
        vectors: Some("v"),
        ..Wanted::default()
    };
    let refused = found(&bytes, &wanted, Some(8 << 20)).unwrap_err();
    assert!(matches!(refused, ParquetError::Memory { .. }), "{refused}");
    let refused = found(&bytes, &wanted, None).unwrap_err();
    assert!(matches!(refused, ParquetError::Value { .. }), "{refused}");

    // Every row has the only text of the dictionary as its value.
    let texts = Values::Texts(vec![Some("x".repeat(1 << 19)); 256]);
    let column = ("optional binary text (UTF8);", texts);
    let bytes = parquet_of(&[column], 256, WriterProperties::builder().build());
    assert!(bytes.len() < 2 << 20);
    let refused = read_within(&bytes, Some(64 << 20)).unwrap_err();
    assert!(matches!(refused, ParquetError::Memory { .. }), "{refused}");
}

/// Items take far more memory when they have become texts.
#[test]
fn what_is_too_long_is_refused_before_it_becomes_a_text() {
    let read = |column: Written, payload: Option<&str>, memory: u64| {
        let bytes = parquet_of(&[column], 256, WriterProperties::builder().build());
        let columns = JsonColumns {
            payload: payload.map(str::to_owned),
            ..JsonColumns::default()
        };
        let wanted = Wanted {
            attributes: Some(&columns),
            ..Wanted::default()
        };
        found(&bytes, &wanted, Some(memory)).map(|_| ())
    };
    let refused = |column: Written, payload: Option<&str>, words: &str| {
        let refused = read(column, payload, 64 << 20).unwrap_err();
        assert!(matches!(refused, ParquetError::Long { .. }), "{refused}");
        assert!(refused.to_string().starts_with(words), "{refused}");
    };
    let numbers = list("n", "int32 element");
    let of = |items: usize| Values::Bytes(vec![Some(vec![]), Some(vec![Some(7); items])]);
    let words =
        "row 1, column \"n\" is a list of 1048576 items; it may have at most 4096 items. Leave";
    refused((&numbers, of(1 << 20)), None, words);
    assert_eq!(read((&numbers, of(4_096)), None, 64 << 20), Ok(()));
    assert_eq!(read((&numbers, of(5_000)), Some("n"), 64 << 20), Ok(()));
    let words =
        "row 1, column \"n\" is a list of 40000 items; it may have at most 32768 items. Leave";
    refused((&numbers, of(40_000)), Some("n"), words);

    let text = "optional binary t (UTF8);";
    let of = |bytes: usize, rows: usize| Values::Texts(vec![Some("\u{1}".repeat(bytes)); rows]);
    let words =
        "row 0, column \"t\" is a text of 32769 bytes; it may have at most 32768 bytes. Leave";
    refused((text, of(32_769, 2)), None, words);
    let words =
        "row 0, column \"t\" is a text of 65537 bytes; it may have at most 65536 bytes. Leave";
    refused((text, of(65_537, 2)), Some("t"), words);
    let refused = read((text, of(32_768, 256)), None, 32 << 20).unwrap_err();
    assert!(matches!(refused, ParquetError::Memory { .. }), "{refused}");
    assert_eq!(read((text, of(32_768, 256)), None, 128 << 20), Ok(()));
}

#[test]
fn lengths_of_texts_that_are_more_than_the_page_has_are_refused() {
    for encoding in [
        Encoding::DELTA_LENGTH_BYTE_ARRAY,
        Encoding::DELTA_BYTE_ARRAY,
    ] {
        let texts = (0..100).map(|at: i32| Some(format!("text {at}")));
        let column = (
            "optional binary text (UTF8);",
            Values::Texts(texts.collect()),
        );
        let properties = WriterProperties::builder()
            .set_dictionary_enabled(false)
            .set_encoding(encoding)
            .build();
        let mut bytes = parquet_of(&[column], 100, properties);
        assert_eq!(read_within(&bytes, None), Ok(()));
        // The header announces blocks of 128, four mini-blocks in a block, and 100 lengths.
        let header = bytes
            .windows(4)
            .rposition(|at| at == [0x80, 0x01, 4, 100])
            .unwrap();
        bytes[header + 3] = 101;
        let refused = read_within(&bytes, None).unwrap_err().to_string();
        assert!(
            refused.contains("a page of 100 values has invalid lengths of texts"),
            "{refused}"
        );
    }
}

struct Stopping(AtomicU64);

impl Progress for Stopping {
    fn begin(&self, _: &str, total: u64) {
        assert_eq!(total, 2_000);
    }
    fn advance(&self, steps: u64) {
        self.0.fetch_sub(steps, Ordering::Relaxed);
    }
    fn end(&self) {}
    fn interrupted(&self) -> bool {
        self.0.load(Ordering::Relaxed) == 0
    }
    fn warn(&self, _: &str) {}
}

#[test]
fn reading_heeds_an_interruption() {
    let numbers = Values::Integers(vec![Some(1); 2_000]);
    let bytes = parquet_of(
        &[("optional int32 n;", numbers)],
        2_000,
        WriterProperties::builder().build(),
    );
    let columns = JsonColumns::default();
    let wanted = Wanted {
        attributes: Some(&columns),
        ..Wanted::default()
    };
    let stopping = Stopping(AtomicU64::new(4 * AT_ONCE as u64));
    let index = std::env::temp_dir();
    let target = Target {
        index: &index,
        memory: None,
        has_memory: true,
        progress: &stopping,
    };
    let read = super::written(file_of(&bytes), "f", &wanted, &index, target);
    assert_eq!(read.unwrap_err(), ParquetError::Interrupted);
}

fn properties() -> impl Strategy<Value = WriterProperties> {
    let compressions = prop::sample::select(vec![
        Compression::UNCOMPRESSED,
        Compression::SNAPPY,
        Compression::GZIP(GzipLevel::default()),
        Compression::ZSTD(ZstdLevel::default()),
        Compression::LZ4,
        Compression::LZ4_RAW,
    ]);
    let texts = prop::sample::select(vec![
        Encoding::PLAIN,
        Encoding::DELTA_LENGTH_BYTE_ARRAY,
        Encoding::DELTA_BYTE_ARRAY,
    ]);
    (
        compressions,
        texts,
        any::<bool>(),
        any::<bool>(),
        1usize..200,
    )
        .prop_map(|(compression, texts, new, dictionary, rows)| {
            let version = match new {
                true => WriterVersion::PARQUET_2_0,
                false => WriterVersion::PARQUET_1_0,
            };
            WriterProperties::builder()
                .set_compression(compression)
                .set_dictionary_enabled(dictionary)
                .set_column_encoding(ColumnPath::from("text"), texts)
                .set_writer_version(version)
                .set_write_batch_size(16)
                .set_data_page_row_count_limit(rows)
                .build()
        })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn what_is_written_is_read(
        properties in properties(),
        dim in 1usize..40,
        group in 1usize..400,
        texts in prop::collection::vec(prop::option::of("[a-c]{0,9}"), 1..600),
        seed: u32,
    ) {
        let rows = texts.len();
        let float = |at: usize| f32::from_bits(seed.wrapping_mul(at as u32 | 1) >> 2);
        let vectors: Vec<Vec<f32>> =
            (0..rows).map(|row| (0..dim).map(|at| float(row * dim + at)).collect()).collect();
        let ids: Vec<u64> = (0..rows as u64).map(|row| row.wrapping_mul(u64::from(seed) << 31)).collect();
        let kind = list("v", "float element");
        let columns: [Written; 3] = [
            ("optional binary text (UTF8);", Values::Texts(texts.clone())),
            (&kind, Values::Floats(whole(&vectors))),
            (
                "optional int64 id (INTEGER(64,false));",
                Values::Longs(ids.iter().map(|id| Some(id.cast_signed())).collect()),
            ),
        ];
        let bytes = parquet_of(&columns, group, properties);
        let options = JsonColumns::default();
        let wanted = Wanted {
            vectors: Some("v"),
            ids: Some(("--ids", "id")),
            attributes: Some(&options),
            rows: Some((rows as u64, "rows")),
        };
        let contents = found(&bytes, &wanted, Some(16 << 20)).unwrap();
        let (source, found) = (contents.vectors.unwrap(), contents.rows.unwrap());
        prop_assert_eq!((source.rows(), source.dim(), found.rows()), (rows, dim, rows));
        let mut elements = vec![0; rows * dim * 4];
        source.read(0, &mut elements).unwrap();
        let expected: Vec<u8> = vectors.iter().flatten().flat_map(|v| v.to_le_bytes()).collect();
        prop_assert_eq!(elements, expected);
        prop_assert_eq!(contents.ids.unwrap(), ids);
        for (row, text) in texts.into_iter().enumerate() {
            let mut found = found.row(row).unwrap().attributes;
            prop_assert_eq!(found.remove("text"), text.map(Value::String));
            prop_assert!(found.is_empty());
        }
    }
}
