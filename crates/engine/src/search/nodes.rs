//! Reads nodes that are given by number: their ids, and their exact vectors.
//!
//! ```text
//!   a graph                       each from its current page (`scan.rs`)
//!   clusters, grouped, addressed  each by itself, with one read for vectors stored near each other
//!   clusters, replicated          in the posting list of its own cluster, which no table names; so
//!                                 all lists are read
//! ```

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;
use stratann_tier::{Task, Thread};

use super::probe::{Piece, each_piece};
use super::scan::Scan;
use crate::Error;
use crate::index::{Index, Kind};
use crate::overlay::Admission;
use crate::progress::Progress;
use crate::room::{Taken, Wanted};
use crate::stores::clusters::{Run, Vectors};
use crate::stores::{ClusterStores, on_pages};

/// The number of nodes or clusters that a task takes at a time.
const PIECE: usize = 1 << 12;

#[derive(Clone, Copy)]
pub(crate) enum Nodes<'a> {
    /// All nodes from the first number up to the second, exclusive.
    Range(u32, u32),
    /// Ascending, distinct nodes.
    These(&'a [u32]),
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Exactness {
    IdAlone,
    Exact,
}

/// A function that gets a node: its number, its id, and its vector.
type Each<'a> = dyn FnMut(u32, u64, &[u8]) + Send + 'a;

impl Nodes<'_> {
    fn len(self) -> usize {
        match self {
            Self::Range(first, end) => end.saturating_sub(first) as usize,
            Self::These(nodes) => nodes.len(),
        }
    }

    fn has(self, node: u32) -> bool {
        match self {
            Self::Range(first, end) => (first..end).contains(&node),
            Self::These(nodes) => nodes.binary_search(&node).is_ok(),
        }
    }

    fn part(self, places: Range<usize>) -> Vec<u32> {
        match self {
            Self::Range(first, _) => {
                (first + places.start as u32..first + places.end as u32).collect()
            }
            Self::These(nodes) => nodes[places].to_vec(),
        }
    }
}

impl Index {
    /// Calls `each` in any order, on one thread at a time. Skips nodes without a page, and nodes
    /// that `admission` rules out.
    pub(crate) fn each_node(
        &self,
        nodes: Nodes<'_>,
        exactness: Exactness,
        admission: Admission<'_>,
        progress: &dyn Progress,
        each: &mut Each<'_>,
    ) -> Result<(), Error> {
        let all = self.places_of(nodes);
        if all == 0 {
            return Ok(());
        }
        let threads = all.div_ceil(PIECE).min(crate::threads::processors());
        let wanted = Wanted {
            needed: 1,
            most: threads,
        };
        let room = self.room(1, 0, wanted).wait(progress)?;
        self.each_node_in(&room, nodes, exactness, admission, progress, each)
    }

    /// Does the same as `each_node`, with memory that is already reserved.
    pub(crate) fn each_node_in(
        &self,
        room: &Taken,
        nodes: Nodes<'_>,
        exactness: Exactness,
        admission: Admission<'_>,
        progress: &dyn Progress,
        each: &mut Each<'_>,
    ) -> Result<(), Error> {
        let all = self.places_of(nodes);
        if all == 0 {
            return Ok(());
        }
        let threads = all.div_ceil(PIECE).min(crate::threads::processors());
        let threads = threads.min(room.queries).max(1);
        let worker_pool = self.workers(threads, threads)?;
        let _pin = self.pin();
        let (next, each) = (AtomicUsize::new(0), Mutex::new(each));
        let failed = Mutex::new(None);
        let visit = Visit {
            index: self,
            nodes,
            exactness,
            admission,
            progress,
        };
        worker_pool.run_tasks(threads, &|thread, _| {
            let task = async {
                loop {
                    let from = next.fetch_add(PIECE, Ordering::Relaxed);
                    if from >= all {
                        return;
                    }
                    let places = from..all.min(from + PIECE);
                    let mut each = |node, id, vector: &[u8]| (each.lock())(node, id, vector);
                    if let Err(error) = visit.some(thread, places, &mut each).await {
                        failed.lock().get_or_insert(error);
                        next.store(all, Ordering::Relaxed);
                    }
                }
            };
            vec![Box::pin(task) as Task<'_>]
        });
        match failed.into_inner() {
            None => Ok(()),
            Some(error) => Err(error),
        }
    }

    /// The number of positions to read. Without a table of positions, all clusters are read.
    fn places_of(&self, nodes: Nodes<'_>) -> usize {
        match self.stands_in_all_clusters() && nodes.len() > 0 {
            true => self.clusters().map_or(0, ClusterStores::clusters) as usize,
            false => nodes.len(),
        }
    }

    /// If vectors are stored with each of their clusters, no table gives their positions.
    pub(crate) fn stands_in_all_clusters(&self) -> bool {
        let vectors = self.clusters().map(|clusters| &clusters.vectors);
        matches!(vectors, Some(Vectors::Replicated))
    }
}

struct Visit<'a> {
    index: &'a Index,
    nodes: Nodes<'a>,
    exactness: Exactness,
    admission: Admission<'a>,
    progress: &'a dyn Progress,
}

impl Visit<'_> {
    /// `places` are positions of nodes, or of clusters with all their vectors.
    async fn some(
        &self,
        thread: &Thread,
        places: Range<usize>,
        each: &mut dyn FnMut(u32, u64, &[u8]),
    ) -> Result<(), Error> {
        match self.index.kind() {
            Kind::Graph(graph) => {
                let scan = Scan {
                    index: self.index,
                    thread,
                    progress: self.progress,
                    admission: self.admission,
                    among: None,
                };
                let (nodes, exact) = (self.nodes.part(places), self.exactness == Exactness::Exact);
                let mut each = |node, id, vector: &[u8], _: &[u8]| each(node, id, vector);
                on_pages!(&graph.search_stores().pages, pages => {
                    scan.each_node(pages, &nodes, exact, &mut each).await
                })
            }
            Kind::Clusters(clusters) => match clusters.vectors {
                Vectors::Replicated => self.in_extents(clusters, thread, places, each).await,
                Vectors::Grouped(_) | Vectors::Addressed => {
                    let nodes = self.nodes.part(places);
                    self.by_themselves(clusters, thread, &nodes, each).await
                }
            },
        }
    }

    /// A vector is returned only from its own cluster.
    async fn in_extents(
        &self,
        clusters: &ClusterStores,
        thread: &Thread,
        places: Range<usize>,
        each: &mut dyn FnMut(u32, u64, &[u8]),
    ) -> Result<(), Error> {
        let first = places.start as u32;
        let pieces: Vec<_> = places
            .map(|cluster| {
                let at = clusters.place(cluster as u32);
                Piece {
                    file: at.file,
                    offset: at.offset,
                    bytes: at.bytes,
                }
            })
            .collect();
        let check = self.index.checks_pages();
        each_piece(clusters, thread, self.progress, &pieces, |piece, bytes| {
            let cluster = first + piece as u32;
            let view = clusters.view(cluster, bytes, check)?;
            let mut wanted = |node, id, vector: &[u8]| {
                if self.nodes.has(node) && !self.admission.rules_out(node) {
                    each(node, id, vector);
                }
            };
            clusters.each_in(cluster, &view, 0..view.own(), check, &mut wanted)
        })
        .await
        .map(drop)
    }

    async fn by_themselves(
        &self,
        clusters: &ClusterStores,
        thread: &Thread,
        nodes: &[u32],
        each: &mut dyn FnMut(u32, u64, &[u8]),
    ) -> Result<(), Error> {
        let nodes: Vec<u32> = (nodes.iter().copied())
            .filter(|&node| !self.admission.rules_out(node))
            .collect();
        let (mut places, mut pieces, mut firsts) = (Vec::new(), Vec::new(), Vec::new());
        clusters.member_places(&nodes, &mut places);
        let mut first = 0;
        while let Some(run) = Run::of(&places[first..]) {
            pieces.push(Piece {
                file: run.file,
                offset: run.offset,
                bytes: run.bytes,
            });
            firsts.push(first);
            first += run.vectors;
        }
        firsts.push(first);
        let check = self.index.checks_pages();
        each_piece(clusters, thread, self.progress, &pieces, |piece, bytes| {
            for at in firsts[piece]..firsts[piece + 1] {
                let (node, place) = (nodes[at], places[at]);
                let start = (place.offset - pieces[piece].offset) as usize;
                let stored = &bytes[start..start + place.bytes];
                let (id, vector) = clusters.member(node, stored, check)?;
                each(node, id, vector);
            }
            Ok(())
        })
        .await
        .map(drop)
    }
}
