//! `stratann memory-server`

use stratann_node::{Certificate, NodeError, Options, Running, Secret, Store, TierError};
use stratann_terminal::failure::Failure;
use stratann_terminal::output::Output;
use stratann_terminal::size;

use crate::args::MemoryServerArguments;

/// Serves until it is killed, which loses nothing that is in a folder.
pub fn run(arguments: &MemoryServerArguments) -> Result<(), Failure> {
    let secret = match &arguments.secret_file {
        Some(path) => Secret::read(path).map(Some),
        None => Secret::of_environment(),
    };
    let secret = secret.map_err(failed)?;
    let certificate = match (&arguments.tls_certificate, &arguments.tls_key) {
        (Some(certificate), Some(key)) => {
            Some(Certificate::read(certificate, key).map_err(refused)?)
        }
        _ => None,
    };
    let store = match &arguments.folder {
        Some(folder) => Store::in_folder(folder, arguments.bytes),
        None => Ok(Store::in_memory(arguments.bytes)),
    };
    let store = store.map_err(|error| refused(error.into()))?;
    let how = match (&secret, &certificate) {
        (Some(_), Some(_)) => "with a secret and TLS",
        (Some(_), None) => "with a secret, not encrypted",
        (None, Some(_)) => "without a secret, with TLS",
        (None, None) => "without a secret",
    };
    let options = Options {
        listen: arguments.listen.clone(),
        ring: arguments.ring.clone(),
        ucx: arguments.ucx,
        secret,
        certificate,
        most_clients: arguments.clients,
        ..Options::default()
    };
    let running = Running::start(store, options).map_err(refused)?;
    // The lock of the output ends before the wait: whoever reads it is to see the line now.
    let mut output = Output::lock();
    output.line(format!(
        "listening on {} {how}, {} of {} free",
        running.address(),
        size::format(running.store().free()),
        size::format(arguments.bytes)
    ))?;
    output.finish()?;
    running.wait();
    Err(Failure::Failed(
        "the server has stopped listening".to_owned(),
    ))
}

fn refused(error: NodeError) -> Failure {
    match error {
        NodeError::Open { .. } => Failure::Wrong(error.to_string()),
        error => Failure::Failed(error.to_string()),
    }
}

fn failed(error: TierError) -> Failure {
    Failure::Failed(error.to_string())
}
