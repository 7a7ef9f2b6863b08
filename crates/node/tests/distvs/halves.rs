//! Small halves of PRESS, and PRESS in one process with them: what every search through servers has to find, to the bit.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashSet};
use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use stratann_node::role::{
    Done, HalfError, HighHalf, LowHalf, Met, Narrowing, NotChanged, Ranker, Sizes, Wanted,
};
use stratann_node::wire::{Changed, Collection, Offloading, Ranked};

/// Dimension of the vectors, of which each element is a byte.
pub const DIM: usize = 8;

/// SplitMix64: random numbers that a seed repeats.
#[derive(Clone, Debug)]
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, n: u64) -> u64 {
        self.next() % n.max(1)
    }

    pub fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    pub fn row(&mut self) -> Vec<u8> {
        self.next().to_le_bytes().to_vec()
    }
}

/// What was changed: rows that are found by who asks for exactly them, so that other queries find what they always do.
#[derive(Default)]
pub struct Stored(Mutex<BTreeMap<u64, Vec<u8>>>);

impl Stored {
    pub fn change(&self, (ids, rows): (&[u64], &[u8]), deletes: &[u64]) -> Changed {
        let mut stored = self.0.lock().unwrap();
        for (&id, row) in ids.iter().zip(rows.chunks_exact(DIM)) {
            stored.insert(id, row.to_vec());
        }
        let gone = deletes.iter().filter(|&id| stored.remove(id).is_some());
        Changed {
            deleted: gone.count() as u32,
            upserted: ids.len() as u32,
        }
    }

    /// Puts those that are this row before what was ranked.
    pub fn join(&self, row: &[u8], k: usize, ranked: &mut Ranked) {
        let stored = self.0.lock().unwrap();
        let same = stored.iter().filter(|(_, stored)| *stored == row);
        for (at, (&id, _)) in same.enumerate() {
            ranked.ids.insert(at, id);
            ranked.distances.insert(at, 0.0);
        }
        ranked.ids.truncate(k);
        ranked.distances.truncate(k);
    }
}

/// How popular nodes are, which takes its time to be counted.
#[derive(Default)]
pub struct Popular {
    /// Steps that it takes, and how long each does.
    pub steps: u32,
    pub pause: Duration,
    /// How many were done.
    pub counted: AtomicU32,
}

/// A collection in one state: vectors, and a graph over them.
pub struct World {
    pub popular: Popular,
    pub state: u64,
    pub stored: Stored,
    /// Bytes behind what has to be known of codes, so that a message is large.
    pub padding: usize,
    /// How often a step says each neighbour, so that a message is large.
    pub weight: usize,
    vectors: Vec<[u8; DIM]>,
    lists: Vec<Vec<u32>>,
    /// By node: how many have more links to them.
    ranks: Vec<u32>,
}

/// A query that has low halves panic.
pub const POISON: &[u8] = b"a poison";

/// Bits of an element that a high and a low code keep.
const HIGH: u8 = 0xF0;
const LOW: u8 = 0xC0;

fn distance(row: &[u8], vector: &[u8], bits: u8) -> u32 {
    let difference = |(&a, &b): (&u8, &u8)| u32::from(a.abs_diff(b & bits)).pow(2);
    row.iter().zip(vector).map(difference).sum()
}

impl World {
    /// `nodes` vectors of which each is linked to its nearest and to some others.
    pub fn new(seed: u64, nodes: usize) -> World {
        let mut random = Random(seed);
        let vectors: Vec<[u8; DIM]> = (0..nodes).map(|_| random.next().to_le_bytes()).collect();
        let list = |node: usize| {
            let mut near: Vec<(u32, u32)> = (0..nodes)
                .filter(|&other| other != node)
                .map(|other| {
                    (
                        distance(&vectors[node], &vectors[other], 0xFF),
                        other as u32,
                    )
                })
                .collect();
            near.sort_unstable();
            let nearest = near[..6].iter().map(|&(_, other)| other);
            let ring = [
                ((node + 1) % nodes) as u32,
                ((node + nodes / 3) % nodes) as u32,
            ];
            nearest.chain(ring).collect()
        };
        let lists: Vec<Vec<u32>> = (0..nodes).map(list).collect();
        let links = |node: usize| {
            lists
                .iter()
                .flatten()
                .filter(move |&&to| to as usize == node)
        };
        let mut order: Vec<_> = (0..nodes)
            .map(|node| (Reverse(links(node).count()), node))
            .collect();
        order.sort_unstable();
        let mut ranks = vec![0; nodes];
        for (rank, &(_, node)) in order.iter().enumerate() {
            ranks[node] = rank as u32;
        }
        World {
            state: seed | 1,
            stored: Stored::default(),
            popular: Popular::default(),
            padding: 0,
            weight: 1,
            lists,
            ranks,
            vectors,
        }
    }

    /// The same as a process has it that has just read it, and has so many steps to count how popular nodes are.
    pub fn read(&self, steps: u32) -> World {
        World {
            state: self.state,
            stored: Stored::default(),
            popular: Popular {
                steps,
                ..Popular::default()
            },
            padding: self.padding,
            weight: self.weight,
            lists: self.lists.clone(),
            ranks: self.ranks.clone(),
            vectors: self.vectors.clone(),
        }
    }

    /// Where searches begin: at two nodes, so that one that begins elsewhere would not be the same.
    fn begins(&self) -> [u32; 2] {
        [0, self.vectors.len() as u32 / 2]
    }

    /// What the low code of a node says of its distance.
    pub fn low(&self, row: &[u8], node: u32) -> f32 {
        distance(row, &self.vectors[node as usize], LOW) as f32
    }

    pub fn rank_now(&self, row: &[u8], nodes: &[u32], k: usize) -> Ranked {
        let exact = |&node: &u32| {
            (
                distance(row, &self.vectors[node as usize], 0xFF),
                u64::from(node) * 10,
            )
        };
        let mut near: Vec<(u32, u64)> = nodes.iter().map(exact).collect();
        near.sort_unstable();
        near.truncate(k);
        Ranked {
            ids: near.iter().map(|&(_, id)| id).collect(),
            distances: near.iter().map(|&(distance, _)| distance as f32).collect(),
            reads: 1,
            bytes: 4096,
            computations: nodes.len() as u64,
            refused: 0,
        }
    }
}

/// An ordered list of at most so many nodes.
#[derive(Clone, Debug, Default)]
struct List {
    most: usize,
    /// Distance, node, whether it was visited.
    nodes: Vec<(u32, u32, bool)>,
    seen: HashSet<u32>,
    computations: u64,
}

impl List {
    fn begin(&mut self, most: usize) {
        *self = List {
            most,
            ..List::default()
        };
    }

    fn insert(&mut self, node: u32, distance: impl FnOnce() -> u32) {
        if self.seen.insert(node) {
            self.computations += 1;
            self.nodes.push((distance(), node, false));
            self.nodes.sort_unstable();
            self.nodes.truncate(self.most);
        }
    }

    fn visit(&mut self, most: usize) -> Vec<(u32, f32)> {
        let unvisited = self.nodes.iter_mut().filter(|node| !node.2).take(most);
        unvisited
            .map(|node| {
                node.2 = true;
                (node.1, node.0 as f32)
            })
            .collect()
    }
}

#[derive(Default)]
pub struct HighQuery {
    row: Vec<u8>,
    list: List,
    sizes: Option<Sizes>,
    offloading: Option<Offloading>,
    /// Where low codes are offloaded: what was met, and how many of these codes were looked at.
    met: HashSet<u32>,
    low: u64,
}

impl HighHalf for World {
    type Query = HighQuery;

    fn collection(&self) -> Collection {
        Collection {
            state: self.state,
            nodes: self.vectors.len() as u32,
            dim: DIM as u32,
            row_bytes: DIM as u32,
            low_bytes: DIM as u32,
            high_bytes: DIM as u32,
            element: 1,
            metric: 1,
            changes: false,
        }
    }

    fn low_centroids(&self) -> Vec<u8> {
        let mut bytes = self.state.to_le_bytes().to_vec();
        bytes.extend((0..self.padding).map(|at| (at % 251) as u8));
        bytes
    }

    fn low_codes(&self, nodes: Range<u32>, kept: u32, out: &mut Vec<u8>) -> Result<(), HalfError> {
        let keeps = |&node: &u32| self.ranks[node as usize] < kept;
        if kept < self.vectors.len() as u32 {
            assert!(self.knows_popular(), "it is not known yet");
            let first = out.len();
            out.resize(first + nodes.len().div_ceil(8), 0);
            for (at, _) in nodes.clone().enumerate().filter(|(_, node)| keeps(node)) {
                out[first + at / 8] |= 1 << (at % 8);
            }
        }
        let codes = nodes
            .filter(keeps)
            .flat_map(|node| self.vectors[node as usize]);
        out.extend(codes.map(|byte| byte & LOW));
        Ok(())
    }

    fn knows_popular(&self) -> bool {
        self.popular.counted.load(Ordering::SeqCst) >= self.popular.steps
    }

    fn count_popular(&self) -> Result<bool, HalfError> {
        std::thread::sleep(self.popular.pause);
        self.popular.counted.fetch_add(1, Ordering::SeqCst);
        Ok(self.knows_popular())
    }

    fn query_bytes(&self) -> usize {
        DIM
    }

    fn begin(
        &self,
        query: &mut HighQuery,
        row: &[u8],
        sizes: Sizes,
        offloading: Option<Offloading>,
    ) -> Result<(), HalfError> {
        query.row = row.to_vec();
        query.list.begin(sizes.list);
        query.sizes = Some(sizes);
        (query.offloading, query.low) = (offloading, 0);
        query.met.clear();
        if offloading.is_some() {
            assert!(self.knows_popular(), "it is not known yet");
            let begun = self.begins();
            let scored = begun.map(|node| (node, self.low(row, node)));
            self.refine(query, &scored)?;
        }
        Ok(())
    }

    fn advance_offloaded(&self, query: &mut HighQuery, met: &mut Met) -> Result<bool, HalfError> {
        let kept = query.offloading.expect("it was begun so").kept;
        let visited = query.list.visit(query.sizes.unwrap().beam);
        if query.met.is_empty() {
            met.known.extend(self.begins());
            query.met.extend(self.begins());
        }
        let keeps = |node: &u32| self.ranks[*node as usize] < kept;
        for (node, _) in &visited {
            let list = &self.lists[*node as usize];
            if list.iter().all(keeps) {
                met.lists
                    .extend(list.iter().flat_map(|to| to.to_le_bytes()));
                continue;
            }
            for &to in list.iter().filter(|&&to| query.met.insert(to)) {
                if keeps(&to) {
                    met.near.push(to);
                } else {
                    met.offloaded.push((to, self.low(&query.row, to)));
                    query.low += 1;
                }
            }
        }
        Ok(!visited.is_empty())
    }

    fn low_computations(&self, query: &HighQuery) -> u64 {
        query.low
    }

    fn refine(&self, query: &mut HighQuery, nodes: &[(u32, f32)]) -> Result<(), HalfError> {
        assert!(nodes.is_sorted_by_key(|&(node, _)| node));
        for &(node, low) in nodes {
            let right = self.low(&query.row, node);
            assert_eq!(low, right, "what the low code of node {node} says");
            query.list.insert(node, || {
                distance(&query.row, &self.vectors[node as usize], HIGH)
            });
        }
        Ok(())
    }

    fn advance(&self, query: &mut HighQuery, lists: &mut Vec<u8>) -> bool {
        let visited = query.list.visit(query.sizes.unwrap().beam);
        let all = (visited.iter()).flat_map(|&(node, _)| &self.lists[node as usize]);
        for node in all {
            (0..self.weight).for_each(|_| lists.extend(node.to_le_bytes()));
        }
        !visited.is_empty()
    }

    fn best(&self, query: &HighQuery, nodes: &mut Vec<u32>) {
        let full = query.sizes.unwrap().full;
        nodes.extend(query.list.nodes.iter().take(full).map(|node| node.1));
    }

    fn computations(&self, query: &HighQuery) -> u64 {
        query.list.computations
    }
}

/// What a compute server was sent.
#[derive(Debug)]
pub struct Low {
    collection: Collection,
    /// By node; none of those that are offloaded.
    codes: Vec<Option<[u8; DIM]>>,
    offloads: bool,
}

#[derive(Default)]
pub struct LowQuery {
    row: Vec<u8>,
    list: List,
    ratio: f32,
}

impl LowHalf for Low {
    type Query = LowQuery;

    fn room(_: &Collection, bytes: u64) -> u32 {
        (bytes / DIM as u64).min(u64::from(u32::MAX)) as u32
    }

    fn load(
        collection: Collection,
        centroids: &[u8],
        bits: Option<&[u8]>,
        codes: Vec<u8>,
    ) -> Result<Low, HalfError> {
        let (state, padding) = centroids.split_at(8);
        let padded = padding
            .iter()
            .enumerate()
            .all(|(at, &byte)| byte == (at % 251) as u8);
        let is_kept = |node: usize| bits.is_none_or(|bits| bits[node / 8] >> (node % 8) & 1 == 1);
        let mut sent = codes.chunks_exact(DIM);
        let codes: Vec<_> = (0..collection.nodes as usize)
            .map(|node| {
                is_kept(node)
                    .then(|| sent.next()?.try_into().ok())
                    .flatten()
            })
            .collect();
        let whole =
            sent.next().is_none() && (0..codes.len()).all(|at| codes[at].is_some() == is_kept(at));
        if !whole || !padded || state != collection.state.to_le_bytes() {
            return Err(HalfError("codes or centroids of something else".to_owned()));
        }
        let offloads = bits.is_some();
        Ok(Low {
            collection,
            codes,
            offloads,
        })
    }

    fn kept(&self) -> Option<u32> {
        let count = self.codes.iter().flatten().count() as u32;
        self.offloads.then_some(count)
    }

    fn code_bytes(&self) -> u64 {
        (self.codes.iter().flatten().count() * DIM) as u64
    }

    fn hear(&self, query: &mut LowQuery, met: &Met, lists: &[u8]) -> Result<(), HalfError> {
        query.list.seen.extend(&met.known);
        self.expand(query, lists)?;
        for &node in &met.near {
            let code = self.codes[node as usize];
            let code = code.ok_or_else(|| HalfError(format!("no code of {node}")))?;
            query.list.insert(node, || distance(&query.row, &code, LOW));
        }
        for &(node, estimate) in &met.offloaded {
            assert!(self.codes[node as usize].is_none(), "{node} is here");
            query.list.insert(node, || estimate as u32);
            // The memory server has counted it.
            query.list.computations -= 1;
        }
        Ok(())
    }

    fn collection(&self) -> Collection {
        self.collection
    }

    fn begin(
        &self,
        query: &mut LowQuery,
        row: &[u8],
        list: usize,
        narrowing: Narrowing,
        nodes: &mut Vec<(u32, f32)>,
    ) -> Result<(), HalfError> {
        assert_ne!(row, POISON, "on purpose");
        query.row = row.to_vec();
        query.list.begin((list as f64 * narrowing.low) as usize);
        query.ratio = narrowing.ratio as f32;
        if !self.offloads {
            for node in [0, self.collection.nodes / 2] {
                let code = self.codes[node as usize].expect("all codes are here");
                nodes.push((node, distance(&query.row, &code, LOW) as f32));
                // It is not to be met again.
                query.list.seen.insert(node);
            }
        }
        Ok(())
    }

    fn sent(query: &LowQuery) -> &[u8] {
        &query.row
    }

    fn expand(&self, query: &mut LowQuery, lists: &[u8]) -> Result<(), HalfError> {
        for node in lists.chunks(4) {
            let node = u32::from_le_bytes(
                node.try_into()
                    .map_err(|_| HalfError("half a node".to_owned()))?,
            );
            let code = self.codes.get(node as usize).copied().flatten();
            let code = code.ok_or_else(|| HalfError("no such node".to_owned()))?;
            query.list.insert(node, || distance(&query.row, &code, LOW));
        }
        Ok(())
    }

    fn select(&self, query: &mut LowQuery, nodes: &mut Vec<(u32, f32)>) {
        let most = (query.ratio * query.list.nodes.len() as f32).ceil() as usize;
        nodes.extend(query.list.visit(most));
    }

    fn computations(&self, query: &LowQuery) -> u64 {
        query.list.computations
    }
}

/// Exact vectors, ranked on a thread for each query.
pub struct Full(pub Arc<World>);

impl Ranker for Full {
    fn collection(&self) -> Collection {
        HighHalf::collection(&*self.0)
    }

    fn collection_of(&self, state: u64) -> Option<Collection> {
        Some(self.collection()).filter(|own| own.state == state)
    }

    fn change(&self, upserts: (&[u64], &[u8]), deletes: &[u64]) -> Result<Changed, NotChanged> {
        Ok(self.0.stored.change(upserts, deletes))
    }

    fn rank(
        &self,
        (_, row): (u64, &[u8]),
        nodes: &[u32],
        k: usize,
        _: Wanted,
        done: Done,
    ) -> Result<(), HalfError> {
        let (world, row, nodes) = (self.0.clone(), row.to_vec(), nodes.to_vec());
        std::thread::spawn(move || {
            let mut ranked = world.rank_now(&row, &nodes, k);
            world.stored.join(&row, k, &mut ranked);
            done(Ok(ranked));
        });
        Ok(())
    }
}

/// What a search has to find, and what it takes: distances by low codes, by high codes, exact, and steps.
#[derive(Clone, Debug, PartialEq)]
pub struct Expected {
    pub ids: Vec<u64>,
    pub distances: Vec<f32>,
    pub low: u64,
    pub high: u64,
    pub full: u64,
    pub steps: u32,
}

/// PRESS (§3.1, algorithm 2) in one process.
pub fn press(
    world: &World,
    row: &[u8],
    k: usize,
    list: usize,
    beam: usize,
    narrowing: Narrowing,
) -> Expected {
    let mut codes = Vec::new();
    let collection = HighHalf::collection(world);
    world
        .low_codes(0..collection.nodes, collection.nodes, &mut codes)
        .unwrap();
    let low = Low::load(collection, &world.low_centroids(), None, codes).unwrap();
    let (mut high_query, mut low_query) = (HighQuery::default(), LowQuery::default());
    let (list, full) = (list.max(k), (list.max(k) / 2).max(k));
    world
        .begin(&mut high_query, row, Sizes { list, full, beam }, None)
        .unwrap();
    let (mut lists, mut nodes, mut steps) = (Vec::new(), Vec::new(), 1);
    low.begin(&mut low_query, row, list, narrowing, &mut nodes)
        .unwrap();
    world.refine(&mut high_query, &nodes).unwrap();
    while world.advance(&mut high_query, &mut lists) {
        low.expand(&mut low_query, &lists).unwrap();
        lists.clear();
        nodes.clear();
        low.select(&mut low_query, &mut nodes);
        nodes.sort_unstable_by_key(|&(node, _)| node);
        world.refine(&mut high_query, &nodes).unwrap();
        steps += 1;
    }
    let mut nodes = Vec::new();
    world.best(&high_query, &mut nodes);
    let ranked = world.rank_now(row, &nodes, k);
    Expected {
        ids: ranked.ids,
        distances: ranked.distances,
        low: low.computations(&low_query),
        high: world.computations(&high_query),
        full: ranked.computations,
        steps,
    }
}
