//! Which clusters vectors go to, and what that does to the clusters around (LIRE, of SPFresh, SOSP 2023).
//!
//! ```text
//!   a new vector    joins the clusters that a build would have put it into
//!   split           a cluster whose head is the nearest of more vectors than a build leaves in one, half as many again as it aims at, becomes
//!                   two: balanced 2-means of these give the heads, and each member goes to the nearer one. Where these are all alike, or nearly,
//!                   each gets half of them. One that would leave a half next to nothing by these two heads is not made, and after one that did, by
//!                   all heads around, what is large is let be
//!   merge           one of less than an eighth of that, of those that new vectors join, is dissolved: its vectors join the clusters that a
//!                   build would put them into (replicated clusters alone: elsewhere nobody knows which are its own)
//!   reassign        only where a head came or went, by what SPFresh shows to be necessary:
//!                     of the cluster that was split     a vector to which the head of another cluster is nearer than both new ones joins that
//!                     of the clusters around it         a vector that is nearer to a new head than to the old one joins that, if no other is
//!                                                       nearer
//!   trim            a cluster that is split, or has more members than a build leaves in one, gives up those that a build would: of copies that
//!                   begin a block, and that are too many, first those to which another head is nearest in comparison
//! ```
//!
//! All of this is local: a vector of a cluster that is split, or near one, finds its clusters among the heads around that one
//! ([`VICINITY`]), which are looked for once and not by each vector again.
//!
//! SPFresh appends a vector's new place and leaves a version number behind, by which stale copies are told. Here nothing is stale: a copy in
//! a cluster that is no more the nearest one is a copy like any other. It goes when its cluster is split and a build would not have it there,
//! or is written anew after the vector was deleted. Where vectors stand with all their clusters, one is a vector's *own*, where scans and merges
//! of the index count it: the nearest, and when another one is reassigned to be that, it is its own from then on.
//!
//! Clusters that are only joined are not kept here: what joins them waits in [`Changes::joined`] until they are written.

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

/// Heads around one that is split, whose clusters' vectors are looked at (SPFresh: 64, of many more vectors each), and among which these find theirs.
const VICINITY: usize = 128;
/// Heads that are looked at where only the nearest is wanted.
const NEAREST: usize = 16;
/// Where nobody knows which vectors' own cluster it is without a look at each, a cluster is looked at that has more than this share of the usual
/// members, in hundredths.
const LOOK_AT: u64 = 150;
/// One is merged that has less than this part of what it has at most.
const SMALL_PART: usize = 8;

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

/// How a member of a cluster stands to the heads around.
#[derive(Clone, Copy)]
struct Standing {
    /// Its squared distance to the cluster's head.
    here: f32,
    /// The nearest head of all, and its squared distance.
    nearest: (f32, u32),
    /// How much of a vector it counts for the cluster's size: that of a vector whose own cluster it is, or of which nobody knows and no head is
    /// nearer. One that has several such heads is a part of each.
    weight: f32,
}

impl Standing {
    /// How many times as far the cluster's head is as the nearest one.
    fn ratio(self) -> f32 {
        match self.here <= self.nearest.0 {
            true => 1.0,
            false => self.here / self.nearest.0,
        }
    }
}

/// Clusters that change.
pub(super) struct Changes<'a> {
    index: &'a Index,
    stored: Stored<'a>,
    pub(super) heads: AmendedHeads,
    closure: Closure,
    /// Vectors beyond which a cluster is split, of those whose own it is.
    most: usize,
    /// Members beyond which it is looked at.
    look_at: usize,
    /// Vectors that join clusters that are otherwise as they are on storage, or as they are in `whole`.
    joined: BTreeMap<u32, Vec<Entry>>,
    /// Clusters of which all is known: those that were split or trimmed, and those whose number is new.
    whole: BTreeMap<u32, Vec<Entry>>,
    /// Where vectors stand with all their clusters: the own cluster of those that have another one now than they had.
    owner: HashMap<u32, u32>,
    pub(super) counts: Counts,
    /// Scratch.
    at: HeadsAt,
    near: Vec<(f32, u32)>,
    chosen: Vec<u32>,
    apart: Vec<f32>,
}

impl<'a> Changes<'a> {
    /// None yet, of an index and heads of its clusters; ids that were `removed` do not count. What is written has such a `shape`.
    pub(super) fn new(
        index: &'a Index,
        stores: &'a ClusterStores,
        heads: AmendedHeads,
        removed: &'a HashMap<u64, u32>,
        shape: &ClusterShape,
    ) -> Result<Self, Error> {
        let volume = &**index.volume();
        let facts = crate::stored::cluster_facts(volume, index.manifest())?;
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

    /// Puts new vectors into clusters. They are numbered from `first` on by the clusters that they are in, so that those of one cluster stand
    /// next to each other. Gives them in that order.
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

    /// Splits, trims and merges the clusters that are to be.
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
            // Either half may be too large still.
            large.extend(self.divide(cluster, progress)?);
        }
        // Grouped and addressed indexes do not store which cluster is a vector's own, so that a small one cannot be dissolved without a look at
        // all its vectors: there it stays.
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

    /// How many members a cluster has now.
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

    /// How many of a cluster's members count for its size.
    fn counted(&self, size: Size) -> usize {
        match self.stored.is_replicated() {
            true => size.own,
            false => size.all,
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
            None => self.stored.entries(cluster)?,
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
        for entry in &mut all {
            entry.own &= self.is_own(entry.node, cluster);
        }
        all.sort_by_key(|entry| !entry.own);
        Ok(all)
    }

    /// Whether a vector's own cluster is this one, if it ever was.
    fn is_own(&self, node: u32, cluster: u32) -> bool {
        self.owner.get(&node).is_none_or(|&own| own == cluster)
    }

    /// Has a vector join another cluster because that is the nearest now. Where it is known which one is a vector's own, that is it now.
    fn reassign_to(&mut self, to: u32, from: u32, entry: Entry) {
        self.counts.reassigned += 1;
        let own = self.stored.is_replicated();
        if own {
            self.owner.insert(entry.node, to);
            // It is to be written, for it says that it has a vector which it has no more.
            self.joined.entry(from).or_default();
        }
        self.join(to, Entry { own, ..entry });
    }

    /// The same with their vectors, and surely without what does not count.
    fn members_with_vectors(&mut self, cluster: u32) -> Result<Vec<Entry>, Error> {
        let members = self.members(cluster)?;
        self.stored.with_vectors(members)
    }

    /// Says what all members of a cluster are, from now on.
    fn put(&mut self, cluster: u32, mut members: Vec<Entry>) {
        self.joined.remove(&cluster);
        let stored = &self.stored;
        members
            .iter_mut()
            .for_each(|entry| stored.forget_vector(entry));
        self.whole.insert(cluster, members);
    }

    /// Has a vector join a cluster. One that stands by itself on storage is not held.
    fn join(&mut self, cluster: u32, mut entry: Entry) {
        self.stored.forget_vector(&mut entry);
        self.joined.entry(cluster).or_default().push(entry);
    }

    /// What is near a vector of all heads, in `near`.
    fn look_from(&mut self, vector: &[u8]) {
        let list = cluster::looked_at(self.closure.replicas);
        self.heads.stand_at(vector, &mut self.at);
        self.heads.nearest(&mut self.at, list, &mut self.near);
    }

    /// The same of some heads.
    fn look_among(&mut self, clusters: &[u32], vector: &[u8]) {
        self.heads.stand_at(vector, &mut self.at);
        self.heads.among(clusters, &mut self.at, &mut self.near);
    }

    /// The same where what is near it was looked for among some heads.
    fn choose_among(&mut self) {
        self.near
            .sort_unstable_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
        self.choose();
    }

    /// The clusters that a vector is to be a member of, in `chosen`, by what is near it, nearest first.
    fn choose(&mut self) {
        let heads = &self.heads;
        let apart = |cluster, others: &[u32], out: &mut Vec<f32>| {
            heads.distances(cluster, others, out);
        };
        let (near, chosen) = (&self.near, &mut self.chosen);
        self.closure.choose(near, apart, chosen, &mut self.apart);
    }

    /// The clusters whose heads are nearest to that of a cluster, itself first.
    fn around(&mut self, cluster: u32) -> Vec<u32> {
        self.heads
            .stand_at(self.heads.vector(cluster), &mut self.at);
        self.heads.nearest(&mut self.at, VICINITY, &mut self.near);
        let others = self.near.iter().map(|near| near.1);
        let others = others.filter(|&other| other != cluster);
        std::iter::once(cluster).chain(others).collect()
    }

    /// How the vector that was looked from stands to some clusters, by what is near it, whatever its order.
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
            // Whose own it is, is known.
            _ if self.stored.is_replicated() => f32::from(u8::from(own)),
            0 | 1 => 1.0,
            // It may be in as many of them as it may join.
            alike => 1.0 / alike.min(self.closure.replicas) as f32,
        };
        here.map(|here| Standing {
            here,
            nearest,
            weight: if here <= nearest.0 { weight } else { 0.0 },
        })
    }

    /// Splits a cluster if its head is the nearest of too many vectors, and gives those of its halves of which it still is; else trims it if it
    /// has too many members.
    fn divide(&mut self, cluster: u32, progress: &dyn Progress) -> Result<Vec<u32>, Error> {
        let members = self.members_with_vectors(cluster)?;
        let around = self.around(cluster);
        let mut standings = Vec::with_capacity(members.len());
        let (mut nearest_here, mut weight) = (Vec::new(), 0.0);
        for entry in &members {
            self.look_among(&around, &entry.vector);
            let [mut standing] = self.standing([cluster], entry.own);
            if standing.weight > 0.0 && !self.stored.is_replicated() {
                // That of one whose own cluster is far from here may not be among those around.
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
            // Where one half has next to nothing the other is as large as before: it is let be until the next time, or there would be no end of it.
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

    /// The heads of the halves of some members of a cluster; `None` where one of them would have next to none of these: heads are members, and
    /// one in the midst of many dimensions is nearer to nearly all others than any other member is.
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
        // One that is as near to both may be of either.
        let nearer = |a: &[f32], b: &[f32]| a.iter().zip(b).filter(|(a, b)| a <= b).count();
        let smaller = nearer(&to_first, &to_second).min(nearer(&to_second, &to_first));
        Ok((smaller >= least.max(1)).then_some(heads))
    }

    /// Splits a cluster, whose members stand so, into two with these heads. Gives both, and how much each counts.
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
                // Those that are as near to both take turns.
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
            // A copy of a vector whose own cluster is another stays one copy.
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
            // It stays only if a build would have it here, as far as the heads around can tell.
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

    /// Has a cluster give up members that a build would: where it has too many, and those that would begin a block, as far as they have a nearer
    /// cluster, of which they are members then.
    fn trim(&mut self, cluster: u32, members: &mut Vec<(Entry, Standing)>) {
        let kept = self.closure.kept(members.len());
        // The nearest stay, and whatever has no other cluster.
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

    /// Has vectors of the clusters around one that was split, whose head was `old`, join the half that is nearer to them than that was, and than
    /// all others are. Those that were `inside` have been looked at.
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
            // Those that came with this checkpoint, and those that stand on storage.
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

    /// Whether a vector is nearer to the heads of the halves than to that which was `old`.
    fn is_nearer_than(&mut self, old: &[u8], halves: [u32; 2], vector: &[u8]) -> bool {
        self.heads.stand_at(vector, &mut self.at);
        let point = self.at.point();
        self.heads.distances_of(point, old, &mut self.apart);
        let to_old = self.apart.first().copied().unwrap_or(0.0);
        self.heads.among(&halves, &mut self.at, &mut self.near);
        self.near.iter().any(|near| near.0 < to_old)
    }

    /// Takes a cluster away that has too few members. The last one gets its number, which is given; `None` where it stays.
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

/// What long work asks between two pieces of it.
pub(super) fn go_on(progress: &dyn Progress) -> Result<(), Error> {
    match progress.interrupted() {
        true => Err(Error::Interrupted),
        false => Ok(()),
    }
}
