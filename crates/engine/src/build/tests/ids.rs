//! Tests the file of ids that a build writes.

use stratann_layout::manifest::IDS;

use super::*;
use crate::index::contents::each_vector;
use crate::stores::ids::{IdTable, LastBlock};

const ROWS: usize = 900;

fn built(layout: Layout, ids: Option<Vec<u64>>) -> (SimVolume, Index) {
    let (folder, volume) = (tempfile::tempdir().unwrap(), SimVolume::new());
    let options = BuildOptions {
        ids,
        ..options(layout)
    };
    super::super::build_rows(&volume, &rows(ROWS), &options, folder.path());
    let open = OpenOptions::default();
    let index = Index::open_in(Arc::new(volume.clone()), folder.path(), &open).unwrap();
    (volume, index)
}

#[test]
fn ids_that_are_no_row_numbers_have_a_file_of_their_own() {
    let hash = |row: usize| (row as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 1;
    for layout in Layout::ALL {
        let (volume, index) = built(layout, Some((0..ROWS).map(hash).collect()));
        let manifest = index.manifest();
        assert_eq!(manifest.writer_features & IDS, IDS);
        let mut expected = Vec::new();
        each_vector(&index, &Silent, &mut |node, id, _| {
            expected.push((id, node));
            Ok(())
        })
        .unwrap();
        expected.sort_unstable();
        let table = IdTable::open(&volume, manifest).unwrap().unwrap();
        let (mut found, mut last) = (Vec::new(), LastBlock::none());
        for block in 0..3 {
            let view = table.block(block, &mut last).unwrap();
            found.extend((0..view.len()).map(|place| view.get(place)));
        }
        assert_eq!(found, expected, "{layout}");
        let report = verify_in(&volume, &Silent).unwrap();
        assert!(report.clean(), "{layout}: {:?}", report.problems);
        let in_records = match layout {
            Layout::Coupled | Layout::Inline | Layout::Csr => 8 * ROWS as u64,
            Layout::Replicated => 8 * manifest.clusters().unwrap().members,
            Layout::Addressed | Layout::Grouped => 8 * ROWS as u64,
            _ => 0,
        };
        let stats = index.stats();
        assert_eq!(stats.bytes.ids, in_records + 4 * 4096, "{layout}");
        let files = manifest.files.iter().map(|entry| entry.length);
        assert_eq!(stats.bytes.total, files.sum::<u64>());
    }
}

#[test]
fn ids_that_are_the_numbers_of_their_nodes_have_none() {
    let backwards: Vec<u64> = (0..ROWS as u64).rev().collect();
    for (order, ids, has_one) in [
        (Order::Input, None, false),
        (Order::Input, Some(backwards.clone()), true),
        (Order::Locality, None, true),
        (Order::Locality, Some(backwards), true),
    ] {
        let (folder, volume) = (tempfile::tempdir().unwrap(), SimVolume::new());
        let options = BuildOptions {
            ids: ids.clone(),
            order: Some(order),
            ..options(Layout::Packed)
        };
        super::super::build_rows(&volume, &rows(ROWS), &options, folder.path());
        let open = OpenOptions::default();
        let index = Index::open_in(Arc::new(volume.clone()), folder.path(), &open).unwrap();
        let place = format!("{order}, {}", ids.is_some());
        let manifest = index.manifest();
        assert_eq!(manifest.writer_features & IDS == IDS, has_one, "{place}");
        assert_eq!(manifest.file("ids").is_some(), has_one, "{place}");
        let table = IdTable::open(&volume, manifest).unwrap();
        assert_eq!(table.is_some(), has_one, "{place}");
        // The file has one block after its header, with ten bits for each node. Pairs of id and
        // node would need three blocks.
        let length = manifest.file("ids").map(|entry| entry.length);
        assert_eq!(length, has_one.then_some(2 * 4096), "{place}");
        each_vector(&index, &Silent, &mut |node, id, vector| {
            let found = table
                .as_ref()
                .map_or(Ok(Some(id as u32)), |table| table.node_of(id));
            assert_eq!(found.unwrap(), Some(node), "{place}: {id}");
            let rows = index.vectors(&[id], &Silent).unwrap();
            assert_eq!(rows.vectors, vector, "{place}: {id}");
            Ok(())
        })
        .unwrap();
        let report = verify_in(&volume, &Silent).unwrap();
        assert!(report.clean(), "{place}: {:?}", report.problems);
    }
}

#[test]
fn a_damaged_block_of_ids_is_one_problem() {
    // With these ids, look-ups of ids in other blocks read the damaged block too.
    let squares = (0..ROWS as u64).map(|row| row * row).collect();
    let (volume, index) = built(Layout::Packed, Some(squares));
    let name = &index.manifest().file("ids").unwrap().name;
    let at = 2 * 4096 + 77;
    let mut byte = [0];
    volume.read_at(name, at, &mut byte).unwrap();
    let mut file = volume.open(name).unwrap();
    file.write_at(at, &[byte[0] ^ 1]).unwrap();
    let report = verify_in(&volume, &Silent).unwrap();
    assert_eq!(report.problem_count, 1, "{:?}", report.problems);
    assert_eq!(report.problems[0].offset, Some(2 * 4096));
}

#[test]
fn an_id_beyond_the_row_numbers_that_a_manifest_claims_is_named() {
    // There are as many ids as rows, but one id is no row number.
    let mut ids: Vec<u64> = (0..ROWS as u64).collect();
    ids[7] = 5_000;
    let (volume, index) = built(Layout::Packed, Some(ids));
    let mut manifest = index.manifest().clone();
    let name = manifest.file("ids").unwrap().name.clone();
    manifest.files.retain(|entry| entry.name != name);
    manifest.writer_features &= !IDS;
    manifest.next_id = ROWS as u64;
    let mut file = volume.create(stratann_layout::manifest::FILE_NAME).unwrap();
    file.write_at(0, &manifest.encode()).unwrap();
    let report = verify_in(&volume, &Silent).unwrap();
    let said = |problem: &crate::Problem| problem.what.contains("external id 5000");
    assert!(report.problems.iter().any(said), "{:?}", report.problems);
}
