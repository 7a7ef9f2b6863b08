//! Pages of adjacency lists only (DecoupleVS §3.3, "block-based auxiliary index organization").

use stratann_codec::{ListModel, elias_fano};

use stratann_layout::{DirectoryFile, FileKind, Manifest, SlottedShape};
use stratann_tier::Volume;

use super::Pages;
use crate::codebook::Codebook;
use crate::graph::Constructed;
use crate::plan::PageFile;
use crate::stores::composition::{CodesAt, Made, Records, VectorsAt};
use crate::stores::reading;
use crate::stores::slotted::{Slotted, SlottedComposer, SlottedPages, model};
use crate::stores::vectors::write::{SegmentFormat, SegmentWriter, codecs};
use crate::stores::writing::encode::Encoder;
use crate::stores::writing::files::write_stream;
use crate::stores::writing::slotted::SlottedFile;
use crate::stores::writing::sweep::{Sweep, Written};
use crate::stores::writing::{Choices, NodeWriter, PagePlan, Planned, Sizes, Writing};
use crate::stores::{Composable, Composition, NodePages, Placed, Record, RecordsMove};
use crate::{Error, stored};

pub(super) static COMPOSITION: Composition = Composition {
    about: "Compressed lists in pages of their own, compressed vectors in segments (DecoupleVS)",
    lists: FileKind::Adjacency,
    records: Records::slotted::<ListPages>(),
    vectors: VectorsAt::of::<ListPages>(),
    codes: CodesAt::of::<ListPages>(),
    made: Made::Graph { open, writer },
};

fn open(volume: &dyn Volume, manifest: &Manifest, placement: &Placed) -> Result<Pages, Error> {
    let directory = reading::directory(volume, manifest)?;
    let file = stored::file_of(volume, manifest, FileKind::Directory, None)?;
    Ok(Pages::Lists(ListPages {
        lists: model(&file, ListModel::from_bytes(&directory.list_model))?,
        pages: SlottedPages::open(volume, manifest, FileKind::Adjacency, &directory, placement)?,
    }))
}

pub(crate) struct ListPages {
    pub(crate) pages: SlottedPages,
    pub(crate) lists: ListModel,
}

impl NodePages for ListPages {
    const VECTORS: bool = false;
    const CODES: bool = false;
    type Changes = RecordsMove;
    type View<'p> = Slotted<'p>;

    #[inline]
    fn page_of(&self, node: u32) -> u64 {
        self.pages.page_of(node)
    }

    #[inline]
    fn place(&self, page: u64) -> (u64, usize) {
        self.pages.place(page)
    }

    #[inline]
    fn view<'p>(&'p self, bytes: &'p [u8], page: u64, check: bool) -> Result<Slotted<'p>, Error> {
        self.pages.view(bytes, page, check, false)
    }

    fn file(&self, _: u64) -> PageFile {
        self.pages.file()
    }

    fn table_bytes(&self) -> usize {
        self.pages.directory.memory_bytes()
    }

    fn cached_bytes(&self) -> usize {
        let list = elias_fano::slot_bytes(self.pages.shape.degree(), self.lists.nodes());
        Record::cached_bytes(list, 0, 0)
    }

    #[inline]
    fn list(&self, node: u32, record: &Record<'_>, out: &mut Vec<u32>) -> Result<(), Error> {
        self.pages.list(&self.lists, node, record, out)
    }
}

impl Composable for ListPages {
    type Composer = SlottedComposer;

    fn composer(&self) -> SlottedComposer {
        SlottedComposer::new(self.pages.shape)
    }

    fn records_a_page(&self) -> usize {
        self.pages.records_a_page()
    }

    fn encode_list(&self, node: u32, list: &[u32], out: &mut Vec<u8>) -> Result<(), Error> {
        self.pages.encode_list(&self.lists, node, list, out)
    }

    /// Appends nothing, because vectors are in segments.
    fn encode_vector(&self, _: u32, _: &[u8], _: &mut Vec<u8>) -> Result<(), Error> {
        Ok(())
    }
}

struct DecoupledFormat {
    lists: SlottedShape,
    segments: SegmentFormat,
}

fn writer(choices: &Choices<'_>) -> Result<Planned, Error> {
    let segments = SegmentFormat::new(choices)?;
    let lists = choices.slotted(FileKind::Adjacency, segments.coding.largest_list())?;
    let nodes = choices.expected.lists_a_page();
    Ok((Box::new(DecoupledFormat { lists, segments }), nodes))
}

/// Writes lists apart from vectors (DecoupleVS §3.3):
///
/// ```text
///   adjacency-…      slotted pages of lists
///   directory-…      models of lists; nodes of each page
///   vectors-…-0000   segments of vectors ([`crate::stores::vectors::write`])
/// ```
///
/// If a merge leaves the files of the first segments unchanged, only their chunks are written.
impl NodeWriter for DecoupledFormat {
    fn write(
        &self,
        build: &Writing<'_>,
        graph: &mut Constructed,
        codebook: &Codebook,
        plan: &PagePlan,
    ) -> Result<Written, Error> {
        Sweep::with_codes(build, graph, codebook, |sweep| {
            write(build, self, sweep, plan)
        })
    }

    fn sizes(&self, build: &Writing<'_>, graph: &mut Constructed) -> Result<Option<Sizes>, Error> {
        let nodes = graph.order.len();
        let sizes = Sizes::on(build, &self.lists, self.segments.coding);
        Ok(Some(sizes.of_lists_alone(nodes)))
    }
}

fn write(
    build: &Writing<'_>,
    format: &DecoupledFormat,
    sweep: &mut Sweep<'_>,
    plan: &PagePlan,
) -> Result<Written, Error> {
    let lists = format.segments.coding.learn_lists(sweep.lists())?;
    let mut encoder = Encoder::new(lists, build.options.threads);
    let adjacency = SlottedFile::create(&build.checkpoint, format.lists, None, 0)?;
    let mut adjacency = adjacency.planned(&plan.firsts);
    let (mut segments, mut segment_files) = (Vec::new(), Vec::new());
    let mut vector_bytes = 0;
    let kept = build.kept;
    for (n, segment) in (0..).zip(kept) {
        while let Some(nodes) = sweep.next(segment.facts.first + segment.facts.vectors)? {
            encoder.encode(&nodes, None)?;
            for (place, code) in encoder.codes().enumerate() {
                adjacency.push(nodes.id(place), code.list, &[])?;
            }
        }
        vector_bytes += segment.bytes;
        segments.push(segment.facts.clone());
        segment_files.extend(segment.files(build, n)?);
    }
    for (n, range) in (kept.len() as u32..).zip(sweep.segments(format.segments.segment_nodes())) {
        let mut segment = SegmentWriter::begin(build, &format.segments, &sweep.rows(), n, range)?;
        while let Some(nodes) = sweep.next(segment.end())? {
            encoder.encode(&nodes, Some(&segment.code))?;
            for (place, code) in encoder.codes().enumerate() {
                adjacency.push(nodes.id(place), code.list, &[])?;
                segment.push(nodes.number(place), nodes.id(place), code.vector)?;
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
