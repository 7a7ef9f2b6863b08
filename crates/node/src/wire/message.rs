//! Messages: what a frame's body says ([`Body`]). The byte table is in [`wire`](super).

use super::body::Body;
use super::change::{Changed, Ids, Token, Wanted};
use super::kind::Kind;
use super::{
    COLLECTION, COUNTERS, Collection, Counters, Frame, MOST_ASKED, MOST_BODY, MOST_NODES, MOST_ROW,
    MOST_TEXT, Nodes, Reason, Scored, WireError, u32_at, u64_at,
};

/// Answers of a search as they came: ids and distances, nearest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answers<'a> {
    pub(super) ids: &'a [u8],
    pub(super) distances: &'a [u8],
}

impl Answers<'_> {
    /// How many.
    pub fn len(&self) -> usize {
        self.ids.len() / 8
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.ids.is_empty()
    }

    /// Their ids.
    pub fn ids(&self) -> impl Iterator<Item = u64> {
        self.ids.chunks_exact(8).map(|id| u64_at(id, 0))
    }

    /// Their distances.
    pub fn distances(&self) -> impl Iterator<Item = f32> {
        let bits = self.distances.chunks_exact(4).map(|bits| u32_at(bits, 0));
        bits.map(f32::from_bits)
    }
}

/// What storage found: exact distances of the nearest, and what they took.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Ranked {
    /// Ids, nearest first.
    pub ids: Vec<u64>,
    /// A distance each.
    pub distances: Vec<f32>,
    /// Reads that were made.
    pub reads: u64,
    /// Bytes that these brought.
    pub bytes: u64,
    /// Exact distances that were computed.
    pub computations: u64,
    /// Nodes of those that were asked for that are not in the index any more, or were replaced.
    pub refused: u32,
}

/// Nodes whose low codes a compute server does not have, as they came.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MissingNodes<'a> {
    /// Of these and of what is offered with them, so many are to be looked at by high codes.
    pub most: u32,
    /// Estimates above this are of no use.
    pub bound: f32,
    /// Which. None: nothing is asked for.
    pub nodes: Nodes<'a>,
}

impl MissingNodes<'_> {
    /// None.
    pub const NONE: MissingNodes<'static> = MissingNodes {
        most: 0,
        bound: 0.0,
        nodes: Nodes(&[]),
    };
}

/// What a frame asks for or answers. The table in [`wire`](super) says who sends what to whom.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Message<'a> {
    /// What is the collection?
    Describe {
        /// It is to be changed: then a compute server need know no more than storage does.
        for_changes: bool,
    },
    /// This.
    Description {
        /// What it is.
        collection: Collection,
        /// What a compute server needs besides the low codes; empty from other roles than memory.
        centroids: &'a [u8],
    },
    /// The low codes of some nodes.
    LowCodes {
        /// The first.
        from: u32,
        /// How many; the answer may be of fewer.
        count: u32,
        /// Only of those among so many of the most popular nodes of the collection.
        kept: u32,
    },
    /// These.
    Codes {
        /// The first node.
        from: u32,
        /// Of how many they are.
        count: u32,
        /// `low_bytes` for each node. Where not those of all nodes were asked for, a bit for each node comes first, from the lowest of the first byte on, and then the codes of
        /// those whose bit is set.
        codes: &'a [u8],
    },
    /// A query's walk begins.
    Begin {
        /// D_high.
        list: u32,
        /// D_full.
        full: u32,
        /// Candidates that a step expands.
        beam: u32,
        /// The query as it is to be ranked by codes: of elements of a byte the row, else rounded to a byte for each dimension.
        query: &'a [u8],
        /// Where it begins, as far as the compute server does not have the low codes.
        missing: MissingNodes<'a>,
        /// Where it begins: to be scored by the rests of their codes.
        nodes: Scored<'a>,
    },
    /// The next step.
    Refine {
        /// Its number, from 1 on.
        step: u32,
        /// To be scored by the rests of their codes.
        nodes: Scored<'a>,
    },
    /// The next step, of a walk that has met nodes whose low codes the compute server does not have.
    Look {
        /// Its number, from 1 on.
        step: u32,
        /// These.
        missing: MissingNodes<'a>,
        /// What may be looked at by high codes besides.
        offered: Scored<'a>,
    },
    /// The walk is over, or given up.
    End,
    /// Adjacency lists of the candidates that a step expanded.
    Lists {
        /// Which step.
        step: u32,
        /// As the halves pack them.
        lists: &'a [u8],
    },
    /// The same, of a step that asked for low codes.
    Met {
        /// Which step.
        step: u32,
        /// As the halves pack them.
        lists: &'a [u8],
        /// What was asked for, as far as it may come into L_low.
        estimates: Scored<'a>,
    },
    /// All candidates are expanded.
    Done {
        /// Which step found so.
        step: u32,
        /// Distances by high codes that the walk took.
        computations: u32,
        /// By low codes, where these are offloaded.
        low: u32,
        /// The D_full nearest by high codes.
        nodes: Nodes<'a>,
    },
    /// Exact distances.
    Rank {
        /// How many are wanted.
        k: u32,
        /// The query.
        row: &'a [u8],
        /// Of which nodes.
        nodes: Nodes<'a>,
    },
    /// These.
    Ranked {
        /// Reads that were made.
        reads: u64,
        /// Bytes that these brought.
        bytes: u64,
        /// Distances that were computed.
        computations: u64,
        /// Nodes that do not count any more.
        refused: u32,
        /// The k nearest.
        answers: Answers<'a>,
    },
    /// A client's query.
    Search {
        /// How many are wanted.
        k: u32,
        /// D_high; 0: what the server takes.
        list: u32,
        /// 0: what the server takes.
        beam: u32,
        /// The query.
        row: &'a [u8],
    },
    /// Its answers.
    Answers {
        /// What it took.
        counters: Counters,
        /// The k nearest that were found.
        answers: Answers<'a>,
    },
    /// Vectors that are to be in the index, in place of what has their ids; and ids that are to be no more.
    Change {
        /// Which change.
        token: Token,
        /// For which changes its client waits: this one is among them.
        wanted: Wanted<'a>,
        /// Ids of `rows`.
        upserts: Ids<'a>,
        /// Ids that are deleted, if they are there.
        deletes: Ids<'a>,
        /// Rows of the collection, one behind the other.
        rows: &'a [u8],
    },
    /// A change is not wanted any more: it is not to be made where that has not begun, and who asks is told what became of it.
    GiveUp {
        /// Which change.
        token: Token,
        /// For which changes its client waits: also for what became of this one.
        wanted: Wanted<'a>,
    },
    /// It was made, and is durable.
    Changed(Changed),
    /// No.
    Refused {
        /// Why.
        reason: Reason,
        /// In words.
        text: &'a str,
    },
}

impl<'a> Message<'a> {
    /// What a frame says.
    ///
    /// # Errors
    /// Its body is none of its kind, or its kind is none.
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
                    _ => return body.wrong("something else than nothing and a 1"),
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

/// What a number is that no list or answer has.
const SIZE: &str = "a size of 0 or more than 65,536";

/// What is searched.
fn collection(body: &mut Body<'_>) -> Result<Collection, WireError> {
    let bytes: &[u8; COLLECTION] = match body.take(COLLECTION)?.try_into() {
        Ok(bytes) => bytes,
        Err(_) => return body.wrong("the end"),
    };
    let collection = Collection::decode(bytes);
    if collection.state == 0 || collection.row_bytes as usize > MOST_ROW {
        return body.wrong("a collection that cannot be");
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
    const MOST: &str = "more ids than 65,536";
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
        _ => body.wrong("no reason, or no text"),
    }
}

const _: () = assert!(MOST_BODY > 2 * MOST_ROW + 12 * MOST_NODES);
const _: () = assert!(MOST_ASKED > MOST_ROW + 14 * MOST_NODES + 64);
