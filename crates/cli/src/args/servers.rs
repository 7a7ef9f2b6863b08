//! Arguments of the servers that search an index together, and of their client.

use std::net::{SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};
use stratann::bounds;
use stratann_node::Server;

use super::{IDS, at_least_one, beam, in_flight, list_size, threads, up_to};
use crate::names::IoName;
use stratann_terminal::size;

/// Options of every server: its connections, health and log.
#[derive(Debug, Args)]
pub struct ListenArguments {
    /// Also listens at this path, for processes of the same user on this machine. These processes
    /// connect to shm:PATH, and send messages through buffers in shared memory
    #[arg(long, value_name = "PATH")]
    pub ring: Option<PathBuf>,

    /// Also listens through UCX, which uses RDMA if the machine has a card for it. Clients connect
    /// to ucx:HOST:PORT, or for files to remote:ucx:HOST:PORT/name. UCX does not encrypt the
    /// traffic, and only the handshake, over TCP, checks the secret: use UCX only among machines
    /// that trust each other. On loopback, the processes of one user share a secret if none is
    /// given. Needs a build with `--features ucx`, and the UCX library
    #[arg(long, conflicts_with = "tls_certificate")]
    pub ucx: bool,

    /// The file of the secret that clients and servers share, instead of the file that
    /// STRATANN_SECRET_FILE names
    #[arg(long, value_name = "FILE")]
    pub secret_file: Option<PathBuf>,

    /// Encrypts the traffic with TLS. FILE is the certificate of this server, in PEM
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    pub tls_certificate: Option<PathBuf>,

    /// The private key of the certificate of --tls-certificate, in PEM
    #[arg(long, value_name = "FILE", requires = "tls_certificate")]
    pub tls_key: Option<PathBuf>,

    /// The maximum number of clients at the same time
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = at_least_one)]
    pub clients: usize,

    /// Serves HTTP at this address: /health reports whether the server can work, and /metrics has
    /// the counters of the server, for Prometheus
    #[arg(long, value_name = "HOST:PORT", value_parser = host_and_port)]
    pub http: Option<String>,

    /// Writes each log message as one JSON line, with time, level, target and message
    #[arg(long)]
    pub log_json: bool,

    /// A TOML file of options of this command, by their long names, such as `listen =
    /// "127.0.0.1:7711"`. An option on the command line takes precedence over the file
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
}

/// How a process connects to servers.
#[derive(Debug, Args)]
pub struct ReachArguments {
    /// Encrypts connections to servers with TLS, and verifies the servers by the certificates in
    /// the file that STRATANN_TLS_CA names
    #[arg(long)]
    pub tls: bool,
}

/// `stratann storage-server`
#[derive(Debug, Args)]
#[command(args_override_self = true)]
pub struct StorageServerArguments {
    /// The index directory; its preset must be distvs
    pub index: PathBuf,

    /// The address to listen on; port 0 means any free port. An address other than loopback needs a
    /// secret (--secret-file)
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:7702", value_parser = host_and_port)]
    pub listen: String,

    /// The number of threads that re-rank candidates
    #[arg(short = 'T', long, value_name = "N", default_value_t = 2, value_parser = threads)]
    pub threads: usize,

    /// The interface for reading pages from storage
    #[arg(long, value_enum, default_value = "auto")]
    pub io: IoName,

    /// Accepts upserts and deletes from compute servers. While this server runs, no other process
    /// may change the index. The server writes changes durably to the log of the index, and merges
    /// them when a merge is due. Memory servers with --follow then load the merged index
    #[arg(long)]
    pub changes: bool,

    #[command(flatten)]
    pub server: ListenArguments,
}

/// How a compute server searches.
#[derive(Debug, Args)]
pub struct ComputeArguments {
    /// The number of threads that search [default: one for each core]
    #[arg(short = 'T', long, value_name = "N", value_parser = threads)]
    pub threads: Option<usize>,

    /// The number of queries in flight on each thread (DistVS §4.1)
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = in_flight)]
    pub in_flight: usize,

    /// D_high: the number of candidates that high-precision codes rank, if the client gives no
    /// number. Low-precision codes rank up to --low-list times as many. A search re-ranks half of
    /// D_high candidates by exact vectors
    #[arg(short = 'l', long, value_name = "L", default_value_t = 80, value_parser = list_size)]
    pub list: usize,

    /// The number of nodes that a search visits in each round, if the client gives no number
    #[arg(short = 'W', long, value_name = "W", default_value_t = 8, value_parser = beam)]
    pub beam: usize,

    /// The share of the candidates ranked by low-precision codes that high-precision codes then
    /// rank again, in each round of a search
    #[arg(long, value_name = "F", default_value_t = 0.2, value_parser = refinement)]
    pub refine: f64,

    /// The maximum number of candidates that low-precision codes rank, as a multiple of --list
    #[arg(long, value_name = "F", default_value_t = 3.0, value_parser = low_list)]
    pub low_list: f64,

    /// The number of nodes whose low-precision codes a search compares first. The search starts
    /// near the nearest of these nodes. With 0, the search starts at the graph's entry node, as in
    /// DistVS
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = seeds)]
    pub seeds: usize,

    /// The memory for low-precision codes. If this memory is too small for all codes, the codes of
    /// the nodes with the fewest incoming links stay at the memory server. The memory server then
    /// estimates the distances of these nodes (DistVS §3.3) [default: enough for all]
    #[arg(long, value_name = "BYTES", value_parser = size::parse)]
    pub low_memory: Option<u64>,

    /// The number of connections to the memory server, at most one per thread. Each connection
    /// takes one thread of the memory server [default: one for every four threads]
    #[arg(long, value_name = "N", value_parser = threads)]
    pub connections: Option<usize>,

    /// The maximum number of queries that wait for a thread
    #[arg(long, value_name = "N", default_value_t = 1024, value_parser = at_least_one)]
    pub waiting: usize,

    /// Sends each message to another server separately, for comparison. By default, messages that
    /// wait for the same server are sent together (DistVS §4.2). The option --no-batch of a memory
    /// server does this for answers. A storage server always sends waiting answers together
    #[arg(long)]
    pub no_batch: bool,
}

/// `stratann compute-server`
#[derive(Debug, Args)]
#[command(args_override_self = true)]
pub struct ComputeServerArguments {
    /// The address of the memory server: host:port, shm:PATH, or ucx:host:port
    #[arg(long, value_name = "SERVER", value_parser = server)]
    pub memory: String,

    /// The address of the storage server: host:port, shm:PATH, or ucx:host:port
    #[arg(long, value_name = "SERVER", required_unless_present = "index", value_parser = server)]
    pub storage: Option<String>,

    /// Re-ranks in the compute server itself, with the vectors of this index, instead of in a
    /// storage server
    #[arg(long, value_name = "INDEX", conflicts_with = "storage")]
    pub index: Option<PathBuf>,

    /// The address to listen on; port 0 means any free port. An address other than loopback needs a
    /// secret (--secret-file)
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:7710", value_parser = host_and_port)]
    pub listen: String,

    #[command(flatten)]
    pub compute: ComputeArguments,

    #[command(flatten)]
    pub reach: ReachArguments,

    #[command(flatten)]
    pub server: ListenArguments,
}

/// `stratann cluster`
#[derive(Debug, Subcommand)]
pub enum ClusterCommand {
    /// Starts all servers of an index on this machine, in one process
    Up(UpArguments),
    /// Searches an index through compute servers
    Search(ClusterSearchArguments),
    /// Inserts vectors through compute servers. If an id is in the index, its vector is replaced,
    /// as by `stratann insert --upsert`
    #[command(visible_alias = "insert")]
    Upsert(ClusterUpsertArguments),
    /// Deletes vectors through compute servers
    Delete(ClusterDeleteArguments),
}

/// `stratann cluster up`
#[derive(Debug, Args)]
#[command(args_override_self = true)]
pub struct UpArguments {
    /// The index directory; its preset must be distvs
    pub index: PathBuf,

    /// The number of compute servers
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = servers)]
    pub servers: usize,

    /// The address of the first compute server. Each further compute server listens on the next
    /// port
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:7710", value_parser = address)]
    pub listen: SocketAddr,

    /// Accepts upserts and deletes. While the servers run, no other process may change the index.
    /// The servers write changes durably to the log of the index, and merge them when a merge is
    /// due
    #[arg(long)]
    pub changes: bool,

    #[command(flatten)]
    pub compute: ComputeArguments,

    #[command(flatten)]
    pub server: ListenArguments,
}

/// Options of a client that changes an index through compute servers.
#[derive(Debug, Args)]
pub struct ClusterChangeArguments {
    /// The file of the secret that clients and servers share, instead of the file that
    /// STRATANN_SECRET_FILE names
    #[arg(long, value_name = "FILE")]
    pub secret_file: Option<PathBuf>,

    /// The time limit of each request to a server. Connecting to the servers has a separate limit
    /// of the same length
    #[arg(long, value_name = "SECONDS", default_value = "30", value_parser = seconds, allow_negative_numbers = true)]
    pub deadline: Duration,

    #[command(flatten)]
    pub reach: ReachArguments,

    /// Prints the result as one JSON object
    #[arg(long)]
    pub json: bool,
}

/// `stratann cluster upsert`
#[derive(Debug, Args)]
#[command(args_override_self = true, after_help = IDS)]
pub struct ClusterUpsertArguments {
    /// Compute servers, separated by commas. Each is host:port, shm:PATH or ucx:host:port
    #[arg(value_parser = server_list)]
    pub servers: ServerList,

    /// The file of vectors to insert
    pub vectors: PathBuf,

    /// A file with the id of each vector. If an id is in the index, its vector is replaced
    #[arg(long, value_name = "FILE")]
    pub ids: PathBuf,

    #[command(flatten)]
    pub change: ClusterChangeArguments,
}

/// `stratann cluster delete`
#[derive(Debug, Args)]
#[command(args_override_self = true, after_help = IDS)]
pub struct ClusterDeleteArguments {
    /// Compute servers, separated by commas. Each is host:port, shm:PATH or ucx:host:port
    #[arg(value_parser = server_list)]
    pub servers: ServerList,

    /// Ids of the vectors to delete, or one file of ids. Ids that are not in the index are ignored
    #[arg(value_name = "ID|FILE", required = true)]
    pub id: Vec<PathBuf>,

    #[command(flatten)]
    pub change: ClusterChangeArguments,
}

/// `stratann cluster search`
#[derive(Debug, Args)]
#[command(args_override_self = true)]
pub struct ClusterSearchArguments {
    /// Compute servers, separated by commas. Each is host:port, shm:PATH or ucx:host:port. Queries
    /// go to the first server. If this server is unreachable, does not answer, or waits for other
    /// servers, queries go to the next server in the list
    #[arg(value_parser = server_list)]
    pub servers: ServerList,

    /// The file of query vectors
    pub queries: PathBuf,

    /// The number of neighbours to find for each query
    #[arg(short, long, default_value_t = 10, value_parser = at_least_one)]
    pub k: usize,

    /// The number of candidates that high-precision codes rank. Several values, for example 40,80,
    /// are measured one after the other [default: the --list of the compute server]
    #[arg(short = 'l', long, value_name = "L", value_delimiter = ',', value_parser = list_size)]
    pub list: Vec<usize>,

    /// The number of nodes that a search visits in each round [default: the --beam of the compute
    /// server]
    #[arg(short = 'W', long, value_name = "W", value_parser = beam)]
    pub beam: Option<usize>,

    /// Ground truth to measure recall against (big-ann .bin, .ibin or .ivecs)
    #[arg(long, value_name = "FILE")]
    pub truth: Option<PathBuf>,

    /// Writes the ids and distances of results to this file in the ground-truth format. A .npy file
    /// gets only the ids. Distances are exact
    #[arg(long, value_name = "FILE")]
    pub out: Option<PathBuf>,

    /// Replaces the file of --out if it exists
    #[arg(long, requires = "out")]
    pub overwrite: bool,

    /// The file of the secret that clients and servers share, instead of the file that
    /// STRATANN_SECRET_FILE names
    #[arg(long, value_name = "FILE")]
    pub secret_file: Option<PathBuf>,

    /// The number of queries in flight
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = in_flight)]
    pub in_flight: usize,

    /// The time limit of each query. Connecting to the servers has a separate limit of the same
    /// length
    #[arg(long, value_name = "SECONDS", default_value = "10", value_parser = seconds, allow_negative_numbers = true)]
    pub deadline: Duration,

    #[command(flatten)]
    pub reach: ReachArguments,

    /// Prints one JSON object for each list size
    #[arg(long)]
    pub json: bool,
}

/// The address is resolved later, when it is used.
pub(super) fn host_and_port(text: &str) -> Result<String, String> {
    let parts = text.rsplit_once(':');
    let right = parts.is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok());
    match right {
        true => Ok(text.to_owned()),
        false => Err("give HOST:PORT, such as 127.0.0.1:7710 or [::1]:7710".to_owned()),
    }
}

/// One argument has all names, so the next argument is no server.
#[derive(Clone, Debug)]
pub struct ServerList(pub Vec<String>);

fn server_list(text: &str) -> Result<ServerList, String> {
    let servers = text.split(',').map(server).collect::<Result<_, _>>()?;
    Ok(ServerList(servers))
}

fn server(text: &str) -> Result<String, String> {
    if let Some(meant) = Server::meant(text) {
        return Err(format!(
            "'{text}' is not the name of a server. Did you mean {meant}?"
        ));
    }
    match text.strip_prefix(Server::RING) {
        Some("") => {
            Err("a path must follow shm:. Give the path of a socket, as shm:/path".to_owned())
        }
        Some(_) => Ok(text.to_owned()),
        None => {
            host_and_port(text.strip_prefix(Server::UCX).unwrap_or(text))?;
            Ok(text.to_owned())
        }
    }
}

/// Parses HOST:PORT to the first address of the name.
fn address(text: &str) -> Result<SocketAddr, String> {
    let found = text.to_socket_addrs().map_err(|error| error.to_string());
    let first = found.and_then(|mut found| {
        found
            .next()
            .ok_or_else(|| "the name has no address".to_owned())
    });
    first.map_err(|why| format!("{why}. Give HOST:PORT, such as 127.0.0.1:7710 or [::1]:7710"))
}

/// All servers run in one process, each with its own threads.
const MOST_SERVERS: usize = 64;

fn servers(text: &str) -> Result<usize, String> {
    up_to(text, MOST_SERVERS)
}

fn refinement(text: &str) -> Result<f64, String> {
    let share = text.parse::<f64>().ok();
    let share = share.filter(|share| *share > 0.0 && *share <= 1.0);
    share.ok_or_else(|| {
        format!("'{text}' is not a share. Give a number above 0 and up to 1 (0.2 is usual)")
    })
}

fn low_list(text: &str) -> Result<f64, String> {
    let most = bounds::MOST_LOW;
    let times = text.parse::<f64>().ok();
    let times = times.filter(|times| (1.0..=most).contains(times));
    times.ok_or_else(|| {
        format!(
            "'{text}' is not a number from 1 to {most}. Give a number in this range (3 is usual)"
        )
    })
}

fn seeds(text: &str) -> Result<usize, String> {
    let most = bounds::MOST_SEEDS;
    let nodes = text.parse::<usize>().ok();
    let nodes = nodes.filter(|&nodes| nodes <= most);
    nodes.ok_or_else(|| format!("'{text}' is not a whole number from 0 to {most}. Give a number in this range (64 is usual)"))
}

fn seconds(text: &str) -> Result<Duration, String> {
    let parsed = text.parse::<f64>().ok();
    let time = parsed.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    time.filter(|time| !time.is_zero())
        .ok_or_else(|| format!("'{text}' is not a time. Give seconds above 0, for example 0.5"))
}
