//! The work that every strategy does with a page: the candidate list, the scores of neighbours, and
//! the ranking of nodes whose vectors are beside their lists. A strategy decides *when* pages are
//! requested and awaited. A hop allocates no memory.
//!
//! ```text
//!   seeds ──> frontier ──take──> page held? in memory? ─yes─> expand: exact distance -> results
//!                ^               record cached?               new neighbours -> scorer -> frontier
//!                │                  │no
//!                │                submit
//!                └── page-mates ── arrive
//! ```
//!
//! **Whole-page search** (`whole_page`): a page that was read is held until the query ends, and all
//! its nodes enter the candidate list. The computation of exact distances may wait until the
//! traversal is done. The search then ranks the L nodes on held pages that are best by code. Their
//! exact distances show which other nodes may be results.
//!
//! If vectors are apart from lists, the [`Reranker`] does all ranking. If only leading parts are
//! beside the lists, the [`Reranker`] reads the trailing parts of the nodes whose rank is
//! uncertain.

mod expansion;
mod promising;

use std::future::poll_fn;
use std::task::Poll;

use stratann_tier::GrowingBytes;
use stratann_vector::DistanceTable;

use super::Counters;
use super::LowList;
use super::further::Uses;
use super::parts::{Part, Timer};
use super::ranking::Ranking;
use super::reader::{NodeReader, Page};
use super::rerank::Reranker;
use super::source::LeftOut;
use super::spare::Spare;
use crate::Error;
use crate::cache::SlotCache;
use crate::frontier::{self, Frontier, distance_of, key, node_of};
use crate::navigation::Seeds;
use crate::plan::held_pages;
use crate::stores::topology::placement::NOWHERE;
use crate::stores::{CodeParts, GraphStores, NodePages, PageView, Record};
use crate::visited::Visited;

pub(crate) enum Fetched {
    Expanded,
    Awaited,
    Submitted,
}

/// A query first ranks k nodes and this many more. The error of the codes of these nodes then shows
/// which other nodes to rank.
const HEAD: usize = 6;

/// The most times that a query follows a candidate to the page to which it has moved.
const PATIENCE: u32 = 64;

/// If some nodes are deleted, the list has at most this many candidates for each possible result.
pub(super) const MOST_SHARES: usize = 4;
/// If a list would grow beyond the number of nodes divided by this number, a scan is less work.
pub(super) const SCAN_FROM: usize = 4;

const SEEDS: usize = 8;

/// The environment of a traversal, the same for every query of a task.
#[derive(Clone, Copy)]
pub(crate) struct Setting<'a, N> {
    pub(crate) graph: &'a GraphStores,
    pub(crate) pages: &'a N,
    /// The codes in memory: of every node, or, if codes are stored in pages, of the entry points.
    pub(crate) codes: &'a GrowingBytes,
    /// The codes in memory, if they have two precisions. If `code_parts` is set, `codes` is unused.
    pub(crate) code_parts: Option<CodeParts<'a>>,
    pub(crate) entries: &'a [u32],
    pub(crate) cache: Option<&'a SlotCache>,
    pub(crate) whole_page: bool,
    /// Whether every page stays readable until the query ends, as in whole-page search.
    pub(crate) hold: bool,
    /// The most candidates in a list that may have deleted nodes. Numbers below twice the list size
    /// have no effect.
    pub(crate) candidates: usize,
    /// About the most nodes that are nearer than the last match in the list. Numbers below the list
    /// size have no effect.
    pub(crate) walked: usize,
    /// The parameter `through` of
    /// [`take_unread_among`](crate::frontier::Frontier::take_unread_among): how far down the list a
    /// walk expands nodes that do not match.
    pub(crate) through: f64,
    pub(crate) timer: &'a Timer,
}

pub(crate) struct Traversal<'a, N> {
    setting: Setting<'a, N>,
    /// The codes and the number of nodes at the last `look`. Inserts make both grow.
    codes: &'a [u8],
    nodes: u64,
    /// The query's distances to every centroid. If there is a low list, these are the centroids of
    /// residual or high codes.
    pub(crate) table: DistanceTable,
    pub(crate) low: Option<LowList>,
    /// Finds the seeds of a search that uses codes of one precision.
    pub(crate) seeding: Option<LowList>,
    pub(crate) frontier: Frontier,
    pub(crate) ranking: Ranking<'a>,
    pub(crate) counters: Counters,
    reranker: Option<Reranker<'a>>,
    visited: Visited,
    left_out: Option<LeftOut>,
    k: usize,
    length: usize,
    held: Vec<Page<'a>>,
    most_held: usize,
    /// Nodes on held pages to rank after the traversal, as key and position in `held`.
    unranked: Vec<(u64, u32)>,
    /// `ranked` has candidates that were ranked on expansion, although whole-page search ranks
    /// later. `distances` has the exact distances of nodes that entered the list by estimate.
    ranked: Vec<u64>,
    distances: Vec<(u32, f32)>,
    awaited: Vec<(u64, u64)>,
    patience: u32,
    /// The fields from here on are scratch space. `due` has candidates to expand now, or seeds.
    due: Vec<u64>,
    list: Vec<u32>,
    vector: Vec<u8>,
    cached: Vec<u8>,
    /// The codes of an updated list, if codes are beside lists.
    amended: Vec<u8>,
    /// Nodes to score, or their positions in the list if codes are beside lists.
    fresh: Vec<u32>,
    scores: Vec<f32>,
    /// Codes joined from `code_parts`, their positions, and the sums from residual codes.
    joined: Vec<u8>,
    places: Vec<u32>,
    sums: Vec<f32>,
}

impl<N> Traversal<'_, N> {
    pub(super) fn spare(&mut self) -> Spare {
        Spare {
            table: std::mem::take(&mut self.table),
            frontier: std::mem::take(&mut self.frontier),
            visited: std::mem::take(&mut self.visited),
            ..Spare::default()
        }
    }
}

impl<'a, N: NodePages> Traversal<'a, N> {
    pub(super) fn new(
        setting: Setting<'a, N>,
        ranking: Ranking<'a>,
        reranker: Option<Reranker<'a>>,
        spare: &mut Spare,
    ) -> Self {
        Self {
            setting,
            codes: &[],
            nodes: 0,
            table: std::mem::take(&mut spare.table),
            low: None,
            seeding: None,
            frontier: std::mem::take(&mut spare.frontier),
            vector: vec![0; ranking.query.len()],
            ranking,
            counters: Counters::default(),
            reranker,
            visited: std::mem::take(&mut spare.visited),
            left_out: None,
            k: 0,
            length: 0,
            held: Vec::new(),
            most_held: usize::MAX,
            unranked: Vec::new(),
            ranked: Vec::new(),
            distances: Vec::new(),
            awaited: Vec::new(),
            patience: 0,
            due: Vec::new(),
            list: Vec::new(),
            cached: Vec::new(),
            amended: Vec::new(),
            fresh: Vec::new(),
            scores: Vec::new(),
            joined: Vec::new(),
            places: Vec::new(),
            sums: Vec::new(),
        }
    }

    pub(super) fn use_reads(&mut self, uses: Uses) -> Uses {
        let rerank = match &mut self.reranker {
            Some(reranker) => std::mem::replace(&mut reranker.rerank, uses.rerank),
            None => uses.rerank,
        };
        Uses {
            whole_page: std::mem::replace(&mut self.setting.whole_page, uses.whole_page),
            rerank,
        }
    }

    pub(super) fn leave_out(&mut self, left_out: Option<LeftOut>) {
        self.left_out = left_out;
        self.ranking
            .leave_out(left_out.map(|left_out| left_out.node));
    }

    /// The query and its `table` must be set.
    pub(crate) fn begin(&mut self, k: usize, list: usize) {
        self.clear(k, list);
        let entries = self.setting.entries;
        if self.begin_by_low_codes() || self.begin_at_seeds() {
            return self.ranking.begin(k, &[], &[]);
        }
        if N::CODES {
            self.fresh.extend(0..entries.len() as u32);
        } else {
            self.fresh.extend_from_slice(entries);
        }
        self.score_in_memory();
        let found = entries.iter().zip(&self.scores);
        self.due.clear();
        self.due
            .extend(found.map(|(&node, &score)| key(score, node)));
        if self.due.len() > SEEDS {
            self.due.select_nth_unstable(SEEDS);
            self.due.truncate(SEEDS);
        }
        for &seed in &self.due {
            self.visited.insert(node_of(seed));
            Self::admit(&mut self.frontier, &self.ranking, seed);
        }
        self.ranking.begin(k, &[], &[]);
    }

    /// Starts at distinct nodes with known distances. The query and its `table` must be set.
    pub(crate) fn begin_at(&mut self, k: usize, list: usize, from: &Seeds<'_>) {
        let (seeds, distances) = (from.nodes, from.distances);
        self.clear(k, list);
        for &seed in seeds {
            self.visited.insert(seed);
        }
        if N::CODES {
            // The codes of these nodes are not in memory, so their distances serve as estimates.
            self.scores.clear();
            self.scores.extend_from_slice(distances);
        } else {
            self.fresh.extend_from_slice(seeds);
            self.score_in_memory();
        }
        for (&node, &score) in seeds.iter().zip(&self.scores) {
            let key = key(score, node);
            match N::CODES {
                true => Self::admit_exactly(&mut self.frontier, &self.ranking, key, false),
                false => Self::admit(&mut self.frontier, &self.ranking, key),
            }
        }
        let estimates = &self.scores[..seeds.len()];
        // Distances that serve as estimates show nothing about the error of codes.
        let known = if N::CODES { &[] } else { estimates };
        self.ranking.begin(k, known, distances);
        if !from.are_exact {
            self.ranking.begin_without_limit();
        }
        if self.ranking.promise.is_on() {
            self.learn_from_seeds(seeds.len(), distances);
        }
    }

    fn clear(&mut self, k: usize, list: usize) {
        (self.k, self.length) = (k, list);
        self.most_held = match self.ranking.admission().refused() {
            0 => usize::MAX,
            _ => held_pages(list.max(self.setting.walked)),
        };
        self.look();
        self.ranking.promise.begin(k, list, self.nodes);
        let (shares, most) = self.room(list);
        self.frontier.clear(list, shares, most);
        if let Some(reranker) = &mut self.reranker {
            reranker.begin(k, list);
        }
        self.visited.clear(list.max(self.setting.walked));
        self.held.clear();
        self.unranked.clear();
        self.ranked.clear();
        self.distances.clear();
        self.awaited.clear();
        self.patience = PATIENCE;
        self.fresh.clear();
    }

    /// The number of candidates for each possible result, and the most candidates altogether.
    fn room(&self, list: usize) -> (usize, usize) {
        let admission = self.ranking.admission();
        let (refused, dead) = (admission.refused(), admission.deleted());
        let nodes = self.nodes.max(1) as usize;
        if self.setting.hold || refused == 0 {
            return (
                1,
                if refused == 0 {
                    list
                } else {
                    list.saturating_mul(2)
                },
            );
        }
        let live = nodes.saturating_sub(dead).max(1);
        // Even a few deleted vectors may all be near this query, so the list is doubled.
        let shares = match (list as u64).saturating_mul(dead as u64) / nodes as u64 {
            // The plan already allows for nodes that do not match the filter.
            0 if dead == 0 => 1,
            0 => 2,
            _ => (1 + nodes.div_ceil(live)).clamp(2, MOST_SHARES),
        };
        (shares, list.saturating_mul(2).max(self.setting.candidates))
    }

    fn look(&mut self) {
        let Setting { graph, codes, .. } = self.setting;
        // The node count is read before the codes, so that every counted node has its code.
        self.nodes = match graph.placement.get() {
            Some(placement) => u64::from(placement.nodes()),
            None => graph.nodes,
        };
        self.codes = codes;
    }

    /// Whether an insert has added the node since the number of nodes was last read.
    #[cold]
    fn is_new(&mut self, node: u32) -> bool {
        self.look();
        u64::from(node) < self.nodes
    }

    pub(crate) fn in_flight(&self, reader: &NodeReader<'a, N>) -> usize {
        let vectors = self.reranker.as_ref().map_or(0, Reranker::in_flight);
        reader.in_flight() + vectors
    }

    /// Waits for a page. `None` if a read of vectors completed first.
    pub(crate) async fn next(
        &mut self,
        reader: &mut NodeReader<'a, N>,
    ) -> Result<Option<Page<'a>>, Error> {
        let reranker = match &mut self.reranker {
            Some(reranker) if reranker.in_flight() > 0 => reranker,
            _ => return reader.next().await.map(Some),
        };
        let start = self.setting.timer.start();
        let arrived = poll_fn(|cx| {
            if reader.in_flight() > 0
                && let Poll::Ready(done) = reader.poll(cx)
            {
                return Poll::Ready(Ok(done));
            }
            reranker.poll(cx).map(Err)
        })
        .await;
        self.setting.timer.stop(Part::Reads, start);
        match arrived {
            Ok(done) => reader.open(done).map(Some),
            Err((segment, done)) => reranker.open(segment, done).map(|()| None),
        }
    }

    pub(crate) fn take_vectors(&mut self) -> Result<(), Error> {
        match &mut self.reranker {
            Some(reranker) => reranker.take(),
            None => Ok(()),
        }
    }

    pub(crate) async fn take_all_vectors(&mut self) -> Result<(), Error> {
        match &mut self.reranker {
            Some(reranker) => reranker.take_all().await,
            None => Ok(()),
        }
    }

    /// Ranks the remaining nodes. Returns whether the walk must continue, because other candidates
    /// have replaced deleted candidates.
    pub(crate) async fn finish(&mut self, reader: &NodeReader<'a, N>) -> Result<bool, Error> {
        self.rank_held(reader)?;
        let mut refused = false;
        let depth = self.depth();
        if let Some(reranker) = &mut self.reranker {
            let Self {
                frontier,
                ranking,
                counters,
                ..
            } = self;
            if N::PARTS {
                let pages = self.setting.pages;
                reranker.settle(pages, ranking, counters).await?;
            } else {
                if let Some(depth) = depth {
                    reranker.limit_to(depth);
                }
                reranker.finish(frontier, ranking, counters).await?;
            }
            for key in reranker.take_refused() {
                frontier.refuse(key);
                refused = true;
            }
        }
        self.counters.distance_computations += std::mem::take(&mut self.ranking.computations);
        Ok(refused)
    }

    fn rank_held(&mut self, reader: &NodeReader<'a, N>) -> Result<(), Error> {
        let mut unranked = std::mem::take(&mut self.unranked);
        let held = std::mem::take(&mut self.held);
        let mut head = self.length.max(self.k + HEAD);
        if !self.ranked.is_empty() {
            self.ranked.sort_unstable();
            unranked.retain(|(key, _)| self.ranked.binary_search(key).is_err());
            head = head.saturating_sub(self.ranked.len());
        }
        if head < unranked.len() {
            unranked.select_nth_unstable(head);
        }
        let mut outcome = Ok(());
        for (i, &(key, place)) in unranked.iter().enumerate() {
            let worth = self.ranking.worth_decoding();
            if i < head || worth.admits(node_of(key), distance_of(key)) {
                let ranked = reader
                    .view(&held[place as usize])
                    .and_then(|view| self.record(view, key))
                    .and_then(|record| self.rank(key, &record).map(drop));
                if ranked.is_err() {
                    outcome = ranked;
                    break;
                }
            }
        }
        // A later call must not rank these nodes again.
        unranked.clear();
        (self.unranked, self.held) = (unranked, held);
        outcome
    }

    pub(crate) fn let_go(&mut self) {
        self.unranked.clear();
        self.held.clear();
        if let Some(reranker) = &mut self.reranker {
            reranker.let_go();
        }
    }

    pub(crate) fn held(&self, number: u64) -> Option<&Page<'a>> {
        self.held.iter().find(|page| page.number() == number)
    }

    pub(crate) fn held_pages(&self) -> impl Iterator<Item = &Page<'a>> {
        self.held.iter()
    }

    pub(crate) fn fetch(
        &mut self,
        key: u64,
        reader: &mut NodeReader<'a, N>,
    ) -> Result<Fetched, Error> {
        let node = node_of(key);
        let left_out = self.left_out.filter(|left_out| left_out.node == node);
        // If an excluded node is the only start of the walk, the walk still uses it.
        if left_out.is_some_and(|left_out| !left_out.leads_on) && self.frontier.len() > 1 {
            self.frontier.expanded(key);
            return Ok(Fetched::Expanded);
        }
        let number = self.page_of(node);
        // After a candidate's node has moved, an older version of its page may be held. So a held
        // page must contain the node.
        let has = |held: &Page<'a>| {
            reader.is_current(held)
                && (self.patience == PATIENCE
                    || reader
                        .view(held)
                        .is_ok_and(|view| view.slot_of(node).is_some()))
        };
        let held = self.held.iter();
        let held = held
            .enumerate()
            .find(|(_, held)| held.number() == number && has(held));
        if let Some(at) = held.map(|(at, _)| at) {
            let held = std::mem::take(&mut self.held);
            let outcome = reader
                .view(&held[at])
                .and_then(|view| self.expand(view, number, key));
            self.look_again(&held[at], key, reader);
            self.held = held;
            return outcome.map(|()| Fetched::Expanded);
        }
        if let Some(page) = reader.in_memory(number) {
            self.counters.cache_hits += 1;
            let view = reader.view(&page)?;
            // Whole-page search saves nothing if pages have only lists and are in memory.
            let shared = self.setting.whole_page && N::VECTORS;
            if shared {
                self.share(view, number)?;
            }
            self.expand(view, number, key)?;
            self.look_again(&page, key, reader);
            if shared || self.setting.hold {
                self.held.push(page);
            }
            return Ok(Fetched::Expanded);
        }
        if number == u64::from(NOWHERE) {
            // The insert of this node is still unfinished after all retries, or was given up.
            self.frontier.expanded(key);
            return Ok(Fetched::Expanded);
        }
        if self.expand_cached(number, key)? {
            self.counters.cache_hits += 1;
            if !N::MOVES && reader.in_memory(number).is_some() {
                // The page was rewritten after the look-up, so the cached record may be outdated.
                self.put_back(key);
            }
            return Ok(Fetched::Expanded);
        }
        let shared =
            self.setting.whole_page && self.awaited.iter().any(|&(awaited, _)| awaited == number);
        self.awaited.push((number, key));
        if shared {
            return Ok(Fetched::Awaited);
        }
        reader.submit(number, &mut self.counters)?;
        Ok(Fetched::Submitted)
    }

    /// Restores the order of requests. A page that was requested twice appears at both positions.
    pub(crate) fn sort_by_request(&self, pages: &mut [Page<'_>]) {
        let mut rest = pages;
        for &(awaited, _) in &self.awaited {
            if let Some(at) = rest.iter().position(|page| page.number() == awaited) {
                rest.swap(0, at);
                rest = &mut rest[1..];
            }
        }
    }

    pub(crate) fn arrive(
        &mut self,
        page: Page<'a>,
        reader: &NodeReader<'a, N>,
    ) -> Result<Arrival, Error> {
        let view = reader.view(&page)?;
        let mut due = std::mem::take(&mut self.due);
        due.clear();
        if self.setting.whole_page {
            self.awaited.retain(|&(awaited, key)| {
                if awaited == page.number() {
                    due.push(key);
                }
                awaited != page.number()
            });
            self.share(view, page.number())?;
        } else if let Some(at) = self
            .awaited
            .iter()
            .position(|&(awaited, _)| awaited == page.number())
        {
            // If candidates do not share pages, each read of a page is for one candidate.
            due.push(self.awaited.remove(at).1);
        }
        let mut arrival = Arrival::default();
        for &key in &due {
            if key <= self.frontier.bound() {
                arrival.kept += 1;
            } else {
                arrival.left += 1;
            }
            self.expand(view, page.number(), key)?;
            self.look_again(&page, key, reader);
            if let Some(cache) = self.setting.cache
                && let Some(slot) = view.slot_of(node_of(key))
            {
                let (node, stamp) = (node_of(key), page.number() as u32);
                view.record(slot)?.cached(&mut self.cached);
                cache.insert(node, stamp, &self.cached);
                if let Some(placement) = self.setting.graph.placement.get() {
                    placement.was_cached(cache, node, stamp);
                }
            }
        }
        self.due = due;
        if self.setting.whole_page || self.setting.hold {
            self.held.push(page);
        }
        if self.held.len() > self.most_held && !self.setting.hold {
            // A walk past many deleted nodes could hold too many pages.
            self.rank_held(reader)?;
            self.held.clear();
        }
        Ok(arrival)
    }

    pub(crate) fn reset(&mut self) {
        if let Some(reranker) = &mut self.reranker {
            reranker.reset();
        }
    }
}

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Arrival {
    /// Candidates that were still in the list.
    pub(crate) kept: u32,
    /// Candidates that had been pushed out of the list.
    pub(crate) left: u32,
}
