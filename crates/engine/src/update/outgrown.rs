//! Whether the rows of the next checkpoint have outgrown the codebook of the one before.
//!
//! ```text
//!   an even sample of the rows ─┬─ 4 of 5: a codebook is trained on them, for trial
//!                               └─ 1 of 5: encoded by the index's and by that one: which is nearer to them?
//!   all rows, if they are few  ─── a codebook is trained on all of them: which is nearer to them?
//! ```
//!
//! A codebook of a handful of vectors tells none of those apart that come later; one of other vectors than there are now tells them apart
//! badly. Few rows a codebook learns by heart: that is of use to all of them, and none need be held out. Neither a count of rows nor what was measured when it was trained says so of all cases; rows that neither codebook was trained
//! on do, of indexes of any version. The trial is small, so it loses to a codebook that was trained on more of the same rows: then the
//! codebook stays, and with it the codes of all vectors that do.

use stratann_vector::{Reduction, Training, normalize, to_f32};

use crate::Error;
use crate::build::{BuildOptions, training_rows};
use crate::codebook::{self, Codebook, crowds};
use crate::data::VectorSource;
use crate::progress::{Progress, Stage};

/// Rows that are looked at, at most, and one in so many of them that no trial is trained on.
const ROWS: usize = 10_240;
const HELD_OUT: usize = 5;
/// So many rows, or fewer, are all trained on, and none is held out.
const FEW: usize = 4_096;
/// Lloyd's iterations of a trial: few, since the last of them gain little.
const ITERATIONS: usize = 6;
/// Rows are read so many at a time.
const PIECE: usize = 256;

/// The share of the error of the codebook that is there which one that is trained on a sample has, where it is worth being trained anew.
const WORTH: f64 = 0.95;
/// The same where the graph is worth being built anew, as direct inserts found their way by codes that said too little.
const BLIND: f64 = 0.7;

/// What a merge does about the codebook of the checkpoint before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outgrown {
    /// It serves the rows as well as one of theirs would, or nothing can be told.
    No,
    /// One that is trained on them serves them better.
    Codes,
    /// It says so little that lists that were found by it are no better than none.
    Graph,
}

/// Looks whether rows have outgrown a codebook. What is told follows from the rows, their order, the seed and the memory cap.
///
/// # Errors
/// A row that cannot be read, or an interruption.
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
    // Where some rows stand in crowds, errors of these count more, as they do in training.
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
        "error of a codebook of these rows, as a share of that of the one before"
    );
    // Of rows that are all encoded without an error it is no number.
    Ok(match share {
        share if share < BLIND => Outgrown::Graph,
        share if share < WORTH => Outgrown::Codes,
        _ => Outgrown::No,
    })
}
