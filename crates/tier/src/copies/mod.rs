//! A volume that reads some of its files from copies in a folder: on a faster disk, in memory that
//! processes share, or on a file system with DAX.
//!
//! ```text
//!   open_tier(name) ── whole copy there? ── no ──> copy, sync, compare, rename ─┐
//!                              └── yes ─────────────────────────────────────────┴─> read
//!   write ── the volume, then the copy
//!
//!   before a copy: check of the free space;   read: mapped, or past the page cache
//! ```
//!
//! The volume is complete without its copies. A copy gets its name after every byte has been read
//! back and compared, so an unfinished copy is never read.
//!
//! Copies for other processes ([`Kept::ForOthers`]) never change. An index that is open for changes
//! has copies of its own ([`Kept::ForNow`]), and each write goes to the volume first.

mod folder;
mod found;

use std::collections::HashSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

pub use folder::{CopyFolder, Kept};
pub use found::FoundCopies;

use crate::error::TierError;
use crate::forward::leave_to;
use crate::mapped::MappedTier;
use crate::memory_volume::MemoryVolume;
use crate::tier::Tier;
use crate::volume::{LockGuard, Note, Volume, VolumeFile, VolumeReader};

/// How copies in a folder are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadBy {
    /// Copies are mapped into the process.
    Mapping,
    /// Copies are read from the device, like files on an SSD.
    Device,
}

/// A volume whose files have copies in a folder. If a file is opened as a tier, its copy is read.
pub struct MirrorVolume {
    home: Arc<dyn Volume>,
    folder: Arc<CopyFolder>,
    read_by: ReadBy,
    /// The folder as a volume; a [`MemoryVolume`] if its files are mapped and may change.
    copies: Arc<dyn Volume>,
    /// The files whose copies are complete. The lock is held while a copy is made, so no copy is
    /// made twice.
    whole: Mutex<HashSet<String>>,
}

const PIECE: usize = 1 << 20;
const TRIES: u32 = 3;

pub(crate) fn copy_of(copy: &str, original: &str) -> String {
    format!("{copy} (a copy of {original})")
}

impl MirrorVolume {
    /// Wraps a volume. Every file that is opened through this volume gets a copy.
    pub fn new(home: Arc<dyn Volume>, folder: CopyFolder, read_by: ReadBy) -> MirrorVolume {
        let directory = folder.directory().clone();
        let copies: Arc<dyn Volume> = match (read_by, folder.kept()) {
            (ReadBy::Mapping, Kept::ForNow) => Arc::new(MemoryVolume::mapped(directory)),
            _ => Arc::new(directory),
        };
        MirrorVolume {
            home,
            folder: Arc::new(folder),
            read_by,
            copies,
            whole: Mutex::default(),
        }
    }

    /// Accepts a poisoned lock, because the set is consistent after each step.
    fn whole(&self) -> MutexGuard<'_, HashSet<String>> {
        self.whole.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn ensure(&self, name: &str) -> Result<(), TierError> {
        let mut whole = self.whole();
        if whole.contains(name) {
            return Ok(());
        }
        let len = self.home.len(name)?;
        // With `Kept::ForOthers`, a file changes only by growing, so a copy of the same length is
        // current.
        let kept = self.folder.kept() == Kept::ForOthers;
        let is_there = || kept && matches!(self.copies.len(name), Ok(there) if there == len);
        if !is_there() {
            let alone = kept.then(|| self.folder.make_alone()).transpose()?;
            if !is_there() {
                self.copy(name)?;
            }
            drop(alone);
        }
        whole.insert(name.to_owned());
        Ok(())
    }

    fn copy(&self, name: &str) -> Result<(), TierError> {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let unfinished = format!(
            "{name}{}{}-{number}",
            folder::UNFINISHED,
            std::process::id()
        );
        let made = self.copy_to(name, &unfinished);
        let named = made.and_then(|()| {
            self.copies.rename(&unfinished, name)?;
            self.copies.sync()
        });
        if named.is_err() {
            // The next process with exclusive use of the folder removes an unfinished copy.
            let _ = self.copies.remove(&unfinished);
        }
        named
    }

    fn copy_to(&self, name: &str, unfinished: &str) -> Result<(), TierError> {
        let mut differs = 0;
        for _ in 0..TRIES {
            let from = self.home.open_reader(name)?;
            let len = from.size()?;
            self.folder.check_room(len)?;
            let mut file = self.copies.create(unfinished)?;
            let mut buffer = vec![0; PIECE.min(len as usize)];
            in_pieces(len, |offset, piece| {
                let bytes = &mut buffer[..piece];
                from.read_at(offset, bytes)?;
                file.write_at(offset, bytes)
            })?;
            file.sync()?;
            drop(file);
            match difference(&*from, &*self.copies.open_reader(unfinished)?)? {
                None => return Ok(()),
                Some(offset) => differs = offset,
            }
        }
        Err(TierError::Differs {
            copy: self.copies.place(name),
            original: self.home.place(name),
            offset: differs,
            tries: TRIES,
        })
    }

    fn writer(
        &self,
        name: &str,
        home: Box<dyn VolumeFile>,
    ) -> Result<Box<dyn VolumeFile>, TierError> {
        let copy = self.copies.open(name)?;
        let folder = self.folder.clone();
        Ok(Box::new(Writer { home, copy, folder }))
    }

    fn check_own(&self, name: &str) -> Result<(), TierError> {
        match self.folder.kept() {
            Kept::ForNow => Ok(()),
            Kept::ForOthers => Err(TierError::Unsupported {
                what: format!("writing {} and its copy", self.home.place(name)),
                reason:
                    "the copy is kept for other processes. Open the index for changes, which makes a copy of its own"
                        .to_owned(),
            }),
        }
    }
}

fn in_pieces(
    len: u64,
    mut work: impl FnMut(u64, usize) -> Result<(), TierError>,
) -> Result<(), TierError> {
    let mut offset = 0;
    while offset < len {
        let piece = (len - offset).min(PIECE as u64);
        work(offset, piece as usize)?;
        offset += piece;
    }
    Ok(())
}

fn difference(one: &dyn VolumeReader, other: &dyn VolumeReader) -> Result<Option<u64>, TierError> {
    let (len, there) = (one.size()?, other.size()?);
    let mut found = (len != there).then_some(len.min(there));
    let mut buffers = [vec![0; PIECE], vec![0; PIECE]];
    let [a, b] = &mut buffers;
    in_pieces(len.min(there), |offset, piece| {
        let (a, b) = (&mut a[..piece], &mut b[..piece]);
        one.read_at(offset, a)?;
        other.read_at(offset, b)?;
        if a != b {
            let at = a.iter().zip(&*b).position(|(a, b)| a != b).unwrap_or(0);
            let at = offset + at as u64;
            found = Some(found.map_or(at, |known| known.min(at)));
        }
        Ok(())
    })?;
    Ok(found)
}

impl std::fmt::Debug for MirrorVolume {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "MirrorVolume({:?}, {})",
            self.home,
            self.folder.path().display()
        )
    }
}

impl Volume for MirrorVolume {
    leave_to!(home: name len exists list sync lock);

    /// Names the copy, which is read, and its original, because either may be damaged.
    fn place(&self, name: &str) -> String {
        copy_of(&self.copies.place(name), &self.home.place(name))
    }

    fn create(&self, name: &str) -> Result<Box<dyn VolumeFile>, TierError> {
        self.check_own(name)?;
        let mut whole = self.whole();
        let home = self.home.create(name)?;
        whole.remove(name);
        drop(self.copies.create(name)?);
        whole.insert(name.to_owned());
        self.writer(name, home)
    }

    fn open(&self, name: &str) -> Result<Box<dyn VolumeFile>, TierError> {
        self.check_own(name)?;
        self.ensure(name)?;
        self.writer(name, self.home.open(name)?)
    }

    fn open_pages(&self, name: &str) -> Result<Box<dyn VolumeFile>, TierError> {
        self.check_own(name)?;
        self.ensure(name)?;
        self.writer(name, self.home.open_pages(name)?)
    }

    fn read(&self, name: &str) -> Result<Vec<u8>, TierError> {
        self.ensure(name)?;
        self.copies.read(name)
    }

    fn read_at(&self, name: &str, offset: u64, out: &mut [u8]) -> Result<(), TierError> {
        self.ensure(name)?;
        self.copies.read_at(name, offset, out)
    }

    fn open_reader(&self, name: &str) -> Result<Box<dyn VolumeReader>, TierError> {
        self.ensure(name)?;
        self.copies.open_reader(name)
    }

    fn open_tier(&self, name: &str) -> Result<Arc<dyn Tier>, TierError> {
        self.ensure(name)?;
        match (self.read_by, self.folder.kept()) {
            (ReadBy::Mapping, Kept::ForOthers) => {
                let file = self.folder.directory().reader("open", name)?;
                Ok(Arc::new(MappedTier::of(&file, self.place(name))?))
            }
            _ => self.copies.open_tier(name),
        }
    }

    fn rename(&self, from: &str, to: &str) -> Result<(), TierError> {
        self.check_own(from)?;
        let mut whole = self.whole();
        self.home.rename(from, to)?;
        whole.remove(to);
        if whole.remove(from) {
            self.copies.rename(from, to)?;
            whole.insert(to.to_owned());
        }
        Ok(())
    }

    fn remove(&self, name: &str) -> Result<(), TierError> {
        self.check_own(name)?;
        let mut whole = self.whole();
        self.home.remove(name)?;
        if whole.remove(name) {
            let _ = self.copies.remove(name);
        }
        Ok(())
    }
}

/// Each write goes to the file first, so the copy has no bytes that the file lacks.
#[derive(Debug)]
struct Writer {
    home: Box<dyn VolumeFile>,
    copy: Box<dyn VolumeFile>,
    folder: Arc<CopyFolder>,
}

impl Writer {
    fn check_room(&self, end: u64) -> Result<(), TierError> {
        match end.checked_sub(self.copy.len()) {
            None | Some(0) => Ok(()),
            Some(more) => self.folder.check_room(more),
        }
    }
}

impl VolumeFile for Writer {
    fn write_at(&mut self, offset: u64, bytes: &[u8]) -> Result<(), TierError> {
        self.check_room(offset.saturating_add(bytes.len() as u64))?;
        self.home.write_at(offset, bytes)?;
        self.copy.write_at(offset, bytes)
    }

    fn len(&self) -> u64 {
        self.home.len()
    }

    fn set_len(&mut self, len: u64) -> Result<(), TierError> {
        self.check_room(len)?;
        self.home.set_len(len)?;
        self.copy.set_len(len)
    }

    /// Only the file is synced, because its copy need not survive a crash.
    fn sync(&mut self) -> Result<(), TierError> {
        self.home.sync()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::directory::Directory;

    #[derive(Debug)]
    struct Restless {
        directory: Directory,
        opened: AtomicU64,
    }

    impl Volume for Restless {
        leave_to!(directory: name place create open open_pages read read_at len exists rename remove list sync lock);

        fn open_reader(&self, name: &str) -> Result<Box<dyn VolumeReader>, TierError> {
            let times = self.opened.fetch_add(1, Ordering::Relaxed);
            self.directory
                .open(name)?
                .write_at(4_000_000, &times.to_le_bytes())?;
            let file = self.directory.open_reader(name)?;
            Ok(Box::new(Changing(
                file,
                self.directory.clone(),
                name.to_owned(),
            )))
        }

        fn open_tier(&self, name: &str) -> Result<Arc<dyn Tier>, TierError> {
            self.directory.open_tier(name)
        }
    }

    #[derive(Debug)]
    struct Changing(Box<dyn VolumeReader>, Directory, String);

    impl VolumeReader for Changing {
        fn size(&self) -> Result<u64, TierError> {
            self.0.size()
        }

        fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<(), TierError> {
            self.0.read_at(offset, out)?;
            if offset + out.len() as u64 == self.0.size()? {
                let mut first = [0];
                self.0.read_at(77, &mut first)?;
                self.1
                    .open(&self.2)?
                    .write_at(77, &[first[0].wrapping_add(1)])?;
            }
            Ok(())
        }
    }

    #[test]
    fn a_file_that_changes_while_it_is_copied_is_not_believed() {
        let root = tempfile::tempdir().unwrap();
        let home = Directory::create(root.path().join("home")).unwrap();
        home.create("pages-1")
            .unwrap()
            .write_at(0, &[7; 5_000_000])
            .unwrap();
        let home = Arc::new(Restless {
            directory: home,
            opened: AtomicU64::new(0),
        });
        let place = root.path().join("place");
        let folder = CopyFolder::open(&place, "a", "1", Kept::ForOthers).unwrap();
        let path = folder.path().to_owned();
        let mirror = MirrorVolume::new(home, folder, ReadBy::Mapping);
        let error = mirror.open_tier("pages-1").unwrap_err();
        assert!(
            matches!(
                error,
                TierError::Differs {
                    offset: 77,
                    tries: 3,
                    ..
                }
            ),
            "{error}"
        );
        assert!(error.place().starts_with(path.to_str().unwrap()), "{error}");
        let left: Vec<_> = std::fs::read_dir(path).unwrap().flatten().collect();
        assert_eq!(left.len(), 1, "{left:?}");
    }

    #[derive(Debug)]
    struct Counted {
        directory: Directory,
        opened: AtomicU64,
    }

    impl Volume for Counted {
        leave_to!(directory: name place create open open_pages read read_at len exists rename remove list sync lock);

        fn open_reader(&self, name: &str) -> Result<Box<dyn VolumeReader>, TierError> {
            self.opened.fetch_add(1, Ordering::Relaxed);
            std::thread::sleep(std::time::Duration::from_millis(200));
            self.directory.open_reader(name)
        }

        fn open_tier(&self, name: &str) -> Result<Arc<dyn Tier>, TierError> {
            self.directory.open_tier(name)
        }
    }

    #[test]
    fn who_opens_an_index_while_it_is_copied_waits_for_the_copy() {
        let root = tempfile::tempdir().unwrap();
        let directory = Directory::create(root.path().join("home")).unwrap();
        directory
            .create("pages-1")
            .unwrap()
            .write_at(0, &[7; 3_000_000])
            .unwrap();
        let home = Arc::new(Counted {
            directory,
            opened: AtomicU64::new(0),
        });
        let place = root.path().join("place");
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let folder = CopyFolder::open(&place, "a", "1", Kept::ForOthers).unwrap();
                    let mirror = MirrorVolume::new(home.clone(), folder, ReadBy::Mapping);
                    assert_eq!(mirror.read("pages-1").unwrap(), [7; 3_000_000]);
                });
            }
        });
        assert_eq!(home.opened.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn what_the_copy_has_no_room_for_is_not_written_at_home_either() {
        let root = tempfile::tempdir().unwrap();
        let home = Directory::create(root.path().join("home")).unwrap();
        home.create("pages-1")
            .unwrap()
            .write_at(0, &[7; 8192])
            .unwrap();
        let place = root.path().join("place");
        let mut folder = CopyFolder::open(&place, "a", "1", Kept::ForNow).unwrap();
        folder.free = Some(10_000);
        let mirror = MirrorVolume::new(Arc::new(home.clone()), folder, ReadBy::Mapping);
        let mut file = mirror.open_pages("pages-1").unwrap();
        file.write_at(4096, &[8; 8192]).unwrap();
        let error = file.write_at(12288, &[9; 12288]).unwrap_err();
        assert!(
            matches!(
                error,
                TierError::NoRoom {
                    len: 12288,
                    free: 10_000,
                    ..
                }
            ),
            "{error}"
        );
        assert!(matches!(
            file.set_len(1 << 20).unwrap_err(),
            TierError::NoRoom { .. }
        ));
        assert_eq!(home.len("pages-1").unwrap(), 12288);
        let mut merged = mirror.create("pages-2").unwrap();
        assert!(matches!(
            merged.append(&[1; 20_000]).unwrap_err(),
            TierError::NoRoom { .. }
        ));
        assert_eq!(home.len("pages-2").unwrap(), 0);
    }
}
