//! A catalog: many indexes in one process, within one memory budget.
//!
//! ```text
//!   CATALOG/photos/MANIFEST …      each subdirectory with a MANIFEST is an index of that name
//!   CATALOG/texts/MANIFEST …
//!
//!   index("photos") ── stat MANIFEST ── open and unchanged ─────────────────────────> Arc<Index>
//!                                    └─ else: read tables, free memory, read codes ─────^
//!
//!   memory    the program and the queries in flight     once
//!             codebooks                                 once for each content (AiSAQ §4.4)
//!             codes, tables, cache, navigation graph    for each index that is open or in use
//!             the same, and the memory of changes       for each index that is open for changes
//! ```
//!
//! - [`budget`]: opens indexes within the budget, for reading and for changes
//! - [`ledger`]: the memory in use, and the indexes to close for new ones
//! - [`names`]: the names of a directory's indexes, and names similar to a wrong one
//! - [`federated`]: one search over several indexes
//!
//! Opening an `aisaq` index reads a fixed amount of data, whatever its size: some kilobytes if its
//! codebook is in memory. So indexes are opened on request, and the least recently used ones are
//! closed again. `bench/kernels/benches/open.rs` measures the time, and `examples/catalog.rs` the
//! cost of thousands of indexes.

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

/// The most indexes that a catalog has open. Each has its folder and one file open, and more files
/// if vectors or the data beside them are apart from lists. If the process may have few open files,
/// fewer indexes are open, since other uses need a part of the files.
pub const MOST_OPEN: usize = 512;

/// The most attempts to open an index that a build replaces meanwhile.
const ATTEMPTS: usize = 3;

/// The default time that a call waits for memory of the catalog.
const PATIENCE: Duration = Duration::from_secs(10);

/// Options for opening a catalog.
#[derive(Clone, Debug)]
pub struct CatalogOptions {
    /// The most memory of all indexes together, in bytes. It includes the program and the queries
    /// in flight. `None` sets no limit.
    pub memory: Option<u64>,
    /// The options for opening each index. `memory` and `watch_recall` must be `None`, since the
    /// budget is the budget of the catalog. Each open index has a `cache` of its own.
    pub open: OpenOptions,
    /// The time that a call waits if the memory budget is full of indexes in use; 10 seconds by
    /// default. This applies to opening an index for changes. It also applies to opening an index
    /// for searches while other indexes are open for changes.
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
/// An index is opened at its first use. It stays open until another index needs its memory, or its
/// file descriptors if the process may have few. The least recently used index is closed first.
/// While a caller has the [`Arc`] that [`index`](Catalog::index) returned, the index cannot be
/// closed, and its memory counts. So keep it no longer than needed. An index that is opened alone
/// spends memory on hot pages. A catalog does not.
///
/// The same threads search all indexes, and all indexes share the memory for queries in flight.
///
/// To change an index, call [`LiveIndex::over`](crate::LiveIndex::over) with the one that
/// [`index`](Catalog::index) returns. Under a budget, the opened index gets as much memory as
/// changes of an index of its size can use, and more while more changes wait. If there is no
/// memory, the call waits for a time ([`CatalogOptions::patience`]), and then fails. The opened
/// index has its own threads. Without a budget, the memory of changes is neither bounded nor
/// counted.
pub struct Catalog {
    place: IndexPaths,
    budget: Arc<Budget>,
    /// Signals that a thread has opened an index, or has failed to.
    settled: Condvar,
    /// Facts from the manifests of indexes, whether open or not.
    spaces: Mutex<HashMap<String, (Stamp, Space)>>,
}

/// Facts about an index in a catalog, from its manifest alone.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct IndexFacts {
    /// Its name in the catalog.
    pub name: String,
    /// The number of vectors.
    pub vectors: u64,
    /// Their dimension.
    pub dimension: u32,
    /// Their element type.
    pub element: String,
    /// The metric.
    pub metric: String,
    /// The preset of its build.
    pub preset: String,
    /// The layout of its nodes on disk.
    pub layout: String,
    /// The bytes of a vector's code.
    pub code_bytes: u32,
    /// The bytes on disk.
    pub bytes: u64,
    /// The content hash of its codebook, which indexes with equal codebooks share. It is empty in
    /// an index of a format version below 3.
    pub codebook: String,
    /// The number of nodes in the navigation graph; 0 if there is none.
    pub navigation_nodes: u64,
    /// The number of clusters of a cluster index; 0 in a graph.
    pub clusters: u64,
    /// The format version of the index.
    pub format_version: u32,
}

/// The version of an index on disk: the identity of its manifest file, which each commit replaces,
/// and the bytes of its logs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stamp {
    device: u64,
    inode: u64,
    length: u64,
    /// The bytes of all logs, and the highest number of a log.
    logged: (u64, u64),
    modified: (i64, i64),
    changed: (i64, i64),
}

impl Stamp {
    /// The stamp of the index in a directory; `None` if there is none.
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

    /// The bytes of the log files in a directory, and the highest number of a log.
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
                // A checkpoint has just removed the log.
                Err(error) if stored::is_absent(&error) => {}
                Err(error) => return Err(unseen(&entry.path(), error)),
            }
        }
        Ok((bytes, last))
    }
}

/// The error if an index's files cannot be examined.
fn unseen(path: &Path, error: std::io::Error) -> Error {
    TierError::io("open", path.display().to_string(), 0, 0, error).into()
}

/// The right to open an index, which one thread has at a time. If the index was not opened, the
/// drop of this value frees the memory that was reserved for the index.
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
    /// Closes all open indexes, except indexes that callers still have.
    fn drop(&mut self) {
        let closed = self.budget.ledger.lock().close_all();
        drop(closed);
    }
}

impl Catalog {
    /// Opens a directory whose subdirectories are indexes. No index is opened yet. Indexes that are
    /// built in the directory later belong to the catalog too.
    ///
    /// # Errors
    /// There is no such directory, or it is an index itself. Or the memory budget is too small for
    /// the program and its queries.
    pub fn open(directory: impl AsRef<Path>, options: &CatalogOptions) -> Result<Self, Error> {
        Self::at(IndexPaths::directory(directory.as_ref())?, options)
    }

    /// Creates a catalog of indexes at any paths. The name of an index is its path as given here.
    ///
    /// # Errors
    /// There are no paths, or the memory budget is too small for the program and its queries. A
    /// missing index is an error only when it is requested.
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
                "Set that one in its place",
            ));
        }
        if options.open.watch_recall.is_some() {
            return Err(Error::call(
                "watch_recall of each index",
                "given",
                "a watch is of one index",
                "Open an index by itself to watch it",
            ));
        }
        // The page size is known only when an index is opened. If its pages are larger, a search
        // has fewer queries in flight.
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
                    part: "the program and one query in flight, and more for each index".into(),
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

    /// The names of the indexes that exist now, sorted. An index is a subdirectory with a MANIFEST.
    /// An unfinished build, for example, has none.
    ///
    /// # Errors
    /// The directory is missing or cannot be read.
    pub fn names(&self) -> Result<Vec<String>, Error> {
        self.place.names()
    }

    /// The number of indexes that exist now.
    ///
    /// # Errors
    /// Fails as [`names`](Catalog::names) does.
    pub fn len(&self) -> Result<usize, Error> {
        Ok(self.names()?.len())
    }

    /// Whether no index exists now.
    ///
    /// # Errors
    /// Fails as [`names`](Catalog::names) does.
    pub fn is_empty(&self) -> Result<bool, Error> {
        Ok(self.names()?.is_empty())
    }

    /// Whether an index of this name exists.
    pub fn contains(&self, name: &str) -> bool {
        self.place
            .path(name)
            .is_ok_and(|path| matches!(Stamp::of(&path), Ok(Some(_))))
    }

    /// The index of this name. If it is not open, the call opens it, and may close other indexes
    /// for it.
    ///
    /// If any process replaced or changed the index on disk, it is opened again. Callers that have
    /// the old handle keep it. So while an index is being changed, each call after a change opens
    /// it again.
    ///
    /// If the index is open, the call only examines its folder. Otherwise its files are read
    /// without a lock, so that searches continue meanwhile and other indexes can be opened.
    ///
    /// # Errors
    /// - [`Error::NoSuchIndex`], with similar names, if there is none of this name.
    /// - [`Error::Memory`] if the index can never fit the memory budget, or does not fit beside the
    ///   indexes that callers hold. If some of them are open for changes, the call first waits for
    ///   memory.
    /// - An error of its files.
    pub fn index(&self, name: &str) -> Result<Arc<Index>, Error> {
        self.index_observed(name, &Silent)
    }

    /// Like [`index`](Catalog::index). While the call waits for memory, it checks `progress` every
    /// few milliseconds for an interruption.
    ///
    /// # Errors
    /// Fails as [`index`](Catalog::index) does, and with [`Error::Interrupted`].
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
                // A build that replaces the index may remove files after the manifest was read and
                // before they are opened.
                Err(_) if attempt < ATTEMPTS && Stamp::of(&path)? != Some(stamp) => {}
                // Other uses have taken the remaining file descriptors.
                Err(error)
                    if error.kind() == ErrorKind::TooManyFiles
                        && attempt < ATTEMPTS
                        && self.budget.close_some() => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Closes an index, and returns whether it was open. Its memory is freed when no caller has it
    /// any more.
    pub fn close(&self, name: &str) -> bool {
        let closed = self.budget.ledger.lock().retire(name);
        closed.is_some()
    }

    /// Whether the latest requested version of the index of this name is open. The call does not
    /// count as a use.
    pub fn is_open(&self, name: &str) -> bool {
        self.budget.ledger.lock().is_open(name)
    }

    /// The number of open indexes, including indexes that callers still hold, have opened again, or
    /// change.
    pub fn open_count(&self) -> usize {
        self.budget.ledger.lock().open_count()
    }

    /// The bytes in use, as the catalog counts them: the program and the queries in flight,
    /// codebooks, and the most that open indexes may take, including indexes open for changes.
    ///
    /// The number never exceeds the budget, with one exception: while a caller has both an index
    /// and its replacement ([`LiveIndex::over`](crate::LiveIndex::over),
    /// [`Opener`](crate::Opener)).
    pub fn memory_bytes(&self) -> u64 {
        self.budget.ledger.lock().bytes()
    }

    /// The memory budget.
    pub fn memory(&self) -> Option<u64> {
        self.budget.options.memory
    }

    /// The number of codebooks in memory: one for each distinct codebook of open indexes, and the
    /// most recently used others.
    pub fn codebook_count(&self) -> usize {
        self.budget.ledger.lock().codebook_count()
    }

    /// The backend of the search threads, which read pages. If there are no such threads yet, they
    /// are started.
    ///
    /// # Errors
    /// A thread cannot be started.
    pub fn backend(&self) -> Result<Backend, Error> {
        let worker_pool = self
            .budget
            .shared
            .worker_pool(1, self.budget.options.open.io)?;
        Ok(worker_pool.backend().clone())
    }

    /// Facts about an index, from its manifest alone. The call is cheap, and the index need not fit
    /// the memory budget.
    ///
    /// # Errors
    /// There is no index of this name, or its manifest is damaged or of a later format.
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

    /// The current stamp of an index. If the index no longer exists, the catalog forgets it.
    fn stamp(&self, name: &str, path: &Path) -> Result<Stamp, Error> {
        if let Some(stamp) = Stamp::of(path)? {
            return Ok(stamp);
        }
        self.close(name);
        self.spaces.lock().remove(name);
        Err(self.place.absent(name, path))
    }

    /// The index, if it is open and unchanged on disk. Otherwise the right to open it. If another
    /// thread has that right, the call waits.
    fn begin<'a>(&'a self, name: &'a str, stamp: Stamp) -> Begin<'a> {
        let mut ledger = self.budget.ledger.lock();
        if ledger.is_opening(name) {
            self.settled.wait_for(&mut ledger, budget::LOOK);
            // The other thread may have opened a version that is newer than the stamp.
            return Begin::Look;
        }
        if let Some(index) = ledger.find(name, stamp) {
            return Begin::Open(index);
        }
        let replaced = ledger.retire(name);
        ledger.begin(name);
        drop(ledger);
        // The files of the replaced index are closed after the lock is released.
        drop(replaced);
        Begin::Mine(Opening {
            catalog: self,
            name,
        })
    }

    /// Adds a new index to the open ones.
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

/// The result of [`Catalog::begin`].
enum Begin<'a> {
    /// The index is open.
    Open(Arc<Index>),
    /// Another thread has just opened the index, or failed to open it. The caller must look again.
    Look,
    /// The caller must open it.
    Mine(Opening<'a>),
}
