//! Tests of the names of elements, their codes, and raw rows.

use half::f16;
use proptest::prelude::*;
use stratann_vector::{
    Element, Metric, first_beyond, first_invalid, from_f32, norm, normalize, to_f32,
};

#[test]
fn elements_have_names_and_codes() {
    for (code, element) in Element::ALL.into_iter().enumerate() {
        assert_eq!(usize::from(element.code()), code);
        assert_eq!(Element::from_code(element.code()), Some(element));
        assert_eq!(element.name().parse(), Ok(element));
        assert_eq!(element.to_string().to_uppercase().parse(), Ok(element));
    }
    assert_eq!(Element::ALL.map(Element::size), [4, 2, 1, 1]);
    assert_eq!(Element::ALL.map(Element::name), ["f32", "f16", "u8", "i8"]);
    assert_eq!(Element::from_code(4), None);
    for (alias, element) in [
        ("float32", Element::F32),
        ("float16", Element::F16),
        ("uint8", Element::U8),
        ("int8", Element::I8),
    ] {
        assert_eq!(alias.parse(), Ok(element));
    }
    let error = "f64".parse::<Element>().unwrap_err().to_string();
    assert!(error.contains("f64") && error.contains("f16"), "{error}");
}

#[test]
fn metrics_have_aliases_and_codes() {
    let aliases: [(Metric, &[&str]); 3] = [
        (Metric::L2, &["l2", "l2sq", "euclidean", "squared_l2", "L2"]),
        (
            Metric::InnerProduct,
            &["ip", "mips", "dot", "inner_product", "IP"],
        ),
        (Metric::Cosine, &["cosine", "cos", "Cosine"]),
    ];
    for (code, (metric, aliases)) in aliases.into_iter().enumerate() {
        assert_eq!(usize::from(metric.code()), code);
        assert_eq!(Metric::from_code(metric.code()), Some(metric));
        assert_eq!(metric.name().parse(), Ok(metric));
        assert_eq!(metric.to_string(), metric.name());
        for alias in aliases {
            assert_eq!(alias.parse(), Ok(metric), "{alias}");
        }
    }
    assert_eq!(Metric::from_code(3), None);
    let error = "hamming".parse::<Metric>().unwrap_err().to_string();
    assert!(
        error.contains("hamming") && error.contains("cosine"),
        "{error}"
    );
}

#[test]
fn integers_become_floats() {
    let bytes = [0, 1, 127, 128, 255];
    let mut out = [0.0; 5];
    to_f32(Element::U8, &bytes, &mut out);
    assert_eq!(out, [0.0, 1.0, 127.0, 128.0, 255.0]);
    to_f32(Element::I8, &bytes, &mut out);
    assert_eq!(out, [0.0, 1.0, 127.0, -128.0, -1.0]);
}

#[test]
#[should_panic(expected = "do not hold 2 elements")]
fn a_row_of_the_wrong_length_is_not_converted() {
    to_f32(Element::F32, &[0; 9], &mut [0.0; 2]);
}

#[test]
fn numbers_become_the_elements_that_they_were() {
    let all: Vec<u8> = (0..=255).collect();
    let halves = (0..0x7c00u16).flat_map(|bits| [bits, bits | 0x8000]);
    let halves: Vec<u8> = halves.flat_map(u16::to_le_bytes).collect();
    let floats = [0.1f32, -3e38, 1e-40].map(f32::to_le_bytes).concat();
    for (element, bytes) in [
        (Element::U8, &all),
        (Element::I8, &all),
        (Element::F16, &halves),
        (Element::F32, &floats),
    ] {
        let mut numbers = vec![0.0; bytes.len() / element.size()];
        to_f32(element, bytes, &mut numbers);
        let mut back = vec![0; bytes.len()];
        from_f32(element, &numbers, &mut back);
        assert_eq!(&back, bytes, "{element}");
    }
    let integers = |element| {
        let mut out = [1; 5];
        from_f32(element, &[-1e9, -0.6, 0.6, 1e9, f32::NAN], &mut out);
        out
    };
    assert_eq!(integers(Element::U8), [0, 0, 1, 255, 0]);
    let signed = [-128i8, -1, 1, 127, 0].map(i8::cast_unsigned);
    assert_eq!(integers(Element::I8), signed);
    let mut out = [0; 10];
    let beside = 1.0 + f32::EPSILON;
    from_f32(
        Element::F16,
        &[beside, -beside, 1e9, f32::NEG_INFINITY, f32::NAN],
        &mut out,
    );
    let expected = [0x3c00u16, 0xbc00, 0x7bff, 0xfbff, 0].map(u16::to_le_bytes);
    assert_eq!(out[..], expected.concat());
}

#[test]
fn integers_are_always_valid() {
    assert_eq!(first_invalid(Element::U8, &[255; 300]), None);
    assert_eq!(first_invalid(Element::I8, &[128; 300]), None);
}

#[test]
fn any_vector_but_zero_gets_length_one() {
    for scale in [f32::MAX, 1e30, 1e-30, f32::MIN_POSITIVE, 1e-40, 1e-44] {
        for dim in [1, 2, 7, 300] {
            let mut v: Vec<f32> = (0..dim)
                .map(|i| if i % 2 == 0 { scale } else { -scale })
                .collect();
            normalize(&mut v);
            assert!((norm(&v) - 1.0).abs() < 1e-6, "{scale} {dim}: {}", norm(&v));
        }
    }
    let mut zero = [0.0, -0.0];
    assert_eq!(normalize(&mut zero), 0.0);
    assert_eq!(zero, [0.0, 0.0]);
}

#[test]
fn the_largest_magnitude_leaves_distances_finite() {
    for dim in [1, 2, 32, 1_000, 65_536] {
        let most = Metric::L2.largest_magnitude(dim);
        assert_eq!(most, Metric::InnerProduct.largest_magnitude(dim));
        let apart = f64::from(most) * 2.0;
        let distance = apart * apart * dim as f64;
        assert!(distance < f64::from(f32::MAX) / 15.9 && distance > f64::from(f32::MAX) / 16.1);
        assert_eq!(Metric::Cosine.largest_magnitude(dim), f32::MAX);
    }
}

proptest! {
    #[test]
    fn the_first_element_that_is_too_large_is_found(
        values in proptest::collection::vec(-1e5f32..1e5, 1..200), most in 0f32..2e5, strange in 0usize..400, kind in 0usize..3,
    ) {
        let mut values = values;
        if let Some(value) = values.get_mut(strange) {
            *value = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY][kind];
        }
        let position = |values: &[f32]| values.iter().position(|x| x.is_nan() || x.abs() > most);
        let bytes: Vec<u8> = values.iter().flat_map(|x| x.to_le_bytes()).collect();
        prop_assert_eq!(first_beyond(Element::F32, &bytes, most), position(&values));
        let halves: Vec<f16> = values.iter().map(|x| f16::from_f32(*x)).collect();
        let bytes: Vec<u8> = halves.iter().flat_map(|x| x.to_le_bytes()).collect();
        let values: Vec<f32> = halves.iter().map(|x| x.to_f32()).collect();
        prop_assert_eq!(first_beyond(Element::F16, &bytes, most), position(&values));
        prop_assert_eq!(first_beyond(Element::U8, &bytes, 0.0), None);
    }

    #[test]
    fn the_first_invalid_element_is_found(
        len in 1usize..400, bad in proptest::collection::vec(0usize..400, 0..3), kind in 0usize..3,
    ) {
        let value = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY][kind];
        let mut floats: Vec<f32> = (0..len).map(|i| if i % 2 == 0 { 65_504.0 } else { -1e-7 }).collect();
        for at in bad {
            if at < len {
                floats[at] = value;
            }
        }
        let expected = floats.iter().position(|x| !x.is_finite());
        let bytes: Vec<u8> = floats.iter().flat_map(|x| x.to_le_bytes()).collect();
        prop_assert_eq!(first_invalid(Element::F32, &bytes), expected);
        let bytes: Vec<u8> = floats.iter().flat_map(|x| f16::from_f32(*x).to_le_bytes()).collect();
        prop_assert_eq!(first_invalid(Element::F16, &bytes), expected);
    }

    #[test]
    fn normalized_vectors_have_length_one(mut v in proptest::collection::vec(-1e3f32..1e3, 1..300), scale in -37i32..33) {
        let scale = 10f32.powi(scale);
        v.iter_mut().for_each(|x| *x *= scale);
        let expected = v.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>().sqrt();
        let before = norm(&v);
        prop_assert!((f64::from(before) - expected).abs() <= 1e-6 * expected + 1e-45);
        prop_assert_eq!(normalize(&mut v), before);
        if before > 1e-36 {
            prop_assert!((norm(&v) - 1.0).abs() < 1e-5, "{}", norm(&v));
        }
    }
}

#[test]
fn zero_has_no_direction() {
    let mut v = [0.0; 5];
    assert_eq!(normalize(&mut v), 0.0);
    assert_eq!(v, [0.0; 5]);
    assert_eq!(normalize(&mut []), 0.0);
}
