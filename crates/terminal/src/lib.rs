//! Terminal input and output for the command and its benchmarks, without knowledge of commands.
//!
//! ```text
//! progress.rs  bars on a terminal, log lines elsewhere, the signals that end a program
//! table.rs     aligned tables;   output.rs  standard output, pipes that close early
//! logger.rs    events on standard error: lines, lines with the time, JSON
//! size.rs      `2GiB`, `64MB` and back;   failure.rs  errors and exit statuses
//! ```

#![forbid(unsafe_code)]

pub mod failure;
pub mod logger;
pub mod output;
pub mod progress;
pub mod size;
pub mod table;
