//! How often searches request each page of a graph.

use std::sync::atomic::{AtomicU32, Ordering};

use super::GraphStores;
use super::vectors::segments::Extent;

/// The list size of the sample queries that count reads.
pub(crate) const LIST: usize = 40;

pub(crate) struct Heat {
    pub(crate) graph: Vec<AtomicU32>,
    pub(crate) vectors: Vec<AtomicU32>,
    starts: Vec<usize>,
}

impl Heat {
    pub(crate) fn new(graph: &GraphStores) -> Self {
        let mut starts = Vec::new();
        let mut pages = 0;
        for segment in graph.segments.iter().flat_map(|segments| segments.iter()) {
            starts.push(pages);
            pages += segment.pages.directory.pages() as usize;
        }
        let zeros = |count| (0..count).map(|_| AtomicU32::new(0)).collect();
        Self {
            graph: zeros(graph.pages.file(graph.nodes).pages as usize),
            vectors: zeros(pages),
            starts,
        }
    }

    pub(crate) fn graph(&self, page: u64) {
        if let Some(count) = self.graph.get(page as usize) {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub(crate) fn vectors(&self, place: Extent) {
        let start = self.starts.get(place.segment).copied().unwrap_or(0) as u64;
        for page in place.page..place.end() {
            if let Some(count) = self.vectors.get((start + page) as usize) {
                count.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
}

/// Selects the pages with more reads than a threshold, and the first pages at the threshold.
pub(crate) struct Hottest {
    above: u16,
    /// The number of pages at the threshold that are still to be selected.
    at: u64,
}

impl Hottest {
    /// Time and memory depend only on `heat`.
    pub(crate) fn new(heat: &[u16], share: f64) -> Self {
        let mut counts = vec![0u64; 1 << 16];
        for &reads in heat {
            counts[usize::from(reads)] += 1;
        }
        let mut wanted = (share * heat.len() as f64) as u64;
        for reads in (0..=u16::MAX).rev() {
            let here = counts[usize::from(reads)];
            if here > wanted || reads == 0 {
                return Self {
                    above: reads,
                    at: wanted,
                };
            }
            wanted -= here;
        }
        Self { above: 0, at: 0 }
    }

    /// The caller passes the pages in order. The next page was read `reads` times.
    pub(crate) fn takes(&mut self, reads: u16) -> bool {
        if reads != self.above {
            return reads > self.above;
        }
        let takes = self.at > 0;
        self.at = self.at.saturating_sub(1);
        takes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hottest_takes_exactly_its_share() {
        let heat = [3, 0, 7, 7, 0, 1, 7, 2, 0, 0];
        let taken = |share| {
            let mut hottest = Hottest::new(&heat, share);
            (0..heat.len())
                .filter(|&page| hottest.takes(heat[page]))
                .collect::<Vec<_>>()
        };
        assert_eq!(taken(0.0), Vec::<usize>::new());
        assert_eq!(taken(0.2), [2, 3]);
        assert_eq!(taken(0.4), [0, 2, 3, 6]);
        assert_eq!(taken(0.7), [0, 1, 2, 3, 5, 6, 7]);
        assert_eq!(taken(1.0), (0..10).collect::<Vec<_>>());
    }
}
