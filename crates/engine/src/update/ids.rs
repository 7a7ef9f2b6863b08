//! The external ids of a checkpoint.
//!
//! Ids are usually row numbers: the numbers below the number of vectors in the manifest. Otherwise
//! the checkpoint has a file of ids ([`IdTable`]). Some earlier versions wrote no such file. A
//! process that opens such a checkpoint for changes makes the table from all records.

use std::collections::HashSet;
use std::sync::Arc;

use stratann_layout::Manifest;

use crate::bits::Bits;
use crate::build::{IdSorter, LEAST_MEMORY};
use crate::durable::Checkpoint;
use crate::index::Index;
use crate::index::contents::each_vector;
use crate::progress::Silent;
use crate::stored::missing_is_damage;
use crate::stores::ids::{IdTable, LastBlock};
use crate::{Error, ErrorKind};

#[derive(Clone)]
pub(crate) enum StoredIds {
    Rows(u64),
    /// The index was built of no rows. The number is one more than the largest id that the index
    /// has ever had.
    None(u64),
    /// The number is one more than the largest id that the index has ever had.
    Table(Arc<IdTable>, u64),
}

impl StoredIds {
    /// `None` if an earlier version wrote the checkpoint without a file of ids.
    pub(crate) fn of(index: &Index) -> Result<Option<Self>, Error> {
        let manifest = index.manifest();
        if manifest.has_placeholder() {
            return Ok(Some(Self::None(manifest.next_id)));
        }
        if manifest.has_row_numbers() {
            return Ok(Some(Self::Rows(manifest.vectors)));
        }
        let volume = &**index.volume();
        let table = IdTable::open(volume, manifest);
        let table = table.map_err(|error| missing_is_damage(error, volume, manifest))?;
        Ok(table.map(|table| Self::table(table, manifest)))
    }

    /// Reads the ids from the file of ids. If this file is damaged or missing, reads the records.
    pub(crate) fn of_any(index: &Index) -> Result<Self, Error> {
        match Self::of(index) {
            Ok(Some(ids)) => Ok(ids),
            Ok(None) => Self::collected(index),
            Err(error) if matches!(error.kind(), ErrorKind::Damaged | ErrorKind::NotFound) => {
                tracing::warn!(
                    index = %index.path().display(),
                    "the file of ids is missing or damaged, so the ids are read from all records (`stratann compact` writes a new file): {error}"
                );
                Self::collected(index)
            }
            Err(error) => Err(error),
        }
    }

    /// Collects the ids from the records, and sorts them in a megabyte of memory. The caller holds
    /// the lock of the index, and no thread writes a checkpoint.
    pub(crate) fn collected(index: &Index) -> Result<Self, Error> {
        let (volume, manifest) = (&**index.volume(), index.manifest());
        // This checkpoint is never committed, and its drop removes the file of the table. The table
        // opens the file before the drop.
        let checkpoint = Checkpoint::begin(volume, true)?;
        let mut sorter = IdSorter::new(volume, &checkpoint, LEAST_MEMORY);
        // If clusters were rewritten, some deleted vectors are in no cluster. Their ids are
        // assigned to the nodes without a vector. Any assignment is correct, since all of these
        // nodes are dead.
        let mut missing = match index.clusters() {
            Some(clusters) if clusters.amended().is_some() => Some(Bits::new(manifest.vectors)),
            _ => None,
        };
        let mut gone: HashSet<u64> = match &missing {
            Some(_) => index.carried().deleted.iter().map(|&(id, _)| id).collect(),
            None => HashSet::new(),
        };
        each_vector(
            index,
            &Silent,
            &mut |node, id, _| match u64::from(node) < manifest.vectors {
                true => {
                    if let Some(found) = &mut missing {
                        found.add(node.into());
                        gone.remove(&id);
                    }
                    sorter.push(id, node)
                }
                false => Ok(()),
            },
        )?;
        if let Some(found) = missing {
            let nodes = (0..manifest.vectors as u32).filter(|&node| !found.has(node.into()));
            for (node, id) in nodes.zip(gone) {
                sorter.push(id, node)?;
            }
        }
        let table = IdTable::open_file(volume, &sorter.finish()?, None)?;
        Ok(Self::table(table, manifest))
    }

    fn table(table: IdTable, manifest: &Manifest) -> Self {
        let next = table.largest().saturating_add(1).max(manifest.next_id);
        Self::Table(Arc::new(table), next)
    }

    pub(crate) fn as_table(&self) -> Option<Arc<IdTable>> {
        match self {
            Self::Rows(_) | Self::None(_) => None,
            Self::Table(table, _) => Some(table.clone()),
        }
    }

    pub(crate) fn next_id(&self) -> u64 {
        match self {
            Self::Rows(next) | Self::None(next) | Self::Table(_, next) => *next,
        }
    }

    /// Up to `count` ids of the build in ascending order, from `id` on.
    pub(crate) fn some_from(&self, id: u64, count: usize) -> Result<Vec<u64>, Error> {
        let table = match self {
            Self::Rows(rows) => return Ok((id..*rows).take(count).collect()),
            Self::None(_) => return Ok(Vec::new()),
            Self::Table(table, _) => table,
        };
        let mut last = LastBlock::none();
        let first = table
            .find(id, &mut last)?
            .map_or_else(|at| at, |(at, _)| at);
        let entries = table.entries();
        let end = entries.entries().min(first.saturating_add(count as u64));
        let mut ids = Vec::with_capacity(count);
        for at in first..end {
            ids.push(table.id_at(at, &mut last)?);
        }
        Ok(ids)
    }

    pub(crate) fn contains(&self, id: u64) -> Result<bool, Error> {
        match self {
            Self::Rows(rows) => Ok(id < *rows),
            Self::None(_) => Ok(false),
            Self::Table(table, _) => Ok(table.node_of(id)?.is_some()),
        }
    }
}
