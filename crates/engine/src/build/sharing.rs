//! Which nodes are to share a page, once there is a graph: what each will take there, and who goes where
//! ([`graph::shuffle`](crate::graph::shuffle())).
//!
//! ```text
//!   vectors, encoded ──┐
//!   lists, encoded ────┴─> sizes ──> shuffle ──> new numbers ─┐
//!     └──────────────────────────────────────────────────────┘   twice: codes of lists change with the numbers
//! ```
//!
//! On photo-sift-100k lists are 3.6 % longer by the numbers of the first plan: by that alone every page would overflow by one record. They change
//! little with those of the second, for which a page is left a little less than full; a record that does not fit after all is
//! carried to the next page ([`SlottedFile::planned`](super::slotted::SlottedFile::planned)).
//!
//! Tried on photo-sift-100k, R = 64, and left: to fill pages with the largest of the next 16 records that fits (index .3 % smaller, reads 3 % more,
//! since fewer nodes have one of their length to change places with); to order the pages by the graph, halves that fewest edges lead between (lists
//! 1 % longer); a margin of .001 and three plans (.3 % smaller at the same reads, but on package-text .2 % smaller at 3 % more of them).

use stratann_layout::SlottedShape;

use super::Build;
use super::coding::Coding;
use super::encode::Encoder;
use crate::graph::{self, Constructed, Filling, Lists};
use crate::{Error, Order};

/// The share of a page that is left for records that become longer.
const MARGIN: f64 = 0.004;
/// How often it is decided who goes where.
const PLANS: usize = 2;
/// Lists that are encoded between two looks whether to go on.
const LISTS_AT_ONCE: u32 = 4096;

/// What a build knows of pages before it writes them.
#[derive(Clone, Debug, Default)]
pub(crate) struct PagePlan {
    /// The first node of each page; none where pages are filled as nodes come.
    pub(crate) firsts: Vec<u32>,
    /// The step of the leading parts of vectors, where it was chosen already.
    pub(crate) step: Option<u8>,
}

/// What nodes take on pages beside their lists.
#[derive(Clone, Debug)]
pub(crate) struct Sizes {
    coding: Coding,
    /// Bytes of what stands beside each node's list, and of what tells its record from others on its page.
    beside: Vec<u32>,
    /// The latter, of any node.
    telling: u32,
    /// Bytes that a page has room for.
    room: usize,
    /// The step of the leading parts of vectors, if they are such.
    pub(crate) step: Option<u8>,
}

impl Sizes {
    /// Of no nodes yet, whose records are to stand on such pages.
    pub(crate) fn on(build: &Build<'_>, shape: &SlottedShape, coding: Coding) -> Self {
        let rows = build.source.rows();
        let spread = match &build.options.ids {
            Some(ids) => {
                let least = ids.iter().min().copied().unwrap_or_default();
                ids.iter().max().copied().unwrap_or_default() - least
            }
            None => rows as u64,
        };
        // On a page lengths differ by what a byte says, and ids, which are in no order, by as much as all do.
        let id = 8 - spread.leading_zeros() / 8;
        Self {
            coding,
            beside: Vec::with_capacity(rows),
            telling: if shape.has_ids() { 1 + 1 + id } else { 1 },
            room: shape.room(),
            step: None,
        }
    }

    /// Takes the nodes of a batch that was encoded: what stands beside their lists.
    pub(crate) fn add(&mut self, encoder: &Encoder) {
        let telling = self.telling;
        let beside = encoder.codes().map(|code| code.beside() as u32 + telling);
        self.beside.extend(beside);
    }

    /// Of so many nodes beside whose lists nothing stands.
    pub(crate) fn of_lists_alone(mut self, nodes: usize) -> Self {
        self.beside = vec![self.telling; nodes];
        self
    }

    /// Bytes of each node's record, by the numbers that nodes have now.
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

    /// Whether pages have room for two nodes of such sizes, so that it matters which.
    fn are_shared(&self, bytes: &[u32]) -> bool {
        let all: u64 = bytes.iter().map(|&bytes| u64::from(bytes)).sum();
        2 * all <= self.room as u64 * bytes.len() as u64
    }
}

impl Build<'_> {
    /// Decides who shares a page, and numbers the nodes by that. Nodes in the input's order keep it; so do those whose pages hold equally many,
    /// or one.
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
