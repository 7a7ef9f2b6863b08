//! The part of an open index that depends on the kind of the index. All kinds share the log, ids,
//! tombstones, fresh vectors, checkpoints, lock, catalog entry and memory plan.
//!
//! | difference | place |
//! |---|---|
//! | facts of the manifest | `IndexKind` in `layout/src/manifest/kind.rs` |
//! | stores, their memory, and other data that a search needs | here |
//! | the candidate source of a search | `search/source.rs` |
//! | build and rebuild | `build/mod.rs`, `build/again.rs` |
//! | updates | `index/contents.rs`; in `update/` `direct/`, `rebalance/`, `survey.rs`, `live/` |
//! | contents of its tables | `stored/place.rs`, `stores/reading/pages.rs`, `stores/codes.rs` |
//! | invariants of its stores | `verify/`, `repair/` |
//! | statistics | `measure.rs`, `update/stats.rs`, `search/scan.rs` |
//!
//! A new kind is a new variant of `IndexKind` and of [`Kind`]. The compiler reports each `match`.
//! It does not report `Index::graph`, `Manifest::graph` and their callers, which need a review.

use std::sync::OnceLock;

use stratann_layout::{
    FileEntry, FileKind, HeatFile, IndexKind, Manifest, NavigationFile, PlacementFile,
};
use stratann_tier::{Volume, VolumeReader};

use super::inserting::inserting_bytes;
use crate::navigation::Navigation;
use crate::plan::{MemoryPlan, PageFile};
use crate::stores::topology::placement::Pin;
use crate::stores::{ClusterStores, Composition, GraphStores};
use crate::{Error, stored};

#[expect(
    clippy::large_enum_variant,
    reason = "there is one for each index that is open"
)]
pub(crate) enum Kind {
    Graph(GraphIndex),
    Clusters(ClusterStores),
}

pub(crate) struct GraphIndex {
    pub(crate) stores: GraphStores,
    pub(super) unpacked: Option<GraphStores>,
    navigation: OnceLock<Navigation>,
    /// A merge of another process may remove the file before the first search needs it.
    navigation_file: Option<Box<dyn VolumeReader>>,
}

impl Kind {
    pub(super) fn open(volume: &dyn Volume, manifest: &Manifest) -> Result<Self, Error> {
        match manifest.kind {
            IndexKind::Graph(_) => Ok(Self::Graph(GraphIndex {
                stores: GraphStores::open(volume, manifest)?,
                unpacked: None,
                navigation: OnceLock::new(),
                navigation_file: None,
            })),
            IndexKind::Cluster(_) => Ok(Self::Clusters(ClusterStores::open(volume, manifest)?)),
        }
    }

    pub(super) fn composition(&self) -> &'static Composition {
        match self {
            Self::Graph(graph) => graph.stores.composition,
            Self::Clusters(clusters) => clusters.composition,
        }
    }

    pub(super) fn take_placement(
        &self,
        volume: &dyn Volume,
        manifest: &Manifest,
        file: &PlacementFile,
    ) -> Result<(), Error> {
        match self {
            Self::Graph(graph) => graph.stores.take_placement(volume, manifest, file),
            // Of this file, a cluster index uses only `CarriedIds`.
            Self::Clusters(_) => Ok(()),
        }
    }

    pub(super) fn nodes(&self) -> u64 {
        match self {
            Self::Graph(graph) => match graph.stores.placement.get() {
                Some(placement) => placement.nodes().into(),
                None => graph.stores.nodes,
            },
            Self::Clusters(clusters) => clusters.nodes(),
        }
    }

    /// Until the pin is dropped, pages in use stay unchanged.
    pub(super) fn pin(&self) -> Option<Pin<'_>> {
        match self {
            Self::Graph(graph) => Some(graph.stores.placement.get()?.pins.pin()),
            Self::Clusters(_) => None,
        }
    }

    /// Pages that searches read to find candidates, and pages of vectors that are apart from lists.
    pub(super) fn files(&self) -> (PageFile, PageFile) {
        match self {
            Self::Graph(graph) => graph.stores.files(),
            // Pages of clusters do not stay in memory. A read is as large as the largest cluster.
            Self::Clusters(clusters) => {
                let extents = PageFile {
                    several: clusters.largest_read(),
                    ..PageFile::default()
                };
                (extents, PageFile::default())
            }
        }
    }

    /// The pages of [`files`](Kind::files) that may be kept in memory.
    pub(super) fn keepable(&self) -> (PageFile, PageFile) {
        match self {
            Self::Graph(graph) => graph.stores.keepable(),
            Self::Clusters(_) => self.files(),
        }
    }

    pub(super) fn cached_bytes(&self) -> usize {
        match self {
            Self::Graph(graph) => graph.stores.pages.cached_bytes(),
            Self::Clusters(_) => 0,
        }
    }

    pub(super) fn metadata_bytes(&self) -> u64 {
        match self {
            Self::Graph(graph) => graph.stores.metadata_bytes() as u64,
            Self::Clusters(clusters) => clusters.metadata_bytes(),
        }
    }

    pub(super) fn inserting_bytes(&self, manifest: &Manifest) -> u64 {
        match self {
            Self::Graph(graph) => inserting_bytes(&graph.stores, manifest.graph().degree as usize),
            Self::Clusters(_) => 0,
        }
    }

    pub(super) fn navigation_entry<'m>(&self, manifest: &'m Manifest) -> Option<&'m FileEntry> {
        match self {
            Self::Graph(_) => manifest.file(FileKind::Navigation.name()),
            // The graph over the heads is a part of the tables of a cluster index.
            Self::Clusters(_) => None,
        }
    }

    pub(super) fn load(
        &mut self,
        volume: &dyn Volume,
        memory_plan: &MemoryPlan,
        heat: Option<&HeatFile>,
    ) -> Result<(), Error> {
        match self {
            Self::Graph(graph) => graph.stores.load(volume, memory_plan, heat),
            Self::Clusters(_) => Ok(()),
        }
    }

    pub(super) fn open_navigation(
        &mut self,
        volume: &dyn Volume,
        entry: &FileEntry,
    ) -> Result<(), Error> {
        match self {
            Self::Graph(graph) => graph.navigation_file = Some(volume.open_reader(&entry.name)?),
            Self::Clusters(_) => {}
        }
        Ok(())
    }
}

impl GraphIndex {
    pub(crate) fn search_stores(&self) -> &GraphStores {
        self.unpacked.as_ref().unwrap_or(&self.stores)
    }

    pub(super) fn navigation(
        &self,
        volume: &dyn Volume,
        manifest: &Manifest,
    ) -> Result<&Navigation, Error> {
        if let Some(navigation) = self.navigation.get() {
            return Ok(navigation);
        }
        if manifest.graph().navigation.is_none() {
            return Err(Error::call(
                "navigation",
                "on",
                "this index was built without a navigation graph",
                "Turn `navigation` off, or build the index with `--navigation 0.01`",
            ));
        }
        let Some(opened) = self.navigation_file.as_deref() else {
            return Err(Error::call(
                "navigation",
                "on",
                "the memory budget is too small for the navigation graph, or the index was opened without this graph",
                "Turn `navigation` off, or open the index with `navigation` and enough memory",
            ));
        };
        let kind = FileKind::Navigation;
        let entry = stored::entry(volume, manifest, kind, None)?;
        let payload = stored::read_opened(opened, volume, entry, kind)?;
        let (dim, element) = (manifest.dimension as usize, manifest.element);
        let (row_bytes, file) = (dim * element.size(), stored::name_of(volume, &entry.name));
        let file = NavigationFile::decode(payload, manifest.vectors, row_bytes, Some(dim), &file)?;
        let opened = || Navigation::of_rows(file, manifest.metric, element, dim);
        Ok(self.navigation.get_or_init(opened))
    }
}
