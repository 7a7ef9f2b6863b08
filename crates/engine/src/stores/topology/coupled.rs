//! Coupled pages: records of one size, which need no decoding.

use stratann_layout::{
    CoupledShape, FileHeader, FileKind, Geometry, LayoutError, Manifest, PageBuilder,
    PageView as LayoutView, inline,
};
use stratann_tier::Volume;
use stratann_vector::Element;

use super::Pages;
use crate::codebook::Codebook;
use crate::graph::Constructed;
use crate::plan::PageFile;
use crate::stores::composition::{CodesAt, Made, Records, VectorsAt};
use crate::stores::reading;
use crate::stores::records::{FixedFormat, PageFormat, PageRecords, Stored};
use crate::stores::writing::raw::write_raw;
use crate::stores::writing::sweep::{Sweep, Written};
use crate::stores::writing::{Choices, NodeWriter, PagePlan, Planned, Writing};
use crate::stores::{
    Composable, Composer, Composition, NodePages, PageView, Placed, Record, RecordsMove, too_long,
};
use crate::{Error, stored};

pub(super) static COMPOSITION: Composition = Composition {
    about: "Uncompressed vector and list side by side, in records of one size (DiskANN)",
    lists: FileKind::Graph,
    records: Records::fixed::<CoupledPages>(page_format, record_bytes),
    vectors: VectorsAt::of::<CoupledPages>(),
    codes: CodesAt::of::<CoupledPages>(),
    made: Made::Graph { open, writer },
};

fn page_format(manifest: &Manifest) -> Result<Box<dyn FixedFormat>, Error> {
    Ok(Box::new(reading::coupled_shape(manifest)?))
}

fn record_bytes(element: Element, dim: usize, degree: usize, _: usize, _: u64) -> f64 {
    inline::fill(element, dim, degree, 0).record_bytes()
}

fn open(volume: &dyn Volume, manifest: &Manifest, placement: &Placed) -> Result<Pages, Error> {
    let (shape, entry) = reading::coupled(volume, manifest)?;
    Ok(Pages::Coupled(CoupledPages {
        shape,
        nodes: manifest.vectors,
        file: stored::name_of(volume, &entry.name),
        placement: placement.clone(),
    }))
}

pub(crate) struct CoupledPages {
    pub(crate) shape: CoupledShape,
    pub(crate) nodes: u64,
    pub(crate) file: String,
    pub(crate) placement: Placed,
}

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

pub(crate) struct CoupledComposer {
    builder: PageBuilder,
    list: Vec<u32>,
    nodes: Vec<u32>,
}

impl Composer for CoupledComposer {
    fn start(&mut self) {
        self.builder.start_relocated();
        self.nodes.clear();
    }

    fn push(&mut self, node: u32, id: u64, list: &[u8], vector: &[u8]) -> bool {
        // A node comes twice only if a page with its record is damaged.
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

#[inline]
pub(crate) fn words(list: &[u8], out: &mut Vec<u32>) {
    out.clear();
    let words = list.chunks_exact(4);
    out.extend(words.map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]])));
}

impl FixedFormat for CoupledShape {
    fn nodes_a_page(&self) -> u64 {
        self.nodes_per_page() as u64
    }
}

impl PageFormat for CoupledShape {
    fn page_bytes(&self) -> usize {
        Geometry::page_bytes(self)
    }

    fn as_fixed(&self) -> Option<&dyn FixedFormat> {
        Some(self)
    }

    /// A list takes a word for its degree, and a word for each possible link.
    fn list_bytes(&self, _: &[u8]) -> usize {
        4 * (1 + self.degree())
    }

    fn is_of(&self, header: &FileHeader, nodes: u64, file: &str) -> Result<bool, LayoutError> {
        Ok(Self::from_header(header, file)? == (*self, nodes))
    }

    fn read<'p>(
        &'p self,
        page: u64,
        bytes: &'p [u8],
        nodes: Option<u64>,
        file: &'p str,
    ) -> Result<PageRecords<'p>, LayoutError> {
        let expected = nodes.map(|nodes| self.nodes_on_page(page, nodes));
        let view = LayoutView::open(self, bytes, page, expected, true, file)?;
        let record = |slot| {
            let node = view.node(slot)?;
            Ok((node.id, node.neighbours.bytes(), node.vector))
        };
        let records = 0..view.len();
        Ok(PageRecords {
            relocated: view.is_relocated(),
            first: self.first_node(page),
            begun: 0,
            left: 0,
            records: records
                .map(|slot| Stored::whole(view.node_number(slot), record(slot)))
                .collect(),
        })
    }
}

fn writer(choices: &Choices<'_>) -> Result<Planned, Error> {
    let (element, dim) = (choices.source.element(), choices.source.dim());
    let shape = CoupledShape::new(element, dim, choices.degree)?;
    Ok((Box::new(shape), shape.nodes_per_page()))
}

impl NodeWriter for CoupledShape {
    fn write(
        &self,
        build: &Writing<'_>,
        graph: &mut Constructed,
        codebook: &Codebook,
        _: &PagePlan,
    ) -> Result<Written, Error> {
        let header = self.header(build.source.rows() as u64);
        let (mut builder, mut page) = (PageBuilder::new(*self), 0);
        Sweep::with_codes(build, graph, codebook, |sweep| {
            write_raw(build, self, &header, sweep, |nodes, place, last, pages| {
                builder.push(nodes.id(place), nodes.vector(place), nodes.list(place));
                if builder.is_full() || last {
                    pages.extend_from_slice(builder.finish(page));
                    builder.clear();
                    page += 1;
                }
                Ok(())
            })
        })
    }
}
