//! A benchmark job: a TOML file that names data, builds and searches.
//!
//! ```toml
//! name = "photo-sift-100k"
//! targets = [0.965, 0.985]          # recalls at which the runs are compared
//!
//! [data]
//! root = "../../shared/data"        # relative to this file; STRATANN_DATA replaces it
//! base = "photo-sift-100k.base.u8bin"
//! queries = "photo-sift-100k.query.u8bin"
//! truth = "photo-sift-100k.truth100.bin"
//! metric = "l2"
//!
//! [build]                           # build options of all runs
//! degree = 64
//!
//! [search]                          # search options of all runs
//! lists = [20, 40, 100]
//!
//! [[run]]
//! name = "diskann"
//! preset = "diskann"
//! noise = true                      # measured twice: the difference is the noise of this machine
//!
//! [[run]]
//! name = "diskann, locality"
//! preset = "diskann"
//! build = { order = "locality" }    # of this run alone
//! search = { whole_page = true }
//! ```
//!
//! A job with a table `[timeline]` or `[breakdown]` measures live updates
//! ([`live::keys`](crate::live::keys)). Such a job has no ground truth, because rows change, and no
//! table `[search]`.
//!
//! The whole job is checked before any run begins.

use std::fmt;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use serde::de::Visitor;
use serde::{Deserialize, Deserializer, Serialize};
use stratann::{Compression, Layout, Metric, Order, Preset, Strategy};
use stratann_terminal::failure::Failure;
use stratann_terminal::size::{self, CacheEntries};

use crate::live::keys::{self, BreakdownKeys, LiveRun, TimelineKeys};

/// A job as written in its file.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Job {
    /// The name of the result files.
    pub name: String,
    /// The heading of the plot. If it is absent, the heading is the name.
    pub title: Option<String>,
    /// Recalls at which the runs are compared.
    #[serde(default)]
    pub targets: Vec<f64>,
    /// The number of repeats of every measurement; 3 if absent.
    pub repeat: Option<usize>,
    /// The files.
    pub data: Data,
    /// Build options of every run.
    #[serde(default)]
    pub build: Build,
    /// Search options of every run.
    #[serde(default)]
    pub search: Search,
    /// Inserts and searches at the same time.
    pub timeline: Option<TimelineKeys>,
    /// Several insert strategies, one after the other.
    pub breakdown: Option<BreakdownKeys>,
    /// The runs.
    #[serde(default, rename = "run")]
    pub runs: Vec<Run>,
}

/// The files of a job.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Data {
    /// Folder of the files, relative to the job.
    pub root: Option<PathBuf>,
    /// The vectors.
    pub base: PathBuf,
    /// The queries.
    pub queries: PathBuf,
    /// The exact neighbours of the queries; absent in a job of live updates.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub truth: Option<PathBuf>,
    /// The metric.
    pub metric: String,
}

/// Build options. An absent option has the default of the preset, or else of the engine.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Build {
    /// R: the maximum number of neighbours of a node.
    pub degree: Option<usize>,
    /// L: the list size of the build.
    pub build_list: Option<usize>,
    /// alpha: the factor of RobustPrune.
    pub alpha: Option<f64>,
    /// The size of a code in bytes.
    pub code_bytes: Option<usize>,
    /// `input` or `locality`.
    pub order: Option<String>,
    /// `coupled`, `packed`, `decoupled`, `inline`, `layered` or `csr`; for clusters `replicated`,
    /// `addressed` or `grouped`.
    pub layout: Option<String>,
    /// `raw`, `paper` or `best`.
    pub compression: Option<String>,
    /// The size of a segment of vectors in raw bytes, such as `2MiB`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub segment: Option<String>,
    /// The share of the vectors that are in the navigation graph.
    pub navigation: Option<f64>,
    /// The memory cap of the build, such as `2GiB`.
    pub memory: Option<String>,
    /// The memory that searches will have, such as `10MB`.
    pub search_memory: Option<String>,
    /// The maximum size of the index, such as `62MB`. The build derives the degree from it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub space: Option<String>,
    /// The number of vectors for each cluster, in a layout of clusters.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cluster_size: Option<usize>,
    /// The maximum number of clusters that a vector is a member of.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replicas: Option<usize>,
    /// A file of recorded queries, which show the clusters that are probed most.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub query_log: Option<PathBuf>,
    /// The number of threads.
    pub threads: Option<usize>,
    /// The seed of random choices.
    pub seed: Option<u64>,
}

/// Search options. An absent option has the default of the preset, or else of the engine.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Search {
    /// k: the number of neighbours of a query.
    pub k: Option<usize>,
    /// List sizes; for a cluster index, numbers of probed clusters.
    pub lists: Option<Vec<usize>>,
    /// W: the beam width.
    pub beam: Option<usize>,
    /// `best-first`, `pipelined` or `press`.
    pub strategy: Option<String>,
    /// Whether a search starts at nodes that the navigation graph finds.
    pub nav: Option<bool>,
    /// Whether a search uses every candidate on a page that it reads.
    pub whole_page: Option<bool>,
    /// Whether a search ends when no remaining candidate has promise.
    pub stop_early: Option<bool>,
    /// The share of the candidate list that is re-ranked in one batch.
    pub rerank_ratio: Option<f64>,
    /// For the strategy press: the candidates that low codes rank, as a multiple of the list size.
    pub low_list: Option<f64>,
    /// For the strategy press: the share of these candidates that each round ranks by high codes.
    pub refine: Option<f64>,
    /// The number of threads.
    pub threads: Option<usize>,
    /// The number of queries in flight on each thread.
    pub in_flight: Option<usize>,
    /// The memory cap of the searches, such as `64MB`.
    pub memory: Option<String>,
    /// The size of the cache of recently read adjacency lists, such as `16MB`.
    pub cache: Option<String>,
    /// The size of that cache in entries, or in percent of the vectors, such as `1%`.
    pub cache_entries: Option<Entries>,
    /// Whether to measure the time of each part of a query. The measurement takes time itself.
    pub parts: Option<bool>,
    /// `auto`, `uring` or `pread`.
    pub io: Option<String>,
    /// The tier from which each role is read, such as `topology=rdma-model`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub place: Option<String>,
}

/// Entries of a cache: a number in the job, or a text with a percentage.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Entries(pub String);

impl<'de> Deserialize<'de> for Entries {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct NumberOrText;

        impl Visitor<'_> for NumberOrText {
            type Value = Entries;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a number of entries, or a text such as \"1%\"")
            }

            fn visit_i64<E>(self, number: i64) -> Result<Entries, E> {
                Ok(Entries(number.to_string()))
            }

            fn visit_str<E>(self, text: &str) -> Result<Entries, E> {
                Ok(Entries(text.to_owned()))
            }
        }

        deserializer.deserialize_any(NumberOrText)
    }
}

/// A run of the job. It is one line of the plot.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Run {
    /// The name of the run in tables and legends.
    pub name: String,
    /// The preset. If it is absent, the run uses the engine's default preset.
    pub preset: Option<String>,
    /// Whether to measure the run twice, to find the noise.
    #[serde(default)]
    pub noise: bool,
    /// Build options that differ from the build options of the job.
    #[serde(default)]
    pub build: Build,
    /// Search options that differ from the search options of the job.
    #[serde(default)]
    pub search: Search,
    /// The insert strategy: `merge`, `in-place`, `relocate` or `accumulate`. Default: the preset's.
    pub update: Option<String>,
    /// How a list is pruned when a neighbour joins it: `delta` or `full`.
    pub pruning: Option<String>,
    /// Whether inserts continue while their pages are written (`behind`), or wait (`waited`).
    pub writes: Option<String>,
    /// Keys that differ from the table `[timeline]` of the job.
    pub timeline: Option<TimelineKeys>,
    /// Keys that differ from the table `[breakdown]` of the job.
    pub breakdown: Option<BreakdownKeys>,
}

/// A job whose names and options have been checked.
#[derive(Debug, Clone)]
pub struct Plan {
    /// The file of the job.
    pub file: PathBuf,
    /// The name of the result files.
    pub name: String,
    /// The heading of the plot.
    pub title: String,
    /// Recalls at which the runs are compared.
    pub targets: Vec<f64>,
    /// The number of repeats of every measurement.
    pub repeat: usize,
    /// The vectors.
    pub base: PathBuf,
    /// The queries.
    pub queries: PathBuf,
    /// The file of the exact neighbours of the queries; `None` for live updates.
    pub truth: Option<PathBuf>,
    /// The metric.
    pub metric: Metric,
    /// The runs.
    pub runs: Vec<PlannedRun>,
}

/// A run, with the options of the job where the run sets none.
#[derive(Debug, Clone)]
pub struct PlannedRun {
    /// The name of the run.
    pub name: String,
    /// The preset of the run.
    pub preset: Preset,
    /// Whether the run is measured twice, to find the noise of the measurements.
    pub noise: bool,
    /// Build options. `order` is set, and `layout` and `compression` unless the build chooses them.
    pub build: Build,
    /// Search options. `k`, `lists` and `threads` are always set.
    pub search: Search,
    /// The measurement of a run with live updates.
    pub live: Option<LiveRun>,
}

/// Reads and checks a job.
pub fn read(path: &Path, data_root: Option<&Path>) -> Result<Plan, Failure> {
    let text = std::fs::read_to_string(path).map_err(|error| match error.kind() {
        ErrorKind::InvalidData => Failure::Wrong(format!(
            "{} is not a text file, so it is not a job. Give a TOML file as in bench/README.md",
            path.display()
        )),
        _ => Failure::file("read the job", path, &error),
    })?;
    let job: Job = toml::from_str(&text).map_err(|error| {
        Failure::Wrong(format!(
            "{} is not a valid job: {}",
            path.display(),
            error.to_string().trim_end()
        ))
    })?;
    let folder = path.parent().unwrap_or(Path::new("."));
    plan(job, folder, data_root)
        .map(|plan| Plan {
            file: path.to_owned(),
            ..plan
        })
        .map_err(|message| Failure::Wrong(format!("{}: {message}", path.display())))
}

fn plan(job: Job, folder: &Path, data_root: Option<&Path>) -> Result<Plan, String> {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    if job.name.is_empty() || job.name.starts_with('.') || !job.name.chars().all(plain) {
        return Err(format!(
            "name = \"{}\" cannot name the result files. Use letters, digits, '-', '_' and '.'",
            job.name
        ));
    }
    let root = match (data_root, &job.data.root) {
        (Some(root), _) => root.to_path_buf(),
        (None, Some(root)) => folder.join(root),
        (None, None) => folder.to_path_buf(),
    };
    let find = |file: &Path| {
        let path = root.join(file);
        if path.is_file() {
            return Ok(path.canonicalize().unwrap_or(path));
        }
        Err(format!(
            "[data] {} is not at {}. Change root, or set STRATANN_DATA to the folder of the file",
            file.display(),
            path.display()
        ))
    };
    if let Some(target) = job
        .targets
        .iter()
        .find(|target| !(**target > 0.0 && **target <= 1.0))
    {
        return Err(format!(
            "targets: {target} is not a recall. Give numbers above 0 and up to 1, such as 0.95"
        ));
    }
    if job.repeat == Some(0) {
        return Err("repeat = 0 would measure nothing. Give at least 1".into());
    }
    let live = job.timeline.is_some() || job.breakdown.is_some();
    if live {
        // A key without effect is refused. Otherwise, a reader of the job could believe that it
        // affected the measurement.
        for (key, given) in [
            ("repeat", job.repeat.is_some()),
            ("targets", !job.targets.is_empty()),
            ("[data] truth", job.data.truth.is_some()),
            ("[search]", job.search != Search::default()),
        ] {
            if given {
                return Err(format!(
                    "{key} does not apply to a job with [timeline] or [breakdown]. Remove it"
                ));
            }
        }
    }
    if job.runs.is_empty() {
        return Err("[[run]] is missing. Give at least one run".into());
    }
    let mut runs = Vec::new();
    for run in &job.runs {
        runs.push(
            planned(&job, run).map_err(|message| format!("run \"{}\": {message}", run.name))?,
        );
    }
    for (i, run) in runs.iter().enumerate() {
        if runs[..i].iter().any(|other| other.name == run.name) {
            return Err(format!(
                "two runs have the name \"{}\". Give each run a different name",
                run.name
            ));
        }
    }
    Ok(Plan {
        file: PathBuf::new(),
        base: find(&job.data.base)?,
        queries: find(&job.data.queries)?,
        truth: match &job.data.truth {
            Some(truth) => Some(find(truth)?),
            None if live => None,
            None => {
                return Err("[data] truth is missing. Make the file with `stratann truth`".into());
            }
        },
        metric: job
            .data
            .metric
            .parse()
            .map_err(|error| format!("[data] metric: {error}"))?,
        title: job.title.unwrap_or_else(|| job.name.clone()),
        name: job.name,
        targets: job.targets,
        repeat: job.repeat.unwrap_or(if live { 1 } else { 3 }),
        runs,
    })
}

fn planned(job: &Job, run: &Run) -> Result<PlannedRun, String> {
    let preset = match &run.preset {
        Some(name) => name.parse::<Preset>().map_err(|error| error.to_string())?,
        None => Preset::default(),
    };
    let live = keys::planned(&keys::Said {
        timeline: job.timeline.as_ref(),
        breakdown: job.breakdown.as_ref(),
        run_timeline: run.timeline.as_ref(),
        run_breakdown: run.breakdown.as_ref(),
        update: run.update.as_deref(),
        pruning: run.pruning.as_deref(),
        writes: run.writes.as_deref(),
    })?;
    let (mut build, mut search) = (run.build.clone(), run.search.clone());
    if let Some(live) = &live {
        if run.noise || search != Search::default() {
            let key = if run.noise { "noise" } else { "search" };
            return Err(format!(
                "{key} does not apply to a job with [timeline] or [breakdown]. Remove it"
            ));
        }
        let (list, threads) = live.search();
        search.k = Some(keys::K);
        search.lists = Some(vec![list]);
        search.threads = Some(threads);
    }
    build.inherit(&job.build);
    search.inherit(&job.search);
    let order = match &build.order {
        Some(order) => order.parse::<Order>().map_err(|error| error.to_string())?,
        None => preset.order,
    };
    build.order = Some(order.to_string());
    choose_layout(&mut build, &preset)?;
    if let Some(strategy) = &search.strategy {
        strategy
            .parse::<Strategy>()
            .map_err(|error| error.to_string())?;
    }
    if let Some(io) = &search.io {
        io.parse::<stratann::IoMode>()
            .map_err(|error| error.to_string())?;
    }
    if let Some(place) = &search.place {
        place.parse::<stratann::Places>()?;
    }
    for (name, bytes) in [
        ("memory", &build.memory),
        ("search_memory", &build.search_memory),
        ("space", &build.space),
        ("memory", &search.memory),
        ("cache", &search.cache),
    ] {
        if let Some(bytes) = bytes {
            size::parse(bytes).map_err(|message| format!("{name}: {message}"))?;
        }
    }
    if let Some(Entries(entries)) = &search.cache_entries {
        entries
            .parse::<CacheEntries>()
            .map_err(|message| format!("cache_entries: {message}"))?;
        if search.cache.is_some() {
            return Err(
                "cache and cache_entries both set the size of the cache. Give one of them".into(),
            );
        }
    }
    let k = *search.k.get_or_insert(10);
    let lists = search.lists.get_or_insert_with(|| vec![20, 40, 60, 100]);
    if k == 0 || lists.is_empty() {
        return Err(
            "k = 0, or lists is empty. Give k of 1 or more, and at least one list size".into(),
        );
    }
    let clusters = clusters_of(&build, &preset);
    if let Some(list) = lists.iter().find(|list| **list < k && !clusters) {
        return Err(format!(
            "list size {list} is smaller than k = {k}. Give a list size of at least {k}"
        ));
    }
    search.threads.get_or_insert(1);
    Ok(PlannedRun {
        name: run.name.clone(),
        preset,
        noise: run.noise,
        build,
        search,
        live,
    })
}

fn clusters_of(build: &Build, preset: &Preset) -> bool {
    let named = build.layout.as_ref().and_then(|name| name.parse().ok());
    let layout: Option<Layout> = named.or(preset.layout);
    layout.is_some_and(Layout::has_clusters)
}

impl PlannedRun {
    /// Whether the index of the run has clusters, so that `lists` are numbers of probes.
    pub fn has_clusters(&self) -> bool {
        clusters_of(&self.build, &self.preset)
    }
}

fn choose_layout(build: &mut Build, preset: &Preset) -> Result<(), String> {
    let layout = match &build.layout {
        Some(layout) => Some(
            layout
                .parse::<Layout>()
                .map_err(|error| error.to_string())?,
        ),
        None => preset.layout,
    };
    let as_they_are = layout.is_some_and(|layout| !layout.is_encoded());
    let compression = match &build.compression {
        Some(compression) => compression
            .parse::<Compression>()
            .map_err(|error| error.to_string())?,
        // The preset's compression is only for layouts that support it.
        None if as_they_are => Compression::Raw,
        None => preset.compression,
    };
    if as_they_are && compression != Compression::Raw {
        return Err(format!(
            "compression = \"{compression}\" is given, but the layouts coupled, inline and csr, and all layouts of clusters, support only \"raw\". Give layout = \"packed\" \
             or \"decoupled\""
        ));
    }
    build.layout = layout.map(|layout| layout.to_string());
    // `search_memory` may select a layout that supports only raw vectors.
    let open = layout.is_none() && build.search_memory.is_some();
    if !open {
        build.compression = Some(compression.to_string());
    }
    Ok(())
}

impl Build {
    fn inherit(&mut self, other: &Build) {
        let Build {
            degree,
            build_list,
            alpha,
            code_bytes,
            order,
            layout,
            compression,
            segment,
            navigation,
            memory,
            search_memory,
            space,
            cluster_size,
            replicas,
            query_log,
            threads,
            seed,
        } = other.clone();
        if self.space.is_none() {
            self.degree = self.degree.or(degree);
        }
        self.build_list = self.build_list.or(build_list);
        self.alpha = self.alpha.or(alpha);
        self.code_bytes = self.code_bytes.or(code_bytes);
        self.order = self.order.take().or(order);
        self.layout = self.layout.take().or(layout);
        self.compression = self.compression.take().or(compression);
        self.segment = self.segment.take().or(segment);
        self.navigation = self.navigation.or(navigation);
        self.memory = self.memory.take().or(memory);
        self.search_memory = self.search_memory.take().or(search_memory);
        // If a run sets the degree or the space, it inherits neither of the two from the job.
        if self.degree.is_none() {
            self.space = self.space.take().or(space);
        }
        self.cluster_size = self.cluster_size.or(cluster_size);
        self.replicas = self.replicas.or(replicas);
        self.query_log = self.query_log.take().or(query_log);
        self.threads = self.threads.or(threads);
        self.seed = self.seed.or(seed);
    }
}

impl Search {
    fn inherit(&mut self, other: &Search) {
        let Search {
            k,
            lists,
            beam,
            strategy,
            nav,
            whole_page,
            stop_early,
            rerank_ratio,
            low_list,
            refine,
            threads,
            in_flight,
            memory,
            cache,
            cache_entries,
            parts,
            io,
            place,
        } = other.clone();
        self.k = self.k.or(k);
        self.lists = self.lists.take().or(lists);
        self.beam = self.beam.or(beam);
        self.strategy = self.strategy.take().or(strategy);
        self.nav = self.nav.or(nav);
        self.whole_page = self.whole_page.or(whole_page);
        self.stop_early = self.stop_early.or(stop_early);
        self.rerank_ratio = self.rerank_ratio.or(rerank_ratio);
        self.low_list = self.low_list.or(low_list);
        self.refine = self.refine.or(refine);
        self.threads = self.threads.or(threads);
        self.in_flight = self.in_flight.or(in_flight);
        self.memory = self.memory.take().or(memory);
        // If a run sets one form of the cache size, it inherits neither form from the job.
        if self.cache.is_none() && self.cache_entries.is_none() {
            self.cache = cache;
            self.cache_entries = cache_entries;
        }
        self.parts = self.parts.or(parts);
        self.io = self.io.take().or(io);
        self.place = self.place.take().or(place);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const JOB: &str = r#"
        name = "tiny"
        [data]
        base = "b.u8bin"
        queries = "q.u8bin"
        truth = "t.bin"
        metric = "l2"
        [build]
        degree = 32
        alpha = 1.1
        [search]
        lists = [10, 20]
        threads = 2
        cache_entries = "1%"
        [[run]]
        name = "a"
        preset = "diskann"
        [[run]]
        name = "b"
        build = { degree = 16, order = "input" }
        search = { lists = [40], nav = false, cache = "2MB" }
        [[run]]
        name = "c"
        preset = "decouplevs"
        build = { compression = "best" }
        search = { parts = true, cache_entries = 30 }
    "#;

    fn planned_from(text: &str) -> Result<Plan, String> {
        let folder = tempfile::tempdir().unwrap();
        for file in ["b.u8bin", "q.u8bin", "t.bin"] {
            std::fs::write(folder.path().join(file), b"x").unwrap();
        }
        let job: Job = toml::from_str(text).map_err(|error| error.to_string())?;
        plan(job, folder.path(), None)
    }

    #[test]
    fn runs_inherit_from_the_job() {
        let plan = planned_from(JOB).unwrap();
        assert_eq!(plan.repeat, 3);
        let [a, b, c] = &plan.runs[..] else { panic!() };
        assert_eq!(
            (a.preset.name, a.build.degree, a.build.order.as_deref()),
            ("diskann", Some(32), Some("input"))
        );
        assert_eq!(a.search.lists.as_deref(), Some(&[10, 20][..]));
        assert_eq!((b.build.degree, b.build.alpha), (Some(16), Some(1.1)));
        assert_eq!(
            (b.search.threads, b.search.nav, b.search.k),
            (Some(2), Some(false), Some(10))
        );
        assert_eq!(b.preset, Preset::default());
        let cache = |run: &PlannedRun| {
            let entries = run.search.cache_entries.clone().map(|entries| entries.0);
            (run.search.cache.clone(), entries)
        };
        assert_eq!(cache(a), (None, Some("1%".into())));
        assert_eq!(cache(b), (Some("2MB".into()), None));
        assert_eq!(cache(c), (None, Some("30".into())));
        assert_eq!((a.search.parts, c.search.parts), (None, Some(true)));
    }

    #[test]
    fn indexes_are_told_apart_by_what_the_preset_chooses() {
        let plan = planned_from(JOB).unwrap();
        let chosen = |run: usize| {
            let build = &plan.runs[run].build;
            (build.layout.as_deref(), build.compression.as_deref())
        };
        assert_eq!(chosen(0), (Some("coupled"), Some("raw")));
        assert_eq!(chosen(1), (None, Some("best")));
        assert_eq!(chosen(2), (Some("decoupled"), Some("best")));
        // The coupled layout does not support stratann's compression.
        let coupled = JOB.replacen("degree = 16", "layout = \"coupled\"", 1);
        let build = &planned_from(&coupled).unwrap().runs[1].build;
        assert_eq!(build.compression.as_deref(), Some("raw"));
    }

    #[test]
    fn mistakes_are_named() {
        for (from, to, expected) in [
            ("degree = 32", "degre = 32", "degre"),
            ("\"diskann\"", "\"diskan\"", "diskan"),
            ("metric = \"l2\"", "metric = \"l3\"", "l3"),
            ("b.u8bin", "missing.u8bin", "STRATANN_DATA"),
            ("name = \"tiny\"", "name = \"../tiny\"", "letters"),
            ("name = \"b\"", "name = \"a\"", "different name"),
            ("lists = [40]", "lists = [4]", "smaller than k"),
            ("order = \"input\"", "order = \"inptu\"", "inptu"),
            ("order = \"input\"", "layout = \"pakced\"", "pakced"),
            ("order = \"input\"", "compression = \"zip\"", "zip"),
            (
                "order = \"input\"",
                "layout = \"coupled\", compression = \"best\"",
                "only \"raw\"",
            ),
            ("cache = \"2MB\"", "cache = \"2XB\"", "cache: 'XB'"),
            (
                "cache = \"2MB\"",
                "cache = \"2MB\", cache_entries = 3",
                "one of them",
            ),
            ("cache_entries = 30", "cache_entries = 0", "1 or more"),
            ("cache_entries = 30", "cache_entries = \"101%\"", "100%"),
            ("cache_entries = 30", "cache_entries = true", "such as"),
            ("lists = [40]", "memory = \"64XB\"", "XB"),
            ("lists = [40]", "strategy = \"worst-first\"", "worst-first"),
            ("lists = [40]", "io = \"tape\"", "tape"),
            ("name = \"tiny\"", "name = \"tiny\"\ntargets = [95]", "95"),
            (
                "name = \"tiny\"",
                "name = \"tiny\"\nrepeat = 0",
                "at least 1",
            ),
        ] {
            assert!(JOB.contains(from), "{from}");
            let error = planned_from(&JOB.replacen(from, to, 1)).unwrap_err();
            assert!(error.contains(expected), "{to}: {error}");
        }
    }

    #[test]
    fn jobs_of_this_repository_are_whole() {
        let bench = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../bench"));
        let mut jobs = 0;
        for entry in std::fs::read_dir(bench).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_none_or(|extension| extension != "toml") {
                continue;
            }
            let text = std::fs::read_to_string(&path).unwrap();
            let job: Job =
                toml::from_str(&text).unwrap_or_else(|error| panic!("{path:?}: {error}"));
            let data = tempfile::tempdir().unwrap();
            let truth = job.data.truth.iter();
            for file in [&job.data.base, &job.data.queries].into_iter().chain(truth) {
                std::fs::write(data.path().join(file), b"x").unwrap();
            }
            let name = job.name.clone();
            assert_eq!(path.file_stem().unwrap().to_str(), Some(name.as_str()));
            plan(job, bench, Some(data.path())).unwrap_or_else(|error| panic!("{path:?}: {error}"));
            jobs += 1;
        }
        assert!(jobs >= 12, "{jobs}");
    }
}
