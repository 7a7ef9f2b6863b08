//! A catalog: many indexes in one process, within one memory budget.
//!
//! ```text
//!   CATALOG/photos/MANIFEST …      each subdirectory with a MANIFEST is an index of that name
//!   CATALOG/texts/MANIFEST …
//!
//!   memory    the program and the queries in flight     once
//!             codebooks                                 once for each content (AiSAQ §4.4)
//!             codes, tables, cache, navigation graph    for each index that is open or in use
//!             the same, and the memory of changes       for each index that is open for changes
//! ```
//!
//! Opening an `aisaq` index reads some kilobytes at any size of the index, if its codebook is in
//! memory. So a catalog opens indexes on request, and closes the least recently used ones.

mod budget;
mod federated;
mod ledger;
mod names;

use std::collections::HashMap;
use std::fmt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use serde::Serialize;
use stratann_layout::BLOCK;
use stratann_layout::manifest::FILE_NAME as MANIFEST;
use stratann_tier::{Backend, TierError, with_descriptors};

use self::budget::Budget;
use self::federated::Space;
use self::names::IndexPaths;
use crate::durable::log_number;
use crate::plan::{self, Needs, PageFile};
use crate::progress::{Progress, Silent};
use crate::{Error, ErrorKind, Index, OpenOptions, stored};

/// The largest number of indexes that a catalog has open. Each open index has at least its folder
/// and one file open. If the process may open few files, the catalog opens fewer indexes.
pub const MOST_OPEN: usize = 512;

const ATTEMPTS: usize = 3;

const PATIENCE: Duration = Duration::from_secs(10);

/// Options for opening a catalog.
#[derive(Clone, Debug)]
pub struct CatalogOptions {
    /// The memory limit in bytes of all indexes, the program and the queries in flight. `None` sets
    /// no limit.
    pub memory: Option<u64>,
    /// The options with which each index is opened. Its `memory` and `watch_recall` must be `None`.
    /// Each open index has a `cache` of its own.
    pub open: OpenOptions,
    /// The time that a call waits for memory if the indexes in use fill the budget; the default is
    /// 10 seconds. A call that opens an index for searches waits only while other indexes are open
    /// for changes.
    pub patience: Duration,
}

impl Default for CatalogOptions {
    fn default() -> Self {
        Self {
            memory: None,
            open: OpenOptions::default(),
            patience: PATIENCE,
        }
    }
}

/// Many indexes that share search threads, codebooks and one memory budget. Any number of threads
/// may use a catalog.
///
/// A catalog opens an index at its first use, and closes the least recently used index if memory or
/// file descriptors are missing. While a caller has the [`Arc`] that [`index`](Catalog::index)
/// returned, the index stays open and its memory counts. An index of a catalog spends no memory on
/// hot pages.
///
/// To change an index, call [`LiveIndex::over`](crate::LiveIndex::over) with the index that
/// [`index`](Catalog::index) returns. The changed index has its own threads, and leases memory of
/// the budget for its changes. Without a budget, this memory is neither limited nor counted. If
/// memory is missing, the call waits for the time [`CatalogOptions::patience`], and then fails.
pub struct Catalog {
    place: IndexPaths,
    budget: Arc<Budget>,
    settled: Condvar,
    spaces: Mutex<HashMap<String, (Stamp, Space)>>,
}

/// Facts about an index in a catalog, from the manifest of the index alone.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct IndexFacts {
    /// The name of the index in the catalog.
    pub name: String,
    /// The number of vectors.
    pub vectors: u64,
    /// The dimension of the vectors.
    pub dimension: u32,
    /// The element type of the vectors.
    pub element: String,
    /// The metric.
    pub metric: String,
    /// The preset with which the index was built.
    pub preset: String,
    /// The layout of the nodes on disk.
    pub layout: String,
    /// The bytes of the code of one vector.
    pub code_bytes: u32,
    /// The bytes of the index on disk.
    pub bytes: u64,
    /// The content hash of the codebook, which indexes with equal codebooks share. It is empty
    /// below format version 3.
    pub codebook: String,
    /// The number of nodes in the navigation graph; 0 if there is none.
    pub navigation_nodes: u64,
    /// The number of clusters; 0 for a graph index.
    pub clusters: u64,
    /// The format version of the index.
    pub format_version: u32,
}

/// The version of an index on disk: the identity of its manifest file, and the bytes of its logs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stamp {
    device: u64,
    inode: u64,
    length: u64,
    logged: (u64, u64),
    modified: (i64, i64),
    changed: (i64, i64),
}

impl Stamp {
    fn of(index: &Path) -> Result<Option<Self>, Error> {
        let path = index.join(MANIFEST);
        match std::fs::metadata(&path) {
            Ok(facts) if facts.is_file() => Ok(Some(Self {
                device: facts.dev(),
                inode: facts.ino(),
                length: facts.len(),
                logged: Self::logged(index)?,
                modified: (facts.mtime(), facts.mtime_nsec()),
                changed: (facts.ctime(), facts.ctime_nsec()),
            })),
            Ok(_) => Ok(None),
            Err(error) if stored::is_absent(&error) => Ok(None),
            Err(error) => Err(unseen(&path, error)),
        }
    }

    fn logged(index: &Path) -> Result<(u64, u64), Error> {
        let (mut bytes, mut last) = (0, 0);
        let names = match with_descriptors(|| std::fs::read_dir(index)) {
            Ok(names) => names,
            Err(error) if stored::is_absent(&error) => return Ok((0, 0)),
            Err(error) => return Err(unseen(index, error)),
        };
        for entry in names {
            let entry = entry.map_err(|error| unseen(index, error))?;
            let Some(number) = entry.file_name().to_str().and_then(log_number) else {
                continue;
            };
            match entry.metadata() {
                Ok(facts) => (bytes, last) = (bytes + facts.len(), last.max(number)),
                // A checkpoint has removed the log meanwhile.
                Err(error) if stored::is_absent(&error) => {}
                Err(error) => return Err(unseen(&entry.path(), error)),
            }
        }
        Ok((bytes, last))
    }
}

fn unseen(path: &Path, error: std::io::Error) -> Error {
    TierError::io("open", path.display().to_string(), 0, 0, error).into()
}

/// The right of one thread to open an index. If the open fails, a drop of this value frees the
/// memory that was reserved for the index.
struct Opening<'a> {
    catalog: &'a Catalog,
    name: &'a str,
}

impl Drop for Opening<'_> {
    fn drop(&mut self) {
        self.catalog.budget.ledger.lock().abandon(self.name);
        self.catalog.settled.notify_all();
    }
}

impl fmt::Debug for Catalog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Catalog({}: {} open, {} bytes)",
            self.place,
            self.open_count(),
            self.memory_bytes()
        )
    }
}

impl Drop for Catalog {
    fn drop(&mut self) {
        let closed = self.budget.ledger.lock().close_all();
        drop(closed);
    }
}

impl Catalog {
    /// Opens a directory whose subdirectories are indexes, but opens no index. Indexes that are
    /// built there later belong to the catalog too.
    ///
    /// # Errors
    /// The call fails if there is no such directory, if the directory is an index itself, or if the
    /// memory budget is too small for the program and its queries.
    pub fn open(directory: impl AsRef<Path>, options: &CatalogOptions) -> Result<Self, Error> {
        Self::at(IndexPaths::directory(directory.as_ref())?, options)
    }

    /// Creates a catalog of indexes at any paths. The path of an index is also its name.
    ///
    /// # Errors
    /// The call fails if `paths` is empty, or if the memory budget is too small for the program and
    /// its queries. A missing index is an error only when it is requested.
    pub fn of_paths(
        paths: impl IntoIterator<Item = impl Into<PathBuf>>,
        options: &CatalogOptions,
    ) -> Result<Self, Error> {
        Self::at(
            IndexPaths::paths(paths.into_iter().map(Into::into).collect())?,
            options,
        )
    }

    fn at(place: IndexPaths, options: &CatalogOptions) -> Result<Self, Error> {
        if let Some(memory) = options.open.memory {
            return Err(Error::call(
                "memory of each index",
                memory,
                "the catalog's own `memory` is the budget of all of its indexes",
                "Set the `memory` of the catalog instead",
            ));
        }
        if options.open.watch_recall.is_some() {
            return Err(Error::call(
                "watch_recall of each index",
                "given",
                "a catalog measures no recall",
                "Open the index without a catalog to measure its recall",
            ));
        }
        // The page size is known only when an index is opened.
        let page = PageFile {
            page_bytes: BLOCK,
            ..PageFile::default()
        };
        let needs = Needs {
            graph: page,
            beside: options.open.beside,
            ..Needs::default()
        };
        let memory_plan =
            plan::divide(options.memory, &needs, None).map_err(|error| match error {
                Error::Memory { budget, needs, .. } => Error::Memory {
                    budget,
                    needs,
                    part: "the program and one query in flight; each index needs more".into(),
                },
                error => error,
            })?;
        Ok(Self {
            place,
            budget: Arc::new(Budget::new(options, needs, &memory_plan)),
            settled: Condvar::new(),
            spaces: Mutex::default(),
        })
    }

    /// The sorted names of the indexes that exist now: subdirectories with a MANIFEST.
    ///
    /// # Errors
    /// The call fails if the directory is missing or cannot be read.
    pub fn names(&self) -> Result<Vec<String>, Error> {
        self.place.names()
    }

    /// The number of indexes that exist now.
    ///
    /// # Errors
    /// The call fails for the reasons of [`names`](Catalog::names).
    pub fn len(&self) -> Result<usize, Error> {
        Ok(self.names()?.len())
    }

    /// Whether no index exists now.
    ///
    /// # Errors
    /// The call fails for the reasons of [`names`](Catalog::names).
    pub fn is_empty(&self) -> Result<bool, Error> {
        Ok(self.names()?.is_empty())
    }

    /// Whether an index of this name exists.
    pub fn contains(&self, name: &str) -> bool {
        self.place
            .path(name)
            .is_ok_and(|path| matches!(Stamp::of(&path), Ok(Some(_))))
    }

    /// The index of this name. If the index is closed or has changed on disk, the call opens it,
    /// and may close other indexes to free memory. Callers that have the old handle keep it.
    ///
    /// No lock is held while the files of the index are read, so other threads can search and open
    /// other indexes.
    ///
    /// # Errors
    /// - [`Error::NoSuchIndex`], with similar names, if there is no index of this name.
    /// - [`Error::Memory`] if the index does not fit into the memory budget beside the indexes that
    ///   callers have. If some of these are open for changes, the call first waits for memory.
    /// - An error of the files of the index.
    pub fn index(&self, name: &str) -> Result<Arc<Index>, Error> {
        self.index_observed(name, &Silent)
    }

    /// Does the same as [`index`](Catalog::index). A wait for memory checks `progress` for an
    /// interruption.
    ///
    /// # Errors
    /// The call fails for the reasons of [`index`](Catalog::index), and with
    /// [`Error::Interrupted`].
    pub fn index_observed(&self, name: &str, progress: &dyn Progress) -> Result<Arc<Index>, Error> {
        let path = self.place.path(name)?;
        let mut attempt = 0;
        loop {
            let stamp = self.stamp(name, &path)?;
            let opening = match self.begin(name, stamp) {
                Begin::Open(index) => return Ok(index),
                Begin::Look if progress.interrupted() => return Err(Error::Interrupted),
                Begin::Look => continue,
                Begin::Mine(opening) => opening,
            };
            attempt += 1;
            self.budget.leave_files();
            match self.budget.assemble(name, &path, progress) {
                Ok(index) => return Ok(self.settle(opening, index, stamp)),
                // A build may have replaced the index, and removed files of the manifest that was
                // read.
                Err(_) if attempt < ATTEMPTS && Stamp::of(&path)? != Some(stamp) => {}
                Err(error)
                    if error.kind() == ErrorKind::TooManyFiles
                        && attempt < ATTEMPTS
                        && self.budget.close_some() => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Closes an index, and returns whether it was open. The memory of the index is freed when no
    /// caller has the index.
    pub fn close(&self, name: &str) -> bool {
        let closed = self.budget.ledger.lock().retire(name);
        closed.is_some()
    }

    /// Whether the latest requested version of an index is open. The call does not count as a use.
    pub fn is_open(&self, name: &str) -> bool {
        self.budget.ledger.lock().is_open(name)
    }

    /// The number of open indexes, including closed ones that a caller still has.
    pub fn open_count(&self) -> usize {
        self.budget.ledger.lock().open_count()
    }

    /// The bytes of the program, the queries in flight, the codebooks, and the most that open
    /// indexes may use.
    ///
    /// The number exceeds the budget only while a caller has both an index and the index that
    /// replaces it ([`LiveIndex::over`](crate::LiveIndex::over), [`Opener`](crate::Opener)).
    pub fn memory_bytes(&self) -> u64 {
        self.budget.ledger.lock().bytes()
    }

    /// The memory budget.
    pub fn memory(&self) -> Option<u64> {
        self.budget.options.memory
    }

    /// The number of distinct codebooks in memory, of open and of recently closed indexes.
    pub fn codebook_count(&self) -> usize {
        self.budget.ledger.lock().codebook_count()
    }

    /// The backend by which the search threads read pages. If no threads exist, the call starts
    /// them.
    ///
    /// # Errors
    /// The call fails if a thread cannot be started.
    pub fn backend(&self) -> Result<Backend, Error> {
        let worker_pool = self
            .budget
            .shared
            .worker_pool(1, self.budget.options.open.io)?;
        Ok(worker_pool.backend().clone())
    }

    /// Facts about an index, from the manifest alone. The index need not fit into the memory
    /// budget.
    ///
    /// # Errors
    /// The call fails if there is no such index, or if its manifest is damaged or of a later
    /// format.
    pub fn facts(&self, name: &str) -> Result<IndexFacts, Error> {
        let path = self.place.path(name)?;
        self.stamp(name, &path)?;
        let manifest = stored::manifest(&stored::existing(&path)?)?;
        Ok(IndexFacts {
            name: name.to_owned(),
            vectors: manifest.built_vectors(),
            dimension: manifest.dimension,
            element: manifest.element.to_string(),
            metric: manifest.metric.to_string(),
            bytes: manifest.files.iter().map(|entry| entry.length).sum(),
            navigation_nodes: manifest.kind.navigation_nodes(),
            clusters: manifest.clusters().map_or(0, |facts| facts.clusters),
            preset: manifest.preset,
            layout: manifest.layout,
            code_bytes: manifest.code_bytes,
            codebook: manifest.codebook,
            format_version: manifest.format_version,
        })
    }

    fn stamp(&self, name: &str, path: &Path) -> Result<Stamp, Error> {
        if let Some(stamp) = Stamp::of(path)? {
            return Ok(stamp);
        }
        self.close(name);
        self.spaces.lock().remove(name);
        Err(self.place.absent(name, path))
    }

    /// Returns the index if it is open and unchanged on disk, and otherwise the right to open the
    /// index. While another thread opens the index, the call waits for a short time, and returns
    /// `Look`.
    fn begin<'a>(&'a self, name: &'a str, stamp: Stamp) -> Begin<'a> {
        let mut ledger = self.budget.ledger.lock();
        if ledger.is_opening(name) {
            self.settled.wait_for(&mut ledger, budget::LOOK);
            return Begin::Look;
        }
        if let Some(index) = ledger.find(name, stamp) {
            return Begin::Open(index);
        }
        let replaced = ledger.retire(name);
        ledger.begin(name);
        drop(ledger);
        // The lock is released first, since the drop of `replaced` closes files.
        drop(replaced);
        Begin::Mine(Opening {
            catalog: self,
            name,
        })
    }

    fn settle(&self, opening: Opening<'_>, index: Index, stamp: Stamp) -> Arc<Index> {
        let index = Arc::new(index);
        self.spaces
            .lock()
            .insert(opening.name.to_owned(), (stamp, Space::of(&index)));
        self.budget
            .ledger
            .lock()
            .settle(opening.name, &index, stamp);
        index
    }
}

enum Begin<'a> {
    Open(Arc<Index>),
    /// Another thread was opening the index. The caller must call `begin` again.
    Look,
    Mine(Opening<'a>),
}
