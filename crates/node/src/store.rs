//! Named files, in memory or in a private folder, where the files outlive the server. The client
//! writes a file from its start to its end. When the hash of the complete file equals the client's
//! hash, the file gets its name, and never changes after that. The file loses its name when another
//! file gets the same name, or in a sweep. Clients that have the file open continue to read it.

use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use stratann_tier::remote::ucx::{self, Region};
use stratann_tier::remote::wire::{LIST, Listed, Refusal, is_name};
use stratann_tier::{Directory, HugeBytes, LockGuard, TierError, Volume, VolumeFile, VolumeReader};

/// The beginning of the names of incomplete files.
const UNFINISHED: &str = ".begun-";

/// The reasons why the store failed.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The server refuses the request.
    #[error("{text}")]
    Refused {
        /// The reason.
        why: Refusal,
        /// The text for the client.
        text: String,
    },
    /// An error of the folder, or of memory.
    #[error(transparent)]
    Tier(#[from] TierError),
}

fn refuse<T>(why: Refusal, text: impl Into<String>) -> Result<T, StoreError> {
    let text = text.into();
    Err(StoreError::Refused { why, text })
}

#[derive(Debug)]
struct Room {
    limit: u64,
    used: AtomicU64,
}

/// Bytes that count as used until the drop.
#[derive(Debug)]
struct Taken {
    room: Arc<Room>,
    bytes: u64,
}

impl Room {
    fn take(self: &Arc<Room>, bytes: u64) -> Option<Taken> {
        let with = |used: u64| used.checked_add(bytes).filter(|&sum| sum <= self.limit);
        let taken = self
            .used
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, with);
        taken.is_ok().then(|| Taken {
            room: self.clone(),
            bytes,
        })
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        self.room.used.fetch_sub(self.bytes, Ordering::SeqCst);
    }
}

/// Clients read a `Region` through UCX, without a request to the server.
enum Memory {
    Own(HugeBytes),
    Region(Region),
}

impl Deref for Memory {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Memory::Own(bytes) => bytes,
            Memory::Region(region) => region,
        }
    }
}

impl DerefMut for Memory {
    fn deref_mut(&mut self) -> &mut [u8] {
        match self {
            Memory::Own(bytes) => bytes,
            Memory::Region(region) => region,
        }
    }
}

enum Content {
    Memory(Memory),
    File(Box<dyn VolumeReader>),
}

/// A complete file.
pub struct Stored {
    id: u64,
    len: u64,
    hash: blake3::Hash,
    content: Content,
    _taken: Taken,
}

impl fmt::Debug for Stored {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Stored({:016x}, {} bytes)", self.id, self.len)
    }
}

impl Stored {
    /// The id by which clients name the file.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Length in bytes.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// The hash of all bytes, computed at the transfer or at the opening of the folder.
    pub fn hash(&self) -> &blake3::Hash {
        &self.hash
    }

    /// Returns `count` bytes from `offset` on.
    ///
    /// # Errors
    /// The range exceeds the file, or the folder's device fails.
    pub fn bytes(&self, offset: u64, count: u32) -> Result<Cow<'_, [u8]>, StoreError> {
        let end = offset.checked_add(count.into());
        let Some(end) = end.filter(|&end| end <= self.len) else {
            let text = format!(
                "{count} bytes at byte {offset} were requested; the file has {} bytes",
                self.len
            );
            return refuse(Refusal::Range, text);
        };
        match &self.content {
            Content::Memory(bytes) => Ok((&bytes[offset as usize..end as usize]).into()),
            Content::File(file) => {
                let mut bytes = vec![0; count as usize];
                file.read_at(offset, &mut bytes)?;
                Ok(bytes.into())
            }
        }
    }
}

/// A file that is being written. Its drop removes the file, unless the file has got its name.
pub struct Begun {
    name: String,
    len: u64,
    written: u64,
    hasher: blake3::Hasher,
    target: Target,
    taken: Taken,
}

enum Target {
    Memory(Memory),
    File {
        file: Box<dyn VolumeFile>,
        unfinished: Unfinished,
    },
}

struct Unfinished {
    directory: Directory,
    name: String,
    named: bool,
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        if !self.named {
            // If this removal fails, the next server that uses the folder removes the file.
            let _ = self.directory.remove(&self.name);
        }
    }
}

impl Begun {
    /// Appends bytes at `offset`, the length so far.
    ///
    /// # Errors
    /// `offset` differs from that length, or the bytes exceed the announced length.
    pub fn write(&mut self, offset: u64, bytes: &[u8]) -> Result<(), StoreError> {
        let end = offset.checked_add(bytes.len() as u64);
        if offset != self.written || end.is_none_or(|end| end > self.len) {
            let text = format!(
                "{} bytes at byte {offset} do not follow the last write, or exceed the {} bytes of the file",
                bytes.len(),
                self.len
            );
            return refuse(Refusal::Range, text);
        }
        match &mut self.target {
            Target::Memory(all) => {
                all[offset as usize..offset as usize + bytes.len()].copy_from_slice(bytes);
            }
            Target::File { file, .. } => file.write_at(offset, bytes)?,
        }
        self.hasher.update(bytes);
        self.written += bytes.len() as u64;
        Ok(())
    }
}

/// All files of a server.
pub struct Store {
    /// The regions for UCX, dropped before the files.
    ucx: Option<ucx::Target>,
    room: Arc<Room>,
    files: Mutex<Files>,
    folder: Option<(Directory, LockGuard)>,
    begun: AtomicU64,
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let used = self.room.used.load(Ordering::SeqCst);
        write!(f, "Store({used} of {} bytes)", self.room.limit)
    }
}

#[derive(Default)]
struct Files {
    names: HashMap<String, Arc<Stored>>,
    /// Named files, and files that a client has open.
    ids: HashMap<u64, Weak<Stored>>,
}

impl Files {
    fn insert(&mut self, name: String, file: &Arc<Stored>) -> Option<Arc<Stored>> {
        self.ids.retain(|_, file| file.strong_count() > 0);
        self.ids.insert(file.id, Arc::downgrade(file));
        self.names.insert(name, file.clone())
    }
}

/// The id depends only on the name and the bytes, so it stays the same after a restart.
fn id_of(name: &str, hash: &blake3::Hash) -> u64 {
    let mut hasher = blake3::Hasher::new();
    hasher.update(hash.as_bytes()).update(name.as_bytes());
    let all = hasher.finalize();
    let first: [u8; 8] = std::array::from_fn(|i| all.as_bytes()[i]);
    u64::from_le_bytes(first)
}

impl Store {
    /// A store in memory with at most `limit` bytes.
    pub fn in_memory(limit: u64) -> Store {
        Store {
            room: Arc::new(Room {
                limit,
                used: AtomicU64::new(0),
            }),
            files: Mutex::default(),
            folder: None,
            ucx: None,
            begun: AtomicU64::new(0),
        }
    }

    /// A store of at most `limit` bytes in a folder, which is created for this user only.
    ///
    /// # Errors
    /// Other users can access the folder, another server has locked it, or its files are unreadable
    /// or exceed the limit.
    pub fn in_folder(path: &Path, limit: u64) -> Result<Store, StoreError> {
        let directory = Directory::private(path)?;
        let lock = directory.lock()?;
        let store = Store::in_memory(limit);
        for name in directory.list()? {
            if name.contains(UNFINISHED) {
                directory.remove(&name)?;
                continue;
            }
            if !is_name(&name) {
                return refuse(
                    Refusal::Name,
                    format!(
                        "{} has a file {name:?} that no server has written there",
                        path.display()
                    ),
                );
            }
            let reader = directory.open_reader(&name)?;
            let len = reader.size()?;
            let Some(taken) = store.room.take(len) else {
                return refuse(
                    Refusal::Full,
                    format!(
                        "the files in {} have more than {limit} bytes",
                        path.display()
                    ),
                );
            };
            let mut hasher = blake3::Hasher::new();
            let mut buffer = vec![0; 1 << 20];
            let mut offset = 0;
            while offset < len {
                let piece = &mut buffer[..(len - offset).min(1 << 20) as usize];
                reader.read_at(offset, piece)?;
                hasher.update(piece);
                offset += piece.len() as u64;
            }
            let hash = hasher.finalize();
            let file = Arc::new(Stored {
                id: id_of(&name, &hash),
                len,
                hash,
                content: Content::File(reader),
                _taken: taken,
            });
            store.files().insert(name, &file);
        }
        Ok(Store {
            folder: Some((directory, lock)),
            ..store
        })
    }

    /// Lets clients read later files through UCX; with `loopback`, only from this machine.
    ///
    /// # Errors
    /// The store is in a folder, or UCX is not available.
    pub fn with_ucx(mut self, loopback: bool) -> Result<Store, StoreError> {
        if self.folder.is_some() {
            return refuse(
                Refusal::Other,
                "files in a folder cannot be read through UCX. Leave out the folder (--folder), or UCX (--ucx)",
            );
        }
        self.ucx = Some(ucx::Target::start(loopback)?);
        Ok(self)
    }

    /// Fails if the file cannot be read through UCX.
    pub(crate) fn reach(&self, file: &Stored) -> Result<Vec<u8>, StoreError> {
        match (&self.ucx, &file.content) {
            (Some(ucx), Content::Memory(Memory::Region(region))) => Ok(ucx.reach(region)?),
            _ => refuse(
                Refusal::Other,
                "this server has no files that can be read through UCX. Start the server with --ucx, or name the server without `ucx:`",
            ),
        }
    }

    /// Keeps files that a disconnected client could read through UCX, until the client's reads have
    /// ended.
    pub(crate) fn retire(&self, files: impl Iterator<Item = Arc<Stored>>) {
        if let Some(ucx) = &self.ucx {
            ucx.retire(files.map(|file| file as Arc<dyn Send + Sync>));
        }
    }

    /// A poisoned lock is usable: the data is consistent even after a panic.
    fn files(&self) -> MutexGuard<'_, Files> {
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The number of free bytes.
    pub fn free(&self) -> u64 {
        self.room.limit - self.room.used.load(Ordering::SeqCst)
    }

    /// Returns the file with a name.
    ///
    /// # Errors
    /// No file has the name.
    pub fn open(&self, name: &str) -> Result<Arc<Stored>, StoreError> {
        match self.files().names.get(name) {
            Some(file) => Ok(file.clone()),
            None => refuse(Refusal::Missing, "there is no file with this name"),
        }
    }

    /// Returns the file with an id, if it has a name or is open.
    ///
    /// # Errors
    /// There is no such file.
    pub fn find(&self, id: u64) -> Result<Arc<Stored>, StoreError> {
        match self.files().ids.get(&id).and_then(Weak::upgrade) {
            Some(file) => Ok(file),
            None => refuse(
                Refusal::Missing,
                "the server no longer has this file, since the server was restarted, or another state of the index replaced the file. Open the index again",
            ),
        }
    }

    /// Begins a file, and reserves `len` bytes.
    ///
    /// # Errors
    /// The name is invalid, or too few bytes are free.
    pub fn begin(&self, name: &str, len: u64) -> Result<Begun, StoreError> {
        if !is_name(name) || name.contains(UNFINISHED) {
            return refuse(
                Refusal::Name,
                "a file name has 1 to 200 letters, digits, dots, hyphens or underscores, does not begin with a dot, and is not reserved for the server",
            );
        }
        let Some(taken) = self.room.take(len) else {
            let text = format!(
                "the file needs {len} bytes; {} of the server's {} bytes are free",
                self.free(),
                self.room.limit
            );
            return refuse(Refusal::Full, text);
        };
        let target = match &self.folder {
            None => Target::Memory(match &self.ucx {
                Some(ucx) => Memory::Region(ucx.allocate(len as usize)?),
                None => Memory::Own(HugeBytes::zeroed(len as usize)?),
            }),
            Some((directory, _)) => {
                let number = self.begun.fetch_add(1, Ordering::Relaxed);
                let unfinished = Unfinished {
                    directory: directory.clone(),
                    name: format!("{name}{UNFINISHED}{number}"),
                    named: false,
                };
                let file = directory.create(&unfinished.name)?;
                Target::File { file, unfinished }
            }
        };
        Ok(Begun {
            name: name.to_owned(),
            len,
            written: 0,
            hasher: blake3::Hasher::new(),
            target,
            taken,
        })
    }

    /// Checks the hash of a complete file, and gives the file its name. Another file that has this
    /// name loses it.
    ///
    /// # Errors
    /// The file is incomplete, or has another hash.
    pub fn commit(&self, begun: Begun, hash: blake3::Hash) -> Result<Arc<Stored>, StoreError> {
        if begun.written != begun.len {
            let text = format!("only {} of {} bytes were sent", begun.written, begun.len);
            return refuse(Refusal::Damaged, text);
        }
        if begun.hasher.finalize() != hash {
            return refuse(
                Refusal::Damaged,
                "the bytes that arrived differ from the bytes that were sent",
            );
        }
        let Begun {
            name,
            len,
            mut target,
            taken,
            ..
        } = begun;
        if let Target::File { file, .. } = &mut target {
            file.sync()?;
        }
        // The lock covers the rename and the change of the table, so that folder and table agree.
        let mut files = self.files();
        // Of two transfers of the same file, the first stays.
        if let Some(there) = files.names.get(&name)
            && (there.hash, there.len) == (hash, len)
        {
            return Ok(there.clone());
        }
        let mut synced = Ok(());
        let content = match target {
            Target::Memory(bytes) => Content::Memory(bytes),
            Target::File { mut unfinished, .. } => {
                // The open file stays readable under its new name.
                let reader = unfinished.directory.open_reader(&unfinished.name)?;
                unfinished.directory.rename(&unfinished.name, &name)?;
                unfinished.named = true;
                synced = unfinished.directory.sync();
                Content::File(reader)
            }
        };
        let file = Arc::new(Stored {
            id: id_of(&name, &hash),
            len,
            hash,
            content,
            _taken: taken,
        });
        let replaced = files.insert(name, &file);
        drop(files);
        drop(replaced);
        // After a failed sync, a crash may undo the rename.
        synced?;
        Ok(file)
    }

    /// Lists the files whose names begin with `prefix` and sort after `after`, as many as fit.
    pub fn list(&self, prefix: &str, after: &str) -> Vec<u8> {
        let files = self.files();
        let mut found: Vec<_> = files
            .names
            .iter()
            .filter(|(name, _)| name.starts_with(prefix) && name.as_str() > after)
            .collect();
        found.sort_by_key(|(name, _)| *name);
        let mut list = Vec::new();
        for (name, file) in found {
            let listed = Listed {
                name: name.clone(),
                len: file.len,
                // The table itself has one of these references.
                in_use: Arc::strong_count(file) > 1,
            };
            if !listed.append(&mut list) {
                break;
            }
        }
        list.resize(LIST, 0);
        list
    }

    /// Removes the names that begin with `prefix` but not with `stays`.
    ///
    /// # Errors
    /// The folder's device fails.
    pub fn sweep(&self, prefix: &str, stays: &str) -> Result<(), StoreError> {
        let mut files = self.files();
        let goes = |name: &String| name.starts_with(prefix) && !name.starts_with(stays);
        let names: Vec<String> = files
            .names
            .keys()
            .filter(|name| goes(name))
            .cloned()
            .collect();
        for name in names {
            if let Some((directory, _)) = &self.folder {
                match directory.remove(&name) {
                    // A user may have removed the file.
                    Ok(()) | Err(TierError::Missing { .. }) => {}
                    Err(error) => return Err(error.into()),
                }
            }
            files.names.remove(&name);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(store: &Store, name: &str, bytes: &[u8]) -> Result<Arc<Stored>, StoreError> {
        let mut begun = store.begin(name, bytes.len() as u64)?;
        let (one, two) = bytes.split_at(bytes.len() / 2);
        begun.write(0, one)?;
        begun.write(one.len() as u64, two)?;
        store.commit(begun, blake3::hash(bytes))
    }

    fn all(file: &Stored) -> Vec<u8> {
        file.bytes(0, file.len() as u32).unwrap().into_owned()
    }

    fn why<T: fmt::Debug>(result: Result<T, StoreError>) -> Refusal {
        match result.unwrap_err() {
            StoreError::Refused { why, .. } => why,
            error => panic!("{error}"),
        }
    }

    fn each(test: impl Fn(Store)) {
        test(Store::in_memory(1000));
        let root = tempfile::tempdir().unwrap();
        test(Store::in_folder(&root.path().join("store"), 1000).unwrap());
    }

    #[test]
    fn a_file_is_there_when_all_of_it_is() {
        each(|store| {
            let file = put(&store, "a", b"hello").unwrap();
            assert_eq!(all(&store.open("a").unwrap()), b"hello");
            assert_eq!(all(&store.find(file.id()).unwrap()), b"hello");
            assert_eq!(
                (store.free(), why(store.open("b"))),
                (995, Refusal::Missing)
            );
            assert_eq!(why(file.bytes(3, 3)), Refusal::Range);
            assert_eq!(why(file.bytes(u64::MAX, 1)), Refusal::Range);
            let mut begun = store.begin("b", 10).unwrap();
            begun.write(0, b"hello").unwrap();
            for (offset, bytes) in [
                (0, &b"x"[..]),
                (6, b"x"),
                (5, b"too long"),
                (u64::MAX, b"x"),
            ] {
                assert_eq!(why(begun.write(offset, bytes)), Refusal::Range);
            }
            assert_eq!(store.free(), 985);
            assert_eq!(
                why(store.commit(begun, blake3::hash(b"hello"))),
                Refusal::Damaged
            );
            let mut begun = store.begin("b", 1).unwrap();
            begun.write(0, b"x").unwrap();
            assert_eq!(
                why(store.commit(begun, blake3::hash(b"y"))),
                Refusal::Damaged
            );
            assert_eq!(
                (store.free(), why(store.open("b"))),
                (995, Refusal::Missing)
            );
            assert_eq!(all(&put(&store, "empty", b"").unwrap()), b"");
        });
    }

    #[test]
    fn no_more_is_taken_than_may_be() {
        each(|store| {
            put(&store, "a", &[1; 600]).unwrap();
            assert_eq!(why(store.begin("b", 401).map(|_| ())), Refusal::Full);
            assert_eq!(why(store.begin("b", u64::MAX).map(|_| ())), Refusal::Full);
            let begun = store.begin("b", 400).unwrap();
            assert_eq!(why(store.begin("c", 1).map(|_| ())), Refusal::Full);
            drop(begun);
            assert_eq!(store.free(), 400);
            for name in ["", "..", "a/b", "x.begun-1"] {
                assert_eq!(
                    why(store.begin(name, 1).map(|_| ())),
                    Refusal::Name,
                    "{name}"
                );
            }
        });
    }

    #[test]
    fn who_has_a_file_open_goes_on_reading_it() {
        each(|store| {
            let old = put(&store, "me.1.a", b"one").unwrap();
            let same = put(&store, "me.1.a", b"one").unwrap();
            assert!(
                Arc::ptr_eq(&old, &same),
                "the store kept two files with the same name and bytes"
            );
            drop(same);
            put(&store, "me.2.a", b"two").unwrap();
            put(&store, "you.1.a", b"three").unwrap();
            store.sweep("me.", "me.2.").unwrap();
            assert_eq!(why(store.open("me.1.a")), Refusal::Missing);
            assert_eq!(all(&store.find(old.id()).unwrap()), b"one");
            assert!(store.open("me.2.a").is_ok() && store.open("you.1.a").is_ok());
            let (id, free) = (old.id(), store.free());
            drop(old);
            assert_eq!(
                (why(store.find(id)), store.free()),
                (Refusal::Missing, free + 3)
            );
        });
    }

    #[test]
    fn a_name_that_several_give_at_once_is_that_of_one_file_in_folder_and_table() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("store");
        let store = Store::in_folder(&path, 1 << 20).unwrap();
        for round in 0..200 {
            std::thread::scope(|scope| {
                for client in 0..4u8 {
                    let store = &store;
                    scope.spawn(move || put(store, "a", &[client; 100]).unwrap());
                }
            });
            let told = all(&store.open("a").unwrap());
            assert_eq!(std::fs::read(path.join("a")).unwrap(), told, "{round}");
        }
    }

    #[test]
    fn files_in_a_folder_survive_the_server() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("store");
        let store = Store::in_folder(&path, 1000).unwrap();
        let id = put(&store, "a", b"hello").unwrap().id();
        assert!(
            Store::in_folder(&path, 1000).is_err(),
            "two servers opened the same folder"
        );
        drop(store);
        std::fs::write(path.join("b.begun-0"), "half").unwrap();
        let store = Store::in_folder(&path, 1000).unwrap();
        assert_eq!(all(&store.find(id).unwrap()), b"hello");
        assert_eq!(store.free(), 995);
        assert!(!path.join("b.begun-0").exists());
        drop(store);
        assert_eq!(why(Store::in_folder(&path, 4)), Refusal::Full);
    }
}
