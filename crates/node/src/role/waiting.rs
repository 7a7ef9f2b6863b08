//! Requests that wait for a worker of a compute server. Their number is bounded, and none waits
//! beyond its client's deadline.

use std::collections::{HashSet, VecDeque};
use std::time::Duration;

use super::other_row;
use super::out::{Out, refuse};
use crate::wire::{Collection, Frame, Head, Message, Reason, Token, WireError};

/// A client's request that a worker is to carry out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// The number of the client's connection.
    pub client: u64,
    /// The id that the client gave the request.
    pub id: u64,
    /// The time at which the client stops waiting.
    pub deadline: Duration,
    /// The content of the request.
    pub wants: Wants,
}

/// The content of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wants {
    /// The vectors nearest to a row.
    Search {
        /// The requested number of results.
        k: u32,
        /// The list size: the length of the high list (D_high).
        list: u32,
        /// The number of candidates that one step expands.
        beam: u32,
        /// The query.
        row: Vec<u8>,
    },
    /// A change of the index, which storage makes.
    Change {
        /// The token of the change.
        token: Token,
        /// Whether the request withdraws the change and asks for its outcome.
        gives_up: bool,
        /// The body of the client's message, which is forwarded unchanged.
        body: Vec<u8>,
    },
}

/// The work that [`Waiting::message`] leaves for the caller.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Taken {
    /// Whether a request was added that waits for a worker.
    pub waits: bool,
    /// A change that workers have to drop ([`given_up`](super::Worker::given_up)).
    pub given_up: Option<Token>,
}

impl Request {
    /// Whether the request is a change.
    pub fn is_change(&self) -> bool {
        matches!(self.wants, Wants::Change { .. })
    }

    fn bytes(&self) -> usize {
        match &self.wants {
            Wants::Search { row, .. } => row.len(),
            Wants::Change { body, .. } => body.len(),
        }
    }

    /// Whether the request is the change with this token. A withdrawal of the change does not
    /// count.
    pub(super) fn is(&self, token: Token) -> bool {
        match self.wants {
            Wants::Change {
                token: own,
                gives_up: false,
                ..
            } => (own.client, own.number) == (token.client, token.number),
            Wants::Change { .. } | Wants::Search { .. } => false,
        }
    }

    fn head(&self) -> Head {
        Head {
            id: self.id,
            ..Head::default()
        }
    }
}

/// The client that withdrew the change does not read this text.
pub(super) const GIVEN_UP: &str = "the client has given up this change";

/// The requests that wait, and the ids of those in progress.
#[derive(Debug)]
pub struct Waiting {
    most: usize,
    /// The default D_high and beam width.
    usual: (u32, u32),
    patience: Duration,
    queue: VecDeque<Request>,
    /// No request expires before this time, so the queue need not be scanned at each removal.
    next: Duration,
    bytes: usize,
    trouble: Option<String>,
    known: HashSet<(u64, u64)>,
}

impl Waiting {
    /// The largest list size and number of results, unless the default list is larger.
    pub const MOST_LIST: u32 = 8192;
    /// The largest beam width, unless the server's default is larger.
    pub const MOST_BEAM: u32 = 256;
    /// The most bytes of waiting rows. One client may use half of the bytes and requests.
    pub const MOST_BYTES: usize = 64 << 20;

    /// Creates a queue for `most` requests. A request that gives no list size, beam width or
    /// deadline gets `list`, `beam` or `patience`.
    pub fn new(most: usize, list: u32, beam: u32, patience: Duration) -> Waiting {
        Waiting {
            most,
            usual: (list.max(1), beam.max(1)),
            patience,
            queue: VecDeque::new(),
            next: Duration::MAX,
            bytes: 0,
            trouble: None,
            known: HashSet::new(),
        }
    }

    /// The number of requests that wait.
    pub fn len(&self) -> usize {
        self.queue.len()
    }

    /// Whether no request waits.
    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Queues a search or a change, and answers other messages at once. Ignores repeated requests.
    /// `trouble` is the reason why no search could be answered now.
    ///
    /// # Errors
    /// The frame is no message of a client. The caller has to close the connection.
    pub fn message(
        &mut self,
        now: Duration,
        client: u64,
        frame: &Frame<'_>,
        collection: Option<Collection>,
        trouble: Option<&str>,
        out: &mut Out,
    ) -> Result<Taken, WireError> {
        let head = Head {
            id: frame.head.id,
            ..Head::default()
        };
        let wants = match Message::decode(frame)? {
            Message::Describe { .. } => {
                describe(client, head, collection, trouble, out);
                return Ok(Taken::default());
            }
            Message::Search { k, list, beam, row } => {
                let collection = collection.filter(|of| of.row_bytes as usize != row.len());
                let wrong = collection.map(|of| other_row(row.len(), of.row_bytes));
                if let Some(text) = self.too_much([k, list, beam]).or(wrong) {
                    refuse(out, client, head, Reason::Invalid, &text);
                    return Ok(Taken::default());
                }
                let or = |asked: u32, usual: u32| if asked == 0 { usual } else { asked };
                Wants::Search {
                    k,
                    list: or(list, self.usual.0).max(k),
                    beam: or(beam, self.usual.1),
                    row: row.to_vec(),
                }
            }
            Message::Change { token, .. } => Wants::Change {
                token,
                gives_up: false,
                body: frame.body.to_vec(),
            },
            Message::GiveUp { token, .. } => Wants::Change {
                token,
                gives_up: true,
                body: frame.body.to_vec(),
            },
            _ => {
                let text = "a compute server does not answer requests of this kind";
                refuse(out, client, head, Reason::Invalid, text);
                return Ok(Taken::default());
            }
        };
        let mut taken = Taken::default();
        if let Wants::Change {
            token,
            gives_up: true,
            ..
        } = wants
        {
            self.give_up(token, out);
            taken.given_up = Some(token);
        }
        if self.known.contains(&(client, head.id)) {
            return Ok(taken);
        }
        let request = Request {
            client,
            id: head.id,
            deadline: frame.head.deadline(now, self.patience),
            wants,
        };
        if let Some(text) = self.no_room(now, &request, out) {
            refuse(out, client, head, Reason::Busy, &text);
            return Ok(taken);
        }
        self.known.insert((client, head.id));
        self.bytes += request.bytes();
        self.next = self.next.min(request.deadline);
        self.queue.push_back(request);
        taken.waits = true;
        Ok(taken)
    }

    fn give_up(&mut self, token: Token, out: &mut Out) {
        let (known, bytes) = (&mut self.known, &mut self.bytes);
        self.queue.retain(|request| {
            let stays = !request.is(token);
            if !stays {
                known.remove(&(request.client, request.id));
                *bytes -= request.bytes();
                refuse(
                    out,
                    request.client,
                    request.head(),
                    Reason::GivenUp,
                    GIVEN_UP,
                );
            }
            stays
        });
    }

    /// Returns the text of a refusal, if a number of the request is over its limit. Without limits,
    /// a large request could delay all other requests.
    fn too_much(&self, [k, list, beam]: [u32; 3]) -> Option<String> {
        let (most_list, most_beam) = (
            Self::MOST_LIST.max(self.usual.0),
            Self::MOST_BEAM.max(self.usual.1),
        );
        let all = [
            ("k =", k, most_list),
            ("list size =", list, most_list),
            ("beam width =", beam, most_beam),
        ];
        let (what, asked, most) = all.into_iter().find(|&(_, asked, most)| asked > most)?;
        Some(format!(
            "{what} {asked}; this compute server allows at most {most}"
        ))
    }

    /// Returns the text of a refusal, if removing late requests frees no space.
    fn no_room(&mut self, now: Duration, request: &Request, out: &mut Out) -> Option<String> {
        if self.is_greedy(request.client, request.bytes()) {
            let text = "this connection has as many queries and changes waiting as this compute server allows. Ask another server, or ask later";
            return Some(text.to_owned());
        }
        if self.queue.len() >= self.most {
            let trouble = self.trouble.take();
            self.expire(now, trouble.as_deref(), out);
        }
        let full = self.queue.len() >= self.most || self.bytes + request.bytes() > Self::MOST_BYTES;
        full.then(|| {
            format!(
                "{} queries and changes wait for this compute server, which is its limit. Ask another server, or ask later",
                self.queue.len()
            )
        })
    }

    fn is_greedy(&self, client: u64, row: usize) -> bool {
        let (most, most_bytes) = ((self.most / 2).max(1), Self::MOST_BYTES / 2);
        if self.queue.len() < most && self.bytes + row <= most_bytes {
            return false;
        }
        let own = self.queue.iter().filter(|other| other.client == client);
        let (count, bytes) = own.fold((0, row), |(count, bytes), other| {
            (count + 1, bytes + other.bytes())
        });
        count >= most || bytes > most_bytes
    }

    /// The next search for a worker, which calls [`over`](Self::over) after it.
    pub fn pop(&mut self, now: Duration, trouble: Option<&str>, out: &mut Out) -> Option<Request> {
        self.expire(now, trouble, out);
        self.next_of(|request| !request.is_change())
    }

    /// The next change for a worker. Changes need no memory server.
    pub fn pop_change(&mut self) -> Option<Request> {
        self.next_of(Request::is_change)
    }

    fn next_of(&mut self, kind: impl FnMut(&Request) -> bool) -> Option<Request> {
        let at = self.queue.iter().position(kind)?;
        let request = self.queue.remove(at)?;
        self.bytes -= request.bytes();
        Some(request)
    }

    /// Whether a change waits.
    pub fn has_change(&self) -> bool {
        self.queue.iter().any(Request::is_change)
    }

    /// The earliest deadline of the waiting requests, or an earlier time.
    pub fn next_expiry(&self) -> Option<Duration> {
        (!self.queue.is_empty()).then_some(self.next)
    }

    /// Refuses requests past their deadline. The refusals name the obstacle `trouble`.
    pub fn expire(&mut self, now: Duration, trouble: Option<&str>, out: &mut Out) {
        if self.trouble.as_deref() != trouble {
            self.trouble = trouble.map(str::to_owned);
        }
        if now < self.next {
            return;
        }
        let (known, bytes) = (&mut self.known, &mut self.bytes);
        self.queue.retain(|request| {
            let waits = request.deadline > now;
            if !waits {
                known.remove(&(request.client, request.id));
                *bytes -= request.bytes();
                let text = match trouble {
                    _ if request.is_change() => "storage could not make all changes in time; this change waited at the compute server until its deadline".to_owned(),
                    Some(trouble) => format!("no worker of the compute server began this query before its deadline; {trouble}"),
                    None => "the compute server could not answer all queries in time; this query waited until its deadline".to_owned(),
                };
                refuse(out, request.client, request.head(), Reason::Deadline, &text);
            }
            waits
        });
        let deadlines = self.queue.iter().map(|request| request.deadline);
        self.next = deadlines.min().unwrap_or(Duration::MAX);
    }

    /// Called when a request was answered.
    pub fn over(&mut self, client: u64, id: u64) {
        self.known.remove(&(client, id));
    }

    /// Called when a client has disconnected.
    pub fn gone(&mut self, client: u64) {
        self.queue.retain(|request| request.client != client);
        self.bytes = self.queue.iter().map(Request::bytes).sum();
        self.known.retain(|&(other, _)| other != client);
    }
}

fn describe(
    client: u64,
    head: Head,
    collection: Option<Collection>,
    trouble: Option<&str>,
    out: &mut Out,
) {
    match (collection, trouble) {
        (Some(collection), None) => {
            let state = collection.state;
            let message = Message::Description {
                collection,
                centroids: &[],
            };
            out.client(client, head.id, Head { state, ..head }, &message);
        }
        (_, trouble) => {
            let why = trouble.unwrap_or("the memory server has not sent the low codes yet");
            let text = format!("this compute server cannot answer yet: {why}");
            refuse(out, client, head, Reason::Waiting, &text);
        }
    }
}
