//! PRESS on real data, in one process and divided into the parts of the servers.

use std::path::Path;
use std::sync::{OnceLock, mpsc};

use stratann::press::{Collection, Full, High, HighQuery, Low, LowQuery, Missing, Ranked};
use stratann::{
    BuildOptions, Codebook, Element, Error, GroundTruth, Index, IoMode, Layout, LiveIndex,
    LowCodes, Matrix, Metric, OpenOptions, Order, Preset, Press, Rerank, SearchOptions, Silent,
    Strategy, TrainOptions, VectorSource, WriteOptions, brute_force, build, verify,
};

use stratann_codec::ListModel;

use crate::fixtures::{SIFT_BASE, SIFT_QUERIES, head, matrix};

// An odd number, so that half of it is no integer.
const LIST: usize = 61;
const QUERIES: usize = 40;

fn options() -> BuildOptions {
    BuildOptions {
        preset: Preset::DISTVS,
        degree: Some(32),
        build_list: 64,
        // An odd number, so that the low part has a byte more than the rest.
        code_bytes: Some(31),
        navigation: 0.0,
        threads: 1,
        ..BuildOptions::default()
    }
}

fn writes() -> WriteOptions {
    WriteOptions {
        threads: 1,
        ..WriteOptions::default()
    }
}

fn queries() -> Matrix {
    head(SIFT_QUERIES, QUERIES)
}

fn built(low_codes: LowCodes) -> (&'static Path, &'static GroundTruth) {
    static BUILT: [OnceLock<(tempfile::TempDir, GroundTruth)>; 2] = [const { OnceLock::new() }; 2];
    let at = usize::from(low_codes == LowCodes::Separate);
    let (folder, truth) = BUILT[at].get_or_init(|| {
        let folder = tempfile::tempdir().unwrap();
        let base = head(SIFT_BASE, 6000);
        let options = BuildOptions {
            low_codes: Some(low_codes),
            ..options()
        };
        build(&base, folder.path(), &options, &Silent).unwrap();
        let truth = brute_force(&base, &queries(), 10, Metric::L2, 1, &Silent).unwrap();
        (folder, truth)
    });
    (folder.path(), truth)
}

struct Servers {
    high: High,
    low: Low,
    full: Full,
    model: ListModel,
}

struct Found {
    ranked: Ranked,
    low: u64,
    high: u64,
    offloaded: u64,
    steps: u32,
    lists: usize,
    numbers: usize,
    refined: usize,
}

impl Servers {
    fn of(path: &Path) -> Servers {
        Servers::with_room(path, u64::MAX)
    }

    fn with_room(path: &Path, bytes: u64) -> Servers {
        let high = High::open(path, &Silent).unwrap();
        let kept = Low::room(high.collection(), bytes);
        let (mut bits, mut codes) = (Vec::new(), Vec::new());
        for first in (0..high.collection().nodes).step_by(1000) {
            let end = high.collection().nodes.min(first + 1000);
            let mut piece = Vec::new();
            high.low_codes(first..end, kept, &mut piece).unwrap();
            let which = match kept < high.collection().nodes {
                true => (end - first).div_ceil(8) as usize,
                false => 0,
            };
            bits.extend_from_slice(&piece[..which]);
            codes.extend_from_slice(&piece[which..]);
        }
        let bits = (kept < high.collection().nodes).then_some(&bits[..]);
        let low = Low::new(*high.collection(), &high.low_centroids(), bits, codes).unwrap();
        assert!(low.code_bytes() <= bytes && low.kept() == bits.map(|_| kept));
        let full = Full::open(path, 1, IoMode::Auto).unwrap();
        assert_eq!(*high.collection(), full.collection());
        // `low_centroids` returns the count of the centroids, the centroids, the entry node, and
        // the model of lists.
        let centroids = high.low_centroids();
        let count = u32::from_le_bytes(*centroids.first_chunk().unwrap());
        let model = ListModel::from_bytes(&centroids[8 + 4 * count as usize..]).unwrap();
        Servers {
            high,
            low,
            full,
            model,
        }
    }

    fn numbers_in(&self, mut lists: &[u8]) -> usize {
        let (mut numbers, mut list) = (0, Vec::new());
        while let Some((node, rest)) = lists.split_first_chunk() {
            let taken = self
                .model
                .decode(u32::from_le_bytes(*node), rest, &mut list);
            numbers += list.len();
            lists = &rest[taken.unwrap()..];
        }
        numbers
    }

    fn search(&self, query: &[u8], press: Press) -> Found {
        self.search_with(query, press, LIST)
    }

    fn search_with(&self, query: &[u8], press: Press, list: usize) -> Found {
        let (mut above, mut below) = (HighQuery::default(), LowQuery::default());
        let (mut lists, mut nodes) = (Vec::new(), Vec::new());
        let (mut missing, mut estimates) = (Missing::default(), Vec::new());
        below
            .begin(&self.low, query, list, press, &mut nodes, &mut missing)
            .unwrap();
        assert_eq!(below.sent().len(), self.high.collection().query_bytes());
        above
            .begin(&self.high, below.sent(), list, (list / 2).max(10), 8)
            .unwrap();
        let (mut sent, mut refined, mut numbers, mut steps) = (0, 0, 0, 0);
        loop {
            // The order of the nodes does not matter.
            nodes.reverse();
            missing.nodes.reverse();
            let looks = !missing.nodes.is_empty();
            assert!(!looks || self.low.kept().is_some());
            if looks {
                let look = above.look(&self.high, &nodes, &missing, &mut estimates);
                look.unwrap();
                estimates.reverse();
            } else {
                above.refine(&self.high, &nodes).unwrap();
                refined += nodes.len();
            }
            nodes.clear();
            steps += 1;
            if !above.advance(&self.high, &mut lists) {
                break;
            }
            if looks {
                below.hear(&estimates);
            }
            below.expand(&self.low, &lists).unwrap();
            sent += lists.len();
            numbers += self.numbers_in(&lists);
            lists.clear();
            below.select(&mut nodes, &mut missing);
        }
        let mut nodes = Vec::new();
        above.best(&mut nodes);
        let (told, hears) = mpsc::channel();
        let done = move |ranked| told.send(ranked).unwrap();
        let state = self.high.collection().state;
        self.full.rank(state, query, &nodes, 10, done).unwrap();
        Found {
            ranked: hears.recv().unwrap().unwrap(),
            low: below.computations() + above.low_computations(),
            high: above.computations(),
            offloaded: above.low_computations(),
            steps,
            lists: sent,
            numbers,
            refined,
        }
    }
}

#[test]
fn servers_find_together_what_one_process_finds() {
    found_together(LowCodes::Nested);
}

#[test]
fn servers_find_together_what_one_process_finds_by_separate_codes() {
    found_together(LowCodes::Separate);
}

fn found_together(low_codes: LowCodes) {
    let (path, truth) = built(low_codes);
    let index = Index::open(path, &OpenOptions::default()).unwrap();
    let options = SearchOptions {
        list: LIST,
        ..SearchOptions::default()
    };
    let one = index.search(&queries(), &options).unwrap();
    let recall = truth.recall(&one.ids, &one.distances, 10).unwrap();
    assert!(recall > 0.95, "{recall}");
    let servers = Servers::of(path);
    let collection = servers.low.collection();
    assert_eq!((collection.low_bytes, collection.high_bytes), (16, 31));
    let (mut low, mut high, mut full) = (0, 0, 0);
    let (mut lists, mut numbers) = (0, 0);
    let mut query = vec![0; 128];
    for n in 0..QUERIES {
        queries().read(n, &mut query).unwrap();
        let found = servers.search(&query, Press::default());
        assert_eq!(found.ranked.ids, one.ids[10 * n..10 * n + 10], "query {n}");
        assert_eq!(found.ranked.distances, one.distances[10 * n..10 * n + 10]);
        assert_eq!(found.high as usize, found.refined);
        lists += found.lists;
        numbers += found.numbers;
        low += found.low;
        high += found.high;
        full += found.ranked.computations;
    }
    let counters = one.counters;
    assert_eq!(full, counters.reranked);
    assert_eq!(
        full as usize,
        QUERIES * (LIST / 2),
        "not half of the candidate list is ranked"
    );
    // The counts differ slightly, because the set of visited nodes may forget nodes, and has
    // another size on servers.
    let near = |a: u64, b: u64| (a as f64 / b as f64 - 1.0).abs() < 0.02;
    let by_high = counters.distance_computations - counters.low_computations;
    assert!(near(high + full, by_high), "{} {by_high}", high + full);
    assert!(near(low, counters.low_computations), "{low} {counters:?}");
    assert!(high < counters.low_computations / 3, "{high} {counters:?}");
    // Uncompressed lists would take four bytes for each node in them.
    println!("{lists} bytes of lists of {numbers} nodes");
    assert!(lists < 2 * numbers, "{lists} {numbers}");
}

/// In locality order, one read returns several candidates.
#[test]
fn in_locality_order_fewer_reads_bring_the_candidates() {
    let folder = tempfile::tempdir().unwrap();
    let options = BuildOptions {
        preset: Preset {
            order: Order::Input,
            ..Preset::DISTVS
        },
        low_codes: Some(LowCodes::Nested),
        ..options()
    };
    build(&head(SIFT_BASE, 6000), folder.path(), &options, &Silent).unwrap();
    assert_eq!(Preset::DISTVS.order, Order::Locality);
    let read = |path: &Path| {
        let index = Index::open(path, &OpenOptions::default()).unwrap();
        let options = SearchOptions {
            list: LIST,
            ..SearchOptions::default()
        };
        let counters = index.search(&queries(), &options).unwrap().counters;
        assert_eq!(counters.reranked as usize, QUERIES * (LIST / 2));
        counters.vector_reads as f64 / QUERIES as f64
    };
    let (near, input) = (read(built(LowCodes::Nested).0), read(folder.path()));
    println!("{near:.1} reads a query in locality order, {input:.1} in the order of the input");
    assert!(1.5 * near < input, "{near} {input}");
}

/// Far from the query, each round expands one node. Near the query, the rounds grow.
#[test]
fn the_first_rounds_visit_few_nodes() {
    let (path, _) = built(LowCodes::Nested);
    let high = High::open(path, &Silent).unwrap();
    let mut query = vec![0; 128];
    queries().read(0, &mut query).unwrap();
    let begun = |beam| {
        let mut walk = HighQuery::default();
        walk.begin(&high, &query, 60, 30, beam).unwrap();
        let nodes: Vec<_> = (0..60).map(|node| (100 * node, 0.0)).collect();
        walk.refine(&high, &nodes).unwrap();
        walk
    };
    let (mut narrow, mut wide) = (begun(1), begun(8));
    for visited in [1, 2, 4, 8, 8] {
        let (mut one_by_one, mut together) = (Vec::new(), Vec::new());
        for _ in 0..visited {
            assert!(narrow.advance(&high, &mut one_by_one));
        }
        assert!(wide.advance(&high, &mut together));
        assert!(one_by_one == together, "{visited} nodes in a round");
    }
}

/// Servers and one process round queries of floats in the same way, to one byte for each dimension.
#[test]
fn rounded_queries_find_the_same_together_and_as_much_as_exact_ones() {
    let folder = tempfile::tempdir().unwrap();
    let floats = |name, count| {
        let rows = head(name, count);
        let (mut bytes, mut row) = (Vec::new(), vec![0; 128]);
        for n in 0..count {
            rows.read(n, &mut row).unwrap();
            let as_floats = (row.iter().enumerate()).map(|(at, &x)| {
                let scale = 1.0 + (at % 3) as f32;
                scale * f32::from(x) + 1000.0 * (at % 5) as f32
            });
            bytes.extend(as_floats.flat_map(f32::to_le_bytes));
        }
        Matrix::new(bytes, count, 128, Element::F32).unwrap()
    };
    const ROWS: usize = 3000;
    let (base, asked) = (floats(SIFT_BASE, ROWS), floats(SIFT_QUERIES, QUERIES));
    for metric in [Metric::L2, Metric::Cosine] {
        let path = folder.path().join(metric.name());
        let options = BuildOptions {
            metric,
            ..options()
        };
        build(&base, &path, &options, &Silent).unwrap();
        let truth = brute_force(&base, &asked, 10, metric, 1, &Silent).unwrap();
        let index = Index::open(&path, &OpenOptions::default()).unwrap();
        let of = |strategy| {
            let options = SearchOptions {
                list: LIST,
                strategy,
                ..SearchOptions::default()
            };
            let found = index.search(&asked, &options).unwrap();
            let recall = truth.recall(&found.ids, &found.distances, 10).unwrap();
            (found, recall)
        };
        let (one, recall) = of(None);
        let (_, exact) = of(Some(Strategy::BestFirst));
        assert!(
            recall > exact - 0.01,
            "{metric}: recall {recall}, with exact queries {exact}"
        );
        let servers = Servers::of(&path);
        assert_eq!(servers.high.collection().query_bytes(), 132);
        let offloads = Servers::with_room(&path, ROWS as u64 * 16 / 2);
        let mut query = vec![0; 512];
        for n in 0..QUERIES {
            asked.read(n, &mut query).unwrap();
            for servers in [&servers, &offloads] {
                let found = servers.search(&query, Press::default()).ranked;
                assert_eq!(found.ids, one.ids[10 * n..10 * n + 10], "{metric} {n}");
                assert_eq!(found.distances, one.distances[10 * n..10 * n + 10]);
            }
        }
    }
}

/// With offloaded codes, an additional node takes a slot in L_high. So with other queries, the
/// results might differ.
#[test]
fn with_low_codes_offloaded_as_much_is_found_by_a_few_distances_more() {
    let (path, _) = built(LowCodes::Separate);
    let all = Servers::of(path);
    let code = u64::from(all.low.collection().low_bytes);
    assert_eq!(all.low.code_bytes(), 6000 * code);
    // In turn, all codes but one, half of the codes, some codes, and not even the bits fit into
    // memory.
    for bytes in [6000 * code - 1, 3000 * code, 200 * code, 500] {
        let some = Servers::with_room(path, bytes);
        let kept = some.low.kept().unwrap();
        assert!(kept < 6000 && (kept == 0) == (bytes == 500), "{kept}");
        let (mut here, mut there) = (0, 0);
        let (mut all_high, mut some_high) = (0, 0);
        let mut query = vec![0; 128];
        for n in 0..QUERIES {
            queries().read(n, &mut query).unwrap();
            for press in [
                Press::PAPER,
                Press {
                    seeds: 0,
                    ..Press::TUNED
                },
            ] {
                let (one, other) = (all.search(&query, press), some.search(&query, press));
                assert_eq!(one.ranked.ids, other.ranked.ids, "query {n}, {kept} codes");
                assert_eq!(one.ranked.distances, other.ranked.distances);
                assert_eq!(one.steps, other.steps);
                assert_eq!(one.low, other.low);
                // The memory server may refine a node that later nodes would push out of L_low.
                assert!(one.high <= other.high, "query {n}");
                all_high += one.high;
                some_high += other.high;
                here += other.low;
                there += other.offloaded;
            }
        }
        // Measured without codes in the compute server: 16,797 distances by high codes in place of
        // 16,251.
        assert!(20 * some_high <= 21 * all_high, "{some_high} {all_high}");
        // Popular nodes have more than their share of the distances.
        let share = 1.0 - there as f64 / here as f64;
        let kept = f64::from(kept) / 6000.0;
        println!("{kept:.3} of the codes answer for {share:.3} of the distances");
        let more = share > 1.1 * kept || 1.0 - share < 0.9 * (1.0 - kept);
        assert!(more || kept == 0.0, "{share} {kept}");
    }
}

/// Here a search from the graph's entry node takes 7.8 rounds. A search from the nearest of evenly
/// spaced nodes takes 6.7 rounds.
#[test]
fn a_search_begins_at_seeds_whose_low_codes_are_here() {
    let (path, truth) = built(LowCodes::Nested);
    let found = |bytes: u64| {
        let servers = Servers::with_room(path, bytes);
        let (mut ids, mut distances) = (Vec::new(), Vec::new());
        let (mut took, mut query) = ([0; 3], vec![0; 128]);
        for n in 0..QUERIES {
            queries().read(n, &mut query).unwrap();
            // The list is so short that a search misses some answers, from any start node.
            let found = servers.search_with(&query, Press::TUNED, 22);
            ids.extend(found.ranked.ids);
            distances.extend(found.ranked.distances);
            took[0] += u64::from(found.steps);
            took[1] += found.low;
            took[2] += found.high;
        }
        let recall = truth.recall(&ids, &distances, 10).unwrap();
        let took = took.map(|count| count as f64 / QUERIES as f64);
        (servers.low.kept(), recall, took)
    };
    let (_, all, [rounds, low, high]) = found(u64::MAX);
    assert!((0.94..0.98).contains(&all), "{all}");
    // In turn, the compute server has half of the codes, an eighth of the codes, fewer codes than
    // seeds, and none.
    for (bytes, later, more) in [
        (48_000, 0.1, 1.02),
        (12_000, 0.2, 1.05),
        (1500, 0.3, 1.07),
        (0, 0.3, 1.07),
    ] {
        let (kept, recall, took) = found(bytes);
        let context = format!(
            "{kept:?} codes: {recall} by {took:?} rounds, low and high; all: {all} by {rounds}, {low}, {high}"
        );
        assert!(recall > all - 0.01, "{context}");
        assert!(took[0] < rounds + later, "{context}");
        assert!(took[1] < 1.01 * low, "{context}");
        assert!(took[2] < more * high, "{context}");
    }
}

#[test]
fn wider_lists_by_low_codes_find_more() {
    let (path, truth) = built(LowCodes::Nested);
    let index = Index::open(path, &OpenOptions::default()).unwrap();
    let search = |press: Press, strategy| {
        let options = SearchOptions {
            list: 24,
            press,
            strategy,
            ..SearchOptions::default()
        };
        let found = index.search(&queries(), &options).unwrap();
        let recall = truth.recall(&found.ids, &found.distances, 10).unwrap();
        (recall, found.counters)
    };
    let wide = Press {
        low: 16.0,
        ratio: 1.0,
        ..Press::PAPER
    };
    let (paper, wide) = (search(Press::PAPER, None), search(wide, None));
    let all = search(Press::PAPER, Some(Strategy::BestFirst));
    // 40 queries do not always show a difference, so both may be equal.
    assert!(paper.0 <= wide.0, "{paper:?} {wide:?}");
    // If high codes rank all candidates, the search is a best-first search.
    assert!((wide.0 - all.0).abs() < 0.01, "{wide:?} {all:?}");
    assert_eq!(all.1.low_computations, 0);
    assert!(wide.1.low_computations > 0);
    let options = SearchOptions {
        strategy: Some(Strategy::BestFirst),
        rerank: Some(Rerank::PAPER),
        ..SearchOptions::default()
    };
    let found = index.search(&queries(), &options).unwrap();
    assert!(truth.recall(&found.ids, &found.distances, 10).unwrap() > 0.98);
}

fn ranks(servers: &Servers, of: Collection) -> bool {
    servers.full.collection_of(of.state) == Some(of)
}

fn nearest(servers: &Servers, row: &[u8]) -> (u64, f32) {
    let found = servers.search(row, Press::PAPER).ranked;
    (found.ids[0], found.distances[0])
}

#[test]
fn what_changes_is_found_at_once_and_by_all_servers_when_it_is_merged() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("index");
    let base = head(SIFT_BASE, 2000);
    build(&base, &path, &options(), &Silent).unwrap();
    let mut servers = Servers::of(&path);
    let full = Full::open_for_changes(&path, 1, IoMode::Auto, &writes()).unwrap();
    servers.full = full;
    let first = servers.full.collection();
    assert_eq!(first, *servers.high.collection());
    let more = head(SIFT_QUERIES, 40);
    let row = |of: &Matrix, n| {
        let mut row = vec![0; 128];
        of.read(n, &mut row).unwrap();
        row
    };
    // The vectors at positions 20 to 29 are inserted while servers use the earlier checkpoint.
    let new: Vec<u64> = (5000..5010).collect();
    let rows =
        |range: std::ops::Range<usize>| -> Vec<u8> { range.flat_map(|n| row(&more, n)).collect() };
    servers.full.upsert(&new, &rows(0..10)).unwrap();
    let replaced: Vec<u64> = (100..110).collect();
    servers.full.upsert(&replaced, &rows(10..20)).unwrap();
    assert_eq!(servers.full.delete(&[3, 4, 4, 9999]).unwrap(), 2);
    let check = |servers: &Servers, when: &str| {
        for (n, id) in (0..20).zip(new.iter().chain(&replaced)) {
            assert_eq!(nearest(servers, &row(&more, n)), (*id, 0.0), "{when}: {n}");
        }
        for gone in [3, 4, 100, 109] {
            let found = nearest(servers, &row(&base, gone));
            assert!(
                found.1 > 0.0 && found.0 != gone as u64,
                "{when}: a search for the old row of id {gone} finds {found:?}"
            );
        }
        assert_eq!(nearest(servers, &row(&base, 7)), (7, 0.0), "{when}");
    };
    check(&servers, "waiting");
    let reading = Servers::of(&path);
    check(&reading, "read");
    servers.full.index().unwrap().compact(&Silent).unwrap();
    let second = servers.full.collection();
    assert_ne!(second.state, first.state);
    assert_eq!(second.nodes, 2008);
    assert!(ranks(&servers, first) && ranks(&servers, second));
    // Lists and codes belong to the earlier checkpoint, but results show the present state.
    check(&servers, "merged");
    let merged = Servers::of(&path);
    let mut both = [servers, merged];
    let full = |both: &mut [Servers; 2]| {
        let [old, new] = both;
        std::mem::swap(&mut old.full, &mut new.full);
    };
    for turn in 0..2 {
        check(&both[turn], "both");
        full(&mut both);
    }
    let [old, new] = &mut both;
    let storage = &old.full;
    storage
        .upsert(&[5000, 101, 50, 6000], &rows(20..24))
        .unwrap();
    assert_eq!(storage.delete(&[5001, 102, 51]).unwrap(), 3);
    let now = |servers: &Servers, when: &str| {
        for (n, id) in (20..24).zip([5000, 101, 50, 6000]) {
            assert_eq!(nearest(servers, &row(&more, n)), (id, 0.0), "{when}: {id}");
        }
        for (of, n, gone) in [
            (&more, 0, 5000),
            (&more, 11, 101),
            (&base, 50, 50),
            (&more, 1, 5001),
            (&more, 12, 102),
            (&base, 51, 51),
            (&base, 3, 3),
        ] {
            let found = nearest(servers, &row(of, n));
            assert!(
                found.0 != gone && found.1 > 0.0,
                "{when}: a search for the old row of id {gone} finds {found:?}"
            );
        }
        assert_eq!(nearest(servers, &row(&more, 2)), (5002, 0.0), "{when}");
    };
    now(old, "later, before");
    std::mem::swap(&mut old.full, &mut new.full);
    now(new, "later, after");
    new.full.forget_before();
    assert!(!ranks(new, first) && ranks(new, second));
    now(new, "alone");
    new.full.index().unwrap().compact(&Silent).unwrap();
    assert!(ranks(new, second));
    now(new, "twice merged");
    let index = Index::open(&path, &OpenOptions::default()).unwrap();
    assert!(index.codebook().unwrap().low_codes().is_some());
}

/// Many vectors that waited for a merge are deleted after the merge.
#[test]
fn what_was_deleted_behind_a_merge_hides_nothing_in_the_state_before() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("index");
    let base = head(SIFT_BASE, 1000);
    build(&base, &path, &options(), &Silent).unwrap();
    let mut servers = Servers::of(&path);
    let writes = writes();
    servers.full = Full::open_for_changes(&path, 1, IoMode::Auto, &writes).unwrap();
    let first = servers.full.collection();
    let mut query = vec![0; 128];
    base.read(7, &mut query).unwrap();
    let (ids, rows): (Vec<u64>, Vec<Vec<u8>>) = (1..=200u64)
        .map(|number| {
            let mut row = query.clone();
            let far = number as u8;
            row[0] = row[0].checked_add(far).unwrap_or(row[0].wrapping_sub(far));
            (9000 + number, row)
        })
        .unzip();
    servers.full.upsert(&ids, &rows.concat()).unwrap();
    servers.full.index().unwrap().compact(&Silent).unwrap();
    // A search ranks fewer waiting vectors than are deleted here.
    servers.full.delete(&ids[..120]).unwrap();
    let found = servers.search(&query, Press::PAPER).ranked;
    let one = Matrix::new(query.clone(), 1, 128, base.element()).unwrap();
    let all = SearchOptions {
        list: 3000,
        ..SearchOptions::default()
    };
    let right = servers.full.index().unwrap().search(&one, &all).unwrap();
    assert!(right.ids.contains(&9121) && right.ids.contains(&9122));
    assert_eq!(found.ids, right.ids);
    let live = servers.full.index().unwrap().clone();
    live.compact(&Silent).unwrap();
    servers.full.upsert(&ids[..1], &rows[0]).unwrap();
    live.compact(&Silent).unwrap();
    assert!(!ranks(&servers, first));
    let told = |_| panic!("not called");
    let refused = servers.full.rank(first.state, &query, &[1], 3, told);
    assert!(refused.unwrap_err().is_call_wrong());
    assert!(servers.full.has_before());
    servers.full.forget_before();
    assert!(!servers.full.has_before());
}

#[test]
fn searches_beside_changes_and_merges_find_what_was_acknowledged() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("index");
    build(&head(SIFT_BASE, 1000), &path, &options(), &Silent).unwrap();
    let mut servers = Servers::of(&path);
    servers.full = Full::open_for_changes(&path, 1, IoMode::Auto, &writes()).unwrap();
    let more = matrix(SIFT_QUERIES);
    let row = |n: usize| {
        let mut row = vec![0; 128];
        more.read(n % 500, &mut row).unwrap();
        row
    };
    std::thread::scope(|scope| {
        let merging = scope.spawn(|| {
            for _ in 0..3 {
                servers.full.index().unwrap().compact(&Silent).unwrap();
            }
        });
        // Every checkpoint has old versions of the same ten ids.
        let (mut n, mut again) = (0, 0);
        while again < 40 {
            let id = 200 + n as u64 % 10;
            servers.full.upsert(&[id], &row(n)).unwrap();
            let state = servers.full.collection().state;
            let (told, hears) = mpsc::channel();
            let done = move |ranked| told.send(ranked).unwrap();
            // Storage finds a merged vector by its node, and a waiting vector in memory.
            let all: Vec<u32> = (0..1000).collect();
            match servers.full.rank(state, &row(n), &all, 10, done) {
                Ok(()) => {
                    let found = hears.recv().unwrap().unwrap();
                    assert_eq!((found.ids[0], found.distances[0]), (id, 0.0), "{n}");
                    let mut ids = found.ids.clone();
                    ids.sort_unstable();
                    ids.dedup();
                    assert_eq!(
                        ids.len(),
                        found.ids.len(),
                        "a result has an id twice: {:?}",
                        found.ids
                    );
                }
                Err(error) => assert!(servers.full.collection_of(state).is_none(), "{error}"),
            }
            n += 1;
            again += usize::from(merging.is_finished());
        }
    });
}

/// The number of all distances, the number of distances by low codes, the hops, and the recall.
fn counted(index: &Index, truth: &GroundTruth, options: SearchOptions) -> (u64, u64, u64, f64) {
    let options = SearchOptions {
        list: LIST,
        ..options
    };
    let found = index.search(&queries(), &options).unwrap();
    let recall = truth.recall(&found.ids, &found.distances, 10).unwrap();
    let counters = found.counters;
    let (all, low) = (counters.distance_computations, counters.low_computations);
    (all, low, counters.hops, recall)
}

#[test]
fn a_search_by_one_precision_begins_at_seeds_where_it_is_asked_to() {
    let folder = tempfile::tempdir().unwrap();
    let without = BuildOptions {
        preset: Preset {
            order: Order::Locality,
            ..Preset::DECOUPLEVS
        },
        ..options()
    };
    build(&head(SIFT_BASE, 6000), folder.path(), &without, &Silent).unwrap();
    for low_codes in LowCodes::ALL.map(Some).into_iter().chain([None]) {
        let (path, truth) = built(low_codes.unwrap_or(LowCodes::Nested));
        let path = match low_codes {
            Some(_) => path,
            None => folder.path(),
        };
        let index = Index::open(path, &OpenOptions::default()).unwrap();
        let one = |seeds| SearchOptions {
            strategy: Some(Strategy::BestFirst),
            beam: Some(8),
            seeds,
            ..SearchOptions::default()
        };
        let (_, low, hops, recall) = counted(&index, truth, one(0));
        assert!(low == 0 && recall > 0.95, "{low} {recall}");
        let (all, by_low, fewer, with_seeds) = counted(&index, truth, one(64));
        assert!(
            fewer < hops,
            "{low_codes:?}: {fewer} hops with seeds, {hops} without"
        );
        assert!(with_seeds > 0.95, "{with_seeds}");
        // The search scores 64 seeds, and up to 16 nodes in each of the next steps.
        let most = QUERIES as u64 * (64 + 3 * 16);
        match low_codes {
            Some(_) => assert!(by_low >= QUERIES as u64 * 64 && by_low <= most),
            None => assert_eq!(by_low, 0),
        }
        // By default, the search starts at seeds, and counts most distances by low codes.
        if low_codes.is_some() {
            let press = counted(&index, truth, SearchOptions::default());
            assert!(
                press.1 > press.0 / 2 && press.0 < 2 * all,
                "{press:?} {all}"
            );
        }
    }
}

#[test]
fn separate_low_codes_outlive_merges() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("index");
    let base = head(SIFT_BASE, 1000);
    let separate = BuildOptions {
        low_codes: Some(LowCodes::Separate),
        ..options()
    };
    build(&base, &path, &separate, &Silent).unwrap();
    let is = |what: &str| {
        let report = verify(&path, &Silent).unwrap();
        assert!(report.problems.is_empty(), "{what}: {:?}", report.problems);
        let index = Index::open(&path, &OpenOptions::default()).unwrap();
        let codebook = index.codebook().unwrap();
        assert_eq!(codebook.low_codes(), Some(LowCodes::Separate), "{what}");
        assert_eq!(codebook.code_bytes(), 47, "{what}");
        let collection = *High::open(&path, &Silent).unwrap().collection();
        assert_eq!((collection.low_bytes, collection.high_bytes), (16, 31));
    };
    is("built");
    let live = LiveIndex::open(&path, &OpenOptions::default(), &writes()).unwrap();
    let mut row = vec![0; 128];
    base.read(7, &mut row).unwrap();
    let rows = Matrix::new(row, 1, 128, base.element()).unwrap();
    live.upsert(&rows, &[5000], &Silent).unwrap();
    live.compact(&Silent).unwrap();
    drop(live);
    is("merged");
    let of_book = TrainOptions {
        code_bytes: Some(31),
        low_codes: Some(LowCodes::Separate),
        threads: 1,
        ..TrainOptions::default()
    };
    let book = Codebook::train(&base, &of_book, &Silent).unwrap();
    book.write(folder.path().join("book")).unwrap();
    let book = Codebook::read(folder.path().join("book")).unwrap();
    for code_bytes in [None, Some(31)] {
        let given = BuildOptions {
            codebook: Some(book.clone()),
            code_bytes,
            overwrite: true,
            ..separate.clone()
        };
        build(&base, &path, &given, &Silent).unwrap();
        is("with a codebook");
    }
    let nested = BuildOptions {
        codebook: Some(book),
        code_bytes: None,
        ..options()
    };
    let refused = build(&base, folder.path().join("nested"), &nested, &Silent).unwrap_err();
    assert!(refused.to_string().contains("separate"), "{refused}");
    let plain = BuildOptions {
        preset: Preset::DECOUPLEVS,
        ..separate
    };
    let refused = build(&base, folder.path().join("plain"), &plain, &Silent).unwrap_err();
    assert!(refused.is_call_wrong() && refused.to_string().contains("distvs"));
}

#[test]
fn what_cannot_go_from_coarse_to_fine_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let base = head(SIFT_BASE, 500);
    let path = folder.path().join("plain");
    let plain = BuildOptions {
        preset: Preset::DECOUPLEVS,
        ..options()
    };
    build(&base, &path, &plain, &Silent).unwrap();
    let index = Index::open(&path, &OpenOptions::default()).unwrap();
    let press = SearchOptions {
        strategy: Some(Strategy::Press),
        ..SearchOptions::default()
    };
    let refused = index.search(&queries(), &press).unwrap_err();
    assert!(
        refused.is_call_wrong() && refused.to_string().contains("distvs"),
        "{refused}"
    );
    for refused in [
        High::open(&path, &Silent).err(),
        Full::open(&path, 1, IoMode::Auto).err(),
    ] {
        let refused = refused.unwrap();
        assert!(
            refused.is_call_wrong() && refused.to_string().contains("distvs"),
            "{refused}"
        );
    }
    let inline = BuildOptions {
        layout: Some(Layout::Inline),
        ..options()
    };
    let path = folder.path().join("inline");
    let refused = build(&base, &path, &inline, &Silent).unwrap_err();
    assert!(refused.is_call_wrong(), "{refused}");
    for press in [
        Press {
            low: 0.5,
            ratio: 0.3,
            ..Press::PAPER
        },
        Press {
            low: f64::NAN,
            ratio: 0.3,
            ..Press::PAPER
        },
        Press {
            low: 2.0,
            ratio: 0.0,
            ..Press::PAPER
        },
        Press {
            low: 2.0,
            ratio: 1.5,
            ..Press::PAPER
        },
        Press {
            seeds: 1 << 20,
            ..Press::PAPER
        },
    ] {
        let options = SearchOptions {
            press,
            ..SearchOptions::default()
        };
        assert!(
            index
                .search(&queries(), &options)
                .unwrap_err()
                .is_call_wrong(),
            "{press:?}"
        );
    }
}

#[test]
fn servers_refuse_what_they_cannot_mean() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("index");
    build(&head(SIFT_BASE, 500), &path, &options(), &Silent).unwrap();
    let Servers {
        high, low, full, ..
    } = Servers::of(&path);
    let (mut above, mut below) = (HighQuery::default(), LowQuery::default());
    let (row, state) = ([7; 128], high.collection().state);
    assert!(above.begin(&high, &row[1..], 10, 5, 1).is_err());
    assert!(above.begin(&high, &row, 0, 5, 1).is_err());
    assert!(above.begin(&high, &row, 10, 0, 1).is_err());
    assert!(above.begin(&high, &row, 10, 5, 0).is_err());
    above.begin(&high, &row, 10, 5, 1).unwrap();
    let mut nodes = Vec::new();
    let wrong = Press {
        ratio: 0.0,
        ..Press::PAPER
    };
    assert!(above.refine(&high, &[(499, 0.0), (500, 0.0)]).is_err());
    let missing = &mut Missing::default();
    assert!(
        below
            .begin(&low, &row, 10, wrong, &mut nodes, missing)
            .is_err()
    );
    assert!(
        below
            .begin(&low, &row[1..], 10, Press::PAPER, &mut nodes, missing)
            .is_err()
    );
    below
        .begin(&low, &row, 10, Press::PAPER, &mut nodes, missing)
        .unwrap();
    assert_eq!(nodes.len(), 1);
    let mut lists = Vec::new();
    assert!(
        !above.advance(&high, &mut lists),
        "the high half has nodes before the first refine"
    );
    above.refine(&high, &nodes).unwrap();
    assert!(above.advance(&high, &mut lists));
    assert!(below.expand(&low, &lists[..lists.len() - 1]).is_err());
    assert!(below.expand(&low, &lists[..3]).is_err());
    assert!(
        full.rank(state, &row, &[500], 3, |_| panic!("not called"))
            .is_err()
    );
    for (state, k) in [(state, 0), (state ^ 1, 3)] {
        assert!(
            full.rank(state, &row, &[1], k, |_| panic!("not called"))
                .is_err()
        );
    }
    assert!(full.upsert(&[1], &row).unwrap_err().is_call_wrong());
    assert!(full.delete(&[1]).unwrap_err().is_call_wrong());
    let centroids = high.low_centroids();
    let collection = *high.collection();
    let mut codes = Vec::new();
    high.low_codes(0..500, 500, &mut codes).unwrap();
    for cut in [0, 3, 100, centroids.len() - 1] {
        assert!(
            Low::new(collection, &centroids[..cut], None, codes.clone()).is_err(),
            "{cut}"
        );
    }
    assert!(Low::new(collection, &centroids, None, codes[1..].to_vec()).is_err());
    // The bits are for another number of nodes, or for another number of codes.
    let bits = [0xFF; 63];
    assert!(Low::new(collection, &centroids, Some(&bits[1..]), codes.clone()).is_err());
    assert!(Low::new(collection, &centroids, Some(&bits), codes[16..].to_vec()).is_err());
    // The compute server requests a node whose code it does not have.
    let none = Low::new(collection, &centroids, Some(&[0; 63]), Vec::new()).unwrap();
    let (mut nodes, mut missing) = (Vec::new(), Missing::default());
    below
        .begin(&none, &row, 20, Press::PAPER, &mut nodes, &mut missing)
        .unwrap();
    assert!(nodes.is_empty() && missing.nodes.len() == 1, "{missing:?}");
    assert!(below.expand(&none, &lists[..3]).is_err());
    let wrong = Missing {
        nodes: vec![500],
        ..missing
    };
    let looked = above.look(&high, &[], &wrong, &mut Vec::new());
    assert!(looked.unwrap_err().is_call_wrong());
    let (told, hears) = mpsc::channel();
    for nodes in [&[1, 2][..], &[]] {
        let told = told.clone();
        full.rank(state, &row, nodes, 10, move |found| {
            told.send(found).unwrap()
        })
        .unwrap();
        assert_eq!(hears.recv().unwrap().unwrap().ids.len(), nodes.len());
    }
    let rebuilt = BuildOptions {
        overwrite: true,
        ..options()
    };
    build(&head(SIFT_BASE, 500), &path, &rebuilt, &Silent).unwrap();
    let again = High::open(&path, &Silent).unwrap();
    assert_ne!(again.collection().state, collection.state);
    assert!(matches!(
        High::open(folder.path().join("nothing"), &Silent),
        Err(Error::NotAnIndex { .. } | Error::NoSuchIndex { .. })
    ));
}
