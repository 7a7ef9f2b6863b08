//! A writer belongs to a folder. All objects of this process that have the folder open share the
//! writer. While one of them changes the index, the writer has the index open for changes.
//!
//! ```text
//!   object a ──┐                    open for changes   by the first change, with its options;
//!   object b ──┼──> Writer of the                      searches of all objects use it
//!   object c ──┘    folder          closed             by the last object that made a change;
//!                                                      the others continue with the result
//! ```
//!
//! A folder is identified by its device and inode, so objects share a writer even if they were
//! opened with different paths. A forked process has none of the threads of its parent, so it makes
//! a new writer.

use std::collections::BTreeMap;
use std::ops::Deref;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};
use pyo3::prelude::*;
use stratann::{
    CacheSize, DirectOptions, Durability, LiveIndex, MergeWhen, Merger, OpenOptions, Opener,
    Progress, TierError, WriteOptions,
};

use crate::arguments::shown;
use crate::errors::{InUseError, to_python};
use crate::gate::{Gate, LOOK, Pass};
use crate::process::{Opened, detached};

/// How long a close waits for searches of other threads. After that, the last of these searches
/// releases the lock of the folder.
const PATIENCE: Duration = Duration::from_secs(2);

#[derive(Clone, Copy, Debug)]
pub struct Changes {
    pub durability: Durability,
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

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct User(pub u64);

/// The writers of this process by device and inode of their folders. A thread locks the map only
/// briefly and while it has the interpreter's lock, so that no thread forks meanwhile.
static WRITERS: Mutex<BTreeMap<(u64, u64), Weak<Writer>>> = Mutex::new(BTreeMap::new());

static CLOSES: AtomicU64 = AtomicU64::new(0);

/// The number of closes of indexes that were open for changes, in this process. If the number is
/// the same before and after an index is opened, there was no close in between.
pub fn closes() -> u64 {
    CLOSES.load(Ordering::SeqCst)
}

pub struct Writer {
    process: u32,
    /// Changes in progress, for which a close waits.
    gate: Arc<Gate>,
    /// Locked while a thread opens the index for changes, which may take long.
    opening: Mutex<()>,
    closer: Mutex<()>,
    /// Locked by the thread that opens the result of the last close again. Meanwhile, searches use
    /// the result itself.
    completer: Mutex<()>,
    /// Locked during an insert that is recorded, so that it can be resumed after a kill. Such an
    /// insert is recognised by its vectors, so there is one at a time.
    noted: Mutex<()>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    live: Option<Arc<Opened<LiveIndex>>>,
    changes: Changes,
    /// Whether the index is unpacked once it is closed, if its memory suffices. An index open for
    /// changes never is.
    unpack: bool,
    /// The objects that have made changes since `live` was opened.
    users: Vec<User>,
    merger: Option<Merger>,
    /// The index that was closed last. While a search uses this index, its folder stays locked.
    closed: Option<Weak<Opened<LiveIndex>>>,
    /// The result of the last close, open for reading. `None` while the index is open for changes,
    /// since a merge frees files that are not open.
    left: Option<Arc<Opened<stratann::Index>>>,
    closes: u64,
}

impl State {
    /// Whether `index` is the result of the last close.
    fn has_left(&self, index: &Arc<Opened<stratann::Index>>) -> bool {
        self.left
            .as_ref()
            .is_some_and(|left| Arc::ptr_eq(left, index))
    }

    /// Records that the index open for changes is closed.
    fn has_closed(&mut self, live: &Arc<Opened<LiveIndex>>) {
        CLOSES.fetch_add(1, Ordering::SeqCst);
        self.closed = Some(Arc::downgrade(live));
        self.closes += 1;
        self.live = None;
    }
}

/// The index open for changes, if there is one, for one call of a Python thread. After a close,
/// this may be the last reference. Then dropping it, which may write a checkpoint, runs without the
/// interpreter's lock.
pub struct Held(Option<Arc<Opened<LiveIndex>>>);

impl Held {
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

/// Whether this process has the index of a folder open for changes.
pub enum Standing {
    /// Open for changes: all searches use this checkpoint and this open index.
    Open(Arc<Opened<stratann::Index>>, Held),
    Closed {
        /// The number of closes. An index that was opened before the last close is out of date.
        closes: u64,
        left: Option<Arc<Opened<stratann::Index>>>,
    },
}

pub struct UnderWay {
    live: Arc<Opened<LiveIndex>>,
    /// Released after `live`.
    turn: Turn,
}

impl UnderWay {
    /// The right to record an insert, until the guard is dropped. `None`: another thread has a
    /// recorded insert in progress.
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

/// The right to make a change, until this value is dropped. If all objects have ended their changes
/// by then, the drop closes the index.
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

#[derive(Debug)]
pub enum Refused {
    Engine(stratann::Error),
    /// The index is open with another value of an option: the option's name, this value, and the
    /// value of the object that wants to change the index.
    Otherwise {
        option: &'static str,
        open: String,
        wanted: String,
        /// Whether the index was closed, and stays open only because a search still uses it.
        closed: bool,
    },
}

impl<E: Into<stratann::Error>> From<E> for Refused {
    fn from(error: E) -> Self {
        Self::Engine(error.into())
    }
}

impl Refused {
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

    /// The exception. `path`: the path of the object that wants to make a change.
    pub fn into_python(self, path: &Path) -> PyErr {
        match self {
            Self::Engine(error) => to_python(error),
            Self::Otherwise {
                option,
                open,
                wanted,
                closed: true,
            } => InUseError::new_err(format!(
                "{option}={wanted}: {} was closed in this process with {option}={open}, and a search or another call still uses it. Call again when \
                 that is done, or open both objects with the same options",
                shown(path)
            )),
            Self::Otherwise {
                option,
                open,
                wanted,
                closed: false,
            } => InUseError::new_err(format!(
                "{option}={wanted}: {} is open for changes in this process with {option}={open}. Open both objects with the same options, or close the other object first",
                shown(path)
            )),
        }
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        // The merger ends before the index that it merges. `get_mut` takes no lock: in a forked
        // process, a thread of the parent may have locked the state.
        let merger = self.state.get_mut().merger.take();
        match self.is_home() {
            // The drop may wait for a merge.
            true => detached(move || drop(merger)),
            false => drop(merger),
        }
    }
}

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

/// Whether an index that was opened with the options `one` serves an object with the options
/// `other`, because the options and the samples of live recall are equal.
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
                completer: Mutex::default(),
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

    fn is_home(&self) -> bool {
        self.process == std::process::id()
    }

    /// Whether the index is open for changes now. `None`: this is a forked process, and its parent
    /// had the index open for changes, or was just opening it.
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

    #[cfg(feature = "testing")]
    pub fn while_locked<T>(&self, work: impl FnOnce() -> T) -> T {
        let _opening = self.opening.lock();
        let _closer = self.closer.lock();
        let _state = self.state.lock();
        work()
    }

    pub fn changing(&self) -> Held {
        Held(self.live())
    }

    fn live(&self) -> Option<Arc<Opened<LiveIndex>>> {
        self.state.lock().live.clone()
    }

    /// Whether the object `user` has made changes since the index was opened for changes.
    pub fn is_used_by(&self, user: User) -> bool {
        self.state.lock().users.contains(&user)
    }

    /// Whether this call comes from a change of this thread, for example from its callback.
    pub fn is_under_way_here(&self) -> bool {
        self.gate.is_under_way_here()
    }

    /// Begins a change. If another thread is closing the index, waits briefly. `None` if that
    /// thread is still closing it after this time.
    pub fn enter(self: &Arc<Self>) -> Option<Turn> {
        let pass = self.gate.enter()?;
        Some(Turn {
            writer: self.clone(),
            pass: Some(pass),
        })
    }

    /// The index open for changes, for one change of an object. Opens it if necessary, which takes
    /// the lock of its folder. The index stays open until the change is done. `index`: the object's
    /// index; `wanted`: the object's options. `progress` may end two waits: for another thread that
    /// opens the index, and for memory of a catalog.
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
            if let Some(live) = &live {
                live.index().check_form(index.form())?;
            }
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
        // If a search of another thread still uses a closed index, the folder is still locked.
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
                    // This reference is dropped. The closed index ends when the search ends.
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
        state.unpack = wanted.0.unpack;
        state.users.push(user);
        state.left = None;
        state.live = Some(live.clone());
        Ok(UnderWay { live, turn })
    }

    /// Ends the changes of an object, as [`close_in_turn`](Self::close_in_turn) does. If all other
    /// objects were freed meanwhile, closes the index after that.
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

    /// Ends the changes of an object from code that runs within a change, and that cannot close the
    /// index. Returns whether other objects continue. If no other object does, the call does
    /// nothing.
    pub fn leave_from_within(&self, user: User) -> Result<bool, stratann::Error> {
        match self.live() {
            Some(live) => self.leave(user, &live),
            None => Ok(true),
        }
    }

    /// Ends the changes that a Python object makes. If other objects change the same index, all
    /// changes so far become durable, and the index stays open. Otherwise closes the index once no
    /// change is in progress.
    ///
    /// With `finish`, the call first merges if a merge is due. Changes continue during the merge,
    /// and `progress` may end it. All acknowledged changes stay visible: searches use the index
    /// open for changes until the closed index is open for reading. `home`: the path with which the
    /// object opened the folder; the folder may have been moved since.
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
        // Before the index is closed, the merger ends; with `finish`, it first completes its merge.
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
        // If the index accepts no more changes, or another index has replaced it, it must not stay
        // open.
        let stays = matches!(live.is_current(), Ok(true));
        let opened = match &flushed {
            Err(_) if stays => None,
            // The index is unpacked only after the folder's lock is released, since this takes
            // long, and since another checkpoint may follow.
            _ => {
                let place = if stays { live.path() } else { home };
                Some(live.index().opener().unpacking(false).open(place))
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
        // The drop of the last reference releases the lock. So that `drop(live)` drops the last
        // reference, the close first waits for searches that have other references.
        let is_shared = || Arc::strong_count(&live) > 1 || Arc::strong_count(live.value()) > 1;
        let began = Instant::now();
        while is_shared() && began.elapsed() < PATIENCE && !progress.interrupted() {
            std::thread::sleep(Duration::from_millis(1));
        }
        drop(live);
        // The drop may have written a checkpoint. Then `index` has all changes, but an older
        // checkpoint, whose files another process may remove.
        let unpack = self.state.lock().unpack;
        if unpack && index.would_unpack() || matches!(index.is_current(), Ok(false)) {
            // The index is closed, so an interruption or an error leaves nothing to do. The next
            // search opens the index again.
            let opener = index.opener().unpacking(unpack);
            let _reported_by_the_next_search = self.complete(&index, &opener, progress);
        }
        flushed
    }

    /// Replaces `left`, the result of the last close, by the index that `opener` opens: of the last
    /// checkpoint, and unpacked. Returns `false` if another thread is doing this now.
    ///
    /// # Errors
    /// The index cannot be opened, or `progress` ends the call. The objects of the folder still use
    /// `left`, and try again.
    pub fn complete(
        &self,
        left: &Arc<Opened<stratann::Index>>,
        opener: &Opener,
        progress: &dyn Progress,
    ) -> Result<bool, stratann::Error> {
        let Some(_one) = self.completer.try_lock() else {
            return Ok(false);
        };
        if !self.has_left(left) {
            return Ok(true);
        }
        let opened = opener.open_observed(left.path(), progress);
        let mut state = self.state.lock();
        if state.has_left(left) {
            state.closes += 1;
            if let Ok(index) = opened {
                state.left = Some(Arc::new(Opened::new(Arc::new(index))));
                return Ok(true);
            }
        }
        opened.map(|_| true)
    }

    /// Whether `index` is the result of the last close.
    fn has_left(&self, index: &Arc<Opened<stratann::Index>>) -> bool {
        self.state.lock().has_left(index)
    }

    /// Ends the changes of an object that was freed. Returns whether it was the last object with
    /// changes. Then the caller must call [`close_if_left`](Self::close_if_left).
    pub fn forsake(&self, user: User) -> bool {
        if !self.is_home() {
            return false;
        }
        self.state.lock().users.retain(|&other| other != user);
        self.is_left()
    }

    fn is_left(&self) -> bool {
        if !self.is_home() {
            return false;
        }
        let state = self.state.lock();
        state.live.is_some() && state.users.is_empty()
    }

    /// Takes the merger and the index of an object that alone has the folder open. Dropping the
    /// index closes it. `None`: other objects have the folder open. The caller has the
    /// interpreter's lock, so that no other object can get this writer, which no longer has an
    /// index.
    pub fn take_alone(self: &Arc<Self>) -> Option<(Option<Merger>, Arc<Opened<LiveIndex>>)> {
        if Arc::strong_count(self) > 1 {
            return None;
        }
        let mut state = self.state.lock();
        let live = state.live.clone()?;
        state.has_closed(&live);
        Some((state.merger.take(), live))
    }

    /// If all objects have ended their changes, closes the index without a merge. The next search
    /// unpacks the index, if its memory suffices, since no signal could end that here. The call
    /// never waits: if a change or another close is in progress, its end closes the index.
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
        let open = || live.index().opener().unpacking(false).open(live.path());
        match flushed.and_then(|()| open()) {
            Ok(index) => self.put_away(&live, &Arc::new(Opened::new(Arc::new(index)))),
            // No caller gets this error. The index stays open for changes, and the next object that
            // closes it gets the error.
            Err(_) => self.merge_again(&live, changes),
        }
    }

    pub fn has_others(&self, user: User) -> bool {
        self.state.lock().users.iter().any(|&other| other != user)
    }

    /// Makes this object's changes durable, and ends them. The index stays open for the changes of
    /// other objects. `false`: there are no other objects, and this object's changes were not
    /// ended.
    fn leave(&self, user: User, live: &Opened<LiveIndex>) -> Result<bool, stratann::Error> {
        if self.is_used_by(user) {
            live.flush()?;
        }
        // The other objects may have ended their changes during the flush.
        let mut state = self.state.lock();
        let has_others = state.users.iter().any(|&other| other != user);
        if has_others {
            state.users.retain(|&other| other != user);
        }
        Ok(has_others)
    }

    /// Replaces `live`, the index that was open for changes, by `index`, which is open for reading.
    fn put_away(&self, live: &Arc<Opened<LiveIndex>>, index: &Arc<Opened<stratann::Index>>) {
        let mut state = self.state.lock();
        state.has_closed(live);
        state.left = Some(index.clone());
        state.users.clear();
    }

    /// Resumes merges in the background after an incomplete close. If this fails, changes continue.
    fn merge_again(&self, live: &Opened<LiveIndex>, changes: Changes) {
        if let Ok(merger) = merge_when_due(live, changes) {
            self.state.lock().merger = merger;
        }
    }
}

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

/// Opens the folder for changes. If this process has closed the index, a search may still use it,
/// so that the folder is still locked. Then waits up to [`PATIENCE`] for the end of such searches.
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

fn merge_when_due(
    live: &Opened<LiveIndex>,
    changes: Changes,
) -> Result<Option<Merger>, stratann::Error> {
    let merges = changes.merges;
    merges
        .then(|| live.value().merge_when_due(MergeWhen::default()))
        .transpose()
}
