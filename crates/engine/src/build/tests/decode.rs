//! Reads an index node by node, with only the layout crate and the codec crate.

use stratann_codec::{ListModel, NestedModel, SegmentModel};
use stratann_layout::{
    BLOCK, CoupledShape, CsrRow, ExtentKind, ExtentPlace, ExtentView, FileKind, InlineShape,
    InlineView, Manifest, Members, PageDirectory, PageView, SlottedShape, SlottedView,
};
use stratann_tier::Volume;
use stratann_vector::{Metric, normalize, to_f32};

use crate::codebook::Codebook;
use crate::stores::reading;
use crate::{Layout, stored};

#[derive(Debug, Default, PartialEq)]
pub(super) struct Decoded {
    pub(super) ids: Vec<u64>,
    pub(super) vectors: Vec<Vec<u8>>,
    pub(super) lists: Vec<Vec<u32>>,
}

pub(super) fn decode(volume: &dyn Volume) -> Decoded {
    let manifest = stored::manifest(volume).unwrap();
    let mut nodes = Decoded::default();
    match stored::layout(volume, &manifest).unwrap() {
        Layout::Coupled => coupled(volume, &manifest, &mut nodes),
        Layout::Csr => csr(volume, &manifest, &mut nodes),
        Layout::Inline => inline(volume, &manifest, &mut nodes),
        Layout::Packed => packed(volume, &manifest, &mut nodes),
        Layout::Decoupled => decoupled(volume, &manifest, &mut nodes),
        Layout::Layered => layered(volume, &manifest, &mut nodes),
        Layout::Replicated | Layout::Addressed | Layout::Grouped => {
            clustered(volume, &manifest, &mut nodes);
        }
    }
    assert_eq!(nodes.ids.len() as u64, manifest.vectors);
    assert_eq!(nodes.vectors.len() as u64, manifest.vectors);
    assert_eq!(nodes.lists.len() as u64, manifest.vectors);
    if manifest.code_bytes > 0 && manifest.layout != "inline" {
        let expected = codes_of(volume, &manifest, &nodes.vectors);
        let found = stored::read_stream_whole(volume, &manifest, FileKind::Codes, None).unwrap();
        assert!(found == expected.concat(), "codes");
    }
    nodes
}

fn codes_of(volume: &dyn Volume, manifest: &Manifest, vectors: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let codebook = Codebook::of_index(volume, manifest).unwrap();
    let encode = |vector: &Vec<u8>| {
        let mut floats = vec![0.0; manifest.dimension as usize];
        to_f32(manifest.element, vector, &mut floats);
        if manifest.metric == Metric::Cosine {
            normalize(&mut floats);
        }
        let mut code = vec![0; manifest.code_bytes as usize];
        codebook.quantizer().encode(&floats, &mut code, 1);
        code
    };
    vectors.iter().map(encode).collect()
}

fn csr(volume: &dyn Volume, manifest: &Manifest, nodes: &mut Decoded) {
    let (shape, entry) = reading::csr(volume, manifest).unwrap();
    let bytes = volume.read(&entry.name).unwrap();
    let mut links = Vec::new();
    for node in 0..manifest.vectors {
        let row = &bytes[shape.file_offset(node) as usize..][..shape.row_bytes()];
        let row = CsrRow::open(&shape, row, node, true, "f").unwrap();
        shape.links(row.list, node, "f", &mut links).unwrap();
        nodes.ids.push(row.id);
        nodes.vectors.push(row.vector.to_vec());
        nodes.lists.push(links.clone());
    }
}

fn coupled(volume: &dyn Volume, manifest: &Manifest, nodes: &mut Decoded) {
    let (shape, entry) = reading::coupled(volume, manifest).unwrap();
    let (dim, degree) = (
        manifest.dimension as usize,
        manifest.graph().degree as usize,
    );
    assert_eq!(
        shape,
        CoupledShape::new(manifest.element, dim, degree).unwrap()
    );
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

/// Each node must have the codes of its neighbours, and each entry point its own code.
fn inline(volume: &dyn Volume, manifest: &Manifest, nodes: &mut Decoded) {
    let (shape, entry) = reading::inline(volume, manifest).unwrap();
    let (dim, degree) = (
        manifest.dimension as usize,
        manifest.graph().degree as usize,
    );
    let code_bytes = manifest.code_bytes as usize;
    assert_eq!(
        shape,
        InlineShape::new(manifest.element, dim, degree, code_bytes).unwrap()
    );
    let bytes = volume.read(&entry.name).unwrap();
    let mut beside = Vec::new();
    for (page, bytes) in (0..).zip(bytes[BLOCK..].chunks(shape.page_bytes())) {
        let expected = shape.nodes_on_page(page, manifest.vectors);
        let view = InlineView::open(&shape, bytes, page, Some(expected), true, "inline").unwrap();
        for node in view.nodes() {
            let node = node.unwrap();
            nodes.ids.push(node.id);
            nodes.vectors.push(node.vector.to_vec());
            nodes.lists.push(node.neighbours.iter().collect());
            beside.push(node.codes.to_vec());
        }
    }
    let codes = codes_of(volume, manifest, &nodes.vectors);
    let of = |list: &[u32]| -> Vec<u8> {
        let codes = list.iter().map(|&node| &codes[node as usize][..]);
        codes.collect::<Vec<_>>().concat()
    };
    for (node, (list, beside)) in nodes.lists.iter().zip(&beside).enumerate() {
        assert!(
            *beside == of(list),
            "node {node} does not have the codes of its neighbours"
        );
    }
    let entries = reading::entry_points(volume, manifest).unwrap();
    assert_eq!(entries.nodes[0], manifest.graph().entry);
    assert!(
        entries.codes == of(&entries.nodes),
        "the entry points do not have their own codes"
    );
    let mut different = entries.nodes.clone();
    different.sort_unstable();
    different.dedup();
    assert_eq!(different.len(), entries.nodes.len(), "{:?}", entries.nodes);
    assert!(manifest.file("codes").is_none());
}

fn clustered(volume: &dyn Volume, manifest: &Manifest, nodes: &mut Decoded) {
    let mut found = Vec::new();
    if manifest.layout == "addressed" {
        let (entry, members) = reading::members(volume, manifest).unwrap();
        let bytes = volume.read(&entry.name).unwrap();
        for node in 0..manifest.vectors as u32 {
            let at = members.offset(node) as usize;
            let stored = &bytes[at..at + members.bytes()];
            let (id, vector) = members.read(node, stored, || 0, true, "addressed").unwrap();
            found.push((node, id, vector.to_vec()));
        }
    } else {
        let (kind, extents) = match &*manifest.layout {
            "grouped" => (FileKind::Grouped, ExtentKind::Grouped),
            _ => (FileKind::Replicated, ExtentKind::Replicated),
        };
        let (entry, shape) = reading::cluster_file(volume, manifest, kind).unwrap();
        let table = reading::clusters(volume, manifest, (kind, extents)).unwrap();
        let (bytes, members) = (volume.read(&entry.name).unwrap(), Members::new(shape));
        let places = table.offsets(extents).into_iter().zip(&table.bytes);
        let mut next = 0;
        for (cluster, (offset, &length)) in (0..).zip(places) {
            let extent = &bytes[offset as usize..][..length as usize];
            let place = ExtentPlace {
                file: "extents",
                offset,
                cluster,
            };
            let view = ExtentView::new(extents, &shape, extent, place, true).unwrap();
            for slot in 0..view.own() {
                let (node, id, vector) = match extents {
                    ExtentKind::Grouped => {
                        let stored = view.stored(slot);
                        let (id, vector) = members.read(next, stored, || 0, true, "m").unwrap();
                        (next, id, vector)
                    }
                    _ => view.entry(slot),
                };
                next += 1;
                found.push((node, id, vector.to_vec()));
            }
        }
    }
    found.sort_unstable();
    assert!(
        found
            .iter()
            .map(|found| found.0)
            .eq(0..manifest.vectors as u32)
    );
    for (_, id, vector) in found {
        nodes.ids.push(id);
        nodes.vectors.push(vector);
        nodes.lists.push(Vec::new());
    }
}

fn packed(volume: &dyn Volume, manifest: &Manifest, nodes: &mut Decoded) {
    let directory = reading::directory(volume, manifest).unwrap();
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
    let directory = reading::directory(volume, manifest).unwrap();
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
        let chunks = reading::chunks(volume, manifest, n).unwrap();
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
        // A chunk begins on a new page, so no page has nodes of two chunks.
        let mut next = 0;
        for chunk in &chunks.chunks {
            assert_eq!(chunk.first_page, next);
            next += chunk.pages;
        }
    }
}

fn layered(volume: &dyn Volume, manifest: &Manifest, nodes: &mut Decoded) {
    let directory = reading::directory(volume, manifest).unwrap();
    let lists = ListModel::from_bytes(&directory.list_model).unwrap();
    assert_eq!(directory.vector_models.len(), manifest.segments.len());
    let mut parts = Vec::new();
    each_record(
        volume,
        manifest,
        FileKind::Layered,
        None,
        &directory.pages(0),
        |_, node, id, list, leading| {
            nodes.ids.push(id.unwrap());
            nodes.lists.push(decode_list(&lists, node, list));
            parts.push(leading.to_vec());
        },
    );
    for (n, segment) in (0..).zip(&manifest.segments) {
        let chunks = reading::chunks(volume, manifest, n).unwrap();
        assert_eq!(chunks.model, directory.vector_models[n as usize]);
        assert_eq!(segment.first, n * directory.segment_vectors);
        let model = NestedModel::from_bytes(&chunks.model).unwrap();
        each_record(
            volume,
            manifest,
            FileKind::Vectors,
            Some(n),
            &chunks.pages(segment.first),
            |shape, node, id, list, trailing| {
                assert!(list.is_empty());
                assert_eq!(id, Some(nodes.ids[node as usize]));
                let mut out = vec![0; shape.vector_bytes()];
                model
                    .decode(&parts[node as usize], trailing, &mut out)
                    .unwrap();
                nodes.vectors.push(out);
            },
        );
    }
}

/// Passes each record of a file to `each`. The directory must find all records.
fn each_record(
    volume: &dyn Volume,
    manifest: &Manifest,
    kind: FileKind,
    n: Option<u32>,
    pages: &PageDirectory,
    mut each: impl FnMut(&SlottedShape, u32, Option<u64>, &[u8], &[u8]),
) {
    let (shape, facts, entry) = reading::slotted(volume, manifest, kind, n).unwrap();
    let bytes = volume.read(&entry.name).unwrap();
    assert_eq!(pages.pages(), facts.pages);
    let mut next = facts.first;
    let (all, mut scratch) = (&bytes[BLOCK..], Vec::new());
    for (page, bytes) in all.chunks(shape.page_bytes()).enumerate() {
        let behind = &all[(page + 1) * shape.page_bytes()..];
        let page = page as u64;
        let view = SlottedView::open(&shape, bytes, page, true, "pages").unwrap();
        assert_eq!(view.first(), next);
        for slot in 0..view.len() {
            let list = match kind {
                FileKind::Vectors => &[],
                _ => view.record(slot).unwrap().list,
            };
            let vector = view.whole(slot, behind, true, &mut scratch).unwrap();
            assert_eq!(pages.page_of(next), page, "node {next}");
            let id = (kind != FileKind::Adjacency).then(|| view.id(slot).unwrap());
            each(&shape, next, id, list, vector);
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
