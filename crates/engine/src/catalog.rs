//! A catalog: many indexes in one process, within one memory budget.
//!
//! ```text
//!   CATALOG/photos/MANIFEST …      each subdirectory with a MANIFEST is an index, and its name is the index's
//!   CATALOG/texts/MANIFEST …
//!
//!   index("photos") ── stat MANIFEST ── open and unchanged ──────────────────────> Arc<Index>
//!                                    └─ else: read the tables, make room, read the codes ──^
//!
//!   memory    the program and the queries in flight     once
//!             codebooks                                 once for each content (AiSAQ §4.4)
//!             codes, tables, cache, navigation graph    of each open index, and of those that callers still hold
//!             the same, and what changes take           of each index that is open for changes
//! ```
//!
//! - [`budget`]: indexes are opened within the budget, for reading and for changes
//! - [`ledger`]: what is in memory, and what has to go for what is to come
//! - [`names`]: the names of a directory's indexes, and which of them somebody may have meant
//! - [`federated`]: one search over several indexes
//!
//! Opening an `aisaq` index reads a fixed amount, whatever its size: some kilobytes if its codebook is in memory. So indexes
//! are opened when they are asked for, and the least recently used ones are closed again. `bench/kernels/benches/open.rs` says how long it
//! takes, `examples/catalog.rs` what thousands of indexes take.

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

/// Most indexes that a catalog has open. Each has its folder and one file open, or more where vectors or what stands beside them are apart from lists. Where
/// the process may have few files open, fewer indexes are: a part of the files is left to others.
pub const MOST_OPEN: usize = 512;

/// How often an index is opened that is replaced while that goes on.
const ATTEMPTS: usize = 3;

/// How long somebody waits for room in the memory of a catalog, unless the catalog is opened otherwise.
const PATIENCE: Duration = Duration::from_secs(10);

/// How to open a catalog.
#[derive(Clone, Debug)]
pub struct CatalogOptions {
    /// The most memory to spend on all indexes together, the program and the queries in flight included, in bytes;
    /// `None` is as much as they want.
    pub memory: Option<u64>,
    /// How each index is opened. Its `memory` and its `watch_recall` must be `None`: the budget is the catalog's. A `cache` is one for each open
    /// index.
    pub open: OpenOptions,
    /// How long a call waits where the memory budget has no room beside indexes that are in use: one that opens an index for changes, and one that opens it for
    /// searches while others are open for changes. 10 seconds by default.
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

/// Many indexes that share searching threads, codebooks and one memory budget. Shared by any number of threads.
///
/// An index is opened when it is first asked for and stays open until its memory, or its files where the process may have few open, are needed for another
/// one: the least recently used goes first. One that a caller still holds ([`index`](Catalog::index) gives an [`Arc`]) cannot go: it is
/// accounted for until it is dropped, so hold it no longer than needed. Of the memory that a budget leaves, none goes
/// into hot pages, as in an index that is opened alone.
///
/// All indexes are searched by the same threads, and share the room for queries in flight.
///
/// An index is changed by [`LiveIndex::over`](crate::LiveIndex::over) the one that [`index`](Catalog::index) gives. Under a budget it has a part of that,
/// as much as changes of an index of its size can use, and more while more waits in memory. Where there is no room it waits a while for others
/// ([`CatalogOptions::patience`]), and is refused then. It has threads of its own. Without a budget nothing bounds what changes take, and they are not counted.
pub struct Catalog {
    place: IndexPaths,
    budget: Arc<Budget>,
    /// An index is open, or could not be opened.
    settled: Condvar,
    /// What is known of indexes from their manifests, open or not.
    spaces: Mutex<HashMap<String, (Stamp, Space)>>,
}

/// What an index in a catalog is, from its manifest alone.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct IndexFacts {
    /// Its name in the catalog.
    pub name: String,
    /// Vectors in it.
    pub vectors: u64,
    /// Their dimension.
    pub dimension: u32,
    /// Their element type.
    pub element: String,
    /// The metric.
    pub metric: String,
    /// The preset it was built with.
    pub preset: String,
    /// How its nodes stand on disk.
    pub layout: String,
    /// Bytes of a vector's code.
    pub code_bytes: u32,
    /// Bytes on disk.
    pub bytes: u64,
    /// The content hash of its codebook, which it shares with the indexes that have the same; empty in an index of a
    /// format version below 3.
    pub codebook: String,
    /// Nodes in the navigation graph; 0 if there is none.
    pub navigation_nodes: u64,
    /// Clusters, in a cluster index; 0 in a graph.
    pub clusters: u64,
    /// The format version of the index.
    pub format_version: u32,
}

/// What tells an index from what it was before: its manifest, of which a replacement is another file with the same name, and how much was logged since.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stamp {
    device: u64,
    inode: u64,
    length: u64,
    /// Bytes of all logs, and the highest number of one.
    logged: (u64, u64),
    modified: (i64, i64),
    changed: (i64, i64),
}

impl Stamp {
    /// That of the index in a directory; `None` if there is none.
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

    /// What is logged in a directory.
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
                // A checkpoint has just removed it.
                Err(error) if stored::is_absent(&error) => {}
                Err(error) => return Err(unseen(&entry.path(), error)),
            }
        }
        Ok((bytes, last))
    }
}

/// A failure to look whether an index has changed.
fn unseen(path: &Path, error: std::io::Error) -> Error {
    TierError::io("open", path.display().to_string(), 0, 0, error).into()
}

/// The right to open an index, which one thread has at a time. Gives back what it was granted unless it is used.
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
    /// What is open is closed, but for what callers hold.
    fn drop(&mut self) {
        let closed = self.budget.ledger.lock().close_all();
        drop(closed);
    }
}

impl Catalog {
    /// Opens a directory whose subdirectories are indexes. None of them is opened yet; indexes that are built there later
    /// belong to it as well.
    ///
    /// # Errors
    /// No such directory, one that is an index itself, a memory budget below what the program and its queries need.
    pub fn open(directory: impl AsRef<Path>, options: &CatalogOptions) -> Result<Self, Error> {
        Self::at(IndexPaths::directory(directory.as_ref())?, options)
    }

    /// A catalog of indexes anywhere, each named by its path as it is given here.
    ///
    /// # Errors
    /// No paths, or a memory budget below what the program and its queries need. Whether there are indexes is seen when
    /// they are asked for.
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
                "none: the catalog's own `memory` is the budget of all of them",
            ));
        }
        if options.open.watch_recall.is_some() {
            return Err(Error::call(
                "watch_recall of each index",
                "given",
                "none: a watch is of one index; open an index by itself to watch it",
            ));
        }
        // What a page takes that is read is seen with the index; a search of larger ones keeps fewer queries in flight.
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

    /// The names of the indexes that are there now, sorted: those of the subdirectories with a MANIFEST. What is without
    /// one, a build that goes on for example, is not an index (yet).
    ///
    /// # Errors
    /// A directory that is gone or may not be read.
    pub fn names(&self) -> Result<Vec<String>, Error> {
        self.place.names()
    }

    /// How many indexes are there now.
    ///
    /// # Errors
    /// As [`names`](Catalog::names).
    pub fn len(&self) -> Result<usize, Error> {
        Ok(self.names()?.len())
    }

    /// Whether no index is there now.
    ///
    /// # Errors
    /// As [`names`](Catalog::names).
    pub fn is_empty(&self) -> Result<bool, Error> {
        Ok(self.names()?.is_empty())
    }

    /// Whether there is an index of this name.
    pub fn contains(&self, name: &str) -> bool {
        self.place
            .path(name)
            .is_ok_and(|path| matches!(Stamp::of(&path), Ok(Some(_))))
    }

    /// The index of this name: the open one, or it is opened, for which others may be closed. One that was replaced or changed on
    /// disk, by whomever, is opened anew; callers that hold the old one go on with that. So while somebody changes it, each call after a change opens it.
    ///
    /// A look at its folder if the index is open. Otherwise its files are read without a lock: searches, and the opening of
    /// other indexes, go on meanwhile.
    ///
    /// # Errors
    /// No index of this name, with the names that are like it ([`Error::NoSuchIndex`]); one that could never fit the
    /// memory budget, or does not while callers hold others ([`Error::Memory`]), for which it waits while some of these are open for changes; files that do not
    /// open.
    pub fn index(&self, name: &str) -> Result<Arc<Index>, Error> {
        self.index_observed(name, &Silent)
    }

    /// As [`index`](Catalog::index); `progress` is asked every few milliseconds whether to go on waiting for memory.
    ///
    /// # Errors
    /// As there; [`Error::Interrupted`].
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
                // A build that replaces the index takes away files between the manifest and their opening.
                Err(_) if attempt < ATTEMPTS && Stamp::of(&path)? != Some(stamp) => {}
                // Others have taken what was left.
                Err(error)
                    if error.kind() == ErrorKind::TooManyFiles
                        && attempt < ATTEMPTS
                        && self.budget.close_some() => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Closes an index. What it takes is free when no caller holds it any more. Says whether it was open.
    pub fn close(&self, name: &str) -> bool {
        let closed = self.budget.ledger.lock().retire(name);
        closed.is_some()
    }

    /// Whether the index of this name is open, as it was on disk when it was asked for. Does not count as a use.
    pub fn is_open(&self, name: &str) -> bool {
        self.budget.ledger.lock().is_open(name)
    }

    /// How many indexes are open, those included that callers still hold, have opened again, or change.
    pub fn open_count(&self) -> usize {
        self.budget.ledger.lock().open_count()
    }

    /// Bytes that are accounted for now: the program and the queries in flight, codebooks, and what open indexes may come
    /// to take, those that are open for changes included. Never more than the budget, but while a caller holds an index and the one
    /// that takes its place ([`LiveIndex::over`](crate::LiveIndex::over), [`Opener`](crate::Opener)).
    pub fn memory_bytes(&self) -> u64 {
        self.budget.ledger.lock().bytes()
    }

    /// The memory budget.
    pub fn memory(&self) -> Option<u64> {
        self.budget.options.memory
    }

    /// How many codebooks are in memory: one for each content that open indexes have, and those used last.
    pub fn codebook_count(&self) -> usize {
        self.budget.ledger.lock().codebook_count()
    }

    /// How pages are read: the backend of the searching threads, which are started if there are none yet.
    ///
    /// # Errors
    /// No thread could be started.
    pub fn backend(&self) -> Result<Backend, Error> {
        let worker_pool = self
            .budget
            .shared
            .worker_pool(1, self.budget.options.open.io)?;
        Ok(worker_pool.backend().clone())
    }

    /// What an index is, from its manifest: cheap, and the index need not fit the memory budget.
    ///
    /// # Errors
    /// No index of this name, a manifest that is damaged or of a later format.
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

    /// What the manifest of an index is known by now; forgets an index that is gone.
    fn stamp(&self, name: &str, path: &Path) -> Result<Stamp, Error> {
        if let Some(stamp) = Stamp::of(path)? {
            return Ok(stamp);
        }
        self.close(name);
        self.spaces.lock().remove(name);
        Err(self.place.absent(name, path))
    }

    /// The index if it is open and still the one on disk; else the right to open it, once no other thread has that.
    fn begin<'a>(&'a self, name: &'a str, stamp: Stamp) -> Begin<'a> {
        let mut ledger = self.budget.ledger.lock();
        if ledger.is_opening(name) {
            self.settled.wait_for(&mut ledger, budget::LOOK);
            // What that thread has opened may be newer than the stamp.
            return Begin::Look;
        }
        if let Some(index) = ledger.find(name, stamp) {
            return Begin::Open(index);
        }
        let replaced = ledger.retire(name);
        ledger.begin(name);
        drop(ledger);
        // Closing its files need not happen under the lock.
        drop(replaced);
        Begin::Mine(Opening {
            catalog: self,
            name,
        })
    }

    /// Puts an index that was opened among the open ones.
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

/// What [`Catalog::begin`] found.
enum Begin<'a> {
    /// The index is open.
    Open(Arc<Index>),
    /// Another thread has just opened it, or failed to: look again.
    Look,
    /// It is to be opened here.
    Mine(Opening<'a>),
}
