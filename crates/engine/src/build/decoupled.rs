//! The decoupled layout (DecoupleVS §3.3): lists apart from vectors, and vectors in segments that are coded each for
//! itself.
//!
//! ```text
//!   adjacency-…      slotted pages of lists
//!   directory-…      what lists are coded with; nodes of each page
//!   vectors-…-0000   slotted pages of the vectors of segment 0: | chunk | chunk | ..   a chunk begins on a new page
//!   chunks-…-0000    what they are coded with; pages, last nodes and base of each chunk
//!   vectors-…-0001   ..
//! ```
//!
//! A merge may keep the files of some segments: they come first, and of each only the chunks are written.

use std::ops::Range;

use stratann_layout::chunks::{Chunk, ChunksFile};
use stratann_layout::{DeadSlots, DirectoryFile, FileEntry, FileKind, SegmentFacts, SlottedShape};

use super::coding::{Coding, SegmentCode};
use super::encode::Encoder;
use super::files::write_stream;
use super::slotted::SlottedFile;
use super::sweep::{Sweep, Written};
use super::{Build, BuildOptions};
use crate::Error;
use crate::data::VectorSource;

/// What decides where everything stands.
pub(super) struct DecoupledFormat {
    lists: SlottedShape,
    vectors: SlottedShape,
    coding: Coding,
    chunk_nodes: u32,
    /// A multiple of `chunk_nodes`.
    segment_nodes: u32,
}

/// Nodes of a chunk and of a segment of so many bytes of vectors, rounded down to whole vectors and chunks, but of one
/// at least.
fn sizes(vector_bytes: usize, chunk_bytes: u64, segment_bytes: u64) -> (u32, u32) {
    let nodes = |bytes: u64| bytes / vector_bytes as u64;
    let chunk_nodes = nodes(chunk_bytes).clamp(1, u64::from(u32::MAX));
    let segment_chunks = (nodes(segment_bytes).min(u64::from(u32::MAX)) / chunk_nodes).max(1);
    (chunk_nodes as u32, (segment_chunks * chunk_nodes) as u32)
}

/// The vectors of each segment that a build with these options writes, but of the last, which may have fewer; a vector
/// takes so many bytes.
pub(crate) fn segment_vectors(options: &BuildOptions, vector_bytes: usize) -> u32 {
    sizes(vector_bytes, options.chunk_bytes, options.segment_bytes).1
}

/// A segment whose file goes over into the next checkpoint as it is.
#[derive(Debug)]
pub(crate) struct KeptSegment {
    /// Its file.
    pub(crate) vectors: FileEntry,
    /// What the next manifest says of it.
    pub(crate) facts: SegmentFacts,
    /// Its chunks, with the nodes of the next checkpoint.
    pub(crate) chunks: ChunksFile,
    /// Encoded bytes of its vectors, garbage left out.
    pub(crate) bytes: u64,
}

impl DecoupledFormat {
    /// Pages that hold the largest record there can be; chunks and segments of so many bytes of vectors.
    pub(super) fn new(
        source: &dyn VectorSource,
        degree: usize,
        coding: Coding,
        chunk_bytes: u64,
        segment_bytes: u64,
    ) -> Result<Self, Error> {
        let shape = |kind, largest| {
            SlottedShape::new(kind, source.element(), source.dim(), degree, largest)
        };
        let (chunk_nodes, segment_nodes) = sizes(coding.vector_bytes(), chunk_bytes, segment_bytes);
        Ok(Self {
            lists: shape(FileKind::Adjacency, coding.largest_list())?,
            vectors: shape(FileKind::Vectors, coding.largest_vector())?,
            coding,
            chunk_nodes,
            segment_nodes,
        })
    }
}

/// Writes all nodes.
pub(super) fn write(
    build: &Build<'_>,
    format: &DecoupledFormat,
    sweep: &mut Sweep<'_>,
) -> Result<Written, Error> {
    let lists = format.coding.learn_lists(sweep.lists())?;
    let mut encoder = Encoder::new(lists, build.options.threads);
    let mut adjacency = SlottedFile::create(&build.checkpoint, format.lists, None, 0)?;
    let (mut segments, mut segment_files) = (Vec::new(), Vec::new());
    let mut vector_bytes = 0;
    let kept = build.carried.kept;
    for (n, segment) in (0..).zip(kept) {
        while let Some(nodes) = sweep.next(segment.facts.first + segment.facts.vectors)? {
            encoder.encode(&nodes, None)?;
            for (place, (list, _)) in encoder.codes().enumerate() {
                adjacency.push(nodes.id(place), list, &[])?;
            }
        }
        vector_bytes += segment.bytes;
        segments.push(segment.facts.clone());
        segment_files.extend(segment.files(build, n)?);
    }
    for (n, range) in (kept.len() as u32..).zip(sweep.segments(format.segment_nodes)) {
        let mut segment = Segment::begin(build, format, sweep.rows(), n, range)?;
        while let Some(nodes) = sweep.next(segment.range.end)? {
            encoder.encode(&nodes, Some(&segment.code))?;
            for (place, (list, vector)) in encoder.codes().enumerate() {
                adjacency.push(nodes.id(place), list, &[])?;
                segment.push(nodes.number(place), nodes.id(place), vector)?;
            }
        }
        segments.push(segment.facts());
        segment_files.extend(segment.finish(build)?);
    }
    let (adjacency, counts) = adjacency.finish()?;
    let directory = DirectoryFile {
        list_model: encoder.list_model(),
        segment_vectors: 0,
        vector_models: Vec::new(),
        counts,
    };
    let directory = write_stream(
        &build.checkpoint,
        FileKind::Directory,
        None,
        &directory.encode(),
    )?;
    let mut files = vec![adjacency, directory];
    files.extend(segment_files);
    Ok(Written {
        files,
        list_bytes: encoder.list_bytes(),
        vector_bytes: vector_bytes + encoder.vector_bytes(),
        list_codec: encoder.list_codecs(),
        vector_codec: codecs(&segments),
        segments,
    })
}

/// Names of the codecs of segments, in the order in which they come up.
fn codecs(segments: &[SegmentFacts]) -> String {
    let mut names: Vec<&str> = Vec::new();
    for segment in segments {
        if !names.contains(&segment.codec.as_str()) {
            names.push(&segment.codec);
        }
    }
    names.join(", ")
}

impl KeptSegment {
    /// Its files as those of segment `n`: the one that is there, and that of its chunks, which is written.
    fn files(&self, build: &Build<'_>, n: u32) -> Result<[FileEntry; 2], Error> {
        let vectors = FileEntry {
            role: FileEntry::role_of(FileKind::Vectors, Some(n)),
            ..self.vectors.clone()
        };
        let payload = self.chunks.encode();
        let chunks = write_stream(&build.checkpoint, FileKind::Chunks, Some(n), &payload)?;
        Ok([vectors, chunks])
    }
}

/// A segment being written.
struct Segment {
    n: u32,
    range: Range<u32>,
    code: SegmentCode,
    file: SlottedFile,
    chunk_nodes: u32,
    /// The chunks that are complete.
    chunks: Vec<Chunk>,
}

impl Segment {
    /// Learns what the vectors of the `n`-th segment are coded with, and begins its file.
    fn begin(
        build: &Build<'_>,
        format: &DecoupledFormat,
        rows: &dyn VectorSource,
        n: u32,
        range: Range<u32>,
    ) -> Result<Self, Error> {
        let chunk = Some(format.chunk_nodes);
        let code = format
            .coding
            .learn_vectors(build, rows, range.clone(), chunk)?;
        Ok(Self {
            n,
            code,
            file: SlottedFile::create(&build.checkpoint, format.vectors, Some(n), range.start)?,
            range,
            chunk_nodes: format.chunk_nodes,
            chunks: Vec::new(),
        })
    }

    /// Appends the code of the next node's vector.
    fn push(&mut self, node: u32, id: u64, vector: &[u8]) -> Result<(), Error> {
        self.file.push(id, &[], vector)?;
        let done = node + 1 - self.range.start;
        if done.is_multiple_of(self.chunk_nodes) || node + 1 == self.range.end {
            self.end_chunk(node)?;
        }
        Ok(())
    }

    /// The chunk whose last node is `last` is complete.
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

    /// What the manifest says of it.
    fn facts(&self) -> SegmentFacts {
        SegmentFacts {
            first: self.range.start,
            vectors: self.range.end - self.range.start,
            codec: self.code.name().to_owned(),
            kept: None,
        }
    }

    /// Completes its files.
    fn finish(self, build: &Build<'_>) -> Result<[FileEntry; 2], Error> {
        let chunks = ChunksFile {
            model: self.code.model.to_bytes(),
            chunk_vectors: self.chunk_nodes,
            chunks: self.chunks,
            dead: DeadSlots::default(),
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
