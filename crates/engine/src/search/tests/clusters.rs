//! Probes of cluster indexes, under any order of completions.

use std::collections::HashSet;

use stratann_layout::Manifest;
use stratann_layout::manifest::FILE_NAME as MANIFEST;
use stratann_vector::Element;

use super::*;
use crate::slow::slow;
use crate::{LiveIndex, WriteOptions};

const LAYOUTS: [Layout; 3] = [Layout::Replicated, Layout::Addressed, Layout::Grouped];

fn clusters(layout: Layout) -> BuildOptions {
    BuildOptions {
        layout: Some(layout),
        cluster_size: Some(12),
        threads: 2,
        ..BuildOptions::default()
    }
}

fn probing(probes: usize) -> SearchOptions {
    SearchOptions {
        probes: Some(probes),
        ..SearchOptions::default()
    }
}

fn photos() -> (Matrix, Matrix) {
    let base = head(&fixture("photo-sift-20k.base.u8bin"), 3_000);
    let queries = head(&fixture("photo-sift-20k.query.u8bin"), 60);
    (base, queries)
}

fn of_element(rows: &Matrix, element: Element) -> Matrix {
    let bytes = rows.in_memory().unwrap();
    let values = bytes.iter().map(|&byte| f32::from(byte) - 40.0);
    let bytes: Vec<u8> = match element {
        Element::U8 => bytes.to_vec(),
        Element::I8 => values
            .map(|value| value.clamp(-128.0, 127.0) as i8 as u8)
            .collect(),
        Element::F32 => values.flat_map(f32::to_le_bytes).collect(),
        Element::F16 => {
            let mut out = Vec::new();
            for value in values {
                // Half floats represent whole numbers of up to ten bits exactly.
                let bits = value.to_bits();
                let half = match value == 0.0 {
                    true => 0,
                    false => {
                        (bits >> 16 & 0x8000)
                            | ((bits >> 23 & 0xff) - 112) << 10
                            | (bits >> 13 & 0x3ff)
                    }
                };
                out.extend((half as u16).to_le_bytes());
            }
            out
        }
    };
    Matrix::new(bytes, rows.rows(), rows.dim(), element).unwrap()
}

#[test]
fn probing_all_clusters_answers_exactly_whatever_the_element_and_the_metric() {
    let folder = tempfile::tempdir().unwrap();
    let (base, queries) = photos();
    let base = head(&fixture("photo-sift-20k.base.u8bin"), base.rows() / 3);
    for (e, element) in Element::ALL.into_iter().enumerate() {
        let (base, queries) = (of_element(&base, element), of_element(&queries, element));
        for (m, metric) in Metric::ALL.into_iter().enumerate() {
            let truth = brute_force(&base, &queries, 10, metric, 2, &Silent).unwrap();
            for (l, layout) in LAYOUTS.into_iter().enumerate() {
                // By default, each pair of an element type, a metric and a layout occurs at least
                // once.
                if !slow() && (e + m + l) % LAYOUTS.len() != 0 {
                    continue;
                }
                let path = folder.path().join(format!("{element}-{metric}-{layout}"));
                let options = BuildOptions {
                    metric,
                    ..clusters(layout)
                };
                build(&base, &path, &options, &Silent).unwrap();
                let index = Index::open(&path, &OpenOptions::default()).unwrap();
                let found = index.search(&queries, &probing(1_000)).unwrap();
                let recall = truth.recall(&found.ids, &found.distances, 10).unwrap();
                // Far clusters are not probed, and the graph misses a few heads, so recall may be
                // below 1.
                assert!(recall >= 0.999, "{element}, {metric}, {layout}: {recall}");
            }
        }
    }
}

#[test]
fn a_few_probes_find_most_and_read_each_vector_once() {
    let folder = tempfile::tempdir().unwrap();
    let (base, queries) = photos();
    let truth = brute_force(&base, &queries, 10, Metric::L2, 2, &Silent).unwrap();
    let mut of_layout = Vec::new();
    for layout in LAYOUTS {
        let path = folder.path().join(layout.name());
        build(&base, &path, &clusters(layout), &Silent).unwrap();
        let index = Index::open(&path, &OpenOptions::default()).unwrap();
        let found = index.search(&queries, &probing(16)).unwrap();
        let recall = truth.recall(&found.ids, &found.distances, 10).unwrap();
        assert!(recall > 0.95, "{layout}: {recall}");
        of_layout.push((recall, found.ids, found.counters));
    }
    let [(_, replicated, r), (_, addressed, a), (_, grouped, g)] = &of_layout[..] else {
        panic!("three layouts");
    };
    // Replicated clusters must fit into blocks, so they have fewer members.
    assert_eq!(addressed, grouped);
    let both = replicated.iter().zip(grouped).filter(|(a, b)| a == b);
    assert!(both.count() * 100 >= 96 * grouped.len());
    assert_eq!((r.posting_reads, r.stray_reads), (16 * 60, 0));
    assert_eq!((a.posting_reads, g.group_reads), (16 * 60, 16 * 60));
    assert_eq!(
        (a.distance_computations, a.hops),
        (g.distance_computations, g.hops)
    );
    // With many vectors, groups save two thirds of the reads or more (bench/clusters.toml). Here
    // they save less.
    assert!(4 * g.stray_reads < 3 * a.stray_reads, "{g:?} {a:?}");
    assert!(g.vector_reads == g.stray_reads && g.graph_reads == g.group_reads);
}

#[test]
fn answers_do_not_depend_on_the_order_of_completions() {
    let folder = tempfile::tempdir().unwrap();
    let (base, queries) = photos();
    for layout in LAYOUTS {
        let path = folder.path().join(layout.name());
        build(&base, &path, &clusters(layout), &Silent).unwrap();
        let under = |faults: Faults| {
            let mut index = Index::open(&path, &OpenOptions::default()).unwrap();
            let volume = stratann_tier::Directory::open(&path).unwrap();
            index.replace_tiers(&|name| {
                let bytes = volume.read(name).unwrap();
                Arc::new(Faulty::new(Arc::new(DramTier::new(bytes)), faults.clone()))
            });
            index
        };
        let expected = under(Faults::none()).search(&queries, &probing(9)).unwrap();
        let from_disk = Index::open(&path, &OpenOptions::default()).unwrap();
        assert_eq!(
            from_disk.search(&queries, &probing(9)).unwrap().ids,
            expected.ids
        );
        for (name, faults) in orders() {
            for beam in [1, 3, 64] {
                let options = SearchOptions {
                    beam: Some(beam),
                    ..probing(9)
                };
                let found = under(faults.clone()).search(&queries, &options).unwrap();
                assert_eq!(found.ids, expected.ids, "{layout}, {name}, beam {beam}");
                assert_eq!(found.distances, expected.distances);
            }
        }
        // The error of a failed read names the file and the byte, and later batches are not
        // affected.
        let index = under(Faults::none().at_read(40, Fault::Error(5)));
        let error = index.search(&queries, &probing(9)).unwrap_err().to_string();
        assert!(error.contains("byte"), "{layout}: {error}");
        assert!(index.search(&queries, &probing(9)).is_ok());
        let error = under(Faults::none().at_read(40, Fault::Flip(12_345)));
        let error = error.search(&queries, &probing(9)).unwrap_err().to_string();
        assert!(error.contains("checksum"), "{layout}: {error}");
    }
}

#[test]
fn what_was_deleted_is_no_answer_and_what_was_inserted_is_one() {
    let folder = tempfile::tempdir().unwrap();
    let (base, queries) = photos();
    for layout in LAYOUTS {
        let path = folder.path().join(layout.name());
        build(&base, &path, &clusters(layout), &Silent).unwrap();
        let before = Index::open(&path, &OpenOptions::default()).unwrap();
        let nearest = before
            .search(
                &queries,
                &SearchOptions {
                    k: 1,
                    ..probing(16)
                },
            )
            .unwrap();
        let gone: HashSet<u64> = nearest.ids.iter().copied().collect();
        let live =
            LiveIndex::open(&path, &OpenOptions::default(), &WriteOptions::default()).unwrap();
        live.delete(&gone.iter().copied().collect::<Vec<_>>())
            .unwrap();
        let new: Vec<u64> = (50_000..).take(queries.rows()).collect();
        live.insert(&queries, Some(&new), &Silent).unwrap();
        let check = |found: &SearchResults, what: &str| {
            assert!(
                found.ids.iter().all(|id| !gone.contains(id)),
                "{layout}, {what}"
            );
            let nearest = found.ids.chunks(found.k).map(|ids| ids[0]);
            assert!(nearest.eq(new.iter().copied()), "{layout}, {what}");
        };
        check(&live.search(&queries, &probing(16)).unwrap(), "live");
        live.compact(&Silent).unwrap();
        check(&live.search(&queries, &probing(16)).unwrap(), "merged");
        assert_eq!(live.index().len(), 3_000 - gone.len() + queries.rows());
        assert!(live.index().has_clusters());
        // Probes find none of the few remaining vectors, so the search scans every vector.
        let kept = [3u64, 700, 50_003];
        let all = (0..3_000)
            .filter(|id| !gone.contains(id))
            .chain(new.iter().copied());
        let rest: Vec<u64> = all.filter(|id| !kept.contains(id)).collect();
        let kept = kept
            .into_iter()
            .filter(|id| !gone.contains(id))
            .collect::<HashSet<_>>();
        live.delete(&rest).unwrap();
        let found = live.search(&queries, &probing(2)).unwrap();
        for ids in found.ids.chunks(10) {
            let answers: HashSet<u64> = ids.iter().copied().filter(|&id| id != u64::MAX).collect();
            assert_eq!(answers, kept, "{layout}");
        }
    }
}

#[test]
fn clusters_take_new_vectors_in_place_and_stay_in_balance() {
    let folder = tempfile::tempdir().unwrap();
    let all = head(&fixture("photo-sift-20k.base.u8bin"), 4_500);
    let queries = head(&fixture("photo-sift-20k.query.u8bin"), 60);
    let bytes = all.in_memory().unwrap();
    let part = |rows: std::ops::Range<usize>| {
        let part = bytes[rows.start * 128..rows.end * 128].to_vec();
        Matrix::new(part, rows.len(), 128, Element::U8).unwrap()
    };
    let (built, total) = (1_500, 4_500);
    let open = |path: &std::path::Path| {
        let options = WriteOptions {
            direct: crate::DirectOptions {
                checkpoint: Some(150),
                ..crate::DirectOptions::default()
            },
            update: Some(crate::Update::Rebalance),
            ..WriteOptions::default()
        };
        LiveIndex::open(path, &OpenOptions::default(), &options).unwrap()
    };
    for layout in LAYOUTS {
        let path = folder.path().join(layout.name());
        build(&part(0..built), &path, &clusters(layout), &Silent).unwrap();
        let clusters_of = |index: &Index| index.clusters().unwrap().clusters();
        let live = open(&path);
        let before = clusters_of(&live.index());
        for first in (built..total).step_by(200) {
            live.insert(&part(first..first + 200), None, &Silent)
                .unwrap();
        }
        let stats = live.stats();
        assert!(
            stats.bytes.total > 0 && stats.vectors as usize >= total - 200,
            "{layout}"
        );
        let gone: Vec<u64> = (0..total as u64).step_by(3).collect();
        live.delete(&gone).unwrap();
        live.upsert(&part(0..40), &(7_001..7_041).collect::<Vec<u64>>(), &Silent)
            .unwrap();
        let again: Vec<u64> = (0..60).collect();
        live.upsert(&part(0..60), &again, &Silent).unwrap();
        let report = live.rebalance(&Silent).unwrap();
        assert!(report.merged > 0, "{layout}: {report:?}");
        let clusters_now = clusters_of(&live.index());
        assert!(
            clusters_now > before + before / 2,
            "{layout}: {before}, {clusters_now}"
        );

        let mut ids: Vec<u64> = (0..total as u64)
            .filter(|id| id % 3 > 0 || *id < 60)
            .collect();
        let mut rows: Vec<u8> = ids
            .iter()
            .flat_map(|&id| bytes[id as usize * 128..][..128].iter().copied())
            .collect();
        ids.extend(7_001..7_041);
        rows.extend_from_slice(&bytes[..40 * 128]);
        let rows = Matrix::new(rows, ids.len(), 128, Element::U8).unwrap();
        let truth = brute_force(&rows, &queries, 10, Metric::L2, 2, &Silent).unwrap();
        let recall = |found: &SearchResults| {
            let known: HashSet<(usize, u32)> = (0..queries.rows())
                .flat_map(|query| {
                    let distances = truth.distances.as_ref().unwrap();
                    let of_query = &distances[query * truth.k..][..10];
                    of_query.iter().map(move |d| (query, d.to_bits()))
                })
                .collect();
            let hits = found.distances.iter().enumerate();
            let hits = hits.filter(|(at, d)| known.contains(&(at / 10, d.to_bits())));
            hits.count() as f64 / (10 * queries.rows()) as f64
        };
        let in_place = live.search(&queries, &probing(16)).unwrap();
        drop(live);
        let report = crate::verify(&path, &Silent).unwrap();
        assert!(report.clean(), "{layout}: {:?}", report.problems);
        let index = Index::open(&path, &OpenOptions::default()).unwrap();
        assert_eq!(index.live(), ids.len(), "{layout}");
        let found = index.search(&queries, &probing(16)).unwrap();
        assert_eq!(found.ids, in_place.ids, "{layout}");
        let known: HashSet<u64> = ids.iter().copied().collect();
        assert!(found.ids.iter().all(|id| known.contains(id)), "{layout}");
        // The candidate list is long enough for all vectors, so the search scans.
        let scanned = SearchOptions {
            k: 10,
            ..probing(100_000)
        };
        let exact = recall(&index.search(&queries, &scanned).unwrap());
        assert!(exact > 0.998, "{layout}: {exact}");

        let fresh = folder.path().join(format!("{layout}-anew"));
        let options = BuildOptions {
            ids: Some(ids),
            ..clusters(layout)
        };
        build(&rows, &fresh, &options, &Silent).unwrap();
        let anew = Index::open(&fresh, &OpenOptions::default()).unwrap();
        let anew = anew.search(&queries, &probing(16)).unwrap();
        let (now, then) = (recall(&found), recall(&anew));
        assert!(now > then - 0.02, "{layout}: {now} in place, {then} anew");

        let live = open(&path);
        let report = live.compact(&Silent).unwrap();
        assert_eq!(report.vectors as usize, known.len(), "{layout}: {report:?}");
        assert!(live.index().clusters().unwrap().amended().is_none());
        let merged = live.search(&queries, &probing(16)).unwrap();
        assert!(recall(&merged) > then - 0.02, "{layout}");
    }
}

#[test]
fn splits_reassign_vectors_and_small_clusters_are_dissolved() {
    let folder = tempfile::tempdir().unwrap();
    let all = head(&fixture("photo-sift-20k.base.u8bin"), 3_000);
    let bytes = all.in_memory().unwrap();
    let part = |rows: std::ops::Range<usize>| {
        let part = bytes[rows.start * 128..rows.end * 128].to_vec();
        Matrix::new(part, rows.len(), 128, Element::U8).unwrap()
    };
    for layout in LAYOUTS {
        let path = folder.path().join(layout.name());
        build(&part(0..1_500), &path, &clusters(layout), &Silent).unwrap();
        let options = WriteOptions {
            update: Some(crate::Update::Merge),
            // One thread inserts, because the order of inserts decides which clusters are split.
            threads: 1,
            ..WriteOptions::default()
        };
        let live = LiveIndex::open(&path, &OpenOptions::default(), &options).unwrap();
        live.insert(&part(1_500..2_900), None, &Silent).unwrap();
        let report = live.rebalance(&Silent).unwrap();
        assert_eq!(report.merged, 1_400, "{layout}: {report:?}");
        assert!(
            report.clusters_split > 40 && report.reassigned > 50,
            "{layout}: {report:?}"
        );
        let gone: Vec<u64> = (0..2_900).filter(|id| id % 20 > 0).collect();
        live.delete(&gone).unwrap();
        live.insert(&part(2_900..3_000), None, &Silent).unwrap();
        let report = live.rebalance(&Silent).unwrap();
        assert_eq!(
            report.clusters_merged > 0,
            layout == Layout::Replicated,
            "{report:?}"
        );
        drop(live);
        let report = crate::verify(&path, &Silent).unwrap();
        assert!(report.clean(), "{layout}: {:?}", report.problems);
        let index = Index::open(&path, &OpenOptions::default()).unwrap();
        assert_eq!(index.live(), 145 + 100, "{layout}");
        let known = part(2_900..2_950);
        let found = index
            .search(&known, &SearchOptions { k: 1, ..probing(8) })
            .unwrap();
        assert!(
            found.distances.iter().all(|&distance| distance == 0.0),
            "{layout}"
        );
    }
}

#[test]
fn tables_that_do_not_fit_the_memory_are_refused_with_what_would_do() {
    let folder = tempfile::tempdir().unwrap();
    let (base, queries) = photos();
    for layout in LAYOUTS {
        let path = folder.path().join(layout.name());
        build(&base, &path, &clusters(layout), &Silent).unwrap();
        let with = |memory| {
            let options = OpenOptions {
                memory: Some(memory),
                ..OpenOptions::default()
            };
            Index::open(&path, &options)
        };
        let Err(Error::Memory { needs, part, .. }) = with(1 << 20) else {
            panic!("{layout}: 1 MiB of memory is enough for the search");
        };
        assert!(part.contains("heads"), "{part}");
        assert!(matches!(with(needs - 1), Err(Error::Memory { .. })));
        let index = with(needs).unwrap();
        assert!(index.memory().tables > 0);
        assert!(index.search(&queries, &probing(8)).is_ok());
    }
}

#[test]
fn probes_are_of_clusters_and_what_only_graphs_have_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let (base, queries) = photos();
    let graph = under(Faults::none());
    let error = graph.search(&queries, &probing(4)).unwrap_err().to_string();
    assert!(
        error.contains("probes") && error.contains("list size"),
        "{error}"
    );
    let refused = |options: BuildOptions, word: &str| {
        let error = build(&base, folder.path().join("no"), &options, &Silent).unwrap_err();
        assert!(
            error.is_call_wrong() && error.to_string().contains(word),
            "{error}"
        );
    };
    let spann = || clusters(Layout::Replicated);
    refused(
        BuildOptions {
            degree: Some(16),
            ..spann()
        },
        "degree",
    );
    refused(
        BuildOptions {
            resume: true,
            ..spann()
        },
        "resume",
    );
    refused(
        BuildOptions {
            compression: Some(Compression::Best),
            ..spann()
        },
        "compression",
    );
    refused(
        BuildOptions {
            order: Some(Order::Locality),
            ..spann()
        },
        "order",
    );
    refused(
        BuildOptions {
            replicas: Some(0),
            ..spann()
        },
        "replicas",
    );
    refused(
        BuildOptions {
            replicas: Some(4),
            ..BuildOptions::default()
        },
        "replicas",
    );
    let path = folder.path().join("index");
    build(&base, &path, &spann(), &Silent).unwrap();
    let index = Index::open(&path, &OpenOptions::default()).unwrap();
    let navigated = SearchOptions {
        navigation: Some(true),
        ..probing(4)
    };
    let error = index.search(&queries, &navigated).unwrap_err().to_string();
    assert!(error.contains("navigation"), "{error}");
    assert!(
        index
            .search(&queries, &probing(0))
            .unwrap_err()
            .is_call_wrong()
    );
}

#[test]
fn a_log_of_queries_groups_vectors_where_these_look() {
    let folder = tempfile::tempdir().unwrap();
    let (base, queries) = photos();
    let log = folder.path().join("log.u8bin");
    let rows = queries.in_memory().unwrap();
    let words = [queries.rows() as u32, queries.dim() as u32];
    let bytes = [&words.map(u32::to_le_bytes).concat(), rows].concat();
    std::fs::write(&log, bytes).unwrap();
    let strays = |query_log: Option<PathBuf>, name: &str| {
        let path = folder.path().join(name);
        let options = BuildOptions {
            query_log,
            ..clusters(Layout::Grouped)
        };
        build(&base, &path, &options, &Silent).unwrap();
        assert!(crate::verify(&path, &Silent).unwrap().clean());
        let index = Index::open(&path, &OpenOptions::default()).unwrap();
        let found = index.search(&queries, &probing(12)).unwrap();
        (found.ids, found.counters.stray_reads)
    };
    let (ids, alike) = strays(None, "alike");
    let (same, by_log) = strays(Some(log), "by-log");
    assert_eq!(ids, same);
    assert!(by_log < alike, "{by_log} strays, {alike} without the log");
}

#[test]
fn any_number_of_threads_builds_the_same_bytes() {
    let folder = tempfile::tempdir().unwrap();
    let (base, _) = photos();
    for layout in LAYOUTS {
        let files = |threads| {
            let path = folder.path().join(format!("{layout}-{threads}"));
            build(
                &base,
                &path,
                &BuildOptions {
                    threads,
                    ..clusters(layout)
                },
                &Silent,
            )
            .unwrap();
            let entries = std::fs::read_dir(&path).unwrap();
            let files = entries.map(|entry| {
                let path = entry.unwrap().path();
                let mut bytes = std::fs::read(&path).unwrap();
                let name = path.file_name().unwrap().to_owned();
                if name == MANIFEST {
                    // Each build draws a random checkpoint id.
                    let mut manifest = Manifest::decode(&bytes, MANIFEST).unwrap();
                    assert!(manifest.state.take().is_some());
                    bytes = manifest.encode();
                }
                (name, bytes)
            });
            files.collect::<std::collections::BTreeMap<_, _>>()
        };
        assert!(files(1) == files(3), "{layout}");
    }
}
