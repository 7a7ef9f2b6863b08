//! Scatter, in layouts with groups: the mean number of reads for a probe of a cluster, divided by
//! the mean after the build.
//!
//! ```text
//!   cluster     the first read has                     further reads have
//!   as built    its group, and the numbers of strays   the strays, near ones in one read
//!   rewritten   the numbers of all its members         the members, near ones in one read
//! ```
//!
//! The posting list of a changed cluster has no group, and its vectors are far from each other in
//! the file. So probes need more and more reads.
//!
//! Reads are counted on a sample of clusters. Files of the build stay until the index is rebuilt,
//! so that the reads as of the build can be counted later.

use stratann_layout::{BLOCK, ExtentKind};
use stratann_tier::Volume;

use super::reader::ClusterReader;
use super::{ClusterStores, ExtentAt, MemberAt, Run};
use crate::Error;
use crate::filter::NodeSet;

const SAMPLE: u32 = 64;

/// A sample has at most `STRETCHES` stretches of `STRETCH` consecutive nodes.
const STRETCH: usize = 128;
const STRETCHES: u64 = 16;

fn even(clusters: u32) -> impl Iterator<Item = u32> {
    let count = SAMPLE.min(clusters);
    (0..count).map(move |n| (u64::from(n) * u64::from(clusters) / u64::from(count)) as u32)
}

impl ClusterStores {
    /// A sample of clusters, and the current positions of their posting lists. Empty without
    /// groups.
    pub(super) fn sample(&self) -> Vec<(u32, ExtentAt)> {
        let at = |cluster| (cluster, self.place(cluster));
        match self.kind {
            ExtentKind::Grouped => even(self.clusters()).map(at).collect(),
            ExtentKind::Replicated | ExtentKind::Postings => Vec::new(),
        }
    }

    /// Each cluster of the sample is counted as if it were read alone. `None` if the index has no
    /// groups, or did not change after the build.
    pub(crate) fn scatter(&self, volume: &dyn Volume) -> Result<Option<f64>, Error> {
        if self.amended.is_none() || self.built_sample.is_empty() {
            return Ok(None);
        }
        let mut reader = ClusterReader::open(volume, self)?;
        let built = reader.reads(&self.built_sample)?;
        let now = reader.reads(&self.sample())?;
        Ok(Some(now / built))
    }

    /// Estimates the number of reads that return all vectors of a set without posting lists. Near
    /// vectors share a read, which counts once for each block. If the set is large, only a sample
    /// is counted.
    pub(crate) fn reads_of(&self, nodes: &NodeSet) -> f64 {
        let all = nodes.len();
        let (stretches, stretch) = match all <= STRETCHES * STRETCH as u64 {
            true => (1, all as usize),
            false => (STRETCHES, STRETCH),
        };
        let (mut numbers, mut places) = (Vec::with_capacity(stretch), Vec::new());
        let (mut counted, mut reads) = (0, 0);
        for n in 0..stretches {
            // A set has at most 2^32 nodes, so the product fits a `u64`.
            let Some(first) = nodes.nth(n * all / stretches) else {
                break;
            };
            numbers.clear();
            numbers.extend(nodes.iter_in(first..self.nodes).take(stretch));
            self.member_places(&numbers, &mut places);
            counted += numbers.len();
            let mut left = &places[..];
            while let Some(run) = Run::of(left) {
                reads += run.bytes.div_ceil(BLOCK);
                left = &left[run.vectors..];
            }
        }
        reads as f64 * all as f64 / counted.max(1) as f64
    }

    /// The `numbers` must ascend.
    fn runs_of(&self, numbers: &[u32], places: &mut Vec<MemberAt>) -> usize {
        self.member_places(numbers, places);
        let (mut first, mut runs) = (0, 0);
        while let Some(run) = Run::of(&places[first..]) {
            first += run.vectors;
            runs += 1;
        }
        runs
    }
}

impl ClusterReader<'_> {
    fn reads(&mut self, clusters: &[(u32, ExtentAt)]) -> Result<f64, Error> {
        let stores = self.stores;
        let (mut numbers, mut places) = (Vec::new(), Vec::new());
        let mut reads = 0;
        for &(cluster, at) in clusters {
            let view = self.extent_at(cluster, at)?;
            stores.others(cluster, &view, &mut numbers)?;
            // The read of the posting list itself counts too.
            reads += 1 + stores.runs_of(&numbers, &mut places);
        }
        Ok(reads as f64 / clusters.len().max(1) as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sample_is_spread_over_all_clusters() {
        assert_eq!(even(0).count(), 0);
        assert!(even(3).eq(0..3));
        let some: Vec<u32> = even(1_000_000).collect();
        assert_eq!((some.len(), some[0], some[63]), (64, 0, 984_375));
        assert!(some.is_sorted_by(|one, next| one < next));
    }
}
