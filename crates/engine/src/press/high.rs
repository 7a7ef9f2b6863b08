//! PRESS on DistVS's memory server: the graph, the high codes, and the high list of each query
//! (DistVS §3.2).

use std::ops::Range;
use std::path::Path;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use stratann_codec::ListTrainer;
use stratann_vector::DistanceTable;

use super::missing::{Missing, nearest};
use super::packed::PackedLists;
use super::popular::{Counting, Popularity};
use super::{Collection, check, still};
use crate::codebook::Codebook;
use crate::frontier::{Frontier, key, node_of};
use crate::index::contents::each_list;
use crate::progress::{Progress, Stage};
use crate::search::width_of;
use crate::stores::codes::{Correction, complete, each_code};
use crate::{Error, Index, OpenOptions};

const SAMPLE: usize = 10_000;
/// A round ends after this many bytes of lists, so that the lists of a wide beam fit into memory
/// and a message.
const ROUND: usize = 1 << 20;
/// The number of lists that one step of the popularity count reads, in some milliseconds.
const COUNTED: u32 = 1 << 13;
/// The greatest size of the data that a compute server needs beside codes. One message of 16 MiB
/// carries this data.
const MOST_CENTROIDS: usize = (16 << 20) - (64 << 10);
const TABLES: usize = 4;

/// The lists and the high codes of an index, in memory.
pub struct High {
    collection: Collection,
    lists: PackedLists,
    /// All codes in two parts. `rests` has the residual codes, which `corrections` corrects, or
    /// separate high codes.
    lows: Vec<u8>,
    rests: Vec<u8>,
    corrections: Option<Vec<Correction>>,
    codebook: Codebook,
    entry: u32,
    /// The popularity of nodes, 4 bytes a node, counted when a compute server first needs it.
    popularity: OnceLock<Popularity>,
    counting: Mutex<Option<Counting>>,
    /// Whether the count failed at a list that does not decode.
    failed: AtomicBool,
}

impl High {
    /// Loads the index at `path`.
    ///
    /// # Errors
    /// - There is no index, or servers cannot share it.
    /// - A file is damaged, or `progress` interrupts.
    /// - Another checkpoint is committed during the call ([`Error::Outdated`]).
    pub fn open(path: impl AsRef<Path>, progress: &dyn Progress) -> Result<High, Error> {
        let path = path.as_ref();
        let index = Index::open(path, &OpenOptions::default())?;
        check(path, &index)?;
        let volume = index.volume().clone();
        let manifest = index.manifest().clone();
        let collection = Collection::of(&manifest);
        let centroids = index.graph_codebook().quantizer().memory_bytes();
        if centroids > MOST_CENTROIDS {
            return Err(Error::call(
                format!("the index {}", path.display()),
                format!(
                    "one of {} dimensions, with {centroids} bytes of centroids",
                    collection.dim
                ),
                format!("servers can send each other at most {MOST_CENTROIDS} bytes of centroids"),
                "Search the index in one process with `stratann search`",
            ));
        }
        let (nodes, entry) = (collection.nodes as usize, manifest.graph().entry);
        let file = index.graph().file.clone();
        let stage = Stage::begin(progress, "loading lists", 2 * nodes as u64);
        let mut trainer = ListTrainer::new(collection.nodes, manifest.graph().degree);
        let every = nodes.div_ceil(SAMPLE) as u32;
        let damaged = |what: String| Error::Damaged {
            file: file.clone(),
            what,
        };
        let mut list = Vec::new();
        let mut sorted = |neighbours: &[u32]| {
            list.clear();
            list.extend_from_slice(neighbours);
            list.sort_unstable();
            list.dedup();
            std::mem::take(&mut list)
        };
        each_list(&index, progress, &mut |node, neighbours| {
            progress.advance(1);
            if node % every == 0 {
                let added = trainer.add(node, &sorted(neighbours));
                added.map_err(|error| {
                    damaged(format!("the list of node {node} is invalid: {error}"))
                })?;
            }
            Ok(())
        })?;
        let mut lists = PackedLists::new(trainer.finish(TABLES), nodes);
        each_list(&index, progress, &mut |node, neighbours| {
            progress.advance(1);
            if node as usize != lists.len() {
                let expected = format!(
                    "the list of node {} is missing; the next list is of node {node}",
                    lists.len()
                );
                return Err(damaged(expected));
            }
            lists.push(&sorted(neighbours), &file)
        })?;
        if lists.len() != nodes {
            return Err(damaged(format!(
                "it has the lists of {} nodes, but the index has {nodes} nodes",
                lists.len()
            )));
        }
        lists.shrink();
        let codebook = index.graph_codebook().clone();
        // The index is dropped to free memory for the copies that this server makes.
        drop(index);
        drop(stage);
        let (all, half) = (manifest.code_bytes as usize, collection.low_bytes as usize);
        let mut lows = Vec::with_capacity(nodes * half);
        let mut rests = Vec::with_capacity(nodes * (all - half));
        let paired = codebook.paired();
        let mut corrections = paired.and_then(|paired| Correction::none_yet(paired, nodes));
        let mut scratch = Vec::new();
        each_code(&*volume, &manifest, |code| {
            lows.extend_from_slice(&code[..half]);
            rests.extend_from_slice(&code[half..]);
            if let (Some(paired), Some(corrections)) = (paired, &mut corrections) {
                let metric = collection.metric;
                corrections.push(Correction::of(paired, metric, code, &mut scratch));
            }
        })?;
        still(&*volume, path, &collection)?;
        Ok(High {
            collection,
            lists,
            lows,
            rests,
            corrections,
            codebook,
            entry,
            popularity: OnceLock::new(),
            counting: Mutex::new(None),
            failed: AtomicBool::new(false),
        })
    }

    /// The collection that is searched.
    pub fn collection(&self) -> &Collection {
        &self.collection
    }

    /// The bytes of lists, codes, codebook and popularity in memory.
    pub fn memory_bytes(&self) -> u64 {
        let codebook = 2 * Codebook::memory_bytes(self.collection.dim as usize);
        let corrections = self.corrections.as_deref().map_or(0, size_of_val);
        let codes = self.lows.len() + self.rests.len() + corrections;
        let ranks = self.popularity.get().map_or(0, Popularity::memory_bytes);
        (self.lists.memory_bytes() + codes) as u64 + codebook + ranks
    }

    /// The data that a compute server needs beside codes, for [`Low::new`](super::Low::new).
    pub fn low_centroids(&self) -> Vec<u8> {
        let centroids = self.codebook.quantizer().centroids();
        super::low::encode(&centroids, self.entry, self.lists.model())
    }

    /// Appends the low codes of those nodes in `nodes` that are among the `kept` most popular
    /// nodes. First comes a bit for each node of `nodes`, from the lowest bit of the first byte on.
    /// The bit is set if the node's code follows. If `kept` covers the whole collection, there are
    /// no bits.
    ///
    /// # Errors
    /// A list does not decode while the popularity is counted.
    ///
    /// # Panics
    /// Panics if a node does not exist.
    pub fn low_codes(&self, nodes: Range<u32>, kept: u32, out: &mut Vec<u8>) -> Result<(), Error> {
        let low = self.collection.low_bytes as usize;
        if kept >= self.collection.nodes {
            out.extend_from_slice(&self.lows[nodes.start as usize * low..nodes.end as usize * low]);
            return Ok(());
        }
        let popularity = self.popularity()?;
        let bits = out.len();
        out.resize(bits + nodes.len().div_ceil(8), 0);
        for (at, node) in nodes
            .enumerate()
            .filter(|&(_, node)| popularity.keeps(node, kept))
        {
            out[bits + at / 8] |= 1 << (at % 8);
            out.extend_from_slice(&self.lows[node as usize * low..][..low]);
        }
        Ok(())
    }

    /// Whether the popularity of nodes is known, or its count has failed.
    pub fn knows_popular(&self) -> bool {
        self.popularity.get().is_some() || self.failed.load(Ordering::Acquire)
    }

    /// Counts the popularity of nodes for some milliseconds more. Returns whether the popularity is
    /// then known.
    ///
    /// # Errors
    /// A list does not decode.
    pub fn count_popular(&self) -> Result<bool, Error> {
        let mut counting = self.counting.lock();
        if self.popularity.get().is_some() {
            return Ok(true);
        }
        let nodes = self.collection.nodes as usize;
        let own = counting.get_or_insert_with(|| Counting::new(nodes));
        match own.step(&self.lists, COUNTED) {
            Ok(None) => Ok(false),
            Ok(Some(known)) => {
                self.popularity.get_or_init(|| known);
                *counting = None;
                Ok(true)
            }
            Err(error) => {
                self.failed.store(true, Ordering::Release);
                Err(error)
            }
        }
    }

    fn check_nodes<'n>(&self, mut nodes: impl Iterator<Item = &'n u32>) -> Result<(), Error> {
        let count = self.collection.nodes;
        match nodes.find(|&&node| node >= count) {
            None => Ok(()),
            Some(&node) => Err(super::no_node(node, count)),
        }
    }

    fn popularity(&self) -> Result<&Popularity, Error> {
        loop {
            if let Some(known) = self.popularity.get() {
                return Ok(known);
            }
            self.count_popular()?;
        }
    }
}

/// The high list (L_high) of one query, reused from query to query.
#[derive(Debug, Default)]
pub struct HighQuery {
    /// The distances from the query to every centroid of residual codes.
    table: DistanceTable,
    list: Frontier,
    full: usize,
    beam: usize,
    rounds: u32,
    floats: Vec<f32>,
    nodes: Vec<u32>,
    sums: Vec<f32>,
    computations: u64,
    /// The distances from the query to every centroid of low codes, computed when first needed.
    low: DistanceTable,
    is_low_filled: bool,
    low_computations: u64,
    chosen: Vec<(u32, f32)>,
}

impl HighQuery {
    /// Begins a query with the bytes that a compute server [sends](super::LowQuery::sent). `list`
    /// is the length of the high list (D_high), `full` the number of candidates that exact vectors
    /// rank (D_full), and `beam` the most nodes of a round. Next, [`refine`](HighQuery::refine) or
    /// [`look`](HighQuery::look) must get the start nodes.
    ///
    /// # Errors
    /// The query has a wrong length, NaN or infinity, is zero under cosine, or a number is 0.
    pub fn begin(
        &mut self,
        high: &High,
        query: &[u8],
        list: usize,
        full: usize,
        beam: usize,
    ) -> Result<(), Error> {
        for (what, value) in [
            ("list size", list),
            ("number of re-ranked candidates", full),
            ("beam width", beam),
        ] {
            if value == 0 {
                let reason = "it must be at least 1";
                return Err(Error::call(what, 0, reason, "Pass at least 1"));
            }
        }
        let collection = &high.collection;
        // Every index that [`High::open`] accepts has a paired codebook.
        if let Some(paired) = high.codebook.paired() {
            collection.sent(query, paired.rounding(), &mut self.floats)?;
            paired.rest_table(collection.metric, &self.floats, &mut self.table);
        }
        let list = list.min(collection.nodes as usize);
        self.list.clear(list, 1, list);
        (self.full, self.beam, self.rounds) = (full, beam, 0);
        (self.computations, self.low_computations) = (0, 0);
        self.is_low_filled = false;
        Ok(())
    }

    /// Estimates the nodes in `missing`, whose low codes are [offloaded](super), and then
    /// [refines](Self::refine) the nearest nodes of `missing` and `offered`. `estimates` gets the
    /// estimates that are small enough for the low list of the compute server.
    ///
    /// # Errors
    /// A node does not exist.
    pub fn look(
        &mut self,
        high: &High,
        offered: &[(u32, f32)],
        missing: &Missing,
        estimates: &mut Vec<(u32, f32)>,
    ) -> Result<(), Error> {
        estimates.clear();
        let all = (missing.nodes.iter()).chain(offered.iter().map(|(node, _)| node));
        high.check_nodes(all)?;
        if let Some(paired) = high.codebook.paired().filter(|_| !self.is_low_filled) {
            let metric = high.collection.metric;
            paired.low().table(metric, &self.floats, &mut self.low);
            self.is_low_filled = true;
        }
        let count = missing.nodes.len();
        self.sums.resize(self.sums.len().max(count), 0.0);
        let sums = &mut self.sums[..count];
        self.low.score(&high.lows, &missing.nodes, sums);
        self.low_computations += count as u64;
        let scored = missing.nodes.iter().copied().zip(sums.iter().copied());
        // NaN sorts last in the low list, so `min` turns NaN into infinity.
        let is_of_use = |&(_, estimate): &(u32, f32)| estimate.min(f32::INFINITY) <= missing.bound;
        estimates.extend(scored.filter(is_of_use));
        let mut chosen = std::mem::take(&mut self.chosen);
        chosen.clear();
        chosen.extend_from_slice(offered);
        chosen.extend_from_slice(estimates);
        nearest(&mut chosen, missing.most);
        let refined = self.refine(high, &chosen);
        self.chosen = chosen;
        refined
    }

    /// Scores nodes, given with their low-code estimates, by high codes for the high list. Nodes
    /// that the list already has are ignored.
    ///
    /// # Errors
    /// A node does not exist.
    pub fn refine(&mut self, high: &High, nodes: &[(u32, f32)]) -> Result<(), Error> {
        high.check_nodes(nodes.iter().map(|(node, _)| node))?;
        self.nodes.clear();
        self.nodes.extend(nodes.iter().map(|&(node, _)| node));
        self.sums.resize(self.sums.len().max(nodes.len()), 0.0);
        let sums = &mut self.sums[..nodes.len()];
        self.table.score(&high.rests, &self.nodes, sums);
        for (&(node, low), &sum) in nodes.iter().zip(&*sums) {
            let estimate = complete(high.corrections.as_deref(), node, low, sum);
            self.list.insert(key(estimate, node));
        }
        self.computations += nodes.len() as u64;
        Ok(())
    }

    /// Visits the nearest unvisited nodes of the high list, at most the beam width, and appends
    /// their adjacency lists. Returns false if every node of the high list is visited.
    pub fn advance(&mut self, high: &High, lists: &mut Vec<u8>) -> bool {
        let mut any = false;
        let most = lists.len() + ROUND;
        let width = width_of(self.rounds, self.beam);
        self.rounds = self.rounds.saturating_add(1);
        for _ in 0..width {
            if lists.len() >= most {
                break;
            }
            let Some(key) = self.list.take_unread() else {
                break;
            };
            high.lists.append(node_of(key), lists);
            any = true;
        }
        any
    }

    /// The number of distances by low codes that the memory server computed for this query.
    pub fn low_computations(&self) -> u64 {
        self.low_computations
    }

    /// Appends the nearest nodes of the high list, nearest first, for the storage server.
    pub fn best(&self, nodes: &mut Vec<u32>) {
        nodes.extend(self.list.keys().take(self.full).map(node_of));
    }

    /// The number of distances by high codes that were computed for the query.
    pub fn computations(&self) -> u64 {
        self.computations
    }
}
