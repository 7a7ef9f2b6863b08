//! PRESS taken apart (DistVS §3.2): what each of the servers holds that search an index together, and what it does for a query.
//!
//! ```text
//!   compute server               memory server                        storage
//!   Low: low codes               High: lists, high codes              Full: exact vectors
//!   LowQuery: L_low              HighQuery: L_high
//!
//!     expand <──── lists ──────── advance: the W nearest that are left
//!     select ───── nodes ───────> refine: by the rests of high codes
//!                                 ...until all of L_high is visited
//!                                 best ──────── nodes ──────────────> rank
//! ```
//!
//! Node numbers go to and fro, in lists as the memory server holds them: compressed, whatever the dimension of the vectors is; and with each that is to be
//! refined what its low code estimates, so that the memory server looks at the rest of the high code alone: half a code, and half a table. Nothing here
//! knows of networks, threads or clocks, but [`Full`], which reads storage on threads of its own, and looks at the clock to give up a state that nobody goes by. In one process
//! [`Strategy::Press`](crate::Strategy::Press) does the same on lists wherever they are.
//!
//! **Offloading.** A compute server without room for all low codes keeps those of the most popular nodes (`popular.rs`), and asks the memory server with its next step for what the others
//! estimate (`missing.rs`: [`LowQuery::select`], [`HighQuery::look`], [`LowQuery::hear`]). It costs no exchange more. From the same start it finds the same but for few answers, by a few per cent more distances by high codes. Searches begin at the seeds whose codes are there.
//!
//! **Changes** go to [`Full`] alone, which ranks what waits for a merge together with what was found, and behind a merge in the state before it, too (`states.rs`).
//!
//! All three come from an index with codes of two precisions, such as one of the preset [`distvs`](crate::Preset::DISTVS): low codes are the first halves of
//! the high ones, or codes by themselves ([`LowCodes`]), and a compute server has them from the memory server, so that it needs no file.

mod full;
mod high;
mod low;
mod low_list;
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
pub(crate) use self::low_list::LowList;
pub use self::missing::{MOST_OF_STEP, Missing};
use crate::stores::VectorsAt;
use crate::stores::codes::low_codes_of;
use crate::{Error, Index, stored};

/// What is searched, as all servers must agree on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Collection {
    /// What tells this checkpoint of the index from every other: who has another one must not be asked about its nodes.
    pub state: u64,
    /// Nodes: they are numbered from 0.
    pub nodes: u32,
    /// Elements of a vector.
    pub dim: u32,
    /// Their type.
    pub element: Element,
    /// What "near" means.
    pub metric: Metric,
    /// Bytes of a low-precision code: half of those of a high one.
    pub low_bytes: u32,
    /// Bytes of a high-precision code.
    pub high_bytes: u32,
}

impl Collection {
    fn of(manifest: &Manifest) -> Self {
        // Of a name that this version does not know whoever opens the index is told.
        let low_codes = low_codes_of(manifest)
            .ok()
            .flatten()
            .unwrap_or(LowCodes::Nested);
        let stored = manifest.code_bytes as usize;
        let hash = blake3::hash(&manifest.encode());
        let [a, b, c, d, e, f, g, h, ..] = *hash.as_bytes();
        Self {
            // 0 is nobody's.
            state: u64::from_le_bytes([a, b, c, d, e, f, g, h]).max(1),
            nodes: manifest.vectors as u32,
            dim: manifest.dimension,
            element: manifest.element,
            metric: manifest.metric,
            low_bytes: low_codes.low_bytes(stored) as u32,
            high_bytes: low_codes.high_bytes(stored) as u32,
        }
    }

    /// What the index at `path` is by now, without opening it: whoever has another state of it opens it again.
    ///
    /// # Errors
    /// No index there, or a MANIFEST that is damaged.
    pub fn at(path: impl AsRef<Path>) -> Result<Self, Error> {
        let volume = stored::existing(path.as_ref())?;
        Ok(Self::of(&stored::manifest(&volume)?))
    }

    /// Bytes of a row.
    pub fn row_bytes(&self) -> usize {
        self.dim as usize * self.element.size()
    }

    /// Bytes of a query as a compute server sends it: of elements of a byte the row itself, else what [`Rounding`] makes of it.
    pub fn query_bytes(&self) -> usize {
        match is_rounded(self.element) {
            true => Rounding::bytes_of(self.dim as usize),
            false => self.row_bytes(),
        }
    }

    /// A query as numbers, of length 1 under cosine, and rounded; and as it is sent.
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

    /// What was [sent](Self::rounded), as the same numbers.
    fn sent(&self, query: &[u8], rounding: &Rounding, out: &mut Vec<f32>) -> Result<(), Error> {
        if !is_rounded(self.element) {
            return self.floats(query, out);
        }
        out.resize(self.dim as usize, 0.0);
        match rounding.read(query, out) {
            true => Ok(()),
            false => {
                let expected = format!("{} bytes of a rounded one", self.query_bytes());
                Err(Error::call(
                    "a query",
                    format!("{} bytes", query.len()),
                    expected,
                ))
            }
        }
    }

    /// A query as numbers, of length 1 under cosine.
    fn floats(&self, query: &[u8], out: &mut Vec<f32>) -> Result<(), Error> {
        if query.len() != self.row_bytes() {
            let expected = format!(
                "{}: {} elements of {}",
                self.row_bytes(),
                self.dim,
                self.element
            );
            return Err(Error::call("bytes of a query", query.len(), expected));
        }
        if let Some(at) = first_invalid(self.element, query) {
            return Err(Error::call(
                format!("element {at} of a query"),
                "NaN or infinity",
                "a number",
            ));
        }
        out.resize(self.dim as usize, 0.0);
        to_f32(self.element, query, out);
        if self.metric.reduction() == Reduction::Normalised && normalize(out) == 0.0 {
            let expected = "one of another length, since the metric is cosine";
            return Err(Error::call("a query", "a zero vector", expected));
        }
        Ok(())
    }
}

/// Whether walks go by queries of such elements [rounded](Rounding): those that take more than a byte. What they find is ranked by the query as it came.
pub(crate) fn is_rounded(element: Element) -> bool {
    element.size() > 1
}

/// Rounds a query, and leaves in `sent` what it is sent as. False where it cannot be: it is too far from all vectors.
pub(crate) fn round(rounding: &Rounding, query: &mut [f32], sent: &mut Vec<u8>) -> bool {
    sent.clear();
    rounding.append(query, sent);
    rounding.read(sent, query)
}

/// The error of a query that cannot be rounded.
pub(crate) fn far() -> Error {
    let expected = "one whose distances to the vectors are numbers";
    Error::call("a query", "one that is too far from all vectors", expected)
}

/// How many nodes a round visits, the first being 0, where the beam has so many: 1, then 2, 4, ... up to that. On the way to the query's neighbourhood
/// one node leads on, and what others bring is given up soon; there are about two rounds more. This differs from DistVS, whose width is fixed: with that,
/// PRESS with a beam of 8 took 1.25 times the work on photo-sift-100k and 1.14 times on package-text (`bench/README.md`).
pub(crate) fn width_of(round: u32, beam: usize) -> usize {
    1usize
        .checked_shl(round)
        .filter(|&width| width > 0)
        .unwrap_or(beam)
        .min(beam)
}

/// Refuses an index that servers cannot share: without codes of two precisions, with vectors beside lists, or with a graph that changed in place.
fn check(path: &Path, index: &Index) -> Result<(), Error> {
    let wrong = |found: String, expected: String| {
        Err(Error::call(
            format!("the index {}", path.display()),
            found,
            expected,
        ))
    };
    let built = || {
        let path = path.display();
        format!(
            "an index of the preset distvs, which servers can share: `stratann export {path} --out VECTORS`, then \
             `stratann build VECTORS NEW --preset distvs`, with the files of ids and attributes that the export names"
        )
    };
    if index.code_parts().is_none() {
        return wrong("one with codes of one precision".into(), built());
    }
    if index.composition().vectors != VectorsAt::Segments {
        return wrong("one with vectors beside lists".into(), built());
    }
    let came = index.nodes() as u64 - index.manifest().vectors.min(index.nodes() as u64);
    if came > 0 {
        return wrong(
            format!("one with {came} vectors inserted into its graph since its last merge"),
            format!(
                "one that is merged, since servers have one checkpoint in common: run `stratann compact {}`, and start all of its servers anew",
                path.display()
            ),
        );
    }
    Ok(())
}

/// Whether the checkpoint of an index is still the one with this manifest.
fn still(volume: &dyn Volume, path: &Path, collection: &Collection) -> Result<(), Error> {
    let manifest = stored::manifest(volume)?;
    match Collection::of(&manifest) == *collection {
        true => Ok(()),
        false => Err(Error::Outdated {
            path: path.to_owned(),
        }),
    }
}
