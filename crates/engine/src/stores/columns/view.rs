//! A view of the columns at one time: the segments, and the rows in memory, which are newer.

use std::collections::HashMap;
use std::ops::{Bound, RangeInclusive};
use std::sync::Arc;

use roaring::RoaringBitmap;
use stratann_layout::attributes::Value;
use stratann_layout::columns::part::PartColumn;
use stratann_layout::columns::rows::RowEntry;

use super::keys::{each_key, is_sorted};
use super::new::NewRows;
use super::remembered::Remembered;
use super::{Found, PartReader, RowWindows, Segment, Windows, decoded};
use crate::Error;
use crate::filter::{Atom, Checked, NodeSet, Wanted};

/// The columns at one time, which later changes do not affect.
#[derive(Clone, Debug)]
pub(crate) struct View {
    segments: Arc<Vec<Arc<Segment>>>,
    new: Arc<NewRows>,
    remembered: Arc<Remembered>,
}

/// Receives a node, its id and its row.
type EachNewest<'a> = dyn FnMut(u32, u64, &[u8]) -> Result<(), Error> + 'a;

impl View {
    pub(super) fn of(
        segments: Arc<Vec<Arc<Segment>>>,
        new: Arc<NewRows>,
        remembered: Arc<Remembered>,
    ) -> Self {
        Self {
            segments,
            new,
            remembered,
        }
    }

    pub(crate) fn row_of(&self, node: u32, windows: &mut Windows) -> Result<Option<Found>, Error> {
        if let Some(found) = self.new.of_node(node) {
            return Ok(Some(found));
        }
        self.in_segments(node, windows, |segment, entry, windows| {
            Ok(Found {
                node,
                id: entry.id,
                row: segment.rows.row(&entry, windows)?.into(),
            })
        })
    }

    pub(crate) fn id_of(&self, node: u32, windows: &mut Windows) -> Result<Option<u64>, Error> {
        match self.new.of_node(node) {
            Some(found) => Ok(Some(found.id)),
            None => self.in_segments(node, windows, |_, entry, _| Ok(entry.id)),
        }
    }

    fn in_segments<T>(
        &self,
        node: u32,
        windows: &mut Windows,
        read: impl FnOnce(&Segment, RowEntry, &mut RowWindows) -> Result<T, Error>,
    ) -> Result<Option<T>, Error> {
        windows.fit(&self.segments);
        let newest_first = self.segments.iter().zip(&mut windows.each).rev();
        for (segment, windows) in newest_first {
            if segment.part.nodes().contains(node) {
                return match segment.rows.find_node(node, windows)? {
                    Some(entry) => read(segment, entry, windows).map(Some),
                    None => Err(Error::Damaged {
                        file: segment.rows.file().to_owned(),
                        what: format!("the row of node {node} is missing"),
                    }),
                };
            }
        }
        Ok(None)
    }

    pub(crate) fn node_of(&self, id: u64, windows: &mut Windows) -> Result<Option<u32>, Error> {
        if let Some(node) = self.new.node_of(id) {
            return Ok(Some(node));
        }
        windows.fit(&self.segments);
        for (segment, windows) in self.segments.iter().zip(&mut windows.each).rev() {
            if let Some(entry) = segment.rows.find_id(id, windows)? {
                return Ok(Some(entry.node));
            }
        }
        Ok(None)
    }

    /// Calls `each` with the nodes whose ids are in the ascending `ids` and whose rows are in
    /// segments. It also calls `each` with the nodes of all new rows.
    pub(crate) fn nodes_of(
        &self,
        ids: &[u64],
        each: &mut dyn FnMut(u64, u32),
    ) -> Result<(), Error> {
        for segment in self.segments.iter() {
            let mut windows = RowWindows::default();
            for &id in ids {
                if let Some(entry) = segment.rows.find_id(id, &mut windows)? {
                    each(id, entry.node);
                }
            }
        }
        self.new.iter().for_each(|(node, id, _)| each(id, node));
        Ok(())
    }

    /// The nodes below `nodes` whose newest row matches a filter. A node without a row has no
    /// values.
    pub(crate) fn matching(&self, filter: &Checked, nodes: u32) -> Result<NodeSet, Error> {
        let mut found = filter.nodes(&self.stored(nodes), |atom| self.atom(atom))?;
        for (node, _, row) in self.new.iter().filter(|new| new.0 < nodes) {
            if filter.matches(&decoded(row)?) {
                found.0.insert(node);
            }
        }
        Ok(found)
    }

    fn stored(&self, nodes: u32) -> NodeSet {
        let mut stored = NodeSet::below(nodes);
        for node in self.new.nodes() {
            stored.0.remove(node);
        }
        stored
    }

    /// The nodes that match an atom, which is one condition of a filter. Nodes with new rows are
    /// left out.
    fn atom(&self, atom: &Atom) -> Result<NodeSet, Error> {
        let asked = Asked::of(atom);
        let mut masked: RoaringBitmap = self.new.nodes().collect();
        let mut all = RoaringBitmap::new();
        for segment in self.segments.iter().rev() {
            if let Some(column) = segment.part.column(&atom.column) {
                let key = (segment.number, atom.column.clone(), asked.clone());
                let look = || asked.look(&segment.part, column);
                all |= &*self.remembered.get(key, look)? - &masked;
            }
            masked |= segment.part.nodes();
        }
        Ok(NodeSet(all))
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Asked {
    /// The keys of matching values, in a column of strings, booleans or lists.
    Keys(Vec<Vec<u8>>),
    /// The ranges of matching values, in a column of numbers or times.
    Ranges(Vec<RangeInclusive<u64>>),
    Any,
}

impl Asked {
    fn look(&self, part: &PartReader, column: &PartColumn) -> Result<RoaringBitmap, Error> {
        let mut found = RoaringBitmap::new();
        match self {
            Self::Keys(keys) => keys
                .iter()
                .try_for_each(|key| part.with_key(column, key, &mut found))?,
            Self::Ranges(ranges) => ranges
                .iter()
                .try_for_each(|range| part.in_range(column, range, &mut found))?,
            Self::Any => found |= part.exists(column)?,
        }
        Ok(found)
    }

    pub(super) fn memory_bytes(&self) -> u64 {
        let bytes = match self {
            Self::Keys(keys) => keys
                .iter()
                .map(|key| key.len() + size_of::<Vec<u8>>())
                .sum(),
            Self::Ranges(ranges) => size_of_val(&ranges[..]),
            Self::Any => 0,
        };
        bytes as u64
    }

    fn of(atom: &Atom) -> Self {
        let bytes = |value: &Value| {
            let mut bytes = Vec::new();
            each_key(value, &mut |key| bytes = key.to_vec());
            bytes
        };
        let number = |value: &Value| {
            let mut eight = [0; 8];
            // The key of a number always has this length.
            each_key(value, &mut |key| {
                if let Ok(key) = key.try_into() {
                    eight = key;
                }
            });
            u64::from_be_bytes(eight)
        };
        match &atom.wanted {
            Wanted::Exists => Self::Any,
            Wanted::AnyOf(values) if is_sorted(atom.kind) => {
                let keys = values.iter().map(number);
                Self::Ranges(keys.map(|key| key..=key).collect())
            }
            Wanted::AnyOf(values) => Self::Keys(values.iter().map(bytes).collect()),
            Wanted::Between(low, high) => {
                let low = match low {
                    Bound::Unbounded => Some(0),
                    Bound::Included(low) => Some(number(low)),
                    Bound::Excluded(low) => number(low).checked_add(1),
                };
                let high = match high {
                    Bound::Unbounded => Some(u64::MAX),
                    Bound::Included(high) => Some(number(high)),
                    Bound::Excluded(high) => number(high).checked_sub(1),
                };
                Self::Ranges(
                    low.zip(high)
                        .map(|(low, high)| low..=high)
                        .into_iter()
                        .collect(),
                )
            }
        }
    }
}

/// Calls `each` with the newest row of each node, in node order. If an id has several nodes, only
/// its last node counts.
pub(super) fn each_newest(
    segments: &[Arc<Segment>],
    new: Vec<Found>,
    each: &mut EachNewest<'_>,
) -> Result<(), Error> {
    if segments.is_empty() {
        return new
            .iter()
            .try_for_each(|found| each(found.node, found.id, &found.row));
    }
    // A node, the number of its segment, and its position in the segment. The new rows count as the
    // last segment.
    let mut newest: HashMap<u64, u32> = HashMap::new();
    let mut nodes: Vec<(u32, usize, u64)> = Vec::new();
    let mut add = |node: u32, id: u64, source: usize, at: u64| {
        nodes.push((node, source, at));
        let last = newest.entry(id).or_insert(node);
        *last = node.max(*last);
    };
    let mut windows = RowWindows::default();
    for (source, segment) in segments.iter().enumerate() {
        for at in 0..segment.rows.rows() {
            let entry = segment.rows.entry(at, &mut windows)?;
            add(entry.node, entry.id, source, at);
        }
        windows = RowWindows::default();
    }
    for (at, found) in new.iter().enumerate() {
        add(found.node, found.id, segments.len(), at as u64);
    }
    nodes.sort_unstable();
    let mut windows: Vec<RowWindows> = segments.iter().map(|_| Default::default()).collect();
    for (at, &(node, source, number)) in nodes.iter().enumerate() {
        // If a node has several entries, the last entry is the newest.
        if nodes.get(at + 1).is_some_and(|next| next.0 == node) {
            continue;
        }
        let Some(segment) = segments.get(source) else {
            let found = &new[number as usize];
            if newest.get(&found.id) == Some(&node) {
                each(node, found.id, &found.row)?;
            }
            continue;
        };
        let windows = &mut windows[source];
        let entry = segment.rows.entry(number, windows)?;
        if newest.get(&entry.id) == Some(&node) {
            each(node, entry.id, segment.rows.row(&entry, windows)?)?;
        }
    }
    Ok(())
}
