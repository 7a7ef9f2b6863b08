//! One file a command: read the arguments, call the engine, print. [`target`] is what a search is of.

pub mod advise;
pub mod bench;
pub mod build;
pub mod completions;
pub mod copies;
pub mod memory_server;
pub mod presets;
pub mod repair;
pub mod search;
pub mod stats;
pub mod target;
pub mod train;
pub mod truth;
pub mod update;
pub mod verify;
