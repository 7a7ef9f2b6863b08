//! StratANN: vector search for collections that do not fit in RAM.
//!
//! An index is a directory on an SSD. A build reads a file (or an array) of vectors and writes it; a search keeps
//! the vectors' short codes in memory, walks a graph on disk with many reads in flight, and ranks by exact
//! distance.
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
//! The public API is what this page lists; all else is private. `ARCHITECTURE.md` walks the tree.

#![forbid(unsafe_code)]

mod advise;
mod bits;
pub mod bounds;
mod build;
mod cache;
mod catalog;
mod cluster;
mod codebook;
pub mod data;
mod durable;
mod error;
mod fill;
mod frontier;
mod graph;
mod index;
mod measure;
mod navigation;
mod places;
mod plan;
mod preset;
mod progress;
mod repair;
mod room;
mod savepoint;
mod search;
#[cfg(test)]
mod slow;
mod stats;
mod stored;
mod stores;
mod threads;
mod update;
mod verify;
mod visited;

pub use advise::{AdviseOptions, BoundBy, Candidate, advise};
pub use build::{BuildOptions, BuildReport, SpaceChoice, build, chunk_bytes_for_overhead};
pub use catalog::{Catalog, CatalogOptions, IndexFacts, MOST_OPEN};
pub use codebook::{Codebook, TrainOptions};
pub use data::{DataError, GroundTruth, Matrix, MatrixRef, VectorFile, VectorSource, brute_force};
pub use durable::Durability;
pub use error::{Error, ErrorKind};
pub use fill::{BlockFill, Fill};
pub use graph::GraphError;
pub use index::{CacheSize, Index, OpenOptions, THREAD_BYTES};
pub use places::{Copies, Places, copies, remove_copies};
pub use plan::MemoryPlan;
pub use preset::{Compression, Order, Preset, Rerank, Update};
pub use progress::{Progress, Silent};
pub use repair::{Lost, RepairOptions, RepairReport, repair};
pub use search::{Counters, Parts, SearchOptions, SearchResults, Strategy, SubmittedSearch, Tried};
pub use stats::{Bytes, ClusterStats, Codecs, GraphAndVectors, Stats};
pub use stored::vectors_in;
pub use stores::Layout;
pub use stratann_layout::LayoutError;
pub use stratann_tier::{
    Backend, DeviceKind, IoMode, TierError, peak_rss_bytes, process_cpu_time, reset_peak_rss,
};
pub use stratann_vector::{Element, InstructionSet, Metric, QuantizerError};
pub use threads::processors;
pub use update::{
    CompactReport, DirectCounts, DirectOptions, Due, LiveIndex, MergeWhen, Merger, Pruning,
    WriteOptions,
};
pub use verify::{Problem, VerifyReport, verify, verify_placed};
