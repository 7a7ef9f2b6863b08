//! Runs the `stratann` command as a user does. All tests are in one binary, because each binary
//! links the whole engine.

#![forbid(unsafe_code)]

mod advise;
mod attributes;
mod bench;
mod bounds;
mod catalog;
mod cluster;
mod clusters;
mod create;
mod direct;
mod disk;
mod embeddings;
mod export;
mod get;
mod insert;
mod interrupts;
mod layouts;
mod linked;
mod memory;
mod parquet;
mod places;
mod recall;
mod refusals;
mod refused_memory;
mod repair;
mod resume;
mod snapshot;
mod support;
mod tour;
mod update;
mod written;
