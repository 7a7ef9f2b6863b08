//! The part that all objects of this process with the same open folder share. It is the index open
//! for changes, while one of the objects changes it.
//!
//! ```text
//!   object a ──┐                    open for changes   by the first change, with its options;
//!   object b ──┼──> Writer of the                      searches of all objects use it
//!   object c ──┘    folder          closed             by the last object that made a change;
//!                                                      the others continue with the result
//! ```
//!
//! A folder is identified by its device and inode, so objects share it whatever paths they were
//! opened with. A forked process has none of the threads of its parent, so it has a writer of its
//! own.

use std::collections::BTreeMap;
use std::ops::Deref;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};
use pyo3::prelude::*;
use stratann::{
    CacheSize, DirectOptions, Durability, LiveIndex, MergeWhen, Merger, OpenOptions, Progress,
    TierError, WriteOptions,
};

use crate::arguments::shown;
use crate::errors::{InUseError, to_python};
use crate::gate::{Gate, LOOK, Pass};
use crate::process::{Opened, detached};

/// How long a close waits for searches of other threads. After that, the last of them releases the
/// lock of the folder when it ends.
const PATIENCE: Duration = Duration::from_secs(2);

/// How the index is opened for changes.
#[derive(Clone, Copy, Debug)]
pub struct Changes {
    /// When a change is durable.
    pub durability: Durability,
    /// Whether merges begin automatically when they are due.
    pub merges: bool,
}

impl Default for Changes {
    fn default() -> Self {
        Self {
            durability: Durability::Always,
            merges: true,
        }
    }
}

/// An object that has the folder open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct User(pub u64);

/// The writers of this process by device and inode of their folders. Locked only briefly and with
/// the interpreter's lock held, so that no thread forks meanwhile.
static WRITERS: Mutex<BTreeMap<(u64, u64), Weak<Writer>>> = Mutex::new(BTreeMap::new());

/// The number of closes of indexes that were open for changes, in this process.
static CLOSES: AtomicU64 = AtomicU64::new(0);

/// The number of closes of indexes that were open for changes, in this process. If it does not
/// change while an index is opened, no close was missed.
pub fn closes() -> u64 {
    CLOSES.load(Ordering::SeqCst)
}

/// The part that the objects of one folder share.
pub struct Writer {
    /// The process whose threads change it.
    process: u32,
    /// Changes in progress, for which a close waits.
    gate: Arc<Gate>,
    /// Held while the index is opened for changes, which may take long.
    opening: Mutex<()>,
    /// Held by the thread that closes the index.
    closer: Mutex<()>,
    /// Held by an insert that is recorded, so that it can be resumed after a kill. There is one at
    /// a time, since it is recognised by its vectors.
    noted: Mutex<()>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// The index open for changes.
    live: Option<Arc<Opened<LiveIndex>>>,
    /// How it was opened.
    changes: Changes,
    /// The objects that have made changes since.
    users: Vec<User>,
    /// The merges in the background.
    merger: Option<Merger>,
    /// The index that was closed last. It holds the lock of its folder while a search uses it.
    closed: Option<Weak<Opened<LiveIndex>>>,
    /// The result of the last close, open for reading. `None` while the index is open for changes,
    /// since a merge frees files that are not open.
    left: Option<Arc<Opened<stratann::Index>>>,
    /// The number of closes.
    closes: u64,
}

impl State {
    /// Records that the index open for changes is closed.
    fn has_closed(&mut self, live: &Arc<Opened<LiveIndex>>) {
        CLOSES.fetch_add(1, Ordering::SeqCst);
        self.closed = Some(Arc::downgrade(live));
        self.closes += 1;
        self.live = None;
    }
}

/// The index open for changes, if it is, as a Python thread holds it for one call. After a close
/// this may be the last reference. Work at its end, such as a checkpoint, is then done without the
/// interpreter's lock.
pub struct Held(Option<Arc<Opened<LiveIndex>>>);

impl Held {
    /// The value for an index that is not open for changes.
    pub fn nothing() -> Self {
        Self(None)
    }
}

impl Deref for Held {
    type Target = Option<Arc<Opened<LiveIndex>>>;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if let Some(last) = self.0.take().and_then(Arc::into_inner) {
            detached(move || drop(last));
        }
    }
}

/// The condition of a folder at some time.
pub enum Standing {
    /// Open for changes: all searches use this index, and this checkpoint of it.
    Open(Arc<Opened<stratann::Index>>, Held),
    /// No object of this process changes it.
    Closed {
        /// The number of closes. An index that was opened before the last one is out of date.
        closes: u64,
        /// The result of the last close.
        left: Option<Arc<Opened<stratann::Index>>>,
    },
}

/// The index open for changes, for one change.
pub struct UnderWay {
    live: Arc<Opened<LiveIndex>>,
    /// Released after `live`.
    turn: Turn,
}

impl UnderWay {
    /// The right to record an insert, until it is dropped. `None`: another thread has a recorded
    /// insert in progress.
    pub fn note(&self) -> Option<MutexGuard<'_, ()>> {
        self.turn.writer.noted.try_lock()
    }
}

impl Deref for UnderWay {
    type Target = Opened<LiveIndex>;

    fn deref(&self) -> &Opened<LiveIndex> {
        &self.live
    }
}

/// The right to make a change, until it is dropped. If all objects have ended their changes
/// meanwhile, dropping it closes the index.
pub struct Turn {
    writer: Arc<Writer>,
    pass: Option<Pass>,
}

impl Drop for Turn {
    fn drop(&mut self) {
        drop(self.pass.take());
        if self.writer.is_left() {
            detached(|| self.writer.close_if_left());
        }
    }
}

/// Why an index was not opened for changes.
#[derive(Debug)]
pub enum Refused {
    /// The engine's error.
    Engine(stratann::Error),
    /// It is open with another option: its name and value, and the value wanted.
    Otherwise {
        option: &'static str,
        open: String,
        wanted: String,
        /// Whether it was closed, and only a search still uses it.
        closed: bool,
    },
}

impl<E: Into<stratann::Error>> From<E> for Refused {
    fn from(error: E) -> Self {
        Self::Engine(error.into())
    }
}

impl Refused {
    /// The same error, for an index that was closed and that a search still uses.
    fn of_closed(self) -> Self {
        match self {
            Self::Otherwise {
                option,
                open,
                wanted,
                ..
            } => Self::Otherwise {
                option,
                open,
                wanted,
                closed: true,
            },
            engine @ Self::Engine(_) => engine,
        }
    }

    /// The exception. `path`: the path of the object that wanted to make a change.
    pub fn into_python(self, path: &Path) -> PyErr {
        match self {
            Self::Engine(error) => to_python(error),
            Self::Otherwise {
                option,
                open,
                wanted,
                closed: true,
            } => InUseError::new_err(format!(
                "{option}={wanted}: {} was closed in this process with {option}={open}, and a search or another call still reads it so. Call again when \
                 that is done, or open both objects with the same options",
                shown(path)
            )),
            Self::Otherwise {
                option,
                open,
                wanted,
                closed: false,
            } => InUseError::new_err(format!(
                "{option}={wanted}: {} is open for changes in this process with {option}={open}. Open both objects with the same options, or close the other one first",
                shown(path)
            )),
        }
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        // The merger ends before the index that it merges. No lock is taken, since this is the last
        // reference, and in a forked process a thread of the parent may have held it.
        let merger = self.state.get_mut().merger.take();
        match self.is_home() {
            // It may wait for a merge.
            true => detached(move || drop(merger)),
            false => drop(merger),
        }
    }
}

/// The options that a caller may set, by their names.
fn named(open: &OpenOptions, changes: Changes) -> [(&'static str, String); 7] {
    let or_none = |value: Option<String>| value.unwrap_or_else(|| "None".into());
    let cache = match open.cache {
        CacheSize::None => "None".into(),
        CacheSize::Bytes(bytes) => bytes.to_string(),
        CacheSize::Entries(entries) => format!("{entries} entries"),
    };
    let durability = match changes.durability {
        Durability::Always => "\"always\"".into(),
        Durability::OnFlush => "\"flush\"".into(),
        Durability::Every(time) => time.as_millis().to_string(),
    };
    let boolean = |value| if value { "True" } else { "False" };
    [
        (
            "memory",
            or_none(open.memory.map(|bytes| bytes.to_string())),
        ),
        ("io", format!("\"{}\"", open.io)),
        ("cache", cache),
        (
            "navigation",
            or_none(open.navigation.map(|value| boolean(value).into())),
        ),
        ("place", format!("\"{}\"", open.places)),
        ("durability", durability),
        ("merges", boolean(changes.merges).into()),
    ]
}

/// Whether an index that was opened with one of these serves an object with the other: they are
/// equal, and have the same sample of live recall or none.
pub fn reads_alike(one: &OpenOptions, other: &OpenOptions) -> bool {
    named(one, Changes::default()) == named(other, Changes::default())
        && one.watch_recall == other.watch_recall
}

impl Writer {
    /// The writer of an index's folder, which all objects of this process share.
    pub fn of(_interpreter: Python<'_>, index: &stratann::Index) -> Arc<Self> {
        let process = std::process::id();
        let new = || {
            Arc::new(Self {
                process,
                gate: Arc::default(),
                opening: Mutex::default(),
                closer: Mutex::default(),
                noted: Mutex::default(),
                state: Mutex::default(),
            })
        };
        let Some(folder) = index.folder() else {
            return new();
        };
        let mut writers = WRITERS.lock();
        writers.retain(|_, writer| writer.strong_count() > 0);
        let there = writers.get(&folder).and_then(Weak::upgrade);
        match there.filter(|writer| writer.process == process) {
            Some(writer) => writer,
            None => {
                let writer = new();
                writers.insert(folder, Arc::downgrade(&writer));
                writer
            }
        }
    }

    /// Whether it belongs to this process, and not to the one that this was forked from.
    fn is_home(&self) -> bool {
        self.process == std::process::id()
    }

    /// The condition of the folder now. `None`: this is a forked process, and its parent has it
    /// open for changes or is about to.
    pub fn standing(&self) -> Option<Standing> {
        let state = match self.is_home() {
            true => self.state.lock(),
            // A thread of the parent may hold this lock, or a lock of the index open for changes.
            false => self.state.try_lock().filter(|state| state.live.is_none())?,
        };
        Some(match state.live.clone() {
            Some(live) => {
                drop(state);
                let index = live.beside(live.index());
                Standing::Open(Arc::new(index), Held(Some(live)))
            }
            None => Standing::Closed {
                closes: state.closes,
                left: state.left.clone(),
            },
        })
    }

    /// Holds all locks during `work`.
    #[cfg(feature = "testing")]
    pub fn while_locked<T>(&self, work: impl FnOnce() -> T) -> T {
        let _opening = self.opening.lock();
        let _closer = self.closer.lock();
        let _state = self.state.lock();
        work()
    }

    /// The index open for changes, if it is.
    pub fn changing(&self) -> Held {
        Held(self.live())
    }

    fn live(&self) -> Option<Arc<Opened<LiveIndex>>> {
        self.state.lock().live.clone()
    }

    /// Whether an object has made changes since the index was opened for changes.
    pub fn is_used_by(&self, user: User) -> bool {
        self.state.lock().users.contains(&user)
    }

    /// Whether this thread is making a change, from which this call comes.
    pub fn is_under_way_here(&self) -> bool {
        self.gate.is_under_way_here()
    }

    /// If the index is being closed, waits briefly. `None` if it is still being closed then.
    pub fn enter(self: &Arc<Self>) -> Option<Turn> {
        let pass = self.gate.enter()?;
        Some(Turn {
            writer: self.clone(),
            pass: Some(pass),
        })
    }

    /// The index open for changes, for one change of an object. Opening it takes the lock of its
    /// folder. It is not closed before the change is done. `index`: the object's index; `wanted`:
    /// the object's options. `progress` may end the waits for other objects that open it, and for
    /// memory of a catalog.
    pub fn open(
        &self,
        user: User,
        index: &Arc<stratann::Index>,
        wanted: (&OpenOptions, Changes),
        turn: Turn,
        progress: &dyn Progress,
    ) -> Result<UnderWay, Refused> {
        let (_, changes) = wanted;
        let _one = loop {
            match self.opening.try_lock_for(LOOK) {
                Some(one) => break one,
                None if progress.interrupted() => return Err(stratann::Error::Interrupted.into()),
                None => {}
            }
        };
        let open = {
            let mut state = self.state.lock();
            let live = state.live.clone();
            if let Some(live) = &live
                && !state.users.contains(&user)
            {
                agree(live, state.changes, wanted)?;
                state.users.push(user);
            }
            live
        };
        if let Some(live) = open {
            return Ok(UnderWay { live, turn });
        }
        // An index that was closed, and that a search of another thread still uses, holds the lock.
        let (closed, before) = {
            let state = self.state.lock();
            (state.closed.clone(), state.changes)
        };
        let was_closed = closed.is_some();
        let closed = closed.and_then(|closed| closed.upgrade());
        let (again, otherwise) =
            match closed.filter(|closed| matches!(closed.is_current(), Ok(true))) {
                Some(live) => match agree(&live, before, wanted) {
                    Ok(()) => (Some(live), None),
                    // Released here. It ends when the search does.
                    Err(otherwise) => (None, Some(otherwise)),
                },
                None => (None, None),
            };
        let live = match again {
            Some(live) => live,
            None => match (opened(index, changes, was_closed, progress), otherwise) {
                (Err(error), Some(otherwise)) if is_in_use(&error) => {
                    return Err(otherwise.of_closed());
                }
                (live, _) => Arc::new(Opened::new(Arc::new(live?))),
            },
        };
        let merger = merge_when_due(&live, changes)?;
        let mut state = self.state.lock();
        state.merger = merger;
        state.changes = changes;
        state.users.push(user);
        state.left = None;
        state.live = Some(live.clone());
        Ok(UnderWay { live, turn })
    }

    /// Ends the changes of an object, as [`close_in_turn`](Self::close_in_turn) does. Then closes
    /// the index if its remaining objects were freed meanwhile.
    pub fn close(
        &self,
        object: (User, &Path),
        finish: bool,
        progress: &dyn Progress,
    ) -> Result<(), stratann::Error> {
        let closed = self.close_in_turn(object, finish, progress);
        self.close_if_left();
        closed
    }

    /// Ends the changes of an object from within a change, which cannot close the index. Returns
    /// whether other objects continue. If none do, nothing is changed.
    pub fn leave_from_within(&self, user: User) -> Result<bool, stratann::Error> {
        match self.live() {
            Some(live) => self.leave(user, &live),
            None => Ok(true),
        }
    }

    /// Ends the changes that a Python object makes. If other objects change the same index, they
    /// continue, and all changes so far are made durable. Otherwise the index is closed once no
    /// change is in progress.
    ///
    /// With `finish`, a merge that is due is made before that. Changes continue during the merge,
    /// and `progress` may end it. All acknowledged changes stay visible: searches use the closing
    /// index until the result is open for reading. `home`: the object's path of the folder, which
    /// may have been moved since.
    fn close_in_turn(
        &self,
        (user, home): (User, &Path),
        finish: bool,
        progress: &dyn Progress,
    ) -> Result<(), stratann::Error> {
        let _one = loop {
            match self.closer.try_lock_for(LOOK) {
                Some(closer) => break closer,
                None if progress.interrupted() => return Err(stratann::Error::Interrupted),
                None => {}
            }
        };
        let Some(live) = self.live() else {
            return Ok(());
        };
        if self.has_others(user) && self.leave(user, &live)? {
            return Ok(());
        }
        // The merger ends, or completes its merge, before the index is closed.
        let (merger, changes) = {
            let mut state = self.state.lock();
            (state.merger.take(), state.changes)
        };
        if let Some(merger) = merger
            && finish
        {
            merger.finish(progress);
        }
        let closing = self
            .gate
            .close(progress)
            .inspect_err(|_| self.merge_again(&live, changes));
        let _closing = closing?;
        if self.has_others(user) {
            let left = self.leave(user, &live);
            if !matches!(left, Ok(false)) {
                self.merge_again(&live, changes);
                return left.map(drop);
            }
        }
        let flushed = live.flush();
        // If it takes no changes any more, or another index has replaced it, the handle is not
        // kept.
        let stays = matches!(live.is_current(), Ok(true));
        let opened = match &flushed {
            Err(_) if stays => None,
            _ => {
                let place = if stays { live.path() } else { home };
                Some(live.index().opener().open(place))
            }
        };
        let index = match opened {
            Some(Ok(index)) => Arc::new(Opened::new(Arc::new(index))),
            // The index stays open for changes, since searches would otherwise miss them.
            not => {
                self.merge_again(&live, changes);
                return flushed.and(not.map_or(Ok(()), |not| not.map(drop)));
            }
        };
        self.put_away(&live, &index);
        // The last reference releases the lock. That should happen now, so wait for the searches
        // that use it.
        let is_shared = || Arc::strong_count(&live) > 1 || Arc::strong_count(live.value()) > 1;
        let began = Instant::now();
        while is_shared() && began.elapsed() < PATIENCE && !progress.interrupted() {
            std::thread::sleep(Duration::from_millis(1));
        }
        drop(live);
        // It made a checkpoint when it was dropped. The open index has all of its changes, but its
        // files may go when another process changes the index.
        if let Ok(false) = index.is_current()
            && let Ok(last) = index.opener().open(index.path())
        {
            let mut state = self.state.lock();
            state.closes += 1;
            state.left = Some(Arc::new(Opened::new(Arc::new(last))));
        }
        flushed
    }

    /// Ends the changes of an object that was freed. Returns whether it was the last one. Then
    /// [`close_if_left`](Self::close_if_left) has to follow.
    pub fn forsake(&self, user: User) -> bool {
        if !self.is_home() {
            return false;
        }
        self.state.lock().users.retain(|&other| other != user);
        self.is_left()
    }

    /// Whether the index is open for changes, and all objects have ended their changes.
    fn is_left(&self) -> bool {
        if !self.is_home() {
            return false;
        }
        let state = self.state.lock();
        state.live.is_some() && state.users.is_empty()
    }

    /// Takes the merger and the index of an object that alone has the folder open. Dropping the
    /// index closes it. `None`: other objects have the folder open. The caller holds the
    /// interpreter's lock, so that no other object gets this writer meanwhile and finds no index in
    /// it.
    pub fn take_alone(self: &Arc<Self>) -> Option<(Option<Merger>, Arc<Opened<LiveIndex>>)> {
        if Arc::strong_count(self) > 1 {
            return None;
        }
        let mut state = self.state.lock();
        let live = state.live.clone()?;
        state.has_closed(&live);
        Some((state.merger.take(), live))
    }

    /// Closes the index if all objects have ended their changes, without a merge. It never waits.
    /// If a change or another close is in progress, that one closes the index at its end.
    pub fn close_if_left(&self) {
        if !self.is_left() {
            return;
        }
        let Some(_closing) = self.gate.close_if_idle() else {
            return;
        };
        let Some(live) = self.live() else {
            return;
        };
        let (merger, changes) = {
            let mut state = self.state.lock();
            if !state.users.is_empty() {
                return;
            }
            (state.merger.take(), state.changes)
        };
        drop(merger);
        let flushed = live.flush();
        let open = || live.index().opener().open(live.path());
        match flushed.and_then(|()| open()) {
            Ok(index) => self.put_away(&live, &Arc::new(Opened::new(Arc::new(index)))),
            // No caller gets this error. Other objects find the index unchanged, and the one that
            // closes it gets the error.
            Err(_) => self.merge_again(&live, changes),
        }
    }

    /// Whether other objects have made changes.
    pub fn has_others(&self, user: User) -> bool {
        self.state.lock().users.iter().any(|&other| other != user)
    }

    /// Leaves the index open for changes to other objects, after making this object's changes
    /// durable. `false`: there are no others, and nothing is changed.
    fn leave(&self, user: User, live: &Opened<LiveIndex>) -> Result<bool, stratann::Error> {
        if self.is_used_by(user) {
            live.flush()?;
        }
        // The others may have ended their changes meanwhile.
        let mut state = self.state.lock();
        let has_others = state.users.iter().any(|&other| other != user);
        if has_others {
            state.users.retain(|&other| other != user);
        }
        Ok(has_others)
    }

    /// Replaces the index that was open for changes by the one that is open for reading.
    fn put_away(&self, live: &Arc<Opened<LiveIndex>>, index: &Arc<Opened<stratann::Index>>) {
        let mut state = self.state.lock();
        state.has_closed(live);
        state.left = Some(index.clone());
        state.users.clear();
    }

    /// Resumes merges in the background after an incomplete close. Changes continue even if this
    /// fails.
    fn merge_again(&self, live: &Opened<LiveIndex>, changes: Changes) {
        if let Ok(merger) = merge_when_due(live, changes) {
            self.state.lock().merger = merger;
        }
    }
}

/// Refuses an object whose options differ from the options of the index open for changes.
fn agree(
    live: &Opened<LiveIndex>,
    changes: Changes,
    wanted: (&OpenOptions, Changes),
) -> Result<(), Refused> {
    let open = named(live.index().opener().options(), changes);
    let wanted = named(wanted.0, wanted.1);
    let mut both = open.into_iter().zip(wanted);
    match both.find(|(open, wanted)| open != wanted) {
        None => Ok(()),
        Some(((option, open), (_, wanted))) => Err(Refused::Otherwise {
            option,
            open,
            wanted,
            closed: false,
        }),
    }
}

/// Opens the folder for changes. If this process has closed the index, a search may still use it
/// and keep its lock. Then waits up to [`PATIENCE`] for the last such search to end.
fn opened(
    index: &Arc<stratann::Index>,
    changes: Changes,
    was_closed: bool,
    progress: &dyn Progress,
) -> Result<LiveIndex, stratann::Error> {
    let options = WriteOptions {
        durability: changes.durability,
        direct: DirectOptions {
            merge_many: changes.merges,
            ..DirectOptions::default()
        },
        ..WriteOptions::default()
    };
    let began = Instant::now();
    loop {
        let opened = LiveIndex::over_observed(index, &options, progress);
        let in_use = opened.as_ref().is_err_and(is_in_use);
        if !in_use || !was_closed || began.elapsed() > PATIENCE {
            return opened;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Whether the folder is locked by another handle.
fn is_in_use(error: &stratann::Error) -> bool {
    matches!(error, stratann::Error::Tier(TierError::InUse { .. }))
}

/// Begins merges in the background, if wanted.
fn merge_when_due(
    live: &Opened<LiveIndex>,
    changes: Changes,
) -> Result<Option<Merger>, stratann::Error> {
    let merges = changes.merges;
    merges
        .then(|| live.value().merge_when_due(MergeWhen::default()))
        .transpose()
}
