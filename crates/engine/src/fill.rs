//! Block fill of an inline index: the share of blocks that its nodes use (AiSAQ §3.1).

use std::fmt;

use serde::Serialize;
use stratann_layout::inline;
use stratann_vector::Element;

/// The share of 4 KiB blocks that the nodes of the inline layout use.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct BlockFill {
    /// The use of blocks with the present degree and code length.
    #[serde(flatten)]
    pub fill: Fill,
    /// Proposals that use the blocks better: a higher degree, longer codes, and the largest degree
    /// that saves a block or fits another node into a block.
    pub proposals: Vec<Fill>,
}

/// A degree and a code length, and the use of blocks with them.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Fill {
    /// The degree bound R: the largest number of neighbours of a node.
    pub degree: usize,
    /// The bytes of a neighbour's code.
    pub code_bytes: usize,
    /// The number of nodes on a page.
    pub nodes_per_page: usize,
    /// The number of 4 KiB blocks of a page.
    pub blocks: usize,
    /// The share of a page that its nodes use, from 0 to 1.
    pub used: f64,
}

impl BlockFill {
    pub(crate) fn of(element: Element, dim: usize, degree: usize, code_bytes: usize) -> Self {
        let found = inline::fill(element, dim, degree, code_bytes);
        let proposals = inline::proposals(element, dim, degree, code_bytes);
        Self {
            fill: Fill {
                degree,
                code_bytes,
                nodes_per_page: found.nodes_per_page,
                blocks: found.blocks,
                used: found.used,
            },
            proposals: proposals
                .into_iter()
                .map(|p| Fill {
                    degree: p.degree,
                    code_bytes: p.code_bytes,
                    nodes_per_page: p.nodes_per_page,
                    blocks: p.blocks,
                    used: p.used,
                })
                .collect(),
        }
    }
}

impl Fill {
    /// The blocks that a search reads for each node, if it uses all nodes of a page.
    pub(crate) fn read_per_node(&self) -> f64 {
        self.blocks as f64 / self.nodes_per_page as f64
    }
}

impl fmt::Display for Fill {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let used = 100.0 * self.used;
        match (self.nodes_per_page, self.blocks) {
            (1, 1) => write!(f, "1 node per block, {used:.0} % used"),
            (1, blocks) => write!(f, "{blocks} blocks per node, {used:.0} % used"),
            (nodes, _) => write!(f, "{nodes} nodes per block, {used:.0} % used"),
        }
    }
}

/// On photo-sift-100k, these degrees need about the same number of reads for the same recall. The
/// degrees 16 and 64 need more reads.
const USUAL_DEGREES: std::ops::RangeInclusive<usize> = 24..=40;

/// The largest degree with the fewest blocks to read for a node.
pub(crate) fn usual_degree(element: Element, dim: usize, code_bytes: usize) -> usize {
    let read = |degree: usize| {
        BlockFill::of(element, dim, degree, code_bytes)
            .fill
            .read_per_node()
    };
    let degrees = USUAL_DEGREES.rev();
    // Reversed, so that `min_by` finds the largest of equally good degrees.
    degrees
        .min_by(|&a, &b| read(a).total_cmp(&read(b)))
        .unwrap_or(*USUAL_DEGREES.start())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_usual_degree_fills_its_blocks() {
        for (element, dim, code_bytes, degree, fill) in [
            (Element::U8, 128, 32, 24, "4 nodes per block, 98 % used"),
            (Element::F32, 384, 96, 25, "1 node per block, 99 % used"),
            (Element::F32, 1024, 128, 30, "2 blocks per node, 99 % used"),
        ] {
            let found = usual_degree(element, dim, code_bytes);
            let text = BlockFill::of(element, dim, found, code_bytes)
                .fill
                .to_string();
            assert_eq!((found, &*text), (degree, fill), "{element} {dim}");
        }
    }

    #[test]
    fn proposals_use_more_of_what_is_read() {
        let found = BlockFill::of(Element::U8, 128, 64, 32);
        assert_eq!(found.fill.to_string(), "1 node per block, 60 % used");
        for proposal in &found.proposals {
            let fewer = proposal.read_per_node() < found.fill.read_per_node();
            assert!(fewer || proposal.used > found.fill.used, "{proposal:?}");
        }
        assert_eq!(found.proposals.len(), 3);
    }
}
