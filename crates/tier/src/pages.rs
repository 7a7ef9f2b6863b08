//! A file whose blocks are written without the page cache.
//!
//! ```text
//!   write_at ── blocks ──> bounce buffer (aligned, <= 256 KiB) ─> O_DIRECT file ───┐
//!           └── the rest, or all if O_DIRECT is refused ────────> plain file ──────┼─> one file
//!                                                    set_len, sync ────────────────┘
//! ```
//!
//! In the page cache, such blocks would only displace other data, because reads bypass the page
//! cache. The kernel keeps both paths coherent: before a direct write, it writes back the dirty
//! bytes of that range, and drops them.

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};

use rustix::fs::OFlags;

use crate::BLOCK;
use crate::buffer::HugeBytes;
use crate::directory::RealFile;
use crate::error::TierError;
use crate::ssd::open_direct;
use crate::volume::VolumeFile;

const PIECE: usize = 256 << 10;

#[derive(Debug)]
pub(crate) struct PagesFile {
    plain: RealFile,
    /// The same file with `O_DIRECT`; `None` if the file system refuses that.
    direct: Option<File>,
    /// The buffer is a mapping, so it begins at a page boundary.
    bounce: HugeBytes,
}

impl PagesFile {
    pub(crate) fn new(
        open: &dyn Fn(OFlags) -> io::Result<File>,
        plain: RealFile,
    ) -> Result<PagesFile, TierError> {
        let failed = |source| TierError::io("open", plain.place.as_str(), 0, 0, source);
        let mut direct = open_direct(open).map_err(failed)?;
        if let Some(file) = &direct {
            // Another process may have renamed another file to this name between the two openings.
            let (one, other) = (file.metadata(), plain.file.metadata());
            let (one, other) = (one.map_err(failed)?, other.map_err(failed)?);
            if (one.dev(), one.ino()) != (other.dev(), other.ino()) {
                direct = None;
            }
        }
        Ok(PagesFile {
            plain,
            direct,
            bounce: HugeBytes::zeroed(0)?,
        })
    }

    fn write_blocks(&mut self, mut offset: u64, mut bytes: &[u8]) -> io::Result<()> {
        while let Some(direct) = &self.direct
            && !bytes.is_empty()
        {
            let (piece, rest) = bytes.split_at(bytes.len().min(self.bounce.len()));
            let bounce = &mut self.bounce[..piece.len()];
            bounce.copy_from_slice(piece);
            match direct.write_all_at(bounce, offset) {
                Ok(()) => {
                    offset += piece.len() as u64;
                    bytes = rest;
                }
                // Some file systems refuse direct writes only now. If a write ended within a block,
                // as on a full device, the next write fails in the same way. The write through the
                // page cache then reports the actual error.
                Err(error) if error.raw_os_error() == Some(libc::EINVAL) => self.direct = None,
                Err(error) => return Err(error),
            }
        }
        self.plain.file.write_all_at(bytes, offset)
    }
}

impl VolumeFile for PagesFile {
    fn write_at(&mut self, offset: u64, bytes: &[u8]) -> Result<(), TierError> {
        let blocks = offset.is_multiple_of(BLOCK as u64)
            && bytes.len().is_multiple_of(BLOCK)
            && !bytes.is_empty();
        if !blocks || self.direct.is_none() {
            return self.plain.write_at(offset, bytes);
        }
        self.plain.check_process()?;
        let need = bytes.len().min(PIECE);
        if self.bounce.len() < need {
            self.bounce = HugeBytes::zeroed(need.next_power_of_two())?;
        }
        let len = bytes.len() as u64;
        self.write_blocks(offset, bytes).map_err(|source| {
            TierError::io("write", self.plain.place.as_str(), offset, len, source)
        })?;
        self.plain.len = self.plain.len.max(offset + len);
        Ok(())
    }

    fn len(&self) -> u64 {
        self.plain.len()
    }

    fn set_len(&mut self, len: u64) -> Result<(), TierError> {
        self.plain.set_len(len)
    }

    /// fsync applies to the file, its length and the device's cache, not to one descriptor.
    fn sync(&mut self) -> Result<(), TierError> {
        self.plain.sync()
    }
}

#[cfg(test)]
mod tests {
    use std::fs::OpenOptions;
    use std::os::unix::fs::OpenOptionsExt;
    use std::path::Path;

    use tempfile::TempDir;

    use super::*;
    use crate::directory::Directory;
    use crate::ssd::FileTier;
    use crate::testing::random::Random;
    use crate::volume::Volume;

    /// A directory on a disk, beside the tests, and one in memory. (/tmp is often in memory.)
    fn places() -> Vec<TempDir> {
        let tests = std::env::current_exe().unwrap();
        let mut places = vec![TempDir::new_in(tests.parent().unwrap()).unwrap()];
        places.extend(TempDir::new_in("/dev/shm"));
        places
    }

    fn pages(path: &Path) -> PagesFile {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false);
        let file = options.open(path).unwrap();
        let len = file.metadata().unwrap().len();
        let place = path.display().to_string();
        over(path, RealFile::new(file, place, len))
    }

    fn over(path: &Path, plain: RealFile) -> PagesFile {
        let open = |flags: OFlags| {
            let mut options = OpenOptions::new();
            let flags = flags.bits() as i32;
            options
                .read(true)
                .write(true)
                .custom_flags(flags)
                .open(path)
        };
        PagesFile::new(&open, plain).unwrap()
    }

    #[test]
    fn it_writes_directly_where_it_reads_directly() {
        for root in places() {
            let path = root.path().join("x");
            let mut file = pages(&path);
            let direct = FileTier::open(&path).unwrap().is_direct();
            assert_eq!(file.direct.is_some(), direct, "{}", path.display());
            file.write_at(0, &[1; 2 * BLOCK]).unwrap();
            assert_eq!(file.direct.is_some(), direct, "{}", path.display());
            assert_eq!(file.bounce.len(), if direct { 2 * BLOCK } else { 0 });
            assert!((file.bounce.as_ptr() as usize).is_multiple_of(BLOCK) || !direct);
            file.write_at(0, &[2; 3 * BLOCK]).unwrap();
            file.write_at(0, &[3; BLOCK]).unwrap();
            assert_eq!(file.bounce.len(), if direct { 4 * BLOCK } else { 0 });
            file.write_at(0, &vec![4; 2 * PIECE + BLOCK]).unwrap();
            assert_eq!(file.bounce.len(), if direct { PIECE } else { 0 });
            assert_eq!(file.direct.is_some(), direct, "{}", path.display());
        }
    }

    #[test]
    fn any_writes_are_those_of_a_plain_file() {
        for root in places() {
            let volume = Directory::open(root.path()).unwrap();
            let mut random = Random::new(7);
            let mut right = Vec::new();
            let mut file = pages(&root.path().join("x"));
            for round in 0..400 {
                let fill = random.next() as u8;
                let (mut offset, mut len) = (random.below(100) * BLOCK, random.below(80) * BLOCK);
                if random.chance(0.2) {
                    offset += random.below(BLOCK);
                }
                if random.chance(0.2) {
                    len += random.below(BLOCK);
                }
                match round % 8 {
                    0 => {
                        file.set_len(offset as u64).unwrap();
                        right.resize(offset, 0);
                    }
                    1 => {
                        len += right.len().next_multiple_of(BLOCK) - right.len();
                        let end = file.append(&vec![fill; len]).unwrap();
                        assert_eq!(end, right.len() as u64);
                        right.resize(right.len() + len, fill);
                    }
                    2 => file.sync().unwrap(),
                    3 if random.coin() => file = pages(&root.path().join("x")),
                    _ if len > 0 => {
                        let bytes: Vec<u8> = (0..len)
                            .map(|i| fill.wrapping_add((i / 61) as u8))
                            .collect();
                        file.write_at(offset as u64, &bytes).unwrap();
                        right.resize(right.len().max(offset + len), 0);
                        right[offset..offset + len].copy_from_slice(&bytes);
                    }
                    _ => {}
                }
                assert_eq!(file.len(), right.len() as u64, "round {round}");
                // The page cache shall have dirty pages, clean pages, and no pages of the file.
                if random.chance(0.3) {
                    assert!(volume.read("x").unwrap() == right, "round {round}");
                }
            }
            assert!(volume.read("x").unwrap() == right);
        }
    }

    #[test]
    fn what_is_refused_later_goes_through_the_page_cache() {
        // The kernel refuses, with EINVAL, to write anything but a number to this file.
        let refuses = || OpenOptions::new().write(true).open("/proc/self/clear_refs");
        for root in places() {
            let Ok(refuses) = refuses() else { return };
            let path = root.path().join("x");
            let mut file = pages(&path);
            file.direct = Some(refuses);
            let bytes: Vec<u8> = (0..PIECE + BLOCK).map(|i| (i / 100) as u8 & 0xf0).collect();
            file.write_at(BLOCK as u64, &bytes).unwrap();
            assert!(
                file.direct.is_none(),
                "direct writes continue after a write was refused"
            );
            assert_eq!(file.len(), (2 * BLOCK + PIECE) as u64);
            let read = std::fs::read(&path).unwrap();
            assert!(read[..BLOCK] == [0; BLOCK] && read[BLOCK..] == bytes);
        }
    }

    #[test]
    fn a_full_device_says_what_a_plain_file_says() {
        // This device is always full. Some sandboxes do not have it.
        let full = || OpenOptions::new().write(true).open("/dev/full");
        for root in places() {
            let Ok(full) = full() else { return };
            let path = root.path().join("x");
            let mut file = pages(&path);
            file.write_at(0, &[1; BLOCK]).unwrap();
            file.direct = Some(full);
            let (from, bytes) = (BLOCK as u64, vec![2; PIECE + BLOCK]);
            let error = file.write_at(from, &bytes).unwrap_err();
            match &error {
                TierError::NoSpace { place, offset, len } => {
                    assert!(place.ends_with("/x"), "{error}");
                    assert_eq!((*offset, *len), (from, bytes.len() as u64));
                }
                _ => panic!("{error}"),
            }
            assert_eq!(
                file.len(),
                BLOCK as u64,
                "the refused write changed the length of the file"
            );
        }
    }

    #[test]
    fn a_name_that_went_to_another_file_is_not_written_through() {
        for root in places() {
            let (path, other) = (root.path().join("x"), root.path().join("y"));
            std::fs::write(&other, [5; BLOCK]).unwrap();
            let plain = pages(&path).plain;
            std::fs::rename(&other, &path).unwrap();
            let mut file = over(&path, plain);
            file.write_at(0, &[6; BLOCK]).unwrap();
            assert_eq!(std::fs::read(&path).unwrap(), [5; BLOCK]);
        }
    }
}
