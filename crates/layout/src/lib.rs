//! The on-disk formats of StratANN: conversion between bytes and structs, and nothing else.
//!
//! This crate opens no file. It decodes bytes, or refuses them with an error that names the file,
//! the offset, the found and the expected value, and the remedy. No bytes cause a panic, and no
//! wrong value is replaced by a guess.
//!
//! ```text
//! index directory
//! ├── MANIFEST         text: names the files of the current checkpoint              (manifest)
//! ├── INSERTS          text: inserts that can be resumed                            (inserts)
//! │
//! │   the nodes of a graph index, in one of its layouts: [header block][page][page]..
//! ├── graph            coupled: vector and list side by side, uncompressed          (coupled)
//! ├── packed           packed: vector and list side by side, encoded                (slotted)
//! ├── adjacency        decoupled: the encoded lists                                 (slotted)
//! ├── vectors-0 ..     decoupled: the encoded vectors; a file for each segment      (slotted)
//! ├── layered          layered: the encoded lists, with leading parts of vectors    (slotted)
//! ├── inline           inline: as coupled, with the codes of the neighbours         (inline)
//! ├── csr              csr: vector and list in one row, without padding             (csr)
//! │
//! │   the vectors of a cluster index, without pages: [header block][bytes]..        (clusters)
//! ├── replicated       all members of each cluster, with their vectors
//! ├── grouped          the group of each cluster, and the numbers of other members
//! ├── addressed        each vector once
//! ├── postings         the numbers of the members of each cluster (with addressed)
//! │
//! │   byte strings: [header block][block][block]..                                  (stream)
//! ├── codes            the codes of all nodes, unless `inline` has them
//! ├── entries          entry points and their codes, if `inline` has all codes      (entries)
//! ├── codebook
//! ├── navigation       a graph over a sample of the nodes                           (navigation)
//! ├── clusters         the length of each posting list                              (clusters)
//! ├── amended          clusters that were rewritten since the build                 (clusters)
//! ├── directory        the page of each node in packed, adjacency or layered        (directory)
//! ├── chunks-0 ..      the page of each node in vectors-0 .., and base vectors      (chunks)
//! ├── ids              the external id of each node, unless these are 0, 1, ..      (ids)
//! ├── rows-0 ..        attributes and payloads of vectors, a file for each segment  (columns)
//! ├── columns-0 ..     the nodes of each value, a file for each segment             (columns)
//! ├── heat             how often a sample of queries read each page                 (heat)
//! ├── recall           the recall of searches by list size                          (recall)
//! ├── placement        the pages of nodes that were rewritten                       (placement)
//! ├── pending          changes that wait for their pages                            (pending)
//! ├── journal          pages that are about to be written in place                  (journal)
//! │
//! └── log-000001 ..    inserts and deletes in their order: [header block][record].. (log)
//! ```
//!
//! All integers are little-endian. Each 4 KiB block has a crc32c checksum, seeded with the block's
//! number in the file, so a reader also notices a block at a wrong offset. Some structures are not
//! blocks, and have checksums of their own: records and marks of a log, rows of `csr`, and posting
//! lists and vectors of a cluster index. The module that reads a structure has its byte table.

#![forbid(unsafe_code)]

pub mod attributes;
pub mod block;
pub mod chunks;
pub mod clusters;
pub mod columns;
pub mod coupled;
pub mod csr;
pub mod directory;
pub mod entries;
pub mod error;
mod geometry;
pub mod header;
pub mod heat;
pub mod ids;
pub mod inline;
pub mod inserts;
pub mod journal;
pub mod log;
pub mod manifest;
pub mod navigation;
mod payload;
pub mod pending;
pub mod placement;
pub mod recall;
mod records;
mod runs;
pub mod slotted;
pub mod stream;

pub use block::{BLOCK, PAYLOAD};
pub use chunks::{Chunk, ChunksFile, DeadSlots, SegmentSpan};
pub use clusters::ClusterShape;
pub use clusters::amended::{AmendedExtent, AmendedFile, ExtentSegment, MemberSegment};
pub use clusters::extent::{ExtentBuilder, ExtentKind, ExtentPlace, ExtentView};
pub use clusters::member::Members;
pub use clusters::table::ClustersFile;
pub use coupled::{CoupledShape, Neighbours, NodeView, PageBuilder, PageView};
pub use csr::{CsrRow, CsrShape};
pub use directory::{DirectoryFile, PageDirectory};
pub use entries::EntryPoints;
pub use error::LayoutError;
pub use geometry::Geometry;
pub use header::{FieldsReader, FieldsWriter, FileHeader, FileKind, Form, Role};
pub use heat::HeatFile;
pub use ids::{IdsBlock, IdsFile};
pub use inline::{InlineBuilder, InlineNode, InlineShape, InlineView};
pub use journal::JournalFile;
pub use log::{LogHeader, LogRecord, LogRecords, LogShape, RecordPlace};
pub use manifest::{
    BuildFacts, ClusterFacts, DriftFacts, FileEntry, GraphFacts, HotShare, IndexKind, KeptFacts,
    LogFrom, Manifest, Measured, NavigationFacts, PlacementFacts, SegmentFacts,
};
pub use navigation::NavigationFile;
pub use pending::{PendingFile, PendingRecord};
pub use placement::PlacementFile;
pub use recall::{RecallBand, RecallFile, RecallTable, Searched};
pub use runs::RunsOn;
pub use slotted::{Record, SlottedBuilder, SlottedFacts, SlottedShape, SlottedView};
pub use stream::{StreamReader, StreamWriter};
