//! One connection: reads a request, and answers it.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::{Duration, Instant};

use super::{Page, Report};

/// The bytes and lines of a request before its body, which is not read.
const MOST_HEAD: usize = 8 << 10;
const MOST_LINES: usize = 64;
/// After the reply, the server reads and drops input for this time. Otherwise, a reset could reach
/// the peer before it has read the reply.
const LINGER: Duration = Duration::from_millis(250);
const MOST_LEFT: usize = 64 << 10;

pub(super) struct Answer {
    status: u16,
    text: String,
}

impl Answer {
    pub(super) fn of(status: u16, text: impl Into<String>) -> Answer {
        let text = text.into();
        Answer { status, text }
    }

    pub(super) fn bytes(&self, head_only: bool) -> Vec<u8> {
        let reason = match self.status {
            200 => "OK",
            400 => "Bad Request",
            404 => "Not Found",
            405 => "Method Not Allowed",
            408 => "Request Timeout",
            431 => "Request Header Fields Too Large",
            _ => "Service Unavailable",
        };
        let allowed = match self.status {
            405 => "Allow: GET, HEAD\r\n",
            _ => "",
        };
        let mut bytes = format!(
            "HTTP/1.1 {} {reason}\r\nContent-Type: text/plain; version=0.0.4\r\nContent-Length: {}\r\n{allowed}Connection: close\r\n\r\n",
            self.status,
            self.text.len(),
        )
        .into_bytes();
        if !head_only {
            bytes.extend(self.text.as_bytes());
        }
        bytes
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Asked {
    Page {
        page: Page,
        head_only: bool,
    },
    /// A refusal with this status.
    Refused {
        status: u16,
        head_only: bool,
    },
    Nothing,
}

impl Asked {
    fn refused(status: u16) -> Asked {
        let head_only = false;
        Asked::Refused { status, head_only }
    }

    fn of(head: &[u8]) -> Option<Asked> {
        let mut lines = [httparse::EMPTY_HEADER; MOST_LINES];
        let mut request = httparse::Request::new(&mut lines);
        match request.parse(head) {
            Ok(httparse::Status::Complete(_)) => {}
            Ok(httparse::Status::Partial) => return None,
            Err(httparse::Error::TooManyHeaders) => return Some(Asked::refused(431)),
            Err(_) => return Some(Asked::refused(400)),
        }
        let head_only = match request.method {
            Some("GET") => false,
            Some("HEAD") => true,
            _ => return Some(Asked::refused(405)),
        };
        let path = request.path.unwrap_or_default();
        let page = match path.split('?').next() {
            Some("/health") => Page::Health,
            Some("/metrics") => Page::Metrics,
            _ => {
                let status = 404;
                return Some(Asked::Refused { status, head_only });
            }
        };
        Some(Asked::Page { page, head_only })
    }
}

/// A connection with one deadline for all its reads or writes together.
struct Until<'a> {
    socket: &'a TcpStream,
    until: Instant,
}

impl Until<'_> {
    fn left(&self) -> io::Result<Duration> {
        let left = self.until.saturating_duration_since(Instant::now());
        match left.is_zero() {
            true => Err(ErrorKind::TimedOut.into()),
            false => Ok(left),
        }
    }
}

impl Read for Until<'_> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        self.socket.set_read_timeout(Some(self.left()?))?;
        self.socket.read(bytes)
    }
}

impl Write for Until<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.socket.set_write_timeout(Some(self.left()?))?;
        self.socket.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn read(from: &mut impl Read) -> io::Result<Asked> {
    let (mut head, mut len) = ([0; MOST_HEAD], 0);
    while len < MOST_HEAD {
        match from.read(&mut head[len..]) {
            Ok(0) if len == 0 => return Ok(Asked::Nothing),
            Ok(0) => return Ok(Asked::refused(400)),
            Ok(more) => len += more,
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(error) if is_late(&error) && len == 0 => return Ok(Asked::Nothing),
            Err(error) if is_late(&error) => return Ok(Asked::refused(408)),
            Err(error) => return Err(error),
        }
        if let Some(asked) = Asked::of(&head[..len]) {
            return Ok(asked);
        }
    }
    Ok(Asked::refused(431))
}

/// Systems report a passed time limit by different errors.
fn is_late(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut)
}

/// Answers one request. The read and the write may each take up to `time`.
///
/// # Errors
/// The peer has disconnected, or does not read.
pub(super) fn answer(
    socket: &TcpStream,
    time: Duration,
    report: impl FnOnce(Page) -> Report,
) -> io::Result<()> {
    let until = Instant::now() + time;
    let (answer, head_only) = match read(&mut Until { socket, until })? {
        Asked::Nothing => return Ok(()),
        Asked::Page { page, head_only } => {
            let report = report(page);
            let (status, text) = match page {
                Page::Health => report.health(),
                Page::Metrics => (200, report.metrics()),
            };
            (Answer::of(status, text), head_only)
        }
        Asked::Refused { status, head_only } => {
            let text = match status {
                404 => "no such page; the pages are /health and /metrics\n",
                405 => "only GET and HEAD are answered\n",
                408 => "the request was not complete in time\n",
                431 => "the head of a request has at most 8 KiB and 64 header lines\n",
                _ => "this is not a valid HTTP request\n",
            };
            (Answer::of(status, text), head_only)
        }
    };
    let until = Instant::now() + time;
    Until { socket, until }.write_all(&answer.bytes(head_only))?;
    socket.shutdown(Shutdown::Write)?;
    // Otherwise, the peer could be reset before it has read the reply.
    let until = until.min(Instant::now() + LINGER);
    let (mut left, mut rest) = (MOST_LEFT, [0; 4096]);
    while left > 0 {
        match (Until { socket, until }).read(&mut rest)? {
            0 => break,
            more => left = left.saturating_sub(more),
        }
    }
    Ok(())
}
