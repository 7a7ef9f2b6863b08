//! A tier that wraps another tier and injects faults: errors, short reads, flipped bits, and
//! completions in any order. A script or a seed determines the faults, so that a test can repeat
//! them.

use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};

use crate::buffer::Block;
use crate::error::TierError;
use crate::executor::Thread;
use crate::testing::random::Random;
use crate::tier::{Completion, ReadQueue, Request, Tier};

/// The fault of a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The read fails with this error of the operating system, for example 5 (`EIO`).
    Error(i32),
    /// The read returns only this many bytes, and so fails with [`TierError::Short`].
    Short(u32),
    /// One bit is wrong. Its number is `n` modulo the read's length in bits.
    Flip(u64),
    /// The read completes only after this many other reads of its queue, or as the last one.
    Delay(usize),
}

#[derive(Clone, Debug)]
enum When {
    Read(u64),
    Touches(Range<u64>),
    Randomly { chance: f64, seed: u64 },
}

#[derive(Clone, Debug, Default)]
enum Order {
    #[default]
    AsTheyCome,
    Random(u64),
    Scripted(Arc<[usize]>),
}

/// A script of faults. If several faults apply to a read, the first of them counts.
///
/// ```
/// use stratann_tier::testing::{Fault, Faults};
/// let faults = Faults::none()
///     .at_read(3, Fault::Error(5))
///     .randomly(0.01, 42, Fault::Delay(8))
///     .random_order(7);
/// ```
#[derive(Clone, Debug, Default)]
pub struct Faults {
    rules: Vec<(When, Fault)>,
    order: Order,
}

impl Faults {
    /// Creates a script without faults, with completions in the order of their arrival.
    pub fn none() -> Faults {
        Faults::default()
    }

    /// Adds a fault of read number `n` of the tier, counted from 0 over all queues.
    pub fn at_read(mut self, n: u64, fault: Fault) -> Faults {
        self.rules.push((When::Read(n), fault));
        self
    }

    /// Adds a fault of every read that touches one of these bytes.
    pub fn in_range(mut self, bytes: Range<u64>, fault: Fault) -> Faults {
        self.rules.push((When::Touches(bytes), fault));
        self
    }

    /// Adds a fault of each read with this probability.
    pub fn randomly(mut self, chance: f64, seed: u64, fault: Fault) -> Faults {
        self.rules.push((When::Randomly { chance, seed }, fault));
        self
    }

    /// Delivers completions in random order. To do so, it also withholds completions that have
    /// arrived.
    pub fn random_order(mut self, seed: u64) -> Faults {
        self.order = Order::Random(seed);
        self
    }

    /// Delivers completions in the order of a script, which is repeated. After all reads in flight
    /// of a queue have completed, an entry of the script selects one of them by age.
    pub fn scripted_order(mut self, script: &[usize]) -> Faults {
        self.order = if script.is_empty() {
            Order::AsTheyCome
        } else {
            Order::Scripted(script.into())
        };
        self
    }

    fn of(&self, number: u64, request: Request) -> Option<Fault> {
        let fits = |when: &When| match when {
            When::Read(n) => *n == number,
            When::Touches(bytes) => {
                request.offset < bytes.end && bytes.start < request.offset + u64::from(request.len)
            }
            When::Randomly { chance, seed } => {
                Random::new(seed ^ number.wrapping_mul(0xD6E8_FEB8_6659_FD93)).chance(*chance)
            }
        };
        self.rules
            .iter()
            .find(|(when, _)| fits(when))
            .map(|(_, fault)| *fault)
    }
}

/// A tier with faults.
#[derive(Clone, Debug)]
pub struct Faulty {
    inner: Arc<dyn Tier>,
    faults: Arc<Faults>,
    reads: Arc<AtomicU64>,
    queues: Arc<AtomicU64>,
}

impl Faulty {
    /// Wraps a tier.
    pub fn new(inner: Arc<dyn Tier>, faults: Faults) -> Faulty {
        Faulty {
            inner,
            faults: Arc::new(faults),
            reads: Arc::default(),
            queues: Arc::default(),
        }
    }

    /// The number of reads submitted so far.
    pub fn reads(&self) -> u64 {
        self.reads.load(Ordering::Relaxed)
    }
}

impl Tier for Faulty {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn len(&self) -> u64 {
        self.inner.len()
    }

    fn granularity(&self) -> u32 {
        self.inner.granularity()
    }

    fn alignment(&self) -> u32 {
        self.inner.alignment()
    }

    fn reopen(&self) -> Result<(), TierError> {
        self.inner.reopen()
    }

    fn queue(&self, thread: &Thread) -> Result<Box<dyn ReadQueue>, TierError> {
        let number = self.queues.fetch_add(1, Ordering::Relaxed);
        let seed = if let Order::Random(seed) = self.faults.order {
            seed
        } else {
            0
        };
        Ok(Box::new(FaultyQueue {
            inner: self.inner.queue(thread)?,
            tier: self.clone(),
            sent: Vec::new(),
            held: Vec::new(),
            random: Random::new(seed ^ number.wrapping_mul(0xA076_1D64_78BD_642F)),
            step: 0,
        }))
    }
}

struct Sent {
    request: Request,
    fault: Option<Fault>,
}

struct Held {
    index: u64,
    completion: Completion,
    delay: usize,
}

struct FaultyQueue {
    inner: Box<dyn ReadQueue>,
    tier: Faulty,
    /// The reads since the queue was last empty. Tags of the inner queue are indexes into this
    /// list.
    sent: Vec<Sent>,
    held: Vec<Held>,
    random: Random,
    step: usize,
}

impl FaultyQueue {
    fn hold(&mut self, completion: Completion) {
        let index = completion.tag;
        let Sent { request, fault } = &self.sent[index as usize];
        let place = || self.tier.inner.name().to_owned();
        let mut delay = 0;
        let result = match (fault, completion.result) {
            (Some(Fault::Error(errno)), _) => {
                let error = io::Error::from_raw_os_error(*errno);
                Err(TierError::io(
                    "read",
                    place(),
                    request.offset,
                    u64::from(request.len),
                    error,
                ))
            }
            (Some(Fault::Short(got)), _) => Err(TierError::Short {
                place: place(),
                offset: request.offset,
                wanted: u64::from(request.len),
                got: u64::from(*got),
            }),
            (Some(Fault::Flip(bit)), Ok(block)) => {
                let mut bytes = block.to_vec();
                let bit = (bit % (bytes.len() as u64 * 8)) as usize;
                bytes[bit / 8] ^= 1 << (bit % 8);
                Ok(Block::copy_of(&bytes))
            }
            (Some(Fault::Delay(others)), result) => {
                delay = *others;
                result
            }
            (_, result) => result,
        };
        let completion = Completion {
            tag: request.tag,
            result,
        };
        self.held.push(Held {
            index,
            completion,
            delay,
        });
    }

    fn hand_out(&mut self, position: usize) -> Completion {
        let held = self.held.remove(position);
        for other in &mut self.held {
            other.delay = other.delay.saturating_sub(1);
        }
        if self.in_flight() == 0 {
            self.sent.clear();
        }
        held.completion
    }

    /// If `eager` is true and the inner queue is empty, delivers a completion: the caller would
    /// wait forever.
    fn pick(&mut self, eager: bool) -> Option<Completion> {
        if self.held.is_empty() {
            return None;
        }
        let all_in = self.inner.in_flight() == 0;
        match &self.tier.faults.order {
            Order::AsTheyCome => {
                let mut position = self.held.iter().position(|held| held.delay == 0);
                if position.is_none() && all_in {
                    position = (0..self.held.len()).min_by_key(|&i| self.held[i].delay);
                }
                Some(self.hand_out(position?))
            }
            Order::Random(_) => {
                if self.random.coin() && !(eager && all_in) {
                    return None;
                }
                let ready: Vec<usize> = (0..self.held.len())
                    .filter(|&i| self.held[i].delay == 0)
                    .collect();
                let position = match ready.len() {
                    0 if all_in => self.random.below(self.held.len()),
                    0 => return None,
                    n => ready[self.random.below(n)],
                };
                Some(self.hand_out(position))
            }
            Order::Scripted(script) => {
                if !all_in {
                    return None;
                }
                let entry = script[self.step % script.len()] % self.held.len();
                self.step += 1;
                self.held.sort_by_key(|held| held.index);
                Some(self.hand_out(entry))
            }
        }
    }
}

impl ReadQueue for FaultyQueue {
    fn submit(&mut self, request: Request) -> Result<(), TierError> {
        let index = self.sent.len() as u64;
        self.inner.submit(Request {
            tag: index,
            ..request
        })?;
        let number = self.tier.reads.fetch_add(1, Ordering::Relaxed);
        self.sent.push(Sent {
            request,
            fault: self.tier.faults.of(number, request),
        });
        Ok(())
    }

    fn flush(&mut self) {
        self.inner.flush();
    }

    fn in_flight(&self) -> usize {
        self.inner.in_flight() + self.held.len()
    }

    fn try_next(&mut self) -> Option<Completion> {
        while let Some(completion) = self.inner.try_next() {
            self.hold(completion);
        }
        self.pick(false)
    }

    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Completion> {
        assert!(
            self.in_flight() > 0,
            "poll_next on a queue with no read in flight would wait for ever"
        );
        loop {
            if let Some(completion) = self.pick(true) {
                return Poll::Ready(completion);
            }
            // At least one read is still in the inner queue, or `pick` would have delivered one.
            match self.inner.poll_next(cx) {
                Poll::Ready(completion) => self.hold(completion),
                Poll::Pending => return Poll::Pending,
            }
        }
    }

    fn reset(&mut self) {
        self.inner.reset();
        self.sent.clear();
        self.held.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::IoMode;
    use crate::dram::DramTier;
    use crate::tier::next;

    fn read_all(faults: Faults, reads: u64) -> Vec<(u64, Result<Vec<u8>, TierError>)> {
        let bytes: Vec<u8> = (0..reads * 64).map(|i| (i / 64) as u8).collect();
        let tier = Faulty::new(Arc::new(DramTier::new(bytes)), faults);
        let thread = Thread::local(IoMode::Pread).unwrap();
        let mut queue = tier.queue(&thread).unwrap();
        for tag in 0..reads {
            queue
                .submit(Request {
                    tag,
                    offset: tag * 64,
                    len: 64,
                })
                .unwrap();
        }
        let mut seen = Vec::new();
        thread.block_on(async {
            while queue.in_flight() > 0 {
                let completion = next(queue.as_mut()).await;
                seen.push((
                    completion.tag,
                    completion.result.map(|block| block.to_vec()),
                ));
            }
        });
        assert_eq!(tier.reads(), reads);
        seen
    }

    #[test]
    fn faults_meet_the_reads_they_are_meant_for() {
        let faults = Faults::none()
            .at_read(1, Fault::Error(libc::EIO))
            .in_range(3 * 64 + 10..3 * 64 + 11, Fault::Flip(9))
            .at_read(4, Fault::Short(17))
            .at_read(0, Fault::Delay(3));
        let seen = read_all(faults, 6);
        let tags: Vec<u64> = seen.iter().map(|(tag, _)| *tag).collect();
        assert_eq!(tags, [1, 2, 3, 0, 4, 5]);
        for (tag, result) in seen {
            match (tag, result) {
                (
                    1,
                    Err(TierError::Io {
                        offset: 64, source, ..
                    }),
                ) => assert_eq!(source.raw_os_error(), Some(libc::EIO)),
                (3, Ok(bytes)) => {
                    let mut right = vec![3u8; 64];
                    right[1] ^= 2;
                    assert_eq!(bytes, right);
                }
                (
                    4,
                    Err(TierError::Short {
                        wanted: 64,
                        got: 17,
                        offset: 256,
                        ..
                    }),
                ) => {}
                (0 | 2 | 5, Ok(bytes)) => assert_eq!(bytes, vec![tag as u8; 64]),
                (tag, result) => panic!("read {tag} gave {result:?}"),
            }
        }
    }

    #[test]
    fn orders_are_repeatable_and_differ() {
        let order = |faults| {
            read_all(faults, 20)
                .into_iter()
                .map(|(tag, _)| tag)
                .collect::<Vec<_>>()
        };
        let first = order(Faults::none().random_order(1));
        assert_eq!(first, order(Faults::none().random_order(1)));
        assert_ne!(first, order(Faults::none().random_order(2)));
        let mut sorted = first;
        sorted.sort_unstable();
        assert_eq!(sorted, (0..20).collect::<Vec<_>>());
        let scripted = order(Faults::none().scripted_order(&[usize::MAX - 15, 0]));
        assert_eq!(scripted.len(), 20);
        assert_eq!(
            order(Faults::none().scripted_order(&[0])),
            (0..20).collect::<Vec<_>>()
        );
        let failures = read_all(
            Faults::none().randomly(0.3, 5, Fault::Error(libc::EIO)),
            200,
        );
        let failed = failures
            .iter()
            .filter(|(_, result)| result.is_err())
            .count();
        assert!((30..90).contains(&failed), "{failed} of 200 failed");
    }
}
