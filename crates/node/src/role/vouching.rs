//! Keeps storage from giving up the memory server's state, even without searches: a compute server
//! names that state to storage again and again, like the renewal of a lease.
//!
//! ```text
//!   compute ──low codes of no nodes, in the state of the own codes──> memory
//!           <──codes: memory has that state; refused: memory's state──
//!           ──rank no nodes, in the state of memory──> storage   keeps it for another minute
//! ```
//!
//! After a merge, storage keeps the earlier checkpoint, and does not merge again, until no server
//! has used the earlier checkpoint for a minute. Memory servers have no connection to storage, so
//! each compute server vouches for its memory server.
//!
//! A memory server may adopt a new checkpoint late or never. While the memory server answers,
//! storage ranks in its state. A lost memory server delays merges for at most a minute. When all
//! compute servers have named the new state, storage gives up the old state at once (`going.rs`).

use std::time::Duration;

use super::LowHalf;
use super::out::Out;
use super::searching::Common;
use crate::wire::{Frame, Head, Message, Reason, append_rank};

#[derive(Debug)]
pub(super) struct Vouching {
    /// [`Duration::MAX`] without a connection.
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
    /// Schedules the next request. `None` means that there is no connection.
    pub(super) fn vouch_from(&mut self, now: Option<Duration>) {
        let pause = self.options.vouch;
        self.vouching = Vouching {
            next: now.map_or(Duration::MAX, |now| now.saturating_add(pause)),
            asked: None,
        };
    }

    /// Called with new low codes, so that storage can give up the earlier state at once.
    pub(super) fn vouch_soon(&mut self, now: Duration, out: &mut Out) {
        if self.vouching.next < Duration::MAX {
            self.vouching.next = now;
            self.vouch(now, out);
        }
    }

    pub(super) fn vouch(&mut self, now: Duration, out: &mut Out) {
        if now < self.vouching.next {
            return;
        }
        self.vouch_from(Some(now));
        let id = self.id();
        self.vouching.asked = Some(id);
        // With state 0, before there are codes, the server replies with its own state.
        let state = (self.low.as_ref()).map_or(0, |low| low.collection().state);
        let head = Head { id, state, left: 0 };
        let (from, count, kept) = (0, 0, u32::MAX);
        Message::LowCodes { from, count, kept }.append(head, &mut out.memory);
    }

    /// Passes the memory server's state on to storage. Returns whether this state differs from the
    /// state of the low codes, or `None` if the frame is no reply to a request of
    /// [`vouch`](Self::vouch).
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
