//! Tests of UCX over TCP and shared memory. UCX reads its settings from the environment, so servers
//! and clients are separate processes. Without the library, all tests are skipped.
#![cfg(feature = "ucx")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use stratann::press::Low;
use stratann::{BuildOptions, Matrix, Preset, Silent, VectorFile, VectorSource, build};
use stratann_node::role::Found;
use stratann_node::serve::{
    self, ClientOptions, ComputeServer, ComputeServerOptions, Encryption, MemoryOfIndex, Place,
    StorageOfIndex,
};
use stratann_node::{NodeError, Options, Running, Store};
use stratann_tier::remote::wire::{
    self, Frame, GREETING, Greeting, HEADER, Kind, Nonce, Protocol, REACH, REPLY, Reply, Secret,
    Side, Status, UNBOUND, Welcome,
};
use stratann_tier::remote::{Client, Fault, RemoteTier, Server, Transport, ucx};
use stratann_tier::testing::conformance::conformance;
use stratann_tier::{IoMode, Request, Thread, Tier, WorkerPool, next};

mod support;

use support::{MIB, fault, put, read};

const LISTEN: &str = "STRATANN_TEST_LISTEN";
const READS: &str = "STRATANN_TEST_READS";
const ROLE: &str = "STRATANN_TEST_ROLE";
const INDEX: &str = "STRATANN_TEST_INDEX";
const MEMORY: &str = "STRATANN_TEST_MEMORY";
const STORAGE: &str = "STRATANN_TEST_STORAGE";
const LISTENING: &str = "listening on ";

fn secret() -> Secret {
    Secret::new(b"a secret of servers through UCX").unwrap()
}

fn listening() -> Options {
    Options {
        secret: Some(secret()),
        ..Options::default()
    }
}

fn skipped() -> bool {
    match ucx::available() {
        Ok(()) => false,
        Err(reason) => {
            println!("skipped: {reason}");
            true
        }
    }
}

fn reached(address: &str) -> Server {
    Server::new(&format!("{}{address}", Server::UCX), Some(secret()), None).unwrap()
}

fn this(test: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--ignored", "--exact", test, "--nocapture"]);
    command
}

struct Serving {
    process: Child,
    address: String,
}

impl Serving {
    fn start(listen: &str) -> Serving {
        Self::of(&mut this("serve"), listen)
    }

    fn role(role: &str, index: &Path, listen: &str) -> Serving {
        Self::of(this("role").env(ROLE, role).env(INDEX, index), listen)
    }

    fn of(command: &mut Command, listen: &str) -> Serving {
        let mut process = command
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
        let address = line.expect("the process ended before it printed the line");
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

    /// Pauses the process, and waits until all its threads have stopped.
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
        reached(&self.address).with_patience(Duration::from_secs(1))
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
        ..listening()
    };
    let running = Running::start(Store::in_memory(64 * MIB), options).unwrap();
    println!("{LISTENING}{}", running.address());
    // The read lasts until the parent process has ended.
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
    // Over shared memory, reads are one-sided, and succeed while the server is stopped.
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
    passes_over(transports, "client");
}

/// With `None`, UCX chooses the transports.
fn passes_over(transports: Option<&str>, test: &str) {
    if skipped() {
        return;
    }
    let mut client = this(test);
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
    let tier = RemoteTier::new(Client::new(&reached(&address)).open("x").unwrap().unwrap());
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
        assert!(
            lines.any(begins),
            "the process ended before it printed the line"
        );
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
    let running = Running::start(Store::in_memory(MIB), listening()).unwrap();
    let server = reached(&running.address().to_string());
    let tier = RemoteTier::new(put(&server, "x", &[1; 8192]));
    let thread = Thread::local(IoMode::Auto).unwrap();
    let mut queue = tier.queue(&thread).unwrap();
    let found = fault(read(&mut *queue, &thread, 0).0.unwrap_err());
    assert!(found.to_string().contains("--ucx"), "{found}");
    let root = tempfile::tempdir().unwrap();
    let store = Store::in_folder(&root.path().join("store"), MIB).unwrap();
    let options = Options {
        ucx: true,
        ..listening()
    };
    let error = Running::start(store, options).map(|_| ()).unwrap_err();
    assert!(error.to_string().contains("--folder"), "{error}");
}

fn lies(answer: Vec<u8>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let greeting = Greeting {
                version: wire::VERSION,
                wants_secret: true,
                ucx: false,
                nonce: [3; 32],
            };
            stream.write_all(&greeting.encode()).unwrap();
            let mut reply = [0; REPLY];
            stream.read_exact(&mut reply).unwrap();
            let nonces = [&greeting.nonce, &Reply::decode(&reply).unwrap().nonce];
            let welcome = Welcome {
                status: Status::Welcome,
                proof: secret().proof(Side::Server, nonces, &UNBOUND),
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
        bytes.resize(REACH, 0);
        bytes
    };
    for answer in [
        Vec::new(),
        vec![0; REACH],
        with(8, 0, 4096),
        with(4000, 4000, 4096),
        with(u32::MAX, u32::MAX, 4096),
        with(8, 8, u64::MAX - 5),
    ] {
        let server = reached(&lies(answer)).with_patience(Duration::from_millis(500));
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

/// At this address, no other program takes the port while the server is not running.
const ANY: &str = "127.77.1.1:0";
const QUERIES: usize = 40;

fn head(name: &str, count: usize) -> Matrix {
    let path = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures")).join(name);
    let file = VectorFile::open(path).unwrap();
    let mut bytes = vec![0; count * file.row_bytes()];
    file.read(0, &mut bytes).unwrap();
    Matrix::new(bytes, count, file.dim(), file.element()).unwrap()
}

fn built(path: &Path) {
    let options = BuildOptions {
        preset: Preset::DISTVS,
        degree: Some(24),
        build_list: 40,
        navigation: 0.0,
        threads: 1,
        ..BuildOptions::default()
    };
    let base = head("photo-sift-20k.base.u8bin", 2000);
    build(&base, path, &options, &Silent).unwrap();
}

fn through_ucx(address: &str) -> Place {
    let name = format!("{}{address}", Server::UCX);
    Place::of(&name, Some(&secret()), Encryption::None).unwrap()
}

fn over_tcp(address: &str) -> Place {
    Place::of(address, Some(&secret()), Encryption::None).unwrap()
}

fn compute(memory: Place, storage: Place, listen: Options) -> ComputeServer<Low> {
    let options = ComputeServerOptions {
        workers: 2,
        connections: 2,
        silence: Duration::from_millis(700),
        listen,
        ..ComputeServerOptions::default()
    };
    ComputeServer::start(memory, storage, options).unwrap()
}

fn asking(place: Place, patience: Duration) -> serve::Client {
    let options = ClientOptions {
        patience,
        ..ClientOptions::default()
    };
    serve::Client::connect(vec![place], options).unwrap()
}

fn answers(client: &serve::Client) -> Vec<(Vec<u64>, Vec<f32>)> {
    let queries = head("photo-sift-20k.query.u8bin", QUERIES);
    let mut row = vec![0; queries.row_bytes()];
    let pending: Vec<_> = (0..QUERIES)
        .map(|number| {
            queries.read(number, &mut row).unwrap();
            client.submit(&row, 10, 0, 0)
        })
        .collect();
    let of = |found: Found| (found.ids, found.distances);
    let found = pending
        .into_iter()
        .map(|pending| of(pending.wait().unwrap()));
    found.collect()
}

#[test]
#[ignore = "the process of a server of DistVS, which other tests start"]
fn role() {
    let of = |name: &str| std::env::var(name);
    let (Ok(role), Ok(listen)) = (of(ROLE), of(LISTEN)) else {
        return;
    };
    let options = Options {
        listen,
        ucx: true,
        ..listening()
    };
    let index = of(INDEX).unwrap_or_default();
    let index = Path::new(&index);
    let (_memory, _storage, _compute);
    let address = match role.as_str() {
        "memory" => {
            let server = MemoryOfIndex::start(index, false, true, options, &Silent).unwrap();
            let address = server.server().address();
            _memory = server;
            address
        }
        "storage" => {
            let io = IoMode::Auto;
            let server = StorageOfIndex::start(index, 1, io, false, options).unwrap();
            let address = server.server().address();
            _storage = server;
            address
        }
        _ => {
            let [memory, storage] = [MEMORY, STORAGE].map(|name| through_ucx(&of(name).unwrap()));
            let server = compute(memory, storage, options);
            let address = server.address();
            _compute = server;
            address
        }
    };
    println!("{LISTENING}{address}");
    let _ = std::io::stdin().read(&mut [0]);
}

#[test]
#[ignore = "the process of a compute server and its client, which other tests start with transports of UCX"]
fn servers() {
    let folder = tempfile::tempdir().unwrap();
    let index = folder.path().join("index");
    built(&index);
    let memory = Serving::role("memory", &index, ANY);
    let storage = Serving::role("storage", &index, ANY);
    for (serving, protocol) in [(&memory, Protocol::Memory), (&storage, Protocol::Storage)] {
        let connected = serving.server().connect(protocol).unwrap();
        assert!(matches!(connected, Transport::Ucx(_)));
    }
    let [at, behind] = [&memory, &storage].map(|serving| over_tcp(&serving.address));
    let plain = compute(at, behind, listening());
    let long = Duration::from_secs(60);
    let plain = (asking(over_tcp(&plain.address().to_string()), long), plain);
    let right = answers(&plain.0);
    let [at, behind] = [&memory, &storage].map(|serving| through_ucx(&serving.address));
    let own = Options {
        ucx: true,
        ..listening()
    };
    let through = compute(at, behind, own);
    let address = through.address().to_string();
    let client = asking(through_ucx(&address), long);
    assert!(answers(&client) == right);
    let began = Instant::now();
    (0..5).for_each(|_| assert!(answers(&client) == right));
    println!("{} queries took {:?}", 5 * QUERIES, began.elapsed());
    let traffic = through.memory_traffic();
    assert!(traffic.sent > 100 && traffic.received > 100, "{traffic:?}");

    let hasty = client.within(Duration::from_secs(2));
    let row = head("photo-sift-20k.query.u8bin", 1);
    let mut query = vec![0; row.row_bytes()];
    row.read(0, &mut query).unwrap();
    let fails = || {
        let began = Instant::now();
        let failed = hasty.search(&query, 10, 0, 0).unwrap_err();
        let took = began.elapsed();
        assert!(took < Duration::from_secs(4), "{took:?} {failed:?}");
        failed
    };
    memory.stop();
    println!("{}", fails());
    memory.signal("-CONT");
    assert!(answers(&client) == right);
    let address = memory.address.clone();
    drop(memory);
    println!("{}", fails());
    let memory = Serving::role("memory", &index, &address);
    assert!(answers(&client) == right);
    let memory = thread::scope(|scope| {
        let load = scope.spawn(|| (0..10).for_each(|_| assert!(answers(&client) == right)));
        thread::sleep(Duration::from_millis(30));
        drop(memory);
        let memory = Serving::role("memory", &index, &address);
        load.join().unwrap();
        memory
    });

    for round in 0..4u64 {
        let mut command = this("role");
        let others = command
            .env(ROLE, "compute")
            .env(MEMORY, &memory.address)
            .env(STORAGE, &storage.address);
        let killed = Serving::of(others, ANY);
        let client = asking(through_ucx(&killed.address), long);
        assert!(answers(&client) == right);
        let _asked = [&query[..]; QUERIES].map(|row| client.submit(row, 10, 0, 0));
        thread::sleep(Duration::from_millis(2 + 5 * round));
        killed.signal("-KILL");
    }
    assert!(answers(&client) == right);
}

#[test]
fn servers_answer_over_whatever_it_chooses() {
    passes_over(None, "servers");
}

#[test]
fn servers_answer_over_tcp() {
    passes_over(Some("tcp"), "servers");
}

#[test]
fn servers_answer_over_shared_memory() {
    passes_over(Some("shm,self"), "servers");
}

#[test]
fn servers_of_an_index_without_it_say_so_and_none_encrypts_it() {
    if skipped() {
        return;
    }
    let nowhere = || over_tcp("127.77.1.2:1");
    let without = compute(nowhere(), nowhere(), listening());
    let address = without.address().to_string();
    let server = reached(&address);
    let refused = server.connect(Protocol::Compute).err().unwrap();
    let text = refused.to_string();
    assert!(text.contains("not started with --ucx"), "{text}");
    let refused = server.connect(Protocol::Memory).err().unwrap();
    assert!(
        refused.to_string().contains("is a compute server"),
        "{refused}"
    );
    let options = ClientOptions::default();
    match serve::Client::connect(vec![through_ucx(&address)], options) {
        Err(NodeError::Server(error)) => assert!(error.to_string().contains("--ucx"), "{error}"),
        other => panic!("{:?}", other.err()),
    }
    let encrypted = Place::of("ucx:127.0.0.1:1", None, Encryption::OfEnvironment);
    let error = encrypted.unwrap_err().to_string();
    assert!(error.contains("not encrypted"), "{error}");
}

const HANG: Duration = Duration::from_secs(60);

fn greeted(address: &str, protocol: Protocol) -> (TcpStream, [Nonce; 2], Status) {
    let mut socket = TcpStream::connect(address).unwrap();
    socket.set_read_timeout(Some(HANG)).unwrap();
    let mut bytes = [0; GREETING];
    socket.read_exact(&mut bytes).unwrap();
    let greeting = Greeting::decode(&bytes).unwrap();
    assert!(greeting.ucx && greeting.wants_secret);
    let nonces = [greeting.nonce, [5; 32]];
    let reply = Reply {
        version: protocol.version(),
        ucx: true,
        nonce: nonces[1],
        proof: secret().proof(Side::Client, nonces.each_ref(), &UNBOUND),
    };
    socket.write_all(&reply.encode()).unwrap();
    socket.read_exact(&mut bytes).unwrap();
    let status = Welcome::decode(&bytes).unwrap().status;
    (socket, nonces, status)
}

#[test]
fn who_has_no_secret_hands_no_bytes_of_others_to_ucx() {
    if skipped() {
        return;
    }
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let pretends = thread::spawn(move || {
        let greeting = Greeting {
            version: Protocol::Compute.version(),
            wants_secret: false,
            ucx: true,
            nonce: [3; 32],
        };
        let mut socket = listener.accept().unwrap().0;
        socket.write_all(&greeting.encode()).unwrap();
        let mut answered = Vec::new();
        socket.read_to_end(&mut answered).unwrap();
        answered
    });
    let server = Server::new(&format!("{}{address}", Server::UCX), None, None).unwrap();
    let refused = server.connect(Protocol::Compute).err().unwrap();
    assert!(matches!(refused, Fault::Secret(_)), "{refused}");
    assert!(
        refused.to_string().contains("STRATANN_SECRET_FILE"),
        "{refused}"
    );
    assert!(pretends.join().unwrap().is_empty());
}

fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut next = || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (state >> 56) as u8
    };
    (0..len).map(|_| next()).collect()
}

#[test]
fn bytes_that_are_no_address_in_ucx_do_not_end_a_server() {
    if skipped() {
        return;
    }
    let mut command = this("role");
    let nowhere = "127.77.1.2:1";
    command
        .env(ROLE, "compute")
        .env(MEMORY, nowhere)
        .env(STORAGE, nowhere);
    let mut serving = Serving::of(&mut command, "127.0.0.1:0");
    for round in 0..16u64 {
        let len = [79, 145, 1000, REACH - 4][round as usize % 4];
        let mut sent = (len as u32).to_le_bytes().to_vec();
        sent.extend(noise(round, REACH + 32 - 4));
        let (mut socket, _, status) = greeted(&serving.address, Protocol::Compute);
        assert_eq!(status, Status::Welcome);
        socket.write_all(&sent).unwrap();
        let _ = socket.read_to_end(&mut Vec::new());
        assert_eq!(serving.process.try_wait().unwrap(), None, "round {round}");
    }
    let server = reached(&serving.address).with_patience(Duration::from_secs(20));
    let connected = server.connect(Protocol::Compute).unwrap();
    assert!(matches!(connected, Transport::Ucx(_)));
}

#[test]
fn clients_that_tell_no_address_in_ucx_take_no_worker_and_are_as_many_as_there_may_be() {
    if skipped() {
        return;
    }
    let nowhere = || over_tcp("127.77.1.2:1");
    let options = Options {
        ucx: true,
        most_clients: 2,
        greeting: Duration::from_secs(120),
        ..listening()
    };
    let server = compute(nowhere(), nowhere(), options);
    let address = server.address().to_string();
    let both = [(); 2].map(|()| greeted(&address, Protocol::Compute));
    let third = greeted(&address, Protocol::Compute);
    assert_eq!(third.2, Status::Full);
    for (mut socket, _, status) in both {
        assert_eq!(status, Status::Welcome);
        socket.shutdown(Shutdown::Write).unwrap();
        // A UCX worker would send its address.
        let mut told = Vec::new();
        socket.read_to_end(&mut told).unwrap();
        assert_eq!(told.len(), 0);
    }
    // These connections soon no longer count towards the limit.
    let server = reached(&address).with_patience(Duration::from_secs(20));
    let began = Instant::now();
    while let Err(fault) = server.connect(Protocol::Compute) {
        let refused = matches!(fault, Fault::Refused { .. });
        assert!(refused && began.elapsed() < HANG, "{fault}");
    }
}

fn descriptors(process: &Child) -> usize {
    let folder = format!("/proc/{}/fd", process.id());
    std::fs::read_dir(folder).unwrap().count()
}

#[test]
fn clients_that_tell_no_address_in_ucx_cost_a_server_their_sockets() {
    if skipped() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let index = folder.path().join("index");
    built(&index);
    let serving = Serving::role("memory", &index, "127.0.0.1:0");
    let server = serving.server().with_patience(Duration::from_secs(20));
    let connect = || server.connect(Protocol::Memory).unwrap();
    // The first connection also creates descriptors that later connections share.
    let _first = connect();
    let before = descriptors(&serving.process);
    let _second = connect();
    let with_one = descriptors(&serving.process);
    let silent = [(); 8].map(|()| greeted(&serving.address, Protocol::Memory));
    let _third = connect();
    let of_silent = descriptors(&serving.process).saturating_sub(2 * with_one - before);
    // A connection has a socket, and a copy with which other threads close it.
    assert!(of_silent <= 3 * silent.len(), "{of_silent}");
}
