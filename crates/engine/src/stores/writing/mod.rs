//! Writes the nodes of a new index: codecs, codes, pages, and the nodes that share a page.
//!
//! ```text
//!   choices.rs   the data from which a layout plans its files
//!   sweep.rs     passes all nodes to the writer of a layout, in batches
//!   codes.rs     encodes rows as PQ codes
//!   precision.rs chooses the number of bits in leading parts
//!   coding.rs    trains the codecs of lists and vectors on samples
//!   encode.rs    encodes lists and vectors, on all threads
//!   sharing.rs   decides which nodes share a page
//!   slotted.rs   writes records of different lengths to pages
//!   raw.rs       writes records of one size to pages
//!   files.rs     writes files
//! ```

mod choices;
pub(crate) mod codes;
pub(crate) mod coding;
pub(crate) mod encode;
pub(crate) mod files;
pub(crate) mod precision;
pub(crate) mod raw;
mod sharing;
pub(crate) mod slotted;
pub(crate) mod sweep;

use std::path::Path;

pub(crate) use self::choices::{Choices, Expected};
pub(crate) use self::sharing::{PagePlan, Sizes};
use self::sweep::Written;
use super::vectors::write::KeptSegment;
use crate::codebook::Codebook;
use crate::data::{Check, VectorSource};
use crate::durable::Checkpoint;
use crate::graph::{Constructed, NodeRows};
use crate::progress::Progress;
use crate::{BuildOptions, Error};

/// Writes the nodes of an index in one layout, when their order and pages are decided.
pub(crate) trait NodeWriter: Send + Sync {
    /// The bytes of the record of each node. `None` if all records have one length, or if they are
    /// not on pages.
    fn sizes(&self, build: &Writing<'_>, graph: &mut Constructed) -> Result<Option<Sizes>, Error> {
        let _ = (build, graph);
        Ok(None)
    }

    /// Writes all nodes and their codes, on planned pages if there is a plan.
    fn write(
        &self,
        build: &Writing<'_>,
        graph: &mut Constructed,
        codebook: &Codebook,
        plan: &PagePlan,
    ) -> Result<Written, Error>;
}

pub(crate) type Planned = (Box<dyn NodeWriter>, usize);

pub(crate) struct Writing<'a> {
    pub(crate) source: &'a dyn VectorSource,
    pub(crate) options: &'a BuildOptions,
    pub(crate) degree: usize,
    pub(crate) check: Check,
    /// Unchanged segments of vectors. Their rows come before all other rows.
    pub(crate) kept: &'a [KeptSegment],
    pub(crate) checkpoint: Checkpoint<'a>,
    pub(crate) scratch: &'a Path,
    pub(crate) progress: &'a dyn Progress,
}

impl Writing<'_> {
    pub(crate) fn go_on(&self) -> Result<(), Error> {
        if self.progress.interrupted() {
            return Err(Error::Interrupted);
        }
        Ok(())
    }

    /// Checks rows again. A source that is read twice may have changed after the graph was built.
    pub(crate) fn check_again(
        &self,
        rows: &NodeRows<'_>,
        first: usize,
        bytes: &[u8],
    ) -> Result<(), Error> {
        let (check, metric) = (self.check, self.options.metric);
        let Err(error) = check(rows, metric, first, bytes) else {
            return Ok(());
        };
        // The error names a row by the row's number in the source.
        let row_bytes = rows.row_bytes();
        for (at, row) in bytes.chunks_exact(row_bytes).enumerate() {
            check(rows, metric, rows.row_of(first + at), row)?;
        }
        Err(error.into())
    }

    /// An even sample of `count` nodes. In locality order, each neighbourhood has its share of the
    /// sample.
    pub(crate) fn sample(&self, count: usize) -> Vec<u32> {
        let rows = self.source.rows();
        (0..count).map(|i| (i * rows / count) as u32).collect()
    }

    /// If codes are beside lists, a search may start at the medoid and at an even sample of the
    /// nodes.
    pub(crate) fn entry_points(&self, medoid: u32) -> Vec<u32> {
        let others = self.options.preset.entry_points.saturating_sub(1);
        let mut entries = vec![medoid];
        let sample = self.sample(others.min(self.source.rows()));
        entries.extend(sample.into_iter().filter(|&node| node != medoid));
        entries
    }
}
