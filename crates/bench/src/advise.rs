//! Recommends a preset for a collection on a device, and predicts the performance of the preset.
//!
//! ```text
//!   sample of the rows ──> each candidate built and searched in memory
//!                            ──> reads, bytes and CPU a query at the recall target
//!                                  │ scaled to the size of the collection
//!   device: latency, bandwidth, cost of a request (second-tier memory, Table 1, Fig. 6)
//!                                  └──> queries a second, and their limit
//! ```
//!
//! The advice builds a small index of every candidate from a sample, and searches it with longer
//! candidate lists (or more probes) until the recall target is met. It interpolates the cost at
//! this recall, as `stratann bench` does.
//!
//! Without queries of the caller, rows of the collection serve as queries. Rows may be harder to
//! find: on photo-sift, clusters need 1.7 times as many probes for rows as for queries.
//!
//! The cost of a query is its CPU time in memory, the CPU time of its requests (`request_cpu`),
//! and the time of the device's model for its reads. Queries that take
//! turns on a thread hide latency (§5 of the paper on second-tier memory). So
//!
//! ```text
//!   queries a second = least of   threads / CPU                                       computation
//!                                 threads * in flight / (CPU + rounds * latency)      latency
//!                                 1 / max(bytes / bandwidth, time of the requests)    the device
//! ```
//!
//! The number of reads for the same recall grows linearly with the logarithm of the number of rows,
//! at a rate of each preset (`Growth`). `bench/advise.py` compares the results with measurements.

mod growth;

use std::fmt::Display;
use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use serde::Serialize;
use stratann::{
    BuildOptions, DeviceKind, Error, GroundTruth, Index, Layout, Matrix, Metric, OpenOptions,
    Places, Preset, Progress, SearchOptions, Stage, VectorSource, WithinStage, brute_force, build,
    process_cpu_time,
};
use stratann_terminal::failure::Failure;

use growth::Growth;

/// Options for advice.
#[derive(Clone, Debug)]
pub struct AdviseOptions {
    /// The metric.
    pub metric: Metric,
    /// The device that searches will read from. `None` is this machine's memory.
    pub device: Option<DeviceKind>,
    /// The number of vectors that the collection will have. `None` is the number of rows in the
    /// source.
    pub rows: Option<u64>,
    /// The recall target of searches, above 0 and below 1.
    pub recall: f64,
    /// The number of results for each query.
    pub k: usize,
    /// The number of search threads.
    pub threads: usize,
    /// The number of queries in flight on each thread.
    pub in_flight: usize,
    /// The memory that searches will have, in bytes. `None` is no limit.
    pub memory: Option<u64>,
    /// The largest size of the index in bytes. `None` is no limit.
    pub space: Option<u64>,
    /// The largest number of rows in the sample.
    pub sample: usize,
}

impl Default for AdviseOptions {
    fn default() -> Self {
        Self {
            metric: Metric::L2,
            device: Some(DeviceKind::Ssd),
            rows: None,
            recall: 0.95,
            k: 10,
            threads: 1,
            in_flight: 8,
            memory: None,
            space: None,
            sample: 20_000,
        }
    }
}

/// The resource that limits a candidate's throughput.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum BoundBy {
    /// The processor limits the throughput.
    Computation,
    /// The latency of the device limits the throughput.
    Latency,
    /// The bytes or requests that the device can serve in a second limit the throughput.
    Device,
}

/// A preset with parameters, and its expected performance.
#[derive(Clone, Debug, Serialize)]
pub struct Candidate {
    /// The preset.
    pub preset: &'static str,
    /// The layout, if it differs from the layout of the preset.
    pub layout: Option<Layout>,
    /// The degree bound R of a graph.
    pub degree: Option<usize>,
    /// The largest number of clusters that a vector may be in, in a cluster index.
    pub replicas: Option<usize>,
    /// The smallest tried list size with which the sample met the recall target, or the largest
    /// tried list size. In a cluster index, a number of probes.
    pub list: usize,
    /// The recall with this list size or number of probes.
    pub recall: f64,
    /// The expected number of reads of a query on the whole collection.
    pub reads: f64,
    /// The bytes that the reads of a query return.
    pub bytes: f64,
    /// The CPU time of a query, in seconds.
    pub cpu: f64,
    /// The expected number of queries a second.
    pub throughput: f64,
    /// The resource that limits the throughput.
    pub bound_by: BoundBy,
    /// The expected time of a query that runs alone, in microseconds.
    pub latency_us: f64,
    /// The expected size of the index, in bytes.
    pub size: u64,
    /// The size of the index, as a multiple of the size of the raw vectors.
    pub amplification: f64,
    /// The least memory with which the index can be searched, in bytes.
    pub memory: u64,
    /// Whether recall, memory and space meet the options.
    pub fits: bool,
}

const LISTS: [usize; 15] = [
    10, 14, 20, 28, 40, 56, 80, 112, 160, 224, 320, 448, 640, 896, 1280,
];
const PROBES: [usize; 15] = [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192];
const QUERIES: usize = 500;
/// The number of runs of a measurement. The first run loads tables into the processor's caches, and
/// other work disturbs some runs.
const TURNS: usize = 5;

struct Trial {
    preset: Preset,
    layout: Option<Layout>,
    degree: Option<usize>,
    replicas: Option<usize>,
    growth: Growth,
}

const FOLDERS: u32 = 16;

/// The candidates are the baselines for an SSD, and the systems of the paper on second-tier memory
/// (Figures 9 and 12). If memory is bounded, systems that keep almost nothing in memory are added.
fn trials(memory: Option<u64>) -> Vec<Trial> {
    let graph = |preset, degree, growth| Trial {
        preset,
        layout: None,
        degree: Some(degree),
        replicas: None,
        growth,
    };
    let clusters = |preset, replicas, growth| Trial {
        preset,
        layout: None,
        degree: None,
        replicas: Some(replicas),
        growth,
    };
    let mut trials = vec![
        graph(Preset::STRATANN, 64, Growth::STRATANN),
        graph(Preset::DISKANN, 32, Growth::DISKANN),
        graph(Preset::TIERED_GRAPH, 16, Growth::ROWS_OF_16),
        graph(Preset::TIERED_GRAPH, 32, Growth::ROWS_OF_32),
        graph(Preset::TIERED_GRAPH, 64, Growth::ROWS_OF_64),
        clusters(Preset::SPANN, 8, Growth::SPANN),
        clusters(Preset::TIERED_CLUSTER, 1, Growth::ONE_COPY),
        clusters(Preset::TIERED_CLUSTER, 4, Growth::COPIES),
        clusters(Preset::TIERED_CLUSTER, 8, Growth::COPIES),
    ];
    if memory.is_some() {
        trials.extend([
            graph(Preset::AISAQ, 32, Growth::DISKANN),
            Trial {
                layout: Some(Layout::Inline),
                ..graph(Preset::STRATANN, 32, Growth::STRATANN)
            },
        ]);
    }
    trials
}

/// Recommends candidates for the vectors of a source. Candidates that fit the options come first,
/// and then candidates with more queries a second.
///
/// The queries are from `asked`. If `asked` is `None`, the queries are rows of the source that are
/// not indexed. The small indexes are built in `scratch`, an existing folder.
///
/// # Errors
/// The call fails if options are out of range, if the source has too few rows, if queries have
/// another shape, if rows cannot be read, if the disk is full, or after an interruption.
pub fn advise(
    source: &dyn VectorSource,
    asked: Option<&dyn VectorSource>,
    options: &AdviseOptions,
    scratch: &Path,
    progress: &dyn Progress,
) -> Result<Vec<Candidate>, Failure> {
    let (base, queries) = sample(source, asked, options)?;
    let truth = brute_force(
        &base,
        &queries,
        options.k,
        options.metric,
        options.threads,
        &WithinStage(progress),
    )?;
    let trials = trials(options.memory);
    let _stage = Stage::begin(progress, "trying presets", trials.len() as u64);
    let mut candidates = Vec::new();
    for trial in trials {
        if progress.interrupted() {
            return Err(Error::Interrupted.into());
        }
        let tried = Tried {
            source,
            options,
            base: &base,
            queries: &queries,
            truth: &truth,
        };
        candidates.push(tried.candidate(&trial, scratch, progress)?);
        progress.advance(1);
    }
    candidates.sort_by(|a, b| {
        let rank = |candidate: &Candidate| (candidate.fits, candidate.throughput);
        let (a, b) = (rank(a), rank(b));
        b.0.cmp(&a.0).then(b.1.total_cmp(&a.1))
    });
    Ok(candidates)
}

fn wrong(argument: &str, value: impl Display, reason: &str, remedy: &str) -> Failure {
    Failure::Wrong(format!("{argument} is {value}; {reason}. {remedy}"))
}

fn sample(
    source: &dyn VectorSource,
    asked: Option<&dyn VectorSource>,
    options: &AdviseOptions,
) -> Result<(Matrix, Matrix), Failure> {
    if !(options.recall > 0.0 && options.recall < 1.0) {
        return Err(wrong(
            "recall",
            options.recall,
            "it is a share of the true neighbours, and no search is certain to find all of them",
            "Pass a number above 0 and below 1, such as 0.95",
        ));
    }
    if options.rows == Some(0) {
        let reason = "advice is for at least one vector";
        return Err(wrong("number of rows", 0, reason, "Pass at least 1"));
    }
    let rows = source.rows();
    let taken = rows.min(options.sample);
    if asked.is_some_and(|asked| asked.rows() == 0) {
        return Err(wrong(
            "number of queries",
            0,
            "a measurement needs queries",
            "Give at least one query, or leave the queries out: rows are then the queries",
        ));
    }
    let queries = match asked {
        Some(queries) => QUERIES.min(queries.rows()),
        None => QUERIES.min(taken / 10),
    };
    let indexed = if asked.is_some() {
        taken
    } else {
        taken - queries
    };
    if queries == 0 || indexed < options.k.max(100) {
        let least = options.k.max(100) + QUERIES;
        let what = match rows < options.sample {
            true => "number of vectors",
            false => "size of the sample",
        };
        let reason = "a measurement with so few vectors is not reliable";
        let remedy = format!("Give {least} or more");
        return Err(wrong(what, taken, reason, &remedy));
    }
    let Some(asked) = asked else {
        let [base, queries] = spread(source, taken, queries)?;
        return Ok((matrix(base, source)?, matrix(queries, source)?));
    };
    if (asked.dim(), asked.element()) != (source.dim(), source.element()) {
        let found = format!("{} of {} elements", asked.element(), asked.dim());
        let reason = format!(
            "a vector is {} of {} elements",
            source.element(),
            source.dim()
        );
        let remedy = "Give queries of the same element type and dimension";
        return Err(wrong("a query", found, &reason, remedy));
    }
    let [base, _] = spread(source, taken, 0)?;
    let [queries, _] = spread(asked, queries, 0)?;
    Ok((matrix(base, source)?, matrix(queries, source)?))
}

/// Reads `taken` evenly spaced rows of a source. The second part of the result has `asked` of these
/// rows.
fn spread(source: &dyn VectorSource, taken: usize, asked: usize) -> Result<[Vec<u8>; 2], Error> {
    let rows = source.rows();
    let mut parts = [Vec::new(), Vec::new()];
    let mut row = vec![0; source.row_bytes()];
    for n in 0..taken {
        let at = (n as u128 * rows as u128 / taken as u128) as usize;
        source.read(at, &mut row)?;
        let is_query = (n + 1) * asked / taken > n * asked / taken;
        parts[usize::from(is_query)].extend_from_slice(&row);
    }
    Ok(parts)
}

fn matrix(bytes: Vec<u8>, source: &dyn VectorSource) -> Result<Matrix, Error> {
    let count = bytes.len() / source.row_bytes();
    Ok(Matrix::new(bytes, count, source.dim(), source.element())?)
}

struct Tried<'a> {
    source: &'a dyn VectorSource,
    options: &'a AdviseOptions,
    base: &'a Matrix,
    queries: &'a Matrix,
    truth: &'a GroundTruth,
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Taken {
    list: usize,
    recall: f64,
    reads: f64,
    bytes: f64,
    rounds: f64,
    cpu: f64,
}

impl Taken {
    /// The cost at a recall between the recalls of `shorter` and `self`, interpolated linearly. The
    /// list size is not interpolated, since it must meet the recall.
    fn at(&self, recall: f64, shorter: Option<&Taken>) -> Taken {
        let Some(shorter) =
            shorter.filter(|shorter| shorter.recall < recall && recall < self.recall)
        else {
            return *self;
        };
        let share = (recall - shorter.recall) / (self.recall - shorter.recall);
        let between = |of: fn(&Taken) -> f64| of(shorter) + share * (of(self) - of(shorter));
        Taken {
            list: self.list,
            recall: self.recall,
            reads: between(|taken| taken.reads),
            bytes: between(|taken| taken.bytes),
            rounds: between(|taken| taken.rounds),
            cpu: between(|taken| taken.cpu),
        }
    }
}

impl Tried<'_> {
    fn candidate(
        &self,
        trial: &Trial,
        scratch: &Path,
        progress: &dyn Progress,
    ) -> Result<Candidate, Failure> {
        let built = TrialFolder::within(scratch)?;
        let options = BuildOptions {
            preset: trial.preset,
            metric: self.options.metric,
            layout: trial.layout,
            degree: trial.degree,
            replicas: trial.replicas,
            threads: self.options.threads,
            ..BuildOptions::default()
        };
        let quiet = WithinStage(progress);
        let report = build(self.base, &built.0, &options, &quiet)?;
        // The index is in memory, so that the device's modelled time can be added.
        let open = OpenOptions {
            places: Places::in_memory(report.layout),
            ..OpenOptions::default()
        };
        let index = Index::open(&built.0, &open)?;
        let taken = self.search(&index, trial)?;
        Ok(self.expected(trial, &index, &built, taken))
    }

    fn search(&self, index: &Index, trial: &Trial) -> Result<Taken, Failure> {
        let widths = match trial.replicas {
            Some(_) => PROBES,
            None => LISTS.map(|list| list.max(self.options.k)),
        };
        let (mut shorter, mut last): (Option<Taken>, Option<Taken>) = (None, None);
        for width in widths {
            shorter = last.replace(self.with(index, trial, width)?);
            if last.is_some_and(|last| last.recall >= self.options.recall) {
                break;
            }
        }
        let last = last.ok_or_else(|| {
            wrong(
                "number of list sizes",
                0,
                "a measurement needs at least one list size",
                "Give at least one list size",
            )
        })?;
        Ok(last.at(self.options.recall, shorter.as_ref()))
    }

    fn with(&self, index: &Index, trial: &Trial, width: usize) -> Result<Taken, Failure> {
        let options = SearchOptions {
            k: self.options.k,
            list: width.max(self.options.k),
            probes: trial.replicas.map(|_| width),
            threads: 1,
            in_flight: Some(self.options.in_flight),
            ..SearchOptions::default()
        };
        let queries = self.queries.rows() as f64;
        let mut found = index.search(self.queries, &options)?;
        let mut cpu = f64::INFINITY;
        for _ in 0..TURNS {
            let before = process_cpu_time();
            found = index.search(self.queries, &options)?;
            cpu = cpu.min((process_cpu_time() - before).as_secs_f64());
        }
        let recall = (self.truth).recall(&found.ids, &found.distances, self.options.k)?;
        let counters = &found.counters;
        let reads = (counters.graph_reads + counters.vector_reads) as f64 / queries;
        Ok(Taken {
            list: width,
            recall,
            reads,
            bytes: counters.bytes_read as f64 / queries,
            // A cluster search reads all posting lists in one round. Members of other groups need a
            // second round.
            rounds: match trial.replicas {
                Some(_) => 1.0 + f64::from(u8::from(counters.stray_reads > 0)),
                // While a pipelined search approaches its results, its width is 4.
                None => {
                    let width = trial.preset.beam.min(4) as f64;
                    (counters.hops as f64 / queries / width).min(reads)
                }
            },
            cpu: cpu / queries,
        })
    }

    fn expected(
        &self,
        trial: &Trial,
        index: &Index,
        built: &TrialFolder,
        taken: Taken,
    ) -> Candidate {
        let options = self.options;
        let rows = options.rows.unwrap_or(self.source.rows() as u64);
        let sampled = self.base.rows() as u64;
        let factor = trial.growth.factor(sampled, rows);
        let (reads, bytes) = (taken.reads * factor, taken.bytes * factor);
        let cpu = taken.cpu * factor + reads * request_cpu(options.device);
        let rounds = match trial.replicas {
            Some(_) => taken.rounds,
            None => taken.rounds * factor,
        };
        let (latency, device) = match options.device {
            Some(kind) => {
                let latency = kind.model().latency.as_secs_f64();
                (latency, device_time(kind, reads, bytes))
            }
            None => (0.0, 0.0),
        };
        let threads = options.threads as f64;
        let waits = cpu + rounds * latency;
        let bounds = [
            (BoundBy::Computation, threads / cpu),
            (BoundBy::Latency, threads * options.in_flight as f64 / waits),
            (BoundBy::Device, 1.0 / device),
        ];
        let (bound_by, throughput) = bounds
            .into_iter()
            .min_by(|a, b| a.1.total_cmp(&b.1))
            .unwrap_or(bounds[0]);
        let scale = |bytes: u64| (bytes as f64 * rows as f64 / sampled as f64) as u64;
        let stats = index.stats();
        // The size of a codebook does not depend on the number of rows. This size is different in
        // memory and on disk.
        let plan = index.memory();
        let fixed = plan.codebook;
        let codebook = built.codebook_bytes();
        let size = scale(stats.bytes.total.saturating_sub(codebook)).saturating_add(codebook);
        // If codes are in the records, memory has the codes of a fixed number of entry points.
        let codes = match stats.fill {
            Some(_) => plan.codes,
            None => scale(plan.codes),
        };
        let memory = plan.program + plan.queries + fixed + codes + scale(plan.tables);
        let raw = rows as f64 * self.source.row_bytes() as f64;
        let within = |bytes: u64, most: Option<u64>| most.is_none_or(|most| bytes <= most);
        Candidate {
            preset: trial.preset.name,
            layout: trial.layout,
            degree: trial.degree,
            replicas: trial.replicas,
            list: taken.list,
            recall: taken.recall,
            reads,
            bytes,
            cpu,
            throughput,
            bound_by,
            latency_us: (cpu + rounds * latency + device) * 1e6,
            size,
            amplification: size as f64 / raw,
            memory,
            fits: taken.recall >= options.recall
                && within(memory, options.memory)
                && within(size, options.space),
        }
    }
}

/// The seconds of `reads` reads of `bytes` bytes in total, averaged over their offsets.
fn device_time(device: DeviceKind, reads: f64, bytes: f64) -> f64 {
    if reads <= 0.0 {
        return 0.0;
    }
    let model = device.model();
    let len = (bytes / reads).clamp(1.0, f64::from(u32::MAX)) as u32;
    let step = u64::from(model.piece.unwrap_or(model.block)) / 16;
    let offsets = (0..16).map(|n| n * step.max(1));
    let (link, engine) = offsets.fold((0, 0), |(link, engine), offset| {
        let cost = model.cost(offset, len);
        (link + cost.link, engine + cost.engine)
    });
    reads * link.max(engine) as f64 / 16.0 * 1e-12
}

/// The CPU seconds of a request to the device, beyond a read of this machine's memory.
/// `bench/second-tier.toml` and `bench/second-tier-text.toml` measured these times.
fn request_cpu(device: Option<DeviceKind>) -> f64 {
    match device {
        None => 0.0,
        Some(DeviceKind::Ssd) => 0.42e-6,
        Some(DeviceKind::Rdma) => 0.11e-6,
        Some(DeviceKind::Cxl | DeviceKind::Nvm) => 0.09e-6,
    }
}

/// The folder of a trial index. A drop removes the folder.
struct TrialFolder(PathBuf);

impl TrialFolder {
    fn within(scratch: &Path) -> Result<Self, Failure> {
        let failed = |error| Failure::file("create a folder in", scratch, &error);
        for number in 0..FOLDERS {
            let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
            let nanos = now.map_or(0, |now| now.as_nanos());
            let name = format!("stratann-advise-{}-{nanos:x}-{number}", std::process::id());
            let path = scratch.join(name);
            match DirBuilder::new().mode(0o700).create(&path) {
                Ok(()) => return Ok(Self(path)),
                Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(failed(error)),
            }
        }
        Err(failed(std::io::ErrorKind::AlreadyExists.into()))
    }

    fn codebook_bytes(&self) -> u64 {
        let files = std::fs::read_dir(&self.0).into_iter().flatten().flatten();
        let codebooks =
            files.filter(|file| file.file_name().to_string_lossy().starts_with("codebook"));
        codebooks
            .filter_map(|file| Some(file.metadata().ok()?.len()))
            .sum()
    }
}

impl Drop for TrialFolder {
    fn drop(&mut self) {
        // The advice is complete, so a folder that cannot be removed is no error.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use stratann::Element;

    use super::*;

    #[test]
    fn a_larger_collection_takes_more_reads_and_one_as_large_the_same() {
        for trial in trials(Some(1)) {
            let growth = |from, to| trial.growth.factor(from, to);
            assert_eq!(growth(20_000, 20_000), 1.0);
            let growths = [100_000, 1_000_000, 1_000_000_000].map(|to| growth(20_000, to));
            assert!(growths[0] > 1.0 && growths.is_sorted(), "{growths:?}");
            assert_eq!(growth(10, 1_000), 1.0);
            assert!(growth(1_000, 20_000).is_finite() && growth(1_000, 20_000) > 1.0);
        }
    }

    #[test]
    fn what_is_asked_for_are_queries_or_rows_that_are_not_searched() {
        let rows = |count: usize, dim: usize, value: u8| {
            let bytes = (0..count * dim).map(|n| value ^ (n % 7) as u8);
            Matrix::new(bytes.collect(), count, dim, Element::U8).unwrap()
        };
        let (base, asked) = (rows(3_000, 4, 0), rows(700, 4, 128));
        let options = AdviseOptions {
            sample: 2_000,
            ..AdviseOptions::default()
        };
        let counts = |asked: Option<&dyn VectorSource>| {
            let (base, queries) = sample(&base, asked, &options).unwrap();
            let mut row = vec![0; 4];
            queries.read(queries.rows() - 1, &mut row).unwrap();
            (base.rows(), queries.rows(), row[0] >= 128)
        };
        assert_eq!(counts(None), (1_800, 200, false));
        assert_eq!(counts(Some(&asked)), (2_000, 500, true));
        assert_eq!(counts(Some(&rows(3, 4, 128))), (2_000, 3, true));
        let error = sample(&base, Some(&rows(9, 5, 0)), &options).unwrap_err();
        assert!(
            matches!(&error, Failure::Wrong(text) if text.contains("u8 of 4")),
            "{error:?}"
        );
        let few = rows(105, 4, 0);
        assert!(sample(&few, None, &options).is_err());
        assert!(sample(&few, Some(&asked), &options).is_ok());
    }

    #[test]
    fn what_a_recall_takes_lies_between_the_lists_around_it() {
        let taken = |list, recall, each| Taken {
            list,
            recall,
            reads: each,
            bytes: 100.0 * each,
            rounds: each,
            cpu: each / 10.0,
        };
        let (shorter, longer) = (taken(10, 0.8, 20.0), taken(20, 0.96, 60.0));
        let at = longer.at(0.88, Some(&shorter));
        assert_eq!((at.list, at.recall), (20, 0.96));
        let found = [at.reads, at.bytes / 100.0, at.rounds, at.cpu * 10.0];
        assert!(
            found.iter().all(|found| (found - 40.0).abs() < 1e-9),
            "{at:?}"
        );
        assert_eq!(longer.at(0.88, None), longer);
        assert_eq!(longer.at(0.97, Some(&shorter)), longer);
        assert_eq!(longer.at(0.7, Some(&shorter)), longer);
    }

    #[test]
    fn a_device_takes_what_its_requests_and_its_bytes_cost() {
        assert_eq!(device_time(DeviceKind::Ssd, 0.0, 0.0), 0.0);
        for kind in DeviceKind::ALL {
            let model = kind.model();
            // One large read takes about its transfer time. Many small reads with the same number
            // of bytes take longer.
            let large = device_time(kind, 1.0, 1e6);
            let link = 1e6 / (model.bandwidth as f64 * 1e6);
            assert!(large >= link && large < 1.05 * link, "{kind}: {large}");
            let small = device_time(kind, 1e6 / 128.0, 1e6);
            assert!(small > large, "{kind}: {small}");
        }
    }
}
