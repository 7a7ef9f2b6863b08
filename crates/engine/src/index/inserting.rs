//! The memory that direct inserts use beyond searches. An opening divides its budget with it.

use crate::DirectOptions;
use crate::plan::query_bytes;
use crate::stores::GraphStores;

/// The number of candidates of an insert beyond the degree (OdinANN §4.6).
pub(crate) const BEYOND: usize = 32;
/// The maximum number of dirty pages before inserts wait. A small budget lowers this number, but
/// not below `LEAST_UNWRITTEN`.
const MOST_UNWRITTEN: usize = 1024;
const LEAST_UNWRITTEN: usize = 16;
/// The pages that an insert needs in memory, if the whole index is on storage. For usual degrees,
/// an insert needs fewer pages.
const TIGHT_PAGES: u64 = 160;

/// The bytes of memory that an insert takes beyond searches, in an index entirely on storage.
pub(crate) fn tight_bytes(page_bytes: usize) -> u64 {
    TIGHT_PAGES * page_bytes as u64
}

/// The bytes of memory that inserts can use beyond searches, for lists of `degree` nodes.
pub(super) fn inserting_bytes(graph: &GraphStores, degree: usize) -> u64 {
    let threads = crate::threads::processors();
    let page_bytes = graph.pages.file(graph.nodes).page_bytes;
    if !graph.composition.takes_inserts() {
        return 0;
    }
    match graph.composition.records_move() {
        true => Room::wanted(threads, degree + BEYOND, page_bytes),
        false => threads as u64 * tight_bytes(page_bytes),
    }
}

/// The memory that a budget leaves for inserts, if records move. Half of this memory is for pages
/// that inserts keep during their searches, and half for dirty pages and waiting changes.
pub(crate) struct Room {
    pub(crate) threads: usize,
    pub(crate) in_flight: usize,
    pub(crate) unwritten: usize,
    pub(crate) pending: u64,
}

impl Room {
    fn wanted(threads: usize, list: usize, page_bytes: usize) -> u64 {
        let DirectOptions {
            in_flight, pending, ..
        } = DirectOptions::default();
        let searches = (threads * in_flight) as u64 * query_bytes(list, page_bytes);
        let waits = pending.max((MOST_UNWRITTEN * page_bytes) as u64);
        (2 * searches).max(4 * waits)
    }

    /// `None` means that there is no budget.
    pub(crate) fn of(
        bytes: Option<u64>,
        threads: usize,
        choices: &DirectOptions,
        list: usize,
        page_bytes: usize,
    ) -> Self {
        let wanted = Self {
            threads,
            in_flight: choices.in_flight.max(1),
            unwritten: MOST_UNWRITTEN,
            pending: choices.pending,
        };
        let Some(bytes) = bytes else {
            return wanted;
        };
        let searches = (bytes / 2 / query_bytes(list, page_bytes)).max(1) as usize;
        let threads = threads.min(searches);
        Self {
            threads,
            in_flight: wanted.in_flight.min(searches / threads),
            unwritten: wanted
                .unwritten
                .min((bytes / 4) as usize / page_bytes)
                .max(LEAST_UNWRITTEN),
            pending: wanted.pending.min(bytes / 4),
        }
    }
}
