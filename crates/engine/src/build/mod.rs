//! Building an index: rows in, a directory that opens out.
//!
//! ```text
//!   facts.rs ─> graph::construct ─> sharing.rs ─> train codebook ─> sweep.rs ─────────> navigation ─> MANIFEST
//!   format.rs   order, lists       pages, numbers                   one, in node order                commit
//!
//!   sweep.rs ──> batches of nodes ──> the layout's NodeWriter, beside its pages in `stores`
//!     └──> PQ codes
//!
//!   clusters.rs  all of it, of an index of clusters and not of a graph
//!   codes.rs     rows to PQ codes
//!   space.rs     how large a degree a budget of space leaves room for; lists.rs: what lists will take
//!   parting.rs   whether vectors are fit to be kept in two parts;   precision.rs  how many bits of them lead
//!   coding.rs    what codecs learn of the lists and vectors that are to come
//!   encode.rs    lists and vectors to codes, on all threads
//!   sharing.rs   which nodes share a page
//!   slotted.rs   codes to pages
//!   raw.rs       records of one size to pages
//!   train.rs     the codebook;   navigation.rs  the graph over a sample;   measuring.rs  what the planner is to know
//!   files.rs     bytes to files
//!   ids.rs       which node has which outside id, unless these are row numbers: ids-…
//!   rows.rs      what vectors have beside them: a segment of columns
//!   placeholder.rs  the one node of an index of no rows
//!   again.rs     the choices of a manifest, to build its rows again;   spool.rs  a file of such rows
//! ```
//!
//! The manifest is written last and replaced atomically, so a build that is interrupted, fails or crashes leaves no
//! index that opens, and a build over an existing index leaves that one intact until the new one is whole. What an
//! unfinished build wrote is removed when it ends, or by the next build in the same directory after a crash; all but its savepoints
//! ([`savepoint`](crate::savepoint)), if it was to keep them.

mod absent;
mod again;
mod chunks;
mod clusters;
pub(crate) mod codes;
pub(crate) mod coding;
pub(crate) mod encode;
mod facts;
pub(crate) mod files;
mod folder;
mod format;
mod ids;
mod lists;
mod measuring;
mod navigation;
mod needs;
mod options;
mod parting;
mod placeholder;
pub(crate) mod precision;
pub(crate) mod raw;
mod rows;
mod sharing;
pub(crate) mod slotted;
mod space;
mod spool;
pub(crate) mod sweep;
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
use crate::durable::{Checkpoint, Committed, begin_state, inserts, keep_room};
use crate::fill::BlockFill;
use crate::graph::{self, Constructed, NodeRows, Parameters};
use crate::progress::Progress;
use crate::savepoint::{self, Savepoints};
use crate::stores::vectors::write::KeptSegment;
use crate::{Error, Layout, Order, bounds, stored};
pub(crate) use again::high_bytes;
use clusters::{ClusterBuild, ClusterPlan};
use facts::Facts;
pub(crate) use facts::training_rows;
pub(crate) use files::{Aligned, write_made, write_pieces, write_stream};
pub(crate) use folder::ScratchFolder;
pub(crate) use format::{Choices, NodeWriter, Planned};
pub(crate) use ids::{IdSorter, LEAST_MEMORY};
pub(crate) use placeholder::PLACEHOLDER_ID;
use placeholder::Placeholder;
pub(crate) use sharing::{PagePlan, Sizes};

pub use absent::{create_if_absent, is_there_for};
pub use chunks::chunk_bytes_for_overhead;
pub use needs::{BuildPlan, plan_build};
pub use options::{BuildOptions, BuildReport};
pub use space::SpaceChoice;
use vacant::check_vacant;
pub use vacant::is_vacant;

pub(crate) use rows::CarriedRows;
use rows::Rows;
pub(crate) use spool::Spool;

/// Creates an index without vectors in the directory `path`, for vectors of `dim` elements that come later: a [`build`] of no rows.
///
/// # Errors
/// As those of [`build`]; ids, or a budget of space, which are of vectors that are there.
pub fn create(
    path: impl AsRef<Path>,
    element: Element,
    dim: usize,
    options: &BuildOptions,
    progress: &dyn Progress,
) -> Result<BuildReport, Error> {
    build(&NoRows::new(element, dim), path, options, progress)
}

/// Builds an index of `source` in the directory `path`. It may have no rows: then the index is empty, and takes vectors of its dimension.
///
/// # Errors
/// Wrong arguments ([`Error::is_call_wrong`]); rows with NaN or infinity, or zero rows under cosine, named by row;
/// an index that is already there without `overwrite`; a directory in use by another writer; a full disk; an
/// interruption through `progress`. Nothing half-written is left, but for savepoints with [`BuildOptions::resume`].
/// [`Error::NotPlaced`]: the index is built, and copies of it could not be made.
pub fn build(
    source: &dyn VectorSource,
    path: impl AsRef<Path>,
    options: &BuildOptions,
    progress: &dyn Progress,
) -> Result<BuildReport, Error> {
    build_all(source, None, path.as_ref(), options, progress)
}

/// As [`build`], of vectors that have something beside them: a row for each, which says its attributes and its payload.
///
/// # Errors
/// As those of [`build`]; more or fewer rows than vectors, one that cannot be read, or that has a value of another type than its column has by
/// the rows before it. All rows are looked at before the work.
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

/// Has something made of the rows of a source, or of a placeholder if it has none: that is said.
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

/// Builds of one row or more, which may be a placeholder.
fn build_some(
    source: &dyn VectorSource,
    rows: Option<Rows<'_>>,
    path: &Path,
    options: &BuildOptions,
    placeholder: bool,
    progress: &dyn Progress,
) -> Result<BuildReport, Error> {
    let planned = Made::of(source, options)?;
    if path.is_file() {
        return Err(Error::Exists {
            path: path.to_owned(),
            reason: "it is a file; give a directory that does not exist yet".into(),
        });
    }
    check_vacant(path)?;
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
            // Before it is unlocked. Who has opened it to lock it next finds that it is not the lock of the directory any more.
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

/// Builds in a volume that the caller has locked. Scratch files, which need not survive a crash, go to `scratch`.
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
        // A merge neither uses nor makes any.
        true => None,
    };
    let mut stages = Vec::new();
    if savepoints.is_some() {
        stages.push(("hashing".to_owned(), began.elapsed().as_secs_f64()));
    }
    let mut build = Build {
        volume,
        source,
        options,
        facts,
        attributes,
        progress,
        replaces,
        carried,
        checkpoint,
        scratch,
        savepoints: savepoints.as_ref(),
        stages,
        began,
        cpu,
    };
    let merges = build.replaces;
    let built = build.run(ready);
    drop(build);
    match &built {
        // Where a crash may bring back what was before, they may be wanted again.
        // Those of a build that is to replace an index stay when that one is merged.
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

/// What is to be built, before any work.
enum Made {
    /// A graph.
    Graph(Facts),
    /// Clusters.
    Clusters(ClusterPlan),
}

impl Made {
    /// The layout.
    fn layout(&self) -> Layout {
        match self {
            Self::Graph(facts) => facts.layout,
            Self::Clusters(plan) => plan.layout(),
        }
    }

    /// Everything that can be refused or decided now is.
    fn of(source: &dyn VectorSource, options: &BuildOptions) -> Result<Self, Error> {
        match ClusterPlan::of(source, options)? {
            Some(plan) => Ok(Self::Clusters(plan)),
            None => Facts::of(source, options).map(Self::Graph),
        }
    }
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
    /// What its rows have beside their vectors; `None`: nothing.
    pub(crate) rows: Option<&'a dyn CarriedRows>,
    /// Whether its codebook is one that its build was given.
    pub(crate) given_codebook: bool,
    /// Whether there are no rows: that which is built is a [`placeholder`].
    pub(crate) placeholder: bool,
}

impl Carried<'_> {
    /// Of an index that replaces none.
    fn none(checkpoint: &Checkpoint<'_>) -> Self {
        Self {
            log_from: LogFrom {
                number: checkpoint.next_log(),
                // Whatever its first record's is.
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

    /// The reader feature bit of a placeholder, if it is one.
    fn placeholder_feature(&self) -> u64 {
        match self.placeholder {
            true => PLACEHOLDER,
            false => 0,
        }
    }
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

/// What a build of the next checkpoint of an index has beside one of rows alone.
#[derive(Default)]
struct Next<'a> {
    carried: Option<Carried<'a>>,
    /// What vectors have beside them, where that was given.
    rows: Option<Rows<'a>>,
    /// Told of what is about to be committed.
    ready: Option<Ready<'a>>,
    /// Whether there are no rows.
    placeholder: bool,
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
    let planned = Made::of(source, options)?;
    let next = Next {
        carried: Some(carried),
        ready: Some(ready),
        ..Next::default()
    };
    build_in(volume, scratch, source, options, planned, next, progress)
}

/// The same of an index of which no vector is left.
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

/// A build that goes on.
pub(crate) struct Build<'a> {
    volume: &'a Arc<dyn Volume>,
    /// The rows.
    pub(crate) source: &'a dyn VectorSource,
    pub(crate) options: &'a BuildOptions,
    facts: Facts,
    /// What the rows have beside their vectors.
    attributes: Option<Rows<'a>>,
    progress: &'a dyn Progress,
    /// What its files belong to.
    pub(crate) checkpoint: Checkpoint<'a>,
    scratch: &'a Path,
    /// What is kept for a build that is killed.
    savepoints: Option<&'a Savepoints<'a>>,
    /// What the index keeps that it replaces.
    pub(crate) carried: Carried<'a>,
    /// Whether the rows are those of an index that is open.
    replaces: bool,
    stages: Vec<(String, f64)>,
    /// When it began, and what the process had taken of the processor until then.
    began: Instant,
    cpu: Duration,
}

impl Build<'_> {
    fn run(&mut self, ready: Option<Ready<'_>>) -> Result<(BuildReport, Committed), Error> {
        let mut graph = self.construct()?;
        let plan = self.stage("sharing", |build| build.share_pages(&mut graph))?;
        let codebook = self.stage("codebook", |build| build.codebook(&graph))?;
        let mut written = self.stage("pages", |build| {
            let written = build
                .facts
                .writer
                .write(build, &mut graph, &codebook, &plan);
            let full = matches!(&written, Err(Error::Tier(TierError::NoSpace { .. })));
            if !full || !savepoint::are_in(&**build.volume) {
                return written;
            }
            // The index needs the room more; what they hold is in memory.
            build.progress.warn(
                "no room for the pages: savepoints are removed, and the pages are written again",
            );
            savepoint::remove_all(&**build.volume);
            build
                .facts
                .writer
                .write(build, &mut graph, &codebook, &plan)
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
        let given = match self.replaces {
            true => self.carried.given_codebook,
            false => options.codebook.is_some(),
        };
        let mut writer_features = if given { GIVEN_CODEBOOK } else { 0 };
        // Else they are the numbers of the nodes.
        if next_id != rows as u64 || !ids::are_nodes(&graph.order, options) {
            let ids = self.stage("ids", |build| {
                let (volume, checkpoint) = (build.volume.as_ref(), &build.checkpoint);
                ids::write_ids(volume, checkpoint, &graph.order, options, build.progress)
            })?;
            written.files.push(ids);
            writer_features |= IDS;
        }
        if let Some(attributes) = self.attributes.take() {
            let segment = self.stage("rows", |build| {
                let (volume, checkpoint) = (build.volume.as_ref(), &build.checkpoint);
                attributes.write(volume, checkpoint, &graph.order, options, build.progress)
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
                low_codes: match codebook.low_codes() {
                    // As the only ones that there were, which no MANIFEST named.
                    None | Some(LowCodes::Nested) => String::new(),
                    Some(low_codes) => low_codes.to_string(),
                },
            },
            state: None,
            files: written.files,
        };
        begin_state(&mut manifest)?;
        let parts = graph.stats.parts;
        // What it holds makes room for the codes.
        drop(graph);
        self.stage("measuring", |build| build.measure(&mut manifest, &queries))?;
        let takes_place = ready.is_none();
        match ready {
            Some(ready) => self.stage("opening", |_| ready(&manifest))?,
            // An insert into an index that was there is none that the new one could go on with.
            None => inserts::replace(&**self.volume, manifest.state.as_deref())?,
        }
        let bytes = manifest.files.iter().map(|entry| entry.length).sum();
        if let Some(space) = self.facts.space.filter(|space| bytes > space.budget) {
            self.progress.warn(&format!(
                "the index takes {bytes} bytes, and was to take {} at most; {} were expected: give it a smaller degree",
                space.budget, space.expected
            ));
        }
        let committing = Instant::now();
        let committed = self.checkpoint.commit(&manifest)?;
        // From here on nothing fails, and nobody is asked whether to go on: what is committed counts. A crash that brings the index before back finds its inserts.
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
                let (source, bytes) = (self.source, self.facts.code_bytes);
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
            savepoints: self.savepoints,
            afterwards: Some(self.training_bytes()),
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
        next_id(self.source, self.options, &self.carried)
    }

    /// What the rows are checked by.
    fn check(&self) -> Check {
        check_of(self.replaces)
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

    /// The nodes that a search may start from where codes stand beside lists: the medoid, and as much of an even sample as the
    /// preset's number of entry points has room for.
    pub(crate) fn entry_points(&self, medoid: u32) -> Vec<u32> {
        let others = self.options.preset.entry_points.saturating_sub(1);
        let mut entries = vec![medoid];
        let sample = self.sample(others.min(self.source.rows()));
        entries.extend(sample.into_iter().filter(|&node| node != medoid));
        entries
    }
}

/// 1 more than the largest id that there has ever been.
fn next_id(source: &dyn VectorSource, options: &BuildOptions, carried: &Carried<'_>) -> u64 {
    if carried.placeholder {
        return carried.next_id;
    }
    carried.next_id.max(match &options.ids {
        Some(ids) => ids.iter().max().map_or(0, |id| id.saturating_add(1)),
        None => source.rows() as u64,
    })
}

/// What rows are checked by: those of an index it has taken once.
fn check_of(replaces: bool) -> Check {
    match replaces {
        true => check_stored_rows,
        false => check_rows,
    }
}
