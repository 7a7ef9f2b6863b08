//! What an object of Python has of an index: how it was opened for searching, and the writer of its folder, by which it goes while the process changes it.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::RwLock;
use pyo3::prelude::*;
use stratann::{OpenOptions, Opener, Progress, TierError};

use crate::arguments::shown;
use crate::errors::{StratannError, changing, to_python};
use crate::process::{Opened, detached, forked};
use crate::progress::{Listener, run, waited};
use crate::writer::{self, Changes, Held, Standing, UnderWay, User, Writer, reads_alike, watched};

/// The checkpoint that searches start from and, where the index is open for changes, what it has beside that: both of one moment.
pub type Now = (Arc<Opened<stratann::Index>>, Held);

/// An index that is open.
pub struct Handle {
    /// The process that opened it. In one that was forked from that, its locks may be held by threads that are not there: nobody waits for them.
    process: u32,
    user: User,
    /// As it was given, for messages.
    path: PathBuf,
    /// Where it is, wherever the process goes.
    home: PathBuf,
    opener: Opener,
    changes: Changes,
    seen: RwLock<Seen>,
}

/// What it knows.
#[derive(Clone)]
struct Seen {
    /// The index as it was opened for searching; `None` from when it was seen open for changes, since a merge gives the files back that nobody has
    /// open any more. Then the writer has one.
    index: Option<Arc<Opened<stratann::Index>>>,
    writer: Arc<Writer>,
    /// How often the writer had closed it by then.
    closes: u64,
}

impl Seen {
    /// An index that was just opened, when the writer of its folder had been closed so often. `None`: nobody has looked. `before` is what
    /// [`closes`](writer::closes) said before it was opened.
    fn new(
        py: Python<'_>,
        index: Arc<Opened<stratann::Index>>,
        closes: Option<u64>,
        before: u64,
    ) -> Self {
        let writer = Writer::of(py, &index);
        let closes = closes.unwrap_or_else(|| match writer.standing() {
            Some(Standing::Open(..)) => 0,
            // This writer may be new, and one that is gone may have changed the folder meanwhile.
            Some(Standing::Closed { closes: 0, .. }) if before == writer::closes() => 0,
            // Changes that were made while it was opened may not be in it. Then it is opened again when it is asked.
            Some(Standing::Closed { closes, .. }) => match index.is_current() {
                Ok(true) => closes,
                _ => u64::MAX,
            },
            // It is of this process, which has not forked since.
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
    /// Opens the index in the folder `path`.
    pub fn open(
        py: Python<'_>,
        path: PathBuf,
        options: &OpenOptions,
        changes: Changes,
    ) -> PyResult<Self> {
        let before = writer::closes();
        let index = py
            .detach(|| stratann::Index::open(&path, options))
            .map_err(to_python)?;
        Ok(Self::of(py, Arc::new(index), path, changes, before))
    }

    /// One that is open. `before` is what [`closes`](writer::closes) said before it was opened.
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
            opener: index.opener(),
            changes,
            seen: RwLock::new(Seen::new(py, watched(index), None, before)),
        }
    }

    /// Where it is, wherever the process goes.
    pub fn home(&self) -> &Path {
        &self.home
    }

    /// How it is opened again, in the place of what it goes by.
    fn opener_after(&self, index: Option<&Arc<Opened<stratann::Index>>>) -> Opener {
        let opener = self.opener.clone();
        match index {
            Some(index) => opener.instead_of(index.value()),
            None => opener,
        }
    }

    /// Whether this is the process that opened it.
    fn is_home(&self) -> bool {
        self.process == std::process::id()
    }

    /// The error of a forked process.
    fn forked(&self) -> PyErr {
        forked(&self.path, self.process, "stratann.open")
    }

    /// What it knows.
    fn seen(&self) -> PyResult<Seen> {
        if self.is_home() {
            return Ok(self.seen.read().clone());
        }
        match self.seen.try_read() {
            Some(seen) => Ok(seen.clone()),
            None => Err(self.forked()),
        }
    }

    /// What was opened last, of which the facts are asked that never change, such as the dimension.
    pub fn index(&self) -> PyResult<Arc<Opened<stratann::Index>>> {
        loop {
            let seen = self.seen()?;
            if let Some(index) = seen.index {
                return Ok(index);
            }
            // One of the two is always there; while the one takes the place of the other, both are.
            match seen.writer.standing() {
                Some(Standing::Open(live, _)) => return Ok(live),
                Some(Standing::Closed {
                    left: Some(left), ..
                }) => return Ok(left),
                Some(Standing::Closed { left: None, .. }) if self.is_home() => {}
                _ => return Err(self.forked()),
            }
        }
    }

    /// What searches go by now: all that calls of this process have acknowledged.
    pub fn now(&self, py: Python<'_>) -> PyResult<Now> {
        loop {
            let seen = self.seen()?;
            match seen.writer.standing() {
                Some(Standing::Open(live, held)) => {
                    if seen.index.is_some() {
                        self.let_go(&seen);
                    }
                    return Ok((live, held));
                }
                Some(Standing::Closed { closes, left }) => match seen.index {
                    Some(index) if seen.closes == closes => return Ok((index, Held::nothing())),
                    _ if self.is_home() => self.catch_up(py, closes, left)?,
                    _ => return Err(self.forked()),
                },
                None => return Err(self.forked()),
            }
        }
    }

    /// Gives up what was opened for searching, once the writer has something that takes its place.
    fn let_go(&self, seen: &Seen) {
        let mut now = self.seen.write();
        if Arc::ptr_eq(&now.writer, &seen.writer) {
            now.index = None;
        }
    }

    /// Goes on with what the writer left when it had been closed so often, or opens what stands there, where that was opened in another way.
    fn catch_up(
        &self,
        py: Python<'_>,
        closes: u64,
        left: Option<Arc<Opened<stratann::Index>>>,
    ) -> PyResult<()> {
        let (seen, before) = (self.seen()?, writer::closes());
        if let (Some(own), Some(left)) = (&seen.index, &left)
            && own.folder() != left.folder()
        {
            // Another index has taken the place of this one, which `refresh` shows.
            self.seen.write().closes = closes;
            return Ok(());
        }
        let alike = |left: &Arc<Opened<stratann::Index>>| {
            reads_alike(left.opener().options(), self.opener.options())
        };
        let index = match left.filter(alike) {
            Some(left) => left,
            None => {
                let open = || self.opener_after(seen.index.as_ref()).open(&self.home);
                let index = py.detach(open).map_err(to_python)?;
                watched(Arc::new(index))
            }
        };
        let same = Arc::ptr_eq(&seen.writer, &Writer::of(py, &index));
        *self.seen.write() = Seen::new(py, index, same.then_some(closes), before);
        Ok(())
    }

    /// Opens for reading what stands now where the index was opened, wherever the process has gone since.
    pub fn open_again(&self, py: Python<'_>) -> PyResult<()> {
        if !self.is_home() {
            return Err(self.forked());
        }
        let before = writer::closes();
        let opener = self.opener_after(Some(&self.index()?));
        let open = || opener.open(&self.home);
        let index = py.detach(open).map_err(to_python)?;
        *self.seen.write() = Seen::new(py, watched(Arc::new(index)), None, before);
        Ok(())
    }

    /// The index open for changes, if it is, by whichever object of this process.
    pub fn changing(&self) -> PyResult<Held> {
        match self.is_home() {
            true => Ok(self.seen()?.writer.changing()),
            false => Err(self.forked()),
        }
    }

    /// Whether this object has changed something, and not ended that.
    pub fn has_changed(&self) -> PyResult<bool> {
        match self.is_home() {
            true => Ok(self.seen()?.writer.is_used_by(self.user)),
            false => Err(self.forked()),
        }
    }

    /// The index open for changes, which takes the lock of its folder, for one change: it is not closed before that is done.
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
            // Nobody closes it from here on.
            let (index, _) = self.now(py)?;
            let seen = self.seen()?;
            if !Arc::ptr_eq(&writer, &seen.writer) {
                // What the last close left is another folder, which has taken the place of this one.
                continue;
            }
            let wanted = (self.opener.options(), self.changes);
            let open = |progress: &dyn Progress| {
                writer.open(self.user, index.value(), wanted, turn, progress)
            };
            let opened = waited(py, open)?;
            // With the lock given back: an error that is made waits for the interpreter.
            let opened = opened.map_err(|refused| changing(py, refused.into_python(&self.path)))?;
            self.let_go(&seen);
            return Ok(opened);
        }
    }

    /// Ends the changes of this object, and of all if no other one has changed something; then a merge that is due is made if it is to `finish`.
    pub fn end_changes(&self, py: Python<'_>, finish: bool) -> PyResult<()> {
        if !self.is_home() {
            return self.end_elsewhere();
        }
        let writer = self.seen()?.writer;
        if writer.changing().is_none() {
            return Ok(());
        }
        let listener = Listener::new(None)?;
        // Only this thread knows it: the work is done by another.
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
                "{}: it is being changed by the call from which this is called, as of a callback or the handler of a signal: close it when that is done, \
                 or raise an exception, which ends it",
                shown(&self.path)
            )));
        }
        Ok(())
    }

    /// The changes of a forked process' parent are the parent's: who makes them, and what merges them, are there.
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

    /// Has all locks while `work` is done.
    #[cfg(feature = "testing")]
    pub fn while_locked<T>(&self, work: impl FnOnce() -> T) -> T {
        let seen = self.seen.write();
        let writer = seen.writer.clone();
        writer.while_locked(work)
    }
}
