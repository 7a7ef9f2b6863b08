//! `verify` finds every changed byte in every file of a cluster index.

use std::path::Path;
use std::sync::Arc;

use stratann_layout::{AmendedFile, FileKind, Manifest};
use stratann_tier::Volume;
use stratann_tier::testing::SimVolume;
use stratann_vector::Element;

use crate::build::{BuildOptions, build_rows};
use crate::data::Matrix;
use crate::index::{Index, OpenOptions};
use crate::progress::Silent;
use crate::slow::slow;
use crate::stores::reading;
use crate::verify::verify_in;
use crate::{DirectOptions, Layout, LiveIndex, WriteOptions, stored};

const LAYOUTS: [Layout; 3] = [Layout::Replicated, Layout::Addressed, Layout::Grouped];
const ROWS: usize = 90;
const DIM: usize = 8;

fn rows() -> Matrix {
    let bytes = (0..ROWS * DIM).map(|i| (i * i % 251) as u8).collect();
    Matrix::new(bytes, ROWS, DIM, Element::U8).unwrap()
}

fn index(layout: Layout, folder: &Path) -> SimVolume {
    let volume = SimVolume::new();
    let options = BuildOptions {
        layout: Some(layout),
        cluster_size: Some(8),
        replicas: Some(3),
        threads: 1,
        ids: Some((0..ROWS as u64).map(|row| 3 * row + 5).collect()),
        ..BuildOptions::default()
    };
    build_rows(&volume, &rows(), &options, folder);
    volume
}

/// An index in which some ids were inserted or deleted several times, and clusters were split and
/// rewritten.
pub(crate) fn amended(layout: Layout, folder: &Path) -> SimVolume {
    let volume = index(layout, folder);
    let options = WriteOptions {
        threads: 1,
        direct: DirectOptions {
            checkpoint: Some(1 << 20),
            ..DirectOptions::default()
        },
        ..WriteOptions::default()
    };
    let (shared, open) = (Arc::new(volume.clone()), OpenOptions::default());
    let live = LiveIndex::open_in(shared, folder, &open, &options).unwrap();
    for round in 0..3u64 {
        let ids: Vec<u64> = (0..50).map(|n| 5 + 3 * n + 70 * round).collect();
        let bytes = (0..50 * DIM).map(|i| (i * (i + 7 + round as usize) % 241) as u8);
        let rows = Matrix::new(bytes.collect(), 50, DIM, Element::U8).unwrap();
        live.upsert(&rows, &ids, &Silent).unwrap();
        live.delete(&ids[..7]).unwrap();
        assert!(live.rebalance(&Silent).unwrap().clusters_written > 0);
    }
    drop(live);
    volume
}

fn flipped(volume: &SimVolume, name: &str, at: u64, mask: u8) -> SimVolume {
    let volume = volume.fork();
    let mut byte = [0];
    volume.read_at(name, at, &mut byte).unwrap();
    let mut file = volume.open(name).unwrap();
    file.write_at(at, &[byte[0] ^ mask]).unwrap();
    volume
}

fn with_table(volume: &SimVolume, manifest: &Manifest, table: &AmendedFile) -> SimVolume {
    let entry = manifest.file("amended").unwrap().clone();
    let sealed = stratann_layout::stream::encode(FileKind::Amended, &table.encode(), &[]);
    let damaged = volume.fork();
    damaged.remove(&entry.name).unwrap();
    let mut file = damaged.create(&entry.name).unwrap();
    file.write_at(0, &sealed).unwrap();
    let mut changed = manifest.clone();
    let of = changed
        .files
        .iter_mut()
        .find(|file| file.role == "amended")
        .unwrap();
    of.length = sealed.len() as u64;
    of.header_crc32c = stratann_layout::header::stored_checksum(&sealed);
    damaged.remove("MANIFEST").unwrap();
    let mut file = damaged.create("MANIFEST").unwrap();
    file.write_at(0, &changed.encode()).unwrap();
    damaged
}

#[test]
fn a_table_of_fewer_clusters_than_have_groups_is_refused_when_the_index_is_opened() {
    let folder = tempfile::tempdir().unwrap();
    for layout in LAYOUTS {
        let volume = amended(layout, folder.path());
        let manifest = stored::manifest(&volume).unwrap();
        let mut table = reading::amended(&volume, &manifest).unwrap().unwrap();
        table.clusters = manifest.clusters().unwrap().clusters as u32 - 1;
        for segment in &mut table.extents {
            segment
                .extents
                .retain(|extent| extent.cluster < table.clusters);
        }
        let damaged = Arc::new(with_table(&volume, &manifest, &table));
        let opened = Index::open_in(damaged, folder.path(), &OpenOptions::default());
        let Err(error) = opened else {
            panic!("{layout}: it opens");
        };
        assert!(error.to_string().contains("clusters"), "{layout}: {error}");
    }
}

#[test]
fn an_index_that_is_whole_is_clean_and_every_byte_is_read() {
    let folder = tempfile::tempdir().unwrap();
    for layout in LAYOUTS {
        let volume = index(layout, folder.path());
        let report = verify_in(&volume, &Silent).unwrap();
        assert!(report.clean(), "{layout}: {:#?}", report.problems);
        assert_eq!(report.nodes, ROWS as u64);
        let names = volume.list().unwrap();
        let bytes: u64 = names.iter().map(|name| volume.len(name).unwrap()).sum();
        assert_eq!(report.bytes, bytes, "{layout}");
        let clusters = stored::manifest(&volume)
            .unwrap()
            .clusters()
            .unwrap()
            .clusters;
        assert_eq!(report.pages, clusters);
    }
}

#[test]
fn every_flipped_byte_of_a_cluster_index_is_found() {
    let folder = tempfile::tempdir().unwrap();
    for layout in LAYOUTS {
        for volume in [index(layout, folder.path()), amended(layout, folder.path())] {
            for name in volume.list().unwrap() {
                // These files have no content of the index.
                if name == "LOCK" || name.starts_with("log") {
                    continue;
                }
                let length = volume.len(&name).unwrap();
                // By default, one byte in each block is changed, at different positions.
                let step = if slow() { 1 } else { 41 };
                for at in (0..length).step_by(step) {
                    let mask = 1 << (at / step as u64 % 8);
                    let damaged = flipped(&volume, &name, at, mask);
                    let clean = verify_in(&damaged, &Silent).map(|report| report.clean());
                    assert!(
                        !matches!(clean, Ok(true)),
                        "{layout}: {name}, byte {at}, bits {mask:#x}"
                    );
                }
            }
        }
    }
}

#[test]
fn clusters_that_changed_are_whole_and_all_that_counts_is_in_one() {
    let folder = tempfile::tempdir().unwrap();
    for layout in LAYOUTS {
        let volume = amended(layout, folder.path());
        let report = verify_in(&volume, &Silent).unwrap();
        assert!(report.clean(), "{layout}: {:#?}", report.problems);
        let names = volume.list().unwrap();
        let names = names
            .iter()
            .filter(|name| !name.starts_with("log") && *name != "LOCK");
        let bytes: u64 = names.map(|name| volume.len(name).unwrap()).sum();
        assert_eq!(report.bytes, bytes, "{layout}");
        let manifest = stored::manifest(&volume).unwrap();
        let facts = manifest.placement.unwrap();
        assert!(facts.nodes > manifest.vectors && facts.live < facts.nodes);
        // The statistics must be about the current contents, and not about the build.
        let shared = Arc::new(volume.clone());
        let index = Index::open_in(shared, folder.path(), &OpenOptions::default()).unwrap();
        let stats = index.stats();
        let table = reading::amended(&volume, &manifest).unwrap().unwrap();
        assert_eq!(stats.clusters.unwrap().clusters, u64::from(table.clusters));
        let live = (index.len() * DIM) as f64;
        assert_eq!(stats.amplification, stats.bytes.total as f64 / live);
        let parts = [stats.bytes.graph, stats.bytes.vectors, stats.bytes.ids];
        assert_eq!(
            parts.iter().sum::<u64>() + stats.bytes.other,
            stats.bytes.total
        );
        assert!(stats.bytes.vectors >= facts.nodes * DIM as u64, "{layout}");
        // `verify` must report the vectors that are only in the missing posting list.
        let mut table = reading::amended(&volume, &manifest).unwrap().unwrap();
        let segments = table.extents.len();
        assert!(segments > 0, "{layout}");
        assert!(
            table.clusters > manifest.clusters().unwrap().clusters as u32,
            "{layout}"
        );
        table.extents.pop();
        let damaged = with_table(&volume, &manifest, &table);
        let report = verify_in(&damaged, &Silent).unwrap();
        assert!(!report.clean(), "{layout}");
    }
}

#[test]
fn a_damaged_byte_is_named_by_its_file_and_place() {
    let folder = tempfile::tempdir().unwrap();
    for (layout, of, words) in [
        (Layout::Replicated, "replicated", "checksum mismatch"),
        (Layout::Grouped, "grouped", "checksum mismatch"),
        (Layout::Addressed, "addressed", "checksum mismatch"),
        (Layout::Addressed, "postings", "checksum mismatch"),
        (Layout::Grouped, "clusters", "checksum mismatch"),
        (Layout::Grouped, "navigation", "checksum mismatch"),
    ] {
        let volume = index(layout, folder.path());
        let entry = stored::manifest(&volume).unwrap().file(of).unwrap().clone();
        let damaged = flipped(&volume, &entry.name, 4096 + 9, 4);
        let report = verify_in(&damaged, &Silent).unwrap();
        let named = report.problems.iter().any(|problem| {
            problem.file.ends_with(&entry.name)
                && problem.what.contains(words)
                && problem.offset == Some(4096)
        });
        assert!(named, "{layout}, {of}: {:#?}", report.problems);
    }
}

#[test]
fn a_table_of_another_index_of_the_same_shape_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let volume = index(Layout::Grouped, folder.path());
    let manifest = stored::manifest(&volume).unwrap();
    let name = manifest.file("grouped").unwrap().name.clone();
    let mut bytes = volume.read(&name).unwrap();
    let length = bytes.len() as u64;
    let shape = stratann_layout::ClusterShape {
        vectors: ROWS as u32 + 1,
        ..reading::cluster_file(&volume, &manifest, stratann_layout::FileKind::Grouped)
            .unwrap()
            .1
    };
    let header = shape.header(stratann_layout::FileKind::Grouped, length);
    bytes[..4096].copy_from_slice(&header.encode());
    volume.create(&name).unwrap().write_at(0, &bytes).unwrap();
    let shared: Arc<dyn Volume> = Arc::new(volume.clone());
    let error = Index::open_in(shared, folder.path(), &OpenOptions::default()).unwrap_err();
    assert!(error.to_string().contains("grouped-"), "{error}");
    assert!(!verify_in(&volume, &Silent).unwrap().clean());
}
