//! The heads of clusters that change: a head moves, is added by a split, or is removed by a merge.
//!
//! The graph over the heads is updated in place, as by an insert. In such a graph, old heads may
//! fill the candidate list of a walk and link only to each other. So some walks are
//! [tried](AmendedHeads::are_found) after the changes. If too many of them miss the nearest head,
//! the graph is rebuilt.

use stratann_layout::NavigationFile;
use stratann_vector::{Kernel, Metric};

use super::heads::{ALPHA, BUILD_LIST, DEGREE, graph_over};
use crate::Error;
use crate::data::MatrixRef;
use crate::graph::{Candidate, Pruner, Rule, Space};
use crate::navigation::{Navigation, NavigationScratch, walk};
use crate::progress::Progress;

const RULE: Rule = Rule {
    degree: DEGREE,
    alpha: ALPHA,
    saturate: false,
};

/// The number of rows, and of heads, for which walks are tried.
const TRIED: usize = 64;
const TRIED_LIST: usize = 20;
/// If more than one in this many walks misses the nearest head, the graph is rebuilt.
const MISSED: usize = 32;

#[derive(Default)]
pub(crate) struct HeadsAt {
    walk: NavigationScratch,
    /// The row, as a point of build space.
    point: Vec<u8>,
    distances: Vec<f32>,
}

impl HeadsAt {
    pub(crate) fn point(&self) -> &[u8] {
        &self.point
    }
}

pub(crate) struct AmendedHeads {
    space: Space,
    kernel: Kernel,
    entry: u32,
    links: Vec<Vec<u32>>,
    /// The heads, as rows of the index and as points of build space.
    vectors: Vec<u8>,
    points: Vec<u8>,
    pruner: Pruner,
    changed: bool,
}

impl AmendedHeads {
    /// `space` must already have measured the lengths that it needs.
    pub(crate) fn of(heads: &Navigation, space: Space) -> Self {
        let file = heads.file();
        let mut points = Vec::new();
        space.append(&file.vectors, &mut points);
        let clusters = 0..file.nodes.len() as u32;
        Self {
            kernel: Kernel::new(Metric::L2, space.build_element(), space.build_dim()),
            space,
            entry: file.entry,
            links: clusters
                .map(|cluster| file.links_of(cluster).to_vec())
                .collect(),
            vectors: file.vectors.clone(),
            points,
            pruner: Pruner::new(),
            changed: false,
        }
    }

    pub(crate) fn count(&self) -> u32 {
        self.links.len() as u32
    }

    pub(crate) fn have_changed(&self) -> bool {
        self.changed
    }

    pub(crate) fn space(&self) -> &Space {
        &self.space
    }

    pub(crate) fn vector(&self, cluster: u32) -> &[u8] {
        let bytes = self.vectors.len() / self.links.len();
        &self.vectors[cluster as usize * bytes..][..bytes]
    }

    pub(crate) fn point(&self, cluster: u32) -> &[u8] {
        &self.points[cluster as usize * self.kernel.row_bytes()..][..self.kernel.row_bytes()]
    }

    pub(crate) fn stand_at(&self, row: &[u8], at: &mut HeadsAt) {
        at.point.clear();
        self.space.append(row, &mut at.point);
    }

    /// Clusters with their squared distances, nearest first, by a walk with list size `list`.
    pub(crate) fn nearest(&self, at: &mut HeadsAt, list: usize, out: &mut Vec<(f32, u32)>) {
        let HeadsAt {
            walk: found, point, ..
        } = at;
        let links_of = |cluster: u32| &self.links[cluster as usize][..];
        let query = (&self.kernel, &point[..]);
        walk(self.entry, links_of, &self.points, query, list, found);
        out.clear();
        out.extend(found.found());
    }

    pub(crate) fn among(&self, clusters: &[u32], at: &mut HeadsAt, out: &mut Vec<(f32, u32)>) {
        let HeadsAt {
            point, distances, ..
        } = at;
        distances.resize(clusters.len(), 0.0);
        self.kernel
            .distances(point, &self.points, clusters, distances);
        out.clear();
        out.extend(distances.iter().copied().zip(clusters.iter().copied()));
    }

    pub(crate) fn distances_of(&self, point: &[u8], others: &[u8], out: &mut Vec<f32>) {
        out.resize(others.len() / self.kernel.row_bytes(), 0.0);
        self.kernel.distances_dense(point, others, out);
    }

    pub(crate) fn distances(&self, cluster: u32, others: &[u32], out: &mut Vec<f32>) {
        out.resize(others.len(), 0.0);
        self.kernel
            .distances(self.point(cluster), &self.points, others, out);
    }

    pub(crate) fn replace(&mut self, cluster: u32, vector: &[u8]) {
        let bytes = vector.len();
        self.vectors[cluster as usize * bytes..][..bytes].copy_from_slice(vector);
        let mut point = Vec::new();
        self.space.append(vector, &mut point);
        self.points[cluster as usize * point.len()..][..point.len()].copy_from_slice(&point);
        self.link(cluster);
    }

    /// Adds the head of a new cluster, and returns the cluster's number.
    pub(crate) fn push(&mut self, vector: &[u8]) -> u32 {
        let cluster = self.count();
        self.vectors.extend_from_slice(vector);
        self.space.append(vector, &mut self.points);
        self.links.push(Vec::new());
        self.link(cluster);
        cluster
    }

    /// There must be at least two clusters. The last cluster gets the number of the removed
    /// cluster.
    pub(crate) fn remove(&mut self, cluster: u32) {
        self.changed = true;
        let last = self.count() - 1;
        // Heads that linked to the removed head are linked to its neighbours instead.
        let left = std::mem::take(&mut self.links[cluster as usize]);
        let lead: Vec<u32> = (0..self.count())
            .filter(|&other| self.links[other as usize].contains(&cluster))
            .collect();
        for other in lead {
            self.links[other as usize].retain(|&link| link != cluster);
            self.join(other, &left);
        }
        if self.entry == cluster {
            self.entry = left
                .first()
                .copied()
                .unwrap_or(if cluster == 0 { last } else { 0 });
        }
        let (rows, points) = (self.vector(0).len(), self.kernel.row_bytes());
        move_last(&mut self.vectors, rows, cluster);
        move_last(&mut self.points, points, cluster);
        self.links.swap_remove(cluster as usize);
        for links in &mut self.links {
            for link in links.iter_mut().filter(|link| **link == last) {
                *link = cluster;
            }
        }
        if self.entry == last {
            self.entry = cluster;
        }
    }

    fn walk_to(&self, cluster: u32) -> NavigationScratch {
        let mut scratch = NavigationScratch::default();
        let links_of = |cluster: u32| &self.links[cluster as usize][..];
        let query = (&self.kernel, self.point(cluster));
        walk(
            self.entry,
            links_of,
            &self.points,
            query,
            BUILD_LIST,
            &mut scratch,
        );
        scratch
    }

    fn link(&mut self, cluster: u32) {
        self.changed = true;
        let near: Vec<u32> = self
            .walk_to(cluster)
            .found()
            .map(|(_, near)| near)
            .collect();
        self.join(cluster, &near);
        for neighbour in self.links[cluster as usize].clone() {
            if !self.links[neighbour as usize].contains(&cluster) {
                self.join(neighbour, &[cluster]);
            }
        }
    }

    /// If the list has no space, the prune decides which links the head keeps.
    fn join(&mut self, cluster: u32, others: &[u32]) {
        let mut pool = self.links[cluster as usize].clone();
        pool.extend(others.iter().filter(|&&other| other != cluster));
        pool.sort_unstable();
        pool.dedup();
        let mut distances = Vec::new();
        self.distances(cluster, &pool, &mut distances);
        let candidates = pool.iter().zip(&distances);
        let candidates = candidates.map(|(&id, &distance)| Candidate { distance, id });
        let mut chosen: Vec<u32> = match pool.len() <= DEGREE {
            true => pool.clone(),
            false => {
                self.pruner.pool.clear();
                self.pruner.pool.extend(candidates);
                let points = self.space.points(&self.points);
                self.pruner.prune(&points, cluster, &RULE).to_vec()
            }
        };
        // If the prune dropped the only new link but left space, searches still need this link.
        if let [only] = others
            && *only != cluster
            && !chosen.contains(only)
            && chosen.len() < DEGREE
        {
            chosen.push(*only);
        }
        self.links[cluster as usize] = chosen;
    }

    pub(crate) fn connect(&mut self) {
        let mut reached = vec![false; self.links.len()];
        let mut next = vec![self.entry];
        let mut cluster = 0;
        loop {
            while let Some(at) = next.pop() {
                if !std::mem::replace(&mut reached[at as usize], true) {
                    next.extend_from_slice(&self.links[at as usize]);
                }
            }
            while reached.get(cluster) == Some(&true) {
                cluster += 1;
            }
            if cluster == reached.len() {
                return;
            }
            let scratch = self.walk_to(cluster as u32);
            // A walk only finds reachable heads.
            let from = scratch.found().next().map_or(self.entry, |(_, near)| near);
            self.links[from as usize].push(cluster as u32);
            next.push(cluster as u32);
        }
    }

    pub(crate) fn are_found<'r>(&self, rows: impl ExactSizeIterator<Item = &'r [u8]>) -> bool {
        let (mut at, mut near) = (HeadsAt::default(), Vec::new());
        let (mut tried, mut missed) = (0, 0);
        let mut all = Vec::new();
        let step = rows.len().div_ceil(TRIED).max(1);
        for row in rows.step_by(step) {
            self.stand_at(row, &mut at);
            self.distances_of(at.point(), &self.points, &mut all);
            let least = all.iter().copied().fold(f32::INFINITY, f32::min);
            self.nearest(&mut at, TRIED_LIST, &mut near);
            tried += 1;
            missed += usize::from(near.first().is_none_or(|near| near.0 > least));
        }
        let step = self.links.len().div_ceil(TRIED).max(1);
        for cluster in (0..self.count()).step_by(step) {
            self.stand_at(self.vector(cluster), &mut at);
            self.nearest(&mut at, TRIED_LIST, &mut near);
            tried += 1;
            missed += usize::from(near.first().is_none_or(|near| near.0 > 0.0));
        }
        missed * MISSED <= tried
    }

    /// Rebuilds the graph over the heads, as a build of the index does.
    pub(crate) fn build_anew(
        &mut self,
        scratch: &std::path::Path,
        seed: u64,
        progress: &dyn Progress,
    ) -> Result<(), Error> {
        let (metric, element, dim) = self.space.rows();
        let heads = MatrixRef::new(&self.vectors, self.links.len(), dim, element)?;
        let (entry, links) = graph_over(&heads, metric, scratch, seed, progress)?;
        (self.entry, self.links, self.changed) = (entry, links, true);
        self.connect();
        Ok(())
    }

    pub(crate) fn into_file(self) -> NavigationFile {
        let mut offsets = vec![0];
        let mut links = Vec::new();
        for list in &self.links {
            links.extend_from_slice(list);
            offsets.push(links.len() as u32);
        }
        NavigationFile {
            entry: self.entry,
            nodes: (0..self.links.len() as u32).collect(),
            offsets,
            links,
            vectors: self.vectors,
            step: None,
        }
    }
}

/// Moves the last row to `place`, over the row there, and shortens `rows` by one row.
fn move_last(rows: &mut Vec<u8>, bytes: usize, place: u32) {
    let last = rows.len() - bytes;
    let at = place as usize * bytes;
    if at < last {
        rows.copy_within(last.., at);
    }
    rows.truncate(last);
}

#[cfg(test)]
mod tests {
    use stratann_vector::Element;

    use super::*;

    fn row(at: u32) -> [u8; 2] {
        [(at % 16 * 16) as u8, (at / 16 * 16) as u8]
    }

    fn grid(count: u32) -> AmendedHeads {
        let first = NavigationFile {
            entry: 0,
            nodes: vec![0],
            offsets: vec![0, 0],
            links: Vec::new(),
            vectors: row(0).to_vec(),
            step: None,
        };
        let space = Space::new(Metric::L2, Element::U8, 2);
        let mut heads = AmendedHeads::of(&Navigation::new(first), space);
        for at in 1..count {
            assert_eq!(heads.push(&row(at)), at);
        }
        heads
    }

    fn all_are_found(heads: &AmendedHeads) {
        let (mut at, mut near) = (HeadsAt::default(), Vec::new());
        for cluster in 0..heads.count() {
            heads.stand_at(heads.vector(cluster), &mut at);
            heads.nearest(&mut at, 32, &mut near);
            assert_eq!(near[0], (0.0, cluster), "{cluster}");
            let among: Vec<u32> = (0..heads.count()).rev().step_by(2).collect();
            heads.among(&among, &mut at, &mut near);
            let of = heads.point(cluster);
            let mut all = Vec::new();
            heads.distances_of(of, &heads.points, &mut all);
            assert!(near.iter().map(|near| near.1).eq(among));
            assert!(near.iter().all(|near| all[near.1 as usize] == near.0));
        }
    }

    #[test]
    fn heads_that_nothing_leads_to_are_linked_again() {
        let mut heads = grid(120);
        for cluster in 1..120 {
            heads.links[cluster] = if cluster % 2 == 0 {
                vec![cluster as u32 + 1]
            } else {
                Vec::new()
            };
        }
        heads.links[0].clear();
        heads.connect();
        let mut reached = std::collections::BTreeSet::new();
        let mut next = vec![heads.entry];
        while let Some(at) = next.pop() {
            if reached.insert(at) {
                next.extend(&heads.links[at as usize]);
            }
        }
        assert_eq!(reached.len(), 120);
    }

    #[test]
    fn a_graph_in_which_walks_are_lost_is_built_anew() {
        let mut heads = grid(200);
        let rows: Vec<[u8; 2]> = (0..200).map(row).collect();
        let found = |heads: &AmendedHeads| heads.are_found(rows.iter().map(|row| &row[..]));
        assert!(found(&heads));
        for cluster in 0..200 {
            heads.links[cluster] = vec![(cluster as u32 * 7 + 1) % 200];
        }
        heads.connect();
        assert!(!found(&heads));
        let folder = tempfile::tempdir().unwrap();
        heads.build_anew(folder.path(), 1, &crate::Silent).unwrap();
        assert!(found(&heads));
        all_are_found(&heads);
    }

    #[test]
    fn heads_that_come_move_and_go_are_found() {
        let mut heads = grid(200);
        assert!(heads.have_changed());
        all_are_found(&heads);
        for cluster in (0..200).step_by(3) {
            let mut moved = row(cluster);
            moved[0] += 5;
            moved[1] += 3;
            heads.replace(cluster, &moved);
        }
        all_are_found(&heads);
        // The entry is among the removed heads.
        for _ in 0..150 {
            let last = heads.vector(heads.count() - 1).to_vec();
            let gone = heads.count() / 2;
            heads.remove(gone);
            if gone < heads.count() {
                assert_eq!(heads.vector(gone), last);
            }
            all_are_found(&heads);
        }
        while heads.count() > 1 {
            heads.remove(0);
            all_are_found(&heads);
        }
        heads.connect();
        let file = heads.into_file();
        assert_eq!((file.nodes.len(), file.entry, file.links.len()), (1, 0, 0));
    }
}
