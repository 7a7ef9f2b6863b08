//! Writes segments of vectors (DecoupleVS §3.3). Each segment is coded by itself.
//!
//! ```text
//!   vectors-…-0000   slotted pages of the vectors of segment 0: | chunk | chunk | ..
//!                    A chunk begins on a new page. In a chunk, a vector that does not fit the rest
//!                    of a page continues on the next page (except in the paper's compression).
//!   chunks-…-0000    the model; pages, last nodes and base of each chunk
//!   vectors-…-0001   ..
//! ```

use std::ops::Range;

use stratann_layout::chunks::{Chunk, ChunksFile};
use stratann_layout::{DeadSlots, FileEntry, FileKind, SegmentFacts, SlottedShape};

use crate::data::VectorSource;
use crate::stores::writing::coding::{Coding, SegmentCode};
use crate::stores::writing::files::write_stream;
use crate::stores::writing::slotted::SlottedFile;
use crate::stores::writing::{Choices, Writing};
use crate::{BuildOptions, Compression, Error};

pub(crate) struct SegmentFormat {
    vectors: SlottedShape,
    pub(crate) coding: Coding,
    chunk_nodes: u32,
    /// The number of nodes in a segment, which is a multiple of `chunk_nodes`.
    segment_nodes: u32,
}

/// The number of nodes in a chunk and in a segment, for the given bytes of vectors. Both numbers
/// are rounded down, but are at least one.
fn sizes(vector_bytes: usize, chunk_bytes: u64, segment_bytes: u64) -> (u32, u32) {
    let nodes = |bytes: u64| bytes / vector_bytes as u64;
    let chunk_nodes = nodes(chunk_bytes).clamp(1, u64::from(u32::MAX));
    let segment_chunks = (nodes(segment_bytes).min(u64::from(u32::MAX)) / chunk_nodes).max(1);
    (chunk_nodes as u32, (segment_chunks * chunk_nodes) as u32)
}

/// The number of vectors in a segment. Only the last segment has fewer vectors.
pub(crate) fn segment_vectors(options: &BuildOptions, vector_bytes: usize) -> u32 {
    sizes(vector_bytes, options.chunk_bytes, options.segment_bytes).1
}

/// A segment whose file the next checkpoint keeps unchanged.
#[derive(Debug)]
pub(crate) struct KeptSegment {
    pub(crate) vectors: FileEntry,
    pub(crate) facts: SegmentFacts,
    /// The chunks of the segment, with the node numbers of the next checkpoint.
    pub(crate) chunks: ChunksFile,
    /// The encoded bytes of the vectors, without garbage.
    pub(crate) bytes: u64,
}

impl SegmentFormat {
    /// Whole vectors may span several pages, except with the paper's compression.
    pub(crate) fn new(choices: &Choices<'_>) -> Result<Self, Error> {
        let (options, coding) = (choices.options, choices.coding()?);
        let vectors = match choices.compression {
            // In the paper, a block has only whole vectors.
            Compression::Paper => {
                check_memory(options, choices.source)?;
                choices.slotted(FileKind::Vectors, coding.largest_vector())?
            }
            _ => choices.running_on(coding.largest_vector())?,
        };
        let vector_bytes = coding.vector_bytes();
        let (chunk_nodes, segment_nodes) =
            sizes(vector_bytes, options.chunk_bytes, options.segment_bytes);
        Ok(Self {
            vectors,
            coding,
            chunk_nodes,
            segment_nodes,
        })
    }

    pub(crate) fn of_parts(choices: &Choices<'_>) -> Result<Self, Error> {
        let format = Self::new(choices)?;
        let (_, trailing) = format.coding.largest_parts();
        Ok(Self {
            vectors: choices.running_on(trailing)?,
            ..format
        })
    }

    pub(crate) fn segment_nodes(&self) -> u32 {
        self.segment_nodes
    }
}

/// A build needs a whole chunk in memory, to find the base of its vectors.
fn check_memory(options: &BuildOptions, source: &dyn VectorSource) -> Result<(), Error> {
    let vectors = (source.rows() as u64).saturating_mul(source.row_bytes() as u64);
    let needs = options.chunk_bytes.min(vectors).saturating_mul(4);
    match options.memory {
        Some(budget) if budget < needs => Err(Error::Memory {
            budget,
            needs,
            part: format!(
                "the build, which holds a chunk of {} bytes in a quarter of its budget",
                needs / 4
            ),
        }),
        _ => Ok(()),
    }
}

pub(crate) fn codecs(segments: &[SegmentFacts]) -> String {
    let mut names: Vec<&str> = Vec::new();
    for segment in segments {
        if !names.contains(&segment.codec.as_str()) {
            names.push(&segment.codec);
        }
    }
    names.join(", ")
}

impl KeptSegment {
    /// The existing file of vectors, and a new file of its chunks. The segment gets the number `n`.
    pub(crate) fn files(&self, build: &Writing<'_>, n: u32) -> Result<[FileEntry; 2], Error> {
        let vectors = FileEntry {
            role: FileEntry::role_of(FileKind::Vectors, Some(n)),
            ..self.vectors.clone()
        };
        let payload = self.chunks.encode();
        let chunks = write_stream(&build.checkpoint, FileKind::Chunks, Some(n), &payload)?;
        Ok([vectors, chunks])
    }
}

pub(crate) struct SegmentWriter {
    n: u32,
    range: Range<u32>,
    pub(crate) code: SegmentCode,
    file: SlottedFile,
    chunk_nodes: u32,
    chunks: Vec<Chunk>,
}

impl SegmentWriter {
    pub(crate) fn begin(
        build: &Writing<'_>,
        format: &SegmentFormat,
        rows: &dyn VectorSource,
        n: u32,
        range: Range<u32>,
    ) -> Result<Self, Error> {
        let chunk = Some(format.chunk_nodes);
        let code = format
            .coding
            .learn_vectors(build, rows, range.clone(), chunk)?;
        Self::with(build, format, n, range, code)
    }

    pub(crate) fn with(
        build: &Writing<'_>,
        format: &SegmentFormat,
        n: u32,
        range: Range<u32>,
        code: SegmentCode,
    ) -> Result<Self, Error> {
        Ok(Self {
            n,
            code,
            file: SlottedFile::create(&build.checkpoint, format.vectors, Some(n), range.start)?,
            range,
            chunk_nodes: format.chunk_nodes,
            chunks: Vec::new(),
        })
    }

    pub(crate) fn end(&self) -> u32 {
        self.range.end
    }

    pub(crate) fn push(&mut self, node: u32, id: u64, vector: &[u8]) -> Result<(), Error> {
        self.file.push(id, &[], vector)?;
        let done = node + 1 - self.range.start;
        if done.is_multiple_of(self.chunk_nodes) || node + 1 == self.range.end {
            self.end_chunk(node)?;
        }
        Ok(())
    }

    fn end_chunk(&mut self, last: u32) -> Result<(), Error> {
        self.file.end_page()?;
        let first_page = self
            .chunks
            .last()
            .map_or(0, |chunk| chunk.first_page + chunk.pages);
        let counts = &self.file.counts()[first_page as usize..];
        let mut next = self.range.start + self.chunks.len() as u32 * self.chunk_nodes;
        let boundaries = counts
            .iter()
            .map(|&count| {
                next += u32::from(count);
                next - 1
            })
            .collect();
        self.chunks.push(Chunk {
            first_page,
            pages: counts.len() as u32,
            boundaries,
            base: self.code.base(last).map(<[u8]>::to_vec),
        });
        Ok(())
    }

    pub(crate) fn facts(&self) -> SegmentFacts {
        SegmentFacts {
            first: self.range.start,
            vectors: self.range.end - self.range.start,
            codec: self.code.name().to_owned(),
            kept: None,
        }
    }

    pub(crate) fn finish(self, build: &Writing<'_>) -> Result<[FileEntry; 2], Error> {
        let chunks = ChunksFile {
            model: self.code.model.to_bytes(),
            chunk_vectors: self.chunk_nodes,
            chunks: self.chunks,
            dead: DeadSlots::default(),
            runs: self.file.runs().clone(),
        };
        let (vectors, _) = self.file.finish()?;
        let chunks = write_stream(
            &build.checkpoint,
            FileKind::Chunks,
            Some(self.n),
            &chunks.encode(),
        )?;
        Ok([vectors, chunks])
    }
}
