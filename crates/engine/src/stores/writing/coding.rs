//! The codecs of lists and vectors, trained on samples.
//!
//! | compression | lists | vectors |
//! |---|---|---|
//! | raw | Elias–Fano | uncompressed |
//! | paper | Elias–Fano | XOR with the chunk's base if shorter; a Huffman table for each segment |
//! | best | the shorter of Elias–Fano and gaps | the shortest codec on a sample of the segment |

use std::ops::Range;

use stratann_codec::{
    Element, ListModel, ListTrainer, NestedModel, SegmentModel, Shape, VectorCodec, elias_fano,
    xor_delta,
};

use super::Writing;
use crate::codebook;
use crate::data::VectorSource;
use crate::graph::Lists;
use crate::stores::vectors::model::VectorModel;
use crate::{Compression, Error};

const SAMPLED_LISTS: u64 = 10_000;
/// The number of Huffman tables for the gaps in lists. More tables make lists hardly shorter.
const LIST_TABLES: usize = 4;
/// The bytes of the sample for the codec of a segment, and its least number of vectors.
const SAMPLED_BYTES: usize = 4 << 20;
const SAMPLED_VECTORS: usize = 64;
/// The bytes of vectors that are read together to count byte values, if there are no chunks.
const COUNTED_BYTES: usize = 4 << 20;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Coding {
    compression: Compression,
    vectors: Shape,
    nodes: u32,
    degree: usize,
}

impl Coding {
    pub(crate) fn new(
        source: &dyn VectorSource,
        degree: usize,
        compression: Compression,
    ) -> Result<Self, Error> {
        let (element, dim) = (codec_element(source.element()), source.dim());
        let vectors =
            Shape::new(element, dim).map_err(|_| codebook::wrong_dimension("dimension", dim))?;
        Ok(Self {
            compression,
            vectors,
            nodes: source.rows() as u32,
            degree,
        })
    }

    pub(crate) fn compression(&self) -> Compression {
        self.compression
    }

    pub(crate) fn largest_list(&self) -> usize {
        elias_fano::slot_bytes(self.degree, self.nodes)
    }

    pub(crate) fn largest_vector(&self) -> usize {
        self.stored().max_encoded_bytes()
    }

    pub(crate) fn vector_bytes(&self) -> usize {
        self.vectors.vector_bytes()
    }

    /// Trains on evenly spaced lists. In locality order, each neighbourhood has its share of the
    /// sample.
    pub(crate) fn learn_lists(&self, lists: &mut Lists) -> Result<ListModel, Error> {
        let usual = self.degree as u32;
        if self.compression != Compression::Best {
            return Ok(ListModel::elias_fano(self.nodes, usual));
        }
        let mut trainer = ListTrainer::new(self.nodes, usual);
        let mut list = Vec::new();
        for node in even(0..self.nodes, SAMPLED_LISTS) {
            lists.read(node, &mut list)?;
            list.sort_unstable();
            trainer
                .add(node, &list)
                .map_err(|error| Error::codec(format!("the list of node {node}"), error))?;
        }
        Ok(trainer.finish(LIST_TABLES))
    }

    /// With `chunk`, each group of `chunk` vectors may have a base, from which the vectors differ
    /// in few bits.
    pub(crate) fn learn_vectors(
        &self,
        build: &Writing<'_>,
        rows: &dyn VectorSource,
        segment: Range<u32>,
        chunk: Option<u32>,
    ) -> Result<SegmentCode, Error> {
        let first = segment.start;
        let plain = |model| SegmentCode {
            model: VectorModel::Whole(model),
            first,
            chunk: u32::MAX,
            bases: Vec::new(),
        };
        Ok(match self.compression {
            Compression::Raw => plain(self.stored()),
            Compression::Best => plain(SegmentModel::train(
                self.vectors,
                &self.sample(rows, segment)?,
            )),
            Compression::Paper => self.count(build, rows, segment, chunk)?,
        })
    }

    fn sample(&self, rows: &dyn VectorSource, segment: Range<u32>) -> Result<Vec<u8>, Error> {
        self.sample_of(rows, segment, SAMPLED_VECTORS)
    }

    /// The sample has at least `least` vectors, or all vectors of a smaller segment.
    fn sample_of(
        &self,
        rows: &dyn VectorSource,
        segment: Range<u32>,
        least: usize,
    ) -> Result<Vec<u8>, Error> {
        let count = (SAMPLED_BYTES / self.vector_bytes()).max(least);
        let nodes: Vec<u32> = even(segment, count as u64).collect();
        let mut sample = vec![0; nodes.len() * self.vector_bytes()];
        rows.gather(&nodes, &mut sample)?;
        Ok(sample)
    }

    pub(crate) fn largest_parts(&self) -> (usize, usize) {
        (self.vectors.dim() + 1, self.vectors.vector_bytes() + 1)
    }

    pub(crate) fn expected_vector(&self, rows: &dyn VectorSource) -> Result<f64, Error> {
        let sample = self.sample_all(rows)?;
        let huffman = || SegmentModel::train_codec(self.vectors, VectorCodec::Huffman, &sample);
        let model = match self.compression {
            Compression::Raw => self.stored(),
            Compression::Paper => huffman().unwrap_or_else(|| self.stored()),
            Compression::Best => SegmentModel::train(self.vectors, &sample),
        };
        let mut code = Vec::new();
        for vector in sample.chunks_exact(self.vector_bytes()) {
            let encoded = model.encode(vector, None, &mut code);
            encoded.map_err(|error| Error::codec("a sample of the vectors", error))?;
        }
        let vectors = (sample.len() / self.vector_bytes()).max(1);
        Ok(code.len() as f64 / vectors as f64)
    }

    /// The mean bytes of the leading part and of the trailing part, with the middle rounding step.
    /// With any step, both parts together take about the same space.
    pub(crate) fn expected_parts(&self, rows: &dyn VectorSource) -> Result<(f64, f64), Error> {
        let sample = self.sample_all(rows)?;
        let models = self.nested_of(&sample);
        let Some(model) = models.get(models.len() / 2) else {
            // No rounding step suits such vectors. So the trailing part is the whole vector.
            return Ok((0.0, self.largest_vector() as f64));
        };
        let (mut leading, mut trailing) = (Vec::new(), Vec::new());
        let sampled = sample.chunks_exact(self.vector_bytes());
        let count = sampled.len().max(1) as f64;
        for vector in sampled {
            let encoded = model.encode(vector, &mut leading, &mut trailing);
            encoded.map_err(|error| Error::codec("a sample of the vectors", error))?;
        }
        Ok((leading.len() as f64 / count, trailing.len() as f64 / count))
    }

    pub(crate) fn sample_all(&self, rows: &dyn VectorSource) -> Result<Vec<u8>, Error> {
        self.sample_of(rows, 0..self.nodes, 4 * SAMPLED_VECTORS)
    }

    /// The models for vectors in two parts, one for each suitable rounding step. The model with the
    /// coarsest step comes first.
    pub(crate) fn nested_of(&self, sample: &[u8]) -> Vec<NestedModel> {
        let steps = NestedModel::steps(self.vectors, sample).into_iter();
        steps
            .filter_map(|step| NestedModel::train(self.vectors, step, sample))
            .collect()
    }

    pub(crate) fn some_nodes(&self, count: u64) -> impl Iterator<Item = u32> + use<> {
        even(0..self.nodes, count)
    }

    pub(crate) fn learn_parts(
        &self,
        rows: &dyn VectorSource,
        segment: Range<u32>,
        step: u8,
    ) -> Result<SegmentCode, Error> {
        let first = segment.start;
        let sample = self.sample(rows, segment)?;
        let model = NestedModel::train(self.vectors, step, &sample).ok_or_else(|| {
            Error::call(
                "rounding step",
                step,
                "vectors of this element type have no such step",
                "Choose another layout",
            )
        })?;
        Ok(SegmentCode {
            model: VectorModel::Trailing(model),
            first,
            chunk: u32::MAX,
            bases: Vec::new(),
        })
    }

    /// The first pass over a segment (DecoupleVS §3.3). It decides for each chunk whether the chunk
    /// has a base, and counts byte values for the Huffman table.
    fn count(
        &self,
        build: &Writing<'_>,
        rows: &dyn VectorSource,
        segment: Range<u32>,
        chunk: Option<u32>,
    ) -> Result<SegmentCode, Error> {
        let size = self.vector_bytes();
        let step = chunk.unwrap_or((COUNTED_BYTES / size).max(1) as u32);
        let mut counts = xor_delta::ByteCounts::new();
        let (mut bases, mut vectors) = (Vec::new(), Vec::new());
        for start in segment.clone().step_by(step as usize) {
            build.go_on()?;
            let count = step.min(segment.end - start);
            vectors.resize(count as usize * size, 0);
            rows.read(start as usize, &mut vectors)?;
            let base = chunk.and_then(|_| xor_delta::choose_base(&vectors, size));
            counts.add(&vectors, base.as_deref());
            bases.push(base);
        }
        Ok(SegmentCode {
            model: VectorModel::Whole(SegmentModel::huffman(self.vectors, &counts)),
            first: segment.start,
            chunk: step,
            bases,
        })
    }

    /// Stores vectors uncompressed. Without a sample, it is unknown whether another codec is
    /// shorter.
    fn stored(&self) -> SegmentModel {
        SegmentModel::train(self.vectors, &[])
    }
}

pub(crate) struct SegmentCode {
    pub(crate) model: VectorModel,
    first: u32,
    chunk: u32,
    bases: Vec<Option<Vec<u8>>>,
}

impl SegmentCode {
    pub(crate) fn base(&self, node: u32) -> Option<&[u8]> {
        let chunk = (node - self.first) / self.chunk;
        self.bases.get(chunk as usize)?.as_deref()
    }

    pub(crate) fn name(&self) -> &'static str {
        let model = match &self.model {
            VectorModel::Whole(model) => model,
            VectorModel::Trailing(_) => return "nested",
        };
        match model.codec() {
            VectorCodec::Stored => "stored",
            VectorCodec::Huffman if self.bases.iter().any(Option::is_some) => "xor+huffman",
            VectorCodec::Huffman => "huffman",
            VectorCodec::FloatSplit => "float-split",
            VectorCodec::Classes => "classes",
            _ => "other",
        }
    }
}

/// At most `count` ascending numbers, spread evenly over `range`.
fn even(range: Range<u32>, count: u64) -> impl Iterator<Item = u32> {
    let length = u64::from(range.end - range.start);
    let count = count.min(length);
    (0..count).map(move |i| range.start + (i * length / count) as u32)
}

fn codec_element(element: stratann_vector::Element) -> Element {
    match element {
        stratann_vector::Element::F32 => Element::F32,
        stratann_vector::Element::F16 => Element::F16,
        stratann_vector::Element::U8 => Element::U8,
        stratann_vector::Element::I8 => Element::I8,
    }
}
