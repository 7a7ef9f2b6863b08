//! The harness behind `stratann bench`: benchmarks as data. The command reads its arguments and prints what comes of them.
//!
//! ```text
//! job.rs      JOB.toml: data, builds and searches, and what a mistake in it is called
//! run.rs      builds what is missing, searches in turns (A B A B), medians
//! measured.rs what a search measured, as `stratann search --json` says it
//! report.rs   the result as JSON; results of other programs
//! space.rs    what the indexes take;   budget.rs  what memory buys
//! live/       jobs of live updates: what happens while inserts, deletes and merges go on
//! tables.rs   the result for a terminal
//! plot.rs     reads and queries a second, across recall or across memory, and live updates over time, as SVG
//! machine.rs  what it ran on
//! ```

#![forbid(unsafe_code)]

pub mod budget;
pub mod job;
pub mod live;
pub mod machine;
pub mod measured;
pub mod plot;
pub mod report;
pub mod run;
pub mod space;
pub mod tables;
