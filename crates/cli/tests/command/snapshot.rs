//! A user copies an index with `snapshot`.

use std::fs;
use std::process::Stdio;

use crate::support::{Place, keys, names, u8s};

fn answers(place: &Place, index: &str) -> Vec<u8> {
    let out = format!("{index}.answers.bin");
    let words = [
        "search",
        index,
        "queries.u8bin",
        "--list",
        "100",
        "--out",
        &out,
    ];
    place.run(&words).done();
    fs::read(place.path(&out)).unwrap()
}

#[test]
fn a_copy_answers_as_the_index_did() {
    let place = Place::with_index();
    place.write("new.u8bin", &u8s(40, 16, 7));
    place.write("gone.ids", b"1 2 3");
    let insert = ["insert", "index", "new.u8bin", "--update", "merge"];
    place.run(&insert).done();
    let delete = ["delete", "index", "gone.ids", "--update", "merge"];
    place.run(&delete).done();
    let before = answers(&place, "index");
    let ran = place.run(&["snapshot", "index", "backups/copy"]).done();
    for words in ["backups/copy", "43, in the log", "files", "copied"] {
        assert!(ran.stdout.contains(words), "{words}: {}", ran.stdout);
    }
    fs::rename(place.path("backups/copy"), place.path("copy")).unwrap();
    fs::remove_dir_all(place.path("index")).unwrap();
    let verified = place.run(&["verify", "copy"]).done();
    assert!(verified.stdout.contains("clean"), "{verified:?}");
    assert!(!verified.stderr.contains("warning"), "{verified:?}");
    assert_eq!(answers(&place, "copy"), before);
    let ran = place.run(&["snapshot", "copy", "again", "--json"]).done();
    let report = ran.json();
    let expected = [
        "bytes",
        "checkpoint",
        "files",
        "log_records",
        "seconds",
        "shared_bytes",
        "tries",
    ];
    assert_eq!(keys(&report), expected);
    let written = names(&place.path("again"));
    let files = written.iter().filter(|name| *name != "LOCK").count() as u64;
    assert_eq!(report["files"], files, "{written:?}");
    assert_eq!(report["log_records"], 43);
}

#[test]
fn what_is_in_the_way_is_named_and_left_alone() {
    let place = Place::with_index();
    place
        .run(&["snapshot", "index", "index"])
        .refused(2, &["index: it holds", "empty or does not exist yet"]);
    place
        .run(&["snapshot", "index", "base.u8bin"])
        .refused(2, &["base.u8bin: it is a file"]);
    fs::create_dir_all(place.path("folder/within")).unwrap();
    place
        .run(&["snapshot", "index", "folder"])
        .refused(2, &["it holds \"within\""]);
    assert_eq!(names(&place.path("folder")), ["within"]);
    place
        .run(&["snapshot", "nothing", "copy"])
        .refused(1, &["nothing: not an index"]);
    assert!(!place.path("copy").exists());
    // Files of an earlier command that was killed are removed.
    fs::create_dir(place.path("copy")).unwrap();
    for name in ["SNAPSHOT.new", "graph-000009", "log-000002"] {
        fs::write(place.path("copy").join(name), b"half").unwrap();
    }
    place
        .run(&["search", "copy", "queries.u8bin"])
        .refused(1, &["not an index", "an unfinished snapshot"]);
    place.run(&["snapshot", "index", "copy"]).done();
    assert!(!names(&place.path("copy")).contains(&"graph-000009".to_owned()));
    assert_eq!(answers(&place, "copy"), answers(&place, "index"));
    let graph = names(&place.path("copy"));
    let graph = graph
        .iter()
        .find(|name| name.starts_with("codes-"))
        .unwrap();
    fs::remove_file(place.path("copy").join(graph)).unwrap();
    place
        .run(&["snapshot", "copy", "third"])
        .refused(1, &[graph]);
    assert!(!place.path("third").exists());
}

#[test]
fn copies_of_an_index_that_another_process_changes_are_whole() {
    let place = Place::with_index();
    place.write("new.u8bin", &u8s(3_000, 16, 9));
    let words = [
        "insert",
        "index",
        "new.u8bin",
        "--durability",
        "100ms",
        "--compact",
        "-T",
        "1",
    ];
    let mut command = place.command(&words);
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = command.spawn().unwrap();
    let mut copies = 0;
    let mut sizes = Vec::new();
    loop {
        let over = child.try_wait().unwrap();
        let copy = format!("copy-{copies}");
        place.run(&["snapshot", "index", &copy]).done();
        let verified = place.run(&["verify", &copy]).done();
        assert!(verified.stdout.contains("clean"), "{verified:?}");
        let listed = place.run(&["get", &copy, "--list"]).done();
        let ids: Vec<usize> = listed
            .stdout
            .lines()
            .map(|id| id.parse().unwrap())
            .collect();
        // A copy has the first rows of the file, in their order.
        assert!(ids.iter().copied().eq(0..ids.len()), "{copy}: {ids:?}");
        assert!(ids.len() >= 600);
        sizes.push(ids.len());
        copies += 1;
        if let Some(status) = over {
            assert!(status.success());
            break;
        }
    }
    assert!(sizes.is_sorted(), "{sizes:?}");
    assert_eq!(sizes.last(), Some(&3_600));
}
