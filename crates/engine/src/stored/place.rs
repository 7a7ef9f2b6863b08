//! Where an index is: its directory, its manifest, and directories of indexes.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use stratann_layout::manifest::FILE_NAME as MANIFEST;
use stratann_layout::{IndexKind, Manifest};
use stratann_tier::{Directory, TierError, Volume};

use super::{damaged, name_of};
use crate::{Error, Layout, bounds};

/// What a file system keeps for itself in its topmost directory, where only root may look.
const LOST: &str = "lost+found";

/// What a snapshot is called that is not finished: its MANIFEST, until that counts ([`snapshot`](crate::snapshot)).
pub(crate) const UNFINISHED_SNAPSHOT: &str = "SNAPSHOT.new";

/// Where an index lives, wherever the process goes later: a relative path would lead elsewhere then.
pub(crate) fn home(path: &Path) -> Result<PathBuf, Error> {
    bounds::path(path)?;
    let failed = |source| TierError::io("look for", path.display().to_string(), 0, 0, source);
    Ok(std::path::absolute(path).map_err(failed)?)
}

/// The directory at `path`, which must exist. What may not be looked at is told from what is not there.
pub(crate) fn existing(path: &Path) -> Result<Directory, Error> {
    bounds::path(path)?;
    Directory::open(path).map_err(|error| match &error {
        TierError::Missing { .. } => Error::not_an_index(
            path,
            "no such directory; build an index there with `stratann build BASE INDEX`",
        ),
        TierError::Io { source, .. } if source.kind() == ErrorKind::NotADirectory => {
            Error::not_an_index(path, "it is a file; an index is a directory")
        }
        _ => error.into(),
    })
}

/// The manifest of the index in a volume.
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
        return wrong(format!("{vectors} vectors of {dimension} dimensions"));
    }
    let code_bytes = manifest.code_bytes;
    let has_codes = match &manifest.kind {
        IndexKind::Graph(_) => 1..=dimension,
        IndexKind::Cluster(_) => 0..=0,
    };
    if !has_codes.contains(&code_bytes) {
        return wrong(format!(
            "codes of {code_bytes} bytes for {dimension} dimensions"
        ));
    }
    match &manifest.kind {
        IndexKind::Graph(facts) if u64::from(facts.entry) >= vectors => {
            return wrong(format!("entry node {} of {vectors}", facts.entry));
        }
        IndexKind::Cluster(facts) if facts.clusters > vectors || facts.members < vectors => {
            let (clusters, members) = (facts.clusters, facts.members);
            return wrong(format!(
                "{clusters} clusters with {members} members of {vectors} vectors"
            ));
        }
        IndexKind::Graph(_) | IndexKind::Cluster(_) => {}
    }
    let nodes = manifest.placement.map_or(vectors, |facts| facts.nodes);
    if nodes < vectors || nodes >= u64::from(u32::MAX) {
        return wrong(format!("{nodes} nodes, of which its build had {vectors}"));
    }
    Ok(manifest)
}

/// Whether an operating-system error says that there is nothing of that name.
pub(crate) fn is_absent(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory)
}

/// Whether a directory has a MANIFEST.
///
/// # Errors
/// Nobody knows: it may not be looked into, or the file system is broken there.
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

/// The names of the indexes in a directory, sorted, without hidden ones: such a folder is a copy in the making, or in a trash.
///
/// # Errors
/// It cannot be listed, or one of its directories may not be looked into.
pub(crate) fn indexes_in(path: &Path) -> Result<Vec<String>, Error> {
    let failed = |source| TierError::io("list", path.display().to_string(), 0, 0, source);
    let mut indexes = Vec::new();
    for entry in std::fs::read_dir(path).map_err(failed)? {
        // Names that are not UTF-8 cannot be asked for.
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

/// What is said of a directory that certainly has no manifest.
fn no_manifest(volume: &dyn Volume) -> Error {
    let path = PathBuf::from(volume.name());
    if let Ok(true) = volume.exists(UNFINISHED_SNAPSHOT) {
        let reason = "it is a snapshot that is not finished: wait for who takes it, or, if it was ended, take it again with `stratann snapshot`, \
                      which clears what is here"
            .into();
        return Error::NotAnIndex { path, reason };
    }
    let indexes = match indexes_in(&path) {
        Ok(indexes) => indexes,
        // It is a simulated one.
        Err(Error::Tier(TierError::Missing { .. })) => Vec::new(),
        // That there is no index here is certain all the same.
        Err(error) => {
            let reason = format!(
                "it has no MANIFEST; whether it is a folder of indexes, nobody can tell: {error}"
            );
            return Error::NotAnIndex { path, reason };
        }
    };
    let reason = match indexes.first() {
        None => "it has no MANIFEST: a build that was interrupted, or another directory; build the index again".into(),
        Some(first) => format!(
            "it is a folder of {} index{}: open one of them, as {}, or all of them as a catalog (in Python \
             `stratann.Catalog(path)`, in Rust `Catalog::open`)",
            indexes.len(),
            if indexes.len() == 1 { "" } else { "es" },
            path.join(first).display()
        ),
    };
    Error::NotAnIndex { path, reason }
}

/// How many vectors the index in a directory holds, from its manifest alone: what a cache's size as a share of them
/// needs to know before the index is opened.
///
/// # Errors
/// No index there, or a manifest that is damaged or of a later format.
pub fn vectors_in(path: impl AsRef<Path>) -> Result<usize, Error> {
    let manifest = manifest(&existing(path.as_ref())?)?;
    Ok(manifest.built_vectors() as usize)
}

/// How the nodes of an index became bytes.
pub(crate) fn layout(volume: &dyn Volume, manifest: &Manifest) -> Result<Layout, Error> {
    manifest.layout.parse().map_err(|_| {
        let layout = &manifest.layout;
        damaged(
            volume,
            MANIFEST,
            format!("layout {layout:?}, which this version does not know"),
        )
    })
}
