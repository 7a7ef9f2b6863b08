//! A client of compute servers, for any number of threads.

use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use stratann_tier::remote::wire::Protocol;

use super::Place;
use super::changing::ChangeError;
use super::keeper::{Correspondent, Destination, Keeper, Lost};
use crate::link::{Broken, Counts, Inbox, Outbox, Traffic};
use crate::options::NodeError;
use crate::role::{Asked, ClientState, Doubt, Failure, Found, Outcome};
use crate::wire::{Changed, Collection, MOST_NODES};

const LOOKS: Duration = Duration::from_millis(50);

/// The time limits of a client.
#[derive(Clone, Copy, Debug)]
pub struct ClientOptions {
    /// The time limit of a query, and of connecting to any of the servers.
    pub patience: Duration,
    /// The first interval at which an unanswered query is sent again; later intervals grow.
    pub retry: Duration,
    /// The silence after which the client asks the next server. A client of one server first asks
    /// this server for a sign of life. If no sign arrives within the same time, the client connects
    /// again.
    pub silence: Duration,
}

impl Default for ClientOptions {
    fn default() -> Self {
        Self {
            patience: Duration::from_secs(10),
            retry: Duration::from_secs(1),
            silence: Duration::from_secs(3),
        }
    }
}

/// A client with one connection for many queries, which reconnects and repeats requests.
pub struct Client {
    keeper: Arc<Keeper>,
    shared: Arc<Shared>,
    options: ClientOptions,
}

struct Shared {
    began: Instant,
    state: Mutex<State>,
    stirs: Condvar,
    counts: Arc<Counts>,
    silence: Duration,
    /// Whether the client has only one server.
    alone: bool,
}

struct State {
    state: ClientState,
    /// The logged kinds of errors since the last reply.
    said: Vec<String>,
    outbox: Option<Arc<Outbox>>,
    ended: HashMap<u64, Result<Outcome, Failure>>,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct Connection {
    shared: Arc<Shared>,
}

impl Correspondent for Connection {
    fn up(&mut self, outbox: Arc<Outbox>) {
        let mut out = Vec::new();
        let mut state = self.shared.state();
        state.state.up(self.shared.began.elapsed(), &mut out);
        state.outbox = Some(outbox.clone());
        drop(state);
        // The deadlines of waiting threads have changed.
        self.shared.stirs.notify_all();
        outbox.post(&out);
    }

    fn read(&mut self, inbox: &mut Inbox) -> Result<(), Broken> {
        let mut state = self.shared.state();
        let now = self.shared.began.elapsed();
        while let Some(frame) = inbox.frame()? {
            if let Some((id, outcome)) = state.state.message(now, &frame)? {
                state.ended.insert(id, outcome);
                state.said.clear();
            }
        }
        let waits = state.state.waits().filter(|_| !self.shared.alone);
        drop(state);
        self.shared.stirs.notify_all();
        match waits {
            Some(why) => Err(Broken::Waits(why)),
            None => Ok(()),
        }
    }

    fn down(&mut self, lost: &Lost) {
        let text = lost.to_string();
        let mut state = self.shared.state();
        state.outbox = None;
        state.state.down(&text);
        let kind = lost.kind();
        let new = !state.said.contains(&kind);
        if new {
            state.said.push(kind);
        }
        drop(state);
        self.shared.stirs.notify_all();
        if new {
            let next = match self.shared.alone {
                true => "the client connects to this server again",
                false => "the client tries the next server",
            };
            tracing::warn!("{text}; {next}");
        }
    }
}

const FATE: Duration = Duration::from_secs(1);

enum Fate {
    Nothing,
    Ended(Result<Outcome, Failure>),
    Asked(Pending),
}

/// A request in flight. After its drop, the answer is ignored.
pub struct Pending {
    shared: Arc<Shared>,
    id: u64,
}

impl Pending {
    fn outcome(&self, goes_on: &mut dyn FnMut() -> bool) -> Option<Result<Outcome, Failure>> {
        let (mut out, mut late) = (Vec::new(), Vec::new());
        let mut state = self.shared.state();
        loop {
            if let Some(ended) = state.ended.remove(&self.id) {
                return Some(ended);
            }
            drop(state);
            if !goes_on() {
                return None;
            }
            state = self.shared.state();
            if state.ended.contains_key(&self.id) {
                continue;
            }
            let now = self.shared.began.elapsed();
            // Each waiting thread does the work that is due, for all queries.
            state.state.timer(now, &mut out, &mut late);
            if !late.is_empty() {
                state
                    .ended
                    .extend(late.drain(..).map(|(id, failure)| (id, Err(failure))));
                self.shared.stirs.notify_all();
                continue;
            }
            let unanswered = state.state.unanswered();
            let silence = unanswered.map(|since| since + self.shared.silence);
            let mut silent = silence.is_some_and(|end| now >= end);
            if silent && self.shared.alone && state.state.probe(now, &mut out) {
                silent = false;
            }
            if silent || !out.is_empty() {
                let outbox = state
                    .outbox
                    .take_if(|_| silent)
                    .or_else(|| state.outbox.clone());
                drop(state);
                if let Some(outbox) = outbox {
                    match silent {
                        true => outbox.close(),
                        false => outbox.post(&out),
                    }
                }
                out.clear();
                state = self.shared.state();
                // The notification of a reply that has already arrived is not repeated.
                if !silent || state.ended.contains_key(&self.id) {
                    continue;
                }
            }
            let silence = silence.filter(|_| !silent);
            let due = state.state.next_timer().into_iter().chain(silence).min();
            let due = due.map_or(now + LOOKS, |due| due.min(now + LOOKS));
            let waited = self
                .shared
                .stirs
                .wait_timeout(state, due.saturating_sub(now));
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Waits for the result.
    ///
    /// # Errors
    /// [`Failure`]: the search was refused, or not answered in time.
    pub fn wait(self) -> Result<Found, Failure> {
        self.wait_while(|| true)
            .unwrap_or_else(|| unreachable!("`goes_on` never returned false"))
    }

    /// Like [`wait`](Self::wait), but `None` if `goes_on`, called several times a second, is false.
    pub fn wait_while(self, mut goes_on: impl FnMut() -> bool) -> Option<Result<Found, Failure>> {
        let found = self.outcome(&mut goes_on)?;
        Some(found.map(|outcome| match outcome {
            Outcome::Found(found) => found,
            Outcome::Collection(_) | Outcome::Changed { .. } => {
                unreachable!("the answer to a search is a result or an error")
            }
        }))
    }
}

impl Pending {
    fn give_up(&self) -> Fate {
        let now = self.shared.began.elapsed();
        let mut out = Vec::new();
        let mut state = self.shared.state();
        if let Some(ended) = state.ended.remove(&self.id) {
            return Fate::Ended(ended);
        }
        let id = state.state.give_up(now, now + FATE, self.id, &mut out);
        let outbox = state.outbox.clone();
        drop(state);
        outbox.into_iter().for_each(|outbox| outbox.post(&out));
        let shared = self.shared.clone();
        id.map_or(Fate::Nothing, |id| Fate::Asked(Pending { shared, id }))
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        let mut out = Vec::new();
        let mut state = self.shared.state();
        state.state.forget(self.id, &mut out);
        state.ended.remove(&self.id);
        let outbox = state.outbox.clone();
        drop(state);
        if !out.is_empty() {
            outbox.into_iter().for_each(|outbox| outbox.post(&out));
        }
    }
}

fn made(outcome: Result<Outcome, Failure>) -> Result<(Changed, bool), Failure> {
    match outcome? {
        Outcome::Changed { changed, again } => Ok((changed, again)),
        Outcome::Found(_) | Outcome::Collection(_) => {
            unreachable!("the answer to a change is the effect of the change, or an error")
        }
    }
}

impl Client {
    /// Connects to the first of several compute servers that can be reached.
    ///
    /// # Errors
    /// No server can be reached within the time of a query, with the reason for each.
    pub fn connect(servers: Vec<Place>, options: ClientOptions) -> Result<Client, NodeError> {
        let connected = Client::connect_while(servers, options, || true)?;
        Ok(connected.unwrap_or_else(|| unreachable!("`goes_on` never returned false")))
    }

    /// Like [`connect`](Self::connect), but `None` if the often called `goes_on` returns false.
    ///
    /// # Errors
    /// The errors of [`connect`](Self::connect), or no thread could be started.
    pub fn connect_while(
        servers: Vec<Place>,
        options: ClientOptions,
        mut goes_on: impl FnMut() -> bool,
    ) -> Result<Option<Client>, NodeError> {
        let names: Vec<String> = servers.iter().map(Place::to_string).collect();
        let each = options.patience / u32::try_from(servers.len().max(1)).unwrap_or(u32::MAX);
        let counts = Arc::<Counts>::default();
        let destination = Destination {
            places: servers.iter().map(|place| place.within(each)).collect(),
            protocol: Protocol::Compute,
            // Requests have deadlines, so callers must not wait for a slow peer, as they would with
            // batching.
            batching: None,
            counts: counts.clone(),
        };
        let destination = Arc::new(destination);
        let (told, hears) = mpsc::sync_channel(1);
        let theirs = destination.clone();
        // The thread ends by itself within the time of a query.
        let connects = move || drop(told.send(theirs.connect(0)));
        let named = thread::Builder::new().name("stratann-connect".to_owned());
        stratann_tier::start(named, connects).map_err(NodeError::Thread)?;
        let first = loop {
            match hears.recv_timeout(LOOKS) {
                Ok(connected) => break connected.map_err(NodeError::of_servers)?,
                Err(mpsc::RecvTimeoutError::Timeout) if goes_on() => {}
                Err(mpsc::RecvTimeoutError::Timeout) => return Ok(None),
                Err(mpsc::RecvTimeoutError::Disconnected) => {
                    return Err(NodeError::of_servers(Vec::new()));
                }
            }
        };
        let random = u64::from_le_bytes(stratann_tier::random().map_err(NodeError::Random)?);
        let alone = names.len() == 1;
        let state = ClientState::new(&names.join(", "), options.retry, random);
        let shared = Arc::new(Shared {
            began: Instant::now(),
            state: Mutex::new(State {
                state: match alone {
                    true => state,
                    false => state.with_others(),
                },
                said: Vec::new(),
                outbox: None,
                ended: HashMap::new(),
            }),
            stirs: Condvar::new(),
            counts,
            silence: options.silence,
            alone,
        });
        let connection = Connection {
            shared: shared.clone(),
        };
        Ok(Some(Client {
            keeper: Arc::new(destination.keep(Some(first), connection)?),
            shared,
            options,
        }))
    }

    /// Returns a client of the same connection with another time limit.
    #[must_use]
    pub fn within(&self, patience: Duration) -> Client {
        Client {
            keeper: self.keeper.clone(),
            shared: self.shared.clone(),
            options: ClientOptions {
                patience,
                ..self.options
            },
        }
    }

    fn ask(&self, asked: Asked) -> Pending {
        let now = self.shared.began.elapsed();
        let mut out = Vec::new();
        let mut state = self.shared.state();
        let id = state
            .state
            .ask(now, now + self.options.patience, asked, &mut out);
        let outbox = state.outbox.clone();
        drop(state);
        outbox.into_iter().for_each(|outbox| outbox.post(&out));
        Pending {
            shared: self.shared.clone(),
            id,
        }
    }

    /// Sends a query for the `k` nearest vectors without waiting. `row` has the collection's
    /// element type, as bytes. `list` is D_high, `beam` the beam width, and 0 the server's default.
    pub fn submit(&self, row: &[u8], k: u32, list: u32, beam: u32) -> Pending {
        // A number over a message's limit would end the connection. A reduced number is only
        // refused.
        let [k, list, beam] = [k, list, beam].map(|asked| asked.min(MOST_NODES as u32));
        self.ask(Asked::Search {
            k,
            list,
            beam,
            row: row.to_vec(),
        })
    }

    /// Sends a query like [`submit`](Self::submit), and waits for the result.
    ///
    /// # Errors
    /// The errors of [`Pending::wait`].
    pub fn search(&self, row: &[u8], k: u32, list: u32, beam: u32) -> Result<Found, Failure> {
        self.submit(row, k, list, beam).wait()
    }

    /// The description of the collection.
    ///
    /// # Errors
    /// The errors of [`Pending::wait`].
    pub fn collection(&self) -> Result<Collection, Failure> {
        let found = self.collection_while(|| true);
        found.unwrap_or_else(|| unreachable!("`goes_on` never returned false"))
    }

    /// Returns the description, or `None` when `goes_on` is false.
    pub fn collection_while(
        &self,
        mut goes_on: impl FnMut() -> bool,
    ) -> Option<Result<Collection, Failure>> {
        self.described(false, &mut goes_on)
    }

    /// Like [`collection_while`](Self::collection_while), for changes, which need only storage.
    pub fn changeable_while(
        &self,
        mut goes_on: impl FnMut() -> bool,
    ) -> Option<Result<Collection, Failure>> {
        self.described(true, &mut goes_on)
    }

    fn described(
        &self,
        for_changes: bool,
        goes_on: &mut dyn FnMut() -> bool,
    ) -> Option<Result<Collection, Failure>> {
        let found = self.ask(Asked::Describe { for_changes }).outcome(goes_on)?;
        Some(found.map(|outcome| match outcome {
            Outcome::Collection(collection) => collection,
            Outcome::Found(_) | Outcome::Changed { .. } => {
                unreachable!(
                    "the answer to a request for a description is a description or an error"
                )
            }
        }))
    }

    /// Makes a change. If `goes_on` returns false, withdraws the change, and waits briefly for the
    /// outcome. Returns whether an earlier run of storage may have made the change.
    pub(super) fn changed(
        &self,
        asked: Asked,
        goes_on: &mut dyn FnMut() -> bool,
    ) -> Result<(Changed, bool), (ChangeError, Doubt)> {
        let pending = self.ask(asked);
        let (why, doubt) = match pending.outcome(goes_on).map(made) {
            Some(Ok(made)) => return Ok(made),
            Some(Err(failure)) => {
                let doubt = failure.doubt();
                (failure.into(), doubt)
            }
            None => (ChangeError::Interrupted, Doubt::Yet),
        };
        if doubt != Doubt::Yet {
            return Err((why, doubt));
        }
        let became = match pending.give_up() {
            Fate::Nothing => return Err((why, Doubt::Nothing)),
            Fate::Ended(Err(failure)) if failure.doubt() == Doubt::Yet => match pending.give_up() {
                Fate::Asked(asked) => asked.outcome(&mut || true),
                Fate::Nothing | Fate::Ended(_) => Some(Err(failure)),
            },
            Fate::Ended(ended) => Some(ended),
            Fate::Asked(asked) => asked.outcome(&mut || true),
        };
        match became.map(made) {
            Some(Ok(made)) => Ok(made),
            Some(Err(failure)) => Err((why, failure.doubt())),
            None => Err((why, Doubt::Yet)),
        }
    }

    /// The messages on the client's connections.
    pub fn traffic(&self) -> Traffic {
        self.shared.counts.traffic()
    }

    /// Closes the connection, unless a client from [`within`](Self::within) still uses it.
    pub fn close(self) {
        drop(self.keeper);
    }
}
