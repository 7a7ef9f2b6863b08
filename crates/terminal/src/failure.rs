//! The end of a command: three exit statuses or a signal, and one line on standard error with the
//! reason.

use std::io::{ErrorKind, Write};
use std::path::Path;
use std::process::ExitCode;

use crate::progress;

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

/// The error of a command that a signal asked to stop too late.
const COMPLETE: &str = "interrupted; the command was complete by then, and its result is kept";

/// Prints the error on standard error, and returns the exit status. If a signal asked the command
/// to stop, the signal ends the program instead.
pub fn report(outcome: Result<(), Failure>) -> ExitCode {
    let (message, status) = match outcome {
        // A loop of a shell ends here too, so the user gets the reason.
        Ok(()) if progress::interrupted_by().is_some() => (Some(COMPLETE.to_owned()), 0),
        Ok(()) | Err(Failure::Closed) => (None, 0),
        Err(Failure::Failed(message)) => (Some(message), 1),
        Err(Failure::Wrong(message)) => (Some(message), 2),
    };
    if let Some(message) = message {
        // If standard error is closed, only the exit status reports the error.
        let _ = writeln!(std::io::stderr(), "error: {message}");
    }
    // A signal would discard output that is not written yet. An error was reported already.
    let _ = std::io::stdout().flush();
    if let Some(signal) = progress::interrupted_by() {
        progress::end_by(signal);
    }
    ExitCode::from(status)
}

#[cfg(all(test, unix))]
mod tests {
    use std::os::unix::process::ExitStatusExt;
    use std::process::Command;

    use super::*;

    /// Names the case for the process that the test starts.
    const CASE: &str = "STRATANN_TEST_OF_SIGNALS";

    /// A signal ends its whole process, so each case runs in a process of its own: this test again.
    #[test]
    fn a_signal_ends_a_command_after_its_text() {
        if let Some(case) = std::env::var_os(CASE) {
            return stopped(&case.to_string_lossy());
        }
        for (case, signal, text) in [
            (
                "complete",
                Some(15),
                "error: interrupted; the command was complete",
            ),
            ("failed", Some(15), "error: interrupted: why"),
            ("server", None, ""),
        ] {
            let name = "failure::tests::a_signal_ends_a_command_after_its_text";
            let ended = Command::new(std::env::current_exe().unwrap())
                .args(["--exact", name, "--nocapture"])
                .env(CASE, case)
                .output()
                .unwrap();
            let (out, said) = (ended.stdout, String::from_utf8(ended.stderr).unwrap());
            assert_eq!(ended.status.signal(), signal, "{case}: {said}");
            assert!(
                said.contains("stopping") && said.contains(text),
                "{case}: {said}"
            );
            assert!(
                String::from_utf8_lossy(&out).contains("a result"),
                "{case}: {out:?}"
            );
            assert_eq!(said.contains("error"), signal.is_some(), "{case}: {said}");
        }
    }

    /// The end of a command that SIGTERM asked to stop.
    fn stopped(case: &str) {
        progress::catch_interrupts();
        let own = std::process::id().to_string();
        let sent = Command::new("kill").args(["-TERM", &own]).status();
        assert!(sent.unwrap().success());
        while !progress::interrupted() {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        let mut output = crate::output::Output::lock();
        output.text("a result").unwrap();
        output.finish().unwrap();
        let outcome = match case {
            "failed" => Err(Failure::Failed("interrupted: why".into())),
            "server" => {
                progress::end_without_signal();
                Ok(())
            }
            _ => Ok(()),
        };
        assert_eq!(report(outcome), ExitCode::SUCCESS);
    }
}
