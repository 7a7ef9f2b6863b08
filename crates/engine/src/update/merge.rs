//! The batched merge: the live rows of a checkpoint and of a fresh graph become the next checkpoint
//! (FreshDiskANN, and the graph part of DecoupleVS §3.5).
//!
//! ```text
//!   pass 1   vectors: which vectors are live (survey.rs)
//!            lists of deleted nodes: some neighbours of each deleted node are kept in memory
//!   pass 2   other lists: these neighbours replace the deleted nodes
//!            new vectors: a search finds the list of each vector; all lists are pruned and written
//! ```
//!
//! The lists of old vectors are kept, so only new vectors need searches. If more vectors are new
//! than old, or if a memory cap requires a build in parts, all lists are built.
//!
//! A merge keeps the options of the build and the codebook, so that equal vectors keep equal codes.
//! If the rows have [outgrown](super::outgrown) the codebook, the merge trains a new codebook, and
//! rebuilds the graph if the old codebook was useless. A codebook that was given to the build is
//! always kept.
//!
//! If vectors are stored apart from lists and in input order, segments with little garbage stay
//! unchanged ([`garbage`](super::garbage)).

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use stratann_layout::LogFrom;
use stratann_layout::manifest::GIVEN_CODEBOOK;
use stratann_tier::Volume;

use super::attributes::MergedRows;
use super::live::{CodebookFate, CompactReport};
use super::outgrown::{Outgrown, outgrown};
use super::survey::{self, NOWHERE, Rows};
use crate::Error;
use crate::build::{self, BuildOptions, CarriedRows};
use crate::data::NoRows;
use crate::durable::Committed;
use crate::graph::{self, GraphError, Known};
use crate::index::Index;
use crate::index::contents::each_list;
use crate::overlay::fresh::FreshGraph;
use crate::progress::{Progress, Silent};

pub(super) struct Inputs<'a> {
    /// The ids of dead records, each with a bound: records of the id on lower nodes are dead.
    pub(super) removed: &'a HashMap<u64, u32>,
    /// The read timestamp at which vectors of `fresh` are merged.
    pub(super) epoch: u64,
    pub(super) fresh: &'a FreshGraph,
    /// The position in the log after the last change that is merged.
    pub(super) log_from: LogFrom,
    pub(super) next_id: u64,
    pub(super) dead: u64,
    /// The live ids that were inserted since the build, as ascending ranges: first id and number of
    /// ids.
    pub(super) inserted: Vec<(u64, u64)>,
    pub(super) threads: usize,
    pub(super) memory: Option<u64>,
}

/// The bytes of memory that a merge may take beyond the memory budget of the index.
pub(super) const BEYOND_SEARCH: u64 = 64 << 20;

/// The memory cap for a merge. If the process already uses more memory than the budget, for example
/// for other indexes, the cap is computed from the memory in use.
fn cap(budget: u64) -> u64 {
    budget
        .max(graph::resident_bytes())
        .saturating_add(BEYOND_SEARCH)
}

/// Writes the next checkpoint, and commits it after `ready` succeeds. No step after the commit can
/// fail.
pub(super) fn merge(
    volume: &Arc<dyn Volume>,
    index: &Index,
    inputs: &Inputs<'_>,
    ready: build::Ready<'_>,
    progress: &dyn Progress,
) -> Result<(CompactReport, Committed), Error> {
    let start = Instant::now();
    let bytes_before = bytes_in(&**volume)?;
    let scratch = build::ScratchFolder::beside(&**volume, index.path())?;
    let options = BuildOptions {
        memory: inputs.memory.map(cap),
        threads: inputs.threads,
        ..BuildOptions::of_manifest(index.manifest())?
    };
    let (source, rows) = survey::survey(index, inputs, &options, scratch.path(), progress)?;
    if source.rows() == 0 {
        let columns = MergedRows::of(index, &rows);
        let columns = columns.as_ref().map(|rows| rows as &dyn CarriedRows);
        let (built, committed) = empty(
            (volume, index),
            inputs,
            options,
            columns,
            &scratch,
            ready,
            progress,
        )?;
        let report = CompactReport {
            removed: removed(index, &rows),
            bytes_before,
            bytes_after: bytes_in(&**volume).unwrap_or(built.bytes),
            seconds: start.elapsed().as_secs_f64(),
            ..CompactReport::default()
        };
        return Ok((report, committed));
    }
    let outgrown = match index.codebook() {
        None => Outgrown::No,
        Some(codebook) => outgrown(&*source, codebook, &options, progress)?,
    };
    let given = index.manifest().writer_features & GIVEN_CODEBOOK != 0;
    let keeps = given || outgrown == Outgrown::No;
    let options = match index.codebook().filter(|_| keeps) {
        Some(codebook) => BuildOptions {
            codebook: Some(codebook.clone()),
            code_bytes: None,
            ..options
        },
        // The build trains a codebook for codes of the same length.
        None => options,
    };
    if given && outgrown != Outgrown::No {
        progress.warn(
            "the codebook that was given to the build encodes the vectors worse than a new codebook would. The merge keeps it, since other indexes may \
             share it. Build the index again with another codebook, or without a given codebook",
        );
    }
    let later = rows.row_of.iter().skip(index.manifest().vectors as usize);
    let direct = later.filter(|&&row| row != NOWHERE).count();
    let attributes = MergedRows::of(index, &rows);
    // Lists that inserts found by useless codes are built again.
    let known = match index.has_clusters() || (outgrown == Outgrown::Graph && !given) {
        true => None,
        false => Some(KnownLists::of(index, &rows, progress)?),
    };
    let known = known
        .as_ref()
        .filter(|known| known.rows() >= rows.merged as usize);
    let carried = build::Carried {
        log_from: inputs.log_from,
        next_id: inputs.next_id,
        known: known.map(|known| known as &dyn Known),
        kept: &rows.kept,
        rows: attributes.as_ref().map(|rows| rows as &dyn CarriedRows),
        given_codebook: given,
        placeholder: false,
    };
    let options = BuildOptions {
        ids: Some(rows.ids.clone()),
        ..options
    };
    let (report, committed) = build::rebuild(
        volume,
        scratch.path(),
        &*source,
        &options,
        carried,
        ready,
        progress,
    )?;
    let report = CompactReport {
        vectors: report.vectors as u64,
        merged: rows.merged,
        direct: direct as u64,
        removed: removed(index, &rows),
        segments_kept: rows.kept.len() as u64,
        segments_rewritten: rows.segments_rewritten,
        vectors_rewritten: rows.vectors_rewritten,
        codebook: match (outgrown, given) {
            (Outgrown::No, _) => CodebookFate::Kept,
            (_, true) => CodebookFate::Outgrown,
            (_, false) => CodebookFate::Trained,
        },
        bytes_before,
        // The merge is committed, so an error of this measurement is ignored.
        bytes_after: bytes_in(&**volume).unwrap_or(report.bytes),
        seconds: start.elapsed().as_secs_f64(),
        ..CompactReport::default()
    };
    Ok((report, committed))
}

fn removed(index: &Index, rows: &Rows) -> u64 {
    rows.removed.saturating_sub(index.placeholders() as u64)
}

/// Writes the checkpoint of an index without live vectors. The codebook is kept, since it may suit
/// later vectors. The first merge with vectors checks whether the codebook suits these vectors.
fn empty(
    (volume, index): (&Arc<dyn Volume>, &Index),
    inputs: &Inputs<'_>,
    options: BuildOptions,
    columns: Option<&dyn CarriedRows>,
    scratch: &build::ScratchFolder,
    ready: build::Ready<'_>,
    progress: &dyn Progress,
) -> Result<(build::BuildReport, Committed), Error> {
    let options = match index.codebook() {
        Some(codebook) => BuildOptions {
            codebook: Some(codebook.clone()),
            code_bytes: None,
            ..options
        },
        None => options,
    };
    let carried = build::Carried {
        log_from: inputs.log_from,
        next_id: inputs.next_id,
        known: None,
        kept: &[],
        rows: columns,
        given_codebook: index.manifest().writer_features & GIVEN_CODEBOOK != 0,
        placeholder: true,
    };
    let none = NoRows::new(index.element(), index.dim());
    build::rebuild_empty(
        volume,
        scratch.path(),
        &none,
        &options,
        carried,
        ready,
        progress,
    )
}

/// The maximum number of neighbours that replace a removed node in a list (OdinANN §3.4.2: partial
/// lists).
const STAND_INS: usize = 8;

#[derive(Debug)]
struct KnownLists<'a> {
    index: &'a Index,
    row_of: &'a [u32],
    rows: usize,
    /// For each removed node, the rows of some of its remaining neighbours.
    stand_ins: HashMap<u32, Vec<u32>>,
}

impl<'a> KnownLists<'a> {
    fn of(index: &'a Index, rows: &'a Rows, progress: &dyn Progress) -> Result<Self, Error> {
        let row_of = &rows.row_of;
        let mut stand_ins = HashMap::new();
        if rows.removed > 0 {
            each_list(index, progress, &mut |node, list| {
                if row_of[node as usize] == NOWHERE {
                    stand_ins.insert(node, stand_ins_of(list, row_of));
                }
                Ok(())
            })?;
        }
        Ok(Self {
            index,
            row_of,
            rows: rows.ids.len() - rows.merged as usize,
            stand_ins,
        })
    }
}

fn stand_ins_of(list: &[u32], row_of: &[u32]) -> Vec<u32> {
    let kept = list.iter().map(|&link| row_of[link as usize]);
    let kept: Vec<u32> = kept.filter(|&row| row != NOWHERE).collect();
    // The choice is spread over the list, so that the order of the list does not matter.
    let step = kept.len().div_ceil(STAND_INS).max(1);
    kept.into_iter().step_by(step).collect()
}

impl graph::Known for KnownLists<'_> {
    fn rows(&self) -> usize {
        self.rows
    }

    /// Replaces the removed nodes in each list by their stand-ins. The build prunes the list.
    fn each(&self, each: &mut dyn FnMut(u32, &[u32])) -> Result<(), GraphError> {
        let mut rows = Vec::new();
        each_list(self.index, &Silent, &mut |node, list| {
            let row = self.row_of[node as usize];
            if row == NOWHERE {
                return Ok(());
            }
            rows.clear();
            let kept = list.iter().map(|&link| self.row_of[link as usize]);
            rows.extend(kept.filter(|&row| row != NOWHERE));
            // Each removed node in turn adds one neighbour, so that each removed node gets a share
            // of the list.
            let gone = || list.iter().filter_map(|link| self.stand_ins.get(link));
            for place in 0..STAND_INS {
                for stand_in in gone().filter_map(|stand_ins| stand_ins.get(place)) {
                    if *stand_in != row && !rows.contains(stand_in) {
                        rows.push(*stand_in);
                    }
                }
                if rows.len() > 2 * list.len() {
                    break;
                }
            }
            each(row, &rows);
            Ok(())
        })
        .map_err(|error| GraphError::Known(Box::new(error)))
    }
}

pub(crate) fn bytes_in(volume: &dyn Volume) -> Result<u64, Error> {
    let mut bytes = 0;
    for name in volume.list()? {
        bytes += volume.len(&name)?;
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_neighbours_stand_in_for_a_node_however_many_others_were_left_out() {
        let list: Vec<u32> = (0..32).collect();
        for kept_of in [1, 2, 4] {
            let row = |node: u32| match node % kept_of {
                0 => node / kept_of,
                _ => NOWHERE,
            };
            let row_of: Vec<u32> = (0..32).map(row).collect();
            let stand_ins = stand_ins_of(&list, &row_of);
            assert_eq!(stand_ins.len(), STAND_INS, "one in {kept_of}");
            assert!(stand_ins.is_sorted() && stand_ins.iter().all(|&row| row < 32 / kept_of));
        }
        assert_eq!(stand_ins_of(&[0, 1], &[NOWHERE, 7]), [7]);
        assert!(stand_ins_of(&[0], &[NOWHERE]).is_empty());
    }
}
