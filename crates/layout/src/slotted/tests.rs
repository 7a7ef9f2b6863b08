mod running_on;

use super::*;
use crate::block;
use proptest::prelude::*;

const KINDS: [FileKind; 3] = [FileKind::Packed, FileKind::Adjacency, FileKind::Vectors];

type Node = (u64, Vec<u8>, Vec<u8>);

fn shape(kind: FileKind, largest: usize) -> SlottedShape {
    SlottedShape::new(kind, Element::U8, 128, 64, largest).unwrap()
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

fn bytes(length: usize, seed: usize) -> Vec<u8> {
    (0..length)
        .map(|at| ((at + seed) * 131 % 253) as u8)
        .collect()
}

fn node(kind: FileKind, id: u64, list: usize, vector: usize) -> Node {
    let seed = id as usize % 1000;
    let list = if kind == FileKind::Vectors { 0 } else { list };
    let vector = if kind == FileKind::Adjacency {
        0
    } else {
        vector
    };
    (id, bytes(list, seed), bytes(vector, seed + 7))
}

fn room(kind: FileKind, blocks: usize) -> usize {
    let (fixed, node) = match kind {
        FileKind::Packed => (24, 4),
        FileKind::Adjacency => (16, 4),
        _ => (24, 0),
    };
    blocks * BLOCK - 4 * blocks - fixed - node
}

fn build_relocated(shape: SlottedShape, page: u64, numbers: &[u32], nodes: &[Node]) -> Vec<u8> {
    let mut builder = SlottedBuilder::new(shape);
    builder.start_relocated();
    for (&number, (id, list, vector)) in numbers.iter().zip(nodes) {
        assert!(
            builder.push_node(number, *id, list, vector),
            "node {number} does not fit"
        );
    }
    builder.finish(page).to_vec()
}

fn assert_nodes(view: &SlottedView<'_>, numbers: &[u32]) {
    assert_eq!(view.len(), numbers.len());
    assert_eq!(view.first(), *numbers.iter().min().unwrap());
    for (slot, &number) in numbers.iter().enumerate() {
        assert_eq!(view.node(slot), Ok(number));
        assert_eq!(view.slot_of(number), Some(slot), "node {number}");
        for near in [number.wrapping_sub(1), number.wrapping_add(1)] {
            let slot = numbers.iter().position(|&number| number == near);
            assert_eq!(view.slot_of(near), slot, "node {near}");
        }
    }
    for slot in [numbers.len(), usize::MAX] {
        view.node(slot).unwrap_err();
    }
}

fn build(shape: SlottedShape, first: u32, page: u64, nodes: &[Node]) -> Vec<u8> {
    let mut builder = SlottedBuilder::new(shape);
    builder.start(first);
    for (at, (id, list, vector)) in nodes.iter().enumerate() {
        assert!(builder.push(*id, list, vector), "record {at} does not fit");
    }
    builder.finish(page).to_vec()
}

fn assert_same(view: &SlottedView<'_>, page: &[u8], nodes: &[Node]) {
    assert_eq!(view.len(), nodes.len());
    assert!(!view.is_empty());
    let mut all = view.records();
    assert_eq!(all.len(), nodes.len());
    for (slot, (id, list, vector)) in nodes.iter().enumerate() {
        let record = view.record(slot).unwrap();
        assert_eq!(all.next().unwrap().unwrap(), record);
        assert_eq!(record.list, &list[..], "list {slot}");
        assert_eq!(record.vector, &vector[..], "vector {slot}");
        assert!(record.list_and_rest.starts_with(list));
        assert!(std::ptr::eq(
            record.list_and_rest.as_ptr_range().end,
            page.as_ptr_range().end
        ));
        if view.id(slot).is_ok() {
            assert_eq!(view.id(slot).unwrap(), *id, "id {slot}");
        }
    }
}

fn reseal(shape: &SlottedShape, bytes: &mut [u8], page: u64) {
    block::seal_page(bytes, shape.first_block(page));
}

fn widths(shape: &SlottedShape, page: &[u8]) -> (u8, u8, u8) {
    let at = 4 * shape.blocks;
    (page[at + 2], page[at + 3] & 15, page[at + 3] >> 4)
}

#[test]
fn bytes_stand_where_the_table_says() {
    let shape_of = |kind| shape(kind, 100);
    let packed = shape_of(FileKind::Packed);
    let page = build(
        packed,
        0x0001_0203,
        0,
        &[
            (300, vec![1, 2, 3], vec![4, 5]),
            (7, vec![6], vec![7, 8]),
            (0x0107, vec![], vec![9, 10]),
        ],
    );
    assert_eq!(page.len(), BLOCK);
    assert_eq!(page[4..8], [3, 0, 2, 0x01]);
    assert_eq!(
        page[8..20],
        [0x03, 0x02, 0x01, 0x00, 0, 0, 0, 0, 2, 0, 0, 0]
    );
    assert_eq!(page[20..28], [7, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(page[28..31], [3, 1, 0]);
    assert_eq!(page[31..37], [0x25, 0x01, 0, 0, 0, 1]);
    assert_eq!(page[37..47], [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]);
    assert!(page[47..].iter().all(|&byte| byte == 0));
    let mut covered = 1u64.to_le_bytes().to_vec();
    covered.extend_from_slice(&page[4..]);
    assert_eq!(page[..4], crc32c::crc32c(&covered).to_le_bytes());

    let adjacency = shape_of(FileKind::Adjacency);
    let page = build(
        adjacency,
        5,
        0,
        &[(u64::MAX, vec![1; 4], vec![]), (0, vec![2; 260], vec![])],
    );
    assert_eq!(page[4..8], [2, 0, 255, 0x02]);
    assert_eq!(page[8..20], [5, 0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(page[20..24], [0, 0, 0, 1]);
    assert_eq!(page[24..29], [1, 1, 1, 1, 2]);

    let vectors = shape_of(FileKind::Vectors);
    let page = build(
        vectors,
        6,
        0,
        &[(70, vec![], vec![1; 5]), (71, vec![], vec![2; 3])],
    );
    assert_eq!(page[4..8], [2, 0, 0, 0x10]);
    assert_eq!(page[8..20], [6, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0]);
    assert_eq!(page[20..28], [70, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(page[28..30], [2, 0]);
    assert_eq!(page[30..38], [1, 1, 1, 1, 1, 2, 2, 2]);
}

#[test]
fn a_record_of_photographs_costs_five_bytes() {
    let shape = shape(FileKind::Packed, 400);
    let mut builder = SlottedBuilder::new(shape);
    let mut number = numbers(1);
    let mut next = |below: usize| number.next().unwrap() as usize % below;
    builder.start(0);
    let mut records = 0;
    loop {
        let (list, vector) = (vec![1; 60 + next(41)], vec![1; 70 + next(33)]);
        if !builder.push(next(10_000_000) as u64, &list, &vector) {
            break;
        }
        records += list.len() + vector.len();
    }
    let count = builder.len();
    let page = builder.finish(0);
    assert_eq!(widths(&shape, page), (3, 1, 1));
    assert!(shape.header_bytes() <= 32);
    let view = SlottedView::open(&shape, page, 0, true, "packed").unwrap();
    let last = view.record(count - 1).unwrap();
    let used = BLOCK - last.list_and_rest.len() + last.list.len() + last.vector.len();
    assert_eq!(used, 28 + 5 * count + records);
    assert!(count >= 22, "{count}");
}

#[test]
fn pages_have_as_few_blocks_as_the_largest_record_needs() {
    for kind in KINDS {
        assert_eq!(shape(kind, 0).blocks_per_page(), 1);
        for blocks in 1..=MAX_BLOCKS {
            let room = room(kind, blocks);
            let largest = shape(kind, room);
            assert_eq!(largest.blocks_per_page(), blocks, "{kind} {room}");
            assert_eq!(largest.page_bytes(), blocks * BLOCK);
            let more = SlottedShape::new(kind, Element::U8, 128, 64, room + 1);
            if blocks == MAX_BLOCKS {
                let text = more.unwrap_err().to_string();
                assert!(
                    text.starts_with("the length of the largest record in bytes is"),
                    "{text}"
                );
            } else {
                assert_eq!(more.unwrap().blocks_per_page(), blocks + 1, "{kind} {room}");
            }
        }
        SlottedShape::new(kind, Element::U8, 128, 64, usize::MAX).unwrap_err();
    }
}

#[test]
fn a_record_may_fill_a_page_to_the_last_byte() {
    for kind in KINDS {
        for blocks in [1, 2, 5] {
            let shape = shape(kind, room(kind, blocks));
            assert_eq!(shape.blocks_per_page(), blocks);
            let room = shape.page_bytes() - shape.header_bytes();
            for list in [0, 1, room / 2, room] {
                let mut whole = node(kind, u64::MAX, list, room - list);
                if kind != FileKind::Packed {
                    whole = node(kind, u64::MAX, room, room);
                }
                let mut builder = SlottedBuilder::new(shape);
                builder.start(9);
                let mut larger = whole.clone();
                if kind == FileKind::Vectors {
                    larger.2.push(1);
                } else {
                    larger.1.push(1);
                }
                assert!(!builder.push(larger.0, &larger.1, &larger.2));
                assert!(builder.is_empty());
                assert!(builder.push(whole.0, &whole.1, &whole.2));
                assert!(!builder.push(0, &[], &[]));
                assert_eq!(builder.len(), 1);
                let page = builder.finish(3);
                assert_ne!(page.last(), Some(&0));
                let view = SlottedView::open(&shape, page, 3, true, "f").unwrap();
                assert_same(&view, page, &[whole]);
                assert_eq!(view.first(), 9);
            }
        }
    }
}

#[test]
fn several_records_may_fill_a_page_to_the_last_byte() {
    let kind = FileKind::Adjacency;
    let shape = shape(kind, 1014);
    let mut builder = SlottedBuilder::new(shape);
    builder.start(0);
    let mut nodes: Vec<Node> = (0..30).map(|id| node(kind, id, 100, 0)).collect();
    for (id, list, vector) in &nodes {
        assert!(builder.push(*id, list, vector));
    }
    // 20 bytes of header, 31 lengths of two bytes, and 3000 bytes of lists leave 1014 bytes.
    let last = node(kind, 30, 1015, 0);
    assert!(!builder.push(last.0, &last.1, &last.2));
    let last = node(kind, 30, 1014, 0);
    assert!(builder.push(last.0, &last.1, &last.2));
    nodes.push(last);
    let page = builder.finish(0);
    let view = SlottedView::open(&shape, page, 0, true, "adjacency").unwrap();
    assert_same(&view, page, &nodes);
    let last = view.record(30).unwrap();
    assert_eq!(last.list, last.list_and_rest);
}

#[test]
fn a_record_that_does_not_fit_changes_nothing() {
    for kind in KINDS {
        let shape = shape(kind, 300);
        let mut builder = SlottedBuilder::new(shape);
        builder.start(1);
        let nodes: Vec<Node> = (0..6).map(|id| node(kind, id, 300, 300)).collect();
        for (id, list, vector) in &nodes {
            assert!(builder.push(*id, list, vector));
        }
        // The first record is too long. The second one would widen all ids and lengths.
        let huge = node(kind, u64::MAX, 4000, 4000);
        assert!(!builder.push(huge.0, &huge.1, &huge.2));
        assert!(!builder.push(huge.0, &huge.1, &huge.2));
        assert_eq!(builder.len(), 6);
        assert_eq!(builder.finish(4), build(shape, 1, 4, &nodes));
    }
}

#[test]
fn a_started_builder_keeps_nothing() {
    let shape = shape(FileKind::Packed, 300);
    let mut builder = SlottedBuilder::new(shape);
    assert!(builder.is_empty());
    while builder.push(u64::MAX - builder.len() as u64, &[255; 90], &[255; 301]) {}
    builder.finish(0);
    builder.start(77);
    assert!(builder.is_empty());
    let nodes = [node(FileKind::Packed, 5, 10, 20)];
    assert!(builder.push(nodes[0].0, &nodes[0].1, &nodes[0].2));
    assert_eq!(builder.finish(2), build(shape, 77, 2, &nodes));
}

#[test]
fn ids_take_as_many_bytes_as_they_spread_over() {
    let top = u64::MAX;
    for (ids, width) in [
        (vec![top], 0),
        (vec![0], 0),
        (vec![top - 2, top - 1, top], 0),
        (vec![17, 18, 19, 20], 0),
        (vec![20, 19, 18], 1),
        (vec![17, 18, 20], 1),
        (vec![5, 5, 5], 1),
        (vec![5, 5, 6], 1),
        (vec![top, 0], 8),
        (vec![top, 0, 1], 8),
        (vec![0, 255], 1),
        (vec![0, 256], 2),
        (vec![top - 0xffff, top], 2),
        (vec![0x1_0000, 0], 3),
        (vec![1 << 24, 0], 4),
        (vec![1 << 32, 0], 5),
        (vec![1 << 40, 0], 6),
        (vec![1 << 48, 0], 7),
        (vec![(1 << 56) - 1, 0], 7),
        (vec![1 << 56, 0, top], 8),
    ] {
        for kind in [FileKind::Packed, FileKind::Vectors] {
            let shape = shape(kind, 300);
            for (list, vector) in [(8, 9), (0, 1), (0, 0)] {
                let nodes: Vec<Node> = ids.iter().map(|&id| node(kind, id, list, vector)).collect();
                let page = build(shape, 0, 0, &nodes);
                assert_eq!(widths(&shape, &page).0, width, "{ids:?}");
                let view = SlottedView::open(&shape, &page, 0, true, "f").unwrap();
                assert_same(&view, &page, &nodes);
                let found: Vec<u64> = (0..view.len()).map(|at| view.id(at).unwrap()).collect();
                assert_eq!(found, ids);
            }
        }
    }
}

#[test]
fn ids_are_read_at_the_very_end_of_a_page() {
    for spread in [0xffu64, 0xffff, 0xff_ffff, 0xff_ffff_ffff, u64::MAX] {
        let shape = shape(FileKind::Vectors, 0);
        let mut builder = SlottedBuilder::new(shape);
        builder.start(0);
        let mut ids = vec![spread, 0];
        for &id in &ids {
            assert!(builder.push(id, &[], &[]));
        }
        while builder.push(ids.len() as u64 % 200, &[], &[]) {
            ids.push(ids.len() as u64 % 200);
        }
        let page = builder.finish(0);
        let view = SlottedView::open(&shape, page, 0, true, "f").unwrap();
        let width = usize::from(widths(&shape, page).0);
        assert_eq!(ids.len(), (BLOCK - 28) / width);
        for (slot, &id) in ids.iter().enumerate() {
            assert_eq!(view.id(slot).unwrap(), id, "{slot} of {}", ids.len());
        }
    }
}

#[test]
fn lengths_take_as_many_bytes_as_they_spread_over() {
    for (range, width) in [
        (0, 0),
        (1, 1),
        (255, 1),
        (256, 2),
        (65_535, 2),
        (65_536, 4),
        (70_000, 4),
    ] {
        for kind in KINDS {
            let shape = shape(kind, 6 * (range + 40));
            for least in [0, 1, 30] {
                let lengths = [least, least + range, least + range / 2, least];
                for (list, vector) in [(true, false), (false, true), (true, true)] {
                    let nodes: Vec<Node> = (0..)
                        .zip(lengths)
                        .map(|(id, length)| {
                            let of = |differ| if differ { length } else { least };
                            node(kind, id, of(list), of(vector))
                        })
                        .collect();
                    let page = build(shape, 0, 0, &nodes);
                    let of = |differ, has| if differ && has { width } else { 0 };
                    let (_, lists, vectors) = widths(&shape, &page);
                    assert_eq!(lists, of(list, shape.has_lists()), "{kind} {range}");
                    assert_eq!(vectors, of(vector, shape.has_vectors()), "{kind} {range}");
                    let view = SlottedView::open(&shape, &page, 0, true, "f").unwrap();
                    assert_same(&view, &page, &nodes);
                }
            }
        }
    }
}

#[test]
fn a_page_holds_as_many_records_as_its_count_says_at_most() {
    let shape = shape(FileKind::Adjacency, 0);
    let mut builder = SlottedBuilder::new(shape);
    builder.start(0);
    for _ in 0..MAX_RECORDS {
        assert!(builder.push(0, &[], &[]));
    }
    assert!(!builder.push(0, &[], &[]));
    let page = builder.finish(0);
    let view = SlottedView::open(&shape, page, 0, true, "adjacency").unwrap();
    assert_eq!(view.len(), MAX_RECORDS);
    assert!(view.record(MAX_RECORDS - 1).unwrap().list.is_empty());
    view.record(MAX_RECORDS).unwrap_err();
    view.record(usize::MAX).unwrap_err();
    let text = view.id(0).unwrap_err().to_string();
    assert!(
        text.starts_with("adjacency: external id at offset 4102 is none"),
        "{text}"
    );
}

#[test]
fn every_bit_flip_is_found() {
    for (kind, largest) in [
        (FileKind::Packed, 300),
        (FileKind::Adjacency, 300),
        (FileKind::Vectors, 9000),
    ] {
        let shape = shape(kind, largest);
        let nodes: Vec<Node> = (0..8).map(|id| node(kind, id * 9, 200, 250)).collect();
        let mut pages = vec![build(shape, 3, 6, &nodes)];
        if shape.relocates() {
            pages.push(build_relocated(
                shape,
                6,
                &[9, 8, 3, 4, 99, 7, 1, 0],
                &nodes,
            ));
        }
        for mut page in pages {
            for bit in 0..page.len() * 8 {
                page[bit / 8] ^= 1 << (bit % 8);
                let error = SlottedView::open(&shape, &page, 6, true, "f").unwrap_err();
                assert!(
                    matches!(error, LayoutError::Checksum { .. }),
                    "bit {bit}: {error}"
                );
                page[bit / 8] ^= 1 << (bit % 8);
            }
            SlottedView::open(&shape, &page, 6, true, "f").unwrap();
        }
    }
}

#[test]
fn a_misplaced_page_is_found() {
    let shape = shape(FileKind::Vectors, 5000);
    let page = build(shape, 0, 3, &[node(FileKind::Vectors, 0, 0, 5000)]);
    let text = SlottedView::open(&shape, &page, 4, true, "a.idx/vectors-0")
        .unwrap_err()
        .to_string();
    // Page 4 begins at block 9, after the header block and four pages of two blocks.
    assert!(
        text.starts_with("a.idx/vectors-0: checksum mismatch in the block at offset 36864"),
        "{text}"
    );
    assert_eq!(page[4..8], block::checksum(8, &page[BLOCK..]).to_le_bytes());
}

#[test]
fn what_a_page_cannot_have_is_refused() {
    let nodes = |kind| -> Vec<Node> {
        (0..5)
            .map(|id| node(kind, id * 1000, 10 + id as usize, 20))
            .collect()
    };
    type Change = (FileKind, usize, &'static [u8], &'static str);
    let changes: [Change; 19] = [
        (
            FileKind::Packed,
            0,
            &[0, 0],
            "4100 is 0; expected 1 or more",
        ),
        (
            FileKind::Packed,
            0,
            &[255, 255],
            "4100 is 65535; expected as many",
        ),
        (
            FileKind::Packed,
            2,
            &[9],
            "bytes of an id at offset 4102 is 9",
        ),
        (
            FileKind::Packed,
            2,
            &[254],
            "bytes of an id at offset 4102 is 254",
        ),
        (
            FileKind::Packed,
            2,
            &[255],
            "bytes of an id at offset 4102 is 255",
        ),
        (FileKind::Vectors, 2, &[255], "bytes of an id"),
        (FileKind::Adjacency, 2, &[0], "is 0; expected 255"),
        (FileKind::Adjacency, 2, &[3], "is 3; expected 255"),
        (
            FileKind::Packed,
            3,
            &[3],
            "bytes of a length at offset 4103 is 3",
        ),
        (
            FileKind::Packed,
            3,
            &[0x50],
            "bytes of a length at offset 4103 is 80",
        ),
        (FileKind::Packed, 3, &[0xf4], "bytes of a length"),
        (FileKind::Packed, 3, &[0x80], "bytes of a length"),
        (FileKind::Packed, 3, &[0x0b], "bytes of a length"),
        (FileKind::Packed, 3, &[0x9a], "bytes of a length"),
        (
            FileKind::Vectors,
            3,
            &[0x18],
            "4103 is 24; expected no relocated page",
        ),
        (FileKind::Vectors, 3, &[0x01], "length of a list"),
        (
            FileKind::Vectors,
            8,
            &[1],
            "length of a list at offset 4108 is 1 or more",
        ),
        (FileKind::Adjacency, 3, &[0x11], "length of a vector"),
        (
            FileKind::Adjacency,
            12,
            &[2],
            "length of a vector at offset 4112 is 2 or more; expected none",
        ),
    ];
    for (kind, at, with, expected) in changes {
        let shape = shape(kind, 300);
        let mut page = build(shape, 0, 0, &nodes(kind));
        page[4 + at..4 + at + with.len()].copy_from_slice(with);
        reseal(&shape, &mut page, 0);
        for verify in [false, true] {
            let error = SlottedView::open(&shape, &page, 0, verify, "f").unwrap_err();
            let text = error.to_string();
            assert!(text.contains(expected), "{text}\n{expected}");
        }
    }

    let shape = shape(FileKind::Packed, 300);
    let page = build(shape, 0, 0, &nodes(FileKind::Packed));
    for length in [0, 1, BLOCK - 1] {
        let error = SlottedView::open(&shape, &page[..length], 0, false, "f").unwrap_err();
        assert!(matches!(error, LayoutError::Truncated { .. }), "{error}");
    }
    let twice = [&page[..], &page[..]].concat();
    SlottedView::open(&shape, &twice, 0, false, "f").unwrap_err();
}

#[test]
fn what_follows_the_records_must_be_zero() {
    let shape = shape(FileKind::Packed, 300);
    let mut page = build(shape, 0, 2, &[node(FileKind::Packed, 0, 10, 20)]);
    for at in [28 + 30, 4000, 4095] {
        page[at] = 7;
        reseal(&shape, &mut page, 2);
        let error = SlottedView::open(&shape, &page, 2, true, "f").unwrap_err();
        assert_eq!(
            error,
            LayoutError::Reserved {
                file: "f".into(),
                offset: 3 * 4096 + at as u64,
                found: 7
            }
        );
        SlottedView::open(&shape, &page, 2, false, "f").unwrap();
        page[at] = 0;
    }
}

#[test]
fn lengths_that_lead_out_of_the_page_are_refused() {
    let shape = shape(FileKind::Packed, 300);
    let nodes: Vec<Node> = (0..9)
        .map(|id| node(FileKind::Packed, id, 10 + id as usize, 20))
        .collect();
    let mut page = build(shape, 0, 0, &nodes);
    // The smallest length of a vector becomes 500, so that the eighth record ends outside.
    page[16..18].copy_from_slice(&500u16.to_le_bytes());
    reseal(&shape, &mut page, 0);
    let text = SlottedView::open(&shape, &page, 0, true, "f")
        .unwrap_err()
        .to_string();
    assert!(
        text.starts_with(
            "f: end of a record at offset 4103 is 4663 in slot 8; expected at most 4096"
        ),
        "{text}"
    );
    let view = SlottedView::open(&shape, &page, 0, false, "f").unwrap();
    let ends = |slot| view.record(slot).map(|record| record.vector.len());
    assert_eq!(ends(6), Ok(500));
    for slot in [7, 8] {
        let error = ends(slot).unwrap_err();
        assert_eq!(view.records().nth(slot).unwrap().unwrap_err(), error);
        assert_eq!(error.offset(), Some(4103));
    }
    for at in [12, 13, 14, 15] {
        let mut page = page.clone();
        page[at] = 255;
        let view = SlottedView::open(&shape, &page, 0, false, "f").unwrap();
        assert!(view.record(8).is_err());
    }
}

#[test]
fn a_byte_too_many_is_refused() {
    for kind in KINDS {
        let shape = shape(kind, room(kind, 1));
        let room = BLOCK - shape.header_bytes();
        let (list, vector) = match kind {
            FileKind::Packed => (1000, room - 1000),
            _ => (room, room),
        };
        let mut page = build(shape, 0, 0, &[node(kind, 1, list, vector)]);
        let at = if shape.has_lists() { 12 } else { 16 };
        let length = u32::from_le_bytes([page[at], page[at + 1], page[at + 2], page[at + 3]]);
        page[at..at + 4].copy_from_slice(&(length + 1).to_le_bytes());
        reseal(&shape, &mut page, 0);
        let view = SlottedView::open(&shape, &page, 0, false, "f").unwrap();
        view.record(0).unwrap_err();
        view.records().next().unwrap().unwrap_err();
        SlottedView::open(&shape, &page, 0, true, "f").unwrap_err();
    }

    let shape = shape(FileKind::Vectors, 0);
    let mut page = vec![0; BLOCK];
    page[6] = 1;
    let room = BLOCK - shape.header_bytes();
    page[4..6].copy_from_slice(&(room as u16).to_le_bytes());
    let view = SlottedView::open(&shape, &page, 0, false, "f").unwrap();
    assert_eq!((view.len(), view.id(room - 1)), (room, Ok(0)));
    page[4..6].copy_from_slice(&(room as u16 + 1).to_le_bytes());
    SlottedView::open(&shape, &page, 0, false, "f").unwrap_err();
}

#[test]
fn an_id_above_the_largest_is_refused() {
    let shape = shape(FileKind::Packed, 300);
    for ids in [[3u64, 4, 5], [9, 3, 5]] {
        let nodes = ids.map(|id| node(FileKind::Packed, id, 1, 1));
        let mut page = build(shape, 0, 0, &nodes);
        page[20..28].copy_from_slice(&(u64::MAX - 1).to_le_bytes());
        let view = SlottedView::open(&shape, &page, 0, false, "f").unwrap();
        let found: Vec<bool> = (0..3).map(|slot| view.id(slot).is_ok()).collect();
        assert_eq!(
            found.iter().filter(|&&ok| ok).count(),
            if ids[0] == 3 { 2 } else { 1 }
        );
        let slot = found.iter().position(|ok| !ok).unwrap();
        let text = view.id(slot).unwrap_err().to_string();
        assert!(
            text.starts_with("f: external id at offset 4116 is 18446744073709551614 + "),
            "{text}"
        );
        view.id(3).unwrap_err();
    }
}

#[test]
fn a_relocated_page_names_its_nodes() {
    let packed = shape(FileKind::Packed, 100);
    let nodes = [
        (300, vec![1, 2, 3], vec![4, 5]),
        (7, vec![6], vec![7, 8]),
        (0x0107, vec![], vec![9, 10]),
    ];
    let page = build_relocated(packed, 0, &[0x0001_0203, u32::MAX, 0x0102], &nodes);
    assert_eq!(page[4..8], [3, 0, 2, 0x01 | 8]);
    assert_eq!(page[8..20], [2, 1, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0]);
    assert_eq!(page[20..28], [7, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(page[28..40], [3, 2, 1, 0, 255, 255, 255, 255, 2, 1, 0, 0]);
    assert_eq!(page[40..43], [3, 1, 0]);
    assert_eq!(page[43..49], [0x25, 0x01, 0, 0, 0, 1]);
    assert_eq!(page[49..59], [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]);
    assert!(page[59..].iter().all(|&byte| byte == 0));
    let view = SlottedView::open(&packed, &page, 0, true, "packed").unwrap();
    assert!(view.is_relocated());
    assert_same(&view, &page, &nodes);
    assert_nodes(&view, &[0x0001_0203, u32::MAX, 0x0102]);

    let adjacency = shape(FileKind::Adjacency, 100);
    let nodes = [(0, vec![1; 4], vec![]), (0, vec![2; 4], vec![])];
    let page = build_relocated(adjacency, 0, &[9, 5], &nodes);
    assert_eq!(page[4..8], [2, 0, 255, 8]);
    assert_eq!(page[8..20], [5, 0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(page[20..28], [9, 0, 0, 0, 5, 0, 0, 0]);
    assert_eq!(page[28..36], [1, 1, 1, 1, 2, 2, 2, 2]);
    let view = SlottedView::open(&adjacency, &page, 0, true, "adjacency").unwrap();
    assert_same(&view, &page, &nodes);
    assert_nodes(&view, &[9, 5]);
}

#[test]
fn other_pages_have_consecutive_nodes() {
    for kind in KINDS {
        let shape = shape(kind, 300);
        let nodes: Vec<Node> = (0..4).map(|id| node(kind, id, 10, 20)).collect();
        for first in [0, 1, 4711, u32::MAX - 3] {
            let page = build(shape, first, 0, &nodes);
            let view = SlottedView::open(&shape, &page, 0, true, "f").unwrap();
            assert!(!view.is_relocated());
            let last = first + 3;
            assert_nodes(&view, &(first..=last).collect::<Vec<_>>());
        }
        let page = build(shape, u32::MAX - 1, 0, &nodes);
        let view = SlottedView::open(&shape, &page, 0, true, "f").unwrap();
        assert_eq!(view.node(1), Ok(u32::MAX));
        assert_eq!((view.slot_of(u32::MAX), view.slot_of(0)), (Some(1), None));
        let text = view.node(2).unwrap_err().to_string();
        let expected = "f: node of a record at offset 4104 is 4294967294 + 2; expected below 2^32";
        assert!(text.starts_with(expected), "{text}");
    }
}

#[test]
fn the_largest_record_fits_a_relocated_page() {
    for kind in [FileKind::Packed, FileKind::Adjacency] {
        for blocks in [1, 2, 5] {
            let room = room(kind, blocks);
            let shape = shape(kind, room);
            assert_eq!(shape.blocks_per_page(), blocks);
            let (list, vector) = match kind {
                FileKind::Packed => (room / 3, room - room / 3),
                _ => (room, 0),
            };
            let whole = node(kind, u64::MAX, list, vector);
            let mut builder = SlottedBuilder::new(shape);
            builder.start_relocated();
            let mut larger = whole.clone();
            larger.1.push(1);
            assert!(!builder.push_node(4, larger.0, &larger.1, &larger.2));
            assert!(builder.push_node(9, whole.0, &whole.1, &whole.2));
            assert!(!builder.push_node(5, 0, &[], &[]));
            let page = builder.finish(3);
            assert_ne!(page.last(), Some(&0));
            let view = SlottedView::open(&shape, page, 3, true, "f").unwrap();
            assert_same(&view, page, &[whole]);
            assert_nodes(&view, &[9]);
        }
    }
}

#[test]
fn a_finished_page_takes_more_records() {
    for kind in [FileKind::Packed, FileKind::Adjacency] {
        let shape = shape(kind, 300);
        let nodes: Vec<Node> = (0..5).map(|id| node(kind, id * 900, 10, 20)).collect();
        let numbers = [70, 3, 0x1_0000, 1, 2];
        let mut builder = SlottedBuilder::new(shape);
        builder.start(1);
        assert!(builder.push(1, &[255; 300], &[]));
        builder.start_relocated();
        for (at, (id, list, vector)) in nodes.iter().enumerate() {
            assert!(builder.push_node(numbers[at], *id, list, vector));
            let so_far = build_relocated(shape, 8 + at as u64, &numbers[..=at], &nodes[..=at]);
            assert_eq!(builder.finish(8 + at as u64), so_far);
            assert_eq!(builder.finish(8 + at as u64), so_far);
        }
        builder.start(6);
        for (at, (id, list, vector)) in nodes.iter().enumerate() {
            assert!(builder.push(*id, list, vector));
            assert_eq!(builder.finish(2), build(shape, 6, 2, &nodes[..=at]));
        }
    }
}

#[test]
fn nodes_that_contradict_each_other_are_refused() {
    for kind in [FileKind::Packed, FileKind::Adjacency] {
        for count in [3, 500] {
            let shape = shape(kind, 4);
            let nodes: Vec<Node> = (0..count).map(|id| node(kind, id, 0, 0)).collect();
            let numbers: Vec<u32> = (10..10 + count as u32).rev().collect();
            let page = build_relocated(shape, 0, &numbers, &nodes);
            let view = SlottedView::open(&shape, &page, 0, true, "f").unwrap();
            assert_nodes(&view, &numbers);
            let at = shape.header_bytes();
            let refused = |change: &dyn Fn(&mut Vec<u8>)| {
                let mut page = page.clone();
                change(&mut page);
                reseal(&shape, &mut page, 0);
                SlottedView::open(&shape, &page, 0, false, "f").unwrap();
                let error = SlottedView::open(&shape, &page, 0, true, "f").unwrap_err();
                error.to_string()
            };
            let text = refused(&|page| page.copy_within(at..at + 4, at + 4));
            let offset = BLOCK + at;
            let expected = format!(
                "f: node of a record at offset {offset} is {}, twice; expected each node once",
                numbers[0]
            );
            assert!(text.starts_with(&expected), "{text}");
            for first in [0, 9, 11] {
                let text = refused(&|page| page[8] = first);
                let expected = format!(
                    "f: number of the page's first node at offset 4104 is {first}; expected 10"
                );
                assert!(text.starts_with(&expected), "{text}");
            }
            let text = refused(&|page| page[at..at + 4].copy_from_slice(&[1, 0, 0, 0]));
            assert!(text.contains("is 10; expected"), "{text}");
        }
    }
    let shape = shape(FileKind::Adjacency, 4);
    let mut page = vec![0; BLOCK];
    page[6..8].copy_from_slice(&[NO_IDS, RELOCATED]);
    let room = (BLOCK - shape.header_bytes()) / NODE;
    page[4..6].copy_from_slice(&(room as u16).to_le_bytes());
    let view = SlottedView::open(&shape, &page, 0, false, "f").unwrap();
    assert_eq!((view.node(room - 1), view.slot_of(1)), (Ok(0), None));
    page[4..6].copy_from_slice(&(room as u16 + 1).to_le_bytes());
    SlottedView::open(&shape, &page, 0, false, "f").unwrap_err();
}

#[test]
#[should_panic(expected = "a relocated page in vectors")]
fn vectors_are_not_relocated() {
    SlottedBuilder::new(shape(FileKind::Vectors, 300)).start_relocated();
}

#[test]
#[should_panic(expected = "`push_node` on a page that is not relocated")]
fn other_pages_name_no_nodes() {
    let mut builder = SlottedBuilder::new(shape(FileKind::Packed, 300));
    builder.start_relocated();
    builder.start(0);
    builder.push_node(0, 0, &[1], &[1]);
}

#[test]
#[should_panic(expected = "`push` on a relocated page, which needs `push_node`")]
fn a_relocated_page_takes_no_record_without_a_node() {
    let mut builder = SlottedBuilder::new(shape(FileKind::Packed, 300));
    builder.start_relocated();
    builder.push(0, &[1], &[1]);
}

#[test]
#[should_panic(expected = "node 7 twice on a page")]
fn a_node_stands_on_a_page_once() {
    let mut builder = SlottedBuilder::new(shape(FileKind::Packed, 300));
    builder.start_relocated();
    builder.push_node(7, 0, &[1], &[1]);
    builder.push_node(7, 1, &[1], &[1]);
}

#[test]
#[should_panic(expected = "a page has one record or more")]
fn no_relocated_page_is_empty() {
    let mut builder = SlottedBuilder::new(shape(FileKind::Packed, 300));
    builder.start_relocated();
    builder.finish(0);
}

#[test]
fn impossible_shapes_are_refused() {
    for (kind, dim, degree, text) in [
        (
            FileKind::Graph,
            1,
            1,
            "the file kind is 1; the format allows slotted pages in",
        ),
        (FileKind::Chunks, 1, 1, "the file kind is 8"),
        (
            FileKind::Packed,
            0,
            64,
            "the dimension is 0; the format allows 1 to 65536",
        ),
        (FileKind::Packed, 65_537, 64, "the dimension is 65537"),
        (FileKind::Vectors, usize::MAX, 64, "the dimension"),
        (
            FileKind::Adjacency,
            1,
            0,
            "the degree R is 0; the format allows 1 to 4096",
        ),
        (FileKind::Adjacency, 1, 4097, "the degree R is 4097"),
    ] {
        let error = SlottedShape::new(kind, Element::F32, dim, degree, 10).unwrap_err();
        assert!(error.to_string().starts_with(text), "{error}");
    }
    let shape = SlottedShape::new(FileKind::Packed, Element::F16, 65_536, 4096, 200_000).unwrap();
    assert_eq!(
        (shape.kind(), shape.element()),
        (FileKind::Packed, Element::F16)
    );
    assert_eq!((shape.dim(), shape.degree()), (65_536, 4096));
    assert_eq!(
        (shape.vector_bytes(), shape.blocks_per_page()),
        (131_072, 49)
    );
    assert_eq!(shape.file_offset(0), 4096);
    assert_eq!(shape.file_offset(3), 4096 * (1 + 3 * 49));
    assert_eq!(shape.file_offset(u64::MAX), u64::MAX);
}

#[test]
fn header_round_trip_and_contradictions() {
    for kind in KINDS {
        let shape = SlottedShape::new(kind, Element::I8, 100, 32, 9000).unwrap();
        let facts = SlottedFacts {
            first: 4000,
            nodes: 12_345,
            pages: 700,
        };
        let header = shape.header(4000, 12_345, 700);
        assert_eq!(header.length, 4096 * (1 + 700 * 3));
        let back = FileHeader::decode(&header.encode(), "f").unwrap();
        assert_eq!(
            SlottedShape::from_header(&back, "f").unwrap(),
            (shape, facts)
        );

        for (at, value, what) in [
            (0, 77, "element code at offset 48 is 77"),
            (0, 258, "element code"),
            (4, 0, "dimension and degree at offset 52"),
            (8, 5000, "dimension and degree"),
            (
                12,
                0,
                "blocks of a page at offset 60 is 0; expected 1 to 256",
            ),
            (12, 257, "blocks of a page"),
            (12, u32::MAX, "blocks of a page"),
            (12, 4, "file length at offset 32"),
            (16, u32::MAX, "first node and number of nodes at offset 64"),
            (24, 1, "first node and number of nodes"),
            (
                20,
                699,
                "number of pages at offset 76 is 700; expected enough for 699",
            ),
            (20, 0, "number of pages"),
            (28, 699, "file length"),
            (28, 0, "number of pages"),
            (32, 1, "number of pages"),
        ] {
            let mut header = header.clone();
            header.fields[at..at + 4].copy_from_slice(&u32::to_le_bytes(value));
            let text = SlottedShape::from_header(&header, "f")
                .unwrap_err()
                .to_string();
            assert!(text.contains(what), "{text}\n{what}");
        }
        let mut header = header.clone();
        header.fields.push(0);
        SlottedShape::from_header(&header, "f").unwrap_err();
        for length in 0..36 {
            header.fields.truncate(35 - length);
            SlottedShape::from_header(&header, "f").unwrap_err();
        }
        header.kind = FileKind::Graph;
        let text = SlottedShape::from_header(&header, "f")
            .unwrap_err()
            .to_string();
        assert!(
            text.contains("is graph; packed, adjacency, layered or vectors expected"),
            "{text}"
        );
    }
    let shape = shape(FileKind::Packed, 300);
    SlottedShape::from_header(&shape.header(0, 0, 0), "f").unwrap();
    SlottedShape::from_header(&shape.header(u32::MAX - 5, 5, 1), "f").unwrap();
    SlottedShape::from_header(&shape.header(u32::MAX - 5, 6, 1), "f").unwrap_err();
}

#[test]
#[should_panic(expected = "a vector in adjacency")]
fn lists_have_no_vectors() {
    SlottedBuilder::new(shape(FileKind::Adjacency, 300)).push(0, &[1], &[1]);
}

#[test]
#[should_panic(expected = "a list in vectors")]
fn vectors_have_no_lists() {
    SlottedBuilder::new(shape(FileKind::Vectors, 300)).push(0, &[1], &[1]);
}

#[test]
#[should_panic(expected = "a page has one record or more")]
fn no_page_is_empty() {
    SlottedBuilder::new(shape(FileKind::Vectors, 300)).finish(0);
}

fn any_kind() -> impl Strategy<Value = FileKind> {
    (0..KINDS.len()).prop_map(|at| KINDS[at])
}

fn any_lengths() -> impl Strategy<Value = (usize, usize)> {
    (0usize..300, 0usize..4).prop_map(|(least, spread)| (least, [0, 200, 20_000, 90_000][spread]))
}

fn any_ids() -> impl Strategy<Value = (u64, u64)> {
    (any::<u64>(), 0u32..=64).prop_map(|(base, bits)| {
        let spread = u64::MAX.checked_shr(64 - bits).unwrap_or(0);
        (base.min(u64::MAX - spread), spread)
    })
}

fn number_of(seed: u64, slot: usize) -> u32 {
    (slot as u32).wrapping_mul(0x9e37_79b1) ^ seed as u32
}

fn fill(
    kind: FileKind,
    lists: (usize, usize),
    vectors: (usize, usize),
    ids: (u64, u64),
    (ascending, most): (bool, usize),
    relocated: bool,
    seed: u64,
) -> (SlottedShape, Vec<Node>, SlottedBuilder) {
    let shape = shape(kind, lists.0 + lists.1 + vectors.0 + vectors.1);
    let mut builder = SlottedBuilder::new(shape);
    let relocated = relocated && shape.relocates();
    if relocated {
        builder.start_relocated();
    } else {
        builder.start(seed as u32);
    }
    let mut number = numbers(seed);
    let mut next = || number.next().unwrap();
    let mut nodes = Vec::new();
    while nodes.len() < most {
        let length = |(least, spread): (usize, usize), by: u64| {
            // Extreme lengths are frequent, so that the widths are as large as the spread needs.
            least + [0, spread, by as usize % (spread + 1)][by as usize / 7 % 3]
        };
        let id = if ascending {
            ids.0.wrapping_add(nodes.len() as u64)
        } else {
            let by = next() << 30 ^ next();
            ids.0 + [0, ids.1, by.checked_rem(ids.1).unwrap_or(0)][by as usize / 7 % 3]
        };
        let (id, list, vector) = node(kind, id, length(lists, next()), length(vectors, next()));
        let fits = if relocated {
            builder.push_node(number_of(seed, nodes.len()), id, &list, &vector)
        } else {
            builder.push(id, &list, &vector)
        };
        if !fits {
            break;
        }
        nodes.push((id, list, vector));
    }
    (shape, nodes, builder)
}

proptest! {
    #[test]
    fn any_page_round_trips(
        kind in any_kind(),
        lists in any_lengths(),
        vectors in any_lengths(),
        ids in any_ids(),
        order in (any::<bool>(), 1usize..400),
        page in 0u64..1 << 40,
        relocated: bool,
        seed: u64,
    ) {
        let (shape, nodes, mut builder) = fill(kind, lists, vectors, ids, order, relocated, seed);
        prop_assert!(!nodes.is_empty());
        prop_assert_eq!(builder.len(), nodes.len());
        let bytes = builder.finish(page);
        prop_assert_eq!(bytes.len(), shape.page_bytes());
        let view = SlottedView::open(&shape, bytes, page, true, "f").unwrap();
        assert_same(&view, bytes, &nodes);
        prop_assert_eq!(view.is_relocated(), relocated && shape.relocates());
        if view.is_relocated() {
            let numbers: Vec<u32> = (0..nodes.len()).map(|slot| number_of(seed, slot)).collect();
            assert_nodes(&view, &numbers);
        } else {
            prop_assert_eq!(view.first(), seed as u32);
        }
        for (slot, (id, _, _)) in nodes.iter().enumerate() {
            match kind {
                FileKind::Adjacency => prop_assert!(view.id(slot).is_err()),
                _ => prop_assert_eq!(view.id(slot).unwrap(), *id),
            }
        }
        prop_assert!(view.record(nodes.len()).is_err() && view.id(nodes.len()).is_err());
    }

    #[test]
    fn damaged_pages_never_panic(
        kind in any_kind(),
        lists in any_lengths(),
        vectors in any_lengths(),
        ids in any_ids(),
        seed: u64,
        page: u64,
        (verify, sealed, relocated) in any::<(bool, bool, bool)>(),
        // The damage is often in the header and the arrays, where it has the most effect.
        damage in prop::collection::vec((any::<prop::sample::Index>(), 0usize..4, any::<u8>()), 0..6),
    ) {
        let (shape, _, mut builder) = fill(kind, lists, vectors, ids, (false, 50), relocated, seed);
        let mut bytes = builder.finish(page).to_vec();
        for (at, near, byte) in damage {
            let reach = [24, 24, 200, bytes.len()][near].min(bytes.len() - 4 * shape.blocks);
            bytes[4 * shape.blocks + at.index(reach)] = byte;
        }
        if sealed {
            reseal(&shape, &mut bytes, page);
        }
        read_all(&shape, &bytes, page, verify)?;
    }

    #[test]
    fn arbitrary_bytes_never_panic(
        kind in any_kind(),
        largest in 0usize..9000,
        seed: u64,
        page: u64,
        (verify, sealed, plausible, relocated) in any::<(bool, bool, bool, bool)>(),
    ) {
        let shape = shape(kind, largest);
        let mut bytes: Vec<u8> = numbers(seed).map(|n| n as u8).take(shape.page_bytes()).collect();
        if plausible {
            let at = 4 * shape.blocks;
            bytes[at + 1] = 0;
            let widths = [0, 1, 2, 4];
            let list = if shape.has_lists() { widths[seed as usize % 4] } else { 0 };
            let vector = if shape.has_vectors() { widths[seed as usize / 4 % 4] } else { 0 };
            bytes[at + 2] = if shape.has_ids() { (seed % 9) as u8 } else { NO_IDS };
            bytes[at + 3] = vector << 4 | list | if relocated { RELOCATED } else { 0 };
            bytes[at + 8..at + 16].fill(0);
        }
        if sealed {
            reseal(&shape, &mut bytes, page);
        }
        read_all(&shape, &bytes, page, verify)?;
    }

    #[test]
    fn arbitrary_headers_never_panic(
        kind in 0..FileKind::ALL.len(),
        fields in prop::collection::vec(any::<u8>(), 0..60),
        length: u64,
    ) {
        let header = FileHeader::new(FileKind::ALL[kind], length, fields);
        let _ = SlottedShape::from_header(&header, "f");
    }
}

fn read_all(
    shape: &SlottedShape,
    bytes: &[u8],
    page: u64,
    verify: bool,
) -> Result<(), TestCaseError> {
    let Ok(view) = SlottedView::open(shape, bytes, page, verify, "f") else {
        return Ok(());
    };
    prop_assert!((1..=MAX_RECORDS).contains(&view.len()));
    for (slot, of_all) in view.records().enumerate() {
        let _ = view.id(slot);
        if let Ok(number) = view.node(slot) {
            let found = view.slot_of(number);
            if view.is_relocated() && !verify {
                prop_assert!(found.is_some_and(|found| found <= slot));
            } else {
                prop_assert_eq!(found, Some(slot));
            }
        }
        let record = view.record(slot);
        prop_assert_eq!(&record, &of_all);
        if let Ok(record) = record {
            let length = record.list.len() + record.vector.len();
            prop_assert!(record.list_and_rest.len() >= length);
            prop_assert!(record.list_and_rest.starts_with(record.list));
            prop_assert!(record.list_and_rest[record.list.len()..].starts_with(record.vector));
        } else {
            prop_assert!(!verify);
        }
    }
    prop_assert!(view.record(view.len()).is_err());
    prop_assert!(view.node(view.len()).is_err());
    Ok(())
}
