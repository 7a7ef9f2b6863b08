//! Measures the recall of an index's searches for each list size, and for each range of the
//! distance of the k-th nearest vector.
//!
//! ```text
//!   queries ──> the true nearest (one pass over all vectors)
//!           ──> searched with a list of 10, 13, 17 ..; queries with full recall are not repeated
//!           ──> for k = 1, 2, 5, 10 ..: sorted by the distance of the k-th, cut into buckets
//!               (bands), the mean recall of each
//! ```
//!
//! For clusters, numbers of probes replace list sizes. The distance of the nearest head replaces
//! the distance of the k-th nearest vector, because a search knows this distance before its first
//! read. An index of the preset `distvs` is measured with PRESS, like its later searches.
//!
//! A build chooses its queries ([`queries`](super::queries)): vectors of the index (*rows*), and
//! vectors made of rows. A row that is a query is excluded from its own results. If its search
//! traverses the node of the row, the measured recall is too high, because the list of this node
//! has the nearest vectors. If the search does not, the recall is too low, because the neighbours
//! that the node connects are not linked to each other.
//!
//! The true recall is the recall of rows that were held out of the build. The share of neighbours
//! that held-out rows miss is about the geometric mean of two other shares: those that rows of the
//! index miss, with and without traversal of the node. The following figures are recall@10 with the
//! list sizes 13, 17, 22 and 29. On package-text, held-out rows find .949, .971, .982 and .988.
//! With traversal, rows find .969, .985, .992 and .996. Without traversal, they find .926, .953,
//! .962 and .970. The mean gives .952, .973, .982 and .988. On photo-sift-100k, held-out rows find
//! .942, .968, .983 and .992, and the mean gives .931, .962, .980 and .990. So each row is searched
//! twice, with and without traversal of its node.
//!
//! A user's own queries are better. Queries that are far from all vectors need the largest list
//! sizes, and rows represent such queries worst. [`calibrate`] accepts a user's queries.

use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;

use serde::Serialize;
use stratann_layout::manifest::RECALL;
use stratann_layout::{FileKind, RecallBand, RecallFile, RecallTable, Searched};
use stratann_tier::Volume;
use stratann_vector::Kernel;

use super::exact::{Found, distance_of, nearest, ordered};
use super::queries::Queries;
use crate::data::{MatrixRef, VectorSource, check_rows};
use crate::durable::{Checkpoint, begin_state, opened_from};
use crate::index::measured::LEAST_QUERIES;
use crate::index::{Index, OpenOptions};
use crate::navigation::NavigationScratch;
use crate::progress::{Progress, Stage, WithinStage};
use crate::search::LeftOut;
use crate::stores::VectorsAt;
use crate::stores::writing::files::write_stream;
use crate::{Error, Rerank, SearchOptions, Strategy, bounds, stored};

/// Queries that are vectors of the index count only up to a certain distance. One in this many made
/// queries is nearer than this distance.
const NEARER: usize = 10;
/// The most queries of a user that are searched.
const MOST_QUERIES: usize = 10_000;
/// The list sizes and the numbers of probes that are tried.
const LISTS: &[u32] = &[5, 7, 10, 13, 17, 22, 29, 38, 50, 66, 87, 115, 150, 200, 300];
const PROBES: &[u32] = &[
    1, 2, 3, 5, 7, 10, 13, 17, 22, 29, 38, 50, 66, 87, 115, 150, 200, 300,
];
/// The values of k that are measured.
const KS: [u32; 8] = [1, 2, 5, 10, 20, 30, 50, 100];
/// For k above `MANY`, and for list sizes above `LONG`, only one query in `ONE_IN` is searched.
const MANY: u32 = 10;
const LONG: u32 = 100;
const ONE_IN: usize = 4;
/// The approximate number of queries in a bucket, and the most buckets.
const A_BAND: usize = 60;
const BANDS: usize = 10;
/// If the mean recall is at least this value, no larger number of probes is tried.
const ENOUGH: f64 = 0.998;
/// The list size of a search for the nearest head.
const HEADS: usize = 64;
/// The beam width. With this width, a best-first walk expands about as many nodes beyond its list
/// size as a pipelined search.
const BEAM: usize = 8;

/// A summary of a calibration, for display. [`RecallFile`] has all of its data.
#[derive(Clone, Debug, Serialize)]
pub struct Calibration {
    /// The number of queries that were searched.
    pub queries: usize,
    /// The mean recall@10 of all queries, for each list size. If the index has fewer than 10
    /// vectors, k is smaller. For clusters, the first number of an entry is a number of probes.
    pub recalls: Vec<(u32, f64)>,
    /// Whether the index has clusters, so that `recalls` has numbers of probes and not list sizes.
    #[serde(skip)]
    pub probes: bool,
}

/// Returns the values of k for which the index has enough vectors. If the queries are vectors of
/// the index, a query is not its own result.
fn ks_of(index: &Index, of_rows: bool) -> Vec<u32> {
    let vectors = index.live().saturating_sub(usize::from(of_rows));
    KS.into_iter().filter(|&k| k as usize <= vectors).collect()
}

fn too_few(queries: usize) -> Error {
    let reason = "a measurement needs at least one query, and 2 vectors in the index";
    let remedy = "Give queries, and insert vectors first if the index has fewer than 2";
    Error::call("number of queries", queries, reason, remedy)
}

/// Returns an error if there are too few queries for a measurement. If `queries` is `None`, vectors
/// of the index will be the queries.
fn check_number(index: &Index, queries: Option<&dyn VectorSource>) -> Result<(), Error> {
    let least = LEAST_QUERIES;
    let reason =
        format!("the recall of fewer than {least} queries says little about later queries");
    match queries.map(VectorSource::rows) {
        Some(rows) if rows < least => {
            let remedy = format!(
                "Give at least {least} queries, or none; without queries, vectors of the index are the queries"
            );
            Err(Error::call("number of queries", rows, reason, remedy))
        }
        None if index.live() < least => {
            let reason = format!("its vectors would be the queries, and {reason}");
            let remedy = format!(
                "Give at least {least} queries. Without a measurement, a search with a target recall compares all vectors of so small an index"
            );
            Err(Error::call(
                "number of vectors in the index",
                index.live(),
                reason,
                remedy,
            ))
        }
        _ => Ok(()),
    }
}

/// Measures the recall of an index with some queries.
///
/// # Errors
/// A read fails, or `progress` interrupts.
pub(crate) fn measure(
    index: &Index,
    queries: &Queries,
    threads: usize,
    progress: &dyn Progress,
) -> Result<RecallFile, Error> {
    let Queries {
        vectors: queries,
        nodes,
        rows,
    } = queries;
    let row_bytes = index.dim() * index.element().size();
    let count = queries.len() / row_bytes;
    let ks = ks_of(index, !nodes.is_empty());
    let (Some(&most), false) = (ks.last(), count == 0) else {
        return Err(too_few(count));
    };
    let truth = nearest(index, queries, nodes, most as usize, threads, progress)?;
    let searched = index.searched();
    let lists = match searched {
        Searched::Walk | Searched::Press => LISTS,
        Searched::Probes => PROBES,
    };
    let measured = Measured {
        index,
        queries,
        nodes,
        rows: *rows,
        truth: &truth,
        lists,
        ks: &ks,
    };
    // If vectors are apart from lists, a walk knows only estimates by code.
    let apart = index.composition().vectors == VectorsAt::Segments;
    let by_code = apart && searched == Searched::Walk;
    let near = match by_code {
        true => {
            let most = most as usize;
            let estimates = index.estimates(queries, nodes, most, threads, progress)?;
            Near::ByCode(estimates)
        }
        false => match to_heads(index, queries) {
            Some(distances) => Near::Heads(distances),
            None => Near::Exact,
        },
    };
    let tables = measured.tables(Rows::Packed, &near, threads, progress)?;
    // A walk of unpacked rows ranks every node that it expands, so re-ranking loses no results.
    let in_memory = match (searched, by_code, index.preset().whole_page) {
        (Searched::Walk, true, true) => Some((Rows::Unpacked, &Near::Exact)),
        (Searched::Walk, false, _) => Some((Rows::Held, &near)),
        (Searched::Walk, true, false) | (Searched::Press | Searched::Probes, ..) => None,
    };
    let in_memory = match in_memory {
        Some((rows, near)) => measured.tables(rows, near, threads, progress)?,
        None => Vec::new(),
    };
    Ok(RecallFile {
        queries: count as u32,
        searched,
        by_build: !nodes.is_empty(),
        lists: lists.to_vec(),
        tables,
        by_code,
        in_memory,
    })
}

/// The form of the index whose searches are measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rows {
    Packed,
    /// With the pages of the graph in memory, so that a walk expands one node at a time.
    Held,
    /// As if the index was unpacked: without page-mates, one node at a time, and with the vectors
    /// of all candidates.
    Unpacked,
}

/// The distance by which queries are sorted into buckets.
enum Near {
    /// The distance of the k-th nearest vector.
    Exact,
    /// The smallest estimates of each query.
    ByCode(Vec<Vec<f32>>),
    /// The distance of the nearest head of each query.
    Heads(Vec<f32>),
}

impl Near {
    /// The distance of a query, whose k-th nearest vector is at the distance `kth`.
    fn of(&self, query: usize, k: usize, kth: f32) -> Option<f32> {
        match self {
            Self::Exact => Some(kth),
            Self::ByCode(estimates) => estimates[query].get(k - 1).copied(),
            Self::Heads(distances) => Some(distances[query]),
        }
    }
}

/// The queries of a measurement with their true nearest vectors, and the list sizes and numbers of
/// results to measure.
struct Measured<'a> {
    index: &'a Index,
    queries: &'a [u8],
    nodes: &'a [u32],
    rows: usize,
    truth: &'a [Vec<Found>],
    lists: &'static [u32],
    ks: &'a [u32],
}

impl Measured<'_> {
    /// Searches for all queries with all list sizes, and returns a table for each number of
    /// results.
    fn tables(
        &self,
        of: Rows,
        near: &Near,
        threads: usize,
        progress: &dyn Progress,
    ) -> Result<Vec<RecallTable>, Error> {
        let Self {
            index,
            queries,
            nodes,
            rows,
            truth,
            lists,
            ks,
        } = *self;
        let searched = index.searched();
        let row_bytes = index.dim() * index.element().size();
        // A search of clusters traverses no node, so one search for each row is enough.
        let twice = !nodes.is_empty() && searched != Searched::Probes;
        let mut ways: Vec<Shares> = Vec::new();
        for leads_on in [false, true].into_iter().take(1 + usize::from(twice)) {
            // A made query is searched only once.
            let count = if leads_on { rows } else { truth.len() };
            let nodes = nodes.iter().take(count).enumerate();
            let left_out = nodes.map(|(at, &node)| LeftOut {
                node,
                leads_on: leads_on || at >= rows,
            });
            let left_out: Vec<LeftOut> = left_out.collect();
            // Searches in memory are measured with every second list size.
            let step = if of == Rows::Packed { 1 } else { 2 };
            let lists: Vec<u32> = lists.iter().copied().step_by(step).collect();
            let asked = Asked {
                queries: &queries[..count * row_bytes],
                left_out: (!left_out.is_empty()).then_some(&left_out),
                truth: &truth[..count],
                searched,
                rows: of,
                lists: &lists,
            };
            let mut found = shares(index, &asked, ks, threads, progress)?;
            if step == 2 {
                found.iter_mut().flatten().for_each(add_between);
            }
            if let Some(first) = ways.first() {
                found.extend_from_slice(&first[count..]);
            }
            ways.push(found);
        }
        let tables = ks.iter().enumerate().map(|(at, &k)| {
            let distances = truth.iter().enumerate().map(|(query, truth)| {
                let kth = *truth.get(k as usize - 1)?;
                near.of(query, k as usize, distance_of(kth))
            });
            RecallTable {
                k,
                bands: bands(&distances.collect::<Vec<_>>(), rows, &ways, at, k),
            }
        });
        Ok(tables.collect())
    }
}

/// Returns the distance of the nearest head of each query, as a search finds it. Returns `None` if
/// the index has no clusters.
fn to_heads(index: &Index, queries: &[u8]) -> Option<Vec<f32>> {
    let clusters = index.clusters()?;
    let kernel = Kernel::new(index.metric(), index.element(), index.dim());
    let mut scratch = NavigationScratch::default();
    let queries = queries.chunks_exact(kernel.row_bytes());
    let nearest = queries.map(|query| {
        clusters.heads.look(&kernel, query, HEADS, &mut scratch);
        let found = scratch.found().next();
        found.map_or(f32::INFINITY, |(distance, _)| distance)
    });
    Some(nearest.collect())
}

/// The queries of a measurement, with their true nearest vectors.
struct Asked<'a> {
    queries: &'a [u8],
    /// The node to exclude for each query, or `None` if no nodes are excluded.
    left_out: Option<&'a [LeftOut]>,
    truth: &'a [Vec<Found>],
    searched: Searched,
    rows: Rows,
    /// The list sizes to try, or the numbers of probes.
    lists: &'a [u32],
}

/// For each query and each k, the recall with each list size.
type Shares = Vec<Vec<Vec<f32>>>;

/// Searches with one list size after another, and returns the recall of each query.
fn shares(
    index: &Index,
    asked: &Asked<'_>,
    ks: &[u32],
    threads: usize,
    progress: &dyn Progress,
) -> Result<Shares, Error> {
    let count = asked.truth.len();
    let mut shares: Shares = vec![vec![Vec::new(); ks.len()]; count];
    for (at, &list) in asked.lists.iter().enumerate() {
        if progress.interrupted() {
            return Err(Error::Interrupted);
        }
        let wanted: Vec<usize> = (0..count)
            .filter(|&query| {
                let missed = |most: u32| {
                    let mut of = ks.iter().zip(&shares[query]).filter(|(k, _)| **k <= most);
                    of.any(|(_, found)| found.last() != Some(&1.0))
                };
                match (query % ONE_IN, asked.searched) {
                    // A larger number of probes never finds fewer results, and may read the whole
                    // index. So a query with full recall is not searched again.
                    (0, Searched::Probes) => missed(u32::MAX),
                    (0, _) => true,
                    _ => list <= LONG && missed(MANY),
                }
            })
            .collect();
        // If a search returns many results, the first k of them are also the results for a smaller
        // k. If results are ranked by leading parts, their order is approximate. So large values of
        // k have separate searches.
        let (few, many): (Vec<usize>, Vec<usize>) = (0..ks.len()).partition(|&at| ks[at] <= MANY);
        let some: Vec<usize> = wanted
            .iter()
            .copied()
            .filter(|query| query % ONE_IN == 0)
            .collect();
        for (queries, wanted_of) in [(&wanted, few), (&some, many)] {
            let Some(&last) = wanted_of.last() else {
                continue;
            };
            // The list size limits the number of results, but the number of probes does not.
            let k = match asked.searched {
                Searched::Walk | Searched::Press => ks[last].min(list),
                Searched::Probes => ks[last],
            } as usize;
            let found = search(index, asked, queries, k, list as usize, threads, progress)?;
            for (&query, found) in queries.iter().zip(found.chunks_exact(k)) {
                for &at in &wanted_of {
                    let first = (ks[at] as usize).min(found.len());
                    let truth = &asked.truth[query];
                    shares[query][at].push(share_of(truth, &found[..first], ks[at] as usize));
                }
            }
        }
        // A query that is not searched with this list size keeps its last recall. A search would
        // have found at least as much.
        extend(&mut shares, at + 1);
        // A larger number of probes would read more, and find almost nothing more.
        let enough = |k: usize| {
            let found = shares.iter().map(|of| f64::from(of[k][at]));
            found.sum::<f64>() >= ENOUGH * count as f64
        };
        if asked.searched == Searched::Probes && (0..ks.len()).all(enough) {
            break;
        }
    }
    extend(&mut shares, asked.lists.len());
    Ok(shares)
}

/// Adds the mean of each two consecutive recalls between them. The missed share falls more slowly
/// with each longer list, so the mean is hardly ever above the true recall.
fn add_between(recalls: &mut Vec<f32>) {
    let between = recalls.windows(2).map(|pair| (pair[0] + pair[1]) / 2.0);
    let between: Vec<f32> = between.chain(recalls.last().copied()).collect();
    let both = recalls
        .iter()
        .zip(between)
        .flat_map(|(&at, next)| [at, next]);
    *recalls = both.take((2 * recalls.len()).saturating_sub(1)).collect();
}

/// Extends the recalls of each query to `lists` entries, with copies of the last entry.
fn extend(shares: &mut Shares, lists: usize) {
    for of in shares.iter_mut().flatten() {
        let last = of.last().copied().unwrap_or(0.0);
        of.resize(lists, last);
    }
}

/// Returns the recall of a query: the share of its true `k` nearest vectors that a search `found`.
/// A vector at the same distance as the k-th true nearest counts too.
fn share_of(truth: &[Found], found: &[Found], k: usize) -> f32 {
    let Some(kth) = truth.get(k - 1) else {
        return 0.0;
    };
    let good: HashSet<u64> = truth
        .iter()
        .filter(|found| found.0 <= kth.0)
        .map(|found| found.1)
        .collect();
    // `truth` has only some of the vectors at this distance, if there are many.
    let counts = |found: &&Found| found.0 <= kth.0 || good.contains(&found.1);
    let hits = found.iter().filter(counts).count();
    hits.min(k) as f32 / k as f32
}

/// Searches for the queries at the positions `wanted`, and returns the results. If their distances
/// are approximate, `u32::MAX` replaces each distance.
fn search(
    index: &Index,
    asked: &Asked<'_>,
    wanted: &[usize],
    k: usize,
    list: usize,
    threads: usize,
    progress: &dyn Progress,
) -> Result<Vec<Found>, Error> {
    if wanted.is_empty() {
        return Ok(Vec::new());
    }
    let row_bytes = index.dim() * index.element().size();
    let rows: Vec<u8> = wanted
        .iter()
        .flat_map(|&query| &asked.queries[query * row_bytes..(query + 1) * row_bytes])
        .copied()
        .collect();
    let left_out = asked.left_out.map(|nodes| {
        let wanted = wanted.iter().filter_map(|&query| nodes.get(query));
        wanted.copied().collect::<Vec<_>>()
    });
    let rows = MatrixRef::new(&rows, wanted.len(), index.dim(), index.element())?;
    let vectors = index.composition().vectors;
    let apart = vectors == VectorsAt::Segments;
    // In layouts without leading parts, distances are always exact.
    let exact = k <= MANY as usize && vectors == VectorsAt::Parts;
    let options = SearchOptions {
        k,
        list: list.max(k),
        // The results of these strategies do not depend on the order of completions. So each build
        // writes the same bytes.
        strategy: match asked.searched {
            Searched::Walk => Some(Strategy::BestFirst),
            Searched::Press => Some(Strategy::Press),
            Searched::Probes => None,
        },
        probes: (asked.searched == Searched::Probes).then_some(list),
        beam: match (asked.searched, asked.rows) {
            (Searched::Walk, Rows::Packed) if !apart => Some(BEAM),
            // The estimates by code of a small beam decide earlier, so recall is lower.
            (Searched::Walk, Rows::Packed | Rows::Held | Rows::Unpacked) => Some(1),
            (Searched::Press | Searched::Probes, _) => None,
        },
        whole_page: (asked.rows == Rows::Unpacked).then_some(false),
        rerank: (asked.rows == Rows::Unpacked).then_some(Rerank::ALL),
        exact,
        threads,
        // A single query on clusters has many posting lists in flight.
        in_flight: Some(match asked.searched {
            Searched::Walk | Searched::Press => 8,
            Searched::Probes => 1,
        }),
        ..SearchOptions::default()
    };
    let progress = WithinStage(progress);
    let found = index.search_leaving_out(&rows, &options, left_out.as_deref(), &progress)?;
    let of = |(&distance, &id): (&f32, &u64)| match exact || vectors != VectorsAt::Parts {
        true => (ordered(distance), id),
        false => (u32::MAX, id),
    };
    Ok(found.distances.iter().zip(&found.ids).map(of).collect())
}

/// Makes buckets of queries by distance. Leaves out queries without a k-th nearest vector. `at` is
/// the position of k. The first `rows` queries are vectors of the index. If `ways` has two kinds of
/// search, the missed share is the geometric mean of both missed shares.
fn bands(
    distances: &[Option<f32>],
    rows: usize,
    ways: &[Shares],
    at: usize,
    k: u32,
) -> Vec<RecallBand> {
    let every = if k > MANY { ONE_IN } else { 1 };
    let queries = (0..distances.len()).step_by(every);
    let mut order: Vec<(u32, usize)> = queries
        .filter_map(|query| Some((ordered(distances[query]?), query)))
        .filter(|&(distance, _)| distance < ordered(f32::INFINITY))
        .collect();
    order.sort_unstable();
    // From the distance `begin` on, only made queries count.
    let mut made = order.iter().filter(|&&(_, query)| query >= rows);
    let of_made = made.clone().count();
    if let Some(&(begin, _)) = made.nth(of_made / NEARER) {
        order.retain(|&(distance, query)| query >= rows || distance < begin);
    }
    let bands = (order.len() / A_BAND).clamp(1, BANDS);
    let cut = |band: usize| band * order.len() / bands;
    let of = |band: usize| {
        let queries = &order[cut(band)..cut(band + 1)];
        let middle = queries.get(queries.len() / 2);
        let missed = |way: &Shares, list: usize| {
            let found = queries.iter().map(|&(_, query)| way[query][at][list]);
            let mean = found.map(f64::from).sum::<f64>() / queries.len().max(1) as f64;
            1.0 - mean
        };
        // With this number of queries, a smaller missed share cannot be measured.
        let least = 0.5 / (queries.len().max(1) * k as usize) as f64;
        let recall = |list: usize| match ways {
            [way] => 1.0 - missed(way, list),
            ways => {
                let product: f64 = ways
                    .iter()
                    .map(|way| missed(way, list).max(least))
                    .product();
                1.0 - product.powf(1.0 / ways.len() as f64)
            }
        };
        RecallBand {
            distance: middle.map_or(0.0, |&(_, query)| distances[query].unwrap_or(0.0)),
            recalls: (0..ways[0][0][at].len())
                .map(|list| recall(list).clamp(0.0, 1.0) as f32)
                .collect(),
        }
    };
    (0..bands).map(of).collect()
}

/// Measures the recall of an index's searches. Searches use the measurement after the index is
/// opened again.
///
/// `queries` should resemble future queries. If it is `None`, the call measures as a build does:
/// with vectors of the index, and in most graph indexes also with made vectors. A made vector is a
/// vector of the index plus .2, .35 or .5 times the difference of two other vectors. For clusters
/// and PRESS, all queries are vectors of the index.
///
/// The call locks the index. The measurement does not include vectors inserted after the
/// checkpoint.
///
/// # Errors
/// Fails as [`Index::open`] does. It also fails if another process has the index open for changes,
/// if there are fewer than 100 queries, or if `queries` is `None` and the index has fewer than 100
/// vectors. Queries of another dimension or element type, or with NaN or infinity, are errors, as
/// is a full disk. After an error, the index is unchanged.
pub fn calibrate(
    path: impl AsRef<Path>,
    open: &OpenOptions,
    queries: Option<&dyn VectorSource>,
    threads: usize,
    progress: &dyn Progress,
) -> Result<Calibration, Error> {
    bounds::threads(threads)?;
    let volume: Arc<dyn Volume> = Arc::new(stored::existing(path.as_ref())?);
    let path = &*stored::home(path.as_ref())?;
    stored::manifest(&*volume)?;
    let _lock = volume.lock()?;
    // In an unpacked index, a list size has another meaning. The measurement must hold for any
    // memory budget, so the index is not unpacked.
    let open = OpenOptions {
        unpack: false,
        ..open.clone()
    };
    let index = Index::open(path, &open)?;
    let mut manifest = index.manifest().clone();
    manifest.check_writable(&stored::name_of(
        &*volume,
        stratann_layout::manifest::FILE_NAME,
    ))?;
    // If the call fails before this point, no measurement has begun, and no file was written.
    let given = queries
        .map(|queries| rows_of(&index, queries))
        .transpose()?;
    if ks_of(&index, given.is_none()).is_empty() {
        return Err(too_few(queries.map_or(0, VectorSource::rows)));
    }
    check_number(&index, queries)?;
    opened_from(&*volume, &manifest)?;
    let file = {
        let _stage = Stage::begin(progress, "calibrating", 1);
        let queries = match given {
            None => Queries::of(&index, progress)?,
            Some(vectors) => Queries {
                vectors,
                nodes: Vec::new(),
                rows: 0,
            },
        };
        measure(&index, &queries, threads, progress)?
    };
    let mut checkpoint = Checkpoint::begin(&*volume, true)?;
    let entry = write_stream(&checkpoint, FileKind::Recall, None, &file.encode())?;
    manifest.files.retain(|old| old.role != entry.role);
    manifest.files.push(entry);
    manifest.writer_features |= RECALL;
    manifest.checkpoint = checkpoint.number();
    begin_state(&mut manifest)?;
    let committed = checkpoint.commit(&manifest)?;
    committed.durable(&*volume)?;
    Ok(found_of(&file))
}

/// Makes the checks of [`calibrate`] that read no query. An [outline](crate::Outline), which has a
/// shape but no rows, suffices as `queries`.
///
/// # Errors
/// Fails as [`calibrate`] does if the index cannot be opened, or if the shape or the number of the
/// queries is wrong.
pub fn check_calibration(
    path: impl AsRef<Path>,
    open: &OpenOptions,
    queries: &dyn VectorSource,
) -> Result<(), Error> {
    let index = Index::open(path, open)?;
    index.check_shape_of(queries, "queries")?;
    check_number(&index, Some(queries))
}

/// Reads the first `MOST_QUERIES` queries of a user.
fn rows_of(index: &Index, queries: &dyn VectorSource) -> Result<Vec<u8>, Error> {
    index.check_shape_of(queries, "queries")?;
    let count = queries.rows().min(MOST_QUERIES);
    let mut rows = vec![0; count * queries.row_bytes()];
    queries.read(0, &mut rows)?;
    check_rows(queries, index.metric(), 0, &rows)?;
    Ok(rows)
}

fn found_of(file: &RecallFile) -> Calibration {
    let few = |table: &&RecallTable| table.k <= MANY;
    let table = file.tables.iter().rfind(few);
    let mean = |at: usize| {
        let bands = table.map_or(&[][..], |table| &table.bands);
        let sum: f64 = bands.iter().map(|band| f64::from(band.recalls[at])).sum();
        sum / bands.len().max(1) as f64
    };
    let lists = file.lists.iter().enumerate();
    Calibration {
        queries: file.queries as usize,
        recalls: lists.map(|(at, &list)| (list, mean(at))).collect(),
        probes: file.searched == Searched::Probes,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_as_near_as_the_last_true_one_count() {
        let truth = [(3, 1), (5, 2), (5, 3)];
        assert_eq!(share_of(&truth, &[(3, 1), (5, 9), (5, 8)], 3), 1.0);
        assert_eq!(share_of(&truth, &[(5, 9), (6, 7)], 2), 0.5);
        // An approximate distance says nothing.
        assert_eq!(share_of(&truth, &[(u32::MAX, 3), (u32::MAX, 9)], 2), 0.5);
        assert_eq!(share_of(&truth, &[], 4), 0.0);
    }

    #[test]
    fn recalls_between_measured_lists_are_means() {
        let mut recalls = vec![0.5, 1.0, 0.75];
        add_between(&mut recalls);
        assert_eq!(recalls, [0.5, 0.75, 1.0, 0.875, 0.75]);
        let lists: Vec<_> = LISTS.iter().step_by(2).collect();
        assert_eq!(
            (2 * lists.len() - 1, lists.last()),
            (LISTS.len(), Some(&&300))
        );
    }

    #[test]
    fn rows_count_where_they_are_nearer_than_made_queries_begin() {
        // Queries that are vectors of the index find all results, and made queries find none.
        let distances: Vec<Option<f32>> =
            (0u8..100).chain(50..150).map(|d| Some(d.into())).collect();
        let found = |query: usize| vec![vec![if query < 100 { 1.0 } else { 0.0 }]];
        let way: Shares = (0..200).map(found).collect();
        let bands = bands(&distances, 100, &[way], 0, 10);
        // A tenth of the made queries is nearer than 60. So 60 vectors of the index and 100 made
        // queries count.
        assert_eq!(bands.len(), 2);
        let of = |band: &RecallBand| (band.distance, band.recalls[0]);
        assert_eq!(of(&bands[0]), (40.0, 0.75));
        assert_eq!(of(&bands[1]), (110.0, 0.0));
    }
}
