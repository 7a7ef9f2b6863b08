//! Reads an index back with the layout and codec crates alone, node by node.

use stratann_codec::{ListModel, SegmentModel};
use stratann_layout::{
    BLOCK, CoupledShape, FileKind, Manifest, PageDirectory, PageView, SlottedShape, SlottedView,
};
use stratann_tier::Volume;

use crate::{Layout, stored};

/// All nodes of an index, in their order.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Decoded {
    pub(super) ids: Vec<u64>,
    pub(super) vectors: Vec<Vec<u8>>,
    pub(super) lists: Vec<Vec<u32>>,
}

/// Decodes all pages of the index in a volume, whatever its layout. Panics on anything that is not as it should be.
pub(super) fn decode(volume: &dyn Volume) -> Decoded {
    let manifest = stored::manifest(volume).unwrap();
    let mut nodes = Decoded::default();
    match stored::layout(volume, &manifest).unwrap() {
        Layout::Coupled => coupled(volume, &manifest, &mut nodes),
        Layout::Packed => packed(volume, &manifest, &mut nodes),
        Layout::Decoupled => decoupled(volume, &manifest, &mut nodes),
    }
    assert_eq!(nodes.ids.len() as u64, manifest.vectors);
    assert_eq!(nodes.vectors.len() as u64, manifest.vectors);
    assert_eq!(nodes.lists.len() as u64, manifest.vectors);
    nodes
}

fn coupled(volume: &dyn Volume, manifest: &Manifest, nodes: &mut Decoded) {
    let entry = stored::entry(volume, manifest, FileKind::Graph, None).unwrap();
    let (dim, degree) = (manifest.dimension as usize, manifest.degree as usize);
    let shape = CoupledShape::new(manifest.element, dim, degree).unwrap();
    stored::check_shape(volume, entry, &shape, manifest.vectors).unwrap();
    let bytes = volume.read(&entry.name).unwrap();
    for (page, bytes) in (0..).zip(bytes[BLOCK..].chunks(shape.page_bytes())) {
        let expected = shape.nodes_on_page(page, manifest.vectors);
        let view = PageView::open(&shape, bytes, page, Some(expected), true, "graph").unwrap();
        for node in view.nodes() {
            let node = node.unwrap();
            nodes.ids.push(node.id);
            nodes.vectors.push(node.vector.to_vec());
            nodes.lists.push(node.neighbours.iter().collect());
        }
    }
}

fn packed(volume: &dyn Volume, manifest: &Manifest, nodes: &mut Decoded) {
    let directory = stored::directory(volume, manifest).unwrap();
    let lists = ListModel::from_bytes(&directory.list_model).unwrap();
    let models: Vec<_> = directory
        .vector_models
        .iter()
        .map(|model| SegmentModel::from_bytes(model).unwrap())
        .collect();
    let pages = directory.pages(0);
    each_record(
        volume,
        manifest,
        FileKind::Packed,
        None,
        &pages,
        |shape, node, id, list, vector| {
            nodes.ids.push(id.unwrap());
            nodes.lists.push(decode_list(&lists, node, list));
            let model = &models[(node / directory.segment_vectors) as usize];
            let mut out = vec![0; shape.vector_bytes()];
            model.decode(vector, None, &mut out).unwrap();
            nodes.vectors.push(out);
        },
    );
}

fn decoupled(volume: &dyn Volume, manifest: &Manifest, nodes: &mut Decoded) {
    let directory = stored::directory(volume, manifest).unwrap();
    let model = ListModel::from_bytes(&directory.list_model).unwrap();
    assert_eq!(directory.segment_vectors, 0);
    assert!(directory.vector_models.is_empty());
    let pages = directory.pages(0);
    let kind = FileKind::Adjacency;
    each_record(
        volume,
        manifest,
        kind,
        None,
        &pages,
        |_, node, id, list, vector| {
            assert_eq!(id, None);
            assert!(vector.is_empty());
            nodes.lists.push(decode_list(&model, node, list));
        },
    );
    for (n, segment) in (0..).zip(&manifest.segments) {
        let chunks = stored::chunks(volume, manifest, n).unwrap();
        let model = SegmentModel::from_bytes(&chunks.model).unwrap();
        let pages = chunks.pages(segment.first);
        let kind = FileKind::Vectors;
        each_record(
            volume,
            manifest,
            kind,
            Some(n),
            &pages,
            |shape, node, id, list, vector| {
                assert!(list.is_empty());
                nodes.ids.push(id.unwrap());
                let chunk = chunks.chunk_of(segment.first, node).unwrap();
                let mut out = vec![0; shape.vector_bytes()];
                model
                    .decode(vector, chunk.base.as_deref(), &mut out)
                    .unwrap();
                nodes.vectors.push(out);
            },
        );
        // A chunk begins on a new page: no page has nodes of two.
        let mut next = 0;
        for chunk in &chunks.chunks {
            assert_eq!(chunk.first_page, next);
            next += chunk.pages;
        }
    }
}

/// Gives each record of a file of slotted pages: shape, node, id, list, vector. The directory has to find it.
fn each_record(
    volume: &dyn Volume,
    manifest: &Manifest,
    kind: FileKind,
    n: Option<u32>,
    pages: &PageDirectory,
    mut each: impl FnMut(&SlottedShape, u32, Option<u64>, &[u8], &[u8]),
) {
    let (shape, facts, entry) = stored::slotted(volume, manifest, kind, n).unwrap();
    let bytes = volume.read(&entry.name).unwrap();
    assert_eq!(pages.pages(), facts.pages);
    let mut next = facts.first;
    for (page, bytes) in (0..).zip(bytes[BLOCK..].chunks(shape.page_bytes())) {
        let view = SlottedView::open(&shape, bytes, page, true, "pages").unwrap();
        assert_eq!(view.first(), next);
        for slot in 0..view.len() {
            let record = view.record(slot).unwrap();
            assert_eq!(pages.page_of(next), page, "node {next}");
            let id = (kind != FileKind::Adjacency).then(|| view.id(slot).unwrap());
            each(&shape, next, id, record.list, record.vector);
            next += 1;
        }
    }
    assert_eq!(u64::from(next - facts.first), facts.nodes);
}

fn decode_list(model: &ListModel, node: u32, code: &[u8]) -> Vec<u32> {
    let mut list = Vec::new();
    let taken = model.decode(node, code, &mut list).unwrap();
    assert_eq!(taken, code.len(), "node {node}");
    list
}
