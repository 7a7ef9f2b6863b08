//! Tests of records, marks and headers.

use super::marks::{MARK_BYTES, read_marks};
use super::*;
use proptest::prelude::*;

fn shape() -> LogShape {
    LogShape::new(Element::U8, 13).unwrap()
}

const START: RecordPlace = RecordPlace {
    log: 3,
    offset: FIRST_RECORD,
    sequence: 70,
};

type Owned = (u64, Option<Vec<u8>>);

static ROWS: [u8; 64] = [201; 64];

/// Every fifth id has a row. A record of such an id without a vector has only the row.
fn row_of(id: u64) -> Option<&'static [u8]> {
    (id % 5 == 1).then(|| &ROWS[..(id % 64) as usize])
}

fn borrowed((id, vector): &Owned) -> LogRecord<'_> {
    let (id, row) = (*id, row_of(*id));
    match (vector, row) {
        (Some(vector), _) if id % 3 == 2 => LogRecord::Replace { id, vector, row },
        (Some(vector), _) => LogRecord::Insert { id, vector, row },
        (None, Some(row)) => LogRecord::Row { id, row },
        (None, None) => LogRecord::Delete { id },
    }
}

fn owned(record: LogRecord<'_>) -> Owned {
    let replaces = matches!(record, LogRecord::Replace { .. });
    let vector = record.vector().map(<[u8]>::to_vec);
    assert_eq!(replaces, record.id() % 3 == 2 && vector.is_some());
    assert_eq!(record.row(), row_of(record.id()));
    (record.id(), vector)
}

fn encode(records: &[Owned]) -> Vec<u8> {
    let (mut out, mut place) = (Vec::new(), START);
    for record in records {
        place = encode_record(borrowed(record), place, &mut out);
    }
    assert_eq!(place.offset - START.offset, out.len() as u64);
    out
}

fn decode(shape: LogShape, place: RecordPlace, bytes: &[u8]) -> (Vec<Owned>, End) {
    let mut records = LogRecords::new(shape, place, bytes);
    let mut out = Vec::new();
    loop {
        match records.next_record() {
            Ok((sequence, record)) => {
                assert_eq!(sequence, place.sequence + out.len() as u64);
                out.push(owned(record));
            }
            Err(end) => {
                assert_eq!(
                    records.next_record(),
                    Err(end),
                    "the reader continues after the end"
                );
                return (out, end);
            }
        }
    }
}

fn sample() -> Vec<Owned> {
    vec![
        (7, Some((0..13).collect())),
        (u64::MAX, None),
        (7, Some(vec![255; 13])),
    ]
}

#[test]
fn bytes_stand_where_the_table_says() {
    let bytes = encode(&sample());
    // The records have 28 + 13 = 41 and 28 bytes, padded to multiples of 8.
    assert_eq!(bytes.len(), 48 + 32 + 48);
    assert_eq!(bytes[4..8], [1, 0, 0, 0]);
    assert_eq!(bytes[8..12], 13u32.to_le_bytes());
    assert_eq!(bytes[12..20], 70u64.to_le_bytes());
    assert_eq!(bytes[20..28], 7u64.to_le_bytes());
    assert_eq!(bytes[28..41], (0..13).collect::<Vec<u8>>()[..]);
    assert!(bytes[41..48].iter().all(|&byte| byte == 0));
    assert_eq!(bytes[52..56], [2, 0, 0, 0]);
    assert_eq!(bytes[60..68], 71u64.to_le_bytes());
    let mut covered = 3u64.to_le_bytes().to_vec();
    covered.extend_from_slice(&(12_288u64 + 48).to_le_bytes());
    covered.extend_from_slice(&bytes[52..80]);
    assert_eq!(bytes[48..52], crc32c::crc32c(&covered).to_le_bytes());
}

#[test]
fn rows_stand_behind_vectors_and_by_themselves() {
    let (vector, row) = ([9; 13], [5, 6]);
    let records = [
        LogRecord::Insert {
            id: 1,
            vector: &vector,
            row: Some(&row),
        },
        LogRecord::Replace {
            id: 1,
            vector: &vector,
            row: Some(&[]),
        },
        LogRecord::Row { id: 1, row: &row },
        LogRecord::Row { id: 1, row: &[] },
    ];
    let (mut bytes, mut place) = (Vec::new(), START);
    for record in records {
        let from = bytes.len();
        place = encode_record(record, place, &mut bytes);
        assert_eq!(bytes.len() - from, record.encoded_bytes());
    }
    assert_eq!(bytes.len(), 48 + 48 + 32 + 32);
    assert_eq!(
        (bytes[4], bytes[8], &bytes[41..44]),
        (4, 15, &[5, 6, 0][..])
    );
    assert_eq!(
        (bytes[52], bytes[56], bytes[100], bytes[104]),
        (5, 13, 6, 2)
    );
    let mut reader = LogRecords::new(shape(), START, &bytes);
    for record in records {
        assert_eq!(reader.next_record().unwrap().1, record);
    }
    let long = vec![0; MAX_ROW_BYTES + 1];
    for record in [
        LogRecord::Row { id: 1, row: &long },
        LogRecord::Insert {
            id: 1,
            vector: &vector,
            row: Some(&long),
        },
    ] {
        let mut bytes = Vec::new();
        encode_record(record, START, &mut bytes);
        let end = LogRecords::new(shape(), START, &bytes).next_record();
        let reason = end.unwrap_err().reason;
        assert!(matches!(reason, EndReason::Length { .. }), "{reason}");
    }
}

#[test]
fn every_bit_flip_ends_the_log_before_the_record() {
    let records = sample();
    let mut bytes = encode(&records);
    let starts = [0, 48, 80];
    for bit in 0..bytes.len() * 8 {
        bytes[bit / 8] ^= 1 << (bit % 8);
        let before = starts.iter().filter(|&&start| start <= bit / 8).count() - 1;
        let (found, end) = decode(shape(), START, &bytes);
        assert_eq!(found, records[..before], "bit {bit}");
        assert_eq!(end.offset, START.offset + starts[before] as u64);
        assert!(!end.reason.is_clean(), "bit {bit}");
        bytes[bit / 8] ^= 1 << (bit % 8);
    }
}

#[test]
fn every_truncation_is_noticed() {
    let records = sample();
    let bytes = encode(&records);
    let starts = [0, 48, 80, 128];
    for length in 0..=bytes.len() {
        let whole = starts.iter().filter(|&&start| start <= length).count() - 1;
        let (found, end) = decode(shape(), START, &bytes[..length]);
        assert_eq!(found, records[..whole], "{length} bytes");
        assert_eq!(end.offset, START.offset + starts[whole] as u64);
        assert_eq!(end.reason.is_clean(), length == starts[whole]);
        // The length of this file reached storage, but its bytes did not.
        let mut holed = bytes[..length].to_vec();
        holed.resize(bytes.len() + 4096, 0);
        let (found, end) = decode(shape(), START, &holed);
        assert!(!end.reason.is_clean(), "{length} bytes, then zeros");
        assert!(found.len() <= records.len());
        assert_eq!(found, records[..found.len()]);
    }
}

#[test]
fn a_record_is_valid_in_its_place_only() {
    let bytes = encode(&sample());
    for place in [
        RecordPlace { log: 4, ..START },
        RecordPlace {
            offset: START.offset + 8,
            ..START
        },
    ] {
        let (found, end) = decode(shape(), place, &bytes);
        assert!(found.is_empty());
        assert!(matches!(end.reason, EndReason::Checksum { .. }));
    }
    let later = RecordPlace {
        sequence: 71,
        ..START
    };
    let (found, end) = decode(shape(), later, &bytes);
    assert!(found.is_empty());
    assert_eq!(
        end.reason,
        EndReason::Sequence {
            found: 70,
            expected: 71
        }
    );
    let other = LogShape::new(Element::U8, 12).unwrap();
    let (found, end) = decode(other, START, &bytes);
    assert!(found.is_empty());
    assert_eq!(
        end.reason.to_string(),
        "the length of the payload is 13; 12 expected"
    );
}

#[test]
fn what_should_be_zero_is_refused_under_a_right_checksum_too() {
    for (at, reason) in [
        (5, EndReason::Reserved),
        (47, EndReason::Reserved),
        (4, EndReason::Kind(9)),
    ] {
        let mut bytes = encode(&sample()[..1]);
        bytes[at] = 9;
        let sum = checksum(START, &bytes[4..]);
        bytes[..4].copy_from_slice(&sum.to_le_bytes());
        assert_eq!(decode(shape(), START, &bytes).1.reason, reason);
    }
}

fn header() -> LogHeader {
    LogHeader {
        shape: LogShape::new(Element::F16, 300).unwrap(),
        number: 12,
        first_sequence: 1 << 40,
        marked: true,
        rows: true,
    }
}

#[test]
fn header_round_trip() {
    let block = header().encode();
    assert_eq!(LogHeader::decode(&block, 12, "log").unwrap(), header());
    assert_eq!(block[8..10], [13, 0]);
    assert_eq!(block[12..16], 3u32.to_le_bytes());
    assert_eq!(block[32..40], 12_288u64.to_le_bytes());
    assert_eq!(block[48..52], 1u32.to_le_bytes());
    assert_eq!(block[52..56], 300u32.to_le_bytes());
    assert_eq!(block[56..64], 12u64.to_le_bytes());
    assert_eq!(block[64..72], (1u64 << 40).to_le_bytes());

    let text = LogHeader::decode(&block, 11, "log-000011").unwrap_err();
    assert!(
        text.to_string()
            .starts_with("log-000011: number of the log at offset 56 is 12; expected 11"),
        "{text}"
    );
    let fields = |element: u32, dim: u32| {
        let fields = FieldsWriter::new().u32(element).u32(dim).u64(12).u64(0);
        let block = FileHeader::new(FileKind::Log, FIRST_RECORD, fields.finish()).encode();
        LogHeader::decode(&block, 12, "log")
    };
    fields(0, 65_536).unwrap();
    for (element, dim, offset) in [(4, 1, 48), (256, 1, 48), (0, 0, 52), (0, 65_537, 52)] {
        assert_eq!(fields(element, dim).unwrap_err().offset(), Some(offset));
    }
    let long = FileHeader::new(FileKind::Log, 5000, header_fields()).encode();
    LogHeader::decode(&long, 12, "log").unwrap_err();
    let other = FileHeader::new(FileKind::Codes, FIRST_RECORD, header_fields()).encode();
    LogHeader::decode(&other, 12, "log").unwrap_err();
    LogShape::new(Element::F32, 0).unwrap_err();
    LogShape::new(Element::F32, 65_537).unwrap_err();
}

#[test]
fn a_log_without_rows_is_one_that_earlier_readers_know() {
    let without = LogHeader {
        rows: false,
        ..header()
    };
    let (block, with) = (without.encode(), header().encode());
    assert_eq!(block[12..16], 2u32.to_le_bytes());
    assert_eq!(LogHeader::decode(&block, 12, "log").unwrap(), without);
    assert_eq!(block[16..72], with[16..72]);
    assert_eq!(without.start(), header().start());
}

fn header_fields() -> Vec<u8> {
    FileHeader::decode(&header().encode(), "log")
        .unwrap()
        .fields
}

#[test]
fn a_file_that_grows_may_be_longer_than_its_header_says() {
    let header = FileHeader::decode(&header().encode(), "log").unwrap();
    header.check_length(12_288, "log").unwrap();
    header.check_length(99_999, "log").unwrap();
    header.check_length(12_287, "log").unwrap_err();
}

#[test]
fn logs_without_marks_are_read_as_ever() {
    let old = LogHeader {
        marked: false,
        rows: false,
        ..header()
    };
    let front = old.encode_front();
    assert_eq!(front.len(), 4096);
    assert_eq!(front[12..16], 1u32.to_le_bytes());
    assert_eq!(front[32..40], 4096u64.to_le_bytes());
    assert_eq!(LogHeader::decode(&front, 12, "log").unwrap(), old);
    assert_eq!(
        (old.start().offset, header().start().offset),
        (4096, 12_288)
    );
    for (version, length) in [(1, 12_288), (2, 4096), (3, 4096), (4, 12_288)] {
        let block = FileHeader {
            version,
            ..FileHeader::new(FileKind::Log, length, header_fields())
        };
        LogHeader::decode(&block.encode(), 12, "log").unwrap_err();
    }
}

#[test]
fn the_newer_of_two_marks_counts_and_a_torn_one_does_not() {
    let mut front = header().encode_front();
    assert_eq!(front.len(), FIRST_RECORD as usize);
    let start = header().start();
    assert_eq!(read_marks(&front, 12), Some(start));
    let later = start.after(320);
    let latest = later.after(32);
    let put = |front: &mut Vec<u8>, place, slot: usize| {
        let at = MARKS[slot] as usize;
        front[at..at + MARK_BYTES].copy_from_slice(&encode_mark(place, slot));
    };
    put(&mut front, later, 0);
    assert_eq!(read_marks(&front, 12), Some(later));
    put(&mut front, latest, 1);
    assert_eq!(read_marks(&front, 12), Some(latest));
    let bytes = encode_mark(latest, 1);
    assert_eq!(bytes[8..16], 12u64.to_le_bytes());
    assert_eq!(bytes[16..24], (12_288u64 + 352).to_le_bytes());
    assert_eq!(bytes[24..32], ((1u64 << 40) + 2).to_le_bytes());
    let covered = [&8192u64.to_le_bytes()[..], &bytes[4..]].concat();
    assert_eq!(bytes[..4], crc32c::crc32c(&covered).to_le_bytes());
    for bit in 0..8 * MARK_BYTES {
        let at = MARKS[1] as usize + bit / 8;
        front[at] ^= 1 << (bit % 8);
        assert_eq!(read_marks(&front, 12), Some(later), "bit {bit}");
        front[MARKS[0] as usize + 9] ^= 1;
        assert_eq!(read_marks(&front, 12), None);
        front[MARKS[0] as usize + 9] ^= 1;
        front[at] ^= 1 << (bit % 8);
    }
    let mut moved = header().encode_front();
    moved[4096..4128].copy_from_slice(&encode_mark(latest, 1));
    assert_eq!(read_marks(&moved, 12), Some(start));
    assert_eq!(read_marks(&front, 13), None);
    assert_eq!(read_marks(&front[..8200], 12), Some(later));
    assert_eq!(read_marks(&front[..4096], 12), None);
    assert_eq!(read_marks(&[], 12), None);
}

fn twenty() -> (Vec<u8>, Vec<usize>) {
    let longest = vec![3; MAX_ROW_BYTES];
    let (mut out, mut place, mut starts) = (Vec::new(), START, Vec::new());
    for id in 0..20u64 {
        let vector = [id as u8; 13];
        starts.push(out.len());
        let record = match id % 4 {
            3 => LogRecord::Delete { id },
            _ => LogRecord::Insert {
                id,
                vector: &vector,
                row: match id {
                    4 | 14 => Some(&longest),
                    _ => row_of(id),
                },
            },
        };
        place = encode_record(record, place, &mut out);
    }
    (out, starts)
}

#[test]
fn behind_a_damaged_record_the_next_whole_one_is_found() {
    let (whole, starts) = twenty();
    let missing = |at: usize| RecordPlace {
        log: START.log,
        offset: START.offset + starts[at] as u64,
        sequence: START.sequence + at as u64,
    };
    let len = START.offset + whole.len() as u64;
    for (first, behind) in [(0, 1), (7, 8), (7, 11), (18, 19)] {
        let mut bytes = whole.clone();
        bytes[starts[first]..starts[behind]].fill(0xff);
        for piece in [shape().longest_record(), 300_000, bytes.len()] {
            let mut gap = Gap::behind(shape(), missing(first), len);
            let mut found = None;
            loop {
                let from = (gap.next() - START.offset) as usize;
                let to = (from + piece).min(bytes.len());
                let Some(rest) = bytes.get(from..to) else {
                    break;
                };
                let before = gap.next();
                found = gap.search(rest, to == bytes.len());
                if found.is_some() || gap.next() == before {
                    break;
                }
            }
            assert_eq!(found, Some(missing(behind)), "{first} to {behind}");
        }
    }
    let mut gap = Gap::behind(shape(), missing(19), len);
    assert_eq!(gap.search(&whole[starts[19] + 8..], true), None);
    let mut gap = Gap::before_any(shape(), missing(19), len);
    assert_eq!(gap.search(&whole[starts[19]..], true), Some(missing(19)));
    // The damaged bytes contain no more records than fit, and no sequence number occurs twice.
    for wrong in [3, 9, 11] {
        let place = RecordPlace {
            sequence: START.sequence + wrong,
            ..missing(8)
        };
        let mut gap = Gap::behind(shape(), place, len);
        let found = gap.search(&whole[starts[8] + 8..starts[10]], true);
        assert_eq!(found.is_some(), wrong == 8, "{wrong}");
    }
}

#[test]
fn bytes_that_only_look_like_records_do_not_hold_up_a_search() {
    // From each multiple of 8 on, the bytes look like a record with a possible sequence number.
    let shape = LogShape::new(Element::U8, 60_000).unwrap();
    let mut bytes = Vec::new();
    for _ in 0..200_000 {
        bytes.extend_from_slice(&60_000u32.to_le_bytes());
        bytes.extend_from_slice(&[1, 0, 0, 0]);
    }
    let sequence = u64_at(&bytes, 12);
    let missing = RecordPlace {
        sequence: sequence - 1,
        ..START
    };
    let len = bytes.len() as u64;
    let mut gap = Gap::behind(shape, missing, len);
    let effort = gap.effort();
    assert_eq!(gap.search(&bytes, true), None);
    assert_eq!(
        gap.effort(),
        0,
        "the search of the gap ended for another reason than its effort"
    );
    assert!(effort < 10 * len);
    gap.again(missing);
    assert_eq!(gap.search(&bytes, true), None);
}

fn any_record() -> impl Strategy<Value = Owned> {
    (
        any::<u64>(),
        prop::option::of(prop::collection::vec(any::<u8>(), 13)),
    )
}

proptest! {
    #[test]
    fn any_records_round_trip_in_any_pieces(
        records in prop::collection::vec(any_record(), 0..20),
        piece in 1usize..200,
    ) {
        let bytes = encode(&records);
        let (found, end) = decode(shape(), START, &bytes);
        prop_assert_eq!(&found, &records);
        prop_assert!(end.reason.is_clean());
        let (mut held, mut place, mut found) = (Vec::new(), START, Vec::new());
        for more in bytes.chunks(piece) {
            held.extend_from_slice(more);
            let mut reader = LogRecords::new(shape(), place, &held);
            let end = loop {
                match reader.next_record() {
                    Ok((_, record)) => found.push(owned(record)),
                    Err(end) => break end,
                }
            };
            let cut = matches!(end.reason, EndReason::Clean | EndReason::Short { .. });
            prop_assert!(cut, "{}", end.reason);
            place = reader.place();
            held = reader.rest().to_vec();
        }
        prop_assert!(held.is_empty());
        prop_assert_eq!(found, records);
    }

    #[test]
    fn arbitrary_bytes_never_panic(
        mut bytes in prop::collection::vec(any::<u8>(), 0..300),
        kind in 0u8..8,
        length in prop::sample::select(vec![0u32, 13, 14, u32::MAX]),
        sealed: bool,
        offset: u64,
        sequence: u64,
    ) {
        let place = RecordPlace { log: 1, offset, sequence };
        if bytes.len() >= 48 {
            bytes[4] = kind;
            bytes[8..12].copy_from_slice(&length.to_le_bytes());
            if sealed {
                bytes[5..8].fill(0);
                bytes[12..20].copy_from_slice(&sequence.to_le_bytes());
                bytes[41..48].fill(0);
                let end = if kind == DELETE { 32 } else { 48 };
                let sum = checksum(place, &bytes[4..end]);
                bytes[..4].copy_from_slice(&sum.to_le_bytes());
            }
        }
        let mut reader = LogRecords::new(shape(), place, &bytes);
        let mut records = 0;
        let end = loop {
            match reader.next_record() {
                Ok(_) => records += 1,
                Err(end) => break end,
            }
        };
        prop_assert!(end.offset >= offset);
        prop_assert!(!end.reason.to_string().is_empty());
        if sealed && bytes.len() >= 48 && kind == INSERT && length == 13 {
            prop_assert!(records > 0);
        }
    }

    #[test]
    fn arbitrary_header_fields_never_panic(fields in prop::collection::vec(any::<u8>(), 0..40)) {
        let block = FileHeader::new(FileKind::Log, FIRST_RECORD, fields).encode();
        let _ = LogHeader::decode(&block, 0, "log");
    }
}
