//! Layered pages: a node's compressed list beside the leading part of its vector.
//!
//! The leading part is exact enough for ranking. It takes so little space that a page has several
//! times as many nodes. At its end, a search reads trailing parts only for the few nodes whose rank
//! is in doubt.
//!
//! ```text
//!   layered-…        slotted pages: | list, leading part, id | ..   in the order of nodes
//!   directory-…      models of lists and vectors; nodes of each page
//!   vectors-…-0000   segments of trailing parts
//! ```

use stratann_codec::{ListModel, NestedModel, elias_fano};
use stratann_layout::{DirectoryFile, FileKind, Manifest, SlottedShape};
use stratann_tier::Volume;

use super::Pages;
use crate::codebook::Codebook;
use crate::graph::Constructed;
use crate::plan::CANDIDATE_BYTES;
use crate::plan::PageFile;
use crate::stores::composition::{CodesAt, Made, Records, VectorsAt};
use crate::stores::reading;
use crate::stores::slotted::{Slotted, SlottedComposer, SlottedPages, model};
use crate::stores::vectors::write::{SegmentFormat, SegmentWriter, codecs};
use crate::stores::writing::encode::Encoder;
use crate::stores::writing::files::write_stream;
use crate::stores::writing::precision::leading_step;
use crate::stores::writing::slotted::SlottedFile;
use crate::stores::writing::sweep::{Sweep, Written};
use crate::stores::writing::{Choices, NodeWriter, PagePlan, Planned, Sizes, Writing};
use crate::stores::{Composable, Composition, NodePages, Placed, Record, RecordsMove, undecodable};
use crate::{Error, stored};

pub(super) static COMPOSITION: Composition = Composition {
    about: "Compressed lists beside the leading parts of vectors; the trailing parts are in segments",
    lists: FileKind::Layered,
    records: Records::slotted::<LayeredPages>(),
    vectors: VectorsAt::of::<LayeredPages>(),
    codes: CodesAt::of::<LayeredPages>(),
    made: Made::Graph { open, writer },
};

fn open(volume: &dyn Volume, manifest: &Manifest, placement: &Placed) -> Result<Pages, Error> {
    let directory = reading::directory(volume, manifest)?;
    let file = stored::file_of(volume, manifest, FileKind::Directory, None)?;
    let vectors = directory
        .vector_models
        .iter()
        .map(|bytes| model(&file, NestedModel::from_bytes(bytes)))
        .collect::<Result<Vec<_>, _>>()?;
    if vectors.len() != manifest.segments.len() || vectors.is_empty() {
        return Err(Error::Damaged {
            file,
            what: format!(
                "it has {} models of vectors; {} are needed, one for each segment",
                vectors.len(),
                manifest.segments.len()
            ),
        });
    }
    Ok(Pages::Layered(LayeredPages {
        lists: model(&file, ListModel::from_bytes(&directory.list_model))?,
        vectors,
        segment_vectors: directory.segment_vectors.max(1),
        pages: SlottedPages::open(volume, manifest, FileKind::Layered, &directory, placement)?,
    }))
}

pub(crate) struct LayeredPages {
    pub(crate) pages: SlottedPages,
    lists: ListModel,
    /// Each model covers `segment_vectors` consecutive nodes.
    vectors: Vec<NestedModel>,
    segment_vectors: u32,
}

impl LayeredPages {
    /// Nodes inserted after the build use the last model.
    #[inline]
    fn model(&self, node: u32) -> &NestedModel {
        let segment = (node / self.segment_vectors) as usize;
        &self.vectors[segment.min(self.vectors.len() - 1)]
    }
}

impl NodePages for LayeredPages {
    const VECTORS: bool = true;
    const PARTS: bool = true;
    const CODES: bool = false;
    type Changes = RecordsMove;
    type View<'p> = Slotted<'p>;

    #[inline]
    fn page_of(&self, node: u32) -> u64 {
        self.pages.page_of(node)
    }

    fn built_page(&self, node: u32) -> Option<u64> {
        let directory = &self.pages.directory;
        (u64::from(node) < directory.nodes()).then(|| directory.page_of(node))
    }

    #[inline]
    fn place(&self, page: u64) -> (u64, usize) {
        self.pages.place(page)
    }

    #[inline]
    fn view<'p>(&'p self, bytes: &'p [u8], page: u64, check: bool) -> Result<Slotted<'p>, Error> {
        self.pages.view(bytes, page, check, true)
    }

    fn file(&self, _: u64) -> PageFile {
        PageFile {
            candidate: self.pages.shape.dim() + 1 + CANDIDATE_BYTES,
            ..self.pages.file()
        }
    }

    fn table_bytes(&self) -> usize {
        let models = self.vectors.iter().map(NestedModel::memory_bytes);
        self.pages.directory.memory_bytes() + models.sum::<usize>()
    }

    fn cached_bytes(&self) -> usize {
        let list = elias_fano::slot_bytes(self.pages.shape.degree(), self.lists.nodes());
        Record::cached_bytes(list, 0, self.pages.shape.dim() + 1)
    }

    #[inline]
    fn list(&self, node: u32, record: &Record<'_>, out: &mut Vec<u32>) -> Result<(), Error> {
        self.pages.list(&self.lists, node, record, out)
    }

    #[inline]
    fn vector<'s>(
        &'s self,
        node: u32,
        record: &Record<'s>,
        scratch: &'s mut [u8],
    ) -> Result<&'s [u8], Error> {
        match self.model(node).decode_leading(record.vector, scratch) {
            Ok(_) => Ok(scratch),
            Err(error) => Err(undecodable(&self.pages.file, node, &error)),
        }
    }

    fn leading_part(&self, node: u32, vector: &[u8], out: &mut Vec<u8>) -> Result<(), Error> {
        match self.model(node).encode(vector, out, &mut Vec::new()) {
            Ok(()) => Ok(()),
            Err(error) => Err(undecodable(&self.pages.file, node, &error)),
        }
    }

    #[inline]
    fn error(&self, node: u32, part: &[u8]) -> f32 {
        match NestedModel::is_near(part) {
            true => self.model(node).error(),
            false => f32::INFINITY,
        }
    }
}

impl Composable for LayeredPages {
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

    /// Encodes only the leading part. Other code appends the trailing part to the last segment.
    fn encode_vector(&self, node: u32, vector: &[u8], out: &mut Vec<u8>) -> Result<(), Error> {
        self.leading_part(node, vector, out)
    }
}

struct LayeredFormat {
    pages: SlottedShape,
    segments: SegmentFormat,
}

fn writer(choices: &Choices<'_>) -> Result<Planned, Error> {
    let segments = SegmentFormat::of_parts(choices)?;
    let (leading, _) = segments.coding.largest_parts();
    let largest = segments.coding.largest_list() + leading;
    let pages = choices.slotted(FileKind::Layered, largest)?;
    let nodes = choices.expected.leading_a_page();
    Ok((Box::new(LayeredFormat { pages, segments }), nodes))
}

impl NodeWriter for LayeredFormat {
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
        let coding = &self.segments.coding;
        let mut sweep = Sweep::new(build, graph, None, "measuring records")?;
        let lists = coding.learn_lists(sweep.lists())?;
        let step = leading_step(build, coding, &mut sweep, self.pages.page_bytes())?;
        let mut encoder = Encoder::new(lists, build.options.threads);
        let mut sizes = Sizes::on(build, &self.pages, *coding);
        for range in sweep.segments(self.segments.segment_nodes()) {
            let code = coding.learn_parts(&sweep.rows(), range.clone(), step)?;
            while let Some(nodes) = sweep.next(range.end)? {
                encoder.encode(&nodes, Some(&code))?;
                sizes.add(&encoder);
            }
        }
        sizes.step = Some(step);
        Ok(Some(sizes))
    }
}

fn write(
    build: &Writing<'_>,
    format: &LayeredFormat,
    sweep: &mut Sweep<'_>,
    plan: &PagePlan,
) -> Result<Written, Error> {
    let coding = &format.segments.coding;
    let lists = coding.learn_lists(sweep.lists())?;
    let step = match plan.step {
        Some(step) => step,
        None => leading_step(build, coding, sweep, format.pages.page_bytes())?,
    };
    let mut encoder = Encoder::new(lists, build.options.threads);
    let pages = SlottedFile::create(&build.checkpoint, format.pages, None, 0)?;
    let mut pages = pages.planned(&plan.firsts);
    let (mut segments, mut segment_files) = (Vec::new(), Vec::new());
    let mut vector_models = Vec::new();
    for (n, range) in (0..).zip(sweep.segments(format.segments.segment_nodes())) {
        let code = coding.learn_parts(&sweep.rows(), range.clone(), step)?;
        vector_models.push(code.model.to_bytes());
        let mut segment = SegmentWriter::with(build, &format.segments, n, range, code)?;
        while let Some(nodes) = sweep.next(segment.end())? {
            encoder.encode(&nodes, Some(&segment.code))?;
            for (place, code) in encoder.codes().enumerate() {
                pages.push(nodes.id(place), code.list, code.leading)?;
                segment.push(nodes.number(place), nodes.id(place), code.vector)?;
            }
        }
        segments.push(segment.facts());
        segment_files.extend(segment.finish(build)?);
    }
    let (pages, counts) = pages.finish()?;
    let directory = DirectoryFile {
        list_model: encoder.list_model(),
        segment_vectors: format.segments.segment_nodes(),
        vector_models,
        counts,
    };
    let directory = write_stream(
        &build.checkpoint,
        FileKind::Directory,
        None,
        &directory.encode(),
    )?;
    let mut files = vec![pages, directory];
    files.extend(segment_files);
    Ok(Written {
        files,
        list_bytes: encoder.list_bytes(),
        vector_bytes: encoder.vector_bytes(),
        list_codec: encoder.list_codecs(),
        vector_codec: codecs(&segments),
        segments,
    })
}
