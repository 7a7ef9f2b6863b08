//! Backups by hard links (`cp -al`), in which changes of one side leave the other unchanged.
#![cfg(unix)]

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use crate::support::{DIM, Place, QUERIES, names, u8s};
use crate::update::lines;

fn files(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let names = names(folder).into_iter().filter(|name| name != "LOCK");
    names
        .map(|name| (name.clone(), std::fs::read(folder.join(name)).unwrap()))
        .collect()
}

fn link(place: &Place, from: &str, to: &str) {
    let mut copy = Command::new("cp");
    let copied = copy
        .arg("-al")
        .arg(place.path(from))
        .arg(place.path(to))
        .status();
    assert!(copied.unwrap().success());
}

fn answers(place: &Place, index: &str) -> Vec<String> {
    let search = [
        "search",
        index,
        "queries.u8bin",
        "-k",
        "5",
        "--print",
        "--json",
    ];
    let printed = place.run(&search).done().json_lines();
    assert_eq!(printed.len(), QUERIES);
    printed.iter().map(|line| line["ids"].to_string()).collect()
}

#[test]
fn a_backup_by_hard_links_stays_what_it_was_and_the_index_goes_on() {
    for preset in ["odinann", "aisaq", "tiered-cluster", "stratann"] {
        let place = Place::new();
        let build = ["build", "base.u8bin", "index", "--preset", preset];
        let small: &[&str] = match preset {
            "tiered-cluster" => &[],
            _ => &["--degree", "16", "--build-list", "32"],
        };
        place.run(&[&build, small].concat()).done();
        place.write("first.u8bin", &u8s(40, DIM, 5));
        place.run(&["insert", "index", "first.u8bin"]).done();
        link(&place, "index", "backup");
        let (before, found) = (files(&place.path("backup")), answers(&place, "backup"));
        place.write("more.u8bin", &u8s(60, DIM, 6));
        place.write("gone", &lines(0..20));
        let log = |words: &[&str]| {
            let mut command = place.command(words);
            let output = command.env("STRATANN_LOG", "info").output().unwrap();
            assert!(output.status.success(), "{preset}: {output:?}");
            String::from_utf8(output.stderr).unwrap()
        };
        let said = log(&["delete", "index", "gone"]);
        assert!(!said.contains("hard links"), "{preset}: a delete: {said}");
        let said = log(&["insert", "index", "more.u8bin"]);
        let copies = said.matches("has other names (hard links)").count();
        assert_eq!(
            copies,
            usize::from(preset != "tiered-cluster"),
            "{preset}: {said}"
        );
        link(&place, "index", "other");
        let said = log(&["compact", "index"]);
        assert!(!said.contains("hard links"), "{preset}: a merge: {said}");
        let said = log(&["insert", "index", "first.u8bin", "--no-resume"]);
        assert!(!said.contains("hard links"), "{preset}: new files: {said}");
        place.run(&["verify", "other"]).done();
        assert_eq!(files(&place.path("backup")), before, "{preset}");
        place.run(&["verify", "backup"]).done();
        place.run(&["verify", "index"]).done();
        assert_eq!(answers(&place, "backup"), found, "{preset}");
        let now = files(&place.path("index"));
        place.run(&["insert", "backup", "more.u8bin"]).done();
        place.run(&["verify", "backup"]).done();
        assert_eq!(files(&place.path("index")), now, "{preset}");
        let count = |index| place.run(&["count", index]).done().stdout.trim().to_owned();
        assert_eq!(
            (count("index"), count("backup")),
            ("720".into(), "700".into())
        );
    }
}
