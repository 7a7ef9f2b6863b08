//! Ctrl-C and `kill` end a command with an error, by the signal, also while it waits for a pipe.

#![cfg(unix)]

use std::io::{Read, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, Stdio};

use crate::attributes::wait;
use crate::refusals::is_ignored;
use crate::support::{DIM, Place, u8s};

/// The number of the signal SIGTERM.
const TERM: i32 = 15;

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
    assert_eq!(output.status.signal(), Some(TERM), "{words:?}: {said}");
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
        assert_eq!(output.status.signal(), Some(TERM), "{words:?}: {said}");
        assert!(
            has_ended && said.contains("error: interrupted"),
            "{words:?}: {said}"
        );
    }
}

/// bash ends a loop at Ctrl-C only if the signal ends the command, whatever the exit status.
#[test]
fn ctrl_c_ends_a_loop_of_a_shell() {
    let bash = Command::new("bash").arg("-c").arg("").status();
    if is_ignored(2) || bash.is_err() {
        eprintln!("skipped: bash is missing, or these tests were started with SIGINT ignored");
        return;
    }
    let place = Place::with_index();
    place.write("none", b"");
    let fifo = Command::new("mkfifo").arg(place.path("pipe")).status();
    assert!(fifo.unwrap().success());
    let text = "for ids in pipe none; do echo $ids >>turns; \"$0\" delete index - <$ids; done; echo end >>turns";
    let shell = Command::new("bash")
        .args(["-c", text, env!("CARGO_BIN_EXE_stratann")])
        .current_dir(place.path(""))
        .stderr(Stdio::piped())
        .process_group(0)
        .spawn()
        .unwrap();
    let mut pipe = std::fs::OpenOptions::new()
        .write(true)
        .open(place.path("pipe"))
        .unwrap();
    // The pipe has no room for all of this, so the command has begun to read it.
    pipe.write_all(&[b' '; 1 << 20]).unwrap();
    // A terminal sends the signal to the shell and to its command.
    kill("-INT", &format!("-{}", shell.id()));
    let output = shell.wait_with_output().unwrap();
    drop(pipe);
    let said = String::from_utf8_lossy(&output.stderr);
    let turns = std::fs::read_to_string(place.path("turns")).unwrap();
    assert_eq!(turns, "pipe\n", "{said}");
    assert_eq!(output.status.signal(), Some(2), "{said}");
    assert!(said.contains("error: interrupted"), "{said}");
}

fn terminate(child: &Child) {
    kill("-TERM", &child.id().to_string());
}

fn kill(signal: &str, whom: &str) {
    let killed = Command::new("kill").args([signal, "--", whom]).status();
    assert!(killed.unwrap().success());
}
