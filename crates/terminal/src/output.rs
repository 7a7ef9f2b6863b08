//! Standard output, and files for results. Unlike `println!`, these functions do not panic on a
//! closed pipe.

use std::fs::File;
use std::io::{self, BufWriter, StdoutLock, Write};
use std::path::Path;

use serde::Serialize;

use crate::failure::Failure;

/// Buffered standard output.
pub struct Output(BufWriter<StdoutLock<'static>>);

impl Output {
    /// Locks standard output.
    pub fn lock() -> Output {
        Output(BufWriter::new(io::stdout().lock()))
    }

    /// Writes one line of text.
    pub fn line(&mut self, text: impl AsRef<str>) -> Result<(), Failure> {
        writeln!(self.0, "{}", text.as_ref())?;
        Ok(())
    }

    /// Writes text that contains its own line ends, such as a table.
    pub fn text(&mut self, text: impl AsRef<str>) -> Result<(), Failure> {
        self.0.write_all(text.as_ref().as_bytes())?;
        Ok(())
    }

    /// Writes one JSON object on one line, and flushes the line for a reader that follows.
    pub fn json_line<T: Serialize>(&mut self, value: &T) -> Result<(), Failure> {
        serde_json::to_writer(&mut self.0, value)?;
        writeln!(self.0)?;
        self.0.flush()?;
        Ok(())
    }

    /// Writes one JSON document over several lines.
    pub fn json_document<T: Serialize>(&mut self, value: &T) -> Result<(), Failure> {
        serde_json::to_writer_pretty(&mut self.0, value)?;
        writeln!(self.0)?;
        Ok(())
    }

    /// Flushes the output. Otherwise, an error of the last bytes would be lost.
    pub fn finish(mut self) -> Result<(), Failure> {
        self.0.flush()?;
        Ok(())
    }
}

/// Refuses, before the work, a file that cannot be written, or that exists without `overwrite`.
pub fn refuse(path: &Path, overwrite: bool) -> Result<(), Failure> {
    if path.is_dir() {
        return Err(Failure::Wrong(format!(
            "{} is a directory. Give the name of a file",
            path.display()
        )));
    }
    if path.exists() {
        return match overwrite {
            true => Ok(()),
            false => Err(Failure::Wrong(format!(
                "{} exists already. Choose another name, or give --overwrite",
                path.display()
            ))),
        };
    }
    // Creating a file is the only reliable test.
    File::create_new(path)
        .and_then(|_| std::fs::remove_file(path))
        .map_err(|error| Failure::file("create", path, &error))
}
