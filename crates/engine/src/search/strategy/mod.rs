//! Strategies: in which order nodes are read and expanded, a file each.
//!
//! They differ only in when they ask for pages and when they wait; what a page means is said in [`traversal`](super::traversal).
//! A new one is a file here and a line in each of the two lists of this file.

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
    /// In which order nodes are read and scored.
    pub enum Strategy, "strategy" {
        /// DiskANN's beam search: reads the best W unread candidates and waits for all of them.
        BestFirst = "best-first", "Waits for the whole beam (DiskANN)",
        /// PipeANN's search: reacts to each completion, and its width grows as the search converges.
        Pipelined = "pipelined", "Reacts to each read; the beam widens as the search converges (PipeANN)",
        /// DistVS's search: codes of low precision rule out most neighbours, those of high precision decide which node is next.
        Press = "press", "From coarse to fine codes; needs nested ones, as the preset distvs has (DistVS)",
    }
}

/// Expands candidates until all that count are, with at most `width` reads in flight. `beam` is the caller's scratch.
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
