//! What an object of Python has of an index: how it was opened for searching, and the writer of its folder, by which it goes while the process changes it.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::RwLock;
use pyo3::prelude::*;
use stratann::OpenOptions;

use crate::arguments::shown;
use crate::errors::{StratannError, changing, to_python};
use crate::process::{Opened, detached};
use crate::progress::{Listener, run};
use crate::writer::{self, Changes, Held, Standing, UnderWay, User, Writer, reads_alike};

/// The checkpoint that searches start from and, where the index is open for changes, what it has beside that: both of one moment.
pub type Now = (Arc<Opened<stratann::Index>>, Held);

/// An index that is open.
pub struct Handle {
    user: User,
    /// As it was given, for messages.
    path: PathBuf,
    /// Where it is, wherever the process goes.
    home: PathBuf,
    options: OpenOptions,
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
            Standing::Open(..) => 0,
            // This writer may be new, and one that is gone may have changed the folder meanwhile.
            Standing::Closed { closes: 0, .. } if before == writer::closes() => 0,
            // Changes that were made while it was opened may not be in it. Then it is opened again when it is asked.
            Standing::Closed { closes, .. } => match index.is_current() {
                Ok(true) => closes,
                _ => u64::MAX,
            },
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
            user: User(NEXT.fetch_add(1, Ordering::Relaxed)),
            path,
            home: index.path().to_owned(),
            options: index.options().clone(),
            changes,
            seen: RwLock::new(Seen::new(py, Arc::new(Opened::new(index)), None, before)),
        }
    }

    /// Where it is, wherever the process goes.
    pub fn home(&self) -> &Path {
        &self.home
    }

    fn seen(&self) -> Seen {
        self.seen.read().clone()
    }

    /// What was opened last, of which the facts are asked that never change, such as the dimension.
    pub fn index(&self) -> Arc<Opened<stratann::Index>> {
        loop {
            let seen = self.seen();
            if let Some(index) = seen.index {
                return index;
            }
            // One of the two is always there; while the one takes the place of the other, both are.
            match seen.writer.standing() {
                Standing::Open(live, _) => return live,
                Standing::Closed {
                    left: Some(left), ..
                } => return left,
                Standing::Closed { left: None, .. } => {}
            }
        }
    }

    /// What searches go by now: all that calls of this process have acknowledged.
    pub fn now(&self, py: Python<'_>) -> PyResult<Now> {
        loop {
            let seen = self.seen();
            match seen.writer.standing() {
                Standing::Open(live, held) => {
                    if seen.index.is_some() {
                        self.let_go(&seen);
                    }
                    return Ok((live, held));
                }
                Standing::Closed { closes, left } => match seen.index {
                    Some(index) if seen.closes == closes => return Ok((index, Held::nothing())),
                    _ => self.catch_up(py, closes, left)?,
                },
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
        let (seen, before) = (self.seen(), writer::closes());
        if let (Some(own), Some(left)) = (&seen.index, &left)
            && own.folder() != left.folder()
        {
            // Another index has taken the place of this one, which `refresh` shows.
            self.seen.write().closes = closes;
            return Ok(());
        }
        let alike =
            |left: &Arc<Opened<stratann::Index>>| reads_alike(left.options(), &self.options);
        let index = match left.filter(alike) {
            Some(left) => left,
            None => {
                let open = || stratann::Index::open(&self.home, &self.options);
                let index = py.detach(open).map_err(to_python)?;
                Arc::new(Opened::new(Arc::new(index)))
            }
        };
        let same = Arc::ptr_eq(&seen.writer, &Writer::of(py, &index));
        *self.seen.write() = Seen::new(py, index, same.then_some(closes), before);
        Ok(())
    }

    /// Opens for reading what stands now where the index was opened, wherever the process has gone since.
    pub fn open_again(&self, py: Python<'_>) -> PyResult<()> {
        let before = writer::closes();
        let open = || stratann::Index::open(&self.home, &self.options);
        let index = py.detach(open).map_err(to_python)?;
        *self.seen.write() = Seen::new(py, Arc::new(Opened::new(Arc::new(index))), None, before);
        Ok(())
    }

    /// The index open for changes, if it is, by whichever object of this process.
    pub fn changing(&self) -> Held {
        self.seen().writer.changing()
    }

    /// Whether this object has changed something, and not ended that.
    pub fn has_changed(&self) -> bool {
        self.seen().writer.is_used_by(self.user)
    }

    /// The index open for changes, which takes the lock of its folder, for one change: it is not closed before that is done.
    pub fn change(&self, py: Python<'_>) -> PyResult<UnderWay> {
        self.index().at_home(&self.path, "stratann.open")?;
        loop {
            let writer = self.seen().writer;
            let turn = loop {
                match py.detach(|| writer.enter()) {
                    Some(turn) => break turn,
                    None => py.check_signals()?,
                }
            };
            // Nobody closes it from here on.
            let (index, _) = self.now(py)?;
            let seen = self.seen();
            if !Arc::ptr_eq(&writer, &seen.writer) {
                // What the last close left is another folder, which has taken the place of this one.
                continue;
            }
            let wanted = (&self.options, self.changes);
            let opened = py.detach(|| writer.open(self.user, index.value(), wanted, turn));
            // With the lock given back: an error that is made waits for the interpreter.
            let opened = opened.map_err(|refused| changing(py, refused.into_python(&self.path)))?;
            self.let_go(&seen);
            return Ok(opened);
        }
    }

    /// Ends the changes of this object, and of all if no other one has changed something; then a merge that is due is made if it is to `finish`.
    pub fn end_changes(&self, py: Python<'_>, finish: bool) -> PyResult<()> {
        let writer = self.seen().writer;
        let held = writer.changing();
        let Some(live) = &*held else {
            return Ok(());
        };
        let at_home = live.at_home(&self.path, "stratann.open").is_ok();
        drop(held);
        if !at_home {
            // Of a forked process: who changes it, and what merges it, are in another one.
            let given_up = py.detach(|| writer.give_up()).map_err(to_python);
            return given_up.map_err(|error| changing(py, error));
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
}
