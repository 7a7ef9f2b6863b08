//! The arguments of the command. Names that users of DiskANN and other engines know are accepted as
//! aliases.

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
    /// Estimates the memory and storage that a build will need, before it begins
    Plan(PlanArguments),
    /// Trains a codebook that several indexes can share
    Train(TrainArguments),
    /// Searches indexes, and measures recall, speed, latency and reads
    Search(SearchArguments),
    /// Computes the exact nearest neighbours by brute force
    Truth(TruthArguments),
    /// Inserts vectors into an index
    Insert(InsertArguments),
    /// Deletes vectors from an index: by their ids, or all that match a filter
    Delete(DeleteArguments),
    /// Replaces the attributes of vectors in an index, by their ids: all attributes of a vector, or
    /// some
    SetAttributes(SetAttributesArguments),
    /// Prints or writes vectors by their ids, or lists the ids in an index
    Get(GetArguments),
    /// Counts the vectors in an index, or the vectors that match a filter
    Count(CountArguments),
    /// Merges inserts and deletes into a new checkpoint, and frees the space of deleted vectors
    Compact(CompactArguments),
    /// Measures the recall of each list size, for `search --recall`: with your queries, or with
    /// vectors of the index and vectors made of them
    Calibrate(CalibrateArguments),
    /// Prints the settings of an index and the size of its parts, or lists the indexes in a
    /// directory
    Stats(StatsArguments),
    /// Reads every byte of an index and reports damage
    Verify(VerifyArguments),
    /// Rebuilds a damaged index from the vectors in it that can be read, and reports the loss
    Repair(RepairArguments),
    /// Copies an index in its state at one moment, while other processes may search and change it
    Snapshot(SnapshotArguments),
    /// Writes all vectors of an index to a file, and their ids and attributes to files beside it
    Export(ExportArguments),
    /// Runs a benchmark job: builds, searches, tables, JSON and a plot
    Bench(BenchArguments),
    /// Tries presets on a sample, and recommends one for a device, with the costs to expect
    Advise(AdviseArguments),
    /// Lists the copies of indexes at a place, and removes the copies that are not in use
    Copies(CopiesArguments),
    /// Serves memory of this machine to searches in other processes, on any machine
    /// (`--place topology=remote:..`), or the lists and high codes of an index to compute servers
    MemoryServer(MemoryServerArguments),
    /// Serves the exact vectors of an index to compute servers, which re-rank with them
    StorageServer(StorageServerArguments),
    /// Answers queries of clients, with the help of a memory server and a storage server
    ComputeServer(ComputeServerArguments),
    /// Runs all servers of an index on this machine, and searches through compute servers
    #[command(subcommand)]
    Cluster(ClusterCommand),
    /// Lists the presets and the choices of each
    Presets(PresetsArguments),
    /// Prints a completion script for a shell
    Completions(CompletionsArguments),
}

const FILES: &str = "Files of vectors: .fbin .u8bin .i8bin .hbin .fvecs .bvecs .npy. The extension gives the format.";
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

    /// Id of the first row; later rows count on. Indexes that are searched together should share no
    /// id
    #[arg(long, default_value_t = 0, value_name = "ID")]
    pub first_id: u64,

    /// The id of each row; with --vectors the column of the ids [default: row numbers, from
    /// --first-id on]
    #[arg(long, value_name = "FILE|COLUMN", conflicts_with = "first_id")]
    pub ids: Option<PathBuf>,

    /// The column of the vectors, if BASE is a Parquet file: lists of floats of 16, 32 or 64
    /// bits, or of integers of 8 bits
    #[arg(long = "vectors", value_name = "COLUMN")]
    pub column: Option<String>,

    #[command(flatten)]
    pub rows: RowArguments,

    #[command(flatten)]
    pub places: PlaceArguments,

    /// Replaces an index that exists already
    #[arg(long)]
    pub overwrite: bool,

    /// Does not measure the recall of each list size. `search --recall` then needs
    /// `stratann calibrate` first
    #[arg(long)]
    pub no_calibrate: bool,

    /// Keeps savepoints. If a build of the same vectors and options was killed or interrupted,
    /// continues from its last savepoint
    #[arg(long)]
    pub resume: bool,

    /// With --resume: the least seconds of work between two savepoints of the graph; 0 writes as
    /// many savepoints as possible
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
    /// Order, layout and search defaults (see `stratann presets`)
    #[arg(short, long, value_parser = names::preset(), default_value = Preset::default().name)]
    pub preset: Preset,

    /// The measure of distance
    #[arg(short, long, value_parser = names::metric(), default_value = "l2", visible_aliases = ["distance", "dist-fn"])]
    pub metric: Metric,

    /// Most neighbours of a node: R [default: 64; with --search-memory the number that fills the
    /// blocks]
    #[arg(short = 'R', long, value_name = "R", value_parser = at_least_one,
          visible_aliases = ["max-degree", "graph-degree"])]
    pub degree: Option<usize>,

    /// Candidates kept while the build searches for the neighbours of a node: L of the build
    #[arg(short = 'L', long, default_value_t = 100, value_name = "L", value_parser = list_size,
          visible_aliases = ["complexity", "lbuild"])]
    pub build_list: usize,

    /// Pruning: a value above 1 keeps longer edges, so that searches take fewer hops
    #[arg(long, default_value_t = 1.2, value_name = "A")]
    pub alpha: f32,

    /// Bytes of the compressed code of a vector [default: a quarter of the dimension]
    #[arg(long, value_name = "B", value_parser = at_least_one, visible_aliases = ["pq-bytes", "num-pq-chunks"])]
    pub code_bytes: Option<usize>,

    /// The kind of low codes, in a preset with codes of two precisions. --code-bytes is then the
    /// length of the high codes [default: nested]
    #[arg(long, value_parser = names::low_codes())]
    pub low_codes: Option<LowCodes>,

    /// A codebook of `stratann train`, in place of training one for this index. Indexes with the
    /// same codebook share it in memory
    #[arg(long, value_name = "FILE")]
    pub codebook: Option<PathBuf>,

    /// Order of nodes on storage [default: the preset's]
    #[arg(long, value_parser = names::order())]
    pub order: Option<Order>,

    /// Layout of lists and vectors on storage [default: the preset's; with the preset stratann it
    /// depends on the vectors]
    #[arg(long, value_parser = names::layout())]
    pub layout: Option<Layout>,

    /// Lossless compression of lists and vectors [default: the preset's; raw in the coupled layout]
    #[arg(long, value_parser = names::compression())]
    pub compression: Option<Compression>,

    /// Uncompressed bytes of a chunk of vectors: C of the decoupled layout
    #[arg(long, value_name = "BYTES", value_parser = size::parse, default_value = "4MiB",
          visible_alias = "chunk-size")]
    pub chunk: u64,

    /// Chooses the chunk size by the memory for chunks, as a share of the uncompressed vectors, for
    /// example 0.001
    #[arg(long, value_name = "BETA", conflicts_with = "chunk")]
    pub chunk_overhead: Option<f64>,

    /// Uncompressed bytes of a segment of vectors; a segment is compressed as a whole
    #[arg(long, value_name = "BYTES", value_parser = size::parse, default_value = "512MiB",
          visible_alias = "segment-size")]
    pub segment: u64,

    /// Share of the vectors that are sampled into the navigation graph, where `search --nav`
    /// starts; 0 builds none
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

    /// Memory that searches will have. If it cannot hold all codes, the preset stratann stores
    /// codes in the nodes on storage. For large vectors it decides whether each is stored in two
    /// parts
    #[arg(long, value_name = "BYTES", value_parser = size::parse)]
    pub search_memory: Option<u64>,

    /// Most bytes of the index on storage. The degree is the largest of 16 to 96 with which the
    /// index is expected to fit
    #[arg(long, value_name = "BYTES", value_parser = size::parse, conflicts_with = "degree")]
    pub space: Option<u64>,

    /// Approximate number of vectors for each cluster, in a layout of clusters [default: 12 if
    /// replicated, else 32]
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    pub cluster_size: Option<usize>,

    /// Most clusters that a vector belongs to, in a layout of clusters [default: 8]
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    pub replicas: Option<usize>,

    /// A file of queries as users ask them, for the grouped layout. It groups each vector with the
    /// cluster that these queries probe most
    #[arg(long, value_name = "FILE", visible_alias = "frequencies")]
    pub query_log: Option<PathBuf>,

    /// Threads [default: one for each core]
    #[arg(short = 'T', long, value_name = "N", value_parser = threads, visible_alias = "num-threads")]
    pub threads: Option<usize>,

    /// Seed of every random choice. One thread and the same seed give the same index
    #[arg(long, default_value_t = 42, value_name = "N")]
    pub seed: u64,
}

/// `stratann plan`
#[derive(Debug, Args)]
#[command(after_help = files_and_sizes())]
pub struct PlanArguments {
    /// The file of vectors to index
    pub base: PathBuf,

    /// The id of each row; with --vectors the column of the ids
    #[arg(long, value_name = "FILE|COLUMN")]
    pub ids: Option<PathBuf>,

    /// The column of the vectors, if BASE is a Parquet file
    #[arg(long = "vectors", value_name = "COLUMN")]
    pub column: Option<String>,

    #[command(flatten)]
    pub shape: ShapeArguments,

    #[command(flatten)]
    pub rows: RowArguments,

    /// Prints one JSON object
    #[arg(long)]
    pub json: bool,
}

/// `stratann train`
#[derive(Debug, Args)]
#[command(after_help = FILES)]
pub struct TrainArguments {
    /// The file of vectors to train on. The command takes an even sample of up to 100,000 rows, or
    /// a smaller one if they have more than 128 dimensions
    pub base: PathBuf,

    /// The file to write, for `stratann build --codebook`
    pub codebook: PathBuf,

    /// Bytes of the compressed code of a vector [default: a quarter of the dimension]
    #[arg(long, value_name = "B", value_parser = at_least_one, visible_aliases = ["pq-bytes", "num-pq-chunks"])]
    pub code_bytes: Option<usize>,

    /// The kind of low codes, for a preset with codes of two precisions (distvs). --code-bytes is
    /// then the length of the high codes
    #[arg(long, value_parser = names::low_codes())]
    pub low_codes: Option<LowCodes>,

    /// The measure of distance
    #[arg(short, long, value_parser = names::metric(), default_value = "l2", visible_aliases = ["distance", "dist-fn"])]
    pub metric: Metric,

    /// Threads; the result does not depend on their number [default: one for each core]
    #[arg(short = 'T', long, value_name = "N", value_parser = threads, visible_alias = "num-threads")]
    pub threads: Option<usize>,

    /// Seed of every random choice
    #[arg(long, default_value_t = 42, value_name = "N")]
    pub seed: u64,

    /// Replaces a file that exists already
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
    /// The index directory, then the file of query vectors. Several indexes of one space, or
    /// directories of such indexes, are searched as one
    // A single list, since two lists could not be distinguished with options between their words.
    #[arg(required = true, value_name = "INDEX.. QUERIES")]
    pub files: Vec<PathBuf>,

    /// The column of the vectors, if QUERIES is a Parquet file
    #[arg(long = "vectors", value_name = "COLUMN", conflicts_with = "like")]
    pub column: Option<String>,

    /// Neighbours to find for each query
    #[arg(short = 'k', long = "k", default_value_t = 10, value_name = "K", value_parser = at_least_one,
          visible_aliases = ["recall-at", "k-neighbors"])]
    pub k: usize,

    /// Candidates kept during a search: L. Several values, for example 20,40,60, are measured in
    /// turn. In a cluster index this is the number of clusters to probe [default: 100, or k if
    /// larger]
    #[arg(short = 'L', long, value_name = "L,..", value_delimiter = ',', value_parser = list_size,
          visible_aliases = ["search-list", "list-size"])]
    pub list: Vec<usize>,

    /// Number of clusters to probe in a cluster index: one value or several. A value may be below k
    /// [default: the list size, if given; else 32, or k if larger]
    #[arg(long, value_name = "N,..", value_delimiter = ',', value_parser = list_size, conflicts_with = "list")]
    pub probes: Vec<usize>,

    /// The share of the true nearest to find, above 0 and up to 1. Each query takes as many
    /// candidates as it needs, by the measurements of the build or of `stratann calibrate`. With
    /// --truth the recall is measured too
    #[arg(long, value_name = "F", conflicts_with_all = ["list", "probes"])]
    pub recall: Option<f64>,

    /// Finds the smallest list size, or number of probes, with which these queries reach --recall;
    /// needs --truth
    #[arg(long, requires_all = ["recall", "truth"])]
    pub find_list: bool,

    /// Condition on the attributes of answers, as "year >= 2020 and tags contains 'sea'". If one of
    /// several indexes lacks a column that others have, its vectors have no value there. A --truth
    /// must contain matching vectors only
    #[arg(long, value_name = "TEXT", value_parser = filter)]
    pub filter: Option<Filter>,

    /// Finds all vectors within this distance of each query, by exact distances, in place of the k
    /// nearest. Prints them as --print does, in parts
    #[arg(long, value_name = "DISTANCE", allow_negative_numbers = true,
          conflicts_with_all = ["k", "recall", "truth", "out", "explain", "parts"])]
    pub within: Option<f32>,

    /// Finds the vectors nearest to vectors of the index, given by their ids, in place of a file of
    /// queries. The given vectors are no answers. Prints answers as --print does
    #[arg(long, value_name = "ID,..", value_delimiter = ',', value_parser = ids::one,
          conflicts_with_all = ["truth", "out", "explain", "parts", "find_list"])]
    pub like: Vec<u64>,

    /// Prints which plan found the matching vectors, its cost, and the expected reads of each plan.
    /// --json has this without the option
    #[arg(long, requires = "filter")]
    pub explain: bool,

    /// The plan for finding matching vectors, in place of the one with the least expected cost. For
    /// comparisons, as in bench/filters.py
    #[arg(long, hide = true, requires = "filter", value_parser = names::way())]
    pub way: Option<Way>,

    /// Ground truth to measure recall against (big-ann .bin, .ibin or .ivecs)
    #[arg(long, value_name = "FILE", visible_aliases = ["groundtruth", "gt-file"])]
    pub truth: Option<PathBuf>,

    /// Measures recall without --truth. Compares this many of the queries with all vectors, after
    /// each list size. For one index only
    #[arg(long, value_name = "N", value_parser = watched, conflicts_with_all = ["within", "like", "find_list", "print"])]
    pub watch_recall: Option<usize>,

    /// Takes the search defaults from this preset [default: the preset of the build]
    #[arg(short, long, value_parser = names::preset())]
    pub preset: Option<Preset>,

    /// Nodes read at once: W; a pipelined search reads at most this number [default: the preset's]
    #[arg(short = 'W', long, value_name = "W", value_parser = beam, visible_alias = "beam-width")]
    pub beam: Option<usize>,

    /// Search strategy: the order of reads [default: the preset's]
    #[arg(long, value_parser = names::strategy())]
    pub strategy: Option<Strategy>,

    /// Starts from the navigation graph [default: the preset's]
    #[arg(long, overrides_with = "no_nav")]
    pub nav: bool,

    /// Starts from the graph's entry point
    #[arg(long, overrides_with = "nav")]
    pub no_nav: bool,

    /// Uses every candidate on a page that was read [default: the preset's]
    #[arg(long, overrides_with = "no_whole_page")]
    pub whole_page: bool,

    /// Uses only the node for which a page was read
    #[arg(long, overrides_with = "whole_page")]
    pub no_whole_page: bool,

    /// Threads [default: one for each core]
    #[arg(short = 'T', long, value_name = "N", value_parser = threads, visible_alias = "num-threads")]
    pub threads: Option<usize>,

    /// Queries in flight on each thread; 1 gives each query the least latency [default: up to 8, by
    /// the number of queries; with 256 queries or more for each thread, the number that measures
    /// best]
    #[arg(long, value_name = "N", value_parser = in_flight)]
    pub in_flight: Option<usize>,

    /// Candidates to rank at once, if whole vectors are stored apart from lists: B [default: the
    /// preset's]
    #[arg(long, value_name = "B", value_parser = list_size)]
    pub rerank_batch: Option<usize>,

    /// Ends re-ranking when a smaller share of a batch than this became answers; 0 ranks all
    /// candidates [default: the preset's]
    #[arg(long, value_name = "F", value_parser = share)]
    pub benefit: Option<f64>,

    /// The condition that ends re-ranking [default: the preset's]
    #[arg(long, value_enum)]
    pub rerank: Option<RerankName>,

    /// Ranks this share of the candidate list, and at least k, at once when the walk has ended; 0
    /// uses --rerank [default: the preset's]
    #[arg(long, value_name = "F", value_parser = share)]
    pub rerank_ratio: Option<f64>,

    /// With the strategy press: the longest list of candidates by low codes, as a multiple of
    /// --list; 2 in DistVS [default: 3]
    #[arg(long, value_name = "F")]
    pub low_list: Option<f64>,

    /// With the strategy press: the share of the list of --low-list that each round ranks by high
    /// codes; 0.3 in DistVS [default: 0.2]
    #[arg(long, value_name = "F")]
    pub refine: Option<f64>,

    /// Without --nav: nodes that are compared first by their codes (by low codes, if there are two
    /// kinds). The search begins near the nearest of them. With 0 it begins at the graph's entry
    /// node, as in DistVS [default: 64 with the strategy press, else 0]
    #[arg(long)]
    pub seeds: Option<usize>,

    /// Cap on the memory of the search, for all indexes together
    #[arg(long, value_name = "BYTES", value_parser = size::parse)]
    pub memory: Option<u64>,

    /// Bytes of a cache of recently read lists and of the vectors beside them, for each index
    /// [default: none]
    #[arg(long, value_name = "BYTES", value_parser = size::parse)]
    pub cache: Option<u64>,

    /// The same cache in entries, or in percent of the vectors, for example 1%
    #[arg(long, value_name = "N", conflicts_with = "cache")]
    pub cache_entries: Option<CacheEntries>,

    /// How pages are read: by io_uring, or by pread on a pool of threads if io_uring is refused
    #[arg(long, value_enum, default_value = "auto")]
    pub io: IoName,

    #[command(flatten)]
    pub places: PlaceArguments,

    /// Writes the ids and distances of answers in the ground-truth format, or the ids alone as
    /// .npy. Distances are exact, as with --exact
    #[arg(long, value_name = "FILE")]
    pub out: Option<PathBuf>,

    /// Replaces the file of --out
    #[arg(long, requires = "out")]
    pub overwrite: bool,

    /// Prints the ids and distances of answers in place of measurements: a table, or with --json a
    /// line of JSON for each query. Distances are exact, as with --exact
    #[arg(long)]
    pub print: bool,

    /// Makes all distances exact in the layered layout too, which reads the trailing parts of all
    /// answers
    #[arg(long)]
    pub exact: bool,

    /// Ends a search when no remaining candidate is expected to matter, by the error of the codes.
    /// With the same list it reads less and finds a little less
    #[arg(long)]
    pub stop_early: bool,

    /// Measures the time of each part of a query, which slows it slightly
    #[arg(long)]
    pub parts: bool,

    /// Prints one JSON object for each list size
    #[arg(long)]
    pub json: bool,

    /// With --json: prints more keys than documented. `stratann bench` reads them.
    #[arg(long, hide = true, requires = "json")]
    pub measure: bool,
}

impl SearchArguments {
    /// The index directories, or directories that hold indexes.
    pub fn indexes(&self) -> &[PathBuf] {
        if !self.like.is_empty() {
            return &self.files;
        }
        self.files.split_last().map_or(&[], |(_, indexes)| indexes)
    }

    /// The file of query vectors.
    pub fn queries(&self) -> &Path {
        self.files.last().map_or(Path::new(""), PathBuf::as_path)
    }

    /// `Some` if one of `--nav` and `--no-nav` was given.
    pub fn navigation(&self) -> Option<bool> {
        choice(self.nav, self.no_nav)
    }

    /// `Some` if one of `--whole-page` and `--no-whole-page` was given.
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

const IDS: &str = "A file of ids has one id a line, or several with spaces or commas between them. - is the standard input.";

/// `stratann insert`
#[derive(Debug, Args)]
#[command(after_help = format!("{FILES}\n{IDS}\n{SIZES}"))]
pub struct InsertArguments {
    /// The index directory
    pub index: PathBuf,

    /// The file of vectors to insert
    pub vectors: PathBuf,

    /// The id of each vector; with --vectors the column of the ids [default: ids count on from the
    /// largest that the index ever had]
    #[arg(long, value_name = "FILE|COLUMN")]
    pub ids: Option<PathBuf>,

    /// The column of the vectors, if VECTORS is a Parquet file: lists of floats of 16, 32 or 64
    /// bits, or of integers of 8 bits
    #[arg(long = "vectors", value_name = "COLUMN")]
    pub column: Option<String>,

    /// Replaces vectors whose ids are in the index. Without this option, such an id is an error
    #[arg(long, requires = "ids")]
    pub upsert: bool,

    /// Continues an insert of the same rows that was cut off: inserts the rows that are not in the
    /// index. Give it the same options
    #[arg(long, conflicts_with = "upsert")]
    pub resume: bool,

    /// Inserts all rows, even if an insert of the same rows was cut off. That insert is forgotten
    #[arg(long, conflicts_with_all = ["upsert", "resume", "ids"])]
    pub no_resume: bool,

    /// Inserts nothing, and forgets an insert of VECTORS that was cut off. Rows that are in the
    /// index stay. VECTORS is the file, which need not exist any more, or the name that `verify`
    /// prints
    #[arg(long, conflicts_with_all = ["upsert", "resume", "no_resume", "ids", "compact"])]
    pub forget: bool,

    #[command(flatten)]
    pub rows: RowArguments,

    #[command(flatten)]
    pub write: WriteArguments,

    /// Merges the vectors into a new checkpoint at the end, as `stratann compact` does
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

    /// Ids of the vectors to delete, as for `get`, or one file of ids. If a file is named like an
    /// id, give a path: ./5
    #[arg(value_name = "ID|FILE")]
    pub id: Vec<PathBuf>,

    /// A file of ids
    #[arg(long, value_name = "FILE", conflicts_with = "id")]
    pub ids: Option<PathBuf>,

    /// Deletes the vectors that match, in place of ids: "year < 2020 and sold == true".
    /// `stratann count --filter` counts them beforehand
    #[arg(long, value_name = "TEXT", value_parser = filter, conflicts_with_all = ["id", "ids"])]
    pub filter: Option<Filter>,

    #[command(flatten)]
    pub write: WriteArguments,

    /// Merges the changes into a new checkpoint at the end, as `stratann compact` does
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

    /// The new attributes: a file of JSON lines with an object for each vector, or a Parquet file,
    /// as for `build --attributes`, with ids. Without `--keep`, attributes and payload that a row
    /// does not repeat are removed
    #[arg(value_name = "FILE")]
    pub rows: PathBuf,

    /// The key of the objects, or the column, that holds the id
    #[arg(long, value_name = "KEY", default_value = "id")]
    pub id: String,

    /// The ids of the lines or rows, in order. No key or column is then taken as the id
    #[arg(long, value_name = "FILE", conflicts_with = "id")]
    pub ids: Option<PathBuf>,

    /// Keeps attributes that a line does not name, and the payload if a line has none. A null
    /// removes the attribute that it names
    #[arg(long)]
    pub keep: bool,

    /// The key of the objects, or the column, that holds the payload: any JSON
    #[arg(long, value_name = "KEY")]
    pub payload: Option<String>,

    /// Keys of the objects, or columns, that hold times: ISO 8601, or microseconds since 1970.
    /// Timestamps and dates of a Parquet file are times without this option
    #[arg(long, value_name = "KEY,..", value_delimiter = ',')]
    pub times: Vec<String>,

    /// Keys of those objects, or columns, that are left out
    #[arg(long, value_name = "KEY,..", value_delimiter = ',')]
    pub without: Vec<String>,

    #[command(flatten)]
    pub write: WriteArguments,

    /// Merges the changes into a new checkpoint at the end, as `stratann compact` does
    #[arg(long)]
    pub compact: bool,

    /// Prints the result as one JSON object
    #[arg(long)]
    pub json: bool,
}

/// `stratann get`
#[derive(Debug, Args)]
#[command(after_help = format!("{IDS}\nIf another process changes the index meanwhile, the output shows the index as it was when the command began.\n{SIZES}"))]
pub struct GetArguments {
    /// The index directory
    pub index: PathBuf,

    /// Ids of the vectors to return [default: all, in the order of their ids]
    #[arg(value_name = "ID", value_parser = ids::one)]
    pub id: Vec<u64>,

    /// A file of ids
    #[arg(long, value_name = "FILE", conflicts_with = "id")]
    pub ids: Option<PathBuf>,

    /// Returns the vectors whose attributes match, in the order of their ids, as "year >= 2020 and
    /// tags contains 'sea'"
    #[arg(long, value_name = "TEXT", value_parser = filter, conflicts_with_all = ["id", "ids"])]
    pub filter: Option<Filter>,

    /// Prints the ids alone, one a line, as in a file of ids
    #[arg(long, conflicts_with_all = ["out", "json"])]
    pub list: bool,

    /// Prints a line of JSON for each vector: its id, attributes and payload in place of its
    /// elements
    #[arg(long, conflicts_with_all = ["out", "json", "list"])]
    pub attributes: bool,

    /// Writes the vectors to a file in the same order: .fbin .u8bin .i8bin .hbin, by their element
    /// type
    #[arg(long, value_name = "FILE")]
    pub out: Option<PathBuf>,

    /// Replaces the file of --out
    #[arg(long, requires = "out")]
    pub overwrite: bool,

    /// Cap on the memory of the process
    #[arg(long, value_name = "BYTES", value_parser = size::parse)]
    pub memory: Option<u64>,

    /// Prints a line of JSON for each vector: its id and all of its elements
    #[arg(long)]
    pub json: bool,
}

/// `stratann count`
#[derive(Debug, Args)]
pub struct CountArguments {
    /// The index directory
    pub index: PathBuf,

    /// Condition on attributes, as "year >= 2020 and tags contains 'sea'" [default: all vectors are
    /// counted]
    #[arg(long, value_name = "TEXT", value_parser = filter)]
    pub filter: Option<Filter>,

    /// Prints one JSON object
    #[arg(long)]
    pub json: bool,
}

/// Attributes and payloads of the vectors of a file.
#[derive(Debug, Args)]
pub struct RowArguments {
    /// Attributes of the vectors, for filters: a Parquet file, or a file of JSON lines with an
    /// object for each vector. Values are booleans, numbers, strings, and lists of strings or of
    /// whole numbers; in Parquet also timestamps and dates
    #[arg(long, value_name = "FILE")]
    pub attributes: Option<PathBuf>,

    /// The key of the objects, or the column, that holds the payload: any JSON. `get --attributes`
    /// returns it, and filters cannot read it
    #[arg(long, value_name = "KEY", requires = "attributes")]
    pub payload: Option<String>,

    /// Keys of the objects, or columns, that hold times: ISO 8601, or microseconds since 1970.
    /// Timestamps and dates of a Parquet file are times without this option
    #[arg(
        long,
        value_name = "KEY,..",
        value_delimiter = ',',
        requires = "attributes"
    )]
    pub times: Vec<String>,

    /// Keys of those objects, or columns, that are left out
    #[arg(
        long,
        value_name = "KEY,..",
        value_delimiter = ',',
        requires = "attributes"
    )]
    pub without: Vec<String>,
}

impl RowArguments {
    /// The options for the columns.
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

    /// A file of queries like future ones; up to 10,000 of them are searched [default: vectors of
    /// the index, each as if it were absent. In most graph indexes also vectors made of them: a
    /// vector plus .2, .35 or .5 of the difference of two others]
    pub queries: Option<PathBuf>,

    /// The column of the vectors, if QUERIES is a Parquet file
    #[arg(long = "vectors", value_name = "COLUMN", requires = "queries")]
    pub column: Option<String>,

    /// Cap on the memory of the index during the measurement
    #[arg(long, value_name = "BYTES", value_parser = size::parse)]
    pub memory: Option<u64>,

    /// Threads [default: one for each core]
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
    /// When a change is durable: always (each batch of rows before the next), at the end, or at
    /// most this many milliseconds later
    #[arg(long, value_name = "WHEN", default_value = "end", value_parser = durability)]
    pub durability: stratann::Durability,

    /// How new vectors are inserted. merge: they wait in memory for `compact`. relocate: at once,
    /// as in OdinANN. accumulate: at once, but changed lists wait until their page has enough
    /// changes. in-place: at once, each list in its page, for tiny memory. rebalance: in groups
    /// into clusters, which stay balanced [default: the preset's]
    #[arg(long, value_name = "WAY", value_parser = names::update(), hide_possible_values = true)]
    pub update: Option<stratann::Update>,

    /// L of the search that finds the neighbours of a new vector [default: the degree; 32 more if
    /// each read serves one node]
    #[arg(long, value_name = "L", value_parser = list_size)]
    pub insert_list: Option<usize>,

    /// Cap on the memory of the process; a merge takes up to 64 MiB more
    #[arg(long, value_name = "BYTES", value_parser = size::parse)]
    pub memory: Option<u64>,

    #[command(flatten)]
    pub places: PlaceArguments,

    /// Threads [default: one for each core]
    #[arg(short = 'T', long, value_name = "N", value_parser = threads, visible_alias = "num-threads")]
    pub threads: Option<usize>,
}

/// The places from which searches read an index.
#[derive(Debug, Args)]
pub struct PlaceArguments {
    /// Reads a role (topology, vectors) from a tier: ssd, ssd:/folder, mapped:/folder (as
    /// mapped:/dev/shm/x), dram, or remote:host:port/name (a `stratann memory-server`). remote-tls:
    /// uses TLS, remote:shm:/path/name a ring in shared memory, and remote:ucx:host:port/name UCX.
    /// For experiments: ssd-model, rdma-model, cxl-model, nvm-model. Give several with commas, or
    /// repeat the option. Missing copies are made and compared, and the index stays whole without
    /// them
    #[arg(long = "place", value_name = "ROLE=TIER,..")]
    pub place: Vec<Places>,
}

impl PlaceArguments {
    /// The places of all options together.
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
            Err(_) => Err("expected always, end, or milliseconds, for example 100ms".into()),
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

    /// The id of the first row; later rows count on
    #[arg(long, value_name = "ID", default_value_t = 0)]
    pub first_id: u64,

    /// The column of the vectors, in BASE and QUERIES, if one of them or both are Parquet files
    #[arg(long = "vectors", value_name = "COLUMN")]
    pub column: Option<String>,

    /// The ids of the rows, as for `build`
    #[arg(long, value_name = "FILE", conflicts_with = "first_id")]
    pub ids: Option<PathBuf>,

    /// Neighbours of each query
    #[arg(short = 'k', long = "k", default_value_t = 100, value_name = "K", value_parser = at_least_one,
          visible_aliases = ["recall-at", "k-neighbors"])]
    pub k: usize,

    /// The measure of distance
    #[arg(short, long, value_parser = names::metric(), default_value = "l2", visible_aliases = ["distance", "dist-fn"])]
    pub metric: Metric,

    /// Threads [default: one for each core]
    #[arg(short = 'T', long, value_name = "N", value_parser = threads, visible_alias = "num-threads")]
    pub threads: Option<usize>,

    /// Replaces a file that exists already
    #[arg(long)]
    pub overwrite: bool,
}

/// `stratann stats`
#[derive(Debug, Args)]
pub struct StatsArguments {
    /// The index directory, or a directory of indexes, which are listed
    pub index: PathBuf,

    /// Shows how a search would divide this memory budget
    #[arg(long, value_name = "BYTES", value_parser = size::parse)]
    pub memory: Option<u64>,

    #[command(flatten)]
    pub places: PlaceArguments,

    /// Prints one JSON object, or a line with one for each index of a directory
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

    /// Prints one JSON object
    #[arg(long)]
    pub json: bool,
}

/// `stratann snapshot`
#[derive(Debug, Args)]
#[command(
    after_help = "When the command has ended, the copy is durable and can be opened. If the command was killed, run it again: it starts the copy over."
)]
pub struct SnapshotArguments {
    /// The index directory
    pub index: PathBuf,

    /// The directory of the copy: empty, or absent
    pub dest: PathBuf,

    /// Prints the report of the copy as one JSON object
    #[arg(long)]
    pub json: bool,
}

/// `stratann export`
#[derive(Debug, Args)]
#[command(
    after_help = format!("The n-th vector, id and line of attributes belong together. The order is the order of vectors on storage.\n{SIZES}")
)]
pub struct ExportArguments {
    /// The index directory
    pub index: PathBuf,

    /// The file of vectors: .npy, or .fbin .hbin .u8bin .i8bin by the element type
    #[arg(short, long, value_name = "FILE")]
    pub out: PathBuf,

    /// The file of ids: .npy (uint64), or with any other name one id a line, as for `build --ids`
    /// [default: X.ids.npy for X.npy, X.ids for others]
    #[arg(long, value_name = "FILE")]
    pub ids: Option<PathBuf>,

    /// The file of attributes and payloads, a JSON object a line, as for `build --attributes`
    /// [default: X.jsonl, if there are any]
    #[arg(long, value_name = "FILE")]
    pub attributes: Option<PathBuf>,

    /// Replaces files that exist already
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
    /// The index directory whose copies to list [default: the copies of all indexes]
    pub index: Option<PathBuf>,

    #[command(flatten)]
    pub places: PlaceArguments,

    /// Removes the copies, except copies that a process has open
    #[arg(long)]
    pub remove: bool,

    /// Prints one JSON object
    #[arg(long)]
    pub json: bool,
}

/// `stratann repair`
#[derive(Debug, Args)]
#[command(after_help = format!(
    "A whole index is left unchanged. Data that a repair cannot read is lost: copy the directory first if \
     another attempt may read more.\nExit status: 0 repaired, or nothing to do; 1 not repaired.\n{SIZES}"
))]
pub struct RepairArguments {
    /// The index directory
    pub index: PathBuf,

    /// Threads [default: one for each core]
    #[arg(short = 'T', long, value_name = "N", value_parser = threads, visible_alias = "num-threads")]
    pub threads: Option<usize>,

    /// Cap on the memory of the build
    #[arg(long, value_name = "BYTES", value_parser = size::parse)]
    pub memory: Option<u64>,

    /// Rebuilds the index even if it is whole
    #[arg(long)]
    pub force: bool,

    /// Prints one JSON object
    #[arg(long)]
    pub json: bool,
}

/// `stratann bench`
#[derive(Debug, Args)]
#[command(
    after_help = "Paths in a job are relative to its [data] root, which is relative to the job file. \
                        If STRATANN_DATA is set, it replaces the root."
)]
pub struct BenchArguments {
    /// The job (TOML, see bench/README.md)
    pub job: PathBuf,

    /// The folder of results: NAME.json and NAME.svg
    #[arg(long, value_name = "DIR", default_value = "bench/out")]
    pub out: PathBuf,

    /// The folder of built indexes, which later runs use again [default: DIR/indexes]
    #[arg(long, value_name = "DIR")]
    pub cache: Option<PathBuf>,

    /// Rebuilds every index, even if the cache has it
    #[arg(long)]
    pub rebuild: bool,

    /// Results of another program, for the same table and plot; may be repeated
    #[arg(long, value_name = "FILE")]
    pub with: Vec<PathBuf>,

    /// Measures only the runs whose name contains this text; may be repeated
    #[arg(long, value_name = "TEXT")]
    pub only: Vec<String>,

    /// Repeats of every measurement, in place of the job's number
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    pub repeat: Option<usize>,

    /// Prints the result as JSON instead of tables
    #[arg(long)]
    pub json: bool,
}

/// `stratann memory-server`
#[derive(Debug, Args)]
#[command(args_override_self = true)]
#[command(after_help = format!(
    "Clients and server share a secret: the file that STRATANN_SECRET_FILE names, or STRATANN_SECRET. If none is given, processes of one user \
     share one on loopback. Clients that encrypt trust the certificates in the file that STRATANN_TLS_CA names.\n{SIZES}"
))]
pub struct MemoryServerArguments {
    /// Serves lists and high codes of this index, of the preset distvs, to compute servers. Without
    /// an index, stores files for clients
    pub index: Option<PathBuf>,

    /// Most bytes of the files of clients
    #[arg(long, value_name = "BYTES", value_parser = size::parse, required_unless_present = "index", conflicts_with = "index")]
    pub bytes: Option<u64>,

    /// The address to listen on; port 0 takes any free port. Addresses other than loopback need a
    /// secret
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:7700", value_parser = servers::host_and_port)]
    pub listen: String,

    /// Stores the files in a folder of the server's own, as below /dev/shm, where they survive the
    /// server [default: in its memory]
    #[arg(long, value_name = "DIR", conflicts_with_all = ["index", "ucx"])]
    pub folder: Option<PathBuf>,

    /// With an index: sends each message separately, for comparison. By default, answers to
    /// messages that arrived together are sent together (DistVS §4.2)
    #[arg(long, conflicts_with_all = ["bytes", "folder"])]
    pub no_batch: bool,

    /// With an index: checks every second whether it was merged, and loads the new lists and codes.
    /// For half a minute both are in memory, and the old ones still answer
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
    /// The shell
    pub shell: clap_complete::Shell,
}

fn at_least_one(text: &str) -> Result<usize, String> {
    match text.parse::<usize>() {
        Ok(0) => Err("must be at least 1".into()),
        Ok(number) => Ok(number),
        Err(_) => Err(format!("'{text}' is not a whole number")),
    }
}

/// Parses a number from 1 to `most`, a bound of the engine.
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
            "'{text}' is no share. Give a number from 0 to 1, for example 0.01"
        )),
    }
}

/// The threads to use: the given number, else one for each core that this process may run on.
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
