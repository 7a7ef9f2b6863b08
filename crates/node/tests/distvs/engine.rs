//! Servers with the engine's halves, on real data, return the results of one process.

use std::path::Path;
use std::sync::Arc;

use stratann::press::{Full, High, Low};
use stratann::{
    BuildOptions, Index, IoMode, Matrix, Metric, OpenOptions, Preset, SearchOptions, Silent,
    VectorFile, VectorSource, WriteOptions, brute_force, build,
};
use stratann_node::Options;
use stratann_node::role::{MemoryOptions, NotChanged, Ranker};
use stratann_node::serve::{
    Client, ComputeServer, ComputeServerOptions, MemoryServer, Place, StorageServer,
};
use stratann_node::wire::Changed;

use crate::servers::{patient, remote};

const LIST: u32 = 60;
const QUERIES: usize = 60;

fn head(name: &str, count: usize) -> Matrix {
    let path = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures")).join(name);
    let file = VectorFile::open(path).unwrap();
    let mut bytes = vec![0; count * file.row_bytes()];
    file.read(0, &mut bytes).unwrap();
    Matrix::new(bytes, count, file.dim(), file.element()).unwrap()
}

fn built(path: &Path) {
    built_of(&head("photo-sift-20k.base.u8bin", 3000), path);
}

fn built_of(base: &Matrix, path: &Path) {
    let options = BuildOptions {
        preset: Preset::DISTVS,
        degree: Some(24),
        build_list: 40,
        navigation: 0.0,
        threads: 1,
        ..BuildOptions::default()
    };
    build(base, path, &options, &Silent).unwrap();
}

fn said(full: &Full, ids: &[u64], rows: &[f32]) -> Result<Changed, NotChanged> {
    let bytes: Vec<u8> = rows.iter().flat_map(|x| x.to_le_bytes()).collect();
    Ranker::change(full, (ids, &bytes), &[])
}

#[test]
fn what_no_index_takes_is_invalid_and_changes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("index");
    let base = head("package-text-2k.base.fbin", 500);
    built_of(&base, &path);
    let right = vec![0.5f32; 2 * base.dim()];
    let mut wrong = right.clone();
    wrong[base.dim() + 3] = f32::NAN;
    let still = Full::open(&path, 1, IoMode::Auto).unwrap();
    let writes = WriteOptions::default();
    let full = Full::open_for_changes(&path, 1, IoMode::Auto, &writes).unwrap();
    for (full, ids, rows, told) in [
        (&full, [7, u64::MAX], &right, "18446744073709551615"),
        (&full, [700, 701], &wrong, "NaN"),
        (&still, [700, 701], &right, "takes no changes. Start it"),
    ] {
        match said(full, &ids, rows) {
            Err(NotChanged::Invalid(text)) => assert!(text.contains(told), "{text}"),
            other => panic!("{told}: {other:?}"),
        }
    }
    let live = full.index().unwrap();
    assert_eq!((live.len(), live.contains(700).unwrap()), (500, false));
    assert_eq!(said(&full, &[700, 701], &right).unwrap().upserted, 2);
}

#[test]
fn what_is_deleted_takes_no_place_among_the_answers() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("index");
    built(&path);
    let high = Arc::new(High::open(&path, &Silent).unwrap());
    let writes = WriteOptions::default();
    let full = Arc::new(Full::open_for_changes(&path, 1, IoMode::Auto, &writes).unwrap());
    let memory =
        MemoryServer::start(high, MemoryOptions::default(), true, Options::default()).unwrap();
    let storage = StorageServer::start(full.clone(), 64, Options::default()).unwrap();
    let (at, behind) = (Place::Local(memory.door()), Place::Local(storage.door()));
    let own = ComputeServerOptions::default();
    let compute = ComputeServer::<Low>::start(at, behind, own).unwrap();
    let client = Client::connect(vec![Place::Local(compute.door())], patient()).unwrap();
    let queries = head("photo-sift-20k.query.u8bin", QUERIES);
    let base = head("photo-sift-20k.base.u8bin", 3000);
    let mut row = vec![0; queries.row_bytes()];
    for number in 0..3 {
        queries.read(number, &mut row).unwrap();
        // Deletes as many vectors as a search with a list of 160 re-ranks.
        let one = Matrix::new(row.clone(), 1, 128, queries.element()).unwrap();
        let near = brute_force(&base, &one, 80, Metric::L2, 1, &Silent).unwrap();
        let gone: Vec<u64> = near.ids.clone();
        let twice = [&gone[..], &gone[..1]].concat();
        let refused = client.delete(&twice, |_| true).unwrap_err().to_string();
        let told = format!(
            "id {} occurs twice, and each id may occur once; nothing was changed",
            gone[0]
        );
        assert_eq!(refused, told);
        client.delete(&gone, |_| true).unwrap();
        // The description has the number of vectors now, not at the last merge.
        let told = client.changeable_while(|| true).unwrap().unwrap();
        let left = full.index().unwrap().len() as u64;
        assert_eq!((told.vectors, told.nodes), (left, 3000));
        let found = client.search(&row, 10, 40, 0).unwrap();
        assert_eq!(found.ids.len(), 10, "query {number}");
        assert!(found.ids.iter().all(|id| !gone.contains(id)));
        let live = full.index().unwrap();
        let exact = SearchOptions {
            list: 3000,
            ..SearchOptions::default()
        };
        let right = live.search(&one, &exact).unwrap();
        let same = found.ids.iter().filter(|id| right.ids.contains(id));
        assert!(same.count() >= 9, "{:?} {:?}", found.ids, right.ids);
    }
}

#[test]
fn servers_find_what_one_process_finds() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("index");
    built(&path);
    let queries = head("photo-sift-20k.query.u8bin", QUERIES);
    let index = Index::open(&path, &OpenOptions::default()).unwrap();
    let options = SearchOptions {
        list: LIST as usize,
        ..SearchOptions::default()
    };
    let one = index.search(&queries, &options).unwrap();

    let high = Arc::new(High::open(&path, &Silent).unwrap());
    let full = Arc::new(Full::open(&path, 1, IoMode::Auto).unwrap());
    let memory =
        MemoryServer::start(high, MemoryOptions::default(), true, Options::default()).unwrap();
    let storage = StorageServer::start(full, 64, Options::default()).unwrap();
    let own = ComputeServerOptions {
        workers: 2,
        list: LIST,
        ..ComputeServerOptions::default()
    };
    let reach = || (remote(memory.address()), remote(storage.address()));
    let (at, behind) = reach();
    let compute = ComputeServer::<Low>::start(at, behind, own.clone()).unwrap();
    let client = Client::connect(vec![Place::Local(compute.door())], patient()).unwrap();
    let collection = client.collection().unwrap();
    assert_eq!(
        (collection.nodes, collection.dim, collection.row_bytes),
        (3000, 128, 128)
    );
    // One server has space for a third of the low codes, and another for none.
    let poor: Vec<_> = [16 * 1000, 100]
        .into_iter()
        .map(|low_memory| {
            let (at, behind) = reach();
            let own = ComputeServerOptions {
                low_memory,
                ..own.clone()
            };
            let compute = ComputeServer::<Low>::start(at, behind, own).unwrap();
            let place = Place::Local(compute.door());
            let client = Client::connect(vec![place], patient()).unwrap();
            client.collection().unwrap();
            let low = compute.low().unwrap();
            assert!(low.code_bytes() <= low_memory && low.kept().is_some_and(|kept| kept < 1000));
            (compute, client)
        })
        .collect();
    let mut row = vec![0; queries.row_bytes()];
    let pending: Vec<_> = (0..QUERIES)
        .map(|number| {
            queries.read(number, &mut row).unwrap();
            client.submit(&row, 10, 0, 0)
        })
        .collect();
    let (mut high, mut full, mut steps, mut wire) = (0, 0, 0, 0);
    for (number, pending) in pending.into_iter().enumerate() {
        let found = pending.wait().unwrap();
        assert_eq!(
            found.ids,
            one.ids[10 * number..10 * number + 10],
            "query {number}"
        );
        assert_eq!(
            found.distances,
            one.distances[10 * number..10 * number + 10]
        );
        high += found.counters.high;
        full += found.counters.full;
        steps += u64::from(found.counters.steps);
        wire += found.counters.wire;
    }
    let base = head("photo-sift-20k.base.u8bin", 3000);
    let truth = brute_force(&base, &queries, 10, Metric::L2, 1, &Silent).unwrap();
    // The list is too small to find all results.
    let searched = |client: &Client| {
        let (mut ids, mut distances, mut took) = (Vec::new(), Vec::new(), [0; 3]);
        let mut row = vec![0; queries.row_bytes()];
        for number in 0..QUERIES {
            queries.read(number, &mut row).unwrap();
            let found = client.search(&row, 10, 22, 0).unwrap();
            ids.extend(found.ids);
            distances.extend(found.distances);
            took[0] += u64::from(found.counters.steps);
            took[1] += found.counters.low;
            took[2] += found.counters.high;
        }
        let recall = truth.recall(&ids, &distances, 10).unwrap();
        (recall, took.map(|count| count as f64 / QUERIES as f64))
    };
    let (all, [rounds, by_low, by_high]) = searched(&client);
    assert!((0.9..0.98).contains(&all), "{all}");
    // The server with a third of the codes begins searches at nodes whose codes it has. The server
    // with no codes begins them at evenly spaced nodes.
    for ((_, client), (later, more)) in poor.iter().zip([(0.1, 1.05), (0.3, 1.1)]) {
        let (recall, took) = searched(client);
        let context = format!(
            "{recall} by {took:?} rounds, low and high; with all low codes {all} by {rounds}, {by_low}, {by_high}"
        );
        println!("{context}");
        assert!(recall > all - 0.01, "{context}");
        assert!(took[0] < rounds + later, "{context}");
        assert!(took[1] < 1.01 * by_low, "{context}");
        assert!(took[2] < more * by_high, "{context}");
    }
    let counters = one.counters;
    assert_eq!(full, counters.reranked);
    // The visited set has another size in one process, so some nodes may be scored twice.
    let one = counters.distance_computations - counters.low_computations;
    let differs = (high + full).abs_diff(one);
    assert!(100 * differs <= one, "{} {one}", high + full);
    let queries = QUERIES as u64;
    println!(
        "{} steps and {} bytes a query, {} distances by high codes",
        steps / queries,
        wire / queries,
        high / queries
    );
    // With larger codes and lists, messages need a smaller share of these bytes.
    let codes = counters.low_computations * u64::from(collection.high_bytes);
    assert!(4 * wire < codes, "{wire} {codes}");
}
