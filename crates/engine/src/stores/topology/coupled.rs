//! Coupled pages: records of one size, so that a node's page is computed and nothing is decoded.

use stratann_layout::{CoupledShape, FileKind, Manifest, PageBuilder, PageView as LayoutView};
use stratann_tier::Volume;

use super::Pages;
use crate::build::files::{Sequential, WRITE_BYTES};
use crate::build::sweep::{Sweep, Written};
use crate::build::{Build, Choices, Format};
use crate::codebook::Codebook;
use crate::graph::Constructed;
use crate::plan::PageFile;
use crate::stores::{
    Composable, Composer, Composition, NodePages, PageView, Placed, Record, RecordsMove, too_long,
};
use crate::{Error, stored};

/// The coupled layout.
pub(super) static STORES: Composition = Composition {
    about: "Vector and list side by side in records of one size, as they are (DiskANN)",
    lists: FileKind::Graph,
    vectors_in_records: CoupledPages::VECTORS,
    codes_in_records: CoupledPages::CODES,
    has_directory: false,
    encoded: false,
    records_move: CoupledPages::MOVES,
    open,
    format,
};

fn open(volume: &dyn Volume, manifest: &Manifest, placement: &Placed) -> Result<Pages, Error> {
    let (shape, entry) = stored::coupled(volume, manifest)?;
    Ok(Pages::Coupled(CoupledPages {
        shape,
        nodes: manifest.vectors,
        file: stored::name_of(volume, &entry.name),
        placement: placement.clone(),
    }))
}

/// The pages of a coupled index.
pub(crate) struct CoupledPages {
    pub(crate) shape: CoupledShape,
    pub(crate) nodes: u64,
    pub(crate) file: String,
    pub(crate) placement: Placed,
}

/// One of them.
#[derive(Clone, Copy)]
pub(crate) struct CoupledView<'p> {
    view: LayoutView<'p>,
}

impl<'p> PageView<'p> for CoupledView<'p> {
    #[inline]
    fn node(self, slot: usize) -> Result<u32, Error> {
        Ok(self.view.node_number(slot)?)
    }

    #[inline]
    fn slot_of(self, node: u32) -> Option<usize> {
        self.view.slot_of(node)
    }

    #[inline]
    fn len(self) -> usize {
        self.view.len()
    }

    #[inline]
    fn record(self, slot: usize) -> Result<Record<'p>, Error> {
        let node = self.view.node(slot)?;
        let list = node.neighbours.bytes();
        Ok(Record {
            id: node.id,
            list,
            list_and_rest: list,
            codes: &[],
            vector: node.vector,
        })
    }
}

impl NodePages for CoupledPages {
    const VECTORS: bool = true;
    const CODES: bool = false;
    type Changes = RecordsMove;
    type View<'p> = CoupledView<'p>;

    #[inline]
    fn page_of(&self, node: u32) -> u64 {
        match self.placement.get() {
            None => self.shape.page_of(node),
            Some(placement) => u64::from(placement.page_of(node)),
        }
    }

    #[inline]
    fn place(&self, page: u64) -> (u64, usize) {
        (self.shape.file_offset(page), self.shape.page_bytes())
    }

    #[inline]
    fn view<'p>(
        &'p self,
        bytes: &'p [u8],
        page: u64,
        check: bool,
    ) -> Result<CoupledView<'p>, Error> {
        let count = self.shape.nodes_on_page(page, self.nodes);
        let view = LayoutView::open(&self.shape, bytes, page, Some(count), check, &self.file)?;
        Ok(CoupledView { view })
    }

    fn file(&self, nodes: u64) -> PageFile {
        PageFile::new(self.shape.pages(nodes), self.shape.page_bytes())
    }

    fn cached_bytes(&self) -> usize {
        Record::cached_bytes(4 * self.shape.degree(), 0, self.shape.vector_bytes())
    }

    #[inline]
    fn list(&self, _: u32, record: &Record<'_>, out: &mut Vec<u32>) -> Result<(), Error> {
        words(record.list, out);
        Ok(())
    }

    #[inline]
    fn vector<'s>(
        &'s self,
        _: u32,
        record: &Record<'s>,
        _: &'s mut [u8],
    ) -> Result<&'s [u8], Error> {
        Ok(record.vector)
    }
}

impl Composable for CoupledPages {
    type Composer = CoupledComposer;

    fn composer(&self) -> CoupledComposer {
        CoupledComposer {
            builder: PageBuilder::new(self.shape),
            list: Vec::new(),
            nodes: Vec::new(),
        }
    }

    fn records_a_page(&self) -> usize {
        self.shape.relocated_per_page()
    }

    fn encode_list(&self, node: u32, list: &[u32], out: &mut Vec<u8>) -> Result<(), Error> {
        if list.len() > self.shape.degree() {
            return Err(too_long(&self.file, node, list.len(), self.shape.degree()));
        }
        out.extend(list.iter().flat_map(|link| link.to_le_bytes()));
        Ok(())
    }

    fn encode_vector(&self, _: u32, vector: &[u8], out: &mut Vec<u8>) -> Result<(), Error> {
        out.extend_from_slice(vector);
        Ok(())
    }
}

/// Puts relocated coupled pages together.
pub(crate) struct CoupledComposer {
    builder: PageBuilder,
    list: Vec<u32>,
    /// The nodes on the page.
    nodes: Vec<u32>,
}

impl Composer for CoupledComposer {
    fn start(&mut self) {
        self.builder.start_relocated();
        self.nodes.clear();
    }

    fn push(&mut self, node: u32, id: u64, list: &[u8], vector: &[u8]) -> bool {
        // A page that names a node twice is damaged, and its records are not put together again.
        if self.nodes.contains(&node) {
            return false;
        }
        words(list, &mut self.list);
        let fits = self.builder.push_node(node, id, vector, &self.list);
        if fits {
            self.nodes.push(node);
        }
        fits
    }

    fn finish(&mut self, page: u32) -> &[u8] {
        self.builder.finish(page.into())
    }
}

/// Reads a list of which each neighbour is a word.
#[inline]
pub(super) fn words(list: &[u8], out: &mut Vec<u32>) {
    out.clear();
    let words = list.chunks_exact(4);
    out.extend(words.map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]])));
}

fn format(choices: &Choices<'_>) -> Result<(Box<dyn Format>, usize), Error> {
    let (element, dim) = (choices.source.element(), choices.source.dim());
    let shape = CoupledShape::new(element, dim, choices.degree)?;
    Ok((Box::new(shape), shape.nodes_per_page()))
}

/// Writes pages of nodes, as many on each as fit.
impl Format for CoupledShape {
    fn write(
        &self,
        build: &Build<'_>,
        graph: &mut Constructed,
        codebook: &Codebook,
    ) -> Result<Written, Error> {
        Sweep::with_codes(build, graph, codebook, |sweep| write(build, self, sweep))
    }
}

fn write(build: &Build<'_>, shape: &CoupledShape, sweep: &mut Sweep<'_>) -> Result<Written, Error> {
    let nodes = build.source.rows() as u32;
    let header = shape.header(u64::from(nodes));
    let mut file = Sequential::create(&build.checkpoint, FileKind::Graph, None)?;
    file.write(&header.encode())?;
    let mut builder = PageBuilder::new(*shape);
    let (mut page, mut pages) = (0, Vec::with_capacity(WRITE_BYTES + shape.page_bytes()));
    while let Some(batch) = sweep.next(nodes)? {
        for place in 0..batch.len() {
            // The neighbours stay in the order of the graph: no code asks for another.
            builder.push(batch.id(place), batch.vector(place), batch.list(place));
            if builder.is_full() || batch.number(place) + 1 == nodes {
                pages.extend_from_slice(builder.finish(page));
                builder.clear();
                page += 1;
            }
            if pages.len() >= WRITE_BYTES {
                file.write(&pages)?;
                pages.clear();
            }
        }
    }
    file.write(&pages)?;
    let nodes = u64::from(nodes);
    Ok(Written {
        files: vec![file.finish(&header)?],
        // A word for the degree and one for each of R slots, in use or not.
        list_bytes: nodes * 4 * (1 + shape.degree() as u64),
        vector_bytes: nodes * shape.vector_bytes() as u64,
        list_codec: "raw".into(),
        vector_codec: "raw".into(),
        segments: Vec::new(),
    })
}
