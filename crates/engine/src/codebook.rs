//! Codebooks: the centroids of product quantisation. Several indexes may share a codebook.
//!
//! ```text
//!   INDEX/codebook-…   a copy for each index, so that an index can be moved or deleted by itself
//!   MANIFEST           names the codebook by its content: BLAKE3 of the stored centroids
//!   memory             indexes with equal hashes share a codebook (AiSAQ §4.4),
//!                      see [`Shared`](crate::index::Shared)
//! ```
//!
//! The header of the file has the dimension and the bytes of a code. If codes have [two
//! precisions](Codebook::low_codes), a third number is 1 for nested codes and 2 for separate codes,
//! and the number of bytes counts both codes. The centroids of low codes come first.
//!
//! Collections of one vector space may share a codebook. A caller trains it on a sample
//! ([`Codebook::train`]), and gives it to each build
//! ([`BuildOptions::codebook`](crate::BuildOptions::codebook)).

pub(crate) mod crowds;

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use stratann_layout::coupled::MAX_DIMENSION;
use stratann_layout::header::FieldsWriter;
use stratann_layout::{BLOCK, FileKind, Manifest, StreamReader, stream};
use stratann_tier::{Directory, TierError, Volume};
use stratann_vector::{
    CENTROIDS, DistanceTable, LowCodes, Metric, PairedQuantizer, ProductQuantizer, Reduction,
    Training, normalize, to_f32,
};

use crate::data::{VectorSource, check_rows};
use crate::progress::{Progress, Stage};
use crate::{Error, bounds, stored};

const TRAINING_ROWS: usize = 100_000;
/// If rows have more dimensions than this, a sample has about `TRAINING_NUMBERS` elements, but at
/// least 40 rows for each centroid.
const WIDE: usize = 128;
const TRAINING_NUMBERS: usize = 4 << 20;
const TRAINING_ROWS_WIDE: usize = 40 * CENTROIDS;
/// The largest number of iterations of Lloyd's algorithm. For wide rows, the algorithm ends when an
/// iteration reduces the error by less than the share `LEAST_GAIN`.
const ITERATIONS: usize = 12;
const LEAST_GAIN: f64 = 0.005;
const ORDERS: [(u32, LowCodes); 2] = [(1, LowCodes::Nested), (2, LowCodes::Separate)];

/// A codebook: 256 centroids for each byte of a code.
#[derive(Clone)]
pub struct Codebook {
    quantizer: Quantizer,
    hash: String,
}

#[derive(Clone)]
enum Quantizer {
    Plain(Arc<ProductQuantizer>),
    Paired(Arc<PairedQuantizer>),
}

impl fmt::Debug for Codebook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (dim, bytes, hash) = (self.dim(), self.code_bytes(), &self.hash);
        write!(
            f,
            "Codebook({dim} dimensions, codes of {bytes} bytes, {hash})"
        )
    }
}

impl Quantizer {
    fn centroid_bytes(&self) -> Vec<u8> {
        let bytes = |float: f32| float.to_le_bytes();
        match self {
            Self::Plain(plain) => plain.centroids().into_iter().flat_map(bytes).collect(),
            Self::Paired(paired) => paired.centroids().flat_map(bytes).collect(),
        }
    }
}

/// Options for training a codebook.
#[derive(Clone, Debug)]
pub struct TrainOptions {
    /// The metric of searches. Under cosine, training normalises the rows.
    pub metric: Metric,
    /// The bytes of a vector's code. `None` means a quarter of the number of dimensions.
    pub code_bytes: Option<usize>,
    /// The number of OS threads. The result does not depend on this number.
    pub threads: usize,
    /// The seed of every random choice.
    pub seed: u64,
    /// The kind of low codes, if codes have two precisions ([`distvs`](crate::Preset::DISTVS)).
    /// `code_bytes` then counts the high codes.
    pub low_codes: Option<LowCodes>,
}

impl Default for TrainOptions {
    fn default() -> Self {
        Self {
            metric: Metric::L2,
            code_bytes: None,
            threads: crate::threads::processors(),
            seed: 42,
            low_codes: None,
        }
    }
}

pub(crate) fn usual_code_bytes(dim: usize) -> usize {
    dim.div_ceil(4)
}

pub(crate) fn training_rows(dim: usize) -> usize {
    match dim {
        0..=WIDE => TRAINING_ROWS,
        _ => (TRAINING_NUMBERS / dim).max(TRAINING_ROWS_WIDE),
    }
}

impl Codebook {
    /// Trains a codebook on an evenly spaced sample of up to 100,000 rows. If rows have many
    /// dimensions, the sample is smaller, but has at least 10,240 rows.
    ///
    /// # Errors
    /// The call fails if there are no rows, or if the code bytes are not from 1 to the number of
    /// dimensions. It fails if a row of the sample has NaN or infinity, or is a zero row under
    /// cosine. It also fails if a file cannot be read, or if `progress` interrupts.
    pub fn train(
        source: &dyn VectorSource,
        options: &TrainOptions,
        progress: &dyn Progress,
    ) -> Result<Self, Error> {
        let (rows, dim) = (source.rows(), source.dim());
        if rows == 0 {
            return Err(Error::call(
                source.name(),
                "empty",
                "a codebook is trained with at least one vector",
                "Give vectors",
            ));
        }
        check_dimension(source)?;
        bounds::threads(options.threads)?;
        let code_bytes = options.code_bytes.unwrap_or_else(|| usual_code_bytes(dim));
        check_code_bytes(code_bytes, dim)?;
        let stored = |low_codes: LowCodes| low_codes.stored_bytes(code_bytes);
        let code_bytes = options.low_codes.map_or(code_bytes, stored);
        let count = rows.min(training_rows(dim));
        let mut sample = vec![0; count * source.row_bytes()];
        for (i, out) in sample.chunks_exact_mut(source.row_bytes()).enumerate() {
            if progress.interrupted() {
                return Err(Error::Interrupted);
            }
            let row = i * rows / count;
            source.read(row, out)?;
            check_rows(source, options.metric, row, out)?;
        }
        let mut floats = vec![0.0; count * dim];
        to_f32(source.element(), &sample, &mut floats);
        drop(sample);
        let _stage = Stage::begin(progress, "training codes", 1);
        let training = training(dim, options.threads, options.seed);
        Self::of_sample(
            floats,
            dim,
            code_bytes,
            options.metric,
            &training,
            options.low_codes,
        )
    }

    /// If codes have two precisions, `code_bytes` counts both codes. The quantisation errors of
    /// rows in dense clusters ([`crowds`]) have a larger weight.
    pub(crate) fn of_sample(
        mut floats: Vec<f32>,
        dim: usize,
        code_bytes: usize,
        metric: Metric,
        training: &Training,
        low_codes: Option<LowCodes>,
    ) -> Result<Self, Error> {
        if metric.reduction() == Reduction::Normalised {
            floats.chunks_exact_mut(dim).for_each(|row| {
                normalize(row);
            });
        }
        let training = &Training {
            weights: crowds::weights(&floats, dim, training.threads).map(Arc::from),
            ..training.clone()
        };
        let quantizer = match low_codes {
            None => {
                let plain = ProductQuantizer::train(&floats, dim, code_bytes, training)?;
                Quantizer::Plain(Arc::new(plain))
            }
            Some(low_codes) => {
                let paired = PairedQuantizer::train(&floats, dim, code_bytes, low_codes, training)?;
                Quantizer::Paired(Arc::new(paired))
            }
        };
        let hash = hash_of(&quantizer.centroid_bytes());
        Ok(Self { quantizer, hash })
    }

    /// The kind of low codes, if codes have two precisions ([`stratann_vector::PairedQuantizer`]).
    pub fn low_codes(&self) -> Option<LowCodes> {
        self.paired().map(PairedQuantizer::low_codes)
    }

    pub(crate) fn paired(&self) -> Option<&PairedQuantizer> {
        match &self.quantizer {
            Quantizer::Plain(_) => None,
            Quantizer::Paired(paired) => Some(paired),
        }
    }

    pub(crate) fn encode(&self, vectors: &[f32], codes: &mut [u8], threads: usize) {
        match &self.quantizer {
            Quantizer::Plain(plain) => plain.encode(vectors, codes, threads),
            Quantizer::Paired(paired) => paired.encode(vectors, codes, threads),
        }
    }

    /// The squared distance of each vector from the vector that its codes represent.
    pub(crate) fn squared_errors(&self, vectors: &[f32], threads: usize) -> Vec<f64> {
        let (dim, code_bytes) = (self.dim(), self.code_bytes());
        let count = vectors.len() / dim;
        let mut codes = vec![0; count * code_bytes];
        self.encode(vectors, &mut codes, threads);
        let mut decoded = vec![0.0; dim];
        let pairs = vectors
            .chunks_exact(dim)
            .zip(codes.chunks_exact(code_bytes));
        let error = |(vector, code): (&[f32], &[u8])| {
            match &self.quantizer {
                Quantizer::Plain(plain) => plain.decode(code, &mut decoded),
                Quantizer::Paired(paired) => paired.decode(code, &mut decoded),
            }
            let off = vector.iter().zip(&decoded);
            off.map(|(x, y)| f64::from(x - y).powi(2)).sum()
        };
        pairs.map(error).collect()
    }

    /// Fills a query's table of partial distances. Nested codes also need a correction
    /// ([`PairedQuantizer::correction`]). For separate codes, the table is for the high codes.
    pub(crate) fn table(&self, metric: Metric, query: &[f32], table: &mut DistanceTable) {
        match &self.quantizer {
            Quantizer::Plain(plain) => plain.table(metric, query, table),
            Quantizer::Paired(paired) => paired.table(metric, query, table),
        }
    }

    /// Reads a codebook that [`write`](Codebook::write) wrote, or the codebook of an index.
    ///
    /// # Errors
    /// The call fails if the file is missing, damaged, of a later format, or not a codebook.
    pub fn read(path: impl AsRef<Path>) -> Result<Self, Error> {
        let path = path.as_ref();
        let file = path.display().to_string();
        let read = |source| TierError::io("read", file.clone(), 0, 0, source);
        let bytes = std::fs::read(path).map_err(read)?;
        let mut reader = StreamReader::open(
            FileKind::Codebook,
            bytes.get(..BLOCK).unwrap_or(&bytes),
            &file,
        )?;
        reader.header().check_length(bytes.len() as u64, &file)?;
        let (dim, code_bytes, low_codes) = shape_of(&reader, &file)?;
        let mut payload = vec![0; reader.payload_length() as usize];
        reader.push_into(&bytes[BLOCK..], &mut payload)?;
        reader.finish()?;
        Self::assemble(&payload, dim, code_bytes, hash_of(&payload), low_codes)
            .map_err(|error| damaged(&file, error.to_string()))
    }

    /// Writes the codebook to a file atomically.
    ///
    /// # Errors
    /// The call fails if the directory is missing or read-only, or if the disk is full.
    pub fn write(&self, path: impl AsRef<Path>) -> Result<(), Error> {
        let path = path.as_ref();
        let Some(name) = path.file_name().and_then(|name| name.to_str()) else {
            return Err(Error::call(
                "the codebook's file",
                path.display(),
                "this path does not end with the name of a file in UTF-8",
                "Give a path that ends with such a name",
            ));
        };
        let folder = match path.parent() {
            Some(folder) if !folder.as_os_str().is_empty() => folder,
            _ => Path::new("."),
        };
        let volume = Directory::open(folder)?;
        let unfinished = format!("{name}.new");
        let mut file = volume.create(&unfinished)?;
        let (fields, payload) = self.file();
        let bytes = stream::encode(FileKind::Codebook, &payload, &fields);
        let written = file.write_at(0, &bytes).and_then(|()| file.sync());
        drop(file);
        let done = written.and_then(|()| volume.rename(&unfinished, name));
        if let Err(error) = done.and_then(|()| volume.sync()) {
            let _ = volume.remove(&unfinished);
            return Err(error.into());
        }
        Ok(())
    }

    pub(crate) fn of_index(volume: &dyn Volume, manifest: &Manifest) -> Result<Self, Error> {
        let dim = manifest.dimension as usize;
        let least = Self::content_bytes(dim, None);
        stored::check_room(volume, manifest, FileKind::Codebook, least as u64)?;
        let entry = stored::entry(volume, manifest, FileKind::Codebook, None)?;
        let entry = stored::name_of(volume, &entry.name);
        let (mut payload, mut low_codes) = (Vec::new(), Ok(None));
        stored::read_pieces(
            volume,
            manifest,
            FileKind::Codebook,
            None,
            |reader, piece| {
                // Below format version 3, the header does not have these numbers, and the manifest
                // has no hash.
                if !manifest.codebook.is_empty() {
                    low_codes = shape_of(reader, &entry).map(|(_, _, low_codes)| low_codes);
                }
                reader.push_with(piece, |bytes| payload.extend_from_slice(bytes))
            },
        )?;
        let hash = match manifest.codebook.as_str() {
            "" => hash_of(&payload),
            hash => hash.to_owned(),
        };
        Self::assemble(
            &payload,
            dim,
            manifest.code_bytes as usize,
            hash,
            low_codes?,
        )
    }

    fn assemble(
        payload: &[u8],
        dim: usize,
        code_bytes: usize,
        hash: String,
        low_codes: Option<LowCodes>,
    ) -> Result<Self, Error> {
        let floats = payload.chunks_exact(4);
        let centroids = floats
            .map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]))
            .collect();
        let quantizer = match low_codes {
            None => {
                let plain = ProductQuantizer::from_parts(dim, code_bytes, centroids)?;
                Quantizer::Plain(Arc::new(plain))
            }
            Some(low_codes) => {
                let paired = PairedQuantizer::from_parts(dim, code_bytes, low_codes, centroids)?;
                Quantizer::Paired(Arc::new(paired))
            }
        };
        Ok(Self { quantizer, hash })
    }

    pub(crate) fn of_content(
        centroids: &[u8],
        dim: usize,
        code_bytes: usize,
        low_codes: Option<LowCodes>,
    ) -> Result<Self, Error> {
        let hash = hash_of(centroids);
        Self::assemble(centroids, dim, code_bytes, hash, low_codes)
    }

    pub(crate) fn content_bytes(dim: usize, low_codes: Option<LowCodes>) -> usize {
        4 * CENTROIDS * dim * (1 + usize::from(low_codes.is_some()))
    }

    pub(crate) fn file(&self) -> (Vec<u8>, Vec<u8>) {
        let fields = FieldsWriter::new()
            .u32(self.dim() as u32)
            .u32(self.code_bytes() as u32);
        let order = (ORDERS.iter()).find(|(_, low_codes)| Some(*low_codes) == self.low_codes());
        let fields = match order {
            Some(&(order, _)) => fields.u32(order),
            // Versions that know only codes of one precision can read this header.
            None => fields,
        };
        (fields.finish(), self.quantizer.centroid_bytes())
    }

    /// The dimension of the vectors.
    pub fn dim(&self) -> usize {
        match &self.quantizer {
            Quantizer::Plain(plain) => plain.dim(),
            Quantizer::Paired(paired) => paired.dim(),
        }
    }

    /// The bytes of a code, or of both codes if there are two precisions.
    pub fn code_bytes(&self) -> usize {
        match &self.quantizer {
            Quantizer::Plain(plain) => plain.code_bytes(),
            Quantizer::Paired(paired) => paired.code_bytes(),
        }
    }

    /// The hash of the codebook's content: BLAKE3 of the centroids, as 64 hexadecimal digits.
    pub fn hash(&self) -> &str {
        &self.hash
    }

    /// Whether the centroids have the hash that the codebook claims. In an index, this hash is from
    /// the MANIFEST.
    pub(crate) fn is_what_it_says(&self) -> bool {
        let found = blake3::hash(&self.quantizer.centroid_bytes()).to_hex();
        found.as_str() == self.hash
    }

    /// Whether two codebooks share memory, as equal codebooks of a [`Catalog`](crate::Catalog) do.
    pub fn shares_memory_with(&self, other: &Codebook) -> bool {
        match (&self.quantizer, &other.quantizer) {
            (Quantizer::Plain(one), Quantizer::Plain(other)) => Arc::ptr_eq(one, other),
            (Quantizer::Paired(one), Quantizer::Paired(other)) => Arc::ptr_eq(one, other),
            _ => false,
        }
    }

    /// The quantizer for codes of one precision, or for low codes.
    pub(crate) fn quantizer(&self) -> &ProductQuantizer {
        match &self.quantizer {
            Quantizer::Plain(plain) => plain,
            Quantizer::Paired(paired) => paired.low(),
        }
    }

    pub(crate) fn memory_bytes(dim: usize) -> u64 {
        (4 * CENTROIDS * dim) as u64
    }
}

pub(crate) fn training(dim: usize, threads: usize, seed: u64) -> Training {
    Training {
        iterations: ITERATIONS,
        least_gain: match dim {
            0..=WIDE => 0.0,
            _ => LEAST_GAIN,
        },
        seed,
        threads,
        weights: None,
    }
}

pub(crate) fn check_dimension(source: &dyn VectorSource) -> Result<(), Error> {
    match source.dim() {
        1..=MAX_DIMENSION => Ok(()),
        dim => Err(wrong_dimension(
            format!("dimension of {}", source.name()),
            dim,
        )),
    }
}

pub(crate) fn wrong_dimension(what: impl Into<String>, dim: usize) -> Error {
    let reason = format!("an index has 1 to {MAX_DIMENSION} dimensions");
    Error::call(
        what,
        dim,
        reason,
        "Give vectors with a dimension in this range",
    )
}

pub(crate) fn check_code_bytes(code_bytes: usize, dim: usize) -> Result<(), Error> {
    if code_bytes == 0 || code_bytes > dim {
        let reason = "each byte encodes at least one dimension";
        let remedy = format!("Pass 1 to {dim}, the number of dimensions");
        let what = "number of code bytes";
        return Err(Error::call(what, code_bytes, reason, remedy));
    }
    Ok(())
}

fn shape_of(reader: &StreamReader, file: &str) -> Result<(usize, usize, Option<LowCodes>), Error> {
    let mut fields = reader.fields();
    let dim = fields.u32("dimension")? as usize;
    let code_bytes = fields.u32("bytes of a code")? as usize;
    let mut low_codes = None;
    if !fields.is_at_end() {
        let order = fields.u32("order of the centroids")?;
        low_codes = (ORDERS.iter())
            .find(|(known, _)| *known == order)
            .map(|&(_, low_codes)| low_codes);
        if low_codes.is_none() {
            let what = format!(
                "the order of the centroids is {order}; this version of StratANN knows only 1 and 2"
            );
            return Err(damaged(file, what));
        }
    }
    fields.end()?;
    let length = reader.payload_length();
    let each = Codebook::content_bytes(1, low_codes) as u64;
    let expected = each.saturating_mul(dim as u64);
    if length != expected {
        let what = format!(
            "{length} bytes of centroids; {dim} dimensions need {expected} ({each} bytes for each dimension)"
        );
        return Err(damaged(file, what));
    }
    let high = |low_codes: LowCodes| low_codes.high_bytes(code_bytes);
    let longest = low_codes.map_or(code_bytes, high);
    check_code_bytes(longest, dim).map_err(|error| damaged(file, error.to_string()))?;
    Ok((dim, code_bytes, low_codes))
}

fn damaged(file: &str, what: String) -> Error {
    Error::Damaged {
        file: file.to_owned(),
        what,
    }
}

fn hash_of(centroids: &[u8]) -> String {
    blake3::hash(centroids).to_hex().to_string()
}

#[cfg(test)]
mod tests;
