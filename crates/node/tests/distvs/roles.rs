//! Single roles, and messages that are repeated, late, early, or of another state.

use std::sync::Arc;
use std::time::Duration;

use stratann_node::role::{
    Asked, Changes, Checkpoints, ClientState, ComputeOptions, Doubt, Failure, HalfError, HighHalf,
    Job, LowHalf, MemoryOptions, MemoryState, NotChanged, NotRanked, Out, Outcome, Request, Shelf,
    Slot, Slots, StorageState, Waiting, Wants, Worker,
};
use stratann_node::wire::{
    Changed, Frame, Head, Ids, Message, MissingNodes, Nodes, Reason, Scored, Token, Wanted,
};

use crate::halves::{Full, Low, World};

const ROW: &[u8] = b"12345678";

fn world() -> Arc<World> {
    Arc::new(World::new(5, 100))
}

fn at(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

fn frame_of(head: Head, message: Message<'_>) -> Vec<u8> {
    let mut bytes = Vec::new();
    message.append(head, &mut bytes);
    bytes
}

/// Nodes with the low estimates for [`ROW`], in leaked memory.
fn scored(nodes: &[u32]) -> Scored<'static> {
    let (world, mut set, mut estimates, mut before) = (world(), Vec::new(), Vec::new(), 0);
    for &node in nodes {
        set.push((node - before) as u8);
        before = node;
        let estimate = if node < 100 {
            world.low(ROW, node)
        } else {
            0.0
        };
        estimates.extend(estimate.to_le_bytes());
    }
    Scored {
        nodes: Nodes(set.leak()),
        estimates: estimates.leak(),
    }
}

fn begin(row: &[u8]) -> Message<'_> {
    Message::Begin {
        list: 24,
        full: 12,
        beam: 2,
        query: row,
        missing: MissingNodes::NONE,
        nodes: scored(&[0, 50]),
    }
}

fn reason(bytes: &[u8]) -> Option<Reason> {
    let frame = Frame::decode(bytes).unwrap()?;
    match Message::decode(&frame).unwrap() {
        Message::Refused { reason, .. } => Some(reason),
        _ => None,
    }
}

struct Memory {
    state: MemoryState<World>,
    checkpoints: Checkpoints<World>,
    asker: u64,
}

impl Memory {
    fn new(most: usize) -> Memory {
        Memory::of(most, world())
    }

    fn of(most: usize, world: Arc<World>) -> Memory {
        let options = MemoryOptions {
            most,
            idle: at(100),
            ..MemoryOptions::default()
        };
        Memory {
            asker: world.state,
            state: MemoryState::new(options),
            checkpoints: Checkpoints::of(world),
        }
    }

    fn tell(&mut self, now: Duration, id: u64, message: Message<'_>) -> Vec<u8> {
        let head = Head {
            id,
            state: self.asker,
            left: 0,
        };
        let (bytes, mut out) = (frame_of(head, message), Vec::new());
        let frame = Frame::decode(&bytes).unwrap().unwrap();
        let checkpoints = &self.checkpoints;
        self.state
            .message(now, &frame, checkpoints, &mut out)
            .unwrap();
        out
    }
}

#[test]
fn a_step_that_comes_again_is_answered_as_before_and_a_late_one_not_at_all() {
    let mut memory = Memory::new(8);
    let refine = |step| Message::Refine {
        step,
        nodes: scored(&[3, 4]),
    };
    let first = memory.tell(at(0), 1, begin(ROW));
    assert!(!first.is_empty() && reason(&first).is_none());
    assert_eq!(memory.tell(at(0), 1, begin(ROW)), first);
    let second = memory.tell(at(0), 1, refine(1));
    assert!(reason(&second).is_none());
    assert_eq!(
        memory.tell(
            at(0),
            1,
            Message::Refine {
                step: 1,
                nodes: scored(&[9])
            }
        ),
        second
    );
    assert_ne!(memory.tell(at(0), 1, refine(2)), second);
    for late in [refine(1), begin(ROW)] {
        assert_eq!(memory.tell(at(0), 1, late), b"");
    }
    assert_eq!(
        reason(&memory.tell(at(0), 1, refine(4))),
        Some(Reason::Unknown)
    );
    assert_eq!(
        reason(&memory.tell(at(0), 1, refine(3))),
        Some(Reason::Unknown)
    );
    assert_eq!(memory.state.walks(), 0);
}

#[test]
fn a_walk_ends_when_it_is_told_so_or_nothing_is_heard_of_it() {
    let mut memory = Memory::new(2);
    let refine = Message::Refine {
        step: 1,
        nodes: scored(&[]),
    };
    memory.tell(at(0), 1, begin(ROW));
    memory.tell(at(0), 2, begin(ROW));
    assert_eq!(
        reason(&memory.tell(at(1), 3, begin(ROW))),
        Some(Reason::Busy)
    );
    assert_eq!(memory.tell(at(1), 1, Message::End), b"");
    assert_eq!(reason(&memory.tell(at(1), 3, begin(ROW))), None);
    memory.tell(at(60), 2, refine);
    assert_eq!(memory.state.next_expiry(), Some(at(100)));
    memory.state.expire(at(110));
    assert_eq!(memory.state.walks(), 1);
    assert_eq!(memory.state.next_expiry(), Some(at(160)));
    assert_eq!(
        reason(&memory.tell(at(111), 3, refine)),
        Some(Reason::Unknown)
    );
    memory.state.expire(at(500));
    assert_eq!(
        (memory.state.walks(), memory.state.next_expiry()),
        (0, None)
    );
}

#[test]
fn what_cannot_be_answered_is_refused_and_harms_no_other() {
    let mut memory = Memory::new(8);
    memory.tell(at(0), 1, begin(ROW));
    assert_eq!(
        reason(&memory.tell(at(0), 2, begin(b"short"))),
        Some(Reason::Invalid)
    );
    let wrong = Message::Refine {
        step: 1,
        nodes: scored(&[100]),
    };
    assert_eq!(reason(&memory.tell(at(0), 1, wrong)), Some(Reason::Invalid));
    let search = Message::Search {
        k: 1,
        list: 0,
        beam: 0,
        row: ROW,
    };
    assert_eq!(
        reason(&memory.tell(at(0), 1, search)),
        Some(Reason::Invalid)
    );
    memory.asker += 2;
    assert_eq!(
        reason(&memory.tell(at(0), 1, begin(ROW))),
        Some(Reason::OtherState)
    );
    assert_eq!(memory.tell(at(0), 1, Message::End), b"");
    let asked = memory.tell(at(0), 9, Message::Describe { for_changes: false });
    let frame = Frame::decode(&asked).unwrap().unwrap();
    let collection = HighHalf::collection(&*world());
    match Message::decode(&frame).unwrap() {
        Message::Description {
            collection: found,
            centroids,
        } => {
            assert_eq!(
                (found, centroids),
                (collection, &collection.state.to_le_bytes()[..])
            );
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn storage_ranks_once_what_comes_twice_and_answers_nobody_who_is_gone() {
    let world = world();
    let slots = Slots::new(2);
    let mut held = Vec::new();
    let full = Full(world.clone());
    let mut state = StorageState::new(slots.clone(), Arc::new(Changes::new(1)));
    let tell = |held: &mut Vec<Slot>, state: &mut StorageState, id, left, by, nodes: &[u8]| {
        let message = Message::Rank {
            k: 2,
            row: ROW,
            nodes: Nodes(nodes),
        };
        let bytes = frame_of(
            Head {
                id,
                state: by,
                left,
            },
            message,
        );
        let mut out = Vec::new();
        let frame = Frame::decode(&bytes).unwrap().unwrap();
        let job = state.message(at(0), &frame, &full, &mut out).unwrap();
        (
            job.map(|job| {
                let Job::Rank(job) = job else {
                    panic!("{job:?}");
                };
                held.push(job.slot);
                (job.id, job.k, job.row.to_vec(), job.nodes.to_vec())
            }),
            reason(&out),
        )
    };
    let own = world.state;
    assert_eq!(
        tell(&mut held, &mut state, 1, 0, own, &[3, 4]),
        (Some((1, 2, ROW.to_vec(), vec![3, 7])), None)
    );
    assert_eq!(
        tell(&mut held, &mut state, 1, 0, own, &[3, 4]),
        (None, None)
    );
    assert_eq!(
        tell(&mut held, &mut state, 2, 0, own + 2, &[3]),
        (None, Some(Reason::OtherState))
    );
    assert_eq!(
        tell(&mut held, &mut state, 2, 0, own, &[101]),
        (None, Some(Reason::Invalid))
    );
    assert!(tell(&mut held, &mut state, 2, 5000, own, &[1]).0.is_some());
    assert_eq!(
        tell(&mut held, &mut state, 3, 0, own, &[1]),
        (None, Some(Reason::Busy))
    );
    let (ranked, mut out) = (world.rank_now(ROW, &[3, 7], 2), Vec::new());
    state.ranked(at(1), 1, Ok(&ranked), &mut out);
    assert!(!out.is_empty() && reason(&out).is_none());
    out.clear();
    state.ranked(at(6), 2, Ok(&ranked), &mut out);
    assert_eq!(reason(&out), Some(Reason::Deadline));
    out.clear();
    state.ranked(at(6), 77, Ok(&ranked), &mut out);
    assert!(out.is_empty() && state.ranking() == 0);
    // The clients have disconnected, but the rankings still have their slots.
    assert_eq!(slots.taken(), 2);
    assert_eq!(
        tell(&mut held, &mut state, 4, 0, own, &[1]),
        (None, Some(Reason::Busy))
    );
    held.clear();
    assert!(tell(&mut held, &mut state, 4, 0, own, &[1]).0.is_some());
    let why = &HalfError("a disk".to_owned());
    state.ranked(at(6), 4, Err(NotRanked { why, gone: false }), &mut out);
    assert_eq!(reason(&out), Some(Reason::Failed));
    out.clear();
    held.clear();
    assert!(tell(&mut held, &mut state, 5, 0, own, &[1]).0.is_some());
    state.ranked(at(6), 5, Err(NotRanked { why, gone: true }), &mut out);
    assert_eq!(reason(&out), Some(Reason::OtherState));
}

fn search(id: u64, deadline: Duration) -> Request {
    Request {
        client: 5,
        id,
        deadline,
        wants: Wants::Search {
            k: 3,
            list: 24,
            beam: 2,
            row: ROW.to_vec(),
        },
    }
}

/// Connects the worker to a memory server. The worker's low codes have the state of this server.
fn up(worker: &mut Worker<Low>, out: &mut Out) {
    worker.memory_up(at(0), out);
    let asked = Frame::decode(&out.memory).unwrap().unwrap();
    assert_eq!(
        Message::decode(&asked).unwrap(),
        Message::Describe { for_changes: false }
    );
    assert_eq!(asked.bytes(), out.memory.len());
    let head = Head {
        state: world().state,
        ..asked.head
    };
    let (collection, centroids) = (HighHalf::collection(&*world()), &[]);
    let told = Message::Description {
        collection,
        centroids,
    };
    let told = frame_of(head, told);
    let told = Frame::decode(&told).unwrap().unwrap();
    out.clear();
    worker.memory(at(0), &told, out).unwrap();
    assert!(out.is_empty());
}

fn worker() -> Worker<Low> {
    worker_of(Some(world()), Duration::MAX)
}

/// A worker that names its memory server's state to storage once a second.
fn vouching(world: Option<Arc<World>>) -> Worker<Low> {
    worker_of(world, at(1000))
}

fn worker_of(world: Option<Arc<World>>, vouch: Duration) -> Worker<Low> {
    let low = world.map(|world| {
        let collection = HighHalf::collection(&*world);
        let mut codes = Vec::new();
        world
            .low_codes(0..collection.nodes, collection.nodes, &mut codes)
            .unwrap();
        Low::load(collection, &world.low_centroids(), None, codes).unwrap()
    });
    let options = ComputeOptions {
        retry: at(10),
        silence: at(100),
        vouch,
        memory: "here".to_owned(),
        ..ComputeOptions::default()
    };
    Worker::new(Arc::new(Shelf::new(low)), options, 3, 7)
}

#[test]
fn a_server_that_answers_nothing_is_asked_again_and_then_taken_for_dead() {
    let (mut worker, mut out) = (worker(), Out::default());
    assert_eq!(
        worker.trouble(at(0)).unwrap(),
        "the memory server at here is not connected"
    );
    up(&mut worker, &mut out);
    assert!(out.is_empty() && worker.next_timer().is_none() && worker.trouble(at(0)).is_none());
    worker.take(at(1), search(6, at(500)), &mut out);
    let begun = out.memory.clone();
    let id = Frame::decode(&begun).unwrap().unwrap().head.id;
    assert_eq!(Worker::<Low>::lane_of(id), 3);
    for due in [11, 31, 71] {
        out.clear();
        assert_eq!(worker.next_timer(), Some(at(due)));
        worker.timer(at(due), &mut out);
        assert!(out.memory == begun && !out.memory_silent, "at {due}");
    }
    assert!(
        worker
            .trouble(at(71))
            .unwrap()
            .contains("has not answered for 70 ms")
    );
    out.clear();
    assert_eq!(worker.next_timer(), Some(at(101)));
    worker.timer(at(101), &mut out);
    assert!(out.memory_silent && !out.storage_silent);
    worker.memory_down("is gone");
    out.clear();
    worker.memory_up(at(150), &mut out);
    let asks = Frame::decode(&out.memory).unwrap().unwrap();
    let again = Frame::decode(&out.memory[asks.bytes()..]).unwrap().unwrap();
    assert!(again.head.id != id && Worker::<Low>::lane_of(again.head.id) == 3);
    out.clear();
    worker.timer(at(500), &mut out);
    let (client, id, refused) = out.answers().next().unwrap();
    assert_eq!(
        (client, id, reason(refused)),
        (5, 6, Some(Reason::Deadline))
    );
    let text = match Message::decode(&Frame::decode(refused).unwrap().unwrap()).unwrap() {
        Message::Refused { text, .. } => text.to_owned(),
        other => panic!("{other:?}"),
    };
    assert_eq!(
        text,
        "the memory server at here did not answer in time; last problem: it is gone"
    );
    assert_eq!(worker.in_flight(), 0);
}

#[test]
fn searches_wait_once_each_and_no_longer_than_their_clients() {
    let mut waiting = Waiting::new(2, 40, 8, at(1000));
    let push = |waiting: &mut Waiting, client, id, left, k| {
        let message = Message::Search {
            k,
            list: 0,
            beam: 0,
            row: ROW,
        };
        let bytes = frame_of(Head { id, state: 0, left }, message);
        let mut out = Out::default();
        let frame = Frame::decode(&bytes).unwrap().unwrap();
        let more = waiting
            .message(at(0), client, &frame, None, None, &mut out)
            .unwrap();
        (
            more.waits,
            out.answers().find_map(|(.., bytes)| reason(bytes)),
        )
    };
    assert_eq!(push(&mut waiting, 1, 1, 5000, 10), (true, None));
    assert_eq!(push(&mut waiting, 1, 1, 5000, 10), (false, None));
    assert_eq!(push(&mut waiting, 2, 1, 0, 60), (true, None));
    assert_eq!(push(&mut waiting, 3, 1, 0, 1), (false, Some(Reason::Busy)));
    assert_eq!(waiting.next_expiry(), Some(at(5)));
    let mut out = Out::default();
    waiting.expire(at(6), None, &mut out);
    let late: Vec<_> = out
        .answers()
        .map(|(client, id, bytes)| (client, id, reason(bytes)))
        .collect();
    assert_eq!(late, [(1, 1, Some(Reason::Deadline))]);
    out.clear();
    let search = waiting.pop(at(6), None, &mut out).unwrap();
    // No list is smaller than the number of results.
    assert_eq!((search.client, search.deadline), (2, at(1000)));
    let Wants::Search { list, beam, .. } = search.wants else {
        panic!("{search:?}");
    };
    assert_eq!((list, beam), (60, 8));
    assert!(waiting.is_empty());
    assert_eq!(push(&mut waiting, 2, 1, 0, 60), (false, None));
    waiting.over(2, 1);
    assert_eq!(push(&mut waiting, 2, 1, 0, 60), (true, None));
    waiting.gone(2);
    assert!(waiting.is_empty() && waiting.next_expiry().is_none());
    assert_eq!(push(&mut waiting, 2, 1, 0, 60), (true, None));
}

#[test]
fn what_no_frame_carries_is_refused_and_costs_no_other_walk() {
    let mut world = World::new(5, 100);
    world.weight = 1 << 20;
    let mut memory = Memory::of(8, Arc::new(world));
    let out = memory.tell(at(0), 1, begin(ROW));
    assert_eq!(reason(&out), Some(Reason::Failed));
    assert_eq!(memory.state.walks(), 0);
}

#[test]
fn longer_lists_than_a_server_allows_are_refused_with_what_it_allows() {
    let mut waiting = Waiting::new(8, 40, 8, at(1000));
    let mut ask = |k, list, beam| {
        let message = Message::Search {
            k,
            list,
            beam,
            row: ROW,
        };
        let (bytes, mut out) = (frame_of(Head::default(), message), Out::default());
        let frame = Frame::decode(&bytes).unwrap().unwrap();
        waiting
            .message(at(0), 1, &frame, None, None, &mut out)
            .unwrap();
        waiting.gone(1);
        out.answers().next().map(|(.., bytes)| {
            let frame = Frame::decode(bytes).unwrap().unwrap();
            match Message::decode(&frame).unwrap() {
                Message::Refused { reason, text } => (reason, text.to_owned()),
                other => panic!("{other:?}"),
            }
        })
    };
    for (k, list, beam, allowed) in [
        (65_536, 0, 0, Waiting::MOST_LIST),
        (1, 65_536, 0, Waiting::MOST_LIST),
        (1, 0, 65_536, Waiting::MOST_BEAM),
    ] {
        let (reason, text) = ask(k, list, beam).unwrap();
        assert_eq!(reason, Reason::Invalid);
        assert!(text.contains(&format!("at most {allowed}")), "{text}");
    }
    assert_eq!(
        ask(Waiting::MOST_LIST, Waiting::MOST_LIST, Waiting::MOST_BEAM),
        None
    );
}

#[test]
fn a_connection_is_not_dead_where_nobody_waits_or_others_are_answered() {
    let (mut worker, mut out) = (worker(), Out::default());
    up(&mut worker, &mut out);
    worker.take(at(0), search(1, at(60)), &mut out);
    worker.timer(at(60), &mut out);
    assert_eq!((worker.in_flight(), worker.next_timer()), (0, None));
    out.clear();
    // Time without requests does not count as silence.
    worker.timer(at(500), &mut out);
    worker.take(at(1000), search(2, at(2000)), &mut out);
    worker.timer(at(1030), &mut out);
    assert!(!out.memory_silent);
    // The waits of both requests add up to 100 ms.
    worker.timer(at(1040), &mut out);
    assert!(out.memory_silent);
    let (mut worker, mut out) = (self::worker(), Out::default());
    up(&mut worker, &mut out);
    worker.take(at(0), search(1, at(5000)), &mut out);
    worker.memory_heard(at(70));
    worker.timer(at(169), &mut out);
    assert!(!out.memory_silent);
    worker.timer(at(170), &mut out);
    assert!(out.memory_silent);
}

#[test]
fn what_waits_is_bounded_in_bytes_and_each_client_has_half_of_it() {
    let ask = |waiting: &mut Waiting, client, id, row: &[u8], collection| {
        let message = Message::Search {
            k: 1,
            list: 0,
            beam: 0,
            row,
        };
        let bytes = frame_of(
            Head {
                id,
                ..Head::default()
            },
            message,
        );
        let (frame, mut out) = (Frame::decode(&bytes).unwrap().unwrap(), Out::default());
        waiting
            .message(at(0), client, &frame, collection, None, &mut out)
            .unwrap();
        out.answers().find_map(|(.., bytes)| reason(bytes))
    };
    let mut waiting = Waiting::new(1024, 40, 8, at(1000));
    let collection = Some(HighHalf::collection(&*world()));
    assert_eq!(
        ask(&mut waiting, 1, 1, b"123456789", collection),
        Some(Reason::Invalid)
    );
    assert!(waiting.is_empty());
    // The row length is unknown, so the rows have the largest size.
    let row = vec![0; 1 << 20];
    let most = Waiting::MOST_BYTES >> 20;
    let mut full = |client| {
        let taken = (0..).take_while(|&id| ask(&mut waiting, client, id, &row, None).is_none());
        taken.count()
    };
    assert_eq!([full(1), full(2), full(3)], [most / 2, most / 2, 0]);
    waiting.gone(1);
    waiting.pop(at(0), None, &mut Out::default()).unwrap();
    assert_eq!(ask(&mut waiting, 3, 0, &row, None), None);
    let mut waiting = Waiting::new(8, 40, 8, at(1000));
    let mut full = |client| {
        let taken = (0..).take_while(|&id| ask(&mut waiting, client, id, ROW, None).is_none());
        taken.count()
    };
    assert_eq!([full(1), full(2), full(3)], [4, 4, 0]);
}

#[test]
fn a_worker_has_room_while_it_could_begin() {
    let (mut worker, mut out) = (worker(), Out::default());
    assert!(!worker.has_room());
    worker.memory_up(at(0), &mut out);
    assert!(worker.has_room());
    worker.memory_down("is gone");
    assert!(!worker.has_room());
    let shelf = Arc::new(Shelf::<Low>::new(None));
    let mut bare = Worker::new(shelf, ComputeOptions::default(), 0, 1);
    bare.memory_up(at(0), &mut out);
    assert!(!bare.has_room());
}

#[test]
fn those_that_are_too_late_make_room_for_one_that_comes() {
    let mut waiting = Waiting::new(2, 40, 8, at(1000));
    let ask = |waiting: &mut Waiting, now, client| {
        let message = Message::Search {
            k: 1,
            list: 0,
            beam: 0,
            row: ROW,
        };
        let bytes = frame_of(Head::until(1, 0, at(5)), message);
        let (frame, mut out) = (Frame::decode(&bytes).unwrap().unwrap(), Out::default());
        let more = waiting
            .message(now, client, &frame, None, None, &mut out)
            .unwrap();
        let said = out
            .answers()
            .map(|(client, _, bytes)| (client, reason(bytes)));
        (more.waits, said.collect::<Vec<_>>())
    };
    assert_eq!(ask(&mut waiting, at(0), 1), (true, vec![]));
    assert_eq!(ask(&mut waiting, at(0), 2), (true, vec![]));
    let late = Some(Reason::Deadline);
    let (more, said) = ask(&mut waiting, at(6), 3);
    assert!(more && said == [(1, late), (2, late)], "{said:?}");
}

#[test]
fn a_client_asks_for_a_sign_of_life_once_and_any_answer_is_one() {
    let mut client = ClientState::new("there", at(1000), 7);
    let mut out = Vec::new();
    client.up(at(0), &mut out);
    client.ask(
        at(0),
        at(9000),
        Asked::Describe { for_changes: false },
        &mut out,
    );
    out.clear();
    assert_eq!(client.unanswered(), Some(at(0)));
    assert!(client.probe(at(300), &mut out));
    let id = Frame::decode(&out).unwrap().unwrap().head.id;
    assert_eq!(client.unanswered(), Some(at(300)));
    assert!(!client.probe(at(600), &mut out));
    let text = "it has no low codes";
    let reason = Reason::Busy;
    let busy = frame_of(
        Head {
            id,
            ..Head::default()
        },
        Message::Refused { reason, text },
    );
    let frame = Frame::decode(&busy).unwrap().unwrap();
    assert_eq!(client.message(at(700), &frame), Ok(None));
    assert_eq!(client.unanswered(), Some(at(700)));
    assert!(client.probe(at(1000), &mut out));
    client.down("it is gone");
    assert!(client.unanswered().is_none() && !client.probe(at(1100), &mut out));
}

#[test]
fn a_client_that_asked_for_nothing_does_not_take_its_server_for_silent_then() {
    let mut client = ClientState::new("there", at(1000), 7).with_others();
    let mut out = Vec::new();
    client.up(at(0), &mut out);
    let asks = || Asked::Describe { for_changes: true };
    let id = client.ask(at(0), at(9000), asks(), &mut out);
    let (reason, text) = (Reason::Invalid, "no");
    let refused = Message::Refused { reason, text };
    assert!(ended(&mut client, id, refused).is_err());
    assert_eq!(client.unanswered(), None);
    client.ask(at(8000), at(9000), asks(), &mut out);
    assert_eq!(client.unanswered(), Some(at(8000)));
}

#[test]
fn a_change_that_was_never_sent_is_not_made_yet() {
    let delete = || Asked::Change {
        upserts: Vec::new(),
        rows: Vec::new(),
        deletes: vec![1],
    };
    let (mut client, _) = asked_of(&[3]);
    client.down("it is gone");
    let id = client.ask(at(3), at(10), delete(), &mut Vec::new());
    let mut late = Vec::new();
    client.timer(at(20), &mut Vec::new(), &mut late);
    assert_eq!((late[0].0, late[0].1.doubt()), (id, Doubt::Nothing));
    assert_eq!(late.len(), 1);
}

#[test]
fn changes_that_are_forgotten_have_an_id_each_and_little_time() {
    let (mut client, first) = asked_of(&[3]);
    let mut said = Vec::new();
    client.forget(first, &mut said);
    let asked = Asked::Change {
        upserts: Vec::new(),
        rows: Vec::new(),
        deletes: vec![2],
    };
    let second = client.ask(at(3), at(9000), asked, &mut Vec::new());
    let mut again = Vec::new();
    client.forget(second, &mut again);
    let heads = [&said, &again].map(|said| Frame::decode(said).unwrap().unwrap().head);
    assert!(heads[0].id != heads[1].id && heads[0].id != 0);
    let patience = Duration::from_secs(3600);
    for head in heads {
        assert!(head.deadline(at(0), patience) <= at(2000));
    }
}

const ONE: &[u8] = &[1, 0, 0, 0, 0, 0, 0, 0];
const CHANGED: Changed = Changed {
    upserted: 0,
    deleted: 1,
};

fn token() -> Token {
    Token {
        run: 1,
        client: 9,
        number: 1,
    }
}

fn wanted() -> Wanted<'static> {
    Wanted {
        newest: 1,
        numbers: Ids(ONE),
    }
}

fn delete() -> Message<'static> {
    Message::Change {
        token: token(),
        wanted: wanted(),
        upserts: Ids::default(),
        deletes: Ids(ONE),
        rows: b"",
    }
}

fn give_up() -> Message<'static> {
    Message::GiveUp {
        token: token(),
        wanted: wanted(),
    }
}

fn request(id: u64, message: Message<'_>, deadline: Duration) -> Request {
    let mut waiting = Waiting::new(8, 40, 8, deadline);
    let bytes = frame_of(
        Head {
            id,
            ..Head::default()
        },
        message,
    );
    let frame = Frame::decode(&bytes).unwrap().unwrap();
    let taken = waiting.message(at(0), 5, &frame, None, None, &mut Out::default());
    assert!(taken.unwrap().waits);
    assert!(waiting.pop(at(0), None, &mut Out::default()).is_none());
    waiting.pop_change().unwrap()
}

fn told(worker: &mut Worker<Low>, now: Duration, id: u64, message: Message<'_>, out: &mut Out) {
    let bytes = frame_of(
        Head {
            id,
            ..Head::default()
        },
        message,
    );
    let frame = Frame::decode(&bytes).unwrap().unwrap();
    worker.storage(now, &frame, out).unwrap();
}

fn changing() -> (Worker<Low>, u64) {
    let (mut worker, mut out) = (worker(), Out::default());
    worker.storage_up(at(0), &mut out);
    worker.take(at(0), request(6, delete(), at(5000)), &mut out);
    let asked = Frame::decode(&out.storage).unwrap().unwrap();
    assert_eq!(Message::decode(&asked), Ok(delete()));
    (worker, asked.head.id)
}

#[test]
fn the_first_answer_to_a_change_counts_also_behind_that_storage_is_at_it() {
    let busy = Message::Refused {
        reason: Reason::Busy,
        text: "it is at it",
    };
    let failed = Message::Refused {
        reason: Reason::Failed,
        text: "a disk",
    };
    for answer in [Message::Changed(CHANGED), failed] {
        let ((mut worker, id), mut out) = (changing(), Out::default());
        worker.timer(at(10), &mut out);
        assert!(!out.storage.is_empty());
        told(&mut worker, at(11), id, busy, &mut out);
        assert_eq!((worker.in_flight(), out.answers().count()), (1, 0));
        told(&mut worker, at(12), id, answer, &mut out);
        assert_eq!((worker.in_flight(), out.answers().count()), (0, 1));
        told(&mut worker, at(13), id, answer, &mut out);
        assert_eq!(out.answers().count(), 1);
    }
}

#[test]
fn storage_is_not_asked_again_for_what_its_client_has_given_up_or_who_is_gone() {
    let ((mut worker, _), mut out) = (changing(), Out::default());
    worker.gone(at(5), 4, &mut out);
    assert_eq!(worker.in_flight(), 1);
    worker.gone(at(5), 5, &mut out);
    worker.timer(at(5), &mut out);
    worker.timer(at(100), &mut out);
    assert!(out.is_empty() && worker.in_flight() == 0 && worker.next_timer().is_none());
    let (mut worker, _) = changing();
    let other = Token {
        number: 2,
        ..token()
    };
    worker.given_up(other, &mut out);
    assert_eq!(worker.in_flight(), 1);
    worker.take(at(5), request(7, give_up(), at(5000)), &mut out);
    let asked = Frame::decode(&out.storage).unwrap().unwrap();
    assert_eq!(Message::decode(&asked), Ok(give_up()));
    let id = asked.head.id;
    worker.given_up(token(), &mut out);
    let said: Vec<_> = out
        .answers()
        .map(|(_, id, bytes)| (id, reason(bytes)))
        .collect();
    assert_eq!(said, [(6, Some(Reason::GivenUp))]);
    out.clear();
    worker.timer(at(15), &mut out);
    let again = Frame::decode(&out.storage).unwrap().unwrap();
    assert_eq!(
        (again.head.id, again.bytes(), Message::decode(&again)),
        (id, out.storage.len(), Ok(give_up()))
    );
    let mut waiting = Waiting::new(8, 40, 8, at(1000));
    let push = |waiting: &mut Waiting, id, message, out: &mut Out| {
        let bytes = frame_of(
            Head {
                id,
                ..Head::default()
            },
            message,
        );
        let frame = Frame::decode(&bytes).unwrap().unwrap();
        let taken = waiting.message(at(0), 5, &frame, None, None, out);
        taken.unwrap()
    };
    out.clear();
    assert_eq!(push(&mut waiting, 6, delete(), &mut out).given_up, None);
    let taken = push(&mut waiting, 7, give_up(), &mut out);
    assert_eq!((taken.waits, taken.given_up), (true, Some(token())));
    assert_eq!(waiting.len(), 1);
    let said = out.answers().map(|(_, id, bytes)| (id, reason(bytes)));
    assert_eq!(said.collect::<Vec<_>>(), [(6, Some(Reason::GivenUp))]);
}

#[test]
fn a_change_leaves_no_room_of_its_size_behind() {
    let (mut worker, mut out) = (worker(), Out::default());
    worker.storage_up(at(0), &mut out);
    let rows = vec![7; 1 << 20];
    let large = Message::Change {
        token: token(),
        wanted: wanted(),
        upserts: Ids::default(),
        deletes: Ids::default(),
        rows: &rows,
    };
    worker.take(at(0), request(6, large, at(5000)), &mut out);
    assert!(out.storage.len() > rows.len());
    out.clear();
    assert!(out.storage.capacity() < rows.len() / 2);
}

#[test]
fn changes_keep_no_search_from_beginning() {
    let (mut worker, mut out) = (worker(), Out::default());
    up(&mut worker, &mut out);
    worker.storage_up(at(0), &mut out);
    let mut changes = 0;
    while worker.has_room_for_change() {
        worker.take(at(0), request(changes, delete(), at(5000)), &mut out);
        changes += 1;
        assert!(changes < 100);
    }
    // Changes do not reduce the number of searches that the worker accepts.
    let mut searches = 0;
    while worker.has_room() {
        out.clear();
        worker.take(at(0), search(1000 + searches, at(5000)), &mut out);
        let begun = Frame::decode(&out.memory).unwrap().unwrap().head;
        let done = Message::Done {
            step: 0,
            computations: 1,
            low: 0,
            nodes: Nodes(&[3]),
        };
        let done = frame_of(begun, done);
        let done = Frame::decode(&done).unwrap().unwrap();
        worker.memory(at(0), &done, &mut out).unwrap();
        searches += 1;
    }
    let most = ComputeOptions::default().in_flight as u64 * 9;
    assert_eq!(searches, most);
    assert!(!worker.has_room_for_change());
    worker.gone(at(1), 5, &mut out);
    assert!(worker.has_room() && worker.has_room_for_change());
}

#[test]
fn storage_says_again_how_a_change_failed_and_makes_none_that_is_given_up() {
    let full = Full(world());
    let mut state = StorageState::new(Slots::new(2), Arc::new(Changes::new(1)));
    let tell = |state: &mut StorageState, id, message| {
        let head = Head {
            id,
            ..Head::default()
        };
        let (bytes, mut out) = (frame_of(head, message), Vec::new());
        let frame = Frame::decode(&bytes).unwrap().unwrap();
        let job = state.message(at(0), &frame, &full, &mut out).unwrap();
        (job.is_some(), reason(&out))
    };
    assert_eq!(tell(&mut state, 1, delete()), (true, None));
    assert_eq!(tell(&mut state, 2, delete()), (false, Some(Reason::Busy)));
    let mut out = Vec::new();
    assert!(state.starts(at(0), (1, token(), at(50)), &mut out));
    assert_eq!(tell(&mut state, 3, give_up()), (false, Some(Reason::Busy)));
    let failed = NotChanged::Failed("a disk".to_owned());
    state.changed((1, token()), Err(&failed), &mut out);
    assert_eq!(reason(&out), Some(Reason::Failed));
    for message in [delete(), give_up()] {
        assert_eq!(tell(&mut state, 4, message), (false, Some(Reason::Failed)));
    }
    // Storage makes the change neither at its deadline nor later.
    let mut state = StorageState::new(Slots::new(2), Arc::new(Changes::new(1)));
    assert_eq!(tell(&mut state, 1, delete()), (true, None));
    out.clear();
    assert!(!state.starts(at(50), (1, token(), at(50)), &mut out));
    assert_eq!(reason(&out), Some(Reason::GivenUp));
    assert_eq!(
        tell(&mut state, 2, delete()),
        (false, Some(Reason::GivenUp))
    );
    let mut state = StorageState::new(Slots::new(2), Arc::new(Changes::new(1)));
    assert_eq!(tell(&mut state, 1, delete()), (true, None));
    assert_eq!(
        tell(&mut state, 2, give_up()),
        (false, Some(Reason::GivenUp))
    );
    out.clear();
    assert!(!state.starts(at(0), (1, token(), at(50)), &mut out));
    let mut state = StorageState::new(Slots::new(2), Arc::new(Changes::new(1)));
    assert_eq!(tell(&mut state, 1, delete()), (true, None));
    state.no_room((1, token()), "full", &mut out);
    assert_eq!(tell(&mut state, 1, delete()), (true, None));
    let mut state = StorageState::new(Slots::new(2), Arc::new(Changes::new(2)));
    for message in [delete(), give_up()] {
        assert_eq!(
            tell(&mut state, 1, message),
            (false, Some(Reason::OtherState))
        );
    }
}

/// A client with a change. For each of these runs in turn, storage refuses the change and names the
/// run, and the client sends the change again for this run.
fn asked_of(runs: &[u64]) -> (ClientState, u64) {
    let (mut client, mut out) = (ClientState::new("there", at(1000), 7), Vec::new());
    client.up(at(0), &mut out);
    let asked = Asked::Change {
        upserts: Vec::new(),
        rows: Vec::new(),
        deletes: vec![1],
    };
    let id = client.ask(at(0), at(9000), asked, &mut out);
    for &state in runs {
        let head = Head { id, state, left: 0 };
        let (reason, text) = (Reason::OtherState, "another run");
        let refused = frame_of(head, Message::Refused { reason, text });
        let refused = Frame::decode(&refused).unwrap().unwrap();
        assert_eq!(client.message(at(1), &refused), Ok(None));
        out.clear();
        client.timer(at(1), &mut out, &mut Vec::new());
        let asked = Frame::decode(&out).unwrap().unwrap();
        let Ok(Message::Change { token, .. }) = Message::decode(&asked) else {
            panic!("{asked:?}");
        };
        assert_eq!((token.run, token.number), (state, 1));
    }
    (client, id)
}

fn ended(client: &mut ClientState, id: u64, message: Message<'_>) -> Result<Outcome, Failure> {
    let head = Head {
        id,
        ..Head::default()
    };
    let bytes = frame_of(head, message);
    let frame = Frame::decode(&bytes).unwrap().unwrap();
    let (of, outcome) = client.message(at(2), &frame).unwrap().unwrap();
    assert_eq!(of, id);
    outcome
}

#[test]
fn what_an_earlier_run_of_storage_may_have_made_is_in_doubt() {
    let refused = |reason| Message::Refused { reason, text: "no" };
    for (runs, reason, doubt) in [
        (&[3][..], Reason::Invalid, Doubt::Nothing),
        (&[3, 4], Reason::Invalid, Doubt::Perhaps),
        (&[3], Reason::GivenUp, Doubt::Nothing),
        (&[3, 4], Reason::GivenUp, Doubt::Perhaps),
        (&[3], Reason::Failed, Doubt::Perhaps),
        (&[3], Reason::Deadline, Doubt::Yet),
        (&[], Reason::Deadline, Doubt::Nothing),
    ] {
        let (mut client, id) = asked_of(runs);
        let failure = ended(&mut client, id, refused(reason)).unwrap_err();
        assert_eq!(failure.doubt(), doubt, "{runs:?}, {reason}");
        let told = client.give_up(at(3), at(9000), id, &mut Vec::new());
        assert_eq!(told.is_some(), doubt == Doubt::Yet);
    }
    for (runs, again) in [(&[3][..], false), (&[3, 4], true)] {
        let (mut client, id) = asked_of(runs);
        let outcome = ended(&mut client, id, Message::Changed(CHANGED)).unwrap();
        let changed = CHANGED;
        assert_eq!(outcome, Outcome::Changed { changed, again });
    }
}

#[test]
fn a_client_that_gives_a_change_up_is_told_what_became_of_it() {
    let (changed, again) = (CHANGED, false);
    let refused = |reason| Message::Refused { reason, text: "no" };
    for (answer, doubt) in [
        (Message::Changed(CHANGED), None),
        (refused(Reason::GivenUp), Some(Doubt::Nothing)),
        (refused(Reason::Failed), Some(Doubt::Perhaps)),
        // The run that the change is for no longer exists.
        (refused(Reason::OtherState), Some(Doubt::Perhaps)),
        (refused(Reason::Deadline), Some(Doubt::Yet)),
    ] {
        let ((mut client, id), mut out) = (asked_of(&[3]), Vec::new());
        let told = client.give_up(at(2), at(9000), id, &mut out).unwrap();
        let asked = Frame::decode(&out).unwrap().unwrap();
        let Ok(Message::GiveUp { token, wanted }) = Message::decode(&asked) else {
            panic!("{asked:?}");
        };
        assert_eq!((token.run, token.number, wanted.has(1)), (3, 1, true));
        assert_eq!(client.in_flight(), 1);
        match (ended(&mut client, told, answer), doubt) {
            (Ok(made), None) => assert_eq!(made, Outcome::Changed { changed, again }),
            (Err(failure), Some(doubt)) => assert_eq!(failure.doubt(), doubt),
            other => panic!("{other:?}"),
        }
    }
    // The next change tells servers that the client no longer waits for the forgotten change.
    let ((mut client, id), mut out) = (asked_of(&[3]), Vec::new());
    client.forget(id, &mut out);
    let said = Frame::decode(&out).unwrap().unwrap();
    assert!(matches!(Message::decode(&said), Ok(Message::GiveUp { .. })));
    out.clear();
    let asked = Asked::Change {
        upserts: Vec::new(),
        rows: Vec::new(),
        deletes: vec![1],
    };
    client.ask(at(3), at(9000), asked, &mut out);
    let asked = Frame::decode(&out).unwrap().unwrap();
    let Ok(Message::Change { token, wanted, .. }) = Message::decode(&asked) else {
        panic!("{asked:?}");
    };
    assert_eq!((token.run, token.number, wanted.newest), (3, 2, 2));
    assert_eq!([wanted.has(1), wanted.has(2)], [false, true]);
}

fn asks_to_vouch(out: &Out) -> Head {
    let asked = Frame::decode(&out.memory).unwrap().unwrap();
    assert_eq!(asked.bytes(), out.memory.len());
    let (from, count, kept) = (0, 0, u32::MAX);
    let right = Message::LowCodes { from, count, kept };
    assert_eq!(Message::decode(&asked).unwrap(), right);
    assert!(out.storage.is_empty());
    asked.head
}

/// Returns the state that the worker names to storage after the memory server's reply.
fn vouches(
    worker: &mut Worker<Low>,
    memory: &mut Memory,
    now: Duration,
    head: Head,
    out: &mut Out,
) -> Option<u64> {
    memory.asker = head.state;
    let (from, count, kept) = (0, 0, u32::MAX);
    let said = memory.tell(now, head.id, Message::LowCodes { from, count, kept });
    let said = Frame::decode(&said).unwrap().unwrap();
    out.clear();
    worker.memory(now, &said, out).unwrap();
    let asked = Frame::decode(&out.storage).unwrap()?;
    let Message::Rank { row, nodes, .. } = Message::decode(&asked).unwrap() else {
        panic!("{asked:?}");
    };
    assert_eq!((row, nodes.0), (&[0][..], &[][..]));
    // The request only names the state, so storage refuses its row.
    let mut storage = StorageState::new(Slots::new(1), Arc::new(Changes::new(1)));
    let ranker = Full(memory.checkpoints.last().clone());
    let mut refused = Vec::new();
    let job = storage.message(now, &asked, &ranker, &mut refused).unwrap();
    assert!(job.is_none() && reason(&refused) == Some(Reason::Invalid));
    let refused = Frame::decode(&refused).unwrap().unwrap();
    let mut heard = Out::default();
    worker.storage(now, &refused, &mut heard).unwrap();
    assert!(heard.is_empty());
    Some(asked.head.state)
}

#[test]
fn a_worker_vouches_for_the_state_that_its_memory_server_has_while_it_answers() {
    let state = world().state;
    let (mut worker, mut out) = (vouching(Some(world())), Out::default());
    let mut memory = Memory::new(8);
    assert_eq!(worker.next_timer(), None);
    up(&mut worker, &mut out);
    worker.storage_up(at(0), &mut out);
    worker.timer(at(999), &mut out);
    assert!(out.is_empty());
    assert_eq!(worker.next_timer(), Some(at(1000)));
    worker.timer(at(1000), &mut out);
    let head = asks_to_vouch(&out);
    assert_eq!(head.state, state);
    let told = vouches(&mut worker, &mut memory, at(1001), head, &mut out);
    assert_eq!(told, Some(state));
    let again = vouches(&mut worker, &mut memory, at(1002), head, &mut out);
    assert_eq!(again, None);
    assert!(out.is_empty());
    for due in [2000, 3000] {
        assert_eq!(worker.next_timer(), Some(at(due)));
        out.clear();
        worker.timer(at(due), &mut out);
        asks_to_vouch(&out);
    }
    let head = asks_to_vouch(&out);
    assert!(!out.memory_silent);
    worker.memory_down("is gone");
    assert_eq!(worker.next_timer(), None);
    let late = vouches(&mut worker, &mut memory, at(3001), head, &mut out);
    assert_eq!(late, None);
    // The worker names the state of the new server, and fetches its low codes.
    let mut other = Memory::of(8, Arc::new(World::new(6, 100)));
    up(&mut worker, &mut out);
    worker.timer(at(5000), &mut out);
    let head = asks_to_vouch(&out);
    let told = vouches(&mut worker, &mut other, at(5001), head, &mut out);
    assert_eq!(told, Some(other.checkpoints.last().state));
    let fetches = Frame::decode(&out.memory).unwrap().unwrap();
    assert_eq!(
        Message::decode(&fetches).unwrap(),
        Message::Describe { for_changes: false }
    );
    worker.storage_down("is gone", &mut out);
    out.clear();
    worker.timer(at(6000), &mut out);
    let ask = |out: &Out| {
        let mut at = 0;
        let mut last = None;
        while let Some(frame) = Frame::decode(&out.memory[at..]).unwrap() {
            at += frame.bytes();
            last = Some(frame.head);
        }
        last.unwrap()
    };
    let head = ask(&out);
    assert_eq!(head.state, state);
    let told = vouches(&mut worker, &mut other, at(6001), head, &mut out);
    assert_eq!(told, None);
}

#[test]
fn a_worker_without_low_codes_vouches_for_what_its_memory_server_says_that_it_has() {
    let (mut worker, mut out) = (vouching(None), Out::default());
    let mut memory = Memory::new(8);
    worker.storage_up(at(0), &mut out);
    worker.memory_up(at(0), &mut out);
    out.clear();
    worker.timer(at(1000), &mut out);
    let (mut rest, mut asked) = (&out.memory[..], None);
    while let Some(frame) = Frame::decode(rest).unwrap() {
        if let Message::LowCodes { .. } = Message::decode(&frame).unwrap() {
            asked = Some(frame.head);
        }
        rest = &rest[frame.bytes()..];
    }
    let head = asked.unwrap();
    assert_eq!(head.state, 0);
    let told = vouches(&mut worker, &mut memory, at(1001), head, &mut out);
    assert_eq!(told, Some(world().state));
}
