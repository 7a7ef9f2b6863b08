//! A memory budget is for the whole process. The tests compare it with the peak that the kernel
//! reports.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::support::{Place, bin};

const BUILT: usize = 6_000;
const MORE: usize = 400;
const PRESETS: [&str; 6] = [
    "diskann",
    "pipeann",
    "aisaq",
    "decouplevs",
    "odinann",
    "stratann",
];

fn fixture(name: &str) -> PathBuf {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures")).join(name)
}

/// The budget's bytes for files and libraries (`PROGRAM` in the engine's `plan.rs`).
const FILES: u64 = 6_000_000;

/// Samples the peak memory, because the kernel does not report it after the end of the process.
/// Pages of files count at most as `FILES`, because their number varies with the page cache (6.8 MB
/// or 8.0 MB).
fn peak(child: &mut Child) -> u64 {
    let status = format!("/proc/{}/status", child.id());
    let (mut most, mut files) = (0, 0);
    while child.try_wait().unwrap().is_none() {
        let text = std::fs::read_to_string(&status).unwrap_or_default();
        let bytes = |name: &str| -> u64 {
            let line = text.lines().find_map(|line| line.strip_prefix(name));
            let kib = line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<u64>().ok());
            kib.unwrap_or(0) * 1024
        };
        most = bytes("VmHWM:").max(most);
        files = bytes("RssFile:").max(files);
        std::thread::sleep(Duration::from_micros(500));
    }
    most - files.saturating_sub(FILES).min(most)
}

enum Ended {
    /// The number is the peak memory.
    Done(u64),
    /// The text is the error.
    Refused(String),
}

/// The memory also depends on the kernel's treatment of pages. So a process over its budget has two
/// more tries, and `anew` precedes each try. The result is the smallest peak, minus the spread of
/// the peaks (at most 3 % of the budget).
fn within(program: &Path, place: &Place, words: &[&str], bytes: u64, anew: impl Fn()) -> Ended {
    let mut peaks = Vec::new();
    while peaks.len() < 3 {
        anew();
        match run(program, place, words) {
            Ended::Done(peak) if peak > bytes => peaks.push(peak),
            ended => return ended,
        }
    }
    eprintln!("{words:?}: three peaks above {bytes} bytes: {peaks:?}");
    let [least, most] = [peaks.iter().min(), peaks.iter().max()].map(|peak| *peak.unwrap());
    Ended::Done(least - (most - least).min(bytes * 3 / 100))
}

/// Checks the planned parts of the memory. Unlike a measured peak, the plan does not depend on the
/// kernel.
#[track_caller]
fn planned_within(program: &Path, place: &Place, index: &str, budget: &str, bytes: u64) {
    let output = Command::new(program)
        .current_dir(place.path(""))
        .args(["stats", index, "--memory", budget, "--json"])
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{index}, {budget}: {said}");
    let stats: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let plan = &stats["memory"];
    assert_eq!(plan["budget"], bytes, "{index}: {plan}");
    let parts = plan.as_object().unwrap().iter();
    let parts = parts.filter(|(name, _)| !["budget", "unused"].contains(&name.as_str()));
    // Shares and predictions are floats, and take no part of the budget.
    let taken: u64 = parts.filter_map(|(_, part)| part.as_u64()).sum();
    assert!(taken > 1_000_000 && taken <= bytes, "{index}: {plan}");
}

fn run(program: &Path, place: &Place, words: &[&str]) -> Ended {
    let mut child = Command::new(program)
        .current_dir(place.path(""))
        .args(words)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let peak = peak(&mut child);
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    match output.status.code() {
        Some(0) => Ended::Done(peak),
        Some(1 | 2) => Ended::Refused(said),
        _ => panic!("{words:?}: {said}"),
    }
}

fn copy(place: &Place, from: &str, to: &str) {
    let _ = std::fs::remove_dir_all(place.path(to));
    std::fs::create_dir(place.path(to)).unwrap();
    for file in std::fs::read_dir(place.path(from)).unwrap() {
        let file = file.unwrap();
        std::fs::copy(file.path(), place.path(to).join(file.file_name())).unwrap();
    }
}

#[test]
fn searches_and_inserts_of_every_preset_stay_under_their_budgets() {
    let slow = std::env::var_os("STRATANN_SLOW").is_some();
    let built = if slow { 19_000 } else { BUILT };
    let program = PathBuf::from(env!("CARGO_BIN_EXE_stratann"));
    let budgets: [(&str, u64); 3] = [
        ("10MB", 10_000_000),
        ("48MB", 48_000_000),
        ("128MB", 128_000_000),
    ];
    let place = Place::new();
    let all = std::fs::read(fixture("photo-sift-20k.base.u8bin")).unwrap();
    let rows = |first: usize, rows: usize| bin(rows, 128, &all[8 + first * 128..][..rows * 128]);
    place.write("built.u8bin", &rows(0, built));
    place.write("more.u8bin", &rows(built, MORE));
    let queries = fixture("photo-sift-20k.query.u8bin");
    let truth = fixture("photo-sift-20k.truth100.bin");
    let (queries, truth) = (queries.to_str().unwrap(), truth.to_str().unwrap());
    for preset in PRESETS {
        let build = [
            "build",
            "built.u8bin",
            preset,
            "-p",
            preset,
            "-R",
            "32",
            "-L",
            "40",
        ];
        let Ended::Done(_) = run(&program, &place, &[&build[..], &["-T", "2"]].concat()) else {
            panic!("{preset} cannot be built");
        };
        for &(budget, bytes) in &budgets {
            let search = [
                "search", preset, queries, "--truth", truth, "--memory", budget,
            ];
            let search = [
                &search[..],
                &["-T", "2", "--in-flight", "16", "--list", "60"],
            ]
            .concat();
            planned_within(&program, &place, preset, budget, bytes);
            match within(&program, &place, &search, bytes, || {}) {
                Ended::Done(peak) => assert!(peak <= bytes, "{search:?}: {peak}"),
                Ended::Refused(said) => panic!("{search:?}: {said}"),
            }
            let anew = || copy(&place, preset, "grown");
            let insert = [
                "insert",
                "grown",
                "more.u8bin",
                "-T",
                "2",
                "--memory",
                budget,
            ];
            match within(&program, &place, &insert, bytes, anew) {
                Ended::Done(peak) => {
                    assert!(peak <= bytes, "{preset}, {insert:?}: {peak}");
                    planned_within(&program, &place, "grown", budget, bytes);
                }
                // 10 MB may be too little for the program and the waiting vectors.
                Ended::Refused(said) => {
                    assert!(bytes == 10_000_000, "{preset}, {insert:?}: {said}");
                    for word in ["memory budget of 10000000 bytes", "Give at least"] {
                        assert!(said.contains(word), "{preset}: {said}");
                    }
                }
            }
        }
    }
}
