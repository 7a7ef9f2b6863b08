//! Random bytes of the operating system.

use std::io;

use rustix::rand::{GetRandomFlags, getrandom};

/// So many random bytes, which nobody can guess.
///
/// # Errors
/// The operating system gives none.
pub fn random<const N: usize>() -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    let mut filled = 0;
    while filled < N {
        // It may give fewer than it was asked for.
        filled += getrandom(&mut bytes[filled..], GetRandomFlags::empty())?;
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
