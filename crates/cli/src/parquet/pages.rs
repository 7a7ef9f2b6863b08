//! Row groups that check each page before the column reader allocates memory for it.
//!
//! The reader allocates memory by the size and the number of values in a page's header, without a
//! check, so a few damaged bytes could demand gigabytes. This module first takes the memory from
//! the [`Budget`]:
//!
//! ```text
//!   a dictionary  its bytes, and its values          until its column ends
//!   a page        its bytes                          until the next page of its column
//!                 of lists: levels and values        until the next batch of rows
//! ```

use std::fs::File;
use std::io::{self, BufReader, Read};
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use flate2::read::MultiGzDecoder;
use parquet::basic::{Compression, Encoding, Type};
use parquet::bloom_filter::Sbbf;
use parquet::column::page::{Page, PageMetadata, PageReader};
use parquet::errors::{ParquetError, Result};
use parquet::file::metadata::RowGroupMetaData;
use parquet::file::reader::RowGroupReader;
use parquet::record::reader::RowIter;

use super::budget::Budget;
use super::column::leaf_of;
use super::delta;
use super::header::{Header, Kind};
use super::thrift::Malformed;

/// A row group that refuses a page beyond the budget.
pub struct Checked<'a> {
    pub group: Box<dyn RowGroupReader + 'a>,
    /// A second handle of the file, from which page headers are read.
    pub file: Arc<File>,
    pub budget: Arc<Budget>,
}

impl RowGroupReader for Checked<'_> {
    fn metadata(&self) -> &RowGroupMetaData {
        self.group.metadata()
    }

    fn num_columns(&self) -> usize {
        self.group.num_columns()
    }

    fn get_column_page_reader(&self, at: usize) -> Result<Box<dyn PageReader>> {
        let schema = self.metadata().schema_descr();
        let leaf = schema.column(at);
        let root = schema.get_column_root_idx(at);
        let field = schema.root_schema().get_fields().get(root);
        let kind = match leaf.physical_type() {
            Type::FIXED_LEN_BYTE_ARRAY => Width::Bytes(u64::try_from(leaf.type_length().max(1))?),
            Type::BYTE_ARRAY => Width::Texts,
            Type::BOOLEAN => Width::Bits(1),
            Type::INT32 | Type::FLOAT => Width::Bits(32),
            Type::INT64 | Type::DOUBLE => Width::Bits(64),
            Type::INT96 => Width::Bits(96),
        };
        let chunk = self.metadata().column(at);
        let (start, length) = chunk.byte_range();
        Ok(Box::new(CheckedPages {
            pages: self.group.get_column_page_reader(at)?,
            file: Arc::clone(&self.file),
            budget: Arc::clone(&self.budget),
            compression: chunk.compression(),
            at: start,
            left: length,
            width: kind,
            has_lists: leaf.max_rep_level() > 0,
            has_nulls: leaf.max_def_level() > 0,
            is_nested: field.is_none_or(|field| leaf_of(schema, root, field).is_none()),
            rows: u64::try_from(self.metadata().num_rows())?,
            longest: 0,
            taken: Taken::default(),
        }))
    }

    fn get_column_bloom_filter(&self, at: usize) -> Option<&Sbbf> {
        self.group.get_column_bloom_filter(at)
    }

    fn get_row_iter(
        &self,
        projection: Option<parquet::schema::types::Type>,
    ) -> Result<RowIter<'_>> {
        RowIter::from_row_group(projection, self)
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Width {
    Bits(u64),
    Bytes(u64),
    Texts,
}

impl Width {
    /// The least number of bits that a value takes in a dictionary.
    fn least_bits(self) -> u64 {
        match self {
            Self::Bits(bits) => bits,
            Self::Bytes(bytes) => 8 * bytes,
            Self::Texts => 32,
        }
    }

    /// The number of bytes that a decoded value takes in memory.
    fn decoded(self) -> u64 {
        match self {
            Self::Bits(bits) => bits.div_ceil(8),
            Self::Bytes(_) | Self::Texts => size_of::<parquet::data_type::ByteArray>() as u64,
        }
    }
}

const LEVELS: u64 = 4;

const NESTED: u64 = 96;

/// The bytes that a column has taken from the budget.
#[derive(Default)]
struct Taken {
    dictionary: u64,
    page: u64,
    /// Levels and values of the last page.
    last: u64,
    /// Levels and values of all pages in the current batch of rows.
    lists: u64,
    batch: u64,
}

struct CheckedPages {
    pages: Box<dyn PageReader>,
    file: Arc<File>,
    budget: Arc<Budget>,
    compression: Compression,
    /// The offset of the next page. From there, the column has `left` bytes.
    at: u64,
    left: u64,
    width: Width,
    has_lists: bool,
    has_nulls: bool,
    /// Whether the values are parts of JSON values.
    is_nested: bool,
    rows: u64,
    longest: u64,
    taken: Taken,
}

fn wrong<T>(found: String) -> Result<T> {
    Err(ParquetError::General(found))
}

impl CheckedPages {
    /// Takes the memory of the page that the reader reads next.
    fn look(&mut self) -> Result<()> {
        while self.left > 0 {
            let header = Header::read(&self.file, self.at, self.left)?;
            let begin = self.at + header.length;
            let whole = header.length + header.compressed;
            let Some(left) = self.left.checked_sub(whole) else {
                return wrong(format!(
                    "the page at offset {} goes beyond its column",
                    self.at
                ));
            };
            if begin + header.compressed > self.file.metadata()?.len() {
                return wrong(format!(
                    "the page at offset {} goes beyond the file",
                    self.at
                ));
            }
            (self.at, self.left) = (begin + header.compressed, left);
            if header.kind != Kind::Other {
                self.take(&header)?;
                return self.check_compressed(&header, begin);
            }
        }
        Ok(())
    }

    fn take(&mut self, header: &Header) -> Result<()> {
        let bytes = header.compressed + header.uncompressed;
        if header.kind == Kind::Dictionary {
            // The reader allocates memory for as many values as the header claims.
            let (values, held) = match self.compression {
                Compression::UNCOMPRESSED => (header.values, header.compressed),
                _ => (header.values, header.uncompressed),
            };
            if values.saturating_mul(self.width.least_bits()) > held * 8 {
                return wrong(format!(
                    "a dictionary of {held} bytes claims {values} values"
                ));
            }
            let values = values * self.width.decoded();
            self.budget.take(bytes + values)?;
            self.taken.dictionary += bytes + values;
            return Ok(());
        }
        if !self.has_lists && header.values > self.rows {
            let (values, rows) = (header.values, self.rows);
            return wrong(format!(
                "a page has {values} values, and its row group has only {rows} rows"
            ));
        }
        let is_delta = [
            Encoding::DELTA_LENGTH_BYTE_ARRAY,
            Encoding::DELTA_BYTE_ARRAY,
        ]
        .iter()
        .any(|&encoding| encoding as i32 == header.encoding);
        let lengths = if is_delta { 2 * 4 * header.values } else { 0 };
        let taken = &mut self.taken;
        self.budget.give_back(taken.page);
        taken.page = 0;
        if taken.batch != self.budget.batch() {
            self.budget.give_back(taken.lists - taken.last);
            taken.lists = taken.last;
            taken.batch = self.budget.batch();
        }
        taken.last = 0;
        self.budget.take(bytes + lengths)?;
        taken.page = bytes + lengths;
        if self.has_lists {
            let one = match self.is_nested {
                true => NESTED + self.longest,
                false => self.width.decoded(),
            };
            self.take_lists(header.values.saturating_mul(LEVELS + one))?;
        }
        Ok(())
    }

    /// Takes the memory of a page's values until the next batch. The memory of the last page stays
    /// taken into the next batch, which may need the rest of the page.
    fn take_lists(&mut self, bytes: u64) -> Result<()> {
        self.budget.take(bytes)?;
        self.taken.lists += bytes;
        self.taken.last += bytes;
        Ok(())
    }

    /// Refuses a page that decompresses to more bytes than its header says, or than the budget has
    /// left.
    fn check_compressed(&self, header: &Header, begin: u64) -> Result<()> {
        if !header.is_compressed {
            return Ok(());
        }
        let (from, to) = (begin + header.levels, begin + header.compressed);
        let mut compressed = Section {
            file: &self.file,
            at: from,
            end: to,
        };
        let room = header.uncompressed.saturating_sub(header.levels);
        match self.compression {
            Compression::GZIP(_) => {
                let decoder = MultiGzDecoder::new(BufReader::new(compressed));
                let bytes = io::copy(&mut decoder.take(room + 1), &mut io::sink())?;
                if bytes > room {
                    return wrong(format!(
                        "a page has more than the {room} bytes that its header says"
                    ));
                }
            }
            // Some writers use LZ4 frames, which decompress to at most 255 times their size.
            Compression::LZ4 => {
                let mut magic = [0; 4];
                if to - from >= 4 {
                    compressed.read_exact(&mut magic)?;
                }
                if magic == [0x04, 0x22, 0x4d, 0x18] {
                    let most = (to - from).saturating_mul(255);
                    self.budget.take(most)?;
                    self.budget.give_back(most);
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// Refuses a page with too many values or too long texts. Records a dictionary's longest text.
    fn check(&mut self, page: &Page) -> Result<()> {
        match page {
            Page::DictionaryPage { buf, .. } => {
                if self.width == Width::Texts {
                    self.longest = longest(buf);
                }
                Ok(())
            }
            Page::DataPage {
                buf,
                num_values,
                encoding,
                def_level_encoding,
                rep_level_encoding,
                ..
            } => {
                let mut values: &[u8] = buf;
                let levels = [
                    (self.has_lists, *rep_level_encoding),
                    (self.has_nulls, *def_level_encoding),
                ];
                for (_, encoding) in levels.into_iter().filter(|(has, _)| *has) {
                    // Only RLE levels begin with their length. Files with delta lengths have no
                    // other levels.
                    if encoding != Encoding::RLE {
                        return Ok(());
                    }
                    values = behind_levels(values)?;
                }
                self.check_values(values, *encoding, *num_values)
            }
            Page::DataPageV2 {
                buf,
                num_values,
                encoding,
                def_levels_byte_len,
                rep_levels_byte_len,
                ..
            } => {
                let levels = u64::from(*def_levels_byte_len) + u64::from(*rep_levels_byte_len);
                let values = buf.get(usize::try_from(levels)?..).unwrap_or_default();
                self.check_values(values, *encoding, *num_values)
            }
        }
    }

    /// Refuses a page with more lengths than values. Takes the memory of texts, if the encoding
    /// does not share prefixes between texts.
    fn check_values(&mut self, values: &[u8], encoding: Encoding, count: u32) -> Result<()> {
        let most = u64::from(count);
        let lengths = |bytes: &[u8]| {
            delta::lengths(bytes, most).or_else(|found| match found {
                Malformed::Ended => wrong("the page ends within the lengths of its texts".into()),
                Malformed::Wrong => wrong(format!(
                    "a page of {most} values has invalid lengths of texts"
                )),
            })
        };
        match encoding {
            _ if values.is_empty() => Ok(()),
            Encoding::DELTA_LENGTH_BYTE_ARRAY => lengths(values).map(|_| ()),
            Encoding::DELTA_BYTE_ARRAY => {
                let (prefixes, behind) = lengths(values)?;
                lengths(values.get(behind..).unwrap_or_default())?;
                self.take_lists(prefixes + values.len() as u64)
            }
            _ => Ok(()),
        }
    }
}

/// Skips the levels, which begin with their length.
fn behind_levels(bytes: &[u8]) -> Result<&[u8]> {
    let behind = bytes.split_first_chunk::<4>().and_then(|(length, rest)| {
        let length = usize::try_from(u32::from_le_bytes(*length)).ok()?;
        rest.get(length..)
    });
    match behind {
        Some(values) => Ok(values),
        None => wrong("a page ends within its levels".to_owned()),
    }
}

fn longest(mut texts: &[u8]) -> u64 {
    let mut longest = 0;
    while let Some((length, rest)) = texts.split_first_chunk::<4>() {
        let length = u32::from_le_bytes(*length);
        longest = longest.max(u64::from(length));
        texts = rest.get(length as usize..).unwrap_or_default();
    }
    longest
}

struct Section<'a> {
    file: &'a File,
    at: u64,
    end: u64,
}

impl Read for Section<'_> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let left = usize::try_from(self.end - self.at).unwrap_or(usize::MAX);
        let out = match out.len() > left {
            true => &mut out[..left],
            false => out,
        };
        let read = self.file.read_at(out, self.at)?;
        self.at += read as u64;
        Ok(read)
    }
}

impl Drop for CheckedPages {
    fn drop(&mut self) {
        let taken = &self.taken;
        (self.budget).give_back(taken.dictionary + taken.page + taken.lists);
    }
}

impl PageReader for CheckedPages {
    fn get_next_page(&mut self) -> Result<Option<Page>> {
        self.look()?;
        let page = self.pages.get_next_page()?;
        if let Some(page) = &page {
            self.check(page)?;
        }
        Ok(page)
    }

    fn peek_next_page(&mut self) -> Result<Option<PageMetadata>> {
        self.pages.peek_next_page()
    }

    fn skip_next_page(&mut self) -> Result<()> {
        self.look()?;
        self.pages.skip_next_page()
    }

    fn at_record_boundary(&mut self) -> Result<bool> {
        self.pages.at_record_boundary()
    }
}

impl Iterator for CheckedPages {
    type Item = Result<Page>;

    fn next(&mut self) -> Option<Self::Item> {
        self.get_next_page().transpose()
    }
}
