//! Repairs of indexes that were damaged after direct inserts.

use crate::DirectOptions;
use std::collections::BTreeSet;

use parking_lot::Mutex;
use stratann_layout::{PendingFile, PlacementFile};

use super::*;

mod apart;
mod clusters;
mod journaled;
mod parts;

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
const WHOLE: [Layout; 2] = [Layout::Coupled, Layout::Packed];

impl Place {
    /// An index with direct inserts, replacements and deletes, and the set of deleted ids. A
    /// process makes each index only once, and then copies it.
    fn grown(layout: Layout, update: Update) -> (Self, BTreeSet<u64>) {
        type Grown = (Layout, Update, Place, BTreeSet<u64>);
        static GROWN: Mutex<Vec<Grown>> = Mutex::new(Vec::new());
        let mut grown = GROWN.lock();
        let known = |of: &&Grown| (of.0, of.1) == (layout, update);
        if let Some((.., place, gone)) = grown.iter().find(known) {
            return (place.copy(), gone.clone());
        }
        let (place, gone) = Self::grow(layout, update);
        grown.push((layout, update, place.copy(), gone.clone()));
        (place, gone)
    }

    fn grow(layout: Layout, update: Update) -> (Self, BTreeSet<u64>) {
        let mut place = Self::new(layout);
        let others = photos(5_000, 320);
        let rows = |from: usize, count: usize| {
            let rows = (from..from + count).flat_map(|n| row(&others, n)).collect();
            Matrix::new(rows, count, DIM, Element::U8).unwrap()
        };
        let put = |model: &mut Model, live: &LiveIndex, ids: &[u64], from: usize, new: bool| {
            let vectors = rows(from, ids.len());
            match new {
                true => drop(live.insert(&vectors, Some(ids), &Silent).unwrap()),
                false => live.upsert(&vectors, ids, &Silent).unwrap(),
            }
            for (n, &id) in ids.iter().enumerate() {
                model.insert(id, row(&others, from + n));
            }
        };
        let live = place.direct(update);
        let new: Vec<u64> = (100..300).collect();
        put(&mut place.model, &live, &new, 0, true);
        let old: Vec<u64> = (FIRST..FIRST + 20).chain(150..160).collect();
        put(&mut place.model, &live, &old, 200, false);
        let gone: BTreeSet<u64> = (FIRST + 15..FIRST + 40).chain(155..175).collect();
        live.delete(&gone.iter().copied().collect::<Vec<_>>())
            .unwrap();
        drop(live);
        gone.iter().for_each(|id| drop(place.model.remove(id)));
        let live = place.direct(update);
        let more: Vec<u64> = (400..480).chain([155, 156]).collect();
        put(&mut place.model, &live, &more, 230, true);
        drop(live);
        let gone = gone
            .into_iter()
            .filter(|id| !place.model.contains_key(id))
            .collect();
        assert!(verify_in(&place.volume, &Silent).unwrap().clean());
        assert!(place.manifest().placement.is_some());
        (place, gone)
    }

    fn direct(&self, update: Update) -> LiveIndex {
        let options = WriteOptions {
            durability: Durability::Always,
            threads: 1,
            update: Some(update),
            direct: DirectOptions {
                pending: 16 << 10,
                // With one insert in flight, each run writes the same pages.
                in_flight: 1,
                // With this setting, some records stay pending.
                write_home: false,
                // A cluster index makes no checkpoint when it is closed.
                checkpoint: (update == Update::Rebalance).then_some(32),
                ..DirectOptions::default()
            },
        };
        let volume: Arc<dyn Volume> = Arc::new(self.volume.clone());
        LiveIndex::open_in(
            volume,
            self.folder.path(),
            &OpenOptions::default(),
            &options,
        )
        .unwrap()
    }

    fn tables(&self) -> (PlacementFile, PendingFile) {
        let manifest = self.manifest();
        let placement = reading::placement(&self.volume, &manifest).unwrap();
        let pending = match manifest.file(FileKind::Pending.name()) {
            Some(_) => reading::pending(&self.volume, &manifest).unwrap(),
            None => PendingFile::default(),
        };
        (placement.unwrap(), pending)
    }

    fn page_file(&self, layout: Layout) -> (String, usize) {
        let kind = layout.composition().lists;
        let bytes = match layout {
            Layout::Coupled => CoupledShape::new(Element::U8, DIM, 16)
                .unwrap()
                .page_bytes(),
            Layout::Inline => BLOCK,
            _ => {
                let manifest = self.manifest();
                let found = reading::slotted(&self.volume, &manifest, kind, None);
                found.unwrap().0.page_bytes()
            }
        };
        (self.entry(kind, None).name, bytes)
    }

    fn hit(&self, layout: Layout, pages: &[u32]) -> SimVolume {
        let (name, size) = self.page_file(layout);
        self.damaged(&name, &|bytes| {
            for &page in pages {
                bytes[BLOCK + page as usize * size + 300] ^= 1;
            }
        })
    }

    #[track_caller]
    pub(super) fn loses(
        &self,
        volume: &SimVolume,
        lost: &BTreeSet<u64>,
        what: &str,
    ) -> RepairReport {
        let (report, found) = self.repaired(volume, what);
        let gone = self.model.keys().filter(|id| !found.contains_key(id));
        assert_eq!(&gone.copied().collect::<BTreeSet<_>>(), lost, "{what}");
        report
    }
}

fn codes_of(layout: Layout) -> FileKind {
    match layout {
        Layout::Inline => FileKind::Entries,
        _ => FileKind::Codes,
    }
}

#[test]
fn tables_and_pages_that_are_not_about_vectors_cost_none() {
    for (layout, update) in CASES {
        let (place, _) = Place::grown(layout, update);
        let facts = place.manifest().placement.unwrap();
        let what = format!("{layout}, {update:?}");
        assert_eq!(facts.live, place.model.len() as u64, "{what}");
        let left = place.repair(&place.volume).unwrap();
        assert!(!left.repaired && left.vectors == facts.live, "{what}");
        let codes = place.entry(codes_of(layout), None).name;
        let (_, found) = place.repaired(&place.damaged(&codes, &|bytes| bytes[5_000] ^= 1), &what);
        assert_eq!(found, place.model, "{what}");
        let forced = place.volume.fork();
        let report = repair_with(&forced, place.folder.path(), true).unwrap();
        assert!(
            report.repaired && report.lost.is_empty(),
            "{what}: {report:#?}"
        );
        assert_eq!(place.whole(&forced, &what), place.model, "{what}");
        // The new index must not use the ids of deleted vectors again.
        let after = stored::manifest(&forced).unwrap();
        assert!(
            after.placement.is_none() && after.next_id == facts.next_id,
            "{what}"
        );
    }
}

#[test]
fn of_a_damaged_page_the_nodes_that_are_on_it_are_lost() {
    for layout in WHOLE {
        for update in [Update::Accumulate, Update::Relocate] {
            let (place, gone) = Place::grown(layout, update);
            let (placement, pending) = place.tables();
            let waits = |node: u32| pending.records.iter().any(|record| record.node == node);
            let on = |page: u32| {
                let nodes = (0..).zip(&placement.page_of);
                nodes
                    .filter(|&(node, &here)| here == page && !waits(node))
                    .count()
            };
            let used: Vec<u32> = (0..placement.pages).filter(|&page| on(page) > 0).collect();
            assert!(used.len() < placement.pages as usize);
            for pages in [vec![used[0]], vec![used[1], used[used.len() - 1]]] {
                let what = format!("{layout}, {update:?}: {pages:?}");
                let volume = place.hit(layout, &pages);
                assert!(!verify_in(&volume, &Silent).unwrap().clean(), "{what}");
                let report = place.repair(&volume).unwrap();
                let found = place.whole(&volume, &what);
                let lost = place.model.len() - found.len();
                let most: usize = pages.iter().map(|&page| on(page)).sum();
                assert!(
                    lost <= most && lost + 12 > most && lost > 0,
                    "{what}: {lost} of {most}"
                );
                assert_eq!(report.vectors_lost, lost as u64, "{what}");
                assert_eq!(report.lost[0].vectors, lost as u64, "{what}: {report:#?}");
                let text = format!("{} of {} pages are damaged", pages.len(), used.len());
                assert!(report.lost[0].what.contains(&text), "{what}: {report:#?}");
                for (id, vector) in &found {
                    assert_eq!(place.model.get(id), Some(vector), "{what}: {id}");
                    assert!(!gone.contains(id));
                }
            }
        }
    }
}

#[test]
fn without_the_placement_all_records_count_and_deleted_ids_come_back() {
    for (layout, update) in CASES {
        let (place, gone) = Place::grown(layout, update);
        let name = place.entry(FileKind::Placement, None).name;
        let missing = place.volume.fork();
        missing.remove(&name).unwrap();
        for (how, volume) in [
            (
                "flip",
                place.damaged(&name, &|bytes| bytes[BLOCK + 900] ^= 1),
            ),
            ("cut", place.damaged(&name, &|bytes| bytes.truncate(BLOCK))),
            ("gone", missing),
        ] {
            let what = format!("{layout}, {update:?}: {how}");
            let report = place.repair(&volume).unwrap();
            let found = place.whole(&volume, &what);
            // The index has all live vectors. Each other vector in it has a deleted id.
            for (id, vector) in &place.model {
                assert_eq!(found.get(id), Some(vector), "{what}: {id}");
            }
            let back: BTreeSet<u64> = found
                .keys()
                .filter(|id| !place.model.contains_key(id))
                .copied()
                .collect();
            assert!(
                !back.is_empty() && back.is_subset(&gone),
                "{what}: {back:?}"
            );
            assert_eq!(report.vectors_lost, 0, "{what}: {report:#?}");
            let file = stored::name_of(&volume, &name);
            let said = report.lost.iter().find(|lost| lost.file == file).unwrap();
            assert!(
                said.what.contains("number of deleted ids comes back"),
                "{report:#?}"
            );
        }
    }
}

#[test]
fn what_waited_is_lost_with_its_file_alone() {
    for layout in WHOLE {
        let (place, _) = Place::grown(layout, Update::Accumulate);
        let (placement, pending) = place.tables();
        assert!(pending.records.len() > 5);
        let waited: BTreeSet<u64> = pending.records.iter().map(|record| record.id).collect();
        let name = place.entry(FileKind::Pending, None).name;
        let volume = place.damaged(&name, &|bytes| bytes[BLOCK + 30] ^= 1);
        let what = format!("{layout}: pending");
        let report = place.repair(&volume).unwrap();
        let found = place.whole(&volume, &what);
        let lost: BTreeSet<u64> = place
            .model
            .keys()
            .filter(|id| !found.contains_key(id))
            .copied()
            .collect();
        assert!(
            !lost.is_empty() && lost.is_subset(&waited),
            "{what}: {lost:?}"
        );
        assert_eq!(
            report.vectors_lost,
            lost.len() as u64,
            "{what}: {report:#?}"
        );
        assert_eq!(
            report.lost[0].vectors,
            lost.len() as u64,
            "{what}: {report:#?}"
        );
        assert!(report.lost[0].file.ends_with(&name), "{what}: {report:#?}");
        for (id, vector) in &found {
            assert_eq!(place.model.get(id), Some(vector), "{what}: {id}");
        }
        // The pending nodes are lost, but all other nodes are restored.
        let volume = place.damaged(&name, &|bytes| bytes[BLOCK + 30] ^= 1);
        volume
            .remove(&place.entry(FileKind::Placement, None).name)
            .unwrap();
        let report = place.repair(&volume).unwrap();
        let found = place.whole(&volume, &what);
        for (id, vector) in &place.model {
            let there = found.get(id) == Some(vector);
            assert!(there || waited.contains(id), "{what}: {id}");
        }
        assert_eq!(
            report.vectors_lost,
            pending.records.len() as u64,
            "{what}: {report:#?}"
        );
        assert!(placement.page_of.len() > found.len());
    }
}

#[test]
fn headers_and_ends_of_the_file_of_pages_and_the_log() {
    let cases = CASES.into_iter().filter(|case| case.1 != Update::Relocate);
    for (layout, update) in cases {
        let (mut place, _) = Place::grown(layout, update);
        let (name, _) = place.page_file(layout);
        let what = format!("{layout}: header");
        let (_, found) = place.repaired(&place.damaged(&name, &|bytes| bytes[20] ^= 1), &what);
        assert_eq!(found, place.model, "{what}");
        let what = format!("{layout}: cut");
        let cut = |bytes: &mut Vec<u8>| bytes.truncate(bytes.len() / 2 / BLOCK * BLOCK);
        let volume = place.damaged(&name, &cut);
        let report = place.repair(&volume).unwrap();
        let found = place.whole(&volume, &what);
        assert_eq!(
            report.vectors_lost as usize,
            place.model.len() - found.len(),
            "{what}"
        );
        assert!(
            found
                .iter()
                .all(|(id, vector)| place.model.get(id) == Some(vector)),
            "{what}"
        );
        // The log has newer vectors for some ids. These vectors replace older records, which are on
        // pages or pending.
        let live = place.direct(update);
        let waited = place.tables().1.records.first().map_or(410, |one| one.id);
        let (replaced, new) = ([waited, 110, FIRST], [9_000]);
        let rows = |from: usize, count: usize| photos(6_000 + from, count);
        live.upsert(&rows(0, 3), &replaced, &Silent).unwrap();
        live.insert(&rows(3, 1), Some(&new), &Silent).unwrap();
        live.delete(&[111, FIRST + 1]).unwrap();
        let damaged = place.volume.fork();
        drop(live);
        for (n, &id) in replaced.iter().chain(&new).enumerate() {
            place.model.insert(id, row(&rows(n, 1), 0));
        }
        [111, FIRST + 1]
            .iter()
            .for_each(|id| drop(place.model.remove(id)));
        let manifest = stored::manifest(&damaged).unwrap();
        let codes = &manifest.file(codes_of(layout).name()).unwrap().name;
        let what = format!("{layout}: log");
        change(&damaged, codes, &|bytes| bytes[5_000] ^= 1);
        let (report, found) = place.repaired(&damaged, &what);
        assert_eq!((found, report.from_log), (place.model.clone(), 4), "{what}");
    }
}
