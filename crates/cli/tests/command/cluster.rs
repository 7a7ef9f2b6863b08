//! The servers of DistVS, as a user starts them: all in one process, and one by one.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, ChildStdout, Stdio};
use std::time::{Duration, Instant};

use crate::support::{Place, keys};

/// The limit is long, because the machine may be busy.
const PATIENCE: Duration = Duration::from_secs(60);

/// The drop kills the server.
struct Server {
    child: Child,
    out: BufReader<ChildStdout>,
}

impl Server {
    fn start(place: &Place, words: &[&str]) -> Server {
        let mut command = place.command(words);
        command.stdout(Stdio::piped());
        command.stderr(File::create(place.path(LOG)).unwrap());
        for name in ["STRATANN_SECRET_FILE", "STRATANN_SECRET"] {
            command.env_remove(name);
        }
        let mut child = command.spawn().unwrap();
        let out = BufReader::new(child.stdout.take().unwrap());
        Server { child, out }
    }

    fn address(&mut self, what: &str) -> String {
        loop {
            let mut line = String::new();
            assert!(self.out.read_line(&mut line).unwrap() > 0, "no {what}");
            if let Some(at) = line.find(what) {
                let rest = line[at + what.len()..].trim();
                let end = rest.find([',', ' ']).unwrap_or(rest.len());
                return rest[..end].to_owned();
            }
        }
    }

    /// The signal is SIGTERM, because processes that a shell starts in the background ignore
    /// Ctrl-C.
    fn stop(&mut self) -> Option<i32> {
        let pid = self.child.id().to_string();
        let asked = std::process::Command::new("kill")
            .args(["-TERM", &pid])
            .status();
        assert!(asked.unwrap().success());
        self.child.wait().unwrap().code()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn get(address: &str, path: &str) -> String {
    let mut socket = TcpStream::connect(address).unwrap();
    write!(
        socket,
        "GET {path} HTTP/1.1\r\nHost: here\r\nConnection: close\r\n\r\n"
    )
    .unwrap();
    let mut answer = String::new();
    socket.read_to_string(&mut answer).unwrap();
    answer
}

/// Waits until the answer of `/health` contains all of `words`.
fn health(address: &str, words: &[&str]) -> String {
    let began = Instant::now();
    loop {
        let said = get(address, "/health");
        if words.iter().all(|word| said.contains(word)) {
            return said;
        }
        assert!(began.elapsed() < PATIENCE, "{said}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

const LOG: &str = "log";

fn built() -> Place {
    let place = Place::with_photos();
    let words = [
        "build",
        "photos.u8bin",
        "a.idx",
        "--preset",
        "distvs",
        "--degree",
        "24",
        "--threads",
        "2",
    ];
    place.run(&words).done();
    place
}

#[test]
fn one_command_starts_all_and_another_searches() {
    let place = built();
    place.write(
        "options.toml",
        b"list = 50\nhttp = \"127.0.0.1:0\"\nthreads = 9999999\nbeam = 6\n",
    );
    let mut up = Server::start(
        &place,
        &[
            "cluster",
            "up",
            "a.idx",
            "--listen",
            "127.0.0.1:0",
            "--servers",
            "2",
            "--threads",
            "1",
            "-W",
            "4",
            "--config",
            "options.toml",
        ],
    );
    let listens = "compute server listening on ";
    let servers = [up.address(listens), up.address(listens)];
    let http = up.address("health and metrics at http://");
    let alone = place.run(&[
        "search",
        "a.idx",
        "asked.u8bin",
        "--truth",
        "truth.bin",
        "--list",
        "50",
        "--json",
    ]);
    let alone = &alone.done().json_lines()[0];
    for server in &servers {
        let words = [
            "cluster",
            "search",
            server,
            "asked.u8bin",
            "--truth",
            "truth.bin",
            "--json",
            "--deadline",
            "60",
        ];
        let found = place.run(&words).done();
        let found = &found.json_lines()[0];
        assert_eq!(
            keys(found),
            [
                "in_flight",
                "k",
                "latency_us",
                "list",
                "list_asked",
                "per_query",
                "qps",
                "recall"
            ]
        );
        assert_eq!(found["list"], 50);
        assert!(found["list_asked"].is_null());
        assert_eq!(found["recall"], alone["recall"]);
        assert_eq!(found["per_query"]["full"], 25.0);
        assert!(found["per_query"]["wire"].as_f64().unwrap() > 0.0);
    }
    let out = |words: &[&str], name: &str| {
        let more = ["asked.u8bin", "-k", "7", "--list", "40", "--out", name];
        place.run(&[words, &more[..]].concat()).done();
        std::fs::read(place.path(name)).unwrap()
    };
    let through = out(&["cluster", "search", &servers[0]], "through.bin");
    assert!(!through.is_empty() && through == out(&["search", "a.idx"], "alone.bin"));
    let many = ["cluster", "search", &servers[0], "asked.u8bin", "-k", "60"];
    let table = place.run(&many).done().stdout;
    assert!(
        table.contains("the list size is 60: the default list size of the compute server"),
        "{table}"
    );
    let both = format!("127.0.0.1:1,{}", servers[0]);
    let words = ["cluster", "search", &both, "asked.u8bin", "--list", "20,40"];
    let table = place.run(&words).done();
    assert_eq!(table.stdout.lines().count(), 4, "{}", table.stdout);
    let well = health(&http, &["HTTP/1.1 200", "well"]);
    assert_eq!(
        well.matches("the memory server in this process: connected")
            .count(),
        2,
        "{well}"
    );
    let metrics = get(&http, "/metrics");
    let [first, second] = &servers;
    for line in [
        format!("stratann_queries_answered_total{{server=\"{first}\"}} "),
        format!("stratann_queries_answered_total{{server=\"{second}\"}} "),
        "stratann_memory_bytes{server=\"memory\"} ".to_owned(),
        "stratann_messages_sent_total{server=\"storage\",peer=\"compute\"} ".to_owned(),
    ] {
        assert_eq!(metrics.matches(&line).count(), 1, "{line}: {metrics}");
    }
    for words in [
        ["memory-server", "none.idx", "--listen", first],
        ["storage-server", "none.idx", "--listen", first],
        ["cluster", "up", "none.idx", &format!("--http={http}")],
    ] {
        let told = [
            "cannot listen on",
            "another program or server listens there",
        ];
        place.run(&words).refused(1, &told);
    }
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let at = free.local_addr().unwrap().to_string();
    drop(free);
    let (listen, http) = (format!("--listen={at}"), format!("--http={at}"));
    for words in [
        &["memory-server", "none.idx"][..],
        &["storage-server", "none.idx"],
        &["cluster", "up", "none.idx"],
    ] {
        let told = [&at[..], "health and metrics", "Name another port"];
        let both = [&listen[..], &http];
        place.run(&[words, &both].concat()).refused(2, &told);
    }
    assert_eq!(up.stop(), Some(0));
}

#[test]
fn servers_are_started_one_by_one_and_one_may_be_restarted() {
    let place = built();
    let any = ["--listen", "127.0.0.1:0"];
    let start = |words: &[&str]| Server::start(&place, &[words, &any[..]].concat());
    let mut memory = start(&["memory-server", "a.idx"]);
    let at_memory = memory.address("memory server listening on ");
    let mut storage = start(&["storage-server", "a.idx", "--threads", "1"]);
    let at_storage = storage.address("storage server listening on ");
    let mut compute = start(&[
        "compute-server",
        "--memory",
        &at_memory,
        "--storage",
        &at_storage,
    ]);
    let mut beside = start(&["compute-server", "--memory", &at_memory, "--index", "a.idx"]);
    let listens = "compute server listening on ";
    let servers = [compute.address(listens), beside.address(listens)];
    let search = |server: &str| {
        let words = [
            "cluster",
            "search",
            server,
            "asked.u8bin",
            "--truth",
            "truth.bin",
            "--json",
            "--deadline",
            "60",
        ];
        let found = place.run(&words).done().json_lines()[0].clone();
        assert!(found["recall"].as_f64().unwrap() > 0.95, "{found}");
    };
    servers.iter().for_each(|server| search(server));
    memory.child.kill().unwrap();
    memory.child.wait().unwrap();
    let words = [
        "cluster",
        "search",
        &servers[0],
        "asked.u8bin",
        "--deadline",
        "2",
    ];
    // A busy compute server may not name the missing server in time.
    let refused = place.run(&words).refused(1, &[]).stderr;
    let is_told = [
        "memory server",
        "the request was sent, and no answer arrived",
    ]
    .iter()
    .any(|text| refused.contains(text));
    assert!(is_told, "{refused}");
    let again = Server::start(&place, &["memory-server", "a.idx", "--listen", &at_memory]);
    servers.iter().for_each(|server| search(server));
    // The servers restart with another checkpoint while no query runs.
    drop((again, storage));
    place.write("new", &lines(5000..5050));
    let words = ["insert", "a.idx", "asked.u8bin", "--ids", "new"];
    place.run(&words).done();
    place.run(&["compact", "a.idx"]).done();
    let words = |server, at| [server, "a.idx", "--listen", at];
    let _again = Server::start(&place, &words("memory-server", &at_memory));
    let _storage = Server::start(&place, &words("storage-server", &at_storage));
    let all: Vec<_> = (5000..5050).map(|id| (id, 0.0)).collect();
    assert_eq!(nearest(&place, &servers[0]), all);
}

#[test]
fn a_compute_server_says_who_is_the_wrong_one_or_gone() {
    let place = built();
    let any = ["--listen", "127.0.0.1:0"];
    let start = |words: &[&str]| Server::start(&place, &[words, &any[..]].concat());
    let mut memory = start(&["memory-server", "a.idx"]);
    let at_memory = memory.address("memory server listening on ");
    let mut storage = start(&["storage-server", "a.idx"]);
    let at_storage = storage.address("storage server listening on ");
    let compute = |memory: &str, storage: &str| {
        let http = ["--http", "127.0.0.1:0"];
        let words = ["compute-server", "--memory", memory, "--storage", storage];
        let mut server = start(&[&words[..], &http[..]].concat());
        let at = server.address("compute server listening on ");
        let http = server.address("health and metrics at http://");
        (server, at, http)
    };
    let wrong = format!("{at_storage} is a storage server, not a memory server");
    let other = format!("{at_memory} is a memory server of DistVS, not a storage server");
    let (_crossed, at_crossed, http) = compute(&at_storage, &at_memory);
    let said = health(&http, &["HTTP/1.1 503", &wrong, &other]);
    assert!(said.contains("Check address and port"), "{said}");
    // The compute server tries again, and logs the error once.
    std::thread::sleep(Duration::from_millis(300));
    let log = std::fs::read_to_string(place.path(LOG)).unwrap();
    assert_eq!(log.matches(&wrong).count(), 1, "{log}");
    // A client gets the error within its deadline, or asks another server.
    let ask = |servers: &str, deadline: &str| {
        place.run(&[
            "cluster",
            "search",
            servers,
            "asked.u8bin",
            "--deadline",
            deadline,
        ])
    };
    ask(&at_crossed, "2").refused(1, &["within 2", &wrong]);
    let (_right, at_right, http) = compute(&at_memory, &at_storage);
    ask(&format!("{at_crossed},{at_right}"), "60").done();
    health(&http, &["HTTP/1.1 200"]);
    storage.child.kill().unwrap();
    let gone = format!("the storage server at {at_storage}");
    health(&http, &["HTTP/1.1 503", &gone]);
    let stopped = std::process::Command::new("kill")
        .args(["-STOP", &memory.child.id().to_string()])
        .status();
    assert!(stopped.unwrap().success());
    let silent = format!("the memory server at {at_memory} has been connected for");
    health(
        &http,
        &["HTTP/1.1 503", &silent, "and has not answered for"],
    );
    health(&http, &[&silent]);
    let log = || std::fs::read_to_string(place.path(LOG)).unwrap();
    let told = log();
    let warned = |line: &&str| line.contains("Z warning: ") && line.contains(&silent);
    assert_eq!(told.lines().filter(warned).count(), 1, "{told}");
    let stirred = std::process::Command::new("kill")
        .args(["-CONT", &memory.child.id().to_string()])
        .status();
    assert!(stirred.unwrap().success());
    let over = format!("warning: the memory server at {at_memory} is connected and answers");
    let began = Instant::now();
    while !log().contains(&over) {
        health(&http, &["HTTP"]);
        assert!(began.elapsed() < PATIENCE, "{}", log());
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_server_logs_json_where_that_is_wanted() {
    let place = built();
    let words = ["cluster", "up", "a.idx", "--listen", "127.0.0.1:0"];
    let mut up = Server::start(&place, &[&words[..], &["--log-json"]].concat());
    up.address("compute server listening on ");
    assert_eq!(up.stop(), Some(0));
    let log = std::fs::read_to_string(place.path(LOG)).unwrap();
    let mut events = log.lines().map(|line| {
        let event: serde_json::Value = serde_json::from_str(line).unwrap();
        assert_eq!(keys(&event), ["level", "message", "target", "time"]);
        event
    });
    let stopping = |event: serde_json::Value| event["message"] == "stopping";
    assert!(events.any(stopping), "{log}");
}

#[test]
fn a_compute_server_without_room_for_a_low_code_says_so() {
    let place = built();
    let any = ["--listen", "127.0.0.1:0", "--http", "127.0.0.1:0"];
    let start = |room: &str| {
        let words = ["cluster", "up", "a.idx", "--low-memory", room];
        let mut up = Server::start(&place, &[&words[..], &any].concat());
        let at = up.address("compute server listening on ");
        let http = up.address("health and metrics at http://");
        assert_eq!(nearest(&place, &at).len(), 50);
        let log = || std::fs::read_to_string(place.path(LOG)).unwrap();
        (http, log().matches("no low codes fit into").count(), up)
    };
    let (http, told, _up) = start("64");
    assert_eq!(told, 1);
    health(&http, &["of 0 of 1000 nodes, 0 bytes"]);
    let (http, told, _up) = start("8192");
    assert_eq!(told, 0);
    let said = health(&http, &["the memory server computes with the other codes"]);
    assert!(!said.contains("of 0 of"), "{said}");
    let (http, told, _up) = start("1MiB");
    assert_eq!(told, 0);
    health(&http, &["of all 1000 nodes, 16000 bytes"]);
}

/// Servers read the log at their start.
#[test]
fn servers_of_an_index_that_was_changed_answer_with_what_was_changed() {
    let place = built();
    place.write("new", &lines(5000..5050));
    let words = ["insert", "a.idx", "asked.u8bin", "--ids", "new"];
    let inserted = place.run(&words).done();
    let said = "until the storage server is restarted";
    assert!(inserted.stdout.contains(said), "{}", inserted.stdout);
    let any = ["--listen", "127.0.0.1:0", "--http", "127.0.0.1:0"];
    let mut up = Server::start(&place, &[&["cluster", "up", "a.idx"], &any[..]].concat());
    let at = up.address("compute server listening on ");
    let http = up.address("health and metrics at http://");
    let all: Vec<_> = (5000..5050).map(|id| (id, 0.0)).collect();
    assert_eq!(nearest(&place, &at), all);
    let merged = place.run(&["compact", "a.idx"]).done();
    assert!(!merged.stdout.contains(said), "{}", merged.stdout);
    let said = "search the old checkpoint. Restart all servers";
    assert!(merged.stdout.contains(said), "{}", merged.stdout);
    health(
        &http,
        &[
            "HTTP/1.1 200",
            "storage: a.idx was merged",
            "restart this server",
        ],
    );
    assert_eq!(nearest(&place, &at), all);
}

#[test]
fn what_cannot_be_is_refused() {
    let place = Place::with_index();
    let index = "index".to_owned();
    for server in ["memory-server", "storage-server"] {
        let words = [server, &index, "--listen", "127.0.0.1:0"];
        place.run(&words).refused(2, &["distvs"]);
    }
    place
        .run(&["cluster", "up", &index, "--listen", "127.0.0.1:0"])
        .refused(
            2,
            &["stratann export index", "stratann build", "--preset distvs"],
        );
    place.run(&["memory-server"]).refused(2, &["--bytes"]);
    place
        .run(&["memory-server", &index, "--bytes", "1MB"])
        .refused(2, &["--bytes"]);
    place
        .run(&["compute-server", "--memory", "127.0.0.1:1"])
        .refused(2, &["--storage"]);
    let none = [
        "cluster",
        "search",
        "127.0.0.1:1",
        "base.u8bin",
        "--deadline",
        "0.3",
    ];
    place.run(&none).refused(1, &["127.0.0.1:1"]);
    let none = [
        "cluster",
        "search",
        "127.0.0.1:1",
        "base.u8bin",
        "--deadline",
        "-1",
    ];
    place
        .run(&none)
        .refused(2, &["'-1' is not a time. Give seconds above 0"]);
    if !cfg!(feature = "ucx") {
        for words in [
            &["memory-server", &index, "--ucx", "--listen", "127.0.0.1:0"][..],
            &[
                "compute-server",
                "--memory",
                "ucx:127.0.0.1:1",
                "--index",
                &index,
            ],
            &["cluster", "search", "ucx:127.0.0.1:1", "base.u8bin"],
        ] {
            place
                .run(words)
                .refused(1, &["without UCX", "--features ucx", "leave out `ucx:`"]);
        }
    }
    for typed in ["UCX:127.0.0.1:1", "shm:ucx:127.0.0.1:1"] {
        let told = [typed, "Did you mean ucx:127.0.0.1:1?"];
        let search = ["cluster", "search", typed, "base.u8bin"];
        place.run(&search).refused(2, &told);
        let compute = ["compute-server", "--memory", typed, "--index", &index];
        place.run(&compute).refused(2, &told);
    }
    place
        .run(&["memory-server", "--follow"])
        .refused(2, &["INDEX"]);
    place.write("bad.toml", b"listen = [1]");
    let words = ["storage-server", &index, "--config", "bad.toml"];
    place.run(&words).refused(2, &["bad.toml", "listen"]);
    place.write("typo.toml", b"listn = \"127.0.0.1:0\"");
    let words = ["storage-server", &index, "--config", "typo.toml"];
    let told = ["--listn", "--listen", "`listn` in typo.toml, line 1"];
    place.run(&words).refused(2, &told);
    for (text, told) in [
        ("\nthreads = 0\n", "`threads` in bad.toml, line 2"),
        ("\n\nhttp = true\n", "bad.toml, line 3: http"),
        (
            "threads = 1\nlisten = \"nowhere\"\n",
            "`listen` in bad.toml, line 2",
        ),
    ] {
        place.write("bad.toml", text.as_bytes());
        let words = ["storage-server", &index, "--config", "bad.toml"];
        place.run(&words).refused(2, &[told]);
    }
    for (words, told) in [
        (&["cluster", "up", "index", "--servers", "100000"][..], "64"),
        (
            &[
                "cluster",
                "up",
                "index",
                "--listen",
                "127.0.0.1:65535",
                "--servers",
                "2",
            ],
            "fewer ports are left from 65535 on",
        ),
        (
            &["cluster", "up", "index", "--listen", "7710"],
            "[::1]:7710",
        ),
        (
            &["cluster", "search", "127.0.0.1:1", "base.u8bin", "-l", "5"],
            "smaller than k = 10",
        ),
        (
            &[
                "cluster",
                "search",
                "127.0.0.1:1",
                "base.u8bin",
                "-l",
                "20,40",
                "--out",
                "o",
            ],
            "--list has 2 values",
        ),
        (
            &[
                "cluster",
                "search",
                "127.0.0.1:1",
                "base.u8bin",
                "--out",
                "base.u8bin",
            ],
            "--overwrite",
        ),
    ] {
        place.run(words).refused(2, &[told]);
    }
    place
        .run(&["cluster", "search", "127.0.0.1", "base.u8bin"])
        .refused(2, &["127.0.0.1", "HOST:PORT"]);
    let words = [
        "compute-server",
        "--memory",
        "127.0.0.1:1",
        "--storage",
        "127.0.0.1:2",
        "--refine",
        "0",
    ];
    place.run(&words).refused(2, &["--refine"]);
}

fn nearest(place: &Place, server: &str) -> Vec<(u32, f32)> {
    let words = ["cluster", "search", server, "asked.u8bin", "-k", "1"];
    let more = ["--out", "found.bin", "--overwrite", "--deadline", "60"];
    place.run(&[&words[..], &more[..]].concat()).done();
    let bytes = std::fs::read(place.path("found.bin")).unwrap();
    let word = |at: usize| <[u8; 4]>::try_from(&bytes[4 * at..4 * at + 4]).unwrap();
    let rows = u32::from_le_bytes(word(0)) as usize;
    let id = |row| u32::from_le_bytes(word(2 + row));
    let distance = |row| f32::from_le_bytes(word(2 + rows + row));
    (0..rows).map(|row| (id(row), distance(row))).collect()
}

fn lines(ids: std::ops::Range<u32>) -> Vec<u8> {
    ids.map(|id| format!("{id}\n")).collect::<String>().into()
}

#[test]
fn servers_take_changes_that_survive_them() {
    let place = built();
    place.write("new", &lines(5000..5050));
    place.write("gone", &lines(5000..5010));
    let words = ["cluster", "up", "a.idx", "--listen", "127.0.0.1:0"];
    let up = |more: &[&str]| {
        let mut up = Server::start(&place, &[&words, more].concat());
        let at = up.address("compute server listening on ");
        (up, at)
    };
    let (still, at) = up(&[]);
    let upsert = ["cluster", "upsert", &at, "asked.u8bin", "--ids", "new"];
    place.run(&upsert).refused(
        2,
        &[
            "takes no changes. Start it (or `stratann cluster up`) with --changes",
            "nothing was changed",
        ],
    );
    drop(still);
    let (mut changing, at) = up(&["--changes"]);
    let before = nearest(&place, &at);
    let insert = [
        "cluster",
        "insert",
        &at,
        "asked.u8bin",
        "--ids",
        "new",
        "--json",
    ];
    let inserted = &place.run(&insert).done().json_lines()[0];
    assert_eq!(
        keys(inserted),
        ["deleted", "missing", "seconds", "unsure", "upserted"]
    );
    assert_eq!(
        (&inserted["upserted"], &inserted["deleted"]),
        (&50.into(), &0.into())
    );
    let all: Vec<_> = (5000..5050).map(|id| (id, 0.0)).collect();
    assert_eq!(nearest(&place, &at), all);
    let delete = ["cluster", "delete", &at, "gone"];
    let told = place.run(&delete).done();
    assert!(told.stdout.contains("deleted"), "{}", told.stdout);
    let told = place.run(&delete).done();
    assert!(
        told.stdout.contains("10 ids were not in the index"),
        "{}",
        told.stdout
    );
    let again = [&delete[..], &["--json"]].concat();
    let again = &place.run(&again).done().json_lines()[0];
    assert_eq!(
        (&again["deleted"], &again["missing"]),
        (&0.into(), &10.into())
    );
    // If the user leaves out the servers, the command takes the first id for a server, and refuses
    // it.
    let nearest_of = |id: u32| before[..10].iter().any(|&(near, _)| near == id);
    let spare = (17..).find(|&id| !nearest_of(id)).unwrap().to_string();
    let some = ["cluster", "delete", &at, &spare, "4711", "--json"];
    let gone = &place.run(&some).done().json_lines()[0];
    let counts = (gone["deleted"].as_u64(), gone["missing"].as_u64());
    assert_eq!(counts, (Some(1), Some(1)));
    let none = ["cluster", "delete", "17", "4711"];
    place.run(&none).refused(2, &["'17'", "HOST:PORT"]);
    let left = [&before[..10], &all[10..]].concat();
    assert_eq!(nearest(&place, &at), left);
    let other = ["delete", "a.idx", "gone"];
    let holder = format!("process {} of host ", changing.child.id());
    let told = [
        "a.idx",
        &holder,
        "if it still runs, has it open",
        "stratann cluster upsert",
    ];
    place.run(&other).refused(1, &told);
    place.write("twice", b"7 8 7");
    let twice = ["cluster", "delete", &at, "twice"];
    place.run(&twice).refused(2, &["id 7 is given twice"]);
    changing.child.kill().unwrap();
    changing.child.wait().unwrap();
    for (more, merged) in [(&[][..], false), (&["--changes"], false), (&[], true)] {
        if merged {
            place.run(&["compact", "a.idx"]).done();
        }
        let (mut again, at) = up(more);
        assert_eq!(nearest(&place, &at), left, "{more:?}, {merged}");
        assert_eq!(again.stop(), Some(0));
    }
}

#[test]
fn a_merge_that_is_due_is_made_and_all_servers_go_on_to_it() {
    let place = built();
    place.write("many", &lines(5000..6000));
    let any = ["--listen", "127.0.0.1:0", "--http", "127.0.0.1:0"];
    let start = |words: &[&str]| Server::start(&place, &[words, &any[..]].concat());
    let mut storage = start(&["storage-server", "a.idx", "--changes"]);
    let at_storage = storage.address("storage server listening on ");
    let told = storage.address("health and metrics at http://");
    let mut memory = start(&["memory-server", "a.idx", "--follow"]);
    let at_memory = memory.address("memory server listening on ");
    let holds = memory.address("health and metrics at http://");
    let words = [
        "compute-server",
        "--memory",
        &at_memory,
        "--storage",
        &at_storage,
    ];
    let mut compute = start(&words);
    let at = compute.address("compute server listening on ");
    let low = compute.address("health and metrics at http://");
    let figure = |http: &str, name: &str| {
        let metrics = get(http, "/metrics");
        let mut lines = metrics.lines().filter_map(|line| line.strip_prefix(name));
        lines.next().unwrap().trim().parse::<f64>().unwrap()
    };
    let is = |http: &str, name: &str, right: &dyn Fn(f64) -> bool| {
        let began = Instant::now();
        while !right(figure(http, name)) {
            assert!(began.elapsed() < PATIENCE, "{name}: {}", figure(http, name));
            std::thread::sleep(Duration::from_millis(20));
        }
    };
    let before = nearest(&place, &at);
    let nodes = "stratann_nodes ";
    let upsert = ["cluster", "upsert", &at, "photos.u8bin", "--ids", "many"];
    place.run(&upsert).done();
    is(&told, "stratann_vectors_waiting ", &|waiting| {
        waiting == 0.0
    });
    is(&told, "stratann_merges_total ", &|merges| merges == 1.0);
    is(&holds, nodes, &|nodes| nodes == 2000.0);
    // The compute server learns of the new checkpoint with its next message to memory.
    let began = Instant::now();
    loop {
        let found = nearest(&place, &at);
        for (&(id, distance), &(was, nearest)) in found.iter().zip(&before) {
            assert!(distance <= nearest, "{id} for {was}");
        }
        if figure(&low, nodes) == 2000.0 {
            break;
        }
        assert!(began.elapsed() < PATIENCE);
    }
    for server in [&mut compute, &mut memory, &mut storage] {
        assert_eq!(server.stop(), Some(0));
    }
}
