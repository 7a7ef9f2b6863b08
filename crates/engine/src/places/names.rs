//! What copies are called: after the index whose they are, where it is at home, and the state that it was in.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use stratann_layout::manifest::FILE_NAME as MANIFEST;
use stratann_tier::Volume;

use crate::Error;

/// What tells one state of an index from every other: its MANIFEST, and as which file that stands there. Its bytes alone would not do: another
/// index of as many vectors may have the same, with other ids and other lists.
pub(super) fn identity(home: &dyn Volume, path: &Path) -> Result<String, Error> {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&home.read(MANIFEST)?);
    // A volume that is no folder has no such file.
    if let Ok(file) = std::fs::metadata(path.join(MANIFEST)) {
        for number in [file.dev(), file.ino(), file.len()] {
            hasher.update(&number.to_le_bytes());
        }
        for number in [file.ctime(), file.ctime_nsec()] {
            hasher.update(&number.to_le_bytes());
        }
    }
    Ok(hasher.finalize().to_hex()[..32].to_owned())
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
