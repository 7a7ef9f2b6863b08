//! Very large numbers from a caller, which are refused with a typed error, or need only the memory
//! for the collection.

use std::path::Path;

use stratann::bounds::{MOST_ANSWERS, MOST_BEAM, MOST_IN_FLIGHT, MOST_LIST, MOST_THREADS};
use stratann::{
    BuildOptions, CacheSize, Catalog, CatalogOptions, Codebook, DataError, DirectOptions, Element,
    Error, Index, LiveIndex, Matrix, Metric, OpenOptions, Preset, RepairOptions, Rerank,
    SearchOptions, Silent, TrainOptions, VectorSource, WriteOptions, brute_force, build, repair,
};

const DIM: usize = 8;
const ROWS: usize = 300;

const HUGE: usize = 1_000_000_000_000;

fn matrix(rows: usize) -> Matrix {
    let bytes = (0..rows * DIM).map(|i| (i * i % 251) as u8).collect();
    Matrix::new(bytes, rows, DIM, Element::U8).unwrap()
}

/// Vectors that would not fit into memory: the source has their number, but no bytes.
struct Endless {
    rows: usize,
    dim: usize,
}

impl VectorSource for Endless {
    fn rows(&self) -> usize {
        self.rows
    }

    fn dim(&self) -> usize {
        self.dim
    }

    fn element(&self) -> Element {
        Element::U8
    }

    fn name(&self) -> &str {
        "endless"
    }

    fn read(&self, _first: usize, _out: &mut [u8]) -> Result<(), DataError> {
        panic!("a row was read although the rows should be refused");
    }
}

fn quick(preset: Preset) -> BuildOptions {
    BuildOptions {
        preset,
        degree: Some(16),
        build_list: 32,
        threads: 1,
        ..BuildOptions::default()
    }
}

#[track_caller]
fn refused<T>(result: Result<T, impl Into<Error>>, words: &[&str]) {
    let error = result.err().expect("the call was accepted").into();
    assert!(error.is_call_wrong(), "{error}");
    for word in words {
        assert!(error.to_string().contains(word), "{error}: {word}");
    }
}

fn indexes(folder: &Path) -> Vec<std::path::PathBuf> {
    [
        Preset::DISKANN,
        Preset::DECOUPLEVS,
        Preset::STRATANN,
        Preset::AISAQ,
    ]
    .into_iter()
    .map(|preset| {
        let path = folder.join(preset.name);
        build(&matrix(ROWS), &path, &quick(preset), &Silent).unwrap();
        path
    })
    .collect()
}

#[test]
fn numbers_of_a_search() {
    let folder = tempfile::tempdir().unwrap();
    let queries = matrix(5);
    let good = SearchOptions::default();
    let paths = indexes(folder.path());
    let catalog = Catalog::open(folder.path(), &CatalogOptions::default()).unwrap();
    let name = [Preset::DISKANN.name];
    for path in &paths {
        let index = Index::open(path, &OpenOptions::default()).unwrap();
        let rerank = index.preset().rerank;
        let live =
            LiveIndex::open(path, &OpenOptions::default(), &WriteOptions::default()).unwrap();
        let list = |list| SearchOptions { list, ..good };
        for (options, words) in [
            (list(HUGE), ["list size", "4294967294"]),
            (list(usize::MAX), ["list size", "4294967294"]),
            (
                SearchOptions {
                    k: HUGE,
                    list: HUGE,
                    ..good
                },
                // For an index that changes, the bound is the largest number to which results are
                // padded.
                ["k is", "it can be at most"],
            ),
            (
                SearchOptions {
                    beam: Some(HUGE),
                    ..good
                },
                ["beam", "1024"],
            ),
            (
                SearchOptions {
                    threads: 1_000_000,
                    ..good
                },
                ["threads", "1024"],
            ),
            (
                SearchOptions {
                    in_flight: Some(HUGE),
                    ..good
                },
                ["in flight", "1024"],
            ),
            (
                SearchOptions {
                    rerank: Some(Rerank {
                        batch: HUGE,
                        ..rerank
                    }),
                    ..good
                },
                ["at once", "4294967294"],
            ),
            (
                SearchOptions {
                    rerank: Some(Rerank {
                        benefit: f64::NAN,
                        ..rerank
                    }),
                    ..good
                },
                ["benefit", "0 to 1"],
            ),
        ] {
            refused(index.search(&queries, &options), &words);
            refused(live.search(&queries, &options), &words);
            refused(catalog.search(&name, &queries, &options), &words);
        }
        let endless = Endless {
            rows: 1 << 40,
            dim: DIM,
        };
        refused(
            index.search(&endless, &good),
            &["k times queries", "1073741824"],
        );
        refused(catalog.search(&name, &endless, &good), &["k times queries"]);

        let expected = index.search(&queries, &list(ROWS)).unwrap();
        for most in [ROWS + 1, 1_000_000_000, MOST_LIST] {
            let options = SearchOptions {
                beam: Some(MOST_BEAM),
                threads: MOST_THREADS,
                in_flight: Some(MOST_IN_FLIGHT),
                rerank: Some(Rerank {
                    batch: MOST_LIST,
                    ..rerank
                }),
                ..list(most)
            };
            for found in [
                index.search(&queries, &options),
                live.search(&queries, &options),
            ] {
                assert_eq!(
                    found.unwrap().ids,
                    expected.ids,
                    "{}: {most}",
                    path.display()
                );
            }
        }
    }
}

#[test]
fn numbers_of_a_build() {
    let folder = tempfile::tempdir().unwrap();
    let (base, good) = (matrix(ROWS), quick(Preset::DECOUPLEVS));
    let path = folder.path().join("index");
    for (options, words) in [
        (
            BuildOptions {
                threads: 1_000_000,
                ..good.clone()
            },
            ["threads", "1024"],
        ),
        (
            BuildOptions {
                build_list: HUGE,
                ..good.clone()
            },
            ["build list", "4294967294"],
        ),
        (
            BuildOptions {
                degree: Some(HUGE),
                ..good.clone()
            },
            ["degree", "4096"],
        ),
        (
            BuildOptions {
                code_bytes: Some(HUGE),
                ..good.clone()
            },
            ["code bytes", "8"],
        ),
        (
            BuildOptions {
                alpha: f32::NAN,
                ..good.clone()
            },
            ["alpha", "1 to 10"],
        ),
        (
            BuildOptions {
                navigation: f64::NAN,
                ..good.clone()
            },
            ["navigation", "0 to 1"],
        ),
        (
            BuildOptions {
                memory: Some(1),
                ..good.clone()
            },
            ["memory", "bytes"],
        ),
        (
            BuildOptions {
                search_memory: Some(1),
                ..good.clone()
            },
            ["memory", "bytes"],
        ),
    ] {
        refused(build(&base, &path, &options, &Silent), &words);
    }
    let wide = Endless {
        rows: 1,
        dim: 1 << 30,
    };
    refused(build(&wide, &path, &good, &Silent), &["dimension", "65536"]);
    refused(build(&base, "", &good, &Silent), &["path", "empty"]);
    assert!(!path.exists(), "a refused build left a file behind");

    let generous = BuildOptions {
        build_list: MOST_LIST,
        chunk_bytes: u64::MAX,
        segment_bytes: u64::MAX,
        memory: Some(u64::MAX),
        search_memory: Some(u64::MAX),
        ..good
    };
    for preset in [Preset::DECOUPLEVS, Preset::STRATANN] {
        let path = folder.path().join(preset.name);
        let options = BuildOptions {
            preset,
            ..generous.clone()
        };
        build(&base, &path, &options, &Silent).unwrap();
        let open = OpenOptions {
            memory: Some(u64::MAX),
            cache: CacheSize::Bytes(u64::MAX),
            ..OpenOptions::default()
        };
        let index = Index::open(&path, &open).unwrap();
        let found = index.search(&matrix(5), &SearchOptions::default()).unwrap();
        assert_eq!(found.distances[0], 0.0);
        let open = OpenOptions {
            cache: CacheSize::Entries(usize::MAX),
            ..open
        };
        Index::open(&path, &open).unwrap();
    }
}

#[test]
fn no_vector_has_the_last_number_as_its_id() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("index");
    let mut ids: Vec<u64> = (0..ROWS as u64).collect();
    ids[7] = u64::MAX;
    let options = |ids| BuildOptions {
        ids: Some(ids),
        ..quick(Preset::STRATANN)
    };
    let wrong = build(&matrix(ROWS), &path, &options(ids.clone()), &Silent);
    refused(
        wrong,
        &["row 7", "18446744073709551615", "18446744073709551614"],
    );
    assert!(!path.exists());
    ids[7] = u64::MAX - 1;
    build(&matrix(ROWS), &path, &options(ids), &Silent).unwrap();
    let index = Index::open(&path, &OpenOptions::default()).unwrap();
    let found = index
        .search(&matrix(ROWS), &SearchOptions::default())
        .unwrap();
    // Another vector is equal to this vector, and has a smaller id.
    assert!(found.ids[7 * found.k..8 * found.k].contains(&(u64::MAX - 1)));
}

#[test]
fn numbers_of_everything_else() {
    let folder = tempfile::tempdir().unwrap();
    let base = matrix(ROWS);
    let train = |options| Codebook::train(&base, &options, &Silent);
    refused(
        train(TrainOptions {
            threads: 0,
            ..TrainOptions::default()
        }),
        &["threads"],
    );
    refused(
        train(TrainOptions {
            threads: HUGE,
            ..TrainOptions::default()
        }),
        &["threads", "1024"],
    );
    refused(
        Codebook::train(
            &Endless {
                rows: 1,
                dim: 1 << 30,
            },
            &TrainOptions::default(),
            &Silent,
        ),
        &["dimension", "65536"],
    );

    let truth = |queries: &dyn VectorSource, k, threads| {
        brute_force(&base, queries, k, Metric::L2, threads, &Silent)
    };
    refused(truth(&base, HUGE, 1), &["k is", "1 to 65536"]);
    refused(truth(&base, 5, HUGE), &["threads", "1024"]);
    refused(truth(&base, 5, 0), &["threads", "1024"]);
    let endless = Endless {
        rows: MOST_ANSWERS / 5 + 1,
        dim: DIM,
    };
    refused(truth(&endless, 5, 1), &["k times queries", "1073741824"]);
    let error = Matrix::read(&Endless {
        rows: 1 << 48,
        dim: 1 << 10,
    })
    .unwrap_err();
    assert!(
        error
            .to_string()
            .contains("no memory for its 281474976710656 rows"),
        "{error}"
    );
    let error = Matrix::read(&Endless {
        rows: usize::MAX,
        dim: 1 << 10,
    })
    .unwrap_err();
    assert!(matches!(error, DataError::Room { .. }), "{error}");

    let path = folder.path().join("index");
    build(&base, &path, &quick(Preset::STRATANN), &Silent).unwrap();
    let options = RepairOptions {
        threads: HUGE,
        ..RepairOptions::default()
    };
    refused(repair(&path, &options, &Silent), &["threads", "1024"]);
    let good = WriteOptions::default();
    let direct = good.direct;
    let with = |direct| WriteOptions {
        direct,
        ..good.clone()
    };
    for (options, words) in [
        (
            WriteOptions {
                threads: HUGE,
                ..good.clone()
            },
            ["threads", "1024"],
        ),
        (
            with(DirectOptions {
                in_flight: HUGE,
                ..direct
            }),
            ["in flight", "1024"],
        ),
        (
            with(DirectOptions {
                list: Some(HUGE),
                ..direct
            }),
            ["list size", "4294967294"],
        ),
        (
            with(DirectOptions {
                checkpoint: Some(0),
                ..direct
            }),
            ["checkpoints", "at least 1"],
        ),
    ] {
        refused(
            LiveIndex::open(&path, &OpenOptions::default(), &options),
            &words,
        );
    }
    // The index really starts this many threads, so their number is small.
    let options = WriteOptions {
        threads: 3,
        direct: DirectOptions {
            list: Some(MOST_LIST),
            in_flight: MOST_IN_FLIGHT,
            pending: u64::MAX,
            checkpoint: Some(u64::MAX),
            ..direct
        },
        ..good
    };
    let live = LiveIndex::open(&path, &OpenOptions::default(), &options).unwrap();
    live.insert(&matrix(20), None, &Silent).unwrap();
    assert_eq!(live.len(), ROWS + 20);

    for path in ["", "/nowhere/at/all"] {
        let error = Index::open(path, &OpenOptions::default()).unwrap_err();
        let empty = path.is_empty();
        assert_eq!(
            error.to_string().contains("the path is empty"),
            empty,
            "{error}"
        );
    }
}
