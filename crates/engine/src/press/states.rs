//! The checkpoints whose nodes the storage server can rank: the last one, and the one before while
//! servers use it.
//!
//! ```text
//!   insert ──> log, durable ──> waits in memory ──merge──> the next checkpoint          LiveIndex
//!                                    │                          │
//!   searches  in checkpoint A:  nodes of A + waiting vectors    │ A stays while servers use it
//!                   nodes of A + vectors that waited for B ──minus──> changes since B
//!                                                                     + vectors that wait now
//!             in checkpoint B:  nodes of B + vectors that wait now
//! ```
//!
//! New vectors wait in the memory of the storage server, which ranks them with the candidates of
//! the walk (FreshDiskANN, in the form of DistVS's appendix). So a search in any checkpoint sees
//! all changes that were acknowledged before its candidates are ranked.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::{Collection, still};
use crate::overlay::{Moment, Overlay, Seen};
use crate::stores::VectorsAt;
use crate::stores::vectors::segments::Segments;
use crate::update::Snapshot;
use crate::{Error, Index, LiveIndex};

#[derive(Clone)]
pub(super) struct Changes {
    overlay: Overlay,
    moment: Moment,
}

impl Changes {
    pub(super) fn seen(&self) -> Seen<'_> {
        Seen {
            overlay: &self.overlay,
            moment: self.moment,
        }
    }
}

enum Vectors {
    /// The segments of an index that is open only for reading.
    Alone(Arc<Segments>),
    Of(Arc<Index>),
}

pub(super) struct View {
    pub(super) collection: Collection,
    vectors: Vectors,
    pub(super) changes: Changes,
    /// The changes since the merge that replaced the checkpoint, if any.
    pub(super) since_merge: Option<Changes>,
}

impl View {
    pub(super) fn segments(&self) -> Option<&Segments> {
        match &self.vectors {
            Vectors::Alone(segments) => Some(segments),
            Vectors::Of(index) => index.graph().segments.as_ref(),
        }
    }
}

pub(super) enum States {
    Still(Still),
    Live(Live),
}

pub(super) struct Still {
    collection: Collection,
    segments: Arc<Segments>,
    changes: Changes,
    vectors: usize,
}

pub(super) struct Live {
    index: Arc<LiveIndex>,
    known: Mutex<Known>,
}

struct Known {
    /// The known checkpoints and their indexes, oldest first.
    states: Vec<(Collection, Arc<Index>)>,
    /// The time at which an older checkpoint was last used, or a new one was first noticed.
    asked: Instant,
}

pub(super) const KEPT: Duration = Duration::from_secs(60);

impl States {
    pub(super) fn still(path: &Path, index: Index) -> Result<Self, Error> {
        let (volume, manifest) = (index.volume().clone(), index.manifest().clone());
        let overlay = index.overlay().cloned().unwrap_or_else(Overlay::none);
        let vectors = index.live();
        // The storage server needs no lists and no codes, so the index is dropped.
        drop(index);
        let collection = Collection::of(&manifest);
        let segments = Segments::open(&*volume, &manifest, VectorsAt::Segments)?;
        still(&*volume, path, &collection)?;
        Ok(Self::Still(Still {
            collection,
            segments: Arc::new(segments),
            changes: Changes {
                moment: overlay.now(),
                overlay,
            },
            vectors,
        }))
    }

    pub(super) fn live(index: Arc<LiveIndex>) -> Self {
        index.keep_before();
        let live = Live {
            index,
            known: Mutex::new(Known {
                states: Vec::new(),
                asked: Instant::now(),
            }),
        };
        // The checkpoint is recorded before a merge can replace it.
        live.newest(Instant::now());
        Self::Live(live)
    }

    pub(super) fn index(&self) -> Option<&Arc<LiveIndex>> {
        match self {
            Self::Still(_) => None,
            Self::Live(live) => Some(&live.index),
        }
    }

    pub(super) fn vectors(&self) -> usize {
        match self {
            Self::Still(still) => still.vectors,
            Self::Live(live) => live.index.len(),
        }
    }

    pub(super) fn newest(&self) -> Collection {
        match self {
            Self::Still(still) => still.collection,
            Self::Live(live) => live.newest(Instant::now()),
        }
    }

    /// The call counts as a use of the checkpoint.
    pub(super) fn collection(&self, state: u64) -> Option<Collection> {
        self.collection_at(Instant::now(), state)
    }

    fn collection_at(&self, now: Instant, state: u64) -> Option<Collection> {
        match self {
            Self::Still(still) => (still.collection.state == state).then_some(still.collection),
            Self::Live(live) => {
                let newest = live.newest(now);
                match newest.state == state {
                    true => Some(newest),
                    false => live.view(now, state).map(|view| view.collection),
                }
            }
        }
    }

    pub(super) fn view(&self, state: u64) -> Option<View> {
        match self {
            Self::Still(still) => (still.collection.state == state).then(|| View {
                collection: still.collection,
                vectors: Vectors::Alone(still.segments.clone()),
                changes: still.changes.clone(),
                since_merge: None,
            }),
            Self::Live(live) => live.view(Instant::now(), state),
        }
    }

    pub(super) fn forget_before(&self) {
        if let Self::Live(live) = self {
            let now = Instant::now();
            live.forget_before(now, live.newest(now).state);
        }
    }

    pub(super) fn tidy(&self, all_by: Option<u64>) {
        self.tidy_at(Instant::now(), all_by);
    }

    fn tidy_at(&self, now: Instant, all_by: Option<u64>) {
        if let Self::Live(live) = self
            && live.has_before(now)
        {
            // If a merge ends after this line, `forget_before` does nothing.
            let last = live.newest(now).state;
            let is_over = now.saturating_duration_since(live.asked()) > KEPT;
            if is_over || all_by == Some(last) {
                live.forget_before(now, last);
            }
        }
    }

    pub(super) fn has_before(&self) -> bool {
        match self {
            Self::Still(_) => false,
            Self::Live(live) => live.has_before(Instant::now()),
        }
    }
}

impl Live {
    /// Only this process commits checkpoints, because it has the index's lock.
    fn newest(&self, now: Instant) -> Collection {
        let mut known = self.known.lock();
        let index = self.index.index();
        let mut states = known.states.iter();
        if let Some((collection, _)) = states.find(|state| Arc::ptr_eq(&state.1, &index)) {
            return *collection;
        }
        let collection = Collection::of(index.manifest());
        known.states.push((collection, index));
        known.asked = now;
        // Only the last two checkpoints stay available.
        let older = known.states.len().saturating_sub(2);
        known.states.drain(..older);
        collection
    }

    fn asked(&self) -> Instant {
        self.known.lock().asked
    }

    fn has_before(&self, now: Instant) -> bool {
        // If a merge has ended since the last call, this call notices it.
        self.newest(now);
        self.known.lock().states.len() > 1
    }

    fn forget_before(&self, now: Instant, last: u64) {
        if self.newest(now).state != last {
            return;
        }
        // The index releases its checkpoint first, because the next merge may start as soon as
        // `known` has no older checkpoint.
        self.index.forget_before();
        let mut known = self.known.lock();
        let last = known.states.len().saturating_sub(1);
        // An older checkpoint may have gigabytes of memory, so it is dropped after the lock is
        // released.
        let older: Vec<_> = known.states.drain(..last).collect();
        drop(known);
        drop(older);
    }

    fn view(&self, now: Instant, state: u64) -> Option<View> {
        let newest = self.newest(now);
        let mut known = self.known.lock();
        let mut states = known.states.iter();
        let (collection, index) = states.find(|known| known.0.state == state)?.clone();
        if newest.state != state {
            known.asked = known.asked.max(now);
        }
        drop(known);
        let (before, now) = self.index.snapshots();
        let changed = |of: Snapshot| Changes {
            overlay: of.overlay,
            moment: of.moment,
        };
        let (changes, since_merge) = match before {
            _ if Arc::ptr_eq(&now.index, &index) => (changed(now), None),
            Some(before) if Arc::ptr_eq(&before.index, &index) => {
                (changed(before), Some(changed(now)))
            }
            _ => return None,
        };
        Some(View {
            collection,
            vectors: Vectors::Of(index),
            changes,
            since_merge,
        })
    }
}

#[cfg(test)]
mod tests {
    use stratann_vector::Element;

    use super::*;
    use crate::data::Matrix;
    use crate::progress::Silent;
    use crate::{BuildOptions, OpenOptions, WriteOptions, build};

    fn rows(count: usize) -> Matrix {
        let bytes = (0..16 * count).map(|at| (at * 37 + at / 16) as u8);
        Matrix::new(bytes.collect(), count, 16, Element::U8).unwrap()
    }

    fn merged(folder: &Path) -> (States, [u64; 2]) {
        let options = BuildOptions {
            degree: Some(4),
            threads: 1,
            ..BuildOptions::default()
        };
        build(&rows(40), folder, &options, &Silent).unwrap();
        let live = LiveIndex::open(folder, &OpenOptions::default(), &WriteOptions::default());
        let states = States::live(Arc::new(live.unwrap()));
        let first = states.newest().state;
        merge(&states, 100);
        let second = states.newest().state;
        assert_ne!(first, second);
        (states, [first, second])
    }

    fn merge(states: &States, id: u64) {
        let live = states.index().unwrap();
        live.upsert(&rows(1), &[id], &Silent).unwrap();
        live.compact(&Silent).unwrap();
    }

    fn has(states: &States, now: Instant, state: u64) -> bool {
        let collection = states.collection_at(now, state);
        assert!(collection.is_none_or(|collection| collection.state == state));
        collection.is_some()
    }

    #[test]
    fn the_state_before_is_kept_as_long_as_somebody_goes_by_it() {
        let folder = tempfile::tempdir().unwrap();
        let (states, [first, second]) = merged(&folder.path().join("index"));
        let (began, step) = (Instant::now(), KEPT / 4);
        // For an hour, calls request the older checkpoint again and again.
        let mut now = began;
        while now < began + 60 * KEPT {
            now += step;
            states.tidy_at(now, None);
            assert!(has(&states, now, first), "after {:?}", now - began);
        }
        // Uses of other checkpoints do not prolong the life of the older checkpoint.
        let last = now;
        while now < last + KEPT {
            states.tidy_at(now, None);
            assert!(states.has_before(), "{:?} behind the last", now - last);
            assert!(has(&states, now, second) && !has(&states, now, first ^ second));
            now += step;
        }
        now += step;
        states.tidy_at(now, None);
        assert!(!states.has_before());
        assert!(!has(&states, now, first) && has(&states, now, second));
    }

    #[test]
    fn a_merge_that_nobody_has_asked_for_yet_begins_the_time_anew() {
        let folder = tempfile::tempdir().unwrap();
        let (states, [first, second]) = merged(&folder.path().join("index"));
        let later = Instant::now() + 2 * KEPT;
        states.tidy_at(later, None);
        assert!(!has(&states, later, first));
        merge(&states, 101);
        let found = later + KEPT;
        states.tidy_at(found, None);
        assert!(states.has_before());
        states.tidy_at(found + KEPT, None);
        assert!(has(&states, found + KEPT, second));
        let end = found + 2 * KEPT + Duration::from_millis(1);
        states.tidy_at(end, None);
        assert!(!has(&states, end, second));
    }

    #[test]
    fn once_all_go_by_the_last_state_the_one_before_is_given_up() {
        let folder = tempfile::tempdir().unwrap();
        let (states, [first, second]) = merged(&folder.path().join("index"));
        let now = Instant::now();
        for not_yet in [None, Some(first), Some(first ^ second)] {
            states.tidy_at(now, not_yet);
            assert!(has(&states, now, first), "{not_yet:?}");
        }
        // The checkpoint that the servers use is not the last one any more.
        merge(&states, 101);
        states.tidy_at(now, Some(second));
        assert!(has(&states, now, second));
        let third = states.newest().state;
        states.tidy_at(now, Some(third));
        assert!(!states.has_before());
        assert!(!has(&states, now, second) && has(&states, now, third));
    }
}
