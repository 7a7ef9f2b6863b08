//! Decides which nodes share a page, once there is a graph. The input is the size of each node's
//! record; [`graph::shuffle`](crate::graph::shuffle()) assigns the nodes.
//!
//! ```text
//!   vectors, encoded ──┐
//!   lists, encoded ────┴─> sizes ──> shuffle ──> new numbers ─┐
//!     └──────────────────────────────────────────────────────┘
//!                          twice, since codes of lists change with the numbers
//! ```
//!
//! The codes of lists depend on the numbers of the nodes. On photo-sift-100k, lists are 3.6 %
//! longer under the numbers of the first plan, so that every page would overflow by one record.
//! They change little under the numbers of the second plan, which leaves pages a little less than
//! full. A record that does not fit after all goes to the next page
//! ([`SlottedFile::planned`](super::slotted::SlottedFile::planned)).
//!
//! Three variants were tried on photo-sift-100k with R = 64, and dropped:
//!
//! - Fill a page with the largest of the next 16 records that fits. The index is .3 % smaller, with
//!   3 % more reads, since fewer nodes find one of their length to swap with.
//! - Order the pages by recursive bisection of the graph with the fewest edges cut. Lists are 1 %
//!   longer.
//! - Use a margin of .001 and three plans. The index is .3 % smaller at the same reads, but on
//!   package-text .2 % smaller with 3 % more reads.

use stratann_layout::SlottedShape;

use super::Build;
use super::coding::Coding;
use super::encode::Encoder;
use crate::graph::{self, Constructed, Filling, Lists};
use crate::{Error, Order};

/// The share of a page that is left for records that become longer.
const MARGIN: f64 = 0.004;
/// How often the nodes are assigned to pages.
const PLANS: usize = 2;
/// Lists encoded between two checks for an interruption.
const LISTS_AT_ONCE: u32 = 4096;

/// The facts about pages that a build knows before it writes them.
#[derive(Clone, Debug, Default)]
pub(crate) struct PagePlan {
    /// The first node of each page; empty if pages are filled in the order of the nodes.
    pub(crate) firsts: Vec<u32>,
    /// The step of the leading parts of vectors, if it was already chosen.
    pub(crate) step: Option<u8>,
}

/// The bytes of nodes on pages, without their lists.
#[derive(Clone, Debug)]
pub(crate) struct Sizes {
    coding: Coding,
    /// For each node, the bytes of its record without the list, with the fields that a page keeps
    /// for the record.
    beside: Vec<u32>,
    /// The largest size of those fields for any node.
    telling: u32,
    /// Bytes that a page has for records.
    room: usize,
    /// The step of the leading parts of vectors, if vectors are in two parts.
    pub(crate) step: Option<u8>,
}

impl Sizes {
    /// Sizes without any node yet, for records on pages of `shape`.
    pub(crate) fn on(build: &Build<'_>, shape: &SlottedShape, coding: Coding) -> Self {
        let rows = build.source.rows();
        let spread = match &build.options.ids {
            Some(ids) => {
                let least = ids.iter().min().copied().unwrap_or_default();
                ids.iter().max().copied().unwrap_or_default() - least
            }
            None => rows as u64,
        };
        // Within a page, one byte covers the differences of lengths. Ids are in no order, so they
        // differ by as much as all ids do.
        let id = 8 - spread.leading_zeros() / 8;
        Self {
            coding,
            beside: Vec::with_capacity(rows),
            telling: if shape.has_ids() { 1 + 1 + id } else { 1 },
            room: shape.room(),
            step: None,
        }
    }

    /// Adds the nodes of an encoded batch: the bytes of their records without lists.
    pub(crate) fn add(&mut self, encoder: &Encoder) {
        let telling = self.telling;
        let beside = encoder.codes().map(|code| code.beside() as u32 + telling);
        self.beside.extend(beside);
    }

    /// Sizes of this many nodes whose records have only a list.
    pub(crate) fn of_lists_alone(mut self, nodes: usize) -> Self {
        self.beside = vec![self.telling; nodes];
        self
    }

    /// Bytes of each node's record under the present numbers of the nodes.
    fn with_lists(&self, build: &Build<'_>, lists: &mut Lists) -> Result<Vec<u32>, Error> {
        let model = self.coding.learn_lists(lists)?;
        let (mut list, mut code) = (Vec::new(), Vec::new());
        let mut bytes = Vec::with_capacity(self.beside.len());
        for (node, &beside) in (0..).zip(&self.beside) {
            if node % LISTS_AT_ONCE == 0 {
                build.go_on()?;
            }
            lists.read(node, &mut list)?;
            list.sort_unstable();
            code.clear();
            model
                .encode(node, &list, &mut code)
                .map_err(|source| Error::codec(format!("node {node}"), source))?;
            bytes.push(beside + code.len() as u32);
        }
        Ok(bytes)
    }

    /// Whether two records of such sizes fit a page on average, so that the choice matters.
    fn are_shared(&self, bytes: &[u32]) -> bool {
        let all: u64 = bytes.iter().map(|&bytes| u64::from(bytes)).sum();
        2 * all <= self.room as u64 * bytes.len() as u64
    }
}

impl Build<'_> {
    /// Decides which nodes share a page, and renumbers the nodes accordingly. Nodes in the order of
    /// the input keep it. So do nodes whose pages hold one record each, or all the same number.
    pub(super) fn share_pages(&self, graph: &mut Constructed) -> Result<PagePlan, Error> {
        let mut plan = PagePlan::default();
        if self.facts.order != Order::Locality {
            return Ok(plan);
        }
        let Some(mut sizes) = self.facts.writer.sizes(self, graph)? else {
            return Ok(plan);
        };
        plan.step = sizes.step;
        let (memory, threads) = (self.options.memory, self.options.threads);
        for _ in 0..PLANS {
            let bytes = sizes.with_lists(self, &mut graph.lists)?;
            if !sizes.are_shared(&bytes) {
                break;
            }
            let filling = Filling {
                sizes: &bytes,
                room: (sizes.room as f64 * (1.0 - MARGIN)) as u32,
            };
            let lists = &mut graph.lists;
            let shuffled = graph::shuffle(lists, filling, memory, threads, self.progress)?;
            let beside = shuffled.was.iter().map(|&node| sizes.beside[node as usize]);
            sizes.beside = beside.collect();
            graph.renumber(shuffled.was);
            plan.firsts = shuffled.firsts;
        }
        Ok(plan)
    }
}
