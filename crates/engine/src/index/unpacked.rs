//! The graph of an index in memory, *unpacked*: rows of a CSR graph (second-tier memory paper, §5)
//! in place of compressed pages.
//!
//! If an index fits into memory as a whole, a search spends half of its time decoding lists and
//! vectors (docs/measured.md, "Unpacked indexes"). So if an index is opened for reading, and its
//! budget has memory for every list and every vector without compression, each of them is decoded
//! once, when the index is opened. A search then reads each row in place, with its exact vector.
//!
//! ```text
//!   packed-…, layered-…, adjacency-…, vectors-…  ──decoded once──>  row 0 | row 1 | ..
//! ```
//!
//! The rows are the checkpoint as it was opened: its files, its placement and its pending changes.
//! Pages stay in memory instead if an index is opened for changes, belongs to a catalog, or is
//! calibrated. A list size counts more in rows than in pages, and a measurement is for pages.

use stratann_layout::{CsrShape, Manifest};
use stratann_tier::HugeBytes;

use super::{CacheSize, Index, Kind, OpenOptions};
use crate::progress::Silent;
use crate::stores::composition::CodesAt;
use crate::stores::resident::Resident;
use crate::stores::topology::placement::NOWHERE;
use crate::stores::{GraphStores, Layout, Pages};
use crate::update::{each_list, each_vector};
use crate::{Error, Preset};

/// The shape of the rows. `None` if unpacking would not help, or if some node has no record.
pub(super) fn shape(
    kind: &Kind,
    manifest: &Manifest,
    preset: Preset,
    options: &OpenOptions,
) -> Option<CsrShape> {
    let Kind::Graph(graph) = kind else {
        return None;
    };
    let stores = &graph.stores;
    let composition = stores.composition;
    // The other presets search as their papers say, with the options of their papers.
    let is_wanted = options.unpack && preset.whole_page;
    let is_of_use = composition.codes == CodesAt::Memory && composition.is_encoded();
    let is_free = options.places.is_empty() && options.cache == CacheSize::None;
    if !(is_wanted && is_of_use && is_free) {
        return None;
    }
    let nodes = kind.nodes();
    if let Some(placement) = stores.placement.get() {
        let mut all = 0..nodes as u32;
        // An insert that was given up has left a node without a record.
        if all.any(|node| placement.page_of(node) == NOWHERE) {
            return None;
        }
    }
    let degree = manifest.graph().degree as usize + most_pending(stores);
    let dim = manifest.dimension as usize;
    // Rows have no shape for longer lists than any index has.
    CsrShape::new(manifest.element, dim, degree, nodes).ok()
}

/// The most pending changes of one list. Until its page is written, the list may be longer by so
/// many links than the degree.
fn most_pending(stores: &GraphStores) -> usize {
    let Some(placement) = stores.placement.get() else {
        return 0;
    };
    let (mut changes, _) = placement.pending.all();
    changes.sort_unstable_by_key(|change| change.node);
    let of_a_node = changes.chunk_by(|a, b| a.node == b.node);
    of_a_node.map(<[_]>::len).max().unwrap_or(0)
}

/// Decodes every list and every vector into rows.
///
/// # Errors
/// A file cannot be read, or is damaged.
pub(super) fn unpack(index: &Index, shape: CsrShape) -> Result<GraphStores, Error> {
    let packed = index.graph();
    let (nodes, bytes) = (shape.nodes() as usize, shape.row_bytes());
    let mut rows = HugeBytes::zeroed(nodes * bytes)?;
    let place = |node: u32| node as usize * bytes..(node as usize + 1) * bytes;
    // A bit for each half of a row: its list, its vector.
    let mut halves = vec![0u8; nodes];
    each_list(index, &Silent, &mut |node, list| {
        // A longer list would be damage, and its last links are the newest ones.
        let list = &list[list.len().saturating_sub(shape.degree())..];
        if let Some(&link) = list.iter().find(|&&link| link as usize >= nodes) {
            let what = format!("node {node} links to node {link}, but there are {nodes} nodes");
            return Err(packed.damaged(what));
        }
        shape.put_list(list, &mut rows[place(node)]);
        halves[node as usize] |= 1;
        Ok(())
    })?;
    each_vector(index, &Silent, &mut |node, id, vector| {
        let row = &mut rows[place(node)];
        shape.put_vector(id, vector, row);
        shape.seal(node, row);
        halves[node as usize] |= 2;
        Ok(())
    })?;
    if let Some(node) = halves.iter().position(|&half| half != 3) {
        let missing = if halves[node] & 1 == 0 {
            "list"
        } else {
            "vector"
        };
        return Err(packed.damaged(format!("node {node} has no {missing}")));
    }
    Ok(GraphStores {
        composition: Layout::Csr.composition(),
        tier: packed.tier.clone(),
        name: packed.name.clone(),
        file: packed.file.clone(),
        nodes: shape.nodes(),
        pages: Pages::rows(shape, packed.file.clone()),
        resident: Resident::whole(rows, bytes),
        segments: None,
        placement: Default::default(),
    })
}
