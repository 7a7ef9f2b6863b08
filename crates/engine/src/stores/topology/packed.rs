//! Packed pages: a node's compressed list and compressed vector side by side in slotted pages.

use stratann_codec::{ListModel, SegmentModel, elias_fano};
use stratann_layout::{DirectoryFile, FileKind, Manifest, SlottedShape};
use stratann_tier::Volume;

use super::Pages;
use crate::codebook::Codebook;
use crate::graph::Constructed;
use crate::plan::PageFile;
use crate::stores::composition::{CodesAt, Made, Records, VectorsAt};
use crate::stores::reading;
use crate::stores::slotted::{Slotted, SlottedComposer, SlottedPages, model};
use crate::stores::writing::coding::Coding;
use crate::stores::writing::encode::Encoder;
use crate::stores::writing::files::write_stream;
use crate::stores::writing::slotted::SlottedFile;
use crate::stores::writing::sweep::{Nodes, Sweep, Written};
use crate::stores::writing::{Choices, NodeWriter, PagePlan, Planned, Sizes, Writing};
use crate::stores::{Composable, Composition, NodePages, Placed, Record, RecordsMove, undecodable};
use crate::{Error, stored};

pub(super) static COMPOSITION: Composition = Composition {
    about: "Compressed vector and compressed list side by side",
    lists: FileKind::Packed,
    records: Records::slotted::<PackedPages>(),
    vectors: VectorsAt::of::<PackedPages>(),
    codes: CodesAt::of::<PackedPages>(),
    made: Made::Graph { open, writer },
};

fn open(volume: &dyn Volume, manifest: &Manifest, placement: &Placed) -> Result<Pages, Error> {
    let directory = reading::directory(volume, manifest)?;
    let file = stored::file_of(volume, manifest, FileKind::Directory, None)?;
    let vectors = directory
        .vector_models
        .iter()
        .map(|bytes| model(&file, SegmentModel::from_bytes(bytes)))
        .collect::<Result<Vec<_>, _>>()?;
    let needed = manifest
        .vectors
        .div_ceil(directory.segment_vectors.max(1).into());
    if vectors.len() as u64 != needed {
        return Err(Error::Damaged {
            file,
            what: format!(
                "it has {} models of vectors; {needed} are needed",
                vectors.len()
            ),
        });
    }
    Ok(Pages::Packed(PackedPages {
        lists: model(&file, ListModel::from_bytes(&directory.list_model))?,
        vectors,
        segment_vectors: directory.segment_vectors,
        pages: SlottedPages::open(volume, manifest, FileKind::Packed, &directory, placement)?,
    }))
}

pub(crate) struct PackedPages {
    pub(crate) pages: SlottedPages,
    pub(crate) lists: ListModel,
    /// Each model covers `segment_vectors` consecutive nodes.
    pub(crate) vectors: Vec<SegmentModel>,
    pub(crate) segment_vectors: u32,
}

impl PackedPages {
    /// Nodes inserted after the build use the last model.
    #[inline]
    fn model(&self, node: u32) -> &SegmentModel {
        let segment = (node / self.segment_vectors) as usize;
        &self.vectors[segment.min(self.vectors.len() - 1)]
    }
}

impl NodePages for PackedPages {
    const VECTORS: bool = true;
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
        self.pages.view(bytes, page, check, true)
    }

    fn file(&self, _: u64) -> PageFile {
        self.pages.file()
    }

    fn table_bytes(&self) -> usize {
        self.pages.directory.memory_bytes()
    }

    fn cached_bytes(&self) -> usize {
        let list = elias_fano::slot_bytes(self.pages.shape.degree(), self.lists.nodes());
        Record::cached_bytes(list, 0, self.pages.shape.vector_bytes() + 1)
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
        match self.model(node).decode(record.vector, None, scratch) {
            Ok(()) => Ok(scratch),
            Err(error) => Err(undecodable(&self.pages.file, node, &error)),
        }
    }
}

impl Composable for PackedPages {
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

    fn encode_vector(&self, node: u32, vector: &[u8], out: &mut Vec<u8>) -> Result<(), Error> {
        match self.model(node).encode(vector, None, out) {
            Ok(_) => Ok(()),
            Err(error) => Err(undecodable(&self.pages.file, node, &error)),
        }
    }
}

fn writer(choices: &Choices<'_>) -> Result<Planned, Error> {
    let nodes = choices.expected.nodes_a_page();
    Ok((Box::new(PackedFormat::new(choices)?), nodes))
}

struct PackedFormat {
    shape: SlottedShape,
    coding: Coding,
    segment_nodes: u32,
}

impl PackedFormat {
    /// A segment has as many bytes of vectors as the options request, but at least one vector.
    fn new(choices: &Choices<'_>) -> Result<Self, Error> {
        let coding = choices.coding()?;
        let largest = coding.largest_list() + coding.largest_vector();
        Ok(Self {
            shape: choices.slotted(FileKind::Packed, largest)?,
            segment_nodes: (choices.options.segment_bytes / coding.vector_bytes() as u64)
                .clamp(1, u64::from(u32::MAX)) as u32,
            coding,
        })
    }
}

/// Also writes the directory, with the models and the nodes of each page.
impl NodeWriter for PackedFormat {
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
        let mut sweep = Sweep::new(build, graph, None, "measuring records")?;
        let mut sizes = Sizes::on(build, &self.shape, self.coding);
        encode(build, self, &mut sweep, |_, encoder| {
            sizes.add(encoder);
            Ok(())
        })?;
        Ok(Some(sizes))
    }
}

/// Passes each encoded batch to `each`. Returns the encoder and the models of vectors.
fn encode(
    build: &Writing<'_>,
    format: &PackedFormat,
    sweep: &mut Sweep<'_>,
    mut each: impl FnMut(&Nodes<'_>, &Encoder) -> Result<(), Error>,
) -> Result<(Encoder, Vec<Vec<u8>>), Error> {
    let lists = format.coding.learn_lists(sweep.lists())?;
    let mut encoder = Encoder::new(lists, build.options.threads);
    let mut vector_models = Vec::new();
    for segment in sweep.segments(format.segment_nodes) {
        let end = segment.end;
        // A base belongs to a chunk of vectors (DecoupleVS §3.3), and packed pages have no chunks.
        let vectors = format
            .coding
            .learn_vectors(build, &sweep.rows(), segment, None)?;
        vector_models.push(vectors.model.to_bytes());
        while let Some(nodes) = sweep.next(end)? {
            encoder.encode(&nodes, Some(&vectors))?;
            each(&nodes, &encoder)?;
        }
    }
    Ok((encoder, vector_models))
}

fn write(
    build: &Writing<'_>,
    format: &PackedFormat,
    sweep: &mut Sweep<'_>,
    plan: &PagePlan,
) -> Result<Written, Error> {
    let pages = SlottedFile::create(&build.checkpoint, format.shape, None, 0)?;
    let mut pages = pages.planned(&plan.firsts);
    let (encoder, vector_models) = encode(build, format, sweep, |nodes, encoder| {
        for (place, code) in encoder.codes().enumerate() {
            pages.push(nodes.id(place), code.list, code.vector)?;
        }
        Ok(())
    })?;
    let (pages, counts) = pages.finish()?;
    let directory = DirectoryFile {
        list_model: encoder.list_model(),
        segment_vectors: format.segment_nodes,
        vector_models,
        counts,
    };
    let directory = write_stream(
        &build.checkpoint,
        FileKind::Directory,
        None,
        &directory.encode(),
    )?;
    Ok(Written {
        files: vec![pages, directory],
        list_bytes: encoder.list_bytes(),
        vector_bytes: encoder.vector_bytes(),
        list_codec: encoder.list_codecs(),
        vector_codec: encoder.vector_codecs(),
        segments: Vec::new(),
    })
}
