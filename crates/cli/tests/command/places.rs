//! `--place` in every command that opens an index, for each role and tier.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::FileExt;
use std::process::{Child, Stdio};

use crate::support::{Place, names};

/// Best-first searches do not depend on the order in which reads complete.
const STEADY: [&str; 2] = ["--strategy", "best-first"];

/// Also runs a pipelined search, whose results are not compared.
fn found(place: &Place, words: &[&str]) -> Vec<u8> {
    let search = ["search", "a.idx", "queries.u8bin"];
    let out = ["--out", "found.bin", "--overwrite"];
    let pipelined = ["--strategy", "pipelined"];
    place.run(&[&search[..], &pipelined, words].concat()).done();
    place
        .run(&[&search[..], &STEADY, &out, words].concat())
        .done();
    fs::read(place.path("found.bin")).unwrap()
}

#[test]
fn every_command_that_opens_an_index_reads_it_where_it_is_told_to() {
    let place = Place::with_photos();
    let build = [
        "build",
        "photos.u8bin",
        "a.idx",
        "--degree",
        "16",
        "--layout",
        "decoupled",
    ];
    let both = "topology=mapped:near,vectors=mapped:near";
    place.run(&[&build[..], &["--place", both]].concat()).done();
    fs::copy(place.path("asked.u8bin"), place.path("queries.u8bin")).unwrap();
    assert_eq!(
        names(&place.path("near")).len(),
        1,
        "the build has made copies"
    );
    let right = found(&place, &[]);
    for words in [
        &["--place", both][..],
        &["--place", "topology=dram", "--place", "vectors=nvm-model"],
        &["--place", "topology=ssd:other,vectors=ssd"],
        &["--place", "topology=cxl-model,vectors=rdma-model"],
    ] {
        assert_eq!(found(&place, words), right, "{words:?}");
    }
    assert_eq!(names(&place.path("other")).len(), 1);
    let stats = place
        .run(&["stats", "a.idx", "--json", "--place", "topology=dram"])
        .done()
        .json();
    assert!(stats["memory"]["places"].as_u64() > Some(4096), "{stats}");
    let copies = place.path("near").join(&names(&place.path("near"))[0]);
    let spoiled = names(&copies)
        .into_iter()
        .find(|name| name.starts_with("adjacency-"));
    let spoiled = copies.join(spoiled.unwrap());
    let file = fs::OpenOptions::new().write(true).open(&spoiled).unwrap();
    file.write_all_at(b"not what it was", 4096 + 200).unwrap();
    place.run(&["verify", "a.idx"]).done();
    let damaged = place.run(&["verify", "a.idx", "--place", both]);
    assert_eq!(damaged.status, Some(1), "{damaged:?}");
    // Only the copy is damaged, so the remedy is `copies --remove`.
    assert!(
        !damaged.stderr.contains("repair") && damaged.stderr.contains("--remove"),
        "{damaged:?}"
    );
    assert!(
        damaged
            .stdout
            .contains(spoiled.file_name().unwrap().to_str().unwrap()),
        "{damaged:?}"
    );
    let listed = place
        .run(&["copies", "a.idx", "--place", both, "--json"])
        .done()
        .json();
    assert_eq!(listed["copies"][0]["current"], true, "{listed}");
    assert_eq!(listed["copies"][0]["state"], "current", "{listed}");
    let all = place.run(&["copies", "--place", both, "--json"]).done();
    assert_eq!(all.json()["copies"][0]["state"], "unknown", "{all:?}");
    let all = place.run(&["copies", "--place", both]).done();
    assert!(all.stdout.contains("unknown"), "{all:?}");
    let removed = place
        .run(&["copies", "a.idx", "--place", both, "--remove"])
        .done();
    assert!(removed.stdout.contains("removed"), "{removed:?}");
    assert!(names(&place.path("near")).is_empty());
    place.run(&["verify", "a.idx", "--place", both]).done();
    assert_eq!(place.run(&["copies", "a.idx"]).status, Some(2));
    for words in [
        &["insert", "a.idx", "queries.u8bin", "--place", both][..],
        &["compact", "a.idx", "--place", both],
        &["verify", "a.idx", "--place", both],
        &["verify", "a.idx"],
    ] {
        place.run(words).done();
    }
    assert_eq!(names(&place.path("near")).len(), 1);
    assert_ne!(
        copies,
        place.path("near").join(&names(&place.path("near"))[0])
    );
    assert_eq!(found(&place, &["--place", both]), found(&place, &[]));
}

/// The drop kills the server.
struct Server {
    child: Child,
    address: String,
}

impl Server {
    fn start(place: &Place, words: &[&str], secret: Option<&str>) -> Server {
        let mut command =
            place.command(&[&["memory-server", "--bytes", "32MiB"][..], words].concat());
        command
            .stdout(Stdio::piped())
            .env_remove("STRATANN_SECRET_FILE");
        match secret {
            Some(secret) => command.env("STRATANN_SECRET", secret),
            None => command.env_remove("STRATANN_SECRET"),
        };
        let mut child = command.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().unwrap())
            .read_line(&mut line)
            .unwrap();
        let address = line
            .split(' ')
            .nth(2)
            .unwrap_or_else(|| panic!("{line}"))
            .to_owned();
        Server { child, address }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

#[test]
fn an_index_is_searched_in_the_memory_of_another_process() {
    let place = Place::with_photos();
    place
        .run(&[
            "build",
            "photos.u8bin",
            "a.idx",
            "--degree",
            "16",
            "--layout",
            "decoupled",
        ])
        .done();
    fs::copy(place.path("asked.u8bin"), place.path("queries.u8bin")).unwrap();
    let right = found(&place, &[]);
    for folder in [None, Some("kept")] {
        let words: Vec<&str> = folder
            .iter()
            .flat_map(|folder| ["--folder", folder])
            .collect();
        let words = [&words[..], &["--listen", "127.0.0.1:0", "--ring", "ring"]].concat();
        let secret = "a secret of these tests";
        let server = Server::start(&place, &words, Some(secret));
        let text = format!(
            "topology=remote:{0}/photos,vectors=remote:{0}/photos",
            server.address
        );
        let search = |secret: &str, text: &str| {
            let words = ["search", "a.idx", "queries.u8bin", "--place", text];
            let out = ["--out", "found.bin", "--overwrite"];
            let output = place
                .command(&[&words[..], &STEADY, &out].concat())
                .env("STRATANN_SECRET", secret)
                .output()
                .unwrap();
            (
                output.status.code(),
                String::from_utf8(output.stderr).unwrap(),
            )
        };
        assert_eq!(search(secret, &text), (Some(0), String::new()));
        assert_eq!(fs::read(place.path("found.bin")).unwrap(), right);
        let (status, said) = search("another secret, of nobody", &text);
        assert!(
            status == Some(1) && said.contains("STRATANN_SECRET_FILE"),
            "{said}"
        );
        let ring = "topology=remote:shm:ring/photos,vectors=remote:shm:ring/photos";
        assert_eq!(search(secret, ring), (Some(0), String::new()));
        assert_eq!(fs::read(place.path("found.bin")).unwrap(), right);
        // A search must read the server's copy, not these damaged pages.
        let folder = place.path("a.idx");
        let pages = names(&folder)
            .into_iter()
            .filter(|name| name.starts_with("adjacency-"));
        for name in pages {
            let file = fs::OpenOptions::new()
                .write(true)
                .open(folder.join(&name))
                .unwrap();
            let bytes = fs::read(folder.join(&name)).unwrap();
            file.write_all_at(&vec![7; bytes.len() - 4096], 4096)
                .unwrap();
            let (status, said) = search(secret, &text);
            let copy = format!("{}/photos.", server.address);
            assert!(status == Some(1) && said.contains(&copy), "{said}");
            assert_eq!(search(secret, "topology=ssd").0, Some(1));
            file.write_all_at(&bytes, 0).unwrap();
            assert_eq!(search(secret, &text), (Some(0), String::new()));
            assert_eq!(fs::read(place.path("found.bin")).unwrap(), right);
        }
        let pipelined = ["search", "a.idx", "queries.u8bin", "--place", &text];
        let mut pipelined = place.command(&[&pipelined[..], &["--strategy", "pipelined"]].concat());
        let output = pipelined.env("STRATANN_SECRET", secret).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        drop(server);
        let (status, said) = search(secret, &text);
        assert!(
            status == Some(1) && said.contains("memory server cannot be reached"),
            "{said}"
        );
    }
    // Without a given secret, a server on loopback has the user's secret, and so have its clients.
    let server = Server::start(&place, &["--listen", "127.0.0.1:0"], None);
    let text = format!("topology=remote:{}/photos", server.address);
    place.run(&["verify", "a.idx", "--place", &text]).done();
    place
        .run(&["insert", "a.idx", "queries.u8bin", "--place", &text])
        .refused(2, &["only for searches"]);
    let listed = |words: &[&str]| {
        let words = [&["copies", "--json", "--place", &text][..], words].concat();
        place.run(&words).done().json()["copies"]
            .as_array()
            .unwrap()
            .clone()
    };
    let [mine] = &listed(&["a.idx"])[..] else {
        panic!("{:?}", listed(&[]));
    };
    assert!(
        mine["current"] == true && mine["bytes"].as_u64() > Some(4096),
        "{mine}"
    );
    assert_eq!(listed(&["--remove"])[0]["removed"], true);
    assert!(listed(&[]).is_empty());
    if !cfg!(feature = "ucx") {
        let through = format!("topology=remote:ucx:{}/photos", server.address);
        place
            .run(&["verify", "a.idx", "--place", &through])
            .refused(1, &["without UCX", "--features ucx"]);
    }
    // A server that other machines can reach needs a given secret.
    let open = ["memory-server", "--bytes", "1MiB", "--listen", "0.0.0.0:0"];
    place.run(&open).refused(2, &["secret", "127.0.0.1"]);
}

#[test]
fn an_index_has_one_copy_on_a_server_and_one_that_looks_like_it_another() {
    let place = Place::with_photos();
    // The two indexes have the same rows under different ids, and the same name, sizes and options.
    for (index, first) in [("a.idx", "1000"), ("b.idx", "2000")] {
        let words = [
            "build",
            "photos.u8bin",
            index,
            "--degree",
            "16",
            "--first-id",
            first,
        ];
        place.run(&words).done();
    }
    fs::create_dir(place.path("copied.idx")).unwrap();
    for name in names(&place.path("a.idx")) {
        fs::copy(
            place.path("a.idx").join(&name),
            place.path("copied.idx").join(&name),
        )
        .unwrap();
    }
    let server = Server::start(&place, &["--listen", "127.0.0.1:0"], None);
    let text = format!("topology=remote:{}/photos", server.address);
    let found = |index: &str, words: &[&str]| {
        let search = [
            "search",
            index,
            "asked.u8bin",
            "--out",
            "found.npy",
            "--overwrite",
        ];
        place.run(&[&search[..], &STEADY, words].concat()).done();
        fs::read(place.path("found.npy")).unwrap()
    };
    let copies = |words: &[&str]| {
        let words = [&["copies", "--json", "--place", &text][..], words].concat();
        let listed = place.run(&words).done().json();
        listed["copies"].as_array().unwrap().clone()
    };
    let right = ["a.idx", "b.idx"].map(|index| found(index, &[]));
    assert_ne!(
        right[0], right[1],
        "both indexes have the same copies, so the test shows nothing"
    );
    assert_eq!(found("a.idx", &["--place", &text]), right[0]);
    assert_eq!(found("copied.idx", &["--place", &text]), right[0]);
    let [one] = &copies(&[])[..] else {
        panic!("{:?}", copies(&[]));
    };
    assert_eq!(found("b.idx", &["--place", &text]), right[1]);
    assert_eq!(copies(&[]).len(), 2);
    // An index that was copied from another index has its own copy on the server.
    for index in ["a.idx", "copied.idx"] {
        let [mine] = &copies(&[index])[..] else {
            panic!("{:?}", copies(&[index]));
        };
        assert_eq!(
            (&mine["name"], &mine["current"]),
            (&one["name"], &true.into())
        );
    }
    assert_ne!(copies(&["b.idx"])[0]["name"], one["name"]);
}

#[test]
fn a_place_that_cannot_be_is_refused_with_the_reason() {
    let place = Place::with_index();
    let index = "index";
    let search = |text: &str| place.run(&["search", index, "queries.u8bin", "--place", text]);
    for (text, words) in [
        ("topology", &["role=tier"][..]),
        ("codes=dram", &["codes", "no place of their own"]),
        ("log=dram", &["MANIFEST"]),
        ("topology=tape", &["tape", "rdma-model"]),
        ("vectors=dram", &["Give a place for topology"]),
        (
            "topology=mapped:/dev/shm",
            &["/dev/shm", "a folder of your own"],
        ),
        ("topology=mapped:a/b/c", &["a/b", "no such file"]),
        (
            "topology=mapped:/dev/stratann-dax0.0",
            &["/dev/stratann-dax0.0", "device", "mpol=bind"],
        ),
        ("topology=remote:localhost:77000/x", &["77000", "65535"]),
    ] {
        let refused = search(text);
        let status = refused.status;
        assert!(matches!(status, Some(1 | 2)), "{refused:?}");
        refused.refused(status.unwrap(), words);
    }
    let words = [
        "search",
        index,
        "queries.u8bin",
        "--place",
        "topology=dram",
        "--memory",
        "12kB",
    ];
    place.run(&words).refused(2, &["12000", "copies in memory"]);
    // A misspelt path must not give an empty list.
    std::fs::create_dir(place.path("copies")).unwrap();
    let copies = ["copies", "idnex", "--place", "topology=mapped:copies"];
    place.run(&copies).refused(1, &["idnex"]);
    let twice = ["--place", "topology=dram", "--place", "topology=ssd"];
    place
        .run(&[&["stats", index][..], &twice].concat())
        .refused(2, &["a place already"]);
}

/// Another folder for the secret simulates another user of the machine.
#[test]
fn without_a_secret_of_its_own_a_server_of_this_machine_serves_this_user_alone() {
    let place = Place::with_photos();
    place
        .run(&[
            "build",
            "photos.u8bin",
            "a.idx",
            "--degree",
            "16",
            "--layout",
            "decoupled",
        ])
        .done();
    fs::copy(place.path("asked.u8bin"), place.path("queries.u8bin")).unwrap();
    let server = Server::start(&place, &["--listen", "127.0.0.1:0"], None);
    let text = format!("topology=remote:{}/photos", server.address);
    let search = |state: &str| {
        let mut command = place.command(&["search", "a.idx", "queries.u8bin", "--place", &text]);
        command
            .env("XDG_STATE_HOME", place.path(state))
            .env_remove("STRATANN_SECRET_FILE")
            .env_remove("STRATANN_SECRET");
        let output = command.output().unwrap();
        (
            output.status.code(),
            String::from_utf8(output.stderr).unwrap(),
        )
    };
    let (status, said) = search("another");
    assert!(
        status == Some(1) && said.contains("another secret"),
        "{said}"
    );
    assert_eq!(search("state"), (Some(0), String::new()));
}
