//! A memory server of files and its clients: the server as a tier, and all faults between the two.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use stratann_node::{Certificate, NodeError, Options, Running, Store};
use stratann_tier::remote::wire::{
    self, Frame, Greeting, HEADER, Kind, REPLY, Refusal, Secret, Status, VERSION, Welcome,
};
use stratann_tier::remote::{Client, CopyNames, Fault, RemoteTier, RemoteVolume, Server, Tls};
use stratann_tier::testing::conformance::conformance;
use stratann_tier::{
    Directory, IoMode, Request, Thread, Tier, TierError, Volume, WorkerPool, next,
};

mod support;

use support::{MIB, fault, put, read};

fn start(options: Options) -> Running {
    Running::start(Store::in_memory(64 * MIB), options).unwrap()
}

/// The time limit for a reply that will arrive, even on a busy machine.
const PATIENCE: Duration = Duration::from_secs(20);
const SHORT: Duration = Duration::from_millis(500);
/// Longer than each step of these tests, unless a message is lost.
const LONG: Duration = Duration::from_secs(60);
const STALL: Duration = Duration::from_secs(600);

fn known(address: impl ToString, secret: Option<Secret>) -> Server {
    let server = Server::new(&address.to_string(), secret, None).unwrap();
    server.with_patience(PATIENCE)
}

fn stalling(address: impl ToString) -> Server {
    let server = Server::new(&address.to_string(), None, None).unwrap();
    server.with_patience(SHORT)
}

fn secret(text: &str) -> Option<Secret> {
    Some(Secret::new(text.as_bytes()).unwrap())
}

#[test]
fn a_file_on_a_server_is_a_tier() {
    let running = start(Options::default());
    let server = known(running.address(), None);
    let number = AtomicUsize::new(0);
    for io in [IoMode::Auto, IoMode::Pread] {
        let make = |bytes: &[u8]| -> Arc<dyn Tier> {
            let name = format!("file-{}", number.fetch_add(1, Ordering::Relaxed));
            Arc::new(RemoteTier::new(put(&server, &name, bytes)))
        };
        conformance(&make, io);
    }
}

#[test]
fn a_file_behind_a_ring_is_a_tier() {
    let root = tempfile::tempdir().unwrap();
    let ring = root.path().join("ring");
    let running = start(Options {
        ring: Some(ring.clone()),
        secret: secret("a secret of tests"),
        ..Options::default()
    });
    let name = format!("shm:{}", ring.display());
    let server = Server::new(&name, secret("a secret of tests"), None).unwrap();
    let server = server.with_patience(PATIENCE);
    let number = AtomicUsize::new(0);
    for io in [IoMode::Auto, IoMode::Pread] {
        let make = |bytes: &[u8]| -> Arc<dyn Tier> {
            let name = format!("file-{}", number.fetch_add(1, Ordering::Relaxed));
            Arc::new(RemoteTier::new(put(&server, &name, bytes)))
        };
        conformance(&make, io);
    }
    let other = Server::new(&name, secret("another secret, no"), None).unwrap();
    assert!(Client::new(&other).open("x").is_err());
    // The client notices the closed connection before the time limit of a reply, and connects
    // again.
    let tier = RemoteTier::new(put(&server, "x", &[5; 8192]));
    let thread = Thread::local(IoMode::Auto).unwrap();
    let mut queue = tier.queue(&thread).unwrap();
    assert_eq!(read(&mut *queue, &thread, 4096).0.unwrap(), [5; 4096]);
    running.hang_up();
    thread::sleep(Duration::from_millis(100));
    assert_eq!(read(&mut *queue, &thread, 4096).0.unwrap(), [5; 4096]);
    drop(running);
    let (tag, offset, len) = (1, 0, 4096);
    queue.submit(Request { tag, offset, len }).unwrap();
    let error = thread.block_on(next(&mut *queue)).result.unwrap_err();
    let TierError::Server { fault, .. } = error else {
        panic!("{error}");
    };
    assert!(!matches!(fault, Fault::Stalled(_)), "{fault}");
    assert!(!ring.exists());
    let _running = start(Options {
        ring: Some(ring),
        secret: secret("a secret of tests"),
        ..Options::default()
    });
    let tier = RemoteTier::new(put(&server, "x", &[6; 8192]));
    assert_eq!(
        read(&mut *tier.queue(&thread).unwrap(), &thread, 0)
            .0
            .unwrap(),
        [6; 4096]
    );
}

#[test]
fn a_server_behind_a_ring_that_stalls_or_lies_is_an_error_in_bounded_time() {
    use stratann_tier::remote::ring::RingListener;
    let root = tempfile::tempdir().unwrap();
    for (lies, path) in [
        (false, root.path().join("stalls")),
        (true, root.path().join("lies")),
    ] {
        let listener = RingListener::bind(&path).unwrap();
        thread::spawn(move || {
            loop {
                let socket = listener.accept().unwrap();
                let mut stream = RingListener::greet(socket, LONG).unwrap();
                if lies {
                    let _ = stream.write_all(&[0x55; 4096]);
                }
                thread::sleep(STALL);
            }
        });
        let server = Server::new(&format!("shm:{}", path.display()), None, None).unwrap();
        let server = server.with_patience(if lies { PATIENCE } else { SHORT });
        let error = Client::new(&server).open("x").unwrap_err();
        let TierError::Server { fault, .. } = error else {
            panic!("{error}");
        };
        match lies {
            true => assert!(matches!(fault, Fault::Nonsense(_)), "{fault}"),
            false => assert!(matches!(fault, Fault::NoGreeting(_)), "{fault}"),
        }
    }
}

fn certificate(folder: &Path) -> (std::path::PathBuf, std::path::PathBuf) {
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let (certificate, key) = (folder.join("certificate.pem"), folder.join("key.pem"));
    std::fs::write(&certificate, made.cert.pem()).unwrap();
    std::fs::write(&key, made.signing_key.serialize_pem()).unwrap();
    (certificate, key)
}

fn authority(folder: &Path) -> (std::path::PathBuf, std::path::PathBuf) {
    let mut wanted = rcgen::CertificateParams::new(["localhost".to_owned()]).unwrap();
    wanted.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let pair = rcgen::KeyPair::generate().unwrap();
    let made = wanted.self_signed(&pair).unwrap();
    let (certificate, key) = (
        folder.join("authority.pem"),
        folder.join("authority-key.pem"),
    );
    std::fs::write(&certificate, made.pem()).unwrap();
    std::fs::write(&key, pair.serialize_pem()).unwrap();
    (certificate, key)
}

#[test]
fn a_file_behind_tls_and_a_secret_is_a_tier() {
    let root = tempfile::tempdir().unwrap();
    let (certificate, key) = certificate(root.path());
    let running = start(Options {
        secret: secret("a secret of tests"),
        certificate: Some(Certificate::read(&certificate, &key).unwrap()),
        ..Options::default()
    });
    let name = format!("localhost:{}", running.address().port());
    let tls = Tls::new("localhost", &certificate).unwrap();
    let server = Server::new(&name, secret("a secret of tests"), Some(tls)).unwrap();
    let server = server.with_patience(PATIENCE);
    let make = |bytes: &[u8]| -> Arc<dyn Tier> {
        Arc::new(RemoteTier::new(put(
            &server,
            &format!("file-{}", bytes.len()),
            bytes,
        )))
    };
    conformance(&make, IoMode::Auto);
    let plain = known(running.address(), secret("a secret of tests")).with_patience(SHORT);
    let error = Client::new(&plain).open("x").unwrap_err();
    assert!(matches!(
        fault(error),
        Fault::Nonsense(_) | Fault::Closed(_) | Fault::NoGreeting(_)
    ));
    let other = Tls::new("elsewhere", &certificate).unwrap();
    let other = Server::new(
        &running.address().to_string(),
        secret("a secret of tests"),
        Some(other),
    )
    .unwrap();
    let believed = |server: &Server| match Client::new(server).open("x") {
        Err(TierError::Server { fault, .. }) => fault,
        other => panic!("{:?}", other.map(|_| ())),
    };
    assert!(matches!(believed(&other), Fault::Certificate(_)));
    let stranger = tempfile::tempdir().unwrap();
    let (theirs, _) = self::certificate(stranger.path());
    let tls = Tls::new("localhost", &theirs).unwrap();
    let server = Server::new(&name, secret("a secret of tests"), Some(tls.clone())).unwrap();
    assert!(matches!(believed(&server), Fault::Certificate(_)));
    // This server's certificate is its own authority, as `openssl req -x509` makes it.
    let (authority, key) = self::authority(stranger.path());
    let running = start(Options {
        certificate: Some(Certificate::read(&authority, &key).unwrap()),
        ..Options::default()
    });
    let name = format!("localhost:{}", running.address().port());
    let its = Tls::new("localhost", &authority).unwrap();
    let server = Server::new(&name, None, Some(its)).unwrap();
    let fault = believed(&server);
    assert!(matches!(fault, Fault::Authority), "{fault}");
    assert!(fault.to_string().contains("CA:FALSE"), "{fault}");
    let plain = start(Options::default());
    let server = Server::new(&plain.address().to_string(), None, Some(tls)).unwrap();
    let fault = believed(&server);
    assert!(fault.to_string().contains("does not use TLS"), "{fault}");
}

#[test]
fn only_who_knows_the_secret_may_ask_and_only_a_server_that_does_is_believed() {
    let running = start(Options {
        secret: secret("a secret of tests"),
        ..Options::default()
    });
    let open = |secret| Client::new(&known(running.address(), secret)).open("x");
    assert!(open(secret("a secret of tests")).unwrap().is_none());
    for wrong in [
        None,
        secret("another secret, no"),
        secret("a secret of testz"),
    ] {
        let found = fault(open(wrong).unwrap_err());
        assert!(matches!(found, Fault::Secret(_)), "{found}");
        assert!(
            found.to_string().contains("STRATANN_SECRET_FILE"),
            "{found}"
        );
    }
    let without = start(Options::default());
    let error = Client::new(&known(without.address(), secret("a secret of tests")))
        .open("x")
        .unwrap_err();
    assert!(matches!(fault(error), Fault::Secret(_)));
    // This impostor accepts any proof.
    let pretends = fake(|mut stream| {
        greet(&mut stream, true);
        let welcome = Welcome {
            status: Status::Welcome,
            proof: [7; 32],
        };
        stream.write_all(&welcome.encode()).unwrap();
    });
    let error = Client::new(&known(&pretends, secret("a secret of tests")))
        .open("x")
        .unwrap_err();
    assert!(matches!(fault(error), Fault::Secret(_)));
    let file = put(
        &known(running.address(), secret("a secret of tests")),
        "x",
        &[1; 4096],
    );
    assert_eq!(file.len(), 4096);
}

#[test]
fn others_are_listened_to_with_a_secret_only() {
    let open = Options {
        listen: "0.0.0.0:0".to_owned(),
        ..Options::default()
    };
    let refused = Running::start(Store::in_memory(MIB), open.clone())
        .map(|_| ())
        .unwrap_err();
    assert!(matches!(refused, NodeError::Open { .. }), "{refused}");
    assert!(
        refused.to_string().contains("STRATANN_SECRET_FILE"),
        "{refused}"
    );
    let running = start(Options {
        secret: secret("a secret of tests"),
        ..open
    });
    let address = format!("127.0.0.1:{}", running.address().port());
    assert!(
        Client::new(&known(&address, secret("a secret of tests")))
            .open("x")
            .unwrap()
            .is_none()
    );
}

#[test]
fn a_secret_is_read_from_a_file_of_its_owner_alone() {
    let root = tempfile::tempdir().unwrap();
    let path = root.path().join("secret");
    std::fs::write(&path, "a secret of tests\n").unwrap();
    for (mode, good) in [(0o644, false), (0o660, false), (0o600, true), (0o400, true)] {
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        let read = Secret::read(&path);
        assert_eq!(read.is_ok(), good, "{mode:o}: {read:?}");
    }
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
    std::fs::write(&path, "short\n").unwrap();
    assert!(
        Secret::read(&path)
            .unwrap_err()
            .to_string()
            .contains("16 bytes")
    );
    assert!(Secret::read(&root.path().join("none")).is_err());
}

/// Returns options with a loopback address of the server's own. On 127.0.0.1, another server could
/// take the port while this server is down.
fn own_address(n: u8) -> Options {
    let process = std::process::id();
    let (high, low) = (1 + (process >> 8) % 254, process % 256);
    Options {
        listen: format!("127.{high}.{low}.{n}:0"),
        ..Options::default()
    }
}

#[test]
fn a_server_that_dies_is_an_error_at_once_and_the_next_query_finds_the_one_that_follows() {
    let root = tempfile::tempdir().unwrap();
    let folder = root.path().join("store");
    let store = || Store::in_folder(&folder, 64 * MIB).unwrap();
    let running = Running::start(store(), own_address(1)).unwrap();
    let address = running.address().to_string();
    let bytes: Vec<u8> = (0..MIB).map(|i| (i % 251) as u8).collect();
    let tier = RemoteTier::new(put(&known(&address, None), "x", &bytes));
    let thread = Thread::local(IoMode::Auto).unwrap();
    let mut queue = tier.queue(&thread).unwrap();
    assert_eq!(
        read(&mut *queue, &thread, 8192).0.unwrap(),
        bytes[8192..12288]
    );
    running.hang_up();
    thread::sleep(Duration::from_millis(50));
    assert_eq!(read(&mut *queue, &thread, 0).0.unwrap(), bytes[..4096]);
    drop(running);
    let (result, _) = read(&mut *queue, &thread, 0);
    let found = fault(result.unwrap_err());
    assert!(
        matches!(found, Fault::Unreachable(_) | Fault::Closed(_)),
        "{found}"
    );
    let options = Options {
        listen: address,
        ..Options::default()
    };
    let _running = Running::start(store(), options).unwrap();
    assert_eq!(
        read(&mut *queue, &thread, 4096).0.unwrap(),
        bytes[4096..8192]
    );
    assert_eq!(
        read(&mut *tier.queue(&thread).unwrap(), &thread, 4096)
            .0
            .unwrap(),
        bytes[4096..8192]
    );
}

#[test]
fn a_server_without_the_file_says_so_and_what_to_do() {
    let running = start(own_address(2));
    let address = running.address().to_string();
    let tier = RemoteTier::new(put(&known(&address, None), "x", &[1; 8192]));
    drop(running);
    let options = Options {
        listen: address,
        ..Options::default()
    };
    let _empty = start(options);
    let thread = Thread::local(IoMode::Auto).unwrap();
    let found = fault(
        read(&mut *tier.queue(&thread).unwrap(), &thread, 0)
            .0
            .unwrap_err(),
    );
    let missing = Some(Refusal::Missing);
    assert!(
        matches!(&found, Fault::Refused { why, .. } if *why == missing),
        "{found}"
    );
    assert!(
        found.to_string().contains("Open the index again"),
        "{found}"
    );
}

fn fake(talk: impl Fn(TcpStream) + Send + 'static) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    thread::spawn(move || {
        for stream in listener.incoming() {
            talk(stream.unwrap());
        }
    });
    address
}

fn greet(stream: &mut TcpStream, wants_secret: bool) {
    let greeting = Greeting {
        version: VERSION,
        wants_secret,
        ucx: false,
        nonce: [3; 32],
    };
    stream.write_all(&greeting.encode()).unwrap();
    let mut reply = [0; REPLY];
    stream.read_exact(&mut reply).unwrap();
}

fn welcome(stream: &mut TcpStream) {
    greet(stream, false);
    let welcome = Welcome {
        status: Status::Welcome,
        proof: [0; 32],
    };
    stream.write_all(&welcome.encode()).unwrap();
}

fn request(stream: &mut TcpStream) -> Option<Frame> {
    let mut header = [0; HEADER];
    stream.read_exact(&mut header).ok()?;
    let (frame, _) = Frame::decode(&header).unwrap();
    let mut body = vec![0; frame.len as usize];
    stream.read_exact(&mut body).ok()?;
    Some(frame)
}

/// Starts a server that says that each file exists, and calls `answer` for all other requests.
fn lies(answer: impl Fn(Frame, &mut TcpStream) + Send + 'static) -> String {
    fake(move |mut stream| {
        welcome(&mut stream);
        while let Some(frame) = request(&mut stream) {
            let mut out = Vec::new();
            match frame.kind {
                Some(Kind::Open) => {
                    let there = Frame {
                        file: 5,
                        offset: 1 << 20,
                        ..Frame::new(Kind::Open, frame.tag)
                    };
                    there.append(&[], &mut out);
                    stream.write_all(&out).unwrap();
                    return;
                }
                _ => answer(frame, &mut stream),
            }
        }
    })
}

/// Repeats an attempt with a short time limit, which a busy machine may exceed.
fn at_last<T>(mut attempt: impl FnMut() -> Result<T, TierError>) -> T {
    let began = Instant::now();
    loop {
        let found = match attempt() {
            Ok(done) => return done,
            Err(error) => fault(error),
        };
        let stalled = matches!(found, Fault::Stalled(_));
        assert!(stalled && began.elapsed() < PATIENCE, "{found}");
    }
}

/// The errors of concurrent reads from a lying server. `patience` is the time limit of the reads.
fn told(liar: impl Fn() -> String, patience: Duration) -> Vec<Fault> {
    let open = || Client::new(&known(liar(), None).with_patience(patience)).open("x");
    let file = at_last(open).unwrap();
    let tier = RemoteTier::new(file);
    let thread = Thread::local(IoMode::Auto).unwrap();
    let mut queue = tier.queue(&thread).unwrap();
    for tag in 0..8 {
        let (offset, len) = (tag * 4096, 4096);
        queue.submit(Request { tag, offset, len }).unwrap();
    }
    let mut faults = Vec::new();
    thread.block_on(async {
        while queue.in_flight() > 0 {
            faults.push(fault(next(&mut *queue).await.result.unwrap_err()));
        }
    });
    assert_eq!(faults.len(), 8);
    faults
}

#[test]
fn a_server_that_stalls_is_an_error_in_bounded_time() {
    let silent = || lies(|_, _| thread::sleep(STALL));
    let half = || {
        lies(|frame, stream| {
            let mut out = Vec::new();
            Frame::new(Kind::Read, frame.tag).append(&[1; 4096], &mut out);
            stream.write_all(&out[..2000]).unwrap();
            thread::sleep(STALL);
        })
    };
    let drips = || {
        lies(|frame, stream| {
            let mut out = Vec::new();
            Frame::new(Kind::Read, frame.tag).append(&[1; 4096], &mut out);
            for byte in out {
                if stream.write_all(&[byte]).is_err() {
                    return;
                }
                thread::sleep(Duration::from_millis(50));
            }
        })
    };
    let liars: [fn() -> String; 3] = [silent, half, drips];
    for liar in liars {
        for found in told(liar, SHORT) {
            assert!(matches!(found, Fault::Stalled(_)), "{found}");
        }
    }
    let mute = fake(|stream| {
        thread::sleep(STALL);
        drop(stream);
    });
    let found = fault(Client::new(&stalling(&mute)).open("x").unwrap_err());
    assert!(matches!(found, Fault::NoGreeting(_)), "{found}");
}

#[test]
fn a_server_that_answers_nonsense_is_not_believed() {
    let say = |bytes: Vec<u8>, stream: &mut TcpStream| {
        let _ = stream.write_all(&bytes);
        thread::sleep(Duration::from_millis(20));
    };
    let framed = |frame: Frame, body: &[u8]| {
        let mut out = Vec::new();
        frame.append(body, &mut out);
        out
    };
    type Lie = Box<dyn Fn(Frame) -> Vec<u8> + Send>;
    let mut many: Vec<(&str, Lie)> = Vec::new();
    many.push((
        "other tag",
        Box::new(move |f| framed(Frame::new(Kind::Read, f.tag ^ 1 << 32), &[1; 4096])),
    ));
    many.push((
        "other slot",
        Box::new(move |f| framed(Frame::new(Kind::Read, f.tag ^ 1 << 20), &[1; 4096])),
    ));
    many.push((
        "too long",
        Box::new(move |f| framed(Frame::new(Kind::Read, f.tag), &[1; 4097])),
    ));
    many.push((
        "too short",
        Box::new(move |f| framed(Frame::new(Kind::Read, f.tag), &[])),
    ));
    many.push((
        "other kind",
        Box::new(move |f| framed(Frame::new(Kind::Room, f.tag), &[])),
    ));
    many.push((
        "twice",
        Box::new(move |f| {
            let once = framed(Frame::new(Kind::Read, f.tag), &[1; 4096]);
            let mut wrong = once.clone();
            wrong[100] ^= 1;
            [wrong, once].concat()
        }),
    ));
    many.push((
        "noise",
        Box::new(|_| {
            (0..5000u32)
                .map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8)
                .collect()
        }),
    ));
    many.push((
        "a refusal without end",
        Box::new(move |f| framed(Frame::refusal(f.tag, Refusal::Other), &[b'x'; 100_000])),
    ));
    for (what, lie) in many {
        let address = lies(move |frame, stream| say(lie(frame), stream));
        for found in told(|| address.clone(), PATIENCE) {
            assert!(matches!(found, Fault::Nonsense(_)), "{what}: {found}");
        }
    }
    let other = fake(|mut stream| {
        let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 100\r\n\r\n<html>this is no memory server");
    });
    let found = fault(Client::new(&known(&other, None)).open("x").unwrap_err());
    assert!(matches!(found, Fault::Nonsense(_)), "{found}");
    let newer = fake(|mut stream| {
        let greeting = Greeting {
            version: VERSION + 1,
            wants_secret: false,
            ucx: false,
            nonce: [0; 32],
        };
        let _ = stream.write_all(&greeting.encode());
    });
    let found = fault(Client::new(&known(&newer, None)).open("x").unwrap_err());
    let version = format!("version {}", VERSION + 1);
    assert!(found.to_string().contains(&version), "{found}");
}

#[test]
fn garbage_at_the_port_harms_nobody_else() {
    let running = start(Options {
        most_clients: 8,
        ..Options::default()
    });
    let bytes = vec![9; 64 << 10];
    let server = known(running.address(), None);
    let tier = RemoteTier::new(put(&server, "x", &bytes));
    let free = running.store().free();
    let mut state = 88_172_645_463_325_252u64;
    let mut random = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    for round in 0..300 {
        let mut stream = TcpStream::connect(running.address()).unwrap();
        stream.set_read_timeout(Some(LONG)).unwrap();
        let mut greeting = [0; wire::GREETING];
        stream.read_exact(&mut greeting).unwrap();
        let mut sent = Vec::new();
        if round % 3 > 0 {
            let reply = wire::Reply {
                version: VERSION,
                ucx: false,
                nonce: [1; 32],
                proof: [0; 32],
            };
            sent.extend(reply.encode());
            let kinds = [
                Kind::Open,
                Kind::Read,
                Kind::Begin,
                Kind::Write,
                Kind::Commit,
                Kind::Sweep,
                Kind::Room,
                Kind::Reach,
                Kind::List,
                Kind::Hash,
            ];
            for _ in 0..random() % 20 {
                let frame = Frame {
                    file: random() % 3,
                    offset: random() >> (random() % 64),
                    count: (random() >> (random() % 64)) as u32,
                    ..Frame::new(kinds[(random() % 9) as usize], random())
                };
                let body: Vec<u8> = (0..random() % 40).map(|_| random() as u8).collect();
                frame.append(&body, &mut sent);
            }
        }
        if round % 3 != 1 {
            for _ in 0..1 + random() % 8 {
                sent.extend(random().to_le_bytes());
            }
            let at = random() as usize % sent.len();
            sent[at] ^= 1 << (random() % 8);
        }
        let _ = stream.write_all(&sent);
        if round % 7 == 0 {
            // The server may wait for the remaining bytes of a request.
            stream
                .set_read_timeout(Some(Duration::from_millis(20)))
                .unwrap();
            let _ = stream.read(&mut [0; 1000]);
        }
    }
    let thread = Thread::local(IoMode::Auto).unwrap();
    let found = read(&mut *tier.queue(&thread).unwrap(), &thread, 0)
        .0
        .unwrap();
    assert_eq!(found, bytes[..4096]);
    let began = Instant::now();
    while running.store().free() != free && began.elapsed() < LONG {
        thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(running.store().free(), free);
}

#[test]
fn there_are_no_more_clients_than_there_may_be() {
    let running = start(Options {
        most_clients: 2,
        ..Options::default()
    });
    let clients: Vec<Client> = (0..2)
        .map(|_| Client::new(&known(running.address(), None)))
        .collect();
    for client in &clients {
        client.room().unwrap();
    }
    let third = Client::new(&known(running.address(), None));
    let found = fault(third.room().unwrap_err());
    assert!(found.to_string().contains("as many clients"), "{found}");
    drop(clients);
    let began = Instant::now();
    while third.room().is_err() {
        assert!(began.elapsed() < LONG);
        thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn two_clients_and_many_threads_read_what_each_has_asked_for() {
    let running = start(Options::default());
    let server = known(running.address(), None);
    let files: Vec<Vec<u8>> = (0..2u64)
        .map(|n| (0..MIB).map(|i| (i * (n + 3) % 253) as u8).collect())
        .collect();
    let tiers: Vec<RemoteTier> = (files.iter().enumerate())
        .map(|(n, bytes)| RemoteTier::new(put(&server, &format!("file-{n}"), bytes)))
        .collect();
    let workers = WorkerPool::new(3, IoMode::Auto).unwrap();
    workers.run_tasks(3, &|thread, share| {
        let tasks = (0..12).map(|task| {
            let (tier, bytes) = (&tiers[task % 2], &files[task % 2]);
            let mut queue = tier.queue(thread).unwrap();
            let task: stratann_tier::Task<'_> = Box::pin(async move {
                for round in 0..40u64 {
                    for tag in 0..6u64 {
                        let offset = (round * 977 + tag * 131 + share as u64 * 7 + task as u64)
                            * 64
                            % (MIB - 8192);
                        let len = 64 + (tag * 1000) as u32;
                        queue
                            .submit(Request {
                                tag: offset << 16 | u64::from(len),
                                offset,
                                len,
                            })
                            .unwrap();
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

fn names(origin: &str, state: &str) -> CopyNames {
    CopyNames {
        owner: "me".into(),
        origin: origin.into(),
        state: state.into(),
        everywhere: false,
    }
}

#[test]
fn copies_of_a_volume_are_put_there_once_and_those_of_before_go() {
    let root = tempfile::tempdir().unwrap();
    let home = Arc::new(Directory::create(root.path().join("home")).unwrap());
    home.create("pages-1")
        .unwrap()
        .append(&[1; 3_000_000])
        .unwrap();
    let running = start(Options::default());
    let server = known(running.address(), None);
    let copies = |state: &str| {
        RemoteVolume::new(home.clone(), Client::new(&server), names("here", state)).unwrap()
    };
    let volume = copies("1");
    let thread = Thread::local(IoMode::Auto).unwrap();
    let tier = volume.open_tier("pages-1").unwrap();
    assert_eq!(
        read(&mut *tier.queue(&thread).unwrap(), &thread, 0)
            .0
            .unwrap(),
        [1; 4096]
    );
    assert_eq!(volume.read("pages-1").unwrap(), [1; 3_000_000]);
    assert_eq!(running.store().free(), 64 * MIB - 3_000_000);
    let again = copies("1");
    assert_eq!(again.read("pages-1").unwrap(), [1; 3_000_000]);
    assert_eq!(running.store().free(), 64 * MIB - 3_000_000);
    home.open("pages-1")
        .unwrap()
        .write_at(0, &[9; 3_000_000])
        .unwrap();
    let after = copies("2");
    assert_eq!(after.read("pages-1").unwrap(), [9; 3_000_000]);
    assert_eq!(
        read(&mut *tier.queue(&thread).unwrap(), &thread, 0)
            .0
            .unwrap(),
        [1; 4096],
        "the open file cannot be read"
    );
    let place = after.place("pages-1");
    assert!(place.contains("/me.here.2.pages-1 (a copy of "), "{place}");
    drop((volume, again, tier));
    let began = Instant::now();
    while running.store().free() != 64 * MIB - 3_000_000 {
        assert!(began.elapsed() < LONG);
        thread::sleep(Duration::from_millis(10));
    }
    home.create("pages-2").unwrap().set_len(64 * MIB).unwrap();
    let error = after.open_tier("pages-2").unwrap_err();
    assert!(matches!(error, TierError::NoRoom { .. }), "{error}");
}

fn greeted(address: impl std::net::ToSocketAddrs) -> TcpStream {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.read_exact(&mut [0; wire::GREETING]).unwrap();
    let reply = wire::Reply {
        version: VERSION,
        ucx: false,
        nonce: [1; 32],
        proof: [0; 32],
    };
    stream.write_all(&reply.encode()).unwrap();
    stream.read_exact(&mut [0; wire::GREETING]).unwrap();
    stream
}

#[test]
fn who_does_not_greet_takes_no_place_of_one_who_does() {
    let running = start(Options {
        most_clients: 2,
        greeting: Duration::from_secs(60),
        ..Options::default()
    });
    // There are more connections than can be in greeting at once.
    let idle: Vec<TcpStream> = (0..100)
        .map(|_| TcpStream::connect(running.address()).unwrap())
        .collect();
    let server = known(running.address(), None);
    let clients = [Client::new(&server), Client::new(&server)];
    for client in &clients {
        client.room().unwrap();
    }
    let found = fault(Client::new(&server).room().unwrap_err());
    assert!(found.to_string().contains("as many clients"), "{found}");
    drop(idle);
}

#[test]
fn a_greeting_has_a_time_however_small_its_pieces() {
    let running = start(Options {
        greeting: Duration::from_millis(300),
        ..Options::default()
    });
    let mut stream = TcpStream::connect(running.address()).unwrap();
    let began = Instant::now();
    while stream.write_all(b"S").is_ok() {
        assert!(began.elapsed() < LONG);
        thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn a_client_that_drips_its_requests_or_its_taking_of_answers_is_hung_up_on() {
    let root = tempfile::tempdir().unwrap();
    let ring = root.path().join("ring");
    let running = start(Options {
        ring: Some(ring.clone()),
        patience: Duration::from_secs(2),
        ..Options::default()
    });
    let server = known(running.address(), None);
    let file = put(&server, "x", &vec![3; 8 << 20]);
    let mut silent = greeted(running.address());
    let gone = |began: Instant| {
        assert!(began.elapsed() < LONG, "the client is still connected");
    };
    let mut request = Vec::new();
    Frame::new(Kind::Write, 1).append(&[0; 100_000], &mut request);
    let mut dripping = greeted(running.address());
    let began = Instant::now();
    for byte in request.chunks(1) {
        if dripping.write_all(byte).is_err() {
            break;
        }
        gone(began);
        thread::sleep(Duration::from_millis(20));
    }
    let mut stream = stratann_tier::remote::ring::RingStream::connect(&ring).unwrap();
    stream.set_waits(true);
    stream.set_read_timeout(Some(LONG));
    stream.read_exact(&mut [0; wire::GREETING]).unwrap();
    let reply = wire::Reply {
        version: VERSION,
        ucx: false,
        nonce: [1; 32],
        proof: [0; 32],
    };
    stream.write_all(&reply.encode()).unwrap();
    stream.read_exact(&mut [0; wire::GREETING]).unwrap();
    stream.set_waits(false);
    let began = Instant::now();
    for byte in request.chunks(1) {
        // Only a read shows that the peer has disconnected.
        let over = stream.write_all(byte).is_err() || matches!(stream.read(&mut [0]), Ok(0));
        if over {
            break;
        }
        gone(began);
        thread::sleep(Duration::from_millis(20));
    }
    let mut asked = Vec::new();
    let stored = running.store().open("x").unwrap().id();
    for tag in 0..8 {
        let frame = Frame {
            file: stored,
            count: 8 << 20,
            ..Frame::new(Kind::Read, tag)
        };
        frame.append(&[], &mut asked);
    }
    let mut leaving = greeted(running.address());
    leaving.write_all(&asked).unwrap();
    let began = Instant::now();
    let mut taken = 0;
    loop {
        gone(began);
        thread::sleep(Duration::from_millis(20));
        // A write reveals that the server has closed the connection.
        match leaving.read(&mut [0; 10]) {
            Ok(got) if got > 0 && leaving.write_all(&[0]).is_ok() => taken += got,
            _ => break,
        }
    }
    assert!(taken < 1 << 20);
    let mut room = Vec::new();
    Frame::new(Kind::Room, 7).append(&[], &mut room);
    silent.write_all(&room).unwrap();
    silent.read_exact(&mut [0; HEADER]).unwrap();
    drop(file);
}

/// A man in the middle with a certificate of its own.
fn between(own: &Certificates, server: std::net::SocketAddr, theirs: &Path) -> String {
    use rustls::pki_types::pem::PemObject;
    use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
    use rustls::{ClientConfig, ClientConnection, RootCertStore, ServerConfig};
    let provider = || Arc::new(rustls::crypto::ring::default_provider());
    let mut roots = RootCertStore::empty();
    roots
        .add(CertificateDer::from_pem_file(theirs).unwrap())
        .unwrap();
    let out = ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let chain = vec![CertificateDer::from_pem_file(&own.0).unwrap()];
    let key = PrivateKeyDer::from_pem_file(&own.1).unwrap();
    let inward = ServerConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .unwrap();
    let (out, inward) = (Arc::new(out), Arc::new(inward));
    fake(move |mut stream| {
        let mut inward = rustls::ServerConnection::new(inward.clone()).unwrap();
        let mut client = rustls::Stream::new(&mut inward, &mut stream);
        let name = ServerName::try_from("localhost").unwrap();
        let mut out = ClientConnection::new(out.clone(), name).unwrap();
        let mut socket = TcpStream::connect(server).unwrap();
        let mut server = rustls::Stream::new(&mut out, &mut socket);
        let mut bytes = [0; REPLY];
        for (len, to_client) in [
            (wire::GREETING, true),
            (REPLY, false),
            (wire::GREETING, true),
        ] {
            let bytes = &mut bytes[..len];
            let passed = match to_client {
                true => server
                    .read_exact(bytes)
                    .and_then(|()| client.write_all(bytes)),
                false => client
                    .read_exact(bytes)
                    .and_then(|()| server.write_all(bytes)),
            };
            if passed.and_then(|()| client.flush()).is_err() {
                return;
            }
        }
        let _ = client.read(&mut bytes);
    })
}

type Certificates = (std::path::PathBuf, std::path::PathBuf);

#[test]
fn who_stands_between_both_with_a_certificate_that_is_believed_has_no_proof() {
    let root = tempfile::tempdir().unwrap();
    let (theirs, others) = (root.path().join("theirs"), root.path().join("others"));
    for folder in [&theirs, &others] {
        std::fs::create_dir(folder).unwrap();
    }
    let (theirs, others) = (certificate(&theirs), certificate(&others));
    let running = start(Options {
        secret: secret("a secret of tests"),
        certificate: Some(Certificate::read(&theirs.0, &theirs.1).unwrap()),
        ..Options::default()
    });
    let open = |address: &str, believed: &Path| {
        let tls = Tls::new("localhost", believed).unwrap();
        let server = Server::new(address, secret("a secret of tests"), Some(tls)).unwrap();
        Client::new(&server.with_patience(PATIENCE)).open("x")
    };
    assert!(
        open(&running.address().to_string(), &theirs.0)
            .unwrap()
            .is_none()
    );
    let middle = between(&others, running.address(), &theirs.0);
    let found = fault(open(&middle, &others.0).unwrap_err());
    assert!(matches!(found, Fault::Secret(_)), "{found}");
}

#[test]
fn all_addresses_of_a_name_are_tried() {
    let running = start(Options::default());
    // The second address accepts no connection, because its queue is full.
    let closed = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    let full = TcpListener::bind("127.0.0.1:0").unwrap();
    let waits = full.local_addr().unwrap();
    let mut waiting = Vec::new();
    while let Ok(stream) = TcpStream::connect_timeout(&waits, SHORT) {
        waiting.push(stream);
        assert!(waiting.len() < 10_000);
    }
    let server = known(running.address(), None);
    put(&server, "x", &[4; 8192]);
    let all = server.with_addresses(vec![closed, waits, running.address()]);
    let fresh = all.with_patience(PATIENCE);
    let other = server.with_addresses(vec![waits, closed, running.address()]);
    // Each call waits a third of its time limit at the second address.
    let (file, [tier, other]) = thread::scope(|scope| {
        let file = scope.spawn(|| put(&all, "y", &[4; 8192]));
        let tiers = [fresh, other].map(|server| {
            scope.spawn(move || RemoteTier::new(Client::new(&server).open("x").unwrap().unwrap()))
        });
        let tiers = tiers.map(|tier| tier.join().unwrap());
        (file.join().unwrap(), tiers)
    });
    assert_eq!(file.len(), 8192);
    let thread = Thread::local(IoMode::Auto).unwrap();
    for tier in [&tier, &other] {
        let mut queue = tier.queue(&thread).unwrap();
        assert_eq!(read(&mut *queue, &thread, 0).0.unwrap(), [4; 4096]);
    }
    let gone = server.with_addresses(vec![running.address(), waits, closed]);
    let gone = gone.with_patience(SHORT);
    let gone = RemoteTier::new(at_last(|| Client::new(&gone).open("x")).unwrap());
    drop(running);
    let (found, _) = read(&mut *gone.queue(&thread).unwrap(), &thread, 0);
    let found = fault(found.unwrap_err());
    assert!(
        matches!(
            found,
            Fault::Unreachable(_) | Fault::Closed(_) | Fault::Stalled(_)
        ),
        "{found}"
    );
}

fn slow_commits(takes: Duration) -> String {
    fake(move |mut stream| {
        welcome(&mut stream);
        while let Some(frame) = request(&mut stream) {
            if frame.kind == Some(Kind::Commit) {
                thread::sleep(takes);
            }
            let mut out = Vec::new();
            let answer = Frame {
                file: 5,
                offset: 3000,
                ..Frame::new(frame.kind.unwrap(), frame.tag)
            };
            answer.append(&[], &mut out);
            if stream.write_all(&out).is_err() {
                return;
            }
        }
    })
}

#[test]
fn a_server_may_take_longer_for_a_sync_than_for_an_answer_and_not_for_ever() {
    let put = |address: &str, patience: Duration| {
        let server = known(address, None).with_patience(patience);
        let read = |_: u64, piece: &mut [u8]| {
            piece.fill(1);
            Ok(())
        };
        Client::new(&server).put("x", 3000, read)
    };
    // A sync may need twelve times as long as a reply.
    let patience = Duration::from_secs(2);
    let slow = || slow_commits(patience + Duration::from_secs(1));
    assert_eq!(at_last(|| put(&slow(), patience)).len(), 3000);
    let found = fault(put(&slow_commits(STALL), SHORT / 2).unwrap_err());
    assert!(matches!(found, Fault::Stalled(_)), "{found}");
}

#[test]
fn files_are_listed_and_removed_by_the_beginning_of_their_names() {
    let running = start(Options::default());
    let server = known(running.address(), None);
    let names: Vec<String> = (0..700)
        .map(|n| format!("me.{}.{n:04}", "x".repeat(100)))
        .collect();
    for name in &names {
        put(&server, name, b"hello");
    }
    let open = put(&server, "you.1", &[1; 10]);
    let client = Client::new(&server);
    let found = client.list("me.").unwrap();
    assert!(found.iter().map(|file| &file.name).eq(&names));
    assert!(found.iter().all(|file| file.len == 5));
    let [yours] = &client.list("you.").unwrap()[..] else {
        panic!("one file");
    };
    assert!(yours.in_use && yours.len == 10);
    client.remove("me.").unwrap();
    assert!(client.list("me.").unwrap().is_empty());
    assert_eq!(client.list("").unwrap().len(), 1);
    drop(open);
    let circles = fake(|mut stream| {
        welcome(&mut stream);
        while let Some(frame) = request(&mut stream) {
            let mut list = Vec::new();
            let name = "me.1".to_owned();
            assert!(
                wire::Listed {
                    name,
                    len: 1,
                    in_use: false
                }
                .append(&mut list)
            );
            list.resize(wire::LIST, 0);
            let mut out = Vec::new();
            Frame::new(Kind::List, frame.tag).append(&list, &mut out);
            if stream.write_all(&out).is_err() {
                return;
            }
        }
    });
    let found = fault(Client::new(&known(&circles, None)).list("me.").unwrap_err());
    assert!(matches!(found, Fault::Nonsense(_)), "{found}");
}

#[test]
fn two_machines_with_one_index_do_not_push_each_others_copies_out() {
    let root = tempfile::tempdir().unwrap();
    let home = Arc::new(Directory::create(root.path().join("home")).unwrap());
    home.create("pages-1")
        .unwrap()
        .append(&[1; 20 << 20])
        .unwrap();
    let running = start(Options::default());
    let server = known(running.address(), None);
    let copies = |origin: &str, state: &str| {
        let client = Client::new(&server);
        let volume = RemoteVolume::new(home.clone(), client, names(origin, state)).unwrap();
        volume.open_reader("pages-1").unwrap();
    };
    let has = |name: &str| running.store().open(name).is_ok();
    copies("here", "1");
    copies("there", "2");
    copies("here", "1");
    assert!(has("me.here.1.pages-1") && has("me.there.2.pages-1"));
    copies("there", "3");
    assert!(has("me.here.1.pages-1") && has("me.there.3.pages-1") && !has("me.there.2.pages-1"));
    copies("elsewhere", "4");
    assert!(has("me.here.1.pages-1") && has("me.there.3.pages-1"));
    let began = Instant::now();
    while running.store().free() != 4 * MIB {
        assert!(began.elapsed() < LONG);
        thread::sleep(Duration::from_millis(10));
    }
    copies("new", "5");
    assert!(has("me.new.5.pages-1") && !has("me.here.1.pages-1"));
}

#[test]
fn a_state_that_is_known_everywhere_has_one_copy_of_each_file() {
    let root = tempfile::tempdir().unwrap();
    let homes = ["here", "there"].map(|origin| {
        let home = Arc::new(Directory::create(root.path().join(origin)).unwrap());
        let bytes = vec![7; 3_000_000];
        home.create("pages-1").unwrap().append(&bytes).unwrap();
        (origin, home, bytes)
    });
    let running = start(Options::default());
    let server = known(running.address(), None);
    let opened = |(origin, home, _): &(&str, Arc<Directory>, Vec<u8>), state: &str, everywhere| {
        let names = CopyNames {
            everywhere,
            ..names(origin, state)
        };
        RemoteVolume::new(home.clone(), Client::new(&server), names).unwrap()
    };
    let [here, there] = &homes;
    let first = opened(here, "1", true);
    assert_eq!(first.read("pages-1").unwrap(), here.2);
    let second = opened(there, "1", true);
    assert_eq!(second.read("pages-1").unwrap(), here.2);
    assert_eq!(running.store().free(), 64 * MIB - 3_000_000);
    let place = second.place("pages-1");
    assert!(place.contains("/me.here.1.pages-1 (a copy of "), "{place}");
    // For state 2, or if the volume does not share copies between machines, this machine makes its
    // own copy.
    let other = opened(there, "2", true);
    assert_eq!(other.read("pages-1").unwrap(), there.2);
    let place = other.place("pages-1");
    assert!(place.contains("/me.there.2.pages-1 (a copy of "), "{place}");
    let own = opened(there, "1", false);
    assert_eq!(own.read("pages-1").unwrap(), there.2);
    let place = own.place("pages-1");
    assert!(place.contains("/me.there.1.pages-1 (a copy of "), "{place}");
    // When a copy in state 3 replaces a copy, files that are open in the replaced copy stay
    // readable.
    drop(opened(here, "3", true));
    assert_eq!(second.read("pages-1").unwrap(), here.2);
    assert!(running.store().open("me.here.1.pages-1").is_err());
    assert_eq!(opened(there, "1", true).read("pages-1").unwrap(), there.2);
    assert!(running.store().open("me.there.1.pages-1").is_ok());
}

#[test]
fn a_copy_that_is_used_again_is_what_stands_at_home() {
    let root = tempfile::tempdir().unwrap();
    let home = Arc::new(Directory::create(root.path().join("home")).unwrap());
    home.create("pages-1")
        .unwrap()
        .append(&[1; 3_000_000])
        .unwrap();
    let folder = root.path().join("folder");
    let stores = [
        Store::in_memory(64 * MIB),
        Store::in_folder(&folder, 64 * MIB).unwrap(),
    ];
    for store in stores {
        let running = Running::start(store, Options::default()).unwrap();
        let server = known(running.address(), None);
        let volume = |everywhere| {
            let names = CopyNames {
                everywhere,
                ..names("here", "1")
            };
            RemoteVolume::new(home.clone(), Client::new(&server), names).unwrap()
        };
        let put = |name: &str| {
            let other = |_: u64, piece: &mut [u8]| {
                piece.fill(2);
                Ok(())
            };
            Client::new(&server).put(name, 3_000_000, other).unwrap()
        };
        assert!(volume(false).read("pages-1").unwrap() == [1; 3_000_000]);
        // Other bytes replace this machine's copy, and the other machine's copy in the same state.
        put("me.here.1.pages-1");
        put("me.there.1.pages-1");
        put("me.here.1.pages-1-0001");
        for everywhere in [false, true] {
            let again = volume(everywhere);
            assert!(again.read("pages-1").unwrap() == [1; 3_000_000]);
            let place = again.place("pages-1");
            assert!(place.contains("/me.here.1.pages-1 (a copy of "), "{place}");
        }
        let there = Client::new(&server).open("me.here.1.pages-1").unwrap();
        let hash = Client::new(&server).hash(&there.unwrap()).unwrap();
        assert_eq!(hash, blake3::hash(&[1; 3_000_000]));
        assert!(running.store().open("me.here.1.pages-1-0001").is_ok());
        put("me.here.1.pages-1");
        let went_on = volume(false).while_current(|| false);
        let error = went_on.read("pages-1").unwrap_err();
        assert!(matches!(error, TierError::Replaced { .. }), "{error}");
    }
}

#[test]
fn no_copy_gets_its_name_of_an_index_that_went_on_while_it_was_copied() {
    let root = tempfile::tempdir().unwrap();
    let home = Arc::new(Directory::create(root.path().join("home")).unwrap());
    let mut file = home.create("pages-1").unwrap();
    file.append(&[1; 3_000_000]).unwrap();
    let running = start(Options::default());
    let server = known(running.address(), None);
    let copied = |is_current: fn() -> bool| {
        let volume = RemoteVolume::new(home.clone(), Client::new(&server), names("here", "1"));
        let volume = volume.unwrap().while_current(is_current);
        volume.open_reader("pages-1").map(drop)
    };
    let error = copied(|| false).unwrap_err();
    assert!(matches!(error, TierError::Replaced { .. }), "{error}");
    assert!(running.store().open("me.here.1.pages-1").is_err());
    // The server frees the unfinished files of an ended connection.
    let began = Instant::now();
    while running.store().free() != 64 * MIB {
        assert!(began.elapsed() < LONG);
        thread::sleep(Duration::from_millis(10));
    }
    copied(|| true).unwrap();
    assert!(running.store().open("me.here.1.pages-1").is_ok());
}
