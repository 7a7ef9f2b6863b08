//! Many queries of a client, with a bounded number in flight, for the command and the Python
//! package.

use std::collections::VecDeque;
use std::time::Instant;

use super::client::{Client, Pending};
use crate::role::{Failure, Found};

/// The parameters of the queries.
#[derive(Clone, Copy, Debug)]
pub struct Asking {
    /// The number of results of each query.
    pub k: usize,
    /// The length of the high list (D_high), or `None` for the server's default.
    pub list: Option<usize>,
    /// The beam width, or `None` for the server's default.
    pub beam: Option<usize>,
    /// The number of queries in flight.
    pub in_flight: usize,
}

/// The results of many queries, and their costs.
#[derive(Clone, Debug, Default)]
pub struct Answered {
    /// `k` ids for each query, nearest first. Missing results are `u64::MAX`, no valid id.
    pub ids: Vec<u64>,
    /// A distance for each id, infinite for missing results.
    pub distances: Vec<f32>,
    /// For each query, the microseconds from the sending to the reply.
    pub latencies_us: Vec<f32>,
    /// The time for all queries.
    pub seconds: f64,
    /// The mean costs of a query.
    pub means: Means,
    /// The largest list size of a search, at least `k`, or 0 without queries.
    pub list: u32,
    /// The largest beam width.
    pub beam: u32,
}

/// The mean costs of a query.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Means {
    /// The number of distances by low codes, on the compute server.
    pub low: f64,
    /// The number of distances by high codes, on the memory server.
    pub high: f64,
    /// The number of distances by exact vectors, on storage.
    pub full: f64,
    /// The number of exchanges between compute server and memory server.
    pub steps: f64,
    /// The bytes between compute server and memory server, both ways.
    pub wire: f64,
    /// The bytes between compute server and storage, both ways.
    pub storage_wire: f64,
    /// The number of reads that storage made.
    pub reads: f64,
    /// The bytes of these reads.
    pub read_bytes: f64,
    /// The number of restarts of a search.
    pub restarts: f64,
}

/// The reasons why many queries have no results.
#[derive(Debug)]
pub enum Unanswered<E> {
    /// A server refused, or did not answer in time.
    Server(Failure),
    /// The caller's error.
    Caller(E),
}

impl Client {
    /// Sends `rows` queries, which `read` supplies. `goes_on` is called several times a second.
    ///
    /// # Errors
    /// The first query without a result, or the first error of `read` or `goes_on`.
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
    /// Takes exactly `k` results, even if a server sends more, so that the output keeps its shape.
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
