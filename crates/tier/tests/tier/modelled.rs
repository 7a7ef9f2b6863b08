//! The latency model as a tier: answers come when they should, and waiting for them does not burn the core.

use std::sync::Arc;
use std::time::{Duration, Instant};

use stratann_tier::{
    Device, DeviceKind, DeviceModel, DramTier, IoMode, ModelledTier, Request, Task, Thread, Tier,
    WorkerPool, next, thread_cpu_time,
};

fn modelled(device: Device) -> Arc<dyn Tier> {
    let bytes: Vec<u8> = (0..1 << 20).map(|i| (i % 251) as u8).collect();
    Arc::new(ModelledTier::new(Arc::new(DramTier::new(bytes)), device))
}

/// How long so many reads take, one after the other, each at least.
fn alone(tier: &dyn Tier, reads: usize, len: u32) -> Vec<Duration> {
    let thread = Thread::local(IoMode::Auto).unwrap();
    let mut queue = tier.queue(&thread).unwrap();
    thread.block_on(async {
        let mut times = Vec::new();
        for read in 0..reads {
            let began = Instant::now();
            let offset = (read as u64 * 4096) % (1 << 20);
            queue
                .submit(Request {
                    tag: 0,
                    offset,
                    len,
                })
                .unwrap();
            let block = next(queue.as_mut()).await.result.unwrap();
            times.push(began.elapsed());
            assert_eq!(block[0], (offset % 251) as u8);
        }
        times
    })
}

#[test]
fn a_read_is_never_early_and_mostly_in_time() {
    for kind in DeviceKind::ALL {
        // A device of its own: other tests share the others.
        let model = kind.model();
        let tier = modelled(Device::new(kind.name(), model));
        let cost = model.cost(0, 256);
        let least = model.latency + Duration::from_nanos(cost.link.max(cost.engine) / 1000);
        // Another process may have the core for a while; a quarter of the reads of one of ten rounds is in time on any machine that
        // can wait for a microsecond at all.
        let mut late = Duration::MAX;
        for _ in 0..10 {
            let mut times = alone(&*tier, 400, 256);
            times.sort_unstable();
            assert!(times[0] >= least, "{kind}: {:?} of {least:?}", times[0]);
            late = late.min(times[times.len() / 4] - least);
        }
        println!("{kind}: {late:?} later than {least:?}");
        // Debug builds look at the clock more slowly.
        assert!(
            late < Duration::from_micros(5),
            "{kind}: {late:?} late, of {least:?}"
        );
    }
}

#[test]
fn a_device_is_shared_by_all_threads_that_read_from_it() {
    // 4 MB/s, so that the machine's own speed is nothing beside it: a read takes 1,024 µs of the link.
    let model = DeviceModel {
        bandwidth: 4,
        ..DeviceKind::Nvm.model()
    };
    let tier = modelled(Device::new("slow", model));
    let workers = WorkerPool::new(2, IoMode::Auto).unwrap();
    let began = Instant::now();
    workers.run_tasks(2, &|thread, _| {
        let tasks = (0..5).map(|_| {
            let mut queue = tier.queue(thread).unwrap();
            let task: Task<'_> = Box::pin(async move {
                for read in 0..2 {
                    let (tag, offset, len) = (read, read * 4096, 4096);
                    queue.submit(Request { tag, offset, len }).unwrap();
                }
                for _ in 0..2 {
                    next(queue.as_mut()).await.result.unwrap();
                }
            });
            task
        });
        tasks.collect()
    });
    let least = 20 * Duration::from_micros(1024);
    assert!(began.elapsed() >= least, "{:?}", began.elapsed());
}

#[test]
fn waiting_for_a_device_does_not_burn_the_core() {
    let model = DeviceModel {
        latency: Duration::from_millis(2),
        ..DeviceKind::Ssd.model()
    };
    let tier = modelled(Device::new("far", model));
    let cpu = || thread_cpu_time().as_secs_f64();
    let (before, began) = (cpu(), Instant::now());
    let times = alone(&*tier, 50, 4096);
    let (spent, took) = (cpu() - before, began.elapsed().as_secs_f64());
    assert_eq!(times.len(), 50);
    assert!(took >= 0.1);
    // At most 50 µs of each 2 ms awake, and a debug build's own work.
    assert!(spent < 0.1 * 0.15, "{spent} s of the core in {took} s");
}

#[test]
fn while_one_task_waits_for_a_device_others_run() {
    let tier = modelled(Device::new("ssd", DeviceKind::Ssd.model()));
    let thread = Thread::local(IoMode::Auto).unwrap();
    let reads = 64;
    let began = Instant::now();
    let tasks = (0..reads).map(|task| {
        let mut queue = tier.queue(&thread).unwrap();
        let task: Task<'_> = Box::pin(async move {
            for round in 0..20u64 {
                let (tag, offset, len) = (round, task * 4096, 4096);
                queue.submit(Request { tag, offset, len }).unwrap();
                assert_eq!(next(queue.as_mut()).await.tag, round);
            }
        });
        task
    });
    thread.run_all(tasks.collect());
    // One after the other they would take 64 times as long, at least.
    let alone = 64 * 20 * DeviceKind::Ssd.model().latency;
    assert!(
        began.elapsed() < alone / 2,
        "{:?} of {alone:?}",
        began.elapsed()
    );
    assert!(began.elapsed() >= 20 * DeviceKind::Ssd.model().latency);
}
