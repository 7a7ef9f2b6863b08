//! How thorough tests are. By default, all tests together take a few minutes.

use stratann_tier::testing::{Crash, Failure, SimVolume};

/// Whether a test may take minutes, as with `make test-slow` or `STRATANN_SLOW=1`.
pub(crate) fn slow() -> bool {
    std::env::var_os("STRATANN_SLOW").is_some()
}

/// The crash modes to try at the operation with this number: all in slow tests, and one by default.
/// By default, the mode changes with each operation, and shifts by one after every third operation.
/// So work that repeats every three operations meets each mode.
pub(crate) fn crashes(at: u64) -> Vec<Crash> {
    match slow() {
        true => Crash::ALL.to_vec(),
        false => vec![Crash::ALL[((at + at / 3) % 3) as usize]],
    }
}

/// The step with which a test goes through its cases: every case in slow tests, and one in `few` by
/// default. The first case is always tried.
pub(crate) fn step(few: usize) -> usize {
    if slow() { 1 } else { few }
}

/// A machine that crashed during an operation of some work.
pub(crate) struct Crashed {
    /// The number of the operation. The first one of the work is 0.
    pub(crate) at: u64,
    pub(crate) volume: SimVolume,
    /// The number of acknowledgements before the crash.
    pub(crate) acknowledged: usize,
    pub(crate) modes: Vec<Crash>,
}

/// Crashes during each operation of `work` on `before`. The work calls its second argument at each
/// acknowledgement, which happens `all` times if nothing fails. Returns the number of operations.
///
/// In slow tests, the work runs again for each crash, and meets the failure itself. By default,
/// this happens for every eighth crash. The other crashed machines are recorded states of one run
/// that does not fail. `shift` moves the modes ([`crashes`]).
pub(crate) fn each_crash(
    before: &SimVolume,
    shift: u64,
    all: usize,
    work: impl Fn(&SimVolume, &mut dyn FnMut()),
    mut check: impl FnMut(Crashed),
) -> u64 {
    let start = before.operations();
    let whole = before.fork();
    whole.record();
    let mut acknowledged = Vec::new();
    work(&whole, &mut || acknowledged.push(whole.operations()));
    assert_eq!(acknowledged.len(), all);
    let operations = whole.operations() - start;
    let machines = whole.crashed();
    assert_eq!(machines.len() as u64, operations);
    for (at, machine) in (0..).zip(machines) {
        // An acknowledgement does not count if its work ends with the operation that crashes.
        let done = acknowledged.partition_point(|&end| end <= start + at);
        let mut crashed = Crashed {
            at,
            acknowledged: done,
            volume: machine,
            modes: crashes(at + shift),
        };
        if slow() || at % 8 == 0 {
            crashed.volume = before.fork();
            crashed.volume.fail_after(at, Failure::Crash);
            crashed.acknowledged = 0;
            work(&crashed.volume, &mut || crashed.acknowledged += 1);
            // The count may be higher, if a call ignores failures of its last operations, such as
            // removals.
            assert!(crashed.acknowledged >= done, "operation {at}");
        }
        check(crashed);
    }
    operations
}
