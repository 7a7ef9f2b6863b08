//! The share of an index in a memory budget that several indexes use. Within this budget, the index
//! can be opened again, and can be opened for changes.
//!
//! ```text
//!   index of a catalog ── Opener ────> open again for reading ──┐
//!            │                                                  ├──> Lender: counts it, or refuses
//!            └── LiveIndex::over ────> open for changes ────────┘        │
//!                                              Grant: until the last index with it is dropped
//! ```
//!
//! A *grant* is the lease of an index that is open for changes. At first, it has the memory that
//! such an index can use ([`Needs::lendable`]). If more changes wait in memory, or if a merge made
//! the index larger, the grant grows, as far as the lender has free memory. After a merge, the
//! index gives back the memory that it does not need any more.
//!
//! When a caller opens an index again, it often still has the old index open. The lender allows
//! this, and counts the old index until it is dropped.

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::{Index, OpenOptions};
use crate::Error;
use crate::plan::{self, Needs};
use crate::progress::{Progress, Silent};

/// The error of a lender that has too little free memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shortage {
    /// The lender's budget, in bytes.
    pub(crate) budget: u64,
    /// A budget that would suffice, in bytes.
    pub(crate) needs: u64,
}

/// The owner of a budget that several indexes share.
pub(crate) trait Lender: Send + Sync {
    /// Opens the index in a directory for reading. The new index replaces the index with the number
    /// `instead`.
    fn open(self: Arc<Self>, path: &Path, instead: u64) -> Result<Index, Error>;

    /// Reserves memory for an index that is opened for changes, and that replaces the index with
    /// the number `instead`. Returns the budget of the new index, and its grant. `None` means that
    /// there is no limit. The call may wait for memory, and `progress` may end the wait.
    fn for_changes(
        self: Arc<Self>,
        path: &Path,
        needs: &Needs,
        instead: u64,
        progress: &dyn Progress,
    ) -> Result<Option<(u64, Grant)>, Error>;

    /// Leases `more` additional bytes to the index with this number.
    fn grow(&self, path: &Path, number: u64, more: u64) -> Result<(), Shortage>;

    /// Takes back `by` of the bytes leased to the index with this number.
    fn shrink(&self, number: u64, by: u64);

    /// Takes back all memory of the index with this number.
    fn give_back(&self, number: u64);
}

/// The memory that a [`Lender`] counts for an index. When the grant is dropped, it gives the memory
/// back. It must not be dropped while a thread has the lock of the lender.
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

/// The lender of an index, with the number by which the lender knows the index.
#[derive(Clone)]
pub(crate) struct Lent {
    lender: Arc<dyn Lender>,
    number: u64,
    /// The grant. If the lender itself has a reference to the index, the lender notices the drop of
    /// the index, and needs no grant.
    grant: Option<Arc<Grant>>,
}

impl Lent {
    /// Returns the lease of an index that the lender itself knows by this number.
    pub(crate) fn kept(lender: Arc<dyn Lender>, number: u64) -> Self {
        Self {
            lender,
            number,
            grant: None,
        }
    }

    /// Returns the lease of an index that counts until `grant` is dropped.
    pub(crate) fn granted(grant: Grant) -> Self {
        Self {
            lender: grant.lender.clone(),
            number: grant.number,
            grant: Some(Arc::new(grant)),
        }
    }

    /// Reserves memory for an index that is opened for changes, and that replaces this index.
    /// Returns the budget and the lease of the new index.
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

    /// Returns the budget, in bytes, of an index that replaces this index. `first` was the first
    /// reservation. If the new index needs more and the lender has the memory, the budget is larger
    /// than `first`.
    ///
    /// # Errors
    /// The index needs more memory than the lender has free.
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

    /// Bytes that were leased after the first reservation.
    pub(crate) fn more(&self) -> u64 {
        let grant = self.grant.as_ref();
        grant.map_or(0, |grant| grant.more.load(Ordering::Relaxed))
    }

    /// Leases `more` additional bytes. If there is no grant, the call does nothing.
    pub(crate) fn grow(&self, path: &Path, more: u64) -> Result<(), Shortage> {
        let Some(grant) = self.grant.as_ref().filter(|_| more > 0) else {
            return Ok(());
        };
        self.lender.grow(path, self.number, more)?;
        grant.more.fetch_add(more, Ordering::Relaxed);
        Ok(())
    }

    /// Gives back bytes that were leased after the first reservation, so that `more` of them
    /// remain. No call of `grow` may run at the same time.
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

/// Opens an index again, with the options of an earlier opening. An index of a catalog stays within
/// the catalog's budget.
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
    /// The options with which the index is opened. For an index of a catalog they have no `memory`,
    /// because the catalog has the budget.
    pub fn options(&self) -> &OpenOptions {
        &self.options
    }

    /// Opens the current index in a directory for reading.
    ///
    /// # Errors
    /// Fails as [`Index::open`] does. For an index of a catalog, it also fails if the budget of the
    /// catalog has too little free memory.
    pub fn open(&self, path: impl AsRef<Path>) -> Result<Index, Error> {
        self.open_observed(path, &Silent)
    }

    /// Does the same as [`open`](Self::open), with the progress of
    /// [`Index::open_observed`]. An index of a catalog reports no progress, because it is not
    /// unpacked.
    ///
    /// # Errors
    /// Fails as [`open`](Self::open) does, and with [`Error::Interrupted`].
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
        // Both indexes are open at once, until the new index has replaced the other.
        let memory = index.memory();
        self.options.unpack &= memory.unpacked <= memory.unused;
        self
    }
}

impl Index {
    /// The lender of this index, if it shares a budget.
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
            // Memory that a catalog leases to the index is not an option of the index.
            options.memory = None;
            (lent.lender.clone(), lent.number)
        });
        Opener { options, lender }
    }
}
