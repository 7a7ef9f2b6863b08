//! Block shuffling (Starling §4.1) uses the finished graph to decide which nodes share a page.
//!
//! ```text
//!   pages of the locality order   [ a b c ][ d e f ][ g h i ]   filled by bytes, in node order
//!   edges, by rank in the list      a ═ e, d ─ b, ..            weight 1 / sqrt(rank)
//!   two nodes swap                [ e b c ][ d a f ][ g h i ]   if more weight then stays within
//!                                 pages; or one node moves to a page with space
//! ```
//!
//! A bisection of space ([`super::order`]) makes groups of equally many nodes, but records differ
//! in length, and the graph shows which nodes are read together. Starling has equally many nodes in
//! each block and equal weights. This module plans pages by bytes, and weighs edges by rank.
//! Consecutive pages stay near each other, because lists compress better if the numbers of
//! neighbours are near each other.
//!
//! Nodes swap only within a *window* (`Stretch`) of consecutive nodes, which one thread processes,
//! so the result does not depend on the number of threads.

use super::GraphError;
use super::construct::Lists;
use crate::progress::{Progress, Stage};
use crate::threads;

/// The number of nodes in a window. With 4 Ki nodes, half of the gain is lost.
const STRETCH: usize = 128 << 10;
const LEAST_STRETCH: usize = 1 << 10;
/// The bytes for each node: outgoing and incoming edges, about [`RANKS`] each, and tables.
const NODE_BYTES: u64 = 2 * 4 * RANKS as u64 + 36;
/// The number of nearest neighbours of a node whose edges have a weight.
const RANKS: usize = 32;
/// The most rounds over all nodes, and the share of the nodes that must move for another round.
const ROUNDS: usize = 5;
const WORTH_A_ROUND: f64 = 0.002;
/// An edge is one word: the lowest bits are the weight, and the bits above are the position of the
/// neighbour in the window.
const WEIGHT_BITS: u32 = 11;
/// The weight of an edge to the nearest neighbour.
const HEAVIEST: f64 = 1024.0;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Filling<'a> {
    pub(crate) sizes: &'a [u32],
    pub(crate) room: u32,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Shuffled {
    /// For each node of the new order, its number in the old order.
    pub(crate) was: Vec<u32>,
    /// The first node of each page, in the new order.
    pub(crate) firsts: Vec<u32>,
}

/// The number of nodes in a window, and the number of windows that are processed at once.
fn stretches(memory: Option<u64>, threads: usize) -> (usize, usize) {
    let Some(cap) = memory else {
        return (STRETCH, threads);
    };
    // A repeated build must give the same graph, so the numbers do not depend on free memory.
    let nodes = (cap / 8 / NODE_BYTES) as usize;
    let stretch = nodes.clamp(LEAST_STRETCH, STRETCH);
    (stretch, threads.min(nodes / stretch).max(1))
}

pub(crate) fn shuffle(
    lists: &mut Lists,
    filling: Filling<'_>,
    memory: Option<u64>,
    threads: usize,
    progress: &dyn Progress,
) -> Result<Shuffled, GraphError> {
    let nodes = filling.sizes.len();
    let (stretch, at_once) = stretches(memory, threads.max(1));
    let _stage = Stage::begin(
        progress,
        "pages, choosing their nodes",
        (nodes * ROUNDS) as u64,
    );
    let mut shuffled = Shuffled {
        was: Vec::with_capacity(nodes),
        firsts: Vec::new(),
    };
    let mut first = 0;
    while first < nodes {
        let mut work = Vec::with_capacity(at_once);
        while work.len() < at_once && first < nodes {
            let end = nodes.min(first + stretch);
            let end = if nodes - end < stretch / 4 {
                nodes
            } else {
                end
            };
            work.push(Stretch::of(lists, filling, first, end)?);
            first = end;
        }
        let done = threads::shared(work.into_iter(), |mut stretch| {
            stretch.settle(progress).then_some(stretch)
        });
        for stretch in done {
            stretch
                .ok_or(GraphError::Interrupted)?
                .append(&mut shuffled);
        }
    }
    Ok(shuffled)
}

/// A window of nodes that may swap pages. The number of a node is its position in the window.
struct Stretch {
    first: u32,
    room: u32,
    /// The position in `edges` at which the edges of each node begin, in both directions, and the
    /// end of the last node's edges.
    offsets: Vec<u32>,
    edges: Vec<u32>,
    page_of: Vec<u32>,
    pages: Vec<Page>,
    standings: Vec<Standing>,
    /// `of_node` has, for each page, the weight of the current node's edges to this page. `touched`
    /// has the pages with such a weight.
    of_node: Vec<u32>,
    touched: Vec<u32>,
}

#[derive(Clone, Copy)]
struct Standing {
    size: u32,
    /// The weight of the node's edges to its own page.
    own: u32,
    /// The weight of the node's edges to the current page, and to the current node.
    to_page: u32,
    to_node: u32,
}

#[derive(Default)]
struct Page {
    nodes: Vec<u32>,
    bytes: u32,
}

fn weight(rank: usize) -> u32 {
    (HEAVIEST / ((rank + 1) as f64).sqrt()) as u32
}

fn unpacked(edge: u32) -> (u32, u32) {
    (edge >> WEIGHT_BITS, edge & ((1 << WEIGHT_BITS) - 1))
}

impl Stretch {
    fn of(
        lists: &mut Lists,
        filling: Filling<'_>,
        first: usize,
        end: usize,
    ) -> Result<Self, GraphError> {
        let nodes = end - first;
        let sizes = &filling.sizes[first..end];
        let within = |neighbour: u32| {
            (neighbour as usize)
                .checked_sub(first)
                .filter(|&at| at < nodes)
        };
        let mut list = Vec::new();
        let mut offsets = vec![0u32; nodes + 1];
        for node in 0..nodes {
            lists.read((first + node) as u32, &mut list)?;
            for other in list.iter().take(RANKS).filter_map(|&other| within(other)) {
                offsets[node] += 1;
                offsets[other] += 1;
            }
        }
        // At first, each offset is the end of its node's edges. Each stored edge then lowers the
        // offset.
        let mut all = 0;
        for offset in &mut offsets {
            all += *offset;
            *offset = all;
        }
        let mut edges = vec![0; all as usize];
        let mut put = |offsets: &mut [u32], node: usize, other: usize, rank: usize| {
            offsets[node] -= 1;
            edges[offsets[node] as usize] = (other as u32) << WEIGHT_BITS | weight(rank);
        };
        for node in 0..nodes {
            lists.read((first + node) as u32, &mut list)?;
            for (rank, &other) in list.iter().take(RANKS).enumerate() {
                if let Some(other) = within(other) {
                    put(&mut offsets, node, other, rank);
                    put(&mut offsets, other, node, rank);
                }
            }
        }
        let mut pages: Vec<Page> = Vec::new();
        let mut page_of = Vec::with_capacity(nodes);
        for (node, &size) in (0..).zip(sizes) {
            match pages.last_mut() {
                Some(page) if page.bytes + size <= filling.room => {
                    page.nodes.push(node);
                    page.bytes += size;
                }
                _ => pages.push(Page {
                    nodes: vec![node],
                    bytes: size,
                }),
            }
            page_of.push(pages.len() as u32 - 1);
        }
        let mut stretch = Self {
            first: first as u32,
            room: filling.room,
            offsets,
            edges,
            page_of,
            standings: (sizes.iter())
                .map(|&size| Standing {
                    size,
                    own: 0,
                    to_page: 0,
                    to_node: 0,
                })
                .collect(),
            of_node: vec![0; pages.len()],
            touched: Vec::new(),
            pages,
        };
        for node in 0..nodes as u32 {
            let page = stretch.page_of[node as usize];
            let own = stretch
                .edges_of(node)
                .filter(|&(other, _)| stretch.page_of[other as usize] == page);
            stretch.standings[node as usize].own = own.map(|(_, weight)| weight).sum();
        }
        Ok(stretch)
    }

    fn edges_of(&self, node: u32) -> impl Iterator<Item = (u32, u32)> + use<'_> {
        let node = node as usize;
        let range = self.offsets[node] as usize..self.offsets[node + 1] as usize;
        self.edges[range].iter().map(|&edge| unpacked(edge))
    }

    fn settle(&mut self, progress: &dyn Progress) -> bool {
        let nodes = self.page_of.len();
        for round in 0..ROUNDS {
            let mut moved = 0;
            for page in 0..self.pages.len() as u32 {
                moved += self.improve(page);
                progress.advance(self.pages[page as usize].nodes.len() as u64);
                if progress.interrupted() {
                    return false;
                }
            }
            if (moved as f64) < WORTH_A_ROUND * nodes as f64 {
                progress.advance(((ROUNDS - 1 - round) * nodes) as u64);
                break;
            }
        }
        true
    }

    /// Moves each node of a page to the page with the largest gain in weight. Returns the number of
    /// moved nodes.
    fn improve(&mut self, page: u32) -> usize {
        let mut near: Vec<u32> = Vec::new();
        for at in 0..self.pages[page as usize].nodes.len() {
            let node = self.pages[page as usize].nodes[at];
            self.add_to_page(node, true, &mut near);
        }
        let (mut at, mut moved) = (0, 0);
        while let Some(&node) = self.pages[page as usize].nodes.get(at) {
            match self.best(node, page) {
                Some((other_page, other)) => {
                    self.change_places(node, page, other_page, other);
                    self.add_to_page(node, false, &mut near);
                    // Without a swap, the last node of the page moves to `at`, so `at` stays.
                    if let Some(other) = other {
                        self.add_to_page(other, true, &mut near);
                        at += 1;
                    }
                    moved += 1;
                }
                None => at += 1,
            }
        }
        for node in near {
            self.standings[node as usize].to_page = 0;
        }
        moved
    }

    /// Updates the weights between the current page and the neighbours of `node`.
    fn add_to_page(&mut self, node: u32, add: bool, near: &mut Vec<u32>) {
        let range = self.offsets[node as usize] as usize..self.offsets[node as usize + 1] as usize;
        for &edge in &self.edges[range] {
            let (other, weight) = unpacked(edge);
            let sum = &mut self.standings[other as usize].to_page;
            if add {
                if *sum == 0 {
                    near.push(other);
                }
                *sum += weight;
            } else {
                *sum -= weight;
            }
        }
    }

    /// Returns the best page for `node`, and the node to swap with, or `None` if the page has
    /// space.
    fn best(&mut self, node: u32, page: u32) -> Option<(u32, Option<u32>)> {
        let range = self.offsets[node as usize] as usize..self.offsets[node as usize + 1] as usize;
        self.touched.clear();
        for &edge in &self.edges[range.clone()] {
            let (other, weight) = unpacked(edge);
            self.standings[other as usize].to_node += weight;
            let there = self.page_of[other as usize];
            let sum = &mut self.of_node[there as usize];
            if *sum == 0 {
                self.touched.push(there);
            }
            *sum += weight;
        }
        let Standing { size, own, .. } = self.standings[node as usize];
        let (own, room) = (i64::from(own), self.room);
        let here = &self.pages[page as usize];
        let (mut most, mut best) = (0, None);
        for &there in &self.touched {
            let gain = i64::from(self.of_node[there as usize]) - own;
            if there == page || gain <= 0 {
                continue;
            }
            let target = &self.pages[there as usize];
            if gain > most && target.bytes + size <= room {
                (most, best) = (gain, Some((there, None)));
            }
            for &other in &target.nodes {
                let its = self.standings[other as usize];
                let gain =
                    gain + i64::from(its.to_page) - i64::from(its.own) - 2 * i64::from(its.to_node);
                if gain <= most {
                    continue;
                }
                if target.bytes + size - its.size <= room && here.bytes + its.size - size <= room {
                    (most, best) = (gain, Some((there, Some(other))));
                }
            }
        }
        for &edge in &self.edges[range] {
            self.standings[unpacked(edge).0 as usize].to_node = 0;
        }
        for &there in &self.touched {
            self.of_node[there as usize] = 0;
        }
        best
    }

    /// Moves `node` to the page `there`, and `other`, if given, to the page `here`.
    fn change_places(&mut self, node: u32, here: u32, there: u32, other: Option<u32>) {
        self.put(node, here, there);
        let from = &mut self.pages[here as usize].nodes;
        let at = from.iter().position(|&on| on == node).unwrap_or_default();
        match other {
            Some(other) => {
                from[at] = other;
                let to = &mut self.pages[there as usize].nodes;
                let place = to.iter().position(|&on| on == other).unwrap_or_default();
                to[place] = node;
                self.put(other, there, here);
            }
            None => {
                from.swap_remove(at);
                self.pages[there as usize].nodes.push(node);
            }
        }
    }

    fn put(&mut self, node: u32, from: u32, to: u32) {
        self.page_of[node as usize] = to;
        let size = self.standings[node as usize].size;
        self.pages[from as usize].bytes -= size;
        self.pages[to as usize].bytes += size;
        let range = self.offsets[node as usize] as usize..self.offsets[node as usize + 1] as usize;
        let mut own = 0;
        for &edge in &self.edges[range] {
            let (other, weight) = unpacked(edge);
            let page = self.page_of[other as usize];
            if page == from {
                self.standings[other as usize].own -= weight;
            } else if page == to {
                self.standings[other as usize].own += weight;
                own += weight;
            }
        }
        self.standings[node as usize].own = own;
    }

    /// The nodes of a page keep their previous order.
    fn append(mut self, shuffled: &mut Shuffled) {
        for page in self.pages.iter_mut().filter(|page| !page.nodes.is_empty()) {
            page.nodes.sort_unstable();
            shuffled.firsts.push(shuffled.was.len() as u32);
            let nodes = page.nodes.iter().map(|&node| self.first + node);
            shuffled.was.extend(nodes);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::graph::adjacency::Slots;
    use crate::graph::construct::ListsAt;
    use crate::graph::random::Random;
    use crate::progress::Silent;

    fn lists(of: &[Vec<u32>]) -> Lists {
        let longest = of.iter().map(Vec::len).max().unwrap_or(0);
        let slots = Slots::new(of.len(), longest.max(1));
        for (node, list) in (0..).zip(of) {
            slots.replace(node, list, &slots.lock(node));
        }
        Lists(ListsAt::Memory(slots.into_graph()))
    }

    fn any_lists(nodes: usize, degree: usize, seed: u64) -> Vec<Vec<u32>> {
        let mut random = Random::new(seed);
        (0..nodes)
            .map(|node| {
                let mut list: Vec<u32> = (0..degree).map(|_| random.below(nodes) as u32).collect();
                list.sort_unstable();
                list.dedup();
                list.retain(|&other| other as usize != node);
                random.shuffle(&mut list);
                list
            })
            .collect()
    }

    fn pages(shuffled: &Shuffled) -> Vec<&[u32]> {
        let ends = shuffled.firsts.iter().skip(1).map(|&first| first as usize);
        let ends = ends.chain([shuffled.was.len()]);
        let firsts = shuffled.firsts.iter().map(|&first| first as usize);
        firsts
            .zip(ends)
            .map(|(first, end)| &shuffled.was[first..end])
            .collect()
    }

    fn kept_together(of: &[Vec<u32>], page_of: &[usize]) -> u64 {
        let edges = of.iter().enumerate().flat_map(|(node, list)| {
            list.iter()
                .take(RANKS)
                .enumerate()
                .map(move |(rank, &other)| (node, other, rank))
        });
        edges
            .filter(|&(node, other, _)| page_of[node] == page_of[other as usize])
            .map(|(_, _, rank)| u64::from(weight(rank)))
            .sum()
    }

    /// The page of each node, if nodes fill pages one after the other.
    fn filled(sizes: &[u32], room: u32) -> Vec<usize> {
        let (mut page, mut bytes) = (0, 0);
        let mut page_of = Vec::new();
        for &size in sizes {
            if bytes > 0 && bytes + size > room {
                (page, bytes) = (page + 1, 0);
            }
            bytes += size;
            page_of.push(page);
        }
        page_of
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn every_node_has_a_page_with_room_for_it_and_no_page_is_added(
            nodes in 1usize..400,
            degree in 0usize..12,
            sizes in prop::collection::vec(1u32..120, 400),
            room in 120u32..600,
            seed: u64,
        ) {
            let (of, sizes) = (any_lists(nodes, degree, seed), &sizes[..nodes]);
            let filling = Filling { sizes, room };
            let found = shuffle(&mut lists(&of), filling, None, 1, &Silent).unwrap();
            let mut seen = found.was.clone();
            seen.sort_unstable();
            prop_assert_eq!(seen, (0..nodes as u32).collect::<Vec<_>>());
            let before = filled(sizes, room);
            let mut page_of = vec![0; nodes];
            for (page, on) in pages(&found).into_iter().enumerate() {
                prop_assert!(!on.is_empty());
                let bytes: u32 = on.iter().map(|&node| sizes[node as usize]).sum();
                prop_assert!(bytes <= room, "{} of {}", bytes, room);
                on.iter().for_each(|&node| page_of[node as usize] = page);
            }
            prop_assert!(found.firsts.len() <= before[nodes - 1] + 1);
            prop_assert!(kept_together(&of, &page_of) >= kept_together(&of, &before));
        }
    }

    #[test]
    fn nodes_that_are_neighbours_come_together() {
        // At first, every page has one node of each of eight neighbourhoods.
        let (hoods, size) = (64u32, 8u32);
        let of: Vec<Vec<u32>> = (0..hoods * size)
            .map(|node| {
                let others = (0..size).map(|i| node % hoods + i * hoods);
                others.filter(|&other| other != node).collect()
            })
            .collect();
        let sizes: Vec<u32> = (0..hoods * size).map(|node| 100 + node % 3).collect();
        let filling = Filling {
            sizes: &sizes,
            room: 8 * 102,
        };
        let found = shuffle(&mut lists(&of), filling, None, 1, &Silent).unwrap();
        let together = |on: &&[u32]| on.iter().all(|node| node % hoods == on[0] % hoods);
        let whole = pages(&found).iter().filter(|on| together(on)).count();
        assert!(
            whole >= 56,
            "{whole} of {hoods} neighbourhoods share a page"
        );
    }

    #[test]
    fn threads_change_nothing_and_memory_is_what_stretches_are_cut_by() {
        let nodes = 5_000;
        let of = any_lists(nodes, 10, 3);
        let sizes: Vec<u32> = (0..nodes as u32).map(|node| 80 + node % 40).collect();
        let filling = Filling {
            sizes: &sizes,
            room: 1_000,
        };
        let with =
            |memory, threads| shuffle(&mut lists(&of), filling, memory, threads, &Silent).unwrap();
        assert_eq!(stretches(Some(1), 8), (LEAST_STRETCH, 1));
        assert_eq!(stretches(Some(8 * NODE_BYTES * 4_096), 8), (4_096, 1));
        assert_eq!(stretches(Some(1 << 40), 8), (STRETCH, 8));
        assert_eq!(stretches(None, 3), (STRETCH, 3));
        assert_eq!(with(None, 1), with(None, 4));
        let little = Some(8 * NODE_BYTES * LEAST_STRETCH as u64);
        let one = with(little, 1);
        assert_eq!(one, with(little, 4));
        assert_ne!(one, with(None, 1));
        let stays =
            |(now, &was): (usize, &u32)| now / LEAST_STRETCH == was as usize / LEAST_STRETCH;
        assert!(
            one.was
                .iter()
                .enumerate()
                .take(4 * LEAST_STRETCH)
                .all(stays)
        );
    }

    #[test]
    fn it_stops_when_it_is_told_to() {
        struct Stopped;
        impl Progress for Stopped {
            fn begin(&self, _: &str, _: u64) {}
            fn advance(&self, _: u64) {}
            fn end(&self) {}
            fn interrupted(&self) -> bool {
                true
            }
            fn warn(&self, _: &str) {}
        }
        let of = any_lists(100, 5, 1);
        let filling = Filling {
            sizes: &[50; 100],
            room: 400,
        };
        let stopped = shuffle(&mut lists(&of), filling, None, 1, &Stopped);
        assert!(matches!(stopped, Err(GraphError::Interrupted)));
    }
}
