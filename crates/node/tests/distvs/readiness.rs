//! The condition that a compute server reports, and the reaction of clients.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use stratann_node::role::{Failure, MemoryOptions};
use stratann_node::serve::{
    Client, ClientOptions, ComputeServer, Encryption, Http, MemoryServer, Newest, Place, Readiness,
    Report, StorageServer,
};
use stratann_node::{NodeError, Options};

use crate::halves::{Full, Low, Random, World};
use crate::servers::{
    PATIENCE, certificates, check, options, own_address, patient, remote, started, until as wait,
    world,
};

fn memory(world: Arc<World>) -> MemoryServer {
    MemoryServer::start(world, MemoryOptions::default(), true, own_address()).unwrap()
}

fn storage(world: Arc<World>) -> StorageServer {
    StorageServer::start(Arc::new(Full(world)), 64, own_address()).unwrap()
}

fn again<S>(address: &str, start: impl Fn(Options) -> Result<S, NodeError>) -> S {
    started(|| {
        let listen = address.to_owned();
        start(Options {
            listen,
            ..Options::default()
        })
    })
}

fn found_by_a_new_client(server: &ComputeServer<Low>, world: &World) {
    let client = Client::connect(vec![remote(server.address())], patient()).unwrap();
    assert_eq!(client.collection().unwrap().state, world.state);
    let row = Random(1).row();
    check(world, &row, 3, &client.search(&row, 3, 0, 0).unwrap());
}

fn compute(memory: Place, storage: Place) -> ComputeServer<Low> {
    ComputeServer::<Low>::start(memory, storage, options()).unwrap()
}

fn until(server: &ComputeServer<Low>, expected: impl Fn(&Readiness) -> bool) -> Readiness {
    let began = Instant::now();
    loop {
        let readiness = server.readiness();
        if expected(&readiness) {
            return readiness;
        }
        assert!(began.elapsed() < PATIENCE, "{readiness:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn trouble(server: &ComputeServer<Low>, what: &str) -> Readiness {
    let told = |readiness: &Readiness| {
        let trouble = readiness.trouble.as_ref();
        trouble.is_some_and(|trouble| trouble.contains(what))
    };
    until(server, told)
}

#[test]
fn a_compute_server_says_who_is_the_wrong_one_or_gone() {
    let (memory, storage) = (memory(world()), storage(world()));
    let places = || (remote(memory.address()), remote(storage.address()));
    let (at, behind) = places();
    let crossed = compute(behind, at);
    trouble(&crossed, "is a storage server, not a memory server");
    let other = "is a memory server of DistVS, not a storage server";
    let said = until(&crossed, |said| {
        let line = said.lines.get(1);
        line.is_some_and(|line| line.contains(other))
    });
    assert_eq!(said.lines.len(), 3, "{said:?}");
    let (at, behind) = places();
    let right = compute(at, behind);
    let well = until(&right, |readiness| readiness.trouble.is_none());
    let state = format!("state {:016x}", world().state);
    assert!(
        well.lines.iter().all(|line| line.contains(&state)),
        "{well:?}"
    );
    assert_eq!(right.connected(), [1, 1]);
    let name = format!("the storage server at {}", storage.address());
    drop(storage);
    let gone = trouble(&right, &name);
    assert!(gone.lines[0].contains("connected for"), "{gone:?}");
    drop(memory);
    trouble(&right, "the memory server at");
}

#[test]
fn a_compute_server_says_that_its_servers_have_different_indexes() {
    let other = Arc::new(World::new(78, 300));
    let states = [world().state, other.state];
    let (memory, storage) = (memory(world()), storage(other));
    let server = compute(remote(memory.address()), remote(storage.address()));
    let said = trouble(&server, "has another index than the memory server at");
    let [one, another] = states.map(|state| format!("{state:016x}"));
    let both = format!("{another} at the storage server, and {one} at the memory server");
    assert!(said.trouble.unwrap().contains(&both));
    // The third state is reported for the memory server, not for the low codes.
    let address = memory.address().to_string();
    drop(memory);
    let third = Arc::new(World::new(80, 300));
    let now = format!("and {:016x} at the memory server", third.state);
    let start =
        |options| MemoryServer::start(third.clone(), MemoryOptions::default(), true, options);
    let _memory = again(&address, start);
    trouble(&server, &now);
}

#[test]
fn servers_that_come_back_in_another_state_while_nobody_asks_serve_the_next_client() {
    let (first, then) = (memory(world()), storage(world()));
    let (at, behind) = (first.address().to_string(), then.address().to_string());
    let server = compute(remote(&at), remote(&behind));
    found_by_a_new_client(&server, &world());
    drop((first, then));
    let other = Arc::new(World::new(78, 320));
    let _memory = again(&at, |options| {
        MemoryServer::start(other.clone(), MemoryOptions::default(), true, options)
    });
    let _storage = again(&behind, |options| {
        StorageServer::start(Arc::new(Full(other.clone())), 64, options)
    });
    found_by_a_new_client(&server, &other);
}

#[test]
fn a_memory_server_that_went_on_while_nobody_asked_serves_the_next_client() {
    let newest = Newest::new(world());
    let (walks, own) = (MemoryOptions::default(), own_address());
    let memory = MemoryServer::following(newest.clone(), walks, true, own).unwrap();
    let then = storage(world());
    let behind = then.address().to_string();
    let server = compute(remote(memory.address()), remote(&behind));
    found_by_a_new_client(&server, &world());
    // After two merges, the memory server no longer has the first state, but the connection stays.
    let [second, third] = [80, 82].map(|seed| Arc::new(World::new(seed, 320)));
    newest.put(second);
    newest.put(third.clone());
    drop(then);
    let _storage = again(&behind, |options| {
        StorageServer::start(Arc::new(Full(third.clone())), 64, options)
    });
    found_by_a_new_client(&server, &third);
    assert_eq!(server.connected(), [1, 1]);
}

fn silent() -> (TcpListener, Place) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let place = remote(listener.local_addr().unwrap());
    (listener, place)
}

#[test]
fn a_client_goes_on_to_the_next_server_where_one_waits() {
    let (memory, storage) = (memory(world()), storage(world()));
    let places = || (remote(memory.address()), remote(storage.address()));
    let nowhere = || remote("127.0.0.1:1");
    let waits = compute(nowhere(), nowhere());
    let half = compute(places().0, nowhere());
    wait(|| half.low().is_some());
    let well = compute(places().0, places().1);
    let at = |server: &ComputeServer<Low>| remote(server.address());
    // If a server reports that it waits for another server, the client asks the next server long
    // before the deadline.
    let patient = ClientOptions {
        silence: 2 * PATIENCE,
        retry: Duration::from_millis(100),
        ..patient()
    };
    let servers = vec![at(&waits), at(&half), at(&well)];
    let client = Client::connect(servers, patient).unwrap();
    client.collection().unwrap();
    let row = Random(1).row();
    check(&world(), &row, 3, &client.search(&row, 3, 0, 0).unwrap());
    let servers = vec![at(&well), at(&waits)];
    let client = Client::connect(servers, patient).unwrap();
    check(&world(), &row, 3, &client.search(&row, 3, 0, 0).unwrap());
    drop(storage);
    let before = waits.client_traffic().received;
    let moves = || waits.client_traffic().received == before;
    let left = client.submit(&row, 3, 0, 0).wait_while(moves);
    assert!(left.is_none(), "{left:?}");
}

#[test]
fn where_all_servers_wait_a_query_fails_in_time_and_says_why() {
    let nowhere = || remote("127.0.0.1:1");
    let [one, other] = [(); 2].map(|()| compute(nowhere(), nowhere()));
    let servers = vec![remote(one.address()), remote(other.address())];
    let client = Client::connect(servers, patient()).unwrap();
    let hurried = client.within(Duration::from_millis(500));
    let why = "the memory server at 127.0.0.1:1 cannot be reached";
    // On a busy machine a request may time out before a server could answer.
    wait(|| {
        let failure = hurried.collection().unwrap_err();
        let text = failure.to_string();
        let Failure::Deadline { waited, .. } = failure else {
            panic!("{text}");
        };
        assert!(waited >= Duration::from_millis(500) && waited < PATIENCE / 2);
        assert!(text.contains("within "), "{text}");
        text.contains(why)
    });
}

#[test]
fn connecting_takes_no_longer_than_a_query_may_and_is_given_up_at_once() {
    let (_listener, nobody) = silent();
    let hurried = ClientOptions {
        patience: Duration::from_millis(200),
        ..ClientOptions::default()
    };
    let refused = Client::connect(vec![nobody.clone(), nobody.clone()], hurried);
    let error = refused.map(|_| ()).unwrap_err();
    assert!(matches!(error, NodeError::Servers(_)), "{error}");
    assert!(
        error.to_string().contains("no greeting for 100 ms"),
        "{error}"
    );
    let server = compute(nobody.clone(), nobody);
    std::thread::sleep(Duration::from_millis(50));
    let began = Instant::now();
    drop(server);
    assert!(began.elapsed() < Duration::from_secs(8));
}

#[test]
fn a_place_is_named_as_users_write_it() {
    let folder = tempfile::tempdir().unwrap();
    certificates(folder.path());
    let authority = folder.path().join("certificate.pem");
    for name in [
        "127.0.0.1:7710",
        "[::1]:7710",
        "localhost:7710",
        "shm:/path",
    ] {
        for encryption in [Encryption::None, Encryption::By(&authority)] {
            let place = Place::of(name, None, encryption).unwrap();
            assert_eq!(place.to_string(), name);
        }
    }
    for name in ["", "127.0.0.1", "[::1]", "localhost:99999", "localhost:x"] {
        let error = Place::of(name, None, Encryption::None).map(|_| ());
        let text = error.unwrap_err().to_string();
        assert!(text.contains("HOST:PORT"), "{text}");
    }
}

#[test]
fn who_comes_to_the_wrong_port_is_told_what_it_is() {
    let server = memory(world());
    for request in [
        "GET / HTTP/1.0\r\n\r\n".to_owned(),
        format!("GET /metrics HTTP/1.1\r\nHost: {}\r\n\r\n", "a".repeat(200)),
    ] {
        let mut socket = TcpStream::connect(server.address()).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        socket.write_all(request.as_bytes()).unwrap();
        let mut told = Vec::new();
        // The server may close the connection before it has read a long request.
        let _ = socket.read_to_end(&mut told);
        let told = String::from_utf8_lossy(&told);
        let right = "this is the port of a memory server of DistVS of StratANN";
        assert!(told.contains(right) && told.contains("--http"), "{told}");
    }
    let http = Http::start("127.0.0.1:0", |_| Report::default()).unwrap();
    let hurried = ClientOptions {
        patience: Duration::from_millis(300),
        ..ClientOptions::default()
    };
    let refused = Client::connect(vec![remote(http.address())], hurried);
    let text = refused.map(|_| ()).unwrap_err().to_string();
    assert!(
        text.contains("the port of its health and metrics"),
        "{text}"
    );
}
