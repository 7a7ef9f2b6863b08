//! Finds the rows of a merge, in the order of the next checkpoint, and the segments that the merge
//! keeps.
//!
//! ```text
//!   vectors stored apart from lists, in input order:
//!     kept segments | rewritten segments | new vectors      read from the files of the index
//!   all other indexes:
//!     vectors of the checkpoint | new vectors               copied to one file
//! ```
//!
//! In input order, row n of a build is node n. The rows of kept segments come first, so their nodes
//! are consecutive, and only the chunks of these segments record the garbage.

use std::path::Path;

use stratann_layout::{FileKind, KeptFacts, SegmentFacts};

use super::garbage::{Fate, Held, fates};
use super::merge::Inputs;
use super::rows::IndexRows;
use crate::build::{BuildOptions, Spool};
use crate::data::{NoRows, VectorFile, VectorSource};
use crate::index::Index;
use crate::index::contents::{each_vector, each_vector_page, is_given_up};
use crate::progress::{Progress, Stage};
use crate::stores::VectorsAt;
use crate::stores::columns::RowBytes;
use crate::stores::reading;
use crate::stores::vectors::segments::Segments;
use crate::stores::vectors::write::{KeptSegment, segment_vectors};
use crate::{Error, Order};

pub(super) const NOWHERE: u32 = u32::MAX;

pub(super) struct Rows {
    pub(super) ids: Vec<u64>,
    /// The row of each node of the checkpoint, or [`NOWHERE`] if the merge removes the node.
    pub(super) row_of: Vec<u32>,
    pub(super) merged: u64,
    pub(super) removed: u64,
    /// The segments whose files the merge keeps. The first rows of the merge are the live vectors
    /// of these segments.
    pub(super) kept: Vec<KeptSegment>,
    /// The segments with live vectors that the merge rewrites, and the number of these vectors.
    pub(super) segments_rewritten: u64,
    pub(super) vectors_rewritten: u64,
    /// The attributes of the new vectors, which come last.
    pub(super) attributes: Vec<Option<RowBytes>>,
}

/// Finds the rows of a merge with these options, and copies rows to a file in `folder` if
/// necessary. There may be no rows.
pub(super) fn survey<'a>(
    index: &'a Index,
    inputs: &Inputs<'_>,
    options: &BuildOptions,
    folder: &Path,
    progress: &dyn Progress,
) -> Result<(Box<dyn VectorSource + 'a>, Rows), Error> {
    let _stage = Stage::begin(progress, "reading vectors", index.nodes() as u64);
    let segments = match index.has_clusters() {
        true => &None,
        false => &index.graph().segments,
    };
    match segments {
        // In locality order, a merge moves all rows. A segment of trailing parts has no whole
        // vectors.
        Some(segments)
            if options.order == Some(Order::Input)
                && index.composition().vectors == VectorsAt::Segments =>
        {
            let (source, rows) = in_place(index, segments, inputs, options, folder, progress)?;
            Ok((Box::new(source), rows))
        }
        segments => {
            let (source, mut rows) = copied(index, inputs, folder, progress)?;
            if let Some(segments) = segments {
                rows.segments_rewritten = segments.len() as u64;
                rows.vectors_rewritten = rows.ids.len() as u64 - rows.merged;
            }
            let source: Box<dyn VectorSource> = match source {
                Some(source) => Box::new(source),
                None => Box::new(NoRows::new(index.element(), index.dim())),
            };
            Ok((source, rows))
        }
    }
}

fn is_removed(inputs: &Inputs<'_>, id: u64, node: u32) -> bool {
    inputs.removed.get(&id).is_some_and(|&bound| node < bound)
}

/// Appends the new vectors to a file, and their ids to `ids`. Returns their attributes.
fn push_new(
    inputs: &Inputs<'_>,
    file: &mut Spool,
    ids: &mut Vec<u64>,
) -> Result<Vec<Option<RowBytes>>, Error> {
    let mut attributes = Vec::new();
    let mut written = Ok(());
    inputs.fresh.for_each_in(inputs.epoch, |id, vector, row| {
        if written.is_ok() {
            ids.push(id);
            attributes.push(row);
            written = file.push(vector);
        }
    });
    written.map(|()| attributes)
}

fn copied(
    index: &Index,
    inputs: &Inputs<'_>,
    folder: &Path,
    progress: &dyn Progress,
) -> Result<(Option<VectorFile>, Rows), Error> {
    let mut file = Spool::create(folder, index.element(), index.dim())?;
    let mut ids = Vec::with_capacity(index.nodes());
    let mut removed = 0;
    let mut row_of = vec![NOWHERE; index.nodes()];
    each_vector(index, progress, &mut |node, id, vector| {
        progress.advance(1);
        if is_removed(inputs, id, node) {
            removed += 1;
            return Ok(());
        }
        row_of[node as usize] = ids.len() as u32;
        ids.push(id);
        file.push(vector)
    })?;
    let attributes = push_new(inputs, &mut file, &mut ids)?;
    let rows = Rows {
        ids,
        row_of,
        merged: attributes.len() as u64,
        attributes,
        removed,
        kept: Vec::new(),
        segments_rewritten: 0,
        vectors_rewritten: 0,
    };
    let file = match file.is_empty() {
        true => None,
        false => Some(file.finish()?),
    };
    Ok((file, rows))
}

#[derive(Default)]
struct Census {
    /// The live nodes of the segment, and the bytes of their stored vectors.
    live: u32,
    bytes: u64,
    /// The page and slot of each record that becomes garbage.
    dying: Vec<(u32, u16)>,
}

/// Finds the rows of an index with segments, which the merge reads from the files of the index.
fn in_place<'a>(
    index: &'a Index,
    segments: &'a Segments,
    inputs: &Inputs<'_>,
    options: &BuildOptions,
    folder: &Path,
    progress: &dyn Progress,
) -> Result<(IndexRows<'a>, Rows), Error> {
    let mut census: Vec<Census> = segments.iter().map(|_| Census::default()).collect();
    // The segments to keep are chosen first, and then the rows are numbered.
    let mut id_of = vec![0; index.nodes()];
    let mut row_of = vec![NOWHERE; index.nodes()];
    each_vector_page(index, progress, &mut |n, segment, page, view| {
        for node in segment.nodes(page, view) {
            let (slot, id, bytes) = segment.record(node, page, view)?;
            if is_removed(inputs, id, node) || is_given_up(index.graph(), node) {
                census[n].dying.push((page as u32, slot));
                continue;
            }
            id_of[node as usize] = id;
            row_of[node as usize] = 0;
            census[n].live += 1;
            census[n].bytes += bytes;
        }
        progress.advance(segment.nodes(page, view).len() as u64);
        Ok(())
    })?;
    let mut new_ids = Vec::new();
    let mut file = Spool::create(folder, index.element(), index.dim())?;
    let attributes = push_new(inputs, &mut file, &mut new_ids)?;
    let merged = attributes.len() as u64;

    let vector_bytes = index.dim() * index.element().size();
    let capacity = segment_vectors(options, vector_bytes);
    let held: Vec<Held> = segments
        .iter()
        .zip(&census)
        .map(|(segment, census)| Held {
            records: segment.records(),
            live: census.live,
        })
        .collect();
    let fates = fates(&held, capacity, merged);
    let of = |fate: Fate| {
        let segments = fates.iter().enumerate().filter(|&(_, &is)| is == fate);
        segments.map(|(n, _)| n).collect::<Vec<_>>()
    };
    let (kept, rewritten) = (of(Fate::Kept), of(Fate::Rewritten));

    let mut node_of = Vec::with_capacity(index.nodes());
    let mut ids = Vec::with_capacity(index.nodes() + new_ids.len());
    let mut kept_segments = Vec::with_capacity(kept.len());
    for &n in kept.iter().chain(&rewritten) {
        if fates[n] == Fate::Kept {
            let first = node_of.len() as u32;
            kept_segments.push(keep(index, n as u32, first, &census[n])?);
        }
        for node in segments.nodes_of(n, index.nodes() as u32) {
            if row_of[node as usize] != NOWHERE {
                row_of[node as usize] = node_of.len() as u32;
                node_of.push(node);
                ids.push(id_of[node as usize]);
            }
        }
    }
    ids.append(&mut new_ids);
    let new = match merged {
        0 => None,
        _ => Some(file.finish()?),
    };
    let rows = Rows {
        ids,
        row_of,
        merged,
        attributes,
        removed: census.iter().map(|census| census.dying.len() as u64).sum(),
        kept: kept_segments,
        segments_rewritten: rewritten.len() as u64,
        vectors_rewritten: rewritten.iter().map(|&n| u64::from(held[n].live)).sum(),
    };
    Ok((IndexRows::new(index, segments, node_of, new), rows))
}

/// The facts of segment `n` for the next checkpoint, in which the nodes of the segment begin with
/// `first`.
fn keep(index: &Index, n: u32, first: u32, census: &Census) -> Result<KeptSegment, Error> {
    let (volume, manifest) = (&**index.volume(), index.manifest());
    let (_, _, entry) = reading::slotted(volume, manifest, FileKind::Vectors, Some(n))?;
    let chunks = reading::chunks(volume, manifest, n)?;
    // Segment `n` exists, since `slotted` returns an error for a missing segment.
    let before = &manifest.segments[n as usize];
    let chunks = chunks.with_dead(before.first, first, &census.dying);
    let (stored_first, _) = before.stored();
    let garbage = chunks.dead.count() as u32;
    // If a segment keeps its first node and has no garbage, the manifest needs no facts about a
    // kept segment.
    let otherwise = garbage > 0 || stored_first != first;
    Ok(KeptSegment {
        vectors: entry.clone(),
        facts: SegmentFacts {
            first,
            vectors: census.live,
            codec: before.codec.clone(),
            kept: otherwise.then_some(KeptFacts {
                first: stored_first,
                garbage,
            }),
        },
        chunks,
        bytes: census.bytes,
    })
}
