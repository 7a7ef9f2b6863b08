//! The names of copies, which depend on the index, the position of its folder, and the checkpoint.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use stratann_layout::Manifest;
use stratann_layout::manifest::FILE_NAME as MANIFEST;
use stratann_tier::Volume;
use stratann_tier::remote::CopyNames;

use crate::{Error, stored};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Identity {
    /// The name has only letters and digits.
    pub(super) name: String,
    /// Whether every machine gives the checkpoint this name, so that machines can share copies.
    pub(super) everywhere: bool,
}

impl Identity {
    /// A hash of the MANIFEST of the present checkpoint. Each MANIFEST has a random number. If a
    /// MANIFEST of an earlier version lacks this number, the hash also covers device, inode, length
    /// and change time of the file, so no other machine can compute it.
    pub(super) fn of(home: &dyn Volume, path: &Path) -> Result<Identity, Error> {
        let bytes = home.read(MANIFEST)?;
        let manifest = Manifest::decode(&bytes, &stored::name_of(home, MANIFEST))?;
        let mut hasher = blake3::Hasher::new();
        hasher.update(&bytes);
        let everywhere = manifest.state.is_some();
        // A volume that is not a folder has no MANIFEST file with these facts.
        if !everywhere && let Ok(file) = std::fs::metadata(path.join(MANIFEST)) {
            for number in [file.dev(), file.ino(), file.len()] {
                hasher.update(&number.to_le_bytes());
            }
            for number in [file.ctime(), file.ctime_nsec()] {
                hasher.update(&number.to_le_bytes());
            }
        }
        let name = hasher.finalize().to_hex()[..32].to_owned();
        Ok(Identity { name, everywhere })
    }

    /// The names on a memory server, where the index has the name `owner`.
    pub(super) fn on_server(&self, owner: &str, path: &Path) -> CopyNames {
        CopyNames {
            owner: owner.to_owned(),
            origin: origin(path),
            state: self.name.clone(),
            everywhere: self.everywhere,
        }
    }
}

pub(super) fn owner(path: &Path) -> String {
    let hash = blake3::hash(path.as_os_str().as_encoded_bytes());
    hash.to_hex()[..16].to_owned()
}

/// The identity of an index folder among all machines, so that two indexes of the same name do not
/// replace each other's copies.
pub(super) fn origin(path: &Path) -> String {
    let mut hasher = blake3::Hasher::new();
    // A container may have no machine id, or the id of its host, but then it has its own host name.
    for file in ["/etc/machine-id", "/proc/sys/kernel/hostname"] {
        hasher.update(&std::fs::read(file).unwrap_or_default());
        hasher.update(&[0]);
    }
    hasher.update(path.as_os_str().as_encoded_bytes());
    hasher.finalize().to_hex()[..16].to_owned()
}
