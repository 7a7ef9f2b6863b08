use proptest::prelude::*;

use super::*;

const V: usize = 3;

fn sample() -> ChunksFile {
    ChunksFile {
        model: vec![7, 8, 9, 10, 11],
        chunk_vectors: 4,
        chunks: vec![
            Chunk {
                first_page: 0,
                pages: 2,
                boundaries: vec![102, 103],
                base: Some(vec![1, 2, 3]),
            },
            Chunk {
                first_page: 2,
                pages: 3,
                boundaries: vec![104, 105, 107],
                base: None,
            },
            Chunk {
                first_page: 5,
                pages: 1,
                boundaries: vec![109],
                base: Some(vec![4, 5, 6]),
            },
        ],
        dead: DeadSlots::default(),
        runs: RunsOn::default(),
    }
}

const SPAN: SegmentSpan = SegmentSpan {
    first: 100,
    nodes: 10,
    garbage: 0,
    pages: 6,
};

/// Nodes 0 to 5. The dead records are slots 0 and 2 of the first page, page 3, and the last record.
fn kept() -> ChunksFile {
    sample().with_dead(100, 0, &[(0, 0), (0, 2), (3, 0), (5, 1)])
}

const KEPT: SegmentSpan = SegmentSpan {
    first: 0,
    nodes: 6,
    garbage: 4,
    pages: 6,
};

fn decode(payload: &[u8]) -> Result<ChunksFile, LayoutError> {
    ChunksFile::decode(payload, SPAN, V, "chunks-0")
}

fn refused(change: impl FnOnce(&mut ChunksFile)) -> String {
    let mut file = sample();
    change(&mut file);
    decode(&file.encode()).unwrap_err().to_string()
}

#[test]
fn round_trips() {
    let file = sample();
    assert_eq!(decode(&file.encode()).unwrap(), file);
    assert!(file.counts(100).eq([3, 1, 1, 1, 2, 2]));
    let pages = file.pages(100);
    assert_eq!((pages.nodes(), pages.pages()), (10, 6));
    assert_eq!(pages.page_of(107), 4);
    let empty = ChunksFile {
        chunk_vectors: 1,
        ..ChunksFile::default()
    };
    let back = ChunksFile::decode(&empty.encode(), SegmentSpan::default(), V, "chunks-0").unwrap();
    assert_eq!(back, empty);
}

#[test]
fn bytes_stand_where_the_table_says() {
    let bytes = sample().encode();
    assert_eq!(bytes[..12], [5, 0, 0, 0, 4, 0, 0, 0, 3, 0, 0, 0]);
    assert_eq!(bytes[12..17], [7, 8, 9, 10, 11]);
    assert_eq!(bytes[17..29], [0, 0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0]);
    assert_eq!(bytes[29..37], [102, 0, 0, 0, 103, 0, 0, 0]);
    assert_eq!(bytes[37..40], [1, 2, 3]);
    // By the paper's formula, a chunk has 4 bytes for each page, 12 more bytes, and the base
    // vector.
    assert_eq!(bytes.len(), 17 + 3 * 12 + 6 * 4 + 2 * V);
}

#[test]
fn a_node_has_one_chunk() {
    let file = sample();
    for node in 100..110 {
        let chunk = file.chunk_of(100, node).unwrap();
        assert_eq!(chunk, &file.chunks[(node as usize - 100) / 4], "{node}");
    }
    for node in [0, 99, 110, 111, 112, u32::MAX] {
        assert_eq!(file.chunk_of(100, node), None, "{node}");
    }
    assert_eq!(ChunksFile::default().chunk_of(0, 0), None);
}

#[test]
fn every_contradiction_is_refused() {
    let text = refused(|file| file.chunks[1].first_page = 3);
    // The first chunk has bytes 17..40 of the payload; the first block adds 4 bytes of checksum.
    assert!(
        text.starts_with(
            "chunks-0: first page of a chunk at offset 4140 is 3; expected 2. Run `stratann verify`"
        ),
        "{text}"
    );
    for (text, change) in [
        (
            "number of chunks at offset 4108 is 2; expected 3 for 10 nodes, 4 nodes a chunk",
            (|file| drop(file.chunks.pop())) as fn(&mut ChunksFile),
        ),
        ("nodes of a chunk at offset 4104 is 0", |file| {
            file.chunk_vectors = 0
        }),
        ("number of chunks", |file| file.chunk_vectors = 3),
        ("number of chunks", |file| file.chunk_vectors = 5),
        ("pages of a chunk", |file| {
            file.chunks[0].pages = 0;
            file.chunks[0].boundaries.clear();
        }),
        ("is 104; expected 103 to 103", |file| {
            file.chunks[0].boundaries[1] = 104
        }),
        ("is 102; expected 103 to 103", |file| {
            file.chunks[0].boundaries[1] = 102
        }),
        ("is 99; expected 100 to 103", |file| {
            file.chunks[0].boundaries[0] = 99
        }),
        ("is 101; expected 103 to 103", |file| {
            file.chunks[0].boundaries[1] = 101
        }),
        ("last node of a chunk", |file| {
            file.chunks[1].boundaries[2] = 106
        }),
        ("is 103; expected 104 to 107", |file| {
            file.chunks[1].boundaries[0] = 103
        }),
        ("is 110; expected 108 to 109", |file| {
            file.chunks[2].boundaries[0] = 110
        }),
        ("last node of a chunk", |file| {
            file.chunks[2].boundaries[0] = 108
        }),
        ("base vector", |file| file.chunks[2].base = Some(vec![4, 5])),
        ("payload length", |file| {
            file.chunks[2].base = Some(vec![4, 5, 6, 7])
        }),
        ("payload length", |file| {
            file.model.truncate(3);
            file.chunks[2].base = Some(vec![0; V + 2]);
        }),
    ] {
        let found = refused(change);
        assert!(found.contains(text), "{found}\n{text}");
    }
    let mut bytes = sample().encode();
    bytes[25] = 8;
    let text = decode(&bytes).unwrap_err().to_string();
    assert!(text.contains("is 8; expected 0 to 7"), "{text}");
}

#[test]
fn a_segment_of_another_size_is_refused() {
    let bytes = sample().encode();
    for (first, nodes, pages, vector_bytes) in [
        (101, 10, 6, V),
        (99, 10, 6, V),
        (100, 11, 6, V),
        (100, 9, 6, V),
        (100, 10, 5, V),
        (100, 10, 7, V),
        (100, 10, 6, V - 1),
        (100, 10, 6, V + 1),
        (100, 0, 0, V),
        (u32::MAX, u64::MAX, u64::MAX, usize::MAX),
    ] {
        let span = SegmentSpan {
            first,
            nodes,
            pages,
            garbage: 0,
        };
        ChunksFile::decode(&bytes, span, vector_bytes, "f").unwrap_err();
    }
    for length in 0..bytes.len() {
        decode(&bytes[..length]).unwrap_err();
    }
}

#[test]
fn a_page_holds_at_most_what_its_count_holds() {
    let file = |last| ChunksFile {
        chunk_vectors: last + 1,
        chunks: vec![Chunk {
            first_page: 0,
            pages: 1,
            boundaries: vec![last],
            base: None,
        }],
        ..ChunksFile::default()
    };
    let decode = |last: u32| {
        let span = SegmentSpan {
            nodes: u64::from(last) + 1,
            pages: 1,
            ..SegmentSpan::default()
        };
        ChunksFile::decode(&file(last).encode(), span, V, "f")
    };
    assert!(decode(65_534).unwrap().counts(0).eq([65_535]));
    let text = decode(65_535).unwrap_err().to_string();
    assert!(text.contains("is 65535; expected 0 to 65534"), "{text}");
}

#[test]
fn garbage_stands_where_the_table_says() {
    let file = kept();
    assert!(file.counts(0).eq([1, 1, 1, 0, 2, 1]));
    assert!(file.records(0).eq([3, 1, 1, 1, 2, 2]));
    let boundaries: Vec<_> = file
        .chunks
        .iter()
        .map(|chunk| &chunk.boundaries[..])
        .collect();
    assert_eq!(boundaries, [&[0, 1][..], &[2, 2, 4], &[5]]);
    let bytes = file.encode();
    // The bits and the base vector of the first chunk, its numbers of dead slots, and these slots.
    assert_eq!(bytes[25..29], [3, 0, 0, 0]);
    assert_eq!(bytes[37..40], [1, 2, 3]);
    assert_eq!(bytes[40..48], [2, 0, 0, 0, 0, 0, 2, 0]);
    assert_eq!(bytes[48 + 8..48 + 12], [2, 0, 0, 0]);
    assert_eq!(bytes[48 + 24..48 + 32], [0, 0, 1, 0, 0, 0, 0, 0]);
    let with = 2 * 6 + 2 * 4;
    assert_eq!(bytes.len(), sample().encode().len() + with);
    assert_eq!(ChunksFile::decode(&bytes, KEPT, V, "f").unwrap(), file);
    // Without dead records, the format is the same as before.
    let moved = sample().with_dead(100, 40, &[]);
    let span = SegmentSpan { first: 40, ..SPAN };
    assert_eq!(
        ChunksFile::decode(&moved.encode(), span, V, "f").unwrap(),
        moved
    );
    assert_eq!(moved.encode().len(), sample().encode().len());
    // If all records of the first page are dead and the first node is 0, the page's last node is
    // -1.
    let begins = sample().with_dead(100, 0, &[(0, 0), (0, 1), (0, 2)]);
    assert_eq!(begins.chunks[0].boundaries, [u32::MAX, 0]);
    let span = SegmentSpan {
        first: 0,
        nodes: 7,
        garbage: 3,
        pages: 6,
    };
    assert_eq!(
        ChunksFile::decode(&begins.encode(), span, V, "f").unwrap(),
        begins
    );
    assert_eq!(begins.pages(0).page_of(0), 1);
    assert_eq!(begins.chunk_of(0, 0), Some(&begins.chunks[0]));
}

/// The last records of pages 2, 3 and 5 continue. No record starts on page 4, nor on page 6, which
/// is added.
fn running_on() -> (ChunksFile, SegmentSpan) {
    let mut file = sample();
    file.chunks[1].boundaries = vec![104, 107, 107];
    file.chunks[2].boundaries = vec![109, 109];
    file.chunks[2].pages = 2;
    for page in [2, 3, 5] {
        file.runs.set(page);
    }
    (file, SegmentSpan { pages: 7, ..SPAN })
}

#[test]
fn what_runs_on_stands_where_the_table_says() {
    let (file, span) = running_on();
    assert!(file.counts(100).eq([3, 1, 1, 3, 0, 2, 0]));
    let bytes = file.encode();
    assert_eq!(bytes[48..52], [4, 0, 0, 0]);
    assert_eq!(bytes[64..65], [0b11]);
    assert_eq!(bytes[65 + 8..65 + 12], [5, 0, 0, 0]);
    assert_eq!(bytes[bytes.len() - 1], 1);
    let back = ChunksFile::decode(&bytes, span, V, "f").unwrap();
    assert_eq!(back, file);
    let pages = back.pages(100);
    assert_eq!((pages.page_of(107), pages.page_of(108)), (3, 5));
    let kept = file.with_dead(100, 0, &[(3, 0), (3, 2), (5, 1)]);
    assert!(kept.records(0).eq(file.counts(100)));
    let span = SegmentSpan {
        first: 0,
        nodes: 7,
        garbage: 3,
        ..span
    };
    let back = ChunksFile::decode(&kept.encode(), span, V, "f").unwrap();
    assert_eq!((&back, &back.runs), (&kept, &file.runs));
}

#[test]
fn every_contradiction_of_what_runs_on_is_refused() {
    let (file, span) = running_on();
    let refused = |file: &ChunksFile, at: Option<(usize, u8)>| {
        let mut bytes = file.encode();
        if let Some((at, value)) = at {
            bytes[at] = value;
        }
        let error = ChunksFile::decode(&bytes, span, V, "chunks-0").unwrap_err();
        error.to_string()
    };
    // By these bits no page continues, or the last page does, or a page beyond the end.
    for bits in [0, 0b111, 0b1011] {
        let text = refused(&file, Some((64, bits)));
        let expected = "bits of pages with a spanning record at offset 4164";
        assert!(text.contains(expected), "{bits}: {text}");
    }
    let text = refused(&file, Some((64, 1)));
    assert!(text.contains("is 107; expected 108 to"), "{text}");
    let mut other = file.clone();
    other.runs = RunsOn::default();
    let text = refused(&other, None);
    assert!(text.contains("last node of a page"), "{text}");
    other = file.clone();
    other.runs.set(4);
    let text = refused(&other, None);
    assert!(text.contains("but not of the last"), "{text}");
    let bytes = file.encode();
    for length in 0..bytes.len() {
        ChunksFile::decode(&bytes[..length], span, V, "f").unwrap_err();
    }
}

#[test]
fn every_contradiction_of_garbage_is_refused() {
    let bytes = kept().encode();
    let refused = |bytes: &[u8], span| {
        let error = ChunksFile::decode(bytes, span, V, "chunks-0").unwrap_err();
        error.to_string()
    };
    for (at, value, text) in [
        (
            25,
            8,
            "bits of a chunk at offset 4125 is 8; expected 0 to 7",
        ),
        (25, 1, "last node of a chunk"),
        (29, 1, "last node of a page"),
        (33, 0, "is 0; expected 1 to 1"),
        // On page 1, one record is a node. On page 0, too many records would be dead.
        (42, 1, "last node of a page"),
        (40, 5, "last node of a page"),
        (41, 9, "cut off after"),
        (40, 1, "last node of a"),
        (
            44,
            2,
            "dead slot of a page at offset 4146 is 2; expected 3 or more, below 3",
        ),
        (
            46,
            3,
            "dead slot of a page at offset 4146 is 3; expected 1 or more, below 3",
        ),
        (46, 0, "is 0; expected 1 or more, below 3"),
    ] {
        let mut bytes = bytes.clone();
        bytes[at] = value;
        let found = refused(&bytes, KEPT);
        assert!(found.contains(text), "{at}: {found}\n{text}");
    }
    for length in 0..bytes.len() {
        refused(&bytes[..length], KEPT);
    }
    let more = |nodes, garbage| SegmentSpan {
        nodes,
        garbage,
        ..KEPT
    };
    for span in [more(10, 0), more(5, 5), more(7, 3), more(6, 5), more(0, 10)] {
        refused(&bytes, span);
    }
    let text = refused(&bytes, SegmentSpan { first: 0, ..SPAN });
    assert!(text.contains("dead slots of all chunks"), "{text}");
    // The bit says that the chunk has dead slots, but all counts of them are zero.
    let mut bytes = sample().encode();
    bytes[25] = 3;
    bytes.splice(40..40, [0; 4]);
    let text = refused(&bytes, SPAN);
    assert!(
        text.contains("number of dead slots of a chunk with garbage"),
        "{text}"
    );
}

#[test]
fn the_formula_is_the_papers() {
    // The example of section 3.3 has C = 4 MiB, V = 128 bytes and no savings.
    let overhead = chunk_overhead(4 << 20, 1.0, 128);
    assert!((overhead - (140.0 / 4_194_304.0 + 1.0 / 1024.0)).abs() < 1e-12);
    assert_eq!(chunk_bytes_for(overhead, 1.0, 128), Some(4 << 20));
    assert_eq!(chunk_bytes_for(1.0 / 1024.0, 1.0, 128), None);
    assert_eq!(chunk_bytes_for(0.0005, 1.0, 128), None);
    assert_eq!(chunk_bytes_for(f64::NAN, 1.0, 128), None);
    assert_eq!(chunk_bytes_for(-1.0, 0.5, 128), None);
    assert_eq!(chunk_bytes_for(0.0 + f64::MIN_POSITIVE, 0.0, 128), None);
    assert_eq!(chunk_bytes_for(140.0, 0.0, 128), Some(1));
    assert_eq!(chunk_overhead(0, 1.0, 128), f64::INFINITY);
}

fn any_segment() -> impl Strategy<Value = (ChunksFile, SegmentSpan)> {
    let pages = prop::collection::vec(0u32..40, 0..60);
    let model = prop::collection::vec(any::<u8>(), 0..20);
    (any::<u16>(), pages, 1u32..200, model, any::<u64>()).prop_map(
        |(first, mut pages, chunk_vectors, model, bases)| {
            let first = u32::from(first);
            let mut file = ChunksFile {
                model,
                chunk_vectors,
                ..ChunksFile::default()
            };
            let (mut nodes, mut number) = (0u32, 0);
            pages.reverse();
            while let Some(mut count) = pages.pop() {
                if count == 0 || bases >> (number % 61) & 3 == 0 {
                    let Some(chunk) = file
                        .chunks
                        .last_mut()
                        .filter(|_| count == 0 || !nodes.is_multiple_of(chunk_vectors))
                    else {
                        continue;
                    };
                    file.runs.set(number - 1);
                    if count == 0 {
                        number += 1;
                        chunk.pages += 1;
                        chunk.boundaries.push(first + nodes - 1);
                        continue;
                    }
                }
                let room = chunk_vectors - nodes % chunk_vectors;
                if count > room {
                    pages.push(count - room);
                    count = room;
                }
                if nodes.is_multiple_of(chunk_vectors) {
                    let has_base = bases >> (file.chunks.len() % 64) & 1 == 1;
                    file.chunks.push(Chunk {
                        first_page: number,
                        base: has_base.then(|| vec![number as u8; V]),
                        ..Chunk::default()
                    });
                }
                nodes += count;
                number += 1;
                let chunk = file.chunks.last_mut().unwrap();
                chunk.pages += 1;
                chunk.boundaries.push(first + nodes - 1);
            }
            let span = SegmentSpan {
                first,
                nodes: nodes.into(),
                garbage: 0,
                pages: number.into(),
            };
            (file, span)
        },
    )
}

proptest! {
    #[test]
    fn any_segment_round_trips((file, span) in any_segment()) {
        let SegmentSpan { first, nodes, pages, .. } = span;
        let back = ChunksFile::decode(&file.encode(), span, V, "f").unwrap();
        prop_assert_eq!(&back, &file);
        prop_assert!(file.records(first).eq(file.counts(first)));
        let directory = file.pages(first);
        prop_assert_eq!((directory.nodes(), directory.pages()), (nodes, pages));
        for node in (first..).take(nodes as usize) {
            let chunk = file.chunk_of(first, node).unwrap();
            let page = directory.page_of(node) - u64::from(chunk.first_page);
            prop_assert!(node <= chunk.boundaries[page as usize]);
            prop_assert!(page == 0 || node > chunk.boundaries[page as usize - 1]);
        }
    }

    #[test]
    fn any_garbage_round_trips(
        (file, span) in any_segment(),
        to in 0u32..1000,
        fates in prop::collection::vec(0u8..4, 1..500),
    ) {
        let mut records = Vec::new();
        for (page, count) in (0u32..).zip(file.counts(span.first)) {
            for slot in 0..count {
                let fate = fates[records.len() % fates.len()];
                records.push((page, slot, fate));
            }
        }
        let dying = |when: u8| {
            let records = records.iter().filter(|record| record.2 == when);
            records.map(|&(page, slot, _)| (page, slot)).collect::<Vec<_>>()
        };
        let first = file.with_dead(span.first, 7, &dying(0));
        let kept = first.with_dead(7, to, &dying(1));
        let garbage = (dying(0).len() + dying(1).len()) as u64;
        let span = SegmentSpan { first: to, nodes: span.nodes - garbage, garbage, ..span };
        let back = ChunksFile::decode(&kept.encode(), span, V, "f").unwrap();
        prop_assert_eq!(&back, &kept);
        prop_assert_eq!(kept.dead.count(), garbage);
        prop_assert!(kept.records(to).map(usize::from).eq(
            (0..span.pages as u32).map(|page| records.iter().filter(|record| record.0 == page).count())
        ));
        let directory = kept.pages(to);
        let left = records.iter().filter(|record| record.2 > 1);
        for (node, &(page, slot, _)) in (to..).zip(left) {
            prop_assert_eq!(directory.page_of(node), u64::from(page));
            let nth = node - directory.first_of(page.into()).unwrap();
            prop_assert_eq!(kept.dead.live_slot(page.into(), nth as usize), usize::from(slot));
            let chunk = kept.chunk_of(to, node).unwrap();
            prop_assert!((chunk.first_page..chunk.first_page + chunk.pages).contains(&page));
        }
    }

    #[test]
    fn arbitrary_bytes_never_panic(
        bytes in prop::collection::vec(any::<u8>(), 0..200),
        (first, nodes, garbage, pages) in any::<(u32, u64, u64, u64)>(),
        at: prop::sample::Index,
        flip: u8,
    ) {
        let span = SegmentSpan { first, nodes, garbage, pages };
        let _ = ChunksFile::decode(&bytes, span, V, "f");
        for (file, span) in [(sample(), SPAN), (kept(), KEPT)] {
            let mut close = file.encode();
            let at = at.index(close.len());
            close[at] ^= flip;
            if let Ok(file) = ChunksFile::decode(&close, span, V, "f") {
                prop_assert_eq!(file.counts(span.first).map(u64::from).sum::<u64>(), span.nodes);
                prop_assert_eq!(file.records(span.first).map(u64::from).sum::<u64>(), 10);
                prop_assert_eq!(file.dead.count(), span.garbage);
            }
        }
        // Even a file that was not checked must not cause a panic.
        let mut wild = sample();
        wild.chunks[0].boundaries[0] = first;
        prop_assert_eq!(wild.counts(nodes as u32).count(), 6);
        let _ = wild.chunk_of(first, pages as u32);
        let _ = wild.with_dead(first, pages as u32, &[(0, garbage as u16), (2, 9)]).encode();
    }

    #[test]
    fn the_inverse_is_the_least(overhead in 1e-6f64..1.0, alpha in 0.0f64..1.0, vector_bytes in 1usize..10_000) {
        match chunk_bytes_for(overhead, alpha, vector_bytes) {
            None => prop_assert!(overhead <= alpha / 1024.0),
            Some(bytes) => {
                let slack = overhead * 1e-9;
                prop_assert!(chunk_overhead(bytes, alpha, vector_bytes) <= overhead + slack);
                prop_assert!(bytes < 2 || chunk_overhead(bytes - 1, alpha, vector_bytes) >= overhead - slack);
            }
        }
    }
}
