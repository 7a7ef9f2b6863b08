//! Closure: decides which clusters a row joins (SPANN §3.2).
//!
//! A row joins up to `replicas` clusters whose heads are not much farther than the nearest head, so
//! that a query near a boundary need not probe both clusters. If a head is nearer to a chosen head
//! than to the row, the row does not join the cluster of this head, because the copy would be
//! redundant (relative neighbourhoods).

use super::{CHUNK, Heads, HeadsScratch, PointRows, go_on};
use crate::progress::{Progress, Stage};
use crate::{Error, threads};

/// The most members of a cluster, as a multiple of the mean if each vector has all its replicas.
pub(crate) const MOST_MEMBERS: usize = 2;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Closure {
    /// The most clusters that a row is a member of, 1 or more.
    pub(crate) replicas: usize,
    /// A row joins a cluster only if the squared distance of its head is at most 1 + `share` times
    /// the smallest squared distance.
    pub(crate) share: f32,
    /// The most members of a cluster. If a cluster has more, members that have a nearer cluster
    /// leave, first the members with the largest ratio of the two distances.
    pub(crate) most: usize,
    /// The sizes of members and blocks, if clusters are stored in whole blocks.
    pub(crate) blocks: Option<Blocks>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Blocks {
    /// Bytes of a block, of a cluster's data before its members, and of a member.
    pub(crate) block: usize,
    pub(crate) fixed: usize,
    pub(crate) member: usize,
}

impl Blocks {
    /// The number of members that stay if a last block that is less than three quarters full is
    /// dropped.
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
    /// `near` has candidates with squared distances, nearest first. `apart` computes distances
    /// between heads.
    pub(crate) fn choose(
        &self,
        near: &[(f32, u32)],
        mut apart: impl FnMut(u32, &[u32], &mut Vec<f32>),
        chosen: &mut Vec<u32>,
        distances: &mut Vec<f32>,
    ) {
        chosen.clear();
        let nearest = near.first().map_or(0.0, |near| near.0);
        // If the row is a head, its smallest distance is 0, which gives no scale for other heads.
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

    pub(crate) fn kept(&self, members: usize) -> usize {
        let members = members.min(self.most);
        self.blocks.map_or(members, |blocks| blocks.filled(members))
    }
}

/// Rotates equally near heads at the front of `near` by the row's number, so that equal rows join
/// different clusters.
pub(crate) fn take_turns(near: &mut [(f32, u32)], turn: usize) {
    let Some(&(nearest, _)) = near.first() else {
        return;
    };
    let alike = near.iter().take_while(|near| near.0 == nearest).count();
    near[..alike].rotate_left(turn % alike);
}

/// The least number of heads to search for a row, and the number for each cluster that it may join.
const LOOKED_AT: usize = 64;
const LOOKED_AT_A_REPLICA: usize = 8;
pub(crate) fn looked_at(replicas: usize) -> usize {
    LOOKED_AT.max(LOOKED_AT_A_REPLICA * replicas)
}

const SHARE: usize = 8 * CHUNK;

#[derive(Debug)]
pub(crate) struct Memberships {
    /// The position in `clusters` at which each row's clusters begin, and the end of the last.
    starts: Vec<u32>,
    clusters: Vec<u32>,
    pub(crate) sizes: Vec<u32>,
    /// The sum of all rows' squared distances to their nearest heads, in build space.
    pub(crate) distance: f64,
    /// The number of memberships that were dropped because a cluster had too many members.
    pub(crate) given_up: u64,
}

impl Memberships {
    pub(crate) fn of(&self, row: u32) -> &[u32] {
        let at = row as usize;
        &self.clusters[self.starts[at] as usize..self.starts[at + 1] as usize]
    }

    pub(crate) fn rows(&self) -> usize {
        self.starts.len() - 1
    }

    pub(crate) fn total(&self) -> u64 {
        self.clusters.len() as u64
    }

    pub(crate) fn bytes(rows: usize, replicas: usize) -> u64 {
        // For each row an offset, and for each membership the cluster and the distance.
        rows as u64 * (4 + 8 * replicas as u64)
    }

    /// Returns the start of each cluster in a list of rows, and this list. In each cluster, the
    /// rows to which it is the nearest cluster come first.
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
    // Only a few shares of the rows are processed at a time, because their results are in memory
    // twice.
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

#[derive(Default)]
struct Joined {
    starts: Vec<u32>,
    clusters: Vec<u32>,
    distances: Vec<f32>,
}

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
        // For members of too large clusters: the cluster, the ratio of the member's distances, and
        // its position in `clusters`.
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
