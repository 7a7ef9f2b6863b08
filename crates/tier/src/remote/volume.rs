//! A volume that reads some of its files from copies on a memory server.
//!
//! ```text
//!   open_tier(name) ── a copy of this name and length there? ── no ───────────> put there ──> read
//!                                │ yes                                             ^            ^
//!                      hash of the file = hash of the copy? ── no ── drop name ────┘            │
//!                                └── yes ───────────────────────────────────────────────────────┘
//! ```
//!
//! Every client that knows the secret may put files on the server under any name. So a client reads
//! an existing copy only if the server's hash of the copy equals the hash of the index's file.

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

const PIECE: u64 = 1 << 20;

/// A volume for searches, which reads its files from copies on a server.
pub struct RemoteVolume {
    home: Arc<dyn Volume>,
    client: Client,
    names: CopyNames,
    is_current: Box<dyn Fn() -> bool + Send + Sync>,
    /// The lock is held while a copy is made.
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

/// The names of copies on a server: `OWNER.ORIGIN.STATE.FILE`. The first three parts have no dot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CopyNames {
    /// The name of the index, as its users call it.
    pub owner: String,
    /// The origin of the copies: a path on a machine.
    pub origin: String,
    /// The checkpoint id of the index.
    pub state: String,
    /// Whether `state` is the same on all machines, so that copies from other machines can be used.
    pub everywhere: bool,
}

impl CopyNames {
    fn of_index(&self) -> String {
        format!("{}.", self.owner)
    }

    fn of_origin(&self) -> String {
        format!("{}.{}.", self.owner, self.origin)
    }

    fn of_state(&self) -> String {
        format!("{}.{}.{}.", self.owner, self.origin, self.state)
    }

    fn is_of(&self, copy: &str, file: &str) -> bool {
        let parts: Vec<&str> = copy.splitn(4, '.').collect();
        matches!(parts[..], [owner, _, state, name] if owner == self.owner && state == self.state && name == file)
    }
}

impl RemoteVolume {
    /// A volume that reads the files of `home` from copies named `names`. Copies of other
    /// checkpoints from this origin lose their names. Copies from other origins lose their names
    /// only if space is missing.
    ///
    /// # Errors
    /// [`TierError::Server`] if the server cannot be reached.
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

    /// Adds the check `is_current` before a copy gets its name. A writer that has committed its
    /// next checkpoint may reuse pages, so the copy could have pages of two checkpoints.
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

    fn whole(&self, there: &str, len: u64) -> Result<Option<RemoteFile>, TierError> {
        Ok(self.client.open(there)?.filter(|file| file.len() == len))
    }

    /// A copy at the same checkpoint from another machine, or for another folder.
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
                // The copy may have lost its name after it was listed.
                if let Some(file) = self.whole(&copy.name, original.len)?
                    && original.hash()? == self.client.hash(&file)?
                {
                    return Ok(Some(file));
                }
            }
        }
        Ok(None)
    }

    /// The copy from this origin, if it equals the file. Otherwise the copy loses its name.
    fn of_this_origin(&self, original: &mut Original<'_>) -> Result<Option<RemoteFile>, TierError> {
        let there = self.names.of_state() + original.name;
        let Some(file) = self.whole(&there, original.len)? else {
            return Ok(None);
        };
        if original.hash()? == self.client.hash(&file)? {
            return Ok(Some(file));
        }
        self.check_current(original.name)?;
        // Removes only this name, not names that begin with it.
        self.client.sweep(&there, &format!("{there}-"))?;
        Ok(None)
    }

    fn check_current(&self, name: &str) -> Result<(), TierError> {
        match (self.is_current)() {
            true => Ok(()),
            false => Err(TierError::Replaced {
                place: self.home.place(name),
                what: "another checkpoint replaced it while it was copied".to_owned(),
            }),
        }
    }

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

struct Original<'a> {
    name: &'a str,
    len: u64,
    from: &'a dyn VolumeReader,
    hash: Option<blake3::Hash>,
}

impl Original<'_> {
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

    /// Names the copy, which is read, and its original, because either may be damaged.
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
