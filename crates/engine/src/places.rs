//! Places. A place is the tier from which searches read a role of an index. A caller chooses places
//! when it opens or builds the index.
//!
//! ```text
//!   topology=mapped:/dev/shm/x,vectors=dram
//!
//!   INDEX (stays whole) ──┬── graph-…, packed-…  ──> copy in /dev/shm/x, checked, mapped  topology
//!                         ├── vectors-…          ──> copy in memory                       vectors
//!                         └── everything else, and all writes
//! ```
//!
//! | tier | source of the reads |
//! |---|---|
//! | `ssd` | the index's own folder, which is the default |
//! | `ssd:/folder` | copies in a folder on another disk, as files of an SSD |
//! | `mapped:/folder` | mapped copies in a folder: /dev/shm, or a file system on memory (DAX) |
//! | `dram` | copies in this process's memory, which count towards its budget |
//! | `remote:host:port/name` | copies in `stratann memory-server` (TCP); `remote-tls:` encrypts |
//! | `remote:shm:/path/name` | the same through shared memory, of a server on this machine |
//! | `remote:ucx:host:port/name` | the same through UCX: RDMA if there is a card (feature `ucx`) |
//! | `ssd-model`, `rdma-model`, `cxl-model`, `nvm-model` | memory with the delay of the device |
//!
//! **The index folder stays whole.** A place has only copies, and every change is written to the
//! index folder first. So an index can be moved, copied or opened without its places, and the loss
//! of a place does no harm. With a symbolic link in the index folder, a file can be stored
//! elsewhere without a second copy.
//!
//! **A copy belongs to one checkpoint of one index.** The name of the copy's folder has two hashes,
//! of the path of the index and of the MANIFEST (`tier/src/copies/folder.rs`). The MANIFEST of each
//! checkpoint has a random number. Copies of earlier checkpoints are removed when no process uses
//! them.
//!
//! An index folder that is copied to another machine has the same random number, so both machines
//! share copies on a memory server. An existing copy is compared with the original by its hash
//! (`tier/src/remote/volume.rs`), and a new copy byte by byte. An index that is opened for changes
//! has its own copies, which are written after the originals.
//!
//! **Roles.** Searches read pages with lists (`topology`) and pages with vectors only (`vectors`)
//! from storage. A place for another role is refused: searches do not read codes and ids from
//! storage, and the log belongs to the manifest. If vectors are beside lists, a place for `vectors`
//! is refused too.

mod listed;
mod names;

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::time::SystemTime;

use stratann_layout::{FileKind, Form, Manifest, Role};
use stratann_tier::remote::{Client, RemoteVolume, Server, Tls, wire::Secret};
use stratann_tier::{
    CopyFolder, Device, DeviceKind, Kept, LoadedVolume, MemoryVolume, MirrorVolume, ModelledVolume,
    ReadBy, RoutedVolume, Volume,
};

pub use listed::{Copies, copies, remove_copies};
use names::{Identity, owner};

use crate::{Error, Layout, stored};

/// The tier from which searches read each role of an index, in text as
/// `topology=mapped:/dev/shm/x,vectors=dram` (`docs/tiers.md`). By default, searches read
/// everything from the index folder.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Places(Vec<Place>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Place {
    role: Placed,
    tier: PlaceTier,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Placed {
    Topology,
    Vectors,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum PlaceTier {
    Home,
    Folder(PathBuf, ReadBy),
    Memory,
    Modelled(DeviceKind),
    Remote(Remote),
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Remote {
    /// The address: `host:port`, `shm:/path` (a server's socket for rings in shared memory), or
    /// `ucx:host:port`.
    address: String,
    name: String,
    tls: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    Search,
    Change,
}

const MODEL: &str = "-model";
const TIERS: &str = "ssd, ssd:/folder, mapped:/folder, dram, remote:host:port/name, remote-tls:host:port/name, remote:shm:/path/name, remote:ucx:host:port/name, ssd-model, rdma-model, cxl-model or nvm-model";
/// The maximum length of `name`. On the server, the name of a file consists of this name, a hash
/// and the file's own name.
const MOST_NAME: usize = 64;

impl Placed {
    const ALL: [Placed; 2] = [Placed::Topology, Placed::Vectors];

    fn name(self) -> &'static str {
        match self {
            Placed::Topology => "topology",
            Placed::Vectors => "vectors",
        }
    }

    fn role(self) -> Role {
        match self {
            Placed::Topology => Role::Topology,
            Placed::Vectors => Role::Vectors,
        }
    }

    fn is_of(self, layout: Layout) -> bool {
        match (layout.has_clusters(), self) {
            (false, Self::Topology) | (true, Self::Vectors) => true,
            (false, Self::Vectors) => !layout.has_vectors_in_records(),
            (true, Self::Topology) => match layout {
                Layout::Addressed => true,
                // The lists of members are stored in the same files as the vectors.
                Layout::Replicated | Layout::Grouped => false,
                Layout::Coupled
                | Layout::Packed
                | Layout::Decoupled
                | Layout::Inline
                | Layout::Layered
                | Layout::Csr => false,
            },
        }
    }

    fn reads(self, kind: FileKind) -> bool {
        let is_read = kind.has_pages() || matches!(kind.form(), Form::Clusters(_));
        kind.role() == self.role() && is_read
    }
}

impl FromStr for Placed {
    type Err = String;

    fn from_str(text: &str) -> Result<Placed, String> {
        let found = Self::ALL.into_iter().find(|role| role.name() == text);
        found.ok_or_else(|| match text {
            "codes" => "codes have no place of their own, since they are in memory while an index is open, or in the nodes on storage".into(),
            "ids" => "ids have no place of their own, since pages contain them, and the table of ids is read only to change the index or to look up ids".into(),
            "log" => "the log has no place of its own, since it stays in the folder of the MANIFEST".into(),
            _ => format!("`{text}` is no role. Place topology or vectors"),
        })
    }
}

impl FromStr for PlaceTier {
    type Err = String;

    fn from_str(text: &str) -> Result<PlaceTier, String> {
        if let Some((name, folder)) = text.split_once(':') {
            let read_by = match name {
                "ssd" => ReadBy::Device,
                "mapped" => ReadBy::Mapping,
                "remote" => return Remote::new(folder, false).map(PlaceTier::Remote),
                "remote-tls" => return Remote::new(folder, true).map(PlaceTier::Remote),
                _ => return Err(format!("`{name}:` is no tier with a folder. Use {TIERS}")),
            };
            if folder.is_empty() {
                return Err(format!(
                    "`{text}` names no folder. Write for example {name}:/mnt/x"
                ));
            }
            let folder = std::path::absolute(folder).map_err(|e| format!("`{folder}`: {e}"))?;
            return Ok(PlaceTier::Folder(folder, read_by));
        }
        match text {
            "ssd" => Ok(PlaceTier::Home),
            "dram" => Ok(PlaceTier::Memory),
            "mapped" => Err("`mapped` needs a folder. Write for example mapped:/dev/shm/x".into()),
            _ => match text.strip_suffix(MODEL).map(str::parse) {
                Some(Ok(kind)) => Ok(PlaceTier::Modelled(kind)),
                _ => Err(format!("`{text}` is no tier. Use {TIERS}")),
            },
        }
    }
}

impl FromStr for Places {
    type Err = String;

    /// Parses pairs of a role and a tier, separated by commas. A path cannot contain a comma.
    fn from_str(text: &str) -> Result<Places, String> {
        let mut places = Places::default();
        for part in text.split(',') {
            let Some((role, tier)) = part.trim().split_once('=') else {
                return Err(format!(
                    "`{part}` is no place. Write role=tier, for example topology=mapped:/dev/shm/x"
                ));
            };
            places.put(role, tier)?;
        }
        Ok(places)
    }
}

impl fmt::Display for Places {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (n, place) in self.0.iter().enumerate() {
            let comma = if n == 0 { "" } else { "," };
            write!(f, "{comma}{}={}", place.role.name(), place.tier)?;
        }
        Ok(())
    }
}

impl fmt::Display for PlaceTier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PlaceTier::Home => f.write_str("ssd"),
            PlaceTier::Folder(folder, ReadBy::Device) => write!(f, "ssd:{}", folder.display()),
            PlaceTier::Folder(folder, ReadBy::Mapping) => write!(f, "mapped:{}", folder.display()),
            PlaceTier::Memory => f.write_str("dram"),
            PlaceTier::Modelled(kind) => write!(f, "{kind}{MODEL}"),
            PlaceTier::Remote(remote) => {
                let tls = if remote.tls { "-tls" } else { "" };
                write!(f, "remote{tls}:{}/{}", remote.address, remote.name)
            }
        }
    }
}

impl Remote {
    fn new(text: &str, tls: bool) -> Result<Remote, String> {
        if let Some(meant) = Server::meant(text) {
            return Err(format!(
                "`{text}` is no address of a server; did you mean {meant}?"
            ));
        }
        let (address, name) = text.rsplit_once('/').unwrap_or((text, ""));
        let address = match address.strip_prefix(Server::RING) {
            Some("") => {
                return Err(format!(
                    "`{text}` names no socket. Write for example remote:shm:/run/x/ring/photos"
                ));
            }
            Some(_) if tls => {
                return Err(format!(
                    "`{text}`: shared memory between two processes is not encrypted. Use remote:shm:"
                ));
            }
            Some(path) => {
                let path =
                    std::path::absolute(path).map_err(|error| format!("`{path}`: {error}"))?;
                format!("{}{}", Server::RING, path.display())
            }
            None if tls && address.starts_with(Server::UCX) => {
                return Err(format!(
                    "`{text}`: reads through UCX are not encrypted. Use remote:ucx:"
                ));
            }
            None => {
                let port = address
                    .strip_prefix(Server::UCX)
                    .unwrap_or(address)
                    .rsplit_once(':')
                    .map(|(_, port)| port.parse::<u16>());
                if !matches!(port, Some(Ok(1..))) {
                    return Err(format!(
                        "`{text}` has no host:port with a port of 1 to 65535. Write for example remote:127.0.0.1:7700/photos"
                    ));
                }
                address.to_owned()
            }
        };
        let plain = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
        if name.is_empty() || name.len() > MOST_NAME || !name.chars().all(plain) {
            return Err(format!(
                "`{text}` must end with a name for the index on the server, of up to {MOST_NAME} letters, digits, hyphens and underscores. \
                 Write for example remote:127.0.0.1:7700/photos"
            ));
        }
        Ok(Remote {
            address,
            name: name.to_owned(),
            tls,
        })
    }

    /// A client with the secret and the certificates of the environment. If no secret is set, a
    /// server on this machine may get this user's own secret.
    fn client(&self) -> Result<Client, Error> {
        let host = self.address.rsplit_once(':').map_or("", |(host, _)| host);
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let tls = self.tls.then(|| Tls::of_environment(host)).transpose()?;
        let given = Secret::of_environment()?;
        let secret = Secret::given_or_own(given.as_ref(), &self.address)?;
        Ok(Client::new(&Server::new(&self.address, secret, tls)?))
    }
}

impl PlaceTier {
    fn takes_memory(&self) -> bool {
        matches!(self, PlaceTier::Memory | PlaceTier::Modelled(_))
    }

    /// Mapped copies count, since the system counts their pages as memory of the process.
    fn counts_as_memory(&self) -> bool {
        self.takes_memory() || matches!(self, PlaceTier::Folder(_, ReadBy::Mapping))
    }
}

impl Places {
    /// Whether there are no places, so that searches read everything from the index folder.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Adds a place, by the names of the role and the tier.
    ///
    /// # Errors
    /// The call fails with a message if a name is wrong, or if the role already has a place.
    pub fn put(&mut self, role: &str, tier: &str) -> Result<(), String> {
        let wrong = |error: String| format!("the place {role}={tier}: {error}");
        let role_of = role.parse().map_err(wrong)?;
        let tier_of = tier.parse().map_err(wrong)?;
        if self.0.iter().any(|place| place.role == role_of) {
            return Err(wrong("the role has a place already".into()));
        }
        self.0.push(Place {
            role: role_of,
            tier: tier_of,
        });
        Ok(())
    }

    /// Joins the places of `self` and of `more`.
    ///
    /// # Errors
    /// The call fails for the reasons of [`put`](Places::put).
    pub fn and(mut self, more: &Places) -> Result<Places, String> {
        for place in &more.0 {
            self.put(place.role.name(), &place.tier.to_string())?;
        }
        Ok(self)
    }

    fn refuse(&self, place: &Place, reason: String, remedy: impl Into<String>) -> Error {
        let found = format!("{}={}", place.role.name(), place.tier);
        Error::call("place", found, reason, remedy)
    }

    fn no_such_role(&self, place: &Place, layout: &str) -> Error {
        let (what, role) = match place.role {
            Placed::Vectors => ("vectors are stored beside the lists", "topology"),
            Placed::Topology => (
                "the members of clusters are stored with the vectors",
                "vectors",
            ),
        };
        let reason = format!("in the layout {layout} {what}");
        self.refuse(place, reason, format!("Give a place for {role} instead"))
    }

    fn check(&self, manifest: &Manifest) -> Result<(), Error> {
        for place in &self.0 {
            if files_of(place.role, manifest).next().is_none() {
                return Err(self.no_such_role(place, &manifest.layout));
            }
        }
        Ok(())
    }

    /// Direct inserts may have appended to a file, so the file may be longer than the manifest
    /// says.
    pub(crate) fn memory_bytes(&self, home: &dyn Volume, manifest: &Manifest) -> u64 {
        let in_memory = self.0.iter().filter(|place| place.tier.counts_as_memory());
        in_memory
            .flat_map(|place| files_of(place.role, manifest))
            .map(|(name, bytes)| home.len(name).map_or(bytes, |there| there.max(bytes)))
            .fold(0, u64::saturating_add)
    }

    /// Refuses copies in memory: a catalog would copy the index before it reserves memory.
    pub(crate) fn check_for_catalog(&self) -> Result<(), Error> {
        match self.0.iter().find(|place| place.tier.takes_memory()) {
            None => Ok(()),
            Some(place) => Err(self.refuse(
                place,
                "a catalog would copy the index before it reserves memory for the copy".into(),
                "Place the role in a folder, for example mapped:/dev/shm/x",
            )),
        }
    }

    /// Copies in memory of all roles of a layout.
    pub fn in_memory(layout: Layout) -> Self {
        let roles = Placed::ALL.into_iter().filter(|role| role.is_of(layout));
        let in_memory = |role| Place {
            role,
            tier: PlaceTier::Memory,
        };
        Self(roles.map(in_memory).collect())
    }

    pub(crate) fn check_layout(&self, layout: Layout) -> Result<(), Error> {
        match self.0.iter().find(|place| !place.role.is_of(layout)) {
            None => Ok(()),
            Some(place) => Err(self.no_such_role(place, layout.name())),
        }
    }

    /// A name that only the present checkpoint of the index has. `None` without places.
    pub(crate) fn state(&self, home: &dyn Volume, path: &Path) -> Result<Option<String>, Error> {
        match self.is_empty() {
            true => Ok(None),
            false => Identity::of(home, path).map(|state| Some(state.name)),
        }
    }

    /// Whether places copy all lists, and all vectors that are stored apart, to memory.
    pub(crate) fn all_in_memory(&self) -> (bool, bool) {
        let has = |role| {
            let mut places = self.0.iter();
            places.any(|place| place.role == role && place.tier == PlaceTier::Memory)
        };
        (has(Placed::Topology), has(Placed::Vectors))
    }

    /// A volume that reads each role of the index from its tier. A missing copy is made when its
    /// file is opened. The call fails if other users can access a folder of copies.
    pub(crate) fn over(
        &self,
        home: &Arc<dyn Volume>,
        path: &Path,
        purpose: Purpose,
        budget: Option<u64>,
    ) -> Result<Arc<dyn Volume>, Error> {
        if self.is_empty() {
            return Ok(home.clone());
        }
        let manifest = stored::manifest(&**home)?;
        self.check(&manifest)?;
        let needs = self.memory_bytes(&**home, &manifest);
        if let Some(budget) = budget.filter(|&budget| budget < needs) {
            let part = format!("the copies in memory ({self}) alone");
            return Err(Error::Memory {
                budget,
                needs,
                part,
            });
        }
        let mut tiers: Vec<&PlaceTier> = Vec::new();
        let mut roles = Vec::new();
        for Place { role, tier } in &self.0 {
            let known = tiers.iter().position(|&known| known == tier);
            let number = known.unwrap_or(tiers.len());
            if known.is_none() {
                tiers.push(tier);
            }
            roles.push((*role, number));
        }
        let state = State {
            home,
            path,
            content: Identity::of(&**home, path)?,
            purpose,
        };
        let ways = tiers.iter().map(|tier| state.way(tier));
        let ways = ways.collect::<Result<_, Error>>()?;
        let route = move |name: &str| {
            let kind = FileKind::of_name(name)?;
            let place = roles.iter().find(|(role, _)| role.reads(kind));
            place.map(|&(_, number)| number)
        };
        Ok(Arc::new(RoutedVolume::new(
            home.clone(),
            ways,
            Box::new(route),
        )))
    }

    /// Copies in memory are refused, because they would disappear at the end of the build.
    pub(crate) fn check_for_build(&self) -> Result<(), Error> {
        for place in &self.0 {
            match &place.tier {
                PlaceTier::Home => {}
                PlaceTier::Folder(folder, _) => CopyFolder::prepare(folder)?,
                PlaceTier::Remote(remote) => _ = remote.client()?.room()?,
                tier @ (PlaceTier::Memory | PlaceTier::Modelled(_)) => {
                    let reason = format!(
                        "{tier} is memory of the searching process, and a copy would disappear at the end of the build"
                    );
                    let remedy = "Give this place when you open the index";
                    return Err(self.refuse(place, reason, remedy));
                }
            }
        }
        Ok(())
    }

    pub(crate) fn fill(&self, home: &Arc<dyn Volume>, path: &Path) -> Result<(), Error> {
        let volume = self.over(home, path, Purpose::Search, None)?;
        let manifest = stored::manifest(&**home)?;
        for place in &self.0 {
            for (name, _) in files_of(place.role, &manifest) {
                volume.open_reader(name)?;
            }
        }
        Ok(())
    }

    /// Copies in memory are refused, because only a search would read them.
    pub(crate) fn check_for_verify(&self) -> Result<(), Error> {
        match self.0.iter().find(|place| place.tier.takes_memory()) {
            None => Ok(()),
            Some(place) => Err(self.refuse(
                place,
                "copies in memory exist only while a process has the index open".into(),
                "Leave this place out, or give a tier with files",
            )),
        }
    }
}

fn files_of(role: Placed, manifest: &Manifest) -> impl Iterator<Item = (&str, u64)> {
    let files = manifest.files.iter();
    let of_role = move |name: &str| FileKind::of_name(name).is_some_and(|kind| role.reads(kind));
    files
        .filter(move |entry| of_role(&entry.name))
        .map(|entry| (entry.name.as_str(), entry.length))
}

struct State<'a> {
    home: &'a Arc<dyn Volume>,
    path: &'a Path,
    content: Identity,
    purpose: Purpose,
}

impl State<'_> {
    fn way(&self, tier: &PlaceTier) -> Result<Arc<dyn Volume>, Error> {
        Ok(match tier {
            PlaceTier::Home => self.home.clone(),
            PlaceTier::Memory => self.in_memory(),
            PlaceTier::Modelled(kind) => {
                let device = Device::shared(*kind);
                Arc::new(ModelledVolume::new(self.in_memory(), device))
            }
            PlaceTier::Folder(place, read_by) => {
                let folder = self.folder(place)?;
                Arc::new(MirrorVolume::new(self.home.clone(), folder, *read_by))
            }
            PlaceTier::Remote(remote) if self.purpose == Purpose::Change => {
                return Err(Error::call(
                    "place",
                    tier,
                    format!(
                        "copies on the memory server {} are only for searches",
                        remote.address
                    ),
                    "Leave this place out when you change the index",
                ));
            }
            PlaceTier::Remote(remote) => {
                let (home, client) = (self.home.clone(), remote.client()?);
                let names = self.content.on_server(&remote.name, self.path);
                let (from, path) = (home.clone(), self.path.to_owned());
                let content = self.content.clone();
                let is_current =
                    move || Identity::of(&*from, &path).is_ok_and(|now| now == content);
                Arc::new(RemoteVolume::new(home, client, names)?.while_current(is_current))
            }
        })
    }

    fn in_memory(&self) -> Arc<dyn Volume> {
        match self.purpose {
            Purpose::Search => Arc::new(LoadedVolume::new(self.home.clone())),
            Purpose::Change => Arc::new(MemoryVolume::copied(self.home.clone())),
        }
    }

    fn folder(&self, place: &Path) -> Result<CopyFolder, Error> {
        let owner = &owner(self.path);
        let folder = match self.purpose {
            Purpose::Search => CopyFolder::open(place, owner, &self.content.name, Kept::ForOthers),
            Purpose::Change => {
                let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
                let nanos = now.map_or(0, |since| since.as_nanos());
                let content = format!("live{:x}n{nanos:x}", std::process::id());
                CopyFolder::open(place, owner, &content, Kept::ForNow)
            }
        };
        Ok(folder?)
    }
}

#[cfg(test)]
mod tests;
