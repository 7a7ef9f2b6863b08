//! Search strategies: the order in which nodes are read and expanded. Each strategy has a file.
//!
//! Strategies differ only in when they request pages and when they wait. The work on a page that
//! has arrived is in [`traversal`](super::traversal). A new strategy needs a file in this folder,
//! and a line in each of the two lists of this file.

mod best_first;
mod pipelined;
mod press;

use self::best_first::best_first;
use self::pipelined::pipelined;
use self::press::press;
use super::reader::{NodeReader, Page};
use super::traversal::Traversal;
use crate::Error;
use crate::preset::named;
use crate::stores::NodePages;

named! {
    /// The order in which nodes are read and scored.
    pub enum Strategy, "strategy" {
        /// DiskANN's beam search: reads the best W unread candidates, and waits for all of them.
        BestFirst = "best-first", "Reads a beam of nodes, and waits for all of them (DiskANN)",
        /// PipeANN's search: handles each completion at once, and widens its pipeline as it
        /// converges.
        Pipelined = "pipelined", "Continues after each single read; the beam widens as the search converges (PipeANN)",
        /// DistVS's search: low-precision codes rule out most neighbours, and high-precision codes
        /// decide which node is expanded next.
        Press = "press", "Ranks by low codes, then by high codes; needs codes of two precisions, as the preset distvs has (DistVS)",
    }
}

/// Expands nodes until every candidate of the list is expanded, with at most `width` reads in
/// flight. `beam` is the caller's scratch space.
pub(super) async fn run<'a, N: NodePages>(
    strategy: Strategy,
    traversal: &mut Traversal<'a, N>,
    reader: &mut NodeReader<'a, N>,
    width: usize,
    beam: &mut Vec<Page<'a>>,
) -> Result<(), Error> {
    match strategy {
        Strategy::BestFirst => best_first(traversal, reader, width, beam).await,
        Strategy::Pipelined => pipelined(traversal, reader, width).await,
        Strategy::Press => press(traversal, reader, width, beam).await,
    }
}
