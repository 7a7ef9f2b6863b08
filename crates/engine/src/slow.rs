//! Decides how thorough tests are. By default, all tests together take a few minutes.

use stratann_tier::testing::{Crash, Failure, SimVolume};

/// Whether tests may take minutes, as with `make test-slow` or `STRATANN_SLOW=1`.
pub(crate) fn slow() -> bool {
    std::env::var_os("STRATANN_SLOW").is_some()
}

/// Slow tests try all crash modes. Other tests try one mode, which changes with each operation. The
/// mode also shifts after every third operation, so that work which repeats every three operations
/// meets each mode.
pub(crate) fn crashes(at: u64) -> Vec<Crash> {
    match slow() {
        true => Crash::ALL.to_vec(),
        false => vec![Crash::ALL[((at + at / 3) % 3) as usize]],
    }
}

/// A slow test visits every case. Other tests visit every `few`-th case, beginning with the first.
pub(crate) fn step(few: usize) -> usize {
    if slow() { 1 } else { few }
}

pub(crate) struct Crashed {
    /// The number of the operation that crashed, from 0.
    pub(crate) at: u64,
    pub(crate) volume: SimVolume,
    pub(crate) acknowledged: usize,
    pub(crate) modes: Vec<Crash>,
}

/// Makes machines that crash during one operation of `work`, and calls `check` with each machine.
/// The work begins on a copy of `before`. `work` calls its second argument at each acknowledgement,
/// `all` times if nothing fails. Returns the number of operations.
///
/// In slow tests, the work runs again for a crash at each operation. By default, only the first,
/// the last and every third operation have a crash. For every twelfth operation, the work runs
/// again. For the rest of these operations, `check` gets a state that one run without failures
/// recorded.
///
/// `shift` chooses the operations and their crash modes ([`crashes`]). Each case of a test has
/// another number.
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
        if !slow() && !is_end && !(at + shift).is_multiple_of(3) {
            continue;
        }
        // An acknowledgement counts only if the work before it ended before the crash.
        let done = acknowledged.partition_point(|&end| end <= start + at);
        let mut crashed = Crashed {
            at,
            acknowledged: done,
            volume: machine,
            modes: crashes((at + shift) / 3),
        };
        if slow() || (at + shift).is_multiple_of(12) {
            crashed.volume = before.fork();
            crashed.volume.fail_after(at, Failure::Crash);
            crashed.acknowledged = 0;
            // Threads may order the operations of this run otherwise, so the number of
            // acknowledgements before the crash may differ from `done`.
            work(&crashed.volume, &mut || crashed.acknowledged += 1);
        }
        check(crashed);
    }
    operations
}
