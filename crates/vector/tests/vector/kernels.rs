//! Tests of every kernel on every instruction set of this machine, against oracles and one another.

use half::f16;
use proptest::prelude::*;
use stratann_vector::{Element, InstructionSet, Kernel, Metric, to_f32};

/// The distance by definition, in f64, and the sum of the magnitudes of its terms, which bounds the
/// error.
fn oracle(metric: Metric, a: &[f32], b: &[f32]) -> (f64, f64) {
    let pairs = || a.iter().zip(b).map(|(x, y)| (f64::from(*x), f64::from(*y)));
    match metric {
        Metric::L2 => {
            let sum = pairs().map(|(x, y)| (x - y) * (x - y)).sum();
            (sum, sum)
        }
        Metric::InnerProduct => (
            -pairs().map(|(x, y)| x * y).sum::<f64>(),
            pairs().map(|(x, y)| (x * y).abs()).sum(),
        ),
        Metric::Cosine => {
            let ab: f64 = pairs().map(|(x, y)| x * y).sum();
            let lengths = (pairs().map(|(x, _)| x * x).sum::<f64>()
                * pairs().map(|(_, y)| y * y).sum::<f64>())
            .sqrt();
            (
                if lengths > 0.0 {
                    1.0 - ab / lengths
                } else {
                    1.0
                },
                1.0,
            )
        }
    }
}

fn integer_oracle(metric: Metric, a: &[f32], b: &[f32]) -> f32 {
    let pairs = || a.iter().zip(b).map(|(x, y)| (*x as i64, *y as i64));
    match metric {
        Metric::L2 => pairs().map(|(x, y)| (x - y) * (x - y)).sum::<i64>() as f32,
        Metric::InnerProduct => -pairs().map(|(x, y)| x * y).sum::<i64>() as f32,
        Metric::Cosine => {
            let ab: i64 = pairs().map(|(x, y)| x * y).sum();
            let aa: i64 = pairs().map(|(x, _)| x * x).sum();
            let bb: i64 = pairs().map(|(_, y)| y * y).sum();
            let lengths = (aa as f64 * bb as f64).sqrt();
            if lengths > 0.0 {
                (1.0 - (ab as f64 / lengths).clamp(-1.0, 1.0)) as f32
            } else {
                1.0
            }
        }
    }
}

fn numbers(mut state: u64) -> impl FnMut() -> u64 {
    move || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        state >> 33
    }
}

fn row(element: Element, dim: usize, seed: u64) -> Vec<u8> {
    let mut next = numbers(seed);
    next();
    match element {
        Element::U8 | Element::I8 => (0..dim).map(|_| next() as u8).collect(),
        _ => (0..dim)
            .flat_map(|i| {
                let x = (next() as f64 / (1u64 << 30) as f64 - 1.0)
                    * if i % 7 == 0 { 1e-5 } else { 1.0 };
                match element {
                    Element::F32 => (x as f32).to_le_bytes().to_vec(),
                    _ => f16::from_f64(x).to_le_bytes().to_vec(),
                }
            })
            .collect(),
    }
}

fn floats(element: Element, bytes: &[u8]) -> Vec<f32> {
    let mut out = vec![0.0; bytes.len() / element.size()];
    to_f32(element, bytes, &mut out);
    out
}

fn check(metric: Metric, element: Element, dim: usize, a: &[u8], b: &[u8]) {
    let (x, y) = (floats(element, a), floats(element, b));
    let (expected, magnitude) = oracle(metric, &x, &y);
    let plain = Kernel::with_isa(metric, element, dim, InstructionSet::Plain).distance(a, b);
    if element.is_float() {
        let error = (f64::from(plain) - expected).abs();
        assert!(
            error <= 1e-5 * magnitude + 1e-30,
            "{metric} {element} {dim}: {plain} for {expected}"
        );
    } else {
        assert_eq!(
            plain,
            integer_oracle(metric, &x, &y),
            "{metric} {element} {dim}"
        );
    }
    for isa in InstructionSet::available() {
        let kernel = Kernel::with_isa(metric, element, dim, *isa);
        let found = kernel.distance(a, b);
        assert_eq!(
            found.to_bits(),
            plain.to_bits(),
            "{isa} {metric} {element} {dim}: {found} for {plain}"
        );
        assert_eq!(
            kernel.distance(b, a).to_bits(),
            plain.to_bits(),
            "{isa} {metric} {element} {dim}: symmetry"
        );
    }
}

/// The squares of these elements overflow or vanish in f32.
#[test]
fn cosine_does_not_depend_on_lengths_and_no_distance_is_nan() {
    let scales = [
        3e38, 1e30, 1e20, 1e19, 1e15, 1.0, 1e-14, 1e-20, 1e-30, 1e-38, 1e-42, 1e-44,
    ];
    for dim in [1, 3, 16, 31, 32, 33, 100, 257] {
        let rows = [5u64, 6].map(|seed| floats(Element::F32, &row(Element::F32, dim, seed)));
        for (a, b) in scales
            .iter()
            .flat_map(|a| scales.iter().map(move |b| (*a, *b)))
        {
            let scaled = |row: &[f32], by: f32| row.iter().map(|x| x * by).collect::<Vec<f32>>();
            let (x, y) = (scaled(&rows[0], a), scaled(&rows[1], b));
            let bytes = |row: &[f32]| {
                row.iter()
                    .flat_map(|x| x.to_le_bytes())
                    .collect::<Vec<u8>>()
            };
            let (p, q) = (bytes(&x), bytes(&y));
            for metric in Metric::ALL {
                let plain = Kernel::with_isa(metric, Element::F32, dim, InstructionSet::Plain);
                let found = plain.distance(&p, &q);
                assert!(!found.is_nan(), "{metric} {dim}: {a:e} and {b:e}");
                let (expected, magnitude) = oracle(metric, &x, &y);
                let limit = 1e-5 * magnitude + 1e-30;
                match metric {
                    Metric::L2 if !found.is_finite() => assert!(expected > 3e38, "{expected}"),
                    _ if expected.abs() > f64::from(f32::MAX) => assert!(found.is_infinite()),
                    _ => assert!(
                        (f64::from(found) - expected).abs() <= limit,
                        "{metric} {dim}: {found} for {expected}, {a:e} and {b:e}"
                    ),
                }
                for isa in InstructionSet::available() {
                    let kernel = Kernel::with_isa(metric, Element::F32, dim, *isa);
                    let same = kernel.distance(&p, &q).to_bits() == found.to_bits();
                    assert!(same, "{isa} {metric} {dim}: {a:e} and {b:e}");
                    let mut dense = [0.0];
                    kernel.distances_dense(&p, &q, &mut dense);
                    assert_eq!(dense[0].to_bits(), found.to_bits());
                }
            }
        }
    }
}

#[test]
fn cosine_of_extreme_halves() {
    let halves = |values: &[f32]| {
        values
            .iter()
            .flat_map(|x| f16::from_f32(*x).to_le_bytes())
            .collect::<Vec<u8>>()
    };
    let kernel = Kernel::new(Metric::Cosine, Element::F16, 2);
    let (tiny, huge) = (halves(&[6e-8, 6e-8]), halves(&[65_504.0, 65_504.0]));
    assert!(kernel.distance(&tiny, &huge) < 1e-6);
    assert!((kernel.distance(&tiny, &halves(&[65_504.0, -65_504.0])) - 1.0).abs() < 1e-6);
}

fn elements() -> impl Strategy<Value = Element> {
    proptest::sample::select(&Element::ALL[..])
}

fn metrics() -> impl Strategy<Value = Metric> {
    proptest::sample::select(&Metric::ALL[..])
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    #[test]
    fn all_instruction_sets_agree_with_the_oracle(
        metric in metrics(), element in elements(), dim in 1usize..1100, offset in 0usize..67, seed: u64,
    ) {
        // The rows have any alignment, and the allocation ends with the row.
        let mut a = vec![0xff; offset];
        a.extend(row(element, dim, seed));
        let mut b = vec![0xff; 66 - offset];
        b.extend(row(element, dim, !seed));
        check(metric, element, dim, &a[offset..], &b[66 - offset..]);
    }

    #[test]
    fn many_distances_are_the_single_ones(
        metric in metrics(), element in elements(), dim in 1usize..400, count in 1usize..40,
        ids in proptest::collection::vec(any::<u32>(), 0..50), seed: u64,
    ) {
        let query = row(element, dim, seed);
        let matrix = row(element, dim * count, seed ^ 1);
        let ids: Vec<u32> = ids.iter().map(|id| id % count as u32).collect();
        for isa in InstructionSet::available() {
            let kernel = Kernel::with_isa(metric, element, dim, *isa);
            let expected: Vec<f32> = matrix.chunks(kernel.row_bytes()).map(|r| kernel.distance(&query, r)).collect();
            let mut dense = vec![f32::NAN; count];
            kernel.distances_dense(&query, &matrix, &mut dense);
            prop_assert_eq!(&dense, &expected);
            let mut gathered = vec![f32::NAN; ids.len()];
            kernel.distances(&query, &matrix, &ids, &mut gathered);
            let expected: Vec<f32> = ids.iter().map(|id| expected[*id as usize]).collect();
            prop_assert_eq!(&gathered, &expected);
        }
    }
}

#[test]
fn every_small_dimension() {
    for dim in 1..=200 {
        for metric in Metric::ALL {
            for element in Element::ALL {
                check(
                    metric,
                    element,
                    dim,
                    &row(element, dim, dim as u64),
                    &row(element, dim, 7),
                );
            }
        }
    }
}

#[test]
fn integer_extremes_do_not_overflow() {
    for dim in [127, 128, 16_384, 16_385, 70_001] {
        for metric in Metric::ALL {
            for (element, low, high) in [(Element::U8, 0u8, 255u8), (Element::I8, 0x80, 0x7f)] {
                for (x, y) in [(low, high), (high, high), (low, low)] {
                    check(metric, element, dim, &vec![x; dim], &vec![y; dim]);
                }
            }
        }
    }
}

#[test]
fn narrow_rows_have_the_distances_of_all_rows() {
    let narrow = |dim, seed| -> Vec<u8> {
        let mut next = numbers(seed);
        let row = (0..dim).map(|_| (next() % 127) as i8 - Kernel::NARROW_LARGEST);
        row.map(i8::cast_unsigned).collect()
    };
    let extreme = [-Kernel::NARROW_LARGEST, Kernel::NARROW_LARGEST].map(i8::cast_unsigned);
    for dim in (1..300).chain([1_536, 16_384, 40_000, 65_537]) {
        let rows = [
            [narrow(dim, 1), narrow(dim, 2)],
            extreme.map(|byte| vec![byte; dim]),
        ];
        for [a, b] in rows {
            let expected = Kernel::with_isa(Metric::L2, Element::I8, dim, InstructionSet::Plain);
            let expected = expected.distance(&a, &b);
            for &isa in InstructionSet::available() {
                let kernel = Kernel::narrow_with_isa(dim, isa);
                assert_eq!(kernel.distance(&a, &b), expected, "{isa}, {dim} dimensions");
                let mut shifted = vec![0; 1];
                shifted.extend(&b);
                assert_eq!(kernel.distance(&a, &shifted[1..]), expected);
                let mut many = [0.0; 2];
                kernel.distances(&a, &b, &[0, 0], &mut many);
                assert_eq!(many, [expected; 2]);
            }
        }
    }
}

#[test]
fn zero_vectors_have_no_direction() {
    for isa in InstructionSet::available() {
        for element in Element::ALL {
            let zero = vec![0; 33 * element.size()];
            let other = row(element, 33, 5);
            let kernel = Kernel::with_isa(Metric::Cosine, element, 33, *isa);
            assert_eq!(kernel.distance(&zero, &other), 1.0);
            assert_eq!(kernel.distance(&zero, &zero), 1.0);
            assert_eq!(kernel.distance(&other, &other), 0.0);
        }
    }
}

#[test]
fn every_f16_is_read_exactly() {
    for bits in 0..=u16::MAX {
        let expected = f16::from_bits(bits).to_f32();
        let mut out = [0.0];
        to_f32(Element::F16, &bits.to_le_bytes(), &mut out);
        assert!(
            out[0].to_bits() == expected.to_bits() || (out[0].is_nan() && expected.is_nan()),
            "{bits:#x}"
        );
        if expected.is_nan() {
            continue;
        }
        // The inner product with ones is the only element that is not zero.
        for dim in [16, 5] {
            let mut a = vec![0; 2 * dim];
            a[6..8].copy_from_slice(&bits.to_le_bytes());
            let mut b = vec![0; 2 * dim];
            b[6..8].copy_from_slice(&f16::NEG_ONE.to_le_bytes());
            for isa in InstructionSet::available() {
                let found = Kernel::with_isa(Metric::InnerProduct, Element::F16, dim, *isa)
                    .distance(&a, &b);
                assert_eq!(found, expected, "{isa} {bits:#x}");
            }
        }
    }
}

#[test]
#[should_panic(expected = "a row is not 16 bytes long")]
fn a_row_of_the_wrong_length_is_refused() {
    Kernel::new(Metric::L2, Element::F32, 4).distance(&[0; 16], &[0; 15]);
}

#[test]
#[should_panic(expected = "not below 3")]
fn an_id_out_of_range_is_refused() {
    Kernel::new(Metric::L2, Element::U8, 4).distances(&[0; 4], &[0; 15], &[0, 3], &mut [0.0; 2]);
}
