//! Measures time and memory to open an index for changes: one index whose ids are row numbers, and
//! one whose ids no longer are.
//!
//! ```text
//! cargo run --release -p stratann --example opening -- DATA DIR
//! ```
//!
//! Builds an index of DATA in `DIR/rows` with the default options, and another one in `DIR/gaps`.
//! In the second one, every tenth id is deleted and the deletes are merged. Existing indexes are
//! used again.
//!
//! Then the program opens each index for changes several times, in turn, each time in a process of
//! its own. It prints the medians of:
//!
//! - the milliseconds of the opening;
//! - the growth of resident memory, after the opening and at most during it;
//! - the plan's memory for codes, codebook and tables;
//! - the most growth beyond this plan;
//! - the time to look up an id.
//!
//! Files are in the page cache. The program fails if the second index takes more than 50 ms to
//! open, or if its growth beyond its plan exceeds the first one's by over 1 MB.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Instant;

use stratann::{
    BuildOptions, LiveIndex, OpenOptions, Silent, VectorFile, VectorSource, WriteOptions, build,
    peak_rss_bytes, reset_peak_rss,
};
use stratann_tier::rss_bytes;

/// How often each index is opened.
const TIMES: usize = 9;
/// Ids that are looked up.
const LOOK_UPS: u64 = 100_000;
/// The first argument of the invocation for one opening.
const OPEN: &str = "--open";
/// The limits above which the program fails.
const MOST_MS: f64 = 50.0;
const MOST_MB: f64 = 1.0;

type Outcome<T> = Result<T, Box<dyn Error>>;

/// Builds the two indexes, unless they exist.
fn indexes(data: &str, folder: &Path) -> Outcome<[PathBuf; 2]> {
    let (rows, gaps) = (folder.join("rows"), folder.join("gaps"));
    let source = VectorFile::open(data)?;
    let options = BuildOptions::default();
    if !rows.join("MANIFEST").exists() {
        let report = build(&source, &rows, &options, &Silent)?;
        println!("built in {:.0} s", report.seconds);
    }
    // An empty file, which exists once the index in `gaps` is complete.
    let whole = folder.join("gaps-merged");
    if !whole.exists() {
        copy(&rows, &gaps)?;
        let live = LiveIndex::open(&gaps, &OpenOptions::default(), &WriteOptions::default())?;
        let deleted: Vec<u64> = (0..source.rows() as u64).step_by(10).collect();
        live.delete(&deleted)?;
        let report = live.compact(&Silent)?;
        println!(
            "{} deletes merged in {:.0} s",
            report.removed, report.seconds
        );
        drop(live);
        std::fs::write(&whole, "")?;
    }
    Ok([rows, gaps])
}

/// Copies the files of an index.
fn copy(from: &Path, to: &Path) -> Outcome<()> {
    if to.exists() {
        std::fs::remove_dir_all(to)?;
    }
    std::fs::create_dir_all(to)?;
    for entry in std::fs::read_dir(from)? {
        let entry = entry?;
        std::fs::copy(entry.path(), to.join(entry.file_name()))?;
    }
    Ok(())
}

/// The cost of an opening: milliseconds; the growth of resident memory after it and at most during
/// it, and the planned memory, in megabytes; microseconds of a look-up.
#[derive(Clone, Copy)]
struct Taken([f64; 5]);

/// Opens an index for changes and prints the cost.
fn open(path: &str) -> Outcome<()> {
    // After a first opening, the needed parts of the program and of the system are in memory.
    let options = (OpenOptions::default(), WriteOptions::default());
    let small = tempfile::tempdir()?;
    let few = stratann::MatrixRef::new(&[7, 8, 9, 1, 2, 3], 3, 2, stratann::Element::U8)?;
    let tiny = small.path().join("tiny");
    build(&few, &tiny, &BuildOptions::default(), &Silent)?;
    drop(LiveIndex::open(&tiny, &options.0, &options.1)?);

    let before = rss_bytes();
    reset_peak_rss();
    let start = Instant::now();
    let live = LiveIndex::open(path, &options.0, &options.1)?;
    let ms = start.elapsed().as_secs_f64() * 1e3;
    let (after, peak) = (rss_bytes(), peak_rss_bytes());
    let memory = live.stats().memory;
    let planned = memory.codes + memory.codebook + memory.tables;
    let ids = live.len() as u64;
    let (mut id, mut found) = (1_u64, 0);
    let start = Instant::now();
    for _ in 0..LOOK_UPS {
        id = id
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        found += u64::from(live.contains((id >> 33) % ids)?);
    }
    let us = start.elapsed().as_secs_f64() * 1e6 / LOOK_UPS as f64;
    if found == 0 {
        return Err("no id was found".into());
    }
    let mb = |bytes: u64| bytes as f64 / 1e6;
    let more = |bytes: u64| mb(bytes.saturating_sub(before));
    println!("{ms} {} {} {} {us}", more(after), more(peak), mb(planned));
    Ok(())
}

/// Opens an index in another process.
fn opened(path: &Path) -> Outcome<Taken> {
    let program = std::env::current_exe()?;
    let output = Command::new(program).arg(OPEN).arg(path).output()?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into());
    }
    let text = String::from_utf8(output.stdout)?;
    let numbers: Result<Vec<f64>, _> = text.split_whitespace().map(str::parse).collect();
    let numbers: [f64; 5] = numbers?
        .try_into()
        .map_err(|_| format!("not five numbers: {text}"))?;
    Ok(Taken(numbers))
}

fn median(taken: &[Taken], at: usize) -> f64 {
    let mut all: Vec<f64> = taken.iter().map(|taken| taken.0[at]).collect();
    all.sort_unstable_by(f64::total_cmp);
    all[all.len() / 2]
}

fn run() -> Outcome<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (data, folder) = match &arguments[..] {
        [word, path] if word == OPEN => return open(path),
        [data, folder] => (data, Path::new(folder)),
        _ => return Err("arguments: DATA DIR".into()),
    };
    std::fs::create_dir_all(folder)?;
    let indexes = indexes(data, folder)?;
    let mut taken = [Vec::new(), Vec::new()];
    for _ in 0..TIMES {
        for (path, taken) in indexes.iter().zip(&mut taken) {
            taken.push(opened(path)?);
        }
    }
    println!("index     opening  resident  at most   planned  beyond  a look-up");
    let mut beyond = [0.0; 2];
    for ((path, taken), beyond) in indexes.iter().zip(&taken).zip(&mut beyond) {
        let [ms, resident, peak, planned, us] = [0, 1, 2, 3, 4].map(|at| median(taken, at));
        *beyond = peak - planned;
        println!(
            "{:<8} {ms:5.1} ms {resident:6.2} MB {peak:6.2} MB {planned:6.2} MB {beyond:4.2} MB {us:6.2} us",
            path.file_name().unwrap_or_default().to_string_lossy()
        );
    }
    let (ms, more) = (median(&taken[1], 0), beyond[1] - beyond[0]);
    if ms > MOST_MS || more > MOST_MB {
        return Err(
            format!("{ms:.1} ms and {more:.2} MB more: over {MOST_MS} ms or {MOST_MB} MB").into(),
        );
    }
    Ok(())
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}
