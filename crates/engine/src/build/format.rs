//! Chooses the layout and the compression before any work, and derives further facts from them.

use stratann_layout::BLOCK;

use super::{BuildOptions, SpaceChoice, parting, space};
use crate::data::VectorSource;
use crate::fill;
use crate::stores::VectorsAt;
use crate::stores::composition::Made;
use crate::stores::writing::coding::Coding;
use crate::stores::writing::{Choices, Expected, NodeWriter};
use crate::{Compression, Error, Layout, plan};

const USUAL_DEGREE: usize = 64;

pub(super) struct Choice {
    pub(super) writer: Box<dyn NodeWriter>,
    pub(super) layout: Layout,
    pub(super) degree: usize,
    /// The expected number of nodes on a page, at least 1. The locality order makes groups of this
    /// size.
    pub(super) nodes_per_page: usize,
    pub(super) space: Option<SpaceChoice>,
}

/// The layouts that [`Choice::of`] can choose if the preset leaves the layout open.
pub(super) const CHOSEN: [Layout; 4] = [
    Layout::Packed,
    Layout::Decoupled,
    Layout::Inline,
    Layout::Layered,
];

impl Choice {
    /// The options decide first, then the preset. If both leave the layout open, the size of the
    /// vectors and a sample of them decide.
    pub(super) fn of(
        source: &dyn VectorSource,
        options: &BuildOptions,
        code_bytes: usize,
    ) -> Result<Self, Error> {
        let (element, dim) = (source.element(), source.dim());
        check_sizes(options, source.row_bytes() as u64)?;
        let compression = options.compression.unwrap_or(options.preset.compression);
        let asked = options.layout.or(options.preset.layout);
        let codes_fit = codes_fit(source, options, code_bytes);
        let degree = options.degree.unwrap_or(match asked {
            None if !codes_fit => fill::usual_degree(element, dim, code_bytes),
            _ => USUAL_DEGREE,
        });
        let expected = Expected::of(element, dim, degree);
        let layout = match asked {
            Some(layout) => layout,
            None if !codes_fit => Layout::Inline,
            None if expected.are_packed() => Layout::Packed,
            // Vectors in two parts have their own compression. So if the options name another
            // compression, no layout with two parts is chosen.
            None if compression != Compression::Best => Layout::Decoupled,
            None => {
                let coding = Coding::new(source, degree, compression)?;
                let spare = options.search_memory.map(|budget| {
                    let codes = source.rows() as u64 * code_bytes as u64;
                    budget.saturating_sub(plan::least(dim, codes))
                });
                match parting::is_worth_it(source, &coding, expected.list, spare)? {
                    true => Layout::Layered,
                    false => Layout::Decoupled,
                }
            }
        };
        check_search_memory(source, options, code_bytes, layout)?;
        if options.preset.low_codes.is_some() && layout.has_codes_in_records() {
            let reason = format!(
                "the preset {} has codes of two precisions in memory, but this layout has codes in records",
                options.preset
            );
            let remedy = "Choose a layout with codes in memory, or another preset";
            return Err(Error::call("layout", layout, reason, remedy));
        }
        // The layout was chosen for the usual degree, but its reasons also apply to longer lists.
        let space = match options.space {
            Some(budget) => {
                let compression = match layout.composition().vectors {
                    VectorsAt::Parts => Compression::Best,
                    VectorsAt::Records | VectorsAt::Segments => compression,
                };
                let coding = Coding::new(source, degree, compression)?;
                let found =
                    space::largest_degree(source, &coding, layout, code_bytes, options, budget)?;
                Some(found)
            }
            None => None,
        };
        let degree = space.map_or(degree, |space| space.degree);
        let expected = Expected::of(element, dim, degree);
        if !layout.is_encoded() {
            check_uncompressed(options, layout)?;
        }
        let choices = Choices {
            source,
            options,
            compression,
            degree,
            code_bytes,
            expected,
        };
        let Made::Graph { writer, .. } = layout.composition().made else {
            let reason = "this build makes a graph, but the layout has clusters";
            return Err(Error::call(
                "layout",
                layout,
                reason,
                "Choose a layout of a graph",
            ));
        };
        let (writer, nodes_per_page) = writer(&choices)?;
        Ok(Self {
            writer,
            layout,
            degree,
            nodes_per_page,
            space,
        })
    }
}

fn codes_fit(source: &dyn VectorSource, options: &BuildOptions, code_bytes: usize) -> bool {
    let codes = source.rows() as u64 * code_bytes as u64;
    let least = plan::least(source.dim(), codes);
    options.search_memory.is_none_or(|budget| budget >= least)
}

fn check_search_memory(
    source: &dyn VectorSource,
    options: &BuildOptions,
    code_bytes: usize,
    layout: Layout,
) -> Result<(), Error> {
    let (codes, what) = match layout.has_codes_in_records() {
        true => (options.preset.entry_points, "the codebook"),
        false => (
            source.rows(),
            "the codes of all vectors (the layout inline keeps the codes on storage)",
        ),
    };
    let needs = plan::least(source.dim(), codes as u64 * code_bytes as u64);
    match options.search_memory {
        Some(budget) if budget < needs => Err(Error::Memory {
            budget,
            needs,
            part: format!("the program, a search and {what}"),
        }),
        _ => Ok(()),
    }
}

/// If a preset names a compression and the layout has none, the preset's compression is ignored.
fn check_uncompressed(options: &BuildOptions, layout: Layout) -> Result<(), Error> {
    match options.compression {
        Some(asked @ (Compression::Paper | Compression::Best)) => {
            let reason = format!("the {layout} layout has no compression");
            let remedy = "Pass raw, or choose the layout packed or decoupled";
            Err(Error::call("compression", asked, reason, remedy))
        }
        _ => Ok(()),
    }
}

fn check_sizes(options: &BuildOptions, vector_bytes: u64) -> Result<(), Error> {
    let least = vector_bytes.max(BLOCK as u64);
    if options.chunk_bytes < least {
        return Err(Error::call(
            "chunk size",
            format!("{} bytes", options.chunk_bytes),
            format!(
                "a chunk has space for a block of {BLOCK} bytes, and for a vector of {vector_bytes} bytes"
            ),
            format!("Pass {least} bytes or more"),
        ));
    }
    if options.segment_bytes < options.chunk_bytes {
        return Err(Error::call(
            "segment size",
            format!("{} bytes", options.segment_bytes),
            "a segment has at least one chunk",
            format!(
                "Pass {} bytes, the size of a chunk, or more",
                options.chunk_bytes
            ),
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use stratann_vector::Element;

    use super::*;
    use crate::Preset;
    use crate::data::Matrix;

    #[test]
    fn small_vectors_are_packed_and_large_ones_are_not() {
        let packed = |element, dim, degree| Expected::of(element, dim, degree).are_packed();
        assert!(packed(Element::U8, 128, 64));
        assert!(packed(Element::I8, 100, 96));
        assert!(packed(Element::U8, 768, 64));
        assert!(!packed(Element::U8, 960, 64));
        assert!(packed(Element::F32, 100, 64));
        assert!(!packed(Element::F32, 384, 64));
        assert!(!packed(Element::F16, 768, 64));
    }

    #[test]
    fn large_vectors_go_by_what_a_sample_says() {
        // Element i of row r is one of a few hundred pseudo-random values.
        let rows = |scale: &dyn Fn(usize) -> f32| {
            let value = |i: usize| (i * 7_919 % 613) as f32 / 613.0 - 0.5;
            let bytes = (0..400 * 384).flat_map(|i| (value(i) * scale(i / 384)).to_le_bytes());
            Matrix::new(bytes.collect(), 400, 384, Element::F32).unwrap()
        };
        let chosen =
            |rows: &Matrix, options: &BuildOptions| Choice::of(rows, options, 96).unwrap().layout;
        let usual = BuildOptions::default();
        let (alike, unlike) = (rows(&|_| 1.0), rows(&|row| (1 + row % 5 * 40) as f32));
        assert_eq!(chosen(&alike, &usual), Layout::Layered);
        assert_eq!(chosen(&unlike, &usual), Layout::Decoupled);
        let raw = BuildOptions {
            compression: Some(Compression::Raw),
            ..usual.clone()
        };
        assert_eq!(chosen(&alike, &raw), Layout::Decoupled);
        let paper = BuildOptions {
            preset: Preset::DECOUPLEVS,
            ..usual.clone()
        };
        assert_eq!(chosen(&alike, &paper), Layout::Decoupled);
        // The memory suffices for all lists, but not for vectors.
        let little = BuildOptions {
            search_memory: Some(plan::least(384, 400 * 96) + 400 * 84),
            ..usual
        };
        assert_eq!(chosen(&alike, &little), Layout::Decoupled);
    }

    #[test]
    fn a_page_is_expected_to_hold_a_node_at_least() {
        let expected = Expected::of(Element::F32, 2000, 4000);
        assert_eq!(expected.nodes_a_page(), 1);
        assert_eq!(expected.lists_a_page(), 1);
        let sift = Expected::of(Element::U8, 128, 64);
        assert_eq!(sift.nodes_a_page(), 22);
        assert_eq!(sift.lists_a_page(), 49);
    }
}
