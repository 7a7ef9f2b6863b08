//! `stratann cluster up INDEX`: all servers of an index on one machine, in one process.

use std::net::SocketAddr;
use std::sync::Arc;

use stratann::IoMode;
use stratann::press::Low;
use stratann_node::Options;
use stratann_node::serve::{
    ComputeServer, Http, MemoryOfIndex, Page, Place, Report, StorageOfIndex,
};
use stratann_terminal::failure::Failure;
use stratann_terminal::progress::Shown;
use stratann_terminal::size;

use crate::args::UpArguments;
use crate::commands::servers::{
    computing, listening, not_started, refused, serve_http, until_stopped,
};

/// All servers of an index. Each server is dropped before the servers that it asks.
struct Servers {
    compute: Vec<ComputeServer<Low>>,
    memory: MemoryOfIndex,
    storage: StorageOfIndex,
}

impl Servers {
    /// Compute servers come first, because clients depend on them directly.
    fn report(&self, page: Page) -> Report {
        let mut report = Report::default();
        for server in &self.compute {
            let address = server.address().to_string();
            let name = format!("compute server {address}");
            report.join(&name, &address, server.report(page));
        }
        report.join("memory server", "memory", self.memory.report());
        report.join("storage", "storage", self.storage.report());
        report
    }
}

pub fn up(arguments: &UpArguments, quiet: bool) -> Result<(), Failure> {
    let addresses = addresses(arguments.listen, arguments.servers)?;
    let listen = listening(&arguments.listen.to_string(), &arguments.server)?;
    for address in &addresses[1..] {
        let mut other = listen.clone();
        other.listen = address.to_string();
        other.check().map_err(refused)?;
        if let Some(http) = &arguments.server.http {
            Http::check(http, &other).map_err(refused)?;
        }
    }
    // These two servers listen at an address, but other processes do not know their random secret.
    let own = || Options::private().map_err(refused);
    let (index, changes) = (&arguments.index, arguments.changes);
    let storage = StorageOfIndex::start(index, 1, IoMode::Auto, changes, own()?);
    let storage = storage.map_err(not_started)?;
    let batch = !arguments.compute.no_batch;
    let memory = MemoryOfIndex::start(index, changes, batch, own()?, &Shown::new(quiet));
    let memory = memory.map_err(not_started)?;
    let mut lines = vec![format!(
        "memory server and storage in this process, {} of lists and codes; {}",
        size::format(memory.memory_bytes()),
        match changes {
            true => "they accept changes",
            false => "they accept changes only with --changes",
        }
    )];
    let mut compute = Vec::with_capacity(arguments.servers);
    for (number, address) in addresses.into_iter().enumerate() {
        let mut own = listen.clone();
        own.listen = address.to_string();
        if number > 0 {
            own.ring = None;
        }
        let options = computing(&arguments.compute, own);
        let memory = Place::Local(memory.server().door());
        let storage = Place::Local(storage.server().door());
        let server = ComputeServer::<Low>::start(memory, storage, options).map_err(refused)?;
        lines.push(format!("compute server listening on {}", server.address()));
        compute.push(server);
    }
    let servers = Arc::new(Servers {
        compute,
        memory,
        storage,
    });
    let asked = servers.clone();
    let http = serve_http(arguments.server.http.as_deref(), move |page| {
        asked.report(page)
    })?;
    until_stopped(&lines, http.as_ref())
}

fn addresses(first: SocketAddr, servers: usize) -> Result<Vec<SocketAddr>, Failure> {
    let port = first.port();
    let last = u16::try_from(servers - 1).ok();
    if port != 0 && last.and_then(|last| port.checked_add(last)).is_none() {
        return Err(Failure::Wrong(format!(
            "--servers {servers} is too many; fewer ports are left from {port} on. Give a lower first port (--listen)"
        )));
    }
    let at = |number: u16| {
        let port = if port == 0 { 0 } else { port + number };
        SocketAddr::new(first.ip(), port)
    };
    Ok((0..=last.unwrap_or(0)).map(at).collect())
}
