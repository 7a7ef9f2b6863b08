//! PRESS on several servers (DistVS §3.2): the data of each server, and the work that the server
//! does for a query.
//!
//! ```text
//!   compute server               memory server                        storage
//!   Low: low codes               High: lists, high codes              Full: exact vectors
//!   LowQuery: L_low              HighQuery: L_high
//!
//!     expand <──── lists ──────── advance: visit the W nearest unvisited
//!     select ───── nodes ───────> refine: score by residual codes
//!                                 ...until all of L_high is visited
//!                                 best ──────── nodes ──────────────> rank
//! ```
//!
//! The low list (L_low) has the candidates by low codes, and the high list (L_high) the candidates
//! by high codes. W is the beam width. Messages carry node numbers and compressed lists. A node to
//! refine comes with its low-code estimate, so the memory server scores only the residual code.
//! [`Strategy::Press`](crate::Strategy::Press) runs the same search in one process.
//!
//! **Offloading.** If a compute server lacks memory for all low codes, it has the codes of the most
//! popular nodes (`popular.rs`), and requests estimates for the others (`missing.rs`:
//! [`LowQuery::select`], [`HighQuery::look`], [`LowQuery::hear`]). Such a search computes a few per
//! cent more distances by high codes.
//!
//! **Changes** are sent only to [`Full`], which still serves the previous checkpoint for a while
//! after a merge (`states.rs`). All servers use one index with [low and high codes](LowCodes).

mod full;
mod high;
mod low;
mod missing;
mod packed;
mod popular;
mod states;

use std::path::Path;

use stratann_layout::Manifest;
use stratann_tier::Volume;
use stratann_vector::{
    Element, LowCodes, Metric, Reduction, Rounding, first_invalid, normalize, to_f32,
};

pub use self::full::{Full, Ranked};
pub use self::high::{High, HighQuery};
pub use self::low::{Low, LowQuery};
pub use self::missing::Missing;
pub use crate::search::MOST_OF_STEP;
use crate::search::{far, is_rounded, round};
use crate::stores::VectorsAt;
use crate::stores::codes::low_codes_of;
use crate::{Error, Index, stored};

/// The facts about an index on which all servers must agree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Collection {
    /// The id of the checkpoint. Node numbers are valid only for servers with the same id.
    pub state: u64,
    /// The number of nodes, which are numbered from 0.
    pub nodes: u32,
    /// The number of elements of a vector.
    pub dim: u32,
    /// The type of the elements.
    pub element: Element,
    /// The distance function.
    pub metric: Metric,
    /// The bytes of a low code: half the bytes of a high code.
    pub low_bytes: u32,
    /// The bytes of a high code.
    pub high_bytes: u32,
}

impl Collection {
    fn of(manifest: &Manifest) -> Self {
        // If the manifest has an unknown name of low codes, the call that opens the index returns
        // the error.
        let low_codes = low_codes_of(manifest)
            .ok()
            .flatten()
            .unwrap_or(LowCodes::Nested);
        let stored = manifest.code_bytes as usize;
        let hash = blake3::hash(&manifest.encode());
        let [a, b, c, d, e, f, g, h, ..] = *hash.as_bytes();
        Self {
            // The id is never 0, because 0 means that there is no checkpoint.
            state: u64::from_le_bytes([a, b, c, d, e, f, g, h]).max(1),
            nodes: manifest.vectors as u32,
            dim: manifest.dimension,
            element: manifest.element,
            metric: manifest.metric,
            low_bytes: low_codes.low_bytes(stored) as u32,
            high_bytes: low_codes.high_bytes(stored) as u32,
        }
    }

    /// The current facts about the index at `path`, without opening it.
    ///
    /// # Errors
    /// There is no index at `path`, or its MANIFEST is damaged.
    pub fn at(path: impl AsRef<Path>) -> Result<Self, Error> {
        let volume = stored::existing(path.as_ref())?;
        Ok(Self::of(&stored::manifest(&volume)?))
    }

    /// The bytes of a vector.
    pub fn row_bytes(&self) -> usize {
        self.dim as usize * self.element.size()
    }

    /// The bytes of a query as a compute server sends it. Elements of several bytes are sent after
    /// [`Rounding`].
    pub fn query_bytes(&self) -> usize {
        match is_rounded(self.element) {
            true => Rounding::bytes_of(self.dim as usize),
            false => self.row_bytes(),
        }
    }

    /// Computes the rounded numbers of a query, and the bytes to send.
    fn rounded(
        &self,
        query: &[u8],
        rounding: &Rounding,
        out: &mut Vec<f32>,
        sent: &mut Vec<u8>,
    ) -> Result<(), Error> {
        self.floats(query, out)?;
        sent.clear();
        if !is_rounded(self.element) {
            sent.extend_from_slice(query);
            return Ok(());
        }
        match round(rounding, out, sent) {
            true => Ok(()),
            false => Err(far()),
        }
    }

    /// Decodes the sent bytes of a query into the numbers that [`rounded`](Self::rounded) computed.
    fn sent(&self, query: &[u8], rounding: &Rounding, out: &mut Vec<f32>) -> Result<(), Error> {
        if !is_rounded(self.element) {
            return self.floats(query, out);
        }
        out.resize(self.dim as usize, 0.0);
        match rounding.read(query, out) {
            true => Ok(()),
            false => Err(Error::call(
                "a rounded query",
                format!("{} bytes", query.len()),
                format!(
                    "this collection needs rounded queries of {} bytes",
                    self.query_bytes()
                ),
                ALIKE,
            )),
        }
    }

    /// Under cosine, the numbers are scaled to length 1.
    fn floats(&self, query: &[u8], out: &mut Vec<f32>) -> Result<(), Error> {
        if query.len() != self.row_bytes() {
            return Err(Error::call(
                "a query",
                format!("{} bytes", query.len()),
                format!(
                    "{} elements of {} take {} bytes",
                    self.dim,
                    self.element,
                    self.row_bytes()
                ),
                "Give a query of the index's dimension and element type",
            ));
        }
        if let Some(at) = first_invalid(self.element, query) {
            return Err(Error::call(
                format!("element {at} of a query"),
                "NaN or infinity",
                "distances need finite numbers",
                "Repair the query, or leave it out",
            ));
        }
        out.resize(self.dim as usize, 0.0);
        to_f32(self.element, query, out);
        if self.metric.reduction() == Reduction::Normalised && normalize(out) == 0.0 {
            return Err(Error::call(
                "a query",
                "a zero vector",
                "the metric is cosine, which needs a direction",
                "Leave it out",
            ));
        }
        Ok(())
    }
}

/// The remedy for an error caused by servers that do not fit together.
const ALIKE: &str = "Run all servers with the same index and the same version of StratANN";

fn no_node(node: u32, count: u32) -> Error {
    let reason = format!("the index has {count} nodes, numbered from 0");
    Error::call("a node", node, reason, ALIKE)
}

/// Servers share only indexes with low codes, vectors apart from lists, and no inserts since the
/// merge.
fn check(path: &Path, index: &Index) -> Result<(), Error> {
    let what = format!("the index {}", path.display());
    let built = |found| {
        let path = path.display();
        let remedy = format!(
            "Run `stratann export {path} --out VECTORS`, then `stratann build VECTORS NEW --preset distvs`, with the files \
             of ids and attributes that the export names"
        );
        let reason = "servers can share an index of the preset distvs";
        Err(Error::call(what.clone(), found, reason, remedy))
    };
    if index.code_parts().is_none() {
        return built("one with codes of one precision");
    }
    if index.composition().vectors != VectorsAt::Segments {
        return built("one with vectors beside lists");
    }
    let came = index.nodes() as u64 - index.manifest().vectors.min(index.nodes() as u64);
    if came > 0 {
        return Err(Error::call(
            what,
            format!("one with {came} vectors inserted into its graph since its last merge"),
            "servers share the checkpoint of a merge",
            format!(
                "Run `stratann compact {}`, then restart all of its servers",
                path.display()
            ),
        ));
    }
    Ok(())
}

fn still(volume: &dyn Volume, path: &Path, collection: &Collection) -> Result<(), Error> {
    let manifest = stored::manifest(volume)?;
    match Collection::of(&manifest) == *collection {
        true => Ok(()),
        false => Err(Error::Outdated {
            path: path.to_owned(),
        }),
    }
}
