//! The stores of a graph index that is open: its topology, its vectors where these are apart, and what of both is in memory.

use std::borrow::Cow;
use std::collections::HashSet;
use std::sync::Arc;

use stratann_layout::{BLOCK, FileKind, HeatFile, Manifest, PlacementFile};
use stratann_tier::{Tier, Volume};

use super::resident::{Resident, Source};
use super::topology::placement::Placement;
use super::vectors::segments::Segments;
use super::{Composition, NodePages, Pages, Placed, VectorsAt, on_pages};
use crate::measure::Hottest;
use crate::plan::{MemoryPlan, PageFile};
use crate::{Error, stored};

/// Topology and vectors of a graph index that is open.
pub(crate) struct GraphStores {
    /// What its stores can do.
    pub(crate) composition: &'static Composition,
    /// Where its pages are read from.
    pub(crate) tier: Arc<dyn Tier>,
    /// The file's name in the volume.
    pub(crate) name: String,
    /// The file as errors name it.
    pub(crate) file: String,
    pub(crate) nodes: u64,
    pub(crate) pages: Pages,
    /// Pages that are in memory.
    pub(crate) resident: Resident,
    /// The vectors, where they are apart.
    pub(crate) segments: Option<Segments>,
    /// Where nodes are, once it takes direct inserts or has taken some.
    pub(crate) placement: Placed,
}

impl GraphStores {
    /// Opens the graph that the manifest names, with its segments. Reads tables and models; no pages.
    ///
    /// # Errors
    /// A file that is missing, damaged, of a later format or of another index.
    pub(crate) fn open(volume: &dyn Volume, manifest: &Manifest) -> Result<Self, Error> {
        let composition = stored::layout(volume, manifest)?.composition();
        let placement = Placed::default();
        let pages = composition.open(volume, manifest, &placement)?;
        let entry = stored::entry(volume, manifest, composition.lists, None)?;
        Ok(Self {
            composition,
            name: entry.name.clone(),
            file: stored::name_of(volume, &entry.name),
            tier: volume.open_tier(&entry.name)?,
            nodes: manifest.vectors,
            pages,
            resident: Resident::default(),
            segments: match composition.vectors {
                VectorsAt::Records => None,
                VectorsAt::Segments | VectorsAt::Parts => {
                    Some(Segments::open(volume, manifest, composition.vectors)?)
                }
            },
            placement,
        })
    }

    /// Bytes of the tables that say where things are: directories, chunk metadata, models.
    pub(crate) fn metadata_bytes(&self) -> usize {
        let directory = self.pages.table_bytes();
        let placement = self.placement.get().map_or(0, Placement::memory_bytes) as usize;
        directory + placement + self.segments.as_ref().map_or(0, Segments::metadata_bytes)
    }

    /// The pages of the graph, and those of all segments.
    pub(crate) fn files(&self) -> (PageFile, PageFile) {
        let mut vectors = PageFile::default();
        for segment in self.segments.iter().flat_map(Segments::iter) {
            vectors.pages += segment.pages.directory.pages();
            vectors.page_bytes = vectors.page_bytes.max(segment.pages.shape.page_bytes());
            vectors.several = vectors.several.max(segment.read_bytes());
        }
        (self.pages.file(self.nodes), vectors)
    }

    /// Takes on what came of it since its build, by a checkpoint. Nobody else has it yet.
    pub(crate) fn take_placement(
        &self,
        volume: &dyn Volume,
        manifest: &Manifest,
        file: &PlacementFile,
    ) -> Result<(), Error> {
        match self.composition.records_move() {
            true => self.take_pending(volume, manifest, file)?,
            false => {
                on_pages!(&self.pages, pages => self.take_journal(volume, manifest, file, pages)?)
            }
        }
        if let Some(segments) = &self.segments {
            let added = segments.grow(&file.added, &file.runs, file.nodes);
            if let Some(what) = added.too_long() {
                let file = stored::file_of(volume, manifest, FileKind::Placement, None)?;
                return Err(Error::Damaged { file, what });
            }
        }
        Ok(())
    }

    /// Takes on where nodes are and what waits for its page, where records move.
    fn take_pending(
        &self,
        volume: &dyn Volume,
        manifest: &Manifest,
        file: &PlacementFile,
    ) -> Result<(), Error> {
        let pending = stored::pending(volume, manifest)?;
        let mut known = HashSet::new();
        let twice = pending
            .records
            .iter()
            .find(|record| !known.insert(record.node));
        if let Some(record) = twice {
            return Err(Error::Damaged {
                file: stored::file_of(volume, manifest, FileKind::Pending, None)?,
                what: format!("node {} waits for its page twice", record.node),
            });
        }
        let _ = self.placement.set(Placement::restore(file, pending));
        Ok(())
    }

    /// Takes on the pages of the journal, which count instead of those in the file, where pages stay in their places.
    fn take_journal<N: NodePages>(
        &self,
        volume: &dyn Volume,
        manifest: &Manifest,
        file: &PlacementFile,
        pages: &N,
    ) -> Result<(), Error> {
        let placement = self.placement.get_or_init(|| pages.placement(file.nodes));
        placement.count(file);
        let page_bytes = pages.file(file.nodes.into()).page_bytes;
        let journal = stored::journal(volume, manifest, page_bytes)?;
        for (page, bytes) in journal.pages(page_bytes) {
            if page >= placement.pages() {
                return Err(Error::Damaged {
                    file: stored::file_of(volume, manifest, FileKind::Journal, None)?,
                    what: format!(
                        "it has page {page} of {}; {} nodes need no more",
                        placement.pages(),
                        file.nodes
                    ),
                });
            }
            pages.view(bytes, page.into(), true)?;
            placement.unwritten.insert(page, bytes.into());
        }
        Ok(())
    }

    /// Puts the hottest pages into memory, as a plan of the memory says; without `heat`, the first ones.
    pub(crate) fn load(
        &mut self,
        volume: &dyn Volume,
        memory_plan: &MemoryPlan,
        heat: Option<&HeatFile>,
    ) -> Result<(), Error> {
        if memory_plan.graph_share > 0.0 {
            let PageFile {
                pages, page_bytes, ..
            } = self.pages.file(self.nodes);
            let source = Source {
                volume,
                name: &self.name,
                pages,
                page_bytes,
                start: BLOCK as u64,
            };
            let mut hot = hottest(
                heat.map(|heat| &*heat.graph),
                pages,
                memory_plan.graph_share,
            );
            // What a page without nodes holds is of no account, nor what one has that is to be written anew.
            let placement = self.placement.get();
            let in_use = placement.map(Placement::pages_in_use);
            let mut wanted = |page: u64| {
                let used = |in_use: &Vec<bool>| in_use.get(page as usize).is_some_and(|&used| used);
                let used = in_use.as_ref().is_none_or(used);
                let old = placement.is_some_and(|p| p.unwritten.get(page as u32).is_some());
                hot(page) && used && !old
            };
            let pages = &self.pages;
            self.resident = Resident::load(&source, &mut wanted, &|page, bytes| {
                pages.check(page, bytes)
            })?;
        }
        if memory_plan.vector_share > 0.0 {
            let (_, all) = self.files();
            let mut wanted = hottest(
                heat.map(|heat| &*heat.vectors),
                all.pages,
                memory_plan.vector_share,
            );
            for segment in self.segments.iter_mut().flat_map(Segments::iter_mut) {
                let source = Source {
                    volume,
                    name: &segment.name,
                    pages: segment.pages.directory.pages(),
                    page_bytes: segment.pages.shape.page_bytes(),
                    start: BLOCK as u64,
                };
                let resident = Resident::load(&source, &mut wanted, &|page, bytes| {
                    segment.view(bytes, page, true).map(|_| ())
                })?;
                segment.resident = resident;
            }
        }
        Ok(())
    }
}

/// Says of one page after the other whether it is of the hottest `share`.
fn hottest(heat: Option<&[u16]>, pages: u64, share: f64) -> impl FnMut(u64) -> bool {
    let heat = heat.map_or_else(|| Cow::Owned(vec![0; pages as usize]), Cow::Borrowed);
    let mut hottest = Hottest::new(&heat, share);
    let mut next = 0;
    move |_| {
        next += 1;
        heat.get(next - 1)
            .is_some_and(|&reads| hottest.takes(reads))
    }
}
