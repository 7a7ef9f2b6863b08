//! The low codes that all workers of a compute server share.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::LowHalf;

/// The low codes that all workers of a compute server share.
#[derive(Debug)]
pub struct Shelf<L> {
    kept: Mutex<Kept<L>>,
}

#[derive(Debug)]
pub(super) struct Kept<L> {
    pub(super) low: Option<Arc<L>>,
    pub(super) loader: Option<u16>,
}

impl<L: LowHalf> Shelf<L> {
    /// Without `low`, the first worker fetches codes.
    pub fn new(low: Option<L>) -> Shelf<L> {
        Shelf {
            kept: Mutex::new(Kept {
                low: low.map(Arc::new),
                loader: None,
            }),
        }
    }

    pub(super) fn kept(&self) -> MutexGuard<'_, Kept<L>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The low codes, if they have arrived.
    pub fn low(&self) -> Option<Arc<L>> {
        self.kept().low.clone()
    }
}
