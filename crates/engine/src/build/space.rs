//! Finds the largest degree of a graph that a space budget allows.
//!
//! ```text
//!   bytes of a node  =  encoded vector (measured on a sample)
//!                       +  code  +  list of R  +  ids, lengths and its share of headers
//! ```
//!
//! R is the largest degree with which the index is expected to fit into the budget. Compressed
//! lists are small: an edge takes 9 to 13 bits, and a vector of 384 floats takes 1.3 kB. On
//! package-text, an index with R=96, L=200 is 2 % larger than with R=64, L=100, but searches read a
//! fifth less at the same recall (`docs/measured.md`). L grows with R, because longer lists help
//! only if the build searches farther.
//!
//! In locality order, lists take fewer bytes than the bound of their Elias-Fano code. So `lists.rs`
//! estimates their size from graphs over two samples. The estimated size of the index is about one
//! percent too high.

use serde::Serialize;
use stratann_layout::IdsFile;

use super::BuildOptions;
use super::lists::ExpectedLists;
use super::navigation::NAVIGATION_DEGREE;
use crate::data::VectorSource;
use crate::stores::VectorsAt;
use crate::stores::writing::coding::Coding;
use crate::{Compression, Error, Layout, Order};

/// The degrees that are tried. Larger degrees were not measured, and with smaller degrees the graph
/// is not connected.
const DEGREES: [usize; 11] = [96, 88, 80, 72, 64, 56, 48, 40, 32, 24, 16];
/// The bytes of a node in addition to list, vector and code: its id, its lengths, and its share of
/// headers and counts.
const BESIDE: f64 = 10.0;
const FILLED: f64 = 0.97;
/// The used share of pages with a few whole vectors.
const FILLED_APART: f64 = 0.95;
/// The used share of blocks with trailing parts. A trailing part may continue in the next block.
const FILLED_RUNNING: f64 = 0.985;
/// A factor of the estimate, to be safe. In the layered layout on package-text and package-wide,
/// the actual size was .992 to 1.002 of the estimate.
const MARGIN: f64 = 1.005;
/// The bytes that do not depend on the number of nodes: headers, models, manifest.
const FIXED: u64 = 32 << 10;

/// L of the build: the requested list size, or twice the degree if this is more and the degree is
/// above 64.
pub(super) fn list_for(degree: usize, asked: usize) -> usize {
    asked.max(if degree > 64 { 2 * degree } else { 0 })
}

/// The reasons for a degree that was chosen for a space budget.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct SpaceChoice {
    /// The bytes that the index may take.
    pub budget: u64,
    /// R, the largest degree with which the index was expected to fit.
    pub degree: usize,
    /// The expected bytes of the index with this degree.
    pub expected: u64,
    /// The expected number of bits of an edge; 0 if the layout does not compress lists.
    pub bits_per_edge: f64,
    /// The next larger degree that is tried, and the expected bytes of the index with it.
    pub next: Option<(usize, u64)>,
}

type ByDegree = dyn Fn(&ExpectedLists, usize) -> u64;

pub(super) struct Expectation {
    lists: ExpectedLists,
    encoded: bool,
    bytes: Box<ByDegree>,
}

impl Expectation {
    pub(super) fn of(
        source: &dyn VectorSource,
        coding: &Coding,
        layout: Layout,
        code_bytes: usize,
        options: &BuildOptions,
    ) -> Result<Self, Error> {
        // The navigation graph has a second copy of the vectors of its nodes.
        let in_navigation = match layout.has_codes_in_records() {
            true => source.row_bytes(),
            // In this navigation graph, a vector is rounded to one byte for each dimension.
            false => source.dim(),
        };
        let navigation = options.navigation * (in_navigation + 4 * NAVIGATION_DEGREE + 16) as f64;
        let order = options.order.unwrap_or(options.preset.order);
        let rows = source.rows() as u64;
        let ids = match (&options.ids, order) {
            (None, Order::Input) => 0,
            (None, _) => IdsFile::nodes_alone(rows).payload_bytes(),
            (Some(_), _) => IdsFile::pairs(rows).payload_bytes(),
        } as f64
            / rows as f64;
        let encoded = layout.is_encoded();
        let at = layout.composition().vectors;
        let (leading, vector) = match (encoded, at) {
            (false, _) => (0.0, 0.0),
            (true, VectorsAt::Parts) => coding.expected_parts(source)?,
            (true, _) => (0.0, coding.expected_vector(source)?),
        };
        let lists = match encoded {
            true => ExpectedLists::of(source, coding, options)?,
            false => ExpectedLists::bound(source.rows()),
        };
        let compression = coding.compression();
        let width = source.dim();
        let pages = move |list: f64| match (at, compression) {
            // In the paper's compression, a vector does not span two blocks (DecoupleVS §3.3).
            (VectorsAt::Segments, Compression::Paper) => {
                whole_blocks(vector + BESIDE) + list / FILLED
            }
            (VectorsAt::Segments, _) => (vector + list + BESIDE) / FILLED_APART,
            (VectorsAt::Records, _) => (vector + list + BESIDE) / FILLED,
            (VectorsAt::Parts, _) => {
                shared_pages(leading + list + BESIDE, width) + vector / FILLED_RUNNING
            }
        };
        let (element, dim, rows) = (source.element(), source.dim(), source.rows());
        let entry_points = options.preset.entry_points;
        let bytes = move |lists: &ExpectedLists, degree: usize| {
            let code = if layout.has_codes_in_records() {
                0
            } else {
                code_bytes
            };
            let record = match layout.composition().record_bytes() {
                None => pages(lists.bytes(degree)),
                Some(record_bytes) => {
                    record_bytes(element, dim, degree, code_bytes, rows as u64) + BESIDE
                }
            };
            let node = record + code as f64;
            let node = node + navigation + ids;
            // Each part of a code has 256 centroids of floats.
            let codebook = 256 * 4 * dim as u64;
            // If codes are in the records, an additional file has the codes of the entry points.
            let entries = match layout.has_codes_in_records() {
                true => entry_points.min(rows) * (4 + code_bytes),
                false => 0,
            };
            let beside = codebook + entries as u64;
            ((node * rows as f64 + beside as f64) * MARGIN) as u64 + FIXED
        };
        Ok(Self {
            lists,
            encoded,
            bytes: Box::new(bytes),
        })
    }

    pub(super) fn bytes(&self, degree: usize) -> u64 {
        (self.bytes)(&self.lists, degree)
    }

    fn bits(&self, degree: usize) -> f64 {
        if self.encoded {
            self.lists.bits(degree)
        } else {
            0.0
        }
    }
}

/// The largest degree with which an index is expected to take at most `budget` bytes. If no degree
/// fits, the error names the expected size with the smallest degree.
pub(super) fn largest_degree(
    source: &dyn VectorSource,
    coding: &Coding,
    layout: Layout,
    code_bytes: usize,
    options: &BuildOptions,
    budget: u64,
) -> Result<SpaceChoice, Error> {
    let expectation = Expectation::of(source, coding, layout, code_bytes, options)?;
    let expected = |degree| expectation.bytes(degree);
    let found = DEGREES
        .iter()
        .position(|&degree| expected(degree) <= budget);
    let Some(at) = found else {
        let least = expected(DEGREES[DEGREES.len() - 1]);
        return Err(Error::call(
            "space",
            format!("{budget} bytes"),
            format!(
                "{} vectors in the {layout} layout take {least} bytes with {} neighbours each",
                source.rows(),
                DEGREES[DEGREES.len() - 1]
            ),
            format!("Give {least} bytes or more"),
        ));
    };
    let degree = DEGREES[at];
    let next = at.checked_sub(1).map(|at| DEGREES[at]);
    Ok(SpaceChoice {
        budget,
        degree,
        expected: expected(degree),
        bits_per_edge: expectation.bits(degree),
        next: next.map(|degree| (degree, expected(degree))),
    })
}

/// The page bytes that a record with a leading part takes. Such a record does not span pages. Many
/// small records fill a page well. If only few records fit on a page, `precision.rs` chooses a
/// finer step, which fills the page with at most one more bit for each element.
fn shared_pages(record: f64, dim: usize) -> f64 {
    match stratann_layout::BLOCK as f64 / record {
        8.0.. => record / FILLED,
        2.0.. => record / FILLED + dim as f64 / 8.0,
        _ => whole_blocks(record),
    }
}

/// The storage bytes that a record takes, if it does not span blocks. A record larger than a block
/// takes whole blocks.
fn whole_blocks(record: f64) -> f64 {
    let block = stratann_layout::BLOCK as f64;
    match (block / record).floor() {
        0.0 => (record / block).ceil() * block,
        records => block / records,
    }
}
