//! Whether a compute server can answer, and otherwise the obstacle.

use std::sync::Arc;
use std::time::Instant;

use stratann_tier::Span;
use stratann_tier::remote::wire::Protocol;

use super::contact::{Contact, SIGN, Standing};
use super::work::Shared;
use crate::role::LowHalf;
use crate::wire::Collection;

/// Whether a compute server can answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Readiness {
    /// The obstacle, such as `the storage server at 10.0.0.2:7702 cannot be reached ...`.
    pub trouble: Option<String>,
    /// A line for each server that this server needs, and one for its low codes.
    pub lines: Vec<String>,
}

/// The connections to one server, usable ones first.
type Contacts<'a> = Vec<(&'a Arc<Contact>, Standing)>;

impl<L: LowHalf> Shared<L> {
    /// The state of the low codes, or 0 before they arrive.
    pub(super) fn state(&self) -> u64 {
        self.shelf.low().map_or(0, |low| low.collection().state)
    }

    pub(super) fn ask_contacts(&self) {
        let state = self.state();
        self.contacts.iter().for_each(|contact| contact.ask(state));
    }

    /// The reason why no search could be answered now, known without waiting.
    pub(super) fn trouble(&self) -> Option<String> {
        self.ask_contacts();
        self.readiness(Instant::now()).trouble
    }

    /// Storage's description within a second, or the reason why nothing can be changed.
    pub(super) fn changeable(&self) -> Result<Collection, String> {
        self.ask_contacts();
        let storage = self.contacts(Protocol::Storage, Instant::now());
        let Some((contact, standing)) = storage.first() else {
            return Err("this compute server has no storage server".to_owned());
        };
        let name = contact.name();
        if let Some(why) = &standing.trouble {
            return Err(format!("{name} {why}"));
        }
        let silent = || format!("{name} has not described its index yet");
        let until = Instant::now() + SIGN;
        contact.described(until).ok_or_else(silent)
    }

    pub(super) fn takes_changes(&self) -> bool {
        let contacts = self.contacts.iter();
        let said = contacts.filter_map(|contact| contact.collection());
        said.into_iter().any(|collection| collection.changes)
    }

    /// Waits up to a second for signs of life of the other servers.
    pub(super) fn asked_readiness(&self) -> Readiness {
        self.ask_contacts();
        self.readiness(Instant::now() + SIGN)
    }

    fn contacts(&self, protocol: Protocol, until: Instant) -> Contacts<'_> {
        let own = self.contacts.iter();
        let own = own.filter(|contact| contact.protocol() == protocol);
        let mut contacts: Contacts<'_> = own
            .map(|contact| (contact, contact.standing(until)))
            .collect();
        contacts.sort_by_key(|(_, standing)| standing.trouble.is_some());
        contacts
    }

    fn readiness(&self, until: Instant) -> Readiness {
        let of = [Protocol::Memory, Protocol::Storage].map(|of| self.contacts(of, until));
        let own = self.state();
        let mut readiness = Readiness::default();
        for contacts in &of {
            let Some((contact, standing)) = contacts.first() else {
                continue;
            };
            if let Some(why) = &standing.trouble {
                let trouble = || format!("{} {why}", contact.name());
                readiness.trouble.get_or_insert_with(trouble);
            }
            readiness.lines.push(line(contacts));
        }
        readiness.lines.push(match self.shelf.low() {
            None => {
                "low codes: not loaded yet; this server is fetching them from the memory server"
                    .to_owned()
            }
            Some(low) => told_of_codes(&*low),
        });
        readiness.trouble = readiness.trouble.take().or_else(|| wrong_states(own, &of));
        readiness
    }

    /// Logs when the servers begin or cease to have the state of the low codes.
    pub(super) fn compare(&self) {
        let now = Instant::now();
        let storage = self.contacts(Protocol::Storage, now);
        let memory = self.contacts(Protocol::Memory, now);
        let differ = other_index(self.state(), &memory, &storage);
        let newest = |of: &Contacts<'_>| Some(of.first()?.1.said?.newest);
        let agree = newest(&memory).is_some() && newest(&memory) == newest(&storage);
        let mut said = self.told_difference();
        // While a server is disconnected, a difference of states is unknown.
        if *said == differ || differ.is_none() && !agree {
            return;
        }
        said.clone_from(&differ);
        drop(said);
        match differ {
            Some(differ) => tracing::warn!("{differ}"),
            None => tracing::warn!("the memory server and storage have the same index again"),
        }
    }
}

fn told_of_codes<L: LowHalf>(low: &L) -> String {
    let (of, bytes) = (low.collection(), low.code_bytes());
    let state = of.state;
    match low.kept() {
        None => format!(
            "low codes: of state {state:016x}, of all {} nodes, {bytes} bytes",
            of.nodes
        ),
        Some(kept) => format!(
            "low codes: of state {state:016x}, of {kept} of {} nodes, {bytes} bytes; the memory server computes with the other codes (--low-memory)",
            of.nodes
        ),
    }
}

/// The problem with the states of the servers; `own` is the state of this server's low codes.
fn wrong_states(own: u64, [memory, storage]: &[Contacts<'_>; 2]) -> Option<String> {
    let differ = other_index(own, memory, storage);
    let (contact, standing) = memory.first()?;
    let name = contact.name();
    differ.or_else(|| match standing.said {
        _ if own == 0 => Some(format!("{name} has not sent the low codes yet")),
        Some(said) if said.of == own && !said.serves => Some(format!(
            "{name} has state {:016x} of the index, and the low codes of this server are of state {own:016x}; the codes of the new state are being fetched",
            said.newest
        )),
        _ => None,
    })
}

/// The problem if storage cannot rank the nodes that the memory server finds.
fn other_index(own: u64, memory: &Contacts<'_>, storage: &Contacts<'_>) -> Option<String> {
    let ((memory, at_memory), (storage, at_storage)) = (memory.first()?, storage.first()?);
    let (found, ranks) = (at_memory.said?, at_storage.said?);
    // If storage and memory have equal states, a worker fetches low codes. Without codes, only the
    // newest state of each server is known.
    let lacks = own == 0 || ranks.of == own && !ranks.serves;
    (lacks && found.newest != ranks.newest).then(|| {
        format!(
            "{} has another index than {}, or another state of it ({:016x} at the storage server, and {:016x} at the memory server). Restart both with the same index, and the memory server with --follow if storage takes changes",
            storage.name(),
            memory.name(),
            ranks.newest,
            found.newest,
        )
    })
}

fn line(contacts: &Contacts<'_>) -> String {
    let Some((contact, best)) = contacts.first() else {
        return String::new();
    };
    let (name, since) = (contact.name(), Span(best.since.elapsed()));
    let up = contacts.iter().filter(|(_, of)| of.trouble.is_none());
    let (up, all) = (up.count(), contacts.len());
    let some = match up < all {
        true => format!(", with {up} of {all} connections"),
        false => String::new(),
    };
    match (&best.trouble, best.said) {
        (Some(why), _) if best.up => format!("{name} {why}"),
        (Some(why), _) => format!("{name} {why} (for {since})"),
        (None, Some(said)) => {
            let changes = match contact.collection() {
                Some(of) if of.changes => ", takes changes",
                _ => "",
            };
            format!(
                "{name}: connected for {since}{some}, state {:016x}{changes}",
                said.newest
            )
        }
        (None, None) => format!("{name}: connected for {since}{some}"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::contact::Said;
    use super::*;
    use crate::serve::{Encryption, Place};

    /// Each server says whether it serves state `own`, and names its newest state.
    fn told(own: u64, memory: (bool, u64), storage: (bool, u64)) -> Option<String> {
        let place = Place::of("127.0.0.1:1", None, Encryption::None).unwrap();
        let servers = [(Protocol::Memory, memory), (Protocol::Storage, storage)];
        let servers = servers.map(|(protocol, (serves, newest))| {
            let of = own;
            let standing = Standing {
                said: Some(Said { of, serves, newest }),
                up: true,
                trouble: None,
                since: Instant::now(),
            };
            (Arc::new(Contact::new(protocol, &place)), standing)
        });
        let [memory, storage] = servers;
        let contacts = |(contact, standing)| vec![(contact, standing)];
        let (memory, storage) = ((&memory.0, memory.1), (&storage.0, storage.1));
        other_index(own, &contacts(memory), &contacts(storage))
    }

    #[test]
    fn servers_that_agree_are_not_to_be_started_anew() {
        assert_eq!(told(0xA, (false, 0xB), (false, 0xB)), None);
        assert_eq!(told(0xA, (true, 0xA), (true, 0xA)), None);
        assert_eq!(told(0xA, (true, 0xA), (true, 0xB)), None);
        assert_eq!(told(0, (false, 0xB), (false, 0xB)), None);
        for (own, memory) in [(0xA, (true, 0xA)), (0xA, (false, 0xC)), (0, (false, 0xC))] {
            let text = told(own, memory, (false, 0xB)).unwrap();
            let states = format!(
                "{:016x} at the storage server, and {:016x} at the memory server",
                0xB, memory.1
            );
            assert!(
                text.contains(&states) && text.contains("Restart both"),
                "{text}"
            );
        }
    }
}
