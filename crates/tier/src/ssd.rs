//! A file on an SSD that is read directly, so that the page cache takes no memory.

use std::fmt;
use std::fs::File;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};

use rustix::fs::{Mode, OFlags};

use crate::BLOCK;
use crate::buffer::BufferPool;
use crate::error::TierError;
use crate::executor::Thread;
use crate::limits::with_descriptors;
use crate::reactor::Reactor;
use crate::reads::{Inbox, OpenFile};
use crate::tier::{Completion, ReadQueue, Request, Tier, check};

/// A file that is read with `O_DIRECT` in multiples of 4 KiB, or else through the page cache. If
/// the last block is partial, its bytes cannot be read.
#[derive(Clone)]
pub struct FileTier {
    place: Arc<OpenFile>,
    direct: bool,
    open: Arc<Opening>,
}

pub(crate) type Opening = dyn Fn(OFlags) -> io::Result<File> + Send + Sync;

impl fmt::Debug for FileTier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let direct = if self.direct {
            ""
        } else {
            ", through the page cache"
        };
        write!(f, "FileTier({}{direct})", self.place.name)
    }
}

impl FileTier {
    /// Opens a file for reading.
    pub fn open(path: impl AsRef<Path>) -> Result<FileTier, TierError> {
        let path = path.as_ref().to_owned();
        let name = path.display().to_string();
        let open = move |flags: OFlags| {
            let flags = flags | OFlags::RDONLY | OFlags::CLOEXEC;
            with_descriptors(|| Ok(rustix::fs::open(&path, flags, Mode::empty())?)).map(File::from)
        };
        Self::open_with(name, Arc::new(open))
    }

    pub(crate) fn open_with(name: String, open: Arc<Opening>) -> Result<FileTier, TierError> {
        let failed = |source| TierError::io("open", name.as_str(), 0, 0, source);
        let (file, direct) = match open_direct(&*open).map_err(failed)? {
            Some(file) => (file, true),
            None => (open(OFlags::empty()).map_err(failed)?, false),
        };
        let facts = file.metadata().map_err(failed)?;
        if facts.is_dir() {
            return Err(failed(io::Error::from_raw_os_error(libc::EISDIR)));
        }
        if facts.file_type().is_fifo() || facts.file_type().is_socket() {
            return Err(failed(io::Error::from_raw_os_error(libc::ESPIPE)));
        }
        if !direct {
            no_read_ahead(&file);
        }
        Ok(FileTier {
            place: Arc::new(OpenFile::new(name, file, facts.len())),
            direct,
            open,
        })
    }

    /// Whether reads bypass the page cache.
    pub fn is_direct(&self) -> bool {
        self.direct
    }
}

fn no_read_ahead(file: &File) {
    // SAFETY: the descriptor is open; the advice touches no memory.
    unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_RANDOM) };
}

/// Opens a file for direct reads. `None` if the file system refuses `O_DIRECT`, or requires an
/// alignment larger than a block.
pub(crate) fn open_direct(open: &dyn Fn(OFlags) -> io::Result<File>) -> io::Result<Option<File>> {
    match open(OFlags::DIRECT) {
        Ok(file) => {
            let direct = says_direct(&file).unwrap_or_else(|| reads_directly(&file));
            Ok(direct.then_some(file))
        }
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Whether direct reads of blocks are possible, according to the kernel. `None` if the kernel does
/// not say: before Linux 6.1, and for some file systems. An answer saves a trial read, the longest
/// step of opening a small index.
fn says_direct(file: &File) -> Option<bool> {
    let mut facts = MaybeUninit::<libc::statx>::zeroed();
    // SAFETY: the descriptor is open, the path is an empty C string, and `facts` has room for the
    // structure that the kernel fills in. `statx` is called by its system call number, because C
    // libraries before 2018 have no wrapper for it.
    let done = unsafe {
        libc::syscall(
            libc::SYS_statx,
            file.as_raw_fd(),
            c"".as_ptr(),
            libc::AT_EMPTY_PATH,
            libc::STATX_DIOALIGN,
            facts.as_mut_ptr(),
        )
    };
    if done != 0 {
        return None;
    }
    // SAFETY: all fields are integers. Zeros are valid integers, and so are the bytes that the
    // kernel wrote.
    let facts = unsafe { facts.assume_init() };
    if facts.stx_mask & libc::STATX_DIOALIGN == 0 {
        return None;
    }
    let fits = |align: u32| align != 0 && (BLOCK as u32).is_multiple_of(align);
    Some(fits(facts.stx_dio_mem_align) && fits(facts.stx_dio_offset_align))
}

/// Whether a trial read succeeds. Some file systems accept `O_DIRECT` at opening, but refuse reads.
fn reads_directly(file: &File) -> bool {
    // If there is no memory for the buffer of the trial, reads use the page cache.
    let Ok(mut block) = BufferPool::default().take(BLOCK) else {
        return false;
    };
    // SAFETY: the block has BLOCK writable bytes, which no other code uses during the call.
    let got = unsafe { libc::pread(file.as_raw_fd(), block.target().cast(), BLOCK, 0) };
    got >= 0 || io::Error::last_os_error().raw_os_error() != Some(libc::EINVAL)
}

impl Tier for FileTier {
    fn name(&self) -> &str {
        &self.place.name
    }

    fn len(&self) -> u64 {
        self.place.len()
    }

    fn granularity(&self) -> u32 {
        BLOCK as u32
    }

    fn reopen(&self) -> Result<(), TierError> {
        let flags = match self.direct {
            true => OFlags::DIRECT,
            false => OFlags::empty(),
        };
        let opened = (self.open)(flags);
        let file = opened.map_err(|source| TierError::io("open", self.name(), 0, 0, source))?;
        if !self.direct {
            no_read_ahead(&file);
        }
        self.place.follow(file);
        Ok(())
    }

    fn queue(&self, thread: &Thread) -> Result<Box<dyn ReadQueue>, TierError> {
        let inbox = Rc::new(Inbox::new(self.place.clone()));
        Ok(Box::new(FileQueue {
            inbox,
            reactor: thread.reactor().clone(),
            need: 0,
        }))
    }
}

struct FileQueue {
    inbox: Rc<Inbox>,
    reactor: Rc<Reactor>,
    need: usize,
}

impl ReadQueue for FileQueue {
    fn submit(&mut self, request: Request) -> Result<(), TierError> {
        let place = &self.inbox.place;
        check(&place.name, place.len_for(request), BLOCK as u32, request)?;
        self.reactor.submit(&self.inbox, request)
    }

    fn flush(&mut self) {
        self.reactor.flush();
    }

    fn in_flight(&self) -> usize {
        self.inbox.in_flight()
    }

    fn try_next(&mut self) -> Option<Completion> {
        if self.inbox.in_flight() == 0 {
            return None;
        }
        if let Some(completion) = self.inbox.take() {
            return Some(completion);
        }
        self.reactor.look();
        self.inbox.take()
    }

    fn need(&mut self, completions: usize) {
        self.need = completions;
    }

    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Completion> {
        if let Some(completion) = self.inbox.take() {
            self.need = self.need.saturating_sub(1);
            return Poll::Ready(completion);
        }
        assert!(
            self.inbox.in_flight() > 0,
            "poll_next on a queue with no read in flight would wait for ever"
        );
        self.inbox.wait(cx.waker());
        self.reactor
            .needed
            .set(self.need.clamp(1, self.inbox.in_flight()));
        Poll::Pending
    }

    fn reset(&mut self) {
        self.inbox.forget();
        self.need = 0;
    }
}

impl Drop for FileQueue {
    fn drop(&mut self) {
        self.inbox.forget();
    }
}

#[cfg(test)]
mod tests {
    use std::fs::OpenOptions;
    use std::os::unix::fs::OpenOptionsExt;

    use super::*;

    #[test]
    fn what_the_kernel_says_is_what_a_read_finds() {
        for folder in [std::env::temp_dir(), "/dev/shm".into(), ".".into()] {
            let Ok(path) = tempfile::NamedTempFile::new_in(folder) else {
                continue;
            };
            std::fs::write(&path, [7; 2 * BLOCK]).unwrap();
            let direct = OpenOptions::new()
                .read(true)
                .custom_flags(libc::O_DIRECT)
                .open(&path);
            let Ok(file) = direct else { continue };
            if let Some(said) = says_direct(&file) {
                assert_eq!(said, reads_directly(&file), "{}", path.path().display());
            }
            assert!(FileTier::open(path.path()).is_ok());
        }
    }
}
