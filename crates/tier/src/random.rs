//! Random bytes from `getrandom`, or from `/dev/urandom` if a sandbox refuses that call.

use std::fs::File;
use std::io::{self, Read};

use rustix::io::Errno;
use rustix::rand::{GetRandomFlags, getrandom};

/// Returns `N` random bytes, suitable for secrets.
///
/// # Errors
/// Fails if the operating system provides no random bytes.
pub fn random<const N: usize>() -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    let mut filled = 0;
    while filled < N {
        match getrandom(&mut bytes[filled..], GetRandomFlags::empty()) {
            Ok(given) => filled += given,
            Err(Errno::INTR) => {}
            Err(Errno::NOSYS | Errno::PERM) => {
                File::open("/dev/urandom")?.read_exact(&mut bytes[filled..])?;
                filled = N;
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_are_the_same() {
        assert_ne!(random::<16>().unwrap(), random::<16>().unwrap());
        assert_eq!(random::<0>().unwrap(), []);
    }
}
