//! The file of ids of a build.

use stratann_layout::manifest::IDS;

use super::*;
use crate::stores::ids::{IdTable, LastBlock};
use crate::update::each_vector;

const ROWS: usize = 900;

/// An index of rows with these ids.
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
        assert_eq!(manifest.writer_features, IDS);
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
            Layout::Coupled | Layout::Inline => 8 * ROWS as u64,
            _ => 0,
        };
        let stats = index.stats();
        assert_eq!(stats.bytes.ids, in_records + 4 * 4096, "{layout}");
        let files = manifest.files.iter().map(|entry| entry.length);
        assert_eq!(stats.bytes.total, files.sum::<u64>());
    }
}

#[test]
fn ids_that_are_row_numbers_in_any_order_have_none() {
    let backwards = (0..ROWS as u64).rev().collect();
    for ids in [None, Some(backwards)] {
        let (volume, index) = built(Layout::Packed, ids);
        assert_eq!(index.manifest().writer_features, 0);
        assert!(index.manifest().file("ids").is_none());
        assert!(IdTable::open(&volume, index.manifest()).unwrap().is_none());
    }
}
