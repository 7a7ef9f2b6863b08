//! `verify` on inserted vectors, if vectors are stored apart from lists.

use stratann_layout::SlottedShape;

use super::*;

type Coded = (u64, Vec<u8>);

struct Last {
    name: String,
    shape: SlottedShape,
    built: u64,
}

impl Grown {
    fn apart(update: Update) -> Self {
        Self::new(Layout::Decoupled, update)
    }

    fn last(&self) -> Last {
        let manifest = self.manifest();
        let n = manifest.segments.len() as u32 - 1;
        let found = reading::slotted(&self.volume, &manifest, FileKind::Vectors, Some(n));
        let (shape, facts, entry) = found.unwrap();
        Last {
            name: entry.name.clone(),
            shape,
            built: facts.pages,
        }
    }

    /// Changes page `at` after the pages of the build. `change` gets the first node and the
    /// records.
    fn rewritten(&self, at: u64, change: impl Fn(&mut u32, &mut Vec<Coded>)) -> SimVolume {
        let Last { name, shape, built } = self.last();
        self.changed(&name, |bytes| {
            let page = built + at;
            let (start, size) = (shape.file_offset(page) as usize, shape.page_bytes());
            let (mut first, mut records) = {
                let view = SlottedView::open(&shape, &bytes[start..][..size], page, true, "v");
                let view = view.unwrap();
                let record = |slot| (view.id(slot).unwrap(), view.record(slot).unwrap());
                let records = (0..view.len()).map(record);
                let records = records.map(|(id, record)| (id, record.vector.to_vec()));
                (view.first(), records.collect::<Vec<_>>())
            };
            change(&mut first, &mut records);
            let mut builder = SlottedBuilder::new(shape);
            builder.start(first);
            for (id, vector) in &records {
                assert!(builder.push(*id, &[], vector));
            }
            bytes[start..][..size].copy_from_slice(builder.finish(page));
        })
    }
}

#[test]
fn a_flipped_byte_of_a_page_of_vectors_is_found_if_it_counts() {
    for update in [Update::Accumulate, Update::Relocate] {
        let grown = Grown::apart(update);
        let (Last { name, shape, built }, manifest) = (grown.last(), grown.manifest());
        let added = grown.tables().0.added;
        assert!(manifest.segments.len() == 2 && added.len() > 1, "{added:?}");
        let pages = built + added.len() as u64;
        for page in 0..pages {
            for place in [5, 40, 1_000, 4_095] {
                let at = shape.file_offset(page) as usize + place;
                let volume = grown.changed(&name, |bytes| bytes[at] ^= 4);
                let text = format!(", {}: ", shape.file_offset(page));
                grown.says(&volume, 1, &name, &text);
            }
        }
        let at = |page: u64| shape.file_offset(page) as usize;
        let size = shape.page_bytes();
        let volume = grown.changed(&name, |bytes| {
            bytes.copy_within(at(built)..at(built) + size, at(built + 1));
        });
        grown.says(&volume, 1, &name, &format!(", {}: ", at(built + 1)));
        let volume = grown.changed(&name, |bytes| bytes.extend_from_slice(&[77; 5_000]));
        assert_eq!(lines(&volume), Vec::<String>::new());
        for (length, end) in [(at(pages - 1), pages - 1), (at(built + 1) - 1, built)] {
            let volume = grown.changed(&name, |bytes| bytes.truncate(length));
            let node = added[(end - built) as usize];
            let text = format!(
                "its {end} pages end before page {end}, which has node {node} according to"
            );
            grown.says(&volume, 1, &name, &text);
        }
    }
}

#[test]
fn a_flipped_byte_of_any_other_file_is_found() {
    let grown = Grown::apart(Update::Accumulate);
    let lists = grown.pages().0;
    for FileEntry { name, length, .. } in grown.manifest().files {
        // The file of lists has unused pages, so only its first block is changed.
        let least = if name == lists { 0 } else { length };
        for at in (0..least.max(BLOCK as u64)).step_by(701) {
            let volume = grown.changed(&name, |bytes| bytes[at as usize] ^= 1);
            let found = report(&volume);
            let file = stored::name_of(&volume, &name);
            let named = found.problems.iter().any(|problem| problem.file == file);
            assert!(named, "{name}, {at}: {:#?}", found.problems);
        }
    }
}

#[test]
fn only_the_last_file_of_vectors_grows() {
    let grown = Grown::apart(Update::Accumulate);
    let role = FileEntry::role_of(FileKind::Vectors, Some(0));
    let name = grown.manifest().file(&role).unwrap().name.clone();
    let longer = |bytes: &mut Vec<u8>| bytes.extend_from_slice(&[0; BLOCK]);
    grown.says(&grown.changed(&name, longer), 1, &name, "the MANIFEST says");
    let built = Grown::built(Layout::Decoupled);
    assert!(report(&built.volume).clean());
    // A crash before the first checkpoint may leave more pages at the end of this file.
    let name = built.last().name;
    assert!(report(&built.changed(&name, longer)).clean());
}

#[test]
fn added_pages_begin_and_end_where_the_table_says() {
    let grown = Grown::apart(Update::Accumulate);
    let Last { name, built, .. } = grown.last();
    let added = grown.tables().0.added;
    let nodes = grown.manifest().placement.unwrap().nodes;
    let later = nodes - u64::from(added[0]);
    let volume = grown.with(|placement, _, _| placement.added[1] += 1);
    let found = lines(&volume);
    assert_eq!(found.len(), 2, "{found:#?}");
    let held = added[1] - added[0];
    let text = format!(
        "page {built} has {held} nodes, the first is node {}; it should have {} nodes by",
        added[0],
        held + 1
    );
    assert!(
        found[0].contains(&name) && found[0].contains(&text),
        "{found:#?}"
    );
    let text = format!("begins with node {}; according to", added[1]);
    let right = format!("it should be node {}", added[1] + 1);
    assert!(
        [&name, &text, &right]
            .iter()
            .all(|text| found[1].contains(*text)),
        "{found:#?}"
    );
    let volume = grown.with(|placement, _, _| {
        placement.added.pop();
    });
    grown.says(&volume, 1, &name, "by simulated volume/placement-");
    let volume = grown.with(|placement, _, _| placement.added.push(nodes as u32 - 1));
    let found = lines(&volume);
    assert_eq!(found.len(), 2, "{found:#?}");
    assert!(found[0].contains("pages end before page"), "{found:#?}");
    assert!(found[1].contains("it should have"), "{found:#?}");
    let volume = grown.with(|placement, _, _| placement.added.clear());
    let text = format!("names no pages of inserted vectors, but {later} nodes");
    grown.says(&volume, 1, "/placement-", &text);
    // The table says that the last vector of a page continues on the next page, but it does not.
    let volume = grown.with(|placement, _, _| placement.runs.set(0));
    let text = "ends with a whole record; according to the table of pages";
    grown.says(&volume, 1, &name, text);
    let volume = grown.rewritten(1, |first, _| *first += 1);
    grown.says(&volume, 1, &name, "begins with node");
    let volume = grown.rewritten(0, |_, records| drop(records.pop()));
    grown.says(&volume, 1, &name, "it should have");
    for layout in [Layout::Coupled, Layout::Packed] {
        let grown = Grown::new(layout, Update::Accumulate);
        let volume = grown.with(|placement, _, _| placement.added.push(placement.built));
        let text = format!("which the {layout} layout of this index does not have");
        grown.says(&volume, 1, "/placement-", &text);
    }
}

#[test]
fn vectors_decode_and_ids_are_unique_over_all_segments() {
    let grown = Grown::apart(Update::Accumulate);
    let Last { name, .. } = grown.last();
    let (placement, pending) = grown.tables();
    let first = placement.added[0];
    let volume = grown.rewritten(0, |_, records| {
        records[3].1.pop();
    });
    let text = format!("node {} has a vector that does not decode", first + 3);
    grown.says(&volume, 1, &name, &text);
    // The first id is in the first segment, and the second id is in the last segment.
    for id in [20, 290] {
        let volume = grown.rewritten(0, |_, records| records[3].0 = id);
        let found = lines(&volume);
        let text = format!(
            "node {} has the external id {id}, which another node",
            first + 3
        );
        let twice = |line: &String| line.contains(&name) && line.contains(&text);
        assert!(found.iter().any(twice), "{found:#?}");
        let text = format!("the external id {id}, which the table does not list");
        assert!(found.iter().any(|line| line.contains(&text)), "{found:#?}");
    }
    let node = pending.records[0].node;
    let volume = grown.with(|_, pending, _| pending.records[0].id ^= 1);
    let text = format!("node {node} has the external id {}", pending.records[0].id);
    grown.says(&volume, 1, &name, &text);
    // Without the placement, only the pages of the build are read.
    let volume = grown.volume.fork();
    let entry = grown.manifest();
    let table = &entry.file(FileKind::Placement.name()).unwrap().name;
    volume.remove(table).unwrap();
    grown.says(&volume, 1, table, "");
    assert_eq!(
        report(&volume).pages,
        grown.vector_pages() - placement.added.len() as u64
    );
}
