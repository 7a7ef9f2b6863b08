//! Decides whether a new index may be built in a directory.

use std::ffi::OsString;
use std::path::Path;

use stratann_layout::manifest::FILE_NAME as MANIFEST;
use stratann_tier::{LOCK_FILE, TierError};

use crate::durable::are_of_first_build;
use crate::{Error, bounds, savepoint, stored};

/// Whether a build that replaces nothing may begin in the directory `path`. The directory may be
/// missing, or may have only files of an interrupted first build. It must not have an index, other
/// files, or files of a changed index whose manifest is missing.
///
/// # Errors
/// The call fails if the path cannot be examined, or if its entries cannot be listed.
pub fn is_vacant(path: impl AsRef<Path>) -> Result<bool, Error> {
    let path = path.as_ref();
    bounds::path(path)?;
    let failed = |source| TierError::io("look at", path.display().to_string(), 0, 0, source);
    match path.symlink_metadata() {
        Err(error) if stored::is_absent(&error) => return Ok(true),
        Err(error) => return Err(failed(error).into()),
        Ok(_) => {}
    }
    // A dangling symbolic link exists, but is not a directory.
    if !path.is_dir() {
        return Ok(false);
    }
    let names = entries(path)?;
    if stranger(&names).is_some() {
        return Ok(false);
    }
    // A build writes no folders, and the names of its files are valid UTF-8.
    let names = names.iter().filter_map(|name| name.to_str());
    let files = names.filter(|&name| name != LOCK_FILE && !path.join(name).is_dir());
    Ok(are_of_first_build(files))
}

/// Fails if the directory has foreign files, so that a folder of several indexes never becomes an
/// index. An index, a lock file or a savepoint in the directory shows that a build has begun there.
pub(super) fn check_vacant(path: &Path) -> Result<(), Error> {
    match stranger(&entries(path)?) {
        None => Ok(()),
        Some(name) => Err(Error::Exists {
            path: path.to_owned(),
            reason: format!(
                "it holds {name:?}, which is no part of an index. Give an empty or new directory"
            ),
        }),
    }
}

/// The names in the directory; none if the directory does not exist.
fn entries(path: &Path) -> Result<Vec<OsString>, Error> {
    let failed = |source| TierError::io("list", path.display().to_string(), 0, 0, source);
    let entries = match path.read_dir() {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(failed(error).into()),
    };
    let names = entries.map(|entry| entry.map(|entry| entry.file_name()));
    Ok(names.collect::<Result<_, _>>().map_err(failed)?)
}

/// Any name in the directory, unless a build has begun there.
fn stranger(names: &[OsString]) -> Option<&OsString> {
    let is_savepoint = |name: &OsString| name.to_str().is_some_and(savepoint::is_savepoint);
    let is_begun = |name: &OsString| name == MANIFEST || name == LOCK_FILE || is_savepoint(name);
    match names.iter().any(is_begun) {
        true => None,
        false => names.first(),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use stratann_vector::Element;

    use super::*;
    use crate::{BuildOptions, Silent, create};

    fn of(names: &[&str]) -> bool {
        let folder = tempfile::tempdir().unwrap();
        for name in names {
            fs::write(folder.path().join(name), "").unwrap();
        }
        fs::create_dir(folder.path().join("build-scratch")).unwrap();
        let vacant = is_vacant(folder.path()).unwrap();
        let created = create(
            folder.path(),
            Element::F32,
            4,
            &BuildOptions::default(),
            &Silent,
        );
        assert_eq!(created.is_ok(), vacant, "{names:?}: {:?}", created.err());
        vacant
    }

    #[test]
    fn what_a_first_build_has_left_is_no_index_yet() {
        assert!(of(&["LOCK"]));
        assert!(of(&["LOCK", "graph-000001", "codes-000001"]));
        assert!(of(&["LOCK", "vectors-000001-0000", "MANIFEST.new"]));
        for name in ["MANIFEST", "notes.txt", "log-000001", "placement-000002"] {
            assert!(!of(&["LOCK", "graph-000001", name]), "{name}");
        }
        assert!(!of(&["graph-000001"]));
    }

    #[test]
    fn what_is_not_there_and_what_is_empty_is_vacant() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path();
        assert!(is_vacant(path).unwrap() && is_vacant(path.join("none")).unwrap());
        create(
            path.join("index"),
            Element::F32,
            4,
            &BuildOptions::default(),
            &Silent,
        )
        .unwrap();
        fs::write(path.join("file"), "").unwrap();
        std::os::unix::fs::symlink(path.join("none"), path.join("link")).unwrap();
        for name in ["index", "file", "link", "."] {
            assert!(!is_vacant(path.join(name)).unwrap(), "{name}");
        }
        std::os::unix::fs::symlink(path.join("index"), path.join("way")).unwrap();
        assert!(!is_vacant(path.join("way")).unwrap());
        fs::remove_dir_all(path.join("index")).unwrap();
        fs::create_dir(path.join("index")).unwrap();
        assert!(is_vacant(path.join("way")).unwrap());
    }
}
