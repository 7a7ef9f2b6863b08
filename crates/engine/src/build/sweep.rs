//! The sweep that reads the collection in node order. A layout takes the lists and vectors of one batch of nodes after
//! the other from it; their PQ codes are written on the way, unless they were made before.
//!
//! ```text
//!   rows  ──┬──> batch ──> coupled | packed | decoupled | inline ──> graph-… | packed-… | adjacency-… vectors-… | inline-…
//!   lists ──┘      └─────> PQ codes, but for inline ───────────────> codes-…
//! ```

use std::ops::Range;

use stratann_layout::{FileEntry, SegmentFacts};

use super::Build;
use super::codes::CodesFile;
use crate::Error;
use crate::codebook::Codebook;
use crate::data::VectorSource;
use crate::graph::{Constructed, GraphError, Lists, NodeRows};
use crate::progress::Stage;

/// Nodes of a batch, at most and at least; in between, as many as take [`BATCH_BYTES`].
const MOST_NODES: usize = 4096;
const LEAST_NODES: usize = 32;
/// Bytes that a batch takes with all that is made of it, about.
const BATCH_BYTES: usize = 8 << 20;

/// What was written, as the manifest says it.
#[derive(Debug, Default)]
pub(crate) struct Written {
    /// The files.
    pub(crate) files: Vec<FileEntry>,
    /// Bytes of all lists as they stand on disk.
    pub(crate) list_bytes: u64,
    /// Bytes of all vectors as they stand on disk.
    pub(crate) vector_bytes: u64,
    /// What the lists are coded with.
    pub(crate) list_codec: String,
    /// What the vectors are coded with.
    pub(crate) vector_codec: String,
    /// The segments that have files of their own.
    pub(crate) segments: Vec<SegmentFacts>,
}

/// Consecutive nodes.
#[derive(Clone, Copy)]
pub(crate) struct Nodes<'a> {
    first: u32,
    ids: &'a [u64],
    vectors: &'a [u8],
    vector_bytes: usize,
    lists: &'a ListBatch,
}

impl<'a> Nodes<'a> {
    /// How many they are, at least 1.
    pub(crate) fn len(&self) -> usize {
        self.ids.len()
    }

    /// The number of the node at `place` among these.
    pub(crate) fn number(&self, place: usize) -> u32 {
        self.first + place as u32
    }

    /// Its outside id.
    pub(crate) fn id(&self, place: usize) -> u64 {
        self.ids[place]
    }

    /// Its vector.
    pub(crate) fn vector(&self, place: usize) -> &'a [u8] {
        &self.vectors[place * self.vector_bytes..(place + 1) * self.vector_bytes]
    }

    /// Its neighbours, in the order of the graph: nearest first as a rule.
    pub(crate) fn list(&self, place: usize) -> &'a [u32] {
        let bounds = &self.lists.bounds;
        &self.lists.links[bounds[place]..bounds[place + 1]]
    }
}

/// The lists of a batch, one after the other.
#[derive(Default)]
struct ListBatch {
    links: Vec<u32>,
    /// Where each list starts in `links`, then where the last one ends.
    bounds: Vec<usize>,
    /// The list being read.
    list: Vec<u32>,
}

impl ListBatch {
    fn read(&mut self, lists: &mut Lists, nodes: Range<usize>) -> Result<(), GraphError> {
        self.links.clear();
        self.bounds.clear();
        self.bounds.push(0);
        for node in nodes {
            lists.read(node as u32, &mut self.list)?;
            self.links.extend_from_slice(&self.list);
            self.bounds.push(self.links.len());
        }
        Ok(())
    }
}

/// All nodes, in batches.
pub(crate) struct Sweep<'a> {
    build: &'a Build<'a>,
    rows: NodeRows<'a>,
    order: &'a [u32],
    lists: &'a mut Lists,
    /// Where codes are written on the way.
    codes: Option<CodesFile<'a>>,
    /// The node that comes next.
    next: usize,
    /// Nodes of a batch at most.
    most: usize,
    vectors: Vec<u8>,
    ids: Vec<u64>,
    batch: ListBatch,
    _stage: Stage<'a>,
}

impl Sweep<'_> {
    /// Has `write` write all nodes, and writes their codes beside it.
    pub(crate) fn with_codes(
        build: &Build<'_>,
        graph: &mut Constructed,
        codebook: &Codebook,
        write: impl FnOnce(&mut Sweep<'_>) -> Result<Written, Error>,
    ) -> Result<Written, Error> {
        let mut sweep = Sweep::new(build, graph, Some(codebook), "writing")?;
        let mut written = write(&mut sweep)?;
        written.files.extend(sweep.finish()?);
        Ok(written)
    }
}

impl<'a> Sweep<'a> {
    /// Begins at node 0, and begins the file of codes if there is to be one; `stage` is what it is for.
    pub(crate) fn new(
        build: &'a Build<'a>,
        graph: &'a mut Constructed,
        codebook: Option<&'a Codebook>,
        stage: &str,
    ) -> Result<Self, Error> {
        let rows = graph.rows.in_order(&graph.order, build.source);
        // A vector, its code for the disk, its floats; a list and its code.
        let node = 2 * rows.row_bytes() + 4 * rows.dim() + 8 * build.facts.degree;
        Ok(Self {
            build,
            rows,
            order: &graph.order,
            lists: &mut graph.lists,
            codes: codebook
                .map(|codebook| CodesFile::create(build, codebook))
                .transpose()?,
            next: 0,
            most: (BATCH_BYTES / node).clamp(LEAST_NODES, MOST_NODES),
            vectors: Vec::new(),
            ids: Vec::new(),
            batch: ListBatch::default(),
            _stage: Stage::begin(build.progress, stage, rows.rows() as u64),
        })
    }

    /// All rows in node order, for codecs that learn what is to come.
    pub(crate) fn rows(&self) -> NodeRows<'a> {
        self.rows
    }

    /// The lists, for codecs that learn what is to come.
    pub(crate) fn lists(&mut self) -> &mut Lists {
        self.lists
    }

    /// The nodes that are to come, in ranges of `nodes`, of which the last has what is left.
    pub(crate) fn segments(&self, nodes: u32) -> impl Iterator<Item = Range<u32>> + use<> {
        let rows = self.rows.rows() as u32;
        (self.next as u32..rows)
            .step_by(nodes as usize)
            .map(move |first| first..rows.min(first.saturating_add(nodes)))
    }

    /// The next nodes, of which none is `end` or above; `None` if there are no more below it.
    pub(crate) fn next(&mut self, end: u32) -> Result<Option<Nodes<'_>>, Error> {
        self.build.go_on()?;
        let first = self.next;
        let nodes = first..(end as usize).min(first + self.most);
        if nodes.is_empty() {
            return Ok(None);
        }
        self.next = nodes.end;
        let vector_bytes = self.rows.row_bytes();
        self.vectors.resize(nodes.len() * vector_bytes, 0);
        self.rows.read(first, &mut self.vectors)?;
        self.build.check_again(&self.rows, first, &self.vectors)?;
        if let Some(codes) = &mut self.codes {
            codes.push(&self.vectors)?;
        }
        self.batch.read(self.lists, nodes.clone())?;
        self.ids.clear();
        for &row in &self.order[nodes.clone()] {
            self.ids.push(match &self.build.options.ids {
                Some(ids) => ids[row as usize],
                None => u64::from(row),
            });
        }
        self.build.progress.advance(nodes.len() as u64);
        Ok(Some(Nodes {
            first: first as u32,
            ids: &self.ids,
            vectors: &self.vectors,
            vector_bytes,
            lists: &self.batch,
        }))
    }

    /// Completes the file of codes, if there is one, when all nodes were taken.
    pub(crate) fn finish(self) -> Result<Option<FileEntry>, Error> {
        self.codes.map(CodesFile::finish).transpose()
    }
}
