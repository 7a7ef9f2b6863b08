//! Checks of the rules of every tier and every volume, which panic with the name of a broken rule.
//!
//! ```
//! use std::sync::Arc;
//! use stratann_tier::{DramTier, IoMode, testing::conformance::conformance};
//! conformance(&|bytes| Arc::new(DramTier::new(bytes.to_vec())), IoMode::Auto);
//! ```

mod volumes;

pub use volumes::conformance_volume;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Waker};
use std::time::{Duration, Instant};

use crate::BLOCK;
use crate::backend::IoMode;
use crate::error::TierError;
use crate::executor::{Task, Thread};
use crate::testing::random::Random;
use crate::tier::{Completion, ReadQueue, Request, Tier, next};
use crate::worker_pool::WorkerPool;

const BLOCKS: usize = 256;
const PATIENCE: Duration = Duration::from_secs(30);

fn pattern(len: usize) -> Vec<u8> {
    let mut random = Random::new(0xB10C);
    (0..len.div_ceil(8))
        .flat_map(|_| random.next().to_le_bytes())
        .take(len)
        .collect()
}

struct Subject {
    tier: Arc<dyn Tier>,
    bytes: Vec<u8>,
    io: IoMode,
}

/// Checks a tier that `make` creates with the given bytes (a multiple of 4 KiB), read in mode `io`.
///
/// # Panics
/// Panics with the name of a broken rule.
pub fn conformance(make: &dyn Fn(&[u8]) -> Arc<dyn Tier>, io: IoMode) {
    let bytes = pattern(BLOCKS * BLOCK);
    let subject = Subject {
        tier: make(&bytes),
        bytes,
        io,
    };
    subject.facts();
    subject.every_byte();
    subject.lengths();
    subject.refusals();
    subject.without_awaiting();
    subject.nothing_in_flight();
    subject.reset();
    subject.dropped_queue();
    subject.dropped_thread();
    subject.blocks_outlive_all(make);
    subject.many_queues();
    subject.panic_in_a_task();
    subject.many_threads();
    let empty = make(&[]);
    assert!(empty.is_empty(), "rule: a tier without bytes is empty");
}

impl Subject {
    fn thread(&self) -> Thread {
        Thread::local(self.io).expect("no context could be made for this thread")
    }

    fn queue(&self, thread: &Thread) -> Box<dyn ReadQueue> {
        self.tier
            .queue(thread)
            .expect("rule: a read queue can be opened on any thread")
    }

    fn request(&self, tag: u64, block: usize, blocks: usize) -> Request {
        Request {
            tag,
            offset: (block * BLOCK) as u64,
            len: (blocks * BLOCK) as u32,
        }
    }

    fn check(&self, rule: &str, offset: u64, len: usize, completion: Completion) {
        let tag = completion.tag;
        let block = completion
            .result
            .unwrap_or_else(|error| panic!("{rule}: read {tag} failed: {error}"));
        assert!(
            block.len() == len,
            "{rule}: read {tag} returned {} bytes instead of {len}",
            block.len()
        );
        let offset = offset as usize;
        assert!(
            block[..] == self.bytes[offset..offset + len],
            "{rule}: read {tag} returned other bytes than were written"
        );
    }

    /// Each of the tags 0..count must arrive once, with the bytes of its block in `blocks`.
    async fn drain(&self, rule: &str, queue: &mut dyn ReadQueue, blocks: &[usize]) {
        let mut seen = vec![false; blocks.len()];
        for left in (0..blocks.len()).rev() {
            let completion = next(queue).await;
            let tag = completion.tag as usize;
            assert!(
                tag < blocks.len() && !seen[tag],
                "{rule}: tag {tag} was completed although it was not in flight"
            );
            seen[tag] = true;
            self.check(rule, (blocks[tag] * BLOCK) as u64, BLOCK, completion);
            assert!(
                queue.in_flight() == left,
                "{rule}: {} reads in flight instead of {left} after a completion was taken",
                queue.in_flight()
            );
        }
    }

    fn submit(&self, rule: &str, queue: &mut dyn ReadQueue, blocks: &[usize]) {
        for (tag, &block) in blocks.iter().enumerate() {
            let request = self.request(tag as u64, block, 1);
            queue
                .submit(request)
                .unwrap_or_else(|error| panic!("{rule}: a valid read was refused: {error}"));
        }
        assert!(
            queue.in_flight() >= blocks.len(),
            "{rule}: a submitted read is not in flight until its completion is taken"
        );
    }

    fn facts(&self) {
        let tier = &self.tier;
        assert!(
            tier.len() == self.bytes.len() as u64,
            "rule: len() returns the number of bytes; it returned {}",
            tier.len()
        );
        assert!(
            !tier.is_empty(),
            "rule: is_empty() is false if len() is above 0"
        );
        assert!(!tier.name().is_empty(), "rule: a tier has a name");
        let (granularity, alignment) = (tier.granularity() as usize, tier.alignment() as usize);
        assert!(
            granularity > 0 && BLOCK.is_multiple_of(granularity),
            "rule: the granularity divides 4096; the granularity is {granularity}"
        );
        assert!(
            alignment > 0 && granularity.is_multiple_of(alignment),
            "rule: the alignment divides the granularity; the alignment is {alignment}"
        );
    }

    fn every_byte(&self) {
        let rule = "rule: every block is read as it was written, with all reads in flight at once";
        let thread = self.thread();
        let mut queue = self.queue(&thread);
        let blocks: Vec<usize> = (0..BLOCKS).map(|i| i * 37 % BLOCKS).collect();
        thread.block_on(async {
            for _ in 0..3 {
                self.submit(rule, queue.as_mut(), &blocks);
                queue.flush();
                self.drain(rule, queue.as_mut(), &blocks).await;
            }
        });
        assert!(
            queue.try_next().is_none(),
            "{rule}: a read that was not submitted was completed"
        );
    }

    fn lengths(&self) {
        let rule =
            "rule: aligned reads of any length and offset work, and their tags need not differ";
        let thread = self.thread();
        let mut queue = self.queue(&thread);
        let alignment = self.tier.alignment() as usize;
        let mut random = Random::new(3);
        thread.block_on(async {
            let all = self.bytes.len();
            let mut ranges = vec![(0, all), (all - alignment, alignment), (0, alignment)];
            for blocks in [1, 2, 3, 16, 64, 65, 200] {
                ranges.push((random.below(BLOCKS - blocks) * BLOCK, blocks * BLOCK));
            }
            for _ in 0..50 {
                let start = random.below(all / alignment);
                let len = 1 + random.below((all / alignment - start).min(3 * BLOCK));
                ranges.push((start * alignment, len * alignment));
            }
            for (start, len) in ranges {
                queue
                    .submit(Request {
                        tag: 9,
                        offset: start as u64,
                        len: len as u32,
                    })
                    .unwrap_or_else(|error| panic!("{rule}: {error}"));
                let completion = next(queue.as_mut()).await;
                assert!(completion.tag == 9, "{rule}: the tag changed");
                self.check(rule, start as u64, len, completion);
            }
        });
    }

    fn refusals(&self) {
        let rule = "rule: a read beyond the end, or a misaligned read, is refused and does not change the queue";
        let thread = self.thread();
        let mut queue = self.queue(&thread);
        let len = self.bytes.len() as u64;
        let block = BLOCK as u64;
        self.submit(rule, queue.as_mut(), &[1]);
        let beyond = [
            (len, block),
            (len - block, 2 * block),
            (u64::MAX - block + 1, block),
            (1 << 62, block),
        ];
        for (offset, length) in beyond {
            let answer = queue.submit(Request {
                tag: 0,
                offset,
                len: length as u32,
            });
            assert!(
                matches!(answer, Err(TierError::OutOfRange { .. })),
                "{rule}: {length} bytes at {offset} of {len} gave {answer:?} instead of OutOfRange"
            );
        }
        let alignment = u64::from(self.tier.alignment());
        let mut bad = vec![(0, 0)];
        if alignment > 1 {
            bad.extend([
                (alignment / 2, block),
                (0, block + alignment / 2),
                (1, block),
                (0, 1),
            ]);
        }
        for (offset, length) in bad {
            let answer = queue.submit(Request {
                tag: 0,
                offset,
                len: length as u32,
            });
            assert!(
                matches!(answer, Err(TierError::Misaligned { .. })),
                "{rule}: {length} bytes at {offset} gave {answer:?} instead of Misaligned"
            );
        }
        assert!(
            queue.in_flight() == 1,
            "{rule}: a refused read changed the number of reads in flight"
        );
        thread.block_on(self.drain(rule, queue.as_mut(), &[1]));
    }

    fn without_awaiting(&self) {
        let rule =
            "rule: after a flush, try_next returns completions although the task does not await";
        let thread = self.thread();
        let mut queue = self.queue(&thread);
        assert!(
            queue.try_next().is_none(),
            "{rule}: try_next returned a completion without a read in flight"
        );
        for count in [1, 40] {
            let blocks: Vec<usize> = (0..count).map(|i| i * 5).collect();
            self.submit(rule, queue.as_mut(), &blocks);
            let start = Instant::now();
            let mut seen = 0;
            while seen < count {
                queue.flush();
                if let Some(completion) = queue.try_next() {
                    let tag = completion.tag as usize;
                    self.check(rule, (blocks[tag] * BLOCK) as u64, BLOCK, completion);
                    seen += 1;
                }
                assert!(
                    start.elapsed() < PATIENCE,
                    "{rule}: {} of {count} completions never arrived",
                    count - seen
                );
            }
            assert!(
                queue.in_flight() == 0 && queue.try_next().is_none(),
                "{rule}: reads are in flight after all completions were taken"
            );
        }
    }

    fn nothing_in_flight(&self) {
        let rule =
            "rule: to await a queue without reads in flight panics, and does not sleep for ever";
        let thread = self.thread();
        let mut queue = self.queue(&thread);
        let poll = catch_unwind(AssertUnwindSafe(|| {
            let _ = queue.poll_next(&mut Context::from_waker(Waker::noop()));
        }));
        assert!(poll.is_err(), "{rule}");
    }

    fn reset(&self) {
        let rule =
            "rule: a reset discards the reads in flight, and another query can use the queue";
        let thread = self.thread();
        let mut queue = self.queue(&thread);
        for round in 0..20usize {
            let old: Vec<usize> = (0..32).map(|i| (i + round) % BLOCKS).collect();
            self.submit(rule, queue.as_mut(), &old);
            if round % 2 == 0 {
                queue.flush();
            }
            if round % 3 == 0 {
                thread.block_on(async { drop(next(queue.as_mut()).await) });
            }
            queue.reset();
            assert!(
                queue.in_flight() == 0,
                "{rule}: {} reads in flight after the reset",
                queue.in_flight()
            );
            assert!(
                queue.try_next().is_none(),
                "{rule}: a discarded read was completed"
            );
            let new: Vec<usize> = (0..7).map(|i| (i * 31 + 100 + round) % BLOCKS).collect();
            self.submit(rule, queue.as_mut(), &new);
            thread.block_on(self.drain(rule, queue.as_mut(), &new));
        }
    }

    fn dropped_queue(&self) {
        let rule = "rule: a queue may be dropped with reads in flight, and other queues continue";
        let thread = self.thread();
        for round in 0..20usize {
            let mut first = self.queue(&thread);
            let mut second = self.queue(&thread);
            let blocks: Vec<usize> = (0..32).map(|i| (i * 3 + round) % BLOCKS).collect();
            self.submit(rule, first.as_mut(), &blocks);
            self.submit(rule, second.as_mut(), &blocks);
            if round % 2 == 0 {
                first.flush();
            }
            drop(first);
            thread.block_on(self.drain(rule, second.as_mut(), &blocks));
        }
    }

    fn dropped_thread(&self) {
        let rule = "rule: a thread's context may be dropped with reads in flight";
        for flush in [true, false] {
            let thread = self.thread();
            let mut queue = self.queue(&thread);
            self.submit(rule, queue.as_mut(), &[0, 1, 2, 3]);
            if flush {
                queue.flush();
            }
            drop(queue);
            drop(thread);
        }
        let thread = self.thread();
        let mut queue = self.queue(&thread);
        self.submit(rule, queue.as_mut(), &[0, 1, 2, 3]);
        drop(thread);
        assert!(
            queue.in_flight() == 4,
            "{rule}: the queue lost its reads when the context was dropped"
        );
    }

    fn blocks_outlive_all(&self, make: &dyn Fn(&[u8]) -> Arc<dyn Tier>) {
        let rule = "rule: blocks stay valid after their queue, tier and context were dropped";
        let tier = make(&self.bytes);
        let thread = self.thread();
        let mut queue = tier
            .queue(&thread)
            .expect("rule: a read queue can be opened on any thread");
        self.submit(rule, queue.as_mut(), &[5, 6, 7]);
        let blocks = thread.block_on(async {
            let mut blocks = Vec::new();
            while queue.in_flight() > 0 {
                blocks.push(next(queue.as_mut()).await);
            }
            blocks
        });
        drop(queue);
        drop(tier);
        drop(thread);
        for completion in blocks {
            let offset = (5 + completion.tag) * BLOCK as u64;
            self.check(rule, offset, BLOCK, completion);
        }
    }

    async fn wander(
        &self,
        rule: &str,
        queue: &mut dyn ReadQueue,
        reads: usize,
        width: usize,
        seed: u64,
    ) {
        let mut random = Random::new(seed);
        let mut in_flight: Vec<(u64, usize)> = Vec::new();
        let mut submitted = 0;
        while submitted < reads || !in_flight.is_empty() {
            let more = submitted < reads && in_flight.len() < width;
            if in_flight.is_empty() || (more && random.chance(0.7)) {
                let block = random.below(BLOCKS);
                let tag = random.next();
                queue
                    .submit(self.request(tag, block, 1))
                    .unwrap_or_else(|error| panic!("{rule}: {error}"));
                in_flight.push((tag, block));
                submitted += 1;
                continue;
            }
            if random.chance(0.3) {
                queue.flush();
            }
            let polled = if random.coin() {
                queue.try_next()
            } else {
                None
            };
            let completion = match polled {
                Some(completion) => completion,
                None => next(queue).await,
            };
            let place = in_flight.iter().position(|(tag, _)| *tag == completion.tag);
            let place = place
                .unwrap_or_else(|| panic!("{rule}: a queue got a completion of another queue"));
            let (_, block) = in_flight.swap_remove(place);
            self.check(rule, (block * BLOCK) as u64, BLOCK, completion);
        }
        assert!(
            queue.in_flight() == 0,
            "{rule}: reads are in flight after the last completion was taken"
        );
    }

    fn many_queues(&self) {
        let rule = "rule: queues on one thread do not mix their completions, however many reads are in flight";
        let thread = self.thread();
        for (tasks, reads, width) in [(100, 40, 8), (12, 300, 150)] {
            let run: Vec<Task<'_>> = (0..tasks)
                .map(|task| {
                    let mut queue = self.queue(&thread);
                    Box::pin(
                        async move { self.wander(rule, queue.as_mut(), reads, width, task).await },
                    ) as Task<'_>
                })
                .collect();
            thread.run_all(run);
        }
    }

    fn panic_in_a_task(&self) {
        let rule = "rule: after a panic of a task with reads in flight the thread remains usable";
        let thread = self.thread();
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            let tasks: Vec<Task<'_>> = (0..5)
                .map(|task| {
                    let mut queue = self.queue(&thread);
                    Box::pin(async move {
                        self.submit(rule, queue.as_mut(), &[1, 2, 3, 4, 5, 6]);
                        drop(next(queue.as_mut()).await);
                        assert!(task != 3, "on purpose");
                        self.wander(rule, queue.as_mut(), 0, 1, task).await;
                    }) as Task<'_>
                })
                .collect();
            thread.run_all(tasks);
        }));
        assert!(
            outcome.is_err(),
            "{rule}: the panic of the task did not reach the caller"
        );
        let mut queue = self.queue(&thread);
        thread.block_on(self.wander(rule, queue.as_mut(), 50, 8, 1));
    }

    fn many_threads(&self) {
        let rule = "rule: many threads can read at the same time";
        let workers = WorkerPool::new(4, self.io).expect("a pool");
        let calls = AtomicUsize::new(0);
        for _ in 0..3 {
            workers.run(4, &|thread, index| {
                let tasks: Vec<Task<'_>> = (0..8)
                    .map(|task| {
                        let mut queue = self.queue(thread);
                        let seed = (index * 100 + task) as u64;
                        Box::pin(
                            async move { self.wander(rule, queue.as_mut(), 25, 4, seed).await },
                        ) as Task<'_>
                    })
                    .collect();
                thread.run_all(tasks);
                calls.fetch_add(1, Ordering::Relaxed);
            });
        }
        assert!(
            calls.load(Ordering::Relaxed) == 12,
            "{rule}: a worker was not called once in each run"
        );
    }
}
