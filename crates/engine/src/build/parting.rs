//! Decides before the build whether vectors are stored in two parts, by a sample of the rows.
//!
//! ```text
//!   a sample ──> leading parts at a middle step ──> nodes on a page, compared with whole vectors
//!           └──> lengths of vectors ──────────────> whether a step suits all vectors
//! ```
//!
//! The limits follow from searches on package-text, with graphs of the same R and L
//! (`bench/budgets.toml`). Memory ranged from the codes alone to the whole index. Leading parts
//! need the fewest reads, except if memory has space for all lists, but for less than a third of
//! the pages with leading parts. Then whole vectors that are stored apart from lists need a tenth
//! fewer reads at recall .97, but cannot reach .99.
//!
//! The steps of a leading part must be small compared with the length of the vector. A vector much
//! shorter than most loses its direction. A much longer vector exceeds the range of the steps.

use stratann_codec::NestedModel;
use stratann_vector::to_f32;

use crate::Error;
use crate::data::VectorSource;
use crate::stores::writing::coding::Coding;

/// A page with leading parts must have at least this many times the nodes of a page with whole
/// vectors.
const MORE_ON_A_PAGE: f64 = 2.0;
/// The largest factor between the length of a row and the median length.
const OFF: f32 = 2.0;
/// The largest share of rows that may exceed the factor `OFF`.
const EXCEPTIONS: f64 = 0.01;
/// The largest share of rows whose leading parts do not bound the values of all elements.
const VAGUE: f64 = 0.01;
const LEAST: usize = 256;
/// If memory has space for this share of the pages with leading parts, leading parts need fewer
/// reads than whole vectors apart from lists.
const ROOM: f64 = 1.0 / 3.0;

/// Whether searches read less if vectors are stored in two parts. `spare` is the memory of searches
/// beyond the minimum, if it is known.
pub(super) fn is_worth_it(
    source: &dyn VectorSource,
    coding: &Coding,
    list_bytes: f64,
    spare: Option<u64>,
) -> Result<bool, Error> {
    let sample = coding.sample_all(source)?;
    let row_bytes = source.row_bytes();
    let rows = sample.len() / row_bytes;
    if rows < LEAST || !are_of_a_length(source, &sample) {
        return Ok(false);
    }
    let models = coding.nested_of(&sample);
    // The models are ordered from the coarsest step to the finest. The build chooses its step only
    // after the graph exists.
    let Some(model) = models.get(models.len() / 2) else {
        return Ok(false);
    };
    let (mut leading, mut trailing) = (Vec::new(), Vec::new());
    let (mut bytes, mut whole, mut vague) = (0, 0, 0);
    for row in sample.chunks_exact(row_bytes) {
        leading.clear();
        trailing.clear();
        model
            .encode(row, &mut leading, &mut trailing)
            .map_err(|error| Error::codec("a sample of the vectors", error))?;
        bytes += leading.len();
        whole += leading.len() + trailing.len();
        vague += usize::from(!NestedModel::is_near(&leading));
    }
    let record = |bytes: usize| bytes as f64 / rows as f64 + list_bytes;
    let more = record(whole) / record(bytes);
    let all = source.rows() as f64;
    let lists_alone = spare.is_some_and(|spare| {
        let spare = spare as f64;
        spare >= all * list_bytes && spare < ROOM * all * record(bytes)
    });
    Ok(more >= MORE_ON_A_PAGE && vague as f64 <= VAGUE * rows as f64 && !lists_alone)
}

fn are_of_a_length(source: &dyn VectorSource, sample: &[u8]) -> bool {
    let mut floats = vec![0.0; source.dim()];
    let mut lengths: Vec<f32> = sample
        .chunks_exact(source.row_bytes())
        .map(|row| {
            to_f32(source.element(), row, &mut floats);
            stratann_vector::norm(&floats)
        })
        .collect();
    lengths.sort_unstable_by(f32::total_cmp);
    let few = (EXCEPTIONS * lengths.len() as f64) as usize;
    let (short, long) = (lengths[few], lengths[lengths.len() - 1 - few]);
    let median = lengths[lengths.len() / 2];
    // If a length is NaN, one of these comparisons is false.
    median > 0.0 && short * OFF >= median && long <= median * OFF
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::{Matrix, VectorFile};
    use crate::{Compression, plan};
    use stratann_vector::Element;

    fn rows(count: usize, dim: usize, scale: impl Fn(usize) -> f32) -> Matrix {
        let mut state = 7u64;
        let mut uniform = || {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (state >> 40) as f32 / (1u64 << 24) as f32 - 0.5
        };
        let bytes = (0..count * dim)
            .flat_map(|i| {
                let value: f32 = (0..4).map(|_| uniform()).sum();
                (value * scale(i / dim)).to_le_bytes()
            })
            .collect();
        Matrix::new(bytes, count, dim, Element::F32).unwrap()
    }

    fn fit(rows: &Matrix, list_bytes: f64) -> bool {
        let coding = Coding::new(rows, 64, Compression::Best).unwrap();
        is_worth_it(rows, &coding, list_bytes, None).unwrap()
    }

    #[test]
    fn where_memory_has_room_for_lists_and_little_else_they_stay_alone() {
        let rows = rows(1_000, 384, |_| 1.0);
        let coding = Coding::new(&rows, 64, Compression::Best).unwrap();
        let fit = |spare| is_worth_it(&rows, &coding, 83.0, Some(spare)).unwrap();
        assert!(
            fit(0) && fit(80_000),
            "the lists do not fit into memory either"
        );
        assert!(!fit(84_000));
        assert!(fit(200_000));
    }

    #[test]
    fn the_budgets_that_were_measured_are_chosen_by() {
        let path = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../../fixtures/package-text-2k.base.fbin"
        );
        let texts = Matrix::read(&VectorFile::open(path).unwrap()).unwrap();
        let coding = Coding::new(&texts, 64, Compression::Best).unwrap();
        // The sample is a twentieth of the 40,000 rows, so the spare memory is divided by 20. Codes
        // have 96 bytes.
        let spare = |budget: u64| (budget - plan::least(384, 40_000 * 96)) / 20;
        let fit = |budget| is_worth_it(&texts, &coding, 83.0, Some(spare(budget))).unwrap();
        let chosen = [14, 17, 26, 42, 74].map(|megabytes| fit(megabytes * 1_000_000));
        // With 17 MB, memory has space for all lists, but for few pages with leading parts.
        assert_eq!(chosen, [true, false, true, true, true]);
    }

    #[test]
    fn floats_of_a_length_are_fit_and_others_are_not() {
        assert!(fit(&rows(1_000, 384, |_| 1.0), 83.0));
        assert!(fit(
            &rows(1_000, 384, |row| 1.0 + (row % 7) as f32 / 10.0),
            83.0
        ));
        assert!(!fit(
            &rows(1_000, 384, |row| if row % 10 == 3 { 100.0 } else { 1.0 }),
            83.0
        ));
        assert!(!fit(
            &rows(1_000, 384, |row| if row % 10 == 3 { 0.01 } else { 1.0 }),
            83.0
        ));
        assert!(!fit(&rows(1_000, 384, |_| 0.0), 83.0));
        assert!(!fit(
            &rows(1_000, 384, |row| if row == 500 { f32::NAN } else { 0.0 }),
            83.0
        ));
        assert!(!fit(&rows(100, 384, |_| 1.0), 83.0));
        // If lists are long compared with vectors, leading parts save nothing.
        assert!(!fit(&rows(1_000, 16, |_| 1.0), 83.0));
    }
}
