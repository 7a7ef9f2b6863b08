//! Composition of a layout: its stores and their abilities. After a layout is chosen, all questions
//! about it are answered here. A search asks the pages instead.

use stratann_layout::{FileKind, Manifest};
use stratann_tier::Volume;
use stratann_vector::Element;

use super::records::FixedFormat;
use super::{NodePages, Pages, Placed};
use crate::Error;
use crate::build::{Choices, Planned};

/// The stores of a layout.
pub(crate) struct Composition {
    /// One line about the layout, for users.
    pub(crate) about: &'static str,
    /// The kind of the file of lists, which gives the layout's name.
    pub(crate) lists: FileKind,
    /// The form of the records of lists.
    pub(crate) records: Records,
    /// The place of vectors, and with them of ids.
    pub(crate) vectors: VectorsAt,
    /// The place of codes.
    pub(crate) codes: CodesAt,
    /// The functions that open and write the stores.
    pub(crate) made: Made,
}

/// The functions that open and write the stores of a layout.
#[derive(Clone, Copy)]
pub(crate) enum Made {
    /// Pages of a graph.
    Graph {
        /// Opens the pages of lists. It reads tables and models, but no pages.
        open: fn(&dyn Volume, &Manifest, &Placed) -> Result<Pages, Error>,
        /// Decides the place of everything before any work, and the number of nodes that a page is
        /// expected to hold.
        writer: fn(&Choices<'_>) -> Result<Planned, Error>,
    },
    /// Posting lists of clusters ([`clusters`](super::clusters)).
    Clusters {
        /// The kind of their file.
        extents: FileKind,
    },
}

/// Gives the format of fixed pages that a manifest describes.
pub(crate) type FixedFormatOf = fn(&Manifest) -> Result<Box<dyn FixedFormat>, Error>;

/// Gives the bytes that a fixed-size record takes on storage, including its share of unused space.
/// The arguments are element type, dimension, degree, bytes of a neighbour's code and number of
/// nodes.
pub(crate) type RecordBytes = fn(Element, usize, usize, usize, u64) -> f64;

/// The form of the records on pages of lists.
pub(crate) enum Records {
    /// Records of one size, not encoded. A node's page follows from its number, and the format of
    /// pages from the manifest.
    Fixed {
        /// The format of the pages.
        format: FixedFormatOf,
        /// Bytes of a record.
        bytes: RecordBytes,
        /// The place where direct inserts write changed records.
        rewritten: Rewritten,
    },
    /// Encoded records of different lengths. A directory maps nodes to pages, and the header of the
    /// file has the length of pages. Direct inserts write changed records to other pages.
    Slotted,
    /// There are no lists. Uncompressed vectors are stored with their clusters.
    Clustered,
}

/// The place where direct inserts write a changed record.
pub(crate) enum Rewritten {
    /// Another page, together with records that change at the same time. A table has the page of
    /// each ([`RecordsMove`](super::RecordsMove)).
    Elsewhere,
    /// The same place, with the whole page ([`PagesStay`](super::PagesStay)).
    InPlace,
    /// Records never change ([`NothingChanges`](super::NothingChanges)).
    Nowhere,
}

/// The place of vectors.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum VectorsAt {
    /// In the records, beside the lists.
    Records,
    /// In segments of their own.
    Segments,
    /// In two parts: the leading part in the record beside the list, and the trailing part in a
    /// segment.
    Parts,
}

/// The place of codes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum CodesAt {
    /// Codes of all nodes are in memory.
    Memory,
    /// Codes of a node's neighbours are in its record, and only codes of the entry points are in
    /// memory.
    Records,
    /// There are no codes.
    Nowhere,
}

impl Records {
    /// Records on fixed pages in a format.
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

    /// Records on fixed pages in a format that takes no direct inserts.
    pub(crate) const fn unchanging(format: FixedFormatOf, bytes: RecordBytes) -> Self {
        Self::Fixed {
            format,
            bytes,
            rewritten: Rewritten::Nowhere,
        }
    }

    /// Records on slotted pages.
    pub(crate) const fn slotted<N: NodePages>() -> Self {
        assert!(N::MOVES, "slotted pages are not written in their places");
        Self::Slotted
    }
}

impl VectorsAt {
    /// The place of vectors in these pages.
    pub(crate) const fn of<N: NodePages>() -> Self {
        match (N::VECTORS, N::PARTS) {
            (true, false) => Self::Records,
            (true, true) => Self::Parts,
            (false, _) => Self::Segments,
        }
    }
}

impl CodesAt {
    /// The place of codes with these pages.
    pub(crate) const fn of<N: NodePages>() -> Self {
        match N::CODES {
            true => Self::Records,
            false => Self::Memory,
        }
    }

    /// The kind of the file of codes that are loaded into memory, if there are any.
    pub(crate) fn file(self) -> Option<FileKind> {
        match self {
            Self::Memory => Some(FileKind::Codes),
            Self::Records => Some(FileKind::Entries),
            Self::Nowhere => None,
        }
    }
}

impl Composition {
    /// Opens the pages of lists of a graph. It reads tables and models, but no pages.
    ///
    /// # Errors
    /// A file that is missing, damaged, of a later format or of another index; a layout of
    /// clusters.
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

    /// Whether direct inserts write changed records to other pages.
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
            // Vectors are inserted into clusters by a rebalance, or by a merge.
            Records::Clustered => false,
        }
    }

    /// Gives the bytes of a record on storage, if all records have one size.
    pub(crate) fn record_bytes(&self) -> Option<RecordBytes> {
        match self.records {
            Records::Slotted | Records::Clustered => None,
            Records::Fixed { bytes, .. } => Some(bytes),
        }
    }

    /// Whether the layout takes direct inserts.
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

    /// Whether a directory maps nodes to pages.
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

    /// The kind of the file with changes that wait for their pages, after direct inserts.
    pub(crate) fn waiting(&self) -> FileKind {
        match self.records_move() {
            true => FileKind::Pending,
            false => FileKind::Journal,
        }
    }

    /// Whether whole vectors, and with them ids, are beside lists.
    pub(crate) fn has_vectors_in_records(&self) -> bool {
        self.vectors == VectorsAt::Records
    }

    /// Whether the directory has the models that decode vectors or their leading parts.
    pub(crate) fn has_models_in_directory(&self) -> bool {
        self.has_directory() && self.vectors != VectorsAt::Segments
    }

    /// Whether the codes of neighbours are beside lists.
    pub(crate) fn has_codes_in_records(&self) -> bool {
        self.codes == CodesAt::Records
    }

    /// The layout's name.
    pub(crate) fn name(&self) -> &'static str {
        // A test checks that each kind of lists has a name.
        self.lists.layout().unwrap_or_default()
    }
}
