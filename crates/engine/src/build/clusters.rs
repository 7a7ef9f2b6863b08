//! Builds a cluster index.
//!
//! ```text
//!   rows ──> checked ──> clusters, heads, memberships (crate::cluster)
//!        ──> posting lists ──> table, heads, ids ──> MANIFEST
//! ```
//!
//! The files depend on rows, options and seed, but not on the number of threads. If the source has
//! no random access, its rows are first copied to a scratch file.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use stratann_codec::ListTrainer;
use stratann_layout::manifest::{COLUMNS, FORMAT_VERSION, IDS, KIND};
use stratann_layout::{
    BLOCK, BuildFacts, ClusterFacts, ClusterShape, ClustersFile, ExtentBuilder, ExtentKind,
    FileEntry, FileKind, IndexKind, LayoutError, Manifest, Members, NavigationFile,
};
use stratann_tier::{Volume, peak_rss_bytes, process_cpu_time};
use stratann_vector::{Kernel, Metric};

use super::facts::{check_ids, no_rows, too_many_rows};
use super::ids::{are_nodes, write_ids};
use super::measuring::{MEASURING, assembled, calibrate};
use super::rows::Rows;
use super::{BuildOptions, BuildReport, Carried, Ready, Spool};
use crate::cluster::{self, Blocks, Closure, Heads, Memberships, PointRows};
use crate::codebook::check_dimension;
use crate::data::{Check, VectorFile, VectorSource};
use crate::durable::{Checkpoint, Committed, begin_state, inserts};
use crate::graph::Space;
use crate::index::measured::LEAST_ROWS;
use crate::navigation::Navigation;
use crate::progress::{Progress, Stage};
use crate::stores::clusters::extent_kind;
use crate::stores::composition::Made;
use crate::stores::ids::PLACEHOLDER_ID;
use crate::stores::writing::files::{Aligned, write_stream};
use crate::{Compression, Error, Layout, Order, Preset, bounds};

/// The bytes that are stored with each vector: its number, its external id and a checksum.
const MEMBER: u64 = 16;

/// The usual number of vectors in a cluster, if each vector is stored in several clusters. With
/// these replicas, the posting list of small vectors fills one or two blocks.
const SIZE_REPLICATED: usize = 12;
/// The usual number of vectors in a cluster, if each vector is stored once. Larger clusters mean
/// fewer heads in memory.
const SIZE_ONCE: usize = 32;
/// The default for the largest number of clusters that a vector joins (SPANN §4.1).
const REPLICAS: usize = 8;
const MOST_REPLICAS: usize = 64;
/// A vector joins each cluster whose head is not much farther than the nearest head. This multiple
/// of the nearest head's squared distance bounds the difference of the squared distances (10 in
/// SPANN §4.1).
const CLOSURE: f32 = 10.0;
/// A user may give a log of queries. Each of its queries is assumed to probe this many clusters.
const LOGGED_PROBES: usize = 32;
/// The approximate number of lists that train the codec, and the number of its Huffman tables.
const TRAINING_LISTS: usize = 10_000;
const TABLES: usize = 4;
const CHUNK: usize = 4096;
/// The approximate memory of a build in bytes, without the data that grow with the rows.
const BESIDE: u64 = 32 << 20;

pub(super) struct ClusterPlan {
    layout: Layout,
    extents: FileKind,
    size: usize,
    replicas: usize,
}

impl ClusterPlan {
    pub(super) fn layout(&self) -> Layout {
        self.layout
    }

    pub(super) fn of(
        source: &dyn VectorSource,
        options: &BuildOptions,
    ) -> Result<Option<Self>, Error> {
        let layout = options.layout.or(options.preset.layout);
        let made = layout.map(|layout| (layout, layout.composition().made));
        let Some((layout, Made::Clusters { extents })) = made else {
            return match (options.cluster_size, options.replicas, &options.query_log) {
                (None, None, None) => Ok(None),
                (size, replicas, log) => {
                    let what = match (size, replicas, log) {
                        (Some(_), ..) => "cluster size",
                        (None, Some(_), _) => "replicas",
                        (None, None, _) => "query log",
                    };
                    let remedy = format!(
                        "Leave it out, or choose the preset {} or {}",
                        Preset::SPANN.name,
                        Preset::TIERED_CLUSTER.name
                    );
                    Err(Error::call(
                        what,
                        "given",
                        "it does not apply to a graph",
                        remedy,
                    ))
                }
            };
        };
        let rows = source.rows();
        if rows == 0 {
            return Err(no_rows(source));
        }
        if rows >= u32::MAX as usize {
            return Err(too_many_rows(rows));
        }
        check_dimension(source)?;
        bounds::threads(options.threads)?;
        if let Some(ids) = &options.ids {
            check_ids(ids, rows)?;
        }
        refuse_graphs(options, layout)?;
        let usual = match extent_kind(extents) {
            ExtentKind::Replicated => SIZE_REPLICATED,
            ExtentKind::Grouped | ExtentKind::Postings => SIZE_ONCE,
        };
        let size = options.cluster_size.unwrap_or(usual);
        bounds::number("cluster size", size, 1 << 20)?;
        let replicas = options.replicas.unwrap_or(REPLICAS);
        bounds::number("number of replicas", replicas, MOST_REPLICAS)?;
        if rows as u64 * replicas as u64 > u64::from(u32::MAX) {
            let most = u32::MAX as usize / rows;
            let reason = format!(
                "an index of {rows} vectors can have at most {most} replicas of each vector"
            );
            let remedy = format!("Pass at most {most}");
            return Err(Error::call("number of replicas", replicas, reason, remedy));
        }
        if let Some(path) = &options.query_log {
            if !has_groups(layout) {
                let reason = format!(
                    "a query log decides the groups, and the layout {layout} has no groups"
                );
                let remedy = "Leave it out, or choose the layout grouped";
                return Err(Error::call("query log", path.display(), reason, remedy));
            }
            let log = VectorFile::open(path)?;
            check_log(&log, source, path)?;
        }
        let plan = Self {
            layout,
            extents,
            size,
            replicas,
        };
        let needs = plan.memory(source);
        match options.memory {
            Some(budget) if budget < needs => Err(Error::Memory {
                budget,
                needs,
                part: "the numbers, clusters and distances of all vectors, and the heads, in a build of clusters".into(),
            }),
            _ => Ok(Some(plan)),
        }
    }

    pub(super) fn stands_once(&self) -> bool {
        extent_kind(self.extents) != ExtentKind::Replicated
    }

    pub(super) fn table_bytes(&self, source: &dyn VectorSource) -> u64 {
        let heads = (2 * source.rows() / self.size + 1) as u64;
        heads * (source.row_bytes() as u64 + 4 * 32 + 32)
    }

    /// An upper bound of the bytes on storage: every vector is in as many clusters as allowed.
    pub(super) fn most_bytes(&self, source: &dyn VectorSource) -> u64 {
        let (rows, row) = (source.rows() as u64, source.row_bytes() as u64);
        let heads = 2 * rows / self.size as u64 + 1;
        let replicas = self.replicas as u64;
        let members = match self.stands_once() {
            // A list stores a vector number in a few bits more than the gap to the next number
            // needs.
            true => rows * (row + MEMBER) + rows * replicas * 2,
            false => rows * replicas * (row + MEMBER),
        };
        let ids = if self.stands_once() { rows * 12 } else { 0 };
        members + ids + heads * (row + 4 * 64 + BLOCK as u64 / 2)
    }

    pub(super) fn memory(&self, source: &dyn VectorSource) -> u64 {
        let rows = source.rows();
        let heads = (2 * rows / self.size + 1) as u64;
        // The links of each head, and its vector in two forms: as in the source, and as floats.
        let head = 4 * 64 + 2 * source.row_bytes() as u64 + 4 * source.dim() as u64;
        let members = 4 * rows as u64 * self.replicas as u64;
        BESIDE + 12 * rows as u64 + Memberships::bytes(rows, self.replicas) + members + heads * head
    }
}

fn refuse_graphs(options: &BuildOptions, layout: Layout) -> Result<(), Error> {
    let order = order_of(layout);
    let usual = BuildOptions::default();
    for (what, is_given) in [
        ("degree", options.degree.is_some()),
        ("build list", options.build_list != usual.build_list),
        ("alpha", options.alpha != usual.alpha),
        ("code bytes", options.code_bytes.is_some()),
        ("low codes", options.low_codes.is_some()),
        ("codebook", options.codebook.is_some()),
        ("space", options.space.is_some()),
        ("search memory", options.search_memory.is_some()),
        ("resume", options.resume),
        (
            "compression",
            !matches!(options.compression, None | Some(Compression::Raw)),
        ),
        ("order", options.order.is_some_and(|asked| asked != order)),
    ] {
        if is_given {
            let reason = format!("it is for graphs, and the {layout} layout has clusters");
            return Err(Error::call(what, "given", reason, "Leave it out"));
        }
    }
    Ok(())
}

fn has_groups(layout: Layout) -> bool {
    match layout {
        Layout::Grouped => true,
        Layout::Replicated | Layout::Addressed => false,
        Layout::Coupled
        | Layout::Packed
        | Layout::Decoupled
        | Layout::Inline
        | Layout::Layered
        | Layout::Csr => false,
    }
}

fn order_of(layout: Layout) -> Order {
    match has_groups(layout) {
        true => Order::Locality,
        false => Order::Input,
    }
}

pub(super) struct ClusterBuild<'a> {
    pub(super) volume: &'a Arc<dyn Volume>,
    pub(super) source: &'a dyn VectorSource,
    pub(super) options: &'a BuildOptions,
    pub(super) plan: ClusterPlan,
    pub(super) attributes: Option<Rows<'a>>,
    pub(super) progress: &'a dyn Progress,
    pub(super) checkpoint: Checkpoint<'a>,
    pub(super) scratch: &'a Path,
    pub(super) carried: Carried<'a>,
    pub(super) check: Check,
    pub(super) stages: Vec<(String, f64)>,
    pub(super) began: Instant,
    pub(super) cpu: Duration,
}

struct Clustered {
    memberships: Memberships,
    heads: NavigationFile,
    /// For each row, the cluster in whose group the row is stored; empty without groups.
    groups: Vec<u32>,
    order: Vec<u32>,
    number_of: Vec<u32>,
    /// The mean distance from a row to its nearest head, under the metric.
    radius: f32,
}

impl ClusterBuild<'_> {
    pub(super) fn run(
        mut self,
        ready: Option<Ready<'_>>,
    ) -> Result<(BuildReport, Committed), Error> {
        let (options, metric) = (self.options, self.options.metric);
        let progress = self.progress;
        let mut space = Space::new(metric, self.source.element(), self.source.dim());
        let copy = self.stage("reading", |build| build.read(&mut space))?;
        let source: &dyn VectorSource = match &copy {
            Some(copy) => copy,
            None => self.source,
        };
        let rows = PointRows { source, space };
        let clustered = self.cluster(&rows)?;
        let next_id = self.next_id();
        let shape = self.shape(source, clustered.memberships.sizes.len() as u32);
        let mut files = self.stage("clusters", |build| build.write(source, shape, &clustered))?;
        files.push(write_stream(
            &self.checkpoint,
            FileKind::Navigation,
            None,
            &clustered.heads.encode(),
        )?);
        let mut writer_features = 0;
        // If the file of ids is missing, each id is a vector number. If the ids are these numbers
        // in another order, the layout `replicated` leaves out the file too, because it never looks
        // up an id.
        let by_itself = self.plan.stands_once();
        if next_id != source.rows() as u64 || by_itself && !are_nodes(&clustered.order, options) {
            let ids = self.stage("ids", |build| {
                let (volume, checkpoint) = (build.volume.as_ref(), &build.checkpoint);
                write_ids(volume, checkpoint, &clustered.order, options, progress)
            })?;
            files.push(ids);
            writer_features |= IDS;
        }
        if let Some(attributes) = self.attributes.take() {
            let segment = self.stage("rows", |build| {
                let (volume, checkpoint) = (build.volume.as_ref(), &build.checkpoint);
                attributes.write(volume, checkpoint, &clustered.order, options, progress)
            })?;
            files.extend(segment);
            writer_features |= COLUMNS;
        }
        let memberships = &clustered.memberships;
        let mut manifest = Manifest {
            format_version: FORMAT_VERSION,
            reader_features: KIND | self.carried.placeholder_feature(),
            writer_features,
            created_by: env!("CARGO_PKG_VERSION").to_owned(),
            checkpoint: self.checkpoint.number(),
            preset: options.preset.name.to_owned(),
            element: source.element(),
            metric,
            dimension: source.dim() as u32,
            kind: IndexKind::Cluster(ClusterFacts {
                clusters: shape.clusters.into(),
                size: self.plan.size as u32,
                replicas: self.plan.replicas as u32,
                closure: CLOSURE,
                members: memberships.total(),
                largest: memberships.sizes.iter().copied().max().unwrap_or(0),
                radius: clustered.radius,
            }),
            vectors: source.rows() as u64,
            code_bytes: 0,
            order: order_of(self.plan.layout).to_string(),
            deleted: 0,
            seed: options.seed,
            layout: self.plan.layout.to_string(),
            list_bytes: 0,
            vector_bytes: 0,
            list_codec: String::new(),
            vector_codec: String::new(),
            segments: Vec::new(),
            measured: None,
            codebook: String::new(),
            next_id,
            log_from: self.carried.log_from,
            placement: None,
            build: BuildFacts {
                compression: String::new(),
                chunk_bytes: options.chunk_bytes,
                segment_bytes: options.segment_bytes,
                navigation: 0.0,
                low_codes: String::new(),
            },
            state: None,
            files,
        };
        begin_state(&mut manifest)?;
        drop(clustered);
        self.stage("measuring", |build| build.measure(&mut manifest))?;
        let takes_place = ready.is_none();
        match ready {
            Some(ready) => self.stage("opening", |_| ready(&manifest))?,
            // The record of an unfinished insert belongs to the replaced index. The new index
            // cannot resume it.
            None => inserts::replace(&**self.volume, manifest.state.as_deref())?,
        }
        let committing = Instant::now();
        let committed = self.checkpoint.commit(&manifest)?;
        // After the commit, no step may fail. If a crash may still restore the previous index, the
        // records of its inserts stay.
        if takes_place && committed.trouble.is_none() {
            inserts::forget_replaced(&**self.volume);
        }
        self.stages
            .push(("commit".to_owned(), committing.elapsed().as_secs_f64()));
        let report = BuildReport {
            vectors: rows.source.rows() - usize::from(self.carried.placeholder),
            stages: std::mem::take(&mut self.stages),
            seconds: self.began.elapsed().as_secs_f64(),
            cpu_seconds: process_cpu_time().saturating_sub(self.cpu).as_secs_f64(),
            peak_rss_bytes: peak_rss_bytes(),
            degree_mean: 0.0,
            degree: 0,
            space: None,
            build_list: 0,
            parts: 1,
            bytes: manifest.files.iter().map(|entry| entry.length).sum(),
            layout: self.plan.layout,
            list_codec: String::new(),
            vector_codec: String::new(),
            fill: None,
            clusters: manifest.clusters().map(|facts| facts.clusters),
            resumed: Vec::new(),
            savepoint_bytes: 0,
        };
        Ok((report, committed))
    }

    /// Measures nothing if the collection is small, or if the memory cap leaves no memory for the
    /// measurement.
    fn measure(&self, manifest: &mut Manifest) -> Result<(), Error> {
        let options = self.options;
        let small = (manifest.vectors as usize) < LEAST_ROWS;
        let memory = options.memory.map(|cap| cap.saturating_sub(MEASURING));
        if small || !options.calibrate || memory == Some(0) {
            return Ok(());
        }
        let _stage = Stage::begin(self.progress, "measuring", 1);
        let index = match assembled(self.volume, manifest, memory) {
            Err(Error::Memory { .. }) => return Ok(()),
            index => index?,
        };
        calibrate(&index, &self.checkpoint, options, self.progress, manifest)
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
        match self.progress.interrupted() {
            true => Err(Error::Interrupted),
            false => Ok(done),
        }
    }

    fn next_id(&self) -> u64 {
        super::next_id(self.source, self.options, &self.carried)
    }

    fn shape(&self, source: &dyn VectorSource, clusters: u32) -> ClusterShape {
        let ids = self.options.ids.as_deref().unwrap_or_default();
        let are_rows = ids.iter().zip(0..).all(|(&id, row): (_, u64)| id == row);
        let largest = match self.carried.placeholder {
            true => PLACEHOLDER_ID,
            false => self.next_id(),
        };
        let are_numbers = are_rows && order_of(self.plan.layout) == Order::Input;
        ClusterShape {
            element: source.element(),
            dim: source.dim(),
            id_bytes: ClusterShape::id_bytes(largest, are_numbers),
            clusters,
            vectors: source.rows() as u32,
        }
    }

    fn read(&self, space: &mut Space) -> Result<Option<VectorFile>, Error> {
        let source = self.source;
        let _stage = Stage::begin(self.progress, "reading vectors", source.rows() as u64);
        let mut copy = match source.has_random_access() {
            true => None,
            false => Some(Spool::create(self.scratch, source.element(), source.dim())?),
        };
        let mut bytes = vec![0; CHUNK.min(source.rows()) * source.row_bytes()];
        for first in (0..source.rows()).step_by(CHUNK) {
            if self.progress.interrupted() {
                return Err(Error::Interrupted);
            }
            let count = CHUNK.min(source.rows() - first);
            let bytes = &mut bytes[..count * source.row_bytes()];
            source.read(first, bytes)?;
            (self.check)(source, self.options.metric, first, bytes)?;
            if space.needs_longest() {
                space.measure(bytes);
            }
            if let Some(copy) = &mut copy {
                for row in bytes.chunks_exact(source.row_bytes()) {
                    copy.push(row)?;
                }
            }
            self.progress.advance(count as u64);
        }
        copy.map(Spool::finish).transpose()
    }

    fn cluster(&mut self, rows: &PointRows<'_>) -> Result<Clustered, Error> {
        let (options, progress, scratch) = (self.options, self.progress, self.scratch);
        let (size, replicas) = (self.plan.size, self.plan.replicas);
        let (seed, threads) = (options.seed, options.threads);
        let partition = self.stage("clustering", |_| {
            cluster::partition(rows, size, seed, threads, progress)
        })?;
        let (heads, points) = self.stage("heads", |_| {
            let built = Heads::build(
                rows,
                &partition.heads,
                options.metric,
                scratch,
                seed,
                progress,
            )?;
            Ok(built)
        })?;
        let closure = Closure {
            replicas,
            share: CLOSURE,
            most: cluster::MOST_MEMBERS * replicas * size,
            blocks: match extent_kind(self.plan.extents) {
                ExtentKind::Replicated => Some(Blocks {
                    block: BLOCK,
                    fixed: stratann_layout::clusters::extent::FIXED,
                    member: ExtentKind::Replicated.stride(&self.shape(rows.source, 1)),
                }),
                ExtentKind::Grouped | ExtentKind::Postings => None,
            },
        };
        let memberships = self.stage("assigning", |_| {
            cluster::memberships(rows, &points, closure, threads, progress)
        })?;
        drop(points);
        if memberships.given_up > 0 {
            tracing::debug!(
                memberships = memberships.given_up,
                "memberships were left out, since their clusters already had {} members",
                closure.most
            );
        }
        let visits = match &options.query_log {
            None => Vec::new(),
            Some(path) => self.stage("counting visits", |_| {
                visits(rows, &heads, options.metric, path, progress)
            })?,
        };
        let groups = match has_groups(self.plan.layout) {
            true => cluster::groups(&memberships, &visits),
            false => Vec::new(),
        };
        let (order, number_of) = numbers(&groups, memberships.rows());
        let mean = memberships.distance / memberships.rows() as f64;
        Ok(Clustered {
            radius: match options.metric {
                Metric::L2 => mean as f32,
                // Vectors have length 1, so the squared distance is twice the cosine distance.
                Metric::Cosine => (mean / 2.0) as f32,
                // Under the inner product, the clustering uses distances other than the metric's.
                Metric::InnerProduct => 0.0,
            },
            memberships,
            heads,
            groups,
            order,
            number_of,
        })
    }

    fn write(
        &self,
        source: &dyn VectorSource,
        shape: ClusterShape,
        clustered: &Clustered,
    ) -> Result<Vec<FileEntry>, Error> {
        let _stage = Stage::begin(self.progress, "writing clusters", shape.clusters.into());
        let kind = extent_kind(self.plan.extents);
        let lists = Lists::of(clustered, kind);
        let model = match kind {
            ExtentKind::Replicated => None,
            ExtentKind::Grouped | ExtentKind::Postings => Some(lists.model(shape)?),
        };
        let mut table = ClustersFile {
            bytes: Vec::with_capacity(shape.clusters as usize),
            records: Vec::with_capacity(shape.clusters as usize),
            model: model
                .as_ref()
                .map(|model| model.to_bytes())
                .unwrap_or_default(),
        };
        let mut builder = ExtentBuilder::new(kind, shape);
        let mut out = Aligned::create(&self.checkpoint, self.plan.extents, None)?;
        let (mut own, mut others, mut code, mut bytes) = (vec![], vec![], vec![], vec![]);
        for cluster in 0..shape.clusters {
            lists.of_cluster(cluster, &mut own, &mut others);
            code.clear();
            if let Some(model) = &model
                && !others.is_empty()
            {
                let beside = lists.first_of(cluster);
                model
                    .encode(beside, &others, &mut code)
                    .map_err(|error| Error::Codec {
                        place: format!("the numbers of the members of cluster {cluster}"),
                        source: error,
                    })?;
            }
            builder.start(&code);
            // The members whose nearest cluster is this cluster come first. The numbers of both
            // parts ascend.
            let stands: &[&[u32]] = match kind {
                ExtentKind::Replicated => &[&own, &others],
                ExtentKind::Grouped => &[&own],
                ExtentKind::Postings => &[],
            };
            for (rank, numbers) in stands.iter().enumerate() {
                let rows: Vec<u32> = numbers
                    .iter()
                    .map(|&n| clustered.order[n as usize])
                    .collect();
                bytes.resize(rows.len() * source.row_bytes(), 0);
                source.gather(&rows, &mut bytes)?;
                self.check_again(source, &rows, &bytes)?;
                let vectors = bytes.chunks_exact(source.row_bytes());
                for ((&number, &row), vector) in numbers.iter().zip(&rows).zip(vectors) {
                    builder.push(number, self.id_of(row), vector, rank == 0);
                }
            }
            table.records.push(builder.records());
            let extent = builder.finish(cluster);
            let length = u32::try_from(extent.len()).map_err(|_| LayoutError::Shape {
                what: "bytes of a cluster",
                found: extent.len() as u64,
                expected: "fewer than 4 GiB",
                remedy: "Choose a smaller cluster size",
            })?;
            table.bytes.push(length);
            out.push(extent, kind.alignment())?;
            self.progress.advance(1);
            if self.progress.interrupted() {
                return Err(Error::Interrupted);
            }
        }
        let mut files = vec![out.finish(|length| shape.header(self.plan.extents, length))?];
        if kind == ExtentKind::Postings {
            files.push(self.write_members(source, shape)?);
        }
        let clusters = FileKind::Clusters;
        files.push(write_stream(
            &self.checkpoint,
            clusters,
            None,
            &table.encode(),
        )?);
        Ok(files)
    }

    fn write_members(
        &self,
        source: &dyn VectorSource,
        shape: ClusterShape,
    ) -> Result<FileEntry, Error> {
        let members = Members::new(shape);
        let mut out = Aligned::create(&self.checkpoint, FileKind::Addressed, None)?;
        let (mut bytes, mut stored) = (vec![0; CHUNK * source.row_bytes()], Vec::new());
        for first in (0..source.rows()).step_by(CHUNK) {
            let count = CHUNK.min(source.rows() - first);
            let bytes = &mut bytes[..count * source.row_bytes()];
            source.read(first, bytes)?;
            (self.check)(source, self.options.metric, first, bytes)?;
            stored.clear();
            for (row, vector) in (first as u32..).zip(bytes.chunks_exact(source.row_bytes())) {
                members.push(row, self.id_of(row), vector, &mut stored);
            }
            out.push(&stored, 1)?;
            if self.progress.interrupted() {
                return Err(Error::Interrupted);
            }
        }
        out.finish(|length| shape.header(FileKind::Addressed, length))
    }

    fn id_of(&self, row: u32) -> u64 {
        let ids = self.options.ids.as_deref();
        ids.map_or(u64::from(row), |ids| ids[row as usize])
    }

    /// Checks rows again, because they may have changed after the first check.
    fn check_again(
        &self,
        source: &dyn VectorSource,
        rows: &[u32],
        bytes: &[u8],
    ) -> Result<(), Error> {
        for (&row, vector) in rows.iter().zip(bytes.chunks_exact(source.row_bytes())) {
            (self.check)(source, self.options.metric, row as usize, vector)?;
        }
        Ok(())
    }
}

fn check_log(log: &dyn VectorSource, source: &dyn VectorSource, path: &Path) -> Result<(), Error> {
    let (found, right) = ((log.element(), log.dim()), (source.element(), source.dim()));
    if found == right {
        return Ok(());
    }
    Err(Error::call(
        format!("a vector of the query log {}", path.display()),
        format!("{} of {} elements", found.0, found.1),
        format!(
            "a vector of the index is {} of {} elements",
            right.0, right.1
        ),
        "Give a log of queries with the dimension and element type of the index, or leave the log out",
    ))
}

fn visits(
    rows: &PointRows<'_>,
    heads: &NavigationFile,
    metric: Metric,
    path: &Path,
    progress: &dyn Progress,
) -> Result<Vec<u64>, Error> {
    let (source, queries) = (rows.source, VectorFile::open(path)?);
    check_log(&queries, source, path)?;
    let navigation = Navigation::new(heads.clone());
    let kernel = Kernel::new(metric, source.element(), source.dim());
    cluster::visits(&navigation, &kernel, &queries, LOGGED_PROBES, progress)
}

/// For each vector, its row; and for each row, the number of its vector. With groups, vectors are
/// numbered group by group.
fn numbers(groups: &[u32], rows: usize) -> (Vec<u32>, Vec<u32>) {
    let mut order: Vec<u32> = (0..rows as u32).collect();
    if !groups.is_empty() {
        order.sort_unstable_by_key(|&row| (groups[row as usize], row));
    }
    let mut number_of = vec![0; rows];
    for (number, &row) in (0..).zip(&order) {
        number_of[row as usize] = number;
    }
    (order, number_of)
}

struct Lists<'a> {
    clustered: &'a Clustered,
    kind: ExtentKind,
    /// For each cluster, the index of its first row in `members`.
    starts: Vec<u32>,
    members: Vec<u32>,
    /// The first number of each group, followed by one past the last number of all groups.
    firsts: Vec<u32>,
}

impl<'a> Lists<'a> {
    fn of(clustered: &'a Clustered, kind: ExtentKind) -> Self {
        let (starts, members) = clustered.memberships.by_cluster();
        let clusters = clustered.memberships.sizes.len();
        let mut firsts = vec![0; clusters + 1];
        for &group in &clustered.groups {
            firsts[group as usize + 1] += 1;
        }
        for at in 0..clusters {
            firsts[at + 1] += firsts[at];
        }
        Self {
            clustered,
            kind,
            starts,
            members,
            firsts,
        }
    }

    /// Collects a cluster's own members and its other members, both by ascending number. In
    /// `Grouped`, own members are stored in this cluster. In `Replicated`, own members have no
    /// nearer cluster. In `Postings`, no member is own.
    fn of_cluster(&self, cluster: u32, own: &mut Vec<u32>, others: &mut Vec<u32>) {
        own.clear();
        others.clear();
        let at = cluster as usize;
        let members = &self.members[self.starts[at] as usize..self.starts[at + 1] as usize];
        let Clustered {
            memberships,
            groups,
            number_of,
            ..
        } = self.clustered;
        for &row in members {
            let first = match self.kind {
                ExtentKind::Replicated => memberships.of(row)[0] == cluster,
                ExtentKind::Grouped => groups[row as usize] == cluster,
                ExtentKind::Postings => false,
            };
            let list = if first { &mut *own } else { &mut *others };
            list.push(number_of[row as usize]);
        }
        own.sort_unstable();
        others.sort_unstable();
    }

    fn first_of(&self, cluster: u32) -> u32 {
        match self.kind {
            ExtentKind::Grouped => self.firsts[cluster as usize],
            ExtentKind::Replicated | ExtentKind::Postings => 0,
        }
    }

    fn model(&self, shape: ClusterShape) -> Result<stratann_codec::ListModel, Error> {
        let mut trainer = ListTrainer::new(shape.vectors, 0);
        let (mut own, mut others) = (Vec::new(), Vec::new());
        let step = (shape.clusters as usize).div_ceil(TRAINING_LISTS);
        for cluster in (0..shape.clusters).step_by(step) {
            self.of_cluster(cluster, &mut own, &mut others);
            trainer
                .add(self.first_of(cluster), &others)
                .map_err(|error| Error::Codec {
                    place: format!("the numbers of the members of cluster {cluster}"),
                    source: error,
                })?;
        }
        Ok(trainer.finish(TABLES))
    }
}
