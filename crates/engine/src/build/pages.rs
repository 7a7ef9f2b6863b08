//! The sweep that writes the collection in node order: pages of nodes and their codes, side by side.

use stratann_layout::{FileEntry, FileKind, PageBuilder, StreamWriter, header};
use stratann_tier::{TierError, VolumeFile};
use stratann_vector::{Metric, ProductQuantizer, normalize, to_f32};

use super::Build;
use crate::Error;
use crate::graph::Constructed;
use crate::progress::Stage;

/// Nodes handled at a time.
const CHUNK: usize = 4096;
/// Bytes of pages collected for one write.
const WRITE_BYTES: usize = 1 << 20;

/// A file that is written front to back.
pub(super) struct Sequential {
    file: Box<dyn VolumeFile>,
    offset: u64,
}

impl Sequential {
    pub(super) fn new(file: Box<dyn VolumeFile>) -> Self {
        Self { file, offset: 0 }
    }

    pub(super) fn write(&mut self, bytes: &[u8]) -> Result<(), TierError> {
        self.file.write_at(self.offset, bytes)?;
        self.offset += bytes.len() as u64;
        Ok(())
    }

    /// Makes the file durable. Returns its length.
    pub(super) fn finish(mut self) -> Result<u64, TierError> {
        self.file.sync()?;
        Ok(self.offset)
    }
}

impl Build<'_> {
    /// Writes the graph's pages and the codes.
    pub(super) fn write_pages(
        &mut self,
        graph: &mut Constructed,
        quantizer: &ProductQuantizer,
    ) -> Result<Vec<FileEntry>, Error> {
        let (source, shape) = (graph.rows.source(self.source), &self.facts.shape);
        let (rows, row_bytes, dim) = (source.rows(), source.row_bytes(), source.dim());
        let graph_header = shape.header(rows as u64);
        let mut pages = Sequential::new(self.checkpoint.create(FileKind::Graph, None)?);
        pages.write(&graph_header.encode())?;
        let mut codes_file = Sequential::new(self.checkpoint.create(FileKind::Codes, None)?);
        let code_bytes = quantizer.code_bytes();
        let mut codes_writer = StreamWriter::new(FileKind::Codes, (rows * code_bytes) as u64, &[]);

        let mut builder = PageBuilder::new(*shape);
        let mut page = 0;
        let mut buffer = Vec::with_capacity(WRITE_BYTES + shape.page_bytes());
        let mut vectors = vec![0; CHUNK.min(rows) * row_bytes];
        let mut floats = vec![0.0; CHUNK.min(rows) * dim];
        let mut codes = vec![0; CHUNK.min(rows) * code_bytes];
        let mut list = Vec::new();
        let _stage = Stage::begin(self.progress, "writing", rows as u64);
        for first in (0..rows).step_by(CHUNK) {
            self.go_on()?;
            let count = CHUNK.min(rows - first);
            let vectors = &mut vectors[..count * row_bytes];
            source.read(first, vectors)?;

            let floats = &mut floats[..count * dim];
            to_f32(source.element(), vectors, floats);
            if self.options.metric == Metric::Cosine {
                floats.chunks_exact_mut(dim).for_each(|row| {
                    normalize(row);
                });
            }
            let codes = &mut codes[..count * code_bytes];
            quantizer.encode(floats, codes, self.options.threads);
            codes_writer.push(codes, &mut |blocks| codes_file.write(blocks))?;

            for (i, vector) in vectors.chunks_exact(row_bytes).enumerate() {
                let row = graph.order[first + i] as usize;
                let id = self.options.ids.as_ref().map_or(row as u64, |ids| ids[row]);
                graph.lists.read((first + i) as u32, &mut list)?;
                builder.push(id, vector, &list);
                if builder.is_full() || first + i + 1 == rows {
                    buffer.extend_from_slice(builder.finish(page));
                    builder.clear();
                    page += 1;
                    if buffer.len() >= WRITE_BYTES {
                        pages.write(&buffer)?;
                        buffer.clear();
                    }
                }
            }
            self.progress.advance(count as u64);
        }
        pages.write(&buffer)?;
        let codes_header = codes_writer.finish(&mut |blocks| codes_file.write(blocks))?;
        Ok(vec![
            self.entry(FileKind::Graph, pages.finish()?, &graph_header.encode()),
            self.entry(
                FileKind::Codes,
                codes_file.finish()?,
                &codes_header.encode(),
            ),
        ])
    }

    /// Writes a byte string that is in memory.
    pub(super) fn write_stream(&self, kind: FileKind, payload: &[u8]) -> Result<FileEntry, Error> {
        let mut file = Sequential::new(self.checkpoint.create(kind, None)?);
        let mut writer = StreamWriter::new(kind, payload.len() as u64, &[]);
        let mut sink = |blocks: &[u8]| file.write(blocks);
        writer.push(payload, &mut sink)?;
        let header = writer.finish(&mut sink)?;
        Ok(self.entry(kind, file.finish()?, &header.encode()))
    }

    fn entry(&self, kind: FileKind, length: u64, first_block: &[u8]) -> FileEntry {
        FileEntry {
            role: kind.name().to_owned(),
            name: self.checkpoint.name(kind, None),
            length,
            header_crc32c: header::stored_checksum(first_block),
        }
    }
}
