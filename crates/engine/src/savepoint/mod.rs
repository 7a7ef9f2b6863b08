//! Savepoints are files from which a build continues the work of a killed build of the same rows
//! and options.
//!
//! ```text
//!   INDEX/savepoint-order        the row of each node                              graph/kept.rs
//!   INDEX/savepoint-lists        the adjacency lists so far, and the progress      graph/kept.rs
//!   INDEX/savepoint-lists-0003   the same, for one part of a build under a cap     graph/kept.rs
//!   INDEX/savepoint-plan         the parts of a build under a memory cap           graph/kept.rs
//!   INDEX/savepoint-codebook     the centroids of the codes                        build/train.rs
//!   INDEX/savepoint.new          a savepoint that is being written
//! ```
//!
//! A savepoint (format: `file.rs`) is written under another name, synced and renamed, and the
//! directory is synced. So a savepoint is always complete. The build has the lock of the volume of
//! the index.
//!
//! **A savepoint is optional.** A savepoint has the hash of the *origin* of the build (`origin.rs`:
//! BLAKE3 of the rows, the options and the version). A savepoint also has the hash of its *input*:
//! the origin and all other data on which the content depends, such as the order of the nodes. If a
//! hash differs, or the savepoint is damaged, the build begins the stage from its start, without an
//! error. If a savepoint cannot be written, the build warns once, and writes no more savepoints.
//!
//! **The index is the same.** Each pass derives its random numbers from the seed, so with one
//! thread, a resumed and an uninterrupted build write the same bits.
//!
//! **When savepoints are written.** A stage writes its savepoint at its end. During the build of
//! the graph, a savepoint is written when the interval `every`, and [`WORTH`] times the duration of
//! the last write, have passed. If `every` is 0, savepoints are written whenever possible.

mod file;
mod origin;
#[cfg(test)]
mod tests;

use std::time::{Duration, Instant};

use parking_lot::Mutex;
use stratann_tier::{TierError, Volume};

pub(crate) use blake3::Hash;
pub(crate) use file::{Content, Sink, Unfit};

use crate::BuildOptions;
use crate::data::VectorSource;
use crate::progress::Progress;
use crate::{Error, stored};
use file::Head;
use origin::Origin;

/// The least time between two savepoints, as a multiple of the duration of the last write.
const WORTH: u32 = 20;

const PREFIX: &str = "savepoint";
const UNFINISHED: &str = "savepoint.new";

/// The numbers are part of the format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum What {
    Order = 1,
    /// The adjacency lists of one part, or of the whole graph.
    Lists = 2,
    Codebook = 3,
    /// The division into parts of a build under a memory cap.
    Plan = 4,
}

impl What {
    const ALL: [What; 4] = [What::Order, What::Lists, What::Codebook, What::Plan];

    /// `part` is the number of the part, from 1, or 0 if the build has no parts.
    fn file(self, part: u32) -> String {
        let name = match self {
            What::Order => "order",
            What::Lists => "lists",
            What::Codebook => "codebook",
            What::Plan => "plan",
        };
        match part {
            0 => format!("{PREFIX}-{name}"),
            part => format!("{PREFIX}-{name}-{part:04}"),
        }
    }
}

/// Whether a file is a savepoint or an unfinished savepoint. Other files with this prefix may
/// belong to the user.
pub(crate) fn is_savepoint(name: &str) -> bool {
    let is_of = |what: &What| {
        let rest = name.strip_prefix(&what.file(0));
        rest.is_some_and(|rest| match rest.strip_prefix('-') {
            Some(part) => part.len() >= 4 && part.bytes().all(|byte| byte.is_ascii_digit()),
            None => rest.is_empty(),
        })
    };
    name == UNFINISHED || What::ALL.iter().any(is_of)
}

fn names(volume: &dyn Volume) -> Result<Vec<String>, TierError> {
    let mut names = volume.list()?;
    names.retain(|name| is_savepoint(name));
    Ok(names)
}

pub(crate) fn are_in(volume: &dyn Volume) -> bool {
    names(volume).is_ok_and(|names| names.iter().any(|name| name != UNFINISHED))
}

pub(crate) fn are_none(volume: &dyn Volume) -> bool {
    names(volume).is_ok_and(|names| names.iter().all(|name| name == UNFINISHED))
}

/// Removes all savepoints of a locked volume. If a removal fails, the next build removes the
/// remaining savepoints.
pub(crate) fn remove_all(volume: &dyn Volume) {
    for name in names(volume).unwrap_or_default() {
        let _ = volume.remove(&name);
    }
}

#[derive(Debug)]
pub(crate) struct Savepoints<'a> {
    volume: &'a dyn Volume,
    origin: Origin,
    every: Duration,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    last: Instant,
    took: Duration,
    over: bool,
    facts: Facts,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Facts {
    pub(crate) resumed: Vec<String>,
    pub(crate) bytes: u64,
}

impl<'a> Savepoints<'a> {
    /// The savepoints of a build in a locked volume, if the options ask for them. Reads all rows
    /// once.
    pub(crate) fn of(
        volume: &'a dyn Volume,
        source: &dyn VectorSource,
        options: &BuildOptions,
        progress: &dyn Progress,
    ) -> Result<Option<Self>, Error> {
        let there = names(volume).unwrap_or_default();
        if !options.resume {
            if there.iter().any(|name| name != UNFINISHED) {
                progress.warn(&format!(
                    "{}: has savepoints of a build that did not end; this build does not use them, and removes them when it is done. \
                     To continue from savepoints of the same vectors and options, use --resume (in Python resume=True)",
                    volume.name()
                ));
            }
            return Ok(None);
        }
        let every = Duration::from_secs_f64(options.savepoint_seconds);
        let origin = Origin::of(source, options, progress)?;
        let savepoints = Self::of_origin(volume, origin, every);
        savepoints.look_at(&there, progress);
        Ok(Some(savepoints))
    }

    fn of_origin(volume: &'a dyn Volume, origin: Origin, every: Duration) -> Self {
        Self {
            volume,
            origin,
            every,
            state: Mutex::new(State {
                last: Instant::now(),
                took: Duration::ZERO,
                over: false,
                facts: Facts::default(),
            }),
        }
    }

    #[cfg(test)]
    pub(crate) fn of_hash(volume: &'a dyn Volume, hash: Hash, every: Duration) -> Self {
        let told = String::new();
        Self::of_origin(volume, Origin { hash, told }, every)
    }

    /// Removes an unfinished savepoint. If all savepoints belong to other builds, warns and names
    /// the differences.
    fn look_at(&self, there: &[String], progress: &dyn Progress) {
        let (mut own, mut others) = (0, Vec::new());
        for name in there {
            if name == UNFINISHED {
                let _ = self.volume.remove(name);
                continue;
            }
            match self.open(name) {
                Ok((head, _)) if head.origin == self.origin.hash => own += 1,
                Ok((head, _)) => others.push(head),
                // The file may be readable later. The build replaces or removes a damaged file.
                Err(unfit) => tracing::warn!("savepoint not used: {unfit}"),
            }
        }
        if let Some(other) = others.first().filter(|_| own == 0) {
            let differ = self.origin.differences(&other.told);
            let differ = match differ.is_empty() {
                true => String::new(),
                false => format!(" (differences: {})", differ.join(", ")),
            };
            progress.warn(&format!(
                "{}: the savepoints are of other vectors, options or another version of the program{differ}; this build starts \
                 from the beginning, and replaces them",
                self.volume.name()
            ));
        }
    }

    pub(crate) fn input(&self, pieces: &[&[u8]]) -> Hash {
        let mut hasher = blake3::Hasher::new();
        hasher.update(self.origin.hash.as_bytes());
        for piece in pieces {
            hasher.update(&(piece.len() as u64).to_le_bytes());
            hasher.update(piece);
        }
        hasher.finalize()
    }

    /// Hashes like [`input`](Savepoints::input), for long sequences of numbers.
    pub(crate) fn input_of(&self, first: &[u32], second: &[u32]) -> Hash {
        let mut hasher = blake3::Hasher::new();
        hasher.update(self.origin.hash.as_bytes());
        for numbers in [first, second] {
            hasher.update(&(numbers.len() as u64).to_le_bytes());
            let mut bytes = Vec::with_capacity(4 * WORDS);
            for some in numbers.chunks(WORDS) {
                bytes.clear();
                bytes.extend(some.iter().flat_map(|number| number.to_le_bytes()));
                hasher.update(&bytes);
            }
        }
        hasher.finalize()
    }

    pub(crate) fn is_due(&self) -> bool {
        let state = self.state.lock();
        let worth = match self.every.is_zero() {
            true => Duration::ZERO,
            false => self.every.max(state.took * WORTH),
        };
        !state.over && state.last.elapsed() >= worth
    }

    /// Writes a savepoint of `bytes` bytes. If the write fails, the build warns once, and writes no
    /// more savepoints.
    pub(crate) fn keep(
        &self,
        (what, part): (What, u32),
        input: &Hash,
        bytes: u64,
        progress: &dyn Progress,
        write: impl FnOnce(&mut Sink) -> Result<(), TierError>,
    ) {
        if self.state.lock().over {
            return;
        }
        let begun = Instant::now();
        let head = Head {
            what: what as u32,
            part,
            bytes,
            origin: self.origin.hash,
            input: *input,
            told: self.origin.told.clone(),
        };
        let name = what.file(part);
        let written = self.write(&name, &head, write);
        let mut state = self.state.lock();
        state.last = Instant::now();
        state.took = begun.elapsed();
        match written {
            Ok(length) => {
                state.facts.bytes += length;
                tracing::debug!(name, length, took = ?state.took, "savepoint");
            }
            Err(error) => {
                state.over = true;
                drop(state);
                let _ = self.volume.remove(UNFINISHED);
                let full = matches!(error, TierError::NoSpace { .. });
                if full {
                    remove_all(self.volume);
                }
                progress.warn(&format!(
                    "the build continues without savepoints{}: {error}",
                    if full {
                        "; the earlier ones are removed"
                    } else {
                        ""
                    }
                ));
            }
        }
    }

    fn write(
        &self,
        name: &str,
        head: &Head,
        write: impl FnOnce(&mut Sink) -> Result<(), TierError>,
    ) -> Result<u64, TierError> {
        let mut sink = Sink::begin(self.volume.create(UNFINISHED)?, head);
        write(&mut sink)?;
        let length = sink.finish()?;
        self.volume.rename(UNFINISHED, name)?;
        self.volume.sync()?;
        Ok(length)
    }

    /// Reads a savepoint. `None` if no savepoint with this origin and input can be decoded.
    pub(crate) fn read<T>(
        &self,
        (what, part): (What, u32),
        input: &Hash,
        read: impl FnOnce(&mut Content) -> Result<T, Unfit>,
    ) -> Option<T> {
        let name = what.file(part);
        match self.volume.exists(&name) {
            Ok(true) => {}
            Ok(false) => return None,
            Err(error) => {
                tracing::warn!("savepoint not used: {error}");
                return None;
            }
        }
        let fits = self.open(&name).and_then(|(head, mut content)| {
            if head.origin != self.origin.hash || head.input != *input {
                return Err(content.unfit(32, "it is of other vectors, options or another input"));
            }
            if (head.what, head.part) != (what as u32, part) {
                return Err(content.unfit(16, "its content is not the one that its name says"));
            }
            let made = read(&mut content)?;
            content.end()?;
            Ok(made)
        });
        fits.inspect_err(|unfit| tracing::warn!("savepoint not used: {unfit}"))
            .ok()
    }

    fn open(&self, name: &str) -> Result<(Head, Content), Unfit> {
        let place = stored::name_of(self.volume, name);
        let reader = self.volume.open_reader(name);
        file::open(reader.map_err(Unfit::unread)?, place)
    }

    pub(crate) fn resumed(&self, what: String) {
        tracing::info!("resumed: {what}");
        self.state.lock().facts.resumed.push(what);
    }

    pub(crate) fn say_kept(&self, progress: &dyn Progress) {
        let facts = self.facts();
        let own = facts.bytes > 0 || !facts.resumed.is_empty();
        if own && are_in(self.volume) {
            progress.warn(&format!(
                "the work of this build so far is kept in {}; to continue from there, repeat the command with --resume \
                 (in Python the call with resume=True)",
                self.volume.name()
            ));
        }
    }

    pub(crate) fn facts(&self) -> Facts {
        self.state.lock().facts.clone()
    }
}

const WORDS: usize = 16 << 10;
