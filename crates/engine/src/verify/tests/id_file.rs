//! Tests the checks of the file of ids.

use stratann_layout::ids::{self, ENTRY};
use stratann_layout::manifest::IDS;
use stratann_layout::{IdsFile, stream};

use super::*;

type Entries<'a> = &'a dyn Fn(&mut Vec<(u64, u32)>);

fn with_ids(layout: Layout, change: Entries<'_>) -> SimVolume {
    let says = in_manifest(|manifest| {
        manifest.writer_features = IDS;
        manifest.next_id = 1_001;
    });
    let volume = index(layout, &says);
    let numbered = nodes().into_iter().map(|node| node.id).zip(0..);
    let mut entries: Vec<(u64, u32)> = numbered.collect();
    entries.sort_unstable();
    change(&mut entries);
    let bytes = entries.iter().flat_map(|&(id, node)| ids::entry(id, node));
    let file = stream::encode(FileKind::Ids, &bytes.collect::<Vec<u8>>(), &[]);
    with_encoded(&volume, FileKind::Ids, &file);
    volume
}

fn with_nodes(change: &dyn Fn(&mut Vec<u32>)) -> SimVolume {
    let says = in_manifest(|manifest| {
        manifest.writer_features = IDS;
        manifest.next_id = manifest.vectors;
    });
    let volume = index(Layout::Packed, &says);
    let mut numbered: Vec<(u64, u32)> = nodes().into_iter().map(|node| node.id).zip(0..).collect();
    numbered.sort_unstable();
    assert!((0..).zip(&numbered).all(|(row, &(id, _))| id == row));
    let mut nodes: Vec<u32> = numbered.into_iter().map(|(_, node)| node).collect();
    change(&mut nodes);
    let (file, mut payload) = (IdsFile::nodes_alone(nodes.len() as u64), Vec::new());
    file.push_nodes(&nodes, &mut payload);
    let file = stream::encode(FileKind::Ids, &payload, &file.fields());
    with_encoded(&volume, FileKind::Ids, &file);
    volume
}

fn wrong(layout: Layout, change: Entries<'_>) -> Vec<(u64, String)> {
    let problems = report(&with_ids(layout, change)).problems;
    let of_ids = |problem: Problem| {
        assert!(problem.file.ends_with("/ids"), "{layout}: {problem:?}");
        (problem.offset.unwrap_or(0), problem.what)
    };
    problems.into_iter().map(of_ids).collect()
}

fn at(entry: usize) -> u64 {
    (BLOCK + 4 + entry * ENTRY) as u64
}

fn node_of(id: u64) -> u32 {
    nodes().iter().position(|node| node.id == id).unwrap() as u32
}

#[test]
fn ids_that_are_those_of_the_records_are_clean() {
    for layout in LAYOUTS {
        assert_eq!(wrong(layout, &|_| {}), [], "{layout}");
    }
}

#[test]
fn an_entry_that_is_missing_and_one_too_much_are_named_with_their_places() {
    for layout in LAYOUTS {
        let found = wrong(layout, &|entries| {
            let (_, node) = entries.remove(5);
            entries.push((1_000, node));
        });
        let node = node_of(5);
        let expected = [
            (at(5), format!("external id 5 of node {node} is missing")),
            (
                at(59),
                format!("external id 1000 leads to node {node}; no node has this id"),
            ),
        ];
        assert_eq!(found, expected, "{layout}");
    }
}

#[test]
fn entries_of_other_nodes_are_named_with_their_places() {
    for layout in LAYOUTS {
        let found = wrong(layout, &|entries| {
            let node = entries[3].1;
            entries[3].1 = entries[4].1;
            entries[4].1 = node;
        });
        let (third, fourth) = (node_of(3), node_of(4));
        let expected = [
            (
                at(3),
                format!("external id 3 leads to node {fourth}; node {third} has this id"),
            ),
            (
                at(4),
                format!("external id 4 leads to node {third}; node {fourth} has this id"),
            ),
        ];
        assert_eq!(found, expected, "{layout}");
    }
}

#[test]
fn nodes_of_row_numbers_that_are_others_are_named_with_their_places() {
    let wrong = |change: &dyn Fn(&mut Vec<u32>)| -> Vec<(u64, String)> {
        let problems = report(&with_nodes(change)).problems;
        let of_ids = |problem: Problem| {
            assert!(problem.file.ends_with("/ids"), "{problem:?}");
            (problem.offset.unwrap_or(0), problem.what)
        };
        problems.into_iter().map(of_ids).collect()
    };
    assert_eq!(wrong(&|_| {}), []);
    // Each entry has six bits.
    let at = |entry: usize| (BLOCK + 4 + entry * 6 / 8) as u64;
    let (third, fourth) = (node_of(3), node_of(4));
    assert_eq!(
        wrong(&|nodes| nodes.swap(3, 4)),
        [
            (
                at(3),
                format!("external id 3 leads to node {fourth}; node {third} has this id"),
            ),
            (
                at(4),
                format!("external id 4 leads to node {third}; node {fourth} has this id"),
            ),
        ]
    );
    assert_eq!(
        wrong(&|nodes| nodes[9] = nodes[8]),
        [(
            at(9),
            format!(
                "external id 9 leads to node {}; node {} has this id",
                node_of(8),
                node_of(9)
            ),
        )]
    );
    let few = wrong(&|nodes| nodes.retain(|&node| node < 59));
    assert_eq!(few.len(), 1, "{few:?}");
    let said = "it has 59 ids; the MANIFEST says 60 vectors";
    assert!(few[0].1.contains(said), "{few:?}");
}

#[test]
fn ids_ascend_and_are_those_of_nodes() {
    let one = |change: Entries<'_>, offset: u64, text: &str| {
        let found = wrong(Layout::Packed, change);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(
            found[0].0 == offset && found[0].1.contains(text),
            "{found:?}"
        );
    };
    one(
        &|entries| entries.swap(1, 2),
        at(2),
        "is 1; expected above 2",
    );
    one(&|entries| entries[9].0 = 8, at(9), "is 8; expected above 8");
    one(
        &|entries| entries[9].1 = 60,
        at(9) + 8,
        "is 60; expected below 60",
    );
    one(
        &|entries| entries.truncate(59),
        0,
        "it has 59 ids; the MANIFEST says 60 vectors",
    );
    one(&Vec::clear, 0, "it has 0 ids");
}

#[test]
fn the_manifest_says_of_the_file_what_is_so() {
    let volume = with_ids(Layout::Coupled, &|_| {});
    let changed = |change: &dyn Fn(&mut Manifest)| {
        let volume = volume.fork();
        let mut manifest = stored::manifest(&volume).unwrap();
        change(&mut manifest);
        write(&volume, MANIFEST, &manifest.encode());
        let found = lines(&volume);
        assert_eq!(found.len(), 1, "{found:?}");
        found[0].clone()
    };
    let forget = |manifest: &mut Manifest| manifest.files.retain(|entry| entry.role != "ids");
    assert!(changed(&forget).contains("it names no ids file"));
    let text = changed(&|manifest| manifest.next_id = 59);
    assert!(
        text.contains("the next external id is 59, but 59 exists"),
        "{text}"
    );
    let other = |manifest: &mut Manifest| {
        let ids = manifest.files.iter_mut().find(|entry| entry.role == "ids");
        ids.unwrap().header_crc32c ^= 1;
    };
    assert!(changed(&other).contains("a file of another index"));
}

#[test]
fn a_damaged_block_is_all_that_is_said_of_it() {
    let volume = with_ids(Layout::Decoupled, &|_| {});
    for byte in [BLOCK as u64 + 2, at(7) + 3, 100] {
        let volume = volume.fork();
        let mut old = [0];
        volume.read_at("ids", byte, &mut old).unwrap();
        let mut file = volume.open("ids").unwrap();
        file.write_at(byte, &[old[0] ^ 4]).unwrap();
        let found = lines(&volume);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(
            found[0].contains("/ids") && found[0].contains("checksum"),
            "{found:?}"
        );
    }
}
