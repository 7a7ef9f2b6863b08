//! StratANN: vector search for collections that do not fit in RAM.
//!
//! An index is a directory on an SSD. A build reads vectors from a file or an array, and writes the
//! directory. A search keeps short codes of the vectors in memory, walks a graph on disk with many
//! reads in flight, and ranks candidates by exact distance.
//!
//! ```no_run
//! use stratann::{BuildOptions, Index, OpenOptions, SearchOptions, Silent, VectorFile};
//!
//! # fn main() -> Result<(), stratann::Error> {
//! let base = VectorFile::open("base.u8bin")?;
//! stratann::build(&base, "photos.idx", &BuildOptions::default(), &Silent)?;
//!
//! let index = Index::open("photos.idx", &OpenOptions::default())?;
//! let queries = VectorFile::open("queries.u8bin")?;
//! let found = index.search(&queries, &SearchOptions { k: 10, list: 40, ..Default::default() })?;
//! println!("nearest of the first query: {:?}", &found.ids[..found.k]);
//! # Ok(())
//! # }
//! ```
//!
//! This page lists the whole public API. `ARCHITECTURE.md` explains the modules.

#![forbid(unsafe_code)]

mod alike;
mod bits;
mod build;
mod cache;
mod catalog;
mod cluster;
mod codebook;
pub mod data;
mod durable;
mod error;
mod export;
mod fill;
mod filter;
mod frontier;
mod graph;
mod index;
mod live_recall;
mod lookup;
mod measure;
mod navigation;
mod options;
mod overlay;
mod places;
mod plan;
pub mod press;
mod progress;
mod range;
mod recall;
mod repair;
mod room;
mod savepoint;
mod search;
#[cfg(test)]
mod slow;
mod snapshot;
mod sorter;
mod spec;
mod stored;
mod stores;
mod threads;
mod type_names;
mod update;
mod verify;
mod visited;
mod watch;

pub use alike::meant;
pub use build::{
    BuildPlan, BuildReport, SpaceChoice, build, build_with_rows, check_build,
    chunk_bytes_for_overhead, create, create_if_absent, create_with_columns, is_there_for,
    is_vacant, plan_build, plan_build_with_rows,
};
pub use catalog::{Catalog, CatalogOptions, IndexFacts, MOST_OPEN};
pub use codebook::{Codebook, TrainOptions};
pub use data::{
    Cleared, GroundTruth, JsonColumns, JsonRows, Matrix, MatrixRef, NoRows, Outline, RowSource,
    RowTable, VectorFile, VectorSource, brute_force, check_brute_force,
};
pub use error::{DataError, Error, ErrorKind, GraphError};
pub use export::{ExportOptions, ExportReport};
pub use fill::{BlockFill, Fill};
pub use filter::{Filter, FilterColumn, Schema};
pub use index::{CacheSize, Calibrated, Index, OpenOptions, Opener, QuerySource};
pub use lookup::Rows;
pub use options::BuildOptions;
pub use places::{Copies, Places, copies, remove_copies};
pub use plan::MemoryPlan;
pub use progress::{Progress, Silent, Stage, WithinStage};
pub use range::{Range, RangePlace, RangeResults};
pub use recall::{Calibration, calibrate, check_calibration};
pub use repair::{Lost, RepairOptions, RepairReport, repair};
pub use search::{
    ByWay, Counters, Estimates, Explained, Parts, SearchResults, SubmittedSearch, Tried,
};
pub use snapshot::{SnapshotReport, snapshot};
pub use spec::{
    Compression, DirectOptions, Durability, Layout, MergeWhen, Order, Preset, Press, Pruning,
    Rerank, SearchOptions, Strategy, THREAD_BYTES, Update, Way, WriteOptions, bounds,
};
pub use stored::vectors_in;
pub use stratann_layout::LayoutError;
pub use stratann_layout::attributes::{ColumnType, Row, Value};
pub use stratann_tier::{
    Backend, DeviceKind, IoMode, RecordingAllocator, TierError, explain_aborts, peak_rss_bytes,
    process_cpu_time, reset_peak_rss, share_arenas_under_a_limit, start as start_thread,
};
pub use stratann_vector::{Element, InstructionSet, LowCodes, Metric, QuantizerError};
pub use threads::processors;
pub use type_names::{NoColumnType, column_type};
pub use update::{
    Bytes, ClusterStats, CodebookFate, Codecs, CompactReport, CutOff, CutOffInsert, DirectCounts,
    Due, GraphAndVectors, IndexHealth, LiveIndex, Merger, Resumed, Stats,
};
pub use verify::{Problem, VerifyReport, verify, verify_placed};
pub use watch::{LiveRecall, RecallFound, RecallWatch};
