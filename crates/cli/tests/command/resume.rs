//! A killed or stopped build continues from its savepoints.
#![cfg(unix)]

use std::collections::BTreeMap;
use std::process::{Child, Stdio};
use std::time::Duration;

use crate::support::{Place, Ran, names, u8s};

const BUILD: [&str; 11] = [
    "build",
    "large.u8bin",
    "index",
    "--threads",
    "1",
    "--degree",
    "24",
    "--build-list",
    "60",
    "--layout",
    "packed",
];

/// The build writes a savepoint wherever it can.
const RESUME: [&str; 3] = ["--resume", "--savepoint-seconds", "0"];

/// The most attempts to kill a build, which may end before the kill.
const TRIES: usize = 20;

fn place() -> Place {
    let place = Place::new();
    place.write("large.u8bin", &u8s(12_000, 32, 9));
    place
}

fn start(place: &Place, more: &[&str]) -> Child {
    let mut command = place.command(&[&BUILD[..], &RESUME, more].concat());
    let command = command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().unwrap()
}

#[derive(Clone, Copy, PartialEq)]
enum End {
    Kill,
    /// SIGTERM, after which the build cleans up and ends.
    Term,
}

/// Ends a build when `there` returns true. Returns `None` if the build was complete before.
fn hit(place: &Place, more: &[&str], end: End, there: impl Fn() -> bool) -> Option<Ran> {
    let manifest = || std::fs::read(place.path("index").join("MANIFEST")).ok();
    let before = manifest();
    let mut child = start(place, more);
    while !there() {
        if child.try_wait().unwrap().is_some() {
            ended(child).done();
            return None;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    match end {
        End::Kill => child.kill().unwrap(),
        End::Term => {
            let mut kill = std::process::Command::new("kill");
            let sent = kill.args(["-TERM", &child.id().to_string()]).status();
            assert!(sent.unwrap().success());
        }
    }
    let ran = ended(child);
    if ran.status == Some(0) || ran.stderr.contains("the command was complete") {
        return None;
    }
    // A signal leaves no exit status.
    assert_eq!(ran.status, None, "{ran:?}");
    // If the manifest has changed, the build had committed before the kill, so the kill did not hit
    // it.
    (end == End::Term || manifest() == before).then_some(ran)
}

fn ended(child: Child) -> Ran {
    let output = child.wait_with_output().unwrap();
    Ran {
        status: output.status.code(),
        stdout: String::from_utf8(output.stdout).unwrap(),
        stderr: String::from_utf8(output.stderr).unwrap(),
    }
}

/// The contents of the files, without the number of the checkpoint.
fn contents(place: &Place, index: &str) -> BTreeMap<String, Vec<u8>> {
    let folder = place.path(index);
    let file = |name: String| {
        let bytes = std::fs::read(folder.join(&name)).unwrap();
        let bytes = match name.as_str() {
            "MANIFEST" => {
                let text = String::from_utf8(bytes).unwrap();
                let lines = text.lines().skip(1);
                let lines = lines.filter(|line| {
                    !["\"checkpoint\"", "\"name\"", "\"state\""]
                        .iter()
                        .any(|key| line.contains(key))
                });
                lines.collect::<Vec<_>>().join("\n").into_bytes()
            }
            _ => bytes,
        };
        (name.split('-').next().unwrap().to_owned(), bytes)
    };
    names(&folder).into_iter().map(file).collect()
}

fn same(place: &Place, one: &str, other: &str) {
    let (one, other) = (contents(place, one), contents(place, other));
    let kinds = |files: &BTreeMap<String, Vec<u8>>| files.keys().cloned().collect::<Vec<_>>();
    assert_eq!(kinds(&one), kinds(&other));
    for (kind, bytes) in &one {
        assert!(*bytes == other[kind], "{kind} differs");
    }
}

#[test]
fn a_killed_build_goes_on_to_the_same_bits() {
    let place = place();
    let mut whole = BUILD;
    whole[2] = "whole";
    place.run(&whole).done();
    let lists = place.path("index").join("savepoint-lists");
    let written = || {
        std::fs::metadata(&lists)
            .and_then(|facts| facts.modified())
            .ok()
    };
    let (mut kills, mut tries) = (0, 0);
    while kills < 3 {
        tries += 1;
        assert!(tries <= TRIES, "only {kills} kills hit a build");
        let before = written();
        let newer = || written().is_some_and(|now| Some(now) != before);
        match hit(&place, &[], End::Kill, newer) {
            Some(_) => kills += 1,
            None => {
                std::fs::remove_dir_all(place.path("index")).unwrap();
                kills = 0;
            }
        }
    }
    place.run(&["stats", "index"]).refused(1, &["index"]);
    let report = place
        .run(&[&BUILD[..], &RESUME, &["--json"]].concat())
        .done()
        .json();
    let resumed: Vec<&str> = report["resumed"]
        .as_array()
        .unwrap()
        .iter()
        .map(|what| what.as_str().unwrap())
        .collect();
    assert_eq!(resumed.first(), Some(&"order"), "{report}");
    assert!(
        resumed.iter().any(|what| what.starts_with("graph")),
        "{report}"
    );
    same(&place, "index", "whole");
    place.run(&["verify", "index"]).done();
}

#[test]
fn a_stopped_build_says_how_to_go_on_and_what_was_taken_over() {
    let place = place();
    let index = place.path("index");
    let lists = index.join("savepoint-lists");
    let hit_one = |end: End, more: &[&str]| {
        for _ in 0..TRIES {
            if let Some(ran) = hit(&place, more, end, || lists.exists()) {
                return ran;
            }
            if more.is_empty() {
                std::fs::remove_dir_all(&index).unwrap();
            } else if lists.exists() {
                // The next round waits for a file of its own build.
                std::fs::remove_file(&lists).unwrap();
            }
        }
        panic!("no kill hit a build");
    };
    let stopped = hit_one(End::Term, &[]).interrupted(&["interrupted"]);
    assert!(stopped.stderr.contains("--resume"), "{stopped:?}");
    let left = names(&index);
    let (lock, others): (Vec<_>, Vec<_>) = left.iter().partition(|name| *name == "LOCK");
    assert_eq!(lock.len(), 1);
    assert!(
        others.iter().all(|name| name.starts_with("savepoint-")),
        "{left:?}"
    );

    let other = place.run(&[&BUILD[..], &["--seed", "7"]].concat()).done();
    assert!(other.stderr.contains("savepoints of a build"), "{other:?}");
    assert!(
        !names(&index)
            .iter()
            .any(|name| name.starts_with("savepoint"))
    );

    hit_one(End::Kill, &["--overwrite"]);
    place.run(&["verify", "index"]).done();
    let again = place
        .run(&[&BUILD[..], &RESUME, &["--overwrite"]].concat())
        .done();
    assert!(again.stdout.contains("from savepoints"), "{again:?}");
    assert!(again.stdout.contains("order; graph"), "{again:?}");
    assert!(
        again.stderr.contains("resumed after") || again.stderr.contains("from savepoint"),
        "{again:?}"
    );
    place.run(&["verify", "index"]).done();
}

#[test]
fn numbers_of_seconds_that_are_none_are_refused() {
    let place = Place::new();
    for seconds in ["-1", "nan", "1e9"] {
        let option = format!("--savepoint-seconds={seconds}");
        place
            .run(&["build", "base.u8bin", "index", "--resume", &option])
            .refused(2, &["savepoint seconds", "120"]);
    }
    place
        .run(&["build", "base.u8bin", "index", "--savepoint-seconds", "5"])
        .refused(2, &["--resume"]);
    assert!(!place.path("index").exists());
}
