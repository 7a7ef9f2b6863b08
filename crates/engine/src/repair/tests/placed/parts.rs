//! Repairs of damaged indexes whose vectors are in two parts, after direct inserts.

use stratann_layout::SlottedView;

use super::*;
use crate::slow::step;
use crate::stores::reading;

const LAYOUT: Layout = Layout::Layered;

impl Place {
    fn counting_on(&self, page: u32) -> Vec<(u32, u64)> {
        let (placement, pending) = self.tables();
        let (name, _) = self.page_file(LAYOUT);
        let manifest = self.manifest();
        let kind = LAYOUT.composition().lists;
        let shape = reading::slotted(&self.volume, &manifest, kind, None)
            .unwrap()
            .0;
        let mut bytes = vec![0; shape.page_bytes()];
        let offset = shape.file_offset(page.into());
        self.volume.read_at(&name, offset, &mut bytes).unwrap();
        let view = SlottedView::open(&shape, &bytes, page.into(), true, "v").unwrap();
        let records =
            (0..view.len()).map(|slot| (view.node(slot).unwrap(), view.id(slot).unwrap()));
        let here = |node: u32| placement.page_of.get(node as usize) == Some(&page);
        let waits = |node: u32| pending.records.iter().any(|record| record.node == node);
        records
            .filter(|&(node, id)| here(node) && !waits(node) && !placement.is_dead(id, node))
            .collect()
    }
}

#[test]
fn with_a_page_of_lists_the_leading_parts_on_it_are_lost() {
    let step = step(8);
    let mut lost_new = 0;
    for update in [Update::Accumulate, Update::Relocate] {
        let (place, _) = Place::grown(LAYOUT, update);
        let (placement, built) = (place.tables().0, place.manifest().vectors as u32);
        let mut pages = placement.page_of.clone();
        pages.sort_unstable();
        pages.dedup();
        let pages = pages.into_iter().filter(|&page| page < placement.pages);
        for page in pages.step_by(step) {
            let (on, what) = (place.counting_on(page), format!("{update:?}: page {page}"));
            let (report, found) = place.repaired(&place.hit(LAYOUT, &[page]), &what);
            let lost: BTreeSet<u64> = place.model.keys().copied().collect();
            let lost: BTreeSet<u64> = lost
                .into_iter()
                .filter(|id| !found.contains_key(id))
                .collect();
            let all: BTreeSet<u64> = on.iter().map(|&(_, id)| id).collect();
            // An earlier page may still have the leading part of a node of the build.
            assert!(lost.is_subset(&all), "{what}: {lost:?} of {all:?}");
            for &(_, id) in on.iter().filter(|&&(node, _)| node >= built) {
                assert!(lost.contains(&id), "{what}: {id}");
                lost_new += 1;
            }
            let said: u64 = report.lost.iter().map(|lost| lost.vectors).sum();
            assert_eq!(said, lost.len() as u64, "{what}: {report:#?}");
        }
    }
    assert!(lost_new * step > 100, "{lost_new}");
}

#[test]
fn with_what_waits_the_leading_parts_of_new_nodes_are_lost() {
    let (place, _) = Place::grown(LAYOUT, Update::Accumulate);
    let (placement, pending) = place.tables();
    let counting = |id: u64, node: u32| !placement.is_dead(id, node);
    let waiting = pending.records.iter();
    let waiting = waiting.filter(|record| counting(record.id, record.node));
    let waiting: BTreeSet<u64> = waiting.map(|record| record.id).collect();
    assert!(!waiting.is_empty());
    let volume = place.volume.fork();
    volume
        .remove(&place.entry(FileKind::Pending, None).name)
        .unwrap();
    let report = place.loses(&volume, &waiting, "pending");
    let said: u64 = report.lost.iter().map(|lost| lost.vectors).sum();
    assert_eq!(said, waiting.len() as u64, "{report:#?}");
}

#[test]
fn what_waits_is_whole_whatever_becomes_of_pages_of_vectors() {
    let (place, _) = Place::grown(LAYOUT, Update::Accumulate);
    let (placement, pending) = place.tables();
    // If an id was replaced, its old node may still have a pending record. This record is dead.
    let counts =
        |record: &&stratann_layout::PendingRecord| !placement.is_dead(record.id, record.node);
    let waiting: BTreeSet<u64> = pending
        .records
        .iter()
        .filter(counts)
        .map(|record| record.id)
        .collect();
    let manifest = place.manifest();
    let n = manifest.segments.len() as u32 - 1;
    let found = reading::slotted(&place.volume, &manifest, FileKind::Vectors, Some(n)).unwrap();
    let (shape, facts, entry) = found;
    let (name, first) = (entry.name.clone(), facts.pages);
    for page in first..first + placement.added.len() as u64 {
        let at = shape.file_offset(page) as usize + 300;
        let volume = place.damaged(&name, &|bytes| bytes[at] ^= 1);
        let (_, found) = place.repaired(&volume, &format!("page {page}"));
        let lost = waiting.iter().filter(|id| !found.contains_key(id));
        let lost: Vec<&u64> = lost.collect();
        assert!(lost.is_empty(), "{page}: {lost:?}");
    }
    let volume = place.volume.fork();
    volume.remove(&name).unwrap();
    let (_, found) = place.repaired(&volume, "no file");
    for id in waiting {
        assert!(found.contains_key(&id), "{id}");
    }
}
