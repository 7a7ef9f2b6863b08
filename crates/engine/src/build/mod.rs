//! Builds an index: a build turns rows into a directory that can be opened as an index.
//!
//! ```text
//!   facts.rs ─> graph::construct ─> sharing.rs ─> codebook ─> sweep.rs ─> navigation ─> MANIFEST
//!   format.rs   order, lists        pages, ids                pages                     commit
//!
//!   sweep.rs ──> batches of nodes ──> the layout's NodeWriter, beside its pages in `stores`
//!     └──> PQ codes
//!
//!   clusters.rs  builds a cluster index
//!   space.rs     finds the largest degree for a space budget
//!   lists.rs     estimates the size of lists
//!   parting.rs   decides whether to store vectors in two parts
//!   train.rs     trains the codebook
//!   navigation.rs  builds the navigation graph
//!   measuring.rs measures facts for the planner
//!   ids.rs       writes the file of ids (ids-…), if ids are not node numbers
//!   rows.rs      writes the attributes of vectors as a segment of columns
//!   placeholder.rs  makes the one node of an index that is built of no rows
//!   again.rs     reads the options of a manifest, to rebuild the index
//!   spool.rs     writes rows to a scratch file if their number is unknown
//! ```
//!
//! `sharing.rs` and `sweep.rs` are in [`stores::writing`](crate::stores::writing).
//!
//! The manifest is written last and replaced atomically. So an interrupted build leaves no index
//! that opens, and an existing index stays intact. A failed build removes its files, except
//! savepoints ([`savepoint`](crate::savepoint)). After a crash, the next build removes the files.

mod absent;
mod again;
mod chunks;
mod clusters;
mod expected_rows;
mod facts;
mod folder;
mod format;
mod ids;
mod lists;
mod measuring;
mod navigation;
mod needs;
mod parting;
mod placeholder;
mod report;
mod rows;
mod space;
mod spool;
#[cfg(test)]
mod tests;
mod train;
mod vacant;

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use stratann_layout::manifest::{
    COLUMNS, FILE_NAME as MANIFEST, FORMAT_VERSION, GIVEN_CODEBOOK, IDS, KEPT, PLACEHOLDER,
};
use stratann_layout::{BuildFacts, FileKind, GraphFacts, IndexKind, LogFrom, Manifest};
use stratann_tier::{Directory, LOCK_FILE, TierError, Volume, peak_rss_bytes, process_cpu_time};
use stratann_vector::{Element, LowCodes};

use crate::data::{Check, NoRows, RowSource, VectorSource, check_rows, check_stored_rows};
use crate::durable::{Checkpoint, Committed, begin_state, check_replaceable, inserts, keep_room};
use crate::fill::BlockFill;
use crate::filter::Schema;
use crate::graph::{self, Constructed, Parameters};
use crate::progress::Progress;
use crate::savepoint::{self, Savepoints};
use crate::stores::vectors::write::KeptSegment;
use crate::stores::writing::Writing;
use crate::stores::writing::files::write_pieces;
use crate::{Error, Layout, Order, bounds, stored};
pub(crate) use again::high_bytes;
use clusters::{ClusterBuild, ClusterPlan};
use facts::Facts;
pub(crate) use facts::{training_rows, twice};
pub(crate) use folder::ScratchFolder;
pub(crate) use ids::{IdSorter, LEAST_MEMORY};
use placeholder::Placeholder;

pub use crate::options::BuildOptions;
pub use absent::{create_if_absent, is_there_for};
pub use chunks::chunk_bytes_for_overhead;
pub use needs::{BuildPlan, plan_build, plan_build_with_rows};
pub use report::BuildReport;
pub use space::SpaceChoice;
use vacant::check_vacant;
pub use vacant::is_vacant;

pub(crate) use rows::CarriedRows;
use rows::Rows;
pub(crate) use spool::Spool;

/// Creates an index in the directory `path`, by a [`build`] of no rows. Vectors of `dim` elements
/// can be inserted later.
///
/// # Errors
/// The call fails for the reasons of [`build`], or if the options have ids or a space budget, which
/// need existing vectors.
pub fn create(
    path: impl AsRef<Path>,
    element: Element,
    dim: usize,
    options: &BuildOptions,
    progress: &dyn Progress,
) -> Result<BuildReport, Error> {
    build(&NoRows::new(element, dim), path, options, progress)
}

/// Creates an index like [`create`], with columns of attributes.
///
/// # Errors
/// The call fails for the reasons of [`create`].
pub fn create_with_columns(
    path: impl AsRef<Path>,
    element: Element,
    dim: usize,
    columns: &Schema,
    options: &BuildOptions,
    progress: &dyn Progress,
) -> Result<BuildReport, Error> {
    let path = path.as_ref();
    bounds::path(path)?;
    let rows = (!columns.is_empty()).then(|| Rows::Empty(columns.clone()));
    let none = NoRows::new(element, dim);
    with_rows(&none, options, |source, options, placeholder| {
        build_some(source, rows, path, options, placeholder, progress)
    })
}

/// Builds an index of the rows of `source` in the directory `path`. If the source has no rows, the
/// index is empty and accepts vectors of the source's dimension.
///
/// # Errors
/// - The arguments are wrong ([`Error::is_call_wrong`]).
/// - A row has NaN or infinity, or is a zero vector under cosine. The error names the row.
/// - The directory has an index and `overwrite` is not set, or another writer uses the directory.
/// - The disk is full, or `progress` interrupts. The build then removes its files, except
///   savepoints with [`BuildOptions::resume`].
/// - [`Error::NotPlaced`]: the index was built, but its copies could not be made.
pub fn build(
    source: &dyn VectorSource,
    path: impl AsRef<Path>,
    options: &BuildOptions,
    progress: &dyn Progress,
) -> Result<BuildReport, Error> {
    build_all(source, None, path.as_ref(), options, progress)
}

/// Builds an index like [`build`], for vectors with attributes. `rows` has one row for each vector,
/// with its attributes and payload.
///
/// # Errors
/// The call fails for the reasons of [`build`]. It also fails if the number of rows differs from
/// the number of vectors, if a row cannot be read, or if two values of a column have different
/// types. All rows are checked before the work begins.
pub fn build_with_rows(
    source: &dyn VectorSource,
    rows: &dyn RowSource,
    path: impl AsRef<Path>,
    options: &BuildOptions,
    progress: &dyn Progress,
) -> Result<BuildReport, Error> {
    build_all(source, Some(rows), path.as_ref(), options, progress)
}

fn build_all(
    source: &dyn VectorSource,
    rows: Option<&dyn RowSource>,
    path: &Path,
    options: &BuildOptions,
    progress: &dyn Progress,
) -> Result<BuildReport, Error> {
    bounds::path(path)?;
    check_ids(options.ids.as_deref().unwrap_or_default())?;
    let rows = rows.map(|rows| Rows::of(rows, source.rows(), progress));
    let rows = rows.transpose()?;
    with_rows(source, options, |source, options, placeholder| {
        let rows = rows.filter(|_| !placeholder);
        build_some(source, rows, path, options, placeholder, progress)
    })
}

/// Calls `make` with the rows of a source and `false`. If the source has no rows, `make` gets a
/// placeholder and `true`.
fn with_rows<T>(
    source: &dyn VectorSource,
    options: &BuildOptions,
    make: impl FnOnce(&dyn VectorSource, &BuildOptions, bool) -> Result<T, Error>,
) -> Result<T, Error> {
    if source.rows() > 0 {
        return make(source, options, false);
    }
    let placeholder = Placeholder::of(source, options.metric)?;
    make(&placeholder, &options.of_placeholder()?, true)
}

fn build_some(
    source: &dyn VectorSource,
    rows: Option<Rows<'_>>,
    path: &Path,
    options: &BuildOptions,
    placeholder: bool,
    progress: &dyn Progress,
) -> Result<BuildReport, Error> {
    let planned = Made::of(source, options)?;
    check_path(path)?;
    options.places.check_for_build()?;
    options.places.check_layout(planned.layout())?;
    let directory = Directory::create(path)?;
    let path = &*stored::home(path)?;
    let volume: Arc<dyn Volume> = Arc::new(directory.clone());
    let built = volume.lock().map_err(Error::from).and_then(|lock| {
        let scratch = ScratchFolder::beside(&*volume, path);
        let built = scratch.and_then(|scratch| {
            let next = Next {
                rows,
                placeholder,
                ..Next::default()
            };
            let scratch = scratch.path();
            build_in(&volume, scratch, source, options, planned, next, progress)
        });
        let built = built.and_then(|(report, committed)| {
            committed.durable(&*volume)?;
            keep_room(&*volume, report.vectors as u64);
            Ok(report)
        });
        let unused = matches!(volume.exists(MANIFEST), Ok(false)) && savepoint::are_none(&*volume);
        if built.is_err() && unused {
            savepoint::remove_all(&*volume);
            // The lock file is removed before the unlock. So a process that waits for the lock
            // learns that the directory no longer has this lock file.
            let _ = volume.remove(LOCK_FILE);
        }
        drop(lock);
        built
    });
    if built.is_err() {
        directory.discard();
    }
    let report = built?;
    (options.places.fill(&volume, path)).map_err(|source| Error::NotPlaced {
        path: path.to_owned(),
        places: options.places.to_string(),
        source: Box::new(source),
    })?;
    Ok(report)
}

fn check_path(path: &Path) -> Result<(), Error> {
    if path.is_file() {
        return Err(Error::Exists {
            path: path.to_owned(),
            reason: "it is a file. Give a directory that does not exist yet".into(),
        });
    }
    check_vacant(path)
}

/// Checks whether [`build`] would refuse any vectors of `dim` elements in the directory `path`. The
/// check changes nothing.
///
/// # Errors
/// The call fails for the reasons of [`build`], except for options that depend on the number of
/// rows.
pub fn check_build(
    path: impl AsRef<Path>,
    element: Element,
    dim: usize,
    options: &BuildOptions,
) -> Result<(), Error> {
    let path = path.as_ref();
    bounds::path(path)?;
    let options = BuildOptions {
        ids: None,
        space: None,
        ..options.clone()
    };
    plan_build(&NoRows::new(element, dim), &options)?;
    check_path(path)?;
    options.places.check_for_build()?;
    if !path.is_dir() {
        return Ok(());
    }
    let directory = Directory::open(path)?;
    check_replaceable(&directory.name(), &directory.list()?, options.overwrite)
}

/// Refuses the one invalid id. An index of an earlier version may have a vector with this id.
fn check_ids(ids: &[u64]) -> Result<(), Error> {
    match ids.iter().position(|&id| id == u64::MAX) {
        Some(row) => Err(Error::call(
            format!("the id of row {row}"),
            u64::MAX,
            "this number stands for a missing answer in results",
            format!("Give an id of at most {}", u64::MAX - 1),
        )),
        None => Ok(()),
    }
}

/// Scratch files are written to the folder `scratch`, and need not survive a crash.
fn build_in(
    volume: &Arc<dyn Volume>,
    scratch: &Path,
    source: &dyn VectorSource,
    options: &BuildOptions,
    planned: Made,
    next: Next<'_>,
    progress: &dyn Progress,
) -> Result<(BuildReport, Committed), Error> {
    let Next {
        carried,
        rows,
        ready,
        placeholder,
    } = next;
    let carried_rows = carried.and_then(|carried| carried.rows);
    let attributes = rows.or(carried_rows.map(Rows::Carried));
    let checkpoint = Checkpoint::begin(&**volume, options.overwrite)?;
    let replaces = carried.is_some();
    let carried = carried.unwrap_or_else(|| Carried {
        placeholder,
        ..Carried::none(&checkpoint)
    });
    let (began, cpu) = (Instant::now(), process_cpu_time());
    let facts = match planned {
        Made::Graph(facts) => facts,
        Made::Clusters(plan) => {
            let build = ClusterBuild {
                volume,
                source,
                options,
                plan,
                attributes,
                progress,
                check: check_of(replaces),
                carried,
                checkpoint,
                scratch,
                stages: Vec::new(),
                began,
                cpu,
            };
            return build.run(ready);
        }
    };
    let savepoints = match replaces {
        false => Savepoints::of(&**volume, source, options, progress)?,
        // A merge neither reads nor writes savepoints.
        true => None,
    };
    let mut stages = Vec::new();
    if savepoints.is_some() {
        stages.push(("hashing".to_owned(), began.elapsed().as_secs_f64()));
    }
    let mut build = Build {
        volume,
        writing: Writing {
            source,
            options,
            degree: facts.degree,
            check: check_of(replaces),
            kept: carried.kept,
            checkpoint,
            scratch,
            progress,
        },
        facts,
        attributes,
        replaces,
        carried,
        savepoints: savepoints.as_ref(),
        stages,
        began,
        cpu,
    };
    let merges = build.replaces;
    let built = build.run(ready);
    drop(build);
    match &built {
        // If a crash may restore the previous index, a later build may need the savepoints. A merge
        // does not remove savepoints, because they belong to a build that will replace the index.
        Ok((_, committed)) if committed.trouble.is_none() && !merges => {
            savepoint::remove_all(&**volume);
        }
        Err(_) => {
            if let Some(savepoints) = &savepoints {
                savepoints.say_kept(progress);
            }
        }
        Ok(_) => {}
    }
    built
}

enum Made {
    Graph(Facts),
    Clusters(ClusterPlan),
}

impl Made {
    fn layout(&self) -> Layout {
        match self {
            Self::Graph(facts) => facts.layout,
            Self::Clusters(plan) => plan.layout(),
        }
    }

    fn of(source: &dyn VectorSource, options: &BuildOptions) -> Result<Self, Error> {
        match ClusterPlan::of(source, options)? {
            Some(plan) => Ok(Self::Clusters(plan)),
            None => Facts::of(source, options).map(Self::Graph),
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Carried<'a> {
    /// The rows have all changes of the log before this position.
    pub(crate) log_from: LogFrom,
    /// The largest id that the index has ever had, plus 1.
    pub(crate) next_id: u64,
    pub(crate) known: Option<&'a dyn graph::Known>,
    /// The segments of vectors that stay unchanged. Their rows come first, and their order stays.
    pub(crate) kept: &'a [KeptSegment],
    pub(crate) rows: Option<&'a dyn CarriedRows>,
    pub(crate) given_codebook: bool,
    pub(crate) placeholder: bool,
}

impl Carried<'_> {
    fn none(checkpoint: &Checkpoint<'_>) -> Self {
        Self {
            log_from: LogFrom {
                number: checkpoint.next_log(),
                // The first record in this log may have any sequence number.
                sequence: 0,
            },
            next_id: 0,
            known: None,
            kept: &[],
            rows: None,
            given_codebook: false,
            placeholder: false,
        }
    }

    fn placeholder_feature(&self) -> u64 {
        match self.placeholder {
            true => PLACEHOLDER,
            false => 0,
        }
    }
}

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

#[cfg(test)]
pub(crate) fn build_rows_on(
    volume: &Arc<dyn Volume>,
    source: &dyn VectorSource,
    options: &BuildOptions,
    scratch: &Path,
) {
    let _lock = volume.lock().unwrap();
    let silent = &crate::progress::Silent;
    let built = with_rows(source, options, |source, options, placeholder| {
        let (planned, next) = (
            Made::of(source, options)?,
            Next {
                placeholder,
                ..Next::default()
            },
        );
        build_in(volume, scratch, source, options, planned, next, silent)
    });
    built.unwrap().1.durable(&**volume).unwrap();
}

#[derive(Default)]
struct Next<'a> {
    carried: Option<Carried<'a>>,
    rows: Option<Rows<'a>>,
    ready: Option<Ready<'a>>,
    placeholder: bool,
}

/// A function that receives the manifest after all other files were written, and may refuse it. It
/// must prepare all that the index needs after the commit, because no later step may fail.
pub(crate) type Ready<'a> = &'a mut dyn FnMut(&Manifest) -> Result<(), Error>;

/// Builds the next checkpoint of an index. The caller must have the lock of the index. After the
/// commit, no step fails, and `progress` cannot interrupt.
pub(crate) fn rebuild(
    volume: &Arc<dyn Volume>,
    scratch: &Path,
    source: &dyn VectorSource,
    options: &BuildOptions,
    carried: Carried<'_>,
    ready: Ready<'_>,
    progress: &dyn Progress,
) -> Result<(BuildReport, Committed), Error> {
    let planned = Made::of(source, options)?;
    let next = Next {
        carried: Some(carried),
        ready: Some(ready),
        ..Next::default()
    };
    build_in(volume, scratch, source, options, planned, next, progress)
}

pub(crate) fn rebuild_empty(
    volume: &Arc<dyn Volume>,
    scratch: &Path,
    none: &NoRows,
    options: &BuildOptions,
    carried: Carried<'_>,
    ready: Ready<'_>,
    progress: &dyn Progress,
) -> Result<(BuildReport, Committed), Error> {
    let source = Placeholder::of(none, options.metric)?;
    let options = options.of_placeholder()?;
    let carried = Carried {
        placeholder: true,
        ..carried
    };
    rebuild(volume, scratch, &source, &options, carried, ready, progress)
}

pub(crate) struct Build<'a> {
    volume: &'a Arc<dyn Volume>,
    writing: Writing<'a>,
    facts: Facts,
    attributes: Option<Rows<'a>>,
    savepoints: Option<&'a Savepoints<'a>>,
    carried: Carried<'a>,
    replaces: bool,
    stages: Vec<(String, f64)>,
    began: Instant,
    cpu: Duration,
}

impl Build<'_> {
    fn run(&mut self, ready: Option<Ready<'_>>) -> Result<(BuildReport, Committed), Error> {
        let mut graph = self.construct()?;
        let plan = self.stage("sharing", |build| {
            let facts = &build.facts;
            let writer = &*facts.writer;
            build.writing.share_pages(writer, facts.order, &mut graph)
        })?;
        let codebook = self.stage("codebook", |build| build.codebook(&graph))?;
        let mut written = self.stage("pages", |build| {
            let written = build
                .facts
                .writer
                .write(&build.writing, &mut graph, &codebook, &plan);
            let full = matches!(&written, Err(Error::Tier(TierError::NoSpace { .. })));
            if !full || !savepoint::are_in(&**build.volume) {
                return written;
            }
            // The index needs the space more than the savepoints do, and their content is still in
            // memory.
            build.writing.progress.warn(
                "no space for the pages; the savepoints are removed, and the pages are written again",
            );
            savepoint::remove_all(&**build.volume);
            build
                .facts
                .writer
                .write(&build.writing, &mut graph, &codebook, &plan)
        })?;
        let navigation = self.stage("navigation", |build| {
            build.write_navigation(&graph, &mut written)
        })?;
        let (fields, centroids) = codebook.file();
        let kind = FileKind::Codebook;
        let file = write_pieces(&self.writing.checkpoint, kind, None, &fields, &[&centroids])?;
        written.files.push(file);
        let queries = self.sample_queries(&graph)?;
        let (options, rows) = (self.writing.options, self.writing.source.rows());
        let next_id = self.next_id();
        let given = match self.replaces {
            true => self.carried.given_codebook,
            false => options.codebook.is_some(),
        };
        let mut writer_features = if given { GIVEN_CODEBOOK } else { 0 };
        if next_id != rows as u64 || !ids::are_nodes(&graph.order, options) {
            let ids = self.stage("ids", |build| {
                let (volume, checkpoint) = (build.volume.as_ref(), &build.writing.checkpoint);
                ids::write_ids(
                    volume,
                    checkpoint,
                    &graph.order,
                    options,
                    build.writing.progress,
                )
            })?;
            written.files.push(ids);
            writer_features |= IDS;
        }
        if let Some(attributes) = self.attributes.take() {
            let segment = self.stage("rows", |build| {
                let (volume, checkpoint) = (build.volume.as_ref(), &build.writing.checkpoint);
                attributes.write(
                    volume,
                    checkpoint,
                    &graph.order,
                    options,
                    build.writing.progress,
                )
            })?;
            written.files.extend(segment);
            writer_features |= COLUMNS;
        }
        let mut manifest = Manifest {
            format_version: FORMAT_VERSION,
            reader_features: self.carried.placeholder_feature()
                | match written.segments.iter().any(|s| s.kept.is_some()) {
                    true => KEPT,
                    false => 0,
                },
            writer_features,
            created_by: env!("CARGO_PKG_VERSION").to_owned(),
            checkpoint: self.writing.checkpoint.number(),
            preset: options.preset.name.to_owned(),
            element: self.writing.source.element(),
            metric: options.metric,
            dimension: self.writing.source.dim() as u32,
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
                low_codes: match codebook.low_codes() {
                    // In earlier versions, nested codes were the only low codes, and had no name.
                    None | Some(LowCodes::Nested) => String::new(),
                    Some(low_codes) => low_codes.to_string(),
                },
            },
            state: None,
            files: written.files,
        };
        begin_state(&mut manifest)?;
        let parts = graph.stats.parts;
        // The measurement opens the index, whose codes need the memory of the graph.
        drop(graph);
        self.stage("measuring", |build| build.measure(&mut manifest, &queries))?;
        let takes_place = ready.is_none();
        match ready {
            Some(ready) => self.stage("opening", |_| ready(&manifest))?,
            // The record of an unfinished insert belongs to the replaced index. The new index
            // cannot resume it.
            None => inserts::replace(&**self.volume, manifest.state.as_deref())?,
        }
        let bytes = manifest.files.iter().map(|entry| entry.length).sum();
        if let Some(space) = self.facts.space.filter(|space| bytes > space.budget) {
            self.writing.progress.warn(&format!(
                "the index has {bytes} bytes, more than its space budget of {} bytes; the build expected {} bytes. Build it with a smaller degree",
                space.budget, space.expected
            ));
        }
        let committing = Instant::now();
        let committed = self.writing.checkpoint.commit(&manifest)?;
        // After the commit, no step may fail. If a crash may still restore the previous index, the
        // records of its inserts stay.
        if takes_place && committed.trouble.is_none() {
            inserts::forget_replaced(&**self.volume);
        }
        let seconds = committing.elapsed().as_secs_f64();
        self.stages.push(("commit".to_owned(), seconds));
        let kept = self.savepoints.map(Savepoints::facts).unwrap_or_default();
        let report = BuildReport {
            vectors: rows - usize::from(self.carried.placeholder),
            seconds: self.began.elapsed().as_secs_f64(),
            cpu_seconds: process_cpu_time().saturating_sub(self.cpu).as_secs_f64(),
            peak_rss_bytes: peak_rss_bytes(),
            degree_mean: manifest.graph().degree_mean,
            degree: self.facts.degree,
            space: self.facts.space,
            build_list: self.facts.build_list,
            parts,
            bytes,
            layout: self.facts.layout,
            list_codec: manifest.list_codec,
            vector_codec: manifest.vector_codec,
            fill: self.facts.layout.has_codes_in_records().then(|| {
                let (source, bytes) = (self.writing.source, self.facts.code_bytes);
                BlockFill::of(source.element(), source.dim(), self.facts.degree, bytes)
            }),
            stages: std::mem::take(&mut self.stages),
            resumed: kept.resumed,
            clusters: None,
            savepoint_bytes: kept.bytes,
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
        self.writing.go_on()?;
        Ok(done)
    }

    fn construct(&mut self) -> Result<Constructed, Error> {
        let options = self.writing.options;
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
            scratch: self.writing.scratch,
            known: self.carried.known,
            check: self.writing.check,
            savepoints: self.savepoints,
            afterwards: Some(self.training_bytes()),
        };
        let built = graph::construct(self.writing.source, &task, self.writing.progress)?;
        self.stages.extend(
            built
                .stats
                .seconds
                .iter()
                .map(|&(name, seconds)| (name.to_owned(), seconds)),
        );
        Ok(built)
    }

    fn next_id(&self) -> u64 {
        next_id(self.writing.source, self.writing.options, &self.carried)
    }

    fn parameters(&self, degree: usize, build_list: usize) -> Parameters {
        Parameters {
            degree,
            build_list,
            alpha: self.writing.options.alpha,
            threads: self.writing.options.threads,
            seed: self.writing.options.seed,
        }
    }
}

fn next_id(source: &dyn VectorSource, options: &BuildOptions, carried: &Carried<'_>) -> u64 {
    if carried.placeholder {
        return carried.next_id;
    }
    carried.next_id.max(match &options.ids {
        Some(ids) => ids.iter().max().map_or(0, |id| id.saturating_add(1)),
        None => source.rows() as u64,
    })
}

/// For rows that an index has already accepted, the checks are weaker.
fn check_of(replaces: bool) -> Check {
    match replaces {
        true => check_stored_rows,
        false => check_rows,
    }
}
