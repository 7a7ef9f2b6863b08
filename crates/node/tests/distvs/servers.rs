//! The roles as servers on threads, over each kind of connection. Some tests kill a server.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use stratann_node::role::{
    Done, Doubt, Failure, Found, HalfError, HighHalf, MemoryOptions, Narrowing, NotChanged, Ranker,
    Wanted,
};
use stratann_node::serve::{
    Client, ClientOptions, ComputeServer, ComputeServerOptions, MemoryServer, Pending, Place,
    StorageServer,
};
use stratann_node::wire::{
    Changed, Collection, Frame, Head, Message, Nodes, Protocol, Ranked, Reason,
};
use stratann_node::{Certificate, NodeError, Options, Running, Secret, Store};
use stratann_tier::remote::{Server, Tls, Transport};

use crate::halves::{DIM, Full, Low, POISON, Random, World, press};

/// The limit is long, because the machine of the tests may be busy.
pub const PATIENCE: Duration = Duration::from_secs(60);

const LIST: u32 = 24;
const BEAM: u32 = 2;

pub fn world() -> Arc<World> {
    Arc::new(World::new(77, 300))
}

struct Cluster {
    world: Arc<World>,
    memory: MemoryServer,
    storage: StorageServer,
    compute: ComputeServer<Low>,
}

pub fn remote(address: impl ToString) -> Place {
    Place::Remote(Server::new(&address.to_string(), None, None).unwrap())
}

fn memory(world: &Arc<World>, batch: bool, options: Options) -> MemoryServer {
    MemoryServer::start(world.clone(), MemoryOptions::default(), batch, options).unwrap()
}

fn storage(world: &Arc<World>, options: Options) -> StorageServer {
    StorageServer::start(Arc::new(Full(world.clone())), 64, options).unwrap()
}

/// Returns options with a loopback address of the server's own. On 127.0.0.1, another server could
/// take the port while this server is down.
pub fn own_address() -> Options {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let (process, n) = (std::process::id(), NEXT.fetch_add(1, Ordering::SeqCst));
    let (high, low) = (1 + (process >> 8) % 254, process % 256);
    Options {
        listen: format!("127.{high}.{low}.{}:0", 1 + n % 254),
        ..Options::default()
    }
}

/// Repeats the start, because the port of an ended server may still be in use for a moment.
pub fn started<S>(start: impl Fn() -> Result<S, NodeError>) -> S {
    let began = Instant::now();
    loop {
        match start() {
            Ok(server) => return server,
            Err(error) => assert!(began.elapsed() < PATIENCE, "{error}"),
        }
        thread::sleep(Duration::from_millis(10));
    }
}

pub fn options() -> ComputeServerOptions {
    ComputeServerOptions {
        workers: 2,
        in_flight: 2,
        list: LIST,
        beam: BEAM,
        retry: Duration::from_millis(100),
        // No connection must end because the machine is busy.
        silence: PATIENCE,
        ..ComputeServerOptions::default()
    }
}

pub fn patient() -> ClientOptions {
    ClientOptions {
        patience: PATIENCE,
        silence: PATIENCE,
        ..ClientOptions::default()
    }
}

fn cluster(
    compute: ComputeServerOptions,
    place: impl Fn(&MemoryServer, &StorageServer) -> (Place, Place),
) -> Cluster {
    let world = world();
    let memory = memory(&world, compute.batch, Options::default());
    let storage = storage(&world, Options::default());
    let (at, behind) = place(&memory, &storage);
    let compute = ComputeServer::start(at, behind, compute).unwrap();
    Cluster {
        world,
        memory,
        storage,
        compute,
    }
}

fn over_tcp(memory: &MemoryServer, storage: &StorageServer) -> (Place, Place) {
    (remote(memory.address()), remote(storage.address()))
}

fn in_process(memory: &MemoryServer, storage: &StorageServer) -> (Place, Place) {
    (Place::Local(memory.door()), Place::Local(storage.door()))
}

fn client(place: Place) -> Client {
    Client::connect(vec![place], patient()).unwrap()
}

pub fn check(world: &World, row: &[u8], k: u32, found: &Found) {
    check_with(world, row, k, found, u32::MAX);
}

fn check_with(world: &World, row: &[u8], k: u32, found: &Found, kept: u32) {
    let sizes = (LIST as usize, BEAM as usize);
    let expected = press(world, row, k as usize, sizes, Narrowing::default(), kept);
    assert_eq!(
        (&found.ids, &found.distances),
        (&expected.ids, &expected.distances)
    );
    let counters = found.counters;
    if counters.restarts == 0 {
        let took = (counters.low, counters.high, counters.full, counters.steps);
        assert_eq!(
            took,
            (expected.low, expected.high, expected.full, expected.steps)
        );
        assert!(counters.wire > 0 && counters.storage_wire > 0);
    }
    assert_eq!(found.state, world.state);
}

fn ask(client: &Client, world: &World, seed: u64, queries: usize, at_once: usize) {
    ask_with(client, world, seed, (queries, at_once), u32::MAX);
}

fn ask_with(
    client: &Client,
    world: &World,
    seed: u64,
    (queries, at_once): (usize, usize),
    kept: u32,
) {
    let mut random = Random(seed);
    let mut pending: std::collections::VecDeque<(Vec<u8>, u32, Pending)> = Default::default();
    for _ in 0..queries {
        if pending.len() >= at_once {
            let (row, k, pending) = pending.pop_front().unwrap();
            check_with(world, &row, k, &pending.wait().unwrap(), kept);
        }
        let (row, k) = (random.row(), 1 + random.below(10) as u32);
        let asked = client.submit(&row, k, 0, 0);
        pending.push_back((row, k, asked));
    }
    for (row, k, pending) in pending {
        check_with(world, &row, k, &pending.wait().unwrap(), kept);
    }
}

#[test]
fn answers_through_servers_are_those_of_one_process() {
    for tcp in [false, true] {
        let cluster = cluster(options(), if tcp { over_tcp } else { in_process });
        let place = match tcp {
            true => remote(cluster.compute.address()),
            false => Place::Local(cluster.compute.door()),
        };
        let client = client(place);
        let collection = client.collection().unwrap();
        assert_eq!(collection, HighHalf::collection(&*cluster.world));
        ask(&client, &cluster.world, 1, 60, 6);
        thread::scope(|scope| {
            for seed in 2..5 {
                let (client, world) = (&client, &cluster.world);
                scope.spawn(move || ask(client, world, seed, 20, 2));
            }
        });
        assert_eq!(cluster.memory.connections(), 1);
        // A worker becomes free shortly after its last reply.
        until(|| cluster.compute.served().in_flight == 0);
        let served = cluster.compute.served();
        assert_eq!((served.answered, served.waiting), (120, 0));
        assert!(cluster.compute.low().is_some());
    }
}

#[test]
fn what_cannot_be_asked_is_refused_by_name() {
    let cluster = cluster(options(), over_tcp);
    let client = client(remote(cluster.compute.address()));
    client.collection().unwrap();
    match client.search(b"short", 1, 0, 0) {
        Err(Failure::Refused {
            reason: Reason::Invalid,
            text,
            server,
            doubt: Doubt::Nothing,
        }) => {
            assert!(text.contains("5 bytes") && text.contains('8'), "{text}");
            assert_eq!(server, cluster.compute.address().to_string());
        }
        other => panic!("{other:?}"),
    }
    // In a message, a number over the limit would end the connection, so the client reduces it.
    for [k, list, beam] in [[70_000, 0, 0], [1, u32::MAX, 0], [1, 0, 70_000]] {
        match client.search(&[0; DIM], k, list, beam) {
            Err(Failure::Refused {
                reason: Reason::Invalid,
                text,
                ..
            }) => assert!(text.contains("allows at most"), "{text}"),
            other => panic!("{other:?}"),
        }
    }
    let error = |place| match Client::connect(vec![place], ClientOptions::default()) {
        Err(error @ NodeError::Server(_)) => error.to_string(),
        other => panic!("{:?}", other.map(|_| ())),
    };
    let found = error(remote(cluster.memory.address()));
    assert!(
        found.ends_with(
            " is a memory server of DistVS, not a compute server. Check address and port"
        ),
        "{found}"
    );
    let found = error(Place::Local(cluster.storage.door()));
    assert!(
        found.ends_with(" is a storage server, not a compute server. Check address and port"),
        "{found}"
    );
    drop(cluster);
}

/// The mean number of messages in a write from a compute to a memory server, and back.
fn messages_a_write(batch: bool, workers: usize, in_flight: usize) -> (f64, f64) {
    let of = ComputeServerOptions {
        in_flight,
        workers,
        batch,
        ..options()
    };
    let cluster = cluster(of, over_tcp);
    let client = client(remote(cluster.compute.address()));
    client.collection().unwrap();
    let began = Instant::now();
    ask(&client, &cluster.world, 9, 400, 2 * workers * in_flight);
    let took = began.elapsed();
    // The messages that end walks get no reply, so the last may be in flight.
    let traffic = || (cluster.compute.memory_traffic(), cluster.memory.traffic());
    while traffic().0.sent > traffic().1.received {
        assert!(began.elapsed() < PATIENCE);
        thread::sleep(Duration::from_millis(1));
    }
    let (out, back) = traffic();
    assert_eq!(
        (out.sent, out.bytes_sent),
        (back.received, back.bytes_received)
    );
    assert_eq!(
        (back.sent, back.bytes_sent),
        (out.received, out.bytes_received)
    );
    println!("batch {batch}, {workers} workers of {in_flight}: {took:?}, {out:?}, {back:?}");
    (
        out.sent as f64 / out.writes as f64,
        back.sent as f64 / back.writes as f64,
    )
}

#[test]
fn messages_go_together_where_they_are_to() {
    // A write has about five messages, depending on the interleaving of threads.
    let (out, back) = messages_a_write(true, 2, 8);
    assert!(out > 1.2 && back > 1.2, "{out} {back}");
    assert_eq!(messages_a_write(false, 2, 4), (1.0, 1.0));
}

pub fn certificates(folder: &Path) -> (Certificate, Tls) {
    let key = rcgen::generate_simple_self_signed(vec!["127.0.0.1".to_owned()]).unwrap();
    let (certificate, secret) = (folder.join("certificate.pem"), folder.join("key.pem"));
    std::fs::write(&certificate, key.cert.pem()).unwrap();
    std::fs::write(&secret, key.signing_key.serialize_pem()).unwrap();
    (
        Certificate::read(&certificate, &secret).unwrap(),
        Tls::new("127.0.0.1", &certificate).unwrap(),
    )
}

#[test]
fn what_goes_through_ucx_is_not_encrypted_so_no_server_has_both() {
    let folder = tempfile::tempdir().unwrap();
    let options = Options {
        certificate: Some(certificates(folder.path()).0),
        ucx: true,
        ..Options::default()
    };
    assert!(matches!(options.check(), Err(NodeError::UcxWithTls)));
    let walks = MemoryOptions::default();
    let started = MemoryServer::start(world(), walks, true, options);
    assert!(matches!(started.map(|_| ()), Err(NodeError::UcxWithTls)));
}

#[test]
fn ucx_takes_a_secret_of_server_and_client() {
    let options = Options {
        ucx: true,
        ..Options::default()
    };
    assert!(matches!(options.check(), Err(NodeError::UcxWithoutSecret)));
    let walks = MemoryOptions::default();
    let started = MemoryServer::start(world(), walks, true, options.clone());
    match started.map(|_| ()) {
        Err(error @ NodeError::UcxWithoutSecret) => {
            assert!(
                error.to_string().contains("STRATANN_SECRET_FILE"),
                "{error}"
            );
        }
        other => panic!("{other:?}"),
    }
    let files = Running::start(Store::in_memory(1 << 20), options);
    assert!(matches!(
        files.map(|_| ()),
        Err(NodeError::UcxWithoutSecret)
    ));
}

#[test]
fn over_tls_with_a_secret_and_through_rings_answers_are_the_same() {
    let folder = tempfile::tempdir().unwrap();
    let (certificate, tls) = certificates(folder.path());
    let secret = Secret::new(b"a secret of many letters").unwrap();
    let ring = folder.path().join("memory.ring");
    // The message is larger than every buffer between the two.
    let mut world = World::new(77, 300);
    world.padding = 6 << 20;
    let world = Arc::new(world);
    let guarded = Options {
        secret: Some(secret.clone()),
        certificate: Some(certificate),
        ..Options::default()
    };
    let memory = memory(
        &world,
        true,
        Options {
            ring: Some(ring.clone()),
            ..guarded.clone()
        },
    );
    let storage = storage(&world, guarded.clone());
    let at = |address: String, tls: Option<Tls>| {
        Place::Remote(Server::new(&address, Some(secret.clone()), tls).unwrap())
    };
    for through in [
        format!("shm:{}", ring.display()),
        memory.address().to_string(),
    ] {
        let tls = Some(tls.clone());
        let (at_memory, at_storage) = (
            at(through, tls.clone()),
            at(storage.address().to_string(), tls.clone()),
        );
        let own = ComputeServerOptions {
            listen: guarded.clone(),
            connections: 2,
            ..options()
        };
        let compute = ComputeServer::<Low>::start(at_memory, at_storage, own).unwrap();
        let address = compute.address().to_string();
        let client = client(at(address.clone(), tls.clone()));
        client.collection().unwrap();
        ask(&client, &world, 5, 100, 8);
        // Connections to the earlier server may remain, and a new one may not have been needed.
        until(|| memory.connections() == 2);
        let stranger = Server::new(&address, None, tls).unwrap();
        let refused = Client::connect(vec![Place::Remote(stranger)], ClientOptions::default());
        let text = refused.map(|_| ()).unwrap_err().to_string();
        assert!(text.contains("secret"), "{text}");
    }
}

#[test]
fn others_reach_no_role_without_a_secret() {
    let open = Options {
        listen: "0.0.0.0:0".to_owned(),
        ..Options::default()
    };
    let (memory, storage) = (remote("127.0.0.1:1"), remote("127.0.0.1:1"));
    let own = ComputeServerOptions {
        listen: open.clone(),
        ..options()
    };
    let results = [
        MemoryServer::start(world(), MemoryOptions::default(), true, open.clone()).map(|_| ()),
        StorageServer::start(Arc::new(Full(world())), 1, open).map(|_| ()),
        ComputeServer::<Low>::start(memory, storage, own).map(|_| ()),
    ];
    assert!(
        results
            .iter()
            .all(|result| matches!(result, Err(NodeError::Open { .. })))
    );
}

#[test]
fn a_server_that_is_not_there_is_named_when_the_time_is_over() {
    let world = world();
    let storage = storage(&world, Options::default());
    let memory = memory(&world, true, Options::default());
    let (at, behind) = (memory.address().to_string(), storage.address().to_string());
    let compute = ComputeServer::<Low>::start(remote(&at), remote(&behind), options()).unwrap();
    let patient = client(remote(compute.address()));
    patient.collection().unwrap();
    let client = patient.within(Duration::from_millis(400));
    let row = Random(1).row();
    drop(storage);
    let late = |role: &str, address: &str| {
        let began = Instant::now();
        // On a busy machine, the client's deadline may pass before the server's refusal arrives.
        loop {
            match client.search(&row, 3, 0, 0) {
                Err(Failure::Refused {
                    reason: Reason::Deadline,
                    text,
                    ..
                }) => {
                    assert!(
                        text.contains(&format!("the {role} server at {address}")),
                        "{text}"
                    );
                    break;
                }
                Err(Failure::Deadline { waited, .. }) => {
                    assert!(waited < PATIENCE / 2, "{waited:?}");
                }
                other => panic!("{other:?}"),
            }
            assert!(
                began.elapsed() < PATIENCE,
                "the server never reports the reason"
            );
        }
    };
    late("storage", &behind);
    drop(memory);
    late("memory", &at);
    let name = format!("the memory server at {at}");
    until(|| {
        let pending: Vec<Pending> = (0..8).map(|_| client.submit(&row, 3, 0, 0)).collect();
        let told = pending
            .into_iter()
            .map(|pending| pending.wait().unwrap_err().to_string());
        let told: Vec<String> = told.collect();
        told.iter().filter(|text| text.contains(&name)).count() > 4
    });
    let gone = Client::connect(vec![remote(&at)], ClientOptions::default());
    assert!(matches!(gone, Err(NodeError::Server(_))));
}

#[test]
fn a_memory_server_that_is_restarted_under_load_costs_no_answer() {
    let worlds = [world(), Arc::new(World::new(78, 320))];
    let listening = |address: &str| Options {
        listen: address.to_owned(),
        ..Options::default()
    };
    let mut first = Some((
        memory(&worlds[0], true, own_address()),
        storage(&worlds[0], own_address()),
    ));
    let (at, behind) = first
        .as_ref()
        .map(|(memory, storage)| (memory.address().to_string(), storage.address().to_string()))
        .unwrap();
    let compute = ComputeServer::<Low>::start(remote(&at), remote(&behind), options()).unwrap();
    let client = client(remote(compute.address()));
    let over = AtomicBool::new(false);
    let answers = [0; 2].map(AtomicU64::new);
    let load = |seed: u64| {
        let mut random = Random(seed);
        // If this thread fails, the other threads end too.
        let _over = Over(&over);
        while !over.load(Ordering::SeqCst) {
            let row = random.row();
            let found = client.search(&row, 5, 0, 0).unwrap();
            let which = usize::from(found.state == worlds[1].state);
            check(&worlds[which], &row, 5, &found);
            answers[which].fetch_add(1, Ordering::SeqCst);
        }
    };
    let again = |world: &Arc<World>| {
        started(|| {
            let walks = MemoryOptions::default();
            MemoryServer::start(world.clone(), walks, true, listening(&at))
        })
    };
    // Waits for more results, so that each server ends under load.
    let goes_on = |which: usize| {
        let before = answers[which].load(Ordering::SeqCst);
        until(|| answers[which].load(Ordering::SeqCst) > before + 8 || over.load(Ordering::SeqCst));
    };
    thread::scope(|scope| {
        // After a panic here, the drop ends the loads, because the scope waits for them.
        let _over = Over(&over);
        let loads: Vec<_> = (0..4)
            .map(|seed| {
                let load = &load;
                scope.spawn(move || load(seed))
            })
            .collect();
        for _ in 0..3 {
            goes_on(0);
            let (memory, storage) = first.take().unwrap();
            drop(memory);
            first = Some((again(&worlds[0]), storage));
        }
        let (memory, storage) = first.take().unwrap();
        drop((memory, storage));
        let _memory = again(&worlds[1]);
        let full = || Arc::new(Full(worlds[1].clone()));
        let _storage = started(|| StorageServer::start(full(), 64, listening(&behind)));
        goes_on(1);
        over.store(true, Ordering::SeqCst);
        loads.into_iter().for_each(|load| load.join().unwrap());
    });
    println!("{answers:?}");
}

/// The drop tells the threads to end.
pub struct Over<'a>(pub &'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

#[test]
fn who_asks_a_server_that_reads_nothing_has_waited_no_longer_than_was_said() {
    let cluster = cluster(options(), over_tcp);
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap();
    let reads = Arc::new(AtomicBool::new(true));
    let (behind, goes_on) = (cluster.compute.address(), reads.clone());
    let relay = thread::spawn(move || {
        let (mut client, _) = listener.accept().unwrap();
        let mut server = TcpStream::connect(behind).unwrap();
        let (mut to_client, mut from_server) =
            (client.try_clone().unwrap(), server.try_clone().unwrap());
        thread::spawn(move || std::io::copy(&mut from_server, &mut to_client));
        client
            .set_read_timeout(Some(Duration::from_millis(5)))
            .unwrap();
        let mut bytes = [0; 4096];
        while goes_on.load(Ordering::SeqCst) {
            match client.read(&mut bytes) {
                Ok(count) => server.write_all(&bytes[..count]).unwrap(),
                Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock),
            }
        }
        (listener, client, server)
    });
    let client = client(remote(at));
    ask(&client, &cluster.world, 3, 5, 1);
    reads.store(false, Ordering::SeqCst);
    let held = relay.join().unwrap();
    let began = Instant::now();
    let brief = client.within(Duration::from_millis(300));
    // The relay has stopped reading, so the server does not get this row.
    let row = vec![1; 1 << 20];
    let pending: Vec<_> = (0..12).map(|_| brief.submit(&row, 1, 0, 0)).collect();
    for pending in pending {
        assert!(matches!(pending.wait(), Err(Failure::Deadline { .. })));
    }
    assert!(
        began.elapsed() < Duration::from_secs(9),
        "{:?}",
        began.elapsed()
    );
    drop(held);
}

#[test]
fn counting_that_takes_longer_than_any_silence_is_done_once() {
    let mut world = World::new(77, 300);
    (world.popular.steps, world.popular.pause) = (40, Duration::from_millis(25));
    let world = Arc::new(world);
    let memory = memory(&world, true, Options::default());
    let storage = storage(&world, Options::default());
    let poor = || {
        let options = ComputeServerOptions {
            silence: Duration::from_millis(300),
            retry: Duration::from_millis(50),
            low_memory: 900,
            ..options()
        };
        let (at, behind) = over_tcp(&memory, &storage);
        ComputeServer::<Low>::start(at, behind, options).unwrap()
    };
    let servers = [poor(), poor()];
    let clients = servers.each_ref().map(|of| client(remote(of.address())));
    for (seed, client) in clients.iter().enumerate() {
        ask_with(client, &world, seed as u64, (20, 4), 900 / 8);
    }
    assert_eq!(world.popular.counted.load(Ordering::SeqCst), 40);
}

#[test]
fn a_client_asks_the_next_compute_server_where_one_is_gone() {
    let cluster = cluster(options(), over_tcp);
    let (at, behind) = over_tcp(&cluster.memory, &cluster.storage);
    let second = ComputeServer::<Low>::start(at, behind, options()).unwrap();
    let places = vec![remote(cluster.compute.address()), remote(second.address())];
    let client = Client::connect(places, patient()).unwrap();
    client.collection().unwrap();
    ask(&client, &cluster.world, 1, 20, 4);
    let rows: Vec<Vec<u8>> = (0..8).map(|seed| Random(seed).row()).collect();
    let pending: Vec<Pending> = rows.iter().map(|row| client.submit(row, 3, 0, 0)).collect();
    let Cluster {
        world,
        compute,
        memory: _memory,
        storage: _storage,
    } = cluster;
    drop(compute);
    for (row, pending) in rows.iter().zip(pending) {
        check(&world, row, 3, &pending.wait().unwrap());
    }
    ask(&client, &world, 2, 20, 4);
    // A reply is counted after it was sent, possibly after its arrival.
    until(|| second.client_traffic().sent >= 20);
}

#[test]
fn a_query_that_has_a_worker_panic_costs_its_own_answer_and_those_in_flight_beside_it() {
    let cluster = cluster(options(), in_process);
    let place = || vec![Place::Local(cluster.compute.door())];
    let client = Client::connect(place(), patient()).unwrap();
    client.collection().unwrap();
    let other = Client::connect(place(), patient()).unwrap();
    for _ in 0..5 {
        let lost = other.search(POISON, 3, 0, 0);
        let failed = |lost: &Failure| matches!(lost, Failure::Refused { reason, .. } if *reason == Reason::Failed);
        assert!(lost.as_ref().is_err_and(failed), "{lost:?}");
        ask(&client, &cluster.world, 3, 8, 4);
    }
}

#[test]
fn a_client_of_several_servers_does_not_wait_for_one_that_says_nothing() {
    let cluster = cluster(options(), in_process);
    let stalled = Arc::new(Stalled::default());
    let behind = StorageServer::start(stalled, 64, Options::default()).unwrap();
    let (at, behind) = (
        Place::Local(cluster.memory.door()),
        Place::Local(behind.door()),
    );
    let hangs = ComputeServer::<Low>::start(at, behind, options()).unwrap();
    let servers = vec![
        Place::Local(hangs.door()),
        Place::Local(cluster.compute.door()),
    ];
    // Without the silence limit, the client would wait for the first server until its deadline.
    let short = ClientOptions {
        silence: Duration::from_millis(300),
        ..patient()
    };
    let client = Client::connect(servers, short).unwrap();
    let row = Random(4).row();
    let found = client.search(&row, 3, 0, 0).unwrap();
    check(&cluster.world, &row, 3, &found);
    assert!(hangs.client_traffic().received > 0 && cluster.compute.client_traffic().received > 0);
}

#[test]
fn who_sends_what_is_no_frame_or_half_of_one_is_disconnected() {
    let world = world();
    let impatient = Options {
        patience: Duration::from_millis(200),
        ..Options::default()
    };
    let memory = memory(&world, true, impatient);
    let server = Server::new(&memory.address().to_string(), None, None).unwrap();
    let connect = || -> TcpStream {
        match server
            .connect(stratann_node::wire::Protocol::Memory)
            .unwrap()
        {
            stratann_tier::remote::Transport::Plain(socket) => socket,
            _ => panic!("plain TCP"),
        }
    };
    for bytes in [vec![0xFF; 64], vec![0, 0, 0]] {
        let mut socket = connect();
        socket.write_all(&bytes).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut rest = Vec::new();
        let ended = socket.read_to_end(&mut rest);
        let late = |error: &std::io::Error| error.kind() == std::io::ErrorKind::WouldBlock;
        assert!(
            rest.is_empty() && !ended.as_ref().is_err_and(late),
            "{ended:?}"
        );
    }
    // The server keeps a silent connection for twice the time that half a frame may need.
    let mut idle = connect();
    thread::sleep(Duration::from_millis(400));
    let mut bytes = Vec::new();
    stratann_node::wire::Message::Describe { for_changes: false }
        .append(Default::default(), &mut bytes);
    idle.write_all(&bytes).unwrap();
    let mut header = [0; 32];
    idle.read_exact(&mut header).unwrap();
}

#[derive(Default)]
struct Stalled {
    jobs: Mutex<Vec<(Wanted, Done)>>,
}

impl Ranker for Stalled {
    fn collection(&self) -> Collection {
        HighHalf::collection(&*world())
    }

    fn collection_of(&self, state: u64) -> Option<Collection> {
        Some(self.collection()).filter(|own| own.state == state)
    }

    fn change(&self, _: (&[u64], &[u8]), _: &[u64]) -> Result<Changed, NotChanged> {
        Err(NotChanged::Invalid("nothing changes here".to_owned()))
    }

    fn rank(
        &self,
        _: (u64, &[u8]),
        _: &[u32],
        _: usize,
        wanted: Wanted,
        done: Done,
    ) -> Result<(), HalfError> {
        self.jobs.lock().unwrap().push((wanted, done));
        Ok(())
    }
}

fn plain(address: impl ToString, protocol: Protocol) -> TcpStream {
    let server = Server::new(&address.to_string(), None, None).unwrap();
    match server.connect(protocol).unwrap() {
        Transport::Plain(socket) => socket,
        _ => panic!("plain TCP"),
    }
}

fn one_frame(from: &mut impl Read) -> Vec<u8> {
    let mut bytes = vec![0; 32];
    from.read_exact(&mut bytes).unwrap();
    let len = u32::from_le_bytes(bytes[..4].try_into().unwrap());
    bytes.resize(32 + len as usize, 0);
    from.read_exact(&mut bytes[32..]).unwrap();
    bytes
}

fn refusal(socket: &mut TcpStream) -> Option<Reason> {
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    let bytes = one_frame(socket);
    match Message::decode(&Frame::decode(&bytes).unwrap().unwrap()).unwrap() {
        Message::Refused { reason, .. } => Some(reason),
        _ => None,
    }
}

pub fn until(what: impl Fn() -> bool) {
    let began = Instant::now();
    while !what() {
        assert!(
            began.elapsed() < PATIENCE,
            "the awaited event did not occur in time"
        );
        thread::sleep(Duration::from_millis(1));
    }
}

const BRIEF: Duration = Duration::from_millis(1);

#[test]
fn no_more_is_ranked_than_may_be_though_deadlines_pass_and_connections_end() {
    let stalled = Arc::new(Stalled::default());
    let storage = StorageServer::start(stalled.clone(), 3, Options::default()).unwrap();
    let ask = |socket: &mut TcpStream, id| {
        let (mut bytes, state) = (Vec::new(), world().state);
        let message = Message::Rank {
            k: 1,
            row: &[0; DIM],
            nodes: Nodes(&[1]),
        };
        message.append(Head::until(id, state, BRIEF), &mut bytes);
        socket.write_all(&bytes).unwrap();
    };
    let jobs = || stalled.jobs.lock().unwrap().len();
    let mut first = plain(storage.address(), Protocol::Storage);
    (0..3).for_each(|id| ask(&mut first, id));
    until(|| jobs() == 3);
    // The rankings have passed their deadlines, but still have their slots.
    thread::sleep(2 * BRIEF);
    ask(&mut first, 9);
    assert_eq!(refusal(&mut first), Some(Reason::Busy));
    drop(first);
    let mut second = plain(storage.address(), Protocol::Storage);
    ask(&mut second, 10);
    assert_eq!(refusal(&mut second), Some(Reason::Busy));
    let held = std::mem::take(&mut *stalled.jobs.lock().unwrap());
    assert!(held.iter().all(|(wanted, _)| !wanted()));
    let mut held = held.into_iter().map(|(_, done)| done);
    held.next().unwrap()(Err(HalfError("a disk".to_owned())));
    drop(held);
    (11..14).for_each(|id| ask(&mut second, id));
    until(|| jobs() == 3);
}

struct Large;

impl Ranker for Large {
    fn collection(&self) -> Collection {
        HighHalf::collection(&*world())
    }

    fn collection_of(&self, state: u64) -> Option<Collection> {
        Some(self.collection()).filter(|own| own.state == state)
    }

    fn change(&self, _: (&[u64], &[u8]), _: &[u64]) -> Result<Changed, NotChanged> {
        Err(NotChanged::Invalid("nothing changes here".to_owned()))
    }

    fn rank(
        &self,
        _: (u64, &[u8]),
        _: &[u32],
        k: usize,
        _: Wanted,
        done: Done,
    ) -> Result<(), HalfError> {
        done(Ok(Ranked {
            ids: (0..k as u64).collect(),
            distances: (0..k).map(|at| at as f32).collect(),
            ..Ranked::default()
        }));
        Ok(())
    }
}

#[test]
fn over_tls_who_is_slow_has_all_and_stops_nobody() {
    const K: u32 = 60_000;
    const ANSWERS: u64 = 10;
    let folder = tempfile::tempdir().unwrap();
    let (certificate, tls) = certificates(folder.path());
    let guarded = Options {
        certificate: Some(certificate),
        ..Options::default()
    };
    let storage = StorageServer::start(Arc::new(Large), 1, guarded).unwrap();
    let server = Server::new(&storage.address().to_string(), None, Some(tls)).unwrap();
    let mut transport = server.connect(Protocol::Storage).unwrap();
    let Transport::Tls(stream) = &mut transport else {
        panic!("TLS");
    };
    for id in 0..ANSWERS {
        let mut bytes = Vec::new();
        let message = Message::Rank {
            k: K,
            row: &[0; DIM],
            nodes: Nodes(&[1]),
        };
        message.append(Head::until(id, world().state, PATIENCE), &mut bytes);
        stream.write_all(&bytes).unwrap();
    }
    stream.flush().unwrap();
    // The thread that reads the connection writes all replies, so it must not wait for the peer.
    until(|| storage.traffic().received == ANSWERS);
    thread::sleep(Duration::from_millis(100));
    for id in 0..ANSWERS {
        let bytes = one_frame(stream);
        let frame = Frame::decode(&bytes).unwrap().unwrap();
        assert_eq!(frame.head.id, id);
        match Message::decode(&frame).unwrap() {
            Message::Ranked { answers, .. } => assert!(answers.ids().eq(0..u64::from(K))),
            other => panic!("{other:?}"),
        }
    }
}
