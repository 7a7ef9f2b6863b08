//! An index at one read timestamp, with each vector that was live at this timestamp. Scans of all
//! vectors read it.
//!
//! ```text
//!   one moment ─> vectors in memory ───────────────> each_fresh  first: their records on storage
//!              │                                                 are dead
//!              └> nodes on storage, some at a time ─> each_node  the ones that `counts` accepts
//! ```

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::fresh::{FreshGraph, FreshMoment};
use super::live::{LiveIndex, Snapshot};
use super::overlay::{Overlay, Seen};
use crate::Error;
use crate::index::Index;
use crate::progress::{Progress, WithinStage};
use crate::search::{Exactness, Nodes};
use crate::stores::columns::View;

/// An index at a read timestamp.
#[derive(Clone)]
pub(crate) struct Standing<'a> {
    pub(crate) index: &'a Index,
    pub(crate) seen: Seen<'a>,
    /// The number of nodes.
    pub(crate) nodes: u32,
    /// The columns at the read timestamp.
    pub(crate) view: View,
    /// The number of live vectors.
    pub(crate) live: u64,
    /// Whether the index keeps changing, so that a search may meet vectors inserted after the read
    /// timestamp.
    pub(crate) changes: bool,
}

/// Like [`Standing`], for an index that keeps changing. It keeps the files of its checkpoint.
pub(crate) struct Held {
    snapshot: Snapshot,
    nodes: u32,
    view: View,
    live: u64,
    /// The count of replaced checkpoints of the [`LiveIndex`], and the count at the read timestamp.
    replaced: Arc<AtomicU64>,
    before: u64,
}

impl Held {
    /// Whether a merge has replaced this checkpoint. If it has, both checkpoints stay in memory and
    /// on storage until this value is dropped.
    pub(crate) fn is_replaced(&self) -> bool {
        self.replaced.load(Ordering::Acquire) != self.before
    }

    pub(crate) fn standing(&self) -> Standing<'_> {
        Standing {
            index: &self.snapshot.index,
            seen: Seen {
                overlay: &self.snapshot.overlay,
                moment: self.snapshot.moment,
            },
            nodes: self.nodes,
            view: self.view.clone(),
            live: self.live,
            changes: true,
        }
    }
}

impl LiveIndex {
    /// The current state, taken while no call changes the index.
    pub(crate) fn held(&self) -> Held {
        self.while_nobody_changes(|snapshot| {
            let index = &snapshot.index;
            Held {
                snapshot: snapshot.clone(),
                nodes: index.nodes() as u32,
                view: index.columns().view(),
                live: snapshot.overlay.live(index.nodes()) as u64,
                replaced: self.replaced.clone(),
                // A merge counts a replaced checkpoint while no change can run.
                before: self.replaced.load(Ordering::Acquire),
            }
        })
    }
}

impl Index {
    /// Runs a function on the state at the time the index was opened.
    pub(crate) fn with_standing<T>(&self, read: impl FnOnce(&Standing<'_>) -> T) -> T {
        let carried;
        let overlay = match self.overlay() {
            Some(overlay) => overlay,
            None => {
                carried = Overlay::carried(self.carried());
                &carried
            }
        };
        read(&Standing {
            index: self,
            seen: Seen {
                overlay,
                moment: overlay.now(),
            },
            nodes: self.nodes() as u32,
            view: self.columns().view(),
            live: overlay.live(self.nodes()) as u64,
            changes: false,
        })
    }
}

impl<'a> Standing<'a> {
    /// The graphs of vectors that were only in memory, the older graph first, as for look-ups.
    /// During a merge an id may briefly be in both graphs, and counts once.
    pub(crate) fn fresh(&self) -> impl Iterator<Item = (&'a FreshGraph, FreshMoment)> + use<'a> {
        self.seen.fresh()
    }

    /// Calls `each` with the nodes from `first` to `end` (exclusive): number, external id, vector.
    /// The calls come in any order, one at a time, and may include dead nodes. The steps of this
    /// scan are not reported to `progress` as steps.
    ///
    /// # Errors
    /// Fails as [`Index::each_node`] does.
    pub(crate) fn each_node(
        &self,
        first: u32,
        end: u32,
        progress: &dyn Progress,
        each: &mut (dyn FnMut(u32, u64, &[u8]) + Send),
    ) -> Result<(), Error> {
        let quiet = WithinStage(progress);
        let nodes = Nodes::Range(first, end);
        let admission = self.seen.admission();
        self.index
            .each_node(nodes, Exactness::Exact, admission, &quiet, each)
    }

    /// Whether a record is the live vector of its id at the read timestamp. The caller must first
    /// exclude ids with a vector in memory.
    pub(crate) fn counts(&self, node: u32, id: u64) -> bool {
        node < self.nodes && self.seen.admission().admits(id, node)
    }
}
