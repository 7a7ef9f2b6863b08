use super::*;
use crate::block;
use crate::coupled::{CoupledShape, PageBuilder};
use crate::entries::EntryPoints;
use crate::stream;
use proptest::prelude::*;

fn shape(element: Element, dim: usize, degree: usize, code_bytes: usize) -> InlineShape {
    InlineShape::new(element, dim, degree, code_bytes).unwrap()
}

fn numbers(seed: u64) -> impl Iterator<Item = u64> {
    let mut state = seed;
    std::iter::repeat_with(move || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        state >> 24
    })
}

type Node = (u64, Vec<u8>, Vec<u32>, Vec<u8>);

fn nodes(shape: &InlineShape, count: usize, seed: u64) -> Vec<Node> {
    let mut number = numbers(seed);
    let mut next = || number.next().unwrap();
    (0..count)
        .map(|_| {
            let id = next() << 20 | next();
            let vector = (0..shape.vector_bytes()).map(|_| next() as u8).collect();
            let degree = next() as usize % (shape.degree() + 1);
            let list = (0..degree).map(|_| next() as u32).collect();
            let codes = degree * shape.code_bytes();
            (id, vector, list, (0..codes).map(|_| next() as u8).collect())
        })
        .collect()
}

fn build(shape: InlineShape, page: u64, nodes: &[Node]) -> Vec<u8> {
    let mut builder = InlineBuilder::new(shape);
    for (id, vector, neighbours, codes) in nodes {
        assert!(!builder.is_full());
        builder.push(*id, vector, neighbours, codes);
    }
    assert_eq!(builder.len(), nodes.len());
    assert_eq!(builder.is_full(), nodes.len() == shape.nodes_per_page());
    builder.finish(page).to_vec()
}

fn assert_same(view: &InlineView<'_>, nodes: &[Node]) {
    assert_eq!(view.len(), nodes.len());
    assert_eq!(view.is_empty(), nodes.is_empty());
    assert_eq!(view.nodes().count(), nodes.len());
    for (node, (id, vector, neighbours, codes)) in view.nodes().zip(nodes) {
        let node = node.unwrap();
        assert_eq!(node.id, *id);
        assert_eq!(node.vector, &vector[..]);
        assert_eq!(node.neighbours.len(), neighbours.len());
        assert!(node.neighbours.iter().eq(neighbours.iter().copied()));
        assert_eq!(node.codes, &codes[..]);
    }
}

#[test]
fn nodes_per_page_of_known_shapes() {
    for (element, dim, degree, code_bytes, nodes, blocks) in [
        (Element::F32, 128, 56, 128, 1, 2),
        (Element::U8, 128, 52, 32, 2, 1),
        (Element::F32, 1024, 60, 128, 1, 3),
        (Element::I8, 1, 1, 1, 194, 1),
        (Element::U8, 12, 8, 504, 1, 1),
        (Element::U8, 12, 1, 4060, 1, 1),
        (Element::U8, 12, 1, 4061, 1, 2),
        (Element::U8, 12, 1, 8152, 1, 2),
        (Element::U8, 12, 1, 8153, 1, 3),
        (Element::U8, 12, 1, 2016, 2, 1),
        (Element::U8, 12, 1, 2017, 1, 1),
        (Element::F32, 65_536, 4096, 187, 1, 256),
        (Element::U8, 12, 16, 65_465, 1, 256),
    ] {
        let shape = shape(element, dim, degree, code_bytes);
        let name = format!("{element} {dim} {degree} {code_bytes}");
        assert_eq!(shape.nodes_per_page(), nodes, "{name}");
        assert_eq!(shape.blocks_per_page(), blocks, "{name}");
        assert_eq!(shape.page_bytes(), blocks * BLOCK);
        assert_eq!(shape.code_bytes(), code_bytes);
    }
}

#[test]
fn a_record_is_the_papers_chunk_and_an_id() {
    for (element, dim, degree, code_bytes) in [
        (Element::F32, 128, 56, 128),
        (Element::U8, 128, 52, 32),
        (Element::F32, 1024, 60, 128),
    ] {
        let chunk = dim * element.size() + 4 * (degree + 1) + degree * code_bytes;
        let shape = shape(element, dim, degree, code_bytes);
        assert_eq!(shape.record_bytes(), chunk + 8);
    }
}

#[test]
fn impossible_shapes_are_refused() {
    let all = usize::MAX;
    for (dim, degree, code_bytes) in [
        (0, 64, 16),
        (65_537, 64, 16),
        (128, 0, 16),
        (128, 4097, 16),
        (128, 64, 0),
        (128, 1, 65_537),
        (128, 64, 65_536),
        (65_536, 4096, 188),
        (all, 1, 1),
        (1, all, 1),
        (1, 1, all),
        (all, all, all),
    ] {
        let error = InlineShape::new(Element::F32, dim, degree, code_bytes).unwrap_err();
        assert!(matches!(error, LayoutError::Shape { .. }));
        assert!(proposals(Element::F32, dim, degree, code_bytes).is_empty());
    }
    let text = |dim, degree, code_bytes| {
        InlineShape::new(Element::F32, dim, degree, code_bytes)
            .unwrap_err()
            .to_string()
    };
    assert_eq!(
        text(128, 64, 0),
        "the length of a code in bytes is 0; the format allows 1 to 65536. Choose another value, or another layout"
    );
    assert_eq!(
        text(128, 64, 65_536),
        "the length of a record in bytes is 4195084; the format allows about a million at most, the bytes of a page of 256 blocks. Choose another value, or another layout"
    );
}

#[test]
fn places_are_computed() {
    let shape = shape(Element::U8, 128, 20, 32);
    assert_eq!(shape.nodes_per_page(), 4);
    assert_eq!((shape.page_of(0), shape.slot_of(0)), (0, 0));
    assert_eq!((shape.page_of(39), shape.slot_of(39)), (9, 3));
    assert_eq!(shape.page_of(u32::MAX), 1_073_741_823);
    assert_eq!(shape.pages(0), 0);
    assert_eq!(shape.pages(41), 11);
    assert_eq!(shape.nodes_on_page(10, 41), 1);
    assert_eq!(shape.nodes_on_page(9, 41), 4);
    assert_eq!(shape.nodes_on_page(11, 41), 0);
    assert_eq!(shape.file_offset(0), 4096);
    assert_eq!(shape.file_length(41), 12 * 4096);
}

#[test]
fn bytes_stand_where_the_table_says() {
    let shape = shape(Element::U8, 5, 3, 3);
    assert_eq!(shape.record_bytes(), 8 + 8 + 4 + 12 + 9);
    let page = build(
        shape,
        0,
        &[
            (1, vec![1, 2, 3, 4, 5], vec![9], vec![21, 22, 23]),
            (0x0102, vec![6; 5], vec![7, 8], vec![31, 32, 33, 34, 35, 36]),
        ],
    );
    assert_eq!(page[4..8], [2, 0, 0, 0]);
    assert_eq!(
        page[8..24],
        [1, 0, 0, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 0, 0, 0]
    );
    assert_eq!(
        page[24..40],
        [1, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]
    );
    assert_eq!(page[40..49], [21, 22, 23, 0, 0, 0, 0, 0, 0]);
    assert_eq!(page[49..51], [2, 1]);
    assert_eq!(page[65..77], [2, 0, 0, 0, 7, 0, 0, 0, 8, 0, 0, 0]);
    assert_eq!(page[81..90], [31, 32, 33, 34, 35, 36, 0, 0, 0]);
    assert!(page[90..].iter().all(|&byte| byte == 0));
    let mut covered = 1u64.to_le_bytes().to_vec();
    covered.extend_from_slice(&page[4..]);
    assert_eq!(page[..4], crc32c::crc32c(&covered).to_le_bytes());

    let header = shape.header(7);
    assert_eq!(header.kind, FileKind::Inline);
    assert_eq!((header.kind.code(), header.kind.name()), (11, "inline"));
    assert_eq!(header.version, 1);
    assert_eq!(header.length, 2 * 4096);
    let fields = [
        [2, 0, 0, 0],
        [5, 0, 0, 0],
        [3, 0, 0, 0],
        [3, 0, 0, 0],
        [7, 0, 0, 0],
        [0; 4],
    ];
    assert_eq!(header.fields, fields.concat());
}

#[test]
fn a_record_begins_as_a_coupled_one() {
    let inline = shape(Element::F16, 301, 40, 17);
    let coupled = CoupledShape::new(Element::F16, 301, 40).unwrap();
    let nodes = nodes(&inline, 1, 8);
    let mut builder = PageBuilder::new(coupled);
    builder.push(nodes[0].0, &nodes[0].1, &nodes[0].2);
    let end = 8 + coupled.record_bytes();
    let page = build(inline, 0, &nodes);
    assert_eq!(builder.finish(0)[4..end], page[4..end]);
    assert_eq!(page[end..end + nodes[0].3.len()], nodes[0].3);
}

#[test]
fn a_page_of_several_blocks_keeps_its_record_whole() {
    let shape = shape(Element::F32, 1024, 60, 128);
    let nodes = nodes(&shape, 1, 5);
    let page = build(shape, 11, &nodes);
    assert_eq!(page.len(), 12_288);
    assert_same(
        &InlineView::open(&shape, &page, 11, Some(1), true, "i").unwrap(),
        &nodes,
    );
    // The third block's number in the file is 1 + 3 * 11 + 2.
    assert_eq!(
        page[8..12],
        block::checksum(36, &page[8192..]).to_le_bytes()
    );
}

#[test]
fn the_largest_page_round_trips() {
    let shape = shape(Element::F32, 65_536, 4096, 187);
    let mut nodes = nodes(&shape, 1, 3);
    nodes[0].2 = vec![u32::MAX; 4096];
    nodes[0].3 = (0..4096 * 187).map(|at| at as u8).collect();
    let page = build(shape, 1 << 40, &nodes);
    assert_same(
        &InlineView::open(&shape, &page, 1 << 40, Some(1), true, "i").unwrap(),
        &nodes,
    );
}

#[test]
fn every_bit_flip_is_found() {
    for shape in [
        shape(Element::U8, 128, 20, 33),
        shape(Element::F32, 128, 56, 128),
    ] {
        let mut page = build(shape, 6, &nodes(&shape, shape.nodes_per_page(), 1));
        for bit in 0..page.len() * 8 {
            page[bit / 8] ^= 1 << (bit % 8);
            let error = InlineView::open(&shape, &page, 6, None, true, "i").unwrap_err();
            assert!(
                matches!(error, LayoutError::Checksum { .. }),
                "bit {bit}: {error}"
            );
            page[bit / 8] ^= 1 << (bit % 8);
        }
        InlineView::open(&shape, &page, 6, None, true, "i").unwrap();
    }
}

#[test]
fn a_misplaced_page_is_found() {
    let shape = shape(Element::U8, 16, 8, 4);
    let page = build(shape, 3, &nodes(&shape, 4, 2));
    let text = InlineView::open(&shape, &page, 4, None, true, "a.idx/inline")
        .unwrap_err()
        .to_string();
    assert!(
        text.starts_with("a.idx/inline: checksum mismatch in the block at offset 20480"),
        "{text}"
    );
}

#[test]
fn wrong_counts_slots_and_degrees_are_refused() {
    let shape = shape(Element::U8, 16, 8, 4);
    let page = build(shape, 0, &nodes(&shape, 4, 2));
    let text = InlineView::open(&shape, &page, 0, Some(5), true, "i")
        .unwrap_err()
        .to_string();
    assert!(
        text.starts_with("i: count of records on the page at offset 4100 is 4; expected 5"),
        "{text}"
    );
    let view = InlineView::open(&shape, &page, 0, Some(4), true, "i").unwrap();
    view.node(4).unwrap_err();
    view.node(usize::MAX).unwrap_err();
    InlineView::open(&shape, &page[..4095], 0, None, true, "i").unwrap_err();

    let mut damaged = page.clone();
    damaged[4] = 255;
    InlineView::open(&shape, &damaged, 0, None, false, "i").unwrap_err();
    InlineView::open(&shape, &damaged, 0, Some(255), false, "i").unwrap_err();
    let mut damaged = page.clone();
    damaged[7] = 1;
    let error = InlineView::open(&shape, &damaged, 0, None, false, "i").unwrap_err();
    assert_eq!(error.offset(), Some(4103));
    // The mark of a relocated coupled page; inline pages cannot be relocated.
    let mut damaged = page.clone();
    damaged[6] = 1;
    let error = InlineView::open(&shape, &damaged, 0, None, false, "i").unwrap_err();
    assert!(matches!(error, LayoutError::Reserved { offset: 4102, .. }));
    let mut damaged = page;
    damaged[8 + 92 + 24] = 9;
    let view = InlineView::open(&shape, &damaged, 0, None, false, "i").unwrap();
    view.node(0).unwrap();
    let text = view.node(1).unwrap_err().to_string();
    assert!(
        text.starts_with("i: degree of a node at offset 4220 is 9; expected at most 8"),
        "{text}"
    );
}

#[test]
fn header_round_trip_and_contradictions() {
    let shape = shape(Element::F16, 100, 32, 20);
    let header = shape.header(12_345);
    let block = header.encode();
    let back = FileHeader::decode(&block, "inline").unwrap();
    assert_eq!(
        InlineShape::from_header(&back, "inline").unwrap(),
        (shape, 12_345)
    );

    for (at, value) in [
        (0, 77),
        (0, 300),
        (4, 0),
        (8, 5000),
        (12, 0),
        (12, 65_537),
        (12, 65_536),
        (12, 400),
        (16, 22_345),
        (20, 1),
    ] {
        let mut header = shape.header(12_340);
        header.fields[at..at + 4].copy_from_slice(&u32::to_le_bytes(value));
        let error = InlineShape::from_header(&header, "inline").unwrap_err();
        assert!(matches!(error, LayoutError::Field { .. }), "{error}");
    }
    let mut header = shape.header(1);
    header.fields[12] = 0;
    let text = InlineShape::from_header(&header, "i")
        .unwrap_err()
        .to_string();
    assert!(
        text.starts_with(
            "i: dimension, degree and bytes of a code at offset 52 is 100, 32 and 0; expected 1 to 65536"
        ),
        "{text}"
    );
    let mut header = shape.header(1);
    header.fields.push(0);
    InlineShape::from_header(&header, "inline").unwrap_err();
    for length in 0..24 {
        header.fields.truncate(24 - length - 1);
        InlineShape::from_header(&header, "inline").unwrap_err();
    }
    let coupled = CoupledShape::new(Element::F16, 100, 32).unwrap();
    let error = InlineShape::from_header(&coupled.header(1), "inline").unwrap_err();
    assert!(matches!(error, LayoutError::WrongKind { .. }));
    let error = CoupledShape::from_header(&shape.header(1), "graph").unwrap_err();
    assert!(matches!(error, LayoutError::WrongKind { .. }));
}

#[test]
fn the_frozen_index_is_written_to_the_byte() {
    let read = |name: &str| {
        let folder = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../../fixtures/index-v3-inline"
        );
        std::fs::read(format!("{folder}/{name}")).unwrap()
    };
    let bytes = read("inline-000001");
    let header = FileHeader::decode(&bytes, "inline").unwrap();
    header.check_length(bytes.len() as u64, "inline").unwrap();
    let (shape, nodes) = InlineShape::from_header(&header, "inline").unwrap();
    assert_eq!((shape.nodes_per_page(), nodes), (8, 2_000));
    assert_eq!(shape.header(nodes).encode(), bytes[..BLOCK]);

    let mut builder = InlineBuilder::new(shape);
    let mut neighbours = Vec::new();
    for page in 0..shape.pages(nodes) {
        let at = shape.file_offset(page) as usize;
        let stored = &bytes[at..at + shape.page_bytes()];
        let expected = Some(shape.nodes_on_page(page, nodes));
        let view = InlineView::open(&shape, stored, page, expected, true, "inline").unwrap();
        builder.clear();
        for node in view.nodes() {
            let node = node.unwrap();
            node.neighbours.copy_into(&mut neighbours);
            builder.push(node.id, node.vector, &neighbours, node.codes);
        }
        assert_eq!(builder.finish(page), stored, "page {page}");
    }

    let bytes = read("entries-000001");
    let (_, payload) = stream::decode(FileKind::Entries, &bytes, "entries").unwrap();
    let entries = EntryPoints::decode(&payload, nodes, 16, "entries").unwrap();
    assert_eq!(entries.nodes, [1017]);
    assert_eq!(entries.encode(), payload);
    assert_eq!(stream::encode(FileKind::Entries, &payload, &[]), bytes);
}

#[test]
fn a_cleared_builder_keeps_nothing() {
    let shape = shape(Element::U8, 16, 8, 2);
    let mut builder = InlineBuilder::new(shape);
    builder.push(7, &[255; 16], &[1, 2, 3], &[255; 6]);
    builder.push(8, &[255; 16], &[1, 2, 3, 4, 5, 6, 7, 8], &[255; 16]);
    builder.finish(0);
    builder.clear();
    assert!(builder.is_empty());
    builder.push(9, &[1; 16], &[5], &[3, 4]);
    assert_eq!(
        builder.finish(2),
        build(shape, 2, &[(9, vec![1; 16], vec![5], vec![3, 4])])
    );
}

#[test]
#[should_panic(expected = "the codes of the neighbours have the wrong number of bytes")]
fn every_neighbour_has_a_code() {
    let shape = shape(Element::U8, 16, 8, 2);
    InlineBuilder::new(shape).push(7, &[0; 16], &[1, 2, 3], &[0; 5]);
}

#[test]
#[should_panic(expected = "9 neighbours, the format allows 8")]
fn there_is_no_room_for_more_neighbours() {
    let shape = shape(Element::U8, 16, 8, 2);
    InlineBuilder::new(shape).push(7, &[0; 16], &[1; 9], &[0; 18]);
}

#[test]
fn fill_says_what_is_left_over() {
    // A page has two records of 128 + 12 + 52 * 36 bytes after a header of eight bytes.
    let found = fill(Element::U8, 128, 52, 32);
    let used = f64::from(8 + 2 * 2012) / 4096.0;
    assert_eq!(
        found,
        Fill {
            nodes_per_page: 2,
            blocks: 1,
            used
        }
    );
    assert_eq!(fill(Element::U8, 12, 1, 2016).used, 1.0);
    assert_eq!(fill(Element::U8, 12, 1, 4060).used, 1.0);
    let found = fill(Element::U8, 12, 1, 8152);
    assert_eq!((found.blocks, found.used), (2, 1.0));
    let found = fill(Element::U8, 12, 1, 8153);
    assert_eq!(found.blocks, 3);
    assert_eq!(found.used, f64::from(16 + 8181) / 12_288.0);
}

#[test]
fn fill_takes_any_numbers() {
    let all = usize::MAX;
    for dim in [0, 1, 128, 65_537, all] {
        for degree in [0, 1, 64, 4097, all] {
            for code_bytes in [0, 1, 32, 65_537, all] {
                let fill = fill(Element::F32, dim, degree, code_bytes);
                assert!(fill.used > 0.0 && fill.used <= 1.0, "{fill:?}");
                assert!(fill.blocks == 1 || fill.nodes_per_page == 1, "{fill:?}");
            }
        }
    }
}

fn proposed(
    element: Element,
    dim: usize,
    degree: usize,
    code_bytes: usize,
) -> Vec<(usize, usize, usize, usize)> {
    proposals(element, dim, degree, code_bytes)
        .iter()
        .map(|p| (p.degree, p.code_bytes, p.nodes_per_page, p.blocks))
        .collect()
}

#[test]
fn proposals_of_known_shapes() {
    // AiSAQ's SIFT1B leaves 1644 bytes of a block unused. R = 109, a code of 57 bytes, or R = 52
    // use these bytes.
    assert_eq!(
        proposed(Element::U8, 128, 64, 32),
        [(109, 32, 1, 1), (64, 57, 1, 1), (52, 32, 2, 1)]
    );
    // Neither one more neighbour nor one more byte for each code fits.
    assert_eq!(proposed(Element::U8, 128, 52, 32), [(33, 32, 3, 1)]);
    // AiSAQ's SIFT1M and KILT have pages of several blocks.
    assert_eq!(
        proposed(Element::F32, 128, 64, 128),
        [(89, 128, 1, 3), (58, 128, 1, 2)]
    );
    assert_eq!(
        proposed(Element::F32, 1024, 64, 128),
        [(92, 128, 1, 4), (64, 187, 1, 4), (61, 128, 1, 3)]
    );
    assert_eq!(
        proposed(Element::U8, 96, 16, 95)[1],
        (16, 96, 2, 1),
        "the page has room for more neighbours"
    );
    // If the vector alone is longer than a block, no smaller degree saves a block.
    assert_eq!(proposed(Element::F32, 1024, 30, 128), [(30, 131, 1, 2)]);
    // 4904 neighbours would fit, but the format does not allow so many.
    assert_eq!(
        proposed(Element::U8, 12, 4090, 1),
        [(4096, 1, 1, 6), (4086, 1, 1, 5)]
    );
    assert_eq!(proposed(Element::U8, 4096, 23, 173), []);
}

fn any_shape() -> impl Strategy<Value = InlineShape> {
    let code_bytes = prop_oneof![1usize..80, 1usize..700];
    (0usize..4, 1usize..2000, 1usize..300, code_bytes)
        .prop_map(|(element, dim, degree, c)| shape(Element::ALL[element], dim, degree, c))
}

proptest! {
    #[test]
    fn any_page_round_trips(shape in any_shape(), fill in 0usize..=1000, page in 0u64..1 << 40, seed: u64) {
        let nodes = nodes(&shape, fill % (shape.nodes_per_page() + 1), seed);
        let bytes = build(shape, page, &nodes);
        prop_assert_eq!(bytes.len(), shape.page_bytes());
        let view = InlineView::open(&shape, &bytes, page, Some(nodes.len()), true, "i").unwrap();
        assert_same(&view, &nodes);
    }

    #[test]
    fn any_node_has_one_place(shape in any_shape(), node: u32) {
        let (page, slot) = (shape.page_of(node), shape.slot_of(node));
        prop_assert_eq!(shape.first_node(page) + slot as u64, u64::from(node));
        prop_assert!(slot < shape.nodes_on_page(page, u64::from(node) + 1));
        prop_assert!(shape.file_offset(page) + shape.page_bytes() as u64 <= shape.file_length(u64::from(node) + 1));
    }

    #[test]
    fn any_header_round_trips(shape in any_shape(), nodes: u32) {
        let header = FileHeader::decode(&shape.header(u64::from(nodes)).encode(), "i").unwrap();
        prop_assert_eq!(InlineShape::from_header(&header, "i").unwrap(), (shape, u64::from(nodes)));
    }

    #[test]
    fn arbitrary_bytes_never_panic(
        shape in any_shape(),
        seed: u64,
        page: u64,
        expected: Option<usize>,
        verify: bool,
        sealed: bool,
        small_count: bool,
    ) {
        let mut bytes: Vec<u8> = numbers(seed).map(|n| n as u8).take(shape.page_bytes()).collect();
        let at = 4 * shape.blocks_per_page();
        if small_count {
            bytes[at..at + 4].copy_from_slice(&[(seed % 3) as u8, 0, 0, 0]);
        }
        if sealed {
            block::seal_page(&mut bytes, shape.geometry.first_block(page));
        }
        if let Ok(view) = InlineView::open(&shape, &bytes, page, expected, verify, "i") {
            for node in view.nodes().flatten() {
                prop_assert!(node.neighbours.iter().count() <= shape.degree());
                prop_assert_eq!(node.vector.len(), shape.vector_bytes());
                prop_assert_eq!(node.codes.len(), node.neighbours.len() * shape.code_bytes());
            }
        }
    }

    #[test]
    fn damaged_pages_never_panic(
        shape in any_shape(),
        seed: u64,
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..20),
    ) {
        let mut bytes = build(shape, 1, &nodes(&shape, shape.nodes_per_page(), seed));
        for (at, value) in damage {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        if let Ok(view) = InlineView::open(&shape, &bytes, 1, None, false, "i") {
            for node in view.nodes().flatten() {
                prop_assert_eq!(node.codes.len(), node.neighbours.len() * shape.code_bytes());
            }
        }
    }

    #[test]
    fn arbitrary_headers_never_panic(fields in prop::collection::vec(any::<u8>(), 0..40), length: u64) {
        let header = FileHeader::new(FileKind::Inline, length, fields);
        let _ = InlineShape::from_header(&header, "i");
    }

    #[test]
    fn fill_is_that_of_the_shape(shape in any_shape()) {
        let (element, dim, degree) = (shape.element(), shape.dim(), shape.degree());
        let found = fill(element, dim, degree, shape.code_bytes());
        prop_assert_eq!(found.nodes_per_page, shape.nodes_per_page());
        prop_assert_eq!(found.blocks, shape.blocks_per_page());
        let header = shape.geometry.record_at(0);
        let left_over = shape.page_bytes() - header - shape.nodes_per_page() * shape.record_bytes();
        let share = left_over as f64 / shape.page_bytes() as f64;
        prop_assert!((found.used + share - 1.0).abs() < 1e-12);

        let coupled = CoupledShape::new(element, dim, degree).unwrap();
        let found = fill(element, dim, degree, 0);
        prop_assert_eq!(found.nodes_per_page, coupled.nodes_per_page());
        prop_assert_eq!(found.blocks, coupled.blocks_per_page());
    }

    #[test]
    fn proposals_are_those_of_a_search(shape in any_shape()) {
        let (element, dim) = (shape.element(), shape.dim());
        let (degree, code_bytes) = (shape.degree(), shape.code_bytes());
        let place = |degree, code_bytes| {
            let shape = InlineShape::new(element, dim, degree, code_bytes).ok()?;
            Some((shape.blocks_per_page(), shape.nodes_per_page()))
        };
        let here = place(degree, code_bytes);
        let largest = (degree..=MAX_DEGREE).take_while(|&r| place(r, code_bytes) == here).last().unwrap();
        let longest = (code_bytes..=dim).take_while(|&c| place(degree, c) == here).last().unwrap_or(code_bytes);
        let denser = (1..degree).rev().find(|&r| place(r, code_bytes) != here);
        let mut expected = Vec::new();
        if largest > degree {
            expected.push((largest, code_bytes));
        }
        if longest > code_bytes {
            expected.push((degree, longest));
        }
        expected.extend(denser.map(|r| (r, code_bytes)));

        let found = proposals(element, dim, degree, code_bytes);
        let pairs: Vec<_> = found.iter().map(|p| (p.degree, p.code_bytes)).collect();
        prop_assert_eq!(pairs, expected);
        for p in found {
            prop_assert_eq!(Some((p.blocks, p.nodes_per_page)), place(p.degree, p.code_bytes));
            prop_assert_eq!(p.used, fill(element, dim, p.degree, p.code_bytes).used);
        }
    }
}
