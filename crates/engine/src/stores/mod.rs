//! Stores: the parts of an index, one for each role. The rest of the engine depends on the
//! properties of a store, not on its kind.
//!
//! ```text
//!   role       contents                                    here
//!   topology   a node's neighbours, and data beside them   topology/   a file for each page layout
//!   codes      estimates of distances for many nodes       codes.rs    all, or entry points
//!   vectors    exact vectors, apart from lists             vectors/    segments, and later inserts
//!   ids        a node's id                                 in the record that has the vector
//!              the node of an id                           ids.rs      a file, or ids are numbers
//!   columns    attributes, and the nodes that have them    columns/    segments, and later rows
//! ```
//!
//! A **layout** is a named composition of stores. The [`Composition`] of a layout has the
//! properties of its stores, and the functions that open and write the stores. [`topology`] has the
//! list of layouts.
//!
//! The compiler makes one version of a search for each layout ([`on_pages`]), so that a step of a
//! walk needs no dynamic dispatch.

pub(crate) mod clusters;
pub(crate) mod codes;
pub(crate) mod columns;
pub(crate) mod composition;
mod graph;
pub(crate) mod heat;
pub(crate) mod ids;
pub(crate) mod page_source;
mod pages;
pub(crate) mod reading;
pub(crate) mod records;
pub(crate) mod resident;
#[cfg(test)]
pub(crate) mod roles;
pub(crate) mod slotted;
pub(crate) mod topology;
pub(crate) mod vectors;
pub(crate) mod writing;

pub(crate) use self::clusters::ClusterStores;
pub(crate) use self::codes::CodeParts;
pub(crate) use self::composition::{Composition, VectorsAt};
pub(crate) use self::graph::GraphStores;
pub(crate) use self::pages::{
    CodedComposer, Composable, Composer, NodePages, NothingChanges, PageView, PagesStay, Placed,
    Record, RecordsMove, Rewritable, too_long, undecodable,
};
pub(crate) use self::topology::{Pages, on_pages};
