//! Measures the ratio and the speed of each codec on real files: `cargo run --release -p
//! stratann-codec --example ratios -- FILE..`
//!
//! Files with the extensions `.u8bin .i8bin .hbin .fbin` have vectors (u32 number of rows, u32
//! dimension, then the rows). Files with the extension `.lists` have adjacency lists (u32 number of
//! nodes, u32 degree bound, then for each node its u32 number of neighbours and their u32 node
//! numbers). The program checks the round trip of all input. It prints the fastest of 100 passes of
//! one thread over the first 2,000 codes, which fit the cache.

use std::error::Error;
use std::hint::black_box;
use std::path::Path;
use std::time::Instant;

use stratann_codec::{
    Element, ListCodec, ListModel, ListTrainer, NestedModel, SegmentModel, Shape, VectorCodec,
    elias_fano, xor_delta,
};

type Outcome = Result<(), Box<dyn Error>>;

const TIMED: usize = 2_000;
/// The bytes of a chunk in the DecoupleVS paper, before compression.
const CHUNK: usize = 4 << 20;

fn main() -> Outcome {
    let files: Vec<String> = std::env::args().skip(1).collect();
    if files.is_empty() {
        return Err("usage: ratios FILE.. (.u8bin .i8bin .hbin .fbin .lists)".into());
    }
    for file in files {
        let bytes = std::fs::read(&file).map_err(|e| format!("{file}: {e}"))?;
        println!("{file}");
        let extension = Path::new(&file).extension().and_then(|e| e.to_str());
        match extension {
            Some("lists") => lists(&words(&bytes))?,
            Some("u8bin") => vectors(Element::U8, &bytes)?,
            Some("i8bin") => vectors(Element::I8, &bytes)?,
            Some("hbin") => vectors(Element::F16, &bytes)?,
            Some("fbin") => vectors(Element::F32, &bytes)?,
            _ => return Err(format!("{file}: unknown extension").into()),
        }
    }
    Ok(())
}

fn words(bytes: &[u8]) -> Vec<u32> {
    bytes
        .as_chunks::<4>()
        .0
        .iter()
        .map(|&four| u32::from_le_bytes(four))
        .collect()
}

/// The fastest of 100 passes of `count` calls.
fn nanoseconds(count: usize, mut call: impl FnMut(usize)) -> f64 {
    (0..100)
        .map(|_| {
            let start = Instant::now();
            for i in 0..count {
                call(i);
            }
            start.elapsed().as_nanos() as f64 / count as f64
        })
        .fold(f64::INFINITY, f64::min)
}

fn lists(file: &[u32]) -> Outcome {
    let &[nodes, degree, ref rest @ ..] = file else {
        return Err("the file is shorter than its header".into());
    };
    let mut lists = Vec::new();
    let mut rest = rest;
    while let Some((&count, after)) = rest.split_first() {
        let (ids, after) = after
            .split_at_checked(count as usize)
            .ok_or("the last list is truncated")?;
        let mut ids = ids.to_vec();
        ids.sort_unstable();
        ids.dedup();
        lists.push(ids);
        rest = after;
    }
    let edges: usize = lists.iter().map(Vec::len).sum();
    println!(
        "  {} lists, {edges} edges; bound of Elias-Fano: {:.2} bits an edge",
        lists.len(),
        elias_fano::bound_bits(degree as usize, nodes) as f64 / f64::from(degree)
    );
    let per_edge = |bits: usize| bits as f64 / edges as f64;
    let (mut fixed, mut rice) = (0, 0);
    for ids in &lists {
        let gaps = || ids.windows(2).map(|pair| pair[1] - pair[0] - 1);
        let widest = gaps()
            .map(|gap| 32 - gap.leading_zeros())
            .max()
            .unwrap_or(0);
        fixed += 8 + 32 + gaps().count() * widest as usize;
        rice += 8
            + 32
            + (0..32)
                .map(|k| gaps().map(|gap| (gap >> k) as usize + 1 + k).sum::<usize>())
                .min()
                .unwrap_or(0);
    }
    println!(
        "  {:<28} {:>6.2} bits an edge (computed)",
        "fixed width",
        per_edge(fixed)
    );
    println!(
        "  {:<28} {:>6.2} bits an edge (computed)",
        "Golomb-Rice",
        per_edge(rice)
    );
    measure_lists(
        "Elias-Fano",
        &ListModel::elias_fano(nodes, degree),
        &lists,
        edges,
    )?;
    for tables in [1, 2, 4, 8, 32] {
        let mut trainer = ListTrainer::new(nodes, degree);
        for (own, ids) in (0..).zip(&lists).step_by((lists.len() / 10_000).max(1)) {
            trainer.add(own, ids)?;
        }
        let model = trainer.finish(tables);
        measure_lists(&format!("gaps, {tables} tables"), &model, &lists, edges)?;
    }
    Ok(())
}

fn measure_lists(name: &str, model: &ListModel, lists: &[Vec<u32>], edges: usize) -> Outcome {
    let model = ListModel::from_bytes(&model.to_bytes())?;
    let mut codes = Vec::new();
    let mut starts = Vec::new();
    let mut gaps = 0;
    for (own, ids) in (0..).zip(lists) {
        starts.push(codes.len());
        gaps += usize::from(model.encode(own, ids, &mut codes)? == ListCodec::Gaps);
    }
    let mut out = Vec::new();
    for (own, ids) in (0..).zip(lists) {
        model.decode(own, &codes[starts[own as usize]..], &mut out)?;
        if out != *ids {
            return Err(format!("decoding did not restore the list of node {own}").into());
        }
    }
    let time = nanoseconds(lists.len().min(TIMED), |i| {
        let _ = black_box(model.decode(i as u32, black_box(&codes[starts[i]..]), &mut out));
    });
    println!(
        "  {name:<28} {:>6.2} bits an edge, headers included  {time:>6.0} ns to decode a list, {:.1} % of lists coded by gaps",
        codes.len() as f64 * 8.0 / edges as f64,
        100.0 * gaps as f64 / lists.len() as f64
    );
    Ok(())
}

fn vectors(element: Element, bytes: &[u8]) -> Outcome {
    let (header, rows) = bytes
        .split_at_checked(8)
        .ok_or("the file is shorter than its header")?;
    let shape = Shape::new(element, words(header)[1] as usize)?;
    let size = shape.vector_bytes();
    println!(
        "  {} vectors of {} {element:?}",
        rows.len() / size,
        shape.dim()
    );

    let chunk = CHUNK / size * size;
    let bases: Vec<Option<Vec<u8>>> = rows
        .chunks(chunk)
        .map(|chunk| xor_delta::choose_base(chunk, size))
        .collect();
    let mut counts = xor_delta::ByteCounts::new();
    for (chunk, base) in rows.chunks(chunk).zip(&bases) {
        counts.add(chunk, base.as_deref());
    }
    let name = format!(
        "XOR + Huffman ({} of {} chunks)",
        bases.iter().flatten().count(),
        bases.len()
    );
    let model = SegmentModel::huffman(shape, &counts);
    measure_vectors(&name, &model, rows, |i| bases[i * size / chunk].as_deref())?;

    for codec in [
        VectorCodec::Huffman,
        VectorCodec::FloatSplit,
        VectorCodec::Classes,
    ] {
        let start = Instant::now();
        if let Some(model) = SegmentModel::train_codec(shape, codec, rows) {
            let trained = start.elapsed().as_secs_f64();
            let name = format!("{codec:?} (trained in {trained:.1} s)");
            measure_vectors(&name, &model, rows, |_| None)?;
        }
    }
    println!("  chosen: {:?}", SegmentModel::train(shape, rows).codec());
    for step in NestedModel::steps(shape, rows) {
        if let Some(model) = NestedModel::train(shape, step, rows) {
            measure_parts(&model, rows)?;
        }
    }
    Ok(())
}

fn measure_parts(model: &NestedModel, rows: &[u8]) -> Outcome {
    let model = NestedModel::from_bytes(&model.to_bytes())?;
    let size = model.shape().vector_bytes();
    let (mut leading, mut trailing) = (Vec::new(), Vec::new());
    let mut ends = vec![(0, 0)];
    for vector in rows.chunks_exact(size) {
        model.encode(vector, &mut leading, &mut trailing)?;
        ends.push((leading.len(), trailing.len()));
    }
    let count = ends.len() - 1;
    let parts = |i: usize| {
        let ((a, b), (c, d)) = (ends[i], ends[i + 1]);
        (&leading[a..c], &trailing[b..d])
    };
    let mut out = vec![0; size];
    for (i, vector) in rows.chunks_exact(size).enumerate() {
        let (leading, trailing) = parts(i);
        model.decode(leading, trailing, &mut out)?;
        if out != vector {
            return Err(format!("decoding did not restore vector {i}").into());
        }
    }
    let alone = nanoseconds(count.min(TIMED), |i| {
        let _ = black_box(model.decode_leading(black_box(parts(i).0), &mut out));
    });
    let both = nanoseconds(count.min(TIMED), |i| {
        let (leading, trailing) = black_box(parts(i));
        let _ = black_box(model.decode(leading, trailing, &mut out));
    });
    println!(
        "  {:<34} ratio {:.4}, {:.1} bytes leading, {:.1} bytes trailing  {alone:>6.0} ns to decode a leading part, {both:.0} ns both parts",
        format!("in parts, error up to {:.1e}", model.error()),
        rows.len() as f64 / (leading.len() + trailing.len() + model.to_bytes().len()) as f64,
        leading.len() as f64 / count as f64,
        trailing.len() as f64 / count as f64,
    );
    Ok(())
}

fn measure_vectors<'a>(
    name: &str,
    model: &SegmentModel,
    rows: &[u8],
    base: impl Fn(usize) -> Option<&'a [u8]>,
) -> Outcome {
    let stored = model.to_bytes();
    let model = SegmentModel::from_bytes(&stored)?;
    let size = model.shape().vector_bytes();
    let mut codes = Vec::new();
    let mut ends = Vec::new();
    let start = Instant::now();
    for (i, vector) in rows.chunks_exact(size).enumerate() {
        model.encode(vector, base(i), &mut codes)?;
        ends.push(codes.len());
    }
    let encoding = start.elapsed().as_nanos() as f64 / ends.len() as f64;
    let code = |i: usize| &codes[if i == 0 { 0 } else { ends[i - 1] }..ends[i]];
    let mut out = vec![0; size];
    for (i, vector) in rows.chunks_exact(size).enumerate() {
        model.decode(code(i), base(i), &mut out)?;
        if out != vector {
            return Err(format!("decoding did not restore vector {i}").into());
        }
    }
    let time = nanoseconds(ends.len().min(TIMED), |i| {
        let _ = black_box(model.decode(black_box(code(i)), base(i), &mut out));
    });
    println!(
        "  {name:<34} ratio {:.4}, model of {} bytes included  {time:>6.0} ns to decode a vector, {encoding:.0} ns to encode it",
        rows.len() as f64 / (codes.len() + stored.len()) as f64,
        stored.len()
    );
    Ok(())
}
