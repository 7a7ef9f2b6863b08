use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};

use stratann_tier::testing::conformance::conformance;
use stratann_tier::{
    Backend, FileTier, IoMode, Panic, Request, Task, Thread, Tier, TierError, Work, WorkerPool,
    next,
};

#[test]
fn work_is_borrowed_and_each_share_has_a_worker_of_its_own() {
    let workers = WorkerPool::new(3, IoMode::Auto).unwrap();
    assert_eq!(workers.threads(), 3);
    for threads in [1, 2, 3] {
        let seen = Mutex::new(Vec::new());
        let taken = workers.run(threads, &|_, index| {
            let name = std::thread::current().name().unwrap_or_default().to_owned();
            seen.lock().unwrap().push((index, name));
        });
        assert_eq!(taken, threads);
        let (mut shares, mut names): (Vec<_>, Vec<_>) =
            seen.into_inner().unwrap().into_iter().unzip();
        shares.sort();
        assert_eq!(shares, (0..threads).collect::<Vec<_>>());
        names.sort();
        names.dedup();
        assert_eq!(names.len(), threads, "{names:?}");
    }
    assert_eq!(
        workers.run(100, &|_, _| {}),
        3,
        "the returned number of workers is not the number of workers of the pool"
    );
}

#[test]
fn a_panic_reaches_the_caller_after_all_have_finished() {
    let workers = WorkerPool::new(2, IoMode::Auto).unwrap();
    let finished = AtomicBool::new(false);
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        workers.run(2, &|_, index| {
            if index == 0 {
                panic!("number {index}");
            }
            std::thread::sleep(Duration::from_millis(30));
            finished.store(true, Ordering::SeqCst);
        });
    }));
    assert_eq!(
        *outcome.unwrap_err().downcast::<String>().unwrap(),
        "number 0"
    );
    assert!(
        finished.load(Ordering::SeqCst),
        "the call returned before all workers had returned"
    );
    let calls = AtomicUsize::new(0);
    workers.run(2, &|_, _| _ = calls.fetch_add(1, Ordering::SeqCst));
    assert_eq!(
        calls.load(Ordering::SeqCst),
        2,
        "the pool stopped after a panic"
    );
}

async fn meet(met: &AtomicUsize, all: usize) {
    met.fetch_add(1, Ordering::SeqCst);
    poll_fn(|cx| {
        if met.load(Ordering::SeqCst) >= all {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

#[test]
fn runs_of_several_hosts_go_on_at_once() {
    for (workers, hosts) in [(1, 4), (2, 8)] {
        let workers = WorkerPool::new(workers, IoMode::Auto).unwrap();
        let met = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..hosts {
                scope.spawn(|| {
                    workers.run_tasks(1, &|_, _| vec![Box::pin(meet(&met, hosts)) as Task<'_>]);
                });
            }
        });
        assert_eq!(met.into_inner(), hosts);
    }
}

#[test]
fn a_share_goes_to_a_worker_with_nothing_to_do() {
    let workers = WorkerPool::new(2, IoMode::Auto).unwrap();
    for _ in 0..50 {
        let (met, names) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    workers.run_tasks(1, &|_, _| {
                        let name = std::thread::current().name().map(str::to_owned);
                        names.lock().unwrap().push(name);
                        vec![Box::pin(meet(&met, 2)) as Task<'_>]
                    });
                });
            }
        });
        let names = names.into_inner().unwrap();
        assert_ne!(names[0], names[1]);
    }
}

#[test]
fn many_runs_of_many_hosts_all_end() {
    let workers = WorkerPool::new(2, IoMode::Auto).unwrap();
    let directory = tempfile::TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = directory.path().join("file");
    std::fs::write(&path, vec![7u8; 64 << 10]).unwrap();
    let tier = FileTier::open(&path).unwrap();
    let done = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for host in 0..6usize {
            let (workers, tier, done) = (&workers, &tier, &done);
            scope.spawn(move || {
                for round in 0..100 {
                    let threads = 1 + (host + round) % 2;
                    let fails = host == 5 && round % 7 == 0;
                    let outcome = catch_unwind(AssertUnwindSafe(|| {
                        workers.run_tasks(threads, &|thread, _| {
                            let task = || {
                                Box::pin(async move {
                                    let mut queue = tier.queue(thread).unwrap();
                                    for tag in 0..4 {
                                        let (offset, len) = (4096 * tag, 4096);
                                        queue.submit(Request { tag, offset, len }).unwrap();
                                    }
                                    assert!(!fails, "on purpose");
                                    while queue.in_flight() > 0 {
                                        let block = next(queue.as_mut()).await.result.unwrap();
                                        assert_eq!(block[17], 7);
                                    }
                                    done.fetch_add(1, Ordering::Relaxed);
                                }) as Task<'_>
                            };
                            vec![task(), task()]
                        });
                    }));
                    assert_eq!(outcome.is_err(), fails);
                }
            });
        }
    });
    // Each of 6 hosts makes 100 rounds with 150 shares of two tasks. The last host fails in 15
    // rounds.
    let shares = 6 * 150
        - (0..100)
            .filter(|r| r % 7 == 0)
            .map(|r| 1 + (5 + r) % 2)
            .sum::<usize>();
    assert_eq!(done.into_inner(), 2 * shares);
}

#[test]
fn a_run_from_a_job_of_the_same_crew_is_refused() {
    let workers = WorkerPool::new(1, IoMode::Auto).unwrap();
    let other = WorkerPool::new(1, IoMode::Auto).unwrap();
    workers.run(1, &|_, _| _ = other.run(1, &|_, _| {}));
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        workers.run(1, &|_, _| _ = workers.run(1, &|_, _| {}))
    }));
    assert!(outcome.is_err());
}

#[test]
fn threads_end_with_their_crew() {
    let ended = Arc::new(AtomicUsize::new(0));
    struct Count(Arc<AtomicUsize>);
    impl Drop for Count {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }
    thread_local!(static KEPT: Cell<Option<Count>> = const { Cell::new(None) });
    let workers = WorkerPool::new(2, IoMode::Auto).unwrap();
    workers.run(2, &|_, _| KEPT.set(Some(Count(ended.clone()))));
    drop(workers);
    assert_eq!(ended.load(Ordering::SeqCst), 2);
}

#[test]
fn where_the_ring_is_forbidden_the_pool_reads() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("file");
    std::fs::write(&path, vec![5u8; 8192]).unwrap();
    let workers = WorkerPool::without_ring(2, IoMode::Auto).unwrap();
    let Backend::Pread { reason } = workers.backend() else {
        panic!("{workers:?}")
    };
    assert!(reason.contains("seccomp"), "{reason}");
    let tier = FileTier::open(&path).unwrap();
    workers.run(2, &|thread, _| {
        let mut queue = tier.queue(thread).unwrap();
        queue
            .submit(Request {
                tag: 0,
                offset: 4096,
                len: 4096,
            })
            .unwrap();
        let block = thread.block_on(next(queue.as_mut())).result.unwrap();
        assert_eq!(block[..], [5u8; 4096]);
    });
    let error = WorkerPool::without_ring(1, IoMode::Uring).unwrap_err();
    assert!(
        matches!(error, TierError::Unsupported { .. }) && error.to_string().contains("pread"),
        "{error}"
    );
}

/// The test runs in a child process, because a process with threads cannot safely change its
/// environment.
#[test]
fn the_environment_overrides_auto_only() {
    const NAME: &str = "threads::the_environment_overrides_auto_only";
    if std::env::var("STRATANN_TEST_CHILD").is_ok() {
        let auto = Thread::local(IoMode::Auto);
        match std::env::var("STRATANN_IO").unwrap().as_str() {
            "pread" => assert!(matches!(auto.unwrap().backend(), Backend::Pread { .. })),
            "" => assert!(auto.is_ok()),
            _ => assert!(auto.unwrap_err().to_string().contains("STRATANN_IO")),
        }
        assert!(Thread::local(IoMode::Pread).is_ok());
        return;
    }
    for value in ["pread", "", "nonsense"] {
        let status = Command::new(std::env::current_exe().unwrap())
            .args([NAME, "--exact"])
            .env("STRATANN_TEST_CHILD", "1")
            .env("STRATANN_IO", value)
            .output()
            .unwrap();
        assert!(
            status.status.success(),
            "{value}: {}",
            String::from_utf8_lossy(&status.stdout)
        );
        assert!(String::from_utf8_lossy(&status.stdout).contains("1 passed"));
    }
}

#[test]
fn modes_are_named() {
    for mode in [IoMode::Auto, IoMode::Uring, IoMode::Pread] {
        assert_eq!(mode.to_string().parse(), Ok(mode));
    }
    assert!("libaio".parse::<IoMode>().unwrap_err().contains("uring"));
}

#[test]
fn sleepers_are_never_woken_early_also_beside_reads() {
    let thread = Thread::local(IoMode::Auto).unwrap();
    let directory = tempfile::TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = directory.path().join("file");
    std::fs::write(&path, vec![0u8; 64 << 10]).unwrap();
    let tier = FileTier::open(&path).unwrap();
    let start = Instant::now();
    let woken = Mutex::new(Vec::new());
    let sleepers = [20u64, 5, 10].into_iter().map(|millis| {
        let (thread, woken) = (&thread, &woken);
        Box::pin(async move {
            thread
                .sleep_until(start + Duration::from_millis(millis))
                .await;
            assert!(start.elapsed() >= Duration::from_millis(millis));
            woken.lock().unwrap().push(millis);
        }) as Task<'_>
    });
    let reader = Box::pin(async {
        let mut queue = tier.queue(&thread).unwrap();
        for tag in 0..16 {
            queue
                .submit(Request {
                    tag,
                    offset: tag * 4096,
                    len: 4096,
                })
                .unwrap();
        }
        while queue.in_flight() > 0 {
            next(queue.as_mut()).await.result.unwrap();
        }
        woken.lock().unwrap().push(0);
    }) as Task<'_>;
    thread.run_all(sleepers.chain([reader]).collect());
    let mut woken = woken.into_inner().unwrap();
    woken.sort_unstable();
    assert_eq!(woken, [0, 5, 10, 20]);
}

#[test]
fn a_task_may_be_woken_from_another_thread() {
    let thread = Thread::local(IoMode::Auto).unwrap();
    for _ in 0..200 {
        let shared: Mutex<(bool, Option<Waker>)> = Mutex::new((false, None));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut shared = shared.lock().unwrap();
                shared.0 = true;
                if let Some(waker) = shared.1.take() {
                    drop(shared);
                    waker.wake();
                }
            });
            thread.block_on(poll_fn(|cx| {
                let mut shared = shared.lock().unwrap();
                if shared.0 {
                    return Poll::Ready(());
                }
                shared.1 = Some(cx.waker().clone());
                Poll::Pending
            }));
        });
    }
}

#[test]
fn any_number_of_tasks_takes_turns() {
    let thread = Thread::local(IoMode::Auto).unwrap();
    for count in [0, 1, 63, 64, 65, 128, 1000] {
        let polls = Cell::new(0);
        let tasks = (0..count).map(|task| {
            let (polls, mut left) = (&polls, task % 7);
            Box::pin(poll_fn(move |cx| {
                polls.set(polls.get() + 1);
                if left == 0 {
                    return Poll::Ready(());
                }
                left -= 1;
                cx.waker().wake_by_ref();
                Poll::Pending
            })) as Task<'_>
        });
        thread.run_all(tasks.collect());
        assert_eq!(
            polls.get(),
            (0..count).map(|task| task % 7 + 1).sum::<usize>()
        );
    }
    assert_eq!(thread.block_on(async { 42 }), 42);
}

#[test]
fn a_missing_or_unsuitable_file_is_named() {
    let error = FileTier::open("/nonexistent/index").unwrap_err();
    assert!(
        matches!(error, TierError::Missing { .. })
            && error.to_string().contains("/nonexistent/index")
    );
    assert!(FileTier::open("/").is_err());
}

#[test]
fn a_file_on_read_only_media_can_be_read() {
    use std::os::unix::fs::PermissionsExt;
    let directory = tempfile::TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let number = AtomicUsize::new(0);
    let make = |bytes: &[u8]| -> Arc<dyn Tier> {
        let inner = directory
            .path()
            .join(number.fetch_add(1, Ordering::Relaxed).to_string());
        std::fs::create_dir(&inner).unwrap();
        let path = inner.join("file");
        std::fs::write(&path, bytes).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o444)).unwrap();
        std::fs::set_permissions(&inner, std::fs::Permissions::from_mode(0o555)).unwrap();
        Arc::new(FileTier::open(path).unwrap())
    };
    conformance(&make, IoMode::Auto);
    for entry in std::fs::read_dir(directory.path()).unwrap() {
        std::fs::set_permissions(
            entry.unwrap().path(),
            std::fs::Permissions::from_mode(0o755),
        )
        .unwrap();
    }
}

#[test]
fn a_sleep_that_is_dropped_keeps_nobody() {
    let thread = Thread::local(IoMode::Auto).unwrap();
    let polls = Cell::new(0);
    let start = Instant::now();
    let sleeper = Box::pin(async {
        for _ in 0..1_000 {
            let far = start + Duration::from_secs(3_600);
            let mut sleep = pin!(thread.sleep_until(far));
            poll_fn(|cx| {
                assert!(sleep.as_mut().poll(cx).is_pending());
                Poll::Ready(())
            })
            .await;
        }
        // If the dropped sleeps still existed, one of them could end now.
        let near = Instant::now() + Duration::from_millis(5);
        {
            let mut sleep = pin!(thread.sleep_until(near));
            poll_fn(|cx| {
                assert!(sleep.as_mut().poll(cx).is_pending());
                Poll::Ready(())
            })
            .await;
        }
        let mut sleep = pin!(thread.sleep_until(near + Duration::from_millis(20)));
        poll_fn(|cx| {
            polls.set(polls.get() + 1);
            sleep.as_mut().poll(cx)
        })
        .await;
    }) as Task<'_>;
    thread.run_all(vec![sleeper]);
    assert!(polls.get() <= 2, "the first timer woke the task");
}

#[test]
fn one_that_sleeps_is_woken_from_another_thread() {
    let thread = Thread::local(IoMode::Auto).unwrap();
    let shared: Mutex<(bool, Option<Waker>)> = Mutex::new((false, None));
    let start = Instant::now();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(20));
            let mut shared = shared.lock().unwrap();
            shared.0 = true;
            let waker = shared.1.take();
            drop(shared);
            waker.into_iter().for_each(Waker::wake);
        });
        let mut sleep = Box::pin(thread.sleep_until(start + Duration::from_secs(60)));
        thread.block_on(poll_fn(|cx| {
            assert!(sleep.as_mut().poll(cx).is_pending());
            let mut shared = shared.lock().unwrap();
            shared.1 = Some(cx.waker().clone());
            match shared.0 {
                true => Poll::Ready(()),
                false => Poll::Pending,
            }
        }));
    });
    assert!(start.elapsed() < Duration::from_secs(50));
}

struct Owned {
    tier: FileTier,
    reads: u64,
    fails: bool,
    pool: Option<Arc<WorkerPool>>,
    done: Arc<AtomicUsize>,
    ended: mpsc::Sender<Option<String>>,
}

impl Work for Owned {
    fn tasks<'t>(self: Arc<Self>, thread: &'t Thread, share: usize) -> Vec<Task<'t>> {
        let task = |_| {
            let work = self.clone();
            Box::pin(async move {
                let mut queue = work.tier.queue(thread).unwrap();
                for tag in 0..work.reads {
                    let (offset, len) = (4096 * (tag % 16), 4096);
                    queue.submit(Request { tag, offset, len }).unwrap();
                }
                assert!(!work.fails || share > 0, "on purpose");
                while queue.in_flight() > 0 {
                    let block = next(queue.as_mut()).await.result.unwrap();
                    assert_eq!(block[17], 7);
                }
                work.done.fetch_add(1, Ordering::SeqCst);
            }) as Task<'t>
        };
        (0..2).map(task).collect()
    }

    fn ended(self: Arc<Self>, panic: Option<Panic>) {
        let said = panic.map(|panic| panic.downcast_ref::<&str>().unwrap().to_string());
        let mut work =
            Arc::into_inner(self).expect("the pool still has a reference to the ended work");
        drop(work.pool.take());
        work.ended.send(said).unwrap();
    }
}

#[test]
fn a_pool_owns_what_is_submitted_until_it_has_ended() {
    let directory = tempfile::TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = directory.path().join("file");
    std::fs::write(&path, vec![7u8; 64 << 10]).unwrap();
    for (io, own) in [
        (IoMode::Auto, false),
        (IoMode::Pread, false),
        (IoMode::Auto, true),
    ] {
        let pool = Arc::new(WorkerPool::new(2, io).unwrap());
        let done = Arc::new(AtomicUsize::new(0));
        let (ended, ends) = mpsc::channel();
        for number in 0..100 {
            let work = Owned {
                tier: FileTier::open(&path).unwrap(),
                reads: 16,
                fails: number % 10 == 0,
                pool: own.then(|| pool.clone()),
                done: done.clone(),
                ended: ended.clone(),
            };
            let taken = pool.submit(1 + number % 3, Arc::new(work));
            assert_eq!(taken, [1, 2, 2][number % 3]);
        }
        pool.run(2, &|_, _| {});
        drop(pool);
        if !own {
            assert_eq!(
                ends.try_iter().count(),
                100,
                "the drop of the pool did not wait"
            );
            assert_eq!(done.load(Ordering::SeqCst), 312);
            continue;
        }
        let ends: Vec<_> = ends.iter().take(100).collect();
        let failed = ends
            .iter()
            .flatten()
            .filter(|said| said.contains("on purpose"));
        assert_eq!((failed.count(), ends.iter().flatten().count()), (10, 10));
    }
}

#[test]
fn what_is_submitted_from_a_worker_runs() {
    struct Twice(Option<Arc<WorkerPool>>, mpsc::Sender<bool>);
    impl Work for Twice {
        fn tasks<'t>(self: Arc<Self>, _: &'t Thread, _: usize) -> Vec<Task<'t>> {
            assert!(stratann_tier::is_worker());
            Vec::new()
        }
        fn ended(self: Arc<Self>, panic: Option<Panic>) {
            assert!(panic.is_none());
            match &self.0 {
                Some(pool) => _ = pool.submit(1, Arc::new(Twice(None, self.1.clone()))),
                None => self.1.send(true).unwrap(),
            }
        }
    }
    assert!(!stratann_tier::is_worker());
    let pool = Arc::new(WorkerPool::new(1, IoMode::Auto).unwrap());
    let (ended, ends) = mpsc::channel();
    pool.submit(1, Arc::new(Twice(Some(pool.clone()), ended)));
    drop(pool);
    assert!(ends.recv().unwrap());
}
