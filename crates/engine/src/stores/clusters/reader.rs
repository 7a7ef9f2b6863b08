//! Reads clusters and vectors sequentially, for rebalances and merges.

use std::ops::Range;

use stratann_layout::ExtentView;
use stratann_tier::{Volume, VolumeReader};

use super::{ClusterStores, ExtentAt, MemberAt, Run, Vectors};
use crate::Error;

/// Receives a vector: its number, its id, and its bytes.
pub(crate) type EachMember<'a> = dyn FnMut(u32, u64, &[u8]) -> Result<(), Error> + 'a;

pub(crate) struct ClusterReader<'a> {
    pub(super) stores: &'a ClusterStores,
    files: Vec<Box<dyn VolumeReader>>,
    buffer: Vec<u8>,
}

impl<'a> ClusterReader<'a> {
    pub(crate) fn open(volume: &dyn Volume, stores: &'a ClusterStores) -> Result<Self, Error> {
        let files = stores.files.iter();
        let files = files.map(|file| volume.open_reader(&file.name));
        Ok(Self {
            stores,
            files: files.collect::<Result<_, _>>()?,
            buffer: Vec::new(),
        })
    }

    pub(crate) fn extent(&mut self, cluster: u32) -> Result<ExtentView<'_>, Error> {
        self.extent_at(cluster, self.stores.place(cluster))
    }

    /// `at` may be an earlier posting list of the cluster.
    pub(super) fn extent_at(
        &mut self,
        cluster: u32,
        at: ExtentAt,
    ) -> Result<ExtentView<'_>, Error> {
        self.buffer.resize(at.bytes, 0);
        self.files[at.file].read_at(at.offset, &mut self.buffer)?;
        self.stores.view_at(cluster, at, &self.buffer, true)
    }

    /// In the replicated layout only: calls `each` with the vectors whose own cluster is `cluster`.
    pub(crate) fn each_own(
        &mut self,
        cluster: u32,
        each: &mut EachMember<'_>,
    ) -> Result<(), Error> {
        let stores = self.stores;
        if !matches!(stores.vectors, Vectors::Replicated) {
            return Ok(());
        }
        let view = self.extent(cluster)?;
        let mut outcome = Ok(());
        let mut until_wrong = |node, id, vector: &[u8]| {
            if outcome.is_ok() {
                outcome = each(node, id, vector);
            }
        };
        stores.each_in(cluster, &view, 0..view.own(), true, &mut until_wrong)?;
        outcome
    }

    /// Calls `each` with consecutive vectors, from the vector at `at` on.
    pub(crate) fn each_behind(
        &mut self,
        at: MemberAt,
        numbers: Range<u32>,
        each: &mut EachMember<'_>,
    ) -> Result<(), Error> {
        self.buffer.resize(numbers.len() * at.bytes, 0);
        self.files[at.file].read_at(at.offset, &mut self.buffer)?;
        for (node, member) in numbers.zip(self.buffer.chunks_exact(at.bytes)) {
            let (id, vector) = self.stores.member(node, member, true)?;
            each(node, id, vector)?;
        }
        Ok(())
    }

    /// Calls `each` with the vectors of ascending `numbers`. Near vectors share a read. Vectors
    /// that need their posting lists are skipped.
    pub(crate) fn each_member(
        &mut self,
        numbers: &[u32],
        each: &mut EachMember<'_>,
    ) -> Result<(), Error> {
        let (mut left, mut places) = (numbers, Vec::new());
        while !left.is_empty() {
            self.stores.member_places(left, &mut places);
            let mut first = 0;
            while let Some(run) = Run::of(&places[first..]) {
                self.buffer.resize(run.bytes, 0);
                self.files[run.file].read_at(run.offset, &mut self.buffer)?;
                let now = first..first + run.vectors;
                for (&node, at) in left[now.clone()].iter().zip(&places[now]) {
                    let start = (at.offset - run.offset) as usize;
                    let stored = &self.buffer[start..start + at.bytes];
                    let (id, vector) = self.stores.member(node, stored, true)?;
                    each(node, id, vector)?;
                }
                first += run.vectors;
            }
            // The vector of the next number cannot be read without its posting list.
            left = left.get(places.len() + 1..).unwrap_or_default();
        }
        Ok(())
    }
}
