//! A volume of which some files are read from copies on a memory server.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::client::{Client, RemoteFile};
use super::tier::RemoteTier;
use crate::copies::copy_of;
use crate::error::TierError;
use crate::forward::leave_to;
use crate::tier::Tier;
use crate::volume::{LockGuard, Note, Volume, VolumeFile, VolumeReader};

/// A volume, and copies of its files on a server, from which tiers are opened and bytes are read. Who only searches may have it; a file that is
/// written to through it would not be what its copy is.
#[derive(Debug)]
pub struct RemoteVolume {
    home: Arc<dyn Volume>,
    client: Client,
    /// What names of copies begin with that are of this index, wherever they came from.
    owner: String,
    /// What names of these copies begin with.
    prefix: String,
    /// Copies that are open. Held while one is made.
    open: Mutex<HashMap<String, RemoteFile>>,
}

impl RemoteVolume {
    /// Copies of the files of `home`, in the state that `state` names, of the index that `owner` names and that is at home at `origin`: a place
    /// of a machine. Those of other states with the same origin lose their names at once; those from elsewhere, which others may go on with, only
    /// where there is no room. All three are names of files.
    ///
    /// # Errors
    /// [`TierError::Server`]: the server cannot be had.
    pub fn new(
        home: Arc<dyn Volume>,
        client: Client,
        owner: &str,
        origin: &str,
        state: &str,
    ) -> Result<RemoteVolume, TierError> {
        let prefix = format!("{owner}.{origin}.{state}.");
        client.sweep(&format!("{owner}.{origin}."), &prefix)?;
        Ok(RemoteVolume {
            home,
            client,
            owner: format!("{owner}."),
            prefix,
            open: Mutex::default(),
        })
    }

    fn open_files(&self) -> MutexGuard<'_, HashMap<String, RemoteFile>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The copy of a file, which is made if it is not there. The server gives it its name when the hash of all its bytes is right.
    fn copy(&self, name: &str) -> Result<RemoteFile, TierError> {
        let mut open = self.open_files();
        if let Some(file) = open.get(name) {
            return Ok(file.clone());
        }
        let there = format!("{}{name}", self.prefix);
        let from = self.home.open_reader(name)?;
        let len = from.size()?;
        let known = self.client.open(&there)?.filter(|file| file.len() == len);
        let file = match known {
            Some(file) => file,
            None => {
                let mut free = self.client.room()?;
                if free < len {
                    self.client.sweep(&self.owner, &self.prefix)?;
                    free = self.client.room()?;
                }
                if free < len {
                    let place = self.client.server().name().to_owned();
                    return Err(TierError::NoRoom { place, len, free });
                }
                self.client
                    .put(&there, len, |offset, piece| from.read_at(offset, piece))?
            }
        };
        open.insert(name.to_owned(), file.clone());
        Ok(file)
    }
}

impl Volume for RemoteVolume {
    leave_to!(home: name create open open_pages len exists rename remove list sync lock);

    /// Where its copy is, which is what is read, and what it is a copy of: that may be what is damaged.
    fn place(&self, name: &str) -> String {
        let copy = format!("{}/{}{name}", self.client.server().name(), self.prefix);
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
