//! A sweep reads the collection in node order, and passes it to a layout in batches of nodes. A
//! sweep with a codebook also writes the PQ codes.
//!
//! ```text
//!   rows  ──┬──> batch ──> coupled | packed | decoupled | ..      ──> their files
//!   lists ──┘      └─────> PQ codes, except for inline ────────────> codes-…
//! ```

use std::ops::Range;

use stratann_layout::{FileEntry, SegmentFacts};

use super::Writing;
use super::codes::CodesFile;
use crate::Error;
use crate::codebook::Codebook;
use crate::data::VectorSource;
use crate::graph::{Constructed, GraphError, Lists, NodeRows};
use crate::progress::Stage;

/// The largest and the least number of nodes in a batch of [`BATCH_BYTES`].
const MOST_NODES: usize = 4096;
const LEAST_NODES: usize = 32;
/// The bytes of a batch, with the codes and floats that are computed from its vectors.
const BATCH_BYTES: usize = 8 << 20;

#[derive(Debug, Default)]
pub(crate) struct Written {
    pub(crate) files: Vec<FileEntry>,
    pub(crate) list_bytes: u64,
    pub(crate) vector_bytes: u64,
    pub(crate) list_codec: String,
    pub(crate) vector_codec: String,
    pub(crate) segments: Vec<SegmentFacts>,
}

#[derive(Clone, Copy)]
pub(crate) struct Nodes<'a> {
    first: u32,
    ids: &'a [u64],
    vectors: &'a [u8],
    vector_bytes: usize,
    lists: &'a ListBatch,
}

impl<'a> Nodes<'a> {
    pub(crate) fn len(&self) -> usize {
        self.ids.len()
    }

    pub(crate) fn number(&self, place: usize) -> u32 {
        self.first + place as u32
    }

    pub(crate) fn id(&self, place: usize) -> u64 {
        self.ids[place]
    }

    pub(crate) fn vector(&self, place: usize) -> &'a [u8] {
        &self.vectors[place * self.vector_bytes..(place + 1) * self.vector_bytes]
    }

    /// The neighbours in the order of the graph, usually by distance.
    pub(crate) fn list(&self, place: usize) -> &'a [u32] {
        let bounds = &self.lists.bounds;
        &self.lists.links[bounds[place]..bounds[place + 1]]
    }
}

#[derive(Default)]
struct ListBatch {
    links: Vec<u32>,
    /// The start of each list in `links`, followed by the end of the last list.
    bounds: Vec<usize>,
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

pub(crate) struct Sweep<'a> {
    build: &'a Writing<'a>,
    rows: NodeRows<'a>,
    order: &'a [u32],
    lists: &'a mut Lists,
    codes: Option<CodesFile<'a>>,
    next: usize,
    most: usize,
    vectors: Vec<u8>,
    ids: Vec<u64>,
    batch: ListBatch,
    _stage: Stage<'a>,
}

impl Sweep<'_> {
    /// Passes a sweep to `write`. This sweep also writes the codes.
    pub(crate) fn with_codes(
        build: &Writing<'_>,
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
    pub(crate) fn new(
        build: &'a Writing<'a>,
        graph: &'a mut Constructed,
        codebook: Option<&'a Codebook>,
        stage: &str,
    ) -> Result<Self, Error> {
        let rows = graph.rows.in_order(&graph.order, build.source);
        // The bytes of a vector, of its stored form and of its floats, and of a list and its stored
        // form.
        let node = 2 * rows.row_bytes() + 4 * rows.dim() + 8 * build.degree;
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

    pub(crate) fn rows(&self) -> NodeRows<'a> {
        self.rows
    }

    pub(crate) fn lists(&mut self) -> &mut Lists {
        self.lists
    }

    /// The next ranges of `nodes` nodes. The last range may be shorter.
    pub(crate) fn segments(&self, nodes: u32) -> impl Iterator<Item = Range<u32>> + use<> {
        let rows = self.rows.rows() as u32;
        (self.next as u32..rows)
            .step_by(nodes as usize)
            .map(move |first| first..rows.min(first.saturating_add(nodes)))
    }

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

    /// Completes the file of codes. [`next`](Self::next) must have returned all nodes before.
    pub(crate) fn finish(self) -> Result<Option<FileEntry>, Error> {
        self.codes.map(CodesFile::finish).transpose()
    }
}
