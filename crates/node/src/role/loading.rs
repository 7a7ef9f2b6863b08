//! The loading of low codes: a description of the collection, and then the codes of one state,
//! piece by piece.

use std::time::Duration;

use super::{Backoff, LowHalf};
use crate::wire::{Collection, Frame, Head, Message, Reason};

pub(super) enum Loaded {
    Not,
    Same,
    All(Begun),
}

pub(super) struct Begun {
    pub(super) collection: Collection,
    pub(super) centroids: Vec<u8>,
    /// The number of popular nodes whose codes are wanted.
    kept: u32,
    nodes: u32,
    /// A bit for each received node, set if the node has a code. Empty if all have codes.
    pub(super) bits: Vec<u8>,
    pub(super) codes: Vec<u8>,
}

impl Begun {
    pub(super) fn offloads(&self) -> bool {
        self.kept < self.collection.nodes
    }

    /// Returns false if the piece is invalid or not the next one.
    fn take(&mut self, from: u32, count: u32, sent: &[u8]) -> bool {
        let left = self.collection.nodes - self.nodes;
        // The bits of a piece fill whole bytes, except in the last piece.
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
        // The announced size may be wrong, so at most as much is reserved as has arrived.
        let room = (all - self.codes.len()).min(codes.len().max(self.codes.len()));
        self.codes.reserve_exact(room);
        self.codes.extend_from_slice(codes);
        self.bits.extend_from_slice(bits);
        self.nodes += count;
        true
    }
}

pub(super) struct Loading {
    id: u64,
    room: u64,
    begun: Option<Begun>,
    backoff: Backoff,
    pub(super) again: Duration,
}

impl Loading {
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

    pub(super) fn timer(&mut self, now: Duration, out: &mut Vec<u8>) {
        if now >= self.again {
            self.again = self.backoff.pause(now);
            self.ask(out);
        }
    }

    /// `known` is the state of the loaded low codes.
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
                if frame.head.state != begun.collection.state || !begun.take(*from, *count, codes) {
                    return Loaded::Not;
                }
            }
            // The memory server has another state now.
            (
                Message::Refused {
                    reason: Reason::OtherState,
                    ..
                },
                begun,
            ) => *begun = None,
            // The server is counting the popularity of nodes, so pauses do not grow.
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
