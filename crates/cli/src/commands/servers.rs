//! `stratann memory-server INDEX`, `stratann storage-server` and `stratann compute-server`: the
//! roles of DistVS.

use std::fmt::Display;
use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use stratann::IoMode;
use stratann::press::Low;
use stratann_node::role::Narrowing;
use stratann_node::serve::{
    ComputeServer, ComputeServerOptions, Encryption, Http, MemoryOfIndex, Page, Place, Report,
    StartError, StorageOfIndex,
};
use stratann_node::{Certificate, NodeError, Options, Secret, TierError};
use stratann_terminal::failure::Failure;
use stratann_terminal::output::Output;
use stratann_terminal::progress::{self, Shown};
use stratann_terminal::size;

use crate::args::{
    ComputeArguments, ComputeServerArguments, ListenArguments, MemoryServerArguments,
    ReachArguments, StorageServerArguments, threads_or_cores,
};

/// The interval at which a server checks for a signal.
const LOOKS: Duration = Duration::from_millis(100);

pub fn refused(error: NodeError) -> Failure {
    match &error {
        NodeError::Open { .. }
        | NodeError::UcxWithTls
        | NodeError::UcxWithoutSecret
        | NodeError::HttpAtServer { .. } => Failure::Wrong(error.to_string()),
        NodeError::Listen { source, .. } if source.kind() == ErrorKind::InvalidInput => {
            Failure::Wrong(error.to_string())
        }
        _ => Failure::Failed(error.to_string()),
    }
}

pub fn not_started(error: StartError) -> Failure {
    match error {
        StartError::Index(error) => error.into(),
        StartError::Node(error) => refused(error),
    }
}

pub fn failed(error: TierError) -> Failure {
    Failure::Failed(error.to_string())
}

/// Reads the secret of the file, or else of the environment, or else of the user.
fn secret(file: Option<&Path>, name: &str) -> Result<Option<Secret>, Failure> {
    let given = match file {
        Some(path) => Secret::read(path).map(Some),
        None => Secret::of_environment(),
    };
    given
        .and_then(|given| Secret::given_or_own(given.as_ref(), name))
        .map_err(failed)
}

pub fn listening(listen: &str, arguments: &ListenArguments) -> Result<Options, Failure> {
    let certificate = match (&arguments.tls_certificate, &arguments.tls_key) {
        (Some(certificate), Some(key)) => {
            Some(Certificate::read(certificate, key).map_err(refused)?)
        }
        _ => None,
    };
    let options = Options {
        listen: listen.to_owned(),
        ring: arguments.ring.clone(),
        ucx: arguments.ucx,
        secret: secret(arguments.secret_file.as_deref(), listen)?,
        certificate,
        most_clients: arguments.clients,
        ..Options::default()
    };
    // The options are checked before the index is read, which may take minutes.
    options.check().map_err(refused)?;
    if let Some(http) = &arguments.http {
        Http::check(http, &options).map_err(refused)?;
    }
    Ok(options)
}

pub fn place(
    name: &str,
    reach: &ReachArguments,
    secret_file: Option<&Path>,
) -> Result<Place, Failure> {
    let secret = secret(secret_file, name)?;
    let encryption = match reach.tls {
        true => Encryption::OfEnvironment,
        false => Encryption::None,
    };
    Place::of(name, secret.as_ref(), encryption).map_err(failed)
}

pub fn computing(arguments: &ComputeArguments, listen: Options) -> ComputeServerOptions {
    let workers = threads_or_cores(arguments.threads);
    ComputeServerOptions {
        workers,
        in_flight: arguments.in_flight,
        narrowing: Narrowing {
            low: arguments.low_list,
            ratio: arguments.refine,
            seeds: arguments.seeds,
        },
        low_memory: arguments.low_memory.unwrap_or(u64::MAX),
        list: u32::try_from(arguments.list).unwrap_or(u32::MAX),
        beam: u32::try_from(arguments.beam).unwrap_or(u32::MAX),
        waiting: arguments.waiting,
        connections: (arguments.connections)
            .unwrap_or_else(|| ComputeServerOptions::connections_of(workers)),
        batch: !arguments.no_batch,
        listen,
        ..ComputeServerOptions::default()
    }
}

pub fn serve_http(
    listen: Option<&str>,
    report: impl Fn(Page) -> Report + Send + Sync + 'static,
) -> Result<Option<Http>, Failure> {
    listen
        .map(|listen| Http::start(listen, report))
        .transpose()
        .map_err(refused)
}

pub fn until_stopped(lines: &[String], http: Option<&Http>) -> Result<(), Failure> {
    progress::catch_interrupts();
    // Readers see the lines before the wait.
    let mut output = Output::lock();
    for line in lines {
        output.line(line)?;
    }
    if let Some(http) = http {
        output.line(format!("health and metrics at http://{}", http.address()))?;
    }
    output.finish()?;
    while !progress::interrupted() {
        std::thread::sleep(LOOKS);
    }
    progress::end_without_signal();
    tracing::info!("stopping");
    Ok(())
}

fn listens(role: &str, at: impl Display, holds: u64) -> String {
    format!(
        "{role} listening on {at}, {} in memory",
        size::format(holds)
    )
}

pub fn memory(arguments: &MemoryServerArguments, index: &Path, quiet: bool) -> Result<(), Failure> {
    let options = listening(&arguments.listen, &arguments.server)?;
    let (follow, batch) = (arguments.follow, !arguments.no_batch);
    let server = MemoryOfIndex::start(index, follow, batch, options, &Shown::new(quiet));
    let server = Arc::new(server.map_err(not_started)?);
    let told_of = server.clone();
    let http = serve_http(arguments.server.http.as_deref(), move |_| told_of.report())?;
    let (at, holds) = (server.server().address(), server.memory_bytes());
    until_stopped(&[listens("memory server", at, holds)], http.as_ref())
}

pub fn storage(arguments: &StorageServerArguments) -> Result<(), Failure> {
    let options = listening(&arguments.listen, &arguments.server)?;
    let server = StorageOfIndex::start(
        &arguments.index,
        arguments.threads,
        arguments.io.into(),
        arguments.changes,
        options,
    );
    let server = Arc::new(server.map_err(not_started)?);
    let told_of = server.clone();
    let http = serve_http(arguments.server.http.as_deref(), move |_| told_of.report())?;
    let line = format!("storage server listening on {}", server.server().address());
    until_stopped(&[line], http.as_ref())
}

pub fn compute(arguments: &ComputeServerArguments) -> Result<(), Failure> {
    let listen = listening(&arguments.listen, &arguments.server)?;
    let secret_file = arguments.server.secret_file.as_deref();
    let options = computing(&arguments.compute, listen);
    let memory = place(&arguments.memory, &arguments.reach, secret_file)?;
    let mut own = None;
    let storage = match (&arguments.storage, &arguments.index) {
        (Some(name), _) => place(name, &arguments.reach, secret_file)?,
        (None, Some(index)) => {
            let server = StorageOfIndex::start(
                index,
                1,
                IoMode::Auto,
                false,
                Options::private().map_err(refused)?,
            );
            Place::Local(own.insert(server.map_err(not_started)?).server().door())
        }
        (None, None) => {
            return Err(Failure::Wrong(
                "--storage and --index are both missing. Give one of them".to_owned(),
            ));
        }
    };
    let server = ComputeServer::<Low>::start(memory, storage, options).map_err(refused)?;
    let server = Arc::new(server);
    let told_of = server.clone();
    let http = serve_http(arguments.server.http.as_deref(), move |page| {
        told_of.report(page)
    })?;
    let line = format!("compute server listening on {}", server.address());
    until_stopped(&[line], http.as_ref())
}
