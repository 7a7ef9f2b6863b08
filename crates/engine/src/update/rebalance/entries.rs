//! The members of clusters: entries in memory, and the members on storage.

use std::collections::HashMap;
use std::sync::Arc;

use stratann_tier::Volume;

use crate::Error;
use crate::stores::ClusterStores;
use crate::stores::clusters::Vectors;
use crate::stores::clusters::reader::ClusterReader;

/// The approximate bytes of the vectors that stay in memory for a later split of a neighbouring
/// cluster.
const KEPT: usize = 8 << 20;

#[derive(Clone)]
pub(super) struct Entry {
    pub(super) node: u32,
    /// The external id, meaningless if `vector` is empty.
    pub(super) id: u64,
    pub(super) own: bool,
    /// Empty if vectors are stored once and this vector has not been read.
    pub(super) vector: Arc<[u8]>,
}

impl Entry {
    /// An entry of the same vector for a cluster that is not the vector's own cluster.
    pub(super) fn copy(&self) -> Self {
        Self {
            own: false,
            ..self.clone()
        }
    }
}

#[derive(Default)]
pub(super) struct Rows {
    pub(super) nodes: Vec<u32>,
    pub(super) ids: Vec<u64>,
    pub(super) vectors: Vec<u8>,
}

impl Rows {
    fn push(&mut self, node: u32, id: u64, vector: &[u8]) {
        self.nodes.push(node);
        self.ids.push(id);
        self.vectors.extend_from_slice(vector);
    }
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Size {
    /// Members for which the cluster is the own cluster. 0 if own clusters are not stored.
    pub(super) own: usize,
    pub(super) all: usize,
}

pub(super) struct Stored<'a> {
    stores: &'a ClusterStores,
    reader: ClusterReader<'a>,
    /// The ids of dead records, each with a bound: records of the id on lower nodes are dead.
    removed: &'a HashMap<u64, u32>,
    /// The own vectors of some clusters, about [`KEPT`] bytes.
    kept: HashMap<u32, Arc<Rows>>,
    kept_bytes: usize,
    numbers: Vec<u32>,
    none: Arc<[u8]>,
}

impl<'a> Stored<'a> {
    pub(super) fn open(
        volume: &dyn Volume,
        stores: &'a ClusterStores,
        removed: &'a HashMap<u64, u32>,
    ) -> Result<Self, Error> {
        Ok(Self {
            stores,
            reader: ClusterReader::open(volume, stores)?,
            removed,
            kept: HashMap::new(),
            kept_bytes: 0,
            numbers: Vec::new(),
            none: Arc::new([]),
        })
    }

    pub(super) fn is_replicated(&self) -> bool {
        matches!(self.stores.vectors, Vectors::Replicated)
    }

    /// The members of a cluster on storage. If vectors are stored once, dead members count too.
    pub(super) fn size(&mut self, cluster: u32) -> Result<Size, Error> {
        if !self.is_replicated() {
            self.members_of(cluster)?;
            let all = self.numbers.len();
            return Ok(Size { own: 0, all });
        }
        let removed = self.removed;
        let view = self.reader.extent(cluster)?;
        let (own, all) = (view.own(), view.records());
        if removed.is_empty() {
            let (own, all) = (own as usize, all as usize);
            return Ok(Size { own, all });
        }
        let mut size = Size::default();
        for slot in 0..all {
            let (node, id, _) = view.entry(slot);
            if !is_removed(removed, id, node) {
                size.own += usize::from(slot < own);
                size.all += 1;
            }
        }
        Ok(size)
    }

    /// The members of a cluster on storage. If vectors are stored once, entries have no vectors,
    /// and dead members are included.
    pub(super) fn entries(&mut self, cluster: u32) -> Result<Vec<Entry>, Error> {
        if !self.is_replicated() {
            self.members_of(cluster)?;
            let by_itself = |&node: &u32| Entry {
                node,
                id: 0,
                own: false,
                vector: self.none.clone(),
            };
            return Ok(self.numbers.iter().map(by_itself).collect());
        }
        let (stores, removed) = (self.stores, self.removed);
        let view = self.reader.extent(cluster)?;
        let mut entries = Vec::with_capacity(view.records() as usize);
        let (mut slot, own) = (0, view.own());
        let mut each = |node, id, vector: &[u8]| {
            if !is_removed(removed, id, node) {
                entries.push(Entry {
                    node,
                    id,
                    own: slot < own,
                    vector: vector.into(),
                });
            }
            slot += 1;
        };
        stores.each_in(cluster, &view, 0..view.records(), true, &mut each)?;
        Ok(entries)
    }

    /// If vectors are stored once: reads the members of a cluster into `numbers`.
    fn members_of(&mut self, cluster: u32) -> Result<(), Error> {
        let stores = self.stores;
        let view = self.reader.extent(cluster)?;
        stores.others(cluster, &view, &mut self.numbers)?;
        if stores.is_as_built(cluster) {
            self.numbers.extend(stores.group(cluster));
        }
        Ok(())
    }

    /// Reads the missing vectors of entries, and removes dead entries.
    pub(super) fn with_vectors(&mut self, mut entries: Vec<Entry>) -> Result<Vec<Entry>, Error> {
        let without = entries.iter().filter(|entry| entry.vector.is_empty());
        self.numbers.clear();
        self.numbers.extend(without.map(|entry| entry.node));
        if !self.numbers.is_empty() {
            self.numbers.sort_unstable();
            self.numbers.dedup();
            let mut found: HashMap<u32, (u64, Arc<[u8]>)> = HashMap::new();
            let each = &mut |node, id, vector: &[u8]| {
                found.insert(node, (id, vector.into()));
                Ok(())
            };
            self.reader.each_member(&self.numbers, each)?;
            for entry in entries.iter_mut().filter(|entry| entry.vector.is_empty()) {
                if let Some((id, vector)) = found.get(&entry.node) {
                    (entry.id, entry.vector) = (*id, vector.clone());
                }
            }
        }
        entries.retain(|entry| !is_removed(self.removed, entry.id, entry.node));
        Ok(entries)
    }

    /// If vectors are stored once, drops a vector that can be read again from storage.
    pub(super) fn forget_vector(&self, entry: &mut Entry) {
        if !self.is_replicated() && self.stores.member_place(entry.node).is_some() {
            entry.vector = self.none.clone();
        }
    }

    /// The vectors on storage whose own cluster is `cluster`. If vectors are not replicated: the
    /// group of `cluster` in the build.
    pub(super) fn own(&mut self, cluster: u32) -> Result<Arc<Rows>, Error> {
        if let Some(rows) = self.kept.get(&cluster) {
            return Ok(rows.clone());
        }
        let (mut rows, removed) = (Rows::default(), self.removed);
        let each = &mut |node, id, vector: &[u8]| {
            if !is_removed(removed, id, node) {
                rows.push(node, id, vector);
            }
            Ok(())
        };
        self.reader.each_own(cluster, each)?;
        let group = self.stores.group(cluster);
        if let Some(at) = self
            .stores
            .member_place(group.start)
            .filter(|_| !group.is_empty())
        {
            self.reader.each_behind(at, group, each)?;
        }
        if self.kept_bytes > KEPT {
            self.kept.clear();
            self.kept_bytes = 0;
        }
        let rows = Arc::new(rows);
        self.kept_bytes += rows.vectors.len() + rows.nodes.len() * 12;
        self.kept.insert(cluster, rows.clone());
        Ok(rows)
    }
}

fn is_removed(removed: &HashMap<u64, u32>, id: u64, node: u32) -> bool {
    removed.get(&id).is_some_and(|&bound| node < bound)
}
