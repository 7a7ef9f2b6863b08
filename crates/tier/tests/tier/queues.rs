//! Tests of several queues of one thread.

use std::collections::VecDeque;
use std::task::{Context, Poll};

use stratann_tier::{
    Completion, DramTier, IoMode, ReadQueue, Request, Thread, Tier, TierError, next_of,
};

struct Held {
    reads: VecDeque<u64>,
    open: bool,
}

impl ReadQueue for Held {
    fn submit(&mut self, request: Request) -> Result<(), TierError> {
        self.reads.push_back(request.tag);
        Ok(())
    }
    fn flush(&mut self) {}
    fn in_flight(&self) -> usize {
        self.reads.len()
    }
    fn try_next(&mut self) -> Option<Completion> {
        None
    }
    fn poll_next(&mut self, _: &mut Context<'_>) -> Poll<Completion> {
        match self.reads.pop_front().filter(|_| self.open) {
            Some(tag) => Poll::Ready(Completion {
                tag,
                result: Err(TierError::Crashed {
                    place: "held".to_owned(),
                }),
            }),
            None => {
                self.reads.push_front(0);
                Poll::Pending
            }
        }
    }
    fn reset(&mut self) {}
}

#[test]
fn what_comes_from_one_of_several_queues_waits_for_no_other() {
    let thread = Thread::local(IoMode::Pread).unwrap();
    let tier = DramTier::new(vec![7; 8192]);
    let held = Held {
        reads: VecDeque::new(),
        open: false,
    };
    let mut queues: Vec<Box<dyn ReadQueue>> = vec![
        Box::new(held),
        tier.queue(&thread).unwrap(),
        tier.queue(&thread).unwrap(),
    ];
    let (offset, len) = (0, 4096);
    for (at, tag) in [(0, 0), (1, 1), (2, 2), (1, 3)] {
        queues[at].submit(Request { tag, offset, len }).unwrap();
    }
    let mut came: Vec<u64> = (0..3)
        .map(|_| {
            let done = thread.block_on(next_of(&mut queues)).unwrap();
            assert_eq!(done.result.unwrap()[..], [7; 4096]);
            done.tag
        })
        .collect();
    came.sort_unstable();
    assert_eq!(came, [1, 2, 3]);
    queues[0] = Box::new(Held {
        reads: VecDeque::from([9]),
        open: true,
    });
    assert_eq!(thread.block_on(next_of(&mut queues)).unwrap().tag, 9);
    assert!(thread.block_on(next_of(&mut queues)).is_none());
}
