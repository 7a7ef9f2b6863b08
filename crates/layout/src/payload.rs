//! Reads the payload of a [stream], number by number. Errors have offsets in the file.

use crate::block::{u16_at, u32_at, u64_at};
use crate::error::LayoutError;
use crate::stream;

/// The reader allocates no more memory than the payload has bytes.
#[derive(Debug, Clone)]
pub(crate) struct PayloadReader<'a> {
    bytes: &'a [u8],
    at: usize,
    base: u64,
    file: &'a str,
}

impl<'a> PayloadReader<'a> {
    pub(crate) fn new(bytes: &'a [u8], file: &'a str) -> PayloadReader<'a> {
        PayloadReader::part(bytes, 0, file)
    }

    pub(crate) fn part(bytes: &'a [u8], base: u64, file: &'a str) -> PayloadReader<'a> {
        PayloadReader {
            bytes,
            at: 0,
            base,
            file,
        }
    }

    pub(crate) fn is_at_end(&self) -> bool {
        self.at == self.bytes.len()
    }

    pub(crate) fn at(&self) -> usize {
        self.at
    }

    pub(crate) fn bytes(
        &mut self,
        length: u64,
        what: &'static str,
    ) -> Result<&'a [u8], LayoutError> {
        let left = &self.bytes[self.at..];
        let Some(bytes) = usize::try_from(length).ok().and_then(|n| left.get(..n)) else {
            let found = format!("cut off after {} bytes", left.len());
            return Err(self.wrong(self.at, what, found, format!("{length} bytes")));
        };
        self.at += bytes.len();
        Ok(bytes)
    }

    pub(crate) fn u32(&mut self, what: &'static str) -> Result<u32, LayoutError> {
        Ok(u32_at(self.bytes(4, what)?, 0))
    }

    pub(crate) fn u64(&mut self, what: &'static str) -> Result<u64, LayoutError> {
        Ok(u64_at(self.bytes(8, what)?, 0))
    }

    pub(crate) fn u16s(&mut self, count: u64, what: &'static str) -> Result<Vec<u16>, LayoutError> {
        let bytes = self.bytes(count.saturating_mul(2), what)?;
        Ok(bytes.chunks_exact(2).map(|two| u16_at(two, 0)).collect())
    }

    pub(crate) fn u32s(&mut self, count: u64, what: &'static str) -> Result<Vec<u32>, LayoutError> {
        let bytes = self.bytes(count.saturating_mul(4), what)?;
        Ok(bytes.chunks_exact(4).map(|four| u32_at(four, 0)).collect())
    }

    #[cold]
    pub(crate) fn wrong(
        &self,
        at: usize,
        what: &'static str,
        found: impl ToString,
        expected: impl ToString,
    ) -> LayoutError {
        LayoutError::Field {
            file: self.file.to_owned(),
            offset: stream::file_offset(self.base.saturating_add(at as u64)),
            what,
            found: found.to_string(),
            expected: expected.to_string(),
        }
    }

    pub(crate) fn end(self) -> Result<(), LayoutError> {
        if self.at == self.bytes.len() {
            return Ok(());
        }
        Err(self.wrong(self.at, "payload length", self.bytes.len(), self.at))
    }
}
