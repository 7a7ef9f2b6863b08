//! A simulated network of roles, clients and links, in simulated time. A seed determines all
//! events.
//!
//! Links lose, duplicate, delay and reorder frames, or disconnect. Servers are killed, lose their
//! state, and start again, some with another state of the index. As with TCP, no frame reaches the
//! next connection.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use stratann_node::role::{
    Asked, Changes, Checkpoints, ClientState, ComputeOptions, Done, Doubt, Failure, Going,
    HalfError, HighHalf, Job, LowHalf, MemoryOptions, MemoryState, NotChanged, Out, Outcome,
    Ranker, Shelf, Slot, Slots, StorageState, Waiting, Wanted, Worker,
};
use stratann_node::wire::{Changed, Collection, Frame, Head, Message, Ranked, Token};

use stratann::press::Full;

use crate::halves::{Low, Random, Stored, World};

#[derive(Clone, Debug)]
pub struct Plan {
    /// The number of lost frames out of a hundred.
    pub lost: u64,
    pub doubled: u64,
    /// The longest delay of a frame in microseconds. The shortest delay is a tenth of it.
    pub delay: u64,
    /// The numbers of killed processes, and of disconnected pairs, until `calm`.
    pub kills: u64,
    pub cuts: u64,
    /// Whether a killed server may start again with the other of the two states of the index.
    pub changes: bool,
    /// Whether storage commits the other state while it runs, and the memory server follows.
    pub merges: bool,
    /// The time until the memory server follows. With `None`, the time is random, and ends before
    /// or after `calm`.
    pub behind: Option<Duration>,
    pub vouch: Duration,
    /// The milliseconds in which a memory server counts the popularity of nodes.
    pub counting: u32,
    /// After this time there are no more faults.
    pub calm: Duration,
    pub compute: usize,
    pub workers: u16,
    pub in_flight: usize,
    pub waiting: usize,
    /// The bytes of low codes of each compute server. Further codes are offloaded.
    pub low_memory: Vec<u64>,
    pub queries: u64,
    /// The number of clients that connect after `calm` and first ask for a description.
    pub late: u64,
    pub idle: Duration,
    pub remembered: Option<usize>,
    /// The number of changes out of a hundred that storage reports as failed, although it may have
    /// made them.
    pub failing: u64,
    /// The number of ids that are inserted, replaced and deleted, one step after the other.
    pub written: u64,
    pub twins: bool,
    /// The shortest and the longest time limit of a query, in microseconds.
    pub patience: (u64, u64),
}

/// Processes have numbers in this order: memory, storage, the compute servers, and as many clients.
const MEMORY: usize = 0;
const STORAGE: usize = 1;

#[derive(Debug)]
enum Event {
    Frame {
        connection: u64,
        to: usize,
        bytes: Vec<u8>,
    },
    /// A process checks its timers. If the process has meanwhile scheduled an earlier check,
    /// nothing happens.
    Timer {
        process: usize,
        due: Duration,
    },
    Connect {
        from: usize,
        to: usize,
    },
    Kill {
        process: usize,
    },
    Start {
        process: usize,
    },
    Cut {
        pair: (usize, usize),
        until: Duration,
    },
    Ranked {
        life: u64,
        connection: u64,
        id: u64,
        ranked: Ranked,
        slot: Slot,
    },
    Make {
        life: u64,
        connection: u64,
        id: u64,
        token: Token,
        until: Duration,
        bytes: Vec<u8>,
    },
    Changed {
        life: u64,
        connection: u64,
        id: u64,
        token: Token,
        made: Result<Changed, NotChanged>,
    },
    Count {
        life: u64,
    },
    Forget,
    /// Storage commits the other state, or the memory server begins to serve it.
    Merge {
        process: usize,
    },
    /// A client stops waiting for a change. If `tells`, the client withdraws the change and asks
    /// for the outcome. Otherwise, the client forgets the change.
    Drop {
        client: usize,
        query: usize,
        tells: bool,
    },
    /// A client withdraws a change that ended in doubt.
    GiveUp {
        client: usize,
        query: usize,
        id: u64,
    },
    Ask {
        client: usize,
        query: usize,
    },
}

enum Process {
    Memory {
        checkpoints: Checkpoints<World>,
        connections: BTreeMap<u64, MemoryState<World>>,
        /// The [`World`] whose popularity of nodes is being counted.
        counts: Option<Arc<World>>,
    },
    Storage {
        world: Arc<World>,
        /// The state before a merge, and the time of its last use.
        before: Option<Arc<World>>,
        asked: Duration,
        connections: BTreeMap<u64, StorageState>,
        slots: Arc<Slots>,
        changes: Arc<Changes>,
        going: Arc<Going>,
    },
    Compute(Box<Compute>),
    Client {
        state: ClientState,
        asked: BTreeMap<u64, usize>,
    },
    Dead,
}

struct Compute {
    shelf: Arc<Shelf<Low>>,
    waiting: Waiting,
    workers: Vec<Worker<Low>>,
    memory: Option<u64>,
    storage: Option<u64>,
}

#[derive(Clone, Debug)]
pub struct Query {
    pub asks: Asked,
    /// If the request is a step of an id that the test writes: the id and the step.
    pub of: Option<(u64, Step)>,
    then: Option<Asked>,
    pub deadline: Duration,
    pub ended: Option<(Duration, Result<Outcome, Failure>)>,
    /// The compute server to which the client was connected at the end of the request.
    pub by: Option<usize>,
    /// The outcome of the withdrawal, for a change that ended in doubt.
    pub fate: Option<(Duration, Result<Outcome, Failure>)>,
    given_up: bool,
    stopped: bool,
}

impl Query {
    pub fn last(&self) -> Option<&(Duration, Result<Outcome, Failure>)> {
        self.fate.as_ref().or(self.ended.as_ref())
    }

    fn is_open(&self) -> bool {
        self.ended.is_none() || self.given_up && self.fate.is_none()
    }
}

/// A change that storage began: the time, the run, and the [`mark`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    pub at: Duration,
    /// If storage forgets clients, their next changes belong to another run.
    pub run: u64,
    pub mark: (u64, u8),
}

/// The id and the version of a change's row, or version 0 for a delete.
pub fn mark(upserts: &[u64], rows: &[u8], deletes: &[u64]) -> (u64, u8) {
    match (upserts.first(), rows.get(7)) {
        (Some(&id), Some(&version)) => (id, version),
        _ => (deletes[0], 0),
    }
}

/// The steps of an id that the test writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    Insert,
    Inserted,
    Replace,
    /// The client forgets this change after a while, and makes the next change.
    Dropped,
    /// The client withdraws the change after a while, and any client makes the next one.
    Stopped,
    /// The client makes this change while a copy of its previous change may be in flight.
    ReplaceAgain,
    /// Searches for the new row, and for the row before it.
    Replaced,
    Gone,
    Delete,
    Deleted,
    Twin,
}

impl Step {
    pub const ALL: [Step; 10] = [
        Step::Insert,
        Step::Inserted,
        Step::Replace,
        Step::Dropped,
        Step::Stopped,
        Step::ReplaceAgain,
        Step::Replaced,
        Step::Gone,
        Step::Delete,
        Step::Deleted,
    ];

    fn next(self) -> Option<Step> {
        let at = Step::ALL.iter().position(|&step| step == self)?;
        Step::ALL.get(at + 1).copied()
    }

    pub fn is_change(self) -> bool {
        !matches!(
            self,
            Step::Inserted | Step::Replaced | Step::Gone | Step::Deleted
        )
    }

    fn next_change(self) -> Option<Step> {
        let next = self.next()?;
        if next.is_change() {
            Some(next)
        } else {
            next.next_change()
        }
    }
}

/// The row differs from the rows of all queries.
pub fn written(id: u64, version: u8) -> Vec<u8> {
    let mut row = id.to_le_bytes().to_vec();
    (row[6], row[7]) = (0xFE, version);
    row
}

type Ended = (usize, u64, Result<Outcome, Failure>);

pub struct Network {
    plan: Plan,
    random: Random,
    now: Duration,
    events: BinaryHeap<Reverse<(Duration, u64)>>,
    bodies: BTreeMap<u64, Event>,
    next: u64,
    worlds: [Arc<World>; 2],
    processes: Vec<Process>,
    lives: Vec<u64>,
    timers: Vec<Duration>,
    /// For each connection, the process that connected, and its peer.
    connections: BTreeMap<u64, (usize, usize)>,
    cut: Vec<((usize, usize), Duration)>,
    pub queries: Vec<Query>,
    pub events_done: u64,
    stored: Stored,
    pub journal: Vec<Entry>,
    /// Whether the memory server uses the other state now, and whether storage does.
    merged: [bool; 2],
    pub counted: u32,
    pub silences: u32,
}

struct States {
    now: Arc<World>,
    before: Option<Arc<World>>,
    asked: AtomicBool,
}

impl States {
    /// Drops the state before the merge if it was long unused, or if all servers named the last
    /// state.
    fn at(
        now: Duration,
        world: &Arc<World>,
        before: &mut Option<Arc<World>>,
        asked: Duration,
        going: &Going,
    ) -> States {
        let all_on = going.all_by(now) == Some(world.state);
        before.take_if(|_| all_on || now > asked + Full::KEPT);
        States {
            now: world.clone(),
            before: before.clone(),
            asked: AtomicBool::new(false),
        }
    }
}

impl Ranker for States {
    fn collection(&self) -> Collection {
        HighHalf::collection(&*self.now)
    }

    fn collection_of(&self, state: u64) -> Option<Collection> {
        let both = std::iter::once(&self.now).chain(&self.before);
        let mut both = both.map(|world| HighHalf::collection(&**world));
        let found = both.find(|collection| collection.state == state);
        if found.is_some() && state != self.now.state {
            self.asked.store(true, Ordering::SeqCst);
        }
        found
    }

    fn rank(
        &self,
        _: (u64, &[u8]),
        _: &[u32],
        _: usize,
        _: Wanted,
        _: Done,
    ) -> Result<(), HalfError> {
        panic!("the simulated network never calls this function")
    }

    fn change(&self, _: (&[u64], &[u8]), _: &[u64]) -> Result<Changed, NotChanged> {
        panic!("the simulated network never calls this function")
    }
}

const REST: Duration = Duration::from_millis(60);
const RETRY: Duration = Duration::from_millis(4);
const FATE: Duration = Duration::from_millis(20);

/// The time limit of twins. When it ends, storage has made some twins, and others are in progress.
fn least_of((least, _): (u64, u64)) -> u64 {
    least.clamp(3000, 3_000_000)
}

fn micros(count: u64) -> Duration {
    Duration::from_micros(count)
}

impl Network {
    pub fn new(seed: u64, plan: Plan, worlds: &[Arc<World>; 2]) -> Network {
        let mut network = Network {
            random: Random(seed),
            now: micros(1),
            events: BinaryHeap::new(),
            bodies: BTreeMap::new(),
            next: 0,
            worlds: worlds.clone(),
            processes: Vec::new(),
            lives: Vec::new(),
            timers: Vec::new(),
            connections: BTreeMap::new(),
            cut: Vec::new(),
            queries: Vec::new(),
            events_done: 0,
            stored: Stored::default(),
            journal: Vec::new(),
            merged: [false; 2],
            counted: 0,
            silences: 0,
            plan,
        };
        let servers = 2 + network.plan.compute;
        for process in 0..servers + network.plan.compute {
            network.processes.push(Process::Dead);
            network.lives.push(0);
            network.timers.push(Duration::MAX);
            network.start(process);
        }
        let calm = network.plan.calm.as_micros() as u64;
        for _ in 0..network.plan.kills {
            let process = network.random.below(servers as u64) as usize;
            let at = micros(network.random.below(calm));
            network.at(at, Event::Kill { process });
        }
        for _ in 0..network.plan.cuts {
            let (one, other) = network.random_pair();
            let at = micros(network.random.below(calm));
            let until = at + micros(network.random.below(REST.as_micros() as u64));
            network.at(
                at,
                Event::Cut {
                    pair: (one, other),
                    until,
                },
            );
        }
        if network.plan.changes {
            for process in [MEMORY, STORAGE] {
                network.at(network.plan.calm, Event::Kill { process });
            }
        }
        if network.plan.merges {
            let committed = micros(network.random.below(calm));
            let behind = micros(network.random.below(calm));
            let behind = network.plan.behind.unwrap_or(behind);
            network.at(committed, Event::Merge { process: STORAGE });
            let read = committed + behind;
            network.at(read, Event::Merge { process: MEMORY });
        }
        for query in 0..network.plan.queries + network.plan.late {
            let late = query >= network.plan.queries;
            let idle = network.plan.idle.as_micros() as u64;
            let asked = micros(match late {
                true => calm + idle + network.random.below(3 * REST.as_micros() as u64),
                false => network.random.below(calm),
            });
            let (least, most) = network.plan.patience;
            let patience = micros(least + network.random.below(most - least + 1));
            let k = 1 + network.random.below(10) as u32;
            let row = network.random.row();
            let list = network.random.below(3) as u32 * 12;
            let beam = network.random.below(5) as u32;
            let search = Asked::Search { k, list, beam, row };
            let (asks, then) = match late {
                true => (Asked::Describe { for_changes: false }, Some(search)),
                false => (search, None),
            };
            let client = servers + network.random.below(network.plan.compute as u64) as usize;
            network.ask(client, asked, asked + patience, (asks, None, then));
        }
        for id in 0..network.plan.written {
            let asked = micros(network.random.below(calm));
            network.write(asked, (1_000_000 + id, Step::Insert), None);
        }
        if network.plan.twins {
            // Twins are changes that one client requests at the same time, with the same time
            // limit.
            let client = servers + network.random.below(network.plan.compute as u64) as usize;
            let asked = micros(network.random.below(calm));
            let deadline = asked + micros(least_of(network.plan.patience));
            for id in 5_000_000..5_000_004 {
                let step = Step::Twin;
                let asks = Asked::Change {
                    upserts: vec![id],
                    rows: written(id, 7),
                    deletes: Vec::new(),
                };
                network.ask(client, asked, deadline, (asks, Some((id, step)), None));
            }
        }
        network
    }

    fn ask(
        &mut self,
        client: usize,
        at: Duration,
        deadline: Duration,
        (asks, of, then): (Asked, Option<(u64, Step)>, Option<Asked>),
    ) {
        let query = self.queries.len();
        self.queries.push(Query {
            asks,
            of,
            then,
            deadline,
            ended: None,
            by: None,
            fate: None,
            given_up: false,
            stopped: false,
        });
        self.at(at, Event::Ask { client, query });
    }

    fn write(&mut self, at: Duration, (id, step): (u64, Step), by: Option<usize>) {
        let (least, most) = self.plan.patience;
        let patience = micros(least + self.random.below(most - least + 1));
        let upsert = |version| Asked::Change {
            upserts: vec![id],
            rows: written(id, version),
            deletes: Vec::new(),
        };
        let search = |version| Asked::Search {
            k: 3,
            list: 0,
            beam: 0,
            row: written(id, version),
        };
        let asks = match step {
            Step::Insert => upsert(1),
            Step::Twin => upsert(7),
            Step::Replace => upsert(2),
            Step::Dropped => upsert(9),
            Step::Stopped => upsert(8),
            Step::ReplaceAgain => upsert(3),
            Step::Inserted => search(1),
            Step::Gone => search(2),
            Step::Replaced | Step::Deleted => search(3),
            Step::Delete => Asked::Change {
                upserts: Vec::new(),
                rows: Vec::new(),
                deletes: vec![id, id + 1_000_000],
            },
        };
        let client = self.random.below(self.plan.compute as u64) as usize;
        let client = by.unwrap_or(2 + self.plan.compute + client);
        if let Step::Dropped | Step::Stopped = step {
            let query = self.queries.len();
            let moment = micros(self.random.below(6000));
            let tells = step == Step::Stopped;
            let drop = Event::Drop {
                client,
                query,
                tells,
            };
            self.at(at + moment, drop);
        }
        self.ask(client, at, at + patience, (asks, Some((id, step)), None));
    }

    fn random_pair(&mut self) -> (usize, usize) {
        let compute = 2 + self.random.below(self.plan.compute as u64) as usize;
        match self.random.below(3) {
            0 => (compute, MEMORY),
            1 => (compute, STORAGE),
            _ => (compute + self.plan.compute, compute),
        }
    }

    fn at(&mut self, at: Duration, event: Event) {
        self.next += 1;
        self.events.push(Reverse((at, self.next)));
        self.bodies.insert(self.next, event);
    }

    fn calm(&self) -> bool {
        self.now >= self.plan.calm
    }

    fn peers(&self, process: usize) -> Vec<usize> {
        let compute = self.plan.compute;
        match process {
            MEMORY | STORAGE => Vec::new(),
            _ if process < 2 + compute => vec![MEMORY, STORAGE],
            _ => vec![process - compute],
        }
    }

    /// A copy of a world, as a memory server has it after a restart.
    fn read(&self, world: usize) -> Arc<World> {
        Arc::new(self.worlds[world].read(self.plan.counting))
    }

    fn start(&mut self, process: usize) {
        self.lives[process] += 1;
        let first = self.random.next() >> 20;
        let again = self.lives[process] > 1 && (self.random.chance(50) || self.calm());
        let merged = self.merged[process.min(1)];
        let changed = self.plan.changes && again || process < 2 && merged;
        let life = u64::from(changed);
        let retry = RETRY;
        self.processes[process] = match process {
            MEMORY => Process::Memory {
                checkpoints: Checkpoints::of(self.read(life as usize)),
                connections: BTreeMap::new(),
                counts: None,
            },
            STORAGE => Process::Storage {
                world: self.worlds[life as usize].clone(),
                before: None,
                asked: Duration::ZERO,
                connections: BTreeMap::new(),
                going: Arc::default(),
                slots: Slots::new(8),
                changes: Arc::new(match self.plan.remembered {
                    None => Changes::new(first),
                    Some(clients) => Changes::bounded(first, clients, 3 * clients),
                }),
            },
            _ if process < 2 + self.plan.compute => {
                let options = ComputeOptions {
                    in_flight: self.plan.in_flight,
                    retry,
                    silence: 10 * RETRY,
                    vouch: self.plan.vouch,
                    low_memory: self.plan.low_memory[(process - 2) % self.plan.low_memory.len()],
                    ..ComputeOptions::default()
                };
                let shelf = Arc::new(Shelf::new(None));
                let worker = |lane| Worker::new(shelf.clone(), options.clone(), lane, first);
                let workers = (0..self.plan.workers).map(worker).collect();
                let waiting = Waiting::new(self.plan.waiting, 24, 2, Duration::from_secs(5));
                Process::Compute(Box::new(Compute {
                    workers,
                    waiting,
                    shelf,
                    memory: None,
                    storage: None,
                }))
            }
            _ => Process::Client {
                state: ClientState::new("compute", retry, first),
                asked: BTreeMap::new(),
            },
        };
        for to in self.peers(process) {
            self.at(self.now, Event::Connect { from: process, to });
        }
    }

    fn is_cut(&self, one: usize, other: usize) -> bool {
        let same = |pair: (usize, usize)| pair == (one, other) || pair == (other, one);
        self.cut
            .iter()
            .any(|&(pair, until)| same(pair) && until > self.now)
    }

    /// Each frame has its own delay.
    fn send(&mut self, connection: u64, from: usize, mut bytes: &[u8]) {
        let Some(&(one, other)) = self.connections.get(&connection) else {
            return;
        };
        let to = if from == one { other } else { one };
        while !bytes.is_empty() {
            let frame = Frame::decode(bytes).unwrap().expect("whole frames");
            let (frame, rest) = bytes.split_at(frame.bytes());
            bytes = rest;
            if !self.calm() && (self.is_cut(one, other) || self.random.chance(self.plan.lost)) {
                continue;
            }
            let copies = 1 + u64::from(!self.calm() && self.random.chance(self.plan.doubled));
            for _ in 0..copies {
                let delay = self.plan.delay / 10 + self.random.below(self.plan.delay);
                let bytes = frame.to_vec();
                self.at(
                    self.now + micros(delay),
                    Event::Frame {
                        connection,
                        to,
                        bytes,
                    },
                );
            }
        }
    }

    fn schedule(&mut self, process: usize) {
        let due = match &self.processes[process] {
            Process::Memory { connections, .. } => connections
                .values()
                .filter_map(MemoryState::next_expiry)
                .min(),
            Process::Compute(compute) => {
                let workers = compute.workers.iter().filter_map(Worker::next_timer);
                workers.chain(compute.waiting.next_expiry()).min()
            }
            Process::Client { state, .. } => state.next_timer(),
            Process::Storage { .. } | Process::Dead => None,
        };
        let due = due.map_or(Duration::MAX, |due| due.max(self.now + micros(1)));
        if due < self.timers[process] {
            self.timers[process] = due;
            self.at(due, Event::Timer { process, due });
        }
    }

    fn turn(&mut self, process: usize, mut act: impl FnMut(&mut Compute, Duration, &mut Out)) {
        let now = self.now;
        let Process::Compute(compute) = &mut self.processes[process] else {
            return;
        };
        let mut out = Out::default();
        act(compute, now, &mut out);
        loop {
            if std::mem::take(&mut out.renewed) {
                compute
                    .workers
                    .iter_mut()
                    .for_each(|worker| worker.timer(now, &mut out));
            }
            let over: Vec<(u64, u64)> = out.answers().map(|(client, id, _)| (client, id)).collect();
            over.iter()
                .for_each(|&(client, id)| compute.waiting.over(client, id));
            let Compute {
                workers, waiting, ..
            } = &mut **compute;
            let search = workers.iter_mut().find(|worker| worker.has_room());
            let taken = search.and_then(|worker| Some((worker, waiting.pop(now, None, &mut out)?)));
            if let Some((worker, request)) = taken {
                worker.take(now, request, &mut out);
                continue;
            }
            let mut workers = workers.iter_mut();
            let change = workers.find(|worker| worker.has_room_for_change());
            let Some((worker, request)) = change.zip(waiting.pop_change()) else {
                break;
            };
            worker.take(now, request, &mut out);
        }
        let (memory, storage) = (compute.memory, compute.storage);
        memory
            .into_iter()
            .for_each(|memory| self.send(memory, process, &out.memory));
        storage
            .into_iter()
            .for_each(|storage| self.send(storage, process, &out.storage));
        out.answers()
            .for_each(|(client, _, frame)| self.send(client, process, frame));
        let silent = [(memory, out.memory_silent), (storage, out.storage_silent)];
        for connection in silent
            .into_iter()
            .filter_map(|(at, silent)| at.filter(|_| silent))
        {
            self.silences += 1;
            self.disconnect(connection);
        }
        self.schedule(process);
    }

    fn client(
        &mut self,
        process: usize,
        act: impl FnOnce(
            &mut ClientState,
            &mut BTreeMap<u64, usize>,
            Duration,
            &mut Vec<u8>,
        ) -> Vec<Ended>,
    ) {
        let now = self.now;
        let Process::Client { state, asked } = &mut self.processes[process] else {
            return;
        };
        let mut out = Vec::new();
        let over = act(state, asked, now, &mut out);
        let mut own = self.connections.values().filter(|pair| pair.0 == process);
        let by = own.next().map(|pair| pair.1 - 2);
        for (number, id, outcome) in over {
            let query = &mut self.queries[number];
            assert!(query.is_open(), "a query ended twice");
            let yet = |failure: &Failure| failure.doubt() == Doubt::Yet;
            let change = query.of.is_some_and(|(_, step)| step.is_change());
            if change && !query.given_up && !query.stopped && outcome.as_ref().is_err_and(yet) {
                // A real client also withdraws the change, and its other threads may send requests
                // before the withdrawal.
                query.ended = Some((now, outcome));
                query.given_up = true;
                let gap = micros(self.random.below(300));
                let (client, query) = (process, number);
                self.at(now + gap, Event::GiveUp { client, query, id });
                continue;
            }
            // A client that does not know the outcome makes the next change itself.
            let next = query.of.and_then(|(id, step)| match &outcome {
                Ok(_) => Some((id, step.next()?, None)),
                Err(failure) if step.is_change() => {
                    let by = (failure.doubt() == Doubt::Yet).then_some(process);
                    Some((id, step.next_change()?, by))
                }
                Err(_) => None,
            });
            let then = query.then.take().filter(|_| outcome.is_ok());
            let deadline = query.deadline;
            match query.ended {
                None => (query.ended, query.by) = (Some((now, outcome)), by),
                Some(_) => query.fate = Some((now, outcome)),
            }
            if let Some(then) = then {
                self.ask(process, now, deadline, (then, None, None));
            }
            if let Some((id, step, by)) = next {
                let pause = match step {
                    Step::ReplaceAgain => 1,
                    _ => self.random.below(3000),
                };
                self.write(now + micros(pause), (id, step), by);
            }
        }
        let connection = self.connections.iter().find(|(_, pair)| pair.0 == process);
        if let Some((&connection, _)) = connection {
            self.send(connection, process, &out);
        }
        self.schedule(process);
    }

    fn connect(&mut self, from: usize, to: usize) {
        // A client has one connection, to any compute server.
        let client = from >= 2 + self.plan.compute;
        let same = |pair: (usize, usize)| pair == (from, to) || client && pair.0 == from;
        let there = self.connections.values().any(|&pair| same(pair));
        let from_dead = matches!(self.processes[from], Process::Dead);
        if there || from_dead {
            return;
        }
        if matches!(self.processes[to], Process::Dead) || self.is_cut(from, to) {
            let pause = micros(500 + self.random.below(2000));
            let to = self.next_of(from, to);
            return self.at(self.now + pause, Event::Connect { from, to });
        }
        self.next += 1;
        let connection = self.next;
        self.connections.insert(connection, (from, to));
        match &mut self.processes[to] {
            Process::Memory { connections, .. } => {
                let options = MemoryOptions {
                    most: 8,
                    idle: Duration::from_millis(40),
                    piece: 500,
                };
                connections.insert(connection, MemoryState::new(options));
            }
            Process::Storage {
                connections,
                slots,
                changes,
                going,
                ..
            } => {
                let state = StorageState::new(slots.clone(), changes.clone());
                connections.insert(connection, state.among(going.clone()));
            }
            _ => {}
        }
        match to {
            MEMORY => self.turn(from, |compute, now, out| {
                compute.memory = Some(connection);
                compute
                    .workers
                    .iter_mut()
                    .for_each(|worker| worker.memory_up(now, out));
            }),
            STORAGE => self.turn(from, |compute, now, out| {
                compute.storage = Some(connection);
                compute
                    .workers
                    .iter_mut()
                    .for_each(|worker| worker.storage_up(now, out));
            }),
            _ => self.client(from, |state, _, now, out| {
                state.up(now, out);
                Vec::new()
            }),
        }
    }

    fn disconnect(&mut self, connection: u64) {
        let Some((from, to)) = self.connections.remove(&connection) else {
            return;
        };
        match &mut self.processes[to] {
            Process::Memory { connections, .. } => drop(connections.remove(&connection)),
            Process::Storage { connections, .. } => {
                let state = connections.remove(&connection);
                state.into_iter().for_each(|mut state| state.left(self.now));
            }
            Process::Compute(compute) => {
                compute.waiting.gone(connection);
                self.turn(to, |compute, now, out| {
                    let workers = compute.workers.iter_mut();
                    workers.for_each(|worker| worker.gone(now, connection, out));
                });
            }
            _ => {}
        }
        match &mut self.processes[from] {
            Process::Compute(compute) if to == MEMORY => {
                compute.memory = None;
                compute
                    .workers
                    .iter_mut()
                    .for_each(|worker| worker.memory_down("is gone"));
            }
            Process::Compute(compute) => {
                compute.storage = None;
                self.turn(from, |compute, _, out| {
                    let workers = compute.workers.iter_mut();
                    workers.for_each(|worker| worker.storage_down("is gone", out));
                });
            }
            Process::Client { state, .. } => state.down("it is gone"),
            _ => {}
        }
        let pause = micros(500 + self.random.below(2000));
        let to = self.next_of(from, to);
        self.at(self.now + pause, Event::Connect { from, to });
        self.schedule(from);
    }

    /// A client may connect to any compute server.
    fn next_of(&mut self, from: usize, to: usize) -> usize {
        match from >= 2 + self.plan.compute {
            true => 2 + self.random.below(self.plan.compute as u64) as usize,
            false => to,
        }
    }

    /// The obstacle that a compute server reports instead of a description
    /// (`serve/compute/contact.rs`).
    fn told(&mut self, process: usize, frame: &Frame<'_>) -> Option<String> {
        let describe = matches!(Message::decode(frame), Ok(Message::Describe { .. }));
        let Process::Compute(compute) = &self.processes[process] else {
            return None;
        };
        if !describe {
            return None;
        }
        let (low, both) = (compute.shelf.low()?, (compute.memory, compute.storage));
        let (Some(_), Some(_)) = both else {
            return Some("one of the others is not connected".to_owned());
        };
        let state = LowHalf::collection(&*low).state;
        if let Process::Memory { checkpoints, .. } = &self.processes[MEMORY] {
            let (from, count, kept) = (0, 0, u32::MAX);
            let head = Head {
                state,
                ..Head::default()
            };
            let (mut asked, mut said) = (Vec::new(), Vec::new());
            Message::LowCodes { from, count, kept }.append(head, &mut asked);
            let asked = Frame::decode(&asked).unwrap().unwrap();
            let mut asks = MemoryState::new(MemoryOptions::default());
            asks.message(self.now, &asked, checkpoints, &mut said)
                .unwrap();
            let said = Frame::decode(&said).unwrap().unwrap();
            if matches!(Message::decode(&said), Ok(Message::Refused { .. })) {
                self.turn(process, |compute, now, out| {
                    let workers = compute.workers.iter_mut();
                    workers.for_each(|worker| worker.outdated(now, out));
                });
                return Some("others are being fetched".to_owned());
            }
        }
        let now = self.now;
        match &mut self.processes[STORAGE] {
            Process::Storage {
                world,
                before,
                asked,
                going,
                ..
            } => {
                let states = States::at(now, world, before, *asked, going);
                let serves = states.collection_of(state).is_some();
                if states.asked.into_inner() {
                    *asked = now;
                }
                (!serves).then(|| "storage has another state".to_owned())
            }
            _ => None,
        }
    }

    fn frame(&mut self, connection: u64, to: usize, bytes: &[u8]) {
        if !self.connections.contains_key(&connection) {
            return;
        }
        let frame = Frame::decode(bytes).unwrap().unwrap();
        let trouble = self.told(to, &frame);
        let now = self.now;
        let mut out = Vec::new();
        match &mut self.processes[to] {
            Process::Memory {
                checkpoints,
                connections,
                counts,
            } => {
                let state = connections.get_mut(&connection).unwrap();
                state.message(now, &frame, checkpoints, &mut out).unwrap();
                assert!(state.walks() <= 8);
                let uncounted = state.take_uncounted().filter(|_| counts.is_none());
                if uncounted.is_some() {
                    *counts = uncounted;
                    let life = self.lives[to];
                    self.at(now + micros(1000), Event::Count { life });
                }
                self.send(connection, to, &out);
                self.schedule(to);
            }
            Process::Storage {
                world,
                before,
                asked,
                connections,
                going,
                ..
            } => {
                let states = States::at(now, world, before, *asked, going);
                let state = connections.get_mut(&connection).unwrap();
                let (life, stored) = (self.lives[to], &self.stored);
                let job = state.message(now, &frame, &states, &mut out).unwrap();
                if states.asked.load(Ordering::SeqCst) {
                    *asked = now;
                }
                let event = job.map(|job| match job {
                    Job::Rank(job) => {
                        let both = std::iter::once(&states.now).chain(&states.before);
                        let mut both = both.filter(|world| world.state == job.state);
                        let world = both.next().expect("the request names an unknown state");
                        let mut ranked = world.rank_now(job.row, job.nodes, job.k);
                        stored.join(job.row, job.k, &mut ranked);
                        Event::Ranked {
                            life,
                            connection,
                            id: job.id,
                            ranked,
                            slot: job.slot,
                        }
                    }
                    Job::Change { id, token, until } => Event::Make {
                        life,
                        connection,
                        id,
                        token,
                        until,
                        bytes: bytes.to_vec(),
                    },
                });
                self.send(connection, to, &out);
                if let Some(event) = event {
                    let took = micros(100 + self.random.below(2000));
                    self.at(now + took, event);
                }
            }
            Process::Compute(compute) => {
                let from_memory = compute.memory == Some(connection);
                let from_storage = compute.storage == Some(connection);
                self.turn(to, |compute, now, out| {
                    if from_memory || from_storage {
                        let lane = Worker::<Low>::lane_of(frame.head.id);
                        let worker = &mut compute.workers[usize::from(lane)];
                        match from_memory {
                            true => worker.memory(now, &frame, out).unwrap(),
                            false => worker.storage(now, &frame, out).unwrap(),
                        }
                    } else {
                        let collection = compute.shelf.low().map(|low| LowHalf::collection(&*low));
                        let taken = compute
                            .waiting
                            .message(now, connection, &frame, collection, trouble.as_deref(), out)
                            .unwrap();
                        if let Some(token) = taken.given_up {
                            let workers = compute.workers.iter_mut();
                            workers.for_each(|worker| worker.given_up(token, out));
                        }
                    }
                });
            }
            Process::Client { .. } => self.client(to, |state, asked, now, _| {
                let over = state.message(now, &frame).unwrap();
                over.into_iter()
                    .filter_map(|(id, outcome)| Some((asked.remove(&id)?, id, outcome)))
                    .collect()
            }),
            Process::Dead => {}
        }
    }

    fn timer(&mut self, process: usize) {
        match &mut self.processes[process] {
            Process::Memory { connections, .. } => {
                connections
                    .values_mut()
                    .for_each(|state| state.expire(self.now));
                self.schedule(process);
            }
            Process::Compute(_) => self.turn(process, |compute, now, out| {
                compute
                    .workers
                    .iter_mut()
                    .for_each(|worker| worker.timer(now, out));
                compute.waiting.expire(now, None, out);
            }),
            Process::Client { .. } => self.client(process, |state, asked, now, out| {
                let mut over = Vec::new();
                state.timer(now, out, &mut over);
                let known = |(id, failure)| Some((asked.remove(&id)?, id, Err(failure)));
                over.into_iter().filter_map(known).collect()
            }),
            Process::Storage { .. } | Process::Dead => {}
        }
    }

    fn step(&mut self, event: Event) {
        match event {
            Event::Frame {
                connection,
                to,
                bytes,
            } => self.frame(connection, to, &bytes),
            Event::Timer { process, due } => {
                if self.timers[process] == due {
                    self.timers[process] = Duration::MAX;
                    self.timer(process);
                }
            }
            Event::Connect { from, to } => self.connect(from, to),
            Event::Kill { process } => {
                let of = self
                    .connections
                    .iter()
                    .filter(|(_, pair)| pair.0 == process || pair.1 == process);
                let of: Vec<u64> = of.map(|(&connection, _)| connection).collect();
                self.processes[process] = Process::Dead;
                of.into_iter()
                    .for_each(|connection| self.disconnect(connection));
                let down = micros(self.random.below(REST.as_micros() as u64));
                self.at(self.now + down, Event::Start { process });
            }
            Event::Start { process } => {
                if matches!(self.processes[process], Process::Dead) {
                    self.start(process);
                }
            }
            Event::Cut { pair, until } => self.cut.push((pair, until)),
            Event::Ranked {
                life,
                connection,
                id,
                ranked,
                slot: _slot,
            } => {
                if life != self.lives[STORAGE] {
                    return;
                }
                let Process::Storage { connections, .. } = &mut self.processes[STORAGE] else {
                    return;
                };
                let mut out = Vec::new();
                if let Some(state) = connections.get_mut(&connection) {
                    state.ranked(self.now, id, Ok(&ranked), &mut out);
                }
                self.send(connection, STORAGE, &out);
            }
            Event::Count { life } => {
                let Process::Memory { counts, .. } = &mut self.processes[MEMORY] else {
                    return;
                };
                let Some(high) = counts.as_ref().filter(|_| life == self.lives[MEMORY]) else {
                    return;
                };
                self.counted += 1;
                if high.count_popular().unwrap() {
                    *counts = None;
                } else {
                    self.at(self.now + micros(1000), Event::Count { life });
                }
            }
            Event::Forget => {
                // A real server would keep a state in use.
                if let Process::Memory { checkpoints, .. } = &mut self.processes[MEMORY] {
                    checkpoints.forget_before();
                }
            }
            Event::Merge { process } => {
                self.merged[process] = true;
                let (now, other, read) = (self.now, self.worlds[1].clone(), self.read(1));
                match &mut self.processes[process] {
                    Process::Memory { checkpoints, .. } => {
                        checkpoints.go_on(read);
                        self.at(now + REST, Event::Forget);
                    }
                    Process::Storage {
                        world,
                        before,
                        asked,
                        ..
                    } => {
                        *before = Some(std::mem::replace(world, other));
                        *asked = now;
                    }
                    _ => {}
                }
            }
            Event::Make {
                life,
                connection,
                id,
                token,
                until,
                bytes,
            } => {
                if life != self.lives[STORAGE] {
                    return;
                }
                let Process::Storage { slots, changes, .. } = &self.processes[STORAGE] else {
                    return;
                };
                let state = StorageState::new(slots.clone(), changes.clone());
                let mut out = Vec::new();
                if !state.starts(self.now, (id, token, until), &mut out) {
                    return self.send(connection, STORAGE, &out);
                }
                let frame = Frame::decode(&bytes).unwrap().unwrap();
                let Message::Change {
                    upserts,
                    deletes,
                    rows,
                    ..
                } = Message::decode(&frame).unwrap()
                else {
                    panic!("{frame:?}");
                };
                let (upserts, deletes): (Vec<_>, Vec<_>) =
                    (upserts.iter().collect(), deletes.iter().collect());
                let fails = !self.calm() && self.random.chance(self.plan.failing);
                let made = match fails && self.random.chance(50) {
                    true => Changed::default(),
                    false => {
                        self.journal.push(Entry {
                            at: self.now,
                            run: token.run,
                            mark: mark(&upserts, rows, &deletes),
                        });
                        self.stored.change((&upserts, rows), &deletes)
                    }
                };
                let made = match fails {
                    true => Err(NotChanged::Failed("a disk".to_owned())),
                    false => Ok(made),
                };
                let took = micros(100 + self.random.below(2000));
                let event = Event::Changed {
                    life,
                    connection,
                    id,
                    token,
                    made,
                };
                self.at(self.now + took, event);
            }
            Event::Changed {
                life,
                connection,
                id,
                token,
                made,
            } => {
                if life != self.lives[STORAGE] {
                    return;
                }
                let Process::Storage { slots, changes, .. } = &self.processes[STORAGE] else {
                    return;
                };
                let mut out = Vec::new();
                let state = StorageState::new(slots.clone(), changes.clone());
                state.changed((id, token), made.as_ref().copied(), &mut out);
                if self.connections.contains_key(&connection) {
                    self.send(connection, STORAGE, &out);
                }
            }
            Event::Drop {
                client,
                query,
                tells,
            } => self.drop(client, query, tells),
            Event::GiveUp { client, query, id } => self.client(client, |state, asked, now, out| {
                let told = state.give_up(now, now + FATE, id, out);
                asked.insert(
                    told.expect("a change that may still be made has no request to give it up"),
                    query,
                );
                Vec::new()
            }),
            Event::Ask { client, query } => {
                let Query { asks, deadline, .. } = self.queries[query].clone();
                self.client(client, |state, asked, now, out| {
                    let id = state.ask(now, deadline, asks, out);
                    asked.insert(id, query);
                    Vec::new()
                });
            }
        }
    }

    fn drop(&mut self, client: usize, query: usize, tells: bool) {
        let Process::Client { state, asked } = &mut self.processes[client] else {
            return;
        };
        let Some((&id, _)) = asked.iter().find(|&(_, &other)| other == query) else {
            return;
        };
        let (now, mut out) = (self.now, Vec::new());
        let dropped = &mut self.queries[query];
        if dropped.given_up {
            return;
        }
        asked.remove(&id);
        let told = match tells {
            true => state.give_up(now, dropped.deadline, id, &mut out),
            false => {
                state.forget(id, &mut out);
                None
            }
        };
        if let Some(told) = told {
            dropped.stopped = true;
            asked.insert(told, query);
        } else {
            dropped.ended = Some((now, Ok(Outcome::Collection(self.worlds[0].collection()))));
            let (id, step) = dropped.of.expect("a change");
            let next = (id, step.next().expect("there is no later step of this id"));
            self.write(now, next, Some(client));
        }
        let connection = self.connections.iter().find(|(_, pair)| pair.0 == client);
        if let Some((&connection, _)) = connection {
            self.send(connection, client, &out);
        }
        self.schedule(client);
    }

    pub fn has_before(&mut self) -> bool {
        let now = self.now;
        match &mut self.processes[STORAGE] {
            Process::Storage {
                world,
                before,
                asked,
                going,
                ..
            } => {
                let states = States::at(now, world, before, *asked, going);
                states.before.is_some()
            }
            _ => false,
        }
    }

    pub fn restarts(&self) -> u32 {
        let ended = self.queries.iter().filter_map(|query| query.ended.as_ref());
        let found = ended.filter_map(|(_, outcome)| match outcome {
            Ok(Outcome::Found(found)) => Some(found.counters.restarts),
            _ => None,
        });
        found.sum()
    }

    pub fn run(&mut self) {
        while self.queries.iter().any(Query::is_open) {
            let Reverse((at, number)) = self
                .events
                .pop()
                .expect("a query waits, and no event is left");
            self.now = self.now.max(at);
            let event = self.bodies.remove(&number).unwrap();
            self.events_done += 1;
            assert!(self.events_done < 5_000_000, "the simulation does not end");
            self.step(event);
        }
    }
}
