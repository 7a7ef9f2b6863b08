//! Pages that show a server's condition over HTTP: its health, and its metrics for Prometheus.
//!
//! ```text
//!   GET /health    200 and `well`, or 503 and the obstacle; then a line for each server it needs
//!   GET /metrics   text/plain; version=0.0.4:  # HELP, # TYPE and a line for each figure
//! ```
//!
//! A reply reveals nothing of an index's content, so HTTP needs no secret.
//!
//! Each connection has a thread (`talk.rs`), for some seconds and at most 8 KiB of a request. If
//! too many are open, the server closes the oldest connection that waits for its peer. So hostile
//! clients delay neither other replies nor a stop.

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

#[derive(Clone, Copy, Debug)]
struct Limits {
    most: usize,
    /// The time for a whole request, and for its reply.
    time: Duration,
    /// The time for which a new connection waits for closed connections to end.
    room: Duration,
}

const LIMITS: Limits = Limits {
    most: 8,
    // Longer than a client waits for a greeting, so that the client reports a wrong port
    // (`Fault::NoGreeting`).
    time: Duration::from_secs(8),
    room: Duration::from_millis(100),
};

const LOOK: Duration = Duration::from_millis(20);
const PAUSE: Duration = Duration::from_millis(100);

/// The HTTP listener, until it is dropped.
pub struct Http {
    over: Arc<AtomicBool>,
    address: SocketAddr,
    thread: Option<JoinHandle<()>>,
}

impl Http {
    /// Checks that HTTP can listen at `host:port` beside a server with these options.
    ///
    /// # Errors
    /// The address is not available, or is the server's own.
    pub fn check(listen: &str, server: &Options) -> Result<(), NodeError> {
        // `bind` has released the address again, so a failure below is due to the server's address.
        bind(listen)?;
        let _taken = server.hold()?;
        bind(listen).map(drop).map_err(|_| NodeError::HttpAtServer {
            http: listen.to_owned(),
            server: server.listen.clone(),
        })
    }

    /// Listens at `host:port`. `report` returns the condition, on several threads at once.
    ///
    /// # Errors
    /// The address is not available, or no thread could be started.
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
        // A listener that blocks would stop only at its next connection.
        bound.set_nonblocking(true).map_err(failed)?;
        let over = Arc::<AtomicBool>::default();
        let told = over.clone();
        let named = thread::Builder::new().name("stratann-http".to_owned());
        let thread = stratann_tier::start(named, move || {
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
                                "a connection for health and metrics could not be accepted: {error}"
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

    /// The address at which the listener accepts connections.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Http {
    fn drop(&mut self) {
        self.over.store(true, Ordering::SeqCst);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
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

/// Open connections, oldest first. The drop closes them and waits for their threads.
struct Talks {
    limits: Limits,
    talks: Vec<Talk>,
}

struct Talk {
    socket: TcpStream,
    /// Whether the thread waits for the peer, not for a report.
    waits: Arc<AtomicBool>,
    hung_up: bool,
    thread: JoinHandle<()>,
}

impl Talk {
    fn hang_up(&mut self) {
        self.hung_up = true;
        // An error means that the peer has disconnected.
        let _ = self.socket.shutdown(Shutdown::Both);
    }
}

impl Talks {
    fn of(limits: Limits) -> Talks {
        let talks = Vec::new();
        Talks { limits, talks }
    }

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
            // The text fits into the send buffer.
            let busy = Answer::of(503, "too many connections ask for health and metrics\n");
            let _ = socket.set_nonblocking(true);
            let _ = (&socket).write(&busy.bytes(false));
            return;
        }
        let begun = || {
            // On some systems a socket inherits the mode of its listener.
            socket.set_nonblocking(false)?;
            let (own, time) = (socket.try_clone()?, self.limits.time);
            let waits = Arc::new(AtomicBool::new(true));
            let (told, report) = (waits.clone(), report.clone());
            let named = thread::Builder::new().name("stratann-http-answer".to_owned());
            let thread = stratann_tier::start(named, move || {
                let _ = talk::answer(&own, time, |page| {
                    told.store(false, Ordering::SeqCst);
                    let report = report(page);
                    told.store(true, Ordering::SeqCst);
                    report
                });
                // Another thread may have the socket too, so a drop would not close it.
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
                tracing::warn!("a request for health and metrics cannot be answered: {error}");
            }
        }
    }

    /// If there is no space, closes the oldest connection that waits for its peer.
    fn makes_room(&mut self) -> bool {
        self.talks.retain(|talk| !talk.thread.is_finished());
        // Threads of closed connections end soon.
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
            let _ = talk.thread.join();
        }
    }
}

#[cfg(test)]
mod tests;
