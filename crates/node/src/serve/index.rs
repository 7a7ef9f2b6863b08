//! The servers of an index, for the command and the Python package.
//!
//! ```text
//!   MemoryOfIndex    lists and high codes, read from the index; can follow its merges
//!   StorageOfIndex   exact vectors; can take changes and merge them when due
//!   ComputeServer    has no index: it fetches low codes from a memory server
//! ```

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use stratann::press::{Collection, Full, High, Low};
use stratann::{Error, IoMode, MergeWhen, Merger, Progress, WriteOptions};

use super::{ComputeServer, Follower, MemoryServer, Newest, Over, Page, Report, StorageServer};
use crate::options::{NodeError, Options};
use crate::role::MemoryOptions;

/// The most queries that a storage server ranks at once.
const MOST_RANKED: usize = 1024;
const FOLLOWS: Duration = Duration::from_secs(1);
const NODES: &str = "Nodes of the checkpoint that the server uses";

/// The reasons why a server of an index does not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// An error of the index.
    #[error(transparent)]
    Index(#[from] Error),
    /// An error of the start of the server.
    #[error(transparent)]
    Node(#[from] NodeError),
}

/// A memory server of an index, until it is dropped.
pub struct MemoryOfIndex {
    /// Dropped first, so that no new lists reach the server.
    _follower: Option<Follower>,
    server: MemoryServer,
    high: Newest<High>,
    path: PathBuf,
}

impl MemoryOfIndex {
    /// Serves the lists and codes of the index at `path`. With `follow`, also serves each later
    /// checkpoint about a second after its commit. `batch` is as for [`MemoryServer::start`].
    ///
    /// # Errors
    /// There is no index, servers cannot share it, or [`MemoryServer::start`] fails. An unavailable
    /// address is reported first.
    pub fn start(
        path: &Path,
        follow: bool,
        batch: bool,
        options: Options,
        progress: &dyn Progress,
    ) -> Result<MemoryOfIndex, StartError> {
        options.check()?;
        let high = Newest::new(Arc::new(High::open(path, progress)?));
        let follower = match follow {
            true => Some(followed(path, &high)?),
            false => None,
        };
        let server =
            MemoryServer::following(high.clone(), MemoryOptions::default(), batch, options)?;
        Ok(MemoryOfIndex {
            _follower: follower,
            server,
            high,
            path: path.to_owned(),
        })
    }

    /// The server, without the index and the follower.
    pub fn server(&self) -> &MemoryServer {
        &self.server
    }

    /// The bytes of lists and codes in memory.
    pub fn memory_bytes(&self) -> u64 {
        self.high.get().memory_bytes()
    }

    /// The condition of the server.
    pub fn report(&self) -> Report {
        let mut report = Report::default();
        let high = self.high.get();
        if self._follower.is_none() {
            let remedy =
                "restart this server and the other servers, or start this server with --follow";
            report
                .lines
                .extend(left_behind(&self.path, high.collection(), remedy));
        }
        let about = "Bytes of lists and codes";
        report.gauge("memory_bytes", about, high.memory_bytes());
        report.gauge("nodes", NODES, high.collection().nodes.into());
        report.gauge(
            "connections",
            "Open connections",
            self.server.connections() as u64,
        );
        report.traffic("compute", self.server.traffic());
        report
    }
}

/// The warning if the index has a newer checkpoint than the server.
fn left_behind(path: &Path, own: &Collection, remedy: &str) -> Option<String> {
    let now = Collection::at(path).ok()?;
    (now.state != own.state).then(|| {
        format!(
            "{} was merged or rebuilt, and has state {:016x}; this server still uses state {:016x}: {remedy}",
            path.display(),
            now.state,
            own.state
        )
    })
}

/// Reports nothing, and stops when the follower has to end.
struct Until<'a>(&'a Over<'a>);

impl Progress for Until<'_> {
    fn begin(&self, _: &str, _: u64) {}
    fn advance(&self, _: u64) {}
    fn end(&self) {}
    fn warn(&self, _: &str) {}
    fn interrupted(&self) -> bool {
        (self.0)()
    }
}

fn followed(path: &Path, newest: &Newest<High>) -> Result<Follower, NodeError> {
    let path = path.to_owned();
    let look =
        move |high: &High, over: &Over<'_>| match Collection::at(&path)? == *high.collection() {
            true => Ok(None),
            false => High::open(&path, &Until(over)).map(Some),
        };
    Follower::start::<High, Error>(newest.clone(), FOLLOWS, look)
}

/// A storage server of an index, until it is dropped.
pub struct StorageOfIndex {
    /// The server is dropped before the merger, because the server is the source of changes.
    server: StorageServer,
    _merger: Option<Merger>,
    full: Arc<Full>,
    path: PathBuf,
}

impl StorageOfIndex {
    /// Serves the exact vectors of the index at `path`, with `threads` threads for ranking. With
    /// `changes`, makes changes and merges, and no other process may open the index for changes.
    ///
    /// # Errors
    /// [`Full::open`], [`Full::open_for_changes`] or [`StorageServer::start`] fails. An unavailable
    /// address is reported first.
    pub fn start(
        path: &Path,
        threads: usize,
        io: IoMode,
        changes: bool,
        options: Options,
    ) -> Result<StorageOfIndex, StartError> {
        options.check()?;
        let full = match changes {
            true => Full::open_for_changes(path, threads, io, &WriteOptions::default())?,
            false => Full::open(path, threads, io)?,
        };
        let full = Arc::new(full);
        let merger = full.merge_when_due(MergeWhen::default())?;
        Ok(StorageOfIndex {
            server: StorageServer::start(full.clone(), MOST_RANKED, options)?,
            _merger: merger,
            full,
            path: path.to_owned(),
        })
    }

    /// The server, without the index.
    pub fn server(&self) -> &StorageServer {
        &self.server
    }

    /// The condition of the server.
    pub fn report(&self) -> Report {
        let mut report = Report::default();
        report.traffic("compute", self.server.traffic());
        self.report_changes(&mut report);
        report
    }

    fn report_changes(&self, report: &mut Report) {
        let Some(live) = self.full.index() else {
            let remedy = "restart this server and the other servers";
            let own = self.full.collection();
            report.lines.extend(left_behind(&self.path, &own, remedy));
            return;
        };
        let stats = live.stats();
        report.gauge(
            "vectors",
            "Vectors that a search can find",
            live.len() as u64,
        );
        report.gauge(
            "vectors_waiting",
            "Vectors that wait for a merge",
            stats.logged,
        );
        let about = "Merges since the server was started";
        report.count("merges_total", about, live.merges());
        if let Some(trouble) = stats.trouble {
            report.trouble = Some(trouble);
        }
        let behind = self.full.has_before();
        let about = "1 while searches may still use the state before the last merge, so that no other merge begins";
        report.gauge("state_before_kept", about, behind.into());
        if let Some(due) = live.due(&MergeWhen::default()).filter(|_| behind) {
            report.lines.push(format!(
                "a merge is due ({due}) and waits, since searches still use the state before the last merge. Check that memory servers run with --follow, on this folder"
            ));
        }
    }
}

impl ComputeServer<Low> {
    /// The condition of the server. For [`Page::Health`], the call takes at most a second.
    pub fn report(&self, page: Page) -> Report {
        let (mut report, served) = (Report::default(), self.served());
        if page == Page::Health {
            let readiness = self.readiness();
            (report.trouble, report.lines) = (readiness.trouble, readiness.lines);
        }
        let low = self.low();
        let nodes = low.as_ref().map_or(0, |low| low.collection().nodes);
        let kept = low.as_ref().and_then(|low| low.kept()).unwrap_or(nodes);
        let low = low.map(|low| low.memory_bytes());
        for (peer, connected) in ["memory", "storage"].into_iter().zip(self.connected()) {
            let about = "Open connections to other servers";
            report.gauge_with("connections", about, peer, connected as u64);
        }
        report.gauge("memory_bytes", "Bytes of low codes", low.unwrap_or(0));
        report.gauge("nodes", NODES, nodes.into());
        report.gauge(
            "low_codes",
            "Nodes whose low codes this compute server has",
            kept.into(),
        );
        let about = "Nodes whose low codes only the memory server has";
        report.gauge("low_codes_offloaded", about, (nodes - kept).into());
        report.count(
            "queries_answered_total",
            "Queries that were answered",
            served.answered,
        );
        report.count(
            "queries_refused_total",
            "Queries and other requests that were refused, or not answered in time",
            served.refused,
        );
        report.gauge(
            "queries_waiting",
            "Queries that wait for a thread",
            served.waiting as u64,
        );
        report.gauge(
            "queries_in_flight",
            "Queries that threads are answering",
            served.in_flight as u64,
        );
        report.traffic("memory", self.memory_traffic());
        report.traffic("storage", self.storage_traffic());
        report.traffic("clients", self.client_traffic());
        report
    }
}
