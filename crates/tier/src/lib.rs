//! Places for bytes: DRAM, mapped files, SSDs and memory servers. The crate reads many ranges
//! concurrently, and writes files so that they survive a crash.
//!
//! ```text
//!   WorkerPool ── worker threads, each with a Thread: ring, executor, buffers
//!     ├─ run_tasks(..), submit(..) ─> task: queue.submit, compute, next(queue).await
//!     └─ thread.readable(&socket).await, thread.sleep_until(time).await
//!
//!   Tier ── FileTier (SSD), DramTier, MappedTier, RemoteTier (of a memory server),
//!        ModelledTier (memory with the timing of a slower device)
//!   Volume ── Directory, MemoryVolume (files in memory), ModelledVolume,
//!          RoutedVolume (several routes to one volume),
//!          LoadedVolume, MirrorVolume (copies of files in memory, or in a folder)
//! ```
//!
//! The feature `testing` adds tiers and volumes for tests: `Meter` counts reads, `Faulty` injects
//! faults, `SimVolume` crashes on demand, `SplitVolume` joins several volumes, and `conformance`
//! checks a new implementation.
//!
//! ```
//! use std::sync::Arc;
//! use stratann_tier::{WorkerPool, DramTier, IoMode, Request, Tier, next};
//!
//! let tier: Arc<dyn Tier> = Arc::new(DramTier::new(vec![7u8; 8192]));
//! let workers = WorkerPool::new(1, IoMode::Auto)?;
//! workers.run(1, &|thread, _| {
//!     thread.block_on(async {
//!         let mut queue = tier.queue(thread).unwrap();
//!         queue.submit(Request { tag: 1, offset: 4096, len: 4096 }).unwrap();
//!         let block = next(queue.as_mut()).await.result.unwrap();
//!         assert_eq!(block[0], 7);
//!     });
//! });
//! # Ok::<(), stratann_tier::TierError>(())
//! ```

mod backend;
mod buffer;
mod bytewise;
mod copies;
mod directory;
mod dram;
mod error;
mod executor;
mod forward;
mod growing;
mod holder;
mod home;
mod limits;
mod loaded;
mod lock;
mod mapped;
mod memory;
mod memory_volume;
mod modelled;
mod own;
mod pages;
mod parking;
mod poller;
mod pread;
mod process;
mod random;
mod reactor;
mod reads;
mod refused_memory;
pub mod remote;
mod room;
mod routed;
mod sockets;
mod span;
mod ssd;
#[cfg(feature = "testing")]
pub mod testing;
mod threads;
mod tier;
mod timers;
mod turns;
mod uring;
mod volume;
mod worker_pool;

/// The bytes of a block: the smallest read of an SSD, and the alignment of buffers.
pub const BLOCK: usize = 4096;

pub use backend::{Backend, IoMode};
pub use buffer::{Block, HugeBytes};
pub use bytewise::bytewise;
pub use copies::{CopyFolder, FoundCopies, Kept, MirrorVolume, ReadBy};
pub use directory::Directory;
pub use dram::DramTier;
pub use error::TierError;
pub use executor::{Aside, Sleep, Task, Thread};
pub use growing::GrowingBytes;
pub use holder::Holder;
pub use home::Home;
pub use limits::{descriptors_left, with_descriptors};
pub use loaded::LoadedVolume;
pub use mapped::MappedTier;
pub use memory_volume::MemoryVolume;
pub use modelled::{Cost, Device, DeviceKind, DeviceModel, ModelledTier, ModelledVolume};
pub use own::{Owned, copy_of, own};
pub use process::{
    peak_rss_bytes, process_cpu_time, release_code_pages, reset_peak_rss, rss_bytes,
    thread_cpu_time,
};
pub use random::random;
pub use refused_memory::{
    RecordingAllocator, ask_for_memory, explain_aborts, share_arenas_under_a_limit,
};
pub use routed::{Route, RoutedVolume};
pub use sockets::SocketReady;
pub use span::Span;
pub use ssd::FileTier;
pub use threads::{start, start_scoped};
pub use tier::{Completion, ReadQueue, Request, Tier, next, next_of};
pub use turns::after_turn;
pub use volume::{LOCK_FILE, LockGuard, Note, Volume, VolumeFile, VolumeReader};
pub use worker_pool::{Panic, Work, WorkerPool, is_worker};
