//! A connection through memory that two processes of one user share, with a ring for each
//! direction.
//!
//! ```text
//!   client                         memfd                            server
//!   write ──> head ─┐ ┌──────────────────────────────┐ ┌─ tail ──> read (spins, then sleeps)
//!                   └─│ to the server      1 MiB     │─┘
//!   read  <── tail ─┐ │ to the client      1 MiB     │ ┌─ head <── write
//!                   └─└──────────────────────────────┘─┘
//!   eventfd <─ "there are bytes, or there is space again" ───> eventfd
//! ```
//!
//! Each ring has one writer and one reader, and no lock. If an end finds no bytes, or no space, it
//! sets its flag in the memory, checks the ring once more, and waits for its own eventfd. After
//! each write or read, an end signals the other end's eventfd if the other end has set its flag. So
//! a busy connection makes no system calls, and an idle connection uses no processor time.
//!
//! | offset | | |
//! |---|---|---|
//! | 0, 256 | head u64 | bytes written so far to the server, to the client |
//! | 64, 320 | tail u64 | bytes read so far |
//! | 128, 384 | u32 | 1: the reader waits for bytes |
//! | 192, 448 | u32 | 1: the writer waits for space |
//! | 4096 | 1 MiB | the ring to the server |
//! | 4096 + 1 MiB | 1 MiB | the ring to the client |
//!
//! **Setup.** The client connects to the server's Unix socket and sends sixteen bytes and three
//! descriptors: the memory, the client's eventfd and the server's eventfd. The memory is sealed, so
//! that neither side can truncate it. Each side refuses a process of another user. The connection
//! ends with the socket, which the system closes even if a process is killed.
//!
//! Values in the memory are not trusted: an impossible head or tail is an error of the connection.

use std::fmt;
use std::io::{self, ErrorKind, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use memmap2::{MmapOptions, MmapRaw};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fs::{
    MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fstat, ftruncate, memfd_create,
};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType, recvmsg, sendmsg,
    socket_with,
};

const RING: usize = 1 << 20;
const RINGS: usize = 4096;
const ALL: usize = RINGS + 2 * RING;
const NUMBERS: usize = 256;
/// Bytes from one number of a ring to the next. So each number is on a cache line of its own.
const LINE: usize = 64;
const HELLO: &[u8; 16] = b"STRATANN RING 1\n";
/// The time for which a reader polls before it sleeps. A wake-up takes several microseconds, and a
/// server that is awake answers sooner.
pub(super) const SPIN: Duration = Duration::from_micros(20);
const LOOK: Duration = Duration::from_millis(50);
const SEALS: SealFlags = SealFlags::SHRINK
    .union(SealFlags::GROW)
    .union(SealFlags::SEAL);

fn broken(what: &str) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, format!("the shared ring: {what}"))
}

struct Memory(MmapRaw);

impl Memory {
    fn of(fd: &OwnedFd) -> io::Result<Arc<Memory>> {
        // The seals are checked before the size, because the size of unsealed memory can still
        // change.
        let sealed = fcntl_get_seals(fd).is_ok_and(|seals| seals.contains(SEALS));
        if !sealed || fstat(fd)?.st_size != ALL as i64 {
            return Err(broken("its memory has another size, or is not sealed"));
        }
        Ok(Arc::new(Memory(MmapOptions::new().len(ALL).map_raw(fd)?)))
    }

    fn number(&self, ring: usize, number: usize) -> *mut u8 {
        self.0
            .as_mut_ptr()
            .wrapping_add(ring * NUMBERS + number * LINE)
    }

    fn position(&self, ring: usize, number: usize) -> &AtomicU64 {
        // SAFETY: the number is in the first page of the mapping, aligned to a cache line. The
        // mapping lives as long as self, and the seals prevent its truncation. Both processes
        // access the number only as an atomic.
        unsafe { AtomicU64::from_ptr(self.number(ring, number).cast()) }
    }

    fn flag(&self, ring: usize, number: usize) -> &AtomicU32 {
        // SAFETY: as in `position`.
        unsafe { AtomicU32::from_ptr(self.number(ring, number).cast()) }
    }

    fn ring(&self, ring: usize) -> *mut u8 {
        self.0.as_mut_ptr().wrapping_add(RINGS + ring * RING)
    }
}

const HEAD: usize = 0;
const TAIL: usize = 1;
const READER: usize = 2;
const WRITER: usize = 3;

struct End {
    memory: Arc<Memory>,
    ring: usize,
    /// The bytes that have passed this end. The other end reads a copy of this number in the
    /// memory.
    own: u64,
}

impl End {
    fn take(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let head = self.memory.position(self.ring, HEAD).load(Ordering::SeqCst);
        let there = head.wrapping_sub(self.own);
        if there > RING as u64 {
            return Err(broken("it announces more bytes than it has room for"));
        }
        let count = out.len().min(there as usize);
        let at = self.own as usize % RING;
        let first = count.min(RING - at);
        let ring = self.memory.ring(self.ring);
        // SAFETY: at + first <= RING and count - first <= at, so both pieces are within this ring,
        // which is mapped while `memory` lives. `out` has `count` bytes and is borrowed
        // exclusively. The writer does not touch bytes between tail and head. If another process of
        // this user writes to them nevertheless, bytes change during the copy, as in any shared
        // memory. The frame's checksum detects such a change.
        unsafe {
            out.as_mut_ptr()
                .copy_from_nonoverlapping(ring.add(at), first);
            out.as_mut_ptr()
                .add(first)
                .copy_from_nonoverlapping(ring, count - first);
        }
        self.own = self.own.wrapping_add(count as u64);
        self.memory
            .position(self.ring, TAIL)
            .store(self.own, Ordering::SeqCst);
        Ok(count)
    }

    fn put(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let tail = self.memory.position(self.ring, TAIL).load(Ordering::SeqCst);
        let used = self.own.wrapping_sub(tail);
        if used > RING as u64 {
            return Err(broken("more bytes were taken than were put there"));
        }
        let count = bytes.len().min(RING - used as usize);
        let at = self.own as usize % RING;
        let first = count.min(RING - at);
        let ring = self.memory.ring(self.ring);
        // SAFETY: as in `take`; the reader does not touch bytes beyond the head.
        unsafe {
            ring.add(at).copy_from_nonoverlapping(bytes.as_ptr(), first);
            ring.copy_from_nonoverlapping(bytes.as_ptr().add(first), count - first);
        }
        self.own = self.own.wrapping_add(count as u64);
        self.memory
            .position(self.ring, HEAD)
            .store(self.own, Ordering::SeqCst);
        Ok(count)
    }

    /// After this call, the caller checks the ring once more. So this end sees the last action of
    /// the other end, or the other end sees the flag.
    fn waits(&self, flag: usize) {
        self.memory.flag(self.ring, flag).store(1, Ordering::SeqCst);
    }

    fn waited_for(&self, flag: usize) -> bool {
        self.memory.flag(self.ring, flag).swap(0, Ordering::SeqCst) == 1
    }
}

pub(super) fn ring(theirs: &OwnedFd) {
    // A failure is harmless: other code notices a full counter or a missing other end.
    let _ = rustix::io::write(theirs, &1u64.to_ne_bytes());
}

/// Neither side sends bytes through the socket, so a read shows only whether the socket has ended.
pub(super) fn is_over(mut socket: impl Read) -> bool {
    match socket.read(&mut [0u8]) {
        Ok(0) => true,
        Ok(_) => false,
        Err(error) => !matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted),
    }
}

/// A connection through shared memory, with time limits or without blocking, like a socket.
pub struct RingStream {
    /// Declared before the socket. So the socket's end, which informs the other side, comes last.
    input: End,
    output: End,
    mine: OwnedFd,
    theirs: OwnedFd,
    socket: UnixStream,
    waits: bool,
    read_timeout: Option<Duration>,
    write_timeout: Option<Duration>,
    looked: Instant,
}

impl fmt::Debug for RingStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RingStream({:?})", self.socket)
    }
}

fn check_user(socket: &UnixStream) -> io::Result<()> {
    let other = rustix::net::sockopt::socket_peercred(socket)?.uid;
    match other == rustix::process::geteuid() {
        true => Ok(()),
        false => Err(io::Error::new(
            ErrorKind::PermissionDenied,
            format!("the other process belongs to user {}", other.as_raw()),
        )),
    }
}

impl RingStream {
    /// Connects to a server's socket without waiting. The client can write at once.
    ///
    /// # Errors
    /// Fails if no process listens there, or a process of another user does.
    pub fn connect(path: &Path) -> io::Result<RingStream> {
        // If too many clients connect at once, a non-blocking connect fails instead of waiting.
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
        let socket = UnixStream::from(socket);
        check_user(&socket)?;
        let memory = memfd_create(
            "stratann-ring",
            MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING,
        )?;
        ftruncate(&memory, ALL as u64)?;
        fcntl_add_seals(&memory, SEALS)?;
        let event = || eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let (mine, theirs) = (event()?, event()?);
        let descriptors = [memory.as_fd(), mine.as_fd(), theirs.as_fd()];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(3))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !control.push(SendAncillaryMessage::ScmRights(&descriptors)) {
            return Err(broken("its descriptors do not fit a message"));
        }
        sendmsg(
            &socket,
            &[IoSlice::new(HELLO)],
            &mut control,
            SendFlags::NOSIGNAL,
        )?;
        Self::over(Memory::of(&memory)?, (1, 0), mine, theirs, socket)
    }

    fn accepted(socket: UnixStream, patience: Duration) -> io::Result<RingStream> {
        check_user(&socket)?;
        socket.set_read_timeout(Some(patience))?;
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(3))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut hello = [0; HELLO.len()];
        let got = recvmsg(
            &socket,
            &mut [IoSliceMut::new(&mut hello)],
            &mut control,
            RecvFlags::CMSG_CLOEXEC,
        )?;
        let mut descriptors = Vec::new();
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(rights) = message {
                descriptors.extend(rights);
            }
        }
        let descriptors: Result<[OwnedFd; 3], _> = descriptors.try_into();
        let (Ok([memory, theirs, mine]), true) =
            (descriptors, got.bytes == hello.len() && hello == *HELLO)
        else {
            return Err(broken("the first message is not from a client of StratANN"));
        };
        for fd in [&theirs, &mine] {
            rustix::io::ioctl_fionbio(fd, true)?;
        }
        let mut stream = Self::over(Memory::of(&memory)?, (0, 1), mine, theirs, socket)?;
        stream.waits = true;
        Ok(stream)
    }

    fn over(
        memory: Arc<Memory>,
        (input, output): (usize, usize),
        mine: OwnedFd,
        theirs: OwnedFd,
        socket: UnixStream,
    ) -> io::Result<RingStream> {
        socket.set_nonblocking(true)?;
        let end = |ring| End {
            memory: memory.clone(),
            ring,
            own: 0,
        };
        Ok(RingStream {
            input: end(input),
            output: end(output),
            mine,
            theirs,
            socket,
            waits: false,
            read_timeout: None,
            write_timeout: None,
            looked: Instant::now(),
        })
    }

    /// Sets whether reads and writes block, up to their time limits.
    pub fn set_waits(&mut self, waits: bool) {
        self.waits = waits;
    }

    /// Limits the wait of a read; `None` for no limit.
    pub fn set_read_timeout(&mut self, limit: Option<Duration>) {
        self.read_timeout = limit;
    }

    /// Limits the wait of a write; `None` for no limit.
    pub fn set_write_timeout(&mut self, limit: Option<Duration>) {
        self.write_timeout = limit;
    }

    /// The socket beside the rings, which ends with the connection.
    pub fn socket(&self) -> &UnixStream {
        &self.socket
    }

    fn ring(&self) {
        ring(&self.theirs);
    }

    fn quiet(&self) {
        let _ = rustix::io::read(&self.mine, &mut [0u8; 8]);
    }

    fn is_over(&mut self) -> bool {
        self.looked = Instant::now();
        is_over(&self.socket)
    }

    fn when(
        &mut self,
        flag: usize,
        limit: Option<Duration>,
        mut act: impl FnMut(&mut RingStream) -> io::Result<usize>,
    ) -> io::Result<usize> {
        let began = Instant::now();
        loop {
            let done = act(self)?;
            if done > 0 {
                return Ok(done);
            }
            if self.waits && began.elapsed() < SPIN {
                std::hint::spin_loop();
                continue;
            }
            self.quiet();
            match flag {
                READER => self.input.waits(flag),
                _ => self.output.waits(flag),
            }
            let done = act(self)?;
            if done > 0 {
                return Ok(done);
            }
            if (self.waits || self.looked.elapsed() > LOOK) && self.is_over() {
                return match act(self)? {
                    0 if flag == WRITER => Err(ErrorKind::BrokenPipe.into()),
                    done => Ok(done),
                };
            }
            if !self.waits {
                return Err(ErrorKind::WouldBlock.into());
            }
            let left = limit.map(|limit| limit.saturating_sub(began.elapsed()));
            if left.is_some_and(|left| left.is_zero()) {
                return Err(ErrorKind::WouldBlock.into());
            }
            let left = left.and_then(|left| Timespec::try_from(left).ok());
            let mut both = [
                PollFd::new(&self.mine, PollFlags::IN),
                PollFd::new(&self.socket, PollFlags::IN),
            ];
            match poll(&mut both, left.as_ref()) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

/// The reading half of a connection, for a thread of its own.
#[derive(Debug)]
pub struct RingReader(RingStream);

/// The writing half of a connection. Only the reader waits for the eventfd, so the writer polls a
/// full ring.
pub struct RingWriter {
    output: End,
    theirs: OwnedFd,
    socket: UnixStream,
    limit: Option<Duration>,
}

const NO_ROOM: Duration = Duration::from_micros(100);

impl RingStream {
    /// Splits the stream into its two directions, which block up to their time limits.
    ///
    /// # Errors
    /// Fails if no more descriptors are available.
    pub fn split(mut self) -> io::Result<(RingReader, RingWriter)> {
        let writer = RingWriter {
            output: End {
                memory: self.output.memory.clone(),
                ..self.output
            },
            theirs: self.theirs.try_clone()?,
            socket: self.socket.try_clone()?,
            limit: self.write_timeout,
        };
        self.waits = true;
        Ok((RingReader(self), writer))
    }
}

impl RingReader {
    /// Limits the wait of a read; `None` for no limit.
    pub fn set_timeout(&mut self, limit: Option<Duration>) {
        self.0.read_timeout = limit;
    }

    /// The socket beside the rings, which ends with the connection.
    pub fn socket(&self) -> &UnixStream {
        &self.0.socket
    }
}

impl Read for RingReader {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        self.0.read(out)
    }
}

impl RingWriter {
    /// Limits the wait of a write; `None` for no limit.
    pub fn set_timeout(&mut self, limit: Option<Duration>) {
        self.limit = limit;
    }
}

impl fmt::Debug for RingWriter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RingWriter({:?})", self.socket)
    }
}

impl Write for RingWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if bytes.is_empty() {
            return Ok(0);
        }
        let began = Instant::now();
        loop {
            let put = self.output.put(bytes)?;
            if put > 0 {
                if self.output.waited_for(READER) {
                    ring(&self.theirs);
                }
                return Ok(put);
            }
            if is_over(&self.socket) {
                return Err(ErrorKind::BrokenPipe.into());
            }
            if self.limit.is_some_and(|limit| began.elapsed() >= limit) {
                return Err(ErrorKind::TimedOut.into());
            }
            std::thread::sleep(NO_ROOM);
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl AsFd for RingStream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.mine.as_fd()
    }
}

impl Read for RingStream {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        if out.is_empty() {
            return Ok(0);
        }
        self.when(READER, self.read_timeout, |stream| {
            let taken = stream.input.take(out)?;
            if taken > 0 && stream.input.waited_for(WRITER) {
                stream.ring();
            }
            Ok(taken)
        })
    }
}

impl Write for RingStream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if bytes.is_empty() {
            return Ok(0);
        }
        self.when(WRITER, self.write_timeout, |stream| {
            let put = stream.output.put(bytes)?;
            if put > 0 && stream.output.waited_for(READER) {
                stream.ring();
            }
            Ok(put)
        })
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A listener for clients of rings: a Unix socket that only this user may connect to.
#[derive(Debug)]
pub struct RingListener {
    listener: UnixListener,
    path: PathBuf,
}

impl RingListener {
    /// Listens at a path. Replaces a socket without a listener, which a killed server leaves.
    ///
    /// # Errors
    /// Fails if another file or listener is there, or the socket cannot be created.
    pub fn bind(path: &Path) -> io::Result<RingListener> {
        use std::os::unix::fs::{FileTypeExt, PermissionsExt};
        if let Ok(facts) = path.symlink_metadata() {
            if !facts.file_type().is_socket() {
                return Err(io::Error::new(
                    ErrorKind::AlreadyExists,
                    "the path exists, and is not a socket",
                ));
            }
            match UnixStream::connect(path) {
                Err(error) if error.kind() == ErrorKind::ConnectionRefused => {
                    std::fs::remove_file(path)?
                }
                Ok(_) => {
                    return Err(io::Error::new(
                        ErrorKind::AddrInUse,
                        "another server listens at this path",
                    ));
                }
                Err(error) => return Err(error),
            }
        }
        let listener = UnixListener::bind(path)?;
        // A client that connected before this line is refused later if it belongs to another user.
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
        Ok(RingListener {
            listener,
            path: path.to_owned(),
        })
    }

    /// The path of the socket.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Accepts the next client, which is not checked yet.
    ///
    /// # Errors
    /// Fails as [`UnixListener::accept`] does.
    pub fn accept(&self) -> io::Result<UnixStream> {
        Ok(self.listener.accept()?.0)
    }

    /// Receives the rings of an accepted client.
    ///
    /// # Errors
    /// Fails if the client belongs to another user, or sends no valid rings within the time limit.
    pub fn greet(socket: UnixStream, patience: Duration) -> io::Result<RingStream> {
        RingStream::accepted(socket, patience)
    }
}

impl Drop for RingListener {
    fn drop(&mut self) {
        // The path has another socket only if this socket was removed before.
        let _ = std::fs::remove_file(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    fn pair() -> (tempfile::TempDir, RingStream, RingStream) {
        let root = tempfile::tempdir().unwrap();
        let listener = RingListener::bind(&root.path().join("socket")).unwrap();
        let mut client = RingStream::connect(listener.path()).unwrap();
        client.set_waits(true);
        let server =
            RingListener::greet(listener.accept().unwrap(), Duration::from_secs(5)).unwrap();
        (root, client, server)
    }

    #[test]
    fn bytes_come_out_as_they_went_in_however_much_is_on_the_way() {
        let (_root, mut client, mut server) = pair();
        let sent: Vec<u8> = (0..5_000_000u32)
            .map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8)
            .collect();
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
        let mut server = echo.join().unwrap();
        server.write_all(b"the end").unwrap();
        drop(server);
        let mut rest = Vec::new();
        client.read_to_end(&mut rest).unwrap();
        assert_eq!(rest, b"the end");
    }

    #[test]
    fn both_ends_write_all_they_have_before_either_has_read_anything() {
        let (_root, client, server) = pair();
        let bytes: Vec<u8> = (0..3 * RING).map(|at| (at % 253) as u8).collect();
        let exchange = |stream: RingStream| {
            let (mut reader, mut writer) = stream.split().unwrap();
            let sent = bytes.clone();
            let writes = thread::spawn(move || {
                writer.write_all(&sent).unwrap();
                writer
            });
            let mut found = vec![0; bytes.len()];
            reader.read_exact(&mut found).unwrap();
            assert!(found == bytes);
            (reader, writes.join().unwrap())
        };
        let (client, server) = thread::scope(|scope| {
            let client = scope.spawn(|| exchange(client));
            let server = exchange(server);
            (client.join().unwrap(), server)
        });
        let (_reader, mut writer) = client;
        writer.set_timeout(Some(Duration::from_millis(20)));
        let error = writer.write_all(&vec![1; RING + 1]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TimedOut);
        let (mut reader, other) = server;
        writer.socket.shutdown(std::net::Shutdown::Both).unwrap();
        let mut rest = Vec::new();
        reader.read_to_end(&mut rest).unwrap();
        assert_eq!(rest.len(), RING);
        drop((reader, other));
        writer.set_timeout(None);
        writer.write_all(&vec![1; RING]).unwrap();
        assert_eq!(
            writer.write(&[1]).unwrap_err().kind(),
            ErrorKind::BrokenPipe
        );
    }

    #[test]
    fn who_waits_sleeps_and_no_longer_than_he_may() {
        let (_root, mut client, mut server) = pair();
        client.set_read_timeout(Some(Duration::from_millis(300)));
        let cpu = crate::process::thread_cpu_time();
        let began = Instant::now();
        let error = client.read(&mut [0]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::WouldBlock);
        assert!(began.elapsed() >= Duration::from_millis(300));
        let spent = crate::process::thread_cpu_time() - cpu;
        assert!(spent < Duration::from_millis(100), "{spent:?}");
        client.set_write_timeout(Some(Duration::from_millis(50)));
        let error = client.write_all(&vec![1; RING + 1]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::WouldBlock);
        let mut all = vec![0; RING];
        server.read_exact(&mut all).unwrap();
        client.write_all(b"there is room again").unwrap();
        server.set_waits(false);
        server.read_exact(&mut [0; 19]).unwrap();
        assert_eq!(
            server.read(&mut [0]).unwrap_err().kind(),
            ErrorKind::WouldBlock
        );
    }

    #[test]
    fn numbers_that_cannot_be_are_an_error() {
        for (number, value) in [
            (HEAD, RING as u64 + 1),
            (HEAD, u64::MAX),
            (TAIL, 1),
            (TAIL, u64::MAX / 2),
        ] {
            let (_root, mut client, server) = pair();
            for ring in 0..2 {
                server
                    .input
                    .memory
                    .position(ring, number)
                    .store(value, Ordering::SeqCst);
            }
            let result = match number {
                HEAD => client.read(&mut [0; 100]),
                _ => client.write(&[0; 100]),
            };
            assert_eq!(
                result.unwrap_err().kind(),
                ErrorKind::InvalidData,
                "{number} {value}"
            );
        }
    }

    #[test]
    fn only_rings_of_this_user_are_taken() {
        use std::os::unix::fs::PermissionsExt;
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("socket");
        let listener = RingListener::bind(&path).unwrap();
        let mode = path.metadata().unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert!(
            RingListener::bind(&path).is_err(),
            "two servers listen at one path"
        );
        let greet = || RingListener::greet(listener.accept().unwrap(), Duration::from_millis(100));
        // The first client sends nothing, the second no descriptors, and the third unsealed memory.
        let _mute = UnixStream::connect(&path).unwrap();
        assert!(greet().is_err());
        let mut other = UnixStream::connect(&path).unwrap();
        other.write_all(HELLO).unwrap();
        assert!(greet().is_err());
        let memory = memfd_create("x", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        ftruncate(&memory, ALL as u64).unwrap();
        assert!(Memory::of(&memory).is_err());
        fcntl_add_seals(&memory, SEALS).unwrap();
        assert!(Memory::of(&memory).is_ok());
        drop(listener);
        assert!(!path.exists());
        std::fs::write(&path, "x").unwrap();
        assert!(RingListener::bind(&path).is_err() && path.exists());
    }
}
