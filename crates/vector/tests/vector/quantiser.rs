//! Tests of the product quantiser, also for equal bits on every instruction set.

use proptest::prelude::*;
use stratann_vector::{
    CENTROIDS, DistanceTable, InstructionSet, Metric, ProductQuantizer, QuantizerError, Training,
    normalize,
};

fn training(threads: usize) -> Training {
    Training {
        threads,
        seed: 7,
        ..Training::default()
    }
}

fn sample(n: usize, dim: usize, seed: u64) -> Vec<f32> {
    let mut state = seed;
    let mut next = move || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1u64 << 24) as f32
    };
    let centres: Vec<f32> = (0..40 * dim).map(|_| next()).collect();
    (0..n)
        .flat_map(|i| {
            (0..dim)
                .map(move |j| (i % 40) * dim + j)
                .collect::<Vec<_>>()
        })
        .map(|at| centres[at] + 0.3 * next())
        .collect()
}

fn squared(a: &[f32], b: &[f32]) -> f64 {
    a.iter()
        .zip(b)
        .map(|(x, y)| (f64::from(*x) - f64::from(*y)).powi(2))
        .sum()
}

fn error(quantiser: &ProductQuantizer, vectors: &[f32]) -> f64 {
    let (dim, m) = (quantiser.dim(), quantiser.code_bytes());
    let mut codes = vec![0; vectors.len() / dim * m];
    quantiser.encode(vectors, &mut codes, 1);
    let mut decoded = vec![0.0; dim];
    let pairs = vectors.chunks(dim).zip(codes.chunks(m));
    pairs
        .map(|(vector, code)| {
            quantiser.decode(code, &mut decoded);
            squared(vector, &decoded)
        })
        .sum::<f64>()
        / (vectors.len() / dim) as f64
}

fn chunks(dim: usize, m: usize) -> Vec<(usize, usize)> {
    let mut first = 0;
    (0..m)
        .map(|chunk| {
            let width = dim / m + usize::from(chunk < dim % m);
            first += width;
            (first - width, width)
        })
        .collect()
}

#[test]
fn more_bytes_make_less_error() {
    let vectors = sample(2000, 24, 1);
    let errors: Vec<f64> = [1, 2, 4, 8, 24]
        .map(|m| {
            error(
                &ProductQuantizer::train(&vectors, 24, m, &training(2)).unwrap(),
                &vectors,
            )
        })
        .to_vec();
    assert!(
        errors.windows(2).all(|pair| pair[1] < pair[0]),
        "{errors:?}"
    );
    // One byte can distinguish the 40 centres, so the error is at most the spread around them.
    let spread = 24.0 * 0.09 / 12.0;
    assert!(errors[0] < spread, "{errors:?}");
    assert!(errors[4] < 1e-3, "{errors:?}");
}

#[test]
fn iterations_pay() {
    let vectors = sample(3000, 16, 2);
    let error_after = |iterations| {
        let training = Training {
            iterations,
            ..training(1)
        };
        error(
            &ProductQuantizer::train(&vectors, 16, 4, &training).unwrap(),
            &vectors,
        )
    };
    let (none, one, twelve) = (error_after(0), error_after(1), error_after(12));
    assert!(one < none && twelve < one, "{none} {one} {twelve}");
}

fn of_two_densities() -> Vec<f32> {
    let mut rows = sample(3000, 16, 9);
    for x in &mut rows[1500 * 16..] {
        *x = 0.5 + 0.01 * *x;
    }
    rows
}

#[test]
fn what_weighs_more_is_told_apart_better() {
    let rows = of_two_densities();
    let errors = |weights: Option<Vec<f32>>| {
        let training = Training {
            weights: weights.map(Into::into),
            ..training(2)
        };
        let quantiser = ProductQuantizer::train(&rows, 16, 4, &training).unwrap();
        let (wide, narrow) = rows.split_at(1500 * 16);
        (error(&quantiser, wide), error(&quantiser, narrow))
    };
    let plain = errors(None);
    assert_eq!(errors(Some(vec![1.0; 3000])), plain);
    let mut weights = vec![1.0; 1500];
    weights.resize(3000, 1e4);
    let weighted = errors(Some(weights));
    // Half of all centroids serve the narrow half of the vectors.
    assert!(weighted.1 < plain.1 / 4.0, "{plain:?} {weighted:?}");
    assert!(weighted.0 < 4.0 * plain.0, "{plain:?} {weighted:?}");
}

#[test]
fn weights_that_fit_no_sample_are_refused() {
    let rows = of_two_densities();
    let lacking = vec![1.0; 2999];
    let with = |weight| {
        let mut weights = vec![1.0; 3000];
        weights[7] = weight;
        weights
    };
    for weights in [
        lacking,
        with(0.0),
        with(-1.0),
        with(f32::NAN),
        with(f32::INFINITY),
    ] {
        let training = Training {
            weights: Some(weights.into()),
            ..training(1)
        };
        let refused = ProductQuantizer::train(&rows, 16, 4, &training).err();
        assert!(matches!(refused, Some(QuantizerError::Weights { .. })));
    }
}

#[test]
fn threads_and_instruction_sets_change_nothing() {
    for (dim, m) in [
        (32, 8),
        (19, 4),
        (40, 5),
        (7, 7),
        (30, 10),
        (33, 2),
        (50, 1),
    ] {
        let vectors = sample(1501, dim, 3);
        let expected =
            ProductQuantizer::train_with_isa(&vectors, dim, m, &training(1), InstructionSet::Plain)
                .unwrap();
        let mut codes = vec![0; 1501 * m];
        expected.encode(&vectors, &mut codes, 1);
        let mut table = DistanceTable::with_isa(InstructionSet::Plain);
        for isa in InstructionSet::available() {
            let threads = match *isa == InstructionSet::current() {
                true => &[0, 1, 2, 3, 16][..],
                false => &[2],
            };
            for &threads in threads {
                let found =
                    ProductQuantizer::train_with_isa(&vectors, dim, m, &training(threads), *isa)
                        .unwrap();
                assert!(
                    found.centroids() == expected.centroids(),
                    "{isa} {threads} threads, {dim}/{m}"
                );
                let mut found_codes = vec![0; 1501 * m];
                found.encode(&vectors, &mut found_codes, threads);
                assert!(
                    found_codes == codes,
                    "{isa} {threads} threads, {dim}/{m}: codes"
                );
            }
            let quantiser = expected.clone().with_isa(*isa);
            let mut found = DistanceTable::with_isa(*isa);
            let ids: Vec<u32> = (0..100).map(|i| i * 701 % 1501).collect();
            for metric in Metric::ALL {
                expected.table(metric, &vectors[..dim], &mut table);
                quantiser.table(metric, &vectors[..dim], &mut found);
                let bits = |table: &DistanceTable| {
                    table
                        .entries()
                        .iter()
                        .map(|x| x.to_bits())
                        .collect::<Vec<_>>()
                };
                assert!(bits(&table) == bits(&found), "{isa} {metric}: table");
                let (mut scores, mut found_scores) = ([0.0; 100], [f32::NAN; 100]);
                table.score(&codes, &ids, &mut scores);
                found.score(&codes, &ids, &mut found_scores);
                assert_eq!(
                    scores.map(f32::to_bits),
                    found_scores.map(f32::to_bits),
                    "{isa} {metric}: scores"
                );
            }
        }
    }
}

#[test]
fn seeds_choose_other_centroids() {
    let vectors = sample(1000, 8, 4);
    let train = |seed| {
        ProductQuantizer::train(
            &vectors,
            8,
            2,
            &Training {
                seed,
                ..training(1)
            },
        )
        .unwrap()
    };
    assert!(train(1).centroids() == train(1).centroids());
    assert!(train(1).centroids() != train(2).centroids());
}

#[test]
fn a_small_sample_is_learned_by_heart() {
    for (n, dim, m) in [(1, 6, 3), (5, 6, 6), (255, 10, 4), (256, 10, 4)] {
        let vectors = sample(n, dim, 5);
        let quantiser = ProductQuantizer::train(&vectors, dim, m, &training(2)).unwrap();
        assert!(quantiser.centroids().iter().all(|x| x.is_finite()));
        assert_eq!(error(&quantiser, &vectors), 0.0, "{n} vectors");
        for (first, width) in chunks(dim, m) {
            let mut distinct: Vec<Vec<u32>> = quantiser.centroids()[first * CENTROIDS..]
                [..width * CENTROIDS]
                .chunks(width)
                .map(|c| c.iter().map(|x| x.to_bits()).collect())
                .collect();
            distinct.sort();
            distinct.dedup();
            assert!(distinct.len() <= n);
        }
    }
}

#[test]
fn few_distinct_vectors_among_many() {
    let vectors: Vec<f32> = sample(3, 4, 6).repeat(500);
    let quantiser = ProductQuantizer::train(&vectors, 4, 2, &training(1)).unwrap();
    assert_eq!(error(&quantiser, &vectors), 0.0);
}

#[test]
fn all_centroids_are_used() {
    // After a bad start some centroids would have no points, and training must give them some.
    let mut vectors = sample(4000, 4, 7);
    for x in &mut vectors[..4 * 3000] {
        *x = *x * 1e-3 + 10.0;
    }
    let quantiser = ProductQuantizer::train(&vectors, 4, 1, &training(1)).unwrap();
    let mut codes = vec![0; 4000];
    quantiser.encode(&vectors, &mut codes, 1);
    codes.sort();
    codes.dedup();
    assert!(codes.len() > 250, "{} of 256 used", codes.len());
}

#[test]
fn huge_and_tiny_numbers_do_no_harm() {
    for scale in [f32::MAX / 2.0, 1e30, 1e-30, 1e-44, 0.0] {
        let vectors: Vec<f32> = sample(700, 6, 8).iter().map(|x| x * scale).collect();
        let quantiser = ProductQuantizer::train(&vectors, 6, 3, &training(1)).unwrap();
        assert!(
            quantiser.centroids().iter().all(|x| x.is_finite()),
            "{scale}"
        );
        let mut codes = vec![0; 700 * 3];
        quantiser.encode(&vectors, &mut codes, 1);
    }
}

#[test]
fn numbers_at_the_bound_are_quantised_as_well_as_small_ones() {
    let (dim, count) = (6, 3_000);
    let small = sample(count, dim, 8);
    let quality = |vectors: &[f32], most: f32| {
        let quantiser = ProductQuantizer::train(vectors, dim, 3, &training(1)).unwrap();
        let mut codes = vec![0; count * 3];
        quantiser.encode(vectors, &mut codes, 1);
        let mut out = vec![0.0; dim];
        let mut sum = 0.0;
        let mut table = DistanceTable::default();
        for (code, vector) in codes.chunks_exact(3).zip(vectors.chunks_exact(dim)) {
            quantiser.decode(code, &mut out);
            let apart = out
                .iter()
                .zip(vector)
                .map(|(a, b)| f64::from(a - b).powi(2));
            sum += apart.sum::<f64>();
            for metric in [Metric::L2, Metric::InnerProduct] {
                quantiser.table(metric, vector, &mut table);
                assert!(table.score_one(code).is_finite());
            }
        }
        sum / count as f64 / f64::from(most).powi(2)
    };
    let most = Metric::L2.largest_magnitude(dim);
    let expected = quality(&small, 1.0);
    let found = quality(&small.iter().map(|x| x * most).collect::<Vec<_>>(), most);
    assert!(found < 1.2 * expected, "{found} for {expected}");
}

#[test]
fn wrong_shapes_and_numbers_are_refused() {
    let train = |sample: &[f32], dim, m| {
        ProductQuantizer::train(sample, dim, m, &training(1))
            .map(|_| ())
            .unwrap_err()
    };
    assert_eq!(
        train(&[1.0; 8], 4, 5),
        QuantizerError::CodeBytes {
            code_bytes: 5,
            dim: 4
        }
    );
    assert_eq!(
        train(&[1.0; 8], 4, 0),
        QuantizerError::CodeBytes {
            code_bytes: 0,
            dim: 4
        }
    );
    assert_eq!(
        train(&[], 0, 0),
        QuantizerError::CodeBytes {
            code_bytes: 0,
            dim: 0
        }
    );
    assert_eq!(
        train(&[], 4, 2),
        QuantizerError::Sample { floats: 0, dim: 4 }
    );
    assert_eq!(
        train(&[1.0; 9], 4, 2),
        QuantizerError::Sample { floats: 9, dim: 4 }
    );
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let mut sample = vec![0.5; 400];
        sample[301] = bad;
        let error = train(&sample, 4, 2);
        assert_eq!(
            error,
            QuantizerError::NotFinite {
                position: 301,
                dim: 4
            }
        );
        assert!(
            error.to_string().contains("dimension 1 of vector 75"),
            "{error}"
        );
    }
    let parts = |dim, m, n| ProductQuantizer::from_parts(dim, m, vec![0.0; n]).map(|_| ());
    assert_eq!(
        parts(4, 2, 1023),
        Err(QuantizerError::Centroids {
            floats: 1023,
            dim: 4
        })
    );
    assert_eq!(
        parts(4, 5, 1024),
        Err(QuantizerError::CodeBytes {
            code_bytes: 5,
            dim: 4
        })
    );
    assert!(parts(usize::MAX, 5, 1024).is_err());
    assert_eq!(parts(4, 2, 1024), Ok(()));
    let mut centroids = vec![0.0; 1024];
    centroids[9] = f32::NAN;
    assert!(ProductQuantizer::from_parts(4, 2, centroids).is_err());
}

#[test]
fn parts_make_the_same_quantiser() {
    let vectors = sample(500, 10, 9);
    let quantiser = ProductQuantizer::train(&vectors, 10, 3, &training(1)).unwrap();
    let centroids = quantiser.centroids();
    let again = ProductQuantizer::from_parts(10, 3, centroids.clone()).unwrap();
    assert_eq!(again.centroids(), centroids);
    assert_eq!(again.memory_bytes(), 4 * 256 * 10);
    let (code, mut decoded) = ([7, 200, 31], [0.0; 10]);
    again.decode(&code, &mut decoded);
    let chunk = |from: usize, width: usize, at: usize| &centroids[from + at * width..][..width];
    let expected = [
        chunk(0, 4, 7),
        chunk(4 * 256, 3, 200),
        chunk(7 * 256, 3, 31),
    ];
    assert_eq!(decoded[..], expected.concat());
    let mut rows = Vec::new();
    again.decode_rows(&[&[1, 2, 3], &code[..]].concat(), &[1], &mut rows);
    let bytes = decoded.iter().flat_map(|x| x.to_le_bytes());
    assert!(rows.into_iter().eq(bytes));
    let (mut codes, mut found) = (vec![0; 1500], vec![0; 1500]);
    quantiser.encode(&vectors, &mut codes, 1);
    again.encode(&vectors, &mut found, 2);
    assert_eq!(codes, found);
}

#[test]
fn no_vectors_have_no_codes() {
    let quantiser = ProductQuantizer::train(&sample(9, 4, 1), 4, 2, &training(1)).unwrap();
    quantiser.encode(&[], &mut [], 4);
    let mut table = DistanceTable::new();
    quantiser.table(Metric::L2, &[0.0; 4], &mut table);
    table.score(&[], &[], &mut []);
}

#[test]
#[should_panic(expected = "not filled")]
fn an_empty_table_scores_nothing() {
    DistanceTable::new().score(&[1, 2], &[0], &mut [0.0]);
}

#[test]
#[should_panic(expected = "not below 2")]
fn a_code_out_of_range_is_refused() {
    let quantiser = ProductQuantizer::train(&sample(9, 4, 1), 4, 2, &training(1)).unwrap();
    let mut table = DistanceTable::new();
    quantiser.table(Metric::L2, &[0.0; 4], &mut table);
    table.score(&[0; 5], &[2], &mut [0.0]);
}

#[test]
fn refilling_a_table_keeps_its_place() {
    let quantiser = ProductQuantizer::train(&sample(300, 8, 1), 8, 4, &training(1)).unwrap();
    let mut table = DistanceTable::new();
    quantiser.table(Metric::L2, &[0.25; 8], &mut table);
    let place = table.entries().as_ptr();
    assert_eq!(place as usize % 64, 0);
    quantiser.table(Metric::InnerProduct, &[0.5; 8], &mut table);
    assert_eq!((table.entries().as_ptr(), table.code_bytes()), (place, 4));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(120))]

    #[test]
    fn codes_name_the_nearest_centroids_and_tables_their_distances(
        dim in 1usize..70, bytes in 0.0f64..1.0, count in 1usize..140, seed: u64,
    ) {
        let m = 1 + (bytes * dim as f64) as usize;
        let centroids = sample(CENTROIDS, dim, seed);
        let quantiser = ProductQuantizer::from_parts(dim, m, centroids.clone()).unwrap();
        let vectors = sample(count, dim, !seed);
        let mut query = sample(1, dim, seed ^ 5);
        normalize(&mut query);
        for isa in InstructionSet::available() {
            let quantiser = quantiser.clone().with_isa(*isa);
            let mut codes = vec![0; count * m];
            quantiser.encode(&vectors, &mut codes, 2);
            let mut table = DistanceTable::with_isa(*isa);
            let mut decoded = vec![0.0; dim];
            for (vector, code) in vectors.chunks(dim).zip(codes.chunks(m)) {
                quantiser.decode(code, &mut decoded);
                for (first, width) in chunks(dim, m) {
                    let point = &vector[first..first + width];
                    let chosen = squared(point, &decoded[first..first + width]);
                    let book = &centroids[first * CENTROIDS..][..width * CENTROIDS];
                    let least = book.chunks(width).map(|c| squared(point, c)).fold(f64::MAX, f64::min);
                    prop_assert!(chosen <= least * (1.0 + 1e-5) + 1e-12, "{chosen} {least}");
                }
            }
            for metric in Metric::ALL {
                quantiser.table(metric, &query, &mut table);
                let ids: Vec<u32> = (0..count as u32).rev().collect();
                let mut scores = vec![f32::NAN; count];
                table.score(&codes, &ids, &mut scores);
                for (id, score) in ids.iter().zip(&scores) {
                    let code = &codes[*id as usize * m..][..m];
                    prop_assert_eq!(table.score_one(code).to_bits(), score.to_bits());
                    quantiser.decode(code, &mut decoded);
                    let expected = match metric {
                        Metric::L2 => squared(&query, &decoded),
                        Metric::Cosine => squared(&query, &decoded) / 2.0,
                        Metric::InnerProduct =>
                            -query.iter().zip(&decoded).map(|(x, y)| f64::from(*x) * f64::from(*y)).sum::<f64>(),
                    };
                    prop_assert!((f64::from(*score) - expected).abs() < 1e-4, "{} {} {}", metric, score, expected);
                }
            }
        }
    }
}

#[test]
fn rows_of_codes_are_the_centroids_that_they_name() {
    for (dim, code_bytes) in [(8, 4), (16, 4), (16, 2), (10, 4), (7, 7), (9, 2)] {
        let values = (0..dim * CENTROIDS)
            .map(|i| (i as f32 * 0.37).sin())
            .collect();
        let quantizer = ProductQuantizer::from_parts(dim, code_bytes, values).unwrap();
        let codes: Vec<u8> = (0..5 * code_bytes).map(|i| (i * 71) as u8).collect();
        let mut rows = vec![9];
        quantizer.decode_rows(&codes, &[4, 0, 4], &mut rows);
        let mut expected = vec![9];
        for id in [4, 0, 4] {
            let mut floats = vec![0.0; dim];
            quantizer.decode(&codes[id * code_bytes..][..code_bytes], &mut floats);
            expected.extend(floats.iter().flat_map(|value| value.to_le_bytes()));
        }
        assert_eq!(rows, expected, "{dim} in {code_bytes}");
    }
}
