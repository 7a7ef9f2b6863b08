//! The `stratann` command as a user runs it: one binary of tests, since each would link the whole engine.

#![forbid(unsafe_code)]

mod advise;
mod bench;
mod bounds;
mod catalog;
mod clusters;
mod direct;
mod disk;
mod layouts;
mod memory;
mod places;
mod refusals;
mod repair;
mod resume;
mod support;
mod tour;
mod update;
