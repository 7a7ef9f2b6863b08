//! The secret that all processes of one user have in common on a machine, for servers of which nobody gives another one.
//!
//! A port of a machine is open to all its users. So a server there always has a secret: where none is given it is that in a file of this user alone,
//! which whoever comes first makes: `$XDG_STATE_HOME/stratann/secret`, or `~/.local/state/stratann/secret`.

use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::net::ToSocketAddrs;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use super::Server;
use super::wire::Secret;
use crate::error::TierError;

/// How often a file is looked for that somebody else makes, or removes.
const TRIES: usize = 8;

impl Secret {
    /// A secret that is given or, where none is and a server of this name or address is on this machine alone, that of this user, which is made if it is
    /// not there. `None`: a server of another machine, for which none is given.
    ///
    /// # Errors
    /// There is no place for the file, it cannot be made or read, or others can read it.
    pub fn given_or_own(given: Option<&Secret>, name: &str) -> Result<Option<Secret>, TierError> {
        match given {
            Some(secret) => Ok(Some(secret.clone())),
            None if is_here(name) => Self::of_user().map(Some),
            None => Ok(None),
        }
    }

    /// That of this user.
    fn of_user() -> Result<Secret, TierError> {
        let of = |name| std::env::var_os(name).filter(|value| !value.is_empty());
        let state = match (of("XDG_STATE_HOME"), of("HOME")) {
            (Some(state), _) => PathBuf::from(state),
            (None, Some(home)) => Path::new(&home).join(".local/state"),
            (None, None) => {
                return Err(TierError::Unsupported {
                    what: "a secret of this user".to_owned(),
                    reason: format!(
                        "neither XDG_STATE_HOME nor HOME says where to keep it: set {} to a file with a secret",
                        Self::FILE
                    ),
                });
            }
        };
        Self::kept_in(&state.join("stratann"))
    }

    /// That in a folder, where it is made if it is not there.
    fn kept_in(folder: &Path) -> Result<Secret, TierError> {
        let path = folder.join("secret");
        let place = path.display().to_string();
        let failed = |source: io::Error| TierError::Unsupported {
            what: format!("the secret of this user in {place}"),
            reason: format!(
                "{source}: let this user write there, or set {} to a file with a secret",
                Self::FILE
            ),
        };
        for _ in 0..TRIES {
            match Self::read(&path) {
                Err(TierError::Missing { .. }) => make(folder, &path).map_err(failed)?,
                read => return read,
            }
        }
        Err(failed(io::Error::other(
            "it is removed as often as it is made",
        )))
    }
}

/// Whether a server is on this machine alone, by its name or the address that it listens at.
fn is_here(name: &str) -> bool {
    if name.starts_with(Server::RING) {
        return true;
    }
    let address = name.strip_prefix(Server::UCX).unwrap_or(name);
    let mut found = match address.to_socket_addrs() {
        Ok(found) => found.peekable(),
        // It is said when it is wanted.
        Err(_) => return false,
    };
    found.peek().is_some() && found.all(|address| address.ip().is_loopback())
}

/// Makes the file, with random bytes. It has all of them when it gets its name; where somebody else was as fast, theirs stays.
fn make(folder: &Path, path: &Path) -> io::Result<()> {
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(folder)?;
    let [number, secret]: [[u8; 32]; 2] = [crate::random()?, crate::random()?];
    let text =
        |bytes: &[u8]| -> String { bytes.iter().map(|byte| format!("{byte:02x}")).collect() };
    let beside = folder.join(format!("secret.new-{}", text(&number[..8])));
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&beside)?;
    let made = (|| {
        writeln!(file, "{}", text(&secret))?;
        file.sync_all()?;
        match fs::hard_link(&beside, path) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(()),
            // A file system without links: who is as fast may have read another one, and is refused until it starts anew.
            Err(_) => fs::rename(&beside, path),
            Ok(()) => Ok(()),
        }
    })();
    // It is gone where it was renamed.
    let _ = fs::remove_file(&beside);
    made
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_user_has_one_secret_whoever_makes_it_and_nobody_else_can_read_it() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("state/stratann");
        let all: Vec<[u8; 32]> = std::thread::scope(|scope| {
            let makers: Vec<_> = (0..16)
                .map(|_| scope.spawn(|| Secret::kept_in(&folder).unwrap().fingerprint()))
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
        // Nothing else is left.
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 1);
        let others = tempfile::tempdir().unwrap();
        let other = Secret::kept_in(others.path()).unwrap();
        assert_ne!(other.fingerprint(), all[0]);
        // One that others can read is none.
        let wide = fs::Permissions::from_mode(0o644);
        fs::set_permissions(folder.join("secret"), wide).unwrap();
        assert!(Secret::kept_in(&folder).is_err());
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
