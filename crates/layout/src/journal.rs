//! The journal: pages that a checkpoint is about to overwrite in place, in an index whose pages do
//! not move. A checkpoint writes such a page to the journal before the commit, and in place
//! afterwards. A program that opens the index reads such a page from the journal, because a crash
//! may have left the page in place half old and half new.
//!
//! The payload of a [stream](crate::stream) of kind `Journal` is little-endian:
//!
//! | offset | bytes | contents |
//! |---|---|---|
//! | 0 | 4 | `c`: the number of pages |
//! | 4 | 4 | `b`: bytes of a page |
//! | 8 | 4 c | the numbers of the pages, ascending |
//! | 8 + 4 c | b c | the pages as in their file, with their checksums |

use crate::error::LayoutError;
use crate::payload::PayloadReader;

/// Format version of these files. 1: the first.
pub const FORMAT_VERSION: u32 = 1;

const FIXED: usize = 8;

/// Pages with their numbers, all of one length.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JournalFile {
    /// The numbers of the pages, ascending.
    pub numbers: Vec<u32>,
    /// The bytes of the pages, one after another.
    pub pages: Vec<u8>,
}

impl JournalFile {
    /// Encodes the start of a payload, which the pages with these ascending numbers follow.
    pub fn head(page_bytes: usize, numbers: &[u32]) -> Vec<u8> {
        let mut out = Vec::with_capacity(FIXED + 4 * numbers.len());
        out.extend_from_slice(&(numbers.len() as u32).to_le_bytes());
        out.extend_from_slice(&(page_bytes as u32).to_le_bytes());
        out.extend(numbers.iter().flat_map(|number| number.to_le_bytes()));
        out
    }

    /// Decodes a payload with pages of `page_bytes`. `file` is the name in errors.
    ///
    /// # Errors
    /// Fails if a length does not match, or the numbers do not ascend.
    pub fn decode(
        mut payload: Vec<u8>,
        page_bytes: usize,
        file: &str,
    ) -> Result<JournalFile, LayoutError> {
        let mut reader = PayloadReader::new(&payload, file);
        let count = reader.u32("number of pages")?;
        let found = reader.u32("bytes of a page")?;
        if found as usize != page_bytes {
            return Err(reader.wrong(4, "bytes of a page", found, page_bytes));
        }
        let at = reader.at();
        let numbers = reader.u32s(count.into(), "numbers of pages")?;
        if let Some(place) = numbers.windows(2).position(|two| two[0] >= two[1]) {
            let expected = format!("above {}", numbers[place]);
            let (at, found) = (at + 4 * (place + 1), numbers[place + 1]);
            return Err(reader.wrong(at, "number of a page", found, expected));
        }
        let pages_at = reader.at();
        let bytes = u64::from(count).saturating_mul(page_bytes as u64);
        reader.bytes(bytes, "pages")?;
        reader.end()?;
        // The pages are moved within the payload's buffer, so they are never in memory twice.
        payload.drain(..pages_at);
        Ok(JournalFile {
            numbers,
            pages: payload,
        })
    }

    /// The pages with their numbers. `page_bytes` must be the same as for [`decode`](Self::decode).
    pub fn pages(&self, page_bytes: usize) -> impl Iterator<Item = (u32, &[u8])> {
        let pages = self.pages.chunks_exact(page_bytes.max(1));
        self.numbers.iter().copied().zip(pages)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn decode(payload: &[u8]) -> Result<JournalFile, LayoutError> {
        JournalFile::decode(payload.to_vec(), 3, "journal")
    }

    fn sample() -> Vec<u8> {
        [&JournalFile::head(3, &[4, 9])[..], &[1, 2, 3, 4, 5, 6]].concat()
    }

    #[test]
    fn round_trips_and_stands_where_the_table_says() {
        let bytes = sample();
        assert_eq!(bytes[..8], [2, 0, 0, 0, 3, 0, 0, 0]);
        assert_eq!(bytes[8..], [4, 0, 0, 0, 9, 0, 0, 0, 1, 2, 3, 4, 5, 6]);
        let file = decode(&bytes).unwrap();
        let pages: Vec<_> = file.pages(3).collect();
        assert_eq!(pages, [(4, &[1, 2, 3][..]), (9, &[4, 5, 6])]);
        let none = decode(&JournalFile::head(3, &[])).unwrap();
        assert_eq!(none, JournalFile::default());
    }

    #[test]
    fn what_is_cut_off_or_out_of_order_is_refused() {
        let bytes = sample();
        for length in 0..bytes.len() {
            decode(&bytes[..length]).unwrap_err();
        }
        decode(&[&bytes[..], &[0]].concat()).unwrap_err();
        for (at, byte, text) in [
            (4, 4, "bytes of a page at offset 4104 is 4; expected 3"),
            (
                8,
                9,
                "number of a page at offset 4112 is 9; expected above 9",
            ),
            (
                12,
                3,
                "number of a page at offset 4112 is 3; expected above 4",
            ),
            (3, 255, "cut off after"),
        ] {
            let mut bytes = bytes.clone();
            bytes[at] = byte;
            let found = decode(&bytes).unwrap_err().to_string();
            assert!(found.contains(text), "{found}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_refused_or_read(
            bytes in prop::collection::vec(any::<u8>(), 0..200), page_bytes in 0usize..20
        ) {
            if let Ok(file) = JournalFile::decode(bytes.clone(), page_bytes, "j")
                && page_bytes > 0
            {
                let head = JournalFile::head(page_bytes, &file.numbers);
                prop_assert_eq!([head, file.pages].concat(), bytes);
            }
        }
    }
}
