//! What keeps storage from giving up the state in which the memory server answers, also while nobody searches.
//!
//! ```text
//!   compute ──low codes of no nodes, in the state of those that are here──> memory
//!           <──codes: it has that state, or refused: it has this one──
//!           ──rank nothing, in the state that it has──> storage             goes by it for a minute more
//! ```
//!
//! Storage has the checkpoint before a merge until nobody has gone by it for a minute, and merges not before that. Memory servers do not know storage, and compute servers know both: so each
//! of these vouches for its memory server, several times a minute. A memory server that does not follow merges, or takes long to, so has its searches ranked for as long as it answers; one that
//! is gone, or answers nothing, holds merges up for no more than that minute. Once all compute servers have said that they go by the state behind the merge, which they say as soon as they have
//! its low codes, storage does not wait for that minute (`going.rs`).

use std::time::Duration;

use super::LowHalf;
use super::out::Out;
use super::searching::Common;
use crate::wire::{Frame, Head, Message, Reason, append_rank};

/// What a worker has asked its memory server for that.
#[derive(Debug)]
pub(super) struct Vouching {
    /// When it asks next; never while there is no memory server.
    pub(super) next: Duration,
    /// What it asked last, if that is not answered: the id.
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
    /// The memory server is there, or gone: what it was asked before is not answered any more.
    pub(super) fn vouch_from(&mut self, now: Option<Duration>) {
        let pause = self.options.vouch;
        self.vouching = Vouching {
            next: now.map_or(Duration::MAX, |now| now.saturating_add(pause)),
            asked: None,
        };
    }

    /// Other low codes are here: storage is told at once, so that it need not keep a state by which nobody goes any more.
    pub(super) fn vouch_soon(&mut self, now: Duration, out: &mut Out) {
        if self.vouching.next < Duration::MAX {
            self.vouching.next = now;
            self.vouch(now, out);
        }
    }

    /// Asks the memory server in which state it answers, where it is time.
    pub(super) fn vouch(&mut self, now: Duration, out: &mut Out) {
        if now < self.vouching.next {
            return;
        }
        self.vouch_from(Some(now));
        let id = self.id();
        self.vouching.asked = Some(id);
        // None before there are low codes: then it says which it has.
        let state = (self.low.as_ref()).map_or(0, |low| low.collection().state);
        let head = Head { id, state, left: 0 };
        let (from, count, kept) = (0, 0, u32::MAX);
        Message::LowCodes { from, count, kept }.append(head, &mut out.memory);
    }

    /// Takes the answer to that, and tells storage. Gives whether it was one, and of another state than that of the low codes.
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
            // It does not say.
            _ => return Some(false),
        };
        let state = frame.head.state;
        if self.storage.up && state != 0 {
            // Its row is of another length than any: there is nothing to be ranked.
            let head = Head { id, state, left: 0 };
            append_rank(head, 1, &[0], &mut Vec::new(), &mut out.storage);
        }
        Some(differs && self.low.is_some())
    }
}
