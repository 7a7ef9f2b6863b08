//! The ledger of a catalog: what is in memory, and what has to go for what is to come.
//!
//! ```text
//!   fixed       the program and the queries in flight
//!   codebooks   by content hash, with the number of indexes that use each
//!   open        indexes that will be found; those that no caller holds may go
//!   opening     indexes that are being opened: accounted for from the moment that they are admitted
//!   held        indexes that were closed or replaced, until the last caller drops them
//!
//!   to go, in this order:   codebooks that nobody uses, but the one used last
//!                           indexes that nobody holds, the least recently used first
//!                           the codebook used last, if nobody uses it
//! ```
//!
//! The codebook used last stays as long as it can, so that a switch between two indexes of one space, of which only one
//! has room, does not read it again.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use super::{MOST_OPEN, Stamp};
use crate::index::Shared;
use crate::{Error, Index};

/// Codebooks without an index that are kept where no budget bounds them.
const MOST_SPARE_CODEBOOKS: usize = 16;

/// What an index takes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Charge {
    /// Bytes that are its own.
    bytes: u64,
    /// The codebook that it uses, by its hash, if that may be shared.
    codebook: Option<String>,
}

/// An index that is open.
struct Open {
    index: Arc<Index>,
    stamp: Stamp,
    used: u64,
    charge: Charge,
}

/// A codebook in memory.
struct Kept {
    bytes: u64,
    used: u64,
    users: usize,
    /// Whether its content is what its hash says.
    checked: bool,
}

/// See the module.
pub(super) struct Ledger {
    budget: Option<u64>,
    fixed: u64,
    shared: Arc<Shared>,
    /// Counts uses: the larger, the later.
    clock: u64,
    codebooks: HashMap<String, Kept>,
    /// The hash of the one used last.
    last_codebook: Option<String>,
    open: HashMap<String, Open>,
    opening: HashMap<String, Charge>,
    held: Vec<(Weak<Index>, Charge)>,
}

impl Ledger {
    pub(super) fn new(budget: Option<u64>, fixed: u64, shared: Arc<Shared>) -> Self {
        Self {
            budget,
            fixed,
            shared,
            clock: 0,
            codebooks: HashMap::new(),
            last_codebook: None,
            open: HashMap::new(),
            opening: HashMap::new(),
            held: Vec::new(),
        }
    }

    /// Bytes that are accounted for.
    pub(super) fn bytes(&mut self) -> u64 {
        self.forget_dropped();
        let open = self.open.values().map(|open| open.charge.bytes);
        let opening = self.opening.values().map(|charge| charge.bytes);
        let held = self.held.iter().map(|(_, charge)| charge.bytes);
        let codebooks = self.codebooks.values().map(|kept| kept.bytes);
        self.fixed
            + open
                .chain(opening)
                .chain(held)
                .chain(codebooks)
                .sum::<u64>()
    }

    /// Indexes with open files.
    pub(super) fn open_count(&mut self) -> usize {
        self.forget_dropped();
        self.open.len() + self.held.len()
    }

    /// Codebooks in memory.
    pub(super) fn codebook_count(&self) -> usize {
        self.codebooks.len()
    }

    /// The open index of this name if it is the one on disk; counts as a use.
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

    /// A codebook is that of the index used last.
    fn use_codebook(&mut self, hash: &str, now: u64) {
        if let Some(kept) = self.codebooks.get_mut(hash) {
            kept.used = now;
        }
        if self.last_codebook.as_deref() != Some(hash) {
            self.last_codebook = Some(hash.to_owned());
        }
    }

    /// Whether an index will be found, if it is still the one on disk.
    pub(super) fn is_open(&self, name: &str) -> bool {
        self.open.contains_key(name)
    }

    /// Whether a thread is opening this index.
    pub(super) fn is_opening(&self, name: &str) -> bool {
        self.opening.contains_key(name)
    }

    /// A thread begins to open an index.
    pub(super) fn begin(&mut self, name: &str) {
        self.opening.insert(name.to_owned(), Charge::default());
    }

    /// Admits an index that is being opened, with the bytes that are its own and its codebook's hash and bytes. Gives the
    /// indexes that had to go for it, to be dropped when the ledger is no longer locked.
    pub(super) fn admit(
        &mut self,
        name: &str,
        bytes: u64,
        codebook: Option<(&str, u64)>,
    ) -> Result<Vec<Arc<Index>>, Error> {
        self.forget_dropped();
        if let Some((hash, bytes)) = codebook {
            // Counted now, so that it does not go to make room for its own index.
            let kept = self.codebooks.entry(hash.to_owned()).or_insert(Kept {
                bytes,
                used: 0,
                users: 0,
                checked: false,
            });
            kept.users += 1;
        }
        let charge = Charge {
            bytes,
            codebook: codebook.map(|(hash, _)| hash.to_owned()),
        };
        self.opening.insert(name.to_owned(), charge);
        let mut closed = Vec::new();
        // What cannot be admitted is given back by who began to open it.
        self.make_room(name, &mut closed)?;
        Ok(closed)
    }

    /// Closes what has to go until everything fits.
    fn make_room(&mut self, name: &str, closed: &mut Vec<Arc<Index>>) -> Result<(), Error> {
        self.check_alone(name)?;
        while self.open.len() + self.opening.len() + self.held.len() > MOST_OPEN {
            if !self.close_oldest(closed) {
                return Err(Error::call(
                    "indexes of the catalog that are held",
                    self.open.len() + self.held.len(),
                    format!("fewer than {MOST_OPEN}: drop those that are not being searched"),
                ));
            }
        }
        while self.is_over_budget() {
            let gone = self.drop_spare_codebook(true)
                || self.close_oldest(closed)
                || self.drop_spare_codebook(false);
            if !gone {
                return Err(self.too_small(name));
            }
        }
        Ok(())
    }

    fn is_over_budget(&mut self) -> bool {
        match self.budget {
            Some(budget) => self.bytes() > budget,
            None => self.spare_codebooks().count() > MOST_SPARE_CODEBOOKS,
        }
    }

    /// Refuses an index that cannot fit, before anything goes for it.
    fn check_alone(&self, name: &str) -> Result<(), Error> {
        let needs = self.needs_alone(name);
        match self.budget {
            Some(budget) if needs > budget => Err(Error::Memory {
                budget,
                needs,
                part: format!("the program, its queries and the index {name:?} alone"),
            }),
            _ => Ok(()),
        }
    }

    /// What an index that is being opened takes with nothing else in memory.
    fn needs_alone(&self, name: &str) -> u64 {
        let Some(charge) = self.opening.get(name) else {
            return self.fixed;
        };
        let codebook = charge.codebook.as_ref();
        let kept = codebook.and_then(|hash| self.codebooks.get(hash));
        self.fixed + charge.bytes + kept.map_or(0, |kept| kept.bytes)
    }

    /// An index would fit, but not beside those that are in use.
    fn too_small(&mut self, name: &str) -> Error {
        let others = self.open.len() + self.held.len() + self.opening.len() - 1;
        Error::Memory {
            budget: self.budget.unwrap_or(u64::MAX),
            needs: self.bytes(),
            part: format!(
                "the index {name:?} beside {others} that are in use, which stay until those who hold them drop them"
            ),
        }
    }

    /// Closes the least recently used index that no caller holds. Says whether there is one.
    fn close_oldest(&mut self, closed: &mut Vec<Arc<Index>>) -> bool {
        // Nobody can get hold of it meanwhile: only the ledger, which is locked, has it.
        let free = |(_, open): &(&String, &Open)| Arc::strong_count(&open.index) == 1;
        let oldest = self
            .open
            .iter()
            .filter(free)
            .min_by_key(|(_, open)| open.used);
        let Some(name) = oldest.map(|(name, _)| name.clone()) else {
            return false;
        };
        closed.extend(self.retire(&name));
        true
    }

    /// Closes up to so many of the least recently used indexes that no caller holds. Gives them, to be dropped when the ledger is no longer locked.
    pub(super) fn close_some(&mut self, most: usize) -> Vec<Arc<Index>> {
        let mut closed = Vec::new();
        while closed.len() < most && self.close_oldest(&mut closed) {}
        closed
    }

    /// Codebooks that no index uses.
    fn spare_codebooks(&self) -> impl Iterator<Item = (&String, &Kept)> {
        self.codebooks.iter().filter(|(_, kept)| kept.users == 0)
    }

    /// Drops the least recently used codebook that no index uses; with `but_last`, not if it is the one used last of all.
    /// Says whether there is one.
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
        // With the ledger locked, so that no index is admitted that counts on it.
        self.shared.forget_codebook(hash);
    }

    /// An index that was being opened is open.
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

    /// An index that was being opened is not, unless it was [settled](Ledger::settle): gives back what it was granted.
    pub(super) fn abandon(&mut self, name: &str) {
        let Some(charge) = self.opening.remove(name) else {
            return;
        };
        release(&mut self.codebooks, &charge);
        if let Some(hash) = &charge.codebook
            && self.codebooks.get(hash).is_some_and(|kept| kept.users == 0)
        {
            // It may not have been read, or not be what it says.
            self.drop_codebook(hash);
        }
    }

    /// Closes an index. It is accounted for until nobody holds it.
    pub(super) fn retire(&mut self, name: &str) -> Option<Arc<Index>> {
        let open = self.open.remove(name)?;
        if Arc::strong_count(&open.index) == 1 {
            release(&mut self.codebooks, &open.charge);
        } else {
            self.held.push((Arc::downgrade(&open.index), open.charge));
        }
        Some(open.index)
    }

    /// Whether the content of a codebook was compared with its hash.
    pub(super) fn is_checked(&self, hash: &str) -> bool {
        self.codebooks.get(hash).is_some_and(|kept| kept.checked)
    }

    /// The content of a codebook is what its hash says.
    pub(super) fn set_checked(&mut self, hash: &str) {
        if let Some(kept) = self.codebooks.get_mut(hash) {
            kept.checked = true;
        }
    }

    /// Lets go of what callers have dropped.
    fn forget_dropped(&mut self) {
        let codebooks = &mut self.codebooks;
        self.held.retain(|(index, charge)| {
            let alive = index.strong_count() > 0;
            if !alive {
                release(codebooks, charge);
            }
            alive
        });
    }

    fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }
}

/// An index is gone that used a codebook.
fn release(codebooks: &mut HashMap<String, Kept>, charge: &Charge) {
    let hash = charge.codebook.as_deref();
    if let Some(kept) = hash.and_then(|hash| codebooks.get_mut(hash)) {
        kept.users -= 1;
    }
}
