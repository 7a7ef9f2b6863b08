//! The paths and the names of the indexes of a catalog.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use stratann_tier::TierError;

use crate::alike::edits;
use crate::{Error, stored};

const LISTED: usize = 8;
const NO_MANIFEST: &str =
    "it has no MANIFEST: a build was interrupted or is running, or this is another directory";

pub(super) enum IndexPaths {
    /// The indexes are subdirectories, whose names are the names of the indexes.
    Directory(PathBuf),
    /// The indexes are at any paths. The name of an index is its path.
    Paths(BTreeMap<String, PathBuf>),
}

impl fmt::Display for IndexPaths {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Directory(path) => path.display().fmt(f),
            Self::Paths(paths) => write!(f, "{} paths", paths.len()),
        }
    }
}

impl IndexPaths {
    /// The directory must exist, and must not be an index itself.
    pub(super) fn directory(path: &Path) -> Result<Self, Error> {
        let found = match std::fs::metadata(path) {
            Ok(facts) if facts.is_dir() => None,
            Ok(_) => Some("a file"),
            Err(error) if stored::is_absent(&error) => Some("not there"),
            // Without the right to read, it is unknown whether the directory is an index.
            Err(error) => {
                let place = path.display().to_string();
                return Err(TierError::io("look at", place, 0, 0, error).into());
            }
        };
        if let Some(found) = found {
            return Err(Error::call(
                format!("the catalog {}", path.display()),
                found,
                "a catalog is a directory whose subdirectories are indexes",
                "Give a directory of indexes",
            ));
        }
        if stored::is_index(path)? {
            return Err(Error::call(
                format!("the catalog {}", path.display()),
                "an index",
                "a catalog is a directory of indexes",
                "Open this index alone, or its parent directory",
            ));
        }
        Ok(Self::Directory(path.to_owned()))
    }

    pub(super) fn paths(paths: Vec<PathBuf>) -> Result<Self, Error> {
        if paths.is_empty() {
            return Err(Error::call(
                "the list of paths",
                "empty",
                "a catalog has at least one index",
                "Give the path of an index",
            ));
        }
        let named = |path: PathBuf| (path.display().to_string(), path);
        Ok(Self::Paths(paths.into_iter().map(named).collect()))
    }

    /// Fails if it is unknown whether a directory is an index.
    pub(super) fn names(&self) -> Result<Vec<String>, Error> {
        let directory = match self {
            Self::Directory(path) => path,
            Self::Paths(paths) => {
                let mut names = Vec::new();
                for (name, path) in paths {
                    if stored::is_index(path)? {
                        names.push(name.clone());
                    }
                }
                return Ok(names);
            }
        };
        stored::indexes_in(directory)
    }

    /// The path of the index of this name. Fails if the name leads out of the catalog.
    pub(super) fn path(&self, name: &str) -> Result<PathBuf, Error> {
        match self {
            Self::Directory(directory) => {
                let plain = !matches!(name, "" | "." | "..") && !name.contains(['/', '\\', '\0']);
                if !plain {
                    let rule = "a name must be the name of a subdirectory, without separators";
                    return Err(self.no_such(name, Some(rule)));
                }
                Ok(directory.join(name))
            }
            Self::Paths(paths) => {
                let path = paths.get(name).cloned();
                path.ok_or_else(|| self.no_such(name, None))
            }
        }
    }

    /// The error for a name whose path has no index.
    pub(super) fn absent(&self, name: &str, path: &Path) -> Error {
        match self {
            Self::Directory(_) => self.no_such(name, path.is_dir().then_some(NO_MANIFEST)),
            Self::Paths(_) => match stored::existing(path) {
                Ok(_) => Error::not_an_index(path, NO_MANIFEST),
                Err(error) => error,
            },
        }
    }

    fn no_such(&self, name: &str, why: Option<&str>) -> Error {
        let there = match (self.names(), self) {
            (Err(error), _) => error.to_string(),
            (Ok(names), Self::Directory(path)) if names.is_empty() => format!(
                "there is no index at all. Build one with `stratann build BASE {}`",
                path.join("NAME").display()
            ),
            (Ok(names), _) if names.is_empty() => "there is no index at all".to_owned(),
            (Ok(names), _) if names.len() <= LISTED => format!("there are {}", names.join(", ")),
            (Ok(names), _) => {
                let like = most_like(name, &names);
                format!(
                    "of {} indexes, the most similar names are {}",
                    names.len(),
                    like.join(", ")
                )
            }
        };
        let catalog = match self {
            Self::Directory(path) => path.clone(),
            Self::Paths(_) => PathBuf::from(self.to_string()),
        };
        Error::NoSuchIndex {
            catalog,
            name: name.to_owned(),
            remedy: match why {
                Some(why) => format!("{why}; {there}"),
                None => there,
            },
        }
    }
}

fn most_like<'n>(name: &str, names: &'n [String]) -> Vec<&'n str> {
    let mut by_distance: Vec<(usize, &str)> = names
        .iter()
        .map(|other| (edits(name, other), other.as_str()))
        .collect();
    by_distance.sort_unstable();
    by_distance.truncate(LISTED);
    by_distance.into_iter().map(|(_, name)| name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_likeliest_names_come_first() {
        let names: Vec<String> = (0..100).map(|n| format!("photos-{n:03}")).collect();
        let like = most_like("photo-042", &names);
        assert_eq!(like.len(), LISTED);
        assert_eq!(like[0], "photos-042");
    }
}
