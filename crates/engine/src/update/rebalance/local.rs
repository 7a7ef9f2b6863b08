//! Chooses the clusters of new vectors, and rebalances the clusters around them (the protocol LIRE
//! of SPFresh, SOSP 2023).
//!
//! - **Insert**: a new vector joins the clusters into which a build would put it.
//! - **Split**: a cluster is split if its head is the nearest head of too many vectors: more than
//!   1.5 times the target size, as in a build. Balanced 2-means of these vectors gives two heads,
//!   and each member goes to the nearer head. If all members are equally near to both heads, each
//!   cluster gets half of them. If one half would be almost empty, the split is not made. After a
//!   split, vectors may move from a half to other heads around. If this leaves a half almost empty,
//!   the large half is not split again.
//! - **Merge**: a cluster that new vectors join is dissolved if it has fewer vectors than an
//!   eighth of the limit of a split. Its vectors join the clusters into which a build would put
//!   them. A merge needs the own clusters of vectors, and only replicated indexes store these.
//! - **Reassign**: after a split, a vector moves by the conditions that SPFresh shows to be
//!   necessary. A vector of the split cluster moves to a third cluster whose head is nearer than
//!   both new heads. A vector of a neighbouring cluster moves to a new head that is nearer than the
//!   old head and all other heads.
//! - **Trim**: if a cluster is split, or has more members than a build leaves, copies are removed
//!   as in a build. These are copies beyond the maximum number, and copies that would begin another
//!   block. Copies that are much nearer to another head are removed first.
//!
//! All of these steps are local: the heads around a split cluster ([`VICINITY`]) are found once for
//! each split.
//!
//! In SPFresh, a version number makes the old copies of a reassigned vector stale. In StratANN no
//! copy is stale. A copy is removed if its cluster is split and a build would not put the copy
//! there. A copy of a deleted vector is removed when its cluster is rewritten. Scans and merges
//! count a replicated vector in its nearest, *own* cluster.
//!

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use stratann_layout::{BLOCK, ClusterShape};

use super::entries::{Entry, Size, Stored};
use crate::Error;
use crate::cluster::{self, AmendedHeads, Blocks, Closure, HeadsAt, PointRows, take_turns};
use crate::data::MatrixRef;
use crate::index::Index;
use crate::progress::Progress;
use crate::stores::ClusterStores;
use crate::stores::reading;

/// The number of heads around a split cluster. Among these heads, vectors of the clusters around
/// find their new clusters. SPFresh uses 64, with many more vectors in each cluster.
const VICINITY: usize = 128;
/// The list size of a search for the single nearest head.
const NEAREST: usize = 16;
/// If own clusters are not stored, a cluster is examined from this size on, in percent of the mean
/// size.
const LOOK_AT: u64 = 150;
/// A cluster is dissolved if it has fewer vectors than the limit of a split divided by
/// `SMALL_PART`. A half of a split is almost empty if it has less than this fraction of the
/// members.
const SMALL_PART: usize = 8;

pub(super) struct New {
    pub(super) node: u32,
    pub(super) id: u64,
    pub(super) vector: Arc<[u8]>,
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counts {
    pub(super) split: u64,
    pub(super) merged: u64,
    pub(super) reassigned: u64,
}

#[derive(Clone, Copy)]
struct Standing {
    /// The squared distance to the head of the cluster.
    here: f32,
    /// The squared distance to the nearest of the heads around, and the cluster of this head.
    nearest: (f32, u32),
    /// The weight of the vector in the size of the cluster. If another head is nearer, the weight
    /// is 0. Otherwise, if own clusters are stored, the weight is 1 in the own cluster and 0 in
    /// other clusters. If they are not stored, equally near heads share a weight of 1.
    weight: f32,
}

impl Standing {
    fn ratio(self) -> f32 {
        match self.here <= self.nearest.0 {
            true => 1.0,
            false => self.here / self.nearest.0,
        }
    }
}

pub(super) struct Changes<'a> {
    index: &'a Index,
    stored: Stored<'a>,
    pub(super) heads: AmendedHeads,
    closure: Closure,
    /// A cluster with a weight above this number is split.
    most: usize,
    /// A cluster with more members than this number is examined.
    look_at: usize,
    /// The vectors that join each cluster. The other members of the cluster are on storage or in
    /// `whole`.
    joined: BTreeMap<u32, Vec<Entry>>,
    /// All members of clusters that were split or trimmed, or that have a new number.
    whole: BTreeMap<u32, Vec<Entry>>,
    /// If vectors are replicated: the new own cluster of each reassigned vector.
    owner: HashMap<u32, u32>,
    pub(super) counts: Counts,
    at: HeadsAt,
    near: Vec<(f32, u32)>,
    chosen: Vec<u32>,
    apart: Vec<f32>,
}

impl<'a> Changes<'a> {
    /// `removed` has the ids of dead records. New files have this `shape`.
    pub(super) fn new(
        index: &'a Index,
        stores: &'a ClusterStores,
        heads: AmendedHeads,
        removed: &'a HashMap<u64, u32>,
        shape: &ClusterShape,
    ) -> Result<Self, Error> {
        let volume = &**index.volume();
        let facts = reading::cluster_facts(volume, index.manifest())?;
        let usual = facts.members.div_ceil(facts.clusters.max(1)).max(1);
        let most = cluster::most_of(facts.size as usize);
        let stored = Stored::open(volume, stores, removed)?;
        let blocks = Blocks {
            block: BLOCK,
            fixed: stratann_layout::clusters::extent::FIXED,
            member: stores.kind().stride(shape),
        };
        Ok(Self {
            index,
            heads,
            closure: Closure {
                replicas: facts.replicas as usize,
                share: facts.closure,
                most: cluster::MOST_MEMBERS * facts.replicas as usize * facts.size as usize,
                blocks: stored.is_replicated().then_some(blocks),
            },
            most,
            look_at: match stored.is_replicated() {
                true => most,
                false => (LOOK_AT * usual / 100) as usize,
            },
            stored,
            joined: BTreeMap::new(),
            whole: BTreeMap::new(),
            owner: HashMap::new(),
            counts: Counts::default(),
            at: HeadsAt::default(),
            near: Vec::new(),
            chosen: Vec::new(),
            apart: Vec::new(),
        })
    }

    /// Puts new vectors into clusters. Vectors of one cluster get consecutive numbers, from `first`
    /// on.
    pub(super) fn insert(
        &mut self,
        rows: Vec<(u64, Box<[u8]>)>,
        first: u32,
        progress: &dyn Progress,
    ) -> Result<Vec<New>, Error> {
        let mut placed = Vec::with_capacity(rows.len());
        for (turn, (id, vector)) in rows.into_iter().enumerate() {
            go_on(progress)?;
            self.look_from(&vector);
            take_turns(&mut self.near, turn);
            self.choose();
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

    pub(super) fn settle(&mut self, progress: &dyn Progress) -> Result<(), Error> {
        let (mut large, mut small) = (Vec::new(), BTreeSet::new());
        for cluster in self.joined.keys().copied().collect::<Vec<_>>() {
            go_on(progress)?;
            let size = self.size(cluster)?;
            if self.counted(size) > self.look_at || size.all > self.closure.most {
                large.push(cluster);
            } else if self.counted(size) < self.most / SMALL_PART {
                small.insert(cluster);
            }
        }
        while let Some(cluster) = large.pop() {
            go_on(progress)?;
            // Each half of a split cluster may still be too large.
            large.extend(self.divide(cluster, progress)?);
        }
        // Grouped and addressed indexes do not store own clusters, so a merge would read all
        // vectors.
        while self.stored.is_replicated()
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

    fn size(&mut self, cluster: u32) -> Result<Size, Error> {
        let own = |entries: &[Entry]| entries.iter().filter(|entry| entry.own).count();
        let mut size = match self.whole.get(&cluster) {
            Some(entries) => Size {
                own: own(entries),
                all: entries.len(),
            },
            None => self.stored.size(cluster)?,
        };
        if let Some(entries) = self.joined.get(&cluster) {
            size.own += own(entries);
            size.all += entries.len();
        }
        Ok(size)
    }

    fn counted(&self, size: Size) -> usize {
        match self.stored.is_replicated() {
            true => size.own,
            false => size.all,
        }
    }

    pub(super) fn changed(&self) -> BTreeSet<u32> {
        let all = self.joined.keys().chain(self.whole.keys());
        all.copied().collect()
    }

    /// All members of a cluster that are not known to be dead: first own vectors, then copies, both
    /// ordered by node.
    pub(super) fn members(&mut self, cluster: u32) -> Result<Vec<Entry>, Error> {
        let mut all = match self.whole.get(&cluster) {
            Some(entries) => entries.clone(),
            None => self.stored.entries(cluster)?,
        };
        all.extend(self.joined.get(&cluster).into_iter().flatten().cloned());
        // If a vector has two entries, one entry remains. This entry is own if either entry is own,
        // and has the bytes of the vector if either entry has them.
        all.sort_by_key(|entry| (entry.node, !entry.own, entry.vector.is_empty()));
        all.dedup_by(|again, first| {
            let same = again.node == first.node;
            if same && first.vector.is_empty() {
                (first.id, first.vector) = (again.id, again.vector.clone());
            }
            same
        });
        for entry in &mut all {
            entry.own &= self.is_own(entry.node, cluster);
        }
        all.sort_by_key(|entry| !entry.own);
        Ok(all)
    }

    fn is_own(&self, node: u32, cluster: u32) -> bool {
        self.owner.get(&node).is_none_or(|&own| own == cluster)
    }

    /// Adds a vector to its nearest cluster `to`, which becomes the vector's own cluster.
    fn reassign_to(&mut self, to: u32, from: u32, entry: Entry) {
        self.counts.reassigned += 1;
        let own = self.stored.is_replicated();
        if own {
            self.owner.insert(entry.node, to);
            // The old cluster must be written, since on storage it still has the vector as an own
            // vector.
            self.joined.entry(from).or_default();
        }
        self.join(to, Entry { own, ..entry });
    }

    fn members_with_vectors(&mut self, cluster: u32) -> Result<Vec<Entry>, Error> {
        let members = self.members(cluster)?;
        self.stored.with_vectors(members)
    }

    fn put(&mut self, cluster: u32, mut members: Vec<Entry>) {
        self.joined.remove(&cluster);
        let stored = &self.stored;
        members
            .iter_mut()
            .for_each(|entry| stored.forget_vector(entry));
        self.whole.insert(cluster, members);
    }

    /// If vectors are stored once, a vector on storage is not kept in memory.
    fn join(&mut self, cluster: u32, mut entry: Entry) {
        self.stored.forget_vector(&mut entry);
        self.joined.entry(cluster).or_default().push(entry);
    }

    fn look_from(&mut self, vector: &[u8]) {
        let list = cluster::looked_at(self.closure.replicas);
        self.heads.stand_at(vector, &mut self.at);
        self.heads.nearest(&mut self.at, list, &mut self.near);
    }

    fn look_among(&mut self, clusters: &[u32], vector: &[u8]) {
        self.heads.stand_at(vector, &mut self.at);
        self.heads.among(clusters, &mut self.at, &mut self.near);
    }

    fn choose_among(&mut self) {
        self.near
            .sort_unstable_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
        self.choose();
    }

    /// Chooses the clusters for the current vector by `near`, whose nearest head is first.
    fn choose(&mut self) {
        let heads = &self.heads;
        let apart = |cluster, others: &[u32], out: &mut Vec<f32>| {
            heads.distances(cluster, others, out);
        };
        let (near, chosen) = (&self.near, &mut self.chosen);
        self.closure.choose(near, apart, chosen, &mut self.apart);
    }

    /// The given cluster, followed by the clusters whose heads are nearest to its head.
    fn around(&mut self, cluster: u32) -> Vec<u32> {
        self.heads
            .stand_at(self.heads.vector(cluster), &mut self.at);
        self.heads.nearest(&mut self.at, VICINITY, &mut self.near);
        let others = self.near.iter().map(|near| near.1);
        let others = others.filter(|&other| other != cluster);
        std::iter::once(cluster).chain(others).collect()
    }

    /// The [`Standing`] of the current vector in some clusters, computed from the heads in `near`,
    /// which may have any order.
    fn standing<const N: usize>(&self, clusters: [u32; N], own: bool) -> [Standing; N] {
        let (mut nearest, mut alike) = ((f32::INFINITY, u32::MAX), 0);
        let mut here = [f32::INFINITY; N];
        for &(distance, cluster) in &self.near {
            if distance == nearest.0 {
                alike += 1;
                nearest.1 = nearest.1.min(cluster);
            } else if distance < nearest.0 {
                (nearest, alike) = ((distance, cluster), 1);
            }
            if let Some(at) = clusters.iter().position(|&of| of == cluster) {
                here[at] = distance;
            }
        }
        let weight = match alike {
            // Own clusters are stored.
            _ if self.stored.is_replicated() => f32::from(u8::from(own)),
            0 | 1 => 1.0,
            // The vector may be a member of several of the equally near clusters.
            alike => 1.0 / alike.min(self.closure.replicas) as f32,
        };
        here.map(|here| Standing {
            here,
            nearest,
            weight: if here <= nearest.0 { weight } else { 0.0 },
        })
    }

    /// Splits a cluster with too many vectors, and returns the halves that still have too many
    /// vectors. Otherwise trims a cluster with too many members.
    fn divide(&mut self, cluster: u32, progress: &dyn Progress) -> Result<Vec<u32>, Error> {
        let members = self.members_with_vectors(cluster)?;
        let around = self.around(cluster);
        let mut standings = Vec::with_capacity(members.len());
        let (mut nearest_here, mut weight) = (Vec::new(), 0.0);
        for entry in &members {
            self.look_among(&around, &entry.vector);
            let [mut standing] = self.standing([cluster], entry.own);
            if standing.weight > 0.0 && !self.stored.is_replicated() {
                // The nearest head of all may not be among the heads around this cluster.
                self.heads.nearest(&mut self.at, NEAREST, &mut self.near);
                if let Some(&nearest) = self.near.first()
                    && nearest.0 < standing.here
                {
                    (standing.nearest, standing.weight) = (nearest, 0.0);
                }
            }
            if standing.weight > 0.0 {
                nearest_here.push(entry);
            }
            weight += standing.weight;
            standings.push(standing);
        }
        if weight > self.most as f32
            && nearest_here.len() > 1
            && let Some(heads) = self.halves(&nearest_here, progress)?
        {
            let members = members.into_iter().zip(standings).collect();
            let (halves, weights) = self.split(cluster, around, members, heads)?;
            // If one half is almost empty, the other half is not split again in this rebalance,
            // since the splits might never end.
            let least = weight / SMALL_PART as f32;
            if weights.iter().any(|&half| half < least) {
                return Ok(Vec::new());
            }
            let halves = halves.into_iter().zip(weights);
            return Ok(halves
                .filter(|half| half.1 > self.most as f32 && half.1 < weight)
                .map(|half| half.0)
                .collect());
        }
        if members.len() > self.closure.most {
            let mut placed = members.into_iter().zip(standings).collect();
            self.trim(cluster, &mut placed);
            let members = placed.into_iter().map(|(entry, _)| entry).collect();
            self.put(cluster, members);
        }
        Ok(Vec::new())
    }

    /// Chooses two members as heads of the halves. `None` if one half would be almost empty: in
    /// many dimensions, a central member may be the nearest to almost all members.
    fn halves(
        &mut self,
        members: &[&Entry],
        progress: &dyn Progress,
    ) -> Result<Option<[Arc<[u8]>; 2]>, Error> {
        let vectors: Vec<u8> = (members.iter())
            .flat_map(|entry| entry.vector.iter().copied())
            .collect();
        let (dim, element) = (self.index.dim(), self.index.element());
        let source = MatrixRef::new(&vectors, members.len(), dim, element)?;
        let rows = PointRows {
            source: &source,
            space: self.heads.space().clone(),
        };
        let least = members.len() / SMALL_PART;
        let heads = cluster::halves(&rows, least, self.index.manifest().seed, progress)?;
        let heads = heads.map(|at| members[at as usize].vector.clone());
        let mut points = Vec::new();
        self.heads.space().append(&vectors, &mut points);
        let (mut to_first, mut to_second) = (Vec::new(), Vec::new());
        for (head, distances) in [(&heads[0], &mut to_first), (&heads[1], &mut to_second)] {
            self.heads.stand_at(head, &mut self.at);
            self.heads.distances_of(self.at.point(), &points, distances);
        }
        let nearer = |a: &[f32], b: &[f32]| a.iter().zip(b).filter(|(a, b)| a <= b).count();
        let smaller = nearer(&to_first, &to_second).min(nearer(&to_second, &to_first));
        Ok((smaller >= least.max(1)).then_some(heads))
    }

    /// Returns both clusters, and the weight of each.
    fn split(
        &mut self,
        cluster: u32,
        mut around: Vec<u32>,
        members: Vec<(Entry, Standing)>,
        heads: [Arc<[u8]>; 2],
    ) -> Result<([u32; 2], [f32; 2]), Error> {
        self.counts.split += 1;
        let old = self.heads.point(cluster).to_vec();
        self.heads.replace(cluster, &heads[0]);
        let other = self.heads.push(&heads[1]);
        around.push(other);
        let halves = [cluster, other];
        let mut inside: Vec<u32> = members.iter().map(|(entry, _)| entry.node).collect();
        inside.sort_unstable();
        let mut sides: [Vec<(Entry, Standing)>; 2] = Default::default();
        let (mut weights, mut alike) = ([0.0; 2], 0);
        for (entry, before) in members {
            self.look_among(&around, &entry.vector);
            let stands = self.standing(halves, entry.own);
            let side = match stands[0].here == stands[1].here {
                false => usize::from(stands[1].here < stands[0].here),
                true => {
                    alike += 1;
                    alike % 2
                }
            };
            let (here, beside) = (stands[side], halves[1 - side]);
            self.choose_among();
            let (_, nearest) = here.nearest;
            let is_here = here.ratio() == 1.0;
            let leaves = !is_here && !halves.contains(&nearest);
            // If another cluster is the own cluster of the vector, this copy goes to one half only.
            let counts = entry.own || before.weight > 0.0;
            let mut entry = entry;
            if leaves && counts {
                self.reassign_to(nearest, halves[side], entry.clone());
                entry.own &= !self.stored.is_replicated();
            } else if entry.own && self.owner.contains_key(&entry.node) {
                self.owner.insert(entry.node, halves[side]);
            }
            if counts && self.chosen.contains(&beside) && stands[0].here != stands[1].here {
                sides[1 - side].push((entry.copy(), stands[1 - side]));
            }
            // A copy stays only if a build would put it into this half.
            if entry.own || is_here || self.chosen.contains(&halves[side]) {
                weights[side] += if counts { here.weight } else { 0.0 };
                sides[side].push((entry, here));
            } else if !self.stored.is_replicated() {
                self.join(nearest, entry);
            }
        }
        for (half, mut side) in halves.into_iter().zip(sides) {
            self.trim(half, &mut side);
            let members = side.into_iter().map(|(entry, _)| entry).collect();
            self.put(half, members);
        }
        self.reassign(&around, halves, &old, &inside)?;
        Ok((halves, weights))
    }

    /// Removes copies as a build does. If the cluster of a nearer head does not have a removed
    /// copy, the copy joins that cluster.
    fn trim(&mut self, cluster: u32, members: &mut Vec<(Entry, Standing)>) {
        let kept = self.closure.kept(members.len());
        let rank = |(entry, standing): &(Entry, Standing)| match entry.own {
            true => 0.0,
            false => standing.ratio(),
        };
        members.sort_by(|a, b| rank(a).total_cmp(&rank(b)));
        while members.len() > kept
            && let Some((entry, standing)) = members.pop_if(|last| rank(last) > 1.0)
        {
            if !self.stored.is_replicated() && standing.nearest.1 != cluster {
                self.join(standing.nearest.1, entry);
            }
        }
    }

    /// Moves vectors of the clusters around to a half, if the head of the half is nearer than the
    /// former head `old` and all other heads. `split` has placed the vectors `inside`.
    fn reassign(
        &mut self,
        around: &[u32],
        halves: [u32; 2],
        old: &[u8],
        inside: &[u32],
    ) -> Result<(), Error> {
        let (mut to_old, mut to_first, mut to_second) = (vec![], vec![], vec![]);
        let mut points = Vec::new();
        let others = around.iter().filter(|near| !halves.contains(near));
        for &near in others {
            // The candidates are entries that this rebalance has in memory, and vectors on storage.
            let whole = self.whole.get(&near);
            let is_whole = whole.is_some();
            let came = self.joined.get(&near);
            let came = came.into_iter().chain(whole).flatten();
            let mut candidates: Vec<Entry> = came.filter(|entry| entry.own).cloned().collect();
            candidates.retain(|entry| {
                !entry.vector.is_empty() && self.is_nearer_than(old, halves, &entry.vector)
            });
            if !is_whole || !self.stored.is_replicated() {
                let rows = self.stored.own(near)?;
                if !rows.nodes.is_empty() {
                    points.clear();
                    self.heads.space().append(&rows.vectors, &mut points);
                    let heads = &self.heads;
                    heads.distances_of(old, &points, &mut to_old);
                    heads.distances_of(heads.point(halves[0]), &points, &mut to_first);
                    heads.distances_of(heads.point(halves[1]), &points, &mut to_second);
                    let bytes = rows.vectors.len() / rows.nodes.len();
                    let nearer = (0..rows.nodes.len())
                        .filter(|&at| to_first[at].min(to_second[at]) < to_old[at]);
                    candidates.extend(nearer.map(|at| Entry {
                        node: rows.nodes[at],
                        id: rows.ids[at],
                        own: true,
                        vector: rows.vectors[at * bytes..][..bytes].into(),
                    }));
                }
            }
            for entry in candidates {
                if inside.binary_search(&entry.node).is_ok() || !self.is_own(entry.node, near) {
                    continue;
                }
                self.look_among(around, &entry.vector);
                let [first, second] = self.standing(halves, true);
                let joins = if first.here <= second.here { 0 } else { 1 };
                if [first, second][joins].ratio() == 1.0 {
                    self.reassign_to(halves[joins], near, entry);
                }
            }
        }
        Ok(())
    }

    fn is_nearer_than(&mut self, old: &[u8], halves: [u32; 2], vector: &[u8]) -> bool {
        self.heads.stand_at(vector, &mut self.at);
        let point = self.at.point();
        self.heads.distances_of(point, old, &mut self.apart);
        let to_old = self.apart.first().copied().unwrap_or(0.0);
        self.heads.among(&halves, &mut self.at, &mut self.near);
        self.near.iter().any(|near| near.0 < to_old)
    }

    /// Dissolves a cluster with too few members, and gives its number to the last cluster. Returns
    /// the former number of the last cluster.
    fn merge(&mut self, cluster: u32) -> Result<Option<u32>, Error> {
        let size = self.size(cluster)?;
        if self.heads.count() < 2 || self.counted(size) >= self.most / SMALL_PART {
            return Ok(None);
        }
        self.counts.merged += 1;
        let members = self.members_with_vectors(cluster)?;
        self.joined.remove(&cluster);
        self.whole.remove(&cluster);
        let last = self.heads.count() - 1;
        if last != cluster {
            let moved = self.members(last)?;
            for entry in moved.iter().filter(|entry| entry.own) {
                self.owner.insert(entry.node, cluster);
            }
            self.joined.remove(&last);
            self.whole.remove(&last);
            self.whole.insert(cluster, moved);
        }
        self.heads.remove(cluster);
        for entry in members.into_iter().filter(|entry| entry.own) {
            self.look_from(&entry.vector);
            self.choose();
            for (rank, joins) in self.chosen.clone().into_iter().enumerate() {
                let own = rank == 0;
                if own {
                    self.owner.insert(entry.node, joins);
                }
                let entry = entry.clone();
                self.join(joins, Entry { own, ..entry });
            }
        }
        Ok(Some(last))
    }
}

pub(super) fn go_on(progress: &dyn Progress) -> Result<(), Error> {
    match progress.interrupted() {
        true => Err(Error::Interrupted),
        false => Ok(()),
    }
}
