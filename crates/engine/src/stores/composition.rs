//! The composition of a layout: its stores and their properties. Code that depends on the layout
//! uses the composition. Searches alone use the constants of the pages ([`NodePages`]) instead.

use stratann_layout::{FileKind, Manifest};
use stratann_tier::Volume;
use stratann_vector::Element;

use super::records::FixedFormat;
use super::writing::{Choices, Planned};
use super::{NodePages, Pages, Placed};
use crate::Error;

/// The stores of a layout.
pub(crate) struct Composition {
    /// One line about the layout, for users.
    pub(crate) about: &'static str,
    /// The kind of the file of lists. The name of this kind is the name of the layout.
    pub(crate) lists: FileKind,
    /// The form of the records of lists.
    pub(crate) records: Records,
    /// The location of vectors. The id of a vector is stored beside the vector.
    pub(crate) vectors: VectorsAt,
    /// The location of codes.
    pub(crate) codes: CodesAt,
    /// The functions that open and write the stores.
    pub(crate) made: Made,
}

/// The functions that open and write the stores of a layout.
#[derive(Clone, Copy)]
pub(crate) enum Made {
    /// Pages of a graph.
    Graph {
        /// Opens the pages of lists. The function reads tables and models, but no pages.
        open: fn(&dyn Volume, &Manifest, &Placed) -> Result<Pages, Error>,
        /// Decides before the build where each part of the index is stored. It also estimates the
        /// number of nodes on a page.
        writer: fn(&Choices<'_>) -> Result<Planned, Error>,
    },
    /// Posting lists of clusters ([`clusters`](super::clusters)).
    Clusters {
        /// The kind of the file of posting lists.
        extents: FileKind,
    },
}

/// A function that returns the format of the fixed pages of a manifest's index.
pub(crate) type FixedFormatOf = fn(&Manifest) -> Result<Box<dyn FixedFormat>, Error>;

/// A function that returns the bytes on storage of a record of fixed size, including its share of
/// the page's unused space. The arguments are the element type, the dimension, the degree, the
/// bytes of a neighbour's code and the number of nodes.
pub(crate) type RecordBytes = fn(Element, usize, usize, usize, u64) -> f64;

/// The form of the records on pages of lists.
pub(crate) enum Records {
    /// Records of one size, which are not encoded. The page of a node follows from the number of
    /// the node, and the format of pages from the manifest.
    Fixed {
        /// The format of the pages.
        format: FixedFormatOf,
        /// Bytes of a record.
        bytes: RecordBytes,
        /// The location to which direct inserts write changed records.
        rewritten: Rewritten,
    },
    /// Encoded records of different lengths. A directory maps nodes to pages, and the header of the
    /// file has the page size. Direct inserts write changed records to other pages.
    Slotted,
    /// The layout has no lists. Uncompressed vectors are stored with their clusters.
    Clustered,
}

/// The location to which direct inserts write a changed record.
pub(crate) enum Rewritten {
    /// Another page, together with other changed records. A table has the page of each node
    /// ([`RecordsMove`](super::RecordsMove)).
    Elsewhere,
    /// The same page, which is rewritten as a whole ([`PagesStay`](super::PagesStay)).
    InPlace,
    /// Nowhere, since records never change ([`NothingChanges`](super::NothingChanges)).
    Nowhere,
}

/// The location of vectors.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum VectorsAt {
    /// Vectors are in the records, beside the lists.
    Records,
    /// Vectors are apart from lists, in segments.
    Segments,
    /// Vectors are stored in two parts. The leading part is in the record beside the list, and the
    /// trailing part is in a segment.
    Parts,
}

/// The location of codes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum CodesAt {
    /// Codes of all nodes are in memory.
    Memory,
    /// Codes of a node's neighbours are in its record, and only codes of the entry points are in
    /// memory.
    Records,
    /// The layout has no codes.
    Nowhere,
}

impl Records {
    /// The records of a layout with fixed pages. `format` returns the format of these pages.
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

    /// The records of a layout with fixed pages that never change, so that it takes no direct
    /// inserts.
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
    /// The location of vectors in a layout with these pages.
    pub(crate) const fn of<N: NodePages>() -> Self {
        match (N::VECTORS, N::PARTS) {
            (true, false) => Self::Records,
            (true, true) => Self::Parts,
            (false, _) => Self::Segments,
        }
    }
}

impl CodesAt {
    /// The location of codes in a layout with these pages.
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
    /// Opens the pages of lists of a graph index. The call reads tables and models, but no pages.
    ///
    /// # Errors
    /// A file is missing, damaged, of a later format or of another index. The call also fails if
    /// the layout has clusters.
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
            // Only a rebalance or a merge inserts vectors into clusters.
            Records::Clustered => false,
        }
    }

    /// Returns the function for the bytes of a record on storage, if all records have one size.
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

    /// The kind of the file that a checkpoint writes after direct inserts, for changes that wait
    /// for their pages.
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
