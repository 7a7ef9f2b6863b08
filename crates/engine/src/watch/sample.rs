//! The sample of served queries. It has a fixed size, and each served query is in it with the same
//! probability. This is reservoir sampling (Vitter's algorithm R). It is done by Li's algorithm L,
//! which draws the number of queries to skip.

use std::fmt::{self, Write as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::RecallWatch;
use crate::data::VectorSource;
use crate::{Filter, SearchOptions, bounds};

/// A query of the sample.
pub(crate) struct Served {
    pub(crate) query: Box<[u8]>,
    pub(crate) options: SearchOptions,
    pub(crate) filter: Option<Arc<Filter>>,
}

pub(super) struct Sample {
    pub(super) queries: Vec<Served>,
    most: usize,
    /// The largest of the random numbers of the queries in a full sample (W of algorithm L).
    largest: f64,
    /// The state of the generator of random numbers.
    draw: u64,
}

impl Sample {
    /// Begins a sample of up to `most` queries.
    pub(super) fn begin(most: usize) -> Self {
        /// The number of the next sample, which gives each sample another seed.
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Self {
            queries: Vec::new(),
            most,
            largest: 1.0,
            draw: NEXT.fetch_add(1, Ordering::Relaxed) << 32,
        }
    }

    /// The next number of splitmix64.
    fn draw(&mut self) -> u64 {
        self.draw = self.draw.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut drawn = self.draw;
        drawn = (drawn ^ (drawn >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        drawn = (drawn ^ (drawn >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        drawn ^ (drawn >> 31)
    }

    /// A random number between 0 and 1, exclusive.
    fn share(&mut self) -> f64 {
        ((self.draw() >> 11) as f64 + 0.5) / (1u64 << 53) as f64
    }

    /// Whether the sample has the full number of queries.
    pub(super) fn is_full(&self) -> bool {
        self.queries.len() >= self.most
    }

    /// Keeps a query. Returns the number of queries to skip before the next one is kept.
    fn keep(&mut self, served: Served) -> u64 {
        match self.is_full() {
            true => {
                let place = (self.draw() % self.most as u64) as usize;
                self.queries[place] = served;
            }
            false => self.queries.push(served),
        }
        if !self.is_full() {
            return 0;
        }
        self.largest *= (self.share().ln() / self.most as f64).exp();
        // If `largest` is almost 0, the result exceeds every number of queries.
        (self.share().ln() / (1.0 - self.largest).ln()) as u64
    }
}

/// Whether the text of a filter is short enough for a sample. The function makes no more of the
/// text than this decision needs.
fn is_short(filter: &Filter) -> bool {
    struct Room(usize);
    impl fmt::Write for Room {
        fn write_str(&mut self, text: &str) -> fmt::Result {
            self.0 = self.0.checked_sub(text.len()).ok_or(fmt::Error)?;
            Ok(())
        }
    }
    write!(Room(bounds::MOST_WATCHED_FILTER), "{filter}").is_ok()
}

impl RecallWatch {
    /// Offers served queries to the sample. If no query is kept, the cost is one atomic add. An
    /// index offers its queries to the watch with which it was opened. A program calls this method
    /// for a watch that [`told`](RecallWatch::told) created, or for a watch that it passes to
    /// [`measure_recall_by`](crate::LiveIndex::measure_recall_by).
    pub fn has_served(
        &self,
        queries: &dyn VectorSource,
        options: &SearchOptions,
        filter: Option<&Filter>,
    ) {
        if options.k > bounds::MOST_WATCHED_K {
            return;
        }
        let watch = &*self.0;
        let rows = queries.rows() as u64;
        let first = watch.served.fetch_add(rows, Ordering::Relaxed);
        let end = first + rows;
        if end <= watch.next.load(Ordering::Relaxed) {
            return;
        }
        // A query whose filter is too long is left out, because the memory of a sample is bounded.
        if filter.is_some_and(|filter| !is_short(filter)) {
            return;
        }
        let mut sample = watch.sample.lock();
        let filter = filter.map(|filter| Arc::new(filter.clone()));
        loop {
            let next = watch.next.load(Ordering::Relaxed).max(first);
            if next >= end {
                break;
            }
            let mut query = vec![0; queries.row_bytes()].into_boxed_slice();
            if queries.read((next - first) as usize, &mut query).is_err() {
                // The queries cannot be read any more, for example because their file was removed.
                break;
            }
            let skipped = sample.keep(Served {
                query,
                options: SearchOptions {
                    threads: 1,
                    in_flight: Some(1),
                    parts: false,
                    ..*options
                },
                filter: filter.clone(),
            });
            let next = next.saturating_add(1).saturating_add(skipped);
            watch.next.store(next, Ordering::Relaxed);
        }
        if sample.is_full() {
            watch.changed.notify_all();
        }
    }

    /// Takes the sample, and begins another one.
    pub(super) fn take(&self) -> Vec<Served> {
        let watch = &*self.0;
        let mut sample = watch.sample.lock();
        let begun = Sample {
            draw: sample.draw,
            ..Sample::begin(watch.most)
        };
        // The number of served queries is not reset. If the number were reset, a search that had
        // taken its position before would seem to come after many others.
        let served = watch.served.load(Ordering::Relaxed);
        watch.next.store(served, Ordering::Relaxed);
        std::mem::replace(&mut *sample, begun).queries
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Offers `served` queries to the sample, and returns the numbers of the queries that it kept.
    /// The vector of each query is its number.
    fn kept(sample: &mut Sample, served: u64) -> Vec<u64> {
        let mut next = 0;
        while next < served {
            let skipped = sample.keep(Served {
                query: Box::new(next.to_le_bytes()),
                options: SearchOptions::default(),
                filter: None,
            });
            next = next.saturating_add(1).saturating_add(skipped);
        }
        let kept = sample.queries.drain(..);
        kept.map(|served| u64::from_le_bytes(served.query[..].try_into().unwrap()))
            .collect()
    }

    fn sample(most: usize, draw: u64) -> Sample {
        Sample {
            draw,
            ..Sample::begin(most)
        }
    }

    #[test]
    fn a_filter_is_kept_up_to_so_many_bytes() {
        let filter = |text: usize| Filter::parse(&format!("a == '{}'", "x".repeat(text))).unwrap();
        let fits = bounds::MOST_WATCHED_FILTER - filter(0).to_string().len();
        assert!(is_short(&filter(fits)));
        assert!(!is_short(&filter(fits + 1)));
        assert!(!is_short(&filter(10_000)));
    }

    #[test]
    fn of_few_queries_all_are_kept() {
        assert_eq!(kept(&mut sample(8, 1), 5), [0, 1, 2, 3, 4]);
        assert_eq!(kept(&mut sample(3, 1), 3), [0, 1, 2]);
    }

    #[test]
    fn each_query_is_kept_as_often_as_any_other() {
        // There are 4,000 samples of 5 of 100 queries. So each query is in about 200 samples, with
        // a deviation of 14.
        let mut times = [0u32; 100];
        for draw in 0..4_000 {
            let kept = kept(&mut sample(5, draw << 32), 100);
            assert_eq!(kept.len(), 5);
            for query in kept {
                times[query as usize] += 1;
            }
        }
        let (least, most) = (times.iter().min(), times.iter().max());
        assert!(
            times.iter().all(|times| (140..260).contains(times)),
            "{least:?} to {most:?}"
        );
    }
}
