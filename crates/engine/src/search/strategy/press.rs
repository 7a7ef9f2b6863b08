//! PRESS, progressive precision similarity search (DistVS §3.1, Algorithm 2): neighbours are scored by low-precision codes, the nearest of them by
//! high-precision ones, and those decide which node is expanded next.
//!
//! ```text
//!   L_high ── the W nearest that are left ──> lists ──> neighbours, by low codes ──> L_low
//!      ^                                                                              │ the nearest that are left,
//!      └────────────────────────────── by high codes ─────────────────────────────────┘ a share of its length
//! ```
//!
//! W grows from 1 to the beam in the first rounds ([`width_of`]).
//!
//! L_high is the traversal's candidate list; it ends when all of it is expanded. All W lists of a round are waited for, as in best-first search, so
//! that the answers do not depend on the order of completions. Exact vectors come after it alone, those of the nearest of L_high
//! ([`Rerank::ratio`](crate::Rerank::ratio)).
//!
//! Here it is in one process, on lists wherever they are; in several, [`press`](crate::press) has what each of them does.

use crate::Error;
use crate::press::width_of;
use crate::search::reader::{NodeReader, Page};
use crate::search::traversal::Traversal;
use crate::stores::NodePages;

/// Runs one query's traversal to its end. `beam` is the caller's scratch.
pub(super) async fn press<'a, N: NodePages>(
    traversal: &mut Traversal<'a, N>,
    reader: &mut NodeReader<'a, N>,
    width: usize,
    beam: &mut Vec<Page<'a>>,
) -> Result<(), Error> {
    for round in 0u32.. {
        let (mut taken, width) = (0, width_of(round, width));
        while taken < width
            && let Some(key) = traversal.take(0)
        {
            taken += 1;
            traversal.fetch(key, reader)?;
        }
        if taken == 0 {
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
        traversal.refine();
    }
    Ok(())
}
