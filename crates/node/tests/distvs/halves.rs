//! Small halves of PRESS, and a search with them in one process, whose result every search through
//! servers must have.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashSet};
use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use stratann_node::role::{
    Done, HalfError, HighHalf, LowHalf, Missing, Narrowing, NotChanged, Ranker, Sizes, Wanted,
};
use stratann_node::wire::{Changed, Collection, Ranked};

pub const DIM: usize = 8;

/// The generator SplitMix64.
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

/// The inserted rows. A search finds such a row only if the query is equal to the row.
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

#[derive(Default)]
pub struct Popular {
    /// The number of steps of the count, and the time of each step.
    pub steps: u32,
    pub pause: Duration,
    pub counted: AtomicU32,
}

pub struct World {
    pub popular: Popular,
    pub state: u64,
    pub stored: Stored,
    /// Bytes that are appended to the centroids, to make a message large.
    pub padding: usize,
    /// How often a step repeats each neighbour, to make a message large.
    pub weight: usize,
    vectors: Vec<[u8; DIM]>,
    lists: Vec<Vec<u32>>,
    /// For each node, its rank by the number of links to it. The most popular node has rank 0.
    ranks: Vec<u32>,
}

pub const POISON: &[u8] = b"a poison";

const HIGH: u8 = 0xF0;
const LOW: u8 = 0xC0;

fn distance(row: &[u8], vector: &[u8], bits: u8) -> u32 {
    let difference = |(&a, &b): (&u8, &u8)| u32::from(a.abs_diff(b & bits)).pow(2);
    row.iter().zip(vector).map(difference).sum()
}

impl World {
    /// Each vector is linked to its nearest vectors and to some others.
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

    /// A copy of this world whose count of popularity takes `steps` steps.
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

#[derive(Clone, Debug, Default)]
struct List {
    most: usize,
    /// The distance, the node, and whether it was visited.
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

    fn unvisited(&self, most: usize) -> Vec<(u32, f32)> {
        let unvisited = self.nodes.iter().filter(|node| !node.2).take(most);
        unvisited.map(|node| (node.1, node.0 as f32)).collect()
    }

    fn mark(&mut self, visited: &[(u32, f32)]) {
        let is_visited = |node: u32| visited.iter().any(|&(other, _)| other == node);
        for node in &mut self.nodes {
            node.2 |= is_visited(node.1);
        }
    }

    fn visit(&mut self, most: usize) -> Vec<(u32, f32)> {
        let visited = self.unvisited(most);
        self.mark(&visited);
        visited
    }
}

fn nearest(mut nodes: Vec<(u32, f32)>, most: usize) -> Vec<(u32, f32)> {
    nodes.sort_unstable_by_key(|&(node, distance)| (distance as u32, node));
    nodes.truncate(most);
    nodes
}

#[derive(Default)]
pub struct HighQuery {
    row: Vec<u8>,
    list: List,
    sizes: Option<Sizes>,
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
            vectors: self.vectors.len() as u64,
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
            assert!(
                self.knows_popular(),
                "the most popular nodes are not known yet"
            );
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

    fn begin(&self, query: &mut HighQuery, row: &[u8], sizes: Sizes) -> Result<(), HalfError> {
        query.row = row.to_vec();
        query.list.begin(sizes.list);
        query.sizes = Some(sizes);
        query.low = 0;
        Ok(())
    }

    fn look(
        &self,
        query: &mut HighQuery,
        offered: &[(u32, f32)],
        missing: &mut Missing,
        estimates: &mut Vec<(u32, f32)>,
    ) -> Result<(), HalfError> {
        assert!(missing.nodes.is_sorted());
        query.low += missing.nodes.len() as u64;
        let scored = missing.nodes.iter();
        let scored = scored.map(|&node| (node, self.low(&query.row, node)));
        estimates.clear();
        estimates.extend(scored.filter(|&(_, distance)| distance <= missing.bound));
        let mut chosen = nearest([offered, estimates].concat(), missing.most as usize);
        chosen.sort_unstable_by_key(|&(node, _)| node);
        self.refine(query, &chosen)
    }

    fn low_computations(&self, query: &HighQuery) -> u64 {
        query.low
    }

    fn refine(&self, query: &mut HighQuery, nodes: &[(u32, f32)]) -> Result<(), HalfError> {
        assert!(nodes.is_sorted_by_key(|&(node, _)| node));
        for &(node, low) in nodes {
            let right = self.low(&query.row, node);
            assert_eq!(low, right, "the estimate by the low code of node {node}");
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

#[derive(Debug)]
pub struct Low {
    collection: Collection,
    /// `None` for an offloaded code.
    codes: Vec<Option<[u8; DIM]>>,
    offloads: bool,
}

#[derive(Default)]
pub struct LowQuery {
    row: Vec<u8>,
    list: List,
    ratio: f32,
    missing: Vec<u32>,
    /// The nodes that were offered with the last request, and the number to refine.
    offered: Vec<(u32, f32)>,
    most: usize,
    begins: bool,
}

impl LowQuery {
    fn share(&self, len: usize) -> usize {
        (self.ratio * len.min(self.list.most) as f32).ceil() as usize
    }
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

    fn hear(&self, query: &mut LowQuery, estimates: &[(u32, f32)]) {
        if std::mem::take(&mut query.begins) {
            return;
        }
        for &(node, estimate) in estimates {
            assert!(self.codes[node as usize].is_none(), "{node} is here");
            query.list.insert(node, || estimate as u32);
            // The memory server has already counted this distance.
            query.list.computations -= 1;
        }
        let taken = nearest([&query.offered[..], estimates].concat(), query.most);
        query.list.mark(&taken);
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
        missing: &mut Missing,
    ) -> Result<(), HalfError> {
        assert_ne!(row, POISON, "on purpose");
        query.row = row.to_vec();
        query.list.begin((list as f64 * narrowing.low) as usize);
        query.ratio = narrowing.ratio as f32;
        query.missing.clear();
        missing.nodes.clear();
        // All searches begin at these two nodes, because from other nodes, a search could have
        // another result.
        for node in [0, self.collection.nodes / 2] {
            match &self.codes[node as usize] {
                Some(code) => nodes.push((node, distance(&query.row, code, LOW) as f32)),
                None => missing.nodes.push(node),
            }
            query.list.seen.insert(node);
        }
        query.begins = !missing.nodes.is_empty();
        (missing.most, missing.bound) = (2, f32::INFINITY);
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
            let code = self.codes.get(node as usize);
            match code.ok_or_else(|| HalfError("no such node".to_owned()))? {
                Some(code) => query.list.insert(node, || distance(&query.row, code, LOW)),
                None if query.list.seen.contains(&node) => {}
                None => query.missing.push(node),
            }
        }
        query.missing.sort_unstable();
        query.missing.dedup();
        Ok(())
    }

    fn select(&self, query: &mut LowQuery, nodes: &mut Vec<(u32, f32)>, missing: &mut Missing) {
        missing.nodes.clear();
        let asked = query.missing.len();
        let most = query.share(query.list.nodes.len() + asked);
        if asked == 0 {
            return nodes.extend(query.list.visit(most));
        }
        std::mem::swap(&mut missing.nodes, &mut query.missing);
        let all = query.list.nodes.len() == query.list.most;
        let bound = query.list.nodes.last().filter(|_| all);
        missing.bound = bound.map_or(f32::INFINITY, |last| last.0 as f32);
        missing.most = most as u32;
        query.most = most;
        query.offered = query.list.unvisited(most);
        nodes.extend(&query.offered);
    }

    fn computations(&self, query: &LowQuery) -> u64 {
        query.list.computations
    }
}

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

/// The expected result of a search, and its costs.
#[derive(Clone, Debug, PartialEq)]
pub struct Expected {
    pub ids: Vec<u64>,
    pub distances: Vec<f32>,
    pub low: u64,
    pub high: u64,
    pub full: u64,
    pub steps: u32,
}

/// PRESS (§3.1, algorithm 2) in one process, with the low codes of the `kept` most popular nodes on
/// the compute server.
pub fn press(
    world: &World,
    row: &[u8],
    k: usize,
    (list, beam): (usize, usize),
    narrowing: Narrowing,
    kept: u32,
) -> Expected {
    let collection = HighHalf::collection(world);
    let kept = |&node: &u32| world.ranks[node as usize] < kept;
    let mut bits = vec![0; collection.nodes.div_ceil(8) as usize];
    let mut codes = Vec::new();
    for node in (0..collection.nodes).filter(kept) {
        bits[node as usize / 8] |= 1 << (node % 8);
        codes.extend(world.vectors[node as usize].map(|byte| byte & LOW));
    }
    let some = (!(0..collection.nodes).all(|node| kept(&node))).then_some(&bits[..]);
    let low = Low::load(collection, &world.low_centroids(), some, codes).unwrap();
    let (mut high_query, mut low_query) = (HighQuery::default(), LowQuery::default());
    let (list, full) = (list.max(k), (list.max(k) / 2).max(k));
    world
        .begin(&mut high_query, row, Sizes { list, full, beam })
        .unwrap();
    let (mut lists, mut nodes, mut steps) = (Vec::new(), Vec::new(), 1);
    let missing = &mut Missing::default();
    low.begin(&mut low_query, row, list, narrowing, &mut nodes, missing)
        .unwrap();
    let mut estimates = Vec::new();
    loop {
        nodes.sort_unstable_by_key(|&(node, _)| node);
        let looks = !missing.nodes.is_empty();
        match looks {
            true => world.look(&mut high_query, &nodes, missing, &mut estimates),
            false => world.refine(&mut high_query, &nodes),
        }
        .unwrap();
        if !world.advance(&mut high_query, &mut lists) {
            break;
        }
        if looks {
            low.hear(&mut low_query, &estimates);
        }
        low.expand(&mut low_query, &lists).unwrap();
        lists.clear();
        nodes.clear();
        low.select(&mut low_query, &mut nodes, missing);
        steps += 1;
    }
    let mut nodes = Vec::new();
    world.best(&high_query, &mut nodes);
    let ranked = world.rank_now(row, &nodes, k);
    Expected {
        ids: ranked.ids,
        distances: ranked.distances,
        low: low.computations(&low_query) + world.low_computations(&high_query),
        high: world.computations(&high_query),
        full: ranked.computations,
        steps,
    }
}
