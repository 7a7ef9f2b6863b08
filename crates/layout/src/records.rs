//! Reads and writes the pages of a [geometry](crate::geometry), without the meaning of the bytes
//! after a list. After the count of records, a page has a mark of two bytes, usually zero, whose
//! meaning depends on the kind of the file.

use crate::block::{self, u16_at, u64_at};
use crate::error::{LayoutError, check_zero};
use crate::geometry::Geometry;

#[derive(Debug)]
pub(crate) struct RecordsBuilder {
    geometry: Geometry,
    mark: u16,
    page: Vec<u8>,
    count: usize,
}

impl RecordsBuilder {
    pub(crate) fn new(geometry: Geometry) -> RecordsBuilder {
        RecordsBuilder {
            geometry,
            mark: 0,
            page: vec![0; geometry.page_bytes()],
            count: 0,
        }
    }

    pub(crate) fn clear(&mut self) {
        self.page.fill(0);
        self.count = 0;
    }

    pub(crate) fn start(&mut self, geometry: Geometry, mark: u16) {
        self.clear();
        self.page.resize(geometry.page_bytes(), 0);
        self.geometry = geometry;
        self.mark = mark;
    }

    pub(crate) fn len(&self) -> usize {
        self.count
    }

    pub(crate) fn is_full(&self) -> bool {
        self.count == self.geometry.nodes_per_page
    }

    /// Appends a record to a page with space for it. Returns the record's bytes after the list,
    /// which are zero.
    pub(crate) fn push(&mut self, id: u64, vector: &[u8], neighbours: &[u32]) -> &mut [u8] {
        let geometry = &self.geometry;
        assert!(self.count < geometry.nodes_per_page, "the page is full");
        assert_eq!(
            vector.len(),
            geometry.vector_bytes,
            "the vector has the wrong number of bytes"
        );
        assert!(
            neighbours.len() <= geometry.degree,
            "{} neighbours, the format allows {}",
            neighbours.len(),
            geometry.degree
        );
        let at = geometry.record_at(self.count);
        let record = &mut self.page[at..at + geometry.record_bytes];
        record[..8].copy_from_slice(&id.to_le_bytes());
        record[8..8 + vector.len()].copy_from_slice(vector);
        let degree = neighbours.len() as u16;
        record[geometry.degree_at..geometry.degree_at + 2].copy_from_slice(&degree.to_le_bytes());
        let (head, behind) = record.split_at_mut(geometry.behind_at());
        for (slot, neighbour) in head[geometry.list_at()..]
            .chunks_exact_mut(4)
            .zip(neighbours)
        {
            slot.copy_from_slice(&neighbour.to_le_bytes());
        }
        self.count += 1;
        behind
    }

    pub(crate) fn finish(&mut self, page: u64) -> &[u8] {
        let at = 4 * self.geometry.blocks;
        self.page[at..at + 2].copy_from_slice(&(self.count as u16).to_le_bytes());
        self.page[at + 2..at + 4].copy_from_slice(&self.mark.to_le_bytes());
        block::seal_page(&mut self.page, self.geometry.first_block(page));
        &self.page
    }
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct RecordsView<'a> {
    geometry: &'a Geometry,
    bytes: &'a [u8],
    page: u64,
    count: usize,
    file: &'a str,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct RecordView<'a> {
    pub(crate) id: u64,
    pub(crate) vector: &'a [u8],
    pub(crate) list: &'a [u8],
    pub(crate) behind: &'a [u8],
}

impl<'a> RecordsView<'a> {
    /// Refuses a wrong length, count or `mark`. With `verify`, checksums are checked too. Without
    /// `verify`, damaged bytes give wrong values, but cause no panic.
    #[inline]
    pub(crate) fn open(
        geometry: &'a Geometry,
        bytes: &'a [u8],
        page: u64,
        expected: Option<usize>,
        mark: u16,
        verify: bool,
        file: &'a str,
    ) -> Result<RecordsView<'a>, LayoutError> {
        if bytes.len() != geometry.page_bytes() {
            return Err(LayoutError::Truncated {
                file: file.to_owned(),
                offset: geometry.file_offset(page),
                expected: geometry.page_bytes() as u64,
                found: bytes.len() as u64,
            });
        }
        if verify {
            block::check_page(bytes, geometry.first_block(page), file)?;
        }
        let at = 4 * geometry.blocks;
        let count = usize::from(u16_at(bytes, at));
        let right = match expected {
            Some(expected) => count == expected,
            None => true,
        };
        if !right || count > geometry.nodes_per_page {
            return Err(wrong_count(geometry, page, count, expected, file));
        }
        if u16_at(bytes, at + 2) != mark {
            check_zero(
                &bytes[at + 2..at + 4],
                geometry.file_offset(page).saturating_add(at as u64 + 2),
                file,
            )?;
        }
        Ok(RecordsView {
            geometry,
            bytes,
            page,
            count,
            file,
        })
    }

    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.count
    }

    #[inline]
    pub(crate) fn page(&self) -> u64 {
        self.page
    }

    #[inline]
    pub(crate) fn behind(&self, slot: usize) -> &'a [u8] {
        let end = self.geometry.record_at(slot) + self.geometry.record_bytes;
        &self.bytes[self.behind_at(slot)..end]
    }

    #[inline]
    pub(crate) fn behind_at(&self, slot: usize) -> usize {
        self.geometry.record_at(slot) + self.geometry.behind_at()
    }

    #[inline]
    pub(crate) fn record(&self, slot: usize) -> Result<RecordView<'a>, LayoutError> {
        if slot >= self.count {
            return Err(self.no_slot(slot));
        }
        let geometry = self.geometry;
        let at = geometry.record_at(slot);
        let record = &self.bytes[at..at + geometry.record_bytes];
        let degree = usize::from(u16_at(record, geometry.degree_at));
        if degree > geometry.degree {
            return Err(self.wrong_degree(at + geometry.degree_at, degree));
        }
        let list_at = geometry.list_at();
        Ok(RecordView {
            id: u64_at(record, 0),
            vector: &record[8..8 + geometry.vector_bytes],
            list: &record[list_at..list_at + 4 * degree],
            behind: &record[geometry.behind_at()..],
        })
    }

    #[cold]
    pub(crate) fn no_slot(&self, slot: usize) -> LayoutError {
        let at = 4 * self.geometry.blocks;
        let expected = format!("more than {slot}");
        self.wrong(at, COUNT, self.count, expected)
    }

    #[cold]
    fn wrong_degree(&self, at: usize, degree: usize) -> LayoutError {
        let expected = format!("at most {}", self.geometry.degree);
        self.wrong(at, "degree of a node", degree, expected)
    }

    #[cold]
    pub(crate) fn wrong(
        &self,
        at: usize,
        what: &'static str,
        found: impl ToString,
        expected: impl ToString,
    ) -> LayoutError {
        let offset = self.geometry.file_offset(self.page);
        LayoutError::Field {
            file: self.file.to_owned(),
            offset: offset.saturating_add(at as u64),
            what,
            found: found.to_string(),
            expected: expected.to_string(),
        }
    }
}

#[inline]
pub(crate) fn mark(geometry: &Geometry, bytes: &[u8]) -> Option<u16> {
    let at = 4 * geometry.blocks + 2;
    Some(u16_at(bytes.get(at..at + 2)?, 0))
}

const COUNT: &str = "count of records on the page";

fn count_offset(geometry: &Geometry, page: u64) -> u64 {
    geometry
        .file_offset(page)
        .saturating_add(4 * geometry.blocks as u64)
}

#[cold]
fn wrong_count(
    geometry: &Geometry,
    page: u64,
    found: usize,
    expected: Option<usize>,
    file: &str,
) -> LayoutError {
    LayoutError::Field {
        file: file.to_owned(),
        offset: count_offset(geometry, page),
        what: COUNT,
        found: found.to_string(),
        expected: match expected {
            Some(expected) => expected.to_string(),
            None => format!("at most {}", geometry.nodes_per_page),
        },
    }
}
