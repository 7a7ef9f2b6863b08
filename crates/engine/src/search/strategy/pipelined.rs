//! Pipelined search, as in PipeANN (Guo and Lu, OSDI 2025): keep up to `width` reads in flight, expand each page as it
//! comes, and at once ask for the candidate that is nearest *now*.
//!
//! Reads are speculative: a candidate that is asked for early may be overtaken before its page comes. So the width is
//! dynamic. While the search approaches it stays at [`APPROACH_WIDTH`]; once the nearest [`SETTLED`] candidates have
//! been expanded, it grows by [`GROWTH`] with each page that comes, as long as at most [`WASTE`] of the reads since then
//! were wasted.
//!
//! PipeANN waits for the nearest 5 and grows by 1. Side by side on photo-sift-1m at recall@10 0.96 with one query in
//! flight, that answered 808 queries a second, these parameters 937 and 974.
//!
//! Where vectors are apart from lists, they are prefetched with what reads of the graph leave of the largest width; both
//! together never exceed it.

use crate::Error;
use crate::search::reader::NodeReader;
use crate::search::traversal::Traversal;
use crate::stores::NodePages;

/// Reads in flight while the search approaches its answer.
const APPROACH_WIDTH: usize = 4;
/// Once this many of the nearest candidates are expanded, the search converges.
const SETTLED: usize = 1;
/// By how much the pipeline grows.
const GROWTH: usize = 8;
/// The share of wasted reads up to which the pipeline grows.
const WASTE: f32 = 0.1;

/// Runs one query's traversal to its end.
pub(super) async fn pipelined<'a, N: NodePages>(
    traversal: &mut Traversal<'a, N>,
    reader: &mut NodeReader<'a, N>,
    max_width: usize,
) -> Result<(), Error> {
    let mut width = APPROACH_WIDTH.min(max_width);
    let mut converging = false;
    let (mut kept, mut left) = (0u32, 0u32);
    loop {
        let mut unread = true;
        while reader.in_flight() < width {
            traversal.prefetch_first(max_width, reader)?;
            if traversal.in_flight(reader) >= max_width {
                break;
            }
            let Some(key) = traversal.take(reader.in_flight()) else {
                unread = false;
                break;
            };
            traversal.fetch(key, reader)?;
        }
        if reader.in_flight() == 0 && !unread {
            return Ok(());
        }
        // What the graph leaves of the bandwidth, also when it has nothing left to ask for.
        traversal.prefetch(max_width, reader)?;
        // One start for all reads of this turn: each start costs the kernel a doorbell.
        reader.flush();
        let mut arrived = traversal.next(reader).await?;
        while let Some(page) = arrived {
            let arrival = traversal.arrive(page, reader)?;
            converging = converging || traversal.frontier.settled(SETTLED);
            if converging {
                kept += arrival.kept;
                left += arrival.left;
                if left as f32 <= WASTE * (kept + left) as f32 {
                    width = (width + GROWTH).min(max_width);
                }
            }
            arrived = reader.try_next()?;
        }
        traversal.take_vectors()?;
    }
}
