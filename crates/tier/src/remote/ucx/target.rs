//! The server's side: memory that clients read, and a thread that answers for transports without
//! one-sided reads.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::{Context, Use, Worker, api, warn_of_tcp};
use crate::error::TierError;
use crate::remote::Server;
use crate::remote::wire::REACH;
use crate::threads;

const LOOK: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 100_000_000,
};
/// The memory of an ended client is kept three times as long as a client waits for an answer. So a
/// read in transit still finds the memory.
const RETIRED: Duration = Server::PATIENCE.saturating_mul(3);

type Kept = Arc<dyn Send + Sync>;

/// The memory that clients read through UCX.
pub struct Target {
    context: Arc<Context>,
    address: Vec<u8>,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    stop: AtomicBool,
    retired: Mutex<Vec<(Instant, Kept)>>,
}

impl Shared {
    fn retired(&self) -> MutexGuard<'_, Vec<(Instant, Kept)>> {
        self.retired.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Target(UCX)")
    }
}

fn failed(reason: String) -> TierError {
    TierError::Unsupported {
        what: "reading through UCX".to_owned(),
        reason,
    }
}

impl Target {
    /// Starts the thread. If `loopback` is true, only processes on this machine can be clients.
    ///
    /// # Errors
    /// [`TierError::Unsupported`] without a library or a device, or if no thread can start.
    pub fn start(loopback: bool) -> Result<Target, TierError> {
        let context = Context::new(Use::Reads, loopback).map_err(failed)?;
        warn_of_tcp(
            "Over TCP a killed client can end this server, and other processes can read all of its memory.",
        );
        let shared = Arc::new(Shared::default());
        let (tell, told) = mpsc::channel();
        let (theirs, ours) = (context.clone(), shared.clone());
        let thread = threads::start(Builder::new().name("stratann-ucx".to_owned()), move || {
            let made = Worker::new(&theirs).and_then(|worker| Ok((worker.address()?, worker)));
            match made {
                Ok((address, worker)) => {
                    let _ = tell.send(Ok(address));
                    answer(&worker, &ours);
                }
                Err(error) => _ = tell.send(Err(error)),
            }
        });
        let mut target = Target {
            context,
            address: Vec::new(),
            shared,
            thread: Some(
                thread.map_err(|error| failed(format!("its thread cannot be started: {error}")))?,
            ),
        };
        let address = told.recv();
        let address = address.unwrap_or_else(|_| Err("its thread has ended".to_owned()));
        target.address = address.map_err(failed)?;
        Ok(target)
    }

    /// Allocates `len` zero bytes that clients can read.
    ///
    /// # Errors
    /// [`TierError::Unsupported`] if there is no memory.
    pub fn allocate(&self, len: usize) -> Result<Region, TierError> {
        let functions = self.context.functions;
        let params = api::MapParams {
            fields: api::MAP_LENGTH | api::MAP_FLAGS | api::MAP_PROTECTION,
            address: null_mut(),
            len: len.max(1),
            flags: api::MAP_ALLOCATE,
            protection: api::PROTECTION_OTHERS_READ,
            kind: 0,
        };
        let mut memory = null_mut();
        // SAFETY: the context lives, and the parameters have the layout of this version.
        let mapped = unsafe { (functions.ucp_mem_map)(self.context.raw, &params, &mut memory) };
        let what = format!("allocate {len} bytes");
        functions.check(&what, mapped).map_err(failed)?;
        let mut region = Region {
            context: self.context.clone(),
            memory,
            start: NonNull::dangling(),
            len: 0,
            key: Vec::new(),
        };
        let mut facts = api::MemoryFacts {
            fields: api::MEMORY_ADDRESS | api::MEMORY_LENGTH,
            address: null_mut(),
            len: 0,
            kind: 0,
        };
        // SAFETY: the memory was mapped above, and `facts` is valid for writing.
        let asked = unsafe { (functions.ucp_mem_query)(memory, &mut facts) };
        functions.check(&what, asked).map_err(failed)?;
        match NonNull::new(facts.address.cast::<u8>()) {
            Some(start) if facts.len >= len => region.start = start,
            _ => {
                return Err(failed(format!(
                    "UCX allocated {} bytes instead of {len}",
                    facts.len
                )));
            }
        }
        // SAFETY: the length was checked above, and no other code knows of these bytes. Some
        // allocation methods do not zero them.
        unsafe { region.start.as_ptr().write_bytes(0, len) };
        region.len = len;
        let (mut start, mut bytes) = (null_mut(), 0);
        // SAFETY: the memory was mapped above, and both pointers are valid for writing.
        let packed =
            unsafe { (functions.ucp_rkey_pack)(self.context.raw, memory, &mut start, &mut bytes) };
        functions.check("pack a key", packed).map_err(failed)?;
        // SAFETY: the library put `bytes` bytes at `start`, valid until their release.
        region.key = unsafe { std::slice::from_raw_parts(start.cast::<u8>(), bytes) }.to_vec();
        // SAFETY: the packed key was made above, and is not used any more.
        unsafe { (functions.ucp_rkey_buffer_release)(start) };
        Ok(region)
    }

    /// The description that a client needs to read a region: [`REACH`] bytes.
    ///
    /// | offset | | |
    /// |---|---|---|
    /// | 0 | u64 | the address of the region's bytes in the server's memory |
    /// | 8 | u32 | bytes of the server's address |
    /// | 12 | u32 | bytes of the key |
    /// | 16 | | the server's address, then the key, then zeros |
    ///
    /// # Errors
    /// [`TierError::Unsupported`] if the address and the key do not fit.
    pub fn reach(&self, region: &Region) -> Result<Vec<u8>, TierError> {
        let mut bytes = (region.start.as_ptr() as u64).to_le_bytes().to_vec();
        for part in [&self.address, &region.key] {
            bytes.extend((part.len() as u32).to_le_bytes());
        }
        bytes.extend(&self.address);
        bytes.extend(&region.key);
        if bytes.len() > REACH {
            let (all, most) = (bytes.len(), REACH);
            return Err(failed(format!(
                "its address and key have {all} bytes, and at most {most} can be sent. Name fewer devices in UCX_NET_DEVICES"
            )));
        }
        bytes.resize(REACH, 0);
        Ok(bytes)
    }

    /// Keeps memory of an ended client mapped until no read of this client can be in transit.
    pub fn retire(&self, what: impl IntoIterator<Item = Kept>) {
        let until = Instant::now() + RETIRED;
        let all = what.into_iter().map(|what| (until, what));
        self.shared.retired().extend(all);
    }
}

fn answer(worker: &Worker, shared: &Shared) {
    while !shared.stop.load(Ordering::SeqCst) {
        while worker.progress() {}
        let now = Instant::now();
        let gone: Vec<Kept> = (shared.retired())
            .extract_if(.., |(until, _)| *until <= now)
            .map(|(_, kept)| kept)
            .collect();
        drop(gone);
        match worker.arm() {
            Ok(true) => {
                let mut fd = [PollFd::from_borrowed_fd(worker.fd(), PollFlags::IN)];
                let _ = poll(&mut fd, Some(&LOOK));
            }
            Ok(false) => {}
            Err(error) => {
                tracing::warn!("{error}");
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Memory that clients can read. If a transport also lets clients write, the checksums of pages
/// reveal changed bytes.
pub struct Region {
    context: Arc<Context>,
    memory: api::Memory,
    start: NonNull<u8>,
    len: usize,
    key: Vec<u8>,
}

// SAFETY: a region owns its memory as a `Vec` does, and the context may be used from any thread.
unsafe impl Send for Region {}
// SAFETY: as above. Through a shared reference, a region is only read.
unsafe impl Sync for Region {}

impl fmt::Debug for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Region({} bytes)", self.len)
    }
}

impl Deref for Region {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the library gave at least `len` bytes at `start`. The bytes were zeroed, and stay
        // valid until `drop` unmaps them.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl DerefMut for Region {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`. There is no other reference, and clients learn of the region only
        // when it is not written to any more.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        let functions = self.context.functions;
        // SAFETY: `allocate` mapped the memory with this context, and no reference to its bytes is
        // left.
        let unmapped = unsafe { (functions.ucp_mem_unmap)(self.context.raw, self.memory) };
        if let Err(error) = functions.check("unmap memory", unmapped) {
            tracing::warn!("{error}");
        }
    }
}
