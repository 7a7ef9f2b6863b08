//! The output of a worker of the compute role.

use crate::wire::{Head, Message, Reason};

/// An emptied buffer keeps at most this many bytes, because changes need mebibytes and are rare.
const KEPT: usize = 256 << 10;

/// The frames that a worker sends.
#[derive(Debug, Default)]
pub struct Out {
    /// Frames for the memory server.
    pub memory: Vec<u8>,
    /// Frames for storage.
    pub storage: Vec<u8>,
    clients: Vec<u8>,
    /// For each frame: the client, the id of the request, and the end of the frame.
    answered: Vec<(u64, u64, usize)>,
    /// Whether the [`Shelf`](super::Shelf) has new low codes, so that the caller has to call
    /// [`Worker::timer`](super::Worker::timer) of the other workers.
    pub renewed: bool,
    /// Whether the caller has to replace the connection to the silent memory server.
    pub memory_silent: bool,
    /// Whether the caller has to replace the connection to the silent storage server.
    pub storage_silent: bool,
}

impl Out {
    /// The answers to clients: the client, its id for the request, and the frame.
    pub fn answers(&self) -> impl Iterator<Item = (u64, u64, &[u8])> {
        let starts = std::iter::once(0).chain(self.answered.iter().map(|&(.., end)| end));
        let answered = self.answered.iter().zip(starts);
        answered.map(|(&(client, id, end), start)| (client, id, &self.clients[start..end]))
    }

    /// Whether there is no output.
    pub fn is_empty(&self) -> bool {
        self.memory.is_empty()
            && self.storage.is_empty()
            && self.answered.is_empty()
            && !self.renewed
            && !self.memory_silent
            && !self.storage_silent
    }

    /// Removes all output, and keeps small buffers.
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

pub(super) fn append_refusal(head: Head, reason: Reason, text: &str, out: &mut Vec<u8>) {
    Message::Refused { reason, text }.append(head, out);
}

pub(super) fn refuse(out: &mut Out, client: u64, head: Head, reason: Reason, text: &str) {
    out.client(client, head.id, head, &Message::Refused { reason, text });
}
