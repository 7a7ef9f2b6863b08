//! stratann
#![forbid(unsafe_code)]

pub mod data;
pub mod graph;
pub mod progress;
