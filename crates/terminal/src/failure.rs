//! The end of a command: three exit statuses, and a line on standard error.

use std::io::{ErrorKind, Write};
use std::path::Path;
use std::process::ExitCode;

/// Why a command failed.
#[derive(Debug)]
pub enum Failure {
    /// The command line is invalid. The exit status is 2.
    Wrong(String),
    /// The command failed. The exit status is 1.
    Failed(String),
    /// The reader of the output has closed the pipe: no error is printed, and the status is 0.
    Closed,
}

impl Failure {
    /// Creates the error of a failed operation on a user's file or folder.
    pub fn file(what: &str, path: &Path, error: &std::io::Error) -> Failure {
        let parent = path.parent().filter(|parent| *parent != Path::new(""));
        let remedy = match (error.kind(), parent) {
            (ErrorKind::NotFound | ErrorKind::NotADirectory, Some(parent)) if !parent.is_dir() => {
                format!(". The directory {} does not exist", parent.display())
            }
            (ErrorKind::NotFound | ErrorKind::NotADirectory, _) => ". Check the path".to_owned(),
            (ErrorKind::PermissionDenied, _) => ". Check the permissions".to_owned(),
            (ErrorKind::ReadOnlyFilesystem, _) => {
                ". Choose a place that is not mounted read-only".to_owned()
            }
            (ErrorKind::StorageFull | ErrorKind::QuotaExceeded, _) => {
                ". Free some space there".to_owned()
            }
            (ErrorKind::IsADirectory, _) => ". Give the name of a file".to_owned(),
            _ => String::new(),
        };
        Failure::Failed(format!("cannot {what} {}: {error}{remedy}", path.display()))
    }
}

impl From<stratann::Error> for Failure {
    fn from(error: stratann::Error) -> Failure {
        let wrong = match &error {
            stratann::Error::Data(data) => data.is_call_wrong(),
            error => error.is_call_wrong(),
        };
        if wrong {
            Failure::Wrong(error.to_string())
        } else {
            Failure::Failed(error.to_string())
        }
    }
}

impl From<stratann::data::DataError> for Failure {
    fn from(error: stratann::data::DataError) -> Failure {
        stratann::Error::from(error).into()
    }
}

/// This error is about standard output. [`Failure::file`] converts errors of files.
impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Failure {
        match error.kind() {
            ErrorKind::BrokenPipe => Failure::Closed,
            _ => Failure::Failed(format!("cannot write the output: {error}")),
        }
    }
}

impl From<serde_json::Error> for Failure {
    fn from(error: serde_json::Error) -> Failure {
        match error.io_error_kind() {
            Some(ErrorKind::BrokenPipe) => Failure::Closed,
            _ => Failure::Failed(format!("cannot write the JSON: {error}")),
        }
    }
}

/// Prints the error on standard error, and returns the exit status.
pub fn report(outcome: Result<(), Failure>) -> ExitCode {
    let (message, status) = match outcome {
        Ok(()) | Err(Failure::Closed) => return ExitCode::SUCCESS,
        Err(Failure::Failed(message)) => (message, 1),
        Err(Failure::Wrong(message)) => (message, 2),
    };
    let _ = writeln!(std::io::stderr(), "error: {message}");
    ExitCode::from(status)
}
