//! The arguments of the command, with aliases that users of DiskANN and other engines know.

mod advise;
mod create;
mod servers;

pub use advise::AdviseArguments;
pub use create::CreateArguments;
pub use servers::{
    ClusterCommand, ClusterDeleteArguments, ClusterSearchArguments, ClusterUpsertArguments,
    ComputeArguments, ComputeServerArguments, ListenArguments, ReachArguments,
    StorageServerArguments, UpArguments,
};

use std::path::{Path, PathBuf};

use clap::{Args, Parser, Subcommand};
use stratann::{
    Compression, Error, Filter, JsonColumns, Layout, LowCodes, Metric, Order, Places, Preset,
    Strategy, Way, bounds,
};
use stratann_terminal::failure::Failure;
use stratann_terminal::size::{self, CacheEntries};

use crate::ids;
use crate::names::{self, IoName, RerankName};

/// Vector search for collections that do not fit in RAM.
#[derive(Debug, Parser)]
#[command(
    name = "stratann",
    version,
    about,
    propagate_version = true,
    arg_required_else_help = true
)]
#[command(after_help = "Exit status: 0 success, 1 failure, 2 wrong arguments.")]
pub struct Arguments {
    /// Shows no progress and no warnings
    #[arg(short, long, global = true)]
    pub quiet: bool,

    /// The command to run
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Builds an index directory from a file of vectors
    Build(BuildArguments),
    /// Creates an index without vectors; `stratann insert` adds them
    Create(CreateArguments),
    /// Estimates the memory and storage that a build will need, and builds nothing
    Plan(PlanArguments),
    /// Trains a codebook that several indexes can share
    Train(TrainArguments),
    /// Searches indexes, and measures recall, speed, latency and reads
    Search(SearchArguments),
    /// Computes the exact nearest neighbours by brute force
    Truth(TruthArguments),
    /// Inserts vectors into an index
    Insert(InsertArguments),
    /// Deletes vectors from an index, by their ids or by a filter
    Delete(DeleteArguments),
    /// Replaces all or some attributes of the vectors with given ids
    SetAttributes(SetAttributesArguments),
    /// Prints vectors of an index, writes them to a file, or lists their ids
    Get(GetArguments),
    /// Counts the vectors in an index, or the vectors that match a filter
    Count(CountArguments),
    /// Merges inserts and deletes into a new checkpoint, and frees the space of deleted vectors
    Compact(CompactArguments),
    /// Measures the recall that searches reach with each list size, for `search --recall`
    Calibrate(CalibrateArguments),
    /// Prints the settings of an index and the sizes of its parts, or lists the indexes in a
    /// directory
    Stats(StatsArguments),
    /// Reads every byte of an index and reports damage
    Verify(VerifyArguments),
    /// Rebuilds a damaged index from its readable vectors, and reports which vectors were lost
    Repair(RepairArguments),
    /// Makes a consistent copy of an index, while other processes may search and change the index
    Snapshot(SnapshotArguments),
    /// Writes all vectors of an index to a file, and their ids and attributes to files beside it
    Export(ExportArguments),
    /// Runs a benchmark job: builds and searches indexes, and makes tables, JSON and a plot
    Bench(BenchArguments),
    /// Tries presets on a sample of vectors, recommends a preset for a device, and estimates the
    /// costs of each preset
    Advise(AdviseArguments),
    /// Lists the copies of index files on a tier, and with `--remove` removes copies that no
    /// process uses
    Copies(CopiesArguments),
    /// Serves memory of this machine to searches in other processes, here or on other machines.
    /// With an index, serves the adjacency lists and high-precision codes of the index to compute
    /// servers
    MemoryServer(MemoryServerArguments),
    /// Re-ranks candidates for compute servers, with the exact vectors of an index
    StorageServer(StorageServerArguments),
    /// Answers queries of clients; needs a memory server, and a storage server or the index
    ComputeServer(ComputeServerArguments),
    /// Starts all servers of an index on this machine, or sends searches or changes to compute
    /// servers
    #[command(subcommand)]
    Cluster(ClusterCommand),
    /// Lists the presets, with the layout, search strategy and other settings of each
    Presets(PresetsArguments),
    /// Prints a completion script for a shell
    Completions(CompletionsArguments),
}

const FILES: &str = "Files of vectors: .fbin .u8bin .i8bin .hbin .fvecs .bvecs .npy. The extension determines the format.";
const SIZES: &str =
    "Sizes: bytes, or a number with kB, MB, GB (powers of 1000) or KiB, MiB, GiB (powers of 1024).";

fn files_and_sizes() -> String {
    format!("{FILES}\n{SIZES}")
}

/// `stratann build`
#[derive(Debug, Args)]
#[command(after_help = format!("{FILES}\n{IDS}\n{SIZES}"))]
pub struct BuildArguments {
    /// The file of vectors to index
    pub base: PathBuf,

    /// The index: a directory that the command creates
    pub index: PathBuf,

    #[command(flatten)]
    pub shape: ShapeArguments,

    /// The id of the first row; each later row has the next number. Indexes that are searched
    /// together should have no id in common
    #[arg(long, default_value_t = 0, value_name = "ID")]
    pub first_id: u64,

    /// A file with the id of each row; with --vectors, the Parquet column of the ids [default: the
    /// row numbers, counted from --first-id]
    #[arg(long, value_name = "FILE|COLUMN", conflicts_with = "first_id")]
    pub ids: Option<PathBuf>,

    /// If BASE is a Parquet file: the column of the vectors. The column has lists of floats of 16,
    /// 32 or 64 bits, or of 8-bit integers
    #[arg(long = "vectors", value_name = "COLUMN")]
    pub column: Option<String>,

    #[command(flatten)]
    pub rows: RowArguments,

    #[command(flatten)]
    pub places: PlaceArguments,

    /// Replaces the index if it exists already
    #[arg(long)]
    pub overwrite: bool,

    /// Skips the measurement of the recall that each list size reaches. `search --recall` needs
    /// this measurement, which `stratann calibrate` can make later
    #[arg(long)]
    pub no_calibrate: bool,

    /// Writes savepoints during the build. If an earlier build of the same vectors with the same
    /// options was killed or interrupted, continues from its last savepoint
    #[arg(long)]
    pub resume: bool,

    /// With --resume: the minimum time between two savepoints of the graph, in seconds. With 0, the
    /// build writes savepoints as often as possible
    #[arg(
        long,
        value_name = "SECONDS",
        default_value_t = 120.0,
        requires = "resume"
    )]
    pub savepoint_seconds: f64,

    /// Prints the report as one JSON object
    #[arg(long)]
    pub json: bool,
}

/// The shape of an index, for `stratann build`, `stratann create` and `stratann plan`.
#[derive(Debug, Args)]
pub struct ShapeArguments {
    /// The preset, which sets order, layout, compression and the defaults of searches (see
    /// `stratann presets`)
    #[arg(short, long, value_parser = names::preset(), default_value = Preset::default().name)]
    pub preset: Preset,

    /// The metric that measures distances
    #[arg(short, long, value_parser = names::metric(), default_value = "l2", visible_aliases = ["distance", "dist-fn"])]
    pub metric: Metric,

    /// R: the maximum number of neighbours of a node [default: 64. If --search-memory is too small
    /// for all codes: as many as fit in the storage blocks of a node]
    #[arg(short = 'R', long, value_name = "R", value_parser = at_least_one,
          visible_aliases = ["max-degree", "graph-degree"])]
    pub degree: Option<usize>,

    /// L of the build: the number of candidates that the build keeps while it searches for a node's
    /// neighbours
    #[arg(short = 'L', long, default_value_t = 100, value_name = "L", value_parser = list_size,
          visible_aliases = ["complexity", "lbuild"])]
    pub build_list: usize,

    /// The pruning factor. A larger value keeps more long edges, so that searches take fewer hops
    #[arg(long, default_value_t = 1.2, value_name = "A")]
    pub alpha: f32,

    /// Bytes of the product-quantised code of a vector [default: a quarter of the dimension]
    #[arg(long, value_name = "B", value_parser = at_least_one, visible_aliases = ["pq-bytes", "num-pq-chunks"])]
    pub code_bytes: Option<usize>,

    /// With a preset that has codes of two precisions (distvs): the kind of the low-precision
    /// codes. --code-bytes then sets the length of the high-precision codes [default: nested]
    #[arg(long, value_parser = names::low_codes())]
    pub low_codes: Option<LowCodes>,

    /// A codebook file from `stratann train`; the build then trains no codebook. Indexes with the
    /// same codebook share one copy in memory
    #[arg(long, value_name = "FILE")]
    pub codebook: Option<PathBuf>,

    /// The order of nodes on storage [default: set by the preset]
    #[arg(long, value_parser = names::order())]
    pub order: Option<Order>,

    /// The layout of adjacency lists and vectors on storage [default: set by the preset; with the
    /// preset stratann, the build chooses a layout that suits the vectors]
    #[arg(long, value_parser = names::layout())]
    pub layout: Option<Layout>,

    /// The lossless compression of adjacency lists and vectors [default: set by the preset; raw in
    /// the layouts coupled, inline and csr]
    #[arg(long, value_parser = names::compression())]
    pub compression: Option<Compression>,

    /// C of the decoupled layout: the size of a chunk of vectors before compression
    #[arg(long, value_name = "BYTES", value_parser = size::parse, default_value = "4MiB",
          visible_alias = "chunk-size")]
    pub chunk: u64,

    /// The maximum size of the chunk table in memory, as a share of the size of all uncompressed
    /// vectors, for example 0.001. The build chooses the smallest chunk size that allows this share
    #[arg(long, value_name = "BETA", conflicts_with = "chunk")]
    pub chunk_overhead: Option<f64>,

    /// The size of a segment of vectors before compression; each segment has one trained codec
    #[arg(long, value_name = "BYTES", value_parser = size::parse, default_value = "512MiB",
          visible_alias = "segment-size")]
    pub segment: u64,

    /// The share of the vectors in the navigation graph, which gives `search --nav` its entry
    /// points. With 0, the build makes no navigation graph
    #[arg(
        long,
        default_value_t = 0.01,
        value_name = "FRACTION",
        visible_alias = "nav"
    )]
    pub navigation: f64,

    /// Cap on the memory of the build
    #[arg(long, value_name = "BYTES", value_parser = size::parse)]
    pub memory: Option<u64>,

    /// The memory that searches will have. If this memory is too small for all codes, the preset
    /// stratann stores the codes on storage, in the records of the nodes. For large vectors, the
    /// memory also decides whether each vector is stored whole or in two parts
    #[arg(long, value_name = "BYTES", value_parser = size::parse)]
    pub search_memory: Option<u64>,

    /// The maximum size of the index on storage. The build chooses the largest degree, from 16 to
    /// 96, with which the estimated index fits
    #[arg(long, value_name = "BYTES", value_parser = size::parse, conflicts_with = "degree")]
    pub space: Option<u64>,

    /// In a layout of clusters: the approximate number of vectors per cluster [default: 12 if each
    /// vector is stored in all of its clusters, else 32]
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    pub cluster_size: Option<usize>,

    /// In a layout of clusters: the maximum number of clusters that a vector belongs to [default:
    /// 8]
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    pub replicas: Option<usize>,

    /// For the grouped layout: a file of recorded queries. A vector can belong to several clusters;
    /// the build stores it with the cluster that these queries probe most often
    #[arg(long, value_name = "FILE", visible_alias = "frequencies")]
    pub query_log: Option<PathBuf>,

    /// The number of threads [default: one for each core]
    #[arg(short = 'T', long, value_name = "N", value_parser = threads, visible_alias = "num-threads")]
    pub threads: Option<usize>,

    /// The seed of all random choices. Two builds with one thread and the same seed make the same
    /// index
    #[arg(long, default_value_t = 42, value_name = "N")]
    pub seed: u64,
}

/// `stratann plan`
#[derive(Debug, Args)]
#[command(after_help = files_and_sizes())]
pub struct PlanArguments {
    /// The file of vectors to index
    pub base: PathBuf,

    /// A file with the id of each row; with --vectors, the Parquet column of the ids
    #[arg(long, value_name = "FILE|COLUMN")]
    pub ids: Option<PathBuf>,

    /// If BASE is a Parquet file: the column of the vectors
    #[arg(long = "vectors", value_name = "COLUMN")]
    pub column: Option<String>,

    #[command(flatten)]
    pub shape: ShapeArguments,

    #[command(flatten)]
    pub rows: RowArguments,

    /// Prints the result as one JSON object
    #[arg(long)]
    pub json: bool,
}

/// `stratann train`
#[derive(Debug, Args)]
#[command(after_help = FILES)]
pub struct TrainArguments {
    /// The file of vectors to train on. Training uses a sample of up to 100,000 rows, spread evenly
    /// over the file; fewer rows if vectors have more than 128 dimensions
    pub base: PathBuf,

    /// The codebook file to write, for `stratann build --codebook`
    pub codebook: PathBuf,

    /// Bytes of the product-quantised code of a vector [default: a quarter of the dimension]
    #[arg(long, value_name = "B", value_parser = at_least_one, visible_aliases = ["pq-bytes", "num-pq-chunks"])]
    pub code_bytes: Option<usize>,

    /// For a preset that has codes of two precisions (distvs): the kind of the low-precision codes.
    /// --code-bytes then sets the length of the high-precision codes
    #[arg(long, value_parser = names::low_codes())]
    pub low_codes: Option<LowCodes>,

    /// The metric that measures distances
    #[arg(short, long, value_parser = names::metric(), default_value = "l2", visible_aliases = ["distance", "dist-fn"])]
    pub metric: Metric,

    /// The number of threads, which does not affect the result [default: one for each core]
    #[arg(short = 'T', long, value_name = "N", value_parser = threads, visible_alias = "num-threads")]
    pub threads: Option<usize>,

    /// The seed of all random choices
    #[arg(long, default_value_t = 42, value_name = "N")]
    pub seed: u64,

    /// Replaces the file if it exists already
    #[arg(long)]
    pub overwrite: bool,

    /// Prints the properties of the codebook as one JSON object
    #[arg(long)]
    pub json: bool,
}

/// `stratann search`
#[derive(Debug, Args)]
#[command(after_help = files_and_sizes())]
#[command(override_usage = "stratann search [OPTIONS] <INDEX>... <QUERIES>")]
pub struct SearchArguments {
    /// The index directory, then the file of query vectors. Several indexes, or directories of
    /// indexes, are searched as one index. All indexes need the same dimension, element type and
    /// metric
    // If options were between the paths, clap could not tell two lists of paths apart.
    #[arg(required = true, value_name = "INDEX.. QUERIES")]
    pub files: Vec<PathBuf>,

    /// If QUERIES is a Parquet file: the column of the vectors
    #[arg(long = "vectors", value_name = "COLUMN", conflicts_with = "like")]
    pub column: Option<String>,

    /// The number of neighbours to find for each query
    #[arg(short = 'k', long = "k", default_value_t = 10, value_name = "K", value_parser = at_least_one,
          visible_aliases = ["recall-at", "k-neighbors"])]
    pub k: usize,

    /// L: the number of candidates that a search keeps; in a cluster index, the number of clusters
    /// to probe. Several values, for example 20,40,60, are measured one after the other [default:
    /// 100, or k if k is larger]
    #[arg(short = 'L', long, value_name = "L,..", value_delimiter = ',', value_parser = list_size,
          visible_aliases = ["search-list", "list-size"])]
    pub list: Vec<usize>,

    /// In a cluster index: the number of clusters to probe, which may be below k. Several values,
    /// for example 8,16, are measured one after the other [default: the value of --list if given;
    /// else 32, or k if k is larger]
    #[arg(long, value_name = "N,..", value_delimiter = ',', value_parser = list_size, conflicts_with = "list")]
    pub probes: Vec<usize>,

    /// The recall to reach, above 0 and up to 1: the share of the true nearest neighbours that
    /// searches find. The measurements of the build or of `stratann calibrate` give the list size
    /// of each query. With --truth, the recall is also measured
    #[arg(long, value_name = "F", conflicts_with_all = ["list", "probes"])]
    pub recall: Option<f64>,

    /// Finds the smallest list size (in a cluster index, the smallest number of probes) with which
    /// these queries reach --recall. Needs --truth
    #[arg(long, requires_all = ["recall", "truth"])]
    pub find_list: bool,

    /// A condition that the attributes of results must match, such as "year >= 2020 and tags
    /// contains 'sea'". If one of several indexes lacks a column of the condition, the vectors of
    /// this index have no value in the column. The file of --truth must contain only matching
    /// vectors
    #[arg(long, value_name = "TEXT", value_parser = filter)]
    pub filter: Option<Filter>,

    /// Finds the vectors within this exact distance of each query, instead of the k nearest.
    /// Searches of a graph or of clusters may miss some of these vectors. Prints results as --print
    /// does, but a query with many results has several tables or lines
    #[arg(long, value_name = "DISTANCE", allow_negative_numbers = true,
          conflicts_with_all = ["k", "recall", "truth", "out", "explain", "parts"])]
    pub within: Option<f32>,

    /// Uses the vectors with these ids as queries, instead of a file of queries. The results
    /// exclude these vectors. Prints results as --print does
    #[arg(long, value_name = "ID,..", value_delimiter = ',', value_parser = ids::one,
          conflicts_with_all = ["truth", "out", "explain", "parts", "find_list"])]
    pub like: Vec<u64>,

    /// Prints the filter strategy of the search (the order of filter and search), the cost of the
    /// search, and the reads to expect with each filter strategy. With --json, the output has these
    /// values even without --explain
    #[arg(long, requires = "filter")]
    pub explain: bool,

    /// Uses this filter strategy instead of the one with the least expected cost. For comparisons,
    /// as in bench/filters.py
    #[arg(long, hide = true, requires = "filter", value_parser = names::way())]
    pub way: Option<Way>,

    /// Ground truth to measure recall against (big-ann .bin, .ibin or .ivecs)
    #[arg(long, value_name = "FILE", visible_aliases = ["groundtruth", "gt-file"])]
    pub truth: Option<PathBuf>,

    /// Measures recall without --truth. After the searches with each list size, compares the
    /// results of N queries with exact results by brute force. For one index only
    #[arg(long, value_name = "N", value_parser = watched, conflicts_with_all = ["within", "like", "find_list", "print"])]
    pub watch_recall: Option<usize>,

    /// Takes the defaults of search options from this preset [default: the preset with which the
    /// index was built]
    #[arg(short, long, value_parser = names::preset())]
    pub preset: Option<Preset>,

    /// W: the number of nodes that a search reads at once; for a pipelined search, the maximum
    /// number [default: set by the preset]
    #[arg(short = 'W', long, value_name = "W", value_parser = beam, visible_alias = "beam-width")]
    pub beam: Option<usize>,

    /// The search strategy: the order in which a search reads nodes [default: set by the preset]
    #[arg(long, value_parser = names::strategy())]
    pub strategy: Option<Strategy>,

    /// Starts each search at nodes that the navigation graph finds [default: set by the preset]
    #[arg(long, overrides_with = "no_nav")]
    pub nav: bool,

    /// Does not use the navigation graph. A search starts at the graph's entry node, or near the
    /// nearest of the --seeds nodes
    #[arg(long, overrides_with = "nav")]
    pub no_nav: bool,

    /// When a search reads a page for a node, it uses all nodes on the page [default: set by the
    /// preset]
    #[arg(long, overrides_with = "no_whole_page")]
    pub whole_page: bool,

    /// When a search reads a page for a node, it uses only this node
    #[arg(long, overrides_with = "whole_page")]
    pub no_whole_page: bool,

    /// The number of threads [default: one for each core]
    #[arg(short = 'T', long, value_name = "N", value_parser = threads, visible_alias = "num-threads")]
    pub threads: Option<usize>,

    /// The number of queries in flight on each thread; 1 gives the lowest latency [default: up to
    /// 8, depending on the number of queries. With 256 or more queries per thread, the command
    /// measures which number is fastest]
    #[arg(long, value_name = "N", value_parser = in_flight)]
    pub in_flight: Option<usize>,

    /// If whole vectors are stored apart from adjacency lists: B, the number of candidates that are
    /// re-ranked in one batch [default: set by the preset]
    #[arg(long, value_name = "B", value_parser = list_size)]
    pub rerank_batch: Option<usize>,

    /// Ends re-ranking after a batch if less than this share of the batch entered the results. With
    /// 0, all candidates are re-ranked [default: set by the preset]
    #[arg(long, value_name = "F", value_parser = share)]
    pub benefit: Option<f64>,

    /// The condition that ends re-ranking [default: set by the preset]
    #[arg(long, value_enum)]
    pub rerank: Option<RerankName>,

    /// After the walk of the graph, re-ranks this share of the candidate list, and at least k
    /// candidates, in one batch. With 0, --rerank decides [default: set by the preset]
    #[arg(long, value_name = "F", value_parser = share)]
    pub rerank_ratio: Option<f64>,

    /// With the strategy press: the maximum number of candidates that low-precision codes rank, as
    /// a multiple of --list. DistVS uses 2 [default: 3]
    #[arg(long, value_name = "F")]
    pub low_list: Option<f64>,

    /// With the strategy press: the share of the candidates ranked by low-precision codes that
    /// high-precision codes then rank again, in each round of a search. DistVS uses 0.3 [default:
    /// 0.2]
    #[arg(long, value_name = "F")]
    pub refine: Option<f64>,

    /// Without --nav: the number of nodes whose codes a search compares first (the low-precision
    /// codes, if there are two kinds). The search starts near the nearest of these nodes. With 0,
    /// the search starts at the graph's entry node, as in DistVS [default: 64 with the strategy
    /// press, else 0]
    #[arg(long)]
    pub seeds: Option<usize>,

    /// Cap on the memory of the search, for all indexes together
    #[arg(long, value_name = "BYTES", value_parser = size::parse)]
    pub memory: Option<u64>,

    /// The size of the cache of each index. The cache has recently read adjacency lists, and the
    /// vectors stored beside these lists [default: no cache]
    #[arg(long, value_name = "BYTES", value_parser = size::parse)]
    pub cache: Option<u64>,

    /// The size of this cache in adjacency lists instead of bytes, or in percent of the vectors,
    /// for example 1%
    #[arg(long, value_name = "N", conflicts_with = "cache")]
    pub cache_entries: Option<CacheEntries>,

    /// The interface for reading pages
    #[arg(long, value_enum, default_value = "auto")]
    pub io: IoName,

    #[command(flatten)]
    pub places: PlaceArguments,

    /// Writes the ids and distances of results to this file in the ground-truth format. A .npy file
    /// gets only the ids. Distances are exact, as with --exact
    #[arg(long, value_name = "FILE")]
    pub out: Option<PathBuf>,

    /// Replaces the file of --out if it exists
    #[arg(long, requires = "out")]
    pub overwrite: bool,

    /// Prints the ids and distances of results instead of measurements: as a table, or with --json
    /// as one JSON line per query. Distances are exact, as with --exact
    #[arg(long)]
    pub print: bool,

    /// With --print, --within or --like: prints attributes beside each result. Without NAMES,
    /// prints all attributes and the payload; with NAMES, only these attributes
    /// (--attributes=price,tags)
    #[arg(long, value_name = "NAMES", num_args = 0..=1, require_equals = true, default_missing_value = "")]
    pub attributes: Option<String>,

    /// In the layered layout: makes all distances of results exact. For this, a search reads the
    /// trailing part of the vector of each result
    #[arg(long)]
    pub exact: bool,

    /// Ends a search when no remaining candidate is likely to become a result, in view of the
    /// likely error of its code. At the same list size, this saves reads and lowers recall a little
    #[arg(long)]
    pub stop_early: bool,

    /// Measures the time of each part of a query. The measurement slows queries slightly
    #[arg(long)]
    pub parts: bool,

    /// Prints one JSON object for each list size
    #[arg(long)]
    pub json: bool,

    /// With --json: prints additional, undocumented keys, which `stratann bench` reads
    #[arg(long, hide = true, requires = "json")]
    pub measure: bool,
}

impl SearchArguments {
    pub fn indexes(&self) -> &[PathBuf] {
        if !self.like.is_empty() {
            return &self.files;
        }
        self.files.split_last().map_or(&[], |(_, indexes)| indexes)
    }

    pub fn queries(&self) -> &Path {
        self.files.last().map_or(Path::new(""), PathBuf::as_path)
    }

    pub fn navigation(&self) -> Option<bool> {
        choice(self.nav, self.no_nav)
    }

    pub fn whole_page(&self) -> Option<bool> {
        choice(self.whole_page, self.no_whole_page)
    }
}

fn choice(yes: bool, no: bool) -> Option<bool> {
    match (yes, no) {
        (true, _) => Some(true),
        (_, true) => Some(false),
        _ => None,
    }
}

const IDS: &str = "A file of ids is a text with spaces, commas or line ends between the ids, or a .npy array of integers. The name - means the standard input.";

/// `stratann insert`
#[derive(Debug, Args)]
#[command(after_help = format!("{FILES}\n{IDS}\n{SIZES}"))]
pub struct InsertArguments {
    /// The index directory
    pub index: PathBuf,

    /// The file of vectors to insert
    pub vectors: PathBuf,

    /// A file with the id of each vector; with --vectors, the Parquet column of the ids [default:
    /// the numbers after the largest id that the index ever had]
    #[arg(long, value_name = "FILE|COLUMN")]
    pub ids: Option<PathBuf>,

    /// If VECTORS is a Parquet file: the column of the vectors. The column has lists of floats of
    /// 16, 32 or 64 bits, or of 8-bit integers
    #[arg(long = "vectors", value_name = "COLUMN")]
    pub column: Option<String>,

    /// If an id is in the index already, replaces its vector. Without this option, such an id is an
    /// error
    #[arg(long, requires = "ids")]
    pub upsert: bool,

    /// Continues an earlier insert of the same rows that was cut off: inserts the rows that are not
    /// in the index yet. Give the same options as before
    #[arg(long, conflicts_with = "upsert")]
    pub resume: bool,

    /// Inserts all rows, even if an earlier insert of the same rows was cut off. The index keeps
    /// the rows of the earlier insert, and forgets that it was cut off
    #[arg(long, conflicts_with_all = ["upsert", "resume", "ids"])]
    pub no_resume: bool,

    /// Inserts nothing. The index forgets that an insert of VECTORS was cut off, and keeps the
    /// inserted rows. VECTORS is the path of the file, which need not exist any more, or the name
    /// that `verify` prints
    #[arg(long, conflicts_with_all = ["upsert", "resume", "no_resume", "ids", "compact"])]
    pub forget: bool,

    #[command(flatten)]
    pub rows: RowArguments,

    #[command(flatten)]
    pub write: WriteArguments,

    /// After the insert, merges all changes into a new checkpoint, as `stratann compact` does
    #[arg(long)]
    pub compact: bool,

    /// Prints the result as one JSON object
    #[arg(long)]
    pub json: bool,
}

/// `stratann delete`
#[derive(Debug, Args)]
#[command(after_help = format!("{IDS}\n{SIZES}"))]
pub struct DeleteArguments {
    /// The index directory
    pub index: PathBuf,

    /// Ids of the vectors to delete, or one file of ids. If the name of the file is a number, write
    /// it as a path: ./5
    #[arg(value_name = "ID|FILE")]
    pub id: Vec<PathBuf>,

    /// A file of ids
    #[arg(long, value_name = "FILE", conflicts_with = "id")]
    pub ids: Option<PathBuf>,

    /// Deletes the vectors whose attributes match this condition, such as "year < 2020 and sold ==
    /// true". To count these vectors first, use `stratann count --filter`
    #[arg(long, value_name = "TEXT", value_parser = filter, conflicts_with_all = ["id", "ids"])]
    pub filter: Option<Filter>,

    #[command(flatten)]
    pub write: WriteArguments,

    /// After the changes, merges all changes into a new checkpoint, as `stratann compact` does
    #[arg(long)]
    pub compact: bool,

    /// Prints the result as one JSON object
    #[arg(long)]
    pub json: bool,
}

/// `stratann set-attributes`
#[derive(Debug, Args)]
#[command(after_help = format!("{IDS}\n{SIZES}"))]
pub struct SetAttributesArguments {
    /// The index directory
    pub index: PathBuf,

    /// A file of the new attributes, with the ids of their vectors: JSON lines with one object per
    /// vector, or Parquet, as for `build --attributes`. The name - means JSON lines on the standard
    /// input. Without `--keep`, a row also removes the attributes and the payload that the row does
    /// not name
    #[arg(value_name = "FILE")]
    pub rows: PathBuf,

    /// The JSON key, or the Parquet column, of the id
    #[arg(long, value_name = "KEY", default_value = "id")]
    pub id: String,

    /// A file with the id of each line or row, in order. The rows then need no key or column of ids
    #[arg(long, value_name = "FILE", conflicts_with = "id")]
    pub ids: Option<PathBuf>,

    /// Keeps the attributes that a row does not name, and the payload if the row has none. A null
    /// value removes its attribute
    #[arg(long)]
    pub keep: bool,

    /// The JSON key, or the Parquet column, of the payload, which may be any JSON
    #[arg(long, value_name = "KEY")]
    pub payload: Option<String>,

    /// The JSON keys, or Parquet columns, of times: ISO 8601, or microseconds since 1970.
    /// Timestamps and dates of a Parquet file are times without this option
    #[arg(long, value_name = "KEY,..", value_delimiter = ',')]
    pub times: Vec<String>,

    /// The JSON keys, or Parquet columns, to leave out
    #[arg(long, value_name = "KEY,..", value_delimiter = ',')]
    pub without: Vec<String>,

    #[command(flatten)]
    pub write: WriteArguments,

    /// After the changes, merges all changes into a new checkpoint, as `stratann compact` does
    #[arg(long)]
    pub compact: bool,

    /// Prints the result as one JSON object
    #[arg(long)]
    pub json: bool,
}

/// `stratann get`
#[derive(Debug, Args)]
#[command(after_help = format!("{IDS}\nIf another process changes the index during the command, the output shows the index as it was when the command started.\n{SIZES}"))]
pub struct GetArguments {
    /// The index directory
    pub index: PathBuf,

    /// Ids of the vectors to return, or one file of ids. If the name of the file is a number, write
    /// it as a path: ./5 [default: all vectors, by ascending id]
    #[arg(value_name = "ID|FILE")]
    pub id: Vec<PathBuf>,

    /// A file of ids
    #[arg(long, value_name = "FILE", conflicts_with = "id")]
    pub ids: Option<PathBuf>,

    /// Returns the vectors whose attributes match this condition, by ascending id, such as "year >=
    /// 2020 and tags contains 'sea'"
    #[arg(long, value_name = "TEXT", value_parser = filter, conflicts_with_all = ["id", "ids"])]
    pub filter: Option<Filter>,

    /// Prints only the ids, one per line. Other commands read this output as a file of ids
    #[arg(long, conflicts_with_all = ["out", "json"])]
    pub list: bool,

    /// Prints one JSON line per vector, with its id, attributes and payload, but without its
    /// elements
    #[arg(long, conflicts_with_all = ["out", "json", "list"])]
    pub attributes: bool,

    /// Writes the vectors to this file instead of printing them. Its extension is .fbin, .u8bin,
    /// .i8bin or .hbin, by the element type
    #[arg(long, value_name = "FILE")]
    pub out: Option<PathBuf>,

    /// Replaces the file of --out if it exists
    #[arg(long, requires = "out")]
    pub overwrite: bool,

    /// Cap on the memory of the process
    #[arg(long, value_name = "BYTES", value_parser = size::parse)]
    pub memory: Option<u64>,

    /// Prints one JSON line per vector, with its id and all of its elements
    #[arg(long)]
    pub json: bool,
}

/// `stratann count`
#[derive(Debug, Args)]
pub struct CountArguments {
    /// The index directory
    pub index: PathBuf,

    /// Counts only vectors whose attributes match this condition, such as "year >= 2020 and tags
    /// contains 'sea'" [default: counts all vectors]
    #[arg(long, value_name = "TEXT", value_parser = filter)]
    pub filter: Option<Filter>,

    /// Prints the result as one JSON object
    #[arg(long)]
    pub json: bool,
}

/// Attributes and payloads of the vectors of a file.
#[derive(Debug, Args)]
pub struct RowArguments {
    /// A file of the vectors' attributes, for filters: Parquet, or JSON lines with one object per
    /// vector. The name - means JSON lines on the standard input. Values are booleans, numbers,
    /// strings, and lists of strings or of whole numbers; in Parquet also timestamps and dates
    #[arg(long, value_name = "FILE")]
    pub attributes: Option<PathBuf>,

    /// The JSON key, or the Parquet column, of the payload, which may be any JSON. `get
    /// --attributes` prints payloads; filters cannot use them
    #[arg(long, value_name = "KEY", requires = "attributes")]
    pub payload: Option<String>,

    /// The JSON keys, or Parquet columns, of times: ISO 8601, or microseconds since 1970.
    /// Timestamps and dates of a Parquet file are times without this option
    #[arg(
        long,
        value_name = "KEY,..",
        value_delimiter = ',',
        requires = "attributes"
    )]
    pub times: Vec<String>,

    /// The JSON keys, or Parquet columns, to leave out
    #[arg(
        long,
        value_name = "KEY,..",
        value_delimiter = ',',
        requires = "attributes"
    )]
    pub without: Vec<String>,
}

impl RowArguments {
    pub fn columns(&self) -> JsonColumns {
        JsonColumns {
            times: self.times.iter().cloned().collect(),
            payload: self.payload.clone(),
            id: None,
            without: self.without.iter().cloned().collect(),
        }
    }
}

fn filter(text: &str) -> Result<Filter, Error> {
    Filter::parse(text)
}

/// `stratann calibrate`
#[derive(Debug, Args)]
#[command(after_help = files_and_sizes())]
pub struct CalibrateArguments {
    /// The index directory
    pub index: PathBuf,

    /// A file of queries that resemble future ones. The command searches up to 10,000 of them
    /// [default: vectors of the index; a search for such a vector leaves out the vector itself.
    /// Most graph indexes also use synthetic queries: a vector plus 0.2, 0.35 or 0.5 times the
    /// difference of two other vectors]
    pub queries: Option<PathBuf>,

    /// If QUERIES is a Parquet file: the column of the vectors
    #[arg(long = "vectors", value_name = "COLUMN", requires = "queries")]
    pub column: Option<String>,

    /// Cap on the memory of the index during the measurement
    #[arg(long, value_name = "BYTES", value_parser = size::parse)]
    pub memory: Option<u64>,

    /// The number of threads [default: one for each core]
    #[arg(short = 'T', long, value_name = "N", value_parser = threads, visible_alias = "num-threads")]
    pub threads: Option<usize>,

    /// Prints the measurements as one JSON object
    #[arg(long)]
    pub json: bool,
}

/// `stratann compact`
#[derive(Debug, Args)]
#[command(after_help = SIZES)]
pub struct CompactArguments {
    /// The index directory
    pub index: PathBuf,

    #[command(flatten)]
    pub write: WriteArguments,

    /// Prints the result as one JSON object
    #[arg(long)]
    pub json: bool,
}

/// The common options of commands that change an index.
#[derive(Debug, Args)]
pub struct WriteArguments {
    /// When changes become durable. always: each batch of rows, before the next batch begins. end:
    /// when the command ends. A number of milliseconds, such as 100ms: at most this long after a
    /// change
    #[arg(long, value_name = "WHEN", default_value = "end", value_parser = durability)]
    pub durability: stratann::Durability,

    /// When and how new vectors join the index on storage. merge: with the next `stratann compact`.
    /// relocate: immediately; changed records are written together to free slots, as in OdinANN.
    /// accumulate: immediately; changed lists wait in memory, and many are written together.
    /// in-place: immediately; each changed list is overwritten in place, and memory grows by one
    /// byte for each new vector. rebalance: in groups; clusters that become too large or too small
    /// are then split or merged [default: set by the preset]
    #[arg(long, value_name = "WAY", value_parser = names::update(), hide_possible_values = true)]
    pub update: Option<stratann::Update>,

    /// L of the search that finds the neighbours of a new vector [default: the degree; plus 32 if a
    /// search uses only one node of each page that it reads]
    #[arg(long, value_name = "L", value_parser = list_size)]
    pub insert_list: Option<usize>,

    /// Cap on the memory of the process. A merge may use up to 64 MiB above the cap
    #[arg(long, value_name = "BYTES", value_parser = size::parse)]
    pub memory: Option<u64>,

    #[command(flatten)]
    pub places: PlaceArguments,

    /// The number of threads [default: one for each core]
    #[arg(short = 'T', long, value_name = "N", value_parser = threads, visible_alias = "num-threads")]
    pub threads: Option<usize>,
}

/// The places from which searches read an index.
#[derive(Debug, Args)]
pub struct PlaceArguments {
    /// Reads the files of a role (topology or vectors) from copies on another tier: ssd,
    /// ssd:/folder, mapped:/folder (for example mapped:/dev/shm/x), dram, or remote:host:port/name
    /// (a `stratann memory-server`). remote-tls:host:port/name uses TLS, remote:shm:/path/name a
    /// ring in shared memory, and remote:ucx:host:port/name UCX. ssd-model, rdma-model, cxl-model
    /// and nvm-model simulate devices, for experiments. To place both roles, put a comma between
    /// them, or repeat the option. The command makes missing copies, and compares the copies with
    /// the index. The index directory still has all files
    #[arg(long = "place", value_name = "ROLE=TIER,..")]
    pub place: Vec<Places>,
}

impl PlaceArguments {
    pub fn all(&self) -> Result<Places, Failure> {
        let mut all = Places::default();
        for places in &self.place {
            all = all.and(places).map_err(Failure::Wrong)?;
        }
        Ok(all)
    }
}

fn durability(text: &str) -> Result<stratann::Durability, String> {
    use stratann::Durability;
    match text {
        "always" => Ok(Durability::Always),
        "end" => Ok(Durability::OnFlush),
        text => match text.strip_suffix("ms").unwrap_or(text).trim().parse() {
            Ok(milliseconds) => Ok(Durability::Every(std::time::Duration::from_millis(
                milliseconds,
            ))),
            Err(_) => Err("give always, end, or milliseconds, such as 100ms".into()),
        },
    }
}

/// `stratann truth`
#[derive(Debug, Args)]
#[command(after_help = FILES)]
pub struct TruthArguments {
    /// The file of vectors to search
    pub base: PathBuf,

    /// The file of query vectors
    pub queries: PathBuf,

    /// The ground-truth file to write: .bin (ids and distances), .ibin or .ivecs (ids), .bin64 (as
    /// .bin, with ids of 64 bits), .npy (ids of 64 bits)
    pub out: PathBuf,

    /// The id of the first row; each later row has the next number
    #[arg(long, value_name = "ID", default_value_t = 0)]
    pub first_id: u64,

    /// If BASE or QUERIES is a Parquet file: the column of the vectors, in both files
    #[arg(long = "vectors", value_name = "COLUMN")]
    pub column: Option<String>,

    /// A file with the id of each row, as for `build --ids`. If BASE is a Parquet file: the name of
    /// its column of ids
    #[arg(long, value_name = "FILE", conflicts_with = "first_id")]
    pub ids: Option<PathBuf>,

    /// The number of neighbours to find for each query
    #[arg(short = 'k', long = "k", default_value_t = 100, value_name = "K", value_parser = at_least_one,
          visible_aliases = ["recall-at", "k-neighbors"])]
    pub k: usize,

    /// The metric that measures distances
    #[arg(short, long, value_parser = names::metric(), default_value = "l2", visible_aliases = ["distance", "dist-fn"])]
    pub metric: Metric,

    /// The number of threads [default: one for each core]
    #[arg(short = 'T', long, value_name = "N", value_parser = threads, visible_alias = "num-threads")]
    pub threads: Option<usize>,

    /// Replaces the file if it exists already
    #[arg(long)]
    pub overwrite: bool,
}

/// `stratann stats`
#[derive(Debug, Args)]
pub struct StatsArguments {
    /// The index directory. For a directory of indexes, the command lists the indexes
    pub index: PathBuf,

    /// Shows how a search would divide this memory budget
    #[arg(long, value_name = "BYTES", value_parser = size::parse)]
    pub memory: Option<u64>,

    #[command(flatten)]
    pub places: PlaceArguments,

    /// Prints one JSON object; for a directory of indexes, one JSON line per index
    #[arg(long)]
    pub json: bool,
}

/// `stratann verify`
#[derive(Debug, Args)]
#[command(after_help = "Exit status: 0 clean, 1 damaged.")]
pub struct VerifyArguments {
    /// The index directory
    pub index: PathBuf,

    #[command(flatten)]
    pub places: PlaceArguments,

    /// Prints the result as one JSON object
    #[arg(long)]
    pub json: bool,
}

/// `stratann snapshot`
#[derive(Debug, Args)]
#[command(
    after_help = "When the command has ended with status 0, the copy is durable and can be opened. If the command was killed, run it again: it makes the copy from the start."
)]
pub struct SnapshotArguments {
    /// The index directory
    pub index: PathBuf,

    /// The directory for the copy, which must be empty or absent
    pub dest: PathBuf,

    /// Prints the report of the copy as one JSON object
    #[arg(long)]
    pub json: bool,
}

/// `stratann export`
#[derive(Debug, Args)]
#[command(
    after_help = format!("The n-th row of each file belongs to the same vector. Rows have the order of the vectors on storage.\n{SIZES}")
)]
pub struct ExportArguments {
    /// The index directory
    pub index: PathBuf,

    /// The file of vectors to write: .npy; or .fbin, .hbin, .u8bin or .i8bin, by the element type
    #[arg(short, long, value_name = "FILE")]
    pub out: PathBuf,

    /// The file of ids to write: .npy (uint64), or with any other extension one id per line, as for
    /// `build --ids` [default: X.ids.npy if --out is X.npy, else X.ids]
    #[arg(long, value_name = "FILE")]
    pub ids: Option<PathBuf>,

    /// The file of attributes and payloads to write, with one JSON object per line, as for `build
    /// --attributes` [default: X.jsonl, if the index has attributes or payloads]
    #[arg(long, value_name = "FILE")]
    pub attributes: Option<PathBuf>,

    /// Replaces the files if they exist already
    #[arg(long)]
    pub overwrite: bool,

    /// Cap on the memory of the process
    #[arg(long, value_name = "BYTES", value_parser = size::parse)]
    pub memory: Option<u64>,

    /// Prints the report of the export as one JSON object
    #[arg(long)]
    pub json: bool,
}

/// `stratann copies`
#[derive(Debug, Args)]
pub struct CopiesArguments {
    /// Lists only the copies of this index [default: the copies of all indexes]
    pub index: Option<PathBuf>,

    #[command(flatten)]
    pub places: PlaceArguments,

    /// Removes the listed copies, except copies that a process has open
    #[arg(long)]
    pub remove: bool,

    /// Prints the result as one JSON object
    #[arg(long)]
    pub json: bool,
}

/// `stratann repair`
#[derive(Debug, Args)]
#[command(after_help = format!(
    "An index without damage is left unchanged. A repair drops all data that it cannot read. If a later attempt \
     may read more of the data, copy the directory first.\nExit status: 0 repaired, or nothing to do; 1 not repaired.\n{SIZES}"
))]
pub struct RepairArguments {
    /// The index directory
    pub index: PathBuf,

    /// The number of threads [default: one for each core]
    #[arg(short = 'T', long, value_name = "N", value_parser = threads, visible_alias = "num-threads")]
    pub threads: Option<usize>,

    /// Cap on the memory of the build
    #[arg(long, value_name = "BYTES", value_parser = size::parse)]
    pub memory: Option<u64>,

    /// Rebuilds the index even if it has no damage
    #[arg(long)]
    pub force: bool,

    /// Prints the result as one JSON object
    #[arg(long)]
    pub json: bool,
}

/// `stratann bench`
#[derive(Debug, Args)]
#[command(
    after_help = "Paths in a job are relative to `root` of its section [data]. A relative `root` is relative to the folder of the job file. If STRATANN_DATA is set, it replaces `root`."
)]
pub struct BenchArguments {
    /// The file of the job (TOML, see bench/README.md)
    pub job: PathBuf,

    /// The folder for the results of a job NAME: NAME.json and NAME.svg
    #[arg(long, value_name = "DIR", default_value = "bench/out")]
    pub out: PathBuf,

    /// The folder that keeps the built indexes for later runs [default: `indexes` in the folder of
    /// --out]
    #[arg(long, value_name = "DIR")]
    pub cache: Option<PathBuf>,

    /// Rebuilds every index, even if the folder of --cache has it
    #[arg(long)]
    pub rebuild: bool,

    /// A file of another program's results, to add to the table and the plot; may be repeated
    #[arg(long, value_name = "FILE")]
    pub with: Vec<PathBuf>,

    /// Measures only the runs whose name contains this text; may be repeated
    #[arg(long, value_name = "TEXT")]
    pub only: Vec<String>,

    /// The number of repetitions of every measurement, instead of the job's own number
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    pub repeat: Option<usize>,

    /// Prints the results as JSON instead of tables
    #[arg(long)]
    pub json: bool,
}

/// `stratann memory-server`
#[derive(Debug, Args)]
#[command(args_override_self = true)]
#[command(after_help = format!(
    "Clients and server need the same secret, in the file that STRATANN_SECRET_FILE names, or in STRATANN_SECRET. On loopback, the processes of one user \
     share a secret without these variables. Clients with TLS trust the certificates in the file that STRATANN_TLS_CA names.\n{SIZES}"
))]
pub struct MemoryServerArguments {
    /// The index whose adjacency lists and high-precision codes compute servers read. The preset of
    /// the index must be distvs. Without an index, the server stores files for clients
    pub index: Option<PathBuf>,

    /// The maximum total size of the files of clients
    #[arg(long, value_name = "BYTES", value_parser = size::parse, required_unless_present = "index", conflicts_with = "index")]
    pub bytes: Option<u64>,

    /// The address to listen on; port 0 means any free port. An address other than loopback needs a
    /// secret (--secret-file)
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:7700", value_parser = servers::host_and_port)]
    pub listen: String,

    /// Stores the files of clients in this folder, where the files outlive the server. No other
    /// program may use the folder. The folder may be below /dev/shm [default: in the memory of the
    /// server]
    #[arg(long, value_name = "DIR", conflicts_with_all = ["index", "ucx"])]
    pub folder: Option<PathBuf>,

    /// With an index: sends each answer separately, for comparison. By default, answers to messages
    /// that arrived together are sent together (DistVS §4.2)
    #[arg(long, conflicts_with_all = ["bytes", "folder"])]
    pub no_batch: bool,

    /// With an index: checks every second whether a merge replaced the lists and codes, and then
    /// loads the new lists and codes. The server keeps the old lists and codes in memory too, until
    /// no search has used them for half a minute
    #[arg(long, conflicts_with_all = ["bytes", "folder"], requires = "index")]
    pub follow: bool,

    #[command(flatten)]
    pub server: ListenArguments,
}

/// `stratann presets`
#[derive(Debug, Args)]
pub struct PresetsArguments {
    /// Prints one JSON object for each preset
    #[arg(long)]
    pub json: bool,
}

/// `stratann completions`
#[derive(Debug, Args)]
pub struct CompletionsArguments {
    /// The shell whose completion script is printed
    pub shell: clap_complete::Shell,
}

fn at_least_one(text: &str) -> Result<usize, String> {
    match text.parse::<usize>() {
        Ok(0) => Err("must be at least 1".into()),
        Ok(number) => Ok(number),
        Err(_) => Err(format!("'{text}' is not a whole number")),
    }
}

fn up_to(text: &str, most: usize) -> Result<usize, String> {
    match at_least_one(text)? {
        number if number > most => Err(format!("must be at most {}", size::count(most as u64))),
        number => Ok(number),
    }
}

fn threads(text: &str) -> Result<usize, String> {
    up_to(text, bounds::MOST_THREADS)
}

fn watched(text: &str) -> Result<usize, String> {
    up_to(text, bounds::MOST_WATCHED)
}

fn list_size(text: &str) -> Result<usize, String> {
    up_to(text, bounds::MOST_LIST)
}

fn beam(text: &str) -> Result<usize, String> {
    up_to(text, bounds::MOST_BEAM)
}

fn in_flight(text: &str) -> Result<usize, String> {
    up_to(text, bounds::MOST_IN_FLIGHT)
}

fn share(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(share) if (0.0..=1.0).contains(&share) => Ok(share),
        _ => Err(format!(
            "'{text}' is not a share. Give a number from 0 to 1, for example 0.01"
        )),
    }
}

pub fn threads_or_cores(threads: Option<usize>) -> usize {
    threads.unwrap_or_else(stratann::processors)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn consistent() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn names_of_other_engines() {
        let parse = |words: &str| Arguments::try_parse_from(words.split_whitespace());
        let Command::Build(build) = parse(
            "stratann build a.u8bin b --max-degree 32 --complexity 50 --num-threads 3 --distance squared_l2 --nav 0.02",
        )
        .unwrap()
        .command
        else {
            panic!("not a build")
        };
        let shape = build.shape;
        assert_eq!(
            (shape.degree, shape.build_list, shape.threads),
            (Some(32), 50, Some(3))
        );
        assert_eq!(shape.metric, Metric::L2);
        assert_eq!(shape.navigation, 0.02);
        let Command::Search(search) = parse(
            "stratann search b q.u8bin --recall-at 5 --search-list 20,40 --beam-width 8 --groundtruth t.bin --no-nav",
        )
        .unwrap()
        .command
        else {
            panic!("not a search")
        };
        assert_eq!((search.k, search.beam), (5, Some(8)));
        assert_eq!(search.indexes(), [PathBuf::from("b")]);
        assert_eq!(search.queries(), Path::new("q.u8bin"));
        assert_eq!(search.list, [20, 40]);
        assert_eq!(search.navigation(), Some(false));
        assert_eq!(search.whole_page(), None);
    }

    #[test]
    fn the_last_file_of_a_search_is_the_queries() {
        for (line, indexes) in [
            ("stratann search a q.u8bin", &["a"][..]),
            ("stratann search a --list 20,40 q.u8bin", &["a"]),
            ("stratann search --nav a b c q.u8bin -k 3", &["a", "b", "c"]),
            (
                "stratann search a b --list 20,40 c q.u8bin",
                &["a", "b", "c"],
            ),
        ] {
            let Command::Search(search) = Arguments::try_parse_from(line.split_whitespace())
                .unwrap()
                .command
            else {
                panic!("not a search")
            };
            let expected: Vec<PathBuf> = indexes.iter().map(PathBuf::from).collect();
            assert_eq!(search.indexes(), expected, "{line}");
            assert_eq!(search.queries(), Path::new("q.u8bin"), "{line}");
        }
    }

    #[test]
    fn the_last_of_two_opposites_counts() {
        let nav = |words: &str| {
            let line = format!("stratann search i q {words}");
            match Arguments::try_parse_from(line.split_whitespace())
                .unwrap()
                .command
            {
                Command::Search(search) => search.navigation(),
                _ => None,
            }
        };
        assert_eq!(nav("--nav --no-nav"), Some(false));
        assert_eq!(nav("--no-nav --nav"), Some(true));
        assert_eq!(nav(""), None);
    }
}
