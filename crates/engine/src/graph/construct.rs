//! Builds a graph from a source of vectors: order, rows, lists and entry node. If the graph does
//! not fit under the memory cap, the graph is built in parts (`partition.rs`).

use super::adjacency::{Graph, Slots};
use super::budget;
use super::greedy::Search;
use super::kept::{self, KeptLists};
use super::partition;
use super::points::Points;
use super::reach::Store;
use super::rows::Rows;
use super::scratch::{Scratch, ScratchFile};
use super::space::Space;
use super::vamana::{build_kept, grow, slots_for};
use super::{GraphError, Known, Parameters, locality_order, medoid};
use crate::data::{Check, DataError, Matrix, VectorSource, check_rows, room_for};
use crate::progress::{Progress, Stage};
use crate::savepoint::Savepoints;
use crate::threads;
use std::path::Path;
use std::time::Instant;
use stratann_tier::ask_for_memory;
use stratann_vector::Metric;

/// The order of the nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// The nodes have the order of the rows, so row numbers are node numbers.
    Input,
    /// Near rows get near node numbers, and groups of near rows end at page boundaries.
    Locality {
        /// The number of nodes on a page, at least 1.
        page: usize,
    },
}

/// The input and the limits of [`construct`].
#[derive(Clone, Copy, Debug)]
pub struct Task<'a> {
    /// The metric of the graph.
    pub metric: Metric,
    /// The order of the nodes.
    pub order: Order,
    /// R, L, alpha, the number of threads, and the seed.
    pub parameters: &'a Parameters,
    /// The largest number of resident bytes of the whole process. `None` means no limit.
    pub memory: Option<u64>,
    /// An existing folder for scratch files, needed only by a build in parts.
    pub scratch: &'a Path,
    /// A known graph of the first rows. These rows keep their lists. A build in parts ignores this
    /// graph.
    pub known: Option<&'a dyn Known>,
    pub(crate) check: Check,
    /// Savepoints, for a build that may be killed. A build from a known graph ignores savepoints.
    pub(crate) savepoints: Option<&'a Savepoints<'a>>,
    /// The bytes that the caller needs beside the finished graph. With `None`, which is for few
    /// rows, the build does not check whether the system has enough memory.
    pub(crate) afterwards: Option<u64>,
}

/// A graph that was built, and its data.
#[derive(Debug)]
pub struct Constructed {
    /// The row of each node in the source.
    pub order: Vec<u32>,
    /// The rows in the order of the nodes.
    pub rows: Rows,
    /// The adjacency lists in the order of the nodes.
    pub lists: Lists,
    /// The node at which searches start: the row nearest to the mean.
    pub entry: u32,
    /// Statistics of the build.
    pub stats: GraphStats,
}

/// Statistics of a build.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GraphStats {
    /// The number of parts, which is 1 if the graph was built in memory.
    pub parts: usize,
    /// The mean number of neighbours.
    pub degree_mean: f64,
    /// The largest number of neighbours.
    pub degree_max: usize,
    /// The number of directed edges.
    pub edges: u64,
    /// Whether the points were rounded to one byte for each dimension.
    pub rounded: bool,
    /// The name of each stage and its wall-clock time in seconds, in order.
    pub seconds: Vec<(&'static str, f64)>,
}

/// The adjacency lists of all nodes.
#[derive(Debug)]
pub struct Lists(pub(super) ListsAt);

#[derive(Debug)]
pub(super) enum ListsAt {
    Memory(Graph),
    Renamed(Renamed),
    Scratch(ScratchLists),
}

/// A graph in memory whose node numbers differ from the caller's.
#[derive(Debug)]
pub(super) struct Renamed {
    graph: Graph,
    node_of: Vec<u32>,
    row_of: Vec<u32>,
}

/// Each record has the number of neighbours, the neighbours, and unused words up to `degree`.
#[derive(Debug)]
pub(super) struct ScratchLists {
    pub(super) file: ScratchFile,
    pub(super) nodes: usize,
    pub(super) degree: usize,
    /// The position of each node's record. `None` if records are in the order of the nodes.
    pub(super) places: Option<Vec<u32>>,
    /// The present number of each node that the records name. `None` if nodes were not renumbered.
    pub(super) names: Option<Vec<u32>>,
    /// Records that were read ahead, and the position of the first of these records.
    pub(super) window: Vec<u8>,
    pub(super) window_start: usize,
    pub(super) _scratch: Scratch,
}

const WINDOW: usize = 256 << 10;

impl Constructed {
    /// Node `was[i]` gets the number `i`.
    pub(crate) fn renumber(&mut self, was: Vec<u32>) {
        let mut is_now = vec![0; was.len()];
        for (node, &before) in (0..).zip(&was) {
            is_now[before as usize] = node;
        }
        self.order = was
            .iter()
            .map(|&before| self.order[before as usize])
            .collect();
        self.entry = is_now[self.entry as usize];
        match &mut self.rows {
            // Rows of the source are read through `order`, which is already renumbered.
            Rows::Source => {}
            Rows::Memory(rows) => {
                let row_bytes = rows.row_bytes();
                permute(rows.bytes_mut(), row_bytes, &was);
            }
            Rows::Scratch(rows) => rows.places = Some(renumbered(rows.places.as_deref(), &was)),
        }
        let lists = std::mem::replace(&mut self.lists.0, ListsAt::Memory(Graph::default()));
        self.lists.0 = match lists {
            ListsAt::Memory(graph) => ListsAt::Renamed(Renamed {
                graph,
                node_of: was,
                row_of: is_now,
            }),
            ListsAt::Renamed(lists) => ListsAt::Renamed(Renamed {
                graph: lists.graph,
                node_of: renumbered(Some(&lists.node_of), &was),
                row_of: renumbered(Some(&is_now), &lists.row_of),
            }),
            ListsAt::Scratch(mut lists) => {
                lists.names = Some(match &lists.names {
                    None => is_now,
                    Some(names) => renumbered(Some(&is_now), names),
                });
                lists.places = Some(renumbered(lists.places.as_deref(), &was));
                ListsAt::Scratch(lists)
            }
        };
    }
}

fn renumbered(table: Option<&[u32]>, numbers: &[u32]) -> Vec<u32> {
    match table {
        None => numbers.to_vec(),
        Some(table) => numbers.iter().map(|&at| table[at as usize]).collect(),
    }
}

impl Lists {
    /// Replaces `out` by the neighbours of a node. Scratch files should be read in ascending order.
    ///
    /// # Errors
    /// [`GraphError::Scratch`] if the scratch file cannot be read.
    pub fn read(&mut self, node: u32, out: &mut Vec<u32>) -> Result<(), GraphError> {
        out.clear();
        match &mut self.0 {
            ListsAt::Memory(graph) => out.extend_from_slice(graph.neighbours(node)),
            ListsAt::Renamed(lists) => {
                let neighbours = lists.graph.neighbours(lists.node_of[node as usize]);
                out.extend(neighbours.iter().map(|&id| lists.row_of[id as usize]));
            }
            ListsAt::Scratch(lists) => lists.read(node as usize, out)?,
        }
        Ok(())
    }
}

impl ScratchLists {
    fn place(&self, node: usize) -> usize {
        self.places
            .as_ref()
            .map_or(node, |places| places[node] as usize)
    }

    fn read(&mut self, node: usize, out: &mut Vec<u32>) -> Result<(), GraphError> {
        let ahead = if self.places.is_none() {
            WINDOW / ((self.degree + 1) * 4)
        } else {
            1
        };
        self.read_ahead(node, ahead.max(1), out)
    }

    fn read_ahead(
        &mut self,
        node: usize,
        ahead: usize,
        out: &mut Vec<u32>,
    ) -> Result<(), GraphError> {
        let record = (self.degree + 1) * 4;
        let place = self.place(node);
        let held = self.window.len() / record;
        if !(self.window_start..self.window_start + held).contains(&place) {
            let count = ahead.min(self.nodes - place);
            self.window.resize(count * record, 0);
            self.window_start = place;
            self.file
                .read(place as u64 * record as u64, &mut self.window)?;
        }
        let start = (place - self.window_start) * record;
        let mut words = words(&self.window[start..start + record]);
        let degree = words.next().unwrap_or(0) as usize;
        match &self.names {
            None => out.extend(words.take(degree)),
            Some(names) => out.extend(words.take(degree).map(|node| names[node as usize])),
        }
        Ok(())
    }
}

impl Store for ScratchLists {
    type Error = GraphError;

    fn list(&mut self, node: u32, out: &mut Vec<u32>) -> Result<(), GraphError> {
        out.clear();
        // Nodes are read in no particular order here.
        self.read_ahead(node as usize, 1, out)
    }

    fn replace(&mut self, node: u32, neighbours: &[u32]) -> Result<(), GraphError> {
        let record = (self.degree + 1) * 4;
        let mut bytes = Vec::with_capacity(record);
        bytes.extend((neighbours.len() as u32).to_le_bytes());
        bytes.extend(neighbours.iter().flat_map(|word| word.to_le_bytes()));
        self.window.clear();
        self.file
            .write(self.place(node as usize) as u64 * record as u64, &bytes)
    }
}

pub(super) fn words(bytes: &[u8]) -> impl Iterator<Item = u32> {
    bytes
        .chunks_exact(4)
        .map(|word| u32::from_le_bytes([word[0], word[1], word[2], word[3]]))
}

pub(super) struct Clock {
    since: Instant,
    pub(super) seconds: Vec<(&'static str, f64)>,
}

impl Clock {
    pub(super) fn new() -> Clock {
        Clock {
            since: Instant::now(),
            seconds: Vec::new(),
        }
    }

    pub(super) fn lap(&mut self, name: &'static str) {
        self.seconds
            .push((name, self.since.elapsed().as_secs_f64()));
        self.since = Instant::now();
    }
}

/// Builds the graph of the vectors of a source.
///
/// Every row is checked when it is read: no NaN, no infinity, and no zero row under cosine.
///
/// # Errors
/// The memory cap is too low ([`GraphError::Memory`]), a row is wrong, the source cannot be read,
/// or `progress` interrupts.
pub fn construct(
    source: &dyn VectorSource,
    task: &Task<'_>,
    progress: &dyn Progress,
) -> Result<Constructed, GraphError> {
    if source.rows() >= MAX_ROWS {
        return Err(GraphError::Rows {
            rows: source.rows(),
            most: MAX_ROWS - 1,
        });
    }
    let resident = resident_bytes();
    construct_within(
        source,
        task,
        task.memory.map(|memory| memory.saturating_sub(resident)),
        progress,
    )
    .map_err(|error| match (error, task.memory) {
        // `construct_within` counts only the bytes beyond the present memory of the process.
        (GraphError::Memory { least, .. }, Some(given)) => GraphError::Memory {
            given,
            least: resident + least,
        },
        (error, _) => error,
    })
}

/// Builds in `free` bytes beyond the present memory of the process.
pub(super) fn construct_within(
    source: &dyn VectorSource,
    task: &Task<'_>,
    free: Option<u64>,
    progress: &dyn Progress,
) -> Result<Constructed, GraphError> {
    let mut space = Space::new(task.metric, source.element(), source.dim());
    if space.needs_longest() {
        let stage = "measuring vectors";
        for_each_block(source, task, MEASURE, stage, progress, |_, rows| {
            space.measure(rows);
            Ok(())
        })?;
    }
    if let Some(mut trial) = space.trial(source, task.parameters.seed)? {
        let stage = "looking at vectors";
        for_each_block(source, task, MEASURE, stage, progress, |_, rows| {
            space.look(rows, &mut trial);
            Ok(())
        })?;
        space.round(trial.end());
    }
    // Free memory differs from run to run. So a resumed build keeps the parts of its first run.
    let divided = task.savepoints.and_then(kept::plan);
    let in_memory = in_memory_bytes(source, task, &space);
    match free {
        Some(free) if divided.is_some() || free < in_memory => {
            ask(source, task, free)?;
            partition::construct(source, task, space, free, divided, progress)
        }
        _ => {
            let afterwards = task.afterwards.unwrap_or_default().saturating_add(OVERHEAD);
            let later = constructed_bytes(source, task, &space).saturating_add(afterwards);
            ask(source, task, in_memory.max(later))?;
            construct_in_memory(source, task, &space, progress)
        }
    }
}

fn ask(source: &dyn VectorSource, task: &Task<'_>, bytes: u64) -> Result<(), DataError> {
    if task.afterwards.is_none() {
        return Ok(());
    }
    ask_for_memory(
        format!(
            "a build of the {} vectors of {}",
            source.rows(),
            source.name()
        ),
        bytes.saturating_add(threads::stacks(task.parameters.threads)),
        "give the build a smaller memory budget (`--memory`), under which a graph is built in parts",
    )
    .map_err(DataError::Memory)
}

/// The largest number of rows. One bit of a node number marks expanded candidates in a search.
const MAX_ROWS: usize = 1 << 31;

/// The page size of the build's locality order, if the index has input order.
const WORKING_PAGE: usize = 16;

const READ: usize = 4 << 20;

/// The bytes of one read before the memory cap is divided, few enough for any cap.
const MEASURE: usize = 1 << 20;

/// The bytes that do not depend on the rows: stacks, unused memory of the allocator, read buffers.
pub(super) const OVERHEAD: u64 = 6 << 20;

/// Whether rows are in memory beside the points, and are not read from the source again.
fn holds_rows(source: &dyn VectorSource, task: &Task<'_>, space: &Space) -> bool {
    let reads_again = task.order == Order::Input || source.has_random_access();
    !space.is_identity() && !reads_again
}

fn in_memory_bytes(source: &dyn VectorSource, task: &Task<'_>, space: &Space) -> u64 {
    let rows = source.rows() as u64;
    let held = match holds_rows(source, task, space) {
        true => source.row_bytes(),
        false => 0,
    };
    // For each row: the order, its inverse, the offsets of lists, and nodes to visit, in a vector
    // whose capacity doubles.
    let tables = 4 + 4 + 8 + 8;
    rows * (held + space.point_bytes() + tables) as u64
        + Slots::bytes(source.rows(), slots_for(task.parameters.degree))
        + task.parameters.threads as u64 * Search::bytes(source.rows())
        + OVERHEAD
}

/// The bytes in memory after the graph is built: the order, the rows in memory, and the lists with
/// offsets.
fn constructed_bytes(source: &dyn VectorSource, task: &Task<'_>, space: &Space) -> u64 {
    let held = match space.is_identity() || holds_rows(source, task, space) {
        true => source.row_bytes(),
        false => 0,
    };
    source.rows() as u64 * (held + 4 * task.parameters.degree + 4 + 8) as u64
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Needs {
    /// The peak memory of the whole process for a build in memory, in bytes.
    pub(crate) whole: u64,
    /// The lowest memory cap for a build in parts, in bytes.
    pub(crate) least: u64,
    /// The approximate bytes of scratch files in a build in parts.
    pub(crate) scratch: u64,
}

pub(crate) fn needs(
    source: &dyn VectorSource,
    metric: Metric,
    order: Order,
    parameters: &Parameters,
) -> Result<Needs, GraphError> {
    let task = Task {
        metric,
        order,
        parameters,
        memory: None,
        scratch: Path::new(""),
        known: None,
        check: check_rows,
        savepoints: None,
        afterwards: None,
    };
    let mut space = Space::new(metric, source.element(), source.dim());
    if let Some(trial) = space.trial(source, parameters.seed)? {
        // This is an estimate, because only a pass over all rows can decide whether the rows are
        // rounded.
        space.round(trial.end());
    }
    let resident = resident_bytes();
    let point = space.point_bytes();
    let (rows, row_bytes) = (source.rows(), source.row_bytes());
    let whole = in_memory_bytes(source, &task, &space);
    let divided = budget::Plan::new(
        rows,
        point,
        row_bytes,
        space.build_dim(),
        parameters,
        0,
        None,
    );
    let least = divided.err().unwrap_or(0).min(whole);
    // Each row is in two parts, and has a list in each of them.
    let part = point + 4 + 4 * (budget::part_degree(parameters.degree) + 1);
    Ok(Needs {
        whole: resident + whole,
        least: resident + least,
        scratch: (2 * rows * part) as u64,
    })
}

/// The resident bytes of this process, or 8 MiB if the system does not report them.
pub(crate) fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| {
        line.trim()
            .trim_end_matches("kB")
            .trim()
            .parse::<u64>()
            .ok()
    });
    kib.map_or(8 << 20, |kib| kib << 10)
}

pub(super) fn for_each_block(
    source: &dyn VectorSource,
    task: &Task<'_>,
    block_bytes: usize,
    stage: &str,
    progress: &dyn Progress,
    mut each: impl FnMut(usize, &[u8]) -> Result<(), GraphError>,
) -> Result<(), GraphError> {
    let _stage = Stage::begin(progress, stage, source.rows() as u64);
    let row_bytes = source.row_bytes();
    let block_rows = (block_bytes / row_bytes).clamp(1, source.rows());
    let mut buffer = Vec::new();
    for first in (0..source.rows()).step_by(block_rows) {
        let count = block_rows.min(source.rows() - first);
        let rows = match source.in_memory() {
            Some(all) => &all[first * row_bytes..(first + count) * row_bytes],
            None => {
                buffer.resize(count * row_bytes, 0);
                source.read(first, &mut buffer)?;
                &buffer[..]
            }
        };
        (task.check)(source, task.metric, first, rows)?;
        each(first, rows)?;
        progress.advance(count as u64);
        if progress.interrupted() {
            return Err(GraphError::Interrupted);
        }
    }
    Ok(())
}

fn construct_in_memory(
    source: &dyn VectorSource,
    task: &Task<'_>,
    space: &Space,
    progress: &dyn Progress,
) -> Result<Constructed, GraphError> {
    let parameters = task.parameters;
    let mut clock = Clock::new();
    let mut points = room_for(source, space.point_bytes())?;
    let mut own = match holds_rows(source, task, space) {
        true => Some(room_for(source, source.row_bytes())?),
        false => None,
    };
    let stage = "reading vectors";
    for_each_block(source, task, READ, stage, progress, |_, rows| {
        space.append(rows, &mut points);
        if let Some(own) = &mut own {
            own.extend_from_slice(rows);
        }
        Ok(())
    })?;
    clock.lap("read");

    // On a million rows, locality order saves a third of the build's time. The caller still gets
    // the node numbers that it requested.
    let page = match task.order {
        Order::Input => WORKING_PAGE,
        Order::Locality { page } => page,
    };
    let order = in_locality_order(&space.points(&points), task, page, progress);
    permute(&mut points, space.point_bytes(), &order);
    if let Some(own) = &mut own {
        permute(own, source.row_bytes(), &order);
    }
    if progress.interrupted() {
        return Err(GraphError::Interrupted);
    }
    clock.lap("order");

    let (entry, graph) = {
        let points = space.points(&points);
        let entry = medoid(&points, parameters.threads, parameters.seed);
        let graph = match task.known {
            None => {
                let kept = task.savepoints.map(|savepoints| KeptLists {
                    savepoints,
                    input: savepoints.input_of(&[], &order),
                    degree: parameters.degree,
                    part: 0,
                });
                build_kept(&points, entry, parameters, kept, progress)?
            }
            Some(known) => grow(&points, &order, known, entry, parameters, progress)?,
        };
        (entry, graph)
    };
    if space.is_identity() {
        own = Some(points);
    } else {
        drop(points);
    }
    clock.lap("graph");

    let stats = GraphStats {
        parts: 1,
        rounded: space.is_rounded(),
        degree_mean: graph.degree_mean(),
        degree_max: graph.degree_max(),
        edges: graph.edges(),
        seconds: clock.seconds,
    };
    if task.order == Order::Input {
        let mut node_of = vec![0; order.len()];
        for (node, &row) in order.iter().enumerate() {
            node_of[row as usize] = node as u32;
        }
        return Ok(Constructed {
            entry: order[entry as usize],
            lists: Lists(ListsAt::Renamed(Renamed {
                graph,
                node_of,
                row_of: order,
            })),
            order: (0..source.rows() as u32).collect(),
            rows: Rows::Source,
            stats,
        });
    }
    let (rows, dim, element) = (source.rows(), source.dim(), source.element());
    Ok(Constructed {
        order,
        rows: match own {
            Some(own) => Rows::Memory(Matrix::new(own, rows, dim, element)?),
            None => Rows::Source,
        },
        lists: Lists(ListsAt::Memory(graph)),
        entry,
        stats,
    })
}

/// Returns the row of each node in locality order: from a savepoint, or newly computed and then
/// saved.
fn in_locality_order(
    points: &Points<'_>,
    task: &Task<'_>,
    page: usize,
    progress: &dyn Progress,
) -> Vec<u32> {
    let input = task
        .savepoints
        .map(|savepoints| (savepoints, savepoints.input(&[])));
    if let Some(order) = input.and_then(|(kept, input)| kept::order(kept, &input, points.rows())) {
        return order;
    }
    let order = {
        let _stage = Stage::begin(progress, "locality order", 0);
        let (threads, seed) = (task.parameters.threads, task.parameters.seed);
        locality_order(points, page, threads, seed)
    };
    if let Some((savepoints, input)) = input {
        kept::keep_order(savepoints, &input, &order, progress);
    }
    order
}

/// Puts rows into another order, in place: row `order[i]` moves to position `i`.
fn permute(rows: &mut [u8], row_bytes: usize, order: &[u32]) {
    if rows.is_empty() {
        return;
    }
    let mut held = vec![0; row_bytes];
    let mut done = vec![false; order.len()];
    for start in 0..order.len() {
        if done[start] || order[start] as usize == start {
            continue;
        }
        held.copy_from_slice(&rows[start * row_bytes..(start + 1) * row_bytes]);
        let mut to = start;
        loop {
            done[to] = true;
            let from = order[to] as usize;
            if from == start {
                rows[to * row_bytes..(to + 1) * row_bytes].copy_from_slice(&held);
                break;
            }
            rows.copy_within(from * row_bytes..(from + 1) * row_bytes, to * row_bytes);
            to = from;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::permute;
    use crate::graph::random::Random;

    #[test]
    fn permuting_in_place_is_gathering() {
        for rows in [1, 2, 7, 100] {
            let bytes: Vec<u8> = (0..rows * 3).map(|value| value as u8).collect();
            let mut order: Vec<u32> = (0..rows as u32).collect();
            Random::new(rows as u64).shuffle(&mut order);
            let expected: Vec<u8> = order
                .iter()
                .flat_map(|&row| bytes[row as usize * 3..row as usize * 3 + 3].to_vec())
                .collect();
            let mut permuted = bytes.clone();
            permute(&mut permuted, 3, &order);
            assert_eq!(permuted, expected);
        }
    }
}
