//! A volume of which some files are read from copies on a memory server.
//!
//! ```text
//!   open_tier(name) ── a copy of this name and length there? ── no ──────────────────────────> put there ──> read
//!                                │ yes                                                            ^             ^
//!                      hash of the file at home = hash of the copy? ── no ── it loses its name ───┘             │
//!                                └── yes ───────────────────────────────────────────────────────────────────────┘
//! ```
//!
//! Whoever knows the secret of a server may put files there under any name, by mistake too. So a
//! copy that is there already is read only where it is what stands at home, to the byte: the file
//! at home is read once for that, and of the copy its hash.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::client::{Client, RemoteFile};
use super::tier::RemoteTier;
use crate::copies::copy_of;
use crate::error::TierError;
use crate::forward::leave_to;
use crate::tier::Tier;
use crate::volume::{LockGuard, Note, Volume, VolumeFile, VolumeReader};

/// Bytes of a file that are read at a time for its hash.
const PIECE: u64 = 1 << 20;

/// A volume, and copies of its files on a server, from which tiers are opened and bytes are read.
/// Who only searches may have it; a file that is written to through it would not be what its copy
/// is.
pub struct RemoteVolume {
    home: Arc<dyn Volume>,
    client: Client,
    names: CopyNames,
    /// Whether `home` is still in the state that copies are called by.
    is_current: Box<dyn Fn() -> bool + Send + Sync>,
    /// Copies that are open. Held while one is made.
    open: Mutex<HashMap<String, RemoteFile>>,
}

impl fmt::Debug for RemoteVolume {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RemoteVolume")
            .field("home", &self.home)
            .field("names", &self.names)
            .finish_non_exhaustive()
    }
}

/// What copies of an index are called on a server: `OWNER.ORIGIN.STATE.FILE`. None of the first
/// three has a dot in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CopyNames {
    /// The index, as whoever searches it calls it.
    pub owner: String,
    /// Where it is at home: a place of a machine.
    pub origin: String,
    /// In which state it is.
    pub state: String,
    /// Whether that is the name of the same state from wherever it comes, so that a copy that
    /// another machine has put there is as good.
    pub everywhere: bool,
}

impl CopyNames {
    /// What names of copies begin with that are of this index, wherever they came from.
    fn of_index(&self) -> String {
        format!("{}.", self.owner)
    }

    /// What names of copies begin with that came from here.
    fn of_origin(&self) -> String {
        format!("{}.{}.", self.owner, self.origin)
    }

    /// What names of these copies begin with.
    fn of_state(&self) -> String {
        format!("{}.{}.{}.", self.owner, self.origin, self.state)
    }

    /// Whether a copy is one of a file of this state, whoever has put it there.
    fn is_of(&self, copy: &str, file: &str) -> bool {
        let parts: Vec<&str> = copy.splitn(4, '.').collect();
        matches!(parts[..], [owner, _, state, name] if owner == self.owner && state == self.state && name == file)
    }
}

impl RemoteVolume {
    /// Copies of the files of `home`, called by `names`. Those of other states that came from here
    /// lose their names at once; those from elsewhere, which others may go on with, only where
    /// there is no room. One of the same state that came from elsewhere is read, where a state has
    /// one name everywhere, and none is made beside it.
    ///
    /// # Errors
    /// [`TierError::Server`]: the server cannot be had.
    pub fn new(
        home: Arc<dyn Volume>,
        client: Client,
        names: CopyNames,
    ) -> Result<RemoteVolume, TierError> {
        client.sweep(&names.of_origin(), &names.of_state())?;
        Ok(RemoteVolume {
            home,
            client,
            names,
            is_current: Box::new(|| true),
            open: Mutex::default(),
        })
    }

    /// The same, which makes no copy of what `home` has become another state of meanwhile:
    /// `is_current` is asked when all bytes were read, and before the copy gets its name. Who
    /// writes to an index may write to pages again once the next state counts, and a copy that has
    /// some of these would be taken for one of this state by other machines.
    #[must_use]
    pub fn while_current(
        mut self,
        is_current: impl Fn() -> bool + Send + Sync + 'static,
    ) -> RemoteVolume {
        self.is_current = Box::new(is_current);
        self
    }

    fn open_files(&self) -> MutexGuard<'_, HashMap<String, RemoteFile>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The file on the server that has a name, if it is of this length.
    fn whole(&self, there: &str, len: u64) -> Result<Option<RemoteFile>, TierError> {
        Ok(self.client.open(there)?.filter(|file| file.len() == len))
    }

    /// A copy of the file that another machine, or another folder of this one, has put there of the
    /// same state.
    fn of_another_origin(
        &self,
        original: &mut Original<'_>,
    ) -> Result<Option<RemoteFile>, TierError> {
        if !self.names.everywhere {
            return Ok(None);
        }
        let own = self.names.of_state() + original.name;
        for copy in self.client.list(&self.names.of_index())? {
            let is_one = self.names.is_of(&copy.name, original.name) && copy.name != own;
            if copy.len == original.len && is_one {
                // It may have lost its name since.
                if let Some(file) = self.whole(&copy.name, original.len)?
                    && original.hash()? == self.client.hash(&file)?
                {
                    return Ok(Some(file));
                }
            }
        }
        Ok(None)
    }

    /// The copy of the file that was put there from here, if it is there and is what the file is.
    /// One that is another one loses its name.
    fn of_this_origin(&self, original: &mut Original<'_>) -> Result<Option<RemoteFile>, TierError> {
        let there = self.names.of_state() + original.name;
        let Some(file) = self.whole(&there, original.len)? else {
            return Ok(None);
        };
        if original.hash()? == self.client.hash(&file)? {
            return Ok(Some(file));
        }
        self.check_current(original.name)?;
        // Its name alone, and not those that begin with it.
        self.client.sweep(&there, &format!("{there}-"))?;
        Ok(None)
    }

    /// Refuses to go on where what is at home is of another state by now.
    fn check_current(&self, name: &str) -> Result<(), TierError> {
        match (self.is_current)() {
            true => Ok(()),
            false => Err(TierError::Replaced {
                place: self.home.place(name),
                what: "another checkpoint took its place while it was copied".to_owned(),
            }),
        }
    }

    /// The copy of a file, which is made if it is not there. The server gives it its name when the
    /// hash of all its bytes is right.
    fn copy(&self, name: &str) -> Result<RemoteFile, TierError> {
        let mut open = self.open_files();
        if let Some(file) = open.get(name) {
            return Ok(file.clone());
        }
        let there = self.names.of_state() + name;
        let from = self.home.open_reader(name)?;
        let len = from.size()?;
        let mut original = Original {
            name,
            len,
            from: &*from,
            hash: None,
        };
        let known = match self.of_this_origin(&mut original)? {
            Some(file) => Some(file),
            None => self.of_another_origin(&mut original)?,
        };
        let file = match known {
            Some(file) => file,
            None => {
                let mut free = self.client.room()?;
                if free < len {
                    let (all, these) = (self.names.of_index(), self.names.of_state());
                    self.client.sweep(&all, &these)?;
                    free = self.client.room()?;
                }
                if free < len {
                    let place = self.client.server().name().to_owned();
                    return Err(TierError::NoRoom { place, len, free });
                }
                self.client.put(&there, len, |offset, piece| {
                    from.read_at(offset, piece)?;
                    match offset + piece.len() as u64 == len {
                        true => self.check_current(name),
                        false => Ok(()),
                    }
                })?
            }
        };
        open.insert(name.to_owned(), file.clone());
        Ok(file)
    }
}

/// A file at home of which a copy is wanted.
struct Original<'a> {
    name: &'a str,
    len: u64,
    from: &'a dyn VolumeReader,
    /// Once it was asked for.
    hash: Option<blake3::Hash>,
}

impl Original<'_> {
    /// The hash of all its bytes, for which they are read once.
    fn hash(&mut self) -> Result<blake3::Hash, TierError> {
        if let Some(known) = self.hash {
            return Ok(known);
        }
        let mut hasher = blake3::Hasher::new();
        let mut buffer = vec![0; self.len.min(PIECE) as usize];
        let mut offset = 0;
        while offset < self.len {
            let piece = &mut buffer[..(self.len - offset).min(PIECE) as usize];
            self.from.read_at(offset, piece)?;
            hasher.update(piece);
            offset += piece.len() as u64;
        }
        Ok(*self.hash.insert(hasher.finalize()))
    }
}

impl Volume for RemoteVolume {
    leave_to!(home: name create open open_pages len exists rename remove list sync lock);

    /// Where its copy is, which is what is read, and what it is a copy of: that may be what is
    /// damaged.
    fn place(&self, name: &str) -> String {
        let open = self.open_files().get(name).map(RemoteFile::place);
        let copy = open.unwrap_or_else(|| {
            let server = self.client.server().name();
            format!("{server}/{}{name}", self.names.of_state())
        });
        copy_of(&copy, &self.home.place(name))
    }

    fn read(&self, name: &str) -> Result<Vec<u8>, TierError> {
        let file = self.copy(name)?;
        let mut bytes = vec![0; file.len() as usize];
        file.read_at(0, &mut bytes)?;
        Ok(bytes)
    }

    fn read_at(&self, name: &str, offset: u64, out: &mut [u8]) -> Result<(), TierError> {
        self.copy(name)?.read_at(offset, out)
    }

    fn open_reader(&self, name: &str) -> Result<Box<dyn VolumeReader>, TierError> {
        Ok(Box::new(self.copy(name)?))
    }

    fn open_tier(&self, name: &str) -> Result<Arc<dyn Tier>, TierError> {
        Ok(Arc::new(RemoteTier::new(self.copy(name)?)))
    }
}
