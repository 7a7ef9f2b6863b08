//! For each connection of a storage server, the state (checkpoint id) that the connection last
//! named as in use. When all connections use the state after a merge, storage gives up the state
//! before the merge.
//!
//! Compute servers name the state of their memory server, with each ranking and otherwise several
//! times a minute (`vouching.rs`).

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The states that the connections of a storage server have named.
#[derive(Debug, Default)]
pub struct Going {
    known: Mutex<Known>,
}

#[derive(Debug, Default)]
struct Known {
    next: u64,
    /// The state that each connection named last, or 0.
    open: HashMap<u64, u64>,
    /// The last state of each lost connection, and the end of the time to connect again.
    gone: Vec<(Duration, u64)>,
}

impl Going {
    /// The time for which the state of a lost connection is kept.
    pub const BACK: Duration = Duration::from_secs(60);

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn come(&self) -> u64 {
        let mut known = self.known();
        known.next += 1;
        let name = known.next;
        known.open.insert(name, 0);
        name
    }

    pub(super) fn names(&self, name: u64, state: u64) {
        self.known().open.insert(name, state);
    }

    pub(super) fn left(&self, now: Duration, name: u64) {
        let mut known = self.known();
        // No state is kept for a connection that has named none.
        if let Some(state) = known.open.remove(&name).filter(|&state| state != 0) {
            known.gone.push((now + Self::BACK, state));
        }
    }

    /// The state that all connections named last, or `None` if they differ. Connections that were
    /// lost within the last [`BACK`](Self::BACK) count.
    pub fn all_by(&self, now: Duration) -> Option<u64> {
        let mut known = self.known();
        known.gone.retain(|&(until, _)| now < until);
        let first = *known.open.values().next()?;
        let gone = known.gone.iter().map(|(_, state)| state);
        let same = known.open.values().chain(gone).all(|&state| state == first);
        (same && first != 0).then_some(first)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_go_by_a_state_once_each_has_named_it_last() {
        let (going, seconds) = (Going::default(), Duration::from_secs);
        let at = |now| going.all_by(seconds(now));
        assert_eq!(at(0), None, "no worker has come");
        let (one, other) = (going.come(), going.come());
        going.names(one, 7);
        assert_eq!(at(0), None, "one worker has named no state");
        going.names(other, 8);
        assert_eq!(at(0), None, "the two workers name different states");
        going.names(one, 8);
        assert_eq!(at(0), Some(8));
        going.names(one, 7);
        assert_eq!(at(0), None, "one worker uses the old state");
        going.left(seconds(5), one);
        assert_eq!(at(64), None);
        assert_eq!(at(65), Some(8));
        going.left(seconds(70), other);
        assert_eq!(at(70), None, "no worker is left");
        let next = going.come();
        going.names(next, 8);
        assert_eq!(at(71), Some(8), "both lost workers named state 8 last");
    }
}
