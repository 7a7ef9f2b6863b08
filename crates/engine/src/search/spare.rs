//! What walks leave to those that come after them on the same thread: their largest buffers, so that a search of one query does not
//! allocate them each time, as a server's would.

use std::cell::RefCell;

use stratann_vector::DistanceTable;

use crate::frontier::Frontier;
use crate::navigation::NavigationScratch;
use crate::visited::Visited;

/// Walks whose buffers a thread keeps.
const MOST: usize = 8;
/// The most bytes of a walk's buffers that are kept: those of long lists, and where much is deleted, take megabytes.
const MOST_BYTES: usize = 512 << 10;

thread_local! {
    static SPARE: RefCell<Vec<Spare>> = const { RefCell::new(Vec::new()) };
}

/// The buffers of a walk; what is in them is of no interest to the next.
#[derive(Default)]
pub(super) struct Spare {
    pub(super) table: DistanceTable,
    pub(super) frontier: Frontier,
    pub(super) visited: Visited,
    pub(super) navigation: NavigationScratch,
}

impl Spare {
    /// Those of a walk that is over, or new ones.
    pub(super) fn take() -> Self {
        let spare = SPARE.try_with(|spare| spare.borrow_mut().pop());
        spare.ok().flatten().unwrap_or_default()
    }

    /// Leaves them to the next walk. Who has a memory budget keeps none: it has no room for what nobody uses.
    pub(super) fn leave(self, budget: Option<u64>) {
        let bytes = self.frontier.memory_bytes() + self.visited.memory_bytes();
        if bytes > MOST_BYTES || budget.is_some() {
            return;
        }
        // A thread that ends keeps nothing.
        let _ = SPARE.try_with(|spare| {
            let mut spare = spare.borrow_mut();
            if spare.len() < MOST {
                spare.push(self);
            }
        });
    }
}
