//! Repairs of inline indexes that were damaged after direct inserts. Some pages are also in the
//! journal.

use stratann_layout::header::stored_checksum;
use stratann_layout::{InlineBuilder, InlineShape, InlineView, JournalFile, stream};

use super::*;

impl Place {
    /// An index whose journal has the pages `numbers`, and the set of deleted ids.
    fn inline(numbers: &[u32]) -> (Self, BTreeSet<u64>) {
        let (layout, update) = INLINE;
        let (place, gone) = Self::grown(layout, update);
        let bytes = place.volume.read(&place.pages()).unwrap();
        let mut payload = JournalFile::head(BLOCK, numbers);
        for &number in numbers {
            payload.extend_from_slice(&bytes[at(number)..][..BLOCK]);
        }
        place.put_journal(&payload);
        (place, gone)
    }

    fn put_journal(&self, payload: &[u8]) {
        let mut manifest = self.manifest();
        let bytes = stream::encode(FileKind::Journal, payload, &[]);
        let role = FileKind::Journal.name();
        let entry = manifest.files.iter_mut().find(|entry| entry.role == role);
        let entry = entry.unwrap();
        entry.length = bytes.len() as u64;
        entry.header_crc32c = stored_checksum(&bytes);
        let (name, manifest) = (entry.name.clone(), manifest.encode());
        for (name, bytes) in [(&name[..], bytes), (MANIFEST, manifest)] {
            let mut file = self.volume.create(name).unwrap();
            file.write_at(0, &bytes).unwrap();
        }
    }

    fn shape(&self) -> InlineShape {
        let shape = reading::inline(&self.volume, &self.manifest()).unwrap().0;
        assert_eq!(shape.page_bytes(), BLOCK);
        shape
    }

    fn pages(&self) -> String {
        self.entry(FileKind::Inline, None).name
    }

    fn journal(&self) -> String {
        self.entry(FileKind::Journal, None).name
    }

    fn ids_on(&self, page: u32) -> Vec<u64> {
        let (placement, shape) = (self.tables().0, self.shape());
        let bytes = self.volume.read(&self.pages()).unwrap();
        let bytes = &bytes[at(page)..][..BLOCK];
        let view = InlineView::open(&shape, bytes, page.into(), None, true, "i").unwrap();
        let ids = view.nodes().map(|node| node.unwrap().id);
        let nodes = (shape.first_node(page.into())..).zip(ids);
        let live = nodes.filter(|&(node, id)| {
            let dead = placement.deleted.iter().find(|dead| dead.0 == id);
            dead.is_none_or(|dead| node >= dead.1.into())
        });
        live.map(|(_, id)| id).collect()
    }

    fn ids_of(&self, pages: impl IntoIterator<Item = u32>) -> BTreeSet<u64> {
        let pages = pages.into_iter();
        pages.flat_map(|page| self.ids_on(page)).collect()
    }

    fn count(&self) -> u32 {
        self.tables().0.pages
    }
}

fn at(page: u32) -> usize {
    (page as usize + 1) * BLOCK
}

fn hit(bytes: &mut [u8], page: u32) {
    bytes[at(page) + 300] ^= 1;
}

#[test]
fn damage_of_a_page_costs_its_vectors_unless_the_journal_has_it() {
    let count = Place::inline(&[]).0.count();
    let journal = [1, 50, count - 2, count - 1];
    let (place, _) = Place::inline(&journal);
    assert!(count > 100 && u64::from(count) > place.shape().pages(ROWS as u64));
    let name = place.pages();
    for pages in [vec![0], vec![count - 3], vec![2, 49, 51, count - 4]] {
        let what = format!("{pages:?}");
        let lost = place.ids_of(pages.iter().copied());
        assert!(!lost.is_empty(), "{what}");
        let volume = place.damaged(&name, &|bytes| {
            journal
                .iter()
                .chain(&pages)
                .for_each(|&page| hit(bytes, page));
        });
        let report = place.loses(&volume, &lost, &what);
        let text = format!("{} of {count} pages are damaged, the first", pages.len());
        assert!(report.lost[0].what.starts_with(&text), "{report:#?}");
        assert_eq!(report.lost[0].vectors, lost.len() as u64, "{report:#?}");
    }
    // Only the journal has these pages, so the index has no damage.
    let volume = place.damaged(&name, &|bytes| {
        journal.iter().for_each(|&page| hit(bytes, page));
        bytes.truncate(at(count - 2) + 700);
    });
    assert!(!place.repair(&volume).unwrap().repaired);
    volume
        .remove(&place.entry(FileKind::Entries, None).name)
        .unwrap();
    place.loses(&volume, &BTreeSet::new(), "torn pages");
    // In the next three cases, the file ends early, has no readable header, or is missing.
    let volume = place.damaged(&name, &|bytes| bytes.truncate(at(count - 5)));
    place.loses(&volume, &place.ids_of(count - 5..count - 2), "cut");
    let volume = place.damaged(&name, &|bytes| bytes[20] ^= 1);
    place.loses(&volume, &BTreeSet::new(), "header");
    let volume = place.volume.fork();
    volume.remove(&name).unwrap();
    let others = (0..count).filter(|page| !journal.contains(page));
    let report = place.loses(&volume, &place.ids_of(others), "gone");
    assert_eq!(report.vectors, place.ids_of(journal).len() as u64);
    assert!(report.lost[0].what.contains("missing"), "{report:#?}");
}

#[test]
fn of_a_damaged_journal_what_is_in_the_file_counts() {
    let count = Place::inline(&[]).0.count();
    let (place, _) = Place::inline(&[1, 50, count - 1]);
    let (pages, journal) = (place.pages(), place.journal());
    let file = stored::name_of(&place.volume, &journal);
    let told = |report: &RepairReport| {
        let lost = report.lost.iter().find(|lost| lost.file == file);
        let lost = lost.unwrap();
        assert!(lost.vectors == 0, "{report:#?}");
        assert!(
            lost.what.contains("is used without the journal"),
            "{report:#?}"
        );
    };
    let missing = |volume: &SimVolume| volume.remove(&journal).unwrap();
    let damages: [(&str, Damage<'_>); 3] = [
        ("flip", &|volume| {
            change(volume, &journal, &|bytes| bytes[6_000] ^= 1)
        }),
        ("cut", &|volume| {
            change(volume, &journal, &|bytes| bytes.truncate(BLOCK))
        }),
        ("missing", &missing),
    ];
    for (how, damage) in damages {
        let volume = place.volume.fork();
        damage(&volume);
        told(&place.loses(&volume, &BTreeSet::new(), how));
        let volume = place.damaged(&pages, &|bytes| hit(bytes, 50));
        damage(&volume);
        let report = place.loses(&volume, &place.ids_of([50]), how);
        told(&report);
        let text = format!("1 of {count} pages are damaged");
        let torn = |lost: &Lost| lost.what.contains(&text) && lost.file.ends_with(&pages);
        assert!(report.lost.iter().any(torn), "{report:#?}");
        // The file has an older version of the last page. Nodes that were inserted after this
        // version are lost.
        let (shape, last) = (place.shape(), place.ids_on(count - 1));
        assert!(last.len() > 1, "{last:?}");
        let volume = place.damaged(&pages, &|bytes| {
            let page = bytes[at(count - 1)..][..BLOCK].to_vec();
            let view = InlineView::open(&shape, &page, (count - 1).into(), None, true, "i");
            let node = view.unwrap().node(0).unwrap();
            let mut builder = InlineBuilder::new(shape);
            builder.push(node.id, node.vector, &[], &[]);
            let page = builder.finish((count - 1).into());
            bytes[at(count - 1)..][..BLOCK].copy_from_slice(page);
        });
        damage(&volume);
        let report = place.loses(&volume, &last[1..].iter().copied().collect(), how);
        told(&report);
        let text = "vectors fewer than the MANIFEST says";
        let fewer = |lost: &Lost| lost.what.contains(text) && lost.file.ends_with(&pages);
        assert!(report.lost.iter().any(fewer), "{report:#?}");
    }
    // The journal has a correct checksum, but one of its pages is damaged. The repair takes this
    // page from the file.
    let mut payload = JournalFile::head(BLOCK, &[1, 50]);
    let bytes = place.volume.read(&pages).unwrap();
    for page in [1, 50] {
        payload.extend_from_slice(&bytes[at(page)..][..BLOCK]);
    }
    let first = payload.len() - 2 * BLOCK;
    payload[first + 9] ^= 1;
    place.put_journal(&payload);
    let volume = place.damaged(&pages, &|bytes| hit(bytes, 50));
    let report = place.loses(&volume, &BTreeSet::new(), "a page");
    assert!(
        report.lost.iter().any(|lost| lost.file == file),
        "{report:#?}"
    );
}

#[test]
fn without_the_placement_pages_count_up_to_the_last_node() {
    let count = Place::inline(&[]).0.count();
    let (place, gone) = Place::inline(&[1, count - 1]);
    let (shape, pages) = (place.shape(), place.pages());
    let table = place.entry(FileKind::Placement, None).name;
    let nodes = u64::from(place.tables().0.nodes);
    // After a crash, the file may also have pages that no checkpoint names.
    let crashed = |bytes: &mut Vec<u8>| {
        assert_eq!(bytes.len(), at(count));
        let mut builder = InlineBuilder::new(shape);
        for id in [FIRST, 100, 77_777] {
            builder.push(id, &[3; DIM], &[0], &[1; 16]);
        }
        bytes.extend_from_slice(builder.finish(count.into()));
        bytes.extend_from_slice(&[9; BLOCK + 70]);
        hit(bytes, 1);
    };
    for bad in [None, Some(0), Some(count - 2)] {
        let what = format!("{bad:?}");
        let volume = place.damaged(&pages, &|bytes| {
            crashed(bytes);
            bad.iter().for_each(|&page| hit(bytes, page));
        });
        volume.remove(&table).unwrap();
        let report = place.repair(&volume).unwrap();
        let found = place.whole(&volume, &what);
        let on = place.ids_of(bad);
        let others = place.model.iter().filter(|(id, _)| !on.contains(id));
        for (id, vector) in others {
            assert_eq!(found.get(id), Some(vector), "{what}: {id}");
        }
        assert!(!found.contains_key(&77_777), "{what}");
        let back = found.keys().filter(|id| !place.model.contains_key(id));
        let back: BTreeSet<u64> = back.copied().collect();
        assert!(
            !back.is_empty() && back.is_subset(&gone),
            "{what}: {back:?}"
        );
        let held = bad.map_or(0, |page| shape.nodes_on_page(page.into(), nodes) as u64);
        assert_eq!(report.vectors_lost, held, "{what}: {report:#?}");
        let told = report
            .lost
            .iter()
            .filter(|lost| lost.file.ends_with(&pages));
        assert_eq!(
            told.map(|lost| lost.vectors).sum::<u64>(),
            held,
            "{report:#?}"
        );
    }
}
