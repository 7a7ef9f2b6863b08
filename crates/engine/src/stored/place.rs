//! Finds the directory of an index, its manifest, and directories that have indexes.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use stratann_layout::manifest::FILE_NAME as MANIFEST;
use stratann_layout::{IndexKind, Manifest};
use stratann_tier::{Directory, LOCK_FILE, TierError, Volume};

use super::{damaged, name_of};
use crate::{Error, Layout, bounds};

/// A directory in the root of a file system that only the user root may read.
const LOST: &str = "lost+found";

/// The name of the MANIFEST of an unfinished snapshot ([`snapshot`](crate::snapshot)).
pub(crate) const UNFINISHED_SNAPSHOT: &str = "SNAPSHOT.new";

/// The absolute path, which stays valid if the process changes its working directory.
pub(crate) fn home(path: &Path) -> Result<PathBuf, Error> {
    bounds::path(path)?;
    let failed = |source| TierError::io("look for", path.display().to_string(), 0, 0, source);
    Ok(std::path::absolute(path).map_err(failed)?)
}

/// Opens a directory. The error of an unreadable directory differs from the error of a missing
/// directory.
pub(crate) fn existing(path: &Path) -> Result<Directory, Error> {
    bounds::path(path)?;
    Directory::open(path).map_err(|error| match &error {
        TierError::Missing { .. } => Error::not_an_index(
            path,
            "no such directory. Build an index there with `stratann build BASE INDEX`",
        ),
        TierError::Io { source, .. } if source.kind() == ErrorKind::NotADirectory => {
            Error::not_an_index(path, "it is a file; an index is a directory")
        }
        _ => error.into(),
    })
}

pub(crate) fn manifest(volume: &dyn Volume) -> Result<Manifest, Error> {
    let bytes = match volume.read(MANIFEST) {
        Ok(bytes) => bytes,
        Err(TierError::Missing { .. }) => return Err(no_manifest(volume)),
        Err(error) => return Err(error.into()),
    };
    let manifest = Manifest::decode(&bytes, &name_of(volume, MANIFEST))?;
    let wrong = |what: String| Err(damaged(volume, MANIFEST, what));
    let (vectors, dimension) = (manifest.vectors, manifest.dimension);
    if vectors == 0 || vectors >= u64::from(u32::MAX) || dimension == 0 {
        return wrong(format!(
            "it has {vectors} vectors of {dimension} dimensions"
        ));
    }
    let code_bytes = manifest.code_bytes;
    let has_codes = match &manifest.kind {
        IndexKind::Graph(_) => 1..=dimension,
        IndexKind::Cluster(_) => 0..=0,
    };
    if !has_codes.contains(&code_bytes) {
        return wrong(format!(
            "it has codes of {code_bytes} bytes for {dimension} dimensions"
        ));
    }
    match &manifest.kind {
        IndexKind::Graph(facts) if u64::from(facts.entry) >= vectors => {
            return wrong(format!(
                "its entry node is {}, of {vectors} nodes",
                facts.entry
            ));
        }
        IndexKind::Cluster(facts) if facts.clusters > vectors || facts.members < vectors => {
            let (clusters, members) = (facts.clusters, facts.members);
            return wrong(format!(
                "it has {clusters} clusters with {members} members, of {vectors} vectors"
            ));
        }
        IndexKind::Graph(_) | IndexKind::Cluster(_) => {}
    }
    let nodes = manifest.placement.map_or(vectors, |facts| facts.nodes);
    if nodes < vectors || nodes >= u64::from(u32::MAX) {
        return wrong(format!("it has {nodes} nodes, {vectors} of the build"));
    }
    Ok(manifest)
}

pub(crate) fn is_absent(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory)
}

/// Whether the directory has a MANIFEST. The call fails if this is unknown.
pub(crate) fn is_index(path: &Path) -> Result<bool, Error> {
    let place = path.join(MANIFEST);
    match std::fs::metadata(&place) {
        Ok(facts) => Ok(facts.is_file()),
        Err(error) if is_absent(&error) => Ok(false),
        Err(error) => {
            Err(TierError::io("look at", place.display().to_string(), 0, 0, error).into())
        }
    }
}

/// The names of the indexes in a folder. Hidden folders do not count, because they are unfinished
/// copies, or are in a trash.
pub(crate) fn indexes_in(path: &Path) -> Result<Vec<String>, Error> {
    let failed = |source| TierError::io("list", path.display().to_string(), 0, 0, source);
    let mut indexes = Vec::new();
    for entry in std::fs::read_dir(path).map_err(failed)? {
        // An index cannot be opened by a name that is not UTF-8.
        if let Ok(name) = entry.map_err(failed)?.file_name().into_string()
            && name != LOST
            && !name.starts_with('.')
            && is_index(&path.join(&name))?
        {
            indexes.push(name);
        }
    }
    indexes.sort_unstable();
    Ok(indexes)
}

fn no_manifest(volume: &dyn Volume) -> Error {
    let path = PathBuf::from(volume.name());
    if let Ok(true) = volume.exists(UNFINISHED_SNAPSHOT) {
        let reason = "it is an unfinished snapshot. Wait until the process that takes it is done. If that process was ended, run `stratann snapshot` again, \
                      which removes the files here"
            .into();
        return Error::NotAnIndex { path, reason };
    }
    let indexes = match indexes_in(&path) {
        Ok(indexes) => indexes,
        // A simulated volume has no directory.
        Err(Error::Tier(TierError::Missing { .. })) => Vec::new(),
        Err(error) => {
            let reason =
                format!("it has no MANIFEST, and could not be searched for indexes: {error}");
            return Error::NotAnIndex { path, reason };
        }
    };
    let reason = match indexes.first() {
        None => without_indexes(&path).into(),
        Some(first) => format!(
            "it is a folder of {} index{}. Open one of them, such as {}, or all of them as a catalog (in Python \
             `stratann.Catalog(path)`, in Rust `Catalog::open`)",
            indexes.len(),
            if indexes.len() == 1 { "" } else { "es" },
            path.join(first).display()
        ),
    };
    Error::NotAnIndex { path, reason }
}

fn without_indexes(path: &Path) -> &'static str {
    let is_empty = path.read_dir().is_ok_and(|mut all| all.next().is_none());
    match (is_empty, path.join(LOCK_FILE).exists()) {
        (true, _) => "it is empty. Check the path, or build an index there",
        (false, true) => {
            "it has no MANIFEST, but the LOCK of a build: the build was interrupted or is running, or the MANIFEST was removed. \
             Build the index again, or put its MANIFEST back"
        }
        (false, false) => {
            "it has no MANIFEST, and no LOCK, which each build begins with. Check the path"
        }
    }
}

/// The number of vectors of the index in a directory, from its manifest alone.
///
/// # Errors
/// The call fails if the directory has no index, or if the manifest is damaged or of a later
/// format.
pub fn vectors_in(path: impl AsRef<Path>) -> Result<usize, Error> {
    let manifest = manifest(&existing(path.as_ref())?)?;
    Ok(manifest.built_vectors() as usize)
}

pub(crate) fn layout(volume: &dyn Volume, manifest: &Manifest) -> Result<Layout, Error> {
    manifest.layout.parse().map_err(|_| {
        let layout = &manifest.layout;
        damaged(
            volume,
            MANIFEST,
            format!("it names the layout {layout:?}, which this version does not know"),
        )
    })
}
