//! Repairs of damaged indexes whose vectors are apart from lists, after direct inserts.

use stratann_layout::{FileEntry, SlottedBuilder, SlottedShape, SlottedView};

use super::*;

const LAYOUT: Layout = Layout::Decoupled;
const UPDATES: [Update; 2] = [Update::Accumulate, Update::Relocate];

struct Segment {
    entry: FileEntry,
    shape: SlottedShape,
    built: u64,
}

impl Place {
    fn segments(&self) -> Vec<Segment> {
        let manifest = self.manifest();
        let segment = |n| {
            let found = reading::slotted(&self.volume, &manifest, FileKind::Vectors, Some(n));
            let (shape, facts, entry) = found.unwrap();
            Segment {
                entry: entry.clone(),
                shape,
                built: facts.pages,
            }
        };
        (0..manifest.segments.len() as u32).map(segment).collect()
    }

    fn last(&self) -> Segment {
        self.segments().pop().unwrap()
    }

    fn live_on(&self, segment: &Segment, page: u64) -> BTreeSet<u64> {
        let (placement, shape) = (self.tables().0, segment.shape);
        let mut bytes = vec![0; shape.page_bytes()];
        let offset = shape.file_offset(page);
        self.volume
            .read_at(&segment.entry.name, offset, &mut bytes)
            .unwrap();
        let view = SlottedView::open(&shape, &bytes, page, true, "v").unwrap();
        let records = (0..view.len()).map(|slot| (view.id(slot).unwrap(), view.node(slot)));
        let live = records.filter(|(id, node)| {
            let dead = placement.deleted.iter().find(|dead| dead.0 == *id);
            dead.is_none_or(|dead| *node.as_ref().unwrap() >= dead.1)
        });
        live.map(|(id, _)| id).collect()
    }

    fn page_hit(&self, segment: &Segment, page: u64) -> SimVolume {
        let at = segment.shape.file_offset(page) as usize + 300;
        self.damaged(&segment.entry.name, &|bytes| bytes[at] ^= 1)
    }
}

#[test]
fn without_pages_of_vectors_nothing_of_a_list_costs_one() {
    for update in UPDATES {
        let (place, _) = Place::grown(LAYOUT, update);
        let (placement, pending) = place.tables();
        let (name, size) = place.page_file(LAYOUT);
        let waits = |node: u32| pending.records.iter().any(|record| record.node == node);
        let mut nodes = (0..).zip(&placement.page_of);
        let page = nodes
            .find(|&(node, _)| node > 300 && !waits(node))
            .unwrap()
            .1;
        let volume = place.hit(LAYOUT, &[*page]);
        let report = place.loses(&volume, &BTreeSet::new(), "pages of lists");
        assert!(report.lost[0].file.ends_with(&name), "{report:#?}");
        let cut = place.damaged(&name, &|bytes| bytes.truncate(BLOCK + size));
        place.loses(&cut, &BTreeSet::new(), "pages of lists, cut");
        for kind in [FileKind::Adjacency, FileKind::Pending, FileKind::Directory] {
            let volume = place.volume.fork();
            volume.remove(&place.entry(kind, None).name).unwrap();
            let report = place.loses(&volume, &BTreeSet::new(), kind.name());
            assert!(report.lost[0].vectors == 0, "{report:#?}");
        }
    }
}

#[test]
fn of_a_damaged_page_its_vectors_are_lost_that_count() {
    for update in UPDATES {
        let (place, _) = Place::grown(LAYOUT, update);
        let (placement, segments) = (place.tables().0, place.segments());
        let last = place.last();
        let added = placement.added.len() as u64;
        assert!(segments.len() == 3 && added > 3, "{added}");
        for (segment, page) in [
            (&segments[0], 0),
            (&segments[1], 2),
            (&last, 0),
            (&last, last.built - 1),
            (&last, last.built),
            (&last, last.built + 2),
            (&last, last.built + added - 1),
        ] {
            let what = format!("{update:?}: page {page} of {}", segment.entry.name);
            let lost = place.live_on(segment, page);
            assert!(!lost.is_empty(), "{what}");
            let report = place.loses(&place.page_hit(segment, page), &lost, &what);
            let said = &report.lost[0];
            let text = "1 of ";
            assert!(said.what.starts_with(text), "{what}: {report:#?}");
            assert_eq!(said.vectors, lost.len() as u64, "{what}: {report:#?}");
        }
        let volume = place.page_hit(&segments[0], 1);
        let at = last.shape.file_offset(last.built + 1) as usize;
        change(&volume, &last.entry.name, &|bytes| bytes.truncate(at + 5));
        let mut lost = place.live_on(&segments[0], 1);
        for page in 1..added {
            lost.extend(place.live_on(&last, last.built + page));
        }
        let report = place.loses(&volume, &lost, "two files");
        assert_eq!(
            report.lost.iter().filter(|lost| lost.vectors > 0).count(),
            2
        );
        let volume = place.volume.fork();
        volume.remove(&segments[1].entry.name).unwrap();
        let lost = (0..segments[1].built).flat_map(|page| place.live_on(&segments[1], page));
        place.loses(&volume, &lost.collect(), "a file");
    }
}

#[test]
fn what_a_segment_is_decoded_with_takes_added_vectors_along() {
    let (place, _) = Place::grown(LAYOUT, Update::Accumulate);
    let last = place.last();
    let added = place.tables().0.added.len() as u64;
    let header = place.damaged(&last.entry.name, &|bytes| bytes[20] ^= 1);
    place.loses(&header, &BTreeSet::new(), "header");
    for (n, segment) in (0..).zip(place.segments()) {
        let all = match n {
            2 => segment.built + added,
            _ => segment.built,
        };
        let lost = (0..all).flat_map(|page| place.live_on(&segment, page));
        let volume = place.volume.fork();
        let chunks = place.entry(FileKind::Chunks, Some(n)).name;
        volume.remove(&chunks).unwrap();
        let what = format!("chunks {n}");
        let report = place.loses(&volume, &lost.collect(), &what);
        assert!(report.lost[0].file.ends_with(&chunks), "{report:#?}");
        assert!(report.lost[0].what.contains("cannot be decoded without"));
    }
}

/// New vectors have no base, although the last chunk has a base and is not full.
#[test]
fn vectors_that_came_later_have_no_base() {
    let rows = |first: usize, count: usize| {
        let row = |n: usize| {
            let at = move |i: usize| match i % 32 {
                0 => (n >> (i / 32 * 3)) as u8,
                _ => (i * 7) as u8,
            };
            (0..DIM).map(at)
        };
        let bytes = (first..first + count).flat_map(row).collect();
        Matrix::new(bytes, count, DIM, Element::U8).unwrap()
    };
    let mut place = Place::of(&rows(0, ROWS), &options(LAYOUT));
    let chunks = reading::chunks(&place.volume, &place.manifest(), 2).unwrap();
    let end = chunks.chunks.last().unwrap();
    assert!(end.base.is_some() && !(ROWS as u32 % 256).is_multiple_of(chunks.chunk_vectors));
    let live = place.direct(Update::Accumulate);
    let ids: Vec<u64> = (0..200).collect();
    live.insert(&rows(ROWS, 200), Some(&ids), &Silent).unwrap();
    drop(live);
    for (n, &id) in ids.iter().enumerate() {
        place.model.insert(id, row(&rows(ROWS + n, 1), 0));
    }
    assert!(verify_in(&place.volume, &Silent).unwrap().clean());
    let name = place.entry(FileKind::Placement, None).name;
    for name in [place.entry(FileKind::Codes, None).name, name] {
        let volume = place.volume.fork();
        volume.remove(&name).unwrap();
        place.loses(&volume, &BTreeSet::new(), &name);
    }
}

#[test]
fn without_the_placement_added_pages_are_found_where_they_follow_one_another() {
    for update in UPDATES {
        let (place, gone) = Place::grown(LAYOUT, update);
        let (last, placement) = (place.last(), place.tables().0);
        let Segment {
            entry: FileEntry { name, .. },
            shape,
            built,
        } = &last;
        let table = place.entry(FileKind::Placement, None).name;
        let added = placement.added.len() as u64;
        let nodes = placement.page_of.len() as u32;
        // After a crash, the file may also have pages that no checkpoint names.
        let crashed = |volume: &SimVolume| {
            change(volume, name, &|bytes| {
                let one = shape.file_offset(*built) as usize;
                assert_eq!(bytes.len() as u64, shape.file_offset(built + added));
                let view = bytes[one..][..shape.page_bytes()].to_vec();
                let view = SlottedView::open(shape, &view, *built, true, "v").unwrap();
                let vector = view.record(0).unwrap().vector;
                for (page, first) in
                    (built + added..).zip([placement.added[1], nodes - 2, nodes, nodes + 4])
                {
                    let mut builder = SlottedBuilder::new(*shape);
                    builder.start(first);
                    for id in [FIRST, 100, 77_777] {
                        assert!(builder.push(id, &[], vector));
                    }
                    bytes.extend_from_slice(builder.finish(page));
                }
                bytes.extend_from_slice(&vec![9; shape.page_bytes() + 70]);
            });
        };
        let volume = place.volume.fork();
        volume.remove(&table).unwrap();
        crashed(&volume);
        let what = format!("{update:?}: crash");
        let report = place.repair(&volume).unwrap();
        let found = place.whole(&volume, &what);
        assert_eq!(report.vectors_lost, 0, "{what}: {report:#?}");
        let told = report.lost.iter().any(|lost| lost.file.ends_with(name));
        assert!(!told, "{what}: {report:#?}");
        for (id, vector) in &place.model {
            assert_eq!(found.get(id), Some(vector), "{what}: {id}");
        }
        let back = found.keys().filter(|id| !place.model.contains_key(id));
        let back: BTreeSet<u64> = back.copied().collect();
        assert!(
            !back.is_empty() && back.is_subset(&gone),
            "{what}: {back:?}"
        );
        // If a page is lost, the repair restores older vectors of some of its ids, from lower
        // nodes.
        for page in [1, added - 1] {
            let what = format!("{update:?}: without page {page}");
            let volume = place.page_hit(&last, built + page);
            volume.remove(&table).unwrap();
            crashed(&volume);
            let report = place.repair(&volume).unwrap();
            let found = place.whole(&volume, &what);
            let on = place.live_on(&last, built + page);
            let others = place.model.iter().filter(|(id, _)| !on.contains(id));
            for (id, vector) in others {
                assert_eq!(found.get(id), Some(vector), "{what}: {id}");
            }
            let held = placement.added.get(page as usize + 1).unwrap_or(&nodes);
            let held = u64::from(held - placement.added[page as usize]);
            assert_eq!(report.vectors_lost, held, "{what}: {report:#?}");
            let told = report.lost.iter().find(|lost| lost.file.ends_with(name));
            let told = told.unwrap();
            assert_eq!(told.vectors, held, "{what}: {report:#?}");
            assert!(told.what.contains("are damaged"), "{what}: {report:#?}");
            assert!(!found.contains_key(&77_777), "{what}");
        }
        let volume = place.damaged(name, &|bytes| bytes[20] ^= 1);
        volume.remove(&table).unwrap();
        assert_eq!(place.repair(&volume).unwrap().vectors_lost, 0);
        let found = place.whole(&volume, "header");
        let mut all = place.model.iter();
        assert!(all.all(|(id, vector)| found.get(id) == Some(vector)));
    }
}
