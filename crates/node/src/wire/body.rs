//! Reads the body of a frame from its beginning. The byte table is in [`wire`](super).

use super::change::{Ids, MOST_WANTED, Token, Wanted};
use super::message::{Answers, MissingNodes};
use super::{MOST_NODES, MOST_ROW, Nodes, Scored, WireError, u32_at, u64_at};

pub(super) struct Body<'a> {
    kind: &'static str,
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Body<'a> {
    pub(super) fn new(kind: &'static str, bytes: &'a [u8]) -> Body<'a> {
        Body { kind, bytes, at: 0 }
    }

    pub(super) fn wrong<T>(&self, what: &'static str) -> Result<T, WireError> {
        Err(WireError::Body {
            kind: self.kind,
            what,
            offset: self.at,
            len: self.bytes.len(),
        })
    }

    pub(super) fn take(&mut self, count: usize) -> Result<&'a [u8], WireError> {
        match self.bytes[self.at..].get(..count) {
            Some(taken) => {
                self.at += count;
                Ok(taken)
            }
            None => self.wrong("the message ends too early"),
        }
    }

    pub(super) fn u32(&mut self) -> Result<u32, WireError> {
        Ok(u32_at(self.take(4)?, 0))
    }

    pub(super) fn u64(&mut self) -> Result<u64, WireError> {
        Ok(u64_at(self.take(8)?, 0))
    }

    /// A number that is used as a length, between `least` and [`MOST_NODES`].
    pub(super) fn bounded(&mut self, least: u32, what: &'static str) -> Result<u32, WireError> {
        let number = self.u32()?;
        match (least..=MOST_NODES as u32).contains(&number) {
            true => Ok(number),
            false => self.wrong(what),
        }
    }

    pub(super) fn rest(&mut self) -> &'a [u8] {
        let rest = &self.bytes[self.at..];
        self.at = self.bytes.len();
        rest
    }

    pub(super) fn row(&mut self, len: usize) -> Result<&'a [u8], WireError> {
        match (1..=MOST_ROW).contains(&len) {
            true => self.take(len),
            false => self.wrong("the row has no bytes, or more than 1 MiB"),
        }
    }

    pub(super) fn rest_row(&mut self) -> Result<&'a [u8], WireError> {
        self.row(self.bytes.len() - self.at)
    }

    pub(super) fn scored(&mut self) -> Result<Scored<'a>, WireError> {
        let count = self.bounded(0, "the message has more nodes than allowed")? as usize;
        let Some(gaps) = (self.bytes.len() - self.at).checked_sub(4 * count) else {
            return self.wrong("the message ends too early");
        };
        Ok(Scored {
            nodes: Nodes(self.take(gaps)?),
            estimates: self.rest(),
        })
    }

    /// Reads the nodes whose low codes are missing. With 0 `bytes`, no numbers precede the nodes.
    pub(super) fn missing(&mut self, bytes: u32) -> Result<MissingNodes<'a>, WireError> {
        if bytes == 0 {
            return Ok(MissingNodes::NONE);
        }
        let (most, bound) = (self.u32()?, f32::from_bits(self.u32()?));
        let nodes = Nodes(self.take(bytes as usize)?);
        Ok(MissingNodes { most, bound, nodes })
    }

    pub(super) fn answers(&mut self) -> Result<Answers<'a>, WireError> {
        let count = self.bounded(0, "the message has more results than allowed")? as usize;
        let (ids, distances) = (self.take(8 * count)?, self.take(4 * count)?);
        Ok(Answers { ids, distances })
    }

    pub(super) fn token(&mut self) -> Result<Token, WireError> {
        Ok(Token {
            run: self.u64()?,
            client: self.u64()?,
            number: self.u64()?,
        })
    }

    /// Reads the `count` changes that a client waits for; `number` must be one of them.
    pub(super) fn wanted(
        &mut self,
        newest: u64,
        count: usize,
        number: u64,
    ) -> Result<Wanted<'a>, WireError> {
        if count > MOST_WANTED {
            return self.wrong("the client waits for more than 4,096 changes");
        }
        let numbers = Ids(self.take(8 * count)?);
        let wanted = Wanted { newest, numbers };
        match wanted.has(number) {
            true => Ok(wanted),
            false => self.wrong("the client does not wait for this change"),
        }
    }

    pub(super) fn end(&self) -> Result<(), WireError> {
        match self.at == self.bytes.len() {
            true => Ok(()),
            false => self.wrong("bytes follow the end of the message"),
        }
    }
}
