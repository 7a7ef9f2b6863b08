//! A budget that many indexes have in common, as one of them sees it: how it is opened again, and for changes, within that budget.
//!
//! ```text
//!   index of a catalog ── Opener ──────────> open again for reading ──┐
//!            │                                                        ├──> Lender: counts it, or refuses it
//!            └── LiveIndex::over ──────────> open for changes ────────┘        │
//!                                                                        Grant: until the last index that has it is dropped
//! ```
//!
//! A grant begins with what a change of such an index can use ([`Needs::lendable`]), and grows where more waits in memory than it has room for, or a merge made a
//! larger index, as far as the lender has room. A merge gives back what is of no more use.
//!
//! Who opens an index so has the one that it takes the place of as well, for a moment or for longer. That one is no reason to refuse it, and is counted
//! for as long as it is there.

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::{Index, OpenOptions};
use crate::Error;
use crate::plan::{self, Needs};
use crate::progress::Progress;

/// A lender has no room for more.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shortage {
    /// Its budget, in bytes.
    pub(crate) budget: u64,
    /// One that would do.
    pub(crate) needs: u64,
}

/// What many indexes have their memory from.
pub(crate) trait Lender: Send + Sync {
    /// Opens the index in a directory for reading, in the place of the one that has the number `instead`.
    fn open(self: Arc<Self>, path: &Path, instead: u64) -> Result<Index, Error>;

    /// Memory for an index that is opened for changes in the place of the one that has the number `instead`. Gives its own budget, and what it counts as.
    /// `None`: there is no limit. Where it has to be waited for, `progress` may end that.
    fn for_changes(
        self: Arc<Self>,
        path: &Path,
        needs: &Needs,
        instead: u64,
        progress: &dyn Progress,
    ) -> Result<Option<(u64, Grant)>, Error>;

    /// Lends so many bytes more to the index in a directory that has this number.
    fn grow(&self, path: &Path, number: u64, more: u64) -> Result<(), Shortage>;

    /// So many bytes of what the index with this number was lent are free again.
    fn shrink(&self, number: u64, by: u64);

    /// The index that has this number is gone.
    fn give_back(&self, number: u64);
}

/// What an index is counted as by a [`Lender`]; gives it back when it is dropped. Not to be dropped where the lender's lock is held.
pub(crate) struct Grant {
    lender: Arc<dyn Lender>,
    number: u64,
    /// Bytes that were lent since.
    more: AtomicU64,
}

impl Grant {
    pub(crate) fn new(lender: Arc<dyn Lender>, number: u64) -> Self {
        Self {
            lender,
            number,
            more: AtomicU64::new(0),
        }
    }
}

impl Drop for Grant {
    fn drop(&mut self) {
        self.lender.give_back(self.number);
    }
}

/// What an index has its memory from, and as what it is counted there.
#[derive(Clone)]
pub(crate) struct Lent {
    lender: Arc<dyn Lender>,
    number: u64,
    /// `None` where the lender has the index itself, and sees when it is dropped.
    grant: Option<Arc<Grant>>,
}

impl Lent {
    /// An index that its lender keeps under this number.
    pub(crate) fn kept(lender: Arc<dyn Lender>, number: u64) -> Self {
        Self {
            lender,
            number,
            grant: None,
        }
    }

    /// An index that is counted until the grant is dropped.
    pub(crate) fn granted(grant: Grant) -> Self {
        Self {
            lender: grant.lender.clone(),
            number: grant.number,
            grant: Some(Arc::new(grant)),
        }
    }

    /// Memory for an index that is opened for changes, where this one has none for them yet: its budget, and what it is counted as.
    pub(super) fn for_changes(
        &self,
        path: &Path,
        needs: &Needs,
        progress: &dyn Progress,
    ) -> Result<Option<(u64, Lent)>, Error> {
        let lender = self.lender.clone();
        let granted = lender.for_changes(path, needs, self.number, progress)?;
        Ok(granted.map(|(budget, grant)| (budget, Self::granted(grant))))
    }

    /// The budget of an index that takes the place of this one, which was lent `first` to begin with, in bytes: that, or what it needs, as far as there is
    /// room.
    ///
    /// # Errors
    /// It has other needs than there is room for.
    pub(super) fn again(&self, path: &Path, first: u64, needs: &Needs) -> Result<u64, Error> {
        let (least, _) = needs.lendable();
        let wanted = plan::PROGRAM.saturating_add(least).saturating_sub(first);
        let missing = wanted.saturating_sub(self.more());
        if let Err(Shortage { budget, needs: all }) = self.grow(path, missing)
            && first.saturating_add(self.more()) < needs.budget_with(0)
        {
            return Err(Error::Memory {
                budget,
                needs: all,
                part: format!("the index {} as it has grown", path.display()),
            });
        }
        Ok(first.saturating_add(wanted.min(self.more())))
    }

    /// Bytes that were lent since the first.
    pub(crate) fn more(&self) -> u64 {
        let grant = self.grant.as_ref();
        grant.map_or(0, |grant| grant.more.load(Ordering::Relaxed))
    }

    /// Has so many bytes more lent. Where nothing was granted, nothing is counted.
    pub(crate) fn grow(&self, path: &Path, more: u64) -> Result<(), Shortage> {
        let Some(grant) = self.grant.as_ref().filter(|_| more > 0) else {
            return Ok(());
        };
        self.lender.grow(path, self.number, more)?;
        grant.more.fetch_add(more, Ordering::Relaxed);
        Ok(())
    }

    /// Gives back what was lent since the first beyond so many bytes. Nobody has more lent meanwhile.
    pub(crate) fn keep(&self, more: u64) {
        let Some(grant) = &self.grant else {
            return;
        };
        let before = grant.more.fetch_min(more, Ordering::Relaxed);
        if before > more {
            self.lender.shrink(self.number, before - more);
        }
    }
}

/// How an index was opened: to open it again in the same way, and, if it is one of a catalog, within the catalog's budget.
#[derive(Clone)]
pub struct Opener {
    options: OpenOptions,
    lender: Option<(Arc<dyn Lender>, u64)>,
}

impl fmt::Debug for Opener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Opener")
            .field("options", &self.options)
            .field("catalog", &self.lender.is_some())
            .finish()
    }
}

impl Opener {
    /// The options. Of an index of a catalog they name no budget: that is the catalog's.
    pub fn options(&self) -> &OpenOptions {
        &self.options
    }

    /// Opens for reading the index that stands in a directory now.
    ///
    /// # Errors
    /// As those of [`Index::open`]; of an index of a catalog a budget that has no room for it.
    pub fn open(&self, path: impl AsRef<Path>) -> Result<Index, Error> {
        match &self.lender {
            Some((lender, instead)) => lender.clone().open(path.as_ref(), *instead),
            None => Index::open(path, &self.options),
        }
    }
}

impl Opener {
    /// The same for an index that takes the place of this one, if both are of one catalog.
    #[must_use]
    pub fn instead_of(mut self, index: &Index) -> Self {
        if let (Some((lender, number)), Some(lent)) = (&mut self.lender, &index.lent)
            && Arc::ptr_eq(lender, &lent.lender)
        {
            *number = lent.number;
        }
        self
    }
}

impl Index {
    /// What it has its memory from, if others have theirs from there as well.
    pub(crate) fn lent(&self) -> Option<&Lent> {
        self.lent.as_ref()
    }

    /// Of what was lent to it after it began, what its memory plan knows of.
    pub(crate) fn planned_more(&self) -> u64 {
        let first = self.options.memory.unwrap_or_default();
        let lent = self.lent.as_ref().and(self.memory_plan.budget);
        lent.map_or(0, |budget| budget.saturating_sub(first))
    }

    /// Bytes that were lent to it since it was opened, for what waits in memory.
    pub(crate) fn lent_since(&self) -> u64 {
        let more = self.lent.as_ref().map_or(0, Lent::more);
        more.saturating_sub(self.planned_more())
    }

    /// It with what it has its memory from.
    pub(crate) fn with_lent(mut self, lent: Lent) -> Self {
        self.lent = Some(lent);
        self
    }

    /// How it was opened, to open it again.
    pub fn opener(&self) -> Opener {
        let mut options = self.options.clone();
        let lender = self.lent.as_ref().map(|lent| {
            // What a catalog lent it is no option.
            options.memory = None;
            (lent.lender.clone(), lent.number)
        });
        Opener { options, lender }
    }
}
