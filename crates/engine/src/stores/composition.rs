//! What a layout is composed of, and what its stores can do: all that is asked of a layout once it is chosen. A search asks the pages.

use stratann_layout::{FileKind, Manifest};
use stratann_tier::Volume;

use super::records::FormatOf;
use super::{Pages, Placed};
use crate::Error;
use crate::build::{Choices, Planned};

/// The stores of a layout.
pub(crate) struct Composition {
    /// One line about it, for who chooses.
    pub(crate) about: &'static str,
    /// The kind of the file that has the lists, which says the layout's name.
    pub(crate) lists: FileKind,
    /// Whether vectors, and with them the outside ids, stand beside lists; else they are in segments.
    pub(crate) vectors_in_records: bool,
    /// Whether the codes of neighbours stand beside lists, and only those of the entry points are in memory; else those of all
    /// nodes are.
    pub(crate) codes_in_records: bool,
    /// Whether a node's page is looked up in a directory; else it follows from the node's number.
    pub(crate) has_directory: bool,
    /// Whether records are encoded; else they are of one size, as they are.
    pub(crate) encoded: bool,
    /// Whether direct inserts write records anew on other pages; else pages are written in their places.
    pub(crate) records_move: bool,
    /// The format of the pages of lists.
    pub(crate) page_format: FormatOf,
    /// Opens the pages of lists. Reads tables and models; no pages.
    pub(crate) open: fn(&dyn Volume, &Manifest, &Placed) -> Result<Pages, Error>,
    /// Decides where everything stands, before any work, and how many nodes a page is expected to hold.
    pub(crate) writer: fn(&Choices<'_>) -> Result<Planned, Error>,
}

impl Composition {
    /// The layout's name.
    pub(crate) fn name(&self) -> &'static str {
        // That a kind of lists has one, a test says.
        self.lists.layout().unwrap_or_default()
    }
}
