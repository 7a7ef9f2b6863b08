//! The rows of the new index: which are taken, and where they wait.

use std::collections::HashSet;
use std::path::Path;

use stratann_layout::Manifest;
use stratann_tier::Volume;
use stratann_vector::{Element, Metric, first_invalid, norm, to_f32};

use crate::build::Spool;
use crate::data::VectorFile;
use crate::{Error, stored};

/// Why a vector that was read is not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// An element is NaN or infinite.
    NotFinite,
    /// Its length is 0 or infinite, which has no direction under cosine.
    NoDirection,
    /// Another one with its id was taken.
    Twice,
}

/// Rows that were taken, in a file.
pub(super) struct Rows {
    file: Spool,
    /// Their ids.
    pub(super) ids: Vec<u64>,
    seen: Seen,
    element: Element,
    metric: Metric,
    floats: Vec<f32>,
}

impl Rows {
    /// None yet, of an index; the file is in `folder`.
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

    /// What is wrong with a vector, of which a build would say so.
    pub(super) fn fault(&mut self, vector: &[u8]) -> Option<Fault> {
        if first_invalid(self.element, vector).is_some() {
            return Some(Fault::NotFinite);
        }
        if self.metric == Metric::Cosine {
            to_f32(self.element, vector, &mut self.floats);
            let norm = norm(&self.floats);
            if norm == 0.0 {
                return Some(Fault::NoDirection);
            }
        }
        None
    }

    /// Notes that the checkpoint has an id. Says whether that is new.
    pub(super) fn first_of(&mut self, id: u64) -> bool {
        self.seen.insert(id)
    }

    /// Whether the checkpoint has an id.
    pub(super) fn has(&self, id: u64) -> bool {
        self.seen.contains(id)
    }

    /// Takes a vector.
    pub(super) fn push(&mut self, id: u64, vector: &[u8]) -> Result<(), Error> {
        self.ids.push(id);
        self.file.push(vector)
    }

    /// All of them, a row or more, with their ids.
    pub(super) fn finish(self) -> Result<(VectorFile, Vec<u64>), Error> {
        Ok((self.file.finish()?, self.ids))
    }
}

/// Bits of a word.
const BITS: u64 = 64;

/// Ids: a bit for each of those that row numbers would be, and the others as they are.
struct Seen {
    small: Vec<u64>,
    large: HashSet<u64>,
}

impl Seen {
    fn new(vectors: u64) -> Self {
        Self {
            // Zeros that were never touched take no memory.
            small: vec![0; (2 * vectors).div_ceil(BITS) as usize],
            large: HashSet::new(),
        }
    }

    fn place(&self, id: u64) -> Option<(usize, u64)> {
        let word = usize::try_from(id / BITS).ok()?;
        (word < self.small.len()).then_some((word, 1 << (id % BITS)))
    }

    fn insert(&mut self, id: u64) -> bool {
        let Some((word, bit)) = self.place(id) else {
            return self.large.insert(id);
        };
        let fresh = self.small[word] & bit == 0;
        self.small[word] |= bit;
        fresh
    }

    fn contains(&self, id: u64) -> bool {
        match self.place(id) {
            Some((word, bit)) => self.small[word] & bit != 0,
            None => self.large.contains(&id),
        }
    }
}
