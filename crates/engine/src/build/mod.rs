//! Building an index: rows in, a directory that opens out.
//!
//! ```text
//!   facts.rs ─> graph::construct ─> train codebook ─> sweep.rs ─────────> navigation ─> MANIFEST
//!   format.rs   order, lists                          one, in node order                commit
//!
//!   sweep.rs ──> batches of nodes ──> the layout's NodeWriter, beside its pages in `stores`
//!     └──> PQ codes
//!
//!   codes.rs     rows to PQ codes
//!   space.rs     how large a degree a budget of space leaves room for
//!   parting.rs   whether vectors are fit to be kept in two parts;   precision.rs  how many bits of them lead
//!   coding.rs    what codecs learn of the lists and vectors that are to come
//!   encode.rs    lists and vectors to codes, on all threads
//!   slotted.rs   codes to pages
//!   raw.rs       records of one size to pages
//!   files.rs     bytes to files
//!   ids.rs       which node has which outside id, unless these are row numbers: ids-…
//!   again.rs     the choices of a manifest, to build its rows again;   spool.rs  a file of such rows
//! ```
//!
//! The manifest is written last and replaced atomically, so a build that is interrupted, fails or crashes leaves no
//! index that opens, and a build over an existing index leaves that one intact until the new one is whole. What an
//! unfinished build wrote is removed when it ends, or by the next build in the same directory after a crash.

mod again;
mod chunks;
pub(crate) mod codes;
pub(crate) mod coding;
pub(crate) mod encode;
mod facts;
pub(crate) mod files;
mod format;
mod ids;
mod parting;
pub(crate) mod precision;
pub(crate) mod raw;
pub(crate) mod slotted;
mod space;
mod spool;
pub(crate) mod sweep;
#[cfg(test)]
mod tests;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use serde::Serialize;
use stratann_layout::manifest::{FILE_NAME as MANIFEST, FORMAT_VERSION, IDS, KEPT};
use stratann_layout::{
    BuildFacts, FileKind, GraphFacts, IndexKind, LogFrom, Manifest, NavigationFacts, NavigationFile,
};
use stratann_tier::{
    Directory, Home, LOCK_FILE, TierError, Volume, peak_rss_bytes, process_cpu_time,
};
use stratann_vector::{Metric, Training, to_f32};

use crate::codebook::{self, Codebook};
use crate::data::{Check, MatrixRef, VectorSource, check_rows, check_stored_rows};
use crate::durable::{Checkpoint, Committed};
use crate::fill::BlockFill;
use crate::graph::{self, Constructed, NodeRows, Parameters};
use crate::index::{Index, OpenOptions};
use crate::measure;
use crate::progress::{Progress, Stage};
use crate::stores::codes::Codes;
use crate::stores::vectors::write::KeptSegment;
use crate::{Compression, Error, Layout, Order, Preset, bounds, stored};
use facts::Facts;
pub(crate) use files::{write_made, write_pieces, write_stream};
pub(crate) use format::{Choices, NodeWriter, Planned};
pub(crate) use ids::{IdSorter, LEAST_MEMORY};
use sweep::Written;

pub use chunks::chunk_bytes_for_overhead;

pub(crate) use spool::Spool;

/// Degree bound of the navigation graph, and the list size it is built with.
const NAVIGATION_DEGREE: usize = 32;
const NAVIGATION_LIST: usize = 64;

/// How to build an index.
#[derive(Clone, Debug)]
pub struct BuildOptions {
    /// The row of choices that the index is built for.
    pub preset: Preset,
    /// What "near" means.
    pub metric: Metric,
    /// R, the most neighbours of a node; `None` is 64, or where `search_memory` puts the codes into the nodes, as many as
    /// fill their blocks.
    pub degree: Option<usize>,
    /// L, the candidate list of the build: larger is slower and better. With `space`, at least twice a degree of more than 64.
    pub build_list: usize,
    /// How much nearer a detour must be for an edge to be dropped, as a factor on squared distances (DiskANN's
    /// convention); at least 1, and larger keeps more long edges.
    pub alpha: f32,
    /// Bytes of a vector's PQ code; `None` is the codebook's, or a quarter of the dimensions.
    pub code_bytes: Option<usize>,
    /// The codebook to use, so that it is shared with other indexes; `None` trains one on the rows.
    pub codebook: Option<Codebook>,
    /// How node ids are assigned; `None` is the preset's choice.
    pub order: Option<Order>,
    /// How lists and vectors become bytes; `None` is the preset's choice.
    pub layout: Option<Layout>,
    /// How they are compressed; `None` is the preset's choice.
    pub compression: Option<Compression>,
    /// C, the uncompressed bytes of a chunk of vectors in the decoupled layout (DecoupleVS §3.3).
    pub chunk_bytes: u64,
    /// The uncompressed bytes of a segment of vectors, which is compressed as one.
    pub segment_bytes: u64,
    /// The share of nodes sampled into the navigation graph; 0 for none.
    pub navigation: f64,
    /// The most memory that the build may use, in bytes; `None` is as much as it wants.
    pub memory: Option<u64>,
    /// The memory that searches will have. Where it cannot hold all codes, a preset that leaves the layout open puts them
    /// into the nodes; another one is refused. `None` is enough for the codes.
    pub search_memory: Option<u64>,
    /// The most bytes that the index may take on storage: R is the largest of 16 to 96 with which it is expected to, by a sample of the
    /// vectors. Not together with `degree`. What comes later, by inserts, is beyond it.
    pub space: Option<u64>,
    /// OS threads. One thread and a seed give the same index each time.
    pub threads: usize,
    /// Seed of every random choice.
    pub seed: u64,
    /// The outside id of each row; `None` is the row number.
    pub ids: Option<Vec<u64>>,
    /// Whether an index that is already there is replaced, atomically, when the new one is whole.
    pub overwrite: bool,
}

impl Default for BuildOptions {
    fn default() -> Self {
        Self {
            preset: Preset::default(),
            metric: Metric::L2,
            degree: None,
            build_list: 100,
            alpha: 1.2,
            code_bytes: None,
            codebook: None,
            order: None,
            layout: None,
            compression: None,
            chunk_bytes: 4 << 20,
            segment_bytes: 512 << 20,
            navigation: 0.01,
            memory: None,
            search_memory: None,
            space: None,
            threads: crate::threads::processors(),
            seed: 42,
            ids: None,
            overwrite: false,
        }
    }
}

/// What a build did.
#[derive(Clone, Debug, Serialize)]
pub struct BuildReport {
    /// Vectors in the index.
    pub vectors: usize,
    /// Wall-clock seconds of each stage, in order.
    pub stages: Vec<(String, f64)>,
    /// Wall-clock seconds in all.
    pub seconds: f64,
    /// CPU seconds of the process during the build.
    pub cpu_seconds: f64,
    /// The most memory the process has had resident so far.
    pub peak_rss_bytes: u64,
    /// Mean degree of the graph.
    pub degree_mean: f64,
    /// Parts that the collection was built in; 1 if it fit the memory budget.
    pub parts: usize,
    /// Bytes of the index on disk.
    pub bytes: u64,
    /// How lists and vectors became bytes.
    pub layout: Layout,
    /// What lists are coded with.
    pub list_codec: String,
    /// What vectors are coded with.
    pub vector_codec: String,
    /// How nodes fill their blocks, in the inline layout.
    pub fill: Option<BlockFill>,
}

/// Builds an index of `source` in the directory `path`.
///
/// # Errors
/// Wrong arguments ([`Error::is_call_wrong`]); rows with NaN or infinity, or zero rows under cosine, named by row;
/// an index that is already there without `overwrite`; a directory in use by another writer; a full disk; an
/// interruption through `progress`. Nothing half-written is left.
pub fn build(
    source: &dyn VectorSource,
    path: impl AsRef<Path>,
    options: &BuildOptions,
    progress: &dyn Progress,
) -> Result<BuildReport, Error> {
    let path = path.as_ref();
    bounds::path(path)?;
    let facts = Facts::of(source, options)?;
    check_ids(options.ids.as_deref().unwrap_or_default())?;
    if path.is_file() {
        return Err(Error::Exists {
            path: path.to_owned(),
            reason: "it is a file; give a directory that does not exist yet".into(),
        });
    }
    check_vacant(path)?;
    let directory = Directory::create(path)?;
    let path = &*stored::home(path)?;
    let volume: Arc<dyn Volume> = Arc::new(directory.clone());
    let built = volume.lock().map_err(Error::from).and_then(|lock| {
        let scratch = ScratchFolder::beside(&*volume, path);
        let built = scratch.and_then(|scratch| {
            build_in(
                &volume,
                scratch.path(),
                source,
                options,
                facts,
                Next::default(),
                progress,
            )
        });
        let built = built.and_then(|(report, committed)| {
            committed.durable(&*volume)?;
            Ok(report)
        });
        if built.is_err() && matches!(volume.exists(MANIFEST), Ok(false)) {
            // Before it is unlocked. Who has opened it to lock it next finds that it is not the lock of the directory any more.
            let _ = volume.remove(LOCK_FILE);
        }
        drop(lock);
        built
    });
    if built.is_err() {
        directory.discard();
    }
    built
}

/// Refuses a directory that holds something and is no index, nor what an interrupted build has left (which has a lock file):
/// nothing in it was made by a build, whatever its name, and a folder of indexes is not to become one.
fn check_vacant(path: &Path) -> Result<(), Error> {
    let failed = |source| TierError::io("list", path.display().to_string(), 0, 0, source);
    let entries = match path.read_dir() {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(failed(error).into()),
    };
    let mut other = None;
    for entry in entries {
        let entry = entry.map_err(failed)?;
        let name = entry.file_name();
        if name == MANIFEST || name == LOCK_FILE {
            return Ok(());
        }
        other.get_or_insert(name);
    }
    match other {
        None => Ok(()),
        Some(name) => Err(Error::Exists {
            path: path.to_owned(),
            reason: format!(
                "it holds {name:?}, which is no part of an index; give an empty or new directory"
            ),
        }),
    }
}

/// Refuses what is no id. An index of an earlier version may have it, and is merged and repaired all the same.
fn check_ids(ids: &[u64]) -> Result<(), Error> {
    match ids.iter().position(|&id| id == u64::MAX) {
        // It stands for "no answer" in results.
        Some(row) => Err(Error::call(
            format!("the id of row {row}"),
            u64::MAX,
            format!("at most {}", u64::MAX - 1),
        )),
        None => Ok(()),
    }
}

/// Where a build under a memory cap spools what does not fit. Removed when dropped; a folder that a crash left is
/// removed by the next build.
pub(crate) struct ScratchFolder(PathBuf, Home);

impl ScratchFolder {
    /// Creates the folder in the directory of an index, whose lock the caller holds. Nothing is made, and nothing removed, where
    /// another directory has taken its path.
    pub(crate) fn beside(volume: &dyn Volume, index: &Path) -> Result<Self, Error> {
        volume.check_held()?;
        volume.check_path(index)?;
        let folder = Self(index.join("build-scratch"), Home::here());
        folder.remove();
        let failed = |source| TierError::io("create", folder.0.display().to_string(), 0, 0, source);
        std::fs::create_dir(&folder.0).map_err(failed)?;
        Ok(folder)
    }

    /// Where it is.
    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    fn remove(&self) {
        match std::fs::remove_dir_all(&self.0) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                tracing::warn!(folder = %self.0.display(), "cannot remove scratch files; the next build does: {error}");
            }
            _ => {}
        }
    }
}

impl Drop for ScratchFolder {
    fn drop(&mut self) {
        // A process that was forked meanwhile, by who is told of the progress, is to leave the build alone.
        if self.1.is_here() {
            self.remove();
        }
    }
}

/// Builds in a volume that the caller has locked. Scratch files, which need not survive a crash, go to `scratch`.
fn build_in(
    volume: &Arc<dyn Volume>,
    scratch: &Path,
    source: &dyn VectorSource,
    options: &BuildOptions,
    facts: Facts,
    next: Next<'_>,
    progress: &dyn Progress,
) -> Result<(BuildReport, Committed), Error> {
    let Next { carried, ready } = next;
    let checkpoint = Checkpoint::begin(&**volume, options.overwrite)?;
    let mut build = Build {
        volume,
        source,
        options,
        facts,
        progress,
        replaces: carried.is_some(),
        carried: carried.unwrap_or(Carried {
            log_from: LogFrom {
                number: checkpoint.next_log(),
                // Whatever its first record's is.
                sequence: 0,
            },
            next_id: 0,
            known: None,
            kept: &[],
        }),
        checkpoint,
        scratch,
        stages: Vec::new(),
    };
    build.run(ready)
}

/// What an index keeps when it is rebuilt from its own rows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Carried<'a> {
    /// Where the log goes on whose records are not among the rows.
    pub(crate) log_from: LogFrom,
    /// 1 more than the largest id that it ever had.
    pub(crate) next_id: u64,
    /// Lists of its first rows.
    pub(crate) known: Option<&'a dyn graph::Known>,
    /// Segments of vectors that stay as they are, whose rows are the first. The rows keep their order then.
    pub(crate) kept: &'a [KeptSegment],
}

/// Builds an index in a simulated volume, for tests of what is done with one.
#[cfg(test)]
pub(crate) fn build_rows(
    volume: &stratann_tier::testing::SimVolume,
    source: &dyn VectorSource,
    options: &BuildOptions,
    scratch: &Path,
) {
    let volume: Arc<dyn Volume> = Arc::new(volume.clone());
    build_rows_on(&volume, source, options, scratch);
}

/// As [`build_rows`], in any volume.
#[cfg(test)]
pub(crate) fn build_rows_on(
    volume: &Arc<dyn Volume>,
    source: &dyn VectorSource,
    options: &BuildOptions,
    scratch: &Path,
) {
    let _lock = volume.lock().unwrap();
    let facts = Facts::of(source, options).unwrap();
    let (next, silent) = (Next::default(), &crate::progress::Silent);
    let built = build_in(volume, scratch, source, options, facts, next, silent);
    built.unwrap().1.durable(&**volume).unwrap();
}

/// What a build of the next checkpoint of an index has beside one of rows alone.
#[derive(Default)]
struct Next<'a> {
    carried: Option<Carried<'a>>,
    /// Told of what is about to be committed.
    ready: Option<Ready<'a>>,
}

/// Told of the manifest that is about to be committed, whose files are written: the last chance to refuse it. What an index
/// needs to go on with it is made here, since nothing may fail after the commit.
pub(crate) type Ready<'a> = &'a mut dyn FnMut(&Manifest) -> Result<(), Error>;

/// Builds the next checkpoint of an index whose lock the caller holds; scratch files go to `scratch`. Nothing fails and nothing is
/// interrupted behind the commit, and what became of that is told.
pub(crate) fn rebuild(
    volume: &Arc<dyn Volume>,
    scratch: &Path,
    source: &dyn VectorSource,
    options: &BuildOptions,
    carried: Carried<'_>,
    ready: Ready<'_>,
    progress: &dyn Progress,
) -> Result<(BuildReport, Committed), Error> {
    let facts = Facts::of(source, options)?;
    let next = Next {
        carried: Some(carried),
        ready: Some(ready),
    };
    build_in(volume, scratch, source, options, facts, next, progress)
}

/// A build that goes on.
pub(crate) struct Build<'a> {
    volume: &'a Arc<dyn Volume>,
    /// The rows.
    pub(crate) source: &'a dyn VectorSource,
    pub(crate) options: &'a BuildOptions,
    facts: Facts,
    progress: &'a dyn Progress,
    /// What its files belong to.
    pub(crate) checkpoint: Checkpoint<'a>,
    scratch: &'a Path,
    /// What the index keeps that it replaces.
    pub(crate) carried: Carried<'a>,
    /// Whether the rows are those of an index that is open.
    replaces: bool,
    stages: Vec<(String, f64)>,
}

impl Build<'_> {
    fn run(&mut self, ready: Option<Ready<'_>>) -> Result<(BuildReport, Committed), Error> {
        let (start, cpu) = (Instant::now(), process_cpu_time());
        let mut graph = self.construct()?;
        let codebook = self.stage("codebook", |build| build.codebook(&graph))?;
        let mut written = self.stage("pages", |build| {
            build.facts.writer.write(build, &mut graph, &codebook)
        })?;
        let navigation = self.stage("navigation", |build| {
            build.write_navigation(&graph, &mut written)
        })?;
        let (fields, centroids) = codebook.file();
        let kind = FileKind::Codebook;
        let file = write_pieces(&self.checkpoint, kind, None, &fields, &[&centroids])?;
        written.files.push(file);
        let queries = self.sample_queries(&graph)?;
        let (options, rows) = (self.options, self.source.rows());
        let next_id = self.next_id();
        let mut writer_features = 0;
        // Else ids are the row numbers.
        if next_id != rows as u64 {
            let ids = self.stage("ids", |build| build.write_ids(&graph))?;
            written.files.push(ids);
            writer_features |= IDS;
        }
        let mut manifest = Manifest {
            format_version: FORMAT_VERSION,
            reader_features: match written.segments.iter().any(|s| s.kept.is_some()) {
                true => KEPT,
                false => 0,
            },
            writer_features,
            created_by: env!("CARGO_PKG_VERSION").to_owned(),
            checkpoint: self.checkpoint.number(),
            preset: options.preset.name.to_owned(),
            element: self.source.element(),
            metric: options.metric,
            dimension: self.source.dim() as u32,
            kind: IndexKind::Graph(GraphFacts {
                degree: self.facts.degree as u32,
                build_list: self.facts.build_list as u32,
                alpha: options.alpha,
                entry: graph.entry,
                degree_mean: graph.stats.degree_mean,
                degree_max: graph.stats.degree_max as u32,
                edges: graph.stats.edges,
                navigation,
            }),
            vectors: rows as u64,
            code_bytes: self.facts.code_bytes as u32,
            order: self.facts.order.to_string(),
            deleted: 0,
            seed: options.seed,
            layout: self.facts.layout.to_string(),
            list_bytes: written.list_bytes,
            vector_bytes: written.vector_bytes,
            list_codec: written.list_codec,
            vector_codec: written.vector_codec,
            segments: written.segments,
            measured: None,
            codebook: codebook.hash().to_owned(),
            next_id,
            log_from: self.carried.log_from,
            placement: None,
            build: BuildFacts {
                compression: options
                    .compression
                    .map_or_else(String::new, |c| c.to_string()),
                chunk_bytes: options.chunk_bytes,
                segment_bytes: options.segment_bytes,
                navigation: options.navigation,
            },
            files: written.files,
        };
        let parts = graph.stats.parts;
        // What it holds makes room for the codes.
        drop(graph);
        self.stage("measuring", |build| build.measure(&mut manifest, &queries))?;
        if let Some(ready) = ready {
            self.stage("opening", |_| ready(&manifest))?;
        }
        let committing = Instant::now();
        let committed = self.checkpoint.commit(&manifest)?;
        // From here on nothing fails, and nobody is asked whether to go on: what is committed counts.
        let seconds = committing.elapsed().as_secs_f64();
        self.stages.push(("commit".to_owned(), seconds));
        let report = BuildReport {
            vectors: rows,
            seconds: start.elapsed().as_secs_f64(),
            cpu_seconds: process_cpu_time().saturating_sub(cpu).as_secs_f64(),
            peak_rss_bytes: peak_rss_bytes(),
            degree_mean: manifest.graph().degree_mean,
            parts,
            bytes: manifest.files.iter().map(|entry| entry.length).sum(),
            layout: self.facts.layout,
            list_codec: manifest.list_codec,
            vector_codec: manifest.vector_codec,
            fill: self.facts.layout.has_codes_in_records().then(|| {
                let (source, bytes) = (self.source, self.facts.code_bytes);
                BlockFill::of(source.element(), source.dim(), self.facts.degree, bytes)
            }),
            stages: std::mem::take(&mut self.stages),
        };
        Ok((report, committed))
    }

    fn stage<T>(
        &mut self,
        name: &str,
        work: impl FnOnce(&mut Self) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let start = Instant::now();
        let done = work(self)?;
        self.stages
            .push((name.to_owned(), start.elapsed().as_secs_f64()));
        self.go_on()?;
        Ok(done)
    }

    fn go_on(&self) -> Result<(), Error> {
        if self.progress.interrupted() {
            return Err(Error::Interrupted);
        }
        Ok(())
    }

    /// Orders the rows and builds the graph over them.
    fn construct(&mut self) -> Result<Constructed, Error> {
        let options = self.options;
        let order = match self.facts.order {
            Order::Input => graph::Order::Input,
            Order::Locality => graph::Order::Locality {
                page: self.facts.nodes_per_page,
            },
        };
        let parameters = self.parameters(self.facts.degree, self.facts.build_list);
        let task = graph::Task {
            metric: options.metric,
            order,
            parameters: &parameters,
            memory: options.memory,
            scratch: self.scratch,
            known: self.carried.known,
            check: self.check(),
        };
        let built = graph::construct(self.source, &task, self.progress)?;
        self.stages.extend(
            built
                .stats
                .seconds
                .iter()
                .map(|&(name, seconds)| (name.to_owned(), seconds)),
        );
        Ok(built)
    }

    /// 1 more than the largest id that there has ever been.
    fn next_id(&self) -> u64 {
        self.carried.next_id.max(match &self.options.ids {
            Some(ids) => ids.iter().max().map_or(0, |id| id.saturating_add(1)),
            None => self.source.rows() as u64,
        })
    }

    /// What the rows are checked by: those of an index it has taken once.
    fn check(&self) -> Check {
        match self.replaces {
            true => check_stored_rows,
            false => check_rows,
        }
    }

    /// Refuses rows that have changed since the graph was built, if they may not be written: they may come from the source again.
    pub(crate) fn check_again(
        &self,
        rows: &NodeRows<'_>,
        first: usize,
        bytes: &[u8],
    ) -> Result<(), Error> {
        let (check, metric) = (self.check(), self.options.metric);
        let Err(error) = check(rows, metric, first, bytes) else {
            return Ok(());
        };
        // The row, by its own number.
        let row_bytes = rows.row_bytes();
        for (at, row) in bytes.chunks_exact(row_bytes).enumerate() {
            check(rows, metric, rows.row_of(first + at), row)?;
        }
        Err(error.into())
    }

    fn parameters(&self, degree: usize, build_list: usize) -> Parameters {
        Parameters {
            degree,
            build_list,
            alpha: self.options.alpha,
            threads: self.options.threads,
            seed: self.options.seed,
        }
    }

    /// Node `i` of an even sample of `count` nodes. Under locality order such a sample is stratified: every
    /// neighbourhood has its share.
    fn sample(&self, count: usize) -> Vec<u32> {
        let rows = self.source.rows();
        (0..count).map(|i| (i * rows / count) as u32).collect()
    }

    /// The codebook that was given, or one that is trained on an even sample of the nodes.
    fn codebook(&self, graph: &Constructed) -> Result<Codebook, Error> {
        if let Some(codebook) = &self.options.codebook {
            return Ok(codebook.clone());
        }
        let (rows, dim) = (
            graph.rows.in_order(&graph.order, self.source),
            self.source.dim(),
        );
        let nodes = self.sample(self.source.rows().min(self.facts.training_rows));
        let mut floats = vec![0.0; nodes.len() * dim];
        let mut bytes = Vec::new();
        // A piece at a time: the sample is held once.
        for (nodes, floats) in nodes.chunks(PIECE).zip(floats.chunks_mut(PIECE * dim)) {
            bytes.resize(nodes.len() * rows.row_bytes(), 0);
            rows.gather(nodes, &mut bytes)?;
            to_f32(rows.element(), &bytes, floats);
        }
        drop(bytes);
        let _stage = Stage::begin(self.progress, "training codes", 1);
        let (metric, training) = (self.options.metric, self.training());
        Codebook::of_sample(floats, dim, self.facts.code_bytes, metric, &training)
    }

    /// How codebooks are trained.
    fn training(&self) -> Training {
        codebook::training(self.source.dim(), self.options.threads, self.options.seed)
    }

    /// The nodes that a search may start from where codes stand beside lists: the medoid, and as much of an even sample as the
    /// preset's number of entry points has room for.
    pub(crate) fn entry_points(&self, medoid: u32) -> Vec<u32> {
        let others = self.options.preset.entry_points.saturating_sub(1);
        let mut entries = vec![medoid];
        let sample = self.sample(others.min(self.source.rows()));
        entries.extend(sample.into_iter().filter(|&node| node != medoid));
        entries
    }

    /// Builds and writes the graph over a sample.
    fn write_navigation(
        &self,
        graph: &Constructed,
        written: &mut Written,
    ) -> Result<Option<NavigationFacts>, Error> {
        let sampled = self.facts.navigation_nodes;
        if sampled == 0 {
            return Ok(None);
        }
        let rows = graph.rows.in_order(&graph.order, self.source);
        let nodes = self.sample(sampled);
        let mut vectors = vec![0; sampled * rows.row_bytes()];
        rows.gather(&nodes, &mut vectors)?;
        let parameters = self.parameters(NAVIGATION_DEGREE, NAVIGATION_LIST);
        let task = graph::Task {
            metric: self.options.metric,
            order: graph::Order::Input,
            parameters: &parameters,
            memory: None,
            scratch: self.scratch,
            known: None,
            check: self.check(),
        };
        let sample = MatrixRef::new(&vectors, sampled, rows.dim(), rows.element())?;
        let mut built = graph::construct(&sample, &task, self.progress)?;
        let (mut offsets, mut links, mut list) = (vec![0], Vec::new(), Vec::new());
        for position in 0..sampled as u32 {
            built.lists.read(position, &mut list)?;
            links.extend_from_slice(&list);
            offsets.push(links.len() as u32);
        }
        let file = NavigationFile {
            entry: built.entry,
            nodes,
            offsets,
            links,
            vectors,
        };
        written.files.push(write_stream(
            &self.checkpoint,
            FileKind::Navigation,
            None,
            &file.encode(),
        )?);
        Ok(Some(NavigationFacts {
            nodes: sampled as u64,
            degree: NAVIGATION_DEGREE as u32,
        }))
    }
}

/// Rows of a sample that are read at a time.
const PIECE: usize = 256;

/// Memory that measuring takes beside the codes.
const MEASURING: u64 = 24 << 20;

impl Build<'_> {
    /// The rows that the planner's figures are measured with; none if the collection is small.
    fn sample_queries(&self, graph: &Constructed) -> Result<Vec<u8>, Error> {
        let rows = graph.rows.in_order(&graph.order, self.source);
        if rows.rows() < measure::LEAST_ROWS {
            return Ok(Vec::new());
        }
        let sample = self.sample(measure::sample_size(rows.rows()));
        // Both halves must be from all over: neighbours in node order may be near each other.
        let (first, second) = (sample.iter().step_by(2), sample.iter().skip(1).step_by(2));
        let nodes: Vec<u32> = first.chain(second).copied().collect();
        let mut queries = vec![0; nodes.len() * rows.row_bytes()];
        rows.gather(&nodes, &mut queries)?;
        Ok(queries)
    }

    /// Measures what memory would buy, for the planner. Left out where the memory cap has no room for the codes.
    fn measure(&self, manifest: &mut Manifest, queries: &[u8]) -> Result<(), Error> {
        let codes = match self.facts.layout.has_codes_in_records() {
            true => 0,
            false => Codes::of_nodes(manifest),
        };
        let needs = codes + MEASURING;
        if queries.is_empty() || self.options.memory.is_some_and(|cap| cap < needs) {
            return Ok(());
        }
        let _stage = Stage::begin(self.progress, "measuring", 1);
        let path = Path::new(&self.volume.name()).to_owned();
        let index = Index::assemble(
            self.volume.clone(),
            &path,
            manifest.clone(),
            &OpenOptions::default(),
            Arc::default(),
        )?;
        let (measured, heat) = measure::measure(&index, queries, self.options.threads)?;
        manifest.measured = Some(measured);
        manifest.files.push(write_stream(
            &self.checkpoint,
            FileKind::Heat,
            None,
            &heat.encode(),
        )?);
        Ok(())
    }
}
