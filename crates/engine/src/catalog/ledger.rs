//! Counts the memory of a catalog's indexes, and decides which indexes are closed to make room for
//! others.
//!
//! ```text
//!   fixed       the program and the queries in flight
//!   codebooks   by content hash, with the number of indexes that use each codebook
//!   open        indexes that can be found by name; without callers, they may be closed
//!   opening     indexes that are being opened: counted from the time that they are admitted
//!   held        indexes that were closed or replaced, until the last caller drops them
//!   lent        indexes that callers opened again or for changes, until the last caller drops them
//!
//!   closed or dropped in this order:   unused codebooks, except the one used last
//!                                      indexes without callers, the least recently used first
//!                                      the codebook used last, if it is unused
//! ```
//!
//! The codebook used last is dropped last, because the next index may share it. So indexes that
//! share a codebook can alternate in memory.

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use super::{MOST_OPEN, Stamp};
use crate::index::Shared;
use crate::plan::Needs;
use crate::{Error, Index};

/// Without a budget, at most this many unused codebooks stay in memory.
const MOST_SPARE_CODEBOOKS: usize = 16;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Charge {
    number: u64,
    bytes: u64,
    /// The most bytes that a larger budget would lease to the index, or `bytes` without a lease.
    most: u64,
    /// The hash of the index's codebook, if the codebook may be shared.
    codebook: Option<String>,
}

#[derive(Clone, Copy)]
pub(super) struct Wanted<'a> {
    pub(super) bytes: u64,
    pub(super) codebook: Option<(&'a str, u64)>,
}

struct Newcomer<'a> {
    /// A description of the index for messages.
    what: &'a str,
    charge: &'a Charge,
    /// The number of the replaced index, or 0. The replaced index may stay until its callers drop
    /// it.
    instead: u64,
}

pub(super) enum Refusal {
    /// The index can never fit, or the reason is not memory.
    Never(Error),
    /// The index would fit if callers dropped other indexes.
    Beside(Beside),
}

pub(super) struct Beside {
    pub(super) budget: u64,
    /// The budget that suffices for this index and the others, including all memory that this
    /// budget would lease to them.
    pub(super) needs: u64,
    what: String,
    others: usize,
}

impl Beside {
    /// The error for a change that has waited for the time `waited`.
    pub(super) fn crowded(self, waited: Duration) -> Error {
        Error::Crowded {
            budget: self.budget,
            needs: self.needs,
            what: self.what,
            others: self.others,
            waited,
        }
    }
}

impl From<Refusal> for Error {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::Never(error) => error,
            Refusal::Beside(beside) => Self::Memory {
                budget: beside.budget,
                needs: beside.needs,
                part: format!(
                    "{} beside the other indexes in use ({}), which stay open until their handles are dropped (in Python, `Index.close` ends the changes of an index)",
                    beside.what, beside.others
                ),
            },
        }
    }
}

struct Open {
    index: Arc<Index>,
    stamp: Stamp,
    used: u64,
    charge: Charge,
}

impl Open {
    /// Whether no caller has the index. While the ledger is locked, no caller can get the index.
    fn is_free(&self) -> bool {
        Arc::strong_count(&self.index) == 1
    }
}

struct Kept {
    bytes: u64,
    used: u64,
    users: usize,
    /// Whether the content of the codebook was checked against its hash.
    checked: bool,
}

pub(super) struct Ledger {
    budget: Option<u64>,
    /// The bytes of the program and of the queries in flight. `program` has the parameters of this
    /// sum.
    fixed: u64,
    program: Needs,
    shared: Arc<Shared>,
    /// The number of uses so far. A larger number means a later use.
    clock: u64,
    codebooks: HashMap<String, Kept>,
    last_codebook: Option<String>,
    open: HashMap<String, Open>,
    opening: HashMap<String, Charge>,
    held: Vec<(Weak<Index>, Charge)>,
    lent: HashMap<u64, Charge>,
    pub(super) waiting: usize,
}

impl Ledger {
    pub(super) fn new(
        budget: Option<u64>,
        fixed: u64,
        program: Needs,
        shared: Arc<Shared>,
    ) -> Self {
        Self {
            budget,
            fixed,
            program,
            shared,
            clock: 0,
            codebooks: HashMap::new(),
            last_codebook: None,
            open: HashMap::new(),
            opening: HashMap::new(),
            held: Vec::new(),
            lent: HashMap::new(),
            waiting: 0,
        }
    }

    pub(super) fn bytes(&mut self) -> u64 {
        self.forget_dropped();
        self.sum()
    }

    fn sum(&self) -> u64 {
        let open = self.open.values().map(|open| open.charge.bytes);
        let opening = self.opening.values().map(|charge| charge.bytes);
        let held = self.held.iter().map(|(_, charge)| charge.bytes);
        let lent = self.lent.values().map(|charge| charge.bytes);
        let codebooks = self.codebooks.values().map(|kept| kept.bytes);
        let indexes = open.chain(opening).chain(held).chain(lent);
        self.fixed + indexes.chain(codebooks).sum::<u64>()
    }

    pub(super) fn open_count(&mut self) -> usize {
        self.forget_dropped();
        self.open.len() + self.held.len() + self.lent.len()
    }

    pub(super) fn codebook_count(&self) -> usize {
        self.codebooks.len()
    }

    /// The open index of this name, if it is the version on disk. The call counts as a use.
    pub(super) fn find(&mut self, name: &str, stamp: Stamp) -> Option<Arc<Index>> {
        let now = self.tick();
        let open = self.open.get_mut(name).filter(|open| open.stamp == stamp)?;
        open.used = now;
        let index = open.index.clone();
        if let Some(codebook) = index.codebook() {
            self.use_codebook(codebook.hash(), now);
        }
        Some(index)
    }

    fn use_codebook(&mut self, hash: &str, now: u64) {
        if let Some(kept) = self.codebooks.get_mut(hash) {
            kept.used = now;
        }
        if self.last_codebook.as_deref() != Some(hash) {
            self.last_codebook = Some(hash.to_owned());
        }
    }

    pub(super) fn is_open(&self, name: &str) -> bool {
        self.open.contains_key(name)
    }

    pub(super) fn is_opening(&self, name: &str) -> bool {
        self.opening.contains_key(name)
    }

    pub(super) fn begin(&mut self, name: &str) {
        self.opening.insert(name.to_owned(), Charge::default());
    }

    fn charge(&mut self, wanted: Wanted<'_>) -> Charge {
        if let Some((hash, bytes)) = wanted.codebook {
            // The codebook counts as used from now on, so that its own index does not displace it.
            let kept = self.codebooks.entry(hash.to_owned()).or_insert(Kept {
                bytes,
                used: 0,
                users: 0,
                checked: false,
            });
            kept.users += 1;
        }
        Charge {
            number: self.tick(),
            bytes: wanted.bytes,
            most: wanted.bytes,
            codebook: wanted.codebook.map(|(hash, _)| hash.to_owned()),
        }
    }

    /// The caller must unlock the ledger before it drops the returned, closed indexes.
    pub(super) fn admit(
        &mut self,
        name: &str,
        wanted: Wanted<'_>,
    ) -> Result<(u64, Vec<Arc<Index>>), Refusal> {
        self.forget_dropped();
        let charge = self.charge(wanted);
        self.opening.insert(name.to_owned(), charge.clone());
        let mut closed = Vec::new();
        let newcomer = Newcomer {
            what: &format!("the index {name:?}"),
            charge: &charge,
            instead: 0,
        };
        if let Err(refusal) = self.make_room(&newcomer, &mut closed) {
            self.abandon(name);
            self.begin(name);
            return Err(refusal);
        }
        Ok((charge.number, closed))
    }

    pub(super) fn has_lent(&self) -> bool {
        !self.lent.is_empty()
    }

    /// Admits an index in place of the index `instead`, with the bytes that the new index needs,
    /// plus half of the free bytes, together at most `most`. Closed indexes are returned as by
    /// [`admit`](Ledger::admit).
    pub(super) fn lend(
        &mut self,
        what: &str,
        wanted: Wanted<'_>,
        most: u64,
        instead: u64,
    ) -> Result<(u64, u64, Vec<Arc<Index>>), Refusal> {
        self.forget_dropped();
        let mut charge = self.charge(wanted);
        charge.most = most.max(charge.bytes);
        let number = charge.number;
        self.lent.insert(number, charge.clone());
        let mut closed = Vec::new();
        let newcomer = Newcomer {
            what,
            charge: &charge,
            instead,
        };
        if let Err(error) = self.make_room(&newcomer, &mut closed) {
            self.give_back(number);
            return Err(error);
        }
        let free = self.free(instead);
        charge.bytes += most.saturating_sub(charge.bytes).min(free / 2);
        let bytes = charge.bytes;
        self.lent.insert(number, charge);
        while self.is_over_budget(instead) && self.close_oldest(&mut closed) {}
        // No later call finds the replaced index by name, so it is closed when its callers drop it.
        let mut open = self.open.iter();
        let name = open.find(|(_, open)| open.charge.number == instead);
        if let Some(name) = name.map(|(name, _)| name.clone()) {
            closed.extend(self.retire(&name));
        }
        Ok((number, bytes, closed))
    }

    /// Leases more bytes to an index. Closed indexes are returned as by [`admit`](Ledger::admit).
    pub(super) fn grow(
        &mut self,
        what: &str,
        number: u64,
        more: u64,
    ) -> Result<Vec<Arc<Index>>, Refusal> {
        self.forget_dropped();
        let mut closed = Vec::new();
        let Some(before) = self.lent.get(&number).cloned() else {
            return Ok(closed);
        };
        let bytes = before.bytes.saturating_add(more);
        let charge = Charge {
            bytes,
            most: before.most.max(bytes),
            ..before.clone()
        };
        self.lent.insert(number, charge.clone());
        let newcomer = Newcomer {
            what,
            charge: &charge,
            instead: 0,
        };
        if let Err(refusal) = self.make_room(&newcomer, &mut closed) {
            self.lent.insert(number, before);
            return Err(refusal);
        }
        Ok(closed)
    }

    pub(super) fn shrink(&mut self, number: u64, by: u64) {
        if let Some(charge) = self.lent.get_mut(&number) {
            charge.bytes = charge.bytes.saturating_sub(by);
        }
    }

    /// Ends the lease of an index that a caller had opened, or had failed to open.
    pub(super) fn give_back(&mut self, number: u64) {
        let Some(charge) = self.lent.remove(&number) else {
            return;
        };
        release(&mut self.codebooks, &charge);
        if let Some(hash) = &charge.codebook
            && !self.is_checked(hash)
        {
            self.drop_unused_codebook(hash);
        }
    }

    /// The bytes of an index, including its codebook if no other index uses this codebook. 0 if the
    /// index is gone.
    fn bytes_of(&self, number: u64) -> u64 {
        let open = self.open.values().map(|open| &open.charge);
        let held = self.held.iter().map(|(_, charge)| charge);
        let mut all = open.chain(held).chain(self.lent.values());
        let Some(charge) = all.find(|charge| charge.number == number) else {
            return 0;
        };
        let codebook = charge.codebook.as_ref();
        let own = codebook.and_then(|hash| self.codebooks.get(hash));
        let own = own.filter(|kept| kept.users == 1);
        charge.bytes + own.map_or(0, |kept| kept.bytes)
    }

    /// The bytes that would be free without the index `but` and all indexes without callers. 0
    /// without a budget.
    fn free(&mut self, but: u64) -> u64 {
        let closable = self.open.values().filter(|open| open.is_free());
        let closable = closable.filter(|open| open.charge.number != but);
        let closable: u64 = closable.map(|open| open.charge.bytes).sum();
        let gone = closable + self.bytes_of(but);
        let used = self.bytes().saturating_sub(gone);
        self.budget.map_or(0, |budget| budget.saturating_sub(used))
    }

    fn make_room(
        &mut self,
        newcomer: &Newcomer<'_>,
        closed: &mut Vec<Arc<Index>>,
    ) -> Result<(), Refusal> {
        self.check_alone(newcomer).map_err(Refusal::Never)?;
        while self.open.len() + self.opening.len() + self.held.len() + self.lent.len() > MOST_OPEN {
            if !self.close_oldest(closed) {
                return Err(Refusal::Never(Error::call(
                    "number of indexes that the catalog has open",
                    self.open.len() + self.held.len() + self.lent.len(),
                    format!(
                        "a catalog must have fewer than {MOST_OPEN} open indexes before it opens another one"
                    ),
                    "Drop the indexes that you do not search",
                )));
            }
        }
        while self.is_over_budget(newcomer.instead) {
            let gone = self.drop_spare_codebook(true)
                || self.close_oldest(closed)
                || self.drop_spare_codebook(false);
            if !gone {
                return Err(Refusal::Beside(self.too_small(newcomer)));
            }
        }
        Ok(())
    }

    /// Whether the bytes in use, without the index `but`, exceed the budget.
    fn is_over_budget(&mut self, but: u64) -> bool {
        match self.budget {
            Some(budget) => self.bytes().saturating_sub(self.bytes_of(but)) > budget,
            None => self.spare_codebooks().count() > MOST_SPARE_CODEBOOKS,
        }
    }

    /// Refuses an index that can never fit, before any other index is closed for it.
    fn check_alone(&self, newcomer: &Newcomer<'_>) -> Result<(), Error> {
        let alone = self.alone(newcomer.charge);
        match self.budget {
            Some(budget) if self.fixed.saturating_add(alone) > budget => Err(Error::Memory {
                budget,
                needs: self.program.budget_with(alone),
                part: format!("the program, its queries and {} alone", newcomer.what),
            }),
            _ => Ok(()),
        }
    }

    /// The bytes in use if the index were alone in memory with the program.
    fn alone(&self, charge: &Charge) -> u64 {
        let codebook = charge.codebook.as_ref();
        let kept = codebook.and_then(|hash| self.codebooks.get(hash));
        charge
            .bytes
            .saturating_add(kept.map_or(0, |kept| kept.bytes))
    }

    fn too_small(&mut self, newcomer: &Newcomer<'_>) -> Beside {
        let all = self.open.len() + self.held.len() + self.opening.len() + self.lent.len();
        let instead = self.bytes_of(newcomer.instead);
        let others = all - 1 - usize::from(instead > 0);
        let indexes = self.bytes().saturating_sub(self.fixed + instead);
        // A larger budget would also lease more memory to the other indexes.
        let others_lent = self.lent.values();
        let others_lent = others_lent.filter(|charge| charge.number != newcomer.instead);
        let rest: u64 = others_lent.map(|charge| charge.most - charge.bytes).sum();
        // A caller may open this index for changes next.
        let is_lent = self.lent.contains_key(&newcomer.charge.number);
        let next = self.lent.values().map(|charge| charge.most).max();
        let rest = rest + next.filter(|_| !is_lent).unwrap_or(0);
        Beside {
            budget: self.budget.unwrap_or(u64::MAX),
            needs: self.program.budget_with(indexes.saturating_add(rest)),
            what: newcomer.what.to_owned(),
            others,
        }
    }

    /// Closes the least recently used index that no caller has. Returns whether there was such an
    /// index.
    fn close_oldest(&mut self, closed: &mut Vec<Arc<Index>>) -> bool {
        let free = self.open.iter().filter(|(_, open)| open.is_free());
        let oldest = free.min_by_key(|(_, open)| open.used);
        let Some(name) = oldest.map(|(name, _)| name.clone()) else {
            return false;
        };
        closed.extend(self.retire(&name));
        true
    }

    /// Closed indexes are returned as by [`admit`](Ledger::admit).
    pub(super) fn close_some(&mut self, most: usize) -> Vec<Arc<Index>> {
        let mut closed = Vec::new();
        while closed.len() < most && self.close_oldest(&mut closed) {}
        closed
    }

    fn spare_codebooks(&self) -> impl Iterator<Item = (&String, &Kept)> {
        self.codebooks.iter().filter(|(_, kept)| kept.users == 0)
    }

    /// With `but_last`, the codebook that was used last is not dropped.
    fn drop_spare_codebook(&mut self, but_last: bool) -> bool {
        let last = self.last_codebook.as_ref().filter(|_| but_last);
        let spare = self
            .spare_codebooks()
            .filter(|(hash, _)| Some(*hash) != last);
        let oldest = spare.min_by_key(|(_, kept)| kept.used);
        let Some(hash) = oldest.map(|(hash, _)| hash.clone()) else {
            return false;
        };
        self.drop_codebook(&hash);
        true
    }

    fn drop_codebook(&mut self, hash: &str) {
        self.codebooks.remove(hash);
        // While the ledger is locked, no index that needs the codebook can be admitted.
        self.shared.forget_codebook(hash);
    }

    pub(super) fn settle(&mut self, name: &str, index: &Arc<Index>, stamp: Stamp) {
        let used = self.tick();
        if let Some(codebook) = index.codebook() {
            self.use_codebook(codebook.hash(), used);
        }
        let charge = self.opening.remove(name).unwrap_or_default();
        let open = Open {
            index: index.clone(),
            stamp,
            used,
            charge,
        };
        self.open.insert(name.to_owned(), open);
    }

    /// Frees the memory of an index that was not opened, unless it was [settled](Ledger::settle).
    pub(super) fn abandon(&mut self, name: &str) {
        let Some(charge) = self.opening.remove(name) else {
            return;
        };
        release(&mut self.codebooks, &charge);
        if let Some(hash) = &charge.codebook {
            self.drop_unused_codebook(hash);
        }
    }

    fn drop_unused_codebook(&mut self, hash: &str) {
        if self.codebooks.get(hash).is_some_and(|kept| kept.users == 0) {
            self.drop_codebook(hash);
        }
    }

    /// Closed indexes are returned as by [`admit`](Ledger::admit).
    pub(super) fn close_all(&mut self) -> Vec<Arc<Index>> {
        let names: Vec<String> = self.open.keys().cloned().collect();
        let closed = names.iter().filter_map(|name| self.retire(name));
        closed.collect()
    }

    /// Closes an index. Its memory counts until no caller has the index.
    pub(super) fn retire(&mut self, name: &str) -> Option<Arc<Index>> {
        let open = self.open.remove(name)?;
        if open.is_free() {
            release(&mut self.codebooks, &open.charge);
        } else {
            self.held.push((Arc::downgrade(&open.index), open.charge));
        }
        Some(open.index)
    }

    pub(super) fn is_checked(&self, hash: &str) -> bool {
        self.codebooks.get(hash).is_some_and(|kept| kept.checked)
    }

    pub(super) fn set_checked(&mut self, hash: &str) {
        if let Some(kept) = self.codebooks.get_mut(hash) {
            kept.checked = true;
        }
    }

    fn forget_dropped(&mut self) {
        let codebooks = &mut self.codebooks;
        self.held.retain(|(index, charge)| {
            let alive = index.strong_count() > 0;
            if !alive {
                release(codebooks, charge);
            }
            alive
        });
        // If callers dropped an index, a new index may already use the memory of its codebook.
        let is_over = |ledger: &Self| ledger.budget.is_some_and(|budget| ledger.sum() > budget);
        while is_over(self) && self.drop_spare_codebook(false) {}
    }

    fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }
}

fn release(codebooks: &mut HashMap<String, Kept>, charge: &Charge) {
    let hash = charge.codebook.as_deref();
    if let Some(kept) = hash.and_then(|hash| codebooks.get_mut(hash)) {
        kept.users -= 1;
    }
}
