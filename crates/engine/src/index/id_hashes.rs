//! Four bytes for the external id of each node, if no file maps ids to nodes. Look-ups fill them.

use parking_lot::Mutex;

/// The hash of a node whose record was not read yet.
pub(crate) const UNKNOWN: u32 = 0;

/// Hashes of the external ids of nodes, with four bytes for each node. The id of a node never
/// changes. About one in four billion other nodes has the same hash, and is read unnecessarily.
#[derive(Debug, Default)]
pub(crate) struct IdHashes {
    pub(crate) known: Mutex<Known>,
}

#[derive(Debug, Default)]
pub(crate) struct Known {
    pub(crate) hashes: Vec<u32>,
    /// The nodes without a record at the last look-up: their inserts were running, or had failed.
    pub(crate) unknown: Vec<u32>,
}

pub(crate) fn hash(id: u64) -> u32 {
    let hash = (id ^ (id >> 32)).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
    (hash as u32).max(UNKNOWN + 1)
}

impl IdHashes {
    pub(crate) fn memory_bytes(&self) -> u64 {
        let known = self.known.lock();
        4 * (known.hashes.capacity() + known.unknown.capacity()) as u64
    }
}
