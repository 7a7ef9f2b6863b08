//! The memory planner: divides a memory budget when an index is opened.
//!
//! ```text
//!   required  the program, its threads and the queries in flight
//!             codes (needed for every score), tables that find records, the requested cache
//!             memory of an insert beside a search, if all is on storage and memory is bounded
//!   optional  navigation graph                     all or nothing
//!             all lists and vectors, unpacked      all or nothing; then no pages
//!             pages of lists (and their vectors)   the hottest first, up to all
//!             pages of vectors alone               the hottest first, up to all
//! ```
//!
//! Optional items are ordered by the reads that each byte saves a query, which the build measured
//! on sample queries ([`crate::measure`]). A budget is never exceeded.

use serde::Serialize;
use stratann_layout::BLOCK;
use stratann_layout::manifest::{HotShare, Measured};

use crate::Error;
use crate::codebook::Codebook;
use crate::spec::THREAD_BYTES;

/// The program and its libraries (6 MB), stacks and rings of two threads, and thousands of queries.
pub(crate) const PROGRAM: u64 = 8 << 20;
/// The most queries in flight that a budget plans for, and the divisor for their share of memory.
const MOST_QUERIES: u64 = 16;
const QUERY_SHARE: u64 = 4;
/// The memory that inserts get before searches get pages, if inserts need so much.
const INSERTING: u64 = 1 << 20;
/// The memory wanted for rows of attributes that wait for a checkpoint, if vectors are written to
/// storage at once. `LEAST_ROWS` is enough for the longest row, and is reserved before pages of
/// searches.
pub(crate) const WAITING_ROWS: u64 = 8 << 20;
const LEAST_ROWS: u64 = 1 << 20;
/// The most memory, beyond the minimum, that is leased for changes of the smallest index.
const LENT: u64 = 4 << 20;
/// A checkpoint sorts rows in the memory for rows divided by `SORTING`.
const SORTING: u64 = 4;
/// Bytes of a candidate: its key and its state, twice, since lists grow by doubling.
const CANDIDATE: u64 = 20;
/// The candidates beyond k that a search in the layered layout keeps.
pub(crate) const BEYOND: usize = 32;
/// The bytes of such a candidate, without its leading part.
pub(crate) const CANDIDATE_BYTES: usize = 64;
/// The default bytes for sorting a segment. Under a budget, sorting gets the budget divided by
/// `SORT_SHARE`, from `LEAST_SORT` to `SORT`.
const SORT: u64 = 64 << 20;
const SORT_SHARE: u64 = 16;
const LEAST_SORT: u64 = 1 << 20;
/// The list size that memory is planned for. A longer list means fewer queries in flight.
const USUAL_LIST: usize = 100;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PageFile {
    pub(crate) pages: u64,
    /// Pages that are never in memory. The table that finds pages has entries for these pages.
    pub(crate) empty: u64,
    pub(crate) page_bytes: usize,
    /// The approximate bytes of a read that covers several pages; 0 if each read covers one page.
    pub(crate) several: usize,
    /// Whether a changed page is in memory in its old and its new version.
    pub(crate) doubled: bool,
    /// Bytes that a query keeps of each candidate on these pages until the query ends.
    pub(crate) candidate: usize,
}

impl PageFile {
    pub(crate) fn new(pages: u64, page_bytes: usize) -> Self {
        Self {
            pages,
            empty: 0,
            page_bytes,
            several: 0,
            doubled: false,
            candidate: 0,
        }
    }

    pub(crate) fn read_bytes(&self) -> usize {
        self.page_bytes.max(self.several)
    }
}

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Needs {
    /// Codes of all nodes, or of the entry points if nodes contain their neighbours' codes.
    pub(crate) codes: u64,
    pub(crate) codebook: u64,
    pub(crate) tables: u64,
    pub(crate) cache: u64,
    pub(crate) navigation: u64,
    /// Memory of the log's contents.
    pub(crate) changes: u64,
    /// Bytes for the vectors that were deleted since the last merge. The need is met as far as
    /// memory is available.
    pub(crate) deleted: u64,
    /// Memory that the caller uses in addition to the index: queries, results, threads beyond two.
    pub(crate) beside: u64,
    /// Memory wanted for inserts beside a search: pages that inserts keep, and pending changes.
    pub(crate) inserting: u64,
    pub(crate) rows: u64,
    pub(crate) places: u64,
    /// Bytes of the index on storage, which bound the memory leased for its changes.
    pub(crate) files: u64,
    pub(crate) graph: PageFile,
    pub(crate) vectors: PageFile,
    /// All lists and vectors, [unpacked](mod@crate::index); 0 if they are not to be unpacked.
    pub(crate) unpacked: u64,
}

impl Needs {
    /// The needs of an index that is opened for changes with a part of a shared budget. Such an
    /// index has no hot pages, but threads of its own.
    pub(crate) fn lent(mut self, navigates: bool, files: u64) -> Self {
        self.files = files;
        (self.graph.pages, self.vectors.pages) = (0, 0);
        self.beside = self.beside.saturating_add(2 * THREAD_BYTES);
        if !navigates {
            self.navigation = 0;
        }
        self
    }

    /// The least and the most bytes that an index with a part of a shared budget gets beside the
    /// program. The least is enough for a few changes at a time. The most depends on the size of
    /// the index, since more memory serves pages and new rows.
    pub(crate) fn lendable(&self) -> (u64, u64) {
        let query = self.query();
        let changes = (self.inserting.min(INSERTING) + LEAST_ROWS) / 3 * 4;
        let least = [
            self.beside,
            self.index(),
            self.places,
            self.changes,
            self.deleted,
            self.navigation,
            query,
            changes,
        ];
        let least = least.into_iter().fold(0, u64::saturating_add);
        let of_use = match self.inserting {
            0 => u64::MAX,
            wanted => MOST_QUERIES * query + wanted + self.rows,
        };
        let beyond = of_use.min(self.files.max(LENT));
        (least, least.saturating_add(beyond))
    }

    /// The smallest budget that leaves `beside` bytes after these needs and the queries in flight.
    pub(crate) fn budget_with(&self, beside: u64) -> u64 {
        let query = self.query();
        let index = self.index() + self.deleted;
        let must = [PROGRAM, self.beside, index, self.places, query];
        let must = must.into_iter().fold(self.changes, u64::saturating_add);
        let more = beside.div_ceil((QUERY_SHARE - 1) * query).saturating_sub(1);
        let queries = more.min(MOST_QUERIES - 1) * query;
        must.saturating_add(beside).saturating_add(queries)
    }

    fn query(&self) -> u64 {
        let page = self.graph.read_bytes().max(self.vectors.read_bytes());
        query_bytes(USUAL_LIST, page) + kept_bytes(USUAL_LIST, self.graph.candidate as u64)
    }

    fn index(&self) -> u64 {
        self.codes + self.codebook + self.tables + self.cache
    }
}

/// The division of memory, in bytes.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct MemoryPlan {
    /// The budget. With `None`, the plan has only the data that every search needs, and one query
    /// in flight.
    pub budget: Option<u64>,
    /// The program and its threads, and memory that the caller uses in addition to the index.
    pub program: u64,
    /// State and pages of the queries in flight.
    pub queries: u64,
    /// Codes of all nodes, or of the entry points if nodes contain their neighbours' codes.
    pub codes: u64,
    /// The codebook.
    pub codebook: u64,
    /// Directories, chunk metadata and models.
    pub tables: u64,
    /// The cache of hot records.
    pub cache: u64,
    /// Copies of files in memory ([`OpenOptions::places`](crate::OpenOptions::places)).
    pub places: u64,
    /// Memory of inserts beside searches, up to about half of the available memory, or 2 MiB if
    /// that is more.
    pub inserting: u64,
    /// The navigation graph, if searches use it.
    pub navigation: u64,
    /// Bytes of the pages with lists, as far as these pages stay in memory.
    pub graph_pages: u64,
    /// Bytes of the pages with vectors only, as far as these pages stay in memory.
    pub vector_pages: u64,
    /// All lists and vectors without compression, if the budget has memory for them. No pages are
    /// then in memory.
    pub unpacked: u64,
    /// Vectors inserted since the checkpoint, and deletes since the last merge.
    pub changes: u64,
    /// The part of the budget that has no use.
    pub unused: u64,
    /// The predicted reads of a query: of pages with lists, and of pages with vectors only.
    pub predicted_reads: Option<[f64; 2]>,
    /// The share of the pages with lists that stay in memory.
    pub graph_share: f64,
    /// The share of the pages with vectors only that stay in memory.
    pub vector_share: f64,
    #[serde(skip)]
    pub(crate) for_changes: bool,
    #[serde(skip)]
    pub(crate) rows: u64,
    #[serde(skip)]
    pub(crate) deleted: u64,
    #[serde(skip)]
    pub(crate) candidate: u64,
}

impl MemoryPlan {
    pub(crate) fn to_load(&self) -> u64 {
        let pages = self.graph_pages + self.vector_pages + self.unpacked;
        self.codes + self.codebook + self.navigation + pages + self.queries
    }

    pub(crate) fn for_waiting(&self) -> u64 {
        self.inserting + self.changes + self.unused
    }

    /// The most memory for rows of attributes that wait for a checkpoint, in addition to the memory
    /// of inserts.
    pub(crate) fn for_rows(&self) -> u64 {
        self.rows - self.rows / SORTING + self.changes - self.deleted + self.unused
    }

    pub(crate) fn for_segment(&self) -> u64 {
        match self.budget.filter(|_| self.for_changes) {
            Some(_) => self.rows / SORTING,
            None => segment_memory(self.budget),
        }
    }

    /// The most memory of the log's changes at the next opening: all memory that searches can do
    /// without.
    pub(crate) fn for_log(&self) -> u64 {
        self.for_waiting() - self.deleted + self.navigation + self.graph_pages + self.vector_pages
    }

    /// The bytes for all queries in flight, and the bytes of one query. `None` without a budget.
    pub(crate) fn for_queries(
        &self,
        list: usize,
        page_bytes: usize,
        candidates: usize,
    ) -> Option<(u64, u64)> {
        let each = query_bytes(list, page_bytes)
            .saturating_add(candidate_bytes(candidates))
            .saturating_add(kept_bytes(list, self.candidate));
        self.budget.map(|_| (self.queries, each))
    }

    pub(crate) fn candidates(&self, list: usize, page_bytes: usize, wanted: usize) -> usize {
        match self.for_queries(list, page_bytes, 0) {
            Some((all, each)) => {
                let room = all.saturating_sub(each) / CANDIDATE;
                wanted.min(usize::try_from(room).unwrap_or(usize::MAX))
            }
            None => wanted,
        }
    }
}

pub(crate) fn segment_memory(budget: Option<u64>) -> u64 {
    budget.map_or(SORT, |budget| (budget / SORT_SHARE).clamp(LEAST_SORT, SORT))
}

/// Bytes of a query in flight: its filter of scored nodes, and the pages that the query keeps in
/// memory.
pub(crate) fn query_bytes(list: usize, page_bytes: usize) -> u64 {
    (crate::visited::Visited::bytes(list) + held_pages(list) * page_bytes) as u64
}

/// If vectors are deleted, a query keeps `candidates` beyond the list.
fn candidate_bytes(candidates: usize) -> u64 {
    (candidates as u64).saturating_mul(CANDIDATE)
}

/// Bytes that a query keeps, at `candidate` bytes for each candidate. The results fit into the
/// list.
fn kept_bytes(list: usize, candidate: u64) -> u64 {
    (list.saturating_add(BEYOND) as u64).saturating_mul(candidate)
}

pub(crate) const fn held_pages(list: usize) -> usize {
    list / 2 + 24
}

pub(crate) fn least(dim: usize, codes: u64) -> u64 {
    PROGRAM + query_bytes(USUAL_LIST, BLOCK) + Codebook::memory_bytes(dim) + codes
}

pub(crate) fn divide(
    budget: Option<u64>,
    needs: &Needs,
    measured: Option<&Measured>,
) -> Result<MemoryPlan, Error> {
    #[cfg(test)]
    refusal::check()?;
    let mut memory_plan = MemoryPlan {
        budget,
        program: PROGRAM.saturating_add(needs.beside),
        codes: needs.codes,
        codebook: needs.codebook,
        tables: needs.tables,
        cache: needs.cache,
        places: needs.places,
        changes: needs.changes,
        candidate: needs.graph.candidate as u64,
        ..MemoryPlan::default()
    };
    let value = Value::of(measured);
    let query = needs.query();
    let Some(budget) = budget else {
        memory_plan.queries = query;
        memory_plan.navigation = needs.navigation;
        memory_plan.predicted_reads = measured.map(|_| value.predict(&memory_plan));
        return Ok(memory_plan);
    };
    let must = must_have(budget, needs, query)?;
    let mut left = budget - must;
    // Acknowledged deletes are no reason to refuse an index that could be opened before.
    memory_plan.deleted = needs.deleted.min(left);
    memory_plan.changes += memory_plan.deleted;
    left -= memory_plan.deleted;
    let queries = (left / QUERY_SHARE / query).min(MOST_QUERIES - 1);
    memory_plan.queries = (1 + queries) * query;
    left -= queries * query;
    // Small needs are met in full. Needs of megabytes compete with pages of searches.
    memory_plan.inserting = needs.inserting.min(left.min(INSERTING.max(left / 2)));
    left -= memory_plan.inserting;
    memory_plan.rows = needs.rows.min(left.min(LEAST_ROWS.max(left / 8)));
    left -= memory_plan.rows;
    memory_plan.inserting += memory_plan.rows;

    let all = needs.unpacked.saturating_add(needs.navigation);
    if needs.unpacked > 0 && all <= left {
        memory_plan.unpacked = needs.unpacked;
        memory_plan.navigation = needs.navigation;
        (memory_plan.graph_share, memory_plan.vector_share) = (1.0, 1.0);
        memory_plan.unused = left - all;
        memory_plan.predicted_reads = measured.map(|_| value.predict(&memory_plan));
        return Ok(memory_plan);
    }

    for slice in slices(needs, &value, left) {
        let taken = match slice.what {
            What::Navigation if slice.bytes > left as f64 => 0,
            _ => (slice.bytes as u64).min(left),
        };
        left -= taken;
        match slice.what {
            What::Navigation => memory_plan.navigation = taken,
            What::Graph => memory_plan.graph_pages += taken,
            What::Vectors => memory_plan.vector_pages += taken,
        }
    }
    for (bytes, in_memory, file) in [
        (
            &mut memory_plan.graph_pages,
            &mut memory_plan.graph_share,
            needs.graph,
        ),
        (
            &mut memory_plan.vector_pages,
            &mut memory_plan.vector_share,
            needs.vectors,
        ),
    ] {
        let pages = pages_in(*bytes, file);
        let taken = cost(pages, file);
        left += *bytes - taken.min(*bytes);
        *bytes = taken;
        *in_memory = pages as f64 / file.pages.max(1) as f64;
    }
    memory_plan.unused = left;
    memory_plan.predicted_reads = measured.map(|_| value.predict(&memory_plan));
    Ok(memory_plan)
}

fn must_have(budget: u64, needs: &Needs, query: u64) -> Result<u64, Error> {
    let without = (PROGRAM + needs.beside + query + needs.index()).saturating_add(needs.places);
    let must = without.saturating_add(needs.changes);
    if budget >= must {
        return Ok(must);
    }
    let part = if budget.saturating_add(needs.places) >= must {
        let bytes = needs.places;
        format!(
            "the program, the index and {bytes} bytes of copies in memory (the places `dram`, `mapped:` and models)"
        )
    } else if budget >= without {
        "the program and the index".into()
    } else if needs.codebook == 0 {
        "the program, the heads of all clusters, the tables that find posting lists, and a query's read (larger clusters have fewer heads: `--cluster-size` of the build)".into()
    } else if needs.codes > needs.codebook {
        "the program, the codes of all vectors and the tables that find records (with the preset `aisaq`, or with the preset `stratann` and `--search-memory` in the build, \
         an index keeps its codes on storage)"
            .into()
    } else {
        "the program, the codebook and the tables that find records".into()
    };
    let changes = match needs.changes {
        0 => String::new(),
        bytes => format!(
            ", and {bytes} bytes of changes in the log (`stratann compact` merges them into the index, with more memory)"
        ),
    };
    Err(Error::Memory {
        budget,
        needs: must,
        part: format!("{part}{changes}"),
    })
}

/// The optional uses of the memory `left`. The use with the most saved reads for each byte comes
/// first.
fn slices(needs: &Needs, value: &Value, left: u64) -> Vec<Slice> {
    let mut slices = Vec::new();
    // If all lists are in memory, the navigation graph saves no reads.
    let lists = cost(needs.graph.pages, needs.graph);
    let without_approach =
        needs.vectors.pages > 0 && (lists..lists + needs.navigation).contains(&left);
    if needs.navigation > 0 && !without_approach {
        let saved = value.navigation();
        slices.push(Slice {
            what: What::Navigation,
            bytes: needs.navigation as f64,
            saved,
        });
    }
    for (what, file, reads, hot) in [
        (
            What::Graph,
            needs.graph,
            value.graph_reads,
            &value.hot_graph,
        ),
        (
            What::Vectors,
            needs.vectors,
            value.vector_reads,
            &value.hot_vectors,
        ),
    ] {
        let all = cost(file.pages, file) as f64;
        slices.extend(pieces(hot).map(|piece| Slice {
            what,
            bytes: piece.share * all,
            saved: piece.hits * reads,
        }));
    }
    // The order of slices of one file stays, since each slice saves less for each byte than the
    // slice before.
    slices.retain(|slice| slice.bytes > 0.0);
    slices.sort_by(|a, b| (b.saved / b.bytes).total_cmp(&(a.saved / a.bytes)));
    slices
}

fn cost(pages: u64, file: PageFile) -> u64 {
    match pages {
        0 => 0,
        pages => pages * file.kept_bytes() + file.table_bytes(),
    }
}

impl PageFile {
    fn table_bytes(self) -> u64 {
        4 * (self.pages + self.empty)
    }

    fn kept_bytes(self) -> u64 {
        self.page_bytes as u64 * if self.doubled { 2 } else { 1 }
    }
}

fn pages_in(bytes: u64, file: PageFile) -> u64 {
    if file.pages == 0 || bytes + 16 >= cost(file.pages, file) {
        return file.pages;
    }
    bytes.saturating_sub(file.table_bytes()) / file.kept_bytes()
}

#[derive(Clone, Copy, Debug)]
enum What {
    Navigation,
    Graph,
    Vectors,
}

#[derive(Clone, Copy, Debug)]
struct Slice {
    what: What,
    bytes: f64,
    saved: f64,
}

struct Value {
    medoid_reads: f64,
    graph_reads: f64,
    vector_reads: f64,
    hot_graph: Vec<HotShare>,
    hot_vectors: Vec<HotShare>,
}

impl Value {
    fn of(measured: Option<&Measured>) -> Self {
        // Without a measurement, the planner assumes that all pages are equally hot, and that the
        // navigation graph saves a quarter of the reads.
        let flat = vec![HotShare {
            share: 1.0,
            hits: 1.0,
        }];
        match measured {
            Some(measured) => Self {
                medoid_reads: measured.reads_medoid,
                graph_reads: measured.reads_navigation,
                vector_reads: measured.vector_reads,
                hot_graph: measured.hot_graph.clone(),
                hot_vectors: measured.hot_vectors.clone(),
            },
            None => Self {
                medoid_reads: 40.0,
                graph_reads: 30.0,
                vector_reads: 20.0,
                hot_graph: flat.clone(),
                hot_vectors: flat,
            },
        }
    }

    fn navigation(&self) -> f64 {
        (self.medoid_reads - self.graph_reads).max(0.0)
    }

    fn predict(&self, memory_plan: &MemoryPlan) -> [f64; 2] {
        let graph = match memory_plan.navigation {
            0 => self.medoid_reads,
            _ => self.graph_reads,
        };
        [
            graph * (1.0 - hits(&self.hot_graph, memory_plan.graph_share)),
            self.vector_reads * (1.0 - hits(&self.hot_vectors, memory_plan.vector_share)),
        ]
    }
}

fn pieces(hot: &[HotShare]) -> impl Iterator<Item = HotShare> + '_ {
    let mut last = HotShare {
        share: 0.0,
        hits: 0.0,
    };
    hot.iter().map(move |&point| {
        let piece = HotShare {
            share: (point.share - last.share).max(0.0),
            hits: (point.hits - last.hits).max(0.0),
        };
        last = point;
        piece
    })
}

/// The share of reads that the hottest `share` of pages serve, interpolated between measured
/// shares.
fn hits(hot: &[HotShare], share: f64) -> f64 {
    let (mut left, mut found) = (share, 0.0);
    for piece in pieces(hot) {
        if piece.share <= 0.0 {
            continue;
        }
        let part = (left / piece.share).clamp(0.0, 1.0);
        found += part * piece.hits;
        left -= piece.share;
    }
    found
}

#[cfg(test)]
pub(crate) mod refusal {
    use std::cell::Cell;

    use crate::Error;

    thread_local! {
        static LEFT: Cell<Option<u64>> = const { Cell::new(None) };
    }

    pub(crate) fn after(times: Option<u64>) {
        LEFT.set(times);
    }

    pub(crate) fn left() -> Option<u64> {
        LEFT.get()
    }

    pub(crate) fn check() -> Result<(), Error> {
        match LEFT.get() {
            None => Ok(()),
            Some(0) => {
                LEFT.set(None);
                Err(Error::Memory {
                    budget: 0,
                    needs: 1,
                    part: "what a test has refused".into(),
                })
            }
            Some(left) => {
                LEFT.set(Some(left - 1));
                Ok(())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn needs() -> Needs {
        Needs {
            codes: 32_000_000,
            codebook: 200_000,
            tables: 200_000,
            cache: 0,
            navigation: 3_000_000,
            changes: 100_000,
            deleted: 0,
            beside: 30_000,
            inserting: 50_000,
            rows: 0,
            places: 0,
            files: 0,
            graph: PageFile {
                pages: 43_000,
                empty: 0,
                page_bytes: 4096,
                several: 0,
                doubled: false,
                candidate: 0,
            },
            vectors: PageFile::default(),
            unpacked: 400_000_000,
        }
    }

    fn measured() -> Measured {
        let point = |share, hits| HotShare { share, hits };
        Measured {
            queries: 100,
            list: 40,
            reads_medoid: 30.0,
            reads_navigation: 20.0,
            vector_reads: 0.0,
            hot_graph: vec![point(0.1, 0.3), point(0.5, 0.8), point(1.0, 1.0)],
            hot_vectors: Vec::new(),
        }
    }

    #[test]
    fn a_larger_budget_predicts_fewer_reads_and_no_budget_is_exceeded() {
        let mut last = f64::INFINITY;
        for megabytes in [46, 48, 64, 128, 200, 256, 1000] {
            let budget = megabytes * 1_000_000;
            let d = divide(Some(budget), &needs(), Some(&measured())).unwrap();
            let sum = d.program
                + d.queries
                + d.codes
                + d.codebook
                + d.tables
                + d.cache
                + d.changes
                + d.inserting
                + d.navigation
                + d.graph_pages
                + d.vector_pages
                + d.unpacked
                + d.unused;
            assert!(sum <= budget + 16 && sum + 16 >= budget, "{d:?}");
            assert_eq!(d.unpacked > 0, megabytes == 1000, "{d:?}");
            assert!(d.unpacked == 0 || d.graph_pages == 0, "{d:?}");
            let reads = d.predicted_reads.unwrap()[0];
            assert!(reads <= last, "{megabytes} MB: {reads} after {last}");
            last = reads;
        }
        assert_eq!(last, 0.0);
    }

    #[test]
    fn a_budget_is_said_that_leaves_as_much_as_is_wanted() {
        let needs = needs();
        let left = |budget| {
            let d = divide(Some(budget), &needs, None).unwrap();
            budget - d.program - d.queries - d.codes - d.codebook - d.tables - d.changes
        };
        for beside in [
            0,
            1,
            100_000,
            1_000_000,
            2_000_000,
            5_000_000,
            30_000_000,
            200_000_000,
        ] {
            let budget = needs.budget_with(beside);
            assert!(left(budget) >= beside, "{beside}: {budget}");
            let query = needs.query();
            for more in (0..100).flat_map(|n| [n * query, 4 * n * query, n * 12_345]) {
                assert!(left(budget + more) >= beside, "{beside}: {more} more");
            }
            let less = divide(Some(budget - 1), &needs, None);
            let enough = less.is_ok() && left(budget - 1) >= beside;
            assert!(!enough, "{beside}: {budget} is more than is needed");
        }
    }

    #[test]
    fn the_navigation_graph_comes_first_and_is_never_cut() {
        let least = divide(Some(0), &needs(), None).unwrap_err().to_string();
        let tight = divide(Some(43_500_000), &needs(), Some(&measured())).unwrap();
        assert!(least.contains("bytes are needed"), "{least}");
        assert_eq!(tight.navigation, 0);
        let more = divide(Some(50_000_000), &needs(), Some(&measured())).unwrap();
        assert_eq!(more.navigation, needs().navigation);
        assert_eq!(more.inserting, needs().inserting);
        assert!(more.graph_share < 0.05, "{more:?}");
    }

    #[test]
    fn without_a_limit_only_what_every_search_needs_is_kept() {
        let d = divide(None, &needs(), None).unwrap();
        assert_eq!((d.navigation, d.graph_pages), (3_000_000, 0));
        assert_eq!(d.inserting, 0);
        assert_eq!(d.for_queries(100, 4096, 0), None);
        assert_eq!(d.candidates(100, 4096, 77), 77);
    }
}
