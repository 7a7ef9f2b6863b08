//! A socket for TLS with one time limit for a whole call of TLS. TLS reads until it has a whole
//! record, and reads and writes in turn for its keys. So with a limit for each wait, a peer that
//! sends byte after byte could block a thread for hours.

use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use rustix::net::sockopt;

const SILENT: Duration = Duration::from_secs(60);
const ASKED_EVERY: Duration = Duration::from_secs(15);
const ASKED: u32 = 4;

/// Makes the system notice within two minutes if a peer has vanished silently.
///
/// # Errors
/// Fails if the system refuses a setting of the socket.
pub fn notice_when_gone(socket: &TcpStream) -> io::Result<()> {
    sockopt::set_socket_keepalive(socket, true)?;
    sockopt::set_tcp_keepidle(socket, SILENT)?;
    sockopt::set_tcp_keepintvl(socket, ASKED_EVERY)?;
    Ok(sockopt::set_tcp_keepcnt(socket, ASKED)?)
}

/// A socket with a deadline for all its waits.
pub struct Timed {
    socket: TcpStream,
    /// The deadline of all waits, if they are limited. A non-blocking socket never waits.
    until: Option<Instant>,
}

impl Timed {
    /// Wraps a socket, without a limit.
    pub fn new(socket: TcpStream) -> Timed {
        Timed {
            socket,
            until: None,
        }
    }

    /// The socket.
    pub fn socket(&self) -> &TcpStream {
        &self.socket
    }

    /// Returns the socket, with its current timeouts.
    pub fn into_socket(self) -> TcpStream {
        self.socket
    }

    /// Limits the total time of all later waits, which then fail with [`ErrorKind::TimedOut`].
    ///
    /// # Errors
    /// Fails if the system refuses a setting of the socket.
    pub fn limit(&mut self, limit: Option<Duration>) -> io::Result<()> {
        self.until = limit.map(|limit| Instant::now() + limit);
        match limit {
            Some(_) => Ok(()),
            None => {
                self.socket.set_read_timeout(None)?;
                self.socket.set_write_timeout(None)
            }
        }
    }

    fn left(&self) -> io::Result<Option<Duration>> {
        let Some(until) = self.until else {
            return Ok(None);
        };
        match until.saturating_duration_since(Instant::now()) {
            Duration::ZERO => Err(ErrorKind::TimedOut.into()),
            left => Ok(Some(left)),
        }
    }
}

impl Read for Timed {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        if let Some(left) = self.left()? {
            self.socket.set_read_timeout(Some(left))?;
        }
        self.socket.read(out)
    }
}

impl Write for Timed {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if let Some(left) = self.left()? {
            self.socket.set_write_timeout(Some(left))?;
        }
        self.socket.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.socket.flush()
    }
}

impl AsFd for Timed {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::thread;

    use super::*;

    #[test]
    fn a_peer_that_drips_does_not_renew_the_time() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let dripping = thread::spawn(move || {
            let mut peer = TcpStream::connect(address).unwrap();
            while peer.write_all(b"x").is_ok() {
                thread::sleep(Duration::from_millis(20));
            }
        });
        let accepted = listener.accept().unwrap().0;
        notice_when_gone(&accepted).unwrap();
        assert!(sockopt::socket_keepalive(&accepted).unwrap());
        let mut timed = Timed::new(accepted);
        timed.limit(Some(Duration::from_millis(300))).unwrap();
        let (began, mut byte) = (Instant::now(), [0]);
        let error = loop {
            if let Err(error) = timed.read(&mut byte) {
                break error;
            }
        };
        let kinds = [ErrorKind::TimedOut, ErrorKind::WouldBlock];
        assert!(kinds.contains(&error.kind()), "{error}");
        assert!(began.elapsed() >= Duration::from_millis(290));
        timed.limit(None).unwrap();
        assert_eq!(timed.read(&mut byte).unwrap(), 1);
        drop(timed);
        dripping.join().unwrap();
    }
}
