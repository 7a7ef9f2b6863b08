//! What every strategy does with a page: the candidate list, scoring, expansion, and re-ranking on the path.
//!
//! A strategy decides *when* pages are asked for and waited for; this module decides what they mean. Its state is
//! reused from query to query and allocates nothing per hop.
//!
//! ```text
//!   seeds ──> frontier ──take──> page held? ──yes──> expand: exact distance -> answers
//!                ^                   │no                     neighbours, not yet seen -> scorer -> frontier
//!                │                 submit
//!                └── page-mates ── arrive
//! ```
//!
//! **Whole-page search** (`whole_page`): a page that was read is held until the query ends; all its nodes are
//! ranked by exact distance on arrival and enter the candidate list by code, and a candidate on a held page is expanded without a read. With
//! ids in locality order one read then serves several hops (DESIGN §2.1).

use stratann_layout::{NodeView, PageView};
use stratann_vector::{DistanceTable, Kernel};

use super::Counters;
use super::reader::{NodeReader, Page};
use super::results::Nearest;
use crate::Error;
use crate::frontier::{Frontier, key, node_of};
use crate::index::Graph;
use crate::visited::Visited;

/// Where a candidate's node is.
pub(crate) enum Place {
    /// It was expanded from a page that is held.
    Expanded,
    /// Its page is being read for another candidate; it will be expanded when that arrives.
    Awaited,
    /// Its page was submitted.
    Submitted,
}

/// One query's state.
pub(crate) struct Traversal<'a> {
    graph: &'a Graph,
    /// Every node's code, in memory.
    codes: &'a [u8],
    exact: Kernel,
    whole_page: bool,
    /// The query, in the element type of the index.
    pub(crate) query: Vec<u8>,
    /// The query's distances to every centroid.
    pub(crate) table: DistanceTable,
    pub(crate) frontier: Frontier,
    pub(crate) nearest: Nearest,
    pub(crate) counters: Counters,
    visited: Visited,
    /// Pages of this query that stay readable (whole-page search).
    held: Vec<Page>,
    /// Candidates whose page is being read.
    awaited: Vec<(u64, u64)>,
    /// Arrivals that are to be expanded now; scratch.
    due: Vec<u64>,
    fresh: Vec<u32>,
    scores: Vec<f32>,
}

impl<'a> Traversal<'a> {
    /// State for queries on one index.
    pub(crate) fn new(graph: &'a Graph, codes: &'a [u8], exact: Kernel, whole_page: bool) -> Self {
        Self {
            graph,
            codes,
            exact,
            whole_page,
            query: Vec::new(),
            table: DistanceTable::default(),
            frontier: Frontier::default(),
            nearest: Nearest::default(),
            counters: Counters::default(),
            visited: Visited::default(),
            held: Vec::new(),
            awaited: Vec::new(),
            due: Vec::new(),
            fresh: Vec::new(),
            scores: Vec::new(),
        }
    }

    /// Starts a query from `seeds`; `query` and `table` have been set.
    pub(crate) fn begin(&mut self, k: usize, list: usize, seeds: &[u32]) {
        self.frontier.clear(list);
        self.nearest.clear(k);
        self.visited.clear(list);
        self.held.clear();
        self.awaited.clear();
        self.fresh.clear();
        for &seed in seeds {
            if self.visited.insert(seed) {
                self.fresh.push(seed);
            }
        }
        self.score_fresh();
    }

    /// Brings a candidate's node here: expands it if its page is held, else sees to it that the page is read.
    pub(crate) fn fetch(&mut self, key: u64, reader: &mut NodeReader<'_>) -> Result<Place, Error> {
        let page = self.graph.shape.page_of(node_of(key));
        if self.whole_page {
            if let Some(at) = self.held.iter().position(|held| held.number() == page) {
                let held = self.held.swap_remove(at);
                let outcome = reader.view(&held).and_then(|view| self.expand(&view, key));
                self.held.push(held);
                return outcome.map(|()| Place::Expanded);
            }
            if self.awaited.iter().any(|&(awaited, _)| awaited == page) {
                self.awaited.push((page, key));
                return Ok(Place::Awaited);
            }
        }
        reader.submit(page, &mut self.counters)?;
        self.awaited.push((page, key));
        Ok(Place::Submitted)
    }

    /// Puts arrivals into the order in which they were asked for.
    pub(crate) fn sort_by_request(&self, pages: &mut [Page]) {
        pages.sort_by_key(|page| {
            self.awaited
                .iter()
                .position(|&(awaited, _)| awaited == page.number())
        });
    }

    /// Takes a page that came in and expands the candidates that waited for it. Returns how many of them were
    /// still in the candidate list, and how many were not.
    pub(crate) fn arrive(&mut self, page: Page, reader: &NodeReader<'_>) -> Result<Arrival, Error> {
        let view = reader.view(&page)?;
        let mut due = std::mem::take(&mut self.due);
        due.clear();
        if self.whole_page {
            self.awaited.retain(|&(awaited, key)| {
                if awaited == page.number() {
                    due.push(key);
                }
                awaited != page.number()
            });
            self.share(&view, page.number())?;
        } else if let Some(at) = self
            .awaited
            .iter()
            .position(|&(awaited, _)| awaited == page.number())
        {
            // Without sharing, each candidate has a read of its own: one arrival serves one candidate.
            due.push(self.awaited.remove(at).1);
        }
        let mut arrival = Arrival::default();
        for &key in &due {
            if key <= self.frontier.bound() {
                arrival.kept += 1;
            } else {
                arrival.left += 1;
            }
            self.expand(&view, key)?;
        }
        self.due = due;
        if self.whole_page {
            self.held.push(page);
        }
        Ok(arrival)
    }

    /// Neighbours that were not seen before into the candidate list, unless the candidate has left it: best-first
    /// would not have expanded it. Alone on its page, its exact distance into the answers.
    fn expand(&mut self, view: &PageView<'_>, key: u64) -> Result<(), Error> {
        let node = node_of(key);
        let record = view.node(self.graph.shape.slot_of(node))?;
        if !self.whole_page {
            self.rank(&record);
        }
        if !self.frontier.expanded(key) {
            return Ok(());
        }
        self.counters.hops += 1;
        // Without a branch on whether a neighbour is new, which no processor can guess.
        self.fresh.resize(record.neighbours.len(), 0);
        let (mut new, mut largest) = (0, 0);
        for neighbour in record.neighbours.iter() {
            largest = largest.max(neighbour);
            self.fresh[new] = neighbour;
            new += usize::from(self.visited.insert(neighbour));
        }
        self.fresh.truncate(new);
        if u64::from(largest) >= self.graph.nodes {
            return Err(self.bad_link(node, largest));
        }
        self.score_fresh();
        Ok(())
    }

    #[cold]
    fn bad_link(&self, node: u32, link: u32) -> Error {
        Error::Damaged {
            file: self.graph.file.clone(),
            what: format!(
                "node {node} links to node {link}, but there are {} nodes",
                self.graph.nodes
            ),
        }
    }

    /// Uses a page for all its nodes: exact distances into the answers, and those that were not seen before into the
    /// candidate list.
    fn share(&mut self, view: &PageView<'_>, page: u64) -> Result<(), Error> {
        let first = self.graph.shape.first_node(page) as u32;
        self.fresh.clear();
        for slot in 0..view.len() {
            self.rank(&view.node(slot)?);
            let node = first + slot as u32;
            if self.visited.insert(node) {
                self.fresh.push(node);
            }
        }
        self.score_fresh();
        Ok(())
    }

    /// Re-ranking on the path: an exact distance into the answers.
    fn rank(&mut self, record: &NodeView<'_>) {
        let distance = self.exact.distance(&self.query, record.vector);
        self.counters.distance_computations += 1;
        self.nearest.offer(record.id, distance);
    }

    /// Scores the nodes in `fresh`, and keeps those that the candidate list has room for.
    fn score_fresh(&mut self) {
        if self.scores.len() < self.fresh.len() {
            self.scores.resize(self.fresh.len(), 0.0);
        }
        let scores = &mut self.scores[..self.fresh.len()];
        self.table.score(self.codes, &self.fresh, scores);
        self.counters.distance_computations += self.fresh.len() as u64;
        for (&node, &score) in self.fresh.iter().zip(scores.iter()) {
            self.frontier.insert(key(score, node));
        }
    }
}

/// What became of the candidates that waited for a page.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Arrival {
    /// Still in the candidate list when their page came.
    pub(crate) kept: u32,
    /// Pushed out of it while their page was read: the read was speculative and bought nothing.
    pub(crate) left: u32,
}
