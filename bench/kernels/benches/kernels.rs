//! The kernels that take most of the engine's time:
//! `cargo bench --manifest-path bench/kernels/Cargo.toml --bench kernels [-- filter]`.
//!
//! Figures are for one thread. `distance` and `pair` work in the cache. `gather` reads rows of a
//! matrix that exceeds the cache, 64 random rows at a time, as a graph build does; `score` reads
//! codes.

use std::hint::black_box;
use std::time::Duration;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use stratann_vector::{
    DistanceTable, Element, InstructionSet, Kernel, Metric, ProductQuantizer, Training,
};

fn numbers(seed: u64) -> impl Iterator<Item = u64> {
    let mut state = seed;
    std::iter::from_fn(move || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        Some(state >> 33)
    })
}

fn rows(element: Element, elements: usize) -> Vec<u8> {
    let numbers = numbers(1).take(elements);
    match element {
        Element::F32 => numbers
            .flat_map(|x| (x as f32 / (1u64 << 31) as f32).to_le_bytes())
            .collect(),
        Element::F16 => numbers
            .flat_map(|x| (0x3400 + x as u16 % 0x0800).to_le_bytes())
            .collect(),
        Element::U8 | Element::I8 => numbers.map(|x| x as u8).collect(),
    }
}

fn floats(count: usize) -> Vec<f32> {
    numbers(2)
        .take(count)
        .map(|x| x as f32 / (1u64 << 31) as f32)
        .collect()
}

fn kernels(c: &mut Criterion) {
    let shapes = [
        (Element::U8, 128),
        (Element::F32, 384),
        (Element::F16, 384),
        (Element::I8, 128),
    ];
    for (element, dim) in shapes {
        let (a, b) = (
            rows(element, dim),
            rows(element, dim + 1)[element.size()..].to_vec(),
        );
        for metric in Metric::ALL {
            let mut group = c.benchmark_group(format!("distance {element} d={dim} {metric}"));
            for isa in InstructionSet::available() {
                let kernel = Kernel::with_isa(metric, element, dim, *isa);
                group.bench_function(isa.name(), |bench| {
                    bench.iter(|| kernel.distance(black_box(&a), black_box(&b)));
                });
            }
        }
    }
}

const PORTION: usize = 64;

fn portions(count: usize) -> Vec<Vec<u32>> {
    let mut ids = numbers(3).map(|x| (x % count as u64) as u32);
    (0..1024)
        .map(|_| ids.by_ref().take(PORTION).collect())
        .collect()
}

fn gathers(c: &mut Criterion) {
    for (element, dim, count) in [(Element::U8, 128, 4_000_000), (Element::F32, 384, 300_000)] {
        let matrix = rows(element, dim * count);
        let query = rows(element, dim);
        let portions = portions(count);
        for (name, spread) in [("cached", 256), ("scattered", count)] {
            let mut group = c.benchmark_group(format!("gather {element} d={dim} {name}"));
            group.throughput(Throughput::Elements(PORTION as u64));
            for isa in InstructionSet::available() {
                let kernel = Kernel::with_isa(Metric::L2, element, dim, *isa);
                let mut out = [0.0; PORTION];
                let portions: Vec<Vec<u32>> = portions
                    .iter()
                    .map(|ids| ids.iter().map(|id| id % spread as u32).collect())
                    .collect();
                let mut at = 0;
                group.bench_function(isa.name(), |bench| {
                    bench.iter(|| {
                        at = (at + 1) % portions.len();
                        kernel.distances(&query, &matrix, &portions[at], black_box(&mut out));
                    });
                });
            }
        }
    }
}

fn quantiser(c: &mut Criterion) {
    let (dim, code_bytes) = (128, 32);
    let sample = floats(10_000 * dim);
    let training = Training {
        iterations: 2,
        ..Training::default()
    };
    let trained = ProductQuantizer::train(&sample, dim, code_bytes, &training)
        .expect("the sample is finite and whole");
    let count = 4_000_000;
    let codes: Vec<u8> = numbers(4)
        .take(count * code_bytes)
        .map(|x| x as u8)
        .collect();
    let portions = portions(count);

    for isa in InstructionSet::available() {
        let quantiser = trained.clone().with_isa(*isa);
        let mut table = DistanceTable::with_isa(*isa);
        let mut group = c.benchmark_group(format!("pq d={dim} m={code_bytes} {isa}"));
        for metric in [Metric::L2, Metric::InnerProduct] {
            group.bench_function(format!("table {metric}"), |bench| {
                bench.iter(|| quantiser.table(metric, black_box(&sample[..dim]), &mut table));
            });
        }
        for (name, spread) in [("cached", 256), ("scattered", count)] {
            let portions: Vec<Vec<u32>> = portions
                .iter()
                .map(|ids| ids.iter().map(|id| id % spread as u32).collect())
                .collect();
            let (mut out, mut at) = ([0.0; PORTION], 0);
            group.throughput(Throughput::Elements(PORTION as u64));
            group.bench_function(format!("score {name}"), |bench| {
                bench.iter(|| {
                    at = (at + 1) % portions.len();
                    table.score(&codes, &portions[at], black_box(&mut out));
                });
            });
        }
        let vectors = &sample[..1024 * dim];
        let mut encoded = vec![0; 1024 * code_bytes];
        group.throughput(Throughput::Elements(1024));
        group.bench_function("encode", |bench| {
            bench.iter(|| quantiser.encode(black_box(vectors), &mut encoded, 1));
        });
    }
    c.bench_function("pq train 10000 x 128, m=32, 12 iterations", |bench| {
        let training = Training::default();
        bench.iter(|| ProductQuantizer::train(&sample, dim, code_bytes, &training));
    });
}

criterion_group! {
    name = benches;
    config = Criterion::default()
        .sample_size(10)
        .warm_up_time(Duration::from_millis(200))
        .measurement_time(Duration::from_millis(500))
        .without_plots();
    targets = kernels, gathers, quantiser
}
criterion_main!(benches);
