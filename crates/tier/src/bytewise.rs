//! An adapter for reads of any byte range of a tier, which reads the blocks around the bytes.
//!
//! ```text
//!   requested          |--- 272 bytes ---|
//!   read      [ block           ][ block           ]    the requested part is returned, not copied
//! ```
//!
//! Structures that are laid out for memory (rows of a CSR graph, groups of clusters) start at any
//! byte of their file.

use std::sync::Arc;
use std::task::{Context, Poll};

use crate::error::TierError;
use crate::executor::Thread;
use crate::tier::{Completion, ReadQueue, Request, Tier, check};

/// The tier itself, or if necessary a tier that reads the blocks around a range.
pub fn bytewise(tier: Arc<dyn Tier>) -> Arc<dyn Tier> {
    match tier.alignment() {
        1 => tier,
        _ => Arc::new(Bytewise(tier)),
    }
}

#[derive(Debug)]
struct Bytewise(Arc<dyn Tier>);

impl Tier for Bytewise {
    fn name(&self) -> &str {
        self.0.name()
    }

    fn len(&self) -> u64 {
        self.0.len()
    }

    fn granularity(&self) -> u32 {
        self.0.granularity()
    }

    fn alignment(&self) -> u32 {
        1
    }

    fn reopen(&self) -> Result<(), TierError> {
        self.0.reopen()
    }

    fn queue(&self, thread: &Thread) -> Result<Box<dyn ReadQueue>, TierError> {
        Ok(Box::new(Parts {
            name: self.0.name().into(),
            size: self.0.len(),
            alignment: u64::from(self.0.alignment()),
            queue: self.0.queue(thread)?,
            asked: Vec::new(),
            free: Vec::new(),
        }))
    }
}

#[derive(Clone, Copy)]
struct Asked {
    tag: u64,
    skip: u32,
    len: u32,
}

struct Parts {
    name: Box<str>,
    size: u64,
    alignment: u64,
    queue: Box<dyn ReadQueue>,
    /// The tag of a read of blocks is an index into this array. Free indexes are reused.
    asked: Vec<Asked>,
    free: Vec<u32>,
}

impl Parts {
    fn part(&mut self, done: Completion) -> Completion {
        let Asked { tag, skip, len } = self.asked[done.tag as usize];
        self.free.push(done.tag as u32);
        Completion {
            tag,
            result: done.result.map(|block| block.part(skip, len)),
        }
    }
}

impl ReadQueue for Parts {
    fn submit(&mut self, request: Request) -> Result<(), TierError> {
        check(&self.name, self.size, 1, request)?;
        let start = request.offset - request.offset % self.alignment;
        let end = request.offset + u64::from(request.len);
        let len = end.next_multiple_of(self.alignment) - start;
        let Ok(len) = u32::try_from(len) else {
            let most = u64::from(u32::MAX);
            return Err(TierError::TooLong {
                place: self.name.to_string(),
                offset: request.offset,
                len: request.len.into(),
                most: most - most % self.alignment,
            });
        };
        let asked = Asked {
            tag: request.tag,
            skip: (request.offset - start) as u32,
            len: request.len,
        };
        let place = match self.free.pop() {
            Some(place) => {
                self.asked[place as usize] = asked;
                place
            }
            None => {
                self.asked.push(asked);
                self.asked.len() as u32 - 1
            }
        };
        let submitted = self.queue.submit(Request {
            tag: place.into(),
            offset: start,
            len,
        });
        if submitted.is_err() {
            self.free.push(place);
        }
        submitted
    }

    fn flush(&mut self) {
        self.queue.flush();
    }

    fn in_flight(&self) -> usize {
        self.queue.in_flight()
    }

    fn try_next(&mut self) -> Option<Completion> {
        let done = self.queue.try_next()?;
        Some(self.part(done))
    }

    fn need(&mut self, completions: usize) {
        self.queue.need(completions);
    }

    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Completion> {
        self.queue.poll_next(cx).map(|done| self.part(done))
    }

    fn reset(&mut self) {
        self.queue.reset();
        self.asked.clear();
        self.free.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{FileTier, IoMode};

    #[test]
    fn a_read_that_needs_4_gib_of_blocks_is_not_called_a_read_of_a_short_file() {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(5 << 30).unwrap();
        let plain = Arc::new(FileTier::open(file.path()).unwrap());
        assert!(plain.alignment() > 1);
        let thread = Thread::local(IoMode::Pread).unwrap();
        let mut queue = bytewise(plain).queue(&thread).unwrap();
        let request = Request {
            tag: 0,
            offset: 1,
            len: u32::MAX,
        };
        let said = queue.submit(request).unwrap_err().to_string();
        assert!(
            said.contains(": 4294967295 bytes at byte 1 are to be read"),
            "{said}"
        );
        assert!(said.contains("has at most 429496"), "{said}");
        assert!(!said.contains("truncated"), "{said}");
        assert_eq!(queue.in_flight(), 0);
    }
}
