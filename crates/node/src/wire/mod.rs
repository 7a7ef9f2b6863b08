//! The byte format of the messages between the roles of DistVS (§3.2) and their clients. This
//! module does no I/O and never waits.
//!
//! A connection begins with the greetings of [`stratann_tier::remote::wire`]. In its greeting each
//! side names the [`Protocol`] that it uses. Frames follow, each with a header of 32 bytes and a
//! body. All numbers are little-endian.
//!
//! | offset | | |
//! |---|---|---|
//! | 0 | u32 | bytes after the header, at most [`MOST_BODY`] |
//! | 4 | u8 | version of this format: [`VERSION`] |
//! | 5 | u8 | kind (below) |
//! | 6 | u16 | 0 |
//! | 8 | u64 | the requester's id of the request, or of the query in a walk; answers repeat it |
//! | 16 | u64 | state of the index that the sender uses ([`Collection::state`]); 0: none |
//! | 24 | u32 | microseconds from the sending of the frame to the requester's deadline; 0: none |
//! | 28 | u32 | CRC-32C of the 28 bytes before this field, and of the body |
//!
//! | kind | from → to | body |
//! |---|---|---|
//! | 1 describe | any → any | empty; or u8 1 *for changes*, only to a compute server |
//! | 2 description | answer | [`Collection`] (40 bytes); from memory also centroids of low codes |
//! | 3 low codes | compute → memory | first node u32, count u32, *kept* u32 |
//! | 4 codes | answer | first node u32, count u32, *bits*, codes |
//! | 5 begin | compute → memory | D_high u32, D_full u32, beam u32, then as below |
//! | 6 refine | compute → memory | step u32, scored nodes |
//! | 7 end | compute → memory | |
//! | 8 lists | memory → compute | step u32, packed adjacency lists |
//! | 9 done | memory → compute | step u32, high computations u32, low computations u32, nodes |
//! | 10 rank | compute → storage | k u32, bytes of the row u32, the query's row, nodes |
//! | 11 ranked | answer | reads u64, bytes read u64, computations u64, *dead* u32, answers |
//! | 12 search | client → compute | k u32, D_high u32, beam u32, the query's row |
//! | 13 answers | answer | [`Counters`] (72 bytes), answers |
//! | 14 refused | answer to anything | [`Reason`] u32, text (UTF-8, at most [`MOST_TEXT`] bytes) |
//! | 15 met | memory → compute | step u32, bytes of the lists u32, packed lists, scored nodes |
//! | 16 change | client → compute → storage | *token*, newest u64, wanted u32, then as below |
//! | 17 changed | answer | ids that were inserted or replaced u32, ids that were deleted u32 |
//! | 18 give up | client → compute → storage | *token*, newest u64, wanted u32, numbers u64 each |
//! | 19 look | compute → memory | step u32, bytes u32, missing nodes, scored nodes |
//!
//! - 1 describe: *for changes* means that the client wants to change the collection, not to search
//!   it. For such a client, the compute server needs only storage.
//! - 3 low codes: the reply has only the codes of the *kept* most popular nodes. A node is popular
//!   if many adjacency lists contain it. 4 codes: if some codes are offloaded, *bits* has a bit for
//!   each node of the range.
//! - 5 begin continues with: bytes of the missing nodes u32, bytes of the row u32, missing nodes,
//!   the query's row, scored nodes.
//! - 11 ranked: *dead* is the number of nodes that are deleted or replaced.
//! - 12 search: if D_high (the length of the high list) is 0, the server's default applies. A beam
//!   of 0 means the default beam.
//! - 15 met is sent instead of lists after a look, and after a begin with missing nodes. 19 look is
//!   sent instead of refine if low codes are offloaded. In 19 look, the u32 after the step is the
//!   number of bytes of the missing nodes.
//! - 16 change continues with: upserts u32, deletes u32, the numbers of the wanted changes u64
//!   each, ids u64 each (upserts first), and a row for each upsert. *token*: run u64, client u64,
//!   number u64.
//!
//! These names stand for:
//!
//! - *nodes*: an ascending set of node numbers as LEB128 varints, first the lowest number and then
//!   the gaps (`nodes.rs`).
//! - *answers*: count u32, ids u64 each, distances f32 each, nearest first.
//! - *scored nodes*: count u32, nodes, and an f32 for each node. The f32 is the low code's estimate
//!   of the node's distance to the query.
//! - *missing nodes*: the nodes whose low codes are offloaded ([`MissingNodes`]). They have a count
//!   u32 of nodes to score by high codes, the largest useful estimate f32, and nodes. A set of zero
//!   bytes has neither the count nor the estimate.
//!
//! **The state** keeps a search from mixing checkpoints, because node numbers and codes have a
//! meaning only within one checkpoint. Each role refuses a request that names a state which the
//! role does not have ([`Reason::OtherState`]). The server or client that sent the request then
//! begins again. After a merge, memory and storage serve two states for a while: the last state and
//! the state before it.
//!
//! When a memory server loads another state, it sends a *description* with id 0, without a request.
//! For a while, the memory server also answers requests that name its earlier state.
//!
//! **Tokens** make a change idempotent. A token names the run of storage (usually from a start of
//! the server to its end) that is to make the change, the client, and the number of the change.
//! Storage makes a change once, even if the change arrives several times and through several
//! compute servers. Storage refuses a change for another run with [`Reason::OtherState`], and names
//! its own run in the header's field for the state. The client then asks again if it still wants
//! the change.
//!
//! With each change, the client sends the number of its newest change, and lists the changes that
//! it still waits for. All its other changes up to the newest have ended: if one of them arrives
//! later, storage does not make it ([`Reason::Over`]). The reply to *give up* is the outcome of the
//! change: *changed*, a refusal with the reason, or [`Reason::Busy`] while the change is being
//! made.
//!
//! **Steps** make a walk idempotent. `begin` requests step 0, and `refine` and `look` request the
//! step that they name. `lists`, `met` and `done` name the step that they answer. A repeated
//! request gets the same reply. A request or a reply for an earlier step is ignored.

mod append;
mod body;
mod change;
mod kind;
mod message;
mod nodes;

use std::fmt;
use std::time::Duration;

pub(crate) use append::{
    append_begin, append_change, append_change_body, append_codes, append_done, append_give_up,
    append_lists, append_look, append_met, append_rank, append_refine,
};
pub use change::{Changed, Ids, MOST_WANTED, Token, Wanted};
use kind::Kind;
pub use message::{Answers, Message, MissingNodes, Ranked};
pub use nodes::{Nodes, Scored};

/// The version of this format, also in greetings, so that other versions are refused.
pub const VERSION: u8 = 7;
const _: () = assert!(Protocol::Memory.version() & 0xFFFF == VERSION as u32);
/// Bytes of a frame's header.
pub const HEADER: usize = 32;
/// The largest number of bytes after a header.
pub const MOST_BODY: usize = 16 << 20;
/// The largest number of bytes after the header of a request.
pub const MOST_ASKED: usize = 2 << 20;
/// The largest number of bytes of a query's row.
pub const MOST_ROW: usize = 1 << 20;
/// The largest number of bytes of a refusal's text.
pub const MOST_TEXT: usize = 1 << 10;
/// The largest number of nodes or results in a message, and the largest list size.
pub const MOST_NODES: usize = 1 << 16;
const COLLECTION: usize = 40;
const COUNTERS: usize = 72;

pub use stratann_tier::remote::wire::Protocol;

/// The reasons why bytes are no valid frame or message. The receiver closes the connection.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// An invalid header.
    #[error(
        "a frame has the {field} {value} at byte {offset}; valid: {right}. The other side is broken, or has another version"
    )]
    Header {
        /// The field.
        field: &'static str,
        /// The value of the field.
        value: u64,
        /// The offset of the field in the frame, in bytes.
        offset: usize,
        /// The valid values.
        right: &'static str,
    },
    /// The checksum does not match: bytes were changed between the sender and the receiver.
    #[error(
        "a frame of {len} bytes has checksum {found:#010x}; the bytes that arrived have {right:#010x}, so the network or a memory is broken"
    )]
    Checksum {
        /// Bytes of the frame.
        len: usize,
        /// The checksum in the frame.
        found: u32,
        /// The checksum of the received bytes.
        right: u32,
    },
    /// A body that is invalid for this kind of message.
    #[error("message \"{kind}\", byte {offset} of {len}: {what}; the other side is broken")]
    Body {
        /// The kind of message.
        kind: &'static str,
        /// The error.
        what: &'static str,
        /// The offset in the body, in bytes.
        offset: usize,
        /// Bytes of the body.
        len: usize,
    },
}

/// The properties of a collection on which all roles have to agree.
///
/// | offset | |
/// |---|---|
/// | 0 | u64 `state` |
/// | 8 | u32 `nodes`, `dim`, `row_bytes`, `low_bytes`, `high_bytes` |
/// | 28 | u8 `element`, `metric`, `changes` (1: storage accepts changes) |
/// | 31 | 0 |
/// | 32 | u64 `vectors` |
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Collection {
    /// The checkpoint: the first 8 bytes of the BLAKE3 hash of its MANIFEST, or 0 for none.
    pub state: u64,
    /// The number of nodes. Node numbers are below this number.
    pub nodes: u32,
    /// Dimension of the vectors.
    pub dim: u32,
    /// Bytes of a query's row.
    pub row_bytes: u32,
    /// Bytes of a low code.
    pub low_bytes: u32,
    /// Bytes of a high code.
    pub high_bytes: u32,
    /// The number of the element type in the files of an index.
    pub element: u8,
    /// The number of the metric in the files of an index.
    pub metric: u8,
    /// Whether storage accepts changes.
    pub changes: bool,
    /// The number of vectors that a search can find (storage), or of nodes (other roles).
    pub vectors: u64,
}

impl Collection {
    fn append(&self, out: &mut Vec<u8>) {
        out.extend(self.state.to_le_bytes());
        for number in [
            self.nodes,
            self.dim,
            self.row_bytes,
            self.low_bytes,
            self.high_bytes,
        ] {
            out.extend(number.to_le_bytes());
        }
        out.extend([self.element, self.metric, self.changes.into(), 0]);
        out.extend(self.vectors.to_le_bytes());
    }

    fn decode(bytes: &[u8; COLLECTION]) -> Collection {
        Collection {
            state: u64_at(bytes, 0),
            nodes: u32_at(bytes, 8),
            dim: u32_at(bytes, 12),
            row_bytes: u32_at(bytes, 16),
            low_bytes: u32_at(bytes, 20),
            high_bytes: u32_at(bytes, 24),
            element: bytes[28],
            metric: bytes[29],
            changes: bytes[30] == 1,
            vectors: u64_at(bytes, 32),
        }
    }
}

/// The costs of a search.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// The number of distances by low codes, on the compute and the memory server, including
    /// abandoned walks.
    pub low: u64,
    /// The number of distances by high codes in completed walks. A search may need several walks.
    pub high: u64,
    /// The number of distances with exact vectors on storage.
    pub full: u64,
    /// The number of exchanges with the memory server.
    pub steps: u32,
    /// The number of restarts, because a server had disconnected or had another state.
    pub restarts: u32,
    /// Bytes of the frames between the compute server and the memory server, both ways.
    pub wire: u64,
    /// Bytes of the frames between the compute server and storage, both ways.
    pub storage_wire: u64,
    /// The number of reads that storage made.
    pub reads: u64,
    /// Bytes of these reads.
    pub read_bytes: u64,
    /// The length of the high list (D_high), at least the number of results.
    pub list: u32,
    /// The largest number of candidates that a step expanded.
    pub beam: u32,
}

impl Counters {
    fn append(&self, out: &mut Vec<u8>) {
        for number in [self.low, self.high, self.full] {
            out.extend(number.to_le_bytes());
        }
        out.extend(self.steps.to_le_bytes());
        out.extend(self.restarts.to_le_bytes());
        for number in [self.wire, self.storage_wire, self.reads, self.read_bytes] {
            out.extend(number.to_le_bytes());
        }
        out.extend(self.list.to_le_bytes());
        out.extend(self.beam.to_le_bytes());
    }

    fn decode(bytes: &[u8; COUNTERS]) -> Counters {
        Counters {
            low: u64_at(bytes, 0),
            high: u64_at(bytes, 8),
            full: u64_at(bytes, 16),
            steps: u32_at(bytes, 24),
            restarts: u32_at(bytes, 28),
            wire: u64_at(bytes, 32),
            storage_wire: u64_at(bytes, 40),
            reads: u64_at(bytes, 48),
            read_bytes: u64_at(bytes, 56),
            list: u32_at(bytes, 64),
            beam: u32_at(bytes, 68),
        }
    }
}

/// The reasons why a request is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Reason {
    /// The request has a wrong row or a node that does not exist; do not repeat it.
    Invalid = 1,
    /// The server does not have the named state; get a description and begin again.
    OtherState = 2,
    /// No such query is in progress, after a restart or a long pause; begin again.
    Unknown = 3,
    /// The server is at its limit; ask later.
    Busy = 4,
    /// There was no answer before the deadline.
    Deadline = 5,
    /// A step failed; the text describes the error.
    Failed = 6,
    /// A compute server waits for another server; ask another compute server, or ask later.
    Waiting = 7,
    /// Storage has not made the change and never will, because the change was withdrawn or was
    /// late.
    GivenUp = 8,
    /// The client no longer waits for the change, whose outcome storage does not know.
    Over = 9,
}

impl Reason {
    const ALL: [Reason; 9] = [
        Reason::Invalid,
        Reason::OtherState,
        Reason::Unknown,
        Reason::Busy,
        Reason::Deadline,
        Reason::Failed,
        Reason::Waiting,
        Reason::GivenUp,
        Reason::Over,
    ];
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Reason::Invalid => "invalid",
            Reason::OtherState => "another state of the index",
            Reason::Unknown => "unknown query",
            Reason::Busy => "busy",
            Reason::Deadline => "not in time",
            Reason::Failed => "failed",
            Reason::Waiting => "waiting for another server",
            Reason::GivenUp => "given up",
            Reason::Over => "no longer awaited by its client",
        })
    }
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(std::array::from_fn(|i| bytes[at + i]))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(std::array::from_fn(|i| bytes[at + i]))
}

/// The part of a frame's header that does not depend on its message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Head {
    /// The requester's id for the request.
    pub id: u64,
    /// The state of the index that the sender uses, or 0 for none.
    pub state: u64,
    /// Microseconds until the client's deadline, or 0 for no deadline.
    pub left: u32,
}

impl Head {
    /// Creates a head with the time until the deadline, at least 1 microsecond.
    pub fn until(id: u64, state: u64, left: Duration) -> Head {
        let left = u32::try_from(left.as_micros()).unwrap_or(u32::MAX).max(1);
        Head { id, state, left }
    }

    /// Returns the deadline of a request that arrived at `now`, at most `now` plus `patience`.
    pub fn deadline(&self, now: Duration, patience: Duration) -> Duration {
        match self.left {
            0 => now + patience,
            left => now + patience.min(Duration::from_micros(left.into())),
        }
    }
}

/// A frame that was received: the fields of its header, and its body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame<'a> {
    /// The fields of its header.
    pub head: Head,
    pub(crate) kind: u8,
    pub(crate) body: &'a [u8],
    whole: &'a [u8],
}

impl<'a> Frame<'a> {
    /// Bytes of the frame, with the header.
    pub fn bytes(&self) -> usize {
        self.whole.len()
    }

    /// All bytes of the frame.
    pub fn whole(&self) -> &'a [u8] {
        self.whole
    }

    pub(crate) fn is_refusal(bytes: &[u8]) -> bool {
        bytes.get(5) == Some(&Kind::Refused.into())
    }

    pub(crate) fn describes(&self) -> Option<bool> {
        (self.kind == u8::from(Kind::Describe)).then_some(!self.body.is_empty())
    }

    pub(crate) fn len_of(bytes: &[u8]) -> Option<usize> {
        let (len, _) = bytes.split_first_chunk::<4>()?;
        Some(HEADER + u32::from_le_bytes(*len) as usize)
    }

    /// Decodes the first frame in `bytes`, or returns `None` if it is incomplete.
    ///
    /// # Errors
    /// The bytes are no valid frame.
    pub fn decode(bytes: &'a [u8]) -> Result<Option<Frame<'a>>, WireError> {
        let Some((header, rest)) = bytes.split_first_chunk::<HEADER>() else {
            return Ok(None);
        };
        let len = u32_at(header, 0) as usize;
        let wrong = |field, value: u64, offset, right| {
            Err(WireError::Header {
                field,
                value,
                offset,
                right,
            })
        };
        if len > MOST_BODY {
            return wrong("length", len as u64, 0, "at most 16 MiB");
        }
        if header[4] != VERSION {
            return wrong(
                "version",
                header[4].into(),
                4,
                "the version of this program",
            );
        }
        if header[6..8] != [0; 2] {
            return wrong(
                "flags",
                u64::from(header[6]) | u64::from(header[7]) << 8,
                6,
                "0",
            );
        }
        let Some(body) = rest.get(..len) else {
            return Ok(None);
        };
        let (found, right) = (u32_at(header, 28), checksum(header, body));
        if found != right {
            let len = HEADER + len;
            return Err(WireError::Checksum { len, found, right });
        }
        Ok(Some(Frame {
            head: Head {
                id: u64_at(header, 8),
                state: u64_at(header, 16),
                left: u32_at(header, 24),
            },
            kind: header[5],
            body,
            whole: &bytes[..HEADER + len],
        }))
    }
}

fn checksum(header: &[u8; HEADER], body: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&header[..28]), body)
}

/// A frame under construction: the bytes appended until [`close`](Open::close) are its body.
#[must_use = "a frame that is not closed has no header"]
pub(crate) struct Open {
    at: usize,
}

impl Open {
    pub(crate) fn new(out: &mut Vec<u8>) -> Open {
        let at = out.len();
        out.resize(at + HEADER, 0);
        Open { at }
    }

    /// Writes the header. The receiver reports a body longer than [`MOST_BODY`], which is a bug.
    pub(crate) fn close(self, kind: impl Into<u8>, head: Head, out: &mut [u8]) {
        let Some((header, body)) = out[self.at..].split_first_chunk_mut::<HEADER>() else {
            return;
        };
        header[0..4].copy_from_slice(&(body.len() as u32).to_le_bytes());
        (header[4], header[5]) = (VERSION, kind.into());
        header[8..16].copy_from_slice(&head.id.to_le_bytes());
        header[16..24].copy_from_slice(&head.state.to_le_bytes());
        header[24..28].copy_from_slice(&head.left.to_le_bytes());
        let sum = checksum(header, body);
        header[28..].copy_from_slice(&sum.to_le_bytes());
    }
}

/// Divides received bytes into frames.
#[derive(Debug)]
pub struct Incoming {
    most: usize,
    bytes: Vec<u8>,
    at: usize,
    end: usize,
}

impl Incoming {
    /// Accepts bodies of at most `most` bytes, and never more than [`MOST_BODY`].
    pub fn new(most: usize) -> Incoming {
        Incoming {
            most: most.min(MOST_BODY),
            bytes: Vec::new(),
            at: 0,
            end: 0,
        }
    }

    /// Calls `read` with a buffer of at least `room` bytes, and appends the bytes that `read`
    /// writes.
    ///
    /// # Errors
    /// `read` fails.
    pub fn fill<E>(
        &mut self,
        room: usize,
        read: impl FnOnce(&mut [u8]) -> Result<usize, E>,
    ) -> Result<usize, E> {
        self.bytes.copy_within(self.at..self.end, 0);
        self.end -= self.at;
        self.at = 0;
        if self.end == 0 && self.bytes.len() > 4 * room {
            self.bytes = Vec::new();
        }
        if self.bytes.len() < self.end + room {
            self.bytes.resize(self.end + room, 0);
        }
        let got = read(&mut self.bytes[self.end..])?;
        self.end = (self.end + got).min(self.bytes.len());
        Ok(got)
    }

    /// The next frame, if it is complete.
    ///
    /// # Errors
    /// The bytes are no valid frame.
    pub fn frame(&mut self) -> Result<Option<Frame<'_>>, WireError> {
        let bytes = &self.bytes[self.at..self.end];
        if let Some(len) = Frame::len_of(bytes).filter(|&len| len > HEADER + self.most) {
            return Err(WireError::Header {
                field: "length",
                value: (len - HEADER) as u64,
                offset: 0,
                right: "at most the longest message of this connection",
            });
        }
        let frame = Frame::decode(bytes)?;
        if let Some(frame) = &frame {
            self.at += frame.bytes();
        }
        Ok(frame)
    }

    /// Whether a part of an incomplete frame has arrived.
    pub fn is_amid(&self) -> bool {
        self.at < self.end
    }
}

#[cfg(test)]
mod tests;
