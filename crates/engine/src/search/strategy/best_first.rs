//! Best-first search with beam width W, as in DiskANN.
//!
//! Each round reads the W nearest unread candidates, waits for all of them, and expands them in the
//! order of the requests. So results do not depend on the order of completions. Reads of vectors
//! apart from lists use the part of W that page reads leave free.

use crate::Error;
use crate::search::reader::{NodeReader, Page};
use crate::search::traversal::{Fetched, Traversal};
use crate::stores::NodePages;

pub(super) async fn best_first<'a, N: NodePages>(
    traversal: &mut Traversal<'a, N>,
    reader: &mut NodeReader<'a, N>,
    width: usize,
    beam: &mut Vec<Page<'a>>,
) -> Result<(), Error> {
    loop {
        let mut submitted = 0;
        loop {
            let vectors = traversal.prefetch_first(width, reader)?;
            if submitted >= width.saturating_sub(vectors).max(1) {
                break;
            }
            let Some(key) = traversal.take(0) else {
                break;
            };
            if let Fetched::Submitted = traversal.fetch(key, reader)? {
                submitted += 1;
            }
        }
        if submitted == 0 {
            return Ok(());
        }
        traversal.prefetch(width, reader)?;
        // The task wakes only when the whole beam has arrived.
        reader.need(reader.in_flight());
        beam.clear();
        while reader.in_flight() > 0 {
            beam.push(reader.next().await?);
        }
        traversal.sort_by_request(beam);
        for page in beam.drain(..) {
            traversal.arrive(page, reader)?;
        }
        // The next round must not depend on the order in which these vectors arrive.
        traversal.take_all_vectors().await?;
    }
}
