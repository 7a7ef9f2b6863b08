//! The memory server of files: serves a [`Store`].

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use stratann_tier::remote::wire::Protocol;

use crate::listen::{Guest, Listening, Service};
use crate::options::{NodeError, Options, resolve};
use crate::session::Session;
use crate::store::Store;

/// A running memory server of files, until it is dropped.
pub struct Running {
    listening: Listening,
    files: Arc<Files>,
}

struct Files {
    store: Store,
}

impl Service for Files {
    fn protocol(&self) -> Protocol {
        Protocol::Files
    }

    fn serve(&self, client: Guest<'_>) -> io::Result<()> {
        Session::new(&self.store, client.stream).serve(client.stop, client.patience)
    }
}

impl Running {
    /// Starts the server on threads of its own.
    ///
    /// # Errors
    /// The address is not available, or is reachable from other machines without a secret. UCX is
    /// not available, has no secret, or is combined with a certificate.
    pub fn start(store: Store, options: Options) -> Result<Running, NodeError> {
        let (_, loopback) = resolve(&options)?;
        options.check_ucx()?;
        let store = match options.ucx {
            true => store.with_ucx(loopback)?,
            false => store,
        };
        let files = Arc::new(Files { store });
        Ok(Running {
            listening: Listening::start(files.clone(), options)?,
            files,
        })
    }

    /// The address at which the server listens.
    pub fn address(&self) -> SocketAddr {
        self.listening.address()
    }

    /// The files of the server.
    pub fn store(&self) -> &Store {
        &self.files.store
    }

    /// Closes all connections. Clients may connect again.
    pub fn hang_up(&self) {
        self.listening.hang_up();
    }

    /// Waits until the server fails.
    pub fn wait(self) {
        self.listening.wait();
    }
}
