//! A volume in memory that fails or crashes on demand, and then shows possible contents of the
//! disk.
//!
//! ```text
//!            write, set_len                sync(file)
//!   Inode:  ───────────────> unsynced ───────────────> durable bytes
//!
//!            create, rename, remove        sync(volume)
//!   Names:  ───────────────> unsynced ───────────────> durable names
//!
//!   crash image = durable bytes and names + a part of the unsynced changes, by mode and seed
//! ```
//!
//! A test runs its work with [`fail_after`](SimVolume::fail_after)`(n, Failure::Crash)` for each
//! `n` below the number of [`operations`](SimVolume::operations), and then checks several
//! [`crash_image`](SimVolume::crash_image)s. With [`fail_call`](SimVolume::fail_call)`(n, Mishap)`
//! one operation of any kind fails, and the work continues. The disks of a machine
//! ([`SimVolume::joined`]) crash together, and each loses its own part of the changes.

mod image;
mod mishap;

pub use image::Crash;
pub use mishap::{Mishap, Operation};
use mishap::{Trip, Verdict};

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::BLOCK;
use crate::buffer::Block;
use crate::error::TierError;
use crate::executor::Thread;
use crate::holder::Holder;
use crate::memory::{PromptQueue, Source};
use crate::tier::{ReadQueue, Request, Tier};
use crate::volume::{LockGuard, Note, Volume, VolumeFile, VolumeReader, check_name};

const SECTOR: u64 = 512;

/// The kind of failure of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// Every operation with a change fails with `EIO`. Reads still work.
    Io,
    /// Operations that need space fail with `ENOSPC`. A write fails after its first half.
    NoSpace,
    /// The machine crashes. In a crash image, the interrupted operation may be done, undone or half
    /// done.
    Crash,
}

#[derive(Clone, Debug)]
enum Change {
    Write { offset: u64, bytes: Arc<[u8]> },
    Resize { len: u64 },
}

#[derive(Clone, Debug, Default)]
struct Inode {
    disk: usize,
    durable: Arc<Vec<u8>>,
    current: Arc<Vec<u8>>,
    unsynced: Vec<(u64, Change)>,
    kept: u64,
}

impl Inode {
    fn beyond_end(&self) -> u64 {
        let end = self.current.len().next_multiple_of(BLOCK) as u64;
        self.kept.saturating_sub(end)
    }
}

#[derive(Clone, Debug)]
enum NameChange {
    Create { name: String, inode: usize },
    Rename { from: String, to: String },
    Remove { name: String },
}

type Names = BTreeMap<String, usize>;

#[derive(Clone, Debug, Default)]
struct Disk {
    names: Names,
    durable_names: Names,
    unsynced_names: Vec<NameChange>,
    locked: bool,
    note: Option<Arc<Note>>,
}

#[derive(Debug, Default)]
struct State {
    /// No inode is ever removed, because a crash may undo the removal of a file. Copies of the
    /// state share unchanged inodes.
    inodes: Vec<Arc<Inode>>,
    disks: Vec<Disk>,
    operations: u64,
    failure: Option<(u64, Failure)>,
    calls: u64,
    trip: Option<Trip>,
    tripped: Option<(Operation, String)>,
    discards_files: bool,
    discards_names: bool,
    keeps_room: bool,
    /// Bytes of released blocks, which other files can reserve on the full disk.
    freed: u64,
    recorded: Option<Vec<(State, bool)>>,
}

type Join = dyn Fn(&[SimVolume]) -> Arc<dyn Volume> + Send + Sync;

/// A volume in memory. Clones are handles to the same volume.
#[derive(Clone)]
pub struct SimVolume {
    state: Arc<Mutex<State>>,
    disk: usize,
    joined: Option<(Arc<dyn Volume>, Arc<Join>)>,
}

impl Default for SimVolume {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for SimVolume {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.lock_state();
        write!(
            f,
            "SimVolume({} disks, {} operations)",
            state.disks.len(),
            state.operations
        )
    }
}

const PLACE: &str = "simulated volume";

fn place(name: &str) -> String {
    format!("{PLACE}/{name}")
}

fn missing(action: &'static str, name: &str) -> TierError {
    TierError::Missing {
        action,
        place: place(name),
    }
}

impl State {
    fn unlocked(&self) -> State {
        State {
            inodes: self.inodes.clone(),
            disks: self.disks.iter().map(Disk::unlocked).collect(),
            operations: self.operations,
            failure: self.failure,
            calls: self.calls,
            trip: self.trip,
            tripped: self.tripped.clone(),
            discards_files: self.discards_files,
            discards_names: self.discards_names,
            keeps_room: self.keeps_room,
            freed: self.freed,
            recorded: None,
        }
    }

    fn record(&mut self, is_sync: bool) {
        if let Some(mut recorded) = self.recorded.take() {
            recorded.push((self.unlocked(), is_sync));
            self.recorded = Some(recorded);
        }
    }

    fn alive(&self, name: &str) -> Result<(), TierError> {
        match self.failure {
            Some((at, Failure::Crash)) if self.operations >= at => {
                Err(TierError::Crashed { place: place(name) })
            }
            _ => Ok(()),
        }
    }

    /// Counts an operation that needs `space` bytes of the disk, if any. If the result is `Err`,
    /// the operation has no effect, except half of a write to a full disk. If the result is
    /// `Verdict::Fails`, the operation takes effect, but its caller gets the error.
    fn change(
        &mut self,
        operation: Operation,
        action: &'static str,
        name: &str,
        offset: u64,
        space: Option<u64>,
    ) -> Result<Verdict, TierError> {
        self.alive(name)?;
        self.record(matches!(operation, Operation::Sync | Operation::SyncNames));
        let number = self.operations;
        // The operation at which the machine crashes is the last that is counted.
        self.operations += 1;
        if let Verdict::Fails(error) =
            self.call(operation, action, name, offset, space.unwrap_or(0))?
        {
            return Ok(Verdict::Fails(error));
        }
        match self.failure {
            Some((at, Failure::Crash)) if number + 1 == at => {
                Ok(Verdict::Fails(TierError::Crashed { place: place(name) }))
            }
            Some((at, Failure::Io)) if number >= at => Err(TierError::io(
                action,
                place(name),
                offset,
                space.unwrap_or(0),
                io::Error::from_raw_os_error(libc::EIO),
            )),
            Some((at, Failure::NoSpace)) if number >= at && space.is_some() => {
                let error = io::Error::from_raw_os_error(libc::ENOSPC);
                Err(TierError::io(
                    action,
                    place(name),
                    offset,
                    space.unwrap_or(0),
                    error,
                ))
            }
            _ => Ok(Verdict::Done),
        }
    }

    fn inode(&self, disk: usize, action: &'static str, name: &str) -> Result<usize, TierError> {
        self.disks[disk]
            .names
            .get(name)
            .copied()
            .ok_or_else(|| missing(action, name))
    }

    fn names_of(&self, disk: usize, inode: usize) -> usize {
        let names = self.disks[disk].names.values();
        names.filter(|&&named| named == inode).count()
    }

    fn free(&mut self, disk: usize, name: &str) {
        let Some(&inode) = self.disks[disk].names.get(name) else {
            return;
        };
        if self.names_of(disk, inode) == 1 {
            let inode = &self.inodes[inode];
            let blocks = inode.current.len().next_multiple_of(BLOCK) as u64;
            self.freed += blocks.max(inode.kept);
        }
    }

    fn copy(&self, inode: usize, name: &str, offset: u64, out: &mut [u8]) -> Result<(), TierError> {
        let end = (offset as usize).saturating_add(out.len());
        let Some(bytes) = self.inodes[inode].current.get(offset as usize..end) else {
            let short = io::Error::from(io::ErrorKind::UnexpectedEof);
            return Err(TierError::io("read", name, offset, out.len() as u64, short));
        };
        out.copy_from_slice(bytes);
        Ok(())
    }

    fn changed(&mut self, inode: usize) -> &mut Inode {
        Arc::make_mut(&mut self.inodes[inode])
    }

    fn write(&mut self, inode: usize, change: Change) {
        let number = self.operations;
        let inode = self.changed(inode);
        apply(Arc::make_mut(&mut inode.current), &change);
        inode.unsynced.push((number, change));
    }
}

fn apply(bytes: &mut Vec<u8>, change: &Change) {
    match change {
        Change::Write { offset, bytes: new } => {
            let (start, end) = (*offset as usize, *offset as usize + new.len());
            if bytes.len() < end {
                bytes.resize(end, 0);
            }
            bytes[start..end].copy_from_slice(new);
        }
        Change::Resize { len } => bytes.resize(*len as usize, 0),
    }
}

fn apply_name(names: &mut Names, change: &NameChange) {
    match change {
        NameChange::Create { name, inode } => {
            names.insert(name.clone(), *inode);
        }
        NameChange::Rename { from, to } => {
            if let Some(inode) = names.remove(from) {
                names.insert(to.clone(), inode);
            }
        }
        NameChange::Remove { name } => {
            names.remove(name);
        }
    }
}

impl SimVolume {
    /// Creates an empty, working volume.
    pub fn new() -> SimVolume {
        Self::of(vec![Disk::default()], None)
    }

    /// A machine with `disks` empty disks, which `join` combines into one volume. Failures apply to
    /// all disks.
    pub fn joined(
        disks: usize,
        join: impl Fn(&[SimVolume]) -> Arc<dyn Volume> + Send + Sync + 'static,
    ) -> SimVolume {
        Self::of(vec![Disk::default(); disks], Some(Arc::new(join)))
    }

    fn of(disks: Vec<Disk>, join: Option<Arc<Join>>) -> SimVolume {
        let state = State {
            disks,
            ..State::default()
        };
        Self::with(state, join)
    }

    fn with(state: State, join: Option<Arc<Join>>) -> SimVolume {
        let disks = state.disks.len();
        let mut volume = SimVolume {
            state: Arc::new(Mutex::new(state)),
            disk: 0,
            joined: None,
        };
        if let Some(join) = join {
            let disks: Vec<_> = (0..disks).map(|number| volume.disk(number)).collect();
            volume.joined = Some((join(&disks), join));
        }
        volume
    }

    /// Returns the volume of one disk of the machine.
    pub fn disk(&self, number: usize) -> SimVolume {
        SimVolume {
            state: self.state.clone(),
            disk: number,
            joined: None,
        }
    }

    fn join(&self) -> Option<Arc<Join>> {
        self.joined.as_ref().map(|(_, join)| join.clone())
    }

    fn whole(&self) -> Option<&dyn Volume> {
        self.joined.as_ref().map(|(whole, _)| &**whole)
    }

    fn lock_state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The number of creations, writes, resizes, syncs, renames and removals so far.
    pub fn operations(&self) -> u64 {
        self.lock_state().operations
    }

    /// Lets `operations` more operations succeed. Then all operations fail, or the machine crashes
    /// during the next operation.
    pub fn fail_after(&self, operations: u64, failure: Failure) {
        let mut state = self.lock_state();
        let during = u64::from(failure == Failure::Crash);
        state.freed = 0;
        state.failure = Some((state.operations + operations + during, failure));
    }

    /// Ends a failure, but not a crash ([`crash_image`](SimVolume::crash_image)).
    pub fn heal(&self) {
        let mut state = self.lock_state();
        if state.alive("").is_ok() {
            state.failure = None;
        }
    }

    /// Gives a file a durable second name, as a backup by hard links does.
    ///
    /// # Panics
    /// Panics if there is no file `name`.
    pub fn link(&self, name: &str, other: &str) {
        let mut state = self.lock_state();
        let disk = &mut state.disks[self.disk];
        let inode = disk.names[name];
        for names in [&mut disk.names, &mut disk.durable_names] {
            names.insert(other.to_owned(), inode);
        }
    }

    /// Makes the volume support reservations ([`Volume::keep_room`]).
    pub fn gives_room(&self) {
        self.lock_state().keeps_room = true;
    }

    /// Whether the machine has crashed.
    pub fn has_crashed(&self) -> bool {
        self.lock_state().alive("").is_err()
    }

    /// An independent copy of the machine. It has the unsynced changes, counts and failure, but no
    /// locks.
    pub fn fork(&self) -> SimVolume {
        let copy = self.lock_state().unlocked();
        Self::with(copy, self.join())
    }

    /// Records the state before each operation from now on, for [`crashed`](SimVolume::crashed).
    pub fn record(&self) {
        self.lock_state().recorded = Some(Vec::new());
    }

    /// Ends the recording. For each operation, returns a machine that crashed during the operation,
    /// whose change is not durable.
    pub fn crashed(&self) -> Vec<SimVolume> {
        let mut state = self.lock_state();
        state.record(false);
        let states = state.recorded.take().unwrap_or_default();
        let operations = states.windows(2).map(|pair| match &pair[0] {
            (before, true) => before,
            (_, false) => &pair[1].0,
        });
        let volumes = operations.map(|state| Self::with(state.unlocked(), self.join()));
        volumes.collect()
    }
}

impl SimVolume {
    fn create_in(&self, name: &str, space: Option<u64>) -> Result<Box<dyn VolumeFile>, TierError> {
        check_name(PLACE, name)?;
        let mut state = self.lock_state();
        let verdict = state.change(Operation::Create, "create", name, 0, space)?;
        // As in a directory, the new file is a new inode, and the old one is not truncated.
        if state.disks[self.disk].names.contains_key(name) {
            state.disks[self.disk]
                .unsynced_names
                .push(NameChange::Remove {
                    name: name.to_owned(),
                });
        }
        let inode = state.inodes.len();
        state.inodes.push(Arc::new(Inode {
            disk: self.disk,
            ..Inode::default()
        }));
        state.disks[self.disk].names.insert(name.to_owned(), inode);
        state.disks[self.disk]
            .unsynced_names
            .push(NameChange::Create {
                name: name.to_owned(),
                inode,
            });
        match verdict {
            Verdict::Done => Ok(Box::new(SimFile {
                volume: self.clone(),
                name: name.to_owned(),
                inode,
            })),
            Verdict::Fails(error) => Err(error),
        }
    }

    /// The inode of an empty file with one name, and its reserved bytes; `None` for other files.
    fn inode_of_room(&self, name: &str) -> Option<(usize, u64)> {
        let state = self.lock_state();
        let inode = *state.disks[self.disk].names.get(name)?;
        let empty = state.inodes[inode].current.is_empty();
        (empty && state.names_of(self.disk, inode) == 1).then(|| (inode, state.inodes[inode].kept))
    }
}

impl Disk {
    fn unlocked(&self) -> Disk {
        Disk {
            locked: false,
            note: None,
            ..self.clone()
        }
    }
}

impl Volume for SimVolume {
    fn name(&self) -> String {
        if let Some(whole) = self.whole() {
            return whole.name();
        }
        PLACE.to_owned()
    }

    fn place(&self, name: &str) -> String {
        match self.whole() {
            Some(whole) => whole.place(name),
            None => place(name),
        }
    }

    fn create(&self, name: &str) -> Result<Box<dyn VolumeFile>, TierError> {
        match self.whole() {
            Some(whole) => whole.create(name),
            None => self.create_in(name, Some(0)),
        }
    }

    fn open(&self, name: &str) -> Result<Box<dyn VolumeFile>, TierError> {
        if let Some(whole) = self.whole() {
            return whole.open(name);
        }
        check_name(PLACE, name)?;
        let mut state = self.lock_state();
        state.look(Operation::Open, "open", name)?;
        let inode = state.inode(self.disk, "open", name)?;
        if state.names_of(self.disk, inode) > 1 {
            return Err(TierError::NotPlain {
                action: "write",
                place: place(name),
                found: "a file with other names (hard links)".to_owned(),
            });
        }
        drop(state);
        Ok(Box::new(SimFile {
            volume: self.clone(),
            name: name.to_owned(),
            inode,
        }))
    }

    fn open_pages(&self, name: &str) -> Result<Box<dyn VolumeFile>, TierError> {
        match self.whole() {
            Some(whole) => whole.open_pages(name),
            None => self.open(name),
        }
    }

    fn read(&self, name: &str) -> Result<Vec<u8>, TierError> {
        if let Some(whole) = self.whole() {
            return whole.read(name);
        }
        check_name(PLACE, name)?;
        let mut state = self.lock_state();
        state.look(Operation::Read, "read", name)?;
        let inode = state.inode(self.disk, "read", name)?;
        Ok(state.inodes[inode].current.to_vec())
    }

    fn read_at(&self, name: &str, offset: u64, out: &mut [u8]) -> Result<(), TierError> {
        if let Some(whole) = self.whole() {
            return whole.read_at(name, offset, out);
        }
        check_name(PLACE, name)?;
        let mut state = self.lock_state();
        state.look(Operation::Read, "read", name)?;
        let inode = state.inode(self.disk, "read", name)?;
        state.copy(inode, name, offset, out)
    }

    fn open_reader(&self, name: &str) -> Result<Box<dyn VolumeReader>, TierError> {
        if let Some(whole) = self.whole() {
            return whole.open_reader(name);
        }
        check_name(PLACE, name)?;
        let mut state = self.lock_state();
        state.look(Operation::Read, "open", name)?;
        Ok(Box::new(SimReader {
            volume: self.clone(),
            name: name.to_owned(),
            inode: state.inode(self.disk, "open", name)?,
        }))
    }

    fn len(&self, name: &str) -> Result<u64, TierError> {
        if let Some(whole) = self.whole() {
            return whole.len(name);
        }
        check_name(PLACE, name)?;
        let mut state = self.lock_state();
        state.look(Operation::Len, "look for", name)?;
        let inode = state.inode(self.disk, "look for", name)?;
        Ok(state.inodes[inode].current.len() as u64)
    }

    fn open_tier(&self, name: &str) -> Result<Arc<dyn Tier>, TierError> {
        if let Some(whole) = self.whole() {
            return whole.open_tier(name);
        }
        check_name(PLACE, name)?;
        let mut state = self.lock_state();
        state.look(Operation::OpenTier, "open", name)?;
        let inode = state.inode(self.disk, "open", name)?;
        Ok(Arc::new(SimTier {
            volume: self.clone(),
            name: place(name),
            inode: Arc::new(AtomicUsize::new(inode)),
            len: state.inodes[inode].current.len() as u64,
        }))
    }

    fn has_other_names(&self, name: &str) -> Result<bool, TierError> {
        if let Some(whole) = self.whole() {
            return whole.has_other_names(name);
        }
        let mut state = self.lock_state();
        state.look(Operation::Len, "look for", name)?;
        let inode = state.inode(self.disk, "look for", name)?;
        Ok(state.names_of(self.disk, inode) > 1)
    }

    fn rename(&self, from: &str, to: &str) -> Result<(), TierError> {
        if let Some(whole) = self.whole() {
            return whole.rename(from, to);
        }
        check_name(PLACE, from)?;
        check_name(PLACE, to)?;
        let mut state = self.lock_state();
        state.alive(from)?;
        state.inode(self.disk, "rename", from)?;
        let verdict = state.change(Operation::Rename, "rename", from, 0, None)?;
        let change = NameChange::Rename {
            from: from.to_owned(),
            to: to.to_owned(),
        };
        state.free(self.disk, to);
        apply_name(&mut state.disks[self.disk].names, &change);
        state.disks[self.disk].unsynced_names.push(change);
        match verdict {
            Verdict::Done => Ok(()),
            Verdict::Fails(error) => Err(error),
        }
    }

    fn remove(&self, name: &str) -> Result<(), TierError> {
        if let Some(whole) = self.whole() {
            return whole.remove(name);
        }
        check_name(PLACE, name)?;
        let mut state = self.lock_state();
        state.alive(name)?;
        state.inode(self.disk, "remove", name)?;
        let verdict = state.change(Operation::Remove, "remove", name, 0, None)?;
        let change = NameChange::Remove {
            name: name.to_owned(),
        };
        state.free(self.disk, name);
        apply_name(&mut state.disks[self.disk].names, &change);
        state.disks[self.disk].unsynced_names.push(change);
        match verdict {
            Verdict::Done => Ok(()),
            Verdict::Fails(error) => Err(error),
        }
    }

    fn list(&self) -> Result<Vec<String>, TierError> {
        if let Some(whole) = self.whole() {
            return whole.list();
        }
        let mut state = self.lock_state();
        state.look(Operation::List, "list", "")?;
        Ok(state.disks[self.disk].names.keys().cloned().collect())
    }

    fn sync(&self) -> Result<(), TierError> {
        if let Some(whole) = self.whole() {
            return whole.sync();
        }
        let mut state = self.lock_state();
        let failed = match state.change(Operation::SyncNames, "sync", "", 0, None) {
            Ok(Verdict::Fails(error)) if state.alive("").is_err() => return Err(error),
            Ok(Verdict::Fails(error)) => Some(error),
            Ok(Verdict::Done) => None,
            Err(error) => {
                if state.discards_names && state.alive("").is_ok() {
                    state.disks[self.disk].unsynced_names.clear();
                }
                return Err(error);
            }
        };
        // If the sync failed, the volume may have lost some changes of names before this loop.
        for change in std::mem::take(&mut state.disks[self.disk].unsynced_names) {
            apply_name(&mut state.disks[self.disk].durable_names, &change);
        }
        failed.map_or(Ok(()), Err)
    }

    fn keep_room(&self, name: &str, bytes: u64) -> Result<bool, TierError> {
        if let Some(whole) = self.whole() {
            return whole.keep_room(name, bytes);
        }
        if !self.lock_state().keeps_room {
            return Ok(false);
        }
        let there = self.inode_of_room(name);
        if there.is_some_and(|(_, kept)| kept >= bytes) {
            return Ok(true);
        }
        if there.is_none() {
            drop(self.create_in(name, None)?);
        }
        let more = bytes - there.map_or(0, |(_, kept)| kept);
        let mut state = self.lock_state();
        let room = (state.freed < more).then_some(more);
        let changed = state.change(Operation::KeepRoom, "reserve space in", name, 0, room);
        if changed.is_err() && there.is_none() && state.alive(name).is_ok() {
            let disk = &mut state.disks[self.disk];
            disk.names.remove(name);
            let name = name.to_owned();
            disk.unsynced_names.push(NameChange::Remove { name });
        }
        let verdict = changed?;
        let inode = state.inode(self.disk, "reserve space in", name)?;
        state.changed(inode).kept = bytes;
        state.freed = state.freed.saturating_sub(more);
        match verdict {
            Verdict::Done => Ok(true),
            Verdict::Fails(error) => Err(error),
        }
    }

    fn kept_room(&self, name: &str) -> Result<u64, TierError> {
        match self.whole() {
            Some(whole) => whole.kept_room(name),
            None => {
                let state = self.lock_state();
                let inode = state.disks[self.disk].names.get(name);
                Ok(inode.map_or(0, |&inode| state.inodes[inode].beyond_end()))
            }
        }
    }

    fn lock(&self) -> Result<LockGuard, TierError> {
        if let Some(whole) = self.whole() {
            return whole.lock();
        }
        let mut state = self.lock_state();
        state.look(Operation::Lock, "lock", "LOCK")?;
        if state.disks[self.disk].locked {
            return Err(TierError::InUse {
                place: PLACE.to_owned(),
                lock: place("LOCK"),
                holder: Holder::default(),
            });
        }
        state.disks[self.disk].locked = true;
        state.disks[self.disk].note = Some(Arc::default());
        Ok(LockGuard::new(Unlock(self.clone())))
    }

    fn note(&self) -> Option<Arc<Note>> {
        if let Some(whole) = self.whole() {
            return whole.note();
        }
        self.lock_state().disks[self.disk].note.clone()
    }
}

struct Unlock(SimVolume);

impl Drop for Unlock {
    fn drop(&mut self) {
        let mut state = self.0.lock_state();
        let disk = &mut state.disks[self.0.disk];
        disk.locked = false;
        disk.note = None;
    }
}

#[derive(Debug)]
struct SimReader {
    volume: SimVolume,
    name: String,
    inode: usize,
}

impl VolumeReader for SimReader {
    fn size(&self) -> Result<u64, TierError> {
        let mut state = self.volume.lock_state();
        state.look(Operation::Len, "look at", &self.name)?;
        Ok(state.inodes[self.inode].current.len() as u64)
    }

    fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<(), TierError> {
        let mut state = self.volume.lock_state();
        state.look(Operation::Read, "read", &self.name)?;
        state.copy(self.inode, &self.name, offset, out)
    }
}

#[derive(Debug)]
struct SimFile {
    volume: SimVolume,
    name: String,
    inode: usize,
}

impl VolumeFile for SimFile {
    fn write_at(&mut self, offset: u64, bytes: &[u8]) -> Result<(), TierError> {
        let mut state = self.volume.lock_state();
        let len = bytes.len() as u64;
        let write = |bytes: &[u8]| Change::Write {
            offset,
            bytes: bytes.into(),
        };
        let is_kept = offset.saturating_add(len) <= state.inodes[self.inode].kept;
        let room = (!is_kept).then_some(len);
        match state.change(Operation::Write, "write", &self.name, offset, room) {
            Ok(verdict) => {
                state.write(self.inode, write(bytes));
                match verdict {
                    Verdict::Done => Ok(()),
                    Verdict::Fails(error) => Err(error),
                }
            }
            Err(error) => {
                if matches!(error, TierError::NoSpace { .. }) {
                    let half = bytes.len() / 2 / SECTOR as usize * SECTOR as usize;
                    state.write(self.inode, write(&bytes[..half]));
                }
                Err(error)
            }
        }
    }

    fn len(&self) -> u64 {
        self.volume.lock_state().inodes[self.inode].current.len() as u64
    }

    fn set_len(&mut self, len: u64) -> Result<(), TierError> {
        let mut state = self.volume.lock_state();
        let grows = len > state.inodes[self.inode].current.len() as u64;
        let room = grows.then_some(0);
        let verdict = state.change(Operation::Resize, "resize", &self.name, len, room)?;
        state.write(self.inode, Change::Resize { len });
        let end = len.next_multiple_of(BLOCK as u64);
        let kept = &mut state.changed(self.inode).kept;
        let cut = kept.saturating_sub(end);
        *kept -= cut;
        state.freed += cut;
        match verdict {
            Verdict::Done => Ok(()),
            Verdict::Fails(error) => Err(error),
        }
    }

    fn sync(&mut self) -> Result<(), TierError> {
        let mut state = self.volume.lock_state();
        let failed = match state.change(Operation::Sync, "sync", &self.name, 0, None) {
            Ok(Verdict::Fails(error)) if state.alive("").is_err() => return Err(error),
            Ok(Verdict::Fails(error)) => Some(error),
            Ok(Verdict::Done) => None,
            Err(error) => {
                if state.discards_files && state.alive("").is_ok() {
                    state.changed(self.inode).unsynced.clear();
                }
                return Err(error);
            }
        };
        let inode = state.changed(self.inode);
        // Replaying the changes is cheaper than copying a long file for each short append.
        let durable = Arc::make_mut(&mut inode.durable);
        for (_, change) in inode.unsynced.drain(..) {
            apply(durable, &change);
        }
        failed.map_or(Ok(()), Err)
    }
}

#[derive(Clone, Debug)]
struct SimTier {
    volume: SimVolume,
    name: String,
    inode: Arc<AtomicUsize>,
    len: u64,
}

impl SimTier {
    /// The length at opening, or the current length if it is larger. So reads of a truncated file
    /// report an error.
    fn now(&self) -> u64 {
        let inode = self.inode.load(Ordering::Relaxed);
        let now = self.volume.lock_state().inodes[inode].current.len() as u64;
        now.max(self.len)
    }

    fn file(&self) -> &str {
        let name = self.name.strip_prefix(PLACE).unwrap_or(&self.name);
        name.trim_start_matches('/')
    }
}

impl Tier for SimTier {
    fn name(&self) -> &str {
        &self.name
    }

    fn len(&self) -> u64 {
        self.now()
    }

    fn granularity(&self) -> u32 {
        BLOCK as u32
    }

    fn reopen(&self) -> Result<(), TierError> {
        let mut state = self.volume.lock_state();
        state.look(Operation::OpenTier, "open", self.file())?;
        let inode = state.inode(self.volume.disk, "open", self.file())?;
        self.inode.store(inode, Ordering::Relaxed);
        Ok(())
    }

    fn queue(&self, _thread: &Thread) -> Result<Box<dyn ReadQueue>, TierError> {
        Ok(Box::new(PromptQueue::new(self.clone())))
    }
}

impl Source for SimTier {
    fn name(&self) -> &str {
        &self.name
    }

    fn size_for(&self, _: Request) -> u64 {
        self.now()
    }

    fn alignment(&self) -> u32 {
        BLOCK as u32
    }

    fn prepare(&self, _request: Request) {}

    fn fetch(&self, request: Request) -> Result<Block, TierError> {
        let mut state = self.volume.lock_state();
        state.look(Operation::TierRead, "read", self.file())?;
        let bytes = &state.inodes[self.inode.load(Ordering::Relaxed)].current;
        let (start, len) = (request.offset as usize, request.len as usize);
        match bytes.get(start..start + len) {
            Some(bytes) => Ok(Block::copy_of(bytes)),
            None => Err(TierError::Short {
                place: self.name.clone(),
                offset: request.offset,
                wanted: len as u64,
                got: bytes.len().saturating_sub(start) as u64,
            }),
        }
    }
}
