//! Ranking by leading parts.

use stratann_vector::{Element, Kernel};

use super::deleted::live_with;
use super::*;
use crate::plan::{BEYOND, CANDIDATE_BYTES};
use crate::slow::slow;

const TEXTS: usize = 1_200;
const DIM: usize = 128;

fn texts() -> (Vec<f32>, Vec<f32>) {
    let head = |name: &str, rows: usize| {
        let matrix = head(&fixture(name), rows);
        let rows = matrix.bytes().chunks_exact(4 * 384);
        let heads = rows.flat_map(|row| row[..4 * DIM].as_chunks::<4>().0);
        heads.map(|&bytes| f32::from_le_bytes(bytes)).collect()
    };
    (
        head("package-text-2k.base.fbin", TEXTS),
        head("package-text-2k.query.fbin", 60),
    )
}

/// The conversion of floats to bytes is coarse.
fn matrix(floats: &[f32], element: Element) -> Matrix {
    let bytes: Vec<u8> = match element {
        Element::F32 => floats.iter().flat_map(|x| x.to_le_bytes()).collect(),
        Element::F16 => floats
            .iter()
            .flat_map(|x| {
                let bits = x.to_bits();
                let exponent = (bits >> 23 & 255) as i32 - 127 + 15;
                let sign = (bits >> 16 & 0x8000) as u16;
                let magnitude = (exponent as u16) << 10 | (bits >> 13 & 0x3ff) as u16;
                let half = if exponent < 1 { sign } else { sign | magnitude };
                half.to_le_bytes()
            })
            .collect(),
        Element::U8 => floats.iter().map(|x| (x * 300.0 + 128.0) as u8).collect(),
        Element::I8 => floats.iter().map(|x| (x * 300.0) as i8 as u8).collect(),
    };
    Matrix::new(bytes, floats.len() / DIM, DIM, element).unwrap()
}

fn built(folder: &std::path::Path, base: &Matrix, metric: Metric) -> PathBuf {
    built_as(Layout::Layered, folder, base, metric)
}

fn built_as(layout: Layout, folder: &std::path::Path, base: &Matrix, metric: Metric) -> PathBuf {
    let options = BuildOptions {
        metric,
        layout: Some(layout),
        degree: Some(24),
        build_list: 50,
        code_bytes: Some(64),
        chunk_bytes: 64 << 10,
        segment_bytes: 256 << 10,
        threads: 1,
        overwrite: true,
        ..BuildOptions::default()
    };
    let path = folder.join(layout.to_string());
    build(base, &path, &options, &Silent).unwrap();
    path
}

fn options(exact: bool) -> SearchOptions {
    SearchOptions {
        list: 80,
        exact,
        threads: 1,
        // The results of a pipelined search would also depend on the timing of reads.
        strategy: Some(Strategy::BestFirst),
        ..SearchOptions::default()
    }
}

fn compared(
    base: &Matrix,
    queries: &Matrix,
    metric: Metric,
    found: &SearchResults,
) -> (f64, usize) {
    let kernel = Kernel::new(metric, base.element(), DIM);
    let truth = brute_force(base, queries, 10, metric, 1, &Silent).unwrap();
    let row =
        |rows: &Matrix, n: usize| rows.bytes()[n * rows.row_bytes()..][..rows.row_bytes()].to_vec();
    let exact = |(n, (&id, &distance)): (usize, (&u64, &f32))| {
        kernel.distance(&row(queries, n / 10), &row(base, id as usize)) == distance
    };
    let pairs = found.ids.iter().zip(&found.distances).enumerate();
    let unknown = vec![f32::INFINITY; found.ids.len()];
    let distances = if found.exact {
        &found.distances
    } else {
        &unknown
    };
    let recall = truth.recall(&found.ids, distances, 10).unwrap();
    (recall, pairs.filter(|&pair| exact(pair)).count())
}

fn of_whole_vectors(
    folder: &std::path::Path,
    (base, asked): (&Matrix, &Matrix),
    metric: Metric,
    options: &SearchOptions,
) -> f64 {
    let path = built_as(Layout::Packed, folder, base, metric);
    let index = Index::open(&path, &OpenOptions::default()).unwrap();
    let found = index.search(asked, options).unwrap();
    compared(base, asked, metric, &found).0
}

#[test]
fn every_metric_and_element_is_ranked_by_leading_parts() {
    let folder = tempfile::tempdir().unwrap();
    let (base, asked) = texts();
    for element in [Element::F32, Element::F16, Element::U8, Element::I8] {
        let (base, asked) = (matrix(&base, element), matrix(&asked, element));
        for metric in [Metric::L2, Metric::InnerProduct, Metric::Cosine] {
            let what = format!("{element}, {metric:?}");
            // By default, every metric of floats runs, and one metric for each other element type.
            let few = match element {
                Element::F32 => true,
                Element::F16 => metric == Metric::Cosine,
                Element::U8 => metric == Metric::L2,
                Element::I8 => metric == Metric::InnerProduct,
            };
            if !slow() && !few {
                continue;
            }
            let path = built(folder.path(), &base, metric);
            let index = Index::open(&path, &OpenOptions::default()).unwrap();
            assert_eq!(index.stats().layout, "layered");
            let whole = of_whole_vectors(folder.path(), (&base, &asked), metric, &options(false));
            let near = index.search(&asked, &options(false)).unwrap();
            let (recall, right) = compared(&base, &asked, metric, &near);
            assert!(recall > whole - 0.015, "{what}: {recall} of {whole}");
            assert!(right < near.ids.len(), "{what}");
            let exact = index.search(&asked, &options(true)).unwrap();
            let (recall, right) = compared(&base, &asked, metric, &exact);
            assert!(recall > whole - 0.015, "{what}: {recall} of {whole}");
            assert_eq!(right, exact.ids.len(), "{what}");
            assert!(exact.counters.reranked > near.counters.reranked, "{what}");
        }
    }
}

/// In some embeddings, the values of one dimension are tens of times as large as all others. These
/// values must not be cut off.
#[test]
fn outliers_are_found_as_others_are() {
    let folder = tempfile::tempdir().unwrap();
    let (mut base, mut asked) = texts();
    for rows in [&mut base, &mut asked] {
        for (n, row) in rows.chunks_exact_mut(DIM).enumerate() {
            if n % 10 == 3 {
                row[5] = 4.0 + (n % 97) as f32 / 3.0;
            }
        }
    }
    let (base, asked) = (matrix(&base, Element::F32), matrix(&asked, Element::F32));
    for metric in [Metric::L2, Metric::InnerProduct, Metric::Cosine] {
        let path = built(folder.path(), &base, metric);
        let index = Index::open(&path, &OpenOptions::default()).unwrap();
        // The list is so long that only the ranking decides.
        let options = SearchOptions {
            list: 600,
            ..options(false)
        };
        let found = index.search(&asked, &options).unwrap();
        let (recall, _) = compared(&base, &asked, metric, &found);
        let whole = of_whole_vectors(folder.path(), (&base, &asked), metric, &options);
        assert!(recall > whole - 0.015, "{metric:?}: {recall} of {whole}");
    }
}

/// The leading part of a short vector may say little about its direction.
#[test]
fn short_vectors_are_found_under_cosine() {
    let folder = tempfile::tempdir().unwrap();
    let (mut base, asked) = texts();
    for (n, row) in base.chunks_exact_mut(DIM).enumerate() {
        let scale = [1.0, 0.3, 0.1][n % 3];
        row.iter_mut().for_each(|x| *x *= scale);
    }
    let (base, asked) = (matrix(&base, Element::F32), matrix(&asked, Element::F32));
    let path = built(folder.path(), &base, Metric::Cosine);
    let index = Index::open(&path, &OpenOptions::default()).unwrap();
    let options = SearchOptions {
        list: 600,
        ..options(false)
    };
    let found = index.search(&asked, &options).unwrap();
    let (recall, _) = compared(&base, &asked, Metric::Cosine, &found);
    let whole = of_whole_vectors(folder.path(), (&base, &asked), Metric::Cosine, &options);
    assert!(recall > whole - 0.02, "{recall} of {whole}");
}

#[test]
fn what_is_deleted_is_no_answer_and_others_take_its_place() {
    let folder = tempfile::tempdir().unwrap();
    let (base, asked) = texts();
    let (base, asked) = (matrix(&base, Element::F32), matrix(&asked, Element::F32));
    let path = built(folder.path(), &base, Metric::L2);
    let live = live_with(&path, None);
    let gone: Vec<u64> = (0..TEXTS as u64).filter(|id| id % 5 != 0).collect();
    live.delete(&gone).unwrap();
    for list in [80, TEXTS] {
        let options = SearchOptions {
            list,
            ..options(true)
        };
        let found = live.search(&asked, &options).unwrap();
        assert_eq!(found.ids.len(), 600);
        assert!(found.ids.iter().all(|id| id % 5 == 0), "{:?}", found.ids);
        let left: Vec<u8> = (0..TEXTS)
            .step_by(5)
            .flat_map(|n| base.bytes()[n * 4 * DIM..][..4 * DIM].to_vec())
            .collect();
        let left = Matrix::new(left, TEXTS / 5, DIM, Element::F32).unwrap();
        let truth = brute_force(&left, &asked, 10, Metric::L2, 1, &Silent).unwrap();
        let ids: Vec<u64> = found.ids.iter().map(|id| id / 5).collect();
        let recall = truth.recall(&ids, &found.distances, 10).unwrap();
        assert!(recall > 0.97, "{list}: {recall}");
    }
}

#[test]
fn what_a_query_keeps_of_its_candidates_is_planned() {
    let folder = tempfile::tempdir().unwrap();
    let (base, asked) = texts();
    let (base, asked) = (matrix(&base, Element::F32), matrix(&asked, Element::F32));
    let path = built(folder.path(), &base, Metric::L2);
    let open = |memory| {
        let options = OpenOptions {
            memory: Some(memory),
            ..OpenOptions::default()
        };
        Index::open(&path, &options)
    };
    let index = open(64 << 20).unwrap();
    let plan = index.memory();
    let part = (DIM + 1 + CANDIDATE_BYTES) as u64;
    let (_, each) = plan.for_queries(100, 4096, 0).unwrap();
    let without = crate::plan::query_bytes(100, 4096);
    assert_eq!(each, without + (100 + BEYOND as u64) * part);
    let (_, more) = plan.for_queries(200, 4096, 0).unwrap();
    assert!(more > each + 100 * part);
    assert!(plan.queries >= each);
    let Err(Error::Memory { needs, .. }) = open(0) else {
        panic!("no budget is too small");
    };
    let tight = open(needs).unwrap();
    let found = tight.search(&asked, &options(false)).unwrap();
    let (recall, _) = compared(&base, &asked, Metric::L2, &found);
    assert!(recall > 0.95, "{recall}");
}

#[test]
fn distances_of_embeddings_are_as_near_as_they_are_said_to_be() {
    let folder = tempfile::tempdir().unwrap();
    let (base, queries) = texts();
    let (base, queries) = (matrix(&base, Element::F32), matrix(&queries, Element::F32));
    let row = |rows: &Matrix, n: usize| rows.bytes()[n * 4 * DIM..][..4 * DIM].to_vec();
    for metric in Metric::ALL {
        let path = built(folder.path(), &base, metric);
        let index = Index::open(&path, &OpenOptions::default()).unwrap();
        let found = index.search(&queries, &options(false)).unwrap();
        let kernel = Kernel::new(metric, Element::F32, DIM);
        let pairs = found.ids.iter().zip(&found.distances).enumerate();
        let off = pairs.map(|(n, (&id, &distance))| {
            let right = kernel.distance(&row(&queries, n / 10), &row(&base, id as usize));
            (right - distance).abs()
        });
        let off: Vec<f32> = off.collect();
        let largest = off.iter().copied().fold(0.0, f32::max);
        let error = found.distance_error;
        assert!(
            largest <= error && error < 20.0 * largest,
            "{metric}: {largest}, {error}"
        );
        let exact = index.search(&queries, &options(true)).unwrap();
        assert_eq!((exact.distance_error, exact.exact), (0.0, true));
    }
}
