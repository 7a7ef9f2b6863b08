//! Searches that an application submits without waiting, on real data.

use std::future::Future;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use stratann::{
    BuildOptions, Durability, Error, ErrorKind, Explained, Filter, Index, LiveIndex, Matrix,
    MergeWhen, OpenOptions, Preset, Row, RowTable, SearchOptions, SearchResults, Silent, Strategy,
    SubmittedSearch, Update, Value, VectorSource, Way, WriteOptions, build, build_with_rows,
    verify,
};

use super::fixtures::{self, SIFT_BASE, SIFT_QUERIES, head};

/// Longer than each wait of these tests, unless the program hangs.
const LONG: Duration = Duration::from_secs(300);
const ROWS: usize = 2_000;

fn base(first: usize, rows: usize) -> Matrix {
    fixtures::rows(SIFT_BASE, first, rows)
}

fn queries(rows: usize) -> Matrix {
    head(SIFT_QUERIES, rows)
}

fn one(of: &Matrix, row: usize) -> Matrix {
    Matrix::new(of.row(row).to_vec(), 1, of.dim(), of.element()).unwrap()
}

fn built(folder: &Path, preset: Preset) -> PathBuf {
    let path = folder.join(preset.name);
    let options = BuildOptions {
        preset,
        degree: Some(24),
        build_list: 32,
        threads: 1,
        ..BuildOptions::default()
    };
    build(&base(0, ROWS), &path, &options, &Silent).unwrap();
    path
}

/// The results do not depend on the order of completions.
fn options() -> SearchOptions {
    SearchOptions {
        list: 40,
        strategy: Some(Strategy::BestFirst),
        ..SearchOptions::default()
    }
}

fn same(found: &SearchResults, expected: &SearchResults, what: &str) {
    assert!(found.ids == expected.ids, "{what}: the ids differ");
    assert!(
        found.distances == expected.distances,
        "{what}: the distances differ"
    );
}

#[test]
fn a_thousand_at_once_answer_as_search_does() {
    let folder = tempfile::tempdir().unwrap();
    for preset in [Preset::STRATANN, Preset::DECOUPLEVS] {
        let index = Index::open(built(folder.path(), preset), &OpenOptions::default());
        let index = Arc::new(index.unwrap());
        let all = queries(100);
        let expected = index.search(&all, &options()).unwrap();
        let truth =
            stratann::brute_force(&base(0, ROWS), &all, 10, stratann::Metric::L2, 2, &Silent)
                .unwrap();
        let recall = truth.recall(&expected.ids, &expected.distances, 10);
        assert!(recall.unwrap() > 0.9);
        let deadline = Some(Instant::now() + LONG);
        let searches: Vec<_> = (0..1_000)
            .map(|number| {
                let deadline = deadline.filter(|_| number % 2 == 0);
                index.submit(one(&all, number % 100), &options(), deadline)
            })
            .collect();
        let batch = SearchOptions {
            threads: 2,
            in_flight: Some(4),
            ..options()
        };
        let batch = index.submit(all.clone(), &batch, None).unwrap();
        for (number, search) in searches.into_iter().enumerate() {
            let found = search.unwrap().wait().unwrap();
            let at = 10 * (number % 100);
            assert_eq!(found.ids, expected.ids[at..at + 10], "{number}");
            assert_eq!(found.distances, expected.distances[at..at + 10]);
        }
        same(&batch.wait().unwrap(), &expected, "a batch");
        assert_eq!(Arc::strong_count(&index), 1);
    }
}

#[test]
fn the_smallest_memory_budget_is_kept_and_comes_back() {
    let folder = tempfile::tempdir().unwrap();
    let path = built(folder.path(), Preset::STRATANN);
    let mut open = OpenOptions {
        memory: Some(1),
        ..OpenOptions::default()
    };
    let index = loop {
        match Index::open(&path, &open) {
            Ok(index) => break Arc::new(index),
            Err(Error::Memory { needs, .. }) => open.memory = Some(needs),
            Err(error) => panic!("{error}"),
        }
    };
    let all = queries(3);
    let wide = SearchOptions {
        list: 600,
        navigation: Some(false),
        threads: 2,
        in_flight: Some(8),
        ..options()
    };
    let expected = index.search(&all, &wide).unwrap();
    for _ in 0..3 {
        let deadline = Instant::now() + Duration::from_millis(1);
        let searches: Vec<_> = (0..40)
            .map(|number| {
                let deadline = Some(deadline).filter(|_| number % 4 == 0);
                let search = index.submit(all.clone(), &wide, deadline).unwrap();
                if number % 4 == 1 {
                    search.cancel();
                }
                (number % 4, search)
            })
            .collect();
        for (kind, search) in searches {
            match kind {
                0 => match search.wait() {
                    Err(error) => assert_eq!(error.kind(), ErrorKind::DeadlineExceeded),
                    Ok(found) => same(&found, &expected, "by its deadline"),
                },
                1 => match search.wait() {
                    Err(error) => assert_eq!(error.kind(), ErrorKind::Interrupted),
                    Ok(found) => same(&found, &expected, "before it was cancelled"),
                },
                2 => drop(search),
                _ => {
                    // All earlier searches have ended or were dropped, so this search can run.
                    let found = search.wait().unwrap();
                    same(&found, &expected, "under the budget");
                }
            }
        }
        same(&index.search(&all, &wide).unwrap(), &expected, "afterwards");
    }
}

/// Wakes a thread, as the executor of a server does.
struct Unpark(std::thread::Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

#[test]
fn a_server_awaits_and_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let path = built(folder.path(), Preset::STRATANN);
    let index = Arc::new(Index::open(path, &OpenOptions::default()).unwrap());
    let expected = index.search(&queries(20), &options()).unwrap();
    let mut search = pin!(index.submit(queries(20), &options(), None).unwrap());
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let found = loop {
        let polled = search.as_mut().poll(&mut Context::from_waker(&waker));
        match polled {
            Poll::Ready(found) => break found.unwrap(),
            Poll::Pending => std::thread::park_timeout(LONG),
        }
    };
    same(&found, &expected, "awaited");
    // Ten searches run at a time. Each search submits the next one when it is done.
    let (send, done) = mpsc::channel();
    let told = Arc::new(AtomicUsize::new(0));
    let submit = |number: usize| {
        let search = index.submit(one(&queries(20), number % 20), &options(), None);
        let (search, send, told) = (search.unwrap(), send.clone(), told.clone());
        search.notify(move || {
            told.fetch_add(1, Ordering::SeqCst);
            send.send(number).unwrap();
        });
        (number, search)
    };
    let mut going: std::collections::BTreeMap<_, _> = (0..10).map(submit).collect();
    for next in 10..110 {
        let number = done.recv_timeout(LONG).unwrap();
        let found = going.remove(&number).unwrap().wait().unwrap();
        let at = 10 * (number % 20);
        assert_eq!(found.ids, expected.ids[at..at + 10]);
        if next < 100 {
            going.extend([submit(next)]);
        }
    }
    assert!(going.is_empty() && told.load(Ordering::SeqCst) == 100);
}

#[test]
fn an_index_that_changes_answers_as_it_was_and_closes_when_all_have_ended() {
    let folder = tempfile::tempdir().unwrap();
    let all = queries(100);
    for (preset, update) in [
        (Preset::STRATANN, Update::Accumulate),
        (Preset::ODINANN, Update::Relocate),
        (Preset::DECOUPLEVS, Update::Merge),
        (Preset::AISAQ, Update::InPlace),
    ] {
        let name = preset.name;
        let path = built(folder.path(), preset);
        let write = WriteOptions {
            durability: Durability::OnFlush,
            threads: 2,
            update: Some(update),
            ..WriteOptions::default()
        };
        let live = LiveIndex::open(&path, &OpenOptions::default(), &write).unwrap();
        live.insert(&base(ROWS, 300), None, &Silent).unwrap();
        live.delete(&(0..100).collect::<Vec<_>>()).unwrap();
        // Each search records deleted nodes, so the search is repeated until its results no longer
        // change.
        let mut expected = live.search(&all, &options()).unwrap();
        loop {
            let again = live.search(&all, &options()).unwrap();
            let before = std::mem::replace(&mut expected, again);
            if before.ids == expected.ids {
                break;
            }
        }
        let submit = |many: usize| -> Vec<_> {
            let search = |_| live.submit(all.clone(), &options(), None).unwrap();
            (0..many).map(search).collect()
        };
        let before = submit(5);
        // The results are deleted, and then the files that the searches read.
        let mut found = expected.ids.clone();
        found.sort_unstable();
        found.dedup();
        found.retain(|&id| id != u64::MAX);
        live.delete(&found).unwrap();
        let between = submit(5);
        live.compact(&Silent).unwrap();
        for search in before {
            same(&search.wait().unwrap(), &expected, name);
        }
        for search in between {
            let ids = search.wait().unwrap().ids;
            assert!(
                ids.iter().all(|id| found.binary_search(id).is_err()),
                "{name}"
            );
        }
        let expected = live.search(&all, &options()).unwrap();
        let last = submit(5);
        let cancelled = live.submit(all.clone(), &options(), None).unwrap();
        cancelled.cancel();
        drop(submit(5));
        drop(live);
        assert!(matches!(cancelled.wait(), Err(Error::Interrupted) | Ok(_)));
        for search in last {
            same(&search.wait().unwrap(), &expected, name);
        }
        let again = LiveIndex::open(&path, &OpenOptions::default(), &write).unwrap();
        same(&again.search(&all, &options()).unwrap(), &expected, name);
        drop(again);
        assert!(verify(&path, &Silent).unwrap().clean(), "{name}");
    }
}

#[test]
fn searches_go_on_beside_changes_and_merges() {
    let folder = tempfile::tempdir().unwrap();
    for (preset, update) in [
        (Preset::STRATANN, Update::Accumulate),
        (Preset::DECOUPLEVS, Update::Merge),
    ] {
        let path = built(folder.path(), preset);
        let write = WriteOptions {
            durability: Durability::OnFlush,
            threads: 1,
            update: Some(update),
            ..WriteOptions::default()
        };
        let live = LiveIndex::open(&path, &OpenOptions::default(), &write).unwrap();
        let live = Arc::new(live);
        let merger = live.merge_when_due(MergeWhen::default()).unwrap();
        let wide = SearchOptions {
            k: 1,
            list: 120,
            ..options()
        };
        let asked = base(100, 20);
        for round in 0..5 {
            let searches: Vec<_> = (0..20)
                .map(|number| {
                    let soon = Instant::now() + Duration::from_micros(300);
                    let deadline = Some(soon).filter(|_| number % 5 == 0);
                    let search = live.submit(asked.clone(), &wide, deadline).unwrap();
                    if number % 5 == 1 {
                        search.cancel();
                    }
                    (number % 5, search)
                })
                .collect();
            live.insert(&base(ROWS + 100 * round, 100), None, &Silent)
                .unwrap();
            let gone: Vec<u64> = (0..50).map(|id| (1_000 + 50 * round + id) as u64).collect();
            live.delete(&gone).unwrap();
            if round == 2 {
                live.compact(&Silent).unwrap();
            }
            for (kind, search) in searches {
                match (kind, search.wait()) {
                    (0, Err(Error::DeadlineExceeded)) | (1, Err(Error::Interrupted)) => {}
                    (_, found) => {
                        let found = found.unwrap();
                        let exact = found.distances.iter().filter(|&&d| d == 0.0).count();
                        assert!(exact >= 19, "{exact} of 20 rows found themselves");
                    }
                }
            }
        }
        drop(merger);
        drop(live);
        assert!(verify(&path, &Silent).unwrap().clean());
    }
}

#[test]
fn who_is_told_of_an_end_may_submit_while_another_search_asks_for_more_threads() {
    let folder = tempfile::tempdir().unwrap();
    let index = Index::open(
        built(folder.path(), Preset::STRATANN),
        &OpenOptions::default(),
    );
    let index = Arc::new(index.unwrap());
    let all = queries(8);
    let (begun, is_told) = mpsc::channel();
    let (release, released) = mpsc::channel::<()>();
    let (send, found) = mpsc::channel();
    let search = index.submit(one(&all, 0), &options(), None).unwrap();
    let (next, query) = (index.clone(), one(&all, 1));
    let telling = std::thread::spawn(move || {
        search.notify(move || {
            begun.send(()).unwrap();
            released.recv_timeout(LONG).unwrap();
            let next = next.submit(query, &options(), None).unwrap();
            send.send(next).unwrap();
        });
        search
    });
    is_told.recv_timeout(LONG).unwrap();
    // The call waits for the old threads, and one of them is in the callback.
    let (more, searched) = (index.clone(), mpsc::channel());
    std::thread::spawn(move || {
        let options = SearchOptions {
            threads: 8,
            ..options()
        };
        searched
            .0
            .send(more.search(&all, &options).unwrap())
            .unwrap();
    });
    std::thread::sleep(Duration::from_millis(200));
    release.send(()).unwrap();
    let next = found
        .recv_timeout(LONG)
        .expect("the second search could not be submitted");
    assert_eq!(next.wait().unwrap().ids.len(), 10);
    let searched = searched
        .1
        .recv_timeout(LONG)
        .expect("the first search never ends");
    assert_eq!(searched.ids.len(), 80);
    assert_eq!(telling.join().unwrap().wait().unwrap().ids.len(), 10);
}

fn built_with_rows(folder: &Path, preset: Preset) -> PathBuf {
    let path = folder.join(format!("{}-rows", preset.name));
    let mut options = BuildOptions {
        preset,
        threads: 2,
        ..BuildOptions::default()
    };
    if preset.name != Preset::SPANN.name {
        (options.degree, options.build_list) = (Some(24), 32);
    }
    let rows = RowTable::new((0..ROWS as u64).map(part).collect());
    build_with_rows(&base(0, ROWS), &rows, &path, &options, &Silent).unwrap();
    path
}

fn part(id: u64) -> Row {
    Row {
        attributes: [("part".to_owned(), Value::Integer(id as i64 % 20))].into(),
        payload: None,
    }
}

fn filter(text: &str) -> Filter {
    Filter::parse(text).unwrap()
}

#[test]
fn what_matches_is_found_by_one_that_is_submitted_too() {
    let folder = tempfile::tempdir().unwrap();
    for preset in [Preset::STRATANN, Preset::DECOUPLEVS, Preset::SPANN] {
        let path = built_with_rows(folder.path(), preset);
        let options = match preset.name == Preset::SPANN.name {
            true => SearchOptions::default(),
            false => options(),
        };
        for memory in [None, Some(48 << 20)] {
            let open = OpenOptions {
                memory,
                ..OpenOptions::default()
            };
            let index = Arc::new(Index::open(&path, &open).unwrap());
            let all = queries(30);
            for text in [
                "part == 3",
                "part < 15",
                "part in [1, 2] and not part == 1",
                "part > 99",
            ] {
                let (filter, what) = (filter(text), format!("{} {text}", preset.name));
                let expected = index.search_filtered(&all, &options, &filter).unwrap();
                let submit = |_| {
                    let search = index.submit_filtered(all.clone(), &options, &filter, None);
                    search.unwrap()
                };
                // Several searches wait for each other, and under a budget also for memory.
                let searches: Vec<_> = (0..6).map(submit).collect();
                for search in searches {
                    let found = search.wait().unwrap();
                    same(&found, &expected, &what);
                    // The filter was used before, so no columns are read again.
                    let again = expected.explained.map(|first| Explained {
                        column_reads: 0,
                        column_bytes: 0,
                        ..first
                    });
                    assert_eq!(found.explained, again, "{what}");
                }
            }
            for way in [Way::Within, Way::Before] {
                let options = SearchOptions {
                    way: Some(way),
                    ..options
                };
                let half = filter("part < 10");
                let search = index.submit_filtered(all.clone(), &options, &half, None);
                let found = search.unwrap().wait().unwrap();
                assert_eq!(found.explained.unwrap().way, way, "{}", preset.name);
                same(
                    &found,
                    &index.search_filtered(&all, &options, &half).unwrap(),
                    preset.name,
                );
                index.submit(all.clone(), &options, None).unwrap_err();
            }
            assert_eq!(Arc::strong_count(&index), 1, "{}", preset.name);
        }
    }
}

#[test]
fn one_with_a_filter_is_refused_late_or_cancelled_like_others() {
    let folder = tempfile::tempdir().unwrap();
    let path = built_with_rows(folder.path(), Preset::STRATANN);
    let index = Arc::new(Index::open(&path, &OpenOptions::default()).unwrap());
    let all = queries(50);
    let submit = |options: &SearchOptions, text, deadline| {
        index.submit_filtered(all.clone(), options, &filter(text), deadline)
    };
    for (text, said) in [
        ("prat == 3", "did you mean \"part\""),
        ("part == 'x'", "integer"),
    ] {
        let error = submit(&options(), text, None).unwrap_err();
        assert!(error.is_call_wrong(), "{error}");
        assert!(error.to_string().contains(said), "{error}");
    }
    let wrong = SearchOptions { k: 0, ..options() };
    assert!(
        submit(&wrong, "part == 3", None)
            .unwrap_err()
            .is_call_wrong()
    );
    let late = submit(&options(), "part == 3", Some(Instant::now())).unwrap();
    assert!(late.is_done());
    assert!(matches!(late.wait(), Err(Error::DeadlineExceeded)));
    let wide = SearchOptions {
        list: 1_500,
        threads: 1,
        ..options()
    };
    let soon = Some(Instant::now() + Duration::from_millis(1));
    let late = submit(&wide, "part != 3", soon).unwrap().wait();
    assert!(matches!(late, Err(Error::DeadlineExceeded)), "{late:?}");
    // Most of these searches are cancelled before their filter is evaluated.
    let cancelled: Vec<_> = (0..20)
        .map(|_| submit(&wide, "part != 3", None).unwrap())
        .collect();
    cancelled.iter().for_each(SubmittedSearch::cancel);
    let mut interrupted = 0;
    for search in cancelled {
        match search.wait() {
            Err(Error::Interrupted) => interrupted += 1,
            Ok(_) => {}
            Err(error) => panic!("{error}"),
        }
    }
    assert!(interrupted > 0);
    drop(submit(&wide, "part != 3", None).unwrap());
    let found = submit(&options(), "part == 3", None).unwrap().wait();
    let expected = index.search_filtered(&all, &options(), &filter("part == 3"));
    same(&found.unwrap(), &expected.unwrap(), "after the others");
}

#[test]
fn a_filter_is_of_the_moment_of_the_submission() {
    let folder = tempfile::tempdir().unwrap();
    for (preset, update) in [
        (Preset::STRATANN, Update::Merge),
        (Preset::STRATANN, Update::Accumulate),
        (Preset::DECOUPLEVS, Update::Merge),
    ] {
        let name = format!("{} {update:?}", preset.name);
        let path = built_with_rows(&folder.path().join(&name), preset);
        let write = WriteOptions {
            durability: Durability::OnFlush,
            threads: 1,
            update: Some(update),
            ..WriteOptions::default()
        };
        let live = LiveIndex::open(&path, &OpenOptions::default(), &write).unwrap();
        let ids: Vec<u64> = (ROWS as u64..ROWS as u64 + 200).collect();
        let rows = RowTable::new(ids.iter().map(|&id| part(id)).collect());
        live.insert_rows(&base(ROWS, 200), &rows, Some(&ids), &Silent)
            .unwrap();
        let (all, third) = (queries(20), filter("part == 3"));
        let search = || live.search_filtered(&all, &options(), &third).unwrap().ids;
        let submit = || {
            let search = live.submit_filtered(all.clone(), &options(), &third, None);
            search.unwrap()
        };
        let is_third = |&id: &u64| id % 20 == 3;
        let before = search();
        assert!(before.iter().all(is_third), "{name}");
        assert!(before.iter().any(|&id| id >= ROWS as u64), "{name}");
        let searches: Vec<_> = (0..4).map(|_| submit()).collect();
        let mut gone = before.clone();
        gone.sort_unstable();
        gone.dedup();
        live.delete(&gone).unwrap();
        let after: Vec<_> = (0..4).map(|_| submit()).collect();
        live.compact(&Silent).unwrap();
        for search in searches {
            assert_eq!(search.wait().unwrap().ids, before, "{name}");
        }
        for search in after {
            let ids = search.wait().unwrap().ids;
            let mut there = ids.iter().filter(|&&id| id != u64::MAX);
            let right = |id: &u64| is_third(id) && gone.binary_search(id).is_err();
            assert!(there.all(right), "{name}");
        }
        let other = RowTable::new(vec![part(3)]);
        live.set_attributes(&[4], &other, &Silent).unwrap();
        let near = SearchOptions { k: 1, ..options() };
        let found = live.submit_filtered(base(4, 1), &near, &third, None);
        assert_eq!(found.unwrap().wait().unwrap().ids, [4], "{name}");
    }
}
