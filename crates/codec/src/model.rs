//! The common part of the bytes of models: a version at the front, and a bounds-checked reader.

use crate::error::CodecError;

pub(crate) struct Reader<'a> {
    what: &'static str,
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    /// Reads the version, which must be `version`. The reader is then positioned after it.
    pub(crate) fn new(
        what: &'static str,
        version: u8,
        bytes: &'a [u8],
    ) -> Result<Reader<'a>, CodecError> {
        let mut reader = Reader { what, bytes, at: 0 };
        let found = reader.u8()?;
        if found != version {
            return Err(CodecError::Version {
                what,
                found,
                expected: version,
            });
        }
        Ok(reader)
    }

    pub(crate) fn take(&mut self, count: usize) -> Result<&'a [u8], CodecError> {
        let taken = self
            .at
            .checked_add(count)
            .and_then(|end| self.bytes.get(self.at..end))
            .ok_or(CodecError::Truncated {
                what: self.what,
                found: self.bytes.len(),
            })?;
        self.at += count;
        Ok(taken)
    }

    pub(crate) fn u8(&mut self) -> Result<u8, CodecError> {
        Ok(self.take(1)?[0])
    }

    pub(crate) fn u32(&mut self) -> Result<u32, CodecError> {
        let mut four = [0; 4];
        four.copy_from_slice(self.take(4)?);
        Ok(u32::from_le_bytes(four))
    }

    /// Refuses bytes after the model.
    pub(crate) fn finish(self) -> Result<(), CodecError> {
        if self.at != self.bytes.len() {
            return Err(CodecError::Length {
                what: self.what,
                found: self.bytes.len(),
                expected: self.at,
            });
        }
        Ok(())
    }

    pub(crate) fn malformed(
        &self,
        what: &'static str,
        found: impl Into<u64>,
        expected: &'static str,
    ) -> CodecError {
        CodecError::Malformed {
            what,
            found: found.into(),
            expected,
        }
    }
}
