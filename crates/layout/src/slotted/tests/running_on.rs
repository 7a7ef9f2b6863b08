//! Tests of records that continue from page to page.

use super::*;
use crate::RunsOn;

type Vector = (u64, Vec<u8>);

fn shape(largest: usize) -> SlottedShape {
    SlottedShape::running_on(Element::F32, 1536, 64, largest).unwrap()
}

/// The bytes that a page has for a new record. `GOING_ON` is for the rest of a record.
const ROOM: usize = BLOCK - 28;
const GOING_ON: usize = ROOM - 4;

struct Written {
    shape: SlottedShape,
    pages: Vec<u8>,
    counts: Vec<usize>,
    runs: RunsOn,
}

fn write(first: u32, vectors: &[Vector]) -> Written {
    let largest = vectors.iter().map(|(_, vector)| vector.len()).max();
    let shape = shape(largest.unwrap_or(0));
    let mut builder = SlottedBuilder::new(shape);
    builder.start(first);
    let mut written = Written {
        shape,
        pages: Vec::new(),
        counts: Vec::new(),
        runs: RunsOn::default(),
    };
    let end_page = |builder: &mut SlottedBuilder, written: &mut Written, next: u32| {
        let page = written.counts.len() as u32;
        written.counts.push(builder.len());
        written.pages.extend_from_slice(builder.finish(page.into()));
        if builder.goes_on() {
            written.runs.set(page);
            builder.go_on(next);
        } else {
            builder.start(next);
        }
    };
    for (at, (id, vector)) in (first..).zip(vectors) {
        if !builder.push(*id, &[], vector) {
            end_page(&mut builder, &mut written, at);
            assert!(
                builder.push(*id, &[], vector),
                "record {at} does not fit at the beginning of a page"
            );
        }
        while builder.goes_on() {
            assert!(
                !builder.push(0, &[], &[]),
                "a record fits behind the spanning vector {at}"
            );
            end_page(&mut builder, &mut written, at + 1);
        }
    }
    if !builder.is_empty() {
        end_page(&mut builder, &mut written, first + vectors.len() as u32);
    }
    assert!(builder.is_empty());
    written
}

impl Written {
    fn count(&self) -> usize {
        self.counts.len()
    }

    fn page(&self, page: usize) -> &[u8] {
        &self.pages[page * BLOCK..(page + 1) * BLOCK]
    }

    fn places(&self) -> Vec<(usize, usize)> {
        let mut places = Vec::new();
        for (page, &count) in self.counts.iter().enumerate() {
            let starts = |page: u64| self.counts[page as usize] > 0;
            let pages = self.runs.pages(page as u64, starts) as usize;
            places.extend((0..count).map(|slot| match slot + 1 == count {
                true => (page, pages),
                false => (page, 1),
            }));
        }
        places
    }

    fn read(&self, pages: &[u8], page: usize, slot: usize) -> Result<Vector, LayoutError> {
        let all = &pages[page * BLOCK..];
        let (here, behind) = all.split_at(BLOCK);
        let view = SlottedView::open(&self.shape, here, page as u64, true, "v")?;
        let mut scratch = Vec::new();
        let vector = view.whole(slot, behind, true, &mut scratch)?.to_vec();
        Ok((view.id(slot)?, vector))
    }
}

fn vectors(lengths: impl IntoIterator<Item = usize>) -> Vec<Vector> {
    let vector = |(at, length)| (1000 + at as u64, bytes(length, at));
    lengths.into_iter().enumerate().map(vector).collect()
}

#[test]
fn bytes_stand_where_the_table_says() {
    let written = write(0x0102, &vectors([4000, 5000, 3500]));
    assert_eq!(written.counts, [1, 1, 1, 0]);
    let page = written.page(0);
    assert_eq!(page[4..8], [1, 0, 0, 0]);
    assert_eq!(page[8..16], [0x02, 0x01, 0, 0, 0, 0, 0, 0]);
    assert_eq!(page[16..20], 4000u32.to_le_bytes());
    // Page 0 has 68 bytes left, too few to begin a record. Page 1 has 4068 bytes, page 2 the other
    // 932.
    assert!(!written.runs.has(0));
    let page = written.page(1);
    assert_eq!(page[16..20], 5000u32.to_le_bytes());
    assert_eq!(page[28..], bytes(5000, 1)[..ROOM]);
    assert!(written.runs.has(1));
    let page = written.page(2);
    assert_eq!(page[4..8], [1, 0, 0, 0]);
    assert_eq!(page[8..16], [0x04, 0x01, 0, 0, 0xa4, 0x03, 0, 0]);
    assert_eq!(page[16..20], 3500u32.to_le_bytes());
    assert_eq!(page[20..28], 1002u64.to_le_bytes());
    assert_eq!(page[28..32], written.page(1)[..4]);
    assert_eq!(page[32..32 + 932], bytes(5000, 1)[ROOM..]);
    assert_eq!(page[32 + 932..], bytes(3500, 2)[..GOING_ON - 932]);
    let page = written.page(3);
    assert_eq!(page[4..8], [0, 0, 0, 0]);
    let left = 3500 + 932 - GOING_ON;
    assert_eq!(
        page[8..16],
        [5, 1, 0, 0, left as u8, (left >> 8) as u8, 0, 0]
    );
    assert!(page[16..28].iter().all(|&byte| byte == 0));
    assert_eq!(page[28..32], written.page(2)[..4]);
    assert_eq!(page[32..32 + left], bytes(3500, 2)[3500 - left..]);
    assert!(page[32 + left..].iter().all(|&byte| byte == 0));
}

#[test]
fn nothing_is_wasted_but_heads_and_ends_that_are_not_worth_it() {
    for (length, most) in [(2560, 1.016), (3400, 1.012), (5120, 1.011), (10_240, 1.01)] {
        let all = vectors((0..2000).map(|at| length + at % 17));
        let raw: usize = all.iter().map(|(_, vector)| vector.len()).sum();
        let written = write(0, &all);
        let share = written.pages.len() as f64 / raw as f64;
        assert!(share < most, "{length}: {share}");
    }
    let written = write(0, &vectors([1281; 300]));
    assert!(written.runs.is_empty());
    assert_eq!(written.count(), 100);
    let written = write(0, &vectors((0..2000).map(|at| 80 + at % 40)));
    assert!(written.runs.is_empty());
}

#[test]
fn a_shape_says_how_many_pages_a_record_may_stand_on() {
    for (largest, pages) in [
        (257, 2),
        (ROOM, 2),
        (GOING_ON + 256, 2),
        (GOING_ON + 257, 3),
        (255 * GOING_ON + 256, 256),
    ] {
        let shape = shape(largest);
        assert_eq!(shape.pages_per_record(), pages, "{largest}");
        assert!(shape.runs_on());
        assert_eq!((shape.page_bytes(), shape.blocks_per_page()), (BLOCK, 1));
        let header = shape.header(7, 30, 30);
        assert_eq!(header.version, 2);
        let (back, facts) = SlottedShape::from_header(&header, "v").unwrap();
        assert_eq!(
            (back, facts.first, facts.nodes, facts.pages),
            (shape, 7, 30, 30)
        );
    }
    // Short records never continue, so older programs read their files.
    for largest in [0, 256] {
        let header = shape(largest).header(7, 30, 30);
        assert_eq!(header.version, 1);
        let (back, _) = SlottedShape::from_header(&header, "v").unwrap();
        assert_eq!((back.runs_on(), back.pages_per_record()), (false, 1));
    }
    let more = SlottedShape::running_on(Element::U8, 8, 8, 255 * GOING_ON + 257);
    let text = more.unwrap_err().to_string();
    assert!(
        text.starts_with("the length of the largest record in bytes is"),
        "{text}"
    );
    // In version 1 the same fields mean pages of two blocks, and no record continues.
    let mut header = shape(5000).header(0, 1, 2);
    header.version = 1;
    let text = SlottedShape::from_header(&header, "v").unwrap_err();
    assert!(text.to_string().contains("number of pages"), "{text}");
    header = super::shape(FileKind::Vectors, 5000).header(0, 1, 1);
    assert_eq!(header.version, 1);
    let (back, _) = SlottedShape::from_header(&header, "v").unwrap();
    assert_eq!((back.blocks_per_page(), back.runs_on()), (2, false));
    let text = SlottedShape::from_header(&shape(5000).header(0, 3, 10), "v").unwrap_err();
    assert!(text.to_string().contains("number of pages"), "{text}");
}

#[test]
fn what_a_page_cannot_have_is_refused() {
    let written = write(0, &vectors([3000, 4500, 9000]));
    let shape = written.shape;
    assert_eq!(written.counts, [2, 1, 0, 0, 0]);
    let refused = |page: usize, change: &dyn Fn(&mut [u8])| {
        let mut bytes = written.page(page).to_vec();
        change(&mut bytes);
        block::seal(&mut bytes, page as u64 + 1);
        let read = SlottedView::open(&shape, &bytes, page as u64, true, "v");
        read.map(|_| ()).unwrap_err().to_string()
    };
    let text = refused(0, &|bytes| bytes[4..6].fill(0));
    assert!(text.contains("count of records"), "{text}");
    let text = refused(0, &|bytes| bytes[7] |= 1);
    assert!(text.contains("length of a list"), "{text}");
    let text = refused(1, &|bytes| {
        bytes[12..16].copy_from_slice(&4065u32.to_le_bytes())
    });
    assert!(
        text.contains("bytes of a record that began before"),
        "{text}"
    );
    let text = refused(0, &|bytes| bytes[7] |= RELOCATED);
    assert!(text.contains("relocated"), "{text}");

    let view = SlottedView::open(&shape, written.page(0), 0, true, "v").unwrap();
    let mut scratch = Vec::new();
    let last = view.len() - 1;
    let text = view.whole(last, &[], true, &mut scratch).unwrap_err();
    assert!(text.to_string().starts_with("v: truncated"), "{text}");
    let other = written.page(2);
    let text = view.whole(last, other, false, &mut scratch).unwrap_err();
    assert!(text.to_string().contains("began before"), "{text}");
    let text = view.whole(last, other, true, &mut scratch).unwrap_err();
    assert!(text.to_string().contains("checksum"), "{text}");
    view.whole(last + 1, other, true, &mut scratch).unwrap_err();
    let all = view.whole(last, &written.pages[BLOCK..], true, &mut scratch);
    assert_eq!(all.unwrap(), bytes(4500, 1));
}

#[test]
fn a_page_does_not_go_on_on_one_of_another_time() {
    let (mut old, new) = (vectors([3000, 4500, 9000]), vectors([3000, 4500, 9000]));
    old.iter_mut().for_each(|(_, vector)| vector.reverse());
    let (old, new) = (write(0, &old), write(0, &new));
    for (slot, page, lost) in [(1, 0, 1), (0, 1, 2), (0, 1, 3)] {
        let mut pages = new.pages.clone();
        new.read(&pages, page, slot).unwrap();
        pages[lost * BLOCK..(lost + 1) * BLOCK].copy_from_slice(old.page(lost));
        let text = new.read(&pages, page, slot).unwrap_err().to_string();
        assert!(text.contains("checksum of the page before"), "{text}");
        SlottedView::open(&new.shape, old.page(lost), lost as u64, true, "v").unwrap();
    }
}

#[test]
fn a_page_that_is_finished_goes_on_as_it_was() {
    let shape = shape(9000);
    let mut builder = SlottedBuilder::new(shape);
    builder.start(5);
    assert!(builder.push(1, &[], &[7; 3000]));
    assert!(!builder.goes_on());
    builder.finish(0);
    assert!(builder.push(2, &[], &[8; 3000]));
    assert!(builder.goes_on());
    let (once, again) = (builder.finish(0).to_vec(), builder.finish(0).to_vec());
    assert_eq!(once, again);
    builder.go_on(7);
    assert!(!builder.goes_on() && !builder.is_empty());
    assert_eq!(builder.len(), 0);
    let alone = builder.finish(1).to_vec();
    assert!(builder.push(3, &[], &[9; 100]));
    let page = builder.finish(1).to_vec();
    for page in [alone, page] {
        let view = SlottedView::open(&shape, &once, 0, true, "v").unwrap();
        assert_eq!(view.left(), 6000 - ROOM as u64);
        let mut scratch = Vec::new();
        let vector = view.whole(1, &page, true, &mut scratch).unwrap();
        assert_eq!(vector, [8; 3000]);
    }
    builder.start(9);
    assert!(builder.is_empty());
}

fn any_vectors() -> impl Strategy<Value = Vec<Vector>> {
    let length = prop_oneof![
        0usize..300,
        3500usize..4600,
        1usize..20_000,
        (1usize..5, 0usize..40).prop_map(|(pages, less)| pages * GOING_ON - less),
        60_000usize..70_000,
    ];
    let id = prop_oneof![any::<u64>(), 0u64..300];
    let vector = (id, length, any::<usize>())
        .prop_map(|(id, length, seed)| (id, bytes(length, seed % 1000)));
    prop::collection::vec(vector, 1..30)
}

proptest! {
    #[test]
    fn any_records_round_trip(vectors in any_vectors(), first in 0u32..1 << 31) {
        let written = write(first, &vectors);
        prop_assert_eq!(written.counts.iter().sum::<usize>(), vectors.len());
        // The records follow one another, apart from page ends that are too short to use.
        let mut next = first;
        let mut left = 0;
        for (page, &count) in written.counts.iter().enumerate() {
            let bytes = written.page(page);
            let view = SlottedView::open(&written.shape, bytes, page as u64, true, "v").unwrap();
            prop_assert_eq!((view.len(), view.first()), (count, next));
            prop_assert_eq!(u64::from(view.begun()), left);
            left = view.left();
            prop_assert_eq!(left > 0, written.runs.has(page as u64));
            next += count as u32;
        }
        prop_assert_eq!(left, 0);
        let places = written.places();
        let mut slot = 0;
        for (at, ((page, pages), vector)) in places.iter().zip(&vectors).enumerate() {
            slot = match at > 0 && places[at - 1].0 == *page {
                true => slot + 1,
                false => 0,
            };
            prop_assert!(*pages <= written.shape.pages_per_record());
            let exactly = &written.pages[..(page + pages) * BLOCK];
            prop_assert_eq!(&written.read(exactly, *page, slot).unwrap(), vector);
            if *pages > 1 {
                let less = &written.pages[..(page + pages - 1) * BLOCK];
                prop_assert!(written.read(less, *page, slot).is_err());
            }
        }
    }

    #[test]
    fn a_damaged_page_loses_its_records_alone(
        vectors in any_vectors(),
        at: prop::sample::Index,
        byte in 0..BLOCK,
        bit in 0..8,
    ) {
        let written = write(3, &vectors);
        let bad = at.index(written.count());
        let mut pages = written.pages.clone();
        pages[bad * BLOCK + byte] ^= 1u8 << bit;
        let places = written.places();
        let mut slot = 0;
        for (at, ((page, count), vector)) in places.iter().zip(&vectors).enumerate() {
            slot = match at > 0 && places[at - 1].0 == *page {
                true => slot + 1,
                false => 0,
            };
            let touched = (*page..page + count).contains(&bad);
            match written.read(&pages, *page, slot) {
                Ok(read) => {
                    prop_assert!(!touched);
                    prop_assert_eq!(&read, vector);
                }
                Err(_) => prop_assert!(touched, "{page} + {count}, {bad} is damaged"),
            }
        }
    }

    #[test]
    fn damage_and_arbitrary_bytes_never_panic(
        vectors in any_vectors(),
        damage in prop::collection::vec((any::<prop::sample::Index>(), 0usize..3, any::<u8>()), 0..8),
        noise in prop::option::of(any::<u64>()),
        (verify, sealed) in any::<(bool, bool)>(),
        page in 0usize..6,
    ) {
        let written = write(0, &vectors);
        let mut pages = written.pages.clone();
        let page = page % written.count();
        let here = page * BLOCK;
        for (at, near, byte) in damage {
            let reach = [28, 60, pages.len() - here][near];
            pages[here + at.index(reach)] = byte;
        }
        if let Some(seed) = noise {
            let noise = numbers(seed).map(|n| n as u8);
            for (byte, noise) in pages[here..here + BLOCK].iter_mut().zip(noise) {
                *byte = noise;
            }
        }
        if sealed {
            block::seal(&mut pages[here..here + BLOCK], page as u64 + 1);
        }
        let (here, behind) = pages[here..].split_at(BLOCK);
        let mut scratch = Vec::new();
        if let Ok(view) = SlottedView::open(&written.shape, here, page as u64, verify, "v") {
            let _ = (view.begun(), view.left());
            for (slot, record) in view.records().enumerate() {
                let _ = (view.id(slot), view.node(slot), view.vector_bytes(slot));
                let whole = view.whole(slot, behind, verify, &mut scratch);
                match (record, whole) {
                    (Ok(record), Ok(whole)) => prop_assert_eq!(record.vector, whole),
                    (Ok(_), Err(error)) => prop_assert!(false, "{error}"),
                    (Err(_), Ok(whole)) => prop_assert!(whole.len() > BLOCK - 28 || slot + 1 == view.len()),
                    (Err(_), Err(_)) => {}
                }
            }
            view.whole(view.len(), behind, verify, &mut scratch).unwrap_err();
        }
    }
}
