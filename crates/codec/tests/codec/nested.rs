//! Tests of nested precision.

use proptest::collection::vec;
use proptest::prelude::*;
use std::sync::OnceLock;
use stratann_codec::{CodecError, Element, NestedModel, SegmentModel, Shape};

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
    let (mut terms, mut noise) = (numbers(seed), numbers(seed + 1));
    std::iter::from_fn(move || {
        let sum: f32 = (&mut terms)
            .take(6)
            .map(|x| x as f32 / (1u64 << 31) as f32)
            .sum();
        let value = (sum - 3.0) * width * std::f32::consts::SQRT_2;
        Some(f32::from_bits(value.to_bits() ^ (noise.next()? >> 19)))
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

/// Like embeddings: the elements of some dimensions are far from zero.
fn sample(element: Element, dim: usize, count: usize) -> Vec<u8> {
    let values = bell(3, 0.05)
        .take(dim * count)
        .enumerate()
        .map(|(i, x)| if i % dim % 40 == 7 { x + 0.4 } else { x });
    match element {
        Element::F32 => values.flat_map(f32::to_le_bytes).collect(),
        Element::F16 => values.flat_map(|x| f16_bits(x).to_le_bytes()).collect(),
        Element::U8 => values.map(|x| (x * 400.0 + 128.0) as u8).collect(),
        Element::I8 => values.map(|x| (x * 400.0) as i8 as u8).collect(),
    }
}

fn shape(element: Element, dim: usize) -> Shape {
    Shape::new(element, dim).unwrap()
}

fn models(shape: Shape, sample: &[u8]) -> Vec<NestedModel> {
    let mut steps = NestedModel::steps(shape, sample);
    steps.extend([1, 2, 7, 30, 127, 236]);
    steps
        .into_iter()
        .filter_map(|step| NestedModel::train(shape, step, sample))
        .collect()
}

fn values(element: Element, vector: &[u8]) -> Vec<f64> {
    match element {
        Element::F32 => (vector.as_chunks::<4>().0.iter())
            .map(|&bytes| f32::from_le_bytes(bytes).into())
            .collect(),
        Element::F16 => (vector.as_chunks::<2>().0.iter())
            .map(|&bytes| {
                let bits = u16::from_le_bytes(bytes);
                let (exponent, fraction) = (i32::from(bits >> 10 & 31), f64::from(bits & 0x3ff));
                let magnitude = match exponent {
                    0 => fraction / f64::exp2(24.0),
                    31 => f64::INFINITY,
                    _ => (fraction + 1024.0) * f64::exp2(f64::from(exponent - 25)),
                };
                if bits >> 15 == 1 {
                    -magnitude
                } else {
                    magnitude
                }
            })
            .collect(),
        Element::U8 => vector.iter().map(|&byte| byte.into()).collect(),
        Element::I8 => vector.iter().map(|&byte| (byte as i8).into()).collect(),
    }
}

fn parts(model: &NestedModel, vector: &[u8]) -> (Vec<u8>, Vec<u8>) {
    let (mut leading, mut trailing) = (vec![9; 2], vec![8; 3]);
    model.encode(vector, &mut leading, &mut trailing).unwrap();
    (leading.split_off(2), trailing.split_off(3))
}

fn round_trip(model: &NestedModel, vector: &[u8]) -> (usize, usize) {
    let (leading, trailing) = parts(model, vector);
    assert!(leading.len() <= model.max_leading_bytes());
    assert!(trailing.len() <= model.max_trailing_bytes());
    let mut out = vec![0x5a; vector.len()];
    model.decode(&leading, &trailing, &mut out).unwrap();
    assert_eq!(out, vector, "step {}", model.step());

    let near = model.decode_leading(&leading, &mut out).unwrap();
    let mut rounded = vec![0xa5; vector.len()];
    model.round(vector, &mut rounded).unwrap();
    assert_eq!(rounded, out, "step {}", model.step());
    let element = model.shape().element();
    let error = f64::from(model.error());
    for (found, exact) in values(element, &out)
        .into_iter()
        .zip(values(element, vector))
    {
        assert!(found.is_finite());
        assert!(
            !near || !exact.is_finite() || (found - exact).abs() <= error,
            "{found} for {exact}, step {}",
            model.step()
        );
    }
    (leading.len(), trailing.len())
}

#[test]
fn both_parts_give_back_every_dimension() {
    for element in ELEMENTS {
        for dim in [1, 2, 3, 7, 8, 63, 64, 65, 130, 384] {
            let shape = shape(element, dim);
            let rows = sample(element, dim, 100);
            let worth = NestedModel::steps(shape, &rows);
            assert!(worth.len() >= 4, "{element:?}");
            for model in models(shape, &rows) {
                let stored = NestedModel::from_bytes(&model.to_bytes()).unwrap();
                assert_eq!(stored.to_bytes(), model.to_bytes());
                assert_eq!((stored.step(), stored.shape()), (model.step(), shape));
                for row in rows.chunks_exact(shape.vector_bytes()).take(30) {
                    assert_eq!(round_trip(&model, row), round_trip(&stored, row));
                }
            }
        }
    }
}

fn of_every_exponent(element: Element) -> Vec<u8> {
    match element {
        Element::F32 => (0..=0xff)
            .flat_map(|exponent| [0u32, 1, 0x40_0000, 0x7f_ffff].map(|low| exponent << 23 | low))
            .filter(|&bits| bits <= 0x7f80_0000)
            .flat_map(|bits| [bits, bits | 1 << 31])
            .flat_map(u32::to_le_bytes)
            .collect(),
        Element::F16 => (0..=0x1f)
            .flat_map(|exponent| [0u16, 1, 0x200, 0x3ff].map(|low| exponent << 10 | low))
            .filter(|&bits| bits <= 0x7c00)
            .flat_map(|bits| [bits, bits | 1 << 15])
            .flat_map(u16::to_le_bytes)
            .collect(),
        Element::U8 | Element::I8 => (0..=255).collect(),
    }
}

#[test]
fn any_exponent_comes_back() {
    for element in ELEMENTS {
        let extremes = of_every_exponent(element);
        let dim = extremes.len() / element.size();
        let shape = shape(element, dim);
        let ones = vec![0x3c; extremes.len()];
        for rows in [
            extremes.repeat(3),
            sample(element, dim, 10),
            Vec::new(),
            ones,
        ] {
            for model in models(shape, &rows) {
                round_trip(&model, &extremes);
                round_trip(&model, &vec![0; extremes.len()]);
                round_trip(&model, &vec![0xff; extremes.len()]);
                // All elements of a vector are equal. So each of these values decides alone how its
                // vector is stored.
                for float in extremes.chunks_exact(element.size()).step_by(5) {
                    round_trip(&model, &float.repeat(dim));
                }
            }
        }
    }
}

#[test]
fn the_parts_together_are_as_long_as_the_whole() {
    for element in [Element::F32, Element::F16] {
        let shape = shape(element, 384);
        let rows = sample(element, 384, 600);
        let whole = SegmentModel::train(shape, &rows);
        let mut code = Vec::new();
        for row in rows.chunks_exact(shape.vector_bytes()) {
            whole.encode(row, None, &mut code).unwrap();
        }
        let mut before = 0;
        for step in NestedModel::steps(shape, &rows) {
            let model = NestedModel::train(shape, step, &rows).unwrap();
            let (mut leading, mut trailing) = (0, 0);
            for row in rows.chunks_exact(shape.vector_bytes()) {
                let (a, b) = round_trip(&model, row);
                (leading, trailing) = (leading + a, trailing + b);
            }
            assert!(
                (leading + trailing) as f64 <= 1.01 * code.len() as f64,
                "{element:?}, step {step}: {leading} + {trailing} for {}",
                code.len()
            );
            assert!(leading as f64 > before as f64 + 0.8 * 384.0 * 600.0 / 8.0);
            before = leading;
        }
    }
}

#[test]
fn floats_that_once_were_shorter_lose_their_zeros() {
    let shape = shape(Element::F32, 128);
    for zeros in [16u32, 13, 4] {
        let rows: Vec<u8> = bell(4, 0.05)
            .take(128 * 500)
            .flat_map(|x| (x.to_bits() >> zeros << zeros).to_le_bytes())
            .collect();
        for step in NestedModel::steps(shape, &rows) {
            let model = NestedModel::train(shape, step, &rows).unwrap();
            let bytes: usize = rows
                .chunks_exact(4 * 128)
                .map(|row| round_trip(&model, row))
                .map(|(leading, trailing)| leading + trailing)
                .sum();
            assert!(bytes as f64 <= rows.len() as f64 * f64::from(28 - zeros) / 32.0);
            // A vector with ones in mantissa bits that are zero in the whole sample.
            let full: Vec<u8> = bell(9, 0.05).take(128).flat_map(f32::to_le_bytes).collect();
            round_trip(&model, &full);
        }
    }
}

#[test]
fn what_is_too_far_is_given_or_said_to_be() {
    for (element, size) in [(Element::F32, 4), (Element::F16, 2)] {
        let shape = shape(element, 128);
        let rows = sample(element, 128, 200);
        let step = NestedModel::steps(shape, &rows)[2];
        let model = NestedModel::train(shape, step, &rows).unwrap();
        let mut out = vec![0; 128 * size];
        let far: Vec<u8> = match element {
            Element::F32 => (-9f32).to_le_bytes().into(),
            _ => f16_bits(-9.0).to_le_bytes().into(),
        };
        for row in rows.chunks_exact(128 * size) {
            let (leading, trailing) = parts(&model, row);
            assert!(NestedModel::is_near(&leading));
            assert!(model.decode_leading(&leading, &mut out).unwrap());
            let mut vector = row.to_vec();
            for (count, at) in [(1, 40), (2, 127)] {
                vector[at * size..(at + 1) * size].copy_from_slice(&far);
                let (with, without) = parts(&model, &vector);
                assert!(NestedModel::is_near(&with) && without.len() <= trailing.len());
                assert!(model.decode_leading(&with, &mut out).unwrap());
                assert_eq!(out[at * size..(at + 1) * size], far, "{count}");
                round_trip(&model, &vector);
                let mut wrong = with.clone();
                let place = with.len() - 2 - (2 + size);
                wrong[place] ^= 128;
                assert!(model.decode_leading(&wrong, &mut out).is_err());
                assert!(model.decode(&wrong, &without, &mut out).is_err());
                wrong[place] ^= 128 ^ 1;
                assert!(model.decode(&wrong, &without, &mut out).is_err());
                wrong.clone_from(&with);
                let count = with.len() - 2;
                wrong[count] += 1;
                assert!(model.decode(&wrong, &without, &mut out).is_err());
                wrong[count] -= 2;
                assert!(model.decode(&wrong, &without, &mut out).is_err());
            }
            let many = far.repeat(128);
            let (leading, _) = parts(&model, &many);
            assert!(!NestedModel::is_near(&leading));
            assert!(!model.decode_leading(&leading, &mut out).unwrap());
            round_trip(&model, &many);
            vector[size - 1] = 0x7f;
            vector[size - 2] = 0xf8;
            let (leading, _) = parts(&model, &vector);
            assert!(!NestedModel::is_near(&leading));
            round_trip(&model, &vector);
        }
    }
    let shape = shape(Element::F32, 64);
    let rows = sample(Element::F32, 64, 200);
    let step = NestedModel::steps(shape, &rows)[2];
    let model = NestedModel::train(shape, step, &rows).unwrap();
    let noise: Vec<u8> = numbers(7).take(256).map(|x| x as u8 & 0xbf).collect();
    round_trip(&model, &noise);
}

#[test]
fn what_does_not_fit_the_model_is_refused() {
    for element in ELEMENTS {
        let shape = shape(element, 32);
        let size = shape.vector_bytes();
        let rows = sample(element, 32, 200);
        let step = NestedModel::steps(shape, &rows)[1];
        let model = NestedModel::train(shape, step, &rows).unwrap();
        let (leading, trailing) = parts(&model, &rows[..size]);
        let mut out = vec![0; size];
        let wrong_length = |found: Result<(), CodecError>| {
            assert!(matches!(found, Err(CodecError::Length { .. })), "{found:?}");
        };
        wrong_length(model.encode(&rows[1..size], &mut Vec::new(), &mut Vec::new()));
        wrong_length(model.decode(&leading, &trailing, &mut out[1..]));
        wrong_length(model.decode_leading(&leading, &mut out[1..]).map(|_| ()));
        wrong_length(model.round(&rows[..size], &mut out[1..]));
        wrong_length(model.round(&rows[1..size], &mut out));
        wrong_length(model.decode(&leading, &[&trailing[..], &[0]].concat(), &mut out));
        assert!(model.decode_leading(&[], &mut out).is_err());
        assert!(model.decode(&leading, &[], &mut out).is_err());
        let mut later = model.to_bytes();
        later[0] = 7;
        let later = NestedModel::from_bytes(&later).map(|_| ());
        assert!(matches!(later, Err(CodecError::Version { found: 7, .. })));
    }
    assert!(NestedModel::train(shape(Element::U8, 4), 8, &[]).is_none());
    assert!(NestedModel::train(shape(Element::F32, 4), 1, &[]).is_none());
    assert!(NestedModel::train(shape(Element::F16, 4), 31, &[]).is_none());
    assert_eq!(NestedModel::steps(shape(Element::F32, 4), &[0; 160]), [2]);
}

fn all_models() -> &'static [NestedModel] {
    static MODELS: OnceLock<Vec<NestedModel>> = OnceLock::new();
    MODELS.get_or_init(|| {
        ELEMENTS
            .into_iter()
            .flat_map(|element| {
                [5usize, 64]
                    .into_iter()
                    .flat_map(move |dim| models(shape(element, dim), &sample(element, dim, 300)))
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
            round_trip(model, &vector);
        }
    }

    #[test]
    fn any_bytes_decode_or_give_an_error(
        leading in vec(any::<u8>(), 0..70),
        trailing in vec(any::<u8>(), 0..300),
        modes in any::<(u8, u8)>(),
    ) {
        let (mut leading, mut trailing) = (leading, trailing);
        for model in all_models() {
            let mut out = vec![0; model.shape().vector_bytes()];
            let _ = model.decode_leading(&leading, &mut out);
            let _ = model.decode(&leading, &trailing, &mut out);
            leading.resize(model.max_leading_bytes(), modes.0);
            leading[0] = modes.0 | 1;
            trailing.resize(model.max_trailing_bytes(), modes.1);
            trailing[0] = modes.1 & !2;
            let _ = model.decode_leading(&leading, &mut out);
            let _ = model.decode(&leading, &trailing, &mut out);
        }
    }

    #[test]
    fn damaged_parts_decode_or_give_an_error(
        row in 0usize..20,
        flips in vec(any::<prop::sample::Index>(), 1..4),
        cut in any::<prop::sample::Index>(),
    ) {
        for model in all_models() {
            let size = model.shape().vector_bytes();
            let rows = sample(model.shape().element(), model.shape().dim(), 20);
            let (mut leading, mut trailing) = parts(model, &rows[row * size..][..size]);
            let mut out = vec![0; size];
            let _ = model.decode_leading(&leading[..cut.index(leading.len())], &mut out);
            let _ = model.decode(&leading, &trailing[..cut.index(trailing.len())], &mut out);
            for flip in &flips {
                let bytes = if flip.index(2) == 0 { &mut leading } else { &mut trailing };
                let bit = flip.index(8 * bytes.len());
                bytes[bit / 8] ^= 1 << (bit % 8);
            }
            let _ = model.decode_leading(&leading, &mut out);
            let _ = model.decode(&leading, &trailing, &mut out);
        }
    }

    #[test]
    fn any_bytes_are_a_model_or_an_error(
        noise in vec(any::<u8>(), 0..300),
        flip in any::<prop::sample::Index>(),
        cut in any::<prop::sample::Index>(),
    ) {
        let _ = NestedModel::from_bytes(&noise);
        for model in all_models() {
            let mut bytes = model.to_bytes();
            prop_assert!(NestedModel::from_bytes(&bytes[..cut.index(bytes.len())]).is_err());
            let bit = flip.index(8 * bytes.len());
            bytes[bit / 8] ^= 1 << (bit % 8);
            if let Ok(damaged) = NestedModel::from_bytes(&bytes) {
                let vector = vec![3; damaged.shape().vector_bytes()];
                round_trip(&damaged, &vector);
            }
        }
    }
}
