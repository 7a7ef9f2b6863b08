//! An open index: the files of the index, the parts of the files in memory, and the threads that
//! search it.
//!
//! ```text
//!   INDEX/MANIFEST      the names of the checkpoint's files, and the facts about the index
//!   INDEX/graph-…       pages of nodes (packed-…, adjacency-…): read by searches, and loaded as
//!                       far as the budget allows
//!   INDEX/directory-…   the page of each node, and the tables that decode lists and vectors
//!   INDEX/vectors-…-…   segments of vectors, if these are apart from lists; chunks-…-… have the
//!                       position of each vector in its segment
//!   INDEX/rows-…-…      attributes and payloads, and columns-…-… with the nodes that have a value;
//!                       the first key of each group of keys is in memory
//!   INDEX/codebook-…    PQ centroids     ┐
//!   INDEX/codes-…       PQ codes         ├ in memory while open
//!   INDEX/navigation-…  a sample's graph ┘ (loaded when the first search needs it)
//!
//!   INDEX/inline-…      in place of graph-…: pages of nodes with the codes of their neighbours
//!   INDEX/entries-…     in place of codes-…: entry points and their codes
//!
//!   INDEX/clusters-…    in a cluster index: the length of each posting list. It is in memory while
//!                       open, as is navigation-…, the graph over the heads
//!   INDEX/grouped-…     posting lists (replicated-…, postings-… with addressed-…)
//!
//!   INDEX/amended-…     clusters rewritten since the build, and the valid posting list of
//!                       each: in memory while open
//!   INDEX/grouped-…-…   their posting lists (replicated-…-…, postings-…-…), and addressed-…-… with
//!                       new vectors that are outside groups
//!
//!   INDEX/journal-…     pages of an inline index that are about to be written in place
//!   INDEX/placement-…   the page of each node after direct inserts; new codes    ┐ in memory
//!   INDEX/pending-…     changes that wait for their pages                        ┘ while open
//! ```

pub(crate) mod contents;
pub(crate) mod drift;
pub(crate) mod growth;
pub(crate) mod id_hashes;
pub(crate) mod inserting;
mod kind;
mod lent;
pub(crate) mod measured;
mod options;
pub(crate) mod replay;
mod shared;
mod unpacked;

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use stratann_layout::manifest::FILE_NAME as MANIFEST;
use stratann_layout::{FileKind, Manifest};
use stratann_tier::{
    Backend, GrowingBytes, TierError, Volume, VolumeReader, WorkerPool, ask_for_memory,
    release_code_pages,
};
use stratann_vector::{Element, Metric};

use self::drift::Drift;
use self::id_hashes::IdHashes;
pub(crate) use self::kind::{GraphIndex, Kind};
pub use self::lent::Opener;
pub(crate) use self::lent::{Grant, Lender, Lent, Shortage};
use self::measured::Recall;
pub use self::measured::{Calibrated, QuerySource};
pub use self::options::{CacheSize, OpenOptions};
use self::replay::replay;
pub(crate) use self::shared::Shared;
use crate::cache::SlotCache;
use crate::codebook::Codebook;
use crate::data::VectorSource;
use crate::durable::{kept_room, log_bytes, log_number};
use crate::navigation::Navigation;
use crate::overlay::logged::logged_bytes;
use crate::overlay::{CarriedIds, Overlay};
use crate::places::Purpose;
use crate::plan::{MemoryPlan, Needs, PageFile};
use crate::progress::{Progress, Silent};
use crate::room::{Queued, Wanted};
use crate::stores::codes::Codes;
use crate::stores::columns::Columns;
use crate::stores::ids::IdTable;
use crate::stores::reading;
use crate::stores::topology::placement::Pin;
use crate::stores::{ClusterStores, CodeParts, Composition, GraphStores};
use crate::watch::Measurer;
use crate::{Error, ErrorKind, Filter, Preset, RecallWatch, SearchOptions, plan, stored};

/// An index that is open for searches by any number of threads. Searches never write to the index.
pub struct Index {
    path: PathBuf,
    volume: Arc<dyn Volume>,
    manifest: Manifest,
    preset: Preset,
    options: OpenOptions,
    kind: Kind,
    cache: Option<Arc<SlotCache>>,
    codebook: Option<Codebook>,
    codes: Codes,
    columns: Columns,
    memory_plan: MemoryPlan,
    /// The data that the index could put into memory. `memory_plan` says how much of it is there.
    needs: Needs,
    /// The measured recall of searches.
    recall: Recall,
    drift: Drift,
    shared: Arc<Shared>,
    carried: CarriedIds,
    /// The open file of the build's external ids. A merge by another process may remove the name of
    /// this file.
    ids_file: Option<Arc<dyn VolumeReader>>,
    ids: OnceLock<IdTable>,
    /// Hashes of the ids of the build's nodes, and of later nodes. If there is no file of ids,
    /// look-ups use these hashes.
    id_hashes: [IdHashes; 2],
    overlay: Option<Overlay>,
    logged: u64,
    lent: Option<Lent>,
    measurer: Mutex<Option<Measurer>>,
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
    /// The call fails if the directory has no index, if a file is damaged or of a later format, or
    /// if the memory budget is too small.
    pub fn open(path: impl AsRef<Path>, options: &OpenOptions) -> Result<Self, Error> {
        Self::open_observed(path, options, &Silent)
    }

    /// Opens the index as [`open`](Index::open) does. While the index is unpacked, `progress` may
    /// interrupt.
    ///
    /// # Errors
    /// The call fails for the reasons of [`open`](Index::open), and with [`Error::Interrupted`].
    pub fn open_observed(
        path: impl AsRef<Path>,
        options: &OpenOptions,
        progress: &dyn Progress,
    ) -> Result<Self, Error> {
        let home: Arc<dyn Volume> = Arc::new(stored::existing(path.as_ref())?);
        Self::open_from(home, &stored::home(path.as_ref())?, options, progress)
    }

    pub(crate) fn open_from(
        home: Arc<dyn Volume>,
        path: &Path,
        options: &OpenOptions,
        progress: &dyn Progress,
    ) -> Result<Self, Error> {
        let mut manifest = home.read(MANIFEST).ok();
        for _ in 0..MOST_OPENINGS {
            let copied = options.places.state(&*home, path)?;
            let volume = (options.places).over(&home, path, Purpose::Search, options.memory);
            let opened = volume.and_then(|volume| {
                let manifest = stored::manifest(&*volume)?;
                Self::assemble(volume, path, manifest, options, Arc::default(), progress)
            });
            let error = match opened.and_then(Self::with_log) {
                // If another process committed meanwhile, the copies may mix files of two
                // checkpoints.
                Ok(index) if options.places.state(&*home, path)? == copied => {
                    if options.memory.is_some() {
                        release_code_pages();
                    }
                    return Ok(index);
                }
                Ok(_) => {
                    manifest = home.read(MANIFEST).ok();
                    continue;
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => return Err(error),
                Err(error) => error,
            };
            let now = home.read(MANIFEST).ok();
            if now.is_none() || now == manifest && !is_of_a_log_that_went(&error) {
                return Err(error);
            }
            manifest = now;
        }
        Err(Error::Outdated {
            path: path.to_owned(),
        })
    }

    pub(crate) fn with_log(mut self) -> Result<Self, Error> {
        // The length is read before the replay. If a change is logged between both, the index is
        // outdated.
        self.logged = self.log_bytes();
        let overlay = replay(&*self.volume, &self)?.overlay;
        self.overlay = (!overlay.is_empty()).then_some(overlay);
        Ok(self)
    }

    #[cfg(test)]
    pub(crate) fn with_deleted(mut self, id: u64) -> Result<Self, Error> {
        let overlay = replay(&*self.volume, &self)?.overlay;
        overlay.deleted.insert(id);
        self.overlay = Some(overlay);
        Ok(self)
    }

    #[cfg(test)]
    pub(crate) fn open_in(
        volume: Arc<dyn Volume>,
        path: &Path,
        options: &OpenOptions,
    ) -> Result<Self, Error> {
        let manifest = stored::manifest(&*volume)?;
        Self::assemble(volume, path, manifest, options, Arc::default(), &Silent)
    }

    /// Opens the index, with memory for inserts in the budget. If indexes share a budget, `lent` is
    /// the lease of the replaced index. `progress` may interrupt the wait for memory.
    pub(crate) fn open_for_changes(
        volume: Arc<dyn Volume>,
        path: &Path,
        options: &OpenOptions,
        lent: Option<&Lent>,
        progress: &dyn Progress,
    ) -> Result<Self, Error> {
        let manifest = stored::manifest(&*volume)?;
        Self::open_next(volume, path, manifest, options, (lent, progress))
    }

    /// Opens the files of an uncommitted manifest. The budget in `options` is the index's first
    /// lease of memory.
    pub(crate) fn open_next(
        volume: Arc<dyn Volume>,
        path: &Path,
        manifest: Manifest,
        options: &OpenOptions,
        (lent, progress): (Option<&Lent>, &dyn Progress),
    ) -> Result<Self, Error> {
        let measured = manifest.measured.clone();
        // If pages are rewritten in place, the old and the new version are in memory.
        let composition = stored::layout(&*volume, &manifest)?.composition();
        let doubled = composition.takes_inserts() && !composition.records_move();
        let preset: Preset = manifest.preset.parse()?;
        let navigates = options.navigation.unwrap_or(preset.navigation);
        let files = manifest.files.iter().map(|entry| entry.length).sum();
        let (mut granted, mut first) = (None, options.memory);
        let divide = |needs: &Needs| {
            let (mut needs, mut budget) = (*needs, options.memory);
            needs.graph.doubled = doubled;
            needs.unpacked = 0;
            if composition.takes_inserts() {
                needs.rows = plan::WAITING_ROWS;
            }
            if let Some(lent) = lent {
                needs = needs.lent(navigates, files);
                match budget {
                    None => {
                        granted = lent.for_changes(path, &needs, progress)?;
                        budget = granted.as_ref().map(|&(budget, _)| budget);
                        first = budget;
                    }
                    Some(before) => budget = Some(lent.again(path, before, &needs)?),
                }
            }
            let mut memory_plan = plan::divide(budget, &needs, measured.as_ref())?;
            memory_plan.for_changes = true;
            Ok(memory_plan)
        };
        let shared = Arc::default();
        let loads = (shared, progress);
        let mut index = Self::assemble_within(volume, path, manifest, options, loads, divide)?;
        index.options.memory = first;
        index.lent = granted.map(|(_, lent)| lent).or_else(|| lent.cloned());
        Ok(index)
    }

    pub(crate) fn assemble(
        volume: Arc<dyn Volume>,
        path: &Path,
        manifest: Manifest,
        options: &OpenOptions,
        shared: Arc<Shared>,
        progress: &dyn Progress,
    ) -> Result<Self, Error> {
        let measured = manifest.measured.clone();
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
        Self::assemble_within(volume, path, manifest, options, (shared, progress), divide)
    }

    /// `divide` divides the memory budget, after the tables are read and before the codes are read.
    pub(crate) fn assemble_within(
        volume: Arc<dyn Volume>,
        path: &Path,
        manifest: Manifest,
        options: &OpenOptions,
        loads: (Arc<Shared>, &dyn Progress),
        divide: impl FnOnce(&Needs) -> Result<MemoryPlan, Error>,
    ) -> Result<Self, Error> {
        let files = (volume.clone(), manifest.clone());
        let opened = Self::assemble_files(volume, path, manifest, options, loads, divide);
        opened.map_err(|error| stored::missing_is_damage(error, &*files.0, &files.1))
    }

    fn assemble_files(
        volume: Arc<dyn Volume>,
        path: &Path,
        manifest: Manifest,
        options: &OpenOptions,
        (shared, progress): (Arc<Shared>, &dyn Progress),
        divide: impl FnOnce(&Needs) -> Result<MemoryPlan, Error>,
    ) -> Result<Self, Error> {
        let preset: Preset = manifest.preset.parse()?;
        let mut kind = Kind::open(&*volume, &manifest)?;
        let (mut carried, mut inserted) = (CarriedIds::of_build(&manifest), Vec::new());
        if let Some(mut file) = reading::placement(&*volume, &manifest)? {
            kind.take_placement(&*volume, &manifest, &file)?;
            inserted = std::mem::take(&mut file.codes);
            carried = CarriedIds::of(file, &manifest);
        }
        if matches!(kind, Kind::Clusters(_)) && options.cache != CacheSize::None {
            let reason = "a cluster index has no records of nodes to cache";
            return Err(Error::call("cache", "given", reason, "Leave it out"));
        }
        let columns = Columns::open(&*volume, &manifest, options.memory)?;
        let slot_bytes = kind.cached_bytes();
        let entries = match options.cache {
            CacheSize::None => 0,
            CacheSize::Bytes(bytes) => SlotCache::entries_for(bytes, slot_bytes),
            CacheSize::Entries(entries) => entries,
        }
        // The cache has at most one entry for each record of the build.
        .min(manifest.vectors as usize);
        SlotCache::check_room(entries, slot_bytes)?;
        let cache = (entries > 0).then(|| Arc::new(SlotCache::new(entries, slot_bytes)));
        let (graph_pages, vector_pages) = kind.keepable();
        let code_bytes = Codes::memory_bytes(&*volume, &manifest, kind.composition())?;
        let navigates = options.memory.is_none() || options.navigation.unwrap_or(preset.navigation);
        let navigation = kind.navigation_entry(&manifest).filter(|_| navigates);
        // If a place has a file in memory, its pages are not loaded a second time.
        let (no_lists, no_vectors) = options.places.all_in_memory();
        let left = |file: PageFile, none: bool| PageFile {
            pages: if none { 0 } else { file.pages },
            ..file
        };
        let vectors = (
            manifest.dimension as usize,
            manifest.element,
            manifest.metric,
        );
        let mut watched = 0;
        if let Some(watch) = &options.watch_recall {
            watch.watch(path, volume.identity(), vectors)?;
            watched = watch.memory_bytes(vectors.0 * vectors.1.size());
        }
        let unpacked = unpacked::shape(&kind, &manifest, preset, options);
        let needs = Needs {
            codes: code_bytes,
            codebook: match kind {
                Kind::Graph(_) => {
                    let each = Codebook::memory_bytes(manifest.dimension as usize);
                    each * (1 + u64::from(preset.low_codes.is_some()))
                }
                Kind::Clusters(_) => 0,
            },
            tables: kind.metadata_bytes() + columns.memory_bytes(),
            cache: cache.as_ref().map_or(0, |cache| cache.memory_bytes()),
            navigation: navigation.map_or(0, |entry| entry.length),
            changes: logged_bytes(&*volume, &manifest)?,
            deleted: carried.charge(),
            beside: options.beside.saturating_add(watched),
            inserting: kind.inserting_bytes(&manifest),
            rows: 0,
            places: options.places.memory_bytes(&*volume, &manifest),
            files: 0,
            graph: left(graph_pages, no_lists),
            vectors: left(vector_pages, no_vectors),
            unpacked: unpacked.map_or(0, unpacked::bytes),
        };
        let memory_plan = divide(&needs)?;
        ask_for_memory(
            format!("codes and pages of {}", path.display()),
            memory_plan.to_load(),
            "open the index with a smaller memory budget",
        )?;
        if memory_plan.graph_pages + memory_plan.vector_pages > 0 {
            let (graph, vectors) = kind.files();
            let pages = (graph.pages, vectors.pages);
            let heat = reading::heat(&*volume, &manifest, pages)?;
            kind.load(&*volume, &memory_plan, heat.as_ref())?;
        }
        let codebook = match kind {
            Kind::Graph(_) => Some(shared.codebook(&*volume, &manifest)?),
            Kind::Clusters(_) => None,
        };
        let composition = kind.composition();
        let codes = Codes::load(
            &*volume,
            &manifest,
            composition,
            codebook.as_ref(),
            &inserted,
        )?;
        if let Some(entry) = navigation.filter(|_| memory_plan.navigation > 0) {
            kind.open_navigation(&*volume, entry)?;
        }
        let ids_file = match manifest.file(FileKind::Ids.name()) {
            // Without the file of ids, look-ups read ids from the records.
            Some(entry) => volume.open_reader(&entry.name).ok().map(Arc::from),
            None => None,
        };
        let recall = Recall::of(reading::recall(&*volume, &manifest));
        tracing::debug!(
            index = %path.display(),
            preset = %preset,
            vectors = manifest.vectors,
            budget = memory_plan.budget,
            codes = memory_plan.codes,
            tables = memory_plan.tables,
            navigation = memory_plan.navigation,
            cache = memory_plan.cache,
            places = memory_plan.places,
            unpacked = memory_plan.unpacked,
            graph_pages = memory_plan.graph_pages,
            vector_pages = memory_plan.vector_pages,
            inserting = memory_plan.inserting,
            "opened; memory of its parts, in bytes"
        );
        let unpacked = unpacked.filter(|_| memory_plan.unpacked > 0);
        let mut index = Self {
            carried,
            path: path.to_owned(),
            volume,
            preset,
            options: options.clone(),
            kind,
            cache,
            codebook,
            codes,
            columns,
            memory_plan,
            needs,
            recall,
            drift: Drift::of(&manifest),
            shared,
            ids_file,
            ids: OnceLock::new(),
            id_hashes: Default::default(),
            overlay: None,
            logged: 0,
            lent: None,
            measurer: Mutex::default(),
            manifest,
        };
        if let Some(shape) = unpacked {
            let stores = unpacked::unpack(&index, shape, progress)?;
            if let Kind::Graph(graph) = &mut index.kind {
                graph.unpacked = Some(stores);
            }
        }
        Ok(index)
    }

    pub(crate) fn recall(&self) -> &Recall {
        &self.recall
    }

    pub(crate) fn drift(&self) -> &Drift {
        &self.drift
    }

    pub(crate) fn overlay(&self) -> Option<&Overlay> {
        self.overlay.as_ref()
    }

    pub(crate) fn log_bytes(&self) -> u64 {
        log_bytes(&*self.volume, self.manifest.log_from.number).unwrap_or(0)
    }

    pub(crate) fn room_bytes(&self) -> u64 {
        kept_room(&*self.volume).unwrap_or(0)
    }

    /// The number of vectors that a search can find, in the checkpoint and in the log.
    pub fn live(&self) -> usize {
        self.overlay()
            .map_or(self.len(), |overlay| overlay.live(self.nodes()))
    }

    /// Whether no process has logged a change, made a checkpoint, merged, moved or replaced the
    /// index since this handle opened it. Open the index again to see changes.
    ///
    /// # Errors
    /// The call fails if the manifest or the logs cannot be read.
    pub fn is_current(&self) -> Result<bool, Error> {
        match self.volume.check_path(&self.path) {
            Err(TierError::Replaced { .. }) => return Ok(false),
            checked => checked?,
        }
        let now = stored::manifest(&*self.volume)?;
        let number = now.log_from.number;
        Ok(now == self.manifest && log_bytes(&*self.volume, number)? == self.logged)
    }

    /// The form of the vectors: dimension, element type and metric.
    pub fn form(&self) -> (usize, Element, Metric) {
        (self.dim(), self.element(), self.metric())
    }

    /// Checks that the vectors have the form that an index in the same directory had before. If
    /// they have another form, another index has replaced that index.
    ///
    /// # Errors
    /// [`Error::OtherIndex`]: the dimension, the element type or the metric differs.
    pub fn check_form(&self, before: (usize, Element, Metric)) -> Result<(), Error> {
        if self.form() == before {
            return Ok(());
        }
        let in_words = |(dim, element, metric)| format!("{dim} dimensions, {element}, {metric}");
        Err(Error::OtherIndex {
            path: self.path.clone(),
            opened: in_words(before),
            found: in_words(self.form()),
        })
    }

    /// The number of vectors in the checkpoint, including vectors that were deleted after the
    /// checkpoint.
    #[expect(
        clippy::len_without_is_empty,
        reason = "whether a search finds any is asked of `live`"
    )]
    pub fn len(&self) -> usize {
        self.nodes().saturating_sub(self.placeholders())
    }

    /// The number of nodes in the checkpoint: its vectors, and a placeholder if one exists.
    pub(crate) fn nodes(&self) -> usize {
        self.kind.nodes() as usize
    }

    pub(crate) fn placeholders(&self) -> usize {
        usize::from(self.manifest.has_placeholder())
    }

    pub(crate) fn carried(&self) -> &CarriedIds {
        &self.carried
    }

    pub(crate) fn has_row_numbers(&self) -> bool {
        self.manifest.has_row_numbers()
    }

    /// `None` if the file of ids is missing or damaged. Look-ups then read the ids in the records.
    pub(crate) fn id_table(&self) -> Result<Option<&IdTable>, Error> {
        if let Some(table) = self.ids.get() {
            return Ok(Some(table));
        }
        let entry = self.manifest.file(FileKind::Ids.name());
        let Some((reader, entry)) = self.ids_file.as_ref().zip(entry) else {
            return Ok(None);
        };
        let expected = Some(self.manifest.vectors);
        match IdTable::opened(reader.clone(), &*self.volume, entry, expected) {
            Ok(table) => Ok(Some(self.ids.get_or_init(|| table))),
            Err(error) if error.kind() == ErrorKind::Damaged => {
                tracing::warn!(
                    index = %self.path.display(),
                    "the file of ids is damaged, so lookups read all records (`stratann compact` writes a new file): {error}"
                );
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// Hashes of the ids of the nodes from `first` on. `first` must be 0, or the first node after
    /// the build.
    pub(crate) fn id_hashes(&self, first: u32) -> &IdHashes {
        &self.id_hashes[usize::from(first > 0)]
    }

    pub(crate) fn id_hash_bytes(&self) -> u64 {
        self.id_hashes.iter().map(IdHashes::memory_bytes).sum()
    }

    /// The dimension of the vectors.
    pub fn dim(&self) -> usize {
        self.manifest.dimension as usize
    }

    /// The element type of the vectors.
    pub fn element(&self) -> Element {
        self.manifest.element
    }

    /// The metric of the build.
    pub fn metric(&self) -> Metric {
        self.manifest.metric
    }

    /// The preset of the build, which gives the defaults of searches.
    pub fn preset(&self) -> Preset {
        self.preset
    }

    /// The directory of the index.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The backend by which the search threads read pages. If no threads exist, the call starts
    /// them.
    ///
    /// # Errors
    /// The call fails if no thread can be started.
    pub fn backend(&self) -> Result<Backend, Error> {
        Ok(self.worker_pool(1)?.backend().clone())
    }

    /// The number of nodes in the navigation graph; 0 if there is none.
    pub fn navigation_nodes(&self) -> usize {
        self.manifest.kind.navigation_nodes() as usize
    }

    #[cfg(test)]
    pub(crate) fn replace_tiers(&mut self, tier: &dyn Fn(&str) -> Arc<dyn stratann_tier::Tier>) {
        let stores = match &mut self.kind {
            Kind::Graph(graph) => &mut graph.stores,
            Kind::Clusters(clusters) => {
                for file in &mut clusters.files {
                    file.tier = tier(&file.name);
                }
                return;
            }
        };
        stores.tier = tier(&stores.name);
        for segment in stores.segments.iter_mut().flat_map(|s| s.iter_mut()) {
            segment.tier = tier(&segment.name);
        }
    }

    /// The watch to which this index offers its queries.
    pub(crate) fn offers_to(&self) -> Option<&RecallWatch> {
        let watch = self.options().watch_recall.as_ref();
        watch.filter(|watch| !watch.is_told())
    }

    /// Offers served queries to the sample.
    pub(crate) fn has_served(
        &self,
        queries: &dyn VectorSource,
        options: &SearchOptions,
        filter: Option<&Filter>,
    ) {
        if let Some(watch) = self.offers_to() {
            watch.has_served(queries, options, filter);
        }
    }

    pub(crate) fn measurer(&self) -> &Mutex<Option<Measurer>> {
        &self.measurer
    }

    /// The options with which the index was opened.
    pub fn options(&self) -> &OpenOptions {
        &self.options
    }

    /// The device number and the inode number of the directory, which are equal for handles of one
    /// index. `None` if the index is in no directory.
    pub fn folder(&self) -> Option<(u64, u64)> {
        self.volume.identity()
    }

    pub(crate) fn volume(&self) -> &Arc<dyn Volume> {
        &self.volume
    }

    pub(crate) fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    pub(crate) fn composition(&self) -> &'static Composition {
        self.kind.composition()
    }

    pub(crate) fn kind(&self) -> &Kind {
        &self.kind
    }

    /// Until the pin is dropped, no change overwrites the pages that a query may read.
    pub(crate) fn pin(&self) -> Option<Pin<'_>> {
        self.kind.pin()
    }

    /// The stores of a graph index; panics for a cluster index.
    pub(crate) fn graph(&self) -> &GraphStores {
        match &self.kind {
            Kind::Graph(graph) => &graph.stores,
            Kind::Clusters(_) => panic!("a cluster index has no graph"),
        }
    }

    /// The stores from which searches of a graph index read; panics for a cluster index.
    pub(crate) fn search_stores(&self) -> &GraphStores {
        match &self.kind {
            Kind::Graph(graph) => graph.search_stores(),
            Kind::Clusters(_) => panic!("a cluster index has no graph"),
        }
    }

    pub(crate) fn is_unpacked(&self) -> bool {
        self.memory_plan.unpacked > 0
    }

    /// The memory of the same index if it is opened for searches with the same options, and
    /// [unpacked](OpenOptions::unpack) if its budget allows that. The call opens and decodes
    /// nothing.
    ///
    /// # Errors
    /// The memory budget is too small.
    pub fn memory_to_search(&self) -> Result<MemoryPlan, Error> {
        let options = OpenOptions {
            unpack: true,
            ..self.options.clone()
        };
        // A lease is no budget of the index alone, and an index of a catalog is not unpacked.
        if self.lent.is_some() || self.memory_plan.for_changes {
            return Ok(self.memory_plan.clone());
        }
        let shape = unpacked::shape(&self.kind, &self.manifest, self.preset, &options);
        let needs = Needs {
            unpacked: shape.map_or(0, unpacked::bytes),
            inserting: 0,
            ..self.needs
        };
        plan::divide(options.memory, &needs, self.manifest.measured.as_ref())
    }

    /// Whether the same index would be unpacked if it was opened for searches, and is not unpacked
    /// now, since it was opened without [`OpenOptions::unpack`].
    pub fn would_unpack(&self) -> bool {
        let plan = self.memory_to_search();
        !self.is_unpacked() && plan.is_ok_and(|plan| plan.unpacked > 0)
    }

    /// The stores of a cluster index. `None` for a graph index.
    pub(crate) fn clusters(&self) -> Option<&ClusterStores> {
        match &self.kind {
            Kind::Graph(_) => None,
            Kind::Clusters(clusters) => Some(clusters),
        }
    }

    /// Whether this is a cluster index. Otherwise it is a graph index.
    pub fn has_clusters(&self) -> bool {
        self.clusters().is_some()
    }

    pub(crate) fn cache(&self) -> Option<&Arc<SlotCache>> {
        self.cache.as_ref()
    }

    /// Whether the index has a navigation graph that the memory budget can hold.
    pub fn has_navigation(&self) -> bool {
        self.memory_plan.navigation > 0 && self.manifest.kind.navigation_nodes() > 0
    }

    /// The division of the memory budget.
    pub fn memory(&self) -> &MemoryPlan {
        &self.memory_plan
    }

    /// Reserves memory for as many of the `wanted` queries as the budget can hold now. If other
    /// searches have all memory, the reservation waits.
    pub(crate) fn room(&self, list: usize, candidates: usize, wanted: Wanted) -> Queued {
        let size = (list, self.largest_page(), candidates);
        self.shared.room.queue(&self.memory_plan, size, wanted)
    }

    /// Reserves `bytes` and the memory for reads of nodes. `None` if both never fit into the memory
    /// of queries.
    pub(crate) fn room_beside_reading(&self, bytes: u64) -> Option<Queued> {
        let reading = self
            .memory_plan
            .for_queries(1, self.largest_page(), 0)
            .map_or(0, |(_, each)| each);
        let both = reading.saturating_add(bytes);
        let fits = self.memory_plan.budget.is_none() || both <= self.memory_plan.queries;
        fits.then(|| self.shared.room.queue_bytes(&self.memory_plan, both))
    }

    fn largest_page(&self) -> usize {
        let (lists, vectors) = self.kind.files();
        lists.read_bytes().max(vectors.read_bytes())
    }

    pub(crate) fn candidates(&self, list: usize, wanted: usize) -> usize {
        self.memory_plan
            .candidates(list, self.largest_page(), wanted)
    }

    pub(crate) fn most_at_once(&self, list: usize, wanted: usize) -> usize {
        match self.memory_plan.for_queries(list, self.largest_page(), 0) {
            Some((all, each)) => wanted.min((all / each.max(1)) as usize),
            None => wanted,
        }
    }

    /// Checks the dimension and the element type of vectors. In errors, `called` names the vectors.
    pub(crate) fn check_shape_of(
        &self,
        vectors: &dyn VectorSource,
        called: &str,
    ) -> Result<(), Error> {
        let (dim, element) = (self.dim(), self.element());
        if vectors.dim() != dim {
            return Err(Error::call(
                format!("dimension of {}", vectors.name()),
                vectors.dim(),
                format!("the index has dimension {dim}"),
                format!("Give {called} of dimension {dim}"),
            ));
        }
        if vectors.element() != element {
            return Err(Error::call(
                format!("element type of {}", vectors.name()),
                vectors.element(),
                format!("the index has element type {element}"),
                format!("Give {called} of type {element}"),
            ));
        }
        Ok(())
    }

    pub(crate) fn checks_pages(&self) -> bool {
        self.options.verify_pages
    }

    pub(crate) fn codes(&self) -> &GrowingBytes {
        self.codes.whole()
    }

    pub(crate) fn code_parts(&self) -> Option<CodeParts<'_>> {
        self.codes.parts()
    }

    pub(crate) fn columns(&self) -> &Columns {
        &self.columns
    }

    /// The codebook. `None` for a cluster index, which has no codes.
    pub fn codebook(&self) -> Option<&Codebook> {
        self.codebook.as_ref()
    }

    pub(crate) fn graph_codebook(&self) -> &Codebook {
        self.codebook.as_ref().expect("a graph has codes")
    }

    pub(crate) fn entries(&self) -> &[u32] {
        &self.codes.entries
    }

    pub(crate) fn navigation(&self) -> Result<&Navigation, Error> {
        match &self.kind {
            Kind::Graph(graph) => graph.navigation(&*self.volume, &self.manifest),
            Kind::Clusters(_) => Err(Error::call(
                "navigation",
                "on",
                "a search of clusters starts from the graph over their heads",
                "Turn `navigation` off",
            )),
        }
    }

    pub(crate) fn worker_pool(&self, threads: usize) -> Result<Arc<WorkerPool>, Error> {
        self.shared.worker_pool(threads, self.options.io)
    }

    /// A pool with up to `most` threads, for later batches too. If the system refuses so many
    /// threads, the pool has `threads` threads.
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

/// Whether a log file is missing. A writer that closes the index removes an empty log, and the next
/// writer begins another log under the same name.
fn is_of_a_log_that_went(error: &Error) -> bool {
    let Error::Tier(TierError::Missing { place, .. }) = error else {
        return false;
    };
    let name = Path::new(place).file_name().and_then(|name| name.to_str());
    name.is_some_and(|name| log_number(name).is_some())
}

const MOST_OPENINGS: usize = 100;
