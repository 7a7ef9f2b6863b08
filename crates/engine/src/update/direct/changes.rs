//! The strategies of direct inserts that a layout supports.
//!
//! The type [`NodePages::Changes`] of a layout selects its strategies, so the code of inserts is
//! compiled once for each layout.

use stratann_layout::{FileEntry, FileKind};

use super::in_place::InPlace;
use super::insert::{Link, Work};
use super::{Direct, accumulate, checkpoint, in_place, relocate};
use crate::durable::Checkpoint;
use crate::stores::writing::files::write_stream;
use crate::stores::{Composable, NodePages, NothingChanges, PagesStay, RecordsMove, Rewritable};
use crate::{Error, Update};

pub(super) trait Way<N: NodePages> {
    type Work: Default;

    fn takes(update: Update) -> bool;

    fn link(update: Update) -> Link<N, Self::Work>;

    /// Writes the waiting changes as a file of a checkpoint, while no insert runs. Returns the
    /// pages to be written in place after the commit.
    fn write_waiting(
        direct: &Direct,
        pages: &N,
        checkpoint: &Checkpoint<'_>,
    ) -> Result<(FileEntry, Vec<u32>), Error>;

    fn write_in_place(direct: &Direct, pages: &N) -> Result<(), Error>;
}

pub(super) fn takes<N: NodePages<Changes: Way<N>>>(_: &N, update: Update) -> bool {
    N::Changes::takes(update)
}

pub(super) fn write_waiting<N: NodePages<Changes: Way<N>>>(
    direct: &Direct,
    pages: &N,
    checkpoint: &Checkpoint<'_>,
) -> Result<(FileEntry, Vec<u32>), Error> {
    N::Changes::write_waiting(direct, pages, checkpoint)
}

pub(super) fn write_in_place<N: NodePages<Changes: Way<N>>>(
    direct: &Direct,
    pages: &N,
) -> Result<(), Error> {
    N::Changes::write_in_place(direct, pages)
}

impl<N: Composable> Way<N> for RecordsMove {
    type Work = Work<N>;

    fn takes(_: Update) -> bool {
        true
    }

    fn link(update: Update) -> Link<N, Work<N>> {
        match update {
            Update::Relocate => relocate::link,
            // In these layouts, `InPlace` means a threshold of 1. `Merge` and `Rebalance` never
            // call this function.
            Update::Accumulate | Update::InPlace | Update::Merge | Update::Rebalance => {
                accumulate::link
            }
        }
    }

    fn write_waiting(
        direct: &Direct,
        _: &N,
        checkpoint: &Checkpoint<'_>,
    ) -> Result<(FileEntry, Vec<u32>), Error> {
        let payload = checkpoint::pending(direct.placement()).encode();
        let entry = write_stream(checkpoint, FileKind::Pending, None, &payload)?;
        Ok((entry, Vec::new()))
    }

    /// Changed records are written to other pages, so there is no journal.
    fn write_in_place(_: &Direct, _: &N) -> Result<(), Error> {
        Ok(())
    }
}

impl<N: Rewritable> Way<N> for PagesStay {
    type Work = InPlace<N>;

    fn takes(update: Update) -> bool {
        update != Update::Relocate
    }

    fn link(_: Update) -> Link<N, InPlace<N>> {
        in_place::link
    }

    fn write_waiting(
        direct: &Direct,
        pages: &N,
        checkpoint: &Checkpoint<'_>,
    ) -> Result<(FileEntry, Vec<u32>), Error> {
        direct.write_journal(checkpoint, pages)
    }

    fn write_in_place(direct: &Direct, pages: &N) -> Result<(), Error> {
        direct.write_due(pages)
    }
}

/// For such a layout, only `takes` is ever called.
impl<N: NodePages<Changes = NothingChanges>> Way<N> for NothingChanges {
    type Work = ();

    fn takes(_: Update) -> bool {
        false
    }

    fn link(_: Update) -> Link<N, ()> {
        |_, (), _| Err(takes_none())
    }

    fn write_waiting(
        _: &Direct,
        _: &N,
        _: &Checkpoint<'_>,
    ) -> Result<(FileEntry, Vec<u32>), Error> {
        Err(takes_none())
    }

    fn write_in_place(_: &Direct, _: &N) -> Result<(), Error> {
        Err(takes_none())
    }
}

#[cold]
fn takes_none() -> Error {
    Error::call(
        "way to update",
        "direct",
        "this layout takes no direct inserts",
        "Use merge",
    )
}
