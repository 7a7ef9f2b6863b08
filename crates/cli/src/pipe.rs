//! Reads pipes in a thread, so that Ctrl-C ends the command while a pipe is silent.

use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel};
use std::time::Duration;

use stratann::Error;
use stratann_terminal::failure::Failure;
use stratann_terminal::progress::interrupted;

const LOOK: Duration = Duration::from_millis(50);

/// The bytes are empty at the end of the pipe. An error comes with the name of the failed action.
type Part = Result<Vec<u8>, (&'static str, std::io::Error)>;

/// Whether a path names a pipe or a device. The path `-` is the standard input.
pub fn is_one(path: &Path) -> Result<bool, Failure> {
    if path.as_os_str() == "-" {
        return Ok(true);
    }
    let kind = std::fs::metadata(path).map_err(|error| Failure::file("open", path, &error))?;
    Ok(!kind.is_file() && !kind.is_dir())
}

/// Reads a pipe to its end, and passes each part to `each`. The path `-` is the standard input.
pub fn read(
    path: &Path,
    mut each: impl FnMut(&[u8]) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let failed = |action: &str, error| Failure::file(action, path, &error);
    let (sender, parts) = sync_channel(1);
    let pipe = path.to_owned();
    let send = move || match pipe.as_os_str() == "-" {
        true => send_parts(std::io::stdin(), &sender),
        false => open_and_send(&pipe, &sender),
    };
    let started = stratann::start_thread(std::thread::Builder::new(), send);
    started.map_err(|error| failed("read", error))?;
    loop {
        if interrupted() {
            return Err(Error::Interrupted.into());
        }
        let part = match parts.recv_timeout(LOOK) {
            Err(RecvTimeoutError::Timeout) => continue,
            Err(ended) => return Err(failed("read", std::io::Error::other(ended))),
            Ok(part) => part.map_err(|(action, error)| failed(action, error))?,
        };
        if part.is_empty() {
            return Ok(());
        }
        each(&part)?;
    }
}

/// The opening may wait for the program at the other end.
fn open_and_send(path: &Path, parts: &SyncSender<Part>) {
    match File::open(path) {
        Ok(pipe) => send_parts(pipe, parts),
        Err(error) => {
            let _ = parts.send(Err(("open", error)));
        }
    }
}

fn send_parts(mut pipe: impl Read, parts: &SyncSender<Part>) {
    loop {
        let mut part = vec![0; 1 << 16];
        let part = match pipe.read(&mut part) {
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
            Err(error) => Err(("read", error)),
            Ok(bytes) => {
                part.truncate(bytes);
                Ok(part)
            }
        };
        let is_last = part.as_ref().map_or(true, Vec::is_empty);
        if parts.send(part).is_err() || is_last {
            return;
        }
    }
}
