//! The models that code the vectors of segments: whole vectors, or trailing parts of vectors.

use stratann_codec::{CodecError, NestedModel, SegmentModel, Shape, VectorCodec};
use stratann_layout::Manifest;

use crate::stores::VectorsAt;

pub(crate) enum VectorModel {
    Whole(SegmentModel),
    /// The leading part of the vector is beside its list.
    Trailing(NestedModel),
}

impl VectorModel {
    pub(crate) fn from_bytes(bytes: &[u8], vectors: VectorsAt) -> Result<Self, CodecError> {
        Ok(match vectors {
            VectorsAt::Records | VectorsAt::Segments => {
                Self::Whole(SegmentModel::from_bytes(bytes)?)
            }
            VectorsAt::Parts => Self::Trailing(NestedModel::from_bytes(bytes)?),
        })
    }

    /// Refuses a model that does not fit the vectors of an index.
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

    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        match self {
            Self::Whole(model) => model.to_bytes(),
            Self::Trailing(model) => model.to_bytes(),
        }
    }

    pub(crate) fn has_bases(&self) -> bool {
        match self {
            Self::Whole(model) => model.codec() == VectorCodec::Huffman,
            Self::Trailing(_) => false,
        }
    }

    /// The small tables of whole vectors are not counted.
    pub(crate) fn memory_bytes(&self) -> usize {
        match self {
            Self::Whole(_) => 0,
            Self::Trailing(model) => model.memory_bytes(),
        }
    }

    fn shape(&self) -> Shape {
        match self {
            Self::Whole(model) => model.shape(),
            Self::Trailing(model) => model.shape(),
        }
    }

    /// `bytes` is a vector in the file. A trailing part also needs the `leading` part.
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
