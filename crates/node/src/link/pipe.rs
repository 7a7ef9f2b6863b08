//! A connection within a process: one queue of bytes for each direction.

use std::collections::VecDeque;
use std::fmt;
use std::io::{self, ErrorKind, Read, Write};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The largest number of bytes that wait in one direction.
const MOST: usize = 1 << 20;

#[derive(Default)]
struct Queue {
    bytes: VecDeque<u8>,
    /// Whether the direction is closed.
    over: bool,
}

#[derive(Default)]
struct Way {
    queue: Mutex<Queue>,
    /// Signalled when bytes or space become available, or at the end.
    stirs: Condvar,
}

impl Way {
    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn when(
        &self,
        limit: Option<Duration>,
        holds: impl Fn(&Queue) -> bool,
    ) -> io::Result<MutexGuard<'_, Queue>> {
        let until = limit.map(|limit| Instant::now() + limit);
        let mut queue = self.queue();
        while !holds(&queue) {
            let Some(until) = until else {
                queue = self
                    .stirs
                    .wait(queue)
                    .unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(ErrorKind::TimedOut.into());
            }
            let waited = self.stirs.wait_timeout(queue, left);
            queue = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        Ok(queue)
    }

    fn close(&self) {
        self.queue().over = true;
        self.stirs.notify_all();
    }
}

/// Its drop closes its direction: later writes at the other end fail. The other direction stays
/// open.
pub(crate) struct PipeReader {
    way: Arc<Way>,
    limit: Option<Duration>,
}

/// Its drop closes its direction: the other end reads the bytes that wait, and then the end. The
/// other direction stays open.
pub(crate) struct PipeWriter {
    way: Arc<Way>,
    limit: Option<Duration>,
}

pub(crate) struct Pipe {
    pub(crate) reader: PipeReader,
    pub(crate) writer: PipeWriter,
}

#[derive(Clone)]
pub(crate) struct Closer {
    ways: [Arc<Way>; 2],
}

impl fmt::Debug for Closer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Closer")
    }
}

impl Closer {
    pub(crate) fn close(&self) {
        self.ways.iter().for_each(|way| way.close());
    }
}

pub(crate) fn pair() -> (Pipe, Pipe) {
    let (there, back) = (Arc::<Way>::default(), Arc::<Way>::default());
    let end = |input: &Arc<Way>, output: &Arc<Way>| Pipe {
        reader: PipeReader {
            way: input.clone(),
            limit: None,
        },
        writer: PipeWriter {
            way: output.clone(),
            limit: None,
        },
    };
    (end(&back, &there), end(&there, &back))
}

impl Pipe {
    pub(crate) fn closer(&self) -> Closer {
        Closer {
            ways: [self.reader.way.clone(), self.writer.way.clone()],
        }
    }
}

impl PipeReader {
    pub(crate) fn set_timeout(&mut self, limit: Option<Duration>) {
        self.limit = limit;
    }
}

impl PipeWriter {
    pub(crate) fn set_timeout(&mut self, limit: Option<Duration>) {
        self.limit = limit;
    }
}

impl Read for PipeReader {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let mut queue = self
            .way
            .when(self.limit, |queue| !queue.bytes.is_empty() || queue.over)?;
        let full = queue.bytes.len() >= MOST;
        let got = queue.bytes.read(out)?;
        drop(queue);
        if full {
            self.way.stirs.notify_all();
        }
        Ok(got)
    }
}

impl Write for PipeWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut queue = self
            .way
            .when(self.limit, |queue| queue.bytes.len() < MOST || queue.over)?;
        if queue.over {
            return Err(ErrorKind::BrokenPipe.into());
        }
        let empty = queue.bytes.is_empty();
        let taken = bytes.len().min(MOST - queue.bytes.len());
        queue.bytes.extend(&bytes[..taken]);
        drop(queue);
        if empty {
            self.way.stirs.notify_all();
        }
        Ok(taken)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for PipeReader {
    fn drop(&mut self) {
        self.way.close();
    }
}

impl Drop for PipeWriter {
    fn drop(&mut self) {
        self.way.close();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    #[test]
    fn all_bytes_come_in_order_though_there_is_room_for_few() {
        let (mut one, mut other) = pair();
        let bytes: Vec<u8> = (0..3 * MOST).map(|at| (at % 251) as u8).collect();
        let sent = bytes.clone();
        let writes = thread::spawn(move || {
            one.writer.write_all(&sent).unwrap();
            // The reader of the same end can still be used.
            drop(one.writer);
            let mut end = Vec::new();
            one.reader.read_to_end(&mut end).unwrap();
            end
        });
        let mut found = Vec::new();
        other.reader.read_to_end(&mut found).unwrap();
        assert!(found == bytes);
        other.writer.write_all(b"bye").unwrap();
        drop(other);
        assert_eq!(writes.join().unwrap(), b"bye");
    }

    #[test]
    fn waits_have_an_end() {
        let (mut one, other) = pair();
        one.reader.set_timeout(Some(Duration::from_millis(5)));
        let read = one.reader.read(&mut [0]);
        assert_eq!(read.unwrap_err().kind(), ErrorKind::TimedOut);
        one.writer.set_timeout(Some(Duration::from_millis(5)));
        let error = one.writer.write_all(&vec![0; 2 * MOST]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TimedOut);
        let closer = other.closer();
        closer.close();
        assert_eq!(one.reader.read(&mut [0]).unwrap(), 0);
        assert_eq!(
            one.writer.write(&[0]).unwrap_err().kind(),
            ErrorKind::BrokenPipe
        );
    }
}
