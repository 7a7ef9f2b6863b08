//! Topology: the neighbours of each node, and the data beside them.
//!
//! - [`coupled`], [`csr`], [`inline`], [`packed`], [`layered`], [`lists`]: each has the pages of
//!   one layout, with the code that opens them and the code that writes them in a build
//! - [`placement`], [`pending`], [`counts`]: for an index that takes direct inserts: the pages of
//!   nodes, the pending changes, and the number of links to each new node
//!
//! A new layout of pages needs a file in this folder, an entry in each list of this file, and its
//! page format in `stratann-layout`. The name of the layout is the name of its file kind.

pub(crate) mod counts;
pub(crate) mod coupled;
pub(crate) mod csr;
pub(crate) mod inline;
pub(crate) mod layered;
pub(crate) mod lists;
pub(crate) mod packed;
pub(crate) mod pending;
pub(crate) mod placement;

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use stratann_layout::{BLOCK, CsrShape};
use stratann_tier::{Tier, bytewise};

pub(crate) use self::coupled::words;

use self::coupled::CoupledPages;
use self::csr::CsrPages;
use self::inline::InlinePages;
use self::layered::LayeredPages;
use self::lists::ListPages;
use self::packed::PackedPages;
use super::composition::Made;
use super::{Composition, NodePages, clusters};
use crate::plan::PageFile;
use crate::{Error, Layout};

pub(crate) enum Pages {
    Coupled(CoupledPages),
    Packed(PackedPages),
    Lists(ListPages),
    Inline(InlinePages),
    Layered(LayeredPages),
    Csr(CsrPages),
}

/// Evaluates an expression on the pages of a graph, compiled for each layout:
/// `on_pages!(&graph.pages, pages => search(pages))`.
macro_rules! on_pages {
    ($which:expr, $pages:ident => $done:expr) => {
        match $which {
            $crate::stores::Pages::Coupled($pages) => $done,
            $crate::stores::Pages::Packed($pages) => $done,
            $crate::stores::Pages::Lists($pages) => $done,
            $crate::stores::Pages::Inline($pages) => $done,
            $crate::stores::Pages::Layered($pages) => $done,
            $crate::stores::Pages::Csr($pages) => $done,
        }
    };
}
pub(crate) use on_pages;

impl Layout {
    pub(crate) fn composition(self) -> &'static Composition {
        match self {
            Self::Coupled => &coupled::COMPOSITION,
            Self::Packed => &packed::COMPOSITION,
            Self::Decoupled => &lists::COMPOSITION,
            Self::Inline => &inline::COMPOSITION,
            Self::Layered => &layered::COMPOSITION,
            Self::Csr => &csr::COMPOSITION,
            Self::Replicated => &clusters::REPLICATED,
            Self::Addressed => &clusters::ADDRESSED,
            Self::Grouped => &clusters::GROUPED,
        }
    }

    /// The name of the layout in options and on the command line.
    pub fn name(self) -> &'static str {
        self.composition().name()
    }

    /// One line about the layout.
    pub fn about(self) -> &'static str {
        self.composition().about
    }

    /// Whether the layout has clusters in place of a graph.
    pub fn has_clusters(self) -> bool {
        matches!(self.composition().made, Made::Clusters { .. })
    }

    /// Whether the whole vector of a node is beside its list. A search then ranks a node when it
    /// reads the list.
    pub fn has_vectors_in_records(self) -> bool {
        self.composition().has_vectors_in_records()
    }

    /// Whether the codes of a node's neighbours are beside its list, and not in memory.
    pub fn has_codes_in_records(self) -> bool {
        self.composition().has_codes_in_records()
    }

    /// Whether lists and vectors are encoded. Otherwise [`Raw`](crate::Compression::Raw) is the
    /// only compression.
    pub fn is_encoded(self) -> bool {
        self.composition().is_encoded()
    }
}

impl FromStr for Layout {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self, Error> {
        let named = Self::ALL.into_iter().find(|layout| layout.name() == name);
        named.ok_or_else(|| {
            let names = Self::ALL.map(Self::name).join(", ");
            let remedy = format!("Use one of: {names}");
            Error::call("layout", name, "there is no such layout", remedy)
        })
    }
}

impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl Pages {
    pub(crate) fn rows(shape: CsrShape, file: String) -> Self {
        Self::Csr(CsrPages::new(shape, file))
    }

    pub(crate) fn file(&self, nodes: u64) -> PageFile {
        on_pages!(self, pages => pages.file(nodes))
    }

    /// The tier for these pages. If pages are not whole blocks, the tier reads in units of bytes.
    pub(crate) fn tier(&self, tier: Arc<dyn Tier>) -> Arc<dyn Tier> {
        match self.file(1).page_bytes.is_multiple_of(BLOCK) {
            true => tier,
            false => bytewise(tier),
        }
    }

    pub(crate) fn check(&self, page: u64, bytes: &[u8]) -> Result<(), Error> {
        on_pages!(self, pages => pages.view(bytes, page, true).map(|_| ()))
    }

    pub(crate) fn cached_bytes(&self) -> usize {
        on_pages!(self, pages => pages.cached_bytes())
    }

    pub(crate) fn table_bytes(&self) -> usize {
        on_pages!(self, pages => pages.table_bytes())
    }
}

#[cfg(test)]
mod tests {
    use stratann_layout::FileKind;

    use super::*;

    #[test]
    fn every_kind_of_file_with_lists_is_of_one_layout() {
        let of_kinds: Vec<_> = FileKind::ALL
            .into_iter()
            .filter_map(FileKind::layout)
            .collect();
        assert_eq!(of_kinds, Layout::ALL.map(Layout::name));
        for layout in Layout::ALL {
            assert_eq!(layout.name().parse::<Layout>().unwrap(), layout);
            assert_eq!(
                layout.composition().lists.has_segments(),
                !layout.has_vectors_in_records()
            );
            assert_eq!(serde_json::to_value(layout).unwrap(), layout.name());
        }
        let error = "scattered".parse::<Layout>().unwrap_err().to_string();
        assert!(
            error.contains("scattered") && error.contains("packed"),
            "{error}"
        );
    }
}
