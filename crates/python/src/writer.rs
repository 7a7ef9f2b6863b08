//! What the objects of this process that have one folder open share: the index open for changes, while one of them changes it.
//!
//! ```text
//!   object a ──┐                    open for changes   by the first change, with the options of its object;
//!   object b ──┼──> Writer of the                      searches of all objects go by it
//!   object c ──┘    folder          closed             by the last object that changed something;
//!                                                      what that left is what the others go on with
//! ```
//!
//! A folder is known by its device and inode, so objects share it whatever paths they were opened by. A forked process has none of the threads of
//! its parent: what it opens has a writer of its own.

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

/// How long a close waits for searches of other threads. After that the lock of the folder is given back when they end.
const PATIENCE: Duration = Duration::from_secs(2);

/// How the index is opened for changes.
#[derive(Clone, Copy, Debug)]
pub struct Changes {
    /// When a change is durable.
    pub durability: Durability,
    /// Whether merges begin by themselves when they are due.
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

/// The writers of this process by device and inode of their folders. Locked for a moment, and only with the interpreter, so that no thread forks meanwhile.
static WRITERS: Mutex<BTreeMap<(u64, u64), Weak<Writer>>> = Mutex::new(BTreeMap::new());

/// How often this process has closed an index that was open for changes, of whatever folder.
static CLOSES: AtomicU64 = AtomicU64::new(0);

/// How often this process has closed an index, of whatever folder. Where that stays the same, whoever opens one meanwhile misses nothing that was closed.
pub fn closes() -> u64 {
    CLOSES.load(Ordering::SeqCst)
}

/// What the objects of one folder share.
pub struct Writer {
    /// The process whose threads change it.
    process: u32,
    /// Changes that are under way, for which a close waits.
    gate: Arc<Gate>,
    /// Held while it is opened for changes, which may take long.
    opening: Mutex<()>,
    /// Held by who closes it.
    closer: Mutex<()>,
    /// Held by an insert that is noted, so that it can go on where it is cut off: one at a time, since it is known again by its vectors.
    noted: Mutex<()>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// The index open for changes.
    live: Option<Arc<Opened<LiveIndex>>>,
    /// How it is.
    changes: Changes,
    /// The objects that have changed something since.
    users: Vec<User>,
    /// What merges it in the background.
    merger: Option<Merger>,
    /// What was closed last, which has the lock of its folder for as long as a search goes by it.
    closed: Option<Weak<Opened<LiveIndex>>>,
    /// What the last close left, open for reading; not while it is open for changes, since a merge gives the files back that nobody has open.
    left: Option<Arc<Opened<stratann::Index>>>,
    /// How often it was closed.
    closes: u64,
}

impl State {
    /// Takes note that what was open for changes is closed.
    fn has_closed(&mut self, live: &Arc<Opened<LiveIndex>>) {
        CLOSES.fetch_add(1, Ordering::SeqCst);
        self.closed = Some(Arc::downgrade(live));
        self.closes += 1;
        self.live = None;
    }
}

/// The index open for changes, if it is, as a thread of Python holds it for one call. A close that came meanwhile may have given it up. Then this holds the last
/// of it, and what that does at its end, such as a checkpoint, is done without the interpreter.
pub struct Held(Option<Arc<Opened<LiveIndex>>>);

impl Held {
    /// It is not open for changes.
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

/// How a folder stands at a moment.
pub enum Standing {
    /// Open for changes: all searches go by this, and by its checkpoint.
    Open(Arc<Opened<stratann::Index>>, Held),
    /// Nobody changes it through this process.
    Closed {
        /// How often it was closed. What was opened before the last time knows less than there is.
        closes: u64,
        /// What the last close left.
        left: Option<Arc<Opened<stratann::Index>>>,
    },
}

/// The index open for changes, for one change.
pub struct UnderWay {
    live: Arc<Opened<LiveIndex>>,
    /// Given back after `live`.
    turn: Turn,
}

impl UnderWay {
    /// The right to note an insert, until it is dropped. `None`: another thread has one under way.
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

/// The right to change something, until it is dropped. Where all objects have ended their changes meanwhile, the last one closes the index.
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
    /// The engine says so.
    Engine(stratann::Error),
    /// It is open with another option: its name and value, and the value that was wanted.
    Otherwise {
        option: &'static str,
        open: String,
        wanted: String,
        /// Whether it was closed, and only a search still goes by it.
        closed: bool,
    },
}

impl<E: Into<stratann::Error>> From<E> for Refused {
    fn from(error: E) -> Self {
        Self::Engine(error.into())
    }
}

impl Refused {
    /// The same of an index that was closed, and that a search still goes by.
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

    /// The exception for it; `path` is that of the object that wanted to change something.
    pub fn into_python(self, path: &Path) -> PyErr {
        match self {
            Self::Engine(error) => to_python(error),
            Self::Otherwise {
                option,
                open,
                wanted,
                closed: true,
            } => InUseError::new_err(format!(
                "{option}={wanted}: {} was closed in this process with {option}={open}, and a search or another call still reads by that. Call again when \
                 it is done, or open both objects alike",
                shown(path)
            )),
            Self::Otherwise {
                option,
                open,
                wanted,
                closed: false,
            } => InUseError::new_err(format!(
                "{option}={wanted}: {} is open for changes in this process with {option}={open}. Open both objects alike, or close the other one first",
                shown(path)
            )),
        }
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        // Before the index that it merges.
        // Nobody else has this, so no lock is taken: a thread of the process that this was forked from may have held it.
        self.state.get_mut().merger.take();
    }
}

/// What options say that a caller may give, by their names.
fn named(open: &OpenOptions, changes: Changes) -> [(&'static str, String); 8] {
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
    let watch = open.watch_recall.as_ref();
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
        (
            "watch_recall",
            or_none(watch.map(|watch| watch.queries().to_string())),
        ),
        ("durability", durability),
        ("merges", boolean(changes.merges).into()),
    ]
}

/// An index that is open for searching. If it has a watch, a thread measures how much its searches find.
pub fn watched(index: Arc<stratann::Index>) -> Arc<Opened<stratann::Index>> {
    if index.options().watch_recall.is_some() {
        // Where the system has no thread, `stats` tells.
        index.measure_recall_in_background().ok();
    }
    Arc::new(Opened::new(index))
}

/// Whether two objects read a folder alike.
pub fn reads_alike(one: &OpenOptions, other: &OpenOptions) -> bool {
    named(one, Changes::default()) == named(other, Changes::default())
}

impl Writer {
    /// That of the folder of an index, which all objects of this process share.
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

    /// Whether it is of this process, and not of the one that this was forked from.
    fn is_home(&self) -> bool {
        self.process == std::process::id()
    }

    /// How the folder stands now. `None`: this is a forked process, and its parent has it open for changes, or is just about to have it.
    pub fn standing(&self) -> Option<Standing> {
        let state = match self.is_home() {
            true => self.state.lock(),
            // Who has it may be a thread that is not here, and so may be who has a lock of what is open for changes.
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

    /// Has all locks while `work` is done.
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

    /// Whether an object has changed something since it is open for changes.
    pub fn is_used_by(&self, user: User) -> bool {
        self.state.lock().users.contains(&user)
    }

    /// Whether this thread changes something just now, which it is called from.
    pub fn is_under_way_here(&self) -> bool {
        self.gate.is_under_way_here()
    }

    /// Waits for a moment at most while it is closed; `None` if that was not enough.
    pub fn enter(self: &Arc<Self>) -> Option<Turn> {
        let pass = self.gate.enter()?;
        Some(Turn {
            writer: self.clone(),
            pass: Some(pass),
        })
    }

    /// The index open for changes, which takes the lock of its folder, for one change of an object: it is not closed before that is done. `index` is how
    /// the object has it open, and `wanted` how it wants it. `progress` may end what it waits for: others that open it, and memory of a catalog.
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
        // One that was closed, and that a search of another thread still goes by, has the lock.
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
                    // It is let go here. It ends when the search does.
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
        if live.index().options().watch_recall.is_some() {
            // Where the system has no thread, `stats` tells.
            live.value().measure_recall_in_background().ok();
        }
        let merger = merge_when_due(&live, changes)?;
        let mut state = self.state.lock();
        state.merger = merger;
        state.changes = changes;
        state.users.push(user);
        state.left = None;
        state.live = Some(live.clone());
        Ok(UnderWay { live, turn })
    }

    /// Ends the changes of an object, as [`close_in_turn`](Self::close_in_turn) does, and those of objects that nobody has any more by then.
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

    /// Ends the changes of an object from within a change, which cannot close the index. Whether it was left to others; if not, all is as before.
    pub fn leave_from_within(&self, user: User) -> Result<bool, stratann::Error> {
        match self.live() {
            Some(live) => self.leave(user, &live),
            None => Ok(true),
        }
    }

    /// Ends the changes of an object. If others have changed something, too, they go on, and what was changed is made durable. The last one closes the
    /// index once nobody changes it. Where it is to `finish`, a merge that is due is made before that, while changes go on, unless `progress` ends
    /// it. All that was acknowledged is found all the time: searches go by what is closed until it is open for reading. `home` is where the object
    /// has the folder, which may have been moved since it was opened for changes.
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
        // What merges is ended, or ends its merge, before anything is closed.
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
        // Where it takes no changes any more, or another has its place, there is nothing to stay with.
        let stays = matches!(live.is_current(), Ok(true));
        let opened = match &flushed {
            Err(_) if stays => None,
            _ => {
                let place = if stays { live.path() } else { home };
                Some(live.index().opener().open(place))
            }
        };
        let index = match opened {
            Some(Ok(index)) => watched(Arc::new(index)),
            // It stays open for changes, as searches have nothing else that knows of these.
            not => {
                self.merge_again(&live, changes);
                return flushed.and(not.map_or(Ok(()), |not| not.map(drop)));
            }
        };
        self.put_away(&live, &index);
        // Who drops it last gives the lock back: that is to be now, as soon as searches that go by it are done.
        let is_shared = || Arc::strong_count(&live) > 1 || Arc::strong_count(live.value()) > 1;
        let began = Instant::now();
        while is_shared() && began.elapsed() < PATIENCE && !progress.interrupted() {
            std::thread::sleep(Duration::from_millis(1));
        }
        drop(live);
        // It made a checkpoint at its end. What is open knows all of it, and may not be there when somebody else changes the index.
        if let Ok(false) = index.is_current()
            && let Ok(last) = index.opener().open(index.path())
        {
            let mut state = self.state.lock();
            state.closes += 1;
            state.left = Some(watched(Arc::new(last)));
        }
        flushed
    }

    /// Ends the changes of an object that nobody has any more. Whether it was the last one: then [`close_if_left`](Self::close_if_left) is to follow.
    pub fn forsake(&self, user: User) -> bool {
        if !self.is_home() {
            return false;
        }
        self.state.lock().users.retain(|&other| other != user);
        self.is_left()
    }

    /// Whether it is open for changes, and no object has changed something that has not ended its changes.
    fn is_left(&self) -> bool {
        if !self.is_home() {
            return false;
        }
        let state = self.state.lock();
        state.live.is_some() && state.users.is_empty()
    }

    /// What an object leaves that alone has the folder open: what merges the index, and the index, which is closed when it is dropped. `None`: others have the folder
    /// open. With the interpreter nobody else gets this writer meanwhile, who would find neither this index nor one that takes its place.
    pub fn take_alone(self: &Arc<Self>) -> Option<(Option<Merger>, Arc<Opened<LiveIndex>>)> {
        if Arc::strong_count(self) > 1 {
            return None;
        }
        let mut state = self.state.lock();
        let live = state.live.clone()?;
        state.has_closed(&live);
        Some((state.merger.take(), live))
    }

    /// Closes what all objects have left, and makes no merge. It waits for nobody: where a change is under way, or another thread closes, that one does this
    /// at its end.
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
            Ok(index) => self.put_away(&live, &watched(Arc::new(index))),
            // Nobody hears of an error here. Others find it as it is, and whichever of them closes it is told what is wrong.
            Err(_) => self.merge_again(&live, changes),
        }
    }

    /// Whether objects beside this one have changed something.
    pub fn has_others(&self, user: User) -> bool {
        self.state.lock().users.iter().any(|&other| other != user)
    }

    /// Leaves an index open for changes to the others. What this object has changed is durable then. `false`: there are none, and it stays.
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

    /// Puts what is open for reading in the place of what was open for changes.
    fn put_away(&self, live: &Arc<Opened<LiveIndex>>, index: &Arc<Opened<stratann::Index>>) {
        let mut state = self.state.lock();
        state.has_closed(live);
        state.left = Some(index.clone());
        state.users.clear();
    }

    /// Goes on merging in the background where a close was broken off: without it changes go on all the same.
    fn merge_again(&self, live: &Opened<LiveIndex>, changes: Changes) {
        if let Ok(merger) = merge_when_due(live, changes) {
            self.state.lock().merger = merger;
        }
    }
}

/// Refuses an object whose options are others than those that the index is open for changes with.
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

/// Opens for changes what stands there now. What this process has closed gives the lock back when the last search that goes by it is done.
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

/// Whether another one has the lock of the folder.
fn is_in_use(error: &stratann::Error) -> bool {
    matches!(error, stratann::Error::Tier(TierError::InUse { .. }))
}

/// Begins to merge in the background, if that is wanted.
fn merge_when_due(
    live: &Opened<LiveIndex>,
    changes: Changes,
) -> Result<Option<Merger>, stratann::Error> {
    let merges = changes.merges;
    merges
        .then(|| live.value().merge_when_due(MergeWhen::default()))
        .transpose()
}
