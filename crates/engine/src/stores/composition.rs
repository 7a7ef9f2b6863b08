//! What a layout is composed of, and what its stores can do: all that is asked of a layout once it is chosen. A search asks the pages.

use stratann_layout::{FileKind, Manifest};
use stratann_tier::Volume;
use stratann_vector::Element;

use super::records::FixedFormat;
use super::{NodePages, Pages, Placed};
use crate::Error;
use crate::build::{Choices, Planned};

/// The stores of a layout.
pub(crate) struct Composition {
    /// One line about it, for who chooses.
    pub(crate) about: &'static str,
    /// The kind of the file that has the lists, which says the layout's name.
    pub(crate) lists: FileKind,
    /// What the records of lists are.
    pub(crate) records: Records,
    /// Where vectors are, and with them the outside ids.
    pub(crate) vectors: VectorsAt,
    /// Where codes are.
    pub(crate) codes: CodesAt,
    /// How it is opened and written.
    pub(crate) made: Made,
}

/// How the stores of a layout are opened and written.
#[derive(Clone, Copy)]
pub(crate) enum Made {
    /// As the pages of a graph.
    Graph {
        /// Opens the pages of lists. Reads tables and models; no pages.
        open: fn(&dyn Volume, &Manifest, &Placed) -> Result<Pages, Error>,
        /// Decides where everything stands, before any work, and how many nodes a page is expected to hold.
        writer: fn(&Choices<'_>) -> Result<Planned, Error>,
    },
    /// As the extents of clusters ([`clusters`](super::clusters)).
    Clusters {
        /// The kind of their file.
        extents: FileKind,
    },
}

/// What a manifest says of the format of fixed pages.
pub(crate) type FixedFormatOf = fn(&Manifest) -> Result<Box<dyn FixedFormat>, Error>;

/// Bytes that a record of one size takes on storage, its share of what is left over included: by element type, dimension, degree, bytes of a
/// neighbour's code and number of nodes.
pub(crate) type RecordBytes = fn(Element, usize, usize, usize, u64) -> f64;

/// What the records on pages of lists are.
pub(crate) enum Records {
    /// Of one size, and nothing in them is encoded: a node's page follows from its number, and the format of pages from the manifest.
    Fixed {
        /// The format of its pages.
        format: FixedFormatOf,
        /// What a record takes.
        bytes: RecordBytes,
        /// Where direct inserts write them anew.
        rewritten: Rewritten,
    },
    /// Encoded, each as long as it is: a directory says which page has a node, and the header of the file how long pages are. Direct
    /// inserts write them anew elsewhere.
    Slotted,
    /// There are no lists: vectors stand by the clusters that they are in, as they are.
    Clustered,
}

/// Where direct inserts write a record anew.
pub(crate) enum Rewritten {
    /// On another page, with those that are written at the same time; a table says where each is ([`RecordsMove`](super::RecordsMove)).
    Elsewhere,
    /// In its place, with its page ([`PagesStay`](super::PagesStay)).
    InPlace,
    /// Nowhere ([`NothingChanges`](super::NothingChanges)).
    Nowhere,
}

/// Where vectors are.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum VectorsAt {
    /// In the records, beside the lists.
    Records,
    /// In segments of their own.
    Segments,
    /// In two parts: the leading one in the record, beside the list, and the trailing one in a segment.
    Parts,
}

/// Where codes are.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum CodesAt {
    /// Those of all nodes in memory.
    Memory,
    /// Those of a node's neighbours in its record; only those of the entry points are in memory.
    Records,
    /// There are none.
    Nowhere,
}

impl Records {
    /// Those of fixed pages in a format.
    pub(crate) const fn fixed<N: NodePages>(format: FixedFormatOf, bytes: RecordBytes) -> Self {
        let rewritten = match N::MOVES {
            true => Rewritten::Elsewhere,
            false => Rewritten::InPlace,
        };
        Self::Fixed {
            format,
            bytes,
            rewritten,
        }
    }

    /// Those of fixed pages in a format, which take no direct inserts.
    pub(crate) const fn unchanging(format: FixedFormatOf, bytes: RecordBytes) -> Self {
        Self::Fixed {
            format,
            bytes,
            rewritten: Rewritten::Nowhere,
        }
    }

    /// Those of slotted pages.
    pub(crate) const fn slotted<N: NodePages>() -> Self {
        assert!(N::MOVES, "slotted pages are not written in their places");
        Self::Slotted
    }
}

impl VectorsAt {
    /// Where these pages say that they are.
    pub(crate) const fn of<N: NodePages>() -> Self {
        match (N::VECTORS, N::PARTS) {
            (true, false) => Self::Records,
            (true, true) => Self::Parts,
            (false, _) => Self::Segments,
        }
    }
}

impl CodesAt {
    /// Where these pages say that they are.
    pub(crate) const fn of<N: NodePages>() -> Self {
        match N::CODES {
            true => Self::Records,
            false => Self::Memory,
        }
    }

    /// The kind of the file with those that are in memory, if there are any.
    pub(crate) fn file(self) -> Option<FileKind> {
        match self {
            Self::Memory => Some(FileKind::Codes),
            Self::Records => Some(FileKind::Entries),
            Self::Nowhere => None,
        }
    }
}

impl Composition {
    /// Opens the pages of lists of a graph. Reads tables and models; no pages.
    ///
    /// # Errors
    /// A file that is missing, damaged, of a later format or of another index; a layout that is none of a graph.
    pub(crate) fn open(
        &self,
        volume: &dyn Volume,
        manifest: &Manifest,
        placed: &Placed,
    ) -> Result<Pages, Error> {
        match self.made {
            Made::Graph { open, .. } => open(volume, manifest, placed),
            Made::Clusters { .. } => Err(Error::Damaged {
                file: volume.name(),
                what: format!("the {} layout is none of a graph", self.name()),
            }),
        }
    }

    /// Whether direct inserts write records anew on other pages.
    pub(crate) fn records_move(&self) -> bool {
        match self.records {
            Records::Slotted => true,
            Records::Fixed {
                rewritten: Rewritten::Elsewhere,
                ..
            } => true,
            Records::Fixed {
                rewritten: Rewritten::InPlace | Rewritten::Nowhere,
                ..
            } => false,
            // What comes gets into clusters by a rebalance, or by a merge.
            Records::Clustered => false,
        }
    }

    /// What a record takes on storage, if all are of one size.
    pub(crate) fn record_bytes(&self) -> Option<RecordBytes> {
        match self.records {
            Records::Slotted | Records::Clustered => None,
            Records::Fixed { bytes, .. } => Some(bytes),
        }
    }

    /// Whether it takes direct inserts at all.
    pub(crate) fn takes_inserts(&self) -> bool {
        match self.records {
            Records::Slotted => true,
            Records::Fixed {
                rewritten: Rewritten::Elsewhere | Rewritten::InPlace,
                ..
            } => true,
            Records::Fixed {
                rewritten: Rewritten::Nowhere,
                ..
            }
            | Records::Clustered => false,
        }
    }

    /// Whether records are encoded.
    pub(crate) fn is_encoded(&self) -> bool {
        match self.records {
            Records::Slotted => true,
            Records::Fixed { .. } | Records::Clustered => false,
        }
    }

    /// Whether a directory says which page has a node.
    pub(crate) fn has_directory(&self) -> bool {
        match self.records {
            Records::Slotted => true,
            Records::Fixed { .. } | Records::Clustered => false,
        }
    }

    /// The format of the pages of lists, if it follows from the manifest.
    pub(crate) fn fixed_format(
        &self,
        manifest: &Manifest,
    ) -> Result<Option<Box<dyn FixedFormat>>, Error> {
        match self.records {
            Records::Slotted | Records::Clustered => Ok(None),
            Records::Fixed { format, .. } => format(manifest).map(Some),
        }
    }

    /// The kind of the file with what waits for its page, after direct inserts.
    pub(crate) fn waiting(&self) -> FileKind {
        match self.records_move() {
            true => FileKind::Pending,
            false => FileKind::Journal,
        }
    }

    /// Whether whole vectors, and with them the outside ids, stand beside lists.
    pub(crate) fn has_vectors_in_records(&self) -> bool {
        self.vectors == VectorsAt::Records
    }

    /// Whether the directory says what vectors, or the leading parts of them, are decoded with.
    pub(crate) fn has_models_in_directory(&self) -> bool {
        self.has_directory() && self.vectors != VectorsAt::Segments
    }

    /// Whether the codes of neighbours stand beside lists.
    pub(crate) fn has_codes_in_records(&self) -> bool {
        self.codes == CodesAt::Records
    }

    /// The layout's name.
    pub(crate) fn name(&self) -> &'static str {
        // That a kind of lists has one, a test says.
        self.lists.layout().unwrap_or_default()
    }
}
