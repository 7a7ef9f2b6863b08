//! Random calls of one or three threads of this process, compared with a model: the set of possible
//! states of each id.
//!
//! ```text
//!   round    open ─> threads: insert, upsert, delete, search, compact, flush, open for reading
//!                    (an operation may fail)
//!                 └> at some time: a copy of the disk, as a killed process or a crash leaves it
//!            end: the index is closed, or the copy replaces it
//!   after    opened again: the index has the first calls of each thread, at least the calls
//!            that were durable; each id of the next call has its old or its new state
//! ```
//!
//! `tests/trials` makes the same calls, and kills processes. `STRATANN_SEED=n` runs the trial of
//! one seed again.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use stratann_tier::testing::{Crash, Mishap, Operation, SimVolume};
use stratann_tier::{Directory, Volume};
use stratann_vector::Element;

use super::tests::{CASES, Case};
use super::*;
use crate::build::{BuildOptions, build, build_rows};
use crate::data::Matrix;
use crate::index::Index;
use crate::progress::Silent;
use crate::slow::slow;
use crate::stores::roles::tests::four_disks;
use crate::verify::verify_in;
use crate::{DirectOptions, Durability, WriteOptions};
use crate::{Error, OpenOptions, Order, SearchOptions};

#[path = "../../tests/trials/script.rs"]
mod script;

use self::script::{Call, Caller, DIM, Random, Versions, each_seed, first, vector};

/// Each round opens the index, changes it, and closes it or replaces it by a copy.
const ROUNDS: u64 = 4;
const CALLS: u64 = 14;

fn rows(of: &[(u64, u64)]) -> Matrix {
    let bytes = of.iter().flat_map(|&(id, version)| vector(id, version));
    Matrix::new(bytes.collect(), of.len(), DIM, Element::U8).unwrap()
}

fn base(case: Case, place: &On, folder: &Path) {
    let mut options = BuildOptions {
        degree: Some(8),
        build_list: 16,
        code_bytes: Some(4),
        navigation: 0.0,
        threads: 1,
        layout: Some(case.0),
        ..BuildOptions::default()
    };
    if case.keeps() {
        options.order = Some(Order::Input);
        options.chunk_bytes = 4096;
        options.segment_bytes = 4096;
    }
    let options = options.in_any_layout();
    let of: Vec<_> = first().into_iter().collect();
    match place {
        On::Simulated(volume) => build_rows(volume, &rows(&of), &options, folder),
        On::Real => drop(build(&rows(&of), folder, &options, &Silent).unwrap()),
    };
}

enum On {
    Simulated(SimVolume),
    Real,
}

struct Event {
    changes: Vec<(u64, Option<u64>)>,
    /// Whether the call has succeeded. If not, each id may have its earlier or its new state.
    done: bool,
}

struct Thread {
    caller: Caller,
    before: Versions,
    events: Vec<Event>,
    /// The number of durable events. They are the first events of the thread.
    durable: usize,
}

impl Thread {
    fn may(&self, id: u64, events: usize) -> BTreeSet<Option<u64>> {
        let mut may = BTreeSet::new();
        for event in self.events[..events].iter().rev() {
            if let Some(&(_, version)) = event.changes.iter().find(|change| change.0 == id) {
                may.insert(version);
                if event.done {
                    return may;
                }
            }
        }
        may.insert(self.before.get(&id).copied());
        may
    }

    fn all(&self) -> Vec<(u64, BTreeSet<u64>)> {
        let mut all: Vec<(u64, BTreeSet<u64>)> = Vec::new();
        let changed = self.events.iter().flat_map(|event| &event.changes);
        let before = self
            .before
            .iter()
            .map(|(&id, &version)| (id, Some(version)));
        for (id, version) in before.chain(changed.copied()) {
            match all.iter_mut().find(|known| known.0 == id) {
                Some(known) => known.1.extend(version),
                None => all.push((id, version.into_iter().collect())),
            }
        }
        all
    }

    /// Whether the found states can result from the first n events and a part of the next event,
    /// for any n from `least` to `most`.
    fn explains(&self, found: &Versions, least: usize, most: usize) -> bool {
        let all = self.all();
        (least..=most).any(|part| {
            all.iter().all(|(id, _)| {
                let is = found.get(id).copied();
                let half = self.events[..most].get(part);
                let half = half.and_then(|event| event.changes.iter().find(|c| c.0 == *id));
                self.may(*id, part).contains(&is) || half.is_some_and(|half| half.1 == is)
            })
        })
    }

    fn begin_again(&mut self, found: &Versions) {
        let all: Vec<u64> = self.all().into_iter().map(|(id, _)| id).collect();
        let own = |id: &u64| Some((*id, *found.get(id)?));
        self.before = all.iter().filter_map(own).collect();
        self.caller.versions = self.before.clone();
        self.events.clear();
        self.durable = 0;
    }
}

/// A copy of the disk. For each thread: the number of events that must be in the copy, and the
/// number of events that may be in the copy.
struct Copied {
    volume: SimVolume,
    parts: Vec<(usize, usize)>,
    what: String,
}

struct Trial<'a> {
    case: Case,
    folder: &'a Path,
    place: On,
    threads: Vec<Mutex<Thread>>,
    /// Whether the test lets an operation fail in this round.
    hurt: AtomicBool,
    name: String,
}

impl Trial<'_> {
    fn volume(&self) -> Arc<dyn Volume> {
        match &self.place {
            On::Simulated(volume) => Arc::new(volume.clone()),
            On::Real => Arc::new(Directory::open(self.folder).unwrap()),
        }
    }

    fn open(&self, random: &mut Random) -> (LiveIndex, Durability) {
        let durability = match random.below(3) {
            0 => Durability::Always,
            1 => Durability::Every(Duration::from_millis(random.below(5))),
            _ => Durability::OnFlush,
        };
        let options = WriteOptions {
            durability,
            threads: 1 + random.below(2) as usize,
            update: Some(self.case.1),
            direct: DirectOptions {
                pending: 200 + random.below(1_000),
                write_home: random.below(2) == 0,
                checkpoint: Some(3 + random.below(30)),
                ..DirectOptions::default()
            },
        };
        let mut tries = 0;
        loop {
            let opened = LiveIndex::open_in(
                self.volume(),
                self.folder,
                &OpenOptions::default(),
                &options,
            );
            match opened {
                Ok(live) => return (live, durability),
                Err(error) => assert!(
                    self.hurt.load(Ordering::Relaxed) && tries < 2,
                    "{}: cannot be opened: {error}",
                    self.name
                ),
            }
            tries += 1;
        }
    }

    /// `of` has the possible versions of each id.
    fn versions(&self, live: &LiveIndex, of: &[(u64, BTreeSet<u64>)]) -> Result<Versions, Error> {
        let options = SearchOptions {
            k: 2,
            list: 300,
            threads: 1,
            exact: true,
            ..SearchOptions::default()
        };
        let mut versions = Versions::new();
        for (id, may) in of {
            let asked: Vec<_> = may.iter().map(|&version| (*id, version)).collect();
            let mut is = None;
            if !asked.is_empty() {
                let results = live.search(&rows(&asked), &options)?;
                for (at, &(id, version)) in asked.iter().enumerate() {
                    if results.distances[2 * at] == 0.0 {
                        let said = format!("{}: id {id}, version {version}", self.name);
                        assert_eq!(results.ids[2 * at], id, "{said}: of another id");
                        assert!(is.is_none(), "{said}: and {is:?}");
                        is = Some(version);
                    }
                }
            }
            let said = format!("{}: id {id}, of {may:?}, is {is:?}", self.name);
            assert_eq!(live.contains(*id)?, is.is_some(), "{said}");
            versions.extend(is.map(|version| (*id, version)));
        }
        Ok(versions)
    }

    fn call(&self, live: &LiveIndex, thread: &Mutex<Thread>, durability: Durability) -> bool {
        let call = {
            let mut thread = thread.lock();
            let call = thread.caller.call();
            let changes = call.changes();
            thread.events.push(Event {
                changes,
                done: false,
            });
            call
        };
        // A flush makes all earlier calls durable.
        let so_far: Vec<usize> = self
            .threads
            .iter()
            .map(|thread| done(&thread.lock()))
            .collect();
        let ids = |of: &[(u64, u64)]| of.iter().map(|&(id, _)| id).collect::<Vec<_>>();
        let made = match &call {
            Call::Insert(of) => live.insert(&rows(of), Some(&ids(of)), &Silent).map(drop),
            Call::Upsert(of) => live.upsert(&rows(of), &ids(of), &Silent),
            Call::Delete(ids) => live.delete(ids),
            Call::Flush => live.flush(),
            Call::Compact => live.compact(&Silent).map(drop),
            Call::Read => self.read(),
        };
        let changed: BTreeSet<u64> = call.changes().into_iter().map(|(id, _)| id).collect();
        let mut own = thread.lock();
        let last = own.events.len() - 1;
        own.events[last].done = made.is_ok();
        match &made {
            Ok(()) if durability == Durability::Always => {
                own.durable = last + 1;
            }
            Err(error) => {
                let hurt = self.hurt.load(Ordering::Relaxed);
                assert!(hurt, "{}: {call:?}: {error}", self.name);
            }
            Ok(()) => {}
        }
        let all = own.all();
        drop(own);
        if made.is_ok() && matches!(call, Call::Flush) {
            for (thread, done) in self.threads.iter().zip(so_far) {
                let mut thread = thread.lock();
                thread.durable = thread.durable.max(done);
            }
        }
        // If the call failed, the search shows which of its changes were made.
        let of: Vec<_> = all
            .into_iter()
            .filter(|(id, _)| changed.contains(id))
            .collect();
        let Ok(found) = self.versions(live, &of) else {
            assert!(self.hurt.load(Ordering::Relaxed), "{}: search", self.name);
            return false;
        };
        let mut own = thread.lock();
        for id in changed {
            let (is, may) = (found.get(&id).copied(), own.may(id, own.events.len()));
            let said = format!("{}: {call:?}: id {id} is {is:?}, not {may:?}", self.name);
            assert!(may.contains(&is), "{said}");
            match is {
                Some(version) => own.caller.versions.insert(id, version),
                None => own.caller.versions.remove(&id),
            };
        }
        made.is_ok()
    }

    fn read(&self) -> Result<(), Error> {
        match &self.place {
            On::Real => Index::open(self.folder, &OpenOptions::default()).map(drop),
            On::Simulated(volume) => {
                let volume = Arc::new(volume.clone());
                // If a commit runs at the same time, this open may fail. Only the open of a
                // directory is repeated in this case.
                let opened = Index::open_in(volume, self.folder, &OpenOptions::default());
                drop(opened.and_then(Index::with_log));
                Ok(())
            }
        }
    }

    fn copied(&self, volume: &SimVolume, random: &mut Random) -> Copied {
        let least = self.threads.iter().map(|thread| {
            let thread = thread.lock();
            (thread.durable, done(&thread))
        });
        let least: Vec<_> = least.collect();
        let killed = random.below(3) == 0;
        let (image, what) = match killed {
            true => (volume.fork(), "killed".to_owned()),
            false => {
                let (seed, mode) = (random.next(), Crash::ALL[random.below(3) as usize]);
                (volume.crash_image(seed, mode), format!("crashed, {mode:?}"))
            }
        };
        let ends = self.threads.iter().map(|thread| thread.lock().events.len());
        let parts = least.into_iter().zip(ends).map(|((durable, done), end)| {
            // Calls that returned before a kill of the process survive the kill.
            (if killed { done } else { durable }, end)
        });
        Copied {
            parts: parts.collect(),
            volume: image,
            what,
        }
    }

    fn work(
        &self,
        live: &LiveIndex,
        durability: Durability,
        random: &mut Random,
    ) -> Option<Copied> {
        let calls = AtomicU64::new(0);
        let all = CALLS * self.threads.len() as u64;
        let copy_at = random.below(2 * all);
        let hurt_at = random.below(3 * all);
        let copied = Mutex::new(None);
        let beside = Mutex::new(Random::new(random.next()));
        std::thread::scope(|scope| {
            for thread in &self.threads {
                scope.spawn(|| {
                    for _ in 0..CALLS {
                        self.call(live, thread, durability);
                        let at = calls.fetch_add(1, Ordering::Relaxed);
                        if let On::Simulated(volume) = &self.place {
                            let mut random = beside.lock();
                            if at == hurt_at {
                                self.hurt(volume, &mut random);
                            }
                            if at == copy_at {
                                *copied.lock() = Some(self.copied(volume, &mut random));
                            }
                        }
                    }
                });
            }
        });
        copied.into_inner()
    }

    fn hurt(&self, volume: &SimVolume, random: &mut Random) {
        const KINDS: [Operation; 7] = [
            Operation::Sync,
            Operation::Sync,
            Operation::SyncNames,
            Operation::Write,
            Operation::Create,
            Operation::Rename,
            Operation::Remove,
        ];
        self.hurt.store(true, Ordering::Relaxed);
        let kind = KINDS[random.below(KINDS.len() as u64) as usize];
        let mishap = Mishap::ALL[random.below(3) as usize];
        volume.fail_nth(kind, random.below(6), mishap);
    }

    fn check(&mut self, live: &LiveIndex, parts: &[(usize, usize)]) {
        let mut len = 0;
        for (number, &(least, most)) in parts.iter().enumerate() {
            let all = self.threads[number].lock().all();
            let found = self.versions(live, &all).unwrap();
            len += found.len();
            let mut thread = self.threads[number].lock();
            let events: Vec<_> = thread.events.iter().map(|e| (e.done, &e.changes)).collect();
            assert!(
                thread.explains(&found, least, most),
                "{}: thread {number}, events {least}..{most} of {events:?} after {:?} make {found:?}",
                self.name,
                thread.before
            );
            thread.begin_again(&found);
        }
        assert_eq!(live.len(), len, "{}", self.name);
    }
}

fn done(thread: &Thread) -> usize {
    // The last event may be a running call.
    match thread.events.last() {
        Some(last) if !last.done => thread.events.len() - 1,
        _ => thread.events.len(),
    }
}

fn trial(seed: u64) {
    let mut random = Random::new(seed);
    let case = CASES[random.below(CASES.len() as u64) as usize];
    let folder = tempfile::tempdir().unwrap();
    let volume = match seed % 3 {
        0 => four_disks(),
        _ => SimVolume::new(),
    };
    volume.discard_failed_syncs(true, random.below(2) == 0);
    let place = match random.below(4) {
        0 => On::Real,
        _ => On::Simulated(volume),
    };
    base(case, &place, folder.path());
    let count = [1, 3][random.below(2) as usize];
    let versions = first();
    let threads = (0..count).map(|number| {
        let caller = Caller::new(seed, number, count, &versions);
        Mutex::new(Thread {
            before: caller.versions.clone(),
            caller,
            events: Vec::new(),
            durable: 0,
        })
    });
    let mut trial = Trial {
        case,
        folder: folder.path(),
        place,
        threads: threads.collect(),
        hurt: AtomicBool::new(false),
        name: String::new(),
    };
    for round in 0..ROUNDS {
        trial.name = format!("seed {seed}, {case:?}, {count} threads, round {round}");
        let (live, durability) = trial.open(&mut random);
        let copied = trial.work(&live, durability, &mut random);
        let parts = match copied {
            Some(copied) => {
                // The copy shows the disk after a crash of the machine, so the process ends as
                // well.
                drop(live);
                trial.name = format!("{}, {}", trial.name, copied.what);
                trial.place = On::Simulated(copied.volume);
                copied.parts
            }
            None => {
                drop(live);
                let parts = trial.threads.iter().map(|thread| {
                    let end = thread.lock().events.len();
                    (end, end)
                });
                trial.name = format!("{}, closed", trial.name);
                parts.collect()
            }
        };
        if let On::Simulated(volume) = &trial.place {
            let _ = volume.failed();
        }
        trial.hurt.store(false, Ordering::Relaxed);
        let (live, _) = trial.open(&mut random);
        trial.check(&live, &parts);
        drop(live);
        let report = verify_in(&*trial.volume(), &Silent).unwrap();
        assert!(report.clean(), "{}: {:?}", trial.name, report.problems);
    }
}

#[test]
fn random_calls_do_what_the_model_says() {
    let slow = slow();
    each_seed(0..if slow { 600 } else { 12 }, trial);
}
