//! Rows that no checkpoint has yet. They are in memory and in the log.

use std::collections::{BTreeMap, HashMap};

use super::{BESIDE_ROW, Found, RowBytes};

/// The new rows, by node. The last node of an id has the valid row, but earlier searches may still
/// use older nodes.
#[derive(Clone, Debug, Default)]
pub(super) struct NewRows {
    by_node: BTreeMap<u32, (u64, RowBytes)>,
    by_id: HashMap<u64, u32>,
    bytes: u64,
}

impl NewRows {
    pub(super) fn is_empty(&self) -> bool {
        self.by_node.is_empty()
    }

    pub(super) fn memory_bytes(&self) -> u64 {
        self.bytes + self.by_node.len() as u64 * BESIDE_ROW
    }

    pub(super) fn put(&mut self, node: u32, id: u64, row: RowBytes) {
        self.bytes += row.len() as u64;
        if let Some((_, before)) = self.by_node.insert(node, (id, row)) {
            self.bytes -= before.len() as u64;
        }
        let newest = self.by_id.entry(id).or_insert(node);
        *newest = node.max(*newest);
    }

    /// Removes the row of a node whose insert failed. An earlier row of the id is then valid again.
    pub(super) fn take_back(&mut self, node: u32) {
        let Some((id, row)) = self.by_node.remove(&node) else {
            return;
        };
        self.bytes -= row.len() as u64;
        if self.by_id.get(&id) == Some(&node) {
            let mut others = self.by_node.iter().rev();
            match others.find(|(_, (of, _))| *of == id) {
                Some((&before, _)) => _ = self.by_id.insert(id, before),
                None => _ = self.by_id.remove(&id),
            }
        }
    }

    pub(super) fn of_node(&self, node: u32) -> Option<Found> {
        self.by_node.get(&node).map(|(id, row)| Found {
            node,
            id: *id,
            row: row.clone(),
        })
    }

    pub(super) fn node_of(&self, id: u64) -> Option<u32> {
        self.by_id.get(&id).copied()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, u64, &RowBytes)> {
        let rows = self.by_node.iter();
        rows.map(|(&node, (id, row))| (node, *id, row))
    }

    pub(super) fn nodes(&self) -> impl Iterator<Item = u32> {
        self.by_node.keys().copied()
    }

    pub(super) fn newest(&self) -> Vec<Found> {
        let newest = |&(node, id, _): &(u32, u64, _)| self.by_id.get(&id) == Some(&node);
        let found = |(node, id, row): (u32, u64, &RowBytes)| Found {
            node,
            id,
            row: row.clone(),
        };
        self.iter().filter(newest).map(found).collect()
    }
}
