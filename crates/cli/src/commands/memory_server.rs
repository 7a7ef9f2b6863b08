//! `stratann memory-server`

use stratann_node::{Running, Store};
use stratann_terminal::failure::Failure;
use stratann_terminal::output::Output;
use stratann_terminal::size;

use super::servers::{self, listening, refused};
use crate::args::MemoryServerArguments;

pub fn run(arguments: &MemoryServerArguments, quiet: bool) -> Result<(), Failure> {
    if let Some(index) = &arguments.index {
        return servers::memory(arguments, index, quiet);
    }
    let bytes = arguments.bytes.unwrap_or_default();
    if arguments.server.http.is_some() {
        let what = "--http does not apply to a server of files. Name an index, or leave out --http";
        return Err(Failure::Wrong(what.to_owned()));
    }
    let store = match &arguments.folder {
        Some(folder) => Store::in_folder(folder, bytes),
        None => Ok(Store::in_memory(bytes)),
    };
    let store = store.map_err(|error| refused(error.into()))?;
    let options = listening(&arguments.listen, &arguments.server)?;
    // On loopback, the server has at least the user's own secret. At other addresses, it does not
    // start without a secret.
    let how = match &options.certificate {
        Some(_) => "with a secret and TLS",
        None => "with a secret, not encrypted",
    };
    let running = Running::start(store, options).map_err(refused)?;
    // Readers see the line before the wait.
    let mut output = Output::lock();
    output.line(format!(
        "listening on {} {how}, {} of {} free",
        running.address(),
        size::format(running.store().free()),
        size::format(bytes)
    ))?;
    output.finish()?;
    running.wait();
    Err(Failure::Failed(
        "the server has stopped listening. Start it again".to_owned(),
    ))
}
