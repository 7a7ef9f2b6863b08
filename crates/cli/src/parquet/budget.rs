//! Memory that reading a file may take, counted before it is taken.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

use super::error::ParquetError;

/// The cap where no `--memory` is given.
const WITHOUT: u64 = 1 << 30;

/// Bytes of the pages, levels and values that are in memory. One thread counts them.
#[derive(Debug)]
pub struct Budget {
    cap: u64,
    /// Whether a user can raise the cap.
    has_option: bool,
    taken: AtomicU64,
    /// Bytes of the texts of this batch of rows.
    texts: AtomicU64,
    /// The number of that batch.
    batch: AtomicU64,
}

impl Budget {
    /// Of a process that has this cap, if it has one. The process itself has a quarter of it.
    /// `has_option`: whether the command has the option `--memory`.
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

    /// Takes so many bytes.
    ///
    /// # Errors
    /// They are more than there are left.
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

    /// Gives bytes back that were taken.
    pub fn give_back(&self, bytes: u64) {
        self.taken.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Takes bytes until the next batch of rows.
    ///
    /// # Errors
    /// They are more than there are left.
    pub fn take_text(&self, bytes: u64) -> Result<(), Beyond> {
        self.take(bytes)?;
        self.texts.fetch_add(bytes, Ordering::Relaxed);
        Ok(())
    }

    /// The next batch of rows begins: the texts of the last one are gone.
    pub fn next_batch(&self) {
        self.give_back(self.texts.swap(0, Ordering::Relaxed));
        self.batch.fetch_add(1, Ordering::Relaxed);
    }

    /// The number of the batch that is being read.
    pub fn batch(&self) -> u64 {
        self.batch.load(Ordering::Relaxed)
    }
}

/// More memory than there is. It goes through the Parquet crate as an error of its own.
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
