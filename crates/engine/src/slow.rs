//! Decides how thorough tests are. By default, all tests together take a few minutes.

use stratann_tier::testing::{Crash, Failure, SimVolume};

/// Whether tests may take minutes, as with `make test-slow` or `STRATANN_SLOW=1`.
pub(crate) fn slow() -> bool {
    std::env::var_os("STRATANN_SLOW").is_some()
}

/// The crash modes to try at the operation with the number `at`. Slow tests try all modes. Other
/// tests try one mode, which changes with each operation, and shifts by one after every third
/// operation. So even work that repeats every three operations meets each mode.
pub(crate) fn crashes(at: u64) -> Vec<Crash> {
    match slow() {
        true => Crash::ALL.to_vec(),
        false => vec![Crash::ALL[((at + at / 3) % 3) as usize]],
    }
}

/// The step with which a test visits its cases. A slow test visits every case. Other tests visit
/// one of `few` cases, and always the first case.
pub(crate) fn step(few: usize) -> usize {
    if slow() { 1 } else { few }
}

/// A machine that crashed during one operation of some work.
pub(crate) struct Crashed {
    /// The number of the operation that crashed. The first operation of the work has number 0.
    pub(crate) at: u64,
    pub(crate) volume: SimVolume,
    /// The number of acknowledgements before the crash.
    pub(crate) acknowledged: usize,
    pub(crate) modes: Vec<Crash>,
}

/// Makes machines that crash during one operation of `work`, and calls `check` with each machine.
/// The work begins on a copy of `before`. It calls its second argument at each acknowledgement,
/// which happens `all` times if nothing fails. Returns the number of operations.
///
/// Slow tests have a crash at each operation. The work runs again for each crash, and meets the
/// failure itself. By default, the first, the last and every third operation have a crash, and the
/// work runs again for every twelfth operation. The other crashed machines are states that were
/// recorded during one run without failures.
///
/// `shift` chooses the operations and their crash modes ([`crashes`]). A test of several cases
/// gives each case another number.
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
        let is_end = at == 0 || at + 1 == operations;
        if !slow() && !is_end && (at + shift) % 3 != 0 {
            continue;
        }
        // If the work before an acknowledgement ends with the operation that crashes, the
        // acknowledgement does not count.
        let done = acknowledged.partition_point(|&end| end <= start + at);
        let mut crashed = Crashed {
            at,
            acknowledged: done,
            volume: machine,
            modes: crashes((at + shift) / 3),
        };
        if slow() || (at + shift) % 12 == 0 {
            crashed.volume = before.fork();
            crashed.volume.fail_after(at, Failure::Crash);
            crashed.acknowledged = 0;
            work(&crashed.volume, &mut || crashed.acknowledged += 1);
            // If a call ignores failures of its last operations, such as removals, it acknowledges
            // its work anyway. So the count may be higher than in the recorded run.
            assert!(crashed.acknowledged >= done, "operation {at}");
        }
        check(crashed);
    }
    operations
}
