//! `verify` on indexes with direct inserts, with and without faults of the table of nodes and
//! pages.

use std::path::Path;
use std::sync::Arc;

use parking_lot::Mutex;
use stratann_layout::{PageView, PendingFile, PendingRecord, PlacementFile, SlottedView};
use tempfile::TempDir;

use super::*;
use crate::build::{BuildOptions, build_rows};
use crate::data::Matrix;
use crate::stores::reading;
use crate::{Compression, DirectOptions, Durability, LiveIndex, OpenOptions, Update, WriteOptions};

mod added;
mod journal;

const ROWS: u64 = 300;
const WIDE: usize = 16;
const PLACED: [Layout; 4] = [
    Layout::Coupled,
    Layout::Packed,
    Layout::Decoupled,
    Layout::Layered,
];
const CASES: [(Layout, Update); 9] = [
    (Layout::Coupled, Update::Accumulate),
    (Layout::Coupled, Update::Relocate),
    (Layout::Packed, Update::Accumulate),
    (Layout::Packed, Update::Relocate),
    (Layout::Decoupled, Update::Accumulate),
    (Layout::Decoupled, Update::Relocate),
    (Layout::Layered, Update::Accumulate),
    (Layout::Layered, Update::Relocate),
    INLINE,
];
const INLINE: (Layout, Update) = (Layout::Inline, Update::InPlace);

fn vectors(ids: &[u64], version: u64) -> Matrix {
    let vector = |id: u64| {
        let seed = id.wrapping_mul(1_009).wrapping_add(version * 7_919 + 13);
        (0..WIDE as u64)
            .map(move |i| (seed.wrapping_mul(i + 3).wrapping_mul(2_654_435_761) >> 11) as u8)
    };
    let bytes = ids.iter().flat_map(|&id| vector(id)).collect();
    Matrix::new(bytes, ids.len(), WIDE, Element::U8).unwrap()
}

struct Grown {
    volume: SimVolume,
    folder: TempDir,
    layout: Layout,
}

impl Grown {
    fn built(layout: Layout) -> Self {
        let (volume, folder) = (SimVolume::new(), tempfile::tempdir().unwrap());
        let ids: Vec<u64> = (0..ROWS).collect();
        let options = BuildOptions {
            degree: Some(8),
            build_list: 16,
            code_bytes: Some(4),
            navigation: 0.0,
            threads: 1,
            layout: Some(layout),
            // The index has two segments. The last segment ends within a chunk.
            chunk_bytes: 256 * WIDE as u64,
            segment_bytes: 256 * WIDE as u64,
            compression: (layout == Layout::Decoupled).then_some(Compression::Paper),
            ..BuildOptions::default()
        };
        build_rows(&volume, &vectors(&ids, 0), &options, folder.path());
        Self {
            volume,
            folder,
            layout,
        }
    }

    /// An index with every kind of change to an id; some changes are pending. A process makes each
    /// index only once, and then copies it.
    fn new(layout: Layout, update: Update) -> Self {
        static GROWN: Mutex<Vec<(Layout, Update, SimVolume)>> = Mutex::new(Vec::new());
        let mut all = GROWN.lock();
        let known = |of: &&(Layout, Update, SimVolume)| (of.0, of.1) == (layout, update);
        if let Some((.., volume)) = all.iter().find(known) {
            return Self {
                volume: volume.fork(),
                folder: tempfile::tempdir().unwrap(),
                layout,
            };
        }
        let grown = Self::grow(layout, update);
        all.push((layout, update, grown.volume.fork()));
        grown
    }

    fn grow(layout: Layout, update: Update) -> Self {
        let grown = Self::built(layout);
        let live = grown.open(update, 1);
        let insert = |ids: &[u64], version| {
            live.insert(&vectors(ids, version), Some(ids), &Silent)
                .unwrap();
        };
        let new: Vec<u64> = (1_000..1_150).chain([2_000, u64::MAX - 1]).collect();
        insert(&new, 1);
        let again = [7, 8, 1_003, 3_000];
        live.upsert(&vectors(&again, 2), &again, &Silent).unwrap();
        live.delete(&[9, 10, 8, 1_004, 1_005, 2_000]).unwrap();
        insert(&[9, 1_004], 3);
        drop(live);
        let live = grown.open(update, 1);
        let more: Vec<u64> = (1_200..1_260).collect();
        live.insert(&vectors(&more, 4), Some(&more), &Silent)
            .unwrap();
        live.delete(&[1_201, 9]).unwrap();
        drop(live);
        grown
    }

    fn open(&self, update: Update, threads: usize) -> LiveIndex {
        let options = WriteOptions {
            durability: Durability::Always,
            threads,
            update: Some(update),
            direct: DirectOptions {
                // The limit is less than all pending nodes need, so that inserts already write
                // pages.
                pending: 8 << 10,
                // With one thread, each run writes the same pages.
                in_flight: if threads == 1 { 1 } else { 4 },
                // With this setting, some records stay pending.
                write_home: false,
                ..DirectOptions::default()
            },
        };
        let volume: Arc<dyn Volume> = Arc::new(self.volume.clone());
        let (path, open): (&Path, _) = (self.folder.path(), OpenOptions::default());
        LiveIndex::open_in(volume, path, &open, &options).unwrap()
    }

    fn manifest(&self) -> Manifest {
        stored::manifest(&self.volume).unwrap()
    }

    fn tables(&self) -> (PlacementFile, PendingFile) {
        let manifest = self.manifest();
        let placement = reading::placement(&self.volume, &manifest).unwrap();
        let pending = match self.layout {
            Layout::Inline => PendingFile::default(),
            _ => reading::pending(&self.volume, &manifest).unwrap(),
        };
        (placement.unwrap(), pending)
    }

    fn changed(&self, name: &str, change: impl Fn(&mut Vec<u8>)) -> SimVolume {
        let volume = self.volume.fork();
        let mut bytes = volume.read(name).unwrap();
        change(&mut bytes);
        write(&volume, name, &bytes);
        volume
    }

    fn pages(&self) -> (String, usize) {
        let kind = self.layout.composition().lists;
        let manifest = self.manifest();
        let bytes = match self.layout {
            Layout::Coupled => reading::coupled(&self.volume, &manifest)
                .unwrap()
                .0
                .page_bytes(),
            Layout::Inline => reading::inline(&self.volume, &manifest)
                .unwrap()
                .0
                .page_bytes(),
            _ => reading::slotted(&self.volume, &manifest, kind, None)
                .unwrap()
                .0
                .page_bytes(),
        };
        (manifest.file(kind.name()).unwrap().name.clone(), bytes)
    }

    fn in_use(&self) -> (Vec<u32>, Vec<u32>) {
        let (placement, pending) = self.tables();
        let (name, bytes) = self.pages();
        let count = (self.volume.len(&name).unwrap() as usize - BLOCK) / bytes;
        let waits = |node: u32| pending.records.iter().any(|record| record.node == node);
        if self.layout == Layout::Inline {
            return (0..count as u32).partition(|&page| page < placement.pages);
        }
        let used = |page: &u32| {
            let mut on = (0..).zip(&placement.page_of);
            on.any(|(node, here)| here == page && !waits(node))
        };
        (0..count as u32).partition(used)
    }

    fn vector_pages(&self) -> u64 {
        let manifest = self.manifest();
        let segments = 0..manifest.segments.len() as u32;
        let pages = segments.map(|n| {
            let found = reading::slotted(&self.volume, &manifest, FileKind::Vectors, Some(n));
            found.unwrap().1.pages
        });
        pages.sum::<u64>() + self.tables().0.added.len() as u64
    }

    fn with(
        &self,
        change: impl Fn(&mut PlacementFile, &mut PendingFile, &mut Manifest),
    ) -> SimVolume {
        let (mut placement, mut pending) = self.tables();
        let mut manifest = self.manifest();
        change(&mut placement, &mut pending, &mut manifest);
        let volume = self.volume.fork();
        for (kind, payload) in [
            (FileKind::Placement, placement.encode()),
            (FileKind::Pending, pending.encode()),
        ] {
            let bytes = stream::encode(kind, &payload, &[]);
            if let Some(entry) = manifest.files.iter_mut().find(|e| e.role == kind.name()) {
                entry.length = bytes.len() as u64;
                entry.header_crc32c = stored_checksum(&bytes);
                write(&volume, &entry.name, &bytes);
            }
        }
        write(&volume, MANIFEST, &manifest.encode());
        volume
    }

    #[track_caller]
    fn says(&self, volume: &SimVolume, count: usize, file: &str, text: &str) {
        let found = lines(volume);
        // If there are many problems, the report does not list all of them.
        let all = report(volume).problem_count;
        assert_eq!(all, count as u64, "{}: {text}: {found:#?}", self.layout);
        for line in found {
            assert!(line.contains(file) && line.contains(text), "{text}: {line}");
        }
    }
}

#[test]
fn an_index_that_took_direct_inserts_is_clean() {
    let in_place = PLACED.map(|layout| (layout, Update::InPlace));
    for (layout, update) in CASES.into_iter().chain(in_place) {
        let grown = Grown::new(layout, update);
        let what = format!("{layout}, {update:?}");
        let found = report(&grown.volume);
        assert!(found.clean(), "{what}: {:#?}", found.problems);
        let (placement, pending) = grown.tables();
        assert_eq!(found.nodes, u64::from(placement.nodes), "{what}");
        assert!(
            found.nodes > ROWS + 200 && found.edges > found.nodes,
            "{what}"
        );
        let pages = grown.in_use().0.len() as u64 + grown.vector_pages();
        assert_eq!(found.pages, pages, "{what}");
        let waits = !pending.changes.is_empty() && !pending.records.is_empty();
        assert_eq!(waits, update == Update::Accumulate, "{what}");
        let facts = grown.manifest().placement.unwrap();
        assert!(
            facts.live < facts.nodes && !placement.deleted.is_empty(),
            "{what}"
        );
        // If records move, old copies of records remain, and some pages have no nodes.
        let (used, free) = grown.in_use();
        let moves = layout != Layout::Inline;
        assert!(!used.is_empty() && free.is_empty() != moves, "{what}");
    }
}

#[test]
fn many_threads_leave_a_clean_index() {
    for (layout, update) in CASES {
        let grown = Grown::built(layout);
        let live = grown.open(update, 4);
        let ids: Vec<u64> = (1_000..2_500).collect();
        live.insert(&vectors(&ids, 1), Some(&ids), &Silent).unwrap();
        drop(live);
        // If the log has vectors that are in no checkpoint yet, this call makes a checkpoint.
        drop(grown.open(update, 1));
        let found = report(&grown.volume);
        assert!(found.clean(), "{layout}, {update:?}: {:#?}", found.problems);
    }
}

#[test]
fn a_flipped_byte_is_found_where_a_node_is() {
    for layout in PLACED {
        for update in [Update::Accumulate, Update::Relocate] {
            let grown = Grown::new(layout, update);
            let (used, free) = grown.in_use();
            let (name, size) = grown.pages();
            let flipped = |page: u32, at: usize| {
                let volume = grown.volume.fork();
                let mut bytes = volume.read(&name).unwrap();
                bytes[BLOCK + page as usize * size + at] ^= 4;
                write(&volume, &name, &bytes);
                volume
            };
            for (at, &page) in used.iter().enumerate() {
                let text = format!(", {}: ", BLOCK + page as usize * size);
                grown.says(&flipped(page, 5 + 97 * at % 4_000), 1, &name, &text);
            }
            for &page in &free {
                assert!(report(&flipped(page, 50)).clean(), "{layout}: {page}");
            }
        }
    }
}

#[test]
fn a_node_is_in_one_place_and_the_table_says_in_which() {
    for layout in PLACED {
        let grown = Grown::new(layout, Update::Accumulate);
        let (placement, pending) = grown.tables();
        let (used, _) = grown.in_use();
        let waits = |node: u32| pending.records.iter().any(|record| record.node == node);
        let node = (0..placement.page_of.len() as u32)
            .rfind(|&node| !waits(node))
            .unwrap();
        let page = placement.page_of[node as usize];
        let other = used.iter().copied().find(|&other| other != page).unwrap();
        let volume = grown.with(|placement, _, _| placement.page_of[node as usize] = other);
        let text = format!("it places node {node} on page {other}, which does not have it");
        grown.says(&volume, 1, "/placement-", &text);
        let volume = grown.with(|placement, _, _| {
            let pages = placement.page_of.iter_mut();
            pages
                .filter(|here| **here == page)
                .for_each(|here| *here = other);
        });
        let on = (0..).zip(&placement.page_of);
        let moved = on
            .filter(|&(node, &here)| here == page && !waits(node))
            .count();
        grown.says(
            &volume,
            moved,
            "/placement-",
            &format!("on page {other}, which does not have it"),
        );
        let gone = pending.records[0].node;
        let volume = grown.with(|_, pending, _| drop(pending.records.remove(0)));
        grown.says(
            &volume,
            1,
            "/placement-",
            &format!("it places node {gone} on page"),
        );
        let volume = grown.with(|_, pending, _| pending.records.push(pending.records[0].clone()));
        grown.says(
            &volume,
            1,
            "/pending-",
            &format!("node {gone} has two pending records"),
        );
        let volume = grown.with(|_, pending, _| {
            pending.records.push(PendingRecord {
                node,
                ..pending.records[0].clone()
            });
        });
        let text = format!("node {node} has a pending record, but is on page {page} already");
        let found = lines(&volume);
        assert!(found[0].contains("/pending-") && found[0].contains(&text));
        // The pending record has another id than the page of the vector. If the vector is in two
        // parts, the vector differs too.
        let others = match layout {
            Layout::Decoupled => 1,
            Layout::Layered => 3,
            _ => 0,
        };
        assert_eq!(found.len(), 1 + others, "{layout}: {found:#?}");
        let (name, size) = grown.pages();
        let last = *used.last().unwrap();
        let volume = grown.volume.fork();
        let mut bytes = volume.read(&name).unwrap();
        bytes.truncate(BLOCK + last as usize * size);
        write(&volume, &name, &bytes);
        let found = lines(&volume);
        let text = format!("pages end before page {last}, which has node");
        let named = found
            .iter()
            .any(|line| line.contains(&name) && line.contains(&text));
        assert!(named, "{layout}: {found:#?}");
    }
}

#[test]
fn what_waits_is_of_nodes_that_are() {
    for layout in PLACED {
        let grown = Grown::new(layout, Update::Accumulate);
        let nodes = grown.manifest().placement.unwrap().nodes as u32;
        for (change, text) in [
            (
                &(|pending: &mut PendingFile| pending.changes[0][0] = nodes)
                    as &dyn Fn(&mut PendingFile),
                "nodes of a change",
            ),
            (
                &|pending| pending.changes[0][1] = nodes,
                "nodes of a change",
            ),
            (
                &|pending| pending.records[0].node = nodes,
                "new node and its links",
            ),
            (
                &|pending| pending.records[0].list[0] = nodes,
                "new node and its links",
            ),
            (&|pending| pending.records[0].vector.push(1), ""),
        ] {
            let volume = grown.with(|_, pending, _| change(pending));
            grown.says(&volume, 1, "/pending-", text);
        }
        let long = grown.with(|_, pending, _| pending.records[0].list = (0..9).collect());
        grown.says(
            &long,
            1,
            "/pending-",
            "has 9 links, but this index allows 8",
        );
    }
}

#[test]
fn ids_and_counts_are_those_of_the_records_that_count() {
    for (layout, update) in CASES {
        let grown = Grown::new(layout, update);
        let facts = grown.manifest().placement.unwrap();
        let (live, nodes) = (facts.live, facts.nodes);
        let with_live = |live: u64| {
            grown.with(|_, _, manifest| {
                let facts = manifest.placement.as_mut().unwrap();
                facts.live = live;
            })
        };
        for wrong in [live - 1, live + 1] {
            let text = format!("says that {wrong} vectors are live; {live} are: of {nodes} nodes");
            grown.says(&with_live(wrong), 1, "/MANIFEST", &text);
        }
        let volume = grown.with(|placement, _, _| {
            let at = placement.ids.partition_point(|&(id, _)| id < 600);
            placement.ids.insert(at, (600, 2));
        });
        grown.says(
            &volume,
            1,
            "/placement-",
            "external ids that were inserted after the build",
        );
        let first = grown.tables().0.ids[0];
        let text = format!(
            "with the external id {}, which the table does not list",
            first.0
        );
        let less = |placement: &mut PlacementFile| match placement.ids[0].1 {
            1 => drop(placement.ids.remove(0)),
            _ => placement.ids[0] = (first.0 + 1, first.1 - 1),
        };
        grown.says(&grown.with(|p, _, _| less(p)), 1, "/placement-", &text);
        let both = grown.with(|placement, _, _| {
            less(placement);
            placement.ids.insert(0, (first.0 - 1, 1));
        });
        let found = lines(&both);
        assert_eq!(found.len(), 2, "{layout}: {found:#?}");
        // Without a deleted id in the table, its node counts as live, and the id occurs twice.
        let volume = grown.with(|placement, _, _| placement.deleted.retain(|d| d.0 != 7));
        let found = lines(&volume);
        let twice = |line: &String| line.contains("has the external id 7, which another");
        assert!(found.iter().any(twice), "{layout}: {found:#?}");
        let text = format!("says that {live} vectors are live; {} are", live + 1);
        assert!(found.iter().any(|line| line.contains(&text)), "{found:#?}");
        let volume = grown.with(|placement, _, _| {
            let at = placement.deleted.partition_point(|&(id, _)| id < 20);
            placement.deleted.insert(at, (20, 300));
        });
        let text = format!("says that {live} vectors are live; {} are", live - 1);
        grown.says(&volume, 1, "/MANIFEST", &text);
    }
}

#[test]
fn a_table_of_fewer_pages_than_the_build_has_is_no_panic() {
    for layout in PLACED {
        let grown = Grown::new(layout, Update::Accumulate);
        let volume = grown.with(|placement, _, manifest| {
            placement.pages = 1;
            placement.page_of.fill(0);
            manifest.placement.as_mut().unwrap().pages = 1;
        });
        assert!(!report(&volume).clean());
        // With this memory budget, the open index has pages in memory, and opening it examines all
        // pages.
        let options = OpenOptions {
            memory: Some(64 << 20),
            ..OpenOptions::default()
        };
        let volume: Arc<dyn Volume> = Arc::new(volume);
        let index = crate::Index::open_in(volume, grown.folder.path(), &options);
        // If the open index unpacks all nodes into memory, it reads every node. It may then notice
        // that the table gives all nodes the same page.
        let damaged = |error: crate::Error| error.kind() == crate::ErrorKind::Damaged;
        assert!(index.err().is_none_or(damaged), "{layout}");
    }
}

#[test]
fn both_tables_are_there_or_none_is() {
    for layout in PLACED {
        let grown = Grown::new(layout, Update::Accumulate);
        for role in ["placement", "pending"] {
            let volume = grown.with(|_, _, m| m.files.retain(|entry| entry.role != role));
            grown.says(&volume, 1, "/MANIFEST", &format!("it names no {role} file"));
        }
        // This manifest does not mention the direct inserts, which may have reused pages of the
        // build for other nodes.
        let volume = grown.with(|_, _, manifest| manifest.placement = None);
        let found = lines(&volume);
        for role in ["placement", "pending"] {
            let text = format!("the role \"{role}\", but names no rewritten records");
            assert!(found.iter().any(|line| line.contains(&text)), "{found:#?}");
        }
        for change in [
            (|facts| facts.nodes += 1) as fn(&mut stratann_layout::PlacementFacts),
            |facts| facts.pages += 1,
        ] {
            let volume = grown.with(|_, _, m| change(m.placement.as_mut().unwrap()));
            grown.says(&volume, 1, "/placement-", "by the MANIFEST, there are");
        }
        let volume = grown.with(|_, _, m| m.placement.as_mut().unwrap().nodes = u64::MAX);
        grown.says(&volume, 1, "/MANIFEST", "18446744073709551615 nodes");
        let volume = grown.with(|placement, _, _| placement.codes.push(1));
        grown.says(&volume, 1, "/placement-", "bytes of all codes");
        for kind in [FileKind::Placement, FileKind::Pending] {
            let name = grown.manifest().file(kind.name()).unwrap().name.clone();
            let bytes = grown.volume.read(&name).unwrap();
            for at in (0..bytes.len()).step_by(501) {
                let volume = grown.volume.fork();
                let mut bytes = bytes.clone();
                bytes[at] ^= 1;
                write(&volume, &name, &bytes);
                grown.says(&volume, 1, &name, "");
            }
            let volume = grown.volume.fork();
            volume.remove(&name).unwrap();
            grown.says(&volume, 1, &name, "");
            let looked = if kind == FileKind::Pending {
                grown.in_use().0.len()
            } else {
                0
            };
            assert!(report(&volume).pages >= looked as u64);
        }
    }
}

#[test]
fn pages_behind_those_of_the_build_are_harmless() {
    for layout in LAYOUTS {
        let volume = index(layout, &nothing);
        let name = list_file(layout);
        let mut bytes = volume.read(name).unwrap();
        bytes.extend_from_slice(&[77; 5_000]);
        write(&volume, name, &bytes);
        let found = lines(&volume);
        assert_eq!(
            found.is_empty(),
            !matches!(layout, Layout::Inline | Layout::Csr),
            "{layout}: {found:#?}"
        );
    }
    for (layout, update) in CASES {
        let grown = Grown::new(layout, update);
        let volume = grown.changed(&grown.pages().0, |bytes| {
            bytes.extend_from_slice(&[77; 5_000])
        });
        assert_eq!(lines(&volume), Vec::<String>::new());
    }
}

#[test]
fn without_a_placement_no_record_was_written_anew() {
    let nodes = nodes();
    let volume = index(Layout::Coupled, &nothing);
    let shape = CoupledShape::new(Element::F32, DIM, DEGREE).unwrap();
    let mut builder = PageBuilder::new(shape);
    builder.start_relocated();
    for (number, node) in (0..).zip(&nodes).take(shape.relocated_per_page()) {
        assert!(builder.push_node(number, node.id, &node.vector, &node.links));
    }
    let page = builder.finish(0).to_vec();
    assert!(
        PageView::open(&shape, &page, 0, Some(60), true, "g")
            .unwrap()
            .is_relocated()
    );
    let mut bytes = volume.read("graph").unwrap();
    bytes[BLOCK..][..page.len()].copy_from_slice(&page);
    write(&volume, "graph", &bytes);
    let found = lines(&volume);
    assert_eq!(found.len(), 1, "{found:#?}");
    assert!(found[0].contains("/graph, 4096: page 0 has rewritten records"));

    let volume = index(Layout::Packed, &nothing);
    let manifest = stored::manifest(&volume).unwrap();
    let (shape, ..) = reading::slotted(&volume, &manifest, FileKind::Packed, None).unwrap();
    let mut bytes = volume.read("packed").unwrap();
    let (start, size) = (BLOCK + 2 * shape.page_bytes(), shape.page_bytes());
    let page = {
        let view = SlottedView::open(&shape, &bytes[start..][..size], 2, true, "p").unwrap();
        let mut builder = SlottedBuilder::new(shape);
        builder.start_relocated();
        for slot in 0..view.len() {
            let record = view.record(slot).unwrap();
            let (node, id) = (view.node(slot).unwrap(), view.id(slot).unwrap());
            assert!(builder.push_node(node, id, record.list, record.vector));
        }
        builder.finish(2).to_vec()
    };
    bytes[start..][..size].copy_from_slice(&page);
    write(&volume, "packed", &bytes);
    let found = lines(&volume);
    assert_eq!(found.len(), 1, "{found:#?}");
    assert!(found[0].contains("page 2 has rewritten records"));
}
