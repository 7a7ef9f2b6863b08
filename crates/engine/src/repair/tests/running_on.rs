//! Repairs of damaged segments with vectors that span blocks. Each vector with bytes in a damaged
//! block is lost.

use std::collections::BTreeSet;

use super::*;
use crate::DirectOptions;

/// Vectors of less than one page, of more than one page, and of more than two pages.
const WIDE: [usize; 3] = [1_280, 4_992, 9_984];
const COUNT: usize = 30;
const REPLACED: u64 = FIRST + 3;

fn wide(first: usize, rows: usize, dim: usize) -> Matrix {
    let a_row = dim / DIM;
    let all = photos(first, rows * a_row);
    let bytes = (0..rows * a_row).flat_map(|n| row(&all, n)).collect();
    Matrix::new(bytes, rows, dim, Element::U8).unwrap()
}

fn place(dim: usize, compression: Compression, grown: bool) -> Place {
    let options = BuildOptions {
        compression: Some(compression),
        ids: Some((FIRST..).take(COUNT).collect()),
        chunk_bytes: 5 * dim as u64,
        segment_bytes: 20 * dim as u64,
        navigation: 0.0,
        code_bytes: Some(8),
        degree: Some(8),
        build_list: 12,
        ..options(Layout::Decoupled)
    };
    let mut place = Place::of(&wide(0, COUNT, dim), &options);
    if grown {
        let ids: Vec<u64> = (100..112).collect();
        place.put(&wide(4_000, ids.len(), dim), &ids);
    }
    assert!(verify_in(&place.volume, &Silent).unwrap().clean());
    place
}

impl Place {
    fn put(&mut self, new: &Matrix, ids: &[u64]) {
        let write = WriteOptions {
            durability: Durability::Always,
            threads: 1,
            update: Some(Update::Accumulate),
            direct: DirectOptions::default(),
        };
        let (volume, open): (Arc<dyn Volume>, _) =
            (Arc::new(self.volume.clone()), OpenOptions::default());
        let live = LiveIndex::open_in(volume, self.folder.path(), &open, &write).unwrap();
        for (n, &id) in ids.iter().enumerate() {
            let vector = row(new, n);
            let one = Matrix::new(vector.clone(), 1, new.dim(), Element::U8).unwrap();
            live.upsert(&one, &[id], &Silent).unwrap();
            self.model.insert(id, vector);
        }
    }

    fn touched(&self, n: u32) -> BTreeMap<u64, Vec<u64>> {
        let shared: Arc<dyn Volume> = Arc::new(self.volume.clone());
        let index = Index::open_in(shared, self.folder.path(), &OpenOptions::default()).unwrap();
        let segments = index.graph().segments.as_ref().unwrap();
        // Nodes are read in ascending order, so the map has the last node of each id. This node is
        // live.
        let mut places = BTreeMap::new();
        each_vector(&index, &Silent, &mut |node, id, _| {
            places.insert(id, segments.place_of(node));
            Ok(())
        })
        .unwrap();
        let here = places
            .into_iter()
            .filter(|(_, place)| place.segment == n as usize);
        here.map(|(id, place)| (id, (place.page..place.end()).collect()))
            .collect()
    }
}

#[test]
fn of_a_damaged_block_the_vectors_are_lost_that_touch_it() {
    let all = [
        (WIDE[1], Compression::Raw, true),
        (WIDE[2], Compression::Best, true),
        (WIDE[0], Compression::Best, true),
        (WIDE[1], Compression::Best, false),
    ];
    for (dim, compression, grown) in all.into_iter().take(if slow() { 4 } else { 2 }) {
        let place = place(dim, compression, grown);
        for n in 0..place.manifest().segments.len() as u32 {
            let name = place.entry(FileKind::Vectors, Some(n)).name;
            let touched = place.touched(n);
            let blocks = place.volume.len(&name).unwrap() / BLOCK as u64 - 1;
            let several = touched.values().filter(|blocks| blocks.len() > 1).count();
            assert!(several > 0, "{dim}: {touched:?}");
            let mut tried = 0;
            // By default, every fifth block and the last block are damaged.
            for block in (0..blocks).filter(|block| slow() || block % 5 == 1 || block + 1 == blocks)
            {
                let what = format!("{dim}, {compression}: block {block} of {name}");
                let lost = touched.iter().filter(|(_, here)| here.contains(&block));
                let lost: BTreeSet<u64> = lost.map(|(&id, _)| id).collect();
                let at = (block as usize + 1) * BLOCK + 300;
                let volume = place.damaged(&name, &|bytes| bytes[at] ^= 1);
                let verified = verify_in(&volume, &Silent).unwrap();
                let here = |problem: &&crate::verify::Problem| problem.file.ends_with(&name);
                let problems: Vec<_> = verified.problems.iter().filter(here).collect();
                // A vector that begins before the damaged block and continues in it is lost too.
                let before = touched
                    .iter()
                    .filter(|(_, here)| here.contains(&block) && here[0] < block);
                assert_eq!(problems.len(), 1 + before.count(), "{what}: {problems:#?}");
                // To repair each damaged index would take too long.
                if block % (if slow() { 5 } else { 25 }) == 1 || block + 1 == blocks {
                    let report = place.loses(&volume, &lost, &what);
                    assert_eq!(report.lost.len(), 1, "{what}: {report:#?}");
                    assert!(report.lost[0].what.starts_with("1 of "), "{report:#?}");
                    tried += lost.len();
                }
            }
            assert!(tried > 0);
            let volume = place.damaged(&name, &|bytes| bytes[20] ^= 1);
            place.loses(&volume, &BTreeSet::new(), "header");
            let half = blocks / 2;
            let volume = place.damaged(&name, &|bytes| {
                bytes.truncate((half as usize + 1) * BLOCK + 77);
            });
            let lost = touched
                .iter()
                .filter(|(_, here)| here.iter().any(|&block| block >= half));
            place.loses(&volume, &lost.map(|(&id, _)| id).collect(), "an end");
        }
        if grown {
            // Without the table, the order of added pages follows from their nodes.
            let name = place.entry(FileKind::Placement, None).name;
            let volume = place.volume.fork();
            volume.remove(&name).unwrap();
            place.loses(&volume, &BTreeSet::new(), "placement");
        }
    }
}

#[test]
fn a_vector_that_goes_on_on_a_page_of_another_time_is_not_put_together() {
    let place = place(WIDE[1], Compression::Best, false);
    let name = place.entry(FileKind::Vectors, Some(0)).name;
    let touched = place.touched(0);
    let page = touched.values().find(|pages| pages.len() > 1).unwrap()[1];
    let lost = touched
        .iter()
        .filter(|(_, pages)| pages.len() > 1 && pages.contains(&page));
    let lost: BTreeSet<u64> = lost.map(|(&id, _)| id).collect();
    // The page is not damaged, but it does not continue the page before it.
    let volume = place.damaged(&name, &|bytes| {
        let number = page + 1;
        let block = &mut bytes[number as usize * BLOCK..][..BLOCK];
        block[28] ^= 1;
        stratann_layout::block::seal(block, number);
    });
    let verified = verify_in(&volume, &Silent).unwrap();
    let said =
        |problem: &crate::verify::Problem| problem.what.contains("checksum of the page before");
    assert!(verified.problems.iter().any(said), "{verified:#?}");
    let report = place.loses(&volume, &lost, "another time");
    let expected = format!("{} vectors do not decode", lost.len());
    assert_eq!(report.lost[0].what, expected, "{report:#?}");
}

#[test]
fn what_was_replaced_does_not_come_back_because_its_successor_goes_on_on_a_damaged_page() {
    let mut place = place(WIDE[1], Compression::Best, true);
    // The two new vectors follow another vector, so that they span pages.
    place.put(&wide(5_000, 2, WIDE[1]), &[200, REPLACED]);
    let last = place.manifest().segments.len() as u32 - 1;
    let name = place.entry(FileKind::Vectors, Some(last)).name;
    let touched = place.touched(last);
    let block = *touched[&REPLACED].last().unwrap();
    assert!(touched[&REPLACED][0] < block);
    let lost = touched.iter().filter(|(_, pages)| pages.contains(&block));
    let lost: BTreeSet<u64> = lost.map(|(&id, _)| id).collect();
    // Without the placement, no file says which nodes are dead.
    for placement in [true, false] {
        let at = (block as usize + 1) * BLOCK + 300;
        let volume = place.damaged(&name, &|bytes| bytes[at] ^= 1);
        if !placement {
            let placement = place.entry(FileKind::Placement, None).name;
            volume.remove(&placement).unwrap();
        }
        place.loses(&volume, &lost, &format!("placement {placement}"));
    }
}
