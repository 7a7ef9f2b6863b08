//! What a server says of itself over HTTP: whether it is well, and its counts as Prometheus reads them.
//!
//! ```text
//!   GET /health    200 and `well`, or 503 and why it cannot do what it is for; behind that a line for each server that it asks
//!   GET /metrics   text/plain; version=0.0.4:  # HELP, # TYPE and a line for each figure
//! ```
//!
//! Nothing is taken from whoever asks, and nothing of an index is told; so it needs no secret. It listens on loopback unless it is told otherwise.
//!
//! Whoever comes has a thread (`talk.rs`), for some seconds and 8 KiB of a request at most. Of those there are a few: where one more comes, the oldest that is waited for is hung up on. So
//! whoever sends without end, slowly or nothing, or does not read, keeps nobody else from an answer, and the server not from ending.

mod report;
mod talk;

use std::io::{ErrorKind, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

pub use report::{Figure, Page, Report};

use self::talk::Answer;
use crate::options::{NodeError, Options};

/// What those who ask may take.
#[derive(Clone, Copy, Debug)]
struct Limits {
    /// Connections that are not hung up on, and a thread for each.
    most: usize,
    /// How long a request may take to come, and its answer to go: each as a whole, however small the pieces are.
    time: Duration,
    /// How long one that came waits for those that were hung up on to end.
    room: Duration,
}

const LIMITS: Limits = Limits {
    most: 8,
    // Longer than clients of StratANN wait for a greeting, who come to this port by mistake: they say so then (`Fault::NoGreeting`).
    time: Duration::from_secs(8),
    room: Duration::from_millis(100),
};

/// How often somebody looks whether a connection came.
const LOOK: Duration = Duration::from_millis(20);
/// The pause when none can be taken.
const PAUSE: Duration = Duration::from_millis(100);

/// Answers until it is dropped.
pub struct Http {
    over: Arc<AtomicBool>,
    address: SocketAddr,
    thread: Option<JoinHandle<()>>,
}

impl Http {
    /// Whether somebody could listen at `host:port` while a server with these options does: to be asked before anything that takes long.
    ///
    /// # Errors
    /// An address that cannot be had; one that the server takes.
    pub fn check(listen: &str, server: &Options) -> Result<(), NodeError> {
        // Let go at once: what fails from here on fails because of the server.
        bind(listen)?;
        let _taken = server.hold()?;
        bind(listen).map(drop).map_err(|_| NodeError::HttpAtServer {
            http: listen.to_owned(),
            server: server.listen.clone(),
        })
    }

    /// Listens at `host:port`, on threads of its own; `report` says how the server is, of what somebody asks for. It may be asked by several threads at once.
    ///
    /// # Errors
    /// An address that cannot be had; no thread.
    pub fn start(
        listen: &str,
        report: impl Fn(Page) -> Report + Send + Sync + 'static,
    ) -> Result<Http, NodeError> {
        Http::limited(listen, LIMITS, report)
    }

    fn limited(
        listen: &str,
        limits: Limits,
        report: impl Fn(Page) -> Report + Send + Sync + 'static,
    ) -> Result<Http, NodeError> {
        let failed = |source: std::io::Error| NodeError::Listen {
            address: listen.to_owned(),
            source,
        };
        let bound = bind(listen)?;
        let address = bound.local_addr().map_err(failed)?;
        // Nobody has to connect for it to end, which may fail for want of descriptors.
        bound.set_nonblocking(true).map_err(failed)?;
        let over = Arc::<AtomicBool>::default();
        let told = over.clone();
        let named = thread::Builder::new().name("stratann-http".to_owned());
        let thread = named.spawn(move || {
            let (report, mut talks) = (Arc::new(report), Talks::of(limits));
            let mut failing = false;
            while !told.load(Ordering::SeqCst) {
                match bound.accept() {
                    Ok((socket, _)) => {
                        failing = false;
                        talks.begin(socket, &report);
                    }
                    Err(error) if error.kind() == ErrorKind::WouldBlock => {
                        thread::park_timeout(LOOK);
                    }
                    Err(error) => {
                        if !std::mem::replace(&mut failing, true) {
                            tracing::warn!(
                                "a connection to health and metrics could not be taken: {error}"
                            );
                        }
                        thread::park_timeout(PAUSE);
                    }
                }
            }
        });
        Ok(Http {
            over,
            address,
            thread: Some(thread.map_err(NodeError::Thread)?),
        })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Http {
    fn drop(&mut self) {
        self.over.store(true, Ordering::SeqCst);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            // What it panicked of is on standard error.
            let _ = thread.join();
        }
    }
}

fn bind(listen: &str) -> Result<TcpListener, NodeError> {
    TcpListener::bind(listen).map_err(|source| NodeError::Listen {
        address: listen.to_owned(),
        source,
    })
}

/// Those who ask, each on a thread; oldest first. Dropped, it hangs up on them and waits for the threads, which ask for a report at most then.
struct Talks {
    limits: Limits,
    talks: Vec<Talk>,
}

struct Talk {
    /// The connection, for who hangs up.
    socket: TcpStream,
    /// Whether its thread waits for the other side, and not for a report.
    waits: Arc<AtomicBool>,
    hung_up: bool,
    thread: JoinHandle<()>,
}

impl Talk {
    fn hang_up(&mut self) {
        self.hung_up = true;
        // It is gone then.
        let _ = self.socket.shutdown(Shutdown::Both);
    }
}

impl Talks {
    fn of(limits: Limits) -> Talks {
        let talks = Vec::new();
        Talks { limits, talks }
    }

    /// Has a thread answer who came; or says that there is no room, and hangs up.
    fn begin<F>(&mut self, socket: TcpStream, report: &Arc<F>)
    where
        F: Fn(Page) -> Report + Send + Sync + 'static,
    {
        let came = Instant::now();
        let mut has_room = self.makes_room();
        while !has_room && came.elapsed() < self.limits.room {
            thread::sleep(Duration::from_millis(1));
            has_room = self.makes_room();
        }
        if !has_room {
            // As much as fits into the buffer of a connection that has sent nothing yet.
            let busy = Answer::of(503, "as many ask for health and metrics as may\n");
            let _ = socket.set_nonblocking(true);
            let _ = (&socket).write(&busy.bytes(false));
            return;
        }
        let begun = || {
            // Some systems hand on what the listener is.
            socket.set_nonblocking(false)?;
            let (own, time) = (socket.try_clone()?, self.limits.time);
            let waits = Arc::new(AtomicBool::new(true));
            let (told, report) = (waits.clone(), report.clone());
            let named = thread::Builder::new().name("stratann-http-answer".to_owned());
            let thread = named.spawn(move || {
                // Who has gone needs no answer.
                let _ = talk::answer(&own, time, |page| {
                    told.store(false, Ordering::SeqCst);
                    let report = report(page);
                    told.store(true, Ordering::SeqCst);
                    report
                });
                // Also where somebody else has it yet, to hang up.
                let _ = own.shutdown(Shutdown::Both);
            })?;
            Ok::<_, std::io::Error>((waits, thread))
        };
        match begun() {
            Ok((waits, thread)) => self.talks.push(Talk {
                socket,
                waits,
                hung_up: false,
                thread,
            }),
            Err(error) => {
                tracing::warn!("nobody answers who asks for health and metrics: {error}");
            }
        }
    }

    /// Whether one more may come: then there is room, or the oldest that is waited for is hung up on.
    fn makes_room(&mut self) -> bool {
        self.talks.retain(|talk| !talk.thread.is_finished());
        // Threads that were hung up on end in a moment.
        if self.talks.len() >= 2 * self.limits.most {
            return false;
        }
        let heard = self.talks.iter().filter(|talk| !talk.hung_up);
        if heard.count() < self.limits.most {
            return true;
        }
        let mut heard = self.talks.iter_mut().filter(|talk| !talk.hung_up);
        let oldest = heard.find(|talk| talk.waits.load(Ordering::SeqCst));
        oldest.map(Talk::hang_up).is_some()
    }
}

impl Drop for Talks {
    fn drop(&mut self) {
        self.talks.iter_mut().for_each(Talk::hang_up);
        for talk in self.talks.drain(..) {
            // What it panicked of is on standard error.
            let _ = talk.thread.join();
        }
    }
}

#[cfg(test)]
mod tests;
