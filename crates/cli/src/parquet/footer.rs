//! Reads the footer of a file. Before, it checks the size of the footer and the depth of the
//! schema, which the Parquet crate does not check.
//!
//! ```text
//!   FileMetaData   1: i32 version   2: list<SchemaElement> schema   3: i64 num_rows   4: ..
//!   u32 its length   "PAR1"
//! ```
//!
//! A schema is a list of elements with the number of their children. The crate builds the schema by
//! recursion, so a deep schema would overflow the stack. This module checks the depth, and gives
//! the crate the schema in a small footer. Then the crate reads the whole footer with this schema.

use std::fs::File;
use std::os::unix::fs::FileExt;

use parquet::file::metadata::{FooterTail, ParquetMetaDataReader, ParquetStatisticsPolicy};
use parquet::file::serialized_reader::{ReadOptionsBuilder, SerializedFileReader};

use super::budget::Budget;
use super::error::ParquetError;
use super::thrift::{I32, LIST, Malformed, STRUCT, TEXT, Thrift};

/// The maximum depth of nested groups. A list takes two groups.
const DEEPEST: usize = 64;

/// The most bytes in memory for each byte of a footer.
const IN_MEMORY: u64 = 25;

/// Opens a file, and takes its footer's memory from the budget. Fails if the schema is too deep.
pub fn open(file: File, budget: &Budget) -> Result<SerializedFileReader<File>, ParquetError> {
    const TAIL: u64 = 8;
    let length = file.metadata().map_err(unreadable)?.len();
    let mut tail = [0; TAIL as usize];
    let at = length.checked_sub(TAIL).ok_or_else(|| cut(length))?;
    file.read_exact_at(&mut tail, at).map_err(unreadable)?;
    let tail = FooterTail::try_new(&tail)?;
    if tail.is_encrypted_footer() {
        return Err(ParquetError::Unreadable {
            found: "its footer is encrypted".to_owned(),
        });
    }
    let bytes = tail.metadata_length();
    let at = at.checked_sub(bytes as u64).ok_or_else(|| cut(length))?;
    budget.take((bytes as u64).saturating_mul(IN_MEMORY))?;
    let mut footer = vec![0; bytes];
    file.read_exact_at(&mut footer, at).map_err(unreadable)?;
    let schema = schema_of(&footer)?;
    let alone = ParquetMetaDataReader::decode_metadata(&[BEFORE, schema, BEHIND].concat())?;
    let options = ReadOptionsBuilder::new()
        .with_parquet_schema(alone.file_metadata().schema_descr_ptr())
        .with_column_stats_policy(ParquetStatisticsPolicy::SkipAll)
        .build();
    Ok(SerializedFileReader::new_with_options(file, options)?)
}

/// The bytes around the schema in a small footer: version 1, no rows and no row groups.
const BEFORE: &[u8] = &[0x15, 0x02, 0x19];
const BEHIND: &[u8] = &[0x16, 0x00, 0x19, 0x0c, 0x00];

fn unreadable(error: std::io::Error) -> ParquetError {
    ParquetError::Unreadable {
        found: error.to_string(),
    }
}

fn cut(length: u64) -> ParquetError {
    ParquetError::Unreadable {
        found: format!("it has {length} bytes, fewer than its footer needs"),
    }
}

fn schema_of(footer: &[u8]) -> Result<&[u8], ParquetError> {
    let malformed = |_| ParquetError::Unreadable {
        found: "its footer has no schema that can be read".to_owned(),
    };
    let mut thrift = Thrift::new(footer);
    let begin = schema_begin(&mut thrift).map_err(malformed)?;
    let is_deep = step_over_schema(&mut thrift).map_err(malformed)?;
    if is_deep {
        return Err(ParquetError::Unreadable {
            found: format!("its columns are nested in more than {DEEPEST} others"),
        });
    }
    Ok(footer.get(begin..thrift.position()).unwrap_or_default())
}

fn schema_begin(thrift: &mut Thrift) -> Result<usize, Malformed> {
    let mut last = 0;
    while let Some((id, kind)) = thrift.field(&mut last)? {
        if id == 2 {
            return match kind {
                LIST => Ok(thrift.position()),
                _ => Err(Malformed::Wrong),
            };
        }
        thrift.skip(kind)?;
    }
    Err(Malformed::Ended)
}

/// Returns true at the first element that is too deep.
fn step_over_schema(thrift: &mut Thrift) -> Result<bool, Malformed> {
    let (kind, elements) = thrift.list()?;
    if kind != STRUCT {
        return Err(Malformed::Wrong);
    }
    // The unread children of each open group.
    let mut open: Vec<u64> = Vec::new();
    for at in 0..elements {
        let children = element(thrift)?;
        if children > elements - at - 1 {
            return Err(Malformed::Wrong);
        }
        if let Some(left) = open.last_mut() {
            *left -= 1;
        }
        open.push(children);
        while open.last() == Some(&0) {
            open.pop();
        }
        if open.len() > DEEPEST {
            return Ok(true);
        }
    }
    Ok(false)
}

fn element(thrift: &mut Thrift) -> Result<u64, Malformed> {
    let (mut last, mut children) = (0, 0);
    while let Some((id, kind)) = thrift.field(&mut last)? {
        let expected = match id {
            1..=3 | 5..=9 => I32,
            4 => TEXT,
            10 => STRUCT,
            _ => kind,
        };
        match id {
            _ if kind != expected => return Err(Malformed::Wrong),
            5 => {
                let found = thrift.signed()? as i32;
                children = u64::try_from(found).map_err(|_| Malformed::Wrong)?;
            }
            10 => thrift.skip_logical_type()?,
            _ => thrift.skip(kind)?,
        }
    }
    Ok(children)
}
