//! The harness behind `stratann bench`: benchmarks as data.
//!
//! ```text
//! job.rs      JOB.toml: data, builds and searches, and the errors in it
//! run.rs      builds missing indexes, searches in turns (A B A B), medians
//! measured.rs the measurements of a search, as `stratann search --json` prints them
//! report.rs   the result as JSON; results of other programs
//! space.rs    sizes of the indexes;   budget.rs  gain from more memory
//! live/       jobs of live updates: searches during inserts, deletes and merges
//! tables.rs   the result for a terminal
//! plot.rs     reads and queries a second across recall or memory, live updates over time, as SVG
//! machine.rs  the machine
//! advise.rs   the presets that suit a collection and a device (`stratann advise`)
//! ```

#![forbid(unsafe_code)]

pub mod advise;
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
