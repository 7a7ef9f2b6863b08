//! Inline pages: like coupled pages, but with the codes of the neighbours beside each list (AiSAQ
//! §3.1).
//!
//! Neither codes nor a table of pages are in memory. The page of a node follows from its number
//! even after inserts, and pages are rewritten in place.

use stratann_layout::{
    EntryPoints, FileHeader, FileKind, Geometry, InlineBuilder, InlineShape,
    InlineView as LayoutView, LayoutError, Manifest, inline,
};
use stratann_tier::Volume;
use stratann_vector::Element;

use super::Pages;
use super::coupled::words;
use super::placement::Placement;
use crate::codebook::Codebook;
use crate::graph::Constructed;
use crate::plan::PageFile;
use crate::stores::composition::{CodesAt, Made, Records, VectorsAt};
use crate::stores::reading;
use crate::stores::records::{FixedFormat, PageFormat, PageRecords, Stored};
use crate::stores::writing::codes::NodeCodes;
use crate::stores::writing::files::write_stream;
use crate::stores::writing::raw::write_raw;
use crate::stores::writing::sweep::{Sweep, Written};
use crate::stores::writing::{Choices, NodeWriter, PagePlan, Planned, Writing};
use crate::stores::{
    CodedComposer, Composition, NodePages, PageView, PagesStay, Placed, Record, Rewritable,
};
use crate::{Error, stored};

pub(super) static COMPOSITION: Composition = Composition {
    about: "As coupled, with the codes of neighbours in each node, so that no codes stay in memory (AiSAQ)",
    lists: FileKind::Inline,
    records: Records::fixed::<InlinePages>(page_format, record_bytes),
    vectors: VectorsAt::of::<InlinePages>(),
    codes: CodesAt::of::<InlinePages>(),
    made: Made::Graph { open, writer },
};

fn page_format(manifest: &Manifest) -> Result<Box<dyn FixedFormat>, Error> {
    Ok(Box::new(reading::inline_shape(manifest)?))
}

fn record_bytes(element: Element, dim: usize, degree: usize, code_bytes: usize, _: u64) -> f64 {
    inline::fill(element, dim, degree, code_bytes).record_bytes()
}

fn open(volume: &dyn Volume, manifest: &Manifest, _: &Placed) -> Result<Pages, Error> {
    let (shape, entry) = reading::inline(volume, manifest)?;
    Ok(Pages::Inline(InlinePages {
        shape,
        file: stored::name_of(volume, &entry.name),
    }))
}

pub(crate) struct InlinePages {
    pub(crate) shape: InlineShape,
    pub(crate) file: String,
}

#[derive(Clone, Copy)]
pub(crate) struct InlineView<'p> {
    view: LayoutView<'p>,
    first: u32,
}

impl<'p> PageView<'p> for InlineView<'p> {
    #[inline]
    fn node(self, slot: usize) -> Result<u32, Error> {
        Ok(self.first.saturating_add(slot as u32))
    }

    #[inline]
    fn slot_of(self, node: u32) -> Option<usize> {
        let slot = node.checked_sub(self.first)? as usize;
        (slot < self.view.len()).then_some(slot)
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
            codes: node.codes,
            vector: node.vector,
        })
    }
}

impl NodePages for InlinePages {
    const VECTORS: bool = true;
    const CODES: bool = true;
    type Changes = PagesStay;
    type View<'p> = InlineView<'p>;

    #[inline]
    fn page_of(&self, node: u32) -> u64 {
        self.shape.page_of(node)
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
    ) -> Result<InlineView<'p>, Error> {
        // While a process inserts vectors, the last page of the index may have any number of nodes.
        let view = LayoutView::open(&self.shape, bytes, page, None, check, &self.file)?;
        let first = self.shape.first_node(page) as u32;
        Ok(InlineView { view, first })
    }

    fn file(&self, nodes: u64) -> PageFile {
        PageFile::new(self.shape.pages(nodes), self.shape.page_bytes())
    }

    fn placement(&self, nodes: u32) -> Placement {
        Placement::even(nodes, self.shape.nodes_per_page() as u32)
    }

    fn cached_bytes(&self) -> usize {
        let shape = &self.shape;
        let codes = shape.code_bytes() * shape.degree();
        Record::cached_bytes(4 * shape.degree(), codes, shape.vector_bytes())
    }

    #[inline]
    fn list(&self, _: u32, record: &Record<'_>, out: &mut Vec<u32>) -> Result<(), Error> {
        words(record.list, out);
        Ok(())
    }
}

impl Rewritable for InlinePages {
    type Composer = InlineBuilder;

    fn composer(&self) -> InlineBuilder {
        InlineBuilder::new(self.shape)
    }

    fn first_node(&self, page: u32) -> u64 {
        self.shape.first_node(page.into())
    }
}

impl CodedComposer for InlineBuilder {
    fn start(&mut self) {
        self.clear();
    }

    fn push(&mut self, id: u64, vector: &[u8], list: &[u32], codes: &[u8]) -> bool {
        let fits = !self.is_full();
        if fits {
            self.push(id, vector, list, codes);
        }
        fits
    }

    fn finish(&mut self, page: u32) -> &[u8] {
        self.finish(page.into())
    }
}

impl FixedFormat for InlineShape {
    fn nodes_a_page(&self) -> u64 {
        self.nodes_per_page() as u64
    }
}

impl PageFormat for InlineShape {
    fn page_bytes(&self) -> usize {
        Geometry::page_bytes(self)
    }

    fn as_fixed(&self) -> Option<&dyn FixedFormat> {
        Some(self)
    }

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
        let (first, records) = (self.first_node(page), 0..view.len());
        Ok(PageRecords {
            relocated: false,
            first,
            begun: 0,
            left: 0,
            records: records
                .map(|slot| {
                    let node = first.saturating_add(slot as u64);
                    // A record beyond the largest node number belongs to no node.
                    let node = u32::try_from(node).map_err(|_| LayoutError::Field {
                        file: file.to_owned(),
                        offset: self.file_offset(page),
                        what: "node of a record",
                        found: node.to_string(),
                        expected: "below 2^32".into(),
                    });
                    Stored::whole(node, record(slot))
                })
                .collect(),
        })
    }
}

fn writer(choices: &Choices<'_>) -> Result<Planned, Error> {
    let (element, dim) = (choices.source.element(), choices.source.dim());
    let shape = InlineShape::new(element, dim, choices.degree, choices.code_bytes)?;
    Ok((Box::new(shape), shape.nodes_per_page()))
}

/// Also writes the entry points with their codes. A page is a block with as many nodes as fit, or
/// several blocks with one node.
impl NodeWriter for InlineShape {
    fn write(
        &self,
        build: &Writing<'_>,
        graph: &mut Constructed,
        codebook: &Codebook,
        _: &PagePlan,
    ) -> Result<Written, Error> {
        // A node may have any other node as a neighbour, so all codes are computed first.
        let rows = graph.rows.in_order(&graph.order, build.source);
        let codes = NodeCodes::encode(build, &rows, codebook)?;
        let entries = build.entry_points(graph.entry);
        let mut sweep = Sweep::new(build, graph, None, "writing")?;
        let header = self.header(build.source.rows() as u64);
        let (mut builder, mut page) = (InlineBuilder::new(*self), 0);
        let mut of_list = Vec::new();
        let mut written = write_raw(
            build,
            self,
            &header,
            &mut sweep,
            |nodes, place, last, pages| {
                let list = nodes.list(place);
                codes.gather(list, &mut of_list)?;
                builder.push(nodes.id(place), nodes.vector(place), list, &of_list);
                if builder.is_full() || last {
                    pages.extend_from_slice(builder.finish(page));
                    builder.clear();
                    page += 1;
                }
                Ok(())
            },
        )?;
        codes.gather(&entries, &mut of_list)?;
        let points = EntryPoints {
            nodes: entries,
            codes: of_list,
        };
        let (kind, payload) = (FileKind::Entries, points.encode());
        let entries = write_stream(&build.checkpoint, kind, None, &payload)?;
        written.files.push(entries);
        Ok(written)
    }
}
