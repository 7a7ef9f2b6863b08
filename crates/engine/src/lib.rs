//! stratann
#![forbid(unsafe_code)]
pub mod graph;
pub mod progress;
