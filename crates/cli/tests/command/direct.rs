//! Direct inserts: searches, counts, and kills.

use std::collections::HashSet;
use std::fs;
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::support::{Place, bin, numbers};
use crate::update::{
    BUILT, DIM, all_found, answers, answers_wide, changed, copy, counts, exactly, lines,
    logged_bytes, logged_or_ended, logs, place, rows, verified, with_files_up_to,
};

pub const WAYS: [(&str, &str); 4] = [
    ("stratann", "accumulate"),
    ("odinann", "relocate"),
    ("decouplevs", "accumulate"),
    ("aisaq", "in-place"),
];

const ALL: usize = 20_000;

/// Checks that searches find the rows `first..end` once, and no later rows.
#[track_caller]
pub fn found_up_to(place: &Place, first: usize, end: usize, at: &str) {
    let count = (end + 100).min(ALL) - first;
    let few = 2 + count / 100;
    place.write("sought.u8bin", &rows(first, count));
    let mut missed = Vec::new();
    for (row, answers) in (first..).zip(answers(place, "sought.u8bin")) {
        if row < end && !exactly(&answers, row as u64) {
            missed.push(row);
        }
        assert!(
            row < end || !exactly(&answers, row as u64),
            "{at}, row {row} of {first} to {end}: {answers:?}"
        );
        let ids: HashSet<u64> = answers.iter().map(|(id, _)| *id).collect();
        assert_eq!(ids.len(), answers.len(), "{at}, row {row}: {answers:?}");
    }
    assert!(missed.len() <= few, "{at}: {missed:?} of {first} to {end}");
    for row in missed {
        place.write("sought.u8bin", &rows(row, 1));
        let wide = answers_wide(place, "sought.u8bin");
        assert!(exactly(&wide[0], row as u64), "{at}, row {row}: {wide:?}");
    }
}

#[track_caller]
pub fn live(place: &Place) -> usize {
    let (vectors, logged, deleted) = counts(place);
    (vectors + logged - deleted) as usize
}

pub fn times(few: usize, slow: usize) -> usize {
    match std::env::var_os("STRATANN_SLOW") {
        Some(_) => slow,
        None => few,
    }
}

#[test]
fn what_is_inserted_directly_is_in_the_checkpoint() {
    let ways = [
        ("stratann", None),
        ("stratann", Some("relocate")),
        ("odinann", None),
        ("stratann", Some("in-place")),
        ("decouplevs", Some("accumulate")),
        ("odinann", Some("accumulate")),
        ("aisaq", None),
        ("decouplevs", Some("relocate")),
    ];
    // The engine's tests cover the other combinations.
    for (preset, update) in ways.into_iter().step_by(times(2, 1)) {
        let place = place(preset);
        let way = update.map_or(vec![], |update| vec!["--update", update]);
        let at = format!("{preset} {way:?}");
        let change = |words: &[&str]| changed(place.run(&[words, &["--json"], &way].concat()));

        place.write("new.u8bin", &rows(2_000, 300));
        let ran = place.run(&[&["insert", "index", "new.u8bin", "--json"][..], &way].concat());
        let json = ran.json();
        assert_eq!(json["direct"]["inserts"], 300, "{at}: {json}");
        assert!(json["direct"]["changes"].as_u64().unwrap() > 300, "{json}");
        // If records move, 300 inserts rewrite all pages of this small graph.
        let due = json["due"].as_str().unwrap_or("nothing");
        let moves = update != Some("in-place") && preset != "aisaq";
        assert_eq!(due.contains("% of the pages"), moves, "{at}: {json}");
        assert!(moves || due == "nothing", "{at}: {json}");
        assert!(json["compact"].is_null(), "{json}");
        assert_eq!(changed(ran), [300, 0, 2_300], "{at}");
        assert_eq!(counts(&place), (2_300, 0, 0), "{at}");
        assert_eq!(verified(&place), 0, "{at}");
        found_up_to(&place, 2_000, 2_300, &at);

        place.write("all.u8bin", &rows(0, 2_300));
        place.write("asked.u8bin", &rows(10_000, 100));
        let truth = ["truth", "all.u8bin", "asked.u8bin", "all.bin", "-k", "10"];
        place.run(&truth).done();
        let search = ["search", "index", "asked.u8bin", "--list", "100", "--json"];
        let search = [&search[..], &["--truth", "all.bin"]].concat();
        let found = place.run(&search).done().json_lines();
        let recall = found[0]["recall"].as_f64().unwrap();
        assert!(recall >= 0.97, "{at}: {recall}");

        place.write("more.u8bin", &rows(2_300, 5));
        place.write("more.ids", b"9000 9001 9002 9003 9004");
        let insert = ["insert", "index", "more.u8bin", "--ids", "more.ids"];
        let more = change(&[&insert[..], &["--durability", "always"]].concat());
        assert_eq!(more, [5, 0, 2_305], "{at}");

        let gone = [0, 1, 1_999, 2_000, 2_001, 9_004];
        place.write("gone.ids", &lines(gone));
        let deleted = change(&["delete", "index", "gone.ids"]);
        assert_eq!(deleted, [0, 6, 2_299], "{at}");
        assert_eq!(counts(&place), (2_305, 0, 6), "{at}");
        let gone_rows = [0, 1, 1_999, 2_000, 2_001, 2_304].map(|row| rows(row, 1)[8..].to_vec());
        place.write("gone.u8bin", &bin(6, DIM, &gone_rows.concat()));
        for answers in answers(&place, "gone.u8bin") {
            assert!(
                answers.iter().all(|(id, _)| !gone.contains(id)),
                "{at}: {answers:?}"
            );
        }

        // The ids belong to a vector of the build, an inserted vector, a deleted vector, and no
        // vector.
        let replaced = [10, 2_010, 0, 7_000];
        place.write("upsert.ids", &lines(replaced));
        place.write("upsert.u8bin", &rows(3_000, 4));
        let upsert = ["insert", "index", "upsert.u8bin", "--ids", "upsert.ids"];
        let upserted = change(&[&upsert[..], &["--upsert"]].concat());
        assert_eq!(upserted, [4, 0, 2_301], "{at}");
        assert_eq!(counts(&place), (2_309, 0, 8), "{at}");
        let before_rows = [10, 2_010].map(|row| rows(row, 1)[8..].to_vec());
        place.write("before.u8bin", &bin(2, DIM, &before_rows.concat()));
        let as_replaced = || {
            all_found(&place, "upsert.u8bin", replaced, &at);
            for (answers, id) in answers(&place, "before.u8bin").iter().zip(replaced) {
                assert!(!exactly(answers, id), "{at}, {id}: {answers:?}");
            }
        };
        as_replaced();
        assert_eq!(verified(&place), 0, "{at}");

        // An id has one vector, however often it was inserted.
        let upserted = change(&[&upsert[..], &["--upsert"]].concat());
        assert_eq!(upserted, [4, 0, 2_301], "{at}");
        assert_eq!(live(&place), 2_301, "{at}");
        as_replaced();

        let insert = ["insert", "index", "more.u8bin", "--ids", "more.ids"];
        place
            .run(&[&insert[..], &way].concat())
            .refused(2, &["9000", "upsert"]);
        assert_eq!(live(&place), 2_301, "{at}");

        let compact = [&["compact", "index", "--json"][..], &way].concat();
        let compacted = place.run(&compact).done().json();
        assert_eq!(compacted["compact"]["vectors"], 2_301, "{at}");
        assert_eq!(counts(&place), (2_301, 0, 0), "{at}");
        assert_eq!(verified(&place), 0, "{at}");
        as_replaced();
        let again = place.run(&[&["compact", "index"][..], &way].concat());
        assert!(again.done().stdout.contains("nothing"), "{at}");

        // An id is never assigned twice, even after a merge has removed it.
        place.write("one.u8bin", &rows(4_000, 1));
        assert_eq!(change(&["insert", "index", "one.u8bin"]), [1, 0, 2_302]);
        all_found(&place, "one.u8bin", [9_005], &at);
    }
}

/// A merge does not read direct inserts from the log, so its report counts them separately.
#[test]
fn a_merge_says_what_it_wrote() {
    for (way, words) in [
        (
            "accumulate",
            "2,040 vectors, 50 of them inserted directly since the last merge; 10 deleted",
        ),
        (
            "merge",
            "2,040 vectors, 50 of them from the log; 10 deleted",
        ),
    ] {
        let place = place("stratann");
        place.write("new.u8bin", &rows(BUILT, 50));
        let gone: Vec<String> = (0..10).map(|id| id.to_string()).collect();
        place.write("gone.ids", gone.join(" ").as_bytes());
        let insert = ["insert", "index", "new.u8bin", "--update", way];
        place.run(&insert).done();
        let delete = ["delete", "index", "gone.ids", "--update", way];
        place.run(&delete).done();
        let merged = place
            .run(&["compact", "index", "--update", way])
            .done()
            .stdout;
        assert!(merged.contains(words), "{way}: {merged}");
    }
}

#[test]
fn ways_to_insert_may_change() {
    let place = place("stratann");
    let mut there = BUILT;
    let steps = [
        ("merge", 100),
        ("accumulate", 0),
        ("relocate", 0),
        ("merge", 100),
        ("merge", 200),
        ("in-place", 0),
    ];
    for (way, logged) in steps {
        place.write("new.u8bin", &rows(there, 100));
        let insert = ["insert", "index", "new.u8bin", "--json", "--update", way];
        there += 100;
        assert_eq!(changed(place.run(&insert)), [100, 0, there as u64], "{way}");
        let expected = (there as u64 - logged, logged, 0);
        assert_eq!(counts(&place), expected, "{way}");
        assert_eq!(verified(&place), logged, "{way}");
        found_up_to(&place, BUILT, there, way);
    }
}

/// A merge is due when a tenth of the vectors, and at least a thousand, are deleted.
#[test]
fn a_merge_that_is_due_is_said() {
    let place = place("stratann");
    place.write("ids", &lines(0..399));
    let few = place.run(&["delete", "index", "ids", "--json"]).done();
    assert!(few.json()["due"].is_null(), "{few:?}");
    place.write("ids", &lines(399..1_010));
    let many = place.run(&["delete", "index", "ids", "--json"]).done();
    let due = many.json()["due"].as_str().map(str::to_owned);
    assert!(due.is_some_and(|due| due.contains("deleted")), "{many:?}");
    place.write("new.u8bin", &rows(2_000, 1));
    let said = place.run(&["insert", "index", "new.u8bin"]).done().stdout;
    assert!(
        said.contains("due") && said.contains("stratann compact"),
        "{said}"
    );
    let done = place.run(&["compact", "index", "--json"]).done().json();
    assert!(done["due"].is_null(), "{done}");
}

#[test]
fn a_killed_direct_insert_keeps_what_was_logged() {
    let kills = times(3, 100);
    let (mut middle, mut replayed) = (0, 0);
    // The rounds are repeated until enough kills have hit the middle of an insert.
    for round in 0..10 {
        for (preset, way) in WAYS {
            let hit = kill_inserts(preset, way, kills, round);
            middle += hit.0;
            replayed += hit.1;
        }
        eprintln!("round {round}: {middle} in the middle, {replayed} with a log");
        if middle * 4 >= kills * WAYS.len() && replayed * 4 >= kills * WAYS.len() {
            return;
        }
    }
    panic!("only {middle} kills hit the middle of an insert, {replayed} of them with a log");
}

/// The number of kills within an insert, and of kills that left records in a log.
fn kill_inserts(preset: &str, way: &str, kills: usize, round: u64) -> (usize, usize) {
    const ROWS: usize = 600;
    /// The number of kills before the test takes a new copy of the index.
    const LIFE: usize = 10;
    let place = place(preset);
    fs::rename(place.path("index"), place.path("fresh")).unwrap();
    let mut next = numbers(7 + round);
    let (mut in_the_middle, mut replayed) = (0, 0);
    let insert = ["insert", "index", "rows.u8bin", "--ids", "ids", "--quiet"];
    let insert = [&insert[..], &["--update", way, "--durability", "always"]].concat();
    let step = |first: usize, count: usize| {
        place.write("rows.u8bin", &rows(first, count));
        place.write("ids", &lines(first as u64..(first + count) as u64));
    };
    for life in 0..kills.div_ceil(LIFE) {
        if life > 0 {
            fs::remove_dir_all(place.path("index")).unwrap();
        }
        copy(&place.path("fresh"), &place.path("index"));
        let mut there = BUILT;
        for kill in 0..LIFE.min(kills) {
            step(there, ROWS);
            let before = logged_bytes(&place);
            let wanted = u64::from(next()) % (ROWS as u64 * (28 + DIM as u64));
            let mut child = place
                .command(&insert)
                .stdout(Stdio::null())
                .spawn()
                .unwrap();
            logged_or_ended(&place, &mut child, before + 1 + wanted);
            let seen = if kill % 2 == 0 { live(&place) } else { there };
            std::thread::sleep(Duration::from_micros(u64::from(next()) % 3_000));
            let ended = child.try_wait().unwrap();
            child.kill().unwrap();
            child.wait().unwrap();
            assert!(ended.is_none_or(|status| status.success()), "{ended:?}");

            let (files, bytes) = logs(&place);
            let records = verified(&place);
            let (vectors, logged, deleted) = counts(&place);
            let now = live(&place);
            let at = format!(
                "{preset}, {way}, life {life}, kill {kill} at {wanted} bytes: {vectors} and {logged}, {seen} seen, {files:?} \
                 of {bytes:?}"
            );
            assert_eq!((deleted, records), (0, logged), "{at}");
            assert!(now >= seen && now <= there + ROWS, "{at}, {there} before");
            if ended.is_some() {
                assert_eq!((now, logged), (there + ROWS, 0), "{at}");
            }
            in_the_middle += usize::from(now > there && now < there + ROWS);
            replayed += usize::from(logged > 0);
            let some = times(100, 300);
            found_up_to(&place, there.max(now.saturating_sub(some)), now, &at);
            there = now;
        }
        step(there, 50);
        let [.., found] = changed(place.run(&[&insert[..], &["--json"]].concat()));
        there += 50;
        assert_eq!(found, there as u64);
        assert_eq!(counts(&place), (found, 0, 0), "{preset}, {way}");
        assert_eq!(verified(&place), 0);
        found_up_to(&place, there - times(200, there - BUILT), there, way);
        let compacted = place.run(&["compact", "index", "--json"]).done().json();
        assert_eq!(compacted["vectors"], there as u64);
        assert_eq!(verified(&place), 0);
    }
    (in_the_middle, replayed)
}

/// A limit on the size of files acts like a full disk.
#[test]
fn pages_that_cannot_be_written_lose_nothing() {
    for (preset, way) in WAYS.into_iter().step_by(times(3, 1)) {
        let place = place(preset);
        let stored = |name: &str| {
            let folder = place.path("index");
            let found = crate::support::names(&folder).into_iter();
            let mut found = found.filter(|file| file.starts_with(name));
            found
                .next()
                .map(|file| fs::metadata(folder.join(file)).unwrap().len())
        };
        let kinds: &[&str] = match preset {
            "stratann" => &["packed-"],
            "decouplevs" => &["vectors-", "adjacency-"],
            "aisaq" => &["inline-", "journal-"],
            _ => &["graph-"],
        };
        let pages = stored(kinds[0]).unwrap();
        let most = if preset == "decouplevs" {
            60
        } else {
            times(80, 300) as u32
        };
        let new = times(800, 2_000);
        for &more in &[most, 20, 100][..times(1, 3)] {
            let there = live(&place);
            place.write("new.u8bin", &rows(there, new));
            let ids = there as u64..(there + new) as u64;
            place.write("new.ids", &lines(ids));
            let insert = ["insert", "index", "new.u8bin", "--ids", "new.ids"];
            let insert = [&insert[..], &["--update", way, "--upsert"]].concat();
            let always = [&insert[..], &["--durability", "always"]].concat();
            let pages = pages.max(stored(kinds[0]).unwrap());
            let at = format!("{preset}, {way}, {more} KiB more than {pages}");
            let ran = with_files_up_to(&place, (pages / 512) as u32 + 2 * more, &always);
            eprintln!("{at}: {}", ran.stderr.lines().last().unwrap_or_default());
            let said = kinds.iter().find(|&&kind| ran.stderr.contains(kind));
            ran.refused(1, &[said.unwrap_or(&kinds[0]), "rows are in"]);
            let now = live(&place);
            assert!(now >= there && now < there + new, "{at}: {now}");
            verified(&place);
            found_up_to(&place, there, now, &at);
            place.run(&insert).done();
            assert_eq!(live(&place), there + new, "{at}");
            assert_eq!(verified(&place), 0, "{at}");
            found_up_to(&place, there, there + new, &at);
        }
    }
}

#[test]
fn readers_search_while_vectors_get_in_directly() {
    // Pages of lists of `decouplevs` move like packed pages, so this preset is left out.
    for (preset, way) in WAYS
        .into_iter()
        .filter(|(preset, _)| *preset != "decouplevs")
    {
        let place = place(preset);
        // The search takes so long that the insert writes a checkpoint meanwhile.
        let turns = times(1, 6);
        let asked = rows(0, BUILT)[8..].repeat(turns);
        place.write("asked.u8bin", &bin(turns * BUILT, DIM, &asked));
        place.write("quick.u8bin", &rows(0, 100));
        let each = times(300, 3_000);
        for part in 0..3 {
            let name = format!("part{part}.u8bin");
            place.write(&name, &rows(BUILT + part * each, each));
        }
        let done = AtomicBool::new(false);
        let mut searches = 0;
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for part in 0..3 {
                    let part = format!("part{part}.u8bin");
                    let insert = ["insert", "index", &part, "--update", way, "--json"];
                    let ran = place.run(&insert);
                    // A panic here would not set `done`, and the searching threads would never end.
                    if ran.status != Some(0) {
                        eprintln!("{ran:?}");
                        break;
                    }
                }
                done.store(true, Ordering::Release);
            });
            while !done.load(Ordering::Acquire) {
                let (queries, count) = match searches % 3 {
                    0 => ("asked.u8bin", turns * BUILT),
                    _ => ("quick.u8bin", 100),
                };
                let search = ["search", "index", queries, "--list", "100", "--json"];
                let ran =
                    place.run(&[&search[..], &["--out", "answers.bin", "--overwrite"]].concat());
                searches += 1;
                // If an insert reuses pages that a search needs, the search opens the index again.
                assert_eq!(ran.status, Some(0), "{preset}, {way}: {}", ran.stderr);
                let found = crate::update::answers_in(&place, "answers.bin");
                assert_eq!(found.len(), count);
                let mut missed = HashSet::new();
                for (at, answers) in found.iter().enumerate() {
                    let id = (at % BUILT) as u64;
                    if !exactly(answers, id) {
                        missed.insert(id);
                    }
                    let right = |pair: &[(u64, f32)]| pair[0].1 <= pair[1].1;
                    assert!(answers.windows(2).all(right), "{answers:?}");
                }
                // While threads change lists, a search may miss rows; a long list finds them.
                assert!(missed.len() <= BUILT / 100, "{preset}: {missed:?}");
                for id in missed {
                    place.write("missed.u8bin", &rows(id as usize, 1));
                    let wide = answers_wide(&place, "missed.u8bin");
                    assert!(exactly(&wide[0], id), "{preset}, row {id}: {wide:?}");
                }
            }
        });
        eprintln!("{preset}, {way}: {searches} searches");
        assert!(searches > 0);
        let all = BUILT + 3 * each;
        assert_eq!(counts(&place), (all as u64, 0, 0), "{preset}, {way}");
        assert_eq!(verified(&place), 0);
        found_up_to(&place, all - each, all, way);
    }
}
