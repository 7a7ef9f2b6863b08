//! The models that code the vectors of segments: whole vectors, or trailing parts of vectors.

use stratann_codec::{CodecError, NestedModel, SegmentModel, Shape, VectorCodec};
use stratann_layout::Manifest;

use crate::stores::VectorsAt;

/// The model of a file's vectors.
pub(crate) enum VectorModel {
    /// Each record is a whole vector.
    Whole(SegmentModel),
    /// Each record is the trailing part of a vector, whose leading part is beside its list.
    Trailing(NestedModel),
}

impl VectorModel {
    /// Parses the model. `vectors` says where the vectors are stored.
    pub(crate) fn from_bytes(bytes: &[u8], vectors: VectorsAt) -> Result<Self, CodecError> {
        Ok(match vectors {
            VectorsAt::Records | VectorsAt::Segments => {
                Self::Whole(SegmentModel::from_bytes(bytes)?)
            }
            VectorsAt::Parts => Self::Trailing(NestedModel::from_bytes(bytes)?),
        })
    }

    /// Does the same as [`from_bytes`](VectorModel::from_bytes), but refuses a model that does not
    /// fit the vectors of an index.
    pub(crate) fn of_index(
        bytes: &[u8],
        vectors: VectorsAt,
        manifest: &Manifest,
    ) -> Result<Self, String> {
        let model = Self::from_bytes(bytes, vectors).map_err(|error| error.to_string())?;
        let shape = model.shape();
        let (element, dimension) = (manifest.element, manifest.dimension);
        if (shape.element().code(), shape.dim()) != (element.code(), dimension as usize) {
            let (found, dim) = (shape.element(), shape.dim());
            return Err(format!(
                "it is for {found:?} vectors of {dim} dimensions; the index has {element} vectors of {dimension}"
            ));
        }
        Ok(model)
    }

    /// Returns the model as bytes.
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        match self {
            Self::Whole(model) => model.to_bytes(),
            Self::Trailing(model) => model.to_bytes(),
        }
    }

    /// Whether vectors may be coded as differences from the base of their chunk.
    pub(crate) fn has_bases(&self) -> bool {
        match self {
            Self::Whole(model) => model.codec() == VectorCodec::Huffman,
            Self::Trailing(_) => false,
        }
    }

    /// The bytes of memory of the model's tables. The tables for whole vectors are small, so they
    /// are not counted.
    pub(crate) fn memory_bytes(&self) -> usize {
        match self {
            Self::Whole(_) => 0,
            Self::Trailing(model) => model.memory_bytes(),
        }
    }

    /// The element type and the dimension.
    fn shape(&self) -> Shape {
        match self {
            Self::Whole(model) => model.shape(),
            Self::Trailing(model) => model.shape(),
        }
    }

    /// Decodes a vector into `out`. `bytes` are the vector's bytes in the file. If the model is for
    /// trailing parts, `leading` is the vector's leading part.
    #[inline]
    pub(crate) fn decode(
        &self,
        leading: &[u8],
        bytes: &[u8],
        base: Option<&[u8]>,
        out: &mut [u8],
    ) -> Result<(), CodecError> {
        match self {
            Self::Whole(model) => model.decode(bytes, base, out),
            Self::Trailing(model) => model.decode(leading, bytes, out),
        }
    }
}
