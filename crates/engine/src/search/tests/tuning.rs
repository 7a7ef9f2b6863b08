//! A batch finds its best number of queries in flight, and its results do not depend on this
//! number.

use std::time::Duration;

use stratann_tier::{Device, DeviceModel, ModelledTier};

use super::*;
use crate::search::tuning::{FROM, MOST};

/// The coupled index on a device with this latency.
fn late(latency: Duration) -> Index {
    let mut index = Index::open(path(COUPLED), &OpenOptions::default()).unwrap();
    let volume = stratann_tier::Directory::open(path(COUPLED)).unwrap();
    let model = DeviceModel {
        bandwidth: 1_000_000,
        latency,
        block: 512,
        piece: None,
        engine_fixed: 0,
        engine_block: 0,
    };
    let device = Device::new("late", model);
    index.replace_tiers(&|name| {
        let bytes = DramTier::new(volume.read(name).unwrap());
        Arc::new(ModelledTier::new(Arc::new(bytes), device.clone()))
    });
    index
}

fn many(rows: usize) -> Matrix {
    let queries = &small().queries;
    let row_bytes = queries.bytes().len() / queries.rows();
    let bytes = queries.bytes().iter().copied().cycle();
    let bytes = bytes.take(rows * row_bytes).collect();
    Matrix::new(bytes, rows, queries.dim(), queries.element()).unwrap()
}

fn best_first() -> SearchOptions {
    SearchOptions {
        list: 20,
        ..options(Preset::DISKANN)
    }
}

#[test]
fn a_batch_that_tries_how_many_are_best_answers_as_any_other() {
    // The best number depends on the clock, so only `by_the_clock` tests it.
    let index = late(Duration::from_millis(1));
    for threads in [1, 2] {
        let queries = many(2 * threads * FROM);
        let chosen = SearchOptions {
            threads,
            ..best_first()
        };
        let found = index.search(&queries, &chosen).unwrap();
        let numbers: Vec<_> = found.tried.iter().map(|tried| tried.in_flight).collect();
        assert!(numbers.starts_with(&[1, 2, 4]), "{numbers:?}");
        assert!(numbers.contains(&found.in_flight), "{numbers:?}");
        assert!(found.tried.iter().all(|tried| tried.qps > 0.0));
        let said = SearchOptions {
            in_flight: Some(32),
            ..chosen
        };
        let expected = index.search(&queries, &said).unwrap();
        assert_eq!(
            (found.ids, found.distances),
            (expected.ids, expected.distances)
        );
        assert_eq!((expected.in_flight, expected.tried), (32, Vec::new()));
    }
}

#[test]
fn a_short_batch_tries_nothing() {
    let index = under(Faults::none());
    let of = |rows, options: &SearchOptions| {
        let found = index.search(&many(rows), options).unwrap();
        (found.in_flight, found.tried.len())
    };
    assert_eq!(of(1, &best_first()), (1, 0));
    assert_eq!(of(FROM - 1, &best_first()), (8, 0));
    let (in_flight, tried) = of(4 * FROM, &best_first());
    assert!(
        (1..=MOST).contains(&in_flight) && tried > 1,
        "{in_flight}, {tried}"
    );
}

#[test]
fn a_batch_that_is_stopped_or_fails_while_it_tries_ends() {
    // No read completes before the searches are ended.
    let index = Arc::new(late(Duration::from_secs(3_600)));
    for threads in [1, 2] {
        let options = SearchOptions {
            threads,
            ..best_first()
        };
        let queries = many(4 * FROM);
        // While one query is in flight on each thread, dozens of tasks wait.
        let deadline = Instant::now() + Duration::from_millis(20);
        let outcome = index.submit(queries.clone(), &options, Some(deadline));
        assert!(matches!(
            outcome.unwrap().wait(),
            Err(Error::DeadlineExceeded)
        ));
        let search = index.submit(queries, &options, None).unwrap();
        std::thread::sleep(Duration::from_millis(5));
        search.cancel();
        assert!(matches!(search.wait(), Err(Error::Interrupted)));
        // A read fails: in one run for the first query, and in another run for a later query.
        for read in [0, 100] {
            let index = under(Faults::none().at_read(read, Fault::Error(5)));
            let error = index.search(&many(4 * FROM), &options).unwrap_err();
            assert!(matches!(error, Error::Tier(_)), "{error}");
        }
    }
    assert_eq!(Arc::strong_count(&index), 1);
}

/// At least one of three runs must be undisturbed.
mod by_the_clock {
    use super::*;

    #[test]
    fn where_reads_are_late_more_queries_are_in_flight() {
        let index = late(Duration::from_millis(1));
        for threads in [1, 2] {
            let options = SearchOptions {
                threads,
                ..best_first()
            };
            // One at a time, queries take a hundredth of a second each.
            let [few, queries] = [threads * 32, 2 * threads * FROM].map(many);
            let run = |queries, in_flight| {
                let options = SearchOptions {
                    in_flight,
                    ..options
                };
                index.search(queries, &options).unwrap()
            };
            let mut seen = Vec::new();
            let hides = (0..3).any(|_| {
                // Four queries in flight must save more time than the difference of two equal runs.
                let [one, again] = [Some(1), Some(1)].map(|alone| run(&few, alone));
                let chosen = run(&queries, None);
                let noise = (one.seconds / again.seconds).max(again.seconds / one.seconds);
                let qps = |in_flight| {
                    let tried = chosen
                        .tried
                        .iter()
                        .find(|tried| tried.in_flight == in_flight);
                    tried.map_or(0.0, |tried| tried.qps)
                };
                let gain = qps(4) / qps(1);
                seen.push((chosen.in_flight, gain, noise));
                chosen.in_flight >= 4 && gain > 2.0 * noise
            });
            assert!(hides, "{threads} threads: {seen:?}");
        }
    }
}
