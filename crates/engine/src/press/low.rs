//! A compute server's part of PRESS: the low-precision codes, and L_low of each query (DistVS §3.2).

use stratann_codec::ListModel;
use stratann_vector::{ProductQuantizer, Rounding};

use super::packed::each_list;
use super::popular::Kept;
use super::{Collection, LowList};
use crate::visited::Visited;
use crate::{Error, Press, bounds};

/// The low-precision codes of an index, in memory.
pub struct Low {
    collection: Collection,
    quantizer: ProductQuantizer,
    rounding: Rounding,
    /// Decodes lists.
    lists: ListModel,
    /// Where queries begin that look at no seeds.
    entry: u32,
    /// Of which nodes there are codes, where some are offloaded.
    kept: Option<Kept>,
    codes: Vec<u8>,
}

/// What a compute server needs besides codes.
///
/// ```text
///   0: count u32   4: count f32 (the centroids of low codes)   then: entry u32 (a node)   then: the model of lists
/// ```
pub(super) fn encode(floats: &[f32], entry: u32, lists: &ListModel) -> Vec<u8> {
    let mut out = (floats.len() as u32).to_le_bytes().to_vec();
    out.extend(floats.iter().flat_map(|float| float.to_le_bytes()));
    out.extend(entry.to_le_bytes());
    out.extend(lists.to_bytes());
    out
}

impl Low {
    /// How many low codes fit in so many bytes, with what says of which nodes they are: all, or those of the most popular nodes, or none.
    pub fn room(collection: &Collection, bytes: u64) -> u32 {
        let (nodes, code) = (collection.nodes, u64::from(collection.low_bytes).max(1));
        if u64::from(nodes) * code <= bytes {
            return nodes;
        }
        let codes = bytes.saturating_sub(Kept::bytes(nodes as usize)) / code;
        codes.min(u64::from(nodes)) as u32
    }

    /// Of what the memory server has: centroids ([`High::low_centroids`](super::High::low_centroids)) and [low codes](super::High::low_codes), in order: of all nodes, or
    /// where there are `bits`, of those that have one.
    ///
    /// # Errors
    /// They are not of such a collection, or damaged.
    pub fn new(
        collection: Collection,
        centroids: &[u8],
        bits: Option<&[u8]>,
        codes: Vec<u8>,
    ) -> Result<Low, Error> {
        let wrong = |what: String, expected: String| {
            Err(Error::call("what a memory server sent", what, expected))
        };
        let cut = || {
            wrong(
                format!("{} bytes of centroids", centroids.len()),
                "all of them".into(),
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
            let expected = format!("a node below {}", collection.nodes);
            return wrong(format!("node {entry} to begin at"), expected);
        }
        let (dim, half) = (collection.dim as usize, collection.low_bytes as usize);
        let quantizer = ProductQuantizer::from_parts(dim, half, floats)?;
        let lists = match ListModel::from_bytes(model) {
            Ok(lists) => lists,
            Err(error) => return wrong(error.to_string(), "a model of lists".into()),
        };
        let expected = (collection.high_bytes as usize).div_ceil(2);
        if half != expected {
            let high = collection.high_bytes;
            let found = format!("low codes of {half} bytes");
            return wrong(found, format!("{expected}, since high ones have {high}"));
        }
        let nodes = collection.nodes as usize;
        let kept = match bits.map(|bits| Kept::new(bits, nodes)) {
            Some(None) => {
                let found = format!("{} bytes of bits", bits.map_or(0, <[u8]>::len));
                return wrong(found, format!("a bit for each of {nodes} nodes"));
            }
            Some(kept) => kept,
            None => None,
        };
        let expected = kept.as_ref().map_or(nodes, Kept::count) * half;
        if codes.len() != expected {
            return wrong(
                format!("{} bytes of codes", codes.len()),
                expected.to_string(),
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

    /// What is searched.
    pub fn collection(&self) -> &Collection {
        &self.collection
    }

    /// Of how many nodes it has low codes, where it does not have all.
    pub fn kept(&self) -> Option<u32> {
        self.kept.as_ref().map(|kept| kept.count() as u32)
    }

    /// Where the code of a node stands, of which some are offloaded.
    fn place(&self, node: u32) -> Result<u32, Error> {
        let place = self.kept.as_ref().and_then(|kept| kept.place(node));
        place.ok_or_else(|| {
            let found = format!("node {node} without an estimate");
            let expected = "nodes whose low codes were sent";
            Error::call("neighbours of a memory server", found, expected)
        })
    }

    /// Bytes of low codes, and of what says of which nodes they are: what [`room`](Self::room) goes by.
    pub fn code_bytes(&self) -> u64 {
        let which = self.kept.as_ref().map_or(0, Kept::memory_bytes);
        self.codes.len() as u64 + which
    }

    /// Bytes of codes and centroids in memory.
    pub fn memory_bytes(&self) -> u64 {
        self.code_bytes() + self.quantizer.memory_bytes() as u64
    }
}

/// One query's L_low. Reused from query to query.
#[derive(Debug, Default)]
pub struct LowQuery {
    low: LowList,
    seen: Visited,
    floats: Vec<f32>,
    sent: Vec<u8>,
    list: Vec<u32>,
    fresh: Vec<u32>,
    /// Where the codes of these stand, where some are offloaded.
    places: Vec<u32>,
    distances: Vec<f32>,
}

impl LowQuery {
    /// Begins with a query: one row of the collection's element type. `list` is D_high; `press` says how much longer L_low is, and what of it goes on. Appends where
    /// the search begins, and what low codes estimate of that: what is to be [refined](super::HighQuery::refine) first. Where low codes are offloaded that is nothing:
    /// the memory server says where it begins.
    ///
    /// # Errors
    /// A row of another length, with NaN or infinity, or of length 0 under cosine; a list of 0; numbers in `press` that a search would refuse, too.
    pub fn begin(
        &mut self,
        low: &Low,
        query: &[u8],
        list: usize,
        press: Press,
        nodes: &mut Vec<(u32, f32)>,
    ) -> Result<(), Error> {
        if list == 0 {
            return Err(Error::call("list by low codes", 0, "at least 1"));
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
        if low.kept.is_some() {
            return Ok(());
        }
        self.fresh.clear();
        self.distances.clear();
        let (fresh, distances) = (&mut self.fresh, &mut self.distances);
        self.low.seeds(&low.codes, low.entry, fresh, distances);
        for (&node, &distance) in fresh.iter().zip(&*distances) {
            self.seen.insert(node);
            nodes.push((node, distance));
        }
        Ok(())
    }

    /// The query as the memory server is to have it ([`Collection::query_bytes`]).
    pub fn sent(&self) -> &[u8] {
        &self.sent
    }

    /// Scores the neighbours in lists that were not seen before by their low codes, and inserts them into L_low.
    ///
    /// # Errors
    /// Bytes that are no lists of this collection; a low code that is not here.
    pub fn expand(&mut self, low: &Low, lists: &[u8]) -> Result<(), Error> {
        self.fresh.clear();
        self.places.clear();
        self.meet_lists(low, lists)?;
        self.meet(low);
        Ok(())
    }

    /// Where low codes are offloaded, takes what the memory server [appends](super::HighQuery::advance_offloaded): nodes that are not to be met any more, lists of nodes whose codes are
    /// here, other such nodes, and nodes of which it says what their codes estimate.
    ///
    /// # Errors
    /// Bytes that are no lists of this collection; a low code that is not here.
    pub fn hear(
        &mut self,
        low: &Low,
        known: &[u32],
        lists: &[u8],
        near: &[u32],
        offloaded: &[(u32, f32)],
    ) -> Result<(), Error> {
        self.fresh.clear();
        self.places.clear();
        for &node in known {
            self.seen.insert(node);
        }
        self.meet_lists(low, lists)?;
        for &node in near {
            // It may have stood in a list before.
            if self.seen.insert(node) {
                self.places.push(low.place(node)?);
                self.fresh.push(node);
            }
        }
        self.meet(low);
        self.low.hear(offloaded);
        Ok(())
    }

    /// Looks for the low codes of the neighbours in lists that were not seen before.
    fn meet_lists(&mut self, low: &Low, lists: &[u8]) -> Result<(), Error> {
        let Self {
            seen,
            list: scratch,
            fresh,
            places,
            ..
        } = self;
        let count = low.collection.nodes;
        each_list(&low.lists, lists, scratch, |neighbours| {
            // They ascend.
            if let Some(&last) = neighbours.last().filter(|&&last| last >= count) {
                let expected = format!("nodes below {count}");
                return Err(Error::call(
                    "lists of a memory server",
                    format!("node {last}"),
                    expected,
                ));
            }
            let first = fresh.len();
            fresh.extend(neighbours.iter().copied().filter(|&node| seen.insert(node)));
            if low.kept.is_some() {
                for &node in &fresh[first..] {
                    places.push(low.place(node)?);
                }
            }
            Ok(())
        })
    }

    /// Scores what was looked for.
    fn meet(&mut self, low: &Low) {
        match (low.kept.is_some(), self.fresh.is_empty()) {
            // There may be no codes, and no table.
            (_, true) => {}
            (true, _) => self.low.meet_at(&low.codes, &self.places, &self.fresh),
            (false, _) => self.low.meet(&low.codes, &self.fresh),
        }
    }

    /// Appends the nearest of L_low that were not selected before, and what low codes estimate of them: at most the refinement ratio of its length. May be none.
    pub fn select(&mut self, nodes: &mut Vec<(u32, f32)>) {
        self.fresh.clear();
        self.distances.clear();
        self.low.take(&mut self.fresh, &mut self.distances);
        let taken = self.fresh.iter().zip(&self.distances);
        nodes.extend(taken.map(|(&node, &distance)| (node, distance)));
    }

    /// Distances by low codes that the query has taken.
    pub fn computations(&self) -> u64 {
        self.low.computations()
    }
}
