//! What of an open index is of its kind. Of every kind are its log, ids, tombstones, fresh vectors, checkpoints, lock, place in a catalog,
//! memory plan, and the frames of search, verify and repair; those do not ask which kind it is.
//!
//! | what differs | where |
//! |---|---|
//! | facts of the manifest | `IndexKind` in `layout/src/manifest/kind.rs` |
//! | stores, what they take in memory, and what a search has beside them | here |
//! | how a search finds candidates | `search/source.rs` |
//! | how a build makes it, and what it is rebuilt with | `build/mod.rs`, `build/again.rs` |
//! | how a vector gets into it and out of it | `update/direct/`, `update/rebalance/`, `update/contents.rs`, `update/survey.rs`, `update/live/compact.rs` |
//! | what its tables say | `stored/place.rs`, `stored/pages.rs`, `stores/codes.rs` |
//! | what its stores must say | `verify/`, `repair/` |
//! | what is counted of it | `measure.rs`, `stats.rs`, `search/scan.rs` |
//!
//! A cluster index has its stores in `stores/clusters.rs`, its source in `search/probe.rs`, its build in `build/clusters.rs`, and the checks of its
//! files in `verify/clusters.rs`; vectors get into it by `update/rebalance/`, or by merges.
//!
//! A new kind is a variant of `IndexKind` and one of [`Kind`]: the compiler then names each place that takes the kind apart by a
//! pattern. It does not name those that ask for the graph, by `Index::graph` and `Manifest::graph`: these two have to answer for the new
//! kind too, and who calls them is the list of what has to be looked at.

use std::sync::OnceLock;

use stratann_layout::{
    FileEntry, FileKind, HeatFile, IndexKind, Manifest, NavigationFile, PlacementFile,
};
use stratann_tier::{Volume, VolumeReader};

use crate::navigation::Navigation;
use crate::plan::{MemoryPlan, PageFile};
use crate::stores::topology::placement::Pin;
use crate::stores::{ClusterStores, Composition, GraphStores};
use crate::update::inserting_bytes;
use crate::{Error, stored};

/// What of an open index is of its kind.
#[expect(
    clippy::large_enum_variant,
    reason = "there is one for each index that is open"
)]
pub(crate) enum Kind {
    /// A proximity graph.
    Graph(GraphIndex),
    /// Clusters.
    Clusters(ClusterStores),
}

/// A graph index that is open.
pub(crate) struct GraphIndex {
    pub(crate) stores: GraphStores,
    navigation: OnceLock<Navigation>,
    /// Its file, open: a merge of another process may remove it before the first search wants it.
    navigation_file: Option<Box<dyn VolumeReader>>,
}

impl Kind {
    /// Opens the stores that a manifest names. Reads tables and models; no pages.
    pub(super) fn open(volume: &dyn Volume, manifest: &Manifest) -> Result<Self, Error> {
        match manifest.kind {
            IndexKind::Graph(_) => Ok(Self::Graph(GraphIndex {
                stores: GraphStores::open(volume, manifest)?,
                navigation: OnceLock::new(),
                navigation_file: None,
            })),
            IndexKind::Cluster(_) => Ok(Self::Clusters(ClusterStores::open(volume, manifest)?)),
        }
    }

    /// What its stores can do.
    pub(super) fn composition(&self) -> &'static Composition {
        match self {
            Self::Graph(graph) => graph.stores.composition,
            Self::Clusters(clusters) => clusters.composition,
        }
    }

    /// Takes on what came of it since its build.
    pub(super) fn take_placement(
        &self,
        volume: &dyn Volume,
        manifest: &Manifest,
        file: &PlacementFile,
    ) -> Result<(), Error> {
        match self {
            Self::Graph(graph) => graph.stores.take_placement(volume, manifest, file),
            // Of this file it takes ids that came and went, as `CarriedIds`; where its clusters are, another table says.
            Self::Clusters(_) => Ok(()),
        }
    }

    /// Its nodes, with those that came since its build.
    pub(super) fn nodes(&self) -> u64 {
        match self {
            Self::Graph(graph) => match graph.stores.placement.get() {
                Some(placement) => placement.nodes().into(),
                None => graph.stores.nodes,
            },
            Self::Clusters(clusters) => clusters.nodes(),
        }
    }

    /// Has pages stay as they are until it is dropped.
    pub(super) fn pin(&self) -> Option<Pin<'_>> {
        match self {
            Self::Graph(graph) => Some(graph.stores.placement.get()?.pins.pin()),
            Self::Clusters(_) => None,
        }
    }

    /// Its pages that searches read while they look for candidates, and those of vectors that are apart.
    pub(super) fn files(&self) -> (PageFile, PageFile) {
        match self {
            Self::Graph(graph) => graph.stores.files(),
            // None of these are kept: what is read at once is as much as the largest cluster.
            Self::Clusters(clusters) => {
                let extents = PageFile {
                    several: clusters.largest_read(),
                    ..PageFile::default()
                };
                (extents, PageFile::default())
            }
        }
    }

    /// The same of the pages that could be in memory.
    pub(super) fn keepable(&self) -> (PageFile, PageFile) {
        match self {
            Self::Graph(graph) => graph.stores.keepable(),
            Self::Clusters(_) => self.files(),
        }
    }

    /// Bytes of a record in a cache.
    pub(super) fn cached_bytes(&self) -> usize {
        match self {
            Self::Graph(graph) => graph.stores.pages.cached_bytes(),
            Self::Clusters(_) => 0,
        }
    }

    /// Bytes of tables in memory that say where things are.
    pub(super) fn metadata_bytes(&self) -> u64 {
        match self {
            Self::Graph(graph) => graph.stores.metadata_bytes() as u64,
            Self::Clusters(clusters) => clusters.metadata_bytes(),
        }
    }

    /// Bytes that direct inserts take.
    pub(super) fn inserting_bytes(&self, manifest: &Manifest) -> u64 {
        match self {
            Self::Graph(graph) => inserting_bytes(&graph.stores, manifest.graph().degree as usize),
            Self::Clusters(_) => 0,
        }
    }

    /// The file of what leads a search into it, if it has one.
    pub(super) fn navigation_entry<'m>(&self, manifest: &'m Manifest) -> Option<&'m FileEntry> {
        match self {
            Self::Graph(_) => manifest.file(FileKind::Navigation.name()),
            // That over the heads is among the tables.
            Self::Clusters(_) => None,
        }
    }

    /// Puts into memory what a plan of it says.
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

    /// Opens the file of what leads a search into it.
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
    /// The navigation graph, loaded on first use.
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
                "off: this index was built without a navigation graph (build it with `--navigation 0.01`)",
            ));
        }
        let Some(opened) = self.navigation_file.as_deref() else {
            return Err(Error::call(
                "navigation",
                "on",
                "off: the memory budget has no room for the navigation graph, or was divided without it (`navigation` when the index is opened)",
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
