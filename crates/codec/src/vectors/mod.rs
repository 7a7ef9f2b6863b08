//! Codes each vector alone, with a model that is trained on a sample of the vectors of a segment.
//!
//! ```text
//! offset  size  contents (a segment's model)
//!      0     1  version, 1
//!      1     1  codec: 0 stored, 1 Huffman, 2 split floats, 3 classes
//!      2     1  element code: 0 f32, 1 f16, 2 u8, 3 i8
//!      3     1  zero
//!      4     4  dimension
//!      8     .  the codec's own fields; see its module
//! ```
//!
//! The code of a vector does not show where the code ends, so the storage must record its length. A
//! code is at most one byte longer than its vector.

mod classes;
mod float_split;
mod huffman;
mod lanes;
mod nested;
pub mod xor_delta;

use crate::error::CodecError;
use crate::model::Reader;
use classes::Classes;
use float_split::FloatSplit;
use huffman::Huffman;

pub use nested::NestedModel;

const VERSION: u8 = 1;
const MODEL: &str = "model of a segment's vectors";
const MAX_VECTOR_BYTES: usize = 1 << 18;

/// The type of a vector's elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Element {
    /// 32-bit floating point.
    F32,
    /// 16-bit floating point (IEEE 754 binary16).
    F16,
    /// Unsigned byte.
    U8,
    /// Signed byte.
    I8,
}

impl Element {
    /// Bytes of one element.
    pub const fn size(self) -> usize {
        match self {
            Element::F32 => 4,
            Element::F16 => 2,
            Element::U8 | Element::I8 => 1,
        }
    }

    /// The number of the type in files, as in `stratann_vector`.
    pub const fn code(self) -> u8 {
        match self {
            Element::F32 => 0,
            Element::F16 => 1,
            Element::U8 => 2,
            Element::I8 => 3,
        }
    }

    /// The type with this number in a file; `None` for an unknown number.
    pub fn from_code(code: u8) -> Option<Element> {
        [Element::F32, Element::F16, Element::U8, Element::I8]
            .get(usize::from(code))
            .copied()
    }
}

/// The element type and the dimension of a segment's vectors.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Shape {
    element: Element,
    dim: usize,
}

impl Shape {
    /// Creates the shape of vectors with `dim` elements, 1 to 65,536.
    pub fn new(element: Element, dim: usize) -> Result<Shape, CodecError> {
        if dim == 0 || dim * element.size() > MAX_VECTOR_BYTES || dim > MAX_VECTOR_BYTES / 4 {
            return Err(CodecError::Malformed {
                what: "dimension",
                found: dim as u64,
                expected: "1 to 65536",
            });
        }
        Ok(Shape { element, dim })
    }

    /// The type of the elements.
    pub fn element(&self) -> Element {
        self.element
    }

    /// The number of elements of a vector.
    pub fn dim(&self) -> usize {
        self.dim
    }

    /// The bytes of an uncompressed vector.
    pub fn vector_bytes(&self) -> usize {
        self.dim * self.element.size()
    }
}

/// The codec of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum VectorCodec {
    /// The vectors are stored unchanged, if no other codec makes them at least 1 % shorter.
    Stored = 0,
    /// One Huffman table, with or without a base vector for each chunk, as in the DecoupleVS paper.
    Huffman = 1,
    /// The exponents are Huffman-coded. Signs and mantissas are stored unchanged.
    FloatSplit = 2,
    /// The group of the vector and the position of a byte select one of a few Huffman tables.
    Classes = 3,
}

/// The model that encodes and decodes the vectors of a segment.
#[derive(Debug, Clone)]
pub struct SegmentModel {
    shape: Shape,
    codec: Codec,
}

#[derive(Debug, Clone)]
enum Codec {
    Stored,
    Huffman(Huffman),
    FloatSplit(FloatSplit),
    Classes(Classes),
}

impl SegmentModel {
    /// Trains all codecs on seven of each eight vectors, and chooses the codec with the shortest
    /// codes for the remaining vectors. A slower codec must be at least 1 % shorter than a faster
    /// one. At most about 4 MiB of `sample` are used.
    pub fn train(shape: Shape, sample: &[u8]) -> SegmentModel {
        let (training, held_out) = split(shape.vector_bytes(), sample);
        // With fewer than eight vectors, no vector is left for measuring.
        let measured = if held_out.is_empty() {
            &training
        } else {
            &held_out
        };
        let mut best = SegmentModel {
            shape,
            codec: Codec::Stored,
        };
        let mut least = measured.len();
        let mut code = Vec::new();
        // The candidates are sorted by the speed of decoding, fastest first.
        let candidates = match shape.element {
            Element::F32 | Element::F16 => [
                VectorCodec::FloatSplit,
                VectorCodec::Huffman,
                VectorCodec::Classes,
            ]
            .as_slice(),
            Element::U8 | Element::I8 => &[VectorCodec::Huffman, VectorCodec::Classes],
        };
        for &codec in candidates {
            if codec == VectorCodec::Classes && !best.classes_may_win(&training) {
                continue;
            }
            let Some(model) = SegmentModel::train_on(shape, codec, &training) else {
                continue;
            };
            code.clear();
            for vector in measured.chunks_exact(shape.vector_bytes()) {
                model.encode_unchecked(vector, None, &mut code);
            }
            if code.len() < least - least / 100 {
                least = code.len();
                best = model;
            }
        }
        best
    }

    /// Whether to train `classes` fully, which takes longer than all other steps. For floats, a
    /// trial with few groups and few vectors decides: on package-text, the lengths of its codes
    /// differ by less than 0.1 % from codes with many groups. For bytes, `classes` usually wins.
    fn classes_may_win(&self, training: &[u8]) -> bool {
        const FEW: usize = 8;
        const VECTORS: usize = 4 * classes::FEWEST_SAMPLES / 3 + 1;
        if let Element::U8 | Element::I8 = self.shape.element {
            return true;
        }
        let bytes = self.shape.vector_bytes();
        let vectors = training.len() / bytes;
        if vectors <= VECTORS {
            return true;
        }
        // Every fourth vector is measured, and the others are for training.
        let some = (0..VECTORS).map(|i| &training[i * vectors / VECTORS * bytes..][..bytes]);
        let (mut trained, mut measured) = (Vec::new(), Vec::new());
        for (i, vector) in some.enumerate() {
            if i % 4 == 3 {
                measured.extend_from_slice(vector);
            } else {
                trained.extend_from_slice(vector);
            }
        }
        let Some(few) = Classes::train(self.shape.element, bytes, &trained, FEW) else {
            return true;
        };
        let few = SegmentModel {
            shape: self.shape,
            codec: Codec::Classes(few),
        };
        let size = |model: &SegmentModel| {
            let mut code = Vec::new();
            for vector in measured.chunks_exact(bytes) {
                model.encode_unchecked(vector, None, &mut code);
            }
            code.len()
        };
        size(&few) < size(self) / 500 * 499
    }

    /// Trains a model of a given codec, if the elements suit it and the sample is large enough.
    pub fn train_codec(shape: Shape, codec: VectorCodec, sample: &[u8]) -> Option<SegmentModel> {
        let (training, held_out) = split(shape.vector_bytes(), sample);
        SegmentModel::train_on(shape, codec, &[training, held_out].concat())
    }

    fn train_on(shape: Shape, codec: VectorCodec, sample: &[u8]) -> Option<SegmentModel> {
        let codec = match codec {
            VectorCodec::Stored => Codec::Stored,
            VectorCodec::Huffman => {
                let mut counts = xor_delta::ByteCounts::new();
                counts.add(sample, None);
                return Some(SegmentModel::huffman(shape, &counts));
            }
            VectorCodec::FloatSplit => {
                Codec::FloatSplit(FloatSplit::train(shape.element, shape.dim, sample)?)
            }
            VectorCodec::Classes => Codec::Classes(Classes::train(
                shape.element,
                shape.vector_bytes(),
                sample,
                GROUPS,
            )?),
        };
        Some(SegmentModel { shape, codec })
    }

    /// The model of the DecoupleVS paper: one Huffman table, for bytes after the XOR with base
    /// vectors.
    pub fn huffman(shape: Shape, counts: &xor_delta::ByteCounts) -> SegmentModel {
        SegmentModel {
            shape,
            codec: Codec::Huffman(Huffman::train(&counts.0)),
        }
    }

    /// The element type and the dimension.
    pub fn shape(&self) -> Shape {
        self.shape
    }

    /// The codec.
    pub fn codec(&self) -> VectorCodec {
        match self.codec {
            Codec::Stored => VectorCodec::Stored,
            Codec::Huffman(_) => VectorCodec::Huffman,
            Codec::FloatSplit(_) => VectorCodec::FloatSplit,
            Codec::Classes(_) => VectorCodec::Classes,
        }
    }

    /// The size of the longest code in bytes: one byte more than the vector.
    pub fn max_encoded_bytes(&self) -> usize {
        self.shape.vector_bytes() + 1
    }

    /// Appends the code of a vector. Only [`VectorCodec::Huffman`] accepts a `base` vector.
    pub fn encode(
        &self,
        vector: &[u8],
        base: Option<&[u8]>,
        out: &mut Vec<u8>,
    ) -> Result<(), CodecError> {
        self.check(vector.len(), base)?;
        self.encode_unchecked(vector, base, out);
        Ok(())
    }

    fn encode_unchecked(&self, vector: &[u8], base: Option<&[u8]>, out: &mut Vec<u8>) {
        match &self.codec {
            Codec::Stored => out.extend_from_slice(vector),
            Codec::Huffman(huffman) => huffman.encode(vector, base, out),
            Codec::FloatSplit(split) => split.encode(vector, out),
            Codec::Classes(classes) => classes.encode(vector, out),
        }
    }

    /// Decodes a vector into `out`, of the vector's length. After an error, `out` is unspecified.
    #[inline]
    pub fn decode(
        &self,
        bytes: &[u8],
        base: Option<&[u8]>,
        out: &mut [u8],
    ) -> Result<(), CodecError> {
        self.check(out.len(), base)?;
        match &self.codec {
            Codec::Stored => copy_stored("vector", bytes, 0, out),
            Codec::Huffman(huffman) => huffman.decode(bytes, base, out),
            Codec::FloatSplit(split) => split.decode(bytes, out),
            Codec::Classes(classes) => classes.decode(bytes, out),
        }
    }

    #[inline]
    fn check(&self, found: usize, base: Option<&[u8]>) -> Result<(), CodecError> {
        let expected = self.shape.vector_bytes();
        if found != expected {
            return Err(CodecError::Length {
                what: "vector",
                found,
                expected,
            });
        }
        match base {
            Some(_) if !matches!(self.codec, Codec::Huffman(_)) => Err(CodecError::Base(
                "a base vector was given, but the codec of the segment uses no base vector",
            )),
            Some(base) if base.len() != expected => Err(CodecError::Length {
                what: "base vector",
                found: base.len(),
                expected,
            }),
            _ => Ok(()),
        }
    }

    /// Encodes the model.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = vec![VERSION, self.codec() as u8, self.shape.element.code(), 0];
        out.extend((self.shape.dim as u32).to_le_bytes());
        match &self.codec {
            Codec::Stored => {}
            Codec::Huffman(huffman) => huffman.write(&mut out),
            Codec::FloatSplit(split) => split.write(&mut out),
            Codec::Classes(classes) => classes.write(&mut out),
        }
        out
    }

    /// Decodes a model that [`SegmentModel::to_bytes`] encoded.
    pub fn from_bytes(bytes: &[u8]) -> Result<SegmentModel, CodecError> {
        let mut reader = Reader::new(MODEL, VERSION, bytes)?;
        let codec = reader.u8()?;
        let element = reader.u8()?;
        let element = Element::from_code(element)
            .ok_or_else(|| reader.malformed("model of a segment, element", element, "0 to 3"))?;
        let zero = reader.u8()?;
        if zero != 0 {
            return Err(reader.malformed("model of a segment, byte 3", zero, "0"));
        }
        let shape = Shape::new(element, reader.u32()? as usize)?;
        let codec = match codec {
            0 => Codec::Stored,
            1 => Codec::Huffman(Huffman::read(&mut reader)?),
            2 => Codec::FloatSplit(FloatSplit::read(element, shape.dim, &mut reader)?),
            3 => Codec::Classes(Classes::read(shape.vector_bytes(), &mut reader)?),
            other => return Err(reader.malformed("model of a segment, codec", other, "0 to 3")),
        };
        reader.finish()?;
        Ok(SegmentModel { shape, codec })
    }
}

const GROUPS: usize = 128;

const MAX_SAMPLE: usize = 4 << 20;

/// Divides a sample into vectors for training and vectors for measuring. Both parts have vectors
/// from the whole sample.
fn split(vector_bytes: usize, sample: &[u8]) -> (Vec<u8>, Vec<u8>) {
    let count = sample.len() / vector_bytes;
    let taken = count.min((MAX_SAMPLE / vector_bytes).max(64));
    let (mut training, mut held_out) = (Vec::new(), Vec::new());
    for i in 0..taken {
        let at = (i as u64 * count as u64 / taken as u64) as usize * vector_bytes;
        let to = if i % 8 == 7 {
            &mut held_out
        } else {
            &mut training
        };
        to.extend_from_slice(&sample[at..at + vector_bytes]);
    }
    (training, held_out)
}

/// Copies the bytes after the header, which the caller has checked. They must fill `out`.
fn copy_stored(
    what: &'static str,
    bytes: &[u8],
    header: usize,
    out: &mut [u8],
) -> Result<(), CodecError> {
    match bytes.get(header..) {
        Some(vector) if vector.len() == out.len() => {
            out.copy_from_slice(vector);
            Ok(())
        }
        _ => Err(CodecError::Length {
            what,
            found: bytes.len(),
            expected: header + out.len(),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_floats_classes_are_not_trained_in_vain() {
        let shape = Shape::new(Element::F32, 32).unwrap();
        let mut state = 1u32;
        let mut value = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / (1 << 24) as f32 - 0.5
        };
        let sample: Vec<u8> = (0..4_000 * 32)
            .flat_map(|_| value().to_le_bytes())
            .collect();
        let best = SegmentModel::train_on(shape, VectorCodec::FloatSplit, &sample).unwrap();
        assert!(!best.classes_may_win(&sample));
        // For so few vectors, the function returns true without a trial.
        assert!(best.classes_may_win(&sample[..1_000 * 128]));
        // Each position has only a few different bytes, a regularity that only `classes` uses.
        let sample: Vec<u8> = (0..4_000 * 32)
            .flat_map(|i| [i as u8 / 8 * 8 + (i / 32 % 3) as u8; 4])
            .collect();
        let stored = SegmentModel {
            shape,
            codec: Codec::Stored,
        };
        assert!(stored.classes_may_win(&sample));
    }
}
