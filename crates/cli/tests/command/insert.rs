//! An insert that is killed several times inserts each row once.
#![cfg(unix)]

use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};

use stratann::{CutOff, Element, Error, LiveIndex, Matrix, OpenOptions, Progress, WriteOptions};

use crate::support::{DIM, Place, ROWS, Ran, bin, u8s};
use crate::update::{lines, logged_or_ended};

const MORE: usize = 1_500;

/// The options of each way to insert, and whether the call gives ids.
const WAYS: [(&[&str], bool); 4] = [
    (&["--update", "merge"], false),
    (&["--update", "merge"], true),
    (&[], false),
    (&["--update", "accumulate"], true),
];

/// After these kills, the insert may complete.
const KILLS: usize = 4;

fn place() -> Place {
    let place = Place::with_index();
    place.write("more.u8bin", &u8s(MORE, DIM, 5));
    place.write("ids", &lines(ROWS as u64..(ROWS + MORE) as u64));
    place
}

fn logged(place: &Place) -> u64 {
    let logs = std::fs::read_dir(place.path("index")).unwrap();
    let logs = logs.map(Result::unwrap);
    let logs = logs.filter(|file| file.file_name().to_string_lossy().starts_with("log-"));
    logs.map(|log| log.metadata().map_or(0, |facts| facts.len()))
        .sum()
}

fn count(place: &Place) -> usize {
    let stats = place.run(&["count", "index"]).done();
    stats.stdout.trim().parse().unwrap()
}

/// The index has the rows of the build and then the rows of the file, by ascending id.
#[track_caller]
fn each_is_in_once(place: &Place) {
    place
        .run(&["get", "index", "--out", "all.u8bin", "--overwrite"])
        .done();
    let read = |name: &str| std::fs::read(place.path(name)).unwrap()[8..].to_vec();
    let all = [read("base.u8bin"), read("more.u8bin")].concat();
    let found = std::fs::read(place.path("all.u8bin")).unwrap();
    assert!(found == bin(ROWS + MORE, DIM, &all), "other vectors");
    let ids: Vec<u64> = (0..(ROWS + MORE) as u64).collect();
    let listed = place.run(&["get", "index", "--list"]).done().stdout;
    let listed: Vec<u64> = listed.lines().map(|line| line.parse().unwrap()).collect();
    assert_eq!(listed, ids);
    place.run(&["verify", "index"]).done();
}

fn cut(place: &Place, words: &[&str], bytes: u64, signal: &str) -> Ran {
    let before = logged(place);
    let mut command = place.command(words);
    let mut child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    if logged_or_ended(place, &mut child, before + bytes).is_none() {
        let mut kill = Command::new("kill");
        let _ = kills(&mut kill, signal, child.id());
    }
    let output = child.wait_with_output().unwrap();
    Ran {
        status: output.status.code(),
        stdout: String::from_utf8(output.stdout).unwrap(),
        stderr: String::from_utf8(output.stderr).unwrap(),
    }
}

fn kills(kill: &mut Command, signal: &str, id: u32) -> std::io::Result<std::process::ExitStatus> {
    kill.args([signal, &id.to_string()])
        .stderr(Stdio::null())
        .status()
}

/// Returns the number of kills after which the index had only a part of the rows.
fn kill_and_go_on(way: &[&str], given: bool) -> usize {
    let place = place();
    let words = ["insert", "index", "more.u8bin", "--durability", "always"];
    let ids: &[&str] = if given { &["--ids", "ids"] } else { &[] };
    let call = [&words[..], ids, way].concat();
    let insert = |more: &[&str]| place.run(&[&call[..], more].concat());
    let (mut middle, mut there) = (0, 0);
    for kill in 0..KILLS {
        let more: &[&str] = if there > 0 { &["--resume"] } else { &[] };
        // The insert is killed when its log is created (12 kB), or after some batches of 256 rows.
        let bytes = [1, 14_000, 30_000][kill % 3];
        let ran = cut(&place, &[&call[..], more].concat(), bytes, "-KILL");
        there = count(&place) - ROWS;
        let said = format!("{way:?}, given {given}, kill {kill}: {there} rows; {ran:?}");
        if ran.status.is_some() {
            assert_eq!((ran.status, there), (Some(0), MORE), "{said}");
            break;
        }
        middle += usize::from(there > 0 && there < MORE);
        if there > 0 && there < MORE {
            let refused = insert(&[]).refused(2, &["insert --resume index more.u8bin"]);
            let text = format!(
                "the first {there} of {MORE} are in the index, with ids {ROWS} to {}",
                ROWS + there - 1
            );
            assert!(given || refused.stderr.contains(&text), "{refused:?}");
            assert_eq!(count(&place) - ROWS, there, "{said}");
        }
    }
    if there < MORE {
        let more: &[&str] = if there > 0 { &["--resume"] } else { &[] };
        insert(more).done();
    }
    each_is_in_once(&place);
    let again = insert(&["--resume", "--json"]).done().json();
    assert_eq!(
        (&again["in_before"], &again["inserted"]),
        (&MORE.into(), &0.into())
    );
    middle
}

#[test]
fn a_killed_insert_goes_on_with_each_row_once() {
    for (way, given) in WAYS {
        // The insert may end before the kill.
        let hit = (0..20).any(|_| kill_and_go_on(way, given) > 0);
        assert!(
            hit,
            "{way:?}, given {given}: no kill hit the middle of the insert"
        );
    }
}

#[test]
fn a_stopped_insert_says_the_call_that_goes_on() {
    let place = place();
    std::fs::rename(place.path("index"), place.path("fresh")).unwrap();
    for signal in ["-INT", "-TERM"] {
        let mut hit = None;
        for _ in 0..20 {
            let _ = std::fs::remove_dir_all(place.path("index"));
            crate::update::copy(&place.path("fresh"), &place.path("index"));
            let words = [
                "insert",
                "index",
                "more.u8bin",
                "--update",
                "merge",
                "--durability",
                "always",
            ];
            let ran = cut(&place, &words, 14_000, signal);
            if ran.status != Some(0) && !ran.stderr.contains("the command was complete") {
                hit = Some(ran.interrupted(&[
                    "interrupted; the first ",
                    " rows are in the index, with ids 600 to ",
                ]));
                break;
            }
        }
        let ran = hit.unwrap_or_else(|| panic!("{signal}: no signal hit the middle of the insert"));
        let there = count(&place) - ROWS;
        assert!(
            ran.stderr
                .contains(&format!("the first {there} of {MORE} rows")),
            "{there}: {ran:?}"
        );
        let (_, call) = ran.stderr.split_once(". To continue: ").unwrap();
        assert!(call.contains("insert --resume index more.u8bin"), "{call}");
        let went = Command::new("sh")
            .args(["-c", call])
            .current_dir(place.path("."))
            .output()
            .unwrap();
        let said = String::from_utf8(went.stdout).unwrap();
        assert_eq!(went.status.code(), Some(0), "{said}");
        assert!(said.contains("inserted before"), "{said}");
        each_is_in_once(&place);
    }
}

fn cut_in_the_middle(place: &Place) -> usize {
    let mut there = 0;
    let fresh = place.path("fresh");
    std::fs::rename(place.path("index"), &fresh).unwrap();
    for _ in 0..20 {
        let _ = std::fs::remove_dir_all(place.path("index"));
        crate::update::copy(&fresh, &place.path("index"));
        let words = [
            "insert",
            "index",
            "more.u8bin",
            "--update",
            "merge",
            "--durability",
            "always",
        ];
        cut(place, &words, 14_000, "-KILL");
        there = count(place) - ROWS;
        if there > 0 && there < MORE {
            break;
        }
    }
    assert!(
        there > 0 && there < MORE,
        "no kill hit the middle of the insert"
    );
    there
}

#[test]
fn an_insert_that_was_cut_off_is_forgotten_also_without_its_file() {
    let place = place();
    let there = cut_in_the_middle(&place);
    let again = place.run(&["insert", "index", "./more.u8bin"]);
    let refused = again.refused(2, &["insert --resume index ./more.u8bin"]);
    assert!(!refused.stderr.contains("--forget"), "{refused:?}");
    std::fs::remove_file(place.path("more.u8bin")).unwrap();
    let forget = |file: &str| place.run(&["insert", "index", file, "--forget", "--json"]);
    forget("less.u8bin").refused(2, &["less.u8bin", "Give one of these", "more.u8bin"]);
    let forgotten = forget("more.u8bin").done().json();
    let whole = place.path("more.u8bin").display().to_string();
    assert_eq!(forgotten["forgotten"], serde_json::json!([whole]));
    assert_eq!(forgotten["vectors"], ROWS + there);
    forget("more.u8bin").refused(2, &["no insert of this file was cut off"]);
    place.write("one.u8bin", &u8s(1, DIM, 6));
    let quiet = place.run(&["insert", "index", "one.u8bin"]).done();
    assert!(!quiet.stderr.contains("cut off"), "{quiet:?}");
}

struct Ends(AtomicU64);

impl Progress for Ends {
    fn begin(&self, _: &str, _: u64) {}

    fn advance(&self, done: u64) {
        self.0.fetch_add(done, Ordering::Relaxed);
    }

    fn end(&self) {}

    fn warn(&self, _: &str) {}

    fn interrupted(&self) -> bool {
        self.0.load(Ordering::Relaxed) > 0
    }
}

/// As in an insert from Python, the source has a name but is no file.
#[test]
fn an_insert_of_an_array_that_was_cut_off_is_forgotten_by_its_name() {
    let place = place();
    let (open, write) = (OpenOptions::default(), WriteOptions::default());
    let live = LiveIndex::open(place.path("index"), &open, &write).unwrap();
    let rows = Matrix::new(u8s(MORE, DIM, 8)[8..].to_vec(), MORE, DIM, Element::U8).unwrap();
    let ends = Ends(AtomicU64::new(0));
    let cut = live.insert_resumable(&rows, None, None, CutOff::Refuse, &ends);
    assert!(matches!(cut, Err(Error::Partly { .. })), "{cut:?}");
    drop(live);
    place.write("one.u8bin", &u8s(1, DIM, 6));
    let other = place.run(&["insert", "index", "one.u8bin"]).done();
    for said in [
        "an insert of array was cut off",
        "`stratann insert --resume index FILE-OF-THESE-VECTORS`",
        "`stratann insert --forget index array`",
    ] {
        assert!(other.stderr.contains(said), "{said}: {other:?}");
    }
    place.run(&["insert", "index", "array", "--forget"]).done();
    let quiet = place.run(&["insert", "index", "one.u8bin"]).done();
    assert!(!quiet.stderr.contains("cut off"), "{quiet:?}");
}

#[test]
fn an_insert_that_was_cut_off_is_known_by_where_its_file_is() {
    let place = place();
    let there = cut_in_the_middle(&place);
    std::fs::create_dir(place.path("folder")).unwrap();
    std::fs::copy(place.path("more.u8bin"), place.path("folder/other.u8bin")).unwrap();
    place.write("folder/more.u8bin", &u8s(1, DIM, 6));
    let forget = |file: &str| place.run(&["insert", "index", file, "--forget"]);
    forget("folder/more.u8bin").refused(2, &["folder/more.u8bin"]);
    let other = place.run(&["insert", "index", "folder/more.u8bin"]).done();
    assert!(other.stderr.contains("was cut off"), "{other:?}");
    forget("folder/../more.u8bin").done();
    assert_eq!(count(&place), ROWS + there + 1);
}

#[test]
fn another_insert_says_which_one_was_cut_off_and_all_rows_go_in_where_that_is_wanted() {
    let place = place();
    let there = cut_in_the_middle(&place);
    place.write("one.u8bin", &u8s(1, DIM, 6));
    let other = place.run(&["insert", "index", "one.u8bin"]).done();
    let whole = place.path("more.u8bin").display().to_string();
    assert!(
        other
            .stderr
            .contains(&format!("an insert of {whole} was cut off"))
            && other.stderr.contains(&format!("--resume index {whole}")),
        "{other:?}"
    );
    // The new id follows the reserved ids.
    let listed = place.run(&["get", "index", "--list"]).done().stdout;
    assert_eq!(listed.lines().last(), Some(&*(ROWS + MORE).to_string()));
    place
        .run(&["insert", "index", "more.u8bin", "--no-resume"])
        .done();
    assert_eq!(count(&place), ROWS + there + 1 + MORE);
    let quiet = place.run(&["insert", "index", "one.u8bin"]).done();
    assert!(!quiet.stderr.contains("cut off"), "{quiet:?}");
    place
        .run(&[
            "insert",
            "index",
            "more.u8bin",
            "--ids",
            "ids",
            "--upsert",
            "--resume",
        ])
        .refused(2, &["--upsert", "--resume"]);
}
