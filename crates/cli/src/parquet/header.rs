//! Reads page headers.

use std::fs::File;
use std::os::unix::fs::FileExt;

use parquet::errors::{ParquetError, Result};

use super::thrift::{I32, Malformed, STRUCT, Thrift};

/// The fields of a page header that determine the memory of the page, with sizes in bytes.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Header {
    pub length: u64,
    pub kind: Kind,
    /// The size of the page in the file, without the header.
    pub compressed: u64,
    pub uncompressed: u64,
    /// The number of values, including nulls.
    pub values: u64,
    /// The encoding of the values, by its number in the format.
    pub encoding: i32,
    /// The size of the levels, which are never compressed in a page of version 2.
    pub levels: u64,
    /// Whether the bytes after the levels are compressed, in a compressed column.
    pub is_compressed: bool,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    #[default]
    Data,
    Dictionary,
    /// The reader skips other pages.
    Other,
}

impl Header {
    /// Reads the header of at most `most` bytes at offset `at`.
    pub fn read(file: &File, at: u64, most: u64) -> Result<Self> {
        // Only headers with long texts in their statistics are longer than 1 KiB.
        let (mut room, longest) = (1 << 10, 16 << 20);
        loop {
            let now = most.min(room);
            let mut bytes = vec![0; usize::try_from(now)?];
            file.read_exact_at(&mut bytes, at)?;
            match Self::parse(&bytes) {
                Ok(Some(header)) => return Ok(header),
                Err(Malformed::Ended) if now < most && room < longest => room *= 8,
                _ => break,
            }
        }
        let found = format!("there is no page header at offset {at}");
        Err(ParquetError::General(found))
    }

    /// Returns `None` if a size is missing or negative, or if the levels are larger than the page.
    fn parse(bytes: &[u8]) -> std::result::Result<Option<Self>, Malformed> {
        let mut thrift = Thrift::new(bytes);
        let mut header = Self {
            is_compressed: true,
            ..Self::default()
        };
        let (mut kind, mut sizes, mut last) = (-1, [-1; 2], 0);
        let mut levels = [0; 2];
        let mut values = 0;
        while let Some((id, of)) = thrift.field(&mut last)? {
            let expected = match id {
                1..=4 => I32,
                5..=8 => STRUCT,
                _ => of,
            };
            match id {
                _ if of != expected => return Err(Malformed::Wrong),
                1 => kind = number(&mut thrift)?,
                2 => sizes[1] = number(&mut thrift)?,
                3 => sizes[0] = number(&mut thrift)?,
                5 | 7 | 8 => {
                    let mut last = 0;
                    while let Some((field, of)) = thrift.field(&mut last)? {
                        let is_number = match id {
                            5 => field <= 4,
                            7 => field <= 2,
                            _ => field <= 6,
                        };
                        if is_number != (of == I32) {
                            return Err(Malformed::Wrong);
                        }
                        match (id, field) {
                            (_, 1) => values = number(&mut thrift)?,
                            (5 | 7, 2) | (8, 4) => header.encoding = number(&mut thrift)?,
                            (8, 5) => levels[0] = number(&mut thrift)?,
                            (8, 6) => levels[1] = number(&mut thrift)?,
                            (8, 7) => {
                                header.is_compressed = of == 1;
                                thrift.skip(of)?;
                            }
                            _ => thrift.skip(of)?,
                        }
                    }
                }
                _ => thrift.skip(of)?,
            }
        }
        header.length = thrift.position() as u64;
        header.kind = match kind {
            0 | 3 => Kind::Data,
            2 => Kind::Dictionary,
            _ => Kind::Other,
        };
        let all = [sizes[0], sizes[1], values, levels[0], levels[1]].map(u64::try_from);
        let [
            Ok(compressed),
            Ok(uncompressed),
            Ok(values),
            Ok(before),
            Ok(behind),
        ] = all
        else {
            return Ok(None);
        };
        header.compressed = compressed;
        header.uncompressed = uncompressed;
        header.values = values;
        header.levels = before + behind;
        Ok((header.levels <= compressed).then_some(header))
    }
}

fn number(thrift: &mut Thrift) -> std::result::Result<i32, Malformed> {
    Ok(thrift.signed()? as i32)
}
