//! Tests of vectors.

use proptest::collection::vec;
use proptest::prelude::*;
use std::sync::OnceLock;
use stratann_codec::{CodecError, Element, SegmentModel, Shape, VectorCodec, xor_delta};

const CODECS: [VectorCodec; 4] = [
    VectorCodec::Stored,
    VectorCodec::Huffman,
    VectorCodec::FloatSplit,
    VectorCodec::Classes,
];
const ELEMENTS: [Element; 4] = [Element::F32, Element::F16, Element::U8, Element::I8];

fn numbers(seed: u64) -> impl Iterator<Item = u32> {
    let mut state = seed;
    std::iter::from_fn(move || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        Some((state >> 33) as u32)
    })
}

fn bell(seed: u64, width: f32) -> impl Iterator<Item = f32> {
    let mut numbers = numbers(seed);
    std::iter::from_fn(move || {
        let sum: f32 = (&mut numbers)
            .take(6)
            .map(|x| x as f32 / (1u64 << 31) as f32)
            .sum();
        Some((sum - 3.0) * width)
    })
}

fn f16_bits(value: f32) -> u16 {
    // Valid only for numbers that are normal as f16. The mantissa is truncated.
    let bits = value.to_bits();
    let exponent = (bits >> 23 & 255) as i32 - 127 + 15;
    (bits >> 16 & 0x8000) as u16
        | (exponent.clamp(1, 30) as u16) << 10
        | (bits >> 13 & 0x3ff) as u16
}

fn sample(element: Element, dim: usize, count: usize) -> Vec<u8> {
    let values = bell(3, 0.1).take(dim * count);
    match element {
        Element::F32 => values
            .zip(numbers(6))
            .flat_map(|(x, noise)| (x.to_bits() ^ (noise >> 19)).to_le_bytes())
            .collect(),
        Element::F16 => values.flat_map(|x| f16_bits(x).to_le_bytes()).collect(),
        Element::U8 | Element::I8 => values
            .enumerate()
            .map(|(i, x)| {
                // The width depends on the position, and on which of two kinds the vector has.
                let kind = i / dim % 2 * dim / 2;
                (x * (4 * ((i + kind) % dim) + 3) as f32 / dim as f32 * 100.0) as i8 as u8
            })
            .collect(),
    }
}

fn models(shape: Shape, sample: &[u8]) -> Vec<SegmentModel> {
    let mut models: Vec<SegmentModel> = CODECS
        .into_iter()
        .filter_map(|codec| {
            let model = SegmentModel::train_codec(shape, codec, sample)?;
            assert_eq!(model.codec(), codec);
            Some(model)
        })
        .collect();
    models.push(SegmentModel::train(shape, sample));
    models
}

fn shape(element: Element, dim: usize) -> Shape {
    Shape::new(element, dim).unwrap()
}

fn encoded(model: &SegmentModel, vector: &[u8], base: Option<&[u8]>) -> Vec<u8> {
    let mut bytes = vec![9; 2];
    model.encode(vector, base, &mut bytes).unwrap();
    bytes.split_off(2)
}

fn round_trip(model: &SegmentModel, vector: &[u8], base: Option<&[u8]>) -> usize {
    let bytes = encoded(model, vector, base);
    assert!(bytes.len() <= model.max_encoded_bytes());
    let mut out = vec![0x5a; vector.len()];
    model.decode(&bytes, base, &mut out).unwrap();
    assert_eq!(out, vector, "{:?}", model.codec());
    bytes.len()
}

#[test]
fn every_codec_gives_back_every_dimension() {
    for element in ELEMENTS {
        for dim in [1, 2, 3, 7, 8, 63, 64, 65, 127, 130, 384, 1000] {
            let shape = shape(element, dim);
            let rows = sample(element, dim, 1500);
            for model in models(shape, &rows[..(40 * shape.vector_bytes())]) {
                let stored = SegmentModel::from_bytes(&model.to_bytes()).unwrap();
                assert_eq!(stored.to_bytes(), model.to_bytes());
                assert_eq!((stored.codec(), stored.shape()), (model.codec(), shape));
                for row in rows.chunks_exact(shape.vector_bytes()).take(30) {
                    assert_eq!(
                        round_trip(&model, row, None),
                        round_trip(&stored, row, None)
                    );
                }
            }
        }
    }
}

#[test]
fn extreme_vectors_come_back() {
    for element in ELEMENTS {
        let shape = shape(element, 64);
        let size = shape.vector_bytes();
        let floats: Vec<u8> = [
            0x7fc0_0001u32,
            0xffff_ffff,
            0x7f80_0001,
            0x7f80_0000,
            0xff80_0000,
            0,
            0x8000_0000,
            1,
            0x807f_ffff,
            0x0080_0000,
            0x7f7f_ffff,
            0x3f80_0000,
        ]
        .iter()
        .cycle()
        .flat_map(|bits| bits.to_le_bytes())
        .take(size)
        .collect();
        let halves: Vec<u8> = [
            0x7e01u16, 0xffff, 0x7c01, 0x7c00, 0xfc00, 0, 0x8000, 1, 0x83ff, 0x0400, 0x7bff, 0x3c00,
        ]
        .iter()
        .cycle()
        .flat_map(|bits| bits.to_le_bytes())
        .take(size)
        .collect();
        let noise: Vec<u8> = numbers(8).map(|x| x as u8).take(size).collect();
        let rising: Vec<u8> = (0..=255).cycle().take(size).collect();
        let extremes = [
            floats,
            halves,
            noise,
            rising,
            vec![0; size],
            vec![255; size],
        ];
        let mut samples = vec![sample(element, 64, 2000), Vec::new()];
        samples.extend(extremes.iter().map(|vector| vector.repeat(1100)));
        for rows in samples {
            for model in models(shape, &rows) {
                for vector in &extremes {
                    round_trip(&model, vector, None);
                }
            }
        }
    }
}

#[test]
fn equal_vectors_become_short() {
    let vector: Vec<u8> = sample(Element::U8, 128, 1);
    let rows = vector.repeat(2000);
    let shape = shape(Element::U8, 128);
    let base = xor_delta::choose_base(&rows, 128).unwrap();
    assert_eq!(base, vector);
    let mut counts = xor_delta::ByteCounts::new();
    counts.add(&rows, Some(&base));
    let model = SegmentModel::huffman(shape, &counts);
    // No word of a Huffman code is shorter than one bit.
    assert!(round_trip(&model, &vector, Some(&base)) <= 18);
    round_trip(&model, &rows[1..129], Some(&base));
}

#[test]
fn the_best_codec_is_chosen() {
    let floats = shape(Element::F32, 96);
    let rows = sample(Element::F32, 96, 2000);
    assert_eq!(
        SegmentModel::train(floats, &rows).codec(),
        VectorCodec::FloatSplit
    );
    let bytes = shape(Element::U8, 96);
    let rows = sample(Element::U8, 96, 4000);
    assert_eq!(
        SegmentModel::train(bytes, &rows).codec(),
        VectorCodec::Classes
    );
    let noise: Vec<u8> = numbers(5)
        .map(|x| (x >> 11) as u8)
        .take(96 * 2000)
        .collect();
    assert_eq!(
        SegmentModel::train(bytes, &noise).codec(),
        VectorCodec::Stored
    );
    assert_eq!(SegmentModel::train(bytes, &[]).codec(), VectorCodec::Stored);
}

#[test]
fn floats_that_once_were_shorter_lose_their_zeros() {
    let dim = 128;
    let shape = shape(Element::F32, dim);
    for (zeros, ratio) in [(16u32, 2.5), (13, 2.0), (4, 1.3), (0, 1.15)] {
        let rows: Vec<u8> = bell(4, 0.05)
            .take(dim * 500)
            .flat_map(|x| (x.to_bits() >> zeros << zeros).to_le_bytes())
            .collect();
        let model = SegmentModel::train_codec(shape, VectorCodec::FloatSplit, &rows).unwrap();
        let coded: usize = rows
            .chunks_exact(4 * dim)
            .map(|row| round_trip(&model, row, None))
            .sum();
        assert!(
            rows.len() as f64 / coded as f64 > ratio,
            "{zeros}: {coded} of {}",
            rows.len()
        );
        let full: Vec<u8> = bell(9, 0.05).take(dim).flat_map(f32::to_le_bytes).collect();
        let bytes = round_trip(&model, &full, None);
        assert_eq!(bytes == full.len() + 1, zeros > 0);
    }
}

#[test]
fn what_does_not_fit_the_model_is_refused() {
    let rows = sample(Element::U8, 32, 1500);
    let shape32 = shape(Element::U8, 32);
    let mut out = vec![0; 32];
    for model in models(shape32, &rows) {
        let bytes = encoded(&model, &rows[..32], None);
        assert!(matches!(
            model.encode(&rows[..31], None, &mut Vec::new()),
            Err(CodecError::Length {
                found: 31,
                expected: 32,
                ..
            })
        ));
        assert!(matches!(
            model.decode(&bytes, None, &mut [0; 33]),
            Err(CodecError::Length {
                found: 33,
                expected: 32,
                ..
            })
        ));
        // With another length of the slice, decoding gives an error or another vector.
        for other in [&bytes[..bytes.len() - 1], &[&bytes[..], &[0]].concat()] {
            let outcome = model.decode(other, None, &mut out);
            assert!(outcome.is_err() || out != rows[..32]);
        }
        assert!(model.decode(&[], None, &mut out).is_err());
        let base = vec![1; 32];
        if model.codec() == VectorCodec::Huffman {
            round_trip(&model, &rows[..32], Some(&base));
            assert!(matches!(
                model.decode(&bytes, Some(&base[1..]), &mut out),
                Err(CodecError::Length { found: 31, .. })
            ));
        } else {
            assert!(matches!(
                model.decode(&bytes, Some(&base), &mut out),
                Err(CodecError::Base(_))
            ));
        }
        let mut later = model.to_bytes();
        later[0] = 7;
        assert!(matches!(
            SegmentModel::from_bytes(&later),
            Err(CodecError::Version { found: 7, .. })
        ));
    }
    for dim in [0, 65_537, usize::MAX / 8] {
        assert!(Shape::new(Element::F32, dim).is_err());
    }
    assert!(Shape::new(Element::F32, 65_536).is_ok());
    assert!(SegmentModel::train_codec(shape32, VectorCodec::FloatSplit, &rows).is_none());
    assert!(SegmentModel::train_codec(shape32, VectorCodec::Classes, &rows[..3200]).is_none());
}

fn all_models() -> &'static [SegmentModel] {
    static MODELS: OnceLock<Vec<SegmentModel>> = OnceLock::new();
    MODELS.get_or_init(|| {
        ELEMENTS
            .into_iter()
            .flat_map(|element| {
                [5usize, 64]
                    .into_iter()
                    .flat_map(move |dim| models(shape(element, dim), &sample(element, dim, 1200)))
            })
            .collect()
    })
}

proptest! {
    #[test]
    fn any_vector_comes_back(noise in vec(any::<u8>(), 256), mask in any::<u8>()) {
        for model in all_models() {
            let size = model.shape().vector_bytes();
            let vector: Vec<u8> = noise[..size].iter().map(|byte| byte & mask).collect();
            round_trip(model, &vector, None);
            if model.codec() == VectorCodec::Huffman {
                let base: Vec<u8> = noise.iter().rev().take(size).copied().collect();
                round_trip(model, &vector, Some(&base));
            }
        }
    }

    #[test]
    fn any_bytes_decode_or_give_an_error(bytes in vec(any::<u8>(), 0..300), first in 0u8..4) {
        let mut bytes = bytes;
        for model in all_models() {
            let mut out = vec![0; model.shape().vector_bytes()];
            let _ = model.decode(&bytes, None, &mut out);
            if let Some(byte) = bytes.first_mut() {
                *byte = first;
            }
            let _ = model.decode(&bytes, None, &mut out);
        }
    }

    #[test]
    fn damaged_vectors_decode_or_give_an_error(
        row in 0usize..20,
        flips in vec(any::<prop::sample::Index>(), 1..4),
        cut in any::<prop::sample::Index>(),
    ) {
        for model in all_models() {
            let size = model.shape().vector_bytes();
            let rows = sample(model.shape().element(), model.shape().dim(), 20);
            let mut bytes = encoded(model, &rows[row * size..][..size], None);
            let mut out = vec![0; size];
            let _ = model.decode(&bytes[..cut.index(bytes.len())], None, &mut out);
            for flip in &flips {
                let bit = flip.index(8 * bytes.len());
                bytes[bit / 8] ^= 1 << (bit % 8);
            }
            let _ = model.decode(&bytes, None, &mut out);
        }
    }

    #[test]
    fn any_bytes_are_a_model_or_an_error(
        noise in vec(any::<u8>(), 0..300),
        flip in any::<prop::sample::Index>(),
        cut in any::<prop::sample::Index>(),
    ) {
        let _ = SegmentModel::from_bytes(&noise);
        for model in all_models() {
            let mut bytes = model.to_bytes();
            prop_assert!(SegmentModel::from_bytes(&bytes[..cut.index(bytes.len())]).is_err());
            let bit = flip.index(8 * bytes.len());
            bytes[bit / 8] ^= 1 << (bit % 8);
            if let Ok(damaged) = SegmentModel::from_bytes(&bytes) {
                let vector = vec![3; damaged.shape().vector_bytes()];
                round_trip(&damaged, &vector, None);
            }
        }
    }
}
