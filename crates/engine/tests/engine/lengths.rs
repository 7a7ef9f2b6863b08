//! Very long and very short vectors. Under cosine, only directions count. Other metrics refuse
//! vectors without finite distances.

use stratann::{
    BuildOptions, Codebook, DirectOptions, Element, Error, Index, LiveIndex, Matrix, Metric,
    OpenOptions, Preset, SearchOptions, Silent, Strategy, TrainOptions, WriteOptions, brute_force,
    build,
};

const DIM: usize = 12;
const ROWS: usize = 400;

/// Vectors of numbers between -1 and 1. Vector `n` is scaled by `scale(n)`.
fn rows(count: usize, seed: u64, scale: impl Fn(usize) -> f32) -> Matrix {
    let mut state = seed;
    let mut next = || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1 << 23) as f32 - 1.0
    };
    let values = (0..count * DIM).map(|i| next() * scale(i / DIM));
    let bytes = values.flat_map(f32::to_le_bytes).collect();
    Matrix::new(bytes, count, DIM, Element::F32).unwrap()
}

fn quick(preset: Preset, metric: Metric) -> BuildOptions {
    BuildOptions {
        preset,
        metric,
        degree: Some(24),
        build_list: 64,
        threads: 1,
        ..BuildOptions::default()
    }
}

/// Inserts run one after another, so that each run builds the same graph.
fn alone() -> WriteOptions {
    WriteOptions {
        threads: 1,
        direct: DirectOptions {
            in_flight: 1,
            ..DirectOptions::default()
        },
        ..WriteOptions::default()
    }
}

fn best_first() -> SearchOptions {
    SearchOptions {
        strategy: Some(Strategy::BestFirst),
        ..SearchOptions::default()
    }
}

/// Lengths that f32 can represent, although f32 cannot represent their squares.
const SCALES: [f32; 7] = [1.0, 1e20, 3e38, 1e-20, 1e-37, 1e15, 1e-30];

#[test]
fn cosine_sees_directions_only() {
    let folder = tempfile::tempdir().unwrap();
    let strange = |i: usize| SCALES[i % SCALES.len()];
    let (base, plain) = (rows(ROWS, 1, strange), rows(ROWS, 1, |_| 1.0));
    let queries = rows(70, 2, |i| SCALES[i / 10]);
    let expected = brute_force(
        &plain,
        &rows(70, 2, |_| 1.0),
        10,
        Metric::Cosine,
        1,
        &Silent,
    )
    .unwrap();
    let near = |ids: &[u64], distances: &[f32], what: &str| {
        assert!(distances.iter().all(|d| (0.0..=2.0).contains(d)), "{what}");
        let recall = expected.recall(ids, distances, 10).unwrap();
        assert!(recall > 0.95, "{what}: {recall}");
        let exact = expected.distances.as_ref().unwrap();
        let off = distances.iter().zip(exact).map(|(a, b)| (a - b).abs());
        assert!(off.fold(0.0, f32::max) < 0.05, "{what}");
    };
    let truth = brute_force(&base, &queries, 10, Metric::Cosine, 2, &Silent).unwrap();
    let ids: Vec<u64> = truth.ids.clone();
    near(&ids, truth.distances.as_ref().unwrap(), "brute force");
    let options = SearchOptions {
        list: 200,
        ..best_first()
    };
    for preset in [
        Preset::DISKANN,
        Preset::DECOUPLEVS,
        Preset::STRATANN,
        Preset::AISAQ,
    ] {
        let path = folder.path().join(preset.name);
        let half = Matrix::new(
            base.bytes()[..ROWS / 2 * DIM * 4].to_vec(),
            ROWS / 2,
            DIM,
            Element::F32,
        );
        let rest = Matrix::new(
            base.bytes()[ROWS / 2 * DIM * 4..].to_vec(),
            ROWS / 2,
            DIM,
            Element::F32,
        );
        build(
            &half.unwrap(),
            &path,
            &quick(preset, Metric::Cosine),
            &Silent,
        )
        .unwrap();
        let live = LiveIndex::open(&path, &OpenOptions::default(), &alone()).unwrap();
        live.insert(&rest.unwrap(), None, &Silent).unwrap();
        let found = live.search(&queries, &options).unwrap();
        near(&found.ids, &found.distances, &format!("{preset}, inserted"));
        live.compact(&Silent).unwrap();
        drop(live);
        let found = Index::open(&path, &OpenOptions::default())
            .unwrap()
            .search(&queries, &options)
            .unwrap();
        near(&found.ids, &found.distances, &format!("{preset}, merged"));
    }
}

#[test]
fn what_has_no_finite_distance_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    for metric in [Metric::L2, Metric::InnerProduct] {
        let path = folder.path().join(metric.name());
        let largest = metric.largest_magnitude(DIM);
        let refused = |error: Error, row: usize| {
            let text = error.to_string();
            for word in [&format!("row {row},"), "too large", &format!("{largest:?}")] {
                assert!(text.contains(word), "{text}: {word}");
            }
        };
        let one = |row| move |i| if i == row { 1e30 } else { 1.0 };
        let base = rows(ROWS, 3, one(17));
        let options = quick(Preset::STRATANN, metric);
        refused(build(&base, &path, &options, &Silent).unwrap_err(), 17);
        assert!(!path.exists());
        let train = TrainOptions {
            metric,
            ..TrainOptions::default()
        };
        refused(Codebook::train(&base, &train, &Silent).unwrap_err(), 17);
        let good = rows(ROWS, 3, |_| 1.0);
        refused(
            brute_force(&good, &rows(9, 4, one(8)), 5, metric, 1, &Silent)
                .unwrap_err()
                .into(),
            8,
        );
        refused(
            brute_force(&base, &good, 5, metric, 1, &Silent)
                .unwrap_err()
                .into(),
            17,
        );

        let most = |_| largest;
        let base = rows(ROWS, 3, most);
        build(&base, &path, &options, &Silent).unwrap();
        let live = LiveIndex::open(&path, &OpenOptions::default(), &alone()).unwrap();
        live.insert(&rows(50, 5, most), None, &Silent).unwrap();
        refused(
            live.insert(&rows(50, 5, one(3)), None, &Silent)
                .unwrap_err(),
            3,
        );
        refused(
            live.upsert(&rows(5, 5, one(4)), &[1, 2, 3, 4, 5], &Silent)
                .unwrap_err(),
            4,
        );
        refused(
            live.search(&rows(5, 5, one(2)), &SearchOptions::default())
                .unwrap_err(),
            2,
        );
        for _ in 0..2 {
            let found = live.search(&base, &best_first()).unwrap();
            assert!(found.distances.iter().all(|d| d.is_finite()));
            let exact = brute_force(&base, &base, 1, metric, 1, &Silent).unwrap();
            let firsts = found
                .distances
                .chunks(found.k)
                .zip(exact.distances.unwrap());
            let right = firsts.filter(|(found, exact)| found[0] <= *exact).count();
            assert!(right > ROWS * 95 / 100, "{metric}: {right}");
            live.compact(&Silent).unwrap();
        }
    }
}
