//! The reads in flight of one thread, each in a slot.
//!
//! ```text
//!   FileQueue ─ Rc ─> Inbox { place, epoch, ready, waker } <─ Rc ─ slot { epoch, tag, block, .. }
//!                                                             ^ index = user_data of the entry
//! ```
//!
//! Until the device has finished the read, the slot owns the buffer and, through the inbox, the
//! open file. A dropped or reset queue only increments the epoch of its inbox, and completions of
//! older epochs are discarded.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::rc::Rc;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;

use crate::buffer::Block;
use crate::error::TierError;
use crate::tier::{Completion, Request};

#[derive(Debug)]
pub(crate) struct OpenFile {
    pub(crate) name: String,
    fd: AtomicI32,
    /// Earlier files stay open, because reads of these files may be in flight.
    files: Mutex<Vec<File>>,
    /// The length when it was last looked up. The file may have grown since.
    known: AtomicU64,
}

impl OpenFile {
    pub(crate) fn new(name: String, file: File, len: u64) -> OpenFile {
        OpenFile {
            name,
            fd: AtomicI32::new(file.as_raw_fd()),
            files: Mutex::new(vec![file]),
            known: AtomicU64::new(len),
        }
    }

    fn fd(&self) -> RawFd {
        self.fd.load(Ordering::Acquire)
    }

    /// Makes later reads use another file, which has the same bytes.
    pub(crate) fn follow(&self, file: File) {
        let mut files = self.files();
        self.fd.store(file.as_raw_fd(), Ordering::Release);
        files.push(file);
    }

    /// Accepts a poisoned lock, because the list is consistent after each step.
    fn files(&self) -> MutexGuard<'_, Vec<File>> {
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The length of the file, for a check of `request`. If the request ends beyond the known
    /// length, the length is looked up again, because inserts extend a file.
    pub(crate) fn len_for(&self, request: Request) -> u64 {
        let known = self.known.load(Ordering::Relaxed);
        let end = request.offset.saturating_add(request.len.into());
        if end <= known {
            return known;
        }
        let facts = self.files().last().map(File::metadata);
        let now = facts
            .and_then(Result::ok)
            .map_or(known, |facts| facts.len());
        self.known.store(now, Ordering::Relaxed);
        now
    }

    pub(crate) fn len(&self) -> u64 {
        self.known.load(Ordering::Relaxed)
    }
}

#[derive(Debug)]
pub(crate) struct Inbox {
    pub(crate) place: Arc<OpenFile>,
    /// A reset increments the epoch. Completions of older epochs are discarded.
    epoch: Cell<u64>,
    in_flight: Cell<usize>,
    ready: RefCell<VecDeque<Completion>>,
    waker: RefCell<Option<Waker>>,
}

impl Inbox {
    pub(crate) fn new(place: Arc<OpenFile>) -> Inbox {
        Inbox {
            place,
            epoch: Cell::new(0),
            in_flight: Cell::new(0),
            ready: RefCell::new(VecDeque::new()),
            waker: RefCell::new(None),
        }
    }

    pub(crate) fn in_flight(&self) -> usize {
        self.in_flight.get()
    }

    pub(crate) fn take(&self) -> Option<Completion> {
        let completion = self.ready.borrow_mut().pop_front()?;
        self.in_flight.set(self.in_flight.get() - 1);
        Some(completion)
    }

    pub(crate) fn wait(&self, waker: &Waker) {
        let mut slot = self.waker.borrow_mut();
        match &mut *slot {
            Some(known) => known.clone_from(waker),
            None => *slot = Some(waker.clone()),
        }
    }

    pub(crate) fn forget(&self) {
        self.epoch.set(self.epoch.get() + 1);
        self.in_flight.set(0);
        self.ready.borrow_mut().clear();
    }

    fn deliver(&self, epoch: u64, completion: Completion) {
        if epoch != self.epoch.get() {
            return;
        }
        self.ready.borrow_mut().push_back(completion);
        // The waker stays stored, so that the same task can wait again. A second wake is harmless.
        if let Some(waker) = &*self.waker.borrow() {
            waker.wake_by_ref();
        }
    }
}

/// A read for a driver. The buffer stays valid until the driver has reported the slot.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RawRead {
    pub(crate) slot: u32,
    pub(crate) fd: RawFd,
    pub(crate) target: *mut u8,
    pub(crate) len: u32,
    pub(crate) offset: u64,
}

#[derive(Debug)]
struct Pending {
    inbox: Rc<Inbox>,
    epoch: u64,
    tag: u64,
    offset: u64,
    block: Block,
    done: u32,
    retries: u32,
}

pub(crate) enum Outcome {
    Finished,
    /// The caller must repeat this read: the kernel returned only a part, or asked for it.
    Again(RawRead),
}

/// After this number of interruptions in a row, a read fails.
const RETRIES: u32 = 100;

#[derive(Debug, Default)]
pub(crate) struct Reads {
    slots: Vec<Option<Pending>>,
    free: Vec<u32>,
}

impl Reads {
    pub(crate) fn in_flight(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    pub(crate) fn add(&mut self, inbox: &Rc<Inbox>, request: Request, block: Block) -> RawRead {
        inbox.in_flight.set(inbox.in_flight.get() + 1);
        let pending = Pending {
            inbox: inbox.clone(),
            epoch: inbox.epoch.get(),
            tag: request.tag,
            offset: request.offset,
            block,
            done: 0,
            retries: 0,
        };
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            (self.slots.len() - 1) as u32
        });
        self.slots[slot as usize].insert(pending).raw(slot)
    }

    /// `result` is the number of bytes read, or a negated errno.
    pub(crate) fn report(this: &RefCell<Reads>, slot: u32, result: i32) -> Outcome {
        let mut reads = this.borrow_mut();
        let pending = reads.slots[slot as usize]
            .as_mut()
            .expect("the driver reported a slot twice for one read");
        let wanted = pending.block.len() as u32;
        if result > 0 {
            pending.done += result as u32;
            if pending.done < wanted {
                pending.retries = 0;
                return Outcome::Again(pending.raw(slot));
            }
        } else if (result == -libc::EINTR || result == -libc::EAGAIN) && pending.retries < RETRIES {
            pending.retries += 1;
            return Outcome::Again(pending.raw(slot));
        }
        let pending = reads.remove(slot);
        drop(reads);
        let place = &pending.inbox.place;
        // A part of a block arrived: the file ends within the block.
        let ended = result == 0 || (result == -libc::EINVAL && pending.done > 0);
        let result = match result {
            _ if ended => Err(TierError::Short {
                place: place.name.clone(),
                offset: pending.offset,
                wanted: u64::from(wanted),
                got: u64::from(pending.done),
            }),
            1.. => Ok(pending.block),
            _ => Err(TierError::io(
                "read",
                &place.name,
                pending.offset,
                u64::from(wanted),
                io::Error::from_raw_os_error(-result),
            )),
        };
        pending.inbox.deliver(
            pending.epoch,
            Completion {
                tag: pending.tag,
                result,
            },
        );
        Outcome::Finished
    }

    /// Fails all reads. Their buffers are leaked, because the kernel may still write to the
    /// buffers.
    pub(crate) fn abandon(this: &RefCell<Reads>, errno: i32) {
        let slots = this.borrow().slots.len() as u32;
        for slot in 0..slots {
            let mut reads = this.borrow_mut();
            if reads.slots[slot as usize].is_none() {
                continue;
            }
            let pending = reads.remove(slot);
            drop(reads);
            let len = pending.block.len() as u64;
            std::mem::forget(pending.block);
            let error = io::Error::from_raw_os_error(errno);
            let result = Err(TierError::io(
                "read",
                &pending.inbox.place.name,
                pending.offset,
                len,
                error,
            ));
            pending.inbox.deliver(
                pending.epoch,
                Completion {
                    tag: pending.tag,
                    result,
                },
            );
        }
    }

    fn remove(&mut self, slot: u32) -> Pending {
        let pending = self.slots[slot as usize]
            .take()
            .expect("only used slots are removed");
        self.free.push(slot);
        pending
    }
}

impl Pending {
    fn raw(&mut self, slot: u32) -> RawRead {
        RawRead {
            slot,
            fd: self.inbox.place.fd(),
            // In bounds: `done` is less than the block's length while a read is outstanding.
            target: self.block.target().wrapping_add(self.done as usize),
            len: self.block.len() as u32 - self.done,
            offset: self.offset + u64::from(self.done),
        }
    }
}
