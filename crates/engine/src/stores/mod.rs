//! Stores: what an index is made of, one for each role. Opening, searching and changing it know what a store can do, not which it is.
//!
//! ```text
//!   role       answers                                        here
//!   topology   a node's neighbours, and what stands beside    topology/   a file for each layout of pages
//!   codes      estimates of distances for many nodes          codes.rs    in memory, or those of the entry points alone
//!   vectors    exact vectors, apart from lists                vectors/    segments, and what came after the build
//!   ids        a node's outside id                            in the record that has the vector
//!              the node of an outside id                      ids.rs      a file, unless they are the nodes' numbers
//!   columns    what a vector has beside it; which have it     columns/    segments, and what came since
//! ```
//!
//! A **layout** is a named composition of stores. [`topology`] has the one list of layouts; a layout's [`Composition`] says
//! what its stores can do and how they are opened and written, and nothing else in the engine asks for a layout by name.
//!
//! - [`pages`]: what a traversal sees of pages, whatever their layout: [`NodePages`]
//! - [`records`]: what a check and a salvage see of pages, whatever their format
//! - [`graph`]: topology and vectors of a graph index that is open, and the pages of them that are in memory
//! - [`clusters`]: the stores of a cluster index that is open
//! - [`roles`]: a volume, and thereby a tier, for each role
//! - [`slotted`]: what all files of slotted pages have in common
//! - [`source`]: where the bytes of a page come from, in which order; [`resident`]: pages that the memory budget holds
//!
//! A search is compiled once for each layout ([`on_pages`]), so nothing is dispatched per hop.

pub(crate) mod clusters;
pub(crate) mod codes;
pub(crate) mod columns;
pub(crate) mod composition;
mod graph;
pub(crate) mod ids;
pub(crate) mod page_source;
mod pages;
pub(crate) mod records;
pub(crate) mod resident;
pub(crate) mod roles;
pub(crate) mod slotted;
pub(crate) mod topology;
pub(crate) mod vectors;

pub(crate) use self::clusters::ClusterStores;
pub(crate) use self::codes::CodeParts;
pub(crate) use self::composition::{Composition, VectorsAt};
pub(crate) use self::graph::GraphStores;
pub(crate) use self::pages::{
    CodedComposer, Composable, Composer, NodePages, NothingChanges, PageView, PagesStay, Placed,
    Record, RecordsMove, Rewritable, too_long, undecodable,
};
pub use self::topology::Layout;
pub(crate) use self::topology::{Pages, on_pages};
