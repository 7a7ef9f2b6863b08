//! Clustering: which vectors are read together when a query is near them (SPANN, NeurIPS 2021, §3; the second-tier paper, §2 and §6).
//!
//! ```text
//!   rows ──> kmeans.rs    balanced hierarchical k-means: clusters of about one size
//!              │            the row nearest to the mean of each is its head
//!              v
//!            heads.rs     a graph over the heads: a row, or a query, finds the nearest ones
//!              │
//!              v
//!            closure.rs   a row becomes a member of the nearest clusters, several if it is near their boundary
//!              │
//!              v
//!            grouping.rs  where vectors stand once: the cluster whose group has it
//! ```
//!
//! Clusters that change later keep their heads in [`amended`], and are divided by [`kmeans::halves`].
//!
//! Everything is done in build space ([`Space`]), where squared Euclidean distance ranks as the metric does. Rows are read when they are
//! wanted, some at a time ([`PointRows`]), and never held as a whole; what is held of each are its numbers. All that is made follows from
//! rows, options and seed: not from the number of threads.

mod amended;
mod closure;
mod grouping;
mod heads;
mod kmeans;
#[cfg(test)]
mod tests;

use crate::Error;
use crate::data::VectorSource;
use crate::graph::Space;
use crate::progress::Progress;

pub(crate) use amended::{AmendedHeads, HeadsAt};
pub(crate) use closure::{
    Blocks, Closure, MOST_MEMBERS, Memberships, looked_at, memberships, take_turns,
};
pub(crate) use grouping::{groups, visits};
pub(crate) use heads::Heads;
use heads::HeadsScratch;
pub(crate) use kmeans::{halves, most_of, partition};

/// Rows that are read at a time by a thread.
const CHUNK: usize = 1024;

/// Rows, as points of build space.
pub(crate) struct PointRows<'a> {
    /// The rows. Single ones can be read.
    pub(crate) source: &'a dyn VectorSource,
    pub(crate) space: Space,
}

impl PointRows<'_> {
    /// Calls `each` with the rows of these numbers, some at a time: the place of the first of them, and their bytes.
    ///
    /// # Errors
    /// They cannot be read.
    fn each_chunk(&self, rows: &[u32], mut each: impl FnMut(usize, &[u8])) -> Result<(), Error> {
        let row_bytes = self.source.row_bytes();
        let mut bytes = vec![0; CHUNK.min(rows.len()) * row_bytes];
        let mut first = 0;
        for chunk in rows.chunks(CHUNK) {
            let bytes = &mut bytes[..chunk.len() * row_bytes];
            self.source.gather(chunk, bytes)?;
            each(first, bytes);
            first += chunk.len();
        }
        Ok(())
    }

    /// The points of these rows in floats, one after the other, little-endian.
    ///
    /// # Errors
    /// They cannot be read.
    fn floats(&self, rows: &[u32]) -> Result<Vec<u8>, Error> {
        let mut floats = Vec::with_capacity(rows.len() * self.space.build_dim() * 4);
        self.each_chunk(rows, |_, bytes| self.push_floats(bytes, &mut floats))?;
        Ok(floats)
    }

    /// Appends the points of some rows in floats.
    fn push_floats(&self, rows: &[u8], out: &mut Vec<u8>) {
        self.space.each_point(rows, |point| {
            out.extend(point.iter().flat_map(|value| value.to_le_bytes()));
        });
    }
}

/// What long work asks between two pieces of it.
fn go_on(progress: &dyn Progress) -> Result<(), Error> {
    match progress.interrupted() {
        true => Err(Error::Interrupted),
        false => Ok(()),
    }
}
