//! How thorough a test is: by default as thorough as a few minutes for all of them allow.

use stratann_tier::testing::Crash;

/// Whether tests may take minutes each: `make test-slow`, or `STRATANN_SLOW=1`.
pub(crate) fn slow() -> bool {
    std::env::var_os("STRATANN_SLOW").is_some()
}

/// The ways to crash that are tried at the operation with this number: all in the slow tests, one by default. That is another one at
/// the next operation, and shifts every three, so that what is done in steps of three meets each of them.
pub(crate) fn crashes(at: u64) -> Vec<Crash> {
    match slow() {
        true => Crash::ALL.to_vec(),
        false => vec![Crash::ALL[((at + at / 3) % 3) as usize]],
    }
}

/// One in `few` by default, the first among them, and all in the slow tests: the step from one to the next.
pub(crate) fn step(few: usize) -> usize {
    if slow() { 1 } else { few }
}
