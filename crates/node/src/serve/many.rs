//! Many queries of a client, with a bounded number in flight. `stratann cluster search` and the
//! Python package use this.

use std::collections::VecDeque;
use std::time::Instant;

use super::client::{Client, Pending};
use crate::role::{Failure, Found};

/// The parameters of the queries.
#[derive(Clone, Copy, Debug)]
pub struct Asking {
    /// Answers of each query.
    pub k: usize,
    /// D_high; `None`: the server's default.
    pub list: Option<usize>,
    /// Nodes that a round visits; `None`: the server's default.
    pub beam: Option<usize>,
    /// Queries in flight.
    pub in_flight: usize,
}

/// The results of many queries, and their costs.
#[derive(Clone, Debug, Default)]
pub struct Answered {
    /// `k` ids for each query, nearest first. Missing answers are `u64::MAX`, which is no valid id.
    pub ids: Vec<u64>,
    /// A distance for each id; infinite for missing answers.
    pub distances: Vec<f32>,
    /// For each query, the microseconds from its sending to its answer.
    pub latencies_us: Vec<f32>,
    /// The time for all queries.
    pub seconds: f64,
    /// Mean costs of a query.
    pub means: Means,
    /// The longest list of a search: the requested length or the server's default, and at least
    /// `k`. 0 without queries.
    pub list: u32,
    /// The widest beam.
    pub beam: u32,
}

/// The mean costs of a query.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Means {
    /// Distances by low codes, on the compute server.
    pub low: f64,
    /// Distances by high codes, on the memory server.
    pub high: f64,
    /// Distances by exact vectors, on storage.
    pub full: f64,
    /// Rounds between compute server and memory server.
    pub steps: f64,
    /// Bytes between them, in both directions.
    pub wire: f64,
    /// Bytes between compute server and storage.
    pub storage_wire: f64,
    /// Reads of storage.
    pub reads: f64,
    /// Bytes of these reads.
    pub read_bytes: f64,
    /// Restarts of a search.
    pub restarts: f64,
}

/// Why many queries have no answers.
#[derive(Debug)]
pub enum Unanswered<E> {
    /// A server refused, or did not answer in time.
    Server(Failure),
    /// The caller's error.
    Caller(E),
}

impl Client {
    /// Sends `rows` queries, and waits for all answers. `read` gives the row of each. `goes_on` is
    /// called several times a second.
    ///
    /// # Errors
    /// The first query that has no answer, or the first error of `read` or `goes_on`. Queries in
    /// flight are given up then.
    pub fn search_all<E>(
        &self,
        rows: usize,
        mut read: impl FnMut(usize, &mut Vec<u8>) -> Result<(), E>,
        asking: &Asking,
        mut goes_on: impl FnMut() -> Result<(), E>,
    ) -> Result<Answered, Unanswered<E>> {
        let number = |value: usize| u32::try_from(value).unwrap_or(u32::MAX);
        let (list, beam) = (asking.list.map_or(0, number), asking.beam.map_or(0, number));
        let (mut answered, mut row) = (Answered::default(), Vec::new());
        let mut flying: VecDeque<(Instant, Pending)> = VecDeque::new();
        let (began, mut next) = (Instant::now(), 0);
        loop {
            while next < rows && flying.len() < asking.in_flight.max(1) {
                read(next, &mut row).map_err(Unanswered::Caller)?;
                next += 1;
                let pending = self.submit(&row, number(asking.k), list, beam);
                flying.push_back((Instant::now(), pending));
            }
            let Some((asked, pending)) = flying.pop_front() else {
                break;
            };
            let mut stopped = Ok(());
            let found = pending.wait_while(|| {
                stopped = goes_on();
                stopped.is_ok()
            });
            stopped.map_err(Unanswered::Caller)?;
            if let Some(found) = found {
                let found = found.map_err(Unanswered::Server)?;
                answered.add(&found, asking.k);
                answered
                    .latencies_us
                    .push(asked.elapsed().as_secs_f32() * 1e6);
            }
        }
        answered.seconds = began.elapsed().as_secs_f64();
        answered.means.divide(rows);
        Ok(answered)
    }
}

impl Answered {
    /// Adds exactly `k` answers of a query. A server that sends more must not change the shape of
    /// the result.
    fn add(&mut self, found: &Found, k: usize) {
        let ids = found.ids.iter().copied();
        let distances = found.distances.iter().copied();
        let none = std::iter::repeat((u64::MAX, f32::INFINITY));
        for (id, distance) in ids.zip(distances).chain(none).take(k) {
            self.ids.push(id);
            self.distances.push(distance);
        }
        let (counters, means) = (&found.counters, &mut self.means);
        self.list = self.list.max(counters.list);
        self.beam = self.beam.max(counters.beam);
        means.low += counters.low as f64;
        means.high += counters.high as f64;
        means.full += counters.full as f64;
        means.steps += f64::from(counters.steps);
        means.wire += counters.wire as f64;
        means.storage_wire += counters.storage_wire as f64;
        means.reads += counters.reads as f64;
        means.read_bytes += counters.read_bytes as f64;
        means.restarts += f64::from(counters.restarts);
    }
}

impl Means {
    /// Divides sums by the number of queries.
    fn divide(&mut self, queries: usize) {
        let queries = queries.max(1) as f64;
        for sum in [
            &mut self.low,
            &mut self.high,
            &mut self.full,
            &mut self.steps,
            &mut self.wire,
            &mut self.storage_wire,
            &mut self.reads,
            &mut self.read_bytes,
            &mut self.restarts,
        ] {
            *sum /= queries;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_query_gets_k_answers_whatever_a_server_gives() {
        let mut answered = Answered::default();
        for given in [0, 1, 2, 3, 5] {
            let found = Found {
                ids: (0..given).collect(),
                distances: (0..given).map(|id| id as f32).collect(),
                ..Found::default()
            };
            answered.add(&found, 3);
        }
        let none = u64::MAX;
        let ids = [
            [none; 3],
            [0, none, none],
            [0, 1, none],
            [0, 1, 2],
            [0, 1, 2],
        ];
        assert_eq!(answered.ids, ids.as_flattened());
        let distances = &answered.distances;
        assert_eq!(distances.len(), ids.as_flattened().len());
        let known = distances.iter().map(|distance| distance.is_finite());
        assert!(known.eq(answered.ids.iter().map(|id| *id != none)));
    }
}
