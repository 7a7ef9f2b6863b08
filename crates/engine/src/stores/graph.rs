//! The stores of an open graph index: topology, vectors apart from lists, and pages in memory.

use std::collections::HashSet;
use std::sync::Arc;

use stratann_layout::{BLOCK, FileKind, HeatFile, Manifest, PlacementFile};
use stratann_tier::{Tier, Volume};

use super::resident::{Resident, Source};
use super::topology::placement::Placement;
use super::vectors::segments::Segments;
use super::{Composition, NodePages, Pages, Placed, VectorsAt, on_pages};
use crate::plan::{MemoryPlan, PageFile};
use crate::stores::heat::Hottest;
use crate::stores::reading;
use crate::{Error, stored};

pub(crate) struct GraphStores {
    pub(crate) composition: &'static Composition,
    pub(crate) tier: Arc<dyn Tier>,
    pub(crate) name: String,
    pub(crate) file: String,
    pub(crate) nodes: u64,
    pub(crate) pages: Pages,
    pub(crate) resident: Resident,
    pub(crate) segments: Option<Segments>,
    /// Set if the index has taken direct inserts, or may take them.
    pub(crate) placement: Placed,
}

impl GraphStores {
    pub(crate) fn open(volume: &dyn Volume, manifest: &Manifest) -> Result<Self, Error> {
        let composition = stored::layout(volume, manifest)?.composition();
        let placement = Placed::default();
        let pages = composition.open(volume, manifest, &placement)?;
        let entry = stored::entry(volume, manifest, composition.lists, None)?;
        Ok(Self {
            composition,
            name: entry.name.clone(),
            file: stored::name_of(volume, &entry.name),
            tier: pages.tier(volume.open_tier(&entry.name)?),
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

    #[cold]
    pub(crate) fn damaged(&self, what: String) -> Error {
        let file = self.file.clone();
        Error::Damaged { file, what }
    }

    /// Bytes of the tables that find and decode records: directories, chunk metadata, models.
    pub(crate) fn metadata_bytes(&self) -> usize {
        let directory = self.pages.table_bytes();
        let placement = self.placement.get().map_or(0, Placement::memory_bytes) as usize;
        directory + placement + self.segments.as_ref().map_or(0, Segments::metadata_bytes)
    }

    pub(crate) fn files(&self) -> (PageFile, PageFile) {
        let mut vectors = PageFile::default();
        for segment in self.segments.iter().flat_map(Segments::iter) {
            vectors.pages += segment.pages.directory.pages();
            vectors.page_bytes = vectors.page_bytes.max(segment.pages.shape.page_bytes());
            vectors.several = vectors.several.max(segment.read_bytes());
        }
        (self.pages.file(self.nodes), vectors)
    }

    /// The pages of lists and of segments that may be kept in memory. Added pages are included, but
    /// empty pages are not.
    pub(crate) fn keepable(&self) -> (PageFile, PageFile) {
        let (mut graph, mut vectors) = self.files();
        if let Some(placement) = self.placement.get() {
            graph.pages = count(&placement.pages_in_use());
            graph.empty = u64::from(placement.pages()).saturating_sub(graph.pages);
        }
        if let Some(added) = self.segments.as_ref().and_then(Segments::added) {
            let pages = added.pages();
            vectors.pages += pages.end - pages.start;
        }
        (graph, vectors)
    }

    /// Applies the changes since the build. No other thread may use the stores yet.
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

    /// Applies pending changes, in layouts whose records move.
    fn take_pending(
        &self,
        volume: &dyn Volume,
        manifest: &Manifest,
        file: &PlacementFile,
    ) -> Result<(), Error> {
        let pending = reading::pending(volume, manifest)?;
        let mut known = HashSet::new();
        let twice = pending
            .records
            .iter()
            .find(|record| !known.insert(record.node));
        if let Some(record) = twice {
            return Err(Error::Damaged {
                file: stored::file_of(volume, manifest, FileKind::Pending, None)?,
                what: format!("node {} has two pending records", record.node),
            });
        }
        let _ = self.placement.set(Placement::restore(file, pending));
        Ok(())
    }

    /// Applies the journal, in layouts whose pages are rewritten in place.
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
        let journal = reading::journal(volume, manifest, page_bytes)?;
        for (page, bytes) in journal.pages(page_bytes) {
            if page >= placement.pages() {
                return Err(Error::Damaged {
                    file: stored::file_of(volume, manifest, FileKind::Journal, None)?,
                    what: format!(
                        "it has page {page}, but the first {} pages have all {} nodes",
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

    /// Loads the hottest pages into memory, as far as the plan allows. Without `heat`, it loads the
    /// first pages.
    pub(crate) fn load(
        &mut self,
        volume: &dyn Volume,
        memory_plan: &MemoryPlan,
        heat: Option<&HeatFile>,
    ) -> Result<(), Error> {
        if memory_plan.graph_share > 0.0 {
            let built = self.pages.file(self.nodes);
            let placement = self.placement.get();
            let in_use = match placement {
                Some(placement) => placement.pages_in_use(),
                None => vec![true; built.pages as usize],
            };
            let heat = heat.map(|heat| &*heat.graph);
            let mut hot = hottest(heat, &in_use, memory_plan.graph_share);
            // On storage, a dirty page has old bytes, so this page is not loaded.
            let mut wanted = |page: u64| {
                let old = |placement: &Placement| placement.unwritten.get(page as u32).is_some();
                hot(page) && !placement.is_some_and(old)
            };
            let source = Source {
                volume,
                name: &self.name,
                pages: in_use.len() as u64,
                page_bytes: built.page_bytes,
                start: BLOCK as u64,
            };
            let pages = &self.pages;
            self.resident = Resident::load(&source, &mut wanted, &|page, bytes| {
                pages.check(page, bytes)
            })?;
        }
        if memory_plan.vector_share > 0.0
            && let Some(segments) = &mut self.segments
        {
            let heat = heat.map(|heat| &*heat.vectors);
            segments.load(volume, heat, memory_plan.vector_share)?;
        }
        Ok(())
    }
}

fn count(flags: &[bool]) -> u64 {
    flags.iter().filter(|&&flag| flag).count() as u64
}

/// Decides for each page, in order, whether it is among the hottest `share`. Added pages get the
/// mean count of the build's pages.
pub(super) fn hottest(
    heat: Option<&[u16]>,
    in_use: &[bool],
    share: f64,
) -> impl FnMut(u64) -> bool {
    let built = heat.unwrap_or_default();
    let mean = match built.len() {
        0 => 0,
        pages => built
            .iter()
            .map(|&reads| u64::from(reads))
            .sum::<u64>()
            .div_ceil(pages as u64) as u16,
    };
    let heat = (0..).zip(in_use).filter(|(_, used)| **used);
    let heat = heat.map(|(page, _): (usize, _)| built.get(page).copied().unwrap_or(mean));
    let heat: Vec<u16> = heat.collect();
    let mut hottest = Hottest::new(&heat, share);
    let mut next = heat.into_iter();
    move |page| {
        let used = in_use.get(page as usize).is_some_and(|&used| used);
        used && next.next().is_some_and(|reads| hottest.takes(reads))
    }
}
