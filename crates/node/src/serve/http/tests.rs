use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use super::*;
use crate::link::Traffic;

const PATIENCE: Duration = Duration::from_secs(20);

/// More bytes than the buffers of a connection can store.
const LONG: usize = 32 << 20;

fn connect(http: &Http) -> TcpStream {
    let socket = TcpStream::connect(http.address()).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    socket.set_write_timeout(Some(PATIENCE)).unwrap();
    socket
}

fn rest(mut socket: &TcpStream) -> String {
    let mut answer = Vec::new();
    let _ = socket.read_to_end(&mut answer);
    String::from_utf8(answer).unwrap()
}

fn ask(http: &Http, request: &str) -> String {
    let mut socket = connect(http);
    socket.write_all(request.as_bytes()).unwrap();
    rest(&socket)
}

fn get(http: &Http, path: &str) -> String {
    ask(http, &format!("GET {path} HTTP/1.1\r\nHost: here\r\n\r\n"))
}

fn start(time: Duration) -> Http {
    let about: &'static str = "x".repeat(LONG).leak();
    // On a busy machine, a thread of a closed connection may need long to end.
    let limits = Limits {
        time,
        room: PATIENCE,
        ..LIMITS
    };
    Http::limited("127.0.0.1:0", limits, move |page| {
        let mut report = Report::default();
        if page == Page::Metrics {
            report.count("long", about, 1);
        }
        report
    })
    .unwrap()
}

/// Opens connections that send nothing, send half a request, or do not read.
fn hostile(http: &Http, of_each: usize) -> Vec<TcpStream> {
    let all = (0..of_each).flat_map(|_| ["", "GET /hea", "GET /metrics HTTP/1.1\r\n\r\n"]);
    let connected = all.map(|sent| {
        let mut socket = connect(http);
        socket.write_all(sent.as_bytes()).unwrap();
        socket
    });
    connected.collect()
}

#[test]
fn health_and_metrics_are_told() {
    let trouble = Arc::new(Mutex::new(Some("no memory server".to_owned())));
    let theirs = trouble.clone();
    let report = move |_: Page| {
        let mut report = Report {
            trouble: theirs.lock().unwrap().clone(),
            ..Report::default()
        };
        report.count("queries_total", "Queries that were answered", 7);
        let traffic = Traffic {
            sent: 3,
            ..Traffic::default()
        };
        report.traffic("memory", traffic);
        report.traffic("storage", traffic);
        let mut other = Report::default();
        other.traffic("memory", traffic);
        report.join("compute server", "127.0.0.1:7710", other);
        report
    };
    let http = Http::start("127.0.0.1:0", report).unwrap();
    let ill = get(&http, "/health");
    assert!(
        ill.starts_with("HTTP/1.1 503") && ill.contains("no memory server"),
        "{ill}"
    );
    *trouble.lock().unwrap() = None;
    assert!(get(&http, "/health").starts_with("HTTP/1.1 200"));
    let metrics = get(&http, "/metrics");
    for line in [
        "# TYPE stratann_queries_total counter",
        "stratann_queries_total 7",
        "stratann_messages_sent_total{peer=\"memory\"} 3",
        "stratann_messages_sent_total{peer=\"storage\"} 3",
        "stratann_messages_sent_total{server=\"127.0.0.1:7710\",peer=\"memory\"} 3",
    ] {
        assert_eq!(metrics.matches(line).count(), 1, "{line}: {metrics}");
    }
    assert!(get(&http, "/else").starts_with("HTTP/1.1 404"));
    assert!(Http::start("nowhere", |_| Report::default()).is_err());
}

#[test]
fn what_is_no_request_for_a_page_is_refused() {
    let http = Http::start("127.0.0.1:0", |_| Report::default()).unwrap();
    for (request, status) in [
        ("GET /health?of=it HTTP/1.0\r\n\r\n", 200),
        ("GET / HTTP/1.1\r\n\r\n", 404),
        ("GET /health/ HTTP/1.1\r\n\r\n", 404),
        ("POST /health HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc", 405),
        ("\u{1}\u{2}\u{3}\r\n\r\n", 400),
        ("GET /health HTTP/7.1\r\n\r\n", 400),
    ] {
        let answer = ask(&http, request);
        let (head, text) = answer.split_once("\r\n\r\n").expect(request);
        assert!(
            head.starts_with(&format!("HTTP/1.1 {status} ")),
            "{request}: {head}"
        );
        for line in [
            "Content-Type: text/plain; version=0.0.4".to_owned(),
            "Connection: close".to_owned(),
            format!("Content-Length: {}", text.len()),
        ] {
            assert!(head.lines().any(|own| own == line), "{line}: {head}");
        }
        assert_eq!(head.contains("Allow: GET, HEAD"), status == 405, "{head}");
        assert!(text.ends_with('\n'), "{text}");
    }
    let (whole, head) = (
        get(&http, "/health"),
        ask(&http, "HEAD /health HTTP/1.1\r\n\r\n"),
    );
    let end = whole.find("\r\n\r\n").unwrap() + 4;
    assert_eq!((&whole[..end], &whole[end..]), (&head[..], "well\n"));
}

#[test]
fn a_request_without_end_is_refused_before_it_takes_memory() {
    let http = Http::start("127.0.0.1:0", |_| Report::default()).unwrap();
    let line = format!("X: {}\r\n", "y".repeat(80));
    for request in [
        format!("GET /health HTTP/1.1\r\nX: {}", "y".repeat(8 << 10)),
        format!("GET /{}", "y".repeat(8 << 10)),
        format!("GET /health HTTP/1.1\r\n{}", "X: y\r\n".repeat(65)),
        format!("GET /health HTTP/1.1\r\n{}", line.repeat(100)),
    ] {
        let answer = ask(&http, &request);
        assert!(answer.starts_with("HTTP/1.1 431 "), "{request}: {answer}");
    }
    let mut socket = connect(&http);
    socket.write_all(b"GET /health HTTP/1.1\r\nX: ").unwrap();
    let (piece, mut sent) = ([b'y'; 64 << 10], 0);
    while sent < 256 << 20 && socket.write_all(&piece).is_ok() {
        sent += piece.len();
    }
    assert!(sent < 64 << 20, "the server accepted {sent} bytes");
}

#[test]
fn half_a_request_is_waited_for_as_long_as_a_whole_one_may_take() {
    let patient = start(PATIENCE);
    let mut socket = connect(&patient);
    socket.write_all(b"GET /health HTTP/1.1\r\nHo").unwrap();
    socket.shutdown(Shutdown::Write).unwrap();
    assert!(rest(&socket).starts_with("HTTP/1.1 400 "));
    let time = Duration::from_millis(400);
    let http = start(time);
    // The request stops, or continues one byte at a time.
    for drips in [false, true] {
        let began = Instant::now();
        let mut socket = connect(&http);
        socket.write_all(b"GET /health HTTP/1.1\r\nX: ").unwrap();
        let mut drip = socket.try_clone().unwrap();
        let dripping = thread::spawn(move || {
            while drips && began.elapsed() < 2 * PATIENCE && drip.write_all(b"y").is_ok() {
                thread::sleep(time / 20);
            }
        });
        let answer = rest(&socket);
        let took = began.elapsed();
        assert!(answer.starts_with("HTTP/1.1 408 "), "{drips}: {answer}");
        assert!(time <= took && took < PATIENCE, "{drips}: {took:?}");
        dripping.join().unwrap();
    }
    assert_eq!(rest(&connect(&http)), "");
    let mut socket = connect(&patient);
    for piece in ["GET /hea", "lth HTT", "P/1.1\r\n\r", "\n"] {
        socket.write_all(piece.as_bytes()).unwrap();
        thread::sleep(Duration::from_millis(5));
    }
    assert!(rest(&socket).starts_with("HTTP/1.1 200 "));
}

#[test]
fn who_is_slow_or_does_not_read_keeps_nobody_from_an_answer() {
    let http = start(Duration::from_secs(600));
    let mut peers = Vec::new();
    for of_each in [1, 2, 10] {
        peers.extend(hostile(&http, of_each));
        for _ in 0..3 {
            // Behind a hostile peer, the reply would be late.
            let answer = get(&http, "/health");
            assert!(answer.starts_with("HTTP/1.1 200 "), "{of_each}: {answer}");
        }
    }
    assert!(get(&http, "/metrics").len() > LONG);
    drop(peers);
}

#[test]
fn it_ends_at_once_whoever_is_connected() {
    for of_each in [1, 10] {
        let http = start(Duration::from_secs(600));
        let peers = hostile(&http, of_each);
        // This request comes after the last of the hostile connections.
        assert!(get(&http, "/health").starts_with("HTTP/1.1 200 "));
        let (began, address) = (Instant::now(), http.address());
        drop(http);
        let took = began.elapsed();
        assert!(took < PATIENCE, "{of_each}: {took:?}");
        assert!(TcpStream::connect(address).is_err());
        drop(peers);
    }
}

#[test]
fn where_all_wait_for_reports_one_more_is_told_so_and_threads_are_bounded() {
    let (asked, gate) = (Arc::new(Mutex::new(0)), Arc::new(Mutex::new(())));
    let (counts, waits) = (asked.clone(), gate.clone());
    let closed = gate.lock().unwrap();
    let http = Http::start("127.0.0.1:0", move |_| {
        *counts.lock().unwrap() += 1;
        drop(waits.lock().unwrap());
        Report::default()
    })
    .unwrap();
    let mut waiting = Vec::new();
    let began = Instant::now();
    for number in 1..=LIMITS.most {
        let mut socket = connect(&http);
        socket.write_all(b"GET /health HTTP/1.1\r\n\r\n").unwrap();
        waiting.push(socket);
        while *asked.lock().unwrap() < number {
            assert!(began.elapsed() < PATIENCE);
            thread::sleep(Duration::from_millis(1));
        }
    }
    let answer = rest(&connect(&http));
    assert!(
        answer.starts_with("HTTP/1.1 503 ") && answer.contains("too many connections ask"),
        "{answer}"
    );
    drop(closed);
    for socket in waiting {
        assert!(rest(&socket).starts_with("HTTP/1.1 200 "));
    }
    assert!(get(&http, "/health").starts_with("HTTP/1.1 200 "));
}
