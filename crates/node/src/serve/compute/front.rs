//! The clients of a compute server: a thread for each reads its requests, and workers put replies
//! into its [`Outbox`].

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use stratann_tier::remote::wire::Protocol;

use super::desk::News;
use super::work::Shared;
use crate::link::duplex::Duplex;
use crate::link::{Broken, Inbox, Outbox};
use crate::listen::{Guest, Service};
use crate::role::{LowHalf, Out};
use crate::serve::memory::ended;
use crate::wire::{Collection, Frame, MOST_ASKED};

pub(super) struct Front<L: LowHalf> {
    pub(super) shared: Arc<Shared<L>>,
}

impl<L: LowHalf> Service for Front<L> {
    fn protocol(&self) -> Protocol {
        Protocol::Compute
    }

    fn serve(&self, client: Guest<'_>) -> io::Result<()> {
        let number = client.number;
        let served = self.attend(client);
        if let Some(outbox) = self.shared.clients().remove(&number) {
            // Ends a thread that still writes to a slow client.
            outbox.close();
        }
        self.shared.waiting().gone(number);
        // The requests were removed first, so that no worker accepts them any more.
        self.shared.tell(&News::Gone(number));
        served.or_else(ended)
    }
}

impl<L: LowHalf> Front<L> {
    fn attend(&self, client: Guest<'_>) -> Result<(), Broken> {
        let shared = &self.shared;
        let Duplex {
            receiver,
            sender,
            closer,
        } = Duplex::of_stream(client.stream, Some(client.patience))?;
        // Workers must not wait for a client.
        let outbox = Outbox::handing_over(sender, closer, shared.outside.clone(), client.patience)?;
        let mut inbox = Inbox::new(
            receiver,
            shared.outside.clone(),
            client.patience,
            MOST_ASKED,
        );
        shared.clients().insert(client.number, outbox.clone());
        let mut out = Out::default();
        while !client.stop.load(Ordering::SeqCst) {
            inbox.read()?;
            let now = shared.began.elapsed();
            let collection = shared.shelf.low().map(|low| low.collection());
            let mut more = 0;
            let before = shared.waiting().next_expiry();
            while let Some(frame) = inbox.frame()? {
                let (collection, trouble) = match frame.describes() {
                    None => (collection, None),
                    Some(false) => {
                        let changes = shared.takes_changes();
                        let told = collection.map(|of| Collection { changes, ..of });
                        (told, shared.trouble())
                    }
                    Some(true) => match shared.changeable() {
                        Ok(collection) => (Some(collection), None),
                        Err(trouble) => (None, Some(trouble)),
                    },
                };
                let (client, why) = (client.number, trouble.as_deref());
                let mut waiting = shared.waiting();
                let taken = waiting.message(now, client, &frame, collection, why, &mut out)?;
                drop(waiting);
                more += usize::from(taken.waits);
                if let Some(token) = taken.given_up {
                    shared.tell(&News::GivenUp(token));
                }
            }
            let told = (0..more.min(shared.desks.len())).filter(|_| shared.summon());
            if more > 0 && told.count() == 0 {
                // The sleeping workers do not know the deadline of this request, and may have space
                // for a change.
                let waiting = shared.waiting();
                let (earliest, change) = (waiting.next_expiry(), waiting.has_change());
                drop(waiting);
                if change
                    || earliest
                        .is_some_and(|earliest| before.is_none_or(|before| earliest < before))
                {
                    shared.alarm();
                }
            }
            // Some replies are for other clients, whose requests have waited too long.
            for (to, _, frame) in out.answers() {
                if Frame::is_refusal(frame) {
                    shared.count(frame);
                }
                let other = || shared.clients().get(&to).cloned();
                match to == client.number {
                    true => outbox.post(frame),
                    false => other().into_iter().for_each(|other| other.post(frame)),
                }
            }
            out.clear();
        }
        Ok(())
    }
}
