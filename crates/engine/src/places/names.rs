//! The names of copies. A name depends on the index, on the position of the index folder, and on
//! the checkpoint.

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
    /// The name of the checkpoint. It has letters and digits.
    pub(super) name: String,
    /// Whether every machine gives the checkpoint this name. In this case, a copy that another
    /// machine made is the same.
    pub(super) everywhere: bool,
}

impl Identity {
    /// The identity of the present checkpoint of the index in a volume. It is a hash of the
    /// MANIFEST, which has a random number for each checkpoint. The MANIFEST of an earlier version
    /// has no such number. Then two indexes of equal size may have the same MANIFEST, but different
    /// ids and lists. So the hash also covers the device, inode, length and change time of the
    /// MANIFEST at `path`, and no other machine can compute it.
    ///
    /// # Errors
    /// The call fails if the MANIFEST is missing or damaged.
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

    /// The names of the checkpoint's copies on a memory server. On the server, the index has the
    /// name `owner`. The index folder is at `path`.
    pub(super) fn on_server(&self, owner: &str, path: &Path) -> CopyNames {
        CopyNames {
            owner: owner.to_owned(),
            origin: origin(path),
            state: self.name.clone(),
            everywhere: self.everywhere,
        }
    }
}

/// The name of an index in the names of copies on this machine.
pub(super) fn owner(path: &Path) -> String {
    let hash = blake3::hash(path.as_os_str().as_encoded_bytes());
    hash.to_hex()[..16].to_owned()
}

/// The identity of an index folder among all machines. With it, two machines that have an index
/// under the same name do not replace each other's copies.
pub(super) fn origin(path: &Path) -> String {
    let mut hasher = blake3::Hasher::new();
    // Only the files that exist count. A container may have no machine id, or the id of its host,
    // but then it has its own host name.
    for file in ["/etc/machine-id", "/proc/sys/kernel/hostname"] {
        hasher.update(&std::fs::read(file).unwrap_or_default());
        hasher.update(&[0]);
    }
    hasher.update(path.as_os_str().as_encoded_bytes());
    hasher.finalize().to_hex()[..16].to_owned()
}
