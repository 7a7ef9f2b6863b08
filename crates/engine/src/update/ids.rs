//! Which outside ids a checkpoint holds.
//!
//! Ids are row numbers as a rule: then they are 0 to the number of vectors, which the manifest says, and nothing is looked up.
//! Otherwise they are in a sorted file without a name, made when the index is opened for changes: a look-up is a binary
//! search with positional reads, and memory holds nothing.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use stratann_layout::{Manifest, PlacementFile};
use stratann_tier::TierError;

use super::contents::each_vector;
use crate::Error;
use crate::index::Index;
use crate::progress::Silent;

/// Ids that came and went since the build of a checkpoint.
#[derive(Clone, Debug, Default)]
pub(crate) struct CarriedIds {
    /// Those that came and count, as ascending ranges: the first, and how many.
    pub(crate) ids: Vec<(u64, u64)>,
    /// Those whose records below a node do not count.
    pub(crate) deleted: Vec<(u64, u32)>,
    /// Records that do not count.
    pub(crate) dead: usize,
    /// 1 more than the largest there has ever been.
    pub(crate) next_id: u64,
}

impl CarriedIds {
    /// As a checkpoint says.
    pub(crate) fn of(file: PlacementFile, manifest: &Manifest) -> Self {
        let nodes = u64::from(file.nodes);
        let facts = manifest.placement;
        Self {
            ids: file.ids,
            deleted: file.deleted,
            dead: facts.map_or(0, |facts| nodes.saturating_sub(facts.live)) as usize,
            next_id: facts.map_or(0, |facts| facts.next_id),
        }
    }
}

/// The ids of a checkpoint's build.
#[derive(Clone)]
pub(crate) enum StoredIds {
    /// 0 to this, each once.
    Rows(u64),
    /// Sorted, 8 bytes each.
    Sorted {
        file: Arc<File>,
        count: u64,
        next: u64,
    },
}

impl StoredIds {
    /// The ids of an index.
    pub(crate) fn of(index: &Index) -> Result<Self, Error> {
        let manifest = index.manifest();
        if manifest.next_id == manifest.vectors {
            return Ok(Self::Rows(manifest.vectors));
        }
        let mut ids = Vec::with_capacity(manifest.vectors as usize);
        each_vector(index, &Silent, &mut |node, id, _| {
            if u64::from(node) < manifest.vectors {
                ids.push(id);
            }
            Ok(())
        })?;
        ids.sort_unstable();
        let next = ids.last().map_or(0, |id| id.saturating_add(1));
        let bytes: Vec<u8> = ids.iter().flat_map(|id| id.to_le_bytes()).collect();
        let failed = |source| TierError::io("write", "a temporary file of ids", 0, 0, source);
        let file = tempfile::tempfile_in(index.path()).map_err(failed)?;
        file.write_all_at(&bytes, 0).map_err(failed)?;
        Ok(Self::Sorted {
            file: Arc::new(file),
            count: ids.len() as u64,
            next: next.max(manifest.next_id),
        })
    }

    /// 1 more than the largest id.
    pub(crate) fn next_id(&self) -> u64 {
        match self {
            Self::Rows(rows) => *rows,
            Self::Sorted { next, .. } => *next,
        }
    }

    /// Whether the checkpoint holds an id.
    pub(crate) fn contains(&self, id: u64) -> Result<bool, Error> {
        let (file, count) = match self {
            Self::Rows(rows) => return Ok(id < *rows),
            Self::Sorted { file, count, .. } => (file, *count),
        };
        let (mut low, mut high) = (0, count);
        while low < high {
            let middle = low + (high - low) / 2;
            let mut bytes = [0; 8];
            file.read_exact_at(&mut bytes, 8 * middle)
                .map_err(|e| TierError::io("read", "a temporary file of ids", 8 * middle, 8, e))?;
            match u64::from_le_bytes(bytes).cmp(&id) {
                std::cmp::Ordering::Equal => return Ok(true),
                std::cmp::Ordering::Less => low = middle + 1,
                std::cmp::Ordering::Greater => high = middle,
            }
        }
        Ok(false)
    }
}
