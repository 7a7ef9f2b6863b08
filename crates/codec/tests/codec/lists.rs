//! Tests of adjacency lists.

use proptest::collection::{btree_set, vec};
use proptest::prelude::*;
use stratann_codec::{CodecError, ListCodec, ListModel, ListTrainer, elias_fano};

fn near(own: u32, nodes: u32, degree: usize, seed: u64) -> Vec<u32> {
    let mut state = seed;
    let mut ids = std::collections::BTreeSet::new();
    while ids.len() < degree {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        let spread = 1i64 << (3 + (state >> 60));
        let step = (state >> 20) as i64 % spread - spread / 2;
        let id = (i64::from(own) + step).rem_euclid(i64::from(nodes)) as u32;
        if id != own {
            ids.insert(id);
        }
    }
    ids.into_iter().collect()
}

fn trained(nodes: u32, usual: u32, tables: usize) -> ListModel {
    let mut trainer = ListTrainer::new(nodes, usual);
    for own in (0..nodes).step_by((nodes as usize / 500).max(1)) {
        let degree = (usual as usize).min(nodes as usize - 1);
        trainer
            .add(own, &near(own, nodes, degree, own.into()))
            .unwrap();
    }
    trainer.finish(tables)
}

fn round_trip(model: &ListModel, own: u32, ids: &[u32]) -> (usize, ListCodec) {
    let mut bytes = vec![0xa5; 3];
    let codec = model.encode(own, ids, &mut bytes).unwrap();
    let end = bytes.len();
    assert_eq!(model.peek(&bytes[3..]).unwrap(), (ids.len(), codec));
    let mut out = vec![7; 5];
    assert_eq!(
        model.decode(own, &bytes[3..end], &mut out).unwrap(),
        end - 3
    );
    assert_eq!(out, ids);
    bytes.extend([0xff; 40]);
    assert_eq!(model.decode(own, &bytes[3..], &mut out).unwrap(), end - 3);
    assert_eq!(out, ids);
    (end - 3, codec)
}

#[test]
fn the_extremes_come_back() {
    let all: Vec<u32> = (0..4096).collect();
    let wide: Vec<u32> = (0..4096u32).map(|i| i * 1_048_575).collect();
    let cases: [&[u32]; 9] = [
        &[],
        &[0],
        &[u32::MAX],
        &[0, u32::MAX],
        &[0, 1, u32::MAX - 1, u32::MAX],
        &[5],
        &[4, 6],
        &all,
        &wide,
    ];
    for model in [
        ListModel::elias_fano(1000, 2),
        ListModel::elias_fano(0, 0),
        ListModel::elias_fano(u32::MAX, 4096),
        trained(10_000, 64, 4),
        trained(1_000_000, 4, 1),
    ] {
        let stored = ListModel::from_bytes(&model.to_bytes()).unwrap();
        assert_eq!(stored.to_bytes(), model.to_bytes());
        for ids in cases {
            for own in [0, 1, 5, 4096, 1 << 31, u32::MAX] {
                round_trip(&model, own, ids);
                round_trip(&stored, own, ids);
            }
        }
    }
}

#[test]
fn a_list_takes_the_shorter_code() {
    let (nodes, degree) = (1_000_000, 64);
    let model = trained(nodes, degree, 4);
    let plain = ListModel::elias_fano(nodes, degree);
    let slot = elias_fano::slot_bytes(degree as usize, nodes);
    let local = near(500_000, nodes, 64, 9);
    let spread: Vec<u32> = (0..64).map(|i| i * 15_625 + 7 * i % 1000).collect();
    let (local_bytes, codec) = round_trip(&model, 500_000, &local);
    assert_eq!(codec, ListCodec::Gaps);
    assert!(local_bytes * 3 < slot * 2, "{local_bytes} of {slot}");
    assert_eq!(round_trip(&plain, 500_000, &local).1, ListCodec::EliasFano);
    for ids in [&local, &spread] {
        let (bytes, _) = round_trip(&model, 500_000, ids);
        let (plain_bytes, _) = round_trip(&plain, 500_000, ids);
        assert!(bytes <= plain_bytes && plain_bytes <= slot);
    }
    // If a node is its own neighbour, its list cannot be coded by gaps.
    assert_eq!(round_trip(&model, local[0], &local).1, ListCodec::EliasFano);
}

#[test]
fn ids_that_do_not_ascend_are_refused() {
    let model = trained(1000, 8, 2);
    let mut out = vec![1, 2];
    for (ids, position) in [(&[3, 3][..], 1), (&[1, 5, 4], 2)] {
        assert_eq!(
            model.encode(0, ids, &mut out),
            Err(CodecError::NotAscending { position })
        );
        assert_eq!(out, [1, 2]);
        let mut trainer = ListTrainer::new(1000, 8);
        assert!(trainer.add(0, ids).is_err());
    }
}

#[test]
fn another_files_model_is_noticed_or_gives_a_set() {
    let model = trained(100_000, 32, 8);
    let plain = ListModel::elias_fano(100_000, 32);
    let ids = near(50_000, 100_000, 32, 1);
    let mut bytes = Vec::new();
    assert_eq!(model.encode(50_000, &ids, &mut bytes), Ok(ListCodec::Gaps));
    let mut out = Vec::new();
    assert!(matches!(
        plain.decode(50_000, &bytes, &mut out),
        Err(CodecError::Malformed { .. })
    ));
    let mut later = model.to_bytes();
    later[0] = 2;
    assert!(matches!(
        ListModel::from_bytes(&later),
        Err(CodecError::Version {
            found: 2,
            expected: 1,
            ..
        })
    ));
}

#[test]
fn a_count_beyond_the_bytes_allocates_nothing() {
    let model = trained(1000, u32::MAX, 1);
    for tag in [0x80, 0xa0, 0x00, 0x20] {
        let mut bytes = vec![tag, 0xff, 0xff, 0xff, 0xff, 0x0f];
        bytes.extend([0; 20]);
        let mut out = Vec::new();
        assert!(matches!(
            model.decode(0, &bytes, &mut out),
            Err(CodecError::Truncated { .. })
        ));
        assert_eq!(out.capacity(), 0);
    }
}

proptest! {
    #[test]
    fn any_set_comes_back(
        ids in btree_set(prop_oneof![any::<u32>(), 0u32..5000, 90_000u32..90_100], 0..300),
        own in prop_oneof![any::<u32>(), 0u32..5000, 90_000u32..90_100],
        tables in 0usize..6,
        usual in 0u32..80,
    ) {
        let ids: Vec<u32> = ids.into_iter().collect();
        let model = match tables {
            0 => ListModel::elias_fano(100_000, usual),
            _ => trained(100_000, usual, tables),
        };
        round_trip(&model, own, &ids);
    }

    #[test]
    fn a_slot_holds_any_list(
        ids in btree_set(0u32..20_000, 0..100),
        more in 0usize..20,
    ) {
        let ids: Vec<u32> = ids.into_iter().collect();
        let slot = elias_fano::slot_bytes(ids.len() + more, 20_000);
        for model in [ListModel::elias_fano(20_000, 7), trained(20_000, 32, 3)] {
            prop_assert!(round_trip(&model, 77, &ids).0 <= slot);
        }
    }

    #[test]
    fn any_bytes_decode_to_a_set_or_an_error(
        bytes in vec(any::<u8>(), 0..400),
        tag in any::<u8>(),
        own in any::<u32>(),
        usual in 0u32..300,
    ) {
        let model = trained(100_000, usual, 8);
        let mut bytes = bytes;
        if let Some(first) = bytes.first_mut() {
            *first = tag;
        }
        let mut out = Vec::new();
        if let Ok(taken) = model.decode(own, &bytes, &mut out) {
            prop_assert!(taken <= bytes.len());
            prop_assert!(out.windows(2).all(|pair| pair[0] < pair[1]));
        }
        prop_assert!(out.capacity() <= 8 * bytes.len().max(1));
    }

    #[test]
    fn damaged_lists_decode_to_a_set_or_an_error(
        ids in btree_set(0u32..50_000, 1..200),
        flips in vec(any::<prop::sample::Index>(), 1..4),
        cut in any::<prop::sample::Index>(),
        plain in any::<bool>(),
    ) {
        let ids: Vec<u32> = ids.into_iter().collect();
        let model = if plain { ListModel::elias_fano(50_000, 32) } else { trained(50_000, 32, 4) };
        let mut bytes = Vec::new();
        model.encode(25_000, &ids, &mut bytes).unwrap();
        let mut out = Vec::new();
        prop_assert!(model.decode(25_000, &bytes[..cut.index(bytes.len())], &mut out).is_err());
        for flip in flips {
            let bit = flip.index(8 * bytes.len());
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
        if model.decode(25_000, &bytes, &mut out).is_ok() {
            prop_assert!(out.windows(2).all(|pair| pair[0] < pair[1]));
        }
    }

    #[test]
    fn any_bytes_are_a_model_or_an_error(
        bytes in vec(any::<u8>(), 0..200),
        flip in any::<prop::sample::Index>(),
        cut in any::<prop::sample::Index>(),
    ) {
        let _ = ListModel::from_bytes(&bytes);
        let mut bytes = trained(1000, 16, 3).to_bytes();
        prop_assert!(ListModel::from_bytes(&bytes[..cut.index(bytes.len())]).is_err());
        let bit = flip.index(8 * bytes.len());
        bytes[bit / 8] ^= 1 << (bit % 8);
        if let Ok(model) = ListModel::from_bytes(&bytes) {
            round_trip(&model, 5, &[1, 2, 3, 900]);
        }
    }
}
