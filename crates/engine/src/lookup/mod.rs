//! Look-ups: vectors by their outside ids, to the bit, and which ids there are.
//!
//! ```text
//!   id ──> vectors in memory, as of the moment            fresh.rs
//!      └─> a node ──────────────────────────────────────> its record, as searches find it, if it counts at the moment
//!           ├─ of the build: the file of ids             stores/ids.rs
//!           │   none, since ids are row numbers: the node of that number, if its record says so
//!           └─ that came since, or else: the records     hashes.rs: read once, four bytes a node from then on;
//!                                                        under a memory budget read each time
//! ```
//!
//! A look-up goes by one [`Moment`](crate::update::Moment), as a search does: what an upsert moves from one place to another meanwhile is found in the
//! one or the other. An id that is replaced so often meanwhile that nobody remembers the vector which counted at the
//! moment is looked for again, at another one.
//!
//! Ids are listed in ascending order, from any on, so that whoever goes through all of them holds nothing of the index in between:
//! each that is there throughout is met once.

mod hashes;
mod ids;
mod live;

use std::collections::HashMap;

use stratann_vector::{Element, to_f32};

pub(crate) use self::hashes::IdHashes;
use crate::index::Index;
use crate::progress::Progress;
use crate::search::{Admission, Exactness, Nodes};
use crate::stores::ids::{IdTable, LastBlock};
use crate::update::Seen;
use crate::{Error, ErrorKind, bounds};

/// Vectors that were looked up by their ids.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Rows {
    /// The outside ids of those that are in the index, in the order in which they were asked for.
    pub ids: Vec<u64>,
    /// Their vectors, one behind the other: to the bit those that were built or inserted.
    pub vectors: Vec<u8>,
    /// Elements of a vector.
    pub dim: usize,
    /// What an element is.
    pub element: Element,
    /// Ids that were asked for and are not in the index, in that order.
    pub missing: Vec<u64>,
}

impl Rows {
    /// The vector in a place, as bytes; `None` behind the last.
    pub fn vector(&self, place: usize) -> Option<&[u8]> {
        let bytes = self.dim * self.element.size();
        self.vectors.get(place * bytes..(place + 1) * bytes)
    }

    /// The vector in a place as numbers, none of which loses precision; `None` behind the last.
    pub fn floats(&self, place: usize) -> Option<Vec<f32>> {
        let mut floats = vec![0.0; self.dim];
        to_f32(self.element, self.vector(place)?, &mut floats);
        Some(floats)
    }

    /// Ids and vectors, in their order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (u64, &[u8])> {
        let vectors = self.vectors.chunks_exact(self.dim * self.element.size());
        self.ids.iter().copied().zip(vectors)
    }
}

/// Vectors that are looked for, and those that were found.
struct Wanted {
    /// The place of each id among those that are different.
    places: HashMap<u64, usize>,
    /// Vectors by these places, where they were found.
    vectors: Vec<u8>,
    row_bytes: usize,
    /// What is known of each place.
    found: Vec<Found>,
}

/// What is known of an id that is looked for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Found {
    Not,
    /// On a node.
    On(u32),
    /// In memory.
    Fresh,
}

impl Wanted {
    fn new(index: &Index, ids: &[u64]) -> Result<Self, Error> {
        Self::with(index.dim() * index.element().size(), ids)
    }

    /// Of which only the nodes are wanted.
    fn nodes_alone(ids: &[u64]) -> Result<Self, Error> {
        Self::with(0, ids)
    }

    fn with(row_bytes: usize, ids: &[u64]) -> Result<Self, Error> {
        let mut places = HashMap::with_capacity(ids.len());
        for &id in ids {
            let next = places.len();
            places.entry(id).or_insert(next);
        }
        let bytes = places.len().checked_mul(row_bytes);
        Ok(Self {
            vectors: bounds::room(bytes.unwrap_or(usize::MAX), 0)?,
            found: vec![Found::Not; places.len()],
            places,
            row_bytes,
        })
    }

    /// Takes a vector of an id, unless it has a later one.
    fn take(&mut self, id: u64, found: Found, vector: &[u8]) {
        let Some(&place) = self.places.get(&id) else {
            return;
        };
        if let (Found::On(before), Found::On(now)) = (self.found[place], found)
            && before >= now
        {
            return;
        }
        self.found[place] = found;
        let at = place * self.row_bytes;
        self.vectors[at..at + self.row_bytes].copy_from_slice(&vector[..self.row_bytes]);
    }

    /// The nodes of those that were found on storage.
    fn into_nodes(self) -> HashMap<u64, u32> {
        let node = |(id, place): (u64, usize)| match self.found[place] {
            Found::On(node) => Some((id, node)),
            Found::Not | Found::Fresh => None,
        };
        self.places.into_iter().filter_map(node).collect()
    }

    /// The ids that were not found, ascending.
    fn left(&self) -> Vec<u64> {
        let places = self.places.iter();
        let left = places.filter(|&(_, &place)| self.found[place] == Found::Not);
        let mut left: Vec<u64> = left.map(|(&id, _)| id).collect();
        left.sort_unstable();
        left
    }

    /// What was found of ids, as they were asked for.
    fn into_rows(self, index: &Index, ids: &[u64]) -> Result<Rows, Error> {
        let there = |id: &u64| self.found[self.places[id]] != Found::Not;
        let (found, missing): (Vec<u64>, Vec<u64>) = ids.iter().partition(|id| there(id));
        let vectors = match found.len() == self.places.len() && missing.is_empty() {
            // Places are in the order in which ids come first.
            true => self.vectors,
            false => {
                let mut vectors: Vec<u8> = bounds::room(found.len() * self.row_bytes, 0)?;
                let rows = vectors.chunks_exact_mut(self.row_bytes);
                for (id, row) in found.iter().zip(rows) {
                    let at = self.places[id] * self.row_bytes;
                    row.copy_from_slice(&self.vectors[at..at + self.row_bytes]);
                }
                vectors
            }
        };
        Ok(Rows {
            ids: found,
            vectors,
            dim: index.dim(),
            element: index.element(),
            missing,
        })
    }
}

/// What a look-up asks.
struct LookUp<'a> {
    index: &'a Index,
    /// Which node has an id of the build, if a file says so.
    table: Option<&'a IdTable>,
    /// What changed since the checkpoint, as the look-up sees it.
    seen: Option<Seen<'a>>,
    progress: &'a dyn Progress,
}

impl LookUp<'_> {
    fn admission(&self) -> Admission<'_> {
        self.seen
            .map_or_else(Admission::default, |seen| seen.admission())
    }

    /// Finds what was not found yet.
    fn find(&self, wanted: &mut Wanted) -> Result<(), Error> {
        let mut left = wanted.left();
        // The older first: while a merge goes on, an id may be in both for a moment.
        for (fresh, moment) in self.seen.iter().flat_map(Seen::fresh) {
            for &id in &left {
                if let Some(vector) = fresh.vector_at(id, moment) {
                    wanted.take(id, Found::Fresh, &vector);
                }
            }
        }
        left = wanted.left();
        let (built, all) = (
            self.index.manifest().vectors as u32,
            self.index.nodes() as u32,
        );
        if self.index.stands_in_all_clusters() {
            // Whichever of them it is, all extents are read.
            return match left.is_empty() {
                true => Ok(()),
                false => self.read(Nodes::Range(0, all), wanted),
            };
        }
        let mut nodes = Vec::with_capacity(left.len());
        // What no table tells for sure.
        let mut unsure = Vec::new();
        let mut last = LastBlock::none();
        for &id in &left {
            match self.table.map(|table| table.find(id, &mut last)) {
                Some(Ok(Ok((_, node)))) => nodes.extend(Some(node).filter(|&node| node < built)),
                Some(Ok(Err(_))) => {}
                Some(Err(error)) if error.kind() != ErrorKind::Damaged => return Err(error),
                // Damaged: the records say it as well.
                Some(Err(_)) => unsure.push(id),
                None => {
                    unsure.push(id);
                    let node = u32::try_from(id).ok();
                    nodes.extend(node.filter(|&node| node < built));
                }
            }
        }
        self.read_some(nodes, wanted)?;
        self.by_records((built, all), &wanted.left(), wanted)?;
        let rows = self.index.has_row_numbers();
        unsure.retain(|&id| !rows || id < u64::from(built));
        let left = wanted.left();
        unsure.retain(|id| left.binary_search(id).is_ok());
        self.by_records((0, built), &unsure, wanted)
    }

    /// Looks for ids in the records of the nodes from one to before another.
    fn by_records(
        &self,
        (first, end): (u32, u32),
        ids: &[u64],
        wanted: &mut Wanted,
    ) -> Result<(), Error> {
        if ids.is_empty() || first >= end {
            return Ok(());
        }
        let index = self.index;
        let nodes = match index.memory().budget {
            None => {
                let hashes = index.id_hashes(first);
                hashes.nodes(index, (first, end), ids, self.progress)?
            }
            Some(_) => {
                let mut nodes = Vec::new();
                let mut each = |node, id, _: &[u8]| {
                    if ids.binary_search(&id).is_ok() {
                        nodes.push(node);
                    }
                };
                index.each_node(
                    Nodes::Range(first, end),
                    Exactness::IdAlone,
                    self.admission(),
                    self.progress,
                    &mut each,
                )?;
                nodes
            }
        };
        self.read_some(nodes, wanted)
    }

    /// The same of some nodes, in any order.
    fn read_some(&self, mut nodes: Vec<u32>, wanted: &mut Wanted) -> Result<(), Error> {
        nodes.sort_unstable();
        nodes.dedup();
        match nodes.is_empty() {
            true => Ok(()),
            false => self.read(Nodes::These(&nodes), wanted),
        }
    }

    /// Takes the vectors of nodes that count, as far as they are wanted.
    fn read(&self, nodes: Nodes<'_>, wanted: &mut Wanted) -> Result<(), Error> {
        let admission = self.admission();
        let exactness = match wanted.row_bytes {
            0 => Exactness::IdAlone,
            _ => Exactness::Exact,
        };
        let mut each = |node, id, vector: &[u8]| {
            if wanted.places.contains_key(&id) && admission.admits(id, node) {
                wanted.take(id, Found::On(node), vector);
            }
        };
        self.index
            .each_node(nodes, exactness, admission, self.progress, &mut each)
    }
}

impl Index {
    /// The vectors of ids, as they were when the index was opened: those that are in the index, in the order in which they are asked for, and which
    /// ids are not. One that is asked for twice comes twice.
    ///
    /// Where a file of the checkpoint says which node has an id, that takes a read of it and one of the vector. It does not say it of vectors that were
    /// inserted directly since the build, nor of a build of an earlier version whose ids are row numbers: these records are read, and four
    /// bytes of each kept for the next look-up, or, under a memory budget, nothing. So under a budget many ids are better asked for at once.
    ///
    /// # Errors
    /// A read that failed or a page that is damaged; [`Error::Outdated`] if another process has changed the index so much meanwhile that pages are
    /// gone; more vectors than there is memory for; an interruption through `progress`.
    pub fn vectors(&self, ids: &[u64], progress: &dyn Progress) -> Result<Rows, Error> {
        let found = self.look_up(ids, progress);
        found.map_err(|error| self.outdated(error))
    }

    fn look_up(&self, ids: &[u64], progress: &dyn Progress) -> Result<Rows, Error> {
        let mut wanted = Wanted::new(self, ids)?;
        let look_up = LookUp {
            index: self,
            table: self.id_table()?,
            seen: self.overlay().map(|overlay| Seen {
                overlay,
                moment: overlay.now(),
            }),
            progress,
        };
        look_up.find(&mut wanted)?;
        wanted.into_rows(self, ids)
    }
}
