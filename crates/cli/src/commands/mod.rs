//! One file a command: read the arguments, call the engine, print.

pub mod bench;
pub mod build;
pub mod completions;
pub mod presets;
pub mod search;
pub mod stats;
pub mod truth;
pub mod verify;
