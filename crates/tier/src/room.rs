//! Blocks that are reserved for a file beyond its end, to extend it on a full disk.
//!
//! ```text
//!   bytes of the file   |============|
//!   its blocks          |============|. . . . . . . . |   not in its length; `du` counts them
//! ```
//!
//! The blocks stay with the file under any name, until it is truncated or removed. FAT, NFS before
//! 4.2 and most network disks do not support such blocks.

use std::fs::File;
use std::io;

use rustix::fs::Stat;
#[cfg(target_os = "linux")]
use rustix::fs::{FallocateFlags, fallocate};
#[cfg(target_os = "linux")]
use rustix::io::Errno;

use crate::BLOCK;

/// The unit, in bytes, in which the operating system counts a file's blocks.
const COUNTED: u64 = 512;

/// Reserves blocks without changing the file's length; `false` if the file system cannot.
#[cfg(target_os = "linux")]
pub(crate) fn allocate(file: &File, bytes: u64) -> io::Result<bool> {
    loop {
        return match fallocate(file, FallocateFlags::KEEP_SIZE, 0, bytes) {
            Ok(()) => Ok(true),
            Err(Errno::INTR) => continue,
            Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL | Errno::PERM) => Ok(false),
            Err(error) => Err(error.into()),
        };
    }
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn allocate(_: &File, _: u64) -> io::Result<bool> {
    Ok(false)
}

pub(crate) fn beyond_end(facts: &Stat) -> u64 {
    let blocks = u64::try_from(facts.st_blocks).unwrap_or(0);
    let length = u64::try_from(facts.st_size).unwrap_or(0);
    blocks
        .saturating_mul(COUNTED)
        .saturating_sub(length.next_multiple_of(BLOCK as u64))
}
