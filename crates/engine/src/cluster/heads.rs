//! The heads of all clusters in memory, and the graph through which a search finds the nearest
//! heads.

use stratann_layout::NavigationFile;
use stratann_vector::{Kernel, Metric};

use super::{PointRows, go_on};
use crate::Error;
use crate::data::{MatrixRef, VectorSource, check_stored_rows};
use crate::graph::{self, Parameters};
use crate::navigation::{Navigation, NavigationScratch};
use crate::progress::Progress;

/// The most neighbours of a head in the graph over the heads, and the list size of its build.
pub(super) const DEGREE: usize = 24;
pub(super) const BUILD_LIST: usize = 64;
pub(super) const ALPHA: f32 = 1.2;

/// Returns the entry point, and each head's neighbours.
pub(super) fn graph_over(
    heads: &MatrixRef<'_>,
    metric: Metric,
    scratch: &std::path::Path,
    seed: u64,
    progress: &dyn Progress,
) -> Result<(u32, Vec<Vec<u32>>), Error> {
    let parameters = Parameters {
        degree: DEGREE,
        build_list: BUILD_LIST,
        alpha: ALPHA,
        // A build with one thread is reproducible: the same rows give the same graph.
        threads: 1,
        seed,
    };
    let task = graph::Task {
        metric,
        order: graph::Order::Input,
        parameters: &parameters,
        memory: None,
        scratch,
        known: None,
        check: check_stored_rows,
        savepoints: None,
        afterwards: None,
    };
    let mut built = graph::construct(heads, &task, progress)?;
    let mut lists = vec![Vec::new(); heads.rows()];
    for (cluster, list) in (0..).zip(&mut lists) {
        built.lists.read(cluster, list)?;
    }
    Ok((built.entry, lists))
}

#[derive(Default)]
pub(crate) struct HeadsScratch {
    walk: NavigationScratch,
    point: Vec<u8>,
}

pub(crate) struct Heads {
    navigation: Navigation,
    kernel: Kernel,
}

impl Heads {
    /// Returns the graph twice: with the heads as rows, and in build space.
    pub(crate) fn build(
        rows: &PointRows<'_>,
        heads: &[u32],
        metric: Metric,
        scratch: &std::path::Path,
        seed: u64,
        progress: &dyn Progress,
    ) -> Result<(NavigationFile, Heads), Error> {
        go_on(progress)?;
        let (source, count) = (rows.source, heads.len());
        let mut vectors = vec![0; count * source.row_bytes()];
        source.gather(heads, &mut vectors)?;
        let matrix = MatrixRef::new(&vectors, count, source.dim(), source.element())?;
        let (entry, lists) = graph_over(&matrix, metric, scratch, seed, progress)?;
        let (mut offsets, mut links) = (vec![0], Vec::new());
        for list in &lists {
            links.extend_from_slice(list);
            offsets.push(links.len() as u32);
        }
        let mut points = Vec::new();
        rows.space.append(&vectors, &mut points);
        let file = NavigationFile {
            entry,
            nodes: (0..count as u32).collect(),
            offsets,
            links,
            vectors,
            step: None,
        };
        let in_build_space = NavigationFile {
            vectors: points,
            ..file.clone()
        };
        let heads = Heads {
            navigation: Navigation::new(in_build_space),
            kernel: Kernel::new(
                Metric::L2,
                rows.space.build_element(),
                rows.space.build_dim(),
            ),
        };
        Ok((file, heads))
    }

    pub(crate) fn count(&self) -> usize {
        self.navigation.nodes()
    }

    /// Clusters with their squared distances in build space, nearest first.
    pub(crate) fn nearest(
        &self,
        rows: &PointRows<'_>,
        row: &[u8],
        list: usize,
        scratch: &mut HeadsScratch,
        out: &mut Vec<(f32, u32)>,
    ) {
        let HeadsScratch { walk, point } = scratch;
        point.clear();
        rows.space.append(row, point);
        self.navigation.look(&self.kernel, point, list, walk);
        out.clear();
        out.extend(walk.found());
    }

    pub(crate) fn distances(&self, cluster: u32, others: &[u32], out: &mut Vec<f32>) {
        out.resize(others.len(), 0.0);
        let vectors = self.navigation.vectors();
        let bytes = self.kernel.row_bytes();
        let head = &vectors[cluster as usize * bytes..][..bytes];
        self.kernel.distances(head, vectors, others, out);
    }
}
