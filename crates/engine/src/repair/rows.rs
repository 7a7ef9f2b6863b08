//! Selects the rows of the new index, and collects them in a file.

use std::collections::HashSet;
use std::path::Path;

use stratann_layout::Manifest;
use stratann_tier::Volume;
use stratann_vector::{Element, Metric, Reduction, first_invalid, norm, to_f32};

use crate::bits::Bits;
use crate::build::Spool;
use crate::data::VectorFile;
use crate::{Error, stored};

/// The reason why a vector that was read is not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    NotFinite,
    /// The length of the vector is 0 or infinite, so it has no direction under cosine.
    NoDirection,
    Twice,
}

pub(super) struct Rows {
    file: Spool,
    pub(super) ids: Vec<u64>,
    seen: Seen,
    element: Element,
    metric: Metric,
    floats: Vec<f32>,
}

impl Rows {
    pub(super) fn create(
        folder: &Path,
        volume: &dyn Volume,
        manifest: &Manifest,
    ) -> Result<Self, Error> {
        let (element, dim) = (manifest.element, manifest.dimension as usize);
        Ok(Self {
            file: Spool::create(folder, element, dim)?,
            ids: Vec::new(),
            seen: Seen::new(stored::most_nodes(volume, manifest)),
            element,
            metric: manifest.metric,
            floats: vec![0.0; dim],
        })
    }

    pub(super) fn fault(&mut self, vector: &[u8]) -> Option<Fault> {
        if first_invalid(self.element, vector).is_some() {
            return Some(Fault::NotFinite);
        }
        if self.metric.reduction() == Reduction::Normalised {
            to_f32(self.element, vector, &mut self.floats);
            let norm = norm(&self.floats);
            if norm == 0.0 {
                return Some(Fault::NoDirection);
            }
        }
        None
    }

    pub(super) fn first_of(&mut self, id: u64) -> bool {
        self.seen.insert(id)
    }

    pub(super) fn has(&self, id: u64) -> bool {
        self.seen.contains(id)
    }

    pub(super) fn push(&mut self, id: u64, vector: &[u8]) -> Result<(), Error> {
        self.ids.push(id);
        self.file.push(vector)
    }

    /// The file of rows, and their ids. If there are no rows, there is no file.
    pub(super) fn finish(self) -> Result<(Option<VectorFile>, Vec<u64>), Error> {
        let file = match self.file.is_empty() {
            true => None,
            false => Some(self.file.finish()?),
        };
        Ok((file, self.ids))
    }
}

/// Ids in the range of row numbers take a bit each, and other ids are in a hash set.
struct Seen {
    small: Bits,
    large: HashSet<u64>,
}

impl Seen {
    fn new(vectors: u64) -> Self {
        Self {
            small: Bits::new(2 * vectors),
            large: HashSet::new(),
        }
    }

    fn insert(&mut self, id: u64) -> bool {
        match self.small.takes(id) {
            true => self.small.add(id),
            false => self.large.insert(id),
        }
    }

    fn contains(&self, id: u64) -> bool {
        self.small.has(id) || self.large.contains(&id)
    }
}
