//! Rows of a CSR graph, each with the list and the vector of a node. A read covers exactly the
//! bytes of a row (second-tier memory, §5). A row counts as a page with one node.

use std::borrow::Cow;

use stratann_layout::{BLOCK, CsrRow, CsrShape, FileHeader, FileKind, LayoutError, Manifest};
use stratann_tier::Volume;
use stratann_vector::Element;

use super::Pages;
use crate::codebook::Codebook;
use crate::graph::Constructed;
use crate::plan::PageFile;
use crate::stores::composition::{CodesAt, Made, Records, VectorsAt};
use crate::stores::reading;
use crate::stores::records::{FixedFormat, PageFormat, PageRecords, Stored, StoredBytes};
use crate::stores::writing::raw::write_raw;
use crate::stores::writing::sweep::{Sweep, Written};
use crate::stores::writing::{Choices, NodeWriter, PagePlan, Planned, Writing};
use crate::stores::{Composition, NodePages, NothingChanges, PageView, Placed, Record};
use crate::{Error, stored};

pub(super) static COMPOSITION: Composition = Composition {
    about: "Vector and list side by side without padding, for memory that can be read by bytes (CSR)",
    lists: FileKind::Csr,
    records: Records::unchanging(page_format, record_bytes),
    vectors: VectorsAt::of::<CsrPages>(),
    codes: CodesAt::of::<CsrPages>(),
    made: Made::Graph { open, writer },
};

fn page_format(manifest: &Manifest) -> Result<Box<dyn FixedFormat>, Error> {
    Ok(Box::new(reading::csr_shape(manifest)?))
}

fn record_bytes(element: Element, dim: usize, degree: usize, _: usize, nodes: u64) -> f64 {
    let shape = CsrShape::new(element, dim, degree, nodes);
    shape.map_or(f64::INFINITY, |shape| shape.row_bytes() as f64)
}

fn open(volume: &dyn Volume, manifest: &Manifest, _: &Placed) -> Result<Pages, Error> {
    let (shape, entry) = reading::csr(volume, manifest)?;
    Ok(Pages::rows(shape, stored::name_of(volume, &entry.name)))
}

pub(crate) struct CsrPages {
    shape: CsrShape,
    file: String,
}

impl CsrPages {
    pub(super) fn new(shape: CsrShape, file: String) -> Self {
        Self { shape, file }
    }
}

#[derive(Clone, Copy)]
pub(crate) struct CsrView<'p> {
    row: CsrRow<'p>,
    node: u32,
}

impl<'p> PageView<'p> for CsrView<'p> {
    #[inline]
    fn node(self, _: usize) -> Result<u32, Error> {
        Ok(self.node)
    }

    #[inline]
    fn slot_of(self, node: u32) -> Option<usize> {
        (node == self.node).then_some(0)
    }

    #[inline]
    fn len(self) -> usize {
        1
    }

    #[inline]
    fn record(self, _: usize) -> Result<Record<'p>, Error> {
        let CsrRow { id, vector, list } = self.row;
        Ok(Record {
            id,
            list,
            list_and_rest: list,
            codes: &[],
            vector,
        })
    }
}

impl NodePages for CsrPages {
    const VECTORS: bool = true;
    const CODES: bool = false;
    type Changes = NothingChanges;
    type View<'p> = CsrView<'p>;

    #[inline]
    fn page_of(&self, node: u32) -> u64 {
        node.into()
    }

    #[inline]
    fn place(&self, page: u64) -> (u64, usize) {
        (self.shape.file_offset(page), self.shape.row_bytes())
    }

    #[inline]
    fn view<'p>(&'p self, bytes: &'p [u8], page: u64, check: bool) -> Result<CsrView<'p>, Error> {
        let row = CsrRow::open(&self.shape, bytes, page, check, &self.file)?;
        // The number of a row is the number of its node.
        let node = page as u32;
        Ok(CsrView { row, node })
    }

    fn file(&self, nodes: u64) -> PageFile {
        let row = self.shape.row_bytes();
        PageFile {
            // A device that reads blocks transfers all blocks with bytes of the row.
            several: row.next_multiple_of(BLOCK) + BLOCK,
            ..PageFile::new(nodes, row)
        }
    }

    fn cached_bytes(&self) -> usize {
        Record::cached_bytes(self.shape.list_bytes(), 0, self.shape.vector_bytes())
    }

    #[inline]
    fn list(&self, node: u32, record: &Record<'_>, out: &mut Vec<u32>) -> Result<(), Error> {
        Ok(self
            .shape
            .links(record.list, node.into(), &self.file, out)?)
    }
}

impl FixedFormat for CsrShape {
    fn nodes_a_page(&self) -> u64 {
        1
    }
}

impl PageFormat for CsrShape {
    fn page_bytes(&self) -> usize {
        self.row_bytes()
    }

    fn as_fixed(&self) -> Option<&dyn FixedFormat> {
        Some(self)
    }

    fn padding(&self, _: u64) -> usize {
        CsrShape::padding(self)
    }

    fn list_bytes(&self, _: &[u8]) -> usize {
        CsrShape::list_bytes(self)
    }

    fn is_of(&self, header: &FileHeader, nodes: u64, file: &str) -> Result<bool, LayoutError> {
        Ok(Self::from_header(header, file)? == *self && self.nodes() == nodes)
    }

    fn read<'p>(
        &'p self,
        page: u64,
        bytes: &'p [u8],
        _: Option<u64>,
        file: &'p str,
    ) -> Result<PageRecords<'p>, LayoutError> {
        let row = CsrRow::open(self, bytes, page, true, file)?;
        let mut links = Vec::with_capacity(self.degree());
        let list = self.links(row.list, page, file, &mut links).map(|()| {
            let words = links.iter().flat_map(|link| link.to_le_bytes());
            words.collect::<Vec<u8>>()
        });
        Ok(PageRecords {
            relocated: false,
            first: page,
            begun: 0,
            left: 0,
            records: vec![Stored {
                node: Ok(page as u32),
                id: Ok(row.id),
                bytes: list.map(|list| StoredBytes {
                    list: Cow::Owned(list),
                    vector: Cow::Borrowed(row.vector),
                }),
            }],
        })
    }
}

fn writer(choices: &Choices<'_>) -> Result<Planned, Error> {
    let (element, dim) = (choices.source.element(), choices.source.dim());
    let rows = choices.source.rows() as u64;
    let shape = CsrShape::new(element, dim, choices.degree, rows)?;
    let in_a_block = BLOCK / shape.row_bytes();
    Ok((Box::new(shape), in_a_block.max(1)))
}

impl NodeWriter for CsrShape {
    fn write(
        &self,
        build: &Writing<'_>,
        graph: &mut Constructed,
        codebook: &Codebook,
        _: &PagePlan,
    ) -> Result<Written, Error> {
        let header = self.header();
        Sweep::with_codes(build, graph, codebook, |sweep| {
            write_raw(build, self, &header, sweep, |nodes, place, last, rows| {
                let (node, id) = (nodes.number(place), nodes.id(place));
                self.push(node, id, nodes.vector(place), nodes.list(place), rows);
                if last {
                    rows.resize(rows.len() + self.padding(), 0);
                }
                Ok(())
            })
        })
    }
}
