//! Best-first search with beam width W, as in DiskANN: read the W nearest unread candidates, wait for all of them,
//! expand them, repeat until the candidate list holds nothing unread.
//!
//! Pages are expanded in the order in which they were asked for, so the answers do not depend on the order of
//! completions.

use super::reader::{NodeReader, Page};
use super::traversal::{Place, Traversal};
use crate::Error;
use crate::nodes::NodePages;

/// Runs one query's traversal to its end. `beam` is the caller's scratch.
pub(crate) async fn best_first<'a, N: NodePages>(
    traversal: &mut Traversal<'a, N>,
    reader: &mut NodeReader<'a, N>,
    width: usize,
    beam: &mut Vec<Page<'a>>,
) -> Result<(), Error> {
    loop {
        let mut submitted = 0;
        while submitted < width {
            let Some(key) = traversal.frontier.take_unread() else {
                break;
            };
            if let Place::Submitted = traversal.fetch(key, reader)? {
                submitted += 1;
            }
            traversal.prefetch(width - submitted)?;
        }
        if submitted == 0 {
            return Ok(());
        }
        // One sleep for the whole beam.
        reader.need(reader.in_flight());
        beam.clear();
        while reader.in_flight() > 0 {
            beam.push(reader.next().await?);
        }
        traversal.sort_by_request(beam);
        for page in beam.drain(..) {
            traversal.arrive(page, reader)?;
        }
    }
}
