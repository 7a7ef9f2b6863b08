//! What copies are called: after the index whose they are, where it is at home, and the state that it was in.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use stratann_layout::Manifest;
use stratann_layout::manifest::FILE_NAME as MANIFEST;
use stratann_tier::Volume;

use crate::{Error, stored};

/// What tells one state of an index from every other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Identity {
    /// The name of the state, of letters and digits.
    pub(super) name: String,
    /// Whether that is its name on every machine, so that copies of it that came from another one are the same.
    pub(super) everywhere: bool,
}

impl Identity {
    /// The state of the index in a volume: its MANIFEST, in which a random number stands that is drawn with each checkpoint. In an index of a
    /// version that drew none the bytes alone would not do: another index of as many vectors may have the same, with other ids and other
    /// lists. There it is also as which file the MANIFEST stands at `path`, and so nothing that another machine could know.
    ///
    /// # Errors
    /// It has no MANIFEST, or one that is damaged.
    pub(super) fn of(home: &dyn Volume, path: &Path) -> Result<Identity, Error> {
        let bytes = home.read(MANIFEST)?;
        let manifest = Manifest::decode(&bytes, &stored::name_of(home, MANIFEST))?;
        let mut hasher = blake3::Hasher::new();
        hasher.update(&bytes);
        let everywhere = manifest.state.is_some();
        // A volume that is no folder has no such file.
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
}

/// Whose copies those of an index are, among all of this machine.
pub(super) fn owner(path: &Path) -> String {
    let hash = blake3::hash(path.as_os_str().as_encoded_bytes());
    hash.to_hex()[..16].to_owned()
}

/// Where an index is at home, among all machines: so that two that have the same index under one name do not push each other's copies out.
pub(super) fn origin(path: &Path) -> String {
    let mut hasher = blake3::Hasher::new();
    // What there is of these: a container may have no machine id, or its host's, and then it has a name of its own.
    for file in ["/etc/machine-id", "/proc/sys/kernel/hostname"] {
        hasher.update(&std::fs::read(file).unwrap_or_default());
        hasher.update(&[0]);
    }
    hasher.update(path.as_os_str().as_encoded_bytes());
    hasher.finalize().to_hex()[..16].to_owned()
}
