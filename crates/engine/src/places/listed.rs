//! Which copies of indexes are at a place, so that a person sees what takes room there, and can have it back.

use std::path::Path;

use serde::Serialize;
use stratann_tier::{CopyFolder, FoundCopies};

use super::names::{Identity, origin, owner};
use super::{PlaceTier, Places, Remote};
use crate::{Error, stored};

/// Copies of one state of one index at a place.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Copies {
    /// The tier, as it is written in a place.
    pub place: String,
    /// The folder's path, or what the names of its files on the server begin with.
    pub name: String,
    /// Whether they are of the state in which the index is now; `None` where no index was named, or there is none any more.
    pub current: Option<bool>,
    /// How many files there are.
    pub files: u64,
    /// Bytes of them.
    pub bytes: u64,
    /// Whether somebody has them open.
    pub in_use: bool,
    /// Whether they were removed just now.
    pub removed: bool,
}

/// The copies at some places: those of one index, or of all that have any there. A server has those of all machines, under its name; of one
/// index, those that this machine has put there, and those of the same state that another one has.
///
/// # Errors
/// A place in memory, which has none to be listed; a folder or a server that cannot be asked.
pub fn copies(index: Option<&Path>, places: &Places) -> Result<Vec<Copies>, Error> {
    all(index, places, false)
}

/// The same, and removes them, but for those that somebody has open.
///
/// # Errors
/// As those of [`copies`].
pub fn remove_copies(index: Option<&Path>, places: &Places) -> Result<Vec<Copies>, Error> {
    all(index, places, true)
}

/// An index whose copies are looked for.
struct Sought {
    owner: String,
    origin: String,
    /// Its state now, if it is there.
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
                // Copies are all that is left of an index that was removed.
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
    // No index, and nothing that was left of one: the path is none of an index.
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
        // Name of the index, origin, state, and the file's.
        let Some((at, _)) = file.name.match_indices('.').nth(2) else {
            continue;
        };
        let name = &file.name[..at];
        let mut parts = name.split('.').skip(1);
        let (Some(origin), Some(state)) = (parts.next(), parts.next()) else {
            continue;
        };
        let now = sought.and_then(|sought| sought.state.as_ref());
        // Its own, and those of another machine that it reads because they are of the same state.
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
