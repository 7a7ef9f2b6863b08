//! Measures the time of a query, part by part (DecoupleVS, Table 2).
//!
//! The measurement is off by default, because reading the clock takes as much time as some of the
//! parts.

use std::cell::Cell;
use std::ops::AddAssign;
use std::time::Instant;

use serde::Serialize;

/// Seconds spent in the parts of a search, summed over the queries of a batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Parts {
    /// Waiting for reads, while this query has no other work.
    pub reads: f64,
    /// Computing tables of code distances, and scoring by code.
    pub codes: f64,
    /// Decoding adjacency lists.
    pub list_decoding: f64,
    /// Decoding vectors.
    pub vector_decoding: f64,
    /// Computing exact distances.
    pub exact: f64,
}

impl AddAssign for Parts {
    fn add_assign(&mut self, other: Self) {
        self.reads += other.reads;
        self.codes += other.codes;
        self.list_decoding += other.list_decoding;
        self.vector_decoding += other.vector_decoding;
        self.exact += other.exact;
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Part {
    Reads,
    Codes,
    Lists,
    Vectors,
    Exact,
}

#[derive(Debug, Default)]
pub(crate) struct Timer {
    on: bool,
    nanoseconds: [Cell<u64>; 5],
}

impl Timer {
    /// Creates a clock, which measures only if `on` is set.
    pub(crate) fn new(on: bool) -> Self {
        Self {
            on,
            ..Self::default()
        }
    }

    #[inline]
    pub(crate) fn start(&self) -> Option<Instant> {
        self.on.then(Instant::now)
    }

    #[inline]
    pub(crate) fn stop(&self, part: Part, start: Option<Instant>) {
        if let Some(start) = start {
            let cell = &self.nanoseconds[part as usize];
            cell.set(cell.get() + start.elapsed().as_nanos() as u64);
        }
    }

    #[inline]
    pub(crate) fn time<T>(&self, part: Part, work: impl FnOnce() -> T) -> T {
        let start = self.start();
        let done = work();
        self.stop(part, start);
        done
    }

    pub(crate) fn parts(&self) -> Parts {
        let seconds = |part: Part| self.nanoseconds[part as usize].get() as f64 * 1e-9;
        Parts {
            reads: seconds(Part::Reads),
            codes: seconds(Part::Codes),
            list_decoding: seconds(Part::Lists),
            vector_decoding: seconds(Part::Vectors),
            exact: seconds(Part::Exact),
        }
    }
}
