//! Files of a memory server read through UCX, over TCP and over shared memory: servers and clients are processes of their own, because UCX
//! takes its settings from the environment. Without the library all of it is skipped, with a message.
#![cfg(feature = "ucx")]

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use stratann_node::{Options, Running, Store};
use stratann_tier::remote::wire::{self, Frame, HEADER, Kind, Welcome};
use stratann_tier::remote::{Client, Fault, RemoteTier, Server, ucx};
use stratann_tier::testing::conformance::conformance;
use stratann_tier::{IoMode, Request, Thread, Tier, WorkerPool, next};

mod support;

use support::{MIB, fault, put, read};

/// What the process of a server listens on.
const LISTEN: &str = "STRATANN_TEST_LISTEN";
/// The server from which the process of a client reads.
const READS: &str = "STRATANN_TEST_READS";
/// What the line of a server begins with.
const LISTENING: &str = "listening on ";

/// Whether there is no UCX, which is said.
fn skipped() -> bool {
    match ucx::available() {
        Ok(()) => false,
        Err(reason) => {
            println!("skipped: {reason}");
            true
        }
    }
}

/// This program, with one of its tests that are ignored otherwise.
fn this(test: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--ignored", "--exact", test, "--nocapture"]);
    command
}

/// A server in a process of its own.
struct Serving {
    process: Child,
    address: String,
}

impl Serving {
    fn start(listen: &str) -> Serving {
        let mut process = this("serve")
            .env(LISTEN, listen)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(process.stdout.take().unwrap()).lines();
        let line = lines.map(Result::unwrap).find_map(|line| {
            line.split_once(LISTENING)
                .map(|(_, address)| address.to_owned())
        });
        let address = line.expect("it ended without a line");
        Serving { process, address }
    }

    fn signal(&self, name: &str) {
        let pid = self.process.id().to_string();
        assert!(
            Command::new("kill")
                .args([name, &pid])
                .status()
                .unwrap()
                .success()
        );
    }

    /// Stops it, and waits until each of its threads stands still.
    fn stop(&self) {
        self.signal("-STOP");
        let tasks = format!("/proc/{}/task", self.process.id());
        let stopped = |task: std::io::Result<std::fs::DirEntry>| {
            let facts = std::fs::read_to_string(task.unwrap().path().join("stat")).unwrap();
            facts.rsplit(')').next().unwrap().starts_with(" T")
        };
        while !std::fs::read_dir(&tasks).unwrap().all(stopped) {
            thread::sleep(Duration::from_millis(1));
        }
    }

    fn server(&self) -> Server {
        let server = Server::new(&format!("ucx:{}", self.address), None, None).unwrap();
        server.with_patience(Duration::from_secs(1))
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[test]
#[ignore = "the process of a server, which other tests start"]
fn serve() {
    let Ok(listen) = std::env::var(LISTEN) else {
        return;
    };
    let options = Options {
        listen,
        ucx: true,
        ..Options::default()
    };
    let running = Running::start(Store::in_memory(64 * MIB), options).unwrap();
    println!("{LISTENING}{}", running.address());
    // Until whoever started it has gone.
    let _ = std::io::stdin().read(&mut [0]);
}

#[test]
#[ignore = "the process of a client, which other tests start with transports of UCX"]
fn client() {
    let serving = Serving::start("127.0.0.1:0");
    let server = serving.server();
    let number = AtomicUsize::new(0);
    let file = |bytes: &[u8]| {
        let name = format!("file-{}", number.fetch_add(1, Ordering::Relaxed));
        RemoteTier::new(put(&server, &name, bytes))
    };
    for io in [IoMode::Auto, IoMode::Pread] {
        let make = |bytes: &[u8]| -> Arc<dyn Tier> { Arc::new(file(bytes)) };
        conformance(&make, io);
    }
    many_threads_read_what_they_asked_for(&file);
    // It stalls, and goes on.
    let bytes: Vec<u8> = (0..MIB).map(|i| (i % 251) as u8).collect();
    let tier = RemoteTier::new(put(&server, "x", &bytes));
    let thread = Thread::local(IoMode::Auto).unwrap();
    let mut queue = tier.queue(&thread).unwrap();
    assert_eq!(
        read(&mut *queue, &thread, 8192).0.unwrap(),
        bytes[8192..12288]
    );
    serving.stop();
    let (result, took) = read(&mut *queue, &thread, 0);
    // Over shared memory nobody has to answer: that is what one-sided means.
    let transports = std::env::var("UCX_TLS").unwrap_or_default();
    match transports != "tcp" {
        true => assert!(result.unwrap() == bytes[..4096]),
        false => {
            let found = fault(result.map(|_| ()).unwrap_err());
            assert!(matches!(found, Fault::Stalled(_)), "{found}");
            assert!(took < Duration::from_secs(3), "{took:?}");
        }
    }
    serving.signal("-CONT");
    assert_eq!(
        read(&mut *queue, &thread, 4096).0.unwrap(),
        bytes[4096..8192]
    );
    // It dies while much is asked for, and another one comes.
    for tag in 0..64 {
        let (offset, len) = (tag * 4096, 65536);
        queue.submit(Request { tag, offset, len }).unwrap();
    }
    queue.flush();
    let address = serving.address.clone();
    drop(serving);
    let began = Instant::now();
    thread.block_on(async {
        while queue.in_flight() > 0 {
            // What was there is right.
            let completion = next(&mut *queue).await;
            if let Ok(block) = completion.result {
                let at = completion.tag as usize * 4096;
                assert!(block[..] == bytes[at..at + 65536]);
            }
        }
    });
    thread::sleep(Duration::from_millis(200));
    let found = fault(read(&mut *queue, &thread, 0).0.unwrap_err());
    assert!(
        matches!(found, Fault::Unreachable(_) | Fault::Closed(_)),
        "{found}"
    );
    assert!(
        began.elapsed() < Duration::from_secs(3),
        "{:?}",
        began.elapsed()
    );
    let serving = Serving::start(&address);
    let tier = RemoteTier::new(put(&serving.server(), "x", &bytes));
    assert_eq!(
        read(&mut *queue, &thread, 4096).0.unwrap(),
        bytes[4096..8192]
    );
    assert_eq!(
        read(&mut *tier.queue(&thread).unwrap(), &thread, 0)
            .0
            .unwrap(),
        bytes[..4096]
    );
}

fn many_threads_read_what_they_asked_for(file: &dyn Fn(&[u8]) -> RemoteTier) {
    let files: Vec<Vec<u8>> = (0..2u64)
        .map(|n| (0..MIB).map(|i| (i * (n + 3) % 253) as u8).collect())
        .collect();
    let tiers: Vec<RemoteTier> = files.iter().map(|bytes| file(bytes)).collect();
    let workers = WorkerPool::new(3, IoMode::Auto).unwrap();
    workers.run_tasks(3, &|thread, share| {
        let tasks = (0..6).map(|task| {
            let (tier, bytes) = (&tiers[task % 2], &files[task % 2]);
            let mut queue = tier.queue(thread).unwrap();
            let task: stratann_tier::Task<'_> = Box::pin(async move {
                for round in 0..20u64 {
                    for tag in 0..6u64 {
                        let offset =
                            (round * 977 + tag * 131 + share as u64 * 7) * 64 % (MIB - 8192);
                        let (len, tag) =
                            (64 + (tag * 1000) as u32, offset << 16 | (64 + tag * 1000));
                        queue.submit(Request { tag, offset, len }).unwrap();
                    }
                    while queue.in_flight() > 0 {
                        let completion = next(&mut *queue).await;
                        let (offset, len) = (
                            (completion.tag >> 16) as usize,
                            (completion.tag & 0xffff) as usize,
                        );
                        assert_eq!(completion.result.unwrap()[..], bytes[offset..offset + len]);
                    }
                }
            });
            task
        });
        tasks.collect()
    });
}

fn client_over(transports: Option<&str>) {
    if skipped() {
        return;
    }
    let mut client = this("client");
    match transports {
        Some(transports) => client.env("UCX_TLS", transports),
        None => client.env_remove("UCX_TLS"),
    };
    let output = client.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    let passed = output.status.success() && text.contains("1 passed");
    assert!(passed, "{text}{errors}");
}

#[test]
fn over_whatever_it_chooses_it_is_a_tier() {
    client_over(None);
}

#[test]
fn over_tcp_it_is_a_tier_and_a_server_that_stalls_or_dies_is_an_error_in_bounded_time() {
    client_over(Some("tcp"));
}

#[test]
fn over_shared_memory_as_well() {
    client_over(Some("shm,self"));
}

#[test]
#[ignore = "the process of a client that is killed, which another test starts"]
fn reads_until_it_is_killed() {
    let Ok(address) = std::env::var(READS) else {
        return;
    };
    let server = Server::new(&format!("ucx:{address}"), None, None).unwrap();
    let tier = RemoteTier::new(Client::new(&server).open("x").unwrap().unwrap());
    let thread = Thread::local(IoMode::Auto).unwrap();
    let mut queue = tier.queue(&thread).unwrap();
    println!("it begins");
    loop {
        for tag in 0..32 {
            let (offset, len) = (tag * 4096, 131_072);
            queue.submit(Request { tag, offset, len }).unwrap();
        }
        thread.block_on(async {
            while queue.in_flight() > 0 {
                next(&mut *queue).await.result.unwrap();
            }
        });
    }
}

#[test]
fn clients_that_are_killed_do_no_harm_where_it_chooses_the_transports() {
    if skipped() || std::env::var_os("UCX_TLS").is_some() {
        return;
    }
    let serving = Serving::start("127.0.0.1:0");
    let bytes: Vec<u8> = (0..MIB).map(|i| (i % 251) as u8).collect();
    let tier = RemoteTier::new(put(&serving.server(), "x", &bytes));
    for round in 0..10 {
        let mut reader = this("reads_until_it_is_killed")
            .env(READS, &serving.address)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(reader.stdout.take().unwrap()).lines();
        let begins = |line: std::io::Result<String>| line.unwrap().contains("it begins");
        assert!(lines.any(begins), "it ended without a line");
        thread::sleep(Duration::from_millis(20 + 7 * round));
        reader.kill().unwrap();
        reader.wait().unwrap();
    }
    let thread = Thread::local(IoMode::Auto).unwrap();
    let mut queue = tier.queue(&thread).unwrap();
    assert_eq!(
        read(&mut *queue, &thread, 4096).0.unwrap(),
        bytes[4096..8192]
    );
}

#[test]
fn a_server_without_it_says_so() {
    if skipped() {
        return;
    }
    let running = Running::start(Store::in_memory(MIB), Options::default()).unwrap();
    let server = Server::new(&format!("ucx:{}", running.address()), None, None).unwrap();
    let tier = RemoteTier::new(put(&server, "x", &[1; 8192]));
    let thread = Thread::local(IoMode::Auto).unwrap();
    let mut queue = tier.queue(&thread).unwrap();
    let found = fault(read(&mut *queue, &thread, 0).0.unwrap_err());
    assert!(found.to_string().contains("--ucx"), "{found}");
    // Nor has one with files in a folder any.
    let root = tempfile::tempdir().unwrap();
    let store = Store::in_folder(&root.path().join("store"), MIB).unwrap();
    let options = Options {
        ucx: true,
        ..Options::default()
    };
    let error = Running::start(store, options).map(|_| ()).unwrap_err();
    assert!(error.to_string().contains("--folder"), "{error}");
}

/// A server that says where a file is with other bytes.
fn lies(answer: Vec<u8>) -> String {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let greeting = wire::Greeting {
                version: wire::VERSION,
                wants_secret: false,
                nonce: [3; 32],
            };
            stream.write_all(&greeting.encode()).unwrap();
            stream.read_exact(&mut [0; wire::REPLY]).unwrap();
            let welcome = Welcome {
                status: wire::Status::Welcome,
                proof: [0; 32],
            };
            stream.write_all(&welcome.encode()).unwrap();
            let mut header = [0; HEADER];
            while stream.read_exact(&mut header).is_ok() {
                let (frame, _) = Frame::decode(&header).unwrap();
                stream.read_exact(&mut vec![0; frame.len as usize]).unwrap();
                let there = Frame {
                    file: 5,
                    offset: MIB,
                    ..Frame::new(frame.kind.unwrap(), frame.tag)
                };
                let mut out = Vec::new();
                let body: &[u8] = if frame.kind == Some(Kind::Reach) {
                    &answer
                } else {
                    &[]
                };
                there.append(body, &mut out);
                if stream.write_all(&out).is_err() || frame.kind == Some(Kind::Open) {
                    // The next connection is the one of searches.
                    break;
                }
            }
        }
    });
    address
}

#[test]
fn where_a_file_cannot_be_is_not_believed() {
    if skipped() {
        return;
    }
    let with = |address: u32, key: u32, start: u64| {
        let mut bytes = start.to_le_bytes().to_vec();
        bytes.extend(address.to_le_bytes());
        bytes.extend(key.to_le_bytes());
        bytes.resize(wire::REACH, 0);
        bytes
    };
    for answer in [
        Vec::new(),
        vec![0; wire::REACH],
        with(8, 0, 4096),
        with(4000, 4000, 4096),
        with(u32::MAX, u32::MAX, 4096),
        with(8, 8, u64::MAX - 5),
    ] {
        let server = Server::new(&format!("ucx:{}", lies(answer)), None, None).unwrap();
        let server = server.with_patience(Duration::from_millis(500));
        let file = Client::new(&server).open("x").unwrap().unwrap();
        let thread = Thread::local(IoMode::Auto).unwrap();
        let (result, took) = read(
            &mut *RemoteTier::new(file).queue(&thread).unwrap(),
            &thread,
            0,
        );
        let found = fault(result.unwrap_err());
        assert!(matches!(found, Fault::Nonsense(_)), "{found}");
        assert!(took < Duration::from_secs(2));
    }
}
