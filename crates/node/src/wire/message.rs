//! The content of a frame's body.

use super::body::Body;
use super::change::{Changed, Ids, Token, Wanted};
use super::kind::Kind;
use super::{
    COLLECTION, COUNTERS, Collection, Counters, Frame, MOST_ASKED, MOST_BODY, MOST_NODES, MOST_ROW,
    MOST_TEXT, Nodes, Reason, Scored, WireError, u32_at, u64_at,
};

/// The results of a search as received, nearest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answers<'a> {
    pub(super) ids: &'a [u8],
    pub(super) distances: &'a [u8],
}

impl Answers<'_> {
    /// The number of results.
    pub fn len(&self) -> usize {
        self.ids.len() / 8
    }

    /// Whether there are no results.
    pub fn is_empty(&self) -> bool {
        self.ids.is_empty()
    }

    /// The ids, nearest first.
    pub fn ids(&self) -> impl Iterator<Item = u64> {
        self.ids.chunks_exact(8).map(|id| u64_at(id, 0))
    }

    /// The distances, in the order of the ids.
    pub fn distances(&self) -> impl Iterator<Item = f32> {
        let bits = self.distances.chunks_exact(4).map(|bits| u32_at(bits, 0));
        bits.map(f32::from_bits)
    }
}

/// The result of a ranking on storage.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Ranked {
    /// Ids, nearest first.
    pub ids: Vec<u64>,
    /// A distance for each id.
    pub distances: Vec<f32>,
    /// The number of reads.
    pub reads: u64,
    /// Bytes of these reads.
    pub bytes: u64,
    /// The number of exact distances that were computed.
    pub computations: u64,
    /// The number of requested nodes that were deleted or replaced.
    pub refused: u32,
}

/// Nodes whose low codes a compute server does not have, as received.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MissingNodes<'a> {
    /// The number of nodes to score by high codes, out of `nodes` and the offered nodes.
    pub most: u32,
    /// The largest useful estimate of a distance.
    pub bound: f32,
    /// The nodes, or none if no code is needed.
    pub nodes: Nodes<'a>,
}

impl MissingNodes<'_> {
    /// No nodes.
    pub const NONE: MissingNodes<'static> = MissingNodes {
        most: 0,
        bound: 0.0,
        nodes: Nodes(&[]),
    };
}

/// The content of a frame. The table in [`wire`](super) has the sender and the receiver.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Message<'a> {
    /// Asks for a description of the collection.
    Describe {
        /// Whether the client wants changes; if so, a compute server needs only storage.
        for_changes: bool,
    },
    /// The answer to a request for a description.
    Description {
        /// The collection.
        collection: Collection,
        /// The centroids, which only the memory role sends.
        centroids: &'a [u8],
    },
    /// Asks for the low codes of some nodes.
    LowCodes {
        /// The first node.
        from: u32,
        /// The number of nodes. The reply may have fewer.
        count: u32,
        /// Restricts the reply to the codes of the `kept` most popular nodes of the collection.
        kept: u32,
    },
    /// Low codes.
    Codes {
        /// The first node.
        from: u32,
        /// The number of nodes.
        count: u32,
        /// Codes of `low_bytes` bytes each. If `codes` lacks the codes of unpopular nodes, a bit
        /// for each node (lowest first) precedes them.
        codes: &'a [u8],
    },
    /// Begins a query's walk.
    Begin {
        /// The length of the high list (D_high).
        list: u32,
        /// The number of nodes that the storage server ranks (D_full).
        full: u32,
        /// The number of candidates that one step expands.
        beam: u32,
        /// The query in the form that the codes need: byte elements unchanged, other elements
        /// rounded to a byte.
        query: &'a [u8],
        /// The nodes where the walk begins and whose low codes the compute server does not have.
        missing: MissingNodes<'a>,
        /// The nodes where the walk begins, which are to be scored by high codes.
        nodes: Scored<'a>,
    },
    /// The next step of a walk.
    Refine {
        /// The number of the step, from 1 on.
        step: u32,
        /// The nodes to score by high codes.
        nodes: Scored<'a>,
    },
    /// The next step of a walk that has met nodes whose low codes are missing.
    Look {
        /// The number of the step, from 1 on.
        step: u32,
        /// The nodes without low codes.
        missing: MissingNodes<'a>,
        /// Other nodes that may be scored by high codes.
        offered: Scored<'a>,
    },
    /// Ends a walk, whether it is complete or abandoned.
    End,
    /// The adjacency lists of the candidates that a step expanded.
    Lists {
        /// The number of the step.
        step: u32,
        /// The lists, as the halves pack them.
        lists: &'a [u8],
    },
    /// Like `Lists`, for a step that named nodes whose low codes the compute server does not have.
    Met {
        /// The number of the step.
        step: u32,
        /// The lists, as the halves pack them.
        lists: &'a [u8],
        /// The estimates of the requested nodes that may enter the low list of the compute server.
        estimates: Scored<'a>,
    },
    /// Reports that all candidates are expanded.
    Done {
        /// The number of the step that found no unexpanded candidate.
        step: u32,
        /// The number of distances that the walk computed by high codes.
        computations: u32,
        /// The number of distances by low codes, if low codes are offloaded.
        low: u32,
        /// The D_full nearest nodes by high codes.
        nodes: Nodes<'a>,
    },
    /// Asks for exact distances.
    Rank {
        /// The requested number of results.
        k: u32,
        /// The query.
        row: &'a [u8],
        /// The nodes to rank.
        nodes: Nodes<'a>,
    },
    /// The reply to a ranking request.
    Ranked {
        /// The number of reads.
        reads: u64,
        /// Bytes of these reads.
        bytes: u64,
        /// The number of exact distances that were computed.
        computations: u64,
        /// The number of nodes that were deleted or replaced.
        refused: u32,
        /// The k nearest vectors.
        answers: Answers<'a>,
    },
    /// A client's query.
    Search {
        /// The requested number of results.
        k: u32,
        /// The length of the high list (D_high), or 0 for the server's default.
        list: u32,
        /// The beam width, or 0 for the server's default.
        beam: u32,
        /// The query.
        row: &'a [u8],
    },
    /// The reply to a query.
    Answers {
        /// The costs of the search.
        counters: Counters,
        /// The k nearest vectors that the search found.
        answers: Answers<'a>,
    },
    /// Vectors to insert or replace, and ids to delete.
    Change {
        /// The token of the change.
        token: Token,
        /// The changes that the client waits for, including this one.
        wanted: Wanted<'a>,
        /// Ids of `rows`.
        upserts: Ids<'a>,
        /// Ids to delete, if they exist.
        deletes: Ids<'a>,
        /// Rows of the collection, one directly after the other.
        rows: &'a [u8],
    },
    /// Withdraws a change, and asks for its outcome.
    GiveUp {
        /// The token of the change.
        token: Token,
        /// The changes that the client waits for, including this one.
        wanted: Wanted<'a>,
    },
    /// The reply to a change that was made and is durable.
    Changed(Changed),
    /// A refusal.
    Refused {
        /// The reason.
        reason: Reason,
        /// The reason in words.
        text: &'a str,
    },
}

impl<'a> Message<'a> {
    /// Decodes a frame.
    ///
    /// # Errors
    /// The kind is unknown, or the body is no valid body of its kind.
    pub fn decode(frame: &Frame<'a>) -> Result<Message<'a>, WireError> {
        let Some(kind) = Kind::of(frame.kind) else {
            return Err(WireError::Header {
                field: "kind",
                value: frame.kind.into(),
                offset: 5,
                right: "1 to 19",
            });
        };
        let mut body = Body::new(kind.name(), frame.body);
        let message = match kind {
            Kind::Describe => Message::Describe {
                for_changes: match body.rest() {
                    [] => false,
                    [1] => true,
                    _ => return body.wrong("a byte other than 1"),
                },
            },
            Kind::Description => Message::Description {
                collection: collection(&mut body)?,
                centroids: body.rest(),
            },
            Kind::LowCodes => Message::LowCodes {
                from: body.u32()?,
                count: body.u32()?,
                kept: body.u32()?,
            },
            Kind::Codes => Message::Codes {
                from: body.u32()?,
                count: body.u32()?,
                codes: body.rest(),
            },
            Kind::Begin => begin(&mut body)?,
            Kind::Refine => Message::Refine {
                step: body.u32()?,
                nodes: body.scored()?,
            },
            Kind::Look => {
                let [step, missing] = [body.u32()?, body.u32()?];
                Message::Look {
                    step,
                    missing: body.missing(missing)?,
                    offered: body.scored()?,
                }
            }
            Kind::End => Message::End,
            Kind::Lists => Message::Lists {
                step: body.u32()?,
                lists: body.rest(),
            },
            Kind::Met => {
                let [step, lists] = [body.u32()?, body.u32()?];
                Message::Met {
                    step,
                    lists: body.take(lists as usize)?,
                    estimates: body.scored()?,
                }
            }
            Kind::Done => Message::Done {
                step: body.u32()?,
                computations: body.u32()?,
                low: body.u32()?,
                nodes: Nodes(body.rest()),
            },
            Kind::Rank => {
                let k = body.bounded(1, SIZE)?;
                let len = body.u32()? as usize;
                Message::Rank {
                    k,
                    row: body.row(len)?,
                    nodes: Nodes(body.rest()),
                }
            }
            Kind::Ranked => Message::Ranked {
                reads: body.u64()?,
                bytes: body.u64()?,
                computations: body.u64()?,
                refused: body.u32()?,
                answers: body.answers()?,
            },
            Kind::Search => Message::Search {
                k: body.bounded(1, SIZE)?,
                list: body.bounded(0, SIZE)?,
                beam: body.bounded(0, SIZE)?,
                row: body.rest_row()?,
            },
            Kind::Answers => {
                let counters: &[u8; COUNTERS] = match body.take(COUNTERS)?.try_into() {
                    Ok(bytes) => bytes,
                    Err(_) => return body.wrong("the end"),
                };
                Message::Answers {
                    counters: Counters::decode(counters),
                    answers: body.answers()?,
                }
            }
            Kind::Change => change(&mut body)?,
            Kind::GiveUp => {
                let (token, newest) = (body.token()?, body.u64()?);
                let count = body.u32()? as usize;
                let wanted = body.wanted(newest, count, token.number)?;
                Message::GiveUp { token, wanted }
            }
            Kind::Changed => Message::Changed(Changed {
                upserted: body.u32()?,
                deleted: body.u32()?,
            }),
            Kind::Refused => refusal(&mut body)?,
        };
        body.end()?;
        Ok(message)
    }
}

const SIZE: &str = "the number is out of range; the most is 65,536";

fn collection(body: &mut Body<'_>) -> Result<Collection, WireError> {
    let bytes: &[u8; COLLECTION] = match body.take(COLLECTION)?.try_into() {
        Ok(bytes) => bytes,
        Err(_) => return body.wrong("the end"),
    };
    let collection = Collection::decode(bytes);
    if collection.state == 0 || collection.row_bytes as usize > MOST_ROW {
        return body.wrong("the description of the collection is invalid");
    }
    Ok(collection)
}

fn begin<'a>(body: &mut Body<'a>) -> Result<Message<'a>, WireError> {
    let [list, full, beam] = [
        body.bounded(1, SIZE)?,
        body.bounded(1, SIZE)?,
        body.bounded(1, SIZE)?,
    ];
    let [missing, len] = [body.u32()?, body.u32()?];
    Ok(Message::Begin {
        list,
        full,
        beam,
        missing: body.missing(missing)?,
        query: body.row(len as usize)?,
        nodes: body.scored()?,
    })
}

fn change<'a>(body: &mut Body<'a>) -> Result<Message<'a>, WireError> {
    const MOST: &str = "the message has more than 65,536 ids";
    let (token, newest) = (body.token()?, body.u64()?);
    let wanted = body.u32()? as usize;
    let [upserts, deletes] = [
        body.bounded(0, MOST)? as usize,
        body.bounded(0, MOST)? as usize,
    ];
    Ok(Message::Change {
        token,
        wanted: body.wanted(newest, wanted, token.number)?,
        upserts: Ids(body.take(8 * upserts)?),
        deletes: Ids(body.take(8 * deletes)?),
        rows: body.rest(),
    })
}

fn refusal<'a>(body: &mut Body<'a>) -> Result<Message<'a>, WireError> {
    let reason = body.u32()?;
    let mut known = Reason::ALL.into_iter();
    let known = known.find(|&known| known as u32 == reason);
    let text = body.rest();
    match (known, std::str::from_utf8(text)) {
        (Some(reason), Ok(text)) if text.len() <= MOST_TEXT => {
            Ok(Message::Refused { reason, text })
        }
        _ => body.wrong("the reason is unknown, or the text is invalid"),
    }
}

const _: () = assert!(MOST_BODY > 2 * MOST_ROW + 12 * MOST_NODES);
const _: () = assert!(MOST_ASKED > MOST_ROW + 14 * MOST_NODES + 64);
