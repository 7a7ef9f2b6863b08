//! A volume whose files are read from memory, where they are mapped or copied. Writes go to the
//! underlying volume.
//!
//! ```text
//!   name ──> File ── image ──> Image (one while any tier has it): a mapping that grows, or a copy
//!              ^                 ^
//!   write ── files of the volume under it, then the image
//! ```
//!
//! While an index is searched, its pages change. So a read copies its bytes out of the image,
//! unlike [`MappedTier`](crate::MappedTier), whose memory must never change.

use std::cell::RefCell;
use std::collections::HashMap;
use std::fmt;
use std::fs::File;
use std::path::Path;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, Weak};

use memmap2::{Advice, MmapOptions, MmapRaw};

use crate::buffer::Block;
use crate::directory::Directory;
use crate::error::TierError;
use crate::executor::Thread;
use crate::memory::{LINE, PromptQueue, Source, prefetch_all};
use crate::reactor::Reactor;
use crate::tier::{ReadQueue, Request, Tier};
use crate::volume::{LockGuard, Note, Volume, VolumeFile, VolumeReader};

/// A volume whose tiers read from memory. [`Volume::read`] uses the underlying volume.
///
/// If a mapped file is truncated other than through this volume, the process is killed. Writes of
/// another process are visible in a mapping, but not in a copy.
pub struct MemoryVolume {
    volume: Arc<dyn Volume>,
    /// The same directory, if files are mapped: mapping needs its descriptor.
    mapped: Option<Directory>,
    files: Mutex<HashMap<String, Arc<MemoryFile>>>,
}

#[derive(Default)]
struct MemoryFile {
    image: Mutex<Weak<Image>>,
}

struct Image {
    name: String,
    /// The length at opening. A read within it fails only later if the file was truncated.
    opened: u64,
    bytes: Bytes,
}

enum Bytes {
    Mapped {
        file: File,
        known: AtomicU64,
        map: Mutex<Arc<Map>>,
    },
    Copied(RwLock<Vec<u8>>),
}

struct Map(MmapRaw);

/// A mapping extends beyond its file by this number of bytes and an eighth of the file.
const AHEAD: u64 = 1 << 20;

impl Map {
    fn of(file: &File, name: &str) -> Result<(Map, u64), TierError> {
        let failed = |source| TierError::io("map", name, 0, 0, source);
        let len = file.metadata().map_err(failed)?.len();
        let room = (len + len / 8 + AHEAD) as usize;
        let map = MmapOptions::new()
            .len(room)
            .map_raw_read_only(file)
            .map_err(failed)?;
        let _ = map.advise(Advice::Random);
        Ok((Map(map), len))
    }

    /// The address of a range of the mapping. The range is readable if the file is long enough.
    fn at(&self, offset: u64, len: usize) -> Option<*const u8> {
        let end = offset.checked_add(len as u64)?;
        let inside = end <= self.0.len() as u64;
        inside.then(|| self.0.as_ptr().wrapping_add(offset as usize))
    }
}

/// Accepts a poisoned lock, because the guarded value is consistent after each step.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Image {
    fn len(&self) -> u64 {
        match &self.bytes {
            Bytes::Mapped { known, .. } => known.load(Ordering::Relaxed),
            Bytes::Copied(bytes) => {
                bytes.read().unwrap_or_else(PoisonError::into_inner).len() as u64
            }
        }
    }

    fn len_for(&self, request: Request) -> u64 {
        let len = self.len();
        let end = request.offset.saturating_add(request.len.into());
        match &self.bytes {
            Bytes::Mapped { file, known, .. } if end > len => {
                let now = file.metadata().map_or(len, |facts| facts.len());
                known.fetch_max(now, Ordering::Relaxed).max(now)
            }
            _ => len,
        }
    }

    fn wrote(&self, offset: u64, new: &[u8]) {
        let end = offset + new.len() as u64;
        match &self.bytes {
            Bytes::Mapped { known, .. } => {
                known.fetch_max(end, Ordering::Relaxed);
            }
            Bytes::Copied(bytes) => {
                let mut bytes = bytes.write().unwrap_or_else(PoisonError::into_inner);
                if (bytes.len() as u64) < end {
                    bytes.resize(end as usize, 0);
                }
                bytes[offset as usize..end as usize].copy_from_slice(new);
            }
        }
    }

    fn resized(&self, len: u64) {
        match &self.bytes {
            Bytes::Mapped { known, .. } => known.store(len, Ordering::Relaxed),
            Bytes::Copied(bytes) => bytes
                .write()
                .unwrap_or_else(PoisonError::into_inner)
                .resize(len as usize, 0),
        }
    }
}

/// Copies `len` bytes, which other processes may change during the copy.
///
/// # Safety
/// `from` must be readable and `to` writable for `len` bytes. The two ranges must not overlap, and
/// no other code may use `to` meanwhile.
unsafe fn copy_shared(from: *const u8, to: *mut u8, len: usize) {
    const WORD: usize = size_of::<u64>();
    let words = if from.addr().is_multiple_of(WORD) && to.addr().is_multiple_of(WORD) {
        len / WORD
    } else {
        0
    };
    for word in 0..words {
        // SAFETY: word * 8 + 8 <= len, and both pointers are aligned. The read is volatile, because
        // another process may write these bytes.
        unsafe {
            to.cast::<u64>()
                .add(word)
                .write(from.cast::<u64>().add(word).read_volatile())
        };
    }
    for at in words * WORD..len {
        // SAFETY: `at < len`. Bytes need no alignment. Volatile, as above.
        unsafe { to.add(at).write(from.add(at).read_volatile()) };
    }
}

impl MemoryVolume {
    /// Maps the files of a directory: in `/dev/shm`, on a file system with DAX, or in the page
    /// cache.
    pub fn mapped(directory: Directory) -> MemoryVolume {
        MemoryVolume {
            volume: Arc::new(directory.clone()),
            mapped: Some(directory),
            files: Mutex::default(),
        }
    }

    /// Copies each file into memory when it is opened as a tier, until all tiers of the file are
    /// closed.
    pub fn copied(volume: Arc<dyn Volume>) -> MemoryVolume {
        MemoryVolume {
            volume,
            mapped: None,
            files: Mutex::default(),
        }
    }

    fn file(&self, name: &str) -> Arc<MemoryFile> {
        let mut files = locked(&self.files);
        files.entry(name.to_owned()).or_default().clone()
    }

    fn image(&self, name: &str) -> Result<Image, TierError> {
        let place = self.volume.place(name);
        let bytes = match &self.mapped {
            Some(directory) => {
                let file = directory.reader("open", name)?;
                let (map, len) = Map::of(&file, &place)?;
                Bytes::Mapped {
                    file,
                    known: AtomicU64::new(len),
                    map: Mutex::new(Arc::new(map)),
                }
            }
            None => Bytes::Copied(RwLock::new(self.volume.read(name)?)),
        };
        let mut image = Image {
            name: place,
            opened: 0,
            bytes,
        };
        image.opened = image.len();
        Ok(image)
    }

    fn writer(&self, name: &str, inner: Box<dyn VolumeFile>) -> Box<dyn VolumeFile> {
        let file = self.file(name);
        Box::new(Writer { inner, file })
    }
}

impl fmt::Debug for MemoryVolume {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let how = if self.mapped.is_some() {
            "mapped"
        } else {
            "copied"
        };
        write!(f, "MemoryVolume({:?}, {how})", self.volume)
    }
}

impl Volume for MemoryVolume {
    fn name(&self) -> String {
        self.volume.name()
    }

    fn place(&self, name: &str) -> String {
        self.volume.place(name)
    }

    fn create(&self, name: &str) -> Result<Box<dyn VolumeFile>, TierError> {
        let inner = self.volume.create(name)?;
        locked(&self.files).remove(name);
        Ok(self.writer(name, inner))
    }

    fn open(&self, name: &str) -> Result<Box<dyn VolumeFile>, TierError> {
        let inner = self.volume.open(name)?;
        Ok(self.writer(name, inner))
    }

    fn open_pages(&self, name: &str) -> Result<Box<dyn VolumeFile>, TierError> {
        let inner = match &self.mapped {
            // Direct writes bypass the page cache, and may not be visible in a mapping.
            Some(_) => self.volume.open(name)?,
            None => self.volume.open_pages(name)?,
        };
        Ok(self.writer(name, inner))
    }

    fn read(&self, name: &str) -> Result<Vec<u8>, TierError> {
        self.volume.read(name)
    }

    fn read_at(&self, name: &str, offset: u64, out: &mut [u8]) -> Result<(), TierError> {
        self.volume.read_at(name, offset, out)
    }

    fn open_reader(&self, name: &str) -> Result<Box<dyn VolumeReader>, TierError> {
        self.volume.open_reader(name)
    }

    fn len(&self, name: &str) -> Result<u64, TierError> {
        self.volume.len(name)
    }

    fn exists(&self, name: &str) -> Result<bool, TierError> {
        self.volume.exists(name)
    }

    fn open_tier(&self, name: &str) -> Result<Arc<dyn Tier>, TierError> {
        let file = self.file(name);
        // The image is locked until it is complete, so that no concurrent write is lost.
        let mut held = locked(&file.image);
        let image = match held.upgrade() {
            Some(image) => image,
            None => {
                let image = Arc::new(self.image(name)?);
                *held = Arc::downgrade(&image);
                image
            }
        };
        Ok(Arc::new(MemoryTier(image)))
    }

    fn rename(&self, from: &str, to: &str) -> Result<(), TierError> {
        self.volume.rename(from, to)?;
        let mut files = locked(&self.files);
        match files.remove(from) {
            Some(file) => files.insert(to.to_owned(), file),
            None => files.remove(to),
        };
        Ok(())
    }

    fn remove(&self, name: &str) -> Result<(), TierError> {
        self.volume.remove(name)?;
        locked(&self.files).remove(name);
        Ok(())
    }

    fn list(&self) -> Result<Vec<String>, TierError> {
        self.volume.list()
    }

    fn sync(&self) -> Result<(), TierError> {
        self.volume.sync()
    }

    fn lock(&self) -> Result<LockGuard, TierError> {
        self.volume.lock()
    }

    fn held_as(&self, what: &str, remedy: &str) {
        self.volume.held_as(what, remedy);
    }

    fn check_held(&self) -> Result<(), TierError> {
        self.volume.check_held()
    }

    fn check_path(&self, path: &Path) -> Result<(), TierError> {
        self.volume.check_path(path)
    }

    fn identity(&self) -> Option<(u64, u64)> {
        self.volume.identity()
    }

    fn note(&self) -> Option<Arc<Note>> {
        self.volume.note()
    }
}

struct Writer {
    inner: Box<dyn VolumeFile>,
    file: Arc<MemoryFile>,
}

impl Writer {
    fn image(&self) -> Option<Arc<Image>> {
        locked(&self.file.image).upgrade()
    }
}

impl fmt::Debug for Writer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}, in memory", self.inner)
    }
}

impl VolumeFile for Writer {
    fn write_at(&mut self, offset: u64, bytes: &[u8]) -> Result<(), TierError> {
        self.inner.write_at(offset, bytes)?;
        if let Some(image) = self.image() {
            image.wrote(offset, bytes);
        }
        Ok(())
    }

    fn len(&self) -> u64 {
        self.inner.len()
    }

    fn set_len(&mut self, len: u64) -> Result<(), TierError> {
        // The truncated part must not be read from a mapping, so the image is shortened first.
        if let Some(image) = self.image().filter(|image| len < image.len()) {
            image.resized(len);
        }
        self.inner.set_len(len)?;
        if let Some(image) = self.image() {
            image.resized(len);
        }
        Ok(())
    }

    fn sync(&mut self) -> Result<(), TierError> {
        self.inner.sync()
    }
}

#[derive(Clone)]
struct MemoryTier(Arc<Image>);

impl fmt::Debug for MemoryTier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MemoryTier({}, {} bytes)", self.0.name, self.0.len())
    }
}

impl Tier for MemoryTier {
    fn name(&self) -> &str {
        &self.0.name
    }

    fn len(&self) -> u64 {
        self.0.len().max(self.0.opened)
    }

    fn granularity(&self) -> u32 {
        LINE as u32
    }

    fn alignment(&self) -> u32 {
        1
    }

    fn queue(&self, thread: &Thread) -> Result<Box<dyn ReadQueue>, TierError> {
        let map = match &self.0.bytes {
            Bytes::Mapped { map, .. } => Some(RefCell::new(locked(map).clone())),
            Bytes::Copied(_) => None,
        };
        Ok(Box::new(PromptQueue::new(Door {
            image: self.0.clone(),
            map,
            reactor: thread.reactor().clone(),
        })))
    }
}

struct Door {
    image: Arc<Image>,
    map: Option<RefCell<Arc<Map>>>,
    reactor: Rc<Reactor>,
}

impl Door {
    fn mapped<T>(
        &self,
        request: Request,
        read: impl FnOnce(*const u8) -> T,
    ) -> Result<Option<T>, TierError> {
        let (Some(own), Bytes::Mapped { file, map, .. }) = (&self.map, &self.image.bytes) else {
            return Ok(None);
        };
        let mut own = own.borrow_mut();
        let (offset, len) = (request.offset, request.len as usize);
        if own.at(offset, len).is_none() {
            // The file has grown beyond this mapping.
            let mut map = locked(map);
            if map.at(offset, len).is_none() {
                *map = Arc::new(Map::of(file, &self.image.name)?.0);
            }
            own.clone_from(&map);
        }
        Ok(own.at(offset, len).map(read))
    }
}

impl Source for Door {
    fn name(&self) -> &str {
        &self.image.name
    }

    fn size_for(&self, request: Request) -> u64 {
        self.image.len_for(request).max(self.image.opened)
    }

    fn alignment(&self) -> u32 {
        1
    }

    fn prepare(&self, request: Request) {
        let (start, len) = (request.offset as usize, request.len as usize);
        if let Bytes::Copied(bytes) = &self.image.bytes {
            let bytes = bytes.read().unwrap_or_else(PoisonError::into_inner);
            prefetch_all(bytes.as_ptr().wrapping_add(start), len);
        } else if let Some(map) = &self.map
            && let Some(first) = map.borrow().at(request.offset, len)
        {
            prefetch_all(first, len);
        }
    }

    fn fetch(&self, request: Request) -> Result<Block, TierError> {
        let (start, len) = (request.offset as usize, request.len as usize);
        let short = || TierError::Short {
            place: self.image.name.clone(),
            offset: request.offset,
            wanted: len as u64,
            got: self.image.len().saturating_sub(request.offset),
        };
        let mut block = self.reactor.buffers.take(len)?;
        let to = block.target();
        if let Bytes::Copied(bytes) = &self.image.bytes {
            let bytes = bytes.read().unwrap_or_else(PoisonError::into_inner);
            let from = bytes.get(start..start + len).ok_or_else(short)?;
            // SAFETY: `from` has `len` bytes, and so has the new block, which overlaps nothing.
            unsafe { to.copy_from_nonoverlapping(from.as_ptr(), len) };
            return Ok(block);
        }
        if self.image.len() < request.offset + len as u64 {
            return Err(short());
        }
        let copied = self.mapped(request, |from| {
            // SAFETY: `own` keeps the mapping, which has `len` bytes at this address. The file's
            // length was checked above, and only this volume shortens the file. The new block has
            // `len` bytes, which no other code uses yet.
            unsafe { copy_shared(from, to, len) };
        })?;
        copied.ok_or_else(short)?;
        Ok(block)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::IoMode;
    use crate::tier::next;

    fn volumes(root: &Path) -> [MemoryVolume; 2] {
        let directory = |name: &str| Directory::create(root.join(name)).unwrap();
        [
            MemoryVolume::mapped(directory("mapped")),
            MemoryVolume::copied(Arc::new(directory("copied"))),
        ]
    }

    fn read(queue: &mut dyn ReadQueue, thread: &Thread, offset: u64, len: u32) -> Vec<u8> {
        let tag = 0;
        queue.submit(Request { tag, offset, len }).unwrap();
        thread.block_on(next(queue)).result.unwrap().to_vec()
    }

    #[test]
    fn a_file_that_grows_while_it_is_read_shows_what_came() {
        let root = tempfile::tempdir().unwrap();
        for volume in volumes(root.path()) {
            drop(volume.create("pages").unwrap());
            let tier = volume.open_tier("pages").unwrap();
            assert!(tier.is_empty());
            let thread = Thread::local(IoMode::Auto).unwrap();
            let mut queue = tier.queue(&thread).unwrap();
            let mut file = volume.open_pages("pages").unwrap();
            let mut right = Vec::new();
            for round in 1..=40u8 {
                let bytes = vec![round; 1000 + usize::from(round)];
                file.append(&bytes).unwrap();
                right.extend(bytes);
                assert_eq!(tier.len(), right.len() as u64);
                for (offset, len) in [(0, right.len()), (3, 21), (right.len() - 999, 999)] {
                    let found = read(&mut *queue, &thread, offset as u64, len as u32);
                    assert_eq!(found, right[offset..offset + len], "{volume:?}");
                }
            }
            file.write_at(5000, &[77; 5000]).unwrap();
            right[5000..10_000].fill(77);
            assert_eq!(read(&mut *queue, &thread, 0, right.len() as u32), right);
        }
    }

    #[test]
    fn what_another_handle_adds_to_a_mapped_file_is_found() {
        let root = tempfile::tempdir().unwrap();
        let [volume, _] = volumes(root.path());
        volume.create("pages").unwrap().append(&[1; 100]).unwrap();
        let tier = volume.open_tier("pages").unwrap();
        let thread = Thread::local(IoMode::Auto).unwrap();
        let mut queue = tier.queue(&thread).unwrap();
        let other = Directory::open(root.path().join("mapped")).unwrap();
        let mut file = other.open("pages").unwrap();
        file.append(&[2; 10_000]).unwrap();
        file.write_at(0, &[3; 50]).unwrap();
        let found = read(&mut *queue, &thread, 0, 10_100);
        assert_eq!(found, [vec![3; 50], vec![1; 50], vec![2; 10_000]].concat());
        let (tag, offset, len) = (0, 10_000, 101);
        let refused = queue.submit(Request { tag, offset, len });
        assert!(
            matches!(refused, Err(TierError::OutOfRange { .. })),
            "{refused:?}"
        );
    }

    #[test]
    fn a_name_that_is_given_anew_is_another_file() {
        let root = tempfile::tempdir().unwrap();
        for volume in volumes(root.path()) {
            let thread = Thread::local(IoMode::Auto).unwrap();
            let found = |tier: &dyn Tier| {
                let mut queue = tier.queue(&thread).unwrap();
                read(&mut *queue, &thread, 0, 4)
            };
            let mut old = volume.create("a").unwrap();
            old.append(b"aaaa").unwrap();
            let first = volume.open_tier("a").unwrap();
            volume.create("a").unwrap().append(b"bbbb").unwrap();
            let second = volume.open_tier("a").unwrap();
            old.write_at(0, b"AA").unwrap();
            volume.create("c").unwrap().append(b"cccc").unwrap();
            let third = volume.open_tier("c").unwrap();
            volume.rename("c", "a").unwrap();
            volume.open("a").unwrap().write_at(2, b"CC").unwrap();
            volume.remove("a").unwrap();
            volume.create("a").unwrap().append(b"dddd").unwrap();
            let fourth = volume.open_tier("a").unwrap();
            let all = [first, second, third, fourth].map(|tier| found(&*tier));
            assert_eq!(
                all,
                [b"AAaa", b"bbbb", b"ccCC", b"dddd"].map(|b| b.to_vec())
            );
        }
    }
}
