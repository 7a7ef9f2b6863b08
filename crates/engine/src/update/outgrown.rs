//! Decides whether the rows of the next checkpoint have outgrown the previous codebook.
//!
//! ```text
//!   an even sample of the rows ─┬─ 4 of 5 rows: a trial codebook is trained on these rows
//!                               └─ 1 of 5 rows: both codebooks encode these; which is nearer?
//!   all rows, if they are few  ─── a codebook is trained on all of them: which code is nearer?
//! ```
//!
//! A codebook that was trained on a handful of vectors, or on unlike vectors, does not distinguish
//! the rows. Reliable evidence is only the error on rows on which neither codebook was trained. If
//! the rows are few, the trial codebook fits all rows, so no row is held out.
//!
//! The trial codebook is trained on few rows. A present codebook that was trained on more of the
//! same rows is better, and stays.

use stratann_vector::{Reduction, Training, normalize, to_f32};

use crate::Error;
use crate::build::{BuildOptions, training_rows};
use crate::codebook::{self, Codebook, crowds};
use crate::data::VectorSource;
use crate::progress::{Progress, Stage};

/// The maximum number of examined rows. One row in `HELD_OUT` is held out of the training.
const ROWS: usize = 10_240;
const HELD_OUT: usize = 5;
/// With at most this number of rows, no row is held out.
const FEW: usize = 4_096;
/// Lloyd's iterations of a trial. Later iterations improve the codebook little.
const ITERATIONS: usize = 6;
const PIECE: usize = 256;

/// If the error of the trial codebook is below this share of the present error, a merge trains a
/// new codebook.
const WORTH: f64 = 0.95;
/// If the error of the trial codebook is below this share of the present error, the merge also
/// rebuilds the graph. Direct inserts searched by the inaccurate codes, so their lists are useless.
const BLIND: f64 = 0.7;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outgrown {
    /// A new codebook would hardly be better, or the rows are too few for a decision.
    No,
    Codes,
    /// The codebook is so inaccurate that the lists of inserted vectors are useless.
    Graph,
}

/// The decision depends only on the rows, their order, the codebook and `options`.
pub(super) fn outgrown(
    source: &dyn VectorSource,
    codebook: &Codebook,
    options: &BuildOptions,
    progress: &dyn Progress,
) -> Result<Outgrown, Error> {
    let (all, dim) = (source.rows(), source.dim());
    let rows = all.min(ROWS).min(training_rows(options.memory, dim));
    if rows < HELD_OUT {
        return Ok(Outgrown::No);
    }
    let _stage = Stage::begin(progress, "looking at codes", 1);
    let mut trained = Vec::with_capacity(rows * dim);
    let mut held_out = Vec::with_capacity(rows.div_ceil(HELD_OUT) * dim);
    let (mut bytes, mut floats) = (vec![0; source.row_bytes()], vec![0.0; dim]);
    for i in 0..rows {
        if i % PIECE == 0 && progress.interrupted() {
            return Err(Error::Interrupted);
        }
        source.read((i as u64 * all as u64 / rows as u64) as usize, &mut bytes)?;
        to_f32(source.element(), &bytes, &mut floats);
        if options.metric.reduction() == Reduction::Normalised {
            normalize(&mut floats);
        }
        match i % HELD_OUT {
            0 if all > FEW => held_out.extend_from_slice(&floats),
            _ => trained.extend_from_slice(&floats),
        }
    }
    let first = match held_out.is_empty() {
        true => 0,
        false => trained.len(),
    };
    // The errors of rows in dense clusters count more, as in the training of a codebook.
    trained.append(&mut held_out);
    let mut weights = crowds::weights(&trained, dim, options.threads);
    let weights = weights
        .as_mut()
        .map(|weights| weights.split_off(first / dim));
    let looked_at = match first {
        0 => trained.clone(),
        first => trained.split_off(first),
    };
    let training = Training {
        iterations: ITERATIONS,
        ..codebook::training(dim, options.threads, options.seed)
    };
    let trial = Codebook::of_sample(
        trained,
        dim,
        codebook.code_bytes(),
        options.metric,
        &training,
        codebook.low_codes(),
    )?;
    let error = |codebook: &Codebook| -> f64 {
        let errors = codebook.squared_errors(&looked_at, options.threads);
        match &weights {
            None => errors.iter().sum(),
            Some(weights) => errors
                .iter()
                .zip(weights)
                .map(|(error, weight)| error * f64::from(*weight))
                .sum(),
        }
    };
    let share = error(&trial) / error(codebook);
    tracing::debug!(
        share,
        rows,
        "error of a codebook trained on these rows, as a share of the error of the present codebook"
    );
    // If both codebooks encode all rows without error, the share is NaN, and the result is `No`.
    Ok(match share {
        share if share < BLIND => Outgrown::Graph,
        share if share < WORTH => Outgrown::Codes,
        _ => Outgrown::No,
    })
}
