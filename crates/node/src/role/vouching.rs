//! Keeps storage from giving up the state of the memory server, even without searches. A compute
//! server names that state to storage again and again, as a lease is renewed.
//!
//! ```text
//!   compute ──low codes of no nodes, in the state of the own codes──> memory
//!           <──codes: memory has that state; refused: memory's state──
//!           ──rank no nodes, in the state of memory──> storage   keeps it for another minute
//! ```
//!
//! Storage keeps the checkpoint before a merge until no server has used it for a minute. Until then
//! storage does not merge again. Memory servers have no connection to storage, and compute servers
//! have connections to both. So each compute server vouches for its memory server, several times a
//! minute.
//!
//! A memory server may adopt the checkpoint of a merge late, or never. As long as the memory server
//! answers, storage ranks searches in the memory server's state. A memory server that has
//! disconnected or is silent delays merges for at most a minute. A compute server names the state
//! after a merge as soon as it has the low codes of that state. When all compute servers have named
//! the new state, storage gives up the old state at once (`going.rs`).

use std::time::Duration;

use super::LowHalf;
use super::out::Out;
use super::searching::Common;
use crate::wire::{Frame, Head, Message, Reason, append_rank};

/// The renewals of a worker.
#[derive(Debug)]
pub(super) struct Vouching {
    /// The time of the next request to the memory server. [`Duration::MAX`] without a connection.
    pub(super) next: Duration,
    /// The id of the last request, while it is unanswered.
    asked: Option<u64>,
}

impl Default for Vouching {
    fn default() -> Vouching {
        Vouching {
            next: Duration::MAX,
            asked: None,
        }
    }
}

impl<L: LowHalf> Common<L> {
    /// Called when the memory server is connected or has disconnected. Earlier requests will get no
    /// reply.
    pub(super) fn vouch_from(&mut self, now: Option<Duration>) {
        let pause = self.options.vouch;
        self.vouching = Vouching {
            next: now.map_or(Duration::MAX, |now| now.saturating_add(pause)),
            asked: None,
        };
    }

    /// Called when new low codes arrived. Names the new state to storage at once, so that storage
    /// can give up the earlier state.
    pub(super) fn vouch_soon(&mut self, now: Duration, out: &mut Out) {
        if self.vouching.next < Duration::MAX {
            self.vouching.next = now;
            self.vouch(now, out);
        }
    }

    /// Asks the memory server for its state, if the request is due.
    pub(super) fn vouch(&mut self, now: Duration, out: &mut Out) {
        if now < self.vouching.next {
            return;
        }
        self.vouch_from(Some(now));
        let id = self.id();
        self.vouching.asked = Some(id);
        // The state is 0 before there are low codes. The server then replies with its own state.
        let state = (self.low.as_ref()).map_or(0, |low| low.collection().state);
        let head = Head { id, state, left: 0 };
        let (from, count, kept) = (0, 0, u32::MAX);
        Message::LowCodes { from, count, kept }.append(head, &mut out.memory);
    }

    /// Processes the memory server's reply, and names its state to storage. Returns `None` if the
    /// frame is no such reply. Otherwise returns whether the state differs from the state of the
    /// low codes.
    pub(super) fn vouched(
        &mut self,
        frame: &Frame<'_>,
        message: &Message<'_>,
        out: &mut Out,
    ) -> Option<bool> {
        let id = self.vouching.asked.take_if(|id| *id == frame.head.id)?;
        let differs = match message {
            Message::Codes { .. } => false,
            Message::Refused {
                reason: Reason::OtherState,
                ..
            } => true,
            // The reply names no state.
            _ => return Some(false),
        };
        let state = frame.head.state;
        if self.storage.up && state != 0 {
            // The row has an invalid length on purpose, so that storage ranks nothing.
            let head = Head { id, state, left: 0 };
            append_rank(head, 1, &[0], &mut Vec::new(), &mut out.storage);
        }
        Some(differs && self.low.is_some())
    }
}
