//! Savepoints: what a build that is killed leaves, for the next one of the same rows and options to go on from.
//!
//! ```text
//!   INDEX/savepoint-order        which row is which node                                   graph/kept.rs
//!   INDEX/savepoint-lists        the adjacency lists so far, and how far that is           graph/kept.rs
//!   INDEX/savepoint-lists-0003   the same, of a part of a build under a memory cap
//!   INDEX/savepoint-plan         the parts of such a build                                 graph/kept.rs
//!   INDEX/savepoint-codebook     the centroids of the codes                                build/train.rs
//!   INDEX/savepoint.new          one that is being written
//! ```
//!
//! Their bytes are those of `file.rs`. Each is written under another name, synced, renamed, and the directory synced: under its name it
//! is whole, or as the last one was. They stand in the volume of the index, whose lock the build holds, so two builds never write the same.
//!
//! **A savepoint is a hint.** It names the *origin* of the build (`origin.rs`: BLAKE3 of the rows, the options and the version of the
//! build) and its *input*: the origin again, and what else its content follows from, as lists of nodes follow from which row is which
//! node. One of another origin or input, one that is damaged, cut or unreadable is not used, and the stage is done from its start: never
//! an error. Nor is one that cannot be written, on a full disk for example: the build says so once and goes on without.
//!
//! **The index is the same.** What a stage goes on with stands in the savepoint or follows from the options (a generator of random
//! numbers is derived from the seed for each pass, and never carried over), so that with one thread a resumed build writes the bits of
//! one that nobody interrupted. `build/tests/resume.rs` compares them, for a crash at any write.
//!
//! **When.** At the end of each stage that is kept, and within the graph when at least `every` has gone by since the last one, and
//! [`WORTH`] times what that one took: between two of them in the graph the build works twenty times as long as the last one took to write.

mod file;
mod origin;
#[cfg(test)]
mod tests;

use std::time::{Duration, Instant};

use parking_lot::Mutex;
use stratann_tier::{TierError, Volume};

pub(crate) use blake3::Hash;
pub(crate) use file::{Content, Sink, Unfit};

use crate::build::BuildOptions;
use crate::data::VectorSource;
use crate::progress::Progress;
use crate::{Error, stored};
use file::Head;
use origin::Origin;

/// How many times as long as a savepoint takes the build works before it takes the next one.
const WORTH: u32 = 20;

/// What the name of a savepoint begins with.
const PREFIX: &str = "savepoint";
/// The name of one that is being written.
const UNFINISHED: &str = "savepoint.new";

/// What a savepoint holds. The numbers are part of the format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum What {
    /// The row of each node.
    Order = 1,
    /// Adjacency lists, of a part or of all.
    Lists = 2,
    /// A trained codebook.
    Codebook = 3,
    /// How a build under a memory cap is divided.
    Plan = 4,
}

impl What {
    /// All of them.
    const ALL: [What; 4] = [What::Order, What::Lists, What::Codebook, What::Plan];

    /// The file that holds it; `part` counts from 1, and is 0 where there are no parts.
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

/// Whether a file of this name is a savepoint, or was to become one: what others have put beside it under a name that begins alike is theirs.
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

/// The savepoints that are there.
fn names(volume: &dyn Volume) -> Result<Vec<String>, TierError> {
    let mut names = volume.list()?;
    names.retain(|name| is_savepoint(name));
    Ok(names)
}

/// Whether a volume has savepoints to go on from. One that cannot be listed has none.
pub(crate) fn are_in(volume: &dyn Volume) -> bool {
    names(volume).is_ok_and(|names| names.iter().any(|name| name != UNFINISHED))
}

/// Whether a volume certainly has none to go on from.
pub(crate) fn are_none(volume: &dyn Volume) -> bool {
    names(volume).is_ok_and(|names| names.iter().all(|name| name == UNFINISHED))
}

/// Removes all savepoints of a volume whose lock the caller holds. Failing to is no failure: the next build removes them.
pub(crate) fn remove_all(volume: &dyn Volume) {
    for name in names(volume).unwrap_or_default() {
        let _ = volume.remove(&name);
    }
}

/// The savepoints of a build that goes on.
#[derive(Debug)]
pub(crate) struct Savepoints<'a> {
    volume: &'a dyn Volume,
    origin: Origin,
    every: Duration,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// When the last one was there.
    last: Instant,
    /// How long it took.
    took: Duration,
    /// Whether no more are written, because one could not be.
    over: bool,
    facts: Facts,
}

/// What savepoints did for a build, and what they cost.
#[derive(Clone, Debug, Default)]
pub(crate) struct Facts {
    /// What was taken over from a build before.
    pub(crate) resumed: Vec<String>,
    /// Bytes written.
    pub(crate) bytes: u64,
}

impl<'a> Savepoints<'a> {
    /// The savepoints of a build in a volume whose lock the caller holds, if there are to be any. Reads all rows once.
    ///
    /// # Errors
    /// Rows that cannot be read, an interruption.
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
                    "{} has savepoints of a build that did not end: this one does not use them, and removes them when it is done; \
                     with --resume (in Python resume=True) it goes on from those of the same vectors and options",
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

    /// Savepoints of an origin.
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

    /// Savepoints of an origin of which nothing is told.
    #[cfg(test)]
    pub(crate) fn of_hash(volume: &'a dyn Volume, hash: Hash, every: Duration) -> Self {
        let told = String::new();
        Self::of_origin(volume, Origin { hash, told }, every)
    }

    /// Clears what was never whole, and says so where none of the others is of this build.
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
                // It may be one that cannot be read just now. Where it is damaged, it is replaced, or removed in the end.
                Err(unfit) => tracing::warn!("savepoint not used: {unfit}"),
            }
        }
        if let Some(other) = others.first().filter(|_| own == 0) {
            let differ = self.origin.differences(&other.told);
            let differ = match differ.is_empty() {
                true => String::new(),
                false => format!(" (what differs: {})", differ.join(", ")),
            };
            progress.warn(&format!(
                "{}: the savepoints are of other vectors, options or another version of the program{differ}: this build begins \
                 anew, and replaces them",
                self.volume.name()
            ));
        }
    }

    /// The input of a savepoint: the origin, and what else its content follows from.
    pub(crate) fn input(&self, pieces: &[&[u8]]) -> Hash {
        let mut hasher = blake3::Hasher::new();
        hasher.update(self.origin.hash.as_bytes());
        for piece in pieces {
            hasher.update(&(piece.len() as u64).to_le_bytes());
            hasher.update(piece);
        }
        hasher.finalize()
    }

    /// As [`input`](Savepoints::input), of numbers that are many.
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

    /// Whether enough work was done since the last one.
    pub(crate) fn is_due(&self) -> bool {
        let state = self.state.lock();
        let worth = match self.every.is_zero() {
            true => Duration::ZERO,
            false => self.every.max(state.took * WORTH),
        };
        !state.over && state.last.elapsed() >= worth
    }

    /// Keeps `bytes` bytes, which `write` gives to the sink. What goes wrong is told, and no more are kept.
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
                    // The index needs the room more.
                    remove_all(self.volume);
                }
                progress.warn(&format!(
                    "the build goes on without savepoints{}: {error}",
                    if full {
                        ", and those that were there are removed"
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

    /// What was kept, as `read` makes it of the content, if that is of the same origin and input, and whole.
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
                return Err(content.unfit(32, "it is of other vectors, options or another state"));
            }
            if (head.what, head.part) != (what as u32, part) {
                return Err(content.unfit(16, "it holds something else than its name says"));
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

    /// Says what the build takes over.
    pub(crate) fn resumed(&self, what: String) {
        tracing::info!("resumed: {what}");
        self.state.lock().facts.resumed.push(what);
    }

    /// Says what a build that failed leaves, if it leaves anything.
    pub(crate) fn say_kept(&self, progress: &dyn Progress) {
        let facts = self.facts();
        let own = facts.bytes > 0 || !facts.resumed.is_empty();
        if own && are_in(self.volume) {
            progress.warn(&format!(
                "what the build has done so far is kept in {}: the same command with --resume (in Python the same call with \
                 resume=True) goes on from there",
                self.volume.name()
            ));
        }
    }

    /// What savepoints did so far.
    pub(crate) fn facts(&self) -> Facts {
        self.state.lock().facts.clone()
    }
}

/// Numbers that are hashed at a time.
const WORDS: usize = 16 << 10;
