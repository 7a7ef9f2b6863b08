//! A stream of bytes through UCX between two processes, which behaves like a socket. The servers of
//! DistVS communicate through it.
//!
//! ```text
//!   client                                         server
//!   TCP: greetings, secret ─────────────────────── TCP: greetings, secret
//!   makes a worker, sends its sealed address ────> checks the seal, makes a worker, connects there
//!   checks the seal, connects there <───────────── sends its sealed address
//!   HELLO ── UCX ────────────────────────────────> arrives: UCX has a path
//!   arrives <─────────────────────────── UCX ───── HELLO
//! ```
//!
//! **UCX aborts a process that passes invalid bytes to UCX as an address.** So each side sends with
//! its address a proof for this connection ([`Seal`]). A worker takes descriptors and megabytes, so
//! a server creates a worker only after the client has sent its address.
//!
//! ```text
//!   0 bytes of the address u32   4 the address, then zeros   REACH proof [32]   in all REACH + 32
//! ```
//!
//! After this setup, all bytes go through UCX. When the TCP connection ends, the stream ends, even
//! if a process was killed and UCX does not notice. So any thread can end a stream by closing its
//! socket.
//!
//! A reader and a writer share the one worker of their side. Both lock the worker for one call of
//! the library at a time, and never while they sleep. A reader without bytes arms the worker's
//! descriptor and sleeps. If a writer then processes an event that the reader needs, the writer
//! signals an eventfd.
//!
//! Written bytes are copied, and one piece is in transit at a time. So if a side does not read, the
//! other side's writes wait. Bytes that arrive while this side waits to write are stored in memory.
//! If a side ends the stream, the last bytes that it wrote may be lost.

use std::fmt;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

use super::endpoint::Endpoint;
use super::{Context, Use, Worker, api, warn_of_tcp};
use crate::error::TierError;
use crate::remote::Timed;
use crate::remote::notice_when_gone;
use crate::remote::ring::{SPIN, is_over, ring};
use crate::remote::wire::{Proof, REACH, Seal, Side};

/// An address has at least a first byte, the number of the worker, and one byte of a device.
const LEAST_ADDRESS: usize = 1 + 8 + 1;
const PIECE: usize = 64 << 10;
const HELLO: &[u8; 16] = b"STRATANN UCX 1.\n";
/// The sleep if a transport cannot send now. Perhaps no event reports when it can, so the sleep is
/// short.
const NAP: Duration = Duration::from_micros(100);
/// The longest sleep of a writer for an event, because the reader may have processed the event
/// already.
const DOZE: Duration = Duration::from_millis(1);

fn broken(text: String) -> io::Error {
    io::Error::new(ErrorKind::ConnectionReset, text)
}

/// The settings for streams to servers on this machine, or elsewhere.
#[derive(Clone)]
pub struct Streams {
    context: Arc<Context>,
}

impl fmt::Debug for Streams {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Streams(UCX)")
    }
}

impl Streams {
    /// Loads the library. `loopback` is true if both sides are on this machine.
    ///
    /// # Errors
    /// [`TierError::Unsupported`] if there is no library or no device to use.
    pub fn new(loopback: bool) -> Result<Streams, TierError> {
        let context = Context::shared(Use::Streams, loopback);
        match context {
            Ok(context) => Ok(Streams { context }),
            Err(reason) => Err(TierError::Unsupported {
                what: "a connection through UCX".to_owned(),
                reason,
            }),
        }
    }

    /// Like [`new`](Self::new), for a server. If settings for trials are in use, it logs a warning.
    ///
    /// # Errors
    /// Fails as [`new`](Self::new) does.
    pub fn serving(loopback: bool) -> Result<Streams, TierError> {
        let streams = Self::new(loopback)?;
        warn_of_tcp(
            "Over TCP nothing is encrypted, and a process that reaches the port is not authenticated.",
        );
        Ok(streams)
    }

    /// Sets up a stream over a connection. `seal` is the key from the connection's greetings.
    ///
    /// # Errors
    /// Fails if the other side ends, sends no valid seal, or is not reached through UCX in time.
    pub fn over(
        &self,
        socket: TcpStream,
        side: Side,
        seal: &Seal,
        patience: Duration,
    ) -> io::Result<UcxStream> {
        let until = Instant::now() + patience;
        let mut timed = Timed::new(socket);
        timed.limit(Some(patience))?;
        let make = || Worker::new(&self.context).map_err(io::Error::other);
        let (worker, theirs) = match side {
            Side::Client => {
                let worker = make()?;
                tell(&mut timed, &worker, side, seal)?;
                (worker, told(&mut timed, Side::Server, seal)?)
            }
            Side::Server => {
                let theirs = told(&mut timed, Side::Client, seal)?;
                let worker = make()?;
                tell(&mut timed, &worker, side, seal)?;
                (worker, theirs)
            }
        };
        timed.limit(None)?;
        let socket = timed.into_socket();
        notice_when_gone(&socket)?;
        socket.set_nonblocking(true)?;
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        // No event is processed before the endpoint is stored, and no step until then can fail.
        let endpoint = Endpoint::new(&worker, &theirs).map_err(io::Error::other)?;
        let line = Arc::new(Line {
            bell,
            wakes: worker.fd().as_raw_fd(),
            inside: Mutex::new(Inside {
                worker,
                endpoint,
                sending: None,
                piece: Vec::new(),
                came: None,
                sleeps: false,
            }),
            socket,
            over: AtomicBool::new(false),
        });
        let mut stream = UcxStream {
            reader: UcxReader {
                line: line.clone(),
                limit: None,
            },
            writer: UcxWriter { line, limit: None },
        };
        stream.greet(side, until).map_err(|error| match error.kind() {
            ErrorKind::WouldBlock | ErrorKind::TimedOut => io::Error::new(
                ErrorKind::TimedOut,
                "no bytes arrive through UCX, though the server answers over TCP. Let UCX_TLS and UCX_NET_DEVICES name devices that reach each other, on both sides",
            ),
            _ => error,
        })?;
        Ok(stream)
    }
}

fn tell(to: &mut Timed, worker: &Worker, side: Side, seal: &Seal) -> io::Result<()> {
    let address = worker.address().map_err(io::Error::other)?;
    let mut bytes = (address.len() as u32).to_le_bytes().to_vec();
    bytes.extend(&address);
    if bytes.len() > REACH {
        let (all, most) = (bytes.len(), REACH);
        return Err(io::Error::other(format!(
            "its UCX address has {all} bytes, and at most {most} can be sent. Name fewer devices in UCX_NET_DEVICES"
        )));
    }
    bytes.resize(REACH, 0);
    let proof = seal.proof(side, &bytes);
    bytes.extend(proof);
    to.write_all(&bytes)
}

fn told(from: &mut Timed, by: Side, seal: &Seal) -> io::Result<Vec<u8>> {
    let (mut bytes, mut proof): (_, Proof) = ([0; REACH], [0; 32]);
    let ended = |error: io::Error| match error.kind() {
        ErrorKind::UnexpectedEof => io::Error::new(
            ErrorKind::UnexpectedEof,
            "it ended the connection before it sent its UCX address. Its log has the reason",
        ),
        _ => error,
    };
    from.read_exact(&mut bytes).map_err(ended)?;
    from.read_exact(&mut proof).map_err(ended)?;
    if !seal.is_shown(&proof, by, &bytes) {
        let what = "its UCX address has no proof that it knows the secret; another process sent or changed the address";
        return Err(io::Error::new(ErrorKind::InvalidData, what));
    }
    let (len, rest) = bytes.split_at(4);
    let len = u32::from_le_bytes(std::array::from_fn(|i| len[i])) as usize;
    let address = rest.get(..len).filter(|_| len >= LEAST_ADDRESS);
    let address = address.ok_or_else(|| {
        let what = format!(
            "the other side sent a UCX address of {len} bytes; {LEAST_ADDRESS} to {} are possible. Use the same version of StratANN on both sides",
            rest.len()
        );
        io::Error::new(ErrorKind::InvalidData, what)
    })?;
    Ok(address.to_vec())
}

/// A stream through UCX. It reads and writes like a socket, with the same time limits.
pub struct UcxStream {
    reader: UcxReader,
    writer: UcxWriter,
}

/// The reading half, for a thread of its own.
pub struct UcxReader {
    line: Arc<Line>,
    limit: Option<Duration>,
}

/// The writing half.
pub struct UcxWriter {
    line: Arc<Line>,
    limit: Option<Duration>,
}

struct Line {
    inside: Mutex<Inside>,
    wakes: RawFd,
    bell: OwnedFd,
    /// A non-blocking socket. Its end is the end of the stream.
    socket: TcpStream,
    over: AtomicBool,
}

struct Inside {
    /// Declared first, so that the worker is dropped before all data that it may access.
    worker: Worker,
    endpoint: Endpoint,
    sending: Option<NonNull<std::ffi::c_void>>,
    piece: Vec<u8>,
    came: Option<Came>,
    sleeps: bool,
}

// SAFETY: this value owns its worker, and its pointers belong to the worker. UCX lets any thread
// use the worker, one thread at a time (`api::SERIALIZED`).
unsafe impl Send for Inside {}

/// Bytes that have arrived and were not all read. The library owns them until they are released.
struct Came {
    start: NonNull<u8>,
    len: usize,
    at: usize,
}

impl Inside {
    fn next(&self) -> io::Result<Option<Came>> {
        let functions = self.worker.functions();
        let mut len = 0;
        // SAFETY: the endpoint belongs to this worker, which lives, and `len` may be written to.
        let start = unsafe { (functions.ucp_stream_recv_data_nb)(self.endpoint.raw(), &mut len) };
        if let Some(status) = api::error_of(start) {
            return Err(broken(format!("UCX: {}", functions.text(status))));
        }
        Ok(NonNull::new(start.cast()).map(|start| Came { start, len, at: 0 }))
    }

    fn take(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let mut taken = 0;
        while taken < out.len() {
            let came = match self.came.take() {
                Some(came) => came,
                None => match self.next()? {
                    Some(came) => came,
                    None => break,
                },
            };
            // SAFETY: the library gave `came.len` bytes at `came.start`, valid until their release.
            let bytes = unsafe { std::slice::from_raw_parts(came.start.as_ptr(), came.len) };
            let rest = &bytes[came.at..];
            let count = rest.len().min(out.len() - taken);
            out[taken..taken + count].copy_from_slice(&rest[..count]);
            taken += count;
            let at = came.at + count;
            match at < came.len {
                true => self.came = Some(Came { at, ..came }),
                false => self.release(came),
            }
        }
        Ok(taken)
    }

    fn release(&self, came: Came) {
        let functions = self.worker.functions();
        let start = came.start.as_ptr().cast();
        // SAFETY: the bytes came through this endpoint, and no reference to them is left.
        unsafe { (functions.ucp_stream_data_release)(self.endpoint.raw(), start) };
    }

    /// Like [`take`](Self::take), but also processes network events. Stops as soon as there are
    /// bytes, so that later bytes wait in the network.
    fn receive(&mut self, out: &mut [u8]) -> io::Result<usize> {
        loop {
            let taken = self.take(out)?;
            if taken > 0 || !self.worker.progress() {
                return Ok(taken);
            }
        }
    }

    fn is_sent(&mut self) -> io::Result<bool> {
        let Some(request) = self.sending else {
            return Ok(true);
        };
        let functions = self.worker.functions();
        // SAFETY: the library owns the request until it is freed below.
        let status = unsafe { (functions.ucp_request_check_status)(request.as_ptr()) };
        if status == api::IN_PROGRESS {
            return Ok(false);
        }
        self.sending = None;
        // SAFETY: the request is done, and there is no other reference to it.
        unsafe { (functions.ucp_request_free)(request.as_ptr()) };
        functions.check("send", status).map_err(broken)?;
        Ok(true)
    }

    fn check(&self) -> io::Result<()> {
        self.endpoint.check(&self.worker).map_err(broken)
    }

    fn send(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.check()?;
        let functions = self.worker.functions();
        let count = bytes.len().min(PIECE);
        self.piece.clear();
        self.piece.extend_from_slice(&bytes[..count]);
        let params = api::RequestParams::new(0);
        // SAFETY: the endpoint belongs to this worker, which lives. The piece stays unchanged until
        // the request is done, which `is_sent` confirms before the next call, or until the worker
        // is destroyed.
        let request = unsafe {
            (functions.ucp_stream_send_nbx)(
                self.endpoint.raw(),
                self.piece.as_ptr().cast(),
                count,
                &params,
            )
        };
        match api::error_of(request) {
            Some(status) => Err(broken(format!(
                "UCX cannot send: {}",
                functions.text(status)
            ))),
            None => {
                self.sending = NonNull::new(request);
                Ok(count)
            }
        }
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        if let Some(came) = self.came.take() {
            self.release(came);
        }
        // Closing the endpoint also cancels a piece in transit.
        self.endpoint.close(&self.worker);
    }
}

impl Line {
    fn inside(&self) -> MutexGuard<'_, Inside> {
        self.inside.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_over(&self) -> bool {
        self.over.load(Ordering::SeqCst)
    }

    fn look(&self) -> bool {
        if is_over(&self.socket) {
            self.over.store(true, Ordering::SeqCst);
        }
        self.is_over()
    }

    fn wake(&self, mut inside: MutexGuard<'_, Inside>) {
        let sleeps = std::mem::take(&mut inside.sleeps);
        drop(inside);
        if sleeps {
            ring(&self.bell);
        }
    }

    /// Sleeps until an event, for `most` at the longest. If `armed`, events of the worker count,
    /// and if `reads`, signals of the bell.
    fn sleep(&self, armed: bool, reads: bool, most: Option<Duration>) -> io::Result<()> {
        let of = |wanted: bool| match wanted {
            true => PollFlags::IN,
            false => PollFlags::empty(),
        };
        let mut all = [
            PollFd::new(&self.socket, PollFlags::IN),
            PollFd::from_borrowed_fd(self.wakes(), of(armed)),
            PollFd::new(&self.bell, of(reads)),
        ];
        let most = most.and_then(|most| Timespec::try_from(most).ok());
        match poll(&mut all, most.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let [socket, _, bell] = all.map(|fd| !fd.revents().is_empty());
        if socket {
            self.look();
        }
        if bell {
            let _ = rustix::io::read(&self.bell, &mut [0u8; 8]);
        }
        Ok(())
    }

    fn wakes(&self) -> BorrowedFd<'_> {
        // SAFETY: the descriptor belongs to the worker, which lives as long as this value.
        unsafe { BorrowedFd::borrow_raw(self.wakes) }
    }

    /// Sleeps for `left` at the longest. Returns true if the worker's descriptor could not be
    /// armed, because of a pending event.
    fn wait(
        &self,
        mut inside: MutexGuard<'_, Inside>,
        reads: bool,
        left: Option<Duration>,
        busy: bool,
    ) -> io::Result<bool> {
        let armed = inside.worker.arm().map_err(broken)?;
        inside.sleeps |= reads;
        drop(inside);
        let most = match (armed, reads) {
            (true, true) => None,
            (true, false) => Some(DOZE),
            (false, _) if !busy => return Ok(true),
            (false, _) => Some(NAP),
        };
        self.sleep(armed, reads, [most, left].into_iter().flatten().min())?;
        Ok(!armed)
    }

    fn read(&self, out: &mut [u8], limit: Option<Duration>) -> io::Result<usize> {
        let (began, mut busy) = (Instant::now(), false);
        loop {
            let over = self.is_over();
            let mut inside = self.inside();
            inside.sleeps = false;
            let got = inside.receive(out)?;
            // Bytes that arrived before the end are read before the end is reported.
            if got > 0 || out.is_empty() || over {
                return Ok(got);
            }
            // This read also reports that a piece cannot be sent, because perhaps no thread writes.
            let sent = inside.is_sent().map(|_| ());
            if let Err(error) = sent.and_then(|()| inside.check()) {
                drop(inside);
                return match self.look() {
                    true => Ok(0),
                    false => Err(error),
                };
            }
            let waited = began.elapsed();
            if waited < SPIN {
                drop(inside);
                std::hint::spin_loop();
                continue;
            }
            let left = limit.map(|limit| limit.saturating_sub(waited));
            if left.is_some_and(|left| left.is_zero()) {
                return Err(ErrorKind::WouldBlock.into());
            }
            busy = self.wait(inside, true, left, busy)?;
        }
    }

    fn write(&self, bytes: &[u8], limit: Option<Duration>) -> io::Result<usize> {
        let (began, mut busy) = (Instant::now(), false);
        while !bytes.is_empty() {
            if self.is_over() {
                return Err(ErrorKind::BrokenPipe.into());
            }
            let mut inside = self.inside();
            if inside.is_sent()? {
                let count = inside.send(bytes)?;
                if inside.sending.is_some() {
                    self.wake(inside);
                }
                return Ok(count);
            }
            inside.check()?;
            let left = limit.map(|limit| limit.saturating_sub(began.elapsed()));
            if left.is_some_and(|left| left.is_zero()) {
                return Err(ErrorKind::TimedOut.into());
            }
            if inside.worker.progress() {
                self.wake(inside);
                continue;
            }
            busy = self.wait(inside, false, left, busy)?;
        }
        Ok(0)
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        // The socket is shut down before UCX informs the other side. So the other side sees an end
        // and not an error. A failure is harmless: the other side has ended.
        let _ = self.socket.shutdown(Shutdown::Both);
    }
}

impl fmt::Debug for UcxStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "UcxStream({:?})", self.socket())
    }
}

impl UcxStream {
    fn greet(&mut self, side: Side, until: Instant) -> io::Result<()> {
        if side == Side::Client {
            self.write_all(HELLO)?;
        }
        let mut hello = [0; HELLO.len()];
        let mut at = 0;
        while at < hello.len() {
            self.set_read_timeout(Some(until.saturating_duration_since(Instant::now())));
            match self.read(&mut hello[at..])? {
                0 => return Err(ErrorKind::UnexpectedEof.into()),
                got => at += got,
            }
        }
        self.set_read_timeout(None);
        if hello != *HELLO {
            let what = "the first bytes through UCX are not a greeting";
            return Err(io::Error::new(ErrorKind::InvalidData, what));
        }
        match side {
            Side::Client => Ok(()),
            Side::Server => self.write_all(HELLO),
        }
    }

    /// Splits the stream into its two directions.
    pub fn split(self) -> (UcxReader, UcxWriter) {
        (self.reader, self.writer)
    }

    /// Limits the wait of a read; `None` for no limit.
    pub fn set_read_timeout(&mut self, limit: Option<Duration>) {
        self.reader.set_timeout(limit);
    }

    /// Limits the wait of a write; `None` for no limit.
    pub fn set_write_timeout(&mut self, limit: Option<Duration>) {
        self.writer.set_timeout(limit);
    }

    /// The socket beside the stream, which ends with the stream.
    pub fn socket(&self) -> &TcpStream {
        self.reader.socket()
    }
}

impl UcxReader {
    /// Limits the wait of a read; `None` for no limit.
    pub fn set_timeout(&mut self, limit: Option<Duration>) {
        self.limit = limit;
    }

    /// The socket beside the stream, which ends with the stream.
    pub fn socket(&self) -> &TcpStream {
        &self.line.socket
    }
}

impl UcxWriter {
    /// Limits the wait of a write; `None` for no limit.
    pub fn set_timeout(&mut self, limit: Option<Duration>) {
        self.limit = limit;
    }
}

impl AsFd for UcxStream {
    /// After a read without bytes, the descriptor becomes readable when bytes arrive.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.reader.line.wakes()
    }
}

impl Read for UcxStream {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        self.reader.read(out)
    }
}

impl Write for UcxStream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.writer.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.writer.flush()
    }
}

impl Read for UcxReader {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        self.line.read(out, self.limit)
    }
}

impl Write for UcxWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.line.write(bytes, self.limit)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::remote::wire::Secret;
    use std::net::TcpListener;
    use std::thread;

    fn pair() -> Option<(UcxStream, UcxStream)> {
        let streams = match Streams::new(true) {
            Ok(streams) => streams,
            Err(error) => {
                println!("skipped: {error}");
                return None;
            }
        };
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (server, patience) = (listener.accept().unwrap().0, Duration::from_secs(10));
        Some(thread::scope(|scope| {
            let server = scope.spawn(|| streams.over(server, Side::Server, &seal(1), patience));
            let client = streams.over(client, Side::Client, &seal(1), patience);
            (client.unwrap(), server.join().unwrap().unwrap())
        }))
    }

    fn seal(of: u8) -> Seal {
        let secret = Secret::new(b"a secret of streams through UCX").unwrap();
        secret.seal([&[of; 32], &[2; 32]])
    }

    #[test]
    fn an_address_counts_that_the_other_side_sealed_in_this_conversation() {
        let told_of = |bytes: &[u8]| {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let mut one = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let other = listener.accept().unwrap().0;
            one.write_all(bytes).unwrap();
            drop(one);
            told(&mut Timed::new(other), Side::Client, &seal(1)).map_err(|error| error.to_string())
        };
        let sealed = |address: &[u8], len: usize, side: Side, seal: &Seal| {
            let mut bytes = (len as u32).to_le_bytes().to_vec();
            bytes.extend(address);
            bytes.resize(REACH, 0);
            let proof = seal.proof(side, &bytes);
            bytes.extend(proof);
            bytes
        };
        for len in [LEAST_ADDRESS, 79, REACH - 4] {
            let (address, seal, other) = (bytes(len), seal(1), seal(3));
            let right = sealed(&address, len, Side::Client, &seal);
            assert!(told_of(&right).unwrap() == address);
            for (why, wrong) in [
                ("proof", sealed(&address, len, Side::Server, &seal)),
                ("proof", sealed(&address, len, Side::Client, &other)),
                ("ended the connection", right[..right.len() - 1].to_vec()),
            ] {
                let said = told_of(&wrong).unwrap_err();
                assert!(said.contains(why), "{said}");
            }
            for at in [0, 3, 4, 4 + len - 1, REACH - 1, REACH, REACH + 31] {
                let mut wrong = right.clone();
                wrong[at] ^= 1;
                let said = told_of(&wrong).unwrap_err();
                assert!(said.contains("proof"), "{at}: {said}");
            }
        }
        for len in [0, LEAST_ADDRESS - 1, REACH - 3, u32::MAX as usize] {
            let said = told_of(&sealed(&[], len, Side::Client, &seal(1))).unwrap_err();
            assert!(said.contains(&format!("of {len} bytes")), "{said}");
        }
    }

    #[test]
    fn sides_of_two_conversations_have_no_stream() {
        let Ok(streams) = Streams::new(true) else {
            println!("skipped: no UCX");
            return;
        };
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (server, patience) = (listener.accept().unwrap().0, Duration::from_secs(20));
        thread::scope(|scope| {
            let server = scope.spawn(|| streams.over(server, Side::Server, &seal(1), patience));
            let client = streams.over(client, Side::Client, &seal(3), patience);
            let refused = server.join().unwrap().unwrap_err().to_string();
            assert!(refused.contains("proof that it knows"), "{refused}");
            assert!(client.is_err());
        });
    }

    fn bytes(len: usize) -> Vec<u8> {
        let byte = |i: u32| (i.wrapping_mul(2_654_435_761) >> 24) as u8;
        (0..len as u32).map(byte).collect()
    }

    #[test]
    fn bytes_come_out_as_they_went_in_and_then_the_end() {
        let Some((mut client, mut server)) = pair() else {
            return;
        };
        let sent = bytes(5_000_000);
        let right = sent.clone();
        let echo = thread::spawn(move || {
            let mut all = vec![0; right.len()];
            for piece in all.chunks_mut(77_777) {
                server.read_exact(piece).unwrap();
            }
            server.write_all(&all).unwrap();
            assert!(all == right);
            server
        });
        client.write_all(&sent).unwrap();
        let mut back = vec![0; sent.len()];
        client.read_exact(&mut back).unwrap();
        assert!(back == sent);
        let server = echo.join().unwrap();
        server.socket().shutdown(Shutdown::Both).unwrap();
        assert_eq!(client.read(&mut [0]).unwrap(), 0);
        let error = client.write(&[0]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::BrokenPipe);
        let mut server = server;
        assert_eq!(server.read(&mut [0]).unwrap(), 0);
    }

    #[test]
    fn both_ends_write_all_they_have_before_either_has_read_anything() {
        let Some((client, server)) = pair() else {
            return;
        };
        let all = bytes(3_000_000);
        let exchange = |stream: UcxStream| {
            let (mut reader, mut writer) = stream.split();
            let sent = all.clone();
            let writes = thread::spawn(move || {
                writer.write_all(&sent).unwrap();
                writer
            });
            let mut found = vec![0; all.len()];
            reader.read_exact(&mut found).unwrap();
            assert!(found == all);
            (reader, writes.join().unwrap())
        };
        thread::scope(|scope| {
            let client = scope.spawn(|| exchange(client));
            let server = exchange(server);
            (client.join().unwrap(), server)
        });
    }

    #[test]
    fn who_waits_sleeps_and_no_longer_than_he_may() {
        let Some((mut client, mut server)) = pair() else {
            return;
        };
        client.set_read_timeout(Some(Duration::from_millis(300)));
        let (cpu, began) = (crate::process::thread_cpu_time(), Instant::now());
        let error = client.read(&mut [0]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::WouldBlock);
        assert!(began.elapsed() >= Duration::from_millis(300));
        let spent = crate::process::thread_cpu_time() - cpu;
        assert!(spent < Duration::from_millis(100), "{spent:?}");
        client.set_write_timeout(Some(Duration::from_millis(50)));
        let began = Instant::now();
        let error = client.write_all(&bytes(256 << 20)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TimedOut);
        assert!(began.elapsed() < Duration::from_secs(5));
        let mut some = vec![0; 1 << 16];
        server.read_exact(&mut some).unwrap();
        assert!(some == bytes(1 << 16));
    }

    #[test]
    fn each_answers_as_soon_as_he_was_asked() {
        let Some((client, server)) = pair() else {
            return;
        };
        let turns = |stream: UcxStream, begins: bool| {
            let (mut reader, mut writer) = stream.split();
            reader.set_timeout(Some(Duration::from_secs(20)));
            if begins {
                writer.write_all(&[1; 100]).unwrap();
            }
            let mut asked = [0; 100];
            for _ in 0..5000 {
                if let Err(error) = reader.read_exact(&mut asked) {
                    panic!("{error}");
                }
                writer.write_all(&asked).unwrap();
            }
            (reader, writer)
        };
        thread::scope(|scope| {
            let client = scope.spawn(|| turns(client, true));
            let server = turns(server, false);
            (client.join().unwrap(), server)
        });
    }
}
