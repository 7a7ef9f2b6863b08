//! What goes between the roles of DistVS (§3.2) and their clients, to the byte. Nothing here reads, writes or waits.
//!
//! A connection begins with the greetings of [`stratann_tier::remote::wire`], in which each side says which [`Protocol`] it speaks. Behind them come
//! frames, each with a header of 32 bytes and a body. All numbers are little-endian.
//!
//! | offset | | |
//! |---|---|---|
//! | 0 | u32 | bytes behind the header, at most [`MOST_BODY`] |
//! | 4 | u8 | version of this format: [`VERSION`] |
//! | 5 | u8 | kind (below) |
//! | 6 | u16 | 0 |
//! | 8 | u64 | the asker's name for the request; an answer has that of what it answers. Of a walk: the query's id |
//! | 16 | u64 | state of the index that the sender goes by ([`Collection::state`]); 0 where it goes by none |
//! | 24 | u32 | microseconds that the asker had left when it sent this; 0: it waits as long as it takes |
//! | 28 | u32 | CRC-32C of the header before this and of the body |
//!
//! | kind | from → to | body |
//! |---|---|---|
//! | 1 describe | any → any | nothing; or a 1 (u8) to a compute server through which the collection is to be changed, for which it needs storage alone |
//! | 2 description | answer | a [`Collection`] (40 bytes), centroids of the low codes (memory role only) |
//! | 3 low codes | compute → memory | first node u32, count u32, of the most popular nodes so many u32 |
//! | 4 codes | answer | first node u32, count u32, where some codes are offloaded a bit for each of these nodes, codes |
//! | 5 begin | compute → memory | D_high u32, D_full u32, beam u32, bytes of the missing nodes u32, bytes of the row u32, missing nodes, the query's row, scored nodes |
//! | 6 refine | compute → memory | step u32, scored nodes |
//! | 7 end | compute → memory | |
//! | 8 lists | memory → compute | step u32, packed adjacency lists |
//! | 9 done | memory → compute | step u32, high computations u32, low computations u32, nodes |
//! | 10 rank | compute → storage | k u32, bytes of the row u32, the query's row, nodes |
//! | 11 ranked | answer | reads u64, bytes read u64, computations u64, nodes that do not count any more u32, answers |
//! | 12 search | client → compute | k u32, D_high u32 (0: the server's), beam u32 (0: the server's), the query's row |
//! | 13 answers | answer | [`Counters`] (72 bytes), answers |
//! | 14 refused | answer to anything | [`Reason`] u32, text (UTF-8, at most [`MOST_TEXT`] bytes) |
//! | 15 met | memory → compute, in place of lists behind a look, and behind a begin with missing nodes | step u32, bytes of the lists u32, packed adjacency lists, scored nodes |
//! | 16 change | client → compute → storage | token u64 three times (run, client, number), newest u64, wanted u32, upserts u32, deletes u32, the numbers of the wanted u64 each, ids u64 each (those of the upserts first), a row for each upsert |
//! | 17 changed | answer | ids that were inserted or replaced u32, ids that were deleted u32 |
//! | 18 give up | client → compute → storage | token u64 three times, newest u64, wanted u32, their numbers u64 each |
//! | 19 look | compute → memory, in place of refine where low codes are offloaded | step u32, bytes of the missing nodes u32, missing nodes, scored nodes |
//!
//! *nodes*: a set of node numbers, ascending, as LEB128 varints: the first, then the gaps (`nodes.rs`). *answers*: count u32, ids u64 each, distances f32
//! each, nearest first. *scored nodes*: count u32, nodes, and for each an f32: what its low code estimates of its distance to the query. *missing nodes*, whose low codes are asked for: where they take no bytes nothing; else how many are to be looked at by high codes u32, the
//! farthest estimate that is of use f32, nodes ([`MissingNodes`]).
//!
//! **The state** keeps a search from mixing states: node numbers and codes mean something within one state only, so each role refuses what names
//! a state that it does not have ([`Reason::OtherState`]), and whoever asked begins anew. Behind a merge memory and storage have two for a while: the last, and the one before.
//!
//! A *description* that nobody asked for, with id 0, says that the memory server has another state by now; it goes on answering in the one before for a while.
//!
//! **Tokens** make a change idempotent: which run of storage is to make it, which client wants it, and which of its changes it is. Storage makes a change
//! once, however often, and through whichever compute servers, it comes; one for another run it refuses ([`Reason::OtherState`], with its own in the place of the state), and the client asks again where it
//! still wants it. With each change its client says for which of its changes, up to the newest, it waits: all others are over, and storage makes none of them any more, whenever they come
//! ([`Reason::Over`]). *give up* is answered with what became of a change: *changed*, a refusal that says why it was not made, or [`Reason::Busy`] while it is being made.
//!
//! **Steps** make a walk idempotent. `begin` asks for step 0, `refine` and `look` for theirs, `lists`, `met` and `done` say which they are of. A request that comes
//! again gets the same answer again; one of a step that is over is ignored, as is an answer to it.

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

/// The version of this format. 1: the first. 2: what low codes estimate comes with the nodes, also with those at which a walk begins; low codes may be offloaded; changes. 3: a change says for which its
/// client waits, and may be given up. 4: a memory server gets queries rounded. 5: where low codes are offloaded, lists come as they are whose neighbours all have theirs on the compute server. 6: all lists come as they are, and compute servers ask for low codes with their next step. 7: addresses in UCX are sealed; a description says how many vectors a search can find. Greetings say it already
/// ([`Protocol`]): servers of two versions refuse each other before the first frame.
pub const VERSION: u8 = 7;
/// Greetings have said so before the first frame comes.
const _: () = assert!(Protocol::Memory.version() & 0xFFFF == VERSION as u32);
/// Bytes of a frame's header.
pub const HEADER: usize = 32;
/// The most bytes behind a header.
pub const MOST_BODY: usize = 16 << 20;
/// The most bytes behind the header of a request.
pub const MOST_ASKED: usize = 2 << 20;
/// The most bytes of a query's row.
pub const MOST_ROW: usize = 1 << 20;
/// The most bytes of a refusal's text.
pub const MOST_TEXT: usize = 1 << 10;
/// The most nodes or answers of one message, and the longest lists that may be asked for.
pub const MOST_NODES: usize = 1 << 16;
/// Bytes of a description before the centroids.
const COLLECTION: usize = 40;
/// Bytes of the counters of an answer.
const COUNTERS: usize = 72;

pub use stratann_tier::remote::wire::Protocol;

/// Why bytes are no frame or no message. The connection that brought them is over: nothing behind them can be told apart.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// A header that is none.
    #[error(
        "{field} {value} at byte {offset} of a frame: {right}; the other side is broken or speaks another version"
    )]
    Header {
        /// What.
        field: &'static str,
        /// As it stands there.
        value: u64,
        /// Where in the frame.
        offset: usize,
        /// What would be right.
        right: &'static str,
    },
    /// Bytes were changed on the way.
    #[error(
        "the checksum of a frame of {len} bytes is {found:#010x}, and that of what came is {right:#010x}: the network or a memory is broken"
    )]
    Checksum {
        /// Bytes of the frame.
        len: usize,
        /// What stands in the frame.
        found: u32,
        /// What its bytes give.
        right: u32,
    },
    /// A body that is none of its kind.
    #[error("{what} of {kind} at byte {offset} of {len}: the other side is broken")]
    Body {
        /// Which kind of message.
        kind: &'static str,
        /// What is wrong.
        what: &'static str,
        /// Where in the body.
        offset: usize,
        /// Bytes of the body.
        len: usize,
    },
}

/// What a collection is, as all roles have to agree on it.
///
/// | offset | |
/// |---|---|
/// | 0 | u64 `state` |
/// | 8 | u32 `nodes`, `dim`, `row_bytes`, `low_bytes`, `high_bytes` |
/// | 28 | u8 `element`, `metric`, `changes` (1: it takes some) |
/// | 31 | 0 |
/// | 32 | u64 `vectors` |
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Collection {
    /// Which checkpoint of the index: the first 8 bytes of the BLAKE3 of its MANIFEST. 0 stands for none.
    pub state: u64,
    /// Nodes: their numbers are below this.
    pub nodes: u32,
    /// Dimension of the vectors.
    pub dim: u32,
    /// Bytes of a query's row.
    pub row_bytes: u32,
    /// Bytes of a low code.
    pub low_bytes: u32,
    /// Bytes of a high code.
    pub high_bytes: u32,
    /// Element type, as the files of an index number them. The roles hand it on and do not look at it.
    pub element: u8,
    /// Metric, likewise.
    pub metric: u8,
    /// Whether it takes changes: as storage says, and a compute server that has heard so from it.
    pub changes: bool,
    /// Vectors that a search can find now, as storage says; others say how many nodes there are.
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

/// What a search took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Distance computations by low codes: on the compute server, and on the memory server of codes that are offloaded; also of walks that were given up.
    pub low: u64,
    /// By high codes, on the memory server, in walks that came to their end: more than one where much of what the first found was deleted.
    pub high: u64,
    /// With exact vectors, on storage.
    pub full: u64,
    /// Exchanges with the memory server.
    pub steps: u32,
    /// How often the walk began anew, because a server was gone or of another state.
    pub restarts: u32,
    /// Bytes of all frames of the search between the compute server and the memory server, in both directions.
    pub wire: u64,
    /// The same between the compute server and storage.
    pub storage_wire: u64,
    /// Reads that storage made.
    pub reads: u64,
    /// Bytes that these brought.
    pub read_bytes: u64,
    /// D_high that it was searched with: what was asked for, or what the server takes, and no less than the answers that were wanted.
    pub list: u32,
    /// Candidates that a step expanded at most.
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

/// Why something is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Reason {
    /// It is no request that could ever be answered: a wrong row, a node that is not there. Asking again is no use.
    Invalid = 1,
    /// It names another state than that of this server. Ask for a description, and begin anew.
    OtherState = 2,
    /// No such query is in progress: the server was restarted, or has waited too long. Begin anew.
    Unknown = 3,
    /// As much is in progress as may be. Ask again later.
    Busy = 4,
    /// There was no answer in time.
    Deadline = 5,
    /// Something failed; the text says what.
    Failed = 6,
    /// A compute server cannot answer now, since it waits for another server: ask another compute server, or later.
    Waiting = 7,
    /// A change that was not made, and never will be: its client has given it up, or its time was over before.
    GivenUp = 8,
    /// A change for which its client has said that it does not wait: what became of it is not known any more, and nothing more of it is made.
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
            Reason::Over => "over for its client",
        })
    }
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(std::array::from_fn(|i| bytes[at + i]))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(std::array::from_fn(|i| bytes[at + i]))
}

/// What a frame says besides its message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Head {
    /// The asker's name for the request.
    pub id: u64,
    /// The index' state that the sender goes by; 0: none.
    pub state: u64,
    /// Microseconds that the asker had left; 0: no end.
    pub left: u32,
}

impl Head {
    /// With what is left until a deadline, which is never said as 0.
    pub fn until(id: u64, state: u64, left: Duration) -> Head {
        let left = u32::try_from(left.as_micros()).unwrap_or(u32::MAX).max(1);
        Head { id, state, left }
    }

    /// When a request's time is over that came at `now`, `patience` later at the latest.
    pub fn deadline(&self, now: Duration, patience: Duration) -> Duration {
        match self.left {
            0 => now + patience,
            left => now + patience.min(Duration::from_micros(left.into())),
        }
    }
}

/// A frame that has come in: what stands in its header, and its body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame<'a> {
    /// What it says besides its message.
    pub head: Head,
    pub(crate) kind: u8,
    pub(crate) body: &'a [u8],
    whole: &'a [u8],
}

impl<'a> Frame<'a> {
    /// How many bytes it has, header included.
    pub fn bytes(&self) -> usize {
        self.whole.len()
    }

    /// All of them.
    pub fn whole(&self) -> &'a [u8] {
        self.whole
    }

    /// Whether a whole frame refuses something.
    pub(crate) fn is_refusal(bytes: &[u8]) -> bool {
        bytes.get(5) == Some(&Kind::Refused.into())
    }

    /// Whether it asks for a description, and if so, whether for changes.
    pub(crate) fn describes(&self) -> Option<bool> {
        (self.kind == u8::from(Kind::Describe)).then_some(!self.body.is_empty())
    }

    /// How many bytes a frame has, of which the first are these; `None` where they do not say so yet.
    pub(crate) fn len_of(bytes: &[u8]) -> Option<usize> {
        let (len, _) = bytes.split_first_chunk::<4>()?;
        Some(HEADER + u32::from_le_bytes(*len) as usize)
    }

    /// The first frame of what has come in; `None` if it is not complete yet.
    ///
    /// # Errors
    /// It is no frame.
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
            return wrong("length", len as u64, 0, "16 MiB at most");
        }
        if header[4] != VERSION {
            return wrong("version", header[4].into(), 4, "not that of this program");
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

/// A frame that is being appended to bytes: what is put behind them until [`close`](Open::close) is its body.
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

    /// Writes the header. A body longer than [`MOST_BODY`] is a mistake of this program, of which the receiver says so.
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

/// Frames as they come in, in pieces of any size.
#[derive(Debug)]
pub struct Incoming {
    /// The most bytes of a body.
    most: usize,
    /// What came stands from `at` to `end`; behind it is room.
    bytes: Vec<u8>,
    at: usize,
    end: usize,
}

impl Incoming {
    /// Where bodies have at most so many bytes, and never more than [`MOST_BODY`].
    pub fn new(most: usize) -> Incoming {
        Incoming {
            most: most.min(MOST_BODY),
            bytes: Vec::new(),
            at: 0,
            end: 0,
        }
    }

    /// Takes what a read brings: `read` gets room for at least so many bytes, and says how many it filled.
    ///
    /// # Errors
    /// Those of `read`.
    pub fn fill<E>(
        &mut self,
        room: usize,
        read: impl FnOnce(&mut [u8]) -> Result<usize, E>,
    ) -> Result<usize, E> {
        self.bytes.copy_within(self.at..self.end, 0);
        self.end -= self.at;
        self.at = 0;
        // One large frame is not kept room for.
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

    /// The next frame, if all of it is there.
    ///
    /// # Errors
    /// What came is no frame.
    pub fn frame(&mut self) -> Result<Option<Frame<'_>>, WireError> {
        let bytes = &self.bytes[self.at..self.end];
        if let Some(len) = Frame::len_of(bytes).filter(|&len| len > HEADER + self.most) {
            return Err(WireError::Header {
                field: "length",
                value: (len - HEADER) as u64,
                offset: 0,
                right: "nothing that is sent here is so long",
            });
        }
        let frame = Frame::decode(bytes)?;
        if let Some(frame) = &frame {
            self.at += frame.bytes();
        }
        Ok(frame)
    }

    /// Whether part of a frame is there.
    pub fn is_amid(&self) -> bool {
        self.at < self.end
    }
}

#[cfg(test)]
mod tests;
