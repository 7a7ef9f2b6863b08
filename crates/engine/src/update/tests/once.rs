//! In each run, another operation of a script fails once. The failed call is repeated, if necessary
//! through another handle. At the end, the process is killed, or the machine crashes.
//!
//! A failed sync discards the unsynced data, as on Linux.

use stratann_tier::testing::{Mishap, Operation};

use super::*;
use crate::plan::refusal;
use crate::slow::step;

#[derive(Clone, Copy, Debug)]
pub(super) enum What {
    Call(u64),
    Nth(Operation, u64),
    /// The start of the thread with this number, and all later starts until a call fails.
    Thread(u64),
    /// The request to the memory budget with this number.
    Budget(u64),
}

struct Once<'a> {
    case: Case,
    folder: &'a Path,
    volume: SimVolume,
    place: String,
}

impl Once<'_> {
    fn open(&self) -> LiveIndex {
        let open = || open(self.case, &self.volume, self.folder, Durability::Always);
        open()
            .or_else(|_| {
                stratann_tier::testing::refuse_threads_after(None);
                open()
            })
            .unwrap_or_else(|error| panic!("{}: opened again: {error}", self.place))
    }

    fn make(&self, call: &Call, mut live: LiveIndex) -> LiveIndex {
        let Err(mut error) = call.make(&live) else {
            return live;
        };
        stratann_tier::testing::refuse_threads_after(None);
        for _ in 0..2 {
            // The call may have made some of its changes.
            let again = match call {
                Call::Insert(ids, version) => Call::Upsert(ids.clone(), *version),
                Call::Delete(ids) => {
                    let mut left = ids.clone();
                    left.retain(|&id| live.contains(id).unwrap());
                    Call::Delete(left)
                }
                other => other.clone(),
            };
            match again.make(&live) {
                Ok(()) => return live,
                Err(again) => error = again,
            }
            drop(live);
            live = self.open();
        }
        panic!("{}: {call:?}: {error}", self.place);
    }

    /// Returns whether the script has reached the failing operation.
    fn run(&self, what: What) -> bool {
        let mut model = first();
        let mut live = self.open();
        for call in script() {
            live = self.make(&call, live);
            call.apply(&mut model);
        }
        let met = match what {
            What::Thread(_) => {
                let left = stratann_tier::testing::threads_left();
                stratann_tier::testing::refuse_threads_after(None);
                left.is_none_or(|left| left == 0)
            }
            What::Budget(_) => {
                let left = refusal::left();
                refusal::after(None);
                left.is_none()
            }
            What::Call(_) | What::Nth(..) => self.volume.failed().is_some(),
        };
        assert_eq!(contents(&live), model, "{}", self.place);
        assert_eq!(live.len(), model.len(), "{}", self.place);
        let killed = ("killed", self.volume.fork());
        let crashed = [Crash::Dropped, Crash::Torn, Crash::Reordered];
        let crashed = crashed.map(|mode| ("crashed", self.volume.crash_image(1, mode)));
        for (end, image) in [killed].into_iter().chain(crashed) {
            let place = format!("{}, {end}", self.place);
            let again = open(self.case, &image, self.folder, Durability::Always)
                .unwrap_or_else(|error| panic!("{place}: {error}"));
            assert_eq!(contents(&again), model, "{place}");
            drop(again);
            let report = verify_in(&image, &Silent).unwrap();
            assert!(report.clean(), "{place}: {:?}", report.problems);
        }
        drop(live);
        met
    }
}

fn once(case: Case, before: &SimVolume, folder: &Path, what: What, mishap: Mishap) -> bool {
    let volume = before.fork();
    volume.discard_failed_syncs(true, true);
    match what {
        What::Call(at) => volume.fail_call(at, mishap),
        What::Nth(operation, at) => volume.fail_nth(operation, at, mishap),
        What::Thread(at) => stratann_tier::testing::refuse_threads_after(Some(at)),
        What::Budget(at) => refusal::after(Some(at)),
    }
    let place = format!("{case:?}, {what:?}, {mishap:?}");
    let once = Once {
        case,
        folder,
        volume,
        place,
    };
    once.run(what)
}

/// Makes one run for every `step`-th operation and each mishap. Returns the number of runs that
/// failed.
fn each(case: Case, kind: impl Fn(u64) -> What, mishaps: &[Mishap], step: usize) -> usize {
    each_of(case, SimVolume::new(), kind, mishaps, step)
}

pub(super) fn each_of(
    case: Case,
    before: SimVolume,
    kind: impl Fn(u64) -> What,
    mishaps: &[Mishap],
    step: usize,
) -> usize {
    let folder = tempfile::tempdir().unwrap();
    build_base(case, BASE, Arc::new(before.clone()), folder.path());
    let mut met = 0;
    // The history without a failure has at most this number of operations of the kind.
    let mut end = u64::MAX;
    let number = CASES.iter().position(|&other| other == case).unwrap();
    for &mishap in mishaps {
        let first = (met + number) % step;
        for at in (first as u64..end).step_by(step) {
            if !once(case, &before, folder.path(), kind(at), mishap) {
                end = at;
                break;
            }
            met += 1;
        }
    }
    met
}

#[test]
fn any_operation_may_fail_once_and_nothing_is_lost() {
    let step = step(293);
    let mishaps = [Mishap::Undone, Mishap::NoRoom, Mishap::Done];
    let met = CASES.map(|case| each(case, What::Call, &mishaps, step));
    assert!(met.iter().sum::<usize>() > 30, "{met:?}");
}

#[test]
fn any_sync_of_a_file_may_fail_and_discard_what_it_was_to_keep() {
    let step = step(13);
    let kind = |at| What::Nth(Operation::Sync, at);
    let met = CASES.map(|case| each(case, kind, &[Mishap::Undone], step));
    assert!(met.iter().sum::<usize>() > 23, "{met:?}");
}

#[test]
fn any_commit_may_fail_at_its_rename_and_behind_it() {
    let few = step(11);
    let kind = |at| What::Nth(Operation::SyncNames, at);
    let mishaps = [Mishap::Undone, Mishap::Done];
    let met = CASES.map(|case| each(case, kind, &mishaps, few));
    assert!(met.iter().sum::<usize>() > 21, "{met:?}");
    let kind = |at| What::Nth(Operation::Rename, at);
    let few = step(5);
    let met = CASES.map(|case| each(case, kind, &mishaps, few));
    assert!(met.iter().sum::<usize>() > 13, "{met:?}");
}

#[test]
fn any_start_of_a_thread_may_be_refused() {
    let step = step(13);
    let met = CASES.map(|case| each(case, What::Thread, &[Mishap::Undone], step));
    assert!(met.iter().sum::<usize>() > 10, "{met:?}");
}

#[test]
fn any_budget_may_be_too_small_once() {
    let step = step(4);
    let met = CASES.map(|case| each(case, What::Budget, &[Mishap::Undone], step));
    assert!(met.iter().sum::<usize>() > 10, "{met:?}");
}
