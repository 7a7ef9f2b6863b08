//! What a worker of the compute role has to say.

use crate::wire::{Head, Message, Reason};

/// Bytes of each kind for which room is kept: changes take mebibytes, and come seldom.
const KEPT: usize = 256 << 10;

/// What a worker has to say, as frames.
#[derive(Debug, Default)]
pub struct Out {
    /// To the memory server.
    pub memory: Vec<u8>,
    /// To storage.
    pub storage: Vec<u8>,
    /// To clients, one behind the other: [`answers`](Self::answers).
    clients: Vec<u8>,
    /// Whom each is for, its id, and where it ends.
    answered: Vec<(u64, u64, usize)>,
    /// There are other low codes: the other workers are to look ([`Worker::timer`](super::Worker::timer)).
    pub renewed: bool,
    /// The memory server has answered nothing for too long: its connection is to be ended, and another one begun.
    pub memory_silent: bool,
    /// The same of storage.
    pub storage_silent: bool,
}

impl Out {
    /// What clients are answered: the client, its name for what it asked, the frame.
    pub fn answers(&self) -> impl Iterator<Item = (u64, u64, &[u8])> {
        let starts = std::iter::once(0).chain(self.answered.iter().map(|&(.., end)| end));
        let answered = self.answered.iter().zip(starts);
        answered.map(|(&(client, id, end), start)| (client, id, &self.clients[start..end]))
    }

    /// Whether there is nothing in it.
    pub fn is_empty(&self) -> bool {
        self.memory.is_empty()
            && self.storage.is_empty()
            && self.answered.is_empty()
            && !self.renewed
            && !self.memory_silent
            && !self.storage_silent
    }

    /// Forgets all, and keeps some room.
    pub fn clear(&mut self) {
        for bytes in [&mut self.memory, &mut self.storage, &mut self.clients] {
            bytes.clear();
            bytes.shrink_to(KEPT);
        }
        self.answered.clear();
        self.renewed = false;
        (self.memory_silent, self.storage_silent) = (false, false);
    }

    pub(super) fn client(&mut self, client: u64, id: u64, head: Head, message: &Message<'_>) {
        message.append(head, &mut self.clients);
        self.answered.push((client, id, self.clients.len()));
    }
}

/// Appends a frame that refuses something.
pub(super) fn append_refusal(head: Head, reason: Reason, text: &str, out: &mut Vec<u8>) {
    Message::Refused { reason, text }.append(head, out);
}

/// Tells a client that there is no answer.
pub(super) fn refuse(out: &mut Out, client: u64, head: Head, reason: Reason, text: &str) {
    out.client(client, head.id, head, &Message::Refused { reason, text });
}
