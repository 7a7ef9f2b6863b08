//! stratann
#![forbid(unsafe_code)]

pub mod data;
pub mod progress;
