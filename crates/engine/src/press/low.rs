//! PRESS on the compute server: the low codes, and the low list of each query (DistVS §3.2).

use stratann_codec::ListModel;
use stratann_vector::{ProductQuantizer, Rounding};

use super::Collection;
use super::missing::{Missing, nearest};
use super::packed::each_list;
use super::popular::Kept;
use crate::search::low_list::{BEGUN, LowList, MOST_OF_STEP, spaced};
use crate::visited::Visited;
use crate::{Error, Press, bounds};

/// The low codes of an index, in memory.
pub struct Low {
    collection: Collection,
    quantizer: ProductQuantizer,
    rounding: Rounding,
    lists: ListModel,
    /// The node at which queries without seeds start.
    entry: u32,
    kept: Option<Kept>,
    codes: Vec<u8>,
}

/// Encodes the data that a compute server needs beside codes.
///
/// ```text
///   0: count u32   4: count f32 (the centroids of low codes)
///   then: entry u32 (a node)   then: the model of lists
/// ```
pub(super) fn encode(floats: &[f32], entry: u32, lists: &ListModel) -> Vec<u8> {
    let mut out = (floats.len() as u32).to_le_bytes().to_vec();
    out.extend(floats.iter().flat_map(|float| float.to_le_bytes()));
    out.extend(entry.to_le_bytes());
    out.extend(lists.to_bytes());
    out
}

impl Low {
    /// The number of low codes that fit into `bytes`, with the bits that mark their nodes.
    pub fn room(collection: &Collection, bytes: u64) -> u32 {
        let (nodes, code) = (collection.nodes, u64::from(collection.low_bytes).max(1));
        if u64::from(nodes) * code <= bytes {
            return nodes;
        }
        let codes = bytes.saturating_sub(Kept::bytes(nodes as usize)) / code;
        codes.min(u64::from(nodes)) as u32
    }

    /// Builds the data of the compute server from [centroids](super::High::low_centroids) and [low
    /// codes](super::High::low_codes). With `bits`, only the marked nodes have codes.
    ///
    /// # Errors
    /// The data is of another collection, or damaged.
    pub fn new(
        collection: Collection,
        centroids: &[u8],
        bits: Option<&[u8]>,
        codes: Vec<u8>,
    ) -> Result<Low, Error> {
        let wrong = |found: String, reason: String| {
            let what = "the data of a memory server";
            Err(Error::call(what, found, reason, super::ALIKE))
        };
        let cut = || {
            wrong(
                format!(
                    "{} bytes of centroids, entry node and model of lists",
                    centroids.len()
                ),
                "some of these bytes are missing".into(),
            )
        };
        let Some((count, rest)) = centroids.split_first_chunk() else {
            return cut();
        };
        let Some((floats, rest)) = rest.split_at_checked(4 * u32::from_le_bytes(*count) as usize)
        else {
            return cut();
        };
        let Some((entry, model)) = rest.split_first_chunk() else {
            return cut();
        };
        let floats: Vec<f32> = (floats.chunks_exact(4))
            .map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]))
            .collect();
        let entry = u32::from_le_bytes(*entry);
        if entry >= collection.nodes {
            let reason = format!("the index has {} nodes", collection.nodes);
            return wrong(format!("the entry node {entry}"), reason);
        }
        let (dim, half) = (collection.dim as usize, collection.low_bytes as usize);
        let quantizer = ProductQuantizer::from_parts(dim, half, floats)?;
        let lists = match ListModel::from_bytes(model) {
            Ok(lists) => lists,
            Err(error) => return wrong("no model of lists".into(), error.to_string()),
        };
        let expected = (collection.high_bytes as usize).div_ceil(2);
        if half != expected {
            let high = collection.high_bytes;
            let found = format!("low codes of {half} bytes");
            return wrong(
                found,
                format!("high codes have {high} bytes, so low codes have {expected} bytes"),
            );
        }
        let nodes = collection.nodes as usize;
        let kept = match bits.map(|bits| Kept::new(bits, nodes)) {
            Some(None) => {
                let found = format!("{} bytes of flags", bits.map_or(0, <[u8]>::len));
                return wrong(found, format!("each of {nodes} nodes has one flag, a bit"));
            }
            Some(kept) => kept,
            None => None,
        };
        let expected = kept.as_ref().map_or(nodes, Kept::count) * half;
        if codes.len() != expected {
            return wrong(
                format!("{} bytes of low codes", codes.len()),
                format!("the low codes of its nodes have {expected} bytes"),
            );
        }
        Ok(Low {
            rounding: Rounding::of(&quantizer),
            collection,
            quantizer,
            lists,
            entry,
            kept,
            codes,
        })
    }

    /// The collection that is searched.
    pub fn collection(&self) -> &Collection {
        &self.collection
    }

    /// The number of nodes whose low codes this server has, if some codes are offloaded.
    pub fn kept(&self) -> Option<u32> {
        self.kept.as_ref().map(|kept| kept.count() as u32)
    }

    /// The bytes of low codes and their bits, as in [`room`](Self::room).
    pub fn code_bytes(&self) -> u64 {
        let which = self.kept.as_ref().map_or(0, Kept::memory_bytes);
        self.codes.len() as u64 + which
    }

    /// Bytes of codes and centroids in memory.
    pub fn memory_bytes(&self) -> u64 {
        self.code_bytes() + self.quantizer.memory_bytes() as u64
    }
}

/// The low list (L_low) of one query, reused from query to query.
#[derive(Debug, Default)]
pub struct LowQuery {
    low: LowList,
    seen: Visited,
    floats: Vec<f32>,
    sent: Vec<u8>,
    list: Vec<u32>,
    fresh: Vec<u32>,
    /// The positions of the codes of `fresh`, if some codes are offloaded.
    places: Vec<u32>,
    distances: Vec<f32>,
    /// The nodes with offloaded codes that no step has requested yet.
    missing: Vec<u32>,
    /// The nodes that the last step offered. Of these and the requested nodes, `most` are taken.
    offered: Vec<(u32, f32)>,
    most: usize,
    /// Whether the requested nodes are the start nodes of the search.
    begins: bool,
}

impl LowQuery {
    /// Begins a query of one vector. `list` is the length of the high list (D_high). Appends the
    /// start nodes with their estimates to `nodes`, which the memory server must first
    /// [refine](super::HighQuery::refine). `missing` gets the start nodes whose codes are
    /// offloaded.
    ///
    /// # Errors
    /// The query has a wrong length, NaN or infinity, or is zero under cosine, or a parameter is
    /// wrong.
    pub fn begin(
        &mut self,
        low: &Low,
        query: &[u8],
        list: usize,
        press: Press,
        nodes: &mut Vec<(u32, f32)>,
        missing: &mut Missing,
    ) -> Result<(), Error> {
        if list == 0 {
            let reason = "it must be at least 1";
            return Err(Error::call(
                "length of the low list",
                0,
                reason,
                "Pass at least 1",
            ));
        }
        bounds::press(press)?;
        let collection = &low.collection;
        let Self { floats, sent, .. } = self;
        collection.rounded(query, &low.rounding, floats, sent)?;
        let list = list.min(collection.nodes as usize);
        self.low.begin(LowList::size(press, list), press);
        if !low.codes.is_empty() {
            let (quantizer, metric) = (&low.quantizer, collection.metric);
            self.low.fill(quantizer, metric, &self.floats);
        }
        self.seen.clear(list);
        for of_before in [&mut self.fresh, &mut self.missing, &mut missing.nodes] {
            of_before.clear();
        }
        self.distances.clear();
        self.offered.clear();
        let seeds = press.seeds.min(collection.nodes as usize);
        let (fresh, distances) = (&mut self.fresh, &mut self.distances);
        match &low.kept {
            None => self.low.seeds(&low.codes, low.entry, fresh, distances),
            // Even if some nodes have no code here, the codes are in locality order.
            Some(kept) if seeds > 0 && kept.count() >= seeds => {
                self.low.seeds(&low.codes, 0, fresh, distances);
                for place in fresh.iter_mut() {
                    *place = kept.node(*place as usize).unwrap_or(low.entry);
                }
            }
            Some(kept) => match (seeds, kept.place(low.entry)) {
                (0, Some(place)) => {
                    fresh.push(low.entry);
                    self.low.score(&low.codes, &[place], distances);
                }
                (0, None) => missing.nodes.push(low.entry),
                // With too few codes for seeds, the memory server estimates evenly spaced nodes.
                _ => missing
                    .nodes
                    .extend(spaced(seeds, collection.nodes as usize)),
            },
        }
        self.begins = !missing.nodes.is_empty();
        self.most = if seeds == 0 { 1 } else { BEGUN };
        (missing.most, missing.bound) = (self.most, f32::INFINITY);
        for (&node, &distance) in self.fresh.iter().zip(&self.distances) {
            self.seen.insert(node);
            nodes.push((node, distance));
        }
        Ok(())
    }

    /// The bytes of the query for the memory server ([`Collection::query_bytes`]).
    pub fn sent(&self) -> &[u8] {
        &self.sent
    }

    /// Scores the new neighbours in `lists` for the low list, and [requests](Self::select) the
    /// neighbours with offloaded codes in the next step. Before this call, [`hear`](Self::hear)
    /// must have received the last reply.
    ///
    /// # Errors
    /// The bytes are not lists of this collection.
    pub fn expand(&mut self, low: &Low, lists: &[u8]) -> Result<(), Error> {
        self.fresh.clear();
        self.places.clear();
        self.meet_lists(low, lists)?;
        match (low.kept.is_some(), self.fresh.is_empty()) {
            // If no new node has a code here, the distance table may be empty.
            (_, true) => {}
            (true, _) => self.low.meet_at(&low.codes, &self.places, &self.fresh),
            (false, _) => self.low.meet(&low.codes, &self.fresh),
        }
        Ok(())
    }

    /// Takes the memory server's estimates ([`HighQuery::look`](super::HighQuery::look)). Refined
    /// nodes count as selected.
    pub fn hear(&mut self, estimates: &[(u32, f32)]) {
        let begins = std::mem::take(&mut self.begins);
        if !begins {
            self.low.hear(estimates);
        }
        let mut taken = std::mem::take(&mut self.offered);
        taken.extend_from_slice(estimates);
        nearest(&mut taken, self.most);
        for (node, estimate) in taken.drain(..) {
            match begins {
                // Start nodes are not candidates of the low list.
                true => drop(self.seen.insert(node)),
                false => self.low.take_node(node, estimate),
            }
        }
        self.offered = taken;
    }

    fn meet_lists(&mut self, low: &Low, lists: &[u8]) -> Result<(), Error> {
        let Self {
            seen,
            list: scratch,
            fresh,
            places,
            missing,
            ..
        } = self;
        let count = low.collection.nodes;
        each_list(&low.lists, lists, scratch, |neighbours| {
            // Neighbours ascend, so the check of the last neighbour suffices.
            if let Some(&last) = neighbours.last().filter(|&&last| last >= count) {
                return Err(Error::call(
                    "a neighbour in a list of a memory server",
                    format!("node {last}"),
                    format!("the index has {count} nodes"),
                    super::ALIKE,
                ));
            }
            let new = neighbours.iter().copied().filter(|&node| seen.insert(node));
            let Some(kept) = &low.kept else {
                fresh.extend(new);
                return Ok(());
            };
            for node in new {
                match kept.place(node) {
                    Some(place) => {
                        fresh.push(node);
                        places.push(place);
                    }
                    None => missing.push(node),
                }
            }
            Ok(())
        })
    }

    /// Appends the nearest unselected nodes of the low list with their estimates, at most the
    /// refinement ratio times the length of the list. `missing` gets up to [`MOST_OF_STEP`]
    /// unrequested nodes with offloaded codes. If there are such nodes, the caller must pass them
    /// to [`HighQuery::look`](super::HighQuery::look), and otherwise must pass the appended nodes
    /// to [`HighQuery::refine`](super::HighQuery::refine).
    pub fn select(&mut self, nodes: &mut Vec<(u32, f32)>, missing: &mut Missing) {
        missing.nodes.clear();
        if !self.missing.is_empty() {
            let asked = self.missing.len().min(MOST_OF_STEP);
            missing.nodes.extend(self.missing.drain(..asked));
            self.offered.clear();
            (missing.most, missing.bound) = self.low.offer(missing.nodes.len(), &mut self.offered);
            self.most = missing.most;
            return nodes.extend_from_slice(&self.offered);
        }
        self.fresh.clear();
        self.distances.clear();
        self.low.take(&mut self.fresh, &mut self.distances);
        let taken = self.fresh.iter().zip(&self.distances);
        nodes.extend(taken.map(|(&node, &distance)| (node, distance)));
    }

    /// The number of distances by low codes that the compute server computed for the query.
    pub fn computations(&self) -> u64 {
        self.low.computations()
    }
}

#[cfg(test)]
mod tests {
    use stratann_vector::{Element, Metric};

    use super::*;

    /// With a beam width of 1,024 and degree 80, one message cannot request all neighbours.
    #[test]
    fn what_a_step_has_no_room_for_is_asked_for_with_the_next() {
        const NODES: u32 = 200_000;
        let collection = Collection {
            state: 1,
            nodes: NODES,
            dim: 2,
            element: Element::U8,
            metric: Metric::L2,
            low_bytes: 1,
            high_bytes: 2,
        };
        let lists = ListModel::elias_fano(NODES, 80);
        let bits = vec![0; NODES as usize / 8];
        let centroids = encode(&[0.0; 512], 0, &lists);
        let low = Low::new(collection, &centroids, Some(&bits), Vec::new()).unwrap();
        let mut query = LowQuery::default();
        let (mut nodes, mut missing) = (Vec::new(), Missing::default());
        let begun = query.begin(&low, &[1, 2], 100, Press::PAPER, &mut nodes, &mut missing);
        begun.unwrap();
        query.hear(&[(0, 1.0)]);
        let mut sent = Vec::new();
        for node in 0..1024 {
            let list: Vec<u32> = (1..=80).map(|at| node * 80 + at).collect();
            sent.extend(node.to_le_bytes());
            lists.encode(node, &list, &mut sent).unwrap();
        }
        query.expand(&low, &sent).unwrap();
        let mut asked = Vec::new();
        for expected in [MOST_OF_STEP, 1024 * 80 - MOST_OF_STEP, 0] {
            query.select(&mut nodes, &mut missing);
            assert_eq!(missing.nodes.len(), expected);
            asked.append(&mut missing.nodes);
        }
        assert!(
            asked.into_iter().eq(1..=1024 * 80),
            "each missing node is requested once"
        );
    }
}
