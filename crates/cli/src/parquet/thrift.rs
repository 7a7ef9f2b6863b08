//! Reads Thrift's compact protocol, as far as footers and page headers use it.
//!
//! The Parquet crate later reads the same bytes without a check of the types of fields. So a known
//! field with a wrong type is refused here; otherwise, the two readers would see different
//! structures.

pub const I32: u8 = 5;
pub const TEXT: u8 = 8;
pub const LIST: u8 = 9;
pub const STRUCT: u8 = 12;
const BYTE: u8 = 3;
/// The boolean false. Type 1 is the boolean true: the type of a boolean field is also its value.
const BOOLEAN: u8 = 2;

/// The maximum depth of nested structures, the same as in the Parquet crate.
const DEEPEST: u8 = 64;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Malformed {
    Ended,
    /// A type or a number is not valid at its position.
    Wrong,
}

pub struct Thrift<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Thrift<'a> {
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    pub fn position(&self) -> usize {
        self.at
    }

    fn byte(&mut self) -> Result<u8, Malformed> {
        let byte = self.bytes.get(self.at).ok_or(Malformed::Ended)?;
        self.at += 1;
        Ok(*byte)
    }

    fn step(&mut self, bytes: u64) -> Result<(), Malformed> {
        let bytes = usize::try_from(bytes).map_err(|_| Malformed::Ended)?;
        let end = self.at.checked_add(bytes).ok_or(Malformed::Ended)?;
        if end > self.bytes.len() {
            return Err(Malformed::Ended);
        }
        self.at = end;
        Ok(())
    }

    /// A number is stored in groups of 7 bits.
    pub fn unsigned(&mut self) -> Result<u64, Malformed> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(Malformed::Wrong)
    }

    /// For a field of 16 or 32 bits, the caller takes the lowest bits.
    pub fn signed(&mut self) -> Result<i64, Malformed> {
        let value = self.unsigned()?;
        Ok((value >> 1) as i64 ^ -((value & 1) as i64))
    }

    /// Reads the next field's number and type; `None` at the end. `last` is the last number, or 0.
    pub fn field(&mut self, last: &mut i16) -> Result<Option<(i16, u8)>, Malformed> {
        let byte = self.byte()?;
        let kind = byte & 15;
        if kind == 0 {
            return Ok(None);
        }
        *last = match byte >> 4 {
            0 => self.signed()? as i16,
            delta => (last.checked_add(delta.into())).ok_or(Malformed::Wrong)?,
        };
        Ok(Some((*last, kind)))
    }

    /// Returns the type of the items, and their number.
    pub fn list(&mut self) -> Result<(u8, u64), Malformed> {
        let byte = self.byte()?;
        let items = match byte >> 4 {
            15 => self.unsigned()?,
            few => few.into(),
        };
        Ok((byte & 15, items))
    }

    pub fn skip(&mut self, kind: u8) -> Result<(), Malformed> {
        self.skip_within(kind, DEEPEST)
    }

    fn skip_within(&mut self, kind: u8, depth: u8) -> Result<(), Malformed> {
        let depth = depth.checked_sub(1).ok_or(Malformed::Wrong)?;
        match kind {
            1 | BOOLEAN => Ok(()),
            BYTE => self.step(1),
            4 | I32 | 6 => self.unsigned().map(|_| ()),
            7 => self.step(8),
            TEXT => {
                let bytes = self.unsigned()?;
                self.step(bytes)
            }
            LIST | 10 => match self.list()? {
                (_, 0) => Ok(()),
                // Writers encode booleans in lists in different ways.
                (1 | BOOLEAN, _) => Err(Malformed::Wrong),
                (kind, items) => (0..items).try_for_each(|_| self.skip_within(kind, depth)),
            },
            STRUCT => {
                let mut last = 0;
                while let Some((_, kind)) = self.field(&mut last)? {
                    self.skip_within(kind, depth)?;
                }
                Ok(())
            }
            13 => self.step(16),
            // These are unknown types, and maps, which Parquet's structures never contain.
            _ => Err(Malformed::Wrong),
        }
    }

    /// Refuses a field in `known` that has another type.
    fn skip_known(&mut self, known: &[(i16, u8)]) -> Result<(), Malformed> {
        let mut last = 0;
        while let Some((id, kind)) = self.field(&mut last)? {
            let is_other = |&(of, is): &(i16, u8)| of == id && is != kind.max(BOOLEAN);
            if known.iter().any(is_other) {
                return Err(Malformed::Wrong);
            }
            self.skip(kind)?;
        }
        Ok(())
    }

    /// Checks the types of known fields.
    pub fn skip_logical_type(&mut self) -> Result<(), Malformed> {
        const DECIMAL: &[(i16, u8)] = &[(1, I32), (2, I32)];
        const TIME: &[(i16, u8)] = &[(1, BOOLEAN), (2, STRUCT)];
        const INTEGER: &[(i16, u8)] = &[(1, BYTE), (2, BOOLEAN)];
        let mut last = 0;
        while let Some((id, kind)) = self.field(&mut last)? {
            if kind != STRUCT {
                return Err(Malformed::Wrong);
            }
            match id {
                5 => self.skip_known(DECIMAL)?,
                7 | 8 => self.skip_known(TIME)?,
                10 => self.skip_known(INTEGER)?,
                16 => self.skip_known(&[(1, BYTE)])?,
                17 => self.skip_known(&[(1, TEXT)])?,
                18 => self.skip_known(&[(1, TEXT), (2, I32)])?,
                _ => self.skip(STRUCT)?,
            }
        }
        Ok(())
    }
}
