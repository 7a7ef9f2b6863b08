//! Search strategies, which differ only in the times at which they request pages and wait.
//! [`traversal`](super::traversal) does the work on a page.

mod best_first;
mod pipelined;
mod press;

use self::best_first::best_first;
use self::pipelined::pipelined;
use self::press::press;
pub(crate) use self::press::width_of;
use super::reader::{NodeReader, Page};
use super::traversal::Traversal;
use crate::Error;
use crate::spec::Strategy;
use crate::stores::NodePages;

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
