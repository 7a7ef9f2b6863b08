//! Tests that a replay finds all acknowledged records, without gaps, after a crash at any
//! operation.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread;

use stratann_layout::log::FIRST_RECORD;
use stratann_tier::testing::{Crash, Failure, SimVolume};
use stratann_tier::{Directory, LockGuard, Tier, VolumeFile, VolumeReader};
use stratann_vector::Element;

use super::replay::Replayed;
use super::*;

const HOUR: Durability = Durability::Every(Duration::from_secs(3600));
const ALL: [Durability; 3] = [Durability::Always, HOUR, Durability::OnFlush];
const ORIGIN: LogPosition = LogPosition {
    number: 1,
    sequence: 0,
};

fn shape() -> LogShape {
    LogShape::new(Element::U8, 600).unwrap()
}

const WITH_ROWS: u64 = 1_000_000;
const ROW: &[u8] = b"what a vector has beside it";

fn vector(id: u64) -> Option<Vec<u8>> {
    (id % 4 != 3).then(|| {
        (0..600)
            .map(|at| (id.wrapping_mul(31) + at * 7) as u8)
            .collect()
    })
}

fn record(id: u64, vector: &Option<Vec<u8>>) -> LogRecord<'_> {
    match vector {
        Some(vector) => LogRecord::Insert {
            id,
            vector,
            row: (id >= WITH_ROWS).then_some(ROW),
        },
        None => LogRecord::Delete { id },
    }
}

fn append(log: &Log, id: u64) -> Result<u64, Error> {
    log.append(record(id, &vector(id)))
}

fn start(volume: &SimVolume, at: LogPosition, durability: Durability) -> Result<Log, Error> {
    start_next(volume, &NextLog::fresh(at.number, at.sequence), durability)
}

fn start_next(volume: &SimVolume, next: &NextLog, durability: Durability) -> Result<Log, Error> {
    Log::start(Arc::new(volume.clone()), shape(), next, durability)
}

fn found(volume: &dyn Volume, from: LogPosition) -> Result<(Vec<u64>, Replayed), Error> {
    let mut ids = Vec::new();
    let replayed = replay(volume, shape(), from, &mut |sequence, found| {
        assert_eq!(sequence, from.sequence + ids.len() as u64, "no gap");
        let id = found.id();
        assert_eq!(found, record(id, &vector(id)));
        ids.push(id);
        Ok(())
    })?;
    assert_eq!(replayed.records, ids.len() as u64);
    assert_eq!(replayed.next.sequence, from.sequence + replayed.records);
    Ok((ids, replayed))
}

fn ids(volume: &dyn Volume) -> Vec<u64> {
    found(volume, ORIGIN).unwrap().0
}

#[derive(Clone)]
struct World {
    records: Vec<u64>,
    /// The number of these records that a replay must find.
    durable: usize,
    /// No id is used twice, so that stale records differ from expected records.
    next_id: u64,
    from: LogPosition,
}

impl World {
    fn new() -> World {
        World {
            records: Vec::new(),
            durable: 0,
            next_id: 0,
            from: ORIGIN,
        }
    }

    fn check(&self, volume: &SimVolume, what: &str) -> Result<Replayed, Error> {
        let outcome = found(volume, self.from);
        if let Err(Error::Tier(TierError::Crashed { .. })) = &outcome {
            return Err(outcome.unwrap_err());
        }
        let (found, replayed) = outcome.unwrap_or_else(|error| panic!("{what}: {error}"));
        let skipped = self.from.sequence as usize;
        let whole = skipped + found.len();
        assert!(
            whole >= self.durable,
            "{what}: {whole} records were found, and {} were acknowledged",
            self.durable
        );
        assert_eq!(found, self.records[skipped..whole], "{what}");
        Ok(replayed)
    }

    fn add(&mut self, count: u64) -> Vec<(u64, Option<Vec<u8>>)> {
        let new = self.next_id..self.next_id + count;
        self.next_id += count;
        self.records.extend(new.clone());
        new.map(|id| (id, vector(id))).collect()
    }
}

#[derive(Clone, Copy)]
enum Step {
    Append(u64),
    Flush,
    Rotate,
    /// Rotates the log, makes replays begin at the new log, and removes the earlier logs.
    Checkpoint,
    /// The process ends, and another process opens the index. The machine continues.
    Restart,
}

const STEPS: &[Step] = &[
    Step::Append(1),
    Step::Append(1),
    Step::Append(9),
    Step::Flush,
    Step::Append(2),
    Step::Rotate,
    Step::Append(3),
    Step::Append(1),
    Step::Restart,
    Step::Append(1),
    Step::Restart,
    Step::Restart,
    Step::Append(12),
    Step::Checkpoint,
    Step::Append(1),
    Step::Rotate,
    Step::Append(1),
    Step::Flush,
    Step::Append(2),
];
const LATER: &[Step] = &[
    Step::Append(2),
    Step::Rotate,
    Step::Append(1),
    Step::Restart,
    Step::Append(1),
];

fn work(
    volume: &SimVolume,
    durability: Durability,
    world: &mut World,
    steps: &[Step],
) -> Result<(), Error> {
    let open = |world: &mut World| {
        let replayed = world.check(volume, "on opening")?;
        world.records.truncate(replayed.next.sequence as usize);
        let log = start_next(volume, &replayed.next, durability)?;
        world.durable = world.records.len();
        Ok::<_, Error>(log)
    };
    let mut log = open(world)?;
    for step in steps {
        match step {
            Step::Append(count) => {
                let new = world.add(*count);
                let records: Vec<_> = new.iter().map(|(id, vector)| record(*id, vector)).collect();
                let sequences = log.append_all(&records)?;
                assert_eq!(sequences.end, world.records.len() as u64);
                assert_eq!(sequences.end - sequences.start, *count);
                if durability == Durability::Always {
                    world.durable = world.records.len();
                }
            }
            Step::Flush => {
                log.flush()?;
                world.durable = world.records.len();
            }
            Step::Rotate => {
                let number = log.number();
                let at = log.rotate()?;
                assert_eq!((at.number, log.number()), (number + 1, number + 1));
                assert_eq!(
                    log.bytes(),
                    FIRST_RECORD,
                    "the new log repeats records of the old one"
                );
                assert_eq!(at.sequence, world.records.len() as u64);
                world.durable = world.records.len();
            }
            Step::Checkpoint => {
                world.from = log.rotate()?;
                world.durable = world.records.len();
                remove_logs_before(volume, world.from.number)?;
            }
            Step::Restart => {
                drop(log);
                log = open(world)?;
            }
        }
        assert_eq!(log.next_sequence(), world.records.len() as u64);
    }
    Ok(())
}

fn crash_everywhere(
    before: &SimVolume,
    world: &World,
    durability: Durability,
    steps: &[Step],
    then: &mut dyn FnMut(&SimVolume, &World, u64),
) {
    let whole = before.fork();
    let begin = whole.operations();
    work(&whole, durability, &mut world.clone(), steps).unwrap();
    for at in 0..whole.operations() - begin {
        let (volume, mut world) = (before.fork(), world.clone());
        volume.fail_after(at, Failure::Crash);
        // The work may report no error, since a drop of the log does not report a failed sync.
        let _ = work(&volume, durability, &mut world, steps);
        assert!(volume.has_crashed());
        for seed in 0..4 {
            for mode in Crash::ALL {
                let image = volume.crash_image(seed, mode);
                let what = format!("{durability:?}, operation {at}, {mode:?}, seed {seed}");
                world.check(&image, &what).unwrap();
                then(&image, &world, seed);
            }
        }
    }
}

#[test]
fn a_crash_at_any_operation_loses_nothing_that_was_acknowledged() {
    for durability in ALL {
        let (mut torn, mut turn) = (0, 0);
        let fresh = SimVolume::new();
        crash_everywhere(
            &fresh,
            &World::new(),
            durability,
            STEPS,
            &mut |image, world, seed| {
                torn += usize::from(found(image, world.from).unwrap().1.torn.is_some());
                // To save time, only every fifth image crashes a second time, while the log is
                // continued.
                turn += 1;
                if seed == 0 && turn % 5 == 0 {
                    crash_everywhere(image, world, durability, LATER, &mut |_, _, _| {});
                }
            },
        );
        assert!(torn > 20, "{durability:?}: only {torn} torn logs");
    }
}

#[test]
fn a_crash_where_the_first_row_comes_loses_nothing_that_was_acknowledged() {
    for durability in ALL {
        let mut rows = 0;
        let world = World {
            next_id: WITH_ROWS - 4,
            ..World::new()
        };
        let volume = SimVolume::new();
        crash_everywhere(
            &volume,
            &world,
            durability,
            STEPS,
            &mut |image, world, _| {
                rows += usize::from(found(image, world.from).unwrap().0.last() > Some(&WITH_ROWS));
            },
        );
        assert!(rows > 20, "{durability:?}: rows were found {rows} times");
    }
}

fn versions(volume: &SimVolume) -> Vec<u32> {
    let version = |number| {
        let mut four = [0; 4];
        volume.read_at(&log_name(number), 12, &mut four).unwrap();
        u32::from_le_bytes(four)
    };
    let numbers = numbers_in(volume).unwrap();
    numbers.into_iter().map(version).collect()
}

#[test]
fn a_log_is_one_that_earlier_readers_know_until_a_row_comes() {
    let volume = SimVolume::new();
    let log = start(&volume, ORIGIN, Durability::OnFlush).unwrap();
    append(&log, 1).unwrap();
    assert_eq!(versions(&volume), [2]);
    append(&log, WITH_ROWS).unwrap();
    append(&log, WITH_ROWS + 1).unwrap();
    append(&log, 2).unwrap();
    assert_eq!(versions(&volume), [2, 3]);
    let (found, replayed) = found(&volume, ORIGIN).unwrap();
    assert_eq!(found, [1, WITH_ROWS, WITH_ROWS + 1, 2]);
    drop(log);
    let log = start_next(&volume, &replayed.next, Durability::Always).unwrap();
    append(&log, 4).unwrap();
    assert_eq!(versions(&volume), [2, 3]);
    log.rotate().unwrap();
    append(&log, 5).unwrap();
    assert_eq!(versions(&volume), [2, 3, 2]);
    append(&log, WITH_ROWS + 4).unwrap();
    assert_eq!(versions(&volume), [2, 3, 2, 3]);
    assert_eq!(ids(&volume).len(), 7);
    volume.fail_after(1, Failure::Io);
    append(&log, WITH_ROWS + 5).unwrap_err();
    volume.heal();
    log.rotate().unwrap();
    append(&log, 6).unwrap();
    assert_eq!(ids(&volume).len(), 8);
    for fails in [false, true] {
        let volume = SimVolume::new();
        let log = start(&volume, ORIGIN, Durability::Always).unwrap();
        if fails {
            for at in 0.. {
                volume.fail_after(at, Failure::Io);
                let failed = append(&log, WITH_ROWS).is_err();
                volume.heal();
                if log.is_broken() {
                    log.rotate().unwrap();
                }
                if !failed {
                    break;
                }
                assert!(ids(&volume).is_empty(), "operation {at}");
            }
        } else {
            append(&log, WITH_ROWS).unwrap();
            assert_eq!(versions(&volume), [3]);
        }
        append(&log, WITH_ROWS + 1).unwrap();
        assert_eq!(ids(&volume), [WITH_ROWS, WITH_ROWS + 1]);
        assert_eq!(ids(&volume.crash_image(1, Crash::ALL[0])).len(), 2);
    }
}

#[test]
fn a_budget_bounds_what_is_kept_until_it_is_synced() {
    let volume = SimVolume::new();
    let log = start(&volume, ORIGIN, Durability::OnFlush).unwrap();
    log.keep_within(64 << 10);
    for id in (0..400).step_by(4) {
        append(&log, id).unwrap();
        let state = log.shared.state.lock();
        assert!(state.unsynced.capacity() <= 4 << 10, "{id}");
    }
}

#[test]
fn a_crash_of_the_process_loses_nothing() {
    for durability in ALL {
        let volume = SimVolume::new();
        let log = start(&volume, ORIGIN, durability).unwrap();
        for id in 0..10 {
            append(&log, id).unwrap();
        }
        // A killed process syncs nothing.
        mem::forget(log);
        let (ids, replayed) = found(&volume, ORIGIN).unwrap();
        assert_eq!(ids, Vec::from_iter(0..10));
        let log = start_next(&volume, &replayed.next, Durability::Always).unwrap();
        append(&log, 10).unwrap();
        let image = volume.crash_image(0, Crash::Dropped);
        assert_eq!(self::ids(&image), Vec::from_iter(0..11));
    }
}

#[test]
fn what_fails_is_not_there_and_what_was_acknowledged_is() {
    for (durability, failure) in ALL
        .into_iter()
        .flat_map(|durability| [Failure::NoSpace, Failure::Io].map(|failure| (durability, failure)))
    {
        let (mut failed, mut broken) = (0, 0);
        for (at, long) in (0..40).flat_map(|at| (1..5).map(move |long| (at, long))) {
            let what = format!("{durability:?}, {failure:?} at operation {at}, for {long} steps");
            let volume = SimVolume::new();
            let log = start(&volume, ORIGIN, durability).unwrap();
            volume.fail_after(at, failure);
            let (mut kept, mut next, mut since) = (Vec::new(), 0, None);
            for step in 0..24 {
                let outcome = match step % 8 {
                    3 => log.flush(),
                    6 => log.rotate().map(drop),
                    _ => {
                        let count = if step % 8 == 4 { 9 } else { 1 };
                        let new: Vec<_> = (next..next + count).map(|id| (id, vector(id))).collect();
                        next += count;
                        let records: Vec<_> = new.iter().map(|(id, v)| record(*id, v)).collect();
                        let outcome = log.append_all(&records);
                        if let Ok(sequences) = &outcome {
                            assert_eq!(sequences.start, kept.len() as u64, "{what}");
                            kept.extend(next - count..next);
                        }
                        outcome.map(drop)
                    }
                };
                if let Err(error) = outcome {
                    failed += 1;
                    assert!(matches!(error, Error::Tier(_)), "{error}");
                    since.get_or_insert(step);
                }
                if since.is_some_and(|since| step + 1 >= since + long) {
                    volume.heal();
                    since = None;
                    if let Err(error) = log.flush() {
                        assert!(error.to_string().contains("takes no more records"));
                        broken += 1;
                        log.rotate().unwrap();
                    }
                }
            }
            volume.heal();
            if log.flush().is_err() {
                log.rotate().unwrap();
            }
            assert_eq!(ids(&volume), kept, "{what}");
            for seed in 0..3 {
                for mode in Crash::ALL {
                    assert_eq!(ids(&volume.crash_image(seed, mode)), kept, "{what}");
                }
            }
        }
        assert!(failed > 50, "{failed} failed");
        // Even a full disk has enough space to truncate a file.
        assert_eq!(broken > 20, failure == Failure::Io, "{broken} broken");
    }
}

#[test]
fn a_full_disk_fails_the_call_and_no_later_one() {
    let volume = SimVolume::new();
    let log = start(&volume, ORIGIN, Durability::Always).unwrap();
    append(&log, 0).unwrap();
    let before = volume.len("log-000001").unwrap();
    volume.fail_after(0, Failure::NoSpace);
    let error = append(&log, 1).unwrap_err().to_string();
    assert!(
        error.contains("log-000001") && error.contains("no space"),
        "{error}"
    );
    assert_eq!(
        volume.len("log-000001").unwrap(),
        before,
        "the torn bytes are cut off"
    );
    assert_eq!((log.next_sequence(), log.bytes()), (1, before));
    append(&log, 2).unwrap_err();
    volume.heal();
    assert_eq!(append(&log, 4).unwrap(), 1);
    assert_eq!(ids(&volume.crash_image(0, Crash::Dropped)), [0, 4]);
}

#[test]
fn after_a_failed_sync_the_file_takes_nothing_until_it_is_rotated() {
    for durability in [Durability::Always, Durability::OnFlush] {
        let volume = SimVolume::new();
        let log = start(&volume, ORIGIN, durability).unwrap();
        append(&log, 0).unwrap();
        volume.fail_after(1, Failure::Io);
        let outcome = append(&log, 1);
        assert_eq!(outcome.is_ok(), durability == Durability::OnFlush);
        log.flush().unwrap_err();
        volume.heal();
        for _ in 0..2 {
            let operations = volume.operations();
            for error in [append(&log, 2).unwrap_err(), log.flush().unwrap_err()] {
                let text = error.to_string();
                assert!(text.contains("log-000001: cannot append at byte"), "{text}");
                assert!(text.contains("takes no more records"), "{text}");
            }
            assert_eq!(
                volume.operations(),
                operations,
                "the log reads or writes the failed disk"
            );
        }
        let kept = if durability == Durability::Always {
            vec![0]
        } else {
            vec![0, 1]
        };
        for at in 0..=6 {
            volume.fail_after(at, Failure::Io);
            if log.rotate().is_err() {
                volume.heal();
                append(&log, 2).unwrap_err();
            }
            if log.number() > 1 {
                break;
            }
        }
        volume.heal();
        assert_eq!(log.number(), 2);
        assert_eq!(append(&log, 5).unwrap(), kept.len() as u64);
        log.flush().unwrap();
        for mode in Crash::ALL {
            let image = volume.crash_image(1, mode);
            assert_eq!(ids(&image), [&kept[..], &[5]].concat(), "{mode:?}");
        }
    }
}

#[derive(Clone, Debug)]
struct Slow {
    volume: SimVolume,
    pause: Duration,
    callers: Arc<AtomicUsize>,
    calling: Arc<AtomicUsize>,
    syncs: Arc<AtomicUsize>,
    longest_read: Arc<AtomicU64>,
}

impl Slow {
    fn new(pause: Duration) -> Slow {
        Slow {
            volume: SimVolume::new(),
            pause,
            callers: Arc::default(),
            calling: Arc::default(),
            syncs: Arc::default(),
            longest_read: Arc::default(),
        }
    }

    fn wrap(&self, file: Box<dyn VolumeFile>) -> Box<dyn VolumeFile> {
        Box::new(SlowFile {
            file,
            of: self.clone(),
        })
    }
}

impl Volume for Slow {
    fn name(&self) -> String {
        self.volume.name()
    }
    fn create(&self, name: &str) -> Result<Box<dyn VolumeFile>, TierError> {
        Ok(self.wrap(self.volume.create(name)?))
    }
    fn open(&self, name: &str) -> Result<Box<dyn VolumeFile>, TierError> {
        Ok(self.wrap(self.volume.open(name)?))
    }
    fn read(&self, _: &str) -> Result<Vec<u8>, TierError> {
        panic!("a whole log is read at once")
    }
    fn read_at(&self, name: &str, offset: u64, out: &mut [u8]) -> Result<(), TierError> {
        self.longest_read
            .fetch_max(out.len() as u64, Ordering::Relaxed);
        self.volume.read_at(name, offset, out)
    }
    fn open_reader(&self, name: &str) -> Result<Box<dyn VolumeReader>, TierError> {
        self.volume.open_reader(name)
    }
    fn len(&self, name: &str) -> Result<u64, TierError> {
        self.volume.len(name)
    }
    fn open_tier(&self, name: &str) -> Result<Arc<dyn Tier>, TierError> {
        self.volume.open_tier(name)
    }
    fn rename(&self, from: &str, to: &str) -> Result<(), TierError> {
        self.volume.rename(from, to)
    }
    fn remove(&self, name: &str) -> Result<(), TierError> {
        self.volume.remove(name)
    }
    fn list(&self) -> Result<Vec<String>, TierError> {
        self.volume.list()
    }
    fn sync(&self) -> Result<(), TierError> {
        Volume::sync(&self.volume)
    }
    fn lock(&self) -> Result<LockGuard, TierError> {
        self.volume.lock()
    }
}

#[derive(Debug)]
struct SlowFile {
    file: Box<dyn VolumeFile>,
    of: Slow,
}

impl VolumeFile for SlowFile {
    fn write_at(&mut self, offset: u64, bytes: &[u8]) -> Result<(), TierError> {
        self.file.write_at(offset, bytes)
    }
    fn len(&self) -> u64 {
        self.file.len()
    }
    fn set_len(&mut self, len: u64) -> Result<(), TierError> {
        self.file.set_len(len)
    }
    fn sync(&mut self) -> Result<(), TierError> {
        self.of.syncs.fetch_add(1, Ordering::Relaxed);
        thread::sleep(self.of.pause);
        let of = |count: &AtomicUsize| count.load(Ordering::SeqCst);
        wait_for("callers", || of(&self.of.calling) >= of(&self.of.callers));
        self.file.sync()
    }
}

#[test]
fn threads_share_syncs_and_the_order_is_that_of_the_file() {
    const THREADS: u64 = 8;
    const EACH: u64 = 60;
    // A sync lasts until all other threads have begun their next calls.
    let slow = Slow::new(Duration::from_millis(1));
    let log = Log::start(
        Arc::new(slow.clone()),
        shape(),
        &NextLog::fresh(1, 0),
        Durability::Always,
    )
    .unwrap();
    let before = slow.syncs.load(Ordering::Relaxed);
    slow.callers.store(THREADS as usize, Ordering::SeqCst);
    let by_sequence = Mutex::new(BTreeMap::new());
    thread::scope(|scope| {
        for thread in 0..THREADS {
            let (log, by_sequence, slow) = (&log, &by_sequence, &slow);
            scope.spawn(move || {
                for id in thread * 1000..thread * 1000 + EACH {
                    slow.calling.fetch_add(1, Ordering::SeqCst);
                    let sequence = append(log, id).unwrap();
                    slow.calling.fetch_sub(1, Ordering::SeqCst);
                    assert_eq!(by_sequence.lock().insert(sequence, id), None);
                }
                slow.callers.fetch_sub(1, Ordering::SeqCst);
            });
        }
    });
    let syncs = slow.syncs.load(Ordering::Relaxed) - before;
    let appends = (THREADS * EACH) as usize;
    assert!(syncs * 2 < appends, "{syncs} syncs for {appends} appends");
    let image = slow.volume.crash_image(0, Crash::Dropped);
    assert_eq!(
        ids(&image),
        Vec::from_iter(by_sequence.into_inner().into_values())
    );
}

#[test]
fn threads_append_while_the_disk_fills_up_breaks_and_the_log_rotates() {
    for durability in [
        Durability::Always,
        Durability::Every(Duration::from_micros(300)),
        Durability::OnFlush,
    ] {
        let slow = Slow::new(Duration::from_micros(50));
        let volume = &slow.volume;
        let log = Log::start(
            Arc::new(slow.clone()),
            shape(),
            &NextLog::fresh(1, 0),
            durability,
        )
        .unwrap();
        let (kept, stop) = (Mutex::new(BTreeMap::new()), AtomicBool::new(false));
        let failed = AtomicUsize::new(0);
        thread::scope(|scope| {
            let _stops = Stops(&stop);
            for thread in 0..4 {
                let (log, kept, stop, failed) = (&log, &kept, &stop, &failed);
                scope.spawn(move || {
                    for id in thread * 1_000_000.. {
                        if stop.load(Ordering::Relaxed) {
                            break;
                        }
                        match append(log, id) {
                            Ok(sequence) => {
                                assert_eq!(kept.lock().insert(sequence, id), None);
                            }
                            Err(_) => {
                                failed.fetch_add(1, Ordering::Relaxed);
                                thread::sleep(Duration::from_micros(50));
                            }
                        }
                    }
                });
            }
            for round in 0..40 {
                let before = kept.lock().len();
                wait_for("appends", || kept.lock().len() >= before + 5);
                let (failure, before) = (
                    [Failure::NoSpace, Failure::Io][round % 2],
                    failed.load(Ordering::Relaxed),
                );
                volume.fail_after(round as u64 % 5, failure);
                wait_for("a failure", || failed.load(Ordering::Relaxed) > before);
                let _ = log.flush();
                volume.heal();
                log.rotate().unwrap();
                log.flush().unwrap();
            }
        });
        assert!(failed.into_inner() >= 40);
        if log.flush().is_err() {
            log.rotate().unwrap();
        }
        let kept = Vec::from_iter(kept.into_inner().into_values());
        assert!(kept.len() >= 200, "{}", kept.len());
        assert_eq!(ids(volume), kept, "{durability:?}");
        assert_eq!(
            ids(&volume.crash_image(0, Crash::Dropped)),
            kept,
            "{durability:?}"
        );
    }
}

struct Stops<'a>(&'a AtomicBool);

impl Drop for Stops<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn wait_for(what: &str, done: impl Fn() -> bool) {
    for _ in 0..60_000 {
        if done() {
            return;
        }
        thread::sleep(Duration::from_millis(1));
    }
    panic!("{what}: not within a minute");
}

#[test]
fn an_append_is_durable_in_time_without_a_flush() {
    let volume = SimVolume::new();
    let soon = Durability::Every(Duration::from_millis(10));
    let log = start(&volume, ORIGIN, soon).unwrap();
    for id in 0..3 {
        append(&log, id).unwrap();
        let expected = Vec::from_iter(0..=id);
        wait_for("a sync", || {
            ids(&volume.crash_image(0, Crash::Dropped)) == expected
        });
    }
    volume.fail_after(1, Failure::Io);
    append(&log, 3).unwrap();
    wait_for("a failed sync", || log.shared.state.lock().broken.is_some());
    volume.heal();
    // If this thread is late, the log rotates itself after one second.
    let mut expected = vec![0, 1, 2, 3];
    for _ in 0..2 {
        if append(&log, 4 + expected.len() as u64).is_ok() {
            assert!(log.number() > 1, "the log appends to a broken file");
            expected.push(4 + expected.len() as u64);
        }
    }
    assert!(log.flush().is_err() || log.number() > 1);
    log.rotate().unwrap();
    assert_eq!(append(&log, 5).unwrap(), expected.len() as u64);
    expected.push(5);
    drop(log);
    assert_eq!(ids(&volume.crash_image(0, Crash::Dropped)), expected);
}

#[test]
fn what_a_sync_in_time_failed_to_keep_is_durable_later_though_nobody_calls() {
    let volume = SimVolume::new();
    volume.discard_failed_syncs(true, true);
    let soon = Durability::Every(Duration::from_millis(10));
    let log = start(&volume, ORIGIN, soon).unwrap();
    volume.fail_after(1, Failure::Io);
    append(&log, 0).unwrap();
    wait_for("a failed sync", || log.is_broken());
    volume.heal();
    wait_for("a rotation", || {
        ids(&volume.crash_image(0, Crash::Dropped)) == [0]
    });
    wait_for("a rotation of the log", || !log.is_broken());
    assert_eq!(append(&log, 1).unwrap(), 1);
}

#[test]
fn on_flush_syncs_on_flush_only_and_the_log_ends_its_thread() {
    let slow = Slow::new(Duration::ZERO);
    let log = Log::start(
        Arc::new(slow.clone()),
        shape(),
        &NextLog::fresh(1, 0),
        Durability::OnFlush,
    )
    .unwrap();
    let syncs = || slow.syncs.load(Ordering::Relaxed);
    let before = syncs();
    for id in 0..50 {
        append(&log, id).unwrap();
    }
    assert_eq!(syncs(), before);
    assert!(ids(&slow.volume.crash_image(0, Crash::Dropped)).is_empty());
    log.flush().unwrap();
    log.flush().unwrap();
    assert_eq!(syncs(), before + 1);
    assert_eq!(ids(&slow.volume.crash_image(0, Crash::Dropped)).len(), 50);
    drop(log);

    let log = Log::start(
        Arc::new(slow.clone()),
        shape(),
        &NextLog::fresh(2, 50),
        HOUR,
    )
    .unwrap();
    let shared = Arc::downgrade(&log.shared);
    drop(log);
    assert_eq!(shared.strong_count(), 0);
    let forever = Durability::Every(Duration::MAX);
    let log = Log::start(
        Arc::new(slow.clone()),
        shape(),
        &NextLog::fresh(3, 50),
        forever,
    )
    .unwrap();
    append(&log, 50).unwrap();
    drop(log);
    assert_eq!(ids(&slow.volume.crash_image(0, Crash::Dropped)).len(), 51);
}

#[test]
fn a_long_log_is_read_in_pieces() {
    let slow = Slow::new(Duration::ZERO);
    let log = Log::start(
        Arc::new(slow.clone()),
        shape(),
        &NextLog::fresh(1, 0),
        Durability::OnFlush,
    )
    .unwrap();
    let mut expected = Vec::new();
    for first in (0..8000).step_by(100) {
        let new: Vec<_> = (first..first + 100).map(|id| (id, vector(id))).collect();
        let records: Vec<_> = new.iter().map(|(id, v)| record(*id, v)).collect();
        log.append_all(&records).unwrap();
        expected.extend(first..first + 100);
    }
    assert!(log.bytes() > 3 << 20);
    assert_eq!(ids(&slow), expected);
    assert!(slow.longest_read.load(Ordering::Relaxed) <= 1 << 20);

    let shape = LogShape::new(Element::F32, 65_536).unwrap();
    let (volume, vector) = (SimVolume::new(), vec![7; 4 * 65_536]);
    let log = Log::start(Arc::new(volume.clone()), shape, &NextLog::fresh(1, 0), HOUR).unwrap();
    for id in 0..9 {
        log.append(LogRecord::Insert {
            id,
            vector: &vector,
            row: None,
        })
        .unwrap();
    }
    let replayed = replay(&volume, shape, ORIGIN, &mut |_, _| Ok(())).unwrap();
    assert_eq!(replayed.records, 9);
}

fn three_logs() -> SimVolume {
    let volume = SimVolume::new();
    let log = start(&volume, ORIGIN, Durability::Always).unwrap();
    for id in 0..15 {
        if id > 0 && id % 5 == 0 {
            log.rotate().unwrap();
        }
        append(&log, id).unwrap();
    }
    volume
}

fn change(volume: &SimVolume, name: &str, cut: Option<u64>, flip: Option<usize>) {
    let mut bytes = volume.read(name).unwrap();
    if let Some(at) = flip {
        bytes[at] ^= 1;
    }
    let mut file = volume.open(name).unwrap();
    file.write_at(0, &bytes).unwrap();
    if let Some(len) = cut {
        file.set_len(len).unwrap();
    }
}

#[test]
fn damage_is_told_from_a_torn_end() {
    assert_eq!(ids(&three_logs()), Vec::from_iter(0..15));
    let refused = |change: &dyn Fn(&SimVolume), words: &[&str]| {
        let volume = three_logs();
        change(&volume);
        let text = found(&volume, ORIGIN).unwrap_err().to_string();
        for word in words {
            assert!(text.contains(word), "{word:?} is not in {text}");
        }
    };
    let first = &[
        "log-000001: damaged: its records end at offset 12288",
        "sequence number 0,",
        "log-000002 begins with sequence number 5. Of the 5 records after this offset, 4 can be read",
    ];
    refused(
        &|volume| change(volume, "log-000001", None, Some(12_292)),
        first,
    );
    refused(
        &|volume| change(volume, "log-000001", Some(13_192), None),
        &[
            "at offset 12920 (the record needs",
            "Of the 4 records after this offset, 0 can be read",
        ],
    );
    refused(
        &|volume| change(volume, "log-000002", Some(12_288), None),
        &["log-000002: damaged", "offset 12288"],
    );
    refused(
        &|volume| volume.remove("log-000002").unwrap(),
        &[
            "log-000002: damaged: this log is missing",
            "log-000003 exists",
        ],
    );
    refused(
        &|volume| volume.remove("log-000001").unwrap(),
        &["log-000001: damaged: this log is missing"],
    );
    refused(
        &|volume| change(volume, "log-000002", Some(100), None),
        &["log-000001: damaged", "begins with sequence number 10"],
    );
    for cut in [0, 100, 4_095, 12_288] {
        refused(
            &|volume| change(volume, "log-000001", Some(cut), (cut > 4_096).then_some(60)),
            &[
                "log-000001: damaged",
                "log-000002 begins with sequence number 5",
            ],
        );
        let volume = three_logs();
        change(
            &volume,
            "log-000001",
            Some(cut),
            (cut > 4_096).then_some(60),
        );
        let mut ids = Vec::new();
        let lost = salvage_all(&volume, ORIGIN, &mut ids);
        assert_eq!(ids, Vec::from_iter(5..15), "{cut}");
        assert_eq!(lost.len(), 1, "{cut}: {lost:?}");
    }
    for name in ["log-000001", "log-000003"] {
        refused(
            &|volume| change(volume, name, None, Some(60)),
            &[name, "checksum mismatch"],
        );
        refused(
            &|volume| {
                change(volume, name, None, Some(4100));
                change(volume, name, None, Some(8200));
            },
            &[name, "neither of its marks"],
        );
    }
    refused(
        &|volume| {
            let other = volume.read("log-000002").unwrap();
            volume
                .create("log-000003")
                .unwrap()
                .write_at(0, &other)
                .unwrap();
        },
        &["log-000003: number of the log at offset 56 is 2; expected 3"],
    );
    let text = found(
        &three_logs(),
        LogPosition {
            number: 2,
            sequence: 4,
        },
    )
    .unwrap_err()
    .to_string();
    assert!(
        text.contains("first sequence number at offset 64 is 5, but must be 4"),
        "{text}"
    );
    let other = LogShape::new(Element::F32, 600).unwrap();
    let text = replay(&three_logs(), other, ORIGIN, &mut |_, _| Ok(()))
        .unwrap_err()
        .to_string();
    assert!(
        text.contains("u8 x 600") && text.contains("f32 x 600"),
        "{text}"
    );

    // A record has 632 bytes, but every fourth record has 32.
    for (cut, flip, words) in [
        (
            None,
            Some(12_292),
            [
                "at offset 12288 (unknown kind",
                "Of the 5 records after this offset, 4 can",
            ],
        ),
        (
            Some(13_192),
            None,
            [
                "at offset 12952 (the record",
                "Of the 3 records after this offset, 0 can",
            ],
        ),
        (
            Some(14_300),
            None,
            [
                "at offset 14216 (the record",
                "Of the 1 records after this offset, 0 can",
            ],
        ),
        (
            Some(12_288),
            None,
            [
                "at offset 12288 (the log ends",
                "its mark says that it was durable up to sequence number 15",
            ],
        ),
        (
            Some(8_300),
            None,
            [
                "at offset 12288",
                "Of the 5 records after this offset, 0 can",
            ],
        ),
    ] {
        refused(&|volume| change(volume, "log-000003", cut, flip), &words);
    }
    for (cut, flip) in [(100, None), (0, None), (12_288, Some(60))] {
        let volume = three_logs();
        change(&volume, "log-000003", Some(cut), flip);
        let (ids, replayed) = found(&volume, ORIGIN).unwrap();
        assert_eq!(ids, Vec::from_iter(0..10));
        assert_eq!((replayed.next.number, replayed.next.replaces), (3, true));
        let torn = replayed.torn.unwrap();
        assert_eq!(torn.file, "simulated volume/log-000003");
        assert_eq!((torn.offset, torn.whole), (0, 0), "{}", torn.reason);
    }
}

fn hundred(durability: Durability) -> SimVolume {
    let volume = SimVolume::new();
    let log = start(&volume, ORIGIN, durability).unwrap();
    for id in 0..100 {
        append(&log, id).unwrap();
    }
    log.flush().unwrap();
    volume
}

/// A record has 632 bytes, but every fourth record has 32.
fn offset_of(record: u64) -> usize {
    (FIRST_RECORD + record / 4 * (3 * 632 + 32) + record % 4 * 632) as usize
}

#[test]
fn one_flipped_bit_in_the_newest_log_is_not_the_end_of_what_is_behind_it() {
    for durability in ALL {
        let whole = hundred(durability);
        for record in [0, 10, 50, 98, 99] {
            for at in [0, 4, 8, 13, 27] {
                let volume = whole.fork();
                change(&volume, "log-000001", None, Some(offset_of(record) + at));
                let error = found(&volume, ORIGIN).unwrap_err();
                let Error::DamagedLog {
                    offset,
                    sequence,
                    missing,
                    whole,
                    ..
                } = error
                else {
                    panic!("{error}");
                };
                assert_eq!((offset, sequence), (offset_of(record) as u64, record));
                assert_eq!((missing, whole), (100 - record, 99 - record), "{at}");
                let mut ids = Vec::new();
                let lost = salvage_all(&volume, ORIGIN, &mut ids);
                let others: Vec<u64> = (0..100).filter(|&id| id != record).collect();
                assert_eq!(ids, others, "record {record}, byte {at}");
                assert_eq!(lost.len(), 1, "{lost:?}");
                assert_eq!(lost[0].records, 1, "{lost:?}");
                let later = LogPosition {
                    number: 1,
                    sequence: record + 1,
                };
                let outcome = found(&volume, later);
                assert_eq!(outcome.is_ok(), record == 99);
                let mut ids = Vec::new();
                let lost = salvage_all(&volume, later, &mut ids);
                assert_eq!(ids, Vec::from_iter(record + 1..100));
                assert!(record == 99 || lost.is_empty(), "{lost:?}");
            }
        }
    }
}

fn salvage_all(volume: &SimVolume, from: LogPosition, ids: &mut Vec<u64>) -> Vec<LostRecords> {
    let read = |name: &str, offset, out: &mut [u8]| Ok(volume.read_at(name, offset, out)?);
    let is_damage = |error: &Error| matches!(error, Error::Layout(_) | Error::Damaged { .. });
    salvage(volume, shape(), from, is_damage, &read, &mut |_, found| {
        let id = found.id();
        assert_eq!(found, record(id, &vector(id)));
        ids.push(id);
        Ok(())
    })
    .unwrap()
}

#[test]
fn what_was_not_synced_is_torn_and_not_damaged() {
    // A killed process has left forty unacknowledged records after sixty durable records.
    let volume = SimVolume::new();
    let log = start(&volume, ORIGIN, Durability::OnFlush).unwrap();
    for id in 0..100 {
        append(&log, id).unwrap();
        if id == 59 {
            log.flush().unwrap();
        }
    }
    mem::forget(log);
    assert_eq!(ids(&volume).len(), 100);
    let torn = volume.fork();
    change(&torn, "log-000001", None, Some(offset_of(70) + 40));
    let (ids, replayed) = found(&torn, ORIGIN).unwrap();
    assert_eq!(ids, Vec::from_iter(0..70));
    let end = replayed.torn.unwrap();
    assert_eq!((end.offset, end.whole), (offset_of(70) as u64, 29));
    let damaged = volume.fork();
    change(&damaged, "log-000001", None, Some(offset_of(40) + 40));
    let error = found(&damaged, ORIGIN).unwrap_err();
    let Error::DamagedLog { missing, whole, .. } = error else {
        panic!("{error}");
    };
    assert_eq!((missing, whole), (20, 19));
    for (mark, damaged) in [(4096, true), (8192, false)] {
        let volume = damaged_mark(&volume, mark);
        change(&volume, "log-000001", None, Some(offset_of(40) + 40));
        assert_eq!(found(&volume, ORIGIN).is_ok(), damaged, "{mark}");
    }
}

#[test]
fn a_log_full_of_gaps_is_not_read_over_and_over() {
    // At each gap, the salvage reads one piece for the next record, and another piece for later
    // bytes.
    let volume = SimVolume::new();
    let log = start(&volume, ORIGIN, Durability::OnFlush).unwrap();
    append(&log, 0).unwrap();
    log.flush().unwrap();
    for id in 1..4_000 {
        append(&log, id).unwrap();
    }
    mem::forget(log);
    let mut bytes = volume.read("log-000001").unwrap();
    let mut at = offset_of(1);
    for id in 1..4_000_usize {
        if id % 2 == 1 {
            bytes[at + 12] ^= 1;
        }
        at = offset_of(id as u64 + 1);
    }
    volume
        .create("log-000001")
        .unwrap()
        .write_at(0, &bytes)
        .unwrap();
    let (ids, replayed) = found(&volume, ORIGIN).unwrap();
    assert_eq!(ids, [0]);
    let torn = replayed.torn.unwrap();
    assert!(torn.more && (1..1_000).contains(&torn.whole), "{torn:?}");
}

fn damaged_mark(volume: &SimVolume, at: usize) -> SimVolume {
    let volume = volume.fork();
    change(&volume, "log-000001", None, Some(at + 20));
    volume
}

#[test]
fn a_log_of_an_earlier_version_has_no_marks_and_ends_where_it_did() {
    let header = LogHeader {
        shape: shape(),
        number: 1,
        first_sequence: 0,
        marked: false,
        rows: false,
    };
    let volume = SimVolume::new();
    let mut file = volume.create("log-000001").unwrap();
    let (mut bytes, mut place) = (header.encode_front(), header.start());
    for id in 0..20 {
        place = encode_record(record(id, &vector(id)), place, &mut bytes);
    }
    file.write_at(0, &bytes).unwrap();
    assert_eq!(ids(&volume), Vec::from_iter(0..20));
    let at = offset_of(6) - 8192 + 50;
    change(&volume, "log-000001", None, Some(at));
    let (ids, replayed) = found(&volume, ORIGIN).unwrap();
    assert_eq!(ids, Vec::from_iter(0..6));
    let torn = replayed.torn.unwrap();
    assert_eq!(
        (torn.offset, torn.whole),
        ((offset_of(6) - 8192) as u64, 13)
    );
    let mut ids = Vec::new();
    let lost = salvage_all(&volume, ORIGIN, &mut ids);
    assert_eq!((ids.len(), lost.len()), (19, 1));
    let next = LogPosition {
        number: 2,
        sequence: 6,
    };
    let log = start(&volume, next, Durability::Always).unwrap();
    append(&log, 77).unwrap();
    assert_eq!(versions(&volume), [1, 2]);
    change(&volume, "log-000001", Some(4096 + 700), Some(60));
    let text = found(&volume, ORIGIN).unwrap_err().to_string();
    assert!(text.contains("log-000001: checksum mismatch"), "{text}");
}

#[test]
fn a_replay_begins_anywhere_and_stops_when_told_to() {
    let volume = three_logs();
    for (number, sequence, first) in [
        (1, 0, 0),
        (1, 3, 3),
        (1, 7, 7),
        (2, 5, 5),
        (3, 12, 12),
        (3, 15, 15),
    ] {
        let (ids, replayed) = found(&volume, LogPosition { number, sequence }).unwrap();
        assert_eq!(ids, Vec::from_iter(first..15));
        assert_eq!((replayed.next.number, replayed.next.sequence), (4, 15));
        assert_eq!(replayed.torn, None);
    }
    let nothing = found(
        &volume,
        LogPosition {
            number: 9,
            sequence: 70,
        },
    )
    .unwrap()
    .1;
    assert_eq!((nothing.next.number, nothing.next.sequence), (9, 70));
    let (mut sequences, number) = (Vec::new(), 2);
    let from = LogPosition {
        number,
        sequence: 0,
    };
    let replayed = replay(&volume, shape(), from, &mut |sequence, _| {
        sequences.push(sequence);
        Ok(())
    });
    assert_eq!(sequences, Vec::from_iter(5..15));
    assert_eq!(replayed.unwrap().next.sequence, 15);
    let (ids, replayed) = found(
        &volume,
        LogPosition {
            number: 0,
            sequence: 0,
        },
    )
    .unwrap();
    assert_eq!((ids.len(), replayed.next.number), (15, 4));
    let empty = found(&SimVolume::new(), LogPosition::default()).unwrap().1;
    assert_eq!((empty.next.number, empty.next.sequence), (1, 0));
    let mut calls = 0;
    let stopped = replay(&volume, shape(), ORIGIN, &mut |_, _| {
        calls += 1;
        if calls == 7 {
            Err(Error::Interrupted)
        } else {
            Ok(())
        }
    });
    assert!(matches!(stopped, Err(Error::Interrupted)));
    assert_eq!(calls, 7);
}

#[test]
fn a_removal_that_is_interrupted_leaves_no_gap() {
    let volume = three_logs();
    volume.fail_after(1, Failure::Io);
    remove_logs_before(&volume, 3).unwrap_err();
    volume.heal();
    assert_eq!(volume.list().unwrap(), [log_name(2), log_name(3)]);
    remove_logs_before(&volume, 3).unwrap();
    remove_logs_before(&volume, 3).unwrap();
    assert_eq!(volume.list().unwrap(), [log_name(3)]);
}

#[test]
fn wrong_calls_are_refused() {
    let volume = three_logs();
    let taken = LogPosition {
        number: 3,
        sequence: 15,
    };
    assert!(matches!(
        start(&volume, taken, HOUR),
        Err(Error::Exists { .. })
    ));
    let log = start(
        &volume,
        LogPosition {
            number: 4,
            sequence: 15,
        },
        HOUR,
    )
    .unwrap();
    let good = vector(0).unwrap();
    let records = [
        LogRecord::Insert {
            id: 1,
            vector: &good,
            row: None,
        },
        LogRecord::Insert {
            id: 2,
            vector: &good[1..],
            row: None,
        },
    ];
    let text = log.append_all(&records).unwrap_err().to_string();
    let said = "the vector of id 2 is 599 bytes; a vector of this index has 600 bytes. Give vectors of its dimension and element type";
    assert_eq!(text, said);
    assert_eq!(log.append_all(&[]).unwrap(), 15..15);
    assert_eq!(log.append(LogRecord::Delete { id: 3 }).unwrap(), 15);
    assert_eq!(
        (log.number(), log.bytes(), log.next_sequence()),
        (4, FIRST_RECORD + 32, 16)
    );
}

#[test]
fn names() {
    for (name, number) in [
        ("log-000001", Some(1)),
        ("log-000000", Some(0)),
        ("log-1000000", Some(1_000_000)),
        ("log-18446744073709551615", Some(u64::MAX)),
        ("log-18446744073709551616", None),
        ("log-00001", None),
        ("log-0000001", None),
        ("log-+00001", None),
        ("log-", None),
        ("log", None),
        ("logs-000001", None),
        ("heat-000001", None),
    ] {
        assert_eq!(number_of(name), number, "{name}");
    }
    let volume = SimVolume::new();
    volume.create(&log_name(u64::MAX)).unwrap();
    let last = LogPosition {
        number: u64::MAX,
        sequence: u64::MAX,
    };
    let replayed = replay(&volume, shape(), last, &mut |_, _| Ok(())).unwrap();
    assert_eq!(replayed.next.number, u64::MAX);
    assert!(matches!(
        start(&volume, last, HOUR),
        Err(Error::Exists { .. })
    ));
}

#[test]
fn in_a_real_directory() {
    let folder = tempfile::tempdir().unwrap();
    let volume: Arc<dyn Volume> = Arc::new(Directory::create(folder.path().join("index")).unwrap());
    let log = Log::start(
        volume.clone(),
        shape(),
        &NextLog::fresh(1, 0),
        Durability::Always,
    )
    .unwrap();
    for id in 0..20 {
        append(&log, id).unwrap();
        if id % 8 == 7 {
            log.rotate().unwrap();
        }
    }
    let end = log.bytes();
    drop(log);
    assert_eq!(ids(&*volume), Vec::from_iter(0..20));
    let name = log_name(3);
    let mut file = volume.open(&name).unwrap();
    file.write_at(end, &[1; 200]).unwrap();
    let (ids, replayed) = found(&*volume, ORIGIN).unwrap();
    assert_eq!(ids, Vec::from_iter(0..20));
    let torn = replayed.torn.unwrap();
    assert!(torn.file.ends_with("index/log-000003"), "{}", torn.file);
    for durability in ALL {
        let (mut ids, replayed) = found(&*volume, ORIGIN).unwrap();
        let log = Log::start(volume.clone(), shape(), &replayed.next, durability).unwrap();
        append(&log, 77).unwrap();
        log.flush().unwrap();
        ids.push(77);
        assert_eq!(self::ids(&*volume), ids);
    }
    remove_logs_before(&*volume, 4).unwrap();
    let left = volume.list().unwrap();
    assert_eq!(left, [log_name(4), log_name(5), log_name(6)]);
    let from = LogPosition {
        number: 4,
        sequence: 20,
    };
    assert_eq!(found(&*volume, from).unwrap().0, [77, 77, 77]);
}
