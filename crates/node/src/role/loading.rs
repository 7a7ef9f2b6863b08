//! How a compute server gets its low codes: a description of the collection, then the codes, piece by piece, all of one state.

use std::time::Duration;

use super::{Backoff, LowHalf};
use crate::wire::{Collection, Frame, Head, Message, Reason};

/// What comes of a message.
pub(super) enum Loaded {
    /// It is asked for more.
    Not,
    /// The memory server has the state that is known already.
    Same,
    /// All of it.
    All(Begun),
}

/// What has come so far.
pub(super) struct Begun {
    pub(super) collection: Collection,
    pub(super) centroids: Vec<u8>,
    /// Of how many nodes codes are wanted: the most popular ones.
    kept: u32,
    /// Of how many nodes they came, or that there is none of them.
    nodes: u32,
    /// Which of these have codes, where not all do.
    pub(super) bits: Vec<u8>,
    pub(super) codes: Vec<u8>,
}

impl Begun {
    /// Whether some codes stay with the memory server.
    pub(super) fn offloads(&self) -> bool {
        self.kept < self.collection.nodes
    }

    /// Takes a piece; false if it is none, or not the next one.
    fn take(&mut self, from: u32, count: u32, sent: &[u8]) -> bool {
        let left = self.collection.nodes - self.nodes;
        // Whole bytes of bits, but at the end.
        let even = count.is_multiple_of(8) || count == left;
        if from != self.nodes || count == 0 || count > left || !even {
            return false;
        }
        let which = match self.offloads() {
            true => count.div_ceil(8) as usize,
            false => 0,
        };
        let Some((bits, codes)) = sent.split_at_checked(which) else {
            return false;
        };
        let ones = |bits: &[u8]| bits.iter().map(|byte| byte.count_ones()).sum::<u32>();
        let coded = if which == 0 { count } else { ones(bits) };
        let width = self.collection.low_bytes as usize;
        let all = width * self.kept.min(self.collection.nodes) as usize;
        if codes.len() != width * coded as usize || codes.len() > all - self.codes.len() {
            return false;
        }
        // As much room as there will be need of, but no more than twice what came: who says that much comes need not be right.
        let room = (all - self.codes.len()).min(codes.len().max(self.codes.len()));
        self.codes.reserve_exact(room);
        self.codes.extend_from_slice(codes);
        self.bits.extend_from_slice(bits);
        self.nodes += count;
        true
    }
}

/// Low codes that are on their way.
pub(super) struct Loading {
    id: u64,
    /// Bytes that they may take.
    room: u64,
    /// `None` until the collection is described.
    begun: Option<Begun>,
    backoff: Backoff,
    /// When to ask again.
    pub(super) again: Duration,
}

impl Loading {
    /// Asks for a description.
    pub(super) fn begin(
        now: Duration,
        id: u64,
        retry: Duration,
        room: u64,
        out: &mut Vec<u8>,
    ) -> Loading {
        let mut backoff = Backoff::new(retry);
        let again = backoff.pause(now);
        let loading = Loading {
            id,
            room,
            begun: None,
            backoff,
            again,
        };
        loading.ask(out);
        loading
    }

    /// Asks for what is next.
    fn ask(&self, out: &mut Vec<u8>) {
        let mut head = Head {
            id: self.id,
            ..Head::default()
        };
        match &self.begun {
            None => {
                let for_changes = false;
                Message::Describe { for_changes }.append(head, out);
            }
            Some(begun) => {
                head.state = begun.collection.state;
                let (from, kept) = (begun.nodes, begun.kept);
                let count = begun.collection.nodes - from;
                Message::LowCodes { from, count, kept }.append(head, out);
            }
        }
    }

    /// Asks once more, where it is time.
    pub(super) fn timer(&mut self, now: Duration, out: &mut Vec<u8>) {
        if now >= self.again {
            self.again = self.backoff.pause(now);
            self.ask(out);
        }
    }

    /// Takes the answer to what was asked for. `known`: the state of the low codes that there are.
    pub(super) fn message<L: LowHalf>(
        &mut self,
        now: Duration,
        frame: &Frame<'_>,
        message: &Message<'_>,
        known: u64,
        out: &mut Vec<u8>,
    ) -> Loaded {
        if frame.head.id != self.id {
            return Loaded::Not;
        }
        match (message, &mut self.begun) {
            (
                Message::Description {
                    collection,
                    centroids,
                },
                begun @ None,
            ) => {
                if collection.state == known {
                    return Loaded::Same;
                }
                *begun = Some(Begun {
                    collection: *collection,
                    centroids: centroids.to_vec(),
                    kept: L::room(collection, self.room).min(collection.nodes),
                    nodes: 0,
                    bits: Vec::new(),
                    codes: Vec::new(),
                });
            }
            (Message::Codes { from, count, codes }, Some(begun)) => {
                // What comes twice, or cannot be, is no piece.
                if frame.head.state != begun.collection.state || !begun.take(*from, *count, codes) {
                    return Loaded::Not;
                }
            }
            // It has another state by now.
            (
                Message::Refused {
                    reason: Reason::OtherState,
                    ..
                },
                begun,
            ) => *begun = None,
            // It counts how popular nodes are, and is asked as often as at first.
            (
                Message::Refused {
                    reason: Reason::Waiting,
                    ..
                },
                _,
            ) => {
                self.backoff.reset();
                self.again = self.backoff.pause(now);
                return Loaded::Not;
            }
            _ => return Loaded::Not,
        }
        let whole = |begun: &mut Begun| begun.nodes == begun.collection.nodes;
        if let Some(begun) = self.begun.take_if(whole) {
            return Loaded::All(begun);
        }
        self.backoff.reset();
        self.again = self.backoff.pause(now);
        self.ask(out);
        Loaded::Not
    }
}
