//! Several volumes as one. The name of a file determines its volume.
//!
//! ```text
//!   name ── route ──> None ─────> primary volume: MANIFEST, lock, log, and all other files
//!                 └─> Some(n) ──> others[n]
//! ```
//!
//! **A commit is still one rename.** The manifest is on the primary volume. So
//! [`sync`](Volume::sync) makes the names on all other volumes durable first, and stops at the
//! first failure. A crash then loses no file that a durable manifest names. Files that no manifest
//! names are removed afterwards. If a crash undoes a removal, the file stays a leftover.
//!
//! **A volume belongs to one index.** The first lock writes a mark into each volume: random digits,
//! and whether the volume is the primary one. At that time the other volumes must be empty, and
//! later they must have the digits of the primary volume. So a file that no manifest names is a
//! leftover of this index. (A copy of the primary volume has the same mark, and so shares the other
//! volumes.)

use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::path::Path;
use std::sync::Arc;

use crate::error::TierError;
use crate::routed::Route;
use crate::tier::Tier;
use crate::volume::{LockGuard, Note, Volume, VolumeFile, VolumeReader};

const OWNER: &str = "OWNER";

const FIRST_WORDS: &str = "STRATANN OWNER";

/// Several volumes combined into one.
pub struct SplitVolume {
    home: Arc<dyn Volume>,
    others: Vec<Arc<dyn Volume>>,
    route: Box<Route>,
}

impl SplitVolume {
    /// Combines the volumes of one index. A file must keep its route when it is renamed.
    pub fn new(
        home: Arc<dyn Volume>,
        others: Vec<Arc<dyn Volume>>,
        route: Box<Route>,
    ) -> SplitVolume {
        SplitVolume {
            home,
            others,
            route,
        }
    }

    fn number(&self, name: &str) -> Option<usize> {
        (self.route)(name).filter(|&number| number < self.others.len())
    }

    fn volume(&self, name: &str) -> &dyn Volume {
        let other = self.number(name).and_then(|number| self.others.get(number));
        &**other.unwrap_or(&self.home)
    }

    fn claim(&self) -> Result<(), TierError> {
        // All volumes are checked before the first write, so a refusal leaves no mark.
        let home = mark_of(&*self.home)?;
        if home.as_ref().is_some_and(|mark| !mark.home) {
            let what = "it has files of an index whose primary volume is elsewhere";
            return Err(taken(&*self.home, what));
        }
        let marks = self.others.iter().map(|other| mark_of(&**other));
        let marks = marks.collect::<Result<Vec<_>, _>>()?;
        let known = home.as_ref().map(|mark| mark.digits.clone());
        // The primary volume is marked first. If its mark is lost, another volume has the digits.
        let lost = match known.is_none() && !self.home.list()?.is_empty() {
            true => marks.iter().flatten().find(|mark| !mark.home),
            false => None,
        };
        let digits = known.or_else(|| lost.map(|mark| mark.digits.clone()));
        let digits = digits.unwrap_or_else(|| {
            let random = || RandomState::new().hash_one(OWNER);
            format!("{:016x}{:016x}", random(), random())
        });
        let mut unmarked = Vec::new();
        for (other, mark) in self.others.iter().zip(&marks) {
            match mark {
                Some(mark) if !mark.home && mark.digits == digits => {}
                Some(_) => return Err(taken(&**other, "it belongs to another index")),
                None if other.list()?.iter().all(|name| name == OWNER) => unmarked.push(other),
                None => {
                    return Err(taken(
                        &**other,
                        "it has files, and no mark of the index that they belong to",
                    ));
                }
            }
        }
        if home.is_none() {
            write_mark(&*self.home, &digits, true)?;
        }
        for other in unmarked {
            write_mark(&**other, &digits, false)?;
        }
        Ok(())
    }
}

struct Mark {
    digits: String,
    home: bool,
}

/// The mark of a volume; `None` if the volume has no mark, or only a part of one after a crash.
fn mark_of(volume: &dyn Volume) -> Result<Option<Mark>, TierError> {
    let text = match volume.read(OWNER) {
        Ok(bytes) => String::from_utf8(bytes).unwrap_or_default(),
        Err(TierError::Missing { .. }) => return Ok(None),
        Err(error) => return Err(error),
    };
    let words = text.strip_prefix(FIRST_WORDS).unwrap_or_default();
    Ok(match *words.trim_end().split(' ').collect::<Vec<_>>() {
        ["", part @ ("home" | "part"), digits] if digits.len() == 32 && text.ends_with('\n') => {
            Some(Mark {
                digits: digits.to_owned(),
                home: part == "home",
            })
        }
        _ => None,
    })
}

fn write_mark(volume: &dyn Volume, digits: &str, home: bool) -> Result<(), TierError> {
    let part = if home { "home" } else { "part" };
    let mut file = volume.create(OWNER)?;
    file.append(format!("{FIRST_WORDS} {part} {digits}\n").as_bytes())?;
    file.sync()?;
    volume.sync()
}

fn taken(volume: &dyn Volume, what: &str) -> TierError {
    TierError::Taken {
        place: volume.name(),
        what: what.to_owned(),
    }
}

impl fmt::Debug for SplitVolume {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SplitVolume({:?}, {:?})", self.home, self.others)
    }
}

impl Volume for SplitVolume {
    fn name(&self) -> String {
        self.home.name()
    }

    fn place(&self, name: &str) -> String {
        self.volume(name).place(name)
    }

    fn create(&self, name: &str) -> Result<Box<dyn VolumeFile>, TierError> {
        self.volume(name).create(name)
    }

    fn open(&self, name: &str) -> Result<Box<dyn VolumeFile>, TierError> {
        self.volume(name).open(name)
    }

    fn open_pages(&self, name: &str) -> Result<Box<dyn VolumeFile>, TierError> {
        self.volume(name).open_pages(name)
    }

    fn read(&self, name: &str) -> Result<Vec<u8>, TierError> {
        self.volume(name).read(name)
    }

    fn read_at(&self, name: &str, offset: u64, out: &mut [u8]) -> Result<(), TierError> {
        self.volume(name).read_at(name, offset, out)
    }

    fn open_reader(&self, name: &str) -> Result<Box<dyn VolumeReader>, TierError> {
        self.volume(name).open_reader(name)
    }

    fn len(&self, name: &str) -> Result<u64, TierError> {
        self.volume(name).len(name)
    }

    fn exists(&self, name: &str) -> Result<bool, TierError> {
        self.volume(name).exists(name)
    }

    fn open_tier(&self, name: &str) -> Result<Arc<dyn Tier>, TierError> {
        self.volume(name).open_tier(name)
    }

    fn rename(&self, from: &str, to: &str) -> Result<(), TierError> {
        if self.number(from) != self.number(to) {
            return Err(TierError::Unsupported {
                what: format!("renaming {} to {}", self.place(from), self.place(to)),
                reason:
                    "the two names are on different volumes. Write the file under the new name, and remove the old file"
                        .to_owned(),
            });
        }
        self.volume(from).rename(from, to)
    }

    fn remove(&self, name: &str) -> Result<(), TierError> {
        self.volume(name).remove(name)
    }

    /// Omits a file whose name leads to another volume, because such a file cannot be opened.
    fn list(&self) -> Result<Vec<String>, TierError> {
        let mut names = Vec::new();
        let others = self.others.iter().enumerate();
        let others = others.map(|(number, other)| (Some(number), other));
        for (number, volume) in std::iter::once((None, &self.home)).chain(others) {
            let here = |name: &String| name != OWNER && self.number(name) == number;
            names.extend(volume.list()?.into_iter().filter(here));
        }
        names.sort_unstable();
        Ok(names)
    }

    fn sync(&self) -> Result<(), TierError> {
        self.others.iter().try_for_each(|other| other.sync())?;
        self.home.sync()
    }

    fn keep_room(&self, name: &str, bytes: u64) -> Result<bool, TierError> {
        self.volume(name).keep_room(name, bytes)
    }

    fn kept_room(&self, name: &str) -> Result<u64, TierError> {
        self.volume(name).kept_room(name)
    }

    fn lock(&self) -> Result<LockGuard, TierError> {
        let mut guards = vec![self.home.lock()?];
        for other in &self.others {
            guards.push(other.lock()?);
        }
        self.claim()?;
        // The primary volume is unlocked last: if a process can lock it, all others are unlocked.
        guards.reverse();
        Ok(LockGuard::new(guards))
    }

    fn held_as(&self, what: &str, remedy: &str) {
        std::iter::once(&self.home)
            .chain(&self.others)
            .for_each(|volume| volume.held_as(what, remedy));
    }

    fn check_held(&self) -> Result<(), TierError> {
        self.home.check_held()?;
        self.others.iter().try_for_each(|other| other.check_held())
    }

    fn check_path(&self, path: &Path) -> Result<(), TierError> {
        self.home.check_path(path)
    }

    fn identity(&self) -> Option<(u64, u64)> {
        self.home.identity()
    }

    fn note(&self) -> Option<Arc<Note>> {
        self.home.note()
    }
}
