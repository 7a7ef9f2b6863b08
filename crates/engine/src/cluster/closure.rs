//! Closure: decides which clusters a row joins (SPANN §3.2).
//!
//! A query near the boundary of two clusters may have neighbours in both. So that it need not probe
//! both, a row joins all clusters whose head is not much farther than the nearest, nearest first,
//! up to a number. One rule leaves out redundant copies: a row does not join a cluster whose head
//! is nearer to a chosen head than to the row. A query that probes one of these clusters does not
//! need the row in the other (the rule of relative neighbourhoods).

use super::{CHUNK, Heads, HeadsScratch, PointRows, go_on};
use crate::progress::{Progress, Stage};
use crate::{Error, threads};

/// The most members of a cluster, as a multiple of its members if each vector had all the replicas
/// that it may have.
pub(crate) const MOST_MEMBERS: usize = 2;

/// How rows join clusters.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Closure {
    /// The most clusters that a row is a member of, 1 or more.
    pub(crate) replicas: usize,
    /// How much farther than the nearest head another may be, as a share of the squared distance.
    pub(crate) share: f32,
    /// The most members of a cluster. Members with a nearer cluster leave first, in the order of
    /// how much nearer that is in comparison.
    pub(crate) most: usize,
    /// The sizes of members and blocks, if clusters take whole blocks. Then members that would
    /// begin a further block leave as well.
    pub(crate) blocks: Option<Blocks>,
}

/// How members fill blocks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Blocks {
    /// Bytes of a block, of a cluster's data in front of its members, and of a member.
    pub(crate) block: usize,
    pub(crate) fixed: usize,
    pub(crate) member: usize,
}

impl Blocks {
    /// The number of `members` to keep, so that their blocks are full. If the last block is less
    /// than three quarters full, its members are given up.
    fn filled(self, members: usize) -> usize {
        let bytes = self.fixed + members * self.member;
        let (whole, rest) = (bytes / self.block, bytes % self.block);
        if whole == 0 || 4 * rest >= 3 * self.block {
            return members;
        }
        (whole * self.block - self.fixed) / self.member
    }
}

impl Closure {
    /// The clusters that a row joins. `near` has the candidates with the squared distances of their
    /// heads, nearest first. `apart` computes the distances from a cluster's head to others;
    /// `distances` is a buffer.
    pub(crate) fn choose(
        &self,
        near: &[(f32, u32)],
        mut apart: impl FnMut(u32, &[u32], &mut Vec<f32>),
        chosen: &mut Vec<u32>,
        distances: &mut Vec<f32>,
    ) {
        chosen.clear();
        let nearest = near.first().map_or(0.0, |near| near.0);
        // If the row is a head, the distance 0 to itself gives no scale for far ones.
        let most = match nearest {
            0.0 => f32::INFINITY,
            nearest => nearest * (1.0 + self.share),
        };
        for &(distance, cluster) in near {
            if distance > most || chosen.len() == self.replicas {
                break;
            }
            apart(cluster, chosen, distances);
            if distances.iter().all(|&apart| apart >= distance) {
                chosen.push(cluster);
            }
        }
    }

    /// The number of `members` that a cluster keeps. The others must have a nearer cluster.
    pub(crate) fn kept(&self, members: usize) -> usize {
        let members = members.min(self.most);
        self.blocks.map_or(members, |blocks| blocks.filled(members))
    }
}

/// Rotates the heads at equal distance that are nearest to a row, `near`, by the row's number
/// `turn`. If many rows are alike, their heads are too, and otherwise all would join the same
/// cluster.
pub(crate) fn take_turns(near: &mut [(f32, u32)], turn: usize) {
    let Some(&(nearest, _)) = near.first() else {
        return;
    };
    let alike = near.iter().take_while(|near| near.0 == nearest).count();
    near[..alike].rotate_left(turn % alike);
}

/// Heads that are searched for each row: the least, and for each cluster that it may join.
const LOOKED_AT: usize = 64;
const LOOKED_AT_A_REPLICA: usize = 8;
/// The number of heads to search for a row that may join `replicas` clusters.
pub(crate) fn looked_at(replicas: usize) -> usize {
    LOOKED_AT.max(LOOKED_AT_A_REPLICA * replicas)
}

/// Rows that a thread takes at once.
const SHARE: usize = 8 * CHUNK;

/// The members of all clusters.
#[derive(Debug)]
pub(crate) struct Memberships {
    /// Where each row's clusters begin in `clusters`, and where the last one's end.
    starts: Vec<u32>,
    /// The clusters of each row, the nearest first.
    clusters: Vec<u32>,
    /// Members of each cluster.
    pub(crate) sizes: Vec<u32>,
    /// The sum of all rows' squared distances to their nearest heads, in build space.
    pub(crate) distance: f64,
    /// Memberships that were given up because a cluster had too many.
    pub(crate) given_up: u64,
}

impl Memberships {
    /// The clusters of a row, the nearest first: one or more.
    pub(crate) fn of(&self, row: u32) -> &[u32] {
        let at = row as usize;
        &self.clusters[self.starts[at] as usize..self.starts[at + 1] as usize]
    }

    /// How many rows there are.
    pub(crate) fn rows(&self) -> usize {
        self.starts.len() - 1
    }

    /// Members of all clusters.
    pub(crate) fn total(&self) -> u64 {
        self.clusters.len() as u64
    }

    /// The most bytes for this many rows, while memberships are computed.
    pub(crate) fn bytes(rows: usize, replicas: usize) -> u64 {
        // An offset, and for each membership the cluster and the distance.
        rows as u64 * (4 + 8 * replicas as u64)
    }

    /// The members of each cluster: their offsets, and rows. Rows for which it is the nearest
    /// cluster come first; both groups keep their order.
    pub(crate) fn by_cluster(&self) -> (Vec<u32>, Vec<u32>) {
        let mut starts = Vec::with_capacity(self.sizes.len() + 1);
        let mut at = 0;
        for &size in &self.sizes {
            starts.push(at);
            at += size;
        }
        starts.push(at);
        let mut members = vec![0; at as usize];
        let mut next = starts.clone();
        for nearest in [true, false] {
            for row in 0..self.rows() as u32 {
                for (rank, &cluster) in self.of(row).iter().enumerate() {
                    if (rank == 0) == nearest {
                        members[next[cluster as usize] as usize] = row;
                        next[cluster as usize] += 1;
                    }
                }
            }
        }
        (starts, members)
    }
}

/// Computes all memberships.
///
/// # Errors
/// Rows that cannot be read, or an interruption.
pub(crate) fn memberships(
    rows: &PointRows<'_>,
    heads: &Heads,
    closure: Closure,
    threads: usize,
    progress: &dyn Progress,
) -> Result<Memberships, Error> {
    let count = rows.source.rows();
    let _stage = Stage::begin(progress, "assigning", count as u64);
    let mut found = Joined {
        starts: Vec::with_capacity(count + 1),
        ..Joined::default()
    };
    found.starts.push(0);
    // A few shares at a time, so that results are held once.
    let all: Vec<u32> = (0..count as u32).collect();
    for shares in all.chunks(SHARE * threads.max(1)) {
        go_on(progress)?;
        let joined = threads::shared(shares.chunks(SHARE), |share| {
            join(rows, heads, closure, share, progress)
        });
        for joined in joined {
            found.append(joined?);
        }
    }
    Ok(found.within(heads.count(), &closure))
}

/// The memberships of some rows.
#[derive(Default)]
struct Joined {
    starts: Vec<u32>,
    clusters: Vec<u32>,
    distances: Vec<f32>,
}

/// Computes the memberships of some rows.
fn join(
    rows: &PointRows<'_>,
    heads: &Heads,
    closure: Closure,
    share: &[u32],
    progress: &dyn Progress,
) -> Result<Joined, Error> {
    let list = looked_at(closure.replicas);
    let (mut scratch, mut near) = (HeadsScratch::default(), Vec::new());
    let (mut chosen, mut apart_from) = (Vec::new(), Vec::new());
    let mut joined = Joined::default();
    rows.each_chunk(share, |before, bytes| {
        for (n, row) in bytes.chunks_exact(rows.source.row_bytes()).enumerate() {
            heads.nearest(rows, row, list, &mut scratch, &mut near);
            take_turns(&mut near, share[before + n] as usize);
            let apart = |cluster, others: &[u32], out: &mut Vec<f32>| {
                heads.distances(cluster, others, out);
            };
            closure.choose(&near, apart, &mut chosen, &mut apart_from);
            joined.clusters.extend(&chosen);
            let distance = |cluster| {
                near.iter()
                    .find(|near| near.1 == cluster)
                    .map(|near| near.0)
            };
            let distances = chosen.iter().filter_map(|&cluster| distance(cluster));
            joined.distances.extend(distances);
            joined.starts.push(joined.clusters.len() as u32);
        }
        progress.advance((bytes.len() / rows.source.row_bytes()) as u64);
    })?;
    Ok(joined)
}

impl Joined {
    fn append(&mut self, other: Joined) {
        let before = self.clusters.len() as u32;
        self.starts
            .extend(other.starts.iter().map(|start| before + start));
        self.clusters.extend(other.clusters);
        self.distances.extend(other.distances);
    }

    /// Removes members until no cluster has more than it keeps, as far as the others have a nearer
    /// one.
    fn within(mut self, clusters: usize, closure: &Closure) -> Memberships {
        let rows = self.starts.len() - 1;
        let mut sizes = vec![0u32; clusters];
        for &cluster in &self.clusters {
            sizes[cluster as usize] += 1;
        }
        let most: Vec<u32> = sizes
            .iter()
            .map(|&size| closure.kept(size as usize) as u32)
            .collect();
        let is_over = |cluster: u32| sizes[cluster as usize] > most[cluster as usize];
        // For clusters with too many members: each member's distance, as a multiple of the distance
        // to its nearest head.
        let mut over: Vec<(u32, f32, u32)> = Vec::new();
        for row in 0..rows {
            let nearest = self.distances[self.starts[row] as usize];
            let of_row = self.starts[row] as usize + 1..self.starts[row + 1] as usize;
            for at in of_row.filter(|&at| is_over(self.clusters[at])) {
                // A ratio to 0 would be infinite, or NaN, whose sign depends on the processor.
                let times = match nearest {
                    0.0 => f32::INFINITY,
                    nearest => self.distances[at] / nearest,
                };
                over.push((self.clusters[at], times, at as u32));
            }
        }
        // In each cluster, members with the largest ratio leave first; before them, members at
        // distance 0 from their nearest head.
        over.sort_unstable_by(|a, b| {
            (a.0.cmp(&b.0))
                .then(b.1.total_cmp(&a.1))
                .then(a.2.cmp(&b.2))
        });
        const GONE: u32 = u32::MAX;
        let mut given_up = 0;
        for &(cluster, _, at) in &over {
            let size = &mut sizes[cluster as usize];
            if *size > most[cluster as usize] {
                *size -= 1;
                given_up += 1;
                self.clusters[at as usize] = GONE;
            }
        }
        let mut distance = 0.0;
        let (mut starts, mut kept) = (Vec::with_capacity(rows + 1), 0);
        starts.push(0);
        for row in 0..rows {
            let of_row = self.starts[row] as usize..self.starts[row + 1] as usize;
            distance += self
                .distances
                .get(of_row.start)
                .map_or(0.0, |&d| f64::from(d));
            for at in of_row {
                if self.clusters[at] != GONE {
                    self.clusters[kept] = self.clusters[at];
                    kept += 1;
                }
            }
            starts.push(kept as u32);
        }
        self.clusters.truncate(kept);
        self.clusters.shrink_to_fit();
        Memberships {
            starts,
            clusters: self.clusters,
            sizes,
            distance,
            given_up,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clusters_fill_their_blocks() {
        let blocks = Blocks {
            block: 100,
            fixed: 10,
            member: 20,
        };
        // 4 members take 90 bytes, 9 take 190, 14 take 290.
        let kept = [0, 1, 3, 4, 5, 7, 8, 9, 10, 12, 13, 14];
        let filled = kept.map(|members| blocks.filled(members));
        assert_eq!(filled, [0, 1, 3, 4, 4, 4, 4, 9, 9, 9, 9, 14]);
        let closure = Closure {
            replicas: 8,
            share: 10.0,
            most: 13,
            blocks: Some(blocks),
        };
        assert_eq!((closure.kept(14), closure.kept(3)), (9, 3));
        assert_eq!(
            Closure {
                blocks: None,
                ..closure
            }
            .kept(14),
            13
        );
    }
}
