//! An index that is open: its files, what of them is in memory, and the threads that search it.
//!
//! ```text
//!   INDEX/MANIFEST      which files make up the checkpoint, and what the index is
//!   INDEX/graph-…       pages of nodes (packed-…, adjacency-…): read while searching, loaded as far as the budget goes
//!   INDEX/directory-…   which page holds which node, and what lists and vectors are decoded with
//!   INDEX/vectors-…-…   segments of vectors, and chunks-…-… that say where in them, where vectors are apart
//!   INDEX/codebook-…    PQ centroids     ┐
//!   INDEX/codes-…       PQ codes         ├ in memory while open
//!   INDEX/navigation-…  a sample's graph ┘ (loaded when the first search wants it)
//!
//!   INDEX/inline-…      in place of graph-…: pages of nodes with the codes of their neighbours
//!   INDEX/entries-…     in place of codes-…: entry points and their codes
//!
//!   INDEX/journal-…     pages of an inline index that are about to be written in their places
//!   INDEX/placement-…   where nodes are since vectors were inserted directly; their codes ┐ in memory while open
//!   INDEX/pending-…     changes that wait for their pages                                 ┘
//! ```

use std::collections::HashMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use stratann_layout::manifest::FILE_NAME as MANIFEST;
use stratann_layout::{FileKind, LogShape, Manifest, NavigationFile};
use stratann_tier::{Backend, GrowingBytes, IoMode, TierError, Volume, VolumeReader, WorkerPool};
use stratann_vector::{Element, Metric};

use crate::cache::SlotCache;
use crate::codebook::Codebook;
use crate::durable::log_bytes;
use crate::navigation::Navigation;
use crate::plan::{MemoryPlan, Needs};
use crate::room::{Queued, Room};
use crate::stores::codes::Codes;
use crate::stores::{Composition, Graph};
use crate::update::{CarriedIds, Overlay, inserting_bytes, replay};
use crate::{Error, Preset, plan, stored};

/// How to open an index.
#[derive(Clone, Copy, Debug)]
pub struct OpenOptions {
    /// The most memory to spend on this index, in bytes; `None` is as much as it wants.
    pub memory: Option<u64>,
    /// How pages are read.
    pub io: IoMode,
    /// Whether the checksum of every page is verified when it is read (about 0.2 µs each).
    pub verify_pages: bool,
    /// The cache of hot records (DecoupleVS §3.4); part of the budget, if there is one.
    pub cache: CacheSize,
    /// Whether searches will start from the navigation graph, so that a memory budget has room for it; `None` is the
    /// preset's choice. Without a budget it is there whenever a search asks for it.
    pub navigation: Option<bool>,
    /// Bytes that the caller holds beside the index and that count towards `memory`: queries, answers, and for each thread beyond
    /// two what [`THREAD_BYTES`] says.
    pub beside: u64,
}

/// What a searching thread takes, about: its stack, its ring and its first buffers. A budget has room for two.
pub const THREAD_BYTES: u64 = 512 << 10;

/// How large the cache of hot records is. It keeps what searches read last: lists as they are stored, beside their
/// vectors where these stand beside them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CacheSize {
    /// No cache.
    #[default]
    None,
    /// As many entries as fit into so many bytes.
    Bytes(u64),
    /// So many entries.
    Entries(usize),
}

impl Default for OpenOptions {
    fn default() -> Self {
        Self {
            memory: None,
            io: IoMode::Auto,
            verify_pages: true,
            cache: CacheSize::None,
            navigation: None,
            beside: 0,
        }
    }
}

/// An index open for searching. Shared by any number of threads; opening and searching never write.
pub struct Index {
    path: PathBuf,
    volume: Arc<dyn Volume>,
    manifest: Manifest,
    preset: Preset,
    options: OpenOptions,
    graph: Graph,
    cache: Option<Arc<SlotCache>>,
    codebook: Codebook,
    codes: Codes,
    memory_plan: MemoryPlan,
    navigation: OnceLock<Navigation>,
    /// Its file, open: a merge of another process may remove it before the first search wants it.
    navigation_file: Option<Box<dyn VolumeReader>>,
    shared: Arc<Shared>,
    /// Ids that came and went since the build, as the checkpoint has them.
    carried: CarriedIds,
    /// What the log said when it was opened, on top of the checkpoint.
    overlay: Option<Overlay>,
    /// Bytes of the log then.
    logged: u64,
}

/// What indexes of one process can have in common.
#[derive(Default)]
pub(crate) struct Shared {
    /// The searching threads, each with its ring and its buffers.
    worker_pool: Mutex<Option<Arc<WorkerPool>>>,
    /// Codebooks by content hash.
    codebooks: Mutex<HashMap<String, Codebook>>,
    /// What queries in flight take, of all searches that go on.
    room: Room,
}

impl Shared {
    /// The codebook of an index: one that is in memory if it has the same content. The file is read without the lock, so
    /// that an index with a codebook that is there need not wait.
    fn codebook(&self, volume: &dyn Volume, manifest: &Manifest) -> Result<Codebook, Error> {
        let shape = (manifest.dimension as usize, manifest.code_bytes as usize);
        let fits = |known: &&Codebook| (known.dim(), known.code_bytes()) == shape;
        if let Some(known) = self.codebooks.lock().get(&manifest.codebook).filter(fits) {
            return Ok(known.clone());
        }
        let codebook = Codebook::of_index(volume, manifest)?;
        if manifest.codebook.is_empty() {
            return Ok(codebook);
        }
        let mut codebooks = self.codebooks.lock();
        let known = codebooks
            .entry(manifest.codebook.clone())
            .or_insert_with(|| codebook.clone());
        // Another thread may have read the same meanwhile: then one of the two is enough.
        Ok(Some(&*known).filter(fits).cloned().unwrap_or(codebook))
    }

    /// Lets go of a codebook; indexes that have it keep it.
    pub(crate) fn forget_codebook(&self, hash: &str) {
        self.codebooks.lock().remove(hash);
    }

    /// At least `threads` searching threads. They are kept from batch to batch, each with its ring and buffers.
    pub(crate) fn worker_pool(&self, threads: usize, io: IoMode) -> Result<Arc<WorkerPool>, Error> {
        let mut worker_pool = self.worker_pool.lock();
        match &*worker_pool {
            Some(worker_pool) if worker_pool.threads() >= threads => Ok(worker_pool.clone()),
            _ => {
                let started = Arc::new(WorkerPool::new(threads, io)?);
                *worker_pool = Some(started.clone());
                Ok(started)
            }
        }
    }
}

impl fmt::Debug for Index {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Index({}: {} {} vectors of {} dimensions, {}, preset {})",
            self.path.display(),
            self.len(),
            self.element(),
            self.dim(),
            self.metric(),
            self.preset
        )
    }
}

impl Index {
    /// Opens the index in a directory, for reading.
    ///
    /// # Errors
    /// No index there, a file that is damaged, truncated or of a later format, a memory budget below the codes.
    pub fn open(path: impl AsRef<Path>, options: &OpenOptions) -> Result<Self, Error> {
        let volume: Arc<dyn Volume> = Arc::new(stored::existing(path.as_ref())?);
        let path = &*stored::home(path.as_ref())?;
        let mut manifest = volume.read(MANIFEST).ok();
        for _ in 0..MOST_OPENINGS {
            let error = match Self::open_in(volume.clone(), path, options).and_then(Self::with_log)
            {
                Ok(index) => return Ok(index),
                Err(error) => error,
            };
            // A merge may have put another checkpoint in this one's place meanwhile, whose files are gone.
            let now = volume.read(MANIFEST).ok();
            if now.is_none() || now == manifest {
                return Err(error);
            }
            manifest = now;
        }
        Err(Error::Outdated {
            path: path.to_owned(),
        })
    }

    /// It with what its log says now. What is logged later is seen when the index is opened again.
    pub(crate) fn with_log(mut self) -> Result<Self, Error> {
        // Looked at first: what comes meanwhile may be in, but then it looks as if it were not.
        self.logged = self.log_bytes();
        let overlay = replay(&*self.volume, &self)?.overlay;
        self.overlay = (!overlay.is_empty()).then_some(overlay);
        Ok(self)
    }

    /// It as if a vector of this id had been deleted.
    #[cfg(test)]
    pub(crate) fn with_deleted(mut self, id: u64) -> Result<Self, Error> {
        let overlay = replay(&*self.volume, &self)?.overlay;
        overlay.deleted.insert(id);
        self.overlay = Some(overlay);
        Ok(self)
    }

    /// Opens the index in a volume.
    pub(crate) fn open_in(
        volume: Arc<dyn Volume>,
        path: &Path,
        options: &OpenOptions,
    ) -> Result<Self, Error> {
        let manifest = stored::manifest(&*volume)?;
        Self::assemble(volume, path, manifest, options, Arc::default())
    }

    /// As [`open_in`](Index::open_in), with room in the memory budget for inserts.
    pub(crate) fn open_for_changes(
        volume: Arc<dyn Volume>,
        path: &Path,
        options: &OpenOptions,
    ) -> Result<Self, Error> {
        let manifest = stored::manifest(&*volume)?;
        Self::open_next(volume, path, manifest, options)
    }

    /// As [`open_for_changes`](Index::open_for_changes), of the files that a manifest names which is not committed yet.
    pub(crate) fn open_next(
        volume: Arc<dyn Volume>,
        path: &Path,
        manifest: Manifest,
        options: &OpenOptions,
    ) -> Result<Self, Error> {
        let measured = manifest.measured.clone();
        // What is written in its place stays beside what was loaded.
        let doubled = !stored::layout(&*volume, &manifest)?
            .composition()
            .records_move();
        let divide = |needs: &Needs| {
            let mut needs = *needs;
            needs.graph.doubled = doubled;
            let mut memory_plan = plan::divide(options.memory, &needs, measured.as_ref())?;
            memory_plan.for_changes = true;
            Ok(memory_plan)
        };
        Self::assemble_within(volume, path, manifest, options, Arc::default(), divide)
    }

    /// Opens the files that a manifest names, which need not be committed yet.
    pub(crate) fn assemble(
        volume: Arc<dyn Volume>,
        path: &Path,
        manifest: Manifest,
        options: &OpenOptions,
        shared: Arc<Shared>,
    ) -> Result<Self, Error> {
        let measured = manifest.measured.clone();
        // Who only searches has more pages in memory instead.
        let divide = |needs: &Needs| {
            let inserting = 0;
            plan::divide(
                options.memory,
                &Needs {
                    inserting,
                    ..*needs
                },
                measured.as_ref(),
            )
        };
        Self::assemble_within(volume, path, manifest, options, shared, divide)
    }

    /// As [`assemble`](Index::assemble), where `divide` says what may be in memory, from what could be. It is asked when
    /// the tables are read, and before the codes are.
    pub(crate) fn assemble_within(
        volume: Arc<dyn Volume>,
        path: &Path,
        manifest: Manifest,
        options: &OpenOptions,
        shared: Arc<Shared>,
        divide: impl FnOnce(&Needs) -> Result<MemoryPlan, Error>,
    ) -> Result<Self, Error> {
        let preset: Preset = manifest.preset.parse()?;
        let mut graph = Graph::open(&*volume, &manifest)?;
        let (mut carried, mut inserted) = (CarriedIds::default(), Vec::new());
        if let Some(mut file) = stored::placement(&*volume, &manifest)? {
            graph.take_placement(&*volume, &manifest, &file)?;
            inserted = std::mem::take(&mut file.codes);
            carried = CarriedIds::of(file, &manifest);
        }
        let slot_bytes = graph.pages.cached_bytes();
        let entries = match options.cache {
            CacheSize::None => 0,
            CacheSize::Bytes(bytes) => SlotCache::entries_for(bytes, slot_bytes),
            CacheSize::Entries(entries) => entries,
        }
        // As many as there were records at the build: what was inserted since shares them.
        .min(manifest.vectors as usize);
        SlotCache::check_room(entries, slot_bytes)?;
        let cache = (entries > 0).then(|| Arc::new(SlotCache::new(entries, slot_bytes)));
        let (graph_pages, vector_pages) = graph.files();
        let code_bytes = Codes::memory_bytes(&*volume, &manifest, graph.composition)?;
        let navigates = options.memory.is_none() || options.navigation.unwrap_or(preset.navigation);
        let navigation = manifest
            .file(FileKind::Navigation.name())
            .filter(|_| navigates);
        let needs = Needs {
            codes: code_bytes,
            codebook: Codebook::memory_bytes(manifest.dimension as usize),
            tables: graph.metadata_bytes() as u64,
            cache: cache.as_ref().map_or(0, |cache| cache.memory_bytes()),
            navigation: navigation.map_or(0, |entry| entry.length),
            changes: logged_bytes(&*volume, &manifest)?,
            beside: options.beside,
            inserting: inserting_bytes(&graph, manifest.degree as usize),
            graph: graph_pages,
            vectors: vector_pages,
        };
        let memory_plan = divide(&needs)?;
        if memory_plan.graph_pages + memory_plan.vector_pages > 0 {
            let pages = (graph_pages.pages, vector_pages.pages);
            let heat = stored::heat(&*volume, &manifest, pages)?;
            graph.load(&*volume, &memory_plan, heat.as_ref())?;
        }
        let codebook = shared.codebook(&*volume, &manifest)?;
        let codes = Codes::load(&*volume, &manifest, graph.composition, &inserted)?;
        let navigation_file = match navigation.filter(|_| memory_plan.navigation > 0) {
            Some(entry) => Some(volume.open_reader(&entry.name)?),
            None => None,
        };
        tracing::debug!(
            index = %path.display(),
            preset = %preset,
            vectors = manifest.vectors,
            budget = memory_plan.budget,
            codes = memory_plan.codes,
            tables = memory_plan.tables,
            navigation = memory_plan.navigation,
            cache = memory_plan.cache,
            graph_pages = memory_plan.graph_pages,
            vector_pages = memory_plan.vector_pages,
            inserting = memory_plan.inserting,
            "opened; its memory, in bytes"
        );
        Ok(Self {
            carried,
            path: path.to_owned(),
            volume,
            preset,
            options: *options,
            graph,
            cache,
            codebook,
            codes,
            memory_plan,
            navigation: OnceLock::new(),
            navigation_file,
            shared,
            overlay: None,
            logged: 0,
            manifest,
        })
    }

    /// What the log said when it was opened.
    pub(crate) fn overlay(&self) -> Option<&Overlay> {
        self.overlay.as_ref()
    }

    /// Bytes of the log's records, as far as they can be seen.
    pub(crate) fn log_bytes(&self) -> u64 {
        log_bytes(&*self.volume, self.manifest.log_from.number).unwrap_or(0)
    }

    /// The vectors that a search can find: those of the checkpoint and of the log, less those that were deleted.
    pub fn live(&self) -> usize {
        self.overlay()
            .map_or(self.len(), |overlay| overlay.live(self.len()))
    }

    /// Whether it is what the index in its directory is now: false when another process has merged, or made a checkpoint or a
    /// log since it was opened, or when the directory was moved or removed, or another has taken its path. Then open it again to
    /// see that; until then it answers what it knew.
    ///
    /// # Errors
    /// The manifest or the logs cannot be read.
    pub fn is_current(&self) -> Result<bool, Error> {
        match self.volume.check_path(&self.path) {
            Err(TierError::Replaced { .. }) => return Ok(false),
            checked => checked?,
        }
        let now = stored::manifest(&*self.volume)?;
        let number = now.log_from.number;
        Ok(now == self.manifest && log_bytes(&*self.volume, number)? == self.logged)
    }

    /// The vectors in the checkpoint, of which some may have been deleted since.
    #[expect(
        clippy::len_without_is_empty,
        reason = "an index holds at least one vector"
    )]
    pub fn len(&self) -> usize {
        match self.graph.placement.get() {
            Some(placement) => placement.nodes() as usize,
            None => self.manifest.vectors as usize,
        }
    }

    /// Ids that came and went since the build, as the checkpoint has them.
    pub(crate) fn carried(&self) -> &CarriedIds {
        &self.carried
    }

    /// Their dimension.
    pub fn dim(&self) -> usize {
        self.manifest.dimension as usize
    }

    /// Their element type.
    pub fn element(&self) -> Element {
        self.manifest.element
    }

    /// The metric that it was built for.
    pub fn metric(&self) -> Metric {
        self.manifest.metric
    }

    /// The preset that it was built with, from which searches take their defaults.
    pub fn preset(&self) -> Preset {
        self.preset
    }

    /// The directory it lives in.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// How pages are read: the backend of the searching threads, which are started if there are none yet.
    ///
    /// # Errors
    /// No thread could be started.
    pub fn backend(&self) -> Result<Backend, Error> {
        Ok(self.worker_pool(1)?.backend().clone())
    }

    /// The nodes in the navigation graph; 0 if the index was built without one.
    pub fn navigation_nodes(&self) -> usize {
        self.manifest
            .navigation
            .as_ref()
            .map_or(0, |n| n.nodes as usize)
    }

    /// Puts other places under the files of pages, by their names in the volume; for tests of strategies.
    #[cfg(test)]
    pub(crate) fn replace_tiers(&mut self, tier: &dyn Fn(&str) -> Arc<dyn stratann_tier::Tier>) {
        self.graph.tier = tier(&self.graph.name);
        for segment in self.graph.segments.iter_mut().flat_map(|s| s.iter_mut()) {
            segment.tier = tier(&segment.name);
        }
    }

    /// How it was opened.
    pub fn options(&self) -> &OpenOptions {
        &self.options
    }

    pub(crate) fn volume(&self) -> &Arc<dyn Volume> {
        &self.volume
    }

    pub(crate) fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// What its stores can do.
    pub(crate) fn composition(&self) -> &'static Composition {
        self.graph.composition
    }

    pub(crate) fn graph(&self) -> &Graph {
        &self.graph
    }

    pub(crate) fn cache(&self) -> Option<&Arc<SlotCache>> {
        self.cache.as_ref()
    }

    /// Whether there is a navigation graph and the memory budget has room for it.
    pub fn has_navigation(&self) -> bool {
        self.memory_plan.navigation > 0 && self.manifest.navigation.is_some()
    }

    /// How the memory budget is divided.
    pub fn memory(&self) -> &MemoryPlan {
        &self.memory_plan
    }

    /// Room in the memory budget for as many queries in flight with candidate lists of `list` as it has for now, up to `wanted`.
    /// It has to be waited for while searches that go on have all of it.
    pub(crate) fn room(&self, list: usize, candidates: usize, wanted: usize) -> Queued {
        let size = (list, self.largest_page(), candidates);
        self.shared.room.queue(&self.memory_plan, size, wanted)
    }

    /// Bytes of a page of lists or of vectors, whichever is more.
    fn largest_page(&self) -> usize {
        let (graph, vectors) = self.graph.files();
        graph.page_bytes.max(vectors.page_bytes)
    }

    /// How many candidates beyond its list a query may have that would have up to `wanted`.
    pub(crate) fn candidates(&self, list: usize, wanted: usize) -> usize {
        self.memory_plan
            .candidates(list, self.largest_page(), wanted)
    }

    /// How many queries the memory budget lets be in flight at most, up to `wanted`.
    pub(crate) fn most_at_once(&self, list: usize, wanted: usize) -> usize {
        match self.memory_plan.for_queries(list, self.largest_page(), 0) {
            Some((all, each)) => wanted.min((all / each.max(1)) as usize),
            None => wanted,
        }
    }

    pub(crate) fn checks_pages(&self) -> bool {
        self.options.verify_pages
    }

    /// The codes that are in memory, by node.
    pub(crate) fn codes(&self) -> &GrowingBytes {
        &self.codes.bytes
    }

    /// What its codes mean.
    pub fn codebook(&self) -> &Codebook {
        &self.codebook
    }

    /// The nodes where a search may start without a navigation graph.
    pub(crate) fn entries(&self) -> &[u32] {
        &self.codes.entries
    }

    /// The navigation graph, loaded on first use.
    pub(crate) fn navigation(&self) -> Result<&Navigation, Error> {
        if let Some(navigation) = self.navigation.get() {
            return Ok(navigation);
        }
        if self.manifest.navigation.is_none() {
            return Err(Error::call(
                "navigation",
                "on",
                "off: this index was built without a navigation graph (build it with `--navigation 0.01`)",
            ));
        }
        let Some(opened) = self.navigation_file.as_deref() else {
            return Err(Error::call(
                "navigation",
                "on",
                "off: the memory budget has no room for the navigation graph, or was divided without it (`navigation` when the index is opened)",
            ));
        };
        let (volume, kind) = (&*self.volume, FileKind::Navigation);
        let entry = stored::entry(volume, &self.manifest, kind, None)?;
        let payload = stored::read_opened(opened, volume, entry, kind)?;
        let row_bytes = self.dim() * self.element().size();
        let file = stored::name_of(volume, &entry.name);
        let file = NavigationFile::decode(payload, self.manifest.vectors, row_bytes, &file)?;
        Ok(self.navigation.get_or_init(|| Navigation::new(file)))
    }

    /// At least `threads` searching threads.
    pub(crate) fn worker_pool(&self, threads: usize) -> Result<Arc<WorkerPool>, Error> {
        self.shared.worker_pool(threads, self.options.io)
    }

    /// Workers for a batch that can use so many, one of up to `most` that a caller allows: as many as the next batches can use, too, since
    /// this one may be of one query, and others go on beside it. These are left out where the system has no threads for them.
    pub(crate) fn workers(&self, threads: usize, most: usize) -> Result<Arc<WorkerPool>, Error> {
        let beside = most.min(crate::threads::processors());
        match self.worker_pool(threads.max(beside)) {
            Err(Error::Tier(TierError::NoThread { .. })) if beside > threads => {
                self.worker_pool(threads)
            }
            worker_pool => worker_pool,
        }
    }
}

/// How often an index is opened anew because another process committed meanwhile.
const MOST_OPENINGS: usize = 100;

/// What a vector takes in the graph of fresh ones beyond its bytes: its list, its place, and the allocator's share.
pub(crate) const BESIDE_FRESH: u64 = 300;

/// Bytes that the log of an index will take in memory, at most about.
fn logged_bytes(volume: &dyn Volume, manifest: &Manifest) -> Result<u64, Error> {
    let shape = LogShape::new(manifest.element, manifest.dimension as usize)?;
    let bytes = log_bytes(volume, manifest.log_from.number)?;
    let records = bytes / shape.longest_record() as u64;
    Ok(bytes + records * BESIDE_FRESH)
}
