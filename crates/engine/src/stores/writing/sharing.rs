//! Decides which nodes share a page after the graph is built, by the size of each node's record.
//! [`graph::shuffle`](crate::graph::shuffle()) assigns the nodes to pages.
//!
//! ```text
//!   vectors, encoded ──┐
//!   lists, encoded ────┴─> sizes ──> shuffle ──> new numbers ─┐
//!     └──────────────────────────────────────────────────────┘
//!                          twice, because codes of lists change with the numbers
//! ```
//!
//! Renumbered nodes have longer lists. On photo-sift-100k, lists are 3.6 % longer after the first
//! plan, and every page would overflow by one record. The second plan changes lists little. If a
//! record does not fit after all, it is written to the next page
//! ([`SlottedFile::planned`](super::slotted::SlottedFile::planned)).
//!
//! Trials on photo-sift-100k with R = 64 rejected three variants:
//!
//! - To fill a page, take the largest record that fits, of the next 16 records. The index is .3 %
//!   smaller, but needs 3 % more reads. A node can be swapped only with a node whose record has
//!   equal length, and fewer nodes find such a node.
//! - Order the pages by a recursive bisection of the graph that cuts the fewest edges. Lists are 1
//!   % longer.
//! - Use a margin of .001 and three plans. The index is .3 % smaller with the same number of reads.
//!   On package-text it is .2 % smaller, with 3 % more reads.

use stratann_layout::SlottedShape;

use super::coding::Coding;
use super::encode::Encoder;
use super::{NodeWriter, Writing};
use crate::graph::{self, Constructed, Filling, Lists};
use crate::{Error, Order};

/// The share of a page that is left free for records that become longer.
const MARGIN: f64 = 0.004;
const PLANS: usize = 2;
const LISTS_AT_ONCE: u32 = 4096;

/// The facts about pages that are decided before the build writes the pages.
#[derive(Clone, Debug, Default)]
pub(crate) struct PagePlan {
    /// The first node of each page; empty if pages are filled in the order of the nodes.
    pub(crate) firsts: Vec<u32>,
    pub(crate) step: Option<u8>,
}

#[derive(Clone, Debug)]
pub(crate) struct Sizes {
    coding: Coding,
    /// The bytes of each record without the list, but with the fields of the page for the record.
    beside: Vec<u32>,
    telling: u32,
    room: usize,
    pub(crate) step: Option<u8>,
}

impl Sizes {
    pub(crate) fn on(build: &Writing<'_>, shape: &SlottedShape, coding: Coding) -> Self {
        let rows = build.source.rows();
        let spread = match &build.options.ids {
            Some(ids) => {
                let least = ids.iter().min().copied().unwrap_or_default();
                ids.iter().max().copied().unwrap_or_default() - least
            }
            None => rows as u64,
        };
        // The lengths on a page differ by less than 256. Ids on a page may differ by as much as ids
        // in the whole index.
        let id = 8 - spread.leading_zeros() / 8;
        Self {
            coding,
            beside: Vec::with_capacity(rows),
            telling: if shape.has_ids() { 1 + 1 + id } else { 1 },
            room: shape.room(),
            step: None,
        }
    }

    pub(crate) fn add(&mut self, encoder: &Encoder) {
        let telling = self.telling;
        let beside = encoder.codes().map(|code| code.beside() as u32 + telling);
        self.beside.extend(beside);
    }

    pub(crate) fn of_lists_alone(mut self, nodes: usize) -> Self {
        self.beside = vec![self.telling; nodes];
        self
    }

    /// The size of each record, with lists encoded under the present numbers of the nodes.
    fn with_lists(&self, build: &Writing<'_>, lists: &mut Lists) -> Result<Vec<u32>, Error> {
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

    /// If only one record fits on a page, it does not matter which nodes share pages.
    fn are_shared(&self, bytes: &[u32]) -> bool {
        let all: u64 = bytes.iter().map(|&bytes| u64::from(bytes)).sum();
        2 * all <= self.room as u64 * bytes.len() as u64
    }
}

impl Writing<'_> {
    /// Renumbers the nodes of the pages. The numbers stay unchanged in input order, or if all pages
    /// have the same number of records.
    pub(crate) fn share_pages(
        &self,
        writer: &dyn NodeWriter,
        order: Order,
        graph: &mut Constructed,
    ) -> Result<PagePlan, Error> {
        let mut plan = PagePlan::default();
        if order != Order::Locality {
            return Ok(plan);
        }
        let Some(mut sizes) = writer.sizes(self, graph)? else {
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
