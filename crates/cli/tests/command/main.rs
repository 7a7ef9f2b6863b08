//! The `stratann` command as a user runs it: one binary of tests, since each would link the whole engine.

#![forbid(unsafe_code)]

mod bench;
mod refusals;
mod support;
mod tour;
