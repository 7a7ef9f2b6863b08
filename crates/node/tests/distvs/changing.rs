//! The errors of changes that are not completed.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use stratann_node::Options;
use stratann_node::role::{
    Done as Told, HalfError, HighHalf, MemoryOptions, NotChanged, Ranker, Wanted,
};
use stratann_node::serve::{
    ChangeError, Client, ComputeServer, Done, MemoryServer, StorageServer, Unfinished,
};
use stratann_node::wire::{Changed, Collection, Reason};

use crate::halves::{DIM, Full, Low};
use crate::servers::{PATIENCE, options, patient, remote, until, world};

#[derive(Default)]
struct Gate {
    open: Mutex<bool>,
    opens: Condvar,
}

impl Gate {
    fn open(&self) {
        *self.open.lock().unwrap() = true;
        self.opens.notify_all();
    }

    fn pass(&self) {
        let open = self.open.lock().unwrap();
        let waited = self
            .opens
            .wait_timeout_while(open, 2 * PATIENCE, |open| !*open);
        drop(waited.unwrap());
    }
}

/// On drop, opens the gate at which a server waits, even if the test fails.
struct Opens<'a>(&'a Gate);

impl Drop for Opens<'_> {
    fn drop(&mut self) {
        self.0.open();
    }
}

type Says = fn(&Gate, usize) -> Result<(), NotChanged>;

/// A storage server whose outcomes a test decides, by the number of the change.
struct Moody {
    says: Says,
    gate: Gate,
    asked: AtomicUsize,
}

impl Moody {
    fn new(says: Says) -> Arc<Moody> {
        Arc::new(Moody {
            says,
            gate: Gate::default(),
            asked: AtomicUsize::new(0),
        })
    }

    fn asked(&self) -> usize {
        self.asked.load(Ordering::SeqCst)
    }

    fn begins(&self) {
        until(|| self.asked() > 0);
    }
}

fn changing() -> Collection {
    Collection {
        changes: true,
        ..HighHalf::collection(&*world())
    }
}

impl Ranker for Moody {
    fn collection(&self) -> Collection {
        changing()
    }

    fn collection_of(&self, state: u64) -> Option<Collection> {
        Some(self.collection()).filter(|own| own.state == state)
    }

    fn rank(
        &self,
        _: (u64, &[u8]),
        _: &[u32],
        _: usize,
        _: Wanted,
        _: Told,
    ) -> Result<(), HalfError> {
        Err(HalfError("nothing is ranked here".to_owned()))
    }

    fn change(&self, upserts: (&[u64], &[u8]), deletes: &[u64]) -> Result<Changed, NotChanged> {
        (self.says)(&self.gate, self.asked.fetch_add(1, Ordering::SeqCst))?;
        Ok(Changed {
            upserted: upserts.0.len() as u32,
            deleted: deletes.len() as u32 / 2,
        })
    }
}

/// Makes a change without a memory server.
fn change<T>(says: Says, act: impl FnOnce(&Client, &Moody) -> T) -> T {
    let moody = Moody::new(says);
    let storage = StorageServer::start(moody.clone(), 4, Options::default()).unwrap();
    let (nowhere, behind) = (remote("127.0.0.1:1"), remote(storage.address()));
    let server = ComputeServer::<Low>::start(nowhere, behind, options()).unwrap();
    let client = Client::connect(vec![remote(server.address())], patient()).unwrap();
    client.changeable_while(|| true).unwrap().unwrap();
    let _opens = Opens(&moody.gate);
    act(&client, &moody)
}

/// Repeats the attempt, because a busy machine may need longer than the second for which the client
/// waits.
fn settled(mut attempt: impl FnMut() -> Unfinished) -> Unfinished {
    (0..10)
        .map(|_| attempt())
        .find(|unfinished| !unfinished.yet)
        .expect("no attempt has a known outcome")
}

const PART: usize = 1 << 15;
const ALL: usize = 2 * PART + 100;

fn ids() -> Vec<u64> {
    (0..ALL as u64).collect()
}

fn upsert(client: &Client) -> Result<Done, Unfinished> {
    let row = |_: usize, rows: &mut [u8]| {
        rows.fill(7);
        Ok(())
    };
    client.upsert(&ids(), DIM, row, |_| true)
}

fn counts(unfinished: &Unfinished) -> [usize; 3] {
    [
        unfinished.acknowledged,
        unfinished.unknown,
        unfinished.total,
    ]
}

#[test]
fn a_change_that_fails_in_the_middle_says_how_much_is_in_and_may_be() {
    let fails: Says = |_, number| match number {
        0 => Ok(()),
        _ => Err(NotChanged::Failed(
            "the disk is full; the first 256 of 32768 rows are in".to_owned(),
        )),
    };
    let unfinished = change(fails, |client, _| upsert(client).unwrap_err());
    assert_eq!(counts(&unfinished), [PART, PART, ALL]);
    assert_eq!(unfinished.done.upserted as usize, PART);
    let text = unfinished.to_string();
    for told in [
        "failed: the storage server at",
        "the disk is full",
        "the first 32768 of 65636 ids were changed durably",
        "some or all of the next 32768 may be changed too",
        "Make the whole change again",
    ] {
        assert!(text.contains(told), "{told}: {text}");
    }
    assert!(
        !text.contains("refuse") && !text.contains("query"),
        "{text}"
    );
    // Storage may have deleted some ids of the first part.
    let fails: Says = |_, _| Err(NotChanged::Failed("a disk".to_owned()));
    let unfinished = change(fails, |client, _| {
        client.delete(&ids(), |_| true).unwrap_err()
    });
    assert_eq!(counts(&unfinished), [0, PART, ALL]);
    let text = unfinished.to_string();
    let told = "none of 65636 ids is known to be changed, but some or all of the first 32768 may be changed";
    assert!(text.contains(told) && text.contains("again"), "{text}");
}

#[test]
fn a_change_that_can_never_be_made_is_invalid_and_nothing_of_it_is_in_doubt() {
    let refuses: Says = |_, _| Err(NotChanged::Invalid("it takes no changes".to_owned()));
    let unfinished = change(refuses, |client, _| upsert(client).unwrap_err());
    assert_eq!(counts(&unfinished), [0, 0, ALL]);
    let ChangeError::Server(failure) = &unfinished.why else {
        panic!("{unfinished:?}");
    };
    assert_eq!(failure.reason(), Some(Reason::Invalid));
    let text = unfinished.to_string();
    assert!(
        text.ends_with("it takes no changes; nothing was changed"),
        "{text}"
    );
    let reads = |first: usize, _: &mut [u8]| match first {
        0 => Ok(()),
        _ => Err("a file".to_owned()),
    };
    let unfinished = change(
        |_, _| Ok(()),
        |client, _| client.upsert(&ids(), DIM, reads, |_| true).unwrap_err(),
    );
    assert_eq!(counts(&unfinished), [PART, 0, ALL]);
}

#[test]
fn a_change_that_is_still_being_made_is_not_called_refused() {
    let slow: Says = |gate, _| {
        gate.pass();
        Ok(())
    };
    let unfinished = change(slow, |client, moody| {
        let hurried = client.within(Duration::from_secs(3));
        let unfinished = upsert(&hurried).unwrap_err();
        moody.begins();
        unfinished
    });
    assert_eq!(counts(&unfinished), [0, PART, ALL]);
    let text = unfinished.to_string();
    assert!(unfinished.yet, "{text}");
    // On a busy machine, the client's deadline may pass before the server's refusal arrives.
    assert!(
        !text.contains("refuse") && (text.contains("storage") || text.contains("within ")),
        "{text}"
    );
    // The change takes longer than the second for which the client waits for the outcome.
    let unfinished = change(slow, |client, moody| {
        let begins = |_| moody.asked() == 0;
        client.delete(&ids(), begins).unwrap_err()
    });
    assert!(matches!(unfinished.why, ChangeError::Interrupted));
    assert_eq!(
        (counts(&unfinished), unfinished.yet),
        ([0, PART, ALL], true)
    );
    let text = unfinished.to_string();
    assert!(text.contains("or may be changed later"), "{text}");
    // Ids that did not exist count as done.
    let unfinished = change(
        |_, _| Ok(()),
        |client, _| client.delete(&ids(), |ids| ids == 0).unwrap_err(),
    );
    assert_eq!(counts(&unfinished), [PART, 0, ALL]);
    assert_eq!(unfinished.done.deleted as usize, PART / 2);
}

fn within(millis: u64) -> impl FnMut(usize) -> bool {
    let end = Instant::now() + Duration::from_millis(millis);
    move |_| Instant::now() < end
}

#[test]
fn who_stops_a_change_is_told_what_became_of_it() {
    let stopped = |says| {
        change(says, |client, moody| {
            let stops = |_| {
                let waits = moody.asked() == 0;
                if !waits {
                    moody.gate.open();
                }
                waits
            };
            client.delete(&ids(), stops).unwrap_err()
        })
    };
    let slow: Says = |gate, _| {
        gate.pass();
        std::thread::sleep(Duration::from_millis(100));
        Ok(())
    };
    let unfinished = settled(|| stopped(slow));
    assert!(matches!(unfinished.why, ChangeError::Interrupted));
    assert_eq!(
        (counts(&unfinished), unfinished.yet),
        ([PART, 0, ALL], false)
    );
    assert_eq!(unfinished.done.deleted as usize, PART / 2);
    let fails: Says = |gate, _| {
        gate.pass();
        std::thread::sleep(Duration::from_millis(100));
        Err(NotChanged::Failed("a disk".to_owned()))
    };
    let unfinished = settled(|| stopped(fails));
    assert_eq!(
        (counts(&unfinished), unfinished.yet),
        ([0, PART, ALL], false)
    );
}

#[test]
fn who_stops_a_change_that_is_answered_meanwhile_is_told_that_it_is_made() {
    change(
        |_, _| Ok(()),
        |client, _| {
            let row = |_: usize, rows: &mut [u8]| {
                rows.fill(7);
                Ok(())
            };
            // After this call, the client knows the run of storage.
            client.upsert(&[9], DIM, row, |_| true).unwrap();
            let before = client.traffic().received;
            let stops = |rows| {
                until(|| client.traffic().received > before);
                std::thread::sleep(Duration::from_millis(100));
                rows > 0
            };
            let done = client.upsert(&[1, 2, 3], DIM, row, stops).unwrap();
            assert_eq!(done.upserted, 3);
        },
    );
}

#[test]
fn a_change_that_is_stopped_before_it_began_is_never_made() {
    let says: Says = |gate, number| {
        if number == 0 {
            gate.pass();
        }
        Ok(())
    };
    let moody = Moody::new(says);
    let storage = StorageServer::start(moody.clone(), 4, Options::default()).unwrap();
    let behind = || remote(storage.address());
    let start = || ComputeServer::<Low>::start(remote("127.0.0.1:1"), behind(), options()).unwrap();
    let servers = [start(), start()];
    let [one, other] = [0, 1].map(|at: usize| {
        let place = vec![remote(servers[at].address())];
        Client::connect(place, patient()).unwrap()
    });
    std::thread::scope(|scope| {
        // The gate opens even if the test fails, because the scope waits for the other thread.
        let _opens = Opens(&moody.gate);
        let slow = scope.spawn(|| one.delete(&[1], |_| true).unwrap());
        moody.begins();
        let stopped = settled(|| other.delete(&[2], within(400)).unwrap_err());
        assert_eq!((counts(&stopped), stopped.yet), ([0, 0, 1], false));
        assert!(
            stopped.to_string().ends_with("nothing was changed"),
            "{stopped}"
        );
        assert!(
            !slow.is_finished(),
            "the change ended although the gate is closed"
        );
        moody.gate.open();
        slow.join().unwrap();
    });
    one.delete(&[3], |_| true).unwrap();
    other.delete(&[4], |_| true).unwrap();
    assert_eq!(moody.asked(), 3, "the delete of id 2 was made");
}

struct Untidy(AtomicUsize);

impl Ranker for Untidy {
    fn collection(&self) -> Collection {
        HighHalf::collection(&*world())
    }

    fn collection_of(&self, state: u64) -> Option<Collection> {
        Some(self.collection()).filter(|own| own.state == state)
    }

    fn rank(
        &self,
        _: (u64, &[u8]),
        _: &[u32],
        _: usize,
        _: Wanted,
        _: Told,
    ) -> Result<(), HalfError> {
        Err(HalfError("nothing is ranked here".to_owned()))
    }

    fn tidy(&self, _: Option<u64>) {
        self.0.fetch_add(1, Ordering::SeqCst);
        panic!("on purpose, in a test");
    }

    fn change(&self, upserts: (&[u64], &[u8]), _: &[u64]) -> Result<Changed, NotChanged> {
        Ok(Changed {
            upserted: upserts.0.len() as u32,
            deleted: 0,
        })
    }
}

#[test]
fn changes_go_on_where_tidying_panics() {
    let untidy = Arc::new(Untidy(AtomicUsize::new(0)));
    let storage = StorageServer::start(untidy.clone(), 4, Options::default()).unwrap();
    let behind = remote(storage.address());
    let server = ComputeServer::<Low>::start(remote("127.0.0.1:1"), behind, options()).unwrap();
    let began = Instant::now();
    while untidy.0.load(Ordering::SeqCst) < 2 {
        assert!(
            began.elapsed() < PATIENCE,
            "storage does not try to drop states again"
        );
        std::thread::sleep(Duration::from_millis(10));
    }
    let place = vec![remote(server.address())];
    let client = Client::connect(place, patient()).unwrap();
    assert_eq!(upsert(&client).unwrap().upserted as usize, ALL);
}

#[test]
fn clients_hear_whether_storage_takes_changes_also_where_they_are_to_search() {
    let memory = MemoryServer::start(world(), MemoryOptions::default(), true, Options::default());
    let memory = memory.unwrap();
    let moody = Moody::new(|_, _| Ok(()));
    let takes = StorageServer::start(moody, 4, Options::default()).unwrap();
    let none = StorageServer::start(Arc::new(Full(world())), 4, Options::default()).unwrap();
    for (storage, changes) in [(takes.address(), true), (none.address(), false)] {
        let (memory, storage) = (remote(memory.address()), remote(storage));
        let server = ComputeServer::<Low>::start(memory, storage, options()).unwrap();
        let place = vec![remote(server.address())];
        let client = Client::connect(place, patient()).unwrap();
        let told = client.changeable_while(|| true).unwrap().unwrap();
        assert_eq!(
            (told.changes, client.collection().unwrap().changes),
            (changes, changes)
        );
        let began = Instant::now();
        let told = loop {
            let told = server.readiness().lines.concat();
            if told.matches(", state ").count() == 2 || began.elapsed() > PATIENCE {
                break told;
            }
            std::thread::sleep(Duration::from_millis(10));
        };
        assert_eq!(told.contains("takes changes"), changes, "{told}");
    }
}

#[test]
fn changes_need_no_memory_server() {
    let moody = Moody::new(|_, _| Ok(()));
    let storage = StorageServer::start(moody, 4, Options::default()).unwrap();
    let nowhere = || remote("127.0.0.1:1");
    let start = || {
        let behind = remote(storage.address());
        ComputeServer::<Low>::start(nowhere(), behind, options()).unwrap()
    };
    let [one, other] = [(); 2].map(|()| start());
    for servers in [vec![&one], vec![&one, &other]] {
        let places = servers.iter().map(|server| remote(server.address()));
        let client = Client::connect(places.collect(), patient()).unwrap();
        let told = client.changeable_while(|| true).unwrap();
        assert_eq!(told.unwrap(), changing());
        assert_eq!(upsert(&client).unwrap().upserted as usize, ALL);
    }
    let behind = storage.address();
    drop(storage);
    let client = Client::connect(vec![remote(one.address())], patient()).unwrap();
    let hurried = client.within(Duration::from_millis(700));
    let name = format!("the storage server at {behind}");
    until(|| {
        let told = hurried.changeable_while(|| true).unwrap();
        told.is_err_and(|error| error.to_string().contains(&name))
    });
}
