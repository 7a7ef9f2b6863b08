//! The requests of one greeted client, in order. Requests that arrive together are answered
//! together, because a system call for each reply would cost more than the reply.

use std::collections::HashMap;
use std::io::{self, ErrorKind, Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use stratann_tier::remote::wire::{
    Frame, HEADER, Kind, MOST_NAME, MOST_READ, MOST_WRITTEN, Refusal,
};

use crate::greeting::{Deadline, nonsense};
use crate::store::{Begun, Store, StoreError, Stored};
use crate::stream::Stream;

/// When a session has collected this many bytes of replies, it sends them.
const COLLECTED: usize = 256 << 10;
/// The most files that a client may have open, and the most files that it may write at once.
const MOST_OPEN: usize = 1 << 16;
const MOST_BEGUN: usize = 16;

pub(crate) struct Session<'a> {
    store: &'a Store,
    stream: Stream,
    /// The session keeps opened files until the client disconnects.
    open: HashMap<u64, Arc<Stored>>,
    /// The open files that the client may read through UCX, without a request.
    reached: HashMap<u64, Arc<Stored>>,
    begun: HashMap<u64, Begun>,
    next_begun: u64,
}

impl<'a> Session<'a> {
    pub(crate) fn new(store: &'a Store, stream: Stream) -> Session<'a> {
        Session {
            store,
            stream,
            open: HashMap::new(),
            reached: HashMap::new(),
            begun: HashMap::new(),
            next_begun: 0,
        }
    }

    /// A client may be idle for any time, but must complete a begun request within `patience`.
    pub(crate) fn serve(&mut self, stop: &AtomicBool, patience: Duration) -> io::Result<()> {
        let mut begun: Option<Deadline> = None;
        let mut input = Vec::new();
        let mut piece = vec![0; 64 << 10];
        let mut out = Vec::new();
        // Without this check, a stopped session could still answer many received requests.
        while !stop.load(Ordering::SeqCst) {
            let left = begun.as_ref().map(Deadline::left).transpose()?;
            self.stream.set_read_timeout(left)?;
            let got = match self.stream.read(&mut piece) {
                Ok(0) => return Ok(()),
                Ok(got) => got,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            };
            input.extend_from_slice(&piece[..got]);
            let mut at = 0;
            while let Some(used) = self.request(&input[at..], &mut out)? {
                at += used;
                if out.len() >= COLLECTED {
                    self.send(&mut out, patience)?;
                }
            }
            input.drain(..at);
            self.send(&mut out, patience)?;
            match &mut begun {
                _ if input.is_empty() => begun = None,
                Some(deadline) if at == 0 => deadline.advance(got),
                _ => begun = Some(Deadline::new(patience)),
            }
        }
        Ok(())
    }

    fn send(&mut self, out: &mut Vec<u8>, patience: Duration) -> io::Result<()> {
        if !out.is_empty() {
            let mut deadline = Deadline::new(patience);
            let mut sent = 0;
            while sent < out.len() {
                self.stream.set_write_timeout(Some(deadline.left()?))?;
                match self.stream.write(&out[sent..]) {
                    Ok(0) => return Err(ErrorKind::WriteZero.into()),
                    Ok(taken) => {
                        sent += taken;
                        deadline.advance(taken);
                    }
                    Err(error) if error.kind() == ErrorKind::Interrupted => {}
                    Err(error) => return Err(error),
                }
            }
            self.stream.set_write_timeout(Some(deadline.left()?))?;
            self.stream.flush()?;
            out.clear();
            out.shrink_to(2 * COLLECTED);
        }
        Ok(())
    }

    /// Answers the first request in `input` and returns its length, or `None` if it is incomplete.
    fn request(&mut self, input: &[u8], out: &mut Vec<u8>) -> io::Result<Option<usize>> {
        let Some((header, rest)) = input.split_first_chunk::<HEADER>() else {
            return Ok(None);
        };
        let (frame, sum) = Frame::decode(header)
            .ok_or_else(|| nonsense("the header of a request is not valid"))?;
        let most = match frame.kind {
            Some(Kind::Open | Kind::Begin) => MOST_NAME,
            Some(Kind::Write) => MOST_WRITTEN as usize,
            Some(Kind::Commit) => blake3::OUT_LEN,
            Some(Kind::Sweep | Kind::List) => 2 * MOST_NAME + 1,
            Some(Kind::Read | Kind::Room | Kind::Reach | Kind::Hash) => 0,
            None => return Err(nonsense("the client sent an answer instead of a request")),
        };
        let len = frame.len as usize;
        if len > most {
            return Err(nonsense("the body of a request is too long"));
        }
        let Some(body) = rest.get(..len) else {
            return Ok(None);
        };
        if !sum.and(body).is_right() {
            return Err(nonsense("the checksum of a request is wrong"));
        }
        if let Err(error) = self.answer(&frame, body, out) {
            let (why, text) = match error {
                StoreError::Refused { why, text } => (why, text),
                error => (Refusal::Other, error.to_string()),
            };
            let text = &text.as_bytes()[..text.len().min(1 << 10)];
            Frame::refusal(frame.tag, why).append(text, out);
        }
        Ok(Some(HEADER + len))
    }

    /// If the request is refused, appends nothing.
    fn answer(&mut self, frame: &Frame, body: &[u8], out: &mut Vec<u8>) -> Result<(), StoreError> {
        let refused = |why, text: &str| {
            Err(StoreError::Refused {
                why,
                text: text.to_owned(),
            })
        };
        let Some(kind) = frame.kind else {
            return Ok(());
        };
        let mut answer = Frame::new(kind, frame.tag);
        match kind {
            Kind::Read => {
                if frame.count > MOST_READ {
                    return refused(
                        Refusal::Range,
                        "the read is longer than one request may read",
                    );
                }
                let file = self.file(frame.file)?;
                answer.append(&file.bytes(frame.offset, frame.count)?, out);
                return Ok(());
            }
            Kind::Open => {
                let name = std::str::from_utf8(body).unwrap_or_default();
                let file = self.store.open(name)?;
                self.keep(&file)?;
                (answer.file, answer.offset) = (file.id(), file.len());
            }
            Kind::Begin => {
                if self.begun.len() >= MOST_BEGUN {
                    return refused(
                        Refusal::Full,
                        "this client writes as many files at once as the server allows",
                    );
                }
                let name = std::str::from_utf8(body).unwrap_or_default();
                let begun = self.store.begin(name, frame.offset)?;
                self.next_begun += 1;
                self.begun.insert(self.next_begun, begun);
                answer.file = self.next_begun;
            }
            Kind::Write => match self.begun.get_mut(&frame.file) {
                Some(begun) => begun.write(frame.offset, body)?,
                None => return refused(Refusal::Missing, "this client has not begun such a file"),
            },
            Kind::Commit => {
                let Some(begun) = self.begun.remove(&frame.file) else {
                    return refused(Refusal::Missing, "this client has not begun such a file");
                };
                let Ok(hash) = body.try_into().map(blake3::Hash::from_bytes) else {
                    return refused(Refusal::Damaged, "the hash of the file has a wrong length");
                };
                let file = self.store.commit(begun, hash)?;
                self.keep(&file)?;
                (answer.file, answer.offset) = (file.id(), file.len());
            }
            Kind::Sweep => {
                let text = std::str::from_utf8(body).unwrap_or_default();
                let Some((prefix, stays)) = text
                    .split_once('\0')
                    .filter(|(prefix, _)| !prefix.is_empty())
                else {
                    return refused(
                        Refusal::Name,
                        "the request does not have the prefix of file names that it needs",
                    );
                };
                self.store.sweep(prefix, stays)?;
            }
            Kind::List => {
                let text = std::str::from_utf8(body).unwrap_or_default();
                let Some((prefix, after)) = text.split_once('\0') else {
                    return refused(
                        Refusal::Name,
                        "the request does not have the prefix of file names that it needs",
                    );
                };
                answer.append(&self.store.list(prefix, after), out);
                return Ok(());
            }
            Kind::Room => answer.offset = self.store.free(),
            Kind::Hash => {
                answer.append(self.file(frame.file)?.hash().as_bytes(), out);
                return Ok(());
            }
            Kind::Reach => {
                let file = self.file(frame.file)?;
                let reach = self.store.reach(&file)?;
                self.keep(&file)?;
                (answer.file, answer.offset) = (file.id(), file.len());
                // An equal file may have replaced the file, at another address. The client may
                // still read the old file.
                let before = self.reached.insert(file.id(), file);
                self.store.retire(before.into_iter());
                answer.append(&reach, out);
                return Ok(());
            }
        }
        answer.append(&[], out);
        Ok(())
    }

    fn file(&self, id: u64) -> Result<Arc<Stored>, StoreError> {
        match self.open.get(&id) {
            Some(file) => Ok(file.clone()),
            None => self.store.find(id),
        }
    }

    fn keep(&mut self, file: &Arc<Stored>) -> Result<(), StoreError> {
        if self.open.len() >= MOST_OPEN {
            return Err(StoreError::Refused {
                why: Refusal::Full,
                text: "this client has as many files open as the server allows".to_owned(),
            });
        }
        self.open.insert(file.id(), file.clone());
        Ok(())
    }
}

impl Drop for Session<'_> {
    fn drop(&mut self) {
        let reached = std::mem::take(&mut self.reached);
        self.store.retire(reached.into_values());
    }
}
