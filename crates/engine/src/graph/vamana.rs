//! The Vamana build: each node searches for itself in the growing graph, and chooses neighbours
//! among the nodes that the search met. The chosen neighbours get links back.
//!
//! ```text
//!   pass 1   small list and degree, alpha 1:  an empty graph grows from the entry, in random
//!                                             shares of the nodes
//!   pass 2   full parameters:                 every node again, in a graph of all nodes;
//!                                             blocks of consecutive ids in random order
//!   finish   lists longer than R are pruned; equal rows are linked (`equal.rs`), and nodes
//!            that cannot be reached (`reach.rs`)
//! ```
//!
//! Links back are stored in spare slots. The second pass fills every list up to R, because an SSD
//! read returns all slots anyway. On photo-sift-100k with a list size of 10, recall@10 is .985 at
//! 23.7 reads with full lists, and .964 at 25.1 reads without full lists.

use super::adjacency::{Graph, Slots};
use super::greedy::{Candidate, Search};
use super::kept::{KeptLists, Reached};
use super::points::Points;
use super::prune::{Pruner, Rule};
use super::random::Random;
use super::{GraphError, Interrupted, Known, Parameters, equal, reach};
use crate::progress::{Progress, Stage};
use crate::threads;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};

const BATCH: usize = 128;

const POOL: usize = 500;

/// The slots of a node during the build, as a multiple of R. More slots mean longer scans, but
/// fewer prunes. The factors 1.3 and 1.5 take the same CPU time.
const SLACK: f64 = 1.3;

/// The list size and the degree of the first pass, as shares of the full parameters.
const FIRST_LIST: f64 = 0.4;
const FIRST_DEGREE: f64 = 0.5;

/// The number of random shares of nodes in the first pass. Nodes of a share ascend, so consecutive
/// searches meet the same rows, which saves a fifth to a third of the time.
const WINDOWS: usize = 16;

/// The number of consecutive nodes that the second pass inserts in order. The searches for these
/// nodes meet the same rows and lists, which are then in the cache.
const BLOCK: usize = 1024;

struct Pass {
    number: u32,
    stage: &'static str,
    list: usize,
    rule: Rule,
}

pub(super) fn slots_for(degree: usize) -> usize {
    (degree as f64 * SLACK).ceil() as usize
}

/// Builds the graph of all points from `entry` ([`medoid`](super::medoid)), reproducibly with one
/// thread.
#[cfg(test)]
pub fn build(
    points: &Points<'_>,
    entry: u32,
    parameters: &Parameters,
    progress: &dyn Progress,
) -> Result<Graph, Interrupted> {
    build_kept(points, entry, parameters, None, progress)
}

/// Builds, and saves the lists from time to time, in case the build is killed.
pub(super) fn build_kept(
    points: &Points<'_>,
    entry: u32,
    parameters: &Parameters,
    kept: Option<KeptLists<'_>>,
    progress: &dyn Progress,
) -> Result<Graph, Interrupted> {
    let slots = Slots::new(points.rows(), slots_for(parameters.degree.max(1)));
    build_in(points, &slots, entry, parameters, "", kept, progress)?;
    Ok(slots.into_graph())
}

pub(super) fn build_in(
    points: &Points<'_>,
    slots: &Slots,
    entry: u32,
    parameters: &Parameters,
    part: &str,
    kept: Option<KeptLists<'_>>,
    progress: &dyn Progress,
) -> Result<(), Interrupted> {
    if points.rows() < 2 {
        return Ok(());
    }
    let growing = Growing {
        points,
        slots,
        entry,
        parameters,
        part,
        kept,
        progress,
    };
    let reached = kept.map_or_else(Reached::default, |kept| kept.take_up(slots));
    if reached == Reached::END {
        drop(Stage::begin(
            progress,
            &format!("{part}graph, from savepoint"),
            0,
        ));
        growing.resumed(format!("{part}graph"));
        return Ok(());
    }
    let degree = parameters.degree.max(1);
    let share = |full: usize, share: f64, least: usize| {
        ((full as f64 * share) as usize).max(least.min(full))
    };
    let first = Pass {
        number: 0,
        stage: "graph, pass 1 of 2",
        list: share(parameters.build_list, FIRST_LIST, 20),
        rule: Rule {
            degree: share(degree, FIRST_DEGREE, 8),
            alpha: 1.0,
            saturate: false,
        },
    };
    let second = full_pass("graph, pass 2 of 2", parameters);
    let mut turn: Vec<u32> = (0..points.rows() as u32).collect();
    if let Some(from) = reached.within(first.number) {
        Random::derived(parameters.seed, 1).shuffle(&mut turn);
        for window in turn.chunks_mut(points.rows().div_ceil(WINDOWS)) {
            window.sort_unstable();
        }
        growing.pass(&first, &turn, from)?;
    }
    if let Some(from) = reached.within(second.number) {
        block_order(&mut turn, &mut Random::derived(parameters.seed, 2));
        growing.pass(&second, &turn, from)?;
    }
    drop(turn);
    finish(points, slots, entry, &second, parameters, part, progress)?;
    if let Some(kept) = kept {
        kept.keep(slots, Reached::END, progress);
    }
    Ok(())
}

const TRIED: u64 = 512;

struct Growing<'a> {
    points: &'a Points<'a>,
    slots: &'a Slots,
    entry: u32,
    parameters: &'a Parameters,
    part: &'a str,
    kept: Option<KeptLists<'a>>,
    progress: &'a dyn Progress,
}

impl Growing<'_> {
    /// Makes a pass over `turn` from position `from`. The threads pause to save the lists.
    fn pass(&self, pass: &Pass, turn: &[u32], mut from: usize) -> Result<(), Interrupted> {
        let mut stage = format!("{}{}", self.part, pass.stage);
        if from > 0 {
            let percent = from * 100 / turn.len();
            self.resumed(format!("{stage}: {percent} %"));
            stage = format!("{stage}, resumed after {percent} %");
        }
        let _stage = Stage::begin(self.progress, &stage, (turn.len() - from) as u64);
        let pause = || self.kept.is_some_and(|kept| kept.are_due());
        let worker = || Worker::new(self.points, self.slots, self.entry, pass);
        while from < turn.len() {
            let (threads, progress) = (self.parameters.threads, self.progress);
            let items = from..turn.len();
            let done = in_batches(items, threads, progress, pause, worker, |worker, range| {
                for &node in &turn[range] {
                    worker.insert(node);
                }
            });
            from = done.reached;
            // If the build is stopped, a later build resumes from this node.
            let is_wanted = done.stopped || from < turn.len();
            if let Some(kept) = self.kept.filter(|kept| is_wanted || kept.are_due()) {
                let reached = Reached {
                    pass: pass.number,
                    nodes: from,
                };
                kept.keep(self.slots, reached, progress);
            }
            if done.stopped {
                return Err(Interrupted);
            }
        }
        Ok(())
    }

    /// Inserts a node of a sample again if the node has an incoming edge, but a search for the node
    /// does not find it.
    fn link_lost(&self, pass: &Pass, is_in: impl Fn(u32) -> bool) -> Result<(), Interrupted> {
        let mut worker = Worker::new(self.points, self.slots, self.entry, pass);
        let nodes = self.points.rows() as u64;
        let tried = nodes.min(TRIED);
        for n in 0..tried {
            if self.progress.interrupted() {
                return Err(Interrupted);
            }
            let node = (n * nodes / tried) as u32;
            if is_in(node) && !worker.finds(node) {
                worker.insert(node);
            }
        }
        Ok(())
    }

    fn resumed(&self, what: String) {
        if let Some(kept) = self.kept {
            kept.savepoints.resumed(what);
        }
    }
}

fn full_pass(stage: &'static str, parameters: &Parameters) -> Pass {
    Pass {
        number: 1,
        stage,
        list: parameters.build_list,
        rule: Rule {
            degree: parameters.degree.max(1),
            alpha: parameters.alpha.max(1.0),
            saturate: true,
        },
    }
}

/// Extends a graph of some points by the other points. Node numbers are positions in `order`, but
/// `known` has row numbers.
pub(super) fn grow(
    points: &Points<'_>,
    order: &[u32],
    known: &dyn Known,
    entry: u32,
    parameters: &Parameters,
    progress: &dyn Progress,
) -> Result<Graph, GraphError> {
    let slots = Slots::new(points.rows(), slots_for(parameters.degree.max(1)));
    let mut node_of = vec![0; order.len()];
    for (node, &row) in order.iter().enumerate() {
        node_of[row as usize] = node as u32;
    }
    let mut list = Vec::new();
    let stage = Stage::begin(progress, "graph, existing lists", known.rows() as u64);
    known.each(&mut |row, neighbours| {
        let node = node_of[row as usize];
        list.clear();
        list.extend(neighbours.iter().map(|&row| node_of[row as usize]));
        list.truncate(slots.slots());
        slots.replace(node, &list, &slots.lock(node));
        progress.advance(1);
    })?;
    drop((stage, node_of));
    let alone = |&node: &u32| slots.neighbours(node).next().is_none();
    let turn: Vec<u32> = (0..points.rows() as u32).filter(alone).collect();
    let pass = full_pass("graph, new vectors", parameters);
    let growing = |entry| Growing {
        points,
        slots: &slots,
        entry,
        parameters,
        part: "",
        kept: None,
        progress,
    };
    let link_known = |from| {
        let nodes = (0..points.rows() as u32).filter(|node| !alone(node));
        link_from(points, &slots, from, nodes, &pass, parameters);
    };
    // The edge to a pruned neighbour may have been the only link to a dense cluster. New vectors
    // would then form a separate cluster beside this cluster.
    let known = (0..points.rows() as u32).find(|node| !alone(node));
    if let Some(known) = known.filter(|_| alone(&entry)) {
        // All searches start at the entry, so a new entry needs neighbours first.
        link_known(known);
        growing(known).pass(&pass, &[entry], 0)?;
    }
    link_known(entry);
    let growing = growing(entry);
    // A dense cluster may have incoming edges that no search follows.
    growing.link_lost(&pass, |node| !alone(&node))?;
    growing.pass(&pass, &turn, 0)?;
    // If several threads insert similar nodes, the searches of one thread miss the nodes of the
    // others.
    growing.link_lost(&pass, |_| true)?;
    finish(points, &slots, entry, &pass, parameters, "", progress)?;
    Ok(slots.into_graph())
}

fn finish(
    points: &Points<'_>,
    slots: &Slots,
    entry: u32,
    pass: &Pass,
    parameters: &Parameters,
    part: &str,
    progress: &dyn Progress,
) -> Result<(), Interrupted> {
    let stage = format!("{part}graph, final links");
    let _stage = Stage::begin(progress, &stage, points.rows() as u64);
    trim(points, slots, &pass.rule, parameters.threads, progress)?;
    let link_all = || {
        link_from(
            points,
            slots,
            entry,
            0..points.rows() as u32,
            pass,
            parameters,
        )
    };
    link_all();
    if equal::link(
        points,
        slots,
        pass.rule.degree,
        parameters.threads,
        progress,
    )? {
        link_all();
    }
    Ok(())
}

/// Links each unreachable node of `nodes` from nodes that a search for it finds.
fn link_from(
    points: &Points<'_>,
    slots: &Slots,
    entry: u32,
    nodes: impl Iterator<Item = u32>,
    pass: &Pass,
    parameters: &Parameters,
) {
    let (mut search, all) = (None, points.rows());
    let Ok(_) = reach::link_unreachable(slots, (all, nodes), entry, pass.rule.degree, |node| {
        let search = search.get_or_insert_with(|| Search::new(all));
        search.run(
            points,
            slots,
            points.row(node),
            entry,
            parameters.build_list,
        );
        search.nearest().map(|near| near.id).collect()
    });
}

/// Fills `turn` with all node numbers, as blocks of consecutive numbers in random order.
fn block_order(turn: &mut [u32], random: &mut Random) {
    let rows = turn.len();
    // With few blocks, the order would hardly be random.
    let block = BLOCK.min(rows.div_ceil(64)).max(1);
    let mut blocks: Vec<u32> = (0..rows.div_ceil(block) as u32).collect();
    random.shuffle(&mut blocks);
    let ids = blocks.iter().flat_map(|&index| {
        let start = index as usize * block;
        start as u32..rows.min(start + block) as u32
    });
    for (place, id) in turn.iter_mut().zip(ids) {
        *place = id;
    }
}

fn trim(
    points: &Points<'_>,
    slots: &Slots,
    rule: &Rule,
    threads: usize,
    progress: &dyn Progress,
) -> Result<(), Interrupted> {
    let scratch = || (Pruner::new(), Vec::new(), Vec::new());
    let done = in_batches(
        0..points.rows(),
        threads,
        progress,
        || false,
        scratch,
        |(pruner, current, distances), range| {
            for node in range.start as u32..range.end as u32 {
                current.clear();
                current.extend(slots.neighbours(node));
                pruner.pool.clear();
                extend_pool(&mut pruner.pool, points, node, current, distances);
                if current.len() > rule.degree {
                    current.clear();
                    current.extend_from_slice(pruner.prune(points, node, rule));
                    pruner
                        .pool
                        .retain(|candidate| current.contains(&candidate.id));
                }
                pruner.pool.sort_unstable_by(Candidate::order);
                current.clear();
                current.extend(pruner.pool.iter().map(|candidate| candidate.id));
                slots.replace(node, current, &slots.lock(node));
            }
        },
    );
    match done.stopped {
        true => Err(Interrupted),
        false => Ok(()),
    }
}

struct Done {
    /// The first item that no thread has taken. All earlier items are done.
    reached: usize,
    stopped: bool,
}

/// Lets threads take batches of `items`, until a pause is due or the caller stops the work.
fn in_batches<W>(
    items: Range<usize>,
    threads: usize,
    progress: &dyn Progress,
    pause: impl Fn() -> bool + Sync,
    worker: impl Fn() -> W + Sync,
    work: impl Fn(&mut W, Range<usize>) + Sync,
) -> Done {
    let next = AtomicUsize::new(items.start);
    let (pausing, stop) = (AtomicBool::new(false), AtomicBool::new(false));
    let run = |_| {
        let mut worker = worker();
        while !pausing.load(Relaxed) && !stop.load(Relaxed) {
            let start = next.fetch_add(BATCH, Relaxed);
            if start >= items.end {
                break;
            }
            let end = items.end.min(start + BATCH);
            work(&mut worker, start..end);
            progress.advance((end - start) as u64);
            if progress.interrupted() {
                stop.store(true, Relaxed);
            }
            if pause() {
                pausing.store(true, Relaxed);
            }
        }
    };
    threads::shared(0..threads.max(1), run);
    Done {
        reached: next.into_inner().min(items.end),
        stopped: stop.into_inner(),
    }
}

struct Worker<'a> {
    points: &'a Points<'a>,
    slots: &'a Slots,
    entry: u32,
    pass: &'a Pass,
    search: Search,
    pruner: Pruner,
    current: Vec<u32>,
    chosen: Vec<u32>,
    distances: Vec<f32>,
}

impl<'a> Worker<'a> {
    fn new(points: &'a Points<'a>, slots: &'a Slots, entry: u32, pass: &'a Pass) -> Worker<'a> {
        Worker {
            points,
            slots,
            entry,
            pass,
            search: Search::new(points.rows()),
            pruner: Pruner::new(),
            current: Vec::new(),
            chosen: Vec::new(),
            distances: Vec::new(),
        }
    }

    /// Whether a search for `node` finds the node, or another row at the same distance.
    fn finds(&mut self, node: u32) -> bool {
        let vector = self.points.row(node);
        self.search
            .run(self.points, self.slots, vector, self.entry, self.pass.list);
        self.distances.resize(1, 0.0);
        self.points.distances(vector, &[node], &mut self.distances);
        let nearest = self.search.nearest().next();
        nearest.is_some_and(|nearest| nearest.distance <= self.distances[0])
    }

    fn insert(&mut self, node: u32) {
        let Worker {
            points,
            slots,
            entry,
            pass,
            search,
            pruner,
            current,
            chosen,
            distances,
        } = self;
        search.run(points, slots, points.row(node), *entry, pass.list);
        pruner.pool.clear();
        pruner.pool.extend_from_slice(&search.expanded);
        if pruner.pool.len() > POOL {
            pruner.pool.select_nth_unstable_by(POOL, Candidate::order);
            pruner.pool.truncate(POOL);
        }
        current.clear();
        current.extend(slots.neighbours(node));
        extend_pool(&mut pruner.pool, points, node, current, distances);
        chosen.clear();
        chosen.extend_from_slice(pruner.prune(points, node, &pass.rule));
        slots.replace(node, chosen, &slots.lock(node));
        for &neighbour in chosen.iter() {
            let lock = slots.lock(neighbour);
            if !slots.append(neighbour, node, &lock) {
                current.clear();
                current.extend(slots.neighbours(neighbour));
                current.push(node);
                pruner.pool.clear();
                extend_pool(&mut pruner.pool, points, neighbour, current, distances);
                slots.replace(
                    neighbour,
                    pruner.prune(points, neighbour, &pass.rule),
                    &lock,
                );
            }
        }
    }
}

fn extend_pool(
    pool: &mut Vec<Candidate>,
    points: &Points<'_>,
    node: u32,
    ids: &[u32],
    distances: &mut Vec<f32>,
) {
    distances.resize(ids.len(), 0.0);
    points.distances(points.row(node), ids, distances);
    pool.extend(
        ids.iter()
            .zip(distances.iter())
            .map(|(&id, &distance)| Candidate { distance, id }),
    );
}
