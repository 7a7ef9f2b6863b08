//! What every strategy does with a page: the candidate list, scoring, expansion, and re-ranking on the path.
//!
//! A strategy decides *when* pages are asked for and waited for; this module decides what they mean. Its state is
//! reused from query to query and allocates nothing per hop.
//!
//! ```text
//!   seeds ──> frontier ──take──> page held? in memory? ─yes──> expand: exact distance -> answers
//!                ^               record cached?                   neighbours, not yet seen -> scorer -> frontier
//!                │                  │no
//!                │                submit
//!                └── page-mates ── arrive
//! ```
//!
//! **Whole-page search** (`whole_page`): a page that was read is held until the query ends; all its nodes enter the
//! candidate list by code, and a candidate on a held page is expanded without a read. With ids in locality order one read
//! then serves several hops. Exact distances can wait until the traversal is done: then the L best by code of
//! all nodes on held pages are ranked first, and say which others may still be answers, so that few vectors are decoded. The L best
//! are ranked whatever their codes say, as they would be on the path: a longer list finds more, in the end everything.
//!
//! Where vectors are apart from lists, nothing is ranked on the path either: that is [`Reranker`]'s. Where their leading parts are
//! beside the lists, nodes are ranked by these, and the [`Reranker`] reads the trailing parts of those in doubt.

mod expansion;
mod promising;

use std::future::poll_fn;
use std::task::Poll;

use stratann_tier::GrowingBytes;
use stratann_vector::DistanceTable;

use super::Counters;
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
use crate::press::LowList;
use crate::stores::topology::placement::NOWHERE;
use crate::stores::{CodeParts, GraphStores, NodePages, PageView, Record};
use crate::visited::Visited;

/// Where a candidate's node is.
pub(crate) enum Fetched {
    /// It was expanded from bytes that are in memory.
    Expanded,
    /// Its page is being read for another candidate; it will be expanded when that arrives.
    Awaited,
    /// Its page was submitted.
    Submitted,
}

/// Nodes beyond k that are ranked before the code's error is trusted to tell which others are worth it.
const HEAD: usize = 6;

/// How often a search looks for candidates where they have moved to.
const PATIENCE: u32 = 64;

/// Candidates that are kept for each that counts, at most, where some are deleted.
pub(super) const MOST_SHARES: usize = 4;
/// Once a list has come to this part of all nodes because the others in it are deleted, looking at all is less work.
pub(super) const SCAN_FROM: usize = 4;

/// Entry points that a query starts from, where there are many.
const SEEDS: usize = 8;

/// What a traversal works with, the same for every query of a task.
#[derive(Clone, Copy)]
pub(crate) struct Setting<'a, N> {
    pub(crate) graph: &'a GraphStores,
    pub(crate) pages: &'a N,
    /// The codes in memory: every node's, or where these are in the pages, those of the entry points.
    pub(crate) codes: &'a GrowingBytes,
    /// The same where they are of two precisions; then `codes` says nothing.
    pub(crate) code_parts: Option<CodeParts<'a>>,
    /// The nodes that a search may start from without a navigation graph.
    pub(crate) entries: &'a [u32],
    /// Hot records, if the index was opened with a cache for them.
    pub(crate) cache: Option<&'a SlotCache>,
    pub(crate) whole_page: bool,
    /// Whether every page stays readable until the query ends, as it does in whole-page search.
    pub(crate) hold: bool,
    /// Candidates that a list may come to where some are deleted, if that is more than twice its size.
    pub(crate) candidates: usize,
    /// Nodes that a walk is expected to go through, if that is more than its list.
    pub(crate) walked: usize,
    pub(crate) timer: &'a Timer,
}

/// One query's state.
pub(crate) struct Traversal<'a, N> {
    setting: Setting<'a, N>,
    /// The codes that are there, and the nodes: where vectors are inserted, they become more.
    codes: &'a [u8],
    nodes: u64,
    /// The query's distances to every centroid; where there is an L_low, of the rests of codes alone, and where codes are separate, of the high ones.
    pub(crate) table: DistanceTable,
    /// L_low, where a search goes from coarse to fine: neighbours come there first.
    pub(crate) low: Option<LowList>,
    /// Where a search by one precision begins at seeds: what looks for these.
    pub(crate) seeding: Option<LowList>,
    pub(crate) frontier: Frontier,
    pub(crate) ranking: Ranking<'a>,
    pub(crate) counters: Counters,
    reranker: Option<Reranker<'a>>,
    visited: Visited,
    /// A node that is no answer, and perhaps does not lead on.
    left_out: Option<LeftOut>,
    /// Answers that are wanted, and L.
    k: usize,
    length: usize,
    /// Pages of this query that stay readable, and how many they may be.
    held: Vec<Page<'a>>,
    most_held: usize,
    /// Nodes on held pages that are to be ranked when the traversal is done: key, and place in `held`.
    unranked: Vec<(u64, u32)>,
    /// Where a search may stop early: candidates that were ranked as they were expanded, though whole-page search ranks later; and
    /// where it ranks at once, nodes with their distances of which an estimate was in the list.
    ranked: Vec<u64>,
    distances: Vec<(u32, f32)>,
    /// Candidates whose page is being read.
    awaited: Vec<(u64, u64)>,
    /// How often one may still be looked for where it has moved to.
    patience: u32,
    /// Candidates to be expanded now, or to start from; scratch, as is what follows.
    due: Vec<u64>,
    list: Vec<u32>,
    vector: Vec<u8>,
    cached: Vec<u8>,
    /// The codes of a list that was amended, where codes stand beside lists.
    amended: Vec<u8>,
    /// Nodes to score, or where codes stand beside the list, their places in it.
    fresh: Vec<u32>,
    scores: Vec<f32>,
    /// Codes that were put together of their code_parts, and their places; what the rests of codes say.
    joined: Vec<u8>,
    places: Vec<u32>,
    sums: Vec<f32>,
}

impl<N> Traversal<'_, N> {
    /// Gives back its largest buffers, when all is done.
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
    /// State for queries on one index; `reranker` where vectors are apart from lists.
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

    /// Says what the next queries make of what they read, and returns what queries made of it before.
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

    /// From the next query on, a node is no answer, and perhaps does not lead on.
    pub(super) fn leave_out(&mut self, left_out: Option<LeftOut>) {
        self.left_out = left_out;
        self.ranking
            .leave_out(left_out.map(|left_out| left_out.node));
    }

    /// Starts a query from the entry points that are nearest by code; the query and its `table` have been set.
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

    /// Starts a query from `seeds`, which are all different, and whose exact distances are known; the query and its
    /// `table` have been set.
    pub(crate) fn begin_at(&mut self, k: usize, list: usize, from: &Seeds<'_>) {
        let (seeds, distances) = (from.nodes, from.distances);
        self.clear(k, list);
        for &seed in seeds {
            self.visited.insert(seed);
        }
        if N::CODES {
            // Their codes are not at hand, and what they estimate is known.
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
        // Where distances stand in for estimates, they say nothing of the code's error.
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

    /// How many candidates are kept for each that counts, and how many there may be, for the sake of those that are deleted or do not
    /// match.
    fn room(&self, list: usize) -> (usize, usize) {
        let admission = self.ranking.admission();
        let (refused, dead) = (admission.refused(), admission.deleted());
        let nodes = self.nodes.max(1) as usize;
        if self.setting.hold || refused == 0 {
            // The pages of an insert are what its memory is planned for.
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
        // As many behind the list as it is long, however few are deleted: they may all be near this query.
        let shares = match (list as u64).saturating_mul(dead as u64) / nodes as u64 {
            // What does not match is known from the beginning.
            0 if dead == 0 => 1,
            0 => 2,
            _ => (1 + nodes.div_ceil(live)).clamp(2, MOST_SHARES),
        };
        (shares, list.saturating_mul(2).max(self.setting.candidates))
    }

    /// Sees which nodes there are now.
    fn look(&mut self) {
        let Setting { graph, codes, .. } = self.setting;
        // Whose number is known has its code in place: in this order.
        self.nodes = match graph.placement.get() {
            Some(placement) => u64::from(placement.nodes()),
            None => graph.nodes,
        };
        self.codes = codes;
    }

    /// Whether there is such a node, perhaps since a moment ago.
    #[cold]
    fn is_new(&mut self, node: u32) -> bool {
        self.look();
        u64::from(node) < self.nodes
    }

    /// Reads on their way, of the graph and of vectors.
    pub(crate) fn in_flight(&self, reader: &NodeReader<'a, N>) -> usize {
        let vectors = self.reranker.as_ref().map_or(0, Reranker::in_flight);
        reader.in_flight() + vectors
    }

    /// The next page of the graph; None if vectors came in before it.
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

    /// Takes off the vectors that have come in, so that more can be asked for.
    pub(crate) fn take_vectors(&mut self) -> Result<(), Error> {
        match &mut self.reranker {
            Some(reranker) => reranker.take(),
            None => Ok(()),
        }
    }

    /// Waits for all vectors that are on their way.
    pub(crate) async fn take_all_vectors(&mut self) -> Result<(), Error> {
        match &mut self.reranker {
            Some(reranker) => reranker.take_all().await,
            None => Ok(()),
        }
    }

    /// Ends a query whose traversal is done: ranks what has not been ranked on the path. Where vectors are apart, it may turn out
    /// that candidates are deleted; then others count in their stead, and the traversal is not done. Returns whether that is so.
    pub(crate) async fn finish(&mut self, reader: &NodeReader<'a, N>) -> Result<bool, Error> {
        self.rank_held(reader)?;
        let mut refused = false;
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

    /// Ranks the nodes on held pages: the best by code, then those that may still be answers.
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
        // Whatever is ranked later is not among them.
        unranked.clear();
        (self.unranked, self.held) = (unranked, held);
        outcome
    }

    /// Gives up the pages of a query that needs them no more.
    pub(crate) fn let_go(&mut self) {
        self.unranked.clear();
        self.held.clear();
        if let Some(reranker) = &mut self.reranker {
            reranker.let_go();
        }
    }

    /// A page that stays readable.
    pub(crate) fn held(&self, number: u64) -> Option<&Page<'a>> {
        self.held.iter().find(|page| page.number() == number)
    }

    /// All of them.
    pub(crate) fn held_pages(&self) -> impl Iterator<Item = &Page<'a>> {
        self.held.iter()
    }

    /// Brings a candidate's node here: expands it if its bytes are in memory, else sees to it that its page is read. Where they come from, in
    /// which order, is the chain of [`page_source`](crate::stores::page_source).
    pub(crate) fn fetch(
        &mut self,
        key: u64,
        reader: &mut NodeReader<'a, N>,
    ) -> Result<Fetched, Error> {
        let node = node_of(key);
        let left_out = self.left_out.filter(|left_out| left_out.node == node);
        // Where it is the only one to start from, it leads on all the same.
        if left_out.is_some_and(|left_out| !left_out.leads_on) && self.frontier.len() > 1 {
            self.frontier.expanded(key);
            return Ok(Fetched::Expanded);
        }
        let number = self.page_of(node);
        // Once a candidate was put back because its node had moved, a page that was taken before the node came to it does not count
        // as here: it would say nothing, however often it is looked at.
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
            // Lists alone that need no read are not worth sharing: each candidate's is as near as any other's.
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
            // Its insert has not come so far after all the turns that were left to it, or was given up.
            self.frontier.expanded(key);
            return Ok(Fetched::Expanded);
        }
        if self.expand_cached(number, key)? {
            self.counters.cache_hits += 1;
            if !N::MOVES && reader.in_memory(number).is_some() {
                // It was written anew in its place since it was looked for there: what the cache had may be older.
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

    /// Puts arrivals into the order in which they were asked for. A page that was asked for twice stands in both places,
    /// so that the order is that of the candidates, whichever of them share pages.
    pub(crate) fn sort_by_request(&self, pages: &mut [Page<'_>]) {
        let mut rest = pages;
        for &(awaited, _) in &self.awaited {
            if let Some(at) = rest.iter().position(|page| page.number() == awaited) {
                rest.swap(0, at);
                rest = &mut rest[1..];
            }
        }
    }

    /// Takes a page that came in and expands the candidates that waited for it. Returns how many of them were
    /// still in the candidate list, and how many were not.
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
            // On the way through many that are deleted, memory is not to grow with them. What is let go is read again, if need be.
            self.rank_held(reader)?;
            self.held.clear();
        }
        Ok(arrival)
    }

    /// Forgets the reads in flight.
    pub(crate) fn reset(&mut self) {
        if let Some(reranker) = &mut self.reranker {
            reranker.reset();
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
