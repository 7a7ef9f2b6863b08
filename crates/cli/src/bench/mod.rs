//! `stratann bench`: benchmarks as data.
//!
//! ```text
//! job.rs      JOB.toml: data, builds and searches, and what a mistake in it is called
//! run.rs      builds what is missing, searches in turns (A B A B), medians
//! report.rs   the result as JSON and as tables; results of other programs
//! plot.rs     recall against reads and against queries a second, as SVG
//! machine.rs  what it ran on
//! ```

pub mod job;
pub mod machine;
pub mod plot;
pub mod report;
pub mod run;
