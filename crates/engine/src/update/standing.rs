//! An index at one read timestamp, for scans of all vectors that are live at this timestamp.
//!
//! ```text
//!   timestamp ──> vectors in memory ───────────────> fresh       first: older records of their ids
//!              │                                                 on storage are dead
//!              └> nodes on storage, some at a time ─> each_node   the nodes that `counts` accepts
//! ```

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::live::{LiveIndex, Snapshot};
use crate::Error;
use crate::index::Index;
use crate::overlay::fresh::{FreshGraph, FreshMoment};
use crate::overlay::{Overlay, Seen};
use crate::progress::{Progress, WithinStage};
use crate::search::{Exactness, Nodes};
use crate::stores::columns::View;

#[derive(Clone)]
pub(crate) struct Standing<'a> {
    pub(crate) index: &'a Index,
    pub(crate) seen: Seen<'a>,
    pub(crate) nodes: u32,
    pub(crate) view: View,
    pub(crate) live: u64,
    /// Whether the scan may meet vectors inserted after the read timestamp.
    pub(crate) changes: bool,
}

/// An owned [`Standing`] of an index that is open for changes. While this value exists, the files
/// of its checkpoint stay.
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
    /// Whether a later checkpoint has replaced this checkpoint. The replaced checkpoint stays in
    /// memory and on storage until the drop of this value.
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
    pub(crate) fn held(&self) -> Held {
        self.while_nobody_changes(|snapshot| {
            let index = &snapshot.index;
            Held {
                snapshot: snapshot.clone(),
                nodes: index.nodes() as u32,
                view: index.columns().view(),
                live: snapshot.overlay.live(index.nodes()) as u64,
                replaced: self.replaced.clone(),
                // A merge changes this count only while no other change can run.
                before: self.replaced.load(Ordering::Acquire),
            }
        })
    }
}

impl Index {
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
    /// The graphs of vectors that are only in memory, the older graph first. If an id is in both
    /// graphs during a merge, the caller counts it once.
    pub(crate) fn fresh(&self) -> impl Iterator<Item = (&'a FreshGraph, FreshMoment)> + use<'a> {
        self.seen.fresh()
    }

    /// Calls `each` with number, external id and vector of the nodes `first..end`, in any order,
    /// one at a time. Dead nodes may be included. The scan reports no progress, but `progress` may
    /// interrupt the scan.
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

    /// Whether the record of an id on a node is live. The caller must first exclude ids with a
    /// vector in memory.
    pub(crate) fn counts(&self, node: u32, id: u64) -> bool {
        node < self.nodes && self.seen.admission().admits(id, node)
    }
}
