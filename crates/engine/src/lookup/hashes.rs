//! Finds the nodes that may have an external id, if no file maps ids to nodes.

use std::collections::HashSet;

use crate::Error;
use crate::index::Index;
use crate::index::id_hashes::{IdHashes, Known, UNKNOWN, hash};
use crate::overlay::Admission;
use crate::progress::Progress;
use crate::search::{Exactness, Nodes};

impl IdHashes {
    /// The nodes `first..end` that may have one of the ids.
    pub(crate) fn nodes(
        &self,
        index: &Index,
        (first, end): (u32, u32),
        ids: &[u64],
        progress: &dyn Progress,
    ) -> Result<Vec<u32>, Error> {
        let mut known = self.known.lock();
        known.read(index, (first, end), progress)?;
        let hashes = (first..end).zip(&known.hashes);
        let nodes = match *ids {
            [id] => {
                let wanted = hash(id);
                hashes.filter(|&(_, &hash)| hash == wanted).unzip()
            }
            _ => {
                let wanted: HashSet<u32> = ids.iter().copied().map(hash).collect();
                hashes.filter(|(_, hash)| wanted.contains(hash)).unzip()
            }
        };
        let (nodes, _): (Vec<u32>, Vec<u32>) = nodes;
        Ok(nodes)
    }
}

impl Known {
    fn read(
        &mut self,
        index: &Index,
        (first, end): (u32, u32),
        progress: &dyn Progress,
    ) -> Result<(), Error> {
        let count = end.saturating_sub(first) as usize;
        let new = (first + self.hashes.len() as u32, end);
        if new.0 < end {
            let mut hashes = vec![UNKNOWN; end as usize - new.0 as usize];
            let mut each = |node: u32, id, _: &[u8]| hashes[(node - new.0) as usize] = hash(id);
            let all = Admission::default();
            index.each_node(
                Nodes::Range(new.0, end),
                Exactness::IdAlone,
                all,
                progress,
                &mut each,
            )?;
            self.hashes.append(&mut hashes);
            let unknown = (new.0..end).filter(|&node| self.at(first, node) == UNKNOWN);
            let unknown: Vec<u32> = unknown.collect();
            self.unknown.extend(unknown);
        }
        if self.unknown.is_empty() {
            return Ok(());
        }
        let unknown = std::mem::take(&mut self.unknown);
        let before = unknown.partition_point(|&node| node < new.0);
        let hashes = &mut self.hashes[..];
        let mut each = |node: u32, id, _: &[u8]| hashes[(node - first) as usize] = hash(id);
        let read = index.each_node(
            Nodes::These(&unknown[..before]),
            Exactness::IdAlone,
            Admission::default(),
            progress,
            &mut each,
        );
        self.unknown = unknown;
        read?;
        let hashes = &self.hashes;
        self.unknown
            .retain(|&node| hashes[(node - first) as usize] == UNKNOWN);
        assert!(self.hashes.len() >= count);
        Ok(())
    }

    fn at(&self, first: u32, node: u32) -> u32 {
        self.hashes[(node - first) as usize]
    }
}
