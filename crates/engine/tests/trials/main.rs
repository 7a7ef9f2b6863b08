//! Random calls of several threads in a process that is killed, compared with a model: a map from
//! id to the version of its vector.
//!
//! A child process makes the calls, prints each completed call, and is killed at a random time.
//! Then the index must have all acknowledged vectors, and no deleted vectors. If a call was
//! running, each of its ids has the state from before or after the call.
//!
//! `STRATANN_SEED=n` runs the trial of one seed again.

mod script;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use stratann::{
    BuildOptions, DirectOptions, Durability, Element, Index, Layout, LiveIndex, Matrix,
    OpenOptions, SearchOptions, SearchResults, Silent, Update, WriteOptions, build, verify,
};

use self::script::{BASE, Call, Caller, DIM, Random, Versions, each_seed, first, vector};

const CALLERS: u64 = 2;
const CALLS: u64 = 60;
/// The variable that gives the child its work: the seed, the case, and the directory of the trial.
const WORK: &str = "STRATANN_TRIAL";

/// The possible states of each id: versions, or not in the index.
type May = BTreeMap<u64, BTreeSet<Option<u64>>>;

const CASES: [(Layout, Update); 14] = [
    (Layout::Packed, Update::Accumulate),
    (Layout::Coupled, Update::Relocate),
    (Layout::Inline, Update::InPlace),
    (Layout::Decoupled, Update::Accumulate),
    (Layout::Packed, Update::Merge),
    (Layout::Decoupled, Update::Merge),
    (Layout::Packed, Update::Relocate),
    (Layout::Coupled, Update::Merge),
    (Layout::Layered, Update::Merge),
    (Layout::Layered, Update::Accumulate),
    (Layout::Csr, Update::Merge),
    (Layout::Replicated, Update::Merge),
    (Layout::Addressed, Update::Merge),
    (Layout::Grouped, Update::Merge),
];

fn rows(of: &[(u64, u64)]) -> Matrix {
    let bytes = of.iter().flat_map(|&(id, version)| vector(id, version));
    Matrix::new(bytes.collect(), of.len(), DIM, Element::U8).unwrap()
}

fn thorough(layout: Layout) -> SearchOptions {
    SearchOptions {
        k: 3,
        list: 400,
        probes: layout.has_clusters().then_some(400),
        threads: 1,
        exact: true,
        ..SearchOptions::default()
    }
}

fn open(path: &Path, case: usize) -> LiveIndex {
    let options = WriteOptions {
        durability: Durability::Always,
        threads: 1,
        update: Some(CASES[case].1),
        direct: DirectOptions {
            pending: 800,
            checkpoint: Some(7),
            ..DirectOptions::default()
        },
    };
    LiveIndex::open(path, &OpenOptions::default(), &options).unwrap()
}

fn found(of: &[(u64, u64)], results: &SearchResults) -> Vec<Option<u64>> {
    let nearest = results.ids.chunks(3).zip(results.distances.chunks(3));
    let exact = nearest.map(|(ids, distances)| (distances[0] == 0.0).then_some(ids[0]));
    let exact: Vec<_> = exact.collect();
    assert_eq!(exact.len(), of.len());
    exact
}

fn work(told: &str) {
    let words: Vec<&str> = told.splitn(3, ' ').collect();
    let (seed, case) = (words[0].parse().unwrap(), words[1].parse().unwrap());
    let folder = Path::new(words[2]);
    let live = open(&folder.join("index"), case);
    let all = read_versions(folder);
    std::thread::scope(|scope| {
        for number in 0..CALLERS {
            let (live, mut caller) = (&live, Caller::new(seed, number, CALLERS, &all));
            scope.spawn(move || {
                for at in 0..CALLS {
                    make(live, &caller.call());
                    // Each line is one write, so that lines do not mix.
                    let line = format!("done {number} {at}\n");
                    std::io::stdout().lock().write_all(line.as_bytes()).unwrap();
                    std::io::stdout().lock().flush().unwrap();
                }
            });
        }
    });
}

fn make(live: &LiveIndex, call: &Call) {
    let ids = |of: &[(u64, u64)]| of.iter().map(|&(id, _)| id).collect::<Vec<_>>();
    match call {
        Call::Insert(of) => {
            live.insert(&rows(of), Some(&ids(of)), &Silent).unwrap();
        }
        Call::Upsert(of) => live.upsert(&rows(of), &ids(of), &Silent).unwrap(),
        Call::Delete(ids) => live.delete(ids).unwrap(),
        Call::Flush => live.flush().unwrap(),
        Call::Compact => {
            live.compact(&Silent).unwrap();
        }
        Call::Read => {
            Index::open(live.path(), &OpenOptions::default()).unwrap();
        }
    }
}

fn read_versions(folder: &Path) -> Versions {
    let text = fs::read_to_string(folder.join("versions")).unwrap();
    let line = |line: &str| {
        let (id, version) = line.split_once(' ').unwrap();
        (id.parse().unwrap(), version.parse().unwrap())
    };
    text.lines().map(line).collect()
}

/// The possible states after the completed calls of each caller, and perhaps after its next call.
fn may(seed: u64, all: &Versions, done: &[u64]) -> May {
    let mut may: May = all.iter().map(|(&id, &v)| (id, [Some(v)].into())).collect();
    for (number, &done) in (0..).zip(done) {
        let mut caller = Caller::new(seed, number, CALLERS, all);
        for at in 0..CALLS.min(done + 1) {
            for (id, version) in caller.call().changes() {
                let states = may.entry(id).or_insert_with(|| [None].into());
                if at < done {
                    states.clear();
                }
                states.insert(version);
            }
        }
    }
    may
}

fn settled(live: &LiveIndex, layout: Layout, may: &May, place: &str) -> Versions {
    let mut versions = Versions::new();
    for (&id, states) in may {
        let asked: Vec<_> = states.iter().filter_map(|&v| Some((id, v?))).collect();
        let mut is = None;
        if !asked.is_empty() {
            let results = live.search(&rows(&asked), &thorough(layout)).unwrap();
            let exact = found(&asked, &results).into_iter().zip(&asked);
            let mut exact = exact.filter(|(found, _)| *found == Some(id));
            is = exact.next().map(|(_, &(_, version))| version);
            assert!(exact.next().is_none(), "{place}: id {id} has two vectors");
        }
        let said = format!("{place}: id {id}, which may be {states:?}, is {is:?}");
        assert_eq!(is.is_some(), live.contains(id).unwrap(), "{said}");
        assert!(states.contains(&is), "{said}");
        versions.extend(is.map(|version| (id, version)));
    }
    assert_eq!(live.len(), versions.len(), "{place}");
    versions
}

fn trial(seed: u64) {
    let mut random = Random::new(seed);
    let case = (seed % CASES.len() as u64) as usize;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("index");
    let mut versions = first();
    assert_eq!(versions.len() as u64, BASE);
    let layout = CASES[case].0;
    let options = BuildOptions {
        navigation: 0.0,
        threads: 1,
        layout: Some(layout),
        ..BuildOptions::default()
    };
    let options = match layout.has_clusters() {
        true => BuildOptions {
            cluster_size: Some(6),
            ..options
        },
        false => BuildOptions {
            degree: Some(8),
            build_list: 16,
            code_bytes: Some(4),
            ..options
        },
    };
    let base: Vec<_> = versions
        .iter()
        .map(|(&id, &version)| (id, version))
        .collect();
    build(&rows(&base), &path, &options, &Silent).unwrap();
    for round in 0..4 {
        let calls = random.next();
        let place = format!("seed {seed}, round {round}, {:?}", CASES[case]);
        let lines = versions
            .iter()
            .map(|(id, version)| format!("{id} {version}\n"));
        fs::write(folder.path().join("versions"), lines.collect::<String>()).unwrap();
        let done = killed(calls, case, folder.path(), &mut random, &place);
        let may = may(calls, &versions, &done);
        let place = format!("{place}, after {done:?} calls");
        let live = open(&path, case);
        versions = settled(&live, CASES[case].0, &may, &place);
        drop(live);
        let report = verify(&path, &Silent).unwrap();
        assert!(report.clean(), "{place}: {:?}", report.problems);
        let reader = Index::open(&path, &OpenOptions::default()).unwrap();
        assert_eq!(reader.live(), versions.len(), "{place}");
    }
}

/// Kills a process after some calls. Returns how many calls each caller has certainly completed.
fn killed(calls: u64, case: usize, folder: &Path, random: &mut Random, place: &str) -> Vec<u64> {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "worker", "--nocapture", "--test-threads=1"])
        .env(WORK, format!("{calls} {case} {}", folder.display()))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut done = vec![0; CALLERS as usize];
    let last = random.below(CALLERS * CALLS * 5 / 4);
    let pause = Duration::from_micros(random.below(3_000));
    let mut said = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut count = 0;
    // Lines that the process wrote before it was killed count, even if they are read later.
    while let Some(Ok(line)) = said.next() {
        let Some(words) = line.split_once("done ").map(|(_, words)| words) else {
            continue;
        };
        let (number, at) = words.split_once(' ').unwrap();
        let number: usize = number.parse().unwrap();
        assert_eq!(at.parse::<u64>().unwrap(), done[number], "{place}");
        done[number] += 1;
        count += 1;
        if count == last {
            std::thread::sleep(pause);
            child.kill().unwrap();
        }
    }
    let output = child.wait_with_output().unwrap();
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert!(!complaint.contains("panicked"), "{place}: {complaint}");
    done
}

#[test]
fn worker() {
    if let Ok(told) = std::env::var(WORK) {
        work(&told);
    }
}

#[test]
fn a_process_that_is_killed_loses_nothing_that_it_acknowledged() {
    let slow = std::env::var_os("STRATANN_SLOW").is_some();
    let cases = CASES.len() as u64;
    each_seed(0..if slow { 40 * cases } else { cases }, trial);
}
