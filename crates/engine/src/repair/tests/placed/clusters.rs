//! Repairs of cluster indexes that were damaged after inserts in place. Some clusters were
//! rewritten, and some vectors are in files after the build.

use super::*;

const LAYOUTS: [Layout; 3] = [Layout::Replicated, Layout::Addressed, Layout::Grouped];

fn grown(layout: Layout) -> (Place, BTreeSet<u64>) {
    let (place, gone) = Place::grown(layout, Update::Rebalance);
    let live = place.direct(Update::Rebalance);
    live.rebalance(&Silent).unwrap();
    drop(live);
    let facts = place.manifest().placement.unwrap();
    assert_eq!(facts.live, place.model.len() as u64, "{layout}");
    (place, gone)
}

#[test]
fn tables_and_heads_that_are_damaged_cost_no_vector() {
    for layout in LAYOUTS {
        let (place, _) = grown(layout);
        let left = place.repair(&place.volume).unwrap();
        assert!(
            !left.repaired && left.vectors == place.model.len() as u64,
            "{layout}"
        );
        for kind in [FileKind::Amended, FileKind::Navigation, FileKind::Clusters] {
            let what = format!("{layout}: {kind}");
            let name = place.entry(kind, None).name;
            let damaged = place.damaged(&name, &|bytes| bytes[4_100] ^= 1);
            let (report, found) = place.repaired(&damaged, &what);
            assert_eq!(
                (report.vectors_lost, found),
                (0, place.model.clone()),
                "{what}"
            );
        }
        let forced = place.volume.fork();
        let report = repair_with(&forced, place.folder.path(), true).unwrap();
        assert!(
            report.repaired && report.lost.is_empty(),
            "{layout}: {report:#?}"
        );
        assert_eq!(place.whole(&forced, "forced"), place.model, "{layout}");
    }
}

#[test]
fn without_the_table_of_ids_what_was_deleted_comes_back_and_what_was_replaced_does_not() {
    for layout in LAYOUTS {
        let (place, gone) = grown(layout);
        let name = place.entry(FileKind::Placement, None).name;
        let damaged = place.damaged(&name, &|bytes| bytes[4_100] ^= 1);
        assert!(place.repair(&damaged).unwrap().repaired, "{layout}");
        let found = place.whole(&damaged, layout.name());
        for (id, vector) in &place.model {
            assert_eq!(found.get(id), Some(vector), "{layout}: {id}");
        }
        let others = found.keys().filter(|id| !place.model.contains_key(id));
        assert!(others.into_iter().all(|id| gone.contains(id)), "{layout}");
    }
}

#[test]
fn of_a_damaged_file_of_what_came_later_the_rest_is_kept() {
    for layout in LAYOUTS {
        let (place, _) = grown(layout);
        let manifest = place.manifest();
        let later = manifest.files.iter().filter(|entry| {
            matches!(
                entry.kind(),
                Some((FileKind::Addressed | FileKind::Replicated, Some(_)))
            )
        });
        let entry = later.into_iter().next_back().unwrap();
        for at in [4_100, entry.length as usize / 2, 20] {
            let what = format!("{layout}: {}, byte {at}", entry.name);
            let damaged = place.damaged(&entry.name, &|bytes| bytes[at] ^= 1);
            assert!(!verify_in(&damaged, &Silent).unwrap().clean(), "{what}");
            let (report, found) = place.repaired(&damaged, &what);
            for (id, vector) in &found {
                assert_eq!(place.model.get(id), Some(vector), "{what}: {id}");
            }
            let lost = (place.model.len() - found.len()) as u64;
            assert_eq!(report.vectors_lost, lost, "{what}");
            // Most vectors of a lost cluster have copies in other clusters.
            assert!(lost <= 30, "{what}: {lost} of {}", place.model.len());
        }
    }
}

#[test]
fn of_a_vector_that_was_replaced_twice_the_newest_is_repaired() {
    for layout in LAYOUTS {
        let (mut place, _) = grown(layout);
        let others = photos(9_000, 120);
        for round in 0..2 {
            let live = place.direct(Update::Rebalance);
            let ids: Vec<u64> = (FIRST + 100..FIRST + 160).collect();
            let rows: Vec<u8> = (0..60).flat_map(|n| row(&others, 60 * round + n)).collect();
            let rows = Matrix::new(rows, 60, DIM, Element::U8).unwrap();
            live.upsert(&rows, &ids, &Silent).unwrap();
            live.rebalance(&Silent).unwrap();
            for (n, &id) in ids.iter().enumerate() {
                place.model.insert(id, row(&others, 60 * round + n));
            }
        }
        let name = place.entry(FileKind::Placement, None).name;
        let damaged = place.damaged(&name, &|bytes| bytes[4_100] ^= 1);
        assert!(place.repair(&damaged).unwrap().repaired, "{layout}");
        let found = place.whole(&damaged, layout.name());
        for (id, vector) in &place.model {
            assert_eq!(found.get(id), Some(vector), "{layout}: {id}");
        }
    }
}
