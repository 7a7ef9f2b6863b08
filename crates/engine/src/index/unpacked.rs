//! The graph of an index in memory, *unpacked*: rows of a CSR graph (second-tier memory paper, §5)
//! in place of compressed pages. A row has the list and the vector of one node.
//!
//! If an index fits into memory as a whole, a search spends half of its time decoding lists and
//! vectors (docs/measured.md, "Unpacked indexes"). So if the budget has memory for all uncompressed
//! lists and vectors, they are decoded once, when the index is opened for reading.
//!
//! ```text
//!   packed-…, layered-…, adjacency-…, vectors-…  ──decoded once──>  row 0 | row 1 | ..
//! ```
//!
//! If an index is opened for changes, belongs to a catalog, or is calibrated, pages stay in memory
//! instead. A calibration holds only for pages, because a search of rows uses a longer candidate
//! list for the same list size.

use parking_lot::Mutex;
use stratann_layout::{CsrShape, Manifest};
use stratann_tier::HugeBytes;

use super::contents::{Shares, each_list_in, each_vector_in};
use super::{CacheSize, Index, Kind, OpenOptions};
use crate::THREAD_BYTES;
use crate::plan::MemoryPlan;
use crate::progress::{Progress, Stage, WithinStage};
use crate::stores::composition::CodesAt;
use crate::stores::resident::Resident;
use crate::stores::topology::placement::NOWHERE;
use crate::stores::{GraphStores, Pages};
use crate::threads::{processors, shared_beside};
use crate::{Error, Layout, Preset};

/// The shape of rows. `None` if unpacking would not help, or if a node has no record.
pub(super) fn shape(
    kind: &Kind,
    manifest: &Manifest,
    preset: Preset,
    options: &OpenOptions,
) -> Option<CsrShape> {
    let Kind::Graph(graph) = kind else {
        return None;
    };
    let stores = &graph.stores;
    let composition = stores.composition;
    // The other presets search as their papers say, with the options of their papers.
    let is_wanted = options.unpack && preset.whole_page;
    let is_of_use = composition.codes == CodesAt::Memory && composition.is_encoded();
    let is_free = options.places.is_empty() && options.cache == CacheSize::None;
    if !(is_wanted && is_of_use && is_free) {
        return None;
    }
    let nodes = kind.nodes();
    if let Some(placement) = stores.placement.get() {
        let mut all = 0..nodes as u32;
        // An insert that was given up has left a node without a record.
        if all.any(|node| placement.page_of(node) == NOWHERE) {
            return None;
        }
    }
    let degree = manifest.graph().degree as usize + most_pending(stores);
    let dim = manifest.dimension as usize;
    // If lists are longer than in any valid index, rows have no shape.
    CsrShape::new(manifest.element, dim, degree, nodes).ok()
}

/// The memory of all rows of a shape.
pub(super) fn bytes(shape: CsrShape) -> u64 {
    shape.nodes() * shape.row_bytes() as u64
}

/// The most pending changes of one list. Until its page is written, the list may be longer by so
/// many links than the degree.
fn most_pending(stores: &GraphStores) -> usize {
    let Some(placement) = stores.placement.get() else {
        return 0;
    };
    let (mut changes, _) = placement.pending.all();
    changes.sort_unstable_by_key(|change| change.node);
    let of_a_node = changes.chunk_by(|a, b| a.node == b.node);
    of_a_node.map(<[_]>::len).max().unwrap_or(0)
}

/// Threads take one share after the other, so that all end at about the same time.
const SHARES: u32 = 64;

/// The number of rows under one lock. Threads seldom wait for the lock, because different pages
/// have different nodes.
const LOCKED_ROWS: usize = 256;

/// The approximate memory of a thread: its stack, and the pages that it reads.
const THREAD: u64 = THREAD_BYTES + (2 << 20);

const REPORTED: u64 = 256;

struct Filling<'a> {
    shape: CsrShape,
    groups: Vec<Mutex<Group<'a>>>,
}

/// Consecutive rows. For each row, bits in `halves` show whether its list and its vector are there.
struct Group<'a> {
    rows: &'a mut [u8],
    halves: &'a mut [u8],
}

const LIST: u8 = 1;
const VECTOR: u8 = 2;

impl<'a> Filling<'a> {
    fn new(shape: CsrShape, rows: &'a mut [u8], halves: &'a mut [u8]) -> Self {
        let rows = rows.chunks_mut(LOCKED_ROWS * shape.row_bytes());
        let groups = rows.zip(halves.chunks_mut(LOCKED_ROWS));
        let groups = groups.map(|(rows, halves)| Mutex::new(Group { rows, halves }));
        Self {
            shape,
            groups: groups.collect(),
        }
    }

    /// Changes the row of a node. The row then has the part `half`, which is its list or its
    /// vector.
    fn put(&self, node: u32, half: u8, change: impl FnOnce(&mut [u8])) {
        let (group, at) = (node as usize / LOCKED_ROWS, node as usize % LOCKED_ROWS);
        let mut group = self.groups[group].lock();
        let bytes = self.shape.row_bytes();
        change(&mut group.rows[at * bytes..(at + 1) * bytes]);
        group.halves[at] |= half;
    }
}

struct Steps<'a> {
    progress: &'a dyn Progress,
    waiting: u64,
}

impl Steps<'_> {
    fn step(&mut self) {
        self.waiting += 1;
        if self.waiting == REPORTED {
            self.progress.advance(std::mem::take(&mut self.waiting));
        }
    }
}

impl Drop for Steps<'_> {
    fn drop(&mut self) {
        self.progress.advance(self.waiting);
    }
}

/// Queries do not run yet, so the threads use the memory of queries.
fn threads_within(memory: &MemoryPlan) -> usize {
    let further = memory.queries.saturating_add(memory.unused) / THREAD;
    processors().min(further as usize + 1)
}

/// Decodes all lists and vectors into rows. The rows do not depend on the number of threads.
pub(super) fn unpack(
    index: &Index,
    shape: CsrShape,
    progress: &dyn Progress,
) -> Result<GraphStores, Error> {
    unpack_by(index, shape, threads_within(index.memory()), progress)
}

fn unpack_by(
    index: &Index,
    shape: CsrShape,
    threads: usize,
    progress: &dyn Progress,
) -> Result<GraphStores, Error> {
    let packed = index.graph();
    let (nodes, bytes) = (shape.nodes() as usize, shape.row_bytes());
    let mut rows = HugeBytes::zeroed(nodes * bytes)?;
    let mut halves = vec![0u8; nodes];
    let filling = Filling::new(shape, &mut rows, &mut halves);
    let stage = Stage::begin(progress, "unpacking", 2 * shape.nodes());
    let put_lists = |share| {
        let (mut steps, waiting) = (
            Steps {
                progress,
                waiting: 0,
            },
            WithinStage(progress),
        );
        each_list_in(index, share, &waiting, &mut |node, list| {
            // Only a damaged list is longer. Its last links are kept, because they are the newest.
            let list = &list[list.len().saturating_sub(shape.degree())..];
            if let Some(&link) = list.iter().find(|&&link| link as usize >= nodes) {
                let what = format!("node {node} links to node {link}, but there are {nodes} nodes");
                return Err(packed.damaged(what));
            }
            filling.put(node, LIST, |row| shape.put_list(list, row));
            steps.step();
            Ok(())
        })
    };
    let put_vectors = |share| {
        let (mut steps, waiting) = (
            Steps {
                progress,
                waiting: 0,
            },
            WithinStage(progress),
        );
        each_vector_in(index, share, &waiting, &mut |node, id, vector| {
            filling.put(node, VECTOR, |row| {
                shape.put_vector(id, vector, row);
                shape.seal(node, row);
            });
            steps.step();
            Ok(())
        })
    };
    let (shares, helpers) = (Shares::new(SHARES), threads.saturating_sub(1));
    // The first error in the order of shares is returned, so that it does not depend on the
    // threads.
    let (done, ()) = shared_beside(shares.all(), helpers, put_lists, || ());
    done.into_iter().collect::<Result<(), Error>>()?;
    let (done, ()) = shared_beside(shares.all(), helpers, put_vectors, || ());
    done.into_iter().collect::<Result<(), Error>>()?;
    drop(stage);
    if let Some(node) = halves.iter().position(|&half| half != LIST | VECTOR) {
        let missing = match halves[node] & LIST {
            0 => "list",
            _ => "vector",
        };
        return Err(packed.damaged(format!("node {node} has no {missing}")));
    }
    Ok(GraphStores {
        composition: Layout::Csr.composition(),
        tier: packed.tier.clone(),
        name: packed.name.clone(),
        file: packed.file.clone(),
        nodes: shape.nodes(),
        pages: Pages::rows(shape, packed.file.clone()),
        resident: Resident::whole(rows, bytes),
        segments: None,
        placement: Default::default(),
    })
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use stratann_tier::testing::refuse_threads_after;
    use stratann_vector::{Element, Metric};

    use super::*;
    use crate::progress::Silent;
    use crate::{BuildOptions, ErrorKind, LiveIndex, Matrix, WriteOptions, build};

    const ROWS: usize = 3_000;
    const DIM: usize = 32;

    fn vectors(from: usize, count: usize) -> Matrix {
        let at = |i: usize| ((i as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as f32 / 1e7;
        let floats = (from * DIM..(from + count) * DIM).map(at);
        let bytes = floats.flat_map(f32::to_le_bytes).collect::<Vec<u8>>();
        Matrix::new(bytes, count, DIM, Element::F32).unwrap()
    }

    fn options() -> OpenOptions {
        OpenOptions {
            memory: Some(100 << 20),
            ..OpenOptions::default()
        }
    }

    struct Asked {
        ends_at: u64,
        asked: AtomicU64,
        total: AtomicU64,
        done: AtomicU64,
    }

    impl Asked {
        fn until(ends_at: u64) -> Self {
            Self {
                ends_at,
                asked: AtomicU64::new(0),
                total: AtomicU64::new(0),
                done: AtomicU64::new(0),
            }
        }
    }

    impl Progress for Asked {
        fn begin(&self, stage: &str, total: u64) {
            assert_eq!(stage, "unpacking");
            self.total.store(total, Ordering::Relaxed);
        }

        fn advance(&self, steps: u64) {
            self.done.fetch_add(steps, Ordering::Relaxed);
        }

        fn end(&self) {}

        fn interrupted(&self) -> bool {
            self.asked.fetch_add(1, Ordering::Relaxed) + 1 >= self.ends_at
        }

        fn warn(&self, _: &str) {}
    }

    #[test]
    fn rows_are_equal_however_many_threads_unpack_and_an_interrupt_ends_it() {
        for layout in [Layout::Packed, Layout::Layered, Layout::Decoupled] {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("index");
            let built = BuildOptions {
                metric: Metric::L2,
                layout: Some(layout),
                degree: Some(16),
                build_list: 20,
                threads: 1,
                ..BuildOptions::default()
            };
            build(&vectors(0, ROWS), &path, &built, &Silent).unwrap();
            let write = WriteOptions::default();
            let live = LiveIndex::open(&path, &OpenOptions::default(), &write).unwrap();
            live.insert(&vectors(ROWS, 50), None, &Silent).unwrap();
            drop(live);
            let index = Index::open(&path, &options()).unwrap();
            let shape = shape(&index.kind, &index.manifest, index.preset, &index.options).unwrap();
            let unpacked = |threads| {
                let counted = Asked::until(u64::MAX);
                let stores = unpack_by(&index, shape, threads, &counted).unwrap();
                let total = counted.total.load(Ordering::Relaxed);
                assert_eq!(total, 2 * shape.nodes(), "{layout}");
                assert_eq!(counted.done.load(Ordering::Relaxed), total, "{layout}");
                let rows = |row| stores.resident.get(row).unwrap().to_vec();
                (0..shape.nodes()).map(rows).collect::<Vec<_>>()
            };
            let one = unpacked(1);
            assert!(unpacked(4) == one, "{layout}");
            for refused in [0, 1] {
                refuse_threads_after(Some(refused));
                let rows = unpacked(4);
                refuse_threads_after(None);
                assert!(rows == one, "{layout}: {refused}");
            }
            for ends_at in [1, 2] {
                let ended = Index::open_observed(&path, &options(), &Asked::until(ends_at));
                assert_eq!(
                    ended.unwrap_err().kind(),
                    ErrorKind::Interrupted,
                    "{layout}"
                );
            }
        }
    }

    #[test]
    fn a_damaged_page_ends_the_shares_behind_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("index");
        let built = BuildOptions {
            degree: Some(8),
            build_list: 16,
            layout: Some(Layout::Packed),
            threads: 1,
            ..BuildOptions::default()
        };
        let wide = Matrix::new(
            vectors(0, 32 * 1_000).bytes().to_vec(),
            1_000,
            32 * DIM,
            Element::F32,
        );
        build(&wide.unwrap(), &path, &built, &Silent).unwrap();
        let unread = OpenOptions {
            unpack: false,
            ..options()
        };
        let index = Index::open(&path, &unread).unwrap();
        let wanted = options();
        let shape = shape(&index.kind, &index.manifest, index.preset, &wanted).unwrap();
        let file = path.join(&index.graph().name);
        let mut bytes = std::fs::read(&file).unwrap();
        assert!(bytes.len() > 3 << 20, "{}", bytes.len());
        bytes[stratann_layout::BLOCK + 100] ^= 1;
        std::fs::write(&file, bytes).unwrap();
        let failed = |threads| {
            let counted = Asked::until(u64::MAX);
            let Err(error) = unpack_by(&index, shape, threads, &counted) else {
                panic!("an index with a damaged page was unpacked");
            };
            assert_eq!(error.kind(), ErrorKind::Damaged, "{error}");
            (error.to_string(), counted.done.load(Ordering::Relaxed))
        };
        let (said, done) = failed(1);
        assert_eq!(
            done, 0,
            "the damaged page is the first, and later shares were read"
        );
        for _ in 0..5 {
            assert_eq!(failed(4).0, said);
        }
    }

    #[test]
    fn threads_stay_within_the_memory_of_the_budget() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("index");
        build(&vectors(0, 500), &path, &BuildOptions::default(), &Silent).unwrap();
        let plan = Index::open(&path, &options()).unwrap().memory().clone();
        let of = |queries, unused| {
            threads_within(&MemoryPlan {
                queries,
                unused,
                ..plan.clone()
            })
        };
        assert_eq!(of(0, 0), 1);
        assert_eq!(of(THREAD / 2, THREAD - 1), processors().min(2));
        assert_eq!(of(u64::MAX, 1), processors());
    }
}
