//! Lists the copies of indexes on a place, so that a user sees their size and can remove them.

use std::path::Path;

use serde::Serialize;
use stratann_tier::{CopyFolder, FoundCopies};

use super::names::{Identity, origin, owner};
use super::{PlaceTier, Places, Remote};
use crate::{Error, stored};

/// The copies of one checkpoint of one index on a place.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Copies {
    /// The tier, as it is written in the text of a place.
    pub place: String,
    /// The path of the folder, or the prefix of the names of the files on the server.
    pub name: String,
    /// Whether the copies belong to the present checkpoint of the index. `None` without an index.
    pub current: Option<bool>,
    /// The number of files.
    pub files: u64,
    /// The number of bytes of these files.
    pub bytes: u64,
    /// Whether a process has the copies open.
    pub in_use: bool,
    /// Whether this call removed the copies.
    pub removed: bool,
}

/// The copies on some places, of one index or of all indexes. On a server, the result has the
/// copies of all machines under the index name of the place. For one index, copies that another
/// machine made count only if their checkpoint is the same.
///
/// # Errors
/// A place is in memory, where copies cannot be listed, or a folder or a server cannot be read.
pub fn copies(index: Option<&Path>, places: &Places) -> Result<Vec<Copies>, Error> {
    all(index, places, false)
}

/// Lists the copies as [`copies`] does, and removes all copies that no process has open.
///
/// # Errors
/// Fails as [`copies`] does.
pub fn remove_copies(index: Option<&Path>, places: &Places) -> Result<Vec<Copies>, Error> {
    all(index, places, true)
}

struct Sought {
    owner: String,
    origin: String,
    /// The present checkpoint of the index. `None` if the index does not exist.
    state: Option<Identity>,
}

fn all(index: Option<&Path>, places: &Places, remove: bool) -> Result<Vec<Copies>, Error> {
    places.check_for_verify()?;
    let sought = match index {
        None => None,
        Some(index) => {
            let path = stored::home(index)?;
            let state = stored::existing(&path).and_then(|home| Identity::of(&home, &path));
            Some(Sought {
                owner: owner(&path),
                origin: origin(&path),
                // If an index was removed, its copies may still exist.
                state: state.ok(),
            })
        }
    };
    let mut tiers: Vec<&PlaceTier> = Vec::new();
    for place in &places.0 {
        if !tiers.contains(&&place.tier) {
            tiers.push(&place.tier);
        }
    }
    let mut found = Vec::new();
    for tier in tiers {
        match tier {
            PlaceTier::Folder(folder, _) => {
                for copies in CopyFolder::found_at(folder)? {
                    found.extend(in_folder(tier, &copies, sought.as_ref(), remove)?);
                }
            }
            PlaceTier::Remote(remote) => {
                found.extend(on_server(tier, remote, sought.as_ref(), remove)?);
            }
            PlaceTier::Home | PlaceTier::Memory | PlaceTier::Modelled(_) => {}
        }
    }
    if let (Some(index), true) = (index, found.is_empty()) {
        stored::existing(index).and_then(|home| stored::manifest(&home))?;
    }
    Ok(found)
}

fn in_folder(
    tier: &PlaceTier,
    found: &FoundCopies,
    sought: Option<&Sought>,
    remove: bool,
) -> Result<Option<Copies>, Error> {
    if sought.is_some_and(|sought| sought.owner != found.owner) {
        return Ok(None);
    }
    let state = sought.and_then(|sought| sought.state.as_ref());
    Ok(Some(Copies {
        place: tier.to_string(),
        name: found.path.display().to_string(),
        current: state.map(|state| state.name == found.content),
        files: found.files,
        bytes: found.bytes,
        in_use: found.in_use,
        removed: remove && !found.in_use && found.remove()?,
    }))
}

fn on_server(
    tier: &PlaceTier,
    remote: &Remote,
    sought: Option<&Sought>,
    remove: bool,
) -> Result<Vec<Copies>, Error> {
    let client = remote.client()?;
    let mut found: Vec<Copies> = Vec::new();
    for file in client.list(&format!("{}.", remote.name))? {
        // A file's name begins with the names of the index, of the origin and of the checkpoint.
        let Some((at, _)) = file.name.match_indices('.').nth(2) else {
            continue;
        };
        let name = &file.name[..at];
        let mut parts = name.split('.').skip(1);
        let (Some(origin), Some(state)) = (parts.next(), parts.next()) else {
            continue;
        };
        let now = sought.and_then(|sought| sought.state.as_ref());
        // Copies of this machine, or of the same checkpoint from another machine.
        let shared = now.is_some_and(|now| now.everywhere && now.name == state);
        if sought.is_some_and(|sought| sought.origin != origin) && !shared {
            continue;
        }
        let known = found.last_mut().filter(|copies| copies.name == name);
        if let Some(copies) = known {
            copies.files += 1;
            copies.bytes += file.len;
            copies.in_use |= file.in_use;
            continue;
        }
        found.push(Copies {
            place: tier.to_string(),
            name: name.to_owned(),
            current: now.map(|now| now.name == state),
            files: 1,
            bytes: file.len,
            in_use: file.in_use,
            removed: false,
        });
    }
    if remove {
        for copies in found.iter_mut().filter(|copies| !copies.in_use) {
            client.remove(&format!("{}.", copies.name))?;
            copies.removed = true;
        }
    }
    Ok(found)
}
