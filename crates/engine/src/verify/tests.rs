//! Tests of `verify` on indexes that are written by hand. Each index has one fault, but correct
//! checksums.

use stratann_codec::{
    Element as CodecElement, ListTrainer, NestedModel, SegmentModel, Shape, VectorCodec, xor_delta,
};
use stratann_layout::block::seal;
use stratann_layout::header::{FieldsWriter, stored_checksum};
use stratann_layout::manifest::{FORMAT_VERSION, SegmentFacts};
use stratann_layout::{
    BuildFacts, Chunk, ChunksFile, CoupledShape, CsrShape, DeadSlots, DirectoryFile, EntryPoints,
    GraphFacts, HeatFile, IndexKind, InlineBuilder, InlineShape, LogFrom, NavigationFacts,
    NavigationFile, PageBuilder, RunsOn, SlottedBuilder, SlottedShape, stream,
};
use stratann_tier::testing::SimVolume;
use stratann_vector::{Element, Metric};

use super::*;
use crate::progress::Silent;

mod clusters;
mod id_file;
mod placed;

const NODES: u32 = 60;
const DIM: usize = 5;
const DEGREE: usize = 8;
const CODE: usize = 2;
const SEGMENT: u32 = 24;
const CHUNK: u32 = 8;
const PAGE: usize = 7;
const LAYOUTS: [Layout; 6] = [
    Layout::Coupled,
    Layout::Packed,
    Layout::Decoupled,
    Layout::Inline,
    Layout::Layered,
    Layout::Csr,
];
const INLINE_PAGE: usize = 51;

#[derive(Clone)]
struct Node {
    id: u64,
    links: Vec<u32>,
    vector: Vec<u8>,
    list_code: fn(&mut Vec<u8>),
    vector_code: fn(&mut Vec<u8>),
}

enum Part<'a> {
    Nodes(&'a mut [Node]),
    Page(FileKind, u64, &'a mut u32),
    Id(FileKind, u32, &'a mut u64),
    Directory(&'a mut DirectoryFile),
    Chunks(u32, &'a mut ChunksFile),
    Heat(&'a mut HeatFile),
    Entries(&'a mut EntryPoints),
    Manifest(&'a mut Manifest),
}

type Change<'a> = &'a dyn Fn(Part<'_>);

fn nothing(_: Part<'_>) {}

fn nodes() -> Vec<Node> {
    let node = |number: u32| {
        let mut links: Vec<u32> = (1..=3 + number % 6)
            .map(|i| (number + i * i) % NODES)
            .collect();
        links.retain(|&link| link != number);
        links.sort_unstable();
        links.dedup();
        Node {
            id: u64::from((number * 7) % NODES),
            links,
            vector: (0..DIM)
                .flat_map(|i| ((number as usize * 3 + i) as f32).to_le_bytes())
                .collect(),
            list_code: |_| {},
            vector_code: |_| {},
        }
    };
    (0..NODES).map(node).collect()
}

struct Writer {
    volume: SimVolume,
    entries: Vec<FileEntry>,
}

impl Writer {
    fn file(&mut self, kind: FileKind, n: Option<u32>, bytes: &[u8]) {
        let role = FileEntry::role_of(kind, n);
        write(&self.volume, &role, bytes);
        self.entries.push(FileEntry {
            name: role.clone(),
            role,
            length: bytes.len() as u64,
            header_crc32c: stored_checksum(bytes),
        });
    }

    fn stream(&mut self, kind: FileKind, n: Option<u32>, payload: &[u8]) {
        self.file(kind, n, &stream::encode(kind, payload, &[]));
    }

    fn codebook(&mut self, centroids: &[u8]) {
        let fields = FieldsWriter::new().u32(DIM as u32).u32(CODE as u32);
        let bytes = stream::encode(FileKind::Codebook, centroids, &fields.finish());
        self.file(FileKind::Codebook, None, &bytes);
    }

    /// Writes records on pages of at most [`PAGE`] records. Returns the number of records of each
    /// page.
    fn slotted(
        &mut self,
        kind: FileKind,
        n: Option<u32>,
        first: u32,
        records: &[(u64, Vec<u8>, Vec<u8>)],
        change: Change<'_>,
    ) -> Vec<u16> {
        let shape = SlottedShape::new(kind, Element::F32, DIM, DEGREE, 100).unwrap();
        let (mut pages, mut counts, mut next) = (Vec::new(), Vec::new(), first);
        let mut builder = SlottedBuilder::new(shape);
        let run = match kind {
            FileKind::Vectors => CHUNK as usize,
            _ => records.len(),
        };
        for records in records.chunks(run).flat_map(|run| run.chunks(PAGE)) {
            let mut says = next;
            change(Part::Page(kind, counts.len() as u64, &mut says));
            builder.start(says);
            for (node, (id, list, vector)) in (next..).zip(records) {
                let mut id = *id;
                change(Part::Id(kind, node, &mut id));
                assert!(builder.push(id, list, vector));
            }
            pages.extend_from_slice(builder.finish(counts.len() as u64));
            counts.push(records.len() as u16);
            next += records.len() as u32;
        }
        let header = shape.header(first, records.len() as u64, counts.len() as u64);
        self.file(kind, n, &[&header.encode()[..], &pages].concat());
        counts
    }
}

fn write(volume: &SimVolume, name: &str, bytes: &[u8]) {
    volume.create(name).unwrap().write_at(0, bytes).unwrap();
}

fn index(layout: Layout, change: Change<'_>) -> SimVolume {
    let mut nodes = nodes();
    let mut edges = 0;
    let mut degree_max = 0;
    change(Part::Nodes(&mut nodes));
    for node in &nodes {
        edges += node.links.len() as u64;
        degree_max = degree_max.max(node.links.len() as u32);
    }
    let mut writer = Writer {
        volume: SimVolume::new(),
        entries: Vec::new(),
    };
    let (mut list_bytes, mut vector_bytes, mut segments) = (0, 0, Vec::new());
    let mut heat = HeatFile::default();
    if layout == Layout::Coupled {
        heat.graph = coupled(&mut writer, &nodes);
    } else if layout == Layout::Inline {
        heat.graph = inline(&mut writer, &nodes);
        (list_bytes, vector_bytes) = FIXED_BYTES;
    } else if layout == Layout::Csr {
        heat.graph = csr(&mut writer, &nodes);
    } else {
        let lists = list_codes(&nodes);
        let (models, vectors) = vector_codes(&nodes, layout);
        list_bytes = lists.1.iter().map(|code| code.len() as u64).sum();
        let leading = match layout {
            Layout::Layered => leading_parts(&nodes, &models),
            _ => Vec::new(),
        };
        let coded = vectors.iter().chain(&leading);
        vector_bytes = coded.map(|code| code.len() as u64).sum();
        let mut directory = DirectoryFile {
            list_model: lists.0,
            ..DirectoryFile::default()
        };
        let records = |range: std::ops::Range<usize>, with_lists: bool, with_vectors: bool| {
            let code = |codes: &[Vec<u8>], node: usize, with: bool| match with {
                true => codes[node].clone(),
                false => Vec::new(),
            };
            range
                .map(|node| {
                    (
                        nodes[node].id,
                        code(&lists.1, node, with_lists),
                        code(&vectors, node, with_vectors),
                    )
                })
                .collect::<Vec<_>>()
        };
        let all = 0..nodes.len();
        if layout == Layout::Packed {
            let records = records(all, true, true);
            directory.counts = writer.slotted(FileKind::Packed, None, 0, &records, change);
            directory.segment_vectors = SEGMENT;
            directory.vector_models = models;
        } else {
            let mut lists = records(all, true, false);
            for (record, leading) in lists.iter_mut().zip(leading) {
                record.2 = leading;
            }
            let kind = layout.composition().lists;
            directory.counts = writer.slotted(kind, None, 0, &lists, change);
            if layout == Layout::Layered {
                directory.segment_vectors = SEGMENT;
                directory.vector_models.clone_from(&models);
            }
            for (n, model) in (0..).zip(models) {
                let range = n * SEGMENT..NODES.min((n + 1) * SEGMENT);
                segments.push(SegmentFacts {
                    first: range.start,
                    vectors: range.end - range.start,
                    codec: String::new(),
                    kept: None,
                });
                let vectors = records(range.start as usize..range.end as usize, false, true);
                let (kind, n) = (FileKind::Vectors, Some(n));
                let counts = writer.slotted(kind, n, range.start, &vectors, change);
                heat.vectors.extend(&counts);
                let mut file = chunks(&counts, range, model, &nodes);
                if layout == Layout::Layered {
                    file.chunks.iter_mut().for_each(|chunk| chunk.base = None);
                }
                change(Part::Chunks(n.unwrap(), &mut file));
                writer.stream(FileKind::Chunks, n, &file.encode());
            }
        }
        heat.graph = directory.counts.clone();
        change(Part::Directory(&mut directory));
        writer.stream(FileKind::Directory, None, &directory.encode());
    }
    change(Part::Heat(&mut heat));
    writer.stream(FileKind::Heat, None, &heat.encode());
    if layout == Layout::Inline {
        let mut entries = EntryPoints {
            nodes: vec![0, 20, 40],
            codes: vec![3; 3 * CODE],
        };
        change(Part::Entries(&mut entries));
        writer.stream(FileKind::Entries, None, &entries.encode());
    } else {
        writer.stream(FileKind::Codes, None, &[3; CODE * NODES as usize]);
    }
    let centroids = [0; 4 * 256 * DIM];
    writer.codebook(&centroids);
    let navigation = NavigationFile {
        entry: 0,
        nodes: vec![3, 30],
        offsets: vec![0, 1, 2],
        links: vec![1, 0],
        vectors: [&nodes[3].vector[..], &nodes[30].vector].concat(),
        step: None,
    };
    writer.stream(FileKind::Navigation, None, &navigation.encode());
    let mut manifest = Manifest {
        format_version: FORMAT_VERSION,
        reader_features: 0,
        writer_features: 0,
        created_by: "a test".into(),
        checkpoint: 1,
        preset: "stratann".into(),
        element: Element::F32,
        metric: Metric::L2,
        dimension: DIM as u32,
        vectors: u64::from(NODES),
        kind: IndexKind::Graph(GraphFacts {
            degree: DEGREE as u32,
            build_list: 10,
            alpha: 1.2,
            entry: 0,
            degree_mean: edges as f64 / f64::from(NODES),
            degree_max,
            edges,
            navigation: Some(NavigationFacts {
                nodes: 2,
                degree: 1,
            }),
        }),
        code_bytes: CODE as u32,
        order: "input".into(),
        deleted: 0,
        seed: 42,
        layout: layout.to_string(),
        list_bytes,
        vector_bytes,
        list_codec: String::new(),
        vector_codec: String::new(),
        segments,
        measured: None,
        codebook: blake3::hash(&centroids).to_string(),
        next_id: 0,
        placement: None,
        log_from: LogFrom::default(),
        build: BuildFacts::default(),
        state: None,
        files: writer.entries,
    };
    change(Part::Manifest(&mut manifest));
    write(&writer.volume, MANIFEST, &manifest.encode());
    writer.volume
}

fn coupled(writer: &mut Writer, nodes: &[Node]) -> Vec<u16> {
    let shape = CoupledShape::new(Element::F32, DIM, DEGREE).unwrap();
    let mut file = shape.header(u64::from(NODES)).encode().to_vec();
    let mut builder = PageBuilder::new(shape);
    let mut counts = Vec::new();
    for nodes in nodes.chunks(shape.nodes_per_page()) {
        builder.clear();
        for node in nodes {
            builder.push(node.id, &node.vector, &node.links);
        }
        file.extend_from_slice(builder.finish(counts.len() as u64));
        counts.push(nodes.len() as u16);
    }
    writer.file(FileKind::Graph, None, &file);
    counts
}

fn csr(writer: &mut Writer, nodes: &[Node]) -> Vec<u16> {
    let shape = CsrShape::new(Element::F32, DIM, DEGREE, NODES.into()).unwrap();
    let mut file = shape.header().encode().to_vec();
    for (n, node) in (0..).zip(nodes) {
        shape.push(n, node.id, &node.vector, &node.links, &mut file);
    }
    file.resize(file.len() + shape.padding(), 0);
    writer.file(FileKind::Csr, None, &file);
    vec![1; nodes.len()]
}

const FIXED_BYTES: (u64, u64) = (
    NODES as u64 * 4 * (1 + DEGREE as u64),
    NODES as u64 * 4 * DIM as u64,
);

fn inline(writer: &mut Writer, nodes: &[Node]) -> Vec<u16> {
    let shape = InlineShape::new(Element::F32, DIM, DEGREE, CODE).unwrap();
    assert_eq!(shape.nodes_per_page(), INLINE_PAGE);
    let mut file = shape.header(u64::from(NODES)).encode().to_vec();
    let mut builder = InlineBuilder::new(shape);
    let mut counts = Vec::new();
    for nodes in nodes.chunks(INLINE_PAGE) {
        builder.clear();
        for node in nodes {
            let codes = vec![3; CODE * node.links.len()];
            builder.push(node.id, &node.vector, &node.links, &codes);
        }
        file.extend_from_slice(builder.finish(counts.len() as u64));
        counts.push(nodes.len() as u16);
    }
    writer.file(FileKind::Inline, None, &file);
    counts
}

fn list_codes(nodes: &[Node]) -> (Vec<u8>, Vec<Vec<u8>>) {
    let mut trainer = ListTrainer::new(NODES, DEGREE as u32);
    for (number, node) in (0..).zip(nodes) {
        trainer.add(number, &node.links).unwrap();
    }
    let model = trainer.finish(2);
    let code = |(number, node): (u32, &Node)| {
        let mut code = Vec::new();
        model.encode(number, &node.links, &mut code).unwrap();
        (node.list_code)(&mut code);
        code
    };
    (model.to_bytes(), (0..).zip(nodes).map(code).collect())
}

fn base(nodes: &[Node]) -> Vec<u8> {
    nodes[0].vector.clone()
}

fn leading_parts(nodes: &[Node], models: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let models = models
        .iter()
        .map(|model| NestedModel::from_bytes(model).unwrap());
    let segments = nodes.chunks(SEGMENT as usize).zip(models);
    let parts = segments.flat_map(|(nodes, model)| {
        nodes.iter().map(move |node| {
            let mut leading = Vec::new();
            let trailing = &mut Vec::new();
            model.encode(&node.vector, &mut leading, trailing).unwrap();
            leading
        })
    });
    parts.collect()
}

/// The models of the segments, and the code of each vector or of its trailing part.
fn vector_codes(nodes: &[Node], layout: Layout) -> (Vec<Vec<u8>>, Vec<Vec<u8>>) {
    let shape = Shape::new(CodecElement::F32, DIM).unwrap();
    if layout == Layout::Layered {
        let (mut models, mut codes) = (Vec::new(), Vec::new());
        for nodes in nodes.chunks(SEGMENT as usize) {
            let bytes: Vec<u8> = nodes.iter().flat_map(|node| node.vector.clone()).collect();
            let model = NestedModel::train(shape, 128, &bytes).unwrap();
            for node in nodes {
                let mut code = Vec::new();
                let leading = &mut Vec::new();
                model.encode(&node.vector, leading, &mut code).unwrap();
                (node.vector_code)(&mut code);
                codes.push(code);
            }
            models.push(model.to_bytes());
        }
        return (models, codes);
    }
    let (mut models, mut codes) = (Vec::new(), Vec::new());
    for (n, nodes) in nodes.chunks(SEGMENT as usize).enumerate() {
        let bytes: Vec<u8> = nodes.iter().flat_map(|node| node.vector.clone()).collect();
        let model = match n {
            0 => {
                let mut counts = xor_delta::ByteCounts::new();
                counts.add(&bytes, None);
                SegmentModel::huffman(shape, &counts)
            }
            1 => SegmentModel::train_codec(shape, VectorCodec::FloatSplit, &bytes).unwrap(),
            _ => SegmentModel::train(shape, &[]),
        };
        let base = base(nodes);
        for (place, node) in (0..).zip(nodes) {
            let based = layout == Layout::Decoupled && n == 0 && place < CHUNK;
            let mut code = Vec::new();
            let base = based.then_some(&base[..]);
            model.encode(&node.vector, base, &mut code).unwrap();
            (node.vector_code)(&mut code);
            codes.push(code);
        }
        models.push(model.to_bytes());
    }
    (models, codes)
}

fn chunks(
    counts: &[u16],
    segment: std::ops::Range<u32>,
    model: Vec<u8>,
    nodes: &[Node],
) -> ChunksFile {
    let mut chunks: Vec<Chunk> = Vec::new();
    let mut next = segment.start;
    for (page, &count) in (0..).zip(counts) {
        if (next - segment.start).is_multiple_of(CHUNK) {
            chunks.push(Chunk {
                first_page: page,
                base: (next == 0).then(|| base(nodes)),
                ..Chunk::default()
            });
        }
        next += u32::from(count);
        let chunk = chunks.last_mut().unwrap();
        chunk.pages += 1;
        chunk.boundaries.push(next - 1);
    }
    ChunksFile {
        model,
        chunk_vectors: CHUNK,
        chunks,
        dead: DeadSlots::default(),
        runs: RunsOn::default(),
    }
}

fn report(volume: &SimVolume) -> VerifyReport {
    verify_in(volume, &Silent).unwrap()
}

fn lines(volume: &SimVolume) -> Vec<String> {
    let place = |problem: &Problem| match problem.offset {
        Some(offset) => format!("{}, {offset}: {}", problem.file, problem.what),
        None => format!("{}: {}", problem.file, problem.what),
    };
    report(volume).problems.iter().map(place).collect()
}

fn says(layout: Layout, change: Change<'_>, file: &str, words: &[&str]) {
    let found = lines(&index(layout, change));
    assert_eq!(found.len(), 1, "{layout}: {words:?}: {found:#?}");
    let file = format!("/{file}");
    for word in words.iter().chain([&file.as_str()]) {
        assert!(
            found[0].contains(word),
            "{layout}: {word:?} is not in {}",
            found[0]
        );
    }
}

fn list_file(layout: Layout) -> &'static str {
    layout.composition().lists.name()
}

fn vector_file(layout: Layout, node: u32) -> String {
    match layout {
        Layout::Decoupled | Layout::Layered => format!("vectors-{}", node / SEGMENT),
        _ => list_file(layout).to_owned(),
    }
}

#[test]
fn a_whole_index_is_clean_and_counted() {
    for layout in LAYOUTS {
        let volume = index(layout, &nothing);
        let found = report(&volume);
        assert!(found.clean(), "{layout}: {:#?}", found.problems);
        let edges: usize = nodes().iter().map(|node| node.links.len()).sum();
        assert_eq!((found.nodes, found.edges), (60, edges as u64), "{layout}");
        let (files, pages) = match layout {
            Layout::Coupled => (6, 1),
            Layout::Inline => (6, 2),
            Layout::Csr => (6, 60),
            Layout::Packed => (7, 9),
            // 9 pages of lists. Two segments have 3 chunks of 2 pages each, and the last segment
            // has 3 pages.
            Layout::Decoupled | Layout::Layered => (13, 9 + 6 + 6 + 3),
            Layout::Replicated | Layout::Addressed | Layout::Grouped => {
                unreachable!("the layout is not one of these")
            }
        };
        assert_eq!((found.files, found.pages), (files, pages), "{layout}");
        let names = volume.list().unwrap();
        let bytes: u64 = names.iter().map(|name| volume.len(name).unwrap()).sum();
        assert_eq!(found.bytes, bytes, "{layout}");
    }
}

#[test]
fn what_is_wrong_with_a_node_is_named() {
    for layout in LAYOUTS {
        let vectors = vector_file(layout, 37);
        let of = |change: fn(&mut Node)| {
            move |part: Part<'_>| {
                if let Part::Nodes(nodes) = part {
                    change(&mut nodes[37]);
                }
            }
        };
        let list = list_file(layout);
        let change = of(|node| node.links = vec![1, 60]);
        says(layout, &change, list, &["node 37 links to 60 of 60 nodes"]);
        let change = of(|node| node.vector[8..12].copy_from_slice(&f32::NAN.to_le_bytes()));
        says(
            layout,
            &change,
            &vectors,
            &["node 37 has NaN or infinity in column 2"],
        );
        let change = of(|node| node.id = 49);
        // If both parts of a vector have the id, only ids of leading parts are compared with other
        // ids.
        let ids = if layout == Layout::Layered {
            list
        } else {
            &vectors
        };
        says(layout, &change, ids, &["has the external id 49"]);
        let twice = |part: Part<'_>| {
            if let Part::Nodes(nodes) = part {
                nodes[5].id = u64::MAX;
                nodes[37].id = u64::MAX;
            }
        };
        let index = match layout {
            Layout::Decoupled | Layout::Layered => "",
            _ => list,
        };
        let text = format!("external id {} occurs twice", u64::MAX);
        let found = lines(&self::index(layout, &twice));
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(
            found[0].ends_with(&text) && found[0].contains(index),
            "{found:?}"
        );
        // Lists without a codec always decode, and have no space for more links.
        if matches!(layout, Layout::Coupled | Layout::Inline | Layout::Csr) {
            continue;
        }
        let change = of(|node| node.links = (1..10).collect());
        says(
            layout,
            &change,
            list,
            &["node 37 has 9 links, but this index allows 8"],
        );
        let change = of(|node| node.list_code = |code| code.truncate(code.len() - 1));
        says(
            layout,
            &change,
            list,
            &["node 37 has a list that does not decode", "truncated"],
        );
        let change = of(|node| node.list_code = |code| code[0] |= 0x60);
        says(
            layout,
            &change,
            list,
            &["node 37 has a list that does not decode", "codec"],
        );
        let change = of(|node| node.list_code = |code| code.push(0));
        says(
            layout,
            &change,
            list,
            &["node 37 has a list whose code ends after"],
        );
        let change = of(|node| node.vector_code = |code| code.truncate(1));
        says(
            layout,
            &change,
            &vectors,
            &["node 37 has a vector that does not decode"],
        );
        // Page 5 has nodes 35 to 41, and page 1 of the second chunk of segment 1 begins with node
        // 39.
        let offset = match layout {
            Layout::Packed => 4096 * 6,
            _ => 4096 * 3,
        };
        says(layout, &change, &vectors, &[&format!(", {offset}: ")]);
    }
}

#[test]
fn the_parts_of_a_vector_are_of_one_node_and_one_model() {
    let change = |part: Part<'_>| {
        if let Part::Id(FileKind::Vectors, 37, id) = part {
            *id += 1;
        }
    };
    let words = ["node 37 has the id 20, but its leading part has the id 19"];
    says(Layout::Layered, &change, "vectors-1", &words);
    for of_directory in [true, false] {
        let change = |part: Part<'_>| match part {
            Part::Directory(file) if of_directory => file.vector_models.swap(0, 1),
            Part::Chunks(1, file) if !of_directory => file.model[2] += 1,
            _ => {}
        };
        let found = lines(&index(Layout::Layered, &change));
        let text =
            "chunks-1: the model of the trailing parts differs from the model of the leading parts";
        assert!(found.iter().any(|line| line.ends_with(text)), "{found:#?}");
    }
    // If a leading part is invalid, the report has its position. A vector that does not decode is
    // reported at the position of its trailing part.
    let cut = |part: Part<'_>| {
        if let Part::Nodes(nodes) = part {
            nodes[37].vector_code = |code| code.truncate(1);
        }
    };
    let words = ["node 37 has a vector that does not decode"];
    says(Layout::Layered, &cut, "vectors-1", &words);
}

#[test]
fn the_base_of_a_chunk_is_what_its_vectors_are_decoded_with() {
    // If codes decode to other vectors, `verify` cannot notice. But it notices a base that no
    // vector uses.
    let change = |part: Part<'_>| {
        if let Part::Chunks(1, file) = part {
            file.chunks[2].base = Some(vec![0; 4 * DIM]);
        }
    };
    let found = lines(&index(Layout::Decoupled, &change));
    assert_eq!(found.len(), CHUNK as usize, "{found:#?}");
    for (node, line) in (40..).zip(&found) {
        let text = format!("node {node} has a vector that does not decode");
        assert!(
            line.contains("/vectors-1, ") && line.contains(&text),
            "{line}"
        );
    }
    let infinite = |part: Part<'_>| {
        if let Part::Chunks(0, file) = part {
            let base = file.chunks[0].base.as_mut().unwrap();
            let infinity = f32::INFINITY.to_le_bytes();
            for (byte, infinite) in base[..4].iter_mut().zip(infinity) {
                *byte ^= infinite;
            }
        }
    };
    let found = lines(&index(Layout::Decoupled, &infinite));
    assert!(
        found[0].contains("/vectors-0, 4096: node 0 has NaN or infinity in column 0"),
        "{found:#?}"
    );
}

#[test]
fn pages_hold_what_the_tables_say() {
    for layout in [Layout::Packed, Layout::Decoupled] {
        let list = list_file(layout);
        let begins = |at: FileKind| {
            move |part: Part<'_>| match part {
                Part::Page(kind, 2, says) if kind == at => *says += 1,
                _ => {}
            }
        };
        let change = begins(layout.composition().lists);
        says(
            layout,
            &change,
            list,
            &["12288: page 2 begins with node 15; node 14 is next"],
        );
        let change = |part: Part<'_>| {
            if let Part::Directory(file) = part {
                file.counts[2] -= 1;
                file.counts[3] += 1;
            }
        };
        let found = lines(&index(layout, &change));
        let expected = [
            "12288: page 2 holds 7 nodes; according to the table of pages, it should hold 6",
            "16384: page 3 holds 7 nodes; according to the table of pages, it should hold 8",
            "16384: page 3 begins with node 21; node 20 is next",
        ];
        assert_eq!(found.len(), expected.len(), "{found:#?}");
        for (line, text) in found.iter().zip(expected) {
            assert!(line.contains(list) && line.ends_with(text), "{line}");
        }
        let change = |part: Part<'_>| {
            if let Part::Directory(file) = part {
                file.counts[2] -= 1;
            }
        };
        says(
            layout,
            &change,
            "directory",
            &["records on all pages", "59"],
        );
    }
    let change = |part: Part<'_>| match part {
        Part::Page(FileKind::Vectors, 2, says) if *says == 24 + 8 => *says = u32::MAX,
        _ => {}
    };
    let text = "12288: page 2 begins with node 4294967295; node 32 is next";
    says(Layout::Decoupled, &change, "vectors-1", &[text]);
    let change = |part: Part<'_>| {
        if let Part::Chunks(1, file) = part {
            file.chunks[1].boundaries[0] -= 1;
        }
    };
    let found = lines(&index(Layout::Decoupled, &change));
    assert_eq!(found.len(), 3, "{found:#?}");
    assert!(
        found.iter().all(|line| line.contains("/vectors-1, ")),
        "{found:#?}"
    );
    let change = |part: Part<'_>| {
        if let Part::Chunks(1, file) = part {
            file.chunks[1].first_page += 1;
        }
    };
    says(
        Layout::Decoupled,
        &change,
        "chunks-1",
        &["first page of a chunk"],
    );
}

#[test]
fn models_decode_and_are_for_these_vectors() {
    for layout in [Layout::Packed, Layout::Decoupled] {
        let change = |part: Part<'_>| {
            if let Part::Directory(file) = part {
                file.list_model[0] = 9;
            }
        };
        let words = ["the model of the lists does not decode", "version 9"];
        says(layout, &change, "directory", &words);
    }
    let other = || {
        let shape = Shape::new(CodecElement::F32, DIM + 1).unwrap();
        SegmentModel::train(shape, &[]).to_bytes()
    };
    let change = |part: Part<'_>| match part {
        Part::Directory(file) => file.vector_models[1] = other(),
        Part::Chunks(1, file) => file.model = other(),
        _ => {}
    };
    let words = [
        "model 1 of the vectors",
        "F32 vectors of 6 dimensions",
        "f32 vectors of 5",
    ];
    says(Layout::Packed, &change, "directory", &words);
    let change = |part: Part<'_>| {
        if let Part::Chunks(1, file) = part {
            file.model = other();
        }
    };
    says(
        Layout::Decoupled,
        &change,
        "chunks-1",
        &["the model of the vectors", "6 dimensions"],
    );
    let change = |part: Part<'_>| {
        if let Part::Chunks(2, file) = part {
            file.model.clear();
        }
    };
    says(
        Layout::Decoupled,
        &change,
        "chunks-2",
        &["the model of the vectors"],
    );
    let none = |part: Part<'_>| {
        if let Part::Directory(file) = part {
            file.segment_vectors = 0;
            file.vector_models.clear();
        }
    };
    says(
        Layout::Packed,
        &none,
        "directory",
        &["0 models of vectors, which does not fit the packed layout"],
    );
}

#[test]
fn counts_of_reads_are_one_for_each_page() {
    for layout in LAYOUTS {
        let more = |part: Part<'_>| {
            if let Part::Heat(file) = part {
                file.graph.push(0);
            }
        };
        says(layout, &more, "heat", &["number of pages with lists"]);
        let more = |part: Part<'_>| {
            if let Part::Heat(file) = part {
                file.vectors.push(0);
            }
        };
        says(layout, &more, "heat", &["number of pages with vectors"]);
    }
}

#[test]
fn the_manifest_claims_what_is_there() {
    let says = |layout, change: fn(&mut Manifest), words: &[&str]| {
        let change = |part: Part<'_>| {
            if let Part::Manifest(manifest) = part {
                change(manifest);
            }
        };
        self::says(layout, &change, "", words);
    };
    for layout in LAYOUTS {
        says(
            layout,
            |m| m.graph_mut().edges += 1,
            &["/MANIFEST: it says 321", "edges"],
        );
        says(
            layout,
            |m| m.graph_mut().degree_max -= 1,
            &["a largest degree of 6", "degree is 7"],
        );
        says(
            layout,
            |m| m.list_bytes += 1,
            &["/MANIFEST: it says that all lists take"],
        );
        says(
            layout,
            |m| m.vector_bytes += 1,
            &["/MANIFEST: it says that all vectors take"],
        );
        if layout != Layout::Inline {
            says(
                layout,
                |m| m.code_bytes += 1,
                &["/codes: it holds 120 bytes; ", "180"],
            );
        }
        says(
            layout,
            |m| m.files.retain(|entry| entry.role != "navigation"),
            &["/MANIFEST: it names no navigation file"],
        );
        says(
            layout,
            |m| {
                let role = |entry: &&mut FileEntry| entry.role == "heat";
                m.files.iter_mut().find(role).unwrap().role = "chunks-3".to_owned();
            },
            &[
                "/heat: the MANIFEST gives it the role \"chunks-3\", which",
                layout_word(layout),
            ],
        );
        says(
            layout,
            |m| {
                let role = |entry: &&mut FileEntry| entry.role == "heat";
                m.files.iter_mut().find(role).unwrap().role = "heat-0".to_owned();
            },
            &["/heat: the MANIFEST gives it an unknown role \"heat-0\""],
        );
        says(
            layout,
            |m| {
                let role = |entry: &&mut FileEntry| entry.role == "codebook";
                m.files.iter_mut().find(role).unwrap().header_crc32c ^= 1;
            },
            &["/codebook, 0: its header is not the header that the MANIFEST names"],
        );
    }
    // If the layout encodes data, the manifest must have these sizes.
    let bytes = |m: &mut Manifest| (m.list_bytes, m.vector_bytes) = FIXED_BYTES;
    let stated = |part: Part<'_>| {
        if let Part::Manifest(manifest) = part {
            bytes(manifest);
        }
    };
    assert!(report(&index(Layout::Coupled, &stated)).clean());
    says(
        Layout::Packed,
        |m| m.list_bytes = 0,
        &["all lists take 0 bytes"],
    );
    says(
        Layout::Decoupled,
        |m| m.vector_bytes = 0,
        &["all vectors take 0 bytes"],
    );
    says(
        Layout::Inline,
        |m| m.list_bytes = 0,
        &["all lists take 0 bytes; they take 2160"],
    );
    says(
        Layout::Inline,
        |m| m.vector_bytes = 0,
        &["all vectors take 0 bytes; they take 1200"],
    );
    // The segment of a node is computed by a division, so unequal segments are a fault.
    for (vectors, text) in [
        ([23, 25, 12], "segment 1 has 25 vectors; the first has 23"),
        ([18, 18, 24], "segment 2 has 24 vectors; the first has 18"),
    ] {
        let uneven = |part: Part<'_>| {
            if let Part::Manifest(manifest) = part {
                let mut next = 0;
                for (segment, vectors) in manifest.segments.iter_mut().zip(vectors) {
                    (segment.first, segment.vectors) = (next, vectors);
                    next += vectors;
                }
            }
        };
        let found = lines(&index(Layout::Decoupled, &uneven));
        let text = format!("/MANIFEST: {text}");
        assert!(found[0].contains(&text), "{found:#?}");
        let named = |line: &String| line.contains("/vectors-0: ");
        assert!(found.iter().any(named), "{found:#?}");
    }
}

fn layout_word(layout: Layout) -> &'static str {
    layout.name()
}

fn in_manifest(change: impl Fn(&mut Manifest)) -> impl Fn(Part<'_>) {
    move |part| {
        if let Part::Manifest(manifest) = part {
            change(manifest);
        }
    }
}

#[test]
fn every_file_that_the_layout_needs_is_named() {
    for layout in LAYOUTS {
        let codes = match layout {
            Layout::Inline => "entries",
            _ => "codes",
        };
        for role in [list_file(layout), codes, "codebook"] {
            let forget = in_manifest(|m| m.files.retain(|entry| entry.role != role));
            let found = lines(&index(layout, &forget));
            let text = format!("/MANIFEST: it names no {role} file");
            assert!(found[0].contains(&text), "{layout}, {role}: {found:#?}");
            // Without the file of lists, `verify` may also report problems of its tables.
            let others = found.len() - 1;
            assert!(
                role == list_file(layout) || others == 0,
                "{layout}, {role}: {found:#?}"
            );
        }
        let volume = index(layout, &nothing);
        volume.remove(codes).unwrap();
        let found = lines(&volume);
        assert_eq!(found.len(), 1, "{layout}: {found:#?}");
        assert!(
            found[0].contains(&format!("/{codes}")),
            "{layout}: {found:#?}"
        );
    }
}

fn with_file(volume: &SimVolume, kind: FileKind, payload: &[u8]) {
    with_encoded(volume, kind, &stream::encode(kind, payload, &[]));
}

fn with_encoded(volume: &SimVolume, kind: FileKind, bytes: &[u8]) {
    let mut manifest = stored::manifest(volume).unwrap();
    let mut writer = Writer {
        volume: volume.clone(),
        entries: std::mem::take(&mut manifest.files),
    };
    writer.file(kind, None, bytes);
    manifest.files = writer.entries;
    write(volume, MANIFEST, &manifest.encode());
}

#[test]
fn codes_stand_in_one_place() {
    let codes = [3; CODE * NODES as usize];
    let entries = EntryPoints {
        nodes: vec![0],
        codes: vec![3; CODE],
    };
    for layout in LAYOUTS {
        let (kind, payload) = match layout {
            Layout::Inline => (FileKind::Codes, codes.to_vec()),
            _ => (FileKind::Entries, entries.encode()),
        };
        let volume = index(layout, &nothing);
        with_file(&volume, kind, &payload);
        let found = lines(&volume);
        assert_eq!(found.len(), 1, "{layout}: {found:#?}");
        let text = format!(
            "/{kind}: the MANIFEST gives it the role \"{kind}\", which the {layout} layout of this index does not have"
        );
        assert!(found[0].contains(&text), "{layout}: {found:#?}");
        let (at_home, payload) = match layout {
            Layout::Inline => (Layout::Coupled, codes.to_vec()),
            _ => (Layout::Inline, entries.encode()),
        };
        let forget = in_manifest(|m| m.files.retain(|entry| entry.role != kind.name()));
        let volume = index(at_home, &forget);
        with_file(&volume, kind, &payload);
        assert_eq!(lines(&volume), Vec::<String>::new(), "{at_home}");
    }
}

#[test]
fn codes_are_of_the_length_that_the_manifest_says() {
    let longer = in_manifest(|m| m.code_bytes += 1);
    let found = lines(&index(Layout::Inline, &longer));
    assert_eq!(found.len(), 2, "{found:#?}");
    for (file, text) in [
        ("/inline: ", "a file of another index"),
        ("/entries, ", "bytes of a code"),
    ] {
        let names = |line: &&String| line.contains(file) && line.contains(text);
        assert_eq!(found.iter().filter(names).count(), 1, "{file}: {found:#?}");
    }
}

#[test]
fn entry_points_are_nodes_of_which_the_first_is_the_manifest_s() {
    let of = |change: fn(&mut EntryPoints)| {
        move |part: Part<'_>| {
            if let Part::Entries(entries) = part {
                change(entries);
            }
        }
    };
    let layout = Layout::Inline;
    let swap = of(|entries| entries.nodes.swap(0, 1));
    let words = ["/entries: its first node is 20; the MANIFEST says 0"];
    says(layout, &swap, "entries", &words);
    let other = in_manifest(|m| m.graph_mut().entry = 7);
    let words = ["/entries: its first node is 0; the MANIFEST says 7"];
    says(layout, &other, "entries", &words);
    let beyond = of(|entries| entries.nodes[2] = NODES);
    let words = ["entry point", "60", "below 60"];
    says(layout, &beyond, "entries", &words);
    let none = of(|entries| *entries = EntryPoints::default());
    says(layout, &none, "entries", &["number of entry points"]);
    let short = of(|entries| entries.codes.truncate(2 * CODE));
    says(layout, &short, "entries", &["bytes of a code"]);
}

#[test]
fn the_codebook_is_the_one_whose_hash_the_manifest_names() {
    for layout in LAYOUTS {
        let volume = index(layout, &nothing);
        let whole = volume.read("codebook").unwrap();
        let hash = stored::manifest(&volume).unwrap().codebook;
        for at in [
            BLOCK + 4,
            whole.len() - BLOCK + 4 + (4 * 256 * DIM - 1) % (BLOCK - 4),
        ] {
            let mut bytes = whole.clone();
            bytes[at] ^= 1;
            let number = at / BLOCK;
            seal(
                &mut bytes[number * BLOCK..(number + 1) * BLOCK],
                number as u64,
            );
            write(&volume, "codebook", &bytes);
            let found = lines(&volume);
            assert_eq!(found.len(), 1, "{layout}, {at}: {found:#?}");
            for word in ["/codebook: its content hash is", &hash, "other codes"] {
                assert!(found[0].contains(word), "{layout}, {at}: {found:#?}");
            }
        }
        let other = in_manifest(|m| m.codebook = "0".repeat(64));
        says(layout, &other, "codebook", &["its content hash is", &hash]);
        let longer = [0; 4 * 256 * DIM + 4];
        let forget = in_manifest(|m| m.files.retain(|entry| entry.role != "codebook"));
        let volume = index(layout, &forget);
        with_file(&volume, FileKind::Codebook, &longer);
        let found = lines(&volume);
        let text = "/codebook: it holds 5124 bytes; the MANIFEST's counts need 5120";
        assert!(found[0].contains(text), "{layout}: {found:#?}");
    }
}

#[test]
fn a_damaged_page_does_not_hide_the_others() {
    for layout in [Layout::Packed, Layout::Decoupled] {
        let mut files = vec![list_file(layout).to_owned()];
        if layout == Layout::Decoupled {
            files.push("vectors-1".to_owned());
        }
        for file in files {
            let volume = index(layout, &nothing);
            let mut bytes = volume.read(&file).unwrap();
            let whole = report(&volume);
            for page in [1, 3] {
                bytes[4096 * page + 100] ^= 4;
            }
            let at = 4096 * 3 - 1;
            bytes[at] = 1;
            seal(&mut bytes[4096 * 2..4096 * 3], 2);
            write(&volume, &file, &bytes);
            let found = lines(&volume);
            assert_eq!(found.len(), 3, "{layout} {file}: {found:#?}");
            for (line, offset) in found.iter().zip([4096, at, 4096 * 3]) {
                assert!(line.contains(&format!("/{file}, {offset}: ")), "{line}");
            }
            assert_eq!(report(&volume).pages, whole.pages - 3);
        }
    }
}

#[test]
fn damage_on_an_inline_page_is_named_and_does_not_hide_the_other() {
    let volume = index(Layout::Inline, &nothing);
    let whole = volume.read("inline").unwrap();
    let nodes = report(&volume).nodes;
    let damaged = |change: &dyn Fn(&mut [u8]), page: usize, sealed: bool| {
        let mut bytes = whole.clone();
        let block = &mut bytes[4096 * (page + 1)..4096 * (page + 2)];
        change(block);
        if sealed {
            seal(block, page as u64 + 1);
        }
        write(&volume, "inline", &bytes);
        let found = report(&volume);
        (lines(&volume), found.pages, found.nodes)
    };
    for (page, others) in [(0, nodes - INLINE_PAGE as u64), (1, INLINE_PAGE as u64)] {
        let (found, pages, nodes) = damaged(&|page| page[500] ^= 4, page, false);
        assert_eq!((found.len(), pages, nodes), (1, 1, others), "{found:#?}");
        let offset = format!("/inline, {}: ", 4096 * (page + 1));
        assert!(
            found[0].contains(&offset) && found[0].contains("checksum"),
            "{found:#?}"
        );
        let (found, pages, nodes) = damaged(&|page| page[4] -= 1, page, true);
        assert_eq!((found.len(), pages, nodes), (1, 1, others), "{found:#?}");
        assert!(found[0].contains("count of records"), "{found:#?}");
    }
    // A page begins with a checksum and a count. A record has id, vector, degree, links and codes.
    let record = 8 + 4 * DIM + 4 + 4 * DEGREE + CODE * DEGREE;
    let degree = 8 + record + 8 + 4 * DIM;
    let (found, pages, nodes) = damaged(&|page| page[degree] = DEGREE as u8 + 1, 0, true);
    assert_eq!((found.len(), pages, nodes), (1, 2, 59), "{found:#?}");
    let offset = format!("/inline, {}: ", 4096 + degree);
    assert!(
        found[0].contains(&offset) && found[0].contains("degree of a node"),
        "{found:#?}"
    );
    let (found, ..) = damaged(&|page| page[degree + 4] = NODES as u8, 0, true);
    assert_eq!(found.len(), 1, "{found:#?}");
    assert!(
        found[0].contains("node 1 links to 60 of 60 nodes"),
        "{found:#?}"
    );
}

#[test]
fn a_damaged_table_does_not_hide_its_pages() {
    for (layout, table, file) in [
        (Layout::Packed, "directory", "packed"),
        (Layout::Decoupled, "directory", "adjacency"),
        (Layout::Decoupled, "chunks-1", "vectors-1"),
    ] {
        let volume = index(layout, &nothing);
        let pages = report(&volume).pages;
        let mut bytes = volume.read(table).unwrap();
        bytes[4096 + 30] ^= 1;
        write(&volume, table, &bytes);
        let found = lines(&volume);
        assert_eq!(found.len(), 1, "{found:#?}");
        assert!(found[0].contains(&format!("/{table}, 4096: ")), "{found:?}");
        assert_eq!(report(&volume).pages, pages);
        let mut bytes = volume.read(file).unwrap();
        bytes[4096 * 2 + 50] ^= 1;
        write(&volume, file, &bytes);
        let found = lines(&volume);
        assert_eq!(found.len(), 2, "{found:#?}");
        assert!(
            found
                .iter()
                .any(|line| line.contains(&format!("/{file}, 8192: ")))
        );
        let volume = index(layout, &nothing);
        let mut bytes = volume.read(file).unwrap();
        bytes[0] ^= 1;
        write(&volume, file, &bytes);
        let found = lines(&volume);
        assert_eq!(found.len(), 1, "{found:#?}");
        assert!(found[0].contains(&format!("/{file}, 0: ")), "{found:?}");
    }
}

#[test]
fn any_bytes_under_a_right_checksum_never_panic() {
    for layout in LAYOUTS {
        let volume = index(layout, &nothing);
        let files: Vec<String> = volume.list().unwrap();
        let (mut found, mut damaged) = (0, 0);
        for file in files.iter().filter(|name| *name != MANIFEST) {
            let whole = volume.read(file).unwrap();
            for number in 1..whole.len() / BLOCK {
                let block = &whole[number * BLOCK..(number + 1) * BLOCK];
                let used = block.iter().rposition(|&byte| byte != 0).unwrap_or(0) + 2;
                for at in (4..used.min(BLOCK)).step_by(3) {
                    let mut bytes = whole.clone();
                    let block = &mut bytes[number * BLOCK..(number + 1) * BLOCK];
                    block[at] = block[at].wrapping_add([1, 0x80, 0x55][at / 3 % 3]);
                    seal(block, number as u64);
                    write(&volume, file, &bytes);
                    damaged += 1;
                    found += u32::from(!report(&volume).clean());
                }
            }
            write(&volume, file, &whole);
        }
        assert!(report(&volume).clean(), "{layout}");
        // Most bytes may have any value, so `verify` notices only a part of the changes.
        assert!(found > damaged / 20, "{layout}: {found} of {damaged}");
    }
}

const BLOCK: usize = stratann_layout::BLOCK;

#[test]
fn an_interruption_ends_the_walk() {
    struct Impatient;
    impl Progress for Impatient {
        fn begin(&self, _: &str, _: u64) {}
        fn advance(&self, _: u64) {}
        fn end(&self) {}
        fn warn(&self, _: &str) {}
        fn interrupted(&self) -> bool {
            true
        }
    }
    for layout in LAYOUTS {
        let outcome = verify_in(&index(layout, &nothing), &Impatient);
        assert!(matches!(outcome, Err(Error::Interrupted)), "{layout}");
    }
}

#[test]
fn what_could_not_be_looked_at_is_no_damage() {
    let mut report = VerifyReport::default();
    let denied = std::io::Error::from_raw_os_error(13);
    let denied = stratann_tier::TierError::io("read", "x", 0, 0, denied);
    report.refused("x", &denied.into());
    assert_eq!((report.problem_count, report.unread), (1, 1));
    let missing = std::io::Error::from_raw_os_error(2);
    let missing = stratann_tier::TierError::io("read", "y", 0, 0, missing);
    report.refused("y", &missing.into());
    assert_eq!((report.problem_count, report.unread), (2, 1));
}
