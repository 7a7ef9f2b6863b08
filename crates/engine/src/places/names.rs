//! The names of copies: by index, by the place of its primary copy, and by checkpoint.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use stratann_layout::Manifest;
use stratann_layout::manifest::FILE_NAME as MANIFEST;
use stratann_tier::Volume;
use stratann_tier::remote::CopyNames;

use crate::{Error, stored};

/// The identity of one checkpoint of an index.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Identity {
    /// The name of the checkpoint, of letters and digits.
    pub(super) name: String,
    /// Whether every machine gives the checkpoint this name. Copies from another machine are then
    /// the same.
    pub(super) everywhere: bool,
}

impl Identity {
    /// The checkpoint of the index in a volume: a hash of its MANIFEST, which has a random number
    /// for each checkpoint. The MANIFEST of an earlier version has none. Then two indexes of equal
    /// size may have the same MANIFEST, but different ids and lists. So the hash also covers the
    /// device, inode, length and change time of the MANIFEST at `path`, and no other machine can
    /// compute it.
    ///
    /// # Errors
    /// The MANIFEST is missing or damaged.
    pub(super) fn of(home: &dyn Volume, path: &Path) -> Result<Identity, Error> {
        let bytes = home.read(MANIFEST)?;
        let manifest = Manifest::decode(&bytes, &stored::name_of(home, MANIFEST))?;
        let mut hasher = blake3::Hasher::new();
        hasher.update(&bytes);
        let everywhere = manifest.state.is_some();
        // A volume that is not a folder has no such file.
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

    /// The names of its copies on a memory server where the index is called `owner`, with its
    /// primary copy at `path`.
    pub(super) fn on_server(&self, owner: &str, path: &Path) -> CopyNames {
        CopyNames {
            owner: owner.to_owned(),
            origin: origin(path),
            state: self.name.clone(),
            everywhere: self.everywhere,
        }
    }
}

/// The name of an index in names of copies on this machine.
pub(super) fn owner(path: &Path) -> String {
    let hash = blake3::hash(path.as_os_str().as_encoded_bytes());
    hash.to_hex()[..16].to_owned()
}

/// The identity of a primary copy among all machines. So two machines that have an index under the
/// same name do not replace each other's copies.
pub(super) fn origin(path: &Path) -> String {
    let mut hasher = blake3::Hasher::new();
    // As many of these as exist. A container may have no machine id, or the id of its host, but
    // then it has its own host name.
    for file in ["/etc/machine-id", "/proc/sys/kernel/hostname"] {
        hasher.update(&std::fs::read(file).unwrap_or_default());
        hasher.update(&[0]);
    }
    hasher.update(path.as_os_str().as_encoded_bytes());
    hasher.finalize().to_hex()[..16].to_owned()
}
