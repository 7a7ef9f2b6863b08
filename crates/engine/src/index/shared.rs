//! Resources that several indexes of one process can share.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use stratann_layout::Manifest;
use stratann_tier::{IoMode, Volume, WorkerPool, ask_for_memory};

use crate::Error;
use crate::THREAD_BYTES;
use crate::codebook::Codebook;
use crate::room::Room;
use crate::threads;

#[derive(Default)]
pub(crate) struct Shared {
    worker_pool: Mutex<Option<Arc<WorkerPool>>>,
    codebooks: Mutex<HashMap<String, Codebook>>,
    pub(super) room: Room,
}

impl Shared {
    /// If a codebook with the same content is in memory, the index shares this codebook. No lock is
    /// held during a read.
    pub(super) fn codebook(
        &self,
        volume: &dyn Volume,
        manifest: &Manifest,
    ) -> Result<Codebook, Error> {
        let shape = (manifest.dimension as usize, manifest.code_bytes as usize);
        let fits = |known: &&Codebook| (known.dim(), known.code_bytes()) == shape;
        if let Some(known) = self.codebooks.lock().get(&manifest.codebook).filter(fits) {
            return Ok(known.clone());
        }
        let codebook = Codebook::of_index(volume, manifest)?;
        if manifest.codebook.is_empty() {
            return Ok(codebook);
        }
        let mut codebooks = self.codebooks.lock();
        let known = codebooks
            .entry(manifest.codebook.clone())
            .or_insert_with(|| codebook.clone());
        // Another thread may have read the same codebook.
        Ok(Some(&*known).filter(fits).cloned().unwrap_or(codebook))
    }

    /// Removes a codebook from the table. Indexes that use the codebook keep it.
    pub(crate) fn forget_codebook(&self, hash: &str) {
        self.codebooks.lock().remove(hash);
    }

    /// A pool of at least `threads` threads, which keep their rings and buffers.
    pub(crate) fn worker_pool(&self, threads: usize, io: IoMode) -> Result<Arc<WorkerPool>, Error> {
        let mut worker_pool = self.worker_pool.lock();
        let smaller = match &*worker_pool {
            Some(worker_pool) if worker_pool.threads() >= threads => {
                return Ok(worker_pool.clone());
            }
            _ => worker_pool.take(),
        };
        let bytes = threads::stacks(threads).saturating_add(THREAD_BYTES * threads as u64);
        let started = ask_for_memory(
            format!("{threads} searching threads"),
            bytes,
            "ask for fewer threads",
        );
        let started = match started.and_then(|()| WorkerPool::new(threads, io)) {
            Ok(started) => Arc::new(started),
            Err(error) => {
                *worker_pool = smaller;
                return Err(error.into());
            }
        };
        *worker_pool = Some(started.clone());
        // The drop of the smaller pool waits for its threads. Such a thread may run a callback that
        // needs the lock, so the lock is released first.
        drop(worker_pool);
        drop(smaller);
        Ok(started)
    }
}
