//! When the system refuses memory (`ulimit -v`), a command ends with an exit status, never by a
//! signal, and an existing index is unchanged. Each command runs under many limits, from the
//! smallest under which the program starts to the first under which the command succeeds, because
//! limits differ by machine, compiler and profile.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::support::{Place, Ran, SMALL_BUILD};

/// The numbers of steps, and the KiB of each step.
const STEPS: [(usize, u64); 3] = [(16, 256), (24, 1_024), (40, 8_192)];

fn run_within(place: &Place, kib: u64, words: &[&str]) -> Ran {
    let command = place.command(&[]);
    let mut shell = Command::new("sh");
    shell
        .args(["-c", &format!("ulimit -v {kib}; exec \"$0\" \"$@\"")])
        .arg(command.get_program())
        .args(words)
        .current_dir(place.path("."))
        .env("RUST_BACKTRACE", "0")
        .stdin(Stdio::null());
    let output = shell.output().unwrap();
    Ran {
        status: output.status.code(),
        stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}

/// The smallest limit, in steps of 256 KiB, under which the program starts.
fn least_limit(place: &Place) -> u64 {
    let starts = |&kib: &u64| run_within(place, kib, &["presets"]).status == Some(0);
    let least = (32..4_096).map(|quarters| 256 * quarters).find(starts);
    least.expect("the program starts in 1 GiB")
}

/// Raises the limit until the command succeeds, and calls `refused` after each failure.
#[track_caller]
fn ends_well(place: &Place, words: &[&str], refused: impl Fn()) {
    let mut limit = least_limit(place);
    let steps = (STEPS.iter()).flat_map(|&(times, step)| std::iter::repeat_n(step, times));
    for (refusals, step) in steps.enumerate() {
        let ran = run_within(place, limit, words);
        if ran.status == Some(0) {
            ran.done();
            assert!(
                refusals > 0,
                "{words:?}: no memory was refused under {limit} KiB"
            );
            return;
        }
        let status = ran.status;
        assert!(
            matches!(status, Some(1 | 2)),
            "{words:?} under {limit} KiB of memory: ended by a signal, or without a documented status: {ran:?}"
        );
        let said = ran.stderr.rsplit_once("error: ").map(|(_, said)| said);
        let said = said.unwrap_or_else(|| panic!("{words:?} under {limit} KiB: no error: {ran:?}"));
        let helps = ["ulimit -", "--memory", "fewer"]
            .iter()
            .any(|remedy| said.contains(remedy));
        assert!(helps, "{words:?} under {limit} KiB: no remedy: {said}");
        assert!(
            !ran.stderr.contains("panicked"),
            "{words:?} under {limit} KiB: {ran:?}"
        );
        refused();
        limit += step;
    }
    panic!("{words:?}: the command did not succeed under {limit} KiB");
}

/// A thread maps an alternative stack after its stack. The standard library aborts if only the
/// second mapping is refused, which a limit does in a range of 20 KiB.
#[test]
fn no_limit_refuses_only_a_part_of_the_thread_for_signals() {
    let place = Place::with_photos();
    place.run(&SMALL_BUILD).done();
    let words = ["stats", "index"];
    let without = |&kib: &u64| {
        let ran = run_within(&place, kib, &words);
        ran.stderr.contains("cannot handle signals")
    };
    let least = least_limit(&place);
    let mut coarse = (0..64).map(|step| least + 256 * step);
    let first = coarse.find(without).expect("a limit refuses the thread");
    let last = coarse.take_while(without).last().unwrap_or(first);
    let mut fine = (1..=64).map(|step| last + 4 * step);
    let started = fine.find(|kib| !without(kib));
    let started = started.expect("the thread starts under a greater limit");
    for kib in (0..16).map(|step| started + 4 * step) {
        let ran = run_within(&place, kib, &words);
        assert!(
            matches!(ran.status, Some(0..=2)),
            "{kib} KiB: ended by a signal: {ran:?}"
        );
    }
}

fn contents(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let entries = std::fs::read_dir(folder).unwrap().map(Result::unwrap);
    entries
        .filter(|entry| entry.file_type().unwrap().is_file())
        .map(|entry| {
            let bytes = std::fs::read(entry.path()).unwrap();
            (entry.file_name().into_string().unwrap(), bytes)
        })
        .collect()
}

#[track_caller]
fn unchanged(folder: &Path, before: &BTreeMap<String, Vec<u8>>) {
    let now = contents(folder);
    for (name, bytes) in before {
        assert_eq!(now.get(name), Some(bytes), "{name} was changed");
    }
}

#[test]
fn a_build_ends_well_and_can_be_made_again() {
    let place = Place::with_photos();
    let build = "build photos.u8bin new --degree 16 --build-list 32 --threads 1 --quiet";
    let words: Vec<&str> = build.split(' ').collect();
    ends_well(&place, &words, || {
        place.run(&["stats", "new"]).refused(1, &["new"]);
    });
    place.run(&["verify", "new"]).done();
}

#[test]
fn an_index_stays_as_it_was_where_what_replaces_it_has_no_memory() {
    let place = Place::with_photos();
    let index = place.path("index");
    place.run(&SMALL_BUILD).done();
    let before = contents(&index);
    let build =
        "build photos.u8bin index --degree 16 --build-list 32 --threads 1 --overwrite --quiet";
    let words: Vec<&str> = build.split(' ').collect();
    ends_well(&place, &words, || unchanged(&index, &before));
    place.run(&["verify", "index"]).done();
}

#[test]
fn reading_commands_end_well() {
    let place = Place::with_photos();
    let build = "build photos.u8bin index --degree 16 --build-list 32";
    place.run(&build.split(' ').collect::<Vec<_>>()).done();
    let index = place.path("index");
    let before = contents(&index);
    for words in [
        "search index asked.u8bin --truth truth.bin --threads 1",
        "verify index --quiet",
        "stats index",
        "truth photos.u8bin asked.u8bin again.bin -k 10 --threads 1 --quiet",
    ] {
        let words: Vec<&str> = words.split(' ').collect();
        ends_well(&place, &words, || unchanged(&index, &before));
    }
}
