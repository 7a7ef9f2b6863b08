//! Look-ups return the exact vectors of external ids, or list the ids.
//!
//! ```text
//!   id ──> vectors in memory, at the read timestamp       overlay/fresh.rs
//!      └─> a node ──────────────────────────────────────> its record, if it is live
//!           ├─ of a vector of the build: the file of ids  stores/ids.rs
//!           │    without a file, ids are row numbers: the node with this number, if its record
//!           │    has the id
//!           └─ of any other vector: the records           hashes.rs: read once, then four bytes
//!                                                         a node; under a budget read each time
//! ```
//!
//! A look-up has one read timestamp ([`Moment`](crate::overlay::Moment)). If an upsert moves a
//! vector meanwhile, the look-up finds the vector in its old or its new place. If an id is replaced
//! so often that the version at the read timestamp is forgotten, the id is looked up again at a
//! later timestamp.
//!
//! Ids are listed in ascending order, from a given id on. A caller that lists all ids with several
//! calls gets each id that stays in the index, and only once.

mod hashes;
mod ids;
mod live;

use std::collections::HashMap;

use stratann_layout::attributes::Row;
use stratann_vector::{Element, to_f32};

use crate::index::Index;
use crate::overlay::Admission;
use crate::overlay::Seen;
use crate::progress::Progress;
use crate::search::{Exactness, Nodes};
use crate::stores::ids::{IdTable, LastBlock};
use crate::{Error, ErrorKind, bounds};

/// Vectors that were looked up by their ids.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Rows {
    /// The external ids of the call that are in the index, in the order of the call.
    pub ids: Vec<u64>,
    /// The vectors of these ids, one after the other, bit for bit as they were built or inserted.
    pub vectors: Vec<u8>,
    /// The number of elements of a vector.
    pub dim: usize,
    /// The type of an element.
    pub element: Element,
    /// The ids of the call that are not in the index, in the order of the call.
    pub missing: Vec<u64>,
}

impl Rows {
    /// The bytes of the vector at a position. `None` if the position is beyond the last vector.
    pub fn vector(&self, place: usize) -> Option<&[u8]> {
        let bytes = self.dim * self.element.size();
        self.vectors.get(place * bytes..(place + 1) * bytes)
    }

    /// The vector at a position, as floats without loss. `None` if the position is beyond the last
    /// vector.
    pub fn floats(&self, place: usize) -> Option<Vec<f32>> {
        let mut floats = vec![0.0; self.dim];
        to_f32(self.element, self.vector(place)?, &mut floats);
        Some(floats)
    }

    /// The pairs of id and vector, in the order of `ids`.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (u64, &[u8])> {
        let vectors = self.vectors.chunks_exact(self.dim * self.element.size());
        self.ids.iter().copied().zip(vectors)
    }
}

struct Wanted {
    /// The position of each id in `vectors` and `found`.
    places: HashMap<u64, usize>,
    vectors: Vec<u8>,
    row_bytes: usize,
    found: Vec<Found>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Found {
    Not,
    On(u32),
    Fresh,
}

impl Wanted {
    fn new(index: &Index, ids: &[u64]) -> Result<Self, Error> {
        Self::with(index.dim() * index.element().size(), ids)
    }

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

    /// Records the vector of an id, unless this or a higher node was recorded before.
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

    fn into_nodes(self) -> HashMap<u64, u32> {
        let node = |(id, place): (u64, usize)| match self.found[place] {
            Found::On(node) => Some((id, node)),
            Found::Not | Found::Fresh => None,
        };
        self.places.into_iter().filter_map(node).collect()
    }

    fn left(&self) -> Vec<u64> {
        let places = self.places.iter();
        let left = places.filter(|&(_, &place)| self.found[place] == Found::Not);
        let mut left: Vec<u64> = left.map(|(&id, _)| id).collect();
        left.sort_unstable();
        left
    }

    fn into_rows(self, index: &Index, ids: &[u64]) -> Result<Rows, Error> {
        let there = |id: &u64| self.found[self.places[id]] != Found::Not;
        let (found, missing): (Vec<u64>, Vec<u64>) = ids.iter().partition(|id| there(id));
        let vectors = match found.len() == self.places.len() && missing.is_empty() {
            // Positions have the order in which the ids first occur in the call.
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

struct LookUp<'a> {
    index: &'a Index,
    /// The table from ids of the build to nodes.
    table: Option<&'a IdTable>,
    seen: Option<Seen<'a>>,
    /// The look-up reads the nodes below this number. Later nodes may have vectors that were
    /// inserted after the read timestamp.
    nodes: u32,
    progress: &'a dyn Progress,
}

impl LookUp<'_> {
    fn admission(&self) -> Admission<'_> {
        self.seen
            .map_or_else(Admission::default, |seen| seen.admission())
    }

    fn find(&self, wanted: &mut Wanted) -> Result<(), Error> {
        let mut left = wanted.left();
        // During a merge, an id may briefly be in both graphs, so the older graph is read first,
        // and the vector of the newer graph wins.
        for (fresh, moment) in self.seen.iter().flat_map(Seen::fresh) {
            for &id in &left {
                if let Some(vector) = fresh.vector_at(id, moment) {
                    wanted.take(id, Found::Fresh, &vector);
                }
            }
        }
        left = wanted.left();
        let (built, all) = (self.index.manifest().vectors as u32, self.nodes);
        if self.index.stands_in_all_clusters() {
            // The vector may be in any posting list.
            return match left.is_empty() {
                true => Ok(()),
                false => self.read(Nodes::Range(0, all), wanted),
            };
        }
        let mut nodes = Vec::with_capacity(left.len());
        // The ids for which no table has a certain answer.
        let mut unsure = Vec::new();
        let mut last = LastBlock::none();
        for &id in &left {
            match self.table.map(|table| table.find(id, &mut last)) {
                Some(Ok(Ok((_, node)))) => nodes.extend(Some(node).filter(|&node| node < built)),
                Some(Ok(Err(_))) => {}
                Some(Err(error)) if error.kind() != ErrorKind::Damaged => return Err(error),
                // The table is damaged. The records have the ids as well.
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

    /// Looks for ids in the records of the nodes `first..end`.
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

    fn read_some(&self, mut nodes: Vec<u32>, wanted: &mut Wanted) -> Result<(), Error> {
        nodes.retain(|&node| node < self.nodes);
        nodes.sort_unstable();
        nodes.dedup();
        match nodes.is_empty() {
            true => Ok(()),
            false => self.read(Nodes::These(&nodes), wanted),
        }
    }

    /// Records the vectors of these nodes, if the nodes are live and have an id of the look-up.
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
    /// The vectors of ids at the time of the open, in the order of the call, and the ids that are
    /// not in the index. If an id is twice in the call, its vector is twice in the result.
    ///
    /// If a file maps ids to nodes, a look-up reads this file once, and then the vector. Otherwise,
    /// and for direct inserts, look-ups read the records. Without a memory budget, four bytes for
    /// each record then stay in memory. Under a budget, one call with many ids is faster than many
    /// calls.
    ///
    /// # Errors
    /// - A read fails, or a page is damaged.
    /// - [`Error::Outdated`]: another process has changed the index so much that pages no longer
    ///   exist.
    /// - The vectors do not fit into memory, or `progress` interrupts.
    pub fn vectors(&self, ids: &[u64], progress: &dyn Progress) -> Result<Rows, Error> {
        let found = self.look_up(ids, progress);
        found.map_err(|error| self.outdated(error))
    }

    /// The vectors of ids, as [`vectors`](Index::vectors) returns them, and the attributes and the
    /// payload of each id of the call, or `None` for an id that is not in the index. All are as of
    /// the time of the open.
    ///
    /// # Errors
    /// Fails as [`vectors`](Index::vectors) and [`attributes`](Index::attributes) do.
    pub fn vectors_with_rows(
        &self,
        ids: &[u64],
        progress: &dyn Progress,
    ) -> Result<(Rows, Vec<Option<Row>>), Error> {
        Ok((self.vectors(ids, progress)?, self.attributes(ids)?))
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
            nodes: self.nodes() as u32,
            progress,
        };
        look_up.find(&mut wanted)?;
        wanted.into_rows(self, ids)
    }
}
