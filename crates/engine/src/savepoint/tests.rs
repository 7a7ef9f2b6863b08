//! Tests that the content of savepoints can be read again, and that any other bytes are refused
//! without a panic.

use proptest::prelude::*;
use stratann_layout::block::{self, BLOCK, PAYLOAD};
use stratann_tier::testing::SimVolume;

use super::*;
use crate::progress::Silent;

const PLACE: (What, u32) = (What::Codebook, 0);
const NAME: &str = "savepoint-codebook";

fn of(volume: &SimVolume, origin: u8) -> Savepoints<'_> {
    let origin = Origin {
        hash: Hash::from_bytes([origin; 32]),
        told: format!("degree\t{origin}\n"),
    };
    Savepoints::of_origin(volume, origin, Duration::ZERO)
}

fn keep(savepoints: &Savepoints<'_>, content: &[u8]) {
    let input = savepoints.input(&[b"it"]);
    let bytes = content.len() as u64;
    // The length of the pieces does not divide the length of a block.
    savepoints.keep(PLACE, &input, bytes, &Silent, |sink| {
        content.chunks(977).try_for_each(|piece| sink.bytes(piece))
    });
}

fn kept(savepoints: &Savepoints<'_>) -> Option<Vec<u8>> {
    savepoints.read(PLACE, &savepoints.input(&[b"it"]), |content| {
        let mut bytes = vec![0; content.left() as usize];
        for piece in bytes.chunks_mut(1021) {
            content.bytes(piece)?;
        }
        Ok(bytes)
    })
}

fn put(volume: &SimVolume, bytes: &[u8]) {
    volume.create(NAME).unwrap().write_at(0, bytes).unwrap();
}

#[test]
fn what_is_kept_comes_back_around_the_edges_of_blocks_and_windows() {
    let volume = SimVolume::new();
    for len in [
        0,
        1,
        4,
        PAYLOAD - 1,
        PAYLOAD,
        PAYLOAD + 1,
        63 * PAYLOAD,
        64 * PAYLOAD + 1,
        200 * PAYLOAD + 7,
    ] {
        let content: Vec<u8> = (0..len).map(|i| (i % 251) as u8).collect();
        let savepoints = of(&volume, 1);
        keep(&savepoints, &content);
        assert!(kept(&savepoints).as_ref() == Some(&content), "{len} bytes");
        assert_eq!(volume.list().unwrap(), [NAME]);
        let written = savepoints.facts().bytes;
        assert_eq!(written, volume.len(NAME).unwrap());
        assert_eq!(written, ((1 + len.div_ceil(PAYLOAD)) * BLOCK) as u64);
    }
}

#[test]
fn bytes_stand_where_the_table_says() {
    let volume = SimVolume::new();
    let savepoints = of(&volume, 7);
    let input = savepoints.input(&[b"it"]);
    savepoints.keep((What::Lists, 3), &input, 8, &Silent, |sink| {
        sink.words([1, 0x0403_0201])
    });
    let bytes = volume.read("savepoint-lists-0003").unwrap();
    assert_eq!(bytes.len(), 2 * BLOCK);
    assert_eq!(bytes[4..12], *b"STRATSAV");
    assert_eq!(bytes[12..16], 2u32.to_le_bytes());
    assert_eq!(bytes[16..20], 2u32.to_le_bytes());
    assert_eq!(bytes[20..24], 3u32.to_le_bytes());
    assert_eq!(bytes[24..32], 8u64.to_le_bytes());
    assert_eq!(bytes[32..64], [7; 32]);
    assert_eq!(bytes[64..96], *input.as_bytes());
    assert_eq!(bytes[96..100], 9u32.to_le_bytes());
    assert_eq!(bytes[100..109], *b"degree\t7\n");
    assert!(bytes[109..BLOCK].iter().all(|&byte| byte == 0));
    assert_eq!(bytes[BLOCK + 4..BLOCK + 12], [1, 0, 0, 0, 1, 2, 3, 4]);
    for (number, at) in [(0u64, 0), (1, BLOCK)] {
        let covered = [&number.to_le_bytes()[..], &bytes[at + 4..at + BLOCK]].concat();
        assert_eq!(bytes[at..at + 4], crc32c::crc32c(&covered).to_le_bytes());
    }
}

#[test]
fn only_the_same_origin_and_input_and_the_whole_content_are_taken() {
    let volume = SimVolume::new();
    let savepoints = of(&volume, 1);
    keep(&savepoints, b"content");
    assert_eq!(kept(&of(&volume, 2)), None, "another origin");
    let read = |input: &[u8], place, take: usize| {
        savepoints.read(place, &savepoints.input(&[input]), |content| {
            content.bytes(&mut vec![0; take])
        })
    };
    assert_eq!(read(b"it", PLACE, 7), Some(()));
    assert_eq!(read(b"other", PLACE, 7), None, "another input");
    assert_eq!(
        read(b"it", PLACE, 6),
        None,
        "a savepoint was accepted although its last byte was not read"
    );
    assert_eq!(
        read(b"it", PLACE, 8),
        None,
        "content beyond the end of the savepoint was read"
    );
    assert_eq!(read(b"it", (What::Order, 0), 7), None, "not there");
    volume.rename(NAME, "savepoint-order").unwrap();
    assert_eq!(read(b"it", (What::Order, 0), 7), None, "under another name");
}

#[test]
fn one_that_is_not_whole_does_not_take_the_place_of_one_that_is() {
    let volume = SimVolume::new();
    let savepoints = of(&volume, 1);
    keep(&savepoints, b"first");
    let input = savepoints.input(&[b"it"]);
    savepoints.keep(PLACE, &input, 5, &Silent, |sink| {
        sink.bytes(b"sec")?;
        Err(TierError::io(
            "write",
            "disk",
            0,
            0,
            std::io::ErrorKind::Other.into(),
        ))
    });
    assert_eq!(kept(&savepoints).as_deref(), Some(&b"first"[..]));
    assert_eq!(volume.list().unwrap(), [NAME]);
    assert!(
        !savepoints.is_due(),
        "a savepoint is due after a failed write"
    );
    keep(&savepoints, b"third");
    assert_eq!(kept(&savepoints).as_deref(), Some(&b"first"[..]));
}

#[test]
fn savepoints_are_due_after_the_time_and_when_they_are_worth_it() {
    let volume = SimVolume::new();
    assert!(of(&volume, 1).is_due());
    let hour = Duration::from_secs(3600);
    let savepoints = Savepoints::of_hash(&volume, Hash::from_bytes([1; 32]), hour);
    assert!(!savepoints.is_due());
    savepoints.state.lock().last -= hour;
    assert!(savepoints.is_due());
    savepoints.state.lock().took = hour / 10;
    assert!(
        !savepoints.is_due(),
        "a savepoint is due although savepoints take more than a twentieth of the time"
    );
}

#[test]
fn names_are_told_from_those_of_other_files() {
    for what in [What::Order, What::Lists, What::Codebook, What::Plan] {
        for part in [0, 1, 9_999, 10_000] {
            assert!(is_savepoint(&what.file(part)));
            assert_eq!(stratann_layout::FileKind::of_name(&what.file(part)), None);
        }
    }
    for name in [
        "savepoint",
        "savepoints-1",
        "my-savepoint-1",
        "MANIFEST",
        "savepoint.old",
        "savepoint-before-upgrade.tar",
        "savepoint-lists-old",
        "savepoint-lists-12",
        "savepoint-lists-00012x",
        "savepoint-listsx",
    ] {
        assert!(!is_savepoint(name), "{name}");
    }
    assert!(is_savepoint(UNFINISHED));
}

proptest! {
    #[test]
    fn a_bit_that_flips_is_found(at in 0usize..3 * BLOCK, bit in 0u8..8) {
        let volume = SimVolume::new();
        let savepoints = of(&volume, 1);
        keep(&savepoints, &[5; 2 * PAYLOAD]);
        let mut bytes = volume.read(NAME).unwrap();
        bytes[at] ^= 1 << bit;
        put(&volume, &bytes);
        prop_assert_eq!(kept(&savepoints), None);
    }

    #[test]
    fn any_bytes_are_taken_or_refused_and_never_more_than_the_file_has(
        mut bytes in prop::collection::vec(any::<u8>(), 0..3 * BLOCK),
        magic: bool,
        sealed: bool,
        length in prop_oneof![Just(u64::MAX), Just(u64::MAX - 4095), 0..20_000u64],
        cut in 0..2 * BLOCK,
    ) {
        if magic && bytes.len() >= BLOCK {
            bytes[4..12].copy_from_slice(b"STRATSAV");
            bytes[12..16].copy_from_slice(&1u32.to_le_bytes());
            bytes[16..20].copy_from_slice(&3u32.to_le_bytes());
            bytes[20..24].fill(0);
            bytes[24..32].copy_from_slice(&length.to_le_bytes());
            bytes[32..64].fill(1);
            let volume = SimVolume::new();
            let input = of(&volume, 1).input(&[b"it"]);
            bytes[64..96].copy_from_slice(input.as_bytes());
        }
        if cut < BLOCK {
            bytes.truncate(bytes.len() / BLOCK * BLOCK);
        }
        if sealed {
            for (number, block) in bytes.chunks_exact_mut(BLOCK).enumerate() {
                block::seal(block, number as u64);
            }
        }
        let volume = SimVolume::new();
        put(&volume, &bytes);
        if let Some(content) = kept(&of(&volume, 1)) {
            prop_assert!(magic && sealed);
            prop_assert_eq!(content.len() as u64, length);
            prop_assert!(content.len() < bytes.len());
        }
    }
}
