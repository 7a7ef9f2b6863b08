//! Product quantisation: one byte for each chunk of a vector's dimensions.
//!
//! ```text
//!   dim 10, 4 bytes:   | 0 1 2 | 3 4 5 | 6 7 | 8 9 |   widths 3 3 2 2: first dim % m are wider
//!   code:              |  b 0  |  b 1  | b 2 | b 3 |   byte j: the nearest centroid of chunk j
//!
//!   centroids:  chunk 0: [256][3] | chunk 1: [256][3] | chunk 2: [256][2] | ..   256 * dim f32
//! ```
//!
//! If several centroids of a chunk are equally near, the code has the lowest number.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread::Builder;

use crate::aligned::AlignedFloats;
use crate::kernel::Routines;
use crate::kernel::codes::{Codebook, Points};
use crate::training::{Training, train_chunk};
use crate::{DistanceTable, InstructionSet, Metric};

/// The number of centroids of a chunk, which one byte can number.
pub const CENTROIDS: usize = 256;

/// The vectors that a thread encodes together. They stay in the cache while all chunks are encoded.
const TILE: usize = 64;

/// The reasons why a quantiser cannot be created.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum QuantizerError {
    /// The code has no bytes, or has more bytes than there are dimensions.
    #[error(
        "codes of {code_bytes} bytes for vectors of {dim} dimensions; each byte needs a dimension. Use 1 to {dim} bytes"
    )]
    CodeBytes {
        /// The requested number of bytes of a code.
        code_bytes: usize,
        /// The dimensions of the vectors.
        dim: usize,
    },
    /// The sample is empty, or its length is not a multiple of the dimension.
    #[error("a sample of {floats} floats; a vector has {dim}. Pass one or more whole vectors")]
    Sample {
        /// The length of the sample in floats.
        floats: usize,
        /// The dimensions of the vectors.
        dim: usize,
    },
    /// The centroids are not `256 * dim` floats.
    #[error("{floats} floats of centroids; {dim} dimensions need {}. Pass the centroids of one codebook", dim * CENTROIDS)]
    Centroids {
        /// The number of floats that were given.
        floats: usize,
        /// The dimensions of the vectors.
        dim: usize,
    },
    /// The number of weights differs from the number of vectors, or a weight is not positive and
    /// finite.
    #[error(
        "{weights} weights for a sample of {vectors} vectors. Pass one weight for each vector, positive and finite"
    )]
    Weights {
        /// The number of weights that were given.
        weights: usize,
        /// The number of vectors of the sample.
        vectors: usize,
    },
    /// The sample or the centroids contain NaN or infinity.
    #[error("float {position} (dimension {} of vector {}) is NaN or infinite. Remove or correct it", position % dim, position / dim)]
    NotFinite {
        /// The position of the first such float.
        position: usize,
        /// The dimensions of the vectors.
        dim: usize,
    },
}

/// Encodes vectors into codes, decodes codes, and creates the tables that estimate distances.
#[derive(Clone)]
pub struct ProductQuantizer {
    dim: usize,
    code_bytes: usize,
    /// The centroids of one chunk after the other. The kernels read a chunk as `[width][256]`.
    transposed: AlignedFloats,
    routines: &'static Routines,
}

pub(crate) fn chunk_of(dim: usize, code_bytes: usize, chunk: usize) -> (usize, usize) {
    let (width, wider) = (dim / code_bytes, dim % code_bytes);
    (
        chunk * width + chunk.min(wider),
        width + usize::from(chunk < wider),
    )
}

fn check_shape(dim: usize, code_bytes: usize) -> Result<(), QuantizerError> {
    if code_bytes == 0 || code_bytes > dim {
        return Err(QuantizerError::CodeBytes { code_bytes, dim });
    }
    Ok(())
}

fn check_finite(floats: &[f32], dim: usize) -> Result<(), QuantizerError> {
    // A run of floats is tested as a whole, without an early exit, so that the loop vectorises.
    let run = floats
        .chunks(64)
        .position(|run| run.iter().fold(false, |any, x| any | !x.is_finite()));
    match run.and_then(|run| (run * 64..floats.len()).find(|at| !floats[*at].is_finite())) {
        Some(position) => Err(QuantizerError::NotFinite { position, dim }),
        None => Ok(()),
    }
}

fn check_weights(weights: Option<&[f32]>, vectors: usize) -> Result<(), QuantizerError> {
    let Some(weights) = weights else {
        return Ok(());
    };
    let counts = |weight: &f32| weight.is_finite() && *weight > 0.0;
    match weights.len() == vectors && weights.iter().all(counts) {
        true => Ok(()),
        false => Err(QuantizerError::Weights {
            weights: weights.len(),
            vectors,
        }),
    }
}

/// Transposes points, `[n][width]`, to `[width][stride]` with `stride >= n`.
pub(crate) fn transpose(points: &[f32], width: usize, out: &mut [f32]) {
    let stride = out.len() / width;
    for (i, point) in points.chunks_exact(width).enumerate() {
        for (j, x) in point.iter().enumerate() {
            out[j * stride + i] = *x;
        }
    }
}

impl ProductQuantizer {
    /// Trains centroids on `n * dim` floats, by k-means++ on each chunk and then Lloyd's
    /// iterations. The result does not depend on the number of threads or the processor.
    ///
    /// # Errors
    /// Fails if `code_bytes`, the sample's length, a float or a weight is invalid.
    pub fn train(
        sample: &[f32],
        dim: usize,
        code_bytes: usize,
        training: &Training,
    ) -> Result<ProductQuantizer, QuantizerError> {
        ProductQuantizer::train_with_isa(
            sample,
            dim,
            code_bytes,
            training,
            InstructionSet::current(),
        )
    }

    /// [`ProductQuantizer::train`] with a given instruction set; for tests and comparisons.
    ///
    /// # Errors
    /// Fails as [`ProductQuantizer::train`] does.
    ///
    /// # Panics
    /// Panics if the processor does not have the instruction set.
    pub fn train_with_isa(
        sample: &[f32],
        dim: usize,
        code_bytes: usize,
        training: &Training,
        isa: InstructionSet,
    ) -> Result<ProductQuantizer, QuantizerError> {
        check_shape(dim, code_bytes)?;
        if sample.is_empty() || !sample.len().is_multiple_of(dim) {
            return Err(QuantizerError::Sample {
                floats: sample.len(),
                dim,
            });
        }
        check_finite(sample, dim)?;
        check_weights(training.weights.as_deref(), sample.len() / dim)?;
        let routines = Routines::of(isa);

        let next = AtomicUsize::new(0);
        let work = || {
            let mut done = Vec::new();
            loop {
                let chunk = next.fetch_add(1, Ordering::Relaxed);
                if chunk >= code_bytes {
                    return done;
                }
                let (first, width) = chunk_of(dim, code_bytes, chunk);
                done.push((
                    first,
                    train_chunk(routines, sample, dim, first, width, training),
                ));
            }
        };
        let mut centroids = vec![0.0; CENTROIDS * dim];
        let mut place = |done: Vec<(usize, Vec<f32>)>| {
            for (first, chunk) in done {
                centroids[first * CENTROIDS..][..chunk.len()].copy_from_slice(&chunk);
            }
        };
        std::thread::scope(|scope| {
            let helpers: Vec<_> = (1..training.threads.clamp(1, code_bytes))
                .map_while(|_| Builder::new().spawn_scoped(scope, work).ok())
                .collect();
            place(work());
            for helper in helpers {
                match helper.join() {
                    Ok(done) => place(done),
                    Err(panic) => std::panic::resume_unwind(panic),
                }
            }
        });
        Ok(ProductQuantizer::assemble(
            dim, code_bytes, &centroids, routines,
        ))
    }

    /// Makes a quantiser from known [`ProductQuantizer::centroids`].
    ///
    /// # Errors
    /// Fails if `code_bytes`, the number of floats, or a float is invalid.
    pub fn from_parts(
        dim: usize,
        code_bytes: usize,
        centroids: Vec<f32>,
    ) -> Result<ProductQuantizer, QuantizerError> {
        check_shape(dim, code_bytes)?;
        if dim.checked_mul(CENTROIDS) != Some(centroids.len()) {
            return Err(QuantizerError::Centroids {
                floats: centroids.len(),
                dim,
            });
        }
        check_finite(&centroids, dim)?;
        Ok(ProductQuantizer::assemble(
            dim,
            code_bytes,
            &centroids,
            Routines::of(InstructionSet::current()),
        ))
    }

    /// The same quantiser on a given instruction set; for tests and comparisons.
    ///
    /// # Panics
    /// Panics if the processor does not have the instruction set.
    pub fn with_isa(mut self, isa: InstructionSet) -> ProductQuantizer {
        self.routines = Routines::of(isa);
        self
    }

    fn assemble(
        dim: usize,
        code_bytes: usize,
        centroids: &[f32],
        routines: &'static Routines,
    ) -> ProductQuantizer {
        let mut transposed = AlignedFloats::zeros(centroids.len());
        for chunk in 0..code_bytes {
            let (first, width) = chunk_of(dim, code_bytes, chunk);
            let range = first * CENTROIDS..(first + width) * CENTROIDS;
            transpose(&centroids[range.clone()], width, &mut transposed[range]);
        }
        ProductQuantizer {
            dim,
            code_bytes,
            transposed,
            routines,
        }
    }

    /// Dimensions of a vector.
    pub fn dim(&self) -> usize {
        self.dim
    }

    /// Bytes of a code, and so the number of chunks.
    pub fn code_bytes(&self) -> usize {
        self.code_bytes
    }

    /// A copy of the centroids, `256 * dim` floats: chunk after chunk, each `[256][width]`.
    pub fn centroids(&self) -> Vec<f32> {
        let mut centroids = vec![0.0; self.transposed.len()];
        for chunk in 0..self.code_bytes {
            let (first, width) = self.chunk(chunk);
            let range = first * CENTROIDS..(first + width) * CENTROIDS;
            transpose(
                &self.transposed[range.clone()],
                CENTROIDS,
                &mut centroids[range],
            );
        }
        centroids
    }

    /// Bytes of memory that the centroids take.
    pub fn memory_bytes(&self) -> usize {
        size_of_val(&self.transposed[..])
    }

    fn chunk(&self, chunk: usize) -> (usize, usize) {
        chunk_of(self.dim, self.code_bytes, chunk)
    }

    fn book(&self, first: usize, width: usize) -> Codebook {
        Codebook {
            transposed: self.transposed[first * CENTROIDS..][..width * CENTROIDS].as_ptr(),
            width,
        }
    }

    /// Encodes `n * dim` floats into `n * code_bytes` bytes, on up to `threads` threads.
    ///
    /// # Panics
    /// Panics if `vectors` is not exactly one vector for each code.
    pub fn encode(&self, vectors: &[f32], codes: &mut [u8], threads: usize) {
        let count = codes.len() / self.code_bytes;
        assert_eq!(
            codes.len(),
            count * self.code_bytes,
            "the codes are not a multiple of {} bytes",
            self.code_bytes
        );
        assert_eq!(
            vectors.len(),
            count * self.dim,
            "there are {count} codes, but another number of vectors"
        );
        let threads = threads.clamp(1, count.div_ceil(TILE).max(1));
        let share = count.div_ceil(threads).max(1);
        let shares = Mutex::new(
            vectors
                .chunks(share * self.dim)
                .zip(codes.chunks_mut(share * self.code_bytes)),
        );
        let work = || {
            loop {
                let next = shares.lock().unwrap_or_else(PoisonError::into_inner).next();
                let Some((vectors, codes)) = next else {
                    return;
                };
                self.encode_share(vectors, codes);
            }
        };
        std::thread::scope(|scope| {
            let helpers = (1..threads).map_while(|_| Builder::new().spawn_scoped(scope, work).ok());
            helpers.for_each(drop);
            work();
        });
    }

    fn encode_share(&self, vectors: &[f32], codes: &mut [u8]) {
        for (vectors, codes) in vectors
            .chunks(TILE * self.dim)
            .zip(codes.chunks_mut(TILE * self.code_bytes))
        {
            let count = vectors.len() / self.dim;
            for chunk in 0..self.code_bytes {
                let (first, width) = self.chunk(chunk);
                let points = Points {
                    start: vectors[first..].as_ptr(),
                    stride: self.dim,
                    count,
                };
                // SAFETY: the book has `width * 256` floats. Each of the `count` vectors has
                // `width` floats from `first` on. Each of the `count` codes has a byte `chunk`. No
                // distances are requested. `Routines::of` confirmed that the processor has the
                // instruction set.
                unsafe {
                    (self.routines.assign)(
                        self.book(first, width),
                        points,
                        codes[chunk..].as_mut_ptr(),
                        self.code_bytes,
                        std::ptr::null_mut(),
                    );
                }
            }
        }
    }

    /// Writes the centroids of a code to `out`.
    ///
    /// # Panics
    /// Panics if a length is wrong.
    pub fn decode(&self, code: &[u8], out: &mut [f32]) {
        assert_eq!(code.len(), self.code_bytes, "the code has the wrong length");
        assert_eq!(out.len(), self.dim, "the vector has the wrong length");
        for (chunk, centroid) in code.iter().enumerate() {
            let (first, width) = self.chunk(chunk);
            let book = &self.transposed[first * CENTROIDS..(first + width) * CENTROIDS];
            let components = book.chunks_exact(CENTROIDS);
            for (out, component) in out[first..first + width].iter_mut().zip(components) {
                *out = component[usize::from(*centroid)];
            }
        }
    }

    /// Decodes the codes with the numbers `ids`, and appends their vectors to `out`, as f32.
    ///
    /// # Panics
    /// Panics if an id has no code in `codes`.
    pub fn decode_rows(&self, codes: &[u8], ids: &[u32], out: &mut Vec<u8>) {
        let start = out.len();
        out.resize(start + ids.len() * self.dim * 4, 0);
        let rows = &mut out[start..];
        // One chunk is decoded for all ids, then the next, so that a chunk's centroids stay in the
        // cache.
        for chunk in 0..self.code_bytes {
            let (first, width) = self.chunk(chunk);
            let book = &self.transposed[first * CENTROIDS..(first + width) * CENTROIDS];
            for (&id, row) in ids.iter().zip(rows.chunks_exact_mut(self.dim * 4)) {
                let centroid = usize::from(codes[id as usize * self.code_bytes + chunk]);
                let part = row[4 * first..4 * (first + width)].as_chunks_mut::<4>().0;
                for (component, bytes) in part.iter_mut().enumerate() {
                    *bytes = book[component * CENTROIDS + centroid].to_le_bytes();
                }
            }
        }
    }

    /// Fills `table` with the partial distances from `query` to all centroids. The sum of a code's
    /// entries estimates the squared distance (L2), the negated inner product, or half the squared
    /// distance (cosine, of [normalised](crate::normalize) vectors).
    ///
    /// # Panics
    /// Panics if `query` is not [`ProductQuantizer::dim`] long.
    pub fn table(&self, metric: Metric, query: &[f32], table: &mut DistanceTable) {
        self.fill(metric, query, table.reshape(self.code_bytes));
    }

    pub(crate) fn fill(&self, metric: Metric, query: &[f32], entries: &mut [f32]) {
        assert_eq!(query.len(), self.dim, "the query has the wrong length");
        assert_eq!(
            entries.len(),
            self.code_bytes * CENTROIDS,
            "the table has the wrong number of entries"
        );
        for (chunk, entries) in entries.chunks_exact_mut(CENTROIDS).enumerate() {
            let (first, width) = self.chunk(chunk);
            let point = query[first..first + width].as_ptr();
            let book = self.book(first, width);
            // SAFETY: the book has `width * 256` floats, the point has `width` floats, and
            // `entries` has space for 256 entries. `Routines::of` confirmed that the processor has
            // the instruction set.
            unsafe {
                match metric {
                    Metric::L2 => (self.routines.squares)(book, point, 1.0, entries.as_mut_ptr()),
                    Metric::Cosine => {
                        (self.routines.squares)(book, point, 0.5, entries.as_mut_ptr())
                    }
                    Metric::InnerProduct => {
                        (self.routines.negated_products)(book, point, entries.as_mut_ptr())
                    }
                }
            }
        }
    }
}

impl std::fmt::Debug for ProductQuantizer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ProductQuantizer")
            .field("dim", &self.dim)
            .field("code_bytes", &self.code_bytes)
            .finish_non_exhaustive()
    }
}
