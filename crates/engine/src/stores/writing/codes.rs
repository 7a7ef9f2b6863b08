//! The PQ codes of all nodes. If records have the codes of neighbours, the codes are kept for
//! look-ups. Otherwise they are written to a file.

use std::fs::File;
use std::os::unix::fs::FileExt;

use stratann_layout::{FileEntry, FileKind, StreamWriter};
use stratann_tier::TierError;
use stratann_vector::{Reduction, normalize, to_f32};

use super::Writing;
use super::files::Sequential;
use crate::Error;
use crate::codebook::Codebook;
use crate::data::VectorSource;
use crate::progress::Stage;

const BATCH: usize = 1024;

struct Encoder<'a> {
    build: &'a Writing<'a>,
    codebook: &'a Codebook,
    floats: Vec<f32>,
    codes: Vec<u8>,
}

impl<'a> Encoder<'a> {
    fn new(build: &'a Writing<'a>, codebook: &'a Codebook) -> Self {
        Self {
            build,
            codebook,
            floats: Vec::new(),
            codes: Vec::new(),
        }
    }

    fn encode(&mut self, vectors: &[u8]) -> &[u8] {
        let (element, dim) = (self.build.source.element(), self.codebook.dim());
        let count = vectors.len() / (dim * element.size());
        self.floats.resize(count * dim, 0.0);
        to_f32(element, vectors, &mut self.floats);
        if self.build.options.metric.reduction() == Reduction::Normalised {
            self.floats.chunks_exact_mut(dim).for_each(|row| {
                normalize(row);
            });
        }
        self.codes.resize(count * self.codebook.code_bytes(), 0);
        let threads = self.build.options.threads;
        self.codebook.encode(&self.floats, &mut self.codes, threads);
        &self.codes
    }
}

pub(crate) struct CodesFile<'a> {
    encoder: Encoder<'a>,
    file: Sequential,
    writer: StreamWriter,
}

impl<'a> CodesFile<'a> {
    pub(crate) fn create(build: &'a Writing<'a>, codebook: &'a Codebook) -> Result<Self, Error> {
        let bytes = build.source.rows() as u64 * codebook.code_bytes() as u64;
        Ok(Self {
            encoder: Encoder::new(build, codebook),
            file: Sequential::create(&build.checkpoint, FileKind::Codes, None)?,
            writer: StreamWriter::new(FileKind::Codes, bytes, &[]),
        })
    }

    pub(crate) fn push(&mut self, vectors: &[u8]) -> Result<(), Error> {
        let file = &mut self.file;
        let codes = self.encoder.encode(vectors);
        self.writer
            .push(codes, &mut |blocks: &[u8]| file.write(blocks))?;
        Ok(())
    }

    pub(crate) fn finish(self) -> Result<FileEntry, Error> {
        let mut file = self.file;
        let header = self
            .writer
            .finish(&mut |blocks: &[u8]| file.write(blocks))?;
        Ok(file.finish(&header)?)
    }
}

/// If the memory cap is too low, the codes are in a scratch file.
pub(crate) struct NodeCodes {
    store: Store,
    code_bytes: usize,
}

enum Store {
    Memory(Vec<u8>),
    Scratch(File, String),
}

impl NodeCodes {
    /// The rows must be in node order.
    pub(crate) fn encode(
        build: &Writing<'_>,
        rows: &dyn VectorSource,
        codebook: &Codebook,
    ) -> Result<Self, Error> {
        let code_bytes = codebook.code_bytes();
        let total = rows.rows() as u64 * code_bytes as u64;
        let spill = build.options.memory.is_some_and(|cap| total > cap / 4);
        let mut store = if spill {
            let path = build.scratch.join("codes");
            let name = path.display().to_string();
            let mut options = File::options();
            let file = options.create_new(true).read(true).write(true).open(&path);
            Store::Scratch(
                file.map_err(|source| failed("create", &name, 0, 0, source))?,
                name,
            )
        } else {
            Store::Memory(Vec::with_capacity(total as usize))
        };
        let _stage = Stage::begin(build.progress, "encoding", rows.rows() as u64);
        let mut encoder = Encoder::new(build, codebook);
        let mut vectors = Vec::new();
        for first in (0..rows.rows()).step_by(BATCH) {
            build.go_on()?;
            let count = BATCH.min(rows.rows() - first);
            vectors.resize(count * rows.row_bytes(), 0);
            rows.read(first, &mut vectors)?;
            let codes = encoder.encode(&vectors);
            match &mut store {
                Store::Memory(bytes) => bytes.extend_from_slice(codes),
                Store::Scratch(file, name) => {
                    let at = (first * code_bytes) as u64;
                    let written = file.write_all_at(codes, at);
                    written.map_err(|source| failed("write", name, at, codes.len(), source))?;
                }
            }
            build.progress.advance(count as u64);
        }
        Ok(Self { store, code_bytes })
    }

    pub(crate) fn gather(&self, nodes: &[u32], out: &mut Vec<u8>) -> Result<(), Error> {
        let bytes = self.code_bytes;
        out.resize(nodes.len() * bytes, 0);
        for (&node, code) in nodes.iter().zip(out.chunks_exact_mut(bytes)) {
            let at = node as usize * bytes;
            match &self.store {
                Store::Memory(codes) => code.copy_from_slice(&codes[at..at + bytes]),
                Store::Scratch(file, name) => {
                    let read = file.read_exact_at(code, at as u64);
                    read.map_err(|source| failed("read", name, at as u64, bytes, source))?;
                }
            }
        }
        Ok(())
    }
}

#[cold]
fn failed(doing: &'static str, file: &str, at: u64, bytes: usize, source: std::io::Error) -> Error {
    TierError::io(doing, file, at, bytes as u64, source).into()
}
