//! The share of an index in a memory budget that several indexes use.
//!
//! ```text
//!   index of a catalog ── Opener ────> open again for reading ──┐
//!            │                                                  ├──> Lender: counts it, or refuses
//!            └── LiveIndex::over ────> open for changes ────────┘        │
//!                                              Grant: until the last index with it is dropped
//! ```
//!
//! A *grant* is the lease of an index that is open for changes. At first, the grant has the memory
//! that such an index can use ([`Needs::lendable`]). While more changes wait, the grant grows, as
//! far as the lender has free memory. After a merge, the index gives back memory.
//!
//! An index may be opened again, to replace the open index. The lender counts the old index until
//! it is dropped.

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::{Index, OpenOptions};
use crate::Error;
use crate::plan::{self, Needs};
use crate::progress::{Progress, Silent};

#[derive(Clone, Copy, Debug)]
pub(crate) struct Shortage {
    pub(crate) budget: u64,
    pub(crate) needs: u64,
}

pub(crate) trait Lender: Send + Sync {
    /// Opens an index for reading. The new index replaces the index with the number `instead`.
    fn open(self: Arc<Self>, path: &Path, instead: u64) -> Result<Index, Error>;

    /// Reserves memory for an index that is opened for changes, and that replaces the index
    /// `instead`. Returns the budget and the grant of the new index; `None` means no limit.
    /// `progress` may end the wait for memory.
    fn for_changes(
        self: Arc<Self>,
        path: &Path,
        needs: &Needs,
        instead: u64,
        progress: &dyn Progress,
    ) -> Result<Option<(u64, Grant)>, Error>;

    fn grow(&self, path: &Path, number: u64, more: u64) -> Result<(), Shortage>;

    fn shrink(&self, number: u64, by: u64);

    fn give_back(&self, number: u64);
}

/// The memory that a [`Lender`] counts for an index until the grant is dropped. A thread with the
/// lock of the lender must not drop the grant.
pub(crate) struct Grant {
    lender: Arc<dyn Lender>,
    number: u64,
    /// Bytes that were leased after the first reservation.
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

#[derive(Clone)]
pub(crate) struct Lent {
    lender: Arc<dyn Lender>,
    number: u64,
    /// `None` if the lender itself has a reference to the index, and so notices its drop.
    grant: Option<Arc<Grant>>,
}

impl Lent {
    pub(crate) fn kept(lender: Arc<dyn Lender>, number: u64) -> Self {
        Self {
            lender,
            number,
            grant: None,
        }
    }

    pub(crate) fn granted(grant: Grant) -> Self {
        Self {
            lender: grant.lender.clone(),
            number: grant.number,
            grant: Some(Arc::new(grant)),
        }
    }

    /// Reserves memory for an index that is opened for changes, and that replaces the index of this
    /// lease.
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

    /// The budget of an index that replaces the index of this lease. The budget is the first
    /// reservation `first`. If the new index needs more and the lender has more memory, the budget
    /// is larger.
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
                part: format!("the index {} after it has grown", path.display()),
            });
        }
        Ok(first.saturating_add(wanted.min(self.more())))
    }

    pub(crate) fn more(&self) -> u64 {
        let grant = self.grant.as_ref();
        grant.map_or(0, |grant| grant.more.load(Ordering::Relaxed))
    }

    /// Leases `more` additional bytes, or does nothing without a grant.
    pub(crate) fn grow(&self, path: &Path, more: u64) -> Result<(), Shortage> {
        let Some(grant) = self.grant.as_ref().filter(|_| more > 0) else {
            return Ok(());
        };
        self.lender.grow(path, self.number, more)?;
        grant.more.fetch_add(more, Ordering::Relaxed);
        Ok(())
    }

    /// Gives back leased bytes. Of the bytes leased after the first reservation, `more` remain. No
    /// call of `grow` may run meanwhile.
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

/// Opens an index again, with the same options. An index of a catalog stays within the catalog's
/// budget.
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
    /// The options with which the index is opened. An index of a catalog has no `memory` of its
    /// own.
    pub fn options(&self) -> &OpenOptions {
        &self.options
    }

    /// Opens the current index in a directory for reading.
    ///
    /// # Errors
    /// The call fails as [`Index::open`] does, or if the budget of the catalog has too little free
    /// memory.
    pub fn open(&self, path: impl AsRef<Path>) -> Result<Index, Error> {
        self.open_observed(path, &Silent)
    }

    /// Opens the index, with the progress of [`Index::open_observed`]. An index of a catalog is not
    /// unpacked, and reports no progress.
    ///
    /// # Errors
    /// The call fails as [`open`](Self::open) does, and with [`Error::Interrupted`].
    pub fn open_observed(
        &self,
        path: impl AsRef<Path>,
        progress: &dyn Progress,
    ) -> Result<Index, Error> {
        match &self.lender {
            Some((lender, instead)) => lender.clone().open(path.as_ref(), *instead),
            None => Index::open_observed(path, &self.options, progress),
        }
    }
}

impl Opener {
    /// Returns the opener that unpacks the index, if its budget allows that, or that does not
    /// ([`OpenOptions::unpack`]). An index of a catalog is not unpacked.
    #[must_use]
    pub fn unpacking(mut self, unpack: bool) -> Self {
        self.options.unpack = unpack;
        self
    }

    /// Returns the opener of an index that replaces `index`, if both belong to one catalog.
    #[must_use]
    pub fn instead_of(mut self, index: &Index) -> Self {
        if let (Some((lender, number)), Some(lent)) = (&mut self.lender, &index.lent)
            && Arc::ptr_eq(lender, &lent.lender)
        {
            *number = lent.number;
        }
        // Both indexes are open until the new index has replaced the old index.
        let memory = index.memory();
        self.options.unpack &= memory.unpacked <= memory.unused;
        self
    }
}

impl Index {
    pub(crate) fn lent(&self) -> Option<&Lent> {
        self.lent.as_ref()
    }

    /// The part of the memory plan's budget that was leased after the first reservation.
    pub(crate) fn planned_more(&self) -> u64 {
        let first = self.options.memory.unwrap_or_default();
        let lent = self.lent.as_ref().and(self.memory_plan.budget);
        lent.map_or(0, |budget| budget.saturating_sub(first))
    }

    /// The bytes that were leased after the index was opened, for changes that wait in memory.
    pub(crate) fn lent_since(&self) -> u64 {
        let more = self.lent.as_ref().map_or(0, Lent::more);
        more.saturating_sub(self.planned_more())
    }

    pub(crate) fn with_lent(mut self, lent: Lent) -> Self {
        self.lent = Some(lent);
        self
    }

    /// Returns an opener that opens the index again with the same options.
    pub fn opener(&self) -> Opener {
        let mut options = self.options.clone();
        let lender = self.lent.as_ref().map(|lent| {
            // Memory that a catalog leases is not an option of the index.
            options.memory = None;
            (lent.lender.clone(), lent.number)
        });
        Opener { options, lender }
    }
}
