//! A compute server's connections to memory and storage, with replies for several workers.

use std::sync::Arc;

use stratann_tier::remote::wire::Protocol;

use super::contact::Contact;
use super::desk::{Mail, News};
use super::work::Shared;
use crate::link::{Broken, Inbox, Outbox};
use crate::role::{LowHalf, Worker};
use crate::serve::keeper::{Correspondent, Lost};
use crate::wire::{Head, Message, Reason};

pub(super) struct Upstream<L: LowHalf> {
    pub(super) shared: Arc<Shared<L>>,
    /// The connection serves the lanes that are `first` modulo `step`.
    pub(super) first: usize,
    pub(super) step: usize,
    pub(super) contact: Arc<Contact>,
    pub(super) sorted: Vec<Vec<u8>>,
    pub(super) outbox: Option<Arc<Outbox>>,
}

impl<L: LowHalf> Upstream<L> {
    fn is_memory(&self) -> bool {
        self.contact.protocol() == Protocol::Memory
    }

    fn tell(&self, change: impl Fn(&mut Mail)) {
        let desks = self.shared.desks.iter().skip(self.first).step_by(self.step);
        desks.for_each(|desk| desk.change(&change));
    }
}

impl<L: LowHalf> Correspondent for Upstream<L> {
    fn up(&mut self, outbox: Arc<Outbox>) {
        self.outbox = Some(outbox.clone());
        self.contact.up(outbox.clone(), self.shared.state());
        let memory = self.is_memory();
        self.tell(|mail| {
            mail.news.push(match memory {
                true => News::MemoryUp(outbox.clone()),
                false => News::StorageUp(outbox.clone()),
            });
        });
    }

    fn down(&mut self, lost: &Lost) {
        self.contact.down(lost);
        let (memory, why) = (self.is_memory(), lost.why());
        self.tell(|mail| {
            // All requests of the lost connection begin again.
            match memory {
                true => {
                    mail.memory.clear();
                    mail.expected = None;
                }
                false => mail.storage.clear(),
            }
            mail.news.push(match memory {
                true => News::MemoryDown(why.clone()),
                false => News::StorageDown(why.clone()),
            });
        });
    }

    fn read(&mut self, inbox: &mut Inbox) -> Result<(), Broken> {
        let (mut new, mut outdated) = (false, false);
        while let Some(frame) = inbox.frame()? {
            if Contact::is_own(frame.head.id) {
                let Head { id, state, .. } = frame.head;
                let serves = match Message::decode(&frame)? {
                    Message::Description { collection, .. } => {
                        self.contact.describes(collection);
                        continue;
                    }
                    Message::Refused { reason, .. } => reason != Reason::OtherState,
                    _ => true,
                };
                new |= self.contact.said(id, serves, state);
                outdated |= !serves;
                continue;
            }
            let lane = usize::from(Worker::<L>::lane_of(frame.head.id));
            let own = lane % self.step == self.first;
            if let Some(sorted) = self.sorted.get_mut(lane).filter(|_| own) {
                sorted.extend_from_slice(frame.whole());
            }
        }
        self.contact.heard();
        if new {
            self.shared.compare();
        }
        let memory = self.is_memory();
        if outdated && memory && self.shared.state() != 0 {
            self.tell(|mail| mail.news.push(News::Outdated));
        }
        let (desks, outbox) = (&self.shared.desks, self.outbox.as_ref());
        if let Some(outbox) = outbox {
            outbox.hear(self.shared.began.elapsed());
        }
        for (desk, sorted) in desks.iter().zip(&mut self.sorted) {
            if sorted.is_empty() {
                continue;
            }
            desk.change(|mail| match memory {
                true => {
                    mail.memory.append(sorted);
                    if let (Some(outbox), None) = (outbox, &mail.expected) {
                        outbox.expect();
                        mail.expected = Some(outbox.clone());
                    }
                }
                false => mail.storage.append(sorted),
            });
        }
        Ok(())
    }
}
