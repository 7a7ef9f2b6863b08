//! Ctrl-C and `kill` end a command, also while it waits for a pipe.

#![cfg(unix)]

use std::io::{Read, Write};
use std::process::{Child, Stdio};

use crate::attributes::wait;
use crate::support::{DIM, Place, u8s};

#[test]
fn a_pipe_that_is_silent_is_left_at_a_signal() {
    let place = Place::with_index();
    place.write("rows.jsonl", b"{\"price\": 1}\n");
    let truth = ["truth", "base.u8bin", "queries.u8bin", "truth.bin"];
    for words in [
        &["set-attributes", "index", "/dev/stdin"][..],
        &["set-attributes", "index", "-"],
        &["insert", "index", "base.u8bin", "--attributes", "-"],
        &["delete", "index", "-"],
        &["delete", "index", "--ids", "-"],
        &["get", "index", "-"],
        &["get", "index", "--ids", "-"],
        &["set-attributes", "index", "rows.jsonl", "--ids", "-"],
        &["set-attributes", "index", "rows.jsonl", "--ids=/dev/stdin"],
        &["insert", "index", "base.u8bin", "--ids", "/dev/stdin"],
        &["insert", "index", "base.u8bin", "--ids", "-"],
        &["build", "base.u8bin", "other", "--ids", "-"],
        &["plan", "base.u8bin", "--ids", "-"],
        &[&truth[..], &["-k", "1", "--ids", "-"]].concat(),
    ] {
        left_at_a_signal(&place, words);
    }
    assert!(!place.path("other").exists());
}

fn left_at_a_signal(place: &Place, words: &[&str]) {
    let mut command = place.command(words);
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut pipe = child.stdin.take().unwrap();
    // The pipe has no room for all of this, so the command has begun to read it.
    pipe.write_all(&[b' '; 1 << 20]).unwrap();
    terminate(&child);
    wait(&mut child, || false);
    let has_ended = child.try_wait().unwrap().is_some();
    drop(pipe);
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{words:?}: {said}");
    assert!(
        has_ended && said.contains("interrupted"),
        "{words:?}: {said}"
    );
}

/// With this many results of each query, the output has more bytes than a pipe can hold.
const LONG: &str = "100";

#[test]
fn a_command_that_prints_is_ended_by_a_signal() {
    let place = Place::with_index();
    place.write("many.u8bin", &u8s(500, DIM, 3));
    let search = ["search", "index", "many.u8bin", "-k", LONG, "--print"];
    for words in [
        &search[..],
        &["search", "index", "many.u8bin", "--within", "1e9"],
        &["get", "index", "--json"],
        &["get", "index", "-"],
    ] {
        let mut child = place
            .command(words)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut ids = child.stdin.take().unwrap();
        let text = "1 2 3 4 5 6 7 8 9 10 ".repeat(300);
        let _ = ids.write_all(text.as_bytes());
        drop(ids);
        let mut printed = child.stdout.take().unwrap();
        printed.read_exact(&mut [0]).unwrap();
        terminate(&child);
        wait(&mut child, || false);
        let has_ended = child.try_wait().unwrap().is_some();
        drop(printed);
        let output = child.wait_with_output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{words:?}: {said}");
        assert!(
            has_ended && said.contains("error: interrupted"),
            "{words:?}: {said}"
        );
    }
}

fn terminate(child: &Child) {
    let kill = format!("kill -TERM {}", child.id());
    let killed = std::process::Command::new("sh")
        .args(["-c", &kill])
        .status();
    assert!(killed.unwrap().success());
}
