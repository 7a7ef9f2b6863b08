//! The codebook of a build: given by the caller, read from a savepoint, or trained by the build.

use stratann_vector::{Training, to_f32};

use super::{Build, facts};
use crate::Error;
use crate::codebook::{self, Codebook};
use crate::data::VectorSource;
use crate::graph::Constructed;
use crate::progress::Stage;
use crate::savepoint::{Content, What};

const PIECE: usize = 256;

impl Build<'_> {
    pub(super) fn codebook(&self, graph: &Constructed) -> Result<Codebook, Error> {
        if let Some(codebook) = &self.writing.options.codebook {
            return Ok(codebook.clone());
        }
        let Some(savepoints) = self.savepoints else {
            return self.train(graph);
        };
        let (place, input) = ((What::Codebook, 0), savepoints.input_of(&[], &graph.order));
        let (dim, code_bytes) = (self.writing.source.dim(), self.facts.code_bytes);
        let low_codes = facts::low_codes(self.writing.options)?;
        let read = |content: &mut Content| {
            let mut centroids = vec![0; Codebook::content_bytes(dim, low_codes)];
            content.bytes(&mut centroids)?;
            let kept = Codebook::of_content(&centroids, dim, code_bytes, low_codes);
            kept.map_err(|error| content.wrong(error))
        };
        if let Some(codebook) = savepoints.read(place, &input, read) {
            savepoints.resumed("codebook".to_owned());
            return Ok(codebook);
        }
        let codebook = self.train(graph)?;
        let (_, centroids) = codebook.file();
        let bytes = centroids.len() as u64;
        savepoints.keep(place, &input, bytes, self.writing.progress, |sink| {
            sink.bytes(&centroids)
        });
        Ok(codebook)
    }

    fn train(&self, graph: &Constructed) -> Result<Codebook, Error> {
        let (rows, dim) = (
            graph.rows.in_order(&graph.order, self.writing.source),
            self.writing.source.dim(),
        );
        let nodes = self
            .writing
            .sample(self.writing.source.rows().min(self.facts.training_rows));
        let mut floats = vec![0.0; nodes.len() * dim];
        let mut bytes = Vec::new();
        // The sample is read in pieces, so that only one copy of it is in memory.
        for (nodes, floats) in nodes.chunks(PIECE).zip(floats.chunks_mut(PIECE * dim)) {
            bytes.resize(nodes.len() * rows.row_bytes(), 0);
            rows.gather(nodes, &mut bytes)?;
            to_f32(rows.element(), &bytes, floats);
        }
        drop(bytes);
        let _stage = Stage::begin(self.writing.progress, "training codes", 1);
        let (metric, training) = (self.writing.options.metric, self.training());
        let (code_bytes, low_codes) = (
            self.facts.code_bytes,
            facts::low_codes(self.writing.options)?,
        );
        Codebook::of_sample(floats, dim, code_bytes, metric, &training, low_codes)
    }

    /// The bytes of the sample as floats. Each thread also has a copy of one chunk of dimensions.
    pub(super) fn training_bytes(&self) -> u64 {
        if self.writing.options.codebook.is_some() {
            return 0;
        }
        let rows = self.writing.source.rows().min(self.facts.training_rows) as u64;
        let dim = self.writing.source.dim();
        let chunk = dim.div_ceil(self.facts.code_bytes.max(1));
        let threads = self
            .writing
            .options
            .threads
            .clamp(1, self.facts.code_bytes.max(1));
        rows * 4 * (dim + threads * (chunk + 4)) as u64
    }

    fn training(&self) -> Training {
        codebook::training(
            self.writing.source.dim(),
            self.writing.options.threads,
            self.writing.options.seed,
        )
    }
}
