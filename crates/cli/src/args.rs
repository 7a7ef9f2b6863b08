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
#[command(after_help = "Exit status: 0 done, 1 it failed, 2 the call was wrong.")]
pub struct Arguments {
    /// Shows no progress and no warnings
    #[arg(short, long, global = true)]
    pub quiet: bool,

    /// What to do
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Builds an index directory from a file of vectors
    Build(BuildArguments),
    /// Creates an index without vectors, for those that `stratann insert` brings
    Create(CreateArguments),
    /// Says what a build will need in memory and on storage, before it begins
    Plan(PlanArguments),
    /// Trains a codebook, for indexes that are to share one
    Train(TrainArguments),
    /// Searches indexes, and measures: recall, speed, latency, reads
    Search(SearchArguments),
    /// Computes the exact nearest neighbours by brute force
    Truth(TruthArguments),
    /// Inserts vectors into an index
    Insert(InsertArguments),
    /// Deletes vectors from an index: those of some ids, or what matches a filter
    Delete(DeleteArguments),
    /// Gives vectors in an index other attributes, by their ids: all that they have beside them, or some
    SetAttributes(SetAttributesArguments),
    /// Gives vectors by their ids, or lists the ids in an index
    Get(GetArguments),
    /// Counts the vectors in an index, or those that match a filter
    Count(CountArguments),
    /// Merges what was inserted and deleted into a new checkpoint, and gives the space back
    Compact(CompactArguments),
    /// Measures how much searches find with which list, for `search --recall`: with queries like those to come, or with vectors of the index
    Calibrate(CalibrateArguments),
    /// Says what an index is and how large its parts are, or lists the indexes in a directory
    Stats(StatsArguments),
    /// Reads every byte of an index and reports what is damaged
    Verify(VerifyArguments),
    /// Builds a damaged index anew from the vectors in it that can be read, and says what is lost
    Repair(RepairArguments),
    /// Copies an index as it is at one moment, while others may search and change it
    Snapshot(SnapshotArguments),
    /// Writes all vectors of an index to a file, their ids and attributes to files beside it
    Export(ExportArguments),
    /// Runs a benchmark job: builds, searches, tables, JSON and a plot
    Bench(BenchArguments),
    /// Tries presets on a sample, and says which to take on a device, and what to expect
    Advise(AdviseArguments),
    /// Lists the copies of indexes at a place, and removes those that nobody uses
    Copies(CopiesArguments),
    /// Serves memory of this machine to searches in other processes, here or elsewhere (`--place topology=remote:..`), or the lists and high
    /// codes of an index to compute servers
    MemoryServer(MemoryServerArguments),
    /// Serves the exact vectors of an index to compute servers, which re-rank with them
    StorageServer(StorageServerArguments),
    /// Searches for clients, with a memory server and storage
    ComputeServer(ComputeServerArguments),
    /// All servers of an index on this machine, and searches through compute servers
    #[command(subcommand)]
    Cluster(ClusterCommand),
    /// Lists the presets and the choices that each one stands for
    Presets(PresetsArguments),
    /// Prints a completion script for a shell
    Completions(CompletionsArguments),
}

const FILES: &str =
    "Files of vectors: .fbin .u8bin .i8bin .hbin .fvecs .bvecs .npy, told by their extension.";
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

    /// The index: a directory that this creates
    pub index: PathBuf,

    #[command(flatten)]
    pub shape: ShapeArguments,

    /// Id of the first row; the others count on. Indexes that are searched together should have no id in common
    #[arg(long, default_value_t = 0, value_name = "ID")]
    pub first_id: u64,

    /// The id of each row; with --vectors the column that has them [default: row numbers, from --first-id on]
    #[arg(long, value_name = "FILE|COLUMN", conflicts_with = "first_id")]
    pub ids: Option<PathBuf>,

    /// The column that has the vectors, if BASE is a Parquet file: lists of floats of 16, 32 or 64 bits, or of integers of 8 bits
    #[arg(long = "vectors", value_name = "COLUMN")]
    pub column: Option<String>,

    #[command(flatten)]
    pub rows: RowArguments,

    #[command(flatten)]
    pub places: PlaceArguments,

    /// Replaces an index that is there already
    #[arg(long)]
    pub overwrite: bool,

    /// Does not measure how much searches find with which list: they cannot be asked for a --recall then, unless `stratann calibrate` is run
    #[arg(long)]
    pub no_calibrate: bool,

    /// Keeps savepoints, and goes on from those that a build of the same vectors and options left when it was killed or interrupted
    #[arg(long)]
    pub resume: bool,

    /// With --resume: seconds of work between two savepoints of the graph, at least; 0 is as often as there can be one
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

/// What `stratann build` and `stratann create` make of vectors, and `stratann plan` weighs.
#[derive(Debug, Args)]
pub struct ShapeArguments {
    /// Order, layout and search defaults (see `stratann presets`)
    #[arg(short, long, value_parser = names::preset(), default_value = Preset::default().name)]
    pub preset: Preset,

    /// What near means
    #[arg(short, long, value_parser = names::metric(), default_value = "l2", visible_aliases = ["distance", "dist-fn"])]
    pub metric: Metric,

    /// Largest number of neighbours a node keeps: R [default: 64, or with --search-memory what fills the blocks]
    #[arg(short = 'R', long, value_name = "R", value_parser = at_least_one,
          visible_aliases = ["max-degree", "graph-degree"])]
    pub degree: Option<usize>,

    /// Candidates kept while a node's neighbours are sought: L of the build
    #[arg(short = 'L', long, default_value_t = 100, value_name = "L", value_parser = list_size,
          visible_aliases = ["complexity", "lbuild"])]
    pub build_list: usize,

    /// Pruning: above 1 keeps longer edges, and so fewer hops
    #[arg(long, default_value_t = 1.2, value_name = "A")]
    pub alpha: f32,

    /// Bytes of the compressed code of a vector [default: a quarter of the dimension]
    #[arg(long, value_name = "B", value_parser = at_least_one, visible_aliases = ["pq-bytes", "num-pq-chunks"])]
    pub code_bytes: Option<usize>,

    /// What low codes are, in a preset whose codes are of two precisions; --code-bytes are those of the high ones [default: nested]
    #[arg(long, value_parser = names::low_codes())]
    pub low_codes: Option<LowCodes>,

    /// The codebook that `stratann train` wrote, instead of one of its own: indexes with the same share it in memory
    #[arg(long, value_name = "FILE")]
    pub codebook: Option<PathBuf>,

    /// In which order nodes lie on storage [default: the preset's]
    #[arg(long, value_parser = names::order())]
    pub order: Option<Order>,

    /// How lists and vectors become bytes [default: the preset's; stratann's goes by the vectors]
    #[arg(long, value_parser = names::layout())]
    pub layout: Option<Layout>,

    /// How they are compressed, without loss [default: the preset's, and raw if coupled]
    #[arg(long, value_parser = names::compression())]
    pub compression: Option<Compression>,

    /// Uncompressed bytes of a chunk of vectors: C of the decoupled layout
    #[arg(long, value_name = "BYTES", value_parser = size::parse, default_value = "4MiB",
          visible_alias = "chunk-size")]
    pub chunk: u64,

    /// Chooses the chunk for what it takes in memory, as a share of the uncompressed vectors, for example 0.001
    #[arg(long, value_name = "BETA", conflicts_with = "chunk")]
    pub chunk_overhead: Option<f64>,

    /// Uncompressed bytes of a segment of vectors, which is compressed as one
    #[arg(long, value_name = "BYTES", value_parser = size::parse, default_value = "512MiB",
          visible_alias = "segment-size")]
    pub segment: u64,

    /// Share of the vectors sampled into the navigation graph, from which `search --nav` starts; 0 for none
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

    /// What searches will have: where it cannot hold all codes, stratann puts them into the nodes on storage; of large vectors it says whether they are kept in two parts
    #[arg(long, value_name = "BYTES", value_parser = size::parse)]
    pub search_memory: Option<u64>,

    /// Most bytes that the index may take: the degree is the largest of 16 to 96 with which it is expected to fit
    #[arg(long, value_name = "BYTES", value_parser = size::parse, conflicts_with = "degree")]
    pub space: Option<u64>,

    /// Vectors for each cluster, about, in a layout of clusters [default: 12 if replicated, else 32]
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    pub cluster_size: Option<usize>,

    /// Most clusters that a vector is a member of, in a layout of clusters [default: 8]
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    pub replicas: Option<usize>,

    /// A file of queries, as they come: in the grouped layout each vector stands in the group of the cluster that these probe most
    #[arg(long, value_name = "FILE", visible_alias = "frequencies")]
    pub query_log: Option<PathBuf>,

    /// Threads [default: cores]
    #[arg(short = 'T', long, value_name = "N", value_parser = threads, visible_alias = "num-threads")]
    pub threads: Option<usize>,

    /// Seed of every random choice: one thread and the same seed give the same index
    #[arg(long, default_value_t = 42, value_name = "N")]
    pub seed: u64,
}

/// `stratann plan`
#[derive(Debug, Args)]
#[command(after_help = files_and_sizes())]
pub struct PlanArguments {
    /// The file of vectors to index
    pub base: PathBuf,

    #[command(flatten)]
    pub shape: ShapeArguments,

    /// Prints one JSON object
    #[arg(long)]
    pub json: bool,
}

/// `stratann train`
#[derive(Debug, Args)]
#[command(after_help = FILES)]
pub struct TrainArguments {
    /// The file of vectors to train on: an even sample of up to 100,000 of them, fewer of more than 128 dimensions
    pub base: PathBuf,

    /// The file to write, which `stratann build --codebook` reads
    pub codebook: PathBuf,

    /// Bytes of the compressed code of a vector [default: a quarter of the dimension]
    #[arg(long, value_name = "B", value_parser = at_least_one, visible_aliases = ["pq-bytes", "num-pq-chunks"])]
    pub code_bytes: Option<usize>,

    /// For codes of two precisions, as the preset distvs has them: what the low ones are; --code-bytes are those of the high ones
    #[arg(long, value_parser = names::low_codes())]
    pub low_codes: Option<LowCodes>,

    /// What near means
    #[arg(short, long, value_parser = names::metric(), default_value = "l2", visible_aliases = ["distance", "dist-fn"])]
    pub metric: Metric,

    /// Threads, on which the result does not depend [default: cores]
    #[arg(short = 'T', long, value_name = "N", value_parser = threads, visible_alias = "num-threads")]
    pub threads: Option<usize>,

    /// Seed of every random choice
    #[arg(long, default_value_t = 42, value_name = "N")]
    pub seed: u64,

    /// Replaces a file that is there already
    #[arg(long)]
    pub overwrite: bool,

    /// Prints what was trained as one JSON object
    #[arg(long)]
    pub json: bool,
}

/// `stratann search`
#[derive(Debug, Args)]
#[command(after_help = files_and_sizes())]
#[command(override_usage = "stratann search [OPTIONS] <INDEX>... <QUERIES>")]
pub struct SearchArguments {
    /// The index directory, then the file of query vectors. Several indexes of one space, or directories that hold some, are
    /// searched as one
    // A single list, since two lists could not be distinguished with options between their words.
    #[arg(required = true, value_name = "INDEX.. QUERIES")]
    pub files: Vec<PathBuf>,

    /// Neighbours wanted for each query
    #[arg(short = 'k', long = "k", default_value_t = 10, value_name = "K", value_parser = at_least_one,
          visible_aliases = ["recall-at", "k-neighbors"])]
    pub k: usize,

    /// Candidates kept during a search: L; several, for example 20,40,60, are measured one after the other; of a cluster index the clusters
    /// that are probed [default: 100, or k if that is more]
    #[arg(short = 'L', long, value_name = "L,..", value_delimiter = ',', value_parser = list_size,
          visible_aliases = ["search-list", "list-size"])]
    pub list: Vec<usize>,

    /// Clusters that are probed, of a cluster index: one or several, which may be fewer than k [default: the list size, if one is given; else
    /// 32, or k if that is more]
    #[arg(long, value_name = "N,..", value_delimiter = ',', value_parser = list_size, conflicts_with = "list")]
    pub probes: Vec<usize>,

    /// The share of the true nearest that is to be found, above 0 and up to 1: each query looks at as many candidates as that takes, by what was
    /// measured when the index was built, or by `stratann calibrate`. With --truth, what is found is measured, too
    #[arg(long, value_name = "F", conflicts_with_all = ["list", "probes"])]
    pub recall: Option<f64>,

    /// Finds the smallest list size, or number of probes, whose recall reaches --recall for these queries; needs --truth
    #[arg(long, requires_all = ["recall", "truth"])]
    pub find_list: bool,

    /// What the attributes of answers have to match, as "year >= 2020 and tags contains 'sea'". Of several indexes one may be without a column that
    /// others have: there nothing has a value in it. A --truth has to be of what matches alone
    #[arg(long, value_name = "TEXT", value_parser = filter)]
    pub filter: Option<Filter>,

    /// All that is within this distance of each query, by exact distances, instead of the k nearest: printed as --print does, some at a time
    #[arg(long, value_name = "DISTANCE", allow_negative_numbers = true,
          conflicts_with_all = ["k", "recall", "truth", "out", "explain", "parts"])]
    pub within: Option<f32>,

    /// The nearest to vectors of the index, by their ids, instead of a file of queries; these themselves are no answers. Printed as --print does
    #[arg(long, value_name = "ID,..", value_delimiter = ',', value_parser = ids::one,
          conflicts_with_all = ["truth", "out", "explain", "parts", "find_list"])]
    pub like: Vec<u64>,

    /// Says which way what matches was found, what that cost, and what each way was expected to read; --json says it without
    #[arg(long, requires = "filter")]
    pub explain: bool,

    /// How what matches is found, instead of the way that is expected to cost least: for comparisons, as bench/filters.py makes them
    #[arg(long, hide = true, requires = "filter", value_parser = names::way())]
    pub way: Option<Way>,

    /// Ground truth to measure recall against (big-ann .bin, .ibin or .ivecs)
    #[arg(long, value_name = "FILE", visible_aliases = ["groundtruth", "gt-file"])]
    pub truth: Option<PathBuf>,

    /// Measures recall without --truth: answers so many of the queries exactly, by a look at all vectors behind each list size. Of one index
    #[arg(long, value_name = "N", value_parser = watched, conflicts_with_all = ["within", "like", "find_list", "print"])]
    pub watch_recall: Option<usize>,

    /// Takes the search defaults from this preset [default: the one that the index was built with]
    #[arg(short, long, value_parser = names::preset())]
    pub preset: Option<Preset>,

    /// Nodes read at once: W; the most of them with a pipelined search [default: the preset's]
    #[arg(short = 'W', long, value_name = "W", value_parser = beam, visible_alias = "beam-width")]
    pub beam: Option<usize>,

    /// Order of reading [default: the preset's]
    #[arg(long, value_parser = names::strategy())]
    pub strategy: Option<Strategy>,

    /// Starts from the navigation graph [default: the preset's]
    #[arg(long, overrides_with = "no_nav")]
    pub nav: bool,

    /// Starts from the graph's entry point
    #[arg(long, overrides_with = "nav")]
    pub no_nav: bool,

    /// Uses a page that was read for every candidate in it [default: the preset's]
    #[arg(long, overrides_with = "no_whole_page")]
    pub whole_page: bool,

    /// Uses only the node that a page was read for
    #[arg(long, overrides_with = "whole_page")]
    pub no_whole_page: bool,

    /// Threads [default: cores]
    #[arg(short = 'T', long, value_name = "N", value_parser = threads, visible_alias = "num-threads")]
    pub threads: Option<usize>,

    /// Queries in flight on each thread; 1 for the least latency of each [default: up to 8, by the number of queries; with 256 and more for
    /// each thread what measures best]
    #[arg(long, value_name = "N", value_parser = in_flight)]
    pub in_flight: Option<usize>,

    /// Candidates that are ranked at once, where whole vectors are apart from lists: B [default: the preset's]
    #[arg(long, value_name = "B", value_parser = list_size)]
    pub rerank_batch: Option<usize>,

    /// Re-ranking ends when a smaller share of a batch than this became answers; 0 ranks all [default: the preset's]
    #[arg(long, value_name = "F", value_parser = share)]
    pub benefit: Option<f64>,

    /// What ends re-ranking [default: the preset's]
    #[arg(long, value_enum)]
    pub rerank: Option<RerankName>,

    /// Ranks this share of the candidate list, at least k, all at once and only when the list is done; 0 goes by --rerank [default: the preset's]
    #[arg(long, value_name = "F", value_parser = share)]
    pub rerank_ratio: Option<f64>,

    /// With the strategy press: the longest list of candidates by codes of low precision, as a multiple of --list; 2 in DistVS [default: 3]
    #[arg(long, value_name = "F")]
    pub low_list: Option<f64>,

    /// With the strategy press: the share of that list that is looked at by codes of high precision in each round; 0.3 in DistVS [default: 0.2]
    #[arg(long, value_name = "F")]
    pub refine: Option<f64>,

    /// Without --nav: nodes that are looked at first by their codes (of low precision, where there are two), near the nearest of which a search begins; 0 is the graph's entry node, as in DistVS
    /// [default: 64 with the strategy press, else 0]
    #[arg(long)]
    pub seeds: Option<usize>,

    /// Cap on the memory of the search, of all indexes together
    #[arg(long, value_name = "BYTES", value_parser = size::parse)]
    pub memory: Option<u64>,

    /// Cache of hot lists, and of the vectors beside them, in bytes, one for each index [default: none]
    #[arg(long, value_name = "BYTES", value_parser = size::parse)]
    pub cache: Option<u64>,

    /// The same in entries, or in percent of the vectors, for example 1%
    #[arg(long, value_name = "N", conflicts_with = "cache")]
    pub cache_entries: Option<CacheEntries>,

    /// How pages are read: io_uring, or pread on a pool of threads where io_uring is refused
    #[arg(long, value_enum, default_value = "auto")]
    pub io: IoName,

    #[command(flatten)]
    pub places: PlaceArguments,

    /// Writes the ids and distances found, in the ground-truth format, or the ids alone as .npy; distances are exact (--exact)
    #[arg(long, value_name = "FILE")]
    pub out: Option<PathBuf>,

    /// Replaces the file of --out
    #[arg(long, requires = "out")]
    pub overwrite: bool,

    /// Prints the ids and distances found instead of measurements: a table, or with --json a line of JSON for each query; distances are exact (--exact)
    #[arg(long)]
    pub print: bool,

    /// Distances to the last bit in the layered layout, too, which reads the trailing parts of all answers
    #[arg(long)]
    pub exact: bool,

    /// Ends a search when no candidate that is left can be expected to matter, as far as the error of the codes tells: fewer reads,
    /// and a little less found, with the same list
    #[arg(long)]
    pub stop_early: bool,

    /// Measures where a query's time goes, which costs some
    #[arg(long)]
    pub parts: bool,

    /// Prints one JSON object for each list size
    #[arg(long)]
    pub json: bool,

    /// With --json: more than the documented keys. This is what `stratann bench` reads.
    #[arg(long, hide = true, requires = "json")]
    pub measure: bool,
}

impl SearchArguments {
    /// The index directories, or those that hold some.
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

const IDS: &str = "A file of ids has one id a line, or several with spaces or commas between them; - is the standard input.";

/// `stratann insert`
#[derive(Debug, Args)]
#[command(after_help = format!("{FILES}\n{IDS}\n{SIZES}"))]
pub struct InsertArguments {
    /// The index directory
    pub index: PathBuf,

    /// The file of vectors to insert
    pub vectors: PathBuf,

    /// The id of each vector; with --vectors the column that has them [default: they count on from the largest that the index ever had]
    #[arg(long, value_name = "FILE|COLUMN")]
    pub ids: Option<PathBuf>,

    /// The column that has the vectors, if VECTORS is a Parquet file: lists of floats of 16, 32 or 64 bits, or of integers of 8 bits
    #[arg(long = "vectors", value_name = "COLUMN")]
    pub column: Option<String>,

    /// Replaces vectors whose ids are in the index; without it, such an id is an error
    #[arg(long, requires = "ids")]
    pub upsert: bool,

    /// Goes on with an insert of the same rows that was cut off: inserts those that are not in. Give it the same options
    #[arg(long, conflicts_with = "upsert")]
    pub resume: bool,

    /// Inserts all rows, also where an insert of the same rows was cut off, which is forgotten
    #[arg(long, conflicts_with_all = ["upsert", "resume", "ids"])]
    pub no_resume: bool,

    /// Inserts nothing: forgets an insert of VECTORS that was cut off. VECTORS is its file, which need not be there any more, or the name that `verify` gives it. Its rows that are in stay
    #[arg(long, conflicts_with_all = ["upsert", "resume", "no_resume", "ids", "compact"])]
    pub forget: bool,

    #[command(flatten)]
    pub rows: RowArguments,

    #[command(flatten)]
    pub write: WriteArguments,

    /// Merges the vectors into a new checkpoint at the end, as `stratann compact` does
    #[arg(long)]
    pub compact: bool,

    /// Prints what was done as one JSON object
    #[arg(long)]
    pub json: bool,
}

/// `stratann delete`
#[derive(Debug, Args)]
#[command(after_help = format!("{IDS}\n{SIZES}"))]
pub struct DeleteArguments {
    /// The index directory
    pub index: PathBuf,

    /// Ids of the vectors to delete, as `get` takes them; or one file of ids (of a file that is named like an id, give the path: ./5)
    #[arg(value_name = "ID|FILE")]
    pub id: Vec<PathBuf>,

    /// A file of them
    #[arg(long, value_name = "FILE", conflicts_with = "id")]
    pub ids: Option<PathBuf>,

    /// Deletes what matches, in place of ids: "year < 2020 and sold == true". `stratann count --filter` says before how many that are
    #[arg(long, value_name = "TEXT", value_parser = filter, conflicts_with_all = ["id", "ids"])]
    pub filter: Option<Filter>,

    #[command(flatten)]
    pub write: WriteArguments,

    /// Merges the rest into a new checkpoint at the end, as `stratann compact` does
    #[arg(long)]
    pub compact: bool,

    /// Prints what was done as one JSON object
    #[arg(long)]
    pub json: bool,
}

/// `stratann set-attributes`
#[derive(Debug, Args)]
#[command(after_help = format!("{IDS}\n{SIZES}"))]
pub struct SetAttributesArguments {
    /// The index directory
    pub index: PathBuf,

    /// What the vectors have from now on: a file of JSON lines, an object for each vector, or a Parquet file, as that of `build --attributes`, with its id. Without
    /// `--keep` a vector keeps nothing that is not given again, neither attributes nor payload
    #[arg(value_name = "FILE")]
    pub rows: PathBuf,

    /// The key of those objects, or the column, whose value is the id
    #[arg(long, value_name = "KEY", default_value = "id")]
    pub id: String,

    /// The ids of the lines or rows in order; no key of the objects and no column is one then
    #[arg(long, value_name = "FILE", conflicts_with = "id")]
    pub ids: Option<PathBuf>,

    /// Keeps what a line does not give: attributes of other names, and the payload of a line that has none. A null takes away what it names
    #[arg(long)]
    pub keep: bool,

    /// The key of those objects, or the column, whose value is the payload: any JSON
    #[arg(long, value_name = "KEY")]
    pub payload: Option<String>,

    /// Keys of those objects, or columns, whose values are times: ISO 8601, or microseconds since 1970. Timestamps and dates of a Parquet file are
    /// times without it
    #[arg(long, value_name = "KEY,..", value_delimiter = ',')]
    pub times: Vec<String>,

    /// Keys of those objects, or columns, that are left out
    #[arg(long, value_name = "KEY,..", value_delimiter = ',')]
    pub without: Vec<String>,

    #[command(flatten)]
    pub write: WriteArguments,

    /// Merges the rest into a new checkpoint at the end, as `stratann compact` does
    #[arg(long)]
    pub compact: bool,

    /// Prints what was done as one JSON object
    #[arg(long)]
    pub json: bool,
}

/// `stratann get`
#[derive(Debug, Args)]
#[command(after_help = format!("{IDS}\nWhat is printed of an index that somebody changes meanwhile is what it was when the command began.\n{SIZES}"))]
pub struct GetArguments {
    /// The index directory
    pub index: PathBuf,

    /// Ids of the vectors that are wanted [default: all, in the order of their ids]
    #[arg(value_name = "ID", value_parser = ids::one)]
    pub id: Vec<u64>,

    /// A file of them
    #[arg(long, value_name = "FILE", conflicts_with = "id")]
    pub ids: Option<PathBuf>,

    /// Those whose attributes match, in the order of their ids, as "year >= 2020 and tags contains 'sea'"
    #[arg(long, value_name = "TEXT", value_parser = filter, conflicts_with_all = ["id", "ids"])]
    pub filter: Option<Filter>,

    /// Prints the ids alone, one a line, as a file of ids has them
    #[arg(long, conflicts_with_all = ["out", "json"])]
    pub list: bool,

    /// Prints a line of JSON for each vector, in place of its elements: its id, and its attributes and payload
    #[arg(long, conflicts_with_all = ["out", "json", "list"])]
    pub attributes: bool,

    /// Writes the vectors to a file, in their order: .fbin .u8bin .i8bin .hbin, by their elements
    #[arg(long, value_name = "FILE")]
    pub out: Option<PathBuf>,

    /// Replaces the file of --out
    #[arg(long, requires = "out")]
    pub overwrite: bool,

    /// Cap on the memory of the process
    #[arg(long, value_name = "BYTES", value_parser = size::parse)]
    pub memory: Option<u64>,

    /// Prints a line of JSON for each vector: its id, and all of its elements
    #[arg(long)]
    pub json: bool,
}

/// `stratann count`
#[derive(Debug, Args)]
pub struct CountArguments {
    /// The index directory
    pub index: PathBuf,

    /// What attributes have to match, as "year >= 2020 and tags contains 'sea'" [default: all are counted]
    #[arg(long, value_name = "TEXT", value_parser = filter)]
    pub filter: Option<Filter>,

    /// Prints one JSON object
    #[arg(long)]
    pub json: bool,
}

/// What vectors of a file have beside them.
#[derive(Debug, Args)]
pub struct RowArguments {
    /// What the vectors have beside them, for filters: a Parquet file, or a file of JSON lines, an object for each vector. Values are booleans, numbers,
    /// strings, lists of strings or of whole numbers; in Parquet timestamps and dates as well
    #[arg(long, value_name = "FILE")]
    pub attributes: Option<PathBuf>,

    /// The key of those objects, or the column, whose value is the payload: any JSON, which `get --attributes` gives back and nothing looks into
    #[arg(long, value_name = "KEY", requires = "attributes")]
    pub payload: Option<String>,

    /// Keys of those objects, or columns, whose values are times: ISO 8601, or microseconds since 1970. Timestamps and dates of a Parquet file are
    /// times without it
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

    /// A file of queries like those to come, of which up to 10,000 are searched [default: vectors of the index, each as if it were not there]
    pub queries: Option<PathBuf>,

    /// Cap on the memory that the index may take meanwhile
    #[arg(long, value_name = "BYTES", value_parser = size::parse)]
    pub memory: Option<u64>,

    /// Threads [default: cores]
    #[arg(short = 'T', long, value_name = "N", value_parser = threads, visible_alias = "num-threads")]
    pub threads: Option<usize>,

    /// Prints what was found as one JSON object
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

    /// Prints what was done as one JSON object
    #[arg(long)]
    pub json: bool,
}

/// What commands that change an index have in common.
#[derive(Debug, Args)]
pub struct WriteArguments {
    /// When a change is durable: always (each batch of rows before the next), at the end, or at the latest after so many
    /// milliseconds
    #[arg(long, value_name = "WHEN", default_value = "end", value_parser = durability)]
    pub durability: stratann::Durability,

    /// How new vectors get into the index: merge (they wait in memory for `compact`), relocate (at once, as OdinANN does),
    /// accumulate (at once, and changes of lists wait until their page has enough), in-place (at once, each list where it
    /// is: for tiny memory), or rebalance (some at a time into clusters, which stay in balance) [default: the preset's]
    #[arg(long, value_name = "WAY", value_parser = names::update(), hide_possible_values = true)]
    pub update: Option<stratann::Update>,

    /// L of the search that finds a new vector's neighbours [default: the degree; 32 more
    /// where each read serves one node]
    #[arg(long, value_name = "L", value_parser = list_size)]
    pub insert_list: Option<usize>,

    /// Cap on the memory of the process; a merge takes up to 64 MiB more
    #[arg(long, value_name = "BYTES", value_parser = size::parse)]
    pub memory: Option<u64>,

    #[command(flatten)]
    pub places: PlaceArguments,

    /// Threads [default: cores]
    #[arg(short = 'T', long, value_name = "N", value_parser = threads, visible_alias = "num-threads")]
    pub threads: Option<usize>,
}

/// Where searches read an index.
#[derive(Debug, Args)]
pub struct PlaceArguments {
    /// Reads a role (topology, vectors) from a tier: ssd, ssd:/folder, mapped:/folder (as mapped:/dev/shm/x), dram, remote:host:port/name (a `stratann memory-server`; remote-tls: with TLS; remote:shm:/path/name through a ring, remote:ucx:host:port/name through UCX), or for experiments
    /// ssd-model, rdma-model, cxl-model, nvm-model; several with commas, or several times. Copies that are not there yet are made and
    /// compared, and the index stays whole without them
    #[arg(long = "place", value_name = "ROLE=TIER,..")]
    pub place: Vec<Places>,
}

impl PlaceArguments {
    /// All of them.
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
            Err(_) => Err("write always, end, or milliseconds, for example 100ms".into()),
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

    /// The ground-truth file to write: .bin (ids and distances), .ibin or .ivecs (ids); .bin64 (as .bin, ids of 64 bits), .npy (ids of 64 bits)
    pub out: PathBuf,

    /// The id of the first row; the others count on
    #[arg(long, value_name = "ID", default_value_t = 0)]
    pub first_id: u64,

    /// The ids of the rows, as those of `build`
    #[arg(long, value_name = "FILE", conflicts_with = "first_id")]
    pub ids: Option<PathBuf>,

    /// Neighbours of each query
    #[arg(short = 'k', long = "k", default_value_t = 100, value_name = "K", value_parser = at_least_one,
          visible_aliases = ["recall-at", "k-neighbors"])]
    pub k: usize,

    /// What near means
    #[arg(short, long, value_parser = names::metric(), default_value = "l2", visible_aliases = ["distance", "dist-fn"])]
    pub metric: Metric,

    /// Threads [default: cores]
    #[arg(short = 'T', long, value_name = "N", value_parser = threads, visible_alias = "num-threads")]
    pub threads: Option<usize>,

    /// Replaces a file that is there already
    #[arg(long)]
    pub overwrite: bool,
}

/// `stratann stats`
#[derive(Debug, Args)]
pub struct StatsArguments {
    /// The index directory, or one that holds indexes, which are listed
    pub index: PathBuf,

    /// Explains how this memory budget would be divided
    #[arg(long, value_name = "BYTES", value_parser = size::parse)]
    pub memory: Option<u64>,

    #[command(flatten)]
    pub places: PlaceArguments,

    /// Prints one JSON object, or one a line for each index
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
    after_help = "The copy is durable, and opens, once the command has ended. One that was killed is begun anew by the same command."
)]
pub struct SnapshotArguments {
    /// The index directory
    pub index: PathBuf,

    /// The directory of the copy: empty, or not there yet
    pub dest: PathBuf,

    /// Prints what was copied as one JSON object
    #[arg(long)]
    pub json: bool,
}

/// `stratann export`
#[derive(Debug, Args)]
#[command(
    after_help = format!("The n-th vector, id and line of attributes belong together, in the order in which vectors stand on storage.\n{SIZES}")
)]
pub struct ExportArguments {
    /// The index directory
    pub index: PathBuf,

    /// The file of vectors: .npy, or .fbin .hbin .u8bin .i8bin, by their elements
    #[arg(short, long, value_name = "FILE")]
    pub out: PathBuf,

    /// The file of their ids: .npy (uint64), or any other name: one a line, as `build --ids` reads them [default: X.ids.npy of X.npy, X.ids of others]
    #[arg(long, value_name = "FILE")]
    pub ids: Option<PathBuf>,

    /// The file of their attributes and payloads, a JSON object a line, as `build --attributes` reads them [default: X.jsonl, if there are any]
    #[arg(long, value_name = "FILE")]
    pub attributes: Option<PathBuf>,

    /// Replaces files that are there already
    #[arg(long)]
    pub overwrite: bool,

    /// Cap on the memory of the process
    #[arg(long, value_name = "BYTES", value_parser = size::parse)]
    pub memory: Option<u64>,

    /// Prints what was written as one JSON object
    #[arg(long)]
    pub json: bool,
}

/// `stratann copies`
#[derive(Debug, Args)]
pub struct CopiesArguments {
    /// The index directory whose copies are meant [default: those of all indexes]
    pub index: Option<PathBuf>,

    #[command(flatten)]
    pub places: PlaceArguments,

    /// Removes them, but for those that somebody has open
    #[arg(long)]
    pub remove: bool,

    /// Prints one JSON object
    #[arg(long)]
    pub json: bool,
}

/// `stratann repair`
#[derive(Debug, Args)]
#[command(after_help = format!(
    "An index that is whole is left alone. What a repair could not read is gone when it is done: copy the directory first if \
     another attempt may read more.\nExit status: 0 repaired, or nothing to do; 1 it could not be.\n{SIZES}"
))]
pub struct RepairArguments {
    /// The index directory
    pub index: PathBuf,

    /// Threads [default: cores]
    #[arg(short = 'T', long, value_name = "N", value_parser = threads, visible_alias = "num-threads")]
    pub threads: Option<usize>,

    /// Cap on the memory of the build
    #[arg(long, value_name = "BYTES", value_parser = size::parse)]
    pub memory: Option<u64>,

    /// Builds an index anew that is whole
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
                        STRATANN_DATA, if set, takes the root's place."
)]
pub struct BenchArguments {
    /// The job (TOML, see bench/README.md)
    pub job: PathBuf,

    /// Where results go: NAME.json and NAME.svg
    #[arg(long, value_name = "DIR", default_value = "bench/out")]
    pub out: PathBuf,

    /// Where built indexes are kept for the next time [default: DIR/indexes]
    #[arg(long, value_name = "DIR")]
    pub cache: Option<PathBuf>,

    /// Builds every index anew, though the cache holds it
    #[arg(long)]
    pub rebuild: bool,

    /// Results of another program, to appear in the same table and plot (several are possible)
    #[arg(long, value_name = "FILE")]
    pub with: Vec<PathBuf>,

    /// Only the runs whose name contains this (several are possible)
    #[arg(long, value_name = "TEXT")]
    pub only: Vec<String>,

    /// Repeats of every measurement, instead of the job's
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
    "Clients and server have a secret in common, in the file that STRATANN_SECRET_FILE names or in STRATANN_SECRET; on loopback, where none \
     is given, those of one user have one in common. Clients that encrypt believe the certificates in the file that STRATANN_TLS_CA names.\n{SIZES}"
))]
pub struct MemoryServerArguments {
    /// Serves lists and high codes of this index, of the preset distvs, to compute servers; without one, files that clients put here
    pub index: Option<PathBuf>,

    /// Most bytes of the files that clients put here
    #[arg(long, value_name = "BYTES", value_parser = size::parse, required_unless_present = "index", conflicts_with = "index")]
    pub bytes: Option<u64>,

    /// Where it listens; port 0 is any that is free. Other addresses than loopback need a secret
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:7700", value_parser = servers::host_and_port)]
    pub listen: String,

    /// Keeps the files in a folder of its own, as below /dev/shm, where they survive the server [default: in its memory]
    #[arg(long, value_name = "DIR", conflicts_with_all = ["index", "ucx"])]
    pub folder: Option<PathBuf>,

    /// Of an index: writes each message by itself, to compare: answers to what came together are put together else (DistVS §4.2)
    #[arg(long, conflicts_with_all = ["bytes", "folder"])]
    pub no_batch: bool,

    /// Of an index: looks every second whether it was merged, and goes on to the new lists and codes, while it answers by the old ones for half a minute: both are
    /// in memory then
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

/// A number from 1 to a bound of the engine's.
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
            "'{text}' is not a share: give a number from 0 to 1, for example 0.01"
        )),
    }
}

/// The threads to use: as asked, else one for each core that this process may run on.
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
