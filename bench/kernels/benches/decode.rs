//! Decoding one list and one vector:
//! `cargo bench --manifest-path bench/kernels/Cargo.toml --bench decode [-- filter]`.
//!
//! One thread decodes a thousand different codes in turn, all in the cache, so that the processor
//! cannot learn one. The numbers have the distributions of real data; `examples/ratios.rs` measures
//! files.

use std::hint::black_box;
use std::time::Duration;

use criterion::{Criterion, criterion_group, criterion_main};
use stratann_codec::{
    Element, ListModel, ListTrainer, NestedModel, SegmentModel, Shape, VectorCodec,
};

const CODES: usize = 1000;

fn numbers(seed: u64) -> impl Iterator<Item = u32> {
    let mut state = seed;
    std::iter::from_fn(move || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        Some((state >> 33) as u32)
    })
}

fn bell(seed: u64) -> impl Iterator<Item = f32> {
    let mut numbers = numbers(seed);
    std::iter::from_fn(move || {
        let sum: f32 = (&mut numbers)
            .take(6)
            .map(|x| x as f32 / (1u64 << 31) as f32)
            .sum();
        Some(sum - 3.0)
    })
}

/// 64 neighbours of each node of a million; near nodes are likelier.
fn neighbours() -> Vec<(u32, Vec<u32>)> {
    const NODES: i64 = 1_000_000;
    let mut numbers = numbers(1);
    let mut next = move || numbers.next().unwrap_or(0);
    (0..CODES as u32)
        .map(|i| {
            let own = i * 997;
            let mut ids = std::collections::BTreeSet::new();
            while ids.len() < 64 {
                let spread = 16u32 << (next() % 15);
                let step = i64::from(next() % spread) - i64::from(spread / 2);
                let id = (i64::from(own) + step).rem_euclid(NODES) as u32;
                if id != own {
                    ids.insert(id);
                }
            }
            (own, ids.into_iter().collect())
        })
        .collect()
}

fn lists(c: &mut Criterion) {
    let lists = neighbours();
    let mut trainer = ListTrainer::new(1_000_000, 64);
    for (own, ids) in &lists {
        trainer.add(*own, ids).expect("ids ascend");
    }
    let models = [
        ("elias-fano", ListModel::elias_fano(1_000_000, 64)),
        ("gaps", trainer.finish(4)),
    ];
    let mut group = c.benchmark_group("list of 64");
    for (name, model) in models {
        let mut codes = Vec::new();
        let mut starts = Vec::new();
        for (own, ids) in &lists {
            starts.push(codes.len());
            model.encode(*own, ids, &mut codes).expect("ids ascend");
        }
        let mut out = Vec::new();
        let mut turn = 0;
        group.bench_function(name, |b| {
            b.iter(|| {
                turn = (turn + 1) % CODES;
                let code = black_box(&codes[starts[turn]..]);
                model.decode(lists[turn].0, code, &mut out).expect("a list")
            });
        });
    }
}

fn vectors(c: &mut Criterion) {
    let floats: Vec<u8> = bell(2)
        .zip(numbers(3))
        .take(384 * CODES)
        .flat_map(|(x, noise)| ((x * 0.1).to_bits() ^ (noise >> 19)).to_le_bytes())
        .collect();
    // Sixteen kinds of vectors, each with its own small and large positions.
    let kinds: Vec<u32> = numbers(4).take(16 * 128).map(|x| x % 48 + 2).collect();
    let bytes: Vec<u8> = bell(5)
        .take(128 * 4 * CODES)
        .enumerate()
        .map(|(i, x)| (x.abs() * kinds[i % kinds.len()] as f32) as u8)
        .collect();
    let cases = [
        (Element::F32, 384, VectorCodec::FloatSplit, &floats),
        (Element::F32, 384, VectorCodec::Huffman, &floats),
        (Element::U8, 128, VectorCodec::Huffman, &bytes),
        (Element::U8, 128, VectorCodec::Classes, &bytes),
    ];
    let mut group = c.benchmark_group("vector");
    for (element, dim, codec, rows) in cases {
        let shape = Shape::new(element, dim).expect("a dimension");
        let model = SegmentModel::train_codec(shape, codec, rows).expect("rows suit the codec");
        let mut codes = Vec::new();
        let mut ends = vec![0];
        for row in rows.chunks_exact(shape.vector_bytes()).take(CODES) {
            model
                .encode(row, None, &mut codes)
                .expect("rows suit the model");
            ends.push(codes.len());
        }
        let mut out = vec![0; shape.vector_bytes()];
        let mut turn = 0;
        group.bench_function(format!("{element:?} {dim} {codec:?}"), |b| {
            b.iter(|| {
                turn = (turn + 1) % CODES;
                let code = black_box(&codes[ends[turn]..ends[turn + 1]]);
                model.decode(code, None, &mut out).expect("a vector");
            });
        });
    }
}

fn parts(c: &mut Criterion) {
    let floats: Vec<u8> = bell(2)
        .zip(numbers(3))
        .take(384 * CODES)
        .flat_map(|(x, noise)| ((x * 0.1).to_bits() ^ (noise >> 19)).to_le_bytes())
        .collect();
    let shape = Shape::new(Element::F32, 384).expect("a dimension");
    let step = NestedModel::steps(shape, &floats)[1];
    let model = NestedModel::train(shape, step, &floats).expect("a step of the element");
    let codes: Vec<(Vec<u8>, Vec<u8>)> = floats
        .chunks_exact(shape.vector_bytes())
        .map(|row| {
            let mut parts = Default::default();
            let (leading, trailing) = &mut parts;
            model
                .encode(row, leading, trailing)
                .expect("rows suit the model");
            parts
        })
        .collect();
    let mut out = vec![0; shape.vector_bytes()];
    let mut turn = 0;
    let mut group = c.benchmark_group("vector in parts");
    group.bench_function("F32 384 leading", |b| {
        b.iter(|| {
            turn = (turn + 1) % CODES;
            let (leading, _) = black_box(&codes[turn]);
            model.decode_leading(leading, &mut out).expect("a vector")
        });
    });
    group.bench_function("F32 384 both", |b| {
        b.iter(|| {
            turn = (turn + 1) % CODES;
            let (leading, trailing) = black_box(&codes[turn]);
            model.decode(leading, trailing, &mut out).expect("a vector")
        });
    });
}

criterion_group! {
    name = benches;
    config = Criterion::default()
        .warm_up_time(Duration::from_millis(200))
        .measurement_time(Duration::from_secs(1))
        .sample_size(30);
    targets = lists, vectors, parts
}
criterion_main!(benches);
