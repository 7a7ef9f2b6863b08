//! Tests of sockets together with file reads and timers.

use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixStream;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};

use stratann_tier::{
    FileTier, IoMode, Panic, Request, Task, Thread, Tier, TierError, Work, WorkerPool, next,
    thread_cpu_time,
};
use tempfile::TempDir;

const BOTH: [IoMode; 2] = [IoMode::Auto, IoMode::Pread];

/// An operation that takes longer than this has lost a wake-up.
const LONG: Duration = Duration::from_secs(20);

fn disk() -> TempDir {
    TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

fn pair() -> (UnixStream, UnixStream) {
    let (here, there) = UnixStream::pair().unwrap();
    here.set_nonblocking(true).unwrap();
    there.set_nonblocking(true).unwrap();
    (here, there)
}

async fn read(thread: &Thread, mut socket: impl Read + AsFd, bytes: &mut [u8]) {
    let mut done = 0;
    while done < bytes.len() {
        thread.readable(&socket).await.unwrap();
        match socket.read(&mut bytes[done..]) {
            Ok(0) => panic!("the peer is gone"),
            Ok(read) => done += read,
            Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
        }
    }
}

async fn write(thread: &Thread, mut socket: impl Write + AsFd, bytes: &[u8]) {
    let mut done = 0;
    while done < bytes.len() {
        thread.writable(&socket).await.unwrap();
        match socket.write(&bytes[done..]) {
            Ok(written) => done += written,
            Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
        }
    }
}

async fn once<F: Future + Unpin>(future: &mut F) -> Option<F::Output> {
    poll_fn(|cx| {
        let polled = Pin::new(&mut *future).poll(cx);
        Poll::Ready(match polled {
            Poll::Ready(output) => Some(output),
            Poll::Pending => None,
        })
    })
    .await
}

#[test]
fn an_echo_beside_reads_and_a_timer() {
    let directory = disk();
    let path = directory.path().join("file");
    std::fs::write(&path, vec![9u8; 256 << 10]).unwrap();
    let tier = FileTier::open(&path).unwrap();
    for io in BOTH {
        let thread = Thread::local(io).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        client.set_nonblocking(true).unwrap();
        let message: Vec<u8> = (0..1 << 20).map(|i| (i % 251) as u8).collect();
        let (blocks, timers, over) = (Cell::new(0), Cell::new(0), Cell::new(false));
        let (thread, tier, message, over) = (&thread, &tier, &message, &over);
        let server = Box::pin(async {
            thread.readable(&listener).await.unwrap();
            let (socket, _) = listener.accept().unwrap();
            socket.set_nonblocking(true).unwrap();
            let mut bytes = vec![0; 10_000];
            let mut left = message.len();
            while left > 0 {
                let now = left.min(bytes.len());
                read(thread, &socket, &mut bytes[..now]).await;
                write(thread, &socket, &bytes[..now]).await;
                left -= now;
            }
        }) as Task<'_>;
        let sender = Box::pin(write(thread, &client, message)) as Task<'_>;
        let receiver = Box::pin(async {
            let mut echoed = vec![0; message.len()];
            read(thread, &client, &mut echoed).await;
            assert!(echoed == *message, "{io}");
            over.set(true);
        }) as Task<'_>;
        let reader = Box::pin(async {
            let mut queue = tier.queue(thread).unwrap();
            while !over.get() {
                for tag in 0..8 {
                    let (offset, len) = (4096 * tag, 4096);
                    queue.submit(Request { tag, offset, len }).unwrap();
                }
                while queue.in_flight() > 0 {
                    assert_eq!(next(queue.as_mut()).await.result.unwrap()[..], [9u8; 4096]);
                    blocks.set(blocks.get() + 1);
                }
            }
        }) as Task<'_>;
        let timer = Box::pin(async {
            while !over.get() {
                let due = Instant::now() + Duration::from_micros(300);
                thread.sleep_until(due).await;
                assert!(Instant::now() >= due);
                timers.set(timers.get() + 1);
            }
        }) as Task<'_>;
        thread.run_all(vec![server, sender, receiver, reader, timer]);
        assert!(blocks.get() > 0 && timers.get() > 0, "{io}");
    }
}

#[test]
fn a_wait_that_is_dropped_leaves_the_socket_alone() {
    for io in BOTH {
        let thread = Thread::local(io).unwrap();
        let (here, mut there) = pair();
        thread.block_on(async {
            // One wait is dropped before the driver knows of it, the other later.
            for turns in [0, 3] {
                let mut wait = thread.readable(&here);
                assert!(once(&mut wait).await.is_none());
                for _ in 0..turns {
                    thread
                        .sleep_until(Instant::now() + Duration::from_micros(100))
                        .await;
                }
                drop(wait);
            }
            let mut wait = thread.readable(&here);
            for _ in 0..20 {
                assert!(once(&mut wait).await.is_none());
                thread
                    .sleep_until(Instant::now() + Duration::from_micros(100))
                    .await;
            }
            there.write_all(b"x").unwrap();
            wait.await.unwrap();
            let mut reported = thread.readable(&here);
            assert!(once(&mut reported).await.is_none());
            thread
                .sleep_until(Instant::now() + Duration::from_millis(2))
                .await;
            drop(reported);
            thread.readable(&here).await.unwrap();
        });
        // No part of the driver keeps the socket open.
        let (here, mut there) = pair();
        thread.block_on(async {
            let mut wait = thread.readable(&here);
            assert!(once(&mut wait).await.is_none());
            thread
                .sleep_until(Instant::now() + Duration::from_millis(1))
                .await;
            drop(wait);
        });
        drop(here);
        let start = Instant::now();
        while let Err(error) = there.read(&mut [0]) {
            assert_eq!(error.kind(), ErrorKind::WouldBlock);
            assert!(start.elapsed() < LONG, "{io}: the connection is still open");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

#[test]
fn slots_of_waits_are_used_again_and_never_mixed_up() {
    const ROUNDS: usize = 300;
    for io in BOTH {
        let thread = Thread::local(io).unwrap();
        let (thread, sent) = (&thread, &Rc::new(Cell::new(0usize)));
        let talks = (0..4).map(|_| {
            Box::pin(async move {
                let (here, there) = pair();
                for round in 0..ROUNDS {
                    write(thread, &there, &[round as u8]).await;
                    let mut got = [0];
                    read(thread, &here, &mut got).await;
                    assert_eq!(got, [round as u8]);
                    sent.set(sent.get() + 1);
                }
            }) as Task<'_>
        });
        let fickle = (0..4).map(|_| {
            Box::pin(async move {
                let (here, _there) = pair();
                while sent.get() < 4 * ROUNDS {
                    let mut wait = thread.readable(&here);
                    assert!(once(&mut wait).await.is_none());
                    thread
                        .sleep_until(Instant::now() + Duration::from_micros(50))
                        .await;
                    assert!(once(&mut wait).await.is_none());
                }
            }) as Task<'_>
        });
        thread.run_all(talks.chain(fickle).collect());
        assert_eq!(sent.get(), 4 * ROUNDS, "{io}");
    }
}

#[test]
fn a_peer_that_closes_is_seen() {
    for io in BOTH {
        let thread = Thread::local(io).unwrap();
        let (here, there) = pair();
        let reader = Box::pin(async {
            let start = Instant::now();
            thread.readable(&here).await.unwrap();
            assert_eq!((&here).read(&mut [0]).unwrap(), 0);
            assert!(start.elapsed() < LONG);
        }) as Task<'_>;
        let closer = Box::pin(async {
            thread
                .sleep_until(Instant::now() + Duration::from_millis(5))
                .await;
            drop(there);
        }) as Task<'_>;
        thread.run_all(vec![reader, closer]);
        let (here, there) = pair();
        while (&here).write(&[0; 4096]).is_ok() {}
        let writer = Box::pin(async {
            thread.writable(&here).await.unwrap();
            let error = (&here).write(&[0]).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::BrokenPipe, "{io}");
        }) as Task<'_>;
        let closer = Box::pin(async {
            thread
                .sleep_until(Instant::now() + Duration::from_millis(5))
                .await;
            drop(there);
        }) as Task<'_>;
        thread.run_all(vec![writer, closer]);
    }
}

#[test]
fn a_hundred_sockets_at_once() {
    for io in BOTH {
        let thread = Thread::local(io).unwrap();
        let thread = &thread;
        let pairs: Vec<_> = (0..100).map(|_| pair()).collect();
        let (told, all) = (&Cell::new(0), &Cell::new(0u64));
        let waits = pairs.iter().enumerate().map(|(number, (here, _))| {
            Box::pin(async move {
                let mut bytes = [0; 8];
                read(thread, here, &mut bytes).await;
                assert_eq!(u64::from_le_bytes(bytes), number as u64);
                told.set(told.get() + 1);
                all.set(all.get() + number as u64);
            }) as Task<'_>
        });
        let theirs = &pairs;
        let teller = Box::pin(async move {
            for at in 0..100 {
                let number = at * 37 % 100;
                let bytes = (number as u64).to_le_bytes();
                write(thread, &theirs[number].1, &bytes).await;
            }
        }) as Task<'_>;
        thread.run_all(waits.chain([teller]).collect());
        assert_eq!((told.get(), all.get()), (100, 99 * 50), "{io}");
    }
}

#[test]
fn several_tasks_wait_for_one_socket() {
    for io in BOTH {
        let thread = Thread::local(io).unwrap();
        let (thread, (here, mut there)) = (&thread, pair());
        let here = &here;
        let waits = (0..3)
            .map(|_| Box::pin(async move { thread.readable(here).await.unwrap() }) as Task<'_>);
        let both = Box::pin(async move {
            let mut readable = pin!(thread.readable(here));
            thread.writable(here).await.unwrap();
            there.write_all(b"x").unwrap();
            readable.as_mut().await.unwrap();
        }) as Task<'_>;
        thread.run_all(waits.chain([both]).collect());
    }
}

#[test]
fn what_cannot_be_watched_is_an_error() {
    for io in BOTH {
        let thread = Thread::local(io).unwrap();
        // For poll(2) this descriptor, which only names a file, is like one that is not open.
        let mut named = std::fs::File::options();
        let named = named.read(true).custom_flags(libc::O_PATH).open("/");
        let error = thread.block_on(thread.readable(&named.unwrap()));
        let error = error.unwrap_err();
        assert!(
            matches!(error, TierError::Socket { .. }) && error.to_string().contains("readable"),
            "{io}: {error}"
        );
        let files = std::fs::File::open("/proc/self/exe").unwrap();
        thread.block_on(thread.readable(&files)).unwrap();
    }
}

mod by_the_clock {
    use super::*;

    fn awake(io: IoMode) -> Duration {
        let thread = Thread::local(io).unwrap();
        let (here, _there) = pair();
        let shared: Mutex<(bool, Option<Waker>)> = Mutex::new((false, None));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(150));
                let mut shared = shared.lock().unwrap();
                shared.0 = true;
                let waker = shared.1.take();
                drop(shared);
                waker.into_iter().for_each(Waker::wake);
            });
            let busy = thread_cpu_time();
            let mut wait = thread.readable(&here);
            thread.block_on(poll_fn(|cx| {
                assert!(Pin::new(&mut wait).poll(cx).is_pending());
                let mut shared = shared.lock().unwrap();
                shared.1 = Some(cx.waker().clone());
                match shared.0 {
                    true => Poll::Ready(()),
                    false => Poll::Pending,
                }
            }));
            thread_cpu_time() - busy
        })
    }

    #[test]
    fn a_thread_that_waits_for_a_socket_sleeps_and_is_woken() {
        for io in BOTH {
            let tries = [(); 3].map(|()| awake(io));
            let sleeps = tries.iter().any(|awake| awake.as_millis() < 75);
            assert!(sleeps, "{io}: awake for {tries:?} of 150 ms");
        }
    }
}

struct Talk {
    sockets: (UnixStream, UnixStream),
    ended: Arc<AtomicUsize>,
}

impl Work for Talk {
    fn tasks<'t>(self: Arc<Self>, thread: &'t Thread, _: usize) -> Vec<Task<'t>> {
        vec![Box::pin(async move {
            let (read_from, write_to) = &self.sockets;
            let mut got = [0];
            write(thread, write_to, b"x").await;
            read(thread, read_from, &mut got).await;
        })]
    }

    fn ended(self: Arc<Self>, panic: Option<Panic>) {
        assert!(panic.is_none());
        self.ended.fetch_add(1, Ordering::SeqCst);
    }
}

#[test]
fn a_worker_that_waits_for_a_socket_takes_up_what_comes() {
    for io in BOTH {
        let workers = WorkerPool::new(1, io).unwrap();
        let ended = Arc::new(AtomicUsize::new(0));
        let ((a, b), (c, d)) = (pair(), pair());
        for sockets in [(a, c), (d, b)] {
            let ended = ended.clone();
            workers.submit(1, Arc::new(Talk { sockets, ended }));
            std::thread::sleep(Duration::from_millis(30));
        }
        let start = Instant::now();
        while ended.load(Ordering::SeqCst) < 2 {
            if start.elapsed() > LONG {
                std::mem::forget(workers);
                panic!("{io}: the worker was not woken");
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}
