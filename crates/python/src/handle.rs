//! A Python object's access to an index: the index that the object opened for searching, and the
//! writer of its folder. While this process changes the index, searches use the index in the
//! writer.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::{Mutex, RwLock};
use pyo3::prelude::*;
use stratann::{
    Element, Filter, LiveIndex, LiveRecall, Metric, OpenOptions, Opener, Progress, RecallWatch,
    SearchOptions, TierError, VectorSource,
};

use crate::arguments::shown;
use crate::errors::{StratannError, changing, to_python};
use crate::process::{Opened, detached, forked};
use crate::progress::{Listener, run, waited};
use crate::writer::{self, Changes, Held, Standing, UnderWay, User, Writer, reads_alike};

/// A checkpoint and, if the index is open for changes, the later changes, both as of the same time.
pub type Now = (Arc<Opened<stratann::Index>>, Held);

pub struct Handle {
    /// The process that opened the index. A forked process never waits for the locks here, since
    /// threads that do not exist in it may hold them.
    process: u32,
    user: User,
    /// The path as given, for messages.
    path: PathBuf,
    /// The absolute path, which stays valid if the process changes its directory.
    home: PathBuf,
    /// The form of the vectors. If the folder gets an index of another form, this object neither
    /// searches nor changes that index.
    form: (usize, Element, Metric),
    opener: Opener,
    changes: Changes,
    seen: RwLock<Seen>,
    /// The index open for changes that measures this object's sample of live recall. Other objects
    /// may use this index after this object is dropped.
    measuring: Mutex<Weak<LiveIndex>>,
}

/// The index and the writer that the object used last.
#[derive(Clone)]
struct Seen {
    /// The index as opened for searching. `None` once the object has found the index of the writer,
    /// because a merge frees the space only of files that are not open.
    index: Option<Arc<Opened<stratann::Index>>>,
    writer: Arc<Writer>,
    /// The writer's number of closes when the object took `index`.
    closes: u64,
}

impl Seen {
    /// For an index that was just opened. `closes`: the number of closes of its folder's writer;
    /// `None` if unknown. `before`: the value of [`closes`](writer::closes) before the index was
    /// opened.
    fn new(
        py: Python<'_>,
        index: Arc<Opened<stratann::Index>>,
        closes: Option<u64>,
        before: u64,
    ) -> Self {
        let writer = Writer::of(py, &index);
        let closes = closes.unwrap_or_else(|| match writer.standing() {
            Some(Standing::Open(..)) => 0,
            // The writer may be new, and an earlier writer may have changed the folder during the
            // opening.
            Some(Standing::Closed { closes: 0, .. }) if before == writer::closes() => 0,
            // The opened index may lack changes made during the opening. Then the next call opens
            // it again.
            Some(Standing::Closed { closes, .. }) => match index.is_current() {
                Ok(true) => closes,
                _ => u64::MAX,
            },
            // Impossible: the writer belongs to this process.
            None => u64::MAX,
        });
        Self {
            index: Some(index),
            writer,
            closes,
        }
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        if self.is_home()
            && let Some(watch) = self.watch().cloned()
        {
            let live = self.measuring.get_mut().upgrade();
            let index = self.seen.get_mut().index.clone();
            // The closure waits for threads.
            detached(move || {
                if let Some(live) = live {
                    live.end_measurements_by(&watch);
                }
                if let Some(index) = index {
                    index.end_measurements();
                }
            });
        }
        let writer = &self.seen.get_mut().writer;
        if writer.forsake(self.user) {
            match writer.take_alone() {
                Some(last) => detached(move || drop(last)),
                None => detached(|| writer.close_if_left()),
            }
        }
    }
}

impl Handle {
    pub fn open(
        py: Python<'_>,
        path: PathBuf,
        options: &OpenOptions,
        changes: Changes,
    ) -> PyResult<Self> {
        let before = writer::closes();
        let open =
            |progress: &dyn Progress| stratann::Index::open_observed(&path, options, progress);
        let index = waited(py, open)?.map_err(to_python)?;
        Ok(Self::of(py, Arc::new(index), path, changes, before))
    }

    /// For an index that is open already. `before`: the value of [`closes`](writer::closes) before
    /// the index was opened.
    pub fn of(
        py: Python<'_>,
        index: Arc<stratann::Index>,
        path: PathBuf,
        changes: Changes,
        before: u64,
    ) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Self {
            process: std::process::id(),
            user: User(NEXT.fetch_add(1, Ordering::Relaxed)),
            path,
            home: index.path().to_owned(),
            form: index.form(),
            opener: index.opener(),
            changes,
            seen: RwLock::new(Seen::new(py, Arc::new(Opened::new(index)), None, before)),
            measuring: Mutex::default(),
        }
    }

    fn watch(&self) -> Option<&RecallWatch> {
        self.opener.options().watch_recall.as_ref()
    }

    /// Offers the queries of a search of this object to the object's sample. The index does not do
    /// this, since other objects search it, too.
    pub fn has_served(
        &self,
        queries: &dyn VectorSource,
        options: &SearchOptions,
        filter: Option<&Filter>,
    ) {
        if let Some(watch) = self.watch() {
            watch.has_served(queries, options, filter);
        }
    }

    pub fn live_recall(&self) -> Option<LiveRecall> {
        self.watch().map(RecallWatch::found)
    }

    pub fn measure_recall(
        &self,
        index: &stratann::Index,
        live: Option<&LiveIndex>,
        progress: &dyn Progress,
    ) -> Result<LiveRecall, stratann::Error> {
        let watch = self.watch().ok_or_else(RecallWatch::missing)?;
        match live {
            Some(live) => live.measure_recall_by(watch, progress),
            None => index.measure_recall(progress),
        }
    }

    /// Lets the index that this object searches now measure the object's sample. `index`: the index
    /// open for reading; `live`: the index open for changes, if there is one. The caller is in this
    /// object's process.
    fn go_on_measuring(
        &self,
        py: Python<'_>,
        index: &Arc<stratann::Index>,
        live: Option<&Opened<LiveIndex>>,
    ) {
        let Some(watch) = self.watch() else {
            return;
        };
        // If no thread can be started, `stats` shows that the measurement is missing, and the next
        // search tries again. Starting a thread may wait for another thread, so it is done
        // detached.
        match live.map(Opened::value) {
            Some(live) if live.is_measured_by(watch) => {}
            Some(live) => {
                let started = py.detach(|| live.measure_recall_in_background_by(watch));
                if started.is_ok() {
                    *self.measuring.lock() = Arc::downgrade(live);
                }
            }
            None if index.is_measured() => {}
            None => {
                py.detach(|| index.measure_recall_in_background()).ok();
            }
        }
    }

    /// The absolute path, which stays valid if the process changes its directory.
    pub fn home(&self) -> &Path {
        &self.home
    }

    /// The opener that opens the index again, to replace `index`.
    fn opener_after(&self, index: Option<&Arc<Opened<stratann::Index>>>) -> Opener {
        let opener = self.opener.clone();
        match index {
            Some(index) => opener.instead_of(index.value()),
            None => opener,
        }
    }

    fn is_home(&self) -> bool {
        self.process == std::process::id()
    }

    fn forked(&self) -> PyErr {
        forked(&self.path, self.process, "stratann.open")
    }

    fn seen(&self) -> PyResult<Seen> {
        if self.is_home() {
            return Ok(self.seen.read().clone());
        }
        match self.seen.try_read() {
            Some(seen) => Ok(seen.clone()),
            None => Err(self.forked()),
        }
    }

    /// The index that was opened last, for properties that never change, such as the dimension.
    pub fn index(&self) -> PyResult<Arc<Opened<stratann::Index>>> {
        loop {
            let seen = self.seen()?;
            if let Some(index) = seen.index {
                return Ok(index);
            }
            // The writer has at least one of `live` and `left`, and both for a moment.
            let index = match seen.writer.standing() {
                Some(Standing::Open(live, _)) => live,
                Some(Standing::Closed {
                    left: Some(left), ..
                }) => left,
                Some(Standing::Closed { left: None, .. }) if self.is_home() => continue,
                _ => return Err(self.forked()),
            };
            index.check_form(self.form).map_err(to_python)?;
            return Ok(index);
        }
    }

    /// The index and changes for a search now. They contain all changes that calls of this process
    /// have acknowledged.
    pub fn now(&self, py: Python<'_>) -> PyResult<Now> {
        loop {
            let seen = self.seen()?;
            match seen.writer.standing() {
                Some(Standing::Open(live, held)) => {
                    if let Err(other) = live.check_form(self.form) {
                        let own = seen.index.ok_or_else(|| to_python(other))?;
                        return Ok((own, Held::nothing()));
                    }
                    self.go_on_measuring(py, live.value(), held.as_deref());
                    if seen.index.is_some() {
                        self.let_go(py, seen);
                    }
                    return Ok((live, held));
                }
                Some(Standing::Closed { closes, left }) => match seen.index {
                    Some(index) if seen.closes == closes => {
                        if self.is_home() {
                            self.go_on_measuring(py, index.value(), None);
                        }
                        return Ok((index, Held::nothing()));
                    }
                    _ if self.is_home() => self.catch_up(py, closes, left)?,
                    _ => return Err(self.forked()),
                },
                None => return Err(self.forked()),
            }
        }
    }

    /// Drops the index that was opened for searching, once the writer has one in its place.
    fn let_go(&self, py: Python<'_>, seen: Seen) {
        let mut now = self.seen.write();
        let same = Arc::ptr_eq(&now.writer, &seen.writer);
        let index = now.index.take_if(|_| same);
        drop(now);
        if index.is_some() {
            // Dropped while no lock is held, since the drop may close an index.
            py.detach(|| drop((index, seen)));
        }
    }

    /// Continues with `left`, the index that the writer left after `closes` closes. If `left` was
    /// opened with other options, or was not unpacked, opens the folder again.
    fn catch_up(
        &self,
        py: Python<'_>,
        closes: u64,
        left: Option<Arc<Opened<stratann::Index>>>,
    ) -> PyResult<()> {
        let (seen, before) = (self.seen()?, writer::closes());
        if let (Some(own), Some(left)) = (&seen.index, &left)
            && (own.folder() != left.folder() || left.check_form(self.form).is_err())
        {
            // Another index has replaced the index of this object. Only `refresh` makes the object
            // use it.
            self.seen.write().closes = closes;
            return Ok(());
        }
        let opener = self.opener_after(seen.index.as_ref());
        let alike = left.filter(|left| reads_alike(left.opener().options(), opener.options()));
        if let Some(left) = &alike
            && opener.options().unpack
            && left.would_unpack()
        {
            let complete = |progress: &dyn Progress| seen.writer.complete(left, &opener, progress);
            if waited(py, complete)?.map_err(to_python)? {
                // The writer has another index now.
                return Ok(());
            }
        }
        let index = match alike {
            Some(left) => left,
            None => {
                let open = |progress: &dyn Progress| opener.open_observed(&self.home, progress);
                let index = waited(py, open)?.map_err(to_python)?;
                Arc::new(Opened::new(Arc::new(index)))
            }
        };
        if let Err(other) = index.check_form(self.form) {
            if seen.index.is_none() {
                return Err(to_python(other));
            }
            self.seen.write().closes = closes;
            return Ok(());
        }
        let same = Arc::ptr_eq(&seen.writer, &Writer::of(py, &index));
        self.see(py, Seen::new(py, index, same.then_some(closes), before));
        Ok(())
    }

    fn see(&self, py: Python<'_>, seen: Seen) {
        let before = std::mem::replace(&mut *self.seen.write(), seen);
        // Dropped while no lock is held, since the drop may close an index.
        py.detach(|| drop(before));
    }

    pub fn open_again(&self, py: Python<'_>) -> PyResult<()> {
        if !self.is_home() {
            return Err(self.forked());
        }
        let before = writer::closes();
        let own = self.index()?;
        let opener = self.opener_after(Some(&own));
        let open = |progress: &dyn Progress| opener.open_observed(&self.home, progress);
        let index = waited(py, open)?.map_err(to_python)?;
        index.check_form(self.form).map_err(to_python)?;
        let index = Arc::new(Opened::new(Arc::new(index)));
        self.see(py, Seen::new(py, index, None, before));
        Ok(())
    }

    pub fn changing(&self) -> PyResult<Held> {
        match self.is_home() {
            true => Ok(self.seen()?.writer.changing()),
            false => Err(self.forked()),
        }
    }

    pub fn has_changed(&self) -> PyResult<bool> {
        match self.is_home() {
            true => Ok(self.seen()?.writer.is_used_by(self.user)),
            false => Err(self.forked()),
        }
    }

    /// The index open for changes, for one change. Opens it if necessary, which takes the lock of
    /// its folder. The index stays open until the change is done.
    pub fn change(&self, py: Python<'_>) -> PyResult<UnderWay> {
        if !self.is_home() {
            return Err(self.forked());
        }
        loop {
            let writer = self.seen()?.writer;
            let turn = loop {
                match py.detach(|| writer.enter()) {
                    Some(turn) => break turn,
                    None => py.check_signals()?,
                }
            };
            // From here on, no thread can close the index.
            let (index, _) = self.now(py)?;
            let seen = self.seen()?;
            if !Arc::ptr_eq(&writer, &seen.writer) {
                // Another folder has replaced the folder of this object, and has another writer.
                continue;
            }
            let wanted = (self.opener.options(), self.changes);
            let open = |progress: &dyn Progress| {
                writer.open(self.user, index.value(), wanted, turn, progress)
            };
            let opened = waited(py, open)?;
            // The error becomes an exception only after all locks are released, since making an
            // exception waits for the interpreter.
            let opened = opened.map_err(|refused| changing(py, refused.into_python(&self.path)))?;
            self.let_go(py, seen);
            self.go_on_measuring(py, index.value(), Some(&*opened));
            return Ok(opened);
        }
    }

    /// Ends the changes of this object. If no other object is making changes, closes the index.
    /// With `finish`, merges before that if a merge is due.
    pub fn end_changes(&self, py: Python<'_>, finish: bool) -> PyResult<()> {
        if !self.is_home() {
            return self.end_elsewhere();
        }
        let writer = self.seen()?.writer;
        if writer.changing().is_none() {
            return Ok(());
        }
        let listener = Listener::new(None)?;
        // Checked on this thread, since `run` calls the closure on another thread.
        let within = writer.is_under_way_here();
        let ended = run(py, &listener, |progress| match within {
            true => writer.leave_from_within(self.user),
            false => {
                let object = (self.user, self.home.as_path());
                writer.close(object, finish, progress).map(|()| true)
            }
        });
        if !ended.map_err(|error| changing(py, error))? {
            return Err(StratannError::new_err(format!(
                "{}: the index is being changed by the call that runs this callback or signal handler. Close the index when that call is done, \
                 or raise an exception, which ends the call",
                shown(&self.path)
            )));
        }
        Ok(())
    }

    /// Ends changes in a forked process. They belong to the parent, which has the threads that
    /// merge.
    fn end_elsewhere(&self) -> PyResult<()> {
        let standing = self.seen().ok().and_then(|seen| seen.writer.standing());
        match standing {
            Some(Standing::Closed { .. }) => Ok(()),
            _ => Err(to_python(TierError::Forked {
                place: shown(&self.path),
                opener: self.process,
                here: std::process::id(),
            })),
        }
    }

    #[cfg(feature = "testing")]
    pub fn while_locked<T>(&self, work: impl FnOnce() -> T) -> T {
        let seen = self.seen.write();
        let writer = seen.writer.clone();
        writer.while_locked(work)
    }
}
