//! A connection that many queries share, with *continuous batching* of messages (DistVS §4.2).
//!
//! ```text
//!   worker ── turn ends: its frames ──┐                                       ┌──> worker's inbox
//!   worker ── turn ends: its frames ──┼─ queue ── one write ─> ... ─ one read ┼──> worker's inbox
//!   worker ── still in its turn       ┘                                       └──> ...
//! ```
//!
//! A message of a search has tens of node numbers, so a system call would cost more than the
//! message. A worker therefore works in *turns*: it continues all queries that can continue, and
//! queues their messages together at the end. The thread that ends the last turn in progress, or
//! finds enough messages in the queue, writes them. The paper wakes a communicator thread for each
//! write.
//!
//! A turn begins when its worker is notified. A message waits only for turns that began before it
//! was queued, and for a write in progress. When the queue has about half as many messages as
//! queries may be in flight, a thread writes the queue without waiting.
//!
//! A storage thread writes the replies of one turn of its executor together
//! ([`after_turn`](stratann_tier::after_turn)).
//!
//! An outbox that *hands over* does not make the calling thread wait for a slow peer. After some
//! milliseconds, a new thread writes the remaining bytes.
//!
//! The peer reads all messages of a write at once and answers them together, so batches form in
//! both directions.

pub(crate) mod duplex;
pub(crate) mod pipe;

use std::io::{self, ErrorKind, Read};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread;
use std::time::Duration;

use crate::greeting::Deadline;
use crate::wire::{Frame, Incoming, WireError};
use duplex::{Closer, Receiver, Sender, Sent};

const ROOM: usize = 64 << 10;
const PROMPT: Duration = Duration::from_millis(2);
/// The bytes of one piece. A slow peer has the full time limit for each piece.
const PIECE: usize = 64 << 10;
/// The bytes that may wait for a slow peer. With more, the connection is closed.
const MOST_BEHIND: usize = 8 << 20;

/// Counters of the messages on connections.
#[derive(Debug, Default)]
pub struct Counts {
    sent: AtomicU64,
    writes: AtomicU64,
    bytes_sent: AtomicU64,
    received: AtomicU64,
    reads: AtomicU64,
    bytes_received: AtomicU64,
}

/// The counts of messages on connections, at the time of the call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Messages sent.
    pub sent: u64,
    /// Writes of these messages. A write may take several system calls.
    pub writes: u64,
    /// Bytes of these writes.
    pub bytes_sent: u64,
    /// Messages received.
    pub received: u64,
    /// Reads of these messages.
    pub reads: u64,
    /// Bytes of these reads.
    pub bytes_received: u64,
}

impl Counts {
    /// The current values.
    pub fn traffic(&self) -> Traffic {
        let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
        Traffic {
            sent: of(&self.sent),
            writes: of(&self.writes),
            bytes_sent: of(&self.bytes_sent),
            received: of(&self.received),
            reads: of(&self.reads),
            bytes_received: of(&self.bytes_received),
        }
    }

    fn wrote(&self, messages: u64, bytes: usize) {
        self.sent.fetch_add(messages, Ordering::Relaxed);
        self.writes.fetch_add(1, Ordering::Relaxed);
        self.bytes_sent.fetch_add(bytes as u64, Ordering::Relaxed);
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Batching {
    /// If false, each message is written by itself, for comparisons.
    pub(crate) on: bool,
    /// This many messages are written without waiting for turns.
    pub(crate) enough: usize,
}

#[derive(Default)]
struct Queue {
    bytes: Vec<u8>,
    messages: usize,
    turns: usize,
    writing: bool,
    over: bool,
}

pub(crate) struct Outbox {
    queue: Mutex<Queue>,
    sender: Mutex<(Sender, Vec<u8>)>,
    closer: Closer,
    batching: Batching,
    counts: Arc<Counts>,
    /// The time of the last received bytes, in microseconds on the reader's clock.
    heard: AtomicU64,
    /// If a new thread may continue a slow write: this outbox, and the time that the peer has for
    /// each piece.
    behind: Option<(Weak<Outbox>, Duration)>,
}

/// Sends piece by piece, each within the limit.
fn all(sender: &mut Sender, bytes: &[u8]) -> bool {
    let mut at = 0;
    loop {
        let end = bytes.len().min(at + PIECE);
        // Encrypted bytes of an earlier call may remain, so even an empty piece is sent.
        if !sender.send(&bytes[at..end]).is_ok_and(|sent| sent.whole) {
            return false;
        }
        at = end;
        if at == bytes.len() {
            return true;
        }
    }
}

fn frames(mut bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    std::iter::from_fn(move || {
        let len = Frame::len_of(bytes)?;
        let (frame, rest) = bytes.split_at_checked(len)?;
        bytes = rest;
        Some(frame)
    })
}

impl Outbox {
    pub(crate) fn new(
        sender: Sender,
        closer: Closer,
        batching: Batching,
        counts: Arc<Counts>,
    ) -> Outbox {
        Outbox {
            queue: Mutex::default(),
            sender: Mutex::new((sender, Vec::new())),
            closer,
            batching,
            counts,
            heard: AtomicU64::new(0),
            behind: None,
        }
    }

    /// An outbox whose callers never wait for the peer. The peer has `patience` for each 64 KiB.
    pub(crate) fn handing_over(
        mut sender: Sender,
        closer: Closer,
        counts: Arc<Counts>,
        patience: Duration,
    ) -> io::Result<Arc<Outbox>> {
        sender.set_limit(PROMPT)?;
        let batching = Batching {
            on: true,
            enough: 1,
        };
        Ok(Arc::new_cyclic(|own| {
            let mut outbox = Outbox::new(sender, closer, batching, counts);
            outbox.behind = Some((own.clone(), patience));
            outbox
        }))
    }

    pub(crate) fn hear(&self, at: Duration) {
        self.heard.store(at.as_micros() as u64, Ordering::Relaxed);
    }

    pub(crate) fn heard(&self) -> Duration {
        Duration::from_micros(self.heard.load(Ordering::Relaxed))
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Called when a worker is notified: its turn begins.
    pub(crate) fn expect(&self) {
        self.queue().turns += 1;
    }

    /// `expected` is whether [`expect`](Self::expect) was called for the turn.
    pub(crate) fn turn(&self, expected: bool) -> Turn<'_> {
        if !expected {
            self.expect();
        }
        Turn { outbox: self }
    }

    fn add(&self, bytes: &[u8]) -> MutexGuard<'_, Queue> {
        let mut queue = self.queue();
        let waits = queue.bytes.len();
        if self.behind.is_some() && waits > 0 && waits + bytes.len() > MOST_BEHIND {
            self.give_up(&mut queue);
        }
        if !queue.over {
            queue.bytes.extend_from_slice(bytes);
            queue.messages += frames(bytes).count();
        }
        queue
    }

    /// Sends frames, now or when the turns in progress end. A failed write closes the connection.
    pub(crate) fn post(&self, bytes: &[u8]) {
        self.flush(self.add(bytes));
    }

    /// Only queues the bytes. The caller must soon call [`send`](Self::send).
    pub(crate) fn lay(&self, bytes: &[u8]) {
        drop(self.add(bytes));
    }

    pub(crate) fn send(&self) {
        self.flush(self.queue());
    }

    fn flush<'a>(&'a self, mut queue: MutexGuard<'a, Queue>) {
        while !queue.writing
            && queue.messages > 0
            && (queue.turns == 0 || queue.messages >= self.batching.enough)
        {
            queue.writing = true;
            let mut sender = self.sender.lock().unwrap_or_else(PoisonError::into_inner);
            let (sender, taken) = &mut *sender;
            std::mem::swap(&mut queue.bytes, taken);
            let messages = std::mem::take(&mut queue.messages);
            drop(queue);
            let written = self.write(sender, taken, messages);
            let rest = match &written {
                Ok(sent) if !sent.whole => Some(taken.split_off(sent.taken)),
                _ => None,
            };
            taken.clear();
            taken.shrink_to(4 * ROOM);
            if let Some(rest) = rest
                && self.hand_over(rest)
            {
                // The new thread also sends later frames.
                return;
            }
            queue = self.queue();
            queue.writing = false;
            if !written.is_ok_and(|sent| sent.whole) {
                self.give_up(&mut queue);
            }
        }
    }

    fn give_up(&self, queue: &mut Queue) {
        queue.over = true;
        queue.bytes = Vec::new();
        queue.messages = 0;
        self.close();
    }

    /// Returns false if no thread can be started.
    fn hand_over(&self, rest: Vec<u8>) -> bool {
        let Some((own, patience)) = &self.behind else {
            return false;
        };
        let (Some(own), patience) = (own.upgrade(), *patience) else {
            return false;
        };
        let named = thread::Builder::new().name("stratann-behind".to_owned());
        let begun = stratann_tier::start(named, move || own.catch_up(rest, patience));
        begun.is_ok()
    }

    fn catch_up(&self, rest: Vec<u8>, patience: Duration) {
        let mut sender = self.sender.lock().unwrap_or_else(PoisonError::into_inner);
        let (sender, taken) = &mut *sender;
        *taken = rest;
        let mut goes = sender.set_limit(patience).is_ok();
        loop {
            goes = goes && all(sender, taken);
            taken.clear();
            taken.shrink_to(4 * ROOM);
            let mut queue = self.queue();
            if goes && queue.messages > 0 {
                std::mem::swap(&mut queue.bytes, taken);
                let messages = std::mem::take(&mut queue.messages);
                self.counts.wrote(messages as u64, taken.len());
                continue;
            }
            queue.writing = false;
            if !goes || sender.set_limit(PROMPT).is_err() {
                tracing::debug!("a connection is closed, since its peer did not read in time");
                self.give_up(&mut queue);
            }
            return;
        }
    }

    fn write(&self, sender: &mut Sender, bytes: &[u8], messages: usize) -> io::Result<Sent> {
        let sent = match self.batching.on {
            true => {
                self.counts.wrote(messages as u64, bytes.len());
                match (&self.behind, bytes.len()) {
                    (Some(_), _) | (None, ..=PIECE) => sender.send(bytes),
                    // Each piece has the full time limit, so a slow link can complete a long write.
                    (None, taken) => Ok(Sent {
                        taken,
                        whole: all(sender, bytes),
                    }),
                }
            }
            false => frames(bytes)
                .try_for_each(|frame| {
                    self.counts.wrote(1, frame.len());
                    match sender.send(frame)?.whole {
                        true => Ok(()),
                        false => Err(ErrorKind::TimedOut.into()),
                    }
                })
                .map(|()| Sent {
                    taken: bytes.len(),
                    whole: true,
                }),
        };
        if let Err(error) = &sent {
            tracing::debug!("a connection failed: {error}");
        }
        sent
    }

    pub(crate) fn close(&self) {
        self.closer.close();
    }
}

impl Drop for Outbox {
    fn drop(&mut self) {
        self.close();
    }
}

/// A turn in progress, for which messages of other workers wait. It ends on drop, even by a panic.
pub(crate) struct Turn<'a> {
    outbox: &'a Outbox,
}

impl Turn<'_> {
    pub(crate) fn end(self, frames: &[u8]) {
        let outbox = self.outbox;
        // The turn ends only after this call, so one write sends these frames and the waiting
        // messages.
        drop(outbox.add(frames));
        drop(self);
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let mut queue = self.outbox.queue();
        queue.turns = queue.turns.saturating_sub(1);
        self.outbox.flush(queue);
    }
}

pub(crate) struct Inbox {
    receiver: Receiver,
    incoming: Incoming,
    counts: Arc<Counts>,
    /// The time that the peer has for a frame, starting again after each 64 KiB.
    patience: Duration,
    begun: Option<Deadline>,
    /// Whether a frame was taken since the last read.
    taken: bool,
    limited: bool,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum Broken {
    #[error("the connection was closed")]
    Over,
    #[error("the connection failed: {0}")]
    Io(#[from] std::io::Error),
    #[error(transparent)]
    Wire(#[from] WireError),
    /// The server cannot answer now.
    #[error("{0}")]
    Waits(String),
}

impl Inbox {
    pub(crate) fn new(
        receiver: Receiver,
        counts: Arc<Counts>,
        patience: Duration,
        most: usize,
    ) -> Inbox {
        Inbox {
            receiver,
            incoming: Incoming::new(most),
            counts,
            patience,
            begun: None,
            taken: false,
            limited: true,
        }
    }

    /// If no frame has begun, the read waits without limit.
    pub(crate) fn read(&mut self) -> Result<(), Broken> {
        let limit = self.begun.as_ref().map(Deadline::left).transpose()?;
        if limit.is_some() || self.limited {
            self.receiver.set_timeout(limit)?;
            self.limited = limit.is_some();
        }
        let got = loop {
            match self.incoming.fill(ROOM, |room| self.receiver.read(room)) {
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                got => break got?,
            }
        };
        if got == 0 {
            return Err(Broken::Over);
        }
        if let Some(begun) = &mut self.begun {
            begun.advance(got);
        }
        self.taken = false;
        self.counts.reads.fetch_add(1, Ordering::Relaxed);
        self.counts
            .bytes_received
            .fetch_add(got as u64, Ordering::Relaxed);
        Ok(())
    }

    /// The caller calls this until the result is `None`.
    pub(crate) fn frame(&mut self) -> Result<Option<Frame<'_>>, WireError> {
        // Remaining bytes are the beginning of a frame.
        let amid = self.incoming.is_amid();
        let frame = self.incoming.frame()?;
        match &frame {
            Some(_) => {
                self.taken = true;
                self.counts.received.fetch_add(1, Ordering::Relaxed);
            }
            None if !amid => self.begun = None,
            None if self.taken || self.begun.is_none() => {
                self.begun = Some(Deadline::new(self.patience))
            }
            None => {}
        }
        Ok(frame)
    }
}

#[cfg(test)]
mod tests {
    use super::duplex::Duplex;
    use super::*;
    use crate::wire::{Head, Message, Reason};
    use std::time::Instant;

    fn answers(count: usize) -> Vec<u8> {
        let (mut bytes, text) = (Vec::new(), "?".repeat(1000));
        let refused = Message::Refused {
            reason: Reason::Busy,
            text: &text,
        };
        (0..count).for_each(|_| refused.append(Head::default(), &mut bytes));
        bytes
    }

    fn handing_over(patience: Duration) -> (Arc<Outbox>, pipe::Pipe) {
        let (own, theirs) = pipe::pair();
        let Duplex { sender, closer, .. } = Duplex::local(own, None);
        let outbox = Outbox::handing_over(sender, closer, Arc::default(), patience).unwrap();
        (outbox, theirs)
    }

    #[test]
    fn nobody_waits_for_a_peer_that_is_slow_and_it_has_all_in_the_end() {
        let (outbox, mut peer) = handing_over(Duration::from_secs(20));
        let bytes = answers(3000);
        let began = Instant::now();
        outbox.post(&bytes);
        outbox.post(&bytes);
        assert!(began.elapsed() < Duration::from_secs(5));
        let mut found = vec![0; 2 * bytes.len()];
        peer.reader.read_exact(&mut found).unwrap();
        assert!(found == bytes.repeat(2));
        outbox.post(&bytes[..0]);
        outbox.post(&answers(1));
        peer.reader.read_exact(&mut found[..1000]).unwrap();
    }

    #[test]
    fn what_is_laid_goes_in_one_write() {
        let (outbox, mut peer) = handing_over(Duration::from_secs(20));
        let bytes = answers(1);
        outbox.lay(&bytes);
        outbox.lay(&bytes);
        let traffic = outbox.counts.traffic();
        assert_eq!((traffic.sent, traffic.writes), (0, 0));
        outbox.send();
        outbox.send();
        let traffic = outbox.counts.traffic();
        assert_eq!((traffic.sent, traffic.writes), (2, 1));
        let mut found = vec![0; 2 * bytes.len()];
        peer.reader.read_exact(&mut found).unwrap();
        assert!(found == bytes.repeat(2));
    }

    #[test]
    fn a_peer_that_takes_nothing_is_given_up() {
        for (patience, posts) in [(20, 1), (60_000, 5)] {
            let (outbox, peer) = handing_over(Duration::from_millis(patience));
            (0..posts).for_each(|_| outbox.post(&answers(3000)));
            let began = Instant::now();
            while !outbox.queue().over {
                assert!(began.elapsed() < Duration::from_secs(20));
                thread::sleep(Duration::from_millis(1));
            }
            drop(peer);
        }
    }
}
