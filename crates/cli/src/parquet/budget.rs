//! Counts the memory of a read against a cap, before the memory is allocated.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

use super::error::ParquetError;

/// The cap without `--memory`.
const WITHOUT: u64 = 1 << 30;

/// The bytes of pages, levels and values in memory. Only one thread uses a budget.
#[derive(Debug)]
pub struct Budget {
    cap: u64,
    has_option: bool,
    taken: AtomicU64,
    /// The bytes of the texts in the current batch of rows.
    texts: AtomicU64,
    batch: AtomicU64,
}

impl Budget {
    /// `memory` is the cap of the process. `has_option`: whether the command has `--memory`.
    pub fn new(memory: Option<u64>, has_option: bool) -> Self {
        let cap = memory.unwrap_or(WITHOUT);
        Self {
            cap,
            has_option,
            taken: AtomicU64::new(cap / 4),
            texts: AtomicU64::new(0),
            batch: AtomicU64::new(0),
        }
    }

    pub fn take(&self, bytes: u64) -> Result<(), Beyond> {
        let needed = self.taken.load(Ordering::Relaxed).saturating_add(bytes);
        if needed > self.cap {
            return Err(Beyond {
                needed,
                cap: self.cap,
                has_option: self.has_option,
            });
        }
        self.taken.store(needed, Ordering::Relaxed);
        Ok(())
    }

    pub fn give_back(&self, bytes: u64) {
        self.taken.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Takes `bytes` from the budget until the next batch of rows.
    pub fn take_text(&self, bytes: u64) -> Result<(), Beyond> {
        self.take(bytes)?;
        self.texts.fetch_add(bytes, Ordering::Relaxed);
        Ok(())
    }

    /// Gives the bytes of the previous batch's texts back.
    pub fn next_batch(&self) {
        self.give_back(self.texts.swap(0, Ordering::Relaxed));
        self.batch.fetch_add(1, Ordering::Relaxed);
    }

    pub fn batch(&self) -> u64 {
        self.batch.load(Ordering::Relaxed)
    }
}

/// A read needs more memory than the cap allows. The Parquet crate passes this error on.
#[derive(Debug, Clone, Copy)]
pub struct Beyond {
    needed: u64,
    cap: u64,
    has_option: bool,
}

impl fmt::Display for Beyond {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", ParquetError::from(*self))
    }
}

impl std::error::Error for Beyond {}

impl From<Beyond> for ParquetError {
    fn from(beyond: Beyond) -> Self {
        Self::Memory {
            needed: beyond.needed,
            cap: beyond.cap,
            has_option: beyond.has_option,
        }
    }
}

impl From<Beyond> for parquet::errors::ParquetError {
    fn from(beyond: Beyond) -> Self {
        Self::External(Box::new(beyond))
    }
}
