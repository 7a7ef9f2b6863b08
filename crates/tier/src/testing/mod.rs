//! Code for tests only, which no release contains (feature `testing`).

pub mod conformance;
mod faulty;
mod forked;
mod meter;
pub(crate) mod random;
pub(crate) mod refused;
mod simulated;
mod slow;
mod split;

pub use faulty::{Fault, Faults, Faulty};
pub use forked::forked;
pub use meter::{Meter, Reading};
pub use refused::{refuse_threads_after, threads_left};
pub use simulated::{Crash, Failure, Mishap, Operation, SimVolume};
pub use slow::Slow;
pub use split::SplitVolume;
