//! Helpers that make data, run the command, and check its output.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use tempfile::TempDir;

pub struct Place {
    folder: TempDir,
}

#[derive(Debug)]
pub struct Ran {
    pub status: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

pub const ROWS: usize = 600;
pub const QUERIES: usize = 20;
pub const DIM: usize = 16;

/// A linear congruential generator, with the same numbers on every machine.
pub fn numbers(seed: u64) -> impl FnMut() -> u32 {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    move || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as u32
    }
}

/// The file begins with `u32 rows, u32 dimension`, and continues with the rows in `body`.
pub fn bin(rows: usize, dim: usize, body: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    bytes.extend((rows as u32).to_le_bytes());
    bytes.extend((dim as u32).to_le_bytes());
    bytes.extend(body);
    bytes
}

pub fn u8s(rows: usize, dim: usize, seed: u64) -> Vec<u8> {
    let mut next = numbers(seed);
    bin(
        rows,
        dim,
        &(0..rows * dim).map(|_| next() as u8).collect::<Vec<_>>(),
    )
}

/// The floats are between -1 and 1. `strange` is the position of a float, and another value for
/// this float.
pub fn f32s(rows: usize, dim: usize, seed: u64, strange: Option<(usize, f32)>) -> Vec<u8> {
    let mut next = numbers(seed);
    let mut values: Vec<f32> = (0..rows * dim)
        .map(|_| next() as f32 / (1u32 << 30) as f32 - 1.0)
        .collect();
    if let Some((at, value)) = strange {
        values[at] = value;
    }
    bin(
        rows,
        dim,
        &values
            .iter()
            .flat_map(|v| v.to_le_bytes())
            .collect::<Vec<_>>(),
    )
}

impl Place {
    /// The folder has the files `base.u8bin` and `queries.u8bin`.
    pub fn new() -> Place {
        let place = Place {
            folder: tempfile::tempdir().unwrap(),
        };
        place.write("base.u8bin", &u8s(ROWS, DIM, 1));
        place.write("queries.u8bin", &u8s(QUERIES, DIM, 2));
        place
    }

    /// A folder with real descriptors `photos.u8bin`, queries `asked.u8bin`, and the true
    /// neighbours `truth.bin`.
    pub fn with_photos() -> Place {
        let place = Place::new();
        for (fixture, name, rows) in [
            ("photo-sift-20k.base.u8bin", "photos.u8bin", 1_000),
            ("photo-sift-20k.query.u8bin", "asked.u8bin", 50),
        ] {
            let path =
                Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures")).join(fixture);
            let bytes = std::fs::read(path).unwrap();
            place.write(name, &bin(rows, 128, &bytes[8..8 + rows * 128]));
        }
        let truth = [
            "truth",
            "photos.u8bin",
            "asked.u8bin",
            "truth.bin",
            "-k",
            "10",
        ];
        place.run(&truth).done();
        place
    }

    pub fn with_index() -> Place {
        let place = Place::new();
        place.run(&SMALL_BUILD).done();
        place
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub fn write(&self, name: &str, bytes: &[u8]) {
        std::fs::write(self.path(name), bytes).unwrap();
    }

    pub fn names(&self) -> Vec<String> {
        names(self.folder.path())
    }

    pub fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_stratann"));
        command
            .current_dir(self.folder.path())
            .args(words)
            .stdin(Stdio::null());
        command.env_remove("STRATANN_DATA");
        // The secret of this user is below this folder.
        command.env("XDG_STATE_HOME", self.path("state"));
        command
    }

    pub fn run(&self, words: &[&str]) -> Ran {
        let output = self.command(words).output().unwrap();
        Ran {
            status: output.status.code(),
            stdout: String::from_utf8(output.stdout).unwrap(),
            stderr: String::from_utf8(output.stderr).unwrap(),
        }
    }
}

pub const SMALL_BUILD: [&str; 9] = [
    "build",
    "base.u8bin",
    "index",
    "--degree",
    "16",
    "--build-list",
    "32",
    "--code-bytes",
    "8",
];

pub fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

impl Ran {
    /// Checks that the command succeeded without an error message.
    #[track_caller]
    pub fn done(self) -> Ran {
        assert_eq!(self.status, Some(0), "{self:?}");
        assert!(!self.stderr.contains("error:"), "{self:?}");
        self
    }

    /// Checks that the command printed a single `error:` that contains each of `words`.
    #[track_caller]
    pub fn refused(self, status: i32, words: &[&str]) -> Ran {
        assert_eq!(self.status, Some(status), "{self:?}");
        self.said(words)
    }

    /// The command was ended by a signal, after an error with these words.
    pub fn interrupted(self, words: &[&str]) -> Ran {
        assert_eq!(self.status, None, "{self:?}");
        self.said(words)
    }

    fn said(self, words: &[&str]) -> Ran {
        let error = self
            .stderr
            .split_once("error: ")
            .map(|(_, error)| error.to_string());
        let error = error.unwrap_or_else(|| panic!("no error was printed: {self:?}"));
        for word in words {
            assert!(error.contains(word), "'{word}' is not in: {error}");
        }
        assert!(
            !self.stderr.contains("panicked") && !self.stderr.contains("RUST_BACKTRACE"),
            "{self:?}"
        );
        self
    }

    #[track_caller]
    pub fn json_lines(&self) -> Vec<serde_json::Value> {
        self.stdout
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect()
    }

    #[track_caller]
    pub fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.stdout).unwrap()
    }
}

#[track_caller]
pub fn keys(value: &serde_json::Value) -> Vec<&str> {
    let mut keys: Vec<&str> = value
        .as_object()
        .unwrap()
        .keys()
        .map(String::as_str)
        .collect();
    keys.sort_unstable();
    keys
}
