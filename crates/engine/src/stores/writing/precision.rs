//! Chooses the number of bits in leading parts: the coarsest rounding step with which leading parts
//! still rank neighbours almost exactly.
//!
//! The size of the leading parts decides how many nodes fit on a page, and their errors cost reads
//! of trailing parts. So some nodes of the finished graph serve as queries. The nodes around a
//! query are ranked exactly, and by leading parts alone.

use stratann_codec::NestedModel;
use stratann_vector::Kernel;

use super::Writing;
use super::coding::Coding;
use super::sweep::Sweep;
use crate::Error;
use crate::data::VectorSource;

const QUERIES: u64 = 50;
/// The number of a query's neighbours whose neighbours are ranked too, about `MOST` nodes in all.
const HUBS: usize = 8;
const MOST: usize = 400;
const ANSWERS: usize = 10;
/// The share of the nearest nodes that leading parts alone must find. On package-text, the rounding
/// step for a share of .95 gives 15 nodes on a page, and four reads of trailing parts for each
/// query. With half of this step, a query reads half a page more, but half as many trailing parts.
const ENOUGH: f64 = 0.98;

/// The bytes of a record without its list and its leading part, and of a page without its records.
const BESIDE: f64 = 9.0;
const HEADER: f64 = 64.0;
/// A factor of the mean size, to make sure that the expected number of records fits.
const MARGIN: f64 = 1.03;
const MEASURED: usize = 256;

pub(crate) fn leading_step(
    build: &Writing<'_>,
    coding: &Coding,
    sweep: &mut Sweep<'_>,
    page_bytes: usize,
) -> Result<u8, Error> {
    let sample = coding.sample_all(&sweep.rows())?;
    let models = coding.nested_of(&sample);
    let around = coding
        .some_nodes(QUERIES)
        .map(|node| neighbourhood(sweep, node))
        .collect::<Result<Vec<_>, _>>()?;
    let source = build.source;
    let kernel = Kernel::new(build.options.metric, source.element(), source.dim());
    let mut right = vec![0; models.len()];
    let mut all = 0;
    let mut rows = Vec::new();
    for nodes in &around {
        build.go_on()?;
        rows.resize(nodes.len() * kernel.row_bytes(), 0);
        sweep.rows().gather(nodes, &mut rows)?;
        all += ANSWERS.min(nodes.len() - 1);
        for (right, model) in right.iter_mut().zip(&models) {
            *right += ranked_right(&kernel, model, &rows)?;
        }
    }
    let is_enough = |&right: &usize| right as f64 >= ENOUGH * all as f64;
    // If no step is good enough, the step with the most correct answers is chosen. If several steps
    // have as many, it is the coarsest of them.
    let best = right.iter().max().copied();
    let found = right.iter().position(is_enough);
    let found = found.or_else(|| right.iter().position(|&right| Some(right) == best));
    let sizes = records(&models, &sample, kernel.row_bytes(), coding.largest_list())?;
    let found = found.map(|at| finest_in_the_room(&sizes, at, page_bytes as f64 - HEADER));
    let step = found.and_then(|at| models.get(at)).map(NestedModel::step);
    step.ok_or_else(|| {
        Error::call(
            "element type",
            source.element(),
            "vectors of this type have no rounding steps",
            "Choose another layout",
        )
    })
}

/// For each model, the mean bytes of a record with a list of `list` bytes.
fn records(
    models: &[NestedModel],
    sample: &[u8],
    row_bytes: usize,
    list: usize,
) -> Result<Vec<f64>, Error> {
    let rows = || sample.chunks_exact(row_bytes).take(MEASURED);
    let (mut leading, mut trailing) = (Vec::new(), Vec::new());
    let mut sizes = Vec::with_capacity(models.len());
    for model in models {
        leading.clear();
        for row in rows() {
            trailing.clear();
            let encoded = model.encode(row, &mut leading, &mut trailing);
            encoded.map_err(|error| Error::codec("a sample of the vectors", error))?;
        }
        let part = leading.len() as f64 / rows().count().max(1) as f64;
        sizes.push(part + list as f64 + BESIDE);
    }
    Ok(sizes)
}

/// The finest step with which as many records fit on a page as with `chosen`. `sizes` has the size
/// of a record for each step. With a coarser step, pages with one or two wide records would have
/// unused bytes.
fn finest_in_the_room(sizes: &[f64], chosen: usize, page: f64) -> usize {
    let on_page = |at: usize| (page / (MARGIN * sizes[at])).floor();
    let most = on_page(chosen);
    let finer = (chosen + 1..sizes.len()).take_while(|&at| most >= 1.0 && on_page(at) == most);
    finer.last().unwrap_or(chosen)
}

fn neighbourhood(sweep: &mut Sweep<'_>, node: u32) -> Result<Vec<u32>, Error> {
    let (mut list, mut around) = (Vec::new(), Vec::new());
    sweep.lists().read(node, &mut list)?;
    around.extend_from_slice(&list);
    for &hub in around.clone().iter().take(HUBS) {
        sweep.lists().read(hub, &mut list)?;
        around.extend_from_slice(&list);
    }
    around.sort_unstable();
    around.dedup();
    around.retain(|&other| other != node);
    // The nodes are sampled evenly, so that the sample has few neighbours of any one hub.
    let step = around.len().div_ceil(MOST).max(1);
    Ok(std::iter::once(node)
        .chain(around.into_iter().step_by(step))
        .collect())
}

/// The number of rows that are among the nearest to the first row, both exactly and by leading
/// parts alone.
fn ranked_right(kernel: &Kernel, model: &NestedModel, rows: &[u8]) -> Result<usize, Error> {
    let (query, others) = rows.split_at(kernel.row_bytes());
    let wrong = |source| Error::codec("a sample of the vectors", source);
    let mut middle = vec![0; kernel.row_bytes()];
    let (mut exact, mut by_leading) = (Vec::new(), Vec::new());
    for row in others.chunks_exact(kernel.row_bytes()) {
        model.round(row, &mut middle).map_err(wrong)?;
        exact.push(kernel.distance(query, row));
        by_leading.push(kernel.distance(query, &middle));
    }
    let nearest = |distances: &[f32]| {
        let mut places: Vec<usize> = (0..distances.len()).collect();
        places.sort_by(|&a, &b| distances[a].total_cmp(&distances[b]));
        places.truncate(ANSWERS);
        places
    };
    let (found, wanted) = (nearest(&by_leading), nearest(&exact));
    let bound = wanted.last().map_or(f32::INFINITY, |&last| exact[last]);
    Ok(found.iter().filter(|&&place| exact[place] <= bound).count())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_that_would_be_lost_is_filled() {
        // Twelve records fit on this page. With the finer steps, only ten or nine would.
        assert_eq!(finest_in_the_room(&[320.0, 368.0, 416.0], 0, 4032.0), 0);
        // One record fits on this page, with finer steps too.
        let sizes = [2_100.0, 2_500.0, 2_900.0, 3_300.0, 3_700.0];
        assert_eq!(finest_in_the_room(&sizes, 0, 4032.0), 4);
        assert_eq!(finest_in_the_room(&sizes, 2, 3_500.0), 3);
        assert_eq!(finest_in_the_room(&[5_000.0, 5_400.0], 0, 4032.0), 0);
        assert_eq!(finest_in_the_room(&[100.0], 0, 4032.0), 0);
    }
}
