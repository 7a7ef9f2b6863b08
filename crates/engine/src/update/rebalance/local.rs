//! Which clusters vectors go to, and what that does to the clusters around (LIRE, of SPFresh, SOSP 2023).
//!
//! ```text
//!   a new vector    joins the clusters that a build would have put it into
//!   split           a cluster whose head is the nearest of more vectors than a build leaves in one, half as many again as it aims at, becomes
//!                   two: balanced 2-means of these give the heads, and each member goes to the nearer one
//!   merge           one of less than an eighth of that, of those that new vectors join, is dissolved: its vectors join the clusters that a
//!                   build would put them into (replicated clusters alone: elsewhere nobody knows which are its own)
//!   reassign        only where a head came or went, by what SPFresh shows to be necessary:
//!                     of the cluster that was split     a vector that was nearer to the old head than to both new ones also joins
//!                                                       the cluster whose head is nearest to it now
//!                     of the 64 clusters around it      a vector that is nearer to a new head than to the old one also joins it, if a
//!                                                       build would have had it so
//! ```
//!
//! SPFresh appends a vector's new place and leaves a version number behind, by which stale copies are told. Here nothing is stale: a copy in
//! a cluster that is no more the nearest one is a copy like any other. It goes when its cluster is split and a build would not have it there,
//! or is written anew after the vector was deleted. A vector has one cluster that is its *own*, where scans and merges of the index count it.
//!
//! Clusters that are only joined are not read here: what joins them waits in [`Changes::joined`] until they are written.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use stratann_tier::Volume;

use crate::Error;
use crate::cluster::{self, AmendedHeads, Closure, HeadsAt, PointRows};
use crate::data::MatrixRef;
use crate::index::Index;
use crate::progress::Progress;
use crate::stores::ClusterStores;
use crate::stores::clusters::Vectors;

/// Clusters around one that is split whose vectors are looked at (SPFresh: 64).
const AROUND: usize = 64;
/// Where nobody knows which vectors' own cluster it is without a look at each, a cluster is looked at that has more than this share of the usual
/// members, in hundredths.
const LOOK_AT: u64 = 150;
/// One is merged that has less than this part of what it has at most.
const LEAST: usize = 8;

/// Heads that are looked at where only the nearest is wanted.
const NEAREST: usize = 16;

/// A vector in a cluster.
#[derive(Clone)]
pub(super) struct Entry {
    /// Its number.
    pub(super) node: u32,
    /// Its outside id; of no meaning without the vector.
    pub(super) id: u64,
    /// Whether the cluster is its own.
    pub(super) own: bool,
    /// The vector; empty where it stands by itself and was not wanted yet.
    pub(super) vector: Arc<[u8]>,
}

/// A vector that is new.
pub(super) struct New {
    pub(super) node: u32,
    pub(super) id: u64,
    pub(super) vector: Arc<[u8]>,
}

/// What was done.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counts {
    pub(super) split: u64,
    pub(super) merged: u64,
    pub(super) reassigned: u64,
}

/// Clusters that change.
pub(super) struct Changes<'a> {
    index: &'a Index,
    stores: &'a ClusterStores,
    volume: &'a dyn Volume,
    /// Ids that do not count, each with the node below which its records do not.
    removed: &'a HashMap<u64, u32>,
    pub(super) heads: AmendedHeads,
    closure: Closure,
    /// Vectors beyond which a cluster is split, of those whose own it is.
    most: usize,
    /// Members beyond which it is looked at.
    look_at: usize,
    /// Vectors that join clusters that are otherwise as they are on storage, or as they are in `whole`.
    joined: BTreeMap<u32, Vec<Entry>>,
    /// Clusters of which all is known: those that were split, and those whose number is new.
    whole: BTreeMap<u32, Vec<Entry>>,
    pub(super) counts: Counts,
    /// Scratch.
    at: HeadsAt,
    near: Vec<(f32, u32)>,
    chosen: Vec<u32>,
    apart: Vec<f32>,
    buffer: Vec<u8>,
}

impl<'a> Changes<'a> {
    /// None yet, of an index and heads of its clusters; ids that were `removed` do not count.
    pub(super) fn new(
        index: &'a Index,
        stores: &'a ClusterStores,
        heads: AmendedHeads,
        removed: &'a HashMap<u64, u32>,
    ) -> Result<Self, Error> {
        let volume = &**index.volume();
        let facts = crate::stored::cluster_facts(volume, index.manifest())?;
        let usual = facts.members.div_ceil(facts.clusters.max(1)).max(1);
        Ok(Self {
            index,
            stores,
            volume,
            removed,
            heads,
            closure: Closure {
                replicas: facts.replicas as usize,
                share: facts.closure,
                most: usize::MAX,
                blocks: None,
            },
            most: cluster::most_of(facts.size as usize),
            look_at: match stores.vectors {
                Vectors::Replicated => cluster::most_of(facts.size as usize),
                Vectors::Grouped(_) | Vectors::Addressed => (LOOK_AT * usual / 100) as usize,
            },
            joined: BTreeMap::new(),
            whole: BTreeMap::new(),
            counts: Counts::default(),
            at: HeadsAt::default(),
            near: Vec::new(),
            chosen: Vec::new(),
            apart: Vec::new(),
            buffer: Vec::new(),
        })
    }

    /// Whether vectors stand with all their clusters.
    fn is_replicated(&self) -> bool {
        matches!(self.stores.vectors, Vectors::Replicated)
    }

    /// Puts new vectors into clusters. They are numbered from `first` on by the clusters that they are in, so that those of one cluster stand
    /// next to each other. Gives them in that order.
    pub(super) fn insert(
        &mut self,
        rows: Vec<(u64, Box<[u8]>)>,
        first: u32,
        progress: &dyn Progress,
    ) -> Result<Vec<New>, Error> {
        let mut placed = Vec::with_capacity(rows.len());
        for (id, vector) in rows {
            go_on(progress)?;
            self.choose(&vector);
            placed.push((self.chosen.clone(), id, Arc::<[u8]>::from(vector)));
            progress.advance(1);
        }
        placed.sort_by_key(|(clusters, ..)| clusters.first().copied());
        let mut new = Vec::with_capacity(placed.len());
        for (node, (clusters, id, vector)) in (first..).zip(placed) {
            for (rank, cluster) in clusters.into_iter().enumerate() {
                let entry = Entry {
                    node,
                    id,
                    own: rank == 0,
                    vector: vector.clone(),
                };
                self.join(cluster, entry);
            }
            new.push(New { node, id, vector });
        }
        Ok(new)
    }

    /// Splits and merges the clusters that are to be.
    pub(super) fn settle(&mut self, progress: &dyn Progress) -> Result<(), Error> {
        let (mut large, mut small) = (Vec::new(), BTreeSet::new());
        for cluster in self.joined.keys().copied().collect::<Vec<_>>() {
            go_on(progress)?;
            let members = self.members(cluster)?;
            if self.counted(&members) > self.look_at {
                large.push(cluster);
            } else if self.counted(&members) < self.most / LEAST {
                small.insert(cluster);
            }
        }
        while let Some(cluster) = large.pop() {
            go_on(progress)?;
            if let Some(other) = self.split(cluster, progress)? {
                // Either half may be too large still.
                large.extend([cluster, other]);
            }
        }
        // Grouped and addressed indexes do not store which cluster is a vector's own, so that a small one cannot be dissolved without a look at
        // all its vectors: there it stays.
        while self.is_replicated()
            && let Some(cluster) = small.pop_first()
        {
            go_on(progress)?;
            if let Some(last) = self.merge(cluster)?
                && small.remove(&last)
            {
                small.insert(cluster);
            }
        }
        if self.heads.have_changed() {
            self.heads.connect();
        }
        Ok(())
    }

    /// How many of a cluster's members count for its size.
    fn counted(&self, members: &[Entry]) -> usize {
        match self.is_replicated() {
            true => members.iter().filter(|entry| entry.own).count(),
            false => members.len(),
        }
    }

    /// The clusters that are to be written, ascending.
    pub(super) fn changed(&self) -> BTreeSet<u32> {
        let all = self.joined.keys().chain(self.whole.keys());
        all.copied().collect()
    }

    /// All members that a cluster has now and that count, as far as anybody knows; those whose own it is first, each of both by number.
    pub(super) fn members(&mut self, cluster: u32) -> Result<Vec<Entry>, Error> {
        let mut all = match self.whole.get(&cluster) {
            Some(entries) => entries.clone(),
            None => self.stored(cluster)?,
        };
        all.extend(self.joined.get(&cluster).into_iter().flatten().cloned());
        // One that is there twice is its own if it is once, and has its vector if it has once.
        all.sort_by_key(|entry| (entry.node, !entry.own, entry.vector.is_empty()));
        all.dedup_by(|again, first| {
            let same = again.node == first.node;
            if same && first.vector.is_empty() {
                (first.id, first.vector) = (again.id, again.vector.clone());
            }
            same
        });
        all.sort_by_key(|entry| !entry.own);
        Ok(all)
    }

    /// The clusters that a vector is to be a member of, in `chosen`; what is near it in `near`.
    fn choose(&mut self, vector: &[u8]) {
        let list = cluster::looked_at(self.closure.replicas);
        let (heads, near) = (&self.heads, &mut self.near);
        heads.nearest(vector, list, &mut self.at, near);
        let apart = |cluster, others: &[u32], out: &mut Vec<f32>| {
            heads.distances(cluster, others, out);
        };
        let (chosen, distances) = (&mut self.chosen, &mut self.apart);
        self.closure.choose(near, apart, chosen, distances);
    }

    fn join(&mut self, cluster: u32, entry: Entry) {
        self.joined.entry(cluster).or_default().push(entry);
    }

    /// A cluster as it is on storage, without what does not count.
    fn stored(&mut self, cluster: u32) -> Result<Vec<Entry>, Error> {
        let (stores, removed) = (self.stores, self.removed);
        let at = stores.place(cluster);
        self.buffer.resize(at.bytes, 0);
        let name = &stores.files[at.file].name;
        self.volume.read_at(name, at.offset, &mut self.buffer)?;
        let view = stores.view(cluster, &self.buffer, true)?;
        let mut entries = Vec::new();
        if self.is_replicated() {
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
            return Ok(entries);
        }
        let mut numbers = Vec::new();
        stores.others(cluster, &view, &mut numbers)?;
        if stores.is_as_built(cluster) {
            numbers.extend(stores.group(cluster));
        }
        let none: Arc<[u8]> = Arc::new([]);
        entries.extend(numbers.into_iter().map(|node| Entry {
            node,
            id: 0,
            own: false,
            vector: none.clone(),
        }));
        Ok(entries)
    }

    /// Reads the vectors of those that have none, and leaves out what does not count.
    fn with_vectors(&mut self, mut entries: Vec<Entry>) -> Result<Vec<Entry>, Error> {
        for entry in entries.iter_mut().filter(|entry| entry.vector.is_empty()) {
            let Some(at) = self.stores.member_place(entry.node) else {
                continue;
            };
            self.buffer.resize(at.bytes, 0);
            let name = &self.stores.files[at.file].name;
            self.volume.read_at(name, at.offset, &mut self.buffer)?;
            let (id, vector) = self.stores.member(entry.node, &self.buffer, true)?;
            (entry.id, entry.vector) = (id, vector.into());
        }
        entries.retain(|entry| !is_removed(self.removed, entry.id, entry.node));
        Ok(entries)
    }

    /// Forgets vectors that stand by themselves on storage, and are read again if they are wanted.
    fn without_vectors(&self, mut entries: Vec<Entry>) -> Vec<Entry> {
        if !self.is_replicated() {
            let none: Arc<[u8]> = Arc::new([]);
            let stored = |entry: &&mut Entry| self.stores.member_place(entry.node).is_some();
            for entry in entries.iter_mut().filter(stored) {
                entry.vector = none.clone();
            }
        }
        entries
    }

    /// Takes a cluster out: all its members that count, with their vectors.
    fn take(&mut self, cluster: u32) -> Result<Vec<Entry>, Error> {
        let members = self.members(cluster)?;
        let members = self.with_vectors(members)?;
        self.joined.remove(&cluster);
        self.whole.remove(&cluster);
        Ok(members)
    }

    /// Splits a cluster that has too many members, and gives the number of the new one; `None` where it has not, or its vectors are all alike.
    fn split(&mut self, cluster: u32, progress: &dyn Progress) -> Result<Option<u32>, Error> {
        let members = self.take(cluster)?;
        // By a look at each: a head may have come nearer to a vector since it joined its own cluster.
        let mut nearest_here = Vec::new();
        for entry in &members {
            let (at, near) = (&mut self.at, &mut self.near);
            self.heads.nearest(&entry.vector, NEAREST, at, near);
            if near.first().is_some_and(|near| near.1 == cluster) {
                nearest_here.push(entry.clone());
            }
        }
        let halves = match nearest_here.len() > self.most {
            true => self.halves(&nearest_here, progress)?,
            false => None,
        };
        let Some(halves) = halves else {
            self.whole.insert(cluster, self.without_vectors(members));
            return Ok(None);
        };
        self.counts.split += 1;
        let old = self.heads.vector(cluster).to_vec();
        self.heads
            .nearest(&old, AROUND + 1, &mut self.at, &mut self.near);
        let around: Vec<u32> = (self.near.iter().map(|near| near.1))
            .filter(|&near| near != cluster)
            .take(AROUND)
            .collect();
        let [first, second] = halves.map(|at| nearest_here[at as usize].vector.clone());
        self.heads.replace(cluster, &first);
        let other = self.heads.push(&second);
        let (mut left, mut right) = (Vec::new(), Vec::new());
        let mut inside: BTreeSet<u32> = BTreeSet::new();
        for entry in members {
            inside.insert(entry.node);
            let heads = [&*first, &*second, &*old];
            let [to_first, to_second, to_old] = self.heads.distances_to(&entry.vector, heads);
            let is_first = to_first <= to_second;
            self.choose(&entry.vector);
            let beside = if is_first { other } else { cluster };
            let joins_both = self.chosen.contains(&beside);
            let nearest = self.chosen.first().copied().unwrap_or(cluster);
            if ![cluster, other].contains(&nearest) {
                // It was nearer to the old head than to both new ones, or its own cluster is another: it may be there already.
                if (entry.own || !self.is_replicated()) && to_old <= to_first.min(to_second) {
                    self.counts.reassigned += 1;
                    let copy = Entry {
                        own: false,
                        ..entry.clone()
                    };
                    self.join(nearest, copy);
                }
            }
            let (near, far) = match is_first {
                true => (&mut left, &mut right),
                false => (&mut right, &mut left),
            };
            if joins_both {
                far.push(Entry {
                    own: false,
                    ..entry.clone()
                });
            }
            // A copy of a vector whose own cluster is another stays only if a build would have it here.
            let here = if is_first { cluster } else { other };
            if entry.own || !self.is_replicated() || self.chosen.contains(&here) {
                near.push(entry);
            }
        }
        let (left, right) = (self.without_vectors(left), self.without_vectors(right));
        self.whole.insert(cluster, left);
        self.whole.insert(other, right);
        for near in around {
            go_on(progress)?;
            for entry in self.own(near)? {
                if inside.contains(&entry.node) {
                    continue;
                }
                let heads = [&*first, &*second, &*old];
                let [to_first, to_second, to_old] = self.heads.distances_to(&entry.vector, heads);
                if to_first.min(to_second) >= to_old {
                    continue;
                }
                self.choose(&entry.vector);
                for joins in [cluster, other] {
                    if self.chosen.contains(&joins) {
                        self.counts.reassigned += 1;
                        let own = false;
                        let entry = entry.clone();
                        self.join(joins, Entry { own, ..entry });
                    }
                }
            }
        }
        Ok(Some(other))
    }

    /// Which of some members of a cluster are to be the heads of its halves.
    fn halves(
        &self,
        members: &[Entry],
        progress: &dyn Progress,
    ) -> Result<Option<[u32; 2]>, Error> {
        let vectors: Vec<u8> = (members.iter())
            .flat_map(|entry| entry.vector.iter().copied())
            .collect();
        let (dim, element) = (self.index.dim(), self.index.element());
        let source = MatrixRef::new(&vectors, members.len(), dim, element)?;
        let rows = PointRows {
            source: &source,
            space: self.heads.space().clone(),
        };
        cluster::halves(&rows, self.index.manifest().seed, progress)
    }

    /// The vectors whose own cluster this is, as far as that is known without a look at each: with their clusters where they stand there,
    /// else those of the group that it was built with.
    fn own(&mut self, cluster: u32) -> Result<Vec<Entry>, Error> {
        if let Some(entries) = self.whole.get(&cluster) {
            let own = entries.iter().filter(|entry| entry.own);
            return Ok(own.cloned().collect());
        }
        if self.is_replicated() {
            let mut entries = self.stored(cluster)?;
            entries.retain(|entry| entry.own);
            return Ok(entries);
        }
        let none: Arc<[u8]> = Arc::new([]);
        let group = self.stores.group(cluster).map(|node| Entry {
            node,
            id: 0,
            own: true,
            vector: none.clone(),
        });
        self.with_vectors(group.collect())
    }

    /// Takes a cluster away that has too few members. The last one gets its number, which is given; `None` where it stays.
    fn merge(&mut self, cluster: u32) -> Result<Option<u32>, Error> {
        if self.heads.count() < 2 {
            return Ok(None);
        }
        let members = self.take(cluster)?;
        if self.counted(&members) >= self.most / LEAST {
            self.whole.insert(cluster, members);
            return Ok(None);
        }
        self.counts.merged += 1;
        let last = self.heads.count() - 1;
        let moved = match last == cluster {
            true => None,
            false => Some(self.take(last)?),
        };
        self.heads.remove(cluster);
        if let Some(moved) = moved {
            self.whole.insert(cluster, moved);
        }
        for entry in members.into_iter().filter(|entry| entry.own) {
            self.choose(&entry.vector);
            for (rank, joins) in self.chosen.clone().into_iter().enumerate() {
                let own = rank == 0;
                let copy = Entry {
                    own,
                    ..entry.clone()
                };
                self.join(joins, copy);
            }
        }
        Ok(Some(last))
    }
}

/// Whether the record of an id on a node does not count.
fn is_removed(removed: &HashMap<u64, u32>, id: u64, node: u32) -> bool {
    removed.get(&id).is_some_and(|&bound| node < bound)
}

/// What long work asks between two pieces of it.
pub(super) fn go_on(progress: &dyn Progress) -> Result<(), Error> {
    match progress.interrupted() {
        true => Err(Error::Interrupted),
        false => Ok(()),
    }
}
