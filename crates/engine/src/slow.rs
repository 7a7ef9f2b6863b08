//! Thoroughness of tests: by default, all tests together fit into a few minutes.

use stratann_tier::testing::Crash;

/// Whether each test may take minutes: `make test-slow`, or `STRATANN_SLOW=1`.
pub(crate) fn slow() -> bool {
    std::env::var_os("STRATANN_SLOW").is_some()
}

/// The crash modes to try at the operation with this number: all in slow tests, and one by default.
/// The mode changes with each operation and shifts every three, so that work in steps of three
/// meets each mode.
pub(crate) fn crashes(at: u64) -> Vec<Crash> {
    match slow() {
        true => Crash::ALL.to_vec(),
        false => vec![Crash::ALL[((at + at / 3) % 3) as usize]],
    }
}

/// The step for trying one case in `few` by default, from the first on, and every case in slow
/// tests.
pub(crate) fn step(few: usize) -> usize {
    if slow() { 1 } else { few }
}
