//! The composition of a layout: its stores and their properties. Searches use the constants of
//! [`NodePages`] instead, which the compiler knows.

use stratann_layout::{FileKind, Manifest};
use stratann_tier::Volume;
use stratann_vector::Element;

use super::records::FixedFormat;
use super::writing::{Choices, Planned};
use super::{NodePages, Pages, Placed};
use crate::Error;

pub(crate) struct Composition {
    pub(crate) about: &'static str,
    /// The kind of the file of lists. The name of this kind is the name of the layout.
    pub(crate) lists: FileKind,
    pub(crate) records: Records,
    /// The location of vectors, each with its id.
    pub(crate) vectors: VectorsAt,
    pub(crate) codes: CodesAt,
    pub(crate) made: Made,
}

#[derive(Clone, Copy)]
pub(crate) enum Made {
    Graph {
        /// Opens the pages of lists. The function reads tables and models, but no pages.
        open: fn(&dyn Volume, &Manifest, &Placed) -> Result<Pages, Error>,
        /// Decides before the build where each part is stored, and estimates the nodes on a page.
        writer: fn(&Choices<'_>) -> Result<Planned, Error>,
    },
    Clusters {
        extents: FileKind,
    },
}

pub(crate) type FixedFormatOf = fn(&Manifest) -> Result<Box<dyn FixedFormat>, Error>;

/// The bytes on storage of a record of fixed size, with its share of unused space. The arguments
/// are the element type, the dimension, the degree, the bytes of a neighbour's code and the number
/// of nodes.
pub(crate) type RecordBytes = fn(Element, usize, usize, usize, u64) -> f64;

pub(crate) enum Records {
    /// Unencoded records of one size. The number of a node gives its page.
    Fixed {
        format: FixedFormatOf,
        bytes: RecordBytes,
        /// The location to which direct inserts write changed records.
        rewritten: Rewritten,
    },
    /// Encoded records of different lengths. A directory has the page of each record. Direct
    /// inserts write changed records to other pages.
    Slotted,
    /// The layout has no lists. Uncompressed vectors are stored with their clusters.
    Clustered,
}

pub(crate) enum Rewritten {
    /// Another page, together with other changed records ([`RecordsMove`](super::RecordsMove)).
    Elsewhere,
    /// The same page, which is rewritten as a whole ([`PagesStay`](super::PagesStay)).
    InPlace,
    /// Records never change ([`NothingChanges`](super::NothingChanges)).
    Nowhere,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum VectorsAt {
    Records,
    Segments,
    /// The leading part is in the record beside the list, and the trailing part in a segment.
    Parts,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum CodesAt {
    Memory,
    /// A record has the codes of the node's neighbours. Memory has only codes of the entry points.
    Records,
    Nowhere,
}

impl Records {
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

    pub(crate) const fn unchanging(format: FixedFormatOf, bytes: RecordBytes) -> Self {
        Self::Fixed {
            format,
            bytes,
            rewritten: Rewritten::Nowhere,
        }
    }

    pub(crate) const fn slotted<N: NodePages>() -> Self {
        assert!(N::MOVES, "slotted pages are not written in their places");
        Self::Slotted
    }
}

impl VectorsAt {
    pub(crate) const fn of<N: NodePages>() -> Self {
        match (N::VECTORS, N::PARTS) {
            (true, false) => Self::Records,
            (true, true) => Self::Parts,
            (false, _) => Self::Segments,
        }
    }
}

impl CodesAt {
    pub(crate) const fn of<N: NodePages>() -> Self {
        match N::CODES {
            true => Self::Records,
            false => Self::Memory,
        }
    }

    /// The kind of the file of codes that are loaded into memory.
    pub(crate) fn file(self) -> Option<FileKind> {
        match self {
            Self::Memory => Some(FileKind::Codes),
            Self::Records => Some(FileKind::Entries),
            Self::Nowhere => None,
        }
    }
}

impl Composition {
    /// The call fails if the layout has clusters.
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
                what: format!("the {} layout has no graph", self.name()),
            }),
        }
    }

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
            // Clusters take no direct inserts. Only a rebalance or a merge inserts vectors into
            // them.
            Records::Clustered => false,
        }
    }

    pub(crate) fn record_bytes(&self) -> Option<RecordBytes> {
        match self.records {
            Records::Slotted | Records::Clustered => None,
            Records::Fixed { bytes, .. } => Some(bytes),
        }
    }

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

    pub(crate) fn is_encoded(&self) -> bool {
        match self.records {
            Records::Slotted => true,
            Records::Fixed { .. } | Records::Clustered => false,
        }
    }

    pub(crate) fn has_directory(&self) -> bool {
        match self.records {
            Records::Slotted => true,
            Records::Fixed { .. } | Records::Clustered => false,
        }
    }

    pub(crate) fn fixed_format(
        &self,
        manifest: &Manifest,
    ) -> Result<Option<Box<dyn FixedFormat>>, Error> {
        match self.records {
            Records::Slotted | Records::Clustered => Ok(None),
            Records::Fixed { format, .. } => format(manifest).map(Some),
        }
    }

    /// The kind of the file in which a checkpoint stores changes that wait for their pages.
    pub(crate) fn waiting(&self) -> FileKind {
        match self.records_move() {
            true => FileKind::Pending,
            false => FileKind::Journal,
        }
    }

    /// Whether whole vectors and ids are beside lists.
    pub(crate) fn has_vectors_in_records(&self) -> bool {
        self.vectors == VectorsAt::Records
    }

    pub(crate) fn has_models_in_directory(&self) -> bool {
        self.has_directory() && self.vectors != VectorsAt::Segments
    }

    pub(crate) fn has_codes_in_records(&self) -> bool {
        self.codes == CodesAt::Records
    }

    pub(crate) fn name(&self) -> &'static str {
        // A test checks that each kind of lists has a name.
        self.lists.layout().unwrap_or_default()
    }
}
