//! Clustering decides which vectors are read together if a query is near them (SPANN, NeurIPS 2021,
//! §3; the second-tier memory paper, §2 and §6).
//!
//! ```text
//!   rows ──> kmeans.rs    balanced hierarchical k-means: clusters of about one size
//!              │            the row nearest to the mean of each is its head
//!              v
//!            heads.rs     a graph over the heads: a row, or a query, finds the nearest ones
//!              │
//!              v
//!            closure.rs   a row joins the nearest cluster, and others if it is near their boundary
//!              │
//!              v
//!            grouping.rs  if vectors are stored once: chooses the group for each vector
//! ```
//!
//! All work is done in build space ([`Space`]), where squared Euclidean distance ranks as the
//! metric does. Rows are read in chunks ([`PointRows`]), and are never all in memory. The result
//! depends on rows, options and seed, but not on the number of threads.

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

const CHUNK: usize = 1024;

pub(crate) struct PointRows<'a> {
    pub(crate) source: &'a dyn VectorSource,
    pub(crate) space: Space,
}

impl PointRows<'_> {
    /// Calls `each` with the position of a chunk's first row, and the chunk's bytes.
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

    /// The points of the given rows as little-endian floats, concatenated.
    fn floats(&self, rows: &[u32]) -> Result<Vec<u8>, Error> {
        let mut floats = Vec::with_capacity(rows.len() * self.space.build_dim() * 4);
        self.each_chunk(rows, |_, bytes| self.push_floats(bytes, &mut floats))?;
        Ok(floats)
    }

    fn push_floats(&self, rows: &[u8], out: &mut Vec<u8>) {
        self.space.each_point(rows, |point| {
            out.extend(point.iter().flat_map(|value| value.to_le_bytes()));
        });
    }
}

fn go_on(progress: &dyn Progress) -> Result<(), Error> {
    match progress.interrupted() {
        true => Err(Error::Interrupted),
        false => Ok(()),
    }
}
