//! The secret that all processes of one user on a machine share, if no other secret is given. All
//! users can connect to a machine's ports, so a local server always has a secret. The first process
//! creates the file, which only this user can read: `$XDG_STATE_HOME/stratann/secret`, or
//! `~/.local/state/stratann/secret`.

use std::ffi::OsString;
use std::fmt::Display;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::net::ToSocketAddrs;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use super::Server;
use super::wire::Secret;
use crate::error::TierError;

const TRIES: usize = 8;
const PAUSE: Duration = Duration::from_millis(20);

type Link = fn(&Path, &Path) -> io::Result<()>;

impl Secret {
    /// Returns the given secret. If none is given, and the server is on this machine, returns the
    /// secret of this user, which is created if missing. Otherwise returns `None`.
    ///
    /// # Errors
    /// Fails if the file of this user cannot be created or read, or is not private.
    pub fn given_or_own(given: Option<&Secret>, name: &str) -> Result<Option<Secret>, TierError> {
        match given {
            Some(secret) => Ok(Some(secret.clone())),
            None if is_here(name) => Self::of_user().map(Some),
            None => Ok(None),
        }
    }

    fn of_user() -> Result<Secret, TierError> {
        let of = |name| std::env::var_os(name).filter(|value| !value.is_empty());
        let place = Place::of(of("XDG_STATE_HOME"), of("HOME"))?;
        Self::kept_in(&place, link)
    }

    fn kept_in(place: &Place, link: Link) -> Result<Secret, TierError> {
        let path = place.folder.join("secret");
        for tried in 1..=TRIES {
            match Self::read(&path) {
                Err(TierError::Missing { .. }) => {
                    place.check_owner()?;
                    make(&place.folder, &path, link).map_err(|source| failed(&path, &source))?;
                }
                // Another process may be writing the file.
                Err(_) if tried < TRIES && is_short(&path) => thread::sleep(PAUSE),
                Err(error) => return Err(with_remedy(&path, error)),
                Ok(secret) => return Ok(secret),
            }
        }
        Err(failed(&path, &"another process removes it again and again"))
    }
}

struct Place {
    folder: PathBuf,
    home: Option<PathBuf>,
}

impl Place {
    /// A relative path in the environment is ignored.
    fn of(state: Option<OsString>, home: Option<OsString>) -> Result<Self, TierError> {
        let absolute =
            |path: Option<OsString>| path.map(PathBuf::from).filter(|path| path.is_absolute());
        let (state, home) = match (absolute(state), absolute(home)) {
            (Some(state), _) => (state, None),
            (None, Some(home)) => (home.join(".local/state"), Some(home)),
            (None, None) => {
                return Err(TierError::Unsupported {
                    what: "a secret of this user".to_owned(),
                    reason: format!(
                        "neither XDG_STATE_HOME nor HOME is an absolute path. Set {} to a file with a secret",
                        Secret::FILE
                    ),
                });
            }
        };
        Ok(Self {
            folder: state.join("stratann"),
            home,
        })
    }

    /// Refuses another user's home folder, because this user's folders in it would be unusable for
    /// the other user.
    fn check_owner(&self) -> Result<(), TierError> {
        let user = rustix::process::geteuid().as_raw();
        match &self.home {
            // If the folder cannot be examined, its creation will fail.
            Some(home) => match fs::metadata(home) {
                Ok(facts) => check_owner(home, facts.uid(), user),
                Err(_) => Ok(()),
            },
            None => Ok(()),
        }
    }
}

fn check_owner(home: &Path, owner: u32, user: u32) -> Result<(), TierError> {
    match [user, 0].contains(&owner) {
        true => Ok(()),
        false => Err(TierError::Unsupported {
            what: "a secret of this user".to_owned(),
            reason: format!(
                "HOME is {}, which belongs to another user. Run with this user's own HOME (`sudo -H`), or set {} to a file with a secret",
                home.display(),
                Secret::FILE
            ),
        }),
    }
}

fn failed(path: &Path, cause: &dyn Display) -> TierError {
    TierError::Unsupported {
        what: format!("the secret of this user in {}", path.display()),
        reason: format!(
            "{cause}. Let this user read and write there, or set {} to a file with a secret",
            Secret::FILE
        ),
    }
}

fn with_remedy(path: &Path, error: TierError) -> TierError {
    match error {
        TierError::Unsupported { what, reason } => TierError::Unsupported {
            what,
            reason: format!("{reason}, or set {} to a file with a secret", Secret::FILE),
        },
        error => failed(path, &error),
    }
}

fn is_short(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|facts| facts.len() < Secret::LEAST_BYTES as u64)
}

fn is_here(name: &str) -> bool {
    if name.starts_with(Server::RING) {
        return true;
    }
    let address = name.strip_prefix(Server::UCX).unwrap_or(name);
    let mut found = match address.to_socket_addrs() {
        Ok(found) => found.peekable(),
        Err(_) => return false,
    };
    found.peek().is_some() && found.all(|address| address.ip().is_loopback())
}

fn link(from: &Path, to: &Path) -> io::Result<()> {
    fs::hard_link(from, to)
}

/// Creates the file of the secret. The file gets its name with all its bytes. Without hard links,
/// it is empty for a moment.
fn make(folder: &Path, path: &Path, link: Link) -> io::Result<()> {
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(folder)?;
    let [number, secret]: [[u8; 32]; 2] = [crate::random()?, crate::random()?];
    let text =
        |bytes: &[u8]| -> String { bytes.iter().map(|byte| format!("{byte:02x}")).collect() };
    let line = format!("{}\n", text(&secret));
    let beside = folder.join(format!("secret.new-{}", text(&number[..8])));
    write_new(&beside, &line)?;
    let made = match link(&beside, path) {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(()),
        Err(_) => match write_new(path, &line) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(()),
            made => made,
        },
    };
    let _ = fs::remove_file(&beside);
    made
}

fn write_new(path: &Path, text: &str) -> io::Result<()> {
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)?;
    let fill = |file: &mut File| {
        file.write_all(text.as_bytes())?;
        file.sync_all()
    };
    fill(&mut file).inspect_err(|_| {
        let _ = fs::remove_file(path);
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn place(folder: &Path) -> Place {
        Place {
            folder: folder.to_owned(),
            home: None,
        }
    }

    fn no_links(_: &Path, _: &Path) -> io::Result<()> {
        Err(ErrorKind::Unsupported.into())
    }

    #[test]
    fn without_links_a_secret_that_is_there_stays() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("stratann");
        let path = folder.join("secret");
        let first = Secret::kept_in(&place(&folder), no_links).unwrap();
        make(&folder, &path, no_links).unwrap();
        let again = Secret::kept_in(&place(&folder), no_links).unwrap();
        assert_eq!(again.fingerprint(), first.fingerprint());
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 1);
        assert_eq!(
            fs::metadata(&path).unwrap().permissions().mode() & 0o777,
            0o600
        );
        fs::write(&path, "short").unwrap();
        let text = Secret::kept_in(&place(&folder), no_links).err().unwrap();
        assert!(text.to_string().contains(Secret::FILE), "{text}");
        assert_eq!(fs::read(&path).unwrap(), b"short");
    }

    #[test]
    fn a_secret_has_an_absolute_place_that_belongs_to_this_user() {
        let folder = |state: &str, home: &str| {
            let of = |path: &str| (!path.is_empty()).then(|| path.into());
            Place::of(of(state), of(home)).map(|place| place.folder)
        };
        let in_home = Path::new("/home/me/.local/state/stratann");
        assert_eq!(folder("", "/home/me").unwrap(), in_home);
        assert_eq!(folder("state", "/home/me").unwrap(), in_home);
        assert_eq!(
            folder("/state", "/home/me").unwrap(),
            Path::new("/state/stratann")
        );
        for neither in [("", ""), ("state", ""), ("", "home")] {
            let text = folder(neither.0, neither.1).unwrap_err().to_string();
            assert!(text.contains(Secret::FILE), "{text}");
        }
        let home = Path::new("/home/me");
        check_owner(home, 1000, 1000).unwrap();
        // In a container whose user has no name, root may own the home folder.
        check_owner(home, 0, 1000).unwrap();
        let text = check_owner(home, 1000, 0).unwrap_err().to_string();
        assert!(
            text.contains("sudo -H") && text.contains(Secret::FILE),
            "{text}"
        );
    }

    #[test]
    fn a_user_has_one_secret_whoever_makes_it_and_nobody_else_can_read_it() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("state/stratann");
        let all: Vec<[u8; 32]> = std::thread::scope(|scope| {
            let makers: Vec<_> = (0..16)
                .map(|_| {
                    scope.spawn(|| {
                        Secret::kept_in(&place(&folder), link)
                            .unwrap()
                            .fingerprint()
                    })
                })
                .collect();
            makers
                .into_iter()
                .map(|maker| maker.join().unwrap())
                .collect()
        });
        assert!(all.iter().all(|one| *one == all[0]));
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(&folder.join("secret")), 0o600);
        assert_eq!(mode(&folder), 0o700);
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 1);
        let others = tempfile::tempdir().unwrap();
        let other = Secret::kept_in(&place(others.path()), link).unwrap();
        assert_ne!(other.fingerprint(), all[0]);
        let wide = fs::Permissions::from_mode(0o644);
        fs::set_permissions(folder.join("secret"), wide).unwrap();
        let error = Secret::kept_in(&place(&folder), link).err().unwrap();
        assert!(error.to_string().contains(Secret::FILE), "{error}");
    }

    #[test]
    fn only_servers_of_this_machine_are_asked_with_it() {
        for here in [
            "127.0.0.1:7700",
            "[::1]:7700",
            "shm:ring",
            "ucx:127.0.0.1:1",
        ] {
            assert!(is_here(here), "{here}");
        }
        for elsewhere in ["0.0.0.0:7700", "192.0.2.1:7700", "nonsense", ""] {
            assert!(!is_here(elsewhere), "{elsewhere}");
        }
        let given = Secret::new(b"a secret that is given").unwrap();
        let known = Secret::given_or_own(Some(&given), "192.0.2.1:1").unwrap();
        assert_eq!(known.unwrap().fingerprint(), given.fingerprint());
        assert!(Secret::given_or_own(None, "192.0.2.1:1").unwrap().is_none());
    }
}
