//! Opens the indexes of a catalog within its budget.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};
use stratann_layout::Manifest;
use stratann_layout::manifest::FILE_NAME as MANIFEST;
use stratann_tier::{Volume, descriptors_left};

use super::ledger::{Ledger, Refusal, Wanted};
use super::{ATTEMPTS, CatalogOptions, Stamp};
use crate::codebook::Codebook;
use crate::index::{Grant, Lender, Lent, Shared, Shortage};
use crate::places::Purpose;
use crate::plan::{self, MemoryPlan, Needs};
use crate::progress::{Progress, Silent};
use crate::stores::Composition;
use crate::stores::codes::Codes;
use crate::stores::composition::CodesAt;
use crate::{Error, Index, Preset, stored};

const CLOSED_AT_ONCE: usize = 8;

fn left_to_others(most: u64) -> u64 {
    (most / 4).clamp(20, 256)
}

/// The bytes of an open index beside codes and tables (`examples/catalog.rs`).
const INDEX_BYTES: u64 = 16 << 10;

/// The bytes of a model. The lists have one model, and each segment of vectors has another. In
/// indexes of photo-sift, a model has up to 50 kB.
const MODEL_BYTES: u64 = 64 << 10;

/// A waiting caller checks the ledger at this interval, because the drop of a searched index sends
/// no signal.
pub(super) const LOOK: Duration = Duration::from_millis(20);

/// The state that a catalog shares with the callers that have its indexes.
pub(super) struct Budget {
    pub(super) options: CatalogOptions,
    program: u64,
    queries: u64,
    pub(super) shared: Arc<Shared>,
    pub(super) ledger: Mutex<Ledger>,
    returned: Condvar,
}

impl Budget {
    pub(super) fn new(options: &CatalogOptions, needs: Needs, memory_plan: &MemoryPlan) -> Self {
        let shared = Arc::<Shared>::default();
        let fixed = memory_plan.program + memory_plan.queries;
        Self {
            options: options.clone(),
            program: memory_plan.program,
            queries: memory_plan.queries,
            ledger: Mutex::new(Ledger::new(options.memory, fixed, needs, shared.clone())),
            shared,
            returned: Condvar::new(),
        }
    }

    /// Repeats `admit` until it succeeds, at most for the catalog's patience. If `waits` returns
    /// false, does not repeat `admit`.
    fn admitted<T>(
        &self,
        waits: impl Fn(&Ledger) -> bool,
        progress: &dyn Progress,
        mut admit: impl FnMut(&mut Ledger) -> Result<T, Refusal>,
    ) -> Result<T, Refusal> {
        let began = Instant::now();
        let mut ledger = self.ledger.lock();
        loop {
            let refusal = match admit(&mut ledger) {
                Err(Refusal::Beside(beside)) => Refusal::Beside(beside),
                other => return other,
            };
            let left = self.options.patience.saturating_sub(began.elapsed());
            if left.is_zero() || !waits(&ledger) {
                return Err(refusal);
            }
            // The ledger is unlocked here, because `progress` may wait for a thread that needs the
            // ledger.
            if MutexGuard::unlocked(&mut ledger, || progress.interrupted()) {
                return Err(Refusal::Never(Error::Interrupted));
            }
            ledger.waiting += 1;
            self.returned.wait_for(&mut ledger, left.min(LOOK));
            ledger.waiting -= 1;
        }
    }

    /// Closes indexes without callers until enough file descriptors are left to the rest of the
    /// process.
    pub(super) fn leave_files(&self) {
        let are_few = |(left, most)| left < left_to_others(most);
        while descriptors_left().is_some_and(are_few) && self.close_some() {}
    }

    /// Returns `false` if callers have all open indexes.
    pub(super) fn close_some(&self) -> bool {
        // The indexes are dropped after the lock is released.
        let closed = self.ledger.lock().close_some(CLOSED_AT_ONCE);
        !closed.is_empty()
    }

    /// At any time, only one caller may open this index.
    pub(super) fn assemble(
        self: &Arc<Self>,
        name: &str,
        path: &Path,
        progress: &dyn Progress,
    ) -> Result<Index, Error> {
        let mut number = 0;
        let index = self.read(path, |wanted| {
            let admit = |ledger: &mut Ledger| ledger.admit(name, wanted);
            let (admitted, closed) = self.admitted(Ledger::has_lent, progress, admit).map_err(
                |refusal| match refusal {
                    Refusal::Beside(beside) if self.ledger.lock().has_lent() => {
                        beside.crowded(self.options.patience)
                    }
                    refusal => refusal.into(),
                },
            )?;
            drop(closed);
            number = admitted;
            Ok(())
        })?;
        Ok(index.with_lent(Lent::kept(self.clone(), number)))
    }

    fn read(
        &self,
        path: &Path,
        admit: impl FnOnce(Wanted<'_>) -> Result<(), Error>,
    ) -> Result<Index, Error> {
        let home: Arc<dyn Volume> = Arc::new(stored::existing(path)?);
        let path = &*stored::home(path)?;
        let places = &self.options.open.places;
        places.check_for_catalog()?;
        let volume = places.over(&home, path, Purpose::Search, self.options.memory)?;
        let manifest = stored::manifest(&*volume)?;
        let preset: Preset = manifest.preset.parse()?;
        let composition = stored::layout(&*volume, &manifest)?.composition();
        let codes = Codes::memory_bytes(&*volume, &manifest, composition)?;
        let terms = Terms::of(&manifest, codes, composition, preset, &self.options);
        let divide = |needs: &Needs| self.divide(&terms, needs, admit);
        let index = Index::assemble_within(
            volume,
            path,
            manifest,
            &self.options.open,
            // An index of a catalog is not unpacked, so there is no progress to report.
            (self.shared.clone(), &Silent),
            divide,
        )?
        .with_log()?;
        // Other indexes will find this codebook by its hash alone, so its hash is checked.
        let hash = &terms.codebook;
        if !hash.is_empty() && !self.ledger.lock().is_checked(hash) {
            if index
                .codebook()
                .is_some_and(|codebook| !codebook.is_what_it_says())
            {
                return Err(Error::Damaged {
                    file: path.join(MANIFEST).display().to_string(),
                    what: format!(
                        "it names a codebook with the hash {hash}, but the codebook of the index has another hash"
                    ),
                });
            }
            self.ledger.lock().set_checked(hash);
        }
        Ok(index)
    }

    fn divide(
        &self,
        terms: &Terms,
        needs: &Needs,
        admit: impl FnOnce(Wanted<'_>) -> Result<(), Error>,
    ) -> Result<MemoryPlan, Error> {
        let navigation = match (terms.navigates, self.options.memory) {
            (false, Some(_)) => 0,
            _ => needs.navigation,
        };
        let mut memory_plan = plan::divide(
            None,
            &Needs {
                navigation,
                ..*needs
            },
            None,
        )?;
        memory_plan.budget = self.options.memory;
        memory_plan.program = self.program;
        memory_plan.queries = self.queries;
        let mut bytes = INDEX_BYTES + terms.models + terms.codes;
        bytes += needs.tables + needs.cache + needs.changes + needs.places;
        if terms.navigates {
            bytes += navigation;
        }
        // A shared codebook counts once, and not for each index.
        let codebook = match terms.codebook.as_str() {
            "" => {
                bytes += terms.codebook_bytes;
                None
            }
            hash => Some((hash, terms.codebook_bytes)),
        };
        admit(Wanted { bytes, codebook })?;
        Ok(memory_plan)
    }
}

impl Budget {
    /// The new index replaces the index with the number `instead`.
    fn open_once(self: &Arc<Self>, path: &Path, instead: u64) -> Result<Index, Error> {
        let mut grant = None;
        let index = self.read(path, |wanted| {
            let what = format!("the index {}", path.display());
            let most = wanted.bytes;
            let lent = self.ledger.lock().lend(&what, wanted, most, instead);
            let (number, _, closed) = lent?;
            grant = Some(Grant::new(self.clone(), number));
            drop(closed);
            Ok(())
        })?;
        Ok(match grant {
            Some(grant) => index.with_lent(Lent::granted(grant)),
            None => index,
        })
    }
}

impl Lender for Budget {
    fn open(self: Arc<Self>, path: &Path, instead: u64) -> Result<Index, Error> {
        self.leave_files();
        let mut attempt = 1;
        loop {
            let stamp = Stamp::of(path)?;
            match self.open_once(path, instead) {
                // A merge or a build may have removed files meanwhile.
                Err(_) if attempt < ATTEMPTS && Stamp::of(path)? != stamp => attempt += 1,
                opened => return opened,
            }
        }
    }

    fn for_changes(
        self: Arc<Self>,
        path: &Path,
        needs: &Needs,
        instead: u64,
        progress: &dyn Progress,
    ) -> Result<Option<(u64, Grant)>, Error> {
        if self.options.memory.is_none() {
            return Ok(None);
        }
        self.leave_files();
        let (least, most) = needs.lendable();
        let wanted = Wanted {
            bytes: INDEX_BYTES.saturating_add(least),
            codebook: None,
        };
        let what = format!("a change of the index {}", path.display());
        let most = most.saturating_add(INDEX_BYTES);
        let lend = |ledger: &mut Ledger| ledger.lend(&what, wanted, most, instead);
        let (number, bytes, closed) =
            self.admitted(|_| true, progress, lend)
                .map_err(|refusal| match refusal {
                    Refusal::Beside(beside) => beside.crowded(self.options.patience),
                    refusal => refusal.into(),
                })?;
        let grant = Grant::new(self.clone(), number);
        drop(closed);
        let own = bytes.saturating_sub(INDEX_BYTES);
        Ok(Some((plan::PROGRAM.saturating_add(own), grant)))
    }

    fn grow(&self, path: &Path, number: u64, more: u64) -> Result<(), Shortage> {
        let what = format!("changes of the index {}", path.display());
        let grown = self.ledger.lock().grow(&what, number, more);
        match grown {
            Ok(closed) => {
                drop(closed);
                Ok(())
            }
            Err(refusal) => Err(match refusal.into() {
                Error::Memory { budget, needs, .. } => Shortage { budget, needs },
                // The index is open already, so the limit of open indexes does not apply.
                _ => {
                    let budget = self.options.memory.unwrap_or(u64::MAX);
                    let needs = budget.saturating_add(more);
                    Shortage { budget, needs }
                }
            }),
        }
    }

    fn shrink(&self, number: u64, by: u64) {
        self.ledger.lock().shrink(number, by);
        self.returned.notify_all();
    }

    fn give_back(&self, number: u64) {
        self.ledger.lock().give_back(number);
        self.returned.notify_all();
    }
}

/// The facts in a manifest that determine the memory of an index.
struct Terms {
    codebook: String,
    codebook_bytes: u64,
    codes: u64,
    models: u64,
    navigates: bool,
}

impl Terms {
    fn of(
        manifest: &Manifest,
        codes: u64,
        composition: &Composition,
        preset: Preset,
        options: &CatalogOptions,
    ) -> Self {
        Self {
            codebook: manifest.codebook.clone(),
            codebook_bytes: match composition.codes {
                CodesAt::Nowhere => 0,
                CodesAt::Memory | CodesAt::Records => {
                    Codebook::memory_bytes(manifest.dimension as usize)
                }
            },
            codes,
            models: match composition.is_encoded() {
                true => (1 + manifest.segments.len() as u64) * MODEL_BYTES,
                false => 0,
            },
            navigates: options.open.navigation.unwrap_or(preset.navigation),
        }
    }
}
