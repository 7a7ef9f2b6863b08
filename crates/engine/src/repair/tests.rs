//! Repairs of indexes that are damaged in every file and in many ways. After a repair, all readable
//! vectors are in the index.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

use stratann_layout::block::{PAYLOAD, seal};
use stratann_layout::log::FIRST_RECORD;
use stratann_layout::{CoupledShape, FileEntry};
use stratann_tier::testing::{Failure, SimVolume};
use stratann_vector::{Element, Metric};
use tempfile::TempDir;

use super::*;
use crate::build::build_rows;
use crate::data::{Matrix, VectorFile, VectorSource};
use crate::index::Index;
use crate::index::contents::each_vector;
use crate::progress::Silent;
use crate::slow::{crashes, slow};
use crate::stores::reading;
use crate::{
    Compression, Durability, Layout, LiveIndex, OpenOptions, Order, Row, RowTable, SearchOptions,
    Update, Value, WriteOptions,
};

mod placed;
mod running_on;

const ROWS: usize = 600;
const DIM: usize = 128;
const FIRST: u64 = 5_000;

type Model = BTreeMap<u64, Vec<u8>>;
type Damage<'a> = &'a dyn Fn(&SimVolume);

fn photos(first: usize, rows: usize) -> Matrix {
    let path = "/../../fixtures/photo-sift-20k.base.u8bin";
    let path = format!("{}{path}", env!("CARGO_MANIFEST_DIR"));
    let file = VectorFile::open(path).unwrap();
    let mut bytes = vec![0; rows * DIM];
    file.read(first, &mut bytes).unwrap();
    Matrix::new(bytes, rows, DIM, Element::U8).unwrap()
}

fn row(matrix: &Matrix, row: usize) -> Vec<u8> {
    let mut bytes = vec![0; matrix.row_bytes()];
    matrix.read(row, &mut bytes).unwrap();
    bytes
}

struct Place {
    volume: SimVolume,
    model: Model,
    folder: TempDir,
}

fn options(layout: Layout) -> BuildOptions {
    BuildOptions {
        layout: Some(layout),
        degree: Some(16),
        build_list: 24,
        code_bytes: Some(16),
        navigation: 0.1,
        // The index has three segments of up to four chunks each. A chunk has a base vector if this
        // saves space.
        chunk_bytes: 64 * DIM as u64,
        segment_bytes: 256 * DIM as u64,
        compression: (!matches!(layout, Layout::Coupled | Layout::Inline | Layout::Csr))
            .then_some(Compression::Paper),
        threads: 1,
        ids: Some((FIRST..).take(ROWS).collect()),
        ..BuildOptions::default()
    }
    .in_any_layout()
}

impl Place {
    fn new(layout: Layout) -> Self {
        Self::of(&photos(0, ROWS), &options(layout))
    }

    fn of(base: &Matrix, options: &BuildOptions) -> Self {
        let (volume, folder) = (SimVolume::new(), tempfile::tempdir().unwrap());
        build_rows(&volume, base, options, folder.path());
        let ids = options.ids.clone().unwrap();
        let model = (0..).zip(ids).map(|(n, id)| (id, row(base, n))).collect();
        Self {
            volume,
            model,
            folder,
        }
    }

    fn copy(&self) -> Self {
        Self {
            volume: self.volume.fork(),
            model: self.model.clone(),
            folder: tempfile::tempdir().unwrap(),
        }
    }

    fn manifest(&self) -> Manifest {
        stored::manifest(&self.volume).unwrap()
    }

    fn entry(&self, kind: FileKind, n: Option<u32>) -> FileEntry {
        let role = FileEntry::role_of(kind, n);
        self.manifest().file(&role).unwrap().clone()
    }

    fn damaged(&self, name: &str, damage: &dyn Fn(&mut Vec<u8>)) -> SimVolume {
        let volume = self.volume.fork();
        let mut bytes = volume.read(name).unwrap();
        damage(&mut bytes);
        let mut file = volume.create(name).unwrap();
        file.write_at(0, &bytes).unwrap();
        volume
    }

    fn repair(&self, volume: &SimVolume) -> Result<RepairReport, Error> {
        repair_with(volume, self.folder.path(), false)
    }

    #[track_caller]
    fn repaired(&self, volume: &SimVolume, what: &str) -> (RepairReport, Model) {
        assert!(!verify_in(volume, &Silent).unwrap().clean(), "{what}");
        let report = self.repair(volume).unwrap();
        assert!(report.repaired, "{what}");
        let found = self.whole(volume, what);
        for (id, vector) in &found {
            assert_eq!(self.model.get(id), Some(vector), "{what}: {id}");
        }
        let gone = (self.model.len() - found.len()) as u64;
        assert_eq!(report.vectors, found.len() as u64, "{what}");
        assert_eq!(report.vectors_lost, gone, "{what}");
        let sum: u64 = report.lost.iter().map(|lost| lost.vectors).sum();
        assert_eq!(sum, gone, "{what}: {:#?}", report.lost);
        assert!(!report.lost.is_empty(), "{what}");
        let again = self.repair(volume).unwrap();
        assert!(!again.repaired && again.vectors == report.vectors, "{what}");
        (report, found)
    }

    #[track_caller]
    fn whole(&self, volume: &SimVolume, what: &str) -> Model {
        let verified = verify_in(volume, &Silent).unwrap();
        assert!(verified.clean(), "{what}: {:#?}", verified.problems);
        let shared: Arc<dyn Volume> = Arc::new(volume.clone());
        let index = Index::open_in(shared, self.folder.path(), &OpenOptions::default()).unwrap();
        let mut model = Model::new();
        each_vector(&index, &Silent, &mut |_, id, vector| {
            assert!(
                model.insert(id, vector.to_vec()).is_none(),
                "{what}: {id} twice"
            );
            Ok(())
        })
        .unwrap();
        let asked: Vec<_> = model.iter().step_by(7).collect();
        let bytes = asked.iter().flat_map(|(_, vector)| vector.to_vec());
        let (dim, element) = (index.dim(), index.element());
        let queries = Matrix::new(bytes.collect(), asked.len(), dim, element).unwrap();
        let options = SearchOptions {
            k: 1,
            list: 40,
            ..SearchOptions::default()
        };
        let answers = index.search(&queries, &options).unwrap();
        let right = answers.ids.iter().zip(&asked);
        let right = right.filter(|(id, (_, vector))| model.get(*id) == Some(*vector));
        let share = right.count() as f64 / asked.len() as f64;
        assert!(share > 0.97, "{what}: only {share} find themselves");
        model
    }
}

fn repair_with(volume: &SimVolume, folder: &Path, force: bool) -> Result<RepairReport, Error> {
    let options = RepairOptions {
        threads: 1,
        memory: None,
        force,
    };
    let volume: Arc<dyn Volume> = Arc::new(volume.clone());
    repair_in(&volume, folder, &options, &Silent)
}

fn contents_of(volume: &SimVolume) -> BTreeMap<String, Vec<u8>> {
    let names = volume.list().unwrap();
    let file = |name: String| {
        let bytes = volume.read(&name).unwrap();
        (name, bytes)
    };
    names.into_iter().map(file).collect()
}

fn has_vectors(kind: FileKind) -> bool {
    matches!(
        kind,
        FileKind::Graph
            | FileKind::Inline
            | FileKind::Packed
            | FileKind::Layered
            | FileKind::Csr
            | FileKind::Vectors
            | FileKind::Replicated
            | FileKind::Addressed
            | FileKind::Grouped
    )
}

#[test]
fn every_file_may_be_damaged_in_any_way() {
    let mut tried = BTreeSet::new();
    for layout in Layout::ALL {
        let place = Place::new(layout);
        for entry in place.manifest().files {
            let (kind, n) = entry.kind().unwrap();
            let name = &entry.name;
            let behind = n.map_or(0, |n| n as usize + 1);
            let middle = entry.length as usize / 2;
            for (how, damage) in [
                (
                    "flip",
                    &(|bytes: &mut Vec<u8>| bytes[middle] ^= 0x10) as &dyn Fn(&mut Vec<u8>),
                ),
                ("header", &|bytes| bytes[20] ^= 1),
                ("magic", &|bytes| bytes[0] ^= 1),
                ("end", &|bytes| bytes.truncate(bytes.len() - 1)),
                ("cut", &|bytes| bytes.truncate(middle / BLOCK * BLOCK)),
                ("empty", &|bytes| bytes.clear()),
                ("longer", &|bytes| bytes.push(0)),
            ] {
                let grows = match kind {
                    FileKind::Graph
                    | FileKind::Packed
                    | FileKind::Adjacency
                    | FileKind::Layered => true,
                    FileKind::Vectors => behind == place.manifest().segments.len(),
                    _ => false,
                };
                if how == "longer" && grows {
                    continue;
                }
                // By default, the first two files of vectors are damaged in most ways. Of all other
                // files, one of each kind is damaged in each way.
                let new = has_vectors(kind) && behind < 2;
                let new = new || tried.insert((format!("{kind:?}"), how));
                if !slow() && (matches!(how, "magic" | "cut") || !new && how != "flip") {
                    continue;
                }
                let what = format!("{layout}: {how} of {name}");
                let volume = place.damaged(name, damage);
                let apart = layout == Layout::Decoupled || kind == FileKind::Vectors;
                if has_vectors(kind) && how == "empty" && !apart {
                    let error = place.repair(&volume).unwrap_err().to_string();
                    assert!(error.contains("no vector can be read"), "{what}: {error}");
                    continue;
                }
                // In a small index, the directory has only one block, which has all models.
                let models = matches!(kind, FileKind::Directory | FileKind::Chunks);
                let harmless = matches!(how, "header" | "magic" | "longer");
                if models && !harmless && layout == Layout::Packed {
                    let error = place.repair(&volume).unwrap_err().to_string();
                    assert!(error.contains("no vector can be read"), "{what}: {error}");
                    assert!(
                        error.contains("cannot be decoded without this file"),
                        "{what}: {error}"
                    );
                    continue;
                }
                let (report, found) = place.repaired(&volume, &what);
                let file = stored::name_of(&volume, name);
                assert!(
                    report.lost.iter().any(|lost| lost.file == file),
                    "{what}: {report:?}"
                );
                let harmless = harmless || (kind == FileKind::Csr && how == "end");
                if harmless || !(has_vectors(kind) || kind == FileKind::Chunks) {
                    assert!(found == place.model, "{what}");
                } else if layout.has_clusters() {
                    // No vector is lost if only zeros at the end are damaged, or if damaged vectors
                    // have copies in other clusters.
                    assert!(found.len() > ROWS / 4, "{what}: {}", found.len());
                    let whole = how == "end" || layout == Layout::Replicated && how == "flip";
                    assert_eq!(found.len() == ROWS, whole, "{what}");
                } else {
                    assert!(found.len() < ROWS && found.len() > ROWS / 4, "{what}");
                }
            }
            let what = format!("{layout}: no {name}");
            let volume = place.volume.fork();
            volume.remove(name).unwrap();
            match kind {
                FileKind::Layered
                | FileKind::Replicated
                | FileKind::Addressed
                | FileKind::Grouped => {
                    let error = place.repair(&volume).unwrap_err().to_string();
                    assert!(error.contains("no vector can be read"), "{what}: {error}");
                }
                FileKind::Graph
                | FileKind::Inline
                | FileKind::Csr
                | FileKind::Packed
                | FileKind::Directory
                    if layout.has_vectors_in_records() =>
                {
                    let before = contents_of(&volume);
                    let error = place.repair(&volume).unwrap_err().to_string();
                    assert!(error.contains("no vector can be read"), "{what}: {error}");
                    assert_eq!(contents_of(&volume), before, "{what}");
                }
                _ => {
                    let (_, found) = place.repaired(&volume, &what);
                    let all = !matches!(kind, FileKind::Vectors | FileKind::Chunks);
                    assert_eq!(found == place.model, all, "{what}");
                }
            }
        }
    }
}

#[test]
fn exactly_the_pages_that_were_hit_are_lost() {
    for layout in [Layout::Coupled, Layout::Inline] {
        let mut options = options(layout);
        options.order = Some(Order::Input);
        let place = Place::of(&photos(0, ROWS), &options);
        let (kind, nodes) = match layout {
            Layout::Coupled => {
                let shape = CoupledShape::new(Element::U8, DIM, 16).unwrap();
                (FileKind::Graph, shape.nodes_per_page())
            }
            _ => (FileKind::Inline, place.inline_nodes()),
        };
        let name = place.entry(kind, None).name;
        let volume = place.damaged(&name, &|bytes| {
            bytes[3 * BLOCK + 70] ^= 4;
            bytes[6 * BLOCK + 4_000] ^= 4;
        });
        let (report, found) = place.repaired(&volume, "two pages");
        let lost: Vec<u64> = place
            .model
            .keys()
            .filter(|id| !found.contains_key(id))
            .copied()
            .collect();
        let page = |page: usize| FIRST + (page * nodes) as u64..FIRST + ((page + 1) * nodes) as u64;
        assert_eq!(lost, page(2).chain(page(5)).collect::<Vec<_>>(), "{layout}");
        assert!(report.lost[0].what.contains("2 of"), "{report:?}");
        assert!(
            report.lost[0]
                .what
                .contains("the first at byte 12288: checksum"),
            "{report:?}"
        );
    }
}

impl Place {
    fn inline_nodes(&self) -> usize {
        reading::inline(&self.volume, &self.manifest())
            .unwrap()
            .0
            .nodes_per_page()
    }
}

#[test]
fn models_are_found_in_a_directory_whose_counts_are_damaged() {
    let place = Place::new(Layout::Packed);
    let manifest = place.manifest();
    let mut bytes = reading::directory(&place.volume, &manifest)
        .unwrap()
        .encode();
    let blocks = bytes.len().div_ceil(PAYLOAD) + 2;
    bytes.resize(blocks * PAYLOAD, 0);
    let found = |lost: std::ops::Range<usize>| {
        let payload = files::Payload {
            bytes: bytes.clone(),
            whole: (0..blocks).map(|block| !lost.contains(&block)).collect(),
        };
        let (models, nodes) = tables::packed_models(&payload, &manifest)?;
        Some((models.iter().flatten().count(), nodes))
    };
    let all = ROWS.div_ceil(256);
    assert_eq!(found(blocks..blocks), Some((all, 256)));
    assert_eq!(found(blocks - 2..blocks), Some((all, 256)));
    assert_eq!(found(0..1), None);
}

#[test]
fn pages_of_several_blocks_are_found_without_the_header_of_their_file() {
    let (count, dim) = (60, 2_000);
    let values = (0..count * dim).map(|n| ((n * 7919 % 10_007) as f32).sqrt());
    let bytes = values.flat_map(f32::to_le_bytes).collect();
    let base = Matrix::new(bytes, count, dim, Element::F32).unwrap();
    for (layout, compression) in [
        (Layout::Packed, Compression::Best),
        (Layout::Decoupled, Compression::Paper),
        (Layout::Decoupled, Compression::Best),
    ] {
        let mut options = options(layout);
        options.compression = Some(compression);
        options.ids = Some((0..count as u64).collect());
        options.segment_bytes = 1 << 30;
        let place = Place::of(&base, &options);
        let (kind, n) = match layout {
            Layout::Packed => (FileKind::Packed, None),
            _ => (FileKind::Vectors, Some(0)),
        };
        let name = place.entry(kind, n).name;
        let (shape, _, _) = reading::slotted(&place.volume, &place.manifest(), kind, n).unwrap();
        let page = shape.page_bytes();
        // Vectors apart from lists span blocks, except with the paper's compression.
        let run_on = (layout, compression) == (Layout::Decoupled, Compression::Best);
        assert_eq!((page > BLOCK, shape.runs_on()), (!run_on, run_on));
        let (_, found) = place.repaired(&place.damaged(&name, &|bytes| bytes[50] ^= 1), "header");
        assert_eq!(found, place.model, "{layout}");
        let volume = place.damaged(&name, &|bytes| {
            bytes[50] ^= 1;
            bytes[BLOCK + 3 * page + BLOCK + 9] ^= 1;
        });
        let (_, found) = place.repaired(&volume, "header and page");
        assert!(found.len() < count && found.len() + 10 > count, "{layout}");
    }
}

#[test]
fn a_codebook_that_is_whole_is_kept_and_another_is_trained() {
    let place = Place::new(Layout::Packed);
    let codes = place.entry(FileKind::Codes, None).name;
    let volume = place.damaged(&codes, &|bytes| bytes[5_000] ^= 1);
    place.repaired(&volume, "codes");
    let before = place.manifest();
    let after = stored::manifest(&volume).unwrap();
    assert_eq!(after.codebook, before.codebook);
    assert_eq!(after.next_id, before.next_id);
    let choices = |m: &Manifest| {
        let choices = (
            m.preset.clone(),
            m.metric,
            m.graph().degree,
            m.graph().build_list,
            m.graph().alpha,
            m.code_bytes,
        );
        (
            choices,
            m.order.clone(),
            m.layout.clone(),
            m.seed,
            m.build.clone(),
        )
    };
    assert_eq!(choices(&after), choices(&before));
    let codebook = place.entry(FileKind::Codebook, None).name;
    let volume = place.damaged(&codebook, &|bytes| {
        bytes[BLOCK + 100] ^= 1;
        seal(&mut bytes[BLOCK..2 * BLOCK], 1);
    });
    place.repaired(&volume, "codebook");
    assert_eq!(stored::manifest(&volume).unwrap().code_bytes, 16);
}

#[test]
fn what_no_index_may_hold_is_dropped_and_counted() {
    // Rows of floats under cosine can have every fault for which an index refuses a row.
    let count = 200;
    let values = (0..count * 8).map(|n| ((n * 7919 % 1009) as f32) - 500.0);
    let bytes = values.flat_map(f32::to_le_bytes).collect();
    let base = Matrix::new(bytes, count, 8, Element::F32).unwrap();
    let mut options = options(Layout::Coupled);
    options.ids = Some((0..count as u64).collect());
    options.order = Some(Order::Input);
    options.metric = Metric::Cosine;
    options.code_bytes = Some(4);
    let place = Place::of(&base, &options);
    let shape = CoupledShape::new(Element::F32, 8, 16).unwrap();
    let record = |node: usize| {
        let page = BLOCK * (1 + shape.page_of(node as u32) as usize);
        page + 8 + shape.slot_of(node as u32) * shape.record_bytes()
    };
    let name = place.entry(FileKind::Graph, None).name;
    let volume = place.damaged(&name, &|bytes| {
        let at = record(20) + 8 + 4;
        bytes[at..at + 4].copy_from_slice(&f32::NAN.to_le_bytes());
        let at = record(30) + 8;
        bytes[at..at + 32].fill(0);
        // If two records have the same id, the repair takes the first record.
        let (first, second) = (record(40), record(50));
        bytes.copy_within(first..first + 8, second);
        for (number, page) in bytes.chunks_exact_mut(BLOCK).enumerate().skip(1) {
            seal(page, number as u64);
        }
    });
    let (report, found) = place.repaired(&volume, "values");
    let lost: Vec<u64> = place
        .model
        .keys()
        .filter(|id| !found.contains_key(id))
        .copied()
        .collect();
    assert_eq!(lost, [20, 30, 50]);
    let said: Vec<&str> = report.lost.iter().map(|lost| &lost.what[..]).collect();
    for (said, words) in said.iter().zip(["NaN", "direction", "id of another"]) {
        assert!(
            said.starts_with("1 vector") && said.contains(words),
            "{said}"
        );
    }
}

#[test]
fn the_log_counts() {
    for layout in Layout::ALL {
        let mut place = Place::new(layout);
        let others = photos(5_000, 20);
        let live = place.live();
        let (new, old): (Vec<u64>, Vec<u64>) =
            ((100..110).collect(), (FIRST..FIRST + 10).collect());
        let part = |from: usize| {
            let rows = (from..from + 10).flat_map(|n| row(&others, n)).collect();
            Matrix::new(rows, 10, DIM, Element::U8).unwrap()
        };
        live.insert(&part(0), Some(&new), &Silent).unwrap();
        live.upsert(&part(10), &old, &Silent).unwrap();
        live.delete(&[100, 101, FIRST + 9, FIRST + 20, FIRST + 21])
            .unwrap();
        live.insert(&part(0), None, &Silent).unwrap();
        drop(live);
        for (n, (new, old)) in new.iter().zip(&old).enumerate() {
            place.model.insert(*new, row(&others, n));
            place.model.insert(*old, row(&others, 10 + n));
            place
                .model
                .insert(FIRST + ROWS as u64 + n as u64, row(&others, n));
        }
        for id in [100, 101, FIRST + 9, FIRST + 20, FIRST + 21] {
            place.model.remove(&id);
        }
        let table = match layout.has_clusters() {
            true => FileKind::Navigation,
            false => FileKind::Codebook,
        };
        let name = place.entry(table, None).name;
        let volume = place.damaged(&name, &|bytes| bytes[5_000] ^= 1);
        let (report, found) = place.repaired(&volume, &format!("{layout}: {table}"));
        assert_eq!(found, place.model);
        // The log has 8 new vectors with given ids, 9 replaced ones, and 10 with automatic ids.
        assert_eq!(report.from_log, 27);
        assert!(
            volume
                .list()
                .unwrap()
                .iter()
                .all(|name| log_number(name).is_none())
        );
        assert_eq!(
            stored::manifest(&volume).unwrap().next_id,
            FIRST + ROWS as u64 + 10
        );
        // A vector that the log replaced or deleted is not lost.
        let (kind, n) = match layout {
            Layout::Decoupled | Layout::Layered => (FileKind::Vectors, Some(0)),
            layout => (layout.composition().lists, None),
        };
        let name = place.entry(kind, n).name;
        let volume = place.damaged(&name, &|bytes| bytes[BLOCK + 300] ^= 1);
        let report = place.repair(&volume).unwrap();
        let found = place.whole(&volume, "a page and a log");
        assert!(
            found
                .iter()
                .all(|(id, vector)| place.model.get(id) == Some(vector))
        );
        let gone = (place.model.len() - found.len()) as u64;
        assert_eq!(report.vectors_lost, gone, "{layout}");
        assert!(
            report.lost[0].vectors >= gone && report.from_log == 27,
            "{layout}: {report:?}"
        );
        let volume = place.volume.fork();
        for entry in place.manifest().files {
            volume.remove(&entry.name).unwrap();
        }
        let report = place.repair(&volume).unwrap();
        let found = place.whole(&volume, "the log alone");
        assert_eq!((report.vectors, report.from_log, found.len()), (27, 27, 27));
        // All vectors are lost, except the 12 vectors that the log replaced or deleted.
        assert_eq!(report.vectors_lost, ROWS as u64 - 12);
    }
}

impl Place {
    fn live(&self) -> LiveIndex {
        let options = WriteOptions {
            durability: Durability::Always,
            threads: 1,
            update: Some(Update::Merge),
            ..WriteOptions::default()
        };
        let volume: Arc<dyn Volume> = Arc::new(self.volume.clone());
        let open = OpenOptions::default();
        LiveIndex::open_in(volume, self.folder.path(), &open, &options).unwrap()
    }
}

#[test]
fn of_a_damaged_log_every_whole_record_counts() {
    let mut place = Place::new(Layout::Packed);
    let others = photos(5_000, 30);
    let mut next = 0;
    for _ in 0..3 {
        let live = place.live();
        for _ in 0..10 {
            let vector = row(&others, next as usize);
            let one = Matrix::new(vector.clone(), 1, DIM, Element::U8).unwrap();
            live.insert(&one, Some(&[next]), &Silent).unwrap();
            place.model.insert(next, vector);
            next += 1;
        }
    }
    let logs: Vec<String> = place.volume.list().unwrap();
    let logs: Vec<&String> = logs
        .iter()
        .filter(|name| log_number(name).is_some())
        .collect();
    assert_eq!(logs.len(), 3);
    // A record needs 28 bytes and its vector, rounded up to a multiple of 8.
    let record = (28 + DIM).next_multiple_of(8);
    let first = FIRST_RECORD as usize;
    let damages: [(&str, usize, Damage<'_>); 9] = [
        ("a record", 29, &|volume| {
            change(volume, logs[1], &|bytes| {
                bytes[first + 4 * record + 50] ^= 1
            });
        }),
        ("records of the last", 28, &|volume| {
            change(volume, logs[2], &|bytes| {
                bytes[first + 4 * record + 50] ^= 1;
                bytes[first + 5 * record + 9] ^= 1;
            });
        }),
        ("a header", 30, &|volume| {
            change(volume, logs[1], &|bytes| bytes[100] ^= 1)
        }),
        ("the marks", 30, &|volume| {
            change(volume, logs[2], &|bytes| {
                bytes[4100] ^= 1;
                bytes[8200] ^= 1;
            })
        }),
        ("a log", 20, &|volume| volume.remove(logs[1]).unwrap()),
        ("an end", 29, &|volume| {
            change(volume, logs[1], &|bytes| bytes.truncate(bytes.len() - 3));
        }),
        ("the last end", 29, &|volume| {
            change(volume, logs[2], &|bytes| bytes.truncate(bytes.len() - 3));
        }),
        ("the last records", 27, &|volume| {
            change(volume, logs[2], &|bytes| {
                bytes.truncate(bytes.len() - 3 * record)
            });
        }),
        ("the first log", 20, &|volume| {
            volume.remove(logs[0]).unwrap()
        }),
    ];
    for (what, left, damage) in damages {
        let volume = place.volume.fork();
        damage(&volume);
        assert!(!verify_in(&volume, &Silent).unwrap().clean(), "{what}");
        let report = place.repair(&volume).unwrap();
        let found = place.whole(&volume, what);
        assert_eq!(found.len(), ROWS + left, "{what}: {report:#?}");
        assert!(
            found
                .iter()
                .all(|(id, vector)| place.model.get(id) == Some(vector))
        );
        assert_eq!(
            (report.from_log, report.vectors_lost),
            (left as u64, 0),
            "{what}"
        );
        let [lost] = &report.lost[..] else {
            panic!("{what}: {:#?}", report.lost);
        };
        assert!(
            lost.file.contains("/log-00000") && lost.vectors == 30 - left as u64,
            "{what}: {lost:?}"
        );
        let live = Place {
            volume,
            ..Place::new(Layout::Coupled)
        }
        .live();
        live.insert(&photos(9_000, 1), None, &Silent).unwrap();
    }
    // A torn end of the last log is no damage by itself. If the index has other damage, the repair
    // reports the torn end too.
    let volume = place.volume.fork();
    change(&volume, logs[2], &|bytes| {
        let record = bytes[first..first + record - 3].to_vec();
        bytes.extend_from_slice(&record);
    });
    assert!(!place.repair(&volume).unwrap().repaired);
    change(
        &volume,
        &place.entry(FileKind::Navigation, None).name,
        &|bytes| bytes[0] ^= 1,
    );
    let report = place.repair(&volume).unwrap();
    assert_eq!(
        (report.from_log, report.lost[0].vectors),
        (30, 1),
        "{report:#?}"
    );
}

fn change(volume: &SimVolume, name: &str, how: &dyn Fn(&mut Vec<u8>)) {
    let mut bytes = volume.read(name).unwrap();
    how(&mut bytes);
    volume.create(name).unwrap().write_at(0, &bytes).unwrap();
}

/// If the log has lost all vectors, an empty index must not replace the damaged one.
#[test]
fn what_only_a_damaged_log_had_is_not_taken_for_nothing() {
    let place = Place::new(Layout::Packed);
    let live = place.live();
    let all: Vec<u64> = place.model.keys().copied().collect();
    live.delete(&all).unwrap();
    live.compact(&Silent).unwrap();
    drop(live);
    let emptied = place.volume.fork();
    let live = place.live();
    live.insert(&photos(5_000, 2), Some(&[7, 8]), &Silent)
        .unwrap();
    drop(live);
    let names = place.volume.list().unwrap();
    let log = names.iter().rfind(|name| log_number(name).is_some());
    let record = (28 + DIM).next_multiple_of(8);
    change(&place.volume, log.unwrap(), &|bytes| {
        for record in 0..2 * record / 8 {
            bytes[FIRST_RECORD as usize + 8 * record] ^= 1;
        }
    });
    assert!(!verify_in(&place.volume, &Silent).unwrap().clean());
    let before = contents_of(&place.volume);
    let error = place.repair(&place.volume).unwrap_err();
    assert!(matches!(error, Error::Unrepairable { .. }), "{error}");
    let text = error.to_string();
    assert!(
        text.contains("no vector can be read") && text.contains("/log-0"),
        "{text}"
    );
    assert_eq!(contents_of(&place.volume), before);
    let files = stored::manifest(&emptied).unwrap().files;
    let vectors = files
        .iter()
        .find(|file| has_vectors(file.kind().unwrap().0));
    change(&emptied, &vectors.unwrap().name, &|bytes| bytes[0] ^= 1);
    let report = place.repair(&emptied).unwrap();
    assert!(report.repaired, "{report:?}");
    assert_eq!((report.vectors, report.vectors_lost), (0, 0));
}

#[test]
fn columns_outlive_the_last_vector() {
    for layout in [Layout::Packed, Layout::Replicated] {
        let place = Place::new(layout);
        let has_column = |volume: &SimVolume, what: &str| {
            assert!(verify_in(volume, &Silent).unwrap().clean(), "{what}");
            let live = Place {
                volume: volume.clone(),
                ..place.copy()
            }
            .live();
            assert_eq!(live.len(), 0, "{what}");
            assert!(live.schema().get("old").is_some(), "{layout}, {what}");
        };
        let live = place.live();
        let row = Row {
            attributes: [("old".to_owned(), Value::Boolean(true))].into(),
            payload: None,
        };
        live.set_attributes(&[FIRST], &RowTable::new(vec![row]), &Silent)
            .unwrap();
        let all: Vec<u64> = place.model.keys().copied().collect();
        live.delete(&all).unwrap();
        live.compact(&Silent).unwrap();
        drop(live);
        has_column(&place.volume, "a merge");
        let files = place.manifest().files;
        let vectors = files
            .iter()
            .find(|file| has_vectors(file.kind().unwrap().0));
        change(&place.volume, &vectors.unwrap().name, &|bytes| {
            bytes[0] ^= 1
        });
        assert!(place.repair(&place.volume).unwrap().repaired);
        has_column(&place.volume, "a repair");
    }
}

#[test]
fn what_cannot_be_repaired_is_left_as_it_is() {
    let place = Place::new(Layout::Decoupled);
    let refused = |volume: &SimVolume, words: &[&str]| {
        let before = contents_of(volume);
        let error = place.repair(volume).unwrap_err();
        assert!(!error.is_call_wrong(), "{error}");
        for word in words {
            assert!(
                error.to_string().contains(word),
                "{word:?} is not in {error}"
            );
        }
        assert_eq!(contents_of(volume), before);
    };
    let volume = place.damaged(MANIFEST, &|bytes| bytes[200] ^= 1);
    refused(
        &volume,
        &[
            "cannot be repaired",
            "MANIFEST",
            "checksum",
            "build the index again",
        ],
    );
    volume.remove(MANIFEST).unwrap();
    refused(&volume, &["it has no MANIFEST", "build"]);
    let later = place.entry(FileKind::Vectors, Some(1)).name;
    let volume = place.damaged(&later, &|bytes| {
        let mut header = FileKind::Vectors.version().to_le_bytes();
        header[0] += 1;
        bytes[12..16].copy_from_slice(&header);
        reseal(bytes);
    });
    refused(&volume, &["version"]);
}

fn reseal(bytes: &mut [u8]) {
    // The CRC-32C of the number and the bytes of the block, bit by bit.
    let mut sum = !0u32;
    for byte in [0; 8].iter().chain(&bytes[..BLOCK - 4]) {
        sum ^= u32::from(*byte);
        for _ in 0..8 {
            sum = (sum >> 1) ^ (0x82f6_3b78 & (sum & 1).wrapping_neg());
        }
    }
    bytes[BLOCK - 4..BLOCK].copy_from_slice(&(!sum).to_le_bytes());
}

#[test]
fn an_index_that_is_whole_is_left_alone_unless_forced() {
    let place = Place::new(Layout::Decoupled);
    let before = contents_of(&place.volume);
    let report = place.repair(&place.volume).unwrap();
    assert!(!report.repaired && report.lost.is_empty());
    assert_eq!((report.vectors, report.vectors_lost), (ROWS as u64, 0));
    assert_eq!(contents_of(&place.volume), before);
    let report = repair_with(&place.volume, place.folder.path(), true).unwrap();
    assert!(report.repaired && report.lost.is_empty() && report.vectors_lost == 0);
    assert_eq!(place.whole(&place.volume, "forced"), place.model);
    let _lock = place.volume.lock().unwrap();
    let error = place.repair(&place.volume).unwrap_err();
    assert!(error.to_string().contains("in use"), "{error}");
}

#[test]
fn indexes_of_earlier_formats_are_repaired() {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures");
    for name in [
        "index-v1",
        "index-v2-decoupled",
        "index-v2-packed",
        "index-v3-inline",
    ] {
        let folder = tempfile::tempdir().unwrap();
        for file in std::fs::read_dir(fixtures.join(name)).unwrap() {
            let file = file.unwrap();
            std::fs::copy(file.path(), folder.path().join(file.file_name())).unwrap();
        }
        let vectors = crate::vectors_in(folder.path()).unwrap() as u64;
        let codebook = std::fs::read_dir(folder.path()).unwrap();
        let mut codebook = codebook.map(|file| file.unwrap().path());
        let codebook = codebook.find(|path| path.to_string_lossy().contains("/codebook-"));
        let mut bytes = std::fs::read(codebook.as_ref().unwrap()).unwrap();
        bytes[5_000] ^= 1;
        std::fs::write(codebook.unwrap(), bytes).unwrap();
        let report = repair(folder.path(), &RepairOptions::default(), &Silent).unwrap();
        assert!(
            report.repaired && report.vectors_lost == 0,
            "{name}: {report:?}"
        );
        assert_eq!(report.vectors, vectors, "{name}");
        let verified = crate::verify(folder.path(), &Silent).unwrap();
        assert!(verified.clean(), "{name}: {:?}", verified.problems);
        assert!(!folder.path().join("build-scratch").exists());
    }
}

#[test]
fn the_counts_of_reads_are_made_anew() {
    let mut options = options(Layout::Decoupled);
    options.ids = Some((0..1_000).collect());
    let place = Place::of(&photos(0, 1_000), &options);
    let name = place.entry(FileKind::Heat, None).name;
    let (_, found) = place.repaired(
        &place.damaged(&name, &|bytes| bytes[BLOCK + 9] ^= 1),
        "heat",
    );
    assert_eq!(found, place.model);
    let volume = place.volume.fork();
    volume.remove(&name).unwrap();
    let (_, found) = place.repaired(&volume, "no heat");
    assert_eq!(found, place.model);
    let after = stored::manifest(&volume).unwrap();
    assert!(after.measured.is_some() && after.file(FileKind::Heat.name()).is_some());
}

struct After(AtomicUsize);

impl Progress for After {
    fn begin(&self, _: &str, _: u64) {}
    fn advance(&self, _: u64) {}
    fn end(&self) {}
    fn interrupted(&self) -> bool {
        let left = |left: usize| Some(left.saturating_sub(1));
        self.0
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, left)
            == Ok(0)
    }
    fn warn(&self, _: &str) {}
}

#[test]
fn an_interruption_changes_nothing() {
    let place = Place::new(Layout::Decoupled);
    let name = place.entry(FileKind::Vectors, Some(1)).name;
    let volume = place.damaged(&name, &|bytes| bytes[BLOCK + 300] ^= 1);
    let before = contents_of(&volume);
    let mut times = 0;
    for asked in (0..).map(|n: usize| n * n) {
        let shared: Arc<dyn Volume> = Arc::new(volume.clone());
        let options = RepairOptions {
            threads: 1,
            ..RepairOptions::default()
        };
        let progress = After(asked.into());
        match repair_in(&shared, place.folder.path(), &options, &progress) {
            Err(Error::Interrupted) => times += 1,
            done => {
                assert!(done.unwrap().repaired && times > 5);
                break;
            }
        }
        assert_eq!(contents_of(&volume), before, "{asked}");
        assert_eq!(std::fs::read_dir(place.folder.path()).unwrap().count(), 0);
    }
    place.whole(&volume, "not interrupted");
}

#[test]
fn a_crash_or_a_full_disk_leaves_the_old_index_or_the_new() {
    let mut options = options(Layout::Decoupled);
    options.navigation = 0.0;
    let place = Place::of(&photos(0, ROWS), &options);
    let name = place.entry(FileKind::Vectors, Some(1)).name;
    let damaged = place.damaged(&name, &|bytes| bytes[BLOCK + 300] ^= 1);
    damaged.sync().unwrap();
    for name in damaged.list().unwrap() {
        damaged.open(&name).unwrap().sync().unwrap();
    }
    let reference = damaged.fork();
    let report = place.repair(&reference).unwrap();
    let operations = reference.operations() - damaged.operations();
    assert!(operations > 10);
    // By default, every second operation fails, in turn by a crash and by a full disk.
    for at in 0..operations {
        let (turn, last) = (at % 4 == 0, at + 1 == operations);
        if !slow() && at % 2 == 1 && !last {
            continue;
        }
        if slow() || turn || last {
            let volume = damaged.fork();
            volume.fail_after(at, Failure::Crash);
            let _ = place.repair(&volume);
            for crash in crashes(at) {
                let image = volume.crash_image(at, crash);
                let again = place.repair(&image).unwrap();
                assert_eq!(again.vectors, report.vectors, "{at}");
                assert_eq!(place.whole(&image, "crashed").len() as u64, report.vectors);
            }
        }
        if (turn || last) && !slow() {
            continue;
        }
        let volume = damaged.fork();
        volume.fail_after(at, Failure::NoSpace);
        let failed = place.repair(&volume).is_err();
        volume.heal();
        if failed {
            assert_eq!(
                place.repair(&volume).unwrap().vectors,
                report.vectors,
                "{at}"
            );
        }
        place.whole(&volume, "no space");
    }
}

#[test]
fn the_names_of_files_that_are_gone_are_not_given_again() {
    let place = Place::new(Layout::Coupled);
    let live = place.live();
    live.insert(&photos(5_000, 3), None, &Silent).unwrap();
    drop(live);
    let volume = place.volume.fork();
    for entry in place.manifest().files {
        volume.remove(&entry.name).unwrap();
    }
    place.repair(&volume).unwrap();
    let after = stored::manifest(&volume).unwrap();
    assert!(after.checkpoint > place.manifest().checkpoint);
}
