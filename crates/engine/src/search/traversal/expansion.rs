//! Expansion of a node whose record is in memory: scores its neighbours, and ranks the node.
//!
//! ```text
//!   record ──list──> with pending changes ──> neighbours not yet seen ──codes──> candidate list
//!      └───vector──> exact distance ──> results          (now, or when the traversal is done)
//! ```

use stratann_vector::LowCodes;

use super::*;
use crate::search::leading::ByLeading;

impl<'a, N: NodePages> Traversal<'a, N> {
    /// Expands a candidate. Without whole-page search, also ranks its node at once.
    pub(super) fn expand(&mut self, view: N::View<'_>, page: u64, key: u64) -> Result<(), Error> {
        let Some(slot) = view.slot_of(node_of(key)) else {
            return self.expand_pending(page, key);
        };
        let record = view.record(slot)?;
        if N::VECTORS {
            if !self.setting.whole_page {
                self.rank_on_the_path(key, &record)?;
            } else if self.ranking.promise.is_on() {
                self.rank_early(key, &record)?;
            }
            self.make_up_for(record.id, key);
        }
        self.expand_record(page, key, &record)
    }

    /// If a candidate is excluded, lets one more candidate into the list (OdinANN §3.4.1).
    pub(super) fn make_up_for(&mut self, id: u64, key: u64) {
        if !self.ranking.admission().admits(id, node_of(key)) {
            self.frontier.refuse(key);
        }
    }

    /// Expands a candidate whose record is not on the page that was read: the record waits to be
    /// written to this page, or has moved.
    #[cold]
    pub(super) fn expand_pending(&mut self, page: u64, key: u64) -> Result<(), Error> {
        let node = node_of(key);
        let Some(placement) = self.setting.graph.placement.get() else {
            return Err(self.not_there(node, page));
        };
        if let Some(record) = placement.pending.record(page as u32, node) {
            if N::VECTORS {
                let ranked = self.rank_waiting(key, record.id, &record.vector)?;
                self.note(key, ranked);
                self.make_up_for(record.id, key);
            }
            if self.frontier.expanded(key) {
                self.record_expansion(key);
                self.list.clear();
                self.list.extend_from_slice(&record.list);
                return self.expand_list(page, key, &[]);
            }
            return Ok(());
        }
        // In layouts that rewrite pages in place, the page may have been read before the node was
        // written to it.
        if u64::from(placement.page_of(node)) == page && !placement.is_even() {
            return Err(self.not_there(node, page));
        }
        // The candidate is tried again, because its record may be the only valid one of its id.
        // After too many tries, other nodes must lead to its neighbours.
        if !self.put_back(key) {
            self.frontier.expanded(key);
        }
        Ok(())
    }

    /// Puts a candidate back into the list, so that the search looks on its current page. Returns
    /// false after too many tries.
    pub(super) fn put_back(&mut self, key: u64) -> bool {
        let patient = self.patience > 0;
        if patient {
            self.patience -= 1;
            self.frontier.put_back(key);
        }
        patient
    }

    /// Puts a candidate back if `page` was rewritten, because the expansion of the candidate may
    /// have missed changes.
    pub(super) fn look_again(&mut self, page: &Page<'a>, key: u64, reader: &NodeReader<'a, N>) {
        if !reader.is_current(page) {
            self.put_back(key);
        }
    }

    /// The page of a node. For a node that moves between pages, the page to which it moves.
    pub(super) fn page_of(&self, node: u32) -> u64 {
        let number = self.setting.pages.page_of(node);
        match self.setting.graph.placement.get() {
            Some(placement) if number == u64::from(NOWHERE) => placement.page_soon(node).into(),
            _ => number,
        }
    }

    pub(super) fn record<'p>(&self, view: N::View<'p>, key: u64) -> Result<Record<'p>, Error>
    where
        N: 'p,
    {
        match view.slot_of(node_of(key)) {
            Some(slot) => view.record(slot),
            None => Err(self.not_there(node_of(key), self.setting.pages.page_of(node_of(key)))),
        }
    }

    /// Expands a candidate if the cache has its record from page `number`.
    pub(super) fn expand_cached(&mut self, number: u64, key: u64) -> Result<bool, Error> {
        let Some(cache) = self.setting.cache else {
            return Ok(false);
        };
        let mut bytes = std::mem::take(&mut self.cached);
        let mut expanded = false;
        if cache.get(node_of(key), number as u32, &mut bytes)
            && let Some(record) = Record::from_cached(&mut bytes, N::VECTORS)
        {
            if N::VECTORS {
                self.rank_on_the_path(key, &record)?;
                self.make_up_for(record.id, key);
            }
            self.expand_record(number, key, &record)?;
            expanded = true;
        }
        self.cached = bytes;
        Ok(expanded)
    }

    pub(super) fn expand_record(
        &mut self,
        page: u64,
        key: u64,
        record: &Record<'_>,
    ) -> Result<(), Error> {
        if !self.frontier.expanded(key) {
            return Ok(());
        }
        let node = node_of(key);
        self.record_expansion(key);
        let Setting { pages, timer, .. } = self.setting;
        timer.time(Part::Lists, || pages.list(node, record, &mut self.list))?;
        self.expand_list(page, key, record.codes)
    }

    pub(super) fn expand_list(&mut self, page: u64, key: u64, codes: &[u8]) -> Result<(), Error> {
        let node = node_of(key);
        let mut amended = std::mem::take(&mut self.amended);
        let mut codes = codes;
        let mut moved = false;
        if let Some(placement) = self.setting.graph.placement.get() {
            let (pending, list) = (&placement.pending, &mut self.list);
            if !N::CODES {
                pending.amend(page as u32, node, list);
            } else if pending.amend_coded(page as u32, node, list, codes, &mut amended) {
                codes = &amended;
            }
            // If the node has moved, pending changes of its list may have been written to its new
            // page.
            moved = N::MOVES && u64::from(placement.page_of(node)) != page;
        }
        // The loop has no branch on new neighbours, because a processor cannot predict such a
        // branch.
        self.fresh.resize(self.list.len(), 0);
        let (mut new, mut largest) = (0, 0);
        for (place, &neighbour) in self.list.iter().enumerate() {
            largest = largest.max(neighbour);
            self.fresh[new] = if N::CODES { place as u32 } else { neighbour };
            new += usize::from(self.visited.insert(neighbour));
        }
        self.fresh.truncate(new);
        if u64::from(largest) >= self.nodes && !self.is_new(largest) {
            // Pages that another process writes in place may be newer than the checkpoint. Newer
            // nodes are traversed, but not returned.
            if N::MOVES {
                return Err(self.bad_link(node, largest));
            }
        }
        if N::CODES {
            self.score(codes);
        } else if self.low.is_some() {
            self.meet();
        } else {
            self.score_in_memory();
        }
        self.amended = amended;
        if self.low.is_some() {
            // `refine` adds neighbours when all neighbours of this round are known.
            return Ok(());
        }
        for (&fresh, &score) in self.fresh.iter().zip(&self.scores) {
            let neighbour = if N::CODES {
                self.list[fresh as usize]
            } else {
                fresh
            };
            let key = frontier::key(score, neighbour);
            Self::admit(&mut self.frontier, &self.ranking, key);
        }
        if let Some(reranker) = &mut self.reranker
            && !N::PARTS
        {
            let touched = self.frontier.take_touched();
            reranker.expanded(&self.frontier, touched);
        }
        if moved {
            self.put_back(key);
        }
        Ok(())
    }

    #[cold]
    pub(super) fn bad_link(&self, node: u32, link: u32) -> Error {
        Error::Damaged {
            file: self.setting.graph.file.clone(),
            what: format!(
                "node {node} links to node {link}, but there are {} nodes",
                self.nodes
            ),
        }
    }

    #[cold]
    pub(super) fn bad_page(&self, page: u64, node: u32) -> Error {
        Error::Damaged {
            file: self.setting.graph.file.clone(),
            what: format!(
                "page {page} claims node {node}, but there are {} nodes",
                self.nodes
            ),
        }
    }

    #[cold]
    pub(super) fn not_there(&self, node: u32, page: u64) -> Error {
        Error::Damaged {
            file: self.setting.graph.file.clone(),
            what: format!("node {node} is not on page {page}, where it should be"),
        }
    }

    /// Puts the nodes of a page into the candidate list. The caller then adds the page to `held`.
    pub(super) fn share(&mut self, view: N::View<'_>, page: u64) -> Result<(), Error> {
        let count = view.len();
        self.fresh.clear();
        let mut largest = 0;
        for slot in 0..count {
            let node = view.node(slot)?;
            if !N::MOVES && u64::from(node) >= self.nodes && !self.is_new(node) {
                // The remaining nodes of the page are newer than the checkpoint.
                break;
            }
            largest = largest.max(node);
            self.fresh.push(node);
        }
        if u64::from(largest) >= self.nodes && !self.is_new(largest) {
            return Err(self.bad_page(page, largest));
        }
        if N::CODES {
            return self.share_exactly(view);
        }
        if let Some(placement) = self.setting.graph.placement.get() {
            // Nodes whose records wait to be written to this page count as nodes of the page.
            placement.pending.records_of(page as u32, &mut self.fresh);
            if self.fresh.len() > count {
                self.look();
            }
        }
        self.score_in_memory();
        let worth = self.ranking.worth_decoding();
        for (slot, (&node, &score)) in self.fresh.iter().zip(&self.scores).enumerate() {
            let key = key(score, node);
            if self.visited.insert(node) {
                Self::admit(&mut self.frontier, &self.ranking, key);
            }
            // A node within the bound of the candidate list is always ranked.
            let ranks = N::VECTORS && slot < count;
            if ranks
                && (worth.admits(node, score) || key <= self.frontier.bound())
                && !self.ranking.admission().rules_out(node)
            {
                self.unranked.push((key, self.held.len() as u32));
            }
        }
        Ok(())
    }

    /// Exact distances serve as estimates, because codes are in the records of other nodes.
    pub(super) fn share_exactly(&mut self, view: N::View<'_>) -> Result<(), Error> {
        let Setting { pages, timer, .. } = self.setting;
        for slot in 0..self.fresh.len() {
            let (node, record) = (self.fresh[slot], view.record(slot)?);
            let scratch = &mut self.vector;
            let vector = timer.time(Part::Vectors, || pages.vector(node, &record, scratch))?;
            let distance = self.ranking.rank_exactly(node, record.id, vector);
            let fresh = self.visited.insert(node);
            if fresh {
                let key = key(distance, node);
                Self::admit_exactly(&mut self.frontier, &self.ranking, key, true);
            }
            if self.ranking.promise.is_on() {
                self.note_shared(node, record.id, distance, fresh);
            }
        }
        Ok(())
    }

    #[inline]
    pub(super) fn admit(frontier: &mut Frontier, ranking: &Ranking<'_>, key: u64) {
        frontier.insert_unless(key, |node| ranking.admission().rules_out(node));
    }

    /// Ranks a node by its exact distance, or by its leading part. `None` if the node is excluded.
    pub(super) fn rank(&mut self, key: u64, record: &Record<'_>) -> Result<Option<f32>, Error> {
        let node = node_of(key);
        if !N::MOVES && u64::from(node) >= self.nodes && !self.is_new(node) {
            return Ok(None);
        }
        if self.ranks_nothing() || self.ranking.admission().rules_out(node) {
            return Ok(None);
        }
        let Setting { pages, timer, .. } = self.setting;
        let scratch = &mut self.vector;
        let vector = timer.time(Part::Vectors, || {
            pages.vector(node_of(key), record, scratch)
        })?;
        if N::PARTS {
            let candidate = ByLeading {
                node,
                id: record.id,
                distance: 0.0,
                part: record.vector,
                error: pages.error(node, record.vector),
            };
            Ok(self.ranking.rank_leading(Some(key), candidate, vector))
        } else {
            let exact = self.ranking.rank(key, record.id, vector);
            Ok(exact.map(|exact| exact.distance))
        }
    }

    /// Whether the walk runs for an insert, which takes its candidates from held pages.
    fn ranks_nothing(&self) -> bool {
        N::PARTS && self.setting.hold
    }

    /// Ranks a node whose record waits for its page. A vector in two parts is ranked by the leading
    /// part that the page will have, like the vectors of other nodes.
    #[cold]
    fn rank_waiting(&mut self, key: u64, id: u64, vector: &[u8]) -> Result<Option<f32>, Error> {
        if !N::PARTS {
            let exact = self.ranking.rank(key, id, vector);
            return Ok(exact.map(|exact| exact.distance));
        }
        if self.ranks_nothing() {
            return Ok(None);
        }
        let mut part = std::mem::take(&mut self.cached);
        part.clear();
        let encoded = self
            .setting
            .pages
            .leading_part(node_of(key), vector, &mut part);
        let record = Record {
            id,
            ..Record::of_vector(&part)
        };
        let ranked = encoded.and_then(|()| self.rank(key, &record));
        self.cached = part;
        ranked
    }

    #[inline]
    pub(super) fn score_in_memory(&mut self) {
        let Some(code_parts) = self.setting.code_parts else {
            return self.score(self.codes);
        };
        if let Some(low) = &mut self.low {
            let (fresh, scores, timer) = (&self.fresh, &mut self.scores, self.setting.timer);
            timer.time(Part::Codes, || low.score(code_parts.low, fresh, scores));
            self.counters.distance_computations += fresh.len() as u64;
            self.counters.low_computations += fresh.len() as u64;
            return self.go_on(code_parts);
        }
        if code_parts.low_codes() == LowCodes::Separate {
            return self.score(code_parts.rest);
        }
        let Self {
            fresh,
            scores,
            joined,
            places,
            ..
        } = self;
        code_parts.join(fresh, joined);
        places.extend(places.len() as u32..fresh.len() as u32);
        scores.resize(scores.len().max(fresh.len()), 0.0);
        let (places, scores) = (&places[..fresh.len()], &mut scores[..fresh.len()]);
        let timer = self.setting.timer;
        timer.time(Part::Codes, || {
            self.table.score(joined, places, scores);
            code_parts.correct(fresh, scores);
        });
        self.counters.distance_computations += fresh.len() as u64;
    }

    fn go_on(&mut self, code_parts: CodeParts<'_>) {
        let (table, fresh, timer) = (&self.table, &self.fresh, self.setting.timer);
        let (sums, scores) = (&mut self.sums, &mut self.scores[..fresh.len()]);
        timer.time(Part::Codes, || code_parts.go_on(table, fresh, sums, scores));
        self.counters.distance_computations += fresh.len() as u64;
    }

    fn meet(&mut self) {
        let (Some(low), Some(code_parts)) = (&mut self.low, self.setting.code_parts) else {
            return;
        };
        let (fresh, timer) = (&self.fresh, self.setting.timer);
        timer.time(Part::Codes, || low.meet(code_parts.low, fresh));
        self.counters.distance_computations += fresh.len() as u64;
        self.counters.low_computations += fresh.len() as u64;
    }

    /// Returns whether there is a low list.
    pub(super) fn begin_by_low_codes(&mut self) -> bool {
        let (Some(low), Some(code_parts)) = (&mut self.low, self.setting.code_parts) else {
            return false;
        };
        let entry = self.setting.entries.first().copied().unwrap_or(0);
        let before = low.computations();
        self.scores.clear();
        low.seeds(code_parts.low, entry, &mut self.fresh, &mut self.scores);
        let computations = low.computations() - before;
        self.counters.distance_computations += computations;
        self.counters.low_computations += computations;
        for &seed in &self.fresh {
            self.visited.insert(seed);
        }
        self.go_on(code_parts);
        self.admit_fresh();
        true
    }

    pub(super) fn begin_at_seeds(&mut self) -> bool {
        let Some(seeding) = &mut self.seeding else {
            return false;
        };
        let entry = self.setting.entries.first().copied().unwrap_or(0);
        let parts = self.setting.code_parts;
        let codes = parts.map_or(self.codes, |parts| parts.low);
        self.scores.clear();
        seeding.seeds(codes, entry, &mut self.fresh, &mut self.scores);
        self.counters.distance_computations += seeding.computations();
        for &seed in &self.fresh {
            self.visited.insert(seed);
        }
        if parts.is_some() {
            self.counters.low_computations += seeding.computations();
            self.score_in_memory();
        }
        self.admit_fresh();
        true
    }

    fn admit_fresh(&mut self) {
        for (&node, &score) in self.fresh.iter().zip(&self.scores) {
            Self::admit(
                &mut self.frontier,
                &self.ranking,
                frontier::key(score, node),
            );
        }
    }

    /// `ExpandHigh` of PRESS (DistVS §3.1).
    pub(crate) fn refine(&mut self) {
        let (Some(low), Some(code_parts)) = (&mut self.low, self.setting.code_parts) else {
            return;
        };
        self.fresh.clear();
        self.scores.clear();
        low.take(&mut self.fresh, &mut self.scores);
        self.go_on(code_parts);
        self.admit_fresh();
    }

    #[inline]
    pub(super) fn score(&mut self, codes: &[u8]) {
        if self.scores.len() < self.fresh.len() {
            self.scores.resize(self.fresh.len(), 0.0);
        }
        let scores = &mut self.scores[..self.fresh.len()];
        let timer = self.setting.timer;
        timer.time(Part::Codes, || self.table.score(codes, &self.fresh, scores));
        self.counters.distance_computations += self.fresh.len() as u64;
    }
}
