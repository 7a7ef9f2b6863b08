//! One file or folder for each command: it reads the arguments, calls the engine and prints.
//! [`target`] has the indexes of a search.

pub mod advise;
pub mod answers;
pub mod bench;
pub mod beside;
pub mod build;
pub mod calibrate;
pub mod cluster;
pub mod completions;
pub mod copies;
pub mod count;
pub mod export;
pub mod get;
pub mod insert;
pub mod memory_server;
pub mod near;
pub mod plan;
pub mod presets;
pub mod repair;
pub mod search;
pub mod servers;
pub mod snapshot;
pub mod stats;
pub mod target;
pub mod train;
pub mod truth;
pub mod update;
pub mod verify;
