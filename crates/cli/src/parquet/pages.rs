//! Row groups that check each page before the reader of its column allocates memory.
//!
//! A page says how many values it has. For a dictionary the reader trusts this number, and
//! allocates memory for all of them at once. A damaged page may have only a few bytes.

use parquet::basic::Type;
use parquet::bloom_filter::Sbbf;
use parquet::column::page::{Page, PageMetadata, PageReader};
use parquet::errors::{ParquetError, Result};
use parquet::file::metadata::RowGroupMetaData;
use parquet::file::reader::RowGroupReader;
use parquet::record::reader::RowIter;

/// A row group whose pages cannot claim more values than their bytes can hold.
pub struct Checked<'a>(pub Box<dyn RowGroupReader + 'a>);

impl RowGroupReader for Checked<'_> {
    fn metadata(&self) -> &RowGroupMetaData {
        self.0.metadata()
    }

    fn num_columns(&self) -> usize {
        self.0.num_columns()
    }

    fn get_column_page_reader(&self, at: usize) -> Result<Box<dyn PageReader>> {
        let column = self.metadata().schema_descr().column(at);
        let least_bits = match column.physical_type() {
            Type::BOOLEAN => 1,
            Type::INT32 | Type::FLOAT | Type::BYTE_ARRAY => 32,
            Type::INT64 | Type::DOUBLE => 64,
            Type::INT96 => 96,
            Type::FIXED_LEN_BYTE_ARRAY => 8 * u64::try_from(column.type_length().max(1))?,
        };
        Ok(Box::new(CheckedPages {
            pages: self.0.get_column_page_reader(at)?,
            least_bits,
        }))
    }

    fn get_column_bloom_filter(&self, at: usize) -> Option<&Sbbf> {
        self.0.get_column_bloom_filter(at)
    }

    fn get_row_iter(
        &self,
        projection: Option<parquet::schema::types::Type>,
    ) -> Result<RowIter<'_>> {
        RowIter::from_row_group(projection, self)
    }
}

struct CheckedPages {
    pages: Box<dyn PageReader>,
    /// Least number of bits of a value in a dictionary.
    least_bits: u64,
}

impl PageReader for CheckedPages {
    fn get_next_page(&mut self) -> Result<Option<Page>> {
        let page = self.pages.get_next_page()?;
        if let Some(Page::DictionaryPage {
            buf, num_values, ..
        }) = &page
        {
            let (values, bytes) = (u64::from(*num_values), buf.len() as u64);
            if values * self.least_bits > bytes * 8 {
                return Err(ParquetError::General(format!(
                    "a dictionary of {bytes} bytes claims {values} values"
                )));
            }
        }
        Ok(page)
    }

    fn peek_next_page(&mut self) -> Result<Option<PageMetadata>> {
        self.pages.peek_next_page()
    }

    fn skip_next_page(&mut self) -> Result<()> {
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
