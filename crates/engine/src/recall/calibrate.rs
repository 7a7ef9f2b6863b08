//! Measuring how much searches of an index find with which list, by how far the k-th nearest is.
//!
//! ```text
//!   queries ──> the true nearest (one pass over all vectors)
//!           ──> searched with a list of 10, 13, 17 ..: those of which all was found are not searched again
//!           ──> for k = 1, 2, 5, 10 ..: sorted by the distance of the k-th, cut into bands, the mean recall of each
//! ```
//!
//! Of clusters, numbers of probes take the place of lists, and the distance of the nearest head that of the k-th nearest, since a
//! search knows it before it reads. An index of the preset `distvs` is searched by PRESS, as its queries will be.
//!
//! A build takes some of its own rows, each of which is no answer of its own search. Does it lead on? If it does, more is found than of a query
//! that is no row, since its list has what is nearest to it; if it does not, less, since neighbours that it leads to do not lead to each other.
//! What is missed of rows that were held out of the build is about the geometric mean of both, in a graph of each data set that was looked at (recall@10 with lists
//! of 13, 17, 22, 29): package-text held out .949, .971, .982, .988; leading on .969, .985, .992, .996; not .926, .953, .962, .970; by the mean .952,
//! .973, .982, .988. photo-sift-100k held out .942, .968, .983, .992; by the mean .931, .962, .980, .990. So each row is searched for both ways.
//!
//! Queries that are known are better, since what is far from all rows is searched with the longest lists, of which rows say least: [`calibrate`]
//! takes them.

use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;

use serde::Serialize;
use stratann_layout::manifest::RECALL;
use stratann_layout::{FileKind, RecallBand, RecallFile, RecallTable, Searched};
use stratann_tier::Volume;
use stratann_vector::Kernel;

use super::exact::{Found, distance_of, nearest, ordered};
use crate::build::write_stream;
use crate::data::{MatrixRef, VectorSource, check_rows};
use crate::durable::{Checkpoint, begin_state, opened_from};
use crate::index::{Index, OpenOptions};
use crate::navigation::NavigationScratch;
use crate::progress::{Progress, Stage, WithinStage};
use crate::search::LeftOut;
use crate::stores::VectorsAt;
use crate::update::each_vector;
use crate::{Error, SearchOptions, Strategy, bounds, stored};

/// Of a collection of fewer rows nothing is measured.
pub(crate) const LEAST_ROWS: usize = 5_000;
/// Rows a query, and the fewest and most of them.
const ROWS_A_QUERY: usize = 40;
const QUERIES: std::ops::RangeInclusive<usize> = 125..=500;
/// The most queries of a user's that are searched.
const MOST_QUERIES: usize = 10_000;
/// The list sizes that are tried, and the numbers of probes.
const LISTS: &[u32] = &[5, 7, 10, 13, 17, 22, 29, 38, 50, 66, 87, 115, 150, 200, 300];
const PROBES: &[u32] = &[
    1, 2, 3, 5, 7, 10, 13, 17, 22, 29, 38, 50, 66, 87, 115, 150, 200, 300,
];
/// How many answers are wanted.
const KS: [u32; 8] = [1, 2, 5, 10, 20, 30, 50, 100];
/// Of more answers than this, and with longer lists than this, one query in four says enough.
const MANY: u32 = 10;
const LONG: u32 = 100;
const ONE_IN: usize = 4;
/// Queries of a band, about, and bands at most.
const A_BAND: usize = 60;
const BANDS: usize = 10;
/// The mean recall with which no more probes are tried.
const ENOUGH: f64 = 0.998;
/// Heads that are looked for where the nearest one is wanted.
const HEADS: usize = 64;
/// Reads in flight: so many nodes are expanded beyond a list as a pipeline does.
const BEAM: usize = 8;

/// What a calibration found, for people: [`RecallFile`] has all of it.
#[derive(Clone, Debug, Serialize)]
pub struct Calibration {
    /// Queries that were searched.
    pub queries: usize,
    /// Recall@10 (or of fewer answers, where there are not so many vectors) with each list size that was tried, over all queries;
    /// of clusters with each number of probes.
    pub recalls: Vec<(u32, f64)>,
    /// Whether the index has clusters, so that these are numbers of probes.
    #[serde(skip)]
    pub probes: bool,
}

/// Rows of an index that it may be measured with, from all over it: their nodes, and the rows one after the other.
pub(crate) fn own_queries(
    index: &Index,
    progress: &dyn Progress,
) -> Result<(Vec<u32>, Vec<u8>), Error> {
    let rows = index.nodes() as u64;
    let wanted = (index.nodes() / ROWS_A_QUERY).clamp(*QUERIES.start(), *QUERIES.end()) as u64;
    let wanted = wanted.min(rows);
    let chosen: HashSet<u32> = (0..wanted).map(|i| (i * rows / wanted) as u32).collect();
    let dead = index.overlay().map(|overlay| overlay.deleted.clone());
    let mut found: Vec<(u32, Vec<u8>)> = Vec::with_capacity(chosen.len());
    each_vector(index, progress, &mut |node, id, vector| {
        let counts = !dead.as_ref().is_some_and(|dead| dead.contains(id, node));
        if counts && chosen.contains(&node) {
            found.push((node, vector.to_vec()));
        }
        Ok(())
    })?;
    // Whichever order the pages have.
    found.sort_unstable_by_key(|&(node, _)| node);
    let rows = found.iter().flat_map(|(_, row)| row).copied().collect();
    Ok((found.into_iter().map(|(node, _)| node).collect(), rows))
}

/// The numbers of answers that an index has vectors for; its own rows are no answers to themselves.
fn ks_of(index: &Index, of_rows: bool) -> Vec<u32> {
    let vectors = index.live().saturating_sub(usize::from(of_rows));
    KS.into_iter().filter(|&k| k as usize <= vectors).collect()
}

fn too_few(queries: usize) -> Error {
    let expected = "a query at least, and 2 vectors in the index";
    Error::call("queries", queries, expected)
}

/// Measures an index with queries, rows of its element type one after the other; `left_out` has their nodes where they are rows of its own.
///
/// # Errors
/// Something cannot be read; an interruption.
pub(crate) fn measure(
    index: &Index,
    queries: &[u8],
    left_out: Option<&[u32]>,
    threads: usize,
    progress: &dyn Progress,
) -> Result<RecallFile, Error> {
    let row_bytes = index.dim() * index.element().size();
    let count = queries.len() / row_bytes;
    let ks = ks_of(index, left_out.is_some());
    let (Some(&most), false) = (ks.last(), count == 0) else {
        return Err(too_few(count));
    };
    let truth = nearest(index, queries, left_out, most as usize, threads, progress)?;
    let searched = index.searched();
    let lists = match searched {
        Searched::Walk | Searched::Press => LISTS,
        Searched::Probes => PROBES,
    };
    // No row leads on from clusters.
    let twice = left_out.is_some() && searched != Searched::Probes;
    let mut ways = Vec::new();
    for leads_on in [false, true].into_iter().take(1 + usize::from(twice)) {
        let left_out: Option<Vec<LeftOut>> = left_out.map(|nodes| {
            let nodes = nodes.iter();
            nodes.map(|&node| LeftOut { node, leads_on }).collect()
        });
        let asked = Asked {
            queries,
            left_out: left_out.as_deref(),
            truth: &truth,
            searched,
            lists,
        };
        ways.push(shares(index, &asked, &ks, threads, progress)?);
    }
    let to_heads = to_heads(index, queries);
    let tables = ks.iter().enumerate().map(|(at, &k)| {
        let kth = |query: usize| Some(distance_of(*truth[query].get(k as usize - 1)?));
        let distances = (0..count).map(|query| match &to_heads {
            Some(distances) => kth(query).map(|_| distances[query]),
            None => kth(query),
        });
        RecallTable {
            k,
            bands: bands(&distances.collect::<Vec<_>>(), &ways, at, k),
        }
    });
    Ok(RecallFile {
        queries: count as u32,
        searched,
        are_rows: left_out.is_some(),
        lists: lists.to_vec(),
        tables: tables.collect(),
    })
}

/// How far the nearest head of each query is, as a search finds it; `None` in an index without clusters.
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

/// Queries, their nodes where they are rows of the index, and their nearest.
struct Asked<'a> {
    queries: &'a [u8],
    left_out: Option<&'a [LeftOut]>,
    truth: &'a [Vec<Found>],
    searched: Searched,
    /// The list sizes that are tried, or the numbers of probes.
    lists: &'a [u32],
}

/// Of each query, for each k: the share that was found with each list.
type Shares = Vec<Vec<Vec<f32>>>;

/// Searches with one list after the other.
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
                    // More probes find no less, and may read the whole index.
                    (0, Searched::Probes) => missed(u32::MAX),
                    (0, _) => true,
                    _ => list <= LONG && missed(MANY),
                }
            })
            .collect();
        // Of few answers the first ones are in the right order; of many, where they are ranked by leading parts, those that are many.
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
            // A list has room for so many answers; probes have for any number.
            let k = match asked.searched {
                Searched::Walk | Searched::Press => ks[last].min(list),
                Searched::Probes => ks[last],
            } as usize;
            let found = search(index, asked, queries, k, list as usize, threads, progress)?;
            for (&query, ids) in queries.iter().zip(found.chunks_exact(k)) {
                for &at in &wanted_of {
                    let first = (ks[at] as usize).min(ids.len());
                    let truth = &asked.truth[query];
                    shares[query][at].push(share_of(truth, &ids[..first], ks[at] as usize));
                }
            }
        }
        // Who was not searched again would have found no less.
        extend(&mut shares, at + 1);
        // More probes read the more, and find next to nothing more.
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

/// Takes the last share that was found with each list from there on to be found with the next ones, up to so many.
fn extend(shares: &mut Shares, lists: usize) {
    for of in shares.iter_mut().flatten() {
        let last = of.last().copied().unwrap_or(0.0);
        of.resize(lists, last);
    }
}

/// The share of a query's true `k` nearest that is among its answers. What is as near as the k-th is as good.
fn share_of(truth: &[Found], ids: &[u64], k: usize) -> f32 {
    let Some(kth) = truth.get(k - 1) else {
        return 0.0;
    };
    let good: HashSet<u64> = truth
        .iter()
        .filter(|found| found.0 <= kth.0)
        .map(|found| found.1)
        .collect();
    let hits = ids.iter().filter(|id| good.contains(id)).count();
    hits.min(k) as f32 / k as f32
}

/// The answers of some of the queries.
fn search(
    index: &Index,
    asked: &Asked<'_>,
    wanted: &[usize],
    k: usize,
    list: usize,
    threads: usize,
    progress: &dyn Progress,
) -> Result<Vec<u64>, Error> {
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
        let wanted = wanted.iter().map(|&query| nodes[query]);
        wanted.collect::<Vec<_>>()
    });
    let rows = MatrixRef::new(&rows, wanted.len(), index.dim(), index.element())?;
    let options = SearchOptions {
        k,
        list: list.max(k),
        // The same whatever the order of completions, so that a build can be repeated to the byte.
        strategy: match asked.searched {
            Searched::Walk => Some(Strategy::BestFirst),
            Searched::Press => Some(Strategy::Press),
            Searched::Probes => None,
        },
        probes: (asked.searched == Searched::Probes).then_some(list),
        beam: (asked.searched == Searched::Walk).then_some(BEAM),
        // Elsewhere distances are exact anyway.
        exact: k <= MANY as usize && index.composition().vectors == VectorsAt::Parts,
        threads,
        // A query has the extents of many clusters in flight by itself.
        in_flight: Some(match asked.searched {
            Searched::Walk | Searched::Press => 8,
            Searched::Probes => 1,
        }),
        ..SearchOptions::default()
    };
    Ok(index
        .search_leaving_out(&rows, &options, left_out.as_deref(), &WithinStage(progress))?
        .ids)
}

/// Bands of queries by distance, which is none where a query has no k-th nearest; `at` is the place of k. Of two ways to search, what is missed
/// is the geometric mean.
fn bands(distances: &[Option<f32>], ways: &[Shares], at: usize, k: u32) -> Vec<RecallBand> {
    let every = if k > MANY { ONE_IN } else { 1 };
    let queries = (0..distances.len()).step_by(every);
    let mut order: Vec<(u32, usize)> = queries
        .filter_map(|query| Some((ordered(distances[query]?), query)))
        .filter(|&(distance, _)| distance < ordered(f32::INFINITY))
        .collect();
    order.sort_unstable();
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
        // Less than this is not seen.
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

/// Measures how much searches of an index find, and has it go by that from the next opening on: with queries that are like those to come, or with rows
/// of its own. Takes the lock of the index; what came since its checkpoint is left out.
///
/// # Errors
/// As [`Index::open`]; an index that another process changes; queries of another dimension or element type, NaN or infinity; a full disk:
/// then the index is as it was.
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
    let index = Index::open(path, open)?;
    let mut manifest = index.manifest().clone();
    manifest.check_writable(&stored::name_of(
        &*volume,
        stratann_layout::manifest::FILE_NAME,
    ))?;
    opened_from(&*volume, &manifest)?;
    // What is refused is no work that began.
    let given = queries
        .map(|queries| rows_of(&index, queries))
        .transpose()?;
    if ks_of(&index, given.is_none()).is_empty() {
        return Err(too_few(queries.map_or(0, VectorSource::rows)));
    }
    let file = {
        let _stage = Stage::begin(progress, "calibrating", 1);
        match given {
            None => {
                let (nodes, rows) = own_queries(&index, progress)?;
                measure(&index, &rows, Some(&nodes), threads, progress)?
            }
            Some(rows) => measure(&index, &rows, None, threads, progress)?,
        }
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

/// The first queries of a user's, as many as are searched.
fn rows_of(index: &Index, queries: &dyn VectorSource) -> Result<Vec<u8>, Error> {
    for (what, found, expected) in [
        (
            "dimension",
            queries.dim().to_string(),
            index.dim().to_string(),
        ),
        (
            "element type",
            queries.element().to_string(),
            index.element().to_string(),
        ),
    ] {
        if found != expected {
            let what = format!("{what} of {}", queries.name());
            return Err(Error::call(what, found, format!("{expected}, the index's")));
        }
    }
    let count = queries.rows().min(MOST_QUERIES);
    let mut rows = vec![0; count * queries.row_bytes()];
    queries.read(0, &mut rows)?;
    check_rows(queries, index.metric(), 0, &rows)?;
    Ok(rows)
}

/// What people want to know of it.
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
