//! Spare buffers: a walk leaves its largest buffers to the next walk on the same thread.

use std::cell::RefCell;

use stratann_vector::DistanceTable;

use crate::frontier::Frontier;
use crate::navigation::NavigationScratch;
use crate::visited::Visited;

const MOST: usize = 8;
/// The most bytes that a thread keeps from one walk. A long candidate list needs megabytes.
const MOST_BYTES: usize = 512 << 10;

thread_local! {
    static SPARE: RefCell<Vec<Spare>> = const { RefCell::new(Vec::new()) };
}

/// The buffers of a walk. The next walk ignores their contents.
#[derive(Default)]
pub(super) struct Spare {
    pub(super) table: DistanceTable,
    pub(super) frontier: Frontier,
    pub(super) visited: Visited,
    pub(super) navigation: NavigationScratch,
}

impl Spare {
    pub(super) fn take() -> Self {
        let spare = SPARE.try_with(|spare| spare.borrow_mut().pop());
        spare.ok().flatten().unwrap_or_default()
    }

    /// Under a memory budget, no buffers are kept, because idle buffers would take memory of the
    /// budget.
    pub(super) fn leave(self, budget: Option<u64>) {
        let bytes = self.frontier.memory_bytes() + self.visited.memory_bytes();
        if bytes > MOST_BYTES || budget.is_some() {
            return;
        }
        // A thread that is ending keeps no buffers.
        let _ = SPARE.try_with(|spare| {
            let mut spare = spare.borrow_mut();
            if spare.len() < MOST {
                spare.push(self);
            }
        });
    }
}
