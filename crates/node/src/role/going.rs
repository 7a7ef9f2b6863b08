//! By which state of the index each connection of a storage server goes, as it has said: so that the state before a merge
//! is given up once all go by the one behind it.
//!
//! Memory servers have no connection to storage. Compute servers speak for them: with each ranking, and where nobody
//! searches by vouching for what their memory server has (`vouching.rs`).

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// What the connections of a storage server have said.
#[derive(Debug, Default)]
pub struct Going {
    known: Mutex<Known>,
}

#[derive(Debug, Default)]
struct Known {
    next: u64,
    /// Of each connection the state that it named last; 0 before it has named one.
    open: HashMap<u64, u64>,
    /// Of those that are over the same, and until when who had it is expected to come back.
    gone: Vec<(Duration, u64)>,
}

impl Going {
    /// How long who is gone is expected to come back, and to go by the state that it named last.
    pub const BACK: Duration = Duration::from_secs(60);

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A connection has been made: gives what it is called here.
    pub(super) fn come(&self) -> u64 {
        let mut known = self.known();
        known.next += 1;
        let name = known.next;
        known.open.insert(name, 0);
        name
    }

    /// It has named a state.
    pub(super) fn names(&self, name: u64, state: u64) {
        self.known().open.insert(name, state);
    }

    /// It is over.
    pub(super) fn left(&self, now: Duration, name: u64) {
        let mut known = self.known();
        // One that has named none is not known to come back to any.
        if let Some(state) = known.open.remove(&name).filter(|&state| state != 0) {
            known.gone.push((now + Self::BACK, state));
        }
    }

    /// The state that all have named last: those that are connected, and those that are expected back. `None` where they
    /// differ, where one has named none, and where nobody is connected.
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
        assert_eq!(at(0), None, "nobody is there");
        let (one, other) = (going.come(), going.come());
        going.names(one, 7);
        assert_eq!(at(0), None, "one has said nothing");
        going.names(other, 8);
        assert_eq!(at(0), None, "they differ");
        going.names(one, 8);
        assert_eq!(at(0), Some(8));
        going.names(one, 7);
        assert_eq!(at(0), None, "one worker of it is behind");
        // Who is gone may come back, with the same memory server.
        going.left(seconds(5), one);
        assert_eq!(at(64), None);
        assert_eq!(at(65), Some(8));
        going.left(seconds(70), other);
        assert_eq!(at(70), None, "nobody is there any more");
        let next = going.come();
        going.names(next, 8);
        assert_eq!(at(71), Some(8), "the other one was on, too");
    }
}
